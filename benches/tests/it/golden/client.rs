//! Clients of a recorded conversation, each attached to its port of the simulated fabric.

use std::time::{Duration, Instant};

use ib_mad::rmpp::{Receiver, ReceiverConfig};
use ib_mad::transport::ibsim::{Ibsim, IbsimOptions, Role};
use ib_mad::transport::{Address, Interest, Packet, Transport, wait};
use ib_mad::types::{Lid, Qpn};
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::rmpp::RmppType;
use ib_mad::wire::sa::SaMad;

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// An answer; tables with the header of their first segment and all records.
    Answer(Vec<u8>),
    /// The transfer was aborted with this status.
    Abort(u8),
    /// No answer.
    Nothing,
}

/// A port that sends requests.
pub(crate) struct Client {
    transport: Ibsim,
    sm_lid: Lid,
    tid: u32,
    /// Received reports, each acknowledged.
    pub(crate) reports: Vec<[u8; 256]>,
}

impl Client {
    /// Attaches to a node. With `hears` it receives reports, which is not possible at an SM's own
    /// port.
    pub(crate) fn attach(socket: &str, node: &str, sm_lid: u16, hears: bool) -> Self {
        let options = IbsimOptions {
            socket: socket.to_owned(),
            node: Some(node.to_owned()),
            role: Role::Client,
            ..IbsimOptions::default()
        };
        let mut transport = Ibsim::connect(&options).expect("the node takes clients");
        // Reports are requests: they reach the client that declared them.
        let report = if hears { 1 << Method::REPORT.0 } else { 0 };
        let _ = transport.declare_methods(MgmtClass::SUBN_ADM, report);
        Self { transport, sm_lid: Lid(sm_lid), tid: 0x1000, reports: Vec::new() }
    }

    /// Sends a request as recorded, but for its transaction id, and waits `patience` for an answer.
    pub(crate) fn ask(&mut self, request: &[Vec<u8>], patience: Duration) -> Got {
        self.tid += 1;
        let tid = u64::from(self.tid);
        let mut segments = request
            .iter()
            .map(|mad| {
                let mut packet = Packet::default();
                packet.mad[..mad.len().min(256)].copy_from_slice(&mad[..mad.len().min(256)]);
                SaMad::new(&mut packet.mad).header_mut().set_tid(tid);
                packet.address = self.address(&packet.mad);
                packet
            })
            .collect::<Vec<_>>()
            .into_iter();
        let Some(first) = segments.next() else { return Got::Nothing };
        self.send(&first);
        let until = Instant::now() + patience;
        let mut table: Option<Receiver> = None;
        let mut packet = Packet::default();
        loop {
            let now = Instant::now();
            if now >= until {
                return Got::Nothing;
            }
            if !self.receive(&mut packet, until - now) {
                continue;
            }
            let mad = SaMad::new(&packet.mad);
            if mad.header().tid() & 0xFFFF_FFFF != tid {
                continue;
            }
            let rmpp = mad.rmpp();
            if !rmpp.is_active() {
                return Got::Answer(packet.mad.to_vec());
            }
            match rmpp.rmpp_type() {
                RmppType::ABORT | RmppType::STOP => return Got::Abort(rmpp.rmpp_status().0),
                RmppType::ACK => segments.by_ref().for_each(|segment| self.send(&segment)),
                _ => {
                    if let Some(answer) = self.take_segment(&mut table, &packet) {
                        return Got::Answer(answer);
                    }
                }
            }
        }
    }

    /// Receives unsolicited packets for this long.
    pub(crate) fn listen(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let mut packet = Packet::default();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.receive(&mut packet, left);
        }
    }

    /// Sends a trap as an agent of this port would.
    pub(crate) fn trap(&mut self, notice: &[u8]) {
        let mut packet = Packet::default();
        packet.mad[..8].copy_from_slice(&[1, 1, 1, 5, 0, 0, 0, 0]);
        self.tid += 1;
        packet.mad[12..16].copy_from_slice(&self.tid.to_be_bytes());
        packet.mad[17] = 2;
        packet.mad[64..128].copy_from_slice(&notice[..64]);
        packet.address = self.address(&packet.mad);
        self.send(&packet);
    }

    fn address(&self, mad: &[u8; 256]) -> Address {
        let qpn = if mad[1] == MgmtClass::SUBN_LID_ROUTED.0 { Qpn::SMI } else { Qpn::GSI };
        Address { lid: self.sm_lid, qpn, local_qpn: qpn, ..Address::default() }
    }

    fn send(&mut self, packet: &Packet) {
        while self.transport.send(std::slice::from_ref(packet)).expect("the simulator is there")
            == 0
        {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The next packet that is not a report; reports are acknowledged.
    fn receive(&mut self, packet: &mut Packet, patience: Duration) -> bool {
        if let Some(descriptor) = self.transport.descriptor() {
            wait(&mut [Interest::read(descriptor)], Some(patience)).expect("ppoll works");
        }
        let got = self.transport.receive(std::slice::from_mut(packet)).expect("it is there");
        if got == 0 || packet.carrier.undelivered != 0 {
            return false;
        }
        let mad = SaMad::new(&mut packet.mad);
        if mad.header().method() == Method::REPORT {
            self.reports.push(packet.mad);
            let mut mad = SaMad::new(&mut packet.mad);
            mad.header_mut().set_method(Method::REPORT_RESP);
            let answer = packet.clone();
            self.send(&answer);
            return false;
        }
        true
    }

    fn take_segment(&mut self, table: &mut Option<Receiver>, packet: &Packet) -> Option<Vec<u8>> {
        let now = Instant::now();
        match table {
            None => *table = Receiver::start(now, &packet.mad, ReceiverConfig::default()).ok(),
            Some(receiver) => receiver.handle_packet(now, &packet.mad),
        }
        let receiver = table.as_mut()?;
        let mut replies = Vec::new();
        while let Some(transmit) = receiver.poll_transmit() {
            let mut reply = packet.clone();
            transmit.write(receiver.header(), &[], &mut reply.mad);
            replies.push(reply);
        }
        let message = receiver.take_message();
        replies.iter().for_each(|reply| self.send(reply));
        message
    }
}

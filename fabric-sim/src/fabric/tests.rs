//! Packets, clients and time: interaction between nodes.

use std::time::{Duration, Instant};

use ib_mad::transport::{Grh, Packet};
use ib_mad::types::{Gid, Guid, Lid, PortNum, Qpn, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{
    CapabilityMask, GuidInfo, MulticastForwardingTable, PortInfo, PortPhysState, PortState,
    SmNotice, TrapNumber, multicast_forwarding_modifier,
};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass, Status};
use ib_mad::wire::smp::{self, Request, Smp};
use proptest::prelude::*;

use super::*;
use crate::fault::Probability;
use crate::subnet::{NodeIndex, PortCounter};
use crate::virtual_time::VirtualClock;
use ib_mad::netlist::Net;

mod clients;
mod congesting;
mod delivery;
mod routes;
mod state;

const NET: &str = "\
Switch 20 \"S1\"
[1] \"H1\"[1]
[2] \"S2\"[2]
[20] \"H3\"[1]

Switch 8 \"S2\"
[1] \"H2\"[1]
[2] \"S1\"[2]

Hca 1 \"H1\"
[1] \"S1\"[1]

Hca 1 \"H2\"
[1] \"S2\"[1]

Hca 1 \"H3\"
[1] \"S1\"[20]
";

/// LIDs that [`Bench::configure`] assigns: S1, S2, H1, H2, H3.
const LIDS: [(&str, u16); 5] = [("S1", 1), ("S2", 2), ("H1", 3), ("H2", 4), ("H3", 5)];
/// Directed routes from H1 to these nodes.
const ROUTES: [&[u8]; 5] = [&[1], &[1, 2], &[], &[1, 2, 1], &[1, 20]];

struct Bench {
    fabric: Fabric,
    clock: VirtualClock,
    /// Attached to H1.
    manager: Endpoint,
    tid: u64,
}

impl Bench {
    fn new(options: Options) -> Self {
        let mut fabric = Fabric::new(&Net::parse("test", NET).unwrap(), options);
        let h1 = fabric.find_node("H1").unwrap();
        let manager = fabric.attach(h1, 1).unwrap();
        Self { fabric, clock: VirtualClock::new(), manager, tid: 0 }
    }

    /// A fabric configured as by a subnet manager.
    fn configured() -> Self {
        let mut bench = Self::new(Options::default());
        bench.configure();
        bench
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn node(&self, name: &str) -> NodeIndex {
        self.fabric.find_node(name).unwrap()
    }

    fn attach(&mut self, name: &str) -> Endpoint {
        let node = self.node(name);
        self.fabric.attach(node, 0).unwrap()
    }

    fn request(&mut self, method: Method, attribute: AttributeId, modifier: u32) -> Request {
        self.tid += 1;
        Request {
            method,
            attribute_id: attribute,
            attribute_modifier: modifier,
            tid: self.tid,
            m_key: 0,
        }
    }

    fn directed(
        &mut self,
        method: Method,
        attribute: AttributeId,
        modifier: u32,
        path: &[u8],
    ) -> Packet {
        let path: Vec<PortNum> = path.iter().copied().map(PortNum).collect();
        let mut packet = smp_packet(Lid::PERMISSIVE);
        let request = self.request(method, attribute, modifier);
        request.write_directed(&mut packet.mad, &path).unwrap();
        packet
    }

    fn by_lid(&mut self, attribute: AttributeId, lid: u16) -> Packet {
        let mut packet = smp_packet(Lid(lid));
        self.request(Method::GET, attribute, 0).write_lid_routed(&mut packet.mad);
        packet
    }

    fn send(&mut self, packet: &Packet) {
        let now = self.now();
        self.fabric.send(now, self.manager, packet);
    }

    fn poll(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let now = self.now();
        self.fabric.poll(now, &mut deliveries, usize::MAX);
        deliveries
    }

    /// Sends a packet and returns the single response.
    fn ask(&mut self, packet: &Packet) -> Packet {
        self.send(packet);
        let mut deliveries = self.poll();
        assert_eq!(deliveries.len(), 1);
        let delivery = deliveries.remove(0);
        assert_eq!(delivery.endpoint, self.manager);
        delivery.packet
    }

    fn ask_directed(&mut self, attribute: AttributeId, modifier: u32, path: &[u8]) -> [u8; 64] {
        let packet = self.directed(Method::GET, attribute, modifier, path);
        let answer = self.ask(&packet);
        let answer = Smp::of(&answer.mad);
        assert_eq!((answer.method(), answer.status()), (Method::GET_RESP, Status::OK));
        answer.data()
    }

    fn set_directed(
        &mut self,
        attribute: AttributeId,
        modifier: u32,
        path: &[u8],
        data: &[u8; 64],
    ) -> Status {
        let mut packet = self.directed(Method::SET, attribute, modifier, path);
        packet.mad[smp::DATA].copy_from_slice(data);
        Smp::new(&self.ask(&packet).mad[..]).unwrap().status()
    }

    fn set_port(
        &mut self,
        path: &[u8],
        port: u8,
        change: impl Fn(&mut PortInfo<&mut [u8; 64]>),
    ) -> Status {
        let mut data = self.ask_directed(AttributeId::PORT_INFO, port.into(), path);
        let mut info = PortInfo::of_mut(&mut data);
        info.set_port_state(PortState::NoChange).set_port_physical_state(PortPhysState::NoChange);
        change(&mut info);
        self.set_directed(AttributeId::PORT_INFO, port.into(), path, &data)
    }

    fn set_lft(&mut self, path: &[u8], ports: &[(u16, u8)]) {
        let mut block = [0xFF; 64];
        for &(lid, port) in ports {
            block[usize::from(lid)] = port;
        }
        let attribute = AttributeId::LINEAR_FORWARDING_TABLE;
        assert_eq!(self.set_directed(attribute, 0, path, &block), Status::OK);
        let mut info = self.ask_directed(AttributeId::SWITCH_INFO, 0, path);
        ib_mad::wire::attribute::SwitchInfo::of_mut(&mut info)
            .set_linear_fdb_top(Lid(63))
            .set_port_state_change(true);
        assert_eq!(self.set_directed(AttributeId::SWITCH_INFO, 0, path, &info), Status::OK);
    }

    fn configure(&mut self) {
        for ((_, lid), path) in LIDS.into_iter().zip(ROUTES) {
            let status = self.set_port(path, 0, |info| {
                info.set_base_lid(Lid(lid)).set_master_sm_lid(Lid(3));
            });
            assert_eq!(status, Status::OK);
        }
        self.set_lft(&[1], &[(1, 0), (2, 2), (3, 1), (4, 2), (5, 20)]);
        self.set_lft(&[1, 2], &[(1, 2), (2, 0), (3, 2), (4, 1), (5, 2)]);
        let ends: [(&[u8], u8); 8] = [
            (&[1], 1),
            (&[1], 2),
            (&[1], 20),
            (&[1, 2], 1),
            (&[1, 2], 2),
            (&[], 1),
            (&[1, 2, 1], 1),
            (&[1, 20], 1),
        ];
        for state in [PortState::Armed, PortState::Active] {
            for (path, port) in ends {
                let status = self.set_port(path, port, |info| {
                    info.set_port_state(state);
                });
                assert_eq!(status, Status::OK, "{path:?} {port}");
            }
        }
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.fabric.counters().dropped(reason)
    }
}

fn smp_packet(lid: Lid) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = lid;
    packet.address.qpn = Qpn::SMI;
    packet.address.local_qpn = Qpn::SMI;
    packet
}

/// A request to QP1 of a class that nodes leave to the host.
fn gmp(class: MgmtClass, lid: u16) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = Lid(lid);
    MadHeader::of_mut(&mut packet.mad)
        .set_base_version(1)
        .set_mgmt_class(class)
        .set_class_version(2)
        .set_method(Method::GET)
        .set_tid(0x1_2345);
    packet
}

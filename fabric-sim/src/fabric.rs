//! The simulated subnet: clients attached to ports, packets in and out, virtual time.
//!
//! No sockets, threads or clocks: the caller passes the time. The same calls with the same times,
//! nets and seeds give the same deliveries.

mod cables;
mod chaos;
mod congesting;
mod control;
mod counting;
mod demux;
mod traps;
mod virtual_ports;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Carrier, Grh, Packet};
use ib_mad::types::{Gid, Lid, PKey, PortNum, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass};
use ib_mad::wire::smp::{self, Smp};

pub use self::control::{ControlError, LinkView, NodeView, PortView};
pub(crate) use self::counting::masks_up_to;
pub use self::demux::{AttachError, ClassTaken, ENDPOINTS_MAX, Endpoint};
pub use crate::agent::performance::CounterSupport;

use self::chaos::Chaos;
use self::demux::Endpoints;
use self::traps::Traps;
use crate::agent::congestion::Reaction;
use crate::agent::{self, Verdict, congestion, mkey, performance};
use crate::check;
use crate::counters::{Counters, DropReason};
use crate::fault::Faults;
use crate::forward::{Arrival, Lane, Lids, Target, Traveller};
use crate::subnet::{Effect, NodeIndex, PortIndex, Subnet};
use crate::virtual_time::Agenda;
use ib_mad::netlist::Net;

/// Status of a packet that is returned to its sender: ETIMEDOUT, as from a kernel.
pub const UNDELIVERED: u32 = 110;

/// Parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Whether undeliverable packets are returned to their sender, with `undelivered`
    /// set, as `ibsim` does in place of the kernel's timeouts. Otherwise they are dropped, as on a
    /// real fabric.
    pub return_undelivered: bool,
    /// Limit of packets in flight and timers.
    pub in_flight_max: usize,
    /// Limit of deliveries waiting to be polled.
    pub deliveries_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 0, return_undelivered: false, in_flight_max: 1 << 20, deliveries_max: 1 << 20 }
    }
}

/// A packet for a client.
#[derive(Debug)]
pub struct Delivery {
    /// The receiving client.
    pub endpoint: Endpoint,
    /// The packet as received: its address is the sender's.
    pub packet: Packet,
}

/// A simulated subnet; see the [module](self).
pub struct Fabric {
    pub(crate) subnet: Subnet,
    faults: Faults,
    endpoints: Endpoints,
    traps: Traps,
    chaos: Chaos,
    agenda: Agenda<Event>,
    deliveries: VecDeque<Delivery>,
    counters: Counters,
    options: Options,
    effects: Vec<Effect>,
    /// Ports whose clients must register again, until the caller takes them.
    reregistering: BTreeSet<PortIndex>,
    /// How often the clients of a port were asked to register again.
    reregistrations: BTreeMap<PortIndex, u64>,
}

enum Event {
    Arrives(Box<Flight>, Arrival),
    TrapDue { port: PortIndex, tid: u64 },
    LeaseOver { port: PortIndex, lease: u64 },
    Chaos { epoch: u32 },
}

/// A packet in flight.
#[derive(Clone)]
struct Flight {
    mad: [u8; MAD_LEN],
    lids: Lids,
    sqp: Qpn,
    dqp: Qpn,
    sl: Sl,
    pkey: PKey,
    /// As its sender sees it.
    grh: Option<Grh>,
    message_len: u16,
    /// The client that is notified if the packet is lost; for a response by an agent, the
    /// requester.
    sender: Option<Endpoint>,
    /// A response by an agent.
    answers: bool,
}

impl Fabric {
    /// The subnet of `net` with all nodes powered, all links trained, and nothing configured.
    pub fn new(net: &Net, options: Options) -> Self {
        Self {
            subnet: Subnet::new(net),
            faults: Faults::new(options.seed),
            endpoints: Endpoints::default(),
            traps: Traps::default(),
            chaos: Chaos::new(options.seed),
            agenda: Agenda::new(options.in_flight_max),
            deliveries: VecDeque::new(),
            counters: Counters::default(),
            effects: Vec::new(),
            reregistering: BTreeSet::new(),
            reregistrations: BTreeMap::new(),
            options,
        }
    }

    /// Sends `packet` from `endpoint`. The packet's address is the destination's; directed-route
    /// SMPs go to the permissive LID. The top 16 bits of a request's transaction id are replaced by
    /// the endpoint's id, as a kernel does, so that responses can be matched. From a planarized
    /// port it leaves by the plane that its carrier names, else by the first that leads there.
    pub fn send(&mut self, now: Instant, endpoint: Endpoint, packet: &Packet) {
        let Some(port) = self.endpoints.port(endpoint) else { return };
        self.counters.sent += 1;
        let port = self.plane_for(port, packet);
        let address = &packet.address;
        let mut flight = Flight {
            mad: packet.mad,
            lids: Lids { slid: self.source_lid(port, address), dlid: address.lid },
            sqp: address.local_qpn,
            dqp: address.qpn,
            sl: address.sl,
            pkey: address.pkey,
            grh: address.grh.map(|grh| self.grh_of_sender(port, grh)),
            message_len: packet.carrier.message_len,
            sender: Some(endpoint),
            answers: false,
        };
        let mut header = MadHeader::of_mut(&mut flight.mad);
        // A TrapRepress() carries the transaction id of its trap.
        if !header.method().is_response() && header.method() != Method::TRAP_REPRESS {
            let tid = header.tid() & (u64::MAX >> 16) | u64::from(endpoint.id()) << 48;
            header.set_tid(tid);
        }
        let (class, method) = (header.mgmt_class(), header.method());
        let is_asked = !method.is_response() && method != Method::TRAP_REPRESS;
        if class == MgmtClass::SUBN_LID_ROUTED && is_asked {
            self.counters.lid_routed_smps += 1;
        }
        let directed = class == MgmtClass::SUBN_DIRECTED_ROUTE;
        if directed {
            start_directed(&mut flight.mad);
        }
        self.launch(now, port, flight);
        self.run_effects(now);
    }

    /// Appends up to `batch` deliveries due by `now` to `deliveries`. Call until it appends none.
    pub fn poll(&mut self, now: Instant, deliveries: &mut Vec<Delivery>, batch: usize) {
        while let Some((at, event)) = self.agenda.pop_due(now) {
            match event {
                Event::Arrives(flight, arrival) => self.arrive(at, *flight, arrival),
                Event::TrapDue { port, tid } => self.send_trap(at, port, tid),
                Event::LeaseOver { port, lease } => mkey::lease_over(&mut self.subnet, port, lease),
                Event::Chaos { epoch } => self.stir(at, epoch),
            }
            self.run_effects(at);
        }
        let ready = batch.min(self.deliveries.len());
        deliveries.extend(self.deliveries.drain(..ready));
    }

    /// The latest time to call [`poll`](Self::poll) next; a past instant if deliveries are waiting.
    /// Any other call may change it.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if self.deliveries.is_empty() { self.agenda.next_due() } else { Some(now) }
    }

    /// Counts of events so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The next port, by node and number, whose clients a manager has asked to register again since
    /// the port was returned last.
    pub fn poll_reregistration(&mut self) -> Option<(NodeIndex, u8)> {
        let port = self.reregistering.pop_first()?;
        Some((self.subnet[port].node, self.subnet[port].number))
    }

    /// Packets in flight and pending timers.
    pub fn in_flight(&self) -> usize {
        self.agenda.len()
    }

    /// The port by which a packet of a client at `port` leaves.
    fn plane_for(&self, port: PortIndex, packet: &Packet) -> PortIndex {
        let subnet = &self.subnet;
        if !subnet.node_of(port).has_planes {
            return port;
        }
        let plane = packet.carrier.plane.0;
        if let Some(named) = subnet.planes_of(port).find(|&at| subnet[at].number == plane) {
            return named;
        }
        let dlid = packet.address.lid;
        if dlid.is_multicast() {
            return subnet.shown_port(port);
        }
        subnet.planes_of(port).find(|&at| check::leads_to(subnet, at, dlid)).unwrap_or(port)
    }

    fn source_lid(&self, port: PortIndex, address: &Address) -> Lid {
        if address.lid == Lid::PERMISSIVE {
            return Lid::PERMISSIVE;
        }
        let info = self.subnet.port_info(self.subnet.management_port(port));
        let path_bits = address.path_bits & ((1u16 << info.lmc()) - 1) as u8;
        Lid(info.base_lid().0 | u16::from(path_bits))
    }

    /// Routes a packet from `origin`; it arrives now or after its delay.
    fn launch(&mut self, now: Instant, origin: PortIndex, mut flight: Flight) {
        let class = MadHeader::of(&flight.mad).mgmt_class();
        let dlid = flight.lids.dlid;
        if dlid.is_multicast() && class != MgmtClass::SUBN_DIRECTED_ROUTE {
            return self.launch_multicast(now, origin, &flight);
        }
        let mut traveller = Traveller::new(&mut self.subnet, &mut self.faults);
        let arrival = match class {
            MgmtClass::SUBN_DIRECTED_ROUTE => {
                traveller.directed(origin, &mut flight.lids, &mut flight.mad)
            }
            _ if dlid == Lid::PERMISSIVE => traveller.at_home(origin),
            MgmtClass::SUBN_LID_ROUTED => traveller.by_lid(origin, dlid, Lane::Management),
            _ => traveller.by_lid(origin, dlid, Lane::Data),
        };
        match arrival {
            Err(reason) => self.undelivered(flight, reason),
            Ok(arrival) if arrival.latency.is_zero() => self.arrive(now, flight, arrival),
            Ok(arrival) => self.enter(now, flight, arrival),
        }
    }

    fn launch_multicast(&mut self, now: Instant, origin: PortIndex, flight: &Flight) {
        let mut arrivals = Vec::new();
        let counters = &mut self.counters;
        Traveller::new(&mut self.subnet, &mut self.faults).by_mlid(
            origin,
            flight.lids.dlid,
            |arrival| arrivals.push(arrival),
            |reason| counters.drop(reason),
        );
        for arrival in arrivals {
            // Copies of a multicast packet are not returned.
            let copy = Flight { sender: None, ..flight.clone() };
            match arrival.latency {
                Duration::ZERO => self.arrive(now, copy, arrival),
                _ => self.enter(now, copy, arrival),
            }
        }
    }

    fn enter(&mut self, now: Instant, flight: Flight, arrival: Arrival) {
        let event = Event::Arrives(Box::new(flight), arrival);
        if let Err(Event::Arrives(flight, _)) = self.agenda.push(now + arrival.latency, event) {
            self.undelivered(*flight, DropReason::InFlightLimit);
        }
    }

    fn arrive(&mut self, now: Instant, mut flight: Flight, arrival: Arrival) {
        if !self.subnet.node_of(arrival.port).up {
            return self.undelivered(flight, DropReason::NodeDown);
        }
        let header = MadHeader::of(&flight.mad);
        let is_smp = matches!(
            header.mgmt_class(),
            MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE
        );
        if !is_smp || arrival.target == Target::Manager {
            let header_class = header.mgmt_class();
            let asks_node = header_class == MgmtClass::PERF && flight.dqp <= Qpn::GSI;
            if asks_node
                && performance::receive(&mut self.subnet, now, arrival.port, &mut flight.mad)
            {
                return self.answer(now, arrival.port, flight);
            }
            if header_class == MgmtClass::CONGESTION && flight.dqp <= Qpn::GSI {
                match congestion::receive(&mut self.subnet, now, arrival.port, &mut flight.mad) {
                    Reaction::Answered => return self.answer(now, arrival.port, flight),
                    Reaction::WrongKey => return self.undelivered(flight, DropReason::BadCcKey),
                    Reaction::ForClient => {}
                }
            }
            return self.deliver(flight, arrival.port);
        }
        let asked = (header.method(), header.attribute_id(), header.attribute_modifier());
        let slid = flight.lids.slid;
        if let Some(refusal) = self.faults.refuses(self.subnet[arrival.port].node, asked) {
            let Some(status) = refusal.status else {
                return self.undelivered(flight, DropReason::NoClient);
            };
            smp::answer(&mut flight.mad, status);
            return self.answer(now, arrival.port, flight);
        }
        match agent::receive(&mut self.subnet, arrival.port, slid, &mut flight.mad) {
            Verdict::Answered => self.answer(now, arrival.port, flight),
            Verdict::ForHost => self.deliver_smp(now, flight, arrival.port),
            Verdict::Repressed(tid) => self.repress(arrival.port, tid),
            Verdict::Dropped(reason) => self.undelivered(flight, reason),
        }
    }

    /// Sends an agent's response back along the way of its request.
    fn answer(&mut self, now: Instant, port: PortIndex, flight: Flight) {
        self.counters.answered += 1;
        let origin = self.subnet.management_port(port);
        let answer = Flight {
            lids: Lids { slid: flight.lids.dlid, dlid: flight.lids.slid },
            sqp: flight.dqp,
            dqp: flight.sqp,
            grh: flight.grh.map(turned),
            answers: true,
            ..flight
        };
        self.launch(now, origin, answer);
    }

    /// Delivers an SMP to the host behind the port it reached.
    fn deliver_smp(&mut self, now: Instant, mut flight: Flight, port: PortIndex) {
        let header = MadHeader::of(&flight.mad);
        match self.endpoints.receiver(&self.subnet, port, flight.dqp, &header) {
            Some(endpoint) => self.hand_over(endpoint, &flight, port),
            None if agent::refuse_for_host(&mut flight.mad) => self.answer(now, port, flight),
            None => self.undelivered(flight, DropReason::NoClient),
        }
    }

    /// The GRH of a packet of a client at `port`: from the GID that it names, if the port has it,
    /// else from the port's own, entry 0 of its table.
    fn grh_of_sender(&self, port: PortIndex, grh: Grh) -> Grh {
        if agent::port_tables::has_gid(&self.subnet, port, grh.local_gid) {
            return grh;
        }
        let prefix = self.subnet.port_info(self.subnet.management_port(port)).gid_prefix();
        let own = self.subnet.port_guid(self.subnet.management_port(port));
        Grh { local_gid: Gid::new(prefix, own), ..grh }
    }

    /// Delivers any other packet to the client that receives it at the port it reached: a port
    /// takes packets with a GRH only to GIDs that it has.
    fn deliver(&mut self, flight: Flight, port: PortIndex) {
        let is_unicast = flight.lids.dlid.is_unicast();
        if let Some(grh) = flight.grh.filter(|_| is_unicast)
            && !agent::port_tables::has_gid(&self.subnet, port, grh.remote_gid)
        {
            return self.undelivered(flight, DropReason::WrongGid);
        }
        let header = MadHeader::of(&flight.mad);
        match self.endpoints.receiver(&self.subnet, port, flight.dqp, &header) {
            Some(endpoint) => self.hand_over(endpoint, &flight, port),
            None => self.undelivered(flight, DropReason::NoClient),
        }
    }

    fn hand_over(&mut self, endpoint: Endpoint, flight: &Flight, arrived_by: PortIndex) {
        self.counters.delivered += 1;
        let mut packet = flight.seen_by_receiver();
        if self.subnet.node_of(arrived_by).has_planes {
            packet.carrier.plane = PortNum(self.subnet[arrived_by].number);
        }
        if let Some(port) = self.endpoints.port(endpoint) {
            let port = self.subnet.shown_port(port);
            let base = self.subnet.port_info(self.subnet.management_port(port)).base_lid();
            if flight.lids.dlid.is_unicast() {
                packet.address.path_bits = (flight.lids.dlid.0.wrapping_sub(base.0)) as u8;
            }
        }
        self.push_delivery(Delivery { endpoint, packet });
    }

    /// Counts a lost packet and, if configured, returns it to its sender.
    fn undelivered(&mut self, flight: Flight, reason: DropReason) {
        self.counters.drop(reason);
        if !self.options.return_undelivered {
            return;
        }
        let Some(endpoint) = flight.sender else { return };
        let packet = flight.seen_by_sender();
        self.counters.returned += 1;
        self.push_delivery(Delivery { endpoint, packet });
    }

    fn push_delivery(&mut self, delivery: Delivery) {
        if self.deliveries.len() >= self.options.deliveries_max {
            return self.counters.drop(DropReason::QueueFull);
        }
        self.deliveries.push_back(delivery);
    }

    /// Processes the effects that agents queued.
    fn run_effects(&mut self, now: Instant) {
        while !self.subnet.effects.is_empty() {
            std::mem::swap(&mut self.effects, &mut self.subnet.effects);
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Trap(port, notice) => self.raise_trap(now, port, notice),
                    Effect::LeaseBegun(port, lease) => self.begin_lease(now, port, lease),
                    Effect::Reregister(port) => {
                        self.counters.reregistrations += 1;
                        self.reregistering.insert(port);
                        *self.reregistrations.entry(port).or_default() += 1;
                    }
                }
            }
            self.effects = effects;
        }
    }

    fn begin_lease(&mut self, now: Instant, port: PortIndex, lease: u64) {
        let seconds = self.subnet.port_info(port).m_key_lease_period();
        let due = now + Duration::from_secs(u64::from(seconds));
        if self.agenda.push(due, Event::LeaseOver { port, lease }).is_err() {
            self.counters.drop(DropReason::InFlightLimit);
        }
    }
}

impl Flight {
    /// The packet as its receiver sees it.
    fn seen_by_receiver(&self) -> Packet {
        let grh = self.grh.map(turned);
        let mut packet = self.packet(self.lids.slid, self.sqp, self.dqp);
        packet.address.grh = grh;
        packet
    }

    /// The packet as returned to its sender. A response is returned to the requester, as if the
    /// request had been lost.
    fn seen_by_sender(&self) -> Packet {
        let mut packet = match self.answers {
            false => self.packet(self.lids.dlid, self.dqp, self.sqp),
            true => self.packet(self.lids.slid, self.sqp, self.dqp),
        };
        packet.carrier.undelivered = UNDELIVERED;
        packet
    }

    fn packet(&self, lid: Lid, qpn: Qpn, local_qpn: Qpn) -> Packet {
        let (sl, pkey, message_len) = (self.sl, self.pkey, self.message_len);
        Packet {
            mad: self.mad,
            address: Address { qpn, local_qpn, sl, pkey, grh: self.grh, ..Address::gsi(lid) },
            carrier: Carrier { message_len, ..Carrier::default() },
        }
    }
}

/// A GRH as the other end sees it.
fn turned(grh: Grh) -> Grh {
    Grh { remote_gid: grh.local_gid, local_gid: grh.remote_gid, ..grh }
}

/// Sets the hop pointer of a directed-route response: clients of ibsim send 0, which ibsim ignores,
/// while nodes expect it beyond the end of the path.
fn start_directed(mad: &mut [u8; MAD_LEN]) {
    let mut smp = Smp::of_mut(mad);
    let (hops, method) = (smp.hop_count(), smp.method());
    if method.is_response() && smp.hop_pointer() == 0 {
        smp.set_returning(true).set_hop_pointer(hops.saturating_add(1));
    }
}

#[cfg(test)]
mod tests;

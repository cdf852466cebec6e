//! Forwarding of packets by the programmed tables, over the links that are up.
//!
//! A packet's route is computed when it is sent; later changes do not affect it. Which client
//! receives it is decided in `agent` and `fabric`, the delay of a link in `fault`.

mod multicast;

use std::time::Duration;

use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::PortState;
use ib_mad::wire::smp::{self, Discard, Step};

use crate::counters::DropReason;
use crate::fault::Faults;
use crate::subnet::{NodeIndex, PortIndex, Subnet};

/// Limit of hops; routes of real fabrics have about a dozen.
pub(crate) const HOPS_MAX: usize = 64;

/// The kind of virtual lane that a packet uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// VL15: crosses links that are trained.
    Management,
    /// A data VL: crosses active links only.
    Data,
}

/// The LIDs in a packet's local route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lids {
    pub(crate) slid: Lid,
    pub(crate) dlid: Lid,
}

/// The end of a packet's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The port it entered by: port 0 of the switch that sent it, if there was no hop.
    pub(crate) port: PortIndex,
    /// Its receiver.
    pub(crate) target: Target,
    /// Accumulated delay.
    pub(crate) latency: Duration,
}

/// The endpoint that receives the packet at its destination node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The client selected by class and method.
    ByClass,
    /// The client that waits for this directed-route response.
    Manager,
}

/// A packet travelling from one port to the next.
pub(crate) struct Traveller<'a> {
    pub(crate) subnet: &'a mut Subnet,
    pub(crate) faults: &'a mut Faults,
    latency: Duration,
    hops: usize,
}

impl<'a> Traveller<'a> {
    pub(crate) fn new(subnet: &'a mut Subnet, faults: &'a mut Faults) -> Self {
        Self { subnet, faults, latency: Duration::ZERO, hops: 0 }
    }

    /// Delivers a packet from `origin` to itself.
    pub(crate) fn at_home(&self, origin: PortIndex) -> Result<Arrival, DropReason> {
        match self.subnet.node_of(origin).up {
            true => Ok(self.arrive(origin, Target::ByClass)),
            false => Err(DropReason::NodeDown),
        }
    }

    /// Sends a packet from `origin` to a unicast LID.
    pub(crate) fn by_lid(
        &mut self,
        origin: PortIndex,
        dlid: Lid,
        lane: Lane,
    ) -> Result<Arrival, DropReason> {
        if !self.subnet.node_of(origin).up {
            return Err(DropReason::NodeDown);
        }
        if !self.subnet.node_of(origin).is_switch() {
            if self.subnet.owns_lid(origin, dlid) {
                return Ok(self.arrive(origin, Target::ByClass));
            }
            let entry = self.cross(origin, lane)?;
            return self.relay(entry, dlid, lane);
        }
        self.relay(origin, dlid, lane)
    }

    /// Forwards a packet that entered by `entry` to `dlid`.
    fn relay(
        &mut self,
        mut entry: PortIndex,
        dlid: Lid,
        lane: Lane,
    ) -> Result<Arrival, DropReason> {
        loop {
            let node = self.subnet[entry].node;
            let Some(switch) = self.subnet.switch(node) else {
                let owned = self.subnet.owns_lid(entry, dlid);
                return owned
                    .then(|| self.arrive(entry, Target::ByClass))
                    .ok_or(DropReason::WrongLid);
            };
            let number = switch.out_port(dlid);
            let Some(out) = self.subnet.port(node, number) else {
                let traffic = &mut self.subnet[entry].traffic;
                traffic.rcv_switch_relay_errors = traffic.rcv_switch_relay_errors.saturating_add(1);
                return Err(DropReason::NoRoute);
            };
            if number == 0 {
                let owned = self.subnet.owns_lid(out, dlid);
                return owned
                    .then(|| self.arrive(entry, Target::ByClass))
                    .ok_or(DropReason::WrongLid);
            }
            entry = self.cross(out, lane)?;
        }
    }

    /// Sends a directed-route SMP from `origin`, with LID-routed parts before and after the
    /// directed one if its addresses require them. `lids` are those of the packet's header.
    pub(crate) fn directed(
        &mut self,
        origin: PortIndex,
        lids: &mut Lids,
        mad: &mut [u8; MAD_LEN],
    ) -> Result<Arrival, DropReason> {
        if !self.subnet.node_of(origin).up {
            return Err(DropReason::NodeDown);
        }
        let mut entry = origin;
        let mut arrived_by = None;
        if lids.dlid != Lid::PERMISSIVE {
            entry = self.by_lid(origin, lids.dlid, Lane::Management)?.port;
            arrived_by = Some(PortNum(self.subnet[entry].number));
        }
        loop {
            let is_switch = self.subnet.node_of(entry).is_switch();
            entry = match smp::step(mad, arrived_by, is_switch) {
                Step::Forward(port) => {
                    *lids = Lids { slid: Lid::PERMISSIVE, dlid: Lid::PERMISSIVE };
                    let node = self.subnet[entry].node;
                    let out = self.exit(node, port).ok_or(DropReason::BadPath)?;
                    self.cross(out, Lane::Management)?
                }
                Step::Agent => return Ok(self.arrive(entry, Target::ByClass)),
                Step::Manager => return Ok(self.arrive(entry, Target::Manager)),
                Step::LidRouted(dlid) => {
                    let own = self.subnet.management_port(entry);
                    *lids = Lids { slid: self.subnet.port_info(own).base_lid(), dlid };
                    self.relay(entry, dlid, Lane::Management)?.port
                }
                Step::Discard(Discard::HopCount | Discard::HopPointer) => {
                    return Err(DropReason::Malformed);
                }
                // NotASwitch, NotOnItsPath.
                _ => return Err(DropReason::BadPath),
            };
            arrived_by = Some(PortNum(self.subnet[entry].number));
        }
    }

    /// The port by which a directed route leaves a node; port 0 is invalid.
    fn exit(&self, node: NodeIndex, port: PortNum) -> Option<PortIndex> {
        if port.0 == 0 { None } else { self.subnet.port(node, port.0) }
    }

    /// Crosses the link at `out`; returns the port at the far end.
    fn cross(&mut self, out: PortIndex, lane: Lane) -> Result<PortIndex, DropReason> {
        self.hops += 1;
        if self.hops > HOPS_MAX {
            return Err(DropReason::HopLimit);
        }
        let Some(peer) = self.subnet.peer(out) else { return Err(self.discard(out)) };
        let (near, far) = (self.subnet.port_state(out), self.subnet.port_state(peer));
        let passes = match lane {
            Lane::Management => near != PortState::Down && far != PortState::Down,
            Lane::Data => {
                near == PortState::Active && matches!(far, PortState::Armed | PortState::Active)
            }
        };
        if !passes {
            return Err(self.discard(out));
        }
        self.subnet[out].traffic.sent();
        let Some(delay) = self.faults.cross(out) else {
            let traffic = &mut self.subnet[peer].traffic;
            traffic.rcv_errors = traffic.rcv_errors.saturating_add(1);
            return Err(DropReason::Lost);
        };
        self.latency += delay;
        self.subnet[peer].traffic.received();
        if lane == Lane::Data {
            self.subnet.data_arrived(peer);
        }
        Ok(peer)
    }

    fn discard(&mut self, out: PortIndex) -> DropReason {
        let traffic = &mut self.subnet[out].traffic;
        traffic.xmit_discards = traffic.xmit_discards.saturating_add(1);
        DropReason::PortDown
    }

    fn arrive(&self, port: PortIndex, target: Target) -> Arrival {
        Arrival { port, target, latency: self.latency }
    }
}

//! End ports: the ports that have LIDs, and the choice among several with the same port GUID.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, PortNum};

use super::{Fabric, PortIndex};

/// Whether a port is where its GUID belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// It is.
    Home,
    /// It is at another place, or none is known.
    Elsewhere,
    /// It is at another place, and does not get the GUID even if it alone has it.
    Withheld,
}

/// The owners of port GUIDs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Ports that own their GUID, and did not before.
    pub owners: Vec<PortIndex>,
    /// Ports that do not, after the one that does, if any.
    pub others: Vec<(Option<PortIndex>, PortIndex)>,
}

/// The lowest of several ports with one GUID owns it.
type Rank = (bool, bool, bool, PortIndex);

impl Fabric {
    /// Indices of the ports that carry LIDs: port 0 of switches, linked ports of others; only
    /// those whose PortInfo is known, and of several with one port GUID only the one that
    /// [`settle_end_ports`](Self::settle_end_ports) chose.
    pub fn end_ports(&self) -> impl Iterator<Item = PortIndex> + '_ {
        self.nodes().flat_map(move |(index, node)| {
            let last = if node.switch.is_some() { 0 } else { node.port_count };
            let first = u8::from(node.switch.is_none());
            (first..=last)
                .filter_map(move |num| self.port_of(index, PortNum(num)))
                .filter(|&port| self.is_end_port(port))
        })
    }

    /// Whether a port carries LIDs and can be reached.
    pub fn is_end_port(&self, index: PortIndex) -> bool {
        self.port(index).owns_guid == Some(true) && self.could_be_end_port(index)
    }

    /// Whether a port has no LIDs only because another node's port has its port GUID.
    pub(super) fn is_duplicate(&self, index: PortIndex) -> bool {
        self.port(index).owns_guid == Some(false)
            && self.could_be_end_port(index)
            && self.owner_beside(index).is_none()
    }

    /// Whether the link of a port is left out because the port, not a switch's, has another's GUID.
    pub fn is_left_out(&self, index: PortIndex) -> bool {
        self.node_of(index).switch.is_none() && self.is_duplicate(index)
    }

    /// Chooses one port for each port GUID: of several the SM's own, then the one at its home, then
    /// the one that had it before, then the first. `tenure` is called for ports that did not have
    /// it before. Other ports of its adapter with the GUID are its further planes.
    pub fn settle_end_ports(
        &mut self,
        mut tenure: impl FnMut(&Self, PortIndex) -> Tenure,
    ) -> Settled {
        let ports = self.nodes().flat_map(|(index, _)| self.ports_of(index));
        let (candidates, others): (Vec<PortIndex>, Vec<PortIndex>) =
            ports.partition(|&port| self.could_be_end_port(port));
        let mut owners: HashMap<Guid, (Rank, PortIndex), RandomState> =
            HashMap::with_capacity_and_hasher(candidates.len(), RandomState::default());
        for &port in &candidates {
            let had_it = self.port(port).owns_guid == Some(true);
            let tenure = if had_it { Tenure::Elsewhere } else { tenure(self, port) };
            let is_own = self.sm_port == Some(port);
            if is_own || tenure != Tenure::Withheld {
                let rank = (!is_own, tenure != Tenure::Home, !had_it, port);
                let owner = owners.entry(self.port(port).guid).or_insert((rank, port));
                if rank < owner.0 {
                    *owner = (rank, port);
                }
            }
        }
        others.into_iter().for_each(|port| self.settle(port, None));
        let mut settled = Settled::default();
        self.has_planes = false;
        for port in candidates {
            let owner = owners.get(&self.port(port).guid).map(|&(_, owner)| owner);
            let is_owner = owner == Some(port);
            let is_plane = !is_owner
                && owner.is_some_and(|owner| self.port(owner).node == self.port(port).node);
            if is_plane {
                self.has_planes = true;
            } else if !is_owner {
                settled.others.push((owner, port));
            } else if self.port(port).owns_guid != Some(true) {
                settled.owners.push(port);
            }
            self.settle(port, Some(is_owner));
        }
        settled
    }

    /// Sets whether an end port is at another place than its GUID belongs to; returns whether that
    /// changed.
    pub(crate) fn set_newcomer(&mut self, port: PortIndex, is_newcomer: bool) -> bool {
        let changes = self.port(port).is_newcomer != is_newcomer;
        if changes {
            self.port_mut(port).is_newcomer = is_newcomer;
        }
        changes
    }

    /// Takes its port GUID from a port until [`settle_end_ports`](Self::settle_end_ports) chooses
    /// again.
    pub(crate) fn disown(&mut self, port: PortIndex) {
        self.settle(port, Some(false));
    }

    fn settle(&mut self, port: PortIndex, owns_guid: Option<bool>) {
        if self.port(port).owns_guid != owns_guid {
            self.port_mut(port).owns_guid = owns_guid;
        }
    }

    pub(super) fn could_be_end_port(&self, index: PortIndex) -> bool {
        let port = self.port(index);
        let node = self.node(port.node);
        let of_the_kind = match node.switch {
            Some(_) => port.num.0 == 0,
            None => port.peer.is_some() || self.is_own_port(index),
        };
        node.present && port.known && of_the_kind && port.guid != Guid::WELL_KNOWN_SA
    }

    /// Ports that have no LIDs because they report the GUID that stands for the SA.
    pub fn impostors(&self) -> impl Iterator<Item = PortIndex> + '_ {
        let ports = self.nodes().flat_map(|(index, _)| self.ports_of(index));
        ports.filter(|&port| {
            let is_present = self.node_of(port).present && self.port(port).known;
            is_present && self.port(port).guid == Guid::WELL_KNOWN_SA
        })
    }
}

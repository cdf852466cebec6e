//! What `neighbors` remembers of places, and what it takes from a discovery.
//!
//! Restarts, takeovers and new standbys judge by it who owns a GUID, so that it takes a link only
//! if each end is where it belongs, or was not known. What is behind a switch is no evidence for
//! that.

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::NodeType;

use super::answerer::Answerer;
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::mkey::ADAPTER_GUIDS;
use crate::sweep::subnet::Subnet;

impl Subnet {
    /// Notes the links that were found since the last call and are to be remembered, while they are
    /// there: of those that fail before `neighbors` is written, it has the ends.
    pub(in crate::sweep) fn note_links(&mut self) {
        let found = self.fabric.take_new_links();
        let known = &self.m_keys.neighbours;
        let has_room = known.has_room(self.m_keys.new_links.len() + found.len());
        if !has_room {
            // Those that are there now are all that is kept.
            self.m_keys.new_links.clear();
        }
        let links = if has_room { found } else { self.fabric.links() };
        // A port with another one's GUID would take that one's place.
        let is_left_out = |port| self.fabric.is_left_out(port);
        let end = |port| (self.m_key_holder(port), self.fabric.port(port).num);
        let (links, away): (Vec<_>, Vec<_>) = links
            .into_iter()
            .filter(|&(port, peer)| !is_left_out(port) && !is_left_out(peer))
            .filter(|&(port, peer)| {
                let (a, b) = (end(port), end(peer));
                !has_room || known.get(a) != Some(b) || known.get(b) != Some(a)
            })
            .partition(|&(port, peer)| self.may_settle(port, peer));
        let links: Vec<_> = links.iter().map(|&(port, peer)| (end(port), end(peer))).collect();
        self.m_keys.new_links.extend(links);
        // These are looked at again: their homes may move.
        away.iter().for_each(|(port, _)| self.fabric.note_new_link(*port));
    }

    /// Whether a link is where its ends belong, so that it may be remembered.
    fn may_settle(&self, port: PortIndex, peer: PortIndex) -> bool {
        [(port, peer), (peer, port)].into_iter().all(|(port, peer)| {
            let node = self.fabric.node_of(port);
            if node.switch.is_some() {
                return self.is_anchored(self.fabric.port(port).node);
            }
            let (num, guid) = (self.fabric.port(port).num, self.fabric.port(port).guid);
            let place = self.end(peer);
            // A port GUID of several planes has its home in one of them.
            let is_plane = self.fabric.is_further_plane(port);
            let identities = [(node.guid, num), (guid, PortNum(0))];
            let identities = if is_plane { &identities[..1] } else { &identities[..] };
            let is_known = self.m_keys.neighbours.get(self.end(port)).is_some();
            identities.iter().all(|&id| self.homes.is_accepted(id, place))
                && (is_known || self.is_anchored(self.fabric.port(port).node))
                && !self.has_ports_of_switch(port)
        })
    }

    /// Whether `neighbors` has a GUID of an adapter's port with numbers of ports that the adapter
    /// does not have: it is a switch's.
    fn has_ports_of_switch(&self, port: PortIndex) -> bool {
        let node = self.fabric.port(port).node;
        let has_planes = self.fabric.planes_beside(port).next().is_some();
        let is_own = |guid: Guid, num: PortNum| {
            self.fabric.port_of(node, num).is_some_and(|port| {
                let known = self.fabric.port(port).guid;
                // A plane that was not found since the start.
                known == guid || has_planes && known == Guid(0)
            })
        };
        [self.fabric.node(node).guid, self.fabric.port(port).guid]
            .iter()
            .any(|&guid| self.m_keys.neighbours.links_of(guid).any(|(num, _)| !is_own(guid, num)))
    }

    /// Whether a node is reached at one of the places that `neighbors` has for it, if it has any.
    /// What is behind it proves nothing.
    pub(super) fn is_anchored(&self, node: NodeIndex) -> bool {
        let neighbours = &self.m_keys.neighbours;
        let mut ports = self.fabric.ports_of(node);
        !neighbours.has_node(self.fabric.node(node).guid)
            || ports.any(|port| {
                self.fabric.port(port).peer().is_some_and(|peer| {
                    self.is_remembered(peer, port)
                        && (self.is_external(peer) || self.fabric.is_own_port(peer))
                        && !self.fabric.leads_through(peer, node)
                })
            })
    }

    /// Whether `neighbors` has the switch, or the port of an adapter, of `to` behind the port
    /// `from`: a switch is at home there also if the cable leads to another of its ports.
    pub(super) fn is_remembered(&self, from: PortIndex, to: PortIndex) -> bool {
        self.is_place_of(from, self.end(to).0)
    }

    fn is_place_of(&self, from: PortIndex, guid: Guid) -> bool {
        self.m_keys.neighbours.get(self.end(from)).is_some_and(|(known, _)| known == guid)
    }

    /// Whether an answer came from the place that `neighbors` has for its port.
    pub(super) fn is_home(&self, egress: PortIndex, answerer: &Answerer) -> bool {
        let Answerer { guid, port_guid, .. } = *answerer;
        if answerer.kind == NodeType::Switch {
            return self.is_place_of(egress, guid);
        }
        self.m_keys.neighbours.get((port_guid, answerer.local_port)) == Some(self.end(egress))
            && is_port_guid_of(guid, port_guid)
    }
}

/// Whether a port GUID is one of those that a maker gives with this node GUID. `neighbors` has the
/// places of port GUIDs only: one that has nothing to do with the node GUID does not show where the
/// latter belongs.
pub(super) fn is_port_guid_of(node: Guid, port: Guid) -> bool {
    port.0.wrapping_sub(node.0) <= ADAPTER_GUIDS
}

//! Nodes that answer at other places than before.
//!
//! Any port can answer with the GUID of another node. Who is found first in a discovery depends on
//! the order of ports, so an answer from a place at which its node is not expected is set aside
//! until all others are judged: by then the node was found where it was, or it is gone from there.
//! Of two different nodes with one GUID the one at its home keeps it.

use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::NodeType;

use super::Discovery;
use super::answerer::Answerer;
use super::homes::end;
use super::memory::is_port_guid_of;
use super::notes::{Claim, Newer};
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::home::{Identity, WHOLE_SWITCH};
use crate::manage::mkey::End;
use crate::sweep::subnet::Subnet;

/// How much is known of a node's place, from the least to the most: what its right to the GUID is
/// judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// `neighbors` has the GUID as that of a switch; this is an adapter that it does not have here.
    Foreign,
    /// Its port was elsewhere, or is not known.
    None,
    /// It is where it was first seen since the start.
    Seen,
    /// It was elsewhere since the start, but `neighbors` has it here.
    Remembered,
    /// `neighbors` has it here, and it was nowhere else.
    Home,
}

impl Evidence {
    /// That of a port at `place`, which has this home.
    fn of(home: Option<End>, place: End, is_remembered: bool) -> Self {
        match (home, is_remembered) {
            (Some(home), true) if home != place => Self::Remembered,
            (_, true) => Self::Home,
            (Some(home), false) if home == place => Self::Seen,
            (_, false) => Self::None,
        }
    }

    /// That of an adapter whose node GUID `neighbors` has as that of a switch.
    fn beside_switch(self) -> Self {
        if self <= Self::Seen { Self::Foreign } else { self }
    }
}

impl Discovery {
    /// Whether an answer is to be judged after all others: its node was elsewhere, and has not been
    /// found in this discovery. Adapters of the same kind need no such care: the place of each of
    /// their ports is known ([`settle_rivals`](Self::settle_rivals)).
    pub(super) fn is_out_of_place(
        &self,
        subnet: &Subnet,
        egress: PortIndex,
        answerer: &Answerer,
    ) -> bool {
        if !self.full {
            return false;
        }
        let is_switch = answerer.kind == NodeType::Switch;
        let fabric = &subnet.fabric;
        let known = fabric.find(answerer.guid).filter(|&node| fabric.node(node).present);
        let Some(node) = known else {
            // After a restart. An adapter is known by its port GUIDs.
            let is_foreign = is_switch || answerer.port_guid != answerer.guid;
            let is_known = subnet.m_keys.neighbours.has_node(answerer.guid);
            return is_foreign && is_known && !subnet.is_home(egress, answerer);
        };
        if fabric.node(node).seen == subnet.state.discovery
            || (answerer.is_like(fabric.node(node)) && !is_switch)
        {
            return false;
        }
        let mut peers = fabric.ports_of(node).filter_map(|port| fabric.port(port).peer());
        let Some(first) = peers.next() else { return false };
        first != egress && peers.all(|peer| peer != egress)
    }

    /// Judges the answers that were set aside; returns whether requests were sent.
    pub(super) fn judges_out_of_place(&mut self, subnet: &mut Subnet, now: Instant) -> bool {
        for (egress, answerer) in std::mem::take(&mut self.out_of_place) {
            if subnet.fabric.node_of(egress).present {
                self.judge(subnet, egress, &answerer, now);
            }
        }
        !subnet.exchange.is_idle()
    }

    /// Decides which of two different nodes keeps the GUID that both report: the one with more
    /// evidence, else the known one. Returns whether it is that behind `egress`. The other is left
    /// out.
    pub(super) fn replaces_known(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        node: NodeIndex,
        answerer: &Answerer,
        now: Instant,
    ) -> bool {
        let at = subnet.fabric.ports_of(node).find_map(|port| subnet.fabric.port(port).peer());
        let is_adapter = answerer.kind != NodeType::Switch;
        let place = subnet.end(egress);
        let known_place = at.map(|port| subnet.end(port));
        let identity = (answerer.guid, answerer.local_port);
        let home = subnet.homes.get(identity, now);
        let evidence = Evidence::of(home, place, subnet.is_home(egress, answerer));
        let is_foreign = is_adapter && subnet.is_of_switch(answerer.guid, answerer.port_guid);
        let evidence = if is_foreign { evidence.beside_switch() } else { evidence };
        let replaces = !subnet.is_own_node(answerer) && evidence > subnet.evidence_of(node, now);
        if is_adapter {
            for identity in [identity, (answerer.port_guid, PortNum(0))] {
                match subnet.home_of(identity, now).or(known_place) {
                    _ if replaces => subnet.homes.belongs(identity, place),
                    Some(home) => subnet.homes.contested(identity, home),
                    None => {}
                }
            }
        }
        self.report_different_nodes(subnet, egress, node, answerer, replaces);
        match replaces {
            true => {
                self.left_out.extend(at);
                subnet.fabric.remove(node);
            }
            false => _ = self.left_out.insert(egress),
        }
        replaces
    }

    /// Whether a switch that appeared at another place answers from where it was before. Then that
    /// may have been a node with its GUID: whether it is the switch itself, is found from `egress`.
    pub(super) fn returns_home(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        node: NodeIndex,
        answerer: &Answerer,
        now: Instant,
    ) -> bool {
        let (guid, place) = (answerer.guid, subnet.end(egress));
        if subnet.homes.get((guid, answerer.local_port), now) != Some(place) {
            return false;
        }
        let Some(way) = self.displaceable(subnet, egress, node) else { return false };
        let Some(arrival) = subnet.fabric.port(way).peer() else { return false };
        let link = Claim { from: way, to: arrival };
        let way_place = subnet.end(way);
        let arrived = (guid, subnet.fabric.port(arrival).num);
        if subnet.homes.get(arrived, now) == Some(way_place)
            || self.contradictions.confirmed.contains(&link)
        {
            return false;
        }
        self.look_into(subnet, link, Newer::Home(egress), now);
        true
    }

    /// The way to a switch that is reached where it was not before, which is given up for `egress`,
    /// where it was; `None` if it is not so.
    fn displaceable(
        &self,
        subnet: &Subnet,
        egress: PortIndex,
        node: NodeIndex,
    ) -> Option<PortIndex> {
        let fabric = &subnet.fabric;
        let way = fabric.upstream(node).filter(|&way| way != egress && fabric.has_way(node))?;
        let is_own = fabric.is_own_port(way)
            || fabric.sm_port().is_some_and(|own| fabric.port(own).node == node);
        // What is seen through the switch is the switch itself.
        let is_kept = is_own
            || fabric.leads_through(egress, node)
            || subnet.is_remembered(way, fabric.port(way).peer()?);
        (!is_kept).then_some(way)
    }

    /// Removes a switch that is reached where it was not before, in favour of `egress`, where it
    /// was, and leaves the way to it out, which is returned; `None` if it is not so.
    pub(super) fn displaces(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        node: NodeIndex,
    ) -> Option<PortIndex> {
        let way = self.displaceable(subnet, egress, node)?;
        let guid = subnet.fabric.node(node).guid;
        if self.first_report(subnet, guid.0) {
            let (first, second) = (subnet.place(egress), subnet.place(way));
            let text = format!(
                "duplicate GUID: switch {guid} answers behind {first}, where it was before, and \
                 behind {second}. The second is ignored; change the GUID of one of the nodes"
            );
            let place = subnet.left_out_place(way);
            subnet.journal.duplicate(guid, place, text);
        }
        self.left_out.insert(way);
        subnet.homes.contested((guid, WHOLE_SWITCH), subnet.end(egress));
        subnet.fabric.remove(node);
        Some(way)
    }

    /// Reports two different nodes with one GUID. `replaces`: whether the second keeps it.
    fn report_different_nodes(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        node: NodeIndex,
        answerer: &Answerer,
        replaces: bool,
    ) {
        if !self.first_report(subnet, answerer.guid.0) {
            return;
        }
        let known = subnet.fabric.node(node);
        let at = subnet.fabric.ports_of(node).find_map(|port| subnet.fabric.port(port).peer());
        let first = at.map_or_else(|| "the SM's port".to_owned(), |port| subnet.place(port));
        let second = subnet.place(egress);
        let ignored = if replaces { "first" } else { "second" };
        let text = format!(
            "duplicate GUID: {} is a {} with {} ports behind {first}, and a {} with {} ports \
             behind {second}. The {ignored} is ignored; change the GUID of one of the nodes",
            answerer.guid, known.kind, known.port_count, answerer.kind, answerer.port_count,
        );
        let left_out = if replaces { at.unwrap_or(egress) } else { egress };
        let place = subnet.left_out_place(left_out);
        subnet.journal.duplicate(answerer.guid, place, text);
    }
}

impl Subnet {
    /// Records where a node was before that answers at another place: a switch, unless it is known
    /// there, and a node of another kind or number of ports than before.
    pub(super) fn note_displaced(&mut self, egress: PortIndex, answerer: &Answerer, now: Instant) {
        let before = self.fabric.find(answerer.guid);
        let before = before.filter(|&node| !answerer.is_like(self.fabric.node(node)));
        let home = before.and_then(|node| {
            let of_port = self.home_of((answerer.guid, answerer.local_port), now);
            of_port.or_else(|| self.home_of_node(node, now))
        });
        let place = self.end(egress);
        if let Some(home) = home.filter(|&home| home != place) {
            self.homes.displaced((answerer.guid, answerer.local_port), home, place, now);
        }
        if answerer.kind == NodeType::Switch && !self.is_home(egress, answerer) {
            self.homes.reserved(answerer.guid, self.m_keys.neighbours.links_of(answerer.guid));
        }
    }

    /// The most evidence of any port of a known node.
    fn evidence_of(&mut self, node: NodeIndex, now: Instant) -> Evidence {
        let guid = self.fabric.node(node).guid;
        let is_switch = self.fabric.node(node).switch.is_some();
        let mut port_guids = self.fabric.ports_of(node).map(|port| self.fabric.port(port).guid);
        let is_foreign =
            !is_switch && port_guids.any(|port| port.0 != 0 && self.is_of_switch(guid, port));
        let Self { fabric, homes, m_keys, .. } = self;
        let found = fabric.ports_of(node).filter_map(|port| {
            let entry = fabric.port(port);
            // What is behind a switch proves nothing.
            let peer = entry.peer().filter(|&peer| !is_switch || !fabric.leads_through(peer, node));
            let place = end(fabric, peer?);
            let is_own = is_switch || is_port_guid_of(guid, entry.guid);
            let known = m_keys.neighbours.get(place);
            let is_remembered = match is_switch {
                true => known.is_some_and(|(known, _)| known == guid),
                false => is_own && m_keys.neighbours.get(end(fabric, port)) == Some(place),
            };
            Some(Evidence::of(homes.get((guid, entry.num), now), place, is_remembered))
        });
        let most = found.max().unwrap_or(Evidence::None);
        if is_foreign { most.beside_switch() } else { most }
    }

    /// Whether `neighbors` has the node GUID of an adapter with this port GUID as that of a switch.
    fn is_of_switch(&self, guid: Guid, port_guid: Guid) -> bool {
        port_guid != guid && self.m_keys.neighbours.place_of(guid).is_some()
    }

    /// Where an identity of an adapter belongs, as far as that is known.
    pub(super) fn home_of(
        &mut self,
        identity @ (guid, num): Identity,
        now: Instant,
    ) -> Option<End> {
        let neighbours = &self.m_keys.neighbours;
        self.homes.get(identity, now).or_else(|| match num.0 {
            0 => neighbours.place_of(guid),
            _ => neighbours.place_of_adapter(guid, num),
        })
    }

    /// A place at which a node was.
    fn home_of_node(&mut self, node: NodeIndex, now: Instant) -> Option<End> {
        let Self { fabric, homes, m_keys, .. } = self;
        let node = fabric.node(node);
        let mut nums = (1..=node.port_count).map(PortNum);
        let known = nums.find_map(|num| homes.get((node.guid, num), now));
        known.or_else(|| m_keys.neighbours.place_of(node.guid))
    }
}

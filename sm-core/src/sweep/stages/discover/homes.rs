//! GUIDs that two ports have: the port at its home keeps the identity, the other is left out.

use std::time::Instant;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::NodeType;

use super::Discovery;
use super::answerer::Answerer;
use super::notes::{Claim, Contradiction, Newer};
use crate::fabric::{Fabric, Node, Port, PortIndex, Tenure};
use crate::manage::home::{Identity, VIRTUAL, WHOLE_SWITCH};
use crate::manage::mkey::{End, Neighbours};
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;

impl Discovery {
    /// Whether the node that answered behind `egress` is left out because its GUID belongs to
    /// another place, which is empty.
    pub(super) fn is_withheld(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        answerer: &Answerer,
        now: Instant,
    ) -> bool {
        let is_switch = answerer.kind == NodeType::Switch;
        if is_switch && subnet.fabric.is_own_port(egress) {
            return false;
        }
        let num = if is_switch { WHOLE_SWITCH } else { answerer.local_port };
        let identity = (answerer.guid, num);
        if is_switch && subnet.is_home(egress, answerer) {
            subnet.homes.stays(identity);
            return false;
        }
        let place = subnet.end(egress);
        let Some(home) = subnet.homes.withheld(identity, place, now) else { return false };
        if !is_switch && is_vacated(&subnet.fabric, home, |node, _| node.guid == answerer.guid) {
            return false;
        }
        self.left_out.insert(egress);
        self.report_withheld(subnet, identity, egress, home);
        true
    }

    fn report_withheld(
        &mut self,
        subnet: &mut Subnet,
        (guid, _): Identity,
        at: PortIndex,
        (home, num): End,
    ) {
        if self.first_report(subnet, guid.0) {
            let place = subnet.place(at);
            let text = match num {
                VIRTUAL => format!(
                    "duplicate GUID: {guid}, at {place}, belongs to a virtual port of {home}. The \
                     port is ignored while that is there; change its GUID"
                ),
                _ => format!(
                    "duplicate GUID: {guid}, at {place}, belongs to the node at {home} port {num}. \
                     It is ignored until that place has been empty for an hour, or ibsm restarts"
                ),
            };
            let place = subnet.left_out_place(at);
            subnet.journal.duplicate(guid, place, text);
        }
    }

    /// Decides which of two ports keeps the GUID and port number that both have: the one at its
    /// home, neither if that is elsewhere and empty, or else the one found first. Returns the port
    /// that leads to the other.
    pub(super) fn settle_rivals(
        &mut self,
        subnet: &mut Subnet,
        entry: Contradiction,
        now: Instant,
    ) -> PortIndex {
        let newer = match entry.newer {
            Newer::Link(newer) => newer,
            Newer::Home(port) => return port,
            Newer::Down(port) => {
                let (from, node) = (entry.older.from, subnet.fabric.port(port).node);
                subnet.contest_switch(port);
                if subnet.is_remembered(from, port)
                    && let Some(way) = self.displaces(subnet, from, node)
                {
                    subnet.exchange.push(Request::new(Kind::Probe, from));
                    return way;
                }
                return from;
            }
        };
        if newer.to != entry.older.to || !subnet.is_adapter_port(newer.to) {
            subnet.contest_switch(newer.to);
            return newer.from;
        }
        let to = newer.to;
        let identity = (subnet.fabric.node_of(to).guid, subnet.fabric.port(to).num);
        let place = subnet.end(newer.from);
        let older = subnet.end(entry.older.from);
        let home = subnet.home_of(identity, now).unwrap_or(older);
        subnet.homes.contested(identity, home);
        if home == place {
            self.replace(subnet, entry.older, newer);
            return entry.older.from;
        }
        let guid = identity.0;
        if home != older && !is_vacated(&subnet.fabric, home, |node, _| node.guid == guid) {
            subnet.fabric.unlink(entry.older.from);
            self.left_out.insert(entry.older.from);
        }
        newer.from
    }

    /// Replaces the link of an adapter that has another one's GUID by that of the latter, whose
    /// attributes are read.
    fn replace(&mut self, subnet: &mut Subnet, older: Claim, newer: Claim) {
        subnet.fabric.unlink(older.from);
        let node = subnet.fabric.port(newer.to).node;
        subnet.fabric.node_seen(node, subnet.state.discovery.wrapping_sub(1));
        self.probe(subnet, newer.from);
    }

    /// Chooses the owner of each port GUID, and reports the others.
    pub(super) fn settle_end_ports(&mut self, subnet: &mut Subnet, now: Instant) {
        subnet.disown_newcomers();
        let homes = &mut subnet.homes;
        let neighbours = &subnet.m_keys.neighbours;
        let settled = subnet.fabric.settle_end_ports(|fabric, port| {
            let Some(place) = place_of(fabric, port) else { return Tenure::Elsewhere };
            if fabric.is_anothers_virtual_port(port) {
                return Tenure::Withheld;
            }
            let identity = (fabric.port(port).guid, PortNum(0));
            let is_owner = |_: &Node, port: &Port| port.guid == identity.0;
            let withheld = homes.withheld(identity, place, now);
            if withheld.is_some_and(|home| !is_vacated(fabric, home, is_owner)) {
                return Tenure::Withheld;
            }
            let remembered = || remembered(fabric, neighbours, port);
            let home = homes.get(identity, now).or_else(remembered);
            if home == Some(place) { Tenure::Home } else { Tenure::Elsewhere }
        });
        for port in settled.owners {
            let identity = (subnet.fabric.port(port).guid, PortNum(0));
            let Subnet { fabric, homes, m_keys, .. } = &mut *subnet;
            if let Some(place) = place_of(fabric, port) {
                let remembered = || remembered(fabric, &m_keys.neighbours, port);
                homes.used(identity, place, remembered, now);
            }
        }
        for (owner, other) in settled.others {
            let guid = subnet.fabric.port(other).guid;
            self.left_out.extend(subnet.fabric.port(other).peer());
            let Some(owner) = owner else {
                if let Some(home) = subnet.homes.get((guid, PortNum(0)), now) {
                    self.report_withheld(subnet, (guid, PortNum(0)), other, home);
                }
                continue;
            };
            // Of two switches the first stays: a fault of one, not an attack, makes them equal, and
            // their places are themselves.
            if (subnet.is_adapter_port(owner) || subnet.is_adapter_port(other))
                && let Some(place) = place_of(&subnet.fabric, owner)
            {
                subnet.homes.contested((guid, PortNum(0)), place);
                self.withhold_from(subnet, owner, place, now);
            }
            if self.first_report(subnet, guid.0) {
                let (first, second) = (subnet.place(owner), subnet.place(other));
                let ignored = match subnet.fabric.is_left_out(owner) {
                    true => "Both are ignored, since it belongs to a third place",
                    false => "The second is ignored",
                };
                let text = format!(
                    "duplicate port GUID: {guid} belongs to {first} and to {second}. {ignored}; \
                     change the GUID of one of the ports"
                );
                let place = subnet.left_out_place(other);
                subnet.journal.duplicate(guid, place, text);
            }
        }
        subnet.settle_newcomers(now);
        if self.full && subnet.homes.is_crowded() {
            let (fabric, lids) = (&subnet.fabric, &subnet.lids);
            subnet.homes.retain(|guid| {
                fabric.find(guid).is_some()
                    || lids.get(guid).is_some()
                    || fabric.virtual_port_by_guid(guid).is_some()
            });
        }
    }

    /// Takes a contested port GUID from an adapter's port at `place`, unless that is its home, or
    /// its home cannot be waited for.
    fn withhold_from(&mut self, subnet: &mut Subnet, owner: PortIndex, place: End, now: Instant) {
        let guid = subnet.fabric.port(owner).guid;
        let Some(home) = subnet.homes.withheld((guid, PortNum(0)), place, now) else { return };
        let is_free = subnet.is_adapter_port(owner) && subnet.fabric.sm_port() != Some(owner);
        if is_free && !is_vacated(&subnet.fabric, home, |_, port| port.guid == guid) {
            subnet.fabric.disown(owner);
            self.left_out.extend(subnet.fabric.port(owner).peer());
        }
    }
}

impl Subnet {
    /// Two nodes were seen with the GUID of the switch of `port`: only the links that it had before
    /// lead to it, for an hour.
    pub(super) fn contest_switch(&mut self, port: PortIndex) {
        let guid = self.fabric.node_of(port).guid;
        let is_switch = |&(far, _): &End| {
            self.fabric.find(far).is_some_and(|node| self.fabric.node(node).switch.is_some())
        };
        let places = || self.m_keys.neighbours.links_of(guid).map(|(_, place)| place);
        let home = places().find(is_switch).or_else(|| places().next());
        if let Some(home) = home.filter(|_| !self.is_adapter_port(port)) {
            self.homes.contested((guid, WHOLE_SWITCH), home);
        }
    }

    /// A port as `neighbors` names it.
    pub(in crate::sweep) fn end(&self, port: PortIndex) -> End {
        end(&self.fabric, port)
    }

    /// Records that the link of `egress` leads to an adapter's port.
    pub(super) fn note_home(&mut self, egress: PortIndex, port: PortIndex, now: Instant) {
        if self.is_adapter_port(port) {
            let identity = (self.fabric.node_of(port).guid, self.fabric.port(port).num);
            let place = self.end(egress);
            let Self { homes, m_keys, .. } = self;
            let remembered = || m_keys.neighbours.place_of_adapter(identity.0, identity.1);
            homes.used(identity, place, remembered, now);
        }
    }
}

/// Whether a home cannot be waited for: its switch is gone, or another node than the owner, of
/// which it is the home, is connected there. An empty place is one that the owner may come back to.
fn is_vacated(fabric: &Fabric, home: End, is_owner: impl Fn(&Node, &Port) -> bool) -> bool {
    port_at(fabric, home).is_none() || is_replaced(fabric, home, is_owner)
}

/// Whether another node than its owner is connected at a home.
pub(super) fn is_replaced(
    fabric: &Fabric,
    home: End,
    is_owner: impl Fn(&Node, &Port) -> bool,
) -> bool {
    let Some(port) = port_at(fabric, home) else { return false };
    let occupant = if home.1.0 == 0 { Some(port) } else { fabric.port(port).peer() };
    occupant.is_some_and(|port| !is_owner(fabric.node_of(port), fabric.port(port)))
}

/// The port that `neighbors` names so, if its node is there.
fn port_at(fabric: &Fabric, (guid, num): End) -> Option<PortIndex> {
    let node = fabric.find(guid).filter(|&node| fabric.node(node).present)?;
    fabric.port_of(node, num)
}

pub(super) fn end(fabric: &Fabric, port: PortIndex) -> End {
    let node = fabric.node_of(port);
    let guid = if node.switch.is_some() { node.guid } else { fabric.port(port).guid };
    (guid, fabric.port(port).num)
}

/// Where an adapter's port was before a restart.
fn remembered(fabric: &Fabric, neighbours: &Neighbours, port: PortIndex) -> Option<End> {
    let is_adapter = fabric.node_of(port).switch.is_none();
    is_adapter.then(|| neighbours.place_of(fabric.port(port).guid)).flatten()
}

/// Where an end port is: the far end of its link, or itself if it is a switch's.
pub(super) fn place_of(fabric: &Fabric, port: PortIndex) -> Option<End> {
    match fabric.node_of(port).switch {
        Some(_) => Some(end(fabric, port)),
        None => fabric.port(port).peer().map(|peer| end(fabric, peer)),
    }
}

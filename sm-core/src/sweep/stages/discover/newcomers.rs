//! Newcomers: ports at other places than their GUIDs belong to, while those are empty.
//!
//! Such a port is a host that was moved, or an impostor of one that is away. It gets a LID and the
//! P_Keys of any port of its kind at once. P_Keys by its GUID, and what is registered for it, it
//! gets after [`PROBATION`](crate::manage::home::PROBATION), or once another node is at its home.
//! The same holds for virtual ports, whose place is the port that has them.

use std::collections::HashMap;
use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use tracing::{info, warn};

use super::homes::{is_replaced, place_of};
use crate::fabric::{Fabric, PortIndex};
use crate::manage::home::{Probation, VIRTUAL};
use crate::manage::mkey::End;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::report::LINES_MAX;

/// Newcomers that are listed.
const LISTED_MAX: usize = 256;

impl Subnet {
    /// Finds the newcomers among all end ports and their virtual ports.
    pub(in crate::sweep) fn settle_newcomers(&mut self, now: Instant) {
        let fabric = &self.fabric;
        let is_gone = |guid| fabric.find(guid).is_none_or(|node| !fabric.node(node).present);
        self.homes.keep_gone(is_gone);
        let (mut count, mut due, mut listed) = (0, None::<Instant>, Vec::new());
        let (mut new, mut settled) = (Vec::new(), Vec::new());
        let mut note = |probation: Option<Probation>, changes: bool, port, guid| {
            if let Some(probation) = probation {
                count += 1;
                if listed.len() < LISTED_MAX {
                    listed.push((port, guid, probation.home));
                }
                due = Some(due.map_or(probation.ends, |due| due.min(probation.ends)));
                new.extend(changes.then_some((port, guid, probation)));
            } else if changes {
                settled.push(port);
            }
        };
        for port in fabric.end_ports().collect::<Vec<_>>() {
            let probation = self.probation_of(port, now);
            let changes = self.fabric.set_newcomer(port, probation.is_some());
            note(probation, changes, port, self.fabric.port(port).guid);
        }
        let virtual_ports = self.fabric.usable_virtual_ports();
        let virtual_ports: Vec<_> =
            virtual_ports.map(|(host, index, port)| (host, index, port.guid())).collect();
        let hosts: HashMap<Guid, PortIndex> = self
            .fabric
            .virtual_hosts()
            .map(|(host, _)| (self.fabric.port(host).guid, host))
            .collect();
        for (host, index, guid) in virtual_ports {
            let probation = self.virtual_probation(&hosts, host, guid, now);
            let changes = self.fabric.set_virtual_newcomer(host, index, probation.is_some());
            note(probation, changes, host, guid);
        }
        let newcomers = &mut self.state.newcomers;
        (newcomers.count, newcomers.listed) = (count, listed);
        newcomers.settled.extend(settled.iter().copied());
        newcomers.due = if newcomers.settled.is_empty() { due } else { Some(now) };
        self.report_newcomers(&new, &settled, now);
    }

    fn report_newcomers(
        &self,
        new: &[(PortIndex, Guid, Probation)],
        settled: &[PortIndex],
        now: Instant,
    ) {
        for &(port, owner, Probation { home: (guid, num), ends }) in new.iter().take(LINES_MAX) {
            let place = self.place(port);
            let home = match num {
                VIRTUAL => format!("to a virtual port of {guid}"),
                _ => format!("to the node at {guid} port {num}"),
            };
            let minutes = ends.saturating_duration_since(now).as_secs().div_ceil(60);
            warn!(
                "{place}: {owner} belongs {home}, which is away. It has a LID and the P_Keys of \
                 any port; those of this GUID, and what is registered for it, follow in {minutes} \
                 min, unless the other returns, or at once with: ibsmctl admit {owner}"
            );
        }
        if new.len() > LINES_MAX {
            warn!("{} more ports have GUIDs of nodes that are away", new.len() - LINES_MAX);
        }
        match settled {
            [] => {}
            [port] => info!("{} has what belongs to its GUID from now on", self.place(*port)),
            ports => info!("{} ports have what belongs to their GUIDs from now on", ports.len()),
        }
    }

    /// Gives ports what belongs to a port GUID, or to the port GUIDs of a node, although these
    /// belong elsewhere, because the operator says so. Returns whether a port was waiting for that.
    pub(in crate::sweep) fn admit(&mut self, guid: Guid) -> bool {
        let Self { fabric, homes, .. } = self;
        let mut identities = Vec::new();
        for port in fabric.end_ports().filter(|&port| fabric.port(port).is_newcomer) {
            let (node, entry) = (fabric.node_of(port), fabric.port(port));
            if entry.guid == guid || node.guid == guid {
                identities.extend([(node.guid, entry.num), (entry.guid, PortNum(0))]);
            }
        }
        let mut virtual_ports = fabric.usable_virtual_ports();
        if virtual_ports.any(|(_, _, port)| port.is_newcomer() && port.guid() == guid) {
            identities.push((guid, PortNum(0)));
        }
        identities.iter().for_each(|&identity| homes.accept(identity));
        !identities.is_empty()
    }

    /// Whether an end port has to do without what belongs to its GUID alone. Switches are at home
    /// where they are, and the SM's own port is not doubted.
    fn probation_of(&mut self, port: PortIndex, now: Instant) -> Option<Probation> {
        let Self { fabric, homes, m_keys, .. } = self;
        if fabric.is_own_port(port) {
            return None;
        }
        let place = place_of(fabric, port)?;
        let (node, entry) = (fabric.node_of(port), fabric.port(port));
        let (node_guid, guid) = (node.guid, entry.guid);
        // For `neighbors`, which takes a link only if both identities are there.
        let is_other_node = |home| is_replaced(fabric, home, |node, _| node.guid == node_guid);
        homes.probation((node_guid, entry.num), place, is_other_node, now);
        let is_other_port = |home: End| match home.1 {
            VIRTUAL => false,
            _ => is_replaced(fabric, home, |_, port| port.guid == guid),
        };
        let probation = homes.probation((guid, PortNum(0)), place, is_other_port, now);
        // A GUID of several planes has its home in one of them.
        let is_plane = || {
            let has_planes = fabric.planes_beside(port).next().is_some();
            has_planes && m_keys.neighbours.get((guid, entry.num)) == Some(place)
        };
        probation.filter(|_| !is_plane())
    }

    /// The same of a virtual port of `host`. A port that is there and has the GUID no more has
    /// given it away, as when a virtual machine moves.
    fn virtual_probation(
        &mut self,
        hosts: &HashMap<Guid, PortIndex>,
        host: PortIndex,
        guid: Guid,
        now: Instant,
    ) -> Option<Probation> {
        let Self { fabric, homes, .. } = self;
        let host_guid = fabric.port(host).guid;
        if guid == host_guid {
            return None;
        }
        let (identity, place) = ((guid, PortNum(0)), (host_guid, VIRTUAL));
        homes.used(identity, place, || None, now);
        let has_given_it = |(owner, num): End| {
            let owner = hosts.get(&owner).filter(|_| num == VIRTUAL);
            owner.is_some_and(|&owner| !has_virtual_port(fabric, owner, guid))
        };
        homes.probation(identity, place, has_given_it, now)
    }

    /// Takes their GUIDs from newcomers among the end ports that have those of virtual ports of
    /// others. Returns whether there are such.
    pub(in crate::sweep) fn disown_newcomers(&mut self) -> bool {
        let fabric = &self.fabric;
        let is_virtual = |port: &PortIndex| {
            let entry = fabric.port(*port);
            entry.is_newcomer && fabric.is_anothers_virtual_port(*port)
        };
        let found: Vec<PortIndex> = fabric.end_ports().filter(is_virtual).collect();
        found.iter().for_each(|&port| self.fabric.disown(port));
        !found.is_empty()
    }
}

fn has_virtual_port(fabric: &Fabric, host: PortIndex, guid: Guid) -> bool {
    let ports = fabric.virtual_ports(host).into_iter().flat_map(|ports| ports.iter());
    ports.into_iter().any(|(_, port)| port.guid() == guid)
}

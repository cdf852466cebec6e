//! Builds the spanning tree on which multicast trees are based.
//!
//! From a root in one group, links between groups lead to the others, and links of each group from
//! there to its switches. Packets then cross at most two links between groups, the second away from
//! the root's group, so they close no cycle with unicast.

use super::groups::Groups;
use super::turns::{Need, Turns};
use crate::lanes::MasterTree;
use crate::{Link, Topology};

/// Builds the tree. It joins all switches of the part of the fabric that its root is in.
pub(super) fn grow(topology: &Topology, groups: &Groups, turns: &mut Turns) -> MasterTree {
    let numbers = 0..groups.members.len();
    // The group that is linked to the most others.
    let first = numbers.max_by_key(|&group| (groups.linked[group].len(), usize::MAX - group));
    let root = first.and_then(|first| centre(topology, groups, first as u16)).unwrap_or(0);
    let mut growth = Growth {
        topology,
        groups,
        hosts: topology.hosts_on(),
        up: vec![None; topology.switch_count()],
        has: vec![false; topology.switch_count()],
        joined: Vec::new(),
    };
    growth.join(root, None);
    let mut has_group = vec![false; groups.members.len()];
    has_group[usize::from(groups.group(root))] = true;
    growth.fill(turns, false);
    let mut next = 0;
    while let Some(&from) = growth.joined.get(next) {
        next += 1;
        for link in topology.links(from) {
            let group = usize::from(groups.group(link.peer));
            if !std::mem::replace(&mut has_group[group], true) {
                let back = Link { peer: from, port: link.peer_port, peer_port: link.port };
                growth.join(link.peer, Some(back));
                growth.fill(turns, true);
            }
        }
    }
    MasterTree::new(root, growth.up)
}

/// The switch of a group with the most neighbours in it that have links to other groups.
fn centre(topology: &Topology, groups: &Groups, group: u16) -> Option<u16> {
    let leads_out =
        |switch: u16| topology.links(switch).iter().any(|link| !groups.are_one(switch, link.peer));
    let count = |switch: u16| {
        let peers = topology.links(switch).iter().map(|link| link.peer);
        let own = peers.filter(|&peer| groups.are_one(switch, peer) && leads_out(peer));
        let mut own: Vec<u16> = own.collect();
        own.sort_unstable();
        own.dedup();
        own.len()
    };
    let members = groups.members[usize::from(group)].iter().copied();
    members.max_by_key(|&switch| (count(switch), u16::MAX - switch))
}

struct Growth<'a> {
    topology: &'a Topology,
    groups: &'a Groups,
    /// Number of hosts per switch.
    hosts: Vec<u32>,
    /// By switch: the link towards the root.
    up: Vec<Option<Link>>,
    has: Vec<bool>,
    /// Switches of the tree, in the order in which they joined.
    joined: Vec<u16>,
}

impl Growth<'_> {
    fn join(&mut self, switch: u16, up: Option<Link>) {
        self.up[usize::from(switch)] = up;
        self.has[usize::from(switch)] = true;
        self.joined.push(switch);
    }

    /// Joins the other switches of the group of the last one, breadth first. If `is_below`, packets
    /// come to the group over a link between groups.
    fn fill(&mut self, turns: &mut Turns, is_below: bool) {
        let mut next = self.joined.len() - 1;
        while let Some(&from) = self.joined.get(next) {
            next += 1;
            for link in self.topology.links(from) {
                if self.has[usize::from(link.peer)] || !self.groups.are_one(from, link.peer) {
                    continue;
                }
                let back = Link { peer: from, port: link.peer_port, peer_port: link.port };
                self.join(link.peer, Some(back));
                let up = self.up[usize::from(from)].filter(|up| self.groups.are_one(from, up.peer));
                let has_hosts = self.hosts[usize::from(link.peer)] > 0;
                if let Some(up) = up.filter(|_| is_below && has_hosts) {
                    self.choose_lanes(turns, up, *link);
                }
            }
        }
    }

    /// Packets that come down from `up` to `down` stay on lane 1, and those that go up on lane 0,
    /// where routes do not need other lanes.
    fn choose_lanes(&self, turns: &mut Turns, up: Link, down: Link) {
        let number = |switch, port| self.topology.link_at(switch, port);
        let links = (number(up.peer, up.peer_port), number(down.peer, down.peer_port));
        let at = |link: Option<usize>| link.map(|link| self.topology.link(link));
        let (Some(into), Some(back)) = (at(links.0), at(links.1)) else { return };
        let out = number(into.peer, down.port);
        let above = number(back.peer, up.port);
        if let (Some(into), Some(out)) = (links.0, out) {
            turns.admit(into, out, Need::Second);
        }
        if let (Some(back), Some(above)) = (links.1, above) {
            turns.admit(back, above, Need::First);
        }
    }
}

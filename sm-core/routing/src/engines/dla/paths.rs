//! Finds the routes from all switches to one: the links by which each may forward.
//!
//! Within the group of the egress switch routes take links of the group. From another group they
//! take at most one of its links where none are missing, then a link to the group of the egress
//! switch. From a group without such a link, they pass a third group. Of the routes that end so,
//! the shortest are taken.

use super::groups::Groups;
use super::turns::{Need, Turns};
use crate::error::DragonflyRefusal;
use crate::{HopMatrix, Topology};

const UNREACHABLE: u8 = HopMatrix::UNREACHABLE;

/// Routes to one egress switch after the other.
pub(super) struct Paths<'a> {
    topology: &'a Topology,
    groups: &'a Groups,
    /// Number of hosts per switch.
    hosts: Vec<u32>,
    /// By switch: whether it has links to other groups.
    is_gateway: Vec<bool>,
    turns: Turns,
    /// Whether hosts send to the egress switch. Only then do turns need lanes.
    has_hosts: bool,
    /// By switch: hops to the egress switch, which fall along each route.
    hops: Vec<u8>,
    /// By switch: the links by which it may forward, ascending.
    links: Vec<Vec<u32>>,
    /// By switch: hops if it forwards to another group.
    outward: Vec<u8>,
    /// By switch: whether it forwards to another group, or is the egress switch.
    leaves: Vec<bool>,
}

/// The part of a route that a search extends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// To a link that leads out of the group.
    Departure,
    /// Within the group of the egress switch.
    Arrival,
}

impl<'a> Paths<'a> {
    /// Starts with the turns that packets need in the groups of their destinations: on the way to
    /// other groups there are more to choose from.
    pub(super) fn new(topology: &'a Topology, groups: &'a Groups) -> Self {
        let switches = topology.switch_count();
        let leads_out =
            |switch| topology.links(switch).iter().any(|link| !groups.are_one(switch, link.peer));
        let mut paths = Self {
            topology,
            groups,
            hosts: topology.hosts_on(),
            is_gateway: topology.switches().map(leads_out).collect(),
            turns: Turns::new(topology),
            has_hosts: false,
            hops: vec![UNREACHABLE; switches],
            links: vec![Vec::new(); switches],
            outward: vec![UNREACHABLE; switches],
            leaves: vec![false; switches],
        };
        for switch in topology.switches() {
            if paths.hosts[usize::from(switch)] > 0 {
                paths.arrive(switch);
            }
        }
        paths
    }

    /// Finds the routes within the group of the egress switch; forgets those to other switches.
    fn arrive(&mut self, egress_switch: u16) {
        self.has_hosts = self.hosts[usize::from(egress_switch)] > 0;
        self.hops.fill(UNREACHABLE);
        self.outward.fill(UNREACHABLE);
        self.leaves.fill(false);
        self.links.iter_mut().for_each(Vec::clear);
        self.outward[usize::from(egress_switch)] = 0;
        self.spread(self.groups.group(egress_switch), Phase::Arrival);
    }

    /// Finds the routes to a switch. Hosts must reach its hosts.
    pub(super) fn turn_to(&mut self, egress_switch: u16) -> Result<(), DragonflyRefusal> {
        let groups = self.groups;
        self.arrive(egress_switch);
        let group = groups.group(egress_switch);
        for &from in &groups.linked[usize::from(group)] {
            self.lead_out(from, group);
            self.spread(from, Phase::Departure);
        }
        for &from in &groups.unlinked[usize::from(group)] {
            self.lead_over(from, group);
            self.spread(from, Phase::Departure);
        }
        if !self.has_hosts {
            return Ok(());
        }
        let others = [&groups.linked, &groups.unlinked].map(|of| &of[usize::from(group)]);
        let near = others.into_iter().flatten().copied().chain([group]);
        let members = near.flat_map(|group| &groups.members[usize::from(group)]);
        let is_lost = |switch: usize| self.hosts[switch] > 0 && self.hops[switch] == UNREACHABLE;
        match members.copied().filter(|&switch| is_lost(switch.into())).min() {
            None => Ok(()),
            Some(from) => {
                let is_linked = groups.group(from) == group
                    || groups.linked[usize::from(group)].contains(&groups.group(from));
                let to = egress_switch;
                Err(if is_linked {
                    DragonflyRefusal::NoRoute { from, to }
                } else {
                    DragonflyRefusal::NoTransit { from, to }
                })
            }
        }
    }

    /// By switch: hops to the egress switch.
    pub(super) fn hops(&self) -> &[u8] {
        &self.hops
    }

    /// The links by which a switch may forward, ascending.
    pub(super) fn links(&self, switch: u16) -> &[u32] {
        &self.links[usize::from(switch)]
    }

    /// The turns of all routes found.
    pub(super) fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Lets the switches of a group forward to another one.
    fn lead_out(&mut self, from: u16, to: u16) {
        for &switch in &self.groups.members[usize::from(from)] {
            let at = usize::from(switch);
            let links = self.topology.links(switch).iter().zip(self.topology.link_range(switch));
            for (link, number) in links.filter(|(link, _)| self.groups.group(link.peer) == to) {
                let there = self.hops[usize::from(link.peer)];
                if there >= HopMatrix::HOPS_MAX || there >= self.outward[at] {
                    continue;
                }
                if there + 1 < self.outward[at] {
                    self.outward[at] = there + 1;
                    self.links[at].clear();
                }
                self.links[at].push(number as u32);
            }
        }
    }

    /// Lets the switches of a group forward by way of third groups, of those that lack no link
    /// themselves if there are any: these are passed on the way to others only. Routes may be a hop
    /// longer than the shortest, as few third groups are passed by the shortest.
    fn lead_over(&mut self, from: u16, to: u16) {
        let groups = self.groups;
        let of_both = groups.linked[usize::from(from)].iter().copied();
        let mut of_both: Vec<u16> =
            of_both.filter(|third| groups.linked[usize::from(to)].contains(third)).collect();
        of_both.sort_by_key(|&third| !groups.unlinked[usize::from(third)].is_empty());
        let mut landings = Vec::new();
        for third in of_both {
            let is_whole = groups.unlinked[usize::from(third)].is_empty();
            if !is_whole && !landings.is_empty() {
                break;
            }
            let mut open = self.landings(from, third);
            open.retain(|&switch| self.admit_landing(switch));
            if !open.is_empty() && (!self.has_hosts || self.turns.admit_transit(third, to)) {
                landings.extend(open);
            }
        }
        let hops = |switch: &u16| self.hops[usize::from(*switch)];
        let Some(least) = landings.iter().map(hops).min() else { return };
        let most = least.saturating_add(1);
        landings.retain(|switch| hops(switch) <= most);
        landings.sort_unstable();
        for &switch in &groups.members[usize::from(from)] {
            let at = usize::from(switch);
            let links = self.topology.links(switch).iter();
            let links = links.zip(self.topology.link_range(switch));
            let open = links.filter(|(link, _)| landings.binary_search(&link.peer).is_ok());
            self.links[at].extend(open.map(|(_, number)| number as u32));
            if !self.links[at].is_empty() {
                self.outward[at] = most.saturating_add(1);
            }
        }
    }

    /// The switches of a group to which another group has links, ascending.
    fn landings(&self, from: u16, to: u16) -> Vec<u16> {
        let members = self.groups.members[usize::from(from)].iter();
        let links = members.flat_map(|&switch| self.topology.links(switch));
        let peers = links.map(|link| link.peer).filter(|&peer| self.groups.group(peer) == to);
        let mut peers: Vec<u16> = peers.collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    /// Uses the turns by which packets from another group go on from a switch to a third one.
    /// `false` if there are none.
    fn admit_landing(&mut self, switch: u16) -> bool {
        let at = usize::from(switch);
        if self.hops[at] == UNREACHABLE {
            return false;
        }
        if self.leaves[at] || !self.has_hosts {
            return true;
        }
        let onward = std::mem::take(&mut self.links[at]);
        let admitted = onward.iter().copied();
        let admitted = admitted.filter(|&link| self.admit_onward(link, Need::Second, false));
        let admitted: Vec<u32> = admitted.collect();
        let is_admitted = !admitted.is_empty();
        self.links[at] = if is_admitted { admitted } else { onward };
        is_admitted
    }

    fn peer(&self, link: u32) -> u16 {
        self.topology.link(link as usize).peer
    }

    /// Finds the routes from the switches of a group, nearest first.
    fn spread(&mut self, group: u16, phase: Phase) {
        let mut left = self.groups.members[usize::from(group)].clone();
        let outward = |switch: &u16| self.outward[usize::from(*switch)];
        let known = left.iter().map(outward).filter(|&hops| hops != UNREACHABLE);
        let (Some(first), Some(last)) = (known.clone().min(), known.max()) else { return };
        for level in first..=HopMatrix::HOPS_MAX {
            let before = left.len();
            left.retain(|&switch| {
                let at = usize::from(switch);
                let leaves = self.outward[at] == level;
                if leaves {
                    (self.hops[at], self.leaves[at]) = (level, true);
                }
                !leaves
            });
            left.retain(|&switch| {
                let links = self.within(switch, level, phase);
                let is_found = !links.is_empty();
                if is_found {
                    self.hops[usize::from(switch)] = level;
                    self.links[usize::from(switch)] = links;
                }
                !is_found
            });
            if left.is_empty() || level >= last && left.len() == before {
                break;
            }
        }
        left.iter().for_each(|&switch| self.links[usize::from(switch)].clear());
        if phase == Phase::Departure {
            self.widen(group);
        }
    }

    /// Adds equally short routes over a link of the group to the farthest switches that forward to
    /// another group: no other switch forwards to these.
    fn widen(&mut self, group: u16) {
        let members = &self.groups.members[usize::from(group)];
        let hops = |switch: u16| self.hops[usize::from(switch)];
        let known = members.iter().map(|&switch| hops(switch)).filter(|&hops| hops != UNREACHABLE);
        let Some(last) = known.max() else { return };
        let leaves = |switch: u16| self.leaves[usize::from(switch)];
        for &switch in members.iter().filter(|&&switch| hops(switch) == last && leaves(switch)) {
            let links = self.topology.links(switch).iter().zip(self.topology.link_range(switch));
            let closer = links.filter(|(link, _)| {
                let is_own = self.groups.are_one(switch, link.peer);
                is_own && leaves(link.peer) && hops(link.peer).checked_add(1) == Some(last)
            });
            let all = &mut self.links[usize::from(switch)];
            all.extend(closer.map(|(_, number)| number as u32));
            all.sort_unstable();
        }
    }

    /// The links of its group by which a switch may forward, with this many hops left.
    fn within(&mut self, switch: u16, level: u8, phase: Phase) -> Vec<u32> {
        let at = usize::from(switch);
        let links = self.topology.links(switch).iter().zip(self.topology.link_range(switch));
        let is_closer = |peer: u16| {
            self.hops[usize::from(peer)].checked_add(1) == Some(level)
                && self.groups.are_one(switch, peer)
        };
        let closer = links.filter(|(link, _)| is_closer(link.peer));
        let closer: Vec<u32> = closer.map(|(_, number)| number as u32).collect();
        let need = match phase {
            _ if !self.has_hosts => None,
            Phase::Arrival if self.is_gateway[at] => Some(Need::Second),
            Phase::Arrival => (self.hosts[at] > 0).then_some(Need::Either),
            Phase::Departure => (self.hosts[at] > 0).then_some(Need::First),
        };
        let Some(need) = need else { return closer };
        let leaves = |link: &u32| self.leaves[usize::from(self.peer(*link))];
        let free: Vec<u32> = closer.iter().copied().filter(leaves).collect();
        if free.is_empty() { self.admitted(closer, need) } else { free }
    }

    /// The links of `closer` from which packets may go on. Where lanes differ by phase, half of the
    /// links are left to the other phase.
    fn admitted(&mut self, mut closer: Vec<u32>, need: Need) -> Vec<u32> {
        let share = match need {
            Need::Either => closer.len(),
            Need::First => {
                closer.reverse();
                closer.len().div_ceil(2)
            }
            Need::Second => closer.len().div_ceil(2),
        };
        let (first, others) = closer.split_at(share);
        let mut links: Vec<u32> =
            first.iter().copied().filter(|&link| self.admit_onward(link, need, false)).collect();
        let mut tries = others.iter().map(|&link| (link, false));
        let mut shared = closer.iter().map(|&link| (link, true));
        while links.is_empty() {
            let Some((link, shares)) = tries.next().or_else(|| shared.next()) else { break };
            if self.admit_onward(link, need, shares) {
                links.push(link);
            }
        }
        links.sort_unstable();
        links
    }

    /// Uses the turns by which packets of a link go on within the group; the switch at its far end
    /// forwards by no others then. `false` if there are none. If it `shares`, packets that leave
    /// the group may use turns of others on lane 1.
    fn admit_onward(&mut self, link: u32, need: Need, shares: bool) -> bool {
        let peer = usize::from(self.peer(link));
        if self.leaves[peer] {
            return true;
        }
        let onward = std::mem::take(&mut self.links[peer]);
        let admits = |paths: &mut Self, next: u32| {
            let (from, to) = (link as usize, next as usize);
            (paths.turns.admit(from, to, need) || shares && paths.share(from, to, need))
                && paths.admit_onward(next, need, shares)
        };
        let admitted: Vec<u32> =
            onward.iter().copied().filter(|&next| admits(self, next)).collect();
        let is_admitted = !admitted.is_empty();
        self.links[peer] = if is_admitted { admitted } else { onward };
        is_admitted
    }

    /// Lets packets that leave the group use a turn on lane 1, as if they had passed the group on
    /// the way to another one.
    fn share(&mut self, from: usize, to: usize, need: Need) -> bool {
        let gateway = self.topology.link(to).peer;
        if need != Need::First || !self.leaves[usize::from(gateway)] {
            return false;
        }
        let group = self.groups.group(gateway);
        let links = self.links[usize::from(gateway)].iter();
        let next: Vec<u16> = links.map(|&link| self.groups.group(self.peer(link))).collect();
        next.into_iter().all(|next| self.turns.admit_transit(group, next))
            && self.turns.admit(from, to, Need::Either)
    }
}

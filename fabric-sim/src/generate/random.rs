//! Random connected graphs.

use std::collections::HashSet;

use super::GenerateError;
use super::plan::{Plan, names, radix_for, within};
use super::rng::Rng;

/// Parameters of a random graph. The first ports of a switch are for links, the next for hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomGraph {
    /// Number of switches.
    pub switches: usize,
    /// Maximum links per switch; most switches have exactly this many.
    pub degree: u8,
    /// Number of hosts, spread evenly.
    pub hosts: usize,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

impl RandomGraph {
    pub(super) fn plan(&self, rng: &mut Rng) -> Result<Plan, GenerateError> {
        let (switches, degree) = (self.switches, usize::from(self.degree));
        within("--switches", switches, 1, 0xBFFF)?;
        within("--hosts", self.hosts, 0, 0xBFFF)?;
        let min = switches.saturating_sub(1).min(2);
        if degree < min {
            return Err(GenerateError::Degree { switches, degree, min });
        }
        let radix = radix_for(degree + self.hosts.div_ceil(switches), self.radix)?;
        let mut plan = Plan::new(names("sw", switches).collect(), radix);
        let mut used = vec![0u8; switches];
        for (a, b) in edges(switches, degree, rng) {
            let [port_a, port_b] = [a, b].map(|switch| {
                used[switch] += 1;
                (switch, used[switch])
            });
            plan.links.push((port_a, port_b));
        }
        for host in 0..self.hosts {
            let port = degree + 1 + host / switches;
            plan.add_host((host % switches, port as u8));
        }
        Ok(plan)
    }
}

/// A spanning tree, then random further pairs until no unconnected pair of switches has free ports,
/// or the attempts are used up.
fn edges(switches: usize, degree: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut left = vec![degree; switches];
    let mut edges = Vec::with_capacity(switches * degree / 2);
    let mut joined = HashSet::new();
    let mut order: Vec<usize> = (0..switches).collect();
    rng.shuffle(&mut order);
    // Switches of the tree with free links. A spanning tree needs on average less than two link
    // ends per switch, so one is always free.
    let mut open = Vec::from_iter(order.first().copied());
    for &switch in order.iter().skip(1) {
        let place = rng.below(open.len());
        let peer = open[place];
        edges.push((peer, switch));
        joined.insert((peer.min(switch), peer.max(switch)));
        left[peer] -= 1;
        left[switch] -= 1;
        if left[peer] == 0 {
            open.swap_remove(place);
        }
        if left[switch] > 0 {
            open.push(switch);
        }
    }
    let mut misses = 0;
    while open.len() > 1 && misses < 100 {
        let (i, j) = (rng.below(open.len()), rng.below(open.len()));
        let (a, b) = (open[i], open[j]);
        if a == b || !joined.insert((a.min(b), a.max(b))) {
            misses += 1;
            continue;
        }
        misses = 0;
        edges.push((a, b));
        left[a] -= 1;
        left[b] -= 1;
        // Remove the higher index first, so that the lower stays valid.
        for place in [i.max(j), i.min(j)] {
            if left[open[place]] == 0 {
                open.swap_remove(place);
            }
        }
    }
    edges
}

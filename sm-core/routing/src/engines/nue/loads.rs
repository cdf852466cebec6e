//! Counts routes per link, and derives the cost of links.

use super::fabric::Fabric;

/// Cost of one hop: more than any load, so that shortest paths are preferred.
const HOP: u64 = 1 << 56;
/// Loads above this cost no more, so that the loads of any path cost less than a hop.
const LOAD_MAX: u64 = 1 << 24;

/// Loads of all links.
#[derive(Debug)]
pub(super) struct Loads {
    /// By link: number of routes.
    loads: Vec<u32>,
    /// By link: its cost, which is a hop plus the load squared, as in `sssp`.
    costs: Vec<u64>,
    /// By switch: number of hosts on it.
    hosts: Vec<u32>,
    /// By switch: number of hosts that send through it.
    flows: Vec<u32>,
}

impl Loads {
    /// Starts without load on any link.
    pub(super) fn new(fabric: &Fabric<'_>) -> Self {
        let hosts = fabric.topology.hosts_on();
        let links = fabric.topology.link_count();
        Self { loads: vec![0; links], costs: vec![HOP; links], flows: hosts.clone(), hosts }
    }

    /// The cost of a link.
    #[inline]
    pub(super) fn cost(&self, link: u32) -> u64 {
        self.costs[link as usize]
    }

    /// The load of the most loaded link.
    pub(super) fn most(&self) -> u32 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// Adds the routes of all hosts to a LID. `choices` has the link of each switch; `order` lists
    /// each switch before those that send through it.
    pub(super) fn add(&mut self, fabric: &Fabric<'_>, order: &[u16], choices: &[u32]) {
        self.change(fabric, order, choices, u32::saturating_add);
    }

    /// Removes routes that were added.
    pub(super) fn remove(&mut self, fabric: &Fabric<'_>, order: &[u16], choices: &[u32]) {
        self.change(fabric, order, choices, u32::saturating_sub);
    }

    fn change(
        &mut self,
        fabric: &Fabric<'_>,
        order: &[u16],
        choices: &[u32],
        changed: impl Fn(u32, u32) -> u32,
    ) {
        self.flows.copy_from_slice(&self.hosts);
        for &switch in order.iter().rev() {
            let flow = self.flows[usize::from(switch)];
            if flow == 0 {
                continue;
            }
            let link = choices[usize::from(switch)];
            let load = changed(self.loads[link as usize], flow);
            self.loads[link as usize] = load;
            self.costs[link as usize] = HOP + u64::from(load).min(LOAD_MAX).pow(2);
            self.flows[usize::from(fabric.receiver(link))] += flow;
        }
    }
}

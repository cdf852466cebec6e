//! Routes that pass links, and what links cost by that.

use super::fabric::Fabric;

/// What one hop costs: more than any load, so that the shortest ways come first.
const HOP: u64 = 1 << 56;
/// Loads above cost no more, so that as many as there can be on a way cost less than a hop.
const LOAD_MAX: u64 = 1 << 24;

/// Loads of all links.
#[derive(Debug)]
pub(super) struct Loads {
    /// By link: routes that pass.
    loads: Vec<u32>,
    /// By link: what it costs. A hop, and the load squared, as in `sssp`.
    costs: Vec<u64>,
    /// By switch: hosts on it.
    hosts: Vec<u32>,
    /// By switch: hosts that send through it.
    flows: Vec<u32>,
}

impl Loads {
    /// No link has any load.
    pub(super) fn new(fabric: &Fabric<'_>) -> Self {
        let hosts = fabric.topology.hosts_on();
        let links = fabric.topology.link_count();
        Self { loads: vec![0; links], costs: vec![HOP; links], flows: hosts.clone(), hosts }
    }

    /// What a link costs.
    #[inline]
    pub(super) fn cost(&self, link: u32) -> u64 {
        self.costs[link as usize]
    }

    /// The load of the link that has the most.
    pub(super) fn most(&self) -> u32 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// Adds the routes of all hosts to a LID: by `choices` of switches, given in an order in which
    /// each comes before those that send through it.
    pub(super) fn add(&mut self, fabric: &Fabric<'_>, order: &[u16], choices: &[u32]) {
        self.change(fabric, order, choices, u32::saturating_add);
    }

    /// Takes off what was added.
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

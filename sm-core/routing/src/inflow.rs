//! The routes of all switches to one LID as a graph, followed in the direction of traffic.

use super::Topology;

/// By switch the link that it forwards by; and buffers for the walk, which allocates nothing.
pub(crate) struct Inflow {
    /// By switch: the link that it forwards by and the next switch.
    next: Vec<Option<(usize, u16)>>,
    /// By switch: the number of upstream neighbours that have not been visited yet.
    waiting: Vec<u32>,
    ready: Vec<u16>,
}

impl Inflow {
    pub(crate) fn new(switches: usize) -> Self {
        Self {
            next: vec![None; switches],
            waiting: vec![0; switches],
            ready: Vec::with_capacity(switches),
        }
    }

    /// Visits the links of the graph that `port` gives by switch, each as the switch before it, the
    /// link and the switch behind it, after all links that lead to it. Links of loops are left out.
    #[inline]
    pub(crate) fn walk(
        &mut self,
        topology: &Topology,
        port: impl Fn(u16) -> u8,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        self.waiting.fill(0);
        for switch in topology.switches() {
            let link = topology.link_at(switch, port(switch));
            let next = link.map(|link| (link, topology.link(link).peer));
            self.next[usize::from(switch)] = next;
            if let Some((_, peer)) = next {
                self.waiting[usize::from(peer)] += 1;
            }
        }
        let waiting = &self.waiting;
        self.ready.extend(topology.switches().filter(|&s| waiting[usize::from(s)] == 0));
        while let Some(switch) = self.ready.pop() {
            let Some((link, peer)) = self.next[usize::from(switch)] else { continue };
            let next = usize::from(peer);
            visit(usize::from(switch), link, next);
            self.waiting[next] -= 1;
            if self.waiting[next] == 0 {
                self.ready.push(peer);
            }
        }
    }
}

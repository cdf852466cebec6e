//! The step from the fabric to its forwarding tables.

use std::collections::VecDeque;

use sa_proto::snapshot::Lft;

use super::Sweeper;
use crate::fabric::SwitchIndex;

impl Sweeper {
    /// Computes all forwarding tables and makes them the desired ones.
    pub(super) fn route(&mut self) -> Result<(), String> {
        self.top = ib_mad::types::Lid(self.sweep.report.last_lid);
        let blocks = usize::from(self.top.0) / Lft::BLOCK_LEN + 1;
        let switches: Vec<SwitchIndex> = self.fabric.switches().map(|(i, _)| i).collect();
        let count = switches.iter().map(|i| i.get() + 1).max().unwrap_or(0);
        let mut tables = vec![vec![Lft::NO_ROUTE; blocks * Lft::BLOCK_LEN]; count];
        let ports: Vec<_> = self.fabric.end_ports().collect();
        for port in ports {
            let Some(range) = self.lids.get(self.fabric.port(port).guid) else { continue };
            // Breadth first from the destination.
            let (root, first) = match self.fabric.node_of(port).switch {
                Some(switch) => (switch, 0),
                None => {
                    let Some(peer) = self.fabric.port(port).peer() else { continue };
                    let Some(switch) = self.fabric.node_of(peer).switch else { continue };
                    (switch, self.fabric.port(peer).num.0)
                }
            };
            let mut seen = vec![false; count];
            seen[root.get()] = true;
            let mut queue = VecDeque::from([(root, first)]);
            while let Some((switch, egress)) = queue.pop_front() {
                for lid in range.first.0..=range.last.0 {
                    tables[switch.get()][usize::from(lid)] = egress;
                }
                for near in self.fabric.ports_of(self.fabric.switch(switch).node) {
                    let Some(far) = self.fabric.port(near).peer() else { continue };
                    let Some(next) = self.fabric.node_of(far).switch else { continue };
                    if !seen[next.get()] {
                        seen[next.get()] = true;
                        queue.push_back((next, self.fabric.port(far).num.0));
                    }
                }
            }
        }
        for index in switches {
            let table = std::mem::take(&mut tables[index.get()]);
            self.fabric.switch_mut(index).lft.set_desired(table);
        }
        self.routing_engine = "minhop".to_owned();
        Ok(())
    }
}

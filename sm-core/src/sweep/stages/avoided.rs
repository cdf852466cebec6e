//! Switches that do not accept their forwarding tables.
//!
//! Such a switch still forwards by its old table, so packets sent through it may be lost or loop.
//! Routes avoid a switch that accepted no block in [`REFUSALS_MAX`] consecutive sweeps, unless it
//! has hosts or the fabric would be partitioned without it. Each later sweep sends it one block;
//! when it accepts that block, routes use it again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

use ib_mad::types::Guid;
use tracing::{info, warn};

use super::configure::program::{Programmed, Steps};
use crate::fabric::{Fabric, NodeIndex, PortIndex};
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::schedule::Cause;

/// Sweeps in a row in which a switch refused a write, or left it without answer, before it is
/// avoided.
const REFUSALS_MAX: u8 = 3;

/// Switches that accept no forwarding table, by node GUID.
#[derive(Debug, Default)]
pub(in crate::sweep) struct AvoidedSwitches {
    /// Number of consecutive sweeps in which it accepted no block.
    refusals: BTreeMap<Guid, u8>,
    /// Switches that routes avoid.
    pub(in crate::sweep) switches: BTreeSet<Guid>,
}

impl AvoidedSwitches {
    /// Whether routes avoid a switch.
    pub(in crate::sweep) fn contains(&self, switch: Guid) -> bool {
        self.switches.contains(&switch)
    }

    /// Reduces the writes to avoided switches to one block each.
    pub(in crate::sweep) fn limit_writes(&self, subnet: &Subnet, steps: &mut Steps) {
        if self.switches.is_empty() {
            return;
        }
        let fabric = &subnet.fabric;
        let avoided: HashSet<NodeIndex> = fabric
            .switches()
            .map(|(_, switch)| switch.node)
            .filter(|&node| self.contains(fabric.node(node).guid))
            .collect();
        for step in &mut *steps {
            step.retain(|request| !avoided.contains(&fabric.port(request.port()).node));
        }
        let block = |node: &NodeIndex| {
            let port = fabric.ports_of(*node).next()?;
            let switch = fabric.switch(fabric.node(*node).switch?);
            let block = switch.lft.stale_blocks().next().unwrap_or(0);
            Some(Request::block(Kind::SetForwarding, port, block))
        };
        steps.push_back(avoided.iter().filter_map(block).collect());
    }

    /// Decides at the end of a sweep which switches are avoided from now on.
    pub(in crate::sweep) fn update(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        programmed: &Programmed,
    ) {
        let mut changed = false;
        let mut present = BTreeSet::new();
        for (_, switch) in subnet.fabric.switches() {
            let node = switch.node;
            let guid = subnet.fabric.node(node).guid;
            present.insert(guid);
            if programmed.failed.contains(&node) {
                let refusals = self.refusals.entry(guid).or_default();
                *refusals = refusals.saturating_add(1);
                if *refusals < REFUSALS_MAX || self.contains(guid) {
                    continue;
                }
                if can_be_avoided(&subnet.fabric, node, &self.switches) {
                    self.switches.insert(guid);
                    changed = true;
                    let name = subnet.fabric.node(node).name();
                    warn!(
                        "switch '{name}' {guid} accepted no forwarding table in {REFUSALS_MAX} \
                         sweeps; routes avoid it until it does"
                    );
                }
            } else if programmed.done.contains(&node) {
                self.refusals.remove(&guid);
                if self.switches.remove(&guid) {
                    changed = true;
                    let name = subnet.fabric.node(node).name();
                    info!(
                        "switch '{name}' {guid} accepts forwarding tables again; routes use it \
                         again"
                    );
                }
            }
        }
        self.refusals.retain(|guid, _| present.contains(guid));
        self.switches.retain(|guid| present.contains(guid));
        if changed {
            subnet.schedule.request(now, Cause::Asked);
        }
    }
}

/// Whether a switch has no hosts, and the others stay connected without it and those in `avoided`.
fn can_be_avoided(fabric: &Fabric, node: NodeIndex, avoided: &BTreeSet<Guid>) -> bool {
    let peers = |node: NodeIndex| {
        let known = |port: &PortIndex| fabric.port(*port).known;
        fabric.ports_of(node).filter(known).filter_map(|port| fabric.port(port).peer())
    };
    if peers(node).any(|peer| fabric.node_of(peer).switch.is_none()) {
        return false;
    }
    let is_left = |other: NodeIndex| other != node && !avoided.contains(&fabric.node(other).guid);
    let others = || fabric.switches().map(|(_, switch)| switch.node).filter(|&node| is_left(node));
    let Some(first) = others().next() else { return false };
    let mut reached = HashSet::from([first]);
    let mut ahead = vec![first];
    while let Some(at) = ahead.pop() {
        for peer in peers(at) {
            let next = fabric.port(peer).node;
            if fabric.node(next).switch.is_some() && is_left(next) && reached.insert(next) {
                ahead.push(next);
            }
        }
    }
    others().all(|switch| reached.contains(&switch))
}

//! The fabric as routing engines see it.

use std::collections::BTreeSet;

use ib_mad::types::Guid;

use crate::fabric::{Fabric, SwitchIndex};
use crate::manage::lid::LidTable;
use crate::manage::throttled::ThrottledLinks;
use sm_routing::{Destination, Topology, TopologyBuilder, TopologyError};

/// Input of the routing.
#[derive(Clone, Copy)]
pub(in crate::sweep) struct Routed<'a> {
    pub(in crate::sweep) fabric: &'a Fabric,
    pub(in crate::sweep) lids: &'a LidTable,
    /// Omitted switches.
    pub(in crate::sweep) avoided: &'a BTreeSet<Guid>,
    /// Omitted links.
    pub(in crate::sweep) throttled: &'a ThrottledLinks,
}

/// The fabric as engines see it, without switches and links that are avoided, and which switch has
/// which number: that of its place in the order of node GUIDs, so that tables depend neither on
/// where the manager is nor on the order in which it found the switches.
pub(super) fn topology(routed: Routed<'_>) -> Result<(Topology, Vec<SwitchIndex>), TopologyError> {
    let Routed { fabric, lids, avoided, throttled } = routed;
    let mut builder = TopologyBuilder::new();
    let guid = |index: SwitchIndex| fabric.node(fabric.switch(index).node).guid;
    let mut switches: Vec<SwitchIndex> = fabric.switches().map(|(index, _)| index).collect();
    switches.retain(|&index| !avoided.contains(&guid(index)));
    switches.sort_by_key(|&index| guid(index));
    let last = switches.iter().map(|index| index.get()).max();
    let mut numbers = vec![None; last.map_or(0, |last| last + 1)];
    for &index in &switches {
        let node = fabric.node(fabric.switch(index).node);
        numbers[index.get()] = Some(builder.add_switch(node.port_count)?);
    }
    let number = |switch: SwitchIndex| numbers.get(switch.get()).copied().flatten();
    for &index in &switches {
        for port in fabric.ports_of(fabric.switch(index).node) {
            let Some(peer) = fabric.port(port).peer() else { continue };
            let is_known = fabric.port(port).known && fabric.port(peer).known;
            if !is_known || throttled.contains(fabric, port) {
                continue;
            }
            let Some(far) = fabric.node_of(peer).switch else { continue };
            if let (Some(near), Some(far)) = (number(index), number(far)) {
                let num = |port| fabric.port(port).num.0;
                builder.add_link((near, num(port)), (far, num(peer)))?;
            }
        }
    }
    for port in fabric.end_ports() {
        let Some(range) = lids.get(fabric.port(port).guid) else { continue };
        let place = match fabric.node_of(port).switch {
            Some(switch) => Some((switch, 0)),
            None => fabric
                .port(port)
                .peer()
                .filter(|&peer| fabric.port(peer).known)
                .and_then(|peer| Some((fabric.node_of(peer).switch?, fabric.port(peer).num.0))),
        };
        // Without a switch there is nothing to route: two adapters back to back.
        let Some((switch, exit)) = place else { continue };
        let Some(egress_switch) = number(switch) else { continue };
        builder.add_destination(Destination {
            base_lid: range.first,
            lid_count: range.last.0 - range.first.0 + 1,
            egress_switch,
            exit,
        })?;
    }
    Ok((builder.build()?, switches))
}

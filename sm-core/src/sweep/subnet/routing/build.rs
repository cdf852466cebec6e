//! The fabric as routing engines see it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ib_mad::types::{Guid, Lid};

use crate::fabric::{Fabric, PortIndex, SwitchIndex};
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

/// A plane of the fabric as engines see it, without switches and links that are avoided, and which
/// switch has which number.
pub(super) struct Plane {
    pub(super) topology: Topology,
    pub(super) switches: Vec<SwitchIndex>,
    /// End ports that are in it more than once.
    pub(super) doubled: usize,
}

/// The planes of the fabric: one, unless end ports have several. Switches are numbered by their
/// places in the order of node GUIDs, so that tables depend neither on where the manager is nor on
/// the order in which it found the switches.
pub(super) fn planes(routed: Routed<'_>) -> Result<Vec<Plane>, TopologyError> {
    let Routed { fabric, avoided, .. } = routed;
    let guid = |index: SwitchIndex| fabric.node(fabric.switch(index).node).guid;
    let mut switches: Vec<SwitchIndex> = fabric.switches().map(|(index, _)| index).collect();
    switches.retain(|&index| !avoided.contains(&guid(index)));
    switches.sort_by_key(|&index| guid(index));
    if !fabric.is_planarized() {
        return Ok(vec![plane(routed, switches, None)?]);
    }
    let last = fabric.lid_ports().filter_map(|(port, _)| routed.lids.get(fabric.port(port).guid));
    let last = last.map(|range| range.last).max();
    let parts = parts(fabric);
    let mut by_part: BTreeMap<u32, Vec<SwitchIndex>> = BTreeMap::new();
    for index in switches {
        by_part.entry(parts[&index]).or_default().push(index);
    }
    by_part.into_values().map(|switches| plane(routed, switches, last)).collect()
}

/// By switch: a number that is equal for all switches that links between switches connect. Those
/// next to the SM come first, in the order of its ports; the others are not reached.
fn parts(fabric: &Fabric) -> HashMap<SwitchIndex, u32> {
    let mut parts = HashMap::new();
    let beside = |port: PortIndex| fabric.node_of(fabric.port(port).peer()?).switch;
    let own = fabric.own_ports().filter_map(beside);
    let starts = own.chain(fabric.switches().map(|(index, _)| index));
    for (start, number) in starts.zip(0..) {
        let mut left = vec![start];
        while let Some(index) = left.pop() {
            if parts.contains_key(&index) {
                continue;
            }
            parts.insert(index, number);
            left.extend(fabric.ports_of(fabric.switch(index).node).filter_map(beside));
        }
    }
    parts
}

/// The plane of some switches. `last`: the last LID of all planes, if there are several.
fn plane(
    routed: Routed<'_>,
    switches: Vec<SwitchIndex>,
    last: Option<Lid>,
) -> Result<Plane, TopologyError> {
    let Routed { fabric, lids, throttled, .. } = routed;
    let mut builder = TopologyBuilder::new();
    let top = switches.iter().map(|index| index.get()).max();
    let mut numbers = vec![None; top.map_or(0, |top| top + 1)];
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
    // Where planes are joined by a cable, an end port is in one plane more than once.
    let (mut placed, mut doubled) = (HashSet::new(), HashSet::new());
    for (port, _) in fabric.lid_ports() {
        let guid = fabric.port(port).guid;
        let Some(range) = lids.get(guid) else { continue };
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
        if last.is_some() && !placed.insert(guid) {
            doubled.insert(guid);
            continue;
        }
        builder.add_destination(Destination {
            base_lid: range.first,
            lid_count: range.last.0 - range.first.0 + 1,
            egress_switch,
            exit,
        })?;
    }
    last.into_iter().for_each(|last| builder.reserve_lids(last));
    Ok(Plane { topology: builder.build()?, switches, doubled: doubled.len() })
}

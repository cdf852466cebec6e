//! Makes the tables of a plane from those of the one before by what differs.
//!
//! This is for what happens while hosts run: links between switches fail and return, packets are
//! routed around them, and ports join and leave partitions. Nodes, their ports and LIDs stay; then
//! indices of records are shared, records of nodes that differ are replaced, and of the path
//! classes only columns with another view are written. If anything else differs,
//! [`build`](super::build) makes the tables.

mod keys;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, PortNum};
use sa_proto::snapshot::{FabricPlane, Lft, Mft, Node, Port, PortTables, Row, find};

use super::build::{topology, topology_of};
use super::end_port::EndPort;
use super::record::{NodeRows, RecordTables};
use super::rewalk::{Limits, patched_columns};
use super::scan::{Fabric, Made, Scanned, scan_node};
use super::sl::Sls;
use super::walk::{Before, Hop, Switches};
use super::{Tables, Walked};
use keys::{Keyed, Keys};

/// Nodes that may differ: so many, or one in so many of all.
const NODES_MIN: usize = 64;
const NODES_FRACTION: usize = 8;
/// What may be looked at again: some milliseconds. A cut cable moves thousands of entries; new
/// routes for all of a large fabric, millions to ports of the same distance, which have the same
/// views.
const LIMITS: Limits = Limits { entries: 1 << 19, views: 1 << 17 };

/// See [`Tables::patched`].
pub(super) fn patched(tables: &Tables, plane: &Arc<FabricPlane>) -> Option<Tables> {
    let old = &*tables.plane;
    if !old.is_same_but_routes_and_partitions(plane) || tables.has_planes() {
        return None;
    }
    let changed = changed_nodes(&old.nodes, &plane.nodes)?;
    let patch = Patch::new(tables, plane, changed)?;
    let mut keys = Keys::new(tables, &patch.rekeyed)?;
    let (switches, records) = (patch.switches()?, patch.records(&mut keys)?);
    let Keyed { partitions, end_classes, end_ports } = keys.finish(plane, &patch.fabric)?;
    let topology = topology(plane, switches);
    let before = Before { topology: &topology_of(tables), columns: &tables.walked.columns };
    let (columns, fresh) = patched_columns(&topology, before, LIMITS)?;
    let (paths, column) = tables.paths.patched(&columns, &fresh)?;
    let column_of = |lid: Lid| column.get(lid.index()).copied().unwrap_or(EndPort::DETACHED);
    let has_same_sls = is_shared(&old.port_tables, &plane.port_tables)
        && is_shared(&old.partitions, &plane.partitions)
        && partitions.bases() == tables.partitions.bases();
    let sls = if has_same_sls { tables.sls.clone() } else { Sls::of(plane, &partitions) };
    Some(Tables {
        end_ports: end_ports.with_columns(column_of),
        end_classes,
        partitions,
        records,
        paths,
        sls,
        walked: Walked { switches: topology.switches, columns: Arc::new(columns) },
        plane: Arc::clone(plane),
        ..tables.clone()
    })
}

/// Places of nodes that are not the same in both tables of nodes. `None` if other nodes are there,
/// or many differ.
fn changed_nodes(old: &[Arc<Node>], new: &[Arc<Node>]) -> Option<Vec<usize>> {
    if old.len() != new.len() {
        return None;
    }
    let mut changed = Vec::new();
    for (at, (old, new)) in old.iter().zip(new).enumerate() {
        if Arc::ptr_eq(old, new) {
            continue;
        }
        if old.guid != new.guid {
            return None;
        }
        if old != new {
            changed.push(at);
        }
    }
    (changed.len() <= (new.len() / NODES_FRACTION).max(NODES_MIN)).then_some(changed)
}

/// Node GUIDs of the far ends of a node's links.
fn peers(node: &Node) -> impl Iterator<Item = Guid> {
    node.ports.iter().filter_map(|port| port.peer).map(|(guid, _)| guid)
}

/// Places of nodes, and of the peers of those among them with other P_Keys: records of links have
/// those of both ends.
fn with_peers(plane: &FabricPlane, changed: Vec<usize>, rekeyed: &BTreeSet<Guid>) -> Vec<usize> {
    let place = |guid: Guid| plane.nodes.binary_search_by_key(&guid, |node| node.guid).ok();
    let with_peers = changed.iter().map(|&at| &plane.nodes[at]);
    let with_peers = with_peers.filter(|node| rekeyed.contains(&node.guid));
    let more: BTreeSet<usize> = with_peers.flat_map(|node| peers(node)).filter_map(place).collect();
    if more.is_empty() {
        return changed;
    }
    changed.into_iter().chain(more).collect::<BTreeSet<usize>>().into_iter().collect()
}

/// Whether two tables have the same rows in the same memory.
fn is_shared<R>(a: &[Arc<R>], b: &[Arc<R>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Nodes that differ, and those around them.
struct Patch<'a> {
    tables: &'a Tables,
    plane: &'a FabricPlane,
    /// Places of the nodes whose records may differ, ascending: those that differ, and peers of
    /// those with other P_Keys.
    changed: Vec<usize>,
    /// Node GUIDs of those with other P_Keys.
    rekeyed: BTreeSet<Guid>,
    /// These nodes, their peers, and switches that have links to them.
    fabric: Fabric<'a>,
    /// Ports of which the device behind may be another: row, and number of the port.
    moved: Vec<(u16, u8)>,
}

impl<'a> Patch<'a> {
    /// `None` if a node differs in more than a patch covers.
    fn new(tables: &'a Tables, plane: &'a FabricPlane, changed: Vec<usize>) -> Option<Self> {
        let switches = &tables.walked.switches;
        let rows: HashMap<Guid, u16> = if changed.is_empty() {
            HashMap::new()
        } else {
            switches.guids.iter().copied().zip(0..).collect()
        };
        let row = |guid: Guid| rows.get(&guid).copied();
        let mut involved: BTreeSet<Guid> = BTreeSet::new();
        let mut is_changed_row = vec![false; switches.guids.len()];
        let (mut moved, mut rekeyed) = (Vec::new(), BTreeSet::new());
        for &at in &changed {
            let (then, now) = (&tables.plane.nodes[at], &plane.nodes[at]);
            let [scanned_then, scanned] = [then, now].map(|node| scan_node(node, &plane.subnet));
            // A peer that is no switch with a row counts as an end port.
            if !scanned.is_like(&scanned_then, |guid| row(guid).is_some()) {
                return None;
            }
            if !scanned.has_same_keys(&scanned_then) {
                rekeyed.insert(now.guid);
            }
            if let Some(row) = row(now.guid) {
                is_changed_row[usize::from(row)] = true;
                moved.extend(now.ports.iter().map(|port| (row, port.num.0)));
            }
        }
        if !moved.is_empty() {
            for at in 0..switches.guids.len() {
                let ports = (0..).zip(switches.ports(at));
                let leads_there = |hop: &Hop| match hop {
                    Hop::Switch(row, _) => is_changed_row.get(usize::from(*row)) == Some(&true),
                    _ => false,
                };
                for (port, _) in ports.filter(|(_, hop)| leads_there(hop)) {
                    involved.insert(switches.guids[at]);
                    moved.push((at as u16, port));
                }
            }
        }
        let changed = with_peers(plane, changed, &rekeyed);
        for &at in &changed {
            let node = &plane.nodes[at];
            involved.insert(node.guid);
            involved.extend(peers(node));
        }
        let nodes = involved.into_iter().filter_map(|guid| {
            Some((find(&plane.nodes, guid)?, row(guid).unwrap_or(EndPort::DETACHED)))
        });
        let fabric = Fabric::part(nodes, &plane.subnet);
        if fabric.has_planes() {
            return None;
        }
        Some(Self { tables, plane, changed, rekeyed, fabric, moved })
    }

    /// The switches with the far ends of their ports.
    fn switches(&self) -> Option<Arc<Switches>> {
        let before = &self.tables.walked.switches;
        let mut hops: Option<Vec<Hop>> = None;
        for &(row, num) in &self.moved {
            let row = usize::from(row);
            let scanned = self.fabric.node(before.guids[row])?;
            let port = scanned.port(PortNum(num));
            let hop = port.map_or(Hop::Nothing, |port| self.fabric.hop(scanned, port));
            let at = before.starts[row] as usize + usize::from(num);
            if *before.hops.get(at)? != hop {
                hops.get_or_insert_with(|| before.hops.clone())[at] = hop;
            }
        }
        let Some(hops) = hops else { return Some(Arc::clone(before)) };
        let (guids, starts) = (before.guids.clone(), before.starts.clone());
        Some(Arc::new(Switches { guids, starts, hops }))
    }

    /// The records, of which those of nodes that differ are replaced.
    fn records(&self, keys: &mut Keys<'_>) -> Option<RecordTables> {
        let old = &self.tables.records;
        let mut made = Made::none();
        let mut places: [Vec<(Range<u32>, Range<u32>)>; 3] = Default::default();
        let mut keys = |scanned: &Scanned<'_>, port: &Port| keys.of(scanned, port);
        for &at in &self.changed {
            let scanned = self.fabric.node(self.plane.nodes[at].guid)?;
            let now = self.fabric.add_records(scanned, &mut made, &mut keys);
            let rows = old.by_node.get(at).filter(|rows| rows.guid == scanned.node.guid)?;
            let then = [&rows.nodes, &rows.ports, &rows.links];
            for ((places, then), now) in places.iter_mut().zip(then).zip(now) {
                places.push((then.clone(), now));
            }
        }
        let [nodes, ports, links] = &places;
        // With as many records as before, indices and ranges stay.
        if [nodes, ports].into_iter().flatten().any(|(then, now)| then.len() != now.len()) {
            return None;
        }
        let by_node = self.by_node(links);
        let mut next = old.clone();
        if let Some(nodes) = old.nodes.patched(&made.nodes, nodes) {
            next.nodes = Arc::new(nodes);
        }
        if let Some(ports) = old.ports.patched(&made.ports, ports) {
            next.ports = Arc::new(ports);
        }
        if let Some(links) = old.links.patched(&made.links, links) {
            next.links = Arc::new(links);
        }
        next.by_node = by_node;
        Some(next)
    }

    /// The rows of nodes, with the tables of their switches and these places of links.
    fn by_node(&self, links: &[(Range<u32>, Range<u32>)]) -> Arc<[NodeRows]> {
        let plane = self.plane;
        let mut tables = DeviceTables {
            lfts: Ascending(&plane.lfts),
            mfts: Ascending(&plane.mfts),
            port_tables: Ascending(&plane.port_tables),
        };
        let mut changed = self.changed.iter().zip(links).peekable();
        // What the places of links behind differ by; wraps.
        let mut shift = 0u32;
        let row = |(at, rows): (usize, &NodeRows)| {
            let mut node = &rows.node;
            let mut range =
                rows.links.start.wrapping_add(shift)..rows.links.end.wrapping_add(shift);
            let mut extended_speeds = rows.extended_speeds;
            if let Some((_, (then, now))) = changed.next_if(|(place, _)| **place == at) {
                node = &plane.nodes[at];
                range.end = range.start + now.len() as u32;
                shift = shift.wrapping_add(now.len() as u32).wrapping_sub(then.len() as u32);
                let scanned = self.fabric.node(node.guid);
                extended_speeds = scanned.is_some_and(|scanned| scanned.has_extended_speeds());
            }
            let guid = rows.guid;
            NodeRows {
                guid,
                node: Arc::clone(node),
                is_switch: rows.is_switch,
                nodes: rows.nodes.clone(),
                ports: rows.ports.clone(),
                links: range,
                extended_speeds,
                lft: tables.lfts.find(guid),
                mft: tables.mfts.find(guid),
                port_tables: tables.port_tables.find(guid),
            }
        };
        self.tables.records.by_node.iter().enumerate().map(row).collect()
    }
}

/// Tables of devices, looked up in the order of their GUIDs.
struct DeviceTables<'a> {
    lfts: Ascending<'a, Lft>,
    mfts: Ascending<'a, Mft>,
    port_tables: Ascending<'a, PortTables>,
}

/// Rows that are looked up in ascending order.
struct Ascending<'a, R>(&'a [Arc<R>]);

impl<R: Row<Key = Guid>> Ascending<'_, R> {
    fn find(&mut self, guid: Guid) -> Option<Arc<R>> {
        while let [first, rest @ ..] = self.0 {
            match first.key().cmp(&guid) {
                std::cmp::Ordering::Less => self.0 = rest,
                std::cmp::Ordering::Equal => return Some(Arc::clone(first)),
                std::cmp::Ordering::Greater => return None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;

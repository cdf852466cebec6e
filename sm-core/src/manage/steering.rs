//! From what operators' files say of GUIDs to what routing engines are told in a topology's numbers.
//!
//! What is not in the fabric, or has no such port, is remarked on and passed over: files name what
//! is switched off now, too.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::Entries;

use super::lid::LidTable;
use crate::config::Settings;
use crate::config::routing_files::{GuidLine, RoutingFile, RoutingFiles};
use crate::fabric::{Fabric, SwitchIndex};
use crate::routing::{Destination, HopMatrix, Steering, Ties, Topology};

/// Which GUIDs a topology's switches and destinations have.
#[derive(Clone, Debug)]
pub struct Places<'a> {
    topology: &'a Topology,
    /// By number.
    switch_guids: Vec<Guid>,
    switches: HashMap<Guid, u16>,
    /// First LIDs by port GUID.
    lids: HashMap<Guid, Lid>,
}

/// What engines are told, and what of the files is without effect, in lines for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// For engines.
    pub steering: Steering,
    /// For operators.
    pub remarks: Vec<String>,
}

impl<'a> Places<'a> {
    /// Those of a topology with these switches, by their numbers, and `ports`.
    pub fn new(
        topology: &'a Topology,
        switches: impl IntoIterator<Item = Guid>,
        ports: impl IntoIterator<Item = (Guid, Lid)>,
    ) -> Self {
        let switch_guids: Vec<Guid> = switches.into_iter().collect();
        let switches = switch_guids.iter().copied().zip(0..).collect();
        Self { topology, switch_guids, switches, lids: ports.into_iter().collect() }
    }

    /// Those of the topology that was made of a fabric.
    pub fn of_fabric(
        topology: &'a Topology,
        fabric: &Fabric,
        switches: &[SwitchIndex],
        lids: &LidTable,
    ) -> Self {
        let guid = |index: &SwitchIndex| fabric.node(fabric.switch(*index).node).guid;
        let ports = fabric.end_ports().filter_map(|port| {
            let guid = fabric.port(port).guid;
            Some((guid, lids.get(guid)?.first))
        });
        Self::new(topology, switches.iter().map(guid), ports)
    }

    fn switch(&self, guid: Guid) -> Option<u16> {
        self.switches.get(&guid).copied()
    }

    fn destination(&self, port: Guid) -> Option<&'a Destination> {
        let lid = self.lids.get(&port)?;
        let destinations = self.topology.destinations();
        let at = destinations.binary_search_by_key(lid, |to| to.base_lid).ok()?;
        Some(&destinations[at])
    }
}

/// What files and settings say to the engines of a topology.
pub fn steer(files: &RoutingFiles, settings: &Settings, places: &Places<'_>) -> Steered {
    let mut remarks = unused(files, settings);
    let switches = places.topology.switch_count();
    // The switch that a host is on will do for a root, as OpenSM's manual has it.
    let root = |guid| {
        let home = || Some(places.destination(guid)?.home);
        places.switch(guid).or_else(home)
    };
    let lid = |guid| Some(places.destination(guid)?.base_lid);
    let roots = unique(found(files.roots.as_deref(), &mut remarks, root));
    let listed = found(files.compute_nodes.as_deref(), &mut remarks, lid);
    let mut io_nodes = unique(found(files.io_nodes.as_deref(), &mut remarks, lid));
    let compute_nodes = match (&files.compute_nodes, &files.io_nodes) {
        (Some(_), _) => Some(unique(listed)),
        (None, Some(_)) => Some(hosts_but(places.topology, &io_nodes)),
        (None, None) => None,
    };
    let computing: HashSet<Lid> = compute_nodes.iter().flatten().copied().collect();
    io_nodes.retain(|lid| !computing.contains(lid));
    let mut switch_ids: Vec<u64> = places.switch_guids.iter().map(|guid| guid.0).collect();
    for (line, switch) in each(files.ids.as_deref(), &mut remarks, |guid| places.switch(guid)) {
        switch_ids[usize::from(switch)] = line.told;
    }
    let mut hop_weights = vec![1; places.topology.link_count()];
    for (link, weight) in links(files.hop_weights.as_deref(), places, &mut remarks, |w| w.port) {
        hop_weights[link] = u16::from(weight.weight);
    }
    let mut ignored_links = vec![false; places.topology.link_count()];
    for (link, _) in links(files.ignored_ports.as_deref(), places, &mut remarks, |port| *port) {
        ignored_links[link] = true;
    }
    Steered {
        steering: Steering {
            roots,
            connect_roots: settings.connect_roots,
            compute_nodes,
            io_nodes,
            max_reverse_hops: u8::try_from(settings.max_reverse_hops).unwrap_or(u8::MAX),
            switch_ids,
            routing_order: unique(found(files.order.as_deref(), &mut remarks, lid)),
            hop_weights: if hop_weights.iter().all(|&weight| weight == 1) {
                Vec::new()
            } else {
                hop_weights
            },
            port_orders: port_orders(files, places, &mut remarks),
            ignored_links: if ignored_links.contains(&true) { ignored_links } else { Vec::new() },
            lfts: lfts(files, places, &mut remarks),
            hops: hops(files, places, &mut remarks),
            ties: match settings.scatter_ports {
                0 if settings.port_shifting => Ties::Shifted,
                0 => Ties::InTurn,
                seed => Ties::Scattered(seed),
            },
            ordered_take_turns: settings.guid_routing_order_no_scatter,
            lash_start_lane: settings.lash_start_vl,
            nue_lanes_max: settings.nue_max_num_vls,
            nue_includes_switches: settings.nue_include_switches,
            analyses_mesh: settings.do_mesh_analysis,
            switch_guids: places.switch_guids.clone(),
            torus: files.torus.as_ref().map(|file| file.content.clone()),
            ..Steering::default()
        },
        remarks,
    }
    .checked(switches)
}

/// Tells of files that are for engines none of which is to be tried.
fn unused(files: &RoutingFiles, settings: &Settings) -> Vec<String> {
    let trees: &[&str] = &["ftree", "sssp", "dfsssp"];
    let path = |file: &Option<Arc<RoutingFile<Vec<GuidLine>>>>| Some(file.as_ref()?.path.clone());
    let files = [
        (path(&files.roots), &["updn", "ftree"][..]),
        (path(&files.compute_nodes), trees),
        (path(&files.io_nodes), trees),
        (files.ids.as_ref().map(|file| file.path.clone()), &["updn", "dnup", "ftree"]),
        (files.lfts.as_ref().map(|file| file.path.clone()), &["file"]),
        (files.hops.as_ref().map(|file| file.path.clone()), &["file"]),
    ];
    let mut remarks = Vec::new();
    for (path, engines) in files {
        let Some(path) = path else { continue };
        if !engines.iter().any(|engine| settings.tries_engine(engine)) {
            let (path, engines) = (path.display(), engines.join(", "));
            remarks.push(format!("{path}: no effect: routing_engine has none of {engines}"));
        }
    }
    remarks
}

impl Steered {
    /// Drops lists by switch that have nothing in them.
    fn checked(mut self, switches: usize) -> Self {
        drop_if_empty(&mut self.steering.port_orders, switches);
        drop_if_empty(&mut self.steering.lfts, switches);
        self
    }
}

fn drop_if_empty<L: Deref<Target: AsRef<[u8]>>>(lists: &mut Vec<L>, switches: usize) {
    debug_assert!(lists.is_empty() || lists.len() == switches);
    if lists.iter().all(|list| list.as_ref().is_empty()) {
        lists.clear();
    }
}

/// Counts lines that are without effect, and names the first.
struct Tally<'a, T> {
    file: &'a RoutingFile<Vec<GuidLine<T>>>,
    count: usize,
    first: Option<&'a GuidLine<T>>,
}

impl<'a, T> Tally<'a, T> {
    fn new(file: &'a RoutingFile<Vec<GuidLine<T>>>) -> Self {
        Self { file, count: 0, first: None }
    }

    fn add(&mut self, line: &'a GuidLine<T>) {
        self.count += 1;
        self.first.get_or_insert(line);
    }

    fn tell(self, what: &str, remarks: &mut Vec<String>) {
        if let Some(GuidLine { line, guid, .. }) = self.first {
            let (path, all, count) =
                (self.file.path.display(), self.file.content.len(), self.count);
            remarks.push(format!("{path}:{line}: {guid} {what} ({count} of {all} lines)"));
        }
    }
}

const NOT_HERE: &str = "is not here, or is nothing of the kind";
const NO_PORT: &str = "has no such port";

/// Lines of a file, each with what its GUID stands for.
fn each<'a, T, W>(
    file: Option<&'a RoutingFile<Vec<GuidLine<T>>>>,
    remarks: &mut Vec<String>,
    find: impl Fn(Guid) -> Option<W>,
) -> Vec<(&'a GuidLine<T>, W)> {
    let Some(file) = file else { return Vec::new() };
    let mut unknown = Tally::new(file);
    let mut all = Vec::new();
    for line in &file.content {
        match find(line.guid) {
            Some(what) => all.push((line, what)),
            None => unknown.add(line),
        }
    }
    unknown.tell(NOT_HERE, remarks);
    all
}

/// What the GUIDs of a file stand for.
fn found<W>(
    file: Option<&RoutingFile<Vec<GuidLine>>>,
    remarks: &mut Vec<String>,
    find: impl Fn(Guid) -> Option<W>,
) -> Vec<W> {
    each(file, remarks, find).into_iter().map(|(_, what)| what).collect()
}

/// Links that lines of a file about switches' ports are about. A port that leads to a host is none:
/// there is no other way to it.
fn links<'a, T>(
    file: Option<&'a RoutingFile<Vec<GuidLine<T>>>>,
    places: &Places<'_>,
    remarks: &mut Vec<String>,
    port: impl Fn(&T) -> u8,
) -> Vec<(usize, &'a T)> {
    let Some(file) = file else { return Vec::new() };
    let mut without = Tally::new(file);
    let mut all = Vec::new();
    for (line, switch) in each(Some(file), remarks, |guid| places.switch(guid)) {
        let port = port(&line.told);
        if port > places.topology.port_count(switch) {
            without.add(line);
        } else if let Some(link) = places.topology.link_at(switch, port) {
            all.push((link, &line.told));
        }
    }
    without.tell(NO_PORT, remarks);
    all
}

/// By switch: all its ports, those that the file names first. Of several lines the first counts,
/// and none that names a port which is not there.
fn port_orders(
    files: &RoutingFiles,
    places: &Places<'_>,
    remarks: &mut Vec<String>,
) -> Vec<Vec<u8>> {
    let Some(file) = files.port_orders.as_deref() else { return Vec::new() };
    let mut without = Tally::new(file);
    let mut orders = vec![Vec::new(); places.topology.switch_count()];
    for (line, switch) in each(Some(file), remarks, |guid| places.switch(guid)) {
        let ports = places.topology.port_count(switch);
        let order = &mut orders[usize::from(switch)];
        if line.told.iter().any(|&port| port > ports) {
            without.add(line);
        } else if order.is_empty() {
            order.extend(&line.told);
            order.extend((1..=ports).filter(|port| !line.told.contains(port)));
        }
    }
    without.tell(NO_PORT, remarks);
    orders
}

fn lfts(files: &RoutingFiles, places: &Places<'_>, remarks: &mut Vec<String>) -> Vec<Entries> {
    let Some(file) = files.lfts.as_deref() else { return Vec::new() };
    let switch = |guid| places.switch(guid);
    let resolved = file.content.resolve(places.topology, switch, |port| places.destination(port));
    let missing = file.content.switches.iter().filter(|table| switch(table.guid).is_none());
    if let (count @ 1.., Some(first)) = (missing.clone().count(), missing.clone().next()) {
        let (path, all) = (file.path.display(), file.content.switches.len());
        let guid = first.guid;
        remarks.push(format!("{path}: {count} of {all} switches are not here, for one {guid}"));
    }
    resolved.unwrap_or_else(|error| {
        let path = file.path.display();
        remarks.push(format!("{path}:{}: {}; {}", error.line, error.wrong, error.right));
        Vec::new()
    })
}

/// The hops of a file, if all of the ways that it tells of can be gone.
fn hops(
    files: &RoutingFiles,
    places: &Places<'_>,
    remarks: &mut Vec<String>,
) -> Option<Arc<HopMatrix>> {
    let file = files.hops.as_deref()?;
    let switch = |guid| places.switch(guid);
    let resolved = file.content.resolve(places.topology, switch, |port| places.destination(port));
    match resolved {
        Ok(hops) => Some(Arc::new(hops)),
        Err(error) => {
            let path = file.path.display();
            remarks.push(format!("{path}:{}: {}; {}", error.line, error.wrong, error.right));
            None
        }
    }
}

fn hosts_but(topology: &Topology, others: &[Lid]) -> Vec<Lid> {
    let others: HashSet<Lid> = others.iter().copied().collect();
    let hosts = topology.destinations().iter().filter(|to| to.is_host()).map(|to| to.base_lid);
    hosts.filter(|lid| !others.contains(lid)).collect()
}

/// Each once, where it comes first.
fn unique<T: Copy + Eq + std::hash::Hash>(mut all: Vec<T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.retain(|each| seen.insert(*each));
    all
}

#[cfg(test)]
mod tests;

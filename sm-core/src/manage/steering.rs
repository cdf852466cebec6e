//! Resolves operators' routing files, which name GUIDs, to inputs of routing engines, which use a
//! topology's numbers.
//!
//! Entries for nodes or ports that are not in the fabric are skipped with a remark: files also name
//! nodes that are switched off.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::Entries;

use super::lid::LidTable;
use crate::fabric::{Fabric, SwitchIndex};
use sm_config::Settings;
use sm_config::routing_files::{GuidLine, RoutingFile, RoutingFiles};
use sm_routing::engines::{file, torus, updn};
use sm_routing::{
    CommonOptions, Destination, Dfsssp, Engine, FTree, FromFile, HopMatrix, LayeredPaths, Sssp,
    Steering, Ties, Topology, UpDown,
};

/// GUIDs of a topology's switches and destinations.
#[derive(Clone, Debug)]
pub struct Places<'a> {
    topology: &'a Topology,
    /// By number.
    switch_guids: Vec<Guid>,
    switches: HashMap<Guid, u16>,
    /// First LIDs by port GUID.
    lids: HashMap<Guid, Lid>,
}

/// Inputs of the engines, and remarks on entries without effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steered {
    /// Inputs of the engines.
    pub steering: Steering,
    /// Log lines for operators.
    pub remarks: Vec<String>,
}

impl<'a> Places<'a> {
    /// The places in a topology with these switches, by their numbers, and `ports`.
    pub fn new(
        topology: &'a Topology,
        switches: impl IntoIterator<Item = Guid>,
        ports: impl IntoIterator<Item = (Guid, Lid)>,
    ) -> Self {
        let switch_guids: Vec<Guid> = switches.into_iter().collect();
        let switches = switch_guids.iter().copied().zip(0..).collect();
        Self { topology, switch_guids, switches, lids: ports.into_iter().collect() }
    }

    /// The GUIDs of a topology built from a fabric.
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

    /// The root switch that an entry of `root_guid_file` names: a switch, or the switch of a host,
    /// as in OpenSM's manual.
    fn root(&self, guid: Guid) -> Option<u16> {
        let egress_switch = || Some(self.destination(guid)?.egress_switch);
        self.switch(guid).or_else(egress_switch)
    }

    fn destination(&self, port: Guid) -> Option<&'a Destination> {
        let lid = self.lids.get(&port)?;
        let destinations = self.topology.destinations();
        let at = destinations.binary_search_by_key(lid, |to| to.base_lid).ok()?;
        Some(&destinations[at])
    }
}

/// Resolves files and settings for the engines of a topology.
pub fn steer(files: &RoutingFiles, settings: &Settings, places: &Places<'_>) -> Steered {
    let mut remarks = unused(files, settings);
    let roots = unique(found(files.roots.as_deref(), &mut remarks, |guid| places.root(guid)));
    let common = common(files, settings, places, &mut remarks);
    let lfts = lfts(files, places, &mut remarks);
    let hops = hops(files, places, &mut remarks);
    let steering = Steering {
        common,
        settings: settings.engines.clone(),
        updn: updn::Options { roots },
        torus: torus::Options {
            config: files.torus.as_ref().map(|file| file.content.clone()),
            switch_guids: places.switch_guids.clone(),
        },
        file: file::Options { lfts, hops },
    };
    Steered { steering, remarks }
}

/// Resolves the options that engines share. The number of data VLs is not known here.
fn common(
    files: &RoutingFiles,
    settings: &Settings,
    places: &Places<'_>,
    remarks: &mut Vec<String>,
) -> CommonOptions {
    let lid = |guid| Some(places.destination(guid)?.base_lid);
    let (compute_nodes, io_nodes) = node_roles(files, places, remarks);
    let mut switch_ids: Vec<u64> = places.switch_guids.iter().map(|guid| guid.0).collect();
    for (line, switch) in each(files.ids.as_deref(), remarks, |guid| places.switch(guid)) {
        switch_ids[usize::from(switch)] = line.value;
    }
    let mut hop_weights = vec![1; places.topology.link_count()];
    for (link, weight) in links(files.hop_weights.as_deref(), places, remarks, |w| w.port) {
        hop_weights[link] = u16::from(weight.weight);
    }
    if hop_weights.iter().all(|&weight| weight == 1) {
        hop_weights.clear();
    }
    let mut ignored_links = vec![false; places.topology.link_count()];
    for (link, _) in links(files.ignored_ports.as_deref(), places, remarks, |port| *port) {
        ignored_links[link] = true;
    }
    if !ignored_links.contains(&true) {
        ignored_links.clear();
    }
    CommonOptions {
        data_lanes: 0,
        switch_ids,
        hop_weights,
        compute_nodes,
        io_nodes,
        routing_order: unique(found(files.order.as_deref(), remarks, lid)),
        ordered_take_turns: settings.guid_routing_order_no_scatter,
        ties: match settings.scatter_ports {
            0 if settings.port_shifting => Ties::Shifted,
            0 => Ties::InTurn,
            seed => Ties::Scattered(seed),
        },
        port_orders: port_orders(files, places, remarks),
        ignored_links,
    }
}

/// Base LIDs of compute nodes (`None`: all hosts are compute nodes) and of I/O nodes. A node in
/// both files is a compute node. If there is only a file of I/O nodes, all other hosts are compute
/// nodes.
fn node_roles(
    files: &RoutingFiles,
    places: &Places<'_>,
    remarks: &mut Vec<String>,
) -> (Option<Vec<Lid>>, Vec<Lid>) {
    let lid = |guid| Some(places.destination(guid)?.base_lid);
    let listed = found(files.compute_nodes.as_deref(), remarks, lid);
    let mut io_nodes = unique(found(files.io_nodes.as_deref(), remarks, lid));
    let compute_nodes = match (&files.compute_nodes, &files.io_nodes) {
        (Some(_), _) => Some(unique(listed)),
        (None, Some(_)) => Some(hosts_but(places.topology, &io_nodes)),
        (None, None) => None,
    };
    let computing: HashSet<Lid> = compute_nodes.iter().flatten().copied().collect();
    io_nodes.retain(|lid| !computing.contains(lid));
    (compute_nodes, io_nodes)
}

/// Reports files that apply only to engines that `routing_engine` does not list.
fn unused(files: &RoutingFiles, settings: &Settings) -> Vec<String> {
    let (updn, dnup) = (UpDown::FromRoots.name(), UpDown::FromHosts.name());
    let (ftree, file) = (FTree.name(), FromFile.name());
    let balancing = [ftree, Sssp.name(), Dfsssp.name(), LayeredPaths.name()];
    let path = |file: &Option<Arc<RoutingFile<Vec<GuidLine>>>>| Some(file.as_ref()?.path.clone());
    let files = [
        (path(&files.roots), &[updn, ftree][..]),
        (path(&files.compute_nodes), &balancing),
        (path(&files.io_nodes), &balancing),
        (files.ids.as_ref().map(|file| file.path.clone()), &[updn, dnup, ftree]),
        (files.lfts.as_ref().map(|file| file.path.clone()), &[file]),
        (files.hops.as_ref().map(|file| file.path.clone()), &[file]),
    ];
    let mut remarks = Vec::new();
    for (path, engines) in files {
        let Some(path) = path else { continue };
        if !engines.iter().any(|engine| settings.tries_engine(engine)) {
            let (path, engines) = (path.display(), engines.join(", "));
            remarks.push(format!("{path} has no effect: routing_engine lists none of {engines}"));
        }
    }
    remarks
}

/// Per-switch lists, or none if all are empty.
fn unless_empty<L: Deref<Target: AsRef<[u8]>>>(lists: Vec<L>) -> Vec<L> {
    if lists.iter().all(|list| list.as_ref().is_empty()) { Vec::new() } else { lists }
}

/// Counts lines without effect, and remembers the first.
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

    fn report(self, what: &str, remarks: &mut Vec<String>) {
        if let Some(GuidLine { line, guid, .. }) = self.first {
            let (path, all, count) =
                (self.file.path.display(), self.file.content.len(), self.count);
            remarks.push(format!("{path}:{line}: {guid} {what}; {count} of {all} lines ignored"));
        }
    }
}

const NOT_IN_FABRIC: &str = "is not in the fabric, or is of the wrong node type";
const NO_PORT: &str = "has no port of that number";

/// Lines of a file, each with its resolved GUID.
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
    unknown.report(NOT_IN_FABRIC, remarks);
    all
}

/// The resolved GUIDs of a file.
fn found<W>(
    file: Option<&RoutingFile<Vec<GuidLine>>>,
    remarks: &mut Vec<String>,
    find: impl Fn(Guid) -> Option<W>,
) -> Vec<W> {
    each(file, remarks, find).into_iter().map(|(_, what)| what).collect()
}

/// Links named by the lines of a file of switch ports. Ports that lead to hosts are skipped:
/// there is no alternative route to the host.
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
        let port = port(&line.value);
        if port > places.topology.port_count(switch) {
            without.add(line);
        } else if let Some(link) = places.topology.link_at(switch, port) {
            all.push((link, &line.value));
        }
    }
    without.report(NO_PORT, remarks);
    all
}

/// By switch: all its ports, starting with those named in the file. Of several lines for a switch
/// the first counts; lines that name a missing port are ignored.
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
        if line.value.iter().any(|&port| port > ports) {
            without.add(line);
        } else if order.is_empty() {
            order.extend(&line.value);
            order.extend((1..=ports).filter(|port| !line.value.contains(port)));
        }
    }
    without.report(NO_PORT, remarks);
    unless_empty(orders)
}

fn lfts(files: &RoutingFiles, places: &Places<'_>, remarks: &mut Vec<String>) -> Vec<Entries> {
    let Some(file) = files.lfts.as_deref() else { return Vec::new() };
    let switch = |guid| places.switch(guid);
    let resolved = file.content.resolve(places.topology, switch, |port| places.destination(port));
    let missing = file.content.switches.iter().filter(|table| switch(table.guid).is_none());
    if let (count @ 1.., Some(first)) = (missing.clone().count(), missing.clone().next()) {
        let (path, all) = (file.path.display(), file.content.switches.len());
        let guid = first.guid;
        remarks
            .push(format!("{path}: {count} of {all} switches are not in the fabric, first {guid}"));
    }
    unless_empty(resolved.unwrap_or_else(|error| {
        let path = file.path.display();
        remarks.push(format!("{path}:{}: {}; {}", error.line, error.wrong, error.right));
        Vec::new()
    }))
}

/// The hops of a file, if the fabric has all paths that it describes.
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

/// Removes duplicates, keeping the first of each.
fn unique<T: Copy + Eq + std::hash::Hash>(mut all: Vec<T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.retain(|each| seen.insert(*each));
    all
}

#[cfg(test)]
mod tests;

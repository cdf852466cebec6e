//! The contents of a sweep's dump files. The caller renders them: the tables of a large fabric are
//! some hundred megabytes of text.

use std::collections::HashMap;
use std::sync::Arc;

use sa_proto::snapshot::{Lft, Mft};

use super::Sweeper;
use crate::dump::{self, EndName, NamedNode, PortMaps, Roster, SubnetList, SwitchName, Tables};
use crate::fabric::{Fabric, Node, PortIndex};
use crate::manage::lid::LidTable;
use crate::sweep::subnet::routing::active::ActiveRouting;
use sm_routing::{Engine, FTree, Lanes, Torus2Qos, UpDown};

/// A copy of the configured fabric, for writing dump files.
#[derive(Debug)]
pub struct DumpJob {
    files: Vec<DumpFileKind>,
    /// Unicast routing in force, if any dump file needs it.
    unicast: Option<Unicast>,
    mfts: Vec<Arc<Mft>>,
    /// Nodes with their links.
    nodes: Vec<NamedNode>,
    maps: Vec<PortMaps>,
}

#[derive(Debug)]
struct Unicast {
    made: Arc<ActiveRouting>,
    lfts: Vec<Arc<Lft>>,
    /// By plane; one in a fabric without planes.
    rosters: Vec<Roster>,
}

/// The files to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DumpScope {
    /// Multicast tables.
    Multicast,
    /// Files that OpenSM always writes: links and, with `ftree`, the order of hosts.
    Links,
    /// All dump files.
    Routing,
}

/// Dump files, by OpenSM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpFileKind {
    /// `opensm-lid-matrix.dump`.
    LidMatrix,
    /// `opensm-lfts.dump`.
    Lfts,
    /// `opensm.fdbs`.
    Fdbs,
    /// `opensm.mcfdbs`.
    Mcfdbs,
    /// `opensm-sl2vl.dump`.
    SlToVl,
    /// `opensm-updn-roots.dump`.
    UpdnRoots,
    /// `opensm-ftree-ca-order.dump`.
    FtreeCaOrder,
    /// `opensm-torus.dump`.
    Torus,
    /// `opensm-subnet.lst`.
    Subnet,
}

impl DumpFileKind {
    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::LidMatrix => "opensm-lid-matrix.dump",
            Self::Lfts => "opensm-lfts.dump",
            Self::Fdbs => "opensm.fdbs",
            Self::Mcfdbs => "opensm.mcfdbs",
            Self::SlToVl => "opensm-sl2vl.dump",
            Self::UpdnRoots => "opensm-updn-roots.dump",
            Self::FtreeCaOrder => "opensm-ftree-ca-order.dump",
            Self::Torus => "opensm-torus.dump",
            Self::Subnet => "opensm-subnet.lst",
        }
    }
}

impl DumpJob {
    /// The files to write.
    pub fn files(&self) -> &[DumpFileKind] {
        &self.files
    }

    /// Hands the parts of a file to `sink` in order, until it fails.
    pub fn render<E>(
        &self,
        file: DumpFileKind,
        mut sink: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        match file {
            DumpFileKind::Mcfdbs => {
                let mut order: Vec<&Arc<Mft>> = self.mfts.iter().collect();
                order.sort_by_key(|mft| mft.switch.0.swap_bytes());
                return order.into_iter().try_for_each(|mft| sink(&dump::mcfdbs(mft)));
            }
            DumpFileKind::Subnet => {
                return SubnetList::new(&self.nodes).parts().try_for_each(|part| sink(&part));
            }
            DumpFileKind::SlToVl => {
                return self.maps.iter().try_for_each(|port| sink(&dump::sl2vl(port)));
            }
            _ => {}
        }
        let Some(Unicast { made, lfts, rosters }) = &self.unicast else { return Ok(()) };
        let mut parts = made.parts(lfts).zip(rosters);
        parts.try_for_each(|((_, made, lfts), roster)| {
            render_unicast(file, made, lfts, roster, &mut sink)
        })
    }
}

/// Hands the parts of a file about the routing of a plane to `sink` in order, until it fails.
fn render_unicast<E>(
    file: DumpFileKind,
    made: &ActiveRouting,
    lfts: &[Arc<Lft>],
    roster: &Roster,
    sink: &mut impl FnMut(&str) -> Result<(), E>,
) -> Result<(), E> {
    let lfts: Vec<&[u8]> = lfts.iter().map(|lft| &*lft.ports).collect();
    let (topology, hops) = (made.topology(), Some(made.distances()));
    let tables = Tables { topology, roster, lfts: &lfts, hops };
    let render = match file {
        DumpFileKind::UpdnRoots => return sink(&dump::updn_roots(&tables, made.steering())),
        DumpFileKind::FtreeCaOrder => {
            return sink(&dump::ftree_ca_order(&tables, made.steering()));
        }
        DumpFileKind::Torus => match made.lanes() {
            Lanes::Torus(torus) => return sink(&dump::torus(&tables, torus)),
            Lanes::Free | Lanes::Layers(_) | Lanes::Dragonfly(_) => return Ok(()),
        },
        DumpFileKind::LidMatrix => dump::lid_matrix,
        DumpFileKind::Lfts => dump::lfts,
        _ => dump::fdbs,
    };
    tables.order().into_iter().try_for_each(|switch| sink(&render(&tables, switch)))
}

impl Sweeper {
    /// The contents of dump files. Nodes are shared with the snapshot; SL-to-VL tables take some
    /// nine bytes for each pair of a switch's ports.
    pub fn dump_job(&self, scope: DumpScope) -> DumpJob {
        use DumpFileKind::{
            Fdbs, FtreeCaOrder, Lfts, LidMatrix, Mcfdbs, SlToVl, Subnet, Torus, UpdnRoots,
        };
        let made = self.subnet.routing.made().filter(|_| scope != DumpScope::Multicast);
        let engine = made.map(|made| made.engine());
        let (routed, all) = (made.is_some(), scope == DumpScope::Routing);
        let wanted = [
            (LidMatrix, routed && all),
            (Lfts, routed && all),
            (Fdbs, routed && all),
            (Mcfdbs, scope != DumpScope::Links),
            (SlToVl, routed && all && self.subnet.needs_port_tables()),
            (UpdnRoots, all && engine == Some(UpDown::FromRoots.name())),
            (FtreeCaOrder, engine == Some(FTree.name())),
            (Torus, all && engine == Some(Torus2Qos.name())),
            (Subnet, routed),
        ];
        let wanted = wanted.into_iter().filter(|(_, is_wanted)| *is_wanted);
        let files: Vec<DumpFileKind> = wanted.map(|(file, _)| file).collect();
        let fabric = &self.subnet.fabric;
        let is_unicast = |file: &DumpFileKind| !matches!(file, Mcfdbs | SlToVl | Subnet);
        let unicast = made.filter(|_| files.iter().any(is_unicast)).map(|made| Unicast {
            made: Arc::clone(made),
            lfts: made.lfts(fabric),
            rosters: made
                .parts(made.switches())
                .map(|(_, part, _)| roster(part, fabric, &self.subnet.lids))
                .collect(),
        });
        let nodes = || {
            let named = |(node, row): (&Node, _)| NamedNode { row, label: node.label().cloned() };
            fabric.rows().map(named).collect()
        };
        DumpJob {
            unicast,
            mfts: if files.contains(&Mcfdbs) { fabric.multicast_tables() } else { Vec::new() },
            nodes: if files.contains(&Subnet) { nodes() } else { Vec::new() },
            maps: if files.contains(&SlToVl) { maps(fabric) } else { Vec::new() },
            files,
        }
    }
}

/// SL-to-VL maps that ports are known to hold, by end port in the order of the file (GUIDs read
/// from the last byte). Switch ports without a link are omitted.
fn maps(fabric: &Fabric) -> Vec<PortMaps> {
    let of = |index: PortIndex| {
        let (node, port) = (fabric.node_of(index), fabric.port(index));
        let in_ports = if node.switch.is_some() { 0..=node.port_count } else { 0..=0 };
        let held = |index: PortIndex| -> Vec<[u8; 8]> {
            let held = fabric.port(index).qos.as_deref();
            let map = |in_port| held.and_then(|held| held.map(in_port)).unwrap_or_default();
            in_ports.clone().map(map).collect()
        };
        let maps = match node.switch {
            Some(_) => {
                let ports = fabric.ports_of(port.node);
                let linked = ports.filter(|&out| fabric.port(out).peer().is_some());
                linked.map(|out| (fabric.port(out).num.0, held(out))).collect()
            }
            None => vec![(0, held(index))],
        };
        let (kind, guid, name) = (node.kind, port.guid, node.name());
        let (lid, _) = fabric.lids_of(index);
        PortMaps { kind, guid, lid, name, maps }
    };
    let mut all: Vec<PortMaps> = fabric.end_ports().map(of).collect();
    all.sort_by_key(|port| port.guid.0.swap_bytes());
    all
}

/// Names of the nodes in the routing.
fn roster(made: &ActiveRouting, fabric: &Fabric, lids: &LidTable) -> Roster {
    let name = |number| {
        let node = fabric.node(fabric.switch(made.switch(number)?).node);
        Some(SwitchName { guid: node.guid, name: node.name() })
    };
    let switches = made.topology().switches().filter_map(name).collect();
    let mut by_lid = HashMap::new();
    for port in fabric.end_ports() {
        let guid = fabric.port(port).guid;
        let Some(range) = lids.get(guid) else { continue };
        let node = fabric.node_of(port);
        by_lid.insert(range.first, EndName { guid, kind: node.kind, name: node.name() });
    }
    let no_owner = || EndName {
        guid: ib_mad::types::Guid(0),
        kind: ib_mad::wire::attribute::NodeType::Ca,
        name: String::new(),
    };
    let destinations = made.topology().destinations().iter();
    // Ports that disappeared since are still in the tables, but no longer have names.
    let ends =
        destinations.map(|to| by_lid.remove(&to.base_lid).unwrap_or_else(no_owner)).collect();
    Roster { switches, ends }
}

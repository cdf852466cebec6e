//! What the dump files of a sweep are made of. They are rendered by whoever writes them: the tables
//! of a large fabric are some hundred megabytes of text.

use std::collections::HashMap;
use std::sync::Arc;

use sa_proto::snapshot::{Lft, Mft};

use super::Sweeper;
use super::router::Made;
use crate::dump::{self, EndName, Roster, SwitchName, Tables};
use crate::fabric::Fabric;
use crate::manage::lid::LidTable;

/// What was configured, cut loose from the fabric, to be written as dump files.
#[derive(Debug)]
pub struct DumpJob {
    /// Unicast routing in force; `None` where only multicast tables changed, and where nothing was
    /// routed.
    unicast: Option<Unicast>,
    mfts: Vec<Arc<Mft>>,
}

#[derive(Debug)]
struct Unicast {
    made: Arc<Made>,
    lfts: Vec<Arc<Lft>>,
    roster: Roster,
    /// `opensm-subnet.lst`, in parts.
    links: Vec<String>,
}

/// What files there are, by the names that OpenSM gives them.
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
            Self::Subnet => "opensm-subnet.lst",
        }
    }
}

impl DumpJob {
    /// The files that are to be written.
    pub fn files(&self) -> &'static [DumpFileKind] {
        use DumpFileKind::{Fdbs, Lfts, LidMatrix, Mcfdbs, Subnet};
        match self.unicast {
            Some(_) => &[LidMatrix, Lfts, Fdbs, Mcfdbs, Subnet],
            None => &[Mcfdbs],
        }
    }

    /// Hands the parts of a file to `sink` in order, until it fails.
    pub fn render<E>(
        &self,
        file: DumpFileKind,
        mut sink: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        if file == DumpFileKind::Mcfdbs {
            let mut order: Vec<&Arc<Mft>> = self.mfts.iter().collect();
            order.sort_by_key(|mft| mft.switch.0.swap_bytes());
            return order.into_iter().try_for_each(|mft| sink(&dump::mcfdbs(mft)));
        }
        let Some(Unicast { made, lfts, roster, links }) = &self.unicast else { return Ok(()) };
        let lfts: Vec<&[u8]> = lfts.iter().map(|lft| lft.ports.as_slice()).collect();
        let (topology, hops) = (made.topology(), Some(made.distances()));
        let tables = Tables { topology, roster, lfts: &lfts, hops };
        let render = match file {
            DumpFileKind::Subnet => return links.iter().try_for_each(|part| sink(part)),
            DumpFileKind::LidMatrix => dump::lid_matrix,
            DumpFileKind::Lfts => dump::lfts,
            DumpFileKind::Fdbs | DumpFileKind::Mcfdbs => dump::fdbs,
        };
        tables.order().into_iter().try_for_each(|switch| sink(&render(&tables, switch)))
    }
}

impl Sweeper {
    /// What dump files are to tell: of all that is configured, or of multicast alone. Costs time in
    /// proportion to links, and a little memory for each.
    pub fn dump_job(&self, multicast_only: bool) -> DumpJob {
        let made = self.router.made().filter(|_| !multicast_only);
        let fabric = &self.fabric;
        let unicast = made.map(|made| Unicast {
            made: Arc::clone(made),
            lfts: made.lfts(fabric),
            roster: roster(made, fabric, &self.lids),
            links: {
                let order = dump::subnet_lst_order(fabric).into_iter();
                order.map(|node| dump::subnet_lst(fabric, node)).collect()
            },
        });
        DumpJob { unicast, mfts: fabric.multicast_tables() }
    }
}

/// The names of what was routed.
fn roster(made: &Made, fabric: &Fabric, lids: &LidTable) -> Roster {
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
    let nobody = || EndName {
        guid: ib_mad::types::Guid(0),
        kind: ib_mad::wire::attribute::NodeType::Ca,
        name: String::new(),
    };
    let destinations = made.topology().destinations().iter();
    // Ports that went since are still in the tables, and have no names any more.
    let ends = destinations.map(|to| by_lid.remove(&to.base_lid).unwrap_or_else(nobody)).collect();
    Roster { switches, ends }
}

//! Tables in force, as text in the formats of OpenSM's dump files.
//!
//! | file | content | renderer |
//! |---|---|---|
//! | `opensm.fdbs` | forwarding tables with hops | [`fdbs`] |
//! | `opensm-lfts.dump` | the same with names, for `lfts_file` | [`lfts`] |
//! | `opensm-lid-matrix.dump` | hops by port | [`lid_matrix`] |
//! | `opensm.mcfdbs` | multicast tables | [`mcfdbs`] |
//! | `opensm-subnet.lst` | links with both ends | [`SubnetList`] |
//! | `opensm-sl2vl.dump` | virtual lanes by service level | [`sl2vl`] |
//! | `opensm-updn-roots.dump` | the roots of `updn` | [`updn_roots`] |
//! | `opensm-ftree-ca-order.dump` | hosts in `ftree`'s order | [`ftree_ca_order`] |
//! | `opensm-torus.dump` | coordinates of switches in a torus | [`torus`] |
//!
//! Each is rendered switch by switch (or node by node), since the tables of a large fabric are
//! some hundred megabytes of text, in the order of OpenSM's on little-endian machines, so that
//! dumps of both can be compared line by line. Nothing here opens a file.

mod fdbs;
mod lfts;
mod lid_matrix;
mod mcfdbs;
mod orders;
mod sl2vl;
mod subnet_lst;
pub use fdbs::fdbs;
pub use lfts::lfts;
pub use lid_matrix::lid_matrix;
pub use mcfdbs::mcfdbs;
pub use orders::{ftree_ca_order, torus, updn_roots};
pub use sl2vl::{PortMaps, sl2vl};
pub use subnet_lst::{NamedNode, SubnetList};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::NodeType;

use sm_routing::{Destination, HopMatrix, NO_ROUTE, Topology};

/// GUID and name of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchName {
    /// Its node GUID.
    pub guid: Guid,
    /// NodeDescription.
    pub name: String,
}

/// GUID and name of an end port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndName {
    /// Port GUID; 0 if the port left the fabric.
    pub guid: Guid,
    /// Node type.
    pub kind: NodeType,
    /// NodeDescription.
    pub name: String,
}

/// Names of the switches and destinations of a topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// By number of the switch.
    pub switches: Vec<SwitchName>,
    /// By number of the destination.
    pub ends: Vec<EndName>,
}

/// Tables in force, for their dumps.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// The routed topology.
    pub topology: &'a Topology,
    /// Its names.
    pub roster: &'a Roster,
    /// By switch: the egress port by LID.
    pub lfts: &'a [&'a [u8]],
    /// Hops of the shortest paths; known for up to [`HopMatrix::SWITCHES_MAX`] switches.
    pub hops: Option<&'a HopMatrix>,
}

impl Tables<'_> {
    /// The switches in the order of the files: by node GUID read from its last byte.
    pub fn order(&self) -> Vec<u16> {
        let mut order: Vec<u16> = self.topology.switches().collect();
        order.sort_by_key(|&switch| self.switch(switch).map_or(0, |name| name.guid.0.swap_bytes()));
        order
    }

    fn switch(&self, number: u16) -> Option<&SwitchName> {
        self.roster.switches.get(usize::from(number))
    }

    /// The number of the destination with this LID.
    fn destination_at(&self, lid: Lid) -> Option<usize> {
        let all = self.topology.destinations();
        let after = all.partition_point(|to| to.base_lid <= lid);
        let found = after.checked_sub(1)?;
        (lid.0 - all[found].base_lid.0 < all[found].lid_count).then_some(found)
    }

    /// The destination with this LID.
    fn destination(&self, lid: Lid) -> Option<&Destination> {
        self.topology.destinations().get(self.destination_at(lid)?)
    }

    /// The LIDs of forwarding tables, except 0.
    fn lids(&self) -> impl Iterator<Item = Lid> + use<> {
        (1..=self.topology.last_lid().0).map(Lid)
    }

    fn port(&self, switch: u16, lid: Lid) -> u8 {
        let lft = self.lfts.get(usize::from(switch));
        lft.and_then(|lft| lft.get(lid.index())).copied().unwrap_or(NO_ROUTE)
    }

    /// Hops of the shortest path between two switches.
    fn distance(&self, from: u16, to: u16) -> Option<u32> {
        let hops = self.hops?.row(from)[usize::from(to)];
        (hops != HopMatrix::UNREACHABLE).then_some(hops.into())
    }
}

fn kind(kind: NodeType) -> &'static str {
    match kind {
        NodeType::Switch => "Switch",
        NodeType::Router => "Router",
        _ => "Channel Adapter",
    }
}

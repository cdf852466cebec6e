//! What an engine returns: forwarding tables, and what proves and describes them.

use std::sync::Arc;

use ib_mad::types::Lid;
use sa_proto::snapshot::Entries;

use crate::hops::HopMatrix;
use crate::lanes::Lanes;
use crate::tree::TreeTables;

/// The entry of a forwarding table for a LID that has no route.
pub const NO_ROUTE: u8 = 255;

/// Forwarding tables of all switches.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Name of the engine that computed them.
    pub engine: &'static str,
    /// By switch: the egress port by LID, in whole blocks of [`BLOCK_LEN`](crate::BLOCK_LEN) entries
    /// up to the topology's last LID; all of the same length. Unchanged tables are shared with the
    /// previous routing.
    pub lfts: Vec<Entries>,
    /// A number that falls at each step of a route, which proves that routes end. Rows are
    /// switches, columns egress switches. Engines with shortest paths store the remaining hops.
    pub hops: HopMatrix,
    /// The virtual lanes that routes take.
    pub lanes: Lanes,
    /// Number of pairs of a switch and a LID without a route.
    pub unreachable: u64,
    /// By link number of the topology: number of routes from hosts to hosts' LIDs. Empty if the
    /// engine has not counted them.
    pub loads: Vec<u32>,
    /// If the fabric was routed as a fat tree: the tables, with what they were computed from, so
    /// that the next ones are computed only where they differ.
    pub tree: Option<Arc<TreeTables>>,
}

/// Loads follow from the tables and are not compared, as what they were computed from.
impl PartialEq for Routing {
    fn eq(&self, other: &Self) -> bool {
        let Self { engine, lfts, hops, lanes, unreachable, loads: _, tree: _ } = self;
        (engine, lfts, hops, lanes, unreachable)
            == (&other.engine, &other.lfts, &other.hops, &other.lanes, &other.unreachable)
    }
}

impl Eq for Routing {}

impl Routing {
    /// The tables, by switch.
    pub fn tables(&self) -> Vec<&[u8]> {
        self.lfts.iter().map(|lft| &**lft).collect()
    }

    /// The egress port of a switch for a LID; [`NO_ROUTE`] beyond the tables.
    pub fn port(&self, switch: u16, lid: Lid) -> u8 {
        let lft = self.lfts.get(usize::from(switch));
        lft.and_then(|lft| lft.get(lid.index())).copied().unwrap_or(NO_ROUTE)
    }
}

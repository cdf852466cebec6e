//! Options that engines share, with GUIDs resolved to the numbers of a topology. Options of a
//! single engine are in its module.

use ib_mad::types::Lid;

/// Options that do not belong to one engine; the shared steps take no others. The default is that
/// of OpenSM without options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonOptions {
    /// Data VLs that all ports between switches have; 0 counts as 1.
    pub data_lanes: u8,
    /// By switch: its sort key where order must not depend on discovery (GUIDs, or the numbers of
    /// `ids_guid_file`); if empty, the switches' own numbers.
    pub switch_ids: Vec<u64>,
    /// By link number of the topology: its weight (`hop_weights_file`); if empty, 1 each.
    pub hop_weights: Vec<u16>,
    /// Base LIDs of compute nodes (`cn_guid_file`); `None`: all hosts.
    pub compute_nodes: Option<Vec<Lid>>,
    /// Base LIDs of I/O nodes (`io_guid_file`).
    pub io_nodes: Vec<Lid>,
    /// Base LIDs that are routed first, in this order (`guid_routing_order_file`).
    pub routing_order: Vec<Lid>,
    /// Whether LIDs of `routing_order` take ports in turn as well
    /// (`guid_routing_order_no_scatter`).
    pub ordered_take_turns: bool,
    /// How one of several equally good ports is chosen (`scatter_ports`, `port_shifting`).
    pub ties: Ties,
    /// By switch: its ports in order of preference (`port_search_ordering_file`); if empty,
    /// ascending.
    pub port_orders: Vec<Vec<u8>>,
    /// By link number of the topology: whether balancing ignores its load
    /// (`port_prof_ignore_file`); if empty, none is ignored.
    pub ignored_links: Vec<bool>,
}

/// How one of several equally good ports is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ties {
    /// In turn, from the lowest port, or from the first of the operator's order.
    #[default]
    InTurn,
    /// In turn, from a different port for each switch and LID, so that tables do not align.
    Shifted,
    /// In a pseudo-random order by switch and LID, from this seed.
    Scattered(u32),
}

impl Ties {
    /// Sorts ports of a switch, given in ascending order, into the order in which `lid` tries them.
    pub(super) fn arrange<T>(
        self,
        switch: u16,
        lid: Lid,
        ports: &mut [T],
        port: impl Fn(&T) -> u8,
    ) {
        match self {
            Self::InTurn => {}
            Self::Shifted if ports.is_empty() => {}
            Self::Shifted => {
                let turn = usize::from(switch) + lid.index();
                ports.rotate_left(turn % ports.len());
            }
            Self::Scattered(seed) => {
                let here = u64::from(seed) << 32 | u64::from(switch) << 16 | u64::from(lid.0);
                ports.sort_by_cached_key(|at| mixed(mixed(here) ^ u64::from(port(at))));
            }
        }
    }
}

/// Scrambles a number, by the finalizer of splitmix64.
pub(super) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

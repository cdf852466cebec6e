//! What operators' options say to routing engines, in the topology's own numbers.

use std::sync::Arc;

use ib_mad::types::{Guid, Lid};

use super::{Entries, HopMatrix, torus};

/// Choices that steer engines; each looks at those that concern it. The default is what OpenSM does
/// without options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Root switches (`root_guid_file`); empty: engines look for them.
    pub roots: Vec<u16>,
    /// Routes between roots are wanted though they go down and up again (`connect_roots`).
    pub connect_roots: bool,
    /// Base LIDs of compute nodes (`cn_guid_file`); `None`: all hosts.
    pub compute_nodes: Option<Vec<Lid>>,
    /// Base LIDs of I/O nodes (`io_guid_file`), which may be reached by going down and up.
    pub io_nodes: Vec<Lid>,
    /// How often a route to an I/O node may go the wrong way (`max_reverse_hops`).
    pub max_reverse_hops: u8,
    /// By switch: its rank in orders that must not depend on discovery (GUIDs, or numbers of
    /// `ids_guid_file`); empty: the switches' own numbers.
    pub switch_ids: Vec<u64>,
    /// Base LIDs to be routed first, in this order (`guid_routing_order_file`).
    pub routing_order: Vec<Lid>,
    /// By link as the topology numbers them: how dear it is (`hop_weights_file`); empty: 1 each.
    pub hop_weights: Vec<u16>,
    /// By switch: its ports in the order in which they are to be preferred
    /// (`port_search_ordering_file`); empty: ascending.
    pub port_orders: Vec<Vec<u8>>,
    /// By link as the topology numbers them: whether balancing counts no routes of it
    /// (`port_prof_ignore_file`); empty: all count.
    pub ignored_links: Vec<bool>,
    /// By switch: tables that `file` is to use, egress port by LID (`lfts_file`,
    /// [`Dump::resolve`](super::file::Dump::resolve)); empty: none is told.
    pub lfts: Vec<Entries>,
    /// Hops that `file` is to route by where it has no tables (`lid_matrix_dump_file`,
    /// [`HopDump::resolve`](super::file::HopDump::resolve)).
    pub hops: Option<Arc<HopMatrix>>,
    /// How one of several equally good ports is chosen (`scatter_ports`, `port_shifting`).
    pub ties: Ties,
    /// Whether those in `routing_order` take turns all the same (`guid_routing_order_no_scatter`).
    pub ordered_take_turns: bool,
    /// Data VLs that all ports between switches have; 0 counts as 1.
    pub data_lanes: u8,
    /// The most lanes that `nue` uses (`nue_max_num_vls`); 0: all.
    pub nue_lanes_max: u8,
    /// Whether `nue` takes switches for ends of traffic like hosts (`nue_include_switches`).
    pub nue_includes_switches: bool,
    /// The first lane that `lash` uses (`lash_start_vl`).
    pub lash_start_lane: u8,
    /// Whether `lash` looks for a mesh to order switches by (`do_mesh_analysis`).
    pub analyses_mesh: bool,
    /// By switch: its GUID; empty: the same as `switch_ids`.
    pub switch_guids: Vec<Guid>,
    /// The torus that `torus-2QoS` is to find (`torus_config`), whose seeds are told by
    /// `switch_guids`.
    pub torus: Option<Arc<torus::Config>>,
}

/// How one of several equally good ports is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ties {
    /// In turn, beginning with the lowest port, or the one that the operator names first.
    #[default]
    InTurn,
    /// In turn, beginning elsewhere for each switch and LID, so that tables do not align.
    Shifted,
    /// In an order of chance, from this seed, for each switch and LID.
    Scattered(u32),
}

impl Ties {
    /// Puts ports of a switch that are in order into the order in which they are chosen for `lid`.
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

/// A number that seems to have nothing to do with another, by the finalizer of splitmix64.
pub(super) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

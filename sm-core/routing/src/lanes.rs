//! Describes the virtual lanes by which an engine separates routes that would otherwise depend on
//! each other in a cycle.

pub mod dragonfly;
pub mod torus;
mod tree;

use std::fmt;
use std::sync::Arc;

use ib_mad::types::Lid;

use self::dragonfly::DragonflyLanes;
use self::torus::{QOS_SL, TorusLanes};
pub use self::tree::MasterTree;
use super::Topology;

/// How routes are assigned to virtual lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lanes {
    /// Any route may use any lane: the engine needs no lanes to avoid credit loops, or does not
    /// avoid them.
    #[default]
    Free,
    /// Each route is in one layer, whose number is its SL and its VL on every link.
    Layers(Layers),
    /// The SL of a route depends on its endpoints, and the VL at each switch on the ingress and
    /// egress port.
    Torus(Arc<TorusLanes>),
    /// Any SL may be used; the VL at each switch depends on the ingress and egress port.
    Dragonfly(Arc<DragonflyLanes>),
}

/// Largest number of lanes per QoS level where packets change lanes from hop to hop.
pub(crate) const LEVEL_LANES: u8 = 4;

/// Lanes between which packets change from hop to hop: the SL-to-VL tables of all ports.
pub trait HopLanes: fmt::Debug + Send + Sync {
    /// The VL on which a packet leaves a switch: the entry for its SL in the SL2VL table of this
    /// pair of ports. Port 0 is the switch itself.
    fn vl(&self, switch: u16, in_port: u8, out_port: u8, sl: u8) -> u8;

    /// The VLs, as a bit set, on which packets of an SL leave a switch by a port, wherever they
    /// came from.
    fn vls(&self, switch: u16, out_port: u8, sl: u8) -> u16;

    /// The VL on which a host with `data_lanes` data VLs sends.
    fn host_vl(&self, sl: u8, data_lanes: u8) -> u8;

    /// The place of a VL among those of its QoS level, below 4. All levels have the same routes.
    fn lane(&self, vl: u8) -> u8;

    /// The tree of which the trees of multicast groups are parts.
    fn tree(&self) -> &MasterTree;
}

impl Lanes {
    /// The lanes, if packets change between them from hop to hop.
    pub fn by_hop(&self) -> Option<Arc<dyn HopLanes>> {
        match self {
            Self::Free | Self::Layers(_) => None,
            Self::Torus(lanes) => Some(lanes.clone()),
            Self::Dragonfly(lanes) => Some(lanes.clone()),
        }
    }

    /// Whether routes are free of credit loops only with SL-to-VL tables that match.
    pub fn need_tables(&self) -> bool {
        !matches!(self, Self::Free)
    }

    /// Bits of a path's SL that the engine decides; the QoS policy decides the others.
    pub fn engine_sls(&self) -> u8 {
        match self {
            Self::Free | Self::Dragonfly(_) => 0,
            Self::Layers(_) => 0xF,
            Self::Torus(_) => QOS_SL - 1,
        }
    }

    /// The part of the SL that the engine decides, for the path from a switch or its hosts to a
    /// destination's LID.
    pub fn sl(&self, source: u16, egress_switch: u16, lid: Lid) -> u8 {
        match self {
            Self::Free | Self::Dragonfly(_) => 0,
            Self::Layers(layers) => layers.layer(source, egress_switch, lid),
            Self::Torus(torus) => torus.sl(source, egress_switch),
        }
    }

    /// SLs of all paths from a switch, indexed by LID, with the length of a forwarding table; 0 for
    /// LIDs that no port has.
    pub fn sls_from(&self, topology: &Topology, source: u16) -> Vec<u8> {
        let mut sls = vec![0; topology.table_len()];
        for destination in topology.destinations() {
            for lid in destination.lids() {
                sls[lid.index()] = self.sl(source, destination.egress_switch, lid);
            }
        }
        sls
    }
}

/// The layer of each route, by source switch and destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Number of layers, which are numbered from 0.
    pub count: u8,
    /// Number of columns per row.
    columns: usize,
    /// Meaning of a column.
    by: Columns,
    layers: Vec<u8>,
}

/// How a route's layer is indexed, in addition to its source switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// By the destination's egress switch.
    EgressSwitch,
    /// By the destination's LID.
    Lid,
}

impl Layers {
    /// Puts all routes in layer 0. `columns` is the number of switches or the table length.
    pub fn new(switches: usize, by: Columns, columns: usize) -> Self {
        Self { count: 1, columns, by, layers: vec![0; switches * columns] }
    }

    /// Copies the layers for tables of another length; new LIDs are in layer 0.
    pub(super) fn of_len(&self, table_len: usize) -> Self {
        if self.by == Columns::EgressSwitch {
            return self.clone();
        }
        let switches = self.layers.len() / self.columns.max(1);
        let mut layers = Self::new(switches, self.by, table_len);
        layers.count = self.count;
        for (switch, row) in (0u16..).zip(layers.layers.chunks_mut(table_len.max(1))) {
            let before = self.row(switch);
            let both = before.len().min(row.len());
            row[..both].copy_from_slice(&before[..both]);
        }
        layers
    }

    /// The layers of routes to a LID, by switch; empty if layers are not by LID.
    pub(super) fn of_lid(&self, lid: Lid) -> Vec<u8> {
        match self.by {
            Columns::EgressSwitch => Vec::new(),
            Columns::Lid => {
                let rows = self.layers.chunks(self.columns.max(1));
                rows.map(|row| row.get(lid.index()).copied().unwrap_or(0)).collect()
            }
        }
    }

    /// Sets the layers of routes to a LID, in the form of [`of_lid`](Self::of_lid).
    pub(super) fn set_lid(&mut self, lid: Lid, layers: &[u8]) {
        for (row, &layer) in self.layers.chunks_mut(self.columns.max(1)).zip(layers) {
            row[lid.index()] = layer;
        }
    }

    /// Meaning of a column.
    pub fn columns(&self) -> Columns {
        self.by
    }

    /// The layer of the route from a switch to a LID whose egress switch is `egress_switch`.
    #[inline]
    pub fn layer(&self, source: u16, egress_switch: u16, lid: Lid) -> u8 {
        let column = match self.by {
            Columns::EgressSwitch => usize::from(egress_switch),
            Columns::Lid => lid.index(),
        };
        self.row(source).get(column).copied().unwrap_or(0)
    }

    /// Layers of all routes from a switch, by column.
    #[inline]
    pub fn row(&self, source: u16) -> &[u8] {
        &self.layers[usize::from(source) * self.columns..][..self.columns]
    }

    /// Mutable access to the layers of all routes from a switch, by column.
    #[inline]
    pub fn row_mut(&mut self, source: u16) -> &mut [u8] {
        &mut self.layers[usize::from(source) * self.columns..][..self.columns]
    }
}

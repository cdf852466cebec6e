//! Virtual lanes: where an engine keeps routes apart that would wait for each other in circles.

use std::sync::Arc;

use ib_mad::types::Lid;

use super::Topology;
use super::torus::{QOS_SL, TorusLanes};

/// The virtual lanes that routes take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lanes {
    /// Any route may take any: the engine needs none to be free of credit loops, or promises
    /// nothing.
    #[default]
    Free,
    /// Each route keeps to a lane, its layer, which is its SL and its VL on every link.
    Layers(Layers),
    /// Each route has an SL by its ends, and at each switch a VL by the ports that it comes and
    /// goes by.
    Torus(Arc<TorusLanes>),
}

impl Lanes {
    /// Bits of a path's SL that the engine decides; the others are policy's.
    pub fn engine_sls(&self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Layers(_) => 0xF,
            Self::Torus(_) => QOS_SL - 1,
        }
    }

    /// The SL of the path from a switch, or its hosts, to a destination's LID, as far as the engine
    /// decides it.
    pub fn sl(&self, source: u16, home: u16, lid: Lid) -> u8 {
        match self {
            Self::Free => 0,
            Self::Layers(layers) => layers.layer(source, home, lid),
            Self::Torus(torus) => torus.sl(source, home),
        }
    }

    /// The SLs of all paths from a switch, by LID, as long as a forwarding table; 0 for LIDs that
    /// nobody has.
    pub fn sls_from(&self, topology: &Topology, source: u16) -> Vec<u8> {
        let mut sls = vec![0; topology.table_len()];
        for destination in topology.destinations() {
            for lid in destination.lids() {
                sls[lid.index()] = self.sl(source, destination.home, lid);
            }
        }
        sls
    }
}

/// Layers by source switch and destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// How many there are: layers are numbered from 0.
    pub count: u8,
    /// Columns a row.
    columns: usize,
    /// What a column stands for.
    by: Columns,
    layers: Vec<u8>,
}

/// What decides on a route's layer besides its source switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// The destination's home switch.
    HomeSwitch,
    /// The destination's LID.
    Lid,
}

impl Layers {
    /// All routes in layer 0. `columns` is the number of switches, or a table's length.
    pub fn new(switches: usize, by: Columns, columns: usize) -> Self {
        Self { count: 1, columns, by, layers: vec![0; switches * columns] }
    }

    /// The same for tables of another length; LIDs that are new have layer 0.
    pub(super) fn of_len(&self, table_len: usize) -> Self {
        if self.by == Columns::HomeSwitch {
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
            Columns::HomeSwitch => Vec::new(),
            Columns::Lid => {
                let rows = self.layers.chunks(self.columns.max(1));
                rows.map(|row| row.get(lid.index()).copied().unwrap_or(0)).collect()
            }
        }
    }

    /// Sets them, as [`of_lid`](Self::of_lid) told them.
    pub(super) fn set_lid(&mut self, lid: Lid, layers: &[u8]) {
        for (row, &layer) in self.layers.chunks_mut(self.columns.max(1)).zip(layers) {
            row[lid.index()] = layer;
        }
    }

    /// What a column stands for.
    pub fn columns(&self) -> Columns {
        self.by
    }

    /// The layer of the route from a switch to a LID whose home switch is `home`.
    #[inline]
    pub fn layer(&self, source: u16, home: u16, lid: Lid) -> u8 {
        let column = match self.by {
            Columns::HomeSwitch => usize::from(home),
            Columns::Lid => lid.index(),
        };
        self.row(source).get(column).copied().unwrap_or(0)
    }

    /// Layers of all routes from a switch, by column.
    #[inline]
    pub fn row(&self, source: u16) -> &[u8] {
        &self.layers[usize::from(source) * self.columns..][..self.columns]
    }

    /// The same, to be filled in.
    #[inline]
    pub fn row_mut(&mut self, source: u16) -> &mut [u8] {
        &mut self.layers[usize::from(source) * self.columns..][..self.columns]
    }
}

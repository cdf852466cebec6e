//! Routes tori and meshes of up to three dimensions in dimension order, with two levels of quality
//! of service, as OpenSM's `torus-2QoS` does (torus-2QoS(8)).
//!
//! The fabric has no coordinates; they are derived from the seeds in `torus-2QoS.conf`
//! ([`Config`]). Routes go along x, then y, then z, each the shorter way round its ring. A path's
//! SL encodes which datelines it crosses, and SL2VL tables by input and output port map it to a
//! lane in which no ring closes ([`TorusLanes`]). On a ring with a broken link routes go the other
//! way round, and they pass a missing switch by turning early, without a change of SLs. Fabrics
//! that cannot be routed so are refused: those with a ring in pieces, or with missing switches that
//! are not in a row along the last axis.
//!
//! Routes depend only on coordinates. They stay unless something on their path changes, so
//! `previous` is not used. Parallel links are assigned to a destination by its index among the LIDs
//! of its switch and by that switch's coordinates, so that LIDs of a port take different links.
//!
//! Differences from OpenSM: switches that are not part of the torus are a reason to refuse; half
//! way round an even ring both directions are used, not only the one that crosses no dateline;
//! paths in a mesh cross no datelines; too few data VLs are a reason to refuse where there would be
//! credit loops.
//!
//! Cost: switches × LIDs for tables; switches² for hops. If something is missing, each of the
//! switches² routes is followed once more to prove that there are no credit loops.

mod config;
mod grid;
mod place;
mod proof;
mod rings;
mod routes;
mod tree;

pub use crate::error::Refusal;
pub use crate::lanes::torus::{AXES, MasterTree, QOS_SL, Shape, TorusLanes};
pub use config::{Config, ConfigError, ConfigErrorKind, Seed};

use std::sync::Arc;

use ib_mad::types::Guid;

use self::grid::Grid;
use self::rings::Rings;
use crate::lanes::torus::TURN_LANES;
use crate::{Engine, Lanes, Previous, Reason, Routing, RoutingError, Steering, Topology};

/// Options of `torus-2QoS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The torus to look for (`torus_config`); its seeds name switches of `switch_guids`.
    pub config: Option<Arc<Config>>,
    /// By switch: its GUID; empty: its key in `switch_ids` of the common options.
    pub switch_guids: Vec<Guid>,
}

/// The engine `torus-2QoS`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Torus2Qos;

impl Engine for Torus2Qos {
    fn name(&self) -> &'static str {
        "torus-2QoS"
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        _: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        super::hops::check_size(self.name(), topology)?;
        let lanes = steering.common.data_lanes.max(1);
        let routed = self.routed(topology, steering, lanes);
        routed.map_err(|reason| reason.of(self.name()))
    }
}

impl Torus2Qos {
    fn routed(
        &self,
        topology: &Topology,
        steering: &Steering,
        data_lanes: u8,
    ) -> Result<Routing, Reason> {
        let config =
            steering.torus.config.as_deref().ok_or(Refusal::NoConfig).map_err(Reason::Torus)?;
        let places = place::places(topology, config, &guids(topology, steering));
        let grid = Grid::new(topology, config.shape, places.map_err(Reason::Torus)?);
        grid.check().map_err(Reason::Torus)?;
        if data_lanes < 2 && (0..AXES).any(|axis| config.shape.wraps(axis)) {
            return Err(Reason::TooFewLanes { lanes: data_lanes });
        }
        let rings = Rings::new(&grid);
        let hops = routes::hops(&grid, &rings).map_err(Reason::Torus)?;
        let tree = tree::grow(topology, &grid).map_err(Reason::Torus)?;
        if !grid.is_whole() && !proof::is_free_of_loops(topology, &grid, &rings, &tree, data_lanes)
        {
            let is_short = data_lanes < TURN_LANES;
            return Err(if is_short {
                Reason::TooFewLanes { lanes: data_lanes }
            } else {
                Reason::Torus(Refusal::CreditLoop)
            });
        }
        let lfts = routes::tables(topology, &grid, &rings, &config.port_order);
        let ports = |switch, direction| grid.ports(switch, direction);
        let places = (grid.shape, grid.at.clone());
        let lanes = TorusLanes::new(topology, places, ports, data_lanes, tree);
        Ok(Routing {
            engine: self.name(),
            lfts,
            hops,
            lanes: Lanes::Torus(Arc::new(lanes)),
            unreachable: 0,
            loads: Vec::new(),
            tree: None,
        })
    }
}

/// By switch: its GUID; without GUIDs, ids or numbers.
fn guids(topology: &Topology, steering: &Steering) -> Vec<Guid> {
    if steering.torus.switch_guids.len() == topology.switch_count() {
        return steering.torus.switch_guids.clone();
    }
    let id = |switch: u16| steering.common.switch_ids.get(usize::from(switch)).copied();
    topology.switches().map(|switch| Guid(id(switch).unwrap_or(switch.into()))).collect()
}

#[cfg(test)]
mod tests;

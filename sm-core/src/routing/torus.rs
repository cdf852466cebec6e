//! Tori and meshes of up to three dimensions, in the order of dimensions and with two levels of
//! quality of service: OpenSM's `torus-2QoS` (torus-2QoS(8)).
//!
//! The fabric has no coordinates; they are found from the seeds in `torus-2QoS.conf` ([`Config`]).
//! Routes go along x, then y, then z, each the shorter way round its ring. A path's SL tells which
//! datelines it crosses, and SL2VL tables by input and output port make of that a lane in which no
//! ring closes ([`TorusLanes`]). A ring with a broken link is gone round the other way, and a
//! missing switch is passed by turning early, without any change of SLs. What cannot be routed so
//! is refused: rings in pieces, and switches missing that are not in a row along the last axis.
//!
//! Routes follow from places alone. While nothing on their way changes they stay, so that
//! `previous` is not looked at. Of parallel links, a destination's are dealt by its place among the
//! LIDs of its switch, and by where that is, so that LIDs of a port take different ones.
//!
//! Unlike OpenSM: switches that are no part of the torus are a reason to refuse; half way round an
//! even ring both ways are used, not only the one that crosses no dateline; paths in a mesh cross
//! no datelines; too few data VLs are a reason to refuse where there would be credit loops.
//!
//! Cost: switches × LIDs for tables; for hops, switches². If something is missing, each route of
//! switches² is followed once more to prove that there are no credit loops.

mod config;
mod grid;
mod lanes;
mod place;
mod proof;
mod refusal;
mod rings;
mod routes;
mod shape;
mod tree;

pub use config::{Config, ConfigError, ConfigErrorKind, Seed};
pub use lanes::{QOS_SL, TorusLanes};
pub use shape::{AXES, Shape};
pub use tree::MasterTree;

use std::sync::Arc;

use ib_mad::types::Guid;

use self::grid::Grid;
use self::refusal::Refusal;
use self::rings::Rings;
use super::{Engine, HopMatrix, Lanes, Previous, Routing, RoutingError, Steering, Topology};

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
        HopMatrix::check_size(self.name(), topology)?;
        let lanes = steering.data_lanes.max(1);
        self.routed(topology, steering, lanes).map_err(|refusal| match refusal {
            Refusal::TooFewLanes => RoutingError::TooFewLanes { engine: self.name(), lanes },
            _ => RoutingError::Unsuitable { engine: self.name(), reason: refusal.to_string() },
        })
    }
}

impl Torus2Qos {
    fn routed(
        &self,
        topology: &Topology,
        steering: &Steering,
        data_lanes: u8,
    ) -> Result<Routing, Refusal> {
        let config = steering.torus.as_deref().ok_or(Refusal::NoConfig)?;
        let places = place::places(topology, config, &guids(topology, steering))?;
        let grid = Grid::new(topology, config.shape, places);
        grid.check()?;
        if data_lanes < 2 && (0..AXES).any(|axis| config.shape.wraps(axis)) {
            return Err(Refusal::TooFewLanes);
        }
        let rings = Rings::new(&grid);
        let hops = routes::hops(&grid, &rings)?;
        let tree = MasterTree::grow(topology, &grid)?;
        if !grid.is_whole() && !proof::is_free_of_loops(topology, &grid, &rings, &tree, data_lanes)
        {
            let is_short = data_lanes < lanes::TURN_LANES;
            return Err(if is_short { Refusal::TooFewLanes } else { Refusal::CreditLoop });
        }
        let lfts = routes::tables(topology, &grid, &rings, &config.port_order);
        let lanes = TorusLanes::new(topology, &grid, data_lanes, tree);
        Ok(Routing {
            engine: self.name(),
            lfts,
            hops,
            lanes: Lanes::Torus(Arc::new(lanes)),
            unreachable: 0,
            loads: Vec::new(),
        })
    }
}

/// By switch; without GUIDs, their ids or numbers.
fn guids(topology: &Topology, steering: &Steering) -> Vec<Guid> {
    if steering.switch_guids.len() == topology.switch_count() {
        return steering.switch_guids.clone();
    }
    let id = |switch: u16| steering.switch_ids.get(usize::from(switch)).copied();
    topology.switches().map(|switch| Guid(id(switch).unwrap_or(switch.into()))).collect()
}

#[cfg(test)]
mod tests;

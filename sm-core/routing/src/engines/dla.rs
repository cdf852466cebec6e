//! Routes dragonflies and Dragonfly+: in the group of the source to a link between groups, over it,
//! and in the group of the destination to its switch, with two virtual lanes on one SL.
//!
//! After Maglione-Mathey, Yebenes, Escudero-Sahuquillo, Garcia, Quiles, Zahavi: "Scalable
//! Deadlock-Free Deterministic Minimal-Path Routing Engine for InfiniBand-Based Dragonfly Networks"
//! (IEEE TPDS 29(1), 2018). Dragonfly+ is that of Shpiner, Haramaty, Eliad, Zdornov, Gafni, Zahavi:
//! "Dragonfly+: Low Cost Topology for Scaling Datacenters" (HiPINEB 2017).
//!
//! Groups are found by how switches are linked ([`groups`]). A packet changes from lane 0 to lane 1
//! when it has crossed a link between groups and goes on within the group: the SL-to-VL table of
//! each pair of ports has the lane ([`DragonflyLanes`]). So packets that wait for a link between
//! groups never wait for those that have crossed one, in a fabric of any size. All paths have one
//! SL, so replies on the SL of their requests take the lanes that were proved.
//!
//! Of parallel links between two groups each LID takes the least loaded ([`deal`]).
//!
//! Where links or switches are missing:
//!
//! - two switches of a group that are not linked reach each other by a third one. The two turns,
//!   towards another group and from it, are by different switches, as a table by ports cannot
//!   distinguish them ([`turns`]);
//! - a group that is not linked to the destination's is left for a third group that is linked to
//!   all others. Such groups are never destinations of such routes, so that these close no cycle.
//!
//! The engine refuses a fabric in which that leaves hosts without a route. Routes to and from
//! switches themselves are not part of the proof, and may be missing.
//!
//! Link weights and orders of ports are not used, and the previous routing only when hosts come and
//! go ([`hosts`](crate::hosts)).

mod deal;
mod groups;
mod paths;
mod tree;
mod turns;

use std::sync::Arc;

use self::groups::Groups;
use self::paths::Paths;
use self::turns::Turns;
use crate::error::DragonflyRefusal;
use crate::lanes::MasterTree;
use crate::lanes::dragonfly::{DragonflyLanes, LANES};
use crate::{Engine, Lanes, Previous, Reason, Routing, RoutingError, Steering, Topology, verify};

/// The engine `dla`. Takes time proportional to switches times links, plus LIDs times switches
/// times the links between two groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dla;

impl Engine for Dla {
    fn name(&self) -> &'static str {
        "dla"
    }

    fn keeps_routes(&self, _steering: &Steering) -> bool {
        false
    }

    fn route(
        &self,
        topology: &Topology,
        steering: &Steering,
        _: Option<&Previous<'_>>,
    ) -> Result<Routing, RoutingError> {
        super::hops::check_size(self.name(), topology)?;
        self.routed(topology, steering).map_err(|reason| reason.of(self.name()))
    }
}

impl Dla {
    fn routed(&self, topology: &Topology, steering: &Steering) -> Result<Routing, Reason> {
        let groups = Groups::find(topology).map_err(Reason::Dragonfly)?;
        let data_lanes = steering.common.data_lanes.max(1);
        if data_lanes < LANES {
            return Err(Reason::TooFewLanes { lanes: data_lanes });
        }
        let mut paths = Paths::new(topology, &groups);
        let dealt = deal::deal(topology, &steering.common, &mut paths);
        let dealt = dealt.map_err(Reason::Dragonfly)?;
        let tree = tree::grow(topology, &groups, paths.turns());
        let is_plain = paths.turns().are_plain();
        let lanes = lanes(topology, &groups, paths.turns(), data_lanes, tree);
        let routing = Routing {
            engine: self.name(),
            lfts: dealt.lfts,
            hops: dealt.hops,
            lanes: Lanes::Dragonfly(Arc::new(lanes)),
            unreachable: dealt.unreachable,
            loads: dealt.loads,
            tree: None,
        };
        // Detours were admitted one by one; this is their sum.
        if !is_plain && !verify::credit_loops_on_lanes(topology, &routing).is_free() {
            return Err(Reason::Dragonfly(DragonflyRefusal::CreditLoop));
        }
        Ok(routing)
    }
}

/// The lanes of all pairs of ports.
fn lanes(
    topology: &Topology,
    groups: &Groups,
    turns: &Turns,
    data_lanes: u8,
    tree: MasterTree,
) -> DragonflyLanes {
    let has_turns = turns.has_second();
    let mut second = Vec::new();
    for switch in topology.switches() {
        let links = || topology.links(switch).iter().zip(topology.link_range(switch));
        for (link, _) in links() {
            let Some(into) = topology.link_at(link.peer, link.peer_port) else { continue };
            let is_own = groups.are_one(switch, link.peer);
            if is_own && !has_turns {
                continue;
            }
            let own = links().filter(|(next, _)| groups.are_one(switch, next.peer));
            let own =
                own.map(|(_, next)| next).filter(|&next| !is_own || turns.is_second(into, next));
            second.extend(own.map(|next| (into, next)));
        }
    }
    DragonflyLanes::new(topology, second, data_lanes, tree)
}

#[cfg(test)]
mod tests;

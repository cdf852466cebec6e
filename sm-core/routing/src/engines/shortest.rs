//! Routing along shortest paths for `minhop` and `dor`, by hops or by the operator's link weights
//! (`hop_weights_file`).

use super::sssp::Distances;
use crate::deal::{Candidate, Dealt, PathRules, deal};
use crate::relief::relieve_draft;
use crate::repair::{repair_by_hops, settle};
use crate::tree::{self, Tree};
use crate::{CommonOptions, Lanes, Previous, Routing, RoutingError, Topology};

/// Routes all destinations along those shortest paths that `path_rules` allow.
pub(super) fn route_shortest<W: PathRules + Sync>(
    engine: &'static str,
    topology: &Topology,
    common: &CommonOptions,
    previous: Option<&Previous<'_>>,
    path_rules: &W,
) -> Result<Routing, RoutingError> {
    if !common.hop_weights.is_empty() {
        return route_cheapest(engine, topology, common, path_rules);
    }
    let hops = super::hops::compute(engine, topology, previous)?;
    let tree = if W::NARROWS { None } else { Tree::find(topology, common) };
    if let Some(tree) = tree.as_ref().filter(|_| !tree::is_found(previous)) {
        let Dealt { lfts, unreachable, loads, tree } =
            tree.route(topology, &hops, previous, |_| path_rules);
        return Ok(Routing { engine, lfts, hops, lanes: Lanes::Free, unreachable, loads, tree });
    }
    let repaired =
        previous.and_then(|previous| repair_by_hops(topology, &hops, previous, |_| path_rules));
    let route_afresh = || {
        if let Some(tree) = &tree {
            return tree.route(topology, &hops, None, |_| path_rules);
        }
        let draft = deal(topology, common, &hops, |_| path_rules);
        relieve_draft(draft, topology, common, &hops, |_| path_rules)
    };
    let Dealt { lfts, unreachable, loads, tree } =
        settle(topology, previous, &hops, |_| path_rules, repaired, route_afresh);
    Ok(Routing { engine, lfts, hops, lanes: Lanes::Free, unreachable, loads, tree })
}

/// Routes all destinations along the cheapest paths by weight, keeping no previous routes. The
/// number that falls along a route is then the largest hop count of any of the cheapest paths,
/// which can differ between the directions A to B and B to A.
fn route_cheapest(
    engine: &'static str,
    topology: &Topology,
    common: &CommonOptions,
    path_rules: &impl PathRules,
) -> Result<Routing, RoutingError> {
    let distances = || Distances::new(engine, topology, common);
    let mut all = distances()?;
    topology.switches().for_each(|egress_switch| {
        all.to(egress_switch);
    });
    let mut hops = all.finish();
    hops.transpose();
    let mut distances = distances()?;
    let cheapest = |egress_switch| Cheapest {
        path_rules,
        costs: distances.to(egress_switch).costs().to_vec(),
        weights: &common.hop_weights,
    };
    let Dealt { lfts, unreachable, loads, tree } = deal(topology, common, &hops, cheapest).keep();
    hops.transpose();
    Ok(Routing { engine, lfts, hops, lanes: Lanes::Free, unreachable, loads, tree })
}

/// Rules that allow all links on cheapest paths.
struct Cheapest<'a, W> {
    path_rules: &'a W,
    /// By switch: the sum of weights to the current egress switch.
    costs: Vec<u32>,
    /// Weights by link.
    weights: &'a [u16],
}

impl<W: PathRules> PathRules for Cheapest<'_, W> {
    const NARROWS: bool = W::NARROWS;

    fn is_closer(&self, closer: u8, there: u8, switch: u16, link: u32, peer: u16) -> bool {
        let cost = |switch: u16| self.costs[usize::from(switch)];
        let weight = u32::from(self.weights[link as usize].max(1));
        there <= closer && cost(peer).checked_add(weight) == Some(cost(switch))
    }

    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        self.path_rules.allow(switch, link, peer)
    }

    fn narrow(&self, switch: u16, candidates: &mut Vec<Candidate>, first: usize) {
        self.path_rules.narrow(switch, candidates, first);
    }
}

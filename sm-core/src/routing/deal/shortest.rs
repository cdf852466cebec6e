//! Dealing along shortest ways, by hops or by operators' weights of them (`hop_weights_file`).

use super::super::repair::{repair_by_hops, settle};
use super::super::sssp::Distances;
use super::super::{HopMatrix, Lanes, Previous, Routing, RoutingError, Steering, Topology};
use super::{Candidate, Dealt, Ways, deal};

/// Routes all destinations along shortest ways, as far as `ways` take them.
pub(in crate::routing) fn deal_shortest(
    engine: &'static str,
    topology: &Topology,
    steering: &Steering,
    previous: Option<&Previous<'_>>,
    ways: &(impl Ways + Sync),
) -> Result<Routing, RoutingError> {
    if !steering.hop_weights.is_empty() {
        return deal_cheapest(engine, topology, steering, ways);
    }
    let hops = HopMatrix::compute_for(engine, topology, previous)?;
    let repaired =
        previous.and_then(|previous| repair_by_hops(topology, &hops, previous, |_| ways));
    let anew = || {
        let draft = deal(topology, steering, &hops, |_| ways);
        draft.relieve(topology, steering, &hops, |_| ways)
    };
    let Dealt { lfts, unreachable, loads } =
        settle(topology, previous, &hops, |_| ways, repaired, anew);
    Ok(Routing { engine, lfts, hops, lanes: Lanes::Free, unreachable, loads })
}

/// The same by weights, which keep nothing of routes before. What falls along a route is then the most hops of any of the cheapest ways,
/// which may differ from switch A to B and back.
fn deal_cheapest(
    engine: &'static str,
    topology: &Topology,
    steering: &Steering,
    ways: &impl Ways,
) -> Result<Routing, RoutingError> {
    let distances = || Distances::new(engine, topology, steering);
    let mut all = distances()?;
    topology.switches().for_each(|home| {
        all.to(home);
    });
    let mut hops = all.finish();
    hops.transpose();
    let mut distances = distances()?;
    let cheapest = |home| Cheapest {
        ways,
        costs: distances.to(home).costs().to_vec(),
        weights: &steering.hop_weights,
    };
    let Dealt { lfts, unreachable, loads } = deal(topology, steering, &hops, cheapest).keep();
    hops.transpose();
    Ok(Routing { engine, lfts, hops, lanes: Lanes::Free, unreachable, loads })
}

/// Whatever is on a cheapest way.
struct Cheapest<'a, W> {
    ways: &'a W,
    /// By switch: the sum of weights to the home at hand.
    costs: Vec<u32>,
    /// By link.
    weights: &'a [u16],
}

impl<W: Ways> Ways for Cheapest<'_, W> {
    const NARROWS: bool = W::NARROWS;

    fn is_closer(&self, closer: u8, there: u8, switch: u16, link: u32, peer: u16) -> bool {
        let cost = |switch: u16| self.costs[usize::from(switch)];
        let weight = u32::from(self.weights[link as usize].max(1));
        there <= closer && cost(peer).checked_add(weight) == Some(cost(switch))
    }

    fn allow(&self, switch: u16, link: u32, peer: u16) -> bool {
        self.ways.allow(switch, link, peer)
    }

    fn narrow(&self, switch: u16, candidates: &mut Vec<Candidate>, first: usize) {
        self.ways.narrow(switch, candidates, first);
    }
}

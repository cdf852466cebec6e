//! Runs one engine on one site: computes, verifies and evaluates its tables.

use std::time::Duration;

use super::broadcast::Broadcast;
use super::clock::timed;
use super::site::Site;
use super::survey::Survey;
use sm_routing::balance::{LinkLoads, Spread};
use sm_routing::measure::{Effort, Figures, Groups, Pattern, Plane, Qualities};
use sm_routing::verify::{self, CreditLoops, Deliveries};
use sm_routing::{DisplayWith, Engine, Lanes, Previous, Routing, RoutingError, Steering, Topology};

/// The result of an engine on a site.
#[derive(Debug)]
pub struct Trial {
    /// The engine.
    pub engine: &'static str,
    /// CPU time of routing, also if the engine refused.
    pub route_time: Duration,
    /// The tables, or the reason for refusal.
    pub outcome: Result<Made, String>,
}

/// The traffic that tables are measured with.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Hosts in the order of patterns.
    pub hosts: Groups,
    /// How much is measured.
    pub effort: Effort,
}

/// Tables and their evaluation.
#[derive(Debug)]
pub struct Made {
    /// The tables.
    pub routing: Routing,
    /// CPU time of `deliveries` and `loops` together: the cost of verification in a subnet manager.
    pub proof_time: Duration,
    /// Whether all entries deliver.
    pub deliveries: Deliveries,
    /// Credit loops of the routing.
    pub loops: CreditLoops,
    /// The same with replies on the SLs of their requests; `None` if these add nothing.
    pub reply_loops: Option<CreditLoops>,
    /// The broadcast tree alongside the routing, if there is one.
    pub broadcast: Option<Broadcast>,
    /// Lengths of routes.
    pub survey: Survey,
    /// Routes between hosts by link, one per host and LID.
    pub spread: Spread,
    /// What applications feel.
    pub quality: Qualities,
    /// Number of data VLs that routes use.
    pub lanes: u8,
    /// Smallest number of data VLs with which the engine routes the site.
    pub lanes_needed: u8,
}

impl Traffic {
    /// Measures tables.
    pub fn measure(&self, topology: &Topology, routing: &Routing) -> Qualities {
        Qualities::of(topology, &routing.tables(), &self.hosts, self.effort)
    }

    /// The bandwidth of patterns of one kind, with base LIDs.
    pub fn bandwidth(&self, topology: &Topology, routing: &Routing, pattern: Pattern) -> f64 {
        let (tables, plane) = (routing.tables(), Plane::Base);
        Figures::measure(topology, &tables, &self.hosts, plane, self.effort, pattern).bandwidth
    }
}

impl Trial {
    /// Routes a site with an engine and evaluates the result.
    pub fn run(engine: &dyn Engine, site: &Site, steering: &Steering, traffic: &Traffic) -> Self {
        let (routed, route_time) = timed(|| engine.route(&site.topology, steering, None));
        let outcome = match routed {
            Ok(routing) => {
                let mut made = Made::of(site, routing, traffic);
                made.lanes_needed = fewest_lanes(engine, site, steering, made.lanes);
                Ok(made)
            }
            Err(reason) => Err(in_words(site, &reason)),
        };
        Self { engine: engine.name(), route_time, outcome }
    }
}

impl Made {
    fn of(site: &Site, routing: Routing, traffic: &Traffic) -> Self {
        let topology = &site.topology;
        let ((deliveries, loops), proof_time) = timed(|| {
            let deliveries = verify::deliveries(topology, &routing);
            (deliveries, verify::credit_loops_on_lanes(topology, &routing))
        });
        Self {
            proof_time,
            deliveries,
            broadcast: Broadcast::of(topology, &routing),
            survey: Survey::of(topology, &routing),
            spread: Spread::of(&LinkLoads::count(topology, &routing).to_hosts),
            reply_loops: verify::credit_loops_with_replies(
                topology,
                &routing.tables(),
                &routing.lanes,
            ),
            quality: traffic.measure(topology, &routing),
            lanes: lanes_of(&routing, &loops),
            lanes_needed: 1,
            loops,
            routing,
        }
    }

    /// Whether requests are free of deadlocks, and replies on their SLs are not.
    pub fn only_replies_deadlock(&self) -> bool {
        let replies = self.reply_loops.as_ref();
        self.loops.is_free() && replies.is_some_and(|loops| !loops.is_free())
    }

    /// The tables as a previous routing, for switches that now have other numbers.
    pub fn before<'a>(&'a self, site: &'a Site, switches: Vec<Option<u16>>) -> Previous<'a> {
        Previous { switches, ..Previous::same_switches(&site.topology, &self.routing) }
    }
}

/// The smallest number of data VLs with which an engine routes a site that it routes with `enough`.
/// Engines use all VLs to spread routes. More VLs never make an engine refuse.
fn fewest_lanes(engine: &dyn Engine, site: &Site, steering: &Steering, enough: u8) -> u8 {
    let (mut least, mut enough) = (1, enough);
    while least < enough {
        let data_lanes = least.midpoint(enough);
        let mut fewer = steering.clone();
        fewer.common.data_lanes = data_lanes;
        match engine.route(&site.topology, &fewer, None) {
            Ok(_) => enough = data_lanes,
            Err(_) => least = data_lanes + 1,
        }
    }
    enough
}

/// Number of data VLs that routes use.
pub(super) fn lanes_of(routing: &Routing, loops: &CreditLoops) -> u8 {
    match &routing.lanes {
        Lanes::Free => 1,
        Lanes::Layers(layers) => layers.count,
        Lanes::Torus(_) | Lanes::Dragonfly(_) => loops.lanes,
    }
}

/// Why an engine cannot route a site, with switches by name and without the engine's name.
pub(super) fn in_words(site: &Site, error: &RoutingError) -> String {
    error.reason.display_with(&|switch| site.switch_label(switch)).to_string()
}

//! One engine on one site: its tables, whether they are right, and how good they are.

use std::time::Duration;

use super::broadcast::Broadcast;
use super::clock::timed;
use super::site::Site;
use super::survey::Survey;
use crate::routing::balance::{LinkLoads, Spread};
use crate::routing::verify::{self, CreditLoops, Deliveries};
use crate::routing::{Engine, Lanes, Previous, Routing, RoutingError, Steering};

/// What an engine made of a site.
#[derive(Debug)]
pub struct Trial {
    /// The engine.
    pub engine: &'static str,
    /// CPU time of routing, or of finding out that it cannot be done.
    pub route_time: Duration,
    /// Its tables, or why there are none.
    pub outcome: Result<Made, String>,
}

/// Tables, and what was found out about them.
#[derive(Debug)]
pub struct Made {
    /// The tables.
    pub routing: Routing,
    /// CPU time of `deliveries` and `loops` together: what a subnet manager spends on not having to
    /// believe the engine.
    pub proof_time: Duration,
    /// Whether all entries lead where they should.
    pub deliveries: Deliveries,
    /// Whether packets can wait for each other in circles.
    pub loops: CreditLoops,
    /// The tree of the group of all hosts beside it, if there is one.
    pub broadcast: Option<Broadcast>,
    /// Lengths of routes.
    pub survey: Survey,
    /// Routes between hosts by link, one a host and LID.
    pub spread: Spread,
    /// Data VLs that routes take.
    pub lanes: u8,
    /// The fewest data VLs with which the engine routes the site.
    pub lanes_needed: u8,
}

impl Trial {
    /// Has an engine route a site and looks at what comes of it.
    pub fn run(engine: &dyn Engine, site: &Site, steering: &Steering) -> Self {
        let (routed, route_time) = timed(|| engine.route(&site.topology, steering, None));
        let outcome = match routed {
            Ok(routing) => {
                let mut made = Made::of(site, routing);
                made.lanes_needed = fewest_lanes(engine, site, steering, made.lanes);
                Ok(made)
            }
            Err(reason) => Err(in_words(site, &reason, engine)),
        };
        Self { engine: engine.name(), route_time, outcome }
    }
}

impl Made {
    fn of(site: &Site, routing: Routing) -> Self {
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
            lanes: lanes_of(&routing, &loops),
            lanes_needed: 1,
            loops,
            routing,
        }
    }

    /// The tables as what was there before, for switches that have other numbers now.
    pub fn before<'a>(&'a self, site: &'a Site, switches: Vec<Option<u16>>) -> Previous<'a> {
        Previous { switches, ..Previous::same_switches(&site.topology, &self.routing) }
    }
}

/// The fewest data VLs with which an engine routes a site that it routes with `enough`. Engines take
/// what there is, to spread routes. More never make an engine refuse.
fn fewest_lanes(engine: &dyn Engine, site: &Site, steering: &Steering, enough: u8) -> u8 {
    let (mut least, mut enough) = (1, enough);
    while least < enough {
        let data_lanes = least.midpoint(enough);
        let fewer = Steering { data_lanes, ..steering.clone() };
        match engine.route(&site.topology, &fewer, None) {
            Ok(_) => enough = data_lanes,
            Err(_) => least = data_lanes + 1,
        }
    }
    enough
}

/// Data VLs that routes take.
pub(super) fn lanes_of(routing: &Routing, loops: &CreditLoops) -> u8 {
    match &routing.lanes {
        Lanes::Free => 1,
        Lanes::Layers(layers) => layers.count,
        Lanes::Torus(_) => loops.lanes,
    }
}

/// Why an engine refuses: without what stands in every such answer, and with switches by name.
pub(super) fn in_words(site: &Site, reason: &RoutingError, engine: &dyn Engine) -> String {
    let reason = match reason {
        RoutingError::Unsuitable { reason, .. } => reason.clone(),
        other => other.to_string(),
    };
    site.with_names(reason.strip_prefix(engine.name()).unwrap_or(&reason).trim_start())
}

//! What tables are worth, whoever made them.

use sm_core::plan::site::Site;
use sm_core::plan::survey::Survey;
use sm_core::routing::balance::{LinkLoads, Spread};
use sm_core::routing::{Lanes, Routing, Steering, catalog, verify};

/// Figures of routes from each host to each LID of the others.
pub(crate) struct Judgement {
    /// Links between switches that a route passes.
    pub mean_hops: f64,
    /// Those that the longest passes.
    pub most_hops: u32,
    /// Routes on the link with the most, each link counted in both directions apart.
    pub worst: u32,
    /// Mean over links that have routes.
    pub mean_load: f64,
    /// Virtual lanes without which the engine would not do; 0 if nobody told.
    pub lanes: u8,
    /// Routes that end nowhere or in circles.
    pub lost: u64,
    /// Whether packets on one lane could wait for each other in circles. Not looked for where
    /// engines use several.
    pub deadlocks: bool,
}

impl Judgement {
    pub(crate) fn of(site: &Site, routing: &Routing, lanes: u8) -> Self {
        let survey = Survey::of(&site.topology, routing);
        let spread = Spread::of(&LinkLoads::count(&site.topology, routing).to_hosts);
        Self {
            mean_hops: survey.mean(),
            most_hops: survey.hops_max,
            worst: spread.max,
            mean_load: spread.mean,
            lanes,
            lost: survey.lost,
            deadlocks: matches!(routing.lanes, Lanes::Free)
                && !verify::credit_loops(&site.topology, &routing.tables()).is_free(),
        }
    }
}

/// Our tables.
pub(crate) fn route(engine: &str, site: &Site, steering: &Steering) -> Result<Routing, String> {
    let engine = catalog::find(engine).ok_or("there is no such engine")?;
    let routed = engine.route(&site.topology, steering, None);
    routed.map_err(|reason| site.with_names(&reason.to_string()))
}

/// The fewest lanes with which our engine routes what it routes with as many as there are.
pub(crate) fn lanes_needed(engine: &str, site: &Site, steering: &Steering) -> u8 {
    let (mut least, mut enough) = (1, steering.data_lanes);
    while least < enough {
        let data_lanes = least.midpoint(enough);
        let fewer = Steering { data_lanes, ..steering.clone() };
        match route(engine, site, &fewer) {
            Ok(_) => enough = data_lanes,
            Err(_) => least = data_lanes + 1,
        }
    }
    enough
}

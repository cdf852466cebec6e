//! Quality figures of forwarding tables, for any subnet manager.

use ibsm::plan::site::Site;
use ibsm::plan::survey::Survey;
use sm_routing::balance::{LinkLoads, Spread};
use sm_routing::{DisplayWith, Lanes, Routing, Steering, engines, verify};

/// Figures of routes from each host to each LID of the others.
pub(crate) struct Judgement {
    /// Mean number of links between switches per route.
    pub mean_hops: f64,
    /// Same for the longest route.
    pub most_hops: u32,
    /// Routes on the most loaded link; each direction of a link counts separately.
    pub worst: u32,
    /// Mean over links that have routes.
    pub mean_load: f64,
    /// Minimum number of virtual lanes that the engine needs; 0 if unknown.
    pub lanes: u8,
    /// Routes that end before their destination or loop.
    pub lost: u64,
    /// Whether there are credit loops on one lane. Not checked for engines that use several.
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
    let engine = engines::find(engine).ok_or("there is no such engine")?;
    let routed = engine.route(&site.topology, steering, None);
    routed.map_err(|error| error.display_with(&|switch| site.switch_label(switch)).to_string())
}

/// The minimum number of lanes with which our engine can still route the fabric.
pub(crate) fn lanes_needed(engine: &str, site: &Site, steering: &Steering) -> u8 {
    let (mut least, mut enough) = (1, steering.common.data_lanes);
    while least < enough {
        let data_lanes = least.midpoint(enough);
        let mut fewer = steering.clone();
        fewer.common.data_lanes = data_lanes;
        match route(engine, site, &fewer) {
            Ok(_) => enough = data_lanes,
            Err(_) => least = data_lanes + 1,
        }
    }
    enough
}

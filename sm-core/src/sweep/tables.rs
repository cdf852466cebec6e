//! From the fabric to its forwarding tables: what the routing engine is given, and what becomes of
//! its answer.
//!
//! Routing a large fabric takes a while. So the sweep only prepares a [`RoutingJob`], which the
//! caller runs wherever it likes, and goes on when it is handed the outcome.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Lid;
use sa_proto::snapshot::Lft;
use tracing::warn;

use super::{Phase, Sweeper};
use crate::fabric::{Fabric, SwitchIndex};
use crate::manage::lid::LidTable;
use crate::routing::{
    Destination, Engine, HopMatrix, MinHop, Previous, Routing, RoutingError, Topology,
    TopologyBuilder, TopologyError,
};

/// Engines that can be chosen, by `routing_engine`.
const DEFAULT_ENGINE: &str = "minhop";

/// The routing engine, and what it was last given and made.
#[derive(Debug)]
pub(super) struct Router {
    engine: Arc<dyn Engine>,
    made: Option<Arc<Made>>,
}

/// A routing that is in force. Its tables are with the switches.
#[derive(Debug)]
struct Made {
    topology: Topology,
    hops: HopMatrix,
    /// Which switch has which number.
    switches: Vec<SwitchIndex>,
}

/// All that a routing engine needs, cut loose from the fabric.
#[derive(Debug)]
pub struct RoutingJob {
    engine: Arc<dyn Engine>,
    topology: Topology,
    switches: Vec<SwitchIndex>,
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    made: Arc<Made>,
    lfts: Vec<Arc<Lft>>,
    /// For each switch now, its number then.
    switches: Vec<Option<u16>>,
}

/// What came of a [`RoutingJob`].
#[derive(Debug)]
pub struct RoutingOutcome {
    topology: Topology,
    switches: Vec<SwitchIndex>,
    routing: Result<Routing, RoutingError>,
}

impl RoutingJob {
    /// Computes the tables. May take seconds.
    pub fn run(self) -> RoutingOutcome {
        let previous = self.before.as_ref().map(|before| Previous {
            topology: &before.made.topology,
            hops: &before.made.hops,
            lfts: before.lfts.iter().map(|lft| lft.ports.as_slice()).collect(),
            switches: before.switches.clone(),
        });
        let routing = self.engine.route(&self.topology, previous.as_ref());
        RoutingOutcome { topology: self.topology, switches: self.switches, routing }
    }
}

impl Router {
    /// The first of the engines named in `routing_engine` that there is.
    pub(super) fn new(names: Option<&str>) -> Self {
        let names = names.unwrap_or(DEFAULT_ENGINE).split(',').map(str::trim);
        let mut missing = Vec::new();
        for name in names.filter(|name| !name.is_empty()) {
            if name == DEFAULT_ENGINE {
                missing.clear();
                break;
            }
            missing.push(name);
        }
        if !missing.is_empty() {
            warn!(
                "routing engine {} is not available so far; using {DEFAULT_ENGINE}",
                missing.join(", ")
            );
        }
        Self { engine: Arc::new(MinHop), made: None }
    }

    /// Forgets what was made: the switches' indices changed.
    pub(super) fn forget(&mut self) {
        self.made = None;
    }

    fn job(&self, fabric: &Fabric, lids: &LidTable) -> Result<RoutingJob, TopologyError> {
        let (topology, switches) = topology(fabric, lids)?;
        let before = self.made.as_ref().map(|made| {
            let then: HashMap<SwitchIndex, u16> = made.switches.iter().copied().zip(0..).collect();
            Before {
                made: made.clone(),
                lfts: made
                    .switches
                    .iter()
                    .map(|&index| fabric.switch(index).lft.desired().clone())
                    .collect(),
                switches: switches.iter().map(|index| then.get(index).copied()).collect(),
            }
        });
        Ok(RoutingJob { engine: self.engine.clone(), topology, switches, before })
    }
}

/// The fabric as engines see it, and which switch has which number.
fn topology(
    fabric: &Fabric,
    lids: &LidTable,
) -> Result<(Topology, Vec<SwitchIndex>), TopologyError> {
    let mut builder = TopologyBuilder::new();
    let mut switches = Vec::new();
    let mut numbers = HashMap::new();
    for (index, switch) in fabric.switches() {
        numbers.insert(index, builder.add_switch(fabric.node(switch.node).port_count)?);
        switches.push(index);
    }
    for &index in &switches {
        for port in fabric.ports_of(fabric.switch(index).node) {
            let Some(peer) = fabric.port(port).peer() else { continue };
            let Some(far) = fabric.node_of(peer).switch else { continue };
            let near_end = (numbers[&index], fabric.port(port).num.0);
            if let Some(&far) = numbers.get(&far) {
                builder.add_link(near_end, (far, fabric.port(peer).num.0))?;
            }
        }
    }
    for port in fabric.end_ports() {
        let Some(range) = lids.get(fabric.port(port).guid) else { continue };
        let place = match fabric.node_of(port).switch {
            Some(switch) => Some((switch, 0)),
            None => fabric
                .port(port)
                .peer()
                .and_then(|peer| Some((fabric.node_of(peer).switch?, fabric.port(peer).num.0))),
        };
        // Without a switch there is nothing to route: two adapters back to back.
        let Some((switch, exit)) = place else { continue };
        let Some(&home) = numbers.get(&switch) else { continue };
        builder.add_destination(Destination {
            base_lid: range.first,
            lid_count: range.last.0 - range.first.0 + 1,
            home,
            exit,
        })?;
    }
    Ok((builder.build()?, switches))
}

impl Sweeper {
    pub(super) fn begin_routing(&mut self, now: Instant) {
        self.enter(now, Phase::Route);
        match self.router.job(&self.fabric, &self.lids) {
            Ok(job) => self.routing_job = Some(Box::new(job)),
            Err(reason) => {
                self.error(format_args!("the fabric cannot be routed: {reason}"));
                self.begin_tables(now);
            }
        }
    }

    /// Routing that is to be done, if any; each is yielded once. Its outcome goes to
    /// [`handle_routing`](Self::handle_routing).
    pub fn poll_routing(&mut self) -> Option<Box<RoutingJob>> {
        self.routing_job.take()
    }

    /// Takes the outcome of the [`RoutingJob`] yielded last.
    pub fn handle_routing(&mut self, now: Instant, outcome: RoutingOutcome) {
        if self.phase != Phase::Route {
            return;
        }
        match outcome.routing {
            Ok(routing) => {
                if routing.unreachable > 0 {
                    self.complain(format_args!(
                        "{} pairs of switch and LID have no route between them",
                        routing.unreachable
                    ));
                }
                self.top = outcome.topology.last_lid();
                self.sweep.report.last_lid = self.top.0;
                self.routing_engine = routing.engine.to_owned();
                for (index, lft) in outcome.switches.iter().zip(routing.lfts) {
                    self.fabric.switch_mut(*index).lft.set_desired(lft);
                }
                self.router.made = Some(Arc::new(Made {
                    topology: outcome.topology,
                    hops: routing.hops,
                    switches: outcome.switches,
                }));
            }
            Err(reason) => {
                self.error(format_args!("the fabric cannot be routed: {reason}"));
            }
        }
        self.end_phase(now);
        self.advance(now);
    }

    /// The last LID that the tables lead to.
    pub fn last_lid(&self) -> Lid {
        self.top
    }
}

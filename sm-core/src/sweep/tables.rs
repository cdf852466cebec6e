//! From the fabric to its forwarding tables: what the routing engine is given, and what becomes of
//! its answer.
//!
//! Routing a large fabric takes a while. So the sweep only prepares a [`RoutingJob`], which the
//! caller runs wherever it likes, and goes on when it is handed the outcome.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Lid;
use sa_proto::snapshot::Lft;
use tracing::warn;

use super::{Phase, Sweeper};
use crate::fabric::{Fabric, SwitchIndex};
use crate::manage::lid::LidTable;
use crate::routing::multicast::Place;
use crate::routing::program::{Change, Program, Write};
use crate::routing::verify::{self, CreditLoops, Deliveries};
use crate::routing::{
    Destination, Engine, HopMatrix, MinHop, Previous, Routing, RoutingError, Steering, Topology,
    TopologyBuilder, TopologyError,
};
use crate::smp::{Kind, Request};

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
pub(super) struct Made {
    topology: Topology,
    hops: HopMatrix,
    /// Which switch has which number.
    switches: Vec<SwitchIndex>,
}

impl Made {
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(super) fn hops(&self) -> &HopMatrix {
        &self.hops
    }

    /// The switch of this number.
    pub(super) fn switch(&self, number: u16) -> Option<SwitchIndex> {
        self.switches.get(usize::from(number)).copied()
    }

    /// Where the port is that has `lid` as its first.
    pub(super) fn place_of(&self, lid: Lid) -> Option<Place> {
        let destinations = self.topology.destinations();
        let at = destinations.binary_search_by_key(&lid, |to| to.base_lid).ok()?;
        let Destination { home, exit, .. } = destinations[at];
        Some(Place { switch: home, exit })
    }

    /// Its tables.
    fn lfts(&self, fabric: &Fabric) -> Vec<Arc<Lft>> {
        let switches = self.switches.iter();
        switches.map(|&index| fabric.switch(index).lft.desired().clone()).collect()
    }
}

/// All that a routing engine needs, cut loose from the fabric.
#[derive(Debug)]
pub struct RoutingJob {
    /// Number of the discovery it belongs to.
    sweep: u32,
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
    sweep: u32,
    topology: Topology,
    switches: Vec<SwitchIndex>,
    routing: Result<Verified, RoutingError>,
}

/// A routing, and what is to be thought of it.
#[derive(Debug)]
struct Verified {
    routing: Routing,
    deliveries: Deliveries,
}

/// A look for credit loops in the routing in force: slower than routing, and of no consequence
/// but a warning, so it is made when the tables are written.
#[derive(Debug)]
pub struct LoopCheck {
    made: Arc<Made>,
    lfts: Vec<Arc<Lft>>,
}

/// What came of a [`LoopCheck`].
#[derive(Debug)]
pub struct LoopFinding {
    made: Arc<Made>,
    loops: CreditLoops,
}

impl LoopCheck {
    /// Looks. May take seconds.
    pub fn run(self) -> LoopFinding {
        let lfts: Vec<&[u8]> = self.lfts.iter().map(|lft| lft.ports.as_slice()).collect();
        let loops = verify::credit_loops(&self.made.topology, &lfts);
        LoopFinding { made: self.made, loops }
    }
}

impl RoutingJob {
    /// Whether the routing in force was made for the very same topology.
    fn is_done(&self) -> bool {
        self.before.as_ref().is_some_and(|before| {
            before.made.topology == self.topology && before.made.switches == self.switches
        })
    }

    /// Number of the sweep that it belongs to.
    pub fn sweep(&self) -> u32 {
        self.sweep
    }

    /// LIDs to be routed, and switches that forward them.
    pub fn size(&self) -> (usize, usize) {
        let lids = self.topology.destinations().iter();
        let lids = lids.map(|destination| usize::from(destination.lid_count)).sum();
        (lids, self.topology.switch_count())
    }

    /// Computes the tables. May take seconds.
    pub fn run(self) -> RoutingOutcome {
        let previous = self.before.as_ref().map(|before| Previous {
            topology: &before.made.topology,
            hops: &before.made.hops,
            lfts: before.lfts.iter().map(|lft| lft.ports.as_slice()).collect(),
            switches: before.switches.clone(),
        });
        let routing = self.engine.route(&self.topology, &Steering::default(), previous.as_ref());
        let routing = routing.map(|routing| Verified {
            deliveries: verify::deliveries(&self.topology, &routing),
            routing,
        });
        let Self { sweep, topology, switches, .. } = self;
        RoutingOutcome { sweep, topology, switches, routing }
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

    /// The routing in force.
    pub(super) fn made(&self) -> Option<&Arc<Made>> {
        self.made.as_ref()
    }

    fn job(
        &self,
        sweep: u32,
        fabric: &Fabric,
        lids: &LidTable,
    ) -> Result<RoutingJob, TopologyError> {
        let (topology, switches) = topology(fabric, lids)?;
        let before = self.made.as_ref().map(|made| {
            let then: HashMap<SwitchIndex, u16> = made.switches.iter().copied().zip(0..).collect();
            Before {
                made: made.clone(),
                lfts: made.lfts(fabric),
                switches: switches.iter().map(|index| then.get(index).copied()).collect(),
            }
        });
        Ok(RoutingJob { sweep, engine: self.engine.clone(), topology, switches, before })
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
            if !fabric.port(port).known || !fabric.port(peer).known {
                continue;
            }
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
                .filter(|&peer| fabric.port(peer).known)
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
        match self.router.job(self.number, &self.fabric, &self.lids) {
            Ok(job) if job.is_done() => {
                // Switches that came back, or did not take all they were sent, are still served.
                self.sweep.report.last_lid = self.top.0;
                self.sweep.table_steps = VecDeque::from([self.stale_blocks()]);
                self.begin_tables(now);
            }
            Ok(job) => self.routing_job = Some(Box::new(job)),
            Err(reason) => {
                self.error(format_args!("the fabric cannot be routed: {reason}"));
                self.sweep.unroutable = true;
                self.end_phase(now);
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
        if self.phase != Phase::Route || outcome.sweep != self.number {
            // It belongs to a sweep that was broken off.
            return;
        }
        let RoutingOutcome { topology, switches, routing, .. } = outcome;
        match routing {
            Ok(verified) if verified.deliveries.is_sound() => {
                if verified.deliveries.unreachable > 0 {
                    let pairs = verified.deliveries.unreachable;
                    self.complain(format_args!("no path joins {pairs} pairs of switch and LID"));
                }
                self.adopt(topology, switches, verified.routing);
            }
            Ok(verified) => {
                // An engine's fault. The tables in force are better than these.
                let count = verified.deliveries.defective;
                self.error(format_args!("routing is wrong in {count} entries and not used"));
                for defect in &verified.deliveries.defects {
                    self.error(format_args!("routing: {defect}"));
                }
                self.sweep.unroutable = true;
            }
            Err(reason) => {
                self.error(format_args!("the fabric cannot be routed: {reason}"));
                self.sweep.unroutable = true;
            }
        }
        self.end_phase(now);
        self.advance(now);
    }

    /// Takes that the [`RoutingJob`] of a sweep came to no outcome.
    pub fn handle_routing_failure(&mut self, now: Instant, sweep: u32, reason: &str) {
        if self.phase == Phase::Route && sweep == self.number {
            self.error(format_args!("the fabric cannot be routed: {reason}"));
            self.sweep.unroutable = true;
            self.end_phase(now);
            self.advance(now);
        }
    }

    /// The look for credit loops that is due, if any. What came of it goes to
    /// [`handle_loops`](Self::handle_loops).
    pub fn poll_loop_check(&mut self) -> Option<LoopCheck> {
        if self.phase != Phase::Idle || !std::mem::take(&mut self.loops_unknown) {
            return None;
        }
        let made = self.router.made.clone()?;
        Some(LoopCheck { lfts: made.lfts(&self.fabric), made })
    }

    /// Takes what a [`LoopCheck`] found. A warning is logged when loops appear, not again while
    /// they stay.
    pub fn handle_loops(&mut self, finding: &LoopFinding) {
        let free = finding.loops.is_free();
        let current =
            self.router.made.as_ref().is_some_and(|made| Arc::ptr_eq(made, &finding.made));
        if !current {
            return;
        }
        if !free && self.loop_free {
            let name = |(number, port): &(u16, u8)| {
                let index = finding.made.switches.get(usize::from(*number))?;
                let node = self.fabric.node(self.fabric.switch(*index).node);
                Some(format!("'{}' port {port}", node.name()))
            };
            let example: Vec<_> = finding.loops.example.iter().take(8).filter_map(name).collect();
            warn!(
                "credit loops: traffic can deadlock on up to {} links, for one {}; minhop does \
                 not avoid them",
                finding.loops.looping,
                example.join(" > ")
            );
        }
        self.loop_free = free;
    }

    /// Whether the routing in force was free of credit loops when last looked at.
    pub fn is_loop_free(&self) -> bool {
        self.loop_free
    }

    /// Makes a routing the desired one, and plans how to write it.
    fn adopt(&mut self, topology: Topology, switches: Vec<SwitchIndex>, routing: Routing) {
        self.top = topology.last_lid();
        self.sweep.report.last_lid = self.top.0;
        self.routing_engine = routing.engine.to_owned();
        self.loops_unknown = true;
        let program = {
            let tables = switches.iter().zip(&routing.lfts).zip(topology.switches());
            let changes = tables.map(|((&index, new), number)| {
                let switch = self.fabric.switch(index);
                Change {
                    switch: number,
                    old: switch.lft.acknowledged(),
                    old_top: Some(switch.switch_info().linear_fdb_top()),
                    new,
                    new_top: self.top,
                }
            });
            Program::plan(&topology, changes)
        };
        for (index, lft) in switches.iter().zip(routing.lfts) {
            self.fabric.switch_mut(*index).lft.set_desired(lft);
        }
        let steps = [&program.repair, &program.shift, &program.remove];
        self.sweep.table_steps = steps
            .into_iter()
            .map(|writes| {
                writes.iter().filter_map(|write| self.block_request(&switches, *write)).collect()
            })
            .filter(|requests: &Vec<Request>| !requests.is_empty())
            .collect::<VecDeque<_>>();
        self.router.made = Some(Arc::new(Made { topology, hops: routing.hops, switches }));
    }

    /// All blocks that a switch may not hold as it should.
    fn stale_blocks(&self) -> Vec<Request> {
        let switches = self.fabric.switches();
        let blocks = switches.flat_map(|(_, switch)| {
            let port = self.fabric.ports_of(switch.node).next();
            let blocks = switch.lft.stale_blocks();
            blocks.filter_map(move |block| Some(Request::block(Kind::SetForwarding, port?, block)))
        });
        blocks.collect()
    }

    fn block_request(&self, switches: &[SwitchIndex], write: Write) -> Option<Request> {
        let Write::Block { switch, block } = write else { return None };
        let switch = self.fabric.switch(*switches.get(usize::from(switch))?);
        let port = self.fabric.ports_of(switch.node).next()?;
        switch.lft.is_stale(block).then(|| Request::block(Kind::SetForwarding, port, block))
    }

    /// The last LID that the tables lead to.
    pub fn last_lid(&self) -> Lid {
        self.top
    }
}

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
use crate::config::{RoutingFiles, Settings};
use crate::fabric::{Fabric, SwitchIndex};
use crate::manage::lid::LidTable;
use crate::manage::steering::{Places, Steered, steer};
use crate::routing::multicast::Place;
use crate::routing::program::{Change, Program, Write};
use crate::routing::verify::{self, CreditLoops, Deliveries};
use crate::routing::{
    Destination, Dor, Engine, FTree, HopMatrix, MinHop, Previous, Routing, RoutingError, Sssp,
    Steering, Topology, TopologyBuilder, TopologyError, UpDown,
};
use crate::smp::{Kind, Request};

/// The routing engines, and what they were last given and made.
#[derive(Debug)]
pub(super) struct Router {
    /// In the order in which they are tried.
    engines: Arc<[Box<dyn Engine>]>,
    made: Option<Arc<Made>>,
    /// What operators' files say, from the next routing on.
    files: Arc<RoutingFiles>,
    /// What was last found to be without effect in them.
    told: Vec<String>,
}

/// A routing that is in force. Its tables are with the switches.
#[derive(Debug)]
pub(super) struct Made {
    /// Name of the engine.
    engine: &'static str,
    topology: Topology,
    hops: HopMatrix,
    /// Hops of the shortest ways, where the engine's are others.
    distances: Option<HopMatrix>,
    /// Which switch has which number.
    switches: Vec<SwitchIndex>,
    asked: Asked,
}

/// What engines are asked for by operators.
#[derive(Clone, Debug)]
struct Asked {
    steering: Steering,
    /// What that was made from.
    files: Arc<RoutingFiles>,
}

impl Made {
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Hops between switches by the shortest ways.
    pub(super) fn distances(&self) -> &HopMatrix {
        self.distances.as_ref().unwrap_or(&self.hops)
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
    engines: Arc<[Box<dyn Engine>]>,
    topology: Topology,
    switches: Vec<SwitchIndex>,
    asked: Asked,
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
    asked: Asked,
    routing: Result<Verified, RoutingError>,
    /// Why engines that are wanted before it could not be used.
    passed_over: Vec<String>,
}

/// A routing, and what is to be thought of it.
#[derive(Debug)]
struct Verified {
    routing: Routing,
    deliveries: Deliveries,
    /// Hops of the shortest ways, where those of the routing are others.
    distances: Option<HopMatrix>,
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
            before.made.topology == self.topology
                && before.made.switches == self.switches
                && before.made.asked.steering == self.asked.steering
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

    /// Computes the tables: by the first engine whose tables prove right. May take seconds.
    pub fn run(self) -> RoutingOutcome {
        let mut passed_over = Vec::new();
        let mut last = None;
        for engine in &*self.engines {
            if let Some(reason) = last.take().map(|routing| why_unusable(&routing)) {
                passed_over.push(reason);
            }
            let routing = self.attempt(&**engine);
            let is_sound = routing.as_ref().is_ok_and(|made| made.deliveries.is_sound());
            last = Some(routing);
            if is_sound {
                break;
            }
        }
        let routing = last.expect("a router has at least one engine");
        let Self { sweep, topology, switches, asked, .. } = self;
        RoutingOutcome { sweep, topology, switches, asked, routing, passed_over }
    }

    fn attempt(&self, engine: &dyn Engine) -> Result<Verified, RoutingError> {
        // What another engine made, or was made to other wishes, is not to be kept.
        let before = self.before.as_ref().filter(|before| {
            before.made.engine == engine.name() && before.made.asked.files == self.asked.files
        });
        let previous = before.map(|before| Previous {
            topology: &before.made.topology,
            hops: &before.made.hops,
            lfts: before.lfts.iter().map(|lft| lft.ports.as_slice()).collect(),
            switches: before.switches.clone(),
        });
        let routing = engine.route(&self.topology, &self.asked.steering, previous.as_ref())?;
        let is_shortest =
            routing.engine == MinHop.name() && self.asked.steering.hop_weights.is_empty();
        Ok(Verified {
            deliveries: verify::deliveries(&self.topology, &routing),
            distances: if is_shortest { None } else { HopMatrix::compute(&self.topology) },
            routing,
        })
    }
}

/// What is wrong with a routing that is not used.
fn why_unusable(routing: &Result<Verified, RoutingError>) -> String {
    match routing {
        Ok(Verified { routing, deliveries, .. }) => {
            let (engine, count) = (routing.engine, deliveries.defective);
            let defects =
                deliveries.defects.iter().take(1).map(|defect| format!(", for one {defect}"));
            format!("{engine} is wrong in {count} entries{}", defects.collect::<String>())
        }
        Err(reason) => reason.to_string(),
    }
}

/// The engine of this name. Engines that keep routes apart by SL are not here yet: answers to
/// PathRecord queries do not tell their SLs.
fn engine(name: &str) -> Option<Box<dyn Engine>> {
    let engines: [Box<dyn Engine>; 6] = [
        Box::new(MinHop),
        Box::new(UpDown::FromRoots),
        Box::new(UpDown::FromHosts),
        Box::new(FTree),
        Box::new(Dor),
        Box::new(Sssp),
    ];
    engines.into_iter().find(|engine| engine.name().eq_ignore_ascii_case(name))
}

/// The engines of a list, with the default behind them if it is not among them and nobody says
/// `no_fallback`, and the names of those that there are not.
fn engines(names: &str) -> (Vec<Box<dyn Engine>>, Vec<&str>) {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    let names = names.split(|c: char| c == ',' || c.is_whitespace());
    let mut falls_back = true;
    for name in names.filter(|name| !name.is_empty()) {
        if name.eq_ignore_ascii_case("no_fallback") {
            falls_back = false;
            continue;
        }
        match engine(name) {
            Some(engine) => there.push(engine),
            None => missing.push(name),
        }
    }
    // Without any engine nothing would be routed at all.
    let is_wanted = falls_back || there.is_empty();
    if is_wanted && there.iter().all(|engine| engine.name() != MinHop.name()) {
        there.push(Box::new(MinHop));
    }
    (there, missing)
}

impl Router {
    /// The engines named in `routing_engine` that there are, and minhop.
    pub(super) fn new(names: Option<&str>) -> Self {
        let (engines, missing) = engines(names.unwrap_or_default());
        if !missing.is_empty() {
            let there: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
            warn!(
                "routing engine {} is not available so far; trying {}",
                missing.join(", "),
                there.join(", ")
            );
        }
        Self { engines: engines.into(), made: None, files: Arc::default(), told: Vec::new() }
    }

    /// Forgets what was made: the switches' indices changed.
    pub(super) fn forget(&mut self) {
        self.made = None;
    }

    /// The routing in force.
    pub(super) fn made(&self) -> Option<&Arc<Made>> {
        self.made.as_ref()
    }

    /// What is asked of engines, and what of it is told to be without effect once it is new.
    fn asked(&mut self, settings: &Settings, places: &Places<'_>) -> Asked {
        let Steered { steering, remarks } = steer(&self.files, settings, places);
        remarks.iter().filter(|line| !self.told.contains(line)).for_each(|line| warn!("{line}"));
        self.told = remarks;
        Asked { steering, files: self.files.clone() }
    }

    fn job(
        &mut self,
        sweep: u32,
        settings: &Settings,
        fabric: &Fabric,
        lids: &LidTable,
    ) -> Result<RoutingJob, TopologyError> {
        let (topology, switches) = topology(fabric, lids)?;
        let places = Places::of_fabric(&topology, fabric, &switches, lids);
        let asked = self.asked(settings, &places);
        let before = self.made.as_ref().map(|made| {
            let then: HashMap<SwitchIndex, u16> = made.switches.iter().copied().zip(0..).collect();
            Before {
                made: made.clone(),
                lfts: made.lfts(fabric),
                switches: switches.iter().map(|index| then.get(index).copied()).collect(),
            }
        });
        let engines = self.engines.clone();
        Ok(RoutingJob { sweep, engines, topology, switches, asked, before })
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
        match self.router.job(self.number, &self.settings, &self.fabric, &self.lids) {
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

    /// Sets what operators' files ask of engines, from the next sweep on.
    pub fn set_routing_files(&mut self, files: Arc<RoutingFiles>) {
        self.router.files = files;
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
        let RoutingOutcome { topology, switches, asked, routing, passed_over, .. } = outcome;
        for reason in passed_over {
            self.complain(format_args!("a routing engine is passed over: {reason}"));
        }
        match routing {
            Ok(verified) if verified.deliveries.is_sound() => {
                if verified.deliveries.unreachable > 0 {
                    let pairs = verified.deliveries.unreachable;
                    self.complain(format_args!("no path joins {pairs} pairs of switch and LID"));
                }
                self.adopt(topology, switches, asked, verified);
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
                "credit loops: traffic can deadlock on up to {} links, for one {}; {} does not \
                 avoid them",
                finding.loops.looping,
                example.join(" > "),
                finding.made.engine
            );
        }
        self.loop_free = free;
    }

    /// Whether the routing in force was free of credit loops when last looked at.
    pub fn is_loop_free(&self) -> bool {
        self.loop_free
    }

    /// Makes a routing the desired one, and plans how to write it.
    fn adopt(
        &mut self,
        topology: Topology,
        switches: Vec<SwitchIndex>,
        asked: Asked,
        verified: Verified,
    ) {
        let Verified { routing, distances, .. } = verified;
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
        let Routing { engine, hops, .. } = routing;
        self.router.made =
            Some(Arc::new(Made { engine, topology, hops, distances, switches, asked }));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> (Vec<&'static str>, Vec<&str>) {
        let (there, missing) = engines(text);
        (there.iter().map(|engine| engine.name()).collect(), missing)
    }

    /// `lash,minhop` was taken without a word, and minhop routed.
    #[test]
    fn engines_are_tried_in_order_and_those_that_are_not_there_are_told() {
        assert_eq!(names("FTree, updn"), (vec!["ftree", "updn", "minhop"], vec![]));
        assert_eq!(names("lash,minhop sssp"), (vec!["minhop", "sssp"], vec!["lash"]));
        assert_eq!(names(""), (vec!["minhop"], vec![]));
        assert_eq!(names("updn,no_fallback"), (vec!["updn"], vec![]));
        assert_eq!(names("lash,No_Fallback"), (vec!["minhop"], vec!["lash"]));
    }
}

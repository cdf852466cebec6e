//! What routing engines are given, and what becomes of their answers: work that needs no fabric, so
//! that it can be done on another thread.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::{self, Lft, PathSls};
use tracing::warn;

use super::origin::Origin;
use super::shunned::Shunned;
use crate::config::{RoutingFiles, Settings};
use crate::fabric::{Fabric, SwitchIndex};
use crate::manage::lid::LidTable;
use crate::manage::steering::{Places, Steered, steer};
use crate::routing::multicast::Place;
use crate::routing::verify::{self, CreditLoops, Deliveries, Unicast};
use crate::routing::{
    Destination, Engine, HopMatrix, Lanes, MinHop, Previous, Routing, RoutingError, Steering,
    Topology, TopologyBuilder, TopologyError, catalog,
};

/// The routing engines, and what they were last given and made.
#[derive(Debug)]
pub(super) struct Router {
    /// In the order in which they are tried.
    engines: Arc<[Box<dyn Engine>]>,
    pub(super) made: Option<Arc<Made>>,
    /// What operators' files say, from the next routing on.
    pub(super) files: Arc<RoutingFiles>,
    /// What was last found to be without effect in them.
    told: Vec<String>,
    /// Which engine made the tables that switches hold, if an earlier run left word of that.
    pub(super) left_by: Option<Origin>,
    /// Whether engines are others than when the routing in force was made.
    engines_changed: bool,
    /// Whether the next routing keeps nothing.
    pub(super) anew: bool,
    /// When that is to be so, and a sweep to be made for it.
    pub(super) anew_from: Option<Instant>,
}

/// What engines are asked for by operators.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    steering: Steering,
    /// What that was made from.
    files: Arc<RoutingFiles>,
    /// Hash of that, and of the settings that say more.
    wishes: u64,
}

/// A routing that is in force. Its tables are with the switches.
#[derive(Debug)]
pub(super) struct Made {
    /// Name of the engine.
    engine: &'static str,
    topology: Topology,
    hops: HopMatrix,
    /// By link: routes of hosts, if the engine has counted them.
    loads: Vec<u32>,
    /// Hops of the shortest ways, where the engine's are others.
    distances: Option<HopMatrix>,
    /// Which switch has which number.
    switches: Vec<SwitchIndex>,
    numbers: HashMap<SwitchIndex, u16>,
    lanes: Lanes,
    /// The SLs of its paths, ascending by switch; empty if it leaves them alone.
    path_sls: Vec<Arc<PathSls>>,
    asked: Asked,
    /// What its packets wait for, once somebody wants to know.
    unicast: OnceLock<Arc<Unicast>>,
}

impl Made {
    /// What its packets wait for; `lfts` are its tables. Takes a tenth of a second and more, once.
    pub(super) fn unicast(&self, lfts: &[Arc<Lft>]) -> Arc<Unicast> {
        let find = || Arc::new(Unicast::find(&self.topology, &ports(lfts), &self.lanes));
        self.unicast.get_or_init(find).clone()
    }

    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Hops between switches by the shortest ways.
    pub(super) fn distances(&self) -> &HopMatrix {
        self.distances.as_ref().unwrap_or(&self.hops)
    }

    /// Name of the engine.
    pub(super) fn engine(&self) -> &'static str {
        self.engine
    }

    /// What is to be known of it by the next run.
    pub(super) fn origin(&self) -> Origin {
        Origin { engine: self.engine.to_owned(), wishes: self.asked.wishes }
    }

    /// What operators asked of the engine.
    pub(super) fn steering(&self) -> &Steering {
        &self.asked.steering
    }

    /// The switches, by number.
    pub(super) fn switches(&self) -> &[SwitchIndex] {
        &self.switches
    }

    /// The switch of this number.
    pub(super) fn switch(&self, number: u16) -> Option<SwitchIndex> {
        self.switches.get(usize::from(number)).copied()
    }

    /// The number of a switch.
    pub(super) fn number(&self, switch: SwitchIndex) -> Option<u16> {
        self.numbers.get(&switch).copied()
    }

    /// The virtual lanes that its routes take.
    pub(super) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The SLs of its paths, ascending by switch; empty if it leaves them alone.
    pub(super) fn path_sls(&self) -> &[Arc<PathSls>] {
        &self.path_sls
    }

    /// Where the port is that has `lid`.
    pub(super) fn place_of(&self, lid: Lid) -> Option<Place> {
        let to = self.topology.owner(lid)?;
        Some(Place { switch: to.home, exit: to.exit })
    }

    /// Its tables.
    pub(super) fn lfts(&self, fabric: &Fabric) -> Vec<Arc<Lft>> {
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
    /// Node GUIDs of the switches.
    guids: Vec<Guid>,
    asked: Asked,
    before: Option<Before>,
    /// Tables of another SM's, by switch, if there are no others to begin with.
    inherited: Option<Vec<Arc<Lft>>>,
    /// Which engine made those, if that is known.
    left_by: Option<Origin>,
    /// Whether engines were given anew.
    engines_changed: bool,
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
    pub(super) sweep: u32,
    /// Which switch has which number.
    pub(super) switches: Vec<SwitchIndex>,
    /// `None` if no engine could route the fabric.
    pub(super) chosen: Option<Chosen>,
    /// Why engines that are wanted before it are not used.
    pub(super) passed_over: Vec<PassedOver>,
}

/// Why an engine is not used.
#[derive(Debug)]
pub(super) enum PassedOver {
    /// It could not route the fabric.
    Refused(RoutingError),
    /// Its tables are wrong.
    Defective(&'static str, Deliveries),
    /// Packets could wait for each other in circles.
    Loops(&'static str, CreditLoops),
}

/// The routing that is to come into force.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) made: Made,
    /// Its tables, by switch.
    pub(super) lfts: Vec<Vec<u8>>,
    /// What was found about its credit loops, if that was looked at.
    pub(super) loops: Option<CreditLoops>,
    /// Pairs of switch and LID that no path joins.
    pub(super) unreachable: u64,
}

/// A routing, and what is to be thought of it.
#[derive(Debug)]
struct Verified {
    routing: Routing,
    deliveries: Deliveries,
    /// What was found about credit loops, if that was looked at.
    loops: Option<CreditLoops>,
}

impl Verified {
    /// Whether the engine keeps its word: what keeps routes apart by SL does so to have no loops.
    fn is_usable(&self) -> bool {
        let must_be_free = !matches!(self.routing.lanes, Lanes::Free);
        self.deliveries.is_sound() && !(must_be_free && self.has_loops())
    }

    fn has_loops(&self) -> bool {
        self.loops.as_ref().is_some_and(|loops| !loops.is_free())
    }

    fn why_not(self) -> PassedOver {
        match self.loops {
            Some(loops) if self.deliveries.is_sound() => {
                PassedOver::Loops(self.routing.engine, loops)
            }
            _ => PassedOver::Defective(self.routing.engine, self.deliveries),
        }
    }
}

/// A look for credit loops in the routing in force: slower than routing, and of no consequence
/// but a warning, so it is made when the tables are written.
#[derive(Debug)]
pub struct LoopCheck {
    pub(super) made: Arc<Made>,
    pub(super) lfts: Vec<Arc<Lft>>,
}

/// What came of a [`LoopCheck`].
#[derive(Debug)]
pub struct LoopFinding {
    pub(super) made: Arc<Made>,
    pub(super) loops: CreditLoops,
}

impl LoopCheck {
    /// Looks. May take seconds.
    pub fn run(self) -> LoopFinding {
        let loops = self.made.unicast(&self.lfts).loops.clone();
        LoopFinding { made: self.made, loops }
    }
}

impl RoutingJob {
    /// Whether the routing in force was made for the very same topology.
    pub(super) fn is_done(&self) -> bool {
        !self.engines_changed
            && self.before.as_ref().is_some_and(|before| {
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

    /// Computes the tables: by the first engine whose tables prove right and free of credit loops;
    /// if all that prove right have some, by the first of those. May take seconds.
    pub fn run(self) -> RoutingOutcome {
        let mut passed_over = Vec::new();
        let mut second_best: Option<(usize, Verified)> = None;
        let mut chosen = None;
        for engine in &*self.engines {
            match self.attempt(&**engine) {
                Ok(made) if made.is_usable() && !made.has_loops() => {
                    chosen = Some(made);
                    break;
                }
                Ok(made) if made.is_usable() && second_best.is_none() => {
                    second_best = Some((passed_over.len(), made));
                }
                Ok(made) => passed_over.push(made.why_not()),
                Err(reason) => passed_over.push(PassedOver::Refused(reason)),
            }
        }
        let verified = match (chosen, second_best) {
            (Some(made), Some((at, loops))) => {
                passed_over.insert(at, loops.why_not());
                Some(made)
            }
            (None, Some((at, made))) => {
                passed_over.truncate(at);
                Some(made)
            }
            (chosen, None) => chosen,
        };
        let (sweep, switches) = (self.sweep, self.switches.clone());
        let chosen = verified.map(|verified| self.chosen(verified));
        RoutingOutcome { sweep, switches, chosen, passed_over }
    }

    /// What is kept of the routing that is taken.
    fn chosen(self, verified: Verified) -> Chosen {
        let Verified { routing, deliveries, loops } = verified;
        let path_sls = self.path_sls(&routing.lanes);
        let Routing { engine, lfts, hops, lanes, loads, .. } = routing;
        let Self { topology, switches, asked, .. } = self;
        let is_shortest = engine == MinHop.name() && asked.steering.hop_weights.is_empty();
        let distances = if is_shortest { None } else { HopMatrix::compute(&topology) };
        let numbers = switches.iter().copied().zip(0..).collect();
        let made = Made {
            engine,
            topology,
            hops,
            loads,
            distances,
            switches,
            numbers,
            lanes,
            path_sls,
            asked,
            unicast: OnceLock::new(),
        };
        Chosen { made, lfts, loops, unreachable: deliveries.unreachable }
    }

    fn attempt(&self, engine: &dyn Engine) -> Result<Verified, RoutingError> {
        // What another engine made, or was made to other wishes, is not to be kept.
        let before = self.before.as_ref().filter(|before| {
            before.made.engine == engine.name() && before.made.asked.files == self.asked.files
        });
        let previous = match (before, &self.inherited) {
            (Some(before), _) => Some(Previous {
                topology: &before.made.topology,
                hops: Some(&before.made.hops),
                lfts: ports(&before.lfts),
                switches: before.switches.clone(),
                loads: &before.made.loads,
            }),
            (None, Some(lfts)) if self.may_inherit(engine) => Some(Previous {
                topology: &self.topology,
                hops: None,
                lfts: ports(lfts),
                switches: self.topology.switches().map(Some).collect(),
                loads: &[],
            }),
            (None, _) => None,
        };
        let made = self.made_by(engine, previous.as_ref())?;
        if previous.is_some() && !made.is_usable() {
            // What was there before may be at fault: another SM made it, or a switch told it wrongly.
            return self.made_by(engine, None);
        }
        Ok(made)
    }

    /// Whether what switches hold is, as far as is known, of this engine's making and to the same
    /// wishes.
    fn may_inherit(&self, engine: &dyn Engine) -> bool {
        self.left_by.as_ref().is_none_or(|origin| {
            origin.engine == engine.name() && origin.wishes == self.asked.wishes
        })
    }

    /// Tables of an engine that keep nothing; none if it cannot make any.
    pub(super) fn anew(&self, engine: &str) -> Option<Vec<Vec<u8>>> {
        let engine = self.engines.iter().find(|each| each.name() == engine)?;
        let routing = engine.route(&self.topology, &self.asked.steering, None).ok()?;
        Some(routing.lfts)
    }

    fn made_by(
        &self,
        engine: &dyn Engine,
        previous: Option<&Previous<'_>>,
    ) -> Result<Verified, RoutingError> {
        let routing = engine.route(&self.topology, &self.asked.steering, previous)?;
        // Where there is no choice of engines, and no promise, loops are looked for when the tables
        // are in force.
        let looks = self.engines.len() > 1 || !matches!(routing.lanes, Lanes::Free);
        Ok(Verified {
            deliveries: verify::deliveries(&self.topology, &routing),
            loops: looks.then(|| verify::credit_loops_on_lanes(&self.topology, &routing)),
            routing,
        })
    }

    /// The SLs of all paths, ascending by switch; those of switches whose paths have the same as
    /// before are shared.
    fn path_sls(&self, lanes: &Lanes) -> Vec<Arc<PathSls>> {
        if lanes.engine_sls() == 0 {
            return Vec::new();
        }
        let before = self.before.as_ref().map_or(&[][..], |before| before.made.path_sls());
        let row = |(switch, &guid): (u16, &Guid)| {
            let sls = lanes.sls_from(&self.topology, switch);
            let old = snapshot::find(before, guid).filter(|old| old.sls == sls);
            old.cloned().unwrap_or_else(|| Arc::new(PathSls { switch: guid, sls }))
        };
        let mut rows: Vec<_> = self.topology.switches().zip(&self.guids).map(row).collect();
        rows.sort_unstable_by_key(|row| row.switch);
        rows
    }
}

/// The entries of tables.
fn ports(lfts: &[Arc<Lft>]) -> Vec<&[u8]> {
    lfts.iter().map(|lft| lft.ports.as_slice()).collect()
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
        match catalog::find(name) {
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

/// The engines of `routing_engine` that there are, and minhop; those that there are not are told.
fn available(names: &str) -> Arc<[Box<dyn Engine>]> {
    let (engines, missing) = engines(names);
    if !missing.is_empty() {
        let there: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
        warn!(
            "routing engine {} is not available so far; trying {}",
            missing.join(", "),
            there.join(", ")
        );
    }
    engines.into()
}

impl Router {
    /// The engines named in `routing_engine` that there are, and minhop.
    pub(super) fn new(names: &str) -> Self {
        Self {
            engines: available(names),
            made: None,
            files: Arc::default(),
            told: Vec::new(),
            left_by: None,
            engines_changed: false,
            anew: false,
            anew_from: None,
        }
    }

    /// Takes other engines, from the next routing on.
    pub(super) fn set_engines(&mut self, names: &str) {
        self.engines = available(names);
        self.engines_changed = true;
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
        let wishes = self.files.digest(settings);
        Asked { steering, files: self.files.clone(), wishes }
    }

    /// A job for the fabric as it is; `data_lanes` tells how many virtual lanes its links have. With
    /// `inherits`, switches hold tables that we did not make.
    pub(super) fn job(
        &mut self,
        sweep: u32,
        settings: &Settings,
        routed: Routed<'_>,
        inherits: bool,
        data_lanes: impl FnOnce(&Topology, &[SwitchIndex]) -> u8,
    ) -> Result<RoutingJob, TopologyError> {
        let (topology, switches) = topology(routed)?;
        let Routed { fabric, lids, .. } = routed;
        let places = Places::of_fabric(&topology, fabric, &switches, lids);
        let mut asked = self.asked(settings, &places);
        asked.steering.data_lanes = data_lanes(&topology, &switches);
        let before = self.made.as_ref().filter(|_| !self.anew).map(|made| Before {
            made: made.clone(),
            lfts: made.lfts(fabric),
            switches: switches.iter().map(|&index| made.number(index)).collect(),
        });
        let lft = |&index: &SwitchIndex| fabric.switch(index).lft.desired().clone();
        let inherited = (inherits && !self.anew).then(|| switches.iter().map(lft).collect());
        let guid = |&index: &SwitchIndex| fabric.node(fabric.switch(index).node).guid;
        let guids = switches.iter().map(guid).collect();
        let engines = self.engines.clone();
        let (left_by, engines_changed) = (self.left_by.clone(), self.engines_changed);
        Ok(RoutingJob {
            sweep,
            engines,
            topology,
            switches,
            guids,
            asked,
            before,
            inherited,
            left_by,
            engines_changed,
        })
    }

    /// What would make a routing again, from nothing.
    pub(super) fn job_of(&self, made: &Made, fabric: &Fabric) -> RoutingJob {
        let guid = |&index: &SwitchIndex| fabric.node(fabric.switch(index).node).guid;
        RoutingJob {
            sweep: 0,
            engines: self.engines.clone(),
            topology: made.topology.clone(),
            switches: made.switches.clone(),
            guids: made.switches.iter().map(guid).collect(),
            asked: made.asked.clone(),
            before: None,
            inherited: None,
            left_by: None,
            engines_changed: false,
        }
    }

    /// Takes a routing into force, whose tables are the desired ones of the switches.
    pub(super) fn adopt(&mut self, made: Made) {
        (self.engines_changed, self.anew, self.anew_from) = (false, false, None);
        self.left_by = None;
        self.made = Some(Arc::new(made));
    }
}

/// What is to be routed.
#[derive(Clone, Copy)]
pub(super) struct Routed<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) lids: &'a LidTable,
    /// Switches that are left out.
    pub(super) shunned: &'a Shunned,
}

/// The fabric as engines see it, without switches that are avoided, and which switch has which number.
fn topology(routed: Routed<'_>) -> Result<(Topology, Vec<SwitchIndex>), TopologyError> {
    let Routed { fabric, lids, shunned } = routed;
    let mut builder = TopologyBuilder::new();
    let mut switches = Vec::new();
    let mut numbers = Vec::new();
    for (index, switch) in fabric.switches() {
        if shunned.contains(fabric.node(switch.node).guid) {
            continue;
        }
        numbers.resize(index.get(), None);
        numbers.push(Some(builder.add_switch(fabric.node(switch.node).port_count)?));
        switches.push(index);
    }
    let number = |switch: SwitchIndex| numbers.get(switch.get()).copied().flatten();
    for &index in &switches {
        for port in fabric.ports_of(fabric.switch(index).node) {
            let Some(peer) = fabric.port(port).peer() else { continue };
            if !fabric.port(port).known || !fabric.port(peer).known {
                continue;
            }
            let Some(far) = fabric.node_of(peer).switch else { continue };
            if let (Some(near), Some(far)) = (number(index), number(far)) {
                let num = |port| fabric.port(port).num.0;
                builder.add_link((near, num(port)), (far, num(peer)))?;
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
        let Some(home) = number(switch) else { continue };
        builder.add_destination(Destination {
            base_lid: range.first,
            lid_count: range.last.0 - range.first.0 + 1,
            home,
            exit,
        })?;
    }
    Ok((builder.build()?, switches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> (Vec<&'static str>, Vec<&str>) {
        let (there, missing) = engines(text);
        (there.iter().map(|engine| engine.name()).collect(), missing)
    }

    /// An engine that there was not was taken without a word, and minhop routed.
    #[test]
    fn engines_are_tried_in_order_and_those_that_are_not_there_are_told() {
        assert_eq!(names("FTree, updn"), (vec!["ftree", "updn", "minhop"], vec![]));
        assert_eq!(names("other,minhop sssp"), (vec!["minhop", "sssp"], vec!["other"]));
        assert_eq!(names("LASH").0, ["lash", "minhop"]);
        assert_eq!(names(""), (vec!["minhop"], vec![]));
        assert_eq!(names("updn,no_fallback"), (vec!["updn"], vec![]));
        assert_eq!(names("other,No_Fallback"), (vec!["minhop"], vec!["other"]));
    }
}

//! Routing: the engines, their last input and result, and the state of the routing in force. It
//! only decides: the caller runs the jobs, and the sweep writes the tables.
//!
//! - `job`: input and result of an engine; `build`: the topology that it gets.
//! - `planes`: jobs of planarized fabrics. `active`: a routing in force.
//! - `checks`: checks that take as long as routing.

pub(in crate::sweep) mod active;
pub(in crate::sweep) mod build;
pub(in crate::sweep) mod checks;
pub(in crate::sweep) mod job;
pub(in crate::sweep) mod origin;
mod planes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid};
use tracing::warn;

use crate::fabric::{Fabric, SwitchIndex};
use crate::manage::steering::{Places, Steered, steer};
use active::{ActiveRouting, OperatorOptions};
use build::{Plane, Routed};
use checks::{BalanceCheck, KeptRoutes, LoopCheck};
use job::{Before, Kept, RoutingJob};
use origin::Origin;
use sm_config::{RoutingFiles, Settings};
use sm_routing::verify::CreditLoops;
use sm_routing::{Engine, Lanes, Topology, TopologyError, engines};

/// The routing engines, and the routing in force.
#[derive(Debug)]
pub(in crate::sweep) struct RoutingState {
    /// In the order in which they are tried.
    engines: Arc<[Box<dyn Engine>]>,
    /// Whether the list changed since the routing in force was computed.
    engines_changed: bool,
    /// Options from operators' files, for the next routing.
    files: Arc<RoutingFiles>,
    /// Options of the files that had no effect in the last routing.
    reported: Vec<String>,
    made: Option<Arc<ActiveRouting>>,
    /// Name of the engine that made the tables, also once `made` is forgotten.
    engine: &'static str,
    /// Why preferred engines were skipped, one line each.
    pub(in crate::sweep) rejected: Vec<String>,
    /// The last LID that the tables lead to.
    pub(in crate::sweep) top: Lid,
    /// Whether switches hold tables of another SM, of which routes are kept.
    pub(in crate::sweep) has_inherited: bool,
    /// The engine that computed those, if an earlier run saved that.
    left_by: Option<Origin>,
    /// Whether the next routing keeps no routes.
    keeps_nothing: bool,
    /// When a sweep is due that keeps no routes.
    correction_at: Option<Instant>,
    /// Kept routes in force whose balance has not been checked yet.
    balance_unchecked: Option<KeptRoutes>,
    /// Kept routes whose balance is being checked.
    balance_in_check: Option<KeptRoutes>,
    /// Whether the routing in force has not been checked for credit loops yet.
    loops_unknown: bool,
    /// Whether the last checked routing was free of credit loops.
    loop_free: bool,
    /// Whether replies on the SLs of their requests were, too.
    reply_loop_free: bool,
    /// Whether routes use lanes that the tables of ports may not have yet.
    lanes_moved: bool,
    /// End ports that were in one plane more than once in the last job.
    doubled: usize,
}

impl RoutingState {
    /// The known engines of `routing_engine`, and minhop.
    pub(in crate::sweep) fn new(names: &str) -> Self {
        Self {
            engines: available(names),
            engines_changed: false,
            files: Arc::default(),
            reported: Vec::new(),
            made: None,
            engine: "",
            rejected: Vec::new(),
            top: Lid::NONE,
            has_inherited: false,
            left_by: None,
            keeps_nothing: false,
            correction_at: None,
            balance_unchecked: None,
            balance_in_check: None,
            loops_unknown: false,
            loop_free: true,
            reply_loop_free: true,
            lanes_moved: false,
            doubled: 0,
        }
    }

    /// Sets the engines, for the next routing.
    pub(in crate::sweep) fn set_engines(&mut self, names: &str) {
        self.engines = available(names);
        self.engines_changed = true;
    }

    /// Sets the options from operators' files, for the next routing.
    pub(in crate::sweep) fn set_files(&mut self, files: Arc<RoutingFiles>) {
        self.files = files;
    }

    /// States which engine made the tables that switches hold, as an earlier run left it.
    pub(in crate::sweep) fn set_origin(&mut self, origin: Option<Origin>) {
        self.left_by = origin;
    }

    /// Another SM is master: discards pending recomputations and the saved origin.
    pub(in crate::sweep) fn forget_origin(&mut self) {
        self.left_by = None;
        self.correction_at = None;
    }

    /// Discards the routing: switch indices changed.
    pub(in crate::sweep) fn forget(&mut self) {
        self.made = None;
    }

    /// Applies new switch indices (`moved`). `false` if the routing refers to a switch that is
    /// gone.
    pub(in crate::sweep) fn renumber(
        &mut self,
        moved: impl Fn(SwitchIndex) -> Option<SwitchIndex>,
    ) -> bool {
        let Some(made) = &self.made else { return true };
        let Some(renumbered) = made.renumbered(&moved) else { return false };
        self.made = Some(Arc::new(renumbered));
        // A check that is running refers to a routing that is no longer in force.
        self.loops_unknown = true;
        self.balance_unchecked = self.balance_unchecked.or(self.balance_in_check.take());
        true
    }

    /// The routing in force.
    pub(in crate::sweep) fn made(&self) -> Option<&Arc<ActiveRouting>> {
        self.made.as_ref()
    }

    /// Whether this is the routing in force.
    pub(in crate::sweep) fn is_in_force(&self, made: &Arc<ActiveRouting>) -> bool {
        self.made.as_ref().is_some_and(|here| Arc::ptr_eq(here, made))
    }

    /// Name of the engine that made the tables; empty before there were any.
    pub(in crate::sweep) fn engine(&self) -> &'static str {
        self.engine
    }

    /// The options for engines, and remarks on options without effect.
    fn asked(&self, settings: &Settings, places: &Places<'_>) -> (OperatorOptions, Vec<String>) {
        let Steered { steering, remarks } = steer(&self.files, settings, places);
        let options_hash = self.files.digest(settings);
        (OperatorOptions { steering, files: self.files.clone(), options_hash }, remarks)
    }

    /// Reports options without effect once they are new: those that have none in any plane.
    fn report(&mut self, of_planes: &[Vec<String>]) {
        let in_all = |line: &&String| of_planes.iter().all(|remarks| remarks.contains(line));
        let first = of_planes.first().map_or(&[][..], |remarks| remarks);
        let remarks: Vec<String> = first.iter().filter(in_all).cloned().collect();
        remarks
            .iter()
            .filter(|line| !self.reported.contains(line))
            .for_each(|line| warn!("{line}"));
        self.reported = remarks;
    }

    /// A job for the fabric as it is in discovery `sweep`; `data_lanes` returns the number of data
    /// VLs of its links.
    pub(in crate::sweep) fn job(
        &mut self,
        sweep: u32,
        settings: &Settings,
        routed: Routed<'_>,
        data_lanes: impl Fn(&Topology, &[SwitchIndex]) -> u8,
    ) -> Result<RoutingJob, TopologyError> {
        let mut found = build::planes(routed)?;
        self.note_doubled(found.iter().map(|plane| plane.doubled).sum());
        let mut remarks = Vec::new();
        let mut job_of = |plane, is_plane| {
            let (job, of_plane) =
                self.plane_job(sweep, settings, routed, &data_lanes, plane, is_plane);
            remarks.push(of_plane);
            job
        };
        if found.len() == 1
            && let Some(plane) = found.pop()
        {
            let job = job_of(plane, false);
            self.report(&remarks);
            return Ok(job);
        }
        let planes: Vec<RoutingJob> = found.into_iter().map(|plane| job_of(plane, true)).collect();
        self.report(&remarks);
        let topologies: Vec<&Topology> = planes.iter().map(|job| &job.topology).collect();
        let topology = sm_routing::planes::joined(&topologies)?;
        let switches: Vec<SwitchIndex> =
            planes.iter().flat_map(|job| job.switches.iter().copied()).collect();
        let asked = match planes.first() {
            Some(job) => job.asked.clone(),
            None => {
                let places = Places::of_fabric(&topology, routed.fabric, &[], routed.lids);
                self.asked(settings, &places).0
            }
        };
        let before = self.made.clone().filter(|_| !self.keeps_nothing);
        Ok(RoutingJob {
            sweep,
            engines: self.engines.clone(),
            guids: guids(routed.fabric, &switches),
            topology,
            asked,
            before: before.map(|made| Before {
                made,
                lfts: Vec::new(),
                switches: Vec::new(),
                is_plane: false,
            }),
            inherited: None,
            left_by: None,
            engines_changed: self.engines_changed,
            switches,
            planes,
            is_plane: false,
        })
    }

    /// Reports, when it begins, that end ports are in one plane more than once.
    fn note_doubled(&mut self, doubled: usize) {
        if doubled > 0 && self.doubled == 0 {
            warn!(
                "{doubled} end ports are in one plane by several ports of an adapter: a cable \
                 joins two planes, or an adapter gives two ports one GUID. All LIDs are routed, \
                 but to one of these ports only"
            );
        }
        self.doubled = doubled;
    }

    /// The job of a plane, or of the fabric if it is the only one, and remarks on options without
    /// effect there.
    fn plane_job(
        &self,
        sweep: u32,
        settings: &Settings,
        routed: Routed<'_>,
        data_lanes: &dyn Fn(&Topology, &[SwitchIndex]) -> u8,
        plane: Plane,
        is_plane: bool,
    ) -> (RoutingJob, Vec<String>) {
        let Plane { topology, switches, .. } = plane;
        let Routed { fabric, lids, .. } = routed;
        let places = Places::of_fabric(&topology, fabric, &switches, lids);
        let (mut asked, remarks) = self.asked(settings, &places);
        asked.steering.common.data_lanes = data_lanes(&topology, &switches);
        let before = self.made.as_ref().filter(|_| !self.keeps_nothing);
        let before = before.and_then(|made| made.plane_with(&switches)).map(|made| Before {
            lfts: made.lfts(fabric),
            switches: switches.iter().map(|&index| made.number(index)).collect(),
            is_plane: self.made.as_ref().is_some_and(|whole| !whole.planes().is_empty()),
            made,
        });
        let lft = |&index: &SwitchIndex| fabric.switch(index).lft.desired().clone();
        let keeps = self.has_inherited && !self.keeps_nothing;
        let job = RoutingJob {
            sweep,
            engines: self.engines.clone(),
            topology,
            guids: guids(fabric, &switches),
            asked,
            before,
            inherited: keeps.then(|| switches.iter().map(lft).collect()),
            left_by: self.left_by.clone(),
            engines_changed: self.engines_changed,
            switches,
            planes: Vec::new(),
            is_plane,
        };
        (job, remarks)
    }

    /// The input that recomputes a routing from scratch.
    fn job_of(&self, made: &ActiveRouting, fabric: &Fabric) -> RoutingJob {
        let planes = made.planes();
        RoutingJob {
            planes: planes.iter().map(|plane| self.job_of(&plane.made, fabric)).collect(),
            is_plane: false,
            sweep: 0,
            engines: self.engines.clone(),
            topology: made.topology.clone(),
            switches: made.switches.clone(),
            guids: guids(fabric, &made.switches),
            asked: made.asked.clone(),
            before: None,
            inherited: None,
            left_by: None,
            engines_changed: false,
        }
    }

    /// Puts a routing in force; its tables become the wanted ones of the switches. `loops` is the
    /// result of the credit-loop check, if it was done; `kept` states how much of the previous
    /// routing it keeps, and `replaces` whether the kept routes may be replaced if they are
    /// unbalanced. Returns whether credit loops are new.
    pub(in crate::sweep) fn adopt(
        &mut self,
        made: ActiveRouting,
        loops: Option<&CreditLoops>,
        kept: Kept,
        replaces: bool,
    ) -> bool {
        self.engines_changed = false;
        // A recomputation requested during a routing that keeps routes applies to the next routing.
        if kept == Kept::Nothing {
            (self.keeps_nothing, self.correction_at) = (false, None);
        }
        self.left_by = None;
        let inherited = std::mem::take(&mut self.has_inherited);
        let is_unseen = sm_routing::is_kept_unseen(made.topology());
        self.balance_unchecked = match kept {
            Kept::Repaired if inherited => Some(KeptRoutes::Inherited),
            // In trees the engine itself compares.
            Kept::Repaired if is_unseen && made.tree_ranks().is_none() => {
                Some(KeptRoutes::OverChanges)
            }
            Kept::Copied => Some(KeptRoutes::OverChanges),
            Kept::Nothing | Kept::Repaired | Kept::Followed => None,
        }
        .filter(|_| replaces);
        self.balance_in_check = None;
        self.plan_loop_check(made.lanes(), loops.is_some());
        self.engine = made.engine();
        self.top = made.topology().last_lid();
        self.lanes_moved |= match (self.made.as_ref().map(|before| before.lanes()), made.lanes()) {
            // The tables of ports cover all layers there can be.
            (Some(Lanes::Layers(_)), Lanes::Layers(_)) => false,
            (before, lanes) => before != Some(lanes),
        };
        self.made = Some(Arc::new(made));
        loops.is_some_and(|loops| self.note_loops(loops))
    }

    /// Plans the credit-loop check of a new routing, if one is needed; `is_checked`: whether its
    /// requests were checked. Loops of replies are searched for afterwards, where there can be any.
    fn plan_loop_check(&mut self, lanes: &Lanes, is_checked: bool) {
        let has_layers = matches!(lanes, Lanes::Layers(_));
        self.loops_unknown = !is_checked || has_layers;
        self.reply_loop_free |= !has_layers;
    }

    /// Records the credit loops of the routing in force. Returns whether they are new, which is
    /// reported once while they stay.
    pub(in crate::sweep) fn note_loops(&mut self, loops: &CreditLoops) -> bool {
        let was_free = std::mem::replace(&mut self.loop_free, loops.is_free());
        was_free && !self.loop_free
    }

    /// Same of loops of replies.
    pub(in crate::sweep) fn note_reply_loops(&mut self, loops: Option<&CreditLoops>) -> bool {
        let is_free = loops.is_none_or(CreditLoops::is_free);
        let was_free = std::mem::replace(&mut self.reply_loop_free, is_free);
        was_free && !is_free
    }

    /// Whether replies of the last checked routing were free of credit loops.
    pub(in crate::sweep) fn are_replies_loop_free(&self) -> bool {
        self.reply_loop_free
    }

    /// Whether the last checked routing was free of credit loops.
    pub(in crate::sweep) fn is_loop_free(&self) -> bool {
        self.loop_free
    }

    /// The lanes have changed, even if no route has.
    pub(in crate::sweep) fn lanes_changed(&mut self) {
        self.lanes_moved = true;
    }

    /// Whether the lanes of the routing in force differ from the previous ones, or those were
    /// unknown; `true` once.
    pub(in crate::sweep) fn take_lanes_moved(&mut self) -> bool {
        let has_lanes = self.made.as_ref().is_some_and(|made| made.lanes().need_tables());
        std::mem::take(&mut self.lanes_moved) && has_lanes
    }

    /// The credit-loop check that is due, if any; returned once.
    pub(in crate::sweep) fn poll_loop_check(&mut self, fabric: &Fabric) -> Option<LoopCheck> {
        if !std::mem::take(&mut self.loops_unknown) {
            return None;
        }
        let made = self.made.clone()?;
        Some(LoopCheck { lfts: made.lfts(fabric), made })
    }

    /// The balance check that is due, if any; returned once.
    pub(in crate::sweep) fn poll_balance_check(&mut self, fabric: &Fabric) -> Option<BalanceCheck> {
        let kept = self.balance_unchecked.take()?;
        self.balance_in_check = Some(kept);
        let made = self.made.clone()?;
        let lfts = made.lfts(fabric);
        let job = self.job_of(&made, fabric);
        Some(BalanceCheck { kept, made, lfts, job })
    }

    /// Makes the next routing keep no routes.
    pub(in crate::sweep) fn keep_nothing(&mut self) {
        self.keeps_nothing = true;
    }

    /// Takes the result of a balance check of the routing in force. If it is unbalanced, all routes
    /// are recomputed after `delay`, or sooner if that was planned, when
    /// [`take_correction`](Self::take_correction) asks for it. Returns whether the correction is
    /// new.
    pub(in crate::sweep) fn balance_known(
        &mut self,
        now: Instant,
        is_balanced: bool,
        delay: Duration,
    ) -> bool {
        self.balance_in_check = None;
        let was_due = self.correction_at.is_some();
        self.correction_at = (!is_balanced).then(|| self.correction_at.unwrap_or(now + delay));
        !is_balanced && !was_due
    }

    /// When all routes are due to be recomputed; `None` if they stay.
    pub(in crate::sweep) fn correction_due(&self) -> Option<Instant> {
        self.correction_at
    }

    /// Whether all routes are due to be recomputed: then the next routing keeps none.
    pub(in crate::sweep) fn take_correction(&mut self, now: Instant) -> bool {
        let is_due = self.correction_at.take_if(|from| now >= *from).is_some();
        self.keeps_nothing |= is_due;
        is_due
    }
}

/// Node GUIDs of switches.
fn guids(fabric: &Fabric, switches: &[SwitchIndex]) -> Vec<Guid> {
    let guid = |&index: &SwitchIndex| fabric.node(fabric.switch(index).node).guid;
    switches.iter().map(guid).collect()
}

/// Splits a list into known engines, with the default last unless it is listed or `no_fallback`
/// is, and the names of unknown engines.
fn engines(names: &str) -> (Vec<Box<dyn Engine>>, Vec<&str>) {
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    let names = names.split(|c: char| c == ',' || c.is_whitespace());
    let mut falls_back = true;
    for name in names.filter(|name| !name.is_empty()) {
        if name.eq_ignore_ascii_case(engines::NO_FALLBACK) {
            falls_back = false;
            continue;
        }
        match engines::find(name) {
            Some(engine) => there.push(engine),
            None => missing.push(name),
        }
    }
    // Without any engine nothing would be routed at all.
    let is_wanted = falls_back || there.is_empty();
    let fallback = engines::fallback();
    if is_wanted && there.iter().all(|engine| engine.name() != fallback.name()) {
        there.push(fallback);
    }
    (there, missing)
}

/// The known engines of `routing_engine`, and minhop. Reports unknown ones.
fn available(names: &str) -> Arc<[Box<dyn Engine>]> {
    let (engines, missing) = engines(names);
    if !missing.is_empty() {
        let there: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
        warn!("routing engine {} does not exist; using {}", missing.join(", "), there.join(", "));
    }
    engines.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_routing::lanes::{Columns, Layers};
    use sm_routing::verify::Traffic;

    fn names(text: &str) -> (Vec<&'static str>, Vec<&str>) {
        let (there, missing) = engines(text);
        (there.iter().map(|engine| engine.name()).collect(), missing)
    }

    /// Regression: an unknown engine was accepted without a message, and minhop was used.
    #[test]
    fn engines_are_tried_in_order_and_unknown_ones_reported() {
        assert_eq!(names("FTree, updn"), (vec!["ftree", "updn", "minhop"], vec![]));
        assert_eq!(names("other,minhop sssp"), (vec!["minhop", "sssp"], vec!["other"]));
        assert_eq!(names("LASH").0, ["lash", "minhop"]);
        assert_eq!(names(""), (vec!["minhop"], vec![]));
        assert_eq!(names("updn,no_fallback"), (vec!["updn"], vec![]));
        assert_eq!(names("other,No_Fallback"), (vec!["minhop"], vec!["other"]));
    }

    /// A warning is logged when loops appear, not again while they stay.
    #[test]
    fn loops_are_news_when_they_appear() {
        let mut routing = RoutingState::new("minhop");
        let found = |looping| CreditLoops {
            traffic: Traffic::All,
            links: 8,
            dependencies: 8,
            looping,
            example: Vec::new(),
            lane: None,
            lanes: 1,
        };
        let (free, loops) = (found(0), found(4));
        let news = [&free, &loops, &loops, &free, &loops].map(|loops| routing.note_loops(loops));
        assert_eq!(news, [false, true, false, false, true]);
        assert!(!routing.is_loop_free());
    }

    /// Regression: a routing without layers that had been checked for loops of requests was not
    /// checked for those of replies, and the loops of the routing before stayed in the list of
    /// problems.
    #[test]
    fn loops_of_replies_end_with_a_routing_that_has_no_layers() {
        let mut routing = RoutingState::new("dfsssp,minhop");
        for is_checked in [false, true] {
            routing.reply_loop_free = false;
            routing.plan_loop_check(
                &Lanes::Layers(Layers::new(1, Columns::EgressSwitch, 1)),
                is_checked,
            );
            assert!(routing.loops_unknown && !routing.are_replies_loop_free());
            routing.plan_loop_check(&Lanes::Free, is_checked);
            assert_eq!(routing.loops_unknown, !is_checked);
            assert!(routing.are_replies_loop_free());
        }
    }

    #[test]
    fn inherited_routes_are_corrected_once_and_not_for_another_master() {
        let (mut routing, now) = (RoutingState::new("minhop"), Instant::now());
        let delay = Duration::from_secs(60);
        assert!(routing.balance_known(now, false, delay));
        assert!(!routing.balance_known(now + delay / 2, false, delay), "it is no news");
        assert!(!routing.take_correction(now) && !routing.keeps_nothing);
        assert!(routing.take_correction(now + delay) && routing.keeps_nothing);
        assert!(!routing.take_correction(now + delay), "it was taken");
        routing.balance_known(now, false, delay);
        routing.balance_known(now, true, delay);
        assert_eq!(routing.correction_due(), None, "other changes have put it right");
        routing.balance_known(now, false, delay);
        routing.forget_origin();
        assert_eq!(routing.correction_due(), None);
    }
}

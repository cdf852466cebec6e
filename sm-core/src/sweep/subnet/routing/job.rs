//! The routing job and its result. It needs no fabric, so another thread can run it.

use std::sync::{Arc, OnceLock};

use ib_mad::types::Guid;
use sa_proto::snapshot::{self, Entries, Lft, PathSls};

use super::active::{ActiveRouting, OperatorOptions, Proved, ports};
use super::origin::Origin;
use crate::fabric::SwitchIndex;
use sm_routing;
use sm_routing::hosts::{Away, Followed};
use sm_routing::verify::{CreditLoops, Deliveries};
use sm_routing::{
    Engine, HopMatrix, Lanes, MinHop, Previous, Reason, Routing, RoutingError, Topology, balance,
    hosts, verify,
};

/// The complete input of a routing engine, copied from the fabric.
#[derive(Debug)]
pub struct RoutingJob {
    /// Number of the discovery it belongs to.
    pub(super) sweep: u32,
    pub(super) engines: Arc<[Box<dyn Engine>]>,
    pub(super) topology: Topology,
    pub(super) switches: Vec<SwitchIndex>,
    /// Node GUIDs of the switches.
    pub(super) guids: Vec<Guid>,
    pub(super) asked: OperatorOptions,
    pub(super) before: Option<Before>,
    /// Tables of another SM, by switch, if there is no previous routing.
    pub(super) inherited: Option<Vec<Arc<Lft>>>,
    /// The engine that computed those, if known.
    pub(super) left_by: Option<Origin>,
    /// Whether the list of engines changed.
    pub(super) engines_changed: bool,
    /// In a planarized fabric: a job for each plane; this one joins their results. Otherwise empty.
    pub(super) planes: Vec<RoutingJob>,
    /// Whether it is of one of several planes.
    pub(super) is_plane: bool,
}

/// How much a routing keeps of the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Kept {
    /// The job keeps no routes.
    Nothing,
    /// Routes that the engine kept, and compared with a routing from scratch unless the fabric is
    /// large ([`sm_routing::is_kept_unseen`]).
    Repaired,
    /// Everything except hosts that came or went; their routes are the earlier ones, or were
    /// compared with a routing from scratch.
    Followed,
    /// Kept, but not compared, because the fabric is large.
    Copied,
}

/// The routing in force when a job was made.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) made: Arc<ActiveRouting>,
    pub(super) lfts: Vec<Arc<Lft>>,
    /// For each switch now, its number then.
    pub(super) switches: Vec<Option<u16>>,
    /// Whether `made` is the routing of one of several planes.
    pub(super) is_plane: bool,
}

/// Result of a [`RoutingJob`].
#[derive(Debug)]
pub struct RoutingOutcome {
    pub(in crate::sweep) sweep: u32,
    /// The fabric's index of each switch, by its number in the topology.
    pub(in crate::sweep) switches: Vec<SwitchIndex>,
    /// `None` if no engine could route the fabric.
    pub(in crate::sweep) chosen: Option<Chosen>,
    /// Why engines that are wanted before it are not used, each with the number of the switch that
    /// its numbers count from.
    pub(in crate::sweep) rejected: Vec<(u16, Rejection)>,
}

/// Why an engine was skipped.
#[derive(Debug)]
pub(in crate::sweep) enum Rejection {
    /// The engine could not route the fabric.
    Refused(RoutingError),
    /// Its tables are wrong.
    Defective(&'static str, Deliveries),
    /// Its routes have credit loops.
    Loops(&'static str, CreditLoops),
}

/// The routing to put in force.
#[derive(Debug)]
pub(in crate::sweep) struct Chosen {
    pub(in crate::sweep) made: ActiveRouting,
    /// Its tables, by switch.
    pub(in crate::sweep) lfts: Vec<Entries>,
    /// How much it keeps of the previous routing.
    pub(in crate::sweep) kept: Kept,
    /// Result of the credit-loop check, if it was done.
    pub(in crate::sweep) loops: Option<CreditLoops>,
    /// Pairs of switch and LID that no path joins.
    pub(in crate::sweep) unreachable: u64,
}

/// A routing with its verification.
#[derive(Debug)]
struct Verified {
    routing: Routing,
    deliveries: Deliveries,
    /// Result of the credit-loop check, if it was done.
    loops: Option<CreditLoops>,
    kept: Kept,
    /// Hosts that went since everything was routed.
    away: Away,
}

impl Verified {
    /// Whether the engine's guarantee holds: one that separates routes by SL must be free of credit
    /// loops.
    fn is_usable(&self) -> bool {
        let must_be_free = !matches!(self.routing.lanes, Lanes::Free);
        self.deliveries.is_sound() && !(must_be_free && self.has_loops())
    }

    fn has_loops(&self) -> bool {
        self.loops.as_ref().is_some_and(|loops| !loops.is_free())
    }

    fn why_not(self) -> Rejection {
        match self.loops {
            Some(loops) if self.deliveries.is_sound() => {
                Rejection::Loops(self.routing.engine, loops)
            }
            _ => Rejection::Defective(self.routing.engine, self.deliveries),
        }
    }
}

impl RoutingJob {
    /// Whether the routing in force was made for the very same topology.
    pub(in crate::sweep) fn is_done(&self) -> bool {
        if !self.planes.is_empty() {
            let before = self.before.as_ref().map(|before| before.made.planes.len());
            return before == Some(self.planes.len()) && self.planes.iter().all(Self::is_done);
        }
        !self.engines_changed
            && self.before.as_ref().is_some_and(|before| {
                before.is_plane == self.is_plane
                    && before.made.topology == self.topology
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
        if !self.planes.is_empty() {
            return super::planes::run(self);
        }
        let mut rejected = Vec::new();
        let mut second_best: Option<(usize, Verified)> = None;
        let mut chosen = None;
        for engine in &*self.engines {
            match self.attempt(&**engine) {
                Ok(made) if self.is_plane && made.routing.lanes.need_tables() => {
                    let reason = Reason::LanesInPlanes.of(engine.name());
                    rejected.push(Rejection::Refused(reason));
                }
                Ok(made) if made.is_usable() && !made.has_loops() => {
                    chosen = Some(made);
                    break;
                }
                Ok(made) if made.is_usable() && second_best.is_none() => {
                    second_best = Some((rejected.len(), made));
                }
                Ok(made) => rejected.push(made.why_not()),
                Err(reason) => rejected.push(Rejection::Refused(reason)),
            }
        }
        let verified = match (chosen, second_best) {
            (Some(made), Some((at, loops))) => {
                rejected.insert(at, loops.why_not());
                Some(made)
            }
            (None, Some((at, made))) => {
                rejected.truncate(at);
                Some(made)
            }
            (chosen, None) => chosen,
        };
        let (sweep, switches) = (self.sweep, self.switches.clone());
        let chosen = verified.map(|verified| self.chosen(verified));
        let rejected = rejected.into_iter().map(|rejection| (0, rejection)).collect();
        RoutingOutcome { sweep, switches, chosen, rejected }
    }

    /// Converts the verified routing that was chosen.
    fn chosen(self, verified: Verified) -> Chosen {
        let Verified { routing, deliveries, loops, kept, away } = verified;
        let path_sls = self.path_sls(&routing.lanes);
        let Routing { engine, lfts, hops, lanes, loads, tree, .. } = routing;
        let Self { topology, switches, asked, .. } = self;
        let is_shortest = engine == MinHop.name() && asked.steering.common.hop_weights.is_empty();
        let distances = if is_shortest { None } else { HopMatrix::compute(&topology) };
        let numbers = switches.iter().copied().zip(0..).collect();
        let tree_ranks = sm_routing::tree_ranks(engine, &topology, &asked.steering.common);
        let made = ActiveRouting {
            engine,
            tree_ranks,
            topology,
            hops,
            loads,
            tree,
            distances,
            switches,
            numbers,
            lanes,
            proved: if deliveries.is_whole() { Proved::Whole(Vec::new()) } else { Proved::Nothing },
            path_sls,
            asked,
            away,
            unicast: OnceLock::new(),
            planes: Vec::new(),
        };
        Chosen { made, lfts, kept, loops, unreachable: deliveries.unreachable }
    }

    fn attempt(&self, engine: &dyn Engine) -> Result<Verified, RoutingError> {
        // Tables of another engine, or of this engine with other options, are not kept.
        let before = self.before.as_ref().filter(|before| {
            let (then, now) = (&before.made.asked, &self.asked);
            // Weights of links that are gone are no weights.
            let are_weighted =
                [then, now].map(|asked| asked.steering.common.hop_weights.is_empty());
            before.made.engine == engine.name()
                && then.options_hash == now.options_hash
                && then.files == now.files
                && are_weighted[0] == are_weighted[1]
        });
        let previous = match (before, &self.inherited) {
            (Some(before), _) => Some(Previous {
                topology: &before.made.topology,
                hops: Some(&before.made.hops),
                lfts: ports(&before.lfts),
                switches: before.switches.clone(),
                loads: &before.made.loads,
                tree: before.made.tree.as_deref(),
            }),
            (None, Some(lfts)) if self.may_inherit(engine) => Some(Previous {
                topology: &self.topology,
                hops: None,
                lfts: ports(lfts),
                switches: self.topology.switches().map(Some).collect(),
                loads: &[],
                tree: None,
            }),
            (None, _) => None,
        };
        let followed =
            before.and_then(|before| self.with_other_hosts(engine, before, previous.as_ref()?));
        if let Some(made) = followed {
            return Ok(made);
        }
        let is_proved = before.is_some_and(|before| before.made.is_whole(&before.lfts));
        let made = self.made_by(engine, previous.as_ref(), is_proved)?;
        if previous.is_some() && !made.is_usable() {
            // The previous tables may be at fault: another SM's, or misreported by a switch.
            return self.made_by(engine, None, false);
        }
        Ok(made)
    }

    /// Whether the tables in the switches were computed by this engine with the same options, as
    /// far as known.
    fn may_inherit(&self, engine: &dyn Engine) -> bool {
        self.left_by.as_ref().is_none_or(|origin| {
            origin.engine == engine.name() && origin.options_hash == self.asked.options_hash
        })
    }

    /// Tables that an engine computes without regard to the tables before; `None` if it fails.
    pub(in crate::sweep) fn route_afresh(&self, engine: &str) -> Option<Vec<Entries>> {
        let engine = self.engines.iter().find(|each| each.name() == engine)?;
        let routing = engine.route(&self.topology, &self.asked.steering, None).ok()?;
        Some(routing.lfts)
    }

    /// The previous routing with other hosts, if the engine would otherwise recompute everything or
    /// use other lanes; `None` if it would not, or if that is not sufficient.
    fn with_other_hosts(
        &self,
        engine: &dyn Engine,
        before: &Before,
        previous: &Previous<'_>,
    ) -> Option<Verified> {
        let made = &before.made;
        let now = &self.asked.steering;
        let options = [&made.asked.steering, now].map(|steering| &steering.common);
        let has_lanes = matches!(made.lanes(), Lanes::Layers(layers) if layers.count > 1);
        let is_asked_the_same = made.asked.options_hash == self.asked.options_hash
            && options[0].data_lanes == options[1].data_lanes
            && options[0].hop_weights == options[1].hop_weights;
        if !is_asked_the_same || engine.keeps_routes(now) && !has_lanes {
            return None;
        }
        let Followed { routing, away, has_copies } =
            hosts::follow(engine.name(), &self.topology, previous, made.lanes(), &made.away)?;
        let is_unseen = sm_routing::is_kept_unseen(&self.topology);
        if has_copies && !is_unseen {
            let fresh = engine.route(&self.topology, now, None).ok();
            let worst = |lfts: &[Entries]| balance::most_to_hosts(&self.topology, lfts);
            let is_worse =
                |fresh: &Routing| !balance::is_balanced(worst(&routing.lfts), worst(&fresh.lfts));
            if let Some(fresh) = fresh.filter(is_worse) {
                return Some(self.verified(fresh, None)).filter(Verified::is_usable);
            }
        }
        let kept = if has_copies && is_unseen { Kept::Copied } else { Kept::Followed };
        let proved = Some(previous).filter(|_| made.is_whole(&before.lfts));
        let followed = Verified { kept, away, ..self.verified(routing, proved) };
        followed.is_usable().then_some(followed)
    }

    /// A routing by an engine, with its verification; the previous one may be proved complete.
    fn made_by(
        &self,
        engine: &dyn Engine,
        previous: Option<&Previous<'_>>,
        is_proved: bool,
    ) -> Result<Verified, RoutingError> {
        let routing = engine.route(&self.topology, &self.asked.steering, previous)?;
        let kept = if previous.is_some() { Kept::Repaired } else { Kept::Nothing };
        Ok(Verified { kept, ..self.verified(routing, previous.filter(|_| is_proved)) })
    }

    /// Verifies a routing; `proved` is a routing to compare with that was proved complete.
    fn verified(&self, routing: Routing, proved: Option<&Previous<'_>>) -> Verified {
        let deliveries = match proved {
            Some(previous) => verify::deliveries_since(&self.topology, &routing, previous),
            None => verify::deliveries(&self.topology, &routing),
        };
        // Where there is no choice of engines, and no promise, loops are looked for when the tables
        // are in force.
        let looks = self.engines.len() > 1 || !matches!(routing.lanes, Lanes::Free);
        Verified {
            deliveries,
            loops: looks.then(|| verify::credit_loops_on_lanes(&self.topology, &routing)),
            routing,
            kept: Kept::Nothing,
            away: Away::default(),
        }
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

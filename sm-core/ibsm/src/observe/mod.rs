//! Live state and history: the connected responders, the figures they report, and the state of the
//! SM, combined for the web page, `ibsmctl top` and other programs.
//!
//! [`Observer`] is called once a second with the current state ([`Seen`]) and keeps its history in
//! memory of fixed size. It opens no socket and reads no clock. The service loop only records
//! sweeps ([`Sweeps`]) for it.
//!
//! - `responders`: the list of connected responders; `sm_status`: the state of this SM.
//! - `reported`: a report of a responder, and rates between two reports; `known`: state and history
//!   of one responder; `totals`: sums over all; `series`, `load`: a value, a load over time;
//!   `talkers`: requesters with the most queries; `names`: names of LIDs.
//! - [`problem`]: the list of problems; `topology`: nodes and links, and how two fabrics differ;
//!   `links`: width and speed of links; `ports`: states and LIDs of ports at a time; `since`: since
//!   when ports are as they are.
//! - [`event`]: what happened.
//! - [`moment`]: the JSON documents. `words`: words for people.
//!
//! This module uses no other module of the crate; `publish`, `front_door`, `web` and `runtime` use
//! it.

mod announcements;
pub mod event;
mod known;
pub(crate) mod links;
mod load;
pub mod moment;
mod names;
pub mod ports;
pub mod problem;
mod readiness;
mod reported;
mod responders;
mod series;
mod since;
mod sm_status;
mod sweeps;
mod talkers;
pub mod topology;
mod totals;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, PortNum};
use sa_proto::snapshot::{FabricPlane, Snapshot, Version};

pub use announcements::Announcements;
use event::Event;
use known::Known;
use load::LoadSeries;
use moment::{
    DropHistory, DropRate, History, Load, Moment, ProblemCounts, ResponderHistory, Sm, Standing,
    SweepCounts, TypeHistory, TypeRate,
};
use names::Names;
#[cfg(test)]
pub(crate) use names::testing as testing_names;
pub(crate) use names::{description, etag, give_names, given_name, given_names, name as node_name};
use ports::KeptFabric;
use problem::{
    Changes, Condition, FabricWatch, Growth, Kind, ProblemList, Problems, of_responders,
};
pub use readiness::Readiness;
pub(crate) use reported::Reported;
pub use responders::{Follower, Hung, Origin, RESPONDERS_MAX, Responder, Responders};
pub(crate) use responders::{Holds, SHARE_MAX};
pub(crate) use responders::{file_names, responder_command, stats};
use series::{COARSE, FINE, Fold, Series};
use since::PortsSince;
pub(crate) use since::Since;
pub use sm_status::{CopyStatus, SmStatus};
pub use sweeps::{SWEEPS_MAX, SweepKind, Sweeps};
use talkers::Talkers;
use topology::{Missing, Topology};
use totals::attribute_name;

/// Types of answers with a separate history; all others share one.
const TYPES_MAX: usize = 15;
/// Reasons of drops with a history.
const REASONS_MAX: usize = 32;
/// How long a disconnected responder is still reported, unless another replaced it: as long as its
/// history has a value for each second.
const DOWN_REPORTED: Duration = Duration::from_secs(FINE as u64);
/// The same of one that hangs: it is not known to have been stopped.
const HUNG_REPORTED: Duration = Duration::from_secs(24 * 3600);

/// The current state, as input of [`Observer::tick`].
pub struct Seen<'a> {
    /// The connected responders.
    pub responders: &'a [Responder],
    /// Those that hang and are not connected any more.
    pub hung: &'a [Hung],
    /// The published snapshot.
    pub snapshot: &'a Arc<Snapshot>,
    /// The version that responders should have; [`Version::NONE`] unless this SM is master.
    pub announced: Version,
    /// When that version and earlier ones were announced.
    pub announcements: &'a Announcements,
    /// The state of this SM.
    pub sm: &'a SmStatus,
    /// Problems that the caller knows of.
    pub conditions: Vec<Condition>,
    /// The caller's counters.
    pub counters: &'a [(&'static str, u64)],
    /// How long this SM has been running.
    pub uptime: Duration,
    /// The sweeps so far.
    pub sweeps: &'a Sweeps,
    /// Milliseconds since 1970.
    pub time_ms: u64,
}

/// Combines reports and keeps their history. Called from one thread.
#[derive(Debug)]
pub struct Observer {
    start: Instant,
    /// The last second recorded.
    tick: Option<u64>,
    time_ms: u64,
    responders: BTreeMap<u64, Known>,
    total: LoadSeries,
    types: Vec<((u16, String), Series)>,
    other_types: Series,
    reasons: Vec<(String, Series)>,
    talkers: Talkers,
    names: Names,
    watch: FabricWatch,
    ports_since: PortsSince,
    growth: Growth,
    problems: ProblemList,
    changes: Changes,
}

/// Time range and resolution of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// The last 15 minutes, per second.
    Seconds,
    /// The last 24 hours, per minute.
    Minutes,
}

impl Observer {
    /// An observer without history.
    pub fn new(now: Instant) -> Self {
        Self {
            start: now,
            tick: None,
            time_ms: 0,
            responders: BTreeMap::new(),
            total: LoadSeries::default(),
            types: Vec::new(),
            other_types: Series::new(Fold::Mean),
            reasons: Vec::new(),
            talkers: Talkers::default(),
            names: Names::default(),
            watch: FabricWatch::default(),
            ports_since: PortsSince::default(),
            growth: Growth::default(),
            problems: ProblemList::default(),
            changes: Changes::default(),
        }
    }

    /// Records a second. `None` if it is the same as in the last call.
    pub fn tick(&mut self, now: Instant, seen: &Seen<'_>) -> Option<Moment> {
        let tick = now.saturating_duration_since(self.start).as_secs();
        let next = self.tick.map_or(0, |last| last + 1);
        if tick < next {
            return None;
        }
        // Missed seconds are unknown; only as many as the history keeps are recorded.
        let kept = (COARSE * 60) as u64;
        for missed in next.max(tick.saturating_sub(kept))..tick {
            self.remember(missed, &Load::default(), &[], &[], false);
        }
        (self.tick, self.time_ms) = (Some(tick), seen.time_ms);
        self.follow(now, seen);
        let total = self.total(seen);
        let (types, drops) = (self.type_rates(), self.drop_rates());
        let requesters = self.responders.values().filter_map(|known| known.rates.as_ref());
        let requesters = requesters.flat_map(|rates| &rates.requesters);
        self.talkers.tick(requesters);
        self.names.follow(seen.snapshot);
        self.remember(tick, &total, &types, &drops, true);
        self.judge(now, seen);
        self.ports_since.follow(seen.time_ms, seen.snapshot.fabric());
        let talkers = self.talkers(total.requests_per_s);
        let types = types.into_iter().map(|(_, rate)| rate).collect();
        let mut responders: Vec<_> =
            self.responders.values().map(|known| known.now.clone()).collect();
        responders.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Some(Moment {
            tick,
            time_ms: seen.time_ms,
            sm: sm(seen),
            fabric: self.fabric(),
            total,
            types,
            drops,
            responders,
            talkers,
            sweeps: sweeps(seen),
            problems: ProblemCounts::of(self.problems.problems(), &self.changes),
            watchers: moment::Watchers::default(),
            counter_sweeps: None,
        })
    }

    /// Notes a published fabric, so that what goes within the second is missed. `time_ms`: since
    /// 1970.
    pub(crate) fn follow_fabric(&mut self, now: Instant, time_ms: u64, plane: &Arc<FabricPlane>) {
        self.watch.follow(now, plane);
        self.ports_since.follow(time_ms, plane);
    }

    /// Since when the ports of a node are as they are, ascending by number.
    pub(crate) fn since_of(&self, guid: Guid) -> Vec<(PortNum, Since)> {
        self.ports_since.of_node(guid)
    }

    /// What is missing of the fabric, as of the last tick.
    pub(crate) fn missing(&self) -> Arc<Missing> {
        self.watch.missing()
    }

    /// Size of the fabric. Its map has another ETag also if other nodes or links are missing.
    fn fabric(&self) -> moment::FabricCounts {
        let mut counts = self.names.counts();
        counts.etag += &self.watch.missing().tag;
        counts
    }

    /// Compares the list of problems with what is wrong now.
    fn judge(&mut self, now: Instant, seen: &Seen<'_>) {
        let leads = seen.announced.fabric_generation > 0;
        let mut conditions = seen.sm.conditions.clone();
        conditions.extend_from_slice(&seen.conditions);
        if leads {
            conditions.extend(self.watch.conditions(now, seen.snapshot.fabric()));
        }
        let responders = of_responders(self.responders.values().map(|known| &known.now));
        // Without a session of ours, those that wait do so for another manager.
        conditions.extend(
            responders.into_iter().filter(|one| leads || one.kind != Kind::ResponderWaiting),
        );
        let sm = seen.sm.counters.iter().map(|(name, value)| (&**name, *value));
        let totals = sm.chain(seen.counters.iter().copied());
        conditions.extend(self.growth.conditions(now, totals));
        self.changes = self.problems.update(now, seen.time_ms, conditions);
    }

    /// Reports from now on how the fabric differs from this one; with `None`, what was there and is
    /// missing.
    pub fn expect(&mut self, expected: Option<Arc<Topology>>) {
        self.watch.expect(expected);
    }

    /// Takes the events of before this SM was started, which is at `now`, `time_ms` since 1970:
    /// problems that were open go on.
    pub(crate) fn restore(&mut self, now: Instant, time_ms: u64, events: &[Event]) {
        self.problems.restore(event::problems_open_after(now, time_ms, events));
    }

    /// Reports what is missing of all that was known before a restart, unless there is a baseline.
    /// `last`: the fabric of then, and since when it was so, milliseconds since 1970.
    pub fn resume_from(&mut self, now: Instant, known: Topology, last: (u64, KeptFabric)) {
        self.watch.remember(now, known);
        self.ports_since.resume_from(last.0, last.1);
    }

    /// The problems as of the last tick.
    pub fn problems(&self) -> &Problems {
        self.problems.problems()
    }

    /// What changed in them at the last tick.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The history up to the last tick.
    pub fn history(&self, range: Range) -> History {
        let Some(tick) = self.tick else { return History::default() };
        let read = |series: &Series| match range {
            Range::Seconds => series.seconds(tick, FINE),
            Range::Minutes => series.minutes(tick, COARSE),
        };
        let types = self.types.iter().map(|((id, method), series)| TypeHistory {
            attribute: attribute_name(*id),
            method: method.clone(),
            per_s: read(series),
        });
        let mut types: Vec<_> = types.collect();
        if self.types.len() >= TYPES_MAX {
            let (attribute, method) = ("other".to_owned(), String::new());
            types.push(TypeHistory { attribute, method, per_s: read(&self.other_types) });
        }
        let drops = self
            .reasons
            .iter()
            .map(|(reason, series)| DropHistory { reason: reason.clone(), per_s: read(series) });
        let responders = self.responders.values().map(|known| ResponderHistory {
            id: known.now.id.clone(),
            name: known.now.name.clone(),
            load: known.series.read(read),
        });
        // The last value covers a whole minute, which ended some time ago.
        let since_s = match range {
            Range::Seconds => 0,
            Range::Minutes => (tick + 1) % 60,
        };
        History {
            step_s: if range == Range::Seconds { 1 } else { 60 },
            tick: tick.saturating_sub(since_s),
            time_ms: self.time_ms.saturating_sub(since_s * 1000),
            total: self.total.read(read),
            types,
            drops: drops.collect(),
            responders: responders.collect(),
        }
    }

    /// Updates the known responders.
    fn follow(&mut self, now: Instant, seen: &Seen<'_>) {
        for responder in seen.responders.iter().filter(|responder| !responder.is_client()) {
            if self.responders.len() >= RESPONDERS_MAX
                && !self.responders.contains_key(&responder.id)
                && !self.forget_one()
            {
                continue;
            }
            let known = self.responders.entry(responder.id).or_insert_with(Known::new);
            known.follow(now, responder, seen);
        }
        let is_there = |id: u64| seen.responders.iter().any(|responder| responder.id == id);
        for (&id, known) in &mut self.responders {
            if !is_there(id) {
                known.miss(now, seen.hung.iter().any(|hung| hung.id == id));
            }
        }
        // A responder without a stable identity returns with a new one at the same address.
        let is_replaced = |known: &Known| {
            let came = |responder: &Responder| {
                let port = responder.port.map(|(guid, _)| guid.to_string());
                let at = |address: &String| {
                    responder.front_door.iter().any(|other| other.to_string() == *address)
                };
                (port.is_some() && port == known.now.port_guid)
                    || known.now.front_door.iter().any(at)
            };
            known.gone.is_some() && seen.responders.iter().filter(|r| !r.is_client()).any(came)
        };
        self.responders.retain(|_, known| {
            let is_hung = known.now.state == Standing::Silent;
            let reported = if is_hung { HUNG_REPORTED } else { DOWN_REPORTED };
            known.gone.is_none_or(|gone| now < gone + reported) && !is_replaced(known)
        });
    }

    /// Removes the responder that disconnected first; returns `false` if all are connected.
    fn forget_one(&mut self) -> bool {
        let gone = self.responders.iter().filter_map(|(&id, known)| Some((known.gone?, id)));
        match gone.min() {
            Some((_, id)) => self.responders.remove(&id).is_some(),
            None => false,
        }
    }

    /// Appends a second to the history.
    fn remember(
        &mut self,
        tick: u64,
        total: &Load,
        types: &[((u16, String), TypeRate)],
        drops: &[DropRate],
        is_known: bool,
    ) {
        self.total.push(tick, total);
        for (key, _) in types {
            if self.types.len() < TYPES_MAX && self.types.iter().all(|(other, _)| other != key) {
                self.types.push((key.clone(), Series::new(Fold::Mean)));
            }
        }
        let known = is_known && total.answers_per_s.is_some();
        let mut others: f64 = types.iter().map(|(_, rate)| rate.per_s).sum();
        for (key, series) in &mut self.types {
            let rate = types.iter().find(|(other, _)| other == key).map_or(0.0, |(_, r)| r.per_s);
            others -= rate;
            series.push(tick, known.then_some(rate));
        }
        self.other_types.push(tick, known.then_some(others.max(0.0)));
        for drop in drops {
            let is_new = self.reasons.iter().all(|(other, _)| *other != drop.reason);
            if is_new && self.reasons.len() < REASONS_MAX {
                self.reasons.push((drop.reason.clone(), Series::new(Fold::Mean)));
            }
        }
        for (reason, series) in &mut self.reasons {
            let rate = drops.iter().find(|drop| drop.reason == *reason).map_or(0.0, |d| d.per_s);
            series.push(tick, known.then_some(rate));
        }
        for known in self.responders.values_mut() {
            let unknown = Load::default();
            known.series.push(tick, if is_known { &known.now.load } else { &unknown });
        }
    }
}

fn sm(seen: &Seen<'_>) -> Sm {
    let version = seen.snapshot.version();
    Sm {
        state: seen.sm.state.clone(),
        phase: seen.sm.phase.clone(),
        subnet_up: seen.sm.subnet_up,
        routing_engine: seen.sm.routing_engine.clone(),
        engines_passed_over: seen.sm.engines_passed_over.clone(),
        software: concat!("ibsm ", env!("CARGO_PKG_VERSION")).into(),
        guid: version.session.sm_guid.to_string(),
        uptime_s: seen.uptime.as_secs(),
        epoch: version.session.epoch,
        fabric_generation: version.fabric_generation,
        registry_sequence: version.registry_sequence,
        warnings: seen.sm.warnings.clone(),
    }
}

fn sweeps(seen: &Seen<'_>) -> SweepCounts {
    let last = seen.sweeps.last();
    let full_ms = last.as_ref().map(|last| last.ended_ms);
    let last_ms = full_ms.max(seen.sm.quiet_sweep_ms);
    SweepCounts {
        last: last.map_or(0, |last| last.number),
        quiet: seen.sm.quiet_sweeps,
        last_ended_s: last_ms.map(|at| seen.time_ms.saturating_sub(at) as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests;

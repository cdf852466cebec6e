//! What is going on: figures that responders report, joined and remembered, for the web page,
//! `ibsmctl top` and programs.
//!
//! [`Observer`] is called once a second with what is known then; it keeps how that was over time in
//! memory of fixed size. It opens no socket and reads no clock, and it only reads what others have
//! published: the subnet manager's loop does nothing for it but to note sweeps ([`Sweeps`]).
//!
//! - `reported`: what a responder tells, and rates between two reports; `known`: a responder;
//!   `totals`: all of them; `series`, `load`: a value, a load over time; `talkers`: who asks most;
//!   `names`: whose LID it is.
//! - [`moment`]: what is told, as documents.

mod announcements;
mod known;
mod load;
pub mod moment;
mod names;
mod reported;
mod series;
mod sweeps;
mod talkers;
mod totals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sa_proto::snapshot::{Snapshot, Version};

use crate::publish::{RESPONDERS_MAX, Responder, SmStatus};
pub use announcements::Announcements;
use known::Known;
use load::LoadSeries;
use moment::{
    DropHistory, DropRate, History, Load, Moment, ResponderHistory, Sm, SweepCounts, TypeHistory,
    TypeRate,
};
use names::Names;
pub(crate) use names::{etag, name as node_name};
pub(crate) use reported::Reported;
use series::{COARSE, FINE, Fold, Series};
pub use sweeps::{SWEEPS_MAX, Sweeps};
use talkers::Talkers;
use totals::attribute_name;

/// Types of answers that are remembered one by one; all others together.
const TYPES_MAX: usize = 15;
/// Reasons of drops that are remembered.
const REASONS_MAX: usize = 32;
/// How long a responder that left is told of, unless another has taken its place: as long as what it
/// did is remembered by the second.
const DOWN_TOLD: Duration = Duration::from_secs(FINE as u64);

/// What is known at one instant.
pub struct Seen<'a> {
    /// The responders that are connected.
    pub responders: &'a [Responder],
    /// What is published.
    pub snapshot: &'a Arc<Snapshot>,
    /// The version that responders should have; none while this is no master.
    pub announced: Version,
    /// When that and those before it were announced.
    pub announcements: &'a Announcements,
    /// What the subnet manager says of itself.
    pub sm: &'a SmStatus,
    /// Since when it runs.
    pub uptime: Duration,
    /// The sweeps so far.
    pub sweeps: &'a Sweeps,
    /// Milliseconds since 1970.
    pub time_ms: u64,
}

/// Joins and remembers. Called from one thread.
#[derive(Debug)]
pub struct Observer {
    start: Instant,
    /// The second that was taken in last.
    tick: Option<u64>,
    time_ms: u64,
    responders: BTreeMap<u64, Known>,
    total: LoadSeries,
    types: Vec<((u16, String), Series)>,
    other_types: Series,
    reasons: Vec<(String, Series)>,
    talkers: Talkers,
    names: Names,
}

/// How far back to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// A quarter of an hour, by the second.
    Seconds,
    /// A day, by the minute.
    Minutes,
}

impl Observer {
    /// Remembers nothing yet.
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
        }
    }

    /// Takes in a second. `None` if it is the same as in the last call.
    pub fn tick(&mut self, now: Instant, seen: &Seen<'_>) -> Option<Moment> {
        let tick = now.saturating_duration_since(self.start).as_secs();
        let next = self.tick.map_or(0, |last| last + 1);
        if tick < next {
            return None;
        }
        // What was missed is unknown; no more of it than is kept.
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
        let talkers = self.talkers(total.requests_per_s);
        let types = types.into_iter().map(|(_, rate)| rate).collect();
        let mut responders: Vec<_> =
            self.responders.values().map(|known| known.now.clone()).collect();
        responders.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Some(Moment {
            tick,
            time_ms: seen.time_ms,
            sm: sm(seen),
            fabric: self.names.counts(),
            total,
            types,
            drops,
            responders,
            talkers,
            sweeps: sweeps(seen),
            watchers: moment::Watchers::default(),
        })
    }

    /// How things were up to the last tick.
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
        // The last value is of a whole minute, which ended some time ago.
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

    /// Brings what is known of responders up to date.
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
                known.miss(now);
            }
        }
        // One that keeps no identity over restarts comes back as another, at the same place.
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
            known.gone.is_none_or(|gone| now < gone + DOWN_TOLD) && !is_replaced(known)
        });
    }

    /// Makes room by forgetting who is gone for the longest time; `false` if nobody is.
    fn forget_one(&mut self) -> bool {
        let gone = self.responders.iter().filter_map(|(&id, known)| Some((known.gone?, id)));
        match gone.min() {
            Some((_, id)) => self.responders.remove(&id).is_some(),
            None => false,
        }
    }

    /// Writes a second down.
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

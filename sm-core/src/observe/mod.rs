//! What is going on: figures that responders report, joined and remembered, for the web page,
//! `ibsmctl top` and programs.
//!
//! [`Observer`] is called once a second with what is known then; it keeps how that was over time in
//! memory of fixed size. It opens no socket and reads no clock, and it only reads what others have
//! published: the subnet manager's loop does nothing for it but to note sweeps ([`Sweeps`]).
//!
//! - `reported`: what a responder tells, and rates between two reports; `series`: a value over
//!   time; `talkers`: who asks most; `names`: whose LID it is.
//! - [`moment`]: what is told, as documents.

mod announcements;
pub mod moment;
mod names;
mod reported;
mod series;
mod sweeps;
mod talkers;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::{Snapshot, Version};

use crate::publish::{RESPONDERS_MAX, Responder, SmStatus};
pub use announcements::Announcements;
use moment::{
    DropHistory, DropRate, History, Load, LoadHistory, Moment, ResponderHistory, ResponderNow, Sm,
    Standing, SweepCounts, Talker, TypeHistory, TypeRate,
};
use names::Names;
pub(crate) use names::{etag, name as node_name};
pub(crate) use reported::Reported;
use reported::{Rates, merge, quantile_us};
use series::{COARSE, FINE, Fold, Series};
pub use sweeps::{SWEEPS_MAX, Sweeps};
use talkers::Talkers;

/// Types of answers that are remembered one by one; all others together.
const TYPES_MAX: usize = 15;
/// Reasons of drops that are remembered.
const REASONS_MAX: usize = 32;
/// Requesters told of.
const TALKERS_MAX: usize = 20;
/// How long a report holds: they come every second.
const REPORT_HOLDS: Duration = Duration::from_millis(3500);
/// How long a responder may lack what was announced until it counts as behind.
const BEHIND_AFTER: Duration = Duration::from_secs(1);
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

/// A responder.
#[derive(Debug)]
struct Known {
    now: ResponderNow,
    /// Its connection, and the report of it that came last, with the instant.
    connection: u64,
    last: Option<(Arc<Reported>, Instant)>,
    rates: Option<Rates>,
    /// Since when it is gone.
    gone: Option<Instant>,
    /// What it answers from, and since when it lacks something that was announced.
    behind: Option<(Option<Version>, Instant)>,
    /// What it answered from at the last look.
    serving: Option<Version>,
    series: LoadSeries,
}

/// A [`Load`] over time.
#[derive(Debug)]
struct LoadSeries([Series; 7]);

impl Default for LoadSeries {
    fn default() -> Self {
        use Fold::{Max, Mean};
        Self([Mean, Mean, Mean, Max, Max, Max, Max].map(Series::new))
    }
}

impl LoadSeries {
    fn push(&mut self, tick: u64, load: &Load) {
        let in_flight = load.in_flight.map(|count| count as f64);
        let (p50, p99, p999) = (load.p50_us, load.p99_us, load.p999_us);
        let values =
            [load.answers_per_s, load.dropped_per_s, in_flight, p50, p99, p999, load.lag_ms];
        self.0.iter_mut().zip(values).for_each(|(series, value)| series.push(tick, value));
    }

    fn read(&self, read: impl Fn(&Series) -> Vec<Option<f32>>) -> LoadHistory {
        let [answers_per_s, dropped_per_s, in_flight, p50_us, p99_us, p999_us, lag_ms] =
            self.0.each_ref().map(read);
        LoadHistory { answers_per_s, dropped_per_s, in_flight, p50_us, p99_us, p999_us, lag_ms }
    }
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

    fn total(&self, seen: &Seen<'_>) -> Load {
        let rates = || self.responders.values().filter_map(|known| known.rates.as_ref());
        let any = rates().next().is_some();
        let sum = |part: fn(&Rates) -> f64| any.then(|| rounded(rates().map(part).sum()));
        let mut latency = Vec::new();
        rates().for_each(|rates| merge(&mut latency, &rates.latency));
        let there = || self.responders.values().filter(|known| known.gone.is_none());
        let in_flight = there().filter_map(|known| known.now.load.in_flight).sum();
        let lags = there().filter_map(|known| known.now.load.lag_ms);
        Load {
            requests_per_s: sum(|rates| rates.requests),
            answers_per_s: sum(|rates| rates.responses),
            errors_per_s: sum(|rates| rates.errors),
            no_records_per_s: sum(|rates| rates.no_records),
            dropped_per_s: sum(|rates| rates.dropped),
            in_flight: any.then_some(in_flight),
            lag_ms: lags.reduce(f64::max).filter(|_| seen.announced.fabric_generation > 0),
            ..latencies(&latency)
        }
    }

    /// Answers by type, with the key that they are remembered by.
    fn type_rates(&self) -> Vec<((u16, String), TypeRate)> {
        let mut by_type: HashMap<(u16, String), TypeRate> = HashMap::new();
        for known in self.responders.values() {
            for (kind, per_s) in known.rates.iter().flat_map(|rates| &rates.answers) {
                let key = (kind.attribute, kind.method.clone());
                let rate = by_type.entry(key).or_insert_with(|| TypeRate {
                    attribute: attribute_name(kind.attribute),
                    method: kind.method.clone(),
                    ..TypeRate::default()
                });
                rate.per_s += per_s;
                rate.total += kind.count;
                rate.errors_per_s += if kind.is_error() { *per_s } else { 0.0 };
                rate.no_records_per_s += if kind.is_no_records() { *per_s } else { 0.0 };
            }
        }
        let mut types: Vec<_> = by_type.into_iter().collect();
        for (_, rate) in &mut types {
            for per_s in [&mut rate.per_s, &mut rate.errors_per_s, &mut rate.no_records_per_s] {
                *per_s = rounded(*per_s);
            }
        }
        types.sort_by(|(a, one), (b, other)| {
            other.per_s.total_cmp(&one.per_s).then(other.total.cmp(&one.total)).then(a.cmp(b))
        });
        types
    }

    fn drop_rates(&self) -> Vec<DropRate> {
        let mut by_reason: BTreeMap<&str, DropRate> = BTreeMap::new();
        for known in self.responders.values() {
            let Some((rates, (last, _))) = known.rates.as_ref().zip(known.last.as_ref()) else {
                continue;
            };
            for ((reason, per_s), (_, total)) in rates.reasons.iter().zip(&last.dropped) {
                let rate = by_reason.entry(reason).or_default();
                rate.per_s += per_s;
                rate.total += total;
            }
        }
        let mut drops: Vec<_> = by_reason
            .into_iter()
            .map(|(reason, rate)| DropRate {
                reason: reason.to_owned(),
                per_s: rounded(rate.per_s),
                total: rate.total,
            })
            .collect();
        drops.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then(b.total.cmp(&a.total)));
        drops
    }

    fn talkers(&self, requests_per_s: Option<f64>) -> Vec<Talker> {
        let all = requests_per_s.unwrap_or(0.0);
        let top = self.talkers.top(TALKERS_MAX).into_iter();
        top.map(|(lid, per_s)| {
            let (node, guid) = self.names.of_lid(lid);
            let share = if all > 0.0 { (per_s / all).min(1.0) } else { 0.0 };
            Talker { lid, node, guid, per_s: rounded(per_s), share: (share * 1e4).round() / 1e4 }
        })
        .collect()
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

impl Known {
    fn new() -> Self {
        Self {
            now: ResponderNow::default(),
            connection: 0,
            last: None,
            rates: None,
            gone: None,
            behind: None,
            serving: None,
            series: LoadSeries::default(),
        }
    }

    /// Takes in what is known of a responder that is connected.
    fn follow(&mut self, now: Instant, responder: &Responder, seen: &Seen<'_>) {
        if self.connection != responder.connection() {
            (self.connection, self.last, self.rates) = (responder.connection(), None, None);
        }
        self.gone = None;
        if let Some(figures) = &responder.figures {
            let is_new = self.last.as_ref().is_none_or(|(last, _)| !Arc::ptr_eq(last, figures));
            if is_new {
                let before = self.last.as_ref();
                self.rates = before.and_then(|(last, _)| Rates::between(last, figures));
                self.last = Some((Arc::clone(figures), now));
            }
        }
        let reported = self.last.as_ref().map_or(responder.since, |(_, at)| *at);
        let is_silent = now.saturating_duration_since(reported) > REPORT_HOLDS;
        if is_silent {
            self.rates = None;
        }
        let published = seen.announced.fabric_generation > 0;
        let is_behind = published && responder.serving != Some(seen.announced);
        let since = |since: Instant| now.saturating_duration_since(since);
        self.behind = is_behind.then(|| {
            let serving = responder.serving;
            let missed = seen.announcements.first_after(serving).unwrap_or(now);
            // It cannot have had what was announced before it came.
            let begun = missed.max(responder.since);
            match self.behind {
                Some((before, behind)) if before == serving => (serving, behind.min(begun)),
                _ => (serving, begun),
            }
        });
        let lag = match self.behind {
            Some((_, behind)) => since(behind),
            None if self.serving != responder.serving => responder.lag.unwrap_or_default(),
            None => Duration::ZERO,
        };
        self.serving = responder.serving;
        let is_behind = self.behind.is_some_and(|(_, behind)| since(behind) >= BEHIND_AFTER);
        let last = self.last.as_ref().filter(|_| !is_silent).map(|(last, _)| &**last);
        let serving = last.and_then(|last| last.serving);
        self.now = ResponderNow {
            id: format!("{:#018x}", responder.id),
            name: responder.name.to_string(),
            software: responder.software.to_string(),
            front_door: responder.front_door.iter().map(ToString::to_string).collect(),
            port_guid: responder.port.map(|(guid, _)| guid.to_string()),
            state: match responder.serving {
                _ if is_silent => Standing::Silent,
                None => Standing::Waiting,
                Some(_) if is_behind => Standing::Behind,
                Some(_) => Standing::Current,
            },
            for_s: since(responder.since).as_secs(),
            fabric_generation: responder.serving.map_or(0, |version| version.fabric_generation),
            registry_sequence: responder.serving.map_or(0, |version| version.registry_sequence),
            snapshot_age_s: serving.map(|(_, age)| rounded(age.as_secs_f64())),
            apply_ms: serving.map(|(built_in, _)| millis(built_in)),
            last_update_ms: responder.lag.map(millis),
            load: Load {
                in_flight: last.map(|last| last.in_flight),
                lag_ms: published.then(|| millis(lag)),
                ..self.rates.as_ref().map_or_else(Load::default, |rates| Load {
                    requests_per_s: Some(rounded(rates.requests)),
                    answers_per_s: Some(rounded(rates.responses)),
                    errors_per_s: Some(rounded(rates.errors)),
                    no_records_per_s: Some(rounded(rates.no_records)),
                    dropped_per_s: Some(rounded(rates.dropped)),
                    ..latencies(&rates.latency)
                })
            },
        };
    }

    /// Takes in that it is not connected.
    fn miss(&mut self, now: Instant) {
        let gone = *self.gone.get_or_insert(now);
        (self.rates, self.behind) = (None, None);
        self.now.state = Standing::Down;
        self.now.for_s = now.saturating_duration_since(gone).as_secs();
        self.now.load = Load::default();
        (self.now.snapshot_age_s, self.now.apply_ms) = (None, None);
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

fn latencies(buckets: &[(u64, u64)]) -> Load {
    let quantile = |share| quantile_us(buckets, share).map(|us| (us * 100.0).round() / 100.0);
    Load {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        ..Load::default()
    }
}

/// Name of an attribute, or its number.
fn attribute_name(id: u16) -> String {
    match attribute::name(AttributeId(id)) {
        Some(name) => name.to_owned(),
        // What the class does not define is not told apart.
        None if id == 0 => "unknown".to_owned(),
        None => format!("{id:#06x}"),
    }
}

/// To a tenth, which is more than means anything.
fn rounded(value: f64) -> f64 {
    // Of a sum of nothing the zero is a negative one.
    (value * 10.0).round() / 10.0 + 0.0
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

#[cfg(test)]
mod tests;

//! Tracks one responder: its reports, whether it keeps up with the snapshot, and its load over
//! time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sa_proto::snapshot::Version;

use super::load::{LoadSeries, latencies, millis, rounded};
use super::moment::{Load, ResponderNow, Standing};
use super::reported::{Rates, Reported};
use super::{Responder, Seen};

/// How long a report is valid. Reports arrive every second.
const REPORT_HOLDS: Duration = Duration::from_millis(3500);
/// How long a responder may lack an announced version before it counts as behind.
const BEHIND_AFTER: Duration = Duration::from_secs(1);

/// The known state of a responder.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) now: ResponderNow,
    /// Its connection, and its last report with the time of arrival.
    connection: u64,
    pub(super) last: Option<(Arc<Reported>, Instant)>,
    pub(super) rates: Option<Rates>,
    /// When it disconnected.
    pub(super) gone: Option<Instant>,
    /// The version that it serves, and since when it lacks an announced one.
    behind: Option<(Option<Version>, Instant)>,
    /// The version that it served at the last update.
    serving: Option<Version>,
    pub(super) series: LoadSeries,
}

impl Known {
    pub(super) fn new() -> Self {
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

    /// Updates the state from a connected responder.
    pub(super) fn follow(&mut self, now: Instant, responder: &Responder, seen: &Seen<'_>) {
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
            // A version announced before it connected cannot have reached it earlier.
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
                Some(_) if published && responder.is_elsewhere(seen.announced.session) => {
                    Standing::Elsewhere
                }
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

    /// Records that it is not connected; `is_hung`: this SM closed its connection, because it was
    /// silent.
    pub(super) fn miss(&mut self, now: Instant, is_hung: bool) {
        let gone = *self.gone.get_or_insert(now);
        (self.rates, self.behind) = (None, None);
        self.now.state = if is_hung { Standing::Silent } else { Standing::Down };
        self.now.for_s = now.saturating_duration_since(gone).as_secs();
        self.now.load = Load::default();
        (self.now.snapshot_age_s, self.now.apply_ms) = (None, None);
    }
}

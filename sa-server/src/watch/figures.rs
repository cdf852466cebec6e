//! The report on work done that this responder sends to the SM once a second.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sa_proto::proto::snapshot as proto;

use crate::stats::{DropReason, Kind, Stats, StatusLabel, Subject};
use crate::watch::metrics::Metrics;
use crate::watch::top_requesters::TopRequesters;

/// The reason for packets lost before they were read.
const SOCKET_OVERFLOW: &str = "socket_overflow";

/// The statistic that says when the first certificate ends.
const CERTIFICATE_END: &str = "certificate_end_s";

/// Maximum number of kinds of answers in a report: more than occur together.
const KINDS_MAX: usize = 512;

/// Builds reports from the counters.
#[derive(Debug)]
pub struct Reporter {
    metrics: Arc<Metrics>,
    started: Instant,
    /// When the first of the certificates ends, seconds since 1970; 0 if that is not known.
    certificate_end_s: Arc<AtomicU64>,
    requesters: Mutex<TopRequesters>,
}

impl Reporter {
    /// Reports on `metrics`; requesters are counted from now on.
    /// `certificate_end_s`: when the first certificate ends, seconds since 1970; 0 for none.
    pub fn new(metrics: Arc<Metrics>, now: Instant, certificate_end_s: Arc<AtomicU64>) -> Self {
        let workers = metrics.workers.iter().map(|(_, stats)| Arc::clone(stats));
        let requesters = Mutex::new(TopRequesters::new(workers));
        Self { metrics, started: now, certificate_end_s, requesters }
    }

    /// The next report.
    pub fn report(&self, now: Instant) -> proto::Stats {
        let counter = |(name, value): (String, u64)| proto::Counter { name, value };
        let end_s = Some(self.certificate_end_s.load(Relaxed)).filter(|end_s| *end_s > 0);
        let end = end_s.map(|end_s| (CERTIFICATE_END.to_owned(), end_s));
        proto::Stats {
            counters: end.into_iter().chain(self.metrics.totals()).map(counter).collect(),
            figures: Some(self.figures(now)),
        }
    }

    fn figures(&self, now: Instant) -> proto::Figures {
        let serving = self.metrics.serving.load();
        let counter = |name: &str, value| proto::Counter { name: name.to_owned(), value };
        let dropped = DropReason::ALL
            .iter()
            .map(|&reason| counter(reason.label(), self.sum(|stats| stats.dropped(reason))));
        // They were never read, so they do not count as requests, but their clients wait as well.
        let overflow = self.sum(|stats| stats.socket_overflow.get());
        let dropped = dropped.chain([counter(SOCKET_OVERFLOW, overflow)]);
        let mut requesters = self.requesters.lock().unwrap_or_else(PoisonError::into_inner);
        proto::Figures {
            uptime_ns: now.saturating_duration_since(self.started).as_nanos() as u64,
            requests: self.sum(Stats::requests),
            responses: self.sum(Stats::responses),
            in_flight: self.sum(Stats::in_flight),
            answers: self.answers(),
            dropped: dropped.filter(|reason| reason.value > 0).collect(),
            latency: Some(self.latency()),
            requesters: requesters.take(),
            serving: serving.as_ref().map(|serving| proto::Serving {
                built_in_us: (serving.built_in_s * 1e6) as u64,
                age_ms: now.saturating_duration_since(serving.since).as_millis() as u64,
            }),
        }
    }

    fn sum(&self, count: impl Fn(&Stats) -> u64) -> u64 {
        self.metrics.workers.iter().map(|(_, stats)| count(stats)).sum()
    }

    fn answers(&self) -> Vec<proto::Answers> {
        let mut kinds = Vec::new();
        for subject in Subject::all() {
            for &status in StatusLabel::ALL {
                let count = self.sum(|stats| stats.responses_of(subject, status));
                if count > 0 && kinds.len() < KINDS_MAX {
                    kinds.push(proto::Answers {
                        attribute: subject.attribute_id().map_or(0, |id| id.0.into()),
                        method: subject.method().to_owned(),
                        status: status.label().to_owned(),
                        count,
                    });
                }
            }
        }
        kinds
    }

    /// For Gets only: tables and writes also wait for clients or the SM.
    fn latency(&self) -> proto::Latency {
        let (mut buckets, mut sum_s) = (Vec::new(), 0.0);
        for (_, stats) in &self.metrics.workers {
            let gets = stats.latency(Kind::Get);
            gets.add_to(&mut buckets);
            sum_s += gets.sum_s();
        }
        // Values above all bounds go into the last bucket.
        if let Some((_, above)) = buckets.pop_if(|(bound_s, _)| bound_s.is_infinite())
            && let Some((_, count)) = buckets.last_mut()
        {
            *count += above;
        }
        let bound = |&(bound_s, _): &(f64, u64)| (bound_s * 1e9).round() as u64;
        proto::Latency {
            bounds_ns: buckets.iter().map(bound).collect(),
            counts: buckets.iter().map(|&(_, count)| count).collect(),
            sum_ns: (sum_s * 1e9) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use ib_mad::wire::mad::{Method, Status};
    use ib_mad::wire::sa::attribute;

    #[test]
    fn figures_are_the_sums_of_all_workers() {
        let workers = [Arc::new(Stats::default()), Arc::new(Stats::default())];
        let path = Subject::of(attribute::PATH_RECORD, Method::GET);
        for stats in &workers {
            stats.count_requests(path, 3);
            stats.count_responses(path, Status::OK, 1);
            stats.drop_request(DropReason::Stale);
            stats.socket_overflow.add(5);
            stats.record_latency(Kind::Get, Duration::from_nanos(1500), 2);
        }
        workers[1].count_responses(path, Status::SA_NO_RECORDS, 2);
        let named = workers.iter().map(|stats| ("w".to_owned(), Arc::clone(stats)));
        let metrics = Metrics { workers: named.collect(), ..Metrics::default() };
        let start = Instant::now();
        let end = Arc::new(AtomicU64::new(0));
        let reporter = Reporter::new(Arc::new(metrics), start, end.clone());
        let report = reporter.report(start + Duration::from_secs(2));
        assert!(report.counters.iter().all(|one| one.name != CERTIFICATE_END), "without TLS");
        end.store(9, Relaxed);
        let first = reporter.report(start).counters.swap_remove(0);
        assert_eq!((&first.name[..], first.value), (CERTIFICATE_END, 9));
        let figures = report.figures.unwrap();
        assert_eq!(figures.uptime_ns, 2_000_000_000);
        assert_eq!((figures.requests, figures.responses, figures.in_flight), (6, 4, 0));
        let kinds: Vec<_> =
            figures.answers.iter().map(|kind| (&kind.status[..], kind.count)).collect();
        assert_eq!(kinds, [("ok", 2), ("no_records", 2)]);
        assert_eq!(figures.answers[0].attribute, 0x35);
        let dropped: Vec<_> =
            figures.dropped.iter().map(|reason| (&reason.name[..], reason.value)).collect();
        assert_eq!(dropped, [("stale", 2), ("socket_overflow", 10)]);
        assert!(report.counters.iter().any(|all| all.name == "socket_overflow" && all.value == 10));
        let latency = figures.latency.unwrap();
        assert_eq!(latency.counts.iter().sum::<u64>(), 4);
        let at = latency.counts.iter().position(|&count| count == 4).unwrap();
        assert!(latency.bounds_ns[at] >= 1500 && latency.bounds_ns[at - 1] < 1500);
        assert_eq!(figures.serving, None);
    }
}

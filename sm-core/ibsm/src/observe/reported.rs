//! Bounds and sanitizes the reports of a responder, and computes rates between two reports.

use std::time::Duration;

use sa_proto::proto::snapshot as proto;

/// Largest number of answer kinds kept per report.
const KINDS_MAX: usize = 512;
/// Largest number of drop reasons kept per report.
const REASONS_MAX: usize = 64;
/// Largest number of latency buckets kept per report.
const BUCKETS_MAX: usize = 256;
/// Largest number of requesters kept per report.
const REQUESTERS_MAX: usize = 64;
/// Longest label kept, bytes.
const LABEL_LEN_MAX: usize = 32;

/// Answers of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(super) attribute: u16,
    pub(super) method: String,
    pub(super) status: String,
    pub(super) count: u64,
}

impl Kind {
    /// Whether the status is NO_RECORDS, a normal answer to a query for a record that may not
    /// exist.
    pub(super) fn is_no_records(&self) -> bool {
        self.status == "no_records"
    }

    /// Whether the status is an error.
    pub(super) fn is_error(&self) -> bool {
        self.status != "ok" && !self.is_no_records()
    }
}

/// A report: totals since the responder started, except for `requesters`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(super) uptime: Duration,
    pub(super) requests: u64,
    pub(super) responses: u64,
    pub(super) in_flight: u64,
    pub(super) answers: Vec<Kind>,
    pub(super) dropped: Vec<(String, u64)>,
    /// Latency buckets: upper bounds, ns, ascending, and answers in each.
    pub(super) latency: Vec<(u64, u64)>,
    /// LIDs, and requests since the previous report.
    pub(super) requesters: Vec<(u16, u64)>,
    /// How long the tables in use took to build, and how long they have been in use.
    pub(super) serving: Option<(Duration, Duration)>,
}

impl Reported {
    /// Converts a responder's report, within the limits above.
    pub(crate) fn of(figures: proto::Figures) -> Self {
        let kind = |kind: proto::Answers| {
            Some(Kind {
                attribute: u16::try_from(kind.attribute).ok()?,
                method: label(kind.method)?,
                status: label(kind.status)?,
                count: kind.count,
            })
        };
        let reason = |reason: proto::Counter| Some((label(reason.name)?, reason.value));
        let lid = |one: proto::Requester| Some((u16::try_from(one.lid).ok()?, one.requests));
        let latency = figures.latency.unwrap_or_default();
        let mut latency: Vec<_> =
            latency.bounds_ns.into_iter().zip(latency.counts).take(BUCKETS_MAX).collect();
        latency.sort_unstable();
        Self {
            uptime: Duration::from_nanos(figures.uptime_ns),
            requests: figures.requests,
            responses: figures.responses,
            in_flight: figures.in_flight,
            answers: figures.answers.into_iter().take(KINDS_MAX).filter_map(kind).collect(),
            dropped: figures.dropped.into_iter().take(REASONS_MAX).filter_map(reason).collect(),
            latency,
            requesters: figures
                .requesters
                .into_iter()
                .take(REQUESTERS_MAX)
                .filter_map(lid)
                .collect(),
            serving: figures.serving.map(|serving| {
                (Duration::from_micros(serving.built_in_us), Duration::from_millis(serving.age_ms))
            }),
        }
    }
}

/// Accepts a label of a metric if it is short and has no special characters.
fn label(text: String) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!text.is_empty() && text.len() <= LABEL_LEN_MAX && text.bytes().all(is_plain)).then_some(text)
}

/// Rates between two reports, per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) requests: f64,
    pub(super) responses: f64,
    /// Answers with an error status.
    pub(super) errors: f64,
    /// Answers with status NO_RECORDS.
    pub(super) no_records: f64,
    pub(super) dropped: f64,
    pub(super) answers: Vec<(Kind, f64)>,
    pub(super) reasons: Vec<(String, f64)>,
    /// Answers by latency; not per second.
    pub(super) latency: Vec<(u64, u64)>,
    pub(super) requesters: Vec<(u16, f64)>,
}

impl Rates {
    /// `None` if `later` is not later, or comes from another run of the responder.
    pub(super) fn between(earlier: &Reported, later: &Reported) -> Option<Self> {
        let time = later.uptime.checked_sub(earlier.uptime).filter(|time| !time.is_zero())?;
        if later.requests < earlier.requests || later.responses < earlier.responses {
            return None;
        }
        let per_s = |count: u64| count as f64 / time.as_secs_f64();
        let kinds = later.answers.iter().map(|kind| {
            let same = |other: &&Kind| {
                (other.attribute, &other.method, &other.status)
                    == (kind.attribute, &kind.method, &kind.status)
            };
            let before = earlier.answers.iter().find(same).map_or(0, |kind| kind.count);
            (kind.clone(), per_s(kind.count.saturating_sub(before)))
        });
        let answers: Vec<_> = kinds.collect();
        let reasons = later.dropped.iter().map(|(reason, count)| {
            let before = earlier.dropped.iter().find(|(other, _)| other == reason);
            (reason.clone(), per_s(count.saturating_sub(before.map_or(0, |(_, count)| *count))))
        });
        let reasons: Vec<_> = reasons.collect();
        let latency = later.latency.iter().map(|&(bound, count)| {
            let at = earlier.latency.binary_search_by_key(&bound, |&(bound, _)| bound);
            (bound, count.saturating_sub(at.map_or(0, |at| earlier.latency[at].1)))
        });
        Some(Self {
            requests: per_s(later.requests - earlier.requests),
            responses: per_s(later.responses - earlier.responses),
            errors: sum_of(&answers, Kind::is_error),
            no_records: sum_of(&answers, Kind::is_no_records),
            dropped: reasons.iter().map(|(_, n)| n).sum(),
            answers,
            reasons,
            latency: latency.collect(),
            requesters: later.requesters.iter().map(|&(lid, n)| (lid, per_s(n))).collect(),
        })
    }
}

fn sum_of(answers: &[(Kind, f64)], counts: impl Fn(&Kind) -> bool) -> f64 {
    answers.iter().filter(|(kind, _)| counts(kind)).map(|(_, per_s)| per_s).sum()
}

/// The latency, µs, below which a `share` of all answers stayed, assuming that answers are spread
/// evenly within a bucket. `None` without answers. `buckets`: upper bounds, ns, ascending.
pub(super) fn quantile_us(buckets: &[(u64, u64)], share: f64) -> Option<f64> {
    let all: u64 = buckets.iter().map(|&(_, count)| count).sum();
    if all == 0 {
        return None;
    }
    let wanted = share * all as f64;
    let (mut below, mut lower) = (0.0, 0);
    for &(bound, count) in buckets {
        let within = count as f64;
        if count > 0 && below + within >= wanted {
            let part = ((wanted - below) / within).clamp(0.0, 1.0);
            return Some((lower as f64 + part * (bound - lower) as f64) / 1e3);
        }
        below += within;
        lower = bound;
    }
    Some(lower as f64 / 1e3)
}

/// Adds one list of buckets to another; their bounds may differ.
pub(super) fn merge(all: &mut Vec<(u64, u64)>, more: &[(u64, u64)]) {
    for &(bound, count) in more {
        match all.binary_search_by_key(&bound, |&(bound, _)| bound) {
            Ok(at) => all[at].1 += count,
            Err(at) => all.insert(at, (bound, count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(uptime_s: u64, requests: u64) -> proto::Figures {
        let answers = |status: &str, count| proto::Answers {
            attribute: 0x35,
            method: "get".into(),
            status: status.into(),
            count,
        };
        proto::Figures {
            uptime_ns: uptime_s * 1_000_000_000,
            requests,
            responses: requests,
            answers: vec![answers("ok", requests - 4), answers("no_records", 4)],
            dropped: vec![proto::Counter { name: "stale".into(), value: requests / 2 }],
            latency: Some(proto::Latency {
                bounds_ns: vec![1000, 2000],
                counts: vec![requests, 0],
                sum_ns: 0,
            }),
            requesters: vec![proto::Requester { lid: 7, requests: 10 }],
            ..Default::default()
        }
    }

    #[test]
    fn rates_are_by_the_responders_own_clock() {
        let (a, b) = (Reported::of(figures(10, 100)), Reported::of(figures(12, 300)));
        let rates = Rates::between(&a, &b).unwrap();
        assert_eq!((rates.requests, rates.errors, rates.dropped), (100.0, 0.0, 50.0));
        assert_eq!(rates.answers[0].1, 100.0);
        assert_eq!(rates.latency, [(1000, 200), (2000, 0)]);
        assert_eq!(rates.requesters, [(7, 5.0)]);
        assert_eq!(Rates::between(&b, &b), None, "the same report");
        assert_eq!(Rates::between(&b, &a), None, "of an earlier run");
    }

    /// Regression: queries for records that do not exist made a fabric
    /// without faults look broken.
    #[test]
    fn no_records_is_an_answer_and_no_error() {
        let report = |uptime_s, no_records, invalid| {
            let answers = |status: &str, count| proto::Answers {
                attribute: 0x35,
                method: "get".into(),
                status: status.into(),
                count,
            };
            Reported::of(proto::Figures {
                answers: vec![
                    answers("no_records", no_records),
                    answers("request_invalid", invalid),
                ],
                ..figures(uptime_s, 100)
            })
        };
        let rates = Rates::between(&report(1, 10, 1), &report(2, 40, 3)).unwrap();
        assert_eq!((rates.no_records, rates.errors), (30.0, 2.0));
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let buckets = [(1000, 50), (2000, 49), (4000, 0), (8000, 1)];
        assert_eq!(quantile_us(&buckets, 0.5), Some(1.0));
        assert_eq!(quantile_us(&buckets, 0.99), Some(2.0));
        assert_eq!(quantile_us(&buckets, 1.0), Some(8.0));
        assert_eq!(quantile_us(&[(1000, 0)], 0.5), None);
    }

    #[test]
    fn stored_reports_are_bounded_and_plain() {
        let many = (0..10_000).map(|n| proto::Answers {
            attribute: n,
            method: "get".into(),
            status: "ok".into(),
            count: 1,
        });
        let counter = |name: &str| proto::Counter { name: name.into(), value: 1 };
        let reported = Reported::of(proto::Figures {
            answers: many.collect(),
            dropped: vec![counter("<script>"), counter(&"x".repeat(33)), counter("stale")],
            requesters: vec![proto::Requester { lid: 70_000, requests: 1 }; 1000],
            ..Default::default()
        });
        assert_eq!(reported.answers.len(), KINDS_MAX);
        assert_eq!(reported.dropped, [("stale".to_owned(), 1)]);
        assert!(reported.requesters.is_empty(), "no LID is that high");
    }

    #[test]
    fn buckets_of_other_bounds_find_their_place() {
        let mut all = vec![(10, 1), (30, 1)];
        merge(&mut all, &[(20, 5), (30, 2)]);
        assert_eq!(all, [(10, 1), (20, 5), (30, 3)]);
    }
}

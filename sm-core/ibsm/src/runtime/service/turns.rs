//! How long the parts of a turn of the service loop take. Queries at the SM's port wait meanwhile.

use std::time::{Duration, Instant};

use crate::runtime::metrics::Metric;

/// Length of a window of the maximum.
const WINDOW: Duration = Duration::from_secs(60);

/// A part of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Results of jobs and writes, signals, orders, the followed registry.
    Results,
    /// Packets of the fabric.
    Receive,
    /// Answers of responders.
    Responses,
    /// What is due in the sweep and the registry's exchange.
    Deadlines,
    /// Packets to the fabric and to responders.
    Transmit,
    /// What follows from events of the sweep: mastership, publication, what to write and run.
    Events,
    /// Reading operators' files.
    ReadFiles,
    /// Handing long jobs and writes to their threads.
    Submit,
    /// Status and metrics.
    Report,
}

impl Part {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Results, "results"),
        (Self::Receive, "receive"),
        (Self::Responses, "responses"),
        (Self::Deadlines, "deadlines"),
        (Self::Transmit, "transmit"),
        (Self::Events, "events"),
        (Self::ReadFiles, "read_files"),
        (Self::Submit, "submit"),
        (Self::Report, "report"),
    ];
}

/// The longest time of each part, in this window and the one before.
#[derive(Debug)]
pub(super) struct Turns {
    lap: Instant,
    since: Instant,
    longest: [[Duration; Part::ALL.len()]; 2],
}

impl Turns {
    /// Nothing has happened before `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { lap: now, since: now, longest: Default::default() }
    }

    /// Time that passed before `now` belongs to no part.
    pub(super) fn begin(&mut self, now: Instant) {
        self.lap = now;
        if now.saturating_duration_since(self.since) >= WINDOW {
            self.since = now;
            self.longest = [Default::default(), self.longest[0]];
        }
    }

    /// A part ended at `now`.
    pub(super) fn end(&mut self, now: Instant, part: Part) {
        let longest = &mut self.longest[0][part as usize];
        *longest = (*longest).max(now.saturating_duration_since(self.lap));
        self.lap = now;
    }

    /// The longest time of each part in the last one to two minutes.
    pub(super) fn metrics(&self) -> impl Iterator<Item = Metric> {
        Part::ALL.into_iter().map(|(part, label)| {
            let longest = self.longest.iter().map(|window| window[part as usize]).max();
            let help = "Longest time, in the last one to two minutes, that the service loop spent \
                        in one part of a turn; packets at the SM's port wait meanwhile";
            let longest = longest.unwrap_or_default().as_secs_f64();
            Metric::gauge("service_loop_longest_seconds", help, longest).with("part", label)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_of_a_part_is_kept_for_one_to_two_windows() {
        let start = Instant::now();
        let longest = |turns: &Turns| {
            let of = |metric: &Metric| metric.labels[0].1 == "receive";
            match turns.metrics().find(of).map(|metric| metric.value) {
                Some(crate::runtime::metrics::Value::Gauge(longest)) => longest,
                other => panic!("{other:?}"),
            }
        };
        let mut turns = Turns::new(start);
        turns.end(start + Duration::from_secs(3), Part::Receive);
        turns.end(start + Duration::from_secs(4), Part::Receive);
        turns.end(start + Duration::from_secs(9), Part::Report);
        assert_eq!(longest(&turns), 3.0);
        turns.begin(start + WINDOW);
        assert_eq!(longest(&turns), 3.0);
        turns.begin(start + WINDOW * 2);
        assert_eq!(longest(&turns), 0.0);
    }
}

//! Demands of other subnet managers by Set(SMInfo): how many are granted and logged, and what they
//! claim during a discovery.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::rate_limit::RateLimit;

use super::election::OTHERS_MAX;

/// Demands granted in a row, after which one is granted each [`DEMAND_INTERVAL`]. Each costs a full
/// sweep.
const DEMANDS_MAX: u32 = 8;
/// See [`DEMANDS_MAX`].
const DEMAND_INTERVAL: Duration = Duration::from_secs(10);
/// Handovers of other masters that a master accepts in a row, after which it accepts one each
/// [`MERGER_INTERVAL`]. All clients are asked to register again after each.
const MERGERS_MAX: u32 = 4;
/// See [`MERGERS_MAX`].
const MERGER_INTERVAL: Duration = Duration::from_secs(600);
/// How often an unknown sender of a demand is asked for its SMInfo.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Log lines of demands that are not answered, in a row, after which there is one each
/// [`LINE_INTERVAL`].
const LINES_MAX: u32 = 8;
/// See [`LINES_MAX`].
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// SMs that claimed to have handed over to this one during a discovery: GUIDs in Set(SMInfo), which
/// any port can send. The election at its end shows which of them are SMs.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Claims {
    guids: BTreeSet<Guid>,
    /// There were more than [`OTHERS_MAX`]: each SM counts as one of them.
    is_full: bool,
    /// Whether the current election polls the SMs again because of a claim.
    pub(in crate::sweep) is_repeated: bool,
}

impl Claims {
    pub(in crate::sweep) fn add(&mut self, guid: Guid) {
        self.is_full |= self.guids.len() >= OTHERS_MAX;
        if !self.is_full {
            self.guids.insert(guid);
        }
    }

    pub(super) fn has(&self, guid: Guid) -> bool {
        self.is_full || self.guids.contains(&guid)
    }
}

/// Limits the demands of other SMs.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Demands {
    granted: RateLimit,
    mergers: RateLimit,
    lines: RateLimit,
    /// When an unknown sender was asked last.
    asked: Option<Instant>,
    /// Demands that were not answered.
    pub(in crate::sweep) unanswered: u64,
}

impl Demands {
    /// Whether one more demand may be granted. Demands beyond the limit are not answered: their
    /// senders repeat them.
    pub(in crate::sweep) fn has_room(&mut self, now: Instant) -> bool {
        self.granted.has_room(now, DEMANDS_MAX, DEMAND_INTERVAL)
    }

    /// A demand was granted that costs a sweep.
    pub(in crate::sweep) fn note_granted(&mut self, now: Instant) {
        self.granted.spend(now);
    }

    /// Whether a master may accept one more handover of another. The sender of one beyond the limit
    /// stays master, and is reported, until it is accepted.
    pub(in crate::sweep) fn has_room_for_merger(&mut self, now: Instant) -> bool {
        self.mergers.has_room(now, MERGERS_MAX, MERGER_INTERVAL)
    }

    /// A master accepted a handover of another.
    pub(in crate::sweep) fn note_merger(&mut self, now: Instant) {
        self.mergers.spend(now);
    }

    /// Whether to log a demand that is not answered.
    pub(in crate::sweep) fn admits_line(&mut self, now: Instant) -> bool {
        let has_room = self.lines.has_room(now, LINES_MAX, LINE_INTERVAL);
        if has_room {
            self.lines.spend(now);
        }
        has_room
    }

    /// Counts a demand that is not answered; returns whether to ask now.
    pub(in crate::sweep) fn note_unanswered(&mut self, now: Instant) -> bool {
        self.unanswered += 1;
        let is_due = self.asked.is_none_or(|asked| now >= asked + ASK_INTERVAL);
        if is_due {
            self.asked = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_that_cost_a_sweep_are_limited_in_rate() {
        let (mut demands, start) = (Demands::default(), Instant::now());
        let mut grant = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            let is_granted = demands.has_room(now);
            if is_granted {
                demands.note_granted(now);
            }
            is_granted
        };
        assert_eq!((0..20).filter(|_| grant(0)).count(), 8);
        assert!(!grant(9) && grant(10) && !grant(11));
        assert_eq!((0..20).filter(|_| grant(1000)).count(), 8);
    }
}

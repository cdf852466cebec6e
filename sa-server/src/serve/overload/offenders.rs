//! Sources whose plain requests were expensive, for as long as they are penalized.

use std::time::Instant;

use super::fairness::SourceId;

/// Sources remembered at a time; one too many takes the place of another.
const OFFENDERS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Offenders {
    until: [Option<(SourceId, Instant)>; OFFENDERS_MAX],
    last: Option<Instant>,
}

impl Default for Offenders {
    fn default() -> Self {
        Self { until: [None; OFFENDERS_MAX], last: None }
    }
}

impl Offenders {
    /// Whether there are any.
    pub(super) fn any(&self, now: Instant) -> bool {
        self.last.is_some_and(|until| now < until)
    }

    /// Whether a source is among them.
    pub(super) fn contains(&self, source: SourceId, now: Instant) -> bool {
        self.any(now)
            && self.until[usize::from(source) % OFFENDERS_MAX]
                .is_some_and(|(offender, until)| offender == source && now < until)
    }

    /// Adds a source until `until`; further offences add up.
    pub(super) fn add(&mut self, source: SourceId, now: Instant, until: Instant) {
        let place = &mut self.until[usize::from(source) % OFFENDERS_MAX];
        let begins = match *place {
            Some((offender, until)) if offender == source => until.max(now),
            _ => now,
        };
        let until = begins + (until - now);
        *place = Some((source, until));
        self.last = self.last.max(Some(until));
    }
}

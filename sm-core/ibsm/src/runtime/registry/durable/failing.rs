//! Failures of the store, for the log: the first of a series is logged at once, and one that lasts
//! at intervals.

use tracing::{debug, error, info};

use crate::runtime::store::StoreError;

/// Time between two lines of the log about a failure that lasts, seconds.
const LOG_INTERVAL_S: u64 = 30;

/// A series of failures.
#[derive(Debug, Default)]
pub(super) struct Failing {
    /// How many there were since the last success.
    count: u64,
    /// When the first one was, and when one was logged last; registry time, seconds.
    since_s: u64,
    logged_s: u64,
}

impl Failing {
    /// Whether the last attempt failed.
    pub(super) fn lasts(&self) -> bool {
        self.count > 0
    }

    /// An attempt failed: `what` it was, and the effect.
    pub(super) fn note(&mut self, now_s: u64, what: &str, effect: &str, failure: &StoreError) {
        let reason = sa_proto::with_causes(failure);
        self.count += 1;
        if self.count == 1 {
            (self.since_s, self.logged_s) = (now_s, now_s);
            error!("{what}: {reason}; {effect}");
        } else if now_s >= self.logged_s + LOG_INTERVAL_S {
            self.logged_s = now_s;
            let (count, for_s) = (self.count, now_s.saturating_sub(self.since_s));
            error!("{what}: {reason}; {count} attempts failed within {for_s} s");
        } else {
            debug!("{what}: {reason}");
        }
    }

    /// Everything was read again.
    pub(super) fn note_reloaded(&self, sequence: u64) {
        match self.lasts() {
            true => debug!(sequence, "registry reloaded"),
            false => info!(sequence, "registry reloaded"),
        }
    }

    /// An attempt succeeded.
    pub(super) fn note_success(&mut self, now_s: u64) {
        if self.lasts() {
            let (count, for_s) = (self.count, now_s.saturating_sub(self.since_s));
            info!("the registry can be written again; {count} attempts had failed in {for_s} s");
            *self = Self::default();
        }
    }
}

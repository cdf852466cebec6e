//! What was acknowledged of the session in a lane, and what must not be.
//!
//! A manager that becomes master asks which registry is held, and begins its session with that. So
//! the answer is a promise: for a time, nothing above what was reported is acknowledged, although
//! the former master may have sent more outcomes and updates, which are still on their way.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::{Mutex, MutexGuard, PoisonError};

use sa_proto::snapshot::Version;

use super::held::Point;

/// Shared by the task that answers managers and the one that passes on outcomes; no worker uses it.
#[derive(Debug, Default)]
pub struct Acknowledged(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The highest point that a client was answered for.
    last: Point,
    /// Nothing of this session above this point is acknowledged.
    promised: Option<Point>,
}

impl Acknowledged {
    /// Promises that nothing of the session of `version` is acknowledged above it. A promise that
    /// is in force stays as it is. Returns the highest sequence number of the registry in that
    /// session that was acknowledged; 0 if there is none.
    pub(in crate::sm) fn promise(&self, version: Version) -> u64 {
        let mut state = self.lock();
        let point = Point::new(version.session.epoch, version.registry_sequence);
        state.promised.get_or_insert(point);
        if state.last.epoch == point.epoch { state.last.sequence() } else { 0 }
    }

    /// Ends the promise.
    pub(in crate::sm) fn release(&self) {
        self.lock().promised = None;
    }

    /// Permits for a number of answers. No promise is made before it is dropped.
    pub(super) fn permits(&self) -> Permits<'_> {
        Permits(self.lock())
    }

    /// Whether a client would be answered with an outcome at this point.
    #[cfg(test)]
    pub(in crate::sm) fn permits_answer(&self, epoch: u64, sequence: u64) -> bool {
        self.permits().take(Point::new(epoch, sequence))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Acknowledged::permits`].
pub(super) struct Permits<'a>(MutexGuard<'a, State>);

impl Permits<'_> {
    /// Whether a client may be answered with an outcome that the registry contains from `point` on;
    /// if so, it counts as acknowledged.
    pub(super) fn take(&mut self, point: Point) -> bool {
        let State { last, promised } = &mut *self.0;
        let point = point.of_registry();
        if promised.is_some_and(|limit| limit.epoch == point.epoch && point > limit) {
            return false;
        }
        *last = point.max(*last);
        true
    }
}

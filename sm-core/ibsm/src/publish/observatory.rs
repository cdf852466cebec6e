//! Evaluates once a second what is published and reported, in a task beside those of the
//! responders' connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sa_proto::snapshot::Snapshot;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::Shared;
use crate::observe::moment::{History, Moment, Sweep};
use crate::observe::{Observer, Range, Seen};

/// How often the state is evaluated.
const INTERVAL: Duration = Duration::from_secs(1);

/// The live state. Clones show the same.
#[derive(Clone)]
pub struct Observatory {
    shared: Arc<Shared>,
}

impl Observatory {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The last moment, then one each second.
    pub fn moments(&self) -> watch::Receiver<Arc<Moment>> {
        self.shared.moments.subscribe()
    }

    /// The history.
    pub fn history(&self, range: Range) -> History {
        lock(&self.shared.observer).history(range)
    }

    /// The last sweeps, oldest first.
    pub fn sweeps(&self) -> Arc<Vec<Arc<Sweep>>> {
        self.shared.sweeps.list()
    }

    /// The published snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.history().latest().clone()
    }
}

/// Evaluates once a second until the publisher is dropped.
pub(super) async fn run(shared: Weak<Shared>) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        look(&shared, Instant::now());
    }
}

fn look(shared: &Shared, now: Instant) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let snapshot = shared.history().latest().clone();
    let announced = *shared.announced.borrow();
    let announcements = shared.announcements().clone();
    let (responders, sm) = (shared.responders.load(), shared.sm.load());
    let moment = lock(&shared.observer).tick(
        now,
        &Seen {
            responders: &responders,
            snapshot: &snapshot,
            announced,
            announcements: &announcements,
            sm: &sm,
            uptime: now.saturating_duration_since(shared.started),
            sweeps: &shared.sweeps,
            time_ms: since_1970.as_millis() as u64,
        },
    );
    if let Some(moment) = moment {
        shared.moments.send_replace(Arc::new(moment));
    }
}

fn lock(observer: &Mutex<Observer>) -> MutexGuard<'_, Observer> {
    observer.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Evaluates once a second what is published and reported, in a task beside those of the
//! responders' connections.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use ib_mad::types::{Guid, PortNum};
use sa_proto::crowd::Share;
use sa_proto::proto::admin::ExplainRequest;
use sa_proto::snapshot::Snapshot;
use sa_proto::trust::TlsFiles;
use sm_config::Settings;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tonic::Status;
use tracing::{info, warn};

use super::events::{EventFeed, Reader, Refusal, Wanted};
use super::hung::Probes;
use super::past::PastError;
use super::{Shared, asking, certificate_end};
use crate::clock::unix_ms;
use crate::history::SegmentSummary;
use crate::inspect::FabricView;
use crate::observe::event::{self, Event, ResponderWatch};
use crate::observe::moment::{History, Moment, Sweep};
use crate::observe::ports::KeptFabric;
use crate::observe::problem::{Kind, Problems, Severity, lines};
use crate::observe::topology::{Missing, Topology};
use crate::observe::{Observer, Range, Readiness, Seen, Since, SmStatus};
use crate::perf::PerfBoard;
use crate::perf::loads::Loads;

/// How often the state is evaluated.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often certificates are looked at: one that is replaced is over, or found, within a minute.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(20);

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

    /// Takes the events of before this SM was started.
    pub(crate) fn restore(&self, events: &[Event]) {
        lock(&self.shared.observer).restore(Instant::now(), unix_ms(), events);
    }

    /// The problems as of the last moment.
    pub fn problems(&self) -> Arc<Problems> {
        self.shared.problems.load_full()
    }

    /// The published fabric, for reports on it.
    pub(crate) fn fabric_view(&self) -> FabricView {
        let problems = self.shared.problems.load();
        let ports = problems.listed.iter().filter_map(|problem| {
            let is_of_port = matches!(problem.kind, Kind::SweepFault | Kind::NoAnswer);
            Some((problem.subject.guid?, problem.subject.port?)).filter(|_| is_of_port)
        });
        FabricView {
            snapshot: self.snapshot(),
            names: self.shared.names.load_full(),
            unhealthy: Arc::new(ports.collect()),
        }
    }

    /// How a responder answers for the path between two ports, as a JSON document for `share`.
    pub(crate) async fn explain(
        &self,
        share: Share,
        request: ExplainRequest,
    ) -> Result<String, Status> {
        asking::explain(&self.shared, share, request).await.map(|explanation| explanation.json)
    }

    /// Settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings.load_full()
    }

    /// State of this SM.
    pub fn sm(&self) -> Arc<SmStatus> {
        self.shared.sm.load_full()
    }

    /// How long ago this SM stated its status.
    pub fn status_age(&self) -> Duration {
        let stated = Duration::from_millis(self.shared.sm_stated_ms.load(Relaxed));
        self.shared.started.elapsed().saturating_sub(stated)
    }

    /// State of this SM in the election, and whether it is ready: see [`Readiness`].
    pub fn readiness(&self) -> Readiness {
        Readiness::of(&self.shared.sm.load(), *self.shared.announced.borrow())
    }

    /// The history.
    pub fn history(&self, range: Range) -> History {
        lock(&self.shared.observer).history(range)
    }

    /// The last sweeps, oldest first.
    pub fn sweeps(&self) -> Arc<Vec<Arc<Sweep>>> {
        self.shared.sweeps.list()
    }

    /// Opens a reader of events.
    pub(crate) fn read_events(&self, reader: Reader, wanted: Wanted) -> Result<EventFeed, Refusal> {
        EventFeed::open(&self.shared, reader, wanted)
    }

    /// What `make` computes, on another thread, from the fabric at a time in milliseconds since
    /// 1970 and from the time since when it was so.
    pub(crate) async fn fabric_at<T: Send + 'static>(
        &self,
        share: Share,
        time_ms: u64,
        make: impl FnOnce(u64, KeptFabric) -> T + Send + 'static,
    ) -> Result<T, PastError> {
        self.shared.fabric_at(share, time_ms, make).await
    }

    /// What `make` computes, on another thread, from the fabric at a time in milliseconds since
    /// 1970, the time since when it was so, and the loads of links.
    pub(crate) async fn loads_at<T: Send + 'static>(
        &self,
        share: Share,
        time_ms: u64,
        make: impl FnOnce(u64, KeptFabric, Loads) -> T + Send + 'static,
    ) -> Result<T, PastError> {
        self.shared.loads_at(share, time_ms, make).await
    }

    /// The segments of the history, oldest first.
    pub(crate) async fn segments(&self, share: Share) -> Result<Vec<SegmentSummary>, PastError> {
        self.shared.ask_archive(share, |archive| archive.list()).await
    }

    /// The topology that is expected: that of the baseline, or without one that of the published
    /// fabric.
    pub(crate) fn expected(&self) -> Arc<Topology> {
        match self.shared.baseline.current() {
            Some(baseline) => baseline.topology.clone(),
            None => Arc::new(Topology::of(self.snapshot().fabric())),
        }
    }

    /// The counters of ports.
    pub(crate) fn perf(&self) -> Arc<PerfBoard> {
        self.shared.perf.clone()
    }

    /// Whether this SM publishes as master.
    pub(crate) fn leads(&self) -> bool {
        self.shared.is_master()
    }

    /// Since when the ports of a node of the published fabric are as they are, ascending by number.
    pub(crate) fn since_of(&self, guid: Guid) -> Vec<(PortNum, Since)> {
        lock(&self.shared.observer).since_of(guid)
    }

    /// What is missing of the fabric, as of the last moment.
    pub(crate) fn missing(&self) -> Arc<Missing> {
        self.shared.missing.load_full()
    }

    /// The published snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.history().latest().clone()
    }
}

/// Evaluates once a second until the publisher is dropped, and the certificates of `tls` every
/// 20 seconds. Each published fabric is compared with the one before, also within the second.
pub(super) async fn run(shared: Weak<Shared>, tls: Option<TlsFiles>) {
    let mut responders = ResponderWatch::default();
    let mut probes = Probes::default();
    let mut certificates_due = Instant::now();
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let Some(mut fabric) = shared.upgrade().map(|shared| shared.fabric.subscribe()) else { return };
    loop {
        let is_due = tokio::select! {
            _ = interval.tick() => true,
            _ = fabric.changed() => false,
        };
        let Some(shared) = shared.upgrade() else { return };
        let now = Instant::now();
        if !is_due {
            let plane = fabric.borrow_and_update().clone();
            lock(&shared.observer).follow_fabric(now, unix_ms(), &plane);
            continue;
        }
        if let Some(tls) = tls.clone().filter(|_| now >= certificates_due) {
            certificates_due = now + CERTIFICATES_INTERVAL;
            let look = move || certificate_end::look(&tls, SystemTime::now());
            let found = tokio::task::spawn_blocking(look).await.ok().flatten();
            shared.certificate.store(found.map(Arc::new));
        }
        probes.follow(now, &shared.responders);
        look(&shared, now, &mut responders);
    }
}

fn look(shared: &Shared, now: Instant, watch: &mut ResponderWatch) {
    let snapshot = shared.history().latest().clone();
    let announced = *shared.announced.borrow();
    let announcements = shared.announcements().clone();
    let time_ms = unix_ms();
    let (responders, hung) = (shared.responders.load(), shared.responders.hung());
    let sm = shared.sm.load();
    let mut drafts = watch.follow(&responders, &hung);
    let counters: Vec<_> =
        shared.counted().into_iter().map(|(name, _, value)| (name, value)).collect();
    let mut observer = lock(&shared.observer);
    let moment = observer.tick(
        now,
        &Seen {
            responders: &responders,
            hung: &hung,
            snapshot: &snapshot,
            announced,
            announcements: &announcements,
            sm: &sm,
            conditions: shared.conditions(),
            counters: &counters,
            uptime: now.saturating_duration_since(shared.started),
            sweeps: &shared.sweeps,
            time_ms,
        },
    );
    if let Some(mut moment) = moment {
        moment.counter_sweeps = shared.perf.with(|manager| manager.status().sweeps);
        for (severity, line) in lines(now, observer.changes()) {
            match severity {
                Some(Severity::Critical | Severity::Warning) => warn!("{line}"),
                Some(Severity::Notice) | None => info!("{line}"),
            }
        }
        drafts.extend(event::of_problems(now, observer.changes()));
        shared.problems.store(Arc::new(observer.problems().clone()));
        shared.missing.store(observer.missing());
        shared.moments.send_replace(Arc::new(moment));
    }
    drop(observer);
    drafts.into_iter().for_each(|draft| shared.events.note(time_ms, draft));
}

fn lock(observer: &Mutex<Observer>) -> MutexGuard<'_, Observer> {
    observer.lock().unwrap_or_else(PoisonError::into_inner)
}

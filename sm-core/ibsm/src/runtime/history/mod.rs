//! Writes the history: a thread takes events from memory, and the fabric whenever it changes, and
//! appends them to files. No other thread waits for it. What it could not write before memory had
//! no room left for it is lost and counted.
//!
//! - `files`: the segments, and how they are read. `writer`: what is appended when. `budget`: how
//!   much loads may take.

mod budget;
mod files;
mod writer;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use daemon::kept;
use tokio::sync::watch;
use tracing::warn;

use crate::history::Archive;
use crate::observe::event::{EVENTS_MAX, EventLog};
use crate::observe::ports::KeptFabric;
use crate::observe::problem::{Condition, Kind, Subject};
use crate::observe::topology::{Missing, Topology};
use crate::publish::Observatory;
use files::Files;
use writer::{Present, Writer};

/// Pause after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How often the fabric is looked at without an event.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The directory of the history cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--history {}: {source}", path.display())]
pub struct HistoryError {
    path: PathBuf,
    source: io::Error,
}

impl HistoryError {
    /// Whether the disk is full.
    pub(super) fn is_of_space(&self) -> bool {
        self.source.kind() == io::ErrorKind::StorageFull
    }
}

/// What the thread states of its work.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes in all files.
    bytes: AtomicU64,
    /// Events that were lost.
    lost: AtomicU64,
    /// Readings of loads that are not kept.
    skipped: AtomicU64,
    /// Why the last write failed; none if it did not.
    failure: ArcSwapOption<String>,
}

/// The history, while it is written.
pub(super) struct History {
    path: PathBuf,
    progress: Arc<Progress>,
    files: Files,
    /// Its sender is dropped to end the thread.
    closing: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Locked while the process runs.
    _lock: File,
}

impl History {
    /// Opens the history in `directory`, continues `events` from it, and starts the thread.
    pub(super) fn start(
        directory: &Path,
        bytes_max: u64,
        events: &EventLog,
        observatory: Observatory,
    ) -> Result<Self, HistoryError> {
        let failed = |source| HistoryError { path: directory.to_owned(), source };
        let files = Files::open(directory).map_err(failed)?;
        let lock = kept::lock_file(&directory.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed(io::Error::other(
                "another ibsm uses it; each ibsm on a host needs its own directory",
            )),
            TryLockError::Error(source) => failed(source),
        })?;
        let (earlier, next) = files.last_events(EVENTS_MAX).map_err(failed)?;
        observatory.restore(&earlier);
        events.restore(earlier, next);
        let first = events.next().borrow().to_owned();
        let progress = Arc::new(Progress::default());
        let (closing, end) = watch::channel(());
        let writer = Writer::new(files.clone(), bytes_max, first);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(failed)?;
        let work = Work {
            writer,
            files: files.clone(),
            missing: None,
            events: events.clone(),
            observatory,
            progress: progress.clone(),
        };
        let thread = std::thread::Builder::new().name("history".to_owned());
        let thread = thread.spawn(move || runtime.block_on(work.run(end))).map_err(failed)?;
        Ok(Self {
            path: directory.to_owned(),
            progress,
            files,
            closing: Some(closing),
            thread: Some(thread),
            _lock: lock,
        })
    }

    /// The fabric as it was known before the start, with what was missing of it; without that, and
    /// since when it was so.
    pub(super) fn known_before(&self) -> Option<(Topology, (u64, KeptFabric))> {
        let known = self.files.all_that_was_known();
        known.unwrap_or_else(|error| {
            warn!(
                "cannot read the history in {}: {error}; nodes and links that were missing before \
                 this start are not reported as missing",
                self.path.display()
            );
            None
        })
    }

    /// Reads what was written.
    pub(super) fn archive(&self) -> Arc<dyn Archive> {
        Arc::new(self.files.clone())
    }

    /// Bytes in all files.
    pub(super) fn bytes(&self) -> u64 {
        self.progress.bytes.load(Relaxed)
    }

    /// Events that were lost.
    pub(super) fn lost(&self) -> u64 {
        self.progress.lost.load(Relaxed)
    }

    /// Readings of loads of links that are not kept: they would have taken too much.
    pub(super) fn skipped(&self) -> u64 {
        self.progress.skipped.load(Relaxed)
    }

    /// The problem while nothing can be written.
    pub(super) fn condition(&self) -> Option<Condition> {
        let failure = self.progress.failure.load();
        let text = format!("{}; events are in memory only", failure.as_deref()?);
        let subject = Subject::named(self.path.display().to_string());
        Some(Condition::new(Kind::HistoryUnwritable, subject, text))
    }
}

impl Drop for History {
    /// Waits until what has happened is written.
    fn drop(&mut self) {
        drop(self.closing.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread that writes the history panicked; its last events are lost");
        }
    }
}

/// The work of the thread.
struct Work {
    writer: Writer,
    files: Files,
    /// What is missing, as it was written.
    missing: Option<Arc<Missing>>,
    events: EventLog,
    observatory: Observatory,
    progress: Arc<Progress>,
}

impl Work {
    /// Writes until the sender of `end` is dropped.
    async fn run(mut self, mut end: watch::Receiver<()>) {
        let mut next = self.events.next();
        let mut open = true;
        while open {
            next.mark_unchanged();
            let pause = match self.write() {
                true => LOOK_INTERVAL,
                false => RETRY_INTERVAL,
            };
            let is_failing = pause == RETRY_INTERVAL;
            tokio::select! {
                _ = end.changed() => open = false,
                changed = next.changed(), if !is_failing => open = changed.is_ok(),
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.write();
        self.writer.sync();
    }

    /// Writes what is missing, if that changed. A manager that publishes no fabric misses nothing.
    fn write_missing(&mut self, is_published: bool) -> io::Result<()> {
        let missing = self.observatory.missing();
        if !is_published || self.missing.as_ref().is_some_and(|it| it.topology == missing.topology)
        {
            return Ok(());
        }
        self.files.keep_missing(&missing.topology)?;
        self.missing = Some(missing);
        Ok(())
    }

    /// Writes what has happened; returns whether that succeeded.
    fn write(&mut self) -> bool {
        let snapshot = self.observatory.snapshot();
        let (sm, loads) = (self.observatory.sm(), self.observatory.perf().loads());
        let (plane, engine) = (snapshot.fabric(), &sm.routing_engine[..]);
        let written = self.writer.write(&self.events, Present { plane, engine, loads: &loads });
        let result = written.and_then(|()| self.write_missing(!snapshot.fabric().nodes.is_empty()));
        self.progress.bytes.store(self.writer.bytes(), Relaxed);
        self.progress.lost.store(self.writer.lost(), Relaxed);
        self.progress.skipped.store(self.writer.skipped(), Relaxed);
        let is_well = result.is_ok();
        let failure = result.err().map(|error| Arc::new(format!("it cannot be written: {error}")));
        self.progress.failure.store(failure);
        is_well
    }
}

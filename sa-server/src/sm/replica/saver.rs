//! Writes the cache file from time to time, without delaying updates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sa_proto::snapshot::cache::{self, CacheError};
use sa_proto::snapshot::{Snapshot, Version};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Keeps a file close to the snapshot that is held.
pub(super) struct Saver {
    path: Option<PathBuf>,
    interval: Duration,
    /// The snapshot that is to be written.
    newest: Option<Arc<Snapshot>>,
    writing: Option<JoinHandle<Result<Version, CacheError>>>,
    /// When the next file may be written.
    due: Instant,
}

impl Saver {
    /// Writes `path`, if there is one, at most once an `interval`.
    pub(super) fn new(path: Option<PathBuf>, interval: Duration) -> Self {
        Self { path, interval, newest: None, writing: None, due: Instant::now() }
    }

    /// Takes the snapshot to be written next; one that waits is forgotten.
    pub(super) fn offer(&mut self, snapshot: Arc<Snapshot>) {
        if self.path.is_some() {
            self.newest = Some(snapshot);
        }
    }

    /// Performs due work: yields the outcome of a write that ended. Cancelling it loses nothing.
    pub(super) async fn step(&mut self) -> Result<Version, CacheError> {
        loop {
            if let Some(writing) = &mut self.writing {
                let written = writing.await;
                self.writing = None;
                self.due = Instant::now() + self.interval;
                match written {
                    Ok(written) => return written,
                    Err(error) => match error.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        // The runtime is going down, and this task with it.
                        Err(_) => std::future::pending().await,
                    },
                }
            }
            if self.newest.is_none() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep_until(self.due).await;
            self.begin();
        }
    }

    /// Writes the pending snapshot, if there is one, at once.
    pub(super) async fn finish(mut self) -> Option<Result<Version, CacheError>> {
        let mut last = None;
        while self.writing.is_some() || self.newest.is_some() {
            self.due = Instant::now();
            last = Some(self.step().await);
        }
        last
    }

    fn begin(&mut self) {
        let (Some(path), Some(snapshot)) = (self.path.clone(), self.newest.take()) else { return };
        self.writing = Some(tokio::task::spawn_blocking(move || {
            cache::save(&path, &snapshot).map(|()| snapshot.version())
        }));
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session};

    use super::*;

    fn snapshot(generation: u64) -> Arc<Snapshot> {
        let session = Session { epoch: 1, ..Session::default() };
        let (fabric, registry) = (FabricPlane::default(), RegistryPlane::default());
        Arc::new(Snapshot::build(session, generation, fabric, registry).unwrap())
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn only_the_newest_of_a_burst_is_written_after_the_first() {
        run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("snapshot");
            let mut saver = Saver::new(Some(path.clone()), Duration::from_millis(50));
            saver.offer(snapshot(1));
            assert_eq!(saver.step().await.unwrap().fabric_generation, 1);
            let first = Instant::now();
            (2..=9).for_each(|generation| saver.offer(snapshot(generation)));
            assert_eq!(saver.step().await.unwrap().fabric_generation, 9);
            assert!(first.elapsed() >= Duration::from_millis(40), "not before the interval");
            assert_eq!(cache::load(&path).unwrap().unwrap().version().fabric_generation, 9);
        });
    }

    #[test]
    fn what_waits_is_written_before_the_end() {
        run(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("snapshot");
            let mut saver = Saver::new(Some(path.clone()), Duration::from_secs(3600));
            saver.offer(snapshot(1));
            saver.step().await.unwrap();
            saver.offer(snapshot(2));
            assert!(saver.finish().await.unwrap().is_ok());
            assert_eq!(cache::load(&path).unwrap().unwrap().version().fabric_generation, 2);
        });
    }
}

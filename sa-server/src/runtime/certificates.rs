//! Finds out when the first of this responder's certificates ends, for its reports to the SMs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use sa_proto::trust::TlsFiles;

/// How often the files are read: operators replace them.
const INTERVAL: Duration = Duration::from_secs(20);

/// When the first certificate ends, seconds since 1970, as a task reads it from files; 0 without
/// files, and if they cannot be read. Call within a runtime.
pub(super) fn watch(files: Option<TlsFiles>) -> Arc<AtomicU64> {
    let end_s = Arc::new(AtomicU64::new(0));
    if let Some(files) = files {
        tokio::spawn(follow(files, end_s.clone()));
    }
    end_s
}

async fn follow(files: TlsFiles, end_s: Arc<AtomicU64>) {
    let mut interval = tokio::time::interval(INTERVAL);
    loop {
        interval.tick().await;
        let files = files.clone();
        let read = tokio::task::spawn_blocking(move || first_end_s(&files));
        end_s.store(read.await.unwrap_or(0), Relaxed);
    }
}

/// One that ended before 1970 ended a second after.
fn first_end_s(files: &TlsFiles) -> u64 {
    let Some((_, end)) = files.first_end().ok().flatten() else { return 0 };
    end.duration_since(SystemTime::UNIX_EPOCH).map_or(1, |end| end.as_secs().max(1))
}

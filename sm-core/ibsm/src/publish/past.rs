//! The fabric of earlier times, for those that ask for it: the history's files are read by one
//! reader at a time, on another thread.

use std::io;
use std::sync::Arc;

use sa_proto::crowd::Share;

use super::Shared;
use crate::history::Archive;
use crate::observe::ports::KeptFabric;
use crate::perf::loads::Loads;

/// Why there is no answer about an earlier time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PastError {
    /// `--history-max 0`.
    #[error("this SM keeps no history (--history-max 0)")]
    NotKept,
    /// The history does not reach back to then, or this SM knew no fabric.
    #[error("the history has no topology of that time: ibsmctl history list")]
    NotThen,
    /// Loads of links were not read then, or not kept.
    #[error(
        "the history has no loads of links of that time: they are kept while ibsm reads counters \
         of ports (perfmgr TRUE)"
    )]
    NoLoads,
    /// The files cannot be read.
    #[error("cannot read the history: {0}")]
    Read(#[from] io::Error),
    /// The thread ended: this SM stops.
    #[error("the history was not read: {0}")]
    Stopped(#[from] tokio::task::JoinError),
}

impl Shared {
    /// Runs `read` on the history in another thread for `share`, and returns its result.
    pub(super) async fn ask_archive<T: Send + 'static>(
        &self,
        share: Share,
        read: impl FnOnce(&dyn Archive) -> io::Result<T> + Send + 'static,
    ) -> Result<T, PastError> {
        let archive: Arc<dyn Archive> = self.archive.get().cloned().ok_or(PastError::NotKept)?;
        let turn = self.event_readers.turn(share).await;
        let read = tokio::task::spawn_blocking(move || {
            let result = read(&*archive);
            drop(turn);
            result
        });
        Ok(read.await??)
    }

    /// What `make` computes, on another thread, from the fabric at a time in milliseconds since
    /// 1970 and from the time since when it was so.
    pub(super) async fn fabric_at<T: Send + 'static>(
        &self,
        share: Share,
        time_ms: u64,
        make: impl FnOnce(u64, KeptFabric) -> T + Send + 'static,
    ) -> Result<T, PastError> {
        let made = self.ask_archive(share, move |archive| {
            let found = archive.fabric(time_ms)?;
            Ok(found.map(|(since_ms, fabric)| make(since_ms, fabric)))
        });
        made.await?.ok_or(PastError::NotThen)
    }

    /// What `make` computes, on another thread, from the fabric at a time in milliseconds since
    /// 1970, the time since when it was so, and the loads of links.
    pub(super) async fn loads_at<T: Send + 'static>(
        &self,
        share: Share,
        time_ms: u64,
        make: impl FnOnce(u64, KeptFabric, Loads) -> T + Send + 'static,
    ) -> Result<T, PastError> {
        let made = self.ask_archive(share, move |archive| {
            let Some((since_ms, fabric)) = archive.fabric(time_ms)? else {
                return Ok(Err(PastError::NotThen));
            };
            let loads = archive.loads(time_ms)?.ok_or(PastError::NoLoads);
            Ok(loads.map(|loads| make(since_ms, fabric, loads)))
        });
        made.await?
    }
}

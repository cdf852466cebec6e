//! Writes files of the state directory: long ones on a thread, the others at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ib_mad::transport::{Interest, wait};

use crate::node::{StateWrite, WriteOutcome};
use crate::runtime::state::StateDir;
use crate::runtime::worker::Worker;

/// The state directory, and the thread that writes its long files.
pub(super) struct StateFileWriter {
    directory: StateDir,
    thread: Worker<StateWrite, WriteOutcome>,
}

impl StateFileWriter {
    /// Fails if the system has no more threads.
    pub(super) fn start(directory: StateDir) -> io::Result<Self> {
        let writer = directory.writer().clone();
        let thread = Worker::start("state files", move |write| writer.write_state(write))?;
        Ok(Self { directory, thread })
    }

    /// The state directory.
    pub(super) fn directory(&self) -> &StateDir {
        &self.directory
    }

    /// Writes a file and yields the result, or has the thread write it. Fails if the thread is
    /// gone.
    pub(super) fn submit(&mut self, write: StateWrite) -> io::Result<Option<WriteOutcome>> {
        if write.is_long() {
            return self.thread.submit(write).map(|()| None);
        }
        Ok(Some(self.directory.writer().write_state(write)))
    }

    /// The next result of the thread. Fails if the thread is gone.
    pub(super) fn poll(&mut self) -> io::Result<Option<WriteOutcome>> {
        let done = self.thread.poll()?;
        Ok(done.map(|done| done.unwrap_or_else(|panic| WriteOutcome::Panicked(panic.to_string()))))
    }

    /// Waits for the next result of the thread; none if it has nothing to do.
    pub(super) fn wait(&mut self) -> io::Result<Option<WriteOutcome>> {
        while !self.thread.is_idle() {
            if let Some(outcome) = self.poll()? {
                return Ok(Some(outcome));
            }
            wait(&mut [Interest::read(self.thread.as_fd())], None)?;
        }
        Ok(None)
    }
}

impl AsFd for StateFileWriter {
    /// Becomes readable when a write has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_core::fabric::Fabric;
    use sm_core::manage::lid::LidTable;
    use sm_core::sweep::{AcknowledgedTables, Origin};

    #[test]
    fn long_files_are_written_by_the_thread_in_turn_and_short_ones_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path(), false).unwrap();
        let mut files = StateFileWriter::start(state).unwrap();
        let (lids, _) = LidTable::parse("0x1 0x0004 0x0007");
        let tables = StateWrite::Tables(7, AcknowledgedTables::of(&Fabric::default()));
        let origin = Origin::parse("engine minhop\nwishes 0x1");
        assert!(files.submit(StateWrite::Lids(lids.clone())).unwrap().is_none());
        assert!(files.submit(tables.clone()).unwrap().is_none());
        let outcome = files.submit(StateWrite::Origin(origin.clone())).unwrap();
        assert!(matches!(outcome, Some(WriteOutcome::Done(StateWrite::Origin(_)))));
        let outcomes: Vec<_> = std::iter::from_fn(|| files.wait().unwrap()).collect();
        assert!(
            matches!(
                outcomes[..],
                [
                    WriteOutcome::Done(StateWrite::Lids(_)),
                    WriteOutcome::Done(StateWrite::Tables(..))
                ]
            ),
            "{outcomes:?}"
        );
        assert_eq!(files.directory().lids().unwrap(), lids);
        assert_eq!(files.directory().origin().unwrap(), origin);
        let left = files.directory().take_left().unwrap();
        assert_eq!(left.map(|left| left.registry), Some(7));

        assert!(files.submit(tables).unwrap().is_none());
        assert!(files.wait().unwrap().is_some());
        assert!(files.submit(StateWrite::ForgetTables).unwrap().is_some());
        assert_eq!(files.directory().take_left().unwrap(), None);
    }

    #[test]
    fn a_failure_returns_the_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut files = StateFileWriter::start(StateDir::open(&path, false).unwrap()).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        files.submit(StateWrite::Lids(LidTable::default())).unwrap();
        let outcome = files.wait().unwrap();
        assert!(matches!(outcome, Some(WriteOutcome::Failed(StateWrite::Lids(_), _))));
    }
}

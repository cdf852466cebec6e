//! The state of one file of the state directory: up to date, outdated, being written, or failed.

use std::error::Error;
use std::time::{Duration, Instant};

use tracing::{error, info};

/// How long to wait after a file could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A file that follows a table in memory.
#[derive(Debug)]
pub(super) struct StateFile {
    /// Its name, which identifies its problem.
    name: &'static str,
    /// The consequence if it is never written, for the log and the status.
    stake: &'static str,
    state: State,
    /// Why the last write failed; `None` if it did not.
    failure: Option<String>,
}

#[derive(Debug)]
enum State {
    /// The file is up to date.
    Written,
    /// The file is outdated.
    Behind,
    /// The file is being written; if its content was `touched` since, the write is outdated, too.
    Begun { touched: bool },
    /// The file could not be written; the write is retried.
    Failed { due: Instant },
}

impl StateFile {
    /// A file that is up to date. If it cannot be written, `stake` is logged.
    pub(super) fn new(name: &'static str, stake: &'static str) -> Self {
        Self { name, stake, state: State::Written, failure: None }
    }

    /// The table in memory changed.
    pub(super) fn touch(&mut self) {
        match &mut self.state {
            State::Written => self.state = State::Behind,
            State::Begun { touched } => *touched = true,
            State::Behind | State::Failed { .. } => {}
        }
    }

    /// Whether to write the file now.
    fn is_due(&self, now: Instant) -> bool {
        match &self.state {
            State::Written | State::Begun { .. } => false,
            State::Behind => true,
            State::Failed { due } => now >= *due,
        }
    }

    /// Begins a write if one is due.
    pub(super) fn begin_if_due(&mut self, now: Instant) -> bool {
        let is_due = self.is_due(now);
        if is_due {
            self.state = State::Begun { touched: false };
        }
        is_due
    }

    /// Whether the file is up to date.
    pub(super) fn is_written(&self) -> bool {
        matches!(self.state, State::Written)
    }

    /// Whether the last change was written, or could not be.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Written | State::Failed { .. })
    }

    pub(super) fn is_being_written(&self) -> bool {
        matches!(self.state, State::Begun { .. })
    }

    /// Makes a failed write due at once.
    pub(super) fn retry(&mut self) {
        if matches!(self.state, State::Failed { .. }) {
            self.state = State::Behind;
        }
    }

    /// The file was written, or could not be; returns whether it was.
    pub(super) fn note(
        &mut self,
        now: Instant,
        result: Result<(), &(dyn Error + Send + Sync + 'static)>,
    ) -> bool {
        let stake = self.stake;
        match result {
            Ok(()) => {
                if self.failure.take().is_some() {
                    info!("state file written again; resolved: {stake}");
                }
                let is_old = matches!(self.state, State::Begun { touched: true });
                self.state = if is_old { State::Behind } else { State::Written };
                true
            }
            Err(failure) => {
                let reason = sa_proto::with_causes(failure);
                if self.failure.as_ref() != Some(&reason) {
                    error!("{stake}: {reason}; retrying");
                }
                self.failure = Some(reason);
                self.state = State::Failed { due: now + RETRY_INTERVAL };
                false
            }
        }
    }

    /// When a failed write is due again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Failed { due } => Some(*due),
            State::Written | State::Behind | State::Begun { .. } => None,
        }
    }

    /// The file's name and a warning, while the last write failed.
    pub(super) fn warning(&self) -> Option<(&'static str, String)> {
        let reason = self.failure.as_ref()?;
        Some((self.name, format!("{}: {reason}", self.stake)))
    }
}

#[cfg(test)]
impl StateFile {
    /// Whether the file is outdated, and no write has begun.
    pub(super) fn is_behind(&self) -> bool {
        matches!(self.state, State::Behind | State::Failed { .. })
    }

    pub(super) fn begin(&mut self) {
        self.state = State::Begun { touched: false };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(file: &mut StateFile, now: Instant) -> bool {
        file.note(now, Err(&std::io::Error::from(std::io::ErrorKind::StorageFull)))
    }

    /// Regression: a file whose write failed was not written again until its content changed: LIDs
    /// of hosts added while the disk was full were assigned again, to other ports, after a restart.
    #[test]
    fn a_failed_write_is_retried_until_it_succeeds() {
        let mut file = StateFile::new("guid2lid", "LIDs are lost");
        let now = Instant::now();
        assert!(!file.is_due(now) && !file.is_behind());
        file.touch();
        assert!(file.is_due(now));
        assert!(!fail(&mut file, now));
        assert!(!file.is_due(now) && file.is_behind());
        assert!(file.warning().unwrap().1.starts_with("LIDs are lost: "));
        let due = file.poll_timeout().unwrap();
        assert!(file.is_due(due) && due > now);
        // A further change does not make it due at once; the end of the run does.
        file.touch();
        assert!(!file.is_due(now));
        assert!(file.note(due, Ok(())));
        assert!(!file.is_behind() && file.poll_timeout().is_none() && file.warning().is_none());
        file.touch();
        assert!(file.is_due(due));
        fail(&mut file, due);
        file.retry();
        assert!(file.is_due(due));
    }

    /// Regression: a change of the content during a write was lost.
    #[test]
    fn a_file_that_changes_while_it_is_written_is_written_again() {
        let mut file = StateFile::new("guid2lid", "LIDs are lost");
        let now = Instant::now();
        file.touch();
        file.begin();
        assert!(!file.is_due(now) && !file.is_behind(), "one job at a time");
        file.touch();
        assert!(file.note(now, Ok(())));
        assert!(file.is_due(now));
        file.begin();
        assert!(!fail(&mut file, now) && file.warning().is_some());
        file.begin();
        assert!(file.warning().is_some(), "until it is known to be written");
        assert!(file.note(now, Ok(())));
        assert!(!file.is_behind() && file.warning().is_none());
    }
}

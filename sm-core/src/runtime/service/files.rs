//! Files of the state directory that follow what is in memory: which of them are behind, and when
//! they are written again. Deciding only; [`StateDir`](super::StateDir) writes them.

use std::time::{Duration, Instant};

use tracing::{error, info};

/// How long to wait after a file could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A file that is to say what is in memory.
#[derive(Debug)]
pub(super) struct Followed {
    /// What is lost if it never does, for people.
    stake: &'static str,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The file says what is in memory.
    Written,
    /// It does not yet.
    Behind,
    /// It could not be written; it is tried again.
    Failed { due: Instant, reason: String },
}

impl Followed {
    /// A file that says what is in memory. Without it, `stake`.
    pub(super) fn new(stake: &'static str) -> Self {
        Self { stake, state: State::Written }
    }

    /// What is in memory is other than what the file says.
    pub(super) fn touch(&mut self) {
        if matches!(self.state, State::Written) {
            self.state = State::Behind;
        }
    }

    /// Whether the file is to be written now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match &self.state {
            State::Written => false,
            State::Behind => true,
            State::Failed { due, .. } => now >= *due,
        }
    }

    /// Whether the file does not say what is in memory.
    pub(super) fn is_behind(&self) -> bool {
        !matches!(self.state, State::Written)
    }

    /// The file was written as memory is now, or could not be for a reason; whether it was.
    pub(super) fn note(
        &mut self,
        now: Instant,
        result: Result<(), impl std::error::Error>,
    ) -> bool {
        let stake = self.stake;
        match result {
            Ok(()) => {
                if let State::Failed { .. } = self.state {
                    info!("written at last: no longer, {stake}");
                }
                self.state = State::Written;
                true
            }
            Err(failure) => {
                let reason = sa_proto::with_causes(&failure);
                if !matches!(&self.state, State::Failed { reason: known, .. } if *known == reason) {
                    error!("{stake}: {reason}; trying again");
                }
                self.state = State::Failed { due: now + RETRY_INTERVAL, reason };
                false
            }
        }
    }

    /// When it is to be tried again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Failed { due, .. } => Some(*due),
            State::Written | State::Behind => None,
        }
    }

    /// What an operator should know.
    pub(super) fn warning(&self) -> Option<String> {
        match &self.state {
            State::Failed { reason, .. } => Some(format!("{}: {reason}", self.stake)),
            State::Written | State::Behind => None,
        }
    }
}

/// The files that this run keeps.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) lids: Followed,
    pub(super) m_keys: Followed,
    pub(super) neighbours: Followed,
    pub(super) cut_ports: Followed,
    pub(super) left: Followed,
}

impl Default for Files {
    fn default() -> Self {
        let unreachable = "ports with an M_Key may be out of reach after a restart";
        Self {
            lids: Followed::new("LIDs given out will not survive a restart"),
            m_keys: Followed::new(unreachable),
            neighbours: Followed::new(unreachable),
            cut_ports: Followed::new(
                "a port switched off for a takeover may stay so after a restart",
            ),
            left: Followed::new("all clients are asked to register again after a restart"),
        }
    }
}

impl Files {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Followed> {
        [&self.lids, &self.m_keys, &self.neighbours, &self.cut_ports, &self.left].into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn full() -> Result<(), io::Error> {
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    /// A file that failed once was not written again until what it says changed again: LIDs of hosts
    /// added while the disk was full were dealt anew after a restart.
    #[test]
    fn a_file_that_could_not_be_written_is_tried_again_until_it_is() {
        let mut file = Followed::new("LIDs are lost");
        let now = Instant::now();
        assert!(!file.is_due(now) && !file.is_behind());
        file.touch();
        assert!(file.is_due(now));
        assert!(!file.note(now, full()));
        assert!(!file.is_due(now) && file.is_behind());
        assert!(file.warning().unwrap().starts_with("LIDs are lost: "));
        let due = file.poll_timeout().unwrap();
        assert!(file.is_due(due) && due > now);
        // A further change does not have it tried at once.
        file.touch();
        assert!(!file.is_due(now));
        assert!(file.note(due, Ok::<(), io::Error>(())));
        assert!(!file.is_behind() && file.poll_timeout().is_none() && file.warning().is_none());
        file.touch();
        assert!(file.is_due(due));
    }
}

//! Files of the state directory that follow what is in memory: which of them are behind, and when
//! they are written again. [`StateDir`] writes them.

use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::ClientId;
use tracing::{error, info, warn};

use crate::manage::mkey::{MKeyTable, Neighbours};
use crate::runtime::state::StateDir;
use crate::sweep::{Left, Origin, Sweeper};

/// How long to wait after a file could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// What files said at the start of M_Keys and links, and say since.
#[derive(Debug)]
pub(in crate::runtime) struct Caches {
    pub(in crate::runtime) m_keys: MKeyTable,
    pub(in crate::runtime) neighbours: Neighbours,
    /// Who made the routes in force.
    pub(in crate::runtime) origin: Option<Origin>,
}

/// The state directory, and which of its files are behind.
#[derive(Debug)]
pub(super) struct StateFiles {
    directory: StateDir,
    caches: Caches,
    lids: StateFile,
    m_keys: StateFile,
    neighbours: StateFile,
    disabled_ports: StateFile,
    left: StateFile,
}

impl StateFiles {
    pub(super) fn new(directory: StateDir, caches: Caches) -> Self {
        let unreachable = "ports with an M_Key may be out of reach after a restart";
        let cut = "a port switched off for a takeover may stay so after a restart";
        Self {
            directory,
            caches,
            lids: StateFile::new("LIDs given out will not survive a restart"),
            m_keys: StateFile::new(unreachable),
            neighbours: StateFile::new(unreachable),
            disabled_ports: StateFile::new(cut),
            left: StateFile::new("all clients are asked to register again after a restart"),
        }
    }

    fn all(&self) -> [&StateFile; 5] {
        [&self.lids, &self.m_keys, &self.neighbours, &self.disabled_ports, &self.left]
    }

    /// LIDs were given out anew.
    pub(super) fn lids_changed(&mut self) {
        self.lids.touch();
    }

    /// Reads the LIDs given out before once more, if the sweep that begins goes by the file.
    pub(super) fn reread_lids(&mut self, sweeper: &mut Sweeper) {
        if !sweeper.wants_lids() {
            return;
        }
        match self.directory.lids() {
            Ok(lids) => {
                info!("honor_guid2lid_file: {} known LIDs", lids.len());
                sweeper.set_lids(lids);
            }
            Err(failure) => error!("honor_guid2lid_file: the LIDs known before count: {failure}"),
        }
    }

    /// Other ports are switched off for a takeover.
    pub(super) fn disabled_ports_changed(&mut self) {
        self.disabled_ports.touch();
    }

    /// Looks whether M_Keys and links are as the next start, or OpenSM, would find them.
    pub(super) fn compare_caches(&mut self, sweeper: &mut Sweeper) {
        if *sweeper.m_keys() != self.caches.m_keys {
            self.m_keys.touch();
        }
        if *sweeper.neighbours() != self.caches.neighbours {
            self.neighbours.touch();
        }
        self.tables_changed();
    }

    /// What is in switches may be other than the file says.
    pub(super) fn tables_changed(&mut self) {
        self.left.touch();
    }

    /// Writes those files that are behind, and `all` of them even if they could not be written a
    /// moment ago. `sequence` tells the registry's sequence number.
    pub(super) fn write(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        sequence: impl FnOnce() -> u64,
        all: bool,
    ) {
        let is_due = |file: &StateFile| file.is_due(now) || all && file.is_behind();
        let directory = &self.directory;
        if is_due(&self.lids) {
            self.lids.note(now, directory.keep_lids(sweeper.lids()));
        }
        if is_due(&self.disabled_ports) {
            self.disabled_ports.note(now, directory.keep_disabled_ports(sweeper.disabled_ports()));
        }
        let m_keys = sweeper.m_keys();
        if is_due(&self.m_keys) && self.m_keys.note(now, directory.keep_m_keys(m_keys)) {
            self.caches.m_keys.clone_from(m_keys);
        }
        if is_due(&self.neighbours) {
            // To know them takes a walk of the fabric.
            let neighbours = sweeper.neighbours();
            if self.neighbours.note(now, directory.keep_neighbours(neighbours)) {
                self.caches.neighbours.clone_from(neighbours);
            }
        }
        if is_due(&self.left) && sweeper.is_settled() {
            let left = Left::of(sweeper.fabric(), sequence());
            self.left.note(now, directory.keep_left(&left));
        }
    }

    /// Another subnet manager rules: the next run must not take what it finds for ours.
    pub(super) fn another_rules(&mut self) {
        self.keep_origin(None);
        if let Err(failure) = self.directory.forget_left() {
            error!("the next start may not ask clients to register again: {failure}");
        }
    }

    /// Keeps who made the routes in force.
    pub(super) fn keep_origin(&mut self, origin: Option<Origin>) {
        if origin == self.caches.origin {
            return;
        }
        match self.directory.keep_origin(origin.as_ref()) {
            Ok(()) => self.caches.origin = origin,
            Err(failure) => {
                error!("the next start will not know whose routes it finds: {failure}");
            }
        }
    }

    /// Keeps what the simulator knows us by.
    pub(super) fn keep_client(&self, client: ClientId) {
        if let Err(failure) = self.directory.keep_client(client) {
            warn!("the simulator will keep what we are known by if we are killed: {failure}");
        }
    }

    /// The simulator knows us no more.
    pub(super) fn forget_client(&self) {
        self.directory.forget_client();
    }

    /// When a file is to be tried again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.all().into_iter().filter_map(StateFile::poll_timeout).min()
    }

    /// What an operator should know: a line for each file that could not be written.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.all().into_iter().filter_map(StateFile::warning)
    }
}

/// A file that is to say what is in memory.
#[derive(Debug)]
struct StateFile {
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

impl StateFile {
    /// A file that says what is in memory. Without it, `stake`.
    fn new(stake: &'static str) -> Self {
        Self { stake, state: State::Written }
    }

    /// What is in memory is other than what the file says.
    fn touch(&mut self) {
        if matches!(self.state, State::Written) {
            self.state = State::Behind;
        }
    }

    /// Whether the file is to be written now.
    fn is_due(&self, now: Instant) -> bool {
        match &self.state {
            State::Written => false,
            State::Behind => true,
            State::Failed { due, .. } => now >= *due,
        }
    }

    /// Whether the file does not say what is in memory.
    fn is_behind(&self) -> bool {
        !matches!(self.state, State::Written)
    }

    /// The file was written as memory is now, or could not be for a reason; whether it was.
    fn note(&mut self, now: Instant, result: Result<(), impl std::error::Error>) -> bool {
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
    fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Failed { due, .. } => Some(*due),
            State::Written | State::Behind => None,
        }
    }

    /// What an operator should know.
    fn warning(&self) -> Option<String> {
        match &self.state {
            State::Failed { reason, .. } => Some(format!("{}: {reason}", self.stake)),
            State::Written | State::Behind => None,
        }
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
        let mut file = StateFile::new("LIDs are lost");
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

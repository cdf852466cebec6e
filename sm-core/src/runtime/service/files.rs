//! Files of the state directory that follow what is in memory: which of them are behind, and when
//! they are written again.
//!
//! A thread renders and writes those that grow with the fabric, each as it is when its turn comes. The
//! others are a few lines, and written at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::ClientId;
use ib_mad::transport::{Interest, wait};
use tracing::{error, info, warn};

use crate::manage::lid::LidTable;
use crate::manage::mkey::{MKeyTable, Neighbours};
use crate::runtime::state::{StateDir, StateError, StateWriter};
use crate::runtime::worker::Worker;
use crate::sweep::{Origin, Sweeper, WholeTables};

/// How long to wait after a file could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// What files said at the start of M_Keys and links, and say since.
#[derive(Debug)]
pub(in crate::runtime) struct Caches {
    pub(in crate::runtime) m_keys: MKeyTable,
    pub(in crate::runtime) neighbours: Arc<Neighbours>,
    /// Who made the routes in force.
    pub(in crate::runtime) origin: Option<Origin>,
}

/// What a file of those that the thread writes is to say.
#[derive(Debug)]
enum Content {
    Lids(LidTable),
    MKeys(MKeyTable),
    Neighbours(Arc<Neighbours>),
    /// With the registry's sequence number.
    Left(u64, WholeTables),
}

impl Content {
    fn write(&self, writer: &StateWriter) -> Result<(), StateError> {
        match self {
            Self::Lids(lids) => writer.keep_lids(lids),
            Self::MKeys(m_keys) => writer.keep_m_keys(m_keys),
            Self::Neighbours(neighbours) => writer.keep_neighbours(neighbours),
            Self::Left(registry, tables) => writer.keep_left(&tables.left(*registry)),
        }
    }
}

/// The state directory, and which of its files are behind.
pub(super) struct StateFiles {
    directory: StateDir,
    caches: Caches,
    /// One job of a file at a time.
    writer: Worker<Content, (Content, Result<(), StateError>)>,
    lids: StateFile,
    m_keys: StateFile,
    neighbours: StateFile,
    disabled_ports: StateFile,
    left: StateFile,
    /// Whether what is being written of tables is not to be believed any more.
    left_is_void: bool,
}

impl StateFiles {
    /// Fails if there is no thread to be had.
    pub(super) fn start(directory: StateDir, caches: Caches) -> io::Result<Self> {
        let unreachable = "ports with an M_Key may be out of reach after a restart";
        let cut = "a port switched off for a takeover may stay so after a restart";
        let to = directory.writer().clone();
        let write = move |content: Content| {
            let result = content.write(&to);
            (content, result)
        };
        Ok(Self {
            writer: Worker::start("state files", write)?,
            directory,
            caches,
            lids: StateFile::new("LIDs given out will not survive a restart"),
            m_keys: StateFile::new(unreachable),
            neighbours: StateFile::new(unreachable),
            disabled_ports: StateFile::new(cut),
            left: StateFile::new("all clients are asked to register again after a restart"),
            left_is_void: false,
        })
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
        if !Arc::ptr_eq(sweeper.neighbours(), &self.caches.neighbours) {
            self.neighbours.touch();
        }
        self.tables_changed();
    }

    /// What is in switches may be other than the file says.
    pub(super) fn tables_changed(&mut self) {
        self.left.touch();
    }

    /// Has those files written that are behind, and `all` of them even if they could not be written a
    /// moment ago. `sequence` tells the registry's sequence number. Fails if the thread is gone.
    pub(super) fn write(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        sequence: impl FnOnce() -> u64,
        all: bool,
    ) -> io::Result<()> {
        self.take_written(now)?;
        let is_due = |file: &StateFile| file.is_due(now) || all && file.is_behind();
        if is_due(&self.disabled_ports) {
            let kept = self.directory.keep_disabled_ports(sweeper.disabled_ports());
            self.disabled_ports.note(now, kept);
        }
        let mut jobs = Vec::new();
        if is_due(&self.lids) {
            self.lids.begin();
            jobs.push(Content::Lids(sweeper.lids().clone()));
        }
        if is_due(&self.m_keys) {
            self.m_keys.begin();
            jobs.push(Content::MKeys(sweeper.m_keys().clone()));
        }
        if is_due(&self.neighbours) {
            self.neighbours.begin();
            jobs.push(Content::Neighbours(sweeper.neighbours().clone()));
        }
        if is_due(&self.left) && sweeper.is_settled() {
            self.left.begin();
            jobs.push(Content::Left(sequence(), WholeTables::of(sweeper.fabric())));
        }
        jobs.into_iter().try_for_each(|job| self.writer.submit(job))
    }

    /// Takes note of what was written.
    fn take_written(&mut self, now: Instant) -> io::Result<()> {
        while let Some(done) = self.writer.poll()? {
            match done {
                Ok((Content::Lids(_), result)) => _ = self.lids.note(now, result),
                Ok((Content::MKeys(m_keys), result)) => {
                    if self.m_keys.note(now, result) {
                        self.caches.m_keys = m_keys;
                    }
                }
                Ok((Content::Neighbours(neighbours), result)) => {
                    if self.neighbours.note(now, result) {
                        self.caches.neighbours = neighbours;
                    }
                }
                Ok((Content::Left(..), result)) => {
                    self.left.note(now, result);
                    if std::mem::take(&mut self.left_is_void) {
                        self.forget_left();
                    }
                }
                // Which file it was is lost with it: all that are being written are tried again.
                Err(panic) => {
                    for file in
                        [&mut self.lids, &mut self.m_keys, &mut self.neighbours, &mut self.left]
                    {
                        if file.is_being_written() {
                            file.note(now, Err(io::Error::other(panic.to_string())));
                        }
                    }
                }
            }
        }
        // Of a job that panicked, too.
        if self.writer.is_idle() && std::mem::take(&mut self.left_is_void) {
            self.forget_left();
        }
        Ok(())
    }

    /// Waits until what is being written is.
    pub(super) fn finish(&mut self, now: Instant) -> io::Result<()> {
        loop {
            self.take_written(now)?;
            if self.writer.is_idle() {
                return Ok(());
            }
            wait(&mut [Interest::read(self.writer.as_fd())], None)?;
        }
    }

    /// Another subnet manager rules: the next run must not take what it finds for ours.
    pub(super) fn another_rules(&mut self) {
        self.keep_origin(None);
        // What is on its way to the file would come after.
        self.left_is_void = self.left.is_being_written();
        self.forget_left();
    }

    fn forget_left(&self) {
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

impl AsFd for StateFiles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }
}

/// A file that is to say what is in memory.
#[derive(Debug)]
struct StateFile {
    /// What is lost if it never does, for people.
    stake: &'static str,
    state: State,
    /// Why it could not be written last; `None` if it could.
    failure: Option<String>,
}

#[derive(Debug)]
enum State {
    /// The file says what is in memory.
    Written,
    /// It does not yet.
    Behind,
    /// It is being written as memory was; if it was `touched` since, memory is other by now.
    Begun { touched: bool },
    /// It could not be written; it is tried again.
    Failed { due: Instant },
}

impl StateFile {
    /// A file that says what is in memory. Without it, `stake`.
    fn new(stake: &'static str) -> Self {
        Self { stake, state: State::Written, failure: None }
    }

    /// What is in memory is other than what the file says.
    fn touch(&mut self) {
        match &mut self.state {
            State::Written => self.state = State::Behind,
            State::Begun { touched } => *touched = true,
            State::Behind | State::Failed { .. } => {}
        }
    }

    /// Whether the file is to be written now.
    fn is_due(&self, now: Instant) -> bool {
        match &self.state {
            State::Written | State::Begun { .. } => false,
            State::Behind => true,
            State::Failed { due } => now >= *due,
        }
    }

    /// Whether the file does not say what is in memory, and nobody is writing it.
    fn is_behind(&self) -> bool {
        matches!(self.state, State::Behind | State::Failed { .. })
    }

    /// It is being written as memory is now.
    fn begin(&mut self) {
        self.state = State::Begun { touched: false };
    }

    fn is_being_written(&self) -> bool {
        matches!(self.state, State::Begun { .. })
    }

    /// The file was written, or could not be for a reason; whether it was.
    fn note(&mut self, now: Instant, result: Result<(), impl std::error::Error>) -> bool {
        let stake = self.stake;
        match result {
            Ok(()) => {
                if self.failure.take().is_some() {
                    info!("written at last: no longer, {stake}");
                }
                let is_old = matches!(self.state, State::Begun { touched: true });
                self.state = if is_old { State::Behind } else { State::Written };
                true
            }
            Err(failure) => {
                let reason = sa_proto::with_causes(&failure);
                if self.failure.as_ref() != Some(&reason) {
                    error!("{stake}: {reason}; trying again");
                }
                self.failure = Some(reason);
                self.state = State::Failed { due: now + RETRY_INTERVAL };
                false
            }
        }
    }

    /// When it is to be tried again.
    fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Failed { due } => Some(*due),
            State::Written | State::Behind | State::Begun { .. } => None,
        }
    }

    /// What an operator should know.
    fn warning(&self) -> Option<String> {
        self.failure.as_ref().map(|reason| format!("{}: {reason}", self.stake))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

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

    /// What changed while a file was being written was in none of both.
    #[test]
    fn a_file_that_changes_while_it_is_written_is_written_again() {
        let mut file = StateFile::new("LIDs are lost");
        let now = Instant::now();
        file.touch();
        file.begin();
        assert!(!file.is_due(now) && !file.is_behind(), "one job at a time");
        file.touch();
        assert!(file.note(now, Ok::<(), io::Error>(())));
        assert!(file.is_due(now));
        file.begin();
        assert!(!file.note(now, full()) && file.warning().is_some());
        file.begin();
        assert!(file.warning().is_some(), "until it is known to be written");
        assert!(file.note(now, Ok::<(), io::Error>(())));
        assert!(!file.is_behind() && file.warning().is_none());
    }

    fn files(path: &std::path::Path) -> StateFiles {
        let directory = StateDir::open(path, false).unwrap();
        let caches =
            Caches { m_keys: MKeyTable::default(), neighbours: Arc::default(), origin: None };
        StateFiles::start(directory, caches).unwrap()
    }

    #[test]
    fn the_thread_writes_what_is_behind() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = files(directory.path());
        let (lids, _) = LidTable::parse("0x1 0x0004 0x0007");
        let mut sweeper = Sweeper::new(Settings::default(), lids.clone(), 0);
        let now = Instant::now();
        files.lids_changed();
        files.write(now, &mut sweeper, || 7, false).unwrap();
        files.finish(now).unwrap();
        assert_eq!(files.directory.lids().unwrap(), lids);
        assert!(!files.lids.is_behind() && !files.lids.is_being_written());
        // What the file said of links is what is known of them.
        sweeper.set_m_keys(MKeyTable::default(), files.caches.neighbours.clone());
        files.compare_caches(&mut sweeper);
        assert!(
            !files.neighbours.is_behind() && !files.m_keys.is_behind() && files.left.is_behind()
        );
    }

    /// Where that had panicked, the next that was written was forgotten in its place.
    #[test]
    fn what_is_left_is_not_forgotten_for_a_writing_that_came_to_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = files(directory.path());
        let to = files.directory.writer().clone();
        let write = move |content: Content| {
            assert!(!matches!(content, Content::Left(6, _)), "as a bug would");
            let result = content.write(&to);
            (content, result)
        };
        files.writer = Worker::start("state files", write).unwrap();
        let now = Instant::now();
        let tables = WholeTables::of(&crate::fabric::Fabric::default());
        files.left.begin();
        files.writer.submit(Content::Left(6, tables.clone())).unwrap();
        files.another_rules();
        files.finish(now).unwrap();
        files.left.begin();
        files.writer.submit(Content::Left(7, tables)).unwrap();
        files.finish(now).unwrap();
        assert_eq!(files.directory.take_left().unwrap().map(|left| left.registry), Some(7));
    }

    /// Another subnet manager ruled while the file was being written, and the next run took what that
    /// one left for ours.
    #[test]
    fn what_is_left_is_forgotten_though_it_is_being_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = files(directory.path());
        let now = Instant::now();
        let tables = WholeTables::of(&crate::fabric::Fabric::default());
        files.left.begin();
        files.writer.submit(Content::Left(7, tables.clone())).unwrap();
        files.another_rules();
        files.finish(now).unwrap();
        assert_eq!(files.directory.take_left().unwrap(), None);
        files.left.begin();
        files.writer.submit(Content::Left(7, tables)).unwrap();
        files.finish(now).unwrap();
        assert_eq!(files.directory.take_left().unwrap().map(|left| left.registry), Some(7));
    }
}

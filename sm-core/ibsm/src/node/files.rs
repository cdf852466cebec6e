//! Files of the state directory: which of them are outdated, and when they are written.
//!
//! Each write holds the content as it is when its turn comes. There is one write of a file at a
//! time; what changes in the meantime is written by the next.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use tracing::{error, info};

use sa_proto::state::Document;

use super::master_state::{BASELINE, LIDS, M_KEYS, MasterState, NEIGHBOURS};
use super::state_file::StateFile;
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};
use sm_core::sweep::{AcknowledgedTables, DisabledPorts, Origin, Sweeper};

/// Contents of the files of M_Keys, links and routing origin: as read at the start, then as
/// written last.
#[derive(Clone, Debug)]
pub struct SavedState {
    /// Contents of `guid2mkey`.
    pub m_keys: MKeyTable,
    /// Contents of `neighbors`.
    pub neighbours: Arc<Neighbours>,
    /// Contents of `routing`: which engine computed the routes in force.
    pub origin: Option<Origin>,
}

/// A change of the state directory.
#[derive(Clone, Debug)]
pub enum StateWrite {
    /// Write `guid2lid`.
    Lids(LidTable),
    /// Write `guid2mkey`.
    MKeys(MKeyTable),
    /// Write `neighbors`.
    Neighbours(Arc<Neighbours>),
    /// Write `tables`: the registry's sequence number, and the tables of switches.
    Tables(u64, AcknowledgedTables),
    /// Remove `tables`.
    ForgetTables,
    /// Write `cut-ports`.
    DisabledPorts(DisabledPorts),
    /// Write `routing`, or remove it.
    Origin(Option<Origin>),
    /// Write `baseline`: that of the master.
    Baseline(Arc<Document>),
    /// Write copies of the operators' files of the master.
    MasterFiles(Arc<MasterState>),
}

impl StateWrite {
    /// Whether the file grows with the fabric, so that a thread should write it. The others are a
    /// few lines, and are written at once.
    pub fn is_long(&self) -> bool {
        match self {
            Self::Lids(_) | Self::MKeys(_) | Self::Neighbours(_) | Self::Tables(..) => true,
            Self::Baseline(_) | Self::MasterFiles(_) => true,
            Self::ForgetTables | Self::DisabledPorts(_) | Self::Origin(_) => false,
        }
    }

    /// What the change does to which file.
    pub fn contents(&self) -> Contents<'_> {
        match self {
            Self::Lids(lids) => Contents::Followed(LIDS, lids.render()),
            Self::MKeys(m_keys) => Contents::Followed(M_KEYS, m_keys.render()),
            Self::Neighbours(neighbours) => Contents::Followed(NEIGHBOURS, neighbours.render()),
            Self::Tables(registry, tables) => {
                Contents::Text("tables", tables.fingerprint(*registry).render())
            }
            Self::ForgetTables => Contents::Removed("tables"),
            Self::DisabledPorts(ports) => {
                let lines = ports.iter().map(|(guid, num)| format!("{guid} {}\n", num.0));
                Contents::Text("cut-ports", lines.collect())
            }
            Self::Origin(Some(origin)) => Contents::Text("routing", origin.render()),
            Self::Origin(None) => Contents::Removed("routing"),
            Self::Baseline(document) => {
                let text = document.text.as_deref().unwrap_or_default();
                Contents::Followed(BASELINE, String::from_utf8_lossy(text).into_owned())
            }
            Self::MasterFiles(state) => Contents::MasterFiles(state),
        }
    }
}

/// What a [`StateWrite`] does to files of the state directory.
pub enum Contents<'a> {
    /// The file with this name, which standbys copy, is to contain this text.
    Followed(&'static str, String),
    /// The file with this name is to contain this text.
    Text(&'static str, String),
    /// The file with this name is to be removed.
    Removed(&'static str),
    /// The copies of operators' files are to be those of this state.
    MasterFiles(&'a MasterState),
}

/// The result of a [`StateWrite`].
#[derive(Debug)]
pub enum WriteOutcome {
    /// The file was written.
    Done(StateWrite),
    /// The file could not be written.
    Failed(StateWrite, Box<dyn Error + Send + Sync>),
    /// A write panicked, with this message; it is unknown which.
    Panicked(String),
}

/// The files of the state directory that are outdated.
pub(super) struct StateFiles {
    saved: SavedState,
    lids: StateFile,
    m_keys: StateFile,
    neighbours: StateFile,
    disabled_ports: StateFile,
    tables: StateFile,
    baseline: StateFile,
    master_files: StateFile,
    /// The master's baseline that was received last.
    followed_baseline: Option<Arc<Document>>,
    /// The master's operators' files that were received last.
    master: Option<Arc<MasterState>>,
    /// Whether the file of tables that is being written must be removed afterwards.
    tables_are_void: bool,
    /// Writes that do not wait for their turn.
    at_once: VecDeque<StateWrite>,
    /// Writes whose result has not come back.
    pending: usize,
}

impl StateFiles {
    /// State in which no file is outdated.
    pub(super) fn new(saved: SavedState) -> Self {
        let unreachable = "ports with an M_Key may be unreachable after a restart";
        let cut = "a port disabled for a takeover may stay disabled after a restart";
        Self {
            saved,
            lids: StateFile::new(LIDS, "assigned LIDs will not survive a restart"),
            m_keys: StateFile::new(M_KEYS, unreachable),
            neighbours: StateFile::new(NEIGHBOURS, unreachable),
            disabled_ports: StateFile::new("cut-ports", cut),
            tables: StateFile::new(
                "tables",
                "all clients will be asked to register again after a restart",
            ),
            baseline: StateFile::new(
                BASELINE,
                "after a restart the fabric is not compared with the master's baseline",
            ),
            followed_baseline: None,
            master_files: StateFile::new(
                "master-files",
                "the master's settings and files are not used here",
            ),
            master: None,
            tables_are_void: false,
            at_once: VecDeque::new(),
            pending: 0,
        }
    }

    fn all(&self) -> [&StateFile; 7] {
        let Self { lids, m_keys, neighbours, disabled_ports, tables, .. } = self;
        let Self { baseline, master_files, .. } = self;
        [lids, m_keys, neighbours, disabled_ports, tables, baseline, master_files]
    }

    fn all_mut(&mut self) -> [&mut StateFile; 7] {
        let Self { lids, m_keys, neighbours, disabled_ports, tables, .. } = self;
        let Self { baseline, master_files, .. } = self;
        [lids, m_keys, neighbours, disabled_ports, tables, baseline, master_files]
    }

    /// LIDs were assigned.
    pub(super) fn lids_changed(&mut self) {
        self.lids.touch();
    }

    /// Operators' files of the master were received.
    pub(super) fn master_files_followed(&mut self, master: Arc<MasterState>) {
        self.master = Some(master);
        self.master_files.touch();
    }

    /// The baseline of the master was received, or its end.
    pub(super) fn baseline_followed(&mut self, baseline: Arc<Document>) {
        self.followed_baseline = Some(baseline);
        self.baseline.touch();
    }

    fn followed(&self) -> [&StateFile; 5] {
        [&self.lids, &self.m_keys, &self.neighbours, &self.baseline, &self.master_files]
    }

    /// Whether the files that standbys copy have the content of the tables in memory.
    pub(super) fn are_tables_written(&self) -> bool {
        self.followed().into_iter().all(StateFile::is_written)
    }

    /// Whether the files that standbys copy were handed out to be written as they are now: this
    /// publishes them, even if the write fails.
    pub(super) fn are_tables_published(&self) -> bool {
        self.followed().into_iter().all(StateFile::is_done)
    }

    /// Other ports are disabled for a takeover.
    pub(super) fn disabled_ports_changed(&mut self) {
        self.disabled_ports.touch();
    }

    /// Marks the files of M_Keys and links as outdated if they are, and that of tables.
    pub(super) fn compare_caches(&mut self, sweeper: &mut Sweeper) {
        self.compare_keys_and_links(sweeper);
        self.tables_changed();
    }

    /// Marks the files of M_Keys and links as outdated if they are.
    pub(super) fn compare_keys_and_links(&mut self, sweeper: &mut Sweeper) {
        if *sweeper.m_keys() != self.saved.m_keys {
            self.m_keys.touch();
        }
        if !Arc::ptr_eq(sweeper.neighbours(), &self.saved.neighbours) {
            self.neighbours.touch();
        }
    }

    /// Tables of switches may differ from the file.
    pub(super) fn tables_changed(&mut self) {
        self.tables.touch();
    }

    /// Another subnet manager is master: the next run must not assume that it wrote the tables.
    pub(super) fn another_is_master(&mut self) {
        self.save_origin(None);
        // A write that has begun would leave the file behind.
        self.tables_are_void = self.tables.is_being_written();
        self.at_once.push_back(StateWrite::ForgetTables);
    }

    /// Saves which engine computed the routes in force.
    pub(super) fn save_origin(&mut self, origin: Option<Origin>) {
        let queued = self.at_once.iter().rev().find_map(|write| match write {
            StateWrite::Origin(origin) => Some(origin),
            _ => None,
        });
        if origin != *queued.unwrap_or(&self.saved.origin) {
            self.at_once.push_back(StateWrite::Origin(origin));
        }
    }

    /// The next write. `sequence` yields the registry's sequence number.
    pub(super) fn poll_write(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        sequence: impl FnOnce() -> u64,
    ) -> Option<StateWrite> {
        let write = if let Some(write) = self.at_once.pop_front() {
            write
        } else if self.disabled_ports.begin_if_due(now) {
            StateWrite::DisabledPorts(sweeper.disabled_ports().clone())
        } else if self.lids.begin_if_due(now) {
            StateWrite::Lids(sweeper.lids().clone())
        } else if self.m_keys.begin_if_due(now) {
            StateWrite::MKeys(sweeper.m_keys().clone())
        } else if self.neighbours.begin_if_due(now) {
            StateWrite::Neighbours(sweeper.neighbours().clone())
        } else if let Some(baseline) = self.followed_baseline.clone()
            && self.baseline.begin_if_due(now)
        {
            StateWrite::Baseline(baseline)
        } else if let Some(master) = self.master.clone()
            && self.master_files.begin_if_due(now)
        {
            StateWrite::MasterFiles(master)
        } else if sweeper.is_settled() && self.tables.begin_if_due(now) {
            StateWrite::Tables(sequence(), AcknowledgedTables::of(sweeper.fabric()))
        } else {
            return None;
        };
        self.pending += 1;
        Some(write)
    }

    /// A write has ended.
    pub(super) fn handle_written(
        &mut self,
        now: Instant,
        write: StateWrite,
        result: Result<(), &(dyn Error + Send + Sync + 'static)>,
    ) {
        self.pending = self.pending.saturating_sub(1);
        match write {
            StateWrite::Lids(_) => _ = self.lids.note(now, result),
            StateWrite::MKeys(m_keys) => {
                if self.m_keys.note(now, result) {
                    self.saved.m_keys = m_keys;
                }
            }
            StateWrite::Neighbours(neighbours) => {
                if self.neighbours.note(now, result) {
                    self.saved.neighbours = neighbours;
                }
            }
            StateWrite::Tables(..) => {
                self.tables.note(now, result);
                self.forget_void_tables();
            }
            StateWrite::Baseline(_) => _ = self.baseline.note(now, result),
            StateWrite::MasterFiles(_) => _ = self.master_files.note(now, result),
            StateWrite::DisabledPorts(_) => _ = self.disabled_ports.note(now, result),
            StateWrite::Origin(origin) => match result {
                Ok(()) => self.saved.origin = origin,
                Err(failure) => error!(
                    "cannot save the routing engine and its options: {failure}; after a restart \
                     the current routes count as those of another SM"
                ),
            },
            StateWrite::ForgetTables => {
                if let Err(failure) = result {
                    error!(
                        "cannot remove the saved fingerprint of the switch tables: {failure}; \
                         after a restart clients may not be asked to register again"
                    );
                }
            }
        }
        if self.pending == 0 {
            self.forget_void_tables();
        }
    }

    /// A write panicked. It is unknown of which file: all that are being written are retried.
    pub(super) fn handle_panic(&mut self, now: Instant, reason: &str) {
        self.pending = self.pending.saturating_sub(1);
        let failure = std::io::Error::other(reason);
        for file in self.all_mut() {
            if file.is_being_written() {
                file.note(now, Err(&failure));
            }
        }
        if self.pending == 0 {
            self.forget_void_tables();
        }
    }

    fn forget_void_tables(&mut self) {
        if std::mem::take(&mut self.tables_are_void) {
            self.at_once.push_back(StateWrite::ForgetTables);
        }
    }

    /// Files whose last write failed are due at once.
    pub(super) fn retry(&mut self) {
        self.all_mut().into_iter().for_each(StateFile::retry);
    }

    /// When a failed write is due again; that of tables not while they change.
    pub(super) fn poll_timeout(&self, sweeper: &Sweeper) -> Option<Instant> {
        let tables = self.tables.poll_timeout().filter(|_| sweeper.is_settled());
        let rest = self.all().into_iter().filter(|file| !std::ptr::eq(*file, &self.tables));
        rest.filter_map(StateFile::poll_timeout).chain(tables).min()
    }

    /// Each file that could not be written, and a line about it.
    pub(super) fn warnings(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.all().into_iter().filter_map(StateFile::warning)
    }
}

/// Takes the LIDs of `guid2lid`, for a sweep that assigns LIDs by the file.
pub(super) fn handle_lids(
    read: Result<LidTable, Box<dyn Error + Send + Sync>>,
    sweeper: &mut Sweeper,
) {
    match read {
        Ok(lids) => {
            info!("honor_guid2lid_file: {} LIDs read from the file", lids.len());
            sweeper.set_lids(lids);
        }
        Err(failure) => error!("honor_guid2lid_file: {failure}; keeping the LIDs known before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (StateFiles, Sweeper) {
        let saved =
            SavedState { m_keys: MKeyTable::default(), neighbours: Arc::default(), origin: None };
        let sweeper = Sweeper::new(sm_config::Settings::default(), LidTable::default(), 0);
        (StateFiles::new(saved), sweeper)
    }

    #[test]
    fn caches_that_equal_their_files_are_not_written() {
        let (mut files, mut sweeper) = files();
        sweeper.set_m_keys(MKeyTable::default(), files.saved.neighbours.clone());
        files.compare_caches(&mut sweeper);
        assert!(
            !files.neighbours.is_behind() && !files.m_keys.is_behind() && files.tables.is_behind()
        );
    }

    fn tables() -> StateWrite {
        StateWrite::Tables(7, AcknowledgedTables::of(&sm_core::fabric::Fabric::default()))
    }

    /// Begins to write the tables.
    fn begin(files: &mut StateFiles) {
        files.tables.begin();
        files.pending += 1;
    }

    fn polled(files: &mut StateFiles, sweeper: &mut Sweeper) -> Vec<StateWrite> {
        std::iter::from_fn(|| files.poll_write(Instant::now(), sweeper, || 7)).collect()
    }

    /// Regression: if the write of the tables panicked, the next file that was written was removed
    /// in their place.
    #[test]
    fn tables_whose_write_panicked_are_removed_once() {
        let (mut files, mut sweeper) = files();
        let now = Instant::now();
        begin(&mut files);
        files.another_is_master();
        assert!(matches!(polled(&mut files, &mut sweeper)[..], [StateWrite::ForgetTables]));
        files.handle_panic(now, "as a bug would");
        files.handle_written(now, StateWrite::ForgetTables, Ok(()));
        assert!(matches!(polled(&mut files, &mut sweeper)[..], [StateWrite::ForgetTables]));
        files.handle_written(now, StateWrite::ForgetTables, Ok(()));
        begin(&mut files);
        files.handle_written(now, tables(), Ok(()));
        assert!(polled(&mut files, &mut sweeper).is_empty());
    }

    /// Regression: another subnet manager became master while the file was being written, and the
    /// next run assumed that it had written the tables itself.
    #[test]
    fn tables_are_removed_after_a_write_that_had_begun() {
        let (mut files, mut sweeper) = files();
        let now = Instant::now();
        begin(&mut files);
        files.another_is_master();
        assert!(matches!(polled(&mut files, &mut sweeper)[..], [StateWrite::ForgetTables]));
        files.handle_written(now, StateWrite::ForgetTables, Ok(()));
        files.handle_written(now, tables(), Ok(()));
        assert!(matches!(polled(&mut files, &mut sweeper)[..], [StateWrite::ForgetTables]));
        files.handle_written(now, StateWrite::ForgetTables, Ok(()));
        begin(&mut files);
        files.handle_written(now, tables(), Ok(()));
        assert!(polled(&mut files, &mut sweeper).is_empty());
    }

    /// Regression: a manager that could not write the tables and then stood by, or swept, was
    /// always due, and did nothing: its thread never slept.
    #[test]
    fn tables_that_could_not_be_written_are_due_only_while_they_can_be_written() {
        let (mut files, mut sweeper) = files();
        let now = Instant::now();
        begin(&mut files);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        files.handle_written(now, tables(), Err(&full));
        assert!(!sweeper.is_settled());
        assert_eq!(files.poll_timeout(&sweeper), None);
        files.lids.begin();
        files.handle_written(now, StateWrite::Lids(LidTable::default()), Err(&full));
        let due = files.poll_timeout(&sweeper);
        assert!(due > Some(now));
        assert_eq!(files.poll_write(due.unwrap(), &mut sweeper, || 7).map(|_| ()), Some(()));
        assert_eq!(files.poll_timeout(&sweeper), None);
    }

    #[test]
    fn the_origin_is_saved_if_it_changed_and_retried_at_the_next_sweep() {
        let (mut files, mut sweeper) = files();
        let now = Instant::now();
        files.save_origin(None);
        assert!(polled(&mut files, &mut sweeper).is_empty());
        let origin = Origin::parse("engine minhop\nwishes 0x0\n");
        files.save_origin(origin.clone());
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        files.handle_written(now, StateWrite::Origin(origin.clone()), Err(&full));
        polled(&mut files, &mut sweeper);
        files.save_origin(origin.clone());
        assert!(matches!(polled(&mut files, &mut sweeper)[..], [StateWrite::Origin(_)]));
        files.handle_written(now, StateWrite::Origin(origin.clone()), Ok(()));
        files.save_origin(origin);
        assert!(polled(&mut files, &mut sweeper).is_empty());
    }
}

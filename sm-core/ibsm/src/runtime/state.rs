//! The state directory: files that outlive the process.
//!
//! - `guid2lid`: LIDs by port GUID, `guid2mkey`: M_Keys, and `neighbors`: links between ports, all
//!   in OpenSM's format, so that OpenSM can replace ibsm and ibsm can replace OpenSM.
//! - `master-files`: operators' files of the master, used with `--follow-config`.
//! - `cut-ports`: switch ports that were disabled to move a LID.
//! - `routing`: which engine computed the forwarding tables that switches hold.
//! - `tables`: hashes of those tables, by which the next run detects that others were written.
//! - `baseline`: the topology that the fabric is compared with, as ibnetdiscover prints it.
//! - `lock`: locked while a process uses the directory.
//! - `ibsm-client`: this run's identity at the simulator, by which its slot is freed after a
//!   `kill -9`.
//!
//! The epoch of snapshots is in the same directory; `publish` writes it.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use daemon::kept;
use ib_mad::transport::ibsim::ClientId;
use ib_mad::types::PortNum;
use tracing::warn;

use crate::cli::master_files::{self, MasterFiles};
use crate::node::{
    BASELINE, Contents, LIDS, M_KEYS, MasterState, NEIGHBOURS, StateWrite, WriteOutcome,
};
use crate::publish::{Baseline, StateBoard};
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{self, MKeyTable, Neighbours};
use sm_core::sweep::{DisabledPorts, Origin, TableFingerprint};

/// Longest baseline read, bytes: a fabric of 10,000 hosts has some 5 MB.
const BASELINE_LEN_MAX: u64 = 128 << 20;

/// Longest file read, bytes: 49,151 ports at 35 bytes are 1.7 MB.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Files of one name that are set aside.
const REFUSED_MAX: usize = 9;

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "state directory: {}: {source}; correct this, or choose another directory with --state-dir",
    path.display()
)]
pub struct StateError {
    path: PathBuf,
    source: io::Error,
}

/// The state directory, which exists and can be written, unless it is only read.
#[derive(Debug)]
pub(super) struct StateDir {
    writer: StateWriter,
    /// Locked while the process runs; `None` if it is only read.
    lock: Option<File>,
}

/// Writes files of the state directory, on any thread.
#[derive(Clone, Debug)]
pub(super) struct StateWriter {
    path: PathBuf,
    /// Whether files are synced to disk; all writers of the directory share it.
    sync: Arc<AtomicBool>,
    /// Whether a warning was logged that the directory itself cannot be synced.
    warned: Arc<AtomicBool>,
    /// Where files that standbys copy are published.
    board: Option<Arc<StateBoard>>,
}

impl StateDir {
    /// Opens `path`, creating it if need be.
    pub(super) fn open(path: &Path, sync: bool) -> Result<Self, StateError> {
        let failed = |source| StateError { path: path.to_owned(), source };
        let is_new = !path.try_exists().map_err(failed)?;
        create_directory(path).and_then(|()| kept::check_directory(path)).map_err(failed)?;
        if is_new {
            warn!("{}", created(path));
        }
        let lock = kept::lock_file(&path.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed(io::Error::other(
                "another ibsm uses it; each ibsm on a host needs its own directory",
            )),
            TryLockError::Error(source) => failed(source),
        })?;
        let (path, sync) = (path.to_owned(), Arc::new(AtomicBool::new(sync)));
        let writer = StateWriter { path, sync, warned: Arc::default(), board: None };
        Ok(Self { writer, lock: Some(lock) })
    }

    /// The directory of another process, or none: nothing is to be written to it, and it need not
    /// exist.
    pub(super) fn read_only(path: &Path) -> Self {
        let (path, sync) = (path.to_owned(), Arc::default());
        let writer = StateWriter { path, sync, warned: Arc::default(), board: None };
        Self { writer, lock: None }
    }

    /// Sets whether files written from now on are synced to disk.
    pub(super) fn set_sync(&self, sync: bool) {
        self.writer.sync.store(sync, Relaxed);
    }

    /// Publishes files that standbys copy when they are written from now on, and these that were
    /// read.
    pub(super) fn publish_to(
        &mut self,
        board: Arc<StateBoard>,
        lids: &LidTable,
        m_keys: &MKeyTable,
        neighbours: &Neighbours,
    ) {
        board.set_file(LIDS, lids.render());
        board.set_file(M_KEYS, m_keys.render());
        board.set_file(NEIGHBOURS, neighbours.render());
        self.writer.board = Some(board);
    }

    /// The baseline that was taken by command. One that cannot be read is set aside with a warning.
    pub(super) fn baseline(&self) -> Result<Option<Baseline>, StateError> {
        let text = self.read_optional(BASELINE, BASELINE_LEN_MAX)?;
        if text.is_empty() {
            return Ok(None);
        }
        match Baseline::parse(BASELINE, &text) {
            Ok(baseline) => Ok(Some(baseline)),
            Err(failure) => {
                let aside = self.set_aside(BASELINE)?;
                warn!(
                    "the baseline is not in force: {failure}; moved to {}: take another one with \
                     ibsmctl baseline take",
                    aside.display()
                );
                Ok(None)
            }
        }
    }

    /// Whether a baseline was taken or removed by command.
    pub(super) fn has_baseline_file(&self) -> bool {
        self.file(BASELINE).exists()
    }

    /// Writes files.
    pub(super) fn writer(&self) -> &StateWriter {
        &self.writer
    }

    /// LIDs assigned before. Invalid lines are skipped with a warning.
    pub(super) fn lids(&self) -> Result<LidTable, StateError> {
        let Some(text) = self.read(LIDS)? else { return Ok(LidTable::default()) };
        let (table, rejected) = LidTable::parse(&text);
        for line in rejected.iter().take(10) {
            warn!("{}:{}: {}; line ignored", self.file(LIDS).display(), line.line, line.reason);
        }
        if rejected.len() > 10 {
            warn!(
                "{}: {} more invalid lines ignored",
                self.file(LIDS).display(),
                rejected.len() - 10
            );
        }
        Ok(table)
    }

    /// M_Keys of ports and links between them, as an earlier run knew them.
    pub(super) fn m_keys(&self) -> Result<(MKeyTable, Neighbours), StateError> {
        let warn = |name: &str, left_out: usize| {
            if left_out > 0 {
                warn!("{}: {left_out} invalid line(s) ignored", self.file(name).display());
            }
        };
        let (keys, left_out) = MKeyTable::parse(&self.read_cache(M_KEYS)?);
        warn(M_KEYS, left_out);
        let (neighbours, left_out) = Neighbours::parse(&self.read_cache(NEIGHBOURS)?);
        warn(NEIGHBOURS, left_out);
        Ok((keys, neighbours))
    }

    /// The identity of this SM at the feeds that it follows, the same over restarts; not 0.
    pub(super) fn identity(&self) -> Result<u64, StateError> {
        let known = self.read("identity")?;
        if let Some(id) = known.and_then(|text| text.trim().parse().ok()).filter(|&id| id != 0) {
            return Ok(id);
        }
        let id = RandomState::new().hash_one(std::process::id()) | 1;
        self.write("identity", &format!("{id}\n"))?;
        Ok(id)
    }

    /// Ports that an earlier run disabled for a takeover, and has not seen enabled since. Invalid
    /// lines are skipped with a warning.
    pub(super) fn disabled_ports(&self) -> Result<DisabledPorts, StateError> {
        let mut ports = DisabledPorts::new();
        for (number, line) in self.read("cut-ports")?.unwrap_or_default().lines().enumerate() {
            let port = line.split_once(' ').and_then(|(guid, num)| {
                Some((guid.parse().ok()?, PortNum(num.trim().parse().ok()?)))
            });
            match port {
                Some(port) => _ = ports.insert(port),
                None => warn!(
                    "{}:{}: '{line}' is not a switch GUID and a port number; line ignored",
                    self.file("cut-ports").display(),
                    number + 1
                ),
            }
        }
        Ok(ports)
    }

    /// The engine that computed the tables in the switches, as saved by the last run.
    pub(super) fn origin(&self) -> Result<Option<Origin>, StateError> {
        Ok(Origin::parse(&self.read_cache("routing")?))
    }

    /// The tables that the last run left in switches. Removes the file: until the tables are
    /// compared with the switches, no further run may use it.
    pub(super) fn take_left(&self) -> Result<Option<TableFingerprint>, StateError> {
        let left = TableFingerprint::parse(&self.read_cache("tables")?);
        self.writer.forget("tables")?;
        Ok(left)
    }

    /// The identity of an earlier run at the simulator.
    pub(super) fn stale_client(&self) -> Option<ClientId> {
        self.read("ibsm-client").ok().flatten()?.parse().ok()
    }

    /// Saves the identity of this run at the simulator.
    pub(super) fn keep_client(&self, client: ClientId) -> Result<(), StateError> {
        self.write("ibsm-client", &format!("{client}\n"))
    }

    /// Saves the index of the copies of the master's files.
    pub(super) fn save_index(&self, files: &MasterFiles) -> Result<(), StateError> {
        let name = format!("{}/{}", master_files::DIRECTORY, master_files::INDEX);
        self.write(&name, &files.render())
    }

    /// This run has detached from the simulator.
    pub(super) fn forget_client(&self) {
        let _ = fs::remove_file(self.file("ibsm-client"));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.writer.file(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), StateError> {
        self.writer.write(name, text)
    }

    fn read(&self, name: &str) -> Result<Option<String>, StateError> {
        self.read_up_to(name, FILE_LEN_MAX)
    }

    /// Reads a file that may be lost. One that can never be read is renamed, for the operator to
    /// inspect; an error that may be temporary, such as an I/O error, ends the start.
    fn read_cache(&self, name: &str) -> Result<String, StateError> {
        self.read_optional(name, mkey::FILE_LEN_MAX)
    }

    /// The same, with this limit of the length, bytes.
    fn read_optional(&self, name: &str, len_max: u64) -> Result<String, StateError> {
        let failure = match self.read_up_to(name, len_max) {
            Ok(text) => return Ok(text.unwrap_or_default()),
            Err(failure) => failure,
        };
        if failure.source.kind() != io::ErrorKind::InvalidData {
            return Err(failure);
        }
        if self.lock.is_none() {
            warn!("{failure}; continuing without it");
            return Ok(String::new());
        }
        let aside = self.set_aside(name)?;
        let StateError { path, source } = failure;
        warn!(
            "{}: {source}; moved to {}, starting with an empty file",
            path.display(),
            aside.display()
        );
        Ok(String::new())
    }

    /// Renames a file to an unused name; returns the name.
    fn set_aside(&self, name: &str) -> Result<PathBuf, StateError> {
        let path = self.file(name);
        let names = (1..=REFUSED_MAX).map(|number| match number {
            1 => format!("{name}.refused"),
            _ => format!("{name}.refused.{number}"),
        });
        let is_free = |path: &PathBuf| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let moved = match names.map(|name| self.file(&name)).find(is_free) {
            Some(aside) => fs::rename(&path, &aside).map(|()| aside),
            None => Err(io::Error::other(format!(
                "it is unusable, and {REFUSED_MAX} unusable copies exist already; remove \
                 {name}.refused*"
            ))),
        };
        moved.map_err(|source| StateError { path, source })
    }

    fn read_up_to(&self, name: &str, len_max: u64) -> Result<Option<String>, StateError> {
        let path = self.file(name);
        match kept::read(&path, len_max) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { path, source }),
        }
    }
}

impl StateWriter {
    /// Writes or removes a file.
    pub(super) fn write_state(&self, write: StateWrite) -> WriteOutcome {
        match self.apply(&write) {
            Ok(()) => WriteOutcome::Done(write),
            Err(failure) => WriteOutcome::Failed(write, failure.into()),
        }
    }

    fn apply(&self, write: &StateWrite) -> Result<(), StateError> {
        match write.contents() {
            Contents::Followed(name, text) => self.publish(name, text),
            Contents::Text(name, text) => self.write(name, text),
            Contents::Removed(name) => self.forget(name),
            Contents::MasterFiles(state) => self.copy_files(state),
        }
    }

    /// Writes a file that standbys copy. They get it even if it cannot be written here.
    fn publish(&self, name: &str, text: String) -> Result<(), StateError> {
        let written = self.write(name, &text);
        if let Some(board) = &self.board {
            board.set_file(name, text);
        }
        written
    }

    /// Writes copies of the master's files. They are used once the index names them.
    fn copy_files(&self, state: &MasterState) -> Result<(), StateError> {
        let directory = self.file(master_files::DIRECTORY);
        fs::create_dir_all(&directory)
            .map_err(|source| StateError { path: directory.clone(), source })?;
        for (name, text) in master_files::copies(&state.files) {
            let before = kept::read(&self.file(&name), text.len() as u64);
            if before.is_ok_and(|before| before == text) {
                continue;
            }
            self.write(&name, text)?;
        }
        Ok(())
    }

    /// Removes a file, if it exists.
    pub(super) fn forget(&self, name: &str) -> Result<(), StateError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed
                .and_then(|()| self.sync_names())
                .map_err(|source| StateError { path, source }),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn syncs(&self) -> bool {
        self.sync.load(Relaxed)
    }

    /// Syncs the directory itself, so that names of files survive a loss of power.
    fn sync_names(&self) -> io::Result<()> {
        if self.syncs() && !sync_directory(&self.path)? && !self.warned.swap(true, Relaxed) {
            warn!(
                "state directory {}: its file system does not support fsync of directories; after \
                 a power failure it may hold older versions of files",
                self.path.display()
            );
        }
        Ok(())
    }

    /// Replaces a file atomically: a crash leaves the old one or the new one.
    pub(super) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<(), StateError> {
        let path = self.file(name);
        let draft = self.file(&format!("{name}.new"));
        let write = || {
            let is_private = name == M_KEYS || name.starts_with(master_files::DIRECTORY);
            let mode = if is_private { 0o600 } else { 0o644 };
            // A draft that a crash left may be open to others.
            let mut file = kept::draft(&draft, mode)?;
            file.write_all(text.as_ref())?;
            if self.syncs() {
                file.sync_all()?;
            }
            fs::rename(&draft, &path)?;
            if self.syncs() && name.contains('/') {
                sync_directory(&self.file(master_files::DIRECTORY))?;
            }
            self.sync_names()
        };
        write().map_err(|source| StateError { path: path.clone(), source })
    }
}

/// Creates a directory, and those above it, so that a power loss does not remove it again.
fn create_directory(path: &Path) -> io::Result<()> {
    let is_missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    kept::make_directory(path)?;
    for directory in missing {
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Has a directory itself written; `false` where the file system knows no such thing.
fn sync_directory(path: &Path) -> io::Result<bool> {
    match File::open(path)?.sync_all() {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            Ok(false)
        }
        synced => synced.map(|()| true),
    }
}

/// Warning for a new state directory: a mistyped path contains neither the earlier LIDs nor the
/// registrations.
fn created(path: &Path) -> String {
    format!(
        "state directory {} is new: no LIDs and no registrations are known. If this subnet had a \
         state directory before, stop ibsm now and check --state-dir",
        path.display()
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ib_mad::types::Guid;

    use super::*;

    /// Makes a pipe.
    pub(in crate::runtime) fn pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[test]
    fn a_created_directory_is_reported_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("typo/ibsm");
        assert!(StateDir::open(&path, true).is_ok() && path.is_dir());
        assert!(created(&path).contains("typo/ibsm is new: no LIDs"), "{}", created(&path));
    }

    #[test]
    fn a_second_instance_in_the_same_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path(), true).unwrap();
        let refusal = StateDir::open(dir.path(), true).unwrap_err().to_string();
        assert!(refusal.contains("another ibsm uses it"), "{refusal}");
        drop(first);
        assert!(StateDir::open(dir.path(), true).is_ok());
    }

    #[test]
    fn a_cache_that_cannot_be_read_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), true).unwrap();
        File::create(dir.path().join("neighbors"))
            .unwrap()
            .set_len(mkey::FILE_LEN_MAX + 1)
            .unwrap();
        for name in ["guid2mkey", "routing", "tables"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        assert_eq!(state.m_keys().unwrap(), Default::default());
        assert!(state.origin().unwrap().is_none() && state.take_left().unwrap().is_none());
        for name in ["neighbors", "guid2mkey", "routing", "tables"] {
            let aside = dir.path().join(format!("{name}.refused"));
            assert!(aside.exists() && !dir.path().join(name).exists());
        }
        state.writer().apply(&StateWrite::MKeys(MKeyTable::parse("0x1 0xaa").0)).unwrap();
        assert_eq!(state.m_keys().unwrap().0.get(Guid(1)), Some(0xaa));
    }

    /// Regression: a state file that could temporarily not be read was renamed, and overwritten
    /// after the next failure.
    #[test]
    fn a_cache_that_may_be_read_the_next_time_ends_the_start_and_none_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), true).unwrap();
        // As any other failure of the system, which a test has not at hand: a link to itself.
        let keys = dir.path().join("guid2mkey");
        std::os::unix::fs::symlink("guid2mkey", &keys).unwrap();
        let refusal = state.m_keys().unwrap_err().to_string();
        assert!(refusal.contains("guid2mkey: "), "{refusal}");
        assert!(keys.is_symlink() && !dir.path().join("guid2mkey.refused").exists());
        fs::remove_file(&keys).unwrap();

        let aside = |number| match number {
            1 => dir.path().join("guid2mkey.refused"),
            _ => dir.path().join(format!("guid2mkey.refused.{number}")),
        };
        for number in 1..=REFUSED_MAX {
            fs::create_dir(&keys).unwrap();
            fs::write(keys.join(number.to_string()), "").unwrap();
            assert!(state.m_keys().is_ok() && aside(number).join(number.to_string()).exists());
        }
        fs::create_dir(&keys).unwrap();
        let refusal = state.m_keys().unwrap_err().to_string();
        assert!(refusal.contains("remove guid2mkey.refused*") && keys.exists(), "{refusal}");
    }

    /// Regression: a pipe in the directory had the start wait for ever, and a link had it empty the
    /// file that the link led to.
    #[test]
    fn pipes_and_links_in_the_directory_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("state"), dir.path().join("precious"));
        fs::create_dir(&path).unwrap();
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, path.join("lock")).unwrap();
        let refusal = StateDir::open(&path, true).unwrap_err().to_string();
        assert!(refusal.contains("lock is a link"), "{refusal}");
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        fs::remove_file(path.join("lock")).unwrap();
        let state = StateDir::open(&path, true).unwrap();
        for name in ["routing", "cut-ports"] {
            pipe(&path.join(name));
        }
        assert!(state.origin().unwrap().is_none() && path.join("routing.refused").exists());
        let refusal = state.disabled_ports().unwrap_err().to_string();
        assert!(refusal.contains("cut-ports is not a regular file"), "{refusal}");
    }

    /// Regression: on file systems where directories cannot be synced, no state file counted as
    /// written.
    #[test]
    fn a_file_system_that_cannot_sync_directories_will_do() {
        assert!(!sync_directory(Path::new("/proc/self")).unwrap(), "procfs cannot");
        let dir = tempfile::tempdir().unwrap();
        assert!(sync_directory(&dir.path().join("none")).is_err());
        sync_directory(dir.path()).unwrap();
    }

    #[test]
    fn a_directory_that_is_only_read_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let none = StateDir::read_only(&dir.path().join("none"));
        assert!(none.lids().unwrap().is_empty() && !dir.path().join("none").exists());
        let owner = StateDir::open(dir.path(), true).unwrap();
        let (lids, _) = LidTable::parse("0x1 0x0004 0x0007");
        owner.writer().apply(&StateWrite::Lids(lids.clone())).unwrap();
        fs::create_dir(dir.path().join("guid2mkey")).unwrap();
        let reader = StateDir::read_only(dir.path());
        assert_eq!(reader.lids().unwrap(), lids, "though it is locked");
        assert_eq!(reader.m_keys().unwrap(), Default::default());
        assert!(dir.path().join("guid2mkey").is_dir(), "it is not moved aside");
    }

    /// The thread that writes long files has a copy of the writer.
    #[test]
    fn whether_files_are_synced_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), true).unwrap();
        let of_thread = state.writer().clone();
        assert!(state.writer().syncs() && of_thread.syncs());
        state.set_sync(false);
        assert!(!state.writer().syncs() && !of_thread.syncs());
    }

    #[test]
    fn lids_and_client_survive() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), true).unwrap();
        assert!(state.lids().unwrap().is_empty());
        let (lids, _) = LidTable::parse("0x1 0x0004 0x0007");
        state.writer().apply(&StateWrite::Lids(lids.clone())).unwrap();
        assert_eq!(state.lids().unwrap(), lids);
        let (keys, _) = MKeyTable::parse("0x1 0x00000000000000aa");
        let (neighbours, _) = Neighbours::parse("0x1:1 0x2:3\n0x2:3 0x1:1");
        state.writer().apply(&StateWrite::MKeys(keys.clone())).unwrap();
        state.writer().apply(&StateWrite::Neighbours(neighbours.clone().into())).unwrap();
        assert_eq!(state.m_keys().unwrap(), (keys, neighbours));
        let mode = fs::metadata(dir.path().join("guid2mkey")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(state.disabled_ports().unwrap(), DisabledPorts::new());
        let cut = DisabledPorts::from([(Guid(0x20), PortNum(3)), (Guid(0x21), PortNum(36))]);
        state.writer().apply(&StateWrite::DisabledPorts(cut.clone())).unwrap();
        assert_eq!(state.disabled_ports().unwrap(), cut);
        assert_eq!(state.stale_client(), None);
        state.keep_client("3:77".parse().unwrap()).unwrap();
        assert_eq!(state.stale_client(), Some(ClientId { slot: 3, number: 77 }));
    }

    #[test]
    fn what_standbys_copy_is_published_even_if_it_cannot_be_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut state = StateDir::open(&path, false).unwrap();
        let board = Arc::new(StateBoard::default());
        let (lids, m_keys, neighbours) = Default::default();
        state.publish_to(board.clone(), &lids, &m_keys, &neighbours);
        let first = board.number();
        let (lids, _) = LidTable::parse("0x1 0x0004 0x0007");
        state.writer().apply(&StateWrite::Lids(lids)).unwrap();
        assert_eq!(board.number(), first + 1);
        fs::remove_dir_all(&path).unwrap();
        let keys = StateWrite::MKeys(MKeyTable::parse("0x1 0xaa").0);
        assert!(state.writer().apply(&keys).is_err());
        assert_eq!(board.number(), first + 2);
    }
}

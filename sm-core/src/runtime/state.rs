//! The state directory: what must outlive the process.
//!
//! - `guid2lid`: LIDs by port GUID, `guid2mkey`: M_Keys, and `neighbors`: who is behind which port,
//!   all in OpenSM's format, so that either can follow the other.
//! - `cut-ports`: ports of switches that were switched off for a LID to change hands.
//! - `routing`: which engine made the forwarding tables that switches hold.
//! - `tables`: hashes of those tables, by which the next run knows that nobody wrote others.
//! - `lock`: locked as long as a process runs with the directory.
//! - `ibsm-client`: what the simulator knows us by, to be thrown out after a `kill -9`.
//!
//! The epoch of snapshots lies there too; `publish` keeps it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use ib_mad::transport::ibsim::ClientId;
use ib_mad::types::{Guid, PortNum};
use tracing::warn;

use crate::manage::lid::LidTable;
use crate::manage::mkey::{self, MKeyTable, Neighbours};
use crate::sweep::{DisabledPorts, Left, Origin};

/// Longest file read, bytes: 49,151 ports at 35 bytes are 1.7 MB.
const FILE_LEN_MAX: u64 = 16 << 20;

/// Files of one name that are set aside.
const REFUSED_MAX: usize = 9;

/// The file of ports that are switched off for a takeover.
const DISABLED_PORTS: &str = "cut-ports";

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state directory: {}: {source}; mend that, or name another one with --state-dir", path.display())]
pub struct StateError {
    path: PathBuf,
    source: io::Error,
}

/// The state directory, which exists and can be written.
#[derive(Debug)]
pub(super) struct StateDir {
    writer: StateWriter,
    /// Locked as long as we run.
    _lock: File,
}

/// Writes files of the state directory, on whatever thread.
#[derive(Clone, Debug)]
pub(super) struct StateWriter {
    path: PathBuf,
    sync: bool,
    /// Whether it was told that the directory itself cannot be synced.
    told: Arc<AtomicBool>,
}

impl StateDir {
    /// Opens `path`, creating it if need be.
    pub(super) fn open(path: &Path, sync: bool) -> Result<Self, StateError> {
        let failed = |source| StateError { path: path.to_owned(), source };
        let is_new = !path.try_exists().map_err(failed)?;
        fs::create_dir_all(path).map_err(failed)?;
        if is_new {
            warn!("{}", anew(path));
        }
        let lock = File::create(path.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => failed(io::Error::other(
                "another ibsm runs with it; two on one host need a directory each",
            )),
            TryLockError::Error(source) => failed(source),
        })?;
        let writer = StateWriter { path: path.to_owned(), sync, told: Arc::default() };
        Ok(Self { writer, _lock: lock })
    }

    /// What files that may be long are written by.
    pub(super) fn writer(&self) -> &StateWriter {
        &self.writer
    }

    /// The LIDs given out before. Lines that cannot be are left out with a warning.
    pub(super) fn lids(&self) -> Result<LidTable, StateError> {
        let Some(text) = self.read("guid2lid")? else { return Ok(LidTable::default()) };
        let (table, rejected) = LidTable::parse(&text);
        for line in rejected.iter().take(10) {
            warn!("{}:{}: {}; left out", self.file("guid2lid").display(), line.line, line.reason);
        }
        if rejected.len() > 10 {
            warn!("{} lines more are left out", rejected.len() - 10);
        }
        Ok(table)
    }

    /// M_Keys of ports and links between them, as they were known before.
    pub(super) fn m_keys(&self) -> Result<(MKeyTable, Neighbours), StateError> {
        let warn = |name: &str, left_out: usize| {
            if left_out > 0 {
                warn!("{}: {left_out} line(s) say nothing, left out", self.file(name).display());
            }
        };
        let (keys, left_out) = MKeyTable::parse(&self.read_cache("guid2mkey")?);
        warn("guid2mkey", left_out);
        let (neighbours, left_out) = Neighbours::parse(&self.read_cache("neighbors")?);
        warn("neighbors", left_out);
        Ok((keys, neighbours))
    }

    /// What we are known by at the feeds that we follow, the same over restarts; not 0.
    pub(super) fn identity(&self) -> Result<u64, StateError> {
        let known = self.read("identity")?;
        if let Some(id) = known.and_then(|text| text.trim().parse().ok()).filter(|&id| id != 0) {
            return Ok(id);
        }
        let id = RandomState::new().hash_one(std::process::id()) | 1;
        self.write("identity", &format!("{id}\n"))?;
        Ok(id)
    }

    /// Ports that an earlier run switched off for a takeover, and has not seen on since. Lines that
    /// say nothing are left out with a warning.
    pub(super) fn disabled_ports(&self) -> Result<DisabledPorts, StateError> {
        let mut ports = DisabledPorts::new();
        for (number, line) in self.read(DISABLED_PORTS)?.unwrap_or_default().lines().enumerate() {
            let port = line.split_once(' ').and_then(|(guid, num)| {
                Some((guid.parse().ok()?, PortNum(num.trim().parse().ok()?)))
            });
            match port {
                Some(port) => _ = ports.insert(port),
                None => warn!(
                    "{}:{}: '{line}' is no switch's GUID and port number; left out",
                    self.file(DISABLED_PORTS).display(),
                    number + 1
                ),
            }
        }
        Ok(ports)
    }

    /// Keeps which ports are switched off for a takeover.
    pub(super) fn keep_disabled_ports(&self, ports: &DisabledPorts) -> Result<(), StateError> {
        let line = |(guid, num): &(Guid, PortNum)| format!("{guid} {}\n", num.0);
        self.write(DISABLED_PORTS, &ports.iter().map(line).collect::<String>())
    }

    /// Which engine made the tables that switches hold, as the last run left it.
    pub(super) fn origin(&self) -> Result<Option<Origin>, StateError> {
        Ok(Origin::parse(&self.read_cache("routing")?))
    }

    /// Keeps which engine made the tables; none if another subnet manager may change them.
    pub(super) fn keep_origin(&self, origin: Option<&Origin>) -> Result<(), StateError> {
        match origin {
            Some(origin) => self.write("routing", &origin.render()),
            None => self.forget("routing"),
        }
    }

    /// What the last run left in switches. It can be had once: until that is settled, a further run
    /// must not take it up.
    pub(super) fn take_left(&self) -> Result<Option<Left>, StateError> {
        let left = Left::parse(&self.read_cache("tables")?);
        self.forget("tables")?;
        Ok(left)
    }

    /// Another subnet manager rules: nothing is known any more of what is in switches.
    pub(super) fn forget_left(&self) -> Result<(), StateError> {
        self.forget("tables")
    }

    /// What an earlier run was known by at the simulator.
    pub(super) fn stale_client(&self) -> Option<ClientId> {
        self.read("ibsm-client").ok().flatten()?.parse().ok()
    }

    /// Keeps what this run is known by.
    pub(super) fn keep_client(&self, client: ClientId) -> Result<(), StateError> {
        self.write("ibsm-client", &format!("{client}\n"))
    }

    /// This run ends in order: nothing is left to throw out.
    pub(super) fn forget_client(&self) {
        let _ = fs::remove_file(self.file("ibsm-client"));
    }

    /// Removes a file, if it is there.
    fn forget(&self, name: &str) -> Result<(), StateError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed
                .and_then(|()| self.writer.sync_names())
                .map_err(|source| StateError { path, source }),
        }
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

    /// Reads a file that can be begun anew. One that can never be read is set aside for the operator
    /// to look at; what may be read the next time, as after an I/O error, ends the start.
    fn read_cache(&self, name: &str) -> Result<String, StateError> {
        let failure = match self.read_up_to(name, mkey::FILE_LEN_MAX) {
            Ok(text) => return Ok(text.unwrap_or_default()),
            Err(failure) => failure,
        };
        let is_other = fs::metadata(&failure.path).is_ok_and(|metadata| !metadata.is_file());
        if failure.source.kind() != io::ErrorKind::InvalidData && !is_other {
            return Err(failure);
        }
        let aside = self.set_aside(name)?;
        let StateError { path, source } = failure;
        warn!(
            "{}: {source}; it is {} now, and a new one is begun",
            path.display(),
            aside.display()
        );
        Ok(String::new())
    }

    /// Renames a file, to a name that nothing has; yields that.
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
                "it is of no use, and {REFUSED_MAX} such are kept as {name}.refused*; remove these"
            ))),
        };
        moved.map_err(|source| StateError { path, source })
    }

    fn read_up_to(&self, name: &str, len_max: u64) -> Result<Option<String>, StateError> {
        let path = self.file(name);
        let read = || {
            let len = fs::metadata(&path)?.len();
            if len > len_max {
                let reason = format!("it has {len} bytes, {len_max} are the most that is read");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            Ok(String::from_utf8_lossy(&fs::read(&path)?).into_owned())
        };
        match read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError { path, source }),
        }
    }
}

impl StateWriter {
    /// Keeps the LIDs.
    pub(super) fn keep_lids(&self, lids: &LidTable) -> Result<(), StateError> {
        self.write("guid2lid", &lids.render())
    }

    /// Keeps M_Keys, for the owner's eyes only.
    pub(super) fn keep_m_keys(&self, keys: &MKeyTable) -> Result<(), StateError> {
        self.write("guid2mkey", &keys.render())
    }

    /// Keeps which port is behind which.
    pub(super) fn keep_neighbours(&self, neighbours: &Neighbours) -> Result<(), StateError> {
        self.write("neighbors", &neighbours.render())
    }

    /// Keeps what is in switches.
    pub(super) fn keep_left(&self, left: &Left) -> Result<(), StateError> {
        self.write("tables", &left.render())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Has the directory itself survive a loss of power: which files are there.
    fn sync_names(&self) -> io::Result<()> {
        if self.sync && !sync_directory(&self.path)? && !self.told.swap(true, Relaxed) {
            warn!(
                "state directory {}: its file system has no fsync for directories; after a loss of \
                 power it may have files as they were before",
                self.path.display()
            );
        }
        Ok(())
    }

    /// Replaces a file at once: a crash leaves the old one or the new one.
    fn write(&self, name: &str, text: &str) -> Result<(), StateError> {
        let path = self.file(name);
        let draft = self.file(&format!("{name}.new"));
        let write = || {
            // A draft that a crash left may be open to others.
            let _ = fs::remove_file(&draft);
            let mode = if name == "guid2mkey" { 0o600 } else { 0o644 };
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(mode).open(&draft)?;
            file.write_all(text.as_bytes())?;
            if self.sync {
                file.sync_all()?;
            }
            fs::rename(&draft, &path)?;
            self.sync_names()
        };
        write().map_err(|source| StateError { path: path.clone(), source })
    }
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

/// What an operator should know of a state directory that was not there. Behind a mistyped name lie
/// neither the LIDs of before nor what clients registered.
fn anew(path: &Path) -> String {
    format!(
        "state directory {} is new: no LIDs and no registrations are known. If this subnet had a \
         state directory before, stop now and check --state-dir",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_is_made_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("typo/ibsm");
        assert!(StateDir::open(&path, true).is_ok() && path.is_dir());
        assert!(anew(&path).contains("typo/ibsm is new: no LIDs"), "{}", anew(&path));
    }

    #[test]
    fn a_second_instance_in_the_same_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path(), true).unwrap();
        let refusal = StateDir::open(dir.path(), true).unwrap_err().to_string();
        assert!(refusal.contains("another ibsm runs with it"), "{refusal}");
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
        state.writer().keep_m_keys(&MKeyTable::parse("0x1 0xaa").0).unwrap();
        assert_eq!(state.m_keys().unwrap().0.get(Guid(1)), Some(0xaa));
    }

    /// One that could not be read just now was renamed away, and with the next failure overwritten.
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
        assert!(refusal.contains("remove these") && keys.exists(), "{refusal}");
    }

    /// No state file counted as written where directories cannot be synced.
    #[test]
    fn a_file_system_that_cannot_sync_directories_will_do() {
        assert!(!sync_directory(Path::new("/proc/self")).unwrap(), "procfs cannot");
        let dir = tempfile::tempdir().unwrap();
        assert!(sync_directory(&dir.path().join("none")).is_err());
        sync_directory(dir.path()).unwrap();
    }

    #[test]
    fn lids_and_client_survive() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), true).unwrap();
        assert!(state.lids().unwrap().is_empty());
        let (lids, _) = LidTable::parse("0x1 0x0004 0x0007");
        state.writer().keep_lids(&lids).unwrap();
        assert_eq!(state.lids().unwrap(), lids);
        let (keys, _) = MKeyTable::parse("0x1 0x00000000000000aa");
        let (neighbours, _) = Neighbours::parse("0x1:1 0x2:3\n0x2:3 0x1:1");
        state.writer().keep_m_keys(&keys).unwrap();
        state.writer().keep_neighbours(&neighbours).unwrap();
        assert_eq!(state.m_keys().unwrap(), (keys, neighbours));
        let mode = fs::metadata(dir.path().join("guid2mkey")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(state.disabled_ports().unwrap(), DisabledPorts::new());
        let cut = DisabledPorts::from([(Guid(0x20), PortNum(3)), (Guid(0x21), PortNum(36))]);
        state.keep_disabled_ports(&cut).unwrap();
        assert_eq!(state.disabled_ports().unwrap(), cut);
        assert_eq!(state.stale_client(), None);
        state.keep_client("3:77".parse().unwrap()).unwrap();
        assert_eq!(state.stale_client(), Some(ClientId { slot: 3, number: 77 }));
    }
}

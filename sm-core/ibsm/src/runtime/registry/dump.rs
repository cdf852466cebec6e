//! `opensm-sa.dump`: the registry is restored from it at a migration from OpenSM, and written to it
//! for a migration back. `sm_core::registry::dump` parses and renders the text.
//!
//! The file is written by a separate thread, so that clients do not wait for a million records
//! or a slow disk. There is one at a time; changes in the meantime are written by the next.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::RegistryPlane;
use tracing::{error, info, warn};

use crate::clock::unix_ms;
use crate::observe::event::{Draft, EventKind, EventLog};
use sm_config::Settings;
use sm_core::registry::dump::{self, Surroundings};
use sm_core::registry::{Ports, Stamp};

/// Least time between two writes of the file.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often a write that takes longer than that is checked.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest file read, bytes: a million records.
const FILE_LEN_MAX: u64 = 512 << 20;

/// The files to read and to write.
#[derive(Debug, Default)]
pub struct SaDumpFile {
    /// `sa_db_file`: read if nothing has ever been stored.
    read_from: Option<PathBuf>,
    /// Written after changes, if [`writes`](Self::writes).
    write_to: PathBuf,
    /// Whether it is written (`sa_db_dump`).
    writes: bool,
    /// Sequence number written last.
    written: Option<u64>,
    /// When the next write is due.
    due: Option<Instant>,
    /// The thread that writes it.
    writer: Option<JoinHandle<()>>,
    /// Where a write is noted.
    events: EventLog,
}

impl SaDumpFile {
    /// The files that the settings name.
    pub(in crate::runtime) fn of(settings: &Settings, state_dir: &Path, events: EventLog) -> Self {
        let directory = settings.dump_files_dir.as_ref().map_or(state_dir, Path::new);
        Self {
            read_from: settings.sa_db_file.as_ref().map(PathBuf::from),
            write_to: directory.join("opensm-sa.dump"),
            writes: settings.sa_db_dump,
            events,
            ..Self::default()
        }
    }

    /// Warns at the start if the file that the registry is restored from is unusable: a standby
    /// would find that out only as master. The check does not depend on the ports of the fabric.
    pub(in crate::runtime) fn check(&self) {
        if let Some(problem) = self.problem() {
            warn!(
                "{problem}; correct this before this SM becomes master, or clients must register \
                 again"
            );
        }
    }

    fn problem(&self) -> Option<String> {
        let path = self.read_from.as_ref()?;
        let failure = match read(path) {
            Err(failure) => failure.to_string(),
            Ok(text) => {
                let (now, ports) = (Stamp::default(), Ports::default());
                let parsed = with(now, &ports, |around| dump::read(&text, around));
                parsed.err()?.to_string()
            }
        };
        Some(format!("-S/sa_db_file: {}: {failure}", path.display()))
    }

    /// Whether the settings name a file to read.
    pub(super) fn is_named(&self) -> bool {
        self.read_from.is_some()
    }

    /// Reads the registry, if a file is named and valid.
    pub(super) fn read(&self, time: Stamp, ports: &Ports) -> Option<RegistryPlane> {
        let path = self.read_from.as_ref()?;
        let text = match read(path) {
            Ok(text) => text,
            Err(failure) => {
                warn!(
                    "cannot restore the registry from {}: {failure}; clients must register again",
                    path.display()
                );
                return None;
            }
        };
        match with(time, ports, |around| dump::read(&text, around)) {
            Ok(plane) => {
                info!("registry restored from {}", path.display());
                Some(plane)
            }
            Err(failure) => {
                warn!(
                    "cannot restore the registry from {}: {failure}; clients must register again",
                    path.display()
                );
                None
            }
        }
    }

    /// Begins or ends writing the file: what is registered by then is written at the next
    /// [`keep`](Self::keep).
    pub(super) fn set_writes(&mut self, writes: bool) {
        if std::mem::replace(&mut self.writes, writes) != writes {
            (self.written, self.due) = (None, None);
        }
    }

    /// When to call [`keep`](Self::keep) next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Writes changes, at most once in [`INTERVAL`]. If this is the `last` call, waits until they
    /// are written.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        time: Stamp,
        ports: Option<&Arc<Ports>>,
        plane: &RegistryPlane,
        last: bool,
    ) {
        let Some(ports) = ports.filter(|_| self.writes) else { return };
        let is_busy = self.writer.as_ref().is_some_and(|writer| !writer.is_finished());
        if self.written != Some(plane.sequence) {
            let due = *self.due.get_or_insert(match self.written {
                None => now,
                Some(_) => now + INTERVAL,
            });
            if now < due && !last {
                return;
            }
            if is_busy && !last {
                self.due = Some(now + PATIENCE);
                return;
            }
            let (path, ports, plane) = (self.write_to.clone(), ports.clone(), plane.clone());
            let events = self.events.clone();
            self.finish();
            self.written = Some(plane.sequence);
            let write = move || {
                let text = with(time, &ports, |around| dump::write(&plane, around));
                match replace(&path, &text) {
                    Ok(()) => {
                        let text = format!("the registry was written to {}", path.display());
                        let draft = Draft::new(EventKind::RegistryDumped, text);
                        events.note(unix_ms(), draft.with("sequence", plane.sequence));
                    }
                    Err(failure) => warn!(
                        "cannot write {}: {failure}; OpenSM cannot restore the current registry \
                         from it",
                        path.display()
                    ),
                }
            };
            match std::thread::Builder::new().name("dump".to_owned()).spawn(write) {
                Ok(writer) => self.writer = Some(writer),
                Err(failure) => warn!(
                    "cannot start the thread that writes the registry dump: {failure}; OpenSM \
                     cannot restore the current registry from it"
                ),
            }
        }
        self.due = None;
        if last {
            self.finish();
        }
    }

    /// Waits for the write in progress.
    pub(super) fn finish(&mut self) {
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            error!("the thread that writes the registry dump panicked; the dump is outdated");
        }
    }
}

/// Ports that have something registered.
pub(super) fn registered_ports(plane: &RegistryPlane) -> BTreeSet<Guid> {
    let members = plane.members.iter().map(|row| row.rid.port_gid.guid());
    let services = plane.services.iter().map(|row| row.rid.service_gid.guid());
    let subscriptions = plane.subscriptions.iter().map(|row| row.rid.subscriber_gid.guid());
    let aliases = plane.alias_guids.iter().map(|row| row.port_guid);
    members.chain(services).chain(subscriptions).chain(aliases).collect()
}

fn with<T>(now: Stamp, ports: &Ports, act: impl FnOnce(&Surroundings<'_>) -> T) -> T {
    let (now_s, wall_s) = (now.time.as_secs(), now.host.wall.as_secs());
    let own = ports.by_guid(ports.sm_port_guid);
    let port = |guid: Guid| ports.by_guid(guid).map(|port| (port.lid, port.guid_cap));
    let pkeys = own.map(|port| port.pkeys.clone()).unwrap_or_default();
    act(&Surroundings { now_s, wall_s, pkeys: &pkeys, port: &port })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "file is far too long"));
    }
    Ok(text)
}

/// Replaces the file atomically. It contains service keys: only its owner may read it.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("dump.new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ib_mad::types::Guid;
    use sa_proto::snapshot::AliasGuid;

    use super::*;
    use sm_core::registry::HostTime;
    use sm_core::registry::testing::{GUIDS, NOW_S, ports};

    fn time() -> Stamp {
        let now = Duration::from_secs(NOW_S);
        Stamp { time: now, host: HostTime { wall: now, ..HostTime::default() } }
    }

    fn plane(sequence: u64, aliases: u64) -> RegistryPlane {
        let alias = |n| Arc::new(AliasGuid { alias: Guid(n), port_guid: GUIDS[0], index: n as u8 });
        let alias_guids = (1..=aliases).map(alias).collect();
        RegistryPlane { sequence, alias_guids, ..RegistryPlane::default() }
    }

    /// Regression: an unusable file was reported only by an SM that became master.
    #[test]
    fn an_unusable_file_is_reported_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sa.dump");
        let file = SaDumpFile { read_from: Some(path.clone()), ..SaDumpFile::default() };
        assert!(file.problem().unwrap().contains("No such file"));
        std::fs::write(&path, "rubbish\n").unwrap();
        let problem = file.problem().unwrap();
        assert!(problem.ends_with("sa.dump: line 1: unknown record type"), "{problem}");
        std::fs::write(
            &path,
            with(time(), &Ports::default(), |around| dump::write(&plane(1, 2), around)),
        )
        .unwrap();
        assert_eq!(file.problem(), None);
        assert_eq!(SaDumpFile::default().problem(), None);
    }

    #[test]
    fn a_file_written_for_opensm_can_be_restored_from() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("opensm-sa.dump");
        let settings = Settings { sa_db_dump: true, ..Settings::default() };
        let (mut file, now) =
            (SaDumpFile::of(&settings, directory.path(), EventLog::default()), Instant::now());
        let ports = Arc::new(ports());
        file.keep(now, time(), Some(&ports), &plane(1, 2), false);
        file.finish();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let name = path.to_str().unwrap().to_owned();
        let settings = Settings { sa_db_file: Some(name), ..Settings::default() };
        let other = SaDumpFile::of(&settings, directory.path(), EventLog::default());
        let read = other.read(time(), &ports).unwrap();
        assert_eq!(read.alias_guids, plane(0, 2).alias_guids);
    }

    #[test]
    fn changes_are_written_now_and_then_and_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("opensm-sa.dump");
        let settings = Settings { sa_db_dump: true, ..Settings::default() };
        let (mut file, now) =
            (SaDumpFile::of(&settings, directory.path(), EventLog::default()), Instant::now());
        let ports = Arc::new(ports());
        let mut keep = |seconds, sequence, last| {
            let now = now + Duration::from_secs(seconds);
            file.keep(now, time(), Some(&ports), &plane(sequence, sequence), last);
            if !last {
                file.finish();
            }
            (fs::read_to_string(&path).unwrap().matches("0x").count(), file.due().is_some())
        };
        let first = keep(0, 1, false);
        assert_eq!(keep(1, 2, false), (first.0, true), "too soon");
        let (second, due) = keep(12, 2, false);
        assert!(second >= first.0 && !due);
        assert_eq!(keep(13, 2, false), (second, false), "nothing has changed");
        keep(14, 3, true);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn whether_the_file_is_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("opensm-sa.dump");
        let mut file = SaDumpFile::of(&Settings::default(), directory.path(), EventLog::default());
        let (now, ports) = (Instant::now(), Arc::new(ports()));
        let keep = |file: &mut SaDumpFile, sequence| {
            file.keep(now, time(), Some(&ports), &plane(sequence, sequence), false);
            file.finish();
        };
        keep(&mut file, 1);
        assert!(!path.exists());
        file.set_writes(true);
        keep(&mut file, 1);
        let text = fs::read_to_string(&path).unwrap();
        file.set_writes(false);
        keep(&mut file, 2);
        assert_eq!((fs::read_to_string(&path).unwrap(), file.due()), (text.clone(), None));
        file.set_writes(true);
        keep(&mut file, 2);
        assert_ne!(fs::read_to_string(&path).unwrap(), text, "at once");
    }

    #[test]
    fn a_slow_write_delays_nothing_and_the_latest_state_is_written_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("opensm-sa.dump");
        let settings = Settings { sa_db_dump: true, ..Settings::default() };
        let (mut file, now) =
            (SaDumpFile::of(&settings, directory.path(), EventLog::default()), Instant::now());
        let ports = Arc::new(ports());
        // A disk that takes its time.
        let (release, released) = std::sync::mpsc::channel::<()>();
        file.writer = Some(std::thread::spawn(move || released.recv().unwrap_or(())));
        for sequence in 1..=3 {
            file.keep(now, time(), Some(&ports), &plane(sequence, sequence), false);
            file.keep(now + INTERVAL * 2, time(), Some(&ports), &plane(sequence, sequence), false);
            assert!(!path.exists() && file.due().is_some());
        }
        drop(release);
        file.keep(now + INTERVAL * 9, time(), Some(&ports), &plane(3, 3), true);
        let text = fs::read_to_string(&path).unwrap();
        let all = with(time(), &ports, |around| dump::write(&plane(3, 3), around));
        assert_eq!(text.as_bytes(), all);
    }

    #[test]
    fn an_unreadable_file_does_not_prevent_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dump");
        let settings =
            Settings { sa_db_file: Some(path.to_str().unwrap().into()), ..Settings::default() };
        let file = SaDumpFile::of(&settings, directory.path(), EventLog::default());
        assert_eq!(file.read(time(), &ports()), None);
        fs::write(&path, "Something else: x\n").unwrap();
        assert_eq!(file.read(time(), &ports()), None);
    }
}

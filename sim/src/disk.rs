//! The disk of a manager's host: the registry's file below the library that writes it, and the
//! small files of the state directory.
//!
//! What was written and not synced is lost, kept or torn when the power fails, sector by sector; a
//! process that is killed loses nothing that it has written. A sync that fails gives up on what was
//! written: processes read it from the page cache, and no later sync writes it to the disk, as with
//! ext4 and XFS (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ibsm::publish::{Draft, Epochs};
use ibsm::runtime::registry::{Medium, rewrite};
use redb::{Database, StorageBackend};

use crate::random::Random;
use crate::time::HostClock;

/// The small file with the epoch of the last session.
const EPOCH: &str = "epoch";
/// What a disk writes at once.
const SECTOR_LEN: usize = 512;

/// What fails, besides power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// No byte can be added.
    pub is_full: bool,
    /// After so many more writes and syncs the process that makes them is killed.
    pub kills_in: Option<u32>,
    /// After so many more writes and syncs the process that makes them is stopped for this time.
    pub stops_in: Option<(u32, Duration)>,
    /// So many syncs fail.
    pub failing_syncs: u32,
}

#[derive(Debug, Default)]
struct State {
    /// The registry's file as processes see it.
    bytes: Vec<u8>,
    /// The file as the disk has it.
    synced: Vec<u8>,
    /// What the next sync writes to the disk.
    unsynced: Vec<Unsynced>,
    /// Small files, and those of them as they were before their last change.
    files: BTreeMap<String, String>,
    before: BTreeMap<String, Option<String>>,
    faults: DiskFaults,
    /// Counts the processes that have opened the file: those before the last are dead.
    process: u64,
    /// Whether the process was killed by [`DiskFaults::kills_in`].
    is_killed: bool,
    /// For how long the process was stopped by [`DiskFaults::stops_in`].
    stopped_for: Option<Duration>,
    /// The clocks of the host.
    clock: Option<Arc<HostClock>>,
    syncs: u64,
    /// Whether a sync has no effect.
    lies: bool,
    /// Size of the log at which it is folded.
    fold_len: usize,
    /// The draft of the file with the epoch, and whether it is synced.
    draft: Option<(String, bool)>,
    /// Whether the file with the epoch was a synced draft.
    is_epoch_synced: bool,
    /// With a store that managers share: epochs that could not be saved.
    unsaved_epochs: Option<u64>,
}

#[derive(Debug)]
enum Unsynced {
    Write { offset: usize, bytes: Vec<u8> },
    Len(usize),
}

/// A disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// An empty disk; `syncs`: whether it does what it acknowledges; `fold_len`: size of the log
    /// of changes at which it is folded; `clock`: those of its host.
    pub fn new(syncs: bool, fold_len: usize, clock: Arc<HostClock>) -> Self {
        let disk = Self::default();
        disk.state().lies = !syncs;
        disk.state().fold_len = fold_len;
        disk.state().clock = Some(clock);
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Managers share a store: an epoch need not be saved.
    pub fn set_beside_shared_store(&self) {
        self.state().unsaved_epochs = Some(0);
    }

    /// Changes what fails.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.state().faults = faults;
    }

    /// What fails.
    pub fn faults(&self) -> DiskFaults {
        self.state().faults
    }

    /// Whether a write or sync has killed the process.
    pub fn is_killed(&self) -> bool {
        self.state().is_killed
    }

    /// Whether the process was stopped in a write or sync. Its clocks show the time at which it
    /// goes on; what it does after that must not be seen before.
    pub fn is_stopped(&self) -> bool {
        self.state().stopped_for.is_some()
    }

    /// For how long the process was stopped, once.
    pub fn take_stop(&self) -> Option<Duration> {
        self.state().stopped_for.take()
    }

    /// Syncs so far.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// The process has ended: what it still writes, as its memory is freed, has no effect.
    pub fn end_process(&self) {
        let mut state = self.state();
        state.process += 1;
        (state.is_killed, state.stopped_for) = (false, None);
        (state.faults.kills_in, state.faults.stops_in) = (None, None);
    }

    /// The power fails.
    pub fn cut_power(&self, random: &mut Random) {
        let mut guard = self.state();
        let state = &mut *guard;
        for change in std::mem::take(&mut state.unsynced) {
            match change {
                Unsynced::Write { offset, bytes } => {
                    for (index, sector) in bytes.chunks(SECTOR_LEN).enumerate() {
                        let at = offset + index * SECTOR_LEN;
                        if random.one_in(2) && at + sector.len() <= state.synced.len() {
                            state.synced[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                // A length reaches the disk with the journal of the file system: only growth does
                // no harm if the data is lost.
                Unsynced::Len(len) if len > state.synced.len() => state.synced.resize(len, 0),
                Unsynced::Len(_) => {}
            }
        }
        state.bytes.clone_from(&state.synced);
        for (name, before) in std::mem::take(&mut state.before) {
            if random.one_in(2) {
                continue;
            }
            match before {
                Some(text) => state.files.insert(name, text),
                None => state.files.remove(&name),
            };
        }
    }

    /// The epoch that it holds; 0 if none.
    pub fn saved_epoch(&self) -> u64 {
        let text = self.load().ok().flatten();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// A small file.
    pub fn read(&self, name: &str) -> Option<String> {
        self.state().files.get(name).cloned()
    }

    /// Replaces or removes a small file. Unless it is synced, it may return when the power fails.
    pub fn replace(&self, name: &str, text: Option<String>, synced: bool) -> io::Result<()> {
        let mut state = self.state();
        if state.faults.is_full && text.is_some() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let before = match text {
            Some(text) => state.files.insert(name.to_owned(), text),
            None => state.files.remove(name),
        };
        if synced {
            state.before.remove(name);
        } else {
            state.before.entry(name.to_owned()).or_insert(before);
        }
        Ok(())
    }
}

impl State {
    /// Writes to the disk what was written since the last sync.
    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            match change {
                Unsynced::Write { offset, bytes } => {
                    self.synced[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                Unsynced::Len(len) => self.synced.resize(len, 0),
            }
        }
    }

    /// Counts an operation of a process; fails if the process is dead.
    fn begin(&mut self, process: u64) -> io::Result<()> {
        if process != self.process || self.is_killed {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if let Some(left) = &mut self.faults.kills_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.is_killed = true;
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
        if let Some((left, time)) = &mut self.faults.stops_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let time = *time;
                self.faults.stops_in = None;
                self.stopped_for = Some(time);
                self.clock.iter().for_each(|clock| clock.set_ahead(time));
            }
        }
        Ok(())
    }
}

/// The file as one process has opened it.
#[derive(Debug)]
struct Open {
    disk: Disk,
    process: u64,
}

impl StorageBackend for Open {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state();
        let offset = offset as usize;
        let bytes = state.bytes.get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.begin(self.process)?;
        let len = len as usize;
        if len > state.bytes.len() && state.faults.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.unsynced.push(Unsynced::Len(len));
        state.bytes.resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.begin(self.process)?;
        if state.faults.failing_syncs > 0 {
            state.faults.failing_syncs -= 1;
            // Lengths are in the journal, which is not given up.
            state.unsynced.retain(|change| matches!(change, Unsynced::Len(_)));
            return Err(io::Error::other("the disk cannot sync"));
        }
        if !state.lies {
            state.sync();
        }
        state.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.begin(self.process)?;
        let offset = offset as usize;
        let range = state.bytes.get_mut(offset..offset + data.len());
        range.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        state.unsynced.push(Unsynced::Write { offset, bytes: data.to_vec() });
        Ok(())
    }
}

impl Medium for Disk {
    fn path(&self) -> PathBuf {
        Path::new("simulated").join("registry.redb")
    }

    fn fold_len(&self) -> usize {
        self.state().fold_len
    }

    fn open(&self, builder: redb::Builder) -> Result<Database, redb::Error> {
        let process = self.state().process;
        let open = Open { disk: self.clone(), process };
        rewrite(&open).map_err(redb::StorageError::Io)?;
        Ok(builder.create_with_backend(open)?)
    }
}

/// The file of the last session's epoch, and a draft that replaces it.
impl Epochs for Disk {
    fn directory(&self) -> &Path {
        Path::new("simulated")
    }

    fn load(&self) -> io::Result<Option<String>> {
        Ok(self.read(EPOCH))
    }

    fn draft(&self, text: &str) -> io::Result<Box<dyn Draft>> {
        let mut state = self.state();
        if state.faults.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.draft = Some((text.to_owned(), false));
        Ok(Box::new(EpochDraft(self.clone())))
    }

    fn rename(&self) -> io::Result<()> {
        let mut state = self.state();
        let (text, is_synced) = state.draft.take().ok_or(io::ErrorKind::NotFound)?;
        let before = state.files.insert(EPOCH.to_owned(), text);
        state.before.entry(EPOCH.to_owned()).or_insert(before);
        state.is_epoch_synced = is_synced;
        Ok(())
    }

    fn random(&self) -> Option<u64> {
        let mut state = self.state();
        let unsaved = state.unsaved_epochs.as_mut()?;
        *unsaved += 1;
        Some(unsaved.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32)
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.is_epoch_synced {
            state.before.remove(EPOCH);
        }
        Ok(())
    }
}

/// The draft of a disk.
struct EpochDraft(Disk);

impl Draft for EpochDraft {
    fn sync(&self) -> io::Result<()> {
        if let Some((_, is_synced)) = &mut self.0.state().draft {
            *is_synced = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use redb::{ReadableDatabase, ReadableTable};

    use super::*;

    fn written() -> (Disk, Open) {
        let disk = Disk::default();
        let open = Open { disk: disk.clone(), process: 0 };
        open.set_len(2048).unwrap();
        open.write(0, &[1; 2048]).unwrap();
        open.sync_data().unwrap();
        (disk, open)
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_is_torn_by_sector() {
        let mut kept = [false; 2];
        for seed in 0..32 {
            let (disk, open) = written();
            open.write(0, &[2; 2048]).unwrap();
            open.set_len(4096).unwrap();
            disk.cut_power(&mut Random::new(seed, 0));
            let bytes = disk.state().bytes.clone();
            for sector in bytes[..2048].chunks(SECTOR_LEN) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "sectors are whole");
                kept[usize::from(sector[0] == 2)] = true;
            }
        }
        assert_eq!(kept, [true; 2]);
    }

    #[test]
    fn what_could_not_be_synced_is_read_until_the_power_fails() {
        let (disk, open) = written();
        disk.set_faults(DiskFaults { failing_syncs: 1, ..DiskFaults::default() });
        open.write(0, &[2; 1024]).unwrap();
        assert!(open.sync_data().is_err());
        open.write(1536, &[3; 512]).unwrap();
        open.sync_data().unwrap();
        let halves = |bytes: &[u8]| [bytes[0], bytes[1023], bytes[1024], bytes[1536]];
        assert_eq!(halves(&disk.state().bytes), [2, 2, 1, 3]);
        disk.cut_power(&mut Random::new(1, 0));
        assert_eq!(halves(&disk.state().bytes), [1, 1, 1, 3]);
    }

    #[test]
    fn an_epoch_survives_a_power_failure_once_it_and_its_directory_are_synced() {
        let mut found = [[0; 2]; 3];
        for seed in 0..32 {
            for (steps, found) in found.iter_mut().enumerate() {
                let disk = Disk::default();
                disk.save(1).unwrap();
                let draft = disk.draft("2").unwrap();
                if steps != 1 {
                    draft.sync().unwrap();
                }
                disk.rename().unwrap();
                if steps != 2 {
                    disk.sync_directory().unwrap();
                }
                disk.cut_power(&mut Random::new(seed, 0));
                found[usize::from(disk.saved_epoch() == 2)] += 1;
            }
        }
        assert_eq!(found[0], [0, 32]);
        assert!(found[1..].iter().all(|[old, new]| *old > 0 && *new > 0), "{found:?}");
    }

    /// Regression: a commit whose sync had failed was found when the file was opened again, and
    /// lost when the power failed.
    #[test]
    fn what_is_read_when_the_file_is_opened_survives_a_power_failure() {
        const TABLE: redb::TableDefinition<'_, u64, u64> = redb::TableDefinition::new("table");
        // Many pages, since the next commit writes the one again that it adds to.
        let put = |database: &Database, keys: Range<u64>| -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            {
                let mut table = transaction.open_table(TABLE)?;
                keys.into_iter().try_for_each(|key| table.insert(key, key).map(drop))?;
            }
            Ok(transaction.commit()?)
        };
        let count = |database: &Database| {
            let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
            table.iter().unwrap().filter(|entry| entry.is_ok()).count()
        };
        let disk = Disk::default();
        let open = || disk.open(redb::Builder::new()).unwrap();
        let first = open();
        put(&first, 0..1000).unwrap();
        disk.set_faults(DiskFaults { failing_syncs: 1, ..DiskFaults::default() });
        assert!(put(&first, 1000..3000).is_err());
        drop(first);
        let second = open();
        assert_eq!(count(&second), 3000, "the page cache has what could not be synced");
        put(&second, 3000..3001).unwrap();
        disk.end_process();
        disk.cut_power(&mut Random::new(1, 0));
        drop(second);
        assert_eq!(count(&open()), 3001);
    }

    #[test]
    fn a_process_that_was_killed_writes_nothing_more() {
        let (disk, open) = written();
        disk.set_faults(DiskFaults { kills_in: Some(2), ..DiskFaults::default() });
        open.write(0, &[3; 4]).unwrap();
        assert!(open.sync_data().is_err() && disk.is_killed());
        disk.end_process();
        assert!(!disk.is_killed() && open.write(0, &[4; 4]).is_err());
        assert_eq!(disk.state().bytes[..4], [3; 4], "the page cache outlives the process");
        disk.set_faults(DiskFaults { is_full: true, ..DiskFaults::default() });
        assert!(disk.replace("a", Some(String::new()), true).is_err());
    }
}

//! The disk of a manager's host: the registry's file below the library that writes it, and the
//! small files of the state directory.
//!
//! What was written and not synced is lost, kept or torn when the power fails, sector by sector; a
//! process that is killed loses nothing that it has written.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibsm::publish::Epochs;
use ibsm::runtime::registry::Medium;
use redb::{Database, StorageBackend};

use crate::random::Random;

/// What a disk writes at once.
const SECTOR_LEN: usize = 512;

/// What fails, besides power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// No byte can be added.
    pub is_full: bool,
    /// After so many more writes and syncs the process that makes them is killed.
    pub kills_in: Option<u32>,
    /// So many syncs fail.
    pub failing_syncs: u32,
}

#[derive(Debug, Default)]
struct State {
    /// The registry's file as processes see it.
    bytes: Vec<u8>,
    /// Writes that were not synced: where, and what was there before and after; the length before.
    unsynced: Vec<Unsynced>,
    /// Small files, and those of them as they were before their last change.
    files: BTreeMap<String, String>,
    before: BTreeMap<String, Option<String>>,
    faults: DiskFaults,
    /// Counts the processes that have opened the file: those before the last are dead.
    process: u64,
    /// Whether the process was killed by [`DiskFaults::kills_in`].
    is_killed: bool,
    syncs: u64,
    /// Whether a sync has no effect.
    lies: bool,
    /// Size of the log at which it is folded.
    fold_len: usize,
}

#[derive(Debug)]
enum Unsynced {
    Write { offset: usize, before: Vec<u8>, after: Vec<u8> },
    Len { before: usize, cut: Vec<u8>, after: usize },
}

/// A disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// An empty disk; `syncs`: whether it does what it acknowledges; `fold_len`: size of the log
    /// of changes at which it is folded.
    pub fn new(syncs: bool, fold_len: usize) -> Self {
        let disk = Self::default();
        disk.state().lies = !syncs;
        disk.state().fold_len = fold_len;
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Syncs so far.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// The process has ended: what it still writes, as its memory is freed, has no effect.
    pub fn end_process(&self) {
        let mut state = self.state();
        state.process += 1;
        state.is_killed = false;
        state.faults.kills_in = None;
    }

    /// The power fails.
    pub fn cut_power(&self, random: &mut Random) {
        let mut guard = self.state();
        let state = &mut *guard;
        let unsynced = std::mem::take(&mut state.unsynced);
        for change in unsynced.iter().rev() {
            match change {
                Unsynced::Write { offset, before, .. } => {
                    state.bytes[*offset..offset + before.len()].copy_from_slice(before);
                }
                Unsynced::Len { before, cut, .. } => {
                    state.bytes.truncate(*before);
                    state.bytes.extend_from_slice(cut);
                }
            }
        }
        for change in &unsynced {
            match change {
                Unsynced::Write { offset, after, .. } => {
                    for (index, sector) in after.chunks(SECTOR_LEN).enumerate() {
                        let at = offset + index * SECTOR_LEN;
                        if random.one_in(2) && at + sector.len() <= state.bytes.len() {
                            state.bytes[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
                // A length reaches the disk with the journal of the file system: only growth does
                // no harm if the data is lost.
                Unsynced::Len { after, .. } if *after > state.bytes.len() => {
                    state.bytes.resize(*after, 0);
                }
                Unsynced::Len { .. } => {}
            }
        }
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
        let (before, after) = (state.bytes.len(), len as usize);
        if after > before && state.faults.is_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let cut = state.bytes.get(after..).unwrap_or_default().to_vec();
        let kept = before.min(after);
        state.unsynced.push(Unsynced::Len { before: kept, cut, after });
        state.bytes.resize(after, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.begin(self.process)?;
        if state.faults.failing_syncs > 0 {
            state.faults.failing_syncs -= 1;
            return Err(io::Error::other("the disk cannot sync"));
        }
        if !state.lies {
            state.unsynced.clear();
        }
        state.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.begin(self.process)?;
        let offset = offset as usize;
        let range = offset..offset + data.len();
        let before = state.bytes.get(range.clone()).ok_or(io::ErrorKind::UnexpectedEof)?.to_vec();
        state.bytes[range].copy_from_slice(data);
        state.unsynced.push(Unsynced::Write { offset, before, after: data.to_vec() });
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
        Ok(builder.create_with_backend(open)?)
    }
}

impl Epochs for Disk {
    fn directory(&self) -> &Path {
        Path::new("simulated")
    }

    fn load(&self) -> io::Result<Option<String>> {
        Ok(self.read("epoch"))
    }

    fn save(&self, epoch: u64) -> io::Result<()> {
        self.replace("epoch", Some(format!("{epoch}\n")), true)
    }
}

#[cfg(test)]
mod tests {
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

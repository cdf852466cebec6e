//! The epoch of this SM's next session, kept in the state directory.
//!
//! Epochs fence off an SM that was replaced: responders refuse lower ones. A new epoch is above all
//! that were taken from the same directory and all that the caller knows of; correctness depends on
//! this. It is also at least the seconds since 1970, so that an SM with a new directory starts
//! above its predecessors; correctness does not depend on clocks.
//!
//! Managers that share a store have the session of each commit there, and responders report the
//! sessions that they hold. An epoch that cannot be saved in the directory is taken all the same,
//! a random step above the others: if the manager ends before its first commit, and no responder
//! reports the epoch, it is not taken again.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use daemon::kept;

/// How far above the seconds since 1970 an epoch may be. All SMs of a subnet begin near their
/// clocks and count sessions from there; 2^32 seconds are 136 years, more than the error of any
/// clock. No SM has taken a higher epoch, and a session above it would use up the remaining epochs.
const AHEAD_MAX: u64 = 1 << 32;

/// The same of an epoch that a responder reports. A session above it, and the next ones of other
/// SMs with other clocks, are far below [`AHEAD_MAX`], so that a false one costs no takeover.
const REPORTED_AHEAD_MAX: u64 = 1 << 31;

/// The least and the greatest step by which an epoch that cannot be saved is above the others.
const STEPS: RangeInclusive<u64> = 1..=1 << 16;

/// The file's name, that of the draft that replaces it, and how much of it is read, bytes.
const FILE: &str = "epoch";
const DRAFT: &str = "epoch.new";
const FILE_LEN_MAX: u64 = 1 << 20;

/// Where the epoch of the last session is kept.
pub trait Epochs: Send + Sync {
    /// The directory, for messages.
    fn directory(&self) -> &Path;

    /// What was saved last; `None` if nothing was.
    fn load(&self) -> io::Result<Option<String>>;

    /// Writes what is to be saved to a file beside.
    fn draft(&self, text: &str) -> io::Result<Box<dyn Draft>>;

    /// Puts the draft in the place of what was saved before.
    fn rename(&self) -> io::Result<()>;

    /// Makes the last replacement survive a crash of the machine.
    fn sync_directory(&self) -> io::Result<()>;

    /// A random number, if sessions begin although their epoch cannot be saved.
    fn random(&self) -> Option<u64> {
        None
    }

    /// Saves an epoch. When this returns it survives a crash of the machine.
    fn save(&self, epoch: u64) -> io::Result<()> {
        self.draft(&format!("{epoch}\n"))?.sync()?;
        self.rename()?;
        self.sync_directory()
    }
}

/// A draft of what is to be saved.
pub trait Draft {
    /// Makes what it contains survive a crash of the machine.
    fn sync(&self) -> io::Result<()>;
}

impl Draft for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

/// The file `epoch` in the state directory, which is created if need be.
#[derive(Clone, Debug)]
pub struct EpochFile {
    directory: PathBuf,
    is_needed: bool,
}

impl EpochFile {
    /// The file in this directory. Without it no session begins.
    pub fn new(state_dir: PathBuf) -> Self {
        Self { directory: state_dir, is_needed: true }
    }

    /// The same, of a manager that shares a store with others: sessions begin without it.
    pub fn beside_shared_store(state_dir: PathBuf) -> Self {
        Self { directory: state_dir, is_needed: false }
    }
}

impl Epochs for EpochFile {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn load(&self) -> io::Result<Option<String>> {
        fs::create_dir_all(&self.directory)?;
        match kept::read(&self.directory.join(FILE), FILE_LEN_MAX) {
            // What is no text is no number: damaged.
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn draft(&self, text: &str) -> io::Result<Box<dyn Draft>> {
        let mut file = kept::draft(&self.directory.join(DRAFT), 0o644)?;
        file.write_all(text.as_bytes())?;
        Ok(Box::new(file))
    }

    fn rename(&self) -> io::Result<()> {
        fs::rename(self.directory.join(DRAFT), self.directory.join(FILE))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn random(&self) -> Option<u64> {
        (!self.is_needed).then(|| RandomState::new().build_hasher().finish())
    }
}

/// Whether an SM can have taken an epoch: that in the file, or one of another SM.
pub(super) fn is_plausible(epoch: u64, now: SystemTime) -> bool {
    epoch <= clock(now) + AHEAD_MAX
}

/// Whether an epoch that a responder reports is believed.
pub(super) fn is_believed(epoch: u64, now: SystemTime) -> bool {
    epoch <= clock(now) + REPORTED_AHEAD_MAX
}

/// Seconds since 1970.
fn clock(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// Takes the next epoch, above `known`, and saves it, so that it is never taken again, even after a
/// crash of the machine.
pub(super) fn next_epoch(epochs: &dyn Epochs, known: u64, now: SystemTime) -> io::Result<u64> {
    let last = match epochs.load() {
        Ok(text) => text.map_or(0, |text| parse(epochs, &text, now)),
        Err(error) => return unsaved(epochs, above(known, now)?, error),
    };
    let next = above(known.max(last), now)?;
    epochs.save(next).map_or_else(|error| unsaved(epochs, next, error), |()| Ok(next))
}

/// The epoch in the file's text; 0 if it is damaged.
fn parse(epochs: &dyn Epochs, text: &str, now: SystemTime) -> u64 {
    let kept = text.trim().parse().ok().filter(|&epoch| is_plausible(epoch, now));
    kept.unwrap_or_else(|| {
        tracing::warn!(
            path = %epochs.directory().join(FILE).display(), "epoch file is damaged; \
                taking the next epoch from the clock"
        );
        0
    })
}

/// The next epoch above this one.
fn above(epoch: u64, now: SystemTime) -> io::Result<u64> {
    let used_up = || io::Error::other("no epoch left: 2^64 - 1 is already taken");
    Ok(clock(now).max(epoch.checked_add(1).ok_or_else(used_up)?))
}

/// The epoch to use in place of `next`, which could not be saved because of this error.
fn unsaved(epochs: &dyn Epochs, next: u64, error: io::Error) -> io::Result<u64> {
    let Some(random) = epochs.random() else { return Err(error) };
    tracing::warn!(
        path = %epochs.directory().join(FILE).display(), %error,
        "cannot save the session epoch; the session begins without it, since the store that \
         managers share has the epochs, too"
    );
    let step = STEPS.start() + random % STEPS.end();
    next.checked_add(step).ok_or(error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn next_epoch(state_dir: &Path, known: u64, now: SystemTime) -> io::Result<u64> {
        super::next_epoch(&EpochFile::new(state_dir.to_owned()), known, now)
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn epochs_grow_even_if_the_clock_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let state_dir = directory.path().join("new");
        assert_eq!(next_epoch(&state_dir, 0, at(1000)).unwrap(), 1000);
        assert_eq!(next_epoch(&state_dir, 0, at(1000)).unwrap(), 1001);
        assert_eq!(next_epoch(&state_dir, 0, at(10)).unwrap(), 1002);
        assert_eq!(next_epoch(&state_dir, 0, at(5000)).unwrap(), 5000);
    }

    #[test]
    fn an_epoch_is_above_what_is_known_though_clock_and_file_are_behind() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(next_epoch(directory.path(), 9000, at(10)).unwrap(), 9001);
        fs::remove_file(directory.path().join(FILE)).unwrap();
        assert_eq!(next_epoch(directory.path(), 9001, at(10)).unwrap(), 9002);
        assert_eq!(next_epoch(directory.path(), 0, at(10)).unwrap(), 9003, "it was kept");
    }

    /// Regression: with a full disk a manager that shares its registrations became master and
    /// neither published nor stored anything.
    #[test]
    fn beside_a_shared_store_an_epoch_need_not_be_saved() {
        let directory = tempfile::tempdir().unwrap();
        // A file where a directory should be.
        let state_dir = directory.path().join("file");
        fs::write(&state_dir, "").unwrap();
        assert!(next_epoch(&state_dir, 5000, at(10)).is_err());
        let epochs = EpochFile::beside_shared_store(state_dir);
        let next = || super::next_epoch(&epochs, 5000, at(10)).unwrap();
        let taken: BTreeSet<u64> = (0..8).map(|_| next()).collect();
        assert!(taken.len() > 1, "an epoch that was not saved may be taken again");
        assert!(taken.iter().all(|epoch| (5002..5002 + STEPS.end()).contains(epoch)), "{taken:?}");
    }

    #[test]
    fn beside_a_shared_store_epochs_are_saved_if_possible() {
        let directory = tempfile::tempdir().unwrap();
        let epochs = EpochFile::beside_shared_store(directory.path().to_owned());
        assert_eq!(super::next_epoch(&epochs, 9000, at(10)).unwrap(), 9001);
        assert_eq!(super::next_epoch(&epochs, 0, at(10)).unwrap(), 9002);
    }

    #[test]
    fn after_the_last_epoch_there_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(next_epoch(directory.path(), u64::MAX, at(10)).is_err());
    }

    /// Regression: one responder that reported the second-highest epoch used up all epochs, and
    /// since the file kept it, the SA never answered again.
    #[test]
    fn an_epoch_that_no_sm_can_have_taken_counts_for_nothing() {
        assert!(is_plausible(1000 + AHEAD_MAX, at(1000)));
        assert!(!is_plausible(1001 + AHEAD_MAX, at(1000)));
        let directory = tempfile::tempdir().unwrap();
        for damaged in [u64::MAX, u64::MAX - 1, AHEAD_MAX + 11] {
            fs::write(directory.path().join(FILE), damaged.to_string()).unwrap();
            assert_eq!(next_epoch(directory.path(), 0, at(10)).unwrap(), 10, "{damaged}");
        }
    }

    /// Regression: one responder reported the highest epoch that was believed. The next session was
    /// above what other SMs believed, and one with a clock a minute behind answered no query after
    /// a takeover for that minute.
    #[test]
    fn the_session_after_a_reported_one_is_plausible_to_sms_with_other_clocks() {
        let directory = tempfile::tempdir().unwrap();
        let now = at(1_800_000_000);
        let reported = 1_800_000_000 + REPORTED_AHEAD_MAX;
        assert!(is_believed(reported, now) && !is_believed(reported + 1, now));
        let next = next_epoch(directory.path(), reported, now).unwrap();
        let behind = at(1_800_000_000 - 365 * 86_400);
        assert!(is_plausible(next, behind), "responders hold it");
        let other = tempfile::tempdir().unwrap();
        assert_eq!(next_epoch(other.path(), next, behind).unwrap(), next + 1);
    }

    /// Regression: a file of bytes that are no text kept the manager from publishing anything.
    #[test]
    fn a_damaged_file_costs_no_more_than_the_memory_of_earlier_epochs() {
        let directory = tempfile::tempdir().unwrap();
        for (at_s, damaged) in [(7, &b"garbage"[..]), (9, b"\xFF\x00\xC3"), (11, b"")] {
            fs::write(directory.path().join(FILE), damaged).unwrap();
            assert_eq!(next_epoch(directory.path(), 0, at(at_s)).unwrap(), at_s);
            assert_eq!(next_epoch(directory.path(), 0, at(at_s)).unwrap(), at_s + 1);
        }
    }
}

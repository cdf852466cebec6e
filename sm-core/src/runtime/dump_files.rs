//! OpenSM's dump files: what was configured, written by a thread after each heavy sweep.
//!
//! There is one thread. What changes while it writes is written when it is done, as it is then.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use ib_mad::transport::{Interest, wait};
use tracing::{debug, error, warn};

use super::worker::Worker;
use crate::config::Settings;
use crate::sweep::{DumpJob, DumpScope, Sweeper};

/// The bit of `log_flags` that asks for dump files, as with OpenSM (ROUTING).
const ROUTING: u8 = 0x40;

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
struct DumpFailure {
    path: PathBuf,
    source: io::Error,
}

/// Who writes, and what is to be written next.
pub(super) struct DumpFiles {
    writer: Worker<DumpJob, Result<(), DumpFailure>>,
    /// The most that settings ask for.
    scope: DumpScope,
    wanted: Option<DumpScope>,
}

impl DumpFiles {
    /// A writer to `dump_files_dir`, or the state directory: of the files that OpenSM always writes
    /// and, if the settings ask for them, of all.
    pub(super) fn start(settings: &Settings, state_dir: &Path) -> io::Result<Self> {
        let directory = settings.dump_files_dir.as_ref().map_or(state_dir, Path::new).to_owned();
        let writer = Worker::start("dump files", move |job: DumpJob| write(&job, &directory))?;
        Ok(Self { writer, scope: scope_of(settings), wanted: None })
    }

    /// Writes what other settings ask for, from the next time on.
    pub(super) fn follow(&mut self, settings: &Settings) {
        self.scope = scope_of(settings);
    }

    /// Has the files of a sweep written as soon as those before are.
    pub(super) fn want_all(&mut self) {
        self.wanted = self.wanted.max(Some(self.scope));
    }

    /// The same of those of multicast alone, if settings ask for them.
    pub(super) fn want_multicast(&mut self) {
        if self.scope == DumpScope::Routing {
            self.wanted = self.wanted.max(Some(DumpScope::Multicast));
        }
    }

    /// Hands over what is wanted, and tells what went wrong. Fails if the thread is gone.
    pub(super) fn exchange(&mut self, sweeper: &Sweeper) -> io::Result<()> {
        match self.writer.poll()? {
            Some(Ok(Ok(()))) => debug!("dump files are written"),
            Some(Ok(Err(failure))) => warn!("{failure}; the dump files there are not the latest"),
            Some(Err(panic)) => error!("dump files are not written: {panic}"),
            None => {}
        }
        if self.writer.is_idle()
            && let Some(wanted) = self.wanted.take()
        {
            self.writer.submit(sweeper.dump_job(wanted))?;
        }
        Ok(())
    }

    /// Waits until all that is wanted is written.
    pub(super) fn finish(mut self, sweeper: &Sweeper) -> io::Result<()> {
        loop {
            self.exchange(sweeper)?;
            if self.writer.is_idle() {
                return Ok(());
            }
            wait(&mut [Interest::read(self.writer.as_fd())], None)?;
        }
    }
}

impl AsFd for DumpFiles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }
}

/// The most that settings ask for.
fn scope_of(settings: &Settings) -> DumpScope {
    match settings.log_flags & ROUTING {
        0 => DumpScope::Links,
        _ => DumpScope::Routing,
    }
}

fn write(job: &DumpJob, directory: &Path) -> Result<(), DumpFailure> {
    for &file in job.files() {
        let path = directory.join(file.name());
        // Whoever reads it has the old one or the new one, and never a part.
        let draft = directory.join(format!("{}.new", file.name()));
        let replace = || {
            let mut out = BufWriter::new(File::create(&draft)?);
            job.render(file, |part| out.write_all(part.as_bytes()))?;
            out.flush()?;
            fs::rename(&draft, &path)
        };
        replace().map_err(|source| DumpFailure { path: path.clone(), source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manage::lid::LidTable;

    fn sweeper() -> Sweeper {
        Sweeper::new(Settings::default(), LidTable::default(), 0)
    }

    #[test]
    fn files_are_written_if_the_log_flag_asks_for_them() {
        let directory = tempfile::tempdir().unwrap();
        let start = |log_flags| {
            let settings = Settings { log_flags, ..Settings::default() };
            DumpFiles::start(&settings, directory.path()).unwrap()
        };
        for flags in [0x3F, 0x83] {
            let mut files = start(flags);
            files.want_multicast();
            assert_eq!(files.wanted, None);
            files.want_all();
            assert_eq!(files.wanted, Some(DumpScope::Links));
        }
        let mut files = start(0x43);
        files.want_all();
        files.want_multicast();
        assert_eq!(
            files.wanted,
            Some(DumpScope::Routing),
            "what is more is not forgotten for less"
        );
        // Nothing is routed: there are multicast tables only, none of them with an entry.
        fs::write(directory.path().join("opensm.mcfdbs"), "of the last run").unwrap();
        files.finish(&sweeper()).unwrap();
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read_to_string(directory.path().join("opensm.mcfdbs")).unwrap(), "");
    }

    /// A HUP took the log flags but for this one.
    #[test]
    fn what_settings_ask_for_later_is_written_from_then_on() {
        let directory = tempfile::tempdir().unwrap();
        let of = |log_flags| Settings { log_flags, ..Settings::default() };
        let mut files = DumpFiles::start(&of(3), directory.path()).unwrap();
        for (flags, wanted) in [(0x43, DumpScope::Routing), (3, DumpScope::Links)] {
            files.follow(&of(flags));
            files.want_all();
            assert_eq!(files.wanted.take(), Some(wanted));
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_told_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let failure =
            write(&sweeper().dump_job(DumpScope::Multicast), &directory.path().join("none"))
                .unwrap_err();
        assert!(failure.to_string().contains("none/opensm.mcfdbs: No such file"), "{failure}");
    }
}

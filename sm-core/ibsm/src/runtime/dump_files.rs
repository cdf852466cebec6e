//! Writes OpenSM's dump files, on a thread.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use ib_mad::transport::{Interest, wait};

use super::worker::Worker;
use crate::node::{DumpError, Node};
use sm_config::Settings;
use sm_core::sweep::DumpJob;

/// Nice value of the thread that writes: sweeps and answers do not wait for files that people read.
const NICE: i32 = 10;

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
struct DumpFailure {
    path: PathBuf,
    source: io::Error,
}

/// The thread that writes.
pub(super) struct DumpFileWriter {
    thread: Worker<DumpJob, Result<(), DumpFailure>>,
}

impl DumpFileWriter {
    /// A writer to `dump_files_dir`, or the state directory.
    pub(super) fn start(settings: &Settings, state_dir: &Path) -> io::Result<Self> {
        let directory = settings.dump_files_dir.as_ref().map_or(state_dir, Path::new).to_owned();
        let write = move |job: DumpJob| {
            yield_to_others();
            write(&job, &directory)
        };
        let thread = Worker::start("dump files", write)?;
        Ok(Self { thread })
    }

    /// Has files written. Fails if the thread is gone.
    pub(super) fn submit(&mut self, job: DumpJob) -> io::Result<()> {
        self.thread.submit(job)
    }

    /// Hands the result to the node. Fails if the thread is gone.
    pub(super) fn poll(&mut self, node: &mut Node) -> io::Result<()> {
        if let Some(done) = self.thread.poll()? {
            node.handle_dumped(match done {
                Ok(result) => result.map_err(|failure| DumpError::Failed(failure.to_string())),
                Err(panic) => Err(DumpError::Panicked(panic.to_string())),
            });
        }
        Ok(())
    }

    /// Writes all files that are wanted, and waits until they are written.
    pub(super) fn finish(mut self, node: &mut Node) -> io::Result<()> {
        loop {
            self.poll(node)?;
            if let Some(job) = node.poll_dump() {
                self.submit(job)?;
            }
            if self.thread.is_idle() {
                return Ok(());
            }
            wait(&mut [Interest::read(self.thread.as_fd())], None)?;
        }
    }
}

/// Lowers the priority of this thread. On Linux each thread has its own.
fn yield_to_others() {
    let _ = rustix::process::setpriority_process(None, NICE);
}

impl AsFd for DumpFileWriter {
    /// Becomes readable when files were written.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }
}

fn write(job: &DumpJob, directory: &Path) -> Result<(), DumpFailure> {
    for &file in job.files() {
        let path = directory.join(file.name());
        // A reader finds the old file or the new one, never a part.
        let draft = directory.join(format!("{}.new", file.name()));
        let replace = || {
            let mut out = BufWriter::new(create(&draft)?);
            job.render(file, |part| out.write_all(part.as_bytes()))?;
            out.flush()?;
            fs::rename(&draft, &path)
        };
        replace().map_err(|source| DumpFailure { path: path.clone(), source })?;
    }
    Ok(())
}

/// Creates a file in place of one that is left over. The directory may be one that others can
/// write to: a link there is replaced, not followed.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_core::manage::lid::LidTable;
    use sm_core::sweep::{DumpScope, Sweeper};

    fn job() -> DumpJob {
        let sweeper = Sweeper::new(Settings::default(), LidTable::default(), 0);
        sweeper.dump_job(DumpScope::Multicast)
    }

    /// Regression: a link at the name of the draft was followed, and its target overwritten.
    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for name in ["opensm.mcfdbs", "opensm.mcfdbs.new"] {
            std::os::unix::fs::symlink(&victim, directory.path().join(name)).unwrap();
        }
        write(&job(), directory.path()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        let written = fs::symlink_metadata(directory.path().join("opensm.mcfdbs")).unwrap();
        assert!(written.is_file());
    }

    #[test]
    fn files_of_the_last_run_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = DumpFileWriter::start(&Settings::default(), directory.path()).unwrap();
        // Nothing is routed: there are multicast tables only, without entries.
        fs::write(directory.path().join("opensm.mcfdbs"), "of the last run").unwrap();
        files.submit(job()).unwrap();
        while files.thread.poll().unwrap().is_none() {
            wait(&mut [Interest::read(files.as_fd())], None).unwrap();
        }
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read_to_string(directory.path().join("opensm.mcfdbs")).unwrap(), "");
    }

    #[test]
    fn a_missing_directory_is_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let failure = write(&job(), &directory.path().join("none")).unwrap_err();
        assert!(failure.to_string().contains("none/opensm.mcfdbs: No such file"), "{failure}");
    }
}

//! A thread for what takes long, so that the loop goes on answering meanwhile.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Runs jobs one after the other, and wakes the loop when one is done.
pub(super) struct Worker<J, R> {
    jobs: Sender<J>,
    results: Receiver<R>,
    /// Becomes readable when there is a result.
    wake: UnixStream,
    /// Jobs submitted whose results have not been fetched.
    pending: usize,
}

impl<J: Send + 'static, R: Send + 'static> Worker<J, R> {
    /// A worker thread that does `work`.
    pub(super) fn start(name: &str, work: impl Fn(J) -> R + Send + 'static) -> io::Result<Self> {
        let (jobs, inbox) = channel::<J>();
        let (outbox, results) = channel();
        let (wake, mut bell) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        // Ends when the loop drops its ends.
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(job) = inbox.recv() {
                if outbox.send(work(job)).is_err() || bell.write_all(&[0]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, results, wake, pending: 0 })
    }

    /// Hands a job over. Fails if the thread is gone, which takes a panic of the work.
    pub(super) fn submit(&mut self, job: J) -> io::Result<()> {
        self.pending += 1;
        self.jobs.send(job).map_err(|_| io::Error::other("worker thread is gone"))
    }

    /// Whether nothing is submitted that was not fetched.
    pub(super) fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// The next result, if there is one.
    pub(super) fn poll(&mut self) -> Option<R> {
        // Made unreadable first: a bell that rings after this brings us back here.
        let mut bells = [0; 16];
        let _ = self.wake.read(&mut bells);
        let result = self.results.try_recv().ok()?;
        self.pending -= 1;
        Some(result)
    }
}

impl<J, R> AsFd for Worker<J, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::transport::{Interest, wait};

    #[test]
    fn a_result_wakes_whoever_waits() {
        let mut worker = Worker::start("double", |job: u32| job * 2).unwrap();
        assert_eq!(worker.poll(), None);
        for job in [1, 2] {
            worker.submit(job).unwrap();
            let result = loop {
                wait(&mut [Interest::read(worker.as_fd())], None).unwrap();
                if let Some(result) = worker.poll() {
                    break result;
                }
            };
            assert_eq!(result, job * 2);
        }
    }
}

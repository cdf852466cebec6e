//! A thread for long jobs, so that the service loop keeps answering.

use std::any::Any;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

/// The job panicked, which is a bug. The thread continues with the next job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error: {0}")]
pub(super) struct Panicked(String);

/// Runs jobs one after the other, and wakes the service loop when one is done.
pub(super) struct Worker<J, R> {
    jobs: Sender<J>,
    results: Receiver<Result<R, Panicked>>,
    /// Becomes readable when there is a result.
    wake: UnixStream,
    /// Jobs submitted whose results have not been fetched.
    pending: usize,
}

impl<J: Send + 'static, R: Send + 'static> Worker<J, R> {
    /// Starts a thread that runs `work` on each job.
    pub(super) fn start(name: &str, work: impl Fn(J) -> R + Send + 'static) -> io::Result<Self> {
        let (jobs, inbox) = channel::<J>();
        let (outbox, results) = channel();
        let (wake, mut bell) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        // Ends when the loop drops its ends.
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(job) = inbox.recv() {
                // A panic leaves only parts of the job, which are dropped; nothing else is shared.
                let result = catch_unwind(AssertUnwindSafe(|| work(job)));
                let result = result.map_err(|payload| Panicked(words_of(&*payload)));
                if outbox.send(result).is_err() || bell.write_all(&[0]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, results, wake, pending: 0 })
    }

    /// Submits a job. Fails if the thread is gone.
    pub(super) fn submit(&mut self, job: J) -> io::Result<()> {
        self.pending += 1;
        self.jobs.send(job).map_err(|_| gone())
    }

    /// Whether the results of all jobs have been fetched.
    pub(super) fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// The next result, if there is one. Fails if the thread is gone.
    pub(super) fn poll(&mut self) -> io::Result<Option<Result<R, Panicked>>> {
        // Cleared first: a wake-up after this is not lost.
        let mut bells = [0; 16];
        let _ = self.wake.read(&mut bells);
        match self.results.try_recv() {
            Ok(result) => {
                self.pending -= 1;
                Ok(Some(result))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("a worker thread ended unexpectedly; restart ibsm")
}

/// The message of a panic.
fn words_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
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
    fn a_result_wakes_the_loop() {
        let mut worker = Worker::start("double", |job: u32| job * 2).unwrap();
        assert_eq!(worker.poll().unwrap(), None);
        for job in [1, 2] {
            worker.submit(job).unwrap();
            let result = loop {
                wait(&mut [Interest::read(worker.as_fd())], None).unwrap();
                if let Some(result) = worker.poll().unwrap() {
                    break result;
                }
            };
            assert_eq!(result, Ok(job * 2));
        }
    }

    fn wait_for<J: Send + 'static, R: Send + 'static>(
        worker: &mut Worker<J, R>,
    ) -> io::Result<Result<R, Panicked>> {
        loop {
            wait(&mut [Interest::read(worker.as_fd())], None)?;
            if let Some(result) = worker.poll()? {
                return Ok(result);
            }
        }
    }

    #[test]
    fn a_panic_costs_its_job_only() {
        let mut worker = Worker::start("odd", |job: u32| {
            assert!(job % 2 == 1, "{job} is not odd");
            job
        })
        .unwrap();
        worker.submit(2).unwrap();
        assert_eq!(wait_for(&mut worker).unwrap(), Err(Panicked("2 is not odd".to_owned())));
        worker.submit(3).unwrap();
        assert_eq!(wait_for(&mut worker).unwrap(), Ok(3));
        assert!(worker.is_idle());
    }

    #[test]
    fn a_thread_that_is_gone_is_an_error_and_not_silence() {
        let mut worker = Worker::start("idle", |job: u32| job).unwrap();
        // The thread ends when it cannot ring the bell.
        worker.wake.shutdown(std::net::Shutdown::Both).unwrap();
        worker.submit(1).unwrap();
        let failure = loop {
            match worker.poll() {
                Err(failure) => break failure,
                Ok(_) => std::thread::yield_now(),
            }
        };
        assert!(failure.to_string().contains("restart ibsm"));
    }
}

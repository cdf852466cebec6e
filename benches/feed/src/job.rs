//! Orders, and the one in progress in this process.
//!
//! A thread of this library reads orders from the socket and writes reports. The program's receiver
//! thread feeds requests, and the threads that answer pass the answers in; they share only atomics.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed};
use std::sync::atomic::{Ordering::Release, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::MAD_LEN;
use crate::book::Book;
use crate::clock::{self, Of, cpu};
use crate::order::{Order, Report};
use crate::session::{Next, Session};

/// Time without an answer after which a run is aborted.
const STALL: Duration = Duration::from_secs(60);
/// Name of the thread of `umad-preload` that does the kernel's work.
const KERNEL_THREAD: &str = "umad";

/// The run in progress. Runs are never freed: a thread may still read one that has ended.
static CURRENT: AtomicPtr<Job> = AtomicPtr::new(std::ptr::null_mut());
/// Wakes the receiver.
static WAKE: OnceLock<OwnedFd> = OnceLock::new();
/// Threads that fed requests or passed answers, with their CPU time when they were first seen.
static THREADS: Mutex<Vec<(libc::pid_t, Duration)>> = Mutex::new(Vec::new());

thread_local! {
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// A run.
pub(crate) struct Job {
    session: Session,
    pub(crate) fabric: bool,
    pub(crate) pause_ms: u32,
    kernel_thread: Option<libc::pid_t>,
    begin: OnceLock<Clocks>,
    end: Mutex<Option<Clocks>>,
    has_ended: Condvar,
    /// Number of answers at which the receiver is woken.
    wake_at: AtomicU64,
    /// When the last request was fed, and the longest time that an answer took. Nanoseconds.
    fed_at: AtomicU64,
    longest: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Clocks {
    at: Instant,
    query: Duration,
    process: Duration,
}

/// Next step of the receiver.
pub(crate) enum Step {
    /// Deliver the fed request; it is from this LID and QP.
    Deliver(u16, u32),
    /// Wait to be woken.
    Wait,
    /// Check again.
    Again,
}

/// The run in progress.
#[inline]
pub(crate) fn current() -> Option<&'static Job> {
    // SAFETY: null, or a job that was leaked.
    unsafe { CURRENT.load(Acquire).as_ref() }
}

/// The descriptor that wakes the receiver; -1 while there are no orders.
pub(crate) fn wake_descriptor() -> RawFd {
    WAKE.get().map_or(-1, AsRawFd::as_raw_fd)
}

/// Starts accepting orders from the socket. Returns immediately.
pub(crate) fn obey(socket: PathBuf) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    if WAKE.set(unsafe { OwnedFd::from_raw_fd(event) }).is_err() {
        return Ok(()); // An agent registered again: orders are accepted already.
    }
    let stream = UnixStream::connect(socket)?;
    // SAFETY: both sets are written before they are read, and outlive the calls.
    unsafe {
        // The program's own threads handle signals.
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let spawned = std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || drop(take_orders(&stream)));
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        spawned.map(drop)
    }
}

fn take_orders(stream: &UnixStream) -> io::Result<()> {
    let mut books = HashMap::new();
    let mut serial = 0;
    for line in BufReader::new(stream).lines() {
        serial += 1;
        let report = match line?.parse() {
            Ok(order) => carry_out(&order, serial, &mut books),
            Err(error) => failed(&error),
        };
        let mut stream = stream;
        stream.write_all(format!("{report}\n").as_bytes())?;
    }
    Ok(())
}

fn failed(why: &dyn std::fmt::Display) -> Report {
    let mut report = Report::default();
    report.tally.failed = 1;
    report.tally.failure = why.to_string();
    report
}

fn carry_out(order: &Order, serial: u16, books: &mut HashMap<PathBuf, Arc<Book>>) -> Report {
    let book = match books.get(&order.book) {
        Some(book) => Arc::clone(book),
        None => match Book::read(&order.book) {
            Ok(book) => Arc::clone(books.entry(order.book.clone()).or_insert(Arc::new(book))),
            Err(error) => return failed(&error),
        },
    };
    let session = Session::new(book, serial, order.total, order.window);
    if order.echo {
        let (begin, before) = (Instant::now(), cpu(Of::Thread(clock::this_thread())));
        session.echo();
        let spent = cpu(Of::Thread(clock::this_thread())) - before;
        return Report {
            tally: session.tally(),
            wall: begin.elapsed(),
            query_cpu: spent,
            cpu: spent,
            longest: Duration::ZERO,
        };
    }
    let threads = clock::threads(std::process::id());
    let kernel_thread = threads.into_iter().find(|(_, name)| name == KERNEL_THREAD);
    let job: &'static Job = Box::leak(Box::new(Job {
        session,
        fabric: order.fabric,
        pause_ms: order.pause_ms,
        kernel_thread: kernel_thread.map(|(tid, _)| tid),
        begin: OnceLock::new(),
        end: Mutex::new(None),
        has_ended: Condvar::new(),
        wake_at: AtomicU64::new(u64::MAX),
        fed_at: AtomicU64::new(0),
        longest: AtomicU64::new(0),
    }));
    CURRENT.store(std::ptr::from_ref(job).cast_mut(), Release);
    wake();
    job.wait_for_end();
    CURRENT.store(std::ptr::null_mut(), Release);
    wake();
    job.report()
}

impl Job {
    /// Copies the next request into `mad`. Called by the receiver.
    #[inline]
    pub(crate) fn feed(&self, mad: &mut [u8; MAD_LEN]) -> Step {
        match self.session.next(mad) {
            Next::Fed(request) => {
                if self.begin.get().is_none() {
                    note_thread();
                    let _ = self.begin.set(self.clocks());
                }
                if self.pause_ms > 0 {
                    self.fed_at.store(self.elapsed(), Relaxed);
                }
                Step::Deliver(request.lid, request.qpn)
            }
            Next::Full(answers) => {
                self.wake_at.store(answers, SeqCst);
                // A thread that took the answer before the wait was announced did not wake this
                // one.
                if self.session.done() >= answers { Step::Again } else { Step::Wait }
            }
            Next::Over => Step::Wait,
        }
    }

    /// Takes an answer, if it belongs to this run.
    #[inline]
    pub(crate) fn take(&self, first: &[u8; MAD_LEN], len: usize) -> bool {
        let Some(done) = self.session.take(first, len) else { return false };
        note_thread();
        if self.pause_ms > 0 {
            let took = self.elapsed().saturating_sub(self.fed_at.load(Relaxed));
            self.longest.fetch_max(took, Relaxed);
        }
        if done == self.session.total() {
            *self.end() = Some(self.clocks());
            self.has_ended.notify_all();
        } else if done == self.wake_at.load(SeqCst) {
            wake();
        }
        true
    }

    /// Nanoseconds since the first request.
    fn elapsed(&self) -> u64 {
        self.begin.get().map_or(0, |begin| begin.at.elapsed().as_nanos() as u64)
    }

    fn end(&self) -> MutexGuard<'_, Option<Clocks>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clocks(&self) -> Clocks {
        let threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let query = threads.iter().map(|&(tid, before)| cpu(Of::Thread(tid)) - before).sum();
        let kernel = self.kernel_thread.map_or(Duration::ZERO, |tid| cpu(Of::Thread(tid)));
        let process = cpu(Of::Process(0)).saturating_sub(kernel);
        Clocks { at: Instant::now(), query, process }
    }

    fn wait_for_end(&self) {
        let (mut last, mut end) = (0, self.end());
        while end.is_none() {
            let (guard, timeout) =
                self.has_ended.wait_timeout(end, STALL).unwrap_or_else(PoisonError::into_inner);
            end = guard;
            if timeout.timed_out() && std::mem::replace(&mut last, self.session.done()) == last {
                return;
            }
        }
    }

    fn report(&self) -> Report {
        let mut tally = self.session.tally();
        let (Some(begin), Some(end)) = (self.begin.get(), *self.end()) else {
            tally.failed += 1;
            tally.failure = format!(
                "no answer for {} s after {} of {}; {}",
                STALL.as_secs(),
                tally.answered,
                self.session.total(),
                tally.failure
            );
            return Report { tally, ..Report::default() };
        };
        Report {
            tally,
            wall: end.at - begin.at,
            query_cpu: end.query - begin.query,
            cpu: end.process - begin.process,
            longest: Duration::from_nanos(self.longest.load(Relaxed)),
        }
    }
}

/// Adds the calling thread to the threads that feed requests or pass answers.
#[inline]
fn note_thread() {
    if !IS_KNOWN.replace(true) {
        let thread = clock::this_thread();
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push((thread, cpu(Of::Thread(thread))));
    }
}

fn wake() {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is readable for its length. If the counter is full, the receiver has been woken
    // already.
    unsafe { libc::write(wake_descriptor(), one.as_ptr().cast(), one.len()) };
}

/// Records that the receiver is awake.
pub(crate) fn awake() {
    let mut count = [0u8; 8];
    // SAFETY: `count` is writable for its length.
    unsafe { libc::read(wake_descriptor(), count.as_mut_ptr().cast(), count.len()) };
}

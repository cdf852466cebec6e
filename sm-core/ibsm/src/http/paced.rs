//! Limits how long a client may take to accept what it is sent. Without a limit, a client that
//! reads nothing, or a byte now and then, would keep its connection and the memory of its answer.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Totals;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Without accepting a byte of what waits for it.
    pub(super) stall: Duration,
    /// For all of an answer, except for [`Lasting::Stream`](super::Lasting::Stream).
    pub(super) answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stall: Duration::from_secs(30), answer: Duration::from_secs(120) }
    }
}

/// The time limits of the answers on a connection. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    patience: Patience,
    /// When the client must have accepted the answer that is being sent.
    deadline: Arc<Mutex<Option<Instant>>>,
}

impl Pace {
    /// An answer is made, of which nothing is sent yet.
    pub(super) fn await_answer(&self) {
        self.set(None);
    }

    /// Sending an answer begins; one that `is_stream` may take any time in all.
    pub(super) fn begin(&self, is_stream: bool) {
        self.set((!is_stream).then(|| Instant::now() + self.patience.answer));
    }

    fn set(&self, deadline: Option<Instant>) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// When a connection must end whose client accepts nothing from now on.
    fn due(&self) -> Instant {
        let stalled = Instant::now() + self.patience.stall;
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.map_or(stalled, |deadline| deadline.min(stalled))
    }
}

/// A connection that fails if its client does not accept in time what is written.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    pace: Pace,
    /// Runs while the client accepts nothing.
    timer: Option<Pin<Box<Sleep>>>,
    is_over: bool,
    totals: Arc<Totals>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, patience: Patience, totals: Arc<Totals>) -> Self {
        let pace = Pace { patience, deadline: Arc::default() };
        Self { stream, pace, timer: None, is_over: false, totals }
    }

    /// The limits, to be set with each answer.
    pub(super) fn pace(&self) -> Pace {
        self.pace.clone()
    }

    /// Starts the timer if nothing of a write was accepted, and fails once it has run out.
    fn checked<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let pace = &self.pace;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(pace.due())));
        if !self.is_over && timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_over, true) {
            self.totals.unread.fetch_add(1, Relaxed);
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.checked(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.checked(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

//! Answers of several messages, each made on a thread that its reader may hold up: how many at a
//! time, and for how long.

use std::time::Duration;

use sa_proto::crowd::Share;
use sa_proto::quota::{Place, Places};
use sa_proto::serve::Caller;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

/// Messages of an answer that its connection has not taken yet.
const ANSWERS_MAX: usize = 2;
/// Answers at a time, and of one user or host.
const OPEN_MAX: usize = 64;
const OPEN_OF_PEER_MAX: usize = 16;
/// How long a reader may take for a message, and for the whole answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_IN_ALL: Duration = Duration::from_secs(120);

/// An answer of several messages.
pub(crate) type Answers<M> = ReceiverStream<Result<M, Status>>;

/// The answers that are being made. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Answering {
    places: Places<Share>,
    /// How long a reader may take for a message.
    patience: Duration,
}

impl Default for Answering {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

/// The share that an answer to this request counts against.
pub(crate) fn share_of<T>(request: &Request<T>) -> Share {
    let caller = request.extensions().get::<Caller>();
    caller.map_or(Share::UNKNOWN, Caller::share)
}

impl Answering {
    fn new(patience: Duration) -> Self {
        Self { places: Places::new(OPEN_MAX, OPEN_OF_PEER_MAX), patience }
    }

    /// Answers `share` with messages that `make` passes to a function, on another thread. The
    /// function returns whether to continue: not if the reader is gone, or too slow.
    pub(crate) fn answer<M: Send + 'static>(
        &self,
        share: Share,
        make: impl FnOnce(&mut dyn FnMut(M) -> bool) + Send + 'static,
    ) -> Result<Answers<M>, Status> {
        Ok(self.answer_from(self.enter(share)?, make))
    }

    /// A place for an answer to `share`. It is taken before anything is computed for it.
    pub(crate) fn enter(&self, share: Share) -> Result<Place<Share>, Status> {
        let place = self.places.enter(share);
        place.map_err(|_| Status::resource_exhausted("too many lists are being read; retry"))
    }

    /// [`answer`](Self::answer) from a place.
    pub(crate) fn answer_from<M: Send + 'static>(
        &self,
        place: Place<Share>,
        make: impl FnOnce(&mut dyn FnMut(M) -> bool) + Send + 'static,
    ) -> Answers<M> {
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let (runtime, patience) = (Handle::current(), self.patience);
        tokio::task::spawn_blocking(move || {
            let end = Instant::now() + PATIENCE_IN_ALL;
            make(&mut |message| {
                let until = end.min(Instant::now() + patience);
                let sent = runtime.block_on(timeout_at(until, sender.send(Ok(message))));
                matches!(sent, Ok(Ok(())))
            });
            drop(place);
        });
        ReceiverStream::new(answers)
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    /// Regression: 640 answers without a reader took all threads on which users of connections are
    /// looked up: no responder, standby or ibsmctl could connect.
    #[tokio::test]
    async fn readers_that_stop_hold_few_threads_and_not_for_long() {
        let patience = Duration::from_secs(1);
        let answering = Answering::new(patience);
        let ask = |peer| {
            answering.answer(peer, |send: &mut dyn FnMut(u32) -> bool| {
                (0..1000).all(send);
            })
        };
        let held: Vec<_> = (0..640).map_while(|_| ask(Share::User(1)).ok()).collect();
        assert_eq!(held.len(), OPEN_OF_PEER_MAX);
        // Another reads, and gets all.
        let read = ask(Share::User(2)).unwrap();
        assert_eq!(read.collect::<Vec<_>>().await.len(), 1000);
        for host in 3..100 {
            let _ = ask(Share::User(host)).map(std::mem::forget);
        }
        assert!(ask(Share::User(100)).is_err(), "all places are taken");
        while ask(Share::User(1)).is_err() {
            tokio::time::sleep(patience / 10).await;
        }
    }
}

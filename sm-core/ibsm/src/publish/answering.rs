//! Answers of several messages, each made on a thread that its reader may hold up: how many at a
//! time, and for how long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sa_proto::serve::{Caller, Grounds};
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
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
const PATIENCE_IN_ALL: Duration = Duration::from_secs(120);

/// An answer of several messages.
pub(crate) type Answers<M> = ReceiverStream<Result<M, Status>>;

/// Who asks: a user of this host, or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    User(u32),
    Host(Option<IpAddr>),
}

impl Peer {
    /// The sender of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        match request.extensions().get::<Caller>() {
            Some(Caller { grounds: Grounds::User(user), .. }) => Self::User(*user),
            Some(caller) => Self::Host(Some(caller.address.ip())),
            None => Self::Host(None),
        }
    }
}

/// The answers that are being made. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answering {
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

/// Place of an answer, freed when dropped.
struct Place {
    open: Arc<Mutex<HashMap<Peer, usize>>>,
    peer: Peer,
}

impl Answering {
    /// Answers `peer` with messages that `make` passes to a function, on another thread. The
    /// function returns whether to continue: not if the reader is gone, or too slow.
    pub(crate) fn answer<M: Send + 'static>(
        &self,
        peer: Peer,
        make: impl FnOnce(&mut dyn FnMut(M) -> bool) + Send + 'static,
    ) -> Result<Answers<M>, Status> {
        let place = self.enter(peer)?;
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            let end = Instant::now() + PATIENCE_IN_ALL;
            make(&mut |message| {
                let until = end.min(Instant::now() + PATIENCE);
                let sent = runtime.block_on(timeout_at(until, sender.send(Ok(message))));
                matches!(sent, Ok(Ok(())))
            });
            drop(place);
        });
        Ok(ReceiverStream::new(answers))
    }

    fn enter(&self, peer: Peer) -> Result<Place, Status> {
        let mut open = lock(&self.open);
        let of_peer = open.get(&peer).copied().unwrap_or_default();
        if of_peer >= OPEN_OF_PEER_MAX || open.values().sum::<usize>() >= OPEN_MAX {
            return Err(Status::resource_exhausted("too many lists are being read; retry"));
        }
        open.insert(peer, of_peer + 1);
        Ok(Place { open: Arc::clone(&self.open), peer })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        match open.get_mut(&self.peer) {
            Some(of_peer) if *of_peer > 1 => *of_peer -= 1,
            _ => _ = open.remove(&self.peer),
        }
    }
}

fn lock(open: &Mutex<HashMap<Peer, usize>>) -> MutexGuard<'_, HashMap<Peer, usize>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    /// Regression: 640 answers that nobody read took all threads on which users of connections are
    /// looked up: no responder, standby or ibsmctl could connect.
    #[tokio::test]
    async fn readers_that_stop_hold_few_threads_and_not_for_long() {
        let answering = Answering::default();
        let ask = |peer| {
            answering.answer(peer, |send: &mut dyn FnMut(u32) -> bool| {
                (0..1000).all(send);
            })
        };
        let held: Vec<_> = (0..640).map_while(|_| ask(Peer::User(1)).ok()).collect();
        assert_eq!(held.len(), OPEN_OF_PEER_MAX);
        // Another reads, and gets all.
        let read = ask(Peer::User(2)).unwrap();
        assert_eq!(read.collect::<Vec<_>>().await.len(), 1000);
        for host in 3..100 {
            let _ = ask(Peer::User(host)).map(std::mem::forget);
        }
        assert!(ask(Peer::User(100)).is_err(), "all places are taken");
        while ask(Peer::User(1)).is_err() {
            tokio::time::sleep(PATIENCE / 10).await;
        }
    }
}

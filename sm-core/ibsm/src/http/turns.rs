//! Turns of work on threads: how much is made at a time, in all or for one host or user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sa_proto::crowd::Share;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Documents made at a time for one host or user; its further requests wait.
const SHARE_TURNS: usize = 2;

/// What `make` returns, which runs on another thread when there is a turn for it; `None` if it
/// panics.
pub(crate) async fn made<T: Send + 'static>(
    turns: Arc<Semaphore>,
    make: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    in_turn(turns.acquire_owned().await.ok()?, make).await
}

/// What `make` returns, which runs on another thread; `None` if it panics. The turn ends with
/// `make`, also if the client has left meanwhile: otherwise clients that ask and leave would start
/// work without a limit.
pub(crate) async fn in_turn<T: Send + 'static>(
    turn: OwnedSemaphorePermit,
    make: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let made = tokio::task::spawn_blocking(move || {
        let made = make();
        drop(turn);
        made
    });
    made.await.ok()
}

/// Turns of each host or user that has requests.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<Share, Weak<Semaphore>>>);

impl Turns {
    /// Those of `share`.
    pub(crate) fn of(&self, share: Share) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = all.get(&share).and_then(Weak::upgrade) {
            return turns;
        }
        all.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(SHARE_TURNS));
        all.insert(share, Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: clients that asked and left, without a password, had thousands of passwords
    /// checked or documents made, one after the other, and others waited for all of them.
    #[tokio::test]
    async fn a_turn_lasts_as_long_as_its_work() {
        let turns = Arc::new(Semaphore::new(1));
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let work = move || {
            let _ = begin.send(());
            ended.recv()
        };
        let client = tokio::spawn(made(turns.clone(), work));
        begun.await.unwrap();
        client.abort();
        assert!(client.await.is_err_and(|left| left.is_cancelled()));
        assert_eq!(turns.available_permits(), 0, "the work goes on");
        drop(end);
        assert_eq!(made(turns, || 7).await, Some(7));
    }

    #[test]
    fn each_has_its_own_turns_and_is_forgotten() {
        let turns = Turns::default();
        let [first, second] = [1, 2].map(|user| turns.of(Share::User(user)));
        let _turns = [(); SHARE_TURNS].map(|()| first.clone().try_acquire_owned().unwrap());
        assert!(turns.of(Share::User(1)).try_acquire().is_err());
        assert!(turns.of(Share::User(2)).try_acquire().is_ok());
        drop(second);
        turns.of(Share::User(3));
        assert_eq!(turns.0.lock().unwrap().len(), 2);
    }
}

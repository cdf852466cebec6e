//! Answers of one message that are computed from the whole fabric: each on another thread, so that
//! the threads which move messages do nothing else, and few at a time.

use std::sync::Arc;

use sa_proto::crowd::Share;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::http::{Turns, in_turn};

/// Answers computed at a time, in all; [`Turns`] has the limit of each user or host.
const ALL_MAX: usize = 8;

/// The answers that are being computed. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Computing {
    turns: Arc<Turns>,
    all: Arc<Semaphore>,
}

impl Default for Computing {
    fn default() -> Self {
        Self { turns: Arc::default(), all: Arc::new(Semaphore::new(ALL_MAX)) }
    }
}

impl Computing {
    /// The turns of `share`.
    #[cfg(test)]
    pub(super) fn turns_of(&self, share: Share) -> Arc<Semaphore> {
        self.turns.of(share)
    }

    /// What `make` returns for `share`, once there is a turn for it. The turn ends with `make`,
    /// also if the caller has left.
    pub(super) async fn compute<T: Send + 'static>(
        &self,
        share: Share,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let failed = || Status::internal("the answer could not be computed");
        let turn = self.turns.of(share).acquire_owned().await.map_err(|_| failed())?;
        let place = self.all.clone().acquire_owned().await.map_err(|_| failed())?;
        let make = move || {
            let made = make();
            drop(place);
            made
        };
        in_turn(turn, make).await.ok_or_else(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;

    /// Regression: a viewer that listed virtual fabrics all the time kept the threads which move
    /// messages of responders.
    #[tokio::test]
    async fn answers_are_computed_on_other_threads_and_few_at_a_time() {
        let computing = Computing::default();
        let other = computing.compute(Share::User(1), || thread::current().id()).await.unwrap();
        assert_ne!(other, thread::current().id());
        // Two of a user, and all in all, that last.
        let (mut ends, mut calls) = (Vec::new(), Vec::new());
        for user in 0..ALL_MAX as u32 / 2 {
            for _ in 0..2 {
                let (end, ended) = mpsc::channel::<()>();
                let (begin, begun) = oneshot::channel();
                let computing = computing.clone();
                calls.push(tokio::spawn(async move {
                    let work = move || {
                        let _ = begin.send(());
                        ended.recv().is_err()
                    };
                    computing.compute(Share::User(user), work).await
                }));
                begun.await.unwrap();
                ends.push(end);
            }
            assert_eq!(computing.turns.of(Share::User(user)).available_permits(), 0);
        }
        assert_eq!(computing.all.available_permits(), 0);
        calls[0].abort();
        tokio::task::yield_now().await;
        assert_eq!(computing.all.available_permits(), 0, "the work goes on");
        drop(ends);
        for call in calls.into_iter().skip(1) {
            assert!(call.await.unwrap().unwrap());
        }
        assert!(computing.compute(Share::User(9), || true).await.unwrap());
    }
}

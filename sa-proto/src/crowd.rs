//! The connections of a small server: beyond its limit, the oldest that is idle makes room for the
//! next one, so that silent and slow clients shut out no other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The open connections. Clones share them.
#[derive(Clone, Debug)]
pub struct Crowd {
    max: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// Number of the last connection.
    last: u64,
    /// By number, hence in the order of their arrival.
    places: BTreeMap<u64, Arc<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_busy: AtomicBool,
    cut: Notify,
}

/// Place of a connection, freed when dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    state: Arc<State>,
    open: Arc<Mutex<Open>>,
}

impl Crowd {
    /// Room for `max` connections.
    pub fn new(max: usize) -> Self {
        Self { max, open: Arc::default() }
    }

    /// A place for a connection, at the expense of the oldest idle one if necessary; `None` if all
    /// are busy.
    pub fn enter(&self) -> Option<Place> {
        let mut open = lock(&self.open);
        if open.places.len() >= self.max {
            let oldest = open.places.iter().find(|(_, state)| !state.is_busy.load(Relaxed));
            let number = *oldest?.0;
            open.places.remove(&number).inspect(|state| state.cut.notify_one());
        }
        open.last += 1;
        let (number, state) = (open.last, Arc::<State>::default());
        open.places.insert(number, state.clone());
        Some(Place { number, state, open: self.open.clone() })
    }
}

impl Place {
    /// Whether a request is being answered: the connection is not cut meanwhile.
    pub fn set_busy(&self, is_busy: bool) {
        self.state.is_busy.store(is_busy, Relaxed);
    }

    /// Completes when the connection must end.
    pub async fn cut(&self) {
        self.state.cut.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.open).places.remove(&self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_cut(place: &Place) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(place.cut()).poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn the_oldest_idle_connection_makes_room() {
        let crowd = Crowd::new(3);
        let all: Vec<Place> = (0..3).map(|_| crowd.enter().unwrap()).collect();
        all[0].set_busy(true);
        let fourth = crowd.enter().unwrap();
        assert_eq!(all.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false]);
        // It has ended; that changes nothing.
        drop(all.into_iter().nth(1));
        assert!(!is_cut(&fourth));
    }

    #[test]
    fn busy_connections_are_not_cut() {
        let crowd = Crowd::new(2);
        let all: Vec<Place> = (0..2).map(|_| crowd.enter().unwrap()).collect();
        all.iter().for_each(|place| place.set_busy(true));
        assert!(crowd.enter().is_none());
        all[1].set_busy(false);
        assert!(crowd.enter().is_some());
        assert!(is_cut(&all[1]) && !is_cut(&all[0]));
        drop(all);
        assert!(lock(&crowd.open).places.is_empty());
    }
}

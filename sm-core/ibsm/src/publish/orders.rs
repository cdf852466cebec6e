//! Orders of operators, on their way to the service loop, which is woken for them. The operator's
//! command can wait until an order is carried out and the status shows it.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ib_mad::types::Guid;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a command waits until its order is taken: a turn of the service loop is much
/// shorter, even in a large fabric. The order stays.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Requests of operators that the SM has not taken yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// A heavy sweep.
    pub sweep: bool,
    /// A light sweep.
    pub light_sweep: bool,
    /// Recompute all routes.
    pub reroute: bool,
    /// Whether sweeps are permitted.
    pub sweeping: Option<bool>,
    /// Priority of this SM, 0 to 15.
    pub priority: Option<u8>,
    /// Log bits.
    pub log_flags: Option<u8>,
    /// The baseline is another one.
    pub baseline: bool,
    /// Read the settings again, and start a heavy sweep.
    pub reload: bool,
    /// GUIDs that belong to the ports that have them, wherever these are. At most
    /// [`ADMITTED_MAX`](super::admin_service::ADMITTED_MAX).
    pub admitted: Vec<Guid>,
}

/// Where orders wait for the service loop.
#[derive(Default)]
pub(super) struct OrderDesk {
    waiting: Mutex<Waiting>,
    /// Number of the last order that the service loop has carried out, and its status shows.
    done: watch::Sender<u64>,
    /// Wakes the service loop.
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Waiting {
    orders: Orders,
    /// Orders given so far.
    given: u64,
    /// Those of them that were taken.
    taken: u64,
}

impl OrderDesk {
    /// Calls this when there is an order.
    pub(super) fn set_bell(&self, bell: impl Fn() + Send + Sync + 'static) {
        // Set once, at the start.
        let _ = self.bell.set(Box::new(bell));
    }

    /// Adds an order, unless `give` fails, and wakes the service loop.
    pub(super) fn give<E>(
        &self,
        give: impl FnOnce(&mut Orders) -> Result<(), E>,
    ) -> Result<Receipt, E> {
        let mut waiting = self.waiting();
        give(&mut waiting.orders)?;
        waiting.given += 1;
        let number = waiting.given;
        drop(waiting);
        self.bell.get().inspect(|ring| ring());
        Ok(Receipt { number, done: self.done.subscribe() })
    }

    /// The orders since the last call, if there are any. [`note_done`](Self::note_done) is due
    /// once they are carried out.
    pub(super) fn take(&self) -> Option<Orders> {
        let mut waiting = self.waiting();
        if waiting.taken == waiting.given {
            return None;
        }
        waiting.taken = waiting.given;
        Some(std::mem::take(&mut waiting.orders))
    }

    /// All orders that were taken are carried out.
    pub(super) fn note_done(&self) {
        let taken = self.waiting().taken;
        self.done.send_if_modified(|done| std::mem::replace(done, taken) != taken);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An order that was given.
pub(super) struct Receipt {
    number: u64,
    done: watch::Receiver<u64>,
}

impl Receipt {
    /// Waits until it is carried out, but not for ever: it may be the service loop's last turn.
    pub(super) async fn carried_out(mut self) {
        let number = self.number;
        let _ = timeout(PATIENCE, self.done.wait_for(|done| *done >= number)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn priority(desk: &OrderDesk, priority: u8) -> Receipt {
        let give = |orders: &mut Orders| {
            orders.priority = Some(priority);
            Ok::<_, Infallible>(())
        };
        desk.give(give).unwrap()
    }

    /// Regression: the service loop looked for orders once a second, and a script that set a
    /// priority and read it again got the old one.
    #[tokio::test(start_paused = true)]
    async fn an_order_wakes_the_loop_and_is_awaited_until_it_is_carried_out() {
        let (desk, rung) = (OrderDesk::default(), Arc::new(AtomicUsize::new(0)));
        let bell = rung.clone();
        desk.set_bell(move || {
            bell.fetch_add(1, Relaxed);
        });
        let awaited = |receipt: Receipt| tokio::spawn(receipt.carried_out());
        let first = awaited(priority(&desk, 3));
        assert_eq!(rung.load(Relaxed), 1);
        assert_eq!(desk.take().and_then(|orders| orders.priority), Some(3));
        assert_eq!(desk.take(), None);
        // Given after the first was taken: the end of the first is not its own.
        let second = awaited(priority(&desk, 4));
        desk.note_done();
        first.await.unwrap();
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        assert_eq!(desk.take().and_then(|orders| orders.priority), Some(4));
        desk.note_done();
        second.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_that_is_not_taken_is_not_awaited_for_ever() {
        let desk = OrderDesk::default();
        priority(&desk, 3).carried_out().await;
        assert!(desk.take().is_some(), "it stays");
    }
}

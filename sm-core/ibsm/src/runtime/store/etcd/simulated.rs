//! A store in a simulated cluster: its task runs in simulated time, whenever the store is polled.

use std::sync::Arc;
use std::time::Instant;

use sa_proto::snapshot::Session;
use sm_core::registry::Changes;
use tokio::runtime::Runtime;
use tokio::task::yield_now;

use super::client::Client;
use super::model::{self, EtcdLink};
use super::{EtcdStatus, EtcdStore, Place, SharedState};
use crate::clock::Clock;
use crate::runtime::store::{Event, Store, StoreError, Waker};

/// How often tasks that are ready get their turn at one instant: more than a request has stages.
const TURNS: usize = 24;

/// See the module.
pub(in crate::runtime) struct SimulatedStore {
    store: EtcdStore,
    runtime: Runtime,
    clock: Arc<dyn Clock>,
    /// The time of the runtime.
    at: Instant,
}

impl SimulatedStore {
    /// A store at the other end of this link. `process` identifies this manager among holders of
    /// the fence; `state` is its state besides the registry.
    pub(in crate::runtime) fn new(
        link: EtcdLink,
        clock: Arc<dyn Clock>,
        process: u64,
        state: Arc<SharedState>,
    ) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(StoreError::Runtime)?;
        let status = Arc::new(EtcdStatus::new(vec!["model".to_owned()]));
        let (client, prefix) = (Client::Model(link.of_process()), "/ibsm");
        let (fold_len, state) = (model::FOLD_LEN, Some(state));
        let place = Place { client, prefix, fold_len, process, state };
        let (store, task) = EtcdStore::prepare(place, status);
        runtime.spawn(task.run());
        let at = clock.now();
        Ok(Self { store, runtime, clock, at })
    }

    /// Does everything that is due by now.
    fn run(&mut self) {
        let now = self.clock.now();
        let step = now.saturating_duration_since(std::mem::replace(&mut self.at, now));
        self.runtime.block_on(async move {
            tokio::time::advance(step).await;
            for _ in 0..TURNS {
                yield_now().await;
            }
        });
    }
}

impl Store for SimulatedStore {
    fn open(&mut self) {
        self.store.open();
    }

    fn submit(&mut self, changes: &Arc<Changes>, session: Session) {
        self.store.submit(changes, session);
    }

    fn poll(&mut self) -> Option<Event> {
        self.run();
        self.store.poll()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.store.set_waker(waker);
    }

    fn is_shared(&self) -> bool {
        self.store.is_shared()
    }

    fn lead(&mut self, session: Option<Session>) {
        self.store.lead(session);
    }

    fn note_alive(&mut self) {
        self.store.note_alive();
    }
}

//! Runs the task of a store in simulated time.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Runtime;
use tokio::task::yield_now;

use super::task::Task;
use crate::clock::Clock;
use crate::runtime::store::StoreError;

/// How often tasks that are ready get their turn at one instant: more than a request has stages.
const TURNS: usize = 24;

/// The runtime of a task, whose time is that of a clock.
pub(super) struct Driver {
    runtime: Runtime,
    clock: Arc<dyn Clock>,
    /// The time of the runtime.
    at: Instant,
}

impl Driver {
    pub(super) fn new(task: Task, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(StoreError::Runtime)?;
        runtime.spawn(task.run());
        let at = clock.now();
        Ok(Self { runtime, clock, at })
    }

    /// Does everything that is due by now.
    pub(super) fn run(&mut self) {
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

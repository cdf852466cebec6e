//! The thread that finds paths: for one group of agents after the other, those that wait for the
//! same messages.
//!
//! A generation is held while paths are found, not while they are sent. At most [`TURNS`] groups
//! have changes in memory: the next is begun when all agents of an earlier one have read theirs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::follower::{Follower, Messages};
use super::service::Shared;
use crate::tables::cell::Generation;

/// Groups whose changes are in memory at once.
const TURNS: usize = 4;
/// Added to the priority of the thread: queries come first.
const NICENESS: i32 = 10;

/// An agent whose paths are to be found.
pub(super) struct Job {
    pub(super) follower: Follower,
    pub(super) done: oneshot::Sender<Found>,
}

/// The agent, and its messages; none if there is no generation. The turn ends when all of its group
/// have dropped it.
pub(super) type Found = (Follower, Option<(Messages, Arc<OwnedSemaphorePermit>)>);

/// Finds paths.
pub(super) struct Finder {
    shared: Arc<Shared>,
    turns: Arc<Semaphore>,
    runtime: Handle,
    /// At most one job an agent.
    waiting: VecDeque<Job>,
}

impl Finder {
    /// `runtime` is one that another thread runs.
    pub(super) fn new(shared: Arc<Shared>, runtime: Handle) -> Self {
        let turns = Arc::new(Semaphore::new(TURNS));
        Self { shared, turns, runtime, waiting: VecDeque::new() }
    }

    /// Finds paths until the queue is closed.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        // Of the calling thread; without it, paths compete with queries.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        loop {
            if self.waiting.is_empty() {
                let Some(job) = jobs.blocking_recv() else { return };
                self.waiting.push_back(job);
            }
            let turn = self.runtime.block_on(Arc::clone(&self.turns).acquire_owned());
            let Ok(turn) = turn else { return };
            while let Ok(job) = jobs.try_recv() {
                self.waiting.push_back(job);
            }
            // Those that have left meanwhile.
            self.waiting.retain(|job| !job.done.is_closed());
            self.serve(Arc::new(turn));
        }
    }

    /// Serves the agent that waits longest, and all of its group.
    fn serve(&mut self, turn: Arc<OwnedSemaphorePermit>) {
        let shared = Arc::clone(&self.shared);
        let number = shared.halves.number();
        // A reader that lasted would keep a generation from being freed.
        let mut reader = shared.reader();
        let Some(generation) = reader.current() else {
            for Job { follower, done } in self.waiting.drain(..) {
                // The agent may have left, here and below.
                let _ = done.send((follower, None));
            }
            return;
        };
        let group = self.next_group(generation);
        let Some(first) = group.first() else { return };
        let lead = first.follower.lead(&shared.halves, generation, number);
        shared.counters.surveys.fetch_add(1, Relaxed);
        for Job { mut follower, done } in group {
            let messages = follower.follow(generation, &lead);
            let _ = done.send((follower, Some((messages, Arc::clone(&turn)))));
        }
    }

    /// Takes the agents out of the queue that wait for the same as its first.
    fn next_group(&mut self, generation: &Generation) -> Vec<Job> {
        let Some(first) = self.waiting.front() else { return Vec::new() };
        let key = first.follower.group(generation);
        let is_of_group = |job: &Job| job.follower.group(generation) == key;
        let (group, rest) = self.waiting.drain(..).partition::<Vec<_>, _>(is_of_group);
        self.waiting.extend(rest);
        group
    }
}

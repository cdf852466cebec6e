//! The thread that finds paths: for one group of agents after the other, those that wait for the
//! same messages.
//!
//! A generation is held while paths are found, not while they are sent. Few groups have changes in
//! memory ([`Turns`]): the next is begun when all agents of an earlier one have read theirs, or its
//! turn is over.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sa_proto::crowd::Share;
use sa_proto::quota::Full;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::follower::{Follower, Messages};
use super::service::Shared;
use super::turns::{Turn, Turns};
use crate::tables::cell::Generation;

/// How soon it is looked again whether agents are served whose share has used up its part.
const RETRY: Duration = Duration::from_millis(100);
/// Added to the priority of the thread: queries come first.
const NICENESS: i32 = 10;

/// An agent whose paths are to be found.
pub(super) struct Job {
    pub(super) follower: Follower,
    /// Whose agent it is.
    pub(super) share: Share,
    /// Whether it has waited for others of its share.
    pub(super) is_held_back: bool,
    pub(super) done: oneshot::Sender<Found>,
}

/// The agent, and its messages; none if there is no generation. The turn ends when all of its group
/// have dropped it.
pub(super) type Found = (Follower, Option<(Messages, Arc<Turn>)>);

/// Finds paths.
pub(super) struct Finder {
    shared: Arc<Shared>,
    turns: Arc<Turns>,
    runtime: Handle,
    /// At most one job an agent.
    waiting: VecDeque<Job>,
}

impl Finder {
    /// `runtime` is one that another thread runs.
    pub(super) fn new(shared: Arc<Shared>, runtime: Handle) -> Self {
        let turns = Turns::new();
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
            while let Ok(job) = jobs.try_recv() {
                self.waiting.push_back(job);
            }
            // Those that have left meanwhile.
            self.waiting.retain(|job| !job.done.is_closed());
            if let Some(turn) = self.next_turn() {
                self.serve(turn);
            } else if !self.waiting.is_empty() && !self.wait(&mut jobs) {
                return;
            }
        }
    }

    /// A turn for the agent that waits longest of those that may lead a group now, which becomes
    /// the first in the queue.
    fn next_turn(&mut self) -> Option<Arc<Turn>> {
        let now = Instant::now();
        for at in 0..self.waiting.len() {
            match self.turns.begin(self.waiting[at].share, now) {
                Ok(turn) => {
                    let first = self.waiting.remove(at).expect("it is in the queue");
                    self.waiting.push_front(first);
                    return Some(turn);
                }
                Err(Full::Share) => {
                    let job = &mut self.waiting[at];
                    if !std::mem::replace(&mut job.is_held_back, true) {
                        self.shared.counters.held_back.fetch_add(1, Relaxed);
                    }
                }
                Err(Full::All) => return None,
            }
        }
        None
    }

    /// Waits for the end of a turn, or another agent; returns `false` if the queue is closed.
    fn wait(&mut self, jobs: &mut mpsc::Receiver<Job>) -> bool {
        let ended = Arc::clone(&self.turns.ended);
        let job = self.runtime.block_on(async {
            tokio::select! {
                () = ended.notified() => None,
                () = sleep(RETRY) => None,
                job = jobs.recv() => Some(job),
            }
        });
        match job {
            Some(None) => return false,
            Some(Some(job)) => self.waiting.push_back(job),
            None => {}
        }
        true
    }

    /// Serves the first agent, and all of its group.
    fn serve(&mut self, turn: Arc<Turn>) {
        let shared = Arc::clone(&self.shared);
        let number = shared.halves.number();
        // A reader that lasted would keep a generation from being freed.
        let mut reader = shared.reader();
        let Some(generation) = reader.current() else {
            for Job { follower, done, .. } in self.waiting.drain(..) {
                // The agent may have left, here and below.
                let _ = done.send((follower, None));
            }
            return;
        };
        let group = self.next_group(generation);
        let Some(first) = group.first() else { return };
        let lead = first.follower.lead(&shared.halves, generation, number);
        shared.counters.surveys.fetch_add(1, Relaxed);
        for Job { mut follower, done, .. } in group {
            let messages = follower.follow(generation, &lead);
            let _ = done.send((follower, Some((messages, Arc::clone(&turn)))));
        }
    }

    /// Takes the agents out of the queue that wait for the same as its first, except for those that
    /// are not served now.
    fn next_group(&mut self, generation: &Generation) -> Vec<Job> {
        let Some(first) = self.waiting.front() else { return Vec::new() };
        let key = first.follower.group(generation);
        let (turns, now) = (Arc::clone(&self.turns), Instant::now());
        let is_of_group =
            |job: &Job| turns.is_served(job.share, now) && job.follower.group(generation) == key;
        let (group, rest) = self.waiting.drain(..).partition::<Vec<_>, _>(is_of_group);
        self.waiting.extend(rest);
        group
    }
}

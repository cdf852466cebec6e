//! Waiting requests in a fixed number of slots.

use std::time::{Duration, Instant};

use ib_mad::transport::Packet;

use super::dedupe::{Hasher, Identity, Known};
use super::fairness::{SourceId, Sources};
use super::links::{Links, List, NONE};
use crate::stats::DropReason;

/// Requests that wait: each once, the newest first, its source in turn.
pub(super) struct Queue {
    packets: Box<[Packet]>,
    notes: Box<[Note]>,
    free: Vec<u16>,
    /// By when they arrived.
    ages: Links,
    by_age: List,
    /// By source.
    of_source: Links,
    sources: Sources,
    known: Known,
    hasher: Hasher,
}

/// State of a waiting request.
#[derive(Clone, Copy, Debug)]
struct Note {
    arrived: Instant,
    source: SourceId,
    /// Hash of its identity, if it has one.
    known_as: Option<u32>,
}

/// A request taken out of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) arrived: Instant,
    pub(super) source: SourceId,
}

impl Queue {
    /// A queue of `places` requests; all memory is taken here.
    pub(super) fn new(places: u16, hasher: Hasher) -> Self {
        let note = Note { arrived: Instant::now(), source: 0, known_as: None };
        Self {
            packets: vec![Packet::default(); usize::from(places) + 1].into_boxed_slice(),
            notes: vec![note; usize::from(places) + 1].into_boxed_slice(),
            free: (1..=places).rev().collect(),
            ages: Links::new(places),
            by_age: List::default(),
            of_source: Links::new(places),
            sources: Sources::new(places),
            known: Known::new(places),
            hasher,
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.packets.len() - 1 - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// The sources with waiting requests.
    pub(super) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Adds a request. It replaces the request that it repeats; if the queue is full, the oldest
    /// request of the source with the most is dropped.
    pub(super) fn file(
        &mut self,
        packet: &Packet,
        source: SourceId,
        now: Instant,
        lost: &mut impl FnMut(&Packet, DropReason),
    ) {
        let identity = Identity::of(packet);
        let known_as = identity.map(|identity| self.hasher.hash(&identity));
        let older = known_as.and_then(|hash| {
            self.known
                .find(hash, |place| Identity::of(&self.packets[usize::from(place)]) == identity)
        });
        if let Some(older) = older {
            self.lose(older, DropReason::Duplicate, lost);
        } else if self.free.is_empty()
            && let Some(victim) = self.sources.to_give_way()
        {
            let is_hog = self.sources.most() > (self.packets.len() - 1) / self.sources.len();
            let reason = if is_hog { DropReason::SourceShare } else { DropReason::QueueFull };
            self.lose(victim, reason, lost);
        }
        let place = self.free.pop().expect("a place was freed above");
        self.packets[usize::from(place)].clone_from(packet);
        self.notes[usize::from(place)] = Note { arrived: now, source, known_as };
        self.ages.push(&mut self.by_age, place);
        self.sources.add(source, &mut self.of_source, place);
        if let Some(hash) = known_as {
            self.known.insert(hash, place);
        }
    }

    /// Takes the next request: the oldest first if all have waited less than `patience`, otherwise
    /// the newest first.
    pub(super) fn take(
        &mut self,
        now: Instant,
        patience: Duration,
        packet: &mut Packet,
    ) -> Option<Taken> {
        let is_late = self.oldest().is_some_and(|at| now.saturating_duration_since(at) > patience);
        let place = self.sources.next(is_late)?;
        let Note { arrived, source, .. } = self.notes[usize::from(place)];
        packet.clone_from(&self.packets[usize::from(place)]);
        self.sources.put_off(source, 0);
        self.remove(place);
        Some(Taken { arrived, source })
    }

    /// Delays the next turn of a source.
    pub(super) fn put_off(&mut self, source: SourceId, rounds: u64) {
        self.sources.put_off(source, rounds);
    }

    /// Drops requests that have waited for longer than `limit`.
    pub(super) fn drop_stale(
        &mut self,
        now: Instant,
        limit: Duration,
        lost: &mut impl FnMut(&Packet, DropReason),
    ) {
        while let Some(arrived) = self.oldest()
            && now.saturating_duration_since(arrived) > limit
        {
            self.lose(self.by_age.oldest, DropReason::Stale, lost);
        }
    }

    /// Drops all but the newest.
    pub(super) fn keep_newest(&mut self, count: usize, lost: &mut impl FnMut(&Packet, DropReason)) {
        while self.len() > count {
            self.lose(self.by_age.oldest, DropReason::Stale, lost);
        }
    }

    fn oldest(&self) -> Option<Instant> {
        match self.by_age.oldest {
            NONE => None,
            place => Some(self.notes[usize::from(place)].arrived),
        }
    }

    fn lose(&mut self, place: u16, reason: DropReason, lost: &mut impl FnMut(&Packet, DropReason)) {
        lost(&self.packets[usize::from(place)], reason);
        self.remove(place);
    }

    fn remove(&mut self, place: u16) {
        let note = self.notes[usize::from(place)];
        self.ages.remove(&mut self.by_age, place);
        self.sources.remove(note.source, &mut self.of_source, place);
        if let Some(hash) = note.known_as {
            self.known.remove(hash, place);
        }
        self.free.push(place);
    }
}

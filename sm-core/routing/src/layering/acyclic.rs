//! Maintains an acyclic graph of dependencies between links.
//!
//! Links are kept in an order in which each precedes all links that depend on it. A dependency that
//! fits the order is added at once. For another, two searches look for a path that would close a
//! cycle, one from each end of the dependency, in alternating steps. As soon as one has visited
//! everything that lies between the ends in the order, the links that it visited are moved past the
//! other end. The cost is at most twice that of the smaller search, whether there is a cycle or not
//! (after Bender, Fineman, Gilbert, Tarjan: "A new approach to incremental cycle detection and
//! related problems", 2015).

use super::channels::Channels;
use super::order::Order;

/// The result of adding a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addition {
    /// The edge already existed.
    Old,
    /// The edge was added.
    New,
    /// The edge would close a cycle, and was not added.
    Refused,
}

impl Addition {
    /// Whether the graph contains the dependency now.
    pub(super) fn is_in(self) -> bool {
        self != Self::Refused
    }
}

/// An acyclic graph of dependencies between links.
#[derive(Debug)]
pub(super) struct Acyclic {
    /// By link: bits of the links that depend on it.
    after: Vec<u64>,
    /// By link: bits of the links that it depends on.
    before: Vec<u64>,
    /// By link, like `after`: dependencies that would have closed a cycle when they were tried.
    /// They are not tried again, even if the cycle has been broken since: that loses a few
    /// dependencies but saves many searches.
    refused: Vec<u64>,
    order: Order,
    /// Search forward from the far end of a new dependency.
    forward: Search,
    /// Search backward from its near end.
    backward: Search,
}

/// A search for reachable links.
#[derive(Debug)]
struct Search {
    /// Links reached.
    links: Vec<u32>,
    /// Number of `links` already expanded.
    looked: usize,
    /// By link: number of the last search that reached it.
    reached: Vec<u32>,
    number: u32,
}

impl Acyclic {
    pub(super) fn new(channels: &Channels) -> Self {
        Self {
            after: vec![0; channels.words()],
            before: vec![0; channels.words()],
            refused: vec![0; channels.words()],
            order: Order::new(channels.count()),
            forward: Search::new(channels.count()),
            backward: Search::new(channels.count()),
        }
    }

    /// Whether the graph has a dependency.
    #[inline]
    pub(super) fn has(&self, channels: &Channels, from: u32, to: u32) -> bool {
        let (word, bit) = channels.after_bit(from, to);
        self.after[word] & bit != 0
    }

    /// Whether a dependency closed a cycle when it was tried.
    #[inline]
    pub(super) fn has_refused(&self, channels: &Channels, from: u32, to: u32) -> bool {
        let (word, bit) = channels.after_bit(from, to);
        self.refused[word] & bit != 0
    }

    /// Adds a dependency: packets from one link continue on another.
    #[inline]
    pub(super) fn add(&mut self, channels: &Channels, from: u32, to: u32) -> Addition {
        let (word, bit) = channels.after_bit(from, to);
        if self.after[word] & bit != 0 {
            return Addition::Old;
        }
        if self.refused[word] & bit != 0 {
            return Addition::Refused;
        }
        let fits = self.order.label(from) < self.order.label(to);
        if !fits && !self.make_room(channels, from, to) {
            self.refused[word] |= bit;
            return Addition::Refused;
        }
        self.after[word] |= bit;
        let (word, bit) = channels.before_bit(from, to);
        self.before[word] |= bit;
        Addition::New
    }

    /// Removes a dependency. The order stays valid.
    pub(super) fn remove(&mut self, channels: &Channels, from: u32, to: u32) {
        let (word, bit) = channels.after_bit(from, to);
        self.after[word] &= !bit;
        let (word, bit) = channels.before_bit(from, to);
        self.before[word] &= !bit;
    }

    /// Moves `from`, which comes after `to`, before it; `false` if `from` is reachable from `to`.
    fn make_room(&mut self, channels: &Channels, from: u32, to: u32) -> bool {
        let Self { after, before, order, forward, backward, .. } = self;
        let (first, last) = (order.label(to), order.label(from));
        forward.begin(to);
        backward.begin(from);
        loop {
            let Some(link) = forward.next() else {
                forward.links.sort_unstable_by_key(|&link| order.label(link));
                order.move_behind(&forward.links, from);
                return true;
            };
            for next in channels.after(after, link) {
                if backward.has_reached(next) {
                    return false;
                }
                if order.label(next) < last {
                    forward.reach(next);
                }
            }
            let Some(link) = backward.next() else {
                backward.links.sort_unstable_by_key(|&link| order.label(link));
                order.move_before(&backward.links, to);
                return true;
            };
            for next in channels.before(before, link) {
                if forward.has_reached(next) {
                    return false;
                }
                if order.label(next) > first {
                    backward.reach(next);
                }
            }
        }
    }
}

impl Search {
    fn new(links: usize) -> Self {
        Self { links: Vec::new(), looked: 0, reached: vec![0; links], number: 0 }
    }

    fn begin(&mut self, link: u32) {
        self.links.clear();
        self.looked = 0;
        self.number += 1;
        self.reach(link);
    }

    #[inline]
    fn reach(&mut self, link: u32) {
        if std::mem::replace(&mut self.reached[link as usize], self.number) != self.number {
            self.links.push(link);
        }
    }

    #[inline]
    fn has_reached(&self, link: u32) -> bool {
        self.reached[link as usize] == self.number
    }

    /// Returns the next link to expand.
    fn next(&mut self) -> Option<u32> {
        let link = self.links.get(self.looked).copied();
        self.looked += 1;
        link
    }
}

//! Decides which source is served next and which one loses a request.
//!
//! Sources take turns in rounds: each is served once per round, and again only after all other
//! waiting sources. A request that costs more than its share delays its source by as many rounds. A
//! source that returns before the end of a round waits for the next one, so that frequent requests
//! gain nothing. When the queue is full, the source with the most waiting requests loses one.
//!
//! Every operation takes constant time, except rounds in which all waiting sources are delayed:
//! those are skipped after one look at each source.

use super::links::{Links, List, NONE};

/// A source as a number: its LID, or something above all LIDs for one that is known by its GID.
pub(super) type SourceId = u16;

/// A source that waits.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    id: SourceId,
    /// Its requests.
    requests: List,
    count: u16,
    /// Whether it is in `later` rather than in `turns`.
    is_later: bool,
}

/// All sources that wait, and when each was served last.
#[derive(Debug)]
pub(super) struct Sources {
    waiting: Box<[Waiting]>,
    free: Vec<u16>,
    /// Where in `waiting` a source is.
    place_of: Box<[u16]>,
    /// The first round in which a source may be served.
    eligible: Box<[u64]>,
    /// Sources to serve in this round, and in a later one.
    links: Links,
    turns: List,
    later: List,
    round: u64,
    /// The last round to which any source is delayed.
    horizon: u64,
    /// Sources with equally many requests, by how many.
    ranks: Links,
    by_count: Box<[List]>,
    most: u16,
}

impl Sources {
    /// For at most `places` requests.
    pub(super) fn new(places: u16) -> Self {
        Self {
            waiting: vec![Waiting::default(); usize::from(places) + 1].into_boxed_slice(),
            free: (1..=places).rev().collect(),
            place_of: vec![NONE; 1 << 16].into_boxed_slice(),
            eligible: vec![0; 1 << 16].into_boxed_slice(),
            links: Links::new(places),
            turns: List::default(),
            later: List::default(),
            round: 0,
            horizon: 0,
            ranks: Links::new(places),
            by_count: vec![List::default(); usize::from(places) + 1].into_boxed_slice(),
            most: 0,
        }
    }

    /// How many sources wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() - 1 - self.free.len()
    }

    /// Requests of the source with the most of them.
    pub(super) fn most(&self) -> usize {
        self.most.into()
    }

    /// Requests of a source.
    #[cfg(test)]
    pub(super) fn count(&self, id: SourceId) -> usize {
        self.waiting[usize::from(self.place_of[usize::from(id)])].count.into()
    }

    /// Adds a request, the newest of its source.
    pub(super) fn add(&mut self, id: SourceId, requests: &mut Links, request: u16) {
        let mut place = self.place_of[usize::from(id)];
        if place == NONE {
            place = self.free.pop().expect("there are at most as many sources as requests");
            self.place_of[usize::from(id)] = place;
            let is_later = self.eligible[usize::from(id)] > self.round;
            self.waiting[usize::from(place)] = Waiting { id, is_later, ..Waiting::default() };
        } else {
            self.leave_turn(place);
        }
        self.enter_turn(place);
        requests.push(&mut self.waiting[usize::from(place)].requests, request);
        self.recount(place, 1);
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, id: SourceId, requests: &mut Links, request: u16) {
        let place = self.place_of[usize::from(id)];
        let waiting = &mut self.waiting[usize::from(place)];
        requests.remove(&mut waiting.requests, request);
        self.recount(place, -1);
        if self.waiting[usize::from(place)].count > 0 {
            return;
        }
        self.leave_turn(place);
        self.place_of[usize::from(id)] = NONE;
        self.free.push(place);
        if self.len() == 0 {
            // No other source waits, so none was delayed.
            self.round = self.horizon;
        }
    }

    /// Returns the request to be served next: with `newest`, the newest request of the source that
    /// has waited least; otherwise the oldest request of the source that has waited longest.
    pub(super) fn next(&mut self, newest: bool) -> Option<u16> {
        if self.turns.is_empty() && !self.begin_round() {
            return None;
        }
        let of = |list: List| if newest { list.newest } else { list.oldest };
        Some(of(self.waiting[usize::from(of(self.turns))].requests))
    }

    /// Delays a served source: to the next round, plus `rounds`.
    pub(super) fn put_off(&mut self, id: SourceId, rounds: u64) {
        let eligible = &mut self.eligible[usize::from(id)];
        *eligible = (*eligible).max(self.round + 1) + rounds;
        self.horizon = self.horizon.max(*eligible);
        let place = self.place_of[usize::from(id)];
        if place != NONE && !self.waiting[usize::from(place)].is_later {
            self.leave_turn(place);
            self.waiting[usize::from(place)].is_later = true;
            self.enter_turn(place);
        }
    }

    /// The request to drop when the queue is full: the oldest of the source with the most.
    pub(super) fn to_give_way(&self) -> Option<u16> {
        let place = self.by_count[usize::from(self.most)].oldest;
        (place != NONE).then(|| self.waiting[usize::from(place)].requests.oldest)
    }

    /// Advances to the next round in which a source may be served; `false` if there is none.
    fn begin_round(&mut self) -> bool {
        let mut place = self.later.oldest;
        let mut first = u64::MAX;
        while place != NONE {
            first = first.min(self.eligible[usize::from(self.waiting[usize::from(place)].id)]);
            if first <= self.round + 1 {
                break;
            }
            place = self.links.newer(place);
        }
        if self.later.is_empty() {
            return false;
        }
        self.round = first.max(self.round + 1);
        let mut place = self.later.oldest;
        while place != NONE {
            let next = self.links.newer(place);
            let id = self.waiting[usize::from(place)].id;
            if self.eligible[usize::from(id)] <= self.round {
                self.leave_turn(place);
                self.waiting[usize::from(place)].is_later = false;
                self.enter_turn(place);
            }
            place = next;
        }
        true
    }

    fn enter_turn(&mut self, place: u16) {
        let is_later = self.waiting[usize::from(place)].is_later;
        let list = if is_later { &mut self.later } else { &mut self.turns };
        self.links.push(list, place);
    }

    fn leave_turn(&mut self, place: u16) {
        let is_later = self.waiting[usize::from(place)].is_later;
        let list = if is_later { &mut self.later } else { &mut self.turns };
        self.links.remove(list, place);
    }

    fn recount(&mut self, place: u16, by: i16) {
        let count = &mut self.waiting[usize::from(place)].count;
        if *count > 0 {
            self.ranks.remove(&mut self.by_count[usize::from(*count)], place);
        }
        *count = count.wrapping_add_signed(by);
        if *count > 0 {
            self.ranks.push(&mut self.by_count[usize::from(*count)], place);
        }
        self.most = self.most.max(*count);
        if self.by_count[usize::from(self.most)].is_empty() {
            self.most = self.most.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        sources: Sources,
        links: Links,
    }

    impl Bench {
        fn new() -> Self {
            Self { sources: Sources::new(64), links: Links::new(64) }
        }

        fn add(&mut self, id: SourceId, request: u16) {
            self.sources.add(id, &mut self.links, request);
        }

        fn serve(&mut self, id_of: impl Fn(u16) -> SourceId, rounds: u64) -> u16 {
            let request = self.sources.next(true).unwrap();
            self.sources.put_off(id_of(request), rounds);
            self.sources.remove(id_of(request), &mut self.links, request);
            request
        }
    }

    #[test]
    fn sources_take_turns_however_much_each_asks() {
        let mut bench = Bench::new();
        (1..=20).for_each(|request| bench.add(7, request));
        (21..=23).for_each(|request| bench.add(request, request));
        let id_of = |request| if request <= 20 { 7 } else { request };
        let order: Vec<u16> = (0..6).map(|_| bench.serve(id_of, 0)).collect();
        assert_eq!(order, [23, 22, 21, 20, 19, 18]);
    }

    /// A source that returns at once is not served more often than sources that wait.
    #[test]
    fn a_source_that_comes_back_waits_for_the_next_round() {
        let mut bench = Bench::new();
        (1..=5).for_each(|request| bench.add(request, request));
        let id_of = |request| if request == 10 { 5 } else { request };
        assert_eq!(bench.serve(id_of, 0), 5);
        bench.add(5, 10);
        let order: Vec<u16> = (0..5).map(|_| bench.serve(id_of, 0)).collect();
        assert_eq!(order, [4, 3, 2, 1, 10]);
    }

    #[test]
    fn what_costs_more_puts_its_source_off_for_longer() {
        let mut bench = Bench::new();
        let id_of = |request| 1 + request % 2;
        (1..=20).for_each(|request| bench.add(id_of(request), request));
        let order: Vec<_> = (0..10)
            .map(|_| {
                let costly = id_of(bench.sources.next(true).unwrap()) == 1;
                id_of(bench.serve(id_of, if costly { 2 } else { 0 }))
            })
            .collect();
        assert_eq!(order.iter().filter(|&&id| id == 1).count(), 3, "{order:?}");
    }

    #[test]
    fn rounds_in_which_all_are_put_off_are_skipped_and_forgotten() {
        let mut bench = Bench::new();
        (1..=3).for_each(|request| bench.add(9, request));
        for request in [3, 2, 1] {
            assert_eq!(bench.serve(|_| 9, 1_000_000), request);
        }
        // It waited alone: no source is owed anything.
        bench.add(9, 1);
        bench.add(8, 2);
        assert_eq!(bench.serve(|request| 10 - request, 0), 2);
        assert_eq!(bench.serve(|request| 10 - request, 0), 1);
        assert_eq!(bench.sources.next(true), None);
    }

    #[test]
    fn the_requester_with_most_requests_gives_way() {
        let mut bench = Bench::new();
        for (request, id) in [(1, 4), (2, 5), (3, 5), (4, 6), (5, 5), (6, 4)] {
            bench.add(id, request);
        }
        let mut given = Vec::new();
        while let Some(request) = bench.sources.to_give_way() {
            let id = [4, 5, 5, 6, 5, 4][usize::from(request) - 1];
            assert_eq!(bench.sources.count(id), bench.sources.most());
            bench.sources.remove(id, &mut bench.links, request);
            given.push(request);
        }
        assert_eq!(given, [2, 1, 3, 4, 6, 5]);
    }
}

//! Which end port asks which responder: sharding by MasterSMLID.
//!
//! Clients are spread over [`Seats`]: a seat is a LID that clients ask, and stays when another port
//! takes that LID over. Each client belongs to the seat with the greatest hash of both (rendezvous
//! hashing), so that as few as can be move when seats come and go; and not all of them move at
//! once. Nothing here knows a LID, a clock or the fabric: port GUIDs go in and come out.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Clients whose seat is gone that are moved in one step: nobody answers them.
pub const ORPHANS_MAX: usize = 8192;
/// Other clients moved in one step: they are answered where they are.
pub const MOVES_MAX: usize = 512;
/// How long a responder may be away before its clients are given to others: it may come back, and
/// clients ask for as long.
pub const GRACE: Duration = Duration::from_secs(2);
/// What decides whether a client takes part at all.
const SHARE_SEED: u64 = 0x5348_4152_4521;

/// What a responder's port is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortUse {
    /// Others use it too: its LID stays.
    #[default]
    Shared,
    /// Nothing but the SA's: its LID may go to another such port, and it may get another.
    Dedicated,
    /// The same, and it waits for another's LID before it is asked anything.
    Spare,
}

/// The port of a responder that is connected and can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its port GUID.
    pub port: Guid,
    /// What it is for.
    pub usage: PortUse,
}

/// A LID that clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// GUID of the port that had it first: what clients are spread by.
    pub id: Guid,
    /// GUID of the port that has it.
    pub port: Guid,
}

/// A LID is to go from one port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// The port that has it.
    pub old: Guid,
    /// The port that is to get it.
    pub spare: Guid,
}

/// All seats.
#[derive(Debug, Default)]
pub struct Seats {
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    seat: Seat,
    usage: PortUse,
    away_since: Option<Instant>,
}

impl Seats {
    /// Takes in who is there. Seats whose responder has been away for [`GRACE`] go, unless
    /// `take_over` allows another port to take the LID: then what is to be done is yielded, again
    /// and again until [`taken_over`](Self::taken_over) or [`give_up`](Self::give_up).
    pub fn follow(
        &mut self,
        now: Instant,
        there: &[Candidate],
        take_over: bool,
    ) -> Option<TakeOver> {
        let mut wanted = None;
        let spare = self.idle_spare(there).filter(|_| take_over);
        self.held.retain_mut(|held| {
            if let Some(candidate) = there.iter().find(|entry| entry.port == held.seat.port) {
                (held.usage, held.away_since) = (candidate.usage, None);
                return true;
            }
            let since = *held.away_since.get_or_insert(now);
            if now.saturating_duration_since(since) < GRACE {
                return true;
            }
            match spare {
                Some(spare) if held.usage != PortUse::Shared => {
                    // One after the other.
                    wanted.get_or_insert(TakeOver { old: held.seat.port, spare });
                    true
                }
                _ => false,
            }
        });
        for candidate in there.iter().filter(|candidate| candidate.usage != PortUse::Spare) {
            let is_known = |held: &Held| [held.seat.id, held.seat.port].contains(&candidate.port);
            if !self.held.iter().any(is_known) {
                let seat = Seat { id: candidate.port, port: candidate.port };
                self.held.push(Held { seat, usage: candidate.usage, away_since: None });
            }
        }
        self.held.sort_unstable_by_key(|held| held.seat.id);
        wanted
    }

    /// A dedicated port that holds no seat: a spare, or one whose LID another took over.
    fn idle_spare(&self, there: &[Candidate]) -> Option<Guid> {
        let idle = |candidate: &&Candidate| {
            let holds = self.held.iter().any(|held| held.seat.port == candidate.port);
            let names = self.held.iter().any(|held| held.seat.id == candidate.port);
            match candidate.usage {
                PortUse::Shared => false,
                PortUse::Dedicated => !holds && names,
                PortUse::Spare => !holds,
            }
        };
        there.iter().find(idle).map(|candidate| candidate.port)
    }

    /// The LID went to the other port.
    pub fn taken_over(&mut self, done: TakeOver) {
        if let Some(held) = self.held.iter_mut().find(|held| held.seat.port == done.old) {
            held.seat.port = done.spare;
            held.away_since = None;
        }
    }

    /// It could not be taken over: its clients go to other seats.
    pub fn give_up(&mut self, failed: TakeOver) {
        self.held.retain(|held| held.seat.port != failed.old);
    }

    /// All of them, ascending by identity.
    pub fn list(&self) -> Vec<Seat> {
        self.held.iter().map(|held| held.seat).collect()
    }
}

/// Which client asks which seat.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    assigned: BTreeMap<Guid, Guid>,
}

impl Spread {
    /// The seat of a client; `None` if it asks the SM's own port.
    pub fn seat_of(&self, client: Guid) -> Option<Guid> {
        self.assigned.get(&client).copied()
    }

    /// Clients that ask a seat.
    pub fn len(&self) -> usize {
        self.assigned.len()
    }

    /// Whether all ask the SM's own port.
    pub fn is_empty(&self) -> bool {
        self.assigned.is_empty()
    }

    /// Has everybody ask the SM's own port.
    pub fn clear(&mut self) {
        self.assigned.clear();
    }

    /// Forgets where a client was moved, so that it is moved again.
    pub fn forget(&mut self, client: Guid) {
        self.assigned.remove(&client);
    }

    /// Gives a client that was told nothing yet its seat.
    pub fn admit(&mut self, client: Guid, seats: &[Seat], share: u8) {
        if !self.assigned.contains_key(&client)
            && let Some(seat) = wanted(client, seats, share)
        {
            self.assigned.insert(client, seat);
        }
    }

    /// Moves clients towards where they belong, `share` percent of them to seats: at most
    /// [`ORPHANS_MAX`] whose seat is gone and [`MOVES_MAX`] others. Yields who moved, ascending.
    pub fn advance(&mut self, clients: &[Guid], seats: &[Seat], share: u8) -> Vec<Guid> {
        let (mut orphans, mut moves) = (ORPHANS_MAX, MOVES_MAX);
        let mut moved = Vec::new();
        let mut next = BTreeMap::new();
        for &client in clients {
            let is = self.assigned.get(&client).copied();
            let ought = wanted(client, seats, share);
            let is_orphan = is.is_some_and(|id| !seats.iter().any(|seat| seat.id == id));
            let left = if is_orphan { &mut orphans } else { &mut moves };
            let now = if is != ought && *left > 0 {
                *left -= 1;
                moved.push(client);
                ought
            } else {
                is
            };
            now.map(|id| next.insert(client, id));
        }
        self.assigned = next;
        moved
    }
}

/// Where a client belongs.
fn wanted(client: Guid, seats: &[Seat], share: u8) -> Option<Guid> {
    let key = client.0.to_be_bytes();
    if xxh3_64_with_seed(&key, SHARE_SEED) % 100 >= u64::from(share) {
        return None;
    }
    let score = |seat: &&Seat| (xxh3_64_with_seed(&key, seat.id.0), seat.id);
    seats.iter().max_by_key(score).map(|seat| seat.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seats(ids: &[u64]) -> Vec<Seat> {
        ids.iter().map(|&id| Seat { id: Guid(id), port: Guid(id) }).collect()
    }

    fn clients(count: u64) -> Vec<Guid> {
        (0..count).map(|number| Guid(0xEC0D_9A03_0000_0000 + 16 * number)).collect()
    }

    /// Advances until nobody moves any more.
    fn settle(spread: &mut Spread, clients: &[Guid], seats: &[Seat], share: u8) -> usize {
        let mut total = 0;
        loop {
            match spread.advance(clients, seats, share).len() {
                0 => return total,
                moved => total += moved,
            }
        }
    }

    proptest! {
        /// Who asks a seat that stays goes nowhere but to a seat that came.
        #[test]
        fn clients_move_only_from_seats_that_went_or_to_seats_that_came(
            before in proptest::collection::btree_set(1u64..40, 0..8),
            after in proptest::collection::btree_set(1u64..40, 0..8),
            share in 0u8..=100,
        ) {
            let list = |ids: &std::collections::BTreeSet<u64>| {
                seats(&ids.iter().copied().collect::<Vec<_>>())
            };
            let (clients, mut spread) = (clients(700), Spread::default());
            settle(&mut spread, &clients, &list(&before), share);
            let earlier = spread.clone();
            let moved = settle(&mut spread, &clients, &list(&after), share);
            let mut changed = 0;
            for &client in &clients {
                let (was, is) = (earlier.seat_of(client), spread.seat_of(client));
                if was != is {
                    changed += 1;
                    let left = was.is_some_and(|id| !after.contains(&id.0));
                    let joined = is.is_some_and(|id| !before.contains(&id.0));
                    prop_assert!(left || joined, "{was:?} to {is:?}");
                }
            }
            prop_assert_eq!(moved, changed, "nobody moves twice");
        }
    }

    #[test]
    fn seats_get_equal_shares_and_the_sm_what_is_left() {
        let (clients, mut spread) = (clients(4000), Spread::default());
        settle(&mut spread, &clients, &seats(&[7, 8, 9]), 75);
        let count = |id| clients.iter().filter(|c| spread.seat_of(**c) == id).count();
        for id in [7, 8, 9] {
            assert!((870..1130).contains(&count(Some(Guid(id)))), "{}", count(Some(Guid(id))));
        }
        assert!((870..1130).contains(&count(None)));
    }

    #[test]
    fn moves_of_one_step_are_bounded_and_orphans_go_first() {
        let (clients, mut spread) = (clients(4000), Spread::default());
        assert_eq!(spread.advance(&clients, &seats(&[7]), 100).len(), MOVES_MAX);
        settle(&mut spread, &clients, &seats(&[7]), 100);
        let moved = spread.advance(&clients, &seats(&[8]), 100);
        assert_eq!(moved.len(), 4000, "nobody answers them");
    }

    #[test]
    fn a_port_that_is_new_is_given_its_seat_and_one_that_went_is_forgotten() {
        let (clients, mut spread) = (clients(3), Spread::default());
        spread.admit(clients[0], &seats(&[7]), 100);
        assert_eq!(spread.seat_of(clients[0]), Some(Guid(7)));
        assert_eq!(spread.advance(&clients[1..], &seats(&[7]), 100), clients[1..]);
        assert_eq!((spread.seat_of(clients[0]), spread.len()), (None, 2));
    }

    fn candidate(port: u64, usage: PortUse) -> Candidate {
        Candidate { port: Guid(port), usage }
    }

    #[test]
    fn a_responder_may_be_away_for_a_moment() {
        let (start, mut held) = (Instant::now(), Seats::default());
        let both = [candidate(1, PortUse::Shared), candidate(2, PortUse::Shared)];
        assert_eq!(held.follow(start, &both, true), None);
        assert_eq!(held.list(), seats(&[1, 2]));
        held.follow(start + GRACE, &both[..1], true);
        held.follow(start + GRACE + GRACE / 2, &both[..1], true);
        assert_eq!(held.list(), seats(&[1, 2]));
        held.follow(start + GRACE * 2, &both, true);
        held.follow(start + GRACE * 3, &both[..1], true);
        assert_eq!(held.list(), seats(&[1, 2]), "time away counts anew");
        held.follow(start + GRACE * 4, &both[..1], true);
        assert_eq!(held.list(), seats(&[1]));
    }

    #[test]
    fn a_spare_takes_over_from_a_dedicated_port_and_the_seat_stays() {
        let (start, mut held) = (Instant::now(), Seats::default());
        let there = [
            candidate(1, PortUse::Dedicated),
            candidate(2, PortUse::Shared),
            candidate(3, PortUse::Spare),
        ];
        held.follow(start, &there, true);
        assert_eq!(held.list(), seats(&[1, 2]), "a spare is asked nothing");
        held.follow(start, &there[1..], true);
        let wanted = TakeOver { old: Guid(1), spare: Guid(3) };
        assert_eq!(held.follow(start + GRACE, &there[1..], true), Some(wanted));
        assert_eq!(held.list(), seats(&[1, 2]), "until it is done, or has failed");
        held.taken_over(wanted);
        assert_eq!(held.list()[0], Seat { id: Guid(1), port: Guid(3) });

        // The old one comes back and is the spare now.
        assert_eq!(held.follow(start + GRACE, &there, true), None);
        assert_eq!(held.list().len(), 2);
        held.follow(start + GRACE, &there[..2], true);
        let back = TakeOver { old: Guid(3), spare: Guid(1) };
        assert_eq!(held.follow(start + GRACE * 2, &there[..2], true), Some(back));
        held.give_up(back);
        assert_eq!(held.list(), seats(&[2]));
    }

    #[test]
    fn without_leave_or_a_spare_clients_go_elsewhere() {
        let start = Instant::now();
        for (usage, spare, take_over) in [
            (PortUse::Shared, true, true),
            (PortUse::Dedicated, false, true),
            (PortUse::Dedicated, true, false),
        ] {
            let mut held = Seats::default();
            let there = [candidate(1, usage), candidate(3, PortUse::Spare)];
            held.follow(start, &there, take_over);
            let rest = if spare { &there[1..] } else { &[] };
            held.follow(start, rest, take_over);
            assert_eq!(held.follow(start + GRACE, rest, take_over), None);
            assert_eq!(held.list(), []);
        }
    }
}

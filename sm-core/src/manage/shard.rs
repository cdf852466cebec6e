//! Assigns clients to responders: sharding by MasterSMLID.
//!
//! Clients are distributed over [`SaLids`]: LIDs of responders' ports, which clients query instead
//! of the SM's. An SA LID stays the same when another port takes it over. Each client is assigned
//! to the SA LID with the greatest hash of both (rendezvous hashing), so that a minimum of clients
//! moves when SA LIDs are added or removed, and not all of them at once. This module works on port
//! GUIDs only, without the LIDs themselves, a clock or the fabric.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum number of clients without an SA LID moved in one step: no responder serves them.
pub const ORPHANS_MAX: usize = 8192;
/// Maximum number of other clients moved in one step: their current responder still serves them.
pub const MOVES_MAX: usize = 512;
/// How long a responder may be absent before its clients move to others: it may come back, and
/// clients retry for that long.
pub const GRACE: Duration = Duration::from_secs(2);
/// Hash seed that selects the clients that take part (`share` percent).
const SHARE_SEED: u64 = 0x5348_4152_4521;

/// How a responder's port is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortUse {
    /// Other programs use it, too: its LID must not move.
    #[default]
    Shared,
    /// Only the SA uses it: its LID may move to another such port, and it may get another LID.
    Dedicated,
    /// Like dedicated, but it serves no clients until it takes over another port's LID.
    Spare,
}

/// The port of a connected responder that can serve clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its port GUID.
    pub port: Guid,
    /// How it is used.
    pub usage: PortUse,
}

/// A LID that serves SA queries, by the ports that had it first and have it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaLid {
    /// GUID of the port that had the LID first; input of the hash.
    pub id: Guid,
    /// GUID of the port that has the LID now.
    pub port: Guid,
}

/// A LID takeover to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// The port that has the LID.
    pub old: Guid,
    /// The port that gets the LID.
    pub spare: Guid,
}

/// All SA LIDs.
#[derive(Debug, Default)]
pub struct SaLids {
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    sa_lid: SaLid,
    usage: PortUse,
    away_since: Option<Instant>,
}

impl SaLids {
    /// Updates the SA LIDs to the connected responders. SA LIDs whose responder was absent for
    /// [`GRACE`] are removed, unless `take_over` allows another port to take over the LID: then the
    /// takeover is returned, again at every call until [`taken_over`](Self::taken_over) or
    /// [`give_up`](Self::give_up).
    pub fn follow(
        &mut self,
        now: Instant,
        there: &[Candidate],
        take_over: bool,
    ) -> Option<TakeOver> {
        let mut wanted = None;
        let spare = self.idle_spare(there).filter(|_| take_over);
        self.held.retain_mut(|held| {
            if let Some(candidate) = there.iter().find(|entry| entry.port == held.sa_lid.port) {
                (held.usage, held.away_since) = (candidate.usage, None);
                return true;
            }
            let since = *held.away_since.get_or_insert(now);
            if now.saturating_duration_since(since) < GRACE {
                return true;
            }
            match spare {
                Some(spare) if held.usage != PortUse::Shared => {
                    // One takeover at a time.
                    wanted.get_or_insert(TakeOver { old: held.sa_lid.port, spare });
                    true
                }
                _ => false,
            }
        });
        for candidate in there.iter().filter(|candidate| candidate.usage != PortUse::Spare) {
            let is_known =
                |held: &Held| [held.sa_lid.id, held.sa_lid.port].contains(&candidate.port);
            if !self.held.iter().any(is_known) {
                let sa_lid = SaLid { id: candidate.port, port: candidate.port };
                self.held.push(Held { sa_lid, usage: candidate.usage, away_since: None });
            }
        }
        self.held.sort_unstable_by_key(|held| held.sa_lid.id);
        wanted
    }

    /// A dedicated port that has no SA LID: a spare, or one whose LID another took over.
    fn idle_spare(&self, there: &[Candidate]) -> Option<Guid> {
        let idle = |candidate: &&Candidate| {
            let holds = self.held.iter().any(|held| held.sa_lid.port == candidate.port);
            let names = self.held.iter().any(|held| held.sa_lid.id == candidate.port);
            match candidate.usage {
                PortUse::Shared => false,
                PortUse::Dedicated => !holds && names,
                PortUse::Spare => !holds,
            }
        };
        there.iter().find(idle).map(|candidate| candidate.port)
    }

    /// The takeover succeeded.
    pub fn taken_over(&mut self, done: TakeOver) {
        if let Some(held) = self.held.iter_mut().find(|held| held.sa_lid.port == done.old) {
            held.sa_lid.port = done.spare;
            held.away_since = None;
        }
    }

    /// The takeover failed: its clients move to other SA LIDs.
    pub fn give_up(&mut self, failed: TakeOver) {
        self.held.retain(|held| held.sa_lid.port != failed.old);
    }

    /// All SA LIDs, ascending by `id`.
    pub fn list(&self) -> Vec<SaLid> {
        self.held.iter().map(|held| held.sa_lid).collect()
    }
}

/// The assignment of clients to SA LIDs.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    assigned: BTreeMap<Guid, Guid>,
}

impl Spread {
    /// The SA LID of a client; `None` if the SM's own port serves it.
    pub fn sa_lid_of(&self, client: Guid) -> Option<Guid> {
        self.assigned.get(&client).copied()
    }

    /// Number of clients assigned to an SA LID.
    pub fn len(&self) -> usize {
        self.assigned.len()
    }

    /// Whether the SM's own port serves all clients.
    pub fn is_empty(&self) -> bool {
        self.assigned.is_empty()
    }

    /// Assigns all clients to the SM's own port.
    pub fn clear(&mut self) {
        self.assigned.clear();
    }

    /// Discards a client's assignment, so that it is assigned again.
    pub fn forget(&mut self, client: Guid) {
        self.assigned.remove(&client);
    }

    /// Assigns a client that has no assignment yet; `sa_lids` can serve it.
    pub fn admit(&mut self, client: Guid, sa_lids: &[SaLid], share: u8) {
        if !self.assigned.contains_key(&client)
            && let Some(sa_lid) = wanted(client, sa_lids, share)
        {
            self.assigned.insert(client, sa_lid);
        }
    }

    /// Moves clients, each with the SA LIDs that can serve it, towards the wanted ones of these,
    /// `share` percent of them to SA LIDs: at most [`ORPHANS_MAX`] whose SA LID is gone or cannot
    /// serve them, and [`MOVES_MAX`] others. Returns the moved clients, ascending.
    pub fn advance(&mut self, clients: &[(Guid, &[SaLid])], share: u8) -> Vec<Guid> {
        let (mut orphans, mut moves) = (ORPHANS_MAX, MOVES_MAX);
        let mut moved = Vec::new();
        let mut next = BTreeMap::new();
        for &(client, sa_lids) in clients {
            let is = self.assigned.get(&client).copied();
            let ought = wanted(client, sa_lids, share);
            let is_orphan = is.is_some_and(|id| !sa_lids.iter().any(|sa_lid| sa_lid.id == id));
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

/// The SA LID that a client should have; `None` for the SM's own port.
fn wanted(client: Guid, sa_lids: &[SaLid], share: u8) -> Option<Guid> {
    let key = client.0.to_be_bytes();
    if xxh3_64_with_seed(&key, SHARE_SEED) % 100 >= u64::from(share) {
        return None;
    }
    let score = |sa_lid: &&SaLid| (xxh3_64_with_seed(&key, sa_lid.id.0), sa_lid.id);
    sa_lids.iter().max_by_key(score).map(|sa_lid| sa_lid.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sa_lids(ids: &[u64]) -> Vec<SaLid> {
        ids.iter().map(|&id| SaLid { id: Guid(id), port: Guid(id) }).collect()
    }

    fn clients(count: u64) -> Vec<Guid> {
        (0..count).map(|number| Guid(0xEC0D_9A03_0000_0000 + 16 * number)).collect()
    }

    fn advance(spread: &mut Spread, clients: &[Guid], all: &[SaLid], share: u8) -> Vec<Guid> {
        let clients: Vec<_> = clients.iter().map(|&client| (client, all)).collect();
        spread.advance(&clients, share)
    }

    /// Advances until no client moves.
    fn settle(spread: &mut Spread, clients: &[Guid], sa_lids: &[SaLid], share: u8) -> usize {
        let mut total = 0;
        loop {
            match advance(spread, clients, sa_lids, share).len() {
                0 => return total,
                moved => total += moved,
            }
        }
    }

    proptest! {
        /// A client moves only to a new SA LID, as long as its own is valid.
        #[test]
        fn clients_move_only_from_removed_or_to_added_sa_lids(
            before in proptest::collection::btree_set(1u64..40, 0..8),
            after in proptest::collection::btree_set(1u64..40, 0..8),
            share in 0u8..=100,
        ) {
            let list = |ids: &std::collections::BTreeSet<u64>| {
                sa_lids(&ids.iter().copied().collect::<Vec<_>>())
            };
            let (clients, mut spread) = (clients(700), Spread::default());
            settle(&mut spread, &clients, &list(&before), share);
            let earlier = spread.clone();
            let moved = settle(&mut spread, &clients, &list(&after), share);
            let mut changed = 0;
            for &client in &clients {
                let (was, is) = (earlier.sa_lid_of(client), spread.sa_lid_of(client));
                if was != is {
                    changed += 1;
                    let left = was.is_some_and(|id| !after.contains(&id.0));
                    let joined = is.is_some_and(|id| !before.contains(&id.0));
                    prop_assert!(left || joined, "{was:?} to {is:?}");
                }
            }
            prop_assert_eq!(moved, changed, "no client moves twice");
        }
    }

    #[test]
    fn sa_lids_get_equal_shares_and_the_sm_the_rest() {
        let (clients, mut spread) = (clients(4000), Spread::default());
        settle(&mut spread, &clients, &sa_lids(&[7, 8, 9]), 75);
        let count = |id| clients.iter().filter(|c| spread.sa_lid_of(**c) == id).count();
        for id in [7, 8, 9] {
            assert!((870..1130).contains(&count(Some(Guid(id)))), "{}", count(Some(Guid(id))));
        }
        assert!((870..1130).contains(&count(None)));
    }

    #[test]
    fn moves_of_one_step_are_bounded_and_orphans_go_first() {
        let (clients, mut spread) = (clients(4000), Spread::default());
        assert_eq!(advance(&mut spread, &clients, &sa_lids(&[7]), 100).len(), MOVES_MAX);
        settle(&mut spread, &clients, &sa_lids(&[7]), 100);
        let moved = advance(&mut spread, &clients, &sa_lids(&[8]), 100);
        assert_eq!(moved.len(), 4000, "no responder answers them");
    }

    #[test]
    fn a_new_port_is_assigned_and_a_missing_one_forgotten() {
        let (clients, mut spread) = (clients(3), Spread::default());
        spread.admit(clients[0], &sa_lids(&[7]), 100);
        assert_eq!(spread.sa_lid_of(clients[0]), Some(Guid(7)));
        assert_eq!(advance(&mut spread, &clients[1..], &sa_lids(&[7]), 100), clients[1..]);
        assert_eq!((spread.sa_lid_of(clients[0]), spread.len()), (None, 2));
    }

    #[test]
    fn a_client_that_its_sa_lid_cannot_serve_any_more_is_moved_as_if_that_were_gone() {
        let (clients, mut spread) = (clients(4000), Spread::default());
        let both = sa_lids(&[7, 8]);
        settle(&mut spread, &clients, &both, 100);
        let (at_7, at_8): (Vec<Guid>, Vec<Guid>) =
            clients.iter().partition(|client| spread.sa_lid_of(**client) == Some(Guid(7)));
        assert!(at_7.len() > MOVES_MAX);
        let odd = |client: Guid| client.0 / 16 % 2 == 1;
        let choices: Vec<(Guid, &[SaLid])> =
            clients.iter().map(|&c| (c, if odd(c) { &both[1..] } else { &both[..] })).collect();
        let moved = spread.advance(&choices, 100);
        assert_eq!(moved, at_7.into_iter().filter(|c| odd(*c)).collect::<Vec<_>>());
        assert!(moved.iter().chain(&at_8).all(|c| spread.sa_lid_of(*c) == Some(Guid(8))));
        // None can serve them: they go back to the SM.
        let none: Vec<(Guid, &[SaLid])> = moved.iter().map(|&c| (c, &[][..])).collect();
        spread.advance(&none, 100);
        assert!(moved.iter().all(|c| spread.sa_lid_of(*c).is_none()));
    }

    fn candidate(port: u64, usage: PortUse) -> Candidate {
        Candidate { port: Guid(port), usage }
    }

    #[test]
    fn a_responder_may_be_away_for_a_moment() {
        let (start, mut held) = (Instant::now(), SaLids::default());
        let both = [candidate(1, PortUse::Shared), candidate(2, PortUse::Shared)];
        assert_eq!(held.follow(start, &both, true), None);
        assert_eq!(held.list(), sa_lids(&[1, 2]));
        held.follow(start + GRACE, &both[..1], true);
        held.follow(start + GRACE + GRACE / 2, &both[..1], true);
        assert_eq!(held.list(), sa_lids(&[1, 2]));
        held.follow(start + GRACE * 2, &both, true);
        held.follow(start + GRACE * 3, &both[..1], true);
        assert_eq!(held.list(), sa_lids(&[1, 2]), "the absence is counted from the start");
        held.follow(start + GRACE * 4, &both[..1], true);
        assert_eq!(held.list(), sa_lids(&[1]));
    }

    #[test]
    fn a_spare_takes_over_the_sa_lid_of_a_dedicated_port() {
        let (start, mut held) = (Instant::now(), SaLids::default());
        let there = [
            candidate(1, PortUse::Dedicated),
            candidate(2, PortUse::Shared),
            candidate(3, PortUse::Spare),
        ];
        held.follow(start, &there, true);
        assert_eq!(held.list(), sa_lids(&[1, 2]), "a spare is asked nothing");
        held.follow(start, &there[1..], true);
        let wanted = TakeOver { old: Guid(1), spare: Guid(3) };
        assert_eq!(held.follow(start + GRACE, &there[1..], true), Some(wanted));
        assert_eq!(held.list(), sa_lids(&[1, 2]), "until it is done, or has failed");
        held.taken_over(wanted);
        assert_eq!(held.list()[0], SaLid { id: Guid(1), port: Guid(3) });

        // The old port comes back and is the spare now.
        assert_eq!(held.follow(start + GRACE, &there, true), None);
        assert_eq!(held.list().len(), 2);
        held.follow(start + GRACE, &there[..2], true);
        let back = TakeOver { old: Guid(3), spare: Guid(1) };
        assert_eq!(held.follow(start + GRACE * 2, &there[..2], true), Some(back));
        held.give_up(back);
        assert_eq!(held.list(), sa_lids(&[2]));
    }

    #[test]
    fn without_leave_or_a_spare_clients_go_elsewhere() {
        let start = Instant::now();
        for (usage, spare, take_over) in [
            (PortUse::Shared, true, true),
            (PortUse::Dedicated, false, true),
            (PortUse::Dedicated, true, false),
        ] {
            let mut held = SaLids::default();
            let there = [candidate(1, usage), candidate(3, PortUse::Spare)];
            held.follow(start, &there, take_over);
            let rest = if spare { &there[1..] } else { &[] };
            held.follow(start, rest, take_over);
            assert_eq!(held.follow(start + GRACE, rest, take_over), None);
            assert_eq!(held.list(), []);
        }
    }
}

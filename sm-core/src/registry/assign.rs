//! Which responder sends the reports of a subscription.
//!
//! All subscriptions of a port go to one responder, chosen by rendezvous hashing, so that few move
//! when responders come and go.

use std::sync::Arc;

use ib_mad::types::Gid;
use sa_proto::snapshot::Subscription;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Core;

/// The responder of a subscriber; 0 if there is none.
fn responder_of(subscriber: Gid, responders: &[u64]) -> u64 {
    let weight = |&id: &u64| (xxh3_64_with_seed(&subscriber.0[8..], id), id);
    responders.iter().copied().max_by_key(weight).unwrap_or(0)
}

/// Assigns all subscriptions.
pub(super) fn all(core: &mut Core) {
    let rows: Vec<_> = core.subscriptions.rows().iter().cloned().collect();
    assign(core, rows);
}

/// Assigns those that changed since changes were last taken.
pub(super) fn changed(core: &mut Core) {
    let rows: Vec<_> = core.subscriptions.changed().cloned().collect();
    assign(core, rows);
}

fn assign(core: &mut Core, rows: Vec<Arc<Subscription>>) {
    for row in rows {
        let responder = responder_of(row.rid.subscriber_gid, &core.responders);
        if row.responder != responder {
            core.subscriptions.put(Subscription { responder, ..(*row).clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;

    use super::*;

    fn spread(responders: &[u64]) -> Vec<u64> {
        (0..1_000).map(|n| responder_of(Gid::new(1, Guid(n)), responders)).collect()
    }

    #[test]
    fn subscribers_spread_and_few_move_when_a_responder_leaves() {
        let (three, two) = (spread(&[7, 8, 9]), spread(&[7, 9]));
        for id in [7, 8, 9] {
            let share = three.iter().filter(|&&owner| owner == id).count();
            assert!((250..420).contains(&share), "{id} has {share}");
        }
        let moved = three.iter().zip(&two).filter(|(before, after)| before != after);
        assert!(moved.clone().all(|(before, _)| *before == 8));
        assert_eq!(moved.count(), three.iter().filter(|&&owner| owner == 8).count());
    }

    #[test]
    fn without_responders_nobody_reports() {
        assert_eq!(responder_of(Gid::ZERO, &[]), 0);
    }
}

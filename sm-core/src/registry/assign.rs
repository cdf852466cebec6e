//! Assigns each subscription to the responder that sends its reports.
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

/// Assigns the subscriptions that changed since changes were last taken.
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
    use std::collections::{BTreeMap, BTreeSet};

    use ib_mad::types::{Guid, Lid, Qpn, SUBNET_PREFIX_DEFAULT};
    use ib_mad::wire::attribute::{InformInfo, TrapNumber};
    use ib_mad::wire::mad::{AttributeId, Method, Status};
    use ib_mad::wire::sa::ComponentMask;
    use sa_proto::snapshot::SubscriptionRid;

    use super::*;
    use crate::registry::testing::{NOW_S, port, request};
    use crate::registry::{EndPort, Ports, Registry};

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
    fn without_responders_no_reports_are_sent() {
        assert_eq!(responder_of(Gid::ZERO, &[]), 0);
    }

    /// 64 ports with two subscriptions each.
    fn subscribed() -> Registry {
        let all = (1..=64)
            .map(|n| EndPort { guid: Guid(n), lid: Lid(n as u16), ..port(1, &[0xFFFF]) })
            .collect();
        let ports = Ports::new(SUBNET_PREFIX_DEFAULT, Guid(1), all);
        let mut registry = Registry::default();
        registry.set_responders(&[30, 10, 20]);
        for (slid, trap) in (1..=64).flat_map(|slid| [(slid, 64), (slid, 65)]) {
            let mut info = [0; 36];
            InformInfo::new(&mut info[..])
                .unwrap()
                .set_lid_range_begin(Lid::PERMISSIVE)
                .set_is_generic(1)
                .set_subscribe(1)
                .set_trap_number(TrapNumber(trap))
                .set_qpn(Qpn::GSI);
            let none = ComponentMask::NONE;
            let set = request(slid, Method::SET, AttributeId::INFORM_INFO, none, &info);
            assert_eq!(registry.write(NOW_S, &ports, &set).status, Status::OK);
        }
        registry.take_changes();
        registry
    }

    fn responders(registry: &Registry) -> BTreeMap<SubscriptionRid, u64> {
        registry.plane().subscriptions.iter().map(|row| (row.rid, row.responder)).collect()
    }

    #[test]
    fn a_subscriber_has_one_responder_for_all_its_subscriptions() {
        let all = responders(&subscribed());
        assert_eq!(all.values().collect::<BTreeSet<_>>(), [&10, &20, &30].into());
        for (rid, responder) in &all {
            let first = SubscriptionRid { enumeration: 0, ..*rid };
            assert_eq!(all[&first], *responder);
        }
    }

    #[test]
    fn subscribers_keep_their_responder_when_others_come_and_go() {
        let mut registry = subscribed();
        let three = responders(&registry);
        registry.set_responders(&[10, 30]);
        let two = responders(&registry);
        assert!(three.iter().all(|(rid, was)| *was == 20 || two[rid] == *was));
        assert!(two.values().all(|responder| [10, 30].contains(responder)));
        registry.set_responders(&[10, 20, 30]);
        assert_eq!(responders(&registry), three);
        let sequence = registry.sequence();
        registry.set_responders(&[20, 10, 30]);
        assert_eq!(registry.sequence(), sequence, "nothing changed");
        registry.set_responders(&[]);
        assert!(responders(&registry).values().all(|responder| *responder == 0));
    }

    #[test]
    fn restored_subscriptions_keep_their_responders_until_it_is_known_who_is_there() {
        let registry = subscribed();
        let three = responders(&registry);
        let mut restored = Registry::restore(&registry.plane(), []);
        restored.take_changes();
        assert_eq!(responders(&restored), three);
        restored.set_responders(&[10, 20, 30]);
        assert_eq!(responders(&restored), three);
    }
}

//! Invariants under any sequence of requests: a restored registry equals the stored one, leases are
//! kept, and only their owners change records.

mod repeats;

use ib_mad::types::{Gid, Guid, Lid, PKey, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{InformInfo, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::{GuidInfoRecord, JoinState, McMemberRecord, ServiceRecord, mc_member};
use ib_mad::wire::sa::{ComponentMask, attribute};
use proptest::collection::vec;
use proptest::prelude::*;

use super::testing::{GUIDS, NOW_S, gid, ports, request};
use super::{Ports, Registry, Request};

/// An action of a client or a change of the fabric.
#[derive(Clone, Debug)]
enum Step {
    Service {
        slid: u16,
        owner: u16,
        id: u64,
        lease: u32,
        key: u8,
        delete: bool,
    },
    Subscription {
        slid: u16,
        trap: u16,
        subscribe: u8,
    },
    Alias {
        slid: u16,
        of: u16,
        entry: u8,
        guid: u64,
        delete: bool,
    },
    /// The port with LID `slid` has that with LID `of` join or leave a group.
    Member {
        slid: u16,
        of: u16,
        group: u8,
        state: u8,
        delete: bool,
    },
    Time(u64),
    /// Repeats the last request with its TransactionID.
    Repeat,
    /// Ports with these LIDs, and no others.
    Fabric(Vec<u16>),
}

fn step() -> impl Strategy<Value = Step> {
    let lid = 1..=4_u16;
    let service = (lid.clone(), lid.clone(), 0..3_u64, 0..12_u32, 0..3_u8, any::<bool>());
    let subscription = (lid.clone(), prop_oneof![62..66_u16, 256..258_u16], 0..=1_u8);
    let alias = (lid.clone(), lid.clone(), 1..4_u8, 0..4_u64, any::<bool>());
    let member = (lid.clone(), lid.clone(), 0..3_u8, 1..9_u8, any::<bool>());
    prop_oneof![
        6 => service.prop_map(|(slid, owner, id, lease, key, delete)| {
            // 11 stands for a lease that never expires.
            let lease = if lease == 11 { u32::MAX } else { lease };
            Step::Service { slid, owner, id, lease, key, delete }
        }),
        4 => subscription.prop_map(|(slid, trap, subscribe)| {
            Step::Subscription { slid, trap, subscribe }
        }),
        4 => alias.prop_map(|(slid, of, entry, guid, delete)| {
            Step::Alias { slid, of, entry, guid, delete }
        }),
        6 => member.prop_map(|(slid, of, group, state, delete)| {
            Step::Member { slid, of, group, state, delete }
        }),
        2 => Just(Step::Repeat),
        2 => (0..5_u64).prop_map(Step::Time),
        1 => proptest::sample::subsequence(vec![1, 2, 3, 4], 2..=4).prop_map(Step::Fabric),
    ]
}

fn method(delete: bool) -> Method {
    if delete { Method::DELETE } else { Method::SET }
}

/// The request that a step sends; `None` if the step is something else.
fn asked(step: &Step) -> Option<Request> {
    Some(match *step {
        Step::Service { slid, owner, id, lease, key, delete } => {
            let mut record = [0; 176];
            ServiceRecord::new(&mut record[..])
                .unwrap()
                .set_service_id(id)
                .set_service_gid(gid(owner))
                .set_service_pkey(PKey(0))
                .set_service_lease(lease)
                .set_service_key([key; 16]);
            request(slid, method(delete), attribute::SERVICE_RECORD, ComponentMask(0x37), &record)
        }
        Step::Subscription { slid, trap, subscribe } => {
            let mut info = [0; 36];
            InformInfo::new(&mut info[..])
                .unwrap()
                .set_lid_range_begin(Lid::PERMISSIVE)
                .set_is_generic(1)
                .set_subscribe(subscribe)
                .set_trap_number(TrapNumber(trap))
                .set_qpn(ib_mad::types::Qpn::GSI);
            request(slid, Method::SET, AttributeId::INFORM_INFO, ComponentMask::NONE, &info)
        }
        Step::Alias { slid, of, entry, guid, delete } => {
            let mut record = [0; 72];
            GuidInfoRecord::new(&mut record[..]).unwrap().set_lid(Lid(of));
            let guid = if guid == 0 { 0 } else { 0xB0 + guid };
            record[8 + 8 * usize::from(entry)..][..8].copy_from_slice(&guid.to_be_bytes());
            let mask = ComponentMask(3 | 0x10 << entry);
            request(slid, method(delete), attribute::GUID_INFO_RECORD, mask, &record)
        }
        Step::Member { slid, of, group, state, delete } => {
            let mut mgid = Gid([0; 16]);
            (mgid.0[0], mgid.0[1], mgid.0[15]) = (0xFF, 0x12, group);
            let mut record = [0; 52];
            McMemberRecord::new(&mut record[..])
                .unwrap()
                .set_mgid(mgid)
                .set_port_gid(gid(of))
                .set_pkey(PKey::DEFAULT_FULL)
                .set_join_state(JoinState(state));
            let mask = [
                mc_member::component::PORT_GID,
                mc_member::component::JOIN_STATE,
                mc_member::component::QKEY,
                mc_member::component::TCLASS,
                mc_member::component::PKEY,
                mc_member::component::FLOW_LABEL,
                mc_member::component::SL,
            ];
            let mask = mask.into_iter().fold(mc_member::component::MGID, ComponentMask::union);
            request(slid, method(delete), attribute::MC_MEMBER_RECORD, mask, &record)
        }
        Step::Time(_) | Step::Repeat | Step::Fabric(_) => return None,
    })
}

fn repeats(step: &Step) -> bool {
    matches!(step, Step::Repeat)
}

fn some(lids: &[u16]) -> Ports {
    let all = super::testing::end_ports();
    let there = all.into_iter().filter(|port| lids.contains(&port.lid.0)).collect();
    Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], there)
}

proptest! {
    #[test]
    fn a_restored_registry_goes_on_as_the_one_that_was(
        before in vec(step(), 0..60),
        after in vec(step(), 0..30),
    ) {
        let (mut registry, mut now_s, mut there) = (Registry::default(), NOW_S, ports());
        let mut act = |registry: &mut Registry, step: &Step, asked: Option<&Request>| {
            match (step, asked) {
                (_, Some(request)) => return Some(registry.write(now_s, &there, request)),
                (Step::Time(passed), _) => {
                    now_s += passed;
                    registry.expire(now_s);
                    let plane = registry.plane();
                    let ends = plane.services.iter().filter_map(|row| row.expires_s).min();
                    assert!(ends.is_none_or(|end| end > now_s), "a lease that is over");
                    let next = registry.next_expiry();
                    assert!(ends.is_none_or(|end| next.is_some_and(|next| next <= end)));
                }
                (Step::Fabric(lids), _) => {
                    there = some(lids);
                    registry.fabric_changed(&there);
                }
                _ => {}
            }
            None
        };
        let mut last = None;
        for step in &before {
            let asked = asked(step).or_else(|| repeats(step).then(|| last.clone()).flatten());
            let reply = act(&mut registry, step, asked.as_ref());
            // Refusals are not stored: what is refused may be granted after a restart.
            match reply {
                Some(reply) if reply.status == Status::OK && !reply.dropped => last = asked,
                Some(_) if repeats(step) => last = None,
                _ => {}
            }
        }
        let outcomes = registry.take_changes().outcomes_put;
        let mut restored = Registry::restore(&registry.plane(), outcomes);
        // Aliases that are kept for ports that left are forgotten.
        registry.core.guid_info.kept.clear();
        // GUIDs that were chosen for ports and then released are forgotten, with their numbers.
        let last = last.filter(|last| last.attribute != attribute::GUID_INFO_RECORD);
        let chooses = |step: &&Step| !matches!(step, Step::Alias { guid: 0, delete: false, .. });
        for step in after.iter().filter(chooses).filter(|step| !matches!(step, Step::Time(_))) {
            let asked = asked(step).or_else(|| repeats(step).then(|| last.clone()).flatten());
            let (a, b) = (
                act(&mut registry, step, asked.as_ref()),
                act(&mut restored, step, asked.as_ref()),
            );
            prop_assert_eq!(a.map(|a| (a.status, a.data)), b.map(|b| (b.status, b.data)));
        }
        prop_assert_eq!(registry.plane(), restored.plane());
    }

    /// Regression: a port has its LID and this SM's before a sweep ends and the registry knows it;
    /// until then its requests were refused with ERR_REQ_INVALID, and repeats for ten seconds more.
    #[test]
    fn a_request_of_an_unknown_port_is_dropped_and_its_repeat_decided(
        before in vec(step(), 0..20),
        last in step(),
    ) {
        let Some(request) = asked(&last) else { return Ok(()) };
        let slid = request.requester.slid.0;
        let others: Vec<u16> = (1..=4).filter(|lid| *lid != slid).collect();
        let (mut registry, mut without) = (Registry::default(), Registry::default());
        for request in before.iter().filter_map(asked) {
            registry.write(NOW_S, &some(&others), &request);
            without.write(NOW_S, &some(&others), &request);
        }
        let plane = registry.plane();
        prop_assert!(registry.write(NOW_S, &some(&others), &request).dropped);
        prop_assert_eq!(registry.plane(), plane);
        let answer = |registry: &mut Registry| {
            let reply = registry.write(NOW_S, &ports(), &request);
            (reply.status, reply.data, reply.dropped)
        };
        prop_assert_eq!(answer(&mut registry), answer(&mut without));
    }

    #[test]
    fn a_port_changes_what_is_its_own(steps in vec(step(), 0..80)) {
        let mut registry = Registry::default();
        for step in &steps {
            let Some(request) = asked(step) else { continue };
            let before = registry.plane();
            registry.write(NOW_S, &ports(), &request);
            let after = registry.plane();
            let own = GUIDS[usize::from(request.requester.slid.0) - 1];
            let key = &request.data[32..48];
            let services = |plane: &sa_proto::snapshot::RegistryPlane| {
                let others = plane.services.iter().filter(|row| {
                    row.rid.service_gid.guid() != own
                        && (row.record[32..48] != *key || *key == [0; 16])
                });
                others.map(|row| (**row).clone()).collect::<Vec<_>>()
            };
            prop_assert_eq!(services(&before), services(&after));
            let others = |plane: &sa_proto::snapshot::RegistryPlane| {
                let aliases = plane.alias_guids.iter().filter(|row| row.port_guid != own);
                let aliases: Vec<(Guid, Guid, u8)> =
                    aliases.map(|row| (row.alias, row.port_guid, row.index)).collect();
                let rows = plane.subscriptions.iter();
                let rows = rows.filter(|row| row.rid.subscriber_gid.guid() != own);
                (aliases, rows.map(|row| (**row).clone()).collect::<Vec<_>>())
            };
            prop_assert_eq!(others(&before), others(&after));
        }
    }
}

//! Alias GUIDs: their owners, and the wanted contents of ports' tables.

use super::kept::KEPT_S;
use super::*;
use crate::registry::testing::ports;
use crate::registry::testing::{GUIDS, NOW_S, end_ports, gid, request, status, trusted, write};
use ib_mad::types::{Lid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::{MulticastMember, MulticastMemberRid};

const OK: Option<Status> = Some(Status::OK);
const PLACE: ComponentMask = component::LID.union(component::BLOCK_NUM);

/// A request about entries of a block of the port with LID `of`.
fn about(method: Method, slid: u16, of: u16, block: u8, entries: &[(u32, u64)]) -> Request {
    let mut record = [0; GuidInfoRecord::LEN];
    let mut view = GuidInfoRecord::new(&mut record[..]).unwrap();
    view.set_lid(Lid(of)).set_block_num(block);
    let mut mask = PLACE;
    for &(entry, guid) in entries {
        mask |= ComponentMask(component::GUID_0.0 << entry);
        record[8 + 8 * entry as usize..][..8].copy_from_slice(&guid.to_be_bytes());
    }
    request(slid, method, attribute::GUID_INFO_RECORD, mask, &record)
}

fn set(slid: u16, entries: &[(u32, u64)]) -> Request {
    about(Method::SET, slid, slid, 0, entries)
}

fn delete(slid: u16, entries: &[u32]) -> Request {
    let entries: Vec<_> = entries.iter().map(|entry| (*entry, 0)).collect();
    about(Method::DELETE, slid, slid, 0, &entries)
}

/// The block in the answer to a request.
fn block(registry: &mut Registry, request: Request) -> Vec<u64> {
    let reply = write(registry, request.clone());
    assert_eq!(reply.status, Status::OK);
    let data = reply.data.map_or(request.data, |data| data.data());
    data[8..72].as_chunks::<8>().0.iter().map(|guid| u64::from_be_bytes(*guid)).collect()
}

fn rows(registry: &Registry) -> Vec<(u64, u64, u8)> {
    let rows = registry.plane().alias_guids;
    rows.iter().map(|row| (row.alias.0, row.port_guid.0, row.index)).collect()
}

#[test]
fn a_port_sets_and_deletes_its_aliases() {
    let mut registry = Registry::default();
    let got = block(&mut registry, set(1, &[(1, 0xB1), (3, 0xB3)]));
    assert_eq!(got, [0xA1, 0xB1, 0, 0xB3, 0, 0, 0, 0]);
    let got = block(&mut registry, set(1, &[(3, 0xB4)]));
    assert_eq!(got, [0xA1, 0xB1, 0, 0xB4, 0, 0, 0, 0], "one alias replaces another");
    assert_eq!(rows(&registry), [(0xB1, 0xA1, 1), (0xB4, 0xA1, 3)]);
    assert_eq!(block(&mut registry, delete(1, &[1, 2])), [0xA1, 0, 0, 0xB4, 0, 0, 0, 0]);
    assert_eq!(rows(&registry), [(0xB4, 0xA1, 3)]);
}

#[test]
fn a_guid_in_use_elsewhere_leaves_the_entry_as_it_was() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1)]));
    assert_eq!(block(&mut registry, set(2, &[(1, 0xB1)]))[1], 0);
    assert_eq!(block(&mut registry, set(1, &[(2, 0xB1)]))[2], 0, "at another index, too");
    assert_eq!(block(&mut registry, set(2, &[(1, 0xA2)]))[1], 0, "a port's own GUID");
    assert_eq!(block(&mut registry, set(1, &[(1, 0xB1)]))[1], 0xB1, "where it is");
    write(&mut registry, set(2, &[(1, 0xB2)]));
    assert_eq!(block(&mut registry, set(2, &[(1, 0xB1)]))[1], 0xB2);
    assert_eq!(rows(&registry), [(0xB1, 0xA1, 1), (0xB2, 0xA2, 1)]);
}

/// Regression: while a host restarted, another port set its GUID as an alias, got its paths and
/// overwrote its services.
#[test]
fn the_guid_of_an_absent_port_and_of_the_sa_are_not_given_away() {
    let mut registry = Registry::default();
    let mut ports = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], end_ports()[..3].to_vec());
    ports.set_known(GUIDS.into_iter());
    let sa = Guid::WELL_KNOWN_SA.0;
    let mut write = |request| registry.write(NOW_S, &ports, &request).status;
    assert_eq!(write(set(2, &[(1, GUIDS[3].0), (2, sa), (3, 0xB1)])), Status::OK);
    // The SM's own port may stand for the SA.
    assert_eq!(write(set(1, &[(1, sa)])), Status::OK);
    assert_eq!(rows(&registry), [(0xB1, 0xA2, 3), (sa, 0xA1, 1)]);
}

#[test]
fn a_guid_of_0_leaves_the_choice_to_us_and_we_stay_with_it() {
    let mut registry = Registry::default();
    let first = block(&mut registry, set(1, &[(1, 0), (2, 0)]));
    assert_eq!(first[1..3], [COMPANY | 1, COMPANY | 2]);
    assert_eq!(block(&mut registry, set(1, &[(1, 0), (2, 0)])), first);
    write(&mut registry, delete(1, &[1]));
    assert_eq!(block(&mut registry, set(2, &[(1, 0)]))[1], COMPANY | 3);
    assert_eq!(block(&mut registry, set(1, &[(1, 0)])), first);
    // A restart: what is in use is not chosen again.
    let mut registry = Registry::restore(&registry.plane(), []);
    assert_eq!(block(&mut registry, set(3, &[(1, 0)]))[1], COMPANY | 4);
    assert_eq!(block(&mut registry, set(3, &[(2, COMPANY | 5)]))[2], COMPANY | 5);
    assert_eq!(block(&mut registry, set(3, &[(3, 0)]))[3], COMPANY | 6);
}

/// Regression: the client got an error status, although half of its request had been applied.
#[test]
fn a_request_that_is_refused_changes_nothing() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1)]));
    let before = rows(&registry);
    registry.core.guid_info.last = u32::MAX;
    let refused = status(&mut registry, set(1, &[(1, 0xB7), (2, 0xB2), (3, 0)]));
    assert_eq!(refused, Some(Status::SA_NO_RESOURCES));
    assert_eq!(rows(&registry), before);
    assert_eq!(block(&mut registry, set(1, &[(2, 0xB2)]))[1..3], [0xB1, 0xB2]);
}

#[test]
fn an_entry_may_take_what_one_before_it_gives_up_and_no_guid_twice() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1)]));
    let got = block(&mut registry, set(1, &[(1, 0xB2), (2, 0xB1), (3, 0xB2)]));
    assert_eq!(got[1..4], [0xB2, 0xB1, 0]);
    assert_eq!(rows(&registry), [(0xB1, 0xA1, 2), (0xB2, 0xA1, 1)]);
}

/// OpenSM lets any port of a common partition do this.
#[test]
fn aliases_of_another_port_are_for_the_trusted() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1)]));
    let foreign = |method| about(method, 2, 1, 0, &[(1, 0xB2)]);
    for method in [Method::SET, Method::DELETE] {
        assert_eq!(status(&mut registry, foreign(method)), Some(Status::SA_DENIED));
    }
    assert_eq!(rows(&registry), [(0xB1, 0xA1, 1)]);
    for method in [Method::SET, Method::DELETE] {
        assert_eq!(status(&mut registry, trusted(foreign(method))), OK);
    }
    assert!(rows(&registry).is_empty());
}

#[test]
fn what_is_asked_must_have_its_place() {
    let mut registry = Registry::default();
    let mut answered = |request| status(&mut registry, request);
    for missing in [component::LID, component::BLOCK_NUM] {
        let mut request = set(1, &[(1, 0xB1)]);
        request.component_mask.0 &= !missing.0;
        assert_eq!(answered(request), Some(Status::SA_INSUFFICIENT_COMPONENTS));
    }
    let no_records = Some(Status::SA_NO_RECORDS);
    assert_eq!(answered(about(Method::SET, 1, 7, 0, &[(1, 0xB1)])), no_records);
    assert_eq!(answered(about(Method::SET, 1, 1, 2, &[(1, 0xB1)])), no_records);
    assert_eq!(answered(about(Method::DELETE, 1, 1, 2, &[(1, 0)])), no_records);
    let invalid = Some(Status::SA_REQ_INVALID);
    assert_eq!(answered(set(1, &[(0, 0xB1), (1, 0xB2)])), invalid, "the port's own GUID");
    assert_eq!(answered(delete(1, &[0])), invalid);
    // No partition in common: as if the port did not exist.
    assert_eq!(answered(about(Method::SET, 4, 1, 0, &[(1, 0xB1)])), None);
    assert_eq!(answered(set(9, &[(1, 0xB1)])), None);
    assert!(rows(&registry).is_empty());
}

#[test]
fn a_table_goes_as_far_as_guid_cap_says() {
    let mut registry = Registry::default();
    // 12 entries: the second block has four.
    let last = about(Method::SET, 1, 1, 1, &[(0, 0xB8), (3, 0xBB), (4, 0xBC)]);
    assert_eq!(block(&mut registry, last), [0xB8, 0, 0, 0xBB, 0, 0, 0, 0]);
    assert_eq!(rows(&registry), [(0xB8, 0xA1, 8), (0xBB, 0xA1, 11)]);
}

#[test]
fn an_alias_in_a_multicast_group_stays() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1), (2, 0xB2)]));
    registry.core.members.put(MulticastMember {
        rid: MulticastMemberRid {
            mgid: ib_mad::types::Gid([0xFF; 16]),
            port_gid: ib_mad::types::Gid::new(gid(1).prefix(), Guid(0xB2)),
        },
        join_state: 1,
        proxy_join: false,
    });
    let mut registry = Registry::restore(&registry.plane(), []);
    assert_eq!(status(&mut registry, delete(1, &[1, 2])), Some(Status::SA_DENIED));
    assert_eq!(rows(&registry).len(), 2);
    assert_eq!(status(&mut registry, delete(1, &[1])), OK);
}

#[test]
fn aliases_go_with_their_port() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1)]));
    write(&mut registry, about(Method::SET, 2, 2, 1, &[(1, 0xB9)]));
    write(&mut registry, set(3, &[(1, 0xB3), (2, 0xC1)]));
    registry.fabric_changed(&ports());
    assert_eq!(rows(&registry).len(), 4);
    let mut all = end_ports();
    all[1].guid_cap = 8; // Less room than before.
    all[3].guid = Guid(0xC1); // A port of that GUID turns up.
    all.remove(0);
    registry.fabric_changed(&Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[2], all));
    assert_eq!(rows(&registry), [(0xB3, 0xA3, 1)]);
}

/// Regression: while a host restarted, another port took the alias GUIDs of its virtual machines,
/// and with them their paths and keyed services.
#[test]
fn aliases_of_a_port_that_left_are_kept_for_it() {
    let mut registry = Registry::default();
    write(&mut registry, set(3, &[(1, 0xB1), (2, 0xB2)]));
    write(&mut registry, delete(3, &[2]));
    let mut all = end_ports();
    let left = all.remove(2);
    let without = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], all);
    registry.fabric_changed(&without);
    assert!(rows(&registry).is_empty());
    let ask = |registry: &mut Registry, now_s: u64, ports: &Ports, request: &Request| {
        assert_eq!(registry.write(now_s, ports, request).status, Status::OK);
        rows(registry)
    };
    // One that it gave up is free.
    let both = set(2, &[(1, 0xB1), (2, 0xB2)]);
    assert_eq!(ask(&mut registry, NOW_S, &without, &both), [(0xB2, 0xA2, 2)]);
    assert_eq!(next_expiry(&registry.core), Some(NOW_S + KEPT_S));
    // A site that moves a virtual machine shows the key.
    let moved = ask(&mut registry, NOW_S, &without, &trusted(set(2, &[(1, 0xB1)])));
    assert_eq!(moved, [(0xB1, 0xA2, 1), (0xB2, 0xA2, 2)]);
    write(&mut registry, delete(2, &[1, 2]));

    // Its port gets it back, and others do after a while.
    write(&mut registry, set(3, &[(1, 0xB1)]));
    registry.fabric_changed(&without);
    let other = || set(2, &[(1, 0xB1)]);
    assert!(ask(&mut registry, NOW_S, &without, &other()).is_empty());
    assert!(ask(&mut registry, NOW_S + KEPT_S - 1, &without, &other()).is_empty());
    assert_eq!(registry.core.guid_info.kept.port_of(Guid(0xB1)), Some(left.guid));
    assert_eq!(ask(&mut registry, NOW_S, &ports(), &set(3, &[(1, 0xB1)])), [(0xB1, 0xA3, 1)]);
    registry.fabric_changed(&without);
    registry.expire(NOW_S);
    let later = ask(&mut registry, NOW_S + KEPT_S, &without, &other());
    assert_eq!(later, [(0xB1, 0xA2, 1)]);
}

/// A key protects a service also when its port has left and the registry was restarted.
#[test]
fn an_alias_with_services_is_given_to_no_other_port() {
    let mut registry = Registry::default();
    let service_gid = ib_mad::types::Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0xB1));
    let mut record = [0; 176];
    record[8..24].copy_from_slice(&service_gid.0);
    let rid = sa_proto::snapshot::ServiceRid {
        service_id: 7,
        service_gid,
        service_pkey: ib_mad::types::PKey::DEFAULT_FULL,
    };
    registry.core.services.put(sa_proto::snapshot::Service { rid, record, expires_s: None });
    let mut registry = Registry::restore(&registry.plane(), []);
    write(&mut registry, set(2, &[(1, 0xB1)]));
    assert!(rows(&registry).is_empty());
    write(&mut registry, trusted(set(2, &[(1, 0xB1)])));
    assert_eq!(rows(&registry), [(0xB1, 0xA2, 1)]);
}

#[test]
fn changed_blocks_are_listed_once_and_all_after_a_restart() {
    let mut registry = Registry::default();
    write(&mut registry, set(1, &[(1, 0xB1)]));
    write(&mut registry, about(Method::SET, 2, 2, 1, &[(0, 0xB8)]));
    let blocks = registry.take_guid_blocks();
    let guids = |guids: [u64; 8]| guids.map(Guid);
    let first =
        GuidBlock { port_guid: GUIDS[0], number: 0, guids: guids([0xA1, 0xB1, 0, 0, 0, 0, 0, 0]) };
    let second =
        GuidBlock { port_guid: GUIDS[1], number: 1, guids: guids([0xB8, 0, 0, 0, 0, 0, 0, 0]) };
    assert_eq!(blocks, [first, second]);
    assert!(registry.take_guid_blocks().is_empty());
    assert_eq!(Registry::restore(&registry.plane(), []).take_guid_blocks(), blocks);
    assert_eq!(registry.guid_blocks(GUIDS[1]), [second]);
    write(&mut registry, delete(1, &[1]));
    let emptied = GuidBlock { guids: guids([0xA1, 0, 0, 0, 0, 0, 0, 0]), ..first };
    assert_eq!(registry.take_guid_blocks(), [emptied]);
    assert!(registry.guid_blocks(GUIDS[0]).is_empty());
}

/// Regression: a port that appeared with the GUID of a host that was away got the aliases of that,
/// and set others.
#[test]
fn a_newcomer_has_no_aliases() {
    let mut registry = Registry::default();
    write(&mut registry, set(3, &[(1, 0xB1)]));
    registry.take_guid_blocks();
    let mut with_newcomer = ports();
    with_newcomer.set_newcomers([GUIDS[2]]);
    registry.fabric_changed(&with_newcomer);
    assert!(rows(&registry).is_empty());
    let blocks = registry.take_guid_blocks();
    assert_eq!(blocks.iter().map(|block| block.guids[1]).collect::<Vec<_>>(), [Guid(0)]);
    for request in [set(3, &[(1, 0xB1)]), delete(3, &[1])] {
        let reply = registry.write(NOW_S, &with_newcomer, &request);
        assert_eq!(reply.status, Status::SA_DENIED);
    }
    // It was kept for the host.
    write(&mut registry, set(2, &[(1, 0xB1)]));
    assert!(rows(&registry).is_empty());
    registry.fabric_changed(&ports());
    write(&mut registry, set(3, &[(1, 0xB1)]));
    assert_eq!(rows(&registry), [(0xB1, 0xA3, 1)]);
}

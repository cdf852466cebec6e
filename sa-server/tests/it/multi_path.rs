//! GetMulti(MultiPathRecord) where the recorded fabrics have no cases: more GIDs than a packet
//! holds, GIDs that were announced and not sent, paths to fail over to.

use std::sync::Arc;

use crate::common::Chain;
use crate::golden_support::{Got, Sa};
use ib_mad::types::{Gid, Guid, Lid, PKey, PortNum, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{NodeInfo, PortInfo};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::multi_path::component as multi;
use ib_mad::wire::record::multi_path::write_gids;
use ib_mad::wire::record::{MultiPathRecord, PathRecord, Selector};
use ib_mad::wire::rmpp::{RmppFlags, RmppType, VERSION};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{FabricPlane, RegistryPlane};

const TWO: Chain = Chain { switches: 2, hosts_each: 100 };

fn gid(host: u16) -> Gid {
    Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(host))
}

/// The data of a request; without NumbPath if `numb_path` is `None`.
fn data(sources: &[Gid], destinations: &[Gid], numb_path: Option<u8>) -> (ComponentMask, Vec<u8>) {
    let mut data = vec![0; MultiPathRecord::LEN + 16 * (sources.len() + destinations.len())];
    write_gids(&mut data, sources, destinations).unwrap();
    let mut mask = multi::SGID_COUNT | multi::DGID_COUNT;
    if let Some(numb_path) = numb_path {
        MultiPathRecord::new(&mut data[..]).unwrap().set_numb_path(numb_path);
        mask |= multi::NUMB_PATH;
    }
    (mask, data)
}

/// Cuts a request into packets.
fn packets(mask: ComponentMask, data: &[u8]) -> Vec<Vec<u8>> {
    let chunks: Vec<&[u8]> = data.chunks(200).collect();
    let (last, count) = (chunks.len() - 1, chunks.len() as u32);
    (0..)
        .zip(chunks)
        .map(|(i, chunk)| {
            let mut bytes = [0; 256];
            let mut mad = SaMad::new(&mut bytes);
            mad.write_request(Method::GET_MULTI, attribute::MULTI_PATH_RECORD, 7, mask);
            let mut flags = RmppFlags::ACTIVE;
            let mut len = 0;
            if i == 0 {
                flags = flags | RmppFlags::FIRST;
                len = data.len() as u32 + 20 * count;
            }
            if i == last {
                flags = flags | RmppFlags::LAST;
                len = if i == 0 { len } else { chunk.len() as u32 + 20 };
            }
            mad.rmpp_mut()
                .set_rmpp_version(VERSION)
                .set_rmpp_type(RmppType::DATA)
                .set_flags(flags)
                .set_segment(i as u32 + 1)
                .set_payload_len(len);
            mad.data_mut()[..chunk.len()].copy_from_slice(chunk);
            bytes.to_vec()
        })
        .collect()
}

type Answer = PathRecord<[u8; 64]>;

fn ask(plane: &FabricPlane, lid: u16, mask: ComponentMask, data: &[u8]) -> (Status, Vec<Answer>) {
    let mut sa = Sa::new(plane, &RegistryPlane::default());
    let Got::Answer(answer) = sa.ask(Lid(lid), &packets(mask, data)) else {
        panic!("no answer");
    };
    assert!(sa.stats().balances());
    let status = Status(u16::from_be_bytes([answer[4], answer[5]]));
    assert_eq!(&answer[16..18], &attribute::PATH_RECORD.0.to_be_bytes());
    let len = match status {
        Status::OK => (u32::from_be_bytes(answer[32..36].try_into().unwrap()) - 20) as usize,
        _ => 0,
    };
    // Of an answer of several segments the length is in the first, headers of all included.
    let whole = if answer.len() > 256 { answer.len() - 56 } else { len };
    let records = answer[56..56 + whole].as_chunks::<64>().0;
    (status, records.iter().map(|record| PathRecord::new(*record).unwrap()).collect())
}

fn lids(records: &[Answer]) -> Vec<(u16, u16)> {
    records.iter().map(|record| (record.slid().0, record.dlid().0)).collect()
}

/// Proves IBA o15-0.2.7.
#[test]
fn all_gids_of_a_request_of_many_packets_are_served() {
    let plane = TWO.plane(|_| {});
    let sources = [gid(1)];
    let destinations: Vec<Gid> = (2..=101).map(gid).collect();
    let (mask, data) = data(&sources, &destinations, Some(127));
    assert_eq!(packets(mask, &data).len(), 9);
    let (status, records) = ask(&plane, 1, mask, &data);
    assert_eq!((status, records.len()), (Status::OK, 100));
    assert_eq!(lids(&records), (2..=101).map(|lid| (1, lid)).collect::<Vec<_>>());
}

#[test]
fn no_more_paths_come_than_numb_path_says_or_127() {
    let plane = TWO.plane(|_| {});
    let sources: Vec<Gid> = (1..=20).map(gid).collect();
    let destinations: Vec<Gid> = (101..=120).map(gid).collect();
    for (numb_path, want) in [(None, 127), (Some(127), 127), (Some(5), 5), (Some(0), 0)] {
        let (mask, data) = data(&sources, &destinations, numb_path);
        assert_eq!(ask(&plane, 1, mask, &data).1.len(), want, "{numb_path:?}");
    }
}

/// Regression: a request of several packets is searched with plain Gets, and one host could keep a
/// worker busy with such requests for 255 sources and 255 destinations.
#[test]
fn costly_requests_of_many_packets_are_charged_to_their_source() {
    let plane = TWO.plane(|_| {});
    let costly = |count: u16| {
        let mut sa = Sa::new(&plane, &RegistryPlane::default());
        let gids: Vec<Gid> = (1..=count).map(gid).collect();
        let (mask, mut data) = data(&gids, &gids, None);
        // No pair has it, so that all are looked at.
        MultiPathRecord::new(&mut data[..]).unwrap().set_pkey(PKey(0x8123));
        let Got::Answer(_) = sa.ask(Lid(1), &packets(mask | multi::PKEY, &data)) else {
            panic!("no answer")
        };
        sa.take_costly()
    };
    assert_eq!([costly(10), costly(100)], [0, 1]);
}

#[test]
fn gids_that_are_announced_and_not_there_are_invalid() {
    let plane = TWO.plane(|_| {});
    let (mask, mut data) = data(&[gid(1)], &[gid(2)], None);
    MultiPathRecord::new(&mut data[..]).unwrap().set_dgid_count(255);
    assert_eq!(ask(&plane, 1, mask, &data).0, Status::SA_REQ_INVALID_GID);
    MultiPathRecord::new(&mut data[..]).unwrap().set_dgid_count(2);
    assert_eq!(ask(&plane, 1, mask, &data).0, Status::SA_REQ_INVALID_GID);
    MultiPathRecord::new(&mut data[..]).unwrap().set_dgid_count(0);
    assert_eq!(ask(&plane, 1, mask, &data).0, Status::SA_REQ_INVALID);
    assert_eq!(ask(&plane, 1, mask, &data[..10]).0, Status::SA_REQ_INVALID);
    assert_eq!(ask(&plane, 1, multi::SGID_COUNT, &data).0, Status::SA_INSUFFICIENT_COMPONENTS);
}

#[test]
fn unknown_gids_and_those_of_another_subnet_are_invalid() {
    let plane = TWO.plane(|_| {});
    for wrong in [
        Gid::new(SUBNET_PREFIX_DEFAULT, Guid(9)),
        Gid::new(0x2001 << 48, Chain::host_guid(2)),
        Gid([0xFF; 16]),
    ] {
        let (mask, data) = data(&[gid(1)], &[gid(2), wrong], None);
        assert_eq!(ask(&plane, 1, mask, &data).0, Status::SA_REQ_INVALID_GID);
    }
}

#[test]
fn two_paths_to_fail_over_to_share_no_port_and_do_not_depend_on_the_order() {
    // Hosts 1 and 2 are on the first switch, 101 and 102 on the second; hosts have 4 LIDs each.
    let chain = Chain { switches: 2, hosts_each: 2 };
    let mut plane = chain.plane(|port| {
        let host = (1..=4).find(|&lid| Chain::host_guid(lid) == port.guid);
        if let (Some(host), PortNum(1)) = (host, port.num) {
            PortInfo::new(&mut port.info[..]).unwrap().set_base_lid(Lid(host * 4 + 4)).set_lmc(2);
        }
    });
    for lft in &mut plane.lfts {
        let lft = Arc::make_mut(lft);
        let of_host: Vec<u8> = (1..=4).map(|host| lft.ports[host]).collect();
        for (i, exit) in of_host.into_iter().enumerate() {
            lft.ports[8 + i * 4..12 + i * 4].fill(exit);
        }
    }
    let of = |sources: [u16; 2], destinations: [u16; 2]| {
        let (mask, data) = data(&sources.map(gid), &destinations.map(gid), Some(2));
        let (status, records) = ask(&plane, 8, mask, &data);
        assert_eq!(status, Status::OK);
        lids(&records)
    };
    let host = |lid: u16| lid / 4;
    let paths = of([1, 2], [3, 4]);
    assert_eq!(paths.len(), 2);
    assert_ne!(host(paths[0].0), host(paths[1].0));
    assert_ne!(host(paths[0].1), host(paths[1].1));
    assert_ne!(paths[0].0 % 4, paths[1].0 % 4, "different places in the LID ranges");
    assert_eq!(of([2, 1], [3, 4]), paths);
    assert_eq!(of([2, 1], [4, 3]), paths);
    // Of each pair the near one: a switch away from itself is nearer than across.
    let near = of([1, 3], [2, 4]);
    let pairs: Vec<_> = near.iter().map(|&(slid, dlid)| (host(slid) - 1, host(dlid) - 1)).collect();
    assert!(pairs.contains(&(1, 2)) && pairs.contains(&(3, 4)), "{pairs:?}");
}

#[test]
fn ports_that_the_requester_may_not_know_of_get_no_paths() {
    let plane = TWO.plane(|port| {
        let is_strange = [3, 4].iter().any(|&lid| port.guid == Chain::host_guid(lid));
        let pkey = if is_strange { PKey(0x8002) } else { PKey(0xFFFF) };
        port.pkeys = [pkey].into();
    });
    for numb_path in [Some(2), Some(127)] {
        let (mask, data) = data(&[gid(3), gid(5)], &[gid(4), gid(6)], numb_path);
        let (status, records) = ask(&plane, 1, mask, &data);
        assert_eq!((status, lids(&records)), (Status::OK, vec![(5, 6)]), "{numb_path:?}");
    }
}

/// An InfiniHost at either end, as for PathRecord; the other hosts are none.
#[test]
fn paths_of_infinihosts_have_mtu_1024_unless_more_is_requested() {
    let mut plane = TWO.plane(|_| {});
    plane.subnet.quirks = true;
    let guid = Guid(Chain::host_guid(1).0 - 1);
    let node = plane.nodes.iter_mut().find(|node| node.guid == guid).unwrap();
    let info = &mut Arc::make_mut(node).info[..];
    NodeInfo::new(info).unwrap().set_vendor_id(0x0002C9).set_device_id(23108);
    let (sources, destinations) = ([gid(1), gid(2)], [gid(101), gid(102)]);
    let mtus = |mask: ComponentMask, selector: Selector, mtu: u8, numb_path| -> Vec<u8> {
        let (counts, mut data) = data(&sources, &destinations, numb_path);
        let mut record = MultiPathRecord::new(&mut data[..]).unwrap();
        record.set_mtu_selector(selector).set_mtu(mtu);
        let (_, records) = ask(&plane, 2, counts | mask, &data);
        records.iter().map(|record| record.mtu()).collect()
    };
    let both = multi::MTU_SELECTOR | multi::MTU;
    assert_eq!(mtus(ComponentMask::NONE, Selector::Largest, 5, None), [3, 3, 5, 5]);
    assert_eq!(mtus(both, Selector::Largest, 0x3F, None), [] as [u8; 0], "no MTU");
    assert_eq!(mtus(both, Selector::Largest, 1, None), [5; 4]);
    assert_eq!(mtus(both, Selector::Greater, 3, None), [5, 5], "those of no InfiniHost");
    assert_eq!(mtus(both, Selector::Greater, 2, None), [3, 3, 5, 5]);
    assert_eq!(mtus(both, Selector::Exactly, 4, None), [4; 4]);
    assert_eq!(mtus(both, Selector::Less, 5, Some(2)).iter().min(), Some(&3), "of two that differ");
}

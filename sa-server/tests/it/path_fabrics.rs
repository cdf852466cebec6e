//! Tables of paths for requests that leave the P_Key open: those of all virtual fabrics that have
//! both ends.

use std::sync::Arc;

use crate::common::{Chain, SM_KEY};
use crate::golden_support::{Got, Sa};
use ib_mad::types::{Gid, Lid, PKey, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::multi_path::component as multi;
use ib_mad::wire::record::multi_path::write_gids;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{MultiPathRecord, PathRecord};
use ib_mad::wire::rmpp::{RmppFlags, RmppType, VERSION};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{
    FabricPlane, IdMatch, PortGroup, QosLevel, QosRule, RegistryPlane, RuleOrigin, VirtualFabric,
};
use sa_server::tables::Tables;
use sa_server::watch::explain::{Request, explain};

const CHAIN: Chain = Chain { switches: 2, hosts_each: 3 };
const ALL_IDS: IdMatch = IdMatch::Range(0, u64::MAX);
/// The Service IDs that the first two virtual fabrics name.
const STORAGE: IdMatch = IdMatch::Range(0x100, 0x1FF);

/// Virtual fabrics in the order of the file: P_Key, SL, Service IDs, whether it takes unmatched
/// ones, and its port group: 0 has all hosts, 1 the first two.
const FABRICS: [(u16, u16, Option<IdMatch>, bool, u32); 5] = [
    (5, 1, Some(STORAGE), false, 0),
    (6, 2, Some(STORAGE), true, 0),
    (6, 2, None, true, 0),
    (6, 4, None, true, 0),
    (7, 3, None, false, 1),
];

/// Rules as the manager makes them, with virtual fabrics of all hosts and of the first two.
fn plane() -> FabricPlane {
    let mut plane = CHAIN.plane(|port| {
        let keys: &[u16] = match (1..=CHAIN.hosts()).find(|&n| Chain::host_guid(n) == port.guid) {
            Some(1 | 2) => &[0x8005, 0x8006, 0x8007],
            Some(6) => &[0x8006],
            _ => &[0x8005, 0x8006],
        };
        port.pkeys = keys.iter().copied().map(PKey).collect();
    });
    plane.subnet.trusted_see_all = true;
    let group = |index, name: &str, node_types, ports| {
        Arc::new(PortGroup { index, name: name.into(), node_types, ports })
    };
    let two = vec![Chain::host_guid(1), Chain::host_guid(2)];
    plane.port_groups =
        vec![group(0, "All", PortGroup::NODE_CA, Vec::new()), group(1, "Two", 0, two)];
    for (index, &(pkey, sl, ids, unmatched, group)) in (0u32..).zip(&FABRICS) {
        plane.qos_levels.push(Arc::new(QosLevel {
            index,
            name: format!("virtual fabric {index}"),
            sl: Some(Sl::from_low_bits(sl)),
            mtu_limit: None,
            rate_limit: None,
            packet_life: None,
            pkeys: vec![(pkey, pkey)],
        }));
        plane.virtual_fabrics.push(Arc::new(VirtualFabric {
            index,
            name: index.to_string(),
            pkey: PKey(pkey),
            base_sl: Sl::from_low_bits(sl),
            multicast_sl: Sl::from_low_bits(sl),
            security: true,
            qos: true,
            service_ids: ids.into_iter().collect(),
            unmatched_service_ids: unmatched,
            members: vec![group],
            ..VirtualFabric::default()
        }));
    }
    let mut rules: Vec<(u32, Vec<IdMatch>)> = Vec::new();
    let all = || (0u32..).zip(&FABRICS);
    rules.extend(all().filter_map(|(index, fabric)| Some((index, vec![fabric.2?]))));
    rules.extend(all().filter(|(_, fabric)| fabric.3).map(|(index, _)| (index, vec![ALL_IDS])));
    rules.extend(all().map(|(index, _)| (index, Vec::new())));
    plane.qos_rules = (0u32..)
        .zip(rules)
        .map(|(index, (level, ids))| {
            let group = Some(vec![FABRICS[level as usize].4]);
            Arc::new(QosRule {
                index,
                name: index.to_string(),
                origin: RuleOrigin::VirtualFabric,
                level,
                sources: group.clone(),
                destinations: group,
                pkeys: None,
                qos_classes: None,
                service_ids: Some(ids),
            })
        })
        .collect();
    plane
}

struct Question {
    method: Method,
    requester: u16,
    sm_key: u64,
    service_id: Option<u64>,
    pkey: Option<u16>,
    numb_path: Option<u8>,
}

impl Default for Question {
    fn default() -> Self {
        Self {
            method: Method::GET_TABLE,
            requester: 1,
            sm_key: 0,
            service_id: None,
            pkey: None,
            numb_path: None,
        }
    }
}

/// DLID, P_Key and SL of the paths from host 1 to another, or to all.
fn paths(destination: Option<u16>, question: &Question) -> Vec<(u16, u16, u8)> {
    let gid = |lid| Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(lid));
    let mut mask = path::SGID;
    let mut components = |named: bool, component: ComponentMask| {
        if named {
            mask |= component;
        }
    };
    components(destination.is_some(), path::DGID);
    components(question.service_id.is_some(), path::SERVICE_ID);
    components(question.pkey.is_some(), path::PKEY);
    components(question.numb_path.is_some(), path::NUMB_PATH);
    let mut mad = [0; 256];
    let mut view = SaMad::new(&mut mad);
    view.write_request(question.method, attribute::PATH_RECORD, 7, mask);
    view.sa_mut().set_sm_key(question.sm_key);
    PathRecord::new(view.data_mut())
        .unwrap()
        .set_sgid(gid(1))
        .set_dgid(gid(destination.unwrap_or(1)))
        .set_service_id(question.service_id.unwrap_or(0))
        .set_pkey(PKey(question.pkey.unwrap_or(0)))
        .set_numb_path(question.numb_path.unwrap_or(0));
    let mut sa = Sa::new(&plane(), &RegistryPlane::default());
    let Got::Answer(answer) = sa.ask(Lid(question.requester), &[mad.to_vec()]) else {
        panic!("no answer")
    };
    read(match question.method {
        Method::GET => &answer[56..120],
        _ => &answer[56..],
    })
}

/// DLID, P_Key and SL of PathRecords.
fn read(records: &[u8]) -> Vec<(u16, u16, u8)> {
    let read = |record: &[u8; 64]| {
        let record = PathRecord::new(&record[..]).unwrap();
        (record.dlid().0, record.pkey().base(), record.sl().get())
    };
    records.as_chunks::<64>().0.iter().map(read).collect()
}

/// DLID, P_Key and SL of the paths from host 1 to several others by GetMulti().
fn multi_paths(destinations: &[u16], numb_path: Option<u8>) -> Vec<(u16, u16, u8)> {
    let gid = |lid: &u16| Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(*lid));
    let gids: Vec<Gid> = destinations.iter().map(gid).collect();
    let mut mad = [0; 256];
    let mut view = SaMad::new(&mut mad);
    let mut mask = multi::SGID_COUNT | multi::DGID_COUNT;
    if numb_path.is_some() {
        mask |= multi::NUMB_PATH;
    }
    view.write_request(Method::GET_MULTI, attribute::MULTI_PATH_RECORD, 7, mask);
    write_gids(view.data_mut(), &[gid(&1)], &gids).unwrap();
    MultiPathRecord::new(view.data_mut()).unwrap().set_numb_path(numb_path.unwrap_or(0));
    view.rmpp_mut()
        .set_rmpp_version(VERSION)
        .set_rmpp_type(RmppType::DATA)
        .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
        .set_segment(1)
        .set_payload_len((20 + MultiPathRecord::LEN + 16 * (1 + gids.len())) as u32);
    let mut sa = Sa::new(&plane(), &RegistryPlane::default());
    let Got::Answer(answer) = sa.ask(Lid(1), &[mad.to_vec()]) else { panic!("no answer") };
    read(&answer[56..])
}

/// Regression: GetMulti() had the paths of the first virtual fabric only.
#[test]
fn getmulti_has_further_virtual_fabrics_after_the_first_of_all_pairs() {
    let first = [(2, 5, 1), (4, 5, 1)];
    let further = [(2, 6, 2), (2, 6, 4), (2, 7, 3), (4, 6, 2), (4, 6, 4)];
    let all = [&first[..], &further].concat();
    assert_eq!(multi_paths(&[2, 4], None), all);
    for numb_path in 1..=all.len() {
        let paths = multi_paths(&[2, 4], Some(numb_path as u8));
        assert_eq!(paths, all[..numb_path]);
    }
}

fn to_host(destination: u16, question: &Question) -> Vec<(u16, u8)> {
    let all = paths(Some(destination), question);
    all.into_iter().map(|(_, pkey, sl)| (pkey, sl)).collect()
}

#[test]
fn a_table_has_a_path_for_each_pkey_and_sl_of_the_virtual_fabrics_of_both_ends() {
    let open = Question::default();
    assert_eq!(to_host(4, &open), [(5, 1), (6, 2), (6, 4)]);
    assert_eq!(to_host(2, &open), [(5, 1), (6, 2), (6, 4), (7, 3)]);
    assert_eq!(to_host(6, &open), [(6, 2), (6, 4)], "it has no P_Key 5");
    let named = Question { pkey: Some(0x8006), ..Question::default() };
    assert_eq!(to_host(2, &named), [(6, 2)], "the first that has the P_Key");
    let get = Question { method: Method::GET, ..Question::default() };
    assert_eq!(to_host(2, &get), [(5, 1)]);
    assert_eq!(to_host(6, &get), [(6, 2)], "the first that has a path");
}

#[test]
fn with_a_service_id_those_count_that_name_it_or_else_take_unmatched_ones() {
    let with = |id| Question { service_id: Some(id), ..Question::default() };
    assert_eq!(to_host(2, &with(0x150)), [(5, 1), (6, 2)]);
    assert_eq!(to_host(2, &with(0x999)), [(6, 2), (6, 4)]);
}

#[test]
fn numb_path_limits_the_paths_of_a_pair_and_not_the_pairs() {
    let with = |numb_path| Question { numb_path: Some(numb_path), ..Question::default() };
    assert_eq!(to_host(2, &with(1)), [(5, 1)]);
    assert_eq!(to_host(2, &with(3)), [(5, 1), (6, 2), (6, 4)]);
    let of = |paths: Vec<(u16, u16, u8)>, lid| paths.iter().filter(|path| path.0 == lid).count();
    let all = paths(None, &with(2));
    assert_eq!([of(all.clone(), 2), of(all.clone(), 4), of(all, 6)], [2, 2, 2]);
    let all = paths(None, &Question::default());
    assert_eq!([of(all.clone(), 2), of(all.clone(), 4), of(all, 6)], [4, 3, 2]);
}

#[test]
fn a_requester_sees_further_virtual_fabrics_that_it_is_a_member_of() {
    let by_other = Question { requester: 4, ..Question::default() };
    assert_eq!(to_host(2, &by_other), [(5, 1), (6, 2), (6, 4)]);
    let trusted = Question { sm_key: SM_KEY, ..by_other };
    assert_eq!(to_host(2, &trusted), [(5, 1), (6, 2), (6, 4), (7, 3)]);
}

#[test]
fn an_explanation_has_the_rule_of_the_path_that_is_answered() {
    let name = |lid| format!("{:#x}", Chain::host_guid(lid).0).parse().unwrap();
    let request = Request {
        source: name(1),
        destination: name(6),
        service_id: None,
        qos_class: None,
        pkey: None,
    };
    let registry = RegistryPlane::default();
    let explained = explain(&Tables::build(&plane(), &registry), &registry, &request).unwrap();
    assert_eq!(explained.record.unwrap().pkey, "0x0006");
    assert_eq!((explained.rule.unwrap().index, explained.no_path), (6, None));
    let accepted: Vec<u32> = explained
        .passed_over
        .iter()
        .filter(|rule| rule.failing.is_none())
        .map(|rule| rule.index)
        .collect();
    assert_eq!(accepted, [5], "that of P_Key 5, which the ends do not share");
}

//! Text and rows, each into the other.

use super::*;
use ib_mad::types::{Gid, Qpn, Sl};
use ib_mad::wire::record::{McMemberRecord, ServiceRecord};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use sa_proto::snapshot::{
    AliasGuid, MulticastGroup, MulticastMember, MulticastMemberRid, RegistryPlane, Service,
    ServiceRid, Subscription, SubscriptionRid,
};
use std::sync::Arc;

const NOW_S: u64 = 1_700_000_000;

/// As `opensm` 3.3.23 wrote it.
const WRITTEN: &[u8] = include_bytes!("../../../tests/golden/opensm-sa.dump");

fn around(port: &dyn Fn(Guid) -> Option<(Lid, u8)>) -> Surroundings<'_> {
    let pkeys = &[PKey::DEFAULT_FULL, PKey(0x8001)];
    Surroundings { now_s: NOW_S, wall_s: NOW_S, pkeys, port }
}

fn parse(text: &[u8]) -> Result<RegistryPlane, DumpError> {
    read(text, &around(&|_| None))
}

fn print(rows: &RegistryPlane) -> String {
    String::from_utf8(write(rows, &around(&|_| Some((Lid(7), 8))))).unwrap()
}

fn refused(text: &str) -> (usize, Problem) {
    let error = parse(text.as_bytes()).unwrap_err();
    (error.line, error.problem)
}

const GROUP: &str = "MC Group 0xc001 : mgid=0xff12401bffff0000:0x00000000ffffffff \
    port_gid=0x0000000000000000:0x0000000000000000 qkey=0x00000b1b mlid=0xc001 mtu=0x84 \
    tclass=0x00 pkey=0xffff rate=0x83 pkt_life=0x92 sl_flow_hop=0x00000000 scope_state=0x20 \
    proxy_join=0x0\n\n";
const MEMBER: &str = "mcm_port: port_gid=0xfe80000000000000:0x00000000000000a1 scope_state=0x21 \
    proxy_join=0x0\n\n";
const SERVICE: &str = "Service Record: id=0x0000000000001234 \
    gid=0xfe80000000000000:0x00000000000000a1 pkey=0xffff lease=0x64 \
    key=0x0102030405060708:0x090a0b0c0d0e0f10 name='it' \
    data8=0x0001020304050607:0x08090a0b0c0d0e0f \
    data16=0x0001000200030004:0x0005000600070008 data32=0x0000000100000002:0x0000000300000004 \
    data64=0x0000000000000001:0x0000000000000002 modified_time=0x6553f100 lease_period=0x5a\n\n";
const SUBSCRIPTION: &str = "InformInfo Record: \
    subscriber_gid=0xfe80000000000000:0x00000000000000a1 subscriber_enum=0x0 InformInfo: \
    gid=0x0000000000000000:0x0000000000000000 lid_range_begin=0xffff lid_range_end=0x0 \
    is_generic=0x1 subscribe=0x1 trap_type=0xffff trap_num=0x40 qpn_resp_time_val=0x113 \
    node_type=0xffffff rep_addr: lid=0x0005 path_bits=0x00 static_rate=0x00 remote_qp=0x00000001 \
    remote_qkey=0x80010000 pkey_ix=0x0001 sl=0x02\n\n";
const ALIASES: &str = "GUIDInfo Record: base_guid=0x00000000000000a1 lid=0x0007 block_num=0x0 \
    guid0=0x00000000000000a1 guid1=0x00000000000000b1 guid2=0x0000000000000000 \
    guid3=0x0000000000000000 guid4=0x0000000000000000 guid5=0x0000000000000000 \
    guid6=0x0000000000000000 guid7=0x00000000000000b7\n\n";

#[test]
fn every_record_is_read_and_written_as_opensm_has_it() {
    let text = [ALIASES, GROUP, MEMBER, SUBSCRIPTION, SERVICE].concat();
    let rows = parse(text.as_bytes()).unwrap();
    let counts = [
        rows.groups.len(),
        rows.members.len(),
        rows.services.len(),
        rows.subscriptions.len(),
        rows.alias_guids.len(),
    ];
    assert_eq!(counts, [1, 1, 1, 1, 2]);
    assert_eq!(print(&rows), text);
}

#[test]
fn what_opensm_wrote_is_read() {
    let rows = parse(WRITTEN).unwrap();
    let lines = |start: &str| {
        let text = std::str::from_utf8(WRITTEN).unwrap();
        text.lines().filter(|line| line.starts_with(start)).count()
    };
    assert_eq!(rows.groups.len(), lines("MC Group"));
    assert_eq!(rows.members.len(), lines("mcm_port"));
    assert_eq!(rows.subscriptions.len(), lines("InformInfo"));
    let endless = rows.services.iter().filter(|row| row.expires_s.is_none()).count();
    let ended = lines("Service") - rows.services.len();
    assert!(endless > 0 && rows.services.len() + ended == lines("Service"));
    assert!(rows.alias_guids.len() == 1 && rows.groups.iter().any(|group| group.predefined));
    assert!(rows.groups.iter().any(|group| !group.predefined));
}

#[test]
fn a_lease_goes_on_where_it_was() {
    let rows = parse(SERVICE.as_bytes()).unwrap();
    let row = rows.services.iter().next().unwrap();
    assert_eq!(row.expires_s, Some(0x6553_F100 + 0x5A));
    assert_eq!(ServiceRecord::new(&row.record).unwrap().service_lease(), 0x64);
    let ended = SERVICE.replace("0x6553f100", "0x6553f000");
    assert!(parse(ended.as_bytes()).unwrap().services.is_empty());
    let endless = ended.replace("lease=0x64", "lease=0xffffffff");
    assert_eq!(parse(endless.as_bytes()).unwrap().services.iter().next().unwrap().expires_s, None);
}

#[test]
fn subscriptions_get_distinct_numbers() {
    let other = SUBSCRIPTION.replace("trap_num=0x40", "trap_num=0x101");
    let text = [SUBSCRIPTION, &other, SUBSCRIPTION].concat();
    let rows = parse(text.as_bytes()).unwrap().subscriptions;
    let rows: Vec<_> =
        rows.iter().map(|row| (row.rid.enumeration, row.trusted, row.pkey.0)).collect();
    // Trap 257 is granted to the trusted only, so this one was.
    assert_eq!(rows, [(0, false, 0x8001), (1, true, 0x8001)]);
}

#[test]
fn groups_without_full_members_are_left_out() {
    let sends_only = MEMBER.replace("0x21", "0x24");
    let rows = parse([GROUP, &sends_only].concat().as_bytes()).unwrap();
    assert!(rows.groups.is_empty() && rows.members.is_empty());
    let known = GROUP.replace("0xc001 :", "0xc001  (well known):");
    let rows = parse((known + &sends_only).as_bytes()).unwrap();
    assert!(rows.groups.iter().next().unwrap().predefined && rows.members.len() == 1);
}

#[test]
fn a_line_that_cannot_be_read_is_named() {
    let after = format!("# made by hand\n\n{GROUP}");
    assert_eq!(refused(&format!("{after}Multicast Group\n")), (5, Problem::Unknown));
    assert_eq!(refused(MEMBER), (1, Problem::NoGroup));
    assert_eq!(refused(&[GROUP, SERVICE, MEMBER].concat()), (5, Problem::NoGroup));
    let short = SERVICE.replace(" pkey=0xffff", "");
    assert_eq!(refused(&short), (1, Problem::Missing(" pkey=0x")));
    let large = SERVICE.replace("pkey=0xffff", "pkey=0x1ffff");
    assert_eq!(refused(&large), (1, Problem::Number(" pkey=0x")));
    let text = SERVICE.replace("pkey=0xffff", "pkey=0xwhat");
    assert_eq!(refused(&text), (1, Problem::Number(" pkey=0x")));
    let error = parse(b"\nnothing").unwrap_err();
    assert_eq!(error.to_string(), "line 2: unknown record type");
}

/// In OpenSM's dump, a service named "x'\nMC Group ..." is a group after the next start.
#[test]
fn a_name_cannot_begin_a_record_of_its_own() {
    let named = |name: &[u8]| {
        let mut bytes = [0; 64];
        bytes[..name.len()].copy_from_slice(name);
        let mut row =
            (**parse(SERVICE.as_bytes()).unwrap().services.iter().next().unwrap()).clone();
        ServiceRecord::new(&mut row.record[..]).unwrap().set_service_name(bytes);
        let rows =
            RegistryPlane { services: [Arc::new(row)].into_iter().collect(), ..Default::default() };
        let text = print(&rows);
        let read = parse(text.as_bytes()).unwrap();
        let row = read.services.iter().next().unwrap().clone();
        let name = ServiceRecord::new(&row.record).unwrap().service_name();
        (text.lines().count(), String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned())
    };
    assert_eq!(named(b"plain name"), (2, "plain name".to_owned()));
    assert_eq!(named(b"x\nMC Group 0xc001"), (2, "x".to_owned()));
    assert_eq!(named(b"it's"), (2, "it's".to_owned()));
    assert_eq!(named(b"both ' and \" of them"), (2, "both ' and ".to_owned()));
    assert_eq!(named(&[b'a'; 64]), (2, "a".repeat(63)));
}

fn guid() -> impl Strategy<Value = Guid> {
    (1..200_u64).prop_map(Guid)
}

fn gid() -> impl Strategy<Value = Gid> {
    (any::<u64>(), guid()).prop_map(|(prefix, guid)| Gid::new(prefix, guid))
}

fn groups() -> impl Strategy<Value = Vec<(MulticastGroup, Vec<MulticastMember>)>> {
    let group =
        (any::<[u8; 52]>(), any::<bool>(), btree_map(gid(), (any::<u8>(), any::<bool>()), 1..4));
    btree_map(gid(), group, 0..4).prop_map(|groups| {
        let of = |(mgid, (mut record, predefined, members)): (_, ([u8; 52], _, _))| {
            record[48] &= 0xF0;
            record[49..].fill(0);
            let mut view = McMemberRecord::new(&mut record[..]).unwrap();
            view.set_mgid(mgid).set_port_gid(Gid::ZERO);
            let members: std::collections::BTreeMap<Gid, (u8, bool)> = members;
            let members = members.into_iter().map(|(port_gid, (state, proxy_join))| {
                let rid = MulticastMemberRid { mgid, port_gid };
                MulticastMember { rid, join_state: state & 0x0F | 1, proxy_join }
            });
            (MulticastGroup { mgid, record, predefined }, members.collect())
        };
        groups.into_iter().map(of).collect()
    })
}

fn services() -> impl Strategy<Value = Vec<Service>> {
    let record = (vec(any::<u8>(), 176), "[ -~]{0,63}", prop::option::of(1..1_000_000_u64));
    vec(record, 0..4).prop_map(|records| {
        let of = |(bytes, name, left): (Vec<u8>, String, Option<u64>)| {
            let mut record: [u8; 176] = bytes.try_into().unwrap();
            let mut text = [0; 64];
            // One kind of quotes can be written, not both.
            text[..name.len()].copy_from_slice(name.replace('"', "'").as_bytes());
            let mut view = ServiceRecord::new(&mut record[..]).unwrap();
            let lease = left.map_or(u32::MAX, |left| left as u32);
            view.set_service_name(text).set_service_lease(lease);
            let rid = ServiceRid {
                service_id: view.service_id(),
                service_gid: view.service_gid(),
                service_pkey: view.service_pkey(),
            };
            record[26..28].fill(0);
            Service { rid, record, expires_s: left.map(|left| NOW_S + left) }
        };
        records.into_iter().map(of).collect()
    })
}

fn subscriptions() -> impl Strategy<Value = Vec<Subscription>> {
    let row = (gid(), any::<[u8; 36]>(), any::<u16>(), 0..1_u32 << 24, 0..16_u16, any::<bool>());
    vec(row, 0..5).prop_map(|rows| {
        type Random = (Gid, [u8; 36], u16, u32, u16, bool);
        let of = |(at, row): (usize, Random)| {
            let (subscriber_gid, mut inform_info, lid, qpn, sl, second) = row;
            let rid = SubscriptionRid { subscriber_gid, enumeration: at as u16 };
            inform_info[20..22].fill(0);
            inform_info[32] = 0;
            inform_info[26] = 2; // No trap of 256 to 259.
            Subscription {
                rid,
                inform_info,
                lid: Lid(lid),
                qpn: Qpn(qpn),
                sl: Sl::from_low_bits(sl),
                pkey: if second { PKey(0x8001) } else { PKey::DEFAULT_FULL },
                grh: false,
                trusted: false,
                responder: 0,
            }
        };
        rows.into_iter().enumerate().map(of).collect()
    })
}

fn aliases() -> impl Strategy<Value = Vec<AliasGuid>> {
    btree_map((guid(), 1..=254_u8), 1_000..u64::MAX, 0..5).prop_map(|places| {
        let of = |((port_guid, index), alias)| AliasGuid { alias: Guid(alias), port_guid, index };
        places.into_iter().map(of).collect()
    })
}

fn shared<R: sa_proto::snapshot::Row>(rows: Vec<R>) -> sa_proto::snapshot::Rows<R> {
    rows.into_iter().map(Arc::new).collect()
}

proptest! {
    #[test]
    fn rows_come_back_as_they_were_written(
        groups in groups(),
        services in services(),
        subscriptions in subscriptions(),
        alias_guids in aliases(),
    ) {
        let (groups, members): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
        let rows = RegistryPlane {
            groups: shared(groups),
            members: shared(members.concat()),
            services: shared(services),
            subscriptions: shared(subscriptions),
            alias_guids: shared(alias_guids),
            ..RegistryPlane::default()
        };
        let text = print(&rows);
        // OpenSM reads so many bytes of a line.
        prop_assert!(text.lines().all(|line| line.len() < 1022), "{}", text);
        let again = parse(text.as_bytes()).unwrap();
        prop_assert_eq!(&again, &rows);
        prop_assert_eq!(print(&again), text);
    }

    #[test]
    fn no_text_is_too_much(text in "(MC Group|mcm_port|Service Record:|InformInfo Record:| \
        mgid=0x|:0x|[ -~\n]){0,60}") {
        let _ = parse(text.as_bytes());
    }
}

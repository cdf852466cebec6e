//! PathRecords for which the recorded fabrics have no cases: LMC, hosts connected without a switch,
//! paths without a return path, limits of single links.

use std::sync::Arc;
use std::time::Instant;

use crate::common::{Chain, SM_KEY, path_request, published, request};
use ib_mad::transport::Packet;
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, PortNum, Rate, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::{ClassPortInfo, LinkSpeeds, NodeInfo, PortInfo};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{FabricPlane, PathSls, Port, VirtualPort, VirtualPorts};
use sa_server::query::redirect::Redirection;
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;

const TWO: Chain = Chain { switches: 2, hosts_each: 2 };

struct Sa(Responder, u64);

impl Sa {
    fn of(plane: &FabricPlane) -> Self {
        let publisher = published(plane);
        let stats = Arc::new(Stats::default());
        Self(Responder::new(publisher.reader(), ResponderConfig::default(), stats), 0)
    }

    /// The answer's status and PathRecords, as many as fit one MAD.
    fn ask(&mut self, mut packet: Packet) -> (Status, Vec<PathRecord<[u8; 64]>>) {
        let now = Instant::now();
        // Tables under way would take a repeated transaction id for a repeated request.
        self.1 += 1;
        SaMad::new(&mut packet.mad).header_mut().set_tid(self.1);
        if self.0.handle(&mut packet, now) == Outcome::Nothing {
            assert!(self.0.poll_transmit(now, &mut packet), "neither answer nor transfer");
        }
        let mad = SaMad::new(&packet.mad);
        let rmpp = mad.rmpp();
        let len = if rmpp.is_active() { rmpp.payload_len() as usize - 20 } else { 64 };
        let records = match mad.header().status() {
            Status::OK => mad.data()[..len.min(192)].as_chunks().0.to_vec(),
            _ => Vec::new(),
        };
        let view = |record: [u8; 64]| PathRecord::new(record).unwrap();
        (mad.header().status(), records.into_iter().map(view).collect())
    }

    /// The one path between two hosts, if there is one.
    fn path(&mut self, source: u16, destination: u16) -> Option<PathRecord<[u8; 64]>> {
        let (status, records) = self.ask(path_request(source, source, destination, 7));
        assert!(status == Status::OK || status == Status::SA_NO_RECORDS);
        records.into_iter().next()
    }
}

fn info(port: &mut Port) -> PortInfo<&mut [u8]> {
    PortInfo::new(&mut port.info[..]).unwrap()
}

fn is_host(port: &Port, lid: u16) -> bool {
    port.guid == Chain::host_guid(lid)
}

fn table(mut packet: Packet) -> Packet {
    SaMad::new(&mut packet.mad).header_mut().set_method(Method::GET_TABLE);
    packet
}

fn also(mut packet: Packet, mask: ComponentMask) -> Packet {
    let all = SaMad::new(&packet.mad).sa().component_mask() | mask;
    SaMad::new(&mut packet.mad).sa_mut().set_component_mask(all);
    packet
}

fn record(packet: &mut Packet) -> PathRecord<&mut [u8]> {
    PathRecord::new(&mut packet.mad[56..]).unwrap()
}

/// Hosts 1 and 2 of one switch get LIDs 8 to 11 and 12 to 15.
fn with_lmc() -> FabricPlane {
    let chain = Chain { switches: 1, hosts_each: 2 };
    let mut plane = chain.plane(|port| {
        for (host, base) in [(1, 8), (2, 12)] {
            if is_host(port, host) && port.num == PortNum(1) {
                info(port).set_base_lid(Lid(base)).set_lmc(2);
            }
        }
    });
    let lft = Arc::make_mut(&mut plane.lfts[0]);
    lft.ports.fill(255);
    lft.ports[3] = 0;
    lft.ports[8..12].fill(1);
    lft.ports[12..16].fill(2);
    plane
}

#[test]
fn paths_between_lid_ranges_begin_with_those_that_share_no_lid() {
    let mut sa = Sa::of(&with_lmc());
    let mut all = table(path_request(8, 1, 2, 1));
    // More than one MAD holds: three of them, in order.
    let (_, records) = sa.ask(all.clone());
    let lids = |records: &[PathRecord<[u8; 64]>]| -> Vec<(u16, u16, u8)> {
        records.iter().map(|r| (r.slid().0, r.dlid().0, r.preference())).collect()
    };
    assert_eq!(lids(&records), [(8, 12, 0), (9, 13, 0), (10, 14, 0)]);

    let from_9 = path::SLID | path::NUMB_PATH;
    record(&mut all).set_slid(Lid(9)).set_numb_path(3);
    let mut only = also(all.clone(), from_9);
    record(&mut only).set_slid(Lid(9));
    assert_eq!(lids(&sa.ask(only).1), [(9, 12, 0), (9, 13, 2), (9, 14, 2)]);

    record(&mut all).set_numb_path(2);
    assert_eq!(lids(&sa.ask(also(all.clone(), path::NUMB_PATH)).1), [(8, 12, 0), (9, 13, 0)]);
    record(&mut all).set_numb_path(0);
    assert_eq!(lids(&sa.ask(also(all, path::NUMB_PATH)).1), []);
}

#[test]
fn any_lid_of_a_range_names_its_port() {
    let mut sa = Sa::of(&with_lmc());
    let mask = path::SLID | path::DLID;
    let mut packet = request(11, Method::GET, attribute::PATH_RECORD, 1, mask);
    record(&mut packet).set_slid(Lid(10)).set_dlid(Lid(15));
    let (_, records) = sa.ask(packet.clone());
    assert_eq!((records[0].slid(), records[0].dlid()), (Lid(10), Lid(15)));
    assert_eq!(records[0].dgid().guid(), Chain::host_guid(2));
    record(&mut packet).set_dlid(Lid(16));
    assert_eq!(sa.ask(packet).0, Status::SA_NO_RECORDS);
}

#[test]
fn back_to_back_hosts_reach_only_each_other() {
    let mut plane = Chain { switches: 1, hosts_each: 3 }.plane(|_| {});
    let nodes: Vec<Guid> = (1..=2).map(|host| Guid(Chain::host_guid(host).0 - 1)).collect();
    for (own, other) in [(0, 1), (1, 0)] {
        let at = plane.nodes.iter().position(|node| node.guid == nodes[own]).unwrap();
        Arc::make_mut(&mut plane.nodes[at]).ports[0].peer = Some((nodes[other], PortNum(1)));
    }
    for node in plane.nodes.iter_mut().filter(|node| node.switch_info.is_some()) {
        for port in &mut Arc::make_mut(node).ports[1..=2] {
            port.peer = None;
        }
    }
    let mut sa = Sa::of(&plane);
    for (a, b) in [(1, 2), (2, 1), (1, 1)] {
        let found = sa.path(a, b).unwrap();
        assert!(found.reversible(), "{a} to {b}");
        assert_eq!(found.rate(), Rate::Gbps40.code());
    }
    assert!(sa.path(1, 3).is_none() && sa.path(3, 1).is_none());
    assert!(sa.path(3, 3).is_some());
}

#[test]
fn one_way_paths_are_marked_and_refused_if_reversible_is_required() {
    let mut plane = TWO.plane(|_| {});
    // The second switch forgets the way to LID 1.
    let lft = plane.lfts.iter_mut().find(|lft| lft.ports[3] == 1).unwrap();
    Arc::make_mut(lft).ports[1] = 255;
    let mut sa = Sa::of(&plane);
    assert!(!sa.path(1, 3).unwrap().reversible());
    assert!(sa.path(3, 1).is_none());
    assert!(sa.path(2, 3).unwrap().reversible());

    let mut both_ways = also(path_request(1, 1, 3, 5), path::REVERSIBLE);
    record(&mut both_ways).set_reversible(true);
    assert_eq!(sa.ask(both_ways.clone()).0, Status::SA_NO_RECORDS);
    // A zero is no wish (IBA 15.2.5.16).
    record(&mut both_ways).set_reversible(false);
    assert_eq!(sa.ask(both_ways).0, Status::OK);
}

#[test]
fn the_slowest_link_and_the_smallest_mtu_count_wherever_they_are() {
    let (right, left) = (PortNum(3), PortNum(4));
    let slow = |port: &mut Port| {
        info(port).set_link_speed_active(LinkSpeeds::SDR).set_mtu_cap(Mtu::B1024);
    };
    let host_1 = (Guid(Chain::host_guid(1).0 - 1), PortNum(1));
    // A host's link, seen from either end; the link between the switches.
    type Place = fn(&Port, (Guid, PortNum), [PortNum; 2]) -> bool;
    let places: [Place; 3] = [
        |port, _, _| is_host(port, 1),
        |port, host, _| port.peer == Some(host),
        |port, _, between| between.contains(&port.num) && port.peer.is_some(),
    ];
    for (i, place) in places.into_iter().enumerate() {
        let mut sa = Sa::of(&TWO.plane(|port| {
            if place(port, host_1, [right, left]) {
                slow(port);
            }
        }));
        let across = sa.path(1, 3).unwrap();
        assert_eq!((across.mtu(), across.rate()), (Mtu::B1024.code(), Rate::Gbps10.code()), "{i}");
        let beside = sa.path(2, 4).unwrap();
        assert_eq!(beside.mtu() == Mtu::B1024.code(), i == 2, "{i}");
    }
}

#[test]
fn rates_above_the_limit_are_reported_as_slower_ones() {
    let rate = |max_rate| {
        let mut plane = TWO.plane(|_| {});
        plane.subnet.max_rate = max_rate;
        let path = Sa::of(&plane).path(1, 4).unwrap();
        Rate::from_code(path.rate()).unwrap()
    };
    let real = rate(0);
    assert_eq!((rate(63), rate(real.code())), (real, real));
    let slower = rate(real.code() - 1);
    assert!(slower.rank() < real.rank() && slower.code() < real.code(), "{slower:?}");
}

/// The plane of TWO, where these hosts are InfiniHosts of a vendor.
fn with_infinihosts(hosts: &[u16], vendor_id: u32, quirks: bool) -> FabricPlane {
    let mut plane = TWO.plane(|_| {});
    plane.subnet.quirks = quirks;
    for node in &mut plane.nodes {
        if hosts.iter().any(|&host| node.guid == Guid(Chain::host_guid(host).0 - 1)) {
            let node = Arc::make_mut(node);
            NodeInfo::new(&mut node.info[..])
                .unwrap()
                .set_vendor_id(vendor_id)
                .set_device_id(23108);
        }
    }
    plane
}

#[test]
fn paths_of_infinihosts_have_mtu_1024_with_quirks_only() {
    let mtus = |vendor_id, quirks| {
        let mut sa = Sa::of(&with_infinihosts(&[1], vendor_id, quirks));
        [(1, 2), (4, 1), (1, 1), (2, 3)].map(|(from, to)| {
            let returned = sa.path(from, to).unwrap();
            assert!(returned.reversible());
            Mtu::from_code(returned.mtu()).unwrap().bytes()
        })
    };
    for vendor_id in [0x0002C9, 0x0005AD, 0x00066A, 0x0008F1] {
        assert_eq!(mtus(vendor_id, true), [1024, 1024, 1024, 4096], "{vendor_id:#x}");
        assert_eq!(mtus(vendor_id, false), [4096; 4]);
    }
    assert_eq!(mtus(0x001405, true), [4096; 4], "another's adapter of that number");
}

/// As OpenSM has it: a request for more gets the MTU of the links, but "more than 1,024" is not
/// more.
#[test]
fn the_quirk_gives_way_to_who_asks_for_more() {
    let mut sa = Sa::of(&with_infinihosts(&[3], 0x0002C9, true));
    let largest = Mtu::B4096.code();
    let mut ask = |mask, selector: u8, mtu: u8| {
        let mut packet = also(path_request(1, 1, 3, 11), mask);
        packet.mad[56 + 54] = selector << 6 | mtu;
        let (status, records) = sa.ask(table(packet));
        assert_eq!(status, Status::OK, "an empty table is one, too");
        records.first().map(|record| record.mtu())
    };
    let both = path::MTU_SELECTOR | path::MTU;
    for mtu in 1..=5 {
        let greater = match mtu {
            1 | 2 => Some(Mtu::B1024.code()),
            3 | 5 => None,
            _ => Some(largest),
        };
        assert_eq!(ask(both, 0, mtu), greater, "greater than {mtu}");
        let less = (mtu > 1).then(|| Mtu::B1024.code().min(mtu - 1));
        assert_eq!(ask(both, 1, mtu), less, "less than {mtu}");
        assert_eq!(ask(both, 2, mtu), Some(mtu), "exactly {mtu}");
        assert_eq!(ask(both, 3, mtu), Some(largest), "the largest");
        // Half a wish is none.
        for half in [path::MTU_SELECTOR, path::MTU] {
            assert_eq!(ask(half, 3, mtu), Some(Mtu::B1024.code()));
        }
    }
}

#[test]
fn ports_of_foreign_partitions_do_not_exist() {
    let key = |port: &Port| if is_host(port, 1) || is_host(port, 2) { 0x8001 } else { 0x8002 };
    let mut sa = Sa::of(&TWO.plane(|port| port.pkeys = [PKey(key(port))].into()));
    assert!(sa.path(1, 2).is_some());
    assert!(sa.path(1, 3).is_none(), "ends of different partitions");
    let asked_by_3 = path_request(3, 1, 2, 9);
    assert_eq!(sa.ask(asked_by_3).0, Status::SA_NO_RECORDS, "a stranger asks");
    // Ends may see each other and still be none of the requester's business: it holds for tables.
    let everything = request(3, Method::GET_TABLE, attribute::PATH_RECORD, 2, ComponentMask::NONE);
    let (_, records) = sa.ask(everything);
    assert!(records.iter().all(|record| record.pkey() == PKey(0x8002)));
}

#[test]
fn the_trusted_see_foreign_partitions_if_the_subnet_says_so() {
    let key = |port: &Port| if is_host(port, 1) || is_host(port, 2) { 0x8001 } else { 0x8002 };
    let mut plane = TWO.plane(|port| port.pkeys = [PKey(key(port))].into());
    let asked_by_3 = |sa: &mut Sa, sm_key| {
        let mut packet = path_request(3, 1, 2, 9);
        SaMad::new(&mut packet.mad).sa_mut().set_sm_key(sm_key);
        sa.ask(packet).0
    };
    assert_eq!(asked_by_3(&mut Sa::of(&plane), SM_KEY), Status::SA_NO_RECORDS);
    plane.subnet.trusted_see_all = true;
    let mut sa = Sa::of(&plane);
    assert_eq!(asked_by_3(&mut sa, SM_KEY), Status::OK);
    assert_eq!(asked_by_3(&mut sa, 0), Status::SA_NO_RECORDS);
}

#[test]
fn a_limited_member_reaches_itself_by_no_partition_but_sees_its_own_records() {
    let mut sa = Sa::of(&TWO.plane(|port| port.pkeys = [PKey(0x7FFF)].into()));
    assert!(sa.path(1, 2).is_none() && sa.path(1, 1).is_none());
    let mut own = request(1, Method::GET, attribute::NODE_RECORD, 3, ComponentMask::NONE);
    assert_eq!(sa.0.handle(&mut own, Instant::now()), Outcome::Send);
    let mad = SaMad::new(&own.mad);
    assert_eq!((mad.header().status(), &mad.data()[..2]), (Status::OK, &[0, 1][..]));
}

#[test]
fn a_wildcard_on_a_large_fabric_does_not_take_the_responder_down() {
    let mut sa = Sa::of(&Chain { switches: 8, hosts_each: 200 }.plane(|_| {}));
    let mut world = request(1, Method::GET_TABLE, attribute::PATH_RECORD, 4, ComponentMask::NONE);
    assert_eq!(sa.0.handle(&mut world, Instant::now()), Outcome::Nothing, "it grows");
    assert!(sa.0.memory_lent() <= 256 << 10, "of 163 MB, a part is found ahead");
    assert_eq!(
        sa.ask(request(1, Method::GET, attribute::PATH_RECORD, 5, ComponentMask::NONE)).0,
        Status::OK
    );
}

#[test]
fn an_answer_repeats_the_source_gid_it_was_asked_with() {
    let mut sa = Sa::of(&TWO.plane(|_| {}));
    let mut packet = path_request(1, 1, 3, 6);
    let odd_prefix = Gid::new(SUBNET_PREFIX_DEFAULT | 7, Chain::host_guid(1));
    record(&mut packet).set_sgid(odd_prefix);
    assert_eq!(sa.ask(packet.clone()).1[0].sgid(), odd_prefix, "link-local");
    record(&mut packet).set_sgid(Gid::new(0x2001 << 48, Chain::host_guid(1)));
    assert_eq!(sa.ask(packet).0, Status::SA_NO_RECORDS, "of another subnet");
}

#[test]
fn class_port_info_redirects_only_where_it_was_configured() {
    let publisher = published(&TWO.plane(|_| {}));
    let redirection = Redirection::to(vec!["17:0x20:0x8001".parse().unwrap()]);
    for (redirection, lid, qp) in [(redirection, 17, 0x20), (Redirection::off(), 0, 1)] {
        let config = ResponderConfig { redirection, ..ResponderConfig::default() };
        let mut responder = Responder::new(publisher.reader(), config, Arc::default());
        let mut packet =
            request(1, Method::GET, AttributeId::CLASS_PORT_INFO, 8, ComponentMask::NONE);
        assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Send);
        let info = ClassPortInfo::new(&packet.mad[56..]).unwrap();
        assert_eq!((info.redirect_lid(), info.redirect_qp().0), (Lid(lid), qp));
        assert_eq!(info.redirect_qkey(), 0x8001_0000);
    }
}

/// Two switches whose engine assigns SLs to packets, and the SL bits that the engine decides.
fn with_path_sls(engine_sls: u8) -> FabricPlane {
    let mut plane = TWO.plane(|_| {});
    plane.subnet.engine_sls = engine_sls;
    let lids = TWO.hosts() + TWO.switches;
    let rows = plane.lfts.iter().zip([2u8, 5]).map(|(lft, first)| {
        let mut sls = vec![0; lft.ports.len()];
        (1..=lids).for_each(|lid| sls[usize::from(lid)] = first + u8::from(lid == 4));
        Arc::new(PathSls { switch: lft.switch, sls })
    });
    plane.path_sls = rows.collect();
    plane
}

#[test]
fn paths_have_the_sl_that_their_route_keeps_to() {
    let mut sa = Sa::of(&with_path_sls(0xF));
    let mut sl = |from, to| sa.path(from, to).map(|path| path.sl().get());
    assert_eq!((sl(1, 3), sl(1, 4), sl(2, 4), sl(3, 1)), (Some(2), Some(3), Some(3), Some(5)));
    // A table has them too, though its records are copied from each other.
    let mut asked = table(path_request(1, 1, 3, 8));
    SaMad::new(&mut asked.mad).sa_mut().set_component_mask(path::SLID);
    record(&mut asked).set_slid(Lid(1));
    let (status, records) = sa.ask(asked);
    assert_eq!(status, Status::OK);
    for path in &records {
        let own = Lid(1);
        let expected = match path.dlid() {
            lid if lid == own => 0,
            Lid(4) => 3,
            _ => 2,
        };
        assert_eq!(path.sl().get(), expected, "to LID {}", path.dlid());
    }
}

#[test]
fn an_sl_that_the_route_does_not_keep_to_is_no_path() {
    let mut sa = Sa::of(&with_path_sls(0xF));
    let mut ask = |sl: u8| {
        let mut packet = also(path_request(1, 1, 4, 7), path::SL);
        record(&mut packet).set_sl(Sl::from_low_bits(sl.into()));
        let (_, records) = sa.ask(packet);
        records.first().map(|path| (path.sl().get(), path.reversible()))
    };
    assert_eq!(ask(2), None);
    // The way back has another SL: replies on this one keep to no lane that the engine proved.
    assert_eq!(ask(3), Some((3, false)));
}

/// A torus has two levels of service: the upper bit is policy's.
#[test]
fn policy_decides_the_bits_that_the_engine_does_not() {
    let mut sa = Sa::of(&with_path_sls(0x7));
    let mut ask = |sl: u8| {
        let mut packet = also(path_request(1, 1, 4, 7), path::SL);
        record(&mut packet).set_sl(Sl::from_low_bits(sl.into()));
        sa.ask(packet).1.first().map(|path| path.sl().get())
    };
    assert_eq!((ask(3), ask(11), ask(8)), (Some(3), Some(11), None));
}

/// Host 3 with two virtual ports of which the first is in a partition with one of host 1.
fn with_virtual_ports() -> FabricPlane {
    let virtual_port = |index: u16, guid: u64, pkeys: &[u16]| VirtualPort {
        index,
        state: 4,
        guid: Guid(guid),
        node_guid: Guid(guid),
        is_usable: true,
        needs_lid: false,
        description: String::new(),
        pkeys: pkeys.iter().copied().map(PKey).collect(),
    };
    let row = |host: u16, pkeys: &[u16], ports: Vec<VirtualPort>| {
        let pkeys = pkeys.iter().copied().map(PKey).collect();
        Arc::new(VirtualPorts { port_guid: Chain::host_guid(host), pkeys, ports })
    };
    let mut plane = TWO.plane(|_| {});
    let mut needs_lid = virtual_port(3, 0xF3, &[0xFFFF]);
    needs_lid.needs_lid = true;
    plane.virtual_ports = vec![
        row(1, &[0xFFFF, 0x8005], vec![virtual_port(1, 0xE1, &[0x8005])]),
        row(
            3,
            &[0xFFFF, 0x8005],
            vec![
                virtual_port(1, 0xF1, &[0xFFFF, 0x8005]),
                virtual_port(2, 0xF2, &[0xFFFF]),
                needs_lid,
            ],
        ),
    ];
    plane
}

fn between(from: u16, source: Guid, destination: Guid) -> Packet {
    let mut packet = path_request(from, 1, 2, 1);
    let gid = |guid| Gid::new(SUBNET_PREFIX_DEFAULT, guid);
    record(&mut packet).set_sgid(gid(source)).set_dgid(gid(destination));
    packet
}

#[test]
fn a_virtual_port_is_reached_at_the_lid_of_its_port_with_a_grh() {
    let mut sa = Sa::of(&with_virtual_ports());
    let (status, records) = sa.ask(between(2, Chain::host_guid(2), Guid(0xF1)));
    assert_eq!((status, records.len()), (Status::OK, 1));
    let path = &records[0];
    assert_eq!((path.slid(), path.dlid(), path.pkey()), (Lid(2), Lid(3), PKey(0xFFFF)));
    assert_eq!(path.dgid(), Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0xF1)));
    assert_eq!(path.hop_limit(), 2, "senders add a GRH");
    // Back as well; between physical ports there is none.
    let (_, records) = sa.ask(between(3, Guid(0xF1), Chain::host_guid(2)));
    assert_eq!((records[0].dlid(), records[0].hop_limit()), (Lid(2), 2));
    assert_eq!(sa.path(2, 3).unwrap().hop_limit(), 0);
    // One that needs a LID of its own has none.
    let (status, _) = sa.ask(between(2, Chain::host_guid(2), Guid(0xF3)));
    assert_ne!(status, Status::OK);
}

#[test]
fn paths_between_virtual_ports_are_in_a_partition_of_both() {
    let mut sa = Sa::of(&with_virtual_ports());
    let (status, records) = sa.ask(between(1, Guid(0xE1), Guid(0xF1)));
    assert_eq!((status, records.len()), (Status::OK, 1));
    assert_eq!(records[0].pkey(), PKey(0x8005));
    // The other one of host 3 is not in it, nor is the physical port.
    for destination in [Guid(0xF2), Chain::host_guid(3)] {
        let (status, _) = sa.ask(between(1, Guid(0xE1), destination));
        assert_eq!(status, Status::SA_NO_RECORDS, "{destination}");
    }
    // What asks at the LID of a host may be any of its virtual ports.
    let mut of_partition = also(between(1, Guid(0xE1), Guid(0xF1)), path::PKEY);
    record(&mut of_partition).set_pkey(PKey(0x8005));
    assert_eq!(sa.ask(of_partition).1.len(), 1);
}

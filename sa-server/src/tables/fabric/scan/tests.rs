//! Planarized fabrics: ports that are in several planes.

use ib_mad::types::SUBNET_PREFIX_DEFAULT;
use sa_proto::snapshot::{Lft, RegistryPlane};

use super::super::Tables;
use super::super::testing::{self, node};
use super::super::trace::Arrival;
use super::*;

const SWITCHES: [Guid; 2] = [Guid(0xA0), Guid(0xB0)];

fn port(num: u8, guid: Guid, lid: u16, peer: Option<(Guid, u8)>) -> Port {
    testing::port(num, guid, Lid(lid), peer.map(|(guid, num)| (guid, PortNum(num))))
}

/// Three hosts at port n of a switch in each of two planes, the third in the second plane only.
/// Hosts have LIDs 1 to 3, switches 4 and 5.
fn plane() -> FabricPlane {
    let host = |n: u8| Guid(0x10 * u64::from(n));
    let mut nodes = Vec::new();
    for n in 1..=3 {
        let guid = Guid(host(n).0 + 1);
        let first = if n == 3 { (0, None) } else { (u16::from(n), Some((SWITCHES[0], n))) };
        let ports =
            vec![port(1, guid, first.0, first.1), port(2, guid, n.into(), Some((SWITCHES[1], n)))];
        nodes.push(node(host(n), NodeType::Ca, ports));
    }
    let mut lfts = Vec::new();
    for (at, guid) in SWITCHES.into_iter().enumerate() {
        let mut ports = vec![port(0, guid, 4 + at as u16, None)];
        for n in 1..=3 {
            let peer = (at == 1 || n < 3).then_some((host(n), at as u8 + 1));
            ports.push(port(n, guid, 0, peer));
        }
        nodes.push(node(guid, NodeType::Switch, ports));
        let mut table = vec![Lft::NO_ROUTE; 64];
        (1..=3).filter(|n| at == 1 || *n < 3).for_each(|n| table[n] = n as u8);
        table[4 + at] = 0;
        lfts.push(Arc::new(Lft { switch: guid, ports: table.into() }));
    }
    nodes.sort_by_key(|node| node.guid);
    let subnet = Subnet { prefix: SUBNET_PREFIX_DEFAULT, sm_lid: Lid(1), ..Subnet::default() };
    FabricPlane { subnet, nodes, lfts, ..FabricPlane::default() }
}

#[test]
fn a_planarized_port_has_one_set_of_records_and_the_links_of_all_planes() {
    let tables = Tables::build(&plane(), &RegistryPlane::default());
    assert_eq!(tables.contradictions(), 0);
    let records = &tables.records;
    assert_eq!(records.nodes.len(), 5, "a NodeRecord for each LID");
    assert_eq!(records.ports.len(), 3 + 2 * 4);
    // Of each link both ends: two in the first plane, three in the second.
    assert_eq!(records.links.len(), 10);
    for lid in 1..=3 {
        let port = tables.end_ports.by_lid(Lid(lid)).unwrap();
        assert_eq!(port.guid, Guid(0x10 * u64::from(lid) + 1));
    }
}

#[test]
fn a_path_leads_through_any_plane_that_both_ports_are_in() {
    let tables = Tables::build(&plane(), &RegistryPlane::default());
    let end = |lid: u16| *tables.end_ports.by_lid(Lid(lid)).unwrap();
    let hops = |from: u16, to: u16| {
        let class = tables.path_class(&end(from), &end(to), Lid(to));
        class.is_reachable().then_some(class.hops)
    };
    for (from, to) in [(1, 2), (1, 3), (3, 1), (2, 3), (1, 4), (1, 5), (3, 5)] {
        assert_eq!(hops(from, to), Some(1), "{from} to {to}");
        let mut steps = 0;
        let arrival = tables.trace(&end(from), &end(to), Lid(to), |_| steps += 1);
        assert_eq!((arrival, steps), (Arrival::Delivered, 2), "{from} to {to}");
    }
    // The third host is not in the first plane, and the switches are in different ones.
    assert_eq!((hops(3, 4), hops(4, 5)), (None, None));
}

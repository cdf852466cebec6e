//! Members by the GUIDs of virtual ports.

use super::*;

/// A virtual port of port 2.
const VIRTUAL: Guid = Guid(0xF1);

/// The fabric where port 2 has that virtual port; `awaits_others`: not all are known.
fn fabric(virtual_ports: &[(Guid, Guid)], awaits_others: bool) -> Ports {
    let mut fabric = ports();
    fabric.set_virtual_ports(virtual_ports.iter().copied(), awaits_others);
    fabric.set_known(GUIDS.into_iter());
    fabric
}

fn join_by_virtual_port(by: u16) -> Request {
    let of = Gid::new(SUBNET_PREFIX_DEFAULT, VIRTUAL);
    About { of, ..about(by, 2, mgid(1), FULL) }.set()
}

fn joined() -> Registry {
    let mut registry = Registry::default();
    let with = fabric(&[(VIRTUAL, GUIDS[1])], false);
    let reply = registry.write(NOW_S, &with, &join_by_virtual_port(2));
    assert_eq!(reply.status, Status::OK);
    registry
}

#[test]
fn a_host_joins_by_the_gid_of_its_virtual_port() {
    let mut registry = joined();
    let plane = registry.plane();
    let [member] = &plane.members.iter().collect::<Vec<_>>()[..] else { panic!() };
    assert_eq!((member.rid.port_gid.guid(), member.proxy_join), (VIRTUAL, false));
    // Another host joins it only on its behalf, as it could any port.
    let with = fabric(&[(VIRTUAL, GUIDS[1])], false);
    let reply = registry.write(NOW_S, &with, &join_by_virtual_port(3));
    assert_ne!(reply.status, Status::OK, "the host's own membership stays its own");
    // Without the virtual port its GID is unknown.
    let mut without = Registry::default();
    let reply = without.write(NOW_S, &fabric(&[], false), &join_by_virtual_port(2));
    assert_eq!(reply.status, Status::SA_REQ_INVALID);
}

#[test]
fn a_membership_goes_with_its_virtual_port() {
    let mut registry = joined();
    registry.fabric_changed(&fabric(&[(VIRTUAL, GUIDS[1])], false));
    assert_eq!(registry.plane().members.len(), 1);
    registry.fabric_changed(&fabric(&[], false));
    assert_eq!(registry.plane().members.len(), 0);
}

/// After a start, virtual ports are read after the first sweep has ended.
#[test]
fn memberships_stay_until_virtual_ports_are_read_and_those_of_hosts_do_not() {
    let mut registry = joined();
    let with = fabric(&[(VIRTUAL, GUIDS[1])], false);
    assert_eq!(registry.write(NOW_S, &with, &about(3, 3, mgid(1), FULL).set()).status, Status::OK);
    let there = end_ports().into_iter().filter(|port| port.lid.0 != 3).collect();
    let mut awaiting = Ports::new(SUBNET_PREFIX_DEFAULT, GUIDS[0], there);
    awaiting.set_virtual_ports([], true);
    awaiting.set_known(GUIDS.into_iter());
    registry.fabric_changed(&awaiting);
    let plane = registry.plane();
    let left: Vec<Guid> = plane.members.iter().map(|row| row.rid.port_gid.guid()).collect();
    assert_eq!(left, [VIRTUAL]);
}

#[test]
fn the_guid_of_a_virtual_port_is_no_alias_of_another_port() {
    let with = fabric(&[(VIRTUAL, GUIDS[1])], false);
    assert!(with.is_known(VIRTUAL));
    assert_eq!(with.by_virtual_guid(VIRTUAL).map(|port| port.guid), Some(GUIDS[1]));
    assert_eq!(with.by_guid(VIRTUAL), None);
}

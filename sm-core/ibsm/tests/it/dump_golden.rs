//! Compares dumps with those that OpenSM 3.3.23 wrote on ibsim, `src/dump/golden/tree.*`: six
//! switches in a tree with only one possible routing, an LMC of 1, a router, an enhanced port 0.
//! `tree.net` is the output of ibnetdiscover for the same fabric.

use ib_mad::netlist::Net;

use ibsm::plan::site::Site;
use sm_core::dump::*;
use sm_routing::{Engine, HopMatrix, MinHop, NO_ROUTE, Routing, Steering};

const NET: &str = include_str!("../../../src/dump/golden/tree.net");

fn routed() -> (Site, Routing, HopMatrix) {
    let site = Site::new(&Net::parse("tree.net", NET).unwrap(), None).unwrap();
    let routing = MinHop.route(&site.topology, &Steering::default(), None).unwrap();
    let hops = HopMatrix::compute(&site.topology).unwrap();
    (site, routing, hops)
}

fn whole(render: impl Fn(&Tables<'_>, u16) -> String) -> String {
    let (site, routing, hops) = routed();
    let (topology, roster, lfts) = (&site.topology, &site.roster, &routing.tables()[..]);
    let tables = Tables { topology, roster, lfts, hops: Some(&hops) };
    tables.order().iter().map(|&switch| render(&tables, switch)).collect()
}

#[test]
fn forwarding_tables_with_hops_are_those_of_opensm() {
    assert_eq!(whole(fdbs), include_str!("../../../src/dump/golden/tree.opensm.fdbs"));
}

#[test]
fn forwarding_tables_with_names_are_those_of_opensm() {
    assert_eq!(whole(lfts), include_str!("../../../src/dump/golden/tree.opensm-lfts.dump"));
}

#[test]
fn hops_by_port_are_those_of_opensm() {
    assert_eq!(
        whole(lid_matrix),
        include_str!("../../../src/dump/golden/tree.opensm-lid-matrix.dump")
    );
}

/// The engine `file` reads back the dumped tables.
#[test]
fn dumps_read_back_as_the_same_tables() {
    use sm_routing::file::Dump;
    let (site, routing, _) = routed();
    let switches = &site.roster.switches;
    let number = |guid| (0..).zip(switches).find(|(_, s)| s.guid == guid).map(|(n, _)| n);
    for text in [whole(fdbs), whole(lfts)] {
        let dump = Dump::parse(&text).unwrap();
        assert_eq!(dump.resolve(&site.topology, number, |_| None).unwrap(), routing.lfts);
    }
}

#[test]
fn detours_and_gaps_are_marked() {
    let (site, mut routing, hops) = routed();
    let (topology, roster) = (&site.topology, &site.roster);
    // A switch between others, and a host on another switch.
    let near = topology.switches().find(|&switch| topology.links(switch).len() > 1).unwrap();
    let away =
        topology.destinations().iter().find(|to| to.is_host() && to.egress_switch != near).unwrap();
    let lid = away.base_lid;
    let right = routing.port(near, lid);
    let wrong = topology.links(near).iter().find(|link| link.port != right).unwrap().port;
    let line_with = |routing: &Routing, hops| {
        let lfts = &routing.tables()[..];
        let text = fdbs(&Tables { topology, roster, lfts, hops }, near);
        let start = format!("0x{:04X} : ", lid.0);
        text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().to_owned()
    };
    let best = hops.row(near)[usize::from(away.egress_switch)] + 1;
    let text = line_with(&routing, Some(&hops));
    assert_eq!(text, format!("{right:03}  : {best:02}   : yes"));
    assert_eq!(line_with(&routing, None), format!("{right:03}  : HOPS UNKNOWN"));
    routing.lfts[usize::from(near)][lid.index()] = wrong;
    let text = line_with(&routing, Some(&hops));
    let detour =
        format!("{wrong:03}  : {:02}   : No {best} hop path possible via port {wrong}!", best + 2);
    assert_eq!(text, detour);
    routing.lfts[usize::from(near)][lid.index()] = NO_ROUTE;
    assert_eq!(line_with(&routing, Some(&hops)), "UNREACHABLE");
}

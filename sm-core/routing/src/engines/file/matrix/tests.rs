//! Tests that OpenSM's dump is read and has the hop counts that this crate computes.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::{TopologyBuilder, testing};

/// Written by OpenSM 3.3.23 (`-D 0x43`) for the fabric that [`ring`] builds, in ibsim.
const DUMP: &str = include_str!("opensm-lid-matrix.dump");

/// Four switches in a ring with five hosts, with LIDs from `first` on; in the dump `first` is 1.
fn ring(first: u16) -> Topology {
    let mut builder = TopologyBuilder::new();
    for _ in 0..4 {
        builder.add_switch(8).unwrap();
    }
    for (a, b) in [((0, 5), (1, 5)), ((0, 6), (2, 5)), ((1, 6), (3, 5)), ((2, 6), (3, 6))] {
        builder.add_link(a, b).unwrap();
    }
    let switches = [(2, 0, 0), (3, 1, 0), (4, 2, 0), (6, 3, 0)];
    let hosts = [(1, 0, 1), (5, 0, 2), (7, 1, 1), (8, 2, 1), (9, 3, 1)];
    for (lid, egress_switch, exit) in switches.into_iter().chain(hosts) {
        let base_lid = Lid(lid + first - 1);
        builder
            .add_destination(Destination { base_lid, lid_count: 1, egress_switch, exit })
            .unwrap();
    }
    builder.build().unwrap()
}

/// Switch numbers follow the GUIDs of the dump.
fn number(guid: Guid) -> Option<u16> {
    guid.0.checked_sub(0x20_0000).and_then(|number| u16::try_from(number).ok())
}

fn own_lid(topology: &Topology, switch: u16) -> Option<&Destination> {
    topology.destinations().iter().find(|to| !to.is_host() && to.egress_switch == switch)
}

#[test]
fn opensms_dump_has_the_computed_hops() {
    let dump = HopDump::parse(DUMP).unwrap();
    assert_eq!(dump.switches.len(), 4);
    let entry = HopEntry { line: 5, lid: Lid(6), hops: 2, port_guid: Some(Guid(0x20_0003)) };
    assert_eq!(dump.switches[0].entries[3], entry);
    for (first, knows_ports) in [(1, true), (1, false), (101, true)] {
        let topology = ring(first);
        let place = |guid| number(guid).and_then(|switch| own_lid(&topology, switch));
        let place = |guid| if knows_ports { place(guid) } else { None };
        let hops = dump.resolve(&topology, number, place).unwrap();
        assert_eq!(Some(hops), HopMatrix::compute(&topology));
    }
}

#[test]
fn pairs_missing_in_the_dump_are_not_connected() {
    let text = "Switch: guid 0x200000\n0x0003: 01 # portguid 0x200001\n0x0006: ff ff\n\
                Switch: guid 0x20ffff\n0x0003: 01\nSwitch: guid 0x200003\n0x0007: 02\n";
    let topology = ring(1);
    let hops = HopDump::parse(text).unwrap().resolve(&topology, number, |_| None).unwrap();
    assert_eq!(hops.row(0), [0, 1, 255, 255]);
    assert_eq!(hops.row(3), [255, 255, 255, 0], "LID 7 is a host's");
}

#[test]
fn errors_state_the_line_and_the_expected_form() {
    let header = "Switch: guid 0x200000\n";
    let cases = [
        ("\n0x0001: 00", "line 2: `0x0001: 00` belongs to no switch; a switch begins with"),
        ("Switch: 0x5", "line 1: no GUID in `Switch: 0x5`; a switch begins with `Switch: guid"),
        (
            &format!("{header}0xC000: 00"),
            "line 2: `0xC000` is not a unicast LID; hops to a LID are",
        ),
        (&format!("{header}0x0001: 100"), "line 2: `100` is not a number of hops (00"),
        (&format!("{header}0x0001: fe"), "line 2: `fe` is not a number of hops (00 to"),
        (&format!("{header}0x0001: 1 x"), "line 2: `x` is not a number of hops"),
        (&format!("{header}0x0001: # 01"), "line 2: `` is not a number of hops; hops to a LID are"),
    ];
    for (text, expected) in cases {
        let error = HopDump::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn hops_without_a_path_are_rejected() {
    let refused = |from: &str, to: &str| {
        let text = DUMP.replacen(from, to, 1);
        assert_ne!(text, DUMP);
        let dump = HopDump::parse(&text).unwrap();
        dump.resolve(&ring(1), number, |_| None).unwrap_err().to_string()
    };
    let from = "0x0006: 02 ff ff ff ff 02 02";
    let error = refused(from, "0x0006: 03 ff ff ff ff 03 03");
    let switch = "switch 0x0000000000200000";
    let expected =
        format!("line 5: {switch} has 3 hops to LID 6; a switch linked with it must have 2");
    assert_eq!(error, expected);
    let error = refused(from, "0x0006: 00 ff ff ff ff 02 02");
    let expected = format!("line 5: {switch} has 0 hops to LID 6; only its own LID is 0 hops away");
    assert_eq!(error, expected);
    // The path from the first switch depends on a line of one of its neighbours.
    let text: String =
        DUMP.split_inclusive('\n').filter(|l| !l.starts_with("0x0006: 01")).collect();
    let error = HopDump::parse(&text).unwrap().resolve(&ring(1), number, |_| None).unwrap_err();
    assert_eq!((error.line, &error.wrong[..]), (5, &*format!("{switch} has 2 hops to LID 6")));
}

proptest! {
    #[test]
    fn written_dumps_are_read(topology in testing::any_topology()) {
        let hops = HopMatrix::compute(&topology).unwrap();
        let mut text = String::new();
        for switch in topology.switches() {
            writeln!(text, "Switch: guid 0x{:016x}", 0x20_0000 + u64::from(switch)).unwrap();
            for to in topology.destinations().iter().filter(|to| !to.is_host()) {
                let hops = hops.row(switch)[usize::from(to.egress_switch)];
                writeln!(text, "0x{:04x}: {hops:02x} ff {hops:02x}", to.base_lid.0).unwrap();
            }
        }
        let read = HopDump::parse(&text).unwrap().resolve(&topology, number, |_| None);
        prop_assert_eq!(read, Ok(hops));
    }
}

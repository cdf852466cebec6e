//! A host's agent reports what its port was never given: clients do not learn it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::types::{Guid, Lid, PKey, PortNum};
use ib_mad::wire::attribute::{PKeyTable, PortInfo};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{DATA, Smp};
use sm_config::{Remarks, Settings, partitions};

/// A fabric of 8 hosts, managed from the first.
fn bed(settings: Settings) -> Bed {
    Bed::with_manager(&fat_tree(2, 4, 8), settings)
}

fn guid(bed: &Bed, host: usize) -> Guid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().guid
}

fn lid(bed: &Bed, host: usize) -> Lid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().lid
}

/// From now on, answers of a node with this attribute are changed.
fn falsify(
    bed: &mut Bed,
    liar: NodeIndex,
    attribute: AttributeId,
    mut change: impl FnMut(u32, &mut [u8]) + 'static,
) {
    bed.lie = Some(Box::new(move |node, packet| {
        let smp = Smp::new(&packet.mad).unwrap();
        let is_answer = smp.method() == Method::GET_RESP;
        if node == liar && smp.attribute_id() == attribute && is_answer {
            change(smp.attribute_modifier(), &mut packet.mad[DATA]);
        }
    }));
}

fn sweep_again(bed: &mut Bed) -> sm_core::sweep::Report {
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up()
}

/// The LIDs of end ports as published, by port GUID; fails if two have the same.
fn published(bed: &Bed) -> HashMap<Guid, (Lid, u8)> {
    let mut taken = HashMap::new();
    let mut lids = HashMap::new();
    for node in bed.plane().nodes {
        let num = PortNum(u8::from(node.switch_info.is_none()));
        let port = node.port(num).unwrap();
        let info = PortInfo::of(&port.info);
        for lid in info.base_lid().0..info.base_lid().0 + (1 << info.lmc()) {
            assert_eq!(taken.insert(lid, port.guid), None, "two ports with LID {lid}");
        }
        lids.insert(port.guid, (info.base_lid(), info.lmc()));
    }
    lids
}

/// Regression: the base LID and LMC were published and registered as the port reports them, so that
/// requests of all ports with LIDs that it claimed counted as its own.
#[test]
fn the_lids_of_others_stay_theirs_whatever_a_port_reports() {
    for (liar, victim, lmc) in [(1, 7, 0), (7, 1, 0), (1, 7, 7), (7, 1, 7), (3, 0, 0)] {
        let mut bed = bed(Settings::default());
        bed.bring_up();
        let lids: Vec<Lid> = (0..8).map(|host| lid(&bed, host)).collect();
        let claimed = if lmc == 7 { Lid(0) } else { lids[victim] };
        let node = bed.hosts()[liar];
        falsify(&mut bed, node, AttributeId::PORT_INFO, move |_, data| {
            let mut info = PortInfo::new(data).unwrap();
            if claimed != Lid(0) {
                info.set_base_lid(claimed);
            }
            info.set_lmc(lmc);
        });
        let report = sweep_again(&mut bed);
        let what = if lmc == 7 { "reports LMC 7" } else { "reports LID" };
        let faults = report.faults.iter().filter(|fault| fault.contains(what)).count();
        assert_eq!(faults, 1, "{:?}", report.faults);
        let (registered, published) = (bed.registered(), published(&bed));
        for (host, &lid) in lids.iter().enumerate() {
            let guid = guid(&bed, host);
            assert_eq!(registered.by_lid(lid).map(|port| port.guid), Some(guid), "LID {lid}");
            assert_eq!(published[&guid], (lid, 0));
        }
    }
}

/// A port that has lost its LID, or was not given one, is known by none.
#[test]
fn a_port_that_reports_no_lid_is_not_published_with_one() {
    let mut bed = bed(Settings::default());
    let node = bed.hosts()[5];
    falsify(&mut bed, node, AttributeId::PORT_INFO, |_, data| {
        PortInfo::new(data).unwrap().set_base_lid(Lid(0));
    });
    bed.bring_up();
    let guid = guid(&bed, 5);
    assert!(bed.registered().by_guid(guid).is_none());
    assert_eq!(published(&bed)[&guid].0, Lid(0));
}

#[test]
fn all_lids_are_published_and_a_smaller_lmc_is_believed() {
    let mut bed = bed(Settings { lmc: 2, ..Settings::default() });
    let node = bed.hosts()[5];
    falsify(&mut bed, node, AttributeId::PORT_INFO, |_, data| {
        PortInfo::new(data).unwrap().set_lmc(1);
    });
    bed.bring_up();
    let (published, registered) = (published(&bed), bed.registered());
    for host in 1..8 {
        let (lid, lmc) = published[&guid(&bed, host)];
        assert_eq!((lid, lmc), (lid, if host == 5 { 1 } else { 2 }));
        let last = Lid(lid.0 + (1 << lmc) - 1);
        assert_eq!(registered.by_lid(last).map(|port| port.guid), Some(guid(&bed, host)));
    }
}

/// Regression: P_Keys were published as the port reports them: a host that claimed those of a
/// partition saw its members, got paths to them, and joined its groups.
#[test]
fn p_keys_that_a_port_was_not_given_are_not_published() {
    let mut bed = bed(Settings::default());
    let (member, liar) = (guid(&bed, 2), bed.hosts()[5]);
    let text = format!("Default=0x7fff:ALL,SELF=full;A=1:{member}=full;");
    let file = partitions::parse(Path::new("p"), &text, &mut Remarks::default()).unwrap();
    bed.managers[0].sweeper.set_partitions(Arc::new(file));
    falsify(&mut bed, liar, AttributeId::PKEY_TABLE, |block, data| {
        if block != 0 {
            return;
        }
        let mut table = PKeyTable::new(data).unwrap();
        for (index, key) in [0xFFFF, 0x8001, 0x8002].into_iter().enumerate() {
            table.set_pkey(index, PKey(key));
        }
    });
    bed.bring_up();
    let (registered, plane) = (bed.registered(), bed.plane());
    let keys = |host: usize| {
        let node = bed.fabric.node(bed.hosts()[host]).guid;
        let row = plane.nodes.iter().find(|row| row.guid == node).unwrap();
        let row = row.port(PortNum(1)).unwrap().pkeys.to_vec();
        let registered = registered.by_guid(guid(&bed, host)).unwrap().pkeys.to_vec();
        assert_eq!(row, registered);
        row
    };
    assert_eq!(keys(5), [PKey(0x7FFF)], "limited, as it was given");
    assert_eq!(keys(2), [PKey(0x7FFF), PKey(0x8001)]);
    // Once it is a member, it has the P_Key.
    let text = format!("Default=0x7fff:ALL,SELF=full;A=1:{member}=full,{}=full;", guid(&bed, 5));
    let file = partitions::parse(Path::new("p"), &text, &mut Remarks::default()).unwrap();
    bed.managers[0].sweeper.set_partitions(Arc::new(file));
    sweep_again(&mut bed);
    let pkeys = bed.registered().by_guid(guid(&bed, 5)).unwrap().pkeys.to_vec();
    assert_eq!(pkeys, [PKey(0x7FFF), PKey(0x8001)]);
}

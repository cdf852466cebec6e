//! The GUID that stands for the SA, at ports of responders on a simulated fabric: where it is
//! written, what a port that does not take it means for clients, and what a new master finds.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::Refusal;
use ib_mad::packet::{Grh, Packet};
use ib_mad::types::{Gid, Guid, Lid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, MgmtClass, Status};
use sm_config::Settings;
use sm_core::manage::shard::SaLid;
use sm_core::registry::{GUIDS_PER_BLOCK, GuidBlock};
use sm_core::smp::Kind;
use sm_core::sweep::{SaGuid, Sharding, TakeOverStart};

const SECOND: Duration = Duration::from_secs(1);
/// Entries of the simulator's GUID tables.
const ENTRIES: usize = 32;

/// A subnet of 16 hosts that may all have virtual functions, the SM on the first.
fn bed(virtualized: bool) -> Bed {
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 16), settings);
    let now = bed.clock.now();
    bed.fabric.add_virtual_ports_everywhere(now, 1);
    bed.managers[0].sweeper.set_sharding(Some(Sharding { share: 100, virtualized }));
    bed.bring_up();
    bed
}

fn guid(bed: &Bed, host: usize) -> Guid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().guid
}

fn lid(bed: &Bed, host: usize) -> Lid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().lid
}

/// The GUID table of a host's port.
fn table(bed: &Bed, host: usize) -> Vec<Guid> {
    bed.fabric.guid_table(bed.hosts()[host], 1).unwrap()
}

/// Entries of a host's port that have the SA's GUID.
fn entries(bed: &Bed, host: usize) -> Vec<usize> {
    let table = table(bed, host);
    (0..table.len()).filter(|&at| table[at] == Guid::WELL_KNOWN_SA).collect()
}

/// Responders answer at these hosts for so long.
fn serve(bed: &mut Bed, responders: &[usize], seconds: u32) {
    let ports: Vec<Guid> = responders.iter().map(|&host| guid(bed, host)).collect();
    let sa_lids: Vec<SaLid> = ports.iter().map(|&port| SaLid { id: port, port }).collect();
    for _ in 0..seconds {
        let now = bed.clock.now();
        bed.managers[0].sweeper.set_sa_ports(now, ports.iter().copied());
        bed.managers[0].sweeper.spread_clients(now, &sa_lids);
        bed.run_for(SECOND);
    }
}

/// MasterSMLIDs of the ports of hosts 4 and on.
fn asked(bed: &Bed) -> BTreeSet<Lid> {
    (4..16).map(|host| bed.fabric.port(bed.hosts()[host], 1).unwrap().master_sm_lid).collect()
}

fn states(bed: &Bed) -> Vec<SaGuid> {
    bed.sweeper().sa_guids().map(|(_, is)| is).collect()
}

/// Requests for GUID tables so far.
fn smps(bed: &Bed) -> u64 {
    let kinds = [Kind::SetGuidInfo, Kind::LastGuids];
    kinds.map(|kind| bed.sweeper().passed(kind).sent).iter().sum()
}

/// Whether a query of a virtual function of host 9 reaches the SA that it is led to.
fn is_heard(bed: &mut Bed) -> bool {
    let [asker, at] = [9, 1].map(|host| bed.hosts()[host]);
    let client = bed.fabric.attach(asker, 1).unwrap();
    let server = bed.fabric.attach(at, 1).unwrap();
    bed.fabric.declare(server, &[MgmtClass::SUBN_ADM]).unwrap();
    let view = bed.fabric.port(asker, 1).unwrap();
    let mut packet = Packet::to(ib_mad::packet::Address::gsi(view.master_sm_lid));
    let of = |guid| Gid::new(SUBNET_PREFIX_DEFAULT, guid);
    packet.address.grh = Some(Grh {
        remote_gid: of(Guid::WELL_KNOWN_SA),
        local_gid: of(bed.fabric.virtual_ports(asker, 1)[1].guid),
        ..Grh::default()
    });
    MadHeader::new(&mut packet.mad)
        .unwrap()
        .set_base_version(1)
        .set_mgmt_class(MgmtClass::SUBN_ADM)
        .set_class_version(2)
        .set_method(Method::GET);
    let before = bed.fabric.counters().delivered;
    let now = bed.clock.now();
    bed.fabric.send(now, client, &packet);
    bed.run_for(Duration::from_millis(1));
    bed.fabric.detach(now, client);
    bed.fabric.detach(now, server);
    bed.fabric.counters().delivered > before
}

#[test]
fn virtual_functions_are_led_to_responders_whose_ports_take_the_guid_of_the_sa() {
    let mut bed = bed(false);
    let sm = lid(&bed, 0);
    assert_eq!(asked(&bed), BTreeSet::from([sm]));
    serve(&mut bed, &[1, 2], 4);
    assert_eq!((entries(&bed, 1), entries(&bed, 2)), (vec![ENTRIES - 1], vec![ENTRIES - 1]));
    assert!((3..16).chain([0]).all(|host| entries(&bed, host).is_empty()));
    assert_eq!(states(&bed), [SaGuid::Held; 2]);
    assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 1), lid(&bed, 2)]));
    serve(&mut bed, &[1], 4);
    assert!(is_heard(&mut bed));
    // What the SA knows has no such end port.
    assert!(
        bed.plane()
            .nodes
            .iter()
            .flat_map(|node| &node.ports)
            .all(|port| { port.guid != Guid::WELL_KNOWN_SA })
    );
    assert!(bed.reports().iter().all(|report| report.duplicates.is_empty()));

    // The second responder is gone, and its port's entry with it.
    assert_eq!((entries(&bed, 1), entries(&bed, 2)), (vec![ENTRIES - 1], vec![]));
    assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 1)]));
    serve(&mut bed, &[], 4);
    assert_eq!((entries(&bed, 1), asked(&bed)), (vec![], BTreeSet::from([sm])));
}

/// A port can say no in four ways.
#[test]
fn a_port_that_does_not_take_it_gets_no_virtual_functions() {
    for way in 0..4 {
        let mut bed = bed(false);
        let host = bed.hosts()[1];
        match way {
            0 => bed.fabric.set_guid_table(host, 1, 1, false).unwrap(),
            1 => bed.fabric.set_guid_table(host, 1, ENTRIES as u8, true).unwrap(),
            _ => {
                let status = (way == 2).then_some(Status::UNSUPPORTED_METHOD_ATTRIBUTE);
                let (method, attribute) = (Some(Method::SET), AttributeId::GUID_INFO);
                let refusal = Refusal { method, attribute, port: None, status, times: u32::MAX };
                bed.fabric.refuse(host, refusal).unwrap();
            }
        }
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.bring_up();
        serve(&mut bed, &[1], 8);
        let expected = [SaGuid::NoRoom, SaGuid::Refused, SaGuid::Refused, SaGuid::Awaited][way];
        assert_eq!((way, states(&bed)), (way, vec![expected]));
        assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 0)]), "{way}");
        let before = smps(&bed);
        serve(&mut bed, &[1, 2], 8);
        assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 2)]), "{way}: all ask the one that can");
        serve(&mut bed, &[1, 2], 600);
        if way < 3 {
            assert!(smps(&bed) - before < 60, "it is not asked for ever: {way}");
        }
    }
    // Unless the operator knows that there are none.
    let mut bed = bed(true);
    let host = bed.hosts()[1];
    bed.fabric.set_guid_table(host, 1, 1, false).unwrap();
    serve(&mut bed, &[1], 4);
    assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 1)]));
    assert!(!is_heard(&mut bed));
}

#[test]
fn aliases_of_the_registry_go_first_and_the_guid_of_the_sa_evades_them() {
    let mut bed = bed(false);
    let put = |bed: &mut Bed, used: std::ops::Range<usize>| {
        let mut guids = [Guid(0); GUIDS_PER_BLOCK];
        used.for_each(|at| guids[at] = Guid(0xA0 + at as u64));
        let block = GuidBlock { port_guid: guid(bed, 1), number: 3, guids };
        let now = bed.clock.now();
        bed.managers[0].sweeper.put_guid_blocks(now, &[block]);
        serve(bed, &[1], 3);
        assert_eq!(table(bed, 1)[24..].iter().filter(|guid| guid.0 & !0xF == 0xA0).count(), {
            guids.iter().filter(|guid| guid.0 != 0).count()
        });
    };
    serve(&mut bed, &[1], 3);
    put(&mut bed, 6..8);
    assert_eq!((entries(&bed, 1), states(&bed)), (vec![29], vec![SaGuid::Held]));
    put(&mut bed, 0..8);
    assert_eq!((entries(&bed, 1), states(&bed)), (vec![], vec![SaGuid::NoRoom]));
    assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 0)]));
    put(&mut bed, 0..0);
    assert_eq!((entries(&bed, 1), states(&bed)), (vec![31], vec![SaGuid::Held]));
    assert_eq!(asked(&bed), BTreeSet::from([lid(&bed, 1)]));
    // Its responder is gone: the aliases stay.
    put(&mut bed, 7..8);
    serve(&mut bed, &[], 3);
    assert_eq!((entries(&bed, 1), table(&bed, 1)[31]), (vec![], Guid(0xA7)));
}

#[test]
fn a_port_that_was_reset_gets_it_again_and_a_new_master_finds_the_old_ones() {
    let mut bed = bed(false);
    serve(&mut bed, &[1, 2], 4);
    let (now, host) = (bed.clock.now(), bed.hosts()[1]);
    bed.fabric.reboot(now, host).unwrap();
    assert!(entries(&bed, 1).is_empty());
    serve(&mut bed, &[1, 2], 20);
    assert_eq!((entries(&bed, 1), states(&bed)), (vec![31], vec![SaGuid::Held; 2]));

    // The manager restarts, and the second responder is not there any more.
    let before = bed.crash_manager();
    let host = bed.hosts()[0];
    let settings = Settings { sweep_interval: 0, ..Settings::default() };
    bed.manage(host, settings, before.sweeper.lids().clone());
    let sharding = Some(Sharding { share: 100, virtualized: false });
    bed.managers[0].sweeper.set_sharding(sharding);
    bed.bring_up();
    serve(&mut bed, &[1], 3);
    assert_eq!((states(&bed), asked(&bed)), (vec![SaGuid::Held], BTreeSet::from([lid(&bed, 1)])));
    assert_eq!(entries(&bed, 2), vec![31], "it may come back");
    serve(&mut bed, &[1], 70);
    assert_eq!((entries(&bed, 1), entries(&bed, 2)), (vec![31], vec![]));
    let before = smps(&bed);
    serve(&mut bed, &[1], 300);
    assert_eq!(smps(&bed), before, "once in a term");
}

/// A spare has it before it gets the LID: its clients are not led elsewhere meanwhile.
#[test]
fn clients_with_virtual_functions_stay_when_a_spare_takes_over() {
    let mut bed = bed(false);
    let (old, spare) = (guid(&bed, 1), guid(&bed, 3));
    bed.managers[0].sweeper.set_responder_ports([old, spare]);
    let seats = [SaLid { id: old, port: old }];
    for _ in 0..4 {
        let now = bed.clock.now();
        bed.managers[0].sweeper.set_sa_ports(now, [old, spare]);
        bed.managers[0].sweeper.spread_clients(now, &seats);
        bed.run_for(SECOND);
    }
    let taken = lid(&bed, 1);
    assert_eq!(asked(&bed), BTreeSet::from([taken]));
    let what = sm_core::manage::shard::TakeOver { old, spare };
    let now = bed.clock.now();
    assert_eq!(bed.managers[0].sweeper.take_over(now, what), TakeOverStart::Begun);
    bed.run_until(SECOND * 30, "taken over", |bed| !bed.managers[0].taken_over.is_empty());
    for _ in 0..5 {
        let now = bed.clock.now();
        bed.managers[0].sweeper.set_sa_ports(now, [spare]);
        let seats = [SaLid { id: old, port: spare }];
        assert_eq!(bed.managers[0].sweeper.spread_clients(now, &seats), 0, "none moves");
        bed.run_for(SECOND);
    }
    assert_eq!((asked(&bed), lid(&bed, 3)), (BTreeSet::from([taken]), taken));
    assert_eq!((entries(&bed, 1), entries(&bed, 3)), (vec![], vec![31]));
}

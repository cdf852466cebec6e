//! Partitions that programs made, on a simulated fabric: in force without a sweep, beside those of
//! the operator's file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use ib_mad::types::{Guid, PKey};
use ib_mad::wire::mad::AttributeId;
use sa_proto::snapshot::{
    AliasGuid, ApiPartition, PartitionMember, PartitionMemberRid, RegistryPlane,
};
use sm_config::{Remarks, Settings, partitions};
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::manage::partition;

/// How soon a change must be in force.
const SOON: Duration = Duration::from_secs(1);

fn bed(text: &str) -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 4, 8), Settings::default());
    let file = partitions::parse(Path::new("p"), text, &mut Remarks::default()).unwrap();
    bed.managers[0].sweeper.set_partitions(Arc::new(file));
    bed
}

fn guid(bed: &Bed, host: usize) -> Guid {
    bed.fabric.port(bed.hosts()[host], 1).unwrap().guid
}

/// Rows of a partition with these members, full ones or limited ones.
fn rows(pkey: u16, members: &[(Guid, bool)]) -> RegistryPlane {
    let pkey = PKey(pkey);
    let partition = ApiPartition {
        pkey,
        name: String::new(),
        ipoib: true,
        mtu: 0,
        rate: 0,
        sl: Default::default(),
    };
    let member = |&(guid, full): &(Guid, bool)| {
        let rid = PartitionMemberRid { pkey, guid };
        Arc::new(PartitionMember { rid, full, limited: !full, first: false, host: String::new() })
    };
    RegistryPlane {
        api_partitions: [Arc::new(partition)].into_iter().collect(),
        partition_members: members.iter().map(member).collect(),
        ..RegistryPlane::default()
    }
}

fn put(bed: &mut Bed, plane: &RegistryPlane) {
    let now = bed.clock.now();
    let partitions = Some(Arc::new(ApiPartitions::of(plane)));
    bed.managers[0].sweeper.put_api_partitions(now, partitions);
}

/// The table of a host's port, and that of the switch port at the other end.
fn tables(bed: &Bed, host: usize) -> [Vec<u16>; 2] {
    let host = bed.hosts()[host];
    let far = bed.fabric.port(host, 1).unwrap().link.unwrap();
    let keys = |node, port| bed.fabric.pkeys(node, port).unwrap().iter().map(|key| key.0).collect();
    [keys(host, 1), keys(far.node, far.port)]
}

fn both(keys: &[u16]) -> [Vec<u16>; 2] {
    [keys.to_vec(), keys.to_vec()]
}

#[test]
fn a_change_is_in_force_within_a_second_without_a_sweep() {
    let mut bed = bed("Default=0x7fff: ALL=full;");
    bed.bring_up();
    let sweeps = bed.reports().len();
    let members = [(guid(&bed, 3), true), (guid(&bed, 4), false)];
    put(&mut bed, &rows(5, &members));
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8005]));
    assert_eq!(tables(&bed, 4), both(&[0xffff, 5]));
    assert_eq!(tables(&bed, 5), both(&[0xffff]));
    // The publisher sees it.
    let sweeper = bed.sweeper();
    assert!(sweeper.memberships().is_occupied(PKey(5)));
    let of = (sweeper.partitions(), sweeper.memberships(), sweeper.settings());
    let groups = partition::groups(of.0, of.1, of.2, false);
    assert!(groups.iter().any(|group| group.pkey == PKey(0x8005)), "{groups:?}");
    put(&mut bed, &rows(5, &members[..1]));
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 4), both(&[0xffff]));
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8005]));
    assert_eq!(bed.reports().len(), sweeps, "no sweep was needed");
}

#[test]
fn many_changes_are_computed_together() {
    let mut bed = bed("Default=0x7fff: ALL=full;");
    bed.bring_up();
    let host = guid(&bed, 3);
    for pkey in 1..=50 {
        put(&mut bed, &rows(pkey, &[(host, true)]));
    }
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8032]));
}

#[test]
fn a_change_during_a_sweep_is_in_force_after_it() {
    let mut bed = bed("Default=0x7fff: ALL=full;");
    let host = guid(&bed, 3);
    for phase in [
        sm_core::sweep::Phase::Discover,
        sm_core::sweep::Phase::Addresses,
        sm_core::sweep::Phase::Tables,
    ] {
        bed.run_until(Duration::from_secs(10), "the phase", |bed| bed.sweeper().phase() == phase);
        put(&mut bed, &rows(5 + phase as u16, &[(host, true)]));
    }
    bed.bring_up();
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8005 + sm_core::sweep::Phase::Tables as u16]));
}

#[test]
fn a_member_that_arrives_later_gets_its_key_and_an_alias_stands_for_its_port() {
    let mut bed = bed("Default=0x7fff: ALL=full;");
    bed.bring_up();
    let (away, there) = (bed.hosts()[6], guid(&bed, 3));
    let members = [(guid(&bed, 6), true), (Guid(0xA11A5), true), (Guid(0x200), true)];
    let now = bed.clock.now();
    bed.fabric.node_down(now, away).unwrap();
    bed.run_for(Duration::from_secs(20));
    let mut plane = rows(5, &members);
    let alias = AliasGuid { alias: Guid(0xA11A5), port_guid: there, index: 1 };
    plane.alias_guids = [Arc::new(alias)].into_iter().collect();
    put(&mut bed, &plane);
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8005]));
    let now = bed.clock.now();
    bed.fabric.node_up(now, away).unwrap();
    bed.run_for(Duration::from_secs(20));
    assert_eq!(tables(&bed, 6), both(&[0xffff, 0x8005]));
}

#[test]
fn the_file_applies_where_a_program_disagrees_and_programs_add_to_its_partitions() {
    let mut bed = bed("Default=0x7fff: ALL=full; A=0x5: ALL_SWITCHES=full;");
    let named = guid(&bed, 3);
    let text = format!("Default=0x7fff: ALL=full; A=0x5: {named}=limited;");
    let file = partitions::parse(Path::new("p"), &text, &mut Remarks::default()).unwrap();
    bed.managers[0].sweeper.set_partitions(Arc::new(file));
    bed.bring_up();
    let members = [(named, true), (guid(&bed, 4), true)];
    put(&mut bed, &rows(5, &members));
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff, 5]));
    assert_eq!(tables(&bed, 4), both(&[0xffff, 0x8005]));
    let conflicts = bed.sweeper().partition_conflicts();
    let text: Vec<String> = conflicts.first.iter().map(ToString::to_string).collect();
    assert_eq!(text.len(), 2, "{text:?}");
    assert!(text.iter().any(|line| line.contains(&named.to_string())), "{text:?}");
    put(&mut bed, &rows(5, &members[1..]));
    bed.run_for(SOON);
    assert_eq!(bed.sweeper().partition_conflicts().len(), 1, "its broadcast group");
}

/// A manager whose store does not answer must not take the P_Keys of running jobs away.
#[test]
fn ports_keep_other_keys_until_partitions_of_programs_are_known() {
    let mut bed = bed("Default=0x7fff: ALL=full;");
    bed.bring_up();
    let host = guid(&bed, 3);
    put(&mut bed, &rows(5, &[(host, true)]));
    bed.run_for(SOON);
    let now = bed.clock.now();
    bed.managers[0].sweeper.put_api_partitions(now, None);
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8005]));
    put(&mut bed, &RegistryPlane::default());
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3), both(&[0xffff]));
}

/// It need not wait for a sweep.
#[test]
fn a_block_that_was_refused_is_set_again() {
    let mut bed = bed("Default=0x7fff: ALL=full;");
    bed.bring_up();
    let (host, node) = (guid(&bed, 3), bed.hosts()[3]);
    let refuses = Arc::new(AtomicBool::new(true));
    let asked = refuses.clone();
    bed.lie = Some(Box::new(move |to, packet| {
        let is_table = packet.mad[16..18] == AttributeId::PKEY_TABLE.0.to_be_bytes();
        if to == node && is_table && asked.load(Ordering::Relaxed) {
            // An attribute that no agent knows.
            packet.mad[17] = 0x77;
        }
    }));
    put(&mut bed, &rows(5, &[(host, true)]));
    bed.run_for(SOON);
    assert_eq!(tables(&bed, 3)[0], [0xffff]);
    refuses.store(false, Ordering::Relaxed);
    bed.run_for(Duration::from_secs(4));
    assert_eq!(tables(&bed, 3), both(&[0xffff, 0x8005]));
}

//! Alias GUIDs in the GUID tables of simulated ports.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::types::Guid;
use sm_config::Settings;
use sm_core::registry::{GUIDS_PER_BLOCK, GuidBlock};

fn block(bed: &Bed, host: NodeIndex, number: u8, aliases: &[(usize, u64)]) -> GuidBlock {
    let port_guid = bed.fabric.port(host, 1).unwrap().guid;
    let mut guids = [Guid(0); GUIDS_PER_BLOCK];
    if number == 0 {
        guids[0] = port_guid;
    }
    aliases.iter().for_each(|&(at, alias)| guids[at] = Guid(alias));
    GuidBlock { port_guid, number, guids }
}

fn put(bed: &mut Bed, blocks: &[GuidBlock]) {
    let now = bed.clock.now();
    bed.managers[0].sweeper.put_guid_blocks(now, blocks);
    bed.run_for(Duration::from_secs(5));
}

/// Proves IBA C14-24.1.1.5, C14-62.1.1.22.
#[test]
fn aliases_are_written_to_their_port_and_again_after_it_was_reset() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let host = bed.hosts()[7];
    let first = block(&bed, host, 0, &[(1, 0x11), (3, 0x33)]);
    put(&mut bed, &[first]);
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1..4], first.guids[1..4]);
    let now = bed.clock.now();
    bed.fabric.reboot(now, host).unwrap();
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1], Guid(0), "the reset took them");
    bed.run_for(Duration::from_secs(20));
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1..4], first.guids[1..4]);
    let emptied = block(&bed, host, 0, &[]);
    put(&mut bed, &[emptied]);
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1..4], [Guid(0); 3]);
}

#[test]
fn what_is_asked_for_before_the_subnet_is_up_is_written_when_it_is() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    let host = bed.hosts()[7];
    let first = block(&bed, host, 0, &[(2, 0x22)]);
    let now = bed.clock.now();
    bed.managers[0].sweeper.put_guid_blocks(now, &[first]);
    bed.bring_up();
    bed.run_for(Duration::from_secs(5));
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[2], Guid(0x22));
}

/// Regression: a port that returned got its former aliases, although the registry had given them to
/// another port in the meantime.
#[test]
fn a_port_that_was_away_does_not_get_its_old_aliases_back() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let host = bed.hosts()[7];
    let first = block(&bed, host, 0, &[(1, 0x11)]);
    put(&mut bed, &[first]);
    let now = bed.clock.now();
    bed.fabric.node_down(now, host).unwrap();
    bed.run_for(Duration::from_secs(20));
    let now = bed.clock.now();
    bed.fabric.node_up(now, host).unwrap();
    bed.run_for(Duration::from_secs(20));
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1], Guid(0));
}

/// Regression: the answer to an earlier request was taken for the answer to the current one.
#[test]
fn aliases_that_change_while_they_are_being_written_are_written_again() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let host = bed.hosts()[7];
    let (first, second) = (block(&bed, host, 0, &[(1, 0x11)]), block(&bed, host, 0, &[(2, 0x22)]));
    let now = bed.clock.now();
    bed.managers[0].sweeper.put_guid_blocks(now, &[first]);
    // Long enough for the first to leave, too short for its answer to come.
    bed.run_for(Duration::from_nanos(1));
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1], Guid(0), "the first has not arrived yet");
    put(&mut bed, &[second]);
    bed.run_for(Duration::from_secs(5));
    assert_eq!(bed.fabric.guids(host, 1).unwrap()[1..3], [Guid(0), Guid(0x22)]);
}

//! Multicast trees that move, and those that cannot go everywhere.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use crate::multicast::{heard, join, listeners};
use fabric_sim::generate::{Common, Grid, Shape, generate};
use fabric_sim::{NodeIndex, Refusal};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::smp::Smp;
use sm_core::config::Settings;
use sm_core::smp::Kind;

const MLID: Lid = Lid(0xC007);
const BEFORE: &[usize] = &[0, 1, 2, 3, 4, 5];
const AFTER: &[usize] = &[5, 6, 7, 8, 9, 0];

/// A ring of ten switches with a host each, and the switches in the order of the hosts.
fn ring() -> (Bed, Vec<NodeIndex>) {
    let shape = Shape::Grid(Grid { dims: vec![10], wraps: true, hosts_per_switch: 1, radix: None });
    let net = generate(&shape, &Common::default()).unwrap();
    let mut bed = Bed::with_manager(&net, Settings::default());
    bed.bring_up();
    let home = |&host: &NodeIndex| bed.fabric.port(host, 1).unwrap().link.unwrap().node;
    let switches = bed.hosts().iter().map(home).collect();
    (bed, switches)
}

fn refuse_tables(bed: &mut Bed, switches: &[NodeIndex]) {
    for &switch in switches {
        let refusal = Refusal {
            method: Some(Method::SET),
            attribute: AttributeId::MULTICAST_FORWARDING_TABLE,
            port: None,
            status: Some(Status(0x1C)),
            times: u32::MAX,
        };
        bed.fabric.refuse(switch, refusal).unwrap();
    }
}

/// Half of a ring and the other half are a loop, and packets went round it until the last switch had
/// taken its table.
#[test]
fn a_tree_that_moves_is_no_loop_though_switches_do_not_take_their_tables() {
    let (mut bed, switches) = ring();
    let listeners = listeners(&mut bed);
    let sender = listeners[4].1;
    join(&mut bed, &[(MLID, BEFORE)]);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [1, 2, 3, 4]);
    refuse_tables(&mut bed, &switches[..5]);
    // Another group of the same block does not wait.
    join(&mut bed, &[(MLID, AFTER), (Lid(0xC008), &[6, 7])]);
    for _ in 0..20 {
        let mut heard = heard(&mut bed, &listeners, sender, MLID);
        let count = heard.len();
        heard.dedup();
        assert_eq!(heard.len(), count, "packets come twice");
        bed.run_for(Duration::from_millis(500));
    }
    assert_eq!(heard(&mut bed, &listeners, listeners[5].1, Lid(0xC008)), [7]);
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(70));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [6, 7, 8, 9]);
}

#[test]
fn a_block_is_written_twice_only_if_branches_of_it_go_and_others_come() {
    let (mut bed, _) = ring();
    let listeners = listeners(&mut bed);
    let sender = listeners[4].1;
    join(&mut bed, &[(MLID, BEFORE)]);
    assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, 6);
    join(&mut bed, &[(MLID, AFTER)]);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [6, 7, 8, 9]);
    // Four are cleared, four come, and those at both ends do both.
    assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, 6 + 4 + 4 + 2 * 2);
}

/// Has switches say that they forward no multicast.
fn without_room(bed: &mut Bed, switches: Vec<NodeIndex>) {
    bed.lie = Some(Box::new(move |node, packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        if switches.contains(&node)
            && smp.method() == Method::GET_RESP
            && smp.attribute_id() == AttributeId::SWITCH_INFO
        {
            packet.mad[64 + 4..64 + 6].copy_from_slice(&[0, 0]);
        }
    }));
}

/// Such a switch was root, or on the way, and never got its table: members behind it heard nothing.
#[test]
fn a_tree_leads_around_switches_without_multicast_tables() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    let spines: Vec<NodeIndex> = bed.switches().into_iter().rev().take(3).collect();
    let last = bed.fabric.port(bed.hosts()[19], 1).unwrap().link.unwrap().node;
    without_room(&mut bed, spines.into_iter().chain([last]).collect());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    for number in 0..8 {
        let mlid = Lid(0xC000 + number);
        join(&mut bed, &[(mlid, &[1, 2, 7, 12, 19])]);
        assert_eq!(heard(&mut bed, &listeners, sender, mlid), [2, 7, 12], "{mlid}");
    }
    assert_eq!(bed.sweeper().multicast_trees(), 1);
}

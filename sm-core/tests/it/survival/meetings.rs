//! Subnet managers that start together, come back, or meet.

use std::time::Duration;

use fabric_sim::{NodeIndex, Probability};
use ib_mad::wire::attribute::SmState;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;

use super::{LIMIT, MINUTE, host_lids, large, manage, of_priority, run_for_smps, small};
use crate::common::Bed;

#[test]
fn two_and_three_started_at_once() {
    let priorities: [&[u8]; 6] = [&[3, 3], &[3, 5], &[5, 3], &[3, 3, 3], &[1, 2, 3], &[3, 2, 3]];
    for loss in [0.0, 0.1] {
        for (priorities, offset) in priorities.into_iter().flat_map(|p| [(p, 0), (p, 3)]) {
            for apart in [0, 1, 5, 20, 60, 150, 400, 1000, 5000, 40_000, 1_000_000] {
                let mut bed = small();
                bed.fabric.set_loss(None, Probability::new(loss).unwrap()).unwrap();
                for (at, &priority) in priorities.iter().enumerate() {
                    // In other orders of GUIDs, too.
                    let host = [5, 2, 7, 1, 6, 3][(at + offset) % 6];
                    manage(&mut bed, host, of_priority(priority));
                    bed.run_for(Duration::from_micros(apart));
                }
                let case = format!("{priorities:?} from {offset}, {apart} us apart, loss {loss}");
                bed.run_for(Duration::from_secs(20));
                bed.fabric.set_loss(None, Probability::NEVER).unwrap();
                bed.settle_for_good(LIMIT, &case);
            }
        }
    }
}

/// A master returns, with or without its earlier state, after a number of SMPs of its successor.
#[test]
fn a_master_that_comes_back_while_another_takes_over() {
    for (after, knows) in (0..420).step_by(7).flat_map(|after| [(after, true), (after, false)]) {
        let mut bed = small();
        manage(&mut bed, 2, of_priority(3));
        bed.settle(LIMIT, "up");
        manage(&mut bed, 5, of_priority(3));
        bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
        let before = host_lids(&bed);
        let gone = bed.crash(0);
        run_for_smps(&mut bed, 0, 10 + after);
        bed.managers[0].sends_left = None;
        let host = bed.hosts()[2];
        let lids = if knows { gone.sweeper.lids().clone() } else { LidTable::default() };
        bed.manage(host, of_priority(3), lids);
        let case = format!("back after {after} SMPs, knows: {knows}");
        bed.settle_for_good(LIMIT, &case);
        assert_eq!(host_lids(&bed), before, "{case}");
    }
}

/// A process that was stopped for a long time continues as master.
#[test]
fn a_master_that_slept_through_its_succession() {
    for priorities in [[3, 3], [3, 2], [2, 3]] {
        for asleep in [1, 30, 39, 40, 41, 45, 100] {
            for hosts in [[2, 5], [5, 2]] {
                let mut bed = small();
                manage(&mut bed, hosts[0], of_priority(priorities[0]));
                bed.settle(LIMIT, "up");
                manage(&mut bed, hosts[1], of_priority(priorities[1]));
                bed.settle(LIMIT, "up");
                bed.run_for(Duration::from_secs(1));
                let before = host_lids(&bed);
                let is_master =
                    |at: &usize| bed.managers[*at].sweeper.sm_state() == SmState::Master;
                let at = (0..2).find(is_master).unwrap();
                bed.managers[at].stopped = true;
                bed.run_for(Duration::from_secs(asleep));
                bed.managers[at].stopped = false;
                let case = format!("{priorities:?} at {hosts:?}, asleep for {asleep} s");
                bed.settle_for_good(LIMIT, &case);
                assert_eq!(host_lids(&bed), before, "{case}");
            }
        }
    }
}

/// A master that was stopped during a sweep continues, with requests that are no longer answered.
#[test]
fn a_master_that_slept_in_the_middle_of_a_sweep() {
    for after in (0..420).step_by(7) {
        let mut bed = small();
        manage(&mut bed, 5, of_priority(9));
        manage(&mut bed, 2, of_priority(3));
        run_for_smps(&mut bed, 0, after);
        bed.managers[0].sends_left = None;
        bed.managers[0].stopped = true;
        bed.run_for(Duration::from_secs(60));
        bed.managers[0].stopped = false;
        bed.settle_for_good(LIMIT, &format!("asleep after {after} SMPs"));
    }
}

/// The successor dies, too, after a number of its SMPs, and a third manager takes over.
#[test]
fn one_death_after_the_other() {
    for (bed, step) in [(small as fn() -> Bed, 5), (large, 801)] {
        for after in (0..).step_by(step) {
            let mut bed = bed();
            for (host, priority) in [(2, 9), (5, 5), (7, 3)] {
                manage(&mut bed, host, of_priority(priority));
            }
            bed.settle(LIMIT, "up");
            let before = host_lids(&bed);
            bed.crash(0);
            let is_master = |bed: &Bed| bed.managers[0].sweeper.sm_state() == SmState::Master;
            bed.run_until(MINUTE, "an heir", is_master);
            let died = run_for_smps(&mut bed, 0, after);
            bed.crash(0);
            bed.settle_for_good(LIMIT, &format!("the heir died after {after} SMPs"));
            assert_eq!(host_lids(&bed), before);
            if !died {
                break;
            }
        }
    }
}

/// The master hands over, and it or its successor dies at some moment of that.
#[test]
fn a_death_during_a_handover() {
    for (dies, after) in (0..120).step_by(2).flat_map(|after| [(0, after), (1, after)]) {
        let mut bed = small();
        manage(&mut bed, 5, of_priority(3));
        bed.settle(LIMIT, "up");
        bed.run_for(Duration::from_secs(1));
        let before = host_lids(&bed);
        manage(&mut bed, 2, of_priority(9));
        run_for_smps(&mut bed, dies, after);
        bed.crash(dies);
        let case = format!("{dies} dies after {after} SMPs");
        bed.settle_for_good(LIMIT, &case);
        assert_eq!(host_lids(&bed), before, "{case}");
    }
}

/// The links between the halves of the small fabric: those of two leaves to one of the spines, and
/// of the other two leaves to the other.
fn seam(bed: &Bed) -> Vec<(NodeIndex, u8)> {
    let leaves: Vec<NodeIndex> = bed
        .switches()
        .into_iter()
        .filter(|&node| bed.hosts().iter().any(|&host| behind(bed, host) == node))
        .collect();
    let is_leaf = |node: &NodeIndex| leaves.contains(node);
    let spines: Vec<NodeIndex> = bed.switches().into_iter().filter(|n| !is_leaf(n)).collect();
    let mut seam = Vec::new();
    for (at, &leaf) in leaves.iter().enumerate() {
        for port in 1..=bed.fabric.node(leaf).num_ports {
            let link = bed.fabric.port(leaf, port).unwrap().link;
            let far = link.and_then(|link| spines.iter().position(|&spine| spine == link.node));
            if far.is_some_and(|far| far != at / 2) {
                seam.push((leaf, port));
            }
        }
    }
    seam
}

fn behind(bed: &Bed, host: NodeIndex) -> NodeIndex {
    bed.fabric.port(host, 1).unwrap().link.unwrap().node
}

fn part(bed: &mut Bed, apart: bool) {
    for (node, port) in seam(bed) {
        let now = bed.clock.now();
        if apart {
            bed.fabric.link_down(now, node, port).unwrap();
        } else {
            bed.fabric.link_up(now, node, port).unwrap();
        }
    }
}

/// The fabric is split between a master and a standby, and joined again: all LIDs are as before.
#[test]
fn halves_that_part_and_meet_again() {
    for priorities in [[3, 3], [3, 9], [9, 3]] {
        for apart in [1, 50, 3_000, 45_000, 200_000] {
            let mut bed = small();
            manage(&mut bed, 0, of_priority(priorities[0]));
            manage(&mut bed, 7, of_priority(priorities[1]));
            bed.settle(LIMIT, "up");
            bed.run_for(Duration::from_secs(1));
            let before = host_lids(&bed);
            part(&mut bed, true);
            bed.run_for(Duration::from_millis(apart));
            part(&mut bed, false);
            let case = format!("{priorities:?}, apart for {apart} ms");
            bed.settle_for_good(LIMIT, &case);
            assert_eq!(host_lids(&bed), before, "{case}");
        }
    }
}

/// Two subnets with the same LIDs are joined after a number of SMPs of one master's sweep.
#[test]
fn two_subnets_that_become_one() {
    for (priorities, after) in [[3, 3], [3, 9], [9, 3]]
        .into_iter()
        .flat_map(|priorities| (0..160).step_by(9).map(move |after| (priorities, after)))
    {
        let mut bed = small();
        part(&mut bed, true);
        manage(&mut bed, 0, of_priority(priorities[0]));
        manage(&mut bed, 7, of_priority(priorities[1]));
        run_for_smps(&mut bed, 0, after);
        bed.managers[0].sends_left = None;
        part(&mut bed, false);
        bed.settle_for_good(LIMIT, &format!("{priorities:?}, after {after} SMPs"));
    }
}

/// A subnet manager that claims to be master and never hands over is misconfigured: it is reported,
/// and ours manages what it can.
#[test]
fn two_masters_of_whom_one_is_deaf() {
    let mut bed = small();
    manage(&mut bed, 2, Settings { ignore_other_sm: true, ..of_priority(3) });
    bed.settle(LIMIT, "up");
    manage(&mut bed, 5, of_priority(9));
    bed.run_for(MINUTE * 3);
    assert!(bed.managers[0].sweeper.is_up());
    bed.crash(0);
    bed.settle_for_good(LIMIT, "the deaf one is gone");
}

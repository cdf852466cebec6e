//! Multicast trees on a simulated fabric: packets sent to an MLID, and their receivers.

use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::{Endpoint, NodeIndex, Refusal};
use ib_mad::transport::Packet;
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{ComponentMask, SaMad};
use ib_mad::wire::smp::Smp;
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::smp::Kind;
use sm_routing::multicast::{Audience, Membership};

const MLID: Lid = Lid(0xC007);

/// The GUID of a host's port.
pub(super) fn port_guid(bed: &Bed, host: NodeIndex) -> Guid {
    bed.fabric.port(host, 1).unwrap().guid
}

/// Makes the hosts with these numbers the members of the group, and waits until the tables are
/// programmed.
pub(super) fn join(bed: &mut Bed, groups: &[(Lid, &[usize])]) {
    let hosts = bed.hosts();
    // Groups that are not listed no longer exist.
    let mut membership: Membership =
        (0xC000..0xC400).map(|mlid| (Lid(mlid), Audience::default())).collect();
    for (mlid, members) in groups {
        let mut guids: Vec<Guid> =
            members.iter().map(|&host| port_guid(bed, hosts[host])).collect();
        guids.sort_unstable();
        membership.insert(*mlid, Audience::new(guids, 0));
    }
    bed.managers[0].sweeper.put_members(membership);
    bed.run_for(Duration::from_millis(300));
}

/// Hosts that receive a packet from `sender` to `mlid`, once for each copy.
pub(super) fn heard(
    bed: &mut Bed,
    listeners: &[(usize, Endpoint)],
    sender: Endpoint,
    mlid: Lid,
) -> Vec<usize> {
    let mut packet = Packet::default();
    packet.address.lid = mlid;
    SaMad::new(&mut packet.mad).write_request(
        Method::SEND,
        AttributeId::NOTICE,
        1,
        ComponentMask::NONE,
    );
    let mut now = bed.clock.now();
    bed.fabric.send(now, sender, &packet);
    let mut deliveries = Vec::new();
    for _ in 0..1000 {
        bed.fabric.poll(now, &mut deliveries, usize::MAX);
        now += Duration::from_micros(1);
    }
    bed.clock.advance_to(now);
    let mut heard: Vec<usize> = deliveries
        .iter()
        .filter_map(|delivery| {
            listeners.iter().find(|(_, at)| *at == delivery.endpoint).map(|(host, _)| *host)
        })
        .collect();
    heard.sort_unstable();
    heard
}

pub(super) fn listeners(bed: &mut Bed) -> Vec<(usize, Endpoint)> {
    let hosts = bed.hosts();
    (1..hosts.len())
        .map(|host| {
            let endpoint = bed.fabric.attach(hosts[host], 0).unwrap();
            bed.fabric.set_takes_requests(endpoint, true);
            (host, endpoint)
        })
        .collect()
}

#[test]
fn multicast_reaches_every_member_and_no_one_else() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    assert!(heard(&mut bed, &listeners, sender, MLID).is_empty());
    join(&mut bed, &[(MLID, &[1, 2, 7, 12, 19]), (Lid(0xC100), &[1, 5])]);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 7, 12, 19]);
    assert_eq!(heard(&mut bed, &listeners, sender, Lid(0xC100)), [5]);
    join(&mut bed, &[(MLID, &[1, 2, 12])]);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 12]);
    assert!(heard(&mut bed, &listeners, sender, Lid(0xC100)).is_empty());
}

#[test]
fn a_tree_is_repaired_when_a_link_or_switch_fails() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    join(&mut bed, &[(MLID, &[1, 5, 9, 13, 17])]);
    let spines: Vec<NodeIndex> = bed.switches().into_iter().rev().take(3).collect();
    for spine in spines {
        let now = bed.clock.now();
        bed.fabric.node_down(now, spine).unwrap();
        bed.bring_up();
        bed.run_for(Duration::from_secs(3));
        assert_eq!(heard(&mut bed, &listeners, sender, MLID), [5, 9, 13, 17]);
    }
}

/// Regression: after each failed link all trees were recomputed, with other branches chosen at
/// random.
#[test]
fn trees_that_a_failure_does_not_touch_stay_as_they_are() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 32), Settings::default());
    bed.bring_up();
    let groups: Vec<(Lid, Vec<usize>)> = (0..40)
        .map(|n| (Lid(0xC000 + n), (0..4).map(|k| usize::from(n * 5 + k * 9) % 32).collect()))
        .collect();
    let joined: Vec<(Lid, &[usize])> =
        groups.iter().map(|(mlid, members)| (*mlid, members.as_slice())).collect();
    join(&mut bed, &joined);
    bed.run_for(Duration::from_secs(2));
    let trees = |bed: &Bed| {
        let mut trees: std::collections::BTreeMap<Lid, Vec<_>> = Default::default();
        for (index, switch) in bed.sweeper().fabric().switches() {
            for (mlid, mask) in switch.mft.masks() {
                trees.entry(mlid).or_default().push((index, mask));
            }
        }
        trees
    };
    let before = trees(&bed);
    assert_eq!(before.len(), 40);
    let spine = *bed.switches().last().unwrap();
    let index = bed.sweeper().fabric().find(bed.fabric.node(spine).guid).unwrap();
    let index = bed.sweeper().fabric().node(index).switch.unwrap();
    let uses = |tree: &Vec<(_, sm_routing::PortMask)>| {
        tree.iter().any(|(at, mask)| *at == index && mask.contains(1))
    };
    let touched: Vec<Lid> =
        before.iter().filter(|(_, tree)| uses(tree)).map(|(mlid, _)| *mlid).collect();
    assert!(!touched.is_empty() && touched.len() < 30, "{}", touched.len());
    let now = bed.clock.now();
    bed.fabric.link_down(now, spine, 1).unwrap();
    bed.bring_up();
    bed.run_for(Duration::from_secs(3));
    let after = trees(&bed);
    let moved: Vec<Lid> = after
        .iter()
        .filter(|(mlid, tree)| before[*mlid] != **tree)
        .map(|(mlid, _)| *mlid)
        .collect();
    assert_eq!(moved, touched);
    assert!(after.values().all(|tree| !uses(tree)));
}

#[test]
fn a_switch_that_lost_its_tables_gets_them_again() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    join(&mut bed, &[(MLID, &[1, 5, 9, 13, 17])]);
    for switch in bed.switches().into_iter().skip(1) {
        let now = bed.clock.now();
        bed.fabric.reboot(now, switch).unwrap();
        bed.run_for(Duration::from_secs(20));
        assert_eq!(heard(&mut bed, &listeners, sender, MLID), [5, 9, 13, 17]);
    }
}

#[test]
fn what_a_switch_refuses_is_tried_again() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    for switch in bed.switches() {
        let refusal = Refusal {
            method: Some(Method::SET),
            attribute: AttributeId::MULTICAST_FORWARDING_TABLE,
            port: None,
            status: Some(Status(0x1C)),
            times: u32::MAX,
        };
        bed.fabric.refuse(switch, refusal).unwrap();
    }
    join(&mut bed, &[(MLID, &[1, 5])]);
    assert!(heard(&mut bed, &listeners, sender, MLID).is_empty());
    bed.fabric.refuse_nothing();
    bed.run_for(Duration::from_secs(10));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [5]);
}

#[test]
fn the_published_tables_are_those_of_the_switches() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    join(&mut bed, &[(MLID, &[1, 5, 9])]);
    let plane = bed.plane();
    let masks: usize = plane
        .mfts
        .iter()
        .flat_map(|mft| &mft.blocks)
        .map(|block| {
            assert_eq!((block.block, block.position), (0, 0));
            block.masks.as_chunks::<2>().0.iter().filter(|mask| **mask != [0, 0]).count()
        })
        .sum();
    assert_eq!(masks, plane.mfts.len());
    assert!((1..=4).contains(&masks), "{masks}");
}

#[test]
fn end_ports_that_come_and_go_are_reported() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    assert!(bed.managers[0].changes.is_empty(), "the previous state is not known at first");
    let host = bed.hosts()[9];
    let guid = port_guid(&bed, host);
    let now = bed.clock.now();
    bed.fabric.node_down(now, host).unwrap();
    bed.bring_up();
    let changes = std::mem::take(&mut bed.managers[0].changes);
    let went: Vec<_> = changes.iter().flat_map(|c| &c.went).map(|(guid, _)| *guid).collect();
    assert_eq!(went, [guid]);
    assert!(!changes[0].went[0].1.is_empty(), "its P_Keys are still known");
    assert!(!bed.managers[0].traps.is_empty(), "the switch reported it");
    let now = bed.clock.now();
    bed.fabric.node_up(now, host).unwrap();
    bed.run_for(Duration::from_secs(12));
    let changes = std::mem::take(&mut bed.managers[0].changes);
    let came: Vec<_> = changes.iter().flat_map(|c| &c.came).map(|(guid, _)| *guid).collect();
    assert_eq!(came, [guid]);
}

/// Regression: Failed trees were computed again at once, without limit.
#[test]
fn trees_that_failed_are_computed_again_after_a_while() {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let guid = port_guid(&bed, bed.hosts()[3]);
    let membership: Membership = [(MLID, Audience::new([guid], 0))].into();
    let now = bed.clock.now();
    let sweeper = &mut bed.managers[0].sweeper;
    sweeper.put_members(membership);
    // The next attempt is due after one second, then two.
    for after in [0, 1100, 3300] {
        let at = now + Duration::from_millis(after);
        sweeper.handle_timeout(at);
        assert!(sweeper.poll_multicast(at).is_some());
        sweeper.handle_multicast_failure(at, "as the test wants it");
        assert!(sweeper.poll_multicast(at).is_none());
        assert!(sweeper.poll_multicast(at + Duration::from_millis(900)).is_none());
    }
}

/// A fabric with groups whose master is gone: its trees differ from newly computed ones, and one of
/// them belongs to a group that no longer exists.
fn left_with_groups() -> Bed {
    let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
    bed.bring_up();
    let spine = *bed.switches().last().unwrap();
    let now = bed.clock.now();
    bed.fabric.node_down(now, spine).unwrap();
    bed.bring_up();
    join(&mut bed, &[(MLID, &[1, 2]), (STALE, &[1, 3, 9])]);
    join(&mut bed, &[(MLID, &[1, 2, 7, 12, 19]), (FAR, &[1, 4, 11]), (STALE, &[1, 3, 9])]);
    bed.crash_manager();
    bed
}

const STALE: Lid = Lid(0xC009);
/// In the second block of tables.
const FAR: Lid = Lid(0xC021);

pub(super) fn members(bed: &Bed, groups: &[(Lid, &[usize])]) -> Membership {
    let guids = |members: &[usize]| {
        let mut guids: Vec<Guid> =
            members.iter().map(|&host| port_guid(bed, bed.hosts()[host])).collect();
        guids.sort_unstable();
        Audience::new(guids, 0)
    };
    groups.iter().map(|(mlid, hosts)| (*mlid, guids(hosts))).collect()
}

/// Regression: after -S, or with a copy of the master's registry. Tables were assumed to be empty:
/// blocks were written again, and entries of unknown groups stayed.
#[test]
fn inherited_trees_stay_and_unclaimed_blocks_are_cleared() {
    let mut bed = left_with_groups();
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    let known = members(&bed, &[(MLID, &[1, 2, 7, 12, 19]), (FAR, &[1, 4, 11])]);
    bed.managers[0].sweeper.put_members(known);
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    bed.run_for(Duration::from_secs(10));
    assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, 0, "nothing had to be written");
    assert_eq!(bed.sweeper().multicast_trees(), 2);
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 7, 12, 19]);
    assert_eq!(heard(&mut bed, &listeners, sender, FAR), [4, 11]);
    assert_eq!(heard(&mut bed, &listeners, sender, STALE), [3, 9], "it may be claimed yet");
    bed.run_for(Duration::from_secs(60));
    assert!(heard(&mut bed, &listeners, sender, STALE).is_empty());
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 7, 12, 19]);
    // Members that come and go move it on as any tree.
    let known = members(&bed, &[(MLID, &[1, 7]), (FAR, &[])]);
    bed.managers[0].sweeper.put_members(known);
    bed.run_for(Duration::from_secs(1));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [7]);
    assert!(heard(&mut bed, &listeners, sender, FAR).is_empty());
}

/// Without a registry: a client that registers again gets an MLID that other members already use.
#[test]
fn a_group_takes_the_place_of_what_the_master_before_had_there() {
    let mut bed = left_with_groups();
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    bed.run_for(Duration::from_secs(5));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 7, 12, 19], "until it is replaced");
    let known = members(&bed, &[(MLID, &[1, 5, 19])]);
    bed.managers[0].sweeper.put_members(known);
    bed.run_for(Duration::from_secs(1));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [5, 19]);
    bed.run_for(Duration::from_secs(61));
    assert!(heard(&mut bed, &listeners, sender, FAR).is_empty());
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [5, 19]);
}

/// A tree that misses members because a switch was reset is recomputed.
#[test]
fn a_tree_that_was_left_broken_is_not_kept() {
    let mut bed = left_with_groups();
    let leaf = bed.fabric.port(bed.hosts()[12], 1).unwrap().link.unwrap().node;
    let now = bed.clock.now();
    bed.fabric.reboot(now, leaf).unwrap();
    let host = bed.hosts()[0];
    bed.manage(host, Settings::default(), LidTable::default());
    let known = members(&bed, &[(MLID, &[1, 2, 7, 12, 19])]);
    bed.managers[0].sweeper.put_members(known);
    bed.bring_up();
    let listeners = listeners(&mut bed);
    let sender = listeners[0].1;
    bed.run_for(Duration::from_secs(2));
    assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2, 7, 12, 19]);
}

/// Regression: blocks that could not be read were assumed to be empty, and entries of the previous
/// master were never cleared.
#[test]
fn unreadable_blocks_are_cleared_with_unclaimed_ones() {
    for everywhere in [false, true] {
        let mut bed = left_with_groups();
        let leaf = bed.fabric.port(bed.hosts()[9], 1).unwrap().link.unwrap().node;
        let unread = Refusal {
            method: Some(Method::GET),
            attribute: AttributeId::MULTICAST_FORWARDING_TABLE,
            port: None,
            status: None,
            times: u32::MAX,
        };
        let switches = if everywhere { bed.switches() } else { vec![leaf] };
        switches.into_iter().for_each(|switch| bed.fabric.refuse(switch, unread).unwrap());
        let host = bed.hosts()[0];
        bed.manage(host, Settings::default(), LidTable::default());
        let known = members(&bed, &[(MLID, &[1, 2, 7, 12, 19])]);
        bed.managers[0].sweeper.put_members(known);
        bed.bring_up();
        let listeners = listeners(&mut bed);
        // On the same leaf, so that no other switch is involved.
        let sender = listeners.iter().find(|(host, _)| *host == 8).unwrap().1;
        let hears =
            |bed: &mut Bed, mlid, host| heard(bed, &listeners, sender, mlid).contains(&host);
        bed.run_for(Duration::from_secs(20));
        assert!(hears(&mut bed, FAR, 11), "it may be claimed yet");
        bed.run_for(Duration::from_secs(60));
        assert!(!hears(&mut bed, STALE, 9) && !hears(&mut bed, FAR, 11));
        let sent = bed.sweeper().passed(Kind::SetMulticast).sent;
        bed.run_for(Duration::from_secs(300));
        assert_eq!(bed.sweeper().passed(Kind::SetMulticast).sent, sent, "once is enough");
    }
}

/// Regression: blocks were read up to the first one that is empty in all switches; entries beyond
/// it were never found.
#[test]
fn trees_behind_empty_blocks_are_found() {
    // Four blocks are empty between; or as many as the switches' tops leave room for.
    for (stale, top) in [(Lid(0xC0A5), None), (Lid(0xC2E1), Some([0xC2, 0xFF]))] {
        let mut bed = Bed::with_manager(&fat_tree(2, 8, 20), Settings::default());
        bed.bring_up();
        join(&mut bed, &[(MLID, &[1, 2]), (stale, &[1, 3, 9])]);
        bed.crash_manager();
        if let Some(top) = top {
            bed.tamper = Some(Box::new(move |packet| {
                let smp = Smp::new(&packet.mad).unwrap();
                if smp.method().is_response() && smp.attribute_id() == AttributeId::SWITCH_INFO {
                    packet.mad[64 + 18..64 + 20].copy_from_slice(&top);
                }
            }));
        }
        let host = bed.hosts()[0];
        bed.manage(host, settings_without_tops(), LidTable::default());
        let known = members(&bed, &[(MLID, &[1, 2])]);
        bed.managers[0].sweeper.put_members(known);
        bed.bring_up();
        let listeners = listeners(&mut bed);
        let sender = listeners[0].1;
        assert_eq!(heard(&mut bed, &listeners, sender, stale), [3, 9], "it may be claimed yet");
        bed.run_for(Duration::from_secs(70));
        assert!(heard(&mut bed, &listeners, sender, stale).is_empty(), "{stale:?} is cleared");
        assert_eq!(heard(&mut bed, &listeners, sender, MLID), [2]);
    }
}

/// Tops of multicast tables stay as they are.
fn settings_without_tops() -> Settings {
    Settings { use_mfttop: false, ..Settings::default() }
}

//! Subnet managers that hand over the subnet: in the end the one with the highest precedence is
//! master, and settings that need not change stay.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Bed, fat_tree};
use fabric_sim::NodeIndex;
use ib_mad::netlist::{LinkRate, Net, Node, NodeKind, PortRef};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{SmControl, SmInfo, SmState};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{self, Smp};
use sm_config::Settings;
use sm_core::manage::lid::LidTable;
use sm_core::sweep::Phase;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn of_priority(sm_priority: u8) -> Settings {
    Settings { sm_priority, ..Settings::default() }
}

/// A bed with one manager of priority 3, which is master.
pub(crate) fn ruled() -> Bed {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let host = bed.hosts()[3];
    bed.manage(host, of_priority(3), LidTable::default());
    bed.bring_up();
    bed
}

pub(crate) fn join(bed: &mut Bed, host: usize, settings: Settings) {
    let host = bed.hosts()[host];
    bed.manage(host, settings, LidTable::default());
}

fn states(bed: &Bed) -> Vec<SmState> {
    bed.managers.iter().map(|manager| manager.sweeper.sm_state()).collect()
}

/// Runs until the manager `at` is master of a fabric that is up, and all others are standby.
pub(crate) fn await_master(bed: &mut Bed, at: usize) {
    bed.run_until(MINUTE * 3, "one master", |bed| {
        let rules = |i: usize| bed.managers[i].sweeper.sm_state() == SmState::Master;
        let others = (0..bed.managers.len()).filter(|&i| i != at);
        let standing_by =
            others.into_iter().all(|i| bed.managers[i].sweeper.sm_state() == SmState::Standby);
        let sweeper = &bed.managers[at].sweeper;
        rules(at) && standing_by && sweeper.is_up() && sweeper.phase() == Phase::Idle
    });
    bed.assert_all_reachable();
    for (node, num, ..) in bed.end_ports() {
        let master = bed.fabric.local_lid(bed.managers[at].endpoint).unwrap();
        assert_eq!(bed.fabric.port(node, num).unwrap().master_sm_lid, master);
    }
}

fn lids(bed: &Bed) -> Vec<(NodeIndex, u8, Lid, u8)> {
    bed.end_ports()
}

fn control_of(packet: &Packet) -> Option<(Method, SmControl)> {
    let smp = Smp::new(&packet.mad).ok()?;
    let is_info = smp.attribute_id() == AttributeId::SM_INFO;
    let control = SmControl::from_modifier(smp.attribute_modifier())?;
    is_info.then_some((smp.method(), control))
}

/// Drops the packets to managers for which `lost` returns true.
fn lose(bed: &mut Bed, lost: impl Fn(Method, SmControl) -> bool + 'static) {
    bed.tamper = Some(Box::new(move |packet| {
        if control_of(packet).is_some_and(|(method, control)| lost(method, control)) {
            packet.mad[..4].fill(0);
        }
    }));
}

#[test]
fn a_master_hands_over_to_one_of_higher_priority_and_takes_over_when_it_dies() {
    let mut bed = ruled();
    let before = lids(&bed);
    let began = bed.clock.now();
    join(&mut bed, 14, of_priority(4));
    await_master(&mut bed, 1);
    let took = bed.clock.now() - began;
    assert!(took < Duration::from_secs(1), "its trap asks for a look at once: {took:?}");
    assert_eq!(lids(&bed), before, "every LID is as it was");
    bed.crash_manager();
    // Until then the status shows the silence.
    let silent = |bed: &Bed, polls| {
        let peers = bed.sweeper().peers(bed.clock.now());
        peers.first().is_some_and(|peer| peer.polls_missed == polls && peer.answered.is_some())
    };
    assert!(silent(&bed, 0));
    bed.run_until(MINUTE * 2, "first silent poll", |bed| silent(bed, 1));
    bed.run_until(MINUTE * 2, "second silent poll", |bed| silent(bed, 2));
    bed.run_until(MINUTE * 2, "take-over", |bed| bed.sweeper().is_up());
    assert_eq!(states(&bed), [SmState::Master]);
    assert!(bed.sweeper().peers(bed.clock.now()).is_empty());
    assert_eq!(lids(&bed), before);
    bed.assert_all_reachable();
}

/// Regression: a standby whose master answered with an unknown state stayed standby for ever, and
/// other invalid answers were logged as missing ones.
#[test]
fn a_master_whose_answers_say_nothing_is_replaced_and_the_log_says_what_it_did() {
    type Spoil = fn(&mut Packet);
    let spoils: [(Spoil, &str); 4] = [
        (|packet| packet.mad[smp::DATA][20] = 0x3F, "(unknown SMInfo state)"),
        (|packet| packet.mad[smp::DATA][8] ^= 1, "(different SM_Key)"),
        (|packet| packet.mad[5] = 0x0C, "(rejected: "),
        // The packet is lost.
        (|packet| packet.mad[..4].fill(0), "(no answer)"),
    ];
    for (spoil, words) in spoils {
        let (mut bed, log) = (ruled(), Log::default());
        join(&mut bed, 14, of_priority(2));
        await_master(&mut bed, 0);
        bed.tamper = Some(Box::new(move |packet| {
            let Ok(smp) = Smp::new(&packet.mad) else { return };
            if (smp.method(), smp.attribute_id()) == (Method::GET_RESP, AttributeId::SM_INFO) {
                spoil(packet);
            }
        }));
        log.keep(|| {
            bed.run_until(MINUTE * 3, "another master", |bed| states(bed)[1] == SmState::Master);
        });
        let text = log.text();
        for (_, other) in &spoils {
            assert_eq!(text.contains(other), *other == words, "{words}: {text}");
        }
    }
}

/// Lines that are logged.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Keeps what is logged meanwhile, too.
    pub(crate) fn keep(&self, run: impl FnOnce()) {
        let log = self.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || log.clone()).without_time();
        tracing::subscriber::with_default(lines.finish(), run);
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn among_equals_the_lower_guid_gets_the_subnet() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let (a, b) = (bed.hosts()[3], bed.hosts()[14]);
    let guid = |bed: &Bed, host| bed.fabric.port(host, 1).unwrap().guid;
    let (low, high) = if guid(&bed, a) < guid(&bed, b) { (a, b) } else { (b, a) };
    bed.manage(high, of_priority(3), LidTable::default());
    bed.bring_up();
    bed.manage(low, of_priority(3), LidTable::default());
    await_master(&mut bed, 1);
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    bed.manage(low, of_priority(3), LidTable::default());
    bed.bring_up();
    bed.manage(high, of_priority(3), LidTable::default());
    bed.run_for(MINUTE);
    assert_eq!(states(&bed), [SmState::Master, SmState::Standby]);
}

#[test]
fn who_gets_no_acknowledgement_rules_on_and_tries_again() {
    let mut bed = ruled();
    lose(&mut bed, |_, control| control == SmControl::Handover);
    join(&mut bed, 14, of_priority(4));
    bed.run_for(MINUTE);
    assert_eq!(states(&bed), [SmState::Master, SmState::Standby]);
    assert!(bed.sweeper().is_up(), "it rules on");
    bed.assert_all_reachable();
    bed.tamper = None;
    await_master(&mut bed, 1);
}

/// OpenSM answers the handover and sends no acknowledgement; others may only acknowledge.
#[test]
fn an_answer_or_an_acknowledgement_is_enough() {
    for lost in [Method::GET_RESP, Method::SET] {
        let mut bed = ruled();
        lose(&mut bed, move |method, control| match lost {
            Method::GET_RESP => method == lost && control == SmControl::Handover,
            _ => control == SmControl::Acknowledge,
        });
        join(&mut bed, 14, of_priority(4));
        await_master(&mut bed, 1);
        bed.run_for(MINUTE);
        assert_eq!(states(&bed), [SmState::Standby, SmState::Master]);
    }
}

fn node(id: &str, kind: NodeKind, guid: u64, ports: u8) -> Node {
    let mut node = Node::new(kind, Guid(guid), ports, LinkRate::default());
    node.id = id.to_owned();
    node
}

/// Two switches with three hosts each, connected by their ports 8.
fn two_halves() -> Net {
    let mut net = Net::new();
    for (half, guid) in [(0, 0x100), (1, 0x200)] {
        let switch = net.add_node(node(&format!("switch{half}"), NodeKind::Switch, guid, 8));
        for i in 1..=3_u8 {
            let id = format!("host{half}{i}");
            let host = net.add_node(node(&id, NodeKind::Ca, guid + 0x10 * u64::from(i), 1));
            net.connect(PortRef { node: host, port: 1 }, PortRef { node: switch, port: i })
                .unwrap();
        }
    }
    net.connect(PortRef { node: 0, port: 8 }, PortRef { node: 4, port: 8 }).unwrap();
    net
}

/// Both masters assigned the same LIDs. The one with lower precedence hands over, regardless of
/// which finds the other first (IBA C14-60.2.1).
#[test]
fn of_two_masters_that_meet_one_rules_both_halves() {
    for priorities in [[2, 5], [5, 2], [3, 3]] {
        let mut bed = Bed::new(&two_halves());
        let switch = bed.switches()[0];
        let now = bed.clock.now();
        bed.fabric.link_down(now, switch, 8).unwrap();
        let hosts = bed.hosts();
        bed.manage(hosts[0], of_priority(priorities[0]), LidTable::default());
        bed.manage(hosts[3], of_priority(priorities[1]), LidTable::default());
        bed.run_until(MINUTE, "two masters", |bed| {
            bed.managers.iter().all(|manager| {
                manager.sweeper.is_up() && manager.sweeper.fabric().counts() == (3, 1)
            })
        });
        let now = bed.clock.now();
        bed.fabric.link_up(now, switch, 8).unwrap();
        // The first host has the lower GUID.
        await_master(&mut bed, usize::from(priorities == [2, 5]));
    }
}

/// Makes an inactive manager, the only other one, answer like one at this port that is in `state`
/// and grants each request.
fn pretend(bed: &mut Bed, guid: Guid, state: SmState) {
    bed.tamper = Some(Box::new(move |packet| {
        let Ok(smp) = Smp::new(&packet.mad) else { return };
        match (smp.method(), smp.attribute_id()) {
            // It has not looked around, and knows no manager whose demands it might grant.
            (Method::SET, AttributeId::SM_INFO) => return packet.mad[3] = Method::GET.0,
            (Method::GET_RESP, AttributeId::SM_INFO) => {}
            _ => return,
        }
        SmInfo::new(&mut packet.mad[smp::DATA])
            .unwrap()
            .set_guid(guid)
            .set_priority(15)
            .set_sm_state(state);
    }));
}

/// Regression: a port that acknowledged a handover and stayed standby left the subnet without a
/// manager for as long as it answered polls.
#[test]
fn a_manager_that_does_not_become_master_is_waited_for_once() {
    for state in [SmState::Standby, SmState::Discovering] {
        let mut bed = ruled();
        join(&mut bed, 14, Settings { sm_inactive: true, ..of_priority(15) });
        let guid = bed.fabric.port(bed.hosts()[14], 1).unwrap().guid;
        pretend(&mut bed, guid, SmState::Standby);
        let is = |bed: &Bed, state| states(bed)[0] == state;
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_until(MINUTE * 20, "a handover", |bed| is(bed, SmState::Standby));
        pretend(&mut bed, guid, state);
        let began = bed.clock.now();
        bed.run_until(MINUTE * 20, "master again", |bed| {
            is(bed, SmState::Master) && bed.managers[0].sweeper.is_up()
        });
        // As long as for a master that is silent; ten times that for one that looks around.
        let took = bed.clock.now() - began;
        let patience = bed.managers[0].sweeper.patience();
        let most = if state == SmState::Standby { patience } else { patience * 10 };
        assert!(took > most / 2 && took < most + MINUTE / 2, "{state}: {took:?}");
        assert_eq!(bed.managers[0].sweeper.idle_managers().count(), 1);
        for _ in 0..10 {
            let now = bed.clock.now();
            bed.managers[0].sweeper.request_heavy_sweep(now);
            bed.run_for(MINUTE);
            assert!(is(&bed, SmState::Master), "{state}");
        }
        // It counts again once it is master.
        pretend(&mut bed, guid, SmState::Master);
        bed.run_until(MINUTE * 20, "standby", |bed| is(bed, SmState::Standby));
        assert_eq!(bed.managers[0].sweeper.idle_managers().count(), 0);
    }
}

/// Regression: a port that answered SMInfo with the GUID of the manager that follows the registry got
/// the subnet handed over, again and again: the time for which one waits for a follower is its own.
#[test]
fn a_manager_with_the_guid_of_another_port_is_ignored() {
    let mut bed = ruled();
    let guid = |bed: &Bed, host: usize| bed.fabric.port(bed.hosts()[host], 1).unwrap().guid;
    let (follower, own) = (guid(&bed, 9), guid(&bed, 14));
    bed.managers[0].sweeper.set_followers([follower].into());
    join(&mut bed, 14, Settings { sm_inactive: true, ..of_priority(15) });
    for state in [SmState::Standby, SmState::Master, SmState::Discovering] {
        pretend(&mut bed, follower, state);
        for _ in 0..3 {
            let now = bed.clock.now();
            bed.managers[0].sweeper.request_heavy_sweep(now);
            bed.run_for(MINUTE);
            let sweeper = &mut bed.managers[0].sweeper;
            assert_eq!(sweeper.handover_candidate(), None);
            assert!(!sweeper.hand_over_to(now, follower));
            assert_eq!(sweeper.foreign_sms().count(), 1);
            assert_eq!(states(&bed)[0], SmState::Master, "beside one that is {state}");
        }
    }
    // With its own GUID it counts.
    pretend(&mut bed, own, SmState::Master);
    bed.run_until(MINUTE * 20, "standby", |bed| states(bed)[0] == SmState::Standby);
}

/// Regression: any SM that a host started took over the subnet, and was sent our SM_Key in the
/// process.
#[test]
fn a_subnet_manager_with_another_key_gets_nothing() {
    let mut bed = ruled();
    let stranger = Settings { sm_key: 0xBAD, ..of_priority(15) };
    join(&mut bed, 14, stranger);
    bed.tamper = Some(Box::new(|packet| {
        assert!(control_of(packet).is_none_or(|(method, _)| method != Method::SET));
    }));
    bed.run_for(MINUTE * 2);
    // Each rules for itself: neither believes the other.
    assert_eq!(states(&bed), [SmState::Master, SmState::Master]);
    assert_eq!(bed.sweeper().foreign_sms().count(), 1);
    assert!(bed.sweeper().foreign_answers() > 0);
    // With the same key it is one of us.
    bed.crash(1);
    bed.tamper = None;
    bed.run_for(MINUTE);
    let now = bed.clock.now();
    bed.managers[0].sweeper.request_heavy_sweep(now);
    bed.bring_up();
    assert_eq!(bed.sweeper().foreign_sms().count(), 0);
    join(&mut bed, 9, of_priority(15));
    await_master(&mut bed, 1);
}

/// Regression: `ibsm -o` became a second master, and ended with status 0.
#[test]
fn one_that_yields_does_not_rule_beside_a_master_with_another_key() {
    let mut bed = ruled();
    let (host, settings) = (bed.hosts()[14], Settings { sm_key: 0xBAD, ..of_priority(15) });
    bed.manage(host, settings, LidTable::default());
    bed.managers[1].sweeper.yield_to_masters();
    let sent = bed.fabric.port(bed.hosts()[3], 1).unwrap().master_sm_lid;
    bed.run_for(MINUTE);
    assert_eq!(states(&bed), [SmState::Master, SmState::Discovering]);
    let reason = bed.managers[1].rivals.first().expect("a reason");
    assert!(reason.contains("has another SM_Key"), "{reason}");
    assert_eq!(bed.fabric.port(bed.hosts()[3], 1).unwrap().master_sm_lid, sent);
}

/// Regression: the manager that took over from a dead one, and handed back in order, was reported
/// as one that did not become master, and ignored in elections for an hour.
#[test]
fn a_standby_that_handed_back_is_not_idle() {
    let mut bed = ruled();
    join(&mut bed, 9, of_priority(5));
    await_master(&mut bed, 1);
    for _ in 0..2 {
        bed.crash(1);
        await_master(&mut bed, 0);
        join(&mut bed, 9, of_priority(5));
        await_master(&mut bed, 1);
        bed.run_for(MINUTE * 2);
        let now = bed.clock.now();
        bed.managers[1].sweeper.request_heavy_sweep(now);
        bed.run_for(MINUTE);
        assert_eq!(bed.managers[1].sweeper.idle_managers().collect::<Vec<_>>(), [""; 0]);
    }
}

/// With an SM_Key of 0 any other key is accepted, as by OpenSM.
#[test]
fn without_a_key_any_other_will_do() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let host = bed.hosts()[3];
    bed.manage(host, Settings { sm_key: 0, ..of_priority(3) }, LidTable::default());
    bed.bring_up();
    join(&mut bed, 14, Settings { sm_key: 7, ..of_priority(1) });
    bed.run_for(MINUTE);
    assert_eq!(states(&bed)[0], SmState::Master);
    assert_eq!(bed.sweeper().foreign_sms().count(), 0);
}

/// If a master does not hand over, the other one continues after a while.
/// Managers of different priority in two halves of a fabric, which come together. HANDOVER is lost.
#[test]
fn a_master_that_keeps_its_half_is_ruled_over_in_the_end() {
    let mut bed = Bed::new(&two_halves());
    let (switch, hosts) = (bed.switches()[0], bed.hosts());
    let now = bed.clock.now();
    bed.fabric.link_down(now, switch, 8).unwrap();
    bed.manage(hosts[0], of_priority(5), LidTable::default());
    bed.manage(hosts[3], of_priority(2), LidTable::default());
    bed.run_until(MINUTE, "two masters", |bed| {
        bed.managers.iter().all(|manager| manager.sweeper.is_up())
    });
    lose(&mut bed, |_, control| control == SmControl::Handover);
    let now = bed.clock.now();
    bed.fabric.link_up(now, switch, 8).unwrap();
    let before = bed.reports().len();
    bed.run_for(Duration::from_secs(30));
    assert_eq!(bed.reports().len(), before, "it waits for the handover");
    bed.run_until(MINUTE, "a sweep", |bed| bed.reports().len() > before);
    assert_eq!(states(&bed), [SmState::Master, SmState::Master]);
    assert_eq!(bed.sweeper().rival_masters().count(), 1);
}

/// Regression: a port that claimed to be master with lower rank held up all sweeps, of a link that
/// was cut, too, for 40 s, and again after it had shown another state.
#[test]
fn a_master_within_a_subnet_that_is_up_is_not_waited_for() {
    let mut bed = ruled();
    lose(&mut bed, |_, control| control == SmControl::Handover);
    let usurper = Settings { ignore_other_sm: true, ..of_priority(1) };
    join(&mut bed, 14, usurper);
    bed.run_until(MINUTE, "two masters", |bed| bed.managers[1].sweeper.is_up());
    for _ in 0..3 {
        let before = bed.reports().len();
        let now = bed.clock.now();
        bed.managers[0].sweeper.request_heavy_sweep(now);
        bed.run_for(Duration::from_secs(3));
        assert!(bed.reports().len() > before);
        assert_eq!(bed.sweeper().rival_masters().count(), 1);
    }
    assert_eq!(states(&bed), [SmState::Master, SmState::Master]);
}

/// An operator changes sm_priority and sends SIGHUP.
#[test]
fn a_new_priority_moves_the_subnet_with_the_next_heavy_sweep() {
    let mut bed = ruled();
    join(&mut bed, 14, of_priority(2));
    bed.run_until(MINUTE, "standby", |bed| bed.managers[1].standing_by.is_some());
    for (at, priority, master) in [(1, 9, 1), (1, 1, 0), (0, 0, 1)] {
        let now = bed.clock.now();
        bed.managers[at].sweeper.set_priority(priority);
        bed.managers[at].sweeper.request_heavy_sweep(now);
        await_master(&mut bed, master);
        assert!(bed.clock.now() - now < Duration::from_secs(1), "priority {priority} at {at}");
    }
}

fn guid_of(bed: &Bed, at: usize) -> Guid {
    let sm_port = bed.managers[at].sweeper.fabric().sm_port().unwrap();
    bed.managers[at].sweeper.fabric().port(sm_port).guid
}

/// Regression: a preferred manager that returned took over at once, and replaced the registry by
/// its outdated one.
#[test]
fn a_subnet_goes_to_a_manager_that_follows_only_when_the_caller_hands_it_over() {
    let mut bed = ruled();
    let host = bed.hosts()[14];
    let follower = bed.fabric.port(host, 1).unwrap().guid;
    bed.managers[0].sweeper.set_followers([follower].into());
    join(&mut bed, 14, of_priority(4));
    bed.run_for(MINUTE);
    assert_eq!(states(&bed), [SmState::Master, SmState::Standby]);
    assert_eq!(bed.sweeper().handover_candidate(), Some(follower));
    let began = bed.clock.now();
    bed.run_until(MINUTE, "a handover", |bed| bed.sweeper().phase() == Phase::Idle);
    assert!(bed.managers[0].sweeper.hand_over_to(began, follower));
    await_master(&mut bed, 1);
    assert!(bed.clock.now() - began < Duration::from_secs(1));
}

#[test]
fn a_manager_whose_copy_is_incomplete_neither_asks_for_the_subnet_nor_accepts_it() {
    let mut bed = ruled();
    join(&mut bed, 14, of_priority(4));
    bed.managers[1].sweeper.set_awaits_copy(true);
    bed.run_for(MINUTE * 2);
    assert_eq!(states(&bed), [SmState::Master, SmState::Standby]);
    assert!(bed.sweeper().is_up(), "a refused handover changes nothing");
    let traps = bed.managers[0].traps.len();
    let began = bed.clock.now();
    bed.managers[1].sweeper.set_awaits_copy(false);
    await_master(&mut bed, 1);
    assert!(bed.managers[0].traps.len() > traps, "it asks at once");
    assert!(bed.clock.now() - began < Duration::from_secs(1));

    // One that dies is replaced in any case.
    let mut bed = ruled();
    join(&mut bed, 14, of_priority(2));
    await_master(&mut bed, 0);
    bed.managers[1].sweeper.set_awaits_copy(true);
    bed.crash(0);
    await_master(&mut bed, 0);
}

/// The caller ends the handover before it accepts registrations again.
#[test]
fn a_handover_by_the_caller_that_is_refused_leaves_the_master_as_it_was() {
    let mut bed = ruled();
    let host = bed.hosts()[14];
    let follower = bed.fabric.port(host, 1).unwrap().guid;
    bed.managers[0].sweeper.set_followers([follower].into());
    join(&mut bed, 14, of_priority(4));
    bed.managers[1].sweeper.set_awaits_copy(true);
    bed.run_for(MINUTE);
    bed.run_until(MINUTE, "no sweep", |bed| bed.sweeper().phase() == Phase::Idle);
    let (now, before) = (bed.clock.now(), bed.reports().len());
    assert!(bed.managers[0].sweeper.hand_over_to(now, follower));
    assert_eq!(bed.sweeper().phase(), Phase::HandOver);
    bed.run_until(MINUTE, "its end", |bed| bed.sweeper().phase() == Phase::Idle);
    assert_eq!(states(&bed), [SmState::Master, SmState::Standby]);
    assert_eq!(bed.reports().len(), before, "no sweep is part of it");
    assert!(bed.sweeper().is_up());
}

/// Regression: a master whose process was stopped while another took over requested the subnet
/// back, and got it with outdated registrations. What it wrote before it stood by stayed: the other
/// did not know of it, and requests went to a standby.
#[test]
fn a_master_in_doubt_stands_by_for_any_other_master() {
    for priorities in [[5, 2], [2, 5]] {
        let mut bed = Bed::new(&fat_tree(2, 8, 20));
        let host = bed.hosts()[3];
        bed.manage(host, of_priority(5), LidTable::default());
        bed.bring_up();
        join(&mut bed, 14, of_priority(2));
        await_master(&mut bed, 0);
        bed.managers[0].stopped = true;
        bed.run_until(MINUTE * 3, "another master", |bed| states(bed)[1] == SmState::Master);
        let guid = guid_of(&bed, 0);
        bed.managers[1].sweeper.set_followers([guid].into());
        bed.managers[1].sweeper.set_priority(priorities[1]);
        bed.run_for(MINUTE);
        bed.managers[0].stopped = false;
        let now = bed.clock.now();
        overwrite_table(&mut bed, 0);
        bed.managers[0].sweeper.set_priority(priorities[0]);
        bed.managers[0].sweeper.set_in_doubt(true);
        bed.managers[0].sweeper.set_awaits_copy(true);
        bed.managers[0].sweeper.request_heavy_sweep(now);
        let asked = bed.fabric.counters().reregistrations;
        bed.run_for(MINUTE);
        await_master(&mut bed, 1);
        if priorities == [2, 5] {
            // As if two parts of a fabric had been joined: clients may be registered with either.
            let asked = bed.fabric.counters().reregistrations - asked;
            assert!(asked + 1 >= bed.hosts().len() as u64, "{asked}");
        }
    }
}

/// Writes an LFT block that sends everything to port 1 of a leaf switch, as a manager may that has
/// not noticed yet that another took over.
fn overwrite_table(bed: &mut Bed, manager: usize) {
    let leaf = bed.fabric.port(bed.hosts()[0], 1).unwrap().link.unwrap().node;
    let lid = bed.fabric.port(leaf, 0).unwrap().lid;
    let mut packet = Packet { address: Address::smi(lid), ..Packet::default() };
    let (method, attribute_id) = (Method::SET, AttributeId::LINEAR_FORWARDING_TABLE);
    smp::Request { method, attribute_id, attribute_modifier: 0, tid: 1, m_key: 0 }
        .write_lid_routed(&mut packet.mad);
    packet.mad[smp::DATA].fill(1);
    bed.fabric.send(bed.clock.now(), bed.managers[manager].endpoint, &packet);
}

#[test]
fn a_poll_between_the_regular_ones_shows_that_the_master_lives_and_counts_for_nothing_otherwise() {
    let mut bed = ruled();
    join(&mut bed, 14, of_priority(2));
    await_master(&mut bed, 0);
    bed.run_for(Duration::from_secs(3));
    let now = bed.clock.now();
    assert!(bed.managers[1].sweeper.master_seen().unwrap() < now);
    assert!(bed.managers[1].sweeper.probe_master(now));
    bed.run_for(Duration::from_millis(10));
    assert!(bed.managers[1].sweeper.master_seen().unwrap() >= now);
    bed.crash(0);
    let died = bed.clock.now();
    let mut probes = 0;
    while states(&bed) == [SmState::Standby] {
        let now = bed.clock.now();
        probes += u32::from(bed.managers[0].sweeper.probe_master(now));
        bed.run_for(Duration::from_millis(500));
        assert!(bed.clock.now() < died + MINUTE * 2);
    }
    assert!(probes > 20, "{probes}");
    let took = bed.clock.now() - died;
    assert!(took > Duration::from_secs(30), "regular polls decide: {took:?}");
}

#[test]
fn an_inactive_sm_touches_nothing_until_it_stands_by() {
    let mut bed = Bed::new(&fat_tree(2, 8, 20));
    let host = bed.hosts()[3];
    let settings = Settings { sm_inactive: true, ..Settings::default() };
    bed.manage(host, settings, LidTable::default());
    bed.run_for(MINUTE * 2);
    assert_eq!(states(&bed), [SmState::NotActive]);
    assert_eq!(bed.sweeper().counters().transmitted, 0);
}

#[test]
fn sm_inactive_is_read_again_and_a_master_stays_master() {
    let mut bed = ruled();
    join(&mut bed, 14, of_priority(2));
    await_master(&mut bed, 0);
    let inactive = |sm_priority| Settings { sm_inactive: true, ..of_priority(sm_priority) };
    let reread = |bed: &mut Bed, at: usize, settings: &Settings| {
        let now = bed.clock.now();
        let sweeper = &mut bed.managers[at].sweeper;
        let waiting = sweeper.follow_settings(settings);
        sweeper.request_heavy_sweep(now);
        waiting
    };
    assert_eq!(reread(&mut bed, 0, &inactive(3)), ["sm_inactive"]);
    assert_eq!(reread(&mut bed, 1, &inactive(2)), [""; 0]);
    bed.run_for(MINUTE);
    assert_eq!(states(&bed), [SmState::Master, SmState::NotActive]);
    assert!(bed.managers[1].sweeper.settings().sm_inactive);
    // The master dies: no standby takes over until the key is FALSE again.
    let sent = bed.managers[1].sweeper.counters().transmitted;
    bed.crash(0);
    bed.run_for(MINUTE * 2);
    assert_eq!(states(&bed), [SmState::NotActive]);
    assert_eq!(bed.sweeper().counters().transmitted, sent);
    assert_eq!(reread(&mut bed, 0, &of_priority(2)), [""; 0]);
    await_master(&mut bed, 0);
}

/// An operator copies the master's guid2lid to the standby by other means.
#[test]
fn guid2lid_counts_again_when_a_standby_takes_over_and_is_to_honor_it() {
    for honor_guid2lid_file in [false, true] {
        let mut bed = ruled();
        let before = lids(&bed);
        join(&mut bed, 14, Settings { honor_guid2lid_file, ..of_priority(2) });
        await_master(&mut bed, 0);
        let moved = bed.fabric.port(bed.hosts()[7], 1).unwrap();
        let text = bed.managers[0].sweeper.lids().render();
        let (mut file, _) = LidTable::parse(&text);
        file.set(moved.guid, LidTable::parse("0x1 0x64 0x64").0.get(Guid(1)).unwrap());
        bed.managers[1].guid2lid = file;
        bed.crash(0);
        await_master(&mut bed, 0);
        let now = bed.fabric.port(bed.hosts()[7], 1).unwrap().lid;
        assert_eq!(now, if honor_guid2lid_file { Lid(0x64) } else { moved.lid });
        assert_eq!(lids(&bed) == before, !honor_guid2lid_file);
    }
}

/// Regression: after a failover and the death of the second master, too, the first was started
/// again and went on with its outdated registry at once: its caller could not know that another had
/// been master.
#[test]
fn a_restarted_master_finds_whether_another_was_master_meanwhile() {
    let mut bed = ruled();
    let (first, second) = (bed.hosts()[3], bed.hosts()[14]);
    let found = |bed: &Bed| bed.sweeper().found_other_master();
    assert!(!found(&bed), "new ports obey none");
    bed.crash(0);
    bed.manage(first, of_priority(3), LidTable::default());
    await_master(&mut bed, 0);
    assert!(!found(&bed), "it was master itself");
    bed.crash(0);
    bed.manage(second, of_priority(2), LidTable::default());
    await_master(&mut bed, 0);
    assert!(found(&bed));
    bed.crash(0);
    bed.manage(first, of_priority(3), LidTable::default());
    await_master(&mut bed, 0);
    assert!(found(&bed));
}

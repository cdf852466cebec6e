//! Changes of mastership, as a node sees them.

use ib_mad::wire::attribute::SmState;
use sa_proto::snapshot::{RegistryVersion, Session, Version};
use sa_proto::state::{Document, Kind, StateVersion};
use sm_core::sweep::Phase;

use super::*;
use crate::node::{Beat, Followed, LIDS, MasterState};
use crate::observe::Holds;
use crate::publish::{Challenge, LEASE};

const MINUTE: Duration = Duration::from_secs(60);

fn state(bed: &Bed) -> SmState {
    bed.node.sweeper().sm_state()
}

fn acknowledges(bed: &Bed) -> bool {
    bed.registry.lock().acknowledge_until.is_some_and(|until| until > bed.clock.now())
}

fn of_priority(sm_priority: u8) -> Settings {
    Settings { sm_priority, ..settings() }
}

/// Lists the other manager as one that follows, which has stored this version.
fn list_follower(bed: &Bed, guid: Guid, stored: Version) {
    let hello = Hello { responder_id: 9, sm_guid: guid.0, ..Hello::default() };
    let mut entry = Responder::new(&hello, None, None, bed.clock.now(), 9);
    let follower = entry.follower.as_mut().unwrap();
    (follower.in_step, follower.stored) = (true, Some(stored.registry()));
    assert!(bed.responders.enter(&entry));
}

/// Regression: a preferred manager that returned took over at once, and replaced the registry by
/// its outdated one: the old master acknowledged writes until the handover.
#[test]
fn a_manager_that_follows_gets_the_subnet_with_everything_that_was_acknowledged() {
    let mut bed = Bed::new(of_priority(3), Files::new(), false);
    bed.bring_up();
    let guid = bed.add_peer(of_priority(9));
    list_follower(&bed, guid, Version::NONE);
    bed.run_until(MINUTE, |bed| !acknowledges(bed));
    assert_eq!(bed.node.sweeper().phase(), Phase::Idle, "writes wait");
    // It does not store the rest: writes go on after a while.
    let sealed = bed.clock.now();
    bed.run_until(MINUTE, acknowledges);
    let waited = bed.clock.now() - sealed;
    assert!(waited <= Duration::from_millis(5100), "{waited:?}");
    assert_eq!(state(&bed), SmState::Master);
    assert_eq!(bed.node.succession().handovers_failed, 1);

    let published = bed.feed.version();
    list_follower(&bed, guid, published);
    bed.run_until(MINUTE, |bed| state(bed) == SmState::Standby);
    bed.run_until(MINUTE, |bed| bed.peer.as_ref().unwrap().sweeper.is_up());
    bed.run_for(Duration::from_secs(1));
    assert!(bed.feed.lock().session.is_none() && !acknowledges(&bed));
}

#[test]
fn a_refused_handover_to_a_follower_leaves_the_master_in_doubt_for_a_moment() {
    let mut bed = Bed::new(of_priority(3), Files::new(), false);
    bed.bring_up();
    let guid = bed.add_peer(of_priority(9));
    bed.peer.as_mut().unwrap().sweeper.set_awaits_copy(true);
    list_follower(&bed, guid, bed.feed.version());
    bed.run_until(MINUTE, |bed| bed.node.succession().handovers_failed > 0);
    assert!(!acknowledges(&bed));
    bed.run_until(UP_TIME, acknowledges);
    assert_eq!((state(&bed), bed.node.succession().doubts), (SmState::Master, 1));
}

/// Regression: a master that was stopped while another took over continued as before.
#[test]
fn a_master_that_was_stopped_acknowledges_nothing_until_an_election() {
    let mut bed = Bed::new(settings(), Files::new(), false);
    bed.bring_up();
    bed.run_for(Duration::from_secs(2));
    assert!(acknowledges(&bed));
    let later = bed.clock.now() + MINUTE;
    bed.clock.advance_to(later);
    assert!(!acknowledges(&bed), "that was vouched for a while only");
    bed.step();
    assert!(!acknowledges(&bed));
    let sweeps = bed.node.sweeps().full;
    bed.run_until(UP_TIME, acknowledges);
    assert_eq!((state(&bed), bed.node.succession().doubts), (SmState::Master, 1));
    bed.run_for(Duration::from_secs(2));
    assert!(bed.node.sweeps().full > sweeps && acknowledges(&bed));
    assert_eq!(bed.node.succession().doubts, 1);
}

/// The state of a stream on which another manager publishes in this epoch.
fn publishing(bed: &Bed, epoch: u64) -> Followed {
    let session = Session { epoch, sm_guid: Guid(99) };
    let version = Version { session, fabric_generation: 1, registry_sequence: 7 };
    Followed {
        received: version,
        stored: version,
        beat: Some(Beat { version, responders: Arc::default(), awaited: false, state: None }),
        contact: Some(bed.clock.now()),
        is_connected: true,
        ..Followed::default()
    }
}

#[test]
fn a_master_stands_by_for_one_of_a_higher_session_in_its_fabric() {
    let mut bed = Bed::build(of_priority(9), Files::new(), false, true);
    bed.bring_up();
    bed.run_for(Duration::from_secs(2));
    bed.add_peer(Settings { ignore_other_sm: true, ..of_priority(1) });
    bed.run_until(UP_TIME, |bed| bed.peer.as_ref().unwrap().sweeper.is_up());
    let followed = publishing(&bed, 6);
    bed.node.handle_followed(followed);
    let now = bed.clock.now();
    while bed.node.poll_action(now).is_some() {}
    assert!(!acknowledges(&bed), "at once");
    bed.run_until(UP_TIME, |bed| state(bed) == SmState::Standby);
    bed.run_for(Duration::from_secs(1));
    assert!(bed.feed.lock().session.is_none());
}

/// Both halves of a fabric that was split have a master, and each is right.
#[test]
fn a_master_of_a_higher_session_in_another_fabric_changes_nothing_here() {
    let mut bed = Bed::build(of_priority(9), Files::new(), false, true);
    bed.bring_up();
    bed.run_for(Duration::from_secs(2));
    let followed = publishing(&bed, 6);
    bed.node.handle_followed(followed);
    bed.run_until(UP_TIME, |bed| bed.node.succession().doubts == 1);
    bed.run_until(UP_TIME, acknowledges);
    bed.run_for(MINUTE);
    assert_eq!((state(&bed), bed.node.succession().doubts), (SmState::Master, 1));
    assert_eq!(bed.feed.lock().session.unwrap().epoch, 1);
}

/// Regression: a master whose link to the fabric had failed acknowledged writes until it learned of
/// the session of another one, which had its copy until then.
#[test]
fn a_master_acknowledges_nothing_once_another_manager_was_elected() {
    let mut bed = Bed::build(of_priority(9), Files::new(), false, true);
    bed.bring_up();
    bed.run_for(Duration::from_secs(2));
    assert!(acknowledges(&bed) && bed.node.sealed().is_none());
    bed.node.handle_followed(Followed { elections: 1, ..Followed::default() });
    let now = bed.clock.now();
    while bed.node.poll_action(now).is_some() {}
    assert!(!acknowledges(&bed), "at once");
    bed.run_for(Duration::from_secs(10));
    assert!(!acknowledges(&bed), "its own election does not count yet");
    assert_eq!(bed.node.sealed(), Some((bed.feed.version(), 1)));
    // It was another fabric, or the other one has died.
    bed.run_until(MINUTE, acknowledges);
    bed.run_for(MINUTE);
    assert_eq!((state(&bed), bed.node.succession().doubts), (SmState::Master, 1));
    assert!(acknowledges(&bed) && bed.node.sealed().is_none());
}

/// Regression: a master whose link had failed went on acknowledging, and kept the right to commit
/// to the shared store, while another took over that could not reach it. Traps of its own port
/// counted as heard from the fabric.
#[test]
fn a_master_that_does_not_hear_the_fabric_acknowledges_nothing_and_yields_the_store() {
    for (follows, shares) in [(true, false), (false, true), (false, false)] {
        let settings = Settings { sminfo_polling_timeout: 1_000, ..of_priority(9) };
        let mut bed = Bed::build_with(settings, Files::new(), false, follows, shares);
        bed.bring_up();
        // Longer than without a light sweep: the neighbor is asked.
        bed.run_for(Duration::from_secs(8));
        assert!(acknowledges(&bed));
        let host = bed.own_host();
        bed.fabric.link_down(bed.clock.now(), host, 1).unwrap();
        for change in 0..31 {
            bed.fabric.set_description(bed.clock.now(), host, &format!("host {change}")).unwrap();
            bed.run_for(Duration::from_millis(100));
        }
        assert_eq!(acknowledges(&bed), !follows && !shares, "{follows} {shares}");
        bed.run_for(MINUTE);
        assert_eq!(acknowledges(&bed), !follows && !shares, "{follows} {shares}");
        assert_eq!(bed.registry.lock().yields, follows || shares);
        assert_eq!(bed.node.succession().doubts, u64::from(follows || shares));
        bed.fabric.link_up(bed.clock.now(), host, 1).unwrap();
        bed.run_until(MINUTE, acknowledges);
        bed.run_for(MINUTE);
        assert!(acknowledges(&bed) && !bed.registry.lock().yields);
    }
}

/// The M_Key of another manager at the SM's own port shows that it manages the fabric. Regression:
/// a master that could not read its own node kept the right to commit to the shared store, and the
/// other one could not write its M_Keys there, which this one needs to find it.
#[test]
fn a_master_that_cannot_read_its_own_node_acknowledges_nothing_and_yields_the_store() {
    for (follows, shares) in [(true, false), (false, true)] {
        let mut bed = Bed::build_with(of_priority(9), Files::new(), false, follows, shares);
        bed.bring_up();
        bed.run_for(Duration::from_secs(2));
        assert!(acknowledges(&bed));
        let of_other = Settings { ignore_other_sm: true, m_key: 0x5EC0, ..of_priority(1) };
        bed.add_peer(Settings { m_key_protection_level: 2, ..of_other });
        bed.run_until(MINUTE, |bed| !acknowledges(bed));
        bed.run_for(MINUTE);
        assert!(!acknowledges(&bed) && bed.registry.lock().yields, "{follows} {shares}");
        assert_eq!(bed.node.succession().doubts, 1);
    }
}

/// A manager that followed may have been elected, acknowledged writes, and found this one again
/// before its feed could be reached.
#[test]
fn a_master_that_was_stopped_waits_for_those_that_followed() {
    for answers in [true, false] {
        let mut bed = Bed::build(settings(), Files::new(), false, true);
        bed.bring_up();
        list_follower(&bed, Guid(99), bed.feed.version());
        bed.run_for(Duration::from_secs(2));
        assert!(acknowledges(&bed));
        let resumed = bed.clock.now() + Duration::from_secs(30);
        bed.clock.advance_to(resumed);
        bed.run_for(Duration::from_secs(10));
        assert!(!acknowledges(&bed), "it has not proven that it still follows");
        if answers {
            let now = Some(bed.clock.now());
            assert!(bed.responders.update(9, |entry| {
                entry.follower.as_mut().unwrap().stored_at = now;
            }));
        }
        bed.run_until(MINUTE, acknowledges);
        let waited = bed.clock.now() - resumed;
        assert_eq!(waited < Duration::from_secs(15), answers, "{waited:?}");
        assert_eq!((state(&bed), bed.node.succession().doubts), (SmState::Master, 1));
    }
}

/// The other manager was elected, and has found this one since.
#[test]
fn a_master_does_not_wait_for_one_that_stands_by_again() {
    let mut bed = Bed::build(of_priority(9), Files::new(), false, true);
    bed.bring_up();
    let peer = bed.add_peer(of_priority(1));
    bed.run_for(Duration::from_secs(30));
    let followed = Followed { elections: 1, elected: peer, ..Followed::default() };
    bed.node.handle_followed(followed);
    let now = bed.clock.now();
    while bed.node.poll_action(now).is_some() {}
    assert!(!acknowledges(&bed));
    bed.run_until(Duration::from_secs(2), acknowledges);
    assert_eq!((state(&bed), bed.node.succession().doubts), (SmState::Master, 1));
}

/// Regression: a master whose link was back before it had answered the inquiry of its successor
/// never did, and the successor asked all clients to register again.
#[test]
fn a_master_that_stands_by_answers_with_what_it_published_last() {
    let mut bed = Bed::build(of_priority(1), Files::new(), false, true);
    bed.bring_up();
    bed.run_for(Duration::from_secs(2));
    let published = bed.feed.version();
    assert!(published.fabric_generation > 0);
    bed.add_peer(of_priority(9));
    bed.node.handle_followed(Followed { elections: 1, ..Followed::default() });
    bed.run_until(MINUTE, |bed| state(bed) == SmState::Standby);
    bed.run_for(Duration::from_secs(1));
    assert!(bed.feed.lock().session.is_none());
    assert_eq!(bed.node.sealed(), Some((bed.feed.version(), 1)));
}

/// A standby with a copy of the registry of a master that has died.
fn took_over(responders: &[u64]) -> Bed {
    let mut bed = Bed::build(of_priority(1), Files::new(), false, true);
    bed.add_peer(of_priority(9));
    bed.run_until(MINUTE, |bed| {
        state(bed) == SmState::Standby && bed.peer.as_ref().unwrap().sweeper.is_up()
    });
    for &id in responders {
        let front_door = vec!["127.0.0.1:1".to_owned()];
        let hello = Hello { responder_id: id, front_door, ..Hello::default() };
        assert!(bed.responders.enter(&Responder::new(&hello, None, None, bed.clock.now(), id)));
    }
    let mut followed = publishing(&bed, 6);
    bed.registry.lock().held = followed.stored.registry();
    followed.beat.as_mut().unwrap().responders = responders.into();
    followed.is_connected = false;
    bed.node.handle_followed(followed);
    bed.crash_peer();
    bed.run_until(MINUTE * 2, |bed| state(bed) == SmState::Master);
    bed
}

/// What the store holds is everything that was acknowledged. Regression: all clients were asked if
/// it was being read again as its manager became master, or had not been read yet, though nothing
/// was lost and their answers could not be stored.
#[test]
fn a_new_master_with_a_shared_store_asks_clients_only_if_the_store_is_empty() {
    // Whether it is read before, and at, the takeover; and whether it has a session.
    let cases =
        [(true, true, true), (true, false, true), (false, false, true), (false, false, false)];
    for (was_read, is_read, has_session) in cases {
        let mut bed = Bed::build_with(of_priority(1), Files::new(), false, false, true);
        bed.add_peer(of_priority(9));
        bed.run_until(MINUTE, |bed| {
            state(bed) == SmState::Standby && bed.peer.as_ref().unwrap().sweeper.is_up()
        });
        let session = Session { epoch: 6, sm_guid: Guid(0x99) };
        let stored = RegistryVersion { session, sequence: 10 };
        if was_read {
            let mut registry = bed.registry.lock();
            (registry.held, registry.was_read) = (stored, true);
            drop(registry);
            bed.run_for(MINUTE);
        }
        if !is_read {
            bed.registry.lock().held = Version::NONE.registry();
        }
        bed.crash_peer();
        let before = bed.fabric.counters().reregistrations;
        bed.run_until(MINUTE * 2, acknowledges);
        bed.run_for(MINUTE);
        let asked = |bed: &Bed| bed.fabric.counters().reregistrations - before;
        assert_eq!(asked(&bed), 0);
        let counters = bed.node.succession();
        assert_eq!((counters.complete, counters.incomplete), (was_read.into(), 0));

        let mut registry = bed.registry.lock();
        registry.was_read = true;
        if has_session {
            registry.held = stored;
        }
        drop(registry);
        bed.run_for(MINUTE);
        assert_eq!(asked(&bed) == 0, has_session, "{}", asked(&bed));
        let counters = bed.node.succession();
        let expected = (has_session.into(), (!has_session).into());
        assert_eq!((counters.complete, counters.incomplete), expected);
        assert!(bed.feed.lock().inquiries.is_empty(), "no responder is asked");
    }
}

#[test]
fn a_new_master_begins_its_session_when_responders_have_said_what_they_hold() {
    for answers in [true, false] {
        let mut bed = took_over(&[7]);
        let began = bed.clock.now();
        let before = bed.fabric.counters().reregistrations;
        bed.run_for(Duration::from_millis(100));
        assert_eq!(bed.feed.lock().inquiries, [None]);
        assert!(bed.feed.lock().session.is_none(), "not before");
        if answers {
            let held = bed.registry.lock().held;
            assert!(bed.responders.update(7, |entry| entry.holds =
                Some(Holds { number: 1, held, restarted: false, acknowledged: 0 })));
        }
        bed.run_until(MINUTE, |bed| bed.feed.lock().session.is_some());
        let took = bed.clock.now() - began;
        assert_eq!(took < Duration::from_secs(1), answers, "{took:?}");
        bed.run_for(MINUTE);
        let asked = bed.fabric.counters().reregistrations - before;
        assert_eq!(asked == 0, answers, "{asked}");
        let counters = bed.node.succession();
        assert_eq!((counters.complete, counters.incomplete), (answers.into(), (!answers).into()));
        assert!(acknowledges(&bed));
    }
}

#[test]
fn a_standby_polls_a_master_whose_feed_fell_silent() {
    let mut bed = Bed::build(of_priority(1), Files::new(), false, true);
    bed.add_peer(of_priority(9));
    bed.run_until(MINUTE, |bed| {
        state(bed) == SmState::Standby && bed.peer.as_ref().unwrap().sweeper.is_up()
    });
    bed.run_for(Duration::from_secs(1));
    let followed = publishing(&bed, 6);
    let contact = followed.contact.unwrap();
    bed.node.handle_followed(followed);
    bed.run_for(Duration::from_secs(4));
    let seen = bed.node.sweeper().master_seen().unwrap();
    assert!(seen > contact + LEASE, "regular polls are 10 s apart");
    assert!(!bed.status.copy.as_ref().unwrap().in_step, "it claims nothing any more");
}

/// Regression: a standby whose host had lost both networks was given up, the master went on alone
/// and died. The standby came back and concluded, from a silence in which it heard nothing at all,
/// that all writes had waited for it.
#[test]
fn a_standby_that_did_not_hear_the_fabric_does_not_rely_on_having_been_awaited() {
    for is_isolated in [true, false] {
        let mut bed = Bed::build(of_priority(1), Files::new(), false, true);
        bed.add_peer(of_priority(9));
        bed.run_until(MINUTE, |bed| {
            state(bed) == SmState::Standby && bed.peer.as_ref().unwrap().sweeper.is_up()
        });
        // Polls are 10 s apart: the master was heard last some time ago.
        bed.run_for(Duration::from_secs(3));
        let mut followed = publishing(&bed, 6);
        bed.registry.lock().held = followed.stored.registry();
        followed.beat.as_mut().unwrap().awaited = true;
        followed.is_connected = false;
        bed.node.handle_followed(followed);
        let host = bed.own_host();
        if is_isolated {
            bed.fabric.link_down(bed.clock.now(), host, 1).unwrap();
            bed.run_for(Duration::from_secs(5));
        }
        bed.crash_peer();
        if is_isolated {
            bed.fabric.link_up(bed.clock.now(), host, 1).unwrap();
        }
        let before = bed.fabric.counters().reregistrations;
        bed.run_until(MINUTE * 2, |bed| bed.feed.lock().session.is_some());
        let counters = bed.node.succession();
        let expected = (u64::from(!is_isolated), u64::from(is_isolated));
        assert_eq!((counters.complete, counters.incomplete), expected);
        bed.run_for(MINUTE);
        assert_eq!(bed.fabric.counters().reregistrations > before, is_isolated);
    }
}

/// Regression: the previous master had a newer registry, and it was replaced by ours.
#[test]
fn a_master_whose_responders_follow_another_that_is_gone_takes_over_from_it() {
    let mut bed = Bed::build(of_priority(9), Files::new(), false, true);
    bed.bring_up();
    bed.run_for(Duration::from_secs(2));
    let before = bed.fabric.counters().reregistrations;
    let inquiries = bed.feed.lock().inquiries.len();
    bed.feed.lock().challenge = Some(Challenge::Rival);
    bed.run_until(MINUTE, |bed| bed.feed.lock().inquiries.len() > inquiries);
    bed.feed.lock().challenge = None;
    bed.run_until(MINUTE, acknowledges);
    assert_eq!(bed.feed.lock().session.unwrap().epoch, 2);
    bed.run_for(MINUTE);
    assert!(bed.fabric.counters().reregistrations > before, "clients are asked");
}

/// The state of a master in epoch 6, by the text of `guid2lid`.
fn master_state(number: u64, lids: &str) -> MasterState {
    let session = Session { epoch: 6, sm_guid: Guid(99) };
    let document = Document::new(Kind::StateFile, LIDS, lids.to_owned());
    let all = [(LIDS.to_owned(), Arc::new(document))].into();
    MasterState::read(StateVersion { session, number }, &all).0
}

/// LIDs of hosts that were off were forgotten at a takeover: a host that was switched on later got
/// the LID of one that came back after it.
#[test]
fn a_new_master_keeps_the_lids_of_hosts_that_are_off() {
    let mut bed = Bed::build(of_priority(1), Files::new(), false, true);
    bed.add_peer(of_priority(9));
    bed.run_until(MINUTE, |bed| {
        state(bed) == SmState::Standby && bed.peer.as_ref().unwrap().sweeper.is_up()
    });
    let absent = Guid(0xab5e);
    let known = master_state(3, &format!("{absent} 0x0123 0x0123\n"));
    let version = known.version;
    let beat = |followed: &mut Followed| {
        followed.beat.as_mut().unwrap().state = Some(version);
        followed.master_state = Some(Arc::new(known.clone()));
    };
    let mut followed = publishing(&bed, 6);
    beat(&mut followed);
    bed.node.handle_followed(followed.clone());
    assert_eq!(bed.node.stored_state(), StateVersion::default());
    bed.run_for(Duration::from_millis(10));
    assert_eq!(bed.node.stored_state(), version, "its file is written");
    followed.state_stored = version;
    followed.is_connected = false;
    bed.registry.lock().held = followed.stored.registry();
    bed.node.handle_followed(followed);
    bed.crash_peer();
    bed.run_until(MINUTE * 2, |bed| bed.node.sweeper().is_up());
    bed.run_for(MINUTE);
    let lids = bed.node.sweeper().lids();
    assert_eq!(lids.get(absent).map(|range| range.first.0), Some(0x123));
    assert_eq!(bed.node.succession().states_incomplete, 0);
}

#[test]
fn a_takeover_without_the_last_state_is_counted() {
    let mut bed = took_over_with_state();
    bed.run_until(MINUTE, |bed| bed.feed.lock().session.is_some());
    let counters = bed.node.succession();
    assert_eq!((counters.complete, counters.states_incomplete), (1, 1));
}

/// A takeover before the state that was published last is stored.
fn took_over_with_state() -> Bed {
    let mut bed = Bed::build(of_priority(1), Files::new(), false, true);
    bed.add_peer(of_priority(9));
    bed.run_until(MINUTE, |bed| {
        state(bed) == SmState::Standby && bed.peer.as_ref().unwrap().sweeper.is_up()
    });
    let mut followed = publishing(&bed, 6);
    bed.registry.lock().held = followed.stored.registry();
    followed.beat.as_mut().unwrap().state = Some(master_state(4, "").version);
    followed.is_connected = false;
    bed.node.handle_followed(followed);
    bed.crash_peer();
    bed.run_until(MINUTE * 2, |bed| state(bed) == SmState::Master);
    bed
}

/// Regression: a master was stopped while another took over, died and started again. When it went
/// on it took the feed that had ended meanwhile for that of the master that handed over, and began
/// without what that one had acknowledged.
#[test]
fn a_feed_that_was_silent_does_not_show_that_everything_was_handed_over() {
    let bed = Bed::new(of_priority(3), Files::new(), false);
    let (now, copy) = (bed.clock.now(), publishing(&bed, 6));
    assert!(copy.is_ready_for_handover(now + LEASE));
    assert!(!copy.is_ready_for_handover(now + LEASE + Duration::from_millis(1)));
    assert!(copy.has_caught_up(), "it accepts the handover, and asks responders");
}

/// A standby accepted a handover before it had the LIDs and M_Keys of the master.
#[test]
fn a_handover_waits_until_the_state_is_stored() {
    let mut bed = Bed::new(of_priority(3), Files::new(), false);
    bed.bring_up();
    bed.feed.lock().state = 7;
    let guid = bed.add_peer(of_priority(9));
    let published = bed.feed.version();
    let session = bed.feed.lock().session.unwrap();
    let list = |bed: &Bed, number| {
        list_follower(bed, guid, published);
        let follower_has = StateVersion { session, number };
        assert!(bed.responders.update(9, |entry| {
            entry.follower.as_mut().unwrap().state = Some(follower_has);
        }));
    };
    list(&bed, 6);
    bed.run_until(MINUTE, |bed| bed.node.succession().handovers_failed > 0);
    assert_eq!(state(&bed), SmState::Master);
    list(&bed, 7);
    bed.run_until(MINUTE, |bed| state(bed) == SmState::Standby);

    let mut copy = publishing(&bed, 6);
    assert!(copy.has_caught_up());
    copy.beat.as_mut().unwrap().state = Some(master_state(4, "").version);
    assert!(!copy.has_caught_up(), "so that it is refused");
}

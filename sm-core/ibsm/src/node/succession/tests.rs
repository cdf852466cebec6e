//! The value of a copy at a takeover, by the known facts about the previous master.

use std::sync::Arc;

use ib_mad::types::Guid;
use sa_proto::proto::snapshot::Hello;
use sa_proto::snapshot::{RegistryVersion, Version};

use super::takeover::{Evidence, Finding, TakeOver};
use super::*;
use crate::observe::{Holds, Responder};

fn version(epoch: u64, registry_sequence: u64) -> Version {
    let session = Session { epoch, ..Session::default() };
    Version { session, fabric_generation: 1, registry_sequence }
}

/// A responder that has answered the question with this number, if any.
fn responder(id: u64, holds: Option<(u64, Version)>) -> Responder {
    let front_door = vec!["127.0.0.1:1".to_owned()];
    let hello = Hello { responder_id: id, front_door, ..Hello::default() };
    let mut responder = Responder::new(&hello, None, None, Instant::now(), id);
    responder.holds = holds.map(|(number, version)| {
        let held = version.registry();
        Holds { number, held, restarted: false, acknowledged: 0 }
    });
    responder
}

/// A standby that had stored sequence 10 of epoch 5 when its master last sent a heartbeat, which
/// named responders 1 and 2.
struct Case {
    now: Instant,
    followed: Followed,
    held: RegistryVersion,
    responders: Vec<Responder>,
    heard: Option<Instant>,
    takeover: TakeOver,
    asked: std::cell::RefCell<Vec<Option<u64>>>,
}

impl Case {
    fn new() -> Self {
        let now = Instant::now();
        let known = version(5, 10);
        let followed = Followed {
            received: known,
            stored: known,
            beat: Some(Beat {
                version: known,
                responders: Arc::new([1, 2]),
                awaited: false,
                state: None,
            }),
            contact: Some(now),
            ..Followed::default()
        };
        Self {
            now: now + Duration::from_secs(40),
            followed,
            held: known.registry(),
            responders: vec![responder(1, None), responder(2, None)],
            heard: Some(now),
            takeover: TakeOver::default(),
            asked: Vec::new().into(),
        }
    }

    fn poll(&mut self) -> Option<Finding> {
        let evidence = Evidence {
            followed: &self.followed,
            held: self.held,
            responders: &self.responders,
            now: self.now,
            heard: self.heard,
        };
        let inquire = |rows_from| {
            self.asked.borrow_mut().push(rows_from);
            self.asked.borrow().len() as u64
        };
        self.takeover.poll(&evidence, inquire)
    }

    /// Both responders say what they hold.
    fn answer(&mut self, first: Version, second: Version) {
        self.responders = vec![responder(1, Some((1, first))), responder(2, Some((1, second)))];
    }

    /// The result after both responders reported the version that the standby holds.
    fn finding(mut self) -> Finding {
        assert_eq!(self.poll(), None);
        self.answer(version(5, 10), version(5, 10));
        self.poll().expect("a result at once")
    }
}

fn is_incomplete(finding: &Finding) -> bool {
    matches!(finding, Finding::Incomplete(_))
}

#[test]
fn a_copy_is_complete_if_all_that_could_acknowledge_hold_no_more() {
    let mut case = Case::new();
    assert_eq!(case.poll(), None);
    assert!(!case.takeover.is_settled());
    case.answer(version(5, 10), version(5, 9));
    assert_eq!(case.poll(), Some(Finding::Complete));
    assert!(case.takeover.is_settled());
    assert_eq!(case.poll(), None, "once");
    assert_eq!(*case.asked.borrow(), [None]);
}

#[test]
fn a_responder_that_holds_more_is_asked_for_it() {
    let mut case = Case::new();
    case.poll();
    case.answer(version(5, 12), version(5, 10));
    assert_eq!(case.poll(), None);
    assert_eq!(*case.asked.borrow(), [None, Some(1)]);
    assert!(!case.takeover.is_settled());
    case.held = version(5, 12).registry();
    assert_eq!(case.poll(), Some(Finding::Complete));

    let mut case = Case::new();
    case.poll();
    case.answer(version(5, 12), version(5, 10));
    case.poll();
    case.now += Duration::from_secs(60);
    assert!(is_incomplete(&case.poll().unwrap()), "it never arrived");
}

/// Regression: a former master had a higher sequence number in its session than its successor.
#[test]
fn the_session_decides_which_registry_is_newer() {
    let mut case = Case::new();
    case.held = version(5, 10).registry();
    case.poll();
    case.answer(version(4, 99), version(5, 10));
    assert_eq!(case.poll(), Some(Finding::Complete));
    let mut case = Case::new();
    case.poll();
    case.answer(version(6, 1), version(5, 10));
    case.poll();
    assert_eq!(*case.asked.borrow(), [None, Some(1)]);
}

/// Regression: a responder that was started again answered from its cache, and counted as one that
/// held all that it had acknowledged.
#[test]
fn a_responder_that_was_started_again_leaves_it_open() {
    let mut case = Case::new();
    case.poll();
    case.answer(version(5, 10), version(5, 10));
    case.responders[1].holds.as_mut().unwrap().restarted = true;
    assert!(is_incomplete(&case.poll().unwrap()), "at once");
    // What it has is not newer than what others hold: it may lack secrets.
    let mut case = Case::new();
    case.poll();
    case.answer(version(5, 10), version(5, 12));
    case.responders[1].holds.as_mut().unwrap().restarted = true;
    assert!(is_incomplete(&case.poll().unwrap()));
    assert_eq!(*case.asked.borrow(), [None]);
}

#[test]
fn a_silent_responder_that_could_acknowledge_leaves_it_open() {
    for responders in [
        vec![responder(1, Some((1, version(5, 10)))), responder(2, None)],
        vec![responder(1, Some((1, version(5, 10))))],
    ] {
        let mut case = Case::new();
        case.poll();
        case.responders = responders;
        assert_eq!(case.poll(), None, "it has a moment to answer");
        case.now += Duration::from_secs(1);
        assert!(is_incomplete(&case.poll().unwrap()));
    }
}

/// Regression: Packets of the feed were dropped for 12 s while the master acknowledged writes and
/// then died: the standby claimed to know all registrations, and had one of seven.
#[test]
fn a_master_that_lived_on_while_its_feed_was_interrupted_may_have_acknowledged_more() {
    let mut case = Case::new();
    let contact = case.followed.contact.unwrap();
    case.heard = Some(contact + LEASE);
    assert_eq!(case.finding(), Finding::Complete);
    let mut case = Case::new();
    case.heard = Some(contact + LEASE + Duration::from_secs(10));
    assert!(is_incomplete(&case.finding()));
    let mut case = Case::new();
    case.followed.contact = None;
    assert!(is_incomplete(&case.finding()));
}

#[test]
fn what_was_published_last_must_have_arrived() {
    let mut case = Case::new();
    case.followed.beat.as_mut().unwrap().version = version(5, 11);
    assert!(is_incomplete(&case.finding()));
    let mut case = Case::new();
    case.followed.beat = None;
    assert!(is_incomplete(&case.finding()), "an earlier release sends no heartbeats");
    let mut case = Case::new();
    case.followed = Followed::default();
    assert_eq!(case.poll(), None);
    case.answer(version(5, 10), version(5, 10));
    case.now += Duration::from_secs(3);
    assert!(is_incomplete(&case.poll().unwrap()));
}

/// Writes waited for this standby: only writes that it has stored were acknowledged.
#[test]
fn a_master_that_waited_for_the_standby_acknowledged_no_more_than_that_has() {
    let mut case = Case::new();
    let beat = case.followed.beat.as_mut().unwrap();
    (beat.awaited, beat.version) = (true, version(5, 11));
    case.poll();
    case.responders.clear();
    case.now += Duration::from_secs(1);
    assert_eq!(case.poll(), Some(Finding::Complete));
}

/// Regression: the writes that a responder had received and that were not acknowledged were fetched
/// without their outcomes: a deletion that its client repeated was answered with ERR_NO_RECORDS.
#[test]
fn what_a_master_that_waited_for_the_standby_did_not_acknowledge_is_decided_again() {
    for awaited in [true, false] {
        let mut case = Case::new();
        case.followed.beat.as_mut().unwrap().awaited = awaited;
        case.poll();
        case.answer(version(5, 12), version(5, 10));
        assert_eq!(case.poll(), awaited.then_some(Finding::Complete));
        let asked: &[_] = if awaited { &[None] } else { &[None, Some(1)] };
        assert_eq!(*case.asked.borrow(), asked);
    }
}

/// Regression: a standby whose host had stood still with its clock was given up by the master,
/// which died later. The standby concluded that all writes had waited for it, though a responder
/// held one that was acknowledged since.
#[test]
fn what_a_responder_has_acknowledged_shows_that_the_standby_was_given_up() {
    for acknowledged in [10, 11] {
        let mut case = Case::new();
        case.followed.beat.as_mut().unwrap().awaited = true;
        case.poll();
        case.answer(version(5, 12), version(5, 10));
        case.responders[0].holds.as_mut().unwrap().acknowledged = acknowledged;
        let first = case.poll();
        if acknowledged == 10 {
            assert_eq!(first, Some(Finding::Complete));
            continue;
        }
        assert_eq!((first, &case.asked.borrow()[..]), (None, &[None, Some(1)][..]));
        case.held = version(5, 12).registry();
        assert!(is_incomplete(&case.poll().unwrap()), "another one that is gone may hold more");
    }
}

/// Regression: a standby that lagged was restarted after its master had died. It began a session
/// with its outdated copy before any responder had connected: acknowledged writes were lost.
#[test]
fn a_restarted_standby_waits_for_responders_to_connect() {
    let mut case = Case::new();
    case.followed = Followed::default();
    case.responders.clear();
    assert_eq!(case.poll(), None);
    case.now += Duration::from_secs(2);
    case.responders = vec![responder(1, Some((1, version(5, 12))))];
    assert_eq!(case.poll(), None, "another may still connect");
    case.now += Duration::from_secs(1);
    assert_eq!(case.poll(), None);
    assert_eq!(*case.asked.borrow(), [None, Some(1)]);
    case.held = version(5, 12).registry();
    assert!(is_incomplete(&case.poll().unwrap()), "a responder that is gone may hold more");

    let mut case = Case::new();
    case.followed = Followed::default();
    case.held = RegistryVersion::default();
    case.responders.clear();
    assert!(is_incomplete(&case.poll().unwrap()), "an empty registry cannot be outdated");
}

/// The port of the previous master, which follows this SM in turn.
fn rival(sealed: Option<(u64, Version)>) -> Responder {
    let hello = Hello { responder_id: 9, sm_guid: 7, ..Hello::default() };
    let mut rival = Responder::new(&hello, None, None, Instant::now(), 9);
    if let Some(follower) = &mut rival.follower {
        follower.sealed = sealed.map(|(number, version)| (number, version.registry()));
    }
    rival
}

/// A standby whose master has lost its link to the fabric, and is alive.
fn beside_a_rival() -> Case {
    let mut case = Case::new();
    let of = |mut version: Version| {
        version.session.sm_guid = Guid(7);
        version
    };
    let known = of(version(5, 10));
    (case.followed.received, case.followed.stored) = (known, known);
    case.followed.beat.as_mut().unwrap().version = known;
    case.held = known.registry();
    case.followed.is_connected = true;
    case.followed.contact = Some(case.now - Duration::from_millis(500));
    case
}

/// Regression: a master whose link had failed went on to acknowledge writes after a standby had
/// found that its copy was complete. These were lost, and their clients were not asked.
#[test]
fn a_master_that_is_alive_must_have_stopped_acknowledging() {
    let of_rival = |epoch, sequence| {
        let mut version = version(epoch, sequence);
        version.session.sm_guid = Guid(7);
        version
    };
    let answers = |sealed| {
        let held = Some((1, of_rival(5, 10)));
        vec![responder(1, held), responder(2, held), rival(sealed)]
    };
    let mut case = beside_a_rival();
    assert_eq!(case.poll(), None);
    case.responders = answers(None);
    assert_eq!(case.poll(), None, "it has time to answer");
    case.responders = answers(Some((1, of_rival(5, 10))));
    assert_eq!(case.poll(), Some(Finding::Complete));

    let mut case = beside_a_rival();
    case.poll();
    case.responders = answers(Some((1, of_rival(5, 12))));
    assert_eq!(case.poll(), None, "its feed goes on");
    assert_eq!(*case.asked.borrow(), [None], "nothing need be fetched");
    case.held = of_rival(5, 12).registry();
    assert_eq!(case.poll(), Some(Finding::Complete));

    let mut case = beside_a_rival();
    case.poll();
    case.responders = answers(None);
    case.now += Duration::from_secs(3);
    case.followed.contact = Some(case.now);
    assert!(is_incomplete(&case.poll().unwrap()), "it does not answer");

    let mut case = beside_a_rival();
    case.heard = Some(case.now);
    case.poll();
    case.responders = answers(None);
    case.followed.is_connected = false;
    assert_eq!(case.poll(), Some(Finding::Complete), "it has died");
}

#[test]
fn without_responders_there_is_nothing_to_wait_for() {
    let mut case = Case::new();
    case.followed.beat.as_mut().unwrap().responders = Arc::default();
    case.responders.clear();
    assert_eq!(case.poll(), Some(Finding::Complete));
}

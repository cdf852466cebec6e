use super::*;
use crate::ask::malformed::Form;
use crate::fabric;
use crate::scenario::closed::Closed;
use crate::scenario::malformed::Flood;
use crate::scenario::open::Open;
use crate::scenario::pace::{Arrivals, Bounds, Schedule};
use crate::scenario::srp::{Listing, Srp, SrpOptions};
use crate::scenario::{Part, Patience};
use crate::workload::{By, Draw, WorkloadOptions};
use ib_mad::types::{Lid, PKey};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use ib_mad::wire::sa::SaMad;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

const TWICE: Patience = Patience { timeout: Duration::from_millis(100), retries: 2 };

fn bed(scenario: impl FnOnce(Arc<Workload>) -> Box<dyn Scenario>) -> Requester {
    let fabric = Fabric::new(Arc::new(fabric::tests::plane()));
    let options = WorkloadOptions {
        by: By::Gid,
        draw: Draw::Any(64),
        seed: 1,
        service_id: 0,
        pkey: PKey::DEFAULT_FULL,
        sample: 1.0,
    };
    let workload = Workload::draw(&options, fabric.ports().clone(), Some(&fabric)).unwrap();
    let workload = Arc::new(workload);
    Requester::new(RequesterOptions {
        scenario: scenario(Arc::clone(&workload)),
        workload,
        fabric: Some(Arc::new(fabric)),
        level: Level::Status,
        show: 2,
        tid_seed: 1,
    })
}

fn closed(concurrency: usize, limit: Option<u64>, start: Instant) -> Requester {
    bed(|workload| {
        let bounds = Bounds::new(start, None, limit);
        Box::new(Closed::new(workload, 0, concurrency, TWICE, bounds))
    })
}

fn open(rate: f64, limit: Option<u64>, start: Instant) -> Requester {
    bed(|workload| {
        let schedule = Schedule::new(Arrivals::Constant, rate, start, 1);
        Box::new(Open::new(workload, 0, schedule, TWICE, Bounds::new(start, None, limit)))
    })
}

fn transmitted(requester: &mut Requester, now: Instant) -> Vec<Packet> {
    let mut packet = Packet::default();
    std::iter::from_fn(|| requester.poll_transmit(now, 0, &mut packet).map(|_| packet.clone()))
        .collect()
}

fn answer(mut packet: Packet) -> Packet {
    SaMad::new(&mut packet.mad).make_response(Status::OK);
    packet
}

#[test]
fn answers_make_room_for_further_queries() {
    let now = Instant::now();
    let mut requester = closed(2, Some(5), now);
    requester.advance(now);
    let mut sent = transmitted(&mut requester, now);
    assert_eq!(sent.len(), 2);
    assert_ne!(sent[0].address.lid, Lid::PERMISSIVE);
    let mut total = sent.len();
    while !sent.is_empty() {
        assert!(!requester.is_done(now));
        sent.into_iter().for_each(|packet| requester.handle(now + MS, &answer(packet)));
        requester.advance(now + MS);
        sent = transmitted(&mut requester, now + MS);
        total += sent.len();
    }
    assert!(requester.is_done(now));
    let counts = requester.counts();
    assert_eq!((total, counts.queries, counts.answered, counts.resolved), (5, 5, 5, 5));
    assert_eq!(requester.recent().due().max().as_millis(), 1);
    assert_eq!(requester.into_words().0.len(), 2, "as many as were to be shown");
}

#[test]
fn a_silent_responder_is_asked_again_unchanged_and_then_given_up() {
    let start = Instant::now();
    let mut requester = closed(1, Some(1), start);
    requester.advance(start);
    let first = transmitted(&mut requester, start);
    for retry in 1..=2 {
        let due = start + 100 * MS * retry;
        assert_eq!(requester.next_due(), Some(due));
        requester.advance(due);
        let again = transmitted(&mut requester, due);
        assert_eq!((again.len(), again[0].mad), (1, first[0].mad));
    }
    requester.advance(start + 300 * MS);
    let counts = requester.counts();
    assert_eq!((counts.sent, counts.retries, counts.timed_out), (3, 2, 1));
    assert!(requester.is_done(start + 300 * MS));
    requester.handle(start + 301 * MS, &answer(first[0].clone()));
    assert_eq!((requester.counts().late, requester.counts().answered), (1, 0));
}

#[test]
fn a_repeat_takes_the_next_way() {
    let start = Instant::now();
    let mut requester = closed(1, Some(1), start);
    requester.advance(start);
    let mut packet = Packet::default();
    assert_eq!(requester.poll_transmit(start, 5, &mut packet), Some(Route::Turn(5)));
    for (retry, turn) in [(1, 6), (2, 7)] {
        let due = start + 100 * MS * retry;
        requester.advance(due);
        assert_eq!(requester.poll_transmit(due, 6, &mut packet), Some(Route::Turn(turn)));
    }
}

/// Queries delayed by a stalled responder are charged to it: latencies count from the scheduled
/// time.
#[test]
fn latencies_count_from_when_queries_were_due() {
    let start = Instant::now();
    let mut requester = open(1000.0, Some(3), start);
    let now = start + 10 * MS;
    requester.advance(now);
    for packet in transmitted(&mut requester, now) {
        requester.handle(now, &answer(packet));
    }
    let latencies = requester.recent().due();
    assert_eq!((latencies.len(), latencies.max().as_millis()), (3, 10));
    assert_eq!(latencies.percentile(1.0).as_millis(), 8);
}

/// Regression: a correct refusal was counted as resolved by kind, but not in the sum.
#[test]
fn expected_refusals_are_counted_apart_in_total_and_by_kind() {
    let start = Instant::now();
    let mut requester = bed(|_| {
        let bounds = Bounds::new(start, None, None);
        let options = SrpOptions {
            ports: 1,
            within: Duration::ZERO,
            listing: Listing::Targets,
            scans: 1,
            rescan: MS,
            patience: TWICE,
        };
        Box::new(Srp::new(Part::ALL, options, start, bounds, 1))
    });
    // Two subscriptions and ClassPortInfo, then an empty table.
    for status in [Status::OK, Status::OK, Status::OK, Status::SA_NO_RECORDS] {
        requester.advance(start);
        let mut packet = transmitted(&mut requester, start).remove(0);
        SaMad::new(&mut packet.mad).make_response(status);
        requester.handle(start, &packet);
    }
    let counts = requester.counts();
    assert_eq!((counts.resolved, counts.no_path, counts.settled()), (3, 1, 4));
    let table = counts.kinds[Kind::Targets as usize];
    assert_eq!((table.resolved, table.no_path, table.failed), (0, 1, 0));
}

#[test]
fn what_is_no_answer_is_counted_and_leaves_the_query_waiting() {
    let now = Instant::now();
    let mut requester = closed(1, Some(1), now);
    requester.advance(now);
    let sent = transmitted(&mut requester, now).remove(0);
    requester.handle(now, &sent);
    let mut back = answer(sent.clone());
    back.carrier.undelivered = 110;
    requester.handle(now, &back);
    let mut report = answer(sent.clone());
    SaMad::new(&mut report.mad).header_mut().set_method(Method::REPORT);
    requester.handle(now, &report);
    let counts = requester.counts();
    assert_eq!((counts.strange, counts.undelivered, counts.answered), (2, 1, 0));
    requester.handle(now, &answer(sent));
    assert_eq!(requester.counts().answered, 1);
}

#[test]
fn every_query_is_accounted_for() {
    let now = Instant::now();
    let mut requester = closed(8, None, now);
    requester.advance(now);
    for packet in transmitted(&mut requester, now).into_iter().take(3) {
        requester.handle(now, &answer(packet));
    }
    requester.abandon();
    let counts = requester.counts();
    assert_eq!(counts.queries, counts.answered + counts.timed_out + counts.abandoned);
    assert_eq!(counts.abandoned, 5);
}

/// Linux accepts BUSY and REDIRECT as responses, and does not retry.
#[test]
fn any_status_is_final() {
    for status in [Status::BUSY, Status::REDIRECT, Status::SA_NO_RESOURCES] {
        let now = Instant::now();
        let mut requester = closed(1, Some(1), now);
        requester.advance(now);
        let mut packet = transmitted(&mut requester, now).remove(0);
        SaMad::new(&mut packet.mad).make_response(status);
        requester.handle(now, &packet);
        requester.advance(now + 200 * MS);
        assert!(requester.is_done(now) && transmitted(&mut requester, now).is_empty());
        assert_eq!(requester.counts().errors.iter().collect::<Vec<_>>(), [(status, 1)]);
    }
}

/// Latency from the scheduled time and from the send time are distinct; the difference is the
/// generator's.
#[test]
fn generator_delay_is_reported_apart() {
    let start = Instant::now();
    let mut requester = open(1000.0, Some(1), start);
    let late = start + 5 * MS;
    requester.advance(late);
    for packet in transmitted(&mut requester, late) {
        requester.handle(late + 2 * MS, &answer(packet));
    }
    let timings = requester.recent();
    assert_eq!((timings.due().max().as_millis(), timings.service().max().as_millis()), (7, 2));
    assert_eq!(timings.lag.max().as_millis(), 5);
}

/// Any packet with the transaction id of a malformed request is its response; a missing one does
/// not count as a timeout of valid queries.
#[test]
fn garbage_is_counted_apart() {
    let start = Instant::now();
    let mut requester = bed(|workload| {
        let schedule = Schedule::new(Arrivals::Constant, 1000.0, start, 1);
        let bounds = Bounds::new(start, None, Some(2));
        let open = Open::new(workload, 0, schedule, TWICE, bounds);
        Box::new(Flood::new(open, 1.0, &[Form::Class], 1))
    });
    let now = start + MS;
    requester.advance(now);
    let sent = transmitted(&mut requester, now);
    assert_eq!(sent.len(), 2);
    // An ACK has status 0: malformed requests sent by RMPP seemed to be answered OK.
    let mut ack = answer(sent[1].clone());
    let mut mad = SaMad::new(&mut ack.mad);
    mad.rmpp_mut().set_rmpp_type(RmppType::ACK).set_flags(RmppFlags::ACTIVE);
    requester.handle(now, &ack);
    requester.handle(now, &answer(sent[0].clone()));
    requester.advance(now + 500 * MS);
    let counts = requester.counts();
    assert_eq!((counts.answered, counts.answered_garbage, counts.silent_garbage), (1, 1, 1));
    assert_eq!((counts.resolved, counts.timed_out, counts.strange), (0, 0, 0));
}

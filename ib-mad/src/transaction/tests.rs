use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_millis(100);

fn transmitted(table: &mut Transactions<&'static str>, now: Instant) -> Vec<&'static str> {
    std::iter::from_fn(|| table.poll_transmit(now).map(|(_, name)| *name)).collect()
}

#[test]
fn an_answer_finds_its_request_by_the_low_32_bits() {
    let now = Instant::now();
    let mut table = Transactions::new(4, 0xABCD);
    let tid = u64::from(table.start("a", TIMEOUT, 0).unwrap());
    table.start("b", TIMEOUT, 0).unwrap();
    assert_eq!(transmitted(&mut table, now), ["a", "b"]);
    let rewritten = 0x0006_1234_0000_0000 | tid;
    assert_eq!(table.get(rewritten), Some(&"a"));
    assert_eq!(table.handle_response(rewritten), Some("a"));
    assert_eq!(table.handle_response(rewritten), None, "once only");
    assert_eq!((table.counters().answered, table.counters().unmatched), (1, 1));
}

#[test]
fn a_full_table_hands_the_context_back() {
    let mut table = Transactions::new(2, 1);
    table.start("a", TIMEOUT, 0).unwrap();
    let tid = table.start("b", TIMEOUT, 0).unwrap();
    assert_eq!((table.start("c", TIMEOUT, 0), table.room()), (Err("c"), 0));
    assert_eq!(table.cancel(u64::from(tid)), Some("b"));
    assert!(table.start("c", TIMEOUT, 0).is_ok());
}

#[test]
fn the_next_request_of_a_slot_starts_afresh() {
    let now = Instant::now();
    let mut table = Transactions::new(1, 1);
    for _ in 0..2 {
        let tid = table.start("a", TIMEOUT, 0).unwrap();
        assert_eq!(transmitted(&mut table, now), ["a"]);
        assert_eq!(table.handle_response(u64::from(tid)), Some("a"));
        assert_eq!(table.poll_timeout(), None);
    }
    assert_eq!((table.counters().transmitted, table.counters().retried), (2, 0));
}

#[test]
fn silence_is_answered_by_retries_and_then_by_giving_up() {
    let start = Instant::now();
    let mut table = Transactions::new(4, 1);
    let tid = table.start("a", TIMEOUT, 2).unwrap();
    let mut now = start;
    for _ in 0..3 {
        assert_eq!(transmitted(&mut table, now), ["a"]);
        assert_eq!(table.poll_timeout(), Some(now + TIMEOUT));
        table.handle_timeout(now + TIMEOUT - Duration::from_nanos(1));
        assert_eq!(transmitted(&mut table, now), [""; 0], "not yet due");
        assert_eq!(table.poll_expired(), None);
        now += TIMEOUT;
        table.handle_timeout(now);
    }
    assert_eq!(transmitted(&mut table, now), [""; 0]);
    assert_eq!(table.poll_expired(), Some((tid, "a")));
    assert_eq!((table.poll_expired(), table.poll_timeout()), (None, None));
    assert_eq!((table.counters().transmitted, table.counters().retried), (3, 2));
    assert_eq!(table.handle_response(u64::from(tid)), None, "too late");
}

#[test]
fn an_answer_between_time_out_and_retry_counts() {
    let now = Instant::now();
    let mut table = Transactions::new(4, 1);
    let tids = [0, 1].map(|retries| table.start("a", TIMEOUT, retries).unwrap());
    transmitted(&mut table, now);
    table.handle_timeout(now + TIMEOUT);
    for tid in tids {
        assert_eq!(table.handle_response(u64::from(tid)), Some("a"));
    }
    assert_eq!(transmitted(&mut table, now), [""; 0]);
    assert_eq!(table.poll_expired(), None);
}

#[test]
fn different_time_outs_are_due_in_their_own_order() {
    let now = Instant::now();
    let mut table = Transactions::new(4, 1);
    table.start("slow", TIMEOUT * 10, 0).unwrap();
    table.start("fast", TIMEOUT, 0).unwrap();
    transmitted(&mut table, now);
    assert_eq!(table.poll_timeout(), Some(now + TIMEOUT));
    table.handle_timeout(now + TIMEOUT);
    assert_eq!(table.poll_expired().unwrap().1, "fast");
    assert_eq!(table.poll_timeout(), Some(now + TIMEOUT * 10));
}

#[test]
fn a_time_out_too_many_takes_the_next_longer_one() {
    let now = Instant::now();
    let mut table = Transactions::new(20, 1);
    for factor in 1..=TIMEOUTS_MAX as u32 {
        table.start("even", TIMEOUT * 2 * factor, 0).unwrap();
    }
    table.start("odd", TIMEOUT * 3, 0).unwrap();
    table.start("longest", TIMEOUT * 1000, 0).unwrap();
    transmitted(&mut table, now);
    let mut due = |factor| {
        table.handle_timeout(now + TIMEOUT * factor);
        std::iter::from_fn(|| table.poll_expired()).map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(due(3), ["even"]);
    assert_eq!(due(4), ["even", "odd"]);
    assert_eq!(due(2 * TIMEOUTS_MAX as u32).last(), Some(&"longest"));
}

#[test]
fn ids_do_not_repeat_soon_and_are_never_zero() {
    for seed in [0, 1, u32::MAX, u32::MAX << 10] {
        let mut table = Transactions::new(1000, seed);
        let mut seen = HashSet::new();
        for _ in 0..200_000 {
            let tid = table.start((), TIMEOUT, 0).unwrap();
            assert!(tid != 0 && seen.insert(tid));
            table.handle_response(u64::from(tid));
        }
    }
}

#[test]
fn cancelling_all_leaves_nothing() {
    let now = Instant::now();
    let mut table = Transactions::new(8, 1);
    for name in ["ready", "waiting", "expired"] {
        table.start(name, TIMEOUT, 0).unwrap();
    }
    transmitted(&mut table, now);
    table.handle_timeout(now + TIMEOUT);
    assert_eq!(table.cancel_all().count(), 3);
    assert_eq!((table.outstanding(), table.room()), (0, 8));
    assert_eq!((table.poll_timeout(), table.poll_expired()), (None, None));
}

/// An operation of a test on the table.
#[derive(Clone, Copy, Debug)]
enum Step {
    Start(u8, u8),
    Transmit,
    /// Answers one of the IDs returned so far, active or not.
    Answer(prop::sample::Index),
    Cancel(prop::sample::Index),
    Wait(u16),
    Expire,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..20, 0u8..3).prop_map(|(timeout, retries)| Step::Start(timeout, retries)),
        4 => Just(Step::Transmit),
        2 => any::<prop::sample::Index>().prop_map(Step::Answer),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        2 => (0u16..30).prop_map(Step::Wait),
        1 => Just(Step::Expire),
    ]
}

proptest! {
    /// Compares with a model of all active requests: responses reach exactly these, none is lost,
    /// and each is sent at most 1 + retries times.
    #[test]
    fn every_request_is_answered_expired_or_withdrawn_once(
        capacity in 1usize..12,
        seed: u32,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let mut now = Instant::now();
        let mut table = Transactions::new(capacity, seed);
        // Id → serial number and number of sends left.
        let mut living: HashMap<u32, (u64, u32)> = HashMap::new();
        let mut given_out = Vec::new();
        let mut serial = 0;
        for step in steps {
            match step {
                Step::Start(timeout, retries) => {
                    serial += 1;
                    let timeout = Duration::from_millis(u64::from(timeout));
                    match table.start(serial, timeout, u32::from(retries)) {
                        Ok(tid) => {
                            let fresh = (serial, u32::from(retries) + 1);
                            prop_assert!(living.insert(tid, fresh).is_none());
                            given_out.push(tid);
                        }
                        Err(_) => prop_assert_eq!(living.len(), capacity),
                    }
                }
                Step::Transmit => {
                    if let Some((tid, context)) = table.poll_transmit(now) {
                        let (serial, left) = living.get_mut(&tid).unwrap();
                        prop_assert_eq!(*serial, *context);
                        prop_assert!(*left > 0);
                        *left -= 1;
                    }
                }
                Step::Answer(index) if !given_out.is_empty() => {
                    let tid = *index.get(&given_out);
                    let expected = living.remove(&tid).map(|(serial, _)| serial);
                    prop_assert_eq!(table.handle_response(u64::from(tid)), expected);
                }
                Step::Cancel(index) if !given_out.is_empty() => {
                    let tid = *index.get(&given_out);
                    let expected = living.remove(&tid).map(|(serial, _)| serial);
                    prop_assert_eq!(table.cancel(u64::from(tid)), expected);
                }
                Step::Answer(_) | Step::Cancel(_) => {}
                Step::Wait(milliseconds) => {
                    now += Duration::from_millis(u64::from(milliseconds));
                    table.handle_timeout(now);
                    prop_assert!(table.poll_timeout().is_none_or(|due| due > now));
                }
                Step::Expire => {
                    while let Some((tid, serial)) = table.poll_expired() {
                        prop_assert_eq!(living.remove(&tid), Some((serial, 0)));
                    }
                }
            }
            let counters = table.counters();
            prop_assert_eq!(table.outstanding(), living.len());
            prop_assert_eq!(
                counters.started,
                counters.answered + counters.expired + counters.cancelled
                    + living.len() as u64
            );
        }
        // Without responses, all requests are returned in the end.
        for _ in 0..5 {
            while table.poll_transmit(now).is_some() {}
            now += Duration::from_millis(20);
            table.handle_timeout(now);
            while table.poll_expired().is_some() {}
        }
        prop_assert_eq!(table.outstanding(), 0);
    }
}

//! Random packets: no panic, and every request is counted.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Chain, path_request, published};
use ib_mad::transport::{Address, Grh, Packet, Transport};
use ib_mad::types::{Gid, Lid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::sa::{SaMad, attribute};
use proptest::prelude::*;
use sa_server::serve::overload::BacklogConfig;
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::serve::worker::{Next, Worker, WorkerConfig};
use sa_server::stats::{DropReason, Kind, Stats, StatusLabel, Subject};

fn responder() -> Responder {
    let publisher = published(&Chain { switches: 3, hosts_each: 4 }.plane(|_| {}));
    Responder::new(publisher.reader(), ResponderConfig::default(), Arc::new(Stats::default()))
}

/// A packet with random content, mostly of the SA class.
fn any_packet() -> impl Strategy<Value = Packet> {
    let attribute = prop_oneof![
        4 => prop::sample::select(vec![0x01u16, 0x11, 0x12, 0x20, 0x35, 0x35, 0x38, 0x3A]),
        1 => any::<u16>(),
    ];
    let method = prop_oneof![
        4 => prop::sample::select(vec![0x01u8, 0x12, 0x12, 0x02, 0x14, 0x15]),
        1 => any::<u8>(),
    ];
    let sparse = prop::collection::vec((0usize..256, any::<u8>()), 0..24);
    (any::<bool>(), method, attribute, any::<[u8; 32]>(), sparse, 0u16..20, 0u8..4).prop_map(
        |(ours, method, attribute, head, sparse, lid, rmpp)| {
            let mut packet = Packet::to(Address::gsi(Lid(lid)));
            packet.mad[8..16].copy_from_slice(&head[..8]);
            packet.mad[48..72].copy_from_slice(&head[8..]);
            for (at, byte) in sparse {
                packet.mad[at] = byte;
            }
            if ours {
                packet.mad[..4].copy_from_slice(&[1, 3, 2, method]);
                packet.mad[16..18].copy_from_slice(&attribute.to_be_bytes());
            }
            packet.mad[26] = packet.mad[26] & !7 | if rmpp == 0 { 7 } else { 0 };
            packet
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_sequence_of_packets_is_accounted_for(
        packets in prop::collection::vec(any_packet(), 1..64),
    ) {
        let mut responder = responder();
        let mut now = Instant::now();
        let mut out = Packet::default();
        for mut packet in packets {
            let asked = packet.mad;
            let outcome = responder.handle(&mut packet, now);
            prop_assert!(responder.stats().balances());
            if outcome == Outcome::Send {
                let mad = SaMad::new(&packet.mad);
                prop_assert!(mad.header().method().is_response());
                prop_assert_eq!(mad.header().tid(), SaMad::new(&asked).header().tid());
                prop_assert!(!SaMad::new(&asked).header().method().is_response());
            }
            while responder.poll_transmit(now, &mut out) {}
            now += Duration::from_millis(7);
            responder.handle_timeout(now);
            prop_assert!(responder.stats().balances());
        }
        while let Some(due) = responder.poll_timeout() {
            responder.handle_timeout(due);
            while responder.poll_transmit(due, &mut out) {}
        }
        prop_assert_eq!(responder.stats().in_flight(), 0);
        prop_assert_eq!(responder.memory_lent(), 0);
        prop_assert!(responder.stats().balances());
        for sessions in [&responder.stats().rmpp_in, &responder.stats().rmpp_out] {
            let ended = sessions.complete.get() + sessions.failed.get();
            prop_assert_eq!((sessions.begun.get(), sessions.active.get()), (ended, 0));
        }
    }
}

#[test]
fn requests_are_counted_by_attribute_and_method() {
    let mut responder = responder();
    let now = Instant::now();
    let mut table = path_request(1, 1, 2, 5);
    SaMad::new(&mut table.mad).header_mut().set_method(Method::GET_TABLE);
    let mut foreign = path_request(1, 1, 2, 6);
    SaMad::new(&mut foreign.mad).header_mut().set_mgmt_class(MgmtClass::PERF);
    for packet in [&mut path_request(1, 1, 2, 4), &mut table, &mut foreign] {
        responder.handle(packet, now);
    }
    let stats = responder.stats();
    let of = |method| Subject::of(attribute::PATH_RECORD, method);
    for subject in [of(Method::GET), of(Method::GET_TABLE)] {
        assert_eq!(stats.requests_of(subject), 1);
        assert_eq!(stats.responses_of(subject, StatusLabel::Ok), 1);
    }
    assert_eq!(stats.requests_of(Subject::NONE), 1, "of another class, whatever it is about");
    assert_eq!(stats.dropped(DropReason::NotSubnetAdministration), 1);
    assert!(stats.balances());
}

#[test]
fn requests_without_a_snapshot_are_not_answered() {
    let publisher = sa_server::tables::cell::Publisher::new();
    let stats = Arc::new(Stats::default());
    let mut responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);
    let mut packet = path_request(1, 1, 2, 5);
    assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Nothing);
    assert_eq!(responder.stats().dropped(DropReason::NotReady), 1);
}

/// Proves IBA C15-0.1.5.
#[test]
fn the_sm_key_opens_nothing_unless_it_is_right() {
    let mut responder = responder();
    for (key, answered) in
        [(0, true), (crate::common::SM_KEY, true), (crate::common::SM_KEY + 1, false)]
    {
        let mut packet = path_request(1, 1, 2, 5);
        SaMad::new(&mut packet.mad).sa_mut().set_sm_key(key);
        let outcome = responder.handle(&mut packet, Instant::now());
        assert_eq!(outcome == Outcome::Send, answered, "{key:#x}");
        if answered {
            assert_eq!(SaMad::new(&packet.mad).sa().sm_key(), 0, "it never goes back");
        }
    }
    assert_eq!(responder.stats().dropped(DropReason::WrongSmKey), 1);
}

/// Has a backlog of requests, and accepts answers only when allowed.
struct Flood {
    left: u64,
    tid: u64,
    takes: usize,
    answered: Vec<u64>,
}

impl Transport for Flood {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let count = self.left.min(batch.len() as u64) as usize;
        for packet in &mut batch[..count] {
            *packet = path_request(1, 1, 2, self.tid);
            self.tid += 1;
        }
        self.left -= count as u64;
        Ok(count)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let count = batch.len().min(self.takes);
        self.takes -= count;
        self.answered.extend(batch[..count].iter().map(|p| SaMad::new(&p.mad).header().tid()));
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn under_overload_the_newest_are_answered_first_and_the_stale_dropped() {
    let transport = Flood { left: 1000, tid: 0, takes: usize::MAX, answered: Vec::new() };
    let mut worker = Worker::new(transport, responder(), WorkerConfig::default());
    // The worker was away for so long that what has arrived may be old, and takes all of it; after
    // as long again it is.
    let start = Instant::now() + Duration::from_millis(30);
    worker.turn(|| start).unwrap();
    worker.transport_mut().answered.clear();
    worker.turn(|| start + Duration::from_millis(30)).unwrap();
    let first = worker.transport_mut().answered.clone();
    assert_eq!(first.len(), 64);
    assert!(first.iter().all(|&tid| tid >= 1000 - 64), "{first:?}");

    worker.turn(|| start + Duration::from_secs(1)).unwrap();
    let stats = worker.responder().stats();
    assert_eq!(stats.dropped(DropReason::Stale), 1000 - 128);
    assert_eq!((stats.requests(), stats.responses()), (1000, 128));
    assert_eq!(stats.latency(Kind::Get).count(), 128);
    assert!(stats.balances());
}

/// Requests left in the umad file of a killed process: all senders but the last have given up.
#[test]
fn of_an_inherited_queue_only_the_end_is_answered() {
    let transport = Flood { left: 10_000, tid: 0, takes: usize::MAX, answered: Vec::new() };
    let mut worker = Worker::new(transport, responder(), WorkerConfig::default());
    let start = Instant::now();
    worker.take_over(100, start).unwrap();
    while worker.turn(|| start).unwrap() == Next::Again {}
    let mut tids = worker.transport_mut().answered.clone();
    tids.sort_unstable();
    assert_eq!(tids, (9_900..10_000).collect::<Vec<_>>());
    let stats = worker.responder().stats();
    assert_eq!((stats.requests(), stats.dropped(DropReason::Stale)), (10_000, 9_900));
    assert!(stats.balances());
}

/// A port without LIDs, as with RoCE, is identified only by the GID in its GRH.
#[test]
fn a_requester_without_a_lid_is_known_by_its_gid() {
    let mut responder = responder();
    let mut ask = |lid, host: Option<u16>| {
        let mut packet = path_request(lid, 1, 2, 5);
        packet.address.grh = host.map(|host| Grh {
            remote_gid: Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(host)),
            ..Grh::default()
        });
        responder.handle(&mut packet, Instant::now())
    };
    assert_eq!(ask(0, Some(1)), Outcome::Send);
    assert_eq!(ask(0, Some(999)), Outcome::Nothing);
    assert_eq!(ask(0, None), Outcome::Nothing);
    assert_eq!(ask(999, Some(1)), Outcome::Nothing, "a LID without owner");
    assert_eq!(responder.stats().dropped(DropReason::UnknownRequester), 3);
}

#[test]
fn a_transport_that_takes_nothing_holds_up_answers_and_loses_none() {
    let transport = Flood { left: 300, tid: 0, takes: 10, answered: Vec::new() };
    let backlog = BacklogConfig { stale_after: Duration::MAX, ..BacklogConfig::default() };
    let config = WorkerConfig { outbox_max: 100, backlog, ..WorkerConfig::default() };
    let mut worker = Worker::new(transport, responder(), config);
    let start = Instant::now();
    for _ in 0..20 {
        worker.turn(|| start).unwrap();
    }
    let answered = worker.responder().stats().responses();
    assert!((100..=100 + 64 + 10).contains(&answered), "{answered} before the outbox was full");

    worker.transport_mut().takes = usize::MAX;
    while worker.turn(|| start).unwrap() == Next::Again {}
    let mut tids = worker.transport_mut().answered.clone();
    tids.sort_unstable();
    assert_eq!(tids, (0..300).collect::<Vec<_>>());
    assert!(worker.responder().stats().balances());
}

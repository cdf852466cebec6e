//! Table answers of several segments, and clients that violate the protocol.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Chain, published, request};
use ib_mad::rmpp::{Receiver, ReceiverConfig, SenderConfig, Transmit};
use ib_mad::transport::memory::{Endpoint, Faults, Network};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::rmpp::{RmppFlags, RmppStatus, RmppType};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_server::query::pool::PoolConfig;
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::serve::worker::{Worker, WorkerConfig};
use sa_server::stats::{DropReason, Stats};

const SMALL: Chain = Chain { switches: 4, hosts_each: 8 };

pub(crate) fn responder(chain: &Chain, config: ResponderConfig) -> Responder {
    let publisher = published(&chain.plane(|_| {}));
    Responder::new(publisher.reader(), config, Arc::new(Stats::default()))
}

fn all_nodes(lid: u16, tid: u64) -> Packet {
    request(lid, Method::GET_TABLE, attribute::NODE_RECORD, tid, ComponentMask::NONE)
}

/// Segments that are to be sent now.
pub(crate) fn drain(responder: &mut Responder, now: Instant) -> Vec<Packet> {
    let mut packet = Packet::default();
    let mut all = Vec::new();
    loop {
        if responder.poll_transmit(now, &mut packet) {
            all.push(packet.clone());
        } else if !responder.grow_table(now) {
            return all;
        }
    }
}

/// The packet that the client of the transfer of `segment` sends.
pub(crate) fn reply(segment: &Packet, transmit: &Transmit) -> Packet {
    let header = ib_mad::rmpp::reply_header(segment.mad.first_chunk().unwrap());
    let mut packet = segment.clone();
    transmit.write(&header, &[], &mut packet.mad);
    packet
}

/// Advances time until nothing is due, without any arriving packet.
pub(crate) fn wait_out(responder: &mut Responder, mut now: Instant) -> Instant {
    while let Some(due) = responder.poll_timeout() {
        now = now.max(due);
        responder.handle_timeout(now);
        drain(responder, now);
    }
    now
}

#[test]
fn a_client_without_acks_gets_one_segment_and_frees_memory_soon() {
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    for tid in 0..64 {
        assert_eq!(responder.handle(&mut all_nodes(3, tid), now), Outcome::Nothing);
    }
    assert_eq!(drain(&mut responder, now).len(), 64, "the first segment of each");
    assert_eq!(responder.stats().in_flight(), 64);
    assert!(responder.memory_lent() > 0 && responder.stats().balances());

    let end = wait_out(&mut responder, now);
    assert!(end - now < Duration::from_secs(41));
    assert_eq!(responder.memory_lent(), 0);
    assert_eq!(responder.stats().dropped(DropReason::TransferFailed), 64);
    assert!(responder.stats().balances());
}

#[test]
fn a_window_that_never_opens_ends_by_timeout() {
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    responder.handle(&mut all_nodes(3, 1), now);
    let first = drain(&mut responder, now).remove(0);
    // Segment 1 has arrived, and no other is wanted.
    let ack = Transmit::Ack { segment: 1, window_last: 1 };
    responder.handle(&mut reply(&first, &ack), now);
    assert!(drain(&mut responder, now).is_empty());
    wait_out(&mut responder, now);
    assert_eq!((responder.memory_lent(), responder.stats().in_flight()), (0, 0));
}

#[test]
fn stop_and_abort_end_a_transfer_at_once() {
    for end in [
        Transmit::Stop(RmppStatus::RESOURCES_EXHAUSTED),
        Transmit::Abort(RmppStatus::UNSPECIFIED),
        // An ACK of what was never sent, and a window that moves backwards, are errors.
        Transmit::Ack { segment: 9, window_last: 90 },
        Transmit::Ack { segment: 1, window_last: 0 },
    ] {
        let mut responder = responder(&SMALL, ResponderConfig::default());
        let now = Instant::now();
        responder.handle(&mut all_nodes(3, 1), now);
        let first = drain(&mut responder, now).remove(0);
        responder.handle(&mut reply(&first, &end), now);
        for packet in drain(&mut responder, now) {
            let kind = SaMad::new(&packet.mad).rmpp().rmpp_type();
            assert_eq!(kind, RmppType::ABORT, "{end:?}: nothing but last words");
        }
        assert_eq!(responder.stats().in_flight(), 0, "{end:?}");
        assert_eq!(responder.memory_lent(), 0, "{end:?}");
        assert_eq!(responder.stats().dropped(DropReason::TransferFailed), 1, "{end:?}");
        assert!(responder.stats().balances(), "{end:?}");
    }
}

#[test]
fn strangers_and_wrong_versions_do_not_disturb_a_transfer() {
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    responder.handle(&mut all_nodes(3, 1), now);
    let first = drain(&mut responder, now).remove(0);
    let abort = Transmit::Abort(RmppStatus::UNSPECIFIED);
    let mut stranger = reply(&first, &abort);
    stranger.address.lid = Lid(4);
    assert_eq!(responder.handle(&mut stranger, now), Outcome::Nothing);
    let mut wrong = reply(&first, &abort);
    SaMad::new(&mut wrong.mad).rmpp_mut().set_rmpp_version(2);
    // It is no packet of the transfer, so it is answered for itself.
    assert_eq!(responder.handle(&mut wrong, now), Outcome::Send);
    assert_eq!(SaMad::new(&wrong.mad).rmpp().rmpp_status(), RmppStatus::UNSUPPORTED_VERSION);
    assert_eq!(responder.stats().in_flight(), 1);
    assert!(responder.stats().balances());
}

#[test]
fn a_repeated_request_does_not_begin_a_second_transfer() {
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    for _ in 0..3 {
        responder.handle(&mut all_nodes(3, 1), now);
    }
    assert_eq!(drain(&mut responder, now).len(), 1);
    assert_eq!(responder.stats().dropped(DropReason::Duplicate), 2);
    // After its end the same request is answered again.
    wait_out(&mut responder, now);
    responder.handle(&mut all_nodes(3, 1), now + Duration::from_secs(60));
    assert_eq!(responder.stats().in_flight(), 1);
    assert!(responder.stats().balances());
}

#[test]
fn neither_transfers_nor_memory_pass_their_bounds() {
    let few = ResponderConfig { transfers_max: 5, ..ResponderConfig::default() };
    let pool = PoolConfig { answer_max: 16 << 10, total_max: 40 << 10 };
    let little = ResponderConfig { pool, ..ResponderConfig::default() };
    let now = Instant::now();
    for (config, begun, reason) in
        [(few, 5, DropReason::TooManyTransfers), (little, 2, DropReason::NoMemory)]
    {
        let mut responder = responder(&SMALL, config);
        for tid in 0..9 {
            // From as many hosts: a single one has its share only.
            responder.handle(&mut all_nodes(3 + tid as u16, tid), now);
        }
        assert_eq!(responder.stats().in_flight(), begun, "{reason:?}");
        assert_eq!(responder.stats().dropped(reason), 9 - begun);
        assert!(responder.stats().balances());
    }
}

#[test]
fn an_answer_beyond_all_bounds_is_refused_by_status() {
    let pool = PoolConfig { answer_max: 16 << 10, total_max: 1 << 20 };
    let chain = Chain { switches: 10, hosts_each: 30 };
    let mut responder = responder(&chain, ResponderConfig { pool, ..ResponderConfig::default() });
    let mut packet = all_nodes(3, 1);
    assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Send);
    let mad = SaMad::new(&packet.mad);
    assert_eq!(mad.header().status().name(), Some("ERR_NO_RESOURCES"));
    assert!(!mad.rmpp().is_active());
}

/// A client that requests all nodes until it has them, over a network that loses, repeats and
/// reorders packets.
#[test]
fn a_table_arrives_whole_over_a_bad_network() {
    let chain = Chain { switches: 10, hosts_each: 30 };
    for seed in 0..8 {
        let faults = Faults {
            loss: 0.1,
            duplication: 0.1,
            delay_min: Duration::from_micros(10),
            delay_max: Duration::from_millis(5),
        };
        let network = Network::new(seed, faults);
        let sender = SenderConfig {
            response_timeout: Duration::from_millis(50),
            retries_max: 20,
            ..SenderConfig::default()
        };
        let config = ResponderConfig { sender, ..ResponderConfig::default() };
        let at_sa = network.endpoint(Lid(1000), 0);
        let mut worker = Worker::new(at_sa, responder(&chain, config), WorkerConfig::default());
        let mut client = network.endpoint(Lid(5), 0);
        let table = fetch(&network, &mut worker, &mut client, &all_nodes(5, 77));
        let records = (table.len() - 56) / 112;
        assert_eq!(records, 310, "seed {seed}");
        let stats = worker.responder().stats();
        assert!(stats.balances() && stats.segments_sent.get() > 174, "seed {seed}");
        let (sent, repeated) = (stats.segments_sent.get(), stats.segments_repeated.get());
        assert!(0 < repeated && sent - repeated <= 174, "seed {seed}: {repeated} of {sent}");
    }
}

/// The answer to a request that `client` repeats until it comes.
pub(crate) fn fetch(
    network: &Network,
    worker: &mut Worker<Endpoint>,
    client: &mut Endpoint,
    request: &Packet,
) -> Vec<u8> {
    let start = Instant::now();
    let mut receiver: Option<Receiver> = None;
    let mut next_request = Duration::ZERO;
    for _ in 0..100_000 {
        let now = network.now();
        if receiver.is_none() && now >= next_request {
            let mut packet = request.clone();
            packet.address.lid = Lid(1000);
            client.send(&[packet]).unwrap();
            next_request = now + Duration::from_millis(200);
        }
        worker.turn(|| start + now).unwrap();
        let mut batch = vec![Packet::default(); 16];
        let received = client.receive(&mut batch).unwrap();
        for packet in &batch[..received] {
            let at = start + now;
            let is_data = SaMad::new(&packet.mad).rmpp().rmpp_type() == RmppType::DATA;
            match &mut receiver {
                None if is_data => {
                    receiver = Receiver::start(at, &packet.mad, ReceiverConfig::default()).ok();
                }
                None => {}
                Some(receiver) => receiver.handle_packet(at, &packet.mad),
            }
            if let Some(receiver) = &mut receiver {
                while let Some(transmit) = receiver.poll_transmit() {
                    let mut answer = packet.clone();
                    transmit.write(receiver.header(), &[], &mut answer.mad);
                    client.send(&[answer]).unwrap();
                }
            }
        }
        if let Some(message) = receiver.as_mut().and_then(Receiver::take_message) {
            return message;
        }
        let arrival = network.next_arrival().unwrap_or(now + Duration::from_millis(1));
        network.advance_to(
            arrival.min(now + Duration::from_millis(1)).max(now + Duration::from_nanos(1)),
        );
    }
    panic!("the table did not arrive");
}

/// A request that is marked as a transfer of one segment is acknowledged and answered; so is its
/// repeat.
#[test]
fn a_request_by_rmpp_is_acknowledged_and_answered_every_time() {
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    for _ in 0..2 {
        let mut packet = request(
            3,
            Method::GET,
            attribute::NODE_RECORD,
            9,
            ib_mad::wire::record::node::component::LID,
        );
        packet.mad[57] = 3;
        SaMad::new(&mut packet.mad)
            .rmpp_mut()
            .set_rmpp_version(1)
            .set_rmpp_type(RmppType::DATA)
            .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
            .set_segment(1)
            .set_payload_len(132);
        assert_eq!(responder.handle(&mut packet, now), Outcome::Send);
        let mad = SaMad::new(&packet.mad);
        assert_eq!(mad.header().method(), Method::GET_RESP);
        assert!(mad.rmpp().is_active());
        let acks = drain(&mut responder, now);
        assert_eq!(acks.len(), 1);
        assert_eq!(SaMad::new(&acks[0].mad).rmpp().rmpp_type(), RmppType::ACK);
    }
    assert!(responder.stats().balances());
    assert_eq!(responder.stats().in_flight(), 0);
}

/// Headers that OpenSM ignores are ignored here as well: the class version, and an RMPP header that
/// is not marked as active. The recorded cases `malformed/class-version-*` and `malformed/rmpp-*`
/// have some of them; here are all.
#[test]
fn headers_that_opensm_overlooks_are_overlooked() {
    use ib_mad::wire::record::node::component::LID;
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    let good = || {
        let mut packet = request(3, Method::GET, attribute::NODE_RECORD, 9, LID);
        packet.mad[57] = 3;
        packet
    };
    let mut expected = good();
    assert_eq!(responder.handle(&mut expected, now), Outcome::Send);
    for byte in 0..=u8::MAX {
        let mut packet = good();
        SaMad::new(&mut packet.mad).header_mut().set_class_version(byte);
        assert_eq!(responder.handle(&mut packet, now), Outcome::Send);
        assert_eq!(SaMad::new(&packet.mad).header().class_version(), byte, "as it came");
        assert_eq!(packet.mad[3..], expected.mad[3..], "class version {byte}");

        let mut packet = good();
        packet.mad[24..36].fill(byte);
        packet.mad[26] &= !RmppFlags::ACTIVE.0;
        assert_eq!(responder.handle(&mut packet, now), Outcome::Send);
        assert_eq!(packet.mad[..24], expected.mad[..24], "RMPP header of {byte}s");
        assert_eq!(packet.mad[24..28], expected.mad[24..28], "RMPP header of {byte}s");
        assert_eq!(packet.mad[36..], expected.mad[36..], "RMPP header of {byte}s");
    }
    assert!(drain(&mut responder, now).is_empty());
}

/// GetMulti() of another record than MultiPathRecord is refused however it comes. By RMPP it is
/// acknowledged first: an acknowledgement has status 0 and is no answer (IBA C15-0.1.8.7).
#[test]
fn get_multi_of_paths_is_refused_with_and_without_rmpp() {
    let mut responder = responder(&SMALL, ResponderConfig::default());
    let now = Instant::now();
    for by_rmpp in [false, true] {
        let mut packet =
            request(3, Method::GET_MULTI, attribute::PATH_RECORD, 9, ComponentMask::NONE);
        if by_rmpp {
            SaMad::new(&mut packet.mad)
                .rmpp_mut()
                .set_rmpp_version(1)
                .set_rmpp_type(RmppType::DATA)
                .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
                .set_segment(1)
                .set_payload_len(84);
        }
        assert_eq!(responder.handle(&mut packet, now), Outcome::Send);
        let status = SaMad::new(&packet.mad).header().status();
        assert_eq!(status, Status::UNSUPPORTED_METHOD_ATTRIBUTE, "by RMPP: {by_rmpp}");
        let acks = drain(&mut responder, now);
        assert_eq!(acks.len(), usize::from(by_rmpp));
        for ack in acks {
            assert_eq!(SaMad::new(&ack.mad).rmpp().rmpp_type(), RmppType::ACK);
            assert_eq!(SaMad::new(&ack.mad).header().status(), Status::OK);
        }
    }
    assert!(responder.stats().balances());
}

//! Tables that exceed the memory for an answer: they are found while they are sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::{Chain, request};
use crate::transfers::{drain, fetch, reply, responder, wait_out};
use ib_mad::rmpp::{SenderConfig, Transmit};
use ib_mad::transport::Packet;
use ib_mad::transport::memory::{Faults, Network};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::rmpp::RmppFlags;
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, HEADER_LEN, SaMad, attribute};
use sa_server::query::pool::PoolConfig;
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::serve::worker::{Worker, WorkerConfig};
use sa_server::stats::DropReason;

const LARGE: Chain = Chain { switches: 8, hosts_each: 200 };

/// Too little for the tables of small fabrics.
const LITTLE: PoolConfig = PoolConfig { answer_max: 32 << 10, total_max: 1 << 20 };

fn table(lid: u16, attribute: AttributeId, tid: u64) -> Packet {
    request(lid, Method::GET_TABLE, attribute, tid, ComponentMask::NONE)
}

fn all_paths(lid: u16, tid: u64) -> Packet {
    table(lid, attribute::PATH_RECORD, tid)
}

/// The table as it arrives over a network that loses and reorders, header first.
fn arrives(chain: &Chain, pool: PoolConfig, attribute: AttributeId, faults: Faults) -> Vec<u8> {
    let network = Network::new(7, faults);
    let sender = SenderConfig {
        response_timeout: Duration::from_millis(50),
        retries_max: 20,
        ..SenderConfig::default()
    };
    let config = ResponderConfig { pool, sender, ..ResponderConfig::default() };
    let at_sa = network.endpoint(Lid(1000), 0);
    let mut worker = Worker::new(at_sa, responder(chain, config), WorkerConfig::default());
    let mut client = network.endpoint(Lid(5), 0);
    let message = fetch(&network, &mut worker, &mut client, &table(5, attribute, 77));
    assert!(worker.responder().stats().balances());
    message
}

#[test]
fn a_table_in_parts_is_the_table_in_one_piece() {
    let faults = Faults {
        loss: 0.05,
        duplication: 0.05,
        delay_min: Duration::from_micros(10),
        delay_max: Duration::from_millis(5),
    };
    for (attribute, stride, switches, hosts_each) in [
        (attribute::PATH_RECORD, 64, 4, 8),
        (attribute::LINEAR_FORWARDING_TABLE_RECORD, 72, 100, 4),
        (attribute::SL_TO_VL_MAPPING_TABLE_RECORD, 16, 8, 20),
    ] {
        let chain = Chain { switches, hosts_each };
        let whole = arrives(&chain, PoolConfig::default(), attribute, Faults::NONE);
        let parts = arrives(&chain, LITTLE, attribute, faults);
        let records = |message: &[u8]| -> Vec<Vec<u8>> {
            let mut records: Vec<_> =
                message[HEADER_LEN..].chunks(stride).map(<[u8]>::to_vec).collect();
            // Paths are in one order; of other tables the order means nothing.
            if attribute != attribute::PATH_RECORD {
                records.sort_unstable();
            }
            records
        };
        assert!(whole.len() > LITTLE.answer_max, "{attribute:?}: {}", whole.len());
        assert_eq!(records(&whole), records(&parts), "{attribute:?}");
        // All headers are equal but for the fields of RMPP.
        assert_eq!(whole[..24], parts[..24]);
        assert_eq!(whole[36..HEADER_LEN], parts[36..HEADER_LEN]);
    }
}

/// Number of data bytes of the transfer under way, each window of which is acknowledged at once;
/// and the most memory that it takes.
fn receive_all(responder: &mut Responder, now: Instant) -> (usize, usize) {
    let (mut expected, mut bytes, mut memory) = (1, 0, 0);
    loop {
        let packets = drain(responder, now);
        memory = memory.max(responder.memory_lent());
        let last = packets.last().expect("the transfer goes on").clone();
        for packet in packets {
            let (mad, segment) = (SaMad::new(&packet.mad), expected);
            assert_eq!(mad.rmpp().segment(), segment);
            expected += 1;
            let is_last = mad.rmpp().flags().contains(RmppFlags::LAST);
            bytes += if is_last { mad.rmpp().payload_len() as usize - 20 } else { DATA_LEN };
        }
        let segment = expected - 1;
        let ack = Transmit::Ack { segment, window_last: segment + 64 };
        assert_eq!(responder.handle(&mut reply(&last, &ack), now), Outcome::Nothing);
        if SaMad::new(&last.mad).rmpp().flags().contains(RmppFlags::LAST) {
            return (bytes, memory);
        }
    }
}

/// Regression: the paths of more than 700 ports were refused with ERR_NO_RESOURCES.
#[test]
fn all_paths_of_a_large_fabric_are_sent_with_little_memory() {
    let mut responder = responder(&LARGE, ResponderConfig::default());
    let now = Instant::now();
    assert_eq!(responder.handle(&mut all_paths(3, 1), now), Outcome::Nothing);
    let (bytes, memory) = receive_all(&mut responder, now);
    let ports = usize::from(LARGE.hosts() + LARGE.switches);
    assert_eq!(bytes, ports * ports * 64);
    assert!(memory <= 1 << 20, "{memory}");
    let stats = responder.stats();
    assert_eq!((responder.memory_lent(), stats.in_flight()), (0, 0));
    assert!(stats.balances());
}

/// Regression: in each turn all tables grew, each for 2 ms, while Gets waited.
#[test]
fn tables_grow_one_at_a_time_and_in_turn() {
    let mut responder = responder(&LARGE, ResponderConfig::default());
    let now = Instant::now();
    let lids = 3..7;
    for lid in lids.clone() {
        responder.handle(&mut all_paths(lid, 1), now);
    }
    // The segments sent next, without a search: the last of each client.
    let sent = |responder: &mut Responder| -> BTreeMap<u16, Packet> {
        let mut packet = Packet::default();
        let next = || responder.poll_transmit(now, &mut packet).then(|| packet.clone());
        std::iter::from_fn(next).map(|packet| (packet.address.lid.0, packet)).collect()
    };
    let acknowledge = |responder: &mut Responder, segments: &BTreeMap<u16, Packet>| {
        for last in segments.values() {
            let segment = SaMad::new(&last.mad).rmpp().segment();
            let ack = Transmit::Ack { segment, window_last: segment + 64 };
            responder.handle(&mut reply(last, &ack), now);
        }
    };
    // Until all that was found is acknowledged.
    loop {
        let segments = sent(&mut responder);
        if segments.is_empty() {
            break;
        }
        acknowledge(&mut responder, &segments);
    }
    for lid in lids {
        assert!(responder.grow_table(now));
        assert_eq!(sent(&mut responder).into_keys().collect::<Vec<_>>(), [lid]);
    }
}

#[test]
fn a_source_has_one_table_that_grows_and_all_have_eight() {
    let mut responder = responder(&LARGE, ResponderConfig::default());
    let now = Instant::now();
    for tid in 0..2 {
        responder.handle(&mut all_paths(3, tid), now);
    }
    assert_eq!(responder.stats().in_flight(), 1);
    for lid in 4..20 {
        responder.handle(&mut all_paths(lid, 1), now);
    }
    assert_eq!(responder.stats().in_flight(), 8);
    assert_eq!(responder.stats().dropped(DropReason::TooManyTransfers), 10);
    // Transfers of clients that do not acknowledge end, and free their places.
    let end = wait_out(&mut responder, now);
    assert!(end - now < Duration::from_secs(41));
    assert_eq!((responder.memory_lent(), responder.stats().in_flight()), (0, 0));
    assert!(responder.stats().balances());
    responder.handle(&mut all_paths(3, 9), end);
    assert_eq!(responder.stats().in_flight(), 1);
}

/// Regression: each table that was refused took the place of a transfer for good, so that after as
/// many as there are places the responder sent no answer of several packets any more.
#[test]
fn tables_that_are_refused_take_no_places() {
    let places = 64;
    let config =
        ResponderConfig { pool: LITTLE, transfers_max: places, ..ResponderConfig::default() };
    let mut responder = responder(&Chain { switches: 4, hosts_each: 8 }, config);
    let now = Instant::now();
    for tid in 0..=places as u64 {
        responder.handle(&mut all_paths(3, tid), now);
    }
    assert_eq!(responder.stats().dropped(DropReason::TooManyTransfers), places as u64);
    let mut nodes = table(4, attribute::NODE_RECORD, 1);
    assert_eq!(responder.handle(&mut nodes, now), Outcome::Nothing);
    assert_eq!(responder.stats().in_flight(), 2);
}

/// Regression: a table of which one part alone exceeds the memory for an answer ended with an
/// ABORT, which no counter showed.
#[test]
fn a_table_whose_parts_are_too_large_is_refused_and_counted() {
    let tiny = PoolConfig { answer_max: 2 << 10, total_max: 1 << 20 };
    let config = ResponderConfig { pool: tiny, ..ResponderConfig::default() };
    let mut responder = responder(&LARGE, config);
    let mut request = all_paths(3, 1);
    assert_eq!(responder.handle(&mut request, Instant::now()), Outcome::Send);
    assert_eq!(SaMad::new(&request.mad).header().status(), Status::SA_NO_RESOURCES);
    assert_eq!((responder.stats().beyond_limits(), responder.memory_lent()), (1, 0));
    assert!(responder.stats().balances());
}

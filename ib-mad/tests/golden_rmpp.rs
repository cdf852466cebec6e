//! RMPP compared with the golden file: segmented responses and requests as they were on the wire,
//! and the statuses by which malformed packets are refused.

mod golden;

use std::time::Instant;

use golden::{mads, queries, unhex};
use ib_mad::rmpp::{Outcome, Receiver, ReceiverConfig, Refusal, Sender, SenderConfig, Transmit};
use ib_mad::wire::rmpp::{RmppFlags, RmppStatus};
use ib_mad::wire::sa::{HEADER_LEN, SaMad};

/// All segments of a message. The window is opened beforehand, so that the sender never waits.
fn segments(header: &[u8; HEADER_LEN], data: &[u8]) -> Vec<[u8; 256]> {
    let now = Instant::now();
    let config = SenderConfig { window_max: u32::MAX, ..SenderConfig::default() };
    let mut sender = Sender::new(now, data.len(), config).unwrap();
    sender.handle_ack(now, 0, u32::MAX);
    std::iter::from_fn(|| {
        let mut mad = [0xFF; 256];
        sender.poll_transmit(now)?.write(header, data, &mut mad);
        Some(mad)
    })
    .collect()
}

fn reassembled(packets: &[[u8; 256]]) -> Vec<u8> {
    let now = Instant::now();
    let mut receiver = Receiver::start(now, &packets[0], ReceiverConfig::default()).unwrap();
    for packet in &packets[1..] {
        receiver.handle_packet(now, packet);
    }
    assert_eq!(receiver.poll(), Some(Outcome::Complete));
    receiver.take_message().unwrap()
}

/// IBA 13.6.
#[test]
fn segmented_answers_are_cut_and_joined_as_on_the_wire() {
    let mut segmented = 0;
    for case in queries() {
        if case["answer_packets"].is_null() || case["header"]["rmpp_type"] != 1 {
            continue;
        }
        let packets = mads(&case["answer_packets"]);
        let answer = unhex(&case["answer"]);
        assert_eq!(reassembled(&packets), answer, "{}", case["id"]);
        let (header, data) = answer.split_first_chunk().unwrap();
        assert_eq!(segments(header, data), packets, "{}", case["id"]);
        segmented += usize::from(packets.len() > 1);
    }
    assert_eq!(segmented, 3);
}

/// For most responses only the first header was kept: it has flags and payload length.
#[test]
fn first_segments_of_all_table_answers_announce_the_same() {
    let mut answers = 0;
    for case in queries() {
        if case["header"]["rmpp_type"] != 1 {
            continue;
        }
        let answer = unhex(&case["answer"]);
        let (header, data) = answer.split_first_chunk::<HEADER_LEN>().unwrap();
        let segments = segments(header, data);
        assert_eq!(segments[0][..HEADER_LEN], header[..], "{}", case["id"]);
        assert_eq!(segments.len() as u64, case["packets"], "{}", case["id"]);
        answers += 1;
    }
    assert!(answers > 1_000, "{answers}");
}

/// A GetMulti() with twelve GIDs takes two segments.
#[test]
fn a_segmented_request_is_received() {
    let queries = queries();
    let case = queries.iter().find(|case| case["id"] == "multipath/12-gids").unwrap();
    let packets = mads(&case["request"]);
    let message = reassembled(&packets);
    assert_eq!(message.len(), HEADER_LEN + 24 + 12 * 16);
    let (header, data) = message.split_first_chunk().unwrap();
    assert_eq!(segments(header, data), packets);
}

/// IBA 13.6.2.1.
#[test]
fn malformed_packets_are_refused_with_the_status_that_linux_gives() {
    let mut refused = 0;
    for case in queries() {
        let packet = mads(&case["request"])[0];
        if !SaMad::new(&packet).rmpp().flags().contains(RmppFlags::ACTIVE) {
            continue;
        }
        let result = Receiver::start(Instant::now(), &packet, ReceiverConfig::default());
        if case["outcome"] == "abort" {
            let status = RmppStatus(case["rmpp_status"].as_u64().unwrap() as u8);
            let abort = Refusal::Reply(Transmit::Abort(status));
            assert_eq!(result.unwrap_err(), abort, "{}", case["id"]);
            refused += 1;
        } else if case["outcome"] == "reply" {
            assert!(result.is_ok(), "{}: {:?}", case["id"], result.unwrap_err());
        }
    }
    assert_eq!(refused, 5);
}

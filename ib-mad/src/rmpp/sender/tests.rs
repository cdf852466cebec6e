use super::*;

const CONFIG: SenderConfig = SenderConfig {
    window_max: 4,
    response_timeout: Duration::from_millis(100),
    retries_max: 2,
    total_timeout: Duration::from_secs(2),
    double_sided: false,
};

fn after(start: Instant, milliseconds: u64) -> Instant {
    start + Duration::from_millis(milliseconds)
}

/// Numbers of the segments that may be sent now.
fn sent(sender: &mut Sender, now: Instant) -> Vec<u32> {
    std::iter::from_fn(|| sender.poll_transmit(now))
        .map(|transmit| match transmit {
            Transmit::Data { segment, .. } => segment,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// A table of 10,240 bytes, as Linux sends it.
/// IBA 13.6.2.1.
#[test]
fn payload_lengths_count_the_sa_header_of_every_segment() {
    let now = Instant::now();
    let mut sender = Sender::new(now, 10_240, CONFIG).unwrap();
    assert_eq!(sender.segment_count(), 52);
    let first = sender.poll_transmit(now).unwrap();
    assert_eq!(
        first,
        Transmit::Data {
            segment: 1,
            flags: RmppFlags::ACTIVE | RmppFlags::FIRST,
            payload_len: 11_280,
            data: 0..200
        }
    );
    assert_eq!(
        sender.segment(51),
        Transmit::Data {
            segment: 52,
            flags: RmppFlags::ACTIVE | RmppFlags::LAST,
            payload_len: 60,
            data: 10_200..10_240
        }
    );
    assert!(matches!(sender.segment(1), Transmit::Data { segment: 2, payload_len: 0, .. }));
}

#[test]
fn an_empty_table_is_one_segment() {
    let now = Instant::now();
    let mut sender = Sender::new(now, 0, CONFIG).unwrap();
    assert_eq!(
        sender.poll_transmit(now).unwrap(),
        Transmit::Data { segment: 1, flags: RmppFlags(7), payload_len: 20, data: 0..0 }
    );
    sender.handle_ack(now, 1, 65);
    assert_eq!((sender.poll(), sender.poll()), (Some(Outcome::Complete), None));
    assert!(sender.is_over());
}

/// A message that grows by any steps is sent as the same message in one piece, but for the length
/// that the first segment announces.
#[test]
fn a_message_that_grows_has_the_segments_of_a_whole_one() {
    for len in [0, 1, 199, 200, 201, 400, 1999, 2000] {
        for step in [1, 7, 200, 400, 5000] {
            let now = Instant::now();
            let config = SenderConfig { window_max: 64, ..CONFIG };
            let (mut whole, mut grown) =
                (Sender::new(now, len, config).unwrap(), Sender::growing(now, config));
            let mut sent = [Vec::new(), Vec::new()];
            let mut left = len;
            loop {
                for (sender, sent) in [&mut whole, &mut grown].into_iter().zip(&mut sent) {
                    sent.extend(std::iter::from_fn(|| sender.poll_transmit(now)));
                    if !sent.is_empty() {
                        sender.handle_ack(now, sent.len() as u32, sent.len() as u32 + 64);
                    }
                }
                if grown.is_over() {
                    break;
                }
                assert_eq!(grown.poll(), None);
                if grown.wants_data() {
                    let more = left.min(step);
                    left -= more;
                    grown.grow(more, left == 0);
                }
            }
            assert_eq!(grown.acked_len(), len);
            let [mut whole, grown] = sent;
            if let Transmit::Data { payload_len, .. } = &mut whole[0]
                && grown.len() > 1
            {
                *payload_len = 0;
            }
            assert_eq!(whole, grown, "{len} bytes by {step}");
        }
    }
}

/// IBA 13.6.
#[test]
fn both_windows_bound_what_is_sent() {
    let now = Instant::now();
    let mut sender = Sender::new(now, 20 * 200, CONFIG).unwrap();
    assert_eq!(sent(&mut sender, now), [1]);
    sender.handle_ack(now, 1, 3);
    assert_eq!(sent(&mut sender, now), [2, 3]);
    sender.handle_ack(now, 3, 100);
    assert_eq!(sent(&mut sender, now), [4, 5, 6, 7], "window_max");
}

#[test]
fn a_burst_equals_single_sends_and_reports_retransmissions() {
    let start = Instant::now();
    let mut sender = Sender::new(start, 20 * 200, CONFIG).unwrap();
    sender.poll_transmit(start);
    sender.handle_ack(start, 1, 65);
    let (mut one, mut other) = (sender.clone(), sender);
    let mut burst = |now, max| {
        let burst = other.poll_burst(now, max);
        let (again, packets): (_, Vec<_>) = (burst.again(), burst.collect());
        let by_one = packets.iter().map_while(|_| one.poll_transmit(now));
        assert!(by_one.eq(packets.iter().cloned()));
        (again, packets.len())
    };
    assert_eq!([burst(start, 0), burst(start, 3), burst(start, 3)], [(0, 0), (0, 3), (0, 1)]);
    let (now, later) = (after(start, 100), after(start, 300));
    other.handle_timeout(now);
    let mut burst = |now, max| {
        let burst = other.poll_burst(now, max);
        (burst.again(), burst.count())
    };
    assert_eq!([burst(now, 3), burst(now, 3), burst(now, 3)], [(3, 3), (1, 1), (0, 0)]);
    other.abort(RmppStatus::UNSPECIFIED);
    let mut burst = |max| {
        let burst = other.poll_burst(later, max);
        (burst.again(), burst.count())
    };
    assert_eq!([burst(0), burst(3), burst(3)], [(0, 0), (0, 1), (0, 0)]);
}

/// IBA 13.6.
#[test]
fn without_progress_it_goes_back_and_in_the_end_aborts() {
    let start = Instant::now();
    let mut sender = Sender::new(start, 20 * 200, CONFIG).unwrap();
    sent(&mut sender, start);
    sender.handle_ack(start, 1, 65);
    assert_eq!(sent(&mut sender, start), [2, 3, 4, 5]);
    sender.handle_timeout(after(start, 99));
    assert_eq!(sent(&mut sender, after(start, 99)), [], "not yet due");
    for milliseconds in [100, 200] {
        let now = after(start, milliseconds);
        assert_eq!(sender.poll_timeout(), Some(now));
        sender.handle_timeout(now);
        assert_eq!(sent(&mut sender, now), [2, 3, 4, 5]);
    }
    sender.handle_timeout(after(start, 300));
    let status = RmppStatus::TOO_MANY_RETRIES;
    assert_eq!(sender.poll_transmit(after(start, 300)), Some(Transmit::Abort(status)));
    assert_eq!(sender.poll(), Some(Outcome::Ended(status)));
    assert_eq!(sender.poll_timeout(), None);
}

#[test]
fn progress_gives_all_retries_back() {
    let start = Instant::now();
    let mut sender = Sender::new(start, 3 * 200, CONFIG).unwrap();
    sent(&mut sender, start);
    sender.handle_timeout(after(start, 100));
    sent(&mut sender, after(start, 100));
    sender.handle_ack(after(start, 150), 1, 65);
    for milliseconds in [250, 350] {
        sender.handle_timeout(after(start, milliseconds));
        assert_eq!(sender.poll(), None);
    }
    sender.handle_timeout(after(start, 450));
    assert!(matches!(sender.poll(), Some(Outcome::Ended(_))));
}

/// After going back, an ACK of all segments must prevent any repetition.
#[test]
fn an_ack_that_comes_after_going_back_is_taken() {
    let start = Instant::now();
    let mut sender = Sender::new(start, 20 * 200, CONFIG).unwrap();
    sent(&mut sender, start);
    sender.handle_ack(start, 1, 65);
    sent(&mut sender, start);
    sender.handle_timeout(after(start, 100));
    sender.handle_ack(after(start, 101), 4, 65);
    assert_eq!(sent(&mut sender, after(start, 101)), [5, 6, 7, 8]);
}

/// A receiver may acknowledge every segment it allowed without opening the window further. Then
/// there is nothing to send, and the transfer must still time out.
#[test]
fn a_window_that_stays_shut_ends_the_transfer() {
    let mut now = Instant::now();
    let mut sender = Sender::new(now, 3 * 200, CONFIG).unwrap();
    sent(&mut sender, now);
    sender.handle_ack(now, 1, 1);
    for _ in 0..=CONFIG.retries_max {
        assert_eq!(sent(&mut sender, now), []);
        now = sender.poll_timeout().unwrap();
        sender.handle_timeout(now);
    }
    assert_eq!(sender.poll(), Some(Outcome::Ended(RmppStatus::TOO_MANY_RETRIES)));
}

#[test]
fn total_time_ends_even_a_transfer_that_progresses() {
    let start = Instant::now();
    let mut sender = Sender::new(start, 100 * 200, CONFIG).unwrap();
    for i in 0..40 {
        let now = after(start, i * 50);
        sent(&mut sender, now);
        sender.handle_ack(now, i as u32 + 1, i as u32 + 2);
    }
    assert_eq!(sender.poll_timeout(), Some(after(start, 2000)));
    sender.handle_timeout(after(start, 2000));
    assert_eq!(sender.poll(), Some(Outcome::Ended(RmppStatus::TOTAL_TIME_TOO_LONG)));
}

#[test]
fn old_and_repeated_acks_change_nothing() {
    let now = Instant::now();
    let mut sender = Sender::new(now, 20 * 200, CONFIG).unwrap();
    sent(&mut sender, now);
    sender.handle_ack(now, 1, 3);
    sent(&mut sender, now);
    sender.handle_ack(now, 3, 5);
    sent(&mut sender, now);
    sender.handle_ack(now, 1, 3);
    sender.handle_ack(now, 3, 5);
    assert_eq!(sent(&mut sender, now), []);
    assert_eq!(sender.poll(), None);
}

#[test]
fn acks_that_cannot_be_are_answered_with_the_right_status() {
    let now = Instant::now();
    for (segment, window_last, status) in [
        (2, 65, RmppStatus::SEGMENT_TOO_BIG),
        (u32::MAX, u32::MAX, RmppStatus::SEGMENT_TOO_BIG),
        (1, 0, RmppStatus::NEW_WINDOW_LAST_TOO_SMALL),
    ] {
        let mut sender = Sender::new(now, 20 * 200, CONFIG).unwrap();
        sent(&mut sender, now);
        sender.handle_ack(now, segment, window_last);
        assert_eq!(sender.poll_transmit(now), Some(Transmit::Abort(status)));
    }
}

#[test]
fn packets_that_are_malformed_end_the_transfer() {
    let now = Instant::now();
    for (version, rmpp_type, rmpp_status, expected) in [
        (2, RmppType::ACK, RmppStatus::NORMAL, RmppStatus::UNSUPPORTED_VERSION),
        (1, RmppType(9), RmppStatus::NORMAL, RmppStatus::BAD_TYPE),
        (1, RmppType::ACK, RmppStatus(7), RmppStatus::ILLEGAL_STATUS),
    ] {
        let mut bytes = [0; 12];
        let mut packet = RmppHeader::of_mut(&mut bytes);
        packet.set_rmpp_version(version).set_rmpp_type(rmpp_type).set_rmpp_status(rmpp_status);
        let mut sender = Sender::new(now, 200, CONFIG).unwrap();
        sender.handle_packet(now, &packet);
        assert_eq!(sender.poll(), None, "not active, not RMPP");
        packet.set_flags(RmppFlags::ACTIVE);
        sender.handle_packet(now, &packet);
        assert_eq!(sender.poll(), Some(Outcome::Ended(expected)));
    }
}

#[test]
fn stop_and_abort_end_the_transfer_without_a_word() {
    let now = Instant::now();
    for rmpp_type in [RmppType::STOP, RmppType::ABORT] {
        let mut bytes = [0; 12];
        let mut packet = RmppHeader::of_mut(&mut bytes);
        packet
            .set_rmpp_version(1)
            .set_rmpp_type(rmpp_type)
            .set_flags(RmppFlags::ACTIVE)
            .set_rmpp_status(RmppStatus::RESOURCES_EXHAUSTED);
        let mut sender = Sender::new(now, 200, CONFIG).unwrap();
        sender.handle_packet(now, &packet);
        assert_eq!(sender.poll_transmit(now), None);
        assert_eq!(sender.poll(), Some(Outcome::EndedByPeer(RmppStatus::RESOURCES_EXHAUSTED)));
    }
}

/// IBA 13.6.6.
#[test]
fn a_double_sided_request_hands_the_direction_over_as_often_as_asked() {
    let now = Instant::now();
    let config = SenderConfig { double_sided: true, ..CONFIG };
    let mut sender = Sender::new(now, 200, config).unwrap();
    sent(&mut sender, now);
    for _ in 0..2 {
        sender.handle_ack(now, 1, 65);
        let turnaround = Transmit::Ack { segment: 0, window_last: 1 };
        assert_eq!(sender.poll_transmit(now), Some(turnaround));
        assert_eq!(sender.poll_transmit(now), None);
    }
}

/// The requester's turnaround ACK arrives at the response's sender.
#[test]
fn an_ack_of_segment_0_opens_the_window() {
    let now = Instant::now();
    let mut sender = Sender::new(now, 20 * 200, CONFIG).unwrap();
    sender.handle_ack(now, 0, 3);
    assert_eq!(sent(&mut sender, now), [1, 2, 3]);
}

#[test]
fn messages_beyond_the_headers_numbers_are_refused() {
    let too_long = u32::MAX as usize / 220 * 200 + 200;
    assert!(Sender::new(Instant::now(), too_long, CONFIG).is_none());
    assert!(Sender::new(Instant::now(), too_long - 200, CONFIG).is_some());
}

use super::*;
use crate::rmpp::{Sender, SenderConfig};
use crate::wire::mad::{AttributeId, MadHeader, Method};
use crate::wire::sa::ComponentMask;

const CONFIG: ReceiverConfig = ReceiverConfig {
    window: 4,
    data_max: 2000,
    total_timeout: Duration::from_secs(40),
    linger: Duration::from_secs(10),
};

/// A segment of a table answer whose data bytes are its number.
fn segment(number: u32, flags: u8, payload_len: u32) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let mut view = SaMad::new(&mut mad);
    view.write_request(Method::GET_TABLE_RESP, AttributeId(0x35), 0xABCD, ComponentMask::NONE);
    view.rmpp_mut()
        .set_rmpp_version(1)
        .set_rmpp_type(RmppType::DATA)
        .set_flags(RmppFlags(1 | flags))
        .set_segment(number)
        .set_payload_len(payload_len);
    view.data_mut().fill(number as u8);
    mad
}

const FIRST: u8 = 2;
const LAST: u8 = 4;

fn start(now: Instant) -> Receiver {
    Receiver::start(now, &segment(1, FIRST, 0), CONFIG).unwrap()
}

fn ack(segment: u32, window_last: u32) -> Option<Transmit> {
    Some(Transmit::Ack { segment, window_last })
}

/// IBA 13.6.
#[test]
fn acks_go_out_for_the_first_segment_each_window_and_the_last() {
    let now = Instant::now();
    let mut receiver = start(now);
    assert_eq!(receiver.poll_transmit(), ack(1, 5));
    for number in 2..=4 {
        receiver.handle_packet(now, &segment(number, 0, 0));
        assert_eq!(receiver.poll_transmit(), None);
    }
    receiver.handle_packet(now, &segment(5, 0, 0));
    assert_eq!(receiver.poll_transmit(), ack(5, 9));
    assert_eq!(receiver.poll(), None);
    receiver.handle_packet(now, &segment(6, LAST, 60));
    assert_eq!(receiver.poll_transmit(), ack(6, 9));
    assert_eq!((receiver.poll(), receiver.poll()), (Some(Outcome::Complete), None));
    let message = receiver.take_message().unwrap();
    assert_eq!(message.len(), HEADER_LEN + 5 * 200 + 40);
    assert_eq!((message[HEADER_LEN], message[HEADER_LEN + 5 * 200 + 39]), (1, 6));
}

#[test]
fn acks_carry_the_method_of_the_request_and_the_transaction_id() {
    let receiver = start(Instant::now());
    let header = MadHeader::new(receiver.header()).unwrap();
    assert_eq!((header.method(), header.tid()), (Method::GET_TABLE, 0xABCD));
}

#[test]
fn segments_out_of_order_wait_for_the_missing_one() {
    let now = Instant::now();
    let mut receiver = start(now);
    receiver.poll_transmit();
    for number in [5, 3, 4, 3] {
        receiver.handle_packet(now, &segment(number, 0, 0));
        assert_eq!(receiver.poll_transmit(), None);
    }
    receiver.handle_packet(now, &segment(2, 0, 0));
    assert_eq!(receiver.poll_transmit(), ack(5, 9));
}

#[test]
fn what_was_acknowledged_is_acknowledged_again_and_what_is_beyond_the_window_is_not() {
    let now = Instant::now();
    let mut receiver = start(now);
    receiver.poll_transmit();
    receiver.handle_packet(now, &segment(6, LAST, 60));
    receiver.handle_packet(now, &segment(1000, 0, 0));
    assert_eq!(receiver.poll_transmit(), None);
    receiver.handle_packet(now, &segment(1, FIRST, 0));
    assert_eq!(receiver.poll_transmit(), ack(1, 5));
    for number in 2..=5 {
        receiver.handle_packet(now, &segment(number, 0, 0));
    }
    assert_eq!((receiver.poll_transmit(), receiver.poll()), (ack(5, 9), None));
}

#[test]
fn a_complete_message_is_acknowledged_until_the_linger_time_is_over() {
    let now = Instant::now();
    let last = segment(1, FIRST | LAST, 84);
    let mut receiver = Receiver::start(now, &last, CONFIG).unwrap();
    receiver.poll_transmit();
    receiver.handle_packet(now, &last);
    assert_eq!(receiver.poll_transmit(), ack(1, 1));
    let until = now + CONFIG.linger;
    assert_eq!(receiver.poll_timeout(), Some(until));
    receiver.handle_timeout(until);
    receiver.handle_packet(until, &last);
    assert_eq!(receiver.poll_transmit(), None);
    assert_eq!(receiver.poll(), Some(Outcome::Complete));
    assert!(receiver.is_over());
}

#[test]
fn a_transfer_that_takes_too_long_is_aborted() {
    let now = Instant::now();
    let mut receiver = start(now);
    receiver.poll_transmit();
    let deadline = receiver.poll_timeout().unwrap();
    receiver.handle_timeout(deadline - Duration::from_nanos(1));
    assert_eq!(receiver.poll(), None);
    receiver.handle_timeout(deadline);
    let status = RmppStatus::TOTAL_TIME_TOO_LONG;
    assert_eq!(receiver.poll_transmit(), Some(Transmit::Abort(status)));
    assert_eq!(receiver.poll(), Some(Outcome::Ended(status)));
}

/// IBA 13.6.2.1.
#[test]
fn malformed_first_packets_are_refused_with_their_status() {
    let refusal = |change: &dyn Fn(&mut [u8; MAD_LEN])| {
        let mut mad = segment(1, FIRST | LAST, 84);
        change(&mut mad);
        Receiver::start(Instant::now(), &mad, CONFIG).unwrap_err()
    };
    let abort = |status| Refusal::Reply(Transmit::Abort(status));
    assert_eq!(refusal(&|mad| mad[24] = 2), abort(RmppStatus::UNSUPPORTED_VERSION));
    assert_eq!(refusal(&|mad| mad[25] = 9), abort(RmppStatus::BAD_TYPE));
    assert_eq!(refusal(&|mad| mad[27] = 118), abort(RmppStatus::ILLEGAL_STATUS));
    assert_eq!(refusal(&|mad| mad[26] = 5), abort(RmppStatus::INCONSISTENT_FIRST));
    assert_eq!(refusal(&|mad| mad[31] = 0), abort(RmppStatus::INCONSISTENT_FIRST));
    assert_eq!(refusal(&|mad| mad[35] = 19), abort(RmppStatus::INCONSISTENT_LAST));
    assert_eq!(refusal(&|mad| mad[35] = 221), abort(RmppStatus::INCONSISTENT_LAST));
    assert_eq!(refusal(&|mad| mad[25] = 4), Refusal::Ignore, "an ABORT is not answered");
    assert_eq!(refusal(&|mad| mad[26] = 6), Refusal::Ignore, "not active");
    assert_eq!(
        Receiver::start(Instant::now(), &segment(2, 0, 0), CONFIG).unwrap_err(),
        Refusal::Ignore
    );
}

#[test]
fn a_single_segment_is_what_a_receiver_takes_for_a_whole_message() {
    let now = Instant::now();
    let mut whole = 0;
    for (number, flags, payload_len) in (0..3)
        .flat_map(|number| [0, FIRST, LAST, FIRST | LAST].map(|flags| (number, flags)))
        .flat_map(|(number, flags)| (0..250).map(move |len| (number, flags, len)))
    {
        for (byte, value) in [(24, 1), (24, 2), (25, 2), (26, 6), (27, 1)] {
            let mut mad = segment(number, flags, payload_len);
            mad[byte] = value;
            let received = Receiver::start(now, &mad, CONFIG).ok().and_then(|mut receiver| {
                Some((receiver.take_message()?.len() - HEADER_LEN, receiver.poll_transmit()?))
            });
            assert_eq!(single_segment(&mad), received, "{number} {flags} {payload_len}");
            whole += usize::from(received.is_some());
        }
    }
    assert_eq!(whole, 201);
}

#[test]
fn segment_0_does_not_exist() {
    let now = Instant::now();
    let mut receiver = start(now);
    receiver.handle_packet(now, &segment(0, 0, 0));
    assert_eq!(receiver.poll(), Some(Outcome::Ended(RmppStatus::INCONSISTENT_FIRST)));
}

#[test]
fn a_length_that_is_contradicted_aborts() {
    let now = Instant::now();
    let first = segment(1, FIRST, 3 * 220);
    for contradiction in [
        [segment(2, LAST, 40), segment(3, 0, 0)],
        [segment(2, 0, 0), segment(3, 0, 0)],
        [segment(3, LAST, 0), segment(2, 0, 0)],
        [segment(4, LAST, 40), segment(2, 0, 0)],
    ] {
        let mut receiver = Receiver::start(now, &first, CONFIG).unwrap();
        for mad in &contradiction {
            receiver.handle_packet(now, mad);
        }
        assert_eq!(receiver.poll(), Some(Outcome::Ended(RmppStatus::INCONSISTENT_LAST)));
    }
    let mut receiver = start(now);
    receiver.handle_packet(now, &segment(4, 0, 0));
    receiver.handle_packet(now, &segment(3, LAST, 40));
    assert_eq!(receiver.poll(), Some(Outcome::Ended(RmppStatus::INCONSISTENT_LAST)));
}

#[test]
fn a_message_beyond_the_limit_is_stopped_whether_announced_or_not() {
    let now = Instant::now();
    let stop = Transmit::Stop(RmppStatus::RESOURCES_EXHAUSTED);
    assert_eq!(
        Receiver::start(now, &segment(1, FIRST, 11 * 220), CONFIG).unwrap_err(),
        Refusal::Reply(stop.clone())
    );
    let mut receiver = Receiver::start(now, &segment(1, FIRST, 0), CONFIG).unwrap();
    for number in 2..=11 {
        assert_eq!(receiver.poll(), None);
        receiver.handle_packet(now, &segment(number, 0, 0));
    }
    assert_eq!(receiver.poll_transmit(), Some(stop));
}

#[test]
fn an_abort_of_the_sender_is_not_answered() {
    let now = Instant::now();
    let mut receiver = start(now);
    receiver.poll_transmit();
    let mut abort = segment(0, 0, 0);
    abort[25] = RmppType::ABORT.0;
    abort[27] = RmppStatus::TOO_MANY_RETRIES.0;
    receiver.handle_packet(now, &abort);
    assert_eq!(receiver.poll_transmit(), None);
    assert_eq!(receiver.poll(), Some(Outcome::EndedByPeer(RmppStatus::TOO_MANY_RETRIES)));
    assert!(receiver.is_over());
}

/// The conversation of a GetMulti() of two segments and its answer.
/// IBA 13.6.6.
#[test]
fn a_double_sided_transfer_turns_around() {
    let now = Instant::now();
    let config = SenderConfig { double_sided: true, ..SenderConfig::default() };
    let mut asker = Sender::new(now, 216, config).unwrap();
    let mut mad = [0; MAD_LEN];
    let header: [u8; HEADER_LEN] = *segment(1, 0, 0).first_chunk().unwrap();
    let data = [7; 216];
    asker.poll_transmit(now).unwrap().write(&header, &data, &mut mad);
    let mut answerer = Receiver::start(now, &mad, CONFIG).unwrap();
    while answerer.poll() != Some(Outcome::Complete) {
        answerer.poll_transmit().unwrap().write(answerer.header(), &[], &mut mad);
        asker.handle_packet(now, &SaMad::new(&mad).rmpp());
        asker.poll_transmit(now).unwrap().write(&header, &data, &mut mad);
        answerer.handle_packet(now, &mad);
    }
    answerer.poll_transmit().unwrap().write(answerer.header(), &[], &mut mad);
    asker.handle_packet(now, &SaMad::new(&mad).rmpp());
    asker.poll_transmit(now).unwrap().write(&header, &data, &mut mad);
    assert_eq!(answerer.answer_window(), None);
    answerer.handle_packet(now, &mad);
    assert_eq!(answerer.answer_window(), Some(1));
    assert_eq!(answerer.take_message().unwrap()[HEADER_LEN..], data);
}

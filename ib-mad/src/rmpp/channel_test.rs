//! Sender and receiver connected by a channel that loses, delays, reorders and duplicates, in
//! virtual time.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::wire::sa::SaMad;

const LATENCY: Duration = Duration::from_millis(1);

/// The channel's treatment of a packet; the test case lists one for each packet.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Deliver,
    Lose,
    Repeat,
    /// Arrives this many latencies later.
    Late(u32),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Deliver),
        2 => Just(Fate::Lose),
        1 => Just(Fate::Repeat),
        2 => (1u32..200).prop_map(Fate::Late),
    ]
}

struct Channel {
    now: Instant,
    fates: Vec<Fate>,
    used: usize,
    /// Arrival, whether it goes to the receiver, and the packet.
    flying: Vec<(Instant, bool, [u8; MAD_LEN])>,
}

impl Channel {
    fn send(&mut self, to_receiver: bool, mad: [u8; MAD_LEN]) {
        let fate = self.fates[self.used % self.fates.len()];
        self.used += 1;
        let mut fly = |latencies| {
            self.flying.push((self.now + LATENCY * latencies, to_receiver, mad));
        };
        match fate {
            Fate::Lose => {}
            Fate::Deliver => fly(1),
            Fate::Late(latencies) => fly(1 + latencies),
            Fate::Repeat => {
                fly(1);
                fly(3);
            }
        }
    }

    fn next_arrival(&self) -> Option<Instant> {
        self.flying.iter().map(|packet| packet.0).min()
    }

    /// The packet that arrives at `now`, oldest first.
    fn arrived(&mut self) -> Option<(bool, [u8; MAD_LEN])> {
        let at = self.flying.iter().position(|packet| packet.0 <= self.now)?;
        let (_, to_receiver, mad) = self.flying.remove(at);
        Some((to_receiver, mad))
    }
}

/// Runs a transfer until the sender's end; returns its outcome there, the reassembled message, and
/// the number of segments sent.
fn transfer(
    data: &[u8],
    fates: Vec<Fate>,
    sending: SenderConfig,
    receiving: ReceiverConfig,
) -> (Outcome, Option<Vec<u8>>, usize) {
    let start = Instant::now();
    let mut channel = Channel { now: start, fates, used: 0, flying: Vec::new() };
    let mut sender = Sender::new(start, data.len(), sending).unwrap();
    let mut receiver: Option<Receiver> = None;
    let (mut message, mut segments_sent) = (None, 0);
    // The header is irrelevant here.
    let header = [0; HEADER_LEN];
    // The highest window announced by the receiver: no later segment may be sent.
    let (mut acked, mut window_last) = (0, 1);
    loop {
        while let Some(transmit) = sender.poll_transmit(channel.now) {
            if let Transmit::Data { segment, .. } = transmit {
                segments_sent += 1;
                assert!(segment <= window_last && segment > acked);
                assert!(segment - acked <= sending.window_max);
            }
            let mut mad = [0xFF; MAD_LEN];
            transmit.write(&header, data, &mut mad);
            channel.send(true, mad);
        }
        if let Some(receiver) = &mut receiver {
            while let Some(transmit) = receiver.poll_transmit() {
                let mut mad = [0xFF; MAD_LEN];
                transmit.write(receiver.header(), &[], &mut mad);
                channel.send(false, mad);
            }
        }
        if let Some(outcome) = sender.poll() {
            return (outcome, message, segments_sent);
        }
        if let Some((to_receiver, mad)) = channel.arrived() {
            if !to_receiver {
                let rmpp = SaMad::new(&mad);
                let rmpp = rmpp.rmpp();
                if rmpp.rmpp_type() == RmppType::ACK && rmpp.segment() >= acked {
                    acked = rmpp.segment();
                    window_last = window_last.max(rmpp.new_window_last());
                }
                sender.handle_packet(channel.now, &rmpp);
            } else if let Some(receiver) = &mut receiver {
                receiver.handle_packet(channel.now, &mad);
            } else {
                receiver = Receiver::start(channel.now, &mad, receiving).ok();
            }
            if let Some(receiver) = &mut receiver {
                message = message.or_else(|| receiver.take_message());
            }
            continue;
        }
        let timeouts = [sender.poll_timeout(), receiver.as_ref().and_then(Receiver::poll_timeout)];
        let next = timeouts.into_iter().chain([channel.next_arrival()]).flatten().min();
        channel.now = next.expect("an unfinished sender has a deadline");
        assert!(channel.now <= start + sending.total_timeout, "the transfer never ends");
        sender.handle_timeout(channel.now);
        if let Some(receiver) = &mut receiver {
            receiver.handle_timeout(channel.now);
        }
    }
}

fn sender_config() -> SenderConfig {
    SenderConfig { response_timeout: Duration::from_millis(50), ..SenderConfig::default() }
}

#[test]
fn a_good_channel_carries_each_segment_once() {
    let data: Vec<u8> = (0..52 * 200).map(|i| (i % 251) as u8).collect();
    let (outcome, message, segments_sent) =
        transfer(&data, vec![Fate::Deliver], sender_config(), ReceiverConfig::default());
    assert_eq!((outcome, segments_sent), (Outcome::Complete, 52));
    assert_eq!(message.unwrap()[HEADER_LEN..], data);
}

#[test]
fn a_dead_channel_ends_the_transfer_after_the_retries() {
    let config = sender_config();
    let (outcome, message, segments_sent) =
        transfer(&[0; 1000], vec![Fate::Lose], config, ReceiverConfig::default());
    assert_eq!(outcome, Outcome::Ended(RmppStatus::TOO_MANY_RETRIES));
    assert_eq!((message, segments_sent), (None, 1 + config.retries_max as usize));
}

proptest! {
    #[test]
    fn every_transfer_ends_and_what_completes_is_equal(
        data in proptest::collection::vec(any::<u8>(), 0..12_000),
        fates in proptest::collection::vec(fate(), 1..300),
        window_max in 1u32..80,
        window in 1u32..80,
        retries_max in 0u32..10,
    ) {
        let sending = SenderConfig { window_max, retries_max, ..sender_config() };
        let receiving = ReceiverConfig { window, ..ReceiverConfig::default() };
        let (outcome, message, _) = transfer(&data, fates, sending, receiving);
        if outcome == Outcome::Complete {
            prop_assert!(message.is_some(), "complete without a message");
        }
        if let Some(message) = message {
            prop_assert_eq!(&message[HEADER_LEN..], &data[..]);
        }
    }

    /// Random segments cause no panic, and memory stays within the received data and the limit.
    #[test]
    fn arbitrary_packets_do_no_harm(
        packets in proptest::collection::vec(arbitrary_packet(), 1..200),
        data_len in 0usize..5000,
    ) {
        let now = Instant::now();
        let config = ReceiverConfig { data_max: 4000, ..ReceiverConfig::default() };
        let mut sender = Sender::new(now, data_len, sender_config()).unwrap();
        let mut receiver: Option<Receiver> = None;
        let mut out = [0; MAD_LEN];
        for mad in &packets {
            sender.handle_packet(now, &SaMad::new(mad).rmpp());
            while let Some(transmit) = sender.poll_transmit(now) {
                transmit.write(&[0; HEADER_LEN], &vec![0; data_len], &mut out);
            }
            match &mut receiver {
                None => receiver = Receiver::start(now, mad, config).ok(),
                Some(receiver) => receiver.handle_packet(now, mad),
            }
            if let Some(receiver) = &mut receiver {
                while let Some(transmit) = receiver.poll_transmit() {
                    transmit.write(receiver.header(), &[], &mut out);
                }
                let message = receiver.take_message();
                prop_assert!(message.is_none_or(|message| message.len() <= HEADER_LEN + 4000));
            }
            if receiver.as_ref().is_some_and(Receiver::is_over) {
                receiver = None;
            }
        }
    }
}

/// 256 bytes, mostly RMPP packets with plausible numbers: random bytes would rarely pass the first
/// check.
fn arbitrary_packet() -> impl Strategy<Value = [u8; MAD_LEN]> {
    let noise = proptest::collection::vec(any::<u8>(), MAD_LEN);
    let numbers = prop_oneof![4 => 0u32..70, 1 => any::<u32>()];
    let lengths = prop_oneof![3 => 0u32..260, 1 => any::<u32>()];
    (noise, 0u8..10, 0u8..8, any::<bool>(), numbers, lengths).prop_map(
        |(noise, rmpp_type, flags, plausible, segment, payload_len)| {
            let mut mad: [u8; MAD_LEN] = noise.try_into().unwrap();
            if plausible {
                let first = if segment == 1 { 2 } else { 0 };
                SaMad::new(&mut mad)
                    .rmpp_mut()
                    .set_rmpp_version(1)
                    .set_rmpp_type(RmppType(rmpp_type.clamp(1, 5)))
                    .set_flags(RmppFlags(flags & !2 | 1 | first))
                    .set_rmpp_status(RmppStatus::NORMAL)
                    .set_segment(segment)
                    .set_payload_len(payload_len);
            }
            mad
        },
    )
}

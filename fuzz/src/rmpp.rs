//! Target for RMPP's sender and receiver against a peer that sends anything, at any time.
//!
//! The input is a script. For any input, a receiver must stay within its limit and a sender within
//! its window and its message, and both must terminate.

use std::time::{Duration, Instant};

use ib_mad::rmpp::{Receiver, ReceiverConfig, Sender, SenderConfig, Transmit};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::rmpp::{RmppFlags, RmppStatus, RmppType, VERSION};
use ib_mad::wire::sa::{DATA_LEN, HEADER_LEN, SaMad};

const DATA_MAX: usize = 64 << 10;
const WINDOW_MAX: u32 = 64;
const MESSAGE_LEN: usize = 50 * DATA_LEN + 7;

/// The target. Each step of the script is a byte and its arguments: five numbers for a packet,
/// milliseconds for a pause.
pub fn run(input: &[u8]) {
    let now = Instant::now();
    receive(Script(input), now);
    send(Script(input), now);
}

struct Script<'a>(&'a [u8]);

#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Step {
    Packet([u8; MAD_LEN]),
    Pause(Duration),
}

impl Script<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

impl Iterator for Script<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let [kind] = self.take()?;
        if kind & 0x80 != 0 {
            let [high, low] = self.take()?;
            return Some(Step::Pause(Duration::from_millis(u64::from(u16::from_be_bytes([
                high, low,
            ])))));
        }
        let [flags, status] = self.take()?;
        let segment = u32::from_be_bytes(self.take()?);
        let payload_len = u32::from_be_bytes(self.take()?);
        let mut mad = [segment as u8; MAD_LEN];
        SaMad::new(&mut mad)
            .rmpp_mut()
            .set_rmpp_version(if kind & 0x40 != 0 { kind } else { VERSION })
            .set_rmpp_type(RmppType(kind & 7))
            .set_resp_time(flags >> 3)
            .set_flags(RmppFlags(flags & 7))
            .set_rmpp_status(RmppStatus(status))
            .set_segment(segment)
            .set_payload_len(payload_len);
        Some(Step::Packet(mad))
    }
}

fn receive(script: Script<'_>, mut now: Instant) {
    let config = ReceiverConfig { data_max: DATA_MAX, ..ReceiverConfig::default() };
    let mut current: Option<Receiver> = None;
    for step in script {
        match (step, &mut current) {
            (Step::Pause(pause), _) => now += pause,
            (Step::Packet(mad), Some(receiver)) => receiver.handle_packet(now, &mad),
            (Step::Packet(mad), None) => current = Receiver::start(now, &mad, config).ok(),
        }
        let Some(receiver) = &mut current else { continue };
        while receiver.poll_timeout().is_some_and(|due| due <= now) {
            receiver.handle_timeout(now);
        }
        check_transmits(std::iter::from_fn(|| receiver.poll_transmit()).take(100), 2);
        receiver.poll();
        if let Some(message) = receiver.take_message() {
            assert!(message.len() <= HEADER_LEN + DATA_MAX.next_multiple_of(DATA_LEN));
        }
        if receiver.is_over() {
            current = None;
        }
    }
    if let Some(mut receiver) = current {
        // Once for the transfer itself, once for its repeats.
        for _ in 0..2 {
            if let Some(due) = receiver.poll_timeout() {
                receiver.handle_timeout(due);
            }
        }
        while receiver.poll_transmit().is_some() {}
        assert!(receiver.is_over());
    }
}

fn send(script: Script<'_>, mut now: Instant) {
    let config = SenderConfig { window_max: WINDOW_MAX, ..SenderConfig::default() };
    let mut sender = Sender::new(now, MESSAGE_LEN, config).expect("a message of 51 segments");
    let limit = WINDOW_MAX as usize + 1;
    for step in script {
        match step {
            Step::Pause(pause) => now += pause,
            Step::Packet(mad) => sender.handle_packet(now, &SaMad::new(&mad).rmpp()),
        }
        while sender.poll_timeout().is_some_and(|due| due <= now) {
            sender.handle_timeout(now);
        }
        check_transmits(std::iter::from_fn(|| sender.poll_transmit(now)).take(limit + 1), limit);
        sender.poll();
    }
    let mut timeouts = 0;
    while let Some(due) = sender.poll_timeout() {
        sender.handle_timeout(due);
        while sender.poll_transmit(due).is_some() {}
        timeouts += 1;
        assert!(timeouts <= config.retries_max + 2, "a silent receiver holds the sender");
    }
    assert!(sender.is_over());
}

/// Packets are written without a panic, within the message, and at most `limit` at once.
fn check_transmits(transmits: impl Iterator<Item = Transmit>, limit: usize) {
    let message = [0; MESSAGE_LEN];
    let mut mad = [0; MAD_LEN];
    let mut count = 0;
    for transmit in transmits {
        transmit.write(&[0; HEADER_LEN], &message, &mut mad);
        count += 1;
    }
    assert!(count <= limit, "{count} packets at once");
}

fn packet(kind: RmppType, flags: RmppFlags, segment: u32, payload_len: u32) -> Vec<u8> {
    let mut step = vec![kind.0, flags.0, 0];
    step.extend(segment.to_be_bytes());
    step.extend(payload_len.to_be_bytes());
    step
}

/// A transfer in order, one with a gap and a pause, one that ends early; acknowledgements.
pub fn seeds() -> Vec<Vec<u8>> {
    let active = RmppFlags::ACTIVE;
    let (first, last) = (active | RmppFlags::FIRST, active | RmppFlags::LAST);
    let segment = |number: u32| match number {
        1 => packet(RmppType::DATA, first, 1, 5 * 220),
        5 => packet(RmppType::DATA, last, 5, 220),
        other => packet(RmppType::DATA, active, other, 0),
    };
    let pause = |milliseconds: u16| {
        let mut step = vec![0x80];
        step.extend(milliseconds.to_be_bytes());
        step
    };
    let ack = |number, window_last| packet(RmppType::ACK, active, number, window_last);
    vec![
        (1..=5).flat_map(segment).collect(),
        [segment(1), segment(3), pause(900), segment(2), segment(5), segment(4), segment(5)]
            .concat(),
        [segment(1), packet(RmppType::ABORT, active, 0, 0), segment(2)].concat(),
        [segment(1), pause(50_000), segment(2)].concat(),
        packet(RmppType::DATA, first | last, 1, 100),
        [pause(0), ack(1, 20), ack(20, 84), pause(1500), ack(51, 115)].concat(),
        [pause(0), ack(1, 1), pause(1500), pause(1500), pause(1500), ack(0, 0)].concat(),
        [pause(0), ack(40, 2), packet(RmppType::STOP, active, 0, 0)].concat(),
    ]
}

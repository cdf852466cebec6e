//! Each MAD at the SM's port as text in the log: log bit 0x20, OpenSM's FRAMES.

use std::time::{Duration, Instant};

use ib_mad::dissect::dissect;
use ib_mad::transport::Packet;
use ib_mad::transport::capture::Direction;
use tracing::{Level, trace, warn};

/// Target of these lines.
pub(super) const FRAMES: &str = "ibsm::frames";

/// MADs in the log within [`INTERVAL`]. One has some 2,000 characters: a discovery would delay the
/// manager and fill the disk with them. `--capture` writes all.
const FRAMES_MAX: u32 = 1000;
/// The time to which the limit applies.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes MADs to the log, as many as the limit permits.
#[derive(Debug, Default)]
pub(in crate::runtime) struct FrameLog {
    /// When the interval began, and how many of its MADs were and were not written.
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl FrameLog {
    /// Writes packets that were sent or received.
    pub(in crate::runtime) fn note(
        &mut self,
        now: Instant,
        direction: Direction,
        packets: &[Packet],
    ) {
        if packets.is_empty() || !tracing::enabled!(target: FRAMES, Level::TRACE) {
            return;
        }
        let far = match direction {
            Direction::Received => "from",
            Direction::Sent => "to",
        };
        for packet in packets {
            if self.admits(now) {
                let (lid, qpn) = (packet.address.lid, packet.address.local_qpn.0);
                let undelivered = if packet.carrier.undelivered == 0 { "" } else { ", came back" };
                trace!(
                    target: FRAMES,
                    "QP{qpn} {far} LID {lid}{undelivered}: {}",
                    dissect(&packet.mad).trim_end()
                );
            }
        }
    }

    /// Whether one more is written.
    fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= INTERVAL) {
            let left_out = std::mem::take(&mut self.left_out);
            if left_out > 0 {
                warn!(
                    target: FRAMES,
                    "{left_out} MADs were not logged: more than {FRAMES_MAX} in a second; \
                     --capture writes all"
                );
            }
            (self.since, self.written) = (Some(now), 0);
        }
        let is_admitted = self.written < FRAMES_MAX;
        match is_admitted {
            true => self.written += 1,
            false => self.left_out += 1,
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use ib_mad::transport::Address;
    use ib_mad::types::Lid;
    use ib_mad::wire::mad::{AttributeId, Method};
    use ib_mad::wire::smp;

    use super::*;

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: Level, act: impl FnOnce()) -> String {
        let text = Text::default();
        let writer = text.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        let bytes = text.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    fn node_info() -> Packet {
        let mut packet = Packet::to(Address::smi(Lid(7)));
        smp::Request {
            method: Method::GET,
            attribute_id: AttributeId::NODE_INFO,
            attribute_modifier: 0,
            tid: 0x1234,
            m_key: 0,
        }
        .write_lid_routed(&mut packet.mad);
        packet
    }

    #[test]
    fn each_mad_is_written_in_full_up_to_a_limit_per_second() {
        let now = Instant::now();
        let mut frames = FrameLog::default();
        let packets = vec![node_info(); 600];
        let text = logged(Level::TRACE, || {
            frames.note(now, Direction::Sent, &packets);
            frames.note(now, Direction::Received, &packets);
        });
        assert_eq!(text.matches("QP0 to LID 7: ").count(), 600);
        assert_eq!(text.matches("QP0 from LID 7: ").count(), 400, "{FRAMES_MAX} in all");
        assert!(text.contains("NodeInfo") && text.contains("0x1234"), "{}", &text[..2000]);
        let text = logged(Level::TRACE, || {
            frames.note(now + INTERVAL, Direction::Sent, &packets[..1]);
        });
        assert!(text.contains("200 MADs were not logged"), "{text}");
        assert_eq!(text.matches("QP0 to LID 7: ").count(), 1);
    }

    #[test]
    fn nothing_is_written_without_the_log_bit() {
        let mut frames = FrameLog::default();
        let text = logged(Level::DEBUG, || {
            frames.note(Instant::now(), Direction::Sent, &[node_info()]);
        });
        assert_eq!((text.as_str(), frames.written), ("", 0));
    }
}

//! What happens to each MAD at the SM's port besides being handled: it is written to the file of
//! `--capture`, and to the log with log bit 0x20, OpenSM's FRAMES. Both are off by default, and
//! never delay or fail what is sent and received.

use std::io;
use std::path::Path;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::transport::capture::{CaptureCounters, CaptureFile, Direction, FILE_LEN_MAX};
use ib_mad::types::Lid;
use tracing::{info, warn};

use super::log::FrameLog;

/// Observes the packets of the SM's port.
#[derive(Default)]
pub(super) struct Tap {
    capture: Option<CaptureFile>,
    /// Whether the file has everything that was written.
    is_flushed: bool,
    /// Whether it was logged that the file is not written any more.
    is_over: bool,
    frames: FrameLog,
}

impl Tap {
    /// Begins the capture at `path`, if there is one.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let capture = path.map(|path| CaptureFile::create(path, FILE_LEN_MAX)).transpose()?;
        if let Some(path) = path {
            info!(
                "capturing all MADs at the port to {}, up to {} MB; they contain keys",
                path.display(),
                FILE_LEN_MAX >> 20
            );
        }
        Ok(Self { capture, ..Self::default() })
    }

    /// Packets passed the port with base LID `local`.
    pub(super) fn note(
        &mut self,
        now: Instant,
        direction: Direction,
        local: Lid,
        packets: &[Packet],
    ) {
        self.frames.note(now, direction, packets);
        if let Some(capture) = &self.capture {
            capture.record(direction, local, packets);
            self.is_flushed &= packets.is_empty();
        }
    }

    /// The service loop is about to wait: readers of the file see all packets so far.
    pub(super) fn rest(&mut self) {
        let Some(capture) = self.capture.as_ref().filter(|_| !self.is_flushed) else { return };
        capture.flush();
        self.is_flushed = true;
        if !self.is_over && capture.counters().left_out > 0 {
            self.is_over = true;
            warn!(
                "--capture: the file is full or cannot be written; later MADs are not captured, \
                 which ibsm_capture_left_out_total counts"
            );
        }
    }

    /// Counters of the capture, if there is one.
    pub(super) fn capture(&self) -> Option<CaptureCounters> {
        self.capture.as_ref().map(CaptureFile::counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_captured_and_what_cannot_be_written_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sm.pcap");
        let mut tap = Tap::open(Some(&path)).unwrap();
        let now = Instant::now();
        let packets = [Packet::default(), Packet::default()];
        tap.note(now, Direction::Sent, Lid(1), &packets);
        tap.note(now, Direction::Received, Lid(1), &packets[..1]);
        tap.rest();
        assert_eq!(tap.capture(), Some(CaptureCounters { written: 3, left_out: 0 }));
        assert!(std::fs::metadata(&path).unwrap().len() > 3 * 256);

        let mut full = Tap::open(Some(Path::new("/dev/full"))).unwrap();
        for _ in 0..2 {
            full.note(now, Direction::Sent, Lid(1), &packets);
            full.rest();
        }
        let counters = full.capture().unwrap();
        assert!(counters.left_out >= 2 && full.is_over, "{counters:?}");
        assert!(Tap::open(Some(&directory.path().join("none/sm.pcap"))).is_err());
        assert_eq!(Tap::open(None).unwrap().capture(), None);
    }
}

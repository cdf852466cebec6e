//! A responder over the tables of a plane, queried without a transport in between.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use ib_mad::wire::sa::{SA_HEADER_LEN, SaMad};
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Version};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

/// Packets per batch of a worker.
pub const BATCH: usize = 64;

/// Segments that a client lets the responder send ahead, as in Linux.
const WINDOW: u32 = 64;

/// A responder without a transport.
pub struct Subject {
    /// Keeps the tables.
    _publisher: Publisher,
    responder: Responder,
    segments: Vec<Packet>,
    now: Instant,
}

/// A response received by RMPP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Status of the answer.
    pub status: Status,
    /// Bytes of all records.
    pub bytes: usize,
    /// Number of segments.
    pub segments: u32,
}

impl Subject {
    /// A responder that serves `plane`, and no registrations.
    pub fn new(plane: &FabricPlane) -> Self {
        let registry = Arc::new(RegistryPlane::default());
        let tables = Arc::new(Tables::build(plane, &registry));
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::OFFLINE, tables, registry)));
        let stats = Arc::new(Stats::default());
        Self {
            responder: Responder::new(publisher.reader(), ResponderConfig::default(), stats),
            _publisher: publisher,
            segments: vec![Packet::default(); BATCH],
            now: Instant::now(),
        }
    }

    /// Answers a batch in place, as a worker does. A function of its own, so that profilers find
    /// it.
    #[inline(never)]
    pub fn answer(&mut self, batch: &mut [Packet]) {
        self.responder.handle_batch(batch, self.now, |_, outcome| {
            std::hint::black_box(outcome);
        });
    }

    /// Sends a request whose answer arrives by RMPP, takes the segments and acknowledges them as a
    /// kernel does.
    ///
    /// # Panics
    ///
    /// If the answer breaks off.
    #[inline(never)]
    pub fn fetch(&mut self, request: &mut Packet) -> Received {
        let outcome = self.responder.handle(request, self.now);
        assert_eq!(outcome, Outcome::Nothing, "an answer of several segments");
        let mut received = Received { status: Status::OK, bytes: 0, segments: 0 };
        loop {
            self.responder.grow_table(self.now);
            // The window is as long as a batch.
            let count = self.responder.poll_transmit_batch(self.now, &mut self.segments);
            assert!(count > 0, "the transfer stopped");
            let last = &mut self.segments[count - 1];
            let mut mad = SaMad::new(&mut last.mad);
            let rmpp = mad.rmpp();
            assert_eq!(rmpp.rmpp_type(), RmppType::DATA);
            received.status = mad.header().status();
            received.segments = rmpp.segment();
            let is_last = rmpp.flags().contains(RmppFlags::LAST);
            if is_last {
                let len = rmpp.payload_len() as usize - SA_HEADER_LEN;
                received.bytes = (received.segments as usize - 1) * mad.data().len() + len;
            }
            let method = mad.header().method();
            mad.header_mut().set_method(Method(method.0 ^ 0x80));
            mad.rmpp_mut()
                .set_rmpp_type(RmppType::ACK)
                .set_flags(RmppFlags::ACTIVE)
                .set_segment(received.segments)
                .set_payload_len(received.segments + WINDOW);
            let outcome = self.responder.handle(last, self.now);
            assert_eq!(outcome, Outcome::Nothing, "an acknowledgement");
            if is_last {
                return received;
            }
        }
    }
}

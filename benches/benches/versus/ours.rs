//! Our responder, as `ibsa` runs it, on the snapshot of a real `ibsm`, with requests passed in
//! where its transport would deliver them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::{Packet, Transport};
use ib_mad::types::{Lid, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::Method;
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use ib_mad::wire::sa::{DATA_LEN, HEADER_LEN, SA_HEADER_LEN, SaMad};
use sa_proto::snapshot::{Snapshot, Version};
use sa_server::serve::overload::BacklogConfig;
use sa_server::serve::responder::{Responder, ResponderConfig};
use sa_server::serve::worker::{Next as Turn, Worker, WorkerConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};
use umad_feed::book::Book;
use umad_feed::clock::{Of, cpu, this_thread};
use umad_feed::order::Report;
use umad_feed::session::{Next, Session};

use crate::measure::Sa;

/// Segments that a client lets a responder send ahead, as Linux does.
const WINDOW: u32 = 64;
/// How long a request may wait before the worker drops it.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Time without an answer after which a run is aborted.
const STALL: Duration = Duration::from_secs(20);

/// A worker on the tables of a snapshot.
pub(crate) struct Ours {
    /// Keeps the tables.
    _publisher: Publisher,
    worker: Worker<Feed>,
    serial: u16,
}

impl Ours {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let registry = Arc::clone(snapshot.registry());
        let tables = Arc::new(Tables::build(snapshot.fabric(), &registry));
        let mut publisher = Publisher::new();
        publisher.publish(Arc::new(Generation::new(Version::OFFLINE, tables, registry)));
        let stats = Arc::new(Stats::default());
        let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);
        // The feeder waits as long as necessary, also while other programs use the core.
        let (stale_after, heavy_stale_after) = (PATIENCE, PATIENCE);
        let backlog = BacklogConfig { stale_after, heavy_stale_after, ..Default::default() };
        let config = WorkerConfig { backlog, ..Default::default() };
        let worker = Worker::new(Feed::default(), responder, config);
        Self { _publisher: publisher, worker, serial: 0 }
    }

    fn session(&mut self, book: &Arc<Book>, total: u64, window: u64) -> Arc<Session> {
        self.serial += 1;
        Arc::new(Session::new(Arc::clone(book), self.serial, total, window))
    }
}

impl Sa for Ours {
    type Book = Arc<Book>;

    fn load(&mut self, book: &Book) -> Arc<Book> {
        Arc::new(book.clone())
    }

    fn run(&mut self, book: &Arc<Book>, total: u64, window: u64) -> Report {
        let session = self.session(book, total, window);
        self.worker.replace_transport(Feed::new(Arc::clone(&session)));
        let (begin, before) = (Instant::now(), cpu(Of::Thread(this_thread())));
        let (mut last, mut moved) = (0, begin);
        while session.done() < total {
            let turn = self.worker.turn(Instant::now).expect("what feeds does not fail");
            if turn == Turn::Wait && session.done() < total {
                // Not on the path of a query: the worker is idle although answers are missing.
                let done = session.done();
                if done != std::mem::replace(&mut last, done) {
                    moved = Instant::now();
                }
                assert!(moved.elapsed() < STALL, "only {done} of {total} were answered");
            }
        }
        let spent = cpu(Of::Thread(this_thread())) - before;
        let wall = begin.elapsed();
        // The last acknowledgements.
        while self.worker.turn(Instant::now).expect("what feeds does not fail") == Turn::Again {}
        Report {
            tally: session.tally(),
            wall,
            query_cpu: spent,
            cpu: spent,
            longest: Duration::ZERO,
        }
    }

    fn echo(&mut self, book: &Arc<Book>, total: u64, window: u64) -> Report {
        let session = self.session(book, total, window);
        let mut feed = Feed::new(Arc::clone(&session));
        let mut batch = vec![Packet::default(); window.min(64) as usize];
        let (begin, before) = (Instant::now(), cpu(Of::Thread(this_thread())));
        loop {
            let received = feed.receive(&mut batch).expect("what feeds does not fail");
            if received == 0 {
                break;
            }
            for packet in &mut batch[..received] {
                let mut mad = SaMad::new(&mut packet.mad);
                let method = mad.header().method().response();
                mad.header_mut().set_method(method);
                packet.mad[RMPP_FLAGS] = 0;
            }
            feed.send(&batch[..received]).expect("what feeds does not fail");
        }
        let spent = cpu(Of::Thread(this_thread())) - before;
        let (tally, wall) = (session.tally(), begin.elapsed());
        Report { tally, wall, query_cpu: spent, cpu: spent, longest: Duration::ZERO }
    }

    /// Number of threads of a worker.
    fn set_cores(&mut self, _one: bool) {}
}

/// Offset of RMPP's flags in a MAD.
const RMPP_FLAGS: usize = 26;

/// Replaces a transport: delivers the requests of a session, takes the answers, and acknowledges
/// tables as Linux does.
#[derive(Default)]
struct Feed {
    session: Option<Arc<Session>>,
    acks: VecDeque<Packet>,
    /// Tables in transfer, by transaction ID: the first segment, and bytes so far.
    tables: HashMap<u64, (Box<[u8; MAD_LEN]>, usize)>,
}

impl Feed {
    fn new(session: Arc<Session>) -> Self {
        Self { session: Some(session), ..Self::default() }
    }

    /// Takes a packet of a transfer.
    fn take_segment(&mut self, session: &Session, packet: &Packet) {
        let mad = SaMad::new(&packet.mad);
        let rmpp = mad.rmpp();
        if rmpp.rmpp_type() != RmppType::DATA {
            return; // The ACK of a request.
        }
        let (tid, segment) = (mad.header().tid(), rmpp.segment());
        let is_last = rmpp.flags().contains(RmppFlags::LAST);
        let len = if is_last { rmpp.payload_len() as usize - SA_HEADER_LEN } else { DATA_LEN };
        if segment == 1 && is_last {
            session.take(&packet.mad, HEADER_LEN + len);
        } else {
            let table = self.tables.entry(tid).or_insert_with(|| (Box::new(packet.mad), 0));
            table.1 += len;
            if is_last && let Some((first, len)) = self.tables.remove(&tid) {
                session.take(&first, HEADER_LEN + len);
            }
        }
        // The first window is one segment.
        if is_last || segment % WINDOW == 1 {
            self.acks.push_back(ack(packet, segment));
        }
    }
}

/// Acknowledges everything up to a segment.
fn ack(packet: &Packet, segment: u32) -> Packet {
    let mut ack = Packet { mad: [0; MAD_LEN], ..packet.clone() };
    ack.mad[..HEADER_LEN].copy_from_slice(&packet.mad[..HEADER_LEN]);
    let mut mad = SaMad::new(&mut ack.mad);
    let method = mad.header().method();
    // An answer is acknowledged by the method of its request.
    mad.header_mut().set_method(Method(method.0 & 0x7F));
    mad.rmpp_mut()
        .set_rmpp_type(RmppType::ACK)
        .set_flags(RmppFlags::ACTIVE)
        .set_segment(segment)
        .set_payload_len(segment + WINDOW);
    ack
}

impl Transport for Feed {
    #[inline]
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let Some(session) = &self.session else { return Ok(0) };
        for (i, packet) in batch.iter_mut().enumerate() {
            if let Some(ack) = self.acks.pop_front() {
                *packet = ack;
                continue;
            }
            let Next::Fed(request) = session.next(&mut packet.mad) else { return Ok(i) };
            (packet.address.lid, packet.address.qpn) = (Lid(request.lid), Qpn(request.qpn));
        }
        Ok(batch.len())
    }

    #[inline]
    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let Some(session) = self.session.clone() else { return Ok(batch.len()) };
        for packet in batch {
            if SaMad::new(&packet.mad).rmpp().is_active() {
                self.take_segment(&session, packet);
            } else {
                session.take(&packet.mad, MAD_LEN);
            }
        }
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

//! The thread that passes queries at the SM's port to other responders, and their answers back.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::transport::{Interest, Packet, Transport, wait};

use crate::serve::spill::Spill;
use crate::sm::forward::{Exchange, WorkerEnd};
use crate::sm::peers::LocalSenders;

/// Packets sent and received at a time.
const BATCH: usize = 64;
/// How often the thread checks whether to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The socket, and the queues that it serves.
pub(super) struct SpillSocket {
    spill: Arc<Spill>,
    udp: Udp,
    end: WorkerEnd,
    local: LocalSenders,
}

impl SpillSocket {
    /// Opens a socket at the address of the front door, `listen`, with any port and this token.
    /// `own_id` is this responder's; `worker` and `thread` number the worker at the port and the
    /// thread in the exchange.
    pub(super) fn open(
        own_id: u64,
        listen: SocketAddr,
        token: u64,
        exchange: &Arc<Exchange>,
        worker: usize,
        thread: usize,
    ) -> io::Result<Self> {
        let at = SocketAddr::new(listen.ip(), 0);
        let udp = Udp::bind(&UdpOptions { token, ..UdpOptions::new(at) })?;
        let at = udp.local_addr()?;
        let spill = Spill::new(own_id, at, Arc::clone(exchange), worker, thread);
        Ok(Self { spill, udp, end: exchange.worker(thread), local: LocalSenders::to(at) })
    }

    /// The queues.
    pub(super) fn spill(&self) -> &Arc<Spill> {
        &self.spill
    }

    /// Starts the thread. It runs until `stop` is set.
    pub(super) fn start(mut self, stop: Arc<AtomicBool>) -> io::Result<JoinHandle<()>> {
        let work = move || {
            let mut batch = vec![Packet::default(); BATCH];
            while !stop.load(Relaxed) {
                if let Err(error) = self.turn(&mut batch) {
                    tracing::warn!(
                        %error,
                        "cannot pass queries at the SM's port to other responders; trying again"
                    );
                    thread::sleep(LOOK_INTERVAL);
                }
            }
        };
        thread::Builder::new().name("ibsa-spill".to_owned()).spawn(work)
    }

    /// Sends and receives what there is; waits if there was nothing.
    fn turn(&mut self, batch: &mut [Packet]) -> io::Result<()> {
        let queries = self.spill.take_queries(batch);
        if queries > 0 {
            // A socket that is full does not delay the answers: clients repeat their queries.
            let sent = self.udp.send(&batch[..queries]);
            self.spill.note_lost(queries - *sent.as_ref().unwrap_or(&0));
            sent?;
        }
        let received = self.udp.receive(batch)?;
        let local = &mut self.local;
        let now = Instant::now();
        self.spill.handle_received(&batch[..received], |peer| local.believes(peer, true, now));
        if queries + received > 0 {
            return Ok(());
        }
        let mut interests: Vec<Interest<'_>> =
            self.udp.descriptor().into_iter().map(Interest::read).collect();
        let wake: BorrowedFd<'_> = self.end.descriptor();
        interests.push(Interest::read(wake));
        wait(&mut interests, Some(LOOK_INTERVAL))?;
        self.end.clear_wakeup();
        Ok(())
    }
}

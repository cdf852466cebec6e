//! The loop of one thread: a requester, a transport and a clock. It allocates only for the few
//! responses that are printed.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ib_mad::transport::{Address, Carrier, Interest, Packet, Transport, wait};
use ib_mad::types::Lid;

use crate::cpu::{Meter, Share};
use crate::follow::Follower;
use crate::histogram::{Counts, Ledger};
use crate::requester::{Requester, Route};
use crate::scenario::Summary;

/// Packets per receive or send call.
const BATCH: usize = 256;
/// Interval at which counts are handed over.
const HAND_OVER: Duration = Duration::from_millis(50);
/// Longest sleep, so that a stop is noticed.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Where requests go.
#[derive(Clone, Debug)]
pub enum Destination {
    /// Sockets of these responders, each query from the port that it is about. A batch goes to one
    /// responder, so that it leaves as a train; the next batch, and each retry, to the next
    /// responder.
    Peers(Vec<SocketAddr>),
    /// The SA of a fabric, from the port attached to.
    Fabric {
        /// The SA's own port.
        address: Address,
        /// Timeout of the request for the redirection target; `None` to ignore redirection.
        follow: Option<Duration>,
    },
}

/// Result of a storm.
pub struct Outcome {
    /// Counts.
    pub counts: Counts,
    /// From the start to the last response.
    pub elapsed: Duration,
    /// From the start to the last query started.
    pub begun: Duration,
    /// How the thread spent its time.
    pub share: Share,
    /// The scenario's own counts.
    pub summary: Summary,
    /// Paths, as text.
    pub shown: Vec<String>,
    /// Faulty responses, as text.
    pub examples: Vec<String>,
    /// LIDs queried one after the other, if redirection was followed.
    pub asked: Vec<Lid>,
}

/// Drives a requester until it is done or `stop` is set.
pub fn drive(
    mut requester: Requester,
    transport: &mut dyn Transport,
    destination: &Destination,
    start: Instant,
    ledger: &Ledger,
    stop: &AtomicBool,
) -> io::Result<Outcome> {
    sharpen_timers();
    let meter = Meter::start();
    let mut inbox = vec![Packet::default(); BATCH];
    let mut outbox = Outbox::new(destination, requester.tid_seed());
    let mut hand_over_due = start + HAND_OVER;
    loop {
        let received = transport.receive(&mut inbox)?;
        let now = Instant::now();
        for packet in &inbox[..received] {
            if !outbox.follow(now, &mut requester, packet) {
                requester.handle(now, packet);
            }
        }
        if outbox.is_ready() {
            requester.advance(now);
        }
        let sent = outbox.send(&mut requester, transport, now)?;

        if now >= hand_over_due {
            hand_over_due = now + HAND_OVER;
            let counts = requester.counts();
            ledger.hand_over(now, &counts, requester.recent());
        }
        let stopped = stop.load(Ordering::Relaxed);
        if stopped {
            requester.abandon();
        }
        if stopped || requester.is_done(now) {
            break;
        }
        if received == 0 && sent == 0 {
            let due = [requester.next_due(), outbox.next_due()].into_iter().flatten().min();
            let due = due.map(|due| due.saturating_duration_since(now));
            let timeout = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
            match transport.descriptor() {
                Some(fd) => {
                    let blocked = outbox.is_blocked();
                    wait(&mut [Interest::read_or_write(fd, blocked)], Some(timeout))?;
                }
                None => std::thread::sleep(timeout.min(Duration::from_millis(1))),
            }
        }
    }
    let counts = requester.counts();
    ledger.hand_over(Instant::now(), &counts, requester.recent());
    let since_start =
        |then: Option<Instant>| then.unwrap_or(start).saturating_duration_since(start);
    let elapsed = since_start(requester.last_answer());
    let begun = since_start(requester.last_begun());
    let (share, summary) = (meter.share(), requester.summary());
    let (shown, examples) = requester.into_words();
    let asked = outbox.follower.map(Follower::into_asked).unwrap_or_default();
    Ok(Outcome { counts, elapsed, begun, share, summary, shown, examples, asked })
}

/// Requests written and not yet accepted by the transport.
struct Outbox<'a> {
    destination: &'a Destination,
    /// Determines the destination, if redirection is followed.
    follower: Option<Follower>,
    packets: Vec<Packet>,
    /// Range of `packets` not yet accepted: from `first` to `end`.
    first: usize,
    end: usize,
    /// Counter that selects the next responder.
    turn: usize,
    /// Whether entries of the batch may hold addresses of replies.
    is_mixed: bool,
}

impl<'a> Outbox<'a> {
    fn new(destination: &'a Destination, tid_seed: u64) -> Self {
        let (address, follower) = match destination {
            Destination::Peers(_) => (Address::default(), None),
            Destination::Fabric { address, follow } => {
                // Ids of our own: those of queries with the upper half inverted.
                let follower = follow.map(|timeout| Follower::new(*address, timeout, !tid_seed));
                (*address, follower)
            }
        };
        let packet = Packet::to(address);
        let packets = vec![packet; BATCH];
        Self { destination, follower, packets, first: 0, end: 0, turn: 0, is_mixed: false }
    }

    /// Whether the destination of requests is known.
    fn is_ready(&self) -> bool {
        self.follower.as_ref().is_none_or(Follower::is_ready)
    }

    fn next_due(&self) -> Option<Instant> {
        self.follower.as_ref()?.poll_timeout()
    }

    /// Handles a redirecting response; `false` if the packet is a response to a query.
    fn follow(&mut self, now: Instant, requester: &mut Requester, packet: &Packet) -> bool {
        let Some(follower) = &mut self.follower else { return false };
        follower.handle(packet)
            || requester.hops(packet).is_some_and(|hops| follower.handle_redirect(packet, hops))
                && requester.ask_again(now, packet)
    }

    fn is_blocked(&self) -> bool {
        self.first < self.end
    }

    /// Writes a batch unless one is pending, and sends as much of it as the transport accepts.
    fn send(
        &mut self,
        requester: &mut Requester,
        transport: &mut dyn Transport,
        now: Instant,
    ) -> io::Result<usize> {
        if !self.is_blocked() {
            // With empty batches counted, all of two responders' queries could go to one of them.
            self.turn = self.turn.wrapping_add(usize::from(self.end > 0));
            (self.first, self.end) = (0, 0);
            if let Some(follower) = &mut self.follower
                && follower.poll_transmit(now, &mut self.packets[0])
            {
                self.end = 1;
            }
            let ready = self.is_ready();
            let mut repeats = requester.repeats();
            while ready
                && let Some(packet) = self.packets.get_mut(self.end)
                && let Some(way) = requester.poll_transmit(now, self.turn, packet)
            {
                if requester.repeats() != repeats {
                    repeats = requester.repeats();
                    self.follower.iter_mut().for_each(Follower::handle_silence);
                }
                match (way, self.destination) {
                    // The address is already set, and stays in this entry of the batch.
                    (Route::Back(peer), _) => {
                        packet.carrier.peer = peer;
                        self.is_mixed = true;
                    }
                    (Route::Turn(turn), Destination::Peers(peers)) => {
                        if self.is_mixed {
                            let lid = packet.address.lid;
                            packet.address = Address::gsi(lid);
                        }
                        let turn = turn.checked_rem(peers.len());
                        let peer = turn.map(|turn| peers[turn]);
                        packet.carrier = Carrier { peer, ..Carrier::default() };
                    }
                    (Route::Turn(_), Destination::Fabric { address, .. }) => {
                        let follower = self.follower.as_ref();
                        let address = follower.map_or(address, Follower::destination);
                        packet.address = *address;
                        packet.carrier = Carrier::default();
                    }
                }
                self.end += 1;
            }
            if self.end == 0 {
                return Ok(0);
            }
        }
        let sent = transport.send(&self.packets[self.first..self.end])?;
        self.first += sent;
        Ok(sent)
    }
}

/// Reduces the timer slack of this thread, so that it is woken on time and not up to 50 µs later.
fn sharpen_timers() {
    // SAFETY: no pointers are passed, and only this thread is affected. On failure sleeps are
    // longer.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Level;
    use crate::histogram::Entry;
    use crate::ports::Ports;
    use crate::requester::RequesterOptions;
    use crate::scenario::closed::Closed;
    use crate::scenario::open::Open;
    use crate::scenario::pace::{Arrivals, Bounds, Schedule};
    use crate::scenario::{Patience, Scenario};
    use crate::workload::{By, Draw, Workload, WorkloadOptions};
    use ib_mad::transport::udp::{Udp, UdpOptions};
    use ib_mad::types::PKey;
    use ib_mad::wire::mad::Status;
    use ib_mad::wire::sa::SaMad;
    use std::sync::Arc;

    const ONCE: Patience = Patience { timeout: Duration::from_secs(30), retries: 0 };

    fn requester(scenario: impl FnOnce(Arc<Workload>) -> Box<dyn Scenario>) -> Requester {
        let options = WorkloadOptions {
            by: By::Lid,
            draw: Draw::Any(64),
            seed: 1,
            service_id: 0,
            pkey: PKey::DEFAULT_FULL,
            sample: 1.0,
        };
        let ports = Ports::parse("1\n2\n3\n").unwrap();
        let workload = Arc::new(Workload::draw(&options, ports, None).unwrap());
        Requester::new(RequesterOptions {
            scenario: scenario(Arc::clone(&workload)),
            workload,
            fabric: None,
            level: Level::Status,
            show: 0,
            tid_seed: 7,
        })
    }

    fn closed(concurrency: usize, limit: u64, start: Instant) -> Requester {
        requester(|workload| {
            let bounds = Bounds::new(start, None, Some(limit));
            Box::new(Closed::new(workload, 0, concurrency, ONCE, bounds))
        })
    }

    fn socket() -> Udp {
        Udp::bind(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap()
    }

    /// Runs a storm against responders that answer everything; returns how many requests each
    /// answered.
    fn storm(
        responders: usize,
        begin: impl FnOnce(Instant) -> Requester,
    ) -> (Outcome, Entry, Vec<u64>) {
        let done = Arc::new(AtomicBool::new(false));
        let (peers, threads): (Vec<_>, Vec<_>) = (0..responders)
            .map(|_| {
                let (mut socket, done) = (socket(), Arc::clone(&done));
                let peer = socket.local_addr().unwrap();
                let thread = std::thread::spawn(move || {
                    let mut batch = vec![Packet::default(); 64];
                    while !done.load(Ordering::Relaxed) {
                        let got = socket.receive(&mut batch).unwrap();
                        for packet in &mut batch[..got] {
                            SaMad::new(&mut packet.mad).make_response(Status::OK);
                        }
                        let mut sent = 0;
                        while sent < got {
                            sent += socket.send(&batch[sent..got]).unwrap();
                        }
                        if got == 0 {
                            let mut interests = [Interest::read(socket.descriptor().unwrap())];
                            wait(&mut interests, Some(SLEEP_MAX)).unwrap();
                        }
                    }
                    socket.counters().received
                });
                (peer, thread)
            })
            .unzip();
        let start = Instant::now();
        let requester = begin(start);
        let (ledger, stop) = (Ledger::default(), AtomicBool::new(false));
        let destination = Destination::Peers(peers);
        let outcome = drive(requester, &mut socket(), &destination, start, &ledger, &stop).unwrap();
        done.store(true, Ordering::Relaxed);
        let mut entry = Entry::default();
        ledger.take(&mut entry);
        (outcome, entry, threads.into_iter().map(|thread| thread.join().unwrap()).collect())
    }

    #[test]
    fn all_queries_are_answered_and_shared_among_responders() {
        let (outcome, entry, answered) = storm(2, |start| closed(64, 20_000, start));
        let Counts { queries, resolved, late, .. } = outcome.counts;
        assert_eq!((queries, resolved, late), (20_000, 20_000, 0));
        assert_eq!((entry.counts, entry.recent.due().len()), (outcome.counts, 20_000));
        assert!(answered.iter().all(|&count| count > 0), "{answered:?}");
    }

    #[test]
    fn an_open_loop_takes_the_time_of_its_schedule() {
        let (outcome, ..) = storm(1, |start| {
            requester(|workload| {
                let schedule = Schedule::new(Arrivals::Constant, 10_000.0, start, 1);
                let bounds = Bounds::new(start, None, Some(1_001));
                Box::new(Open::new(workload, 0, schedule, ONCE, bounds))
            })
        });
        assert_eq!(outcome.counts.resolved, 1_001);
        assert!(outcome.elapsed >= Duration::from_millis(100), "{:?}", outcome.elapsed);
    }

    #[test]
    fn a_stop_abandons_what_is_outstanding() {
        let silent = socket();
        let destination = Destination::Peers(vec![silent.local_addr().unwrap()]);
        let start = Instant::now();
        let requester = closed(10, 100, start);
        let (ledger, stop) = (Ledger::default(), AtomicBool::new(true));
        let outcome = drive(requester, &mut socket(), &destination, start, &ledger, &stop).unwrap();
        let Counts { queries, abandoned, answered, .. } = outcome.counts;
        assert_eq!((queries, abandoned, answered), (10, 10, 0));
    }
}

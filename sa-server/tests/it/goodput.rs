//! Goodput under overload, in virtual time: clients as Linux has them ask more than a responder can
//! answer, and get no less than the most that it can.
//!
//! A responder that answers first what came first is held against them, too: it collapses, since
//! each of its answers goes to a client that has given up. So these tests can fail.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Chain, path_request, published, request};
use ib_mad::transport::{Packet, Transport};
use ib_mad::wire::mad::Method;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::serve::worker::{Worker, WorkerConfig};
use sa_server::stats::Stats;

/// What a Linux kernel allows a port.
const OUTSTANDING_MAX: usize = 16;
/// When it repeats a query, how often, and when its caller gives up: RDMA CM's 2 s in ten parts.
const RETRY_AFTER: Duration = Duration::from_millis(200);
const RETRIES_MAX: u32 = 10;
const DEADLINE: Duration = Duration::from_secs(2);
/// The way there and back.
const LATENCY: Duration = Duration::from_micros(20);

/// Clients with the same kind of query, with this total number of queries per second.
#[derive(Clone, Copy)]
struct Crowd {
    ports: u16,
    rate: f64,
    asks: Ask,
    outstanding_max: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Ask {
    Path,
    Table,
}

impl Crowd {
    fn new(ports: u16, rate: f64) -> Self {
        Self { ports, rate, asks: Ask::Path, outstanding_max: OUTSTANDING_MAX }
    }
}

/// What the server at hand costs and holds.
#[derive(Clone, Copy)]
struct Machine {
    /// Time to read a request, and to send an answer.
    read: Duration,
    send: Duration,
    /// To answer a request for a table.
    table: Duration,
    /// Packets in the socket's buffer; later ones are lost.
    socket_max: usize,
}

/// A server of some 5,000 answers a second, which reads 50 requests in the time of an answer. The
/// largest buffer that UDP sockets ask for holds four seconds of its work.
const SLOW: Machine = Machine {
    read: Duration::from_micros(4),
    send: Duration::from_micros(200),
    table: Duration::from_millis(20),
    socket_max: 20_000,
};
/// A server for which reading costs half as much as answering, as with plain datagrams: all times
/// are a hundred times longer than in reality, and the buffer holds as much time.
const PLAIN: Machine = Machine {
    read: Duration::from_micros(100),
    send: Duration::from_micros(200),
    table: Duration::from_millis(20),
    socket_max: 210,
};

impl Machine {
    fn capacity(self) -> f64 {
        1.0 / (self.read + self.send).as_secs_f64()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A port of this group has a query to send.
    Ask { crowd: usize },
    /// A packet of this query reaches the server.
    Arrive { tid: u64 },
    /// The answer reaches the client.
    Answer { tid: u64 },
    /// The client has waited for long enough.
    Retry { tid: u64 },
}

struct Query {
    crowd: usize,
    port: u16,
    asked: Duration,
    sends: u32,
}

/// Requests, answers and packets of a crowd within the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    asked: u32,
    resolved: u32,
    sent: u32,
}

impl Tally {
    fn share(self) -> f64 {
        f64::from(self.resolved) / f64::from(self.asked)
    }

    fn sent_each(self) -> f64 {
        f64::from(self.sent) / f64::from(self.asked)
    }
}

/// Clients, the network and the socket, with a simulated clock.
struct World {
    now: Duration,
    machine: Machine,
    crowds: Vec<Crowd>,
    counts_from: Duration,
    asks_until: Duration,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    open: HashMap<u64, Query>,
    outstanding: HashMap<(usize, u16), usize>,
    socket: VecDeque<Packet>,
    socket_limit: usize,
    next_tid: u64,
    tallies: Vec<Tally>,
    paths_sent: u64,
    random: u64,
}

impl World {
    fn new(machine: Machine, crowds: &[Crowd], seconds: u64) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            machine,
            crowds: crowds.to_vec(),
            counts_from: Duration::from_secs(2),
            asks_until: Duration::from_secs(2 + seconds),
            events: BinaryHeap::new(),
            open: HashMap::new(),
            outstanding: HashMap::new(),
            socket: VecDeque::new(),
            socket_limit: machine.socket_max,
            next_tid: 1,
            tallies: vec![Tally::default(); crowds.len()],
            paths_sent: 0,
            random: 1,
        };
        for crowd in 0..crowds.len() {
            world.ask_next(crowd);
        }
        world
    }

    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.events.push(Reverse((self.now + after, event)));
    }

    fn ask_next(&mut self, crowd: usize) {
        let wait = -(1.0 - self.random()).ln() / self.crowds[crowd].rate;
        if self.now < self.asks_until {
            self.at(Duration::from_secs_f64(wait), Event::Ask { crowd });
        }
    }

    /// Advances time; clients act when their time comes.
    fn advance_to(&mut self, now: Duration) {
        while let Some(&Reverse((at, event))) = self.events.peek()
            && at <= now
        {
            self.events.pop();
            self.now = at;
            self.happen(event);
        }
        self.now = self.now.max(now);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask { crowd } => {
                self.ask_next(crowd);
                let first: u16 = self.crowds[..crowd].iter().map(|crowd| crowd.ports).sum();
                let Crowd { ports, outstanding_max, .. } = self.crowds[crowd];
                let port = 1 + first + (self.random() * f64::from(ports)) as u16;
                self.tallies[crowd].asked += u32::from(self.counts());
                let outstanding = self.outstanding.entry((crowd, port)).or_default();
                if *outstanding < outstanding_max {
                    *outstanding += 1;
                    let tid = self.next_tid;
                    self.next_tid += 1;
                    self.open.insert(tid, Query { crowd, port, asked: self.now, sends: 0 });
                    self.happen(Event::Retry { tid });
                }
            }
            Event::Retry { tid } => {
                let Some(query) = self.open.get_mut(&tid) else { return };
                if query.sends > RETRIES_MAX || self.now - query.asked >= DEADLINE {
                    self.close(tid, false);
                    return;
                }
                query.sends += 1;
                let crowd = query.crowd;
                self.tallies[crowd].sent += u32::from(self.counts());
                self.at(LATENCY, Event::Arrive { tid });
                self.at(RETRY_AFTER, Event::Retry { tid });
            }
            Event::Arrive { tid } if self.socket.len() < self.socket_limit => {
                let Some(query) = self.open.get(&tid) else { return };
                let packet = match self.crowds[query.crowd].asks {
                    Ask::Path => path_request(query.port, 1, 2, tid),
                    Ask::Table => {
                        let mask = ComponentMask::NONE;
                        let method = Method::GET_TABLE;
                        request(query.port, method, attribute::INFORM_INFO_RECORD, tid, mask)
                    }
                };
                self.socket.push_back(packet);
            }
            Event::Arrive { .. } => {}
            Event::Answer { tid } => self.close(tid, true),
        }
    }

    fn close(&mut self, tid: u64, resolved: bool) {
        let Some(query) = self.open.remove(&tid) else { return };
        *self.outstanding.get_mut(&(query.crowd, query.port)).unwrap() -= 1;
        self.tallies[query.crowd].resolved += u32::from(resolved && self.counts());
    }

    fn counts(&self) -> bool {
        (self.counts_from..self.asks_until).contains(&self.now)
    }

    fn is_over(&self) -> bool {
        self.now >= self.asks_until
    }
}

/// The server's socket, which advances time as the server works.
#[derive(Clone)]
struct Socket(Arc<Mutex<World>>);

impl Transport for Socket {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut world = self.0.lock().unwrap();
        let mut count = 0;
        while count < batch.len()
            && let Some(packet) = world.socket.pop_front()
        {
            batch[count] = packet;
            count += 1;
        }
        let spent = world.machine.read * count as u32 + Duration::from_nanos(500);
        let now = world.now + spent;
        world.advance_to(now);
        Ok(count)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        let mut world = self.0.lock().unwrap();
        for packet in batch {
            let mad = SaMad::new(&packet.mad);
            let is_table = mad.header().method() == Method::GET_TABLE.response();
            let spent = if is_table { Duration::ZERO } else { world.machine.send };
            world.paths_sent += u64::from(!is_table);
            let now = world.now + spent;
            world.advance_to(now);
            world.at(LATENCY, Event::Answer { tid: mad.header().tid() });
        }
        Ok(batch.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn limit_queue(&mut self, packets: usize) {
        let mut world = self.0.lock().unwrap();
        world.socket_limit = packets.min(world.machine.socket_max);
    }
}

fn responder() -> (Responder, Arc<Stats>) {
    let publisher = published(&Chain { switches: 11, hosts_each: 200 }.plane(|_| {}));
    let stats = Arc::new(Stats::default());
    (Responder::new(publisher.reader(), ResponderConfig::default(), Arc::clone(&stats)), stats)
}

/// Lets a worker serve groups of clients for a number of measured seconds; returns their results.
fn serve(machine: Machine, crowds: &[Crowd], seconds: u64) -> Vec<Tally> {
    let world = Arc::new(Mutex::new(World::new(machine, crowds, seconds)));
    let (responder, stats) = responder();
    let mut worker = Worker::new(Socket(Arc::clone(&world)), responder, WorkerConfig::default());
    let epoch = Instant::now();
    // Of what is answered only tables are not sent before the next look at the clock.
    let known = Cell::new(0);
    let clock = || {
        let mut world = world.lock().unwrap();
        let tables = stats.responses() - world.paths_sent;
        let more = tables - known.replace(tables);
        let now = world.now + world.machine.table * more as u32 + Duration::from_nanos(50);
        world.advance_to(now);
        epoch + now
    };
    while !world.lock().unwrap().is_over() {
        worker.turn(clock).unwrap();
    }
    assert!(stats.balances());
    world.lock().unwrap().tallies.clone()
}

/// The same for a server that answers the oldest request first, regardless of its age.
fn serve_in_order(machine: Machine, crowds: &[Crowd], seconds: u64) -> Vec<Tally> {
    let world = Arc::new(Mutex::new(World::new(machine, crowds, seconds)));
    let mut socket = Socket(Arc::clone(&world));
    let (mut responder, _) = responder();
    let mut batch = vec![Packet::default(); 1];
    while !world.lock().unwrap().is_over() {
        if socket.receive(&mut batch).unwrap() == 1
            && responder.handle(&mut batch[0], Instant::now()) == Outcome::Send
        {
            socket.send(&batch).unwrap();
        }
    }
    world.lock().unwrap().tallies.clone()
}

/// Queries resolved per second, relative to the capacity of the machine.
fn goodput(machine: Machine, tally: Tally, seconds: u64) -> f64 {
    f64::from(tally.resolved) / seconds as f64 / machine.capacity()
}

const SECONDS: u64 = 2;

fn crowd(machine: Machine, load: f64) -> [Crowd; 1] {
    [Crowd::new(1000, machine.capacity() * load)]
}

fn holds_up(machine: Machine) {
    let at = |load| {
        let tally = serve(machine, &crowd(machine, load), SECONDS)[0];
        goodput(machine, tally, SECONDS)
    };
    let loads = [0.5, 1.0, 2.0, 10.0].map(at);
    assert!((0.45..0.55).contains(&loads[0]), "all are answered when there is no overload");
    let peak = loads.iter().copied().fold(0.0, f64::max);
    assert!(peak > 0.9, "{loads:?}");
    assert!(loads[2] >= 0.9 * peak && loads[3] >= 0.9 * peak, "{loads:?}");
}

#[test]
fn goodput_holds_where_answering_is_what_costs() {
    holds_up(SLOW);
}

#[test]
fn goodput_holds_where_reading_costs_half_as_much() {
    holds_up(PLAIN);
}

#[test]
fn a_server_that_answers_in_order_collapses() {
    let at = |load| goodput(SLOW, serve_in_order(SLOW, &crowd(SLOW, load), SECONDS)[0], SECONDS);
    assert!(at(0.5) > 0.45, "it is no worse as long as it keeps up");
    let overloaded = at(2.0);
    assert!(overloaded < 0.5, "{overloaded}");
}

#[test]
fn a_hog_leaves_the_others_what_they_ask_for() {
    let capacity = SLOW.capacity();
    let modest = Crowd::new(100, capacity * 0.4);
    let hog = Crowd { outstanding_max: 10_000, ..Crowd::new(1, capacity * 10.0) };
    let tallies = serve(SLOW, &[modest, hog], SECONDS);
    assert!(tallies[0].share() > 0.98, "{tallies:?}");
    assert!(tallies[0].sent_each() < 1.3, "{tallies:?}");
    let total = goodput(SLOW, tallies[0], SECONDS) + goodput(SLOW, tallies[1], SECONDS);
    assert!(total > 0.6, "what they leave is the hog's: {total}, {tallies:?}");
}

#[test]
fn a_storm_of_tables_leaves_plain_queries_their_time() {
    let capacity = SLOW.capacity();
    let modest = Crowd::new(100, capacity * 0.6);
    let tables = Crowd { asks: Ask::Table, ..Crowd::new(100, 500.0) };
    let tallies = serve(SLOW, &[modest, tables], SECONDS);
    assert!(tallies[0].share() > 0.98, "{tallies:?}");
    assert!(tallies[1].resolved > 2 * 5, "an eighth of the time is 6 a second: {tallies:?}");
}

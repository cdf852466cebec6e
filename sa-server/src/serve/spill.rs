//! Queries at the SM's port that are passed to other responders while this one falls behind.
//!
//! The worker at the port selects them: a Get(PathRecord) of a client that the front door would
//! give to another responder. Everything else stays. The answer to a write must be known where the
//! client reads next, and acknowledgements of a table's segments arrive at the port. The thread of
//! [`runtime`](crate::runtime) sends them as envelopes and receives the answers, which leave by the
//! port, unless the other responder answers from its own.
//!
//! No state of a query is kept. A query or an answer that is lost is repeated by the client.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use crossbeam_queue::ArrayQueue;
use ib_mad::transport::udp::DIRECT;
use ib_mad::transport::{Address, Marks, Packet};
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::sa::SaMad;
use ib_mad::wire::sa::attribute;
use sa_proto::proto::event as proto;
use sa_proto::rendezvous::{self, Client};

use crate::sm::forward::Exchange;

/// Queries that wait for the thread; those beyond are answered here.
const QUERIES_MAX: usize = 4096;
/// Answers that wait for the worker at the port; those beyond are dropped.
const ANSWERS_MAX: usize = 4096;
/// Limit of responders that queries are passed to.
const TARGETS_MAX: usize = 256;

/// The queues between the worker at the port and the thread, and the responders to choose from.
#[derive(Debug)]
pub struct Spill {
    /// Id of this responder, which keeps its share of the clients.
    own_id: u64,
    /// Where the thread sends from.
    from: SocketAddr,
    exchange: Arc<Exchange>,
    /// Numbers of the worker at the port, and of the thread, in the exchange.
    worker: usize,
    thread: usize,
    queries: ArrayQueue<Packet>,
    answers: ArrayQueue<Packet>,
    /// By lane.
    targets: ArcSwap<Vec<Targets>>,
    counters: Counters,
}

/// Queries passed to other responders.
#[derive(Debug, Default)]
pub struct Counters {
    /// Passed on.
    pub passed: AtomicU64,
    /// Answers that came back.
    pub answered: AtomicU64,
    /// Queries and answers lost: the socket would not take them, or a queue was full.
    pub lost: AtomicU64,
    /// Packets received that are no answer of a responder that queries are passed to.
    pub strangers: AtomicU64,
}

/// The responders that a manager named last.
#[derive(Clone, Debug, Default)]
struct Targets {
    /// Answers are taken from these.
    named: Vec<Target>,
    /// Whether the manager is connected, which removes those that fail: queries are passed on.
    is_current: bool,
}

/// A responder that queries may be passed to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    id: u64,
    addresses: Vec<SocketAddr>,
    /// Whether it answers clients from its own port.
    is_direct: bool,
    /// In its envelopes; 0 if it has none, as of an older version.
    token: u64,
}

impl Spill {
    /// Queues of the responder `own_id`, whose thread sends from the address `from`. It has no
    /// targets at first.
    pub fn new(
        own_id: u64,
        from: SocketAddr,
        exchange: Arc<Exchange>,
        worker: usize,
        thread: usize,
    ) -> Arc<Self> {
        let targets = vec![Targets::default(); exchange.lanes()];
        Arc::new(Self {
            own_id,
            from,
            exchange,
            worker,
            thread,
            queries: ArrayQueue::new(QUERIES_MAX),
            answers: ArrayQueue::new(ANSWERS_MAX),
            targets: ArcSwap::from_pointee(targets),
            counters: Counters::default(),
        })
    }

    /// Where the thread sends from.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// What was passed on.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sets the responders that serve the session of the manager followed in `lane`, as it named
    /// them. Addresses that the socket cannot reach are left out.
    pub fn set_targets(&self, lane: usize, named: &[proto::SpillTarget]) {
        let is_reachable = |address: &SocketAddr| {
            let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
            !is_loopback(self.from.ip()) || is_loopback(address.ip())
        };
        let target = |named: &proto::SpillTarget| {
            let addresses = named.addresses.iter().filter_map(|text| text.parse().ok());
            let addresses: Vec<_> = addresses.filter(is_reachable).collect();
            let (id, is_direct, token) = (named.responder_id, named.direct, named.token);
            let target = Target { id, addresses, is_direct, token };
            Some(target).filter(|target| !target.addresses.is_empty() && target.id != self.own_id)
        };
        let new: Vec<_> = named.iter().filter_map(target).take(TARGETS_MAX).collect();
        self.update(lane, |targets| {
            targets.named.clone_from(&new);
            targets.is_current = true;
        });
    }

    /// Passes on nothing in `lane` until [`set_targets`](Self::set_targets): its manager is no
    /// longer connected. Responders that failed since then would get a client's query again with
    /// each repeat. Answers on their way are still taken.
    pub fn suspend(&self, lane: usize) {
        self.update(lane, |targets| targets.is_current = false);
    }

    fn update(&self, lane: usize, mut change: impl FnMut(&mut Targets)) {
        self.targets.rcu(|targets| {
            let mut targets = Vec::clone(targets);
            if let Some(of_lane) = targets.get_mut(lane) {
                change(of_lane);
            }
            targets
        });
    }

    /// Passes on what belongs to other responders of the session in `lane`, and moves the rest of
    /// the batch to the front; returns its number.
    pub fn pass_on(&self, lane: usize, batch: &mut [Packet]) -> usize {
        let targets = self.targets.load();
        let is_usable = |targets: &&Targets| targets.is_current && !targets.named.is_empty();
        let Some(Targets { named: targets, .. }) = targets.get(lane).filter(is_usable) else {
            return batch.len();
        };
        let mut kept = 0;
        for at in 0..batch.len() {
            let chosen = is_passable(&batch[at]).then(|| self.choose(targets, &batch[at].address));
            let is_passed = chosen.flatten().is_some_and(|(peer, is_direct)| {
                let mut query = batch[at].clone();
                query.carrier.peer = Some(peer);
                query.carrier.marks = DIRECT.only_if(is_direct);
                self.queries.push(query).is_ok()
            });
            if !is_passed {
                batch.swap(kept, at);
                kept += 1;
            }
        }
        let passed = batch.len() - kept;
        if passed > 0 {
            self.counters.passed.fetch_add(passed as u64, Relaxed);
            self.exchange.wake(self.thread);
        }
        kept
    }

    /// The address of the responder that a client's queries go to; `None` if they stay here.
    fn choose(&self, targets: &[Target], client: &Address) -> Option<(SocketAddr, bool)> {
        let client = Client::new(client.lid, client.qpn, client.grh.map(|grh| grh.remote_gid));
        let scored = targets.iter().map(|target| (client.score(target.id), target));
        let (score, target) = scored.max_by_key(|(score, target)| (*score, target.id))?;
        if (client.score(self.own_id), self.own_id) > (score, target.id) {
            return None;
        }
        let address =
            target.addresses.get(rendezvous::address_of(score, target.addresses.len()))?;
        Some((*address, target.is_direct))
    }

    /// Fills `batch` with queries to be sent; returns their number.
    pub fn take_queries(&self, batch: &mut [Packet]) -> usize {
        fill(&self.queries, batch)
    }

    /// Counts packets that the socket did not take.
    pub fn note_lost(&self, count: usize) {
        self.counters.lost.fetch_add(count as u64, Relaxed);
    }

    /// Takes packets that the thread received; they go to the worker if a responder that queries
    /// are passed to answered them: they have its token, or if it has none, come from its address.
    /// `is_trusted`: whether a program of this host at that address is one of a user that may
    /// answer.
    pub fn handle_received(
        &self,
        packets: &[Packet],
        mut is_trusted: impl FnMut(SocketAddr) -> bool,
    ) {
        let targets = self.targets.load();
        let is_at = |target: &Target, peer: SocketAddr| {
            target.addresses.iter().any(|address| {
                address.port() == peer.port()
                    && address.ip().to_canonical() == peer.ip().to_canonical()
            })
        };
        let is_local = |peer: SocketAddr| peer.ip().to_canonical().is_loopback();
        let mut answers = |peer: SocketAddr, token| {
            let named = targets.iter().flat_map(|targets| &targets.named);
            let mut at_peer = named.filter(|target| is_at(target, peer));
            at_peer.any(|target| match target.token {
                0 => !is_local(peer) || is_trusted(peer),
                own => own == token,
            })
        };
        let mut taken = 0;
        for packet in packets {
            let carrier = &packet.carrier;
            let is_of_target = carrier.peer.is_some_and(|peer| answers(peer, carrier.token));
            if !is_of_target || !is_answer(packet) {
                self.counters.strangers.fetch_add(1, Relaxed);
                continue;
            }
            let mut answer = packet.clone();
            (answer.carrier.peer, answer.carrier.marks) = (None, Marks::default());
            match self.answers.push(answer) {
                Ok(()) => taken += 1,
                Err(_) => self.note_lost(1),
            }
        }
        if taken > 0 {
            self.counters.answered.fetch_add(taken, Relaxed);
            self.exchange.wake(self.worker);
        }
    }

    /// Fills `batch` with answers that leave by the port; returns their number.
    pub fn take_answers(&self, batch: &mut [Packet]) -> usize {
        fill(&self.answers, batch)
    }
}

fn fill(queue: &ArrayQueue<Packet>, batch: &mut [Packet]) -> usize {
    let mut filled = 0;
    while let Some(place) = batch.get_mut(filled)
        && let Some(packet) = queue.pop()
    {
        *place = packet;
        filled += 1;
    }
    filled
}

/// Whether a packet is a query that any responder answers alike, in one packet.
#[inline]
fn is_passable(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    let header = mad.header();
    header.mgmt_class() == MgmtClass::SUBN_ADM
        && header.method() == Method::GET
        && header.attribute_id() == attribute::PATH_RECORD
        && !mad.rmpp().is_active()
        && packet.carrier.undelivered == 0
}

/// Whether a packet may be the answer to one.
fn is_answer(packet: &Packet) -> bool {
    let mad = SaMad::new(&packet.mad);
    let header = mad.header();
    header.mgmt_class() == MgmtClass::SUBN_ADM && header.method() == Method::GET_RESP
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use ib_mad::types::Lid;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn packet(lid: u16, method: Method) -> Packet {
        let mut packet = Packet::default();
        packet.address.lid = Lid(lid);
        let mut mad = SaMad::new(&mut packet.mad);
        mad.header_mut()
            .set_mgmt_class(MgmtClass::SUBN_ADM)
            .set_method(method)
            .set_attribute_id(attribute::PATH_RECORD);
        packet
    }

    fn target(id: u64) -> proto::SpillTarget {
        let addresses = vec![format!("192.0.2.{id}:9000")];
        proto::SpillTarget { responder_id: id, addresses, direct: id == 3, token: 0 }
    }

    /// Responder 1 with targets 2 and 3 in lane 0 of two.
    fn spill() -> Arc<Spill> {
        let exchange = Exchange::with_lanes(3, 2).unwrap();
        let spill = Spill::new(1, at("0.0.0.0:700"), exchange, 1, 2);
        spill.set_targets(0, &[target(1), target(2), target(3)]);
        spill
    }

    fn taken(spill: &Spill) -> Vec<Packet> {
        let mut batch = vec![Packet::default(); QUERIES_MAX];
        let count = spill.take_queries(&mut batch);
        batch.truncate(count);
        batch
    }

    #[test]
    fn each_client_stays_with_one_of_all_responders() {
        let spill = spill();
        let mut batch: Vec<_> = (1..=600).map(|lid| packet(lid, Method::GET)).collect();
        let kept = spill.pass_on(0, &mut batch);
        let passed = taken(&spill);
        assert_eq!(kept + passed.len(), 600);
        let mut shares: HashMap<_, usize> = HashMap::from([(None, kept)]);
        for query in &passed {
            *shares.entry(query.carrier.peer).or_default() += 1;
            let is_third = query.carrier.peer == Some(at("192.0.2.3:9000"));
            assert_eq!(query.carrier.marks.contains(DIRECT), is_third);
        }
        assert!(shares.len() == 3 && shares.values().all(|&share| share > 150), "{shares:?}");
        // The same clients again.
        let mut again: Vec<_> = (1..=600).map(|lid| packet(lid, Method::GET)).collect();
        assert_eq!(spill.pass_on(0, &mut again), kept);
        let stay = |batch: &[Packet]| batch.iter().map(|kept| kept.address.lid).collect::<Vec<_>>();
        let (mut first, mut second) = (stay(&batch[..kept]), stay(&again[..kept]));
        first.sort_unstable();
        second.sort_unstable();
        assert_eq!(first, second);
        assert_eq!(spill.counters().passed.load(Relaxed), 2 * passed.len() as u64);
    }

    #[test]
    fn writes_tables_transfers_and_other_records_stay() {
        let spill = spill();
        let methods = [Method::SET, Method::DELETE, Method::GET_TABLE, Method::GET_MULTI];
        let stays = |packet: &Packet| {
            let mut batch: Vec<_> = (1..=64).map(|_| packet.clone()).collect();
            for (packet, lid) in batch.iter_mut().zip(1..) {
                packet.address.lid = Lid(lid);
            }
            spill.pass_on(0, &mut batch) == 64
        };
        for method in methods {
            assert!(stays(&packet(1, method)), "{method:?}");
        }
        assert!(!stays(&packet(1, Method::GET)));
        let mut service = packet(1, Method::GET);
        let mut mad = SaMad::new(&mut service.mad);
        mad.header_mut().set_attribute_id(attribute::SERVICE_RECORD);
        assert!(stays(&service), "the client may have written it");
        let mut returned = packet(1, Method::GET);
        returned.carrier.undelivered = 110;
        assert!(stays(&returned));
    }

    #[test]
    fn queries_stay_without_responders_of_the_session_and_when_the_queue_is_full() {
        let spill = spill();
        let mut batch: Vec<_> = (1..=64).map(|lid| packet(lid, Method::GET)).collect();
        assert_eq!(spill.pass_on(1, &mut batch), 64, "those are of the other lane");
        let mut many: Vec<_> = (1..=8000).map(|lid| packet(lid, Method::GET)).collect();
        assert_eq!(spill.pass_on(0, &mut many), 8000 - QUERIES_MAX);
        assert_eq!(spill.pass_on(0, &mut batch), 64);
        taken(&spill);
        assert!(spill.pass_on(0, &mut batch) < 64);
        spill.set_targets(0, &[]);
        assert_eq!(spill.pass_on(0, &mut batch), 64);
    }

    #[test]
    fn without_its_manager_queries_stay_and_answers_on_their_way_are_taken() {
        let spill = spill();
        spill.suspend(0);
        let mut batch: Vec<_> = (1..=64).map(|lid| packet(lid, Method::GET)).collect();
        assert_eq!(spill.pass_on(0, &mut batch), 64);
        let mut answer = packet(7, Method::GET_RESP);
        answer.carrier.peer = Some(at("192.0.2.2:9000"));
        spill.handle_received(&[answer], |_| panic!("it is not of this host"));
        assert_eq!(spill.take_answers(&mut vec![Packet::default(); 8]), 1);
        spill.set_targets(0, &[target(2)]);
        assert!(spill.pass_on(0, &mut batch) < 64);
    }

    #[test]
    fn a_socket_at_loopback_reaches_no_other_host() {
        let exchange = Exchange::with_lanes(3, 1).unwrap();
        let spill = Spill::new(1, at("127.0.0.1:700"), exchange, 1, 2);
        spill.set_targets(0, &[target(2)]);
        let mut batch: Vec<_> = (1..=64).map(|lid| packet(lid, Method::GET)).collect();
        assert_eq!(spill.pass_on(0, &mut batch), 64);
        let local = vec!["127.0.0.1:9".to_owned()];
        let local = proto::SpillTarget { addresses: local, ..target(2) };
        spill.set_targets(0, &[local]);
        assert!(spill.pass_on(0, &mut batch) < 64);
    }

    #[test]
    fn only_answers_of_the_responders_leave_by_the_port() {
        let spill = spill();
        let from = |peer: &str, method| {
            let mut packet = packet(7, method);
            packet.carrier.peer = Some(at(peer));
            packet
        };
        spill.handle_received(
            &[
                from("192.0.2.2:9000", Method::GET_RESP),
                from("[::ffff:192.0.2.3]:9000", Method::GET_RESP),
                from("192.0.2.2:9001", Method::GET_RESP),
                from("192.0.2.2:9000", Method::GET),
            ],
            |_| panic!("none is of this host"),
        );
        let mut batch = vec![Packet::default(); 8];
        assert_eq!(spill.take_answers(&mut batch), 2);
        assert!(batch[..2].iter().all(|answer| answer.carrier.peer.is_none()));
        let counters = spill.counters();
        let counted = (counters.answered.load(Relaxed), counters.strangers.load(Relaxed));
        assert_eq!(counted, (2, 2));
    }

    /// Any user can have the port of a local responder that has ended.
    #[test]
    fn of_this_host_only_responders_of_trusted_users_answer() {
        let spill = spill();
        let addresses = vec!["127.0.0.1:9000".to_owned()];
        let local = proto::SpillTarget { addresses, ..target(2) };
        spill.set_targets(0, &[local]);
        let mut answer = packet(7, Method::GET_RESP);
        answer.carrier.peer = Some(at("127.0.0.1:9000"));
        let mut batch = vec![Packet::default(); 8];
        spill.handle_received(std::slice::from_ref(&answer), |_| false);
        assert_eq!(spill.take_answers(&mut batch), 0);
        spill.handle_received(std::slice::from_ref(&answer), |peer| peer == at("127.0.0.1:9000"));
        assert_eq!(spill.take_answers(&mut batch), 1);
    }

    /// The look-up of a user is true for a second, in which the port can change hands.
    #[test]
    fn a_responder_with_a_token_is_known_by_it() {
        let spill = spill();
        let addresses = vec!["127.0.0.1:9000".to_owned()];
        spill.set_targets(0, &[proto::SpillTarget { addresses, token: 77, ..target(2) }]);
        let mut answer = packet(7, Method::GET_RESP);
        answer.carrier.peer = Some(at("127.0.0.1:9000"));
        let mut batch = vec![Packet::default(); 8];
        for (token, taken) in [(0, 0), (78, 0), (77, 1)] {
            answer.carrier.token = token;
            spill.handle_received(std::slice::from_ref(&answer), |_| true);
            assert_eq!(spill.take_answers(&mut batch), taken, "{token}");
        }
    }
}

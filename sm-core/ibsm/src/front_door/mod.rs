//! The front door: forwards queries that arrive at the SM's own port to responders, and their
//! answers to the clients.
//!
//! It decides where a packet goes, by setting [`Carrier::peer`](ib_mad::transport::Carrier::peer),
//! and keeps no state of a query. Only multi-packet transfers and reports leave a pin behind, so
//! that the next packet of the client reaches the responder that holds the transfer. [`PortReader`]
//! decides whether requests come here at all. What is not here: sockets (`runtime`), and the
//! answers themselves (the responders).

mod pins;
mod reader;
mod redirect;
mod spill;

use std::net::SocketAddr;
use std::time::Instant;

use ib_mad::transport::udp::DIRECT;
use ib_mad::transport::{Address, Marks, Packet};
use ib_mad::types::{Gid, Lid, Qpn, Sl};
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::rmpp::RmppType;
use ib_mad::wire::sa::SaMad;
use sa_proto::rendezvous::{self, Client};
use sa_proto::snapshot::Session;

use crate::cli::{RedirectMode, ReturnWay};
use crate::observe::Responder;
use pins::Pins;
pub use reader::{ConnectionId, PortReader, PortService};
use redirect::Redirection;
pub use redirect::Target;
pub use sa_proto::front_door::AnnouncedDoor;
use sm_core::sweep::SlsOfPaths;
pub use spill::Spill;

/// Maximum number of transfers and reports pinned to a responder at once; beyond it the oldest is
/// forgotten.
pub const PINS_MAX: usize = 1 << 16;

/// Packets forwarded, and packets dropped by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets forwarded to responders.
    pub requests: u64,
    /// Requests among these that responders answer from their own port.
    pub direct: u64,
    /// Packets forwarded to clients.
    pub answers: u64,
    /// Requests answered here with a redirection to a responder.
    pub redirected: u64,
    /// Answers to Get(ClassPortInfo) that were changed to name a responder.
    pub advertised: u64,
    /// Dropped: this SM is not the master. A subnet has one SA, the master's.
    pub not_master: u64,
    /// Dropped: no responder serves a snapshot of this SM's session.
    pub no_responder: u64,
    /// Dropped: not of the subnet administration class.
    pub other_class: u64,
    /// Dropped: an answer from an address that no responder announced.
    pub unregistered: u64,
    /// Dropped: an answer from the address of a responder, without its token: another program has
    /// the address, or wrote it.
    pub forged: u64,
    /// Answers that the fabric could not deliver.
    pub undelivered: u64,
    /// Dropped: they may have waited at the port while this process was stopped.
    pub stale: u64,
    /// Dropped: the queue towards responders or clients was full.
    pub overflow: u64,
}

/// Chooses a responder for each request.
///
/// Shut at first: nothing passes before [`set_session`](Self::set_session).
#[derive(Debug, Default)]
pub struct FrontDoor {
    /// The session of this SM while the door is open.
    session: Option<Session>,
    pins: Pins,
    redirection: Redirection,
    /// Service levels of paths from clients to responders.
    sls: SlsOfPaths,
    return_way: ReturnWay,
    /// Packets forwarded and dropped. The caller counts `overflow`.
    pub counters: Counters,
}

/// Where a packet from the fabric goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Passage {
    /// The packet goes to the responder at its [`peer`](ib_mad::transport::Carrier::peer).
    ToResponder,
    /// The packet is now the answer to its client.
    ToClient,
    /// The packet was dropped, and counted.
    Dropped,
}

/// A transaction of a client: its address and TransactionID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    lid: Lid,
    qpn: Qpn,
    gid: Option<Gid>,
    tid: u32,
}

impl Transaction {
    /// The upper half of a request's TransactionID is the kernel's (the top 16 bits a simulator's),
    /// and only the response shows it.
    fn new(address: &Address, tid: u64) -> Self {
        let gid = address.grh.map(|grh| grh.remote_gid);
        Self { lid: address.lid, qpn: address.qpn, gid, tid: tid as u32 }
    }
}

impl FrontDoor {
    /// Opens it for the responders that serve this session, or shuts it; only the master opens it.
    pub fn set_session(&mut self, session: Option<Session>) {
        self.session = session;
    }

    /// Sets which clients are redirected.
    pub fn set_redirect_mode(&mut self, mode: RedirectMode) {
        self.redirection.set_mode(mode);
    }

    /// Sets how answers return to clients.
    pub fn set_return_way(&mut self, way: ReturnWay) {
        self.return_way = way;
    }

    /// Sets the ports that clients may be redirected to, and the SLs of paths there.
    pub fn set_targets(&mut self, targets: Vec<Target>, sls: SlsOfPaths) {
        self.redirection.set_targets(targets);
        self.sls = sls;
    }

    /// Chooses one of `responders` for a packet from the fabric, or answers it here.
    pub fn admit(
        &mut self,
        now: Instant,
        responders: &[Responder],
        packet: &mut Packet,
    ) -> Passage {
        if packet.carrier.undelivered != 0 {
            self.counters.undelivered += 1;
            return Passage::Dropped;
        }
        let Some(session) = self.session else {
            self.counters.not_master += 1;
            return Passage::Dropped;
        };
        let mad = SaMad::new(&packet.mad);
        let header = mad.header();
        if header.mgmt_class() != MgmtClass::SUBN_ADM {
            self.counters.other_class += 1;
            return Passage::Dropped;
        }
        if self.redirection.require(packet, |client, target| self.sl_to(client, target)) {
            self.counters.redirected += 1;
            return Passage::ToClient;
        }
        let mad = SaMad::new(&packet.mad);
        let header = mad.header();
        let transaction = Transaction::new(&packet.address, header.tid());
        let pinned =
            self.pins.get(now, &transaction).filter(|peer| is_registered(responders, *peer));
        let chosen = match pinned {
            Some(peer) => Some((None, peer)),
            None => {
                let chosen = choose(responders, session, &packet.address);
                chosen.map(|(id, peer)| (Some(id), peer))
            }
        };
        match chosen {
            Some((id, peer)) => {
                packet.carrier.peer = Some(peer);
                let is_direct = id.is_some_and(|id| self.returns_directly(id, packet));
                packet.carrier.marks = DIRECT.only_if(is_direct);
                self.counters.direct += u64::from(is_direct);
                self.counters.requests += 1;
                Passage::ToResponder
            }
            None => {
                self.counters.no_responder += 1;
                Passage::Dropped
            }
        }
    }

    /// Whether the responder `id` may answer a packet from its own port: the answer is not changed
    /// here, and no pin is needed to lead further packets to the responder.
    fn returns_directly(&self, id: u64, packet: &Packet) -> bool {
        self.return_way == ReturnWay::Direct
            && self.redirection.has_target(id)
            && !self.redirection.concerns(packet)
            && !SaMad::new(&packet.mad).rmpp().is_active()
    }

    /// Decides whether a packet from a responder goes out to the client it is addressed to.
    pub fn release(&mut self, now: Instant, responders: &[Responder], packet: &mut Packet) -> bool {
        if self.session.is_none() {
            self.counters.not_master += 1;
            return false;
        }
        let token = packet.carrier.token;
        let judged = packet.carrier.peer.and_then(|peer| {
            let is_genuine = is_genuine(responders, peer, token)?;
            Some((peer, is_genuine))
        });
        let peer = match judged {
            Some((peer, true)) => peer,
            Some((_, false)) => {
                self.counters.forged += 1;
                return false;
            }
            None => {
                self.counters.unregistered += 1;
                return false;
            }
        };
        let mad = SaMad::new(&packet.mad);
        let (header, rmpp) = (mad.header(), mad.rmpp());
        if header.mgmt_class() != MgmtClass::SUBN_ADM {
            self.counters.other_class += 1;
            return false;
        }
        let goes_on = rmpp.is_active()
            && matches!(rmpp.rmpp_type(), RmppType::DATA | RmppType::ACK)
            || header.method() == Method::REPORT;
        if goes_on {
            self.pins.set(now, Transaction::new(&packet.address, header.tid()), peer);
        }
        if self.redirection.advertise(packet, |client, target| self.sl_to(client, target)) {
            self.counters.advertised += 1;
        }
        (packet.carrier.peer, packet.carrier.marks) = (None, Marks::default());
        self.counters.answers += 1;
        true
    }

    /// The SL by which a client's packets reach a responder.
    fn sl_to(&self, client: Lid, target: &Target) -> Sl {
        self.sls.sl(client, target.lid, target.sl)
    }

    /// What the responder `reader`, which reads the SM's port, may pass to others.
    pub fn spill(&self, reader: Option<u64>, responders: &[Responder]) -> Spill {
        let is_direct =
            |id| self.return_way == ReturnWay::Direct && self.redirection.has_target(id);
        Spill::new(reader, responders, self.session, is_direct)
    }

    /// Pins in force.
    pub fn pins(&self) -> usize {
        self.pins.len()
    }
}

fn is_registered(responders: &[Responder], peer: SocketAddr) -> bool {
    responders.iter().any(|responder| responder.front_door.contains(&peer))
}

/// Whether a responder with this address has this token, or none: any user of its host can have the
/// address once it has ended. `None` if no responder has the address.
fn is_genuine(responders: &[Responder], peer: SocketAddr, token: u64) -> Option<bool> {
    let at_peer = responders.iter().filter(|responder| responder.front_door.contains(&peer));
    let mut tokens = at_peer.map(|responder| responder.front_door_token).peekable();
    tokens.peek()?;
    Some(tokens.any(|known| [0, token].contains(&known)))
}

/// The responder for a client, of those that serve `session`, and its address.
fn choose(
    responders: &[Responder],
    session: Session,
    client: &Address,
) -> Option<(u64, SocketAddr)> {
    let client = Client::new(client.lid, client.qpn, client.grh.map(|grh| grh.remote_gid));
    let (score, chosen) = responders
        .iter()
        .filter(|responder| responder.answers(session))
        .map(|responder| (client.score(responder.id), responder))
        .max_by_key(|(score, responder)| (*score, responder.id))?;
    let addresses = &chosen.front_door;
    let address = addresses.get(rendezvous::address_of(score, addresses.len()));
    address.map(|address| (chosen.id, *address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::rmpp::RmppFlags;
    use sa_proto::proto::snapshot::Hello;
    use sa_proto::snapshot::Version;

    /// The session that the responders serve.
    const OURS: Session = Version::NONE.session;

    fn responder(id: u64) -> Responder {
        let hello = Hello {
            responder_id: id,
            front_door: vec![format!("127.0.0.1:{}", 9000 + id)],
            ..Hello::default()
        };
        Responder::new(&hello, Some(Version::NONE), None, Instant::now(), id)
    }

    fn responders(ids: impl IntoIterator<Item = u64>) -> Vec<Responder> {
        ids.into_iter().map(responder).collect()
    }

    fn packet(lid: u16, method: Method, tid: u64) -> Packet {
        let mut packet = Packet::default();
        packet.address.lid = Lid(lid);
        let mut mad = SaMad::new(&mut packet.mad);
        mad.header_mut().set_mgmt_class(MgmtClass::SUBN_ADM).set_method(method).set_tid(tid);
        packet
    }

    fn peer_of(door: &mut FrontDoor, responders: &[Responder], mut packet: Packet) -> SocketAddr {
        assert_eq!(door.admit(Instant::now(), responders, &mut packet), Passage::ToResponder);
        packet.carrier.peer.unwrap()
    }

    fn open_door() -> FrontDoor {
        FrontDoor { session: Some(OURS), ..FrontDoor::default() }
    }

    #[test]
    fn only_the_masters_door_lets_anything_pass() {
        let mut door = FrontDoor::default();
        let (list, now) = (responders([1]), Instant::now());
        let mut answer = packet(4, Method::GET_RESP, 1);
        answer.carrier.peer = list[0].front_door.first().copied();
        assert_eq!(door.admit(now, &list, &mut packet(4, Method::GET, 1)), Passage::Dropped);
        assert!(!door.release(now, &list, &mut answer));
        let dropped = Counters { not_master: 2, ..Counters::default() };
        assert_eq!(door.counters, dropped);
        door.set_session(Some(OURS));
        assert_eq!(door.admit(now, &list, &mut packet(4, Method::GET, 1)), Passage::ToResponder);
        assert!(door.release(now, &list, &mut answer));
        door.set_session(None);
        assert_eq!(door.admit(now, &list, &mut packet(4, Method::GET, 1)), Passage::Dropped);
        assert_eq!(door.counters.not_master, 3);
    }

    #[test]
    fn a_client_keeps_its_responder_when_others_come_and_go() {
        let mut door = open_door();
        let (all, fewer) = (responders(1..=4), responders([1, 2, 4]));
        let mut used = std::collections::HashMap::new();
        for lid in 1..=400 {
            let before = peer_of(&mut door, &all, packet(lid, Method::GET, 1));
            assert_eq!(before, peer_of(&mut door, &all, packet(lid, Method::GET, 2)));
            let after = peer_of(&mut door, &fewer, packet(lid, Method::GET, 3));
            assert!(before == after || before.port() == 9003, "only clients of 3 move");
            *used.entry(before.port()).or_insert(0) += 1;
        }
        assert!(used.values().all(|&clients| (60..=140).contains(&clients)), "{used:?}");
    }

    #[test]
    fn without_a_serving_responder_queries_are_dropped_and_counted() {
        let mut door = open_door();
        let mut list = responders([1]);
        list[0].serving = None;
        assert_eq!(
            door.admit(Instant::now(), &list, &mut packet(4, Method::GET, 1)),
            Passage::Dropped
        );
        assert_eq!(
            door.admit(Instant::now(), &[], &mut packet(4, Method::GET, 1)),
            Passage::Dropped
        );
        assert_eq!((door.counters.no_responder, door.counters.requests), (2, 0));
    }

    /// The door of one part of a split fabric sent its clients' queries to responders that answered
    /// from the other part.
    #[test]
    fn a_responder_that_serves_another_managers_session_is_not_chosen() {
        let mut door = open_door();
        let mut list = responders([1, 2]);
        for epoch in [1, 2] {
            let session = Session { epoch, ..OURS };
            list[0].serving = Some(Version { session, ..Version::NONE });
            for lid in 1..=20 {
                assert_eq!(peer_of(&mut door, &list, packet(lid, Method::GET, 1)).port(), 9002);
            }
        }
        let (now, mut query) = (Instant::now(), packet(4, Method::GET, 1));
        assert_eq!(door.admit(now, &list[..1], &mut query), Passage::Dropped);
        assert_eq!(door.counters.no_responder, 1);
    }

    #[test]
    fn other_classes_and_what_comes_back_do_not_pass() {
        let mut door = open_door();
        let list = responders([1]);
        let mut other = packet(4, Method::GET, 1);
        SaMad::new(&mut other.mad).header_mut().set_mgmt_class(MgmtClass::PERF);
        assert_eq!(door.admit(Instant::now(), &list, &mut other), Passage::Dropped);
        let mut back = packet(4, Method::GET_RESP, 1);
        back.carrier.undelivered = 110;
        assert_eq!(door.admit(Instant::now(), &list, &mut back), Passage::Dropped);
        assert_eq!((door.counters.other_class, door.counters.undelivered), (1, 1));
    }

    #[test]
    fn a_client_that_must_be_redirected_is_answered_without_a_responder() {
        let mut door = open_door();
        door.set_redirect_mode(RedirectMode::Require);
        let (now, list) = (Instant::now(), responders([1]));
        let mut query = packet(4, Method::GET, 1);
        assert_eq!(door.admit(now, &list, &mut query), Passage::ToResponder, "nowhere to go yet");
        let target = Target {
            id: 1,
            lid: Lid(9),
            gid: Gid::ZERO,
            pkey: ib_mad::types::PKey::DEFAULT_FULL,
            qpn: Qpn::GSI,
            sl: ib_mad::types::Sl::default(),
        };
        door.set_targets(vec![target], SlsOfPaths::default());
        let mut query = packet(4, Method::GET, 1);
        assert_eq!(door.admit(now, &list, &mut query), Passage::ToClient);
        assert_eq!((query.address.lid, query.carrier.peer), (Lid(4), None));
        assert_eq!((door.counters.redirected, door.counters.requests), (1, 1));
        door.set_session(None);
        assert_eq!(door.admit(now, &list, &mut packet(4, Method::GET, 1)), Passage::Dropped);
    }

    #[test]
    fn only_responders_that_have_a_port_are_asked_to_answer_past_the_door() {
        let mut door = open_door();
        let (now, list) = (Instant::now(), responders([1, 2]));
        let target = Target {
            id: 1,
            lid: Lid(9),
            gid: Gid::ZERO,
            pkey: ib_mad::types::PKey::DEFAULT_FULL,
            qpn: Qpn::GSI,
            sl: ib_mad::types::Sl::default(),
        };
        door.set_targets(vec![target], SlsOfPaths::default());
        let directly = |door: &mut FrontDoor, packet: Packet| {
            let (mut to_first, mut passed) = (packet.clone(), [false; 2]);
            for lid in 1..60 {
                to_first.address.lid = Lid(lid);
                let mut packet = to_first.clone();
                assert_eq!(door.admit(now, &list, &mut packet), Passage::ToResponder);
                let port = packet.carrier.peer.unwrap().port();
                passed[usize::from(port == 9002)] |= packet.carrier.marks.contains(DIRECT);
            }
            passed
        };
        assert_eq!(directly(&mut door, packet(4, Method::GET, 1)), [false, false]);
        door.set_return_way(ReturnWay::Direct);
        assert_eq!(directly(&mut door, packet(4, Method::GET, 1)), [true, false]);
        let mut segment = packet(4, Method::GET_TABLE, 1);
        SaMad::new(&mut segment.mad).rmpp_mut().set_flags(RmppFlags::ACTIVE);
        assert_eq!(directly(&mut door, segment), [false, false]);
        door.set_redirect_mode(RedirectMode::Advertise);
        let mut info = packet(4, Method::GET, 1);
        let mut mad = SaMad::new(&mut info.mad);
        mad.header_mut().set_attribute_id(ib_mad::wire::mad::AttributeId::CLASS_PORT_INFO);
        assert_eq!(directly(&mut door, info), [false, false], "it is to name a responder");
    }

    #[test]
    fn answers_pass_only_from_registered_addresses() {
        let mut door = open_door();
        let list = responders([1]);
        let mut answer = packet(4, Method::GET_RESP, 1);
        assert!(!door.release(Instant::now(), &list, &mut answer));
        answer.carrier.peer = Some(([127, 0, 0, 1], 9002).into());
        assert!(!door.release(Instant::now(), &list, &mut answer));
        answer.carrier.peer = Some(([127, 0, 0, 1], 9001).into());
        assert!(door.release(Instant::now(), &list, &mut answer));
        assert_eq!(answer.carrier.peer, None);
        assert_eq!((door.counters.unregistered, door.counters.answers), (2, 1));
    }

    /// Regression: once a responder had ended, any user of its host could bind its port and answer
    /// in its place until the end of its connection was noticed.
    #[test]
    fn answers_of_a_responder_have_its_token() {
        let mut door = open_door();
        let mut list = responders([1]);
        list[0].front_door_token = 77;
        let mut answer = |token| {
            let mut answer = packet(4, Method::GET_RESP, 1);
            answer.carrier.peer = Some(([127, 0, 0, 1], 9001).into());
            answer.carrier.token = token;
            door.release(Instant::now(), &list, &mut answer)
        };
        assert_eq!([0, 76, 77].map(&mut answer), [false, false, true]);
        assert_eq!((door.counters.forged, door.counters.answers), (2, 1));
    }

    /// A responder that connected meanwhile may be the client's by hash, but does not hold the
    /// transfer.
    #[test]
    fn acknowledgements_follow_the_transfer() {
        let (few, many) = (responders([1]), responders(1..=8));
        let mut door = open_door();
        let lid = (1..)
            .find(|&lid| peer_of(&mut door, &many, packet(lid, Method::GET, 0)).port() != 9001);
        let lid = lid.unwrap();
        let mut segment = packet(lid, Method::GET_TABLE_RESP, 0x0003_0000_0000_0077);
        SaMad::new(&mut segment.mad)
            .rmpp_mut()
            .set_rmpp_type(RmppType::DATA)
            .set_flags(RmppFlags::ACTIVE);
        segment.carrier.peer = few[0].front_door.first().copied();
        assert!(door.release(Instant::now(), &few, &mut segment));
        // The simulator put another client's number into the top 16 bits.
        let ack = packet(lid, Method::GET_TABLE, 0x0009_0000_0000_0077);
        assert_eq!(peer_of(&mut door, &many, ack).port(), 9001);
        let other = packet(lid, Method::GET_TABLE, 0x78);
        assert_ne!(peer_of(&mut door, &many, other).port(), 9001);
        // A responder that disconnected holds nothing any more.
        let ack = packet(lid, Method::GET_TABLE, 0x77);
        assert_ne!(peer_of(&mut door, &many[1..], ack).port(), 9001);
    }

    /// Regression: the kernel's half of the TransactionID made it another transaction: with several
    /// responders the answer was sent to one that had sent no request. At umad ports only.
    #[test]
    fn the_answer_to_a_report_finds_its_sender() {
        let (few, many) = (responders([1]), responders(1..=8));
        let mut door = open_door();
        for lid in 1..50 {
            let mut report = packet(lid, Method::REPORT, 5);
            report.carrier.peer = few[0].front_door.first().copied();
            assert!(door.release(Instant::now(), &few, &mut report));
            // The upper half is the kernel's.
            let answer = packet(lid, Method::REPORT_RESP, 0x0000_0006_0000_0005);
            assert_eq!(peer_of(&mut door, &many, answer).port(), 9001);
        }
    }
}

//! Which senders of envelopes are trusted, and which session's tables they are answered from. An
//! envelope names the requester, so its sender can send requests on behalf of any port. Only
//! followed managers, and the responder at a manager's port, at the addresses and with the tokens
//! that managers announced over gRPC, programs of root and of our own user on this host, and
//! addresses given by `--believe` are accepted; others are counted and dropped.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ib_mad::transport::{Malformed, Packet, Transport};
use ib_mad::types::Lid;
use sa_proto::trust::local;

/// Maximum number of batches from untrusted senders that are discarded before the worker gets its
/// turn.
const ROUNDS_MAX: usize = 16;

/// Addresses tried for a front door that is on the SM's host.
const DOORS_MAX: usize = 8;
/// How long the look-up of the SM's host may take.
const LOOK_UP_PATIENCE: Duration = Duration::from_secs(1);

/// The trusted senders. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Named by the operator.
    named: Arc<[IpAddr]>,
    /// The front doors of the managers that are followed, by each address that they may have.
    doors: Arc<ArcSwap<Vec<Door>>>,
}

/// A front door.
#[derive(Clone, Copy, Debug)]
struct Door {
    address: SocketAddr,
    /// In its envelopes; 0 if it has none, as of an older version.
    token: u64,
    /// The lane of its manager's session.
    lane: usize,
    source: Source,
}

/// What the address and the token of an envelope say about its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is trusted.
    Trusted,
    /// A program of this host, of a user that is not known yet.
    Local {
        /// Whether a manager announced the address.
        is_announced: bool,
    },
    /// Not trusted: no manager announced the address, or not with this token.
    Stranger,
}

/// Where a manager announced its front door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// In the snapshot feed, which names the session.
    Feed,
    /// In the stream of events.
    Events,
    /// There as well: a responder at the manager's port, which passes requests on.
    Spill,
}

impl Peers {
    /// Trusts the addresses in `named`.
    pub fn new(named: &[IpAddr]) -> Self {
        Self { named: named.iter().map(IpAddr::to_canonical).collect(), doors: Arc::default() }
    }

    /// Sets the addresses and the token of the front door of the manager followed in `lane`, as its
    /// events announce it; none if `doors` is empty.
    pub fn set_doors(&self, lane: usize, doors: impl IntoIterator<Item = SocketAddr>, token: u64) {
        self.set(lane, Source::Events, doors, token);
    }

    /// The same, as its snapshot feed announces it.
    pub fn set_fed(&self, lane: usize, doors: impl IntoIterator<Item = SocketAddr>, token: u64) {
        self.set(lane, Source::Feed, doors, token);
    }

    /// Sets the addresses from which the responder at the port of the manager followed in `lane`
    /// passes requests on, and its token.
    pub fn set_spill(&self, lane: usize, from: impl IntoIterator<Item = SocketAddr>, token: u64) {
        self.set(lane, Source::Spill, from, token);
    }

    /// No manager is followed in `lane` any more.
    pub fn forget(&self, lane: usize) {
        self.replace(|door| door.lane == lane, &[]);
    }

    fn set(
        &self,
        lane: usize,
        source: Source,
        doors: impl IntoIterator<Item = SocketAddr>,
        token: u64,
    ) {
        let door = |address| Door { address: canonical(address), token, lane, source };
        let new: Vec<Door> = doors.into_iter().map(door).collect();
        self.replace(|door| door.lane == lane && door.source == source, &new);
    }

    fn replace(&self, is_old: impl Fn(&Door) -> bool, new: &[Door]) {
        self.doors.rcu(|doors| {
            let kept = doors.iter().filter(|door| !is_old(door));
            let mut doors: Vec<Door> = kept.chain(new).copied().collect();
            // What names the session comes first.
            doors.sort_by_key(|door| door.source != Source::Feed);
            doors
        });
    }

    /// Judges the sender of an envelope. What comes from the address of a front door has its token:
    /// any user of its host can have the port once the manager or responder has ended, and on a
    /// network anybody can write the address. Without tokens, programs of this host are known by
    /// their user.
    pub fn judge(&self, peer: SocketAddr, token: u64) -> Judgement {
        let peer = canonical(peer);
        if self.named.contains(&peer.ip()) {
            return Judgement::Trusted;
        }
        let doors = self.doors.load();
        let (mut is_announced, mut has_tokens) = (false, true);
        for door in doors.iter().filter(|door| door.address == peer) {
            if door.token != 0 && door.token == token {
                return Judgement::Trusted;
            }
            is_announced = true;
            has_tokens &= door.token != 0;
        }
        match (is_announced, peer.ip().is_loopback()) {
            (true, _) if has_tokens => Judgement::Stranger,
            (is_announced, true) => Judgement::Local { is_announced },
            (true, false) => Judgement::Trusted,
            (false, false) => Judgement::Stranger,
        }
    }

    /// The lane of the manager whose front door this is.
    pub(crate) fn lane_of(&self, peer: SocketAddr) -> Option<usize> {
        let peer = canonical(peer);
        self.doors.load().iter().find(|door| door.address == peer).map(|door| door.lane)
    }
}

/// The addresses of the front door that the SM at URL `sm` announced; an unspecified address stands
/// for the SM's host.
pub(crate) async fn doors(announced: &str, sm: &str) -> Vec<SocketAddr> {
    let Ok(address) = announced.parse::<SocketAddr>() else { return Vec::new() };
    if !address.ip().is_unspecified() {
        return vec![address];
    }
    let Ok(uri) = sm.parse::<tonic::transport::Uri>() else { return Vec::new() };
    let Some(host) = uri.host() else { return Vec::new() };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = tokio::net::lookup_host((host, address.port()));
    match tokio::time::timeout(LOOK_UP_PATIENCE, found).await {
        Ok(Ok(found)) => found.take(DOORS_MAX).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// An IPv4 address, written as one.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// How long the owner of a local sender counts as known. Only by then could the port have gone to
/// another user's program.
const OWNER_KNOWN_FOR: Duration = Duration::from_secs(1);
/// Local senders remembered: so many that are trusted or announced, and so many others.
const SENDERS_MAX: usize = 64;
/// Owners of others looked up in that time, by the worker: one socket each, or if its owner is
/// trusted, all datagram sockets of the host. Nothing is accepted from further ones. Senders that
/// were trusted, and front doors that managers announced, are looked up besides.
const LOOK_UPS_MAX: usize = 64;

/// See [`local::udp_owners`].
type Owners = fn(SocketAddr, SocketAddr, &dyn Fn(u32) -> bool) -> io::Result<Vec<u32>>;

/// Programs of this host, by the users that own their sockets.
#[derive(Debug)]
pub(crate) struct LocalSenders {
    own: u32,
    /// Where we receive.
    at: SocketAddr,
    /// The users of the sockets that may send from an address to another.
    owners: Owners,
    /// Senders that were trusted when they were looked up, and announced ones.
    favoured: Senders,
    /// Others. They never take what favoured ones need.
    strangers: Senders,
    /// Look-ups of others since a time.
    look_ups: (Option<Instant>, usize),
}

/// Senders, when their owners were looked up, and whether they are trusted; oldest first.
#[derive(Debug, Default)]
struct Senders(VecDeque<(SocketAddr, Instant, bool)>);

impl Senders {
    fn find(&self, peer: SocketAddr) -> Option<(Instant, bool)> {
        let mut found = self.0.iter().filter(|(address, ..)| *address == peer);
        found.next().map(|&(_, at, is_trusted)| (at, is_trusted))
    }

    fn remove(&mut self, peer: SocketAddr) {
        self.0.retain(|(address, ..)| *address != peer);
    }

    fn push(&mut self, peer: SocketAddr, now: Instant, is_trusted: bool) {
        if self.0.len() == SENDERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((peer, now, is_trusted));
    }
}

impl LocalSenders {
    /// Those that send to the socket at this address.
    pub(crate) fn to(at: SocketAddr) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self::new(own, at, |from, to, trusted| local::udp_owners(from, to, trusted))
    }

    fn new(own: u32, at: SocketAddr, owners: Owners) -> Self {
        let (favoured, strangers) = <_>::default();
        Self { own, at, owners, favoured, strangers, look_ups: (None, 0) }
    }

    /// Whether the program at loopback address `peer` is one of root or of our own user.
    /// `is_announced`: a manager announced this address.
    pub(crate) fn believes(&mut self, peer: SocketAddr, is_announced: bool, now: Instant) -> bool {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= OWNER_KNOWN_FOR;
        let favoured = self.favoured.find(peer);
        let known = favoured.or_else(|| self.strangers.find(peer));
        if let Some((at, is_trusted)) = known
            && !is_due(at)
        {
            return is_trusted;
        }
        if favoured.is_none() && !is_announced {
            if self.look_ups.0.is_none_or(is_due) {
                self.look_ups = (Some(now), 0);
            }
            self.look_ups.1 += 1;
            if self.look_ups.1 > LOOK_UPS_MAX {
                return false;
            }
        }
        let own = self.own;
        let is_trusted = |owner: u32| [0, own].contains(&owner);
        let owners = (self.owners)(peer, self.at, &is_trusted).unwrap_or_default();
        let is_trusted = !owners.is_empty() && owners.into_iter().all(is_trusted);
        self.favoured.remove(peer);
        self.strangers.remove(peer);
        match is_trusted || is_announced {
            true => self.favoured.push(peer, now, is_trusted),
            false => self.strangers.push(peer, now, is_trusted),
        }
        is_trusted
    }
}

/// A transport of envelopes that hands over those of [`Peers`], and of trusted programs on this
/// host, only.
#[derive(Debug)]
pub struct Guarded<T> {
    inner: T,
    peers: Peers,
    local: LocalSenders,
    strangers: u64,
    /// Whether one was logged.
    logged: bool,
}

impl<T> Guarded<T> {
    /// Guards `inner`, which receives at this address.
    pub fn new(inner: T, at: SocketAddr, peers: Peers) -> Self {
        let local = LocalSenders::to(at);
        Self { inner, peers, local, strangers: 0, logged: false }
    }

    /// Moves packets from trusted senders to the front; returns their number.
    fn sift(&mut self, batch: &mut [Packet]) -> usize {
        let mut kept = 0;
        let mut now = None;
        for at in 0..batch.len() {
            let carrier = &batch[at].carrier;
            let is_trusted =
                carrier.peer.is_some_and(|peer| match self.peers.judge(peer, carrier.token) {
                    Judgement::Trusted => true,
                    Judgement::Stranger => false,
                    Judgement::Local { is_announced } => {
                        let now = *now.get_or_insert_with(Instant::now);
                        self.local.believes(peer, is_announced, now)
                    }
                });
            if is_trusted {
                batch.swap(kept, at);
                kept += 1;
            } else if !std::mem::replace(&mut self.logged, true) {
                tracing::warn!(
                    peer = ?batch[at].carrier.peer,
                    "dropping envelopes from an untrusted address; add --believe ADDRESS to accept \
                     them (accepted are the SM's front door, and on this host programs of root \
                     and of the user of ibsa)"
                );
            }
        }
        self.strangers += (batch.len() - kept) as u64;
        kept
    }
}

impl<T: Transport> Transport for Guarded<T> {
    fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
        let mut kept = 0;
        for _ in 0..ROUNDS_MAX {
            let room = batch.len() - kept;
            let got = self.inner.receive(&mut batch[kept..])?;
            kept += self.sift(&mut batch[kept..kept + got]);
            // A batch that is not full shows the caller that nothing is left.
            if got < room || kept == batch.len() {
                break;
            }
        }
        Ok(kept)
    }

    fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
        self.inner.send(batch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn limit_queue(&mut self, packets: usize) {
        self.inner.limit_queue(packets);
    }

    fn overflowed(&mut self) -> u64 {
        self.inner.overflowed()
    }

    fn local_lid(&self) -> Lid {
        self.inner.local_lid()
    }

    fn malformed(&self) -> Malformed {
        Malformed { stranger: self.strangers, ..self.inner.malformed() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A transport that delivers these packets, and has no descriptor.
    struct From(VecDeque<SocketAddr>);

    impl Transport for From {
        fn receive(&mut self, batch: &mut [Packet]) -> io::Result<usize> {
            let count = batch.len().min(self.0.len());
            for (packet, peer) in batch.iter_mut().zip(self.0.drain(..count)) {
                packet.carrier.peer = Some(peer);
            }
            Ok(count)
        }

        fn send(&mut self, batch: &[Packet]) -> io::Result<usize> {
            Ok(batch.len())
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Whether `peer` is trusted without a token.
    fn believes(peers: &Peers, peer: SocketAddr) -> bool {
        peers.judge(peer, 0) == Judgement::Trusted
    }

    /// Regression: a user who bound the port of a manager that had ended within a second after its
    /// last request was believed, and on a network anybody who wrote the front door's address.
    #[test]
    fn a_front_door_is_believed_by_its_token() {
        let peers = Peers::new(&["198.51.100.7".parse().unwrap()]);
        for (door, lane) in [("127.0.0.1:5", 0), ("192.0.2.1:5", 1)] {
            let door = at(door);
            peers.set_fed(lane, [door], 77);
            assert_eq!(peers.judge(door, 77), Judgement::Trusted);
            for token in [0, 78] {
                assert_eq!(peers.judge(door, token), Judgement::Stranger, "{door} {token}");
            }
            // The manager was restarted, and events of the one before are known still.
            peers.set_doors(lane, [door], 78);
            assert!([77, 78].iter().all(|&token| peers.judge(door, token) == Judgement::Trusted));
            assert_eq!(peers.judge(door, 79), Judgement::Stranger);
        }
        let other = at("127.0.0.1:6");
        assert_eq!(peers.judge(other, 77), Judgement::Local { is_announced: false });
        peers.set_spill(0, [at("198.51.100.7:9")], 77);
        assert_eq!(peers.judge(at("198.51.100.7:9"), 0), Judgement::Trusted, "--believe");
    }

    /// Regression: while a manager was stopped, any user of its host could bind its former port, and
    /// read the SA in the name of any port.
    #[test]
    fn at_loopback_no_door_is_believed_by_its_address() {
        let peers = Peers::default();
        let door = at("127.0.0.1:5");
        peers.set_doors(0, [door], 0);
        peers.set_fed(0, [door], 0);
        peers.set_spill(0, [door], 0);
        for peer in [door, at("[::ffff:127.0.0.1]:5")] {
            assert_eq!(peers.judge(peer, 0), Judgement::Local { is_announced: true });
        }
        assert_eq!(peers.lane_of(door), Some(0), "who it is decides which session answers");
    }

    #[test]
    fn the_managers_door_and_those_named_are_believed() {
        let peers = Peers::new(&["198.51.100.7".parse().unwrap()]);
        for (peer, believed) in [
            ("127.0.0.1:9", false),
            ("[::1]:9", false),
            ("198.51.100.7:9", true),
            ("[::ffff:198.51.100.7]:1", true),
            ("192.0.2.1:5", false),
        ] {
            assert_eq!(believes(&peers, at(peer)), believed, "{peer}");
        }
        peers.set_doors(0, [at("192.0.2.1:5")], 0);
        assert!(
            believes(&peers, at("192.0.2.1:5")) && believes(&peers, at("[::ffff:192.0.2.1]:5"))
        );
        assert!(!believes(&peers, at("192.0.2.1:6")), "another program of that host");
        peers.set_doors(0, [], 0);
        assert!(!believes(&peers, at("192.0.2.1:5")), "it is followed no more");
    }

    /// Regression: any user of the host could query and write in the name of any port.
    #[test]
    fn of_this_host_only_programs_of_root_and_of_our_user_are_believed() {
        // The port says whose it is; one that two users have is not believed.
        let mut local = LocalSenders::new(1000, at("127.0.0.1:9"), |address, _, _| {
            let owners: &[u32] = match address.port() {
                1 => &[0],
                2 => &[1000],
                3 => &[65534],
                4 => &[0, 65534],
                _ => &[],
            };
            Ok(owners.to_vec())
        });
        let now = Instant::now();
        for (port, believed) in [(1, true), (2, true), (3, false), (4, false), (5, false)] {
            let peer = SocketAddr::from(([127, 0, 0, 1], port));
            assert_eq!(local.believes(peer, false, now), believed, "{port}");
            assert_eq!(local.believes(peer, false, now), believed, "{port}, as remembered");
        }
        assert_eq!(local.look_ups.1, 5);
    }

    #[test]
    fn the_owner_of_a_port_is_looked_up_again_and_not_too_often() {
        let mut local = LocalSenders::new(1000, at("127.0.0.1:9"), |_, _, _| Ok(vec![1000]));
        let now = Instant::now();
        let peer = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(local.believes(peer(1), false, now));
        local.owners = |_, _, _| Ok(vec![65534]);
        assert!(local.believes(peer(1), false, now + OWNER_KNOWN_FOR / 2));
        assert!(!local.believes(peer(1), false, now + OWNER_KNOWN_FOR));
        local.owners = |_, _, _| Ok(vec![1000]);
        let later = now + OWNER_KNOWN_FOR * 3;
        let believed = (10..1000).filter(|port| local.believes(peer(*port), false, later)).count();
        assert_eq!(believed, LOOK_UPS_MAX);
        assert!(local.favoured.0.len() <= SENDERS_MAX);
    }

    /// Regression: a user who sent from 65 addresses a second had the front door forgotten, and no
    /// look-up left for it: its requests were dropped.
    #[test]
    fn strangers_cost_those_that_were_trusted_and_announced_ones_nothing() {
        let mut local = LocalSenders::new(1000, at("127.0.0.1:9"), |address, _, _| {
            Ok(vec![if address.port() < 3 { 1000 } else { 65534 }])
        });
        let [before, announced] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let start = Instant::now();
        assert!(local.believes(before, false, start));
        for second in 0..10 {
            let now = start + OWNER_KNOWN_FOR * second;
            for port in 100..300 {
                assert!(!local.believes(SocketAddr::from(([127, 0, 0, 2], port)), false, now));
            }
            assert!(local.believes(before, false, now), "{second}");
            assert!(local.believes(announced, true, now), "{second}");
        }
        assert!(local.strangers.0.len() <= SENDERS_MAX && local.favoured.0.len() == 2);
    }

    /// Regression: Envelopes were answered for any sender.
    #[test]
    fn strangers_are_counted_and_hide_nothing_behind_them() {
        let (stranger, door) = (at("192.0.2.9:5"), at("192.0.2.1:5"));
        let peers = Peers::default();
        peers.set_doors(0, [door], 0);
        let mut from = VecDeque::from([door, stranger]);
        from.extend([stranger; 5]);
        from.extend([door, stranger, door]);
        let mut guarded = Guarded::new(From(from), at("127.0.0.1:9"), peers);
        let mut batch = vec![Packet::default(); 2];
        assert_eq!(guarded.receive(&mut batch).unwrap(), 2, "a full one, as there may be more");
        assert!(batch.iter().all(|packet| packet.carrier.peer == Some(door)));
        assert_eq!(guarded.receive(&mut batch).unwrap(), 1);
        assert_eq!((batch[0].carrier.peer, guarded.malformed().stranger), (Some(door), 7));
    }

    #[test]
    fn a_door_belongs_to_the_session_that_its_manager_publishes() {
        let (one, two) = (at("192.0.2.1:5"), at("192.0.2.2:5"));
        let peers = Peers::default();
        peers.set_doors(0, [one], 0);
        // It went on in another lane; the stream of events in the first one has not ended yet.
        peers.set_fed(1, [one], 0);
        peers.set_fed(0, [two], 0);
        assert_eq!((peers.lane_of(one), peers.lane_of(two)), (Some(1), Some(0)));
        assert_eq!(peers.lane_of(at("[::ffff:192.0.2.2]:5")), Some(0));
        peers.forget(1);
        peers.set_doors(0, [two], 0);
        assert_eq!((peers.lane_of(one), believes(&peers, one)), (None, false));
    }

    #[tokio::test]
    async fn a_door_at_no_address_is_at_the_sms() {
        for (announced, sm, expected) in [
            ("192.0.2.1:5", "http://198.51.100.2:7", "192.0.2.1:5"),
            ("0.0.0.0:5", "http://198.51.100.2:7", "198.51.100.2:5"),
            ("[::]:5", "http://[2001:db8::1]:7", "[2001:db8::1]:5"),
        ] {
            assert_eq!(doors(announced, sm).await, [expected.parse::<SocketAddr>().unwrap()]);
        }
        let local = doors("0.0.0.0:5", "http://localhost:7").await;
        assert!(!local.is_empty() && local.iter().all(|at| at.ip().is_loopback()), "{local:?}");
        assert!(doors("nonsense", "http://198.51.100.2:7").await.is_empty());
    }
}

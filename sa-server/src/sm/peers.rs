//! Which senders of envelopes are trusted, and which session's tables they are answered from. An
//! envelope names the requester, so its sender can send requests on behalf of any port. Only
//! followed managers, and the responder at a manager's port, at the addresses and with the tokens
//! that managers announced over gRPC, programs of root and of our own user on this host, and
//! addresses given by `--believe` are accepted; others are counted and dropped.

mod guarded;
mod local;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ib_mad::transport::udp::Accepted;

pub use guarded::Guarded;
pub(crate) use local::LocalSenders;

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

    /// What comes from managers and the responders at their ports; `None` if the operator trusts
    /// whole hosts, whose packets no token or port identifies.
    fn accepted(&self) -> Option<Accepted> {
        let doors = self.doors.load();
        let mut tokens: Vec<u64> =
            doors.iter().map(|door| door.token).filter(|&token| token != 0).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let without = doors.iter().filter(|door| door.token == 0);
        let ports = without.map(|door| door.address.port()).collect();
        self.named.is_empty().then_some(Accepted { tokens, ports })
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

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Regression: while a manager was stopped, any user of its host could bind its former port,
    /// and read the SA in the name of any port.
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

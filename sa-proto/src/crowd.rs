//! The connections of a small server: beyond its limit, an idle one makes room for the next one, so
//! that silent and slow clients shut out no other: the oldest of the host or user that has the
//! most. The same holds for the connections of one host or user. Streams that last make room only
//! if no other connection can. A reserve is for trusted users.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::geteuid;
use tokio::sync::Notify;

use crate::trust::local::{ROOT, tcp_owner_soon};

/// The open connections. Clones share them.
#[derive(Clone, Debug)]
pub struct Crowd {
    max: usize,
    /// Limit of connections of one host or user.
    share_max: usize,
    /// Part of `max` that only trusted users may have.
    reserve: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// Number of the last connection.
    last: u64,
    /// By number, hence in the order of their arrival.
    places: BTreeMap<u64, Arc<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Whose it is, if shares are limited.
    share: Option<Share>,
    is_trusted: bool,
    is_busy: AtomicBool,
    is_lasting: AtomicBool,
    cut: Notify,
}

/// Place of a connection, freed when dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    state: Arc<State>,
    open: Arc<Mutex<Open>>,
}

impl Crowd {
    /// Room for `max` connections.
    pub fn new(max: usize) -> Self {
        Self { max, share_max: max, reserve: 0, open: Arc::default() }
    }

    /// The same, with at most `share_max` connections of one host or user.
    #[must_use]
    pub fn with_shares(self, share_max: usize) -> Self {
        Self { share_max, ..self }
    }

    /// The same, of which `reserve` are for trusted users only.
    #[must_use]
    pub fn with_reserve(self, reserve: usize) -> Self {
        Self { reserve: reserve.min(self.max), ..self }
    }

    /// A place for a connection, at the expense of the oldest idle one if necessary; `None` if all
    /// are busy.
    pub fn enter(&self) -> Option<Place> {
        self.enter_of(None, false)
    }

    /// The same for a connection of `share`, of a user that is trusted or not. If that share has
    /// all that it may have, its oldest idle one makes room; `None` if all of these are busy.
    /// Connections of trusted users make room only for each other.
    pub fn enter_from(&self, share: Share, is_trusted: bool) -> Option<Place> {
        self.enter_of(Some(share), is_trusted)
    }

    fn enter_of(&self, share: Option<Share>, is_trusted: bool) -> Option<Place> {
        let mut open = lock(&self.open);
        let all = open.places.len();
        let untrusted = open.places.values().filter(|state| !state.is_trusted).count();
        let is_share_used = share.is_some() && open.count(share) >= self.share_max;
        let is_reached = !is_trusted && untrusted >= self.max - self.reserve;
        if is_share_used || is_reached || all >= self.max {
            let may_give = |state: &State| match is_share_used {
                true => state.share == share,
                false => is_trusted || !state.is_trusted,
            };
            let number = open.of_the_greediest(may_give)?;
            open.places.remove(&number).inspect(|state| state.cut.notify_one());
        }
        open.last += 1;
        let number = open.last;
        let state = Arc::new(State { share, is_trusted, ..State::default() });
        open.places.insert(number, state.clone());
        Some(Place { number, state, open: self.open.clone() })
    }
}

impl Open {
    /// Number of connections of a share.
    fn count(&self, share: Option<Share>) -> usize {
        self.places.values().filter(|state| state.share == share).count()
    }

    /// Number of the connection that makes room among those that `may_give`: one that is idle,
    /// preferably no stream, of an untrusted user, of the share with the most connections, and of
    /// these the oldest.
    fn of_the_greediest(&self, may_give: impl Fn(&State) -> bool) -> Option<u64> {
        let mut counts = HashMap::<_, usize>::new();
        self.places.values().for_each(|state| *counts.entry(state.share).or_default() += 1);
        let idle =
            self.places.iter().filter(|(_, state)| !state.is_busy.load(Relaxed) && may_give(state));
        let first = idle.min_by_key(|(number, state)| {
            let of_share = counts.get(&state.share).copied().unwrap_or_default();
            (state.is_lasting.load(Relaxed), state.is_trusted, Reverse(of_share), **number)
        });
        first.map(|(number, _)| *number)
    }
}

/// What shares of connections, and of others, are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// A user of this host.
    User(u32),
    /// An IPv4 address, or the upper half of an IPv6 address: a host can have all that begin so.
    Host(IpAddr),
}

impl Share {
    /// Of callers that are not known, as in tests.
    pub const UNKNOWN: Self = Self::Host(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// The share of the host with this address.
    pub fn of_host(ip: IpAddr) -> Self {
        Self::Host(host_of(ip))
    }

    /// The share of the other end of a TCP connection between our address `local` and `peer`: of
    /// its user, if that is on this host. A host has millions of loopback addresses; they count as
    /// one where the kernel cannot tell the user.
    pub fn of_peer(local: SocketAddr, peer: SocketAddr) -> Self {
        if !peer.ip().to_canonical().is_loopback() {
            return Self::of_host(peer.ip());
        }
        let owner = tcp_owner_soon(local, peer).ok().flatten();
        owner.map_or(Self::Host(Ipv4Addr::LOCALHOST.into()), Self::User)
    }

    /// Whether it is that of root, or of the user of this process: these can stop the process, so
    /// they gain nothing by using it up.
    pub fn is_own(self) -> bool {
        matches!(self, Self::User(user) if user == ROOT || user == geteuid().as_raw())
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(user) => write!(f, "local user {user}"),
            Self::Host(ip) => write!(f, "host {ip}"),
        }
    }
}

/// The host of an address: an IPv4 address, or the upper half of an IPv6 address, since a host can
/// have all that begin so.
pub fn host_of(ip: IpAddr) -> IpAddr {
    const NETWORK: u128 = u128::MAX << 64;
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

impl Place {
    /// Whether a request is being answered: the connection is not cut meanwhile.
    pub fn set_busy(&self, is_busy: bool) {
        self.state.is_busy.store(is_busy, Relaxed);
    }

    /// Whether an answer is being sent that lasts: the connection is cut only if there is no other.
    pub fn set_lasting(&self, is_lasting: bool) {
        self.state.is_lasting.store(is_lasting, Relaxed);
    }

    /// Completes when the connection must end.
    pub async fn cut(&self) {
        self.state.cut.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.open).places.remove(&self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_cut(place: &Place) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(place.cut()).poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn the_oldest_idle_connection_makes_room() {
        let crowd = Crowd::new(3);
        let all: Vec<Place> = (0..3).map(|_| crowd.enter().unwrap()).collect();
        all[0].set_busy(true);
        let fourth = crowd.enter().unwrap();
        assert_eq!(all.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false]);
        // It has ended; that changes nothing.
        drop(all.into_iter().nth(1));
        assert!(!is_cut(&fourth));
    }

    /// Regression: a local user had a share for each loopback address.
    #[test]
    fn a_user_of_this_host_is_one_whatever_address_it_has() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let own = Share::User(rustix::process::geteuid().as_raw());
        for last in 1..4 {
            let socket = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                None,
            );
            let socket = socket.unwrap();
            let from = SocketAddr::from(([127, 0, 0, last], 0));
            rustix::net::bind(&socket, &from).unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            let (stream, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), from.ip());
            assert_eq!(Share::of_peer(stream.local_addr().unwrap(), peer), own);
        }
        let other = SocketAddr::from(([192, 0, 2, 7], 9));
        assert_eq!(Share::of_peer(address, other), Share::of_host(other.ip()));
        // There is no such connection.
        let gone = SocketAddr::from(([127, 9, 9, 9], 9));
        assert_eq!(Share::of_peer(address, gone), Share::Host(Ipv4Addr::LOCALHOST.into()));
    }

    /// Regression: one host could have all places, and with busy connections it shut out others.
    #[test]
    fn a_host_has_no_more_than_its_share() {
        let crowd = Crowd::new(4).with_shares(2);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let enter = |text: &str| crowd.enter_from(Share::of_host(ip(text)), false);
        let all: Vec<Place> = (0..2).map(|_| enter("192.0.2.1").unwrap()).collect();
        all.iter().for_each(|place| place.set_busy(true));
        assert!(enter("::ffff:192.0.2.1").is_none(), "both are busy");
        let other = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        all[1].set_busy(false);
        let third = enter("192.0.2.1").unwrap();
        assert!(is_cut(&all[1]) && !is_cut(&other[0]), "its own makes room");
        third.set_busy(true);
        assert!(enter("192.0.2.9").is_some());
        assert!(is_cut(&other[0]), "all places were taken");
    }

    /// Regression: users of this host, of whom one may have 65,536, took all places with busy
    /// connections, and displaced those of others that were about to ask.
    #[test]
    fn many_users_leave_room_for_the_trusted_and_displace_the_greediest_first() {
        let crowd = Crowd::new(8).with_shares(4).with_reserve(2);
        let enter = |user, is_trusted| crowd.enter_from(Share::User(user), is_trusted);
        let modest = enter(1, false).unwrap();
        let greedy: Vec<Place> = (0..4).map(|_| enter(2, false).unwrap()).collect();
        let other = enter(3, false).unwrap();
        let next = enter(4, false).unwrap();
        assert!(is_cut(&greedy[0]) && !is_cut(&modest) && !is_cut(&other), "6 of 8 are used");
        for place in greedy[1..].iter().chain([&modest, &other, &next]) {
            place.set_busy(true);
        }
        assert!(enter(5, false).is_none(), "all are busy");
        let trusted = [enter(0, true).unwrap(), enter(0, true).unwrap()];
        modest.set_busy(false);
        assert!(enter(5, false).is_some() && is_cut(&modest));
        assert!(!is_cut(&trusted[0]) && !is_cut(&trusted[1]));
    }

    /// Regression: the oldest idle connection was one whose stream was being watched, while others
    /// came and went.
    #[test]
    fn a_stream_makes_room_only_if_no_other_connection_can() {
        let crowd = Crowd::new(3);
        let all: Vec<Place> = (0..3).map(|_| crowd.enter().unwrap()).collect();
        all[0].set_lasting(true);
        all[1].set_busy(true);
        let fourth = crowd.enter().unwrap();
        assert_eq!(all.iter().map(is_cut).collect::<Vec<_>>(), [false, false, true]);
        fourth.set_busy(true);
        assert!(crowd.enter().is_some() && is_cut(&all[0]), "a stream is not for ever");
    }

    #[test]
    fn busy_connections_are_not_cut() {
        let crowd = Crowd::new(2);
        let all: Vec<Place> = (0..2).map(|_| crowd.enter().unwrap()).collect();
        all.iter().for_each(|place| place.set_busy(true));
        assert!(crowd.enter().is_none());
        all[1].set_busy(false);
        assert!(crowd.enter().is_some());
        assert!(is_cut(&all[1]) && !is_cut(&all[0]));
        drop(all);
        assert!(lock(&crowd.open).places.is_empty());
    }
}

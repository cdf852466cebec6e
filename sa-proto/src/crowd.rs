//! The connections of a small server: beyond its limit, the oldest that is idle makes room for the
//! next one, so that silent and slow clients shut out no other. The same holds for the connections
//! of one host or user. Streams that last make room only if no other connection can.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::trust::local::tcp_owner;

/// The open connections. Clones share them.
#[derive(Clone, Debug)]
pub struct Crowd {
    max: usize,
    /// Limit of connections of one host or user.
    share_max: usize,
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
        Self { max, share_max: max, open: Arc::default() }
    }

    /// The same, with at most `share_max` connections of one host or user.
    #[must_use]
    pub fn with_shares(self, share_max: usize) -> Self {
        Self { share_max, ..self }
    }

    /// A place for a connection, at the expense of the oldest idle one if necessary; `None` if all
    /// are busy.
    pub fn enter(&self) -> Option<Place> {
        self.enter_of(None)
    }

    /// The same for a connection of `share`. If that has all that it may have, its oldest idle one
    /// makes room; `None` if all of these are busy.
    pub fn enter_from(&self, share: Share) -> Option<Place> {
        self.enter_of(Some(share))
    }

    fn enter_of(&self, share: Option<Share>) -> Option<Place> {
        let mut open = lock(&self.open);
        let is_of_share = |state: &State| share.is_some() && state.share == share;
        let of_share = open.places.values().filter(|state| is_of_share(state)).count();
        let is_share_used = of_share >= self.share_max;
        if is_share_used || open.places.len() >= self.max {
            let oldest = |is_lasting| {
                let mut places = open.places.iter().filter(|(_, state)| {
                    !state.is_busy.load(Relaxed) && (!is_share_used || is_of_share(state))
                });
                places.find(|(_, state)| state.is_lasting.load(Relaxed) == is_lasting)
            };
            let number = *oldest(false).or_else(|| oldest(true))?.0;
            open.places.remove(&number).inspect(|state| state.cut.notify_one());
        }
        open.last += 1;
        let number = open.last;
        let state = Arc::new(State { share, ..State::default() });
        open.places.insert(number, state.clone());
        Some(Place { number, state, open: self.open.clone() })
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
        let owner = tcp_owner(local, peer).ok().flatten();
        owner.map_or(Self::Host(Ipv4Addr::LOCALHOST.into()), Self::User)
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
        let enter = |text: &str| crowd.enter_from(Share::of_host(ip(text)));
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

//! Users of this host at the other end of a loopback socket, as the kernel knows them
//! (sock_diag(7), or where it lacks that, /proc/net/tcp and the like). A socket belongs to the user
//! that created it.

#![allow(
    clippy::disallowed_methods,
    reason = "asks the kernel, and measures how long that takes; the data model has no part in it"
)]

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use procfs::net::{TcpNetEntry, TcpState, UdpNetEntry};

use super::{Role, sock_diag};

/// Root.
pub(crate) const ROOT: u32 = 0;

/// The user that owns the other end of the loopback connection between our address `local` and
/// `peer`; `None` if there is no such connection any more.
///
/// The answer holds if our end is still connected afterwards: until then no other socket can have
/// the peer's address.
pub fn tcp_owner(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let (local, peer) = (canonical(local), canonical(peer));
    // The kernel cannot tell, as in some containers: all connections of the host are read.
    tcp_owner_found(local, peer).or_else(|_| tcp_owner_listed(local, peer))
}

/// The same, for callers that must not be held up: where all connections of the host would be read,
/// that takes a twentieth of the time at most, and there is no answer otherwise.
pub(crate) fn tcp_owner_soon(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    static LISTINGS: Budget = Budget::new();
    let (local, peer) = (canonical(local), canonical(peer));
    tcp_owner_found(local, peer)
        .or_else(|_| LISTINGS.spend(|| tcp_owner_listed(local, peer)).unwrap_or(Ok(None)))
}

/// The owner as sock_diag(7) finds it; the time for that does not depend on the number of sockets.
fn tcp_owner_found(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    const ESTABLISHED: u8 = 1;
    let found = sock_diag::tcp(peer, local)?;
    // A socket that no process has accepted, or its process has closed, has neither inode nor
    // owner.
    let owned = found.filter(|found| found.state == ESTABLISHED && found.inode != 0);
    Ok(owned.map(|found| found.user))
}

/// Work that may take one part in [`Budget::PART`] of the time.
struct Budget(Mutex<Option<Instant>>);

impl Budget {
    const PART: u32 = 20;

    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Does the work, unless earlier work took too much of the time until now.
    fn spend<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        if ready.is_some_and(|ready| begun < ready) {
            return None;
        }
        let result = work();
        *ready = Some(begun + begun.elapsed() * Self::PART);
        Some(result)
    }
}

fn tcp_owner_listed(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let is_peer = |entry: &TcpNetEntry| {
        canonical(entry.local_address) == peer
            && canonical(entry.remote_address) == local
            && entry.state == TcpState::Established
            && entry.inode != 0
    };
    let mut entries = procfs::net::tcp().map_err(io::Error::other)?;
    if !entries.iter().any(is_peer) {
        // Without IPv6 there is no such table.
        entries = procfs::net::tcp6().unwrap_or_default();
    }
    Ok(entries.iter().find(|entry| is_peer(entry)).map(|entry| entry.uid))
}

/// The users of the sockets of this host that may have sent a datagram from loopback address `from`
/// to our address `local`, of which the port counts. If the first one is not `trusted`, the others
/// are left out: looking for all takes the longer the more sockets there are.
pub fn udp_owners(
    from: SocketAddr,
    local: SocketAddr,
    trusted: impl Fn(u32) -> bool,
) -> io::Result<Vec<u32>> {
    let from = canonical(from);
    // What is sent to loopback comes from there.
    let to = SocketAddr::new(from.ip(), local.port());
    match sock_diag::udp(from, to) {
        Ok(None) => Ok(Vec::new()),
        Ok(Some(first)) if !trusted(first.user) => Ok(vec![first.user]),
        Ok(Some(_)) => {
            let all = sock_diag::udp_all(from)?;
            Ok(all.iter().map(|found| found.user).collect())
        }
        Err(_) => udp_owners_listed(from),
    }
}

fn udp_owners_listed(from: SocketAddr) -> io::Result<Vec<u32>> {
    let may_send = |entry: &UdpNetEntry| {
        let address = canonical(entry.local_address);
        address.port() == from.port()
            && (address.ip() == from.ip() || address.ip().is_unspecified())
    };
    let mut entries = procfs::net::udp().map_err(io::Error::other)?;
    entries.extend(procfs::net::udp6().unwrap_or_default());
    Ok(entries.iter().filter(|entry| may_send(entry)).map(|entry| entry.uid).collect())
}

/// An IPv4 address, written as one.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A user of this host, by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserId(pub u32);

impl UserId {
    /// The user of this name, if there is one.
    pub fn of_name(name: &str) -> io::Result<Option<Self>> {
        let user = nix::unistd::User::from_name(name).map_err(io::Error::from)?;
        Ok(user.map(|user| Self(user.uid.as_raw())))
    }
}

impl FromStr for UserId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(user) = text.parse() {
            return Ok(Self(user));
        }
        match Self::of_name(text) {
            Ok(user) => user.ok_or_else(|| format!("this host has no user {text}")),
            Err(error) => Err(format!("cannot look up user {text}: {error}")),
        }
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::unistd::User::from_uid(self.0.into()) {
            Ok(Some(user)) => write!(f, "user {} ({})", self.0, user.name),
            _ => write!(f, "user {}", self.0),
        }
    }
}

/// The roles of this host's users, where connections have no certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalRoles {
    given: Vec<(u32, Role)>,
}

impl LocalRoles {
    /// Gives a user a role.
    pub fn give(&mut self, user: u32, role: Role) {
        self.given.push((user, role));
    }

    /// The roles of a user: all for root and for `own`, the user of this process, otherwise those
    /// given.
    pub fn of(&self, user: u32, own: u32) -> Vec<Role> {
        if user == ROOT || user == own {
            return Role::ALL.to_vec();
        }
        self.given.iter().filter(|(given, _)| *given == user).map(|(_, role)| *role).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn the_owner_of_a_connection_is_found_by_both_addresses() {
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let port = listener.local_addr().unwrap().port();
            let host = if at == "[::1]:0" { "::1" } else { "127.0.0.1" };
            let client = TcpStream::connect((host, port)).unwrap();
            let (ours, peer) = listener.accept().unwrap();
            let local = ours.local_addr().unwrap();
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(tcp_owner(local, peer).unwrap(), Some(own), "{at}");
            assert_eq!(tcp_owner_listed(canonical(local), canonical(peer)).unwrap(), Some(own));
            // The other way round it is our end of the same connection.
            assert_eq!(tcp_owner(peer, local).unwrap(), Some(own), "{at}");
            drop(client);
            assert_eq!(tcp_owner(local, peer).unwrap(), None, "{at}: closed");
        }
    }

    /// Regression: where the kernel has no sock_diag, a user with many sockets slowed the
    /// acceptance of connections down.
    #[test]
    fn work_takes_a_part_of_the_time() {
        use std::time::Duration;
        let budget = Budget::new();
        let work = || std::thread::sleep(Duration::from_millis(20));
        assert_eq!(budget.spend(work), Some(()));
        assert_eq!(budget.spend(work), None);
        *budget.0.lock().unwrap() = Some(Instant::now());
        assert_eq!(budget.spend(work), Some(()));
    }

    #[test]
    fn the_owners_of_a_datagram_socket_are_found_by_its_address() {
        let own = rustix::process::geteuid().as_raw();
        let owners = |from: SocketAddr, to: SocketAddr| udp_owners(from, to, |_| true).unwrap();
        let ours = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = ours.local_addr().unwrap();
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let socket = UdpSocket::bind(at).unwrap();
            let from = ([127, 0, 0, 1], socket.local_addr().unwrap().port()).into();
            assert_eq!(owners(from, to), [own], "{at}");
            assert_eq!(udp_owners_listed(from).unwrap(), [own], "{at}");
            if at != "[::]:0" {
                socket.connect(to).unwrap();
                assert_eq!(owners(from, to), [own], "{at}: connected");
            }
            drop(socket);
            assert_eq!(owners(from, to), [0; 0], "{at}: closed");
        }
    }

    /// Several sockets may have a port: each may have sent.
    #[test]
    fn all_owners_of_a_port_count_once_the_first_is_trusted() {
        let shared = |at: &str| {
            use rustix::net::sockopt::set_socket_reuseaddr;
            use rustix::net::{AddressFamily, SocketType, bind, socket};
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
            set_socket_reuseaddr(&socket, true).unwrap();
            bind(&socket, &at.parse::<SocketAddr>().unwrap()).unwrap();
            UdpSocket::from(socket)
        };
        let first = shared("127.0.0.1:0");
        let port = first.local_addr().unwrap().port();
        let _others = [shared(&format!("127.0.0.1:{port}")), shared(&format!("0.0.0.0:{port}"))];
        let from = ([127, 0, 0, 1], port).into();
        let to = ([127, 0, 0, 1], 9).into();
        assert_eq!(udp_owners(from, to, |_| true).unwrap().len(), 3);
        assert_eq!(udp_owners(from, to, |_| false).unwrap().len(), 1);
    }

    #[test]
    fn other_users_have_the_roles_that_they_were_given() {
        let mut roles = LocalRoles::default();
        roles.give(990, Role::Viewer);
        roles.give(991, Role::Responder);
        assert_eq!(roles.of(0, 1000), Role::ALL);
        assert_eq!(roles.of(1000, 1000), Role::ALL);
        assert_eq!(roles.of(990, 1000), [Role::Viewer]);
        assert_eq!(roles.of(991, 1000), [Role::Responder]);
        assert_eq!(roles.of(65534, 1000), []);
    }
}

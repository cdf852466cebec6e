//! Users of this host at the other end of a loopback socket, by the kernel's tables of sockets
//! (proc(5), /proc/net/tcp and the like). A socket belongs to the user that created it.

use std::io;
use std::net::SocketAddr;

use procfs::net::{TcpNetEntry, TcpState, UdpNetEntry};

use super::Role;

/// Root.
const ROOT: u32 = 0;

/// The user that owns the other end of the loopback connection between our address `local` and
/// `peer`; `None` if there is no such connection any more.
///
/// The answer holds if our end is still connected afterwards: until then no other socket can have
/// the peer's address.
pub fn tcp_owner(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let (local, peer) = (canonical(local), canonical(peer));
    let is_peer = |entry: &TcpNetEntry| {
        canonical(entry.local_address) == peer
            && canonical(entry.remote_address) == local
            && entry.state == TcpState::Established
            // A socket that its process has closed has neither inode nor owner.
            && entry.inode != 0
    };
    let mut entries = procfs::net::tcp().map_err(io::Error::other)?;
    if !entries.iter().any(is_peer) {
        // Without IPv6 there is no such table.
        entries = procfs::net::tcp6().unwrap_or_default();
    }
    Ok(entries.iter().find(|entry| is_peer(entry)).map(|entry| entry.uid))
}

/// The users of all sockets of this host that may have sent a datagram from loopback address
/// `from`.
pub fn udp_owners(from: SocketAddr) -> io::Result<Vec<u32>> {
    let from = canonical(from);
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
            // The other way round it is our end of the same connection.
            assert_eq!(tcp_owner(peer, local).unwrap(), Some(own), "{at}");
            drop(client);
            assert_eq!(tcp_owner(local, peer).unwrap(), None, "{at}: closed");
        }
    }

    #[test]
    fn the_owners_of_a_datagram_socket_are_found_by_its_address() {
        let own = rustix::process::geteuid().as_raw();
        for at in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let socket = UdpSocket::bind(at).unwrap();
            let port = socket.local_addr().unwrap().port();
            assert_eq!(udp_owners(([127, 0, 0, 1], port).into()).unwrap(), [own], "{at}");
            drop(socket);
            assert_eq!(udp_owners(([127, 0, 0, 1], port).into()).unwrap(), [0; 0], "{at}");
        }
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

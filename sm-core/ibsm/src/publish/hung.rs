//! Finds out whether the process of a responder that hangs has ended: then its host refuses what is
//! sent to its address, by ICMP. A process that is stopped keeps its socket.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::observe::{Hung, Responders};

/// How often each is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// Sends empty datagrams, which responders ignore. As many sockets as responders may hang.
#[derive(Debug, Default)]
pub(super) struct Probes {
    sockets: HashMap<u64, UdpSocket>,
    due: Option<Instant>,
}

impl Probes {
    /// Removes those whose process has ended from the responders that hang.
    pub(super) fn follow(&mut self, now: Instant, responders: &Responders) {
        let hung = responders.hung();
        self.sockets.retain(|id, _| hung.iter().any(|one| one.id == *id));
        if hung.is_empty() || self.due.is_some_and(|due| now < due) {
            return;
        }
        self.due = Some(now + INTERVAL);
        for one in hung.iter() {
            if !self.sockets.contains_key(&one.id)
                && let Some(socket) = connected(one)
            {
                self.sockets.insert(one.id, socket);
            }
            if self.sockets.get(&one.id).is_some_and(is_refused) {
                tracing::info!(responder = format_args!("{:#x}", one.id), "its process has ended");
                responders.end_hang(one.id);
            }
        }
    }
}

/// A socket that learns what the host answers; `None` if there is no address, or no such network.
fn connected(hung: &Hung) -> Option<UdpSocket> {
    let to = *hung.front_door.first()?;
    let from: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// Sends; returns whether the host has refused this datagram or one before.
fn is_refused(socket: &UdpSocket) -> bool {
    let is_refusal = |failure: std::io::Error| failure.kind() == ErrorKind::ConnectionRefused;
    let before = socket.take_error().ok().flatten().is_some_and(is_refusal);
    before || socket.send(&[]).is_err_and(is_refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_refuses_what_is_sent_says_that_the_process_has_ended() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let hung = Hung { id: 7, front_door: [socket.local_addr().unwrap()].into() };
        let probe = connected(&hung).unwrap();
        assert!(!is_refused(&probe) && !is_refused(&probe), "it reads nothing, but is there");
        drop(socket);
        // Over loopback, the host answers at once.
        let refused = (0..2).filter(|_| is_refused(&probe)).count();
        assert_eq!(refused, 1);
    }
}

//! Finds out whether the process of a responder that hangs has ended: then its host refuses what is
//! sent to its address, by ICMP. A process that is stopped keeps its socket.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::observe::{Hung, Responders};

/// How often some of them are asked.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many are asked at a time, in turn: each has a socket until it is asked again.
const PROBES_MAX: usize = 32;

/// Sends empty datagrams, which responders ignore.
#[derive(Debug, Default)]
pub(super) struct Probes {
    /// Those that were asked last.
    sockets: Vec<(u64, UdpSocket)>,
    /// How many were asked so far.
    asked: usize,
    due: Option<Instant>,
}

impl Probes {
    /// Removes those whose process has ended from the responders that hang.
    pub(super) fn follow(&mut self, now: Instant, responders: &Responders) {
        let hung = responders.hung();
        if hung.is_empty() {
            self.sockets.clear();
            return;
        }
        if self.due.is_some_and(|due| now < due) {
            return;
        }
        self.due = Some(now + INTERVAL);
        let hangs = |id: u64| hung.iter().any(|one| one.id == id);
        let mut ended = BTreeSet::new();
        for (id, socket) in self.sockets.drain(..) {
            if hangs(id) && is_refused(&socket) {
                ended.insert(id);
            }
        }
        let (first, count) = (self.asked % hung.len(), hung.len().min(PROBES_MAX));
        for one in hung.iter().cycle().skip(first).take(count) {
            match connected(one) {
                Some(socket) if is_refused(&socket) => _ = ended.insert(one.id),
                Some(socket) => self.sockets.push((one.id, socket)),
                None => {}
            }
        }
        self.asked += count;
        for id in ended {
            tracing::info!(
                "the process of responder {id:#x}, which had stopped answering, has ended"
            );
            responders.end_hang(id);
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

    use sa_proto::proto::snapshot::Hello;

    use crate::observe::{RESPONDERS_MAX, Responder};

    /// Regression: each responder that hung had a socket for a day, which were more descriptors
    /// than were left.
    #[test]
    fn few_are_asked_at_a_time_and_all_in_turn() {
        let responders = Responders::default();
        let gone = || UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut now = Instant::now();
        let mut expected = 0;
        for id in 1..=RESPONDERS_MAX as u64 {
            let front_door = vec![gone()];
            let hello = Hello { responder_id: id, front_door, ..Hello::default() };
            expected += usize::from(responders.enter(&Responder::new(&hello, None, None, now, id)));
            responders.note_hung(id);
            responders.leave(id);
        }
        assert_eq!(responders.hung().len(), expected);
        let mut probes = Probes::default();
        // Another test may have one of the addresses.
        for _ in 0..3 * expected.div_ceil(PROBES_MAX) {
            now += INTERVAL;
            probes.follow(now, &responders);
            assert!(probes.sockets.len() <= PROBES_MAX);
        }
        let left = responders.hung().len();
        assert!(left * 10 < expected, "{left} of {expected}");
    }

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

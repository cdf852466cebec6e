//! Programs of this host that send envelopes: root's and our own user's are trusted. The kernel
//! knows the owner of a socket by its address.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sa_proto::trust::local;

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

    /// Ports of programs that were trusted when they were looked up last.
    pub(super) fn trusted_ports(&self) -> impl Iterator<Item = u16> {
        let trusted = self.favoured.0.iter().filter(|(_, _, is_trusted)| *is_trusted);
        trusted.map(|(address, ..)| address.port())
    }

    pub(super) fn new(own: u32, at: SocketAddr, owners: Owners) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
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
}

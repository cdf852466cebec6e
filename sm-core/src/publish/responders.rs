//! The responders that are connected, as a list that the front door reads without locks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use ib_mad::types::{Guid, Qpn};
use sa_proto::proto::snapshot::{self as proto, FabricPort, Hello};
use sa_proto::snapshot::Version;

use crate::manage::shard::PortUse;
use crate::observe::Reported;

/// Responders connected at a time, at most.
pub const RESPONDERS_MAX: usize = 256;
/// Addresses taken from a responder's greeting.
const FRONT_DOOR_MAX: usize = 8;
/// Bytes of a name or software version that are kept.
const TEXT_LEN_MAX: usize = 128;
/// Counters kept of a responder's statistics.
const STATS_MAX: usize = 128;

/// The command that starts a responder on this host, fed by the front door.
pub(crate) fn responder_command(publish: SocketAddr, has_tls: bool) -> String {
    let ip = match publish.ip() {
        ip if ip.is_unspecified() && ip.is_ipv6() => Ipv6Addr::LOCALHOST.into(),
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    };
    let at = SocketAddr::new(ip, publish.port());
    if has_tls {
        // Certificates are for names.
        let port = publish.port();
        return format!(
            "ibsa --sm https://HOST:{port} --tls-ca FILE --tls-cert FILE --tls-key FILE --transport udp"
        );
    }
    let insecure = if ip.is_loopback() { "" } else { " --insecure" };
    format!("ibsa --sm http://{at} --transport udp{insecure}")
}

/// A responder that is connected to the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Responder {
    /// Its identity, stable over its restarts.
    pub id: u64,
    /// Its name, for people.
    pub name: Arc<str>,
    /// Name and version of its software.
    pub software: Arc<str>,
    /// UDP addresses that the front door may send requests to.
    pub front_door: Arc<[SocketAddr]>,
    /// GUID of its fabric port and the QP that it answers on, if it has one.
    pub port: Option<(Guid, Qpn)>,
    /// What that port is for.
    pub usage: PortUse,
    /// What it answers from, by its own word; `None` while it has nothing.
    pub serving: Option<Version>,
    /// When it connected.
    pub since: Instant,
    /// How long it took from the announcement of what it answers from until it did.
    pub lag: Option<Duration>,
    /// Totals that it reported last.
    pub stats: Arc<[(String, u64)]>,
    /// What it reported of its work last, for [`observe`](crate::observe).
    pub(crate) figures: Option<Arc<Reported>>,
    /// Tells its connections apart.
    connection: u64,
}

impl Responder {
    /// Takes what a responder says of itself; an unspecified address of the front door becomes
    /// that of its end of the connection.
    pub(crate) fn new(
        hello: &Hello,
        serving: Option<Version>,
        peer: Option<IpAddr>,
        since: Instant,
        connection: u64,
    ) -> Self {
        let front_door = hello.front_door.iter().filter_map(|text| address(text, peer));
        Self {
            id: hello.responder_id,
            name: shortened(&hello.name).into(),
            software: shortened(&hello.software).into(),
            front_door: front_door.take(FRONT_DOOR_MAX).collect(),
            port: hello.port.map(|port| (Guid(port.guid), Qpn(port.qpn & 0xFF_FFFF))),
            usage: hello.port.map(usage).unwrap_or_default(),
            serving,
            since,
            lag: None,
            stats: Arc::default(),
            figures: None,
            connection,
        }
    }
}

impl Responder {
    /// Whether it only follows the snapshot: nothing it was told leads queries to it.
    pub fn is_client(&self) -> bool {
        self.front_door.is_empty() && self.port.is_none()
    }

    /// The connection that it is on.
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }
}

/// What a port is for, by the word of its responder.
fn usage(port: FabricPort) -> PortUse {
    match port.r#use() {
        proto::PortUse::Shared => PortUse::Shared,
        proto::PortUse::Dedicated => PortUse::Dedicated,
        proto::PortUse::Spare => PortUse::Spare,
    }
}

fn address(text: &str, peer: Option<IpAddr>) -> Option<SocketAddr> {
    let Ok(mut address) = text.parse::<SocketAddr>() else {
        tracing::warn!(address = shortened(text), "not an IP address and port; not used");
        return None;
    };
    if address.ip().is_unspecified() {
        address.set_ip(peer?.to_canonical());
    }
    Some(address)
}

fn shortened(text: &str) -> &str {
    let mut len = text.len().min(TEXT_LEN_MAX);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

/// The list. Clones show the same one.
#[derive(Clone, Debug, Default)]
pub struct Responders {
    list: Arc<ArcSwap<Vec<Responder>>>,
}

impl Responders {
    /// The list as it is now, ascending by identity.
    pub fn load(&self) -> Guard<Arc<Vec<Responder>>> {
        self.list.load()
    }

    /// Enters a responder, in place of an earlier connection of its; `false` if there are too
    /// many.
    pub(super) fn enter(&self, responder: &Responder) -> bool {
        let mut entered = false;
        self.list.rcu(|list| {
            let mut list = Vec::clone(list);
            list.retain(|other| other.id != responder.id);
            entered = list.len() < RESPONDERS_MAX;
            if entered {
                let at = list.partition_point(|other| other.id < responder.id);
                list.insert(at, responder.clone());
            }
            list
        });
        entered
    }

    /// Changes the entry of a connection; `false` if a later connection took its place.
    pub(super) fn update(&self, connection: u64, change: impl Fn(&mut Responder)) -> bool {
        let mut found = false;
        self.list.rcu(|list| {
            let mut list = Vec::clone(list);
            let entry = list.iter_mut().find(|entry| entry.connection == connection);
            found = entry.is_some();
            entry.map(&change);
            list
        });
        found
    }

    /// Takes out the entry of a connection, unless a later one took its place. Whether that was the
    /// last one that answers queries.
    pub(super) fn leave(&self, connection: u64) -> bool {
        let mut is_last = false;
        self.list.rcu(|list| {
            let answering = |list: &[Responder]| list.iter().any(|entry| !entry.is_client());
            let answered = answering(list);
            let mut list = Vec::clone(list);
            list.retain(|entry| entry.connection != connection);
            is_last = answered && !answering(&list);
            list
        });
        is_last
    }
}

/// The counters of a report, as far as they are kept.
pub(super) fn stats(counters: Vec<proto::Counter>) -> Arc<[(String, u64)]> {
    let counters = counters.into_iter().take(STATS_MAX);
    counters.map(|counter| (shortened(&counter.name).to_owned(), counter.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responder(id: u64, connection: u64) -> Responder {
        let hello = Hello {
            responder_id: id,
            name: "é".repeat(200),
            front_door: vec!["0.0.0.0:4791".into(), "host:1".into(), "192.0.2.7:9".into()],
            ..Hello::default()
        };
        let peer = Some("::ffff:192.0.2.1".parse().unwrap());
        Responder::new(&hello, None, peer, Instant::now(), connection)
    }

    #[test]
    fn an_unspecified_address_becomes_the_connections() {
        let responder = responder(1, 1);
        let expected: [SocketAddr; 2] =
            ["192.0.2.1:4791".parse().unwrap(), "192.0.2.7:9".parse().unwrap()];
        assert_eq!(*responder.front_door, expected);
        assert_eq!(responder.name.len(), TEXT_LEN_MAX);
    }

    #[test]
    fn a_new_connection_replaces_the_old_one_whose_end_then_changes_nothing() {
        let responders = Responders::default();
        assert!(responders.enter(&responder(7, 1)));
        assert!(responders.enter(&responder(7, 2)));
        responders.leave(1);
        assert!(!responders.update(1, |_| {}));
        let version = Version { fabric_generation: 5, ..Version::NONE };
        assert!(responders.update(2, |entry| entry.serving = Some(version)));
        assert_eq!(responders.load().len(), 1);
        assert_eq!(responders.load()[0].serving, Some(version));
        responders.leave(2);
        assert!(responders.load().is_empty());
    }

    #[test]
    fn the_list_is_bounded_and_sorted() {
        let responders = Responders::default();
        for id in (0..RESPONDERS_MAX as u64).rev() {
            assert!(responders.enter(&responder(id, id + 1)));
        }
        assert!(!responders.enter(&responder(1000, 1000)));
        assert!(responders.enter(&responder(5, 2000)), "it is in the list already");
        assert!(responders.load().is_sorted_by_key(|entry| entry.id));
    }
}

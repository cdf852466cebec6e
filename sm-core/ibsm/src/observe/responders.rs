//! The list of connected responders, which the front door reads without locks. `publish` maintains
//! it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use ib_mad::text::{cut, printable};
use ib_mad::types::{Guid, Qpn};
use sa_proto::crowd::Share;
use sa_proto::log_limit::LogLimit;
use sa_proto::proto::snapshot::{self as proto, FabricPort, Hello};
use sa_proto::snapshot::{RegistryVersion, Session, Version};
use sa_proto::state::{DOCUMENTS_MAX, StateVersion};

use super::Reported;
use sm_core::manage::shard::PortUse;

/// Largest number of responders connected at a time.
pub const RESPONDERS_MAX: usize = 256;
/// Responders of one host or local user at a time, so that none shuts out those of others. Root and
/// the user of this SM have no share.
pub(crate) const SHARE_MAX: usize = 64;
/// Largest number of addresses accepted from a responder's greeting.
const FRONT_DOOR_MAX: usize = 8;
/// Longest name or software version kept, bytes.
const TEXT_LEN_MAX: usize = 128;
/// Largest number of counters kept of a responder's statistics.
const STATS_MAX: usize = 128;

/// The command that starts a responder on this host, to which the front door sends.
pub(crate) fn responder_command(publish: SocketAddr, has_tls: bool) -> String {
    let ip = match publish.ip() {
        ip if ip.is_unspecified() && ip.is_ipv6() => Ipv6Addr::LOCALHOST.into(),
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    };
    let at = SocketAddr::new(ip, publish.port());
    if has_tls {
        // Certificates are issued for names.
        let port = publish.port();
        return format!(
            "ibsa --sm https://HOST:{port} --tls-ca FILE --tls-cert FILE --tls-key FILE \
             --transport udp"
        );
    }
    let insecure = if ip.is_loopback() { "" } else { " --insecure" };
    format!("ibsa --sm http://{at} --transport udp{insecure}")
}

/// Where a responder connected from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its address.
    pub ip: IpAddr,
    /// Whether it is known who it is: by a certificate, or as a user of this host.
    pub is_identified: bool,
    /// What it is counted by; `None` if it is of root or the user of this SM.
    pub share: Option<Share>,
}

/// A responder's answer to an inquiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holds {
    /// Number of the inquiry.
    pub(crate) number: u64,
    /// The registry that it answers from.
    pub(crate) held: RegistryVersion,
    /// Whether it has had no update of that session since it was started: its process before may
    /// have acknowledged more.
    pub(crate) restarted: bool,
    /// The highest sequence number in that session that it has acknowledged to a client; 0 if none
    /// is known.
    pub(crate) acknowledged: u64,
}

impl Holds {
    /// The last registry that it has acknowledged a write of, as far as is known.
    pub(crate) fn acknowledged(&self) -> RegistryVersion {
        RegistryVersion { sequence: self.acknowledged, ..self.held }
    }
}

/// A responder connected to the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Responder {
    /// Its identity, stable over its restarts.
    pub id: u64,
    /// Its name, for logs and displays.
    pub name: Arc<str>,
    /// Name and version of its software.
    pub software: Arc<str>,
    /// UDP addresses to which the front door may send requests.
    pub front_door: Arc<[SocketAddr]>,
    /// The token in what comes from there; 0 if it has none, as of an older version.
    pub front_door_token: u64,
    /// If it is at the SM's port: the UDP address from which it passes requests to others.
    pub spill_from: Option<SocketAddr>,
    /// The token in what comes from there; 0 if it has none.
    pub spill_token: u64,
    /// GUID of its fabric port, and the QP on which it answers, if it has one.
    pub port: Option<(Guid, Qpn)>,
    /// The use of that port.
    pub usage: PortUse,
    /// The version that it reports to serve; `None` before the first. It may be of another
    /// manager's session.
    pub serving: Option<Version>,
    /// When it connected.
    pub since: Instant,
    /// Time from the announcement of the version it serves until it served it.
    pub lag: Option<Duration>,
    /// The totals that it last reported.
    pub stats: Arc<[(String, u64)]>,
    /// The figures that it last reported.
    pub(crate) figures: Option<Arc<Reported>>,
    /// The last inquiry that it answered.
    pub(crate) holds: Option<Holds>,
    /// Set if it is a subnet manager that follows the registry.
    pub follower: Option<Follower>,
    /// Operators' files of such a manager that differ from those of this SM; `None` before it has
    /// compared them.
    pub files_differ: Option<Arc<[String]>>,
    /// What it is counted by, if its number is limited.
    share: Option<Share>,
    /// Distinguishes its connections.
    connection: u64,
}

/// State of a subnet manager that follows the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// GUID of its port.
    pub sm_guid: Guid,
    /// The version that it has stored; `None` before its first report.
    pub stored: Option<RegistryVersion>,
    /// The last time at which it had stored everything published until then; `None` if never.
    pub stored_at: Option<Instant>,
    /// The state besides the registry that it has stored; `None` if it takes none.
    pub state: Option<StateVersion>,
    /// Whether it is in step: it has stored everything published until recently.
    pub in_step: bool,
    /// Since when that has been so.
    pub since: Instant,
    /// Whether writes are acknowledged only once it has stored them.
    pub awaited: bool,
    /// If it was the master when this SM became one: number of the last inquiry after which it
    /// acknowledged nothing, and its registry then.
    pub(crate) sealed: Option<(u64, RegistryVersion)>,
}

impl Responder {
    /// Creates an entry from a responder's greeting. An unspecified front-door address is replaced
    /// by the remote address of the connection. A responder that is not identified may name no
    /// other address, and one of a local user none off this host: the front door would send there.
    /// Only a responder of this host can be at the SM's port, and name an address to pass requests
    /// on from.
    pub(crate) fn new(
        hello: &Hello,
        serving: Option<Version>,
        peer: Option<Origin>,
        since: Instant,
        connection: u64,
    ) -> Self {
        // One that is refused is logged.
        let announced = hello.front_door.iter().take(FRONT_DOOR_MAX);
        Self {
            id: hello.responder_id,
            name: printable(cut(&hello.name, TEXT_LEN_MAX)).into(),
            software: printable(cut(&hello.software, TEXT_LEN_MAX)).into(),
            front_door: announced.filter_map(|text| address(text, peer)).collect(),
            front_door_token: hello.front_door_token,
            spill_from: spill_from(&hello.spill_from, peer),
            spill_token: hello.spill_token,
            port: hello.port.map(|port| (Guid(port.guid), Qpn(port.qpn & 0xFF_FFFF))),
            usage: hello.port.map(usage).unwrap_or_default(),
            serving,
            since,
            lag: None,
            stats: Arc::default(),
            figures: None,
            holds: None,
            follower: (hello.sm_guid != 0).then_some(Follower {
                sm_guid: Guid(hello.sm_guid),
                stored: None,
                state: hello.takes_state.then(StateVersion::default),
                in_step: false,
                since,
                awaited: false,
                stored_at: None,
                sealed: None,
            }),
            files_differ: None,
            share: peer.and_then(|peer| peer.share),
            connection,
        }
    }
}

impl Responder {
    /// Whether it only follows the snapshot: it announced neither a front-door address nor a port,
    /// so no queries reach it.
    pub fn is_client(&self) -> bool {
        self.front_door.is_empty() && self.port.is_none()
    }

    /// Whether it answers from a snapshot of this session. A responder that serves the session of
    /// another manager knows nothing of this manager's part of the fabric.
    pub fn serves(&self, session: Session) -> bool {
        self.serving.is_some_and(|serving| serving.session == session)
    }

    /// Whether the front door of the manager with this session may choose it: it serves that
    /// session, and has an address.
    pub fn answers(&self, session: Session) -> bool {
        self.serves(session) && !self.front_door.is_empty()
    }

    /// Whether it follows a manager with a higher session instead.
    pub fn is_elsewhere(&self, session: Session) -> bool {
        self.serving.is_some_and(|serving| serving.session > session)
    }

    /// Number of its connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }
}

/// The use of a port, as its responder announced it.
fn usage(port: FabricPort) -> PortUse {
    match port.r#use() {
        proto::PortUse::Shared => PortUse::Shared,
        proto::PortUse::Dedicated => PortUse::Dedicated,
        proto::PortUse::Spare => PortUse::Spare,
    }
}

/// Lines about announced addresses.
static LINES: LogLimit = LogLimit::new("announced addresses", 64, Duration::from_secs(1));

fn address(text: &str, peer: Option<Origin>) -> Option<SocketAddr> {
    let Ok(mut address) = text.parse::<SocketAddr>() else {
        if LINES.permits() {
            tracing::warn!(
                address = printable(cut(text, TEXT_LEN_MAX)),
                "responder announced an invalid front-door address; ignored"
            );
        }
        return None;
    };
    if address.ip().is_unspecified() {
        address.set_ip(peer?.ip.to_canonical());
    }
    let ip = address.ip().to_canonical();
    let is_own = peer.is_none_or(|peer| match peer {
        Origin { ip: from, is_identified: false, .. } => ip == from.to_canonical(),
        // A user of this host with role responder, other than root and our own, could not send as
        // this host's manager does.
        Origin { share: Some(Share::User(_)), .. } => ip.is_loopback(),
        _ => true,
    });
    if !is_own {
        if LINES.permits() {
            tracing::warn!(
                %address, responder = ?peer.map(|peer| peer.ip),
                "responder without a certificate announced a front-door address of another host; \
                 ignored"
            );
        }
        return None;
    }
    Some(address)
}

/// Where a responder passes requests on from; as it is announced, unspecified for this host.
fn spill_from(text: &str, peer: Option<Origin>) -> Option<SocketAddr> {
    let is_local = peer.is_some_and(|peer| peer.ip.to_canonical().is_loopback());
    text.parse().ok().filter(|_| is_local)
}

/// A responder that stopped reporting, so that this SM closed its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hung {
    /// Its identity.
    pub id: u64,
    /// Its addresses: its host refuses what is sent there once the process has ended.
    pub front_door: Arc<[SocketAddr]>,
}

/// The list. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Responders {
    list: Arc<ArcSwap<Vec<Responder>>>,
    /// Those that hang, the first [`RESPONDERS_MAX`]: none of them is in the list.
    hung: Arc<ArcSwap<Vec<Hung>>>,
}

impl Responders {
    /// The current list, ascending by identity.
    pub fn load(&self) -> Guard<Arc<Vec<Responder>>> {
        self.list.load()
    }

    /// The subnet manager at this port, if it follows the registry.
    pub fn follower(&self, guid: Guid) -> Option<Follower> {
        let list = self.load();
        let mut followers = list.iter().filter_map(|entry| entry.follower);
        followers.find(|follower| follower.sm_guid == guid)
    }

    /// Adds a responder, replacing its earlier connection; returns `false` if there are too many,
    /// in all or of its host or user.
    pub(crate) fn enter(&self, responder: &Responder) -> bool {
        let mut entered = false;
        self.list.rcu(|list| {
            let mut list = Vec::clone(list);
            list.retain(|other| other.id != responder.id);
            let is_beside = |other: &&Responder| other.share == responder.share;
            let beside = responder.share.map_or(0, |_| list.iter().filter(is_beside).count());
            entered = list.len() < RESPONDERS_MAX && beside < SHARE_MAX;
            if entered {
                let at = list.partition_point(|other| other.id < responder.id);
                list.insert(at, responder.clone());
            }
            list
        });
        if entered {
            self.end_hang(responder.id);
        }
        entered
    }

    /// The responders that hang.
    pub fn hung(&self) -> Guard<Arc<Vec<Hung>>> {
        self.hung.load()
    }

    /// The responder of a connection is silent, and its connection is about to be closed.
    pub(crate) fn note_hung(&self, connection: u64) {
        let list = self.list.load();
        let entry = list.iter().find(|entry| entry.connection == connection);
        let Some(entry) = entry.filter(|entry| !entry.is_client()) else { return };
        let one = Hung { id: entry.id, front_door: entry.front_door.clone() };
        self.hung.rcu(|hung| {
            let mut hung = Vec::clone(hung);
            hung.retain(|other| other.id != one.id);
            if hung.len() < RESPONDERS_MAX {
                hung.push(one.clone());
            }
            hung
        });
    }

    /// A responder reports again, or its process has ended.
    pub(crate) fn end_hang(&self, id: u64) {
        if self.hung.load().iter().any(|one| one.id == id) {
            self.hung
                .rcu(|hung| hung.iter().filter(|one| one.id != id).cloned().collect::<Vec<_>>());
        }
    }

    /// Changes the entry of a connection; returns `false` if a later connection replaced it.
    pub(crate) fn update(&self, connection: u64, change: impl Fn(&mut Responder)) -> bool {
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

    /// Removes the entry of a connection, unless a later one replaced it. Returns whether it was
    /// the last responder that answers queries.
    pub(crate) fn leave(&self, connection: u64) -> bool {
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

/// The counters of a report, within the limit.
pub(crate) fn stats(counters: Vec<proto::Counter>) -> Arc<[(String, u64)]> {
    let counters = counters.into_iter().take(STATS_MAX);
    counters.map(|counter| (printable(cut(&counter.name, TEXT_LEN_MAX)), counter.value)).collect()
}

/// Names of files that differ, within the limits.
pub(crate) fn file_names(names: Vec<String>) -> Arc<[String]> {
    names.into_iter().take(DOCUMENTS_MAX).map(|name| printable(cut(&name, TEXT_LEN_MAX))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responder(id: u64, connection: u64) -> Responder {
        greeted(id, connection, true)
    }

    fn greeted(id: u64, connection: u64, is_identified: bool) -> Responder {
        let ip = "::ffff:192.0.2.1".parse().unwrap();
        let share = Some(Share::of_host(ip));
        greeted_from(Origin { ip, is_identified, share }, id, connection)
    }

    /// A responder of another host.
    fn of_host(ip: &str, id: u64, connection: u64) -> Responder {
        let ip = ip.parse().unwrap();
        let share = Some(Share::of_host(ip));
        greeted_from(Origin { ip, is_identified: true, share }, id, connection)
    }

    fn greeted_from(peer: Origin, id: u64, connection: u64) -> Responder {
        let hello = Hello {
            responder_id: id,
            name: "é".repeat(200),
            front_door: vec!["0.0.0.0:4791".into(), "host:1".into(), "192.0.2.7:9".into()],
            ..Hello::default()
        };
        Responder::new(&hello, None, Some(peer), Instant::now(), connection)
    }

    #[test]
    fn an_unspecified_address_becomes_the_connections() {
        let responder = responder(1, 1);
        let expected: [SocketAddr; 2] =
            ["192.0.2.1:4791".parse().unwrap(), "192.0.2.7:9".parse().unwrap()];
        assert_eq!(*responder.front_door, expected);
        assert_eq!(responder.name.len(), TEXT_LEN_MAX);
    }

    /// Regression: each of a million invalid addresses in a greeting had a line in the log.
    #[test]
    fn a_limited_number_of_addresses_is_looked_at() {
        let mut front_door = vec!["host:1".to_owned(); FRONT_DOOR_MAX];
        front_door.push("192.0.2.7:9".into());
        let hello = Hello { responder_id: 1, front_door, ..Hello::default() };
        assert!(Responder::new(&hello, None, None, Instant::now(), 1).front_door.is_empty());
    }

    /// Regression: a local user with role responder could have the front door send anywhere.
    #[test]
    fn a_responder_of_a_local_user_names_no_other_host() {
        let of = |share| {
            let peer = Origin { ip: [127, 0, 0, 1].into(), is_identified: true, share };
            greeted_from(peer, 1, 1).front_door.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(Some(Share::User(65534))), ["127.0.0.1:4791"]);
        assert_eq!(of(None), ["127.0.0.1:4791", "192.0.2.7:9"], "root, or our own user");
    }

    /// Regression: the front door could be made to send to any address.
    #[test]
    fn a_responder_that_is_not_identified_names_its_own_host_only() {
        let expected: [SocketAddr; 1] = ["192.0.2.1:4791".parse().unwrap()];
        assert_eq!(*greeted(1, 1, false).front_door, expected);
    }

    #[test]
    fn a_new_connection_replaces_the_old_one_whose_end_then_changes_nothing() {
        let responders = Responders::default();
        assert!(responders.enter(&responder(7, 1)));
        assert!(responders.enter(&responder(7, 2)));
        assert!(!responders.leave(1));
        assert!(!responders.update(1, |_| {}));
        let version = Version { fabric_generation: 5, ..Version::NONE };
        assert!(responders.update(2, |entry| entry.serving = Some(version)));
        assert_eq!(responders.load().len(), 1);
        assert_eq!(responders.load()[0].serving, Some(version));
        assert!(responders.leave(2), "the last that answers");
        assert!(responders.load().is_empty());
    }

    #[test]
    fn a_responder_hangs_until_it_connects_again_or_its_process_ends() {
        let responders = Responders::default();
        let hung = || responders.hung().iter().map(|one| one.id).collect::<Vec<_>>();
        for id in [7, 8] {
            assert!(responders.enter(&responder(id, id)));
            responders.note_hung(id);
            responders.leave(id);
        }
        responders.note_hung(9);
        assert_eq!(hung(), [7, 8], "9 is no connection");
        assert!(responders.enter(&responder(7, 17)));
        assert_eq!(hung(), [8]);
        responders.end_hang(8);
        assert!(hung().is_empty());
    }

    /// A standby that follows the registry answers no client.
    #[test]
    fn a_follower_does_not_count_as_the_last_that_answers() {
        let responders = Responders::default();
        let follower = Responder { front_door: Arc::default(), ..responder(1, 1) };
        assert!(responders.enter(&follower) && responders.enter(&responder(2, 2)));
        assert!(responders.leave(2));
        assert!(!responders.leave(1));
    }

    #[test]
    fn the_command_that_starts_a_responder_fits_where_we_listen() {
        let command = |at: &str, tls| responder_command(at.parse().unwrap(), tls);
        let local = "ibsa --sm http://127.0.0.1:7471 --transport udp";
        assert_eq!(command("127.0.0.1:7471", false), local);
        assert_eq!(command("0.0.0.0:7471", false), local);
        assert_eq!(command("[::]:1", false), "ibsa --sm http://[::1]:1 --transport udp");
        assert!(command("192.0.2.1:1", false).ends_with("192.0.2.1:1 --transport udp --insecure"));
        let tls = command("0.0.0.0:7471", true);
        assert!(tls.starts_with("ibsa --sm https://HOST:7471 --tls-ca FILE"), "{tls}");
    }

    /// Regression: a host that connected as 256 responders shut out all others, and so did a user
    /// of this host with the role of a responder.
    #[test]
    fn a_host_or_user_has_a_share_of_the_list_and_trusted_users_all() {
        let from = |ip: &str, share: Option<Share>, count: u64| {
            let responders = Responders::default();
            let peer = Origin { ip: ip.parse().unwrap(), is_identified: true, share };
            let enter = |id| responders.enter(&greeted_from(peer, id, id));
            let entered = (0..count).filter(|&id| enter(id)).count();
            assert!(responders.enter(&of_host("192.0.2.2", 1000, 1000)));
            let root = Origin { ip: [127, 0, 0, 1].into(), is_identified: true, share: None };
            assert!(responders.enter(&greeted_from(root, 1001, 1001)));
            entered
        };
        let all = RESPONDERS_MAX as u64;
        let host = Share::of_host([192, 0, 2, 1].into());
        assert_eq!(from("192.0.2.1", Some(host), all), SHARE_MAX);
        assert_eq!(from("127.0.0.1", Some(Share::User(990)), all), SHARE_MAX);
        assert_eq!(from("127.0.0.1", None, 200), 200);
    }

    #[test]
    fn the_list_is_bounded_and_sorted() {
        let responders = Responders::default();
        for id in (0..RESPONDERS_MAX as u64).rev() {
            let ip = format!("192.0.2.{}", id % 8);
            assert!(responders.enter(&of_host(&ip, id, id + 1)));
        }
        assert!(!responders.enter(&responder(1000, 1000)));
        assert!(responders.enter(&responder(5, 2000)), "it is in the list already");
        assert!(responders.load().is_sorted_by_key(|entry| entry.id));
    }
}

//! The ports of this host, and what is answered to a datagram of the kernel's.
//!
//! A request for a path is always answered: with the path, or with the error by which the kernel
//! asks the SA at once. Silence would cost it its time limit, 2 s. There is no answer to what is no
//! such request: an error would be meaningless, and requests for IP addresses are for other agents
//! that listen at the same time.

use std::fmt;
use std::time::Instant;

use super::netlink::{Message, Messages, NetlinkError, Operation, write_error, write_path};
use super::port::{Port, Reason};

/// Maximum number of ports.
pub const PORTS_MAX: usize = 64;

/// The ports, and counts of requests.
#[derive(Debug, Default)]
pub struct Host {
    ports: Vec<(Name, Port)>,
    counters: Counters,
}

/// A port as the kernel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The device, such as `mlx5_0`.
    pub device: String,
    /// Number of the port on it.
    pub port: u8,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.device, self.port)
    }
}

/// Counts of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Answered with a path.
    pub answered: u64,
    /// Left to the SA, by [`Reason::ALL`].
    pub left: [u64; Reason::ALL.len()],
    /// Messages without an answer: not requests for paths.
    pub ignored: u64,
    /// Datagrams that end in something that is no message.
    pub malformed: u64,
    /// Times that requests were lost because there was no room.
    pub lost: u64,
}

impl Counters {
    /// Left to the SA in all.
    pub fn left_to_sa(&self) -> u64 {
        self.left.iter().sum()
    }
}

impl Host {
    /// With these ports; those beyond [`PORTS_MAX`] are left out.
    pub fn new(ports: Vec<(Name, Port)>) -> Self {
        let mut this = Self { ports, counters: Counters::default() };
        this.ports.truncate(PORTS_MAX);
        this
    }

    /// The ports.
    pub fn ports(&self) -> &[(Name, Port)] {
        &self.ports
    }

    /// A port, by its position.
    pub fn port_mut(&mut self, at: usize) -> Option<&mut Port> {
        self.ports.get_mut(at).map(|(_, port)| port)
    }

    /// Counts so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Requests were lost before they could be read.
    pub fn count_lost(&mut self) {
        self.counters.lost += 1;
    }

    /// Appends the answers to the requests in a datagram.
    pub fn answer(&mut self, now: Instant, datagram: &[u8], answers: &mut Vec<u8>) {
        for message in Messages::new(datagram) {
            match message {
                Ok(message) if message.is_request && message.operation == Operation::Resolve => {
                    self.resolve(now, &message, answers);
                }
                Ok(_) | Err(NetlinkError::Client) => self.counters.ignored += 1,
                Err(_) => self.counters.malformed += 1,
            }
        }
    }

    fn resolve(&mut self, now: Instant, message: &Message<'_>, answers: &mut Vec<u8>) {
        let found = message.request().map_err(|_| Reason::Malformed).and_then(|asked| {
            let is_named = |(name, _): &&(Name, Port)| {
                name.device.as_bytes() == asked.device && name.port == asked.port
            };
            let (_, port) = self.ports.iter().find(is_named).ok_or(Reason::UnknownPort)?;
            Ok((asked.path_use, port.answer(now, &asked)?))
        });
        match found {
            Ok((path_use, record)) => {
                self.counters.answered += 1;
                write_path(answers, message.sequence, path_use, &record);
            }
            Err(reason) => {
                self.counters.left[reason as usize] += 1;
                write_error(answers, message.sequence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::netlink::kernel::{self, Taken};
    use crate::agent::netlink::{PathUse, Request};
    use crate::agent::ping::Pings;
    use crate::agent::port::{FENCED_FOR, STALE_AFTER, State, UpdateError};
    use crate::node::{CONTACT_MAX, HEARTBEAT};
    use ib_mad::types::{Gid, Guid, Lid, PKey};
    use ib_mad::wire::record::PathRecord;
    use sa_proto::proto::node as proto;
    use sa_proto::proto::node::update::Kind;
    use std::time::Duration;

    const PREFIX: u64 = 0xFEC0_0000_0000_0001;
    const OWN: u64 = 0x10;
    const ALIAS: u64 = 0x11;
    const OWN_LID: u16 = 40;

    fn gid(prefix: u64, guid: u64) -> Gid {
        Gid::new(prefix, Guid(guid))
    }

    /// As the responder sends it.
    fn sent(to: u64, pkey: u16, reversible: bool) -> [u8; 64] {
        let mut record = [0; 64];
        PathRecord::of_mut(&mut record)
            .set_dgid(gid(PREFIX, to))
            .set_dlid(Lid(7))
            .set_slid(Lid(1))
            .set_pkey(PKey(pkey))
            .set_reversible(reversible);
        record
    }

    /// As the kernel gets it.
    fn record(to: u64, pkey: u16, reversible: bool) -> [u8; 64] {
        let mut record = sent(to, pkey, reversible);
        PathRecord::of_mut(&mut record).set_sgid(gid(PREFIX, OWN)).set_slid(Lid(OWN_LID + 1));
        record
    }

    /// The manager was asked so long after the first ping.
    fn confirmed(after: Duration) -> Option<proto::Confirmation> {
        Some(proto::Confirmation { ping: Pings::FIRST, after_ms: after.as_millis() as i64 })
    }

    fn beat(session: u64, confirmation: Option<proto::Confirmation>) -> Kind {
        Kind::Heartbeat(proto::Heartbeat { session, generation: 2, confirmation })
    }

    fn asked() -> Request<'static> {
        Request {
            device: b"mlx5_0",
            port: 1,
            path_use: PathUse::Reversible,
            service_id: Some(100),
            dgid: Some(gid(PREFIX, 0x20)),
            sgid: Some(gid(PREFIX, OWN)),
            pkey: Some(PKey(0xffff)),
            qos_class: Some(0),
            tclass: None,
        }
    }

    fn update(port: &mut Port, now: Instant, kind: Kind) {
        port.handle_update(now, proto::Update { kind: Some(kind) }).unwrap();
    }

    fn current(records: u32) -> Kind {
        current_of(1, records)
    }

    fn current_of(session: u64, records: u32) -> Kind {
        let confirmation = confirmed(Duration::ZERO);
        let (generation, is_known) = (2, true);
        Kind::Current(proto::Current { session, generation, records, is_known, confirmation })
    }

    /// A host with one port that has paths to 0x20, and to 0x30 in one direction.
    fn host(now: Instant) -> Host {
        let name = Name { device: "mlx5_0".into(), port: 1 };
        let mut host = Host::new(vec![(name, Port::new(Guid(OWN)))]);
        let port = host.port_mut(0).unwrap();
        port.handle_connected(now, now);
        let terms = proto::Terms {
            subnet_prefix: PREFIX,
            sources: vec![OWN, ALIAS],
            service_ids: vec![
                proto::IdMatch { first: 10, last: 19, mask: 0 },
                proto::IdMatch { first: 0x7000, last: 0, mask: 0xf000 },
            ],
            qos_classes: vec![proto::Range { first: 5, last: 6 }],
            lid: u32::from(OWN_LID),
            switch_guid: 0x77,
        };
        update(port, now, Kind::Terms(terms));
        let records = [sent(0x20, 0xffff, true), sent(0x30, 0xffff, false)].concat();
        let changes = proto::Changes { destinations: vec![0x20, 0x30], records: records.into() };
        update(port, now, Kind::Changes(changes));
        update(port, now, current(2));
        host
    }

    fn ask(host: &mut Host, now: Instant, asked: &Request<'_>) -> Taken {
        let mut answers = Vec::new();
        host.answer(now, &kernel::request(9, asked), &mut answers);
        let taken = kernel::take(&answers, asked.path_use);
        assert_eq!((taken.len(), taken[0].0), (1, 9));
        taken[0].1
    }

    /// The reason for which the request is left to the SA.
    fn left(host: &mut Host, now: Instant, asked: &Request<'_>) -> Reason {
        let before = host.counters().clone();
        assert_eq!(ask(host, now, asked), Taken::AsksSa);
        let after = host.counters();
        assert_eq!(after.answered, before.answered);
        let is_counted =
            |reason: &Reason| after.left[*reason as usize] > before.left[*reason as usize];
        Reason::ALL.into_iter().find(is_counted).unwrap()
    }

    #[test]
    fn the_place_of_a_reason_is_that_of_its_counter() {
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
    }

    /// Regression: an agent looks for another responder after some time without its port; changes
    /// of the fabric that came more often counted as service, and the time began again.
    #[test]
    fn a_port_that_its_responder_lacks_stays_unserved_while_the_fabric_changes() {
        let now = Instant::now();
        let mut host = host(now);
        let port = host.port_mut(0).unwrap();
        assert!(port.is_served(now));
        let lacking = |records| match current(records) {
            Kind::Current(current) => Kind::Current(proto::Current { is_known: false, ..current }),
            kind => kind,
        };
        update(port, now, lacking(2));
        assert!(!port.is_served(now));
        update(port, now, Kind::Changing(proto::Changing {}));
        assert!(!port.is_served(now));
        update(port, now, current(2));
        assert!(port.is_served(now));
        update(port, now, Kind::Changing(proto::Changing {}));
        assert!(port.is_served(now));
    }

    #[test]
    fn an_answer_repeats_source_and_pkey() {
        let now = Instant::now();
        let mut host = host(now);
        assert_eq!(ask(&mut host, now, &asked()), Taken::Path(record(0x20, 0xffff, true)));
        let link_local = 0xFE80 << 48;
        let limited = Request {
            sgid: Some(gid(link_local, ALIAS)),
            dgid: Some(gid(link_local, 0x20)),
            pkey: Some(PKey(0x7fff)),
            ..asked()
        };
        let mut wanted = record(0x20, 0x7fff, true);
        PathRecord::of_mut(&mut wanted).set_sgid(gid(link_local, ALIAS));
        assert_eq!(ask(&mut host, now, &limited), Taken::Path(wanted));
    }

    #[test]
    fn what_the_table_does_not_answer_is_left_to_the_sa() {
        let now = Instant::now();
        let mut host = host(now);
        let mut left = |asked: Request<'_>| left(&mut host, now, &asked);
        let unknown = Some(gid(PREFIX, 0x99));
        assert_eq!(left(Request { device: b"mlx5_1", ..asked() }), Reason::UnknownPort);
        assert_eq!(left(Request { port: 2, ..asked() }), Reason::UnknownPort);
        assert_eq!(left(Request { pkey: None, ..asked() }), Reason::Incomplete);
        assert_eq!(left(Request { sgid: None, ..asked() }), Reason::Incomplete);
        assert_eq!(left(Request { dgid: None, ..asked() }), Reason::Incomplete);
        assert_eq!(left(Request { sgid: unknown, ..asked() }), Reason::OtherSource);
        let other = Some(gid(PREFIX + 1, OWN));
        assert_eq!(left(Request { sgid: other, ..asked() }), Reason::OtherSource);
        let other = Some(gid(PREFIX + 1, 0x20));
        assert_eq!(left(Request { dgid: other, ..asked() }), Reason::OtherSubnet);
        let group = Some(gid(0xFF12 << 48, 0x20));
        assert_eq!(left(Request { dgid: group, ..asked() }), Reason::OtherSubnet);
        for id in [10, 19, 0x7000, 0x7fff] {
            assert_eq!(left(Request { service_id: Some(id), ..asked() }), Reason::Qos, "{id}");
        }
        for class in [5, 6, 0x1005] {
            assert_eq!(left(Request { qos_class: Some(class), ..asked() }), Reason::Qos);
        }
        assert_eq!(left(Request { dgid: unknown, ..asked() }), Reason::NoPath);
        assert_eq!(left(Request { pkey: Some(PKey(1)), ..asked() }), Reason::NoPath);
    }

    #[test]
    fn a_path_without_reverse_path_serves_one_direction() {
        let now = Instant::now();
        let mut host = host(now);
        let asked = Request { dgid: Some(gid(PREFIX, 0x30)), ..asked() };
        assert_eq!(left(&mut host, now, &asked), Reason::NoPath);
        let asked = Request { path_use: PathUse::Unidirectional, ..asked };
        assert_eq!(ask(&mut host, now, &asked), Taken::Path(record(0x30, 0xffff, false)));
    }

    #[test]
    fn a_port_answers_only_while_it_is_fresh() {
        let now = Instant::now();
        let mut host = host(now);
        let is_answered = |host: &mut Host, now| ask(host, now, &asked()) != Taken::AsksSa;
        assert!(is_answered(&mut host, now));
        update(host.port_mut(0).unwrap(), now, Kind::Changing(proto::Changing {}));
        assert_eq!(left(&mut host, now, &asked()), Reason::Outdated);
        update(host.port_mut(0).unwrap(), now, current(2));
        assert!(is_answered(&mut host, now));

        let late = now + STALE_AFTER;
        assert!(is_answered(&mut host, late - Duration::from_nanos(1)));
        assert_eq!(left(&mut host, late, &asked()), Reason::Stale);
        update(host.port_mut(0).unwrap(), late, beat(1, None));
        assert!(is_answered(&mut host, late));

        host.port_mut(0).unwrap().handle_disconnected();
        assert_eq!(left(&mut host, late, &asked()), Reason::Absent);
        assert_eq!(host.ports()[0].1.table().bytes(), 0);
    }

    /// A responder that was cut off from its manager went on saying that it was alive.
    #[test]
    fn paths_count_for_three_seconds_after_the_manager_confirmed_them() {
        let start = Instant::now();
        let mut host = host(start);
        let last = start + CONTACT_MAX;
        for step in 1..=6 {
            let now = start + HEARTBEAT * step;
            update(host.port_mut(0).unwrap(), now, beat(1, confirmed(Duration::ZERO)));
            let is_answered = ask(&mut host, now, &asked()) != Taken::AsksSa;
            assert_eq!(is_answered, now < last, "{step}");
        }
        assert_eq!(left(&mut host, last, &asked()), Reason::Unconfirmed);
        assert!(!host.ports()[0].1.is_fresh(last));
        let lately = CONTACT_MAX - HEARTBEAT;
        update(host.port_mut(0).unwrap(), last, beat(2, None));
        assert_eq!(left(&mut host, last, &asked()), Reason::Unconfirmed, "not by this session's");
        update(host.port_mut(0).unwrap(), last, beat(2, confirmed(lately)));
        assert_eq!(ask(&mut host, last, &asked()), Taken::Path(record(0x20, 0xffff, true)));
        assert_eq!(host.ports()[0].1.version(), (2, 2), "the session of another manager");
    }

    /// Regression: an agent counted a confirmation from the arrival of its message. It went on for
    /// ever behind a queue of some seconds, and for 3 s after it had been stopped.
    #[test]
    fn a_confirmation_that_was_long_on_its_way_is_old() {
        let start = Instant::now();
        let mut host = host(start);
        let delay = 2 * CONTACT_MAX;
        for step in 1..40 {
            // Each message arrives late, and was made when the manager had just confirmed.
            let made = start + HEARTBEAT * step;
            let now = made + delay;
            let port = host.port_mut(0).unwrap();
            update(port, now, beat(1, confirmed(made - start)));
            assert!(!port.is_fresh(now), "{step}");
            assert_eq!(port.poll_ping(now).is_some(), step == 1);
            assert_eq!(left(&mut host, now, &asked()), Reason::Unconfirmed);
        }
    }

    /// Regression: the age of a confirmation was that when an update was made, not when it was
    /// sent, which may be 30 s later.
    #[test]
    fn an_update_that_took_long_is_not_confirmed_as_of_its_arrival() {
        let start = Instant::now();
        let mut host = host(start);
        let port = host.port_mut(0).unwrap();
        port.handle_connected(start, start);
        let late = start + CONTACT_MAX;
        update(port, late, current(0));
        assert!(!port.is_fresh(late));
        assert_eq!(port.poll_ping(late), Some(2));
        let later = late + HEARTBEAT;
        let confirmation = Some(proto::Confirmation { ping: 2, after_ms: -100 });
        update(port, later, beat(1, confirmation));
        assert!(port.is_fresh(later));
        let until = late - Duration::from_millis(100) + CONTACT_MAX;
        assert_eq!(port.confirmed_until(), Some(until));
    }

    #[test]
    fn the_session_of_a_replaced_manager_is_not_followed() {
        let now = Instant::now();
        let mut host = host(now);
        let port = host.port_mut(0).unwrap();
        update(port, now, beat(7, None));
        port.handle_connected(now, now);
        let refused = |port: &mut Port, now, kind| {
            let update = proto::Update { kind: Some(kind) };
            matches!(port.handle_update(now, update), Err(UpdateError::Session { .. }))
        };
        assert!(refused(port, now, current_of(6, 0)));
        assert_eq!(port.state(), State::Outdated);
        port.handle_connected(now, now);
        assert!(!refused(port, now, current_of(7, 0)));
        assert!(refused(port, now, beat(6, None)), "nor of one that goes back");
        port.handle_connected(now, now);
        assert!(!refused(port, now + FENCED_FOR, current_of(6, 0)), "the fabric is split");
    }

    #[test]
    fn a_table_of_another_size_than_the_responders_is_not_used() {
        let now = Instant::now();
        let mut host = host(now);
        let port = host.port_mut(0).unwrap();
        let wrong = proto::Update { kind: Some(current(3)) };
        assert!(port.handle_update(now, wrong).is_err());
        assert_eq!(left(&mut host, now, &asked()), Reason::Outdated);
    }

    #[test]
    fn other_messages_get_no_answer() {
        let now = Instant::now();
        let mut host = host(now);
        let mut answers = Vec::new();
        for operation in [1, 2, 3, 1023] {
            host.answer(now, &kernel::other(1, operation), &mut answers);
        }
        let mut answer = kernel::request(1, &asked());
        answer[6] = 0;
        host.answer(now, &answer, &mut answers);
        host.answer(now, &[1, 2, 3], &mut answers);
        let Counters { ignored, malformed, .. } = *host.counters();
        assert_eq!((answers.len(), ignored, malformed), (0, 5, 1));
        // A request that cannot be read has a number to be answered by.
        let mut unread = kernel::request(1, &asked());
        unread[81] = 9;
        host.answer(now, &unread, &mut answers);
        assert_eq!(kernel::take(&answers, PathUse::Reversible), [(1, Taken::AsksSa)]);
    }
}

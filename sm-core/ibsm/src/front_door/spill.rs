//! Where the responder that reads the SM's port may pass requests while it falls behind: to the
//! responders that the front door would choose from.

use std::net::SocketAddr;
use std::sync::Arc;

use sa_proto::proto::event as proto;
use sa_proto::snapshot::Session;

use crate::observe::Responder;

/// The reader of the SM's port, and the responders that it may pass requests to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spill {
    /// Its id in the feed; 0 if no responder reads the port.
    reader: u64,
    /// Where it sends from, and the token in what it sends; all responders accept requests from
    /// there.
    from: Option<(SocketAddr, u64)>,
    targets: Vec<SpillTarget>,
}

/// A responder that requests may be passed to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SpillTarget {
    id: u64,
    addresses: Arc<[SocketAddr]>,
    /// Whether it may answer from its own port.
    is_direct: bool,
    /// The token in what it sends.
    token: u64,
}

impl Spill {
    /// What the responder `reader` may pass on while the SM publishes in `session`. `is_direct`:
    /// whether a responder may answer clients from its own port.
    pub(super) fn new(
        reader: Option<u64>,
        responders: &[Responder],
        session: Option<Session>,
        is_direct: impl Fn(u64) -> bool,
    ) -> Self {
        let (Some(reader), Some(session)) = (reader, session) else { return Self::default() };
        let entry = responders.iter().find(|responder| responder.id == reader);
        let from = entry.and_then(|entry| Some((entry.spill_from?, entry.spill_token)));
        let Some(from) = from else { return Self::default() };
        let others = responders.iter().filter(|responder| responder.id != reader);
        let targets = others.filter(|responder| responder.answers(session)).map(|responder| {
            let addresses = Arc::clone(&responder.front_door);
            let (id, token) = (responder.id, responder.front_door_token);
            SpillTarget { id, addresses, is_direct: is_direct(id), token }
        });
        Self { reader, from: Some(from), targets: targets.collect() }
    }

    /// As it is sent to a responder: all learn where requests may come from, and the reader where
    /// to send them.
    pub(crate) fn message(&self, responder: u64) -> proto::Spill {
        let targets = self.targets.iter().filter(|_| responder == self.reader);
        proto::Spill {
            from: self.from.iter().map(|(from, _)| from.to_string()).collect(),
            from_token: self.from.map_or(0, |(_, token)| token),
            targets: targets.map(SpillTarget::message).collect(),
        }
    }
}

impl SpillTarget {
    fn message(&self) -> proto::SpillTarget {
        proto::SpillTarget {
            responder_id: self.id,
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            direct: self.is_direct,
            token: self.token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use sa_proto::proto::snapshot::Hello;
    use sa_proto::snapshot::Version;

    use crate::observe::Origin;

    const OURS: Session = Version::NONE.session;

    /// A responder that connects from `ip`, at the SM's port if `spill_from` is given.
    fn responder(id: u64, spill_from: &str, ip: &str) -> Responder {
        let hello = Hello {
            responder_id: id,
            front_door: vec![format!("192.0.2.{id}:9000")],
            spill_from: spill_from.to_owned(),
            front_door_token: 10 + id,
            spill_token: 20 + id,
            ..Hello::default()
        };
        let origin = Origin { ip: ip.parse().unwrap(), is_identified: true, share: None };
        Responder::new(&hello, Some(Version::NONE), Some(origin), Instant::now(), id)
    }

    #[test]
    fn the_reader_learns_the_others_and_the_others_where_it_sends_from() {
        let mut list: Vec<_> = (2..=4).map(|id| responder(id, "", "192.0.2.9")).collect();
        list.insert(0, responder(1, "0.0.0.0:700", "127.0.0.1"));
        list[3].serving = None;
        let spill = Spill::new(Some(1), &list, Some(OURS), |id| id == 3);
        let to_reader = spill.message(1);
        let expected = |id: u64, direct| proto::SpillTarget {
            responder_id: id,
            addresses: vec![format!("192.0.2.{id}:9000")],
            direct,
            token: 10 + id,
        };
        assert_eq!(to_reader.targets, [expected(2, false), expected(3, true)]);
        assert_eq!(to_reader.from, ["0.0.0.0:700"]);
        let to_other = spill.message(2);
        assert!(to_other.targets.is_empty() && to_other.from == to_reader.from);
        assert_eq!((to_other.from_token, to_reader.from_token), (21, 21));
    }

    #[test]
    fn nothing_is_passed_on_without_a_reader_a_session_or_its_address() {
        let list = [responder(1, "0.0.0.0:700", "127.0.0.1"), responder(2, "", "192.0.2.9")];
        for (reader, session) in [(None, Some(OURS)), (Some(1), None), (Some(2), Some(OURS))] {
            assert_eq!(Spill::new(reader, &list, session, |_| false), Spill::default());
        }
        assert_eq!(Spill::default().message(1), proto::Spill::default());
    }

    /// Requests in the name of any client are accepted from there.
    #[test]
    fn a_responder_of_another_host_cannot_name_the_address() {
        let list = [responder(1, "192.0.2.1:700", "192.0.2.1"), responder(2, "", "192.0.2.9")];
        assert_eq!(Spill::new(Some(1), &list, Some(OURS), |_| false), Spill::default());
    }
}

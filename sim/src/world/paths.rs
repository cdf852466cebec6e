//! What answers to path queries must say.

use std::time::{Duration, Instant};

use ib_mad::types::{Gid, Lid, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::PortState;
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::sa::{DATA_LEN, SaMad};

use super::World;
use crate::client::{ALIAS_BASE, Ask};
use crate::violation::Violation;

/// How long paths to a port that has left the fabric may be answered: until a sweep finds it, whose
/// trap may be lost, and responders have the result.
const DEPARTURE_MAX: Duration = Duration::from_secs(8);

/// What is known about a path.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// GIDs of both ends, the requester's first.
    gids: [Gid; 2],
    /// Their LIDs, as far as they are known.
    lids: [Option<Lid>; 2],
    /// Whether there is a path, if that is known.
    exists: Option<bool>,
}

impl Expected {
    /// Returns what is wrong about an answer.
    fn judge(&self, status: Status, data: &[u8; DATA_LEN]) -> Result<(), String> {
        if status != Status::OK {
            let is_wrong = self.exists == Some(true) && status != Status::BUSY;
            return if is_wrong {
                Err(format!("there is a path, answered with {status:?}"))
            } else {
                Ok(())
            };
        }
        let record = PathRecord::of(data);
        let gids = [record.sgid(), record.dgid()];
        if gids != self.gids {
            return Err(format!("GIDs {gids:?} in the answer"));
        }
        for (found, known) in [record.slid(), record.dlid()].into_iter().zip(self.lids) {
            if known.is_some_and(|known| known != found) {
                return Err(format!("LID {found} in the answer, known is {known:?}"));
            }
        }
        match self.exists {
            Some(false) => Err("a path to what is not there".to_owned()),
            _ => Ok(()),
        }
    }
}

impl World {
    /// Notes which clients' ports have no link, and since when.
    pub(super) fn note_departures(&mut self) {
        let now = self.now();
        for (client, host) in self.clients.iter().zip(&self.client_hosts) {
            let port = self.fabric.port(*host, 1);
            if port.is_some_and(|port| port.state != PortState::Down) {
                self.departed.remove(&client.guid);
            } else {
                self.departed.entry(client.guid).or_insert(now);
            }
        }
    }

    /// Judges the answer to a query, if it is one for a path to a port, that a client sent first at
    /// `asked`.
    pub(super) fn check_path(
        &self,
        client: usize,
        ask: Ask,
        asked: Instant,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), Violation> {
        let (to, pkey) = match ask {
            Ask::Path(to) => (to, None),
            Ask::Inside(to, pkey) => (to, Some(pkey)),
            Ask::Put(..) | Ask::Get(_) | Ask::Reach(_) => return Ok(()),
        };
        let of = &self.clients[client];
        let owner = self.clients.iter().find(|owner| owner.last_alias() == Some(to));
        if owner.is_none() && to.0 & ALIAS_BASE == ALIAS_BASE {
            // It was replaced meanwhile.
            return Ok(());
        }
        let has_alias = owner.map_or(Some(true), |owner| owner.has_alias(to, asked));
        let port = owner.map_or(to, |owner| owner.guid);
        let is_calm = self.calm_since.is_some_and(|since| asked >= since);
        let has_left =
            self.departed.get(&port).is_some_and(|since| asked >= *since + DEPARTURE_MAX);
        let expected = Expected {
            gids: [of.gid, Gid::new(SUBNET_PREFIX_DEFAULT, to)],
            lids: [of.guid, port].map(|guid| self.oracle.lid(guid)),
            exists: match is_calm {
                true if !self.has_moved => match pkey {
                    Some(pkey) => self.program.joins(pkey, [of.guid, to], asked),
                    None => has_alias,
                },
                true if has_left => Some(false),
                _ => None,
            },
        };
        let answer = SaMad::new(mad);
        expected
            .judge(answer.header().status(), answer.data())
            .map_err(|what| Violation(format!("client {client} asked {ask:?}: {what}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIDS: [Gid; 2] = [Gid([1; 16]), Gid([2; 16])];

    fn judged(expected: Expected, status: Status, lids: [u16; 2]) -> bool {
        let mut data = [0; DATA_LEN];
        PathRecord::of_mut(&mut data)
            .set_sgid(GIDS[0])
            .set_dgid(GIDS[1])
            .set_slid(Lid(lids[0]))
            .set_dlid(Lid(lids[1]));
        expected.judge(status, &data).is_ok()
    }

    #[test]
    fn an_answer_names_both_ends_and_exists_only_between_ports_of_the_fabric() {
        let known = Expected { gids: GIDS, lids: [Some(Lid(3)), Some(Lid(4))], exists: None };
        assert!(judged(known, Status::OK, [3, 4]));
        assert!(!judged(known, Status::OK, [3, 5]) && !judged(known, Status::OK, [4, 3]));
        assert!(judged(Expected { lids: [None; 2], ..known }, Status::OK, [7, 8]));
        assert!(!judged(Expected { gids: [GIDS[1]; 2], ..known }, Status::OK, [3, 4]));
        let exists = |exists| Expected { exists, ..known };
        assert!(judged(exists(None), Status::SA_NO_RECORDS, [0; 2]));
        assert!(!judged(exists(Some(true)), Status::SA_NO_RECORDS, [0; 2]));
        assert!(judged(exists(Some(true)), Status::BUSY, [0; 2]));
        assert!(!judged(exists(Some(false)), Status::OK, [3, 4]));
    }
}

//! Updates of the held snapshots.
//!
//! There is one link to each SM, and all of them may send updates; [`Sessions`] decides which
//! sessions are held. Updates of a session that is replaced by a higher one are refused.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Guid;
use sa_proto::front_door::AnnouncedDoor;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::resync::Reason;
use sa_proto::snapshot::codec::{Decoder, UpdateError};
use sa_proto::snapshot::delta::DeltaError;
use sa_proto::snapshot::{Session, Snapshot, Version};

use super::sessions::{Placed, Sessions};

/// The links and what is held.
#[derive(Debug)]
pub(super) struct Updates {
    sessions: Sessions,
    links: Vec<Link>,
    empty: Arc<Snapshot>,
}

/// What is known of a link.
#[derive(Debug, Default)]
struct Link {
    state: State,
    /// The lane whose snapshot its SM's updates lead on from.
    lane: Option<usize>,
    /// Port GUID of the manager that published by it last.
    sm_guid: Option<Guid>,
    /// That manager's front door.
    front_door: AnnouncedDoor,
}

/// Where a link stands within an update.
#[derive(Debug, Default)]
enum State {
    /// Between updates.
    #[default]
    Idle,
    /// An update is coming in.
    Receiving(Box<Decoder>),
    /// An update failed; messages are ignored until the next update begins.
    Lost,
    /// An update was refused; messages are ignored until another one begins.
    Refused,
}

/// Result of a message.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing yet.
    Nothing,
    /// Serve this snapshot, and acknowledge it once it is served.
    Install {
        /// What to serve.
        snapshot: Arc<Snapshot>,
        /// Its lane, and the sessions that are no longer held.
        placed: Placed,
    },
    /// The held snapshot of the lane is current; acknowledge it.
    Confirmed {
        /// The lane.
        lane: usize,
        /// What it holds.
        version: Version,
    },
    /// The update cannot be used; ask for everything.
    Resync(Reason, UpdateError),
    /// The SM's session is replaced by that of the held snapshot; refuse the update with this
    /// version.
    Refuse {
        /// The SM's session.
        offered: Session,
        /// Version of the held snapshot.
        held: Version,
    },
    /// There is no room for the SM's session; refuse the update.
    Full {
        /// The SM's session.
        offered: Session,
    },
    /// The SM is not master any more.
    Ended,
}

impl Updates {
    /// Updates of `sessions`, by so many links.
    pub(super) fn new(sessions: Sessions, links: usize) -> Self {
        let links = std::iter::repeat_with(Link::default).take(links).collect();
        Self { sessions, links, empty: Arc::new(Snapshot::empty()) }
    }

    /// What is held.
    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Restarts a link; returns the versions to announce to its SM.
    pub(super) fn connect(&mut self, link: usize) -> Option<proto::Held> {
        let sessions = &self.sessions;
        let Link { state, lane, sm_guid, .. } = &mut self.links[link];
        *state = State::Idle;
        *lane = sm_guid.and_then(|sm_guid| sessions.lane_of_manager(sm_guid));
        *lane = lane.or_else(|| sessions.own(|_| true));
        let held = &sessions.get((*lane)?)?.snapshot;
        Some(proto::Held {
            version: Some(held.version().into()),
            checksum: Some(held.checksum().into()),
            bucket_sums: held.digest().to_bytes().into(),
        })
    }

    /// Forgets what had come in over a link that broke.
    pub(super) fn disconnect(&mut self, link: usize, now: Instant) {
        self.links[link].state = State::Idle;
        self.sessions.silence(link, now);
    }

    /// Drops sessions whose managers are gone for long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.sessions.expire(now);
    }

    /// The front door that the SM of a link announced.
    pub(super) fn front_door(&self, link: usize) -> &AnnouncedDoor {
        &self.links[link].front_door
    }

    /// Takes a message that came in over a link.
    pub(super) fn handle(&mut self, now: Instant, link: usize, message: proto::FromSm) -> Outcome {
        let state = std::mem::take(&mut self.links[link].state);
        let (state, outcome) = match self.step(now, link, state, message) {
            Ok(stepped) => stepped,
            Err(error) => (State::Lost, Outcome::Resync(reason(&error), error)),
        };
        self.links[link].state = match outcome {
            Outcome::Refuse { .. } => State::Refused,
            _ => state,
        };
        outcome
    }

    fn step(
        &mut self,
        now: Instant,
        link: usize,
        state: State,
        message: proto::FromSm,
    ) -> Result<(State, Outcome), UpdateError> {
        match (message.message, state) {
            (Some(Message::Begin(mut begin)), _) => {
                let address = std::mem::take(&mut begin.front_door);
                let token = begin.front_door_token;
                self.links[link].front_door = AnnouncedDoor { address, token };
                let decoder = Decoder::new(begin)?;
                let outcome = self.fence(decoder.target().session).unwrap_or(Outcome::Nothing);
                Ok((State::Receiving(Box::new(decoder)), outcome))
            }
            (Some(Message::Ended(_)), _) => {
                self.sessions.silence(link, now);
                Ok((State::Idle, Outcome::Ended))
            }
            // A kind of message that this release does not know, or none; or one that is no part of
            // updates and has been dealt with.
            (
                None
                | Some(
                    Message::Explain(_)
                    | Message::Heartbeat(_)
                    | Message::Inquiry(_)
                    | Message::State(_)
                    | Message::Outcomes(_),
                ),
                state,
            ) => Ok((state, Outcome::Nothing)),
            (Some(_), State::Lost) => Ok((State::Lost, Outcome::Nothing)),
            (Some(_), State::Refused) => Ok((State::Refused, Outcome::Nothing)),
            (Some(Message::Chunk(chunk)), State::Receiving(mut decoder)) => {
                decoder.chunk(&chunk)?;
                Ok((State::Receiving(decoder), Outcome::Nothing))
            }
            (Some(Message::End(end)), State::Receiving(decoder)) => {
                // Another SM's update may have been installed since this one began.
                if let Some(refusal) = self.fence(decoder.target().session) {
                    return Ok((State::Refused, refusal));
                }
                let base = self.links[link].lane.and_then(|lane| self.sessions.get(lane));
                let base = base.map_or(&self.empty, |held| &held.snapshot);
                let next = decoder.finish(end, base)?;
                Ok((State::Idle, self.install(link, Arc::new(next))))
            }
            (Some(_), State::Idle) => {
                Err(sa_proto::snapshot::encoding::Malformed("a message outside of an update")
                    .into())
            }
        }
    }

    fn install(&mut self, link: usize, snapshot: Arc<Snapshot>) -> Outcome {
        let version = snapshot.version();
        let held = self.sessions.lane_of(version.session);
        let held = held.and_then(|lane| Some((lane, &self.sessions.get(lane)?.snapshot)));
        self.links[link].sm_guid = Some(version.session.sm_guid);
        if let Some((lane, held)) = held
            && version == held.version()
            && snapshot.checksum() == held.checksum()
        {
            self.links[link].lane = Some(lane);
            self.sessions.confirm(lane, link);
            return Outcome::Confirmed { lane, version };
        }
        match self.sessions.place(link, Arc::clone(&snapshot)) {
            Some(placed) => {
                self.links[link].lane = Some(placed.lane);
                Outcome::Install { snapshot, placed }
            }
            None => Outcome::Full { offered: version.session },
        }
    }

    fn fence(&self, offered: Session) -> Option<Outcome> {
        self.sessions.replacing(offered).map(|held| Outcome::Refuse { offered, held })
    }
}

/// The reason to report to the SM for an update that could not be applied.
fn reason(error: &UpdateError) -> Reason {
    match error {
        UpdateError::WrongBase { .. } | UpdateError::Delta(DeltaError::WrongBase { .. }) => {
            Reason::WrongBase
        }
        UpdateError::Checksum { .. } | UpdateError::Delta(DeltaError::Checksum { .. }) => {
            Reason::Checksum
        }
        _ => Reason::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::codec::Encoder;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Subnet, delta};

    use super::*;

    /// A snapshot whose content is its generation.
    fn snapshot(epoch: u64, generation: u64) -> Arc<Snapshot> {
        of_manager(1, epoch, generation)
    }

    /// One that the manager at port `sm` publishes.
    fn of_manager(sm: u64, epoch: u64, generation: u64) -> Arc<Snapshot> {
        let subnet = Subnet { prefix: generation, ..Subnet::default() };
        let fabric = FabricPlane { subnet, ..FabricPlane::default() };
        let session = Session { epoch, sm_guid: Guid(sm) };
        let registry = RegistryPlane::default();
        Arc::new(Snapshot::build(session, generation, fabric, registry).unwrap())
    }

    fn full(snapshot: &Arc<Snapshot>) -> Encoder {
        Encoder::full(snapshot.clone())
    }

    fn delta(old: &Snapshot, new: &Snapshot) -> Encoder {
        Encoder::delta(Arc::new(delta::construct(old, new)))
    }

    /// Takes all of an update; what its last message that led to anything did.
    fn feed(updates: &mut Updates, link: usize, update: Encoder) -> Outcome {
        let outcomes = update.map(|message| handle(updates, link, message));
        outcomes
            .filter(|outcome| !matches!(outcome, Outcome::Nothing))
            .last()
            .unwrap_or(Outcome::Nothing)
    }

    fn handle(updates: &mut Updates, link: usize, message: proto::FromSm) -> Outcome {
        updates.handle(Instant::now(), link, message)
    }

    fn fresh(links: usize) -> Updates {
        Updates::new(Sessions::new(None, links), links)
    }

    fn held(updates: &Updates, lane: usize) -> &Arc<Snapshot> {
        &updates.sessions().get(lane).unwrap().snapshot
    }

    fn is_install(outcome: &Outcome, expected: &Arc<Snapshot>) -> bool {
        matches!(outcome, Outcome::Install { snapshot, .. } if snapshot == expected)
    }

    #[test]
    fn a_full_and_a_delta_are_installed() {
        let (first, second) = (snapshot(1, 1), snapshot(1, 2));
        let mut updates = fresh(1);
        assert!(updates.connect(0).is_none(), "nothing is held");
        assert!(is_install(&feed(&mut updates, 0, full(&first)), &first));
        let outcome = feed(&mut updates, 0, delta(&first, &second));
        assert!(is_install(&outcome, &second));
        let held = updates.connect(0).unwrap();
        assert_eq!(Version::try_from(held.version), Ok(second.version()));
    }

    #[test]
    fn what_is_held_already_is_not_installed_again() {
        let first = snapshot(1, 1);
        let mut sessions = Sessions::new(None, 1);
        sessions.set_cached(first.clone(), Instant::now());
        let mut updates = Updates::new(sessions, 1);
        let outcome = feed(&mut updates, 0, full(&first));
        let expected = first.version();
        assert!(matches!(outcome, Outcome::Confirmed { version, .. } if version == expected));
    }

    #[test]
    fn a_gap_asks_for_everything_and_what_follows_is_ignored_until_then() {
        let steps: Vec<_> = (1..=4).map(|generation| snapshot(1, generation)).collect();
        let mut updates = fresh(1);
        feed(&mut updates, 0, full(&steps[0]));
        let gap = feed(&mut updates, 0, delta(&steps[1], &steps[2]));
        assert!(matches!(gap, Outcome::Resync(Reason::WrongBase, _)), "{gap:?}");
        assert_eq!(held(&updates, 0), &steps[0], "the old one is answered from meanwhile");
        let late = full(&steps[2]).nth(1).unwrap();
        assert!(matches!(handle(&mut updates, 0, late), Outcome::Nothing));
        assert!(matches!(feed(&mut updates, 0, full(&steps[3])), Outcome::Install { .. }));
    }

    #[test]
    fn a_wrong_checksum_asks_for_everything() {
        let (first, second) = (snapshot(1, 1), snapshot(1, 2));
        let mut updates = fresh(1);
        feed(&mut updates, 0, full(&first));
        let messages: Vec<_> = delta(&first, &second)
            .map(|mut message| {
                if let Some(Message::End(end)) = &mut message.message {
                    end.checksum = Some(first.checksum().into());
                }
                message
            })
            .collect();
        let outcome = messages.into_iter().map(|message| handle(&mut updates, 0, message)).last();
        assert!(matches!(outcome, Some(Outcome::Resync(Reason::Checksum, _))), "{outcome:?}");
        assert_eq!(held(&updates, 0), &first);
    }

    #[test]
    fn a_replaced_sm_is_refused_until_it_begins_a_higher_session() {
        let mut updates = fresh(2);
        feed(&mut updates, 0, full(&snapshot(5, 1)));
        // The other link's SM has taken over.
        assert!(matches!(feed(&mut updates, 1, full(&snapshot(6, 1))), Outcome::Install { .. }));
        let outcome = feed(&mut updates, 0, full(&snapshot(5, 2)));
        let Outcome::Refuse { offered, held } = outcome else { panic!("{outcome:?}") };
        assert_eq!((offered.epoch, held.session.epoch), (5, 6));
        let rest = full(&snapshot(5, 3)).nth(1).unwrap();
        assert!(matches!(handle(&mut updates, 0, rest), Outcome::Nothing), "of the refused update");
        let again = feed(&mut updates, 0, full(&snapshot(5, 3)));
        assert!(matches!(again, Outcome::Refuse { .. }), "{again:?}");
        assert!(matches!(feed(&mut updates, 0, full(&snapshot(7, 1))), Outcome::Install { .. }));
    }

    #[test]
    fn an_update_overtaken_by_another_sms_is_refused_at_its_end() {
        let mut updates = fresh(2);
        let mut slow: Vec<_> = full(&snapshot(5, 1)).collect();
        let end = slow.pop().unwrap();
        for message in slow {
            assert!(matches!(handle(&mut updates, 0, message), Outcome::Nothing));
        }
        feed(&mut updates, 1, full(&snapshot(6, 1)));
        assert!(matches!(handle(&mut updates, 0, end), Outcome::Refuse { .. }));
        assert_eq!(held(&updates, 0).version().session.epoch, 6);
    }

    #[test]
    fn a_broken_link_leaves_nothing_behind() {
        let mut updates = fresh(1);
        let mut update = full(&snapshot(1, 1));
        handle(&mut updates, 0, update.next().unwrap());
        updates.disconnect(0, Instant::now());
        updates.connect(0);
        let rest = update.map(|message| handle(&mut updates, 0, message)).last();
        assert!(matches!(rest, Some(Outcome::Resync(Reason::Malformed, _))), "{rest:?}");
    }

    /// The manager of the lower part was refused, and its clients got no answers.
    #[test]
    fn managers_of_two_parts_of_a_fabric_each_lead_on_from_what_they_published() {
        let (first, second) = (of_manager(1, 5, 1), of_manager(2, 6, 1));
        let mut updates = fresh(2);
        feed(&mut updates, 0, full(&first));
        let outcome = feed(&mut updates, 1, full(&second));
        let Outcome::Install { placed, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((placed.lane, placed.dropped.len()), (1, 0));
        let next = of_manager(1, 5, 2);
        let outcome = feed(&mut updates, 0, delta(&first, &next));
        assert!(is_install(&outcome, &next), "{outcome:?}");
        assert_eq!((held(&updates, 0), held(&updates, 1)), (&next, &second));
        // Each learns what is held of its own session.
        updates.disconnect(1, Instant::now());
        let announced = updates.connect(1).unwrap();
        assert_eq!(Version::try_from(announced.version), Ok(second.version()));
        updates.disconnect(0, Instant::now());
        let announced = updates.connect(0).unwrap();
        assert_eq!(Version::try_from(announced.version), Ok(next.version()));
    }

    #[test]
    fn a_session_that_its_manager_ended_is_held_until_another_one_begins() {
        let (first, second) = (of_manager(1, 5, 1), of_manager(2, 6, 1));
        let mut updates = fresh(2);
        feed(&mut updates, 0, full(&first));
        let ended = proto::FromSm { message: Some(Message::Ended(proto::Ended {})) };
        assert!(matches!(handle(&mut updates, 0, ended), Outcome::Ended));
        assert_eq!(held(&updates, 0), &first);
        let outcome = feed(&mut updates, 1, full(&second));
        let Outcome::Install { placed, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!((placed.lane, placed.dropped[0].link), (0, None));
    }

    #[test]
    fn a_session_that_finds_no_room_is_refused() {
        let mut updates = Updates::new(Sessions::new(None, 1), 2);
        feed(&mut updates, 0, full(&of_manager(1, 5, 1)));
        let outcome = feed(&mut updates, 1, full(&of_manager(2, 6, 1)));
        assert!(matches!(outcome, Outcome::Full { offered } if offered.epoch == 6), "{outcome:?}");
    }
}

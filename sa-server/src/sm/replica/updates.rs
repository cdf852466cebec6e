//! Updates of the held snapshot.
//!
//! There is one link to each SM, and all of them may send updates; the highest session wins, and
//! updates of lower sessions are refused.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::Arc;

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::resync::Reason;
use sa_proto::snapshot::codec::{Decoder, UpdateError};
use sa_proto::snapshot::delta::DeltaError;
use sa_proto::snapshot::{Session, Snapshot, Version};

/// The links and the held snapshot.
#[derive(Debug)]
pub(super) struct Updates {
    held: Arc<Snapshot>,
    links: Vec<Link>,
}

/// State of a link with respect to updates.
#[derive(Debug, Default)]
enum Link {
    /// Between updates.
    #[default]
    Idle,
    /// An update is coming in.
    Receiving(Box<Decoder>),
    /// An update failed; messages are ignored until the next update begins.
    Lost,
    /// An update was refused; messages are ignored until an update with an equal or higher session
    /// begins.
    Refused,
}

/// Result of a message.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The message has no effect yet.
    Nothing,
    /// Serve this snapshot, and acknowledge it once it is served.
    Install(Arc<Snapshot>),
    /// The held snapshot is current; acknowledge it.
    Confirmed(Version),
    /// The update cannot be used; ask for everything.
    Resync(Reason, UpdateError),
    /// The SM's session is below that of the held snapshot; refuse the update with this version.
    Refuse {
        /// The SM's session.
        offered: Session,
        /// Version of the held snapshot.
        held: Version,
    },
}

impl Updates {
    /// Begins with the snapshot of a cache file, or with an empty one.
    pub(super) fn new(held: Arc<Snapshot>, links: usize) -> Self {
        Self { held, links: std::iter::repeat_with(Link::default).take(links).collect() }
    }

    /// Restarts a link; returns the versions to announce to its SM.
    pub(super) fn connect(&mut self, link: usize) -> Option<proto::Held> {
        self.links[link] = Link::Idle;
        (self.held.version() != Version::NONE).then(|| proto::Held {
            version: Some(self.held.version().into()),
            checksum: Some(self.held.checksum().into()),
            bucket_sums: self.held.digest().to_bytes().into(),
        })
    }

    /// Discards the incomplete update of a link that broke.
    pub(super) fn disconnect(&mut self, link: usize) {
        self.links[link] = Link::Idle;
    }

    /// Takes a message that came in over a link.
    pub(super) fn handle(&mut self, link: usize, message: proto::FromSm) -> Outcome {
        let state = std::mem::take(&mut self.links[link]);
        let (state, outcome) = match self.step(state, message) {
            Ok(stepped) => stepped,
            Err(error) => (Link::Lost, Outcome::Resync(reason(&error), error)),
        };
        self.links[link] = match outcome {
            Outcome::Refuse { .. } => Link::Refused,
            _ => state,
        };
        outcome
    }

    fn step(
        &mut self,
        state: Link,
        message: proto::FromSm,
    ) -> Result<(Link, Outcome), UpdateError> {
        match (message.message, state) {
            (Some(Message::Begin(begin)), _) => {
                let decoder = Decoder::new(begin)?;
                let outcome = self.fence(decoder.target().session).unwrap_or(Outcome::Nothing);
                Ok((Link::Receiving(Box::new(decoder)), outcome))
            }
            // A kind of message that this release does not know, or none; or one that is no part of
            // updates and has been dealt with.
            (
                None | Some(Message::Explain(_) | Message::Heartbeat(_) | Message::Inquiry(_)),
                state,
            ) => Ok((state, Outcome::Nothing)),
            (Some(_), Link::Lost) => Ok((Link::Lost, Outcome::Nothing)),
            (Some(_), Link::Refused) => Ok((Link::Refused, Outcome::Nothing)),
            (Some(Message::Chunk(chunk)), Link::Receiving(mut decoder)) => {
                decoder.chunk(&chunk)?;
                Ok((Link::Receiving(decoder), Outcome::Nothing))
            }
            (Some(Message::End(end)), Link::Receiving(decoder)) => {
                // Another SM's update may have been installed since this one began.
                if let Some(refusal) = self.fence(decoder.target().session) {
                    return Ok((Link::Refused, refusal));
                }
                let next = decoder.finish(end, &self.held)?;
                let (version, held) = (next.version(), &self.held);
                if version == held.version() && next.checksum() == held.checksum() {
                    return Ok((Link::Idle, Outcome::Confirmed(version)));
                }
                self.held = Arc::new(next);
                Ok((Link::Idle, Outcome::Install(self.held.clone())))
            }
            (Some(_), Link::Idle) => {
                Err(sa_proto::snapshot::encoding::Malformed("a message outside of an update")
                    .into())
            }
        }
    }

    fn fence(&self, offered: Session) -> Option<Outcome> {
        let held = self.held.version();
        (offered < held.session).then_some(Outcome::Refuse { offered, held })
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
        let subnet = Subnet { prefix: generation, ..Subnet::default() };
        let fabric = FabricPlane { subnet, ..FabricPlane::default() };
        let session = Session { epoch, sm_guid: Guid(1) };
        let registry = RegistryPlane::default();
        Arc::new(Snapshot::build(session, generation, fabric, registry).unwrap())
    }

    fn full(snapshot: &Arc<Snapshot>) -> Encoder {
        Encoder::full(snapshot.clone())
    }

    fn delta(old: &Snapshot, new: &Snapshot) -> Encoder {
        Encoder::delta(Arc::new(delta::construct(old, new)))
    }

    /// Handles all messages of an update; returns the last outcome that has an effect.
    fn feed(updates: &mut Updates, link: usize, update: Encoder) -> Outcome {
        let outcomes = update.map(|message| updates.handle(link, message));
        outcomes
            .filter(|outcome| !matches!(outcome, Outcome::Nothing))
            .last()
            .unwrap_or(Outcome::Nothing)
    }

    fn fresh(links: usize) -> Updates {
        Updates::new(Arc::new(Snapshot::empty()), links)
    }

    #[test]
    fn a_full_and_a_delta_are_installed() {
        let (first, second) = (snapshot(1, 1), snapshot(1, 2));
        let mut updates = fresh(1);
        assert!(updates.connect(0).is_none(), "nothing is held");
        assert!(matches!(feed(&mut updates, 0, full(&first)), Outcome::Install(s) if s == first));
        let outcome = feed(&mut updates, 0, delta(&first, &second));
        assert!(matches!(outcome, Outcome::Install(s) if s == second));
        let held = updates.connect(0).unwrap();
        assert_eq!(Version::try_from(held.version), Ok(second.version()));
    }

    #[test]
    fn what_is_held_already_is_not_installed_again() {
        let first = snapshot(1, 1);
        let mut updates = Updates::new(first.clone(), 1);
        let outcome = feed(&mut updates, 0, full(&first));
        assert!(matches!(outcome, Outcome::Confirmed(version) if version == first.version()));
    }

    #[test]
    fn a_gap_asks_for_everything_and_what_follows_is_ignored_until_then() {
        let steps: Vec<_> = (1..=4).map(|generation| snapshot(1, generation)).collect();
        let mut updates = fresh(1);
        feed(&mut updates, 0, full(&steps[0]));
        let gap = feed(&mut updates, 0, delta(&steps[1], &steps[2]));
        assert!(matches!(gap, Outcome::Resync(Reason::WrongBase, _)), "{gap:?}");
        assert_eq!(&updates.held, &steps[0], "the old one is answered from meanwhile");
        let late = full(&steps[2]).nth(1).unwrap();
        assert!(matches!(updates.handle(0, late), Outcome::Nothing));
        assert!(matches!(feed(&mut updates, 0, full(&steps[3])), Outcome::Install(_)));
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
        let outcome = messages.into_iter().map(|message| updates.handle(0, message)).last();
        assert!(matches!(outcome, Some(Outcome::Resync(Reason::Checksum, _))), "{outcome:?}");
        assert_eq!(&updates.held, &first);
    }

    #[test]
    fn a_replaced_sm_is_refused_until_it_begins_a_higher_session() {
        let mut updates = fresh(2);
        feed(&mut updates, 0, full(&snapshot(5, 1)));
        // The other link's SM has taken over.
        assert!(matches!(feed(&mut updates, 1, full(&snapshot(6, 1))), Outcome::Install(_)));
        let outcome = feed(&mut updates, 0, full(&snapshot(5, 2)));
        let Outcome::Refuse { offered, held } = outcome else { panic!("{outcome:?}") };
        assert_eq!((offered.epoch, held.session.epoch), (5, 6));
        let rest = full(&snapshot(5, 3)).nth(1).unwrap();
        assert!(matches!(updates.handle(0, rest), Outcome::Nothing), "of the refused update");
        let again = feed(&mut updates, 0, full(&snapshot(5, 3)));
        assert!(matches!(again, Outcome::Refuse { .. }), "{again:?}");
        assert!(matches!(feed(&mut updates, 0, full(&snapshot(7, 1))), Outcome::Install(_)));
    }

    #[test]
    fn an_update_overtaken_by_another_sms_is_refused_at_its_end() {
        let mut updates = fresh(2);
        let mut slow: Vec<_> = full(&snapshot(5, 1)).collect();
        let end = slow.pop().unwrap();
        for message in slow {
            assert!(matches!(updates.handle(0, message), Outcome::Nothing));
        }
        feed(&mut updates, 1, full(&snapshot(6, 1)));
        assert!(matches!(updates.handle(0, end), Outcome::Refuse { .. }));
        assert_eq!(updates.held.version().session.epoch, 6);
    }

    #[test]
    fn a_broken_link_leaves_nothing_behind() {
        let mut updates = fresh(1);
        let mut update = full(&snapshot(1, 1));
        updates.handle(0, update.next().unwrap());
        updates.disconnect(0);
        updates.connect(0);
        let rest = update.map(|message| updates.handle(0, message)).last();
        assert!(matches!(rest, Some(Outcome::Resync(Reason::Malformed, _))), "{rest:?}");
    }
}

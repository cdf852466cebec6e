//! After a takeover: whether the copy has everything that the previous master acknowledged.
//!
//! A responder answers a client only when its own tables contain the write. So each acknowledged
//! write is held by a responder that could acknowledge it, and the master named these responders in
//! its heartbeats. The new master asks all of them before it begins a session, and fetches the
//! registry of one that holds a newer one.
//!
//! A master whose link to the fabric has failed, or whose part of it, may be alive and go on: its
//! feed shows that. It is asked, too, acknowledges nothing from then on, and answers with its
//! version, up to which its feed goes on.

use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::RegistryVersion;
use tracing::info;

use super::{Beat, Followed, NO_SESSION};
use crate::observe::{Holds, Responder};
use crate::publish::LEASE;

/// How long responders may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long they may take to connect and to answer if this process has not followed the master
/// whose registry it holds: it does not know which responders there are.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// How long it may take to fetch and store a responder's registry.
const ROWS_PATIENCE: Duration = Duration::from_secs(5);
/// How long a master that is alive may take to stop acknowledging.
const SEAL_PATIENCE: Duration = Duration::from_secs(3);
/// A feed counts as alive for so long after an answer that was confirmed.
const ALIVE: Duration = Duration::from_secs(1);
/// How often answers are checked.
const INTERVAL: Duration = Duration::from_millis(10);

/// Facts about the previous master and its registry.
pub(super) struct Evidence<'a> {
    pub(super) followed: &'a Followed,
    /// The registry on disk.
    pub(super) held: RegistryVersion,
    pub(super) responders: &'a [Responder],
    pub(super) now: Instant,
    /// When that master was last heard from in the fabric, or this SM could not hear it.
    pub(super) heard: Option<Instant>,
}

/// The result of the questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Everything that was acknowledged is held here.
    Complete,
    /// This is not certain, for this reason.
    Incomplete(String),
}

/// The questions of one term as master.
#[derive(Debug, Default)]
pub(super) struct TakeOver {
    stage: Stage,
    /// The port of the previous master, if that was alive when the questions began.
    rival: Option<Guid>,
    /// What the previous master acknowledged without this SM, by a responder's answer.
    unawaited: Option<RegistryVersion>,
}

#[derive(Debug, Default)]
enum Stage {
    /// Responders have not been asked yet.
    #[default]
    New,
    /// Responders were asked for their versions, by the question with this number.
    Asking { number: u64, until: Instant },
    /// Waits until `target` is stored here: rows requested from a responder, or the rest of the
    /// previous master's feed.
    Fetching { number: u64, target: RegistryVersion, until: Instant },
    /// The result is known.
    Settled,
}

impl TakeOver {
    /// Begins again: this SM is no longer master.
    pub(super) fn reset(&mut self) {
        self.stage = Stage::New;
    }

    /// Ends the takeover: the previous master vouches that nothing is missing.
    pub(super) fn settle_by_handover(&mut self) {
        self.stage = Stage::Settled;
    }

    /// Whether a session may begin.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Settled)
    }

    /// When to call [`poll`](Self::poll) next.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        (!self.is_settled()).then_some(now + INTERVAL)
    }

    /// Performs due work; returns the result, once. `inquire` asks all responders for their
    /// versions, and one for its rows, and returns the number of the question.
    pub(super) fn poll(
        &mut self,
        evidence: &Evidence<'_>,
        inquire: impl Fn(Option<u64>) -> u64,
    ) -> Option<Finding> {
        let now = evidence.now;
        if let Stage::New = self.stage {
            self.rival = evidence.rival();
            let patience = match self.rival {
                Some(_) => SEAL_PATIENCE,
                None if evidence.is_blind() => CONNECT_PATIENCE,
                None => ANSWER_PATIENCE,
            };
            self.stage = Stage::Asking { number: inquire(None), until: now + patience };
        }
        if let Stage::Asking { number, until } = self.stage {
            let is_sealed = self.rival.is_none_or(|rival| evidence.is_over(rival, number));
            if now < until && !(is_sealed && evidence.is_answered(number)) {
                return None;
            }
            if let Some(target) = self.rival.and_then(|rival| evidence.sealed(rival, number))
                && target > evidence.held
            {
                self.stage = Stage::Fetching { number, target, until: now + ROWS_PATIENCE };
                return None;
            }
            self.unawaited = evidence.unawaited(number);
            match evidence.newest(number) {
                // What this SM has not stored was not acknowledged then. Without the outcomes of
                // those writes, their repeats would get other answers: a deletion that there is no
                // such record.
                Some((id, target))
                    if target > evidence.held
                        && (!evidence.was_awaited() || self.unawaited.is_some()) =>
                {
                    info!("responder {id:#x} holds a newer registry, {target}: fetching it");
                    inquire(Some(id));
                    self.stage = Stage::Fetching { number, target, until: now + ROWS_PATIENCE };
                }
                _ => return self.settle(evidence, number),
            }
        }
        if let Stage::Fetching { number, target, until } = self.stage
            && (evidence.held >= target || now >= until)
        {
            return self.settle(evidence, number);
        }
        None
    }

    fn settle(&mut self, evidence: &Evidence<'_>, number: u64) -> Option<Finding> {
        self.stage = Stage::Settled;
        let unawaited = self.unawaited.filter(|_| evidence.was_awaited());
        let missing = match unawaited {
            Some(version) => Some(format!("{version} was acknowledged without this SM")),
            None => evidence.judge(number, self.rival),
        };
        Some(missing.map_or(Finding::Complete, Finding::Incomplete))
    }
}

impl Evidence<'_> {
    /// Answers to the question with this number, or a later one.
    fn answers(&self, number: u64) -> impl Iterator<Item = (u64, Holds)> {
        self.responders.iter().filter_map(move |entry| {
            let holds = entry.holds.filter(|holds| holds.number >= number)?;
            Some((entry.id, holds))
        })
    }

    /// Those of responders that hold all that they have acknowledged. One that was started again
    /// does not know what its process before has.
    fn certain(&self, number: u64) -> impl Iterator<Item = (u64, RegistryVersion)> {
        let certain = self.answers(number).filter(|(_, holds)| !holds.restarted);
        certain.map(|(id, holds)| (id, holds.held))
    }

    /// The newest registry held; one with sequence number 0 was unknown to its master.
    fn newest(&self, number: u64) -> Option<(u64, RegistryVersion)> {
        let known = self.certain(number).filter(|(_, held)| held.sequence != 0);
        known.max_by_key(|(_, held)| *held)
    }

    /// Responders that the master named: those that could acknowledge.
    fn named(&self) -> impl Iterator<Item = u64> {
        self.followed.beat.iter().flat_map(|beat| beat.responders.iter().copied())
    }

    /// Responders named by the master that have not answered.
    fn missing(&self, number: u64) -> impl Iterator<Item = u64> {
        self.named().filter(move |id| !self.certain(number).any(|(answered, _)| answered == *id))
    }

    /// The port of the previous master, if its feed is alive and it does not wait for this SM.
    fn rival(&self) -> Option<Guid> {
        let alive = self.followed.alive(self.now, ALIVE)?;
        let is_received = self.followed.received.session == alive;
        (is_received && !self.was_awaited()).then_some(alive.sm_guid)
    }

    /// What a master that is alive had published when it stopped acknowledging.
    fn sealed(&self, rival: Guid, number: u64) -> Option<RegistryVersion> {
        let followers = self.responders.iter().filter_map(|entry| entry.follower);
        let of_rival = followers.filter(|follower| follower.sm_guid == rival);
        of_rival
            .filter_map(|follower| follower.sealed)
            .find_map(|(answered, version)| (answered >= number).then_some(version))
    }

    /// Whether a master that was alive acknowledges nothing any more: it says so, or its feed has
    /// ended or is silent, as when the process or its host dies.
    fn is_over(&self, rival: Guid, number: u64) -> bool {
        self.sealed(rival, number).is_some() || self.followed.alive(self.now, ALIVE).is_none()
    }

    /// Whether this process does not know which responders could acknowledge more than the
    /// registry has: it was started since, and has followed no master. Ports do not show whether
    /// another was master: an earlier run of this process may have overwritten MasterSMLID.
    fn is_blind(&self) -> bool {
        self.held.session != NO_SESSION && self.followed.received.session == NO_SESSION
    }

    /// Whether all responders that can be expected to answer have done so.
    fn is_answered(&self, number: u64) -> bool {
        if self.is_blind() {
            return false;
        }
        let mut connected = self.responders.iter().filter(|entry| !entry.is_client());
        let has_answered = |id| self.answers(number).any(|(answered, _)| answered == id);
        connected.all(|entry| has_answered(entry.id)) && self.named().all(has_answered)
    }

    /// Whether the previous master acknowledged only what this SM had stored, until it was heard
    /// from last.
    fn was_awaited(&self) -> bool {
        self.beat().is_some_and(|beat| beat.awaited) && self.is_recent()
    }

    /// The newest registry that a responder has acknowledged and this SM has not stored: if writes
    /// waited for this SM, they no longer did, without its notice, as when its host stood still.
    fn unawaited(&self, number: u64) -> Option<RegistryVersion> {
        let answers = self.answers(number).map(|(_, holds)| holds.acknowledged());
        answers.filter(|version| *version > self.held).max()
    }

    /// The last heartbeat of the master whose registry was received.
    fn beat(&self) -> Option<&Beat> {
        let Followed { received, beat, .. } = self.followed;
        let is_known = received.session != NO_SESSION;
        beat.as_ref().filter(|beat| is_known && beat.version.session == received.session)
    }

    /// Whether the feed arrived here as long as that master was alive.
    fn is_recent(&self) -> bool {
        let times = self.heard.zip(self.followed.contact);
        times.is_some_and(|(heard, contact)| heard <= contact + LEASE)
    }

    /// Why it is not certain that everything acknowledged is held here.
    fn judge(&self, number: u64, rival: Option<Guid>) -> Option<String> {
        if self.followed.received.session == NO_SESSION {
            return Some("nothing was received from the previous master".to_owned());
        }
        let Some(beat) = self.beat() else {
            return Some("the previous master sent no heartbeats".to_owned());
        };
        match rival.map(|rival| (self.sealed(rival, number), self.is_over(rival, number))) {
            Some((Some(sealed), _)) if self.held >= sealed => return None,
            Some((Some(sealed), _)) => {
                return Some(format!("the latest changes, up to {sealed}, were not received"));
            }
            Some((None, false)) => {
                return Some("the previous master is alive and may acknowledge more".to_owned());
            }
            Some((None, true)) | None => {}
        }
        if !self.is_recent() {
            return Some("the feed was interrupted while the previous master was alive".into());
        }
        if self.was_awaited() {
            return None;
        }
        if let Some((id, held)) = self.newest(number).filter(|(_, held)| *held > self.held) {
            return Some(format!("responder {id:#x} holds {held}, which could not be fetched"));
        }
        if self.held < beat.version.registry() {
            let behind = beat.version.registry();
            return Some(format!("the latest changes, up to {behind}, were not received"));
        }
        let missing = self.missing(number).next()?;
        Some(format!("responder {missing:#x} has not reported its version"))
    }
}

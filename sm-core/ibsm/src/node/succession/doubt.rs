//! Whether another subnet manager may have become master unnoticed.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::Session;

use super::NO_SESSION;

/// Reason why another manager may be master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// This process did not run for this long.
    Stopped(Duration),
    /// Another manager publishes in a higher session.
    Session(Session),
    /// Responders follow a higher session.
    Rival,
    /// A handover was offered and not answered.
    Handover,
    /// Nothing arrived from the fabric for this long.
    Unreached(Duration),
    /// The SM's own node does not answer, or has an M_Key that is not known: another manager may
    /// have set it.
    OwnNode,
    /// Another manager asked what is held, as one does that was elected.
    Elected,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(time) => {
                write!(f, "this process did not run for {:.1} s", time.as_secs_f32())
            }
            Self::Unreached(time) => {
                write!(f, "nothing was received from the fabric for {:.1} s", time.as_secs_f32())
            }
            Self::OwnNode => {
                write!(f, "the SM's own node does not answer, or has an unknown M_Key")
            }
            Self::Session(session) => write!(f, "another manager publishes in session {session}"),
            Self::Rival => write!(f, "responders follow another manager"),
            Self::Elected => write!(f, "another manager was elected"),
            Self::Handover => write!(f, "the handover may have taken place unnoticed"),
        }
    }
}

/// Whether the mastership is in doubt.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    cause: Option<Cause>,
    /// The last look at the clock.
    last: Option<Instant>,
    /// Session of another master that no election found: it manages another fabric.
    elsewhere: Session,
    /// The highest one of these since this SM is master.
    elsewhere_max: Session,
    /// Whether the responders' session was a cause already.
    rival_known: bool,
    /// Until when one that was elected is expected to publish.
    expected_until: Option<Instant>,
    /// Managers that followed our registry when they may have replaced this one, and when that was
    /// possible last.
    isolated: Option<(BTreeSet<Guid>, Instant)>,
}

impl Doubt {
    /// How long this process did not run.
    pub(super) fn watch(&mut self, now: Instant) -> Duration {
        let last = self.last.replace(now);
        last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last))
    }

    /// A new cause in the state of the feeds: the session of another manager whose feed is open, if
    /// it is higher than `known`, and whether responders follow another manager.
    pub(super) fn cause_now(
        &mut self,
        known: Session,
        other: Option<Session>,
        rival: bool,
    ) -> Option<Cause> {
        let other = other.filter(|other| *other > known && *other != self.elsewhere);
        let is_news = rival && !self.rival_known;
        self.rival_known = rival;
        other.map(Cause::Session).or(is_news.then_some(Cause::Rival))
    }

    /// Raises a doubt; returns whether there was none.
    pub(super) fn raise(&mut self, cause: Cause) -> bool {
        let is_new = self.cause.is_none() || matches!(cause, Cause::Stopped(_));
        self.cause.get_or_insert(cause);
        is_new
    }

    /// Another manager was elected: what it publishes is awaited, for this time at most, before an
    /// election of ours settles the doubt.
    pub(super) fn expect(&mut self, until: Instant) {
        self.expected_until = Some(until);
    }

    /// Whether what another manager publishes is awaited; `other` is the session of one whose feed
    /// is open, `known` the last one before.
    pub(super) fn is_expecting(
        &self,
        now: Instant,
        known: Session,
        other: Option<Session>,
    ) -> bool {
        let is_published = other.is_some_and(|other| other > known);
        self.expected_until.is_some_and(|until| now < until) && !is_published
    }

    /// One of the managers that follow our registry may have been elected until now without this
    /// SM hearing of it.
    pub(super) fn note_isolated(&mut self, now: Instant, followers: impl Iterator<Item = Guid>) {
        let (all, last) = self.isolated.get_or_insert((BTreeSet::new(), now));
        all.extend(followers);
        *last = now;
    }

    /// A manager that followed our registry then, and has not proven since that it still does.
    /// `heard`: when what it has stored was published last. One that does not answer is awaited
    /// until `limit` has passed.
    pub(super) fn awaited_follower(
        &self,
        now: Instant,
        limit: Duration,
        heard: impl Fn(Guid) -> Option<Instant>,
    ) -> Option<Guid> {
        let (followers, last) = self.isolated.as_ref().filter(|(_, last)| now < *last + limit)?;
        followers.iter().copied().find(|&guid| heard(guid).is_none_or(|at| at <= *last))
    }

    pub(super) fn is_raised(&self) -> bool {
        self.cause.is_some()
    }

    /// An election found no other master; `other` is the session of one whose feed is open.
    pub(super) fn settle(&mut self, other: Option<Session>) {
        (self.cause, self.expected_until, self.isolated) = (None, None, None);
        self.elsewhere = other.unwrap_or(NO_SESSION);
        self.elsewhere_max = self.elsewhere_max.max(self.elsewhere);
    }

    /// Whether a session, or a later one, was that of the master of another fabric.
    pub(super) fn was_elsewhere(&self, other: Session) -> bool {
        other <= self.elsewhere_max
    }

    /// This SM is not master.
    pub(super) fn clear(&mut self) {
        (self.cause, self.elsewhere, self.rival_known) = (None, NO_SESSION, false);
        self.elsewhere_max = NO_SESSION;
        (self.expected_until, self.isolated) = (None, None);
    }
}

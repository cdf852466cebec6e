//! How mastership passes between managers without the loss of registrations that were acknowledged.
//!
//! - [`followed`]: the copy of another manager's registry, and its state.
//! - [`takeover`]: after a takeover, finds out whether the copy has all that was acknowledged.
//! - [`handover`]: hands over to a manager that follows our registry, once it has stored all of it.
//! - [`doubt`]: a master that may have been replaced unnoticed acknowledges nothing until an
//!   election has found no other.
//!
//! Not here: the election (`sweep` of sm-core), and the stream of the copy (`runtime::follow`).

mod doubt;
mod followed;
mod handover;
mod takeover;

use std::time::{Duration, Instant};

use ib_mad::wire::attribute::SmState;
use sa_proto::snapshot::{Session, Version};
use tracing::{info, warn};

use super::{RegistryLink, SnapshotFeed};
use crate::observe::{CopyStatus, Responders};
use crate::publish::{Challenge, LEASE};
use doubt::{Cause, Doubt};
pub use followed::{Beat, Followed};
use handover::{PreparedHandover, Published};
use sm_core::sweep::{RegistryCopy, Sweeper};
use takeover::{Evidence, Finding, TakeOver};

/// Minimum time for which a node vouches for its mastership. Managers that poll each other
/// unusually often could take over sooner.
const VOUCHED_MIN: Duration = Duration::from_millis(500);
/// How long a standby waits for a master's feed that cannot be reached before it accepts a handover
/// without a copy.
const FEED_PATIENCE: Duration = Duration::from_secs(60);
/// How long a master that may have been replaced waits for the session of another manager that was
/// elected, and for managers that follow its registry, before an election of its own counts.
const SESSION_PATIENCE: Duration = Duration::from_secs(15);
/// After this silence of its feed a master is also polled between the regular polls, at
/// [`PROBE_INTERVAL`].
const FEED_SILENCE: Duration = Duration::from_secs(1);
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// How often a master that shares its store shows that it does not hang.
const PULSE: Duration = Duration::from_secs(1);
/// How long a master may hear nothing from the fabric before it asks its neighbor.
const REACH_INTERVAL: Duration = Duration::from_millis(500);
/// The same of a manager that is not master, or has no session yet, while the feed is silent.
const LISTEN_INTERVAL: Duration = Duration::from_millis(150);
/// A manager that has heard nothing from the fabric for this long may not have heard the master
/// either. In the second between [`LEASE`] and the time at which a master gives its standby up, the
/// standby polls it every 200 ms until it answers: one of these polls arrives in the rest.
const UNHEARD_MAX: Duration = Duration::from_millis(600);

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuccessionCounters {
    /// Failed handovers to a manager that follows.
    pub handovers_failed: u64,
    /// How often this master may have been replaced unnoticed.
    pub doubts: u64,
    /// Takeovers with a copy that was shown to be complete.
    pub complete: u64,
    /// Takeovers with a copy that was not.
    pub incomplete: u64,
    /// Takeovers without all LIDs, M_Keys and links of the previous master.
    pub states_incomplete: u64,
}

/// Whether the node may publish and acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outlook {
    /// Whether a session may begin: the registry that it begins with is there.
    pub(super) may_begin: bool,
    /// Until when writes may be acknowledged; `None` if not.
    pub(super) vouched_until: Option<Instant>,
}

/// See the module.
pub(super) struct Succession {
    /// Whether the registry of other managers is followed.
    follows: bool,
    /// Whether the master's files are used in place of this host's.
    follows_config: bool,
    /// Whether the registry is in a store that several managers share.
    shares: bool,
    /// Whether the shared store was checked in this term as master.
    store_checked: bool,
    /// Whether a session was read from that store since this process started.
    store_has_session: bool,
    followed: Followed,
    doubt: Doubt,
    /// The highest session of another manager that was known when this SM became master.
    known_at_election: Session,
    /// When this process went on after it had not run: until then the master may have been alive.
    resumed: Option<Instant>,
    /// Until when this SM last heard nothing of the fabric while the master's feed was silent:
    /// until then that master may have been alive.
    unheard: Option<Instant>,
    takeover: TakeOver,
    handover: PreparedHandover,
    /// [`Followed::elections`] that are known.
    elections: u64,
    /// The version published last, if this SM is master and acknowledges nothing, and the number
    /// of elections known then.
    sealed: Option<(Version, u64)>,
    /// The version published last if this SM was master and is not; else none.
    ended: Version,
    /// Whether this SM is master, and publishes.
    has_session: bool,
    /// Whether this SM heard nothing of the fabric for so long that it may have been replaced, and
    /// that is still in doubt.
    is_unreached: bool,
    /// Whether the SM's own node could not be read as the M_Key of its port is not known.
    lacks_m_key: bool,
    /// Whether the copy was ready for a handover when this SM was last not master.
    caught_up: bool,
    /// Since when this standby has reached no master's feed.
    unreachable_since: Option<Instant>,
    probe_due: Option<Instant>,
    /// Whether the copy was in step at the last turn, and since when that has been so.
    step: Option<(bool, Instant)>,
    counters: SuccessionCounters,
    due: Option<Instant>,
}

/// Parts of the node that succession acts on.
pub(super) struct Parts<'a> {
    pub(super) sweeper: &'a mut Sweeper,
    pub(super) feed: &'a dyn SnapshotFeed,
    pub(super) registry: &'a dyn RegistryLink,
    pub(super) responders: &'a Responders,
    /// Whether all changes of LIDs, M_Keys and links are published.
    pub(super) is_state_published: bool,
}

impl Succession {
    pub(super) fn new(follows: bool, follows_config: bool, shares: bool) -> Self {
        Self {
            follows,
            follows_config,
            shares,
            store_checked: false,
            store_has_session: false,
            followed: Followed::default(),
            doubt: Doubt::default(),
            known_at_election: NO_SESSION,
            resumed: None,
            unheard: None,
            takeover: TakeOver::default(),
            handover: PreparedHandover::default(),
            elections: 0,
            sealed: None,
            ended: Version::NONE,
            has_session: false,
            is_unreached: false,
            lacks_m_key: false,
            caught_up: false,
            unreachable_since: None,
            probe_due: None,
            step: None,
            counters: SuccessionCounters::default(),
            due: None,
        }
    }

    /// The state of the copy.
    pub(super) fn followed(&self) -> &Followed {
        &self.followed
    }

    /// Takes the state of the copy.
    pub(super) fn handle_followed(&mut self, followed: Followed) {
        self.followed = followed;
    }

    /// The version published last, if this SM is master and acknowledges nothing since its
    /// mastership is in doubt, and how many elections of others it knows.
    pub(super) fn sealed(&self) -> Option<(Version, u64)> {
        self.sealed
    }

    /// The version published last if this SM was master and is not; else [`Version::NONE`].
    pub(super) fn ended(&self) -> Version {
        self.ended
    }

    pub(super) fn counters(&self) -> SuccessionCounters {
        self.counters
    }

    /// When [`follow`](Self::follow) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Must be called before anything that arrives is handled: notices that this process was
    /// stopped for so long that another manager may have taken over.
    pub(super) fn watch(&mut self, now: Instant, sweeper: &mut Sweeper) {
        let stopped = self.doubt.watch(now);
        if stopped > LEASE / 2 {
            self.resumed = Some(now);
        }
        self.note_unheard(now, sweeper);
        if sweeper.sm_state() != SmState::Master {
            // A packet that arrives may be a handover.
            self.caught_up = self.followed.is_ready_for_handover(now);
            return self.set_awaits_copy(now, sweeper);
        }
        if stopped > vouched(sweeper) {
            self.note_isolated(now);
            self.raise(now, Cause::Stopped(stopped), sweeper);
        }
        self.check_reach(now, sweeper);
    }

    /// Notices that this SM cannot hear whether the master is alive whose feed is silent.
    fn note_unheard(&mut self, now: Instant, sweeper: &Sweeper) {
        let Some(contact) = self.followed.contact.filter(|_| self.follows) else { return };
        let since = sweeper.heard_fabric().max(Some(contact + FEED_SILENCE));
        if since.is_some_and(|since| now > since + UNHEARD_MAX) {
            self.unheard = Some(now);
        }
    }

    /// When the fabric was heard last, if another manager could replace this one; else now.
    fn heard(&self, now: Instant, sweeper: &Sweeper) -> Instant {
        let has_others = self.follows || self.shares;
        sweeper.heard_fabric().filter(|_| has_others).map_or(now, |heard| heard.min(now))
    }

    /// Notices that this master does not hear the fabric for so long that another may have taken
    /// over, or cannot read its own node, whose M_Key another manager may have set.
    fn check_reach(&mut self, now: Instant, sweeper: &mut Sweeper) {
        let silence = now.saturating_duration_since(self.heard(now, sweeper));
        if self.has_session && silence > vouched(sweeper) {
            self.is_unreached = true;
            self.note_isolated(now);
            self.raise(now, Cause::Unreached(silence), sweeper);
        }
        let has_others = self.follows || self.shares;
        let lacks_m_key = self.has_session && has_others && sweeper.lacks_own_m_key();
        let lacked_m_key = std::mem::replace(&mut self.lacks_m_key, lacks_m_key);
        if lacks_m_key {
            self.is_unreached = true;
            self.note_isolated(now);
            self.raise(now, Cause::OwnNode, sweeper);
        } else if lacked_m_key && self.doubt.is_raised() {
            // An election before that has not asked all.
            sweeper.doubt(now);
        }
    }

    /// A manager that follows this SM may have been elected until now.
    fn note_isolated(&mut self, now: Instant) {
        if self.follows {
            self.doubt.note_isolated(now, self.handover.followers());
        }
    }

    /// Whether a standby accepts a handover, by the state of its copy.
    fn set_awaits_copy(&mut self, now: Instant, sweeper: &mut Sweeper) {
        if !self.follows {
            return;
        }
        if self.followed.is_connected {
            self.unreachable_since = None;
        }
        let waits = self.followed.is_connected || {
            let since = *self.unreachable_since.get_or_insert(now);
            now < since + FEED_PATIENCE
        };
        sweeper.set_awaits_copy(!self.followed.has_caught_up() && waits);
    }

    fn raise(&mut self, now: Instant, cause: Cause, sweeper: &mut Sweeper) {
        if self.doubt.raise(cause) {
            self.counters.doubts += 1;
            warn!(
                "{cause}: acknowledging no registrations until the other managers have been asked"
            );
            sweeper.doubt(now);
        }
    }

    /// Performs due work; returns what the node may do now. Spurious calls are allowed.
    pub(super) fn follow(&mut self, now: Instant, mut parts: Parts<'_>) -> Outlook {
        self.due = None;
        let is_master = parts.sweeper.sm_state() == SmState::Master;
        (self.sealed, self.ended) = (None, Version::NONE);
        if !is_master || parts.feed.session().is_none() {
            self.elections = self.followed.elections;
        }
        // Not known while it is being read again.
        self.store_has_session |= parts.registry.held().session != NO_SESSION;
        parts.sweeper.set_lapsed_ports(now, &parts.registry.lapsed_ports(), self.shares);
        self.has_session = is_master && parts.feed.session().is_some();
        // Those of the first sweep wait until the registry takes changes.
        let asked = if self.has_session { parts.sweeper.take_asked() } else { Vec::new() };
        if !asked.is_empty() {
            parts.registry.ports_asked(asked);
        }
        if is_master {
            self.reach(now, &mut parts);
            self.follow_as_master(now, &mut parts);
        } else {
            self.doubt.clear();
            self.known_at_election = self.followed.publishing();
            parts.sweeper.set_in_doubt(false);
            self.takeover.reset();
            // What it has published is final once its session has ended.
            let published = parts.feed.session().is_none().then(|| parts.feed.version());
            let published = published.filter(|version| *version != Version::NONE);
            self.sealed = published.map(|version| (version, self.elections));
            self.ended = published.unwrap_or(Version::NONE);
            self.follow_as_standby(now, parts.sweeper);
            self.listen(now, parts.sweeper);
        }
        self.is_unreached &= self.doubt.is_raised();
        parts.registry.yield_store(self.is_unreached);
        let Parts { sweeper, feed, responders, .. } = parts;
        let is_master = sweeper.sm_state() == SmState::Master;
        self.handover.follow(now, sweeper, responders);
        let may_acknowledge = is_master
            && feed.session().is_some()
            && !self.doubt.is_raised()
            && !self.handover.holds_writes();
        let may_begin = is_master
            && (!self.follows || self.takeover.is_settled())
            && (!self.shares || self.store_checked);
        let vouched = vouched(sweeper);
        if is_master {
            let wakes_in = if self.shares { PULSE.min(vouched / 4) } else { vouched / 4 };
            self.wake(Some(now + wakes_in));
        }
        let heard = self.heard(now, sweeper);
        Outlook { may_begin, vouched_until: may_acknowledge.then(|| heard + vouched) }
    }

    /// Makes sure that the fabric is heard as long as it can be reached.
    fn reach(&mut self, now: Instant, parts: &mut Parts<'_>) {
        if self.follows || self.shares {
            let interval = if self.has_session { REACH_INTERVAL } else { LISTEN_INTERVAL };
            let silence = interval.min(vouched(parts.sweeper) / 4);
            self.wake(Some(parts.sweeper.probe_fabric(now, silence)));
            self.check_reach(now, parts.sweeper);
        }
        parts.feed.note_heard(self.heard(now, parts.sweeper));
    }

    fn follow_as_master(&mut self, now: Instant, parts: &mut Parts<'_>) {
        let Parts { sweeper, feed, registry, responders, is_state_published } = parts;
        let (feed, registry) = (*feed, *registry);
        sweeper.set_awaits_copy(false);
        (self.unreachable_since, self.probe_due, self.step) = (None, None, None);
        let Some(session) = feed.session() else {
            if self.doubt.is_raised() || self.followed.publishing() > self.known_at_election {
                warn!(
                    "another subnet manager may have been master since the election: taking over \
                     again"
                );
                self.doubt.clear();
                self.takeover.reset();
                sweeper.take_over_again(now);
            } else if self.follows {
                self.take_over(now, sweeper, feed, registry, responders);
            } else if self.shares {
                self.store_checked = true;
                self.take_over_from_store(now, sweeper, registry);
            }
            return;
        };
        if self.shares && sweeper.awaits_registry_copy() {
            self.take_over_from_store(now, sweeper, registry);
        }
        if std::mem::replace(&mut self.elections, self.followed.elections)
            != self.followed.elections
        {
            self.doubt.expect(now + SESSION_PATIENCE);
            self.raise(now, Cause::Elected, sweeper);
        }
        let rival = feed.challenge() == Some(Challenge::Rival);
        let known = session.min(self.known_at_election);
        if let Some(cause) = self.doubt.cause_now(known, self.followed.connected(), rival) {
            self.raise(now, cause, sweeper);
        }
        // One that stands by again publishes nothing.
        let is_expecting = self.doubt.is_expecting(now, known, self.followed.connected())
            && !(sweeper.is_doubt_settled() && sweeper.found_standby(self.followed.elected));
        let published = self.followed.publishing();
        let heard = |guid| match published > session && published.sm_guid == guid {
            true => Some(now),
            false => responders.follower(guid).and_then(|follower| follower.stored_at),
        };
        let is_settled = self.doubt.is_raised()
            && sweeper.is_doubt_settled()
            && !sweeper.lacks_own_m_key()
            && !is_expecting
            && self.doubt.awaited_follower(now, SESSION_PATIENCE, heard).is_none();
        if is_settled && let Some(successor) = self.successor(session, sweeper) {
            warn!(
                "another subnet manager was master meanwhile, in session {successor}, and is no \
                 longer: taking over from it"
            );
            self.doubt.clear();
            self.takeover.reset();
            return sweeper.take_over_again(now);
        }
        if is_settled && self.must_take_over_again(feed) {
            warn!(
                "responders or standbys hold the registry of a later master: taking over from it"
            );
            self.doubt.clear();
            self.takeover.reset();
            return sweeper.take_over_again(now);
        }
        if is_settled {
            info!(
                "no other subnet manager is master: registrations are acknowledged again; one may \
                 have overwritten settings: starting a full sweep"
            );
            self.doubt.settle(self.followed.connected());
            sweeper.program_again(now);
        }
        // A master that none of our elections found replaces us if its part of the fabric is
        // joined to ours.
        let is_outranked = self.followed.connected().is_some_and(|other| other > session);
        sweeper.set_in_doubt(self.doubt.is_raised() || is_outranked);
        if self.doubt.is_raised() {
            self.sealed = registry.is_sealed().then(|| (feed.version(), self.elections));
            return;
        }
        let published = Published {
            session,
            version: feed.version(),
            state: is_state_published.then(|| feed.state()),
            sealed: registry.is_sealed(),
        };
        let failed = self.handover.poll(now, sweeper, responders, published);
        if let Some(failed) = failed {
            self.counters.handovers_failed += 1;
            if failed.may_have_happened {
                self.raise(now, Cause::Handover, sweeper);
            }
        }
        self.wake(self.handover.poll_timeout(now));
    }

    /// The session of a manager that replaced this SM, and has stood by or died since: what it
    /// acknowledged is in its registry only. One that is still master manages another fabric.
    fn successor(&self, session: Session, sweeper: &Sweeper) -> Option<Session> {
        let other = self.followed.publishing();
        let has_ended = self.followed.connected().is_none() || sweeper.found_standby(other.sm_guid);
        (self.follows && other > session && has_ended && !self.doubt.was_elsewhere(other))
            .then_some(other)
    }

    /// Whether the followed master handed over to this SM: it does so once it acknowledges nothing
    /// more and this SM has stored all that it published, so that no responder need be asked.
    fn is_handed_over(&self, sweeper: &Sweeper) -> bool {
        self.caught_up && sweeper.taken_from() == Some(self.followed.publishing().sm_guid)
    }

    /// Determines whether the copy is complete, before a session begins.
    fn take_over(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        feed: &dyn SnapshotFeed,
        registry: &dyn RegistryLink,
        responders: &Responders,
    ) {
        let was_settled = self.takeover.is_settled();
        self.take_over_registry(now, sweeper, feed, registry, responders);
        // LIDs and M_Keys are not asked for: responders do not have them.
        if !was_settled
            && self.takeover.is_settled()
            && self.followed.beat.is_some()
            && !self.followed.has_state()
        {
            self.counters.states_incomplete += 1;
            warn!(
                "the last changes of LIDs and M_Keys of the previous master were not received: \
                 hosts that are off may get other LIDs, and ports with another M_Key may be \
                 unreachable"
            );
        }
    }

    fn take_over_registry(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        feed: &dyn SnapshotFeed,
        registry: &dyn RegistryLink,
        responders: &Responders,
    ) {
        if !self.takeover.is_settled() && self.is_handed_over(sweeper) {
            self.takeover.settle_by_handover();
            self.counters.complete += 1;
            sweeper.set_ports_of_master(self.followed.ports());
            return sweeper.set_registry_copy(now, RegistryCopy::Complete);
        }
        let held = registry.held();
        let evidence = Evidence {
            followed: &self.followed,
            held,
            responders: &responders.load(),
            now,
            heard: self.may_have_lived(sweeper),
        };
        let finding = self.takeover.poll(&evidence, |rows_from| feed.inquire(rows_from));
        self.wake(self.takeover.poll_timeout(now));
        match finding {
            Some(Finding::Complete) => {
                self.counters.complete += 1;
                sweeper.set_ports_of_master(self.followed.ports());
                sweeper.set_registry_copy(now, RegistryCopy::Complete);
            }
            Some(Finding::Incomplete(reason)) => {
                // Without another master before this one nothing was acknowledged elsewhere.
                let is_foreign = held.session != NO_SESSION
                    && (held.session.sm_guid != sweeper.own_port() || sweeper.found_other_master());
                if sweeper.awaits_registry_copy() || is_foreign {
                    self.counters.incomplete += 1;
                    warn!(
                        "registrations may be missing ({reason}): clients are asked to register \
                         again, unless no_clients_rereg is set"
                    );
                }
                sweeper.set_registry_copy(now, RegistryCopy::Incomplete);
            }
            None => {}
        }
    }

    /// With a shared store everything acknowledged is in it, whether or not it can be reached now.
    /// Until it was read, clients are not asked to register again: they could not be served.
    fn take_over_from_store(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        registry: &dyn RegistryLink,
    ) {
        let was_read = registry.was_read();
        self.store_has_session |= registry.held().session != NO_SESSION;
        if !self.store_has_session && !was_read {
            return;
        }
        let is_known = self.store_has_session;
        if sweeper.awaits_registry_copy() {
            match is_known {
                true => self.counters.complete += 1,
                false => {
                    self.counters.incomplete += 1;
                    warn!(
                        "registrations may be missing (the store is empty): clients are asked to \
                         register again, unless no_clients_rereg is set"
                    );
                }
            }
        }
        let copy = if is_known { RegistryCopy::Complete } else { RegistryCopy::Incomplete };
        sweeper.set_registry_copy(now, copy);
    }

    fn follow_as_standby(&mut self, now: Instant, sweeper: &mut Sweeper) {
        if self.shares {
            self.store_checked = false;
            sweeper.set_registry_copy(now, RegistryCopy::Pending);
        }
        if !self.follows {
            return;
        }
        sweeper.set_registry_copy(now, RegistryCopy::Pending);
        let in_step = self.followed.is_in_step(now);
        if self.step.is_none_or(|(was, _)| was != in_step) {
            self.step = Some((in_step, now));
        }
        self.set_awaits_copy(now, sweeper);
        self.probe(now, sweeper);
        // So that a longer pause shows that this process was stopped.
        self.wake(Some(now + LEASE / 4));
    }

    /// Finds out whether a master whose feed fell silent is alive: only then can it have
    /// acknowledged more than the copy has.
    fn probe(&mut self, now: Instant, sweeper: &mut Sweeper) {
        let Some(contact) = self.followed.contact else { return };
        if sweeper.sm_state() != SmState::Standby || !self.may_claim(contact, sweeper) {
            return;
        }
        let due = self.probe_due.unwrap_or(now).max(contact + FEED_SILENCE);
        if now < due {
            return self.wake(Some(due));
        }
        let sent = sweeper.probe_master(now);
        let wait = if sent { PROBE_INTERVAL } else { PROBE_INTERVAL / 10 };
        self.probe_due = Some(now + wait);
        self.wake(self.probe_due);
    }

    /// Makes sure that the fabric is heard, as long as it can be reached, while the feed is silent.
    fn listen(&mut self, now: Instant, sweeper: &mut Sweeper) {
        let contact = self.followed.contact.filter(|contact| self.may_claim(*contact, sweeper));
        let Some(due) = contact.map(|contact| contact + FEED_SILENCE) else { return };
        if !self.follows || sweeper.sm_state() == SmState::NotActive {
            return;
        }
        let due = if now < due { due } else { sweeper.probe_fabric(now, LISTEN_INTERVAL) };
        self.note_unheard(now, sweeper);
        self.wake(Some(due));
    }

    /// When the master was last heard from, or may have been alive unnoticed.
    fn may_have_lived(&self, sweeper: &Sweeper) -> Option<Instant> {
        sweeper.master_seen().max(self.resumed).max(self.unheard)
    }

    /// Whether the copy may still turn out to be complete: the master is not known to have outlived
    /// the last contact.
    fn may_claim(&self, contact: Instant, sweeper: &Sweeper) -> bool {
        self.may_have_lived(sweeper).is_some_and(|lived| lived <= contact + LEASE)
    }

    fn wake(&mut self, due: Option<Instant>) {
        self.due = self.due.into_iter().chain(due).min();
    }

    /// Whether, after a full sweep, everything is to be taken over again: responders follow another
    /// master, which is no longer found. That its feed is still open proves nothing: the end of a
    /// connection may not have been noticed yet.
    pub(super) fn must_take_over_again(&self, feed: &dyn SnapshotFeed) -> bool {
        self.follows && feed.challenge() == Some(Challenge::Rival)
    }

    /// State of the copy for operators; `None` unless a registry is followed and this SM is not
    /// master.
    pub(super) fn copy_status(&self, now: Instant) -> Option<CopyStatus> {
        let (in_step, since) = self.step?;
        let Followed { stored, .. } = self.followed;
        let contact = self.followed.contact.map(|at| now.saturating_duration_since(at));
        let Followed { files_differ, .. } = &self.followed;
        Some(CopyStatus {
            in_step,
            since: now.saturating_duration_since(since),
            stored: stored.registry(),
            lag: self.followed.lag(),
            contact,
            has_state: self.followed.has_state(),
            files_differ: files_differ.clone(),
            follows_config: self.follows_config,
        })
    }
}

/// How long a master may act without checking again that it still is master: no other takes over
/// sooner. A standby may have polled this SM just before this process was stopped.
fn vouched(sweeper: &Sweeper) -> Duration {
    let settings = sweeper.settings();
    let interval = Duration::from_millis(u64::from(settings.sminfo_polling_timeout));
    let polls = settings.polling_retry_number.saturating_sub(1);
    interval.saturating_mul(polls).max(VOUCHED_MIN)
}

/// In comparisons: a session that does not exist.
const NO_SESSION: Session = sa_proto::snapshot::Version::NONE.session;

#[cfg(test)]
mod tests;

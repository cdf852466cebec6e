//! Publication to responders: sessions that begin and end with mastership, the fabric as each
//! sweep found it, and multicast tables in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::wire::attribute::{SmInfo, SmState};
use sa_proto::snapshot::{FabricPlane, Session, SubnetManager};
use tracing::{error, warn};

use super::held::HeldEvents;
use super::session::SessionState;
use super::{NewSession, RegistryLink, SnapshotFeed};
use crate::observe::Responders;
use crate::publish::{Challenge, PublishError};
use sm_core::notice::Event;
use sm_core::sweep::Sweeper;

/// How long multicast tables wait for others to be published with them.
const REPUBLISH_DELAY: Duration = Duration::from_secs(1);

/// Sessions, and the data that waits to be published.
pub(super) struct Publication {
    feed: Arc<dyn SnapshotFeed>,
    /// The session, and the plane that waits for it.
    session: SessionState,
    /// Events that wait for responders.
    held: HeldEvents,
    /// When multicast tables that were written are published, if any were.
    republish_due: Option<Instant>,
    /// Whether a sweep was requested, to find out if another SM is master.
    challenged: bool,
    /// The subnet managers as published last.
    managers: Vec<SubnetManager>,
    /// Whether a session may begin: the registry that it begins with is there.
    may_begin: bool,
}

impl Publication {
    /// The subnet managers to publish. If only their ActCounts have changed, which each SMInfo
    /// request does, the rows are those published last: otherwise every sweep would be a change.
    pub(super) fn managers(&mut self, found: Vec<SubnetManager>) -> Vec<SubnetManager> {
        let bare = |rows: &[SubnetManager]| -> Vec<SubnetManager> {
            let mut rows = rows.to_vec();
            rows.iter_mut().for_each(|row| _ = SmInfo::of_mut(&mut row.info).set_act_count(0));
            rows
        };
        if bare(&found) != bare(&self.managers) {
            self.managers = found;
        }
        self.managers.clone()
    }

    pub(super) fn new(feed: Arc<dyn SnapshotFeed>) -> Self {
        Self {
            feed,
            session: SessionState::default(),
            held: HeldEvents::default(),
            republish_due: None,
            challenged: false,
            managers: Vec::new(),
            may_begin: false,
        }
    }

    pub(super) fn feed(&self) -> &dyn SnapshotFeed {
        &*self.feed
    }

    /// Sets whether a session may begin.
    pub(super) fn set_may_begin(&mut self, may_begin: bool) {
        self.may_begin = may_begin;
    }

    /// Requests a session after a sweep if this SM is master and has none, or if the sweep was full
    /// and responders follow a rival. Only a full sweep queries the other subnet managers, and so
    /// decides whether to take responders back from one of them. A responder that states a rival
    /// again and again has a limit, as one that states higher epochs does.
    pub(super) fn prepare(&mut self, now: Instant, full: bool, sweeper: &Sweeper) {
        let begins = match self.feed.session() {
            None => sweeper.sm_state() == SmState::Master,
            Some(_) => {
                let is_challenged = full && self.feed.challenge() == Some(Challenge::Rival);
                let begins = is_challenged && self.session.may_raise(now);
                if begins {
                    self.session.note_raise(now);
                }
                begins
            }
        };
        if begins {
            self.session.request();
        }
    }

    /// Publishes the result of a sweep, as soon as there is a session.
    pub(super) fn publish(
        &mut self,
        now: Instant,
        plane: FabricPlane,
        registry: &dyn RegistryLink,
    ) {
        self.session.offer(plane);
        self.publish_plane(now, registry);
    }

    /// Publishes as long as this SM is the master, and makes sure that responders follow. Returns
    /// whether to answer clients.
    pub(super) fn follow_mastership(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        registry: &dyn RegistryLink,
    ) -> bool {
        if sweeper.sm_state() != SmState::Master {
            self.feed.end_session();
            self.session.end();
        }
        self.begin_session(now, sweeper);
        if self.publish_plane(now, registry) {
            // It lacks multicast tables that were written while it waited.
            self.multicast_written(now);
        }
        let is_on = self.feed.session().is_some() && !self.session.is_waiting();
        match self.feed.challenge() {
            Some(Challenge::Epoch) if self.session.may_raise(now) => {
                self.session.ask(NewSession::Above);
            }
            Some(Challenge::Rival) if !self.challenged && self.session.may_raise(now) => {
                warn!(
                    "responders follow another SM's session; starting a heavy sweep to find that SM"
                );
                self.challenged = true;
                sweeper.request_heavy_sweep(now);
            }
            Some(_) => {}
            None => self.challenged = false,
        }
        is_on
    }

    /// Multicast tables were written: they are published [`REPUBLISH_DELAY`] after the first.
    pub(super) fn multicast_written(&mut self, now: Instant) {
        self.republish_due.get_or_insert(now + REPUBLISH_DELAY);
    }

    /// Publishes multicast tables, if that is due; returns whether it was.
    pub(super) fn republish(&mut self, now: Instant, sweeper: &Sweeper) -> bool {
        if self.republish_due.take_if(|due| now >= *due).is_none() {
            return false;
        }
        if self.feed.session().is_some()
            && let Err(failure) = self.feed.publish_multicast(sweeper.fabric().multicast_tables())
        {
            error!(
                "cannot publish the snapshot: {}; responders keep the previous one",
                sa_proto::with_causes(&failure)
            );
        }
        true
    }

    /// Holds events of ports until responders serve the snapshot published last, and returns those
    /// that may be reported now.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        events: Vec<Event>,
        responders: &Responders,
    ) -> Vec<Event> {
        if !events.is_empty() {
            self.held.hold(now, self.feed.version(), events);
        }
        self.held.release(now, &responders.load())
    }

    /// Discards held events: another subnet manager is master, and reports its own.
    pub(super) fn discard_held(&mut self) {
        self.held.clear();
    }

    /// All held events: the run ends.
    pub(super) fn release_all(&mut self) -> Vec<Event> {
        self.held.release_all()
    }

    /// When something is due again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = [self.republish_due, self.session.poll_timeout(), self.held.poll_timeout()];
        due.into_iter().flatten().min()
    }

    /// The version published last.
    pub(super) fn version(&self) -> sa_proto::snapshot::Version {
        self.feed.version()
    }

    /// The session.
    pub(super) fn session(&self) -> &SessionState {
        &self.session
    }

    /// The session that the driver is to begin now. Its result is due before the next call.
    pub(super) fn poll_session(&mut self) -> Option<NewSession> {
        self.session.poll_new()
    }

    /// The driver has begun the session that [`poll_session`](Self::poll_session) returned last, or
    /// could not.
    pub(super) fn handle_session(
        &mut self,
        now: Instant,
        result: Result<Session, PublishError>,
        registry: &dyn RegistryLink,
    ) {
        let result = result.map_err(|failure| sa_proto::with_causes(&failure));
        if self.session.begun(now, result) {
            registry.session_begun();
        }
    }

    /// Asks for a session if one is requested and due.
    fn begin_session(&mut self, now: Instant, sweeper: &Sweeper) {
        let fabric = sweeper.fabric();
        let is_due = self.may_begin && self.session.is_due(now);
        let Some(sm_port) = fabric.sm_port().filter(|_| is_due) else { return };
        self.session.ask(NewSession::Master(fabric.port(sm_port).guid));
    }

    /// Publishes the plane that waits, if it may; returns whether it did.
    fn publish_plane(&mut self, now: Instant, registry: &dyn RegistryLink) -> bool {
        self.session.settle(now, || registry.published_epoch());
        let Some(plane) = self.session.poll() else { return false };
        if let Err(failure) = self.feed.publish(plane) {
            error!(
                "cannot publish the snapshot: {}; responders keep the previous one",
                sa_proto::with_causes(&failure)
            );
        }
        true
    }
}

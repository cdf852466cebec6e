//! What responders are told: sessions that begin and end with our mastership, what sweeps found, and
//! multicast tables in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::wire::attribute::SmState;
use sa_proto::snapshot::FabricPlane;
use tracing::{error, warn};

use super::session::SessionState;
use crate::publish::{Challenge, Publisher};
use crate::runtime::registry::RegistryHandle;
use crate::sweep::Sweeper;

/// How long multicast tables wait for others to be published with them.
const REPUBLISH_DELAY: Duration = Duration::from_secs(1);

/// The publisher, and what waits to be published.
pub(super) struct Publication {
    publisher: Arc<Publisher>,
    /// Our session, as far as it has come, and what waits for it.
    session: SessionState,
    /// When multicast tables that were written are published, if any were.
    republish_due: Option<Instant>,
    /// Whether a sweep was asked for, to find out if another SM rules.
    challenged: bool,
}

impl Publication {
    pub(super) fn new(publisher: Arc<Publisher>) -> Self {
        Self { publisher, session: SessionState::default(), republish_due: None, challenged: false }
    }

    /// Begins a session if what a sweep found asks for one: a master's without one, or a full one's,
    /// which alone asks the other subnet managers who is the master, and so decides if we take
    /// responders back from one of them.
    pub(super) fn prepare(
        &mut self,
        now: Instant,
        full: bool,
        sweeper: &Sweeper,
        registry: &RegistryHandle,
    ) {
        let begins = match self.publisher.session() {
            None => sweeper.sm_state() == SmState::Master,
            Some(_) => full && self.publisher.challenge() == Some(Challenge::Rival),
        };
        if begins {
            self.session.want();
        }
        self.begin_session(now, sweeper, registry);
    }

    /// Publishes what a sweep found, or has it wait for a session.
    pub(super) fn publish(&mut self, now: Instant, plane: FabricPlane, registry: &RegistryHandle) {
        self.session.offer(plane);
        self.publish_plane(now, registry);
    }

    /// Publishes as long as we are the master, and makes sure that responders follow. Whether clients
    /// are to be answered.
    pub(super) fn follow_mastership(
        &mut self,
        now: Instant,
        sweeper: &mut Sweeper,
        registry: &RegistryHandle,
    ) -> bool {
        if sweeper.sm_state() != SmState::Master {
            self.publisher.end_session();
            self.session.end();
        }
        self.begin_session(now, sweeper, registry);
        if self.publish_plane(now, registry) {
            // What was written to multicast tables while it waited is not part of it.
            self.multicast_written(now);
        }
        let is_on = self.publisher.session().is_some() && !self.session.is_waiting();
        match self.publisher.challenge() {
            Some(Challenge::Epoch) if self.session.may_try(now) => match self.publisher.renew() {
                Ok(()) => self.session.succeeded(),
                Err(failure) => self.session.failed(now, sa_proto::with_causes(&failure)),
            },
            Some(Challenge::Rival) if !self.challenged => {
                warn!("responders follow another subnet manager; looking for it");
                self.challenged = true;
                sweeper.request_heavy_sweep(now);
            }
            Some(_) => {}
            None => self.challenged = false,
        }
        is_on
    }

    /// Multicast tables were written: they are published some time after the first of them.
    pub(super) fn multicast_written(&mut self, now: Instant) {
        self.republish_due.get_or_insert(now + REPUBLISH_DELAY);
    }

    /// Publishes multicast tables, if that is due; whether it was.
    pub(super) fn republish(&mut self, now: Instant, sweeper: &Sweeper) -> bool {
        if self.republish_due.take_if(|due| now >= *due).is_none() {
            return false;
        }
        if self.publisher.session().is_some()
            && let Err(failure) =
                self.publisher.publish_multicast(&sweeper.fabric().multicast_tables())
        {
            error!("the snapshot is not published: {}", sa_proto::with_causes(&failure));
        }
        true
    }

    /// When there is something to be done again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.republish_due.into_iter().chain(self.session.poll_timeout()).min()
    }

    /// How far our session has come.
    pub(super) fn session(&self) -> &SessionState {
        &self.session
    }

    /// Begins a session if one is wanted, and it is time.
    fn begin_session(&mut self, now: Instant, sweeper: &Sweeper, registry: &RegistryHandle) {
        let fabric = sweeper.fabric();
        let Some(home) = fabric.home().filter(|_| self.session.is_due(now)) else { return };
        let begun = self.publisher.begin_session(fabric.port(home).guid);
        if begun.is_ok() {
            registry.session_begun();
        }
        self.session.begun(now, begun.map_err(|failure| sa_proto::with_causes(&failure)));
    }

    /// Publishes what waits, unless it is to wait on; whether anything was.
    fn publish_plane(&mut self, now: Instant, registry: &RegistryHandle) -> bool {
        self.session.settle(now, || registry.published());
        let Some(plane) = self.session.poll() else { return false };
        if let Err(failure) = self.publisher.publish(plane) {
            error!("the snapshot is not published: {}", sa_proto::with_causes(&failure));
        }
        true
    }
}

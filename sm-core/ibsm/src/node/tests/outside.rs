//! A snapshot feed and a registry in memory.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Mft, RegistryVersion, Session, Version};
use sa_proto::state::StateVersion;

use crate::node::{NewSession, RegistryLink, SnapshotFeed};
use crate::publish::{Challenge, PublishError};
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::notice::{Event, Issuer};
use sm_core::registry::{GuidBlock, Ports, PredefinedGroup};
use sm_core::sweep::ImportedRegistry;
use sm_routing::multicast::Membership;

/// A feed that keeps what is published.
#[derive(Default)]
pub(super) struct TestFeed(Mutex<Published>);

#[derive(Default)]
pub(super) struct Published {
    pub(super) session: Option<Session>,
    epoch: u64,
    version: Version,
    pub(super) planes: Vec<FabricPlane>,
    /// Number of the state besides the registry.
    pub(super) state: u64,
    /// Whether the epoch cannot be saved.
    pub(super) is_disk_full: bool,
    pub(super) challenge: Option<Challenge>,
    /// The questions to responders: the one that each asked for its rows.
    pub(super) inquiries: Vec<Option<u64>>,
}

impl TestFeed {
    pub(super) fn lock(&self) -> MutexGuard<'_, Published> {
        self.0.lock().unwrap()
    }

    /// Begins a session, as the driver of a node does.
    pub(super) fn begin(&self, new: NewSession) -> Result<Session, PublishError> {
        let mut feed = self.lock();
        if feed.is_disk_full {
            let error = io::Error::from(io::ErrorKind::StorageFull);
            return Err(PublishError::State { state_dir: PathBuf::new(), error });
        }
        let sm_guid = match (new, feed.session) {
            (NewSession::Master(sm_guid), _) => sm_guid,
            (NewSession::Above, session) => session.ok_or(PublishError::NoSession)?.sm_guid,
        };
        feed.epoch += 1;
        let session = Session { epoch: feed.epoch, sm_guid };
        feed.session = Some(session);
        feed.challenge.take_if(|challenge| *challenge == Challenge::Epoch);
        Ok(session)
    }
}

impl SnapshotFeed for TestFeed {
    fn session(&self) -> Option<Session> {
        self.lock().session
    }

    fn challenge(&self) -> Option<Challenge> {
        self.lock().challenge
    }

    fn version(&self) -> Version {
        self.lock().version
    }

    fn state(&self) -> StateVersion {
        let feed = self.lock();
        StateVersion { session: feed.session.unwrap_or_default(), number: feed.state }
    }

    fn end_session(&self) {
        self.lock().session = None;
    }

    fn note_heard(&self, _: Instant) {}

    fn inquire(&self, rows_from: Option<u64>) -> u64 {
        let inquiries = &mut self.lock().inquiries;
        inquiries.push(rows_from);
        inquiries.len() as u64
    }

    fn publish(&self, plane: FabricPlane) -> Result<Version, PublishError> {
        let mut feed = self.lock();
        let session = feed.session.ok_or(PublishError::NoSession)?;
        feed.planes.push(plane);
        let fabric_generation = feed.planes.len() as u64;
        feed.version = Version { session, fabric_generation, ..feed.version };
        Ok(feed.version)
    }

    fn publish_multicast(&self, _: Vec<Arc<Mft>>) -> Result<Version, PublishError> {
        Ok(self.version())
    }
}

/// A registry that is empty.
#[derive(Default)]
pub(super) struct TestRegistry(Mutex<Registered>);

#[derive(Default)]
pub(super) struct Registered {
    pub(super) ports: Option<Ports>,
    sessions: u64,
    pub(super) open: bool,
    pub(super) held: RegistryVersion,
    pub(super) busy_since: Option<Instant>,
    pub(super) was_read: bool,
    pub(super) lapsed_ports: Arc<BTreeSet<Guid>>,
    pub(super) asked: Vec<Guid>,
    pub(super) acknowledge_until: Option<Instant>,
    pub(super) yields: bool,
    pub(super) events: Vec<Event>,
    pub(super) api_partitions: Option<Arc<ApiPartitions>>,
}

impl TestRegistry {
    pub(super) fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap()
    }
}

impl RegistryLink for TestRegistry {
    fn fabric_changed(&self, ports: Ports, _: Vec<PredefinedGroup>, _: Issuer) {
        self.lock().ports = Some(ports);
    }

    fn session_begun(&self) {
        self.lock().sessions += 1;
    }

    fn published_epoch(&self) -> u64 {
        self.lock().sessions
    }

    fn sequence(&self) -> u64 {
        7
    }

    fn imported(&self) -> ImportedRegistry {
        ImportedRegistry::None
    }

    fn held(&self) -> RegistryVersion {
        self.lock().held
    }

    fn busy_since(&self) -> Option<Instant> {
        self.lock().busy_since
    }

    fn was_read(&self) -> bool {
        self.lock().was_read
    }

    fn ports_asked(&self, ports: Vec<Guid>) {
        self.lock().asked.extend(ports);
    }

    fn lapsed_ports(&self) -> Arc<BTreeSet<Guid>> {
        self.lock().lapsed_ports.clone()
    }

    fn set_open(&self, open: bool) {
        self.lock().open = open;
    }

    fn acknowledge_until(&self, until: Option<Instant>) {
        self.lock().acknowledge_until = until;
    }

    fn yield_store(&self, yields: bool) {
        self.lock().yields = yields;
    }

    fn is_sealed(&self) -> bool {
        self.lock().acknowledge_until.is_none()
    }

    fn notify(&self, events: Vec<Event>) {
        self.lock().events.extend(events);
    }

    fn changed_membership(&self) -> Membership {
        Membership::default()
    }

    fn changed_guid_blocks(&self) -> Vec<GuidBlock> {
        Vec::new()
    }

    fn api_partitions(&self) -> Option<Arc<ApiPartitions>> {
        self.lock().api_partitions.clone()
    }

    fn next_trap(&self) -> Option<Packet> {
        None
    }
}

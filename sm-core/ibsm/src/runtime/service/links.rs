//! The publisher and the registry's thread, as the node uses them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Mft, RegistryVersion, Session, Version};
use sa_proto::state::StateVersion;

use crate::node::{RegistryLink, SnapshotFeed};
use crate::publish::{Challenge, PublishError, Publisher};
use crate::runtime::registry::RegistryHandle;
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::notice::{Event, Issuer};
use sm_core::registry::{GuidBlock, Ports, PredefinedGroup};
use sm_core::sweep::ImportedRegistry;
use sm_routing::multicast::Membership;

impl SnapshotFeed for Publisher {
    fn session(&self) -> Option<Session> {
        self.session()
    }

    fn challenge(&self) -> Option<Challenge> {
        self.challenge()
    }

    fn version(&self) -> Version {
        self.version()
    }

    fn state(&self) -> StateVersion {
        self.state_version()
    }

    fn end_session(&self) {
        self.end_session();
    }

    fn note_heard(&self, heard: Instant) {
        self.note_heard(heard);
    }

    fn inquire(&self, rows_from: Option<u64>) -> u64 {
        self.inquire(rows_from)
    }

    fn publish(&self, plane: FabricPlane) -> Result<Version, PublishError> {
        self.publish(plane)
    }

    fn publish_multicast(&self, mfts: Vec<Arc<Mft>>) -> Result<Version, PublishError> {
        self.publish_multicast(&mfts)
    }
}

impl RegistryLink for RegistryHandle {
    fn fabric_changed(&self, ports: Ports, predefined: Vec<PredefinedGroup>, issuer: Issuer) {
        self.fabric_changed(ports, predefined, issuer);
    }

    fn session_begun(&self) {
        self.session_begun();
    }

    fn published_epoch(&self) -> u64 {
        self.published_epoch()
    }

    fn sequence(&self) -> u64 {
        self.plane().sequence
    }

    fn imported(&self) -> ImportedRegistry {
        self.imported()
    }

    fn held(&self) -> RegistryVersion {
        self.held()
    }

    fn busy_since(&self) -> Option<Instant> {
        self.busy_since()
    }

    fn was_read(&self) -> bool {
        self.was_read()
    }

    fn ports_asked(&self, ports: Vec<Guid>) {
        self.ports_asked(ports);
    }

    fn lapsed_ports(&self) -> Arc<BTreeSet<Guid>> {
        self.lapsed_ports()
    }

    fn set_open(&self, open: bool) {
        self.set_open(open);
    }

    fn acknowledge_until(&self, until: Option<Instant>) {
        self.acknowledge_until(until);
    }

    fn yield_store(&self, yields: bool) {
        self.yield_store(yields);
    }

    fn is_sealed(&self) -> bool {
        self.is_sealed()
    }

    fn notify(&self, events: Vec<Event>) {
        self.notify(events);
    }

    fn changed_membership(&self) -> Membership {
        self.changed_membership()
    }

    fn changed_guid_blocks(&self) -> Vec<GuidBlock> {
        self.changed_guid_blocks()
    }

    fn api_partitions(&self) -> Option<Arc<ApiPartitions>> {
        self.api_partitions()
    }

    fn next_trap(&self) -> Option<Packet> {
        self.next_trap()
    }
}

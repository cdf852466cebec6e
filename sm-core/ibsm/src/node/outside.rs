//! The snapshot feed and the registry, as the node uses them. Calls return at once and do no I/O:
//! threads of their own do the rest. Sessions, whose epoch is saved first, are begun by the driver
//! ([`Action::BeginSession`](super::Action::BeginSession)).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Mft, RegistryVersion, Session, Version};
use sa_proto::state::StateVersion;

use crate::publish::{Challenge, PublishError};
use sm_core::manage::api_partitions::ApiPartitions;
use sm_core::notice::{Event, Issuer};
use sm_core::registry::{GuidBlock, Ports, PredefinedGroup};
use sm_core::sweep::ImportedRegistry;
use sm_routing::multicast::Membership;

/// The publishing end of the snapshot feed.
pub trait SnapshotFeed {
    /// The current session, if one has begun.
    fn session(&self) -> Option<Session>;
    /// Why responders refuse this SM's session for a higher one, if any does.
    fn challenge(&self) -> Option<Challenge>;
    /// The version published last.
    fn version(&self) -> Version;
    /// The version of the state besides the registry that is published.
    fn state(&self) -> StateVersion;
    /// Ends the session.
    fn end_session(&self);
    /// Something arrived from the fabric at this time.
    fn note_heard(&self, heard: Instant);
    /// Asks all responders which registry they hold, and the one with this identity for its rows.
    /// Returns the number of the question.
    fn inquire(&self, rows_from: Option<u64>) -> u64;
    /// Publishes the fabric as a sweep found it.
    fn publish(&self, plane: FabricPlane) -> Result<Version, PublishError>;
    /// Publishes multicast tables, ascending by switch, without any other change of the fabric.
    fn publish_multicast(&self, mfts: Vec<Arc<Mft>>) -> Result<Version, PublishError>;
}

/// The registry.
pub trait RegistryLink {
    /// Takes the ports that a sweep found, and the groups of operators' files.
    fn fabric_changed(&self, ports: Ports, predefined: Vec<PredefinedGroup>, issuer: Issuer);
    /// A session has begun: the registry must be published in it.
    fn session_begun(&self);
    /// Epoch of the session in which the registry was published last; 0 if in none.
    fn published_epoch(&self) -> u64;
    /// Sequence number of the published registry.
    fn sequence(&self) -> u64;
    /// State of the SA database that the registry begins with.
    fn imported(&self) -> ImportedRegistry;
    /// The registry on disk.
    fn held(&self) -> RegistryVersion;
    /// When it began to decide and store what it has not ended; `None` while there is no work.
    fn busy_since(&self) -> Option<Instant>;
    /// Whether it was read since this process started.
    fn was_read(&self) -> bool;
    /// Ports that have lost registrations because they left the fabric, in that registry or a later
    /// one.
    fn lapsed_ports(&self) -> Arc<BTreeSet<Guid>>;
    /// These of them were asked to register again, and have answered.
    fn ports_asked(&self, ports: Vec<Guid>);
    /// Accepts streams of writes from now on, or refuses them.
    fn set_open(&self, open: bool);
    /// Lets writes be acknowledged until this time; `None`: they wait.
    fn acknowledge_until(&self, until: Option<Instant>);
    /// Gives the right to commit to a shared store back, or takes it again.
    fn yield_store(&self, yields: bool);
    /// Whether all writes wait, so that the published registry has all that was acknowledged.
    fn is_sealed(&self) -> bool;
    /// Reports events to subscribers.
    fn notify(&self, events: Vec<Event>);
    /// Members of the MLIDs whose members changed since the last call.
    fn changed_membership(&self) -> Membership;
    /// Blocks of GUID tables that changed since the last call.
    fn changed_guid_blocks(&self) -> Vec<GuidBlock>;
    /// Partitions that programs made; `None` until they are known. A change is another allocation.
    fn api_partitions(&self) -> Option<Arc<ApiPartitions>>;
    /// The next trap that a responder relayed.
    fn next_trap(&self) -> Option<Packet>;
}

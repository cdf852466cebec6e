//! Notices on their way to responders: their form on the wire and how long they are kept.

use std::time::Duration;

use sa_proto::proto::event as proto;
use sm_core::notice::Event;

/// Notices kept for a responder that reads slowly; it misses older ones.
pub(super) const NOTICES_MAX: usize = 1 << 14;
/// How long notices are kept for responders that were disconnected: as long as a stream takes to
/// reconnect after a restart.
pub(super) const NOTICES_KEPT: Duration = Duration::from_secs(10);

/// A notice with its number, ready to be sent.
pub(super) type NumberedNotice = proto::Notice;

/// The notice of `event`, as sent.
pub(super) fn numbered(number: u64, event: &Event) -> NumberedNotice {
    NumberedNotice {
        number,
        notice: event.notice.to_vec().into(),
        trusted_only: event.trusted_only,
        subject_port_guid: event.subject.map_or(0, |port| port.0),
        supersedes_key: event.key,
        subject_pkeys: event.subject_pkeys.iter().map(|pkey| pkey.0.into()).collect(),
    }
}

//! What must hold.
//!
//! - A responder serves only what a manager published: version and checksum.
//! - One version is published with one content.
//! - What a manager said to be on its disk is there when it starts again.
//! - A session begins with all that clients were acknowledged, unless the manager finds that its
//!   registry may be incomplete.
//! - Once everything is settled, each client's registrations are exactly those that it was
//!   acknowledged, or it was asked to register again; what it withdrew is gone.
//! - A read shows what is registered, outdated by no more than is documented while managers can be
//!   asked; and a write, at the responder that answered it.
//! - A host keeps its LID, also over takeovers while it is off.
//! - A path names the LIDs of both ports. There is one between ports that were in the fabric all
//!   the time, and none to a port that left it long ago.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::mad::Status;
use ibsm::node::SuccessionCounters;
use sa_proto::snapshot::{Checksum, RegistryPlane, Snapshot, Version};

use crate::client::{Client, Finding, ends_with_port};
use crate::manager::Manager;
use crate::violation::{Stored, Violation};

/// Versions remembered; a responder that serves an older one counts as wrong.
const VERSIONS_MAX: usize = 200_000;

/// What is known to hold.
#[derive(Debug, Default)]
pub struct Oracle {
    /// What is on the disks of managers, by their number.
    stored: BTreeMap<usize, Stored>,
    published: BTreeMap<Version, Checksum>,
    /// Takeovers with an incomplete copy: of processes that have ended, and those known before.
    incomplete: u64,
    forgotten: u64,
    /// Answers by status.
    answers: BTreeMap<u16, u64>,
    /// LIDs of ports of hosts, which they keep.
    lids: BTreeMap<Guid, Lid>,
    /// The longest waits while one thing failed alone, by kind.
    waits: BTreeMap<&'static str, Duration>,
}

impl Oracle {
    /// A manager has published something.
    pub fn note_published(&mut self, version: Version, sum: Checksum) -> Result<(), Violation> {
        if let Some(before) = self.published.insert(version, sum)
            && before != sum
        {
            return Err(Violation(format!("{version} was published with two contents")));
        }
        if self.published.len() > VERSIONS_MAX {
            self.published.pop_first();
        }
        Ok(())
    }

    /// A manager that runs claims to have this on disk.
    pub fn note_stored(&mut self, index: usize, stored: Stored) {
        self.stored.insert(index, stored);
    }

    /// What a manager claimed last.
    pub fn stored(&self, index: usize) -> Option<&Stored> {
        self.stored.get(&index)
    }

    /// A manager has started and read this from its disk.
    pub fn check_stored(&self, index: usize, read: &Stored) -> Result<(), Violation> {
        let Some((claimed, rows)) = self.stored.get(&index) else { return Ok(()) };
        // It may have ended before it claimed its last commit.
        if read.0 < *claimed {
            return Err(Violation(format!(
                "manager {index} had stored {claimed} and finds {} when it starts again",
                read.0
            )));
        }
        if read.0 == *claimed && read.1 != *rows {
            return Err(Violation(format!(
                "manager {index} finds other rows of {claimed} than it had stored"
            )));
        }
        Ok(())
    }

    /// A session begins with these rows. `moved`: ports may have left the fabric, with their
    /// memberships. `is_stored`: they are those of the store, in which leases may have ended while
    /// it took no writes.
    pub fn check_begin(
        &self,
        now: Instant,
        client: &Client,
        plane: &RegistryPlane,
        moved: bool,
        is_stored: bool,
    ) -> Result<(), Violation> {
        for (slot, known) in client.known.iter().enumerate() {
            let (found, permitted) = (client.value_in(plane, slot), known.permitted(now));
            let has_left = moved && ends_with_port(slot) && found.is_none();
            let has_lapsed = is_stored && permitted == [None] && known.lapsed.contains(&found);
            if !has_left && !has_lapsed && !permitted.contains(&found) {
                return Err(Violation(format!(
                    "client {} slot {slot}: {found:?} is registered, but answers permit \
                     {permitted:?}, and the registry counts as complete",
                    client.index
                )));
            }
        }
        Ok(())
    }

    /// A responder answers from this snapshot.
    pub fn check_installed(&self, index: usize, snapshot: &Snapshot) -> Result<(), Violation> {
        let version = snapshot.version();
        match self.published.get(&version) {
            Some(sum) if *sum == snapshot.checksum() => Ok(()),
            Some(_) => Err(Violation(format!(
                "responder {index} serves {version} with other contents than were published"
            ))),
            None => Err(Violation(format!(
                "responder {index} serves {version}, which was never published"
            ))),
        }
    }

    /// A client got an answer.
    pub fn note_answer(&mut self, status: Status) {
        *self.answers.entry(status.0).or_default() += 1;
    }

    /// Answers by status.
    pub fn answers(&self) -> &BTreeMap<u16, u64> {
        &self.answers
    }

    /// While everything is settled, a port has this LID: the first one that it got.
    pub fn check_lid(&mut self, guid: Guid, lid: Lid) -> Result<(), Violation> {
        match *self.lids.entry(guid).or_insert(lid) {
            known if known == lid => Ok(()),
            known => Err(Violation(format!("port {guid} has LID {lid}, and had {known}"))),
        }
    }

    /// The LID of a port; `None` if it was never seen while everything was settled.
    pub fn lid(&self, guid: Guid) -> Option<Lid> {
        self.lids.get(&guid).copied()
    }

    /// A client has waited so long for an answer while this failed alone.
    pub fn note_wait(&mut self, fault: &'static str, waited: Duration) {
        let longest = self.waits.entry(fault).or_default();
        *longest = waited.max(*longest);
    }

    /// The longest waits, by kind of fault.
    pub fn waits(&self) -> Vec<(&'static str, Duration)> {
        self.waits.iter().map(|(name, waited)| (*name, *waited)).collect()
    }

    /// Fails if an answer shows that something does not hold.
    pub fn check_finding(client: usize, finding: &Finding) -> Result<(), Violation> {
        match finding {
            Finding::Fine => Ok(()),
            Finding::Unexpected { slot, found, may_be } => Err(Violation(format!(
                "client {client} reads {found:?} in slot {slot}, where {may_be:?} is registered"
            ))),
            Finding::Nonsense(what) => Err(Violation(format!("client {client}: {what}"))),
        }
    }

    /// Compares what a settled client knows with what is registered. After an `incomplete` takeover
    /// what was withdrawn may have returned: its client was asked to register again.
    pub fn check_client(
        &self,
        now: Instant,
        client: &Client,
        plane: &RegistryPlane,
        incomplete: bool,
    ) -> Result<(), Violation> {
        for (slot, known) in client.known.iter().enumerate() {
            let found = client.value_in(plane, slot);
            let of = format!("client {} slot {slot}", client.index);
            let permitted = known.permitted(now);
            if permitted.contains(&found) {
                if known.denied.is_some() && !incomplete {
                    return Err(Violation(format!(
                        "{of}: an acknowledged registration was lost, and its client was not asked \
                         to register again"
                    )));
                }
                continue;
            }
            if known.may_be == [None] && incomplete {
                continue;
            }
            return Err(Violation(format!(
                "{of}: {found:?} is registered, but answers permit {permitted:?}"
            )));
        }
        Ok(())
    }

    /// A manager's process has ended.
    pub fn note_ended(&mut self, manager: &Manager) {
        self.incomplete += manager.succession().incomplete;
    }

    /// Whether there was a takeover with an incomplete copy since the last
    /// [`forget_takeovers`](Self::forget_takeovers).
    pub fn had_incomplete_takeover(
        &self,
        running: impl Iterator<Item = Option<SuccessionCounters>>,
    ) -> bool {
        self.total(running) > self.forgotten
    }

    /// What happened so far counts no more.
    pub fn forget_takeovers(&mut self, running: impl Iterator<Item = Option<SuccessionCounters>>) {
        self.forgotten = self.total(running);
    }

    fn total(&self, running: impl Iterator<Item = Option<SuccessionCounters>>) -> u64 {
        let running = running.flatten().map(|counters| counters.incomplete);
        self.incomplete + running.sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::{RegistryVersion, Session};

    use super::*;

    fn stored(epoch: u64, sequence: u64, rows: u64) -> Stored {
        let session = Session { epoch, sm_guid: Guid(1) };
        let plane = RegistryPlane { sequence: rows, ..RegistryPlane::default() };
        (RegistryVersion { session, sequence }, plane)
    }

    #[test]
    fn a_disk_must_hold_what_was_stored_there_or_more() {
        let mut oracle = Oracle::default();
        assert!(oracle.check_stored(0, &stored(5, 1, 1)).is_ok(), "nothing is known");
        oracle.note_stored(0, stored(5, 7, 7));
        let is_right = |read| oracle.check_stored(0, &read).is_ok();
        assert!(
            is_right(stored(5, 7, 7)) && is_right(stored(5, 8, 8)) && is_right(stored(6, 1, 1))
        );
        assert!(!is_right(stored(5, 6, 6)), "the last commit is gone");
        assert!(!is_right(stored(4, 9, 9)), "the session is gone");
        assert!(!is_right(stored(5, 7, 6)), "other rows");
        assert!(oracle.check_stored(1, &stored(1, 1, 1)).is_ok(), "another disk");
    }
}

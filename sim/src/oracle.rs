//! What must hold.
//!
//! - A responder serves only what a manager published: version and checksum.
//! - One version is published with one content.
//! - Once everything is settled, each client's registrations are exactly those that it was
//!   acknowledged, or it was asked to register again; what it withdrew is gone.
//! - A read in quiet times shows what is registered.

use std::collections::BTreeMap;

use ib_mad::wire::mad::Status;
use ibsm::node::SuccessionCounters;
use sa_proto::snapshot::{Checksum, RegistryPlane, Snapshot, Version};

use crate::client::{Client, Finding};
use crate::manager::Manager;

/// Versions remembered; a responder that serves an older one counts as wrong.
const VERSIONS_MAX: usize = 200_000;

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// What is known to hold.
#[derive(Debug, Default)]
pub struct Oracle {
    published: BTreeMap<Version, Checksum>,
    /// Takeovers with an incomplete copy: of processes that have ended, and those known before.
    incomplete: u64,
    forgotten: u64,
    /// Answers by status.
    answers: BTreeMap<u16, u64>,
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
        client: &Client,
        plane: &RegistryPlane,
        incomplete: bool,
    ) -> Result<(), Violation> {
        for (slot, known) in client.known.iter().enumerate() {
            let found = client.value_in(plane, slot);
            let of = format!("client {} slot {slot}", client.index);
            if known.may_be.contains(&found) {
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
                "{of}: {found:?} is registered, but answers permit {:?}",
                known.may_be
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

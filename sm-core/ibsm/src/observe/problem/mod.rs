//! Problems: what is broken, since when, how often, and what to do. One list, which `ibsmctl`, the
//! page, metrics and the log show.
//!
//! Those that know state *conditions*, once a second: `Condition`s of this SM come with its status
//! ([`SmStatus::conditions`](super::SmStatus)); `fabric`, `responders` and `growth` derive others
//! from the published snapshot, from the responders and from counters. [`ProblemList`] compares
//! them with the list: a condition that is new opens a problem, one that no longer holds closes it.
//! Nothing here does I/O or reads a clock.
//!
//! - `kind`: kinds, severities, remedies. `list`: the list. `lines`: lines of the log;
//!   `order`: which are shown first.
//! - `fabric`: links, and what is missing; `flaps`: links that come and
//!   go; `errors`: ports that report errors.

mod errors;
mod fabric;
mod flaps;
mod growth;
mod kind;
mod lines;
mod list;
mod order;
mod responders;
mod swaps;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;

use ib_mad::types::{Guid, PortNum};
use sm_core::fabric::{Fabric, PortIndex};

pub use errors::PortErrors;
pub(super) use fabric::FabricWatch;
pub use flaps::Flaps;
pub(super) use growth::Growth;
pub use kind::{Kind, Severity};
pub(crate) use lines::lines;
pub use list::{Changes, Problem, ProblemList, Problems};
pub(crate) use order::one_of_each_kind_first;
pub(super) use responders::of_responders;

/// What a problem is about. Two subjects are the same if their identities are; names do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Name of the node, responder or file; empty for the subnet.
    pub name: String,
    /// GUID of the node.
    pub guid: Option<Guid>,
    /// Number of the port on that node.
    pub port: Option<PortNum>,
}

impl Subject {
    /// The subnet, or this SM.
    pub fn subnet() -> Self {
        Self::default()
    }

    /// Something that has a name only.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// A node.
    pub fn node(name: impl Into<String>, guid: Guid) -> Self {
        Self { name: name.into(), guid: Some(guid), port: None }
    }

    /// A port of a node.
    pub fn port(name: impl Into<String>, guid: Guid, port: PortNum) -> Self {
        Self { name: name.into(), guid: Some(guid), port: Some(port) }
    }

    /// A port of the fabric.
    pub fn of(fabric: &Fabric, port: PortIndex) -> Self {
        let node = fabric.node_of(port);
        Self::port(node.name().trim_end(), node.guid, fabric.port(port).num)
    }

    /// The identity, as text: GUID and port, or else the name.
    fn identity(&self) -> String {
        match (self.guid, self.port) {
            (Some(guid), Some(port)) => format!("{guid}/{port}"),
            (Some(guid), None) => guid.to_string(),
            (None, _) => self.name.clone(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.guid, self.port) {
            (Some(guid), Some(port)) => write!(f, "'{}' {guid} port {port}", self.name),
            (Some(guid), None) => write!(f, "'{}' {guid}", self.name),
            (None, _) => f.write_str(&self.name),
        }
    }
}

/// Something that is wrong at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The kind of problem.
    pub kind: Kind,
    /// What it is about. Conditions of one kind and subject are one problem.
    pub subject: Subject,
    /// What is wrong, in one line without the subject.
    pub detail: String,
    /// What to do, as a sentence without a full stop.
    pub remedy: &'static str,
}

impl Condition {
    /// A condition, with the remedy of its kind.
    pub fn new(kind: Kind, subject: Subject, detail: impl Into<String>) -> Self {
        Self { kind, subject, detail: detail.into(), remedy: kind.remedy() }
    }

    /// The condition with another remedy.
    #[must_use]
    pub fn with_remedy(self, remedy: &'static str) -> Self {
        Self { remedy, ..self }
    }

    /// Subject and detail in one line.
    pub fn text(&self) -> String {
        text(&self.subject, &self.detail)
    }

    /// Name of the problem, which it keeps over restarts: kind and identity of the subject.
    pub fn id(&self) -> String {
        match self.subject.identity() {
            subject if subject.is_empty() => self.kind.label().to_owned(),
            subject => format!("{}/{subject}", self.kind.label()),
        }
    }
}

fn text(subject: &Subject, detail: &str) -> String {
    match (subject.guid, subject.name.is_empty()) {
        (None, true) => detail.to_owned(),
        _ => format!("{subject}: {detail}"),
    }
}

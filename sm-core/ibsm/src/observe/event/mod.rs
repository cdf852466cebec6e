//! Events: what happened, when, and to what. A problem lasts and has an end; an event is over as
//! soon as it has happened.
//!
//! State machines write [`Draft`]s; [`EventLog`] gives each a number and the time, and keeps the
//! last ones for those that read them: the history on disk, `ibsmctl events`, the page, programs.
//! Nothing here does I/O or reads a clock.
//!
//! - `kind`: the kinds. `log`: the last events. `fabric`: nodes and links that came and went.
//!   `sweep`, `problems`, `responders`: events about these. `counted`: growth of counters, which
//!   has no numbers and is not in the log.

mod counted;
mod fabric;
mod kind;
mod log;
mod problems;
mod responders;
mod sweep;

use std::collections::BTreeMap;

use ib_mad::text::printable;
use serde::{Deserialize, Serialize};

use super::problem::{Severity, Subject};
pub use counted::PortGrowth;
pub use fabric::{CHANGES_MAX, FabricChanges, FabricDiary};
pub use kind::{EventKind, Kinds};
pub use log::{Batch, EVENTS_MAX, EventCounts, EventLog};
pub use problems::{drafts as of_problems, open_after as problems_open_after};
pub use responders::ResponderWatch;
pub use sweep::{end as sweep_end, routing_done, start as sweep_start, subnet_up, tables_changed};

/// Longest text and name of an event, bytes.
const TEXT_LEN_MAX: usize = 1000;
const NAME_LEN_MAX: usize = 200;
/// Longest entry of a list, bytes.
const ENTRY_LEN_MAX: usize = 300;
/// Largest number of entries in a list.
const ENTRIES_MAX: usize = 64;

/// An additional value of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A number.
    Number(u64),
    /// Text.
    Text(String),
    /// Several texts.
    List(Vec<String>),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Flag(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Number(value as u64)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<String>> for Value {
    fn from(value: Vec<String>) -> Self {
        Self::List(value)
    }
}

/// An event without number and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its kind.
    pub kind: EventKind,
    /// How bad it is; `None` for what is usual.
    pub severity: Option<Severity>,
    /// What it is about.
    pub subject: Subject,
    /// What happened, in one line.
    pub text: String,
    /// Further values by name.
    pub fields: Vec<(&'static str, Value)>,
}

impl Draft {
    /// An event about the subnet or this SM.
    pub fn new(kind: EventKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, severity: None, subject: Subject::subnet(), text, fields: Vec::new() }
    }

    /// The event, about `subject`.
    pub fn about(self, subject: Subject) -> Self {
        Self { subject, ..self }
    }

    /// The event with a severity.
    pub fn rated(self, severity: Option<Severity>) -> Self {
        Self { severity, ..self }
    }

    /// The event with one more value.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((name, value.into()));
        self
    }
}

/// An event.
///
/// Its JSON is a line of the history, of the event stream and of the input of an event plug-in.
/// Fields may be added; no field changes its meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number: each event has that of the one before plus one, also over restarts if a history
    /// is kept. 0 for growth of counters, which is not kept.
    pub number: u64,
    /// When it happened, milliseconds since 1970.
    pub time_ms: u64,
    /// Label of its kind: see [`EventKind::label`].
    pub kind: String,
    /// The id of OpenSM's event plug-ins, if there is one for the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opensm_id: Option<u8>,
    /// `critical`, `warning` or `notice`; absent for what is usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Name of the node, responder or file that it is about; empty for the subnet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// GUID of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guid: Option<String>,
    /// Number of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// What happened, in one line.
    pub text: String,
    /// Further values by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, Value>,
}

impl Event {
    /// An event of a draft, with texts of limited length and without control characters.
    fn of(number: u64, time_ms: u64, draft: Draft) -> Self {
        let Draft { kind, severity, subject, text, fields } = draft;
        Self {
            number,
            time_ms,
            kind: kind.label().to_owned(),
            opensm_id: kind.opensm_id(),
            severity,
            name: bounded(&subject.name, NAME_LEN_MAX),
            guid: subject.guid.map(|guid| guid.to_string()),
            port: subject.port.map(|port| port.0),
            text: bounded(&text, TEXT_LEN_MAX),
            fields: fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.bounded()))
                .collect(),
        }
    }

    /// Its JSON, in one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("the value serializes to JSON")
    }
}

impl Value {
    fn bounded(self) -> Self {
        match self {
            Self::Text(text) => Self::Text(bounded(&text, TEXT_LEN_MAX)),
            Self::List(list) => {
                let entries = list.iter().take(ENTRIES_MAX);
                Self::List(entries.map(|text| bounded(text, ENTRY_LEN_MAX)).collect())
            }
            value => value,
        }
    }
}

fn bounded(text: &str, len_max: usize) -> String {
    let mut len = text.len().min(len_max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    printable(&text[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Guid, PortNum};

    #[test]
    fn an_event_is_a_line_of_json_that_reads_back() {
        let subject = Subject::port("leaf\n1", Guid(7), PortNum(3));
        let draft = Draft::new(EventKind::Trap, "it\tsent")
            .about(subject)
            .with("number", 128_u64)
            .with("names", vec!["a".to_owned(), "b".to_owned()])
            .with("up", true);
        let event = Event::of(9, 1000, draft);
        assert_eq!((event.port, event.opensm_id), (Some(3), Some(3)));
        let json = event.to_json();
        assert!(!json.contains('\n') && !event.text.contains('\t'), "{json}");
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
        // One of a later release, with what this one does not know.
        let later = r#"{"number":1,"time_ms":2,"kind":"new","text":"t","more":[{"a":1}]}"#;
        assert_eq!(serde_json::from_str::<Event>(later).unwrap().kind, "new");
    }

    #[test]
    fn texts_and_lists_are_bounded() {
        let many = vec!["é".repeat(2000); 1000];
        let draft = Draft::new(EventKind::SweepEnd, "é".repeat(2000)).with("many", many);
        let event = Event::of(1, 1, draft);
        assert!(event.text.len() <= 3 * TEXT_LEN_MAX, "{}", event.text.len());
        assert!(event.to_json().len() < 200_000);
    }
}

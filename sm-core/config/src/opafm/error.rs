//! Errors in files of virtual fabrics: where, the text found, and the expected form.

use std::path::PathBuf;

use super::{ENTRIES_MAX, NESTING_MAX};

/// A line is rejected, and the file with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {reason}", path.display())]
pub struct OpaFmError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// The reason.
    pub reason: Reason,
}

/// Why a line is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The text is not XML.
    #[error("not well-formed: {0}")]
    Xml(String),
    /// The file is not an opafm.xml.
    #[error("the outermost element is '{0}'; that of an opafm.xml is 'Config'")]
    Root(String),
    /// An element's value is invalid.
    #[error("{tag} takes {expected}, not '{got}'")]
    Value {
        /// The element.
        tag: String,
        /// The expected form.
        expected: &'static str,
        /// The value found.
        got: String,
    },
    /// An element occurs more than once.
    #[error("a second {tag} in this {place}; it takes one")]
    Repeated {
        /// The element.
        tag: String,
        /// The enclosing element.
        place: String,
    },
    /// A required element is missing.
    #[error("{place} has no {tag}, which it needs")]
    Missing {
        /// The element.
        tag: &'static str,
        /// The enclosing element.
        place: String,
    },
    /// Two entries have the same name.
    #[error("a second {kind} '{name}'; names are unique")]
    Duplicate {
        /// The kind of entry.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A reference names no entry.
    #[error("there is no {kind} '{name}'{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The kind of entry.
        kind: &'static str,
        /// The name.
        name: String,
        /// The nearest existing name.
        nearest: Option<String>,
    },
    /// An entry includes itself.
    #[error("{kind} '{name}' includes itself")]
    Loop {
        /// The kind of entry.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Entries are nested too deeply.
    #[error("{kind} '{name}' is nested deeper than {NESTING_MAX}")]
    Nesting {
        /// The kind of entry.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A referenced QOSGroup is not enabled.
    #[error("QOSGroup '{0}' is not enabled; its <Enable> must be 1")]
    Disabled(String),
    /// Two settings exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// The stated shares of bandwidth are more than there is.
    #[error(
        "Bandwidth adds up to {total}%; QOSGroups and virtual fabrics that are in \
             use can have 100% together"
    )]
    Bandwidth {
        /// Sum of all shares, percent.
        total: u32,
    },
    /// The stated shares of bandwidth leave too little for virtual fabrics without one.
    #[error(
        "Bandwidth is {total}% in all, but virtual fabrics without it need {needed}%: 1% for \
             each QOSGroup or own QOS, and 5% for all without QoS"
    )]
    BandwidthLeft {
        /// Sum of all shares, percent.
        total: u32,
        /// What those without a share need, percent.
        needed: u32,
    },
    /// Not exactly one instance fits.
    #[error(
        "{count} Fm instances have {criterion}; name one of them with --vfabric-instance. The file \
         has {}",
        if instances.is_empty() { "none" } else { instances }
    )]
    Instance {
        /// The number of instances that fit.
        count: usize,
        /// What they are selected by.
        criterion: String,
        /// The instances of the file.
        instances: String,
    },
    /// There are too many entries of a kind.
    #[error("more than {ENTRIES_MAX} {0}")]
    TooMany(&'static str),
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

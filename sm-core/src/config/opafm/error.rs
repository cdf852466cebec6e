//! Why a file of virtual fabrics is refused: where, what stood there, and what would be right.

use std::path::PathBuf;

use super::{ENTRIES_MAX, NESTING_MAX};

/// A line is refused, and the file with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {reason}", path.display())]
pub struct OpaFmError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Why.
    pub reason: Reason,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It is no XML.
    #[error("not well-formed: {0}")]
    Xml(String),
    /// It is another file.
    #[error("the outermost element is '{0}'; that of an opafm.xml is 'Config'")]
    Root(String),
    /// A value is none of what its element takes.
    #[error("{tag} takes {expected}, not '{got}'")]
    Value {
        /// The element.
        tag: String,
        /// What it takes.
        expected: &'static str,
        /// What stood there.
        got: String,
    },
    /// An element that may stand only once.
    #[error("a second {tag} in this {place}; it takes one")]
    Repeated {
        /// The element.
        tag: String,
        /// Where it stands.
        place: String,
    },
    /// An element that has to be there.
    #[error("{place} has no {tag}, which it needs")]
    Missing {
        /// The element.
        tag: &'static str,
        /// Where it should stand.
        place: String,
    },
    /// Two with one name.
    #[error("a second {kind} '{name}'; names are unique")]
    Duplicate {
        /// What it is.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A reference to nothing.
    #[error("there is no {kind} '{name}'{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The name nearest to it.
        nearest: Option<String>,
    },
    /// Something that includes itself.
    #[error("{kind} '{name}' includes itself")]
    Loop {
        /// What it is.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Inclusion too deep.
    #[error("{kind} '{name}' is nested deeper than {NESTING_MAX}")]
    Nesting {
        /// What it is.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A QOSGroup that is there but not enabled.
    #[error("QOSGroup '{0}' is not enabled; its <Enable> must be 1")]
    Disabled(String),
    /// Two settings that cannot both be.
    #[error("{0}")]
    Conflict(&'static str),
    /// More than fits.
    #[error("more than {ENTRIES_MAX} {0}")]
    TooMany(&'static str),
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

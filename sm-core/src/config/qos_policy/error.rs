//! Why a policy file is refused: where, what stood there, and what would be right.

use std::fmt;
use std::path::{Path, PathBuf};

use super::cursor::Fault;
use super::{GROUPS_MAX, RULES_MAX};

/// Faults of a file that are told; more are counted.
pub(super) const FAULTS_TOLD_MAX: usize = 10;

/// Lines are refused, and the file with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {reason}{}", path.display(), others)]
pub struct QosPolicyError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Why.
    pub reason: Reason,
    /// What else is wrong.
    pub others: Box<Others>,
}

/// What is wrong with a file besides the first thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// By line.
    pub told: Vec<(usize, Reason)>,
    /// How much there is besides.
    pub untold: usize,
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, reason) in &self.told {
            write!(f, "; line {line}: {reason}")?;
        }
        match self.untold {
            0 => Ok(()),
            untold => write!(f, "; and {untold} more mistakes"),
        }
    }
}

impl QosPolicyError {
    /// What is wrong with the file at `path`: at least one thing.
    pub(super) fn new(path: &Path, faults: Vec<Fault>) -> Self {
        let untold = faults.len().saturating_sub(FAULTS_TOLD_MAX);
        let mut told = faults.into_iter().take(FAULTS_TOLD_MAX);
        let (line, reason) = told.next().expect("a file is refused for a reason");
        let others = Box::new(Others { told: told.collect(), untold });
        Self { path: path.to_owned(), line, reason, others }
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A keyword that does not belong where it stands.
    #[error("'{got}' does not belong into {place}, which takes {}", expected.join(", "))]
    Keyword {
        /// What stood there.
        got: String,
        /// Section.
        place: &'static str,
        /// What belongs there.
        expected: &'static [&'static str],
    },
    /// A section ended, or the file, before what was open was closed.
    #[error("{place} of line {opened} is still open here; 'end-{place}' is missing")]
    NotClosed {
        /// The section that is open.
        place: &'static str,
        /// Where it began.
        opened: usize,
    },
    /// A keyword without a value.
    #[error("'{key}' has no value; it takes '{key}: {expected}'")]
    NoValue {
        /// The keyword.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// A keyword that may stand only once.
    #[error("a second '{key}' in this {place}; it takes one")]
    Repeated {
        /// The keyword.
        key: &'static str,
        /// The section.
        place: &'static str,
    },
    /// A keyword that has to be there.
    #[error("this {place} has no '{key}', which it needs")]
    Missing {
        /// The keyword.
        key: &'static str,
        /// The section.
        place: &'static str,
    },
    /// Not a number.
    #[error("{key} takes {expected}, not '{got}'")]
    Malformed {
        /// The keyword.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What stood there.
        got: String,
    },
    /// A number beyond its range.
    #[error("{key} takes {expected}, not {got}")]
    OutOfRange {
        /// The keyword.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What stood there.
        got: u64,
    },
    /// A reference to nothing.
    #[error("there is no {kind} '{name}' in this file{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The name nearest to it.
        nearest: Option<String>,
    },
    /// A line of `qos-ulps` that is none.
    #[error("'{got}' is no rule of qos-ulps; a rule is one of {expected}")]
    Ulp {
        /// What stood there.
        got: String,
        /// What would be one.
        expected: String,
    },
    /// More than fits.
    #[error("more than {RULES_MAX} rules, or more than {GROUPS_MAX} port groups or levels")]
    TooMany,
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

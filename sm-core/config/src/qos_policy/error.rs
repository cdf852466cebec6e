//! Errors in policy files: where, the text found, and the expected form.

use std::fmt;
use std::path::{Path, PathBuf};

use super::cursor::Fault;
use super::{GROUPS_MAX, RULES_MAX};

/// Largest number of errors listed per file; further ones are counted.
pub(super) const FAULTS_LISTED_MAX: usize = 10;

/// Lines are rejected, and the file with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {reason}{}", path.display(), others)]
pub struct QosPolicyError {
    /// The file.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// The reason.
    pub reason: Reason,
    /// Further errors.
    pub others: Box<Others>,
}

/// Errors of a file after the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Further errors, with their line numbers.
    pub listed: Vec<(usize, Reason)>,
    /// Number of errors that are not listed.
    pub unlisted: usize,
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, reason) in &self.listed {
            write!(f, "; line {line}: {reason}")?;
        }
        match self.unlisted {
            0 => Ok(()),
            unlisted => write!(f, "; and {unlisted} more mistakes"),
        }
    }
}

impl QosPolicyError {
    /// The errors, each with its place.
    pub(crate) fn each(&self) -> Vec<String> {
        let path = self.path.display();
        let first = [(self.line, &self.reason)];
        let others = self.others.listed.iter().map(|(line, reason)| (*line, reason));
        let all = first.into_iter().chain(others);
        let mut lines: Vec<String> =
            all.map(|(line, reason)| format!("{path}:{line}: {reason}")).collect();
        if self.others.unlisted > 0 {
            lines.push(format!("{path}: and {} more mistakes", self.others.unlisted));
        }
        lines
    }

    /// Creates the error of the file at `path`; there must be at least one fault.
    pub(super) fn new(path: &Path, faults: Vec<Fault>) -> Self {
        let unlisted = faults.len().saturating_sub(FAULTS_LISTED_MAX);
        let mut listed = faults.into_iter().take(FAULTS_LISTED_MAX);
        let (line, reason) = listed.next().expect("there is at least one fault");
        let others = Box::new(Others { listed: listed.collect(), unlisted });
        Self { path: path.to_owned(), line, reason, others }
    }
}

/// Why a line is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// A keyword is not valid in its place.
    #[error("'{got}' is not valid in {place}, which takes {}", expected.join(", "))]
    Keyword {
        /// The text found.
        got: String,
        /// The section.
        place: &'static str,
        /// The valid keywords.
        expected: &'static [&'static str],
    },
    /// The enclosing section or the file ended while a section was open.
    #[error("{place} of line {opened} is still open here; 'end-{place}' is missing")]
    NotClosed {
        /// The open section.
        place: &'static str,
        /// Line number where it was opened.
        opened: usize,
    },
    /// A keyword has no value.
    #[error("'{key}' has no value; it takes '{key}: {expected}'")]
    NoValue {
        /// The keyword.
        key: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// A keyword occurs more than once.
    #[error("a second '{key}' in this {place}; it takes one")]
    Repeated {
        /// The keyword.
        key: &'static str,
        /// The section.
        place: &'static str,
    },
    /// A required keyword is missing.
    #[error("this {place} has no '{key}', which it needs")]
    Missing {
        /// The keyword.
        key: &'static str,
        /// The section.
        place: &'static str,
    },
    /// A value is not of the expected form.
    #[error("{key} takes {expected}, not '{got}'")]
    Malformed {
        /// The keyword.
        key: &'static str,
        /// The expected form.
        expected: &'static str,
        /// The text found.
        got: String,
    },
    /// A number is out of range.
    #[error("{key} takes {expected}, not {got}")]
    OutOfRange {
        /// The keyword.
        key: &'static str,
        /// The expected range.
        expected: &'static str,
        /// The number found.
        got: u64,
    },
    /// A reference names no entry.
    #[error("there is no {kind} '{name}' in this file{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The kind of entry.
        kind: &'static str,
        /// The name.
        name: String,
        /// The nearest existing name.
        nearest: Option<String>,
    },
    /// A line of `qos-ulps` is not a rule.
    #[error("'{got}' is not a rule of qos-ulps; a rule is one of {expected}")]
    Ulp {
        /// The text found.
        got: String,
        /// The valid forms.
        expected: String,
    },
    /// There are too many rules, groups or levels.
    #[error("more than {RULES_MAX} rules, or more than {GROUPS_MAX} port groups or levels")]
    TooMany,
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

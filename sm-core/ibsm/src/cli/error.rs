//! Why the configuration cannot be used.

use std::io;
use std::path::PathBuf;

use super::store::StoreOptionError;
use super::trust::ExposureError;
use sm_config::{FileError, ValueError};

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The TLS files cannot be used.
    #[error(transparent)]
    Trust(#[from] sa_proto::trust::TrustError),
    /// An address would be reachable from other machines without protection.
    #[error(transparent)]
    Exposure(#[from] ExposureError),
    /// The options of the store.
    #[error(transparent)]
    Store(#[from] StoreOptionError),
    /// The configuration file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file that `-F` names cannot be read.
    #[error("-F/--config: {}: {source}", path.display())]
    Named {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The template cannot be written.
    #[error("-c/--create-config: {}: {source}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The configuration has mistakes, and `--strict` accepts none.
    #[error("{}\nibsm does not start with these mistakes because of --strict", mistakes.join("\n"))]
    Mistakes {
        /// Each with its place and the value that would be used without `--strict`.
        mistakes: Vec<String>,
    },
    /// An option of the command line is refused.
    #[error(transparent)]
    Option(#[from] OptionError),
}

/// An option of the command line with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: {source}")]
pub struct OptionError {
    /// The option, in all its forms.
    pub option: &'static str,
    /// The reason, naming the key of the configuration file that the option sets.
    pub source: ValueError,
}

//! Reading a policy file, and why one cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use super::ReadFile;
use super::opafm::OpaFmError;
use super::partitions::PartitionSyntax;
use super::qos_policy::QosPolicyError;

/// Largest policy file, bytes: 10,000 ports in 100 partitions have 20 MB.
const FILE_LEN_MAX: u64 = 256 << 20;

/// Descriptions of files for messages, with the options that name them.
pub(super) const PARTITIONS: &str = "partitions (-P/--Pconfig, partition_config_file)";
pub(super) const PREFIX_ROUTES: &str = "prefix routes (--prefix_routes_file, prefix_routes_file)";
pub(super) const QOS: &str = "QoS policy (-Y/--qos_policy_file, qos_policy_file)";
pub(super) const VIRTUAL_FABRICS: &str = "virtual fabrics (--vfabrics, vfabric_config_file)";

/// Reports why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("{named_by}: {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Purpose of the file, with the option and the key that name it.
        named_by: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file existed before, and is missing now.
    #[error(
        "{} no longer exists; to remove what it configured, replace it with an empty file",
        path.display()
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// The file is too long.
    #[error("{named_by}: {}: longer than {FILE_LEN_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Purpose of the file, with the option and the key that name it.
        named_by: &'static str,
    },
    /// A partition file is malformed.
    #[error("{}:{line}: {reason}", path.display())]
    Partitions {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The reason.
        reason: PartitionSyntax,
    },
    /// A QoS policy is malformed.
    #[error(transparent)]
    Qos(#[from] QosPolicyError),
    /// A file of virtual fabrics is malformed.
    #[error(transparent)]
    VirtualFabrics(#[from] OpaFmError),
    /// A routing file cannot be used. The fabric can be routed without it.
    #[error(transparent)]
    Routing(Box<PolicyError>),
    /// A routing file is malformed.
    #[error("{}:{line}: {reason}", path.display())]
    RoutingFile {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error, and the expected form.
        reason: String,
    },
}

impl PolicyError {
    /// The file that the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Gone { path }
            | Self::TooLong { path, .. }
            | Self::Partitions { path, .. }
            | Self::RoutingFile { path, .. } => path,
            Self::Qos(error) => &error.path,
            Self::VirtualFabrics(error) => &error.path,
            Self::Routing(error) => error.path(),
        }
    }

    /// The errors of the file, each with its place.
    pub fn each(&self) -> Vec<String> {
        match self {
            Self::Qos(error) => error.each(),
            error => vec![error.to_string()],
        }
    }

    /// The line of a file of independent lines, behind which the file was not read.
    pub fn line_of_list(&self) -> Option<(&Path, usize)> {
        match self {
            Self::RoutingFile { path, line, .. } => Some((path, *line)),
            Self::Routing(error) => error.line_of_list(),
            _ => None,
        }
    }

    /// Whether the error is about the file that `sort`, one of the descriptions above, names.
    pub(super) fn is_about(&self, sort: &str) -> bool {
        match self {
            Self::Io { named_by, .. } | Self::TooLong { named_by, .. } => *named_by == sort,
            Self::Partitions { .. } => sort == PARTITIONS,
            Self::Qos(_) => sort == QOS,
            Self::VirtualFabrics(_) => sort == VIRTUAL_FABRICS,
            Self::Gone { .. } | Self::Routing(_) | Self::RoutingFile { .. } => false,
        }
    }

    /// Whether the file does not exist.
    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads the text of a policy file, given a description of its purpose.
pub(super) type ReadText<'a> = &'a dyn Fn(&Path, &'static str) -> Result<String, PolicyError>;

/// Reads the text of a policy file.
pub(super) fn read_text(
    path: &Path,
    named_by: &'static str,
    read: ReadFile,
) -> Result<String, PolicyError> {
    let path_of = || path.to_owned();
    let bytes = read(path, FILE_LEN_MAX).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => PolicyError::TooLong { path: path_of(), named_by },
        _ => PolicyError::Io { path: path_of(), named_by, source },
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

//! The site's policy: what the files say that may change while the program runs.
//!
//! [`SitePolicy::load`] reads them at the start, [`SitePolicy::reload`] again with every heavy sweep.
//! A file that is broken, or suddenly missing, leaves in force what held before.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sa_proto::snapshot::PrefixRoute;
use xxhash_rust::xxh3::xxh3_64;

use super::Settings;
use super::opafm::{self, OpaFm, OpaFmError};
use super::partitions::{self, PartitionConfig, PartitionSyntax};
use super::prefix_routes;
use super::qos_policy::{self, QosPolicy, QosPolicyError};
use super::routing_files::RoutingFiles;
use super::settings::{
    DEFAULT_PARTITION_FILE, DEFAULT_PREFIX_ROUTES_FILE, DEFAULT_QOS_POLICY_FILE,
};

/// Longest policy file read, bytes: 10,000 ports in 100 partitions have 20 MB.
const FILE_LEN_MAX: u64 = 256 << 20;
/// Remarks kept of one reading, and as many mistakes; more are counted.
const REMARKS_MAX: usize = 20;

/// Files, as an operator names them.
const PARTITIONS: &str = "partitions (-P/--Pconfig, partition_config_file)";
const PREFIX_ROUTES: &str = "prefix routes (--prefix_routes_file, prefix_routes_file)";
const QOS: &str = "QoS policy (-Y/--qos_policy_file, qos_policy_file)";
const VIRTUAL_FABRICS: &str = "virtual fabrics (--vfabrics, vfabric_config_file)";

/// Why a policy file is not in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// It cannot be read.
    #[error("{named_by}: {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it is for, with the option and the key that name it.
        named_by: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// It was there before.
    #[error("{} is gone; an empty file would do away with what it said", path.display())]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// It is too long for what it should be.
    #[error("{named_by}: {}: longer than {FILE_LEN_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What it is for, with the option and the key that name it.
        named_by: &'static str,
    },
    /// A partition file is malformed.
    #[error("{}:{line}: {reason}", path.display())]
    Partitions {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: PartitionSyntax,
    },
    /// A QoS policy is malformed.
    #[error(transparent)]
    Qos(#[from] QosPolicyError),
    /// A file of virtual fabrics is malformed.
    #[error(transparent)]
    VirtualFabrics(#[from] OpaFmError),
    /// A file that steers routing, without which a fabric can be routed, too.
    #[error(transparent)]
    Routing(Box<PolicyError>),
    /// A file that steers routing is malformed.
    #[error("{}:{line}: {reason}", path.display())]
    RoutingFile {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl PolicyError {
    /// Which file it is about.
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

    /// Whether it is about the file that `sort`, one of the names below, stands for.
    fn is_about(&self, sort: &str) -> bool {
        match self {
            Self::Io { named_by, .. } | Self::TooLong { named_by, .. } => *named_by == sort,
            Self::Partitions { .. } => sort == PARTITIONS,
            Self::Qos(_) => sort == QOS,
            Self::VirtualFabrics(_) => sort == VIRTUAL_FABRICS,
            Self::Gone { .. } | Self::Routing(_) | Self::RoutingFile { .. } => false,
        }
    }

    pub(super) fn is_absence(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What came of reading the files.
#[derive(Debug, Default)]
pub struct Reading {
    /// Why files are refused.
    pub errors: Vec<PolicyError>,
    /// What is odd about files that are new or changed, in lines for the log.
    pub remarks: Vec<String>,
    /// Those of them that are mistakes: lines and flags that are passed over. The first few of all.
    pub mistakes: Vec<String>,
    /// What files that are new or changed give, in lines for the log.
    pub taken: Vec<String>,
}

/// What policy files say that is odd but no error, in lines for the log.
#[derive(Debug, Default)]
pub struct Remarks {
    lines: Vec<String>,
    more: usize,
    mistakes: Vec<String>,
    taken: Vec<String>,
}

impl Remarks {
    /// Adds a remark on `line`, from 1, of the file at `path`.
    pub fn add(&mut self, path: &Path, line: Option<usize>, text: &str) {
        if self.lines.len() >= REMARKS_MAX {
            self.more += 1;
            return;
        }
        self.lines.push(placed(path, line, text));
    }

    /// The same of what makes no sense, and is passed over. However much was remarked on before, it
    /// counts as a mistake.
    pub fn add_mistake(&mut self, path: &Path, line: usize, text: &str) {
        if self.mistakes.len() < REMARKS_MAX {
            self.mistakes.push(placed(path, Some(line), text));
        }
        self.add(path, Some(line), text);
    }

    /// The same of a line that says nothing that makes sense.
    pub fn pass_over(&mut self, path: &Path, line: usize, reason: &str) {
        self.add_mistake(path, line, &format!("passed over: {reason}"));
    }

    /// Remarks on what is passed over, the first of them.
    pub fn mistakes(&self) -> &[String] {
        &self.mistakes
    }

    /// Notes what a file gives that is in force from now on.
    pub(super) fn take(&mut self, path: &Path, what: &str) {
        self.taken.push(format!("{}: {what}", path.display()));
    }

    /// The remarks, and how many there are besides.
    pub fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.push(format!("{} more remarks on policy files", self.more));
        }
        self.lines
    }
}

/// A remark with its place.
fn placed(path: &Path, line: Option<usize>, text: &str) -> String {
    let path = path.display();
    match line {
        Some(line) => format!("{path}:{line}: {text}"),
        None => format!("{path}: {text}"),
    }
}

/// A file as it was when last read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Absent,
    /// Hash of its content.
    Present(u64),
}

/// The policy in force.
#[derive(Clone, Debug)]
pub struct SitePolicy {
    /// Partitions and their multicast groups.
    pub partitions: Arc<PartitionConfig>,
    /// Ways to other subnets.
    pub prefix_routes: Arc<[PrefixRoute]>,
    /// QoS policy, if QoS is on and there is one.
    pub qos: Option<Arc<QosPolicy>>,
    /// Virtual fabrics, if a file of them is named.
    pub virtual_fabrics: Option<Arc<OpaFm>>,
    /// What steers routing.
    pub routing: Arc<RoutingFiles>,
    partition_file: Seen,
    prefix_routes_file: Seen,
    qos_file: Seen,
    virtual_fabric_file: Seen,
}

impl Default for SitePolicy {
    /// What holds without any file.
    fn default() -> Self {
        Self {
            partitions: Arc::default(),
            prefix_routes: Arc::from([]),
            qos: None,
            virtual_fabrics: None,
            routing: Arc::default(),
            partition_file: Seen::Absent,
            prefix_routes_file: Seen::Absent,
            qos_file: Seen::Absent,
            virtual_fabric_file: Seen::Absent,
        }
    }
}

impl SitePolicy {
    /// Reads all files for the first time. What is broken, or named and not there, is told of, and what
    /// OpenSM has without it holds: see [`Self::instead_of`]. An error for virtual fabrics, which OpenSM
    /// knows nothing of, and whose limits would be missing.
    pub fn load(settings: &Settings) -> Result<(Self, Reading), PolicyError> {
        let (policy, mut reading) = Self::default().read(settings);
        let is_fatal = |error: &PolicyError| error.is_about(VIRTUAL_FABRICS);
        match reading.errors.iter().position(is_fatal) {
            Some(fatal) => Err(reading.errors.swap_remove(fatal)),
            None => Ok((policy, reading)),
        }
    }

    /// What holds in place of a file that is refused, in words.
    pub fn instead_of(&self, error: &PolicyError) -> &'static str {
        match error {
            PolicyError::Routing(error) if !self.routing.holds(error.path()) => {
                "routing goes without it"
            }
            error if error.is_about(PARTITIONS) && self.partition_file == Seen::Absent => {
                "all ports are full members of the default partition, as with OpenSM"
            }
            error if error.is_about(QOS) && self.qos.is_none() => "QoS has no rules",
            error if error.is_about(PREFIX_ROUTES) && self.prefix_routes.is_empty() => {
                "there are no ways to other subnets"
            }
            _ => "what was read before is in force",
        }
    }

    /// Reads again what changed. What is broken is told, and keeps what held before; remarks are
    /// only about files that changed.
    pub fn reload(&self, settings: &Settings) -> (Self, Reading) {
        self.clone().read(settings)
    }

    fn read(mut self, settings: &Settings) -> (Self, Reading) {
        let (mut errors, mut remarks) = (Vec::new(), Remarks::default());
        let path = settings.partition_config_file.as_deref().unwrap_or(DEFAULT_PARTITION_FILE);
        if let Err(error) = self.read_partitions(Path::new(path), &mut remarks) {
            errors.push(error);
        }
        let path = settings.prefix_routes_file.as_deref().unwrap_or(DEFAULT_PREFIX_ROUTES_FILE);
        if let Err(error) = self.read_prefix_routes(Path::new(path), &mut remarks) {
            errors.push(error);
        }
        if settings.qos {
            let path = settings.qos_policy_file.as_deref().unwrap_or(DEFAULT_QOS_POLICY_FILE);
            errors.extend(self.read_qos(Path::new(path), &mut remarks).err());
        }
        if let Some(path) = settings.vfabric_config_file.as_deref() {
            errors.extend(self.read_virtual_fabrics(Path::new(path), &mut remarks).err());
        }
        Arc::make_mut(&mut self.routing).read(settings, &mut remarks, &mut errors);
        let taken = std::mem::take(&mut remarks.taken);
        let mistakes = std::mem::take(&mut remarks.mistakes);
        (self, Reading { errors, remarks: remarks.into_lines(), mistakes, taken })
    }

    fn read_partitions(&mut self, path: &Path, remarks: &mut Remarks) -> Result<(), PolicyError> {
        let is_default = path == Path::new(DEFAULT_PARTITION_FILE);
        let Some(text) = read_again(path, PARTITIONS, &self.partition_file, is_default)? else {
            return Ok(());
        };
        let seen = Seen::Present(xxh3_64(text.as_bytes()));
        if seen != self.partition_file {
            let parsed = partitions::parse(path, &text, remarks);
            let parsed = parsed.map_err(|(line, reason)| PolicyError::Partitions {
                path: path.to_owned(),
                line,
                reason,
            })?;
            let (definitions, rules) = (parsed.partitions().len(), parsed.rules().len());
            let groups = parsed.groups().len();
            let what = format!(
                "partitions: {definitions}, membership rules: {rules}, multicast groups: {groups}"
            );
            remarks.take(path, &what);
            self.partitions = Arc::new(parsed);
            self.partition_file = seen;
        }
        Ok(())
    }

    /// Without such a file there are no routes, also if there was one before: nothing opens by that.
    fn read_prefix_routes(
        &mut self,
        path: &Path,
        remarks: &mut Remarks,
    ) -> Result<(), PolicyError> {
        let text = match read_file(path, PREFIX_ROUTES) {
            Err(absent) if absent.is_absence() => {
                self.prefix_routes = Arc::from([]);
                self.prefix_routes_file = Seen::Absent;
                let is_named = path != Path::new(DEFAULT_PREFIX_ROUTES_FILE);
                return if is_named { Err(absent) } else { Ok(()) };
            }
            text => text?,
        };
        let seen = Seen::Present(xxh3_64(text.as_bytes()));
        if seen != self.prefix_routes_file {
            let parsed = prefix_routes::parse(path, &text, remarks);
            remarks.take(path, &format!("prefix routes: {}", parsed.len()));
            self.prefix_routes = parsed.into();
            self.prefix_routes_file = seen;
        }
        Ok(())
    }
}

impl SitePolicy {
    fn read_qos(&mut self, path: &Path, remarks: &mut Remarks) -> Result<(), PolicyError> {
        let is_default = path == Path::new(DEFAULT_QOS_POLICY_FILE);
        let Some(text) = read_again(path, QOS, &self.qos_file, is_default)? else {
            return Ok(());
        };
        let seen = Seen::Present(xxh3_64(text.as_bytes()));
        if seen != self.qos_file {
            let parsed = qos_policy::parse(path, &text)?;
            let (levels, rules, ulps) =
                (parsed.levels.len(), parsed.rules.len(), parsed.ulps.len());
            let what = format!("QoS levels: {levels}, match rules: {rules}, ULP rules: {ulps}");
            remarks.take(path, &what);
            self.qos = Some(Arc::new(parsed));
            self.qos_file = seen;
        }
        Ok(())
    }

    /// There is no usual place for this file: who names one wants it.
    fn read_virtual_fabrics(
        &mut self,
        path: &Path,
        remarks: &mut Remarks,
    ) -> Result<(), PolicyError> {
        let Some(text) = read_again(path, VIRTUAL_FABRICS, &self.virtual_fabric_file, false)?
        else {
            return Ok(());
        };
        let seen = Seen::Present(xxh3_64(text.as_bytes()));
        if seen != self.virtual_fabric_file {
            let mut remark = |line, text: &str| remarks.add(path, Some(line), text);
            let parsed = opafm::parse(path, &text, &mut remark)?;
            remarks.take(path, &format!("virtual fabrics: {}", parsed.virtual_fabrics.len()));
            self.virtual_fabrics = Some(Arc::new(parsed));
            self.virtual_fabric_file = seen;
        }
        Ok(())
    }
}

/// The text of a policy file that was `before`; `None` if it is absent and may be. Who names a file
/// wants it: only where we look of our own accord there need be none.
fn read_again(
    path: &Path,
    named_by: &'static str,
    before: &Seen,
    is_default: bool,
) -> Result<Option<String>, PolicyError> {
    match read_file(path, named_by) {
        Err(absent) if absent.is_absence() => match before {
            Seen::Present(_) => Err(PolicyError::Gone { path: path.to_owned() }),
            Seen::Absent if is_default => Ok(None),
            Seen::Absent => Err(absent),
        },
        text => text.map(Some),
    }
}

/// The text of a policy file.
pub(super) fn read_file(path: &Path, named_by: &'static str) -> Result<String, PolicyError> {
    let io = |source| PolicyError::Io { path: path.to_owned(), named_by, source };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > FILE_LEN_MAX => {
            return Err(PolicyError::TooLong { path: path.to_owned(), named_by });
        }
        Ok(_) => {}
        Err(error) => return Err(io(error)),
    }
    let bytes = std::fs::read(path).map_err(io)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;

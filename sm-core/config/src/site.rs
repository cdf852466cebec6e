//! The site's policy: the content of files that may change while the program runs.
//!
//! [`SitePolicy::load`] reads the files at start, [`SitePolicy::reload`] again with every heavy
//! sweep. If a file is malformed, or suddenly missing, the previous content stays in force.

use std::path::Path;
use std::sync::Arc;

use sa_proto::snapshot::PrefixRoute;
use xxhash_rust::xxh3::xxh3_64;

use super::key::{DEFAULT_PARTITION_FILE, DEFAULT_PREFIX_ROUTES_FILE, DEFAULT_QOS_POLICY_FILE};
use super::opafm::{self, Instance, OpaFm};
use super::partitions::{self, PartitionConfig};
use super::policy_file::{
    PARTITIONS, PREFIX_ROUTES, PolicyError, QOS, ReadText, VIRTUAL_FABRICS, read_text,
};
use super::prefix_routes;
use super::qos_policy::{self, QosPolicy};
use super::remarks::Remarks;
use super::routing_files::RoutingFiles;
use super::{ReadFile, Settings};

/// The result of reading the files.
#[derive(Debug, Default)]
pub struct Reading {
    /// Errors of rejected files.
    pub errors: Vec<PolicyError>,
    /// Remarks on new or changed files, as log lines.
    pub remarks: Vec<String>,
    /// The remarks that are mistakes: ignored lines and flags. Only the first ones are kept.
    pub mistakes: Vec<String>,
    /// Summaries of new or changed files, as log lines.
    pub taken: Vec<String>,
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
    /// Routes to other subnets.
    pub prefix_routes: Arc<[PrefixRoute]>,
    /// QoS policy, if QoS is on and there is one.
    pub qos: Option<Arc<QosPolicy>>,
    /// Virtual fabrics, if a file of them is named.
    pub virtual_fabrics: Option<Arc<OpaFm>>,
    /// Files that configure routing.
    pub routing: Arc<RoutingFiles>,
    partition_file: Seen,
    prefix_routes_file: Seen,
    qos_file: Seen,
    virtual_fabric_file: Seen,
}

impl Default for SitePolicy {
    /// The policy without any file.
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
    /// Reads all files for the first time. Files that are malformed, or configured but absent, are
    /// reported, and OpenSM's behaviour without the file applies: see [`Self::instead_of`].
    ///
    /// # Errors
    ///
    /// If virtual fabrics cannot be read. OpenSM does not have them, and their limits would be
    /// missing.
    pub fn load(settings: &Settings, read: ReadFile) -> Result<(Self, Reading), PolicyError> {
        let (policy, mut reading) = Self::default().read(settings, read);
        let is_fatal = |error: &PolicyError| error.is_about(VIRTUAL_FABRICS);
        match reading.errors.iter().position(is_fatal) {
            Some(fatal) => Err(reading.errors.swap_remove(fatal)),
            None => Ok((policy, reading)),
        }
    }

    /// Reads all files as [`load`](Self::load) does, and goes on after each error, also within a
    /// file of partitions.
    pub fn check(settings: &Settings, read: ReadFile) -> Reading {
        let (_, mut reading) = Self::default().read(settings, read);
        let path = settings.partition_config_file.as_deref().unwrap_or(DEFAULT_PARTITION_FILE);
        let is_first = |error: &PolicyError| matches!(error, PolicyError::Partitions { .. });
        if let Some(first) = reading.errors.iter().position(is_first)
            && let Ok(text) = read_text(Path::new(path), PARTITIONS, read)
        {
            let path = Path::new(path);
            let faults = partitions::faults(path, &text).into_iter();
            let errors = faults.map(|(line, reason)| {
                let path = path.to_owned();
                PolicyError::Partitions { path, line, reason }
            });
            reading.errors.splice(first..=first, errors);
        }
        reading
    }

    /// Describes the policy that applies in place of a rejected file.
    pub fn instead_of(&self, error: &PolicyError) -> &'static str {
        match error {
            PolicyError::Routing(error) if !self.routing.holds(error.path()) => {
                "routing continues without it"
            }
            error if error.is_about(PARTITIONS) && self.partition_file == Seen::Absent => {
                "all ports are full members of the default partition, as with OpenSM"
            }
            error if error.is_about(QOS) && self.qos.is_none() => "QoS has no rules",
            error if error.is_about(PREFIX_ROUTES) && self.prefix_routes.is_empty() => {
                "there are no routes to other subnets"
            }
            _ => "what was read before is in force",
        }
    }

    /// Reads changed files again. Errors are reported, and the previous content stays in force;
    /// remarks are only about changed files.
    pub fn reload(&self, settings: &Settings, read: ReadFile) -> (Self, Reading) {
        self.clone().read(settings, read)
    }

    fn read(mut self, settings: &Settings, read: ReadFile) -> (Self, Reading) {
        let (mut errors, mut remarks) = (Vec::new(), Remarks::default());
        let read = &|path: &Path, named_by| read_text(path, named_by, read);
        let path = settings.partition_config_file.as_deref().unwrap_or(DEFAULT_PARTITION_FILE);
        if let Err(error) = self.read_partitions(Path::new(path), &mut remarks, read) {
            errors.push(error);
        }
        let path = settings.prefix_routes_file.as_deref().unwrap_or(DEFAULT_PREFIX_ROUTES_FILE);
        if let Err(error) = self.read_prefix_routes(Path::new(path), &mut remarks, read) {
            errors.push(error);
        }
        if settings.qos {
            let path = settings.qos_policy_file.as_deref().unwrap_or(DEFAULT_QOS_POLICY_FILE);
            errors.extend(self.read_qos(Path::new(path), &mut remarks, read).err());
        }
        if let Some(path) = settings.vfabric_config_file.as_deref() {
            let instance = Instance {
                name: settings.vfabric_instance.as_deref(),
                prefix: settings.subnet_prefix,
            };
            let path = Path::new(path);
            errors.extend(self.read_virtual_fabrics(path, &instance, &mut remarks, read).err());
        }
        Arc::make_mut(&mut self.routing).read(settings, &mut remarks, &mut errors, read);
        let taken = std::mem::take(&mut remarks.taken);
        let mistakes = std::mem::take(&mut remarks.mistakes);
        (self, Reading { errors, remarks: remarks.into_lines(), mistakes, taken })
    }

    fn read_partitions(
        &mut self,
        path: &Path,
        remarks: &mut Remarks,
        read: ReadText,
    ) -> Result<(), PolicyError> {
        let is_default = path == Path::new(DEFAULT_PARTITION_FILE);
        let Some(text) = read_again(read, path, PARTITIONS, &self.partition_file, is_default)?
        else {
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

    /// Without such a file there are no routes, even if there were before: that grants no
    /// additional access.
    fn read_prefix_routes(
        &mut self,
        path: &Path,
        remarks: &mut Remarks,
        read: ReadText,
    ) -> Result<(), PolicyError> {
        let text = match read(path, PREFIX_ROUTES) {
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
    fn read_qos(
        &mut self,
        path: &Path,
        remarks: &mut Remarks,
        read: ReadText,
    ) -> Result<(), PolicyError> {
        let is_default = path == Path::new(DEFAULT_QOS_POLICY_FILE);
        let Some(text) = read_again(read, path, QOS, &self.qos_file, is_default)? else {
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

    /// This file has no default path: if one is configured, it must exist.
    fn read_virtual_fabrics(
        &mut self,
        path: &Path,
        instance: &Instance<'_>,
        remarks: &mut Remarks,
        read: ReadText,
    ) -> Result<(), PolicyError> {
        let Some(text) = read_again(read, path, VIRTUAL_FABRICS, &self.virtual_fabric_file, false)?
        else {
            return Ok(());
        };
        let seen = Seen::Present(xxh3_64(text.as_bytes()));
        if seen != self.virtual_fabric_file {
            let mut remark = |line, text: &str| remarks.add(path, Some(line), text);
            let parsed = opafm::parse(path, &text, instance, &mut remark)?;
            remarks.take(path, &format!("virtual fabrics: {}", parsed.virtual_fabrics.len()));
            self.virtual_fabrics = Some(Arc::new(parsed));
            self.virtual_fabric_file = seen;
        }
        Ok(())
    }
}

/// Reads the text of a policy file, which was `before` when last read. Returns `None` if it is
/// absent and may be: only a file at its default path may.
fn read_again(
    read: ReadText,
    path: &Path,
    named_by: &'static str,
    before: &Seen,
    is_default: bool,
) -> Result<Option<String>, PolicyError> {
    match read(path, named_by) {
        Err(absent) if absent.is_absence() => match before {
            Seen::Present(_) => Err(PolicyError::Gone { path: path.to_owned() }),
            Seen::Absent if is_default => Ok(None),
            Seen::Absent => Err(absent),
        },
        text => text.map(Some),
    }
}

#[cfg(test)]
mod tests;

//! Operators' files: settings and policy, read again while the program runs, and put into force by
//! the next heavy sweep.

use tracing::{error, info, warn};

use super::refused::RefusedFiles;
use crate::cli::ConfigError;
use sm_config::{Reading, Settings, SitePolicy};
use sm_core::fabric::PolicyRows;
use sm_core::manage::policy::{self, InForce};
use sm_core::sweep::Sweeper;

/// Remarks on how the policy fits the fabric that are logged at a time.
const POLICY_REMARKS_MAX: usize = 20;

/// Contents of the files, and remarks on them that were logged.
pub(super) struct SiteFiles {
    /// Settings in force.
    settings: Settings,
    /// Settings that were read again and are not in force yet.
    new_settings: Option<Settings>,
    policy: SitePolicy,
    refused: RefusedFiles,
    /// Remarks on the settings, as logged last.
    remarks: Vec<String>,
    /// Remarks on how the policy fits the fabric, as logged last.
    policy_remarks: Vec<String>,
}

impl SiteFiles {
    /// Files as read at the start, with the remarks on the settings.
    pub(super) fn new(settings: Settings, policy: SitePolicy, remarks: Vec<String>) -> Self {
        Self {
            settings,
            new_settings: None,
            policy,
            refused: RefusedFiles::default(),
            remarks,
            policy_remarks: Vec::new(),
        }
    }

    /// Settings in force.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The priority was set by an operator, until the settings are read again.
    pub(super) fn note_priority(&mut self, priority: u8) {
        self.settings.sm_priority = priority;
    }

    /// The log bits were set by an operator, until the settings are read again.
    pub(super) fn note_log_flags(&mut self, flags: u8) {
        self.settings.log_flags = flags;
    }

    /// Policy in force.
    pub(super) fn policy(&self) -> &SitePolicy {
        &self.policy
    }

    /// The configuration file was read again; it takes effect with the next heavy sweep.
    pub(super) fn handle_settings(&mut self, read: Result<(Settings, Vec<String>), ConfigError>) {
        match read {
            Ok((settings, remarks)) => {
                let (new, old): (Vec<_>, Vec<_>) =
                    remarks.iter().partition(|remark| !self.remarks.contains(remark));
                new.iter().for_each(|remark| warn!("{remark}"));
                if !old.is_empty() {
                    info!("{} earlier warnings about the settings still apply", old.len());
                }
                self.remarks = remarks;
                self.new_settings = Some(settings);
            }
            Err(failure) => {
                let reason = sa_proto::with_causes(&failure);
                error!("cannot reread the settings: {reason}; the current settings stay in force");
            }
        }
    }

    /// The policy files were read again at `time`, for a sweep that has just begun.
    pub(super) fn handle_policy(
        &mut self,
        policy: SitePolicy,
        reading: &Reading,
        time: &str,
        sweeper: &mut Sweeper,
    ) {
        reading.remarks.iter().for_each(|remark| warn!("{remark}"));
        reading.taken.iter().for_each(|taken| info!("read {taken}"));
        // Every heavy sweep reads the files again; a mistake is logged once.
        for failure in reading.errors.iter().filter(|failure| !self.refused.knows(failure)) {
            error!(
                "{}; until it is corrected, {}",
                sa_proto::with_causes(failure),
                policy.instead_of(failure)
            );
        }
        for path in self.refused.note(time, &policy, &reading.errors) {
            info!("{} is accepted again and in force", path.display());
        }
        sweeper.set_partitions(policy.partitions.clone());
        sweeper.set_virtual_fabrics(policy.virtual_fabrics.clone());
        sweeper.set_routing_files(policy.routing.clone());
        self.policy = policy;
    }

    /// A sweep begins: puts settings into force that were read again. Returns what changed, if they
    /// were.
    pub(super) fn follow_settings(&mut self, sweeper: &mut Sweeper) -> Option<Vec<String>> {
        let settings = self.new_settings.take()?;
        let waiting = sweeper.follow_settings(&settings);
        let changes = sweeper.settings().changes(&self.settings);
        if changes.is_empty() {
            info!("settings are unchanged");
        } else {
            info!("settings changed: {}", changes.join(", "));
        }
        if !waiting.is_empty() {
            warn!("these settings take effect at the next start: {}", waiting.join(", "));
        }
        self.settings = sweeper.settings().clone();
        Some(changes)
    }

    /// Applies the policy files to the fabric. Each remark is logged once.
    pub(super) fn rows(&mut self, sweeper: &Sweeper) -> PolicyRows {
        let (rows, remarks) = policy::rows(&InForce {
            fabric: sweeper.fabric(),
            settings: sweeper.settings(),
            site: &self.policy,
            partitions: sweeper.partitions(),
            memberships: sweeper.memberships(),
            virtual_fabrics: sweeper.virtual_fabrics(),
        });
        if remarks != self.policy_remarks {
            remarks.iter().take(POLICY_REMARKS_MAX).for_each(|remark| warn!("{remark}"));
            self.policy_remarks = remarks;
        }
        rows
    }

    /// Policy files that are refused.
    pub(super) fn refused(&self) -> &RefusedFiles {
        &self.refused
    }
}

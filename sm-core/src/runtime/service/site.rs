//! What operators' files say: settings and policy, read again while the program runs, and put in force
//! by the next heavy sweep.

use tracing::{error, info, warn};

use crate::config::{Config, Settings, SitePolicy};
use crate::manage::PolicyRows;
use crate::manage::policy::{self, InForce};
use crate::runtime::policy::RefusedFiles;
use crate::sweep::Sweeper;

/// Remarks on how the policy fits the fabric that are logged at a time.
const POLICY_REMARKS_MAX: usize = 20;

/// What was read, and what was told of it.
pub(super) struct SiteFiles {
    policy: SitePolicy,
    refused: RefusedFiles,
    /// Settings that were read again and are not in force yet.
    new_settings: Option<Settings>,
    /// What was last told of the settings.
    remarks: Vec<String>,
    /// What was last told of how the policy fits the fabric.
    policy_remarks: Vec<String>,
}

impl SiteFiles {
    /// What was read at the start, with what was told of the settings.
    pub(super) fn new(policy: SitePolicy, remarks: Vec<String>) -> Self {
        Self {
            policy,
            refused: RefusedFiles::default(),
            new_settings: None,
            remarks,
            policy_remarks: Vec::new(),
        }
    }

    /// Reads the configuration file again; what it says counts from the next heavy sweep on.
    pub(super) fn reread_settings(&mut self, config: &Config) {
        match config.reread() {
            Ok((settings, remarks)) => {
                let (new, old): (Vec<_>, Vec<_>) =
                    remarks.iter().partition(|remark| !self.remarks.contains(remark));
                new.iter().for_each(|remark| warn!("{remark}"));
                if !old.is_empty() {
                    info!("{} remarks on the settings are as before", old.len());
                }
                self.remarks = remarks;
                self.new_settings = Some(settings);
            }
            Err(failure) => {
                let reason = sa_proto::with_causes(&failure);
                error!("{reason}; until that is mended, the settings in force stay");
            }
        }
    }

    /// For the sweep that has just begun: puts settings in force that were read again, and reads the
    /// site's policy files.
    pub(super) fn reload(&mut self, config: &mut Config, sweeper: &mut Sweeper) {
        self.follow_settings(config, sweeper);
        let (policy, reading) = self.policy.reload(&config.settings);
        reading.remarks.iter().for_each(|remark| warn!("{remark}"));
        reading.taken.iter().for_each(|taken| info!("read {taken}"));
        // Every heavy sweep reads the files again; a mistake is told once.
        for failure in reading.errors.iter().filter(|failure| !self.refused.knows(failure)) {
            error!(
                "{}; until that is mended, {}",
                sa_proto::with_causes(failure),
                policy.instead_of(failure)
            );
        }
        for path in self.refused.note(&policy, &reading.errors) {
            info!("{} is refused no longer: what it says is in force", path.display());
        }
        sweeper.set_partitions(policy.partitions.clone());
        sweeper.set_virtual_fabrics(policy.virtual_fabrics.clone());
        sweeper.set_routing_files(policy.routing.clone());
        self.policy = policy;
    }

    fn follow_settings(&mut self, config: &mut Config, sweeper: &mut Sweeper) {
        let Some(settings) = self.new_settings.take() else { return };
        let waiting = sweeper.follow_settings(&settings);
        let changes = sweeper.settings().changes(&config.settings);
        if changes.is_empty() {
            info!("settings are as before");
        } else {
            info!("settings changed: {}", changes.join(", "));
        }
        if !waiting.is_empty() {
            warn!("these settings count from the next start on: {}", waiting.join(", "));
        }
        config.settings = sweeper.settings().clone();
    }

    /// What policy files come to on the fabric as it is. What is odd about it is told once.
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

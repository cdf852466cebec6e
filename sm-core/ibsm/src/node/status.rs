//! Status, warnings and progress of long phases, for operators.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use tracing::{info, warn};

use super::problems::Findings;
use super::{Action, Node};
use crate::front_door::PortService;
use crate::observe::moment::FaultPort;
use crate::observe::problem::Condition;
use crate::observe::{Responder, SmStatus};
use sm_core::sweep::{Phase, Report};

/// How often the progress of a long phase is logged.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// How often metrics and status are updated.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How long responders may take to connect after the subnet came up: those of the previous run
/// reconnect within 3 s.
const RESPONDER_PATIENCE: Duration = Duration::from_secs(5);

/// Totals of sweeps.
#[derive(Debug, Default)]
pub struct SweepTotals {
    /// Sweeps that read the whole fabric.
    pub full: u64,
    /// Sweeps that read a part of it.
    pub partial: u64,
    /// Attributes that could not be read or set.
    pub errors: u64,
    /// Sweeps with errors since the last one without.
    pub failed_in_a_row: u32,
    /// The last sweep.
    pub last: Report,
    /// Light sweeps that found no change, and when the last of them was noticed, milliseconds
    /// since 1970.
    quiet: (u64, Option<u64>),
}

impl SweepTotals {
    /// Whether a sweep is worth a log line: it read the whole fabric, changed something, or is
    /// the first after one with errors.
    pub(super) fn is_news(&self, report: &Report) -> bool {
        report.full || report.changed() || self.failed_in_a_row > 0
    }

    /// Counts whether a sweep had errors.
    pub(super) fn note_outcome(&mut self, report: &Report) {
        if report.errors == 0 {
            self.failed_in_a_row = 0;
        } else {
            self.failed_in_a_row += 1;
        }
    }

    /// Counts a sweep that has ended.
    pub(super) fn note(&mut self, report: Report) {
        if report.full {
            self.full += 1;
        } else {
            self.partial += 1;
        }
        self.errors += report.errors;
        self.last = report;
    }
}

/// Totals and deadlines for the status that operators see.
pub(super) struct Board {
    sweeps: SweepTotals,
    /// When status is updated, and progress logged next.
    status_due: Instant,
    progress_due: Instant,
    /// When a lack of responders is warned of, after the subnet came up.
    responders_due: Option<Instant>,
    /// The command that starts a responder.
    responder_command: String,
    /// Which process reads SA requests at the SM's port.
    port_service: PortService,
    findings: Findings,
}

impl Board {
    pub(super) fn new(now: Instant, responder_command: String) -> Self {
        Self {
            sweeps: SweepTotals::default(),
            status_due: now,
            progress_due: now + PROGRESS_INTERVAL,
            responders_due: None,
            responder_command,
            port_service: PortService::default(),
            findings: Findings::default(),
        }
    }

    pub(super) fn findings(&self) -> &Findings {
        &self.findings
    }

    pub(super) fn findings_mut(&mut self) -> &mut Findings {
        &mut self.findings
    }

    pub(super) fn port_service(&self) -> &PortService {
        &self.port_service
    }

    pub(super) fn sweeps(&self) -> &SweepTotals {
        &self.sweeps
    }

    pub(super) fn sweeps_mut(&mut self) -> &mut SweepTotals {
        &mut self.sweeps
    }

    pub(super) fn report_at(&mut self, now: Instant) {
        self.status_due = now;
    }

    /// When status is updated next.
    pub(super) fn due(&self) -> Instant {
        self.status_due
    }
}

impl Node {
    /// Records a sweep that has ended, for status and metrics.
    pub(super) fn note_sweep(&mut self, now: Instant, report: Report) {
        let faults = self.fault_ports();
        self.actions.push_back(Action::NoteSweep { report: Box::new(report.clone()), faults });
        let failed = self.status.sweeps.failed_in_a_row;
        self.status.findings.note_sweep(now, &report, failed);
        self.status.sweeps.note(report);
        self.note_partitions();
        self.status.status_due = now;
    }

    /// Ports that the last sweep could not read or configure completely.
    fn fault_ports(&self) -> Vec<FaultPort> {
        let fabric = self.sweeper.fabric();
        let port = |&port| {
            let entry = fabric.port(port);
            FaultPort { guid: fabric.node(entry.node).guid.to_string(), port: entry.num.0 }
        };
        self.sweeper.faults().iter().map(port).collect()
    }

    /// Logs the progress of a long phase, at intervals.
    pub(super) fn log_progress(&mut self, now: Instant) {
        if self.sweeper.phase() == Phase::Idle {
            self.status.progress_due = now + PROGRESS_INTERVAL;
        } else if now >= self.status.progress_due {
            self.status.progress_due = now + PROGRESS_INTERVAL;
            if self.sweeper.phase() == Phase::Route {
                info!("{}", self.jobs.routing_progress(now));
                return;
            }
            let (hosts, switches) = self.sweeper.fabric().counts();
            info!(
                "{}: {} requests outstanding; {switches} switches and {hosts} hosts found so far",
                self.sweeper.phase(),
                self.sweeper.outstanding()
            );
        }
    }

    /// Whether this SM is master, the subnet is up, and no responder answers queries.
    fn lacks_responders(&self) -> bool {
        self.sweeper.is_up() && self.responders.load().iter().all(Responder::is_client)
    }

    /// A warning while no responder answers queries.
    pub(super) fn no_responder(&self) -> Option<String> {
        let command = &self.status.responder_command;
        self.lacks_responders().then(|| {
            format!(
                "no responder is connected: SA queries are not answered; start one with: {command}"
            )
        })
    }

    /// A warning about responders that answer from another manager's session.
    pub(super) fn elsewhere(&self) -> Option<String> {
        let session = self.publication.feed().session().filter(|_| self.sweeper.is_up())?;
        let responders = self.responders.load();
        let all = responders.iter().filter(|entry| !entry.is_client());
        // One that connects again is there twice for a while.
        let mut elsewhere: BTreeMap<u64, bool> = BTreeMap::new();
        for entry in all {
            *elsewhere.entry(entry.id).or_default() |= entry.is_elsewhere(session);
        }
        let count = elsewhere.values().filter(|is| **is).count();
        (count > 0).then(|| {
            format!(
                "{count} of {} responders answer from the session of another subnet manager: they \
                 get no queries of this one's clients",
                elsewhere.len()
            )
        })
    }

    /// Schedules the warning about missing responders, once they had time to connect.
    pub(super) fn await_responders(&mut self, now: Instant, report: &Report) {
        if report.first && self.once.is_none() {
            self.status.responders_due = Some(now + RESPONDER_PATIENCE);
        }
    }

    /// Warns about missing responders, if that is due.
    fn check_responders(&mut self, now: Instant) {
        if self.status.responders_due.take_if(|due| now >= *due).is_some()
            && let Some(text) = self.no_responder()
        {
            warn!("{text}");
        }
    }

    /// Updates status, metrics and the targets of redirection and sharding, if that is due.
    pub(super) fn update_status(&mut self, now: Instant) {
        self.door.warn_of_drops(now);
        if now < self.status.status_due {
            return;
        }
        self.status.status_due = now + STATUS_INTERVAL;
        self.follow_responders(now);
        self.check_responders(now);
        self.lead_clients(now);
        self.actions.push_back(Action::Report);
    }

    /// Which process reads SA requests at the SM's port, for the status.
    pub fn handle_port_service(&mut self, service: PortService) {
        self.status.port_service = service;
    }

    /// The status of this SM, with these totals. `time_ms` is the time of day, milliseconds since
    /// 1970.
    pub fn status(&mut self, now: Instant, time_ms: u64, counters: Vec<(String, u64)>) -> SmStatus {
        let quiet = self.sweeper.quiet_sweeps();
        let sweeps = &mut self.status.sweeps;
        if quiet != sweeps.quiet.0 {
            sweeps.quiet = (quiet, Some(time_ms));
        }
        let (quiet_sweeps, quiet_sweep_ms) = sweeps.quiet;
        let fabric = self.sweeper.fabric();
        let sm_port = fabric.sm_port().map(|sm_port| fabric.port(sm_port));
        let mut conditions = self.warnings(now);
        let warnings = conditions.iter().map(Condition::text);
        // As problems, these responders are listed one by one.
        let warnings = warnings.chain(self.elsewhere()).collect();
        conditions.extend(self.conditions(now));
        SmStatus {
            state: self.sweeper.sm_state().to_string(),
            subnet_up: self.sweeper.is_up(),
            warnings,
            conditions,
            routing_engine: self.sweeper.routing_engine().to_owned(),
            engines_passed_over: self.sweeper.rejected_engines().to_vec(),
            guid: sm_port.map(|port| port.guid),
            lid: fabric.sm_port().map_or(Lid::NONE, |port| fabric.lids_of(port).0),
            lmc: self.sweeper.settings().lmc,
            subnet_prefix: self.sweeper.settings().subnet_prefix,
            priority: self.sweeper.settings().sm_priority,
            peers: self.sweeper.peers(now),
            copy: self.succession.copy_status(now),
            sa_port: self.status.port_service.describe(),
            store: String::new(),
            takes_over_after: self.sweeper.patience(),
            sa_guids: self.sweeper.sa_guids().collect(),
            smps_outstanding: self.sweeper.outstanding() as u64,
            sweeping: self.sweeper.is_sweeping(),
            phase: self.sweeper.phase().to_string(),
            quiet_sweeps,
            quiet_sweep_ms,
            counters,
        }
    }
}

//! What the loop tells operators: status, warnings, metrics, and how far a long phase is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::SmState;
use tracing::{info, warn};

use super::{Service, measure};
use crate::observe::moment::FaultPort;
use crate::publish::{Responder, SmStatus, responder_command};
use crate::sweep::{Phase, RegistryCopy, Report};

/// How often a long phase says how far it is.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// How often metrics and status are brought up to date.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How long responders are waited for after the subnet came up: those of the run before come back
/// within 3 s.
const RESPONDER_PATIENCE: Duration = Duration::from_secs(5);
/// Subnet managers with another SM_Key that the status lists.
const LISTED_MAX: usize = 8;

/// Totals of sweeps.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    pub(super) full: u64,
    pub(super) partial: u64,
    pub(super) errors: u64,
    pub(super) failed_in_a_row: u32,
    pub(super) last: Report,
    /// Light sweeps that found nothing changed, and when the last of them was noticed.
    quiet: (u64, Option<u64>),
}

impl Sweeps {
    /// Whether a sweep brought news: it walked the whole fabric, changed something, or is the first
    /// after one with errors.
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

impl Service {
    /// Takes note of a sweep that has ended, for whoever looks.
    pub(super) fn note_sweep(&mut self, report: Report) {
        self.publisher.sweeps().note(&report, unix_ms(), self.fault_ports());
        self.metrics.note_sweep(&report, self.sweeper.routing_engine());
        self.sweeps.note(report);
        self.status_due = Instant::now();
    }

    /// Ports of which the last sweep could not find out or set everything.
    fn fault_ports(&self) -> Vec<FaultPort> {
        let fabric = self.sweeper.fabric();
        let port = |&port| {
            let entry = fabric.port(port);
            FaultPort { guid: fabric.node(entry.node).guid.to_string(), port: entry.num.0 }
        };
        self.sweeper.faults().iter().map(port).collect()
    }

    pub(super) fn tell_progress(&mut self, now: Instant) {
        if self.sweeper.phase() == Phase::Idle {
            self.progress_due = now + PROGRESS_INTERVAL;
        } else if now >= self.progress_due {
            self.progress_due = now + PROGRESS_INTERVAL;
            if self.sweeper.phase() == Phase::Route {
                info!("{}", self.workers.routing_progress(now));
                return;
            }
            let (hosts, switches) = self.sweeper.fabric().counts();
            info!(
                "{}: {} requests to go; {switches} switches and {hosts} hosts known",
                self.sweeper.phase(),
                self.sweeper.outstanding()
            );
        }
    }

    /// How far we are with the registry of the master that we stand by for; empty unless `--follow`
    /// is given.
    fn following(&self) -> String {
        if self.config.follow.is_empty() || self.sweeper.sm_state() == SmState::Master {
            return String::new();
        }
        let held = match self.followed.followed().copy() {
            RegistryCopy::None => "not all of it is held",
            RegistryCopy::Current => "in step",
            RegistryCopy::Ended(_) => "in step until its feed ended",
        };
        held.to_owned()
    }

    /// Whether the subnet is ours and up, and nobody answers what its nodes ask.
    fn lacks_responders(&self) -> bool {
        let responders = self.publisher.responders();
        self.sweeper.is_up() && responders.load().iter().all(Responder::is_client)
    }

    fn no_responder(&self) -> String {
        let command = responder_command(self.publisher.address(), self.config.tls.is_some());
        format!("no responder is connected, so that nobody answers queries; start one: {command}")
    }

    /// Has that warned of when the subnet has come up, and responders had time to connect.
    pub(super) fn await_responders(&mut self, report: &Report) {
        if report.first && self.once.is_none() {
            self.responders_due = Some(Instant::now() + RESPONDER_PATIENCE);
        }
    }

    /// Warns of that, if it is time.
    fn look_for_responders(&mut self, now: Instant) {
        if self.responders_due.take_if(|due| now >= *due).is_some() && self.lacks_responders() {
            warn!("{}", self.no_responder());
        }
    }

    /// What an operator should know beyond the state.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.site.refused().warnings();
        if self.lacks_responders() {
            warnings.push(self.no_responder());
        }
        warnings.extend(self.publication.session().warning());
        warnings.extend(self.files.warnings());
        warnings.extend(self.sweeper.foreign_sms().take(LISTED_MAX).map(|place| {
            format!("the subnet manager at {place} shows another SM_Key, and is left out")
        }));
        warnings.extend(self.sweeper.multicast_warnings());
        warnings.extend(self.sweeper.pkey_warning());
        let (waiting, rate) =
            (self.sweeper.clients_to_ask(), self.config.settings.client_rereg_rate);
        if waiting > 0 {
            warnings.push(format!(
                "{waiting} clients are still to be asked to register again, {rate} a second"
            ));
        }
        let avoided = self.sweeper.avoided_switches();
        if avoided > 0 {
            warnings.push(format!(
                "{avoided} switches do not take their forwarding tables, and routes avoid them"
            ));
        }
        let throttled = self.sweeper.throttled_links();
        if throttled > 0 {
            warnings.push(format!(
                "{throttled} links between switches are slower or narrower than their ends can be, and \
                 routes avoid them"
            ));
        }
        warnings
    }

    /// Brings status and metrics up to date, and who leads clients where, if it is time.
    pub(super) fn tell_status(&mut self, now: Instant) {
        self.door.complain(now);
        if now < self.status_due {
            return;
        }
        self.status_due = now + STATUS_INTERVAL;
        self.follow_responders(now);
        self.look_for_responders(now);
        self.lead_clients(now);
        let quiet = self.sweeper.quiet_sweeps();
        if quiet != self.sweeps.quiet.0 {
            self.sweeps.quiet = (quiet, Some(unix_ms()));
        }
        let metrics = self.collect();
        let fabric = self.sweeper.fabric();
        let home = fabric.home().map(|home| fabric.port(home));
        self.publisher.set_status(SmStatus {
            state: self.sweeper.sm_state().to_string(),
            subnet_up: self.sweeper.is_up(),
            warnings: self.warnings(),
            routing_engine: self.sweeper.routing_engine().to_owned(),
            engines_passed_over: self.sweeper.passed_over().to_vec(),
            guid: home.map(|port| port.guid),
            lid: home.map_or(Lid::NONE, |port| port.base_lid()),
            lmc: self.sweeper.settings().lmc,
            subnet_prefix: self.sweeper.settings().subnet_prefix,
            priority: self.sweeper.settings().sm_priority,
            peers: self.sweeper.peers(now),
            following: self.following(),
            takes_over_after: self.sweeper.patience(),
            phase: self.sweeper.phase().to_string(),
            quiet_sweeps: self.sweeps.quiet.0,
            quiet_sweep_ms: self.sweeps.quiet.1,
            counters: measure::totals(&metrics),
        });
        self.metrics.tell(metrics);
    }
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

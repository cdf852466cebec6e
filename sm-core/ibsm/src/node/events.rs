//! Handles events of the sweep.

use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use super::once::{Next, Swept, in_vain};
use super::{Action, Node, NodeError};
use crate::observe::event::sweep_start;
use sm_core::fabric::SubnetParameters;
use sm_core::sweep::{Event, Report, STATE};

/// How long checks and files are deferred after a sweep, so that responders are served first.
const DEFERRED_DELAY: Duration = Duration::from_secs(1);

impl Node {
    /// Handles events up to a sweep that must wait for files, which configure it.
    pub(super) fn handle_events(&mut self, now: Instant) {
        // Reported once responders serve the snapshot that caused them.
        let mut of_ports = Vec::new();
        let mut reports = Vec::new();
        while let Some(event) = self.sweeper.poll_event() {
            match event {
                Event::Discovering => {
                    self.follow_settings();
                    self.note(sweep_start());
                    let lids = self.sweeper.wants_lids();
                    self.actions.push_back(Action::ReadFiles { lids });
                    break;
                }
                Event::LidsChanged => self.files.lids_changed(),
                Event::DisabledPortsChanged => self.files.disabled_ports_changed(),
                Event::Routed if self.sweeper.is_up() => self.publish_routes(now),
                Event::Routed => {}
                Event::Configured(report) => self.handle_configured(now, *report),
                // The rest follows from the state: see `follow_mastership`.
                Event::StandingBy(_) => {
                    self.files.another_is_master();
                    self.publication.discard_held();
                    of_ports.clear();
                }
                Event::MulticastWritten | Event::ClientsMoved => {
                    self.publication.multicast_written(now);
                }
                Event::PKeysWritten if self.sweeper.is_up() => {
                    self.note_partitions();
                    self.publish(now, false);
                }
                Event::PKeysWritten => {}
                Event::TakenOver { what, done } => self.clients.taken_over(what, done),
                Event::PortsChanged(changed) => of_ports.extend(self.events_of_ports(&changed)),
                Event::Trap(trap) => {
                    self.note_error_trap(now, &trap);
                    self.note_trap(now, &trap);
                    reports.extend(self.event_of_trap(&trap));
                }
                Event::Rival(reason) => self.end = Some(Err(NodeError::Rival(reason))),
                Event::Fatal(reason) if self.settings().exit_on_fatal => {
                    self.end = Some(Err(NodeError::Fatal(reason)));
                }
                // The sweep that found it fails, and is retried.
                Event::Fatal(reason) => error!("{reason}"),
            }
        }
        reports.extend(self.publication.hold(now, of_ports, &self.responders));
        if !reports.is_empty() {
            self.registry.notify(reports);
        }
    }

    /// A sweep has ended with the fabric configured.
    fn handle_configured(&mut self, now: Instant, report: Report) {
        if report.full || report.changed() {
            // A run that ends with this sweep defers nothing.
            let delay = if self.once.is_some() { Duration::ZERO } else { DEFERRED_DELAY };
            self.deferred_due.get_or_insert(now + delay);
        }
        if report.up {
            self.files.save_origin(self.sweeper.origin());
        }
        // The port's own LID may be new.
        self.actions.push_back(Action::RefreshPort);
        self.publish(now, report.full);
        let is_news = self.sweeps().is_news(&report);
        if report.errors == 0 && report.up && is_news {
            self.dumps.want_all();
        }
        match report.errors {
            0 if report.up && is_news => info!(target: STATE, "SUBNET UP: {report}"),
            0 => debug!("sweep found no change: {report}"),
            errors if report.up => {
                let faults = report.faults.join("; ");
                warn!(
                    target: STATE,
                    "SUBNET UP with {errors} fault(s): {report}; first faults: {faults}"
                );
            }
            _ => {}
        }
        self.note_results(&report, is_news);
        self.await_responders(now, &report);
        self.status.sweeps_mut().note_outcome(&report);
        self.judge_once(now, &report);
        self.note_sweep(now, report);
    }

    /// Publishes the result of a sweep.
    fn publish(&mut self, now: Instant, full: bool) {
        if full && self.succession.must_take_over_again(self.publication.feed()) {
            warn!(
                "responders follow a master that the last sweep did not find: taking over from it"
            );
            self.sweeper.take_over_again(now);
            return;
        }
        let parameters = self.parameters();
        // Before a session may begin: rows of ports that are not in the last list are deleted, and
        // that may be of an earlier term.
        self.update_registry(&parameters);
        self.publication.prepare(now, full, &self.sweeper);
        let plane = self.sweeper.fabric().plane(&parameters);
        self.publication.publish(now, plane, self.registry.link());
    }

    /// Publishes routes that switches have, while the sweep goes on: responders answer with them
    /// before it ends. The registry knows the nodes and end ports: only cables between switches
    /// are gone ([`Event::Routed`]).
    fn publish_routes(&mut self, now: Instant) {
        if self.publication.feed().session().is_none() {
            return;
        }
        let parameters = self.parameters();
        let plane = self.sweeper.fabric().plane(&parameters);
        self.publication.publish(now, plane, self.registry.link());
    }

    /// What a plane has beside the fabric itself.
    fn parameters(&mut self) -> SubnetParameters {
        let policy = self.site.rows(&self.sweeper);
        let managers = self.publication.managers(self.sweeper.subnet_managers());
        let settings = self.sweeper.settings();
        SubnetParameters {
            prefix: settings.subnet_prefix,
            lifetime: settings.subnet_timeout,
            sa_key: settings.sa_key,
            routing_engine: self.sweeper.routing_engine().to_owned(),
            engine_sls: self.sweeper.engine_sls(),
            path_sls: self.sweeper.path_sls(),
            managers,
            policy,
        }
    }

    /// The consequence of a sweep for a run with `--once`.
    fn judge_once(&mut self, now: Instant, report: &Report) {
        let Some(once) = &mut self.once else { return };
        let fabric = self.sweeper.fabric();
        let swept = Swept {
            up: report.up,
            failed_in_a_row: self.status.sweeps().failed_in_a_row,
            has_lid: fabric
                .sm_port()
                .is_some_and(|sm_port| fabric.port(sm_port).base_lid().is_unicast()),
            found: report.hosts + report.switches,
            unanswered: report.unanswered,
        };
        match once.after_sweep(now, swept) {
            Next::GoOn => {}
            Next::Sweep => self.sweeper.request_heavy_sweep(now),
            Next::End(reason) => {
                self.end = Some(Err(reason.or_m_key(self.sweeper.suspects_m_key())));
            }
        }
    }

    /// Ends a run with `--once` when responders serve the published snapshot, or if it cannot
    /// succeed.
    pub(super) fn end_once(&mut self, now: Instant) {
        let Some(once) = &mut self.once else { return };
        if !once.is_up() {
            let (state, given_up) = (self.sweeper.sm_state(), self.sweeper.sweeps_given_up());
            if self.end.is_none()
                && let Some(reason) = in_vain(state, self.sweeper.master(), given_up)
            {
                self.end = Some(Err(reason.or_m_key(self.sweeper.suspects_m_key())));
            }
            return;
        }
        let (publication, responders) = (&self.publication, &self.responders);
        let is_over = once.is_over(now, || {
            let published = publication.version();
            let responders = responders.load();
            let behind = responders.iter().filter(|entry| entry.serving != Some(published)).count();
            (responders.len(), behind)
        });
        if is_over {
            self.end = Some(Ok(()));
        }
    }
}

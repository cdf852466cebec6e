//! What follows from what the sweeper found, from signals, and from what operators ask for.

use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use super::Service;
use super::once::{Next, Swept, in_vain};
use crate::fabric::SubnetParameters;
use crate::publish::Orders;
use crate::runtime::RunError;
use crate::runtime::signals::Signal;
use crate::sweep::{Event, Report, STATE};

/// How long what nobody waits for is put off after a sweep, for responders to be served first.
const DEFERRED_DELAY: Duration = Duration::from_secs(1);

impl Service {
    pub(super) fn take_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal {
                Signal::HeavySweep => {
                    info!("HUP: heavy sweep");
                    self.site.reread_settings(&self.config);
                    self.sweeper.request_heavy_sweep(Instant::now());
                }
                Signal::ReopenLog => match self.log.reopen() {
                    Ok(()) => info!("USR1: the log file is opened again"),
                    Err(failure) => error!("USR1: {failure}; writing to the old one"),
                },
                Signal::Terminate => {
                    info!("terminated");
                    self.done = Some(Ok(()));
                }
            }
        }
    }

    /// Does what operators asked for by `ibsmctl`.
    pub(super) fn take_orders(&mut self, now: Instant) {
        let Orders { sweep, reroute } = self.publisher.take_orders();
        if reroute {
            info!("reroute: all routes are made anew");
            self.sweeper.reroute(now);
        } else if sweep {
            info!("sweep: heavy sweep");
            self.sweeper.request_heavy_sweep(now);
        }
    }

    pub(super) fn take_events(&mut self) {
        // Told of once responders answer from what led to them.
        let mut of_ports = Vec::new();
        let mut told = Vec::new();
        while let Some(event) = self.sweeper.poll_event() {
            match event {
                Event::Discovering => {
                    self.site.reload(&mut self.config, &mut self.sweeper);
                    self.log.follow(&self.config.settings);
                    self.dumps.follow(&self.config.settings);
                    self.files.reread_lids(&mut self.sweeper);
                    self.sweeper.files_are_read(Instant::now());
                }
                Event::LidsChanged => self.files.lids_changed(),
                Event::DisabledPortsChanged => self.files.disabled_ports_changed(),
                Event::Configured(report) => self.configured(*report),
                // What else follows, follows from our state; see `follow_mastership`.
                Event::StandingBy(_) => {
                    self.files.another_rules();
                    self.held.clear();
                    of_ports.clear();
                }
                Event::MulticastWritten | Event::ClientsMoved => {
                    self.publication.multicast_written(Instant::now());
                }
                Event::TakenOver { what, done } => self.taken_over(what, done),
                Event::PortsChanged(changed) => of_ports.extend(self.events_of_ports(&changed)),
                Event::Trap(trap) => told.extend(self.event_of_trap(&trap)),
                Event::Fatal(reason) if self.config.settings.exit_on_fatal => {
                    self.done = Some(Err(RunError::Fatal(reason)));
                }
                // The sweep that found it goes on failing, and is tried again.
                Event::Fatal(reason) => error!("{reason}"),
            }
        }
        let now = Instant::now();
        self.held.hold(now, self.publisher.version(), of_ports);
        told.extend(self.held.release(now, &self.publisher.responders().load()));
        if !told.is_empty() {
            self.registry.tell(told);
        }
    }

    /// Has ports of new responders made full members of the default partition.
    pub(super) fn follow_responders(&mut self, now: Instant) {
        let responders = self.publisher.responders();
        let ports: Vec<_> =
            responders.load().iter().filter_map(|entry| Some(entry.port?.0)).collect();
        if self.sweeper.set_responder_ports(ports) {
            self.sweeper.request_heavy_sweep(now);
        }
    }

    /// Does what was put off for responders to be served first.
    pub(super) fn do_deferred(&mut self, now: Instant) -> Result<(), RunError> {
        if self.deferred_due.is_some_and(|due| now < due) {
            return Ok(());
        }
        if self.deferred_due.take().is_some() {
            self.files.compare_caches(&mut self.sweeper);
        }
        Ok(self.workers.begin_checks(&mut self.sweeper)?)
    }

    /// A sweep has ended with the fabric configured.
    fn configured(&mut self, report: Report) {
        let now = Instant::now();
        if report.full || report.changed() {
            // A run that ends with this sweep leaves nothing undone.
            let delay = if self.once.is_some() { Duration::ZERO } else { DEFERRED_DELAY };
            self.deferred_due.get_or_insert(now + delay);
        }
        if report.up {
            self.files.keep_origin(self.sweeper.origin());
        }
        // The port's own LID may be new: the transport tells path bits by it.
        self.fabric.refresh(Instant::now());
        self.publish(Instant::now(), report.full);
        let is_news = self.sweeps.is_news(&report);
        if report.errors == 0 && report.up && is_news {
            self.dumps.want_all();
        }
        match report.errors {
            0 if report.up && is_news => info!(target: STATE, "SUBNET UP: {report}"),
            0 => debug!("nothing changed: {report}"),
            errors if report.up => {
                let faults = report.faults.join("; ");
                warn!(
                    target: STATE,
                    "SUBNET UP with {errors} fault(s): {report}; the first: {faults}"
                );
            }
            _ => {}
        }
        self.await_responders(&report);
        self.sweeps.note_outcome(&report);
        self.judge_once(&report);
        self.note_sweep(report);
    }

    /// Publishes what a sweep found.
    fn publish(&mut self, now: Instant, full: bool) {
        let policy = self.site.rows(&self.sweeper);
        self.publication.prepare(now, full, &self.sweeper, &self.registry);
        let settings = self.sweeper.settings();
        let parameters = SubnetParameters {
            prefix: settings.subnet_prefix,
            lifetime: settings.subnet_timeout,
            sa_key: settings.sa_key,
            routing_engine: self.sweeper.routing_engine().to_owned(),
            engine_sls: self.sweeper.engine_sls(),
            path_sls: self.sweeper.path_sls(),
            managers: self.sweeper.subnet_managers(),
            policy,
        };
        self.tell_registry(&parameters);
        self.publication.publish(now, self.sweeper.fabric().plane(&parameters), &self.registry);
    }

    /// What a sweep means for a run with `--once`.
    fn judge_once(&mut self, report: &Report) {
        let Some(once) = &mut self.once else { return };
        let (now, fabric) = (Instant::now(), self.sweeper.fabric());
        let swept = Swept {
            up: report.up,
            failed_in_a_row: self.sweeps.failed_in_a_row,
            has_lid: fabric.home().is_some_and(|home| fabric.port(home).base_lid().is_unicast()),
            found: report.hosts + report.switches,
            unanswered: report.unanswered,
        };
        match once.after_sweep(now, swept) {
            Next::GoOn => {}
            Next::Sweep => self.sweeper.request_heavy_sweep(now),
            Next::End(reason) => self.done = Some(Err(reason)),
        }
    }

    /// Ends a run with `--once` when responders have what it leaves behind, or when it is in vain.
    pub(super) fn end_once(&mut self, now: Instant) {
        let Some(once) = &mut self.once else { return };
        if !once.is_up() {
            let (state, given_up) = (self.sweeper.sm_state(), self.sweeper.sweeps_given_up());
            if self.done.is_none()
                && let Some(reason) = in_vain(state, self.sweeper.master(), given_up)
            {
                self.done = Some(Err(reason));
            }
            return;
        }
        let publisher = &self.publisher;
        let is_over = once.is_over(now, || {
            let published = publisher.version();
            let responders = publisher.responders();
            let responders = responders.load();
            let behind = responders.iter().filter(|entry| entry.serving != Some(published)).count();
            (responders.len(), behind)
        });
        if is_over {
            self.done = Some(Ok(()));
        }
    }
}

//! The transitions of configuration, from addresses over forwarding tables to links, and the end of
//! a sweep.

use std::collections::HashSet;
use std::time::Instant;

use ib_mad::wire::attribute::PortState;
use tracing::warn;

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::smp::{Kind, Request};
use crate::sweep::stages::Stage;
use crate::sweep::stages::configure::links::{LinkSetup, Step};
use crate::sweep::stages::configure::program::{Programmed, Programming, Steps};
use crate::sweep::subnet::events::Event;

impl Sweeper {
    /// Ends a sweep: reports it, and starts the work between sweeps. `programmed` is `None` if the
    /// fabric could not be routed.
    pub(super) fn end_sweep(&mut self, now: Instant, programmed: Option<Programmed>) {
        let linked = self.subnet.linked_ports();
        let is_idle =
            |port: &PortIndex| self.subnet.fabric.port(*port).state() != Some(PortState::Active);
        let routed = programmed.is_some();
        let idle: Vec<PortIndex> =
            linked.iter().copied().filter(is_idle).filter(|_| routed).collect();
        for &port in &idle {
            let state = self.subnet.fabric.port(port).state();
            let state = state.map_or_else(|| "in an unknown state".to_owned(), |s| s.to_string());
            let place = self.subnet.place(port);
            self.subnet.fault(port, format_args!("{place} is {state}, not Active"));
        }
        self.avoided.update(&mut self.subnet, now, &programmed.unwrap_or_default());
        let (hosts, switches) = self.subnet.fabric.counts();
        let sent = self.subnet.exchange.counters().transmitted;
        let report = &mut self.subnet.journal.report;
        report.hosts = hosts;
        report.switches = switches;
        report.links = linked.len() / 2;
        report.unanswered = self.subnet.state.unanswered.len();
        report.smps = sent - report.smps;
        self.subnet.routing.engine().clone_into(&mut report.engine);
        let name = |why: &String| why.split([' ', ':']).next().unwrap_or_default().to_owned();
        report.rejected_engines = self.subnet.routing.rejected.iter().map(name).collect();
        report.up = routed;
        let report = std::mem::take(report);
        let full = report.full;
        self.subnet.report_new_nodes();
        self.compare_service(self.subnet.state.first_as_master);
        if routed {
            self.reregistration.end_sweep();
        } else {
            warn!("{} error(s) in this sweep; sweeping again", report.errors);
        }
        let faults = self.subnet.journal.take_faults();
        self.subnet.state.end_sweep(now, routed, faults, &mut self.subnet.schedule);
        self.subnet.end_restoration(now, routed);
        self.subnet.schedule.rearm(now);
        self.subnet.events.push(Event::Configured(Box::new(report)));
        self.disable_babbling_ports(now);
        self.multicast.write_blocks(&mut self.subnet, now, true);
        self.aliases.wake(&self.subnet, now);
        if routed && self.dry_run.is_none() {
            self.virtual_ports.end_sweep(&mut self.subnet, now, full);
        }
        self.partition_changes.wake(now);
        self.run_tasks(now);
    }
}

impl Sweeper {
    /// Whether a sweep that has read the fabric may write routes at once and do all else later, so
    /// that clients get them early: cables between switches are gone and nothing else came or went,
    /// and nothing that it read needs another address or step of a link first. `full`: whether all
    /// of the fabric was read.
    pub(in crate::sweep) fn may_route_first(&self, full: bool) -> bool {
        let Self { subnet, dry_run, .. } = self;
        let (state, fabric) = (&subnet.state, &subnet.fabric);
        if full || !state.up || state.first_as_master || dry_run.is_some() {
            return false;
        }
        // The registry and the list of ports in service follow nodes and end ports that come or go
        // at the end of the sweep, before the plane without them is published.
        let report = &subnet.journal.report;
        if report.cut == 0 || [report.appeared, report.vanished, report.detached] != [0; 3] {
            return false;
        }
        let is_settled = |port: PortIndex| {
            let is_active = fabric.port(port).state() == Some(PortState::Active);
            (is_active || !subnet.is_linked(port)) && subnet.wanted_address(port).is_none()
        };
        let read = fabric.nodes().filter(|(_, node)| node.seen == state.discovery);
        read.into_iter().all(|(index, _)| fabric.ports_of(index).all(is_settled))
    }

    /// Continues after forwarding tables were written.
    pub(in crate::sweep) fn end_tables(&mut self, now: Instant, programmed: Programmed) {
        if !std::mem::take(&mut self.sweep.routes_first) {
            return self.begin_arming(now, programmed);
        }
        if self.subnet.journal.report.lft_blocks_set > 0 {
            self.subnet.events.push(Event::Routed);
        }
        self.enter(now, Stage::Routed(programmed));
    }

    /// Starts to configure the fabric; `full`: whether all of it was read, `routed`: the tables, if
    /// they were written already.
    pub(in crate::sweep) fn begin_addresses(
        &mut self,
        now: Instant,
        full: bool,
        routed: Option<Programmed>,
    ) {
        // Routes to other LIDs are others.
        let is_readdressed = self.subnet.assign_lids();
        self.enter(now, Stage::Addresses(routed.filter(|_| !is_readdressed)));
        self.subnet.count_overwritten();
        self.subnet.admit_clients();
        self.reregistration.stagger(&mut self.subnet, now);
        self.subnet.set_pkeys();
        self.partition_changes.computed();
        self.enable_disabled_ports(full);
        if self.subnet.state.first_as_master {
            self.subnet.clear_port_changes();
        }
        self.set_addresses(|_| true);
    }

    /// Sets the addresses of ports with LIDs for which `counts` is true, where they differ.
    fn set_addresses(&mut self, counts: impl Fn(PortIndex) -> bool) {
        let ports: Vec<PortIndex> =
            self.subnet.fabric.lid_ports().map(|(port, _)| port).filter(|&p| counts(p)).collect();
        for port in ports {
            if self.subnet.wanted_address(port).is_some() {
                self.subnet.exchange.push(Request::new(Kind::SetAddress, port));
                self.subnet.journal.report.port_infos_set += 1;
            }
        }
    }
}

impl Sweeper {
    pub(in crate::sweep) fn begin_arming(&mut self, now: Instant, programmed: Programmed) {
        let links = LinkSetup { step: Step::Arm, programmed, read_again: HashSet::new() };
        self.enter(now, Stage::Links(links));
        self.subnet.take_down_left_out();
        let linked = self.subnet.linked_ports();
        self.subnet.set_fdr10(&linked);
        let mut armed = HashSet::new();
        for port in linked {
            if self.subnet.wanted_arming(port).is_some() {
                self.subnet.exchange.push(Request::new(Kind::Arm, port));
                self.subnet.journal.report.port_infos_set += 1;
                armed.insert(port);
            }
        }
        // Addresses were set before the routing was known, which decides on MasterSMSL.
        if self.subnet.engine_sls() != 0 {
            self.set_addresses(|port| !armed.contains(&port));
        }
    }

    /// Ends a step: begins the next, or ends the sweep.
    pub(in crate::sweep) fn end_link_step(&mut self, now: Instant, links: LinkSetup) {
        match links.step {
            Step::Arm if self.subnet.needs_port_tables() => {
                self.enter(now, Stage::Links(LinkSetup { step: Step::PortTables, ..links }));
                self.subnet.set_port_tables();
            }
            Step::Arm | Step::PortTables => {
                self.enter(now, Stage::Links(LinkSetup { step: Step::Activate, ..links }));
                self.subnet.activate_links();
            }
            Step::Activate => self.end_sweep(now, Some(links.programmed)),
        }
    }
}

impl Sweeper {
    /// Starts to write forwarding tables. The SL-to-VL tables of ports in use precede them: the
    /// routing was proved free of credit loops on its own lanes only.
    pub(in crate::sweep) fn begin_tables(&mut self, now: Instant, mut steps: Steps) {
        self.avoided.limit_writes(&self.subnet, &mut steps);
        self.subnet.set_tables_of_active_ports();
        let mut programming = Programming::new(steps);
        if self.subnet.exchange.is_idle() {
            programming.send_next(&mut self.subnet);
        }
        self.enter(now, Stage::Tables(programming));
    }
}

//! The light sweep: reads the PortStateChange bit of every switch.
//!
//! When a switch reports a change or does not answer, the others get a short time more, because
//! most failures affect several switches; then the changed ones are read. Switches that have not
//! answered by then may be unreachable because of the change, and are queried again when a new
//! route to them is known.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::SwitchInfo;
use ib_mad::wire::mad::Status;
use tracing::{debug, info};

use super::Sweeper;
use super::current::Stage;
use super::owner::{OwnedRequest, RequestOwner};
use super::schedule::Cause;
use super::subnet::Subnet;
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::link;
use crate::mastership::Decision;
use crate::smp::{Kind, Request, kinds};

/// How long a light sweep continues after the first change.
const GRACE: Duration = Duration::from_millis(20);

/// The stage that looks for changes.
#[derive(Debug, Default)]
pub(super) struct Light {
    /// Switches that reported a change.
    changed: Vec<NodeIndex>,
    /// Switches that did not answer.
    silent: HashSet<NodeIndex>,
    /// Whether unresponsive subnet managers are asked.
    polls_unresponsive: bool,
    /// When the stage ends, once a change was seen.
    grace_ends: Option<Instant>,
}

impl Light {
    /// When a stage that saw a change ends.
    pub(super) fn grace_ends(&self) -> Option<Instant> {
        self.grace_ends
    }

    /// Ends the stage soon, since a change or an unresponsive switch was seen.
    fn grant_grace(&mut self, now: Instant) {
        self.grace_ends.get_or_insert(now + GRACE);
    }

    /// A trap arrived: stops waiting for SMs that may not answer.
    pub(super) fn trap_arrived(&mut self, now: Instant) {
        if self.polls_unresponsive {
            self.grant_grace(now);
        }
    }
}

impl RequestOwner for Light {
    type Kind = kinds::LightSweep;

    fn encode(&self, _: &Subnet, owned: OwnedRequest<Self::Kind>, _: &mut [u8; 64]) -> Option<u32> {
        let OwnedRequest { kind, .. } = owned;
        match kind {
            kinds::LightSweep::PortChange => Some(0),
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, now, .. } = owned;
        let node = subnet.fabric.port(request.port()).node;
        let Some(switch) = subnet.fabric.node(node).switch else { return };
        let info = SwitchInfo::of(data);
        let known = subnet.fabric.switch(switch).switch_info();
        if info.port_state_change() || info.linear_fdb_top() != known.linear_fdb_top() {
            self.changed.push(node);
            self.grant_grace(now);
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { request, .. } = owned;
        subnet.report_refusal(request, status);
        self.silent.insert(subnet.fabric.port(request.port()).node);
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, now, .. } = owned;
        let port = request.port();
        self.grant_grace(now);
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(port));
        self.silent.insert(subnet.fabric.port(port).node);
    }
}

impl Sweeper {
    /// Starts to read the nodes whose traps are due and, if also due, those with faults or
    /// unanswered links, in one sweep.
    pub(super) fn begin_partial(&mut self, now: Instant, cause: Cause) {
        let mut nodes = Vec::new();
        if cause == Cause::Trap || self.subnet.schedule.take(now, Cause::Trap) {
            let mut issuers = self.subnet.schedule.take_issuers(now);
            issuers.sort_unstable();
            let ports =
                self.subnet.fabric.end_ports().filter(|&port| self.subnet.owns_any(port, &issuers));
            nodes.extend(ports.map(|port| self.subnet.fabric.port(port).node));
            if nodes.is_empty() {
                // No known port has these LIDs: request a light sweep to locate the change.
                self.subnet.schedule.request(now, Cause::Timer);
            }
        }
        if cause == Cause::Unanswered || self.subnet.schedule.take(now, Cause::Unanswered) {
            let ports = self.subnet.state.unanswered.iter().chain(&self.subnet.state.faults);
            let present = ports.map(|&port| self.subnet.fabric.port(port).node);
            nodes.extend(present.filter(|&node| self.subnet.fabric.node(node).present));
        }
        nodes.sort_unstable();
        nodes.dedup();
        if !nodes.is_empty() {
            self.begin_discovery(now, Some(nodes), Vec::new());
        }
    }

    pub(super) fn begin_light(&mut self, now: Instant, cause: Cause) {
        let switches: Vec<NodeIndex> =
            self.subnet.fabric.switches().map(|(_, switch)| switch.node).collect();
        if switches.is_empty() || !self.subnet.state.up {
            // Without a switch no light sweep would show a change.
            return self.begin_discovery(now, None, Vec::new());
        }
        debug!("light sweep: {cause:?}");
        let mut light = Light::default();
        for node in switches {
            if let Some(port) = self.subnet.fabric.ports_of(node).next() {
                self.subnet.exchange.push(Request::new(Kind::PortChange, port));
            }
        }
        for &(port, _) in self.subnet.election.others() {
            self.subnet.exchange.push(Request::new(Kind::SmInfo, port));
        }
        light.polls_unresponsive = self.subnet.poll_unresponsive(now);
        self.enter(now, Stage::Light(light));
    }

    /// Polls only unresponsive SMs, where light sweeps are off.
    pub(super) fn begin_polling_unresponsive(&mut self, now: Instant) {
        let polls_unresponsive = self.subnet.poll_unresponsive(now);
        self.enter(now, Stage::Light(Light { polls_unresponsive, ..Light::default() }));
    }

    /// Ends a light sweep that found a change, after the extra time for the other switches.
    pub(super) fn end_grace(&mut self, now: Instant) {
        let Stage::Light(light) = &self.sweep.stage else { return };
        if light.grace_ends.is_some_and(|ends| now >= ends) {
            // Switches that have not answered yet are queried in the next light sweep, which
            // follows as soon as this change was handled.
            self.subnet.exchange.cancel_all();
            self.subnet.schedule.request(now, Cause::Timer);
        }
    }

    pub(super) fn end_light(&mut self, now: Instant, light: Light) {
        let Light { mut changed, silent, .. } = light;
        let mut silent: Vec<NodeIndex> = silent.into_iter().collect();
        changed.sort_unstable();
        changed.dedup();
        silent.sort_unstable();
        if let Some(&node) = changed.first().or(silent.first()) {
            self.subnet.journal.report.detail =
                Some(format!("'{}'", self.subnet.fabric.node(node).name()));
        }
        if self.subnet.election.decide() != Decision::Master {
            // An election decides on the master before anything is configured.
            self.begin_discovery(now, Some(changed), silent);
            return;
        }
        if changed.is_empty() && silent.is_empty() {
            self.subnet.state.quiet_sweeps += 1;
            self.subnet.schedule.rearm(now);
        } else {
            info!(
                "light sweep: {} switch(es) changed, {} did not answer",
                changed.len(),
                silent.len()
            );
            self.begin_discovery(now, Some(changed), silent);
        }
    }
}

impl Subnet {
    /// The traps that are due, as text.
    pub(super) fn awaited_traps(&self, now: Instant) -> Option<String> {
        let awaited = self.schedule.awaited(now);
        let &(lid, trap) = awaited.first()?;
        let name = self.end_port_at(lid).map(|port| self.fabric.node_of(port).name());
        let whose = name.map_or_else(String::new, |name| format!("of '{name}' "));
        let others = match awaited.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Some(format!("trap {} {whose}LID {lid}{others}", trap.0))
    }

    /// Whether a port has any of these LIDs, which ascend.
    fn owns_any(&self, port: PortIndex, lids: &[Lid]) -> bool {
        let base = self.fabric.port(port).base_lid();
        let lmc = link::lmc_of(&self.fabric, port, &self.settings);
        let next = lids.partition_point(|&lid| lid < base);
        base != Lid::NONE && lids.get(next).is_some_and(|lid| lid.0 - base.0 < 1 << lmc)
    }
}

//! The stage of a light sweep: starts it, and decides whether a discovery follows.

use std::time::Instant;

use tracing::{debug, info};

use super::Sweeper;
use crate::fabric::NodeIndex;
use crate::mastership::Decision;
use crate::smp::{Kind, Request};
use crate::sweep::stages::Stage;
use crate::sweep::stages::light::Light;
use crate::sweep::subnet::schedule::Cause;

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
            let state = &self.subnet.state;
            let ports = state.unanswered.iter().chain(&state.put_off.ports).chain(&state.faults);
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
        let is_master = self.subnet.election.is_master();
        let mut light = Light { samples: is_master, ..Light::default() };
        for node in switches {
            if let Some(port) = self.subnet.fabric.ports_of(node).next() {
                self.subnet.exchange.push(Request::new(Kind::PortChange, port));
            }
        }
        for &(port, _) in self.subnet.election.others() {
            self.subnet.exchange.push(Request::new(Kind::SmInfo, port));
        }
        let asks_foreign = self.subnet.poll_foreign();
        light.polls_unresponsive = self.subnet.poll_unresponsive(now) || asks_foreign;
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
            if !light.is_sampling {
                self.subnet.schedule.request(now, Cause::Timer);
            }
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
        if self.subnet.election.decide(now) != Decision::Master {
            // An election decides on the master before anything is configured.
            self.begin_discovery(now, Some(changed), silent);
            return;
        }
        if changed.is_empty() && silent.is_empty() {
            self.subnet.state.quiet_sweeps += 1;
            self.subnet.schedule.rearm(now);
        } else {
            info!(
                "light sweep: {} node(s) changed, {} did not answer",
                changed.len(),
                silent.len()
            );
            self.begin_discovery(now, Some(changed), silent);
        }
    }
}

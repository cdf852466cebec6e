//! The stage of routing: passes jobs to the caller, and continues with their outcomes.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Lid;
use tracing::error;

use super::Sweeper;
use crate::fabric::SwitchIndex;
use crate::sweep::stages::Stage;
use crate::sweep::stages::configure::program::Steps;
use crate::sweep::subnet::routing::build::Routed;
use crate::sweep::subnet::routing::checks::{LoopCheck, LoopFinding};
use crate::sweep::subnet::routing::job::{RoutingJob, RoutingOutcome};
use crate::sweep::subnet::{Subnet, lanes};
use sm_config::RoutingFiles;
use sm_routing::Topology;

impl Sweeper {
    pub(super) fn begin_routing(&mut self, now: Instant) {
        self.enter(now, Stage::Route(None));
        self.find_throttled_links();
        let Self { subnet, avoided, throttled, .. } = self;
        let Subnet { routing, fabric, settings, qos_tables, lids, state, .. } = subnet;
        let lanes = |topology: &Topology, switches: &[SwitchIndex]| {
            lanes::data_lanes(fabric, settings, qos_tables, topology, switches)
        };
        let routed = Routed { fabric, lids, avoided: &avoided.switches, throttled };
        match routing.job(state.discovery, settings, routed, lanes) {
            Ok(job) if job.is_done() => {
                // Switches that came back, or did not take all they were sent, are still served.
                self.subnet.journal.report.last_lid = self.subnet.routing.top.0;
                let steps = Steps::from([self.subnet.stale_blocks()]);
                self.begin_tables(now, steps);
            }
            Ok(job) => self.sweep.stage = Stage::Route(Some(Box::new(job))),
            Err(reason) => {
                self.subnet.error(format_args!("the fabric cannot be routed: {reason}"));
                self.end_routing(now, None);
            }
        }
    }

    /// Starts to write tables, or ends the sweep if there is no routing: links must not carry
    /// packets that no table forwards.
    fn end_routing(&mut self, now: Instant, steps: Option<Steps>) {
        self.record_phase(now);
        match steps {
            Some(steps) => self.begin_tables(now, steps),
            None => {
                self.sweep.stage = Stage::Idle;
                self.end_sweep(now, None);
            }
        }
    }

    /// Whether the routing job of discovery `sweep` is the one that the sweep waits for.
    fn awaits_routing(&self, sweep: u32) -> bool {
        matches!(self.sweep.stage, Stage::Route(_)) && sweep == self.subnet.state.discovery
    }

    /// Sets the options from operators' files, for the next sweep.
    pub fn set_routing_files(&mut self, files: Arc<RoutingFiles>) {
        self.subnet.routing.set_files(files);
    }

    /// The routing job that is due, if any; each is returned once. Pass its result to
    /// [`handle_routing`](Self::handle_routing).
    pub fn poll_routing(&mut self) -> Option<Box<RoutingJob>> {
        match &mut self.sweep.stage {
            Stage::Route(job) => job.take(),
            _ => None,
        }
    }

    /// Takes the outcome of the [`RoutingJob`] yielded last.
    pub fn handle_routing(&mut self, now: Instant, outcome: RoutingOutcome) {
        if !self.awaits_routing(outcome.sweep) {
            // It belongs to a sweep that was abandoned.
            return;
        }
        let RoutingOutcome { switches, chosen, rejected, .. } = outcome;
        let mut reported = std::mem::take(&mut self.subnet.routing.rejected);
        for (first, reason) in rejected {
            let counted = switches.get(usize::from(first)..).unwrap_or_default();
            let why = self.subnet.report_rejection(counted, reason, &reported);
            // Planes may have the same reasons.
            if !self.subnet.routing.rejected.contains(&why) {
                reported.push(why.clone());
                self.subnet.routing.rejected.push(why);
            }
        }
        let steps = match chosen {
            Some(chosen) => {
                if chosen.unreachable > 0 {
                    let pairs = chosen.unreachable;
                    self.subnet
                        .anomaly(format_args!("{pairs} pairs of switch and LID have no route"));
                }
                Some(self.subnet.adopt(chosen))
            }
            None => {
                self.subnet.journal.report.errors += 1;
                error!(
                    "no routing engine can route the fabric; forwarding tables stay as they \
                     are"
                );
                None
            }
        };
        self.end_routing(now, steps);
        self.advance(now);
    }

    /// Handles a [`RoutingJob`] that failed without a result.
    pub fn handle_routing_failure(&mut self, now: Instant, sweep: u32, reason: &str) {
        if self.awaits_routing(sweep) {
            self.subnet.error(format_args!("the fabric cannot be routed: {reason}"));
            self.end_routing(now, None);
            self.advance(now);
        }
    }

    /// The credit-loop check that is due, if any. Pass its result to
    /// [`handle_loops`](Self::handle_loops).
    pub fn poll_loop_check(&mut self) -> Option<LoopCheck> {
        if !self.sweep.is_idle() {
            return None;
        }
        self.subnet.routing.poll_loop_check(&self.subnet.fabric)
    }

    /// Handles the result of a [`LoopCheck`].
    pub fn handle_loops(&mut self, finding: &LoopFinding) {
        if !self.subnet.routing.is_in_force(&finding.made) {
            return;
        }
        if self.subnet.routing.note_loops(&finding.loops) {
            self.subnet.warn_of_loops(&finding.loops);
        }
        let reply_loops = finding.reply_loops.as_ref();
        if self.subnet.routing.note_reply_loops(reply_loops)
            && let Some(loops) = reply_loops
        {
            self.subnet.warn_of_reply_loops(loops);
        }
    }

    /// Whether replies that are sent on the SL of their request, as Linux sends them, are free of
    /// credit loops, too.
    pub fn are_replies_loop_free(&self) -> bool {
        self.subnet.routing.are_replies_loop_free()
    }

    /// Whether the last check found the routing in force free of credit loops.
    pub fn is_loop_free(&self) -> bool {
        self.subnet.routing.is_loop_free()
    }

    /// The last LID that the tables lead to.
    pub fn last_lid(&self) -> Lid {
        self.subnet.routing.top
    }
}

//! From the fabric to its forwarding tables: the input of the routing engine, and the handling of
//! its result.
//!
//! Routing a large fabric takes long, so the sweep only prepares a [`RoutingJob`]; the caller runs
//! it on any thread, and the sweep continues when it gets the result.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Lid;
use tracing::{debug, error, warn};

use super::configure::Steps;
use super::current::Stage;
use super::routing::{
    Chosen, LoopCheck, LoopFinding, Rejection, Routed, RoutingJob, RoutingOutcome,
};
use super::subnet::Subnet;
use super::{Sweeper, lanes};
use crate::fabric::SwitchIndex;
use crate::smp::{Kind, Request};
use sm_config::RoutingFiles;
use sm_routing::label::switch_label;
use sm_routing::program::{Change, Program, Write};
use sm_routing::verify::CreditLoops;
use sm_routing::{DisplayWith, Topology};

/// Maximum number of hops of a credit loop that are logged.
const CYCLE_HOPS_MAX: usize = 8;

impl Sweeper {
    pub(super) fn begin_routing(&mut self, now: Instant) {
        self.enter(now, Stage::Route(None));
        self.find_throttled_links();
        let Self { subnet, avoided, throttled, .. } = self;
        let Subnet { routing, fabric, settings, qos_tables, lids, state, .. } = subnet;
        let lanes = |topology: &Topology, switches: &[SwitchIndex]| {
            lanes::data_lanes(fabric, settings, qos_tables, topology, switches)
        };
        let routed = Routed { fabric, lids, avoided, throttled };
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
        let reported = std::mem::take(&mut self.subnet.routing.rejected);
        for reason in rejected {
            let why = self.subnet.report_rejection(&switches, reason, &reported);
            self.subnet.routing.rejected.push(why);
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
        if self.subnet.routing.is_in_force(&finding.made)
            && self.subnet.routing.note_loops(&finding.loops)
        {
            self.subnet.warn_of_loops(&finding.loops);
        }
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

impl Subnet {
    /// Makes a routing the wanted one, and plans its writes.
    fn adopt(&mut self, chosen: Chosen) -> Steps {
        let Chosen { mut made, lfts, kept, loops, .. } = chosen;
        let topology = made.topology();
        self.journal.report.last_lid = topology.last_lid().0;
        let program = {
            let tables = made.switches().iter().zip(&lfts).zip(topology.switches());
            let changes = tables.map(|((&index, new), number)| {
                let old = self.fabric.switch(index).lft.acknowledged();
                Change { switch: number, old, new }
            });
            Program::plan(topology, changes)
        };
        for (&index, lft) in made.switches().iter().zip(lfts) {
            self.fabric.lft_mut(index).set_desired(lft);
        }
        made.keep_proved(&self.fabric);
        let steps = [&program.repair, &program.shift, &program.remove];
        let steps: Steps = steps
            .into_iter()
            .map(|writes| {
                writes
                    .iter()
                    .filter_map(|write| self.block_request(made.switches(), *write))
                    .collect()
            })
            .filter(|requests: &Vec<Request>| !requests.is_empty())
            .collect();
        debug!(
            "{} routes {} switches; blocks to write: {:?}",
            made.engine(),
            made.switches().len(),
            steps.iter().map(Vec::len).collect::<Vec<_>>()
        );
        let replaces = !self.settings.keep_found_routes;
        let appeared = self.routing.adopt(made, loops.as_ref(), kept, replaces);
        if let Some(loops) = loops.filter(|_| appeared) {
            self.warn_of_loops(&loops);
        }
        steps
    }

    /// Credit loops have appeared in the routing in force.
    fn warn_of_loops(&self, loops: &CreditLoops) {
        let Some(made) = self.routing.made() else { return };
        warn!(
            "credit loops: traffic can deadlock on up to {} links, for example {}; {} does not \
             avoid them",
            loops.looping,
            self.cycle(made.switches(), loops),
            made.engine()
        );
    }

    /// An example of a credit loop, by switch names (numbers from `switches`).
    fn cycle(&self, switches: &[SwitchIndex], loops: &CreditLoops) -> String {
        let lane = loops.lane.map_or(String::new(), |lane| format!(" on VL {lane}"));
        self.hops_in_words(switches, &loops.example) + &lane
    }

    /// Hops by the names of switches, which `switches` numbers, and the ports that they send by.
    pub(super) fn hops_in_words(&self, switches: &[SwitchIndex], hops: &[(u16, u8)]) -> String {
        let name = |&(number, port): &(u16, u8)| {
            let index = *switches.get(usize::from(number))?;
            Some(format!("'{}' port {port}", self.switch_name(index)))
        };
        let named: Vec<_> = hops.iter().take(CYCLE_HOPS_MAX).filter_map(name).collect();
        let more = hops.len().saturating_sub(CYCLE_HOPS_MAX);
        let rest = if more > 0 { format!(" > {more} more") } else { String::new() };
        named.join(" > ") + &rest
    }

    fn switch_name(&self, index: SwitchIndex) -> String {
        self.fabric.node(self.fabric.switch(index).node).name().to_string()
    }

    /// Reports why an engine is not used, unless that is among `reported` of the previous routing,
    /// and returns it as text.
    fn report_rejection(
        &mut self,
        switches: &[SwitchIndex],
        reason: Rejection,
        reported: &[String],
    ) -> String {
        match reason {
            Rejection::Refused(reason) => {
                let label = |number: u16| {
                    let index = switches.get(usize::from(number)).copied();
                    let name = index.map(|index| self.switch_name(index));
                    switch_label(number, name.as_deref())
                };
                let reason = reason.display_with(&label).to_string();
                if reported.contains(&reason) {
                    debug!("routing engine skipped, as before: {reason}");
                } else {
                    self.anomaly(format_args!("routing engine skipped: {reason}"));
                }
                reason
            }
            Rejection::Loops(engine, loops) => {
                let (links, cycle) = (loops.looping, self.cycle(switches, &loops));
                let reason =
                    format!("traffic could deadlock on up to {links} links, for example {cycle}");
                let reason = format!("{engine}: {reason}");
                if reported.contains(&reason) {
                    debug!("routing engine skipped, as before: {reason}");
                } else {
                    self.anomaly(format_args!("routing engine skipped: {reason}"));
                }
                reason
            }
            Rejection::Defective(engine, deliveries) => {
                // An engine's fault. The tables in force are better than these.
                let count = deliveries.defective;
                self.error(format_args!(
                    "{engine}: {count} wrong entries; its tables are not used"
                ));
                for defect in deliveries.defects {
                    let name = switches.get(usize::from(defect.switch));
                    let name = name.map_or(String::new(), |&index| self.switch_name(index));
                    self.error(format_args!("{engine} at '{name}': {defect}"));
                }
                format!("{engine}: {count} wrong entries")
            }
        }
    }

    /// All blocks that a switch may not hold correctly.
    fn stale_blocks(&self) -> Vec<Request> {
        let switches = self.fabric.switches();
        let blocks = switches.flat_map(|(_, switch)| {
            let port = self.fabric.ports_of(switch.node).next();
            let blocks = switch.lft.stale_blocks();
            blocks.filter_map(move |block| Some(Request::block(Kind::SetForwarding, port?, block)))
        });
        blocks.collect()
    }

    fn block_request(&self, switches: &[SwitchIndex], write: Write) -> Option<Request> {
        let Write { switch, block } = write;
        let switch = self.fabric.switch(*switches.get(usize::from(switch))?);
        let port = self.fabric.ports_of(switch.node).next()?;
        switch.lft.is_stale(block).then(|| Request::block(Kind::SetForwarding, port, block))
    }
}

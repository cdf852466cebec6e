//! The sweep under way: all that belongs to it and to nothing else, so that giving it up is dropping
//! it. What it leaves for the next ones is in [`SubnetState`](super::subnet::SubnetState).

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::Instant;

use tracing::{debug, warn};

use super::came_back::CameBack;
use super::contradiction::Contradictions;
use super::doubt::Doubts;
use super::router::RoutingJob;
use super::take_over::LidTakeOver;
use super::{Cause, LINES_MAX, Phase, Report};
use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::Request;

/// Faulty ports that are tried again before long; others are when the next sweep comes by.
const FAULTS_MAX: usize = 1024;

/// A sweep, from why it was begun to what it did; without one, the phase is idle.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) phase: Phase,
    /// When that began.
    phase_began: Option<Instant>,
    /// Whether it walks the whole fabric.
    pub(super) full: bool,
    /// Whether it is known already why it comes to nothing.
    pub(super) is_fatal: bool,
    /// Whether our own port is down, so that nothing can be found out.
    pub(super) cut_off: bool,
    /// Nodes that left a request without answer that they must answer.
    pub(super) silent: HashSet<NodeIndex>,
    /// Nodes that left a question about a port without answer.
    pub(super) quiet: HashSet<NodeIndex>,
    pub(super) contradictions: Contradictions,
    pub(super) doubts: Doubts,
    /// Ports with a link that is left out: it leads back to themselves, or to a duplicate.
    pub(super) left_out: HashSet<PortIndex>,
    /// Nodes to be asked last, when routes avoid what turned out to be down.
    pub(super) suspects: Vec<NodeIndex>,
    pub(super) came_back: CameBack,
    /// Whether a link turned out to be down that routes may use.
    pub(super) routes_changed: bool,
    /// Links between switches that are gone.
    pub(super) cut_links: usize,
    /// Where a light sweep saw changes.
    pub(super) changed: Vec<NodeIndex>,
    /// Whether a light sweep asks subnet managers that may well not answer.
    pub(super) asks_mute: bool,
    /// When a light sweep that saw a change ends.
    pub(super) grace_ends: Option<Instant>,
    /// Switches that lost what was programmed.
    pub(super) reset: HashSet<NodeIndex>,
    /// Routing that is to be done, until the caller takes it.
    pub(super) routing_job: Option<Box<RoutingJob>>,
    /// Whether there are no forwarding tables for the fabric as it is.
    pub(super) unroutable: bool,
    /// Blocks of forwarding tables to be written, step by step.
    pub(super) table_steps: VecDeque<Vec<Request>>,
    /// Whether the tops of tables follow.
    pub(super) tops_are_due: bool,
    /// The block of multicast tables that is being read, in the first sweep as master.
    pub(super) multicast_block: u16,
    /// Blocks in a row before it that no switch forwards anything by.
    pub(super) multicast_gap: u16,
    /// Switches that did not take a block: what comes after it in the plan stays undone.
    pub(super) unprogrammed: HashSet<NodeIndex>,
    /// Switches that took one.
    pub(super) programmed: HashSet<NodeIndex>,
    /// Ports that refused a step, and whether it was that to Armed: they were asked where they are.
    pub(super) read_again: HashSet<(PortIndex, bool)>,
    /// The takeover of a LID, which is done in place of a sweep.
    pub(super) take_over: Option<LidTakeOver>,
    /// Ports of which something could not be found out or set.
    faults: Vec<PortIndex>,
    /// Nodes that something was logged about.
    told: HashSet<NodeIndex>,
    /// Lines logged of errors, and of oddities.
    lines: (usize, usize),
    pub(super) report: Report,
}

impl Sweep {
    /// A sweep that is begun for `cause`, and has done nothing yet.
    pub(super) fn new(cause: Cause) -> Self {
        Self { report: Report { cause: Some(cause), ..Report::default() }, ..Self::default() }
    }

    /// The discovery that this sweep goes on to: of the whole fabric, or from where it saw changes,
    /// which then counts as its beginning.
    pub(super) fn into_discovery(self, full: bool, suspects: Vec<NodeIndex>) -> Self {
        let Report { cause, detail, phases, .. } = self.report;
        let phases = if full { Vec::new() } else { phases };
        let report = Report { full, cause, detail, phases, ..Report::default() };
        Self { full, suspects, report, ..Self::default() }
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub(super) fn enter(&mut self, now: Instant, phase: Phase) {
        self.phase_began = Some(now);
        self.phase = phase;
    }

    /// Operators' files were read since the walk of the fabric began, which begins only now.
    pub(super) fn files_are_read(&mut self, now: Instant) {
        if self.phase == Phase::Discover
            && let Some(began) = self.phase_began.replace(now)
        {
            self.report.phases.push((Phase::Files, now - began));
        }
    }

    /// Takes the time of the phase that ends, unless that was done.
    pub(super) fn end_phase(&mut self, now: Instant) -> Option<std::time::Duration> {
        let took = now - self.phase_began.take()?;
        self.report.phases.push((self.phase, took));
        Some(took)
    }

    /// Ports of which something could not be found out or set, in order.
    pub(super) fn take_faults(&mut self) -> Vec<PortIndex> {
        let mut faults = std::mem::take(&mut self.faults);
        faults.sort_unstable();
        faults
    }

    /// Counts an error that concerns `port` of `node`, which is tried again before long.
    pub(super) fn fault(&mut self, node: NodeIndex, port: PortIndex, text: fmt::Arguments<'_>) {
        if self.faults.len() < FAULTS_MAX && !self.faults.contains(&port) {
            self.faults.push(port);
        }
        if self.report.faults.len() < LINES_MAX {
            self.report.faults.push(text.to_string());
        }
        if self.told.insert(node) {
            return self.error(text);
        }
        self.report.errors += 1;
        debug!("{text}");
    }

    /// Counts an error, and logs it unless there were many already.
    pub(super) fn error(&mut self, text: fmt::Arguments<'_>) {
        self.report.errors += 1;
        self.lines.0 += 1;
        match self.lines.0 {
            n if n <= LINES_MAX => warn!("{text}"),
            n if n == LINES_MAX + 1 => warn!("more errors follow; they are only counted"),
            _ => debug!("{text}"),
        }
    }

    /// Logs something odd about the fabric that does not keep the rest from working, unless there
    /// was much of that already.
    pub(super) fn complain(&mut self, text: fmt::Arguments<'_>) {
        self.report.oddities += 1;
        self.lines.1 += 1;
        match self.lines.1 {
            n if n <= LINES_MAX => warn!("{text}"),
            n if n == LINES_MAX + 1 => warn!("more of that follows; it is only counted"),
            _ => debug!("{text}"),
        }
    }

    /// The same of something odd about one node. A node that fails leaves a dozen requests without an
    /// answer, of which the first says all there is to say.
    pub(super) fn complain_of(&mut self, node: NodeIndex, text: fmt::Arguments<'_>) {
        if self.told.insert(node) {
            return self.complain(text);
        }
        self.report.oddities += 1;
        debug!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_node_that_fails_is_told_of_once_and_each_of_its_faults_counts() {
        let mut sweep = Sweep::default();
        let node = NodeIndex::from_bits(0);
        for port in [2, 1, 2] {
            sweep.fault(node, PortIndex::from_bits(port), format_args!("port {port}"));
        }
        sweep.complain_of(node, format_args!("odd"));
        assert_eq!((sweep.report.errors, sweep.lines.0), (3, 1));
        assert_eq!((sweep.report.oddities, sweep.lines.1), (1, 0));
        assert_eq!(sweep.report.faults, ["port 2", "port 1", "port 2"]);
        assert_eq!(sweep.take_faults(), [1, 2].map(PortIndex::from_bits));
    }

    #[test]
    fn the_time_that_files_take_is_no_part_of_the_walk() {
        let (mut sweep, now) = (Sweep::new(Cause::Asked), Instant::now());
        sweep.enter(now, Phase::Discover);
        let read = now + Duration::from_millis(400);
        sweep.files_are_read(read);
        sweep.end_phase(read + Duration::from_millis(20));
        let (files, walk) = (Duration::from_millis(400), Duration::from_millis(20));
        assert_eq!(sweep.report.phases, [(Phase::Files, files), (Phase::Discover, walk)]);
        assert!(sweep.report.to_string().contains("files read in 400 ms, discovered in 20 ms"));
    }

    /// A partial discovery counts from the light sweep that saw the change, and its report says why
    /// that was made.
    #[test]
    fn a_partial_discovery_goes_on_with_the_light_sweep_and_a_full_one_begins_anew() {
        let light = || {
            let (mut sweep, now) = (Sweep::new(Cause::Timer), Instant::now());
            sweep.enter(now, Phase::Light);
            sweep.silent.insert(NodeIndex::from_bits(7));
            assert_eq!(sweep.end_phase(now + Duration::from_secs(1)), Some(Duration::from_secs(1)));
            assert_eq!(sweep.end_phase(now), None, "a phase ends once");
            sweep
        };
        let partial = light().into_discovery(false, vec![NodeIndex::from_bits(7)]);
        assert_eq!(partial.report.phases, [(Phase::Light, Duration::from_secs(1))]);
        assert!(partial.silent.is_empty() && !partial.full && !partial.report.full);
        let full = light().into_discovery(true, Vec::new());
        assert!(full.report.phases.is_empty() && full.full && full.report.full);
        assert_eq!([partial.report.cause, full.report.cause], [Some(Cause::Timer); 2]);
    }
}

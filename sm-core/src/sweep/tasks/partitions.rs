//! Partitions that programs change between sweeps: P_Key tables are computed again, and the blocks
//! that differ are set, without a sweep.
//!
//! The requests belong to the P_Key tables (`stages::partitions`), as in a sweep.

use std::time::{Duration, Instant};

use super::Task;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::schedule::Cause;

/// Least time between two computations, for each port of the fabric: a change after a pause is in
/// force at once, further ones wait for it together. It bounds the share of time that a stream of
/// changes costs, since each computation joins all partitions and looks at all ports.
const INTERVAL_PER_PORT: Duration = Duration::from_micros(1);
/// Bounds of that time.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_millis(200);
/// Delay before blocks that a port did not accept are set again.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// How often that delay doubles at most.
const RETRY_DOUBLINGS: u32 = 6;

/// The task that puts changed partitions in force.
#[derive(Debug, Default)]
pub(in crate::sweep) struct PartitionChanges {
    /// Whether partitions changed since tables were last computed.
    is_stale: bool,
    /// When tables are computed.
    due: Option<Instant>,
    /// When they were computed last.
    last: Option<Instant>,
    /// Whether blocks are being set.
    is_setting: bool,
    /// Consecutive attempts that left a block as it was.
    attempts: u32,
}

impl PartitionChanges {
    /// Partitions changed, in a fabric with so many ports.
    pub(in crate::sweep) fn changed(&mut self, now: Instant, ports: usize) {
        self.is_stale = true;
        self.attempts = 0;
        let interval = INTERVAL_PER_PORT * u32::try_from(ports).unwrap_or(u32::MAX);
        let interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        self.due = Some(self.last.map_or(now, |last| now.max(last + interval)));
    }

    /// A sweep has computed all tables.
    pub(in crate::sweep) fn computed(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    /// A sweep ended: what changed meanwhile is put in force.
    pub(in crate::sweep) fn wake(&mut self, now: Instant) {
        if self.is_stale {
            self.due = Some(now);
        }
    }
}

impl Task for PartitionChanges {
    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        self.due = None;
        if !subnet.state.up {
            // The end of the sweep that brings the subnet up wakes this task.
            return;
        }
        let before = subnet.partitions.plan.unchecked.clone();
        subnet.set_pkeys();
        if subnet.partitions.plan.unchecked != before {
            // Enforcement is set at other ports: PortInfo, which a sweep sets.
            subnet.schedule.request(now, Cause::Asked);
        }
        self.is_stale = false;
        self.is_setting = true;
        self.last = Some(now);
    }

    fn settled(&mut self, subnet: &mut Subnet, now: Instant) {
        if !std::mem::take(&mut self.is_setting) || !subnet.state.up {
            return;
        }
        if subnet.has_wrong_pkeys() {
            let delay = RETRY_DELAY * (1 << self.attempts.min(RETRY_DOUBLINGS));
            self.attempts += 1;
            self.is_stale = true;
            self.due = Some(self.due.map_or(now + delay, |due| due.min(now + delay)));
        } else {
            self.attempts = 0;
        }
        subnet.events.push(Event::PKeysWritten);
    }
}

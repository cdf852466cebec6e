//! Between two sweeps, a glance at the error counters: a link that begins to fail is noticed within
//! half a minute, also if sweeps are rare.
//!
//! A switch is asked for the sums of all its ports, and port by port only if errors have grown; an
//! adapter for its port's. The counters of forward error correction are in no sum: they are read of
//! each port that has them. Data counters, and switches without sums, are left to sweeps.

use std::time::{Duration, Instant};

use super::super::agent::Step;
use super::{PerfManager, SUMS_PORTS_MIN, first_step};

/// Time from the beginning of a sweep or glance to the next glance.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);

impl PerfManager {
    /// When the next glance is due after a sweep or glance that began at `now`.
    pub(super) fn glance_after(&self, now: Instant) -> Option<Instant> {
        (self.settings.sweep_time > INTERVAL).then(|| now + INTERVAL)
    }

    pub(super) fn begin_glance(&mut self, now: Instant) {
        self.begin_reading(now);
        self.is_glance = true;
        for (index, agent) in (0..).zip(&mut self.agents) {
            agent.step = match first_step(agent, false) {
                // New ones are for a sweep.
                _ if agent.support.is_none() => Step::Done,
                Step::Sums if agent.sums.is_some() => Step::Sums,
                Step::Ports(_) if agent.port_count < SUMS_PORTS_MIN => Step::Ports(0),
                _ => Step::Done,
            };
            agent.queued = agent.step != Step::Done;
            if agent.queued {
                self.ready_agents.push_back(index);
            }
        }
        self.end_sweep_if_done(now);
    }

    /// Takes the sum of errors of a switch; returns whether they are what they were.
    pub(super) fn glance_at_sums(&mut self, agent: u32, errors: u64) -> bool {
        let Some(last) = &mut self.agents[agent as usize].sums else { return false };
        std::mem::replace(&mut last.errors, errors) == errors
    }
}

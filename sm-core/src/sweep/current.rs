//! The sweep under way, as a stage that carries the data which only it needs. Dropping it abandons
//! the sweep. What a later stage needs is handed over when an earlier one ends; what later sweeps
//! need is in [`SubnetState`](super::state::SubnetState).

use std::time::{Duration, Instant};

use super::Phase;
use super::configure::{LinkSetup, Programming};
use super::discover::Discovery;
use super::inherit::Inheriting;
use super::light::Light;
use super::routing::RoutingJob;
use super::take_over::LidTakeOver;

/// The sweep under way; idle if there is none.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) stage: Stage,
    /// When the phase started; `None` once its time is recorded.
    began: Option<Instant>,
}

/// Part of a sweep, with its data. Each ends when all of its requests are answered or given up.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// No sweep is under way.
    #[default]
    Idle,
    Light(Light),
    Discover(Box<Discovery>),
    /// `full`: whether the discovery read the whole fabric.
    Elect {
        full: bool,
    },
    /// `sweep`: whether the sweep that it interrupts read the whole fabric; `None` if it interrupts
    /// none.
    HandOver {
        sweep: Option<bool>,
    },
    Addresses,
    Inherit(Inheriting),
    /// Routing, with the job until the caller takes it.
    Route(Option<Box<RoutingJob>>),
    Tables(Programming),
    Links(LinkSetup),
    Poll,
    TakeOver(LidTakeOver),
}

impl Stage {
    /// The phase, for reports and metrics.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Idle => Phase::Idle,
            Self::Light(_) => Phase::Light,
            Self::Discover(_) => Phase::Discover,
            Self::Elect { .. } => Phase::Elect,
            Self::HandOver { .. } => Phase::HandOver,
            Self::Addresses => Phase::Addresses,
            Self::Inherit(_) => Phase::Inherit,
            Self::Route(_) => Phase::Route,
            Self::Tables(_) => Phase::Tables,
            Self::Links(links) => links.phase(),
            Self::Poll => Phase::Poll,
            Self::TakeOver(_) => Phase::TakeOver,
        }
    }
}

impl Sweep {
    /// Whether no sweep is under way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    pub(super) fn enter(&mut self, now: Instant, stage: Stage) {
        self.began = Some(now);
        self.stage = stage;
    }

    /// Operators' files were read at the start of a discovery: the discovery itself starts now. The
    /// time that reading took.
    pub(super) fn files_are_read(&mut self, now: Instant) -> Option<Duration> {
        let Stage::Discover(_) = self.stage else { return None };
        Some(now - self.began.replace(now)?)
    }

    /// The phase that ends, and its duration; `None` if it was taken before.
    pub(super) fn end_phase(&mut self, now: Instant) -> Option<(Phase, Duration)> {
        Some((self.stage.phase(), now - self.began.take()?))
    }
}

#[cfg(test)]
mod tests {
    use sm_config::Settings;

    use super::super::{Cause, Sweeper};
    use super::*;
    use crate::fabric::NodeIndex;
    use crate::manage::lid::LidTable;

    fn sweeper() -> (Sweeper, Instant) {
        (Sweeper::new(Settings::default(), LidTable::default(), 1), Instant::now())
    }

    #[test]
    fn the_time_that_files_take_is_no_part_of_the_walk() {
        let (mut sweeper, now) = sweeper();
        sweeper.begin_discovery(now, None, Vec::new());
        let read = now + Duration::from_millis(400);
        sweeper.files_are_read(read);
        sweeper.record_phase(read + Duration::from_millis(20));
        let (files, walk) = (Duration::from_millis(400), Duration::from_millis(20));
        let report = &sweeper.subnet.journal.report;
        assert_eq!(report.phases, [(Phase::Files, files), (Phase::Discover, walk)]);
        assert!(report.to_string().contains("files read in 400 ms, discovered in 20 ms"));
    }

    /// A partial discovery counts from the light sweep that saw the change, and its report has the
    /// cause of that.
    #[test]
    fn a_partial_discovery_continues_the_light_sweep_and_a_full_one_starts_over() {
        let discovery = |changed: Option<Vec<NodeIndex>>| {
            let (mut sweeper, now) = sweeper();
            sweeper.subnet.journal = super::super::journal::Journal::new(Cause::Timer);
            sweeper.enter(now, Stage::Light(Light::default()));
            let later = now + Duration::from_secs(1);
            assert_eq!(sweeper.record_phase(later), Some((Phase::Light, Duration::from_secs(1))));
            assert_eq!(sweeper.record_phase(later), None, "a phase ends once");
            sweeper.begin_discovery(later, changed, Vec::new());
            let Stage::Discover(discovery) = &sweeper.sweep.stage else { panic!() };
            (discovery.full, sweeper.subnet.journal.report.clone())
        };
        let (is_full, report) = discovery(Some(Vec::new()));
        assert_eq!(report.phases, [(Phase::Light, Duration::from_secs(1))]);
        assert_eq!((is_full, report.full, report.cause), (false, false, Some(Cause::Timer)));
        let (is_full, report) = discovery(None);
        assert!(report.phases.is_empty());
        assert_eq!((is_full, report.full, report.cause), (true, true, Some(Cause::Timer)));
    }
}

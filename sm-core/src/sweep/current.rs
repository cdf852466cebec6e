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

//! The sweep under way, as a stage that carries the data which only it needs. Dropping it abandons
//! the sweep. What a later stage needs is handed over when an earlier one ends; what later sweeps
//! need is in [`SubnetState`](crate::sweep::subnet::state::SubnetState).
//!
//! Modules of stages: `light`, `discover`, `election`, `handover`, `configure`, `inherit`,
//! `take_over`. Beside them are owners of requests that several stages send (`partitions`, `qos`,
//! `sl_maps`, `fdr10`), `tables` (from the chosen routing to blocks to write), `kept_routes`,
//! `avoided` and `unanswered`.

pub(in crate::sweep) mod avoided;
pub(in crate::sweep) mod configure;
pub(in crate::sweep) mod discover;
pub(in crate::sweep) mod election;
pub(in crate::sweep) mod fdr10;
pub(in crate::sweep) mod handover;
pub(in crate::sweep) mod inherit;
pub(in crate::sweep) mod kept_routes;
pub(in crate::sweep) mod light;
pub(in crate::sweep) mod partitions;
pub(in crate::sweep) mod qos;
pub(in crate::sweep) mod silence;
pub(in crate::sweep) mod sl_maps;
mod tables;
pub(in crate::sweep) mod take_over;
mod unanswered;

use std::time::{Duration, Instant};

use crate::sweep::subnet::report::Phase;
use crate::sweep::subnet::routing::job::RoutingJob;
use configure::links::LinkSetup;
use configure::program::{Programmed, Programming};
use discover::Discovery;
use inherit::Inheriting;
use light::Light;
use silence::Silence;
use take_over::LidTakeOver;

/// The sweep under way; idle if there is none.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Sweep {
    pub(in crate::sweep) stage: Stage,
    /// When the phase started; `None` once its time is recorded.
    began: Option<Instant>,
    /// Requests that nodes left unanswered.
    pub(in crate::sweep) silence: Silence,
    /// Whether routes are written before addresses are looked at.
    pub(in crate::sweep) routes_first: bool,
}

/// Part of a sweep, with its data. Each ends when all of its requests are answered or given up.
#[derive(Debug, Default)]
pub(in crate::sweep) enum Stage {
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
    /// Tables that were programmed before addresses, if they were.
    Addresses(Option<Programmed>),
    Inherit(Inheriting),
    /// Routing, with the job until the caller takes it.
    Route(Option<Box<RoutingJob>>),
    Tables(Programming),
    /// Routes are written, and addresses have not been looked at yet.
    Routed(Programmed),
    Links(LinkSetup),
    Poll,
    TakeOver(LidTakeOver),
}

impl Stage {
    /// The phase, for reports and metrics.
    pub(in crate::sweep) fn phase(&self) -> Phase {
        match self {
            Self::Idle => Phase::Idle,
            Self::Light(_) => Phase::Light,
            Self::Discover(_) => Phase::Discover,
            Self::Elect { .. } => Phase::Elect,
            Self::HandOver { .. } => Phase::HandOver,
            Self::Addresses(_) | Self::Routed(_) => Phase::Addresses,
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
    pub(in crate::sweep) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    pub(in crate::sweep) fn enter(&mut self, now: Instant, stage: Stage) {
        self.began = Some(now);
        self.stage = stage;
    }

    /// Operators' files were read at the start of a discovery: the discovery itself starts now. The
    /// time that reading took.
    pub(in crate::sweep) fn files_are_read(&mut self, now: Instant) -> Option<Duration> {
        let Stage::Discover(_) = self.stage else { return None };
        Some(now - self.began.replace(now)?)
    }

    /// The phase that ends, and its duration; `None` if it was taken before.
    pub(in crate::sweep) fn end_phase(&mut self, now: Instant) -> Option<(Phase, Duration)> {
        Some((self.stage.phase(), now - self.began.take()?))
    }
}

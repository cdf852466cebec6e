//! History of the last sweeps, for the live page and `ibsmctl`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;

use super::event::FabricChanges;
use super::moment::{FaultPort, PhaseTime, Sweep};
use sm_core::sweep::Report;

/// Kinds of sweeps, as metrics and the page name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepKind {
    /// Polls PortStateChange of the switches only.
    Light,
    /// Reads the changed part.
    Partial,
    /// Reads everything.
    Full,
}

impl SweepKind {
    /// The kind of a sweep that configured the fabric.
    pub fn of(report: &Report) -> Self {
        if report.full { Self::Full } else { Self::Partial }
    }

    /// Its name as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Partial => "partial",
            Self::Full => "full",
        }
    }
}

/// Number of sweeps kept.
pub const SWEEPS_MAX: usize = 100;
/// Largest number of faulty ports listed per sweep.
const FAULT_PORTS_MAX: usize = 256;

/// The history. Clones share it; writers do not wait for readers.
#[derive(Clone, Debug, Default)]
pub struct Sweeps {
    list: Arc<ArcSwap<Vec<Arc<Sweep>>>>,
    count: Arc<AtomicU64>,
}

impl Sweeps {
    /// Records a sweep that ended at `ended_ms`, with the ports that had faults, and what came and
    /// went.
    pub fn note(
        &self,
        report: &Report,
        ended_ms: u64,
        fault_ports: impl IntoIterator<Item = FaultPort>,
        changes: &FabricChanges,
    ) {
        let millis = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let phases = report
            .phases
            .iter()
            .map(|&(phase, time)| PhaseTime { phase: phase.name().to_owned(), ms: millis(time) });
        let sweep = Arc::new(Sweep {
            number: self.count.fetch_add(1, Relaxed) + 1,
            ended_ms,
            kind: SweepKind::of(report).label().to_owned(),
            reason: report.reason(),
            phases: phases.collect(),
            duration_ms: millis(report.duration()),
            smps: report.smps,
            up: report.up,
            errors: report.errors,
            faults: report.faults.clone(),
            fault_ports: fault_ports.into_iter().take(FAULT_PORTS_MAX).collect(),
            appeared: report.appeared as u64,
            vanished: report.vanished as u64,
            changes: changes.lines(),
            changes_unlisted: changes.unlisted as u64,
            lft_blocks_set: report.lft_blocks_set,
            unanswered: report.unanswered as u64,
            switches: report.switches as u64,
            hosts: report.hosts as u64,
            links: report.links as u64,
        });
        let mut list = Vec::clone(&self.list.load());
        if list.len() >= SWEEPS_MAX {
            list.remove(0);
        }
        list.push(sweep);
        self.list.store(Arc::new(list));
    }

    /// The last sweeps, oldest first.
    pub fn list(&self) -> Arc<Vec<Arc<Sweep>>> {
        self.list.load_full()
    }

    /// The last sweep.
    pub fn last(&self) -> Option<Arc<Sweep>> {
        self.list.load().last().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use sm_core::sweep::Phase;

    #[test]
    fn the_last_hundred_are_kept_under_numbers_that_go_on() {
        let sweeps = Sweeps::default();
        let report = Report {
            phases: vec![
                (Phase::Discover, Duration::from_millis(3)),
                (Phase::Route, Duration::from_micros(1500)),
            ],
            ..Report::default()
        };
        for ended_ms in 0..150 {
            sweeps.note(&report, ended_ms, [], &FabricChanges::default());
        }
        let list = sweeps.list();
        assert_eq!((list.len(), list[0].number), (SWEEPS_MAX, 51));
        let last = sweeps.last().unwrap();
        assert_eq!((last.number, last.duration_ms, &last.kind[..]), (150, 4.5, "partial"));
        assert_eq!(last.phases[1], PhaseTime { phase: "route".into(), ms: 1.5 });
    }

    #[test]
    fn ports_with_faults_are_bounded() {
        let sweeps = Sweeps::default();
        let ports = (0..1000).map(|n| FaultPort { guid: format!("{n}"), port: 1 });
        sweeps.note(&Report::default(), 0, ports, &FabricChanges::default());
        assert_eq!(sweeps.last().unwrap().fault_ports.len(), FAULT_PORTS_MAX);
    }
}

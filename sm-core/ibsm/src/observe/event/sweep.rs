//! Events of sweeps.

use sm_core::sweep::{Phase, Report};

use super::{Draft, EventKind, FabricChanges};
use crate::observe::SweepKind;
use crate::observe::problem::Severity;

fn millis(time: std::time::Duration) -> u64 {
    time.as_millis() as u64
}

/// A sweep of the whole fabric starts.
pub fn start() -> Draft {
    Draft::new(EventKind::SweepStart, "a sweep of the whole fabric starts")
}

/// A sweep has ended, with what came and went.
pub fn end(report: &Report, changes: &FabricChanges) -> Draft {
    let kind = SweepKind::of(report).label();
    let took = millis(report.duration());
    let mut text = format!("{kind} sweep in {took} ms: {}", report.reason());
    let count = changes.listed.len() + changes.unlisted;
    if count > 0 {
        text += &format!("; {count} changes: {}", changes.lines().join("; "));
    }
    let mut draft = Draft::new(EventKind::SweepEnd, text)
        .rated((report.errors > 0).then_some(Severity::Warning))
        .with("sweep", kind)
        .with("reason", report.reason())
        .with("duration_ms", took)
        .with("switches", report.switches)
        .with("hosts", report.hosts)
        .with("links", report.links)
        .with("smps", report.smps)
        .with("errors", report.errors)
        .with("appeared", report.appeared)
        .with("vanished", report.vanished)
        .with("changes", changes.lines());
    if changes.unlisted > 0 {
        draft = draft.with("changes_unlisted", changes.unlisted);
    }
    if report.errors > 0 {
        draft = draft.with("faults", report.faults.clone());
    }
    draft
}

/// Routes were computed in this sweep; `None` if they were not.
pub fn routing_done(report: &Report) -> Option<Draft> {
    let took = report.phase(Phase::Route);
    let is_routed = report.phases.iter().any(|(phase, _)| *phase == Phase::Route);
    if !is_routed || report.engine.is_empty() {
        return None;
    }
    let text = format!("routes computed by {} in {} ms", report.engine, millis(took));
    let mut draft = Draft::new(EventKind::RoutingDone, text)
        .with("engine", &report.engine[..])
        .with("duration_ms", millis(took));
    if !report.rejected_engines.is_empty() {
        draft = draft.with("engines_passed_over", report.rejected_engines.clone());
    }
    Some(draft)
}

/// Forwarding tables were written in this sweep; `None` if they were not.
pub fn tables_changed(report: &Report) -> Option<Draft> {
    let blocks = report.lft_blocks_set;
    (blocks > 0).then(|| {
        let text = format!("{blocks} blocks of forwarding tables were written");
        Draft::new(EventKind::TablesChanged, text).with("blocks", blocks)
    })
}

/// The subnet is up after a sweep.
pub fn subnet_up(report: &Report) -> Draft {
    let (switches, hosts, links) = (report.switches, report.hosts, report.links);
    let mut text = format!("subnet up: {switches} switches, {hosts} hosts, {links} links");
    if report.errors > 0 {
        text += &format!(", with {} errors", report.errors);
    }
    Draft::new(EventKind::SubnetUp, text)
        .rated((report.errors > 0).then_some(Severity::Warning))
        .with("errors", report.errors)
        .with("first", report.first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_sweep_names_what_changed() {
        let report = Report {
            phases: vec![(Phase::Route, Duration::from_millis(3))],
            engine: "ftree".into(),
            lft_blocks_set: 7,
            errors: 1,
            faults: vec!["leaf port 2".into()],
            ..Report::default()
        };
        let changes = FabricChanges {
            listed: vec![Draft::new(EventKind::NodeWent, "host 'a' is gone")],
            unlisted: 2,
        };
        let end = end(&report, &changes);
        assert!(end.text.ends_with("; 3 changes: host 'a' is gone"), "{}", end.text);
        assert_eq!(end.severity, Some(Severity::Warning));
        let routed = routing_done(&report).unwrap();
        assert_eq!(routed.text, "routes computed by ftree in 3 ms");
        assert!(tables_changed(&report).is_some() && tables_changed(&Report::default()).is_none());
        assert!(routing_done(&Report::default()).is_none());
        assert!(subnet_up(&report).text.ends_with("with 1 errors"));
    }
}

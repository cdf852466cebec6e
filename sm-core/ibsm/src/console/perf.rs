//! The words `perfmgr` and `pm`.

use std::fmt::Write as _;

use sm_core::perf::{Counter, PerfManager, PerfStatus, PortView, dump};

use super::{Answer, Effect, View};
use crate::civil::ctime;
use crate::perf::Selection;

/// Ports printed at most: some 20 MB.
const PORTS_MAX: usize = 16_384;

pub(super) const SYNTAX: &str =
    "perfmgr(pm) [clear_counters|print_counters(pc)|print_errors(pe)|sweep]\n";
pub(super) const DETAIL: &str = "   without argument: the state of the performance manager\n   \
     clear_counters: sets totals to 0\n   \
     print_counters [name or guid][:port], print_errors [name or guid]\n   \
     sweep: reads the counters of all ports now\n";

/// States of the performance manager and of its sweep, as the status has them.
pub(super) fn states(view: &View) -> String {
    let status = view.perf.with(|manager| manager.status());
    format!("{}/{}", state(status.as_ref()), sweep_state(status.as_ref()))
}

fn state(status: Option<&PerfStatus>) -> &'static str {
    if status.is_some() { "Enabled" } else { "Disabled" }
}

fn sweep_state(status: Option<&PerfStatus>) -> &'static str {
    if status.is_some_and(|status| status.sweeping) { "Active" } else { "Sleeping" }
}

pub(super) fn answer(arguments: &[&str], view: &View) -> Answer {
    let rest = arguments.get(1..).unwrap_or_default().join(" ");
    match arguments.first() {
        None => Answer::text(status(view)),
        Some(&"clear_counters") => Answer::with("", Effect::ClearCounters),
        Some(&"sweep") => Answer::with("sweep initiated...\n", Effect::ReadCounters),
        Some(&("print_counters" | "pc")) => {
            let (node, port) = match rest.rsplit_once(':') {
                Some((node, port)) => (node, Some(port)),
                None => (&rest[..], None),
            };
            Answer::text(counters(node, port, false, view))
        }
        Some(&("print_errors" | "pe")) => Answer::text(counters(&rest, None, true, view)),
        Some(other) => Answer::text(format!("\"{other}\" option not found\n")),
    }
}

fn status(view: &View) -> String {
    let status = view.perf.with(|manager| manager.status());
    let settings = &view.settings;
    let word = |is: bool| if is { "TRUE" } else { "FALSE" };
    let outstanding = status.map_or(0, |status| status.outstanding);
    let most = settings.perfmgr_max_outstanding_queries;
    let mut text = "Performance Manager status:\n".to_owned();
    for (label, value) in [
        ("state", state(status.as_ref()).to_owned()),
        ("sweep state", sweep_state(status.as_ref()).to_owned()),
        ("sweep time", format!("{}s", settings.perfmgr_sweep_time_s)),
        ("outstanding queries/max", format!("{outstanding}/{most}")),
        ("remove missing nodes from DB", word(settings.perfmgr_rm_nodes).to_owned()),
        ("query ClassPortInfo", word(settings.perfmgr_query_cpi).to_owned()),
    ] {
        let _ = writeln!(text, "{label:<29}: {value}");
    }
    text
}

/// The counters of all nodes, or of one by name or GUID.
fn counters(node: &str, port: Option<&str>, errors_only: bool, view: &View) -> String {
    let selection = Selection::of_node(node);
    let number = port.and_then(|port| port.parse::<u8>().ok());
    let mut text = String::new();
    if let (Some(port), None) = (port, number) {
        let _ = writeln!(text, "Warning: \"{port}\" is not a valid port");
    }
    let (mut position, mut found, mut printed) = (0, node.is_empty(), 0);
    // The lock is held for one node at a time.
    let mut print = |manager: &mut PerfManager| {
        for port in manager.ports_of(position).filter(|port| selection.takes(port.node)) {
            found = true;
            let is_wanted = port.is_known
                && number.is_none_or(|number| number == port.number.0)
                && (!errors_only || has_errors(&port));
            if is_wanted && printed < PORTS_MAX {
                printed += 1;
                dump::human(&mut text, &port, errors_only, |at| ctime(at.into()));
            }
        }
        position += 1;
        position < manager.node_count() && printed < PORTS_MAX
    };
    while view.perf.with(&mut print) == Some(true) {}
    if found { text } else { format!("Node {node} not found...\n") }
}

fn has_errors(port: &PortView<'_>) -> bool {
    Counter::OPENSM_ERRORS.all().iter().any(|&counter| port.counts.total(counter) > 0)
}

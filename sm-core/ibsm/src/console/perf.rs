//! The words `perfmgr` and `pm`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ib_mad::text::of_field;
use sm_core::perf::{Counter, PerfManager, PerfSettings, PortView, RedirectionView, dump};

use super::{Answer, Effect, PerfOrder, View};
use crate::civil::ctime;
use crate::perf::{PerfBoard, Selection};

/// Ports printed at most: some 20 MB.
const PORTS_MAX: usize = 16_384;

pub(super) const SYNTAX: &str = "perfmgr(pm) [enable|disable
             |clear_counters|dump_counters|print_counters(pc)|print_errors(pe)
             |set_rm_nodes|clear_rm_nodes|clear_inactive
             |set_query_cpi|clear_query_cpi
             |dump_redir|clear_redir
             |sweep|sweep_time[seconds]]
";
pub(super) const DETAIL: &str = "perfmgr -- print the performance manager state
   [enable|disable] -- change the perfmgr state
   [sweep] -- Initiate a sweep of the fabric
   [sweep_time] -- change the perfmgr sweep time (requires [seconds] option)
   [clear_counters] -- clear the counters stored
   [dump_counters [mach]] -- dump the counters (optionally in [mach]ine readable format)
   [print_counters [<nodename|nodeguid>][:<port>]] -- print the internal counters
   [pc [<nodename|nodeguid>][:<port>]] -- same as print_counters
   [print_errors [<nodename|nodeguid>]] -- print only ports with errors
   [pe [<nodename|nodeguid>]] -- same as print_errors
   [dump_redir [<nodename|nodeguid>]] -- dump the redirection table
   [clear_redir [<nodename|nodeguid>]] -- clear the redirection table
   [[set|clear]_rm_nodes] -- enable/disable the removal of \"inactive\" nodes from the DB
   [[set|clear]_query_cpi] -- enable/disable PerfMgrGet(ClassPortInfo)
   [clear_inactive] -- Delete inactive nodes from the DB
";

/// What is printed of an order where counters are not read.
const NOT_STARTED: &str = "The performance manager is not running: set perfmgr TRUE in the \
                           settings, and restart ibsm\n";

/// States of the performance manager and of its sweep, as the status has them.
pub(super) fn states(view: &View) -> String {
    let (state, sweep_state) =
        view.perf.with(|manager| states_of(manager)).unwrap_or(("Disabled", "Sleeping"));
    format!("{state}/{sweep_state}")
}

fn states_of(manager: &PerfManager) -> (&'static str, &'static str) {
    let state = if manager.is_enabled() { "Enabled" } else { "Disabled" };
    (state, if manager.status().sweeping { "Active" } else { "Sleeping" })
}

pub(super) fn answer(arguments: &[&str], view: &View) -> Answer {
    let rest = arguments.get(1..).unwrap_or_default().join(" ");
    let order = |order| Answer::with("", Effect::Perf(order));
    match arguments.first() {
        None => Answer::text(status(view)),
        Some(&"enable") => order(PerfOrder::Enable(true)),
        Some(&"disable") => order(PerfOrder::Enable(false)),
        Some(&"sweep_time") => sweep_time(arguments.get(1).copied()),
        Some(&"set_rm_nodes") => order(PerfOrder::RemoveNodes(true)),
        Some(&"clear_rm_nodes") => order(PerfOrder::RemoveNodes(false)),
        Some(&"set_query_cpi") => order(PerfOrder::QueryInfo(true)),
        Some(&"clear_query_cpi") => order(PerfOrder::QueryInfo(false)),
        Some(&"clear_inactive") => order(PerfOrder::ForgetInactive),
        Some(&("dump_redir" | "clear_redir")) if !view.settings.perfmgr_redir => {
            Answer::text("Perfmgr redirection not enabled\n")
        }
        Some(&"dump_redir") => Answer::text(redirections(&rest, view)),
        Some(&"clear_redir") => order(PerfOrder::ForgetRedirections(rest)),
        Some(&"dump_counters") => {
            let machine = arguments.get(1) == Some(&"mach");
            Answer::with("", Effect::DumpCounters { machine })
        }
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

fn sweep_time(seconds: Option<&str>) -> Answer {
    let Some(seconds) = seconds else {
        return Answer::text("sweep_time requires a time period (in seconds) to be specified\n");
    };
    match sm_config::parse_number(seconds).map(u16::try_from) {
        Some(Ok(seconds @ 1..)) => {
            let order = PerfOrder::SweepTime(Duration::from_secs(seconds.into()));
            Answer::with("", Effect::Perf(order))
        }
        Some(Err(_)) => Answer::text(format!("sweep_time must be at most {} seconds\n", u16::MAX)),
        _ => Answer::text(
            "sweep_time requires a positive time period (in seconds) to be specified\n",
        ),
    }
}

/// Carries out an order. Returns what is printed of it.
pub(crate) fn carry_out(order: PerfOrder, now: Instant, perf: &PerfBoard) -> String {
    let printed = perf.with(|manager| {
        match order {
            PerfOrder::Enable(enabled) => {
                // As OpenSM's, which begins with a sweep.
                if enabled && !manager.is_enabled() {
                    manager.sweep_now(now);
                }
                manager.set_enabled(enabled);
            }
            PerfOrder::SweepTime(time) => manager.set_sweep_time(now, time),
            PerfOrder::RemoveNodes(remove) => manager.set_remove_nodes(remove),
            PerfOrder::QueryInfo(query) => manager.set_query_info(query),
            PerfOrder::ForgetInactive => {
                return format!("Removed {} nodes from Database\n", manager.forget_inactive(now));
            }
            PerfOrder::ForgetRedirections(node) => {
                let selection = Selection::of_node(&node);
                manager.forget_redirections(|node| selection.takes(node));
            }
        }
        String::new()
    });
    printed.unwrap_or_else(|| NOT_STARTED.to_owned())
}

/// Agents that redirect queries.
fn redirections(node: &str, view: &View) -> String {
    let mut text = "\nRedirection Table\n-----------------\n".to_owned();
    let selection = Selection::of_node(node);
    let found = view.perf.with(|manager| {
        let mut last = None;
        for at in manager.redirections().filter(|at| selection.takes(at.node)) {
            let RedirectionView { node, port, own, lid, qpn, pkey } = at;
            if last.replace(node.guid) != Some(node.guid) {
                let has_port_0 = u8::from(node.switch_info.is_some());
                let name = of_field(&node.description);
                let _ = write!(
                    text,
                    "   Node GUID       ESP0   Name\n   ---------       ----   ----\n   \
                     {:#x} {has_port_0}      {name}\n\n   \
                     Port Valid  LIDs     PKey  QP    PKey Index\n   \
                     ---- -----  ----     ----  --    ----------\n",
                    node.guid.0
                );
            }
            let (own, lid) = (own.0, lid.0);
            let _ =
                writeln!(text, "   {port}    1      {own}->{lid}  {:#x} {:#x}   0", pkey.0, qpn.0);
        }
        node.is_empty() || manager.rows().any(|row| selection.takes(row))
    });
    if found == Some(false) {
        let _ = writeln!(text, "Node {node} not found...");
    }
    text
}

fn status(view: &View) -> String {
    let settings = &view.settings;
    let in_force = view
        .perf
        .with(|manager| (states_of(manager), *manager.settings(), manager.status().outstanding));
    let idle = (("Disabled", "Sleeping"), PerfSettings::of(settings), 0);
    let ((state, sweep_state), in_force, outstanding) = in_force.unwrap_or(idle);
    let word = |is: bool| if is { "TRUE" } else { "FALSE" };
    let most = settings.perfmgr_max_outstanding_queries;
    let mut text = "Performance Manager status:\n".to_owned();
    for (label, value) in [
        ("state", state.to_owned()),
        ("sweep state", sweep_state.to_owned()),
        ("sweep time", format!("{}s", in_force.sweep_time.as_secs())),
        ("outstanding queries/max", format!("{outstanding}/{most}")),
        ("remove missing nodes from DB", word(in_force.remove_nodes).to_owned()),
        ("query ClassPortInfo", word(in_force.query_info).to_owned()),
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

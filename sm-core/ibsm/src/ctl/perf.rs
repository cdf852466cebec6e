//! `ibsmctl perf`: counters of ports, as the performance manager of ibsm read them.

use std::fmt::Write as _;

use sa_proto::proto::admin::{ClearCountersRequest, CountersRequest, PortCounts, TopLinksRequest};
use serde::Serialize;
use serde_json::{Map, Value};
use sm_core::perf::Counter;

use super::{CtlError, Sm, time, to_json};
use crate::perf::loads::{LISTED_DEFAULT, LISTED_MAX, LinkNow, TopLinks};

/// Options of the command.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    /// What to do instead.
    #[command(subcommand)]
    command: Option<Command>,
    /// A node, by name or GUID, or one of its ports, as NODE/PORT.
    #[arg(value_name = "NODE[/PORT]")]
    node: Option<String>,
    /// List only ports with errors.
    #[arg(long)]
    errors: bool,
    /// Show totals of data and packets instead of errors.
    #[arg(long, conflicts_with = "errors")]
    data: bool,
    /// List the N directions of links with the most traffic between the last two readings; with
    /// --errors, those with the most errors.
    #[arg(long, value_name = "N", conflicts_with = "data",
          value_parser = clap::value_parser!(u32).range(1..=LISTED_MAX as i64))]
    top: Option<u32>,
    /// With --top or --at: order by the percentage of what each link can carry.
    #[arg(long, conflicts_with = "errors")]
    by_share: bool,
    /// List the directions of links with the most traffic at this time (12:03, '2026-11-27 12:03',
    /// 5m ago as 5m), from the history; 20 of them unless --top states another number.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["errors", "data"])]
    at: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// What to do with counters.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Set totals to 0; the counters of the ports are left alone.
    Clear {
        /// A node, by name or GUID; all without.
        node: Option<String>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
}

/// Requests the counters and formats them.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    if let Some(Command::Clear { node, json }) = &options.command {
        let request = ClearCountersRequest { node: node.clone().unwrap_or_default() };
        let answer = sm.connect().await?.clear_counters(request).await;
        let cleared = answer.map_err(|status| sm.refused(&status))?.into_inner();
        return Ok(match json {
            true => to_json(&serde_json::json!({ "ports": cleared.ports })),
            false => format!("totals of {} ports set to 0\n", cleared.ports),
        });
    }
    let (node, port) = place(options.node.as_deref().unwrap_or_default());
    let at_ms = options.at.as_deref().map(|at| time::parse("--at", at)).transpose()?;
    let count = options.top.or_else(|| at_ms.map(|_| LISTED_DEFAULT as u32));
    if let Some(count) = count {
        let request = TopLinksRequest { node, port, order: String::new(), count, at_ms };
        return top(sm, options, request).await;
    }
    if options.by_share {
        let expected = "only with --top or --at";
        let got = "neither".to_owned();
        return Err(CtlError::Argument { what: "--by-share", expected, got });
    }
    let answer = sm.connect().await?.list_counters(CountersRequest { node, port }).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let (mut names, mut ports, mut sweeps) = (Vec::new(), Vec::new(), 0);
    while let Some(message) = stream.message().await.map_err(|status| sm.refused(&status))? {
        if !message.names.is_empty() {
            (names, sweeps) = (message.names, message.sweeps);
        }
        ports.extend(message.ports);
    }
    if options.errors {
        ports.retain(|port| has_faults(&names, port));
    }
    if options.json {
        return Ok(to_json(&ports.iter().map(|at| PortJson::of(&names, at)).collect::<Vec<_>>()));
    }
    Ok(text(&names, &ports, sweeps, options.data))
}

/// Requests the directions of links with the most traffic or errors and formats them.
async fn top(sm: &Sm, options: &Options, mut request: TopLinksRequest) -> Result<String, CtlError> {
    let order = match (options.errors, options.by_share) {
        (true, _) => "errors",
        (_, true) => "share",
        _ => "rate",
    };
    request.order = order.to_owned();
    let is_then = request.at_ms.is_some();
    let answer = sm.connect().await?.list_top_links(request).await;
    let json = answer.map_err(|status| sm.refused(&status))?.into_inner().json;
    let top: TopLinks =
        serde_json::from_str(&json).map_err(|failure| CtlError::Unread(failure.to_string()))?;
    Ok(match (options.json, is_then) {
        (true, _) => to_json(&top),
        (false, true) => format!("read at {}\n{}", time::text(top.time_ms), top_table(&top)),
        (false, false) => top_table(&top),
    })
}

/// The directions as a table.
fn top_table(top: &TopLinks) -> String {
    if top.links.is_empty() {
        return match top.sweep {
            0 => "the first sweep has not ended yet\n".to_owned(),
            _ => "no links\n".to_owned(),
        };
    }
    let line = |text: &mut String, cells: [&str; 4], ends: &str| {
        let [gbps, percent, sent, received] = cells;
        let _ = writeln!(text, "{gbps:>9}{percent:>8}{sent:>12}{received:>12}  {ends}");
    };
    let mut text = String::new();
    line(&mut text, ["Gb/s", "%", "tx err/s", "rx err/s"], "from > to");
    for link in &top.links {
        let LinkNow { from, to, gbps, percent, from_errors_per_s, to_errors_per_s, .. } = link;
        let percent = percent.map_or("-".to_owned(), |percent| format!("{percent:.1}"));
        let (sent, received) = (errors(*from_errors_per_s), errors(*to_errors_per_s));
        let ends = format!("'{}' port {} > '{}' port {}", from.name, from.port, to.name, to.port);
        line(&mut text, [&format!("{gbps:.3}"), &percent, &sent, &received], &ends);
    }
    text
}

/// Errors per second; a dash for none, or if they are not known.
fn errors(per_second: Option<f64>) -> String {
    let some = per_second.filter(|&per_second| per_second > 0.0);
    some.map_or_else(|| "-".to_owned(), |per_second| format!("{per_second:.2}"))
}

/// Node and port of `NODE/PORT`; a name may have slashes.
fn place(text: &str) -> (String, Option<u32>) {
    let parts = text.rsplit_once('/');
    match parts.and_then(|(node, port)| Some((node, port.parse::<u8>().ok()?))) {
        Some((node, port)) => (node.to_owned(), Some(port.into())),
        None => (text.to_owned(), None),
    }
}

/// The counter of this name; `None` if another release has others.
fn counter(name: &str) -> Option<Counter> {
    Counter::ALL.iter().copied().find(|counter| counter.name() == name)
}

fn has_faults(names: &[String], port: &PortCounts) -> bool {
    let mut all = names.iter().zip(&port.totals);
    all.any(|(name, total)| *total > 0 && counter(name).is_some_and(Counter::is_fault))
}

/// Bytes per second, in and out.
fn rates(port: &PortCounts) -> (f64, f64) {
    let seconds = f64::from(port.interval_ms) / 1e3;
    let rate = |words: u64| if seconds > 0.0 { words as f64 * 4.0 / seconds } else { 0.0 };
    (rate(port.recent_xmit_data), rate(port.recent_rcv_data))
}

fn text(names: &[String], ports: &[PortCounts], sweeps: u64, data: bool) -> String {
    if ports.is_empty() {
        return match sweeps {
            0 => "the first sweep has not ended yet\n".to_owned(),
            _ => "no ports\n".to_owned(),
        };
    }
    let mut text = String::new();
    for port in ports {
        let (sent, received) = rates(port);
        let _ = write!(text, "'{}' {:#018x} port {}", port.name, port.guid, port.port);
        if !port.peer.is_empty() {
            let _ = write!(text, " > '{}' port {}", port.peer, port.peer_port);
        }
        let gone = if port.active { "" } else { " (not in the fabric)" };
        let _ = write!(
            text,
            "{gone}: out {:.3} Gb/s, in {:.3} Gb/s",
            sent * 8.0 / 1e9,
            received * 8.0 / 1e9
        );
        for (name, total) in names.iter().zip(&port.totals) {
            let is_data = counter(name).is_some_and(|counter| Counter::DATA.contains(counter));
            if *total > 0 && is_data == data {
                let _ = write!(text, ", {name} {total}");
            }
        }
        text.push('\n');
    }
    text
}

/// A port as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct PortJson<'a> {
    name: &'a str,
    guid: String,
    port: u32,
    active: bool,
    peer: Option<&'a str>,
    peer_port: Option<u32>,
    xmit_bytes_per_second: f64,
    rcv_bytes_per_second: f64,
    recent_errors: u32,
    interval_ms: u32,
    last_reset: u32,
    last_error_update: u32,
    last_data_update: u32,
    /// Totals by name; data is in words of 4 bytes, as in OpenSM's dump file.
    totals: Map<String, Value>,
}

impl<'a> PortJson<'a> {
    fn of(names: &[String], port: &'a PortCounts) -> Self {
        let (xmit_bytes_per_second, rcv_bytes_per_second) = rates(port);
        let has_peer = !port.peer.is_empty();
        let totals = names.iter().zip(&port.totals);
        Self {
            name: &port.name,
            guid: format!("{:#018x}", port.guid),
            port: port.port,
            active: port.active,
            peer: has_peer.then_some(&port.peer),
            peer_port: has_peer.then_some(port.peer_port),
            xmit_bytes_per_second,
            rcv_bytes_per_second,
            recent_errors: port.recent_faults,
            interval_ms: port.interval_ms,
            last_reset: port.last_reset_s,
            last_error_update: port.last_error_update_s,
            last_data_update: port.last_data_update_s,
            totals: totals.map(|(name, total)| (name.clone(), (*total).into())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::loads::PortName;

    #[test]
    fn a_place_is_a_node_and_perhaps_a_port() {
        assert_eq!(place("leaf1/3"), ("leaf1".to_owned(), Some(3)));
        assert_eq!(place("rack 7/leaf"), ("rack 7/leaf".to_owned(), None));
        assert_eq!(place(""), (String::new(), None));
    }

    #[test]
    fn directions_of_links_are_a_table() {
        let port =
            |name: &str, port| PortName { name: name.to_owned(), port, ..PortName::default() };
        let busy = LinkNow {
            from: port("leaf1", 3),
            to: port("spine2", 4),
            gbps: 91.25,
            percent: Some(91.25),
            to_errors_per_s: Some(2.5),
            ..LinkNow::default()
        };
        let unknown = LinkNow { percent: None, ..busy.clone() };
        let links = vec![busy, unknown];
        let text = top_table(&TopLinks { sweep: 2, time_ms: 1, links });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            "   91.250    91.2           -        2.50  'leaf1' port 3 > 'spine2' port 4"
        );
        assert_eq!(lines[0].find("from"), lines[1].find("'leaf1'"), "{text}");
        assert!(lines[2].starts_with("   91.250       -"), "{text}");
        assert_eq!(top_table(&TopLinks::default()), "the first sweep has not ended yet\n");
    }

    #[test]
    fn a_port_is_shown_with_rates_and_what_is_not_0() {
        let names: Vec<String> = Counter::ALL.iter().map(|at| at.name().to_owned()).collect();
        let mut port = PortCounts {
            guid: 7,
            name: "leaf1".to_owned(),
            port: 3,
            active: true,
            peer: "spine2".to_owned(),
            peer_port: 4,
            totals: vec![0; names.len()],
            interval_ms: 1000,
            recent_xmit_data: 250_000_000,
            ..PortCounts::default()
        };
        port.totals[Counter::XmitPkts as usize] = 9;
        port.totals[Counter::SymbolError as usize] = 12;
        let shown = text(&names, &[port.clone()], 1, false);
        assert_eq!(
            shown,
            "'leaf1' 0x0000000000000007 port 3 > 'spine2' port 4: out 8.000 Gb/s, in 0.000 Gb/s, \
             symbol_err_cnt 12\n"
        );
        assert!(text(&names, &[port.clone()], 1, true).ends_with(", xmit_pkts 9\n"));
        assert!(has_faults(&names, &port));
        port.totals[Counter::SymbolError as usize] = 0;
        assert!(!has_faults(&names, &port));
    }
}

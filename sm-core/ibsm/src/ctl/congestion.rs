//! `ibsmctl congestion`: how congestion control is set up, and what its logs show.

use std::cmp::Reverse;
use std::fmt::Write as _;

use sa_proto::proto::admin::{
    CongestionAgent, CongestionFlow, CongestionPort, CongestionRequest, CongestionSummary,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{CtlError, Sm, to_json};

/// Ports, and flows, that are listed without `--all`.
const TOP: usize = 10;

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A node, by name or GUID: shows its settings, too.
    node: Option<String>,
    /// List all ports that marked packets, and all nodes that are not set up, not only 10.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests the state and formats it.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let request = CongestionRequest { node: options.node.clone().unwrap_or_default() };
    let answer = sm.connect().await?.list_congestion(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let (mut summary, mut agents) = (CongestionSummary::default(), Vec::new());
    while let Some(message) = stream.message().await.map_err(|status| sm.refused(&status))? {
        summary = message.summary.unwrap_or(summary);
        agents.extend(message.agents);
    }
    if options.json {
        return Ok(to_json(&Json::of(&summary, &agents)));
    }
    let limit = if options.all { usize::MAX } else { TOP };
    Ok(match options.node {
        Some(_) => of_nodes(&summary, &agents),
        None => overview(&summary, &agents, limit),
    })
}

fn heading(summary: &CongestionSummary) -> String {
    if !summary.is_on {
        return "congestion control is off: set congestion_control TRUE and send SIGHUP\n"
            .to_owned();
    }
    if !summary.is_active {
        return "congestion control is on; this SM is not master, or has not read the fabric yet\n"
            .to_owned();
    }
    let adapters = summary.agents.saturating_sub(summary.switches);
    let mut text = format!(
        "congestion control is on: {} of {} agents have the settings ({} switches, {adapters} \
         ports of adapters)\n",
        summary.ready, summary.agents, summary.switches
    );
    let others = [
        (summary.unsupported, "do not support it"),
        (summary.silent, "do not answer"),
        (summary.key_refused, "have another CC_Key"),
        (summary.setting_refused, "refuse a setting"),
    ];
    let others: Vec<String> = others
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !others.is_empty() {
        let _ = writeln!(text, "the others: {}", others.join(", "));
    }
    let _ = writeln!(
        text,
        "{} packets marked by switches, {} events at adapters; logs are read every {} s",
        summary.marked, summary.slowed, summary.interval_s
    );
    text
}

fn overview(summary: &CongestionSummary, agents: &[CongestionAgent], limit: usize) -> String {
    let mut text = heading(summary);
    let is_wrong = |agent: &&CongestionAgent| {
        ["key_refused", "setting_refused", "silent"].contains(&&agent.state[..])
    };
    section(
        &mut text,
        "not set up",
        limit,
        agents.iter().filter(is_wrong).map(|agent| format!("{}: {}", place(agent), state(agent))),
    );
    let mut ports: Vec<(&CongestionAgent, &CongestionPort)> =
        agents.iter().flat_map(|agent| agent.ports.iter().map(move |port| (agent, port))).collect();
    ports.sort_by_key(|(_, port)| Reverse((port.in_a_row, port.readings)));
    section(
        &mut text,
        "ports that marked packets",
        limit,
        ports.iter().map(|(agent, port)| {
            format!("'{}' {:#018x} {}", agent.name, agent.guid, of_port(agent, port))
        }),
    );
    let mut flows: Vec<(&CongestionAgent, &CongestionFlow)> =
        agents.iter().flat_map(|agent| agent.flows.iter().map(move |flow| (agent, flow))).collect();
    flows.sort_by_key(|(_, flow)| Reverse(flow.events));
    section(
        &mut text,
        "between which nodes, of the latest events",
        limit,
        flows.iter().map(|(agent, flow)| format!("{}, logged by '{}'", of_flow(flow), agent.name)),
    );
    text
}

/// Appends a list with a heading, unless it is empty.
fn section(
    text: &mut String,
    heading: &str,
    limit: usize,
    mut lines: impl Iterator<Item = String>,
) {
    let listed: Vec<String> = lines.by_ref().take(limit).collect();
    if listed.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{heading}:");
    for line in listed {
        let _ = writeln!(text, "  {line}");
    }
    let further = lines.count();
    if further > 0 {
        let _ = writeln!(text, "  and {further} more (--all)");
    }
}

fn of_nodes(summary: &CongestionSummary, agents: &[CongestionAgent]) -> String {
    if !summary.is_active {
        return heading(summary);
    }
    if agents.is_empty() {
        return "no such node in the fabric, or it is a router\n".to_owned();
    }
    let mut text = String::new();
    for agent in agents {
        let _ = writeln!(text, "{}: {}", place(agent), state(agent));
        let violations = match agent.key_violations {
            0 => String::new(),
            count => format!(", {count} requests with a wrong key"),
        };
        let _ = writeln!(text, "  CC_Key: {}{violations}", agent.key);
        for setting in &agent.settings {
            let _ = writeln!(text, "  {}: {}", setting.name, setting.value);
        }
        let _ = writeln!(
            text,
            "  events: {}, of these {} in the last of {} readings",
            agent.events, agent.recent_events, agent.readings
        );
        for port in &agent.ports {
            let _ = writeln!(text, "  {}", of_port(agent, port));
        }
        for flow in &agent.flows {
            let _ = writeln!(text, "  {}", of_flow(flow));
        }
    }
    text
}

fn place(agent: &CongestionAgent) -> String {
    match agent.is_switch {
        true => format!("'{}' {:#018x}", agent.name, agent.guid),
        false => format!("'{}' {:#018x} port {}", agent.name, agent.guid, agent.port),
    }
}

fn state(agent: &CongestionAgent) -> String {
    match &agent.state[..] {
        "ready" => "has the settings".to_owned(),
        "unsupported" => "does not support congestion control".to_owned(),
        "silent" => "does not answer".to_owned(),
        "key_refused" => "has another CC_Key".to_owned(),
        "setting_refused" => agent.detail.clone(),
        _ => "was not asked yet".to_owned(),
    }
}

fn of_port(agent: &CongestionAgent, port: &CongestionPort) -> String {
    let peer = match port.peer.is_empty() {
        true => String::new(),
        false => format!(" > '{}' port {}", port.peer, port.peer_port),
    };
    format!(
        "port {}{peer}: marked packets in {} of {} readings, the last {} in a row",
        port.port, port.readings, agent.readings, port.in_a_row
    )
}

fn of_flow(flow: &CongestionFlow) -> String {
    format!("{} to {} with SL {}: {} events", flow.from, flow.to, flow.sl, flow.events)
}

/// The state as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct Json<'a> {
    on: bool,
    active: bool,
    agents_total: u64,
    switches: u64,
    ready: u64,
    unsupported: u64,
    silent: u64,
    key_refused: u64,
    setting_refused: u64,
    packets_marked: u64,
    adapter_events: u64,
    log_interval_s: u64,
    requests_sent: u64,
    requests_written: u64,
    requests_expired: u64,
    cycles: u64,
    last_cycle_ms: u64,
    agents: Vec<AgentJson<'a>>,
}

#[derive(Serialize)]
struct AgentJson<'a> {
    name: &'a str,
    guid: String,
    switch: bool,
    port: u32,
    state: &'a str,
    detail: &'a str,
    key: &'a str,
    key_violations: u32,
    settings: Map<String, Value>,
    readings: u64,
    events: u64,
    recent_events: u32,
    ports: Vec<PortJson<'a>>,
    flows: Vec<FlowJson<'a>>,
}

#[derive(Serialize)]
struct PortJson<'a> {
    port: u32,
    peer: &'a str,
    peer_port: u32,
    readings: u64,
    in_a_row: u32,
}

#[derive(Serialize)]
struct FlowJson<'a> {
    from: &'a str,
    to: &'a str,
    sl: u32,
    events: u64,
}

impl<'a> Json<'a> {
    fn of(summary: &CongestionSummary, agents: &'a [CongestionAgent]) -> Self {
        Self {
            on: summary.is_on,
            active: summary.is_active,
            agents_total: summary.agents,
            switches: summary.switches,
            ready: summary.ready,
            unsupported: summary.unsupported,
            silent: summary.silent,
            key_refused: summary.key_refused,
            setting_refused: summary.setting_refused,
            packets_marked: summary.marked,
            adapter_events: summary.slowed,
            log_interval_s: summary.interval_s,
            requests_sent: summary.sent,
            requests_written: summary.written,
            requests_expired: summary.expired,
            cycles: summary.cycles,
            last_cycle_ms: summary.last_cycle_ms,
            agents: agents.iter().map(AgentJson::of).collect(),
        }
    }
}

impl<'a> AgentJson<'a> {
    fn of(agent: &'a CongestionAgent) -> Self {
        let settings = agent.settings.iter().map(|at| (at.name.clone(), at.value.clone().into()));
        let ports = agent.ports.iter().map(|at| PortJson {
            port: at.port,
            peer: &at.peer,
            peer_port: at.peer_port,
            readings: at.readings,
            in_a_row: at.in_a_row,
        });
        let flows = agent.flows.iter().map(|at| FlowJson {
            from: at.from.trim_matches('\''),
            to: at.to.trim_matches('\''),
            sl: at.sl,
            events: at.events,
        });
        Self {
            name: &agent.name,
            guid: format!("{:#018x}", agent.guid),
            switch: agent.is_switch,
            port: agent.port,
            state: &agent.state,
            detail: &agent.detail,
            key: &agent.key,
            key_violations: agent.key_violations,
            settings: settings.collect(),
            readings: agent.readings,
            events: agent.events,
            recent_events: agent.recent_events,
            ports: ports.collect(),
            flows: flows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sa_proto::proto::admin::CongestionSetting;

    fn leaf() -> CongestionAgent {
        CongestionAgent {
            guid: 7,
            name: "leaf1".to_owned(),
            is_switch: true,
            state: "ready".to_owned(),
            key: "ours, protected".to_owned(),
            key_violations: 2,
            settings: vec![CongestionSetting { name: "threshold".into(), value: "15".into() }],
            readings: 5,
            events: 9,
            recent_events: 3,
            ports: vec![CongestionPort {
                port: 3,
                peer: "h1".to_owned(),
                peer_port: 1,
                readings: 4,
                in_a_row: 2,
            }],
            flows: vec![CongestionFlow {
                from: "'h9'".to_owned(),
                to: "'h1'".to_owned(),
                sl: 1,
                events: 8,
            }],
            ..CongestionAgent::default()
        }
    }

    fn summary() -> CongestionSummary {
        CongestionSummary {
            is_on: true,
            is_active: true,
            agents: 3,
            switches: 1,
            ready: 2,
            key_refused: 1,
            marked: 9,
            interval_s: 60,
            ..CongestionSummary::default()
        }
    }

    #[test]
    fn the_overview_names_what_is_wrong_and_where_packets_are_marked() {
        let host = CongestionAgent {
            name: "h2".to_owned(),
            guid: 8,
            port: 1,
            state: "key_refused".to_owned(),
            ..CongestionAgent::default()
        };
        assert_eq!(
            overview(&summary(), &[leaf(), host], 10),
            "congestion control is on: 2 of 3 agents have the settings (1 switches, 2 ports of \
             adapters)\n\
             the others: 1 have another CC_Key\n\
             9 packets marked by switches, 0 events at adapters; logs are read every 60 s\n\
             \nnot set up:\n  'h2' 0x0000000000000008 port 1: has another CC_Key\n\
             \nports that marked packets:\n  'leaf1' 0x0000000000000007 port 3 > 'h1' port 1: \
             marked packets in 4 of 5 readings, the last 2 in a row\n\
             \nbetween which nodes, of the latest events:\n  'h9' to 'h1' with SL 1: 8 events, \
             logged by 'leaf1'\n"
        );
        assert!(overview(&CongestionSummary::default(), &[], 10).contains("is off"));
        let two = overview(&summary(), &[leaf(), leaf()], 1);
        assert!(two.contains("  and 1 more (--all)\n"), "{two}");
    }

    #[test]
    fn a_node_is_shown_with_its_settings() {
        let shown = of_nodes(&summary(), &[leaf()]);
        assert!(shown.starts_with(
            "'leaf1' 0x0000000000000007: has the settings\n  CC_Key: ours, protected, 2 requests \
             with a wrong key\n  threshold: 15\n  events: 9, of these 3 in the last of 5 readings\n"
        ));
        let json = to_json(&Json::of(&summary(), &[leaf()]));
        assert!(json.contains("\"threshold\": \"15\"") && json.contains("\"from\": \"h9\""));
    }
}

//! Congestion control as messages of the administration service.

use ib_mad::wire::congestion::CaCongestionEntry;
use sa_proto::proto::admin::{
    CongestionAgent, CongestionAgents, CongestionFlow, CongestionPort, CongestionSetting,
    CongestionSummary,
};
use sm_core::congestion::{Agent, AgentView, CongestionManager, State};

use super::{CongestionBoard, ends, peer, refusal};
use crate::observe::node_name;
use crate::perf::Selection;

/// Agents of one message: the lock is held for so many.
const AGENTS_PER_MESSAGE: usize = 64;

/// Calls `send` with the agents of the selected nodes until it returns false.
pub(crate) fn list(
    board: &CongestionBoard,
    selection: &Selection,
    send: &mut dyn FnMut(CongestionAgents) -> bool,
) {
    let mut from = 0;
    loop {
        let piece = board.with(|manager| {
            let summary = (from == 0).then(|| summary(manager));
            let mut seen = 0;
            let views = manager.agents().skip(from).take(AGENTS_PER_MESSAGE).inspect(|_| seen += 1);
            let wanted = views.filter(|view| selection.takes(view.node));
            let agents = wanted.map(|view| agent(manager, view)).collect();
            (CongestionAgents { summary, agents }, seen)
        });
        let (message, seen) = piece.unwrap_or_default();
        let is_worth = from == 0 || !message.agents.is_empty();
        from += seen;
        if is_worth && !send(message) || seen < AGENTS_PER_MESSAGE {
            return;
        }
    }
}

fn summary(manager: &CongestionManager) -> CongestionSummary {
    let (status, settings) = (manager.status(), manager.settings());
    let switches = manager.agents().filter(|view| view.node.switch_info.is_some()).count();
    CongestionSummary {
        is_on: settings.is_on,
        is_active: status.is_active,
        cycles: status.cycles,
        last_cycle_ms: status.last_cycle.as_millis() as u64,
        interval_s: settings.interval.as_secs(),
        agents: status.agents as u64,
        switches: switches as u64,
        ready: status.ready as u64,
        unsupported: status.unsupported as u64,
        silent: status.silent as u64,
        key_refused: status.key_refused as u64,
        setting_refused: status.setting_refused as u64,
        marked: status.marked,
        slowed: status.slowed,
        sent: status.sent,
        written: status.written,
        expired: status.expired,
    }
}

fn agent(manager: &CongestionManager, view: AgentView<'_>) -> CongestionAgent {
    let AgentView { node, agent } = view;
    let log = &agent.log;
    let ports = log.ports.iter().map(|marks| {
        let far = peer(manager, node, marks.port);
        let (peer, peer_port) =
            far.map_or_else(Default::default, |(name, port)| (name, port.0.into()));
        CongestionPort {
            port: marks.port.0.into(),
            peer,
            peer_port,
            readings: marks.readings,
            in_a_row: marks.in_a_row,
        }
    });
    let flows = log.flows.iter().map(|(flow, events)| {
        let (from, to) = ends(manager, flow);
        CongestionFlow { from, to, sl: flow.sl.get().into(), events: *events }
    });
    CongestionAgent {
        guid: node.guid.0,
        name: node_name(node),
        is_switch: node.switch_info.is_some(),
        port: agent.port.0.into(),
        state: agent.state.name().to_owned(),
        detail: match agent.state {
            State::SettingRefused(attribute, status) => refusal(attribute, status),
            _ => String::new(),
        },
        key: key(manager, agent).to_owned(),
        key_violations: agent.key_info.as_ref().map_or(0, |info| info.cc_key_violations.into()),
        settings: settings(agent),
        readings: log.readings,
        events: log.events,
        recent_events: log.recent_events.into(),
        ports: ports.collect(),
        flows: flows.collect(),
    }
}

/// What is known of the agent's CC_Key, without showing it.
fn key(manager: &CongestionManager, agent: &Agent) -> &'static str {
    match &agent.key_info {
        _ if agent.state == State::KeyRefused => "another",
        None => "unknown",
        Some(info) if info.cc_key == 0 => "none",
        Some(info) if info.cc_key == manager.settings().key && info.cc_key_protect => {
            "ours, protected"
        }
        Some(info) if info.cc_key == manager.settings().key => "ours",
        Some(_) => "another",
    }
}

/// The settings in force, as they were last read or written.
fn settings(agent: &Agent) -> Vec<CongestionSetting> {
    let mut list = Vec::new();
    let mut add = |name: &str, value: String| {
        list.push(CongestionSetting { name: name.to_owned(), value });
    };
    let hexadecimal = |bytes: &[u8; 32]| {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let digits = digits.trim_start_matches('0');
        format!("0x{}", if digits.is_empty() { "0" } else { digits })
    };
    if let Some(has) = &agent.switch {
        add("threshold", has.threshold.to_string());
        add("packet_size", has.packet_size.to_string());
        add("marking_rate", has.marking_rate.to_string());
        add("victim_mask", hexadecimal(&has.victim_mask));
        add("credit_mask", hexadecimal(&has.credit_mask));
        add("credit_starvation_threshold", has.cs_threshold.to_string());
        add("credit_starvation_return_delay", delay(has.cs_return_delay));
    }
    if let Some(has) = &agent.ca {
        let by_sl = if has.port_control & 1 == 0 { "queue pairs" } else { "SLs" };
        add("slows", by_sl.to_owned());
        for (sl, entry) in has.entries.as_chunks::<8>().0.iter().enumerate() {
            if *entry == [0; 8] {
                continue;
            }
            let entry = CaCongestionEntry::of(entry);
            let value = format!(
                "timer {}, increase {}, trigger threshold {}, least index {}",
                entry.ccti_timer(),
                entry.ccti_increase(),
                entry.trigger_threshold(),
                entry.ccti_min()
            );
            add(&format!("SL {sl}"), value);
        }
    }
    if let Some(first) = agent.table.first() {
        let used = usize::from(first.ccti_limit) + 1;
        let words = agent.table.iter().flat_map(|block| block.entries.as_chunks::<2>().0);
        let words: Vec<String> =
            words.take(used).map(|word| delay(u16::from_be_bytes(*word))).collect();
        let text = if first.ccti_limit == 0 { "no delays".to_owned() } else { words.join(",") };
        add("table", text);
    }
    list
}

/// A delay as shift:multiplier, as in `opensm.conf`.
fn delay(code: u16) -> String {
    format!("{}:{}", code >> 14, code & 0x3FFF)
}

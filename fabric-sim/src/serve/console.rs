//! Console commands of a served fabric: one line per command, one line per reply.
//!
//! Command names of ibsim's console are accepted too; net files use them in `do` lines.

use std::time::{Duration, Instant};

use ib_mad::netlist::LinkRate;
use ib_mad::types::{Guid, Sl};
use ib_mad::wire::attribute::{NodeType, TrapNumber};
use serde_json::{Map, Value, json};

use super::Server;
use crate::{
    ControlError, CounterSupport, Counters, Fabric, NodeIndex, PortCounter, Probability,
    RouteReport,
};

/// A command to a served fabric.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// An empty line or a comment.
    Nothing,
    /// Report nodes, clients and counters as JSON.
    Status,
    /// Report one node and its ports as JSON.
    Node(String),
    /// Pull the cable at a port.
    LinkDown(String, u8),
    /// Plug the cable in again.
    LinkUp(String, u8),
    /// Take the cable at a port out of both ends.
    Unplug(String, u8),
    /// Lay a cable between two ports.
    Plug((String, u8), (String, u8)),
    /// Take the cable at a port out, and plug it into another port; the far end stays.
    Move((String, u8), (String, u8)),
    /// Report a node's counters as JSON, or those of one port.
    Counts(String, Option<u8>),
    /// Power a node off.
    NodeDown(String),
    /// Power a node on, without its configuration.
    NodeUp(String),
    /// Power a node off and on.
    Reboot(String),
    /// Lose this share of packets on all links, or at one port.
    Loss(Probability, Option<(String, u8)>),
    /// Delay packets by this time on all links, or at one port.
    Delay(Duration, Option<(String, u8)>),
    /// Increase a counter of a port once.
    Count(String, u8, PortCounter, u64),
    /// Increase a counter of a port at this rate per second.
    CountRate(String, u8, PortCounter, f64),
    /// Train the link at a port at this rate at most; `None` removes the limit.
    Degrade(String, u8, Option<LinkRate>),
    /// Which counters the nodes offer.
    Counting(CounterSupport),
    /// Log events of congestion at a port, of packets between two nodes.
    Congest(String, u8, u16, Option<(String, String)>, Sl),
    /// Whether the agents of a node know the class of congestion control.
    CongestionClass(String, bool),
    /// Give an adapter virtual ports, up to this index.
    VirtualPorts(String, u16),
    /// Plug a virtual function: its virtual port leaves Down.
    VirtualPortUp(String, u8, u16, Option<Guid>),
    /// Unplug a virtual function.
    VirtualPortDown(String, u8, u16),
    /// Cut or restore a link or reboot a switch at this interval; `None` stops that.
    Chaos(Option<Duration>),
    /// Send trap 129, 130 or 131 from a port: an error threshold was reached.
    Trap(TrapNumber, String, u8),
    /// Change a node's description.
    Description(String, String),
    /// Change a node's system image GUID.
    SystemImageGuid(String, Guid),
    /// Check whether the programmed tables connect all end ports; reports JSON.
    Check,
    /// List the commands.
    Help,
    /// Stop serving.
    Quit,
}

/// Output of `help`.
pub const HELP: &str = "\
status | check | node NODE | link-down NODE PORT | link-up NODE PORT | unplug NODE PORT | \
plug NODE PORT NODE PORT | move NODE PORT TO-NODE TO-PORT | node-down NODE | node-up NODE | \
reboot NODE | loss SHARE [NODE PORT] | delay MICROSECONDS [NODE PORT] | \
chaos MILLISECONDS|off | counters NODE [PORT] | count NODE PORT COUNTER NUMBER | \
count-rate NODE PORT COUNTER PER_SECOND | \
degrade NODE PORT RATE|off | counting plain|extended|additional | \
congest NODE PORT NUMBER [FROM TO [SL]] | congestion-class NODE on|off | \
trap 129|130|131 NODE PORT | \
virtual-ports NODE HIGHEST | vport-up NODE PORT INDEX [GUID] | vport-down NODE PORT INDEX | \
description NODE TEXT | system-image-guid NODE GUID | help | quit \
(NODE: id, \"description\" or 0xGUID; SHARE: 0.01 or 1%; \
COUNTER: as PortRcvErrors, listed by counters; RATE: as 1xSDR)";

/// An invalid command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCommandError {
    /// Unknown command.
    #[error("unknown command '{0}'; try help")]
    Unknown(String),
    /// Wrong arguments.
    #[error("usage: {0}")]
    Usage(&'static str),
}

impl Command {
    /// Parses a line.
    pub fn parse(line: &str) -> Result<Self, ParseCommandError> {
        let words = split(line);
        let Some((name, words)) = words.split_first() else { return Ok(Self::Nothing) };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if name.starts_with('#') {
            return Ok(Self::Nothing);
        }
        let usage = |text| move || ParseCommandError::Usage(text);
        match name.to_ascii_lowercase().as_str() {
            "counters" if !words.is_empty() => {
                counts(&words).ok_or_else(usage("counters NODE [PORT]"))
            }
            "status" | "counters" | "clients" => Ok(Self::Status),
            "check" => Ok(Self::Check),
            "help" | "?" => Ok(Self::Help),
            "quit" => Ok(Self::Quit),
            "node" => one(&words).map(Self::Node).ok_or_else(usage("node NODE")),
            "node-down" => one(&words).map(Self::NodeDown).ok_or_else(usage("node-down NODE")),
            "node-up" => one(&words).map(Self::NodeUp).ok_or_else(usage("node-up NODE")),
            "reboot" => one(&words).map(Self::Reboot).ok_or_else(usage("reboot NODE")),
            "link-down" | "unlink" => port(&words)
                .map(|(node, port)| Self::LinkDown(node, port))
                .ok_or_else(usage("link-down NODE PORT")),
            "link-up" | "relink" => port(&words)
                .map(|(node, port)| Self::LinkUp(node, port))
                .ok_or_else(usage("link-up NODE PORT")),
            "unplug" => port(&words)
                .map(|(node, port)| Self::Unplug(node, port))
                .ok_or_else(usage("unplug NODE PORT")),
            "plug" => two_ports(&words)
                .map(|(near, far)| Self::Plug(near, far))
                .ok_or_else(usage("plug NODE PORT NODE PORT")),
            "move" => two_ports(&words)
                .map(|(from, to)| Self::Move(from, to))
                .ok_or_else(usage("move NODE PORT TO-NODE TO-PORT")),
            "loss" => loss(&words).ok_or_else(usage("loss SHARE [NODE PORT]")),
            "error" => error(&words).ok_or_else(usage("error NODE PORT PERCENT")),
            "delay" => delay(&words).ok_or_else(usage("delay MICROSECONDS [NODE PORT]")),
            "chaos" => chaos(&words).ok_or_else(usage("chaos MILLISECONDS|off")),
            "count" => count(&words).ok_or_else(usage("count NODE PORT COUNTER NUMBER")),
            "count-rate" => {
                count_rate(&words).ok_or_else(usage("count-rate NODE PORT COUNTER PER_SECOND"))
            }
            "degrade" => degrade(&words).ok_or_else(usage("degrade NODE PORT RATE|off")),
            "counting" => counting(&words).ok_or_else(usage("counting plain|extended|additional")),
            "congest" => {
                congest(&words).ok_or_else(usage("congest NODE PORT NUMBER [FROM TO [SL]]"))
            }
            "congestion-class" => {
                congestion_class(&words).ok_or_else(usage("congestion-class NODE on|off"))
            }
            "trap" => trap(&words).ok_or_else(usage("trap 129|130|131 NODE PORT")),
            "virtual-ports" => {
                virtual_ports(&words).ok_or_else(usage("virtual-ports NODE HIGHEST"))
            }
            "vport-up" => {
                virtual_port_up(&words).ok_or_else(usage("vport-up NODE PORT INDEX [GUID]"))
            }
            "vport-down" => {
                virtual_port_down(&words).ok_or_else(usage("vport-down NODE PORT INDEX"))
            }
            "description" => match words.split_first() {
                Some((node, text)) if !text.is_empty() => {
                    Ok(Self::Description((*node).to_owned(), text.join(" ")))
                }
                _ => Err(ParseCommandError::Usage("description NODE TEXT")),
            },
            "system-image-guid" => match words.as_slice() {
                [node, guid] => guid
                    .parse()
                    .map(|guid| Self::SystemImageGuid((*node).to_owned(), guid))
                    .map_err(|_| ParseCommandError::Usage("system-image-guid NODE GUID")),
                _ => Err(ParseCommandError::Usage("system-image-guid NODE GUID")),
            },
            _ => Err(ParseCommandError::Unknown(name.clone())),
        }
    }

    /// Runs a command that needs only the fabric; returns `ok`, JSON or an error.
    pub fn carry_out(self, fabric: &mut Fabric, now: Instant) -> Result<String, String> {
        let find = |fabric: &Fabric, name: &str| {
            let no_node = || ControlError::NoSuchNode(name.to_owned()).to_string();
            fabric.find_node(name).ok_or_else(no_node)
        };
        let at = |fabric: &Fabric, at: Option<(String, u8)>| match at {
            None => Ok(None),
            Some((node, port)) => find(fabric, &node).map(|node| Some((node, port))),
        };
        let result = match self {
            Self::Nothing | Self::Status | Self::Quit => Ok(()),
            Self::Help => return Ok(HELP.to_owned()),
            Self::Check => {
                let report = fabric.check_routes();
                return Ok(check_json(fabric, &report).to_string());
            }
            Self::Node(name) => {
                let node = find(fabric, &name)?;
                return Ok(node_json(fabric, node).to_string());
            }
            Self::LinkDown(name, port) => {
                let node = find(fabric, &name)?;
                fabric.link_down(now, node, port)
            }
            Self::LinkUp(name, port) => {
                let node = find(fabric, &name)?;
                fabric.link_up(now, node, port)
            }
            Self::Unplug(name, port) => {
                let node = find(fabric, &name)?;
                fabric.disconnect(now, node, port)
            }
            Self::Plug((near, near_port), (far, far_port)) => {
                let near = (find(fabric, &near)?, near_port);
                let far = (find(fabric, &far)?, far_port);
                fabric.connect(now, near, far)
            }
            Self::Move((from, from_port), (to, to_port)) => {
                let from = (find(fabric, &from)?, from_port);
                let to = (find(fabric, &to)?, to_port);
                fabric.move_cable(now, from, to)
            }
            Self::Counts(name, port) => {
                let node = find(fabric, &name)?;
                let counts = counts_json(fabric, now, node, port);
                return counts.map(|json| json.to_string()).map_err(|error| error.to_string());
            }
            Self::NodeDown(name) => {
                let node = find(fabric, &name)?;
                fabric.node_down(now, node)
            }
            Self::NodeUp(name) => {
                let node = find(fabric, &name)?;
                fabric.node_up(now, node)
            }
            Self::Reboot(name) => {
                let node = find(fabric, &name)?;
                fabric.reboot(now, node)
            }
            Self::Loss(loss, place) => {
                let place = at(fabric, place)?;
                fabric.set_loss(place, loss)
            }
            Self::Delay(delay, place) => {
                let place = at(fabric, place)?;
                fabric.set_delay(place, delay)
            }
            Self::Count(name, port, counter, by) => {
                let node = find(fabric, &name)?;
                fabric.count(node, port, counter, by)
            }
            Self::CountRate(name, port, counter, per_second) => {
                let node = find(fabric, &name)?;
                fabric.set_count_rate(now, node, port, counter, per_second)
            }
            Self::Degrade(name, port, rate) => {
                let node = find(fabric, &name)?;
                fabric.degrade(now, node, port, rate)
            }
            Self::Counting(support) => {
                fabric.set_counter_support(support);
                Ok(())
            }
            Self::Congest(name, port, number, flow, sl) => {
                let node = find(fabric, &name)?;
                let flow = match flow {
                    Some((from, to)) => Some((find(fabric, &from)?, find(fabric, &to)?)),
                    None => None,
                };
                fabric.congest(now, node, port, number, flow, sl)
            }
            Self::CongestionClass(name, is_known) => {
                let node = find(fabric, &name)?;
                fabric.set_congestion_class(node, is_known)
            }
            Self::VirtualPorts(name, cap) => {
                let node = find(fabric, &name)?;
                fabric.add_virtual_ports(node, cap)
            }
            Self::VirtualPortUp(name, port, index, guid) => {
                let node = find(fabric, &name)?;
                fabric.virtual_port_up(now, node, port, index, guid)
            }
            Self::VirtualPortDown(name, port, index) => {
                let node = find(fabric, &name)?;
                fabric.virtual_port_down(now, node, port, index)
            }
            Self::Chaos(pace) => {
                fabric.set_chaos(now, pace);
                Ok(())
            }
            Self::Trap(number, name, port) => {
                let node = find(fabric, &name)?;
                fabric.port_error(now, node, port, number)
            }
            Self::Description(name, text) => {
                let node = find(fabric, &name)?;
                fabric.set_description(now, node, &text)
            }
            Self::SystemImageGuid(name, guid) => {
                let node = find(fabric, &name)?;
                fabric.set_system_image_guid(now, node, guid)
            }
        };
        result.map(|()| "ok".to_owned()).map_err(|error| error.to_string())
    }
}

/// Splits a line into words; quotes enclose words with spaces: `"Switch1"[3]` is a node and a port.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        match word.strip_prefix('[').and_then(|port| port.strip_suffix(']')) {
            Some(port) => words.push(port.to_owned()),
            None => words.push(word.to_owned()),
        }
        rest = after.trim_start();
    }
    words
}

fn one(words: &[&str]) -> Option<String> {
    match words {
        [word] => Some((*word).to_owned()),
        _ => None,
    }
}

fn port(words: &[&str]) -> Option<(String, u8)> {
    match words {
        [node, port] => Some(((*node).to_owned(), port.parse().ok()?)),
        _ => None,
    }
}

fn two_ports(words: &[&str]) -> Option<((String, u8), (String, u8))> {
    let (near, far) = words.split_at_checked(2)?;
    Some((port(near)?, port(far)?))
}

fn place(words: &[&str]) -> Option<Option<(String, u8)>> {
    if words.is_empty() { Some(None) } else { port(words).map(Some) }
}

fn loss(words: &[&str]) -> Option<Command> {
    let (share, at) = words.split_first()?;
    Some(Command::Loss(Probability::parse(share)?, place(at)?))
}

/// Parses ibsim's `Error "node"[port] percent`.
fn error(words: &[&str]) -> Option<Command> {
    let [node, port, percent] = words else { return None };
    let share = Probability::new(percent.parse::<f64>().ok()? / 100.0).ok()?;
    Some(Command::Loss(share, Some(((*node).to_owned(), port.parse().ok()?))))
}

fn delay(words: &[&str]) -> Option<Command> {
    let (us, at) = words.split_first()?;
    Some(Command::Delay(Duration::from_micros(us.parse().ok()?), place(at)?))
}

fn chaos(words: &[&str]) -> Option<Command> {
    match words {
        ["off"] => Some(Command::Chaos(None)),
        [ms] => Some(Command::Chaos(Some(Duration::from_millis(ms.parse().ok()?)))),
        _ => None,
    }
}

fn counts(words: &[&str]) -> Option<Command> {
    match words {
        [node] => Some(Command::Counts((*node).to_owned(), None)),
        _ => port(words).map(|(node, port)| Command::Counts(node, Some(port))),
    }
}

fn count(words: &[&str]) -> Option<Command> {
    let [node, port, counter, by] = words else { return None };
    let (port, counter) = (port.parse().ok()?, PortCounter::named(counter)?);
    Some(Command::Count((*node).to_owned(), port, counter, by.parse().ok()?))
}

fn count_rate(words: &[&str]) -> Option<Command> {
    let [node, port, counter, per_second] = words else { return None };
    let (port, counter) = (port.parse().ok()?, PortCounter::named(counter)?);
    let per_second = per_second.parse().ok().filter(|rate| (0.0..=1e12).contains(rate))?;
    Some(Command::CountRate((*node).to_owned(), port, counter, per_second))
}

fn degrade(words: &[&str]) -> Option<Command> {
    let [node, port, rate] = words else { return None };
    let rate = if *rate == "off" { None } else { Some(rate.parse().ok()?) };
    Some(Command::Degrade((*node).to_owned(), port.parse().ok()?, rate))
}

fn counting(words: &[&str]) -> Option<Command> {
    let support = match words {
        ["plain"] => CounterSupport::Plain,
        ["extended"] => CounterSupport::Extended,
        ["additional"] => CounterSupport::Additional,
        _ => return None,
    };
    Some(Command::Counting(support))
}

fn congest(words: &[&str]) -> Option<Command> {
    let [node, port, number, rest @ ..] = words else { return None };
    let (flow, sl) = match rest {
        [] => (None, "0"),
        [from, to] => (Some((from, to)), "0"),
        [from, to, sl] => (Some((from, to)), *sl),
        _ => return None,
    };
    let sl = Sl::from_low_bits(sl.parse().ok().filter(|sl| *sl < 16)?);
    let flow = flow.map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
    let (port, number) = (port.parse().ok()?, number.parse().ok()?);
    Some(Command::Congest((*node).to_owned(), port, number, flow, sl))
}

fn congestion_class(words: &[&str]) -> Option<Command> {
    match words {
        [node, "on"] => Some(Command::CongestionClass((*node).to_owned(), true)),
        [node, "off"] => Some(Command::CongestionClass((*node).to_owned(), false)),
        _ => None,
    }
}

fn virtual_ports(words: &[&str]) -> Option<Command> {
    let [node, cap] = words else { return None };
    Some(Command::VirtualPorts((*node).to_owned(), cap.parse().ok()?))
}

fn virtual_port_up(words: &[&str]) -> Option<Command> {
    let ([node, port, index], rest) = words.split_first_chunk()?;
    let guid = match rest {
        [] => None,
        [guid] => Some(guid.parse().ok()?),
        _ => return None,
    };
    let (port, index) = (port.parse().ok()?, index.parse().ok()?);
    Some(Command::VirtualPortUp((*node).to_owned(), port, index, guid))
}

fn virtual_port_down(words: &[&str]) -> Option<Command> {
    let [node, port, index] = words else { return None };
    Some(Command::VirtualPortDown((*node).to_owned(), port.parse().ok()?, index.parse().ok()?))
}

fn trap(words: &[&str]) -> Option<Command> {
    let (number, at) = words.split_first()?;
    let number = TrapNumber(number.parse().ok()?);
    let thresholds = TrapNumber::LOCAL_LINK_INTEGRITY..=TrapNumber::FLOW_CONTROL_UPDATE;
    let (node, port) = port(at)?;
    thresholds.contains(&number).then_some(Command::Trap(number, node, port))
}

/// Nodes, clients and counters, as JSON.
pub(super) fn status(server: &Server) -> Value {
    let fabric = &server.fabric;
    let count = |kind| fabric.nodes().filter(|&node| fabric.node(node).node_type == kind).count();
    let clients: Vec<Value> = server
        .clients
        .iter()
        .flatten()
        .map(|client| {
            json!({
                "id": client.endpoint.id(),
                "number": client.number,
                "queued": client.queued(),
            })
        })
        .collect();
    json!({
        "socket": server.name,
        "hosts": count(NodeType::Ca),
        "switches": count(NodeType::Switch),
        "routers": count(NodeType::Router),
        "clients": clients,
        "in_flight": fabric.in_flight(),
        "fabric": counters_json(fabric.counters()),
        "server": server.counters,
    })
}

fn counters_json(counters: &Counters) -> Value {
    let drops: Map<String, Value> =
        counters.drops().map(|(reason, count)| (reason.name().to_owned(), json!(count))).collect();
    json!({
        "sent": counters.sent,
        "delivered": counters.delivered,
        "answered": counters.answered,
        "returned": counters.returned,
        "traps": counters.traps,
        "traps_repressed": counters.traps_repressed,
        "reregistrations": counters.reregistrations,
        "lid_routed_smps": counters.lid_routed_smps,
        "dropped": drops,
    })
}

/// Result of a route check, as JSON.
pub(super) fn check_json(fabric: &Fabric, report: &RouteReport) -> Value {
    let lost: Map<String, Value> = report
        .lost
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), json!(count)))
        .collect();
    let examples: Vec<Value> = report
        .examples
        .iter()
        .map(|route| {
            json!({
                "from": fabric.node(route.from).name,
                "lid": route.lid.0,
                "reason": route.reason.name(),
            })
        })
        .collect();
    json!({
        "whole": report.is_whole(),
        "sources": report.sources,
        "lids": report.lids,
        "unconfigured": report.unconfigured,
        "delivered": report.delivered,
        "apart": report.apart,
        "hops_max": report.hops_max,
        "lost": lost,
        "examples": examples,
    })
}

fn node_json(fabric: &Fabric, node: NodeIndex) -> Value {
    let view = fabric.node(node);
    let ports: Vec<Value> = (0..=view.num_ports)
        .filter_map(|number| fabric.port(node, number).map(|port| (number, port)))
        .map(|(number, port)| {
            let link = port.link.map(|link| {
                json!({
                    "node": fabric.node(link.node).name,
                    "port": link.port,
                    "cut": link.cut,
                })
            });
            json!({
                "port": number,
                "guid": port.guid.to_string(),
                "lid": port.lid.0,
                "lmc": port.lmc,
                "sm_lid": port.master_sm_lid.0,
                "state": port.state.to_string(),
                "phys_state": port.phys_state.to_string(),
                "reregistrations": port.reregistrations,
                "link": link,
                "virtual_ports": virtual_ports_json(fabric, node, number),
            })
        })
        .collect();
    json!({
        "node": view.name,
        "type": view.node_type.to_string(),
        "guid": view.guid.to_string(),
        "up": view.up,
        "ports": ports,
    })
}

fn virtual_ports_json(fabric: &Fabric, node: NodeIndex, port: u8) -> Vec<Value> {
    let json = |view: crate::VirtualPortView| {
        let pkeys: Vec<String> = view.pkeys.iter().map(ToString::to_string).collect();
        json!({
            "index": view.index,
            "guid": view.guid.to_string(),
            "state": view.state.to_string(),
            "lid": view.lid.0,
            "pkeys": pkeys,
        })
    };
    fabric.virtual_ports(node, port).into_iter().map(json).collect()
}

/// The counters of a node's ports as JSON, by port and the specification's name: their values in
/// full, which may exceed what a field of an attribute can show.
fn counts_json(
    fabric: &mut Fabric,
    now: Instant,
    node: NodeIndex,
    port: Option<u8>,
) -> Result<Value, ControlError> {
    let last = fabric.node(node).num_ports;
    let numbers = port.map_or(0..=last, |port| port..=port);
    let mut ports = Map::new();
    for number in numbers {
        if port.is_none() && fabric.port(node, number).is_none() {
            continue;
        }
        let mut counters = Map::new();
        for &counter in PortCounter::ALL {
            let value = fabric.port_counter(now, node, number, counter)?;
            counters.insert(counter.name().to_owned(), json!(value));
        }
        ports.insert(number.to_string(), counters.into());
    }
    Ok(json!({ "node": fabric.node(node).name, "ports": ports }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_either_console_are_understood() {
        let down = Ok(Command::LinkDown("Switch 1".to_owned(), 3));
        assert_eq!(Command::parse("link-down \"Switch 1\" 3"), down);
        assert_eq!(Command::parse(" Unlink \"Switch 1\"[3]\n"), down);
        let loss = Probability::new(0.02).unwrap();
        assert_eq!(Command::parse("loss 2%"), Ok(Command::Loss(loss, None)));
        let at = Some(("h".to_owned(), 1));
        assert_eq!(Command::parse("loss 0.02 h 1"), Ok(Command::Loss(loss, at)));
        let count = Command::Count("h".to_owned(), 1, PortCounter::PortRcvErrors, 5);
        assert_eq!(Command::parse("count h 1 portrcverrors 5"), Ok(count));
        let at = |node: &str, port| (node.to_owned(), port);
        let moved = Command::Move(at("h", 1), at("Switch 1", 4));
        assert_eq!(Command::parse("move h 1 \"Switch 1\" 4"), Ok(moved));
        let plug = Command::Plug(at("h", 1), at("s", 4));
        assert_eq!(Command::parse("plug h 1 s 4"), Ok(plug));
        assert!(Command::parse("plug h 1 s").is_err() && Command::parse("move h 1").is_err());
        let all = Command::Counts("h".to_owned(), None);
        assert_eq!(Command::parse("counters h"), Ok(all));
        let up = |guid| Ok(Command::VirtualPortUp("h".to_owned(), 1, 2, guid));
        assert_eq!(Command::parse("vport-up h 1 2"), up(None));
        assert_eq!(Command::parse("vport-up h 1 2 0x2c9"), up(Some(Guid(0x2C9))));
        let down = Command::VirtualPortDown("h".to_owned(), 1, 2);
        assert_eq!(Command::parse("vport-down h 1 2"), Ok(down));
        let some = Command::VirtualPorts("h".to_owned(), 8);
        assert_eq!(Command::parse("virtual-ports h 8"), Ok(some));
        assert_eq!(Command::parse("counters"), Ok(Command::Status));
        for nothing in ["", "  \n", "# a comment"] {
            assert_eq!(Command::parse(nothing), Ok(Command::Nothing));
        }
    }

    #[test]
    fn invalid_commands_show_their_usage() {
        use ParseCommandError::{Unknown, Usage};
        let error = |line| Command::parse(line).unwrap_err();
        assert_eq!(error("frobnicate"), Unknown("frobnicate".to_owned()));
        assert_eq!(error("link-down x"), Usage("link-down NODE PORT"));
        assert_eq!(error("loss 200%"), Usage("loss SHARE [NODE PORT]"));
        assert_eq!(error("count x 1 Errors 5"), Usage("count NODE PORT COUNTER NUMBER"));
        assert_eq!(error("degrade x 1 fast"), Usage("degrade NODE PORT RATE|off"));
        assert_eq!(error("trap 128 x 1"), Usage("trap 129|130|131 NODE PORT"));
    }
}

//! `ibsmctl explain`: displays a responder's explanation of a path.

mod at;

use std::borrow::Cow;
use std::fmt::Write as _;

use sa_proto::proto::admin::ExplainRequest;
use serde::Deserialize;
use serde_json::Value;

use super::{CtlError, Sm, to_json};
use sm_config::parse_number;

/// Options of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl explain host-1 host-7                          By name; NAME/P2 if a node has \
    several ports.\n  \
    ibsmctl explain 12 0x0002c90300000001                  By LID and by GUID.\n  \
    ibsmctl explain host-1 fe80::2:c903:0:1 --pkey 0x8001  By GID, for a given P_Key.\n  \
    ibsmctl explain host-1 host-7 --at 12:03               What the history has of then: no routes.\
    \n\
    \nA name matches a NodeDescription, its part before the adapter (host-1 for \
    'host-1 HCA-1'), or a\nunique prefix. A responder evaluates the query as for a client at A. \
    The exit status is 0 also if\n\
    there is no path.")]
pub struct Options {
    /// Requesting port, the source of the path: name, GUID, LID or GID.
    #[arg(value_name = "A")]
    source: String,
    /// Destination port: name, GUID, LID or GID.
    #[arg(value_name = "B")]
    destination: String,
    /// ServiceID of the request.
    #[arg(short = 'i', long, value_name = "ID")]
    service_id: Option<String>,
    /// QoSClass of the request.
    #[arg(short, long, value_name = "CLASS")]
    qos_class: Option<String>,
    /// P_Key of the request.
    #[arg(short, long, value_name = "P_KEY")]
    pkey: Option<String>,
    /// Show what the history has of this time (12:03, '2026-11-27 12:03', 5m ago as 5m): links,
    /// states and LIDs of A and B, and the least number of switches between them. It has no
    /// forwarding tables, so the path itself is not known. A and B as they were named then.
    #[arg(long, value_name = "TIME")]
    #[arg(conflicts_with_all = ["service_id", "qos_class", "pkey"])]
    at: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Requests an explanation and formats it.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    if let Some(at) = &options.at {
        let ends = (&*options.source, &*options.destination);
        return at::run(sm, ends, at, options.json).await;
    }
    let request = request(options)?;
    let answer = sm.connect().await?.explain(request.clone()).await;
    let answer = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let unread = |error: serde_json::Error| CtlError::Unread(error.to_string());
    if options.json {
        let mut value: Value = serde_json::from_str(&answer.json).map_err(unread)?;
        value["responder"] = answer.responder.into();
        return Ok(to_json(&value));
    }
    let explanation = serde_json::from_str(&answer.json).map_err(unread)?;
    Ok(text(&explanation, &request, &answer.responder))
}

fn request(options: &Options) -> Result<ExplainRequest, CtlError> {
    let number = |what, expected, text: &Option<String>, max: u64| {
        let parsed = text.as_ref().map(|text| {
            let bad = || CtlError::Argument { what, expected, got: text.clone() };
            parse_number(text).filter(|&number| number <= max).ok_or_else(bad)
        });
        parsed.transpose()
    };
    let service_id = "a Service ID such as 0x00000000010603db";
    Ok(ExplainRequest {
        source: options.source.clone(),
        destination: options.destination.clone(),
        service_id: number("--service-id", service_id, &options.service_id, u64::MAX)?,
        qos_class: number("--qos-class", "a number up to 0xfff", &options.qos_class, 0xFFF)?
            .map(|class| class as u32),
        pkey: number("--pkey", "a P_Key such as 0x8001", &options.pkey, 0xFFFF)?
            .map(|pkey| pkey as u32),
    })
}

/// A responder's explanation, as far as it is displayed.
#[derive(Debug, Deserialize)]
struct Explanation {
    source: End,
    destination: End,
    off_subnet: Option<String>,
    hops: Vec<Hop>,
    arrival: String,
    mtu_bound_by: Option<Bottleneck>,
    mtu_lowered_for: Option<String>,
    rate_bound_by: Option<Bottleneck>,
    passed_over: Vec<PassedOver>,
    rule: Option<Rule>,
    no_path: Option<String>,
    no_way_back: Option<String>,
    status: u16,
    record: Option<Record>,
}

#[derive(Debug, Deserialize)]
struct End {
    node: String,
    node_type: String,
    port: u8,
    port_guid: String,
    lid: u16,
    lmc: u8,
    pkeys: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Hop {
    node: String,
    entry: u8,
    exit: u8,
    mtu: Option<u16>,
    rate: Option<String>,
    dropped_sls: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct Bottleneck {
    hop: usize,
    from: String,
    to: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct PassedOver {
    index: u32,
    name: String,
    failing: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    index: u32,
    name: String,
    origin: String,
    level: Option<Level>,
}

#[derive(Debug, Deserialize)]
struct Level {
    name: String,
    sl: Option<u8>,
    mtu_limit: Option<u16>,
    rate_limit: Option<String>,
    packet_life: Option<u8>,
    pkeys: Vec<(u16, u16)>,
}

#[derive(Debug, Deserialize)]
struct Record {
    dgid: String,
    sgid: String,
    dlid: u16,
    slid: u16,
    hop_limit: u8,
    pkey: String,
    sl: u8,
    mtu: u16,
    rate: String,
    packet_life: u8,
    reversible: bool,
    bytes: String,
}

fn text(explanation: &Explanation, request: &ExplainRequest, responder: &str) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "from      {}", end(&explanation.source));
    let _ = writeln!(text, "to        {}", end(&explanation.destination));
    if let Some(gid) = &explanation.off_subnet {
        let _ = writeln!(text, "          the router to {gid}, in another subnet");
    }
    let asked = [
        request.service_id.map(|id| format!("ServiceID {id:#018x}")),
        request.qos_class.map(|class| format!("QoSClass {class}")),
        request.pkey.map(|pkey| format!("P_Key {pkey:#06x}")),
    ];
    let asked: Vec<String> = asked.into_iter().flatten().collect();
    if !asked.is_empty() {
        let _ = writeln!(text, "request   {}", asked.join(", "));
    }
    match (&explanation.record, &explanation.no_path) {
        (Some(_), _) => text.push_str("path      yes"),
        (None, Some(reason)) => {
            let _ = write!(text, "path      no: {}", no_path(reason, explanation, request));
        }
        (None, None) => text.push_str("path      no"),
    }
    let _ = writeln!(text, "; status {}", status(explanation.status));
    if let Some(reason) = &explanation.no_way_back {
        let _ = writeln!(text, "reverse   no: {}", no_path(reason, explanation, request));
    }
    hops(&mut text, explanation);
    for (what, bound) in [("MTU", &explanation.mtu_bound_by), ("rate", &explanation.rate_bound_by)]
    {
        if let Some(Bottleneck { from, to, value, .. }) = bound {
            let unit = if what == "MTU" { " bytes" } else { "" };
            let bound = match to.as_str() {
                "" => format!("{from} itself"),
                to => format!("the link {from} - {to}"),
            };
            let _ = writeln!(text, "{what:<8}  {value}{unit}, bound by {bound}");
        }
    }
    if let (Some(node), Some(record)) = (&explanation.mtu_lowered_for, &explanation.record) {
        let (mtu, why) = (record.mtu, "is an InfiniHost (enable_quirks)");
        let _ =
            writeln!(text, "MTU sent  {mtu} bytes, unless the request asks for more: {node} {why}");
    }
    rules(&mut text, explanation);
    if let Some(record) = &explanation.record {
        self::record(&mut text, record);
    }
    let _ = writeln!(text, "responder {responder}");
    text
}

fn end(end: &End) -> String {
    let lids = match end.lmc {
        0 => end.lid.to_string(),
        lmc => format!("{} to {}", end.lid, end.lid | ((1 << lmc) - 1)),
    };
    format!(
        "{}/P{}, {}, GUID {}, LID {lids}, P_Keys {}",
        end.node,
        end.port,
        end.node_type,
        end.port_guid,
        if end.pkeys.is_empty() { "none".to_owned() } else { end.pkeys.join(" ") },
    )
}

fn hops(text: &mut String, explanation: &Explanation) {
    let _ = writeln!(text, "hops      {}", explanation.hops.len());
    let width = explanation.hops.iter().map(|hop| hop.node.chars().count()).max().unwrap_or(0);
    for (at, hop) in explanation.hops.iter().enumerate() {
        let entry = if at == 0 { String::new() } else { format!("in P{}", hop.entry) };
        let exit = match (at, hop.exit) {
            (1.., 0) => "ends here".to_owned(),
            (_, exit) => format!("out P{exit}"),
        };
        let mtu = hop.mtu.map_or(String::new(), |mtu| format!("MTU {mtu}"));
        let mut line = format!(
            "  {:<2}  {:<width$}  {entry:<7}  {exit:<9}  {mtu:<8}  {}",
            at + 1,
            hop.node,
            hop.rate.as_deref().unwrap_or_default(),
        );
        let is_here =
            |bound: &Option<Bottleneck>| bound.as_ref().is_some_and(|bound| bound.hop == at);
        match (is_here(&explanation.mtu_bound_by), is_here(&explanation.rate_bound_by)) {
            (true, true) => line.push_str("  < least MTU and rate"),
            (true, false) => line.push_str("  < least MTU"),
            (false, true) => line.push_str("  < least rate"),
            (false, false) => {}
        }
        if !hop.dropped_sls.is_empty() {
            let sls: Vec<String> = hop.dropped_sls.iter().map(ToString::to_string).collect();
            let _ = write!(line, "  drops SL {}", sls.join(", "));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let arrival = match explanation.arrival.as_str() {
        "delivered" => return,
        "no_route" => "the last switch has no route to it",
        "no_link" => "the last port has no link",
        "misdelivered" => "it arrives at another node",
        "loop" => "routing loop",
        other => other,
    };
    let _ = writeln!(text, "      the packet does not arrive: {arrival}");
}

fn rules(text: &mut String, explanation: &Explanation) {
    match &explanation.rule {
        Some(rule) => {
            let origin = match rule.origin.as_str() {
                "match_rule" => "match rule",
                "ulp" => "ULP rule",
                "default" => "default",
                "virtual_fabric" => "virtual fabric",
                other => other,
            };
            let _ = writeln!(text, "rule      {} {}, a {origin}", rule.index, quoted(&rule.name));
            if let Some(level) = &rule.level {
                let _ = writeln!(text, "level     {}: {}", quoted(&level.name), grants(level));
            }
        }
        None if explanation.passed_over.is_empty() => {
            let _ = writeln!(text, "rule      none in force");
        }
        None => {
            let _ = writeln!(text, "rule      none matches");
        }
    }
    for rule in &explanation.passed_over {
        let failing = match rule.failing.as_deref() {
            Some("level") => "its level does not exist",
            Some("source") => "the source is in none of its groups",
            Some("destination") => "the destination is in none of its groups",
            Some("qos_class") => "QoSClass differs or is not given",
            Some("service_id") => "ServiceID differs or is not given",
            Some("p_key") => "P_Key differs or is not given",
            Some(other) => other,
            None => "it matches, but its level has no such path",
        };
        let _ = writeln!(text, "  not {} {}: {failing}", rule.index, quoted(&rule.name));
    }
}

fn quoted(name: &str) -> String {
    if name.is_empty() { "unnamed".to_owned() } else { format!("'{name}'") }
}

fn grants(level: &Level) -> String {
    let range = |&(first, last): &(u16, u16)| match first == last {
        true => format!("{first:#06x}"),
        false => format!("{first:#06x}-{last:#06x}"),
    };
    let parts = [
        level.sl.map(|sl| format!("SL {sl}")),
        level.mtu_limit.map(|mtu| format!("MTU up to {mtu}")),
        level.rate_limit.as_ref().map(|rate| format!("rate up to {rate}")),
        level.packet_life.map(|life| format!("packet life {life}")),
        (!level.pkeys.is_empty()).then(|| {
            format!("P_Keys {}", level.pkeys.iter().map(range).collect::<Vec<_>>().join(" "))
        }),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "no limits".to_owned() } else { parts.join(", ") }
}

fn record(text: &mut String, record: &Record) {
    let reversible = if record.reversible { "reversible" } else { "not reversible" };
    let _ = writeln!(text, "record    SGID {}, SLID {}", record.sgid, record.slid);
    let _ = writeln!(text, "          DGID {}, DLID {}", record.dgid, record.dlid);
    let _ = writeln!(
        text,
        "          P_Key {}, SL {}, MTU {}, rate {}, packet life {} ({}), hop limit {}, \
         {reversible}",
        record.pkey,
        record.sl,
        record.mtu,
        record.rate,
        record.packet_life,
        lifetime(record.packet_life),
        record.hop_limit,
    );
    let _ = writeln!(text, "          {}", record.bytes);
}

/// Packet lifetime of a code n: 4.096 µs × 2^n.
fn lifetime(code: u8) -> String {
    let us = 4.096 * f64::from(1u32 << code.min(31));
    match us {
        ..1e3 => format!("{us:.0} µs"),
        1e3..1e6 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

fn status(code: u16) -> String {
    let words = match code {
        0 => "ok",
        0x0100 => "no resources",
        0x0200 => "request invalid",
        0x0300 => "no records",
        0x0400 => "too many records",
        0x0500 => "invalid GID",
        0x0600 => "insufficient components",
        0x0700 => "request denied",
        _ => return format!("{code:#06x}"),
    };
    format!("{code:#06x}, {words}")
}

/// Why the ends do not share the requested P_Key.
fn not_shared(explanation: &Explanation, pkey: u32) -> String {
    let base = pkey & 0x7FFF;
    let held = |end: &End| -> Vec<u64> {
        let keys = end.pkeys.iter().filter_map(|text| parse_number(text));
        keys.filter(|key| key & 0x7FFF == u64::from(base)).collect()
    };
    let (source, destination) = (held(&explanation.source), held(&explanation.destination));
    let is_limited = |keys: &[u64]| keys.iter().all(|key| key & 0x8000 == 0);
    match (source.is_empty(), destination.is_empty()) {
        (true, _) => format!("{} is not a member of {base:#06x}", explanation.source.node),
        (_, true) => format!("{} is not a member of {base:#06x}", explanation.destination.node),
        _ if is_limited(&source) && is_limited(&destination) => {
            format!("both are limited members of {base:#06x}")
        }
        _ => "the ends do not share the requested P_Key".to_owned(),
    }
}

fn no_path<'a>(
    reason: &'a str,
    explanation: &Explanation,
    request: &ExplainRequest,
) -> Cow<'a, str> {
    if let ("p_key_not_shared", Some(pkey)) = (reason, request.pkey) {
        return not_shared(explanation, pkey).into();
    }
    Cow::Borrowed(match reason {
        "unreachable" => "no route to the destination",
        "no_sl_passes" => "every SL is dropped along the path",
        "level_sl_dropped" => "the level's SL is dropped along the path",
        "mtu" => "the path does not have the requested MTU",
        "rate" => "the path does not have the requested rate",
        "lifetime" => "the path does not have the requested packet lifetime",
        "p_key_not_shared" => "the ends do not share the requested P_Key",
        "p_key_not_of_level" => "the level does not allow the requested P_Key",
        "no_level_p_key_shared" => "the ends share no P_Key that the level allows",
        "no_p_key_shared" => "the ends share no P_Key",
        "sl_not_of_level" => "the requested SL is not the level's",
        "sl_not_of_route" => "the requested SL is not the one that the route requires",
        "sl_dropped" => "the SL is dropped along the path",
        other => other,
    })
}

#[cfg(test)]
mod tests;

//! `ibsmctl status`: the subnet, the responders, and counters of both.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sa_proto::proto::admin::{
    Baseline, Counter, FileComparison, Follower, Peer, Problem, RegistryCopy, Responder, Status,
    StatusRequest,
};
use serde::Serialize;

use super::problems::{self, ProblemJson};
use super::{CtlError, Sm};
use crate::observe::problem::one_of_each_kind_first;
use crate::observe::words::{self, duration};

/// Options of `status`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Also print all counters.
    #[arg(short, long)]
    counters: bool,
    /// Print JSON, with all counters.
    #[arg(short, long)]
    json: bool,
}

/// The responder's counter of agents on compute nodes that follow it, if it serves any.
const AGENTS: &str = "agents";
/// The responder's counter of requests that the kernel dropped before they were read.
const SOCKET_OVERFLOW: &str = "socket_overflow";

/// Problems shown as text; `ibsmctl problems` lists all.
const PROBLEMS_MAX: usize = 10;

/// Requests the status and formats it.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let answer = sm.connect().await?.get_status(StatusRequest {}).await;
    let status = answer.map_err(|status| sm.refused(&status))?.into_inner();
    if options.json {
        return Ok(render_json(&status));
    }
    // Roles that may see the status need not be permitted to see it; managers of before have none.
    let baseline = super::baseline::fetch(sm, false).await.ok();
    Ok(render(&status, options.counters, baseline.as_ref()))
}

/// The status as text.
fn render(status: &Status, counters: bool, baseline: Option<&Baseline>) -> String {
    let mut text = String::new();
    let of = |severity| count_of(status, severity);
    let (critical, warnings) = (of("critical"), of("warning"));
    let subnet = words::subnet(status.subnet_up, &status.sm_state, critical, warnings);
    let state = state(status);
    let _ = writeln!(
        text,
        "subnet manager  {state}, port GUID {:#018x}, {}, priority {}, running for {}",
        status.sm_guid,
        if status.sm_lid == 0 { "no LID yet".to_owned() } else { format!("LID {}", status.sm_lid) },
        status.priority,
        duration(status.uptime_s)
    );
    let _ = writeln!(
        text,
        "subnet          {subnet}; prefix {:#018x}, LMC {}",
        status.subnet_prefix, status.lmc
    );
    if !status.routing_engine.is_empty() {
        let _ = writeln!(text, "routing         {}", status.routing_engine);
    }
    for why in &status.engines_passed_over {
        let _ = writeln!(text, "                skipped: {why}");
    }
    if status.sweeping == Some(false) {
        text.push_str("sweeps          off: what changes is not handled; ibsmctl sweeping on\n");
    }
    render_peers(&mut text, status);
    render_problems(&mut text, status);
    if baseline.is_some_and(|baseline| baseline.source == "none") {
        let _ = writeln!(
            text,
            "baseline        none: only what went since ibsm started is missing; ibsmctl baseline \
             take"
        );
    }
    let _ = writeln!(text, "software        {}", status.software);
    let _ = writeln!(
        text,
        "fabric          {} nodes ({} switches), {} ports",
        status.nodes, status.switches, status.ports
    );
    let _ = writeln!(
        text,
        "published       epoch {}, fabric generation {}, registry sequence {}",
        status.epoch, status.fabric_generation, status.registry_sequence
    );
    for follower in &status.followers {
        render_follower(&mut text, follower);
    }
    if !status.sa_port.is_empty() {
        let _ = writeln!(text, "SA at SM port   {}", status.sa_port);
    }
    if !status.store.is_empty() {
        let _ = writeln!(text, "store           {}", status.store);
    }
    let _ = writeln!(text, "responders      {}", status.responders.len());
    for responder in &status.responders {
        render_responder(&mut text, responder, status, counters);
    }
    if counters {
        let _ = writeln!(text, "counters");
        for counter in &status.counters {
            let _ = writeln!(text, "  {:<36} {}", counter.name, counter.value);
        }
    }
    text
}

/// Formats the worst problems.
fn render_problems(text: &mut String, status: &Status) {
    let Some(problems) = &status.problems else { return };
    let kind = |problem: &&Problem| (rank(&problem.severity), problem.kind.clone());
    for problem in one_of_each_kind_first(&problems.problems, kind).take(PROBLEMS_MAX) {
        let _ = writeln!(text, "problem         {}", problems::line(problem));
    }
    let rest = problems.problems.len().saturating_sub(PROBLEMS_MAX) as u64 + problems.unlisted;
    if rest > 0 {
        let _ = writeln!(text, "                {rest} more; see ibsmctl problems");
    }
}

/// Formats the other subnet managers, and when a standby takes over.
fn render_peers(text: &mut String, status: &Status) {
    for peer in &status.peers {
        let answered = match peer.answered_ms {
            Some(ms) if peer.polls_missed > 0 => format!(
                ", silent for {} s ({} polls unanswered); takeover after {} s",
                ms / 1000,
                peer.polls_missed,
                status.takes_over_after_ms / 1000
            ),
            Some(ms) => format!(
                ", answered {} ms ago; takeover after {} ms of silence",
                ms, status.takes_over_after_ms
            ),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "other SM        {}, {}, LID {}, priority {}{answered}",
            peer.sm_state, peer.place, peer.lid, peer.priority
        );
    }
    if !status.following.is_empty() {
        let _ = writeln!(text, "registry copy   {}", status.following);
    }
    if let Some(copy) = &status.registry_copy {
        let files = files(copy.files.as_ref());
        let whose =
            if copy.follows_config { " (--follow-config: the master's are used)" } else { "" };
        let _ = writeln!(text, "files           {files}{whose}");
    }
}

/// Formats a standby that follows the registry of this SM.
fn render_follower(text: &mut String, follower: &Follower) {
    let Follower { port_guid, name, in_step, since_s, epoch, registry_sequence, .. } = follower;
    let not = if *in_step { "" } else { "not " };
    let awaited = if follower.awaited { "; writes wait for it" } else { "" };
    let state = if follower.has_state { "" } else { ", LIDs and M_Keys not stored yet" };
    let _ = writeln!(
        text,
        "follower        {name}, port GUID {port_guid:#018x}: {not}in step for {}, holds epoch \
         {epoch}, sequence {registry_sequence}, {} changes behind{state}{awaited}",
        duration(*since_s),
        follower.lag
    );
    let _ = writeln!(text, "                its files: {}", files(follower.files.as_ref()));
}

/// The result of comparing a standby's files with the master's.
fn files(comparison: Option<&FileComparison>) -> String {
    match comparison {
        None => "not compared yet".to_owned(),
        Some(FileComparison { different }) if different.is_empty() => "as the master's".to_owned(),
        Some(FileComparison { different }) => {
            format!("different from the master's: {}", different.join(", "))
        }
    }
}

/// Formats a responder. One that is connected to a standby serves the data that the master
/// publishes.
fn render_responder(text: &mut String, responder: &Responder, status: &Status, counters: bool) {
    let is_elsewhere = responder.epoch > status.epoch;
    let serving = match (responder.current, responder.fabric_generation) {
        (true, _) => "current".to_owned(),
        (false, _) if state(status) == "standby" => "the snapshot of another SM, if any".to_owned(),
        (false, _) if is_elsewhere => format!(
            "another SM's session (epoch {}): it answers none of this SM's clients",
            responder.epoch
        ),
        (false, 0) => "nothing yet".to_owned(),
        (false, generation) => format!("behind, at generation {generation}"),
    };
    let agents = responder.counters.iter().find(|counter| counter.name == AGENTS);
    let _ = writeln!(
        text,
        "  {} ({:#x}): serving {serving}, connected {}, front door {}{}{}",
        responder.name,
        responder.id,
        duration(responder.connected_s),
        if responder.front_door.is_empty() { "none" } else { &responder.front_door[0] },
        agents.map(|agents| format!(", {} node agents", agents.value)).unwrap_or_default(),
        of_sa_guid(&responder.sa_guid),
    );
    let overflow = responder.counters.iter().find(|counter| counter.name == SOCKET_OVERFLOW);
    if let Some(Counter { value: value @ 1.., .. }) = overflow {
        let _ = writeln!(text, "    {value} requests dropped by the kernel: socket buffer full");
    }
    if counters {
        for counter in &responder.counters {
            let _ = writeln!(text, "    {:<34} {}", counter.name, counter.value);
        }
    }
}

/// Whether queries of virtual functions reach a responder's port, for its line.
fn of_sa_guid(sa_guid: &str) -> &'static str {
    match sa_guid {
        "held" => ", answers virtual functions",
        "refused" => ", its port does not take the SA's GUID (virtual functions)",
        "no_room" => ", no free entry for the SA's GUID at its port (virtual functions)",
        _ => "",
    }
}

/// The status as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct StatusJson<'a> {
    sm_state: &'a str,
    subnet_up: bool,
    software: &'a str,
    sm_guid: String,
    epoch: u64,
    fabric_generation: u64,
    registry_sequence: u64,
    nodes: u32,
    switches: u32,
    ports: u32,
    uptime_seconds: u64,
    routing_engine: &'a str,
    engines_passed_over: &'a [String],
    priority: u32,
    managers: Vec<PeerJson<'a>>,
    following: &'a str,
    registry_copy: Option<RegistryCopyJson>,
    followers: Vec<FollowerJson<'a>>,
    sa_port: &'a str,
    store: &'a str,
    takes_over_after_ms: u64,
    sm_lid: u32,
    lmc: u32,
    subnet_prefix: String,
    responders: Vec<ResponderJson<'a>>,
    counters: BTreeMap<&'a str, u64>,
    warnings: &'a [String],
    problems: Vec<ProblemJson<'a>>,
    problems_unlisted: u64,
    sweeping: Option<bool>,
}

#[derive(Serialize)]
struct RegistryCopyJson {
    in_step: bool,
    since_seconds: u64,
    epoch: u64,
    registry_sequence: u64,
    lag: u64,
    contact_ms: Option<u64>,
    has_state: bool,
    files_differ: Option<Vec<String>>,
    follows_config: bool,
}

impl From<&RegistryCopy> for RegistryCopyJson {
    fn from(copy: &RegistryCopy) -> Self {
        Self {
            in_step: copy.in_step,
            since_seconds: copy.since_s,
            epoch: copy.epoch,
            registry_sequence: copy.registry_sequence,
            lag: copy.lag,
            contact_ms: copy.contact_ms,
            has_state: copy.has_state,
            files_differ: copy.files.as_ref().map(|files| files.different.clone()),
            follows_config: copy.follows_config,
        }
    }
}

#[derive(Serialize)]
struct FollowerJson<'a> {
    port_guid: String,
    name: &'a str,
    in_step: bool,
    since_seconds: u64,
    epoch: u64,
    registry_sequence: u64,
    lag: u64,
    awaited: bool,
    has_state: bool,
    files_differ: Option<&'a [String]>,
}

impl<'a> From<&'a Follower> for FollowerJson<'a> {
    fn from(follower: &'a Follower) -> Self {
        Self {
            port_guid: format!("{:#018x}", follower.port_guid),
            name: &follower.name,
            in_step: follower.in_step,
            since_seconds: follower.since_s,
            epoch: follower.epoch,
            registry_sequence: follower.registry_sequence,
            lag: follower.lag,
            awaited: follower.awaited,
            has_state: follower.has_state,
            files_differ: follower.files.as_ref().map(|files| &*files.different),
        }
    }
}

#[derive(Serialize)]
struct PeerJson<'a> {
    port_guid: String,
    place: &'a str,
    lid: u32,
    sm_state: &'a str,
    priority: u32,
    answered_ms: Option<u64>,
    polls_missed: u32,
}

impl<'a> From<&'a Peer> for PeerJson<'a> {
    fn from(peer: &'a Peer) -> Self {
        Self {
            port_guid: format!("{:#018x}", peer.port_guid),
            place: &peer.place,
            lid: peer.lid,
            sm_state: &peer.sm_state,
            priority: peer.priority,
            answered_ms: peer.answered_ms,
            polls_missed: peer.polls_missed,
        }
    }
}

#[derive(Serialize)]
struct ResponderJson<'a> {
    id: String,
    name: &'a str,
    software: &'a str,
    front_door: &'a [String],
    port_guid: Option<String>,
    qpn: Option<u32>,
    current: bool,
    epoch: u64,
    fabric_generation: u64,
    registry_sequence: u64,
    connected_seconds: u64,
    counters: BTreeMap<&'a str, u64>,
    sa_guid: Option<&'a str>,
}

impl<'a> From<&'a Responder> for ResponderJson<'a> {
    fn from(responder: &'a Responder) -> Self {
        let has_port = responder.port_guid != 0;
        Self {
            id: format!("{:#x}", responder.id),
            name: &responder.name,
            software: &responder.software,
            front_door: &responder.front_door,
            port_guid: has_port.then(|| format!("{:#018x}", responder.port_guid)),
            qpn: has_port.then_some(responder.qpn),
            current: responder.current,
            epoch: responder.epoch,
            fabric_generation: responder.fabric_generation,
            registry_sequence: responder.registry_sequence,
            connected_seconds: responder.connected_s,
            counters: by_name(&responder.counters),
            sa_guid: Some(&*responder.sa_guid).filter(|text| !text.is_empty()),
        }
    }
}

fn render_json(status: &Status) -> String {
    let json = StatusJson {
        sm_state: state(status),
        subnet_up: status.subnet_up,
        software: &status.software,
        sm_guid: format!("{:#018x}", status.sm_guid),
        epoch: status.epoch,
        fabric_generation: status.fabric_generation,
        registry_sequence: status.registry_sequence,
        nodes: status.nodes,
        switches: status.switches,
        ports: status.ports,
        uptime_seconds: status.uptime_s,
        routing_engine: &status.routing_engine,
        engines_passed_over: &status.engines_passed_over,
        priority: status.priority,
        managers: status.peers.iter().map(PeerJson::from).collect(),
        following: &status.following,
        registry_copy: status.registry_copy.as_ref().map(RegistryCopyJson::from),
        followers: status.followers.iter().map(FollowerJson::from).collect(),
        sa_port: &status.sa_port,
        store: &status.store,
        takes_over_after_ms: status.takes_over_after_ms,
        sm_lid: status.sm_lid,
        lmc: status.lmc,
        subnet_prefix: format!("{:#018x}", status.subnet_prefix),
        responders: status.responders.iter().map(ResponderJson::from).collect(),
        counters: by_name(&status.counters),
        warnings: &status.warnings,
        problems: all_problems(status).map(ProblemJson::from).collect(),
        problems_unlisted: status.problems.as_ref().map_or(0, |problems| problems.unlisted),
        sweeping: status.sweeping,
    };
    let text = serde_json::to_string_pretty(&json).expect("the value serializes to JSON");
    text + "\n"
}

fn by_name(counters: &[Counter]) -> BTreeMap<&str, u64> {
    counters.iter().map(|counter| (counter.name.as_str(), counter.value)).collect()
}

/// Number of listed problems of a severity.
fn count_of(status: &Status, severity: &str) -> u64 {
    all_problems(status).filter(|problem| problem.severity == severity).count() as u64
}

/// Order of severities.
fn rank(severity: &str) -> u8 {
    match severity {
        "critical" => 0,
        "warning" => 1,
        _ => 2,
    }
}

fn all_problems(status: &Status) -> impl Iterator<Item = &Problem> {
    status.problems.iter().flat_map(|problems| &problems.problems)
}

/// The SM's election state.
fn state(status: &Status) -> &str {
    if status.sm_state.is_empty() { "starting" } else { &status.sm_state }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(status: &Status, counters: bool) -> String {
        super::render(status, counters, None)
    }
    use sa_proto::proto::admin::Problems;

    #[test]
    fn a_responder_is_shown_with_the_node_agents_that_it_serves() {
        let counter = |name: &str, value| Counter { name: name.into(), value };
        let serves = |counters| Responder { name: "a".into(), counters, ..Responder::default() };
        let with = serves(vec![counter(AGENTS, 640)]);
        let without = serves(vec![counter("requests", 640)]);
        let status = Status { responders: vec![with, without], ..Status::default() };
        let text = render(&status, false);
        assert_eq!(text.matches("node agents").count(), 1, "{text}");
        assert!(text.contains("front door none, 640 node agents\n"), "{text}");
    }

    #[test]
    fn a_responder_is_shown_with_whether_virtual_functions_reach_it() {
        let has = |sa_guid: &str| {
            let responder =
                Responder { name: "a".into(), sa_guid: sa_guid.into(), ..Responder::default() };
            let status = Status { responders: vec![responder], ..Status::default() };
            let json: serde_json::Value = serde_json::from_str(&render_json(&status)).unwrap();
            (render(&status, false), json["responders"][0]["sa_guid"].clone())
        };
        let (text, json) = has("held");
        assert!(text.contains("front door none, answers virtual functions\n"), "{text}");
        assert_eq!(json, "held");
        assert!(has("refused").0.contains("does not take the SA's GUID"));
        let (text, json) = has("");
        assert!(text.contains("front door none\n") && json.is_null(), "{text}");
    }

    #[test]
    fn a_lagging_responder_is_shown_as_such() {
        let responder = |name: &str, current, fabric_generation| Responder {
            name: name.into(),
            current,
            fabric_generation,
            front_door: vec!["127.0.0.1:9000".into()],
            ..Responder::default()
        };
        let status = Status {
            sm_state: "master".into(),
            sm_lid: 9,
            nodes: 11_400,
            switches: 1_400,
            uptime_s: 3_725,
            responders: vec![
                responder("a", true, 7),
                responder("b", false, 6),
                responder("c", false, 0),
            ],
            counters: vec![Counter { name: "smps_sent".into(), value: 9 }],
            ..Status::default()
        };
        let text = render(&status, false);
        assert!(!text.contains("warning"), "{text}");
        assert!(
            text.contains(
                "master, port GUID 0x0000000000000000, LID 9, priority 0, running for 1 h 2 min"
            ),
            "{text}"
        );
        assert!(text.contains("a (0x0): serving current"), "{text}");
        assert!(text.contains("b (0x0): serving behind, at generation 6"), "{text}");
        assert!(text.contains("c (0x0): serving nothing yet"), "{text}");
        assert!(!text.contains("smps_sent"));
        assert!(render(&status, true).contains("smps_sent"));
    }

    /// It was shown as behind, or as current.
    #[test]
    fn a_responder_that_serves_another_manager_is_shown_as_such() {
        let responder = |name: &str, current, epoch| Responder {
            name: name.into(),
            current,
            epoch,
            fabric_generation: 6,
            ..Responder::default()
        };
        let responders = vec![responder("a", true, 8), responder("b", false, 9)];
        let status =
            Status { sm_state: "master".into(), epoch: 8, responders, ..Status::default() };
        let text = render(&status, false);
        assert!(text.contains("a (0x0): serving current"), "{text}");
        assert!(text.contains("b (0x0): serving another SM's session (epoch 9)"), "{text}");
    }

    #[test]
    fn requests_dropped_by_the_kernel_are_shown_without_the_counters_option() {
        let text = |value| {
            let counters = vec![Counter { name: SOCKET_OVERFLOW.into(), value }];
            let responder = Responder { name: "a".into(), counters, ..Responder::default() };
            render(&Status { responders: vec![responder], ..Status::default() }, false)
        };
        assert!(text(17).contains("    17 requests dropped by the kernel"), "{}", text(17));
        assert!(!text(0).contains("dropped"));
    }

    #[test]
    fn the_engine_in_force_is_shown_and_why_others_are_not() {
        let status = Status {
            routing_engine: "minhop".into(),
            engines_passed_over: vec!["ftree cannot route this fabric: no tree".into()],
            ..Status::default()
        };
        let text = render(&status, false);
        let expected = "routing         minhop\n                skipped: ftree cannot route this";
        assert!(text.contains(expected), "{text}");
        assert!(!render(&Status::default(), false).contains("routing"));
    }

    /// Regression: the text named neither the master nor this SM.
    #[test]
    fn a_standby_shows_the_master_and_the_takeover_time() {
        let master = Peer {
            place: "CA 'node3 HCA-1' 0x0000000000000003 port 1".into(),
            lid: 7,
            sm_state: "master".into(),
            priority: 9,
            answered_ms: Some(300),
            ..Peer::default()
        };
        let status = Status {
            sm_state: "standby".into(),
            priority: 3,
            sm_lid: 8,
            lmc: 2,
            subnet_prefix: 0xfe80_0000_0000_0000,
            peers: vec![master.clone()],
            following: "in step".into(),
            takes_over_after_ms: 4000,
            ..Status::default()
        };
        let text = render(&status, false);
        assert!(text.contains("LID 8, priority 3, running"), "{text}");
        assert!(text.contains("prefix 0xfe80000000000000, LMC 2\n"), "{text}");
        let expected = "other SM        master, CA 'node3 HCA-1' \
                        0x0000000000000003 port 1, LID 7, priority 9, answered 300 ms ago; \
                        takeover after 4000 ms of silence\nregistry copy   in step\n";
        assert!(text.contains(expected), "{text}");

        let silent = Peer { polls_missed: 2, answered_ms: Some(25_000), ..master };
        let status = Status { peers: vec![silent], takes_over_after_ms: 40_000, ..status };
        let text = render(&status, false);
        assert!(
            text.contains("silent for 25 s (2 polls unanswered); takeover after 40 s"),
            "{text}"
        );
    }

    #[test]
    fn a_follower_is_shown_with_what_it_holds() {
        let follower = Follower {
            port_guid: 0x17,
            name: "standby of /var/lib/ibsm".into(),
            in_step: true,
            since_s: 65,
            epoch: 9,
            registry_sequence: 40,
            lag: 2,
            awaited: true,
            has_state: true,
            files: Some(FileComparison { different: vec!["partition_config_file".into()] }),
        };
        let status = Status { followers: vec![follower], ..Status::default() };
        let text = render(&status, false);
        let expected = "port GUID 0x0000000000000017: in step for 1 min 5 s, holds epoch 9, \
                        sequence 40, 2 changes behind; writes wait for it\n";
        assert!(text.contains(expected), "{text}");
        let json: serde_json::Value = serde_json::from_str(&render_json(&status)).unwrap();
        assert_eq!(json["followers"][0]["in_step"], true);
        assert_eq!(json["followers"][0]["lag"], 2);
        assert!(
            text.contains(
                "\n                its files: different from the master's: partition_config_file\n"
            ),
            "{text}"
        );
        assert_eq!(json["followers"][0]["files_differ"][0], "partition_config_file");
        let behind = Follower { has_state: false, ..status.followers[0].clone() };
        let text = render(&Status { followers: vec![behind], ..Status::default() }, false);
        assert!(text.contains("changes behind, LIDs and M_Keys not stored yet"), "{text}");
    }

    #[test]
    fn a_standby_shows_which_of_its_files_differ() {
        let shown = |files: Option<&[&str]>, follows_config| {
            let different = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
            let files = files.map(|names| FileComparison { different: different(names) });
            let copy = RegistryCopy { files, follows_config, ..RegistryCopy::default() };
            render(&Status { registry_copy: Some(copy), ..Status::default() }, false)
        };
        let text = shown(None, false);
        assert!(text.contains("\nfiles           not compared yet\n"), "{text}");
        let text = shown(Some(&["settings", "root_guid_file"]), false);
        let expected = "\nfiles           different from the master's: settings, root_guid_file\n";
        assert!(text.contains(expected), "{text}");
        let text = shown(Some(&[]), true);
        assert!(text.contains("files           as the master's (--follow-config"), "{text}");
    }

    #[test]
    fn a_status_says_that_there_is_no_baseline() {
        let baseline = |source: &str| Baseline { source: source.into(), ..Baseline::default() };
        let shown = |baseline: Option<Baseline>| {
            super::render(&Status::default(), false, baseline.as_ref())
        };
        assert!(shown(Some(baseline("none"))).contains("\nbaseline        none: "));
        assert!(!shown(Some(baseline("file"))).contains("baseline"));
        assert!(!shown(None).contains("baseline"));
    }

    #[test]
    fn the_process_that_reads_at_the_sms_port_is_shown_where_it_is_known() {
        let status = Status { sa_port: "r1 (process 7)".into(), ..Status::default() };
        let text = render(&status, false);
        assert!(text.contains("\nSA at SM port   r1 (process 7)\n"), "{text}");
        assert!(!render(&Status::default(), false).contains("SA at SM port"));
    }

    #[test]
    fn the_worst_problems_are_shown_and_a_subnet_with_some_is_not_just_up() {
        let problem = |severity: &str| Problem {
            severity: severity.into(),
            text: "partitions.conf: bad".into(),
            ..Problem::default()
        };
        let status = |problems: Vec<Problem>| Status {
            subnet_up: true,
            problems: Some(Problems { problems, unlisted: 3 }),
            ..Status::default()
        };
        let text = render(&status(vec![problem("warning"); 12]), false);
        assert!(text.contains("subnet          up, with problems;"), "{text}");
        assert_eq!(text.matches("problem         warning   partitions.conf: bad").count(), 10);
        assert!(text.contains("                5 more; see ibsmctl problems"), "{text}");
        let text = render(&status(vec![problem("critical")]), false);
        assert!(text.contains("up, with critical problems;"), "{text}");
        assert!(render(&status(vec![problem("notice")]), false).contains(" up;"));
    }

    #[test]
    fn json_has_all_fields_under_stable_keys() {
        let counters = vec![Counter { name: "smps_sent".into(), value: 9 }];
        let responder = Responder { id: 0xA, name: "a".into(), counters, ..Responder::default() };
        let status = Status {
            sm_state: "master".into(),
            subnet_up: true,
            sm_guid: 0x10,
            responders: vec![responder],
            ..Status::default()
        };
        let json: serde_json::Value = serde_json::from_str(&render_json(&status)).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = "counters engines_passed_over epoch fabric_generation followers following \
            lmc managers nodes ports priority problems problems_unlisted registry_copy \
            registry_sequence responders routing_engine sa_port sm_guid sm_lid sm_state software \
            store subnet_prefix subnet_up sweeping switches takes_over_after_ms uptime_seconds \
            warnings";
        assert_eq!(keys.join(" "), expected);
        assert_eq!(json["sm_guid"], "0x0000000000000010");
        assert_eq!(json["subnet_up"], true);
        let responder = &json["responders"][0];
        assert_eq!(responder["counters"]["smps_sent"], 9);
        assert!(responder["port_guid"].is_null());
    }
}

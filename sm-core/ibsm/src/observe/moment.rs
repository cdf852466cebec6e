//! Defines the JSON documents of `/api/v1/` and `ibsmctl top --json`. `docs/web.md` describes them;
//! fields may be added, but none changes its meaning.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::problem::{Changes, Problem, Problems, Severity, one_of_each_kind_first};

/// The state that changes from second to second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since `ibsm` started; the index of values in series.
    pub tick: u64,
    /// Time by the clock of `ibsm`, milliseconds since 1970.
    pub time_ms: u64,
    /// The subnet manager.
    pub sm: Sm,
    /// Size of the published fabric.
    pub fabric: FabricCounts,
    /// Sum over all responders.
    pub total: Load,
    /// Answers by attribute and method, most frequent first.
    pub types: Vec<TypeRate>,
    /// Requests dropped, by reason.
    pub drops: Vec<DropRate>,
    /// All responders that are connected, or were within the last quarter of an hour, by name.
    pub responders: Vec<ResponderNow>,
    /// The requesters with the most queries, most active first.
    pub talkers: Vec<Talker>,
    /// The sweeps so far.
    pub sweeps: SweepCounts,
    /// Numbers of problems, and what changed among them.
    #[serde(default)]
    pub problems: ProblemCounts,
    /// Clients that watch the live page's stream.
    pub watchers: Watchers,
    /// Sweeps of the performance manager that ended; none if counters of ports are not read.
    #[serde(default)]
    pub counter_sweeps: Option<u64>,
}

/// Numbers of problems. The list is a document of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProblemCounts {
    /// Changes with the list.
    pub version: u64,
    /// Problems because of which traffic, queries or registrations fail.
    pub critical: u64,
    /// Problems that do not work, or that would not survive the next failure.
    pub warning: u64,
    /// Problems that an operator should know.
    pub notice: u64,
    /// The first problems, the worst first, of each severity one of every kind first.
    #[serde(default)]
    pub first: Vec<ProblemNow>,
    /// Problems that appeared in this second; the first 16.
    pub opened: Vec<ProblemNow>,
    /// Problems that ended in this second; the first 16.
    pub closed: Vec<ProblemNow>,
}

/// Problems in each moment.
const FIRST_MAX: usize = 5;
/// Changes listed per second.
const CHANGES_MAX: usize = 16;

impl ProblemCounts {
    /// The numbers of these problems.
    pub(super) fn of(problems: &Problems, changes: &Changes) -> Self {
        let of = |severity| problems.of_severity(severity) as u64;
        let some = |list: &[Arc<Problem>]| {
            list.iter().take(CHANGES_MAX).map(|problem| ProblemNow::of(problem)).collect()
        };
        let key = |problem: &&Arc<Problem>| (problem.severity() as u8, problem.kind);
        let first = one_of_each_kind_first(problems.listed.iter(), key).take(FIRST_MAX);
        Self {
            version: problems.version,
            first: first.map(|problem| ProblemNow::of(problem)).collect(),
            critical: of(Severity::Critical),
            warning: of(Severity::Warning),
            notice: of(Severity::Notice),
            opened: some(&changes.opened),
            closed: some(&changes.closed),
        }
    }
}

/// The list of problems, the worst first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProblemsNow {
    /// As in [`ProblemCounts`].
    pub version: u64,
    /// The problems.
    pub problems: Vec<ProblemNow>,
    /// Number of further problems, which are only counted.
    pub unlisted: u64,
}

impl ProblemsNow {
    /// These problems.
    pub(crate) fn of(problems: &Problems) -> Self {
        Self {
            version: problems.version,
            problems: problems.listed.iter().map(|problem| ProblemNow::of(problem)).collect(),
            unlisted: problems.unlisted() as u64,
        }
    }
}

/// A problem.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProblemNow {
    /// Kind and subject: the same each time that it occurs, also after a restart.
    pub id: String,
    /// Its kind, as the label of `ibsm_problems`.
    pub kind: String,
    /// How bad it is.
    pub severity: Severity,
    /// Name of the node, responder or file; empty for the subnet.
    pub name: String,
    /// GUID of the node.
    pub guid: Option<String>,
    /// Number of the port.
    pub port: Option<u8>,
    /// What is wrong, without the subject.
    pub detail: String,
    /// Subject and detail in one line.
    pub text: String,
    /// What to do.
    pub remedy: String,
    /// When it was found, milliseconds since 1970.
    pub since_ms: u64,
    /// How often it occurred within a day.
    pub count: u64,
}

impl ProblemNow {
    fn of(problem: &Problem) -> Self {
        Self {
            id: problem.id.clone(),
            kind: problem.kind.label().to_owned(),
            severity: problem.severity(),
            name: problem.subject.name.clone(),
            guid: problem.subject.guid.map(|guid| guid.to_string()),
            port: problem.subject.port.map(|port| port.0),
            detail: problem.detail.clone(),
            text: problem.text(),
            remedy: problem.remedy.to_owned(),
            since_ms: problem.since_ms,
            count: problem.count,
        }
    }
}

/// The subnet manager.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sm {
    /// State in the SM election: `master`, `standby` ...; empty at start.
    pub state: String,
    /// Phase of the current sweep, or `idle`.
    pub phase: String,
    /// Whether it is the master and the subnet is up.
    pub subnet_up: bool,
    /// Name of the engine whose routes are in force; empty if there are none.
    #[serde(default)]
    pub routing_engine: String,
    /// Why engines listed before it are not used.
    #[serde(default)]
    pub engines_passed_over: Vec<String>,
    /// Name and version of the software.
    pub software: String,
    /// GUID of its port.
    pub guid: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Epoch of the session.
    pub epoch: u64,
    /// Generation of the fabric plane.
    pub fabric_generation: u64,
    /// Sequence number of the registry plane.
    pub registry_sequence: u64,
    /// Problems that need an operator.
    pub warnings: Vec<String>,
}

/// Size of the fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricCounts {
    /// Changes whenever `/api/v1/fabric` does.
    pub etag: String,
    /// Switches.
    pub switches: u32,
    /// Channel adapters and routers.
    pub hosts: u32,
    /// Links.
    pub links: u32,
}

/// Load of one responder or of all. Fields are `None` while a responder does not report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests received per second.
    pub requests_per_s: Option<f64>,
    /// Requests answered per second.
    pub answers_per_s: Option<f64>,
    /// Answers per second with an error status, not counting NO_RECORDS.
    pub errors_per_s: Option<f64>,
    /// Answers per second with status NO_RECORDS.
    #[serde(default)]
    pub no_records_per_s: Option<f64>,
    /// Requests per second that were not answered.
    pub dropped_per_s: Option<f64>,
    /// Requests that have not been answered completely.
    pub in_flight: Option<u64>,
    /// Median latency of the last second's answers, µs from reading a request to sending its
    /// answer; `None` without answers.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency, µs.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the latency, µs.
    pub p999_us: Option<f64>,
    /// How long a responder has lacked a published version, ms; 0 if it lacks none. In the second
    /// in which it caught up: how long that took. For all responders: the largest value.
    pub lag_ms: Option<f64>,
}

/// Answers of one attribute and method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TypeRate {
    /// Name of the attribute, or its number in hexadecimal.
    pub attribute: String,
    /// Method: `get`, `get_table` ...
    pub method: String,
    /// Answers per second.
    pub per_s: f64,
    /// Answers per second with an error status, not counting NO_RECORDS.
    pub errors_per_s: f64,
    /// Answers per second with status NO_RECORDS.
    #[serde(default)]
    pub no_records_per_s: f64,
    /// Answers since the responders started.
    pub total: u64,
}

/// Requests dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DropRate {
    /// The reason, as in the metrics of `ibsa`; `socket_overflow` for requests lost before they
    /// were read.
    pub reason: String,
    /// Requests per second.
    pub per_s: f64,
    /// Requests since the responders started.
    pub total: u64,
}

/// State of a responder relative to the published snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The responder serves the latest version.
    Current,
    /// The responder serves an older version.
    Behind,
    /// The responder serves the session of another manager, and answers no clients of this one.
    Elsewhere,
    /// The responder has no snapshot to serve.
    Waiting,
    /// The responder has not reported for seconds, and has not disconnected by itself.
    Silent,
    /// The responder is not connected.
    #[default]
    Down,
}

impl Standing {
    /// The state in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Behind => "behind",
            Self::Elsewhere => "elsewhere",
            Self::Waiting => "waiting",
            Self::Silent => "silent",
            Self::Down => "down",
        }
    }
}

/// A responder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponderNow {
    /// Its identity.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Name and version of its software.
    pub software: String,
    /// Addresses to which the front door sends requests.
    pub front_door: Vec<String>,
    /// GUID of its port, if it has one.
    pub port_guid: Option<String>,
    /// State relative to the published snapshot.
    pub state: Standing,
    /// Seconds since it connected, or since it disconnected.
    pub for_s: u64,
    /// Fabric generation that it serves.
    pub fabric_generation: u64,
    /// Registry sequence number that it serves.
    pub registry_sequence: u64,
    /// Seconds since it began to use its current tables.
    pub snapshot_age_s: Option<f64>,
    /// Milliseconds that these tables took to build.
    pub apply_ms: Option<f64>,
    /// Milliseconds from the announcement of the version it serves until it served it.
    pub last_update_ms: Option<f64>,
    /// Its load.
    pub load: Load,
}

/// A requester with many queries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Talker {
    /// Its LID.
    pub lid: u16,
    /// Name of its node, or of the last node that had the LID; empty if none is known.
    pub node: String,
    /// GUID of that node.
    pub guid: String,
    /// Whether that node has left, or has another LID.
    #[serde(default)]
    pub left: bool,
    /// Requests per second, estimated from samples and averaged over about ten seconds.
    pub per_s: f64,
    /// Share of all requests, 0 to 1.
    pub share: f64,
}

/// Number of sweeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SweepCounts {
    /// Number of the last sweep in the history; 0 if there is none.
    pub last: u64,
    /// Light sweeps that found no change, which are not in the history.
    pub quiet: u64,
    /// Seconds since the last sweep of any kind ended.
    pub last_ended_s: Option<f64>,
}

/// Clients of `/api/v1/stream`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watchers {
    /// Current number.
    pub now: u32,
    /// Number dropped because they did not read fast enough.
    pub dropped: u64,
    /// Number rejected because there were too many.
    pub refused: u64,
}

/// Values over time: one list per value, oldest first, the last entries at the same instant.
/// Unknown values are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Seconds from one value to the next.
    pub step_s: u32,
    /// `Moment::tick` of the last value.
    pub tick: u64,
    /// Time of the last value, milliseconds since 1970.
    pub time_ms: u64,
    /// Sum over all responders.
    pub total: LoadHistory,
    /// Answers per second by attribute and method.
    pub types: Vec<TypeHistory>,
    /// Dropped requests per second by reason.
    pub drops: Vec<DropHistory>,
    /// Each responder.
    pub responders: Vec<ResponderHistory>,
}

/// Load over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadHistory {
    /// Answers per second.
    pub answers_per_s: Vec<Option<f32>>,
    /// Requests per second that were not answered.
    pub dropped_per_s: Vec<Option<f32>>,
    /// Requests in flight.
    pub in_flight: Vec<Option<f32>>,
    /// Latencies, µs; per minute the largest value of its seconds.
    pub p50_us: Vec<Option<f32>>,
    /// As `p50_us`.
    pub p99_us: Vec<Option<f32>>,
    /// As `p50_us`.
    pub p999_us: Vec<Option<f32>>,
    /// Lag, ms; per minute the largest value of its seconds.
    pub lag_ms: Vec<Option<f32>>,
}

/// Answers of one attribute and method.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TypeHistory {
    /// As in [`TypeRate`]; `other` for all types beyond the first 15.
    pub attribute: String,
    /// As in [`TypeRate`].
    pub method: String,
    /// Answers per second.
    pub per_s: Vec<Option<f32>>,
}

/// Requests dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DropHistory {
    /// As in [`DropRate`].
    pub reason: String,
    /// Requests per second.
    pub per_s: Vec<Option<f32>>,
}

/// History of one responder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponderHistory {
    /// As in [`ResponderNow`].
    pub id: String,
    /// As in [`ResponderNow`].
    pub name: String,
    /// Its load.
    pub load: LoadHistory,
}

/// A completed sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Number, from 1.
    pub number: u64,
    /// When it ended, milliseconds since 1970.
    pub ended_ms: u64,
    /// `full`, or `partial`: only changes were read again.
    pub kind: String,
    /// Why it was started.
    pub reason: String,
    /// Its phases in order, with their durations.
    pub phases: Vec<PhaseTime>,
    /// Duration, ms.
    pub duration_ms: f64,
    /// SMPs sent, including retries.
    pub smps: u64,
    /// Whether the fabric is programmed, apart from the errors.
    pub up: bool,
    /// Number of attributes that could not be read or set.
    pub errors: u64,
    /// The first errors, as text.
    pub faults: Vec<String>,
    /// Ports of the first errors.
    pub fault_ports: Vec<FaultPort>,
    /// Number of nodes that appeared.
    pub appeared: u64,
    /// Number of nodes that vanished.
    pub vanished: u64,
    /// Nodes and links that came, went or changed, by name; the first of them.
    #[serde(default)]
    pub changes: Vec<String>,
    /// Number of further changes.
    #[serde(default)]
    pub changes_unlisted: u64,
    /// Forwarding table blocks written.
    pub lft_blocks_set: u64,
    /// Links whose far end does not respond.
    pub unanswered: u64,
    /// Switches in the fabric.
    pub switches: u64,
    /// Channel adapters and routers in the fabric.
    pub hosts: u64,
    /// Links in the fabric.
    pub links: u64,
}

/// A phase of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name.
    pub phase: String,
    /// Duration, ms.
    pub ms: f64,
}

/// A port with a fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPort {
    /// GUID of its node.
    pub guid: String,
    /// Its number.
    pub port: u8,
}

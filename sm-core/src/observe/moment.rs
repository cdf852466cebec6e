//! What is shown to people and programs: the documents of `/api/v1/` and of `ibsmctl top --json`.
//! `docs/web.md` describes them; fields may be added, none changes its meaning.

use serde::{Deserialize, Serialize};

/// Everything that changes from second to second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since `ibsm` started, by which series are counted.
    pub tick: u64,
    /// Milliseconds since 1970, by the clock of `ibsm`.
    pub time_ms: u64,
    /// The subnet manager.
    pub sm: Sm,
    /// The fabric as it is published.
    pub fabric: FabricCounts,
    /// All responders together.
    pub total: Load,
    /// Answers by attribute and method, those first that are more.
    pub types: Vec<TypeRate>,
    /// Requests dropped, by reason.
    pub drops: Vec<DropRate>,
    /// All responders that are connected, or were within the last quarter of an hour, by name.
    pub responders: Vec<ResponderNow>,
    /// Who asks most, those first that ask more.
    pub talkers: Vec<Talker>,
    /// The sweeps so far.
    pub sweeps: SweepCounts,
    /// Those who watch.
    pub watchers: Watchers,
}

/// The subnet manager.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sm {
    /// What it is doing among subnet managers: `master`, `standby` ...; empty while it starts.
    pub state: String,
    /// What it is doing in its own subnet: `idle`, or the phase of a sweep.
    pub phase: String,
    /// Whether it is the master and the subnet is up.
    pub subnet_up: bool,
    /// The engine whose routes are in force; empty if there are none.
    #[serde(default)]
    pub routing_engine: String,
    /// Why engines that are wanted before it are not used.
    #[serde(default)]
    pub engines_passed_over: Vec<String>,
    /// Name and version.
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
    /// What is wrong now and needs an operator.
    pub warnings: Vec<String>,
}

/// How large the fabric is.
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

/// What a responder, or all, have to do. Nothing is known of a responder that is silent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests received a second.
    pub requests_per_s: Option<f64>,
    /// Requests answered a second.
    pub answers_per_s: Option<f64>,
    /// Answers a second whose status is an error; that there is no such record is none.
    pub errors_per_s: Option<f64>,
    /// Answers a second that there is no such record (NO_RECORDS).
    #[serde(default)]
    pub no_records_per_s: Option<f64>,
    /// Requests a second that were not answered.
    pub dropped_per_s: Option<f64>,
    /// Requests whose answer, or rest, is under way.
    pub in_flight: Option<u64>,
    /// Latency, µs, from reading a request to sending its answer, that half of all answers of the
    /// last second stayed below; none if there were no answers.
    pub p50_us: Option<f64>,
    /// The same of 99 % of them.
    pub p99_us: Option<f64>,
    /// The same of 99.9 % of them.
    pub p999_us: Option<f64>,
    /// Milliseconds for which a responder has lacked something that was published; 0 if it lacks
    /// nothing. In the second in which it caught up: how long that took. Of all: the largest.
    pub lag_ms: Option<f64>,
}

/// Answers of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TypeRate {
    /// Name of the attribute, or its number in hexadecimal.
    pub attribute: String,
    /// Method: `get`, `get_table` ...
    pub method: String,
    /// Answers a second.
    pub per_s: f64,
    /// Those among them whose status is an error; that there is no such record is none.
    pub errors_per_s: f64,
    /// Those among them that say that there is no such record.
    #[serde(default)]
    pub no_records_per_s: f64,
    /// Answers since their responders started.
    pub total: u64,
}

/// Requests dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DropRate {
    /// The reason, as in the metrics of `ibsa`; `socket_overflow` for what was lost before it was read.
    pub reason: String,
    /// Requests a second.
    pub per_s: f64,
    /// Requests since their responders started.
    pub total: u64,
}

/// How a responder stands to what is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It answers from the latest snapshot.
    Current,
    /// It answers from an older one.
    Behind,
    /// It has nothing to answer from.
    Waiting,
    /// It is connected, and has not reported for seconds.
    Silent,
    /// It is not connected.
    #[default]
    Down,
}

impl Standing {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Behind => "behind",
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
    /// Name and version.
    pub software: String,
    /// Where the front door sends requests.
    pub front_door: Vec<String>,
    /// GUID of its port, if it has one.
    pub port_guid: Option<String>,
    /// How it stands.
    pub state: Standing,
    /// Seconds that it has been connected, or that it has been down.
    pub for_s: u64,
    /// Generation of the fabric that it answers from.
    pub fabric_generation: u64,
    /// Sequence number of the registry that it answers from.
    pub registry_sequence: u64,
    /// Seconds that its tables have been in use.
    pub snapshot_age_s: Option<f64>,
    /// Milliseconds that they took to build.
    pub apply_ms: Option<f64>,
    /// Milliseconds from the announcement of what it answers from until it did.
    pub last_update_ms: Option<f64>,
    /// What it has to do.
    pub load: Load,
}

/// Someone who asks much.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Talker {
    /// Its LID.
    pub lid: u16,
    /// Name of its node; empty if no port of the fabric has the LID.
    pub node: String,
    /// GUID of its node.
    pub guid: String,
    /// Requests a second, estimated from samples, an average over some ten seconds.
    pub per_s: f64,
    /// Share of all requests, 0 to 1.
    pub share: f64,
}

/// How many sweeps there were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SweepCounts {
    /// Number of the last one in the history; 0 if there is none.
    pub last: u64,
    /// Light sweeps that found nothing changed, which are not in the history.
    pub quiet: u64,
    /// Seconds since the last sweep of any kind ended.
    pub last_ended_s: Option<f64>,
}

/// Those who watch by `/api/v1/stream`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watchers {
    /// How many there are.
    pub now: u32,
    /// How many were dropped since they did not read fast enough.
    pub dropped: u64,
    /// How many were turned away since there were too many.
    pub refused: u64,
}

/// How values were over time: one list a value, oldest first, the last ones of the same instant.
/// What is unknown is null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Seconds from one value to the next.
    pub step_s: u32,
    /// `Moment::tick` of the last value.
    pub tick: u64,
    /// When that was, milliseconds since 1970.
    pub time_ms: u64,
    /// All responders together.
    pub total: LoadHistory,
    /// Answers a second by attribute and method.
    pub types: Vec<TypeHistory>,
    /// Requests dropped a second by reason.
    pub drops: Vec<DropHistory>,
    /// Each responder.
    pub responders: Vec<ResponderHistory>,
}

/// What responders had to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadHistory {
    /// Answers a second.
    pub answers_per_s: Vec<Option<f32>>,
    /// Requests a second that were not answered.
    pub dropped_per_s: Vec<Option<f32>>,
    /// Requests under way.
    pub in_flight: Vec<Option<f32>>,
    /// Latencies, µs; of a minute the largest of its seconds.
    pub p50_us: Vec<Option<f32>>,
    /// See above.
    pub p99_us: Vec<Option<f32>>,
    /// See above.
    pub p999_us: Vec<Option<f32>>,
    /// Lag, ms; of a minute the largest of its seconds.
    pub lag_ms: Vec<Option<f32>>,
}

/// Answers of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TypeHistory {
    /// As in [`TypeRate`]; `other` for all types beyond the first 15.
    pub attribute: String,
    /// As in [`TypeRate`].
    pub method: String,
    /// Answers a second.
    pub per_s: Vec<Option<f32>>,
}

/// Requests dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DropHistory {
    /// As in [`DropRate`].
    pub reason: String,
    /// Requests a second.
    pub per_s: Vec<Option<f32>>,
}

/// One responder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResponderHistory {
    /// As in [`ResponderNow`].
    pub id: String,
    /// As in [`ResponderNow`].
    pub name: String,
    /// What it had to do.
    pub load: LoadHistory,
}

/// A sweep that ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Number, from 1.
    pub number: u64,
    /// When it ended, milliseconds since 1970.
    pub ended_ms: u64,
    /// `full`, or `partial`: only what changed was read again.
    pub kind: String,
    /// Why it was made, in words.
    pub reason: String,
    /// Its phases in order, and how long each took.
    pub phases: Vec<PhaseTime>,
    /// How long it took.
    pub duration_ms: f64,
    /// SMPs sent, repetitions included.
    pub smps: u64,
    /// Whether the fabric is programmed, but for the errors.
    pub up: bool,
    /// Things that could not be found out or set.
    pub errors: u64,
    /// The first of them in words.
    pub faults: Vec<String>,
    /// The ports that they concern, the first of them.
    pub fault_ports: Vec<FaultPort>,
    /// Nodes that came and went.
    pub appeared: u64,
    /// See above.
    pub vanished: u64,
    /// Blocks of forwarding tables written.
    pub lft_blocks_set: u64,
    /// Links behind which nobody answers.
    pub unanswered: u64,
    /// Size of the fabric.
    pub switches: u64,
    /// See above.
    pub hosts: u64,
    /// See above.
    pub links: u64,
}

/// A phase of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name.
    pub phase: String,
    /// How long it took.
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

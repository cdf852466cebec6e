//! The counters that the performance manager read, for metrics, `ibsmctl` and problems.
//!
//! [`PerfBoard`] is shared by the thread that drives the performance manager (`runtime::perf`), by
//! HTTP and by gRPC. The lock is held for a batch of packets or for the ports of a few nodes. What
//! is not here: which query is sent when (`sm_core::perf`).

mod counts;
pub(crate) mod exposition;
pub(crate) mod growths;
pub(crate) mod listing;
pub mod loads;
mod series;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, PortNum};
use sa_proto::quota::Quota;
use sa_proto::snapshot::Node;
use sm_core::perf::{Counter, PerfManager, PortView};

use crate::observe::node_name;
use crate::observe::problem::{Condition, Kind, Subject};
use counts::NodeCounts;
use growths::GrowthFeed;
use loads::Loads;
use series::{NodeRates, Series};

/// Errors between two readings of a port from which on it is a problem: a few symbol errors are
/// usual after a link was trained.
const FAULTS_MIN: u32 = 10;
/// How long a port is listed as a problem after its errors last grew so: alerts and people see a
/// burst, too.
const HELD: Duration = Duration::from_secs(300);
/// Limit of ports listed as problems, those with the most errors; the others are in metrics.
const FAULTY_PORTS_MAX: usize = 256;
/// The same of one node, so that it does not hide the others.
const NODE_FAULTY_PORTS_MAX: usize = 16;
/// Limit of nodes that one request names.
pub(crate) const NAMES_MAX: usize = 64;

/// The counters, and what is passed between the threads that use them.
#[derive(Default)]
pub struct PerfBoard {
    /// `None` unless `perfmgr` is on.
    manager: Mutex<Option<PerfManager>>,
    /// Nodes as this SM, which is not master, discovered them.
    discovered: Mutex<Option<Vec<Arc<Node>>>>,
    /// Ports whose errors grew lately.
    faulty: Mutex<Faulty>,
    /// Loads of links in the last sweep.
    loads: Mutex<Arc<Loads>>,
    /// Rates of ports in the last sweeps.
    series: Mutex<Series>,
    /// Growth of counters, for those that follow it.
    growths: Arc<GrowthFeed>,
}

/// Ports whose errors grew lately.
#[derive(Default)]
struct Faulty {
    ports: BTreeMap<(Guid, PortNum), FaultyPort>,
    /// Number of further ones.
    unlisted: usize,
}

#[derive(Clone)]
struct FaultyPort {
    /// When its errors last grew, and by how many.
    at: Instant,
    errors: u32,
    condition: Condition,
}

impl PerfBoard {
    /// Begins; [`with`](Self::with) uses this manager.
    pub(crate) fn install(&self, manager: PerfManager) {
        *self.manager.lock().unwrap_or_else(PoisonError::into_inner) = Some(manager);
    }

    /// Uses the manager; `None` if counters are not read.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut PerfManager) -> R) -> Option<R> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(use_it)
    }

    /// Whether counters are read.
    pub(crate) fn is_on(&self) -> bool {
        self.with(|_| ()).is_some()
    }

    /// Growth of counters, for those that follow it.
    pub(crate) fn growths(&self) -> Arc<GrowthFeed> {
        self.growths.clone()
    }

    /// Offers the nodes that a standby discovered.
    pub(crate) fn offer_discovered(&self, nodes: Vec<Arc<Node>>) {
        *self.discovered.lock().unwrap_or_else(PoisonError::into_inner) = Some(nodes);
    }

    /// Takes the nodes that a standby discovered.
    pub(crate) fn take_discovered(&self) -> Option<Vec<Arc<Node>>> {
        self.discovered.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The ports whose errors grew within five minutes, unless they were cleared.
    pub(crate) fn conditions(&self, now: Instant) -> Vec<Condition> {
        let faulty = self.faulty.lock().unwrap_or_else(PoisonError::into_inner);
        let held = faulty.ports.values().filter(|port| is_held(now, port.at));
        let mut conditions: Vec<Condition> = held.map(|port| port.condition.clone()).collect();
        if faulty.unlisted > 0 {
            let detail = format!(
                "{} further ports have errors; {FAULTY_PORTS_MAX} are listed, \
                 {NODE_FAULTY_PORTS_MAX} of one node, with the most errors",
                faulty.unlisted
            );
            let condition = Condition::new(Kind::PortErrors, Subject::subnet(), detail);
            conditions.push(condition.with_remedy("list them with ibsmctl perf --errors"));
        }
        conditions
    }

    /// Loads of links in the last sweep.
    pub(crate) fn loads(&self) -> Arc<Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Rates of a node's ports in the last sweeps; `None` if counters are not read.
    pub(crate) fn rates_of(&self, guid: Guid) -> Option<NodeRates> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(|manager| series.of_node(manager, guid))
    }

    /// The counters of a node's ports; `None` if counters are not read.
    pub(crate) fn counts_of(&self, guid: Guid) -> Option<NodeCounts> {
        self.with(|manager| NodeCounts::of(manager, guid))
    }

    /// Takes the rates of the sweep that ended. `time_ms`: milliseconds since 1970.
    pub(crate) fn record(&self, time_ms: u64) {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let loads = self.with(|manager| {
            series.record(manager, time_ms);
            Loads::of(manager, time_ms)
        });
        drop(series);
        let Some(loads) = loads else { return };
        *self.loads.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(loads);
    }

    /// Directions of links, and ports, beyond the limits of what is remembered of rates.
    pub(crate) fn unlisted(&self) -> (usize, usize) {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        (self.loads().unlisted, series.unlisted())
    }

    /// Clears the counters of the nodes that `takes` selects: the number of ports; `None` if
    /// counters are not read.
    pub(crate) fn clear(&self, now: Instant, takes: impl Fn(&Node) -> bool) -> Option<usize> {
        let cleared = self.with(|manager| manager.clear_totals(now, takes));
        self.find_faulty(now);
        cleared
    }

    /// Finds the ports with errors, after a sweep or when counters were cleared.
    pub(crate) fn find_faulty(&self, now: Instant) {
        let mut faulty = self.faulty.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *faulty);
        self.with(|manager| {
            let (listed, unlisted) = worst(candidates(manager, &before.ports, now));
            for ((guid, number), at, errors) in listed {
                let known = before.ports.get(&(guid, number));
                let condition = match known.filter(|known| at == known.at) {
                    Some(known) => Some(known.condition.clone()),
                    None => manager.port(guid, number).map(|port| condition(manager, &port)),
                };
                let port = condition.map(|condition| FaultyPort { at, errors, condition });
                faulty.ports.extend(port.map(|port| ((guid, number), port)));
            }
            faulty.unlisted = unlisted;
        });
    }
}

/// A port with errors, when they last grew, and by how many.
type Candidate = ((Guid, PortNum), Instant, u32);

/// The ports whose errors grew, or grew lately and were not cleared.
fn candidates(
    manager: &PerfManager,
    before: &BTreeMap<(Guid, PortNum), FaultyPort>,
    now: Instant,
) -> Vec<Candidate> {
    let ports = (0..manager.node_count()).flat_map(|at| manager.ports_of(at));
    let of_port = |port: PortView<'_>| {
        let key = (port.node.guid, port.number);
        let errors = port.counts.recent_faults;
        let known = before.get(&key).filter(|known| is_held(now, known.at));
        match known {
            _ if errors >= FAULTS_MIN => Some((key, now, errors)),
            Some(known) if has_faults(&port) => Some((key, known.at, known.errors)),
            _ => None,
        }
    };
    ports.filter_map(of_port).collect()
}

/// Those with the most errors within the limits, and the number of the others.
fn worst(mut all: Vec<Candidate>) -> (Vec<Candidate>, usize) {
    all.sort_unstable_by_key(|&(key, _, errors)| (Reverse(errors), key));
    let count = all.len();
    let mut listed = Quota::new(FAULTY_PORTS_MAX, NODE_FAULTY_PORTS_MAX);
    all.retain(|&((guid, _), ..)| listed.take(guid).is_ok());
    let unlisted = count - all.len();
    (all, unlisted)
}

fn is_held(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) < HELD
}

/// Whether its counters were not cleared.
fn has_faults(port: &PortView<'_>) -> bool {
    Counter::ALL.iter().any(|at| at.is_fault() && port.counts.total(*at) > 0)
}

fn condition(manager: &PerfManager, port: &PortView<'_>) -> Condition {
    let (counts, node) = (port.counts, port.node);
    let faults = Counter::ALL.iter().filter(|at| at.is_fault() && counts.total(**at) > 0);
    let totals: Vec<String> =
        faults.map(|&at| format!("{} {}", at.name(), counts.total(at))).collect();
    let (errors, seconds) = (counts.recent_faults, counts.recent_faults_s);
    let to = peer(manager, node, port.number).map_or_else(String::new, |(far, number)| {
        format!("; its link leads to '{far}' port {number}")
    });
    let totals = totals.join(", ");
    let detail = format!("its counters show {errors} errors in {seconds} s (totals: {totals}){to}");
    Condition::new(Kind::PortErrors, Subject::port(node_name(node), node.guid, port.number), detail)
}

/// Which nodes are selected: those with one of some names or GUIDs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Names, or first words of names.
    names: HashSet<String>,
    /// Those of the names that can be GUIDs.
    guids: HashSet<Guid>,
    /// Switches only.
    pub(crate) switches: bool,
}

impl Selection {
    /// The nodes of a list with commas; all if there is none. The reason if it is too long.
    pub(crate) fn of_list(nodes: Option<&str>) -> Result<Self, String> {
        let mut selection = Self::default();
        let listed = nodes.iter().flat_map(|nodes| nodes.split(','));
        for node in listed.filter(|node| !node.is_empty()) {
            selection.add(node);
            if selection.names.len() > NAMES_MAX {
                return Err(format!("'nodes' has more than {NAMES_MAX} names: ask several times"));
            }
        }
        Ok(selection)
    }

    /// The nodes with this name or GUID; all if it is empty.
    pub(crate) fn of_node(node: &str) -> Self {
        let mut selection = Self::default();
        if !node.is_empty() {
            selection.add(node);
        }
        selection
    }

    fn add(&mut self, node: &str) {
        self.guids.extend(node.parse::<Guid>());
        self.names.insert(node.to_owned());
    }

    pub(crate) fn takes(&self, node: &Node) -> bool {
        self.takes_named(node.guid, node.switch_info.is_some(), || node_name(node))
    }

    /// Whether a node with this name is selected.
    pub(crate) fn takes_named(
        &self,
        guid: Guid,
        is_switch: bool,
        name: impl FnOnce() -> String,
    ) -> bool {
        if self.switches && !is_switch {
            return false;
        }
        if self.names.is_empty() || self.guids.contains(&guid) {
            return true;
        }
        let name = name();
        // Adapters have theirs behind the name of the host.
        let short = name.split_whitespace().next().unwrap_or(&name);
        self.names.contains(&name) || self.names.contains(short)
    }

    /// Whether all nodes are selected.
    fn is_of_all(&self) -> bool {
        self.names.is_empty() && !self.switches
    }
}

/// Name and port of the far end; nothing if there is none.
pub(crate) fn peer(manager: &PerfManager, node: &Node, port: PortNum) -> Option<(String, PortNum)> {
    let (guid, number) = node.port(port)?.peer?;
    let name = manager.node(guid).map_or_else(|| guid.to_string(), |node| node_name(node));
    Some((name, number))
}

//! Congestion control as operators see it: settings, logs, problems.
//!
//! [`CongestionBoard`] is shared by the thread that drives the manager (`runtime::congestion`), by
//! gRPC and by metrics. The lock is held for a batch of packets or for a few agents. What is not
//! here: which request is sent when (`sm_core::congestion`).

pub(crate) mod listing;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::congestion as cc;
use ib_mad::wire::mad::{AttributeId, Status};
use sa_proto::quota::Quota;
use sa_proto::snapshot::Node;
use sm_core::congestion::log::{Flow, PortMarks};
use sm_core::congestion::{AgentView, CongestionManager, State};

use crate::observe::node_name;
use crate::observe::problem::{Condition, Kind, Subject};

/// Limit of agents listed as problems, by kind, and of hot spots; metrics count all agents.
const LISTED_MAX: usize = 64;
/// The same of one node, so that it does not hide the others.
const NODE_LISTED_MAX: usize = 8;

/// The manager, and what is passed between the threads that use it.
#[derive(Default)]
pub struct CongestionBoard {
    /// `None` before the thread has started.
    manager: Mutex<Option<CongestionManager>>,
    /// What was wrong after the last cycle.
    conditions: Mutex<Vec<Condition>>,
}

impl CongestionBoard {
    /// Begins; [`with`](Self::with) uses this manager.
    pub(crate) fn install(&self, manager: CongestionManager) {
        *self.manager.lock().unwrap_or_else(PoisonError::into_inner) = Some(manager);
    }

    /// Uses the manager; `None` if there is none.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut CongestionManager) -> R) -> Option<R> {
        self.manager.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(use_it)
    }

    /// What was wrong after the last cycle.
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        self.conditions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Finds what is wrong.
    pub(crate) fn find_problems(&self) {
        let found = self.with(|manager| conditions(manager)).unwrap_or_default();
        *self.conditions.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

fn conditions(manager: &CongestionManager) -> Vec<Condition> {
    let mut found = Vec::new();
    let listed = || Quota::new(LISTED_MAX, NODE_LISTED_MAX);
    let (mut keys, mut settings, mut listed_spots) = (listed(), listed(), listed());
    let mut spots = Vec::new();
    for view in manager.agents() {
        let guid = view.node.guid;
        let subject = || Subject::port(node_name(view.node), guid, view.agent.port);
        match view.agent.state {
            State::KeyRefused if keys.take(guid).is_ok() => {
                let detail = "has another CC_Key: its congestion settings cannot be read or set";
                found.push(Condition::new(Kind::CcKeyRefused, subject(), detail));
            }
            State::SettingRefused(attribute, status) if settings.take(guid).is_ok() => {
                let detail = refusal(attribute, status);
                found.push(Condition::new(Kind::CongestionSetting, subject(), detail));
            }
            _ => {}
        }
        let hot = view.agent.log.ports.iter().filter(|port| port.is_hot());
        spots.extend(hot.enumerate().map(|(rank, port)| (rank, view, port)));
    }
    // The first of each node before the second of any.
    spots.sort_by_key(|(rank, ..)| *rank);
    for (_, view, port) in spots {
        if listed_spots.take(view.node.guid).is_ok() {
            found.push(hot_spot(manager, view, port));
        }
    }
    found
}

/// What an agent did not take.
pub(crate) fn refusal(attribute: AttributeId, status: Status) -> String {
    let name = cc::name(attribute).unwrap_or("an attribute");
    match status {
        Status::OK => format!("keeps other values of {name} than it is given"),
        status => format!("refuses {name}: {status}"),
    }
}

fn hot_spot(manager: &CongestionManager, view: AgentView<'_>, port: &PortMarks) -> Condition {
    let mut detail =
        format!("marked packets as congested in each of the last {} readings", port.in_a_row);
    if let Some((flow, _)) = view.agent.log.flows.first() {
        let (from, to) = ends(manager, flow);
        detail += &format!("; most often the switch marked those from {from} to {to}");
    }
    let subject = Subject::port(node_name(view.node), view.node.guid, port.port);
    Condition::new(Kind::CongestionHotSpot, subject, detail)
}

/// Names of the ends of a flow.
pub(crate) fn ends(manager: &CongestionManager, flow: &Flow) -> (String, String) {
    let name = |lid: Lid| match manager.port_of(lid) {
        Some((node, _)) => format!("'{}'", node_name(node)),
        None => format!("LID {lid}"),
    };
    (name(flow.slid), name(flow.dlid))
}

/// Name and port of the far end; nothing if there is none.
fn peer(manager: &CongestionManager, node: &Node, port: PortNum) -> Option<(String, PortNum)> {
    let (guid, number) = node.port(port)?.peer?;
    let name = manager.node(guid).map_or_else(|| guid.to_string(), |node| node_name(node));
    Some((name, number))
}

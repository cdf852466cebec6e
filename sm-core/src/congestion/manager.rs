//! The state machine: cycles over all agents.
//!
//! A cycle asks each agent that has something to be compared, and each for its log if that is due;
//! of one agent, one request is outstanding at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::packet::{Address, Packet};
use ib_mad::transaction::Transactions;
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo, PortState};
use ib_mad::wire::congestion as cc;
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, Status};
use sa_proto::snapshot::Node;

use super::agent::{Agent, State};
use super::requests::Query;
use super::settings::CongestionSettings;
use crate::querier::Querier;

/// Upper limit of `cc_max_outstanding_mads`, the number of requests outstanding at once.
pub const OUTSTANDING_MAX: usize = 65_536;
/// Limit of events that wait to be polled; further ones are counted and dropped.
const EVENTS_MAX: usize = 4096;
/// Every so many readings of logs, all settings are compared again, and silent agents tried again.
const VERIFY_EVERY: u64 = 8;
/// Least time between the beginnings of two cycles.
const CYCLE_MIN: Duration = Duration::from_secs(1);

/// An event about an agent.
#[derive(Clone, Debug)]
pub struct CongestionEvent {
    /// The node.
    pub node: Arc<Node>,
    /// The port; 0 of a switch.
    pub port: PortNum,
    /// What happened.
    pub what: Happened,
}

/// What happened at an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It has another CC_Key.
    KeyRefused,
    /// It did not take an attribute, with this status; [`Status::OK`] if it answered with other
    /// values.
    SettingRefused(AttributeId, Status),
    /// It did not answer.
    Silent,
}

/// Figures; totals are since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CongestionStatus {
    /// Whether it is on, and this SM is to do it.
    pub is_active: bool,
    /// Cycles that ended.
    pub cycles: u64,
    /// Duration of the last.
    pub last_cycle: Duration,
    /// Agents: a switch has one, a channel adapter one per port.
    pub agents: usize,
    /// Those with the wanted settings.
    pub ready: usize,
    /// Those that do not support the class.
    pub unsupported: usize,
    /// Those that do not answer.
    pub silent: usize,
    /// Those with another CC_Key.
    pub key_refused: usize,
    /// Those that did not take a setting.
    pub setting_refused: usize,
    /// Events in the logs of switches: packets marked.
    pub marked: u64,
    /// Events in the logs of adapters: queue pairs that reached the threshold.
    pub slowed: u64,
    /// Logs of another kind of node than their agent, and ports in logs that the switch does not
    /// have.
    pub unfit: u64,
    /// Requests outstanding.
    pub outstanding: usize,
    /// Requests sent, repeats included.
    pub sent: u64,
    /// Repeats among them.
    pub retried: u64,
    /// Set()s among the requests, without repeats.
    pub written: u64,
    /// Requests without an answer.
    pub expired: u64,
    /// Answers with an error status.
    pub refused: u64,
    /// Answers that match no request.
    pub unmatched: u64,
    /// Events dropped because too many waited.
    pub events_dropped: u64,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Ask {
    agent: u32,
    query: Query,
}

/// An agent with its node.
#[derive(Clone, Copy)]
pub struct AgentView<'a> {
    /// The node's row in the snapshot.
    pub node: &'a Arc<Node>,
    /// What is known about the agent.
    pub agent: &'a Agent,
}

/// The manager of congestion control; see the [module](super).
pub struct CongestionManager {
    settings: CongestionSettings,
    nodes: Vec<Arc<Node>>,
    agents: Vec<Agent>,
    /// First and last LID of each agent's port, ascending, with the agent's index.
    lids: Vec<(Lid, Lid, u32)>,
    /// Nodes to use from the next cycle on.
    new_nodes: Option<Vec<Arc<Node>>>,
    /// Settings to use from the next cycle on.
    new_settings: Option<CongestionSettings>,
    transactions: Transactions<Ask>,
    ready: VecDeque<Ask>,
    cycle_began: Option<Instant>,
    cycle_due: Option<Instant>,
    logs_due: Option<Instant>,
    /// The cycle under way reads logs.
    reads_logs: bool,
    readings: u64,
    events: VecDeque<CongestionEvent>,
    status: CongestionStatus,
}

impl CongestionManager {
    /// A manager without nodes. `seed`: as for [`Transactions::new`].
    pub fn new(settings: CongestionSettings, seed: u32) -> Self {
        let outstanding = settings.outstanding_max.clamp(1, OUTSTANDING_MAX);
        Self {
            transactions: Transactions::new(outstanding, seed),
            settings,
            nodes: Vec::new(),
            agents: Vec::new(),
            lids: Vec::new(),
            new_nodes: None,
            new_settings: None,
            ready: VecDeque::new(),
            cycle_began: None,
            cycle_due: None,
            logs_due: None,
            reads_logs: false,
            readings: 0,
            events: VecDeque::new(),
            status: CongestionStatus::default(),
        }
    }

    /// Uses other settings from the next cycle on, which compares them with those of all agents;
    /// at once while there are no nodes.
    /// `outstanding_max` stays as it was.
    pub fn set_settings(&mut self, now: Instant, settings: CongestionSettings) {
        if self.new_settings.as_ref().unwrap_or(&self.settings) == &settings {
            return;
        }
        if self.nodes.is_empty() && self.cycle_began.is_none() {
            self.new_settings = None;
            return self.replace_settings(settings);
        }
        self.new_settings = Some(settings);
        self.cycle_due = Some(now);
    }

    /// Sets the nodes of the fabric, ascending by GUID, from the next cycle on, which compares the
    /// settings of those that changed.
    pub fn set_nodes(&mut self, now: Instant, nodes: Vec<Arc<Node>>) {
        self.new_nodes = Some(nodes);
        self.cycle_due = Some(now);
    }

    /// Forgets all nodes at once, and sends nothing more: another SM is master.
    pub fn stand_by(&mut self) {
        self.transactions.cancel_all().for_each(drop);
        self.ready.clear();
        (self.nodes, self.agents, self.new_nodes) = (Vec::new(), Vec::new(), None);
        self.lids.clear();
        (self.cycle_began, self.cycle_due, self.logs_due) = (None, None, None);
        if let Some(settings) = self.new_settings.take() {
            self.replace_settings(settings);
        }
    }

    /// The agents, ascending by GUID of the node, then by port.
    pub fn agents(&self) -> impl Iterator<Item = AgentView<'_>> {
        let nodes = &self.nodes;
        self.agents.iter().map(|agent| AgentView { node: &nodes[agent.node as usize], agent })
    }

    /// The row of a node.
    pub fn node(&self, guid: Guid) -> Option<&Arc<Node>> {
        let at = self.nodes.binary_search_by_key(&guid, |node| node.guid).ok()?;
        Some(&self.nodes[at])
    }

    /// The node whose port has a LID, and that port.
    pub fn port_of(&self, lid: Lid) -> Option<(&Arc<Node>, PortNum)> {
        let after = self.lids.partition_point(|(first, ..)| *first <= lid);
        let (_, last, index) = *self.lids[..after].last()?;
        let found = &self.agents[index as usize];
        (lid <= last).then_some((&self.nodes[found.node as usize], found.port))
    }

    /// The settings in use.
    pub fn settings(&self) -> &CongestionSettings {
        &self.settings
    }

    /// Number of cycles that ended.
    pub fn cycles(&self) -> u64 {
        self.status.cycles
    }

    /// Figures.
    pub fn status(&self) -> CongestionStatus {
        let counters = self.transactions.counters();
        let mut status = CongestionStatus {
            is_active: self.settings.is_on && !self.nodes.is_empty(),
            agents: self.agents.len(),
            outstanding: self.transactions.outstanding(),
            sent: counters.transmitted,
            retried: counters.retried,
            expired: counters.expired,
            unmatched: self.status.unmatched + counters.unmatched,
            ..self.status
        };
        for agent in &self.agents {
            match agent.state {
                State::Unknown => {}
                State::Ready => status.ready += 1,
                State::Unsupported => status.unsupported += 1,
                State::Silent => status.silent += 1,
                State::KeyRefused => status.key_refused += 1,
                State::SettingRefused(..) => status.setting_refused += 1,
            }
        }
        status
    }

    fn next_cycle(&self) -> Option<Instant> {
        [self.cycle_due, self.logs_due].into_iter().flatten().min()
    }

    fn packet(&self, tid: u32, ask: Ask) -> Packet {
        let agent = &self.agents[ask.agent as usize];
        let payload = agent.payload(&self.settings, ask.query);
        let mad = ask.query.write(tid, agent.is_switch, agent.key, &payload);
        let address = Address { sl: self.settings.sl, ..Address::gsi(agent.lid) };
        let mut packet = Packet::new(mad, address);
        let timeout = self.settings.timeout.as_millis();
        packet.carrier.answer_timeout_ms = u32::try_from(timeout).unwrap_or(u32::MAX);
        packet
    }

    /// Continues with an agent's next request, or is done with it in this cycle.
    fn go_on(&mut self, now: Instant, done: Ask, next: Option<Query>) {
        match next {
            Some(query) => self.ready.push_back(Ask { query, ..done }),
            None => {
                self.note_end(done.agent);
                self.end_cycle_if_done(now);
            }
        }
    }

    /// Reports the state that an agent was left in, if that is new.
    fn note_end(&mut self, index: u32) {
        let agent = &mut self.agents[index as usize];
        if std::mem::replace(&mut agent.reported, agent.state) == agent.state {
            return;
        }
        let what = match agent.state {
            State::KeyRefused => Happened::KeyRefused,
            State::SettingRefused(attribute, status) => Happened::SettingRefused(attribute, status),
            State::Silent => Happened::Silent,
            State::Unknown | State::Ready | State::Unsupported => return,
        };
        if self.events.len() >= EVENTS_MAX {
            self.status.events_dropped += 1;
            return;
        }
        let node = self.nodes[agent.node as usize].clone();
        self.events.push_back(CongestionEvent { node, port: agent.port, what });
    }

    // --- Cycles.

    fn begin_cycle(&mut self, now: Instant) {
        if let Some(settings) = self.new_settings.take() {
            self.replace_settings(settings);
        }
        if let Some(nodes) = self.new_nodes.take() {
            self.replace_nodes(nodes);
        }
        self.cycle_due = None;
        if !self.settings.is_on || self.nodes.is_empty() {
            self.logs_due = None;
            return;
        }
        self.reads_logs = self.logs_due.is_none_or(|due| now >= due);
        if self.reads_logs {
            self.logs_due = Some(now + self.settings.interval);
            self.readings += 1;
            if self.readings.is_multiple_of(VERIFY_EVERY) {
                self.agents.iter_mut().for_each(Agent::look_again);
            }
        }
        self.cycle_began = Some(now);
        for (index, agent) in (0..).zip(&self.agents) {
            if let Some(query) = agent.first(self.reads_logs) {
                self.ready.push_back(Ask { agent: index, query });
            }
        }
        self.end_cycle_if_done(now);
    }

    fn end_cycle_if_done(&mut self, now: Instant) {
        let is_done = self.ready.is_empty() && self.transactions.outstanding() == 0;
        let Some(began) = self.cycle_began.filter(|_| is_done) else { return };
        self.cycle_began = None;
        self.status.cycles += 1;
        self.status.last_cycle = now.saturating_duration_since(began);
        // Nodes that change all the time must not keep it busy.
        self.cycle_due = self.cycle_due.map(|due| due.max(began + CYCLE_MIN));
    }

    fn replace_settings(&mut self, settings: CongestionSettings) {
        let old = std::mem::replace(&mut self.settings, settings);
        for agent in &mut self.agents {
            agent.start_over();
            // A key that was written is needed to write the next one.
            if old.protection.is_none() {
                agent.key = self.settings.key;
            }
        }
        if old.interval != self.settings.interval || !old.is_on {
            self.logs_due = None;
        }
    }

    fn replace_nodes(&mut self, rows: Vec<Arc<Node>>) {
        let old_nodes = std::mem::replace(&mut self.nodes, rows);
        let mut old: HashMap<(Guid, PortNum), Agent> = std::mem::take(&mut self.agents)
            .into_iter()
            .map(|agent| ((old_nodes[agent.node as usize].guid, agent.port), agent))
            .collect();
        self.lids.clear();
        for index in 0..self.nodes.len() {
            let row = self.nodes[index].clone();
            let before = old_nodes.binary_search_by_key(&row.guid, |node| node.guid);
            let is_same = before.is_ok_and(|at| Arc::ptr_eq(&old_nodes[at], &row));
            for mut agent in self.agents_of(index as u32, &row) {
                if let Some(known) = old.remove(&(row.guid, agent.port))
                    && known.lid == agent.lid
                {
                    agent.inherit(known, is_same);
                }
                let lmc = row.port(agent.port).map_or(0, |port| PortInfo::of(&port.info).lmc());
                let last = agent.lid.0.saturating_add((1 << lmc) - 1);
                self.lids.push((agent.lid, Lid(last), self.agents.len() as u32));
                self.agents.push(agent);
            }
        }
        self.lids.sort_unstable();
    }

    /// The agents of a node: of a switch one, of a channel adapter one per active port.
    fn agents_of(&self, index: u32, row: &Node) -> Vec<Agent> {
        let key = self.settings.key;
        if row.switch_info.is_some() {
            let lid = row.ports.first().map(|port| PortInfo::of(&port.info).base_lid());
            let Some(lid) = lid.filter(|lid| lid.is_unicast()) else { return Vec::new() };
            let is_host = |port: &&sa_proto::snapshot::Port| {
                let peer = port.peer.and_then(|(guid, _)| self.node(guid));
                peer.is_some_and(|peer| peer.switch_info.is_none())
            };
            let host_ports = row.ports.iter().filter(is_host).map(|port| port.num).collect();
            let last_port = NodeInfo::of(&row.info).num_ports();
            return vec![Agent::new(index, PortNum(0), lid, key).of_switch(last_port, host_ports)];
        }
        if NodeInfo::of(&row.info).node_type() != NodeType::Ca.code() {
            return Vec::new();
        }
        let ports = row.ports.iter().filter_map(|port| {
            let info = PortInfo::of(&port.info);
            let is_up = info.port_state() == PortState::Active.code();
            let lid = info.base_lid();
            (is_up && lid.is_unicast()).then(|| Agent::new(index, port.num, lid, key))
        });
        ports.collect()
    }
}

impl Querier for CongestionManager {
    type Event = CongestionEvent;

    fn poll_event(&mut self) -> Option<CongestionEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let is_idle = self.cycle_began.is_none();
        let cycle = self.next_cycle().filter(|_| is_idle);
        [cycle, self.transactions.poll_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.transactions.handle_timeout(now);
        while let Some((_, ask)) = self.transactions.poll_expired() {
            let next = self.agents[ask.agent as usize].silent(ask.query);
            self.go_on(now, ask, next);
        }
        if self.cycle_began.is_none() && self.next_cycle().is_some_and(|due| now >= due) {
            self.begin_cycle(now);
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        loop {
            if let Some((tid, &mut ask)) = self.transactions.poll_transmit(now) {
                return Some(self.packet(tid, ask));
            }
            if self.transactions.room() == 0 {
                return None;
            }
            let ask = self.ready.pop_front()?;
            self.status.written += u64::from(ask.query.is_set());
            let (timeout, retries) = (self.settings.timeout, self.settings.retries);
            // There is room.
            let _ = self.transactions.start(ask, timeout, retries);
        }
    }

    fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        let header = MadHeader::of(&packet.mad);
        if packet.carrier.undelivered != 0 {
            return;
        }
        let (tid, status) = (header.tid(), header.status());
        let is_answer = header.mgmt_class() == cc::CLASS && header.method() == Method::GET_RESP;
        let expected = self.transactions.get(tid).copied().filter(|ask| {
            let agent = &self.agents[ask.agent as usize];
            is_answer
                && header.attribute_id() == ask.query.attribute(agent.is_switch)
                && packet.address.lid == agent.lid
        });
        let Some(ask) = expected else {
            self.status.unmatched += 1;
            return;
        };
        self.transactions.handle_response(tid);
        let agent = &mut self.agents[ask.agent as usize];
        let next = match status {
            Status::OK => {
                let (events, unfit) = (agent.log.events, agent.log.unfit);
                let next = agent.answered(&self.settings, ask.query, &packet.mad, self.reads_logs);
                let grown = agent.log.events - events;
                self.status.unfit += agent.log.unfit - unfit;
                match agent.is_switch {
                    true => self.status.marked += grown,
                    false => self.status.slowed += grown,
                }
                next
            }
            status => {
                self.status.refused += 1;
                agent.refused(&self.settings, ask.query, status, self.reads_logs)
            }
        };
        self.go_on(now, ask, next);
    }
}

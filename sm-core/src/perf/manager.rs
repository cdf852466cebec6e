//! The state machine: which query is sent when, and what follows from its answer.

mod answers;
mod glance;
mod nodes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::querier::Querier;
use ib_mad::packet::{Address, Packet};
use ib_mad::transaction::Transactions;
use ib_mad::types::{Guid, Lid, PKey, PortNum, Qpn, Sl};
use ib_mad::wire::mad::{MadHeader, Method, MgmtClass, Status};
use sa_proto::snapshot::Node;
use sm_config::Settings;

use super::agent::{Agent, Step, Support, Unsupported};
use super::queries::{Query, SHORT};
use super::table::PortCounts;
use super::{Counter, Group, Growth};

/// Upper limit of `perfmgr_max_outstanding_queries`, the number of queries outstanding at once.
pub const OUTSTANDING_MAX: usize = 65_536;
/// Limit of ports of one agent that are read at the same time: agents of switches are slow.
const PORTS_AT_ONCE: u8 = 4;
/// Limit of events that wait to be polled; further ones are counted and dropped.
const EVENTS_MAX: usize = 4096;
/// A switch with fewer ports is read port by port without asking for the sums.
const SUMS_PORTS_MIN: u16 = 3;
/// Every so many sweeps, the ports of a switch are read even if nothing seems to have moved.
const FULL_EVERY: u64 = 8;
/// The counters of forward error correction are read by sweeps and glances, unless that was done
/// less than so many seconds ago.
const SPEEDS_AGE_S: u32 = 25;
/// How often one query, with its answer, is counted by the ports of a switch: entering and leaving,
/// twice.
const COUNTS_PER_QUERY: u64 = 4;
/// No port.
const NONE: u32 = u32::MAX;

/// Settings, as in `opensm.conf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfSettings {
    /// Time between the beginnings of two sweeps.
    pub sweep_time: Duration,
    /// Queries outstanding at once, at most [`OUTSTANDING_MAX`].
    pub outstanding_max: usize,
    /// Whether channel adapters and routers are left out.
    pub ignore_cas: bool,
    /// Whether nodes that left the fabric are forgotten.
    pub remove_nodes: bool,
    /// Whether ClassPortInfo is read.
    pub query_info: bool,
    /// Whether redirections are followed.
    pub follow_redirections: bool,
    /// Whether growth of error counters is an event.
    pub log_errors: bool,
    /// PortXmitWait of a sweep from which on it is an event; `None` for never.
    pub xmit_wait_threshold: Option<u32>,
    /// How long an answer is awaited before a query is repeated.
    pub timeout: Duration,
    /// How often.
    pub retries: u32,
    /// Service level of queries.
    pub sl: Sl,
    /// The PM_Key of queries; 0 for none.
    pub pm_key: u64,
}

impl PerfSettings {
    /// The settings of `opensm.conf`.
    pub fn of(settings: &Settings) -> Self {
        let outstanding = settings.perfmgr_max_outstanding_queries as usize;
        Self {
            sweep_time: Duration::from_secs(settings.perfmgr_sweep_time_s.into()),
            outstanding_max: outstanding.min(OUTSTANDING_MAX),
            ignore_cas: settings.perfmgr_ignore_cas,
            remove_nodes: settings.perfmgr_rm_nodes,
            query_info: settings.perfmgr_query_cpi,
            follow_redirections: settings.perfmgr_redir,
            log_errors: settings.perfmgr_log_errors,
            xmit_wait_threshold: settings
                .perfmgr_xmit_wait_log
                .then_some(settings.perfmgr_xmit_wait_threshold),
            timeout: Duration::from_millis(settings.transaction_timeout.into()),
            retries: settings.transaction_retries,
            sl: Sl::from_low_bits(settings.sm_sl.into()),
            pm_key: settings.pm_key,
        }
    }
}

/// An event about a port.
#[derive(Clone, Debug)]
pub struct PerfEvent {
    /// The node.
    pub node: Arc<Node>,
    /// The port; 0 for all.
    pub port: PortNum,
    /// What happened.
    pub what: Happened,
}

/// What happened at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A counter grew.
    Grew {
        /// The counter.
        counter: Counter,
        /// By how much.
        by: u64,
    },
    /// Somebody else cleared counters, or the node started again.
    Cleared,
    /// A reading found growth of counters that somebody [follows](PerfManager::follow).
    Counted(Growth),
    /// The agent did not answer.
    Silent,
    /// The agent redirects to where queries cannot be sent.
    RedirectionRefused,
}

/// Figures about the performance manager; totals are since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfStatus {
    /// Sweeps that ended.
    pub sweeps: u64,
    /// Glances at error counters that ended, between sweeps.
    pub glances: u64,
    /// Whether one is under way.
    pub sweeping: bool,
    /// Duration of the last.
    pub last_sweep: Duration,
    /// Nodes known.
    pub nodes: usize,
    /// Agents asked: a switch has one, another node one per port.
    pub agents: usize,
    /// Ports known.
    pub ports: usize,
    /// Queries outstanding.
    pub outstanding: usize,
    /// Queries sent, repeats included.
    pub sent: u64,
    /// Repeats among them.
    pub retried: u64,
    /// Answers.
    pub answered: u64,
    /// Answers that match no query.
    pub unmatched: u64,
    /// Queries without an answer.
    pub expired: u64,
    /// Answers with an error status.
    pub refused: u64,
    /// Redirections followed.
    pub redirected: u64,
    /// Redirections that were not followed.
    pub redirections_refused: u64,
    /// Switches whose ports were not read since nothing had moved.
    pub quiet: u64,
    /// Clears by this manager.
    pub clears: u64,
    /// Readings below the one before.
    pub cleared_by_others: u64,
    /// Events dropped because too many waited.
    pub events_dropped: u64,
}

struct PerfNode {
    row: Arc<Node>,
    /// Whether it is in the fabric.
    active: bool,
    first_port: u32,
    port_count: u16,
}

struct Port {
    counts: PortCounts,
    /// When data counters were read, milliseconds since the start of the manager.
    data_at_ms: u64,
    agent: u32,
    number: PortNum,
    /// Whether it was read completely before: growth is known.
    is_known: bool,
    /// Whether counters of FEC were read before.
    knows_speeds: bool,
    /// When, seconds since 1970.
    speeds_at_s: u32,
    /// Whether the link is faster than QDR: it has counters of FEC.
    is_fast: bool,
    /// Queries left in this sweep, as bits.
    pending: u16,
}

impl Port {
    /// The port while it is not read: its totals stay, its rates are unknown.
    fn unread(mut self) -> Self {
        self.agent = NONE;
        self.counts.forget_rates();
        self
    }

    /// Whether its counters of FEC are to be read, if its agent has such.
    fn wants_speeds(&self, now_s: u32) -> bool {
        let is_due = now_s.saturating_sub(self.speeds_at_s) >= SPEEDS_AGE_S;
        self.is_fast && (is_due || !self.knows_speeds)
    }
}

mod pending {
    pub(super) const LONG: u16 = 1;
    pub(super) const SHORT: u16 = 2;
    pub(super) const RCV_DETAILS: u16 = 4;
    pub(super) const XMIT_DETAILS: u16 = 8;
    pub(super) const SPEEDS: u16 = 16;
    pub(super) const CLEAR_SHORT: u16 = 32;
    pub(super) const CLEAR_RCV_DETAILS: u16 = 64;
    pub(super) const CLEAR_XMIT_DETAILS: u16 = 128;
    pub(super) const CLEAR_SPEEDS: u16 = 256;
}

/// A query under way.
#[derive(Clone, Copy, Debug)]
struct Ask {
    agent: u32,
    /// [`NONE`] for a query about the agent.
    port: u32,
    query: Query,
}

/// A port, its node and its counts.
#[derive(Clone, Copy)]
pub struct PortView<'a> {
    /// The node's row in the snapshot.
    pub node: &'a Arc<Node>,
    /// Whether the node is in the fabric.
    pub active: bool,
    /// The port's number.
    pub number: PortNum,
    /// Its counts.
    pub counts: &'a PortCounts,
    /// Whether its counters were read.
    pub is_known: bool,
}

/// An agent that redirects queries about counters.
#[derive(Clone, Copy)]
pub struct RedirectionView<'a> {
    /// The node's row in the snapshot.
    pub node: &'a Arc<Node>,
    /// The port; 0 for all of a switch.
    pub port: PortNum,
    /// Its LID.
    pub own: Lid,
    /// The LID that queries go to.
    pub lid: Lid,
    /// The queue pair.
    pub qpn: Qpn,
    /// Their P_Key.
    pub pkey: PKey,
}

/// The performance manager; see the [module](super).
pub struct PerfManager {
    settings: PerfSettings,
    started: Instant,
    /// Seconds since 1970 at `started`.
    started_s: u64,
    nodes: Vec<PerfNode>,
    ports: Vec<Port>,
    agents: Vec<Agent>,
    /// Nodes to use from the next sweep on.
    new_nodes: Option<Vec<Arc<Node>>>,
    /// Nodes that left are forgotten with the next sweep.
    forgets_inactive: bool,
    /// Sweeps are permitted.
    is_enabled: bool,
    transactions: Transactions<Ask>,
    ready_agents: VecDeque<u32>,
    ready_ports: VecDeque<u32>,
    sweep_began: Option<Instant>,
    sweep_due: Option<Instant>,
    /// The sweep under way reads every port.
    reads_all: bool,
    /// What is under way is no sweep, but a glance at error counters.
    is_glance: bool,
    glance_due: Option<Instant>,
    events: VecDeque<PerfEvent>,
    /// Groups of counters whose growth is an event, by their numbers.
    followed: [bool; Group::ALL.len()],
    status: PerfStatus,
}

impl PerfManager {
    /// A manager without nodes. `now_s`: seconds since 1970. `seed`: as for
    /// [`Transactions::new`].
    pub fn new(settings: PerfSettings, now: Instant, now_s: u64, seed: u32) -> Self {
        Self {
            transactions: Transactions::new(settings.outstanding_max.min(OUTSTANDING_MAX), seed),
            settings,
            started: now,
            started_s: now_s,
            nodes: Vec::new(),
            ports: Vec::new(),
            agents: Vec::new(),
            new_nodes: None,
            forgets_inactive: false,
            is_enabled: true,
            ready_agents: VecDeque::new(),
            ready_ports: VecDeque::new(),
            sweep_began: None,
            sweep_due: None,
            reads_all: false,
            is_glance: false,
            glance_due: None,
            events: VecDeque::new(),
            followed: [false; _],
            status: PerfStatus::default(),
        }
    }

    /// Sets the nodes of the fabric, ascending by GUID, from the next sweep on. The first call
    /// makes that due at once.
    pub fn set_nodes(&mut self, now: Instant, nodes: Vec<Arc<Node>>) {
        self.new_nodes = Some(nodes);
        self.sweep_due.get_or_insert(now);
    }

    /// Begins a sweep that reads every port, after the one under way.
    pub fn sweep_now(&mut self, now: Instant) {
        self.reads_all = true;
        self.sweep_due = Some(now);
    }

    /// Permits sweeps, or does not: one under way goes on to its end.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.is_enabled = enabled;
    }

    /// Whether sweeps are permitted.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Settings in force.
    pub fn settings(&self) -> &PerfSettings {
        &self.settings
    }

    /// Sets the time between the beginnings of two sweeps; the next is due after it.
    pub fn set_sweep_time(&mut self, now: Instant, sweep_time: Duration) {
        self.settings.sweep_time = sweep_time;
        // What is due already stays so.
        self.sweep_due = self.sweep_due.map(|due| if due <= now { due } else { now + sweep_time });
        self.glance_due = self.glance_after(now);
    }

    /// Sets whether nodes that leave the fabric are forgotten.
    pub fn set_remove_nodes(&mut self, remove: bool) {
        self.settings.remove_nodes = remove;
    }

    /// Sets whether ClassPortInfo of agents that are not known yet is read.
    pub fn set_query_info(&mut self, query: bool) {
        self.settings.query_info = query;
    }

    /// Forgets the nodes that left the fabric; returns their number. With a sweep under way, at the
    /// beginning of the next.
    pub fn forget_inactive(&mut self, now: Instant) -> usize {
        let count = self.nodes.iter().filter(|node| !node.active).count();
        self.forgets_inactive = count > 0;
        if self.sweep_began.is_none() {
            self.take_over_nodes(now);
        }
        count
    }

    /// Redirections in force.
    pub fn redirections(&self) -> impl Iterator<Item = RedirectionView<'_>> {
        self.agents.iter().filter_map(|agent| {
            let to = agent.redirection?;
            let node = &self.nodes.get(agent.node as usize)?.row;
            let is_switch = node.switch_info.is_some();
            let port = self.ports.get(agent.first_port as usize).filter(|_| !is_switch);
            let port = port.map_or(PortNum(0), |port| port.number);
            let (own, lid, qpn, pkey) = (agent.lid, to.lid, to.qpn, to.pkey);
            Some(RedirectionView { node, port, own, lid, qpn, pkey })
        })
    }

    /// Forgets the redirections of nodes that `takes` selects: the next queries ask them again.
    pub fn forget_redirections(&mut self, takes: impl Fn(&Node) -> bool) {
        for agent in &mut self.agents {
            if takes(&self.nodes[agent.node as usize].row) {
                agent.redirection = None;
            }
        }
    }

    /// Makes growth of these groups, by their numbers, an event of each port and reading from now
    /// on. The first reading of a port shows no growth.
    pub fn follow(&mut self, groups: [bool; Group::ALL.len()]) {
        self.followed = groups;
    }

    /// Sets the totals of the nodes that `takes` selects to 0; counting continues. Returns the
    /// number of ports.
    pub fn clear_totals(&mut self, now: Instant, takes: impl Fn(&Node) -> bool) -> usize {
        let now_s = self.seconds(now);
        let mut cleared = 0;
        for at in self.nodes.iter().filter(|at| takes(&at.row)) {
            for port in &mut self.ports[at.first_port as usize..][..at.port_count.into()] {
                port.counts.clear_totals(now_s);
                cleared += 1;
            }
        }
        cleared
    }

    /// The rows of the nodes known, ascending by GUID.
    pub fn rows(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().map(|node| &*node.row)
    }

    /// Number of nodes known.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The ports of the node at a position, from 0 to [`node_count`](Self::node_count), ascending
    /// by GUID.
    pub fn ports_of(&self, position: usize) -> impl Iterator<Item = PortView<'_>> {
        self.nodes.get(position).into_iter().flat_map(|node| {
            let ports = &self.ports[node.first_port as usize..][..node.port_count.into()];
            ports.iter().map(|port| PortView {
                node: &node.row,
                active: node.active,
                number: port.number,
                counts: &port.counts,
                is_known: port.is_known,
            })
        })
    }

    /// The position of the first node whose GUID is above `guid`.
    pub fn position_after(&self, guid: Guid) -> usize {
        self.nodes.partition_point(|node| node.row.guid <= guid)
    }

    /// The row of a node.
    pub fn node(&self, guid: Guid) -> Option<&Arc<Node>> {
        let at = self.nodes.binary_search_by_key(&guid, |node| node.row.guid).ok()?;
        Some(&self.nodes[at].row)
    }

    /// A port, by its node and number.
    pub fn port(&self, guid: Guid, number: PortNum) -> Option<PortView<'_>> {
        let at = self.nodes.binary_search_by_key(&guid, |node| node.row.guid).ok()?;
        self.ports_of(at).find(|port| port.number == number)
    }

    /// Figures.
    pub fn status(&self) -> PerfStatus {
        let counters = self.transactions.counters();
        PerfStatus {
            sweeping: self.sweep_began.is_some(),
            nodes: self.nodes.len(),
            agents: self.agents.len(),
            ports: self.ports.len(),
            outstanding: self.transactions.outstanding(),
            sent: counters.transmitted,
            retried: counters.retried,
            answered: counters.answered,
            unmatched: self.status.unmatched + counters.unmatched,
            expired: counters.expired,
            ..self.status
        }
    }

    /// Milliseconds since the start of the manager.
    fn millis(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started).as_millis() as u64
    }

    fn seconds(&self, now: Instant) -> u32 {
        let elapsed = now.saturating_duration_since(self.started).as_secs();
        u32::try_from(self.started_s.saturating_add(elapsed)).unwrap_or(u32::MAX)
    }

    fn destination(&self, agent: u32) -> Address {
        let agent = &self.agents[agent as usize];
        let own = Address { sl: self.settings.sl, ..Address::gsi(agent.lid) };
        agent.redirection.map_or(own, |to| Address {
            qpn: to.qpn,
            sl: to.sl,
            pkey: to.pkey,
            ..Address::gsi(to.lid)
        })
    }

    fn packet(&self, tid: u32, ask: Ask) -> Packet {
        let number = self.ports.get(ask.port as usize).map_or(PortNum(0), |port| port.number);
        let mad = ask.query.write(tid, number, self.settings.pm_key);
        let mut packet = Packet::new(mad, self.destination(ask.agent));
        let timeout = self.settings.timeout.as_millis();
        packet.carrier.answer_timeout_ms = u32::try_from(timeout).unwrap_or(u32::MAX);
        packet
    }

    // --- Sweeps.

    /// What sweeps and glances begin with.
    fn begin_reading(&mut self, now: Instant) {
        self.take_over_nodes(now);
        self.sweep_began = Some(now);
        self.glance_due = self.glance_after(now);
        // Ports that are not read, since nothing moved or nothing answers, show no new errors.
        self.ports.iter_mut().for_each(|port| port.counts.recent_faults = 0);
        self.agents.iter_mut().for_each(Agent::begin_reading);
    }

    fn begin_sweep(&mut self, now: Instant) {
        self.begin_reading(now);
        self.sweep_due = Some(now + self.settings.sweep_time);
        for (index, agent) in (0..).zip(&mut self.agents) {
            if agent.support.is_none() && !self.settings.query_info {
                agent.support = Some(Support::ASSUMED);
            }
            agent.step = match agent.support {
                None => Step::Info,
                Some(_) => first_step(agent, self.reads_all),
            };
            agent.queued = true;
            self.ready_agents.push_back(index);
        }
        self.end_sweep_if_done(now);
    }

    fn end_sweep_if_done(&mut self, now: Instant) {
        let is_done = self.ready_agents.is_empty()
            && self.ready_ports.is_empty()
            && self.transactions.outstanding() == 0;
        let Some(began) = self.sweep_began.filter(|_| is_done) else { return };
        self.sweep_began = None;
        if std::mem::take(&mut self.is_glance) {
            self.status.glances += 1;
            return;
        }
        // A demand during the sweep set the time of the next to the past.
        self.reads_all = self.sweep_due.is_some_and(|due| due < began + self.settings.sweep_time);
        self.status.sweeps += 1;
        self.status.last_sweep = now.saturating_duration_since(began);
    }

    /// Continues with an agent that has nothing under way, or one port less.
    fn requeue(&mut self, agent: u32) {
        let at = &mut self.agents[agent as usize];
        if at.step != Step::Done && !at.queued && at.in_flight < PORTS_AT_ONCE {
            at.queued = true;
            self.ready_agents.push_back(agent);
        }
    }

    fn start(&mut self, ask: Ask) {
        let (timeout, retries) = (self.settings.timeout, self.settings.retries);
        // There is room: `poll_transmit` looked.
        let _ = self.transactions.start(ask, timeout, retries);
    }

    /// Asks an agent what its step is about, or begins with its next port.
    fn ask_agent(&mut self, now: Instant, agent: u32) {
        let now_s = self.seconds(now);
        let at = &mut self.agents[agent as usize];
        let support = at.support.unwrap_or(Support::ASSUMED);
        match at.step {
            Step::Info | Step::Sums => {
                let query = match at.step {
                    Step::Info => Query::Info,
                    _ if self.is_glance && !support.additional => Query::ShortSums,
                    _ => Query::LongSums,
                };
                at.in_flight += 1;
                self.start(Ask { agent, port: NONE, query });
            }
            Step::Ports(next) if next < at.port_count => {
                at.step = Step::Ports(next + 1);
                let index = at.first_port + u32::from(next);
                let (extended, plain) = (at.may(Unsupported::EXTENDED), at.may(Unsupported::PLAIN));
                let (speeds, only_speeds) = (at.may(Unsupported::SPEEDS), at.only_speeds);
                let port = &mut self.ports[index as usize];
                let mut pending = 0;
                if port.agent == agent && !only_speeds {
                    // Error counters are there, or in the short ones.
                    if support.extended && extended && (support.additional || !self.is_glance) {
                        pending |= pending::LONG;
                    }
                    if plain && !(support.additional && extended) {
                        pending |= pending::SHORT;
                    }
                }
                let is_wanted = port.wants_speeds(now_s) || (self.reads_all && port.is_fast);
                if port.agent == agent && speeds && is_wanted {
                    pending |= pending::SPEEDS;
                }
                port.pending = pending;
                if pending != 0 {
                    at.in_flight += 1;
                    self.ready_ports.push_front(index);
                }
                self.requeue(agent);
            }
            Step::Ports(_) | Step::Done => at.step = Step::Done,
        }
        self.end_sweep_if_done(now);
    }

    /// Sends the next query about a port, or is done with it.
    fn ask_port(&mut self, now: Instant, index: u32) {
        let port = &mut self.ports[index as usize];
        let agent = port.agent;
        if port.pending == 0 {
            port.is_known |= !self.agents[agent as usize].only_speeds;
            let at = &mut self.agents[agent as usize];
            at.in_flight = at.in_flight.saturating_sub(1);
            self.requeue(agent);
            return self.end_sweep_if_done(now);
        }
        let bit = port.pending & port.pending.wrapping_neg();
        port.pending &= !bit;
        let query = match bit {
            pending::LONG => Query::Long,
            pending::SHORT => Query::Short,
            pending::RCV_DETAILS => Query::RcvDetails,
            pending::XMIT_DETAILS => Query::XmitDetails,
            pending::SPEEDS => Query::Speeds,
            pending::CLEAR_RCV_DETAILS => Query::ClearRcvDetails,
            pending::CLEAR_XMIT_DETAILS => Query::ClearXmitDetails,
            pending::CLEAR_SPEEDS => Query::ClearSpeeds,
            _ => {
                let full = |&(_, counter): &(u32, Counter)| is_nearly_full(&port.counts, counter);
                let counters = (0..).zip(SHORT).filter(full);
                Query::ClearShort(counters.fold(0, |mask, (bit, _)| mask | 1 << bit))
            }
        };
        self.start(Ask { agent, port: index, query });
    }

    /// Continues after a query that brought nothing.
    fn go_on(&mut self, now: Instant, ask: Ask) {
        if ask.port != NONE {
            return self.ask_port_later(ask.port);
        }
        let at = &mut self.agents[ask.agent as usize];
        at.in_flight = at.in_flight.saturating_sub(1);
        at.step = match at.step {
            Step::Info => {
                at.support.get_or_insert(Support::ASSUMED);
                first_step(at, self.reads_all)
            }
            Step::Sums => Step::Ports(0),
            other => other,
        };
        self.requeue(ask.agent);
        self.end_sweep_if_done(now);
    }

    /// What is left to read of a switch whose sums are as they were.
    fn leave_quiet(&mut self, now: Instant, agent: u32) {
        let now_s = self.seconds(now);
        let at = &mut self.agents[agent as usize];
        let ports = &self.ports[at.first_port as usize..][..at.port_count.into()];
        let is_wanted = |port: &Port| port.agent == agent && port.wants_speeds(now_s);
        at.only_speeds = at.may(Unsupported::SPEEDS) && ports.iter().any(is_wanted);
        at.step = if at.only_speeds { Step::Ports(0) } else { Step::Done };
    }

    /// The port's next query is sent before those of ports that have not begun.
    fn ask_port_later(&mut self, port: u32) {
        self.ready_ports.push_back(port);
    }
}

/// What a sweep asks an agent first.
fn first_step(agent: &Agent, reads_all: bool) -> Step {
    let has_sums = agent.support.is_some_and(|support| support.all_ports && support.extended)
        && agent.may(Unsupported::SUMS | Unsupported::EXTENDED)
        && agent.port_count >= SUMS_PORTS_MIN;
    if has_sums && !reads_all { Step::Sums } else { Step::Ports(0) }
}

/// Whether the last reading is at least three quarters of what the counter's field can hold.
fn is_nearly_full(counts: &PortCounts, counter: Counter) -> bool {
    let max = u64::from(counter.max());
    counts.last(counter) >= max - max / 4
}

impl Querier for PerfManager {
    type Event = PerfEvent;

    fn poll_event(&mut self) -> Option<PerfEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let next = [self.sweep_due, self.glance_due].into_iter().flatten().min();
        let sweep = next.filter(|_| self.sweep_began.is_none() && self.is_enabled);
        [sweep, self.transactions.poll_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.transactions.handle_timeout(now);
        while let Some((_, ask)) = self.transactions.poll_expired() {
            self.silent(now, ask);
        }
        let is_due = |due: Option<Instant>| due.is_some_and(|due| now >= due);
        if self.sweep_began.is_some() || !self.is_enabled {
            return;
        }
        if is_due(self.sweep_due) {
            self.begin_sweep(now);
        } else if is_due(self.glance_due) {
            self.begin_glance(now);
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
            if let Some(port) = self.ready_ports.pop_front() {
                self.ask_port(now, port);
            } else if let Some(agent) = self.ready_agents.pop_front() {
                self.agents[agent as usize].queued = false;
                self.ask_agent(now, agent);
            } else {
                return None;
            }
        }
    }

    fn handle_packet(&mut self, now: Instant, packet: &Packet) {
        let header = MadHeader::of(&packet.mad);
        if packet.carrier.undelivered != 0 {
            return;
        }
        if header.mgmt_class() != MgmtClass::PERF || header.method() != Method::GET_RESP {
            self.status.unmatched += 1;
            return;
        }
        let (tid, status) = (header.tid(), header.status());
        let expected = self.transactions.get(tid).copied().filter(|ask| {
            header.attribute_id() == ask.query.attribute()
                && packet.address.lid == self.destination(ask.agent).lid
        });
        let Some(ask) = expected else {
            self.status.unmatched += 1;
            return;
        };
        self.transactions.handle_response(tid);
        // ClassPortInfo may redirect without the status.
        let redirects = status.0 & Status::REDIRECT.0 != 0;
        match status {
            _ if redirects => self.redirect(now, ask, &packet.mad),
            Status::OK => self.answered(now, ask, &packet.mad),
            Status::UNSUPPORTED_METHOD | Status::UNSUPPORTED_METHOD_ATTRIBUTE => {
                self.unsupported(now, ask);
            }
            _ => {
                self.status.refused += 1;
                self.go_on(now, ask);
            }
        }
    }
}

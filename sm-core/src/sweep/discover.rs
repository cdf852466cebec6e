//! The walk through the fabric: what is behind each port, and what it says of itself.
//!
//! A heavy sweep begins at the SM's own node and probes every link, from both ends where both
//! belong to switches. A partial one begins at the switches that reported a change and trusts
//! links that stayed Active between nodes already known.

use std::collections::HashSet;
use std::time::Instant;

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo, PortState, SmState, SwitchInfo};
use tracing::{debug, error, info, warn};

use super::schedule::Cause;
use super::{Event, LINES_MAX, Phase, Sweep, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::pkey;
use crate::smp::{Kind, Request};

/// Ports with a link and nobody behind it that are looked at again before long.
const UNANSWERED_MAX: usize = 1024;

/// How often the delay between looks at our own port is doubled while it is down. Such a look costs
/// two SMPs.
const CUT_OFF_DOUBLINGS: u32 = 3;

/// A NodeInfo that makes sense.
pub(super) struct Answerer {
    pub(super) bytes: [u8; 40],
    pub(super) kind: NodeType,
    pub(super) guid: Guid,
    pub(super) port_guid: Guid,
    pub(super) port_count: u8,
    pub(super) local_port: PortNum,
}

impl Answerer {
    /// Checks what a node says of itself; the reason if it cannot be.
    pub(super) fn parse(data: &[u8; 64]) -> Result<Self, &'static str> {
        let mut bytes = [0; 40];
        bytes.copy_from_slice(&data[..40]);
        let info = NodeInfo::new(&bytes).map_err(|_| "NodeInfo is too short")?;
        let kind = NodeType::from_code(info.node_type()).ok_or("its NodeType is reserved")?;
        let (port_count, local_port) = (info.num_ports(), info.local_port_num());
        let (guid, port_guid) = (info.node_guid(), info.port_guid());
        if guid.0 == 0 || port_guid.0 == 0 {
            return Err("its GUID is 0");
        }
        if port_count == 0 || port_count == u8::MAX {
            return Err("its number of ports is impossible");
        }
        let first = u8::from(kind != NodeType::Switch);
        if !(first..=port_count).contains(&local_port.0) {
            return Err("it answered by a port that it does not have");
        }
        Ok(Self { bytes, kind, guid, port_guid, port_count, local_port })
    }
}

impl Sweeper {
    /// Begins to discover: everything, or from `changed` on. Of a partial discovery `suspects` are
    /// asked last, by routes that avoid what turned out to be down.
    pub(super) fn begin_discovery(
        &mut self,
        now: Instant,
        changed: Option<Vec<NodeIndex>>,
        suspects: Vec<NodeIndex>,
    ) {
        let light = std::mem::take(&mut self.sweep.report.phases);
        let full = changed.is_none();
        self.sweep = Sweep { full, suspects, ..Sweep::default() };
        self.sweep.report.full = full;
        self.sweep.report.cause = self.cause;
        self.sweep.report.first = self.first_as_master;
        if !full {
            self.sweep.report.phases = light;
        }
        self.sweep.report.smps = self.counters().transmitted;
        self.number = self.number.wrapping_add(1);
        self.enter(now, Phase::Discover);
        match changed {
            None => {
                if self.fabric.wants_compaction() {
                    self.fabric = std::mem::take(&mut self.fabric).compacted();
                    self.forget_routing();
                    self.partitions.forget();
                    self.others.clear();
                    self.master = None;
                    // Whoever waits is asked by this sweep.
                    self.reregistration.clear();
                }
                self.schedule.begin_all(now);
                self.emit(Event::Discovering);
                self.exchange.push(Request::OWN_NODE_INFO);
            }
            Some(nodes) => {
                // Should it be our own cable that was pulled, nothing else can be told.
                let home = self.fabric.home().filter(|&home| self.is_adapter_port(home));
                if let Some(home) = home {
                    self.exchange.push(Request::new(Kind::PortInfo, home));
                }
                self.visit_all(nodes);
            }
        }
    }

    fn is_adapter_port(&self, port: PortIndex) -> bool {
        self.fabric.node_of(port).switch.is_none()
    }

    fn visit_all(&mut self, nodes: Vec<NodeIndex>) {
        for node in nodes {
            if self.fabric.node(node).seen != self.number
                && let Some(port) = self.reached_by(node)
            {
                self.visit(node, port);
            }
        }
    }

    /// A port by which a known node can be asked.
    fn reached_by(&self, node: NodeIndex) -> Option<PortIndex> {
        let home = self.fabric.home();
        self.fabric
            .ports_of(node)
            .find(|&port| {
                self.fabric.node(node).switch.is_some()
                    || Some(port) == home
                    || self.fabric.port(port).peer().is_some()
            })
            .filter(|_| self.fabric.node(node).present)
    }

    pub(super) fn own_node_info(&mut self, data: &[u8; 64]) {
        let answerer = match Answerer::parse(data) {
            Ok(answerer) => answerer,
            Err(reason) => {
                return self.error(format_args!("the SM's own node cannot be used: {reason}"));
            }
        };
        let wanted = self.settings.guid;
        if wanted.0 != 0 && wanted != answerer.port_guid {
            return self.emit(Event::Fatal(format!(
                "port {wanted} (-g) is not here; the port here is {}. Leave -g out, or choose the \
                 node with --node",
                answerer.port_guid
            )));
        }
        let Some(node) = self.add(&answerer) else { return };
        let num = if answerer.kind == NodeType::Switch { PortNum(0) } else { answerer.local_port };
        let Some(home) = self.fabric.port_of(node, num) else { return };
        if self.fabric.home() != Some(home) {
            info!("running on {} port {num}, GUID {}", answerer.kind, answerer.port_guid);
        }
        self.fabric.set_home(home);
        self.fabric.port_mut(home).guid = answerer.port_guid;
        self.mastership.set_guid(answerer.port_guid);
        self.visit(node, home);
    }

    /// Something answered behind `egress`.
    pub(super) fn probe_answered(&mut self, egress: PortIndex, data: &[u8; 64]) {
        match Answerer::parse(data) {
            Ok(answerer) => self.observe(egress, &answerer),
            Err(reason) => {
                let place = self.place(egress);
                self.complain(format_args!("the node behind {place} cannot be used: {reason}"));
            }
        }
    }

    /// Takes in that the link of `egress` leads to `answerer`.
    fn observe(&mut self, egress: PortIndex, answerer: &Answerer) {
        let known = self.fabric.find(answerer.guid).filter(|&node| self.is_current(node));
        if let Some(node) = known {
            let node_is = self.fabric.node(node);
            if (node_is.kind, node_is.port_count) != (answerer.kind, answerer.port_count) {
                return self.report_different_nodes(egress, node, answerer);
            }
        }
        let Some(node) = known.or_else(|| self.add(answerer)) else { return };
        let Some(ingress) = self.fabric.port_of(node, answerer.local_port) else { return };
        if egress == ingress {
            self.sweep.left_out.insert(egress);
            let place = self.place(egress);
            return self.complain(format_args!(
                "{place} sees itself: a loop-back plug, or the node behind it has the same GUID"
            ));
        }
        if self.contradicts(egress, ingress) {
            return;
        }
        self.confirm_link(egress, ingress, answerer);
    }

    /// Whether a node is known to be there now: seen by this discovery or, in a partial one, at all.
    fn is_current(&self, node: NodeIndex) -> bool {
        let node = self.fabric.node(node);
        node.present && (node.seen == self.number || !self.sweep.full)
    }

    /// Links two ports, and visits what is new by that.
    pub(super) fn confirm_link(&mut self, egress: PortIndex, ingress: PortIndex, by: &Answerer) {
        let confirmed_before = self.is_confirmed(ingress);
        self.fabric.link(egress, ingress);
        for port in [egress, ingress] {
            self.fabric.link_seen(port, self.number);
        }
        let node = self.fabric.port(ingress).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        if !is_switch && self.fabric.port(ingress).guid != by.port_guid {
            self.fabric.port_mut(ingress).guid = by.port_guid;
        }
        let at_home = self.fabric.home().is_some_and(|home| self.fabric.port(home).node == node);
        if self.fabric.node(node).seen != self.number {
            if is_switch && !at_home {
                self.fabric.set_upstream(node, egress);
            }
            self.visit(node, ingress);
        } else if !is_switch && !confirmed_before {
            self.visit_end_port(ingress);
        }
    }

    fn is_confirmed(&self, port: PortIndex) -> bool {
        let port = self.fabric.port(port);
        port.peer().is_some() && port.link_seen == self.number
    }

    fn add(&mut self, answerer: &Answerer) -> Option<NodeIndex> {
        let view = NodeInfo::new(&answerer.bytes[..]).ok()?;
        match self.fabric.add(&view, answerer.kind) {
            Ok(node) => Some(node),
            Err(error) => {
                self.complain(format_args!("node {} is left out: {error}", answerer.guid));
                None
            }
        }
    }

    /// Asks a node for all that it says of itself. `port` is one by which it is reached.
    fn visit(&mut self, node: NodeIndex, port: PortIndex) {
        self.fabric.node_seen(node, self.number);
        self.exchange.push(Request::new(Kind::NodeDescription, port));
        if self.fabric.node(node).switch.is_some() {
            self.exchange.push(Request::new(Kind::SwitchInfo, port));
        } else {
            self.visit_end_port(port);
        }
    }

    fn visit_end_port(&mut self, port: PortIndex) {
        self.exchange.push(Request::new(Kind::PortInfo, port));
        let capacity = self.fabric.node_of(port).node_info().partition_cap();
        for block in 0..pkey::blocks(capacity) {
            self.exchange.push(Request::block(Kind::PKeys, port, block));
        }
    }

    pub(super) fn node_description(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.fabric.node_mut(node).description = *data;
    }

    pub(super) fn switch_info(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        let changed = self.take_switch_info(node, data);
        if changed && self.mastership.state() == SmState::Master && !self.first_as_master {
            // Cleared before the ports are read: what changes after shows in the next light sweep.
            self.exchange.push(Request::new(Kind::ClearPortChange, port));
        } else {
            self.read_ports(node);
        }
    }

    pub(super) fn port_change_cleared(&mut self, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        self.take_switch_info(node, data);
        self.go_on_after_clearing(node);
    }

    pub(super) fn go_on_after_clearing(&mut self, node: NodeIndex) {
        if self.phase == Phase::Discover {
            self.read_ports(node);
        } else {
            self.read_unset_ports(node);
        }
    }

    /// Stores SwitchInfo; returns whether ports changed since that was last cleared. A switch
    /// whose top is not what we set has been reset: its tables are unknown.
    pub(super) fn take_switch_info(&mut self, node: NodeIndex, data: &[u8; 64]) -> bool {
        let Some(index) = self.fabric.node(node).switch else { return false };
        let before = self.fabric.switch(index).switch_info().linear_fdb_top();
        self.fabric.set_switch_info(index, data);
        let switch = self.fabric.switch(index);
        let info = SwitchInfo::new(&switch.info).expect("20 bytes are a SwitchInfo");
        let (top, changed) = (info.linear_fdb_top(), info.port_state_change());
        if before != top {
            self.note_reset(node);
        }
        changed
    }

    /// A switch was reset: nothing is known any more of what it holds.
    pub(super) fn note_reset(&mut self, node: NodeIndex) {
        let Some(index) = self.fabric.node(node).switch else { return };
        self.fabric.lft_mut(index).forget();
        self.fabric.mft_mut(index).forget();
        self.sweep.reset.insert(node);
    }

    /// A switch's port 0 was read that had LID `before`. With another one it has been reset, whatever
    /// its top is: that may have been set since, by us who did not know.
    fn look_for_reset(&mut self, port0: PortIndex, before: Lid) {
        let entry = self.fabric.port(port0);
        let node = entry.node;
        if before == Lid::NONE || entry.base_lid() == before || self.sweep.reset.contains(&node) {
            return;
        }
        debug!("{} has lost its LID: it was reset", self.fabric.describe(port0));
        self.note_reset(node);
        // Those of ports that were read before this one.
        for port in self.fabric.ports_of(node).skip(1) {
            if self.fabric.port(port).peer().is_some() {
                self.read_checked_pkeys(node, port, true);
            }
        }
    }

    fn read_ports(&mut self, node: NodeIndex) {
        for port in self.fabric.ports_of(node) {
            self.exchange.push(Request::new(Kind::PortInfo, port));
        }
        let capacity = self.fabric.node(node).node_info().partition_cap();
        if let Some(port0) = self.fabric.ports_of(node).next() {
            for block in 0..pkey::blocks(capacity) {
                self.exchange.push(Request::block(Kind::PKeys, port0, block));
            }
        }
    }

    pub(super) fn port_info(&mut self, now: Instant, request: Request, data: &[u8; 64]) {
        let port = request.port();
        if self.phase != Phase::Discover {
            return self.port_read_again(now, port, data);
        }
        let was = self.fabric.port(port).state();
        let checks = |info: PortInfo<&[u8; 64]>| {
            (info.partition_enforcement_inbound(), info.partition_enforcement_outbound())
        };
        let checked = checks(self.fabric.port(port).port_info());
        let lid_before = self.fabric.port(port).base_lid();
        self.fabric.set_port_info(port, data);
        let checks_changed = checks(self.fabric.port(port).port_info()) != checked;
        self.learn_m_key(port);
        let state = self.fabric.port(port).state();
        if state == Some(PortState::Initialize) {
            let entry = self.fabric.port_mut(port);
            // The link was trained anew, perhaps as the node was reset.
            entry.qos = None;
            let guid = entry.guid;
            self.aliases.forget(guid);
        }
        let node = self.fabric.port(port).node;
        let is_switch = self.fabric.node(node).switch.is_some();
        let external = is_switch && self.fabric.port(port).num.0 != 0;
        if is_switch && !external {
            self.look_for_reset(port, lid_before);
        }
        if !is_switch && Some(port) == self.fabric.home() {
            if state == Some(PortState::Down) && self.expects_others() {
                self.exchange.cancel_all();
                self.sweep.cut_off = true;
                return;
            }
            if std::mem::take(&mut self.cut_off) {
                info!("the SM's own port has a link again");
            }
        }
        if !external && (is_switch || Some(port) != self.fabric.home()) {
            if !is_switch {
                self.ask_for_fdr10(port);
            }
            return;
        }
        match state {
            Some(PortState::Initialize | PortState::Armed | PortState::Active) => {
                let stayed = was == Some(PortState::Active) && state == was;
                match self.fabric.port(port).peer() {
                    Some(peer) if stayed && !self.sweep.full => {
                        self.fabric.link_seen(port, self.number);
                        self.fabric.link_seen(peer, self.number);
                    }
                    _ => self.exchange.push(Request::new(Kind::Probe, port)),
                }
                if external {
                    self.read_checked_pkeys(node, port, checks_changed);
                }
                self.ask_for_fdr10(port);
            }
            _ => self.link_is_down(request),
        }
    }

    /// The P_Key table of a switch's external port, which nobody but us changes: read once, and
    /// again when the switch seems to have been reset.
    fn read_checked_pkeys(&mut self, node: NodeIndex, port: PortIndex, checks_changed: bool) {
        let reset = checks_changed || self.sweep.reset.contains(&node);
        let node = self.fabric.node(node);
        let Some(switch) = node.switch.filter(|_| node.is_new || reset) else { return };
        let capacity = self.fabric.switch(switch).switch_info().partition_enforcement_cap();
        for block in 0..pkey::blocks(capacity) {
            self.exchange.push(Request::block(Kind::PKeys, port, block));
        }
    }

    fn link_is_down(&mut self, request: Request) {
        let port = request.port();
        let Some(peer) = self.fabric.port(port).peer() else { return };
        if self.is_confirmed(port) {
            // The far end has just answered by this link.
            return self.contradicted_by_down(port, peer, request.block);
        }
        self.cut(port, peer);
        self.sweep.routes_changed = true;
        let far = self.fabric.port(peer).node;
        if self.fabric.node(far).switch.is_some() {
            self.visit_all(vec![far]);
        }
    }

    /// Whether there are, or were once, other nodes than our own.
    fn expects_others(&self) -> bool {
        let (hosts, switches) = self.fabric.counts();
        hosts + switches > 1 || self.lids.len() > 1
    }

    /// Our own port is down: that says nothing of the fabric, of which we keep what we know.
    fn await_own_link(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.cut_off, true) {
            let port = self.fabric.home().map(|home| self.fabric.describe(home));
            warn!(
                "the SM's own port is down; check its cable ({}). The fabric is left as it was \
                 last seen",
                port.unwrap_or_default()
            );
        }
        self.failed_sweeps = self.failed_sweeps.min(CUT_OFF_DOUBLINGS);
        self.give_up(now);
    }

    /// Whether our own port has a link, and nobody that we could use is behind it, where there was
    /// somebody before. Directed routes begin there: nothing can be told of the fabric.
    fn is_secluded(&self, silent: &HashSet<NodeIndex>) -> bool {
        let Some(home) = self.fabric.home().filter(|&home| self.is_adapter_port(home)) else {
            return false;
        };
        let port = self.fabric.port(home);
        let has_link = matches!(
            port.state(),
            Some(PortState::Initialize | PortState::Armed | PortState::Active)
        );
        let is_seen = port.link_seen == self.number;
        let peer = port.peer().filter(|_| is_seen).map(|peer| self.fabric.port(peer).node);
        port.known
            && has_link
            && !self.sweep.left_out.contains(&home)
            && self.expects_others()
            && peer.is_none_or(|node| silent.contains(&node))
    }

    /// Nobody answers behind our own port: we keep what we know of the fabric.
    fn await_neighbour(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.secluded, true) {
            let port = self.fabric.home().map(|home| self.fabric.describe(home));
            warn!(
                "nobody answers behind the SM's own port, though its link is up ({}). The fabric is \
                 left as it was last seen",
                port.unwrap_or_default()
            );
        }
        self.failed_sweeps = self.failed_sweeps.min(CUT_OFF_DOUBLINGS);
        self.give_up(now);
    }

    /// All is asked and answered: cuts what was not seen again, and drops what no route reaches.
    pub(super) fn end_discovery(&mut self, now: Instant) {
        if self.sweep.cut_off {
            return self.await_own_link(now);
        }
        if !self.sweep.suspects.is_empty() {
            let suspects = std::mem::take(&mut self.sweep.suspects);
            self.visit_all(suspects);
            if !self.exchange.is_idle() {
                return;
            }
        }
        if self.is_secluded(&self.sweep.silent) {
            return self.await_neighbour(now);
        }
        if std::mem::take(&mut self.secluded) {
            info!("somebody answers behind the SM's own port again");
        }
        self.cut_unseen_links();
        let mut silent = std::mem::take(&mut self.sweep.silent);
        let quiet = std::mem::take(&mut self.sweep.quiet);
        silent.extend(quiet.into_iter().filter(|&node| self.is_unread(node)));
        let unreached = self.fabric.trace_routes(|fabric, port| {
            let peer = fabric.port(port).peer();
            !silent.contains(&fabric.port(port).node)
                && peer.is_some_and(|peer| !silent.contains(&fabric.port(peer).node))
        });
        for &node in unreached.iter().take(LINES_MAX) {
            let node = self.fabric.node(node);
            info!("gone: {} '{}' {}", node.kind, node.name(), node.guid);
        }
        if unreached.len() > LINES_MAX {
            info!("gone: {} nodes more", unreached.len() - LINES_MAX);
        }
        for &node in &unreached {
            self.fabric.remove(node);
        }
        self.sweep.report.vanished = unreached.len();
        self.sweep.report.appeared = self.fabric.nodes().filter(|(_, node)| node.is_new).count();
        self.find_unanswered_links();
        self.find_unread_ports();
        self.settle_end_ports();
        let home = self.fabric.home().filter(|&home| self.fabric.port(home).known);
        let lost = home.is_none_or(|home| silent.contains(&self.fabric.port(home).node));
        if lost {
            warn!("the SM's own port cannot be read; trying again");
            return self.give_up(now);
        }
        self.begin_election(now);
    }

    fn cut_unseen_links(&mut self) {
        let number = self.number;
        let seen: Vec<NodeIndex> = self
            .fabric
            .nodes()
            .filter(|(_, node)| node.seen == number)
            .map(|(index, _)| index)
            .collect();
        for node in seen {
            if !self.sweep.full && self.fabric.node(node).switch.is_none() {
                // Its links are judged from their other ends, which may not have been asked.
                continue;
            }
            for port in self.fabric.ports_of(node) {
                if self.fabric.port(port).link_seen != number
                    && let Some(peer) = self.fabric.port(port).peer()
                {
                    self.cut(port, peer);
                }
            }
        }
    }

    /// Takes in that a link is gone. Links between switches are told: a host that goes is told by
    /// its name, and takes its link along.
    fn cut(&mut self, port: PortIndex, peer: PortIndex) {
        let is_switch = |port| self.fabric.node_of(port).switch.is_some();
        if is_switch(port) && is_switch(peer) && self.up {
            self.sweep.cut_links += 1;
            let (a, b) = (self.fabric.describe(port), self.fabric.describe(peer));
            match self.sweep.cut_links {
                n if n <= LINES_MAX => info!("link down: {a} - {b}"),
                n if n == LINES_MAX + 1 => info!("more links are down; they are only counted"),
                _ => debug!("link down: {a} - {b}"),
            }
        }
        self.fabric.unlink(port);
    }

    /// Settles which port each port GUID belongs to.
    fn settle_end_ports(&mut self) {
        for (owner, other) in self.fabric.settle_end_ports() {
            let guid = self.fabric.port(owner).guid;
            if !self.first_report(guid.0) {
                continue;
            }
            let (first, second) = (self.place(owner), self.place(other));
            error!(
                "duplicate port GUID: {guid} is that of {first}, and of {second}. The second is \
                 left out; give one of the ports another GUID"
            );
        }
    }

    /// Finds ports with a link behind which nobody was found, to be looked at again before long.
    fn find_unanswered_links(&mut self) {
        let up = |state| {
            matches!(state, Some(PortState::Initialize | PortState::Armed | PortState::Active))
        };
        let unanswered: Vec<PortIndex> = self
            .fabric
            .nodes()
            .flat_map(|(index, node)| {
                let first = u8::from(node.switch.is_some());
                self.fabric.ports_of(index).skip(usize::from(first))
            })
            .filter(|port| {
                let entry = self.fabric.port(*port);
                let expected = entry.known && entry.peer().is_none() && up(entry.state());
                expected && !self.sweep.left_out.contains(port)
            })
            .take(UNANSWERED_MAX)
            .collect();
        let new: Vec<PortIndex> =
            unanswered.iter().copied().filter(|port| !self.unanswered.contains(port)).collect();
        if let [first, others @ ..] = &new[..] {
            let place = self.place(*first);
            match others.len() {
                0 => {
                    self.complain(format_args!("{place} has a link, but nobody answers behind it"));
                }
                more => self.complain(format_args!(
                    "{place} and {more} more ports have a link, but nobody answers behind it"
                )),
            }
            self.sweep.report.oddities += others.len() as u64;
            for port in others {
                debug!("{} has a link, but nobody answers behind it", self.place(*port));
            }
        }
        self.unanswered = unanswered;
    }

    /// Ends a sweep that led to nothing.
    pub(super) fn give_up(&mut self, now: Instant) {
        self.failed_sweeps += 1;
        self.fruitless += 1;
        self.up = false;
        self.phase = Phase::Idle;
        self.schedule.retry(now, Cause::Everything, self.failed_sweeps);
    }
}

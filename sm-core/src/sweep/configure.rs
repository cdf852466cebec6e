//! Making the fabric what it should be: LIDs and P_Keys, then forwarding tables, then links to
//! Armed, then to Active. What already is as it should be is not sent.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{CapabilityMask, PortInfo, PortState, SwitchInfo};
use tracing::{debug, info, warn};

use super::schedule::Cause;
use super::{Event, LINES_MAX, Phase, Sweeper};
use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::{lid, link};
use crate::smp::{Kind, Request};

/// Times a link is taken through Down in one sweep before that counts as an error.
const RESETS_MAX: u16 = 2;

impl Sweeper {
    pub(super) fn begin_addresses(&mut self, now: Instant) {
        self.enter(now, Phase::Addresses);
        self.assign_lids();
        self.admit_clients();
        self.stagger_clients(now);
        self.set_pkeys();
        self.enable_disabled_ports();
        if self.subnet.first_as_master {
            self.clear_port_changes();
        }
        let ports: Vec<PortIndex> = self.fabric.end_ports().collect();
        for port in ports {
            if self.wanted_address(port).is_some() {
                self.exchange.push(Request::new(Kind::SetAddress, port));
                self.sweep.report.port_infos_set += 1;
            }
        }
    }

    /// Clears PortStateChange of all switches, before anything is set that a reset would undo: what
    /// changes from now on shows in the next light sweep.
    fn clear_port_changes(&mut self) {
        let switches: Vec<_> = self
            .fabric
            .switches()
            .filter(|(_, switch)| switch.switch_info().port_state_change())
            .map(|(_, switch)| switch.node)
            .collect();
        for node in switches {
            if let Some(port) = self.fabric.ports_of(node).next() {
                self.exchange.push(Request::new(Kind::ClearPortChange, port));
            }
        }
    }

    /// What changed between our reading a switch's ports and the clearing of PortStateChange would go
    /// unnoticed: those that get no Set() are read again, and port 0, whose LID tells of a reset.
    pub(super) fn read_unset_ports(&mut self, node: NodeIndex) {
        for port in self.fabric.ports_of(node) {
            let entry = self.fabric.port(port);
            if entry.num.0 == 0 || entry.peer().is_none() {
                self.exchange.push(Request::new(Kind::PortInfo, port));
            }
        }
    }

    fn assign_lids(&mut self) {
        let home = self.fabric.home();
        let reassign = self.subnet.first_as_master && self.settings.reassign_lids;
        if reassign {
            self.lids.clear();
        }
        let mut ports: Vec<(PortIndex, lid::Request)> = self
            .fabric
            .end_ports()
            .map(|port| {
                let entry = self.fabric.port(port);
                let held = if reassign { Lid::NONE } else { entry.base_lid() };
                let count = 1 << link::lmc_of(&self.fabric, port, &self.settings);
                (port, lid::Request { guid: entry.guid, held, count })
            })
            .collect();
        // Our own port first, then by GUID read from its last byte: the same fabric always gets
        // the same LIDs, and those that OpenSM gives on little-endian machines.
        ports.sort_unstable_by_key(|(port, request)| {
            (Some(*port) != home, request.guid.0.swap_bytes())
        });
        let requests: Vec<lid::Request> = ports.iter().map(|(_, request)| *request).collect();
        let inherits =
            self.election.handover.take_inherits_lids() && !self.settings.honor_guid2lid_file;
        let adopted = inherits && !reassign && self.lids.adopt(&requests);
        let before = self.subnet.first_as_master.then(|| self.lids.clone());
        let (changed, short) = self.lids.assign(&requests);
        if let Some(resized) = before.and_then(|before| self.lids.resized_since(&before)) {
            let lid::Resized { ports, was, now } = resized;
            warn!("lmc is {now}, was {was}: {ports} ports get new LIDs");
        }
        let without: HashSet<Guid> = short.iter().map(|shortage| shortage.guid).collect();
        let without = ports.iter().rev().filter(|(_, request)| without.contains(&request.guid));
        let places: HashMap<Guid, PortIndex> =
            without.map(|(port, request)| (request.guid, *port)).collect();
        for shortage in short {
            match places.get(&shortage.guid) {
                Some(&port) => self.fault(port, format_args!("{shortage}")),
                None => self.error(format_args!("{shortage}")),
            }
        }
        if changed || adopted {
            self.emit(Event::LidsChanged);
        }
    }

    /// LID of the SM's own port.
    pub(super) fn sm_lid(&self) -> Lid {
        self.fabric
            .home()
            .and_then(|home| self.lids.get(self.fabric.port(home).guid))
            .map_or(Lid::NONE, |range| range.first)
    }

    /// What an end port is to be addressed by; `None` for other ports, and where LIDs ran out.
    fn wanted_addressing(&self, port: PortIndex) -> Option<link::Addressing> {
        if !self.fabric.is_end_port(port) {
            return None;
        }
        let range = self.lids.get(self.fabric.port(port).guid)?;
        let told = self.fabric.port(port).told_in == self.election.tenure();
        let sa = self.sa_of(port);
        // Not every driver tells its clients that the SA is another, but all tell of this.
        let moved = self.fabric.port(port).port_info().master_sm_lid() != sa.0;
        // In the first sweep all move to us: who is told then is spared for what is known of them.
        let moved = moved && !self.subnet.first_as_master;
        Some(link::Addressing {
            base_lid: range.first,
            lmc: link::lmc_of(&self.fabric, port, &self.settings),
            sa,
            reregister: (!told || moved)
                && !self.settings.no_clients_rereg
                && !self.clients.holds_back(port),
        })
    }

    fn subnet(&self) -> link::Subnet<'_> {
        let pkeys = self.partitions.plan();
        let qos = self.settings.qos.then_some(&self.qos_tables);
        link::Subnet { settings: &self.settings, pkeys, qos }
    }

    /// PortInfo to set so that an end port is addressed as it should be, if it is not.
    pub(super) fn wanted_address(&self, port: PortIndex) -> Option<link::PortInfoBytes> {
        link::addressed(&self.fabric, port, self.subnet(), self.wanted_addressing(port)?)
    }

    /// PortInfo to set so that a linked port is configured and armed, if it is not. A new master
    /// sets it anyway, as the values it read may be another's idea.
    pub(super) fn wanted_arming(&self, port: PortIndex) -> Option<link::PortInfoBytes> {
        let external = self.fabric.node_of(port).switch.is_some();
        let anyway = external && self.subnet.first_as_master || self.subnet.links_forced_anew;
        link::armed(&self.fabric, port, self.subnet(), self.wanted_addressing(port), anyway)
    }

    /// PortInfo to set so that an armed port becomes active.
    pub(super) fn wanted_activation(&self, port: PortIndex) -> Option<link::PortInfoBytes> {
        link::active(&self.fabric, port, self.subnet(), self.wanted_addressing(port))
    }

    /// The port's PortInfo was set, and this is what it is now.
    pub(super) fn port_info_set(&mut self, request: Request, data: &[u8; 64]) {
        let port = request.port();
        let before = self.fabric.port(port).state();
        let entry = self.fabric.port_mut(port);
        let local_port_num = entry.port_info().local_port_num();
        entry.info = *data;
        let mut info = PortInfo::new(&mut entry.info[..]).expect("64 bytes are a PortInfo");
        // An echo of the request, and the port that this SMP came by: neither is the port's own.
        info.set_client_reregister(false).set_local_port_num(local_port_num);
        let after = entry.state();
        self.learn_m_key(port);
        let beyond = |state| matches!(state, Some(PortState::Armed | PortState::Active));
        if beyond(before) && !beyond(after) {
            self.link_was_reset(request, port);
        }
        if request.kind == Kind::EnablePort {
            self.port_enabled(port);
        }
        if request.kind == Kind::SetAddress {
            if !self.clients.holds_back(port) {
                self.fabric.port_mut(port).told_in = self.election.tenure();
            }
            self.client_told();
            let wanted = self.lids.get(self.fabric.port(port).guid).map(|range| range.first);
            let got = self.fabric.port(port).base_lid();
            if wanted.is_some_and(|wanted| wanted != got) {
                let place = self.place(port);
                self.fault(
                    port,
                    format_args!("{place} has LID {got} though it was set to another"),
                );
            }
        }
    }

    /// The link of `port` was taken through Down, for its MTU or VLs to change: its other end is in
    /// Initialize too. If it happened while arming, both are armed once more.
    fn link_was_reset(&mut self, request: Request, port: PortIndex) {
        let peer = self.fabric.port(port).peer();
        if let Some(peer) = peer {
            let entry = self.fabric.port_mut(peer);
            PortInfo::new(&mut entry.info[..])
                .expect("64 bytes are a PortInfo")
                .set_port_state(PortState::Initialize);
        }
        if request.kind == Kind::Arm && request.block < RESETS_MAX {
            for port in [Some(port), peer].into_iter().flatten() {
                self.exchange.push(Request::block(Kind::Arm, port, request.block + 1));
                self.sweep.report.port_infos_set += 1;
            }
        }
    }

    /// Begins to write forwarding tables, step by step as planned, and their tops in the end. Before
    /// them go the tables of ports in use that tell the lanes of routes: what was proved free of
    /// credit loops is not on the lanes before.
    pub(super) fn begin_tables(&mut self, now: Instant) {
        self.enter(now, Phase::Tables);
        self.sweep.tops_are_due = true;
        self.try_avoided_switches();
        self.set_tables_of_active_ports();
        if self.exchange.is_idle() {
            self.write_tables();
        }
    }

    /// Begins the next step; `false` if there is none.
    pub(super) fn write_tables(&mut self) -> bool {
        while let Some(mut requests) = self.sweep.table_steps.pop_front() {
            requests.retain(|request| {
                !self.sweep.unprogrammed.contains(&self.fabric.port(request.port()).node)
            });
            if requests.is_empty() {
                continue;
            }
            self.sweep.report.lft_blocks_set += requests.len() as u64;
            requests.into_iter().for_each(|request| self.exchange.push(request));
            return true;
        }
        if std::mem::take(&mut self.sweep.tops_are_due) {
            self.set_switch_infos();
        }
        !self.exchange.is_idle()
    }

    fn set_switch_infos(&mut self) {
        let switches: Vec<_> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            let node = self.fabric.switch(index).node;
            let Some(port) = self.fabric.ports_of(node).next() else { continue };
            if self.sweep.unprogrammed.contains(&node) {
                continue;
            }
            let capacity = self.fabric.switch(index).switch_info().linear_fdb_cap();
            if capacity <= self.router.top.0 {
                let (place, top) = (self.place(port), self.router.top);
                self.fault(port, format_args!(
                    "{place} forwards LIDs up to {} only, and {top} are in use; a lower LMC (-l) \
                     needs fewer",
                    capacity.saturating_sub(1),
                ));
            }
            if self.wanted_switch_info(port).is_some() {
                self.exchange.push(Request::new(Kind::SetSwitchInfo, port));
                self.sweep.report.switch_infos_set += 1;
            }
        }
    }

    /// SwitchInfo to set so that the switch forwards what it should, if it does not.
    pub(super) fn wanted_switch_info(&self, port: PortIndex) -> Option<[u8; 20]> {
        let switch = self.fabric.switch(self.fabric.node_of(port).switch?);
        let current = switch.switch_info();
        let lifetime = ib_mad::types::Lifetime::from_low_bits(self.settings.packet_life_time);
        let multicast_top = self.wanted_multicast_top(port, &current);
        let right = current.linear_fdb_top() == self.router.top
            && current.life_time_value() == lifetime
            && current.multicast_fdb_top() == multicast_top;
        if right {
            return None;
        }
        let mut bytes = switch.info;
        SwitchInfo::new(&mut bytes[..])
            .ok()?
            .set_linear_fdb_top(self.router.top)
            .set_life_time_value(lifetime)
            .set_multicast_fdb_top(multicast_top)
            .set_port_state_change(false);
        Some(bytes)
    }

    /// The last MLID that a switch should forward. It stays as it is where nobody ever set it; OpenSM
    /// leaves it at the last block that it used, and groups beyond would hear nothing.
    fn wanted_multicast_top(&self, port: PortIndex, current: &SwitchInfo<&[u8; 20]>) -> Lid {
        let mask = self.fabric.port(port).port_info().capability_mask();
        let is_meant = mask.contains(CapabilityMask::IS_MULTICAST_FDB_TOP_SUPPORTED);
        let top = current.multicast_fdb_top();
        let capacity = current.multicast_fdb_cap();
        if !self.settings.use_mfttop || !is_meant || top == Lid::NONE || capacity == 0 {
            return top;
        }
        Lid(Lid::MULTICAST_FIRST.0.saturating_add(capacity - 1))
    }

    pub(super) fn switch_info_set(&mut self, now: Instant, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        let Some(index) = self.fabric.node(node).switch else { return };
        let switch = self.fabric.switch_mut(index);
        switch.info.copy_from_slice(&data[..20]);
        let got = switch.switch_info().linear_fdb_top();
        if self.subnet.first_as_master && switch.switch_info().port_state_change() {
            // Something happened while we were at work. Later sweeps leave that to the next light
            // one: a switch that always says so must not keep us busy.
            self.schedule.request(now, Cause::Timer);
        }
        if got != self.router.top {
            let (place, top) = (self.place(port), self.router.top);
            self.fault(
                port,
                format_args!("{place} has LinearFDBTop {got} though it was set to {top}"),
            );
        }
    }

    /// A port without a link, or a switch's port 0, was read again after PortStateChange was cleared.
    pub(super) fn port_read_again(&mut self, now: Instant, port: PortIndex, data: &[u8; 64]) {
        let Ok(info) = PortInfo::new(&data[..]) else { return };
        let is_step = |arms| self.sweep.read_again.contains(&(port, arms));
        if matches!(self.sweep.phase, Phase::Arm | Phase::Activate)
            && (is_step(true) || is_step(false))
        {
            // If it is not where it should be, the end of the sweep tells.
            self.fabric.port_mut(port).info = *data;
            return;
        }
        let entry = self.fabric.port(port);
        let state_changed = info.port_state() != entry.port_info().port_state();
        let lost_its_lid = info.base_lid() == Lid::NONE && entry.base_lid() != Lid::NONE;
        if state_changed || lost_its_lid {
            debug!("{} changed while we looked", self.fabric.describe(port));
            if lost_its_lid {
                let node = entry.node;
                self.note_reset(node);
            }
            self.schedule.request(now, Cause::Asked);
        }
    }

    pub(super) fn forwarding_set(&mut self, request: Request, data: &[u8; 64]) {
        let Some(index) = self.fabric.node_of(request.port()).switch else { return };
        let lft = self.fabric.lft_mut(index);
        if lft.block(request.block).is_some_and(|block| block == data) {
            lft.acknowledge(request.block);
            self.sweep.programmed.insert(self.fabric.port(request.port()).node);
        } else {
            let place = self.place(request.port());
            let block = request.block;
            self.sweep.unprogrammed.insert(self.fabric.port(request.port()).node);
            self.fault(
                request.port(),
                format_args!("{place} holds LFT block {block} other than it was set"),
            );
        }
    }

    pub(super) fn begin_arming(&mut self, now: Instant) {
        self.enter(now, Phase::Arm);
        let linked = self.linked_ports();
        self.set_fdr10(&linked);
        for port in linked {
            if self.wanted_arming(port).is_some() {
                self.exchange.push(Request::new(Kind::Arm, port));
                self.sweep.report.port_infos_set += 1;
            }
        }
    }

    pub(super) fn begin_activating(&mut self, now: Instant) {
        self.enter(now, Phase::Activate);
        for port in self.linked_ports() {
            if self.fabric.port(port).state() == Some(PortState::Armed) {
                self.exchange.push(Request::new(Kind::Activate, port));
                self.sweep.report.port_infos_set += 1;
            }
        }
    }

    pub(super) fn linked_ports(&self) -> Vec<PortIndex> {
        self.fabric
            .nodes()
            .flat_map(|(index, _)| self.fabric.ports_of(index))
            .filter(|&port| self.is_linked(port))
            .collect()
    }

    pub(super) fn is_linked(&self, port: PortIndex) -> bool {
        let entry = self.fabric.port(port);
        let peer = entry.peer().filter(|&peer| self.fabric.port(peer).known);
        // Nobody can be reached who has no LID.
        let left_out = |port| self.fabric.is_left_out(port);
        entry.known && !left_out(port) && peer.is_some_and(|peer| !left_out(peer))
    }

    pub(super) fn end_sweep(&mut self, now: Instant) {
        let linked = self.linked_ports();
        let is_idle = |port: &PortIndex| self.fabric.port(*port).state() != Some(PortState::Active);
        let routed = !self.sweep.unroutable;
        let idle: Vec<PortIndex> =
            linked.iter().copied().filter(is_idle).filter(|_| routed).collect();
        for &port in &idle {
            let state = self.fabric.port(port).state();
            let state = state.map_or_else(|| "in an unknown state".to_owned(), |s| s.to_string());
            let place = self.place(port);
            self.fault(port, format_args!("{place} is {state}, not Active"));
        }
        self.judge_switches(now);
        self.sweep.phase = Phase::Idle;
        let (hosts, switches) = self.fabric.counts();
        let sent = self.counters().transmitted;
        let report = &mut self.sweep.report;
        report.hosts = hosts;
        report.switches = switches;
        report.links = linked.len() / 2;
        report.unanswered = self.subnet.unanswered.len();
        report.smps = sent - report.smps;
        self.router.engine().clone_into(&mut report.engine);
        let name = |why: &String| why.split([' ', ':']).next().unwrap_or_default().to_owned();
        report.engines_passed_over = self.router.passed_over.iter().map(name).collect();
        report.up = routed;
        let report = std::mem::take(report);
        self.tell_new_nodes();
        self.compare_service(self.subnet.first_as_master);
        if routed {
            self.clients.all_are_told();
        } else {
            warn!("{} error(s) in this sweep; sweeping again", report.errors);
        }
        let faults = self.sweep.take_faults();
        self.subnet.end_sweep(now, routed, faults, &mut self.schedule);
        self.schedule.rearm(now);
        self.emit(Event::Configured(Box::new(report)));
        self.disable_babbling_ports(now);
        self.write_multicast(now);
        self.write_guid_blocks(now);
    }

    fn tell_new_nodes(&mut self) {
        let quiet = self.subnet.first_as_master;
        let new: Vec<_> = self.fabric.nodes().filter(|(_, n)| n.is_new).map(|(i, _)| i).collect();
        for (i, &node) in new.iter().enumerate() {
            let node = self.fabric.node_mut(node);
            node.is_new = false;
            if !quiet && i < LINES_MAX {
                info!("new: {} '{}' {}", node.kind, node.name(), node.guid);
            }
        }
        if !quiet && new.len() > LINES_MAX {
            info!("new: {} nodes more", new.len() - LINES_MAX);
        }
    }
}

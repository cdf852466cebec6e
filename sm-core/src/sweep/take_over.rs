//! A LID goes from a port whose responder died to a spare one, between sweeps.
//!
//! Clients notice nothing but a pause: they go on asking the LID they know. The order keeps the LID
//! from having two owners at any instant: first the old port is fenced, by giving it another LID
//! or, if it does not answer, by switching off its link at the switch; only when that is
//! acknowledged does the spare get the LID; then every switch forwards the LID to where it already
//! forwards the spare's, which is one block each. A sweep puts everything else in line, and switches
//! on again what was switched off: whatever becomes of the rest, and of us, no port stays so.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::{PortPhysState, PortState};
use tracing::{debug, info, warn};

use super::schedule::Cause;
use super::{Event, Phase, Sweeper};
use crate::fabric::{PortIndex, SwitchIndex};
use crate::manage::lid::LidRange;
use crate::manage::link;
use crate::manage::shard::TakeOver;
use crate::smp::{Kind, Request};

/// A LID on its way to another port.
#[derive(Debug)]
pub(super) struct LidTakeOver {
    what: TakeOver,
    /// The LIDs that change hands, and those that the spare gives up for them.
    lids: LidRange,
    spare_lids: LidRange,
    spare: PortIndex,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The old port is given other LIDs.
    Leave { old: PortIndex },
    /// The switch's port at the old one's link is switched off.
    Disable { at: PortIndex },
    /// The spare is given the LIDs.
    Enter,
    /// Switches are told.
    Tables,
}

/// Ports of switches that we switched off and have not seen on since, by the switch's GUID and their
/// number.
pub type DisabledPorts = BTreeSet<(Guid, PortNum)>;

/// Whether a LID can be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It is being done: [`Event::TakenOver`] tells how it ended.
    Begun,
    /// Not while a sweep is under way: try again.
    NotNow,
    /// The ports are not there, or do not have equally many LIDs.
    Impossible,
}

impl Sweeper {
    /// Begins to give the LIDs of one port to another.
    pub fn take_over(&mut self, now: Instant, what: TakeOver) -> Start {
        if !self.is_idle() || !self.subnet.up || !self.election.is_master() {
            return Start::NotNow;
        }
        let (Some(lids), Some(spare_lids), Some(spare)) =
            (self.lids.get(what.old), self.lids.get(what.spare), self.end_port(what.spare))
        else {
            return Start::Impossible;
        };
        if what.old == what.spare
            || lids.last.0 - lids.first.0 != spare_lids.last.0 - spare_lids.first.0
        {
            return Start::Impossible;
        }
        info!("LID {} goes from port {} to port {}", lids.first, what.old, what.spare);
        self.enter(now, Phase::TakeOver);
        let old = self.end_port(what.old);
        // Who left the fabric has no LIDs any more; what it is given when it comes back is decided
        // then.
        if !self.lids.relocate(what.old, old.is_some()) {
            self.sweep.phase = Phase::Idle;
            return Start::Impossible;
        }
        let stage = match old {
            Some(old) => Stage::Leave { old },
            None => Stage::Enter,
        };
        self.sweep.take_over = Some(LidTakeOver { what, lids, spare_lids, spare, stage });
        match old {
            Some(old) => self.exchange.push(Request::new(Kind::SetAddress, old)),
            None => self.enter_spare(what, lids, spare),
        }
        self.advance(now);
        Start::Begun
    }

    fn end_port(&self, guid: Guid) -> Option<PortIndex> {
        self.fabric.end_ports().find(|&port| self.fabric.port(port).guid == guid)
    }

    fn enter_spare(&mut self, what: TakeOver, lids: LidRange, spare: PortIndex) {
        self.lids.set(what.spare, lids);
        // Before any sweep looks where clients belong.
        self.shards.follow(what);
        self.emit(Event::LidsChanged);
        self.exchange.push(Request::new(Kind::SetAddress, spare));
    }

    /// All that a stage asked for is answered or given up. `true` if another one has begun.
    pub(super) fn end_take_over_stage(&mut self, now: Instant) -> bool {
        let Some(LidTakeOver { what, lids, spare_lids, spare, stage }) =
            self.sweep.take_over.take()
        else {
            return false;
        };
        let next = match stage {
            Stage::Leave { old } if self.fabric.port(old).base_lid() != lids.first => {
                self.enter_spare(what, lids, spare);
                Some(Stage::Enter)
            }
            Stage::Leave { old } => self.disable_far_end(old).map(|at| Stage::Disable { at }),
            Stage::Disable { at } if self.is_off(at) => {
                self.enter_spare(what, lids, spare);
                Some(Stage::Enter)
            }
            Stage::Disable { .. } => None,
            Stage::Enter if self.fabric.port(spare).base_lid() == lids.first => {
                self.lead_to_spare(lids, spare_lids);
                Some(Stage::Tables)
            }
            // Whether the spare has the LIDs or not, nobody else does.
            Stage::Enter => {
                self.end_take_over(now, what, false);
                return false;
            }
            Stage::Tables => None,
        };
        match next {
            Some(stage) => {
                self.sweep.take_over = Some(LidTakeOver { what, lids, spare_lids, spare, stage });
                true
            }
            None => {
                let done = stage == Stage::Tables;
                if !done {
                    // Nothing was given to anybody: it still is the old port's.
                    self.lids.set(what.old, lids);
                }
                self.end_take_over(now, what, done);
                false
            }
        }
    }

    fn end_take_over(&mut self, now: Instant, what: TakeOver, done: bool) {
        if done {
            info!("port {} has taken over", what.spare);
        } else {
            warn!("port {} could not take over from port {}", what.spare, what.old);
        }
        self.sweep.phase = Phase::Idle;
        self.emit(Event::TakenOver { what, done });
        self.schedule.request(now, Cause::Asked);
    }

    /// Has the switch at the other end of a port's link switch it off; `None` if there is none.
    fn disable_far_end(&mut self, old: PortIndex) -> Option<PortIndex> {
        let at = self.fabric.port(old).peer()?;
        self.fabric.node_of(at).switch?;
        debug!("{} does not answer; its link is switched off", self.fabric.describe(old));
        // Kept before it is asked: the answer may be lost.
        self.disabled_ports.insert((self.fabric.node_of(at).guid, self.fabric.port(at).num));
        self.emit(Event::DisabledPortsChanged);
        self.exchange.push(Request::new(Kind::DisablePort, at));
        Some(at)
    }

    /// A takeover ends that nobody sees to any more. LIDs that were given to nobody yet are the old
    /// port's again.
    pub(super) fn abandon_take_over(&mut self) {
        let Some(LidTakeOver { what, lids, stage, .. }) = self.sweep.take_over.take() else {
            return;
        };
        if matches!(stage, Stage::Leave { .. } | Stage::Disable { .. }) {
            self.lids.set(what.old, lids);
        }
        warn!("port {} does not take over from port {} after all", what.spare, what.old);
        self.emit(Event::TakenOver { what, done: false });
    }

    /// Ports that we switched off and have not seen on since, to be kept over restarts.
    pub fn disabled_ports(&self) -> &DisabledPorts {
        &self.disabled_ports
    }

    /// States which ports an earlier run switched off.
    pub fn set_disabled_ports(&mut self, ports: DisabledPorts) {
        self.disabled_ports = ports;
    }

    /// Switches on again what was switched off for a takeover, however that ended, as the sweep found
    /// it. Ports that somebody else switched on are forgotten.
    pub(super) fn enable_disabled_ports(&mut self) {
        let before = self.disabled_ports.len();
        for (guid, num) in self.disabled_ports.clone() {
            let node = self.fabric.find(guid).filter(|&node| self.fabric.node(node).present);
            let port = node.and_then(|node| self.fabric.port_of(node, num));
            // Nothing is known of a switch that is away, nor of what was not read just now.
            let Some(port) = port.filter(|&port| self.sweep.full && self.fabric.port(port).known)
            else {
                continue;
            };
            if self.is_disabled(port) {
                info!("{} was switched off by us and is switched on again", self.place(port));
                self.exchange.push(Request::new(Kind::EnablePort, port));
                self.sweep.report.port_infos_set += 1;
            } else {
                self.disabled_ports.remove(&(guid, num));
            }
        }
        if self.disabled_ports.len() != before {
            self.emit(Event::DisabledPortsChanged);
        }
    }

    /// A port was asked to look for its neighbour again, and this is what it says.
    pub(super) fn port_enabled(&mut self, port: PortIndex) {
        if self.is_disabled(port) {
            let place = self.place(port);
            return self.fault(port, format_args!("{place} stays switched off"));
        }
        let guid = self.fabric.node_of(port).guid;
        if self.disabled_ports.remove(&(guid, self.fabric.port(port).num)) {
            self.emit(Event::DisabledPortsChanged);
        }
    }

    fn is_disabled(&self, port: PortIndex) -> bool {
        let info = self.fabric.port(port).port_info();
        info.port_physical_state() == PortPhysState::Disabled.code()
    }

    fn is_off(&self, at: PortIndex) -> bool {
        self.is_disabled(at) || self.fabric.port(at).state() == Some(PortState::Down)
    }

    /// Has every switch forward `lids` to where it forwards `spare`.
    fn lead_to_spare(&mut self, lids: LidRange, spare: LidRange) {
        if lids.last > self.router.top {
            // The tables end before it: routing has to be done anew, which the sweep to come does.
            return;
        }
        let switches: Vec<SwitchIndex> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            let lft = self.fabric.lft_mut(index);
            let mut ports = lft.desired().ports.to_vec();
            let (to, from) = (usize::from(lids.first.0), usize::from(spare.first.0));
            let count = usize::from(lids.last.0 - lids.first.0) + 1;
            if ports.len() < to.max(from) + count {
                continue;
            }
            ports.copy_within(from..from + count, to);
            lft.set_desired(ports);
            let switch = self.fabric.switch(index);
            let Some(port) = self.fabric.ports_of(switch.node).next() else { continue };
            let blocks: Vec<u16> = switch.lft.stale_blocks().collect();
            for block in blocks {
                self.exchange.push(Request::block(Kind::SetForwarding, port, block));
            }
        }
    }

    /// PortInfo that switches a switch's port off, or on again.
    pub(super) fn wanted_port_switch(&self, port: PortIndex, on: bool) -> link::PortInfoBytes {
        link::switched(&self.fabric, port, on)
    }
}

//! The stage that moves the LID of a responder to another port, step by step.

use std::time::Instant;

use tracing::{debug, info, warn};

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::manage::lid::LidRange;
use crate::manage::shard::TakeOver;
use crate::smp::{Kind, Request};
use crate::sweep::stages::Stage;
use crate::sweep::stages::take_over::{DisabledPorts, LidTakeOver, Step, TakeOverStart};
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::schedule::Cause;

impl Sweeper {
    /// Starts to move the LIDs of one port to another.
    pub fn take_over(&mut self, now: Instant, what: TakeOver) -> TakeOverStart {
        if !self.is_idle() || !self.subnet.state.up || !self.subnet.election.is_master() {
            return TakeOverStart::NotNow;
        }
        let (Some(lids), Some(spare_lids), Some(spare)) = (
            self.subnet.lids.get(what.old),
            self.subnet.lids.get(what.spare),
            self.subnet.end_port(what.spare),
        ) else {
            return TakeOverStart::Impossible;
        };
        if what.old == what.spare
            || lids.last.0 - lids.first.0 != spare_lids.last.0 - spare_lids.first.0
        {
            return TakeOverStart::Impossible;
        }
        info!("moving LID {} from port {} to port {}", lids.first, what.old, what.spare);
        let old = self.subnet.end_port(what.old);
        // A port that left the fabric has no LIDs; new ones are assigned when it returns.
        if !self.subnet.lids.relocate(what.old, old.is_some()) {
            return TakeOverStart::Impossible;
        }
        let step = match old {
            Some(old) => Step::Leave { old },
            None => Step::Enter,
        };
        let take_over = LidTakeOver { what, lids, spare_lids, spare, step };
        self.enter(now, Stage::TakeOver(take_over));
        match old {
            Some(old) => self.subnet.exchange.push(Request::new(Kind::MoveAddress, old)),
            None => self.enter_spare(what, lids, spare),
        }
        self.advance(now);
        TakeOverStart::Begun
    }

    fn enter_spare(&mut self, what: TakeOver, lids: LidRange, spare: PortIndex) {
        self.subnet.lids.set(what.spare, lids);
        self.subnet.note_assigned_lids();
        // Before any sweep looks where clients belong.
        self.subnet.shards.follow(what);
        self.subnet.events.push(Event::LidsChanged);
        self.subnet.exchange.push(Request::new(Kind::MoveAddress, spare));
    }

    /// Ends a step, whose requests are all answered or given up, and starts the next.
    pub(super) fn end_take_over_step(&mut self, now: Instant, take_over: LidTakeOver) {
        let LidTakeOver { what, lids, spare_lids, spare, step } = take_over;
        let next = match step {
            Step::Leave { old } if self.subnet.fabric.port(old).base_lid() != lids.first => {
                self.enter_spare(what, lids, spare);
                Some(Step::Enter)
            }
            Step::Leave { old } => self.disable_far_end(old).map(|at| Step::Disable { at }),
            Step::Disable { at } if self.subnet.is_off(at) => {
                self.enter_spare(what, lids, spare);
                Some(Step::Enter)
            }
            Step::Disable { .. } => None,
            Step::Enter if self.subnet.fabric.port(spare).base_lid() == lids.first => {
                self.subnet.lead_to_spare(lids, spare_lids);
                Some(Step::Tables)
            }
            // Whether or not the spare has the LIDs, no other port does.
            Step::Enter => return self.end_take_over(now, what, false),
            Step::Tables => None,
        };
        if let Some(step) = next {
            let take_over = LidTakeOver { what, lids, spare_lids, spare, step };
            self.sweep.stage = Stage::TakeOver(take_over);
            return;
        }
        let done = step == Step::Tables;
        if !done {
            // No port was given the LIDs: they are still the old port's.
            self.subnet.lids.set(what.old, lids);
            self.subnet.note_assigned_lids();
        }
        self.end_take_over(now, what, done);
    }

    fn end_take_over(&mut self, now: Instant, what: TakeOver, done: bool) {
        if done {
            info!("port {} took over the LID of port {}", what.spare, what.old);
        } else {
            warn!("port {} could not take over the LID of port {}", what.spare, what.old);
        }
        self.subnet.events.push(Event::TakenOver { what, done });
        self.subnet.schedule.request(now, Cause::Asked);
    }

    /// Disables the switch port at the far end of a link; `None` if there is none.
    fn disable_far_end(&mut self, old: PortIndex) -> Option<PortIndex> {
        let at = self.subnet.fabric.port(old).peer()?;
        self.subnet.fabric.node_of(at).switch?;
        debug!("{} does not answer; disabling its link", self.subnet.fabric.describe(old));
        // Kept before it is asked: the answer may be lost.
        self.disabled_ports
            .insert((self.subnet.fabric.node_of(at).guid, self.subnet.fabric.port(at).num));
        self.subnet.events.push(Event::DisabledPortsChanged);
        self.subnet.exchange.push(Request::new(Kind::DisablePort, at));
        Some(at)
    }

    /// Ends a takeover that cannot continue. LIDs that were not assigned yet go back to the old
    /// port.
    pub(super) fn abandon_take_over(&mut self) {
        let Stage::TakeOver(take_over) = std::mem::take(&mut self.sweep.stage) else { return };
        let LidTakeOver { what, lids, step, .. } = take_over;
        if matches!(step, Step::Leave { .. } | Step::Disable { .. }) {
            self.subnet.lids.set(what.old, lids);
        }
        warn!("cancelled: port {} taking over the LID of port {}", what.spare, what.old);
        self.subnet.events.push(Event::TakenOver { what, done: false });
    }

    /// Switch ports still disabled for a takeover, to be saved across restarts.
    pub fn disabled_ports(&self) -> &DisabledPorts {
        &self.disabled_ports
    }

    /// Sets the ports that an earlier run disabled.
    pub fn set_disabled_ports(&mut self, ports: DisabledPorts) {
        self.disabled_ports = ports;
    }

    /// Enables ports that were disabled for a takeover, regardless of its result. Ports that were
    /// enabled otherwise are removed from the list.
    pub(super) fn enable_disabled_ports(&mut self, full: bool) {
        let before = self.disabled_ports.len();
        for (guid, num) in self.disabled_ports.clone() {
            let node =
                self.subnet.fabric.find(guid).filter(|&node| self.subnet.fabric.node(node).present);
            let port = node.and_then(|node| self.subnet.fabric.port_of(node, num));
            // Switches that are absent, or were not read in this sweep, are skipped.
            let Some(port) = port.filter(|&port| full && self.subnet.fabric.port(port).known)
            else {
                continue;
            };
            if self.subnet.is_disabled(port) {
                info!("enabling {}, which a takeover had disabled", self.subnet.place(port));
                self.subnet.exchange.push(Request::new(Kind::EnablePort, port));
                self.subnet.journal.report.port_infos_set += 1;
            } else {
                self.disabled_ports.remove(&(guid, num));
            }
        }
        if self.disabled_ports.len() != before {
            self.subnet.events.push(Event::DisabledPortsChanged);
        }
    }
}

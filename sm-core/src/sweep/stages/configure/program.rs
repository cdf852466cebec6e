//! Writing forwarding tables to switches, step by step as the routing planned, and SwitchInfo after
//! them.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use ib_mad::types::{Lid, Lifetime};
use ib_mad::wire::attribute::{CapabilityMask, SwitchInfo};
use ib_mad::wire::mad::Status;

use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::schedule::Cause;

/// Steps in which blocks of forwarding tables are written: each is sent when the one before is
/// acknowledged.
pub(in crate::sweep) type Steps = VecDeque<Vec<Request>>;

/// The stage that writes forwarding tables.
#[derive(Debug)]
pub(in crate::sweep) struct Programming {
    pub(in crate::sweep) steps: Steps,
    /// Whether SwitchInfo must be sent after the last step.
    tops_are_due: bool,
    switches: Programmed,
}

/// Switches by whether they acknowledged the blocks of their forwarding tables.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Programmed {
    /// Switches that did not acknowledge a block. Later steps skip them.
    pub(in crate::sweep) failed: HashSet<NodeIndex>,
    /// Switches that acknowledged one.
    pub(in crate::sweep) done: HashSet<NodeIndex>,
}

impl Programming {
    pub(in crate::sweep) fn new(steps: Steps) -> Self {
        Self { steps, tops_are_due: true, switches: Programmed::default() }
    }

    /// Data that later stages of the sweep need.
    pub(in crate::sweep) fn into_programmed(self) -> Programmed {
        self.switches
    }

    /// Sends the next step, or SwitchInfo after the last; `false` if nothing is left to send.
    pub(in crate::sweep) fn send_next(&mut self, subnet: &mut Subnet) -> bool {
        while let Some(mut requests) = self.steps.pop_front() {
            let failed = &self.switches.failed;
            requests.retain(|request| !failed.contains(&subnet.fabric.port(request.port()).node));
            if requests.is_empty() {
                continue;
            }
            subnet.journal.report.lft_blocks_set += requests.len() as u64;
            requests.into_iter().for_each(|request| subnet.exchange.push(request));
            return true;
        }
        if std::mem::take(&mut self.tops_are_due) {
            self.set_switch_infos(subnet);
        }
        !subnet.exchange.is_idle()
    }

    fn set_switch_infos(&self, subnet: &mut Subnet) {
        let switches: Vec<_> = subnet.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            let node = subnet.fabric.switch(index).node;
            let Some(port) = subnet.fabric.ports_of(node).next() else { continue };
            if self.switches.failed.contains(&node) {
                continue;
            }
            let capacity = subnet.fabric.switch(index).switch_info().linear_fdb_cap();
            if capacity <= subnet.routing.top.0 {
                let (place, top) = (subnet.place(port), subnet.routing.top);
                let text = format_args!(
                    "{place} forwards LIDs up to {} only, but LIDs up to {top} are in use; a \
                     lower LMC (-l) uses fewer",
                    capacity.saturating_sub(1),
                );
                subnet.fault(port, text);
            }
            if subnet.wanted_switch_info(port).is_some() {
                subnet.exchange.push(Request::new(Kind::SetSwitchInfo, port));
                subnet.journal.report.switch_infos_set += 1;
            }
        }
    }

    /// Handles a request without a result: a switch whose block is missing has failed.
    fn end_without_answer(
        &mut self,
        subnet: &Subnet,
        kind: kinds::ForwardingTables,
        request: Request,
    ) {
        match kind {
            kinds::ForwardingTables::SetForwarding => {
                self.switches.failed.insert(subnet.fabric.port(request.port()).node);
            }
            kinds::ForwardingTables::SetSwitchInfo => {}
        }
    }
}

impl RequestOwner for Programming {
    type Kind = kinds::ForwardingTables;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            // A switch that left a block unanswered, or refused one, gets no more in this sweep.
            kinds::ForwardingTables::SetForwarding
                if self.switches.failed.contains(&subnet.fabric.port(request.port()).node) =>
            {
                None
            }
            kinds::ForwardingTables::SetForwarding => {
                data.copy_from_slice(subnet.forwarding_block(request)?);
                Some(request.block.into())
            }
            kinds::ForwardingTables::SetSwitchInfo => {
                data[..20].copy_from_slice(&subnet.wanted_switch_info(request.port())?);
                Some(0)
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        match kind {
            kinds::ForwardingTables::SetForwarding => {
                let node = subnet.fabric.port(request.port()).node;
                if subnet.forwarding_set(request, data) {
                    self.switches.done.insert(node);
                } else {
                    self.switches.failed.insert(node);
                }
            }
            kinds::ForwardingTables::SetSwitchInfo => {
                subnet.switch_info_set(now, request.port(), data);
            }
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        subnet.report_refusal(request, status);
        self.end_without_answer(subnet, kind, request);
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, .. } = owned;
        subnet.report_silence(request);
        self.end_without_answer(subnet, kind, request);
    }
}

impl Subnet {
    /// The block of a switch's forwarding table that a Set(LinearForwardingTable) sets.
    pub(in crate::sweep) fn forwarding_block(&self, request: Request) -> Option<&[u8]> {
        let switch = self.fabric.switch(self.fabric.node_of(request.port()).switch?);
        switch.lft.block(request.block)
    }

    /// Handles the answer to a Set(LinearForwardingTable); `false` if the switch holds another
    /// block.
    pub(in crate::sweep) fn forwarding_set(&mut self, request: Request, data: &[u8; 64]) -> bool {
        let Some(index) = self.fabric.node_of(request.port()).switch else { return false };
        let lft = self.fabric.lft_mut(index);
        if lft.block(request.block).is_some_and(|block| block == data) {
            lft.acknowledge(request.block);
            return true;
        }
        let (place, block) = (self.place(request.port()), request.block);
        self.fault(
            request.port(),
            format_args!("{place}: LFT block {block} differs from the block that was set"),
        );
        false
    }

    /// SwitchInfo to set; `None` if the switch already has the right values.
    fn wanted_switch_info(&self, port: PortIndex) -> Option<[u8; 20]> {
        let switch = self.fabric.switch(self.fabric.node_of(port).switch?);
        let current = switch.switch_info();
        let lifetime = Lifetime::from_low_bits(self.settings.packet_life_time);
        let multicast_top = self.wanted_multicast_top(port, &current);
        let right = current.linear_fdb_top() == self.routing.top
            && current.life_time_value() == lifetime
            && current.multicast_fdb_top() == multicast_top;
        if right {
            return None;
        }
        let mut bytes = switch.info;
        SwitchInfo::new(&mut bytes[..])
            .ok()?
            .set_linear_fdb_top(self.routing.top)
            .set_life_time_value(lifetime)
            .set_multicast_fdb_top(multicast_top)
            .set_port_state_change(false);
        Some(bytes)
    }

    /// The last MLID that a switch should forward. A value that was never set stays; OpenSM leaves
    /// it at the last block that it used, and groups beyond would receive nothing.
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

    fn switch_info_set(&mut self, now: Instant, port: PortIndex, data: &[u8; 64]) {
        let node = self.fabric.port(port).node;
        let Some(index) = self.fabric.node(node).switch else { return };
        let switch = self.fabric.switch_mut(index);
        switch.info.copy_from_slice(&data[..20]);
        let got = switch.switch_info().linear_fdb_top();
        if self.state.first_as_master && switch.switch_info().port_state_change() {
            // A change occurred during this sweep. Later sweeps leave it to the next light sweep: a
            // switch that always reports a change must not cause endless sweeps.
            self.schedule.request(now, Cause::Timer);
        }
        if got != self.routing.top {
            let (place, top) = (self.place(port), self.routing.top);
            self.fault(
                port,
                format_args!("{place} reports LinearFDBTop {got} after {top} was set"),
            );
        }
    }
}

//! The light sweep: reads the PortStateChange bit of every switch.
//!
//! When a switch reports a change or does not answer, the others get a short time more, because
//! most failures affect several switches; then the changed ones are read. Switches that have not
//! answered by then may be unreachable because of the change, and are queried again when a new
//! route to them is known.
//!
//! If no switch reports a change, some end ports are read, others each time, and those of foreign
//! managers: another manager may have set their addresses, which no switch shows.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{CapabilityMask, PortInfo, PortState, SwitchInfo};
use ib_mad::wire::mad::Status;
use tracing::debug;

use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::link;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// How long a light sweep continues after the first change.
const GRACE: Duration = Duration::from_millis(20);

/// Smallest number of end ports that a light sweep reads, if there are so many.
const SAMPLE_MIN: usize = 32;
/// Light sweeps in which each end port is read once, in fabrics larger than this sample.
const SAMPLED_WITHIN: usize = 60;

/// The stage that looks for changes.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Light {
    /// Switches that reported a change.
    pub(in crate::sweep) changed: Vec<NodeIndex>,
    /// Switches that did not answer.
    pub(in crate::sweep) silent: HashSet<NodeIndex>,
    /// Whether unresponsive subnet managers are asked.
    pub(in crate::sweep) polls_unresponsive: bool,
    /// When the stage ends, once a change was seen.
    pub(in crate::sweep) grace_ends: Option<Instant>,
    /// Whether it has read switches, and end ports are to follow.
    pub(in crate::sweep) samples: bool,
    /// Whether it reads end ports.
    pub(in crate::sweep) is_sampling: bool,
}

impl Light {
    /// When a stage that saw a change ends.
    pub(in crate::sweep) fn grace_ends(&self) -> Option<Instant> {
        self.grace_ends
    }

    /// Ends the stage soon, since a change or an unresponsive switch was seen.
    fn grant_grace(&mut self, now: Instant) {
        self.grace_ends.get_or_insert(now + GRACE);
    }

    /// A trap arrived: stops waiting for SMs that may not answer.
    pub(in crate::sweep) fn trap_arrived(&mut self, now: Instant) {
        if self.polls_unresponsive || self.is_sampling {
            self.grant_grace(now);
        }
    }

    /// Reads some end ports after the switches, if those showed no change; returns whether there
    /// are any.
    pub(in crate::sweep) fn continues(&mut self, subnet: &mut Subnet) -> bool {
        let is_due = std::mem::take(&mut self.samples);
        if !is_due || !self.changed.is_empty() || !self.silent.is_empty() {
            return false;
        }
        self.is_sampling = true;
        for port in subnet.sampled_ports() {
            subnet.exchange.push(Request::new(Kind::EndPort, port));
        }
        !subnet.exchange.is_idle()
    }

    /// Handles PortInfo of an end port.
    fn end_port_read(&mut self, subnet: &mut Subnet, port: PortIndex, data: &[u8; 64]) {
        let (read, known) = (PortInfo::of(data), subnet.fabric.port(port).port_info());
        let runs_sm =
            |info: PortInfo<&[u8; 64]>| info.capability_mask().contains(CapabilityMask::IS_SM);
        let is_changed = read.base_lid() != known.base_lid() || runs_sm(read) != runs_sm(known);
        if is_changed || subnet.other_addresses(port, data).is_some() {
            self.changed.push(subnet.fabric.port(port).node);
        }
    }
}

impl RequestOwner for Light {
    type Kind = kinds::LightSweep;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        _: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::LightSweep::PortChange => Some(0),
            kinds::LightSweep::EndPort => Some(link::modifier(&subnet.fabric, request.port())),
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        if kind == kinds::LightSweep::EndPort {
            return self.end_port_read(subnet, request.port(), data);
        }
        let node = subnet.fabric.port(request.port()).node;
        let Some(switch) = subnet.fabric.node(node).switch else { return };
        let info = SwitchInfo::of(data);
        let known = subnet.fabric.switch(switch).switch_info();
        if info.port_state_change() || info.linear_fdb_top() != known.linear_fdb_top() {
            self.changed.push(node);
            self.grant_grace(now);
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        if kind == kinds::LightSweep::EndPort {
            return debug!("{}: {} {status}", request.kind.name(), subnet.place(request.port()));
        }
        subnet.report_refusal(request, status);
        self.silent.insert(subnet.fabric.port(request.port()).node);
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, now } = owned;
        let port = request.port();
        if kind == kinds::LightSweep::EndPort {
            // A host that hangs is not looked for.
            return debug!("{}: no answer from {}", request.kind.name(), subnet.place(port));
        }
        self.grant_grace(now);
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(port));
        self.silent.insert(subnet.fabric.port(port).node);
    }
}

impl Subnet {
    /// The end ports that the next light sweep reads: active ones in turn, and those of foreign
    /// managers.
    fn sampled_ports(&mut self) -> Vec<PortIndex> {
        let is_read = |port: &PortIndex| {
            let entry = self.fabric.port(*port);
            entry.num.0 == 0 || entry.state() == Some(PortState::Active)
        };
        let ports: Vec<PortIndex> = self.fabric.end_ports().filter(is_read).collect();
        let count = ports.len().div_ceil(SAMPLED_WITHIN).max(SAMPLE_MIN).min(ports.len());
        let first = self.state.sampled_next;
        let mut sample: Vec<PortIndex> =
            ports.iter().cycle().skip(first.min(ports.len())).take(count).copied().collect();
        self.state.sampled_next = (first + count).checked_rem(ports.len()).unwrap_or(0);
        sample.extend(self.foreign_ports());
        sample.sort_unstable();
        sample.dedup();
        sample
    }

    /// The traps that are due, as text.
    pub(in crate::sweep) fn awaited_traps(&self, now: Instant) -> Option<String> {
        let awaited = self.schedule.awaited(now);
        let &(lid, trap) = awaited.first()?;
        let name = self.end_port_at(lid).map(|port| self.fabric.node_of(port).name());
        let whose = name.map_or_else(String::new, |name| format!("of '{name}' "));
        let others = match awaited.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Some(format!("trap {} {whose}LID {lid}{others}", trap.0))
    }

    /// Whether a port has any of these LIDs, which ascend.
    pub(in crate::sweep) fn owns_any(&self, port: PortIndex, lids: &[Lid]) -> bool {
        let (base, _) = self.fabric.lids_of(port);
        let lmc = link::lmc_of(&self.fabric, port, &self.settings);
        let next = lids.partition_point(|&lid| lid < base);
        base != Lid::NONE && lids.get(next).is_some_and(|lid| lid.0 - base.0 < 1 << lmc)
    }
}

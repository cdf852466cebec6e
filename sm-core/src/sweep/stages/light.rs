//! The light sweep: reads the PortStateChange bit of every switch.
//!
//! When a switch reports a change or does not answer, the others get a short time more, because
//! most failures affect several switches; then the changed ones are read. Switches that have not
//! answered by then may be unreachable because of the change, and are queried again when a new
//! route to them is known.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::SwitchInfo;
use ib_mad::wire::mad::Status;
use tracing::debug;

use crate::fabric::{NodeIndex, PortIndex};
use crate::manage::link;
use crate::smp::kinds;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// How long a light sweep continues after the first change.
const GRACE: Duration = Duration::from_millis(20);

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
        if self.polls_unresponsive {
            self.grant_grace(now);
        }
    }
}

impl RequestOwner for Light {
    type Kind = kinds::LightSweep;

    fn encode(&self, _: &Subnet, owned: OwnedRequest<Self::Kind>, _: &mut [u8; 64]) -> Option<u32> {
        let OwnedRequest { kind, .. } = owned;
        match kind {
            kinds::LightSweep::PortChange => Some(0),
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, now, .. } = owned;
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
        let OwnedRequest { request, .. } = owned;
        subnet.report_refusal(request, status);
        self.silent.insert(subnet.fabric.port(request.port()).node);
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, now, .. } = owned;
        let port = request.port();
        self.grant_grace(now);
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(port));
        self.silent.insert(subnet.fabric.port(port).node);
    }
}

impl Subnet {
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
        let base = self.fabric.port(port).base_lid();
        let lmc = link::lmc_of(&self.fabric, port, &self.settings);
        let next = lids.partition_point(|&lid| lid < base);
        base != Lid::NONE && lids.get(next).is_some_and(|lid| lid.0 - base.0 < 1 << lmc)
    }
}

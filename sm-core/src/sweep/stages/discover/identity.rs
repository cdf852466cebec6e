//! Whether a known route still leads to the node that it is known for: another one may answer since
//! cables were moved. What was read by such routes is of no use, and a discovery of the whole
//! fabric starts over. What looks like another manager's settings may be those of another port.

use std::time::{Duration, Instant};

use ib_mad::wire::attribute::{PortInfo, SwitchInfo};
use tracing::info;

use super::Discovery;
use super::answerer::Answerer;
use crate::fabric::PortIndex;
use crate::smp::{Kind, Request};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::overwritten::Sign;

/// Discoveries in a row that start over, after which one does in each [`START_OVER_INTERVAL`]: a
/// node may answer with another GUID each time.
const START_OVER_MAX: u32 = 8;
/// See [`START_OVER_MAX`].
const START_OVER_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of settings of another manager that are looked into in a discovery: it restores
/// all if there is one.
const SUSPICIONS_MAX: usize = 64;

/// Marks the number of a suspicion in requests that read settings again.
const AGAIN: u16 = 1 << 15;

/// Settings that another manager may have written.
#[derive(Debug)]
pub(super) struct Suspicion {
    /// What was found, as text.
    text: String,
    /// The attribute that showed it, and its values.
    kind: Kind,
    shown: [u16; 2],
}

/// The values of an attribute that a manager sets: addresses, or the top of the forwarding table.
fn shown(kind: Kind, data: &[u8; 64]) -> [u16; 2] {
    match kind {
        Kind::SwitchInfo => [SwitchInfo::of(data).linear_fdb_top().0, 0],
        _ => [PortInfo::of(data).base_lid().0, PortInfo::of(data).master_sm_lid().0],
    }
}

impl Discovery {
    /// Handles NodeInfo read by a known route: another node may answer. `request.block` is not 0 if
    /// it showed settings that this manager did not write.
    pub(super) fn identity(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: &[u8; 64],
        now: Instant,
    ) {
        let Ok(answerer) = Answerer::parse(data) else { return };
        if answerer.guid != subnet.fabric.node_of(request.port()).guid {
            self.starts_over(subnet, now);
            return;
        }
        // It was another node by another route, if routes were changed meanwhile: once more.
        let index = usize::from(request.block).checked_sub(1);
        if let Some(suspicion) = index.and_then(|index| self.suspicions.get(index)) {
            let again = Request::block(suspicion.kind, request.port(), request.block | AGAIN);
            subnet.exchange.push(again);
        }
    }

    /// Handles settings that were read again, since another manager may have written them; returns
    /// whether they are such.
    pub(super) fn shown_again(
        &mut self,
        subnet: &mut Subnet,
        request: Request,
        data: &[u8; 64],
        now: Instant,
    ) -> bool {
        if request.block & AGAIN == 0 {
            return false;
        }
        let index = usize::from(request.block & !AGAIN).checked_sub(1);
        let suspicion = index.and_then(|index| self.suspicions.get(index));
        if let Some(Suspicion { text, kind, shown: before }) = suspicion
            && shown(*kind, data) == *before
        {
            subnet.note_overwritten(now, Sign::Written, |_| text.clone());
        }
        true
    }

    /// Looks for addresses of another manager.
    pub(super) fn look_for_other_addresses(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        data: &[u8; 64],
    ) {
        if let Some(text) = subnet.other_addresses(port, data) {
            self.suspect(subnet, port, Kind::PortInfo, data, text);
        }
    }

    /// Looks for the forwarding table of another manager.
    pub(super) fn look_for_other_top(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        data: &[u8; 64],
    ) {
        let node = subnet.fabric.port(port).node;
        if let Some(text) = subnet.other_top(node, data) {
            self.suspect(subnet, port, Kind::SwitchInfo, data, text);
        }
    }

    /// A port shows settings of another manager, if it is that port.
    fn suspect(
        &mut self,
        subnet: &mut Subnet,
        port: PortIndex,
        kind: Kind,
        data: &[u8; 64],
        text: String,
    ) {
        if self.suspicions.len() < SUSPICIONS_MAX {
            self.suspicions.push(Suspicion { text, kind, shown: shown(kind, data) });
            let number = self.suspicions.len() as u16;
            subnet.exchange.push(Request::block(Kind::Identity, port, number));
        }
    }

    /// A known route leads to another node: ends this discovery, and has one of the whole fabric
    /// start, unless there were too many. Returns whether it does.
    pub(super) fn starts_over(&mut self, subnet: &mut Subnet, now: Instant) -> bool {
        let allowance = &mut subnet.state.starts_over;
        if !allowance.has_room(now, START_OVER_MAX, START_OVER_INTERVAL) {
            return false;
        }
        allowance.spend(now);
        info!("cables were moved between switches: discovering the whole fabric");
        subnet.exchange.cancel_all();
        self.is_outdated = true;
        true
    }
}

//! Sharding: MasterSMLID and MasterSMSL of end ports, which name the responder that their clients
//! query. Written by sweeps, and between them when clients move to another responder.
//!
//! This is not a separate task, since an end port has one PortInfo for its responder and for
//! ClientReregister: the task of `reregister` owns its writes between sweeps.

use std::collections::BTreeSet;

use ib_mad::types::{Guid, Lid, Sl};
use ib_mad::wire::attribute::{CapabilityMask, CapabilityMask2, NodeType};
use tracing::info;

use super::Subnet;
use super::events::Event;
use super::sharding::{Sharding, Shards};
use crate::fabric::PortIndex;
use crate::manage::shard::SaLid;
use crate::smp::{Kind, Request};

/// The SA LIDs that clients can be led to.
struct LedTo {
    all: Vec<SaLid>,
    /// Those at which queries to the GUID that stands for the SA arrive.
    of_virtual: Vec<SaLid>,
}

impl LedTo {
    /// Those for a port that may have virtual functions, or has none.
    fn of(&self, may_be_virtual: bool) -> &[SaLid] {
        if may_be_virtual { &self.of_virtual } else { &self.all }
    }
}

impl Subnet {
    /// Assigns SA LIDs to ports that are about to be addressed for the first time, so that one
    /// write is enough.
    pub(in crate::sweep) fn admit_clients(&mut self) {
        let Some(sharding) = self.shards.sharding else { return };
        if self.shards.sa_lids.is_empty() {
            return;
        }
        let aside = self.set_aside();
        let tenure = self.election.tenure();
        let led_to = self.led_to(sharding);
        let fresh: Vec<(Guid, bool)> = self
            .fabric
            .end_ports()
            .filter(|&port| self.fabric.port(port).reregistered_in != tenure)
            .filter(|&port| self.is_client(port, &aside))
            .map(|port| (self.fabric.port(port).guid, self.may_be_virtual(port)))
            .collect();
        for (guid, may_be_virtual) in fresh {
            self.shards.spread.admit(guid, led_to.of(may_be_virtual), sharding.share);
        }
    }

    /// Ports that always query the SM: its own and those of responders.
    fn set_aside(&self) -> BTreeSet<Guid> {
        let sm_port = self.fabric.sm_port().map(|sm_port| self.fabric.port(sm_port).guid);
        let sa_lids = self.shards.sa_lids.iter().map(|sa_lid| sa_lid.port);
        self.responder_ports().iter().copied().chain(sa_lids).chain(sm_port).collect()
    }

    /// MasterSMLID and MasterSMSL of a port.
    pub(in crate::sweep) fn sa_of(&self, port: PortIndex) -> (Lid, Sl) {
        let (lid, sl) = self
            .shard_of(port)
            .unwrap_or_else(|| (self.sm_lid(), Sl::from_low_bits(u16::from(self.settings.sm_sl))));
        (lid, self.engine_sl(port, lid, sl))
    }

    /// LID of the responder that a port asks, and the service level that policy has for it.
    fn shard_of(&self, port: PortIndex) -> Option<(Lid, Sl)> {
        let shards = &self.shards;
        let id = shards.spread.sa_lid_of(self.fabric.port(port).guid)?;
        let sa_lid = shards.sa_lids.iter().find(|sa_lid| sa_lid.id == id)?;
        Some((self.lids.get(sa_lid.port)?.first, self.sl_between_hosts()?))
    }

    pub(in crate::sweep) fn spread_clients(
        &mut self,
        sharding: Sharding,
        sa_lids: &[SaLid],
    ) -> usize {
        self.shards.sa_lids = sa_lids.to_vec();
        let aside = self.set_aside();
        let mut clients: Vec<(Guid, PortIndex)> = self
            .fabric
            .end_ports()
            .filter(|&port| self.is_client(port, &aside))
            .map(|port| (self.fabric.port(port).guid, port))
            .collect();
        clients.sort_unstable();
        let led_to = self.led_to(sharding);
        let choices: Vec<(Guid, &[SaLid])> = clients
            .iter()
            .map(|&(guid, port)| (guid, led_to.of(self.may_be_virtual(port))))
            .collect();
        let moved = self.shards.spread.advance(&choices, sharding.share);
        for guid in &moved {
            let Ok(at) = clients.binary_search_by_key(guid, |(guid, _)| *guid) else { continue };
            let port = clients[at].1;
            if self.wanted_address(port).is_some() {
                self.exchange.push(Request::new(Kind::Readdress, port));
            }
        }
        if !moved.is_empty() {
            info!("moving {} ports to another responder", moved.len());
        }
        moved.len()
    }

    /// Records that a port's MasterSMLID was set between sweeps.
    pub(in crate::sweep) fn client_moved(&mut self) {
        self.shards.has_moved |= self.shards.sharding.is_some();
    }

    /// Reports moved clients to the caller, once nothing is outstanding.
    pub(in crate::sweep) fn report_moved_clients(&mut self) {
        if std::mem::take(&mut self.shards.has_moved) {
            self.events.push(Event::ClientsMoved);
        }
    }

    /// Whether a port's clients may be spread: a channel adapter's, and not that of another subnet
    /// manager.
    fn is_client(&self, port: PortIndex, aside: &BTreeSet<Guid>) -> bool {
        let entry = self.fabric.port(port);
        self.fabric.node_of(port).kind == NodeType::Ca
            && !entry.port_info().capability_mask().contains(CapabilityMask::IS_SM)
            && !aside.contains(&entry.guid)
    }

    /// Whether a port may have virtual functions, which address the SA by a GRH with the GUID that
    /// stands for it: PortInfo does not show whether any are in use.
    fn may_be_virtual(&self, port: PortIndex) -> bool {
        let info = self.fabric.port(port).port_info();
        info.capability_mask().contains(CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED)
            && info.capability_mask2().contains(CapabilityMask2::IS_VIRTUALIZATION_SUPPORTED)
    }

    /// The SA LIDs that clients can be led to.
    fn led_to(&self, sharding: Sharding) -> LedTo {
        let Shards { sa_lids, sa_guids, .. } = &self.shards;
        let answers_virtual =
            |sa_lid: &&SaLid| sharding.virtualized || sa_guids.is_held(sa_lid.port);
        let of_virtual = sa_lids.iter().filter(answers_virtual).copied().collect();
        LedTo { all: sa_lids.clone(), of_virtual }
    }

    /// A service level that reaches a responder from a host: that of the SM, unless an SL-to-VL map
    /// on the path drops it. Routing engines may replace it per path.
    pub(in crate::sweep) fn sl_between_hosts(&self) -> Option<Sl> {
        let usual = Sl::from_low_bits(u16::from(self.settings.sm_sl));
        if !self.settings.qos {
            return Some(usual);
        }
        let tables = &self.qos_tables;
        let passes = |sl: Sl| {
            [&tables.ca, &tables.swe].iter().all(|qos| qos.sl2vl[usize::from(sl.get())] != 15)
        };
        let all = (0..16).map(Sl::from_low_bits);
        std::iter::once(usual).chain(all).find(|&sl| passes(sl))
    }
}

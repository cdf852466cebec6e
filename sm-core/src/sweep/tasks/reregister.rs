//! ClientReregister: asks clients to register again with a new master, at a limited rate. Each
//! sends a dozen requests when it is asked, and those of ten thousand clients would overload the
//! SA.
//!
//! The share of one second is asked by the Set(PortInfo) that names the new master, the others
//! between sweeps, [`STEPS`] times a second. Two kinds of ports are asked at once: those whose link
//! is not Active yet, as their clients have registered nothing, and those that get another LID, as
//! their clients have to know it.
//!
//! If the SA database of another subnet manager is imported (`-S`), all wait until it is read;
//! ports with a registration in it are not asked. All wait as well until it is known whether this
//! SM's copy of the previous master's registry is complete.
//!
//! After a restart the registry holds what clients registered. Active ports that still have our LID
//! as MasterSMLID, and their own LID, wait until forwarding tables are read: if these show that no
//! other subnet manager was master since (`TableFingerprint`), the ports are not asked, except
//! those that had left the fabric and lost registrations.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{CapabilityMask, PortState};
use ib_mad::wire::mad::Status;
use tracing::{debug, info, warn};

use super::Task;
use crate::fabric::PortIndex;
use crate::manage::link;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::fingerprint::TableFingerprint;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::pending_clients::PendingClients;
use crate::sweep::subnet::registry_copy::{ImportedRegistry, RegistryCopy};

/// Steps per second.
const STEPS: u32 = 10;

const STEP: Duration = Duration::from_millis(1000 / STEPS as u64);

/// Delay after the last step before ports that did not answer are asked again.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Time for P_Keys to be set and published before clients are asked that need them.
const PKEYS_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of rounds.
const ROUNDS_MAX: u32 = 5;

/// The task that asks clients to register again. It also owns the writes that move clients to
/// another responder.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Reregistration {
    /// The copy of the registry of the polled master.
    registry_copy: RegistryCopy,
    /// Port GUIDs in the fabric of that master, if known. It has removed what others registered.
    ports_of_master: Option<BTreeSet<Guid>>,
    /// Whether the registry is one for all managers.
    is_shared: bool,
    /// The SA database imported at the start.
    pub(in crate::sweep) imported: ImportedRegistry,
    /// Whether the registrations with the previous master are known, until our first sweep ends.
    spared: bool,
    /// Whether this SM was master before this term, too, beside another one.
    was_master: bool,
    /// Whether clients wait until it is known whether the copy is complete.
    awaits_copy: bool,
    /// The tables that our last run left, until they are compared.
    pub(in crate::sweep) fingerprint: Option<TableFingerprint>,
    due: Option<Instant>,
    rounds: u32,
}

impl Reregistration {
    /// Starts a term as master. `true` if clients need not register again.
    pub(in crate::sweep) fn begin_tenure(
        &mut self,
        subnet: &mut Subnet,
        replaces_another: bool,
    ) -> bool {
        self.spared = replaces_another && self.registry_copy == RegistryCopy::Complete;
        self.awaits_copy = replaces_another && self.registry_copy == RegistryCopy::Pending;
        self.was_master = subnet.election.handover.has_configured;
        subnet.lapsed.asked.clear();
        self.clear(subnet);
        self.spared
    }

    /// Whether clients wait until it is known whether this SM's copy of the registry is complete.
    pub(in crate::sweep) fn awaits_copy(&self) -> bool {
        self.awaits_copy
    }

    /// Sets whether this SM's copy of the previous master's registry is complete.
    pub(in crate::sweep) fn set_copy(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        copy: RegistryCopy,
    ) {
        self.registry_copy = copy;
        let is_known = copy != RegistryCopy::Pending;
        if !is_known || !std::mem::take(&mut self.awaits_copy) || !subnet.election.is_master() {
            return;
        }
        if copy == RegistryCopy::Complete {
            // For the first sweep, if it has not addressed ports yet.
            self.spared = subnet.state.first_as_master;
            self.spare_known(subnet);
            info!("the copy of the registry is complete: clients are not asked to register again");
        } else if !subnet.settings.no_clients_rereg {
            info!("asking all clients to register again");
        }
        self.due = (!subnet.pending_clients.waiting.is_empty()).then_some(now);
    }

    /// Sets the ports in the fabric of the master whose registry was copied.
    pub(in crate::sweep) fn set_ports_of_master(&mut self, ports: Option<BTreeSet<Guid>>) {
        self.ports_of_master = ports;
    }

    /// Sets the ports that have lost registrations in the registry of the previous master, or in
    /// the one that all managers share. Those that become known only now, after the takeover, are
    /// asked.
    pub(in crate::sweep) fn set_lapsed_ports(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        ports: &Arc<BTreeSet<Guid>>,
        is_shared: bool,
    ) {
        self.is_shared = is_shared;
        if Arc::ptr_eq(&subnet.lapsed.ports, ports) {
            return;
        }
        let before = std::mem::replace(&mut subnet.lapsed.ports, ports.clone());
        let is_master = subnet.election.is_master();
        if !is_master || subnet.settings.no_clients_rereg || ports.is_subset(&before) {
            return;
        }
        let tenure = subnet.election.tenure();
        let is_asked = |port: &PortIndex| {
            let entry = subnet.fabric.port(*port);
            let is_new = ports.contains(&entry.guid) && !before.contains(&entry.guid);
            is_new && entry.reregistered_in == tenure
        };
        let asked: Vec<PortIndex> = subnet.fabric.end_ports().filter(is_asked).collect();
        let is_decided = !self.awaits_copy && self.imported != ImportedRegistry::Expected;
        if !asked.is_empty() && is_decided {
            self.due.get_or_insert(now);
        }
        for port in asked {
            subnet.fabric.port_mut(port).reregistered_in = 0;
            subnet.pending_clients.waiting.insert(port);
        }
    }

    /// Marks active ports that the previous master had in its fabric as asked. It has removed what
    /// others registered; one that is not active yet may have been absent, too. Of those that wait,
    /// the others still do. If this SM was master as well, of another part of the fabric, the
    /// registry is its own: ports count that it had. Ports that have lost registrations are asked
    /// in any case.
    fn spare_known(&mut self, subnet: &mut Subnet) {
        let tenure = subnet.election.tenure();
        let is_spared = |port: &PortIndex| {
            let entry = subnet.fabric.port(*port);
            let has_own = self.was_master && !self.is_shared;
            let was_present = match (has_own, &self.ports_of_master) {
                (true, _) => entry.reregistered_in != 0,
                (false, ports) => ports.as_ref().is_none_or(|ports| ports.contains(&entry.guid)),
            };
            let has_lapsed = subnet.lapsed.ports.contains(&entry.guid);
            was_present && !has_lapsed && entry.state() == Some(PortState::Active)
        };
        let ports: Vec<PortIndex> = subnet.fabric.end_ports().filter(is_spared).collect();
        ports.into_iter().for_each(|port| subnet.fabric.port_mut(port).reregistered_in = tenure);
        let mut waiting = std::mem::take(&mut subnet.pending_clients.waiting);
        waiting.retain(|port| subnet.fabric.port(*port).reregistered_in != tenure);
        self.clear(subnet);
        subnet.pending_clients.waiting = waiting;
    }

    /// A sweep as master addressed all ports.
    pub(in crate::sweep) fn end_sweep(&mut self) {
        self.spared = false;
    }

    /// Discards all pending clients.
    pub(in crate::sweep) fn clear(&mut self, subnet: &mut Subnet) {
        subnet.pending_clients = PendingClients::default();
        (self.due, self.rounds) = (None, 0);
    }

    /// Discards the tables of our last run: another subnet manager has been master.
    pub(in crate::sweep) fn forget_fingerprint(&mut self) {
        self.fingerprint = None;
    }

    /// Asks the clients at these ports to register again, once P_Keys are set: what was refused
    /// before may be granted now.
    pub(in crate::sweep) fn ask(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        ports: impl IntoIterator<Item = PortIndex>,
    ) {
        if subnet.settings.no_clients_rereg {
            return;
        }
        for port in ports {
            subnet.fabric.port_mut(port).reregistered_in = 0;
            subnet.pending_clients.waiting.insert(port);
        }
        self.due.get_or_insert(now + PKEYS_DELAY);
    }

    /// Decides which clients wait, before the first sweep as master addresses ports.
    pub(in crate::sweep) fn stagger(&mut self, subnet: &mut Subnet, now: Instant) {
        if !subnet.state.first_as_master {
            return;
        }
        subnet.state.found_other_master = obeys_another(subnet);
        let tenure = subnet.election.tenure();
        if self.spared {
            self.spare_known(subnet);
        }
        self.clear(subnet);
        if self.spared || subnet.settings.no_clients_rereg {
            return;
        }
        let can_wait = |port: &PortIndex| {
            let entry = subnet.fabric.port(*port);
            let lid = subnet.lids.get(entry.guid).map(|range| range.first);
            let mask = entry.port_info().capability_mask();
            mask.contains(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED)
                && entry.state() == Some(PortState::Active)
                && entry.reregistered_in != tenure
                && lid == Some(entry.base_lid())
        };
        let (sm_lid, has_fingerprint) = (subnet.sm_lid(), self.fingerprint.is_some());
        let is_still_ours =
            |port: &PortIndex| subnet.fabric.port(*port).port_info().master_sm_lid() == sm_lid;
        let ports = subnet.fabric.end_ports().filter(can_wait);
        let (unverified, mut ports): (Vec<_>, Vec<_>) =
            ports.partition(|port| has_fingerprint && is_still_ours(port));
        ports.retain(|port| self.awaits_copy || Some(*port) != subnet.fabric.sm_port());
        ports.sort_unstable();
        let count = ports.len();
        let rate = subnet.settings.client_rereg_rate as usize;
        let awaits_import = self.imported == ImportedRegistry::Expected;
        let at_once = match rate {
            _ if awaits_import || self.awaits_copy => 0,
            0 => usize::MAX,
            rate => rate,
        };
        let waiting = ports.into_iter().skip(at_once).collect();
        let unverified = unverified.into_iter().collect();
        subnet.pending_clients = PendingClients { waiting, unverified, lost: BTreeSet::new() };
        if awaits_import {
            debug!("{count} clients wait until the imported SA database is read");
        } else if self.awaits_copy {
            debug!("{count} clients wait until it is known whether the registry is complete");
        } else if count > at_once {
            info!("{count} clients are asked to register again, {rate} a second");
            self.due = Some(now + Duration::from_secs(1));
        }
    }

    pub(in crate::sweep) fn set_imported(
        &mut self,
        subnet: &mut Subnet,
        now: Instant,
        imported: ImportedRegistry,
    ) {
        if self.imported == imported {
            return;
        }
        let before = std::mem::replace(&mut self.imported, imported);
        if before != ImportedRegistry::Expected || subnet.pending_clients.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut subnet.pending_clients.waiting);
        let all = waiting.len();
        let is_known = |port: &PortIndex| match &self.imported {
            ImportedRegistry::Read(known) => known.contains(&subnet.fabric.port(*port).guid),
            ImportedRegistry::None | ImportedRegistry::Expected => false,
        };
        let (spared, asked): (BTreeSet<_>, BTreeSet<_>) = waiting.into_iter().partition(is_known);
        info!(
            "the SA database has registrations of {} of {all} clients; the others are asked to \
             register again",
            spared.len()
        );
        let tenure = subnet.election.tenure();
        spared.into_iter().for_each(|port| subnet.fabric.port_mut(port).reregistered_in = tenure);
        self.due = (!asked.is_empty()).then_some(now);
        subnet.pending_clients.waiting = asked;
    }

    /// Forwarding tables were read: decides about the ports that waited for that.
    pub(in crate::sweep) fn tables_read(&mut self, subnet: &mut Subnet, now: Instant) {
        let Some(left) = self.fingerprint.take() else { return };
        let unverified = std::mem::take(&mut subnet.pending_clients.unverified);
        let has_lapsed =
            |port: &PortIndex| subnet.lapsed.ports.contains(&subnet.fabric.port(*port).guid);
        let is_ours = left.matches(&subnet.fabric);
        let (spared, asked): (BTreeSet<_>, BTreeSet<_>) =
            unverified.into_iter().partition(|port| is_ours && !has_lapsed(port));
        let (spared_count, asked_count) = (spared.len(), asked.len());
        if is_ours {
            info!(
                "no other SM was master since the last run: {spared_count} clients are not asked \
                 to register again, {asked_count} that had left the fabric are"
            );
        } else if asked_count > 0 {
            info!(
                "another SM may have been master since the last run: asking {asked_count} \
                 clients to register again"
            );
        }
        let tenure = subnet.election.tenure();
        spared.into_iter().for_each(|port| subnet.fabric.port_mut(port).reregistered_in = tenure);
        if !asked.is_empty() {
            subnet.pending_clients.waiting.extend(asked);
            self.due.get_or_insert(now);
        }
    }

    /// A port could not be addressed: it is tried again.
    fn lost(&mut self, subnet: &mut Subnet, now: Instant, port: PortIndex) {
        let place = subnet.fabric.describe(port);
        debug!("{place}: could not set MasterSMLID and MasterSMSL");
        if subnet.fabric.port(port).reregistered_in != subnet.election.tenure() {
            debug!("{place}: could not ask its clients to register again");
            subnet.pending_clients.lost.insert(port);
            self.due.get_or_insert(now + RETRY_DELAY);
        }
        let guid = subnet.fabric.port(port).guid;
        subnet.shards.forget(guid);
    }
}

impl Task for Reregistration {
    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Sends the requests of one step.
    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        let rate = subnet.settings.client_rereg_rate;
        let share = if rate == 0 { usize::MAX } else { rate.div_ceil(STEPS) as usize };
        let turn: Vec<PortIndex> =
            subnet.pending_clients.waiting.iter().copied().take(share).collect();
        for port in turn {
            subnet.pending_clients.waiting.remove(&port);
            if subnet.fabric.is_end_port(port) && subnet.wanted_address(port).is_some() {
                subnet.exchange.push(Request::new(Kind::Readdress, port));
            }
        }
        self.due = Some(now + STEP);
        let pending = &mut subnet.pending_clients;
        if pending.waiting.is_empty() {
            let lost = std::mem::take(&mut pending.lost);
            self.rounds += 1;
            self.due = None;
            if lost.is_empty() {
                info!("all clients were asked to register again");
            } else if self.rounds > ROUNDS_MAX {
                warn!("{} clients could not be asked to register again", lost.len());
            } else {
                pending.waiting = lost;
                self.due = Some(now + RETRY_DELAY);
            }
        }
    }

    fn settled(&mut self, subnet: &mut Subnet, _: Instant) {
        subnet.report_moved_clients();
    }

    /// A sweep may address the same ports.
    fn yields_to_sweeps(&self) -> bool {
        true
    }
}

impl RequestOwner for Reregistration {
    type Kind = kinds::Reregistration;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::Reregistration::Readdress => {
                *data = subnet.wanted_address(request.port())?;
                Some(link::modifier(&subnet.fabric, request.port()))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        subnet.address_set(request, data);
        subnet.client_moved();
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, _: Status) {
        let OwnedRequest { request, now, .. } = owned;
        self.lost(subnet, now, request.port());
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { request, now, .. } = owned;
        self.lost(subnet, now, request.port());
    }
}

/// Whether an active end port has another MasterSMLID than the SM's.
fn obeys_another(subnet: &Subnet) -> bool {
    let sm_lid = subnet.sm_lid();
    subnet.fabric.end_ports().any(|port| {
        let entry = subnet.fabric.port(port);
        let master = entry.port_info().master_sm_lid();
        entry.state() == Some(PortState::Active) && master.is_unicast() && master != sm_lid
    })
}

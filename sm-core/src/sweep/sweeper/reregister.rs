//! Reregistration of clients: takes what the caller knows of imported and copied registries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::sweep::subnet::fingerprint::TableFingerprint;
use crate::sweep::subnet::registry_copy::{ImportedRegistry, RegistryCopy};

impl Sweeper {
    /// Number of clients that have not been asked to register again yet.
    pub fn clients_to_ask(&self) -> usize {
        self.subnet.pending_clients.count()
    }

    /// Takes the port GUIDs among those with [lost registrations](Self::set_lapsed_ports) that were
    /// asked to register again, and have answered.
    pub fn take_asked(&mut self) -> Vec<Guid> {
        std::mem::take(&mut self.subnet.lapsed.asked)
    }

    /// Sets the tables that the last run left in switches, if the registrations with it are known
    /// completely. Call it before this SM is master.
    pub fn set_fingerprint(&mut self, left: Option<TableFingerprint>) {
        self.reregistration.fingerprint = left;
    }

    /// Whether this SM is master and all clients have been asked: then the next run can continue
    /// from [`TableFingerprint::of`].
    pub fn is_settled(&self) -> bool {
        self.subnet.state.up && !self.subnet.state.first_as_master && self.clients_to_ask() == 0
    }

    /// Sets whether this SM has all registrations of the previous master: if so at a takeover, no
    /// client is asked to register again. If that is pending at a takeover, clients wait until it
    /// is set again.
    pub fn set_registry_copy(&mut self, now: Instant, copy: RegistryCopy) {
        self.reregistration.set_copy(&mut self.subnet, now, copy);
    }

    /// Sets the port GUIDs in the fabric of the master whose registry was copied; `None` if they
    /// are unknown. Other ports are asked in any case. Call it before
    /// [`set_registry_copy`](Self::set_registry_copy).
    pub fn set_ports_of_master(&mut self, ports: Option<BTreeSet<Guid>>) {
        self.reregistration.set_ports_of_master(ports);
    }

    /// Sets the ports that have lost registrations because they left the fabric, in the registry of
    /// the previous master or in the one that all managers share. A takeover asks them in any case.
    /// Cheap if they are the same.
    pub fn set_lapsed_ports(&mut self, now: Instant, ports: &Arc<BTreeSet<Guid>>, is_shared: bool) {
        self.reregistration.set_lapsed_ports(&mut self.subnet, now, ports, is_shared);
    }

    /// Sets the state of the SA database imported at the start. Call it before this SM is master,
    /// and when it changes: clients that wait for it are then asked, unless it has their
    /// registrations.
    pub fn set_imported_registry(&mut self, now: Instant, imported: ImportedRegistry) {
        self.reregistration.set_imported(&mut self.subnet, now, imported);
    }
}

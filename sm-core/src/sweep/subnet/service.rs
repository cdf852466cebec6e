//! Which end ports are in service, and which came or went with a sweep (traps 64 and 65).

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Guid, PKey};

/// End ports that came into or went out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortsChanged {
    /// Port GUIDs now in service, with P_Keys, ascending.
    pub came: Vec<(Guid, Arc<[PKey]>)>,
    /// Port GUIDs no longer in service, with the P_Keys that they had, ascending.
    pub went: Vec<(Guid, Arc<[PKey]>)>,
}

/// End ports in service by port GUID, with their P_Keys.
#[derive(Debug, Default)]
pub(in crate::sweep) struct InService {
    pub(in crate::sweep) ports: BTreeMap<Guid, Arc<[PKey]>>,
}

impl InService {
    /// Records the ports in service.
    pub(in crate::sweep) fn replace(&mut self, ports: BTreeMap<Guid, Arc<[PKey]>>) -> PortsChanged {
        let only_in = |a: &BTreeMap<Guid, Arc<[PKey]>>, b: &BTreeMap<Guid, Arc<[PKey]>>| {
            let alone = a.iter().filter(|(guid, _)| !b.contains_key(guid));
            alone.map(|(guid, pkeys)| (*guid, pkeys.clone())).collect()
        };
        let changed =
            PortsChanged { came: only_in(&ports, &self.ports), went: only_in(&self.ports, &ports) };
        self.ports = ports;
        changed
    }
}

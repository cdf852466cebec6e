//! Which end ports are in service, and which came or went with a sweep (traps 64 and 65).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ib_mad::types::{Guid, PKey};
use ib_mad::wire::attribute::PortState;

use super::{Event, Sweeper};

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
pub(super) struct InService {
    ports: BTreeMap<Guid, Arc<[PKey]>>,
}

impl InService {
    /// Records the ports in service.
    fn replace(&mut self, ports: BTreeMap<Guid, Arc<[PKey]>>) -> PortsChanged {
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

impl Sweeper {
    /// Finds the end ports that came into or went out of service. The first sweep of a master
    /// reports none, because it does not know the earlier state.
    pub(super) fn compare_service(&mut self, first: bool) {
        let sm_port = self.subnet.fabric.sm_port();
        let serves = |&port: &_| {
            let active = self.subnet.fabric.port(port).state() == Some(PortState::Active);
            let is_switch = self.subnet.fabric.node_of(port).switch.is_some();
            active || is_switch || Some(port) == sm_port
        };
        let ports = self
            .subnet
            .fabric
            .end_ports()
            .filter(serves)
            .map(|port| {
                (self.subnet.fabric.port(port).guid, self.subnet.fabric.port(port).pkeys.clone())
            })
            .collect();
        let changed = self.subnet.state.in_service.replace(ports);
        if !changed.went.is_empty() {
            let there: HashSet<Guid> = self
                .subnet
                .fabric
                .end_ports()
                .map(|port| self.subnet.fabric.port(port).guid)
                .collect();
            for (port, _) in &changed.went {
                // One that is there but not active may have been reset, and stays registered.
                if there.contains(port) {
                    self.aliases.forget(*port);
                } else {
                    self.aliases.remove(*port);
                }
            }
        }
        if !first && changed != PortsChanged::default() {
            self.subnet.events.push(Event::PortsChanged(changed));
        }
    }
}

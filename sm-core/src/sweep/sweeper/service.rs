//! Compares the end ports in service with those of the last sweep.

use std::collections::HashSet;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::PortState;

use super::Sweeper;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::service::PortsChanged;

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
            .map(|port| (self.subnet.fabric.port(port).guid, self.subnet.fabric.pkeys_of(port)))
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
                    self.aliases.forget(&mut self.subnet, *port);
                    self.virtual_ports.forget(*port);
                } else {
                    self.aliases.remove(&mut self.subnet, *port);
                }
            }
        }
        if !first && changed != PortsChanged::default() {
            self.subnet.events.push(Event::PortsChanged(changed));
        }
    }
}

//! Virtual ports: read access for callers.

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::sweep::tasks::virtual_ports::Counters;
use crate::sweep::tasks::virtual_ports::trouble::Trouble;

impl Sweeper {
    /// Ports whose virtual ports are not all set up, each with the reason.
    pub fn virtual_port_troubles(&self) -> impl Iterator<Item = (PortIndex, Trouble)> + '_ {
        self.virtual_ports.troubles()
    }

    /// Counters of the setup of virtual ports.
    pub fn virtual_port_counters(&self) -> Counters {
        self.virtual_ports.counters()
    }
}

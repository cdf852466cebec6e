//! Virtual ports of adapters: gives them to ports, plugs and unplugs virtual functions.

use std::time::Instant;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::NodeType;

use super::Fabric;
use super::control::ControlError;
use crate::agent::virtual_port::{self, VirtualPortView};
use crate::subnet::NodeIndex;

impl Fabric {
    /// Gives each port of a channel adapter virtual ports with indices up to `cap`. Index 0 is the
    /// physical function; the others are not plugged. Earlier ones are replaced.
    pub fn add_virtual_ports(&mut self, node: NodeIndex, cap: u16) -> Result<(), ControlError> {
        self.check_node(node)?;
        if self.subnet[node].node_type != NodeType::Ca {
            return Err(ControlError::NoAdapter(self.subnet.name(node).to_owned()));
        }
        let ports: Vec<_> = self.subnet.ports_of(node).collect();
        ports.into_iter().for_each(|port| virtual_port::add(&mut self.subnet, port, cap));
        Ok(())
    }

    /// Gives all channel adapters `count` virtual ports besides index 0, plugged.
    pub fn add_virtual_ports_everywhere(&mut self, now: Instant, count: u16) {
        let nodes = self.nodes().filter(|&node| self.subnet[node].node_type == NodeType::Ca);
        let ports: Vec<_> = nodes.flat_map(|node| self.subnet.ports_of(node)).collect();
        for port in ports {
            virtual_port::add(&mut self.subnet, port, count);
            for index in 1..=count {
                virtual_port::plug(&mut self.subnet, port, index, None, true);
            }
        }
        self.run_effects(now);
    }

    /// Plugs a virtual function: its virtual port leaves Down. Without a GUID it has its last one,
    /// or one made from that of the physical port.
    pub fn virtual_port_up(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        index: u16,
        guid: Option<Guid>,
    ) -> Result<(), ControlError> {
        self.change_virtual_port(now, node, port, index, |fabric, at| {
            virtual_port::plug(&mut fabric.subnet, at, index, guid, true)
        })
    }

    /// Unplugs a virtual function: its virtual port goes Down.
    pub fn virtual_port_down(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        index: u16,
    ) -> Result<(), ControlError> {
        self.change_virtual_port(now, node, port, index, |fabric, at| {
            virtual_port::plug(&mut fabric.subnet, at, index, None, false)
        })
    }

    /// Sets LIDRequired of a virtual port.
    pub fn set_virtual_port_needs_lid(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        index: u16,
        needs: bool,
    ) -> Result<(), ControlError> {
        self.change_virtual_port(now, node, port, index, |fabric, at| {
            virtual_port::set_needs_lid(&mut fabric.subnet, at, index, needs)
        })
    }

    /// The virtual ports of a port, ascending by index; none if it has none.
    pub fn virtual_ports(&self, node: NodeIndex, port: u8) -> Vec<VirtualPortView> {
        let port = self.subnet.port(node, port);
        port.map_or_else(Vec::new, |port| virtual_port::views(&self.subnet, port))
    }

    fn change_virtual_port(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        index: u16,
        change: impl FnOnce(&mut Self, crate::subnet::PortIndex) -> bool,
    ) -> Result<(), ControlError> {
        let at = self.find_port(node, port)?;
        if !change(self, at) {
            let node = self.subnet.name(node).to_owned();
            return Err(ControlError::NoVirtualPort { node, port, index });
        }
        self.run_effects(now);
        Ok(())
    }
}

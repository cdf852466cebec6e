//! Cables that are laid, taken out and moved while the fabric is simulated.

use std::time::Instant;

use super::Fabric;
use super::control::ControlError;
use crate::subnet::{NodeIndex, PortIndex};

impl Fabric {
    /// Takes the cable at a port out of both ends. Faults of the cable go with it.
    pub fn disconnect(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
    ) -> Result<(), ControlError> {
        let (port, peer) = self.find_link(node, port)?;
        self.subnet.drop_link(port);
        self.subnet.disconnect(port);
        self.faults.forget_link([port, peer]);
        self.run_effects(now);
        Ok(())
    }

    /// Lays a cable between two ports that have none; the link comes up if both ends can.
    pub fn connect(
        &mut self,
        now: Instant,
        near: (NodeIndex, u8),
        far: (NodeIndex, u8),
    ) -> Result<(), ControlError> {
        let [a, b] = [self.find_socket(near)?, self.find_socket(far)?];
        if a == b {
            return Err(self.no_socket(far));
        }
        self.subnet.connect(a, b);
        self.subnet.settle(a);
        self.run_effects(now);
        Ok(())
    }

    /// Takes the cable at a port out, and plugs it into another port, which has none. The far end
    /// stays.
    pub fn move_cable(
        &mut self,
        now: Instant,
        from: (NodeIndex, u8),
        to: (NodeIndex, u8),
    ) -> Result<(), ControlError> {
        let (_, far) = self.find_link(from.0, from.1)?;
        self.find_socket(to)?;
        let far = (self.subnet[far].node, self.subnet[far].number);
        self.disconnect(now, from.0, from.1)?;
        self.connect(now, far, to)
    }

    /// A port for a cable, which has none.
    fn find_socket(&self, (node, number): (NodeIndex, u8)) -> Result<PortIndex, ControlError> {
        let port = self.find_port(node, number)?;
        if number == 0 {
            return Err(self.no_socket((node, number)));
        }
        match self.subnet.peer(port) {
            None => Ok(port),
            Some(_) => {
                let node = self.subnet.name(node).to_owned();
                Err(ControlError::HasCable { node, port: number })
            }
        }
    }

    fn no_socket(&self, (node, port): (NodeIndex, u8)) -> ControlError {
        ControlError::NoSocket { node: self.subnet.name(node).to_owned(), port }
    }
}

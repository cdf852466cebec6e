//! Events of congestion control, and nodes without it.

use std::time::Instant;

use ib_mad::types::Sl;

use super::Fabric;
use super::control::ControlError;
use crate::agent::congestion::{self, Flow};
use crate::subnet::NodeIndex;

impl Fabric {
    /// Logs events of congestion at a port: packets that its switch marked on their way out, or
    /// queue pairs of an adapter that were slowed down. `flow` has the nodes where the packets come
    /// from and go to; without, the port's own node. Fails unless the settings of the node make it
    /// mark packets, or log.
    pub fn congest(
        &mut self,
        now: Instant,
        node: NodeIndex,
        port: u8,
        number: u16,
        flow: Option<(NodeIndex, NodeIndex)>,
        sl: Sl,
    ) -> Result<(), ControlError> {
        let at = self.find_port(node, port)?;
        let (from, to) = flow.unwrap_or((node, node));
        let lid = |node| {
            let port = self.subnet.management_port(self.subnet.default_port(node));
            self.subnet.port_info(port).base_lid()
        };
        let flow = Flow { slid: lid(from), dlid: lid(to), sl };
        if congestion::note(&mut self.subnet, now, at, flow, number) {
            return Ok(());
        }
        Err(ControlError::DoesNotMark { node: self.subnet.name(node).to_owned(), port })
    }

    /// Sets whether the agents of a node know the class of congestion control.
    pub fn set_congestion_class(
        &mut self,
        node: NodeIndex,
        is_known: bool,
    ) -> Result<(), ControlError> {
        self.check_node(node)?;
        let ports: Vec<_> = self.subnet.ports_of(node).collect();
        for port in ports {
            let port = self.subnet.management_port(port);
            self.subnet.congestion.set_supported(port, is_known);
        }
        Ok(())
    }
}

//! Whether a node is like it was before, so that tables can be patched.

use ib_mad::types::Guid;
use sa_proto::snapshot::Port;

use super::{Scanned, info};
use crate::tables::limit::RateSupport;

impl Scanned<'_> {
    /// Whether this and the same node before differ at most in what a patch of the tables covers:
    /// links between switches, their limits, P_Keys, and the bytes of PortInfo and SwitchInfo.
    /// `is_switch_node` says of a node by its GUID whether it is a switch.
    pub(in super::super) fn is_like(
        &self,
        then: &Self,
        is_switch_node: impl Fn(Guid) -> bool,
    ) -> bool {
        let (now_node, then_node) = (self.node, then.node);
        let is_to_host = |port: &Port| port.peer.is_some_and(|(peer, _)| !is_switch_node(peer));
        let same_port = |now: &Port, before: &Port| {
            let is_end = self.is_end_port(now);
            // Ends of links to end ports, whose classes have the limits of both.
            let is_edge = is_end || is_to_host(now) || is_to_host(before);
            let of_edge = !is_edge
                || (now.peer == before.peer
                    && self.limit(now) == then.limit(before)
                    && RateSupport::of_port(&info(now)) == RateSupport::of_port(&info(before)));
            (now.num, now.guid) == (before.num, before.guid)
                && self.lid(now) == then.lid(before)
                && is_end == then.is_end_port(before)
                && of_edge
        };
        now_node.guid == then_node.guid
            && now_node.description == then_node.description
            && (self.kind, self.quirk_mtu) == (then.kind, then.quirk_mtu)
            && !self.has_planes()
            && !then.has_planes()
            && now_node.ports.len() == then_node.ports.len()
            && now_node.ports.iter().zip(&then_node.ports).all(|(a, b)| same_port(a, b))
    }

    /// Whether the ports of this node, which [is like](Self::is_like) that before, have its P_Keys.
    pub(in super::super) fn has_same_keys(&self, then: &Self) -> bool {
        let mut ports = self.node.ports.iter().zip(&then.node.ports);
        ports.all(|(now, before)| self.keys(now) == then.keys(before))
    }
}

//! The ports that a request selects, as far as its sender may see them.

use ib_mad::types::{Lid, PortNum};
use sa_proto::snapshot::Port;

use super::Query;
use crate::tables::{EndPort, NodeRows};

/// A port that the requester may see.
pub(super) struct SeenPort<'a> {
    pub(super) node: &'a NodeRows,
    pub(super) port: &'a Port,
    /// Base LID; for a switch port, that of port 0.
    pub(super) lid: Lid,
}

impl SeenPort<'_> {
    /// Whether it is a port with its own LID.
    pub(super) fn is_end_port(&self) -> bool {
        !self.node.is_switch || self.port.num == PortNum(0)
    }
}

impl<'a> Query<'a> {
    /// All ports; only the one that has `lid` (of a switch, every port), if it is given. Of
    /// switches only ports with number `num`, if that is given: in requests about other nodes port
    /// numbers are reserved.
    pub(super) fn ports(
        &'a self,
        requester: &'a EndPort,
        lid: Option<Lid>,
        num: Option<PortNum>,
    ) -> impl Iterator<Item = SeenPort<'a>> {
        let sight = self.sight(requester);
        self.nodes(lid).flat_map(move |(node, base)| {
            self.tables.records.ports_of(node).filter_map(move |(port, lid, owner)| {
                let selected = base.is_none_or(|base| lid == base)
                    && (!node.is_switch || num.is_none_or(|num| port.num == num))
                    && sight.has(owner);
                selected.then_some(SeenPort { node, port, lid })
            })
        })
    }

    /// Port 0 of all switches, or of the one that has `lid`.
    pub(super) fn switches(
        &'a self,
        requester: &'a EndPort,
        lid: Option<Lid>,
    ) -> impl Iterator<Item = SeenPort<'a>> {
        let sight = self.sight(requester);
        self.nodes(lid).filter(|(node, _)| node.is_switch).filter_map(move |(node, _)| {
            // Ports are in the order of their numbers.
            let (port, lid, owner) = self.tables.records.ports_of(node).next()?;
            let selected = port.num == PortNum(0) && sight.has(owner);
            selected.then_some(SeenPort { node, port, lid })
        })
    }

    /// All nodes; the one that has `lid`, with the base LID of the port that has it.
    fn nodes(&'a self, lid: Option<Lid>) -> impl Iterator<Item = (&'a NodeRows, Option<Lid>)> {
        let records = &self.tables.records;
        let (nodes, base) = match lid {
            None => (records.all_nodes(), None),
            Some(lid) => {
                let node = records.node_by_lid(lid).map_or(&[][..], std::slice::from_ref);
                // A LID with a node has a port: both tables have the same LIDs.
                (node, Some(self.tables.end_ports.by_lid(lid).map_or(Lid::NONE, |port| port.lid)))
            }
        };
        nodes.iter().map(move |node| (node, base))
    }
}

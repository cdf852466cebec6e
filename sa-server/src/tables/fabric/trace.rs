//! Follows one path hop by hop through the forwarding tables.
//!
//! Queries use path classes instead. This is for what they do not contain: the SLs that get through
//! where ports differ, and the hops in explanations for operators.

use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::PortInfo;
use sa_proto::snapshot::{Lft, Node, Port, find};

use super::{EndPort, Tables};

/// Maximum number of switches followed; more than any loop-free path has.
const HOPS_MAX: usize = 256;

/// A node that a packet leaves on its way, or the switch that it ends in.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The node.
    pub node: &'a Node,
    /// Port by which it came in; 0 where it starts.
    pub entry: PortNum,
    /// Port by which the packet leaves; 0 if it ends in this switch.
    pub exit: PortNum,
}

impl Step<'_> {
    /// Whether the node is a switch.
    pub fn is_switch(&self) -> bool {
        self.node.switch_info.is_some()
    }
}

/// Where a packet got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// To the destination.
    Delivered,
    /// To a switch that has no route.
    NoRoute,
    /// To a port without link.
    NoLink,
    /// To another node than it was sent to.
    Misdelivered,
    /// The route loops.
    Loop,
}

impl Tables {
    /// Follows a packet from `source` to `dlid`, a LID of `destination`; calls `visit` for every
    /// node that it leaves.
    pub(crate) fn trace<'a>(
        &'a self,
        source: &EndPort,
        destination: &EndPort,
        dlid: Lid,
        mut visit: impl FnMut(&Step<'a>),
    ) -> Arrival {
        let (Some((node, port)), Some((target, target_port))) =
            (self.node_and_port(source), self.node_and_port(destination))
        else {
            return Arrival::NoRoute;
        };
        let mut step = Step { node, entry: PortNum(0), exit: port.num };
        if let Some(exit) = self.plane_to(source, destination, dlid) {
            step.exit = exit;
        }
        self.follow(step, (target, target_port), dlid, &mut visit)
    }

    /// Follows a packet that leaves a node, to a port with that LID.
    fn follow<'a>(
        &'a self,
        mut step: Step<'a>,
        (target, target_port): (&Node, &Port),
        dlid: Lid,
        mut visit: impl FnMut(&Step<'a>),
    ) -> Arrival {
        let node = step.node;
        // Each plane of a planarized port has its GUID.
        let is_target = |entry: PortNum| {
            let port = target.port(entry);
            entry == target_port.num || port.is_some_and(|port| port.guid == target_port.guid)
        };
        if step.is_switch() {
            let Some(exit) = self.exit(node.guid, dlid) else { return Arrival::NoRoute };
            step.exit = exit;
        } else if node.guid == target.guid && is_target(step.exit) {
            visit(&step);
            return Arrival::Delivered;
        }
        for _ in 0..HOPS_MAX {
            visit(&step);
            if step.is_switch() && step.exit == PortNum(0) {
                let is_there = step.node.guid == target.guid;
                return if is_there { Arrival::Delivered } else { Arrival::Misdelivered };
            }
            let Some((peer, entry)) = step.node.port(step.exit).and_then(|port| port.peer) else {
                return Arrival::NoLink;
            };
            let Some(node) = self.node(peer) else { return Arrival::NoLink };
            if node.switch_info.is_none() {
                let is_there = node.guid == target.guid && is_target(entry);
                return if is_there { Arrival::Delivered } else { Arrival::Misdelivered };
            }
            let Some(exit) = self.exit(node.guid, dlid) else { return Arrival::NoRoute };
            step = Step { node, entry, exit };
        }
        Arrival::Loop
    }

    /// The port by which a packet leaves a planarized port: in the first plane that leads to its
    /// destination. `None` if the port is not planarized, or no plane does.
    fn plane_to(&self, source: &EndPort, destination: &EndPort, dlid: Lid) -> Option<PortNum> {
        let (node, port) = self.node_and_port(source).filter(|_| self.has_planes())?;
        let target = self.node_and_port(destination)?;
        let leads_there = |plane: &&Port| {
            let step = Step { node, entry: PortNum(0), exit: plane.num };
            self.follow(step, target, dlid, |_| {}) == Arrival::Delivered
        };
        let planes = node.ports.iter().filter(|plane| plane.guid == port.guid);
        planes.filter(|_| node.switch_info.is_none()).find(leads_there).map(|plane| plane.num)
    }

    /// The node with this GUID.
    pub(crate) fn node(&self, guid: Guid) -> Option<&Node> {
        find(&self.plane.nodes, guid).map(|node| &**node)
    }

    /// Whether an end port is port 0 of a switch.
    pub(crate) fn is_switch(&self, end: &EndPort) -> bool {
        let node = self.records.node_by_lid(end.lid).and_then(|rows| self.node(rows.guid));
        node.is_some_and(|node| node.switch_info.is_some())
    }

    /// An end port's node and the port itself.
    pub(crate) fn node_and_port(&self, end: &EndPort) -> Option<(&Node, &Port)> {
        let node = self.node(self.records.node_by_lid(end.lid)?.guid)?;
        let has_lid = |port: &&Port| {
            PortInfo::new(&port.info[..]).is_ok_and(|info| info.base_lid() == end.lid)
        };
        let port = match node.switch_info {
            Some(_) => node.port(PortNum(0)),
            None => node.ports.iter().find(has_lid),
        };
        Some((node, port?))
    }

    /// The port by which a switch sends on to `dlid`.
    fn exit(&self, switch: Guid, dlid: Lid) -> Option<PortNum> {
        let port = *find(&self.plane.lfts, switch)?.ports.get(dlid.index())?;
        (port != Lft::NO_ROUTE).then_some(PortNum(port))
    }
}

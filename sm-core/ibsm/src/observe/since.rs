//! Since when ports of the published fabric are as they are.
//!
//! A port changes if its state, its far end, or the width or speed of its link does. What goes and
//! returns between two published fabrics is not noticed. A port that has not changed since this
//! manager began to look may have been so for longer. With a history, it began with the last fabric
//! of before the restart.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::PortInfo;
use sa_proto::snapshot::{FabricPlane, Node, Port};

use super::links;
use super::ports::KeptFabric;

/// Since when a port is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// Milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// Whether it changed then; it may have been so before.
    pub(crate) is_exact: bool,
}

/// Watches one published fabric after the other.
#[derive(Debug, Default)]
pub(super) struct PortsSince {
    /// The last fabric.
    plane: Option<Arc<FabricPlane>>,
    /// By node: when each of its ports changed, in the order of its row.
    by_node: BTreeMap<Guid, Box<[Since]>>,
    /// The fabric before the restart, and since when it was so.
    before: Option<(u64, KeptFabric)>,
}

impl PortsSince {
    /// Compares the first published fabric with the one before a restart, which was so since
    /// `time_ms`.
    pub(super) fn resume_from(&mut self, time_ms: u64, before: KeptFabric) {
        self.before = Some((time_ms, before));
    }

    /// Notes a published fabric at `time_ms`, since 1970.
    pub(super) fn follow(&mut self, time_ms: u64, plane: &Arc<FabricPlane>) {
        let is_known = self.plane.as_ref().is_some_and(|known| Arc::ptr_eq(known, plane));
        if is_known || plane.nodes.is_empty() {
            return;
        }
        self.by_node = match self.plane.take() {
            Some(last) => self.after(&last, time_ms, plane),
            None => self.first(time_ms, plane),
        };
        self.plane = Some(plane.clone());
    }

    /// Since when the ports of a node are as they are, ascending by number.
    pub(super) fn of_node(&self, guid: Guid) -> Vec<(PortNum, Since)> {
        let nodes = self.plane.as_ref().map_or(&[][..], |plane| &plane.nodes);
        let Ok(at) = nodes.binary_search_by_key(&guid, |node| node.guid) else { return Vec::new() };
        let since = self.by_node.get(&guid).into_iter().flatten().copied();
        nodes[at].ports.iter().map(|port| port.num).zip(since).collect()
    }

    /// Of the first fabric: equal ports of before the restart are so at least since then.
    fn first(&mut self, time_ms: u64, plane: &FabricPlane) -> BTreeMap<Guid, Box<[Since]>> {
        let before = self.before.take();
        let peers = before.as_ref().map(|(_, fabric)| fabric.topology.peers()).unwrap_or_default();
        let of_port = |node: &Node, port: &Port| {
            let Some((before_ms, fabric)) = &before else {
                return Since { time_ms, is_exact: false };
            };
            let end = (node.guid, port.num);
            let is_known = fabric.topology.nodes.contains_key(&node.guid);
            let far = peers.get(&end);
            let link = far.and_then(|far| fabric.topology.links.get(&end.min(*far)));
            let rate = links::End::new(node, port).map(|end| end.active());
            let is_same = is_known
                && port.peer == far.copied()
                && link
                    .is_none_or(|link| link.rate.is_empty() || Some(&link.rate) == rate.as_ref())
                && fabric.ports.at(end).is_none_or(|was| was.is_in_states_of(port));
            let time_ms = if is_same { *before_ms } else { time_ms };
            Since { time_ms, is_exact: false }
        };
        let of_node = |node: &Arc<Node>| {
            (node.guid, node.ports.iter().map(|port| of_port(node, port)).collect())
        };
        plane.nodes.iter().map(of_node).collect()
    }

    /// Of a fabric after the last one. Nodes whose rows it shares are not compared.
    fn after(
        &mut self,
        last: &FabricPlane,
        time_ms: u64,
        plane: &FabricPlane,
    ) -> BTreeMap<Guid, Box<[Since]>> {
        let mut earlier = last.nodes.iter().peekable();
        let mut of_node = |node: &Arc<Node>| {
            while earlier.next_if(|other| other.guid < node.guid).is_some() {}
            let was = earlier.peek().filter(|other| other.guid == node.guid);
            let known = self.by_node.remove(&node.guid);
            let (Some(was), Some(known)) = (was, known) else {
                let now = Since { time_ms, is_exact: true };
                return (node.guid, node.ports.iter().map(|_| now).collect());
            };
            if Arc::ptr_eq(was, node) {
                return (node.guid, known);
            }
            let of_port = |port: &Port| {
                let at = was.ports.binary_search_by_key(&port.num, |port| port.num).ok();
                let is_same = at.is_some_and(|at| is_alike(&was.ports[at], port));
                let since = at.filter(|_| is_same).and_then(|at| known.get(at)).copied();
                since.unwrap_or(Since { time_ms, is_exact: true })
            };
            (node.guid, node.ports.iter().map(of_port).collect())
        };
        plane.nodes.iter().map(&mut of_node).collect()
    }
}

/// Whether states, far end, width and speed are equal.
fn is_alike(one: &Port, other: &Port) -> bool {
    let read = |port: &Port| {
        let info = PortInfo::new(port.info).ok()?;
        let states = (info.port_state(), info.port_physical_state());
        let speeds = (info.link_speed_active(), info.link_speed_ext_active());
        let faster = info.link_speed_ext_active2();
        Some((port.peer, states, info.link_width_active(), speeds, faster))
    };
    read(one) == read(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    const LINKS: [(u64, u8, u64, u8); 3] = [(1, 1, 8, 1), (1, 9, 100, 1), (1, 10, 101, 1)];

    fn since(ports: &PortsSince, guid: u64) -> Vec<(u8, u64, bool)> {
        let all = ports.of_node(Guid(guid)).into_iter();
        all.map(|(port, since)| (port.0, since.time_ms, since.is_exact)).collect()
    }

    #[test]
    fn a_port_is_as_it_is_since_its_state_link_or_rate_changed() {
        let mut ports = PortsSince::default();
        ports.follow(5, &Arc::default());
        ports.follow(10, &plane(&LINKS, 0, 0));
        assert_eq!(since(&ports, 100), [(1, 10, false)], "it was not watched before");
        ports.follow(20, &plane(&LINKS[..2], 0, 0));
        assert_eq!((since(&ports, 101), since(&ports, 1).len()), (vec![], 2), "it is gone");
        // The first link is slower, the host is back, the other link has not changed.
        ports.follow(30, &plane(&LINKS, 1, 0));
        assert_eq!(since(&ports, 1), [(1, 30, true), (9, 10, false), (10, 30, true)]);
        assert_eq!(
            [8, 101].map(|guid| since(&ports, guid)),
            [vec![(1, 30, true)], vec![(1, 30, true)]]
        );
        // Now it is not Active.
        ports.follow(40, &plane(&LINKS, 1, 1));
        assert_eq!(since(&ports, 1), [(1, 40, true), (9, 10, false), (10, 30, true)]);
        let moved = [LINKS[0], (1, 9, 101, 1), (1, 10, 100, 1)];
        ports.follow(50, &plane(&moved, 1, 1));
        assert_eq!(since(&ports, 1), [(1, 40, true), (9, 50, true), (10, 50, true)]);
    }

    #[test]
    fn over_a_restart_what_is_as_it_was_is_so_at_least_since_then() {
        let mut ports = PortsSince::default();
        ports.resume_from(3, KeptFabric::of(&plane(&LINKS, 0, 0)));
        ports.follow(10, &plane(&LINKS, 1, 0));
        assert_eq!(since(&ports, 1), [(1, 10, false), (9, 3, false), (10, 3, false)]);
        ports.follow(20, &plane(&LINKS, 0, 0));
        assert_eq!(since(&ports, 1), [(1, 20, true), (9, 3, false), (10, 3, false)]);
    }
}

//! Checks the invariants of two planes and seals them as a snapshot.

use std::sync::Arc;

use ib_mad::types::{Guid, PortNum};

use super::by_lid::ByLid;
use super::digest::Digest;
use super::fabric::{FabricPlane, Lft, Node, Port};
use super::registry::RegistryPlane;
use super::row::{Row, Side, join, sort};
use super::sorted::all_tables;
use super::state::Snapshot;
use super::tables::Table;
use super::version::{Session, Version};

/// Why planes cannot become a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two rows of a table have the same key.
    #[error("{table:?} has two rows with key {key}")]
    DuplicateKey {
        /// The table.
        table: Table,
        /// The key, as text.
        key: String,
    },
    /// A node's ports are not ascending by number, or repeated.
    #[error("ports of node {node} are out of order or repeated at port {port}")]
    PortOrder {
        /// The node.
        node: Guid,
        /// The first port that is out of order.
        port: PortNum,
    },
    /// A link's far end does not exist or does not have this port as its own far end.
    #[error(
        "node {node} port {port} is linked to node {peer} port {peer_port}, which is not linked \
         back"
    )]
    OneSidedLink {
        /// The node.
        node: Guid,
        /// Its port.
        port: PortNum,
        /// The node at the far end.
        peer: Guid,
        /// The port at the far end.
        peer_port: PortNum,
    },
    /// A table by LID is not a whole number of blocks, or exceeds the LID range.
    #[error(
        "{table:?}: the table of switch {switch} has {entries} entries, not whole blocks of 64 up \
         to 49152"
    )]
    Length {
        /// The kind of table.
        table: Table,
        /// The switch.
        switch: Guid,
        /// Entries of the table.
        entries: usize,
    },
}

impl FabricPlane {
    /// Sorts the tables, clears secrets that must not leave the SM (M_Keys), and checks all rows.
    pub fn checked(self) -> Result<Self, BuildError> {
        self.checked_since(&Self::default())
    }

    /// Same for a successor of a checked plane: checks only nodes that are not shared with it, and
    /// their neighbours.
    pub fn checked_since(mut self, before: &Self) -> Result<Self, BuildError> {
        macro_rules! sort_fabric {
            ({} fabric { $($f:ident: $fr:ident,)* } registry { $($r:ident: $rr:ident,)* }) => {
                $(sorted(&mut self.$f)?;)*
            };
        }
        all_tables!(sort_fabric);
        let (fresh, changed) = differing(&self.nodes, &before.nodes);
        for &at in &fresh {
            let node = &mut self.nodes[at];
            if node.ports.iter().any(|port| port.info[Port::M_KEY] != [0; 8]) {
                for port in &mut Arc::make_mut(node).ports {
                    port.info[Port::M_KEY].fill(0);
                }
            }
        }
        // A separate array of GUIDs: a search that dereferences every row it compares would take
        // most of the time.
        let guids: Vec<Guid> = self.nodes.iter().map(|node| node.guid).collect();
        let find = |guid: Guid| Some(&*self.nodes[guids.binary_search(&guid).ok()?]);
        fresh.iter().try_for_each(|&at| check_node(find, &self.nodes[at]))?;
        changed.iter().try_for_each(|node| check_former_links(find, node))?;
        self.lfts.iter().try_for_each(|row| check_length(&**row))?;
        self.path_sls.iter().try_for_each(|row| check_length(&**row))?;
        Ok(self)
    }
}

impl Snapshot {
    /// Makes a snapshot of two planes; the fabric's rows may be unsorted.
    pub fn build(
        session: Session,
        fabric_generation: u64,
        fabric: FabricPlane,
        registry: RegistryPlane,
    ) -> Result<Self, BuildError> {
        let fabric = fabric.checked()?;
        let version = Version { session, fabric_generation, registry_sequence: registry.sequence };
        let digest = Digest::of(&fabric, &registry);
        Ok(Self { version, fabric: Arc::new(fabric), registry: Arc::new(registry), digest })
    }
}

fn sorted<R: Row>(rows: &mut [Arc<R>]) -> Result<(), BuildError> {
    match sort(rows) {
        Some(key) => Err(BuildError::DuplicateKey { table: R::TABLE, key: format!("{key:?}") }),
        None => Ok(()),
    }
}

fn check_length<R: ByLid>(row: &R) -> Result<(), BuildError> {
    let entries = row.entries().len();
    if !entries.is_multiple_of(Lft::BLOCK_LEN) || entries > Lft::BLOCKS_MAX * Lft::BLOCK_LEN {
        return Err(BuildError::Length { table: R::TABLE, switch: row.key(), entries });
    }
    Ok(())
}

/// Indices of nodes that are not shared with the previous ones, and previous nodes that are not
/// shared with these; both are sorted.
fn differing<'a>(nodes: &[Arc<Node>], before: &'a [Arc<Node>]) -> (Vec<usize>, Vec<&'a Node>) {
    let (mut fresh, mut changed) = (Vec::new(), Vec::new());
    let places = nodes.iter().enumerate().map(|(at, node)| (node.guid, (at, node)));
    for (_, side) in join(places, before.iter().map(|node| (node.guid, node))) {
        match side {
            Side::Left((at, _)) => fresh.push(at),
            Side::Right(old) => changed.push(&**old),
            Side::Both((at, new), old) if !Arc::ptr_eq(new, old) => {
                fresh.push(at);
                changed.push(&**old);
            }
            Side::Both(..) => {}
        }
    }
    (fresh, changed)
}

fn check_node<'a>(find: impl Fn(Guid) -> Option<&'a Node>, node: &Node) -> Result<(), BuildError> {
    if let Some(pair) = node.ports.windows(2).find(|pair| pair[0].num >= pair[1].num) {
        return Err(BuildError::PortOrder { node: node.guid, port: pair[1].num });
    }
    node.ports.iter().try_for_each(|port| check_link(&find, node.guid, port))
}

fn check_link<'a>(
    find: &impl Fn(Guid) -> Option<&'a Node>,
    node: Guid,
    port: &Port,
) -> Result<(), BuildError> {
    let Some((peer, peer_port)) = port.peer else { return Ok(()) };
    let port = port.num;
    let back = find(peer).and_then(|peer| peer.port(peer_port)).and_then(|far| far.peer);
    if back == Some((node, port)) {
        Ok(())
    } else {
        Err(BuildError::OneSidedLink { node, port, peer, peer_port })
    }
}

/// Checks the ports that a former node, which was changed or removed, was linked to.
fn check_former_links<'a>(
    find: impl Fn(Guid) -> Option<&'a Node>,
    then: &Node,
) -> Result<(), BuildError> {
    then.ports.iter().filter_map(|port| port.peer).try_for_each(|(peer, num)| {
        let port = find(peer).and_then(|node| node.port(num));
        port.map_or(Ok(()), |port| check_link(&find, peer, port))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{lft, linked_pair, node};
    use super::*;

    /// Nodes in a ring, each linked to the next by its port 2.
    fn ring(count: u64) -> FabricPlane {
        let port = |num: u8, peer: u64, peer_port: u8| Port {
            num: PortNum(num),
            peer: Some((Guid(peer % count), PortNum(peer_port))),
            ..linked_pair(Guid(1), Guid(2))[0].ports[0].clone()
        };
        let ports = |at: u64| vec![port(1, at + count - 1, 2), port(2, at + 1, 1)];
        plane((0..count).map(|at| Node { ports: ports(at), ..node(Guid(at)) }).collect())
    }

    proptest! {
        /// Checking only the changes must give the result of a full check.
        #[test]
        fn what_is_shared_need_not_be_checked_again(
            gone in proptest::option::of(0..5u64),
            links in proptest::collection::vec(
                (0..5usize, 0..2usize, proptest::option::of((0..5u64, 0..3u8))), 0..3),
            (with_key, repeated) in
                (proptest::option::of(0..5usize), proptest::option::of(0..20usize)),
        ) {
            let before = ring(5).checked().unwrap();
            let mut after = before.clone();
            for (node, port, peer) in links {
                let ports = &mut Arc::make_mut(&mut after.nodes[node]).ports;
                ports[port].peer = peer.map(|(guid, num)| (Guid(guid), PortNum(num)));
            }
            if let Some(at) = with_key {
                Arc::make_mut(&mut after.nodes[at]).ports[0].info = [7; 64];
            }
            after.nodes.retain(|node| gone.is_none_or(|gone| node.guid != Guid(gone)));
            after.nodes.reverse();
            if let Some(node) = repeated.and_then(|at| after.nodes.get(at)) {
                after.nodes.push(node.clone());
            }
            let full = after.clone().checked().ok();
            prop_assert_eq!(after.checked_since(&before).ok(), full);
        }
    }

    fn plane(nodes: Vec<Node>) -> FabricPlane {
        FabricPlane { nodes: nodes.into_iter().map(Arc::new).collect(), ..FabricPlane::default() }
    }

    #[test]
    fn rows_are_sorted() {
        let mut nodes = linked_pair(Guid(2), Guid(1));
        nodes.push(node(Guid(0)));
        let plane = plane(nodes).checked().unwrap();
        assert_eq!(plane.nodes.iter().map(|node| node.guid.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn two_rows_with_one_key_are_refused() {
        let error = plane(vec![node(Guid(1)), node(Guid(1))]).checked().unwrap_err();
        assert!(matches!(error, BuildError::DuplicateKey { table: Table::Nodes, .. }), "{error}");
    }

    #[test]
    fn a_link_must_be_seen_from_both_ends() {
        let mut nodes = linked_pair(Guid(1), Guid(2));
        nodes[1].ports[0].peer = None;
        let error = plane(nodes).checked().unwrap_err();
        assert!(matches!(error, BuildError::OneSidedLink { node: Guid(1), .. }), "{error}");
        let mut lone = linked_pair(Guid(1), Guid(2));
        lone.pop();
        assert!(plane(lone).checked().is_err());
    }

    #[test]
    fn ports_must_ascend() {
        let mut nodes = linked_pair(Guid(1), Guid(2));
        let twin = nodes[0].ports[0].clone();
        nodes[0].ports.push(twin);
        assert!(matches!(plane(nodes).checked(), Err(BuildError::PortOrder { .. })));
    }

    #[test]
    fn forwarding_tables_are_whole_blocks_within_the_unicast_lids() {
        let of = |entries: usize| FabricPlane {
            lfts: vec![Arc::new(Lft { switch: Guid(1), ports: vec![0; entries].into() })],
            ..FabricPlane::default()
        };
        assert!(of(0).checked().is_ok() && of(49_152).checked().is_ok());
        assert!(of(65).checked().is_err() && of(49_216).checked().is_err());
        assert_eq!(lft(Guid(1), &[5]).ports.len(), Lft::BLOCK_LEN);
    }

    #[test]
    fn m_keys_are_blanked() {
        let mut nodes = linked_pair(Guid(1), Guid(2));
        nodes[0].ports[0].info = [0xEE; 64];
        let plane = plane(nodes).checked().unwrap();
        assert_eq!(plane.nodes[0].ports[0].info[..9], [0, 0, 0, 0, 0, 0, 0, 0, 0xEE]);
    }
}

//! States and LIDs of ports, as the history keeps them and `ibsmctl diff` compares them. Width and
//! speed are those of links: see `topology`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Gid, Guid, PortNum};
use ib_mad::wire::attribute::{PortInfo, PortPhysState, PortState};
use sa_proto::snapshot::{FabricPlane, Node, Port};

use super::topology::{End, Topology};

/// State and addresses of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Port number.
    pub number: PortNum,
    /// PortGUID.
    pub guid: Guid,
    /// PortState, as a code of PortInfo.
    pub state: u8,
    /// PortPhysicalState, as a code of PortInfo.
    pub physical_state: u8,
    /// Base LID; 0 without one, and at external ports of switches.
    pub lid: u16,
    /// LMC that belongs to the LID.
    pub lmc: u8,
}

impl PortStatus {
    /// That of a port of a published fabric; `None` if its PortInfo is invalid.
    fn of(node: &Node, port: &Port) -> Option<Self> {
        let info = PortInfo::new(&port.info[..]).ok()?;
        let is_external = node.switch_info.is_some() && port.num.0 != 0;
        let (lid, lmc) = if is_external { (0, 0) } else { (info.base_lid().0, info.lmc()) };
        Some(Self {
            number: port.num,
            guid: port.guid,
            state: info.port_state(),
            physical_state: info.port_physical_state(),
            lid,
            lmc,
        })
    }

    /// Whether a port is in these states.
    pub(super) fn is_in_states_of(&self, port: &Port) -> bool {
        PortInfo::new(&port.info[..]).is_ok_and(|info| {
            (info.port_state(), info.port_physical_state()) == (self.state, self.physical_state)
        })
    }

    /// Whether all packets pass.
    pub fn is_active(&self) -> bool {
        self.state == PortState::Active.code()
    }

    /// PortState, for people.
    pub fn state(&self) -> String {
        let state = PortState::from_code(self.state);
        state.map_or_else(|| "reserved".to_owned(), |state| state.to_string())
    }

    /// PortPhysicalState, for people.
    pub fn physical_state(&self) -> String {
        let state = PortPhysState::from_code(self.physical_state);
        state.map_or_else(|| "reserved".to_owned(), |state| state.to_string())
    }

    /// Both states: `Active`, or `Down (Polling)` unless the link is up.
    pub fn states(&self) -> String {
        match self.physical_state == PortPhysState::LinkUp.code() {
            true => self.state(),
            false => format!("{} ({})", self.state(), self.physical_state()),
        }
    }

    /// Its LIDs: `7`, or `8 to 11` with an LMC of 2; `none`.
    pub fn lids(&self) -> String {
        match (self.lid, self.lmc) {
            (0, _) => "none".to_owned(),
            (lid, 0) => lid.to_string(),
            (lid, _) => format!("{lid} to {}", u32::from(lid) + self.further_lids()),
        }
    }

    fn further_lids(&self) -> u32 {
        (1 << self.lmc.min(7)) - 1
    }

    /// Whether a packet with this DLID is for the port.
    fn has_lid(&self, lid: u16) -> bool {
        let (first, lid) = (u32::from(self.lid), u32::from(lid));
        first != 0 && (first..=first + self.further_lids()).contains(&lid)
    }
}

/// Ports by node. Nodes that did not change share their ports with an earlier table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub BTreeMap<Guid, Arc<[PortStatus]>>);

impl Ports {
    /// Those of a published fabric.
    pub fn of(plane: &FabricPlane) -> Self {
        Self::after(plane, &FabricPlane::default(), &Self::default())
    }

    /// Those of a published fabric. Nodes whose rows it shares with `earlier` are not read: their
    /// ports are in `known`.
    pub fn after(plane: &FabricPlane, earlier: &FabricPlane, known: &Self) -> Self {
        let mut before = earlier.nodes.iter().peekable();
        let of = |node: &Arc<Node>| {
            while before.next_if(|earlier| earlier.guid < node.guid).is_some() {}
            let is_same = before.peek().is_some_and(|earlier| Arc::ptr_eq(earlier, node));
            let same = known.0.get(&node.guid).filter(|_| is_same).cloned();
            let ports = || node.ports.iter().filter_map(|port| PortStatus::of(node, port));
            (node.guid, same.unwrap_or_else(|| ports().collect()))
        };
        Self(plane.nodes.iter().map(of).collect())
    }

    /// Whether nothing is known: the topology came from a file, or an older release wrote it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ports of a node, ascending by number.
    pub fn of_node(&self, guid: Guid) -> &[PortStatus] {
        self.0.get(&guid).map_or(&[], |ports| ports)
    }

    /// The port at an end of a link.
    pub fn at(&self, (guid, number): End) -> Option<&PortStatus> {
        let ports = self.of_node(guid);
        ports.binary_search_by_key(&number, |port| port.number).ok().map(|at| &ports[at])
    }

    /// LID of a port, else of the first port of the node that has one; 0 if none has.
    pub fn lid(&self, guid: Guid, number: Option<PortNum>) -> u16 {
        let own = number.and_then(|number| self.at((guid, number)));
        let all = own.into_iter().chain(self.of_node(guid));
        all.map(|port| port.lid).find(|&lid| lid != 0).unwrap_or(0)
    }

    /// The node with a LID.
    pub fn with_lid(&self, lid: u16) -> Option<Guid> {
        self.find(|port| port.has_lid(lid))
    }

    /// The node with a PortGUID.
    pub fn with_guid(&self, guid: Guid) -> Option<Guid> {
        self.find(|port| port.guid == guid)
    }

    fn find(&self, is_it: impl Fn(&PortStatus) -> bool) -> Option<Guid> {
        let mut nodes = self.0.iter();
        nodes.find(|(_, ports)| ports.iter().any(&is_it)).map(|(&guid, _)| guid)
    }
}

/// A fabric at a time, as far as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptFabric {
    /// Nodes and links.
    pub topology: Topology,
    /// Ports of these nodes; empty if only the topology is known.
    pub ports: Ports,
    /// Name of the engine whose routes were in force; empty if there were none, or if it is not
    /// known.
    pub routing_engine: String,
}

impl KeptFabric {
    /// Topology and ports of a published fabric.
    pub fn of(plane: &FabricPlane) -> Self {
        Self { topology: Topology::of(plane), ports: Ports::of(plane), ..Self::default() }
    }

    /// The node with a name, GUID, LID or GID: its node GUID. A name is the NodeDescription, the
    /// first word of it, or its beginning. Fails with the reason, for people.
    pub fn find(&self, name: &str) -> Result<Guid, String> {
        let by_address = |found: Option<Guid>, what: String| match found {
            Some(guid) => Ok(guid),
            None if self.ports.is_empty() => {
                Err(format!("{what} then; the history has no LIDs and GUIDs of ports of that time"))
            }
            None => Err(format!("{what} then")),
        };
        if let Ok(guid) = name.parse::<Guid>()
            && name.starts_with("0x")
        {
            let is_node = self.topology.nodes.contains_key(&guid);
            let found = is_node.then_some(guid).or_else(|| self.ports.with_guid(guid));
            return by_address(found, format!("no node or port had the GUID {name}"));
        }
        let lid = name.parse::<u16>().ok();
        if let Some(found) = lid.and_then(|lid| self.ports.with_lid(lid)) {
            return Ok(found);
        }
        if let Some(found) = self.named(name)? {
            return Ok(found);
        }
        if let Some(lid) = lid {
            return by_address(None, format!("no port had LID {lid}"));
        }
        if let Ok(gid) = name.parse::<Gid>() {
            let found = self.ports.with_guid(gid.guid());
            return by_address(found, format!("no port had the GID {name}"));
        }
        Err(format!("no node was named '{name}' then"))
    }

    /// The node with a name, if there was one. Fails if there were several.
    fn named(&self, name: &str) -> Result<Option<Guid>, String> {
        let named = |is: &dyn Fn(&str) -> bool| -> Vec<Guid> {
            let nodes = self.topology.nodes.iter().filter(|(_, node)| is(&node.name));
            nodes.map(|(&guid, _)| guid).collect()
        };
        let first_word = |of: &str| of.split(' ').next() == Some(name);
        for found in [
            named(&|of| of == name),
            named(&first_word),
            named(&|of| !name.is_empty() && of.starts_with(name)),
        ] {
            match found[..] {
                [] => {}
                [guid] => return Ok(Some(guid)),
                _ => return Err(format!("'{name}' was the name of {} nodes then", found.len())),
            }
        }
        Ok(None)
    }
}

/// Ports that differ between two fabrics, of nodes that are in both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDifference {
    /// Ports in another state. Those whose links led, or lead, to nodes that are missing or extra
    /// are left out.
    pub states: Vec<End>,
    /// Ports with another LID or LMC.
    pub lids: Vec<End>,
}

impl PortDifference {
    /// How `new` differs from `old`.
    pub fn between(old: &KeptFabric, new: &KeptFabric) -> Self {
        let mut difference = Self::default();
        let (was_linked, is_linked) = (old.topology.peers(), new.topology.peers());
        let is_in_both = |far: Option<&End>| {
            far.is_none_or(|(guid, _)| {
                old.topology.nodes.contains_key(guid) && new.topology.nodes.contains_key(guid)
            })
        };
        for (&guid, ports) in &new.ports.0 {
            let Some(before) = old.ports.0.get(&guid).filter(|before| *before != ports) else {
                continue;
            };
            for port in ports.iter() {
                let end = (guid, port.number);
                let at = before.binary_search_by_key(&port.number, |port| port.number);
                let Some(was) = at.ok().map(|at| before[at]) else { continue };
                if (was.lid, was.lmc) != (port.lid, port.lmc) {
                    difference.lids.push(end);
                }
                let is_other = (was.state, was.physical_state) != (port.state, port.physical_state);
                if is_other && is_in_both(was_linked.get(&end)) && is_in_both(is_linked.get(&end)) {
                    difference.states.push(end);
                }
            }
        }
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    const LINKS: [(u64, u8, u64, u8); 4] =
        [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1)];

    fn fabric(links: &[(u64, u8, u64, u8)], init: usize) -> KeptFabric {
        KeptFabric::of(&plane(links, 0, init))
    }

    fn with_lid(mut fabric: KeptFabric, end: End, lid: u16, lmc: u8) -> KeptFabric {
        let mut ports = fabric.ports.of_node(end.0).to_vec();
        let port = ports.iter_mut().find(|port| port.number == end.1).unwrap();
        (port.lid, port.lmc) = (lid, lmc);
        fabric.ports.0.insert(end.0, ports.into());
        fabric
    }

    #[test]
    fn external_ports_of_switches_have_no_lid() {
        let ports = fabric(&LINKS, 0).ports;
        assert_eq!((ports.lid(Guid(1), None), ports.lid(Guid(100), None)), (0, 1));
        assert!(ports.at((Guid(1), PortNum(9))).unwrap().is_active());
        assert_eq!(ports.at((Guid(1), PortNum(2))), None);
    }

    #[test]
    fn nodes_whose_rows_are_shared_are_not_read_again() {
        let old = plane(&LINKS, 0, 0);
        let mut new = FabricPlane::clone(&plane(&LINKS, 0, 4));
        new.nodes[0] = old.nodes[0].clone();
        let known = Ports::of(&old);
        let ports = Ports::after(&new, &old, &known);
        assert!(Arc::ptr_eq(&ports.0[&Guid(1)], &known.0[&Guid(1)]));
        assert_eq!(ports, Ports::of(&new));
        assert_ne!(ports.0[&Guid(2)], known.0[&Guid(2)]);
    }

    #[test]
    fn another_state_or_lid_is_a_difference() {
        let (old, new) = (fabric(&LINKS, 0), fabric(&LINKS, 1));
        assert_eq!(PortDifference::between(&old, &old), PortDifference::default());
        let ends = [(Guid(1), PortNum(1)), (Guid(8), PortNum(1))];
        let difference = PortDifference::between(&old, &new);
        assert_eq!((&difference.states[..], difference.lids.len()), (&ends[..], 0));
        let end = (Guid(100), PortNum(1));
        for (lid, lmc) in [(8, 0), (1, 2)] {
            let new = with_lid(old.clone(), end, lid, lmc);
            let difference = PortDifference::between(&old, &new);
            assert_eq!((difference.lids, difference.states.len()), (vec![end], 0));
        }
    }

    #[test]
    fn ports_that_led_to_a_node_that_is_gone_are_not_listed() {
        let old = fabric(&LINKS, 0);
        let mut new = fabric(&LINKS, 4);
        new.topology.nodes.remove(&Guid(8));
        new.topology.links.retain(|_, link| link.far.0 != Guid(8));
        new.ports.0.remove(&Guid(8));
        let states = PortDifference::between(&old, &new).states;
        assert_eq!(states.len(), 4, "{states:?}");
        assert!(!states.contains(&(Guid(1), PortNum(1))), "{states:?}");
    }

    #[test]
    fn states_and_lids_are_words() {
        let end = (Guid(100), PortNum(1));
        let port = |lid, lmc| *with_lid(fabric(&LINKS, 0), end, lid, lmc).ports.at(end).unwrap();
        let lids = [(0, 0), (7, 0), (8, 2)].map(|(lid, lmc)| port(lid, lmc).lids());
        assert_eq!(lids, ["none", "7", "8 to 11"]);
        let polling = PortStatus { state: 1, physical_state: 2, ..port(7, 0) };
        let up = PortStatus { state: 2, physical_state: 5, ..port(7, 0) };
        assert_eq!((polling.states(), up.states()), ("Down (Polling)".into(), up.state()));
    }

    #[test]
    fn nodes_are_found_by_name_and_by_all_their_addresses() {
        let then = with_lid(fabric(&LINKS, 0), (Guid(101), PortNum(1)), 12, 2);
        assert_eq!(then.find("n100"), Ok(Guid(100)));
        assert_eq!(then.find("0x0000000000000065"), Ok(Guid(101)));
        assert_eq!(then.find("n8"), Ok(Guid(8)));
        for address in ["12", "15", "fe80::65"] {
            assert_eq!(then.find(address), Ok(Guid(101)), "{address}");
        }
        assert!(then.find("n10").unwrap_err().contains("2 nodes"));
        assert_eq!(then.find("16").unwrap_err(), "no port had LID 16 then");
        let older = KeptFabric { ports: Ports::default(), ..then };
        for address in ["12", "0x0000000000000099", "fe80::65"] {
            assert!(older.find(address).unwrap_err().contains("has no LIDs"), "{address}");
        }
    }
}

//! A small fabric, and requests about it.

#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;

use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, Guid, Lid, Lifetime, Mtu, PKey, PortNum, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{
    CapabilityMask, LinkSpeeds, LinkWidths, NodeInfo, NodeType, PortInfo,
};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{FabricPlane, Lft, Node, Port, RegistryPlane, Subnet, Version};
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

/// The SM_Key of the fabric.
pub(crate) const SM_KEY: u64 = 0x1234;

/// Switches in a row, each with hosts. Hosts have LIDs from 1; switches have those that follow.
pub(crate) struct Chain {
    pub(crate) switches: u16,
    pub(crate) hosts_each: u16,
}

impl Chain {
    pub(crate) fn hosts(&self) -> u16 {
        self.switches * self.hosts_each
    }

    /// LID of a switch.
    pub(crate) fn switch_lid(&self, switch: u16) -> Lid {
        Lid(self.hosts() + 1 + switch)
    }

    pub(crate) fn host_guid(lid: u16) -> Guid {
        Guid(0x0c42_a103_0000_0001 + u64::from(lid) * 16)
    }

    /// The fabric plane; `change` may alter each port.
    pub(crate) fn plane(&self, change: impl Fn(&mut Port)) -> FabricPlane {
        let switch_guid = |switch: u16| Guid(0xb859_9f03_00a0_0000 + u64::from(switch) * 0x40);
        let (right, left) = (self.hosts_each + 1, self.hosts_each + 2);
        let mut nodes = Vec::new();
        for lid in 1..=self.hosts() {
            let (switch, exit) = ((lid - 1) / self.hosts_each, (lid - 1) % self.hosts_each + 1);
            let guid = Self::host_guid(lid);
            let peer = (switch_guid(switch), PortNum(exit as u8));
            let port = port(1, guid, lid, Some(peer));
            nodes.push(node(Guid(guid.0 - 1), NodeType::Ca, vec![port]));
        }
        let mut lfts = Vec::new();
        let lids = self.hosts() + self.switches;
        for switch in 0..self.switches {
            let guid = switch_guid(switch);
            let mut ports = vec![port(0, guid, self.switch_lid(switch).0, None)];
            for exit in 1..=self.hosts_each {
                let host = Self::host_guid(switch * self.hosts_each + exit);
                ports.push(port(exit, guid, 0, Some((Guid(host.0 - 1), PortNum(1)))));
            }
            let there = |other, exit: u16| Some((switch_guid(other), PortNum(exit as u8)));
            let after = (switch + 1 < self.switches).then(|| there(switch + 1, left)).flatten();
            ports.push(port(right, guid, 0, after));
            let before = switch.checked_sub(1).and_then(|before| there(before, right));
            ports.push(port(left, guid, 0, before));
            nodes.push(node(guid, NodeType::Switch, ports));

            let mut table = vec![Lft::NO_ROUTE; usize::from(lids + 1).next_multiple_of(64)];
            for lid in 1..=lids {
                let is_host = lid <= self.hosts();
                let home =
                    if is_host { (lid - 1) / self.hosts_each } else { lid - self.hosts() - 1 };
                let exit = match home.cmp(&switch) {
                    std::cmp::Ordering::Greater => right,
                    std::cmp::Ordering::Less => left,
                    std::cmp::Ordering::Equal if is_host => (lid - 1) % self.hosts_each + 1,
                    std::cmp::Ordering::Equal => 0,
                };
                table[usize::from(lid)] = exit as u8;
            }
            lfts.push(Arc::new(Lft { switch: guid, ports: table.into() }));
        }
        for node in &mut nodes {
            node.ports.iter_mut().for_each(&change);
        }
        nodes.sort_by_key(|node| node.guid);
        lfts.sort_by_key(|lft| lft.switch);
        FabricPlane {
            subnet: Subnet {
                prefix: SUBNET_PREFIX_DEFAULT,
                sm_lid: Lid(1),
                lifetime: Lifetime::from_low_bits(18),
                sa_key: SM_KEY,
                response_time: Lifetime::from_low_bits(16),
                ..Subnet::default()
            },
            nodes: nodes.into_iter().map(Arc::new).collect(),
            lfts,
            ..FabricPlane::default()
        }
    }
}

fn node(guid: Guid, kind: NodeType, ports: Vec<Port>) -> Node {
    let mut info = [0; 40];
    NodeInfo::new(&mut info[..])
        .unwrap()
        .set_node_type(kind)
        .set_num_ports(ports.len() as u8)
        .set_node_guid(guid)
        .set_port_guid(ports[0].guid);
    let switch_info = (kind == NodeType::Switch).then_some([0; 20]);
    Node { guid, info, description: [0; 64], switch_info, ports }
}

fn port(num: u16, guid: Guid, lid: u16, peer: Option<(Guid, PortNum)>) -> Port {
    let mut info = [0; 64];
    PortInfo::new(&mut info[..])
        .unwrap()
        .set_base_lid(Lid(lid))
        .set_capability_mask(CapabilityMask::NONE)
        .set_link_width_active(LinkWidths::X4)
        .set_link_speed_active(LinkSpeeds::QDR)
        .set_mtu_cap(Mtu::B4096);
    Port { num: PortNum(num as u8), guid, info, pkeys: [PKey::DEFAULT_FULL].into(), peer }
}

/// A publisher whose readers see `plane`.
pub(crate) fn published(plane: &FabricPlane) -> Publisher {
    let registry = RegistryPlane::default();
    let mut publisher = Publisher::new();
    let tables = Arc::new(Tables::build(plane, &registry));
    publisher.publish(Arc::new(Generation::new(Version::OFFLINE, tables, Arc::new(registry))));
    publisher
}

/// A request from `lid`.
pub(crate) fn request(
    lid: u16,
    method: Method,
    attribute: AttributeId,
    tid: u64,
    mask: ComponentMask,
) -> Packet {
    let mut packet = Packet::to(Address::gsi(Lid(lid)));
    SaMad::new(&mut packet.mad).write_request(method, attribute, tid, mask);
    packet
}

/// A PathRecord request between hosts, by their GIDs.
pub(crate) fn path_request(from: u16, source: u16, destination: u16, tid: u64) -> Packet {
    let mask = path::SGID | path::DGID;
    let mut packet = request(from, Method::GET, attribute::PATH_RECORD, tid, mask);
    let gid = |lid| Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(lid));
    PathRecord::new(&mut packet.mad[56..])
        .unwrap()
        .set_sgid(gid(source))
        .set_dgid(gid(destination));
    packet
}

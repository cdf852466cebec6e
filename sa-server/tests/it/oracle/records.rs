//! All records of a world, one type at a time, straight from its rows.

use std::ops::Range;

use ib_mad::types::{Gid, Guid, Lid, PKey, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{NodeInfo, PortInfo, SwitchInfo};
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::record::McMemberRecord;
use ib_mad::wire::sa::attribute;
use sa_proto::snapshot::{Node, Port};

use super::world::World;

/// A record that may be answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The record as a trusted requester sees it.
    pub(crate) bytes: Vec<u8>,
    /// As others are shown it.
    pub(crate) public: Vec<u8>,
    /// LIDs of its port.
    pub(crate) lids: Range<u32>,
    /// Whose it is: P_Key table, and the port GUID of end ports.
    pub(crate) keys: Vec<PKey>,
    pub(crate) owner: Option<Guid>,
    /// The partition whose members may see it, if not all ports that share one with the owner.
    pub(crate) partition: Option<PKey>,
    /// The other end of a link.
    pub(crate) other: Option<Box<Record>>,
    /// Port numbers select among a switch's ports only.
    pub(crate) has_port_numbers: bool,
}

/// A port with what its records have in common.
struct PortRow<'a> {
    node: &'a Node,
    port: &'a Port,
    is_switch: bool,
    base: Lid,
    template: Record,
}

impl PortRow<'_> {
    fn is_end_port(&self) -> bool {
        !self.is_switch || self.port.num.0 == 0
    }

    fn record(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Record {
        let mut bytes = vec![0; len];
        bytes[..2].copy_from_slice(&self.base.0.to_be_bytes());
        fill(&mut bytes);
        Record { public: bytes.clone(), bytes, ..self.template.clone() }
    }
}

fn port_rows(world: &World) -> Vec<PortRow<'_>> {
    let mut port_rows = Vec::new();
    for node in &world.fabric.nodes {
        let is_switch = node.switch_info.is_some();
        for port in &node.ports {
            let managed = if is_switch { &node.ports[0] } else { port };
            let info = PortInfo::new(&managed.info[..]).unwrap();
            let (base, lmc) = (info.base_lid(), if is_switch { 0 } else { info.lmc() });
            let own = port.pkeys.iter().any(|key| key.is_valid());
            let keys = if own { &port.pkeys } else { &managed.pkeys };
            let is_end_port = !is_switch || port.num.0 == 0;
            let template = Record {
                lids: u32::from(base.0)..u32::from(base.0) + (1 << lmc),
                keys: keys.to_vec(),
                owner: is_end_port.then_some(port.guid),
                has_port_numbers: is_switch,
                ..Record::default()
            };
            port_rows.push(PortRow { node, port, is_switch, base, template });
        }
    }
    port_rows
}

/// The P_Keys and LIDs of an end port.
pub(crate) fn end_port(world: &World, guid: Guid) -> Option<Record> {
    port_rows(world)
        .into_iter()
        .map(|port_row| port_row.template)
        .find(|port| port.owner == Some(guid))
}

/// Everything there is of one type.
pub(crate) fn all(world: &World, id: AttributeId) -> Vec<Record> {
    match id {
        attribute::SERVICE_RECORD => services(world),
        attribute::INFORM_INFO_RECORD => subscriptions(world),
        attribute::SM_INFO_RECORD => subnet_managers(world),
        attribute::LINK_RECORD => links(world),
        _ => port_rows(world).iter().flat_map(|port_row| of_port(world, port_row, id)).collect(),
    }
}

fn of_port(world: &World, port_row: &PortRow<'_>, id: AttributeId) -> Vec<Record> {
    let (node, num) = (port_row.node, port_row.port.num.0);
    let is_port0 = port_row.is_switch && num == 0;
    match id {
        attribute::NODE_RECORD if port_row.is_end_port() => vec![port_row.record(108, |record| {
            record[4..44].copy_from_slice(&node.info);
            NodeInfo::new(&mut record[4..44])
                .unwrap()
                .set_port_guid(port_row.port.guid)
                .set_local_port_num(port_row.port.num);
            record[44..].copy_from_slice(&node.description);
        })],
        attribute::PORT_INFO_RECORD => vec![port_row.record(68, |record| {
            record[2] = num;
            record[4..].copy_from_slice(&port_row.port.info);
        })],
        attribute::SWITCH_INFO_RECORD if is_port0 => {
            let info = node.switch_info.unwrap();
            vec![port_row.record(24, |record| record[4..].copy_from_slice(&info))]
        }
        attribute::SL_TO_VL_MAPPING_TABLE_RECORD => {
            let inputs: Vec<u8> = if port_row.is_switch {
                node.ports.iter().map(|port| port.num.0).collect()
            } else {
                vec![0]
            };
            let tables = world.fabric.port_tables.iter().find(|row| row.node == node.guid);
            inputs
                .into_iter()
                .map(|input| {
                    let entry = |pair| {
                        let entries = &tables?.sl_to_vl;
                        entries.iter().find(|(ports, _)| *ports == pair).map(|&(_, at)| at)
                    };
                    let common = if port_row.is_switch { None } else { entry((0, 0)) };
                    let at = entry((input, num)).or(common);
                    port_row.record(16, |record| {
                        (record[2], record[3]) = (input, if port_row.is_switch { num } else { 0 });
                        if let Some(at) = at {
                            let map = tables.unwrap().sl_to_vl_maps[usize::from(at)];
                            record[8..].copy_from_slice(&map);
                        }
                    })
                })
                .collect()
        }
        attribute::VL_ARBITRATION_TABLE_RECORD => {
            let tables = world.fabric.port_tables.iter().find(|row| row.node == node.guid);
            (1..=4)
                .map(|block| {
                    port_row.record(72, |record| {
                        (record[2], record[3]) = (num, block);
                        let entries = tables.iter().flat_map(|tables| &tables.vl_arb);
                        for &(_, at) in entries.filter(|(place, _)| *place == (num, block)) {
                            let content = tables.unwrap().vl_arb_blocks[usize::from(at)];
                            record[8..].copy_from_slice(&content);
                        }
                    })
                })
                .collect()
        }
        attribute::PKEY_TABLE_RECORD if !port_row.port.pkeys.is_empty() => {
            let keys = &port_row.port.pkeys;
            let room = if port_row.is_end_port() {
                NodeInfo::new(&node.info[..]).unwrap().partition_cap()
            } else {
                SwitchInfo::new(&node.switch_info.unwrap()[..]).unwrap().partition_enforcement_cap()
            };
            (0..usize::from(room).max(keys.len()).div_ceil(32))
                .map(|block| {
                    port_row.record(72, |record| {
                        (record[3], record[4]) = (block as u8, num);
                        for (place, key) in keys.iter().skip(block * 32).take(32).enumerate() {
                            record[8 + place * 2..][..2].copy_from_slice(&key.0.to_be_bytes());
                        }
                    })
                })
                .collect()
        }
        attribute::LINEAR_FORWARDING_TABLE_RECORD if is_port0 => {
            let lft = world.fabric.lfts.iter().find(|lft| lft.switch == node.guid).unwrap();
            let blocks = lft.ports.chunks(64).enumerate();
            blocks
                .map(|(block, entries)| {
                    port_row.record(72, |record| {
                        record[3] = block as u8;
                        record[8..].copy_from_slice(entries);
                    })
                })
                .collect()
        }
        attribute::MULTICAST_FORWARDING_TABLE_RECORD if is_port0 => {
            let mft = world.fabric.mfts.iter().find(|mft| mft.switch == node.guid);
            let blocks = mft.map_or(&[][..], |mft| &mft.blocks);
            let end = blocks.iter().map(|block| block.block + 1).max().unwrap_or(0);
            // The switches of these worlds have few ports: one position.
            (0..end)
                .map(|number| {
                    port_row.record(72, |record| {
                        record[3] = number as u8;
                        for block in blocks.iter().filter(|block| block.block == number) {
                            if block.position == 0 {
                                record[8..].copy_from_slice(&block.masks);
                            }
                        }
                    })
                })
                .collect()
        }
        attribute::GUID_INFO_RECORD if port_row.is_end_port() => {
            let room = PortInfo::new(&port_row.port.info[..]).unwrap().guid_cap();
            (0..room.div_ceil(8))
                .map(|block| {
                    port_row.record(72, |record| {
                        record[2] = block;
                        let aliases = world.registry.alias_guids.iter();
                        let own = aliases.filter(|row| row.port_guid == port_row.port.guid);
                        let mut guids: Vec<(u8, Guid)> =
                            own.map(|row| (row.index, row.alias)).collect();
                        guids.push((0, port_row.port.guid));
                        for (index, guid) in guids.into_iter().filter(|(at, _)| at / 8 == block) {
                            let at = 8 + usize::from(index % 8) * 8;
                            record[at..at + 8].copy_from_slice(&guid.0.to_be_bytes());
                        }
                    })
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Each link from either end; `other` is the record of the port at the far end.
fn links(world: &World) -> Vec<Record> {
    let port_rows = port_rows(world);
    let mut links = Vec::new();
    for from in &port_rows {
        let to = port_rows.iter().find(|to| Some((to.node.guid, to.port.num)) == from.port.peer);
        let Some(to) = to else { continue };
        let link = from.record(6, |record| {
            (record[2], record[3]) = (from.port.num.0, to.port.num.0);
            record[4..].copy_from_slice(&to.base.0.to_be_bytes());
        });
        links.push(Record { other: Some(Box::new(to.template.clone())), ..link });
    }
    links
}

fn subnet_managers(world: &World) -> Vec<Record> {
    let port_rows = port_rows(world);
    let record = |port_guid: Guid, info: &[u8; 21]| {
        let port_row =
            port_rows.iter().find(|port_row| port_row.template.owner == Some(port_guid))?;
        Some(port_row.record(25, |record| record[4..].copy_from_slice(info)))
    };
    let managers = world.fabric.subnet_managers.iter();
    managers.filter_map(|sm| record(sm.port_guid, &sm.info)).collect()
}

fn services(world: &World) -> Vec<Record> {
    let services = world.registry.services.iter();
    services
        .map(|service| {
            let mut public = service.record.to_vec();
            public[32..48].fill(0);
            let (bytes, mut pkey) = (service.record.to_vec(), service.rid.service_pkey);
            let gid = service.rid.service_gid;
            let group = world.registry.groups.iter().find(|group| group.mgid == gid);
            if let Some(group) = group.filter(|_| !pkey.is_valid()) {
                pkey = McMemberRecord::of(&group.record).pkey();
            }
            let guid = gid.guid();
            let alias = world.registry.alias_guids.iter().find(|row| row.alias == guid);
            let port = end_port(world, alias.map_or(guid, |row| row.port_guid));
            let prefixes = [SUBNET_PREFIX_DEFAULT, world.fabric.subnet.prefix];
            if port.is_none() && !pkey.is_valid() && prefixes.contains(&gid.prefix()) {
                // Its port is away: it is for no partition.
                pkey = PKey(0x7FFE);
            }
            match port.filter(|_| !pkey.is_valid()) {
                // That of a port that the requester cannot reach.
                Some(port) => Record { bytes, public, ..port },
                None => Record { bytes, public, partition: Some(pkey), ..Record::default() },
            }
        })
        .collect()
}

fn subscriptions(world: &World) -> Vec<Record> {
    let subscriptions = world.registry.subscriptions.iter();
    subscriptions
        .filter_map(|row| {
            let gid: Gid = row.rid.subscriber_gid;
            let port = end_port(world, gid.guid())?;
            let mut public = gid.0.to_vec();
            public.extend(row.rid.enumeration.to_be_bytes());
            public.extend([0; 6]);
            public.extend(row.inform_info);
            // Reserved bytes of InformInfo.
            public[24 + 28..24 + 31].fill(0);
            let mut bytes = public.clone();
            bytes[24 + 28..24 + 31].copy_from_slice(&row.qpn.0.to_be_bytes()[1..]);
            Some(Record { bytes, public, ..port })
        })
        .collect()
}

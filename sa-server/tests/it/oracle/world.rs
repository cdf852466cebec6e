//! Small worlds with a bit of everything, made by dice.

use std::collections::BTreeSet;
use std::sync::Arc;

use ib_mad::types::{Gid, Guid, Lid, PKey, PortNum, Qpn, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::{NodeInfo, PortInfo, SmInfo, SmState};
use ib_mad::wire::record::McMemberRecord;
use sa_proto::snapshot::{
    AliasGuid, FabricPlane, Mft, MftBlock, MulticastGroup, MulticastMember, MulticastMemberRid,
    Node, Port, PortTables, RegistryPlane, Service, ServiceRid, SubnetManager, Subscription,
    SubscriptionRid,
};

use super::Choices;
use crate::common::Chain;

/// Numbers that look random and depend on the seed only (xorshift64*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// About half of them.
    fn some<T: Copy>(&mut self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        all.into_iter().filter(|_| self.chance(2)).collect()
    }

    fn bytes<const N: usize>(&mut self, values: &[u8]) -> [u8; N] {
        std::array::from_fn(|_| self.one(values))
    }
}

impl Choices for Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end.max(1)
    }
}

const SM_KEY: u64 = crate::common::SM_KEY;
const LMC: u8 = 1;

/// What is to be asked about.
pub(crate) struct World {
    pub(crate) fabric: FabricPlane,
    pub(crate) registry: RegistryPlane,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let fabric = fabric(&mut dice);
        let registry = registry(&mut dice, &fabric);
        Self { fabric, registry }
    }
}

/// Some of four partitions, as full or limited member, with gaps; rarely none at all.
fn keys(dice: &mut Dice) -> Arc<[PKey]> {
    if dice.chance(12) {
        return Arc::from([]);
    }
    let len = if dice.chance(5) { 40 } else { 1 + dice.below(4) };
    let mut keys: Vec<PKey> = (0..len)
        .map(|_| match dice.below(5) {
            0 => PKey(0),
            base => PKey(base as u16 | (dice.below(2) as u16) << 15),
        })
        .collect();
    keys.push(PKey(dice.one(&[1, 2, 0x8003])));
    keys.into()
}

fn fabric(dice: &mut Dice) -> FabricPlane {
    let mut plane = Chain { switches: 3, hosts_each: 3 }.plane(|_| {});
    plane.subnet.sa_key = SM_KEY;
    join_hosts(&mut plane);
    plane.subnet.trusted_see_all = dice.chance(4);
    plane.nodes = plane.nodes.iter().map(|node| Arc::new(change(dice, node))).collect();
    for lft in &mut plane.lfts {
        let mut longer = (**lft).clone();
        longer.ports.resize(dice.one(&[64, 128, 192]), 255);
        longer.ports.iter_mut().for_each(|port| {
            if dice.chance(9) {
                *port = dice.below(8) as u8;
            }
        });
        *lft = Arc::new(longer);
    }
    let switches: Vec<Guid> = plane.lfts.iter().map(|lft| lft.switch).collect();
    for &switch in &switches {
        let places: Vec<(u16, u8)> = dice.some([(0, 0), (0, 1), (1, 0), (2, 0)]);
        let block = |(block, position)| MftBlock { block, position, masks: [block as u8 + 1; 64] };
        if !dice.chance(3) {
            let blocks = places.into_iter().map(block).collect();
            plane.mfts.push(Arc::new(Mft { switch, blocks }));
        }
    }
    for node in &plane.nodes {
        if dice.chance(2) {
            plane.port_tables.push(Arc::new(port_tables(dice, node)));
        }
        if dice.chance(4) {
            let port_guid = node.ports[0].guid;
            let mut info = [0; 21];
            SmInfo::new(&mut info[..])
                .unwrap()
                .set_guid(port_guid)
                .set_act_count(dice.below(3) as u32)
                .set_priority(dice.below(3) as u8)
                .set_sm_state(dice.one(&[SmState::Standby, SmState::Master]));
            let lid = PortInfo::new(&node.ports[0].info[..]).unwrap().base_lid();
            plane.subnet_managers.push(Arc::new(SubnetManager { port_guid, lid, info }));
        }
    }
    plane.subnet_managers.sort_by_key(|sm| sm.port_guid);
    plane
}

/// Makes one node with two ports of the first two hosts.
fn join_hosts(plane: &mut FabricPlane) {
    let second = plane.nodes.remove(1);
    let first = plane.nodes[0].guid;
    let first_node = Arc::make_mut(&mut plane.nodes[0]);
    first_node.ports.push(Port { num: PortNum(2), ..second.ports[0].clone() });
    for node in &mut plane.nodes {
        let ports = Arc::make_mut(node).ports.iter_mut();
        for port in ports.filter(|port| port.peer == Some((second.guid, PortNum(1)))) {
            port.peer = Some((first, PortNum(2)));
        }
    }
}

/// The node with other LIDs, an LMC, tables and capacities.
fn change(dice: &mut Dice, node: &Node) -> Node {
    let mut node = node.clone();
    let is_switch = node.switch_info.is_some();
    NodeInfo::new(&mut node.info[..]).unwrap().set_partition_cap(dice.one(&[0, 32, 70]));
    if let Some(info) = &mut node.switch_info {
        *info = dice.bytes(&[0, 0, 1, 0xFF]);
        info[14..16].copy_from_slice(&dice.one(&[0u16, 32, 64]).to_be_bytes());
        // Without enhanced port 0 a switch has one LID, regardless of its LMC.
        info[16] &= !0x08;
    }
    node.description[..2].copy_from_slice(dice.one(&[b"ab", b"a\0", b"b\0"]));
    for port in &mut node.ports {
        let mut info = PortInfo::new(&mut port.info[..]).unwrap();
        let lid = info.base_lid();
        info.set_base_lid(Lid(lid.0 << LMC)).set_guid_cap(dice.one(&[0, 1, 8, 9, 20]));
        if !is_switch && dice.chance(2) {
            info.set_lmc(LMC);
        }
        let own = !is_switch || port.num == PortNum(0) || dice.chance(2);
        port.pkeys = if own { keys(dice) } else { Arc::from([]) };
    }
    node
}

fn port_tables(dice: &mut Dice, node: &Node) -> PortTables {
    let mut tables = PortTables {
        node: node.guid,
        sl_to_vl_maps: vec![[1; 8], [2; 8]],
        vl_arb_blocks: vec![[3; 64], [4; 64]],
        ..PortTables::default()
    };
    let nums: Vec<u8> = node.ports.iter().map(|port| port.num.0).collect();
    let is_switch = node.switch_info.is_some();
    let inputs = if is_switch { &nums[..] } else { &[0] };
    for &input in inputs {
        let outputs = if is_switch || dice.chance(2) { &nums[..] } else { &[0] };
        for output in dice.some(outputs.iter().copied()) {
            tables.sl_to_vl.push(((input, output), dice.below(2) as u16));
        }
    }
    for &output in &nums {
        for block in dice.some(1..=4) {
            tables.vl_arb.push(((output, block), dice.below(2) as u16));
        }
    }
    tables
}

fn registry(dice: &mut Dice, fabric: &FabricPlane) -> RegistryPlane {
    let ports: Vec<Guid> = fabric.nodes.iter().map(|node| node.ports[0].guid).collect();
    let gid = |guid| Gid::new(SUBNET_PREFIX_DEFAULT, guid);
    let mut places = BTreeSet::new();
    let aliases = (1..8u64).filter_map(|i| {
        let (port_guid, index) = (dice.one(&ports), 1 + dice.below(20) as u8);
        let row = AliasGuid { alias: Guid(0xA000 + i), port_guid, index };
        places.insert((port_guid, index)).then(|| Arc::new(row))
    });
    let alias_guids = aliases.collect();

    let mut groups = Vec::new();
    let mut members = Vec::new();
    for i in 0..5u8 {
        let mut mgid = [0; 16];
        (mgid[0], mgid[1], mgid[15]) = (0xFF, 0x12, i);
        let mgid = Gid(mgid);
        let mut record = [0; 52];
        record[32..].copy_from_slice(&dice.bytes::<20>(&[0, 1, 0x42]));
        record[38] = 0x80 | (1 + dice.below(5) as u8);
        record[42] = 0x80 | dice.one(&[2, 3, 4, 7]);
        record[43] = 0x80 | dice.one(&[17, 18]);
        McMemberRecord::new(&mut record[..])
            .unwrap()
            .set_mgid(mgid)
            .set_mlid(Lid(0xC000 + u16::from(i) / 2))
            .set_pkey(PKey(dice.one(&[0, 1, 2, 0x8001, 0x8003, 0x8009])))
            .set_join_state(Default::default())
            .set_proxy_join(false);
        record[49..].fill(0);
        groups.push(Arc::new(MulticastGroup { mgid, record, predefined: false }));
        for port in dice.some(ports.iter().copied()) {
            let rid = MulticastMemberRid { mgid, port_gid: gid(port) };
            let (join_state, proxy_join) = (1 + dice.below(3) as u8, dice.chance(3));
            members.push(Arc::new(MulticastMember { rid, join_state, proxy_join }));
        }
    }

    let services = (0..8).map(|_| {
        let rid = ServiceRid {
            service_id: dice.below(3) as u64,
            service_gid: match dice.below(6) {
                0 => groups[dice.below(groups.len())].mgid,
                1 => Gid([0xFF; 16]),
                2 => gid(Guid(0xBAD)),
                _ => gid(dice.one(&ports[..3])),
            },
            service_pkey: PKey(dice.one(&[0, 1, 0x8002])),
        };
        let mut record: [u8; 176] = dice.bytes(&[0, 0, 0, 7]);
        record[..8].copy_from_slice(&rid.service_id.to_be_bytes());
        record[8..24].copy_from_slice(&rid.service_gid.0);
        record[24..26].copy_from_slice(&rid.service_pkey.0.to_be_bytes());
        Arc::new(Service { rid, record, expires_s: None })
    });
    let services = services.collect();

    let subscriptions = (0..6).map(|i| {
        let port = dice.one(&[ports[0], ports[1], ports[2], Guid(0xBAD)]);
        let rid = SubscriptionRid { subscriber_gid: gid(port), enumeration: i % 3 };
        let mut inform_info: [u8; 36] = dice.bytes(&[0, 1, 0xFF]);
        inform_info[31] &= 0x1F;
        Arc::new(Subscription {
            rid,
            inform_info,
            lid: Lid(2),
            qpn: Qpn(dice.below(2) as u32),
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            grh: false,
            trusted: false,
            responder: 0,
        })
    });
    RegistryPlane {
        subscriptions: subscriptions.collect(),
        groups: groups.into_iter().collect(),
        members: members.into_iter().collect(),
        services,
        alias_guids,
        ..RegistryPlane::default()
    }
}

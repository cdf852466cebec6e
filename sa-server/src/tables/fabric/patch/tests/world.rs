//! Small fabrics of switches and hosts, whose cables, routes and ports change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, PKey, PortNum, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::{LinkWidths, NodeType, PortInfo, SwitchInfo};
use proptest::prelude::*;
use sa_proto::snapshot::{
    FabricPlane, Lft, Mft, MftBlock, Partition, PathSls, Port, PortTables, Row, Subnet, find,
};

use crate::tables::fabric::testing::{self, node};

/// Ports of a switch. Hosts are at the last ones, links between switches at the first.
const PORTS: u8 = 10;
const HOSTS_EACH: u8 = 3;
pub(super) const LIDS: usize = 192;

/// A fabric of a few switches and hosts, to be changed.
#[derive(Clone, Debug)]
pub(super) struct World {
    switches: usize,
    cables: Vec<Cable>,
    /// By number: whether it is there, LMC, and P_Key.
    hosts: Vec<(bool, u8, u16)>,
    /// Entries that no engine would set: switch, LID, port.
    entries: Vec<(usize, usize, u8)>,
    sls: Vec<(usize, usize, u8)>,
    /// SL-to-VL maps by switch, MLIDs, and a byte of SwitchInfo.
    maps: Vec<u8>,
    groups: Vec<u8>,
    /// P_Keys of external ports of switches: switch, port, P_Key.
    port_keys: Vec<(usize, u8, u16)>,
    /// SLs of partitions, by P_Key.
    partitions: BTreeMap<PKey, u8>,
    life_time: u8,
    /// Which of equal routes are taken.
    seed: u64,
}

/// A cable between switches: its ends, whether it is linked, and whether it is slow.
type Cable = ([(usize, u8); 2], bool, bool);

#[derive(Clone, Debug)]
pub(super) enum Change {
    Cable(usize),
    Speed(usize),
    Reroute(u64),
    Host(usize),
    Lmc(usize, u8),
    PKey(usize, u16),
    PortPKey(usize, u8, u16),
    Partition(u16, u8),
    Entry(usize, usize, u8),
    Sl(usize, usize, u8),
    Map(usize, u8),
    Group(usize, u8),
    LifeTime(u8),
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    let lid = 1..LIDS;
    prop_oneof![
        8 => (0usize..16).prop_map(Change::Cable),
        2 => (0usize..16).prop_map(Change::Speed),
        4 => any::<u64>().prop_map(Change::Reroute),
        1 => (0usize..64).prop_map(Change::Host),
        1 => (0usize..64, 0u8..3).prop_map(|(host, lmc)| Change::Lmc(host, lmc)),
        3 => (0usize..64, 0u16..12).prop_map(|(host, key)| Change::PKey(host, key)),
        2 => (0usize..8, 1..PORTS, 0u16..12)
            .prop_map(|(switch, port, key)| Change::PortPKey(switch, port, key)),
        2 => (0u16..12, 0u8..16).prop_map(|(key, sl)| Change::Partition(key, sl)),
        4 => (0usize..8, lid.clone(), 0..PORTS + 3)
            .prop_map(|(switch, lid, port)| Change::Entry(switch, lid, port)),
        2 => (0usize..8, lid, 0u8..16).prop_map(|(s, lid, sl)| Change::Sl(s, lid, sl)),
        1 => (0usize..8, 0u8..3).prop_map(|(switch, map)| Change::Map(switch, map)),
        1 => (0usize..8, 0u8..3).prop_map(|(switch, ports)| Change::Group(switch, ports)),
        1 => (0u8..4).prop_map(Change::LifeTime),
    ]
}

pub(super) fn world() -> impl Strategy<Value = World> {
    let ends = prop::collection::vec((0usize..6, 0usize..6), 4..16);
    (2usize..6, ends, any::<u64>()).prop_map(|(switches, pairs, seed)| {
        let mut next = vec![1u8; switches];
        let mut cables = Vec::new();
        for (a, b) in pairs.into_iter().map(|(a, b)| (a % switches, b % switches)) {
            let room = |at: usize| next[at] < PORTS - HOSTS_EACH;
            if a != b && room(a) && room(b) {
                cables.push(([(a, next[a]), (b, next[b])], true, false));
                next[a] += 1;
                next[b] += 1;
            }
        }
        // The last switch has no hosts.
        let hosts = vec![(true, 0, 1); (switches - 1) * usize::from(HOSTS_EACH)];
        World {
            switches,
            cables,
            hosts,
            entries: Vec::new(),
            sls: Vec::new(),
            maps: vec![0; switches],
            groups: vec![0; switches],
            port_keys: Vec::new(),
            partitions: BTreeMap::new(),
            life_time: 0,
            seed,
        }
    })
}

fn switch_guid(at: usize) -> Guid {
    Guid(0x5000 + 0x10 * at as u64)
}

fn host_guid(at: usize) -> Guid {
    // Some before and some behind those of switches.
    Guid(if at.is_multiple_of(2) { 0x1000 } else { 0x9000 } + 0x10 * at as u64)
}

pub(super) fn host_lid(at: usize) -> Lid {
    Lid(8 + 4 * at as u16)
}

fn switch_lid(at: usize) -> Lid {
    Lid(1 + at as u16)
}

impl World {
    pub(super) fn apply(&mut self, change: &Change) {
        let (switches, hosts) = (self.switches, self.hosts.len());
        match *change {
            Change::Cable(at) if !self.cables.is_empty() => {
                let at = at % self.cables.len();
                self.cables[at].1 ^= true;
            }
            Change::Speed(at) if !self.cables.is_empty() => {
                let at = at % self.cables.len();
                self.cables[at].2 ^= true;
            }
            Change::Cable(_) | Change::Speed(_) => {}
            Change::Reroute(seed) => self.seed = seed,
            Change::Host(at) => self.hosts[at % hosts].0 ^= true,
            Change::Lmc(at, lmc) => self.hosts[at % hosts].1 = lmc,
            Change::PKey(at, key) => self.hosts[at % hosts].2 = key,
            Change::PortPKey(at, port, key) => self.port_keys.push((at % switches, port, key)),
            Change::Partition(key, sl) => _ = self.partitions.insert(PKey(pkey(key).base()), sl),
            Change::Entry(at, lid, port) => self.entries.push((at % switches, lid, port)),
            Change::Sl(at, lid, sl) => self.sls.push((at % switches, lid, sl)),
            Change::Map(at, map) => self.maps[at % switches] = map,
            Change::Group(at, ports) => self.groups[at % switches] = ports,
            Change::LifeTime(time) => self.life_time = time,
        }
    }

    /// The host at a port of a switch, if it is there.
    fn host_at(&self, switch: usize, port: u8) -> Option<usize> {
        let nth = usize::from(port.checked_sub(PORTS - HOSTS_EACH)?);
        let at = switch * usize::from(HOSTS_EACH) + nth;
        (self.hosts.get(at)?.0).then_some(at)
    }

    /// The cable at a port of a switch: its other end, and whether it is slow.
    fn cable_at(&self, switch: usize, port: u8) -> Option<((usize, u8), bool)> {
        self.cables.iter().filter(|cable| cable.1).find_map(|&([a, b], _, slow)| {
            let here = (switch, port);
            [(a, b), (b, a)].iter().find(|ends| ends.0 == here).map(|ends| (ends.1, slow))
        })
    }

    pub(super) fn plane(&self) -> FabricPlane {
        let mut nodes = Vec::new();
        for (at, &(_, lmc, key)) in self.hosts.iter().enumerate().filter(|(_, host)| host.0) {
            let guid = host_guid(at);
            let switch = at / usize::from(HOSTS_EACH);
            let num = PORTS - HOSTS_EACH + (at % usize::from(HOSTS_EACH)) as u8;
            let peer = Some((switch_guid(switch), PortNum(num)));
            let mut port = port(1, Guid(guid.0 + 1), host_lid(at), peer, false);
            PortInfo::of_mut(&mut port.info).set_lmc(lmc);
            port.pkeys = [pkey(key), PKey::DEFAULT_FULL].into();
            nodes.push(node(guid, NodeType::Ca, vec![port]));
        }
        let (mut lfts, mut path_sls) = (Vec::new(), Vec::new());
        let (mut port_tables, mut mfts) = (Vec::new(), Vec::new());
        for at in 0..self.switches {
            let guid = switch_guid(at);
            let mut ports = vec![port(0, guid, switch_lid(at), None, false)];
            for num in 1..PORTS {
                let host = self.host_at(at, num).map(|host| (host_guid(host), PortNum(1)));
                let cable = self.cable_at(at, num);
                let peer = cable.map(|((peer, port), _)| (switch_guid(peer), PortNum(port)));
                let slow = cable.is_some_and(|(_, slow)| slow);
                let mut port = port(num, guid, Lid::NONE, host.or(peer), slow);
                let key_of = |&(switch, port, key): &(usize, u8, u16)| {
                    ((switch, port) == (at, num)).then_some(pkey(key))
                };
                if let Some(key) = self.port_keys.iter().rev().find_map(key_of) {
                    port.pkeys = [key].into();
                }
                ports.push(port);
            }
            nodes.push(node(guid, NodeType::Switch, ports));
            let switch = Arc::make_mut(nodes.last_mut().unwrap());
            let info = switch.switch_info.as_mut().unwrap();
            SwitchInfo::new(&mut info[..]).unwrap().set_linear_fdb_top(Lid(self.life_time.into()));
            lfts.push(Arc::new(Lft { switch: guid, ports: self.routes(at).into() }));
            let mut sls = vec![0; LIDS];
            let own = self.sls.iter().filter(|(switch, ..)| *switch == at);
            own.for_each(|&(_, lid, sl)| sls[lid] = sl);
            path_sls.push(Arc::new(PathSls { switch: guid, sls }));
            if self.maps[at] > 0 {
                port_tables.push(Arc::new(PortTables {
                    node: guid,
                    sl_to_vl: vec![((1, 2), 0)],
                    sl_to_vl_maps: vec![[self.maps[at]; 8]],
                    vl_arb: Vec::new(),
                    vl_arb_blocks: Vec::new(),
                }));
            }
            if self.groups[at] > 0 {
                let block = MftBlock { block: 0, position: 0, masks: [self.groups[at]; 64] };
                mfts.push(Arc::new(Mft { switch: guid, blocks: vec![block] }));
            }
        }
        nodes.sort_by_key(|node| node.guid);
        let subnet = Subnet {
            prefix: SUBNET_PREFIX_DEFAULT,
            sm_lid: host_lid(0),
            engine_sls: 0xF,
            qos: true,
            ..Subnet::default()
        };
        let partition = |(&pkey, &sl): (&PKey, &u8)| {
            Arc::new(Partition { pkey, name: String::new(), sl: Sl::from_low_bits(sl.into()) })
        };
        let partitions = self.partitions.iter().map(partition).collect();
        let plane = FabricPlane { subnet, nodes, lfts, path_sls, ..FabricPlane::default() };
        FabricPlane { port_tables, mfts, partitions, ..plane }
    }

    /// Shortest routes from a switch, with some entries that are not.
    fn routes(&self, at: usize) -> Vec<u8> {
        let mut table = vec![Lft::NO_ROUTE; LIDS];
        for to in 0..self.switches {
            let hops = self.hops_to(to);
            let exit = if to == at {
                Some(0)
            } else {
                let better = |port: &u8| {
                    let peer = self.cable_at(at, *port).map(|((peer, _), _)| hops[peer]);
                    peer.is_some_and(|hops_there| hops_there < hops[at])
                };
                let ports: Vec<u8> = (1..PORTS).filter(better).collect();
                let dice = self.seed.rotate_left(to as u32 * 7 + at as u32 * 3) as usize;
                (!ports.is_empty()).then(|| ports[dice % ports.len()])
            };
            let Some(exit) = exit else { continue };
            table[switch_lid(to).index()] = exit;
            for port in PORTS - HOSTS_EACH..PORTS {
                if let Some(host) = self.host_at(to, port) {
                    let first = host_lid(host).index();
                    let exit = if to == at { port } else { exit };
                    table[first..first + (1 << self.hosts[host].1)].fill(exit);
                }
            }
        }
        let own = self.entries.iter().filter(|(switch, ..)| *switch == at);
        own.for_each(|&(_, lid, port)| table[lid] = port);
        table
    }

    fn hops_to(&self, to: usize) -> Vec<usize> {
        let mut hops = vec![usize::MAX; self.switches];
        hops[to] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(at) = queue.pop_front() {
            for port in 1..PORTS {
                let Some(((peer, _), _)) = self.cable_at(at, port) else { continue };
                if hops[peer] == usize::MAX {
                    hops[peer] = hops[at] + 1;
                    queue.push_back(peer);
                }
            }
        }
        hops
    }
}

/// Full and limited P_Keys of some partitions.
fn pkey(number: u16) -> PKey {
    PKey((1 + number / 2) | ((number % 2) << 15))
}

fn port(num: u8, guid: Guid, lid: Lid, peer: Option<(Guid, PortNum)>, slow: bool) -> Port {
    let mut port = testing::port(num, guid, lid, peer);
    if slow {
        PortInfo::of_mut(&mut port.info).set_link_width_active(LinkWidths::X1);
    }
    port
}

/// Equal rows are the same memory, as in snapshots.
pub(super) fn sharing(mut now: FabricPlane, before: &FabricPlane) -> FabricPlane {
    fn share<R: Row<Key = Guid>>(now: &mut [Arc<R>], before: &[Arc<R>]) {
        for row in now {
            match find(before, row.key()) {
                Some(then) if then == row => *row = Arc::clone(then),
                _ => {}
            }
        }
    }
    share(&mut now.nodes, &before.nodes);
    share(&mut now.lfts, &before.lfts);
    share(&mut now.path_sls, &before.path_sls);
    share(&mut now.port_tables, &before.port_tables);
    share(&mut now.mfts, &before.mfts);
    now
}

/// A ring of four switches, hosts at three of them.
pub(super) fn ring() -> World {
    let ends = |at: usize| [(at, 1), ((at + 1) % 4, 2)];
    World {
        switches: 4,
        cables: (0..4).map(|at| (ends(at), true, false)).collect(),
        hosts: vec![(true, 0, 1); 3 * usize::from(HOSTS_EACH)],
        entries: Vec::new(),
        sls: Vec::new(),
        maps: vec![0; 4],
        groups: vec![0; 4],
        port_keys: Vec::new(),
        partitions: BTreeMap::new(),
        life_time: 0,
        seed: 1,
    }
}

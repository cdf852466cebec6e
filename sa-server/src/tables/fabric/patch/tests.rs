//! Patched tables are those that building them would give.

use std::collections::VecDeque;

use ib_mad::types::{Lid, Mtu, PKey, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{
    LinkSpeeds, LinkWidths, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use proptest::prelude::*;
use sa_proto::snapshot::{MftBlock, PathSls, RegistryPlane, Subnet};

use super::*;

/// Ports of a switch. Hosts are at the last ones, links between switches at the first.
const PORTS: u8 = 10;
const HOSTS_EACH: u8 = 3;
const LIDS: usize = 192;

/// A fabric of a few switches and hosts, to be changed.
#[derive(Clone, Debug)]
struct World {
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
    life_time: u8,
    /// Which of equal routes are taken.
    seed: u64,
}

/// A cable between switches: its ends, whether it is linked, and whether it is slow.
type Cable = ([(usize, u8); 2], bool, bool);

#[derive(Clone, Debug)]
enum Change {
    Cable(usize),
    Speed(usize),
    Reroute(u64),
    Host(usize),
    Lmc(usize, u8),
    PKey(usize, u16),
    Entry(usize, usize, u8),
    Sl(usize, usize, u8),
    Map(usize, u8),
    Group(usize, u8),
    LifeTime(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let lid = 1..LIDS;
    prop_oneof![
        8 => (0usize..16).prop_map(Change::Cable),
        2 => (0usize..16).prop_map(Change::Speed),
        4 => any::<u64>().prop_map(Change::Reroute),
        1 => (0usize..64).prop_map(Change::Host),
        1 => (0usize..64, 0u8..3).prop_map(|(host, lmc)| Change::Lmc(host, lmc)),
        1 => (0usize..64, 0u16..3).prop_map(|(host, key)| Change::PKey(host, key)),
        4 => (0usize..8, lid.clone(), 0..PORTS + 3)
            .prop_map(|(switch, lid, port)| Change::Entry(switch, lid, port)),
        2 => (0usize..8, lid, 0u8..16).prop_map(|(s, lid, sl)| Change::Sl(s, lid, sl)),
        1 => (0usize..8, 0u8..3).prop_map(|(switch, map)| Change::Map(switch, map)),
        1 => (0usize..8, 0u8..3).prop_map(|(switch, ports)| Change::Group(switch, ports)),
        1 => (0u8..4).prop_map(Change::LifeTime),
    ]
}

fn world() -> impl Strategy<Value = World> {
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

fn host_lid(at: usize) -> Lid {
    Lid(8 + 4 * at as u16)
}

fn switch_lid(at: usize) -> Lid {
    Lid(1 + at as u16)
}

impl World {
    fn apply(&mut self, change: &Change) {
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

    fn plane(&self) -> FabricPlane {
        let mut nodes = Vec::new();
        for (at, &(_, lmc, key)) in self.hosts.iter().enumerate().filter(|(_, host)| host.0) {
            let guid = host_guid(at);
            let switch = at / usize::from(HOSTS_EACH);
            let num = PORTS - HOSTS_EACH + (at % usize::from(HOSTS_EACH)) as u8;
            let peer = Some((switch_guid(switch), PortNum(num)));
            let mut port = port(1, Guid(guid.0 + 1), host_lid(at), peer, false);
            PortInfo::of_mut(&mut port.info).set_lmc(lmc);
            port.pkeys = [PKey(0x8001 + key), PKey::DEFAULT_FULL].into();
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
                ports.push(port(num, guid, Lid::NONE, host.or(peer), slow));
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
            ..Subnet::default()
        };
        FabricPlane { subnet, nodes, lfts, path_sls, port_tables, mfts, ..FabricPlane::default() }
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

fn port(num: u8, guid: Guid, lid: Lid, peer: Option<(Guid, PortNum)>, slow: bool) -> Port {
    let mut info = [0; 64];
    PortInfo::of_mut(&mut info)
        .set_base_lid(lid)
        .set_link_width_active(if slow { LinkWidths::X1 } else { LinkWidths::X4 })
        .set_link_speed_active(LinkSpeeds::QDR)
        .set_mtu_cap(Mtu::B4096)
        .set_port_state(if peer.is_some() { PortState::Active } else { PortState::Down });
    Port { num: PortNum(num), guid, info, pkeys: [PKey::DEFAULT_FULL].into(), peer }
}

fn node(guid: Guid, kind: NodeType, ports: Vec<Port>) -> Arc<Node> {
    let mut info = [0; 40];
    NodeInfo::of_mut(&mut info)
        .set_node_type(kind)
        .set_num_ports(ports.len() as u8)
        .set_node_guid(guid)
        .set_port_guid(ports[0].guid);
    let switch_info = (kind == NodeType::Switch).then_some([0; 20]);
    let mut description = [0; 64];
    description[..8].copy_from_slice(&guid.0.to_be_bytes());
    Arc::new(Node { guid, info, description, switch_info, ports })
}

/// Equal rows are the same memory, as in snapshots.
fn sharing(mut now: FabricPlane, before: &FabricPlane) -> FabricPlane {
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

/// Columns may have other numbers.
fn without_column(port: &EndPort) -> EndPort {
    EndPort { column: 0, ..*port }
}

fn assert_same(patched: &Tables, built: &Tables) {
    // Destructured, so that no part is forgotten.
    let Tables {
        subnet,
        end_ports,
        partitions,
        paths,
        records,
        qos,
        plane,
        walked,
        sls,
        routers,
        alias_guids,
        end_classes,
        lmc,
        direct,
        planes,
        contradictions,
    } = patched;
    assert_eq!(*subnet, built.subnet);
    assert_eq!(**plane, *built.plane);
    let all = |ports: &[EndPort]| ports.iter().map(without_column).collect::<Vec<_>>();
    assert_eq!(all(end_ports.all()), all(built.end_ports.all()));
    for lid in (0..LIDS as u16).map(Lid) {
        let of = |tables: &Tables| tables.end_ports.by_lid(lid).map(without_column);
        assert_eq!(of(patched), of(built), "{lid:?}");
        assert_eq!(walked.columns.of(lid), built.walked.columns.of(lid), "{lid:?}");
        for source in built.end_ports.all() {
            let class = |tables: &Tables| {
                let source = tables.end_ports.by_guid(source.guid).unwrap();
                let own = tables.paths.row(source.row).map(<[u8]>::len);
                let to = tables.end_ports.by_lid(lid)?;
                assert!(own.is_none_or(|len| to.column == u16::MAX || len > to.column.into()));
                Some(tables.path_class(source, to, lid))
            };
            assert_eq!(class(patched), class(built), "{source:?} to {lid:?}");
        }
    }
    for port in built.end_ports.all() {
        let of_base = patched.end_ports.by_lid(port.lid).unwrap();
        assert_eq!(patched.end_ports.by_guid(port.guid), Some(of_base));
        assert_eq!(paths.is_complete(port.row), built.paths.is_complete(port.row));
    }
    assert_eq!(paths.are_complete(), built.paths.are_complete());
    assert_eq!(*walked.switches, *built.walked.switches);
    let debug = |it: &dyn std::fmt::Debug| format!("{it:?}");
    assert_eq!(debug(records), debug(&built.records));
    assert_eq!(debug(sls), debug(&built.sls));
    assert_eq!(debug(partitions), debug(&built.partitions));
    assert_eq!(debug(qos), debug(&built.qos));
    assert_eq!((routers, alias_guids), (&built.routers, &built.alias_guids));
    assert_eq!((end_classes, lmc), (&built.end_classes, &built.lmc));
    assert_eq!((direct, planes), (&built.direct, &built.planes));
    assert_eq!(*contradictions, built.contradictions);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Step by step, several changes at a time; what no patch covers is built again.
    #[test]
    fn a_patched_table_is_one_built_from_scratch(
        mut world in world(),
        steps in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..12),
    ) {
        let registry = RegistryPlane::default();
        let mut plane = Arc::new(world.plane());
        let mut tables = Tables::build(&plane, &registry);
        for changes in steps {
            changes.iter().for_each(|change| world.apply(change));
            plane = Arc::new(sharing(world.plane(), &plane));
            let built = Tables::build(&plane, &registry);
            let is_covered = changes.iter().all(|change| {
                !matches!(change, Change::Host(_) | Change::Lmc(..) | Change::PKey(..))
            });
            let patched = tables.patched(&plane);
            prop_assert!(patched.is_some() || !is_covered, "not patched: {changes:?}");
            if let Some(patched) = &patched {
                assert_same(patched, &built);
            }
            tables = patched.unwrap_or_else(|| tables.rebuild(&plane, &registry));
            assert_same(&tables, &built);
        }
    }
}

/// A ring of four switches, hosts at three of them.
fn ring() -> World {
    let ends = |at: usize| [(at, 1), ((at + 1) % 4, 2)];
    World {
        switches: 4,
        cables: (0..4).map(|at| (ends(at), true, false)).collect(),
        hosts: vec![(true, 0, 1); 3 * usize::from(HOSTS_EACH)],
        entries: Vec::new(),
        sls: Vec::new(),
        maps: vec![0; 4],
        groups: vec![0; 4],
        life_time: 0,
        seed: 1,
    }
}

#[test]
fn a_cut_cable_leaves_what_it_does_not_concern_shared() {
    let mut world = ring();
    let before = Arc::new(world.plane());
    let tables = Tables::build(&before, &RegistryPlane::default());
    world.apply(&Change::Cable(0));
    let after = Arc::new(sharing(world.plane(), &before));
    let patched = tables.patched(&after).expect("a cable between switches");
    assert!(Arc::ptr_eq(&patched.records.nodes, &tables.records.nodes));
    assert!(Arc::ptr_eq(&patched.end_classes, &tables.end_classes));
    assert!(!Arc::ptr_eq(&patched.records.links, &tables.records.links));
    assert_eq!(patched.records.links.len(), tables.records.links.len() - 2);
    let hops = |tables: &Tables| {
        let [from, to] = [0, 3].map(|host| *tables.end_ports.by_lid(host_lid(host)).unwrap());
        tables.path_class(&from, &to, to.lid).hops
    };
    assert_eq!((hops(&tables), hops(&patched)), (2, 4), "around the ring");
}

#[test]
fn hosts_that_come_or_change_are_not_patched() {
    let mut world = ring();
    let before = Arc::new(world.plane());
    let tables = Tables::build(&before, &RegistryPlane::default());
    for change in [Change::Host(0), Change::Lmc(1, 2), Change::PKey(2, 2)] {
        world.apply(&change);
        let after = Arc::new(sharing(world.plane(), &before));
        assert!(tables.patched(&after).is_none(), "{change:?}");
        world = ring();
    }
}

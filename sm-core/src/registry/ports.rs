//! The end ports, partitions and policy that the registry needs, as plain data that
//! is rebuilt after each sweep and shared with the registry's thread.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Rate, Sl};
use ib_mad::wire::attribute::{NodeType, PortState};
use sa_proto::snapshot::{Partition, PortGroup, VirtualFabric};

use super::pkey_sets::PKeySets;
use crate::fabric::{Fabric, Node, PortIndex, SubnetParameters};
use crate::manage::vfabric::by_mgid::ByMgid;

/// Settings of the registry. A field that names an option in parentheses is configured by the
/// site; the others deliberately have no option and exist for tests and measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether IPv6 solicited-node groups that differ only in their last 24 bits share an MLID
    /// (`consolidate_ipv6_snm_req`).
    pub consolidate_ipv6_snm_req: bool,
    /// Whether groups of one P_Key, SL, MTU and rate share an MLID once none is free. No
    /// option: refusing has no advantage (`docs/decisions/0013`).
    pub share_mlids: bool,
    /// Whether the components of a join must match the group (`mcgroup_join_validation`).
    pub mcgroup_join_validation: bool,
    /// Whether requested MGIDs are checked, those of IPoIB against their broadcast group
    /// (`ipoib_mcgroup_creation_validation`).
    pub ipoib_mcgroup_creation_validation: bool,
    /// Whether a port may have a P_Key as full and as limited member at once
    /// (`allow_both_pkeys`).
    pub allow_both_pkeys: bool,
    /// Whether a port that leaves the fabric loses its subscriptions and the services at its GIDs
    /// (`drop_event_subscriptions`).
    pub drop_event_subscriptions: bool,
    /// The SM_Key that makes a request trusted (`sa_key`), for the threads that read requests;
    /// `None` leaves it as it is.
    pub sa_key: Option<u64>,
    /// The greatest rate code of new groups (`max_rate_enum`); 0 is no limit.
    pub max_rate: u8,
    /// Site-specific byte of alias GUIDs that the registry assigns, to distinguish subnets
    /// (`sm_assigned_guid`).
    pub sm_assigned_guid: u8,
    /// How long a repeated request gets the stored answer, seconds. No option: it follows
    /// from how long clients retry (`docs/decisions/0013`).
    pub retry_window_s: u64,
    /// Maximum number of records of all kinds; beyond it additions are refused. No option: it
    /// bounds the memory of the SM and of each responder.
    pub records_max: usize,
    /// How many of these are reserved for trusted requesters.
    pub records_reserved: usize,
    /// Maximum number of services of a port, its aliases included. This limit and the next two do
    /// not apply to trusted requesters; none of them is an option.
    pub services_per_port_max: usize,
    /// Maximum number of multicast memberships that a port requested.
    pub memberships_per_port_max: usize,
    /// Maximum number of existing multicast groups that a port created.
    pub groups_per_port_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            consolidate_ipv6_snm_req: false,
            share_mlids: true,
            mcgroup_join_validation: true,
            ipoib_mcgroup_creation_validation: true,
            allow_both_pkeys: false,
            drop_event_subscriptions: false,
            sa_key: None,
            max_rate: 0,
            sm_assigned_guid: 0,
            retry_window_s: 10,
            records_max: 1 << 20,
            records_reserved: 1 << 16,
            services_per_port_max: 1 << 14,
            memberships_per_port_max: 1 << 14,
            groups_per_port_max: 1 << 11,
        }
    }
}

/// An end port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndPort {
    /// Port GUID.
    pub guid: Guid,
    /// Base LID.
    pub lid: Lid,
    /// LMC: the port has 2^LMC LIDs from the base LID.
    pub lmc: u8,
    /// MTU of its link (NeighborMTU).
    pub mtu: Mtu,
    /// Rate of its link.
    pub rate: Rate,
    /// Valid P_Keys, in table order.
    pub pkeys: Arc<[PKey]>,
    /// Node type.
    pub node_type: NodeType,
    /// Number of entries in its GUID table (GUIDCap).
    pub guid_cap: u8,
    /// Whether it is in state Active.
    pub active: bool,
}

impl EndPort {
    /// Whether the port is a full or limited member of the partition of `pkey`.
    pub fn has_pkey(&self, pkey: PKey) -> bool {
        self.pkeys.iter().any(|own| own.base() == pkey.base())
    }

    /// Whether the two ports share a partition in which they can communicate.
    pub fn shares_partition(&self, other: &Self) -> bool {
        self.guid == other.guid
            || self.pkeys.iter().any(|own| other.pkeys.iter().any(|&theirs| own.matches(theirs)))
    }

    /// The P_Key in its table with this base; the full one if it has both.
    pub fn own_pkey(&self, pkey: PKey) -> Option<PKey> {
        self.pkeys.iter().copied().filter(|own| own.base() == pkey.base()).max()
    }
}

/// Parameters of multicast groups in a virtual fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupParameters {
    /// P_Key without the membership bit.
    pub pkey: PKey,
    /// SL.
    pub sl: Sl,
    /// Greatest MTU.
    pub mtu_max: Option<Mtu>,
    /// Greatest rate.
    pub rate_max: Option<Rate>,
}

/// The end ports and their configuration.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    /// Subnet prefix, the upper half of every GID.
    pub prefix: u64,
    /// GUID of the SM's port.
    pub sm_port_guid: Guid,
    /// The last MLID that switches can forward ([`Ports::of`]); below [`Lid::MULTICAST_FIRST`] if
    /// there is none.
    pub mlid_last: Lid,
    /// Partitions, ascending by base P_Key.
    pub partitions: Vec<Partition>,
    /// Settings of the registry.
    pub settings: Settings,
    ports: Vec<EndPort>,
    by_guid: HashMap<Guid, u32, RandomState>,
    /// Physical ports by the GUIDs of their virtual ports.
    virtual_ports: HashMap<Guid, Guid, RandomState>,
    /// Whether there may be virtual ports that are not known yet.
    awaits_virtual_ports: bool,
    /// Ports that were there and may come back. Their GUIDs are theirs.
    absent: Arc<HashSet<Guid, RandomState>>,
    /// GUIDs of ports, virtual ones included, that are at other places than the GUIDs belong to.
    newcomers: HashSet<Guid, RandomState>,
    /// Index into `ports` plus 1, by LID; 0 if no port has the LID.
    by_lid: Vec<u32>,
    by_pkeys: PKeySets,
    virtual_fabrics: ByMgid,
    /// Ports of the nodes that one link brought, by each of them.
    brought: HashMap<Guid, Arc<[Guid]>, RandomState>,
}

/// Entries that a multicast table is expected to have. A switch with fewer does not lower the
/// number of MLIDs further, unless no switch has more: trees avoid it.
const MLIDS_EXPECTED: u16 = 1024;

impl Ports {
    /// These end ports without any configuration.
    pub fn new(prefix: u64, sm_port_guid: Guid, ports: Vec<EndPort>) -> Self {
        let mut by_lid = vec![0; usize::from(Lid::UNICAST_LAST.0) + 1];
        let mut by_guid = HashMap::with_capacity_and_hasher(ports.len(), RandomState::default());
        for (port, number) in ports.iter().zip(1..) {
            by_guid.insert(port.guid, number - 1);
            let first = port.lid.index();
            let last = (first + (1 << port.lmc.min(7))).min(by_lid.len());
            if port.lid.is_unicast() {
                by_lid[first..last].fill(number);
            }
        }
        Self {
            prefix,
            sm_port_guid,
            mlid_last: Lid(Lid::PERMISSIVE.0 - 1),
            partitions: Vec::new(),
            settings: Settings::default(),
            by_pkeys: PKeySets::new(&ports),
            ports,
            by_guid,
            virtual_ports: HashMap::default(),
            awaits_virtual_ports: false,
            absent: Arc::default(),
            newcomers: HashSet::default(),
            by_lid,
            virtual_fabrics: ByMgid::default(),
            brought: HashMap::default(),
        }
    }

    /// The end ports of `fabric` under the site's policy.
    pub fn of(fabric: &Fabric, parameters: &SubnetParameters, settings: Settings) -> Self {
        let mut tables = BTreeSet::new();
        let ports = fabric.end_ports().filter_map(|port| end_port(fabric, port, &mut tables));
        let ports = ports.collect();
        let sm_port = fabric.sm_port().map_or(Guid(0), |sm_port| fabric.port(sm_port).guid);
        let policy = &parameters.policy;
        let mut partitions = policy.partitions.clone();
        partitions.sort_unstable_by_key(|partition| partition.pkey);
        let mut all = Self {
            mlid_last: Lid(Lid::UNICAST_LAST.0 + mlids(fabric)),
            partitions,
            settings: Settings { allow_both_pkeys: policy.allow_both_pkeys, ..settings },
            ..Self::new(parameters.prefix, sm_port, ports)
        };
        all.set_virtual_fabrics(&policy.virtual_fabrics, &policy.port_groups);
        all.set_virtual_ports(virtual_ports(fabric), fabric.awaits_virtual_ports());
        all.set_newcomers(newcomers(fabric));
        let mut by_link: HashMap<PortIndex, Vec<Guid>> = HashMap::new();
        for port in fabric.end_ports() {
            if let Some(link) = fabric.node_of(port).entry() {
                by_link.entry(link).or_default().push(fabric.port(port).guid);
            }
        }
        all.set_brought(by_link.into_values());
        all
    }

    /// Sets the ports of nodes that appeared behind one link of a subnet already known, by link: in
    /// what they take of the registry's room for all, they count as one.
    pub fn set_brought(&mut self, links: impl IntoIterator<Item = Vec<Guid>>) {
        self.brought.clear();
        for ports in links.into_iter().map(Arc::<[Guid]>::from) {
            self.brought.extend(ports.iter().map(|&port| (port, Arc::clone(&ports))));
        }
    }

    /// The ports that one link brought with `port`, it among them; it alone if no link did.
    pub fn brought_with<'a>(&'a self, port: &'a EndPort) -> &'a [Guid] {
        let together = self.brought.get(&port.guid);
        together.map_or(std::slice::from_ref(&port.guid), |ports| ports)
    }

    /// Sets the GUIDs of virtual ports, each with that of the physical port, and whether there may
    /// be others that are not known yet.
    pub fn set_virtual_ports(
        &mut self,
        guids: impl IntoIterator<Item = (Guid, Guid)>,
        awaits_others: bool,
    ) {
        self.virtual_ports = guids.into_iter().collect();
        self.awaits_virtual_ports = awaits_others;
    }

    /// Sets the GUIDs of ports, virtual ones included, at other places than the GUIDs belong to,
    /// which are empty, and not for long: what was registered for them before is not theirs.
    pub fn set_newcomers(&mut self, guids: impl IntoIterator<Item = Guid>) {
        self.newcomers = guids.into_iter().collect();
    }

    /// GUIDs of [newcomers](Self::set_newcomers).
    pub(super) fn newcomers(&self) -> &HashSet<Guid, RandomState> {
        &self.newcomers
    }

    /// Sets the GUIDs that ports and nodes have or had.
    pub fn set_known(&mut self, guids: impl Iterator<Item = Guid>) {
        let absent = guids.filter(|guid| !self.by_guid.contains_key(guid));
        self.absent = Arc::new(absent.collect());
    }

    /// Whether a port has or had this port GUID, or a node has it.
    pub fn is_known(&self, guid: Guid) -> bool {
        self.by_guid.contains_key(&guid)
            || self.virtual_ports.contains_key(&guid)
            || self.absent.contains(&guid)
    }

    /// The port that has a virtual port with this GUID.
    pub fn by_virtual_guid(&self, guid: Guid) -> Option<&EndPort> {
        self.by_guid(*self.virtual_ports.get(&guid)?)
    }

    /// Whether a GUID that no port has may be that of a virtual port which is not known yet.
    pub fn may_be_virtual(&self, guid: Guid) -> bool {
        self.awaits_virtual_ports && !self.absent.contains(&guid)
    }

    /// Sets the virtual fabrics that apply to new groups, with their port groups.
    pub fn set_virtual_fabrics(&mut self, fabrics: &[VirtualFabric], groups: &[PortGroup]) {
        self.virtual_fabrics = ByMgid::new(fabrics, groups);
    }

    /// The parameters of a group with this MGID and P_Key that this port creates. Of the
    /// virtual fabrics with the port as a member and an application with the MGID, the first
    /// with this P_Key applies, else the first; if no application has it, the first that accepts
    /// unmatched MGIDs and has this P_Key. `None` if there is none.
    pub fn group_parameters(
        &self,
        mgid: Gid,
        port: &EndPort,
        pkey: PKey,
    ) -> Option<GroupParameters> {
        let all = &self.virtual_fabrics;
        let fabric = all
            .for_mgid(mgid, Some(pkey), port.guid, port.node_type)
            .or_else(|| all.first_named(mgid, port.guid, port.node_type))?;
        Some(GroupParameters {
            pkey: fabric.pkey,
            sl: fabric.multicast_sl,
            mtu_max: fabric.mtu_max,
            rate_max: fabric.rate_max,
        })
    }

    /// The port with this port GUID; aliases are not searched.
    pub fn by_guid(&self, guid: Guid) -> Option<&EndPort> {
        self.by_guid.get(&guid).map(|&at| &self.ports[at as usize])
    }

    /// The port with this LID, path bits included.
    pub fn by_lid(&self, lid: Lid) -> Option<&EndPort> {
        let number = *self.by_lid.get(lid.index())?;
        self.ports.get(number.checked_sub(1)? as usize)
    }

    /// The greatest LID of any port; [`Lid::NONE`] if there are no ports.
    pub fn lid_top(&self) -> Lid {
        self.by_pkeys.top()
    }

    /// Whether the requester shares a partition with every port with a LID from `first` to
    /// `last`. The cost grows with the number of distinct P_Key sets, not with the LIDs.
    pub fn all_share_partition(&self, requester: &EndPort, first: Lid, last: Lid) -> bool {
        self.by_pkeys.all_share(requester, first, last)
    }

    /// All end ports.
    pub fn iter(&self) -> impl Iterator<Item = &EndPort> {
        self.ports.iter()
    }
}

/// How many MLIDs there are: as many as the smallest multicast table has entries, of the switches
/// that did not appear in a subnet already known. Any host can answer as a switch that has next to
/// none.
fn mlids(fabric: &Fabric) -> u16 {
    let most = Lid::PERMISSIVE.0 - Lid::MULTICAST_FIRST.0;
    let switches = || fabric.switches().map(|(_, switch)| (fabric.node(switch.node), switch));
    let capacities = |is_counted: fn(&Node) -> bool| {
        let counted = switches().filter(move |(node, _)| is_counted(node));
        let capacities = counted.map(|(_, switch)| switch.switch_info().multicast_fdb_cap());
        capacities.filter(|&capacity| capacity > 0)
    };
    let least = capacities(|node| node.entry().is_none()).min();
    let greatest = capacities(|node| node.entry().is_none()).max();
    let Some((least, greatest)) = least.zip(greatest) else {
        return capacities(|_| true).min().unwrap_or(most).min(most);
    };
    least.max(greatest.min(MLIDS_EXPECTED)).min(most)
}

/// GUIDs of newcomers among the end ports and their virtual ports.
fn newcomers(fabric: &Fabric) -> impl Iterator<Item = Guid> {
    let physical = fabric.end_ports().map(|port| fabric.port(port));
    let physical = physical.filter(|port| port.is_newcomer).map(|port| port.guid);
    let is_newcomer = |host| fabric.port(host).is_newcomer;
    let virtual_ports = fabric.usable_virtual_ports();
    let virtual_ports =
        virtual_ports.filter(move |&(host, _, port)| port.is_newcomer() || is_newcomer(host));
    physical.chain(virtual_ports.map(|(_, _, port)| port.guid()))
}

/// Physical ports by the GUIDs of their virtual ports.
fn virtual_ports(fabric: &Fabric) -> impl Iterator<Item = (Guid, Guid)> {
    let usable = fabric.usable_virtual_ports();
    let reached = usable.filter(|(_, _, port)| !port.needs_lid());
    reached.map(|(host, _, port)| (port.guid(), fabric.port(host).guid))
}

/// The end port at `index`, with the P_Keys of its virtual ports, since it asks for these, too.
/// Ports with equal P_Keys share these, which most do: `tables` has all
/// so far.
fn end_port(
    fabric: &Fabric,
    index: PortIndex,
    tables: &mut BTreeSet<Arc<[PKey]>>,
) -> Option<EndPort> {
    let port = fabric.port(index);
    let info = port.port_info();
    let pkeys: Vec<_> = match fabric.virtual_ports(index) {
        Some(_) => fabric.pkeys_of_all(index),
        None => fabric.pkeys_of(index).iter().copied().filter(|key| key.is_valid()).collect(),
    };
    let pkeys = tables.get(&pkeys[..]).cloned().unwrap_or_else(|| {
        let pkeys: Arc<[PKey]> = pkeys.into();
        tables.insert(pkeys.clone());
        pkeys
    });
    let (lid, lmc) = fabric.lids_of(index);
    lid.is_unicast().then(|| EndPort {
        guid: port.guid,
        lid,
        lmc,
        mtu: Mtu::from_code(info.neighbor_mtu()).unwrap_or(Mtu::B256),
        rate: info.active_rate(info.capability_mask()).unwrap_or(Rate::Gbps2_5),
        pkeys,
        node_type: fabric.node_of(index).kind,
        guid_cap: info.guid_cap(),
        active: port.state() == Some(PortState::Active),
    })
}

#[cfg(test)]
mod tests {
    use ib_mad::types::PortNum;
    use ib_mad::wire::attribute::{NodeInfo, PortInfo, SwitchInfo};

    use super::*;

    fn port(guid: u64, lid: u16, lmc: u8) -> EndPort {
        EndPort {
            guid: Guid(guid),
            lid: Lid(lid),
            lmc,
            mtu: Mtu::B4096,
            rate: Rate::Gbps100,
            pkeys: [PKey::DEFAULT_LIMITED].into(),
            node_type: NodeType::Ca,
            guid_cap: 32,
            active: true,
        }
    }

    #[test]
    fn a_port_is_found_by_each_of_its_lids() {
        let ports = Ports::new(0, Guid(1), vec![port(1, 4, 2), port(2, 8, 0), port(3, 0xBFFE, 7)]);
        let guid = |lid| ports.by_lid(Lid(lid)).map(|port| port.guid.0);
        assert_eq!(guid(3), None);
        assert_eq!([4, 7, 8].map(guid), [Some(1), Some(1), Some(2)]);
        assert_eq!([9, 0xBFFF, 0xC000, 0].map(guid), [None, Some(3), None, None]);
        assert_eq!(ports.by_guid(Guid(2)).map(|port| port.lid), Some(Lid(8)));
    }

    #[test]
    fn a_fabric_lists_end_ports_and_switch_capacities() {
        let mut fabric = Fabric::default();
        let add = |fabric: &mut Fabric, kind, guid, ports| {
            let mut bytes = [0; 40];
            NodeInfo::new(&mut bytes[..])
                .unwrap()
                .set_node_type(kind)
                .set_num_ports(ports)
                .set_node_guid(Guid(guid))
                .set_port_guid(Guid(guid));
            fabric.add(&NodeInfo::new(&bytes[..]).unwrap(), kind).unwrap()
        };
        let (host, unready) =
            (add(&mut fabric, NodeType::Ca, 1, 1), add(&mut fabric, NodeType::Ca, 2, 1));
        let switch = add(&mut fabric, NodeType::Switch, 3, 4);
        let mut set = |node, num, peer, guid, lid| {
            let port = fabric.port_of(node, PortNum(num)).unwrap();
            if let Some(peer) = peer {
                fabric.link(port, fabric.port_of(switch, PortNum(peer)).unwrap());
            }
            let port = fabric.port_mut(port);
            (port.guid, port.known) = (Guid(guid), true);
            port.pkeys = [PKey::DEFAULT_FULL, PKey(0), PKey(0x8001)].into();
            PortInfo::new(&mut port.info[..])
                .unwrap()
                .set_base_lid(Lid(lid))
                .set_lmc(1)
                .set_neighbor_mtu(Mtu::B2048)
                .set_guid_cap(32)
                .set_port_state(PortState::Active);
        };
        set(host, 1, Some(1), 1, 4);
        set(unready, 1, Some(2), 2, 0);
        set(switch, 0, None, 3, 6);
        fabric.set_sm_port(fabric.port_of(host, PortNum(1)).unwrap());
        fabric.settle_end_ports(|_, _| crate::fabric::Tenure::Elsewhere);
        let parameters = || SubnetParameters {
            prefix: 7,
            lifetime: 0,
            sa_key: 0,
            routing_engine: String::new(),
            engine_sls: 0,
            path_sls: Vec::new(),
            managers: Vec::new(),
            policy: Default::default(),
        };
        let of = |fabric: &Fabric| Ports::of(fabric, &parameters(), Settings::default());
        assert_eq!(of(&fabric).mlid_last, Lid(0xFFFE), "no switch says how many it can");
        let index = fabric.node(switch).switch.unwrap();
        let info = &mut fabric.switch_mut(index).info;
        SwitchInfo::new(&mut info[..]).unwrap().set_multicast_fdb_cap(1024);
        let ports = of(&fabric);
        assert_eq!((ports.mlid_last, ports.prefix, ports.sm_port_guid), (Lid(0xC3FF), 7, Guid(1)));
        assert_eq!(ports.iter().count(), 2, "one has no LID yet");
        // Regression: a host that answered as a switch with room for one MLID left none to others.
        let newcomer = add(&mut fabric, NodeType::Switch, 9, 4);
        fabric.set_entry(newcomer, fabric.port_of(switch, PortNum(4)).unwrap());
        let index = fabric.node(newcomer).switch.unwrap();
        let set_cap = |fabric: &mut Fabric, index, cap| {
            let info = &mut fabric.switch_mut(index).info;
            SwitchInfo::new(&mut info[..]).unwrap().set_multicast_fdb_cap(cap);
        };
        set_cap(&mut fabric, index, 1);
        assert_eq!(of(&fabric).mlid_last, Lid(0xC3FF), "it is new");
        let small = add(&mut fabric, NodeType::Switch, 10, 4);
        let index = fabric.node(small).switch.unwrap();
        set_cap(&mut fabric, index, 64);
        assert_eq!(of(&fabric).mlid_last, Lid(0xC3FF), "trees avoid it");
        let index = fabric.node(switch).switch.unwrap();
        set_cap(&mut fabric, index, 128);
        assert_eq!(of(&fabric).mlid_last, Lid(0xC07F), "none has as many as most have");
        let found = ports.by_lid(Lid(5)).unwrap();
        assert_eq!((found.guid, found.mtu, found.guid_cap), (Guid(1), Mtu::B2048, 32));
        assert_eq!(*found.pkeys, [PKey::DEFAULT_FULL, PKey(0x8001)]);
        assert!(found.active && ports.by_guid(Guid(3)).unwrap().node_type == NodeType::Switch);
    }

    #[test]
    fn limited_members_of_one_partition_share_nothing() {
        let mut full = port(3, 5, 0);
        full.pkeys = [PKey(0x8001), PKey::DEFAULT_FULL].into();
        assert!(!port(1, 3, 0).shares_partition(&port(2, 4, 0)));
        assert!(port(1, 3, 0).shares_partition(&port(1, 3, 0)));
        assert!(port(1, 3, 0).shares_partition(&full));
        assert!(full.has_pkey(PKey(0x0001)) && !full.has_pkey(PKey(0x0002)));
    }

    #[test]
    fn the_first_virtual_fabric_that_has_port_and_mgid_decides() {
        let mut ports = Ports::new(0, Guid(1), vec![port(1, 3, 0), port(2, 4, 0)]);
        let fabric = |index: u32, member: u32| VirtualFabric {
            index,
            name: format!("vf{index}"),
            pkey: PKey(index as u16),
            base_sl: Sl::from_low_bits(index as u16),
            multicast_sl: Sl::from_low_bits(index as u16),
            security: true,
            qos: true,
            mgids: vec![(Gid([0xFF; 16]), Gid([0xFF; 16]))],
            members: vec![member],
            ..VirtualFabric::default()
        };
        let group = |index, node_types, ports: &[u64]| PortGroup {
            index,
            name: String::new(),
            node_types,
            ports: ports.iter().copied().map(Guid).collect(),
        };
        ports.set_virtual_fabrics(
            &[fabric(2, 0), fabric(1, 1)],
            &[group(0, PortGroup::NODE_CA, &[]), group(1, 0, &[2])],
        );
        let pkey = |guid, mgid, pkey| {
            let port = ports.by_guid(Guid(guid)).unwrap();
            ports.group_parameters(Gid([mgid; 16]), port, PKey(pkey)).map(|got| got.pkey.0)
        };
        assert_eq!((pkey(1, 0xFF, 0x8001), pkey(2, 0xFF, 0xFFFF)), (Some(2), Some(1)));
        assert_eq!(pkey(2, 0xFF, 0x8002), Some(2), "it asked for that of the second");
        assert_eq!(pkey(2, 0xFE, 0x8001), None);
    }
}

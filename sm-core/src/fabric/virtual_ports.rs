//! Virtual ports of adapters' ports (SR-IOV), as their agents last reported them, and which of
//! several ports with one GUID has it.
//!
//! Only virtual ports that are not Down are kept. They have no LID of their own: packets for them
//! carry the LID of the physical port, and their GID in a GRH.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, PKey};
use ib_mad::wire::attribute::{
    CapabilityMask, CapabilityMask2, PKEYS_PER_BLOCK, PortState, VNodeInfo, VPortInfo,
    VirtualizationInfo,
};
use sa_proto::snapshot;

use super::{Fabric, PortIndex};

/// Virtual ports of one port that are managed: those with lower indices than this.
pub const INDICES_MAX: u16 = 1024;

/// Virtual ports of all ports that are managed.
pub const VIRTUAL_PORTS_MAX: usize = 1 << 17;

/// Entries of the P_Key table of a virtual port that are read and written.
pub const VIRTUAL_PKEYS_MAX: u16 = 64 * PKEYS_PER_BLOCK as u16;

/// The virtual ports of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualPorts {
    /// VirtualizationInfo in wire format.
    pub info: [u8; VirtualizationInfo::LEN],
    /// Those that are not Down, by index.
    ports: BTreeMap<u16, VirtualPort>,
    /// Whether all of them were read, or could not be.
    pub(crate) is_known: bool,
}

/// A virtual port that is not Down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualPort {
    /// Its state.
    pub state: PortState,
    /// VPortInfo in wire format; zeros until it was read.
    pub info: [u8; VPortInfo::LEN],
    /// VNodeInfo in wire format; zeros until it was read.
    pub node_info: [u8; VNodeInfo::LEN],
    /// VNodeDescription.
    pub description: [u8; 64],
    /// Its P_Key table without the invalid keys at the end.
    pub pkeys: Arc<[PKey]>,
    /// The P_Key table that it is to have, once that is known.
    pub(super) assigned: Option<Arc<[PKey]>>,
    /// Whether all of that was read since it left Down.
    pub(crate) is_read: bool,
    /// Whether its GUID is its own, or another port's.
    owns_guid: bool,
    /// See [`is_newcomer`](Self::is_newcomer).
    is_newcomer: bool,
}

impl VirtualPort {
    /// A virtual port that has not been read yet.
    pub(crate) fn unread(state: PortState) -> Self {
        Self {
            state,
            info: [0; VPortInfo::LEN],
            node_info: [0; VNodeInfo::LEN],
            description: [0; 64],
            pkeys: Arc::default(),
            assigned: None,
            is_read: false,
            owns_guid: false,
            is_newcomer: false,
        }
    }

    /// Records its VPortInfo. Another GUID than before is not its own until that is settled.
    pub(crate) fn set_info(&mut self, info: [u8; VPortInfo::LEN], state: PortState) {
        self.owns_guid &= VPortInfo::of(&info).port_guid() == self.guid();
        (self.info, self.state) = (info, state);
    }

    /// VPortInfo.
    pub fn vport_info(&self) -> VPortInfo<&[u8; VPortInfo::LEN]> {
        VPortInfo::of(&self.info)
    }

    /// VNodeInfo.
    pub fn vnode_info(&self) -> VNodeInfo<&[u8; VNodeInfo::LEN]> {
        VNodeInfo::of(&self.node_info)
    }

    /// Its GUID; 0 until it was read.
    pub fn guid(&self) -> Guid {
        self.vport_info().port_guid()
    }

    /// Whether it was read, and has a GUID that no other port has.
    pub fn is_usable(&self) -> bool {
        self.is_read && self.owns_guid
    }

    /// Whether another port has its GUID, or it has none that a port can have.
    pub fn lacks_guid(&self) -> bool {
        self.is_read && !self.owns_guid
    }

    /// Whether its GUID is one of another host, which is away, and not for long.
    pub fn is_newcomer(&self) -> bool {
        self.is_newcomer
    }

    /// Whether it needs a LID of its own, which it does not get.
    pub fn needs_lid(&self) -> bool {
        self.vport_info().lid_required()
    }

    /// Entries of its P_Key table, as far as they are managed.
    pub fn pkey_capacity(&self) -> u16 {
        self.vnode_info().partition_cap().min(VIRTUAL_PKEYS_MAX)
    }

    /// Blocks of its P_Key table, as far as they are managed.
    pub fn pkey_blocks(&self) -> u16 {
        self.pkey_capacity().div_ceil(PKEYS_PER_BLOCK as u16)
    }
}

impl VirtualPorts {
    /// VirtualizationInfo.
    pub fn virtualization_info(&self) -> VirtualizationInfo<&[u8; VirtualizationInfo::LEN]> {
        VirtualizationInfo::of(&self.info)
    }

    /// Those that are not Down, ascending by index.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &VirtualPort)> {
        self.ports.iter().map(|(&index, port)| (index, port))
    }

    /// The one at an index, if it is not Down.
    pub fn get(&self, index: u16) -> Option<&VirtualPort> {
        self.ports.get(&index)
    }

    /// How many are not Down.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether all are Down.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}

/// The ports that have virtual ports, and the owners of GUIDs.
#[derive(Debug, Default)]
pub(super) struct VirtualIndex {
    hosts: BTreeSet<PortIndex>,
    /// The virtual ports of all of them.
    count: usize,
    by_guid: HashMap<Guid, (PortIndex, u16), RandomState>,
    /// Whether that changed.
    has_moved: bool,
    /// Whether some were never read, although they may exist.
    is_awaited: bool,
}

impl VirtualIndex {
    /// Adds a port with its virtual ports, whose GUIDs are to be settled.
    pub(super) fn add(&mut self, host: PortIndex, ports: &VirtualPorts) {
        self.hosts.insert(host);
        self.count += ports.len();
    }
}

impl Fabric {
    /// Whether a port can have virtual ports.
    pub fn can_have_virtual_ports(&self, port: PortIndex) -> bool {
        let info = self.port(port).port_info();
        self.node_of(port).switch.is_none()
            && info.capability_mask().contains(CapabilityMask::IS_CAPABILITY_MASK2_SUPPORTED)
            && info.capability_mask2().contains(CapabilityMask2::IS_VIRTUALIZATION_SUPPORTED)
    }

    /// The virtual ports of a port; `None` until they are read, and if it has none.
    pub fn virtual_ports(&self, port: PortIndex) -> Option<&VirtualPorts> {
        self.virtual_ports_so_far(port).filter(|ports| ports.is_known)
    }

    /// Same while they are being read for the first time.
    pub(crate) fn virtual_ports_so_far(&self, port: PortIndex) -> Option<&VirtualPorts> {
        self.port(port).virtual_ports.as_deref()
    }

    /// End ports with virtual ports that were read.
    pub fn virtual_hosts(&self) -> impl Iterator<Item = (PortIndex, &VirtualPorts)> {
        self.virtual_index.hosts.iter().filter_map(|&port| {
            let ports = self.virtual_ports(port).filter(|_| self.is_end_port(port))?;
            Some((port, ports))
        })
    }

    /// All virtual ports that were read and have their GUIDs, with the port that has each and its
    /// index.
    pub fn usable_virtual_ports(&self) -> impl Iterator<Item = (PortIndex, u16, &VirtualPort)> {
        self.virtual_hosts().flat_map(|(host, ports)| {
            let ports = ports.iter().filter(|(_, port)| port.is_usable());
            ports.map(move |(index, port)| (host, index, port))
        })
    }

    /// How many virtual ports are not Down.
    pub fn virtual_port_count(&self) -> usize {
        self.virtual_index.count
    }

    /// The virtual port with this GUID, and the port that has it.
    pub fn virtual_port_by_guid(&self, guid: Guid) -> Option<(PortIndex, u16)> {
        let found = self.virtual_index.by_guid.get(&guid).copied();
        found.filter(|&(host, _)| self.is_end_port(host))
    }

    /// Whether a port has the GUID of a virtual port of another one.
    pub(crate) fn is_anothers_virtual_port(&self, port: PortIndex) -> bool {
        self.virtual_port_by_guid(self.port(port).guid).is_some_and(|(host, _)| host != port)
    }

    /// Changes the virtual ports of a port, which it gets if it had none.
    pub(crate) fn with_virtual_ports<R>(
        &mut self,
        port: PortIndex,
        change: impl FnOnce(&mut VirtualPorts, &mut BTreeMap<u16, VirtualPort>) -> R,
    ) -> R {
        let entry = self.ports[port.get()].virtual_ports.get_or_insert_default();
        let before = entry.ports.len();
        let mut ports = std::mem::take(&mut entry.ports);
        let result = change(entry, &mut ports);
        self.virtual_index.count = self.virtual_index.count - before + ports.len();
        entry.ports = ports;
        self.virtual_index.hosts.insert(port);
        result
    }

    /// Removes the virtual ports of a port.
    pub(crate) fn remove_virtual_ports(&mut self, port: PortIndex) {
        if let Some(removed) = self.ports[port.get()].virtual_ports.take() {
            self.virtual_index.count -= removed.ports.len();
            self.virtual_index.hosts.remove(&port);
        }
    }

    /// Records a block of the P_Key table of a virtual port.
    pub(crate) fn set_virtual_pkeys(
        &mut self,
        port: PortIndex,
        index: u16,
        block: u16,
        keys: &[PKey; PKEYS_PER_BLOCK],
    ) {
        let Some(entry) = self.ports[port.get()].virtual_ports.as_mut() else { return };
        if let Some(virtual_port) = entry.ports.get_mut(&index) {
            virtual_port.pkeys = self.pkey_tables.with_block(&virtual_port.pkeys, block, keys);
        }
    }

    /// Sets whether a virtual port has the GUID of one of another host, which is away; returns
    /// whether that changed.
    pub(crate) fn set_virtual_newcomer(
        &mut self,
        host: PortIndex,
        index: u16,
        is_newcomer: bool,
    ) -> bool {
        let ports = self.ports[host.get()].virtual_ports.as_mut();
        let port = ports.and_then(|ports| ports.ports.get_mut(&index));
        port.is_some_and(|port| {
            std::mem::replace(&mut port.is_newcomer, is_newcomer) != is_newcomer
        })
    }

    /// Chooses one port for each GUID of virtual ports: a physical port before a virtual one,
    /// unless it is a newcomer, then the one that had it before, then the first for which the GUID
    /// is not another port's, absent or present (`is_anothers`, with the GUID of the physical
    /// port). Newcomers are last.
    pub(crate) fn settle_virtual_guids(&mut self, is_anothers: impl Fn(Guid, Guid) -> bool) {
        let hosts: Vec<PortIndex> = self.virtual_hosts().map(|(host, _)| host).collect();
        let taken: HashSet<Guid, RandomState> = match hosts.is_empty() {
            true => HashSet::default(),
            false => {
                let settled = self.end_ports().filter(|&port| !self.port(port).is_newcomer);
                settled.map(|port| self.port(port).guid).collect()
            }
        };
        let mut by_guid: HashMap<Guid, (PortIndex, u16), RandomState> = HashMap::default();
        let rank = |port: &VirtualPort| match (port.is_newcomer, port.owns_guid) {
            (false, true) => 0,
            (false, false) => 1,
            (true, _) => 2,
        };
        for ranked in 0..=2 {
            for &host in &hosts {
                let own = self.port(host).guid;
                let ports = self.virtual_ports(host).into_iter().flat_map(VirtualPorts::iter);
                let ports = ports.filter(|(_, port)| port.is_read && rank(port) == ranked);
                for (index, port) in ports {
                    let had_it = port.owns_guid;
                    let guid = port.guid();
                    let is_its_own = guid == own && index == 0;
                    let is_free =
                        is_its_own || !taken.contains(&guid) && (had_it || !is_anothers(guid, own));
                    let can_be = guid != Guid(0) && guid != Guid::WELL_KNOWN_SA;
                    if is_free && can_be {
                        by_guid.entry(guid).or_insert((host, index));
                    }
                }
            }
        }
        for &host in &hosts {
            let ports = self.ports[host.get()].virtual_ports.as_mut();
            for (&index, port) in ports.into_iter().flat_map(|ports| ports.ports.iter_mut()) {
                port.owns_guid = by_guid.get(&port.guid()) == Some(&(host, index));
            }
        }
        self.virtual_index.has_moved |= self.virtual_index.by_guid != by_guid;
        self.virtual_index.by_guid = by_guid;
    }

    /// The P_Keys of a port and of its virtual ports, as clients learn them, each once, in the
    /// order of their tables.
    pub fn pkeys_of_all(&self, port: PortIndex) -> Vec<PKey> {
        let ports = self.virtual_ports(port).into_iter().flat_map(VirtualPorts::iter);
        let usable = ports.filter(|(_, port)| port.is_usable());
        let tables = usable.map(|(_, port)| self.pkeys_of_virtual(port));
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for table in std::iter::once(self.pkeys_of(port)).chain(tables) {
            all.extend(table.iter().filter(|key| key.is_valid() && seen.insert(**key)));
        }
        all
    }

    /// Whether virtual ports of some port were never read, although they may exist.
    pub fn awaits_virtual_ports(&self) -> bool {
        self.virtual_index.is_awaited
    }

    /// Sets that.
    pub(crate) fn set_awaits_virtual_ports(&mut self, is_awaited: bool) {
        self.virtual_index.is_awaited = is_awaited;
    }

    /// Whether GUIDs came to other ports since the last call.
    pub(crate) fn take_moved_virtual_guids(&mut self) -> bool {
        std::mem::take(&mut self.virtual_index.has_moved)
    }

    /// Virtual ports as rows of a snapshot, ascending by the GUID of the port that has them.
    pub(super) fn virtual_port_rows(&self) -> Vec<Arc<snapshot::VirtualPorts>> {
        let mut rows: Vec<_> = self
            .virtual_hosts()
            .map(|(host, ports)| {
                let row = |(index, port): (u16, &VirtualPort)| snapshot::VirtualPort {
                    index,
                    state: port.state.code(),
                    guid: port.guid(),
                    node_guid: port.vnode_info().node_guid(),
                    is_usable: port.is_usable(),
                    needs_lid: port.needs_lid(),
                    description: super::description(&port.description),
                    pkeys: self.pkeys_of_virtual(port).to_vec(),
                };
                let ports = ports.iter().filter(|(_, port)| port.is_read).map(row).collect();
                let (port_guid, pkeys) = (self.port(host).guid, self.pkeys_of_all(host));
                Arc::new(snapshot::VirtualPorts { port_guid, pkeys, ports })
            })
            .filter(|row| !row.ports.is_empty())
            .collect();
        rows.sort_unstable_by_key(|row| row.port_guid);
        rows
    }
}

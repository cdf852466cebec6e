//! Virtual ports of a host's port, which virtual functions (SR-IOV) of NVIDIA's adapters use.
//!
//! These attributes are the vendor's and not in the specification; numbers and layouts are from
//! public descriptions of the vendor's packets. A port has them if PortInfo:CapabilityMask2 has
//! [`IS_VIRTUALIZATION_SUPPORTED`](super::CapabilityMask2::IS_VIRTUALIZATION_SUPPORTED).
//! [`virtual_port_modifier`] has the AttributeModifier.

use super::capability::bit_set;
use super::port_info::PortState;
use super::table::{GUIDS_PER_BLOCK, GuidInfo, PKEYS_PER_BLOCK, PKeyTable};
use crate::types::{Guid, Lid, PKey, PortNum};
use crate::wire::field::layout;
use crate::wire::mad::open_code;

/// States of virtual ports in one block of VPortState.
pub const VPORT_STATES_PER_BLOCK: usize = 128;

/// AttributeModifier of an attribute of virtual port `index`: that index in its upper half, and
/// the number of the block, 0 for attributes without blocks, in its lower half.
///
/// VirtualizationInfo is of the physical port: 0. So is VPortState, whose index is 0.
pub const fn virtual_port_modifier(index: u16, block: u16) -> u32 {
    (index as u32) << 16 | block as u32
}

bit_set! {
    /// CapabilityMask of a virtual port.
    pub struct VPortCapabilityMask(u16);
    /// Communication management.
    IS_COMMUNICATION_MANAGEMENT_SUPPORTED = 0, "IsCommunicationManagementSupported";
    /// SNMP tunnelling.
    IS_SNMP_TUNNELING_SUPPORTED = 1, "IsSNMPTunnelingSupported";
    /// Device management.
    IS_DEVICE_MANAGEMENT_SUPPORTED = 2, "IsDeviceManagementSupported";
    /// Vendor-defined classes.
    IS_VENDOR_CLASS_SUPPORTED = 3, "IsVendorClassSupported";
    /// Boot management.
    IS_BOOT_MANAGEMENT_SUPPORTED = 4, "IsBootManagementSupported";
}

layout! {
    /// VirtualizationInfo, 8 bytes (vendor-specific, attribute 0xFFB0).
    ///
    /// ```text
    /// 0 VPortCap (2)                  2 VPortIndexTop (2)
    /// 4 VirtualizationEnable:1 VClientReregister:1 VPortStateChange:1 reserved:5   5 reserved
    /// 6 VirtualizationRevision        7 CapabilityMask
    /// ```
    pub struct VirtualizationInfo(VirtualizationInfoRepr): "VirtualizationInfo", 8 bytes {
        /// The highest index of a virtual port that the port supports.
        vport_cap: u16 [0 .. 16],
        /// The highest index of a virtual port that is enabled.
        vport_index_top: u16 [16 .. 32],
        /// Whether virtual ports have states of their own. Otherwise virtual port 0 is the physical
        /// port.
        virtualization_enable: bool [32 .. 33],
        /// In a Set(): clients of all virtual ports must register again with the SA.
        client_reregister: bool [33 .. 34],
        /// A virtual port has changed state since this was cleared; writing 1 clears it.
        vport_state_change: bool [34 .. 35],
        /// Revision of these attributes.
        revision: u8 [48 .. 56],
        /// Optional capabilities; none are defined.
        capability_mask: u8 [56 .. 64],
    }
}

layout! {
    /// VPortInfo, 28 bytes (vendor-specific, attribute 0xFFB1).
    ///
    /// ```text
    ///  0 VPortState:4 ClientReregister:1 LIDRequired:1 reserved:2      1 GUIDCap
    ///  2 CapabilityMask (2)    4 PKeyViolations (2)   6 QKeyViolations (2)   8 VPortLID (2)
    /// 10 LIDByVPortIndex (2)  12 PortGUID (8)        20 ProfileGUID (8)
    /// ```
    pub struct VPortInfo(VPortInfoRepr): "VPortInfo", 28 bytes {
        /// State. In a Set() `NoChange`, or a step to Armed or Active.
        vport_state: PortState [0 .. 4],
        /// In a Set(): the clients must register again with the SA.
        client_reregister: bool [4 .. 5],
        /// Whether the virtual port needs a LID of its own.
        lid_required: bool [5 .. 6],
        /// Entries of its GUID table.
        guid_cap: u8 [8 .. 16],
        /// Capabilities.
        capability_mask: VPortCapabilityMask [16 .. 32],
        /// Packets received with a bad P_Key.
        p_key_violations: u16 [32 .. 48],
        /// Packets received with a bad Q_Key.
        q_key_violations: u16 [48 .. 64],
        /// Its own LID; `Lid::NONE` if it has none.
        lid: Lid [64 .. 80],
        /// Index of the virtual port whose LID it uses if it has none of its own.
        lid_by_vport_index: u16 [80 .. 96],
        /// Its GUID.
        port_guid: Guid [96 .. 160],
        /// GUID of its profile.
        profile_guid: Guid [160 .. 224],
    }
}

layout! {
    /// VNodeInfo, 12 bytes (vendor-specific, attribute 0xFFB2): the virtual node of a virtual port.
    ///
    /// ```text
    /// 0 PartitionCap (2)   2 LocalPortNum   3 NumPorts   4 NodeGUID (8)
    /// ```
    pub struct VNodeInfo(VNodeInfoRepr): "VNodeInfo", 12 bytes {
        /// Entries of the P_Key table of each virtual port.
        partition_cap: u16 [0 .. 16],
        /// The virtual port's number on its node.
        local_port_num: PortNum [16 .. 24],
        /// Number of virtual ports of the node.
        num_ports: u8 [24 .. 32],
        /// GUID of the virtual node.
        node_guid: Guid [32 .. 96],
    }
}

layout! {
    /// One block of VPortState, 64 bytes: the states of 128 virtual ports (vendor-specific,
    /// attribute 0xFFB3).
    pub struct VPortState(VPortStateRepr): "VPortState", 64 bytes {
        /// 128 states of 4 bits; see `state`.
        states: [u8; 64] [0 .. 512],
    }
}

impl<T: AsRef<[u8]>> VPortState<T> {
    /// Code of the state at `index` of the block, below [`VPORT_STATES_PER_BLOCK`].
    pub fn state(&self, index: usize) -> u8 {
        let pair = self.as_bytes()[index / 2];
        if index.is_multiple_of(2) { pair >> 4 } else { pair & 0xF }
    }
}

impl<T: AsMut<[u8]>> VPortState<T> {
    /// Writes the state at `index` of the block, below [`VPORT_STATES_PER_BLOCK`].
    pub fn set_state(&mut self, index: usize, state: PortState) -> &mut Self {
        let pair = &mut self.buffer.as_mut()[..64][index / 2];
        *pair = match index.is_multiple_of(2) {
            true => *pair & 0x0F | state.code() << 4,
            false => *pair & 0xF0 | state.code(),
        };
        self
    }
}

layout! {
    /// VNodeDescription, 64 bytes of UTF-8 (vendor-specific, attribute 0xFFB4).
    pub struct VNodeDescription(VNodeDescriptionRepr): "VNodeDescription", 64 bytes {
        /// The text, padded with zeros.
        node_string: [u8; 64] [0 .. 512],
    }
}

layout! {
    /// One block of VPortGUIDInfo, 64 bytes: 8 GUIDs (vendor-specific, attribute 0xFFB5). Entry 0
    /// of block 0 is the GUID of the virtual port.
    pub struct VPortGuidInfo(VPortGuidInfoRepr): "VPortGUIDInfo", 64 bytes {
        /// 8 GUIDs, 8 bytes each; see `guid`.
        guid_block: [u8; 64] [0 .. 512],
    }
}

impl<T: AsRef<[u8]>> VPortGuidInfo<T> {
    /// Entry `index` of the block, below [`GUIDS_PER_BLOCK`].
    pub fn guid(&self, index: usize) -> Guid {
        debug_assert!(index < GUIDS_PER_BLOCK);
        GuidInfo::of(&self.guid_block()).guid(index)
    }
}

layout! {
    /// One block of VPKeyTable, 64 bytes: 32 P_Keys (vendor-specific, attribute 0xFFB6).
    pub struct VPKeyTable(VPKeyTableRepr): "VPKeyTable", 64 bytes {
        /// 32 P_Keys, 2 bytes each; see `pkeys`.
        pkey_block: [u8; 64] [0 .. 512],
    }
}

impl<T: AsRef<[u8]>> VPKeyTable<T> {
    /// All entries, unused ones too.
    pub fn pkeys(&self) -> [PKey; PKEYS_PER_BLOCK] {
        let block = self.pkey_block();
        let table = PKeyTable::of(&block);
        std::array::from_fn(|index| table.pkey(index))
    }
}

impl<T: AsMut<[u8]>> VPKeyTable<T> {
    /// Writes all entries.
    pub fn set_pkeys(&mut self, pkeys: &[PKey; PKEYS_PER_BLOCK]) -> &mut Self {
        let (entries, _) = self.buffer.as_mut()[..64].as_chunks_mut();
        for (entry, pkey) in entries.iter_mut().zip(pkeys) {
            *entry = pkey.0.to_be_bytes();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtualization_info_lies_as_in_the_vendors_packets() {
        let info = VirtualizationInfoRepr {
            vport_cap: 0x0102,
            vport_index_top: 0x0304,
            virtualization_enable: true,
            client_reregister: false,
            vport_state_change: true,
            revision: 5,
            capability_mask: 6,
        };
        let bytes = info.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 0xA0, 0, 5, 6]);
        assert_eq!(VirtualizationInfoRepr::parse(&VirtualizationInfo::of(&bytes)), Ok(info));
    }

    #[test]
    fn virtual_port_info_lies_as_in_the_vendors_packets() {
        let info = VPortInfoRepr {
            vport_state: PortState::Armed,
            client_reregister: true,
            lid_required: true,
            guid_cap: 8,
            capability_mask: VPortCapabilityMask::IS_VENDOR_CLASS_SUPPORTED,
            p_key_violations: 0x0102,
            q_key_violations: 0x0304,
            lid: Lid(0x0506),
            lid_by_vport_index: 0x0708,
            port_guid: Guid(0x1112_1314_1516_1718),
            profile_guid: Guid(0x2122_2324_2526_2728),
        };
        let bytes = info.to_bytes();
        assert_eq!(bytes[..12], [0x3C, 8, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!((bytes[12], bytes[19], bytes[20], bytes[27]), (0x11, 0x18, 0x21, 0x28));
        assert_eq!(VPortInfoRepr::parse(&VPortInfo::of(&bytes)), Ok(info));
        let reserved = [0xF0; 28];
        assert!(VPortInfoRepr::parse(&VPortInfo::of(&reserved)).is_err());
    }

    #[test]
    fn virtual_node_info_lies_as_in_the_vendors_packets() {
        let info = VNodeInfoRepr {
            partition_cap: 0x0080,
            local_port_num: PortNum(1),
            num_ports: 2,
            node_guid: Guid(0x1112_1314_1516_1718),
        };
        let bytes = info.to_bytes();
        assert_eq!(bytes[..5], [0, 0x80, 1, 2, 0x11]);
        assert_eq!(VNodeInfoRepr::parse(&VNodeInfo::of(&bytes)), Ok(info));
    }

    #[test]
    fn entries_of_blocks_read_back() {
        let mut bytes = [0; 64];
        let mut states = VPortState::of_mut(&mut bytes);
        states.set_state(0, PortState::Down).set_state(1, PortState::Active);
        states.set_state(127, PortState::Armed);
        assert_eq!((bytes[0], bytes[63]), (0x14, 0x03));
        let states = VPortState::of(&bytes);
        assert_eq!((states.state(0), states.state(1), states.state(127)), (1, 4, 3));
        let mut keys = [PKey(0); PKEYS_PER_BLOCK];
        (keys[0], keys[31]) = (PKey(0xFFFF), PKey(0x8001));
        let mut table = [0; 64];
        VPKeyTable::of_mut(&mut table).set_pkeys(&keys);
        assert_eq!((&table[..2], &table[62..]), (&[0xFF, 0xFF][..], &[0x80, 0x01][..]));
        assert_eq!(VPKeyTable::of(&table).pkeys(), keys);
        let guids = [7; 64];
        assert_eq!(VPortGuidInfo::of(&guids).guid(7), Guid(0x0707_0707_0707_0707));
    }

    #[test]
    fn modifiers_name_virtual_port_and_block() {
        assert_eq!(virtual_port_modifier(0x0102, 3), 0x0102_0003);
    }
}

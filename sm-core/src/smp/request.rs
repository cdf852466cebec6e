//! Requests: SMPs to be sent, in 8 bytes each, so that a million can be queued or outstanding; and
//! the table of their kinds.

use ib_mad::types::PortNum;
use ib_mad::wire::mad::AttributeId;

use crate::fabric::PortIndex;

/// The table of requests, by owner. A row: the kind, its method, the attribute by name and by ID.
macro_rules! requests {
    ($(
        $(#[$owner_doc:meta])*
        $owner:ident {
            $($(#[$doc:meta])* $kind:ident: $method:ident $name:literal $id:ident;)*
        }
    )*) => {
        /// Kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($($(#[$doc])* $kind,)*)*
        }

        /// The part of the manager that sends a kind of request, encodes it and handles its
        /// outcome; with the kind among its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Owner {
            $($(#[$owner_doc])* $owner(kinds::$owner),)*
        }

        /// The kinds of each owner.
        pub mod kinds {
            $(
                $(#[$owner_doc])*
                #[derive(Clone, Copy, Debug, PartialEq, Eq)]
                pub enum $owner {
                    $($(#[$doc])* $kind,)*
                }
            )*
        }

        impl Kind {
            /// All kinds, in order.
            pub const ALL: &'static [Self] = &[$($(Self::$kind,)*)*];

            const ROWS: [Row; Self::ALL.len()] = [$($(Row {
                is_set: requests!(@is_set $method),
                name: concat!(stringify!($method), "(", $name, ")"),
                attribute: $name,
                attribute_id: AttributeId::$id,
                owner: Owner::$owner(kinds::$owner::$kind),
            },)*)*];
        }
    };
    (@is_set Get) => { false };
    (@is_set Set) => { true };
}

/// A row of the table.
struct Row {
    is_set: bool,
    name: &'static str,
    attribute: &'static str,
    attribute_id: AttributeId,
    owner: Owner,
}

requests! {
    /// The discovery of the fabric.
    Discovery {
        /// NodeInfo of the SM's own node.
        OwnNodeInfo: Get "NodeInfo" NODE_INFO;
        /// NodeInfo of the node behind the port; `block` numbers the directed routes tried.
        Probe: Get "NodeInfo" NODE_INFO;
        /// NodeInfo read again, to resolve a contradiction; `block` numbers it.
        ProbeAgain: Get "NodeInfo" NODE_INFO;
        /// NodeInfo of the node behind port `block` of the switch behind the port.
        ProbeBeyond: Get "NodeInfo" NODE_INFO;
        /// NodeInfo of a switch, read by its known route: whether it is still that switch.
        Identity: Get "NodeInfo" NODE_INFO;
        /// NodeDescription of the port's node.
        NodeDescription: Get "NodeDescription" NODE_DESCRIPTION;
        /// SwitchInfo of the port's node.
        SwitchInfo: Get "SwitchInfo" SWITCH_INFO;
        /// SwitchInfo with PortStateChange cleared, before the switch's ports are read.
        ClearPortChange: Set "SwitchInfo" SWITCH_INFO;
        /// PortInfo of the port; `block` is not 0 if it is read to resolve a contradiction.
        PortInfo: Get "PortInfo" PORT_INFO;
        /// PortInfo of a port towards an unresponsive node; `block` is a count, from 1, of the
        /// directed routes without an answer from behind it.
        LinkState: Get "PortInfo" PORT_INFO;
        /// A block of the port's P_Key table.
        PKeys: Get "P_KeyTable" PKEY_TABLE;
    }
    /// The light sweep.
    LightSweep {
        /// SwitchInfo of the port's node, for its PortStateChange.
        PortChange: Get "SwitchInfo" SWITCH_INFO;
        /// PortInfo of an end port, for settings of another manager.
        EndPort: Get "PortInfo" PORT_INFO;
    }
    /// The election of a master, and polling it.
    Election {
        /// SMInfo of the SM at the port.
        SmInfo: Get "SMInfo" SM_INFO;
        /// SMInfo of the master for which this manager stands by.
        Poll: Get "SMInfo" SM_INFO;
    }
    /// Whether the fabric can be reached.
    Reach {
        /// NodeInfo of a neighbor of the SM's port.
        Neighbor: Get "NodeInfo" NODE_INFO;
    }
    /// Handovers between subnet managers.
    Handover {
        /// SMInfo HANDOVER to the SM at the port.
        HandOver: Set "SMInfo" SM_INFO;
        /// SMInfo ACKNOWLEDGE to the SM at the port, which handed over to this one.
        Acknowledge: Set "SMInfo" SM_INFO;
    }
    /// Addresses of end ports, and the changes that a new master finds.
    Addresses {
        /// PortInfo with the end port's addresses.
        SetAddress: Set "PortInfo" PORT_INFO;
        /// SwitchInfo with PortStateChange cleared, after the switch's ports were read.
        ClearOldPortChange: Set "SwitchInfo" SWITCH_INFO;
        /// PortInfo of a port that no Set() is sent to, after PortStateChange was cleared.
        RecheckPort: Get "PortInfo" PORT_INFO;
    }
    /// P_Key tables.
    PKeyTables {
        /// A block of the port's P_Key table.
        SetPKeys: Set "P_KeyTable" PKEY_TABLE;
    }
    /// The tables that another subnet manager left.
    Inheritance {
        /// A block of the switch's linear forwarding table.
        Forwarding: Get "LinearForwardingTable" LINEAR_FORWARDING_TABLE;
        /// A block and position of the switch's multicast forwarding table.
        Multicast: Get "MulticastForwardingTable" MULTICAST_FORWARDING_TABLE;
    }
    /// Linear forwarding tables.
    ForwardingTables {
        /// A block of the switch's linear forwarding table.
        SetForwarding: Set "LinearForwardingTable" LINEAR_FORWARDING_TABLE;
        /// SwitchInfo with the top of the forwarding table.
        SetSwitchInfo: Set "SwitchInfo" SWITCH_INFO;
    }
    /// SL-to-VL maps.
    SlMaps {
        /// The port's SL-to-VL map for packets from the input port that `block` names.
        SetSlToVl: Set "SLtoVLMappingTable" SL_TO_VL_MAPPING_TABLE;
    }
    /// VL arbitration tables.
    VlArbitration {
        /// A block of the port's VL arbitration table, counted from 0.
        SetVlArbitration: Set "VLArbitrationTable" VL_ARBITRATION_TABLE;
    }
    /// FDR10, a vendor's link speed.
    Fdr10 {
        /// Link speeds of the port outside PortInfo (vendor-specific).
        MlnxExtPortInfo: Get "MlnxExtPortInfo" MLNX_EXT_PORT_INFO;
        /// Enabled link speeds of the port outside PortInfo (vendor-specific).
        SetMlnxExtPortInfo: Set "MlnxExtPortInfo" MLNX_EXT_PORT_INFO;
    }
    /// Settings and states of links.
    Links {
        /// PortInfo with the settings of the link and the step to Armed; `block` counts how often
        /// the link was reset by it.
        Arm: Set "PortInfo" PORT_INFO;
        /// PortInfo with the step to Active.
        Activate: Set "PortInfo" PORT_INFO;
        /// PortInfo that takes a link that is left out through Down, to Initialize.
        TakeDown: Set "PortInfo" PORT_INFO;
        /// PortInfo of a port that refused one of these steps.
        RefusedStep: Get "PortInfo" PORT_INFO;
    }
    /// The move of a LID to another port.
    TakeOver {
        /// PortInfo with the addresses of an end port that gives up a LID, or receives it.
        MoveAddress: Set "PortInfo" PORT_INFO;
        /// PortInfo that disables a port of a switch, since the port behind it keeps the LID.
        DisablePort: Set "PortInfo" PORT_INFO;
        /// A block of the switch's linear forwarding table, with the LID's new port.
        MoveForwarding: Set "LinearForwardingTable" LINEAR_FORWARDING_TABLE;
    }
    /// Ports that were disabled to move a LID.
    DisabledPorts {
        /// PortInfo that enables the port again.
        EnablePort: Set "PortInfo" PORT_INFO;
    }
    /// The task that disables ports whose error traps never end.
    BabblingPorts {
        /// PortInfo that disables the port.
        DisableBabbling: Set "PortInfo" PORT_INFO;
    }
    /// The task that writes multicast trees.
    Multicast {
        /// A block and position of the switch's multicast forwarding table.
        SetMulticast: Set "MulticastForwardingTable" MULTICAST_FORWARDING_TABLE;
    }
    /// The task that asks clients to register again.
    Reregistration {
        /// PortInfo with the end port's addresses, so that its clients register again, or use
        /// another responder.
        Readdress: Set "PortInfo" PORT_INFO;
    }
    /// The task that writes alias GUIDs.
    AliasGuids {
        /// The last block of the port's GUID table, after a change of master.
        LastGuids: Get "GUIDInfo" GUID_INFO;
        /// A block of the port's GUID table.
        SetGuidInfo: Set "GUIDInfo" GUID_INFO;
    }
    /// The task that sets up virtual ports; `block` has the index of the virtual port, and the
    /// block of a table: see `virtual_block`.
    VirtualPorts {
        /// VirtualizationInfo of the port.
        Virtualization: Get "VirtualizationInfo" VIRTUALIZATION_INFO;
        /// VirtualizationInfo that enables or disables virtual ports, and clears VPortStateChange.
        SetVirtualization: Set "VirtualizationInfo" VIRTUALIZATION_INFO;
        /// A block of states of virtual ports, counted from 0.
        VPortState: Get "VPortState" VPORT_STATE;
        /// VPortInfo of a virtual port.
        VPortInfo: Get "VPortInfo" VPORT_INFO;
        /// VNodeInfo of a virtual port.
        VNodeInfo: Get "VNodeInfo" VNODE_INFO;
        /// VNodeDescription of a virtual port.
        VNodeDescription: Get "VNodeDescription" VNODE_DESCRIPTION;
        /// A block of the P_Key table of a virtual port.
        VPKeys: Get "VPKeyTable" VPKEY_TABLE;
        /// A block of the P_Key table of a virtual port.
        SetVPKeys: Set "VPKeyTable" VPKEY_TABLE;
        /// VPortInfo with the step to Armed or Active.
        SetVPortInfo: Set "VPortInfo" VPORT_INFO;
    }
}

impl Kind {
    fn row(self) -> &'static Row {
        &Self::ROWS[self as usize]
    }

    /// The attribute that it reads or sets, as a metric label.
    pub fn attribute(self) -> &'static str {
        self.row().attribute
    }

    /// The ID of that attribute.
    pub fn attribute_id(self) -> AttributeId {
        self.row().attribute_id
    }

    /// The method, as a metric label.
    pub fn method(self) -> &'static str {
        if self.is_set() { "set" } else { "get" }
    }

    /// Whether it changes the fabric.
    pub fn is_set(self) -> bool {
        self.row().is_set
    }

    /// Method and attribute, for messages.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The part of the manager that encodes it and handles its outcome.
    pub fn owner(self) -> Owner {
        self.row().owner
    }
}

/// Bit of the block number of a [`Kind::SetSlToVl`], which is otherwise the input port: applies to
/// all input ports of the output port.
pub const ALL_IN_PORTS: u16 = 1 << 8;
/// Selects all output ports of the switch.
pub const ALL_OUT_PORTS: u16 = 1 << 9;

/// Bits of the block number of a request to a virtual port that are the block of a table; the bits
/// above are the index of the virtual port.
const VIRTUAL_BLOCK_BITS: u32 = 6;

/// Block number of a request to virtual port `index`, below 1,024, for block `block`, below 64.
pub const fn virtual_block(index: u16, block: u16) -> u16 {
    index << VIRTUAL_BLOCK_BITS | block
}

/// Index and block from the block number of a request to a virtual port.
pub const fn of_virtual_block(number: u16) -> (u16, u16) {
    (number >> VIRTUAL_BLOCK_BITS, number & ((1 << VIRTUAL_BLOCK_BITS) - 1))
}

/// The node that a request is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The SM's own node, before the fabric is known.
    OwnNode,
    /// The node of this port.
    NodeOf(PortIndex),
    /// The node behind this port, which may be unknown.
    Behind(PortIndex),
    /// The node behind this port of the switch behind the port.
    Beyond(PortIndex, PortNum),
}

/// A request: kind, port and block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Attribute and method.
    pub kind: Kind,
    /// Block of a table; 0 where there is only one.
    pub block: u16,
    port: u32,
}

const _: () = assert!(size_of::<Request>() == 8);

impl Request {
    /// A request of `kind` for `port`.
    pub fn new(kind: Kind, port: PortIndex) -> Self {
        Self::block(kind, port, 0)
    }

    /// A request for block `block` of a table of `port`.
    pub fn block(kind: Kind, port: PortIndex, block: u16) -> Self {
        Self { kind, block, port: port.to_bits() }
    }

    /// NodeInfo of the SM's own node, before the fabric is known.
    pub const OWN_NODE_INFO: Self = Self { kind: Kind::OwnNodeInfo, block: 0, port: u32::MAX };

    /// Whether it sets tables of many ports of a switch, which takes the switch longer.
    pub fn is_for_all_ports(self) -> bool {
        self.kind == Kind::SetSlToVl && self.block & (ALL_IN_PORTS | ALL_OUT_PORTS) != 0
    }

    /// The node that it is sent to.
    pub fn destination(self) -> Destination {
        match self.kind {
            Kind::OwnNodeInfo => Destination::OwnNode,
            Kind::Probe | Kind::ProbeAgain => Destination::Behind(self.port()),
            Kind::ProbeBeyond => Destination::Beyond(self.port(), PortNum(self.block as u8)),
            _ => Destination::NodeOf(self.port()),
        }
    }

    /// The port concerned; meaningless for [`Kind::OwnNodeInfo`].
    pub fn port(self) -> PortIndex {
        PortIndex::from_bits(self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_at_their_index_and_say_what_they_ask() {
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
            let method = if kind.is_set() { "Set" } else { "Get" };
            assert_eq!(kind.name(), format!("{method}({})", kind.attribute()));
            let name = kind.attribute_id().name().unwrap_or(kind.attribute());
            assert_eq!(name, kind.attribute());
        }
        assert_eq!(Kind::Probe.attribute(), "NodeInfo");
        assert_eq!(of_virtual_block(virtual_block(1023, 63)), (1023, 63));
    }
}

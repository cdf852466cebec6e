//! A request to be sent as an SMP, in 8 bytes, so that a million can be queued or outstanding.

use ib_mad::wire::mad::AttributeId;

use crate::fabric::PortIndex;

/// The part of the manager that sends a kind of request and handles its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The sweep under way, or what it shares with work between sweeps.
    Sweep,
    /// The task that disables ports whose error traps never end.
    BabblingPorts,
    /// The task that writes multicast trees.
    Multicast,
    /// The task that asks clients to register again.
    Reregistration,
    /// The task that writes alias GUIDs.
    AliasGuids,
}

/// The table of requests. A row: the kind, its method, the attribute by name and by ID, the owner.
macro_rules! requests {
    ($($(#[$doc:meta])* $kind:ident: $method:ident $name:literal $id:ident, $owner:ident;)*) => {
        /// Kind of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            const ROWS: [Row; Self::ALL.len()] = [$(Row {
                is_set: requests!(@is_set $method),
                name: concat!(stringify!($method), "(", $name, ")"),
                attribute: $name,
                attribute_id: AttributeId::$id,
                owner: Owner::$owner,
            },)*];
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
    /// NodeInfo of the SM's own node.
    OwnNodeInfo: Get "NodeInfo" NODE_INFO, Sweep;
    /// NodeInfo of the node behind the port; `block` numbers the directed routes tried.
    Probe: Get "NodeInfo" NODE_INFO, Sweep;
    /// Same again, to resolve a contradiction; `block` numbers it.
    ProbeAgain: Get "NodeInfo" NODE_INFO, Sweep;
    /// NodeDescription of the port's node.
    NodeDescription: Get "NodeDescription" NODE_DESCRIPTION, Sweep;
    /// SwitchInfo of the port's node, in a discovery.
    SwitchInfo: Get "SwitchInfo" SWITCH_INFO, Sweep;
    /// SwitchInfo of the port's node, in a light sweep.
    PortChange: Get "SwitchInfo" SWITCH_INFO, Sweep;
    /// PortInfo of the port.
    PortInfo: Get "PortInfo" PORT_INFO, Sweep;
    /// PortInfo of a port towards an unresponsive node; `block` is a count, from 1, of the directed
    /// routes without an answer from behind it.
    LinkState: Get "PortInfo" PORT_INFO, Sweep;
    /// Link speeds of the port outside PortInfo (vendor-specific).
    MlnxExtPortInfo: Get "MlnxExtPortInfo" MLNX_EXT_PORT_INFO, Sweep;
    /// A block of the port's P_Key table.
    PKeys: Get "P_KeyTable" PKEY_TABLE, Sweep;
    /// SMInfo of the subnet manager behind the port.
    SmInfo: Get "SMInfo" SM_INFO, Sweep;
    /// A block of the switch's linear forwarding table.
    Forwarding: Get "LinearForwardingTable" LINEAR_FORWARDING_TABLE, Sweep;
    /// A block and position of the switch's multicast forwarding table.
    Multicast: Get "MulticastForwardingTable" MULTICAST_FORWARDING_TABLE, Sweep;
    /// SwitchInfo with PortStateChange cleared.
    ClearPortChange: Set "SwitchInfo" SWITCH_INFO, Sweep;
    /// A block of the port's P_Key table.
    SetPKeys: Set "P_KeyTable" PKEY_TABLE, Sweep;
    /// PortInfo with the end port's addresses.
    SetAddress: Set "PortInfo" PORT_INFO, Sweep;
    /// PortInfo with the end port's addresses, between sweeps: its clients are asked to register
    /// again, or moved to another responder.
    Readdress: Set "PortInfo" PORT_INFO, Reregistration;
    /// PortInfo that disables a port whose error traps never end.
    DisableBabbling: Set "PortInfo" PORT_INFO, BabblingPorts;
    /// PortInfo that disables a port of a switch, for a takeover of its LID.
    DisablePort: Set "PortInfo" PORT_INFO, Sweep;
    /// PortInfo that enables the port again.
    EnablePort: Set "PortInfo" PORT_INFO, Sweep;
    /// SwitchInfo with the top of the forwarding table.
    SetSwitchInfo: Set "SwitchInfo" SWITCH_INFO, Sweep;
    /// A block of the switch's linear forwarding table.
    SetForwarding: Set "LinearForwardingTable" LINEAR_FORWARDING_TABLE, Sweep;
    /// A block and position of the switch's multicast forwarding table.
    SetMulticast: Set "MulticastForwardingTable" MULTICAST_FORWARDING_TABLE, Multicast;
    /// The port's SL-to-VL map for packets from the input port that `block` names.
    SetSlToVl: Set "SLtoVLMappingTable" SL_TO_VL_MAPPING_TABLE, Sweep;
    /// A block of the port's VL arbitration table, counted from 0.
    SetVlArbitration: Set "VLArbitrationTable" VL_ARBITRATION_TABLE, Sweep;
    /// A block of the port's GUID table.
    SetGuidInfo: Set "GUIDInfo" GUID_INFO, AliasGuids;
    /// Enabled link speeds of the port outside PortInfo (vendor-specific).
    SetMlnxExtPortInfo: Set "MlnxExtPortInfo" MLNX_EXT_PORT_INFO, Sweep;
    /// PortInfo with the settings of the link and the step to Armed.
    Arm: Set "PortInfo" PORT_INFO, Sweep;
    /// PortInfo with the step to Active.
    Activate: Set "PortInfo" PORT_INFO, Sweep;
    /// SMInfo HANDOVER to the subnet manager behind the port.
    HandOver: Set "SMInfo" SM_INFO, Sweep;
    /// SMInfo ACKNOWLEDGE to the SM at the port, which handed over to this one.
    Acknowledge: Set "SMInfo" SM_INFO, Sweep;
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

    /// Which part of the manager handles its answer.
    pub fn owner(self) -> Owner {
        self.row().owner
    }
}

/// Bit of the block number of a [`Kind::SetSlToVl`], which is otherwise the input port: applies to
/// all input ports of the output port.
pub const ALL_IN_PORTS: u16 = 1 << 8;
/// Same for all output ports of the switch.
pub const ALL_OUT_PORTS: u16 = 1 << 9;

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
    }
}

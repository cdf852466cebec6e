//! What an SMP asks: 8 bytes that say it all, so that a million may wait or be in flight.

use crate::fabric::PortIndex;

/// Kind of a request. Those from [`ClearPortChange`](Self::ClearPortChange) on change the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// NodeInfo of the SM's own node.
    OwnNodeInfo,
    /// NodeInfo of whatever is behind the port; `block` numbers the routes by which it is asked.
    Probe,
    /// The same once more, to settle a contradiction; `block` numbers it.
    ProbeAgain,
    /// NodeDescription of the port's node.
    NodeDescription,
    /// SwitchInfo of the port's node, in a discovery.
    SwitchInfo,
    /// SwitchInfo of the port's node, in a light sweep.
    PortChange,
    /// PortInfo of the port.
    PortInfo,
    /// PortInfo of a port towards a node that is silent; `block` tells by which routes nobody
    /// answered behind it, counted from 1.
    LinkState,
    /// Speeds of the port that PortInfo knows nothing of.
    MlnxExtPortInfo,
    /// A block of the port's P_Key table.
    PKeys,
    /// SMInfo of the subnet manager behind the port.
    SmInfo,
    /// A block of the switch's linear forwarding table.
    Forwarding,
    /// A block and position of the switch's multicast forwarding table.
    Multicast,
    /// SwitchInfo with PortStateChange cleared.
    ClearPortChange,
    /// A block of the port's P_Key table.
    SetPKeys,
    /// PortInfo with the end port's addresses.
    SetAddress,
    /// PortInfo that disables a port of a switch.
    DisablePort,
    /// PortInfo that enables it again.
    EnablePort,
    /// SwitchInfo with the top of the forwarding table.
    SetSwitchInfo,
    /// A block of the switch's linear forwarding table.
    SetForwarding,
    /// A block and position of the switch's multicast forwarding table.
    SetMulticast,
    /// The port's SL-to-VL map for packets from the input port that `block` names.
    SetSlToVl,
    /// A block of the port's VL arbitration table, counted from 0.
    SetVlArbitration,
    /// A block of the port's GUID table.
    SetGuidInfo,
    /// Speeds that the port may run at and PortInfo knows nothing of.
    SetMlnxExtPortInfo,
    /// PortInfo with the settings of the link and the step to Armed.
    Arm,
    /// PortInfo with the step to Active.
    Activate,
    /// SMInfo that hands the subnet over to the subnet manager behind the port.
    HandOver,
    /// SMInfo that tells the subnet manager behind the port that we took over from it.
    Acknowledge,
}

impl Kind {
    /// All of them, in order.
    pub const ALL: &'static [Self] = &[
        Self::OwnNodeInfo,
        Self::Probe,
        Self::ProbeAgain,
        Self::NodeDescription,
        Self::SwitchInfo,
        Self::PortChange,
        Self::PortInfo,
        Self::LinkState,
        Self::MlnxExtPortInfo,
        Self::PKeys,
        Self::SmInfo,
        Self::Forwarding,
        Self::Multicast,
        Self::ClearPortChange,
        Self::SetPKeys,
        Self::SetAddress,
        Self::DisablePort,
        Self::EnablePort,
        Self::SetSwitchInfo,
        Self::SetForwarding,
        Self::SetMulticast,
        Self::SetSlToVl,
        Self::SetVlArbitration,
        Self::SetGuidInfo,
        Self::SetMlnxExtPortInfo,
        Self::Arm,
        Self::Activate,
        Self::HandOver,
        Self::Acknowledge,
    ];

    /// The attribute that it asks for or sets, as a metric label.
    pub fn attribute(self) -> &'static str {
        let name = self.name();
        name.find('(').map_or(name, |at| name[at + 1..].trim_end_matches(')'))
    }

    /// The method, as a metric label.
    pub fn method(self) -> &'static str {
        if self.is_set() { "set" } else { "get" }
    }

    /// Whether the request changes something.
    pub fn is_set(self) -> bool {
        match self {
            Self::OwnNodeInfo
            | Self::Probe
            | Self::ProbeAgain
            | Self::NodeDescription
            | Self::SwitchInfo
            | Self::PortChange
            | Self::PortInfo
            | Self::LinkState
            | Self::MlnxExtPortInfo
            | Self::PKeys
            | Self::SmInfo
            | Self::Forwarding
            | Self::Multicast => false,
            Self::ClearPortChange
            | Self::SetPKeys
            | Self::SetAddress
            | Self::DisablePort
            | Self::EnablePort
            | Self::SetSwitchInfo
            | Self::SetForwarding
            | Self::SetMulticast
            | Self::SetSlToVl
            | Self::SetMlnxExtPortInfo
            | Self::SetVlArbitration
            | Self::SetGuidInfo
            | Self::Arm
            | Self::Activate
            | Self::HandOver
            | Self::Acknowledge => true,
        }
    }

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OwnNodeInfo | Self::Probe | Self::ProbeAgain => "Get(NodeInfo)",
            Self::NodeDescription => "Get(NodeDescription)",
            Self::SwitchInfo | Self::PortChange => "Get(SwitchInfo)",
            Self::PortInfo | Self::LinkState => "Get(PortInfo)",
            Self::MlnxExtPortInfo => "Get(MlnxExtPortInfo)",
            Self::SetMlnxExtPortInfo => "Set(MlnxExtPortInfo)",
            Self::PKeys => "Get(P_KeyTable)",
            Self::SmInfo => "Get(SMInfo)",
            Self::ClearPortChange | Self::SetSwitchInfo => "Set(SwitchInfo)",
            Self::SetPKeys => "Set(P_KeyTable)",
            Self::SetAddress
            | Self::DisablePort
            | Self::EnablePort
            | Self::Arm
            | Self::Activate => "Set(PortInfo)",
            Self::Forwarding => "Get(LinearForwardingTable)",
            Self::SetForwarding => "Set(LinearForwardingTable)",
            Self::Multicast => "Get(MulticastForwardingTable)",
            Self::SetMulticast => "Set(MulticastForwardingTable)",
            Self::SetGuidInfo => "Set(GUIDInfo)",
            Self::SetSlToVl => "Set(SLtoVLMappingTable)",
            Self::SetVlArbitration => "Set(VLArbitrationTable)",
            Self::HandOver | Self::Acknowledge => "Set(SMInfo)",
        }
    }
}

/// Bit of the block number of a [`Kind::SetSlToVl`], which else is the input port: meant for all input
/// ports of the output port.
pub const ALL_IN_PORTS: u16 = 1 << 8;
/// The same for all output ports of the switch.
pub const ALL_OUT_PORTS: u16 = 1 << 9;

/// A request: what, of which port, which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is asked.
    pub kind: Kind,
    /// Block of a table; 0 where there is only one.
    pub block: u16,
    port: u32,
}

const _: () = assert!(size_of::<Request>() == 8);

impl Request {
    /// Asks `kind` of `port`.
    pub fn new(kind: Kind, port: PortIndex) -> Self {
        Self::block(kind, port, 0)
    }

    /// Asks block `block` of a table of `port`.
    pub fn block(kind: Kind, port: PortIndex, block: u16) -> Self {
        Self { kind, block, port: port.to_bits() }
    }

    /// NodeInfo of the SM's own node, of which nothing is known yet.
    pub const OWN_NODE_INFO: Self = Self { kind: Kind::OwnNodeInfo, block: 0, port: u32::MAX };

    /// Whether it sets tables of many ports of a switch, which takes it longer.
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
        }
        assert_eq!(Kind::Probe.attribute(), "NodeInfo");
    }
}

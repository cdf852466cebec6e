//! The known state of nodes, switches and ports.

use std::sync::{Arc, OnceLock};

use ib_mad::types::{Guid, Lid, PKey, PortNum};
use ib_mad::wire::attribute::{
    MlnxLinkSpeeds, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use sa_proto::snapshot;

use super::assigned::Assigned;
use super::{
    ForwardingTable, HeldQos, MulticastTable, NodeIndex, PortIndex, SwitchIndex, VirtualPorts,
};

/// A channel adapter, switch or router.
#[derive(Debug)]
pub struct Node {
    /// Node GUID.
    pub guid: Guid,
    /// Node type.
    pub kind: NodeType,
    /// NodeInfo in wire format, as read through the first port seen.
    pub info: [u8; 40],
    /// NodeDescription in wire format.
    pub description: [u8; 64],
    /// The operator's name for it, if any.
    pub(super) label: Option<Arc<str>>,
    /// Physical ports; port numbers run from 0 (switches) or 1 to this.
    pub port_count: u8,
    /// Set if it is a switch.
    pub switch: Option<SwitchIndex>,
    /// Whether it is present in the fabric.
    pub present: bool,
    /// Whether it was first found by the sweep under way, or came back in it.
    pub is_new: bool,
    /// Number of the last discovery that found it.
    pub(crate) seen: u32,
    /// Egress port of the previous node on its directed route.
    pub(super) upstream: Option<PortIndex>,
    /// Links between the SM's node and it.
    pub(super) hops: u8,
    pub(super) first_port: PortIndex,
    /// The port of a known node behind which it first appeared, in a subnet already known.
    pub(super) entry: Option<PortIndex>,
    /// The same for a node with LIDs from before.
    pub(super) returned_by: Option<PortIndex>,
    /// Its last published row; none once the node or a neighbouring port may have
    /// changed.
    pub(super) row: OnceLock<Arc<snapshot::Node>>,
}

impl Node {
    /// NodeInfo.
    pub fn node_info(&self) -> NodeInfo<&[u8; 40]> {
        NodeInfo::of(&self.info)
    }

    /// Links between the SM's node and it.
    pub fn hops(&self) -> u8 {
        self.hops
    }

    /// The port of a known node behind which it first appeared; `None` if it was there when the
    /// subnet was first discovered, or has a LID from before.
    pub fn entry(&self) -> Option<PortIndex> {
        self.entry
    }

    /// The port of a known node behind which it first appeared in a subnet already known, with LIDs
    /// from before.
    pub fn returned_by(&self) -> Option<PortIndex> {
        self.returned_by
    }

    /// The port of a known node behind which it first appeared; `None` if it was there when the
    /// subnet was first discovered.
    pub fn brought_by(&self) -> Option<PortIndex> {
        self.entry.or(self.returned_by)
    }

    /// The operator's name for it, if any.
    pub fn label(&self) -> Option<&Arc<str>> {
        self.label.as_ref()
    }

    /// The operator's name for it, else its NodeDescription as text; for messages and dumps.
    pub fn name(&self) -> String {
        if let Some(label) = &self.label {
            return label.to_string();
        }
        description(&self.description)
    }
}

/// A NodeDescription as text.
pub fn description(bytes: &[u8; 64]) -> String {
    ib_mad::text::of_field(bytes)
}

/// The state that only switches have.
#[derive(Debug)]
pub struct Switch {
    /// Its node.
    pub node: NodeIndex,
    /// SwitchInfo in wire format.
    pub info: [u8; 20],
    /// Its linear forwarding table.
    pub lft: ForwardingTable,
    /// Its multicast forwarding table.
    pub mft: MulticastTable,
    /// Whether it refused an SL-to-VL map for several ports at once, although it reports support.
    pub refuses_wildcard_maps: bool,
}

impl Switch {
    /// SwitchInfo.
    pub fn switch_info(&self) -> SwitchInfo<&[u8; 20]> {
        SwitchInfo::of(&self.info)
    }
}

/// A port of a node.
#[derive(Debug)]
pub struct Port {
    /// Its node.
    pub node: NodeIndex,
    /// Its number on the node.
    pub num: PortNum,
    /// Port GUID; a switch's external ports have that of its port 0.
    pub guid: Guid,
    /// PortInfo as the port last reported it; zeros until then.
    pub info: [u8; 64],
    /// Its P_Key table without the invalid keys at the end.
    pub pkeys: Arc<[PKey]>,
    /// The QoS tables that it acknowledged.
    pub qos: Option<Box<HeldQos>>,
    /// Supported and enabled vendor-specific speeds, if reported.
    pub mlnx_speeds: Option<(MlnxLinkSpeeds, MlnxLinkSpeeds)>,
    /// Whether PortInfo was read since the node was found.
    pub known: bool,
    /// Term as master in which its clients were asked to register again; 0 if never.
    pub(crate) reregistered_in: u32,
    /// Number of the last discovery that saw its link.
    pub(crate) link_seen: u32,
    pub(super) peer: Option<PortIndex>,
    /// Whether its port GUID is its own, or another port's; `None` until that is settled.
    pub(super) owns_guid: Option<bool>,
    /// Whether it is an end port at another place than its GUID belongs to, which is empty, and not
    /// for long.
    pub is_newcomer: bool,
    pub(super) assigned: Assigned,
    /// Its virtual ports, once they are read.
    pub(super) virtual_ports: Option<Box<VirtualPorts>>,
}

impl Port {
    /// PortInfo.
    pub fn port_info(&self) -> PortInfo<&[u8; 64]> {
        PortInfo::of(&self.info)
    }

    /// Base LID; `Lid::NONE` if it has none or is not an end port.
    pub fn base_lid(&self) -> Lid {
        self.port_info().base_lid()
    }

    /// PortState; `None` while unknown or reserved.
    pub fn state(&self) -> Option<PortState> {
        PortState::from_code(self.port_info().port_state())
    }

    /// The port at the other end of its link.
    pub fn peer(&self) -> Option<PortIndex> {
        self.peer
    }
}

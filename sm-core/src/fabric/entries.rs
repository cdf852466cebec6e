//! What is known of a node, of what only switches have, and of a port.

use std::sync::{Arc, OnceLock};

use ib_mad::types::{Guid, Lid, PKey, PortNum};
use ib_mad::wire::attribute::{
    MlnxLinkSpeeds, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use sa_proto::snapshot;

use super::{ForwardingTable, HeldQos, MulticastTable, NodeIndex, PortIndex, SwitchIndex};

/// A channel adapter, switch or router.
#[derive(Debug)]
pub struct Node {
    /// Node GUID.
    pub guid: Guid,
    /// What it is.
    pub kind: NodeType,
    /// NodeInfo as it is on the wire, by the first port seen.
    pub info: [u8; 40],
    /// NodeDescription as it is on the wire.
    pub description: [u8; 64],
    /// What operators call it, if they do.
    pub(super) label: Option<Arc<str>>,
    /// Physical ports; port numbers run from 0 (switches) or 1 to this.
    pub port_count: u8,
    /// Set if it is a switch.
    pub switch: Option<SwitchIndex>,
    /// Whether it is part of the fabric now, as far as we know.
    pub present: bool,
    /// Whether it was first found by the sweep under way, or came back in it.
    pub is_new: bool,
    /// Number of the last discovery that found it.
    pub(crate) seen: u32,
    /// Port of the node before it on the directed route to it.
    pub(super) upstream: Option<PortIndex>,
    /// Links between the SM's node and it.
    pub(super) hops: u8,
    pub(super) first_port: PortIndex,
    /// What was last published of it; none once something of it, or of a port next to it, may have
    /// changed.
    pub(super) row: OnceLock<Arc<snapshot::Node>>,
}

impl Node {
    /// NodeInfo.
    pub fn node_info(&self) -> NodeInfo<&[u8; 40]> {
        NodeInfo::new(&self.info).expect("40 bytes are a NodeInfo")
    }

    /// Links between the SM's node and it.
    pub fn hops(&self) -> u8 {
        self.hops
    }

    /// What operators call it, if they do.
    pub fn label(&self) -> Option<&Arc<str>> {
        self.label.as_ref()
    }

    /// What operators call it, or else its NodeDescription as text; for messages and dumps.
    pub fn name(&self) -> String {
        if let Some(label) = &self.label {
            return label.to_string();
        }
        description(&self.description)
    }
}

/// A NodeDescription as text.
pub fn description(bytes: &[u8; 64]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(64);
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars().map(|c| if c.is_control() { '.' } else { c }).collect()
}

/// What only switches have.
#[derive(Debug)]
pub struct Switch {
    /// Its node.
    pub node: NodeIndex,
    /// SwitchInfo as it is on the wire.
    pub info: [u8; 20],
    /// Its linear forwarding table.
    pub lft: ForwardingTable,
    /// Its multicast forwarding table.
    pub mft: MulticastTable,
    /// Whether it refused an SL-to-VL map for several ports at once, whatever it says of itself.
    pub refuses_wildcard_maps: bool,
}

impl Switch {
    /// SwitchInfo.
    pub fn switch_info(&self) -> SwitchInfo<&[u8; 20]> {
        SwitchInfo::new(&self.info).expect("20 bytes are a SwitchInfo")
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
    /// The QoS tables that it is known to hold.
    pub qos: Option<Box<HeldQos>>,
    /// Speeds of its vendor's that it can run at, and may, if it told.
    pub mlnx_speeds: Option<(MlnxLinkSpeeds, MlnxLinkSpeeds)>,
    /// Whether PortInfo was read since the node was found.
    pub known: bool,
    /// In which time as master its clients were told to register again; 0 if never.
    pub(crate) told_in: u32,
    /// Number of the last discovery that saw its link.
    pub(crate) link_seen: u32,
    pub(super) peer: Option<PortIndex>,
    /// Whether its port GUID is its own, or another port's; `None` until that is settled.
    pub(super) owns_guid: Option<bool>,
}

impl Port {
    /// PortInfo.
    pub fn port_info(&self) -> PortInfo<&[u8; 64]> {
        PortInfo::new(&self.info).expect("64 bytes are a PortInfo")
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

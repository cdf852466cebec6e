//! The fabric plane: nodes, ports, links, forwarding tables and subnet parameters.

use std::fmt;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid, Lifetime, PKey, PortNum};

/// What a sweep found and configured.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FabricPlane {
    /// Parameters of the subnet as a whole.
    pub subnet: Subnet,
    /// All nodes, ascending by node GUID, each once.
    pub nodes: Vec<Arc<Node>>,
    /// The forwarding tables of all switches, ascending by node GUID, each once.
    pub lfts: Vec<Arc<Lft>>,
}

/// Parameters of the subnet as a whole.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Subnet {
    /// Upper half of every port's GID.
    pub prefix: u64,
    /// LID of the port that the SM runs on.
    pub sm_lid: Lid,
    /// GUID of that port.
    pub sm_port_guid: Guid,
    /// The packet lifetime reported for every path (OpenSM's `subnet_timeout`).
    pub lifetime: Lifetime,
    /// The SM_Key that makes an SA request trusted (`sa_key`). A secret: never logged.
    pub sa_key: u64,
    /// Response time of the SA as ClassPortInfo states it; 4.096 µs × 2^n.
    pub response_time: Lifetime,
    /// Name of the routing engine that made the tables.
    pub routing_engine: String,
}

/// A channel adapter, switch or router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node GUID, the key of this row.
    pub guid: Guid,
    /// NodeInfo as it is on the wire; its port-specific fields are those of the first port seen.
    pub info: [u8; 40],
    /// NodeDescription as it is on the wire.
    pub description: [u8; 64],
    /// SwitchInfo as it is on the wire, for switches.
    pub switch_info: Option<[u8; 20]>,
    /// Ports seen, ascending by number; port 0 only on switches.
    pub ports: Vec<Port>,
}

/// One port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number on its node.
    pub num: PortNum,
    /// Port GUID; a switch's external ports have that of its port 0.
    pub guid: Guid,
    /// PortInfo as it is on the wire, M_Key blanked.
    pub info: [u8; 64],
    /// Valid P_Keys, in table order.
    pub pkeys: Arc<[PKey]>,
    /// Node GUID and port at the other end of the link, if there is one.
    pub peer: Option<(Guid, PortNum)>,
}

/// A switch's linear forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lft {
    /// The switch's node GUID, the key of this row.
    pub switch: Guid,
    /// Egress port by DLID, in whole blocks of 64 entries; 255 means none.
    pub ports: Vec<u8>,
}

impl Lft {
    /// Entries in a block of the table (14.2.5.10).
    pub const BLOCK_LEN: usize = 64;
    /// The entry for a destination without a route.
    pub const NO_ROUTE: u8 = 0xFF;
}

impl fmt::Debug for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subnet")
            .field("prefix", &format_args!("{:#018x}", self.prefix))
            .field("sm_lid", &self.sm_lid)
            .field("sm_port_guid", &self.sm_port_guid)
            .field("lifetime", &self.lifetime)
            .field("response_time", &self.response_time)
            .field("routing_engine", &self.routing_engine)
            .finish_non_exhaustive()
    }
}

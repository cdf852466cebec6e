//! Rows of the fabric plane that only some queries use: QoS and multicast tables of devices, and
//! the subnet managers of the subnet.

use ib_mad::types::{Guid, Lid, PKey};

use super::encoding::canonical;
use super::row::{NoPatch, Row};
use super::tables::Table;

/// SL-to-VL mapping and VL arbitration tables of a node, as programmed.
///
/// Most ports have the same few tables: each distinct content is stored once, and ports refer to
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PortTables {
    /// Node GUID, the key of this row.
    pub node: Guid,
    /// Distinct SLtoVLMappingTables, 16 VLs of 4 bits.
    pub sl_to_vl_maps: Vec<[u8; 8]>,
    /// Input port, output port and index into `sl_to_vl_maps`, ascending. On a channel adapter or
    /// router the input port is 0; so is the output port of an entry for all its ports.
    pub sl_to_vl: Vec<((u8, u8), u16)>,
    /// Distinct blocks of 32 VL/weight pairs.
    pub vl_arb_blocks: Vec<[u8; 64]>,
    /// Output port, block (1 and 2 low priority, 3 and 4 high) and index into `vl_arb_blocks`,
    /// ascending.
    pub vl_arb: Vec<((u8, u8), u16)>,
}

/// A switch's multicast forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mft {
    /// The switch's node GUID, the key of this row.
    pub switch: Guid,
    /// Port mask blocks that are not all zero: position (ports 16n to 16n+15) and block (32 MLIDs
    /// from 0xC000 on), ascending by block, then position, each once.
    pub blocks: Vec<MftBlock>,
}

/// 32 port masks of one block and position of a multicast forwarding table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MftBlock {
    /// Block: MLIDs 0xC000 + 32 × block and the 31 after it.
    pub block: u16,
    /// Position: ports 16 × position to 16 × position + 15.
    pub position: u8,
    /// The masks as they are on the wire, big-endian, bit 0 for the first port.
    pub masks: [u8; 64],
}

/// A subnet manager of the subnet, including the publishing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubnetManager {
    /// PortGUID of the subnet manager, the key of this row.
    pub port_guid: Guid,
    /// LID of that port.
    pub lid: Lid,
    /// SMInfo in wire format, with the SM_Key cleared.
    pub info: [u8; 21],
}

/// The virtual ports (SR-IOV) of a port that are not Down. Packets for them have the LID of that
/// port, and a GRH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualPorts {
    /// GUID of the port that has them, the key of this row.
    pub port_guid: Guid,
    /// P_Keys of that port and of all of its virtual ports, each once.
    pub pkeys: Vec<PKey>,
    /// Ascending by index, each once.
    pub ports: Vec<VirtualPort>,
}

/// A virtual port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualPort {
    /// Its index at the port.
    pub index: u16,
    /// Code of its state, as PortState.
    pub state: u8,
    /// Its GUID.
    pub guid: Guid,
    /// GUID of its node.
    pub node_guid: Guid,
    /// Whether the GUID is its own: no other port has it.
    pub is_usable: bool,
    /// Whether it needs a LID of its own, which it does not have.
    pub needs_lid: bool,
    /// Description of its node.
    pub description: String,
    /// Its P_Key table without the invalid keys at the end.
    pub pkeys: Vec<PKey>,
}

impl VirtualPort {
    /// Whether it is reached by its GUID, beside that of the port that has it.
    pub fn is_reached(&self, port_guid: Guid) -> bool {
        self.is_usable && !self.needs_lid && self.guid != port_guid
    }
}

macro_rules! rows {
    ($($row:ident by $field:ident, $table:ident;)*) => {$(
        impl Row for $row {
            type Key = Guid;
            type Patch = NoPatch;
            const TABLE: Table = Table::$table;
            fn key(&self) -> Guid {
                self.$field
            }
        }
    )*};
}
rows! {
    PortTables by node, PortTables;
    Mft by switch, Mfts;
    SubnetManager by port_guid, SubnetManagers;
    VirtualPorts by port_guid, VirtualPorts;
}

canonical!(PortTables { node, sl_to_vl_maps, sl_to_vl, vl_arb_blocks, vl_arb });
canonical!(Mft { switch, blocks });
canonical!(MftBlock { block, position, masks });
canonical!(VirtualPorts { port_guid, pkeys, ports });
canonical!(VirtualPort { index, state, guid, node_guid, is_usable, needs_lid, description, pkeys });
canonical!(SubnetManager { port_guid, lid, info });

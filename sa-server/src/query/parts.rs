//! Divides tables that exceed the memory for an answer into parts. A part is the table of a
//! narrower request: that for one destination, or for one port's LID.
//!
//! Parts are found one after the other while earlier ones are sent, each in the tables of its time:
//! a change of the subnet meanwhile shows in the parts that follow.

use ib_mad::types::Gid;
use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::record::linear_forwarding_table::component as lft;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::sl_to_vl::component as sl_to_vl;
use ib_mad::wire::record::{LinearForwardingTableRecord, PathRecord, SlToVlMappingTableRecord};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, attribute};

use crate::tables::Tables;

/// A request whose answer is found part by part.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    by: By,
    mask: ComponentMask,
    record: [u8; DATA_LEN],
    /// The port of the last part, by its place in the order of ports.
    last: Option<u64>,
}

/// What each part is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Destination,
    SwitchOfTable,
    PortOfMap,
}

impl Parts {
    /// The parts of a request; `None` if it cannot be divided: it is of another attribute, or
    /// names a port already.
    pub(crate) fn of(
        attribute: AttributeId,
        mask: ComponentMask,
        record: &[u8; DATA_LEN],
    ) -> Option<Self> {
        let (by, named) = match attribute {
            attribute::PATH_RECORD => (By::Destination, path::DGID | path::DLID),
            attribute::LINEAR_FORWARDING_TABLE_RECORD => (By::SwitchOfTable, lft::LID),
            attribute::SL_TO_VL_MAPPING_TABLE_RECORD => (By::PortOfMap, sl_to_vl::LID),
            _ => return None,
        };
        (!mask.intersects(named)).then_some(Self { by, mask, record: *record, last: None })
    }

    /// The next part: components and record of its request. `None` after the last.
    pub(crate) fn next(&mut self, tables: &Tables) -> Option<(ComponentMask, &[u8; DATA_LEN])> {
        let port = match self.by {
            By::Destination => tables.end_ports.after(self.last)?,
            By::SwitchOfTable | By::PortOfMap => tables.end_ports.own_after(self.last)?,
        };
        self.last = Some(port.place());
        let component = match self.by {
            By::Destination => {
                let gid = Gid::new(tables.subnet.prefix, port.guid);
                PathRecord::of_mut(&mut self.record).set_dgid(gid);
                path::DGID
            }
            By::SwitchOfTable => {
                LinearForwardingTableRecord::of_mut(&mut self.record).set_lid(port.lid);
                lft::LID
            }
            By::PortOfMap => {
                SlToVlMappingTableRecord::of_mut(&mut self.record).set_lid(port.lid);
                sl_to_vl::LID
            }
        };
        Some((self.mask | component, &self.record))
    }
}

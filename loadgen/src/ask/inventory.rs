//! Queries by which `srp_daemon` lists nodes and ports, bit for bit as in its `srp_daemon.c`.

use ib_mad::types::{Lid, PKey};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{CapabilityMask, ClassPortInfo, PortInfo};
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::{NodeRecord, PathRecord, PortInfoRecord, node, path, port_info};
use ib_mad::wire::rmpp::{RmppType, VERSION};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, HEADER_LEN, SaMad, attribute};

use super::request;
use crate::ports::EndPort;

/// AttributeModifier of a PortInfoRecord request that matches CapabilityMask bit by bit
/// (`SRP_SM_CAP_MASK_MATCH_ATTR_MOD`).
const MATCH_BITS: u32 = 1 << 31;
/// The SA's capability of such matching (`SRP_SM_SUPPORTS_MASK_MATCH`).
const SUPPORTS_MATCH_BITS: u16 = 1 << 13;
/// IsDeviceManagementSupported in PortInfo's CapabilityMask (`SRP_IS_DM`).
const IS_DEVICE_MANAGEMENT: CapabilityMask = CapabilityMask(1 << 19);

/// Whether a ClassPortInfo response reports that ports can be selected by capability.
pub fn finds_by_capability(mad: &[u8; MAD_LEN]) -> bool {
    let answer = SaMad::new(mad);
    let info = ClassPortInfo::of(answer.data());
    info.capability_mask() & SUPPORTS_MATCH_BITS != 0
}

/// LIDs in a table of NodeRecords or PortInfoRecords, whose first field is the LID; `None` if the
/// message is not a table.
pub fn lids(message: &[u8]) -> Option<impl Iterator<Item = Lid>> {
    let head: &[u8; HEADER_LEN] = message.first_chunk()?;
    let mut mad = [0; MAD_LEN];
    mad[..HEADER_LEN].copy_from_slice(head);
    let stride = usize::from(SaMad::new(&mad).sa().attribute_offset()) * 8;
    let data = &message[HEADER_LEN..];
    let is_table = if stride == 0 { data.iter().all(|&b| b == 0) } else { stride >= 8 };
    let records = data.chunks_exact(stride.max(8)).take(if stride == 0 { 0 } else { usize::MAX });
    is_table.then(|| records.map(|record| Lid(u16::from_be_bytes([record[0], record[1]]))))
}

/// `do_full_port_list`: all nodes.
pub(super) fn write_nodes(tid: u64, mad: &mut [u8; MAD_LEN]) {
    let none = ComponentMask::NONE;
    request(mad, Method::GET_TABLE, attribute::NODE_RECORD, tid, none);
    mark_rmpp(mad);
}

/// `get_node`.
pub(super) fn write_node(lid: Lid, tid: u64, mad: &mut [u8; MAD_LEN]) {
    let mask = node::component::LID;
    let data = request(mad, Method::GET, attribute::NODE_RECORD, tid, mask);
    NodeRecord::of_mut(data).set_lid(lid);
}

/// `do_dm_port_list`: all ports with device management.
pub(super) fn write_targets(tid: u64, mad: &mut [u8; MAD_LEN]) {
    let mask = port_info::component::CAPABILITY_MASK;
    let data = request(mad, Method::GET_TABLE, attribute::PORT_INFO_RECORD, tid, mask);
    PortInfo::at_mut::<4, _>(data).set_capability_mask(IS_DEVICE_MANAGEMENT);
    SaMad::new(&mut *mad).header_mut().set_attribute_modifier(MATCH_BITS);
    mark_rmpp(mad);
}

/// `get_port_info`.
pub(super) fn write_port(lid: Lid, tid: u64, mad: &mut [u8; MAD_LEN]) {
    let mask = port_info::component::LID;
    let data = request(mad, Method::GET, attribute::PORT_INFO_RECORD, tid, mask);
    PortInfoRecord::of_mut(data).set_lid(lid);
}

/// `get_shared_pkeys`, for one P_Key.
pub(super) fn write_path(port: &EndPort, lid: Lid, pkey: PKey, tid: u64, mad: &mut [u8; MAD_LEN]) {
    let mask = path::component::DLID | path::component::SLID | path::component::PKEY;
    let data = request(mad, Method::GET, attribute::PATH_RECORD, tid, mask);
    PathRecord::of_mut(data).set_dlid(lid).set_slid(port.lid).set_pkey(pkey);
}

/// Whether a response is a path from the port to the LID.
pub(super) fn is_path_to(port: &EndPort, lid: Lid, data: &[u8; DATA_LEN]) -> bool {
    let record = PathRecord::of(data);
    record.dlid() == lid && (port.lid == Lid::NONE || record.slid() == port.lid)
}

/// Whether the record's first field, the LID, is this one.
pub(super) fn is_about(lid: Lid, data: &[u8; DATA_LEN]) -> bool {
    data[..2] == lid.0.to_be_bytes()
}

/// Writes the RMPP header of srp_daemon's requests for a table: no flags.
fn mark_rmpp(mad: &mut [u8; MAD_LEN]) {
    SaMad::new(mad).rmpp_mut().set_rmpp_version(VERSION).set_rmpp_type(RmppType::DATA);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::ask::tests::workload;
    use crate::workload::{By, Draw};

    fn written(ask: Ask) -> [u8; MAD_LEN] {
        let mut mad = [0xA5; MAD_LEN];
        ask.write(1, &workload(By::Gid, Draw::Any(1)), 0x55, &mut mad);
        mad
    }

    /// A request that is zero apart from the given fields.
    fn bytes(given: &[(usize, &[u8])]) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        (mad[0], mad[1], mad[2], mad[15]) = (1, 3, 2, 0x55);
        for (at, bytes) in given {
            mad[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        mad
    }

    /// As `srp_daemon.c` fills its zeroed buffers.
    #[test]
    fn requests_are_those_of_srp_daemon() {
        let table = bytes(&[(3, &[0x12]), (16, &[0, 0x11]), (24, &[1, 1])]);
        assert_eq!(written(Ask::Nodes), table);
        let targets = bytes(&[
            (3, &[0x12]),
            (16, &[0, 0x12, 0, 0, 0x80, 0, 0, 0]),
            (24, &[1, 1]),
            (55, &[0x80]),
            (80, &[0, 8, 0, 0]),
        ]);
        assert_eq!(written(Ask::Targets), targets);
        let node = bytes(&[(3, &[1]), (16, &[0, 0x11]), (55, &[1]), (56, &[1, 2])]);
        assert_eq!(written(Ask::Node(Lid(0x102))), node);
        let port = bytes(&[(3, &[1]), (16, &[0, 0x12]), (55, &[1]), (56, &[1, 2])]);
        assert_eq!(written(Ask::Port(Lid(0x102))), port);
        let path = bytes(&[
            (3, &[1]),
            (16, &[0, 0x35]),
            (54, &[0x20, 0x30]),
            (96, &[0, 3, 0, 2]),
            (106, &[0xFF, 0xFF]),
        ]);
        assert_eq!(written(Ask::PathTo(Lid(3))), path);
    }

    #[test]
    fn a_table_is_cut_by_what_it_says_of_itself() {
        let mut message = vec![0; HEADER_LEN + 2 * 112];
        assert_eq!(lids(&message).unwrap().count(), 0, "no stride, no records");
        message[44..46].copy_from_slice(&[0, 14]);
        (message[HEADER_LEN + 1], message[HEADER_LEN + 113]) = (4, 9);
        assert_eq!(lids(&message).unwrap().collect::<Vec<_>>(), [Lid(4), Lid(9)]);
        message[44..46].fill(0);
        assert!(lids(&message).is_none(), "records of no length");
        assert!(lids(&message[..20]).is_none());
    }
}

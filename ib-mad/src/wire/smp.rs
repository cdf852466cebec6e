//! Subnet management packets (IBA 14.2): layout, encoding of requests and responses, and processing
//! of a directed-route SMP at each node.
//!
//! Attributes of SMPs are in [`attribute`](super::attribute), timeouts and retries in
//! [`transaction`](crate::transaction).
//!
//! # Examples
//!
//! Get(NodeInfo) of the node behind port 4 of the switch at our port 1, and its response:
//!
//! ```
//! use ib_mad::types::PortNum;
//! use ib_mad::wire::attribute::NodeInfo;
//! use ib_mad::wire::mad::{AttributeId, Method, Status};
//! use ib_mad::wire::smp::{self, Request, Smp, Step};
//!
//! let mut mad = [0; 256];
//! let request = Request {
//!     method: Method::GET,
//!     attribute_id: AttributeId::NODE_INFO,
//!     attribute_modifier: 0,
//!     tid: 1,
//!     m_key: 0,
//! };
//! request.write_directed(&mut mad, &[PortNum(1), PortNum(4)])?;
//!
//! // The steps at each node of the route: the sender, the switch, the destination.
//! assert_eq!(smp::step(&mut mad, None, false), Step::Forward(PortNum(1)));
//! assert_eq!(smp::step(&mut mad, Some(PortNum(9)), true), Step::Forward(PortNum(4)));
//! assert_eq!(smp::step(&mut mad, Some(PortNum(1)), false), Step::Agent);
//! NodeInfo::of_mut(Smp::of_mut(&mut mad).data_bytes_mut()).set_num_ports(1);
//! smp::answer(&mut mad, Status::OK);
//!
//! let answer = Smp::of(&mad);
//! assert_eq!((answer.status(), answer.returning()), (Status::OK, true));
//! assert_eq!(NodeInfo::of(answer.data_bytes()).num_ports(), 1);
//! # Ok::<(), smp::PathTooLong>(())
//! ```

use super::MAD_LEN;
use super::field::layout;
use super::mad::{AttributeId, Method, MgmtClass, Status};
use crate::types::{Lid, PortNum};

/// Length of an SMP's attribute data in bytes.
pub const SMP_DATA_LEN: usize = 64;
/// Limit of hops of a directed route: entry 0 of a path is not used.
pub const HOPS_MAX: usize = 63;
/// Class version of both subnet management classes.
pub const CLASS_VERSION: u8 = 1;

layout! {
    /// SMP, 256 bytes, LID-routed (IBA 14.2.1.1) or directed-route (IBA 14.2.1.2). A LID-routed SMP
    /// ends with its data, and has none of the fields marked with an asterisk.
    ///
    /// ```text
    ///   0 BaseVersion   1 MgmtClass   2 ClassVersion   3 Method
    ///   4 D*:1 Status:15              6 HopPointer*    7 HopCount*
    ///   8 TransactionID (8)          16 AttributeID (2)   18 reserved (2)
    ///  20 AttributeModifier (4)      24 M_Key (8)
    ///  32 DrSLID* (2)                34 DrDLID* (2)       36 reserved (28)
    ///  64 Data (64)                 128 InitialPath* (64)
    /// 192 ReturnPath* (64)
    /// ```
    pub struct Smp(SmpRepr): "SMP", 256 bytes {
        /// 1.
        base_version: u8 [0 .. 8],
        /// Management class: LID-routed or directed-route.
        mgmt_class: MgmtClass [8 .. 16],
        /// [`CLASS_VERSION`].
        class_version: u8 [16 .. 24],
        /// Method.
        method: Method [24 .. 32],
        /// Direction of a directed-route SMP: false towards the agent, true on the way back.
        returning: bool [32 .. 33],
        /// Status, without the direction bit.
        status: Status [33 .. 48],
        /// Hop pointer: current position in the path.
        hop_pointer: u8 [48 .. 56],
        /// Number of hops of the path.
        hop_count: u8 [56 .. 64],
        /// Transaction ID, chosen by the requester.
        tid: u64 [64 .. 128],
        /// Attribute ID.
        attribute_id: AttributeId [128 .. 144],
        /// AttributeModifier, defined by the attribute.
        attribute_modifier: u32 [160 .. 192],
        /// Management key.
        m_key: u64 [192 .. 256],
        /// Start of the directed part: permissive at the requester, else after a LID-routed part
        /// from this LID.
        dr_slid: Lid [256 .. 272],
        /// End of the directed part: permissive at the agent, else followed by a LID-routed part to
        /// this LID.
        dr_dlid: Lid [272 .. 288],
        /// Attribute data.
        data: [u8; 64] [512 .. 1024],
        /// Output ports of the path, from entry 1.
        initial_path: [u8; 64] [1024 .. 1536],
        /// Output ports of the return path, from entry 1, recorded by each node.
        return_path: [u8; 64] [1536 .. 2048],
    }
}

/// Position of the attribute data in an SMP.
pub const DATA: std::ops::Range<usize> = 64..64 + SMP_DATA_LEN;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;

impl<T: AsRef<[u8]>> Smp<T> {
    /// The attribute data.
    #[inline]
    pub fn data_bytes(&self) -> &[u8; SMP_DATA_LEN] {
        self.buffer.as_ref()[DATA].first_chunk().expect("an SMP has 256 bytes")
    }

    /// Whether this is a directed-route SMP.
    #[inline]
    pub fn is_directed(&self) -> bool {
        self.mgmt_class() == MgmtClass::SUBN_DIRECTED_ROUTE
    }

    /// Ports of the initial path; `None` if the hop count exceeds [`HOPS_MAX`].
    pub fn path(&self) -> Option<&[u8]> {
        self.buffer.as_ref()[INITIAL_PATH..RETURN_PATH].get(1..=usize::from(self.hop_count()))
    }
}

impl<T: AsMut<[u8]>> Smp<T> {
    /// The attribute data, mutable.
    #[inline]
    pub fn data_bytes_mut(&mut self) -> &mut [u8; SMP_DATA_LEN] {
        self.buffer.as_mut()[DATA].first_chunk_mut().expect("an SMP has 256 bytes")
    }
}

/// Header fields of a request. Write the attribute afterwards, into [`DATA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Method.
    pub method: Method,
    /// Attribute.
    pub attribute_id: AttributeId,
    /// AttributeModifier.
    pub attribute_modifier: u32,
    /// Transaction ID.
    pub tid: u64,
    /// M_Key of the destination port; 0 if it has none.
    pub m_key: u64,
}

/// A directed route longer than [`HOPS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a directed route has at most {HOPS_MAX} hops, not {hops}")]
pub struct PathTooLong {
    /// Its length.
    pub hops: usize,
}

impl Request {
    /// Encodes the request as a LID-routed SMP, overwriting all of `mad`.
    pub fn write_lid_routed(&self, mad: &mut [u8; MAD_LEN]) {
        self.write(mad, MgmtClass::SUBN_LID_ROUTED);
    }

    /// Encodes the request as a directed-route SMP, overwriting all of `mad`. `path` lists the
    /// output ports, the requester's own first; an empty path addresses the requester's own node.
    pub fn write_directed(
        &self,
        mad: &mut [u8; MAD_LEN],
        path: &[PortNum],
    ) -> Result<(), PathTooLong> {
        let hops = path.len();
        if hops > HOPS_MAX {
            return Err(PathTooLong { hops });
        }
        self.write(mad, MgmtClass::SUBN_DIRECTED_ROUTE);
        for (entry, port) in mad[INITIAL_PATH + 1..RETURN_PATH].iter_mut().zip(path) {
            *entry = port.0;
        }
        Smp { buffer: mad }
            .set_hop_count(hops as u8)
            .set_dr_slid(Lid::PERMISSIVE)
            .set_dr_dlid(Lid::PERMISSIVE);
        Ok(())
    }

    fn write(&self, mad: &mut [u8; MAD_LEN], class: MgmtClass) {
        mad.fill(0);
        Smp { buffer: mad }
            .set_base_version(1)
            .set_mgmt_class(class)
            .set_class_version(CLASS_VERSION)
            .set_method(self.method)
            .set_tid(self.tid)
            .set_attribute_id(self.attribute_id)
            .set_attribute_modifier(self.attribute_modifier)
            .set_m_key(self.m_key);
    }
}

/// Turns a request into its response in place: sets method, status and direction; a Trap() becomes
/// the TrapRepress() for it. Attribute data is left to the caller; [`step`] determines where a
/// directed-route response leaves.
///
/// Clears the M_Key, so that responses do not disclose it.
pub fn answer(mad: &mut [u8; MAD_LEN], status: Status) {
    let mut smp = Smp { buffer: mad };
    let directed = smp.is_directed();
    let method = match smp.method() {
        Method::TRAP => Method::TRAP_REPRESS,
        request => request.response(),
    };
    smp.set_method(method).set_status(status).set_returning(directed).set_m_key(0);
}

/// Step of a node for a directed-route SMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Forward it by this port.
    Forward(PortNum),
    /// Deliver it to the agent of this node.
    Agent,
    /// Deliver it to the subnet manager of this node.
    Manager,
    /// Forward it by LID: its directed part has ended.
    LidRouted(Lid),
    /// Drop it without a response.
    Discard(Discard),
}

/// Why a directed-route SMP is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Discard {
    /// The hop count exceeds [`HOPS_MAX`].
    HopCount,
    /// The hop pointer is beyond the path.
    HopPointer,
    /// The node is not a switch, and only switches forward SMPs.
    NotASwitch,
    /// The SMP is in the middle of its path, but did not arrive by a port.
    NotOnItsPath,
}

/// Processes a directed-route SMP at one node (IBA 14.2.2): updates hop pointer and return path,
/// and returns what to do with it.
///
/// `arrived_by` is the port of arrival, or `None` if this node sends it: a request of the subnet
/// manager here, or a response of the agent here. A request that arrived by LID, after a directed
/// part that ended elsewhere, is answered to its source LID and is not passed to this function.
pub fn step(smp: &mut [u8; MAD_LEN], arrived_by: Option<PortNum>, is_switch: bool) -> Step {
    let mut smp = Smp { buffer: smp };
    if usize::from(smp.hop_count()) > HOPS_MAX {
        return Step::Discard(Discard::HopCount);
    }
    match smp.returning() {
        false => step_out(&mut smp, arrived_by, is_switch),
        true => step_back(&mut smp, arrived_by, is_switch),
    }
}

/// A request on its way out, at one node (IBA C14-9).
fn step_out(
    smp: &mut Smp<&mut [u8; MAD_LEN]>,
    arrived_by: Option<PortNum>,
    is_switch: bool,
) -> Step {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    let next = pointer.saturating_add(1);
    if pointer == 0 && count != 0 {
        // The directed part starts here: at the requester, or at a switch that it was sent to by
        // LID.
        if arrived_by.is_some() && !is_switch {
            return Step::Discard(Discard::NotASwitch);
        }
    } else if pointer <= count && count != 0 {
        let Some(port) = arrived_by else { return Step::Discard(Discard::NotOnItsPath) };
        if pointer < count && !is_switch {
            return Step::Discard(Discard::NotASwitch);
        }
        smp.buffer[RETURN_PATH + usize::from(pointer)] = port.0;
    }
    if pointer < count {
        smp.set_hop_pointer(next);
        return Step::Forward(PortNum(smp.buffer[INITIAL_PATH + usize::from(next)]));
    }
    if pointer > count {
        // One beyond the end: it arrived by LID, after the directed part.
        return match pointer - count {
            1 => Step::Agent,
            _ => Step::Discard(Discard::HopPointer),
        };
    }
    smp.set_hop_pointer(next);
    match smp.dr_dlid() {
        Lid::PERMISSIVE => Step::Agent,
        dlid if is_switch => Step::LidRouted(dlid),
        _ => Step::Discard(Discard::NotASwitch),
    }
}

/// A response on its way back, at one node (IBA C14-13).
fn step_back(
    smp: &mut Smp<&mut [u8; MAD_LEN]>,
    arrived_by: Option<PortNum>,
    is_switch: bool,
) -> Step {
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if pointer > count + 1 {
        return Step::Discard(Discard::HopPointer);
    }
    let Some(next) = pointer.checked_sub(1) else { return Step::Manager };
    if next == 0 {
        smp.set_hop_pointer(next);
        return match smp.dr_slid() {
            Lid::PERMISSIVE => Step::Manager,
            slid if is_switch => Step::LidRouted(slid),
            _ => Step::Discard(Discard::NotASwitch),
        };
    }
    if arrived_by.is_some() && !is_switch {
        return Step::Discard(Discard::NotASwitch);
    }
    if arrived_by.is_none() && pointer <= count {
        return Step::Discard(Discard::NotOnItsPath);
    }
    smp.set_hop_pointer(next);
    Step::Forward(PortNum(smp.buffer[RETURN_PATH + usize::from(next)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn get_node_info() -> Request {
        Request {
            method: Method::GET,
            attribute_id: AttributeId::NODE_INFO,
            attribute_modifier: 0,
            tid: 0x0102_0304_0506_0708,
            m_key: 0x1111,
        }
    }

    fn directed(path: &[u8]) -> [u8; MAD_LEN] {
        let ports: Vec<_> = path.iter().copied().map(PortNum).collect();
        let mut mad = [0xEE; MAD_LEN];
        get_node_info().write_directed(&mut mad, &ports).unwrap();
        mad
    }

    /// IBA 14.2.1.2.
    #[test]
    fn a_directed_request_reads_as_it_was_written() {
        let mad = directed(&[1, 7, 19]);
        assert_eq!(mad[..8], [1, 0x81, 1, 1, 0, 0, 0, 3]);
        assert_eq!(mad[24..36], [0, 0, 0, 0, 0, 0, 0x11, 0x11, 0xFF, 0xFF, 0xFF, 0xFF]);
        assert_eq!(mad[128..133], [0, 1, 7, 19, 0]);
        let smp = Smp::new(&mad).unwrap();
        assert_eq!(smp.path(), Some(&[1, 7, 19][..]));
        assert_eq!(smp.tid(), 0x0102_0304_0506_0708);
    }

    #[test]
    fn routes_beyond_sixty_three_hops_are_refused() {
        let path = [PortNum(1); 64];
        let mut mad = [0; MAD_LEN];
        assert!(get_node_info().write_directed(&mut mad, &path[..63]).is_ok());
        let error = get_node_info().write_directed(&mut mad, &path).unwrap_err();
        assert_eq!(error.to_string(), "a directed route has at most 63 hops, not 64");
    }

    /// IBA 14.2.2.
    #[test]
    fn an_empty_path_asks_the_own_node_and_comes_back() {
        let mut mad = directed(&[]);
        assert_eq!(step(&mut mad, None, false), Step::Agent);
        answer(&mut mad, Status::OK);
        assert_eq!(step(&mut mad, None, false), Step::Manager);
    }

    #[test]
    fn an_answer_keeps_the_request_but_for_method_status_direction_and_key() {
        let mut mad = directed(&[1]);
        mad[DATA].fill(7);
        let before = mad;
        answer(&mut mad, Status::INVALID_FIELD);
        let smp = Smp::new(&mad).unwrap();
        assert_eq!((smp.method(), smp.status()), (Method::GET_RESP, Status::INVALID_FIELD));
        assert!(smp.returning());
        assert_eq!(smp.m_key(), 0);
        assert_eq!(mad[6..24], before[6..24]);
        assert_eq!(mad[32..], before[32..]);
    }

    /// Proves IBA 14.2.1.1.
    #[test]
    fn a_trap_is_answered_by_trap_repress() {
        let mut mad = [0; MAD_LEN];
        Request { method: Method::TRAP, attribute_id: AttributeId::NOTICE, ..get_node_info() }
            .write_lid_routed(&mut mad);
        answer(&mut mad, Status::OK);
        let smp = Smp::new(&mad).unwrap();
        assert_eq!((smp.method(), smp.returning()), (Method::TRAP_REPRESS, false));
        assert_eq!(smp.tid(), get_node_info().tid);
    }

    /// IBA 14.2.2, C14-9, C14-13.
    #[test]
    fn a_channel_adapter_passes_nothing_on() {
        let mut mad = directed(&[1, 2]);
        assert_eq!(step(&mut mad, None, false), Step::Forward(PortNum(1)));
        assert_eq!(step(&mut mad, Some(PortNum(1)), false), Step::Discard(Discard::NotASwitch));
    }

    /// IBA 14.2.2, C14-9, C14-13.
    #[test]
    fn a_mixed_route_goes_on_by_lid_and_begins_its_return_at_the_switch() {
        let mut mad = directed(&[1]);
        Smp { buffer: &mut mad }.set_dr_dlid(Lid(9));
        assert_eq!(step(&mut mad, None, false), Step::Forward(PortNum(1)));
        assert_eq!(step(&mut mad, Some(PortNum(4)), true), Step::LidRouted(Lid(9)));
        assert_eq!(step(&mut mad, Some(PortNum(1)), false), Step::Agent);
        answer(&mut mad, Status::OK);
        assert_eq!(step(&mut mad, Some(PortNum(2)), true), Step::Forward(PortNum(4)));
        assert_eq!(step(&mut mad, Some(PortNum(1)), false), Step::Manager);
    }

    proptest! {
        /// Through a chain of switches and back: the response leaves each node by the port by which
        /// the request arrived. IBA 14.2.2.
        #[test]
        fn answers_return_the_way_the_request_came(
            hops in prop::collection::vec((1u8..=254, 1u8..=254), 1..=HOPS_MAX),
        ) {
            let path: Vec<u8> = hops.iter().map(|hop| hop.0).collect();
            let mut mad = directed(&path);
            prop_assert_eq!(step(&mut mad, None, false), Step::Forward(PortNum(path[0])));
            for (i, &(_, arrives)) in hops.iter().enumerate() {
                let expected = match path.get(i + 1) {
                    Some(&next) => Step::Forward(PortNum(next)),
                    None => Step::Agent,
                };
                prop_assert_eq!(step(&mut mad, Some(PortNum(arrives)), true), expected);
            }
            answer(&mut mad, Status::OK);
            for (i, &(_, arrived)) in hops.iter().enumerate().rev() {
                let from = if i + 1 == hops.len() { None } else { Some(PortNum(path[i + 1])) };
                prop_assert_eq!(step(&mut mad, from, true), Step::Forward(PortNum(arrived)));
            }
            prop_assert_eq!(step(&mut mad, Some(PortNum(path[0])), false), Step::Manager);
        }

        #[test]
        fn any_bytes_are_stepped_without_panic(
            bytes in prop::collection::vec(any::<u8>(), MAD_LEN),
            port in prop::option::of(any::<u8>()),
            is_switch: bool,
        ) {
            let mut mad: [u8; MAD_LEN] = bytes.try_into().unwrap();
            step(&mut mad, port.map(PortNum), is_switch);
        }
    }
}

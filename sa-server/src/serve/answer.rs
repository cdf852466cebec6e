//! Reads the headers of a request and turns them into the headers of its answer, in the same
//! buffer.
//!
//! Nothing is decided or counted here; the responder does both.

use ib_mad::transport::Packet;
use ib_mad::wire::field::part;
use ib_mad::wire::mad::{Method, MgmtClass, Status};
use ib_mad::wire::rmpp::{RmppFlags, RmppStatus, RmppType, VERSION};
use ib_mad::wire::sa::{DATA_LEN, SA_HEADER_LEN, SaMad};

use crate::query::write_record;
use crate::stats::{DropReason, Subject};

/// Subject of a request of the SA class.
#[inline]
pub(crate) fn subject(packet: &Packet) -> Subject {
    let mad = SaMad::new(&packet.mad);
    Subject::of(mad.header().attribute_id(), mad.header().method())
}

/// Whether a packet is a MAD of the SA class that is addressed to this responder.
#[inline]
pub(crate) fn check_class(packet: &Packet) -> Result<(), DropReason> {
    if packet.carrier.undelivered != 0 {
        return Err(DropReason::Returned);
    }
    let mad = SaMad::new(&packet.mad);
    let header = mad.header();
    if header.mgmt_class() != MgmtClass::SUBN_ADM || header.base_version() != 1 {
        return Err(DropReason::NotSubnetAdministration);
    }
    if header.method().is_response() {
        return Err(DropReason::UnexpectedResponse);
    }
    Ok(())
}

/// Turns the request's headers into its answer's. Class version, class-specific and reserved
/// fields, component mask and, in a MAD that is no part of a transfer, the last two fields of the
/// RMPP header go back as they came, which is what OpenSM's clients see.
#[inline]
pub(crate) fn make_answer(packet: &mut Packet, status: Status) {
    let mut mad = SaMad::new(&mut packet.mad);
    let method = mad.header().method();
    mad.header_mut().set_method(method.response()).set_status(status);
    mad.rmpp_mut()
        .set_rmpp_version(0)
        .set_rmpp_type(RmppType::NONE)
        .set_resp_time(0)
        .set_flags(RmppFlags::default())
        .set_rmpp_status(RmppStatus::NORMAL);
    // Answers have no SM_Key (IBA C15-0.1.5).
    mad.sa_mut().set_sm_key(0);
    if matches!(method, Method::GET_TABLE | Method::GET_MULTI) {
        mad.sa_mut().set_attribute_offset(0);
    }
}

/// Writes `len` bytes of records, and zeros behind them.
#[inline]
pub(crate) fn write_data(data: &mut [u8; DATA_LEN], records: &[u8; DATA_LEN], len: usize) {
    match len {
        64 => write_record::<64>(data, part::<0, _, _>(records)),
        112 => write_record::<112>(data, part::<0, _, _>(records)),
        len => {
            let len = len.min(DATA_LEN);
            data[..len].copy_from_slice(&records[..len]);
            data[len..].fill(0);
        }
    }
}

/// Makes the answer in `packet` a transfer of one segment with `len` bytes of records.
#[inline]
pub(crate) fn make_single_segment(packet: &mut Packet, len: usize, resp_time: u8) {
    SaMad::new(&mut packet.mad)
        .rmpp_mut()
        .set_rmpp_version(VERSION)
        .set_rmpp_type(RmppType::DATA)
        .set_resp_time(resp_time)
        .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
        .set_segment(1)
        .set_payload_len((SA_HEADER_LEN + len) as u32);
}

//! A request to change the registry, parsed from a MAD.

use ib_mad::types::{Gid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::outcome::OutcomeKey;

/// Bits of a TransactionID that identify a request; `ibsim` overwrites the others.
const TID_BITS: u64 = 0xFFFF_FFFF_FFFF;

/// The source address of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requester {
    /// Source LID, path bits included.
    pub slid: Lid,
    /// Source GID of the request's GRH; `None` if it had none.
    pub sgid: Option<Gid>,
    /// Source QP.
    pub qpn: Qpn,
    /// SL of the request.
    pub sl: Sl,
    /// P_Key of the request; 0 if the transport does not report it.
    pub pkey: PKey,
}

/// A request with its addressing and trust. Its content is not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Set() or Delete(); Get() only asks for the sequence number that covers all earlier writes.
    pub method: Method,
    /// The attribute.
    pub attribute: AttributeId,
    /// AttributeModifier.
    pub modifier: u32,
    /// ComponentMask.
    pub component_mask: ComponentMask,
    /// The record, from its first byte.
    pub data: [u8; DATA_LEN],
    /// TransactionID.
    pub tid: u64,
    /// Source address.
    pub requester: Requester,
    /// Sequence number of the registry that its responder answered from before the request can have
    /// arrived: all changes up to it were made before. `u64::MAX` if nothing lies between, 0 if that is
    /// unknown.
    pub seen: u64,
    /// Whether it carried the SM_Key.
    pub trusted: bool,
}

/// Why a request is dropped without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Drop {
    /// Another management class.
    #[error("management class is not SubnAdm")]
    Class,
    /// A method that does not change the registry, or a response.
    #[error("method is not Set, Delete or Get")]
    Method,
    /// An attribute that clients cannot register.
    #[error("attribute is not one that clients register")]
    Attribute,
    /// A wrong SM_Key: not answered, as in OpenSM, to slow down guessing of keys.
    #[error("SM_Key does not match")]
    Key,
}

impl Request {
    /// Parses a MAD that was just read. Requests that carry `sa_key` are trusted; if it is 0 none
    /// is.
    pub fn read(mad: &[u8; MAD_LEN], requester: Requester, sa_key: u64) -> Result<Self, Drop> {
        let mad = SaMad::new(mad);
        let header = mad.header();
        if header.mgmt_class() != MgmtClass::SUBN_ADM {
            return Err(Drop::Class);
        }
        let method = header.method();
        if ![Method::SET, Method::DELETE, Method::GET].contains(&method) {
            return Err(Drop::Method);
        }
        if super::family(header.attribute_id()).is_none() {
            return Err(Drop::Attribute);
        }
        let sm_key = mad.sa().sm_key();
        if sm_key != 0 && sm_key != sa_key {
            return Err(Drop::Key);
        }
        Ok(Self {
            method,
            attribute: header.attribute_id(),
            modifier: header.attribute_modifier(),
            component_mask: mad.sa().component_mask(),
            data: *mad.data(),
            tid: header.tid(),
            requester,
            seen: u64::MAX,
            trusted: sm_key != 0,
        })
    }

    /// The key that it shares with its repeats.
    pub(super) fn key(&self) -> OutcomeKey {
        let seed = self.component_mask.0 ^ u64::from(self.trusted) << 63;
        OutcomeKey {
            slid: self.requester.slid,
            sgid: self.requester.sgid.unwrap_or_default(),
            qpn: self.requester.qpn,
            tid: self.tid & TID_BITS,
            attribute: self.attribute,
            method: self.method,
            digest: xxh3_64_with_seed(&self.data, seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::wire::sa::attribute;

    use super::*;

    fn mad(method: Method, attribute: AttributeId, sm_key: u64) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let mut mad = SaMad::new(&mut bytes);
        mad.write_request(method, attribute, 0xABCD_0000_1234_5678, ComponentMask(3));
        mad.sa_mut().set_sm_key(sm_key);
        bytes
    }

    #[test]
    fn only_the_right_key_makes_a_request_trusted() {
        let read = |key, sa_key| {
            let mad = mad(Method::SET, attribute::SERVICE_RECORD, key);
            Request::read(&mad, Requester::default(), sa_key).map(|request| request.trusted)
        };
        assert_eq!(read(0, 1), Ok(false));
        assert_eq!(read(1, 1), Ok(true));
        assert_eq!(read(2, 1), Err(Drop::Key));
        assert_eq!(read(2, 0), Err(Drop::Key));
        assert_eq!(read(0, 0), Ok(false));
    }

    #[test]
    fn what_changes_nothing_here_is_dropped() {
        let read =
            |method, attribute| Request::read(&mad(method, attribute, 0), Requester::default(), 1);
        assert_eq!(read(Method::GET_TABLE, attribute::SERVICE_RECORD).unwrap_err(), Drop::Method);
        assert_eq!(read(Method::SET, attribute::PATH_RECORD).unwrap_err(), Drop::Attribute);
        let mut other = mad(Method::SET, attribute::SERVICE_RECORD, 0);
        other[1] = 4;
        assert_eq!(Request::read(&other, Requester::default(), 1).unwrap_err(), Drop::Class);
    }

    #[test]
    fn repeats_share_a_key_and_others_do_not() {
        let mut bytes = mad(Method::SET, attribute::SERVICE_RECORD, 0);
        let first = Request::read(&bytes, Requester::default(), 1).unwrap();
        bytes[8] ^= 0xFF;
        let through_ibsim = Request::read(&bytes, Requester::default(), 1).unwrap();
        assert_eq!(first.key(), through_ibsim.key());
        bytes[60] ^= 1;
        let other_data = Request::read(&bytes, Requester::default(), 1).unwrap();
        assert_ne!(first.key(), other_data.key());
        let other_port = Requester { slid: Lid(9), ..Requester::default() };
        assert_ne!(first.key(), Request { requester: other_port, ..first.clone() }.key());
        assert_ne!(
            first.key(),
            Request { component_mask: ComponentMask(7), ..first.clone() }.key()
        );
    }
}

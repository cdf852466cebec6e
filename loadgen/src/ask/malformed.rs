//! Malformed requests, which a responder must answer with an error, or drop and count, and must
//! survive.
//!
//! The transaction id is kept, so that a response can be matched to its request.

use std::fmt;

use ib_mad::wire::mad::{AttributeId, Method, MgmtClass};
use ib_mad::wire::rmpp::{RmppFlags, RmppStatus, RmppType, VERSION};
use ib_mad::wire::sa::{ComponentMask, HEADER_LEN, SaMad};
use ib_mad::wire::{MAD_LEN, rmpp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Position of the transaction id in a MAD.
const TID: std::ops::Range<usize> = 8..16;

/// A kind of malformation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Form {
    /// A base version other than 1.
    BaseVersion,
    /// A class version other than 2.
    ClassVersion,
    /// A management class other than subnet administration.
    Class,
    /// An undefined method, or one of a response.
    Method,
    /// An undefined attribute.
    Attribute,
    /// A method that is not valid for the attribute.
    MethodAttribute,
    /// Any component mask, unknown bits included.
    Mask,
    /// Random bytes in the record, under the component mask of a valid request.
    Record,
    /// A non-zero status in a request.
    Status,
    /// An ACK, STOP or ABORT for a transfer that does not exist.
    RmppStray,
    /// A first segment with inconsistent lengths, or a later segment of a transfer that does not
    /// exist.
    RmppSegment,
    /// Random bytes in the RMPP header.
    RmppHeader,
    /// Random bytes in all headers and data.
    Random,
}

impl Form {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::BaseVersion,
        Self::ClassVersion,
        Self::Class,
        Self::Method,
        Self::Attribute,
        Self::MethodAttribute,
        Self::Mask,
        Self::Record,
        Self::Status,
        Self::RmppStray,
        Self::RmppSegment,
        Self::RmppHeader,
        Self::Random,
    ];

    /// Its name in profiles and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BaseVersion => "base-version",
            Self::ClassVersion => "class-version",
            Self::Class => "class",
            Self::Method => "method",
            Self::Attribute => "attribute",
            Self::MethodAttribute => "method-attribute",
            Self::Mask => "mask",
            Self::Record => "record",
            Self::Status => "status",
            Self::RmppStray => "rmpp-stray",
            Self::RmppSegment => "rmpp-segment",
            Self::RmppHeader => "rmpp-header",
            Self::Random => "random",
        }
    }

    /// Malforms a valid request; equal salts give equal results.
    pub fn spoil(self, salt: u32, mad: &mut [u8; MAD_LEN]) {
        let mut random = SmallRng::seed_from_u64(u64::from(salt) << 8 | self as u64);
        let mut request = SaMad::new(&mut *mad);
        match self {
            Self::BaseVersion => {
                request.header_mut().set_base_version(random.random_range(2..=u8::MAX));
            }
            Self::ClassVersion => {
                request.header_mut().set_class_version(random.random_range(3..=u8::MAX));
            }
            Self::Class => {
                let class = random.random_range(MgmtClass::SUBN_ADM.0 + 1..=u8::MAX);
                request.header_mut().set_mgmt_class(MgmtClass(class));
            }
            Self::Method => {
                const WRONG: [Method; 6] = [
                    Method(0x00),
                    Method(0x10),
                    Method(0x7F),
                    Method::GET_RESP,
                    Method::GET_TABLE_RESP,
                    Method(0xFF),
                ];
                let method = WRONG[random.random_range(0..WRONG.len())];
                request.header_mut().set_method(method);
            }
            Self::Attribute => {
                let id = random.random_range(0x0100..=0xFFFF);
                request.header_mut().set_attribute_id(AttributeId(id));
            }
            Self::MethodAttribute => {
                const WRONG: [Method; 4] =
                    [Method::SET, Method::DELETE, Method::GET_MULTI, Method::REPORT];
                let method = WRONG[random.random_range(0..WRONG.len())];
                request.header_mut().set_method(method);
            }
            Self::Mask => {
                request.sa_mut().set_component_mask(ComponentMask(random.random()));
            }
            Self::Record => random.fill(&mut request.data_mut()[..]),
            Self::Status => {
                let status = random.random_range(1..=0x7FFF);
                request.header_mut().set_status(ib_mad::wire::mad::Status(status));
            }
            Self::RmppStray => {
                const TYPES: [RmppType; 3] = [RmppType::ACK, RmppType::STOP, RmppType::ABORT];
                let rmpp_type = TYPES[random.random_range(0..TYPES.len())];
                request.header_mut().set_method(Method::GET_TABLE);
                request
                    .rmpp_mut()
                    .set_rmpp_version(VERSION)
                    .set_rmpp_type(rmpp_type)
                    .set_flags(RmppFlags::ACTIVE)
                    .set_rmpp_status(RmppStatus(random.random()))
                    .set_segment(random.random())
                    .set_payload_len(random.random());
            }
            Self::RmppSegment => {
                let flags = RmppFlags(RmppFlags::ACTIVE.0 | random.random_range(0..8));
                request.header_mut().set_method(Method::GET_MULTI);
                request
                    .rmpp_mut()
                    .set_rmpp_version(VERSION)
                    .set_rmpp_type(RmppType::DATA)
                    .set_flags(flags)
                    .set_segment(random.random_range(0..4))
                    .set_payload_len(random.random());
            }
            Self::RmppHeader => {
                random.fill(&mut mad[rmpp::OFFSET..HEADER_LEN - 20]);
            }
            Self::Random => {
                random.fill(&mut mad[..TID.start]);
                random.fill(&mut mad[TID.end..]);
            }
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::ask::tests::workload;
    use crate::workload::{By, Draw};

    /// Each kind changes the request, keeps the transaction id and depends only on the salt.
    #[test]
    fn requests_are_spoilt_by_salt() {
        let workload = workload(By::Gid, Draw::Any(1));
        let mut good = [0; MAD_LEN];
        Ask::Path { pair: 0, by: By::Gid }.write(0, &workload, 0x0102_0304_0506_0708, &mut good);
        for (number, form) in Form::ALL.into_iter().enumerate() {
            assert_eq!(form as usize, number);
            let mut changed = [false; MAD_LEN];
            for salt in 0..64 {
                let spoilt = |salt| {
                    let mut mad = good;
                    form.spoil(salt, &mut mad);
                    mad
                };
                let mad = spoilt(salt);
                assert_eq!(mad, spoilt(salt), "{form}");
                assert_ne!(mad, good, "{form} {salt}");
                assert_eq!(mad[TID], good[TID], "{form}");
                (0..MAD_LEN).for_each(|at| changed[at] |= mad[at] != good[at]);
            }
            let first = changed.iter().position(|&changed| changed);
            let expected = match form {
                Form::BaseVersion | Form::Random => 0,
                Form::Class => 1,
                Form::ClassVersion => 2,
                Form::Method | Form::MethodAttribute => 3,
                Form::RmppStray | Form::RmppSegment => 3,
                Form::Status => 4,
                Form::Attribute => 16,
                Form::RmppHeader => 24,
                Form::Mask => 48,
                Form::Record => 56,
            };
            assert_eq!(first, Some(expected), "{form}");
        }
    }
}

//! The canonical encoding of rows: exactly one byte sequence per value, the same on every machine.
//!
//! Used for checksums, the feed and the cache file. Integers are big-endian, as in the attributes
//! within rows; lists and texts start with their length. A change of layout requires a new
//! [`SCHEMA`](super::SCHEMA). Framing and chunks are in `codec`, files in `cache`.

use std::sync::Arc;

use ib_mad::types::{Gid, Guid, Lid, Lifetime, Mtu, PKey, PortNum, Qpn, Rate, Sl};

/// Bytes that are not a canonical encoding of the expected type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed snapshot data: {0}")]
pub struct Malformed(pub &'static str);

/// A type with exactly one encoding per value.
pub trait Canonical: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads what [`put`](Self::put) wrote.
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Encoded bytes, read from the front.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed("truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed("truncated"))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads the length of a list whose items need at least `item_len` bytes each.
    pub fn count(&mut self, item_len: usize) -> Result<usize, Malformed> {
        let count = u32::take(self)? as usize;
        match count.checked_mul(item_len) {
            Some(needed) if needed <= self.rest.len() => Ok(count),
            _ => Err(Malformed("a list is longer than the remaining data")),
        }
    }

    /// Remaining bytes.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Errors if any bytes remain.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("trailing data after the last field"))
        }
    }
}

/// Reads a value that must use all of `bytes`.
pub fn decode<T: Canonical>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(bytes);
    let value = T::take(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Canonical for $type {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                input.array().map(Self::from_be_bytes)
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, u128);

macro_rules! newtypes {
    ($($type:ident),*) => {$(
        impl Canonical for $type {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                Canonical::take(input).map($type)
            }
        }
    )*};
}
newtypes!(Lid, Guid, Gid, PKey, PortNum, Qpn);

impl Canonical for bool {
    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag that is neither 0 nor 1")),
        }
    }
}

impl Canonical for Lifetime {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.code());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(input)? {
            code if code < 64 => Ok(Self::from_low_bits(code)),
            _ => Err(Malformed("a lifetime above 63")),
        }
    }
}

macro_rules! codes {
    ($($type:ident: $error:literal;)*) => {$(
        impl Canonical for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(self.code());
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                Self::from_code(u8::take(input)?).ok_or(Malformed($error))
            }
        }
    )*};
}
codes! {
    Mtu: "an unknown MTU";
    Rate: "an unknown rate";
}

impl Canonical for Sl {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.get());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(input)? {
            sl if sl < 16 => Ok(Self::from_low_bits(sl.into())),
            _ => Err(Malformed("an SL above 15")),
        }
    }
}

impl<const N: usize> Canonical for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        input.array()
    }
}

impl<T: Canonical> Canonical for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

impl<A: Canonical, B: Canonical> Canonical for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

fn put_list<T: Canonical>(items: &[T], out: &mut Vec<u8>) {
    debug_assert!(u32::try_from(items.len()).is_ok());
    (items.len() as u32).put(out);
    for item in items {
        item.put(out);
    }
}

impl<T: Canonical> Canonical for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        // Every item has at least one byte, so a wrong count fails here or at the first missing
        // item; `collect` on results does not reserve memory by it.
        let count = input.count(1)?;
        (0..count).map(|_| T::take(input)).collect()
    }
}

impl<T: Canonical> Canonical for Arc<[T]> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Vec::take(input).map(Arc::from)
    }
}

impl Canonical for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = input.count(1)?;
        String::from_utf8(input.bytes(len)?.to_vec()).map_err(|_| Malformed("text is not UTF-8"))
    }
}

/// Implements [`Canonical`] for a struct: its fields in the listed order.
macro_rules! canonical {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::snapshot::encoding::Canonical for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::snapshot::encoding::Canonical::put(&self.$field, out);)*
            }
            fn take(
                input: &mut $crate::snapshot::encoding::Reader<'_>,
            ) -> Result<Self, $crate::snapshot::encoding::Malformed> {
                $(let $field = $crate::snapshot::encoding::Canonical::take(input)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(crate) use canonical;

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: &impl Canonical) -> Vec<u8> {
        let mut out = Vec::new();
        value.put(&mut out);
        out
    }

    #[test]
    fn values_read_back_as_they_were_written() {
        let value = (vec![(Guid(7), PortNum(3)), (Guid(8), PortNum(4))], Some("né".to_owned()));
        let bytes = encoded(&value);
        assert_eq!(decode(&bytes), Ok(value.clone()));
        for len in 0..bytes.len() {
            assert!(decode::<(Vec<(Guid, PortNum)>, Option<String>)>(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn a_second_encoding_of_a_value_is_refused() {
        assert!(decode::<bool>(&[2]).is_err());
        assert!(decode::<Lifetime>(&[64]).is_err());
        assert!(decode::<u8>(&[1, 1]).is_err());
        assert!(decode::<String>(&[0, 0, 0, 1, 0xFF]).is_err());
    }

    #[test]
    fn a_count_beyond_the_data_is_refused_before_anything_is_allocated() {
        assert!(decode::<Vec<u8>>(&[0xFF, 0xFF, 0xFF, 0xFF, 1, 2]).is_err());
    }
}

//! Addresses of ports and nodes: LID, GUID, GID (IBA chapter 4).

use std::cmp::Ordering;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The default subnet prefix: the link-local prefix (IBA 4.1.3).
pub const SUBNET_PREFIX_DEFAULT: u64 = 0xFE80_0000_0000_0000;

/// Local identifier: the 16-bit address by which switches forward.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lid(pub u16);

impl Lid {
    /// LID 0, reserved: a port without an assigned LID.
    pub const NONE: Self = Self(0);
    /// LID 0xFFFF, the permissive LID: accepted by every port; directed-route SMPs use it.
    pub const PERMISSIVE: Self = Self(0xFFFF);
    /// The last unicast LID, 0xBFFF.
    pub const UNICAST_LAST: Self = Self(0xBFFF);
    /// The first multicast LID, 0xC000.
    pub const MULTICAST_FIRST: Self = Self(0xC000);

    /// Whether this is a unicast LID, 0x0001 to 0xBFFF.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        self.0 != 0 && self.0 <= Self::UNICAST_LAST.0
    }

    /// Whether this is a multicast LID, 0xC000 to 0xFFFE.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::MULTICAST_FIRST.0 && self.0 != Self::PERMISSIVE.0
    }

    /// The LID as an array index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({})", self.0)
    }
}

/// Globally unique identifier of a node, port or system image (EUI-64).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl Guid {
    /// The GUID by which virtual functions address the SA, whichever port it is at. No end port has
    /// it as its own.
    pub const WELL_KNOWN_SA: Self = Self(0x0200_0000_0000_0002);
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

/// Text that is not a GUID: hexadecimal with or without `0x`, at most 16 digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a GUID; write up to 16 hexadecimal digits, such as 0x0002c90300000001")]
pub struct ParseGuidError(pub String);

impl FromStr for Guid {
    type Err = ParseGuidError;

    fn from_str(text: &str) -> Result<Self, ParseGuidError> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseGuidError(text.to_owned()));
        }
        u64::from_str_radix(digits, 16).map(Self).map_err(|_| ParseGuidError(text.to_owned()))
    }
}

/// Global identifier: subnet prefix and port GUID, or a multicast group (IBA 4.1.1). Kept in
/// wire order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

/// The order of the bytes, compared as one number and not byte by byte: tables are searched by it.
impl Ord for Gid {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for Gid {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Gid {
    /// The all-zero GID, reserved.
    pub const ZERO: Self = Self([0; 16]);

    /// The unicast GID of a port.
    #[inline]
    pub const fn new(prefix: u64, guid: Guid) -> Self {
        Self((((prefix as u128) << 64) | guid.0 as u128).to_be_bytes())
    }

    /// Upper 64 bits: the subnet prefix of a unicast GID.
    #[inline]
    pub const fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// Lower 64 bits: the GUID of a unicast GID.
    #[inline]
    pub const fn guid(self) -> Guid {
        Guid(u128::from_be_bytes(self.0) as u64)
    }

    /// Whether this is a multicast GID: the first byte is 0xFF.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xFF
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Text that is not a GID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a GID; write it like an IPv6 address, such as fe80::2c9:300:0:1")]
pub struct ParseGidError(pub String);

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, ParseGidError> {
        text.parse::<Ipv6Addr>()
            .map(|address| Self(address.octets()))
            .map_err(|_| ParseGidError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lid_ranges_meet_without_overlap() {
        for raw in 0..=u16::MAX {
            let lid = Lid(raw);
            let kinds = [lid.is_unicast(), lid.is_multicast(), raw == 0 || raw == 0xFFFF];
            assert_eq!(kinds.iter().filter(|&&k| k).count(), 1, "{lid}");
        }
    }

    /// IBA 4.1.1.
    #[test]
    fn gid_splits_into_prefix_and_guid() {
        let gid = Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0x0c42_a103_0000_0021));
        assert_eq!(gid.to_string(), "fe80::c42:a103:0:21");
        assert_eq!((gid.prefix(), gid.guid().0), (SUBNET_PREFIX_DEFAULT, 0x0c42_a103_0000_0021));
        assert_eq!("fe80::c42:a103:0:21".parse(), Ok(gid));
    }

    #[test]
    fn guid_text_needs_hexadecimal_digits() {
        assert_eq!("0x2c9".parse(), Ok(Guid(0x2c9)));
        assert_eq!("2c9".parse(), Ok(Guid(0x2c9)));
        for text in ["", "0x", "+5", "0x12345678123456781", "host"] {
            assert!(text.parse::<Guid>().is_err(), "{text}");
        }
    }
}

//! Small identifiers in packets: P_Key, SL, VL, QP and port numbers.

use std::fmt;

/// Partition key: 15 bits of partition, and the top bit for full membership (IBA 10.9).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PKey(pub u16);

impl PKey {
    /// The default partition, full membership.
    pub const DEFAULT_FULL: Self = Self(0xFFFF);
    /// The default partition, limited membership.
    pub const DEFAULT_LIMITED: Self = Self(0x7FFF);

    /// The key without the membership bit.
    #[inline]
    pub const fn base(self) -> u16 {
        self.0 & 0x7FFF
    }

    /// Whether the key grants full membership.
    #[inline]
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether this table entry holds a key: a base of 0 is invalid (IBA 10.9.3, C10-116).
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.base() != 0
    }

    /// Whether holders of the two keys can communicate: the same partition, and not both limited
    /// members.
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        self.is_valid() && self.base() == other.base() && (self.is_full() || other.is_full())
    }
}

impl fmt::Display for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:04x}", self.0)
    }
}

impl fmt::Debug for PKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKey({self})")
    }
}

macro_rules! low_bits {
    ($(#[$doc:meta])* $name:ident, $mask:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u8);

        impl $name {
            /// Keeps the low 4 bits; the others belong to a neighbouring field.
            #[inline]
            pub const fn from_low_bits(value: u16) -> Self {
                Self((value & $mask) as u8)
            }

            /// The number itself, 0 to 15.
            #[inline]
            pub const fn get(self) -> u8 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

low_bits!(
    /// Service level of a packet, 0 to 15; each link maps it to a VL.
    Sl, 0xF
);
low_bits!(
    /// Virtual lane, 0 to 15; 15 is the management lane.
    Vl, 0xF
);

/// Port number on a node. 0 is a switch's management port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNum(pub u8);

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Queue pair number, 24 bits. 0 carries SMPs, 1 the general services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(pub u32);

impl Qpn {
    /// QP0: subnet management packets.
    pub const SMI: Self = Self(0);
    /// QP1: general services, subnet administration among them.
    pub const GSI: Self = Self(1);
    /// The Q_Key of all queue pairs for management but QP0 (IBA 3.5.3).
    pub const GSI_QKEY: u32 = 0x8001_0000;
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 10.9.3, C10-116.
    #[test]
    fn limited_members_cannot_talk_to_each_other() {
        let (full, limited) = (PKey(0x8001), PKey(0x0001));
        assert!(full.matches(limited) && limited.matches(full) && full.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(PKey(0x8002)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)), "base 0 is no partition");
    }
}

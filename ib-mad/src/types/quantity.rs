//! Encoded quantities: MTU, rate and lifetime. The order of the codes is not always that of the
//! values.

use std::cmp::Ordering;
use std::fmt;

/// Maximum transfer unit of a path or link (IBA 14.2.5.6, 15.2.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All codes, ascending by size.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The MTU of a code; `None` if reserved.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::B256),
            2 => Some(Self::B512),
            3 => Some(Self::B1024),
            4 => Some(Self::B2048),
            5 => Some(Self::B4096),
            _ => None,
        }
    }

    /// The code on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload in bytes.
    #[inline]
    pub const fn bytes(self) -> u16 {
        128 << self.code()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// Static rate of a path (IBA 15.2.5.16, table 224). Ordered by data rate, not by code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each name is the rate in Gb/s")]
#[non_exhaustive]
pub enum Rate {
    Gbps2_5 = 2,
    Gbps10 = 3,
    Gbps30 = 4,
    Gbps5 = 5,
    Gbps20 = 6,
    Gbps40 = 7,
    Gbps60 = 8,
    Gbps80 = 9,
    Gbps120 = 10,
    Gbps14 = 11,
    Gbps56 = 12,
    Gbps112 = 13,
    Gbps168 = 14,
    Gbps25 = 15,
    Gbps100 = 16,
    Gbps200 = 17,
    Gbps300 = 18,
    Gbps28 = 19,
    Gbps50 = 20,
    Gbps400 = 21,
    Gbps600 = 22,
    Gbps800 = 23,
    Gbps1200 = 24,
}

/// Rank by value of each code: 0 for reserved codes.
const RATE_RANK: [u8; 64] = {
    let mut ranks = [0; 64];
    let mut rank = 0;
    while rank < Rate::BY_VALUE.len() {
        ranks[Rate::BY_VALUE[rank] as usize] = rank as u8 + 1;
        rank += 1;
    }
    ranks
};

impl Rate {
    /// All rates, slowest first, by data rate: the older rates lose a fifth to their 8b/10b coding,
    /// so that 30 Gb/s carries less than 25 Gb/s with 64b/66b.
    pub const BY_VALUE: [Self; 23] = [
        Self::Gbps2_5,
        Self::Gbps5,
        Self::Gbps10,
        Self::Gbps14,
        Self::Gbps20,
        Self::Gbps30,
        Self::Gbps25,
        Self::Gbps28,
        Self::Gbps40,
        Self::Gbps60,
        Self::Gbps50,
        Self::Gbps56,
        Self::Gbps80,
        Self::Gbps120,
        Self::Gbps100,
        Self::Gbps112,
        Self::Gbps168,
        Self::Gbps200,
        Self::Gbps300,
        Self::Gbps400,
        Self::Gbps600,
        Self::Gbps800,
        Self::Gbps1200,
    ];

    /// The rate of a code; `None` if reserved.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        match RATE_RANK[(code & 0x3F) as usize] {
            0 => None,
            rank if code < 64 => Some(Self::BY_VALUE[rank as usize - 1]),
            _ => None,
        }
    }

    /// The code on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Rank by data rate, 1 (slowest) to 23.
    #[inline]
    pub const fn rank(self) -> u8 {
        RATE_RANK[self as usize]
    }

    /// Megabits per second, as in the rate's name.
    pub const fn mbps(self) -> u32 {
        match self {
            Self::Gbps2_5 => 2_500,
            Self::Gbps5 => 5_000,
            Self::Gbps10 => 10_000,
            Self::Gbps14 => 14_000,
            Self::Gbps20 => 20_000,
            Self::Gbps25 => 25_000,
            Self::Gbps28 => 28_000,
            Self::Gbps30 => 30_000,
            Self::Gbps40 => 40_000,
            Self::Gbps50 => 50_000,
            Self::Gbps56 => 56_000,
            Self::Gbps60 => 60_000,
            Self::Gbps80 => 80_000,
            Self::Gbps100 => 100_000,
            Self::Gbps112 => 112_000,
            Self::Gbps120 => 120_000,
            Self::Gbps168 => 168_000,
            Self::Gbps200 => 200_000,
            Self::Gbps300 => 300_000,
            Self::Gbps400 => 400_000,
            Self::Gbps600 => 600_000,
            Self::Gbps800 => 800_000,
            Self::Gbps1200 => 1_200_000,
        }
    }
}

impl PartialOrd for Rate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gbps2_5 => f.write_str("2.5 Gb/s"),
            other => write!(f, "{} Gb/s", other.mbps() / 1000),
        }
    }
}

/// Packet lifetime, or another timeout, as its code n; 4.096 µs × 2^n. 6 bits in path records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lifetime(u8);

impl Lifetime {
    /// Keeps the low 6 bits; the others belong to a neighbouring field.
    #[inline]
    pub const fn from_low_bits(value: u8) -> Self {
        Self(value & 0x3F)
    }

    /// The code n.
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Nanoseconds: 4096 × 2^n, at most `u64::MAX`.
    pub const fn nanoseconds(self) -> u64 {
        if self.0 > 51 { u64::MAX } else { 4096 << self.0 }
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nanoseconds() {
            ns if ns < 1_000_000 => write!(f, "{:.1} µs", ns as f64 / 1e3),
            ns if ns < 1_000_000_000 => write!(f, "{:.1} ms", ns as f64 / 1e6),
            ns => write!(f, "{:.1} s", ns as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 15.2.5.16.
    #[test]
    fn codes_round_trip_and_reserved_ones_are_refused() {
        assert_eq!((0..=255).filter_map(Mtu::from_code).count(), 5);
        assert_eq!((0..=255).filter_map(Rate::from_code).count(), 23);
        for rate in Rate::BY_VALUE {
            assert_eq!(Rate::from_code(rate.code()), Some(rate));
        }
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu.code()), Some(mtu));
        }
        assert_eq!((Mtu::B256.bytes(), Mtu::B4096.bytes()), (256, 4096));
    }

    #[test]
    fn rates_are_ordered_by_data_rate_though_neither_codes_nor_names_are() {
        let data_rate = |rate: Rate| {
            let lanes_of_8b10b = [2, 3, 4, 5, 6, 7, 8, 9, 10].contains(&rate.code());
            let (numerator, denominator) = if lanes_of_8b10b { (8, 10) } else { (64, 66) };
            u64::from(rate.mbps()) * numerator * 1000 / denominator
        };
        for pair in Rate::BY_VALUE.windows(2) {
            assert!(pair[0] < pair[1] && data_rate(pair[0]) < data_rate(pair[1]), "{pair:?}");
        }
        assert!(Rate::Gbps5 > Rate::Gbps2_5 && Rate::Gbps120 < Rate::Gbps100);
    }
}

//! Selector: how an MTU, rate or lifetime in a request is compared (IBA 15.2.5.16).

use std::fmt;

use crate::wire::field::{Field, get_bits, set_bits};

/// Comparison with the value next to it. In responses always [`Exactly`](Self::Exactly).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Selector {
    /// Greater than the value.
    #[default]
    Greater = 0,
    /// Less than the value.
    Less = 1,
    /// Equal to the value.
    Exactly = 2,
    /// The largest available, or the smallest lifetime; the value is ignored.
    Largest = 3,
}

impl Selector {
    /// Keeps the low 2 bits; the others belong to a neighbouring field.
    #[inline]
    pub const fn from_low_bits(value: u8) -> Self {
        match value & 3 {
            0 => Self::Greater,
            1 => Self::Less,
            2 => Self::Exactly,
            _ => Self::Largest,
        }
    }

    /// The code on the wire.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greater => "greater than",
            Self::Less => "less than",
            Self::Exactly => "exactly",
            Self::Largest => "largest available",
        })
    }
}

impl Field for Selector {
    type View = Self;
    #[inline(always)]
    fn read<const BIT: usize, const WIDTH: usize>(bytes: &[u8]) -> Self {
        Self::from_low_bits(get_bits::<BIT, WIDTH>(bytes) as u8)
    }
    #[inline(always)]
    fn write<const BIT: usize, const WIDTH: usize>(self, bytes: &mut [u8]) {
        set_bits::<BIT, WIDTH>(bytes, u64::from(self.code()));
    }
    #[inline(always)]
    fn check(view: Self) -> Result<Self, u64> {
        Ok(view)
    }
    fn format(view: Self, text: &mut String) {
        text.push_str(&view.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBA 15.2.5.16.
    #[test]
    fn every_code_of_two_bits_is_a_selector() {
        for code in 0..=255 {
            assert_eq!(Selector::from_low_bits(code).code(), code & 3);
        }
    }
}

//! How a request means an MTU, a rate or a lifetime (15.2.5.16).

use std::fmt;

use crate::wire::field::code_field;

/// What the value beside it is compared by. In answers always [`Exactly`](Self::Exactly).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Selector {
    /// More than the value.
    #[default]
    Greater = 0,
    /// Less than the value.
    Less = 1,
    /// The value.
    Exactly = 2,
    /// The most there is, or the least for a lifetime; the value is ignored.
    Largest = 3,
}

impl Selector {
    /// The selector of a code, 0 to 3.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Greater),
            1 => Some(Self::Less),
            2 => Some(Self::Exactly),
            3 => Some(Self::Largest),
            _ => None,
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

code_field!(Selector);

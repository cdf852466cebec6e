//! Typed indices into the arenas of [`Fabric`](super::Fabric).

use std::fmt;

macro_rules! arena_index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(super) u32);

        impl $name {
            /// The position in its arena.
            #[inline]
            pub const fn get(self) -> usize {
                self.0 as usize
            }

            /// The index as 32 bits, to be packed into a request.
            #[inline]
            pub const fn to_bits(self) -> u32 {
                self.0
            }

            /// The inverse of [`to_bits`](Self::to_bits).
            #[inline]
            pub const fn from_bits(bits: u32) -> Self {
                Self(bits)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

arena_index!(
    /// A node of the fabric.
    NodeIndex
);
arena_index!(
    /// A switch of the fabric: the state that only switches have.
    SwitchIndex
);
arena_index!(
    /// A port of the fabric.
    PortIndex
);

//! A set of ports of a switch.

/// A set of ports of a switch, one bit per port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortMask([u64; 4]);

impl PortMask {
    /// Creates a set from its words, 64 ports per word.
    pub fn of_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// Adds a port.
    pub fn insert(&mut self, port: u8) {
        self.0[usize::from(port) / 64] |= 1 << (port % 64);
    }

    /// Removes a port.
    pub fn remove(&mut self, port: u8) {
        self.0[usize::from(port) / 64] &= !(1 << (port % 64));
    }

    /// Whether the set contains a port.
    pub fn contains(&self, port: u8) -> bool {
        self.0[usize::from(port) / 64] >> (port % 64) & 1 == 1
    }

    /// The ports in ascending order.
    pub fn ports(&self) -> impl Iterator<Item = u8> + use<> {
        self.0.into_iter().zip((0u8..).step_by(64)).flat_map(|(mut word, first)| {
            std::iter::from_fn(move || {
                let port = (word != 0).then(|| first + word.trailing_zeros() as u8);
                word &= word.wrapping_sub(1);
                port
            })
        })
    }

    /// Ports 16 × `position` to 16 × `position` + 15, as in a block of a multicast forwarding
    /// table.
    pub fn position(&self, position: u8) -> u16 {
        let bit = usize::from(position) * 16;
        (self.0[bit / 64] >> (bit % 64)) as u16
    }
}

//! Represents links as nodes of dependency graphs: which link may follow which.

use super::super::Topology;

/// Numbers the bits that represent dependencies. A link can be followed by any link of its far-end
/// switch, so it has one bit for each of these, and one for each link that it may follow.
#[derive(Debug)]
pub(super) struct Channels {
    channels: Vec<Channel>,
    /// Words for all links.
    words: usize,
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    /// Number of the first link of the switch that sends over this link.
    near: u32,
    /// Number of the first link of the switch at the far end.
    far: u32,
    /// The same cable in the other direction.
    reverse: u32,
    /// Index of the word where the bits of following links start.
    after: u32,
    /// Index of the word where the bits of preceding links start.
    before: u32,
    /// Words for following links.
    after_words: u8,
    /// Words for preceding links.
    before_words: u8,
}

/// A bit: index of its word, and mask.
pub(super) type Bit = (usize, u64);

impl Channels {
    pub(super) fn new(topology: &Topology) -> Self {
        let words_of = |switch| topology.links(switch).len().div_ceil(64) as u8;
        let (mut after, mut before) = (0, 0);
        let mut channels = Vec::with_capacity(topology.link_count());
        for switch in topology.switches() {
            for (link, number) in topology.links(switch).iter().zip(topology.link_range(switch)) {
                // Links are known from both of their ends.
                let reverse = topology.link_at(link.peer, link.peer_port).unwrap_or(number);
                let (after_words, before_words) = (words_of(link.peer), words_of(switch));
                channels.push(Channel {
                    near: topology.link_range(switch).start as u32,
                    far: topology.link_range(link.peer).start as u32,
                    reverse: reverse as u32,
                    after,
                    before,
                    after_words,
                    before_words,
                });
                after += u32::from(after_words);
                before += u32::from(before_words);
            }
        }
        Self { channels, words: after.max(before) as usize }
    }

    /// Number of links.
    pub(super) fn count(&self) -> usize {
        self.channels.len()
    }

    /// Number of words for the bits of all links.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The bit of `from` that states that `to` follows it.
    #[inline]
    pub(super) fn after_bit(&self, from: u32, to: u32) -> Bit {
        let from = &self.channels[from as usize];
        bit(from.after, to - from.far)
    }

    /// The bit of `to` that states that it follows `from`.
    #[inline]
    pub(super) fn before_bit(&self, from: u32, to: u32) -> Bit {
        let (from, to) = (&self.channels[from as usize], &self.channels[to as usize]);
        bit(to.before, from.reverse - to.near)
    }

    /// The links that follow `from` according to `bits`.
    #[inline]
    pub(super) fn after(&self, bits: &[u64], from: u32) -> impl Iterator<Item = u32> {
        let Channel { after, after_words, far, .. } = self.channels[from as usize];
        ones(&bits[after as usize..][..usize::from(after_words)]).map(move |one| far + one)
    }

    /// The links that precede `to` according to `bits`.
    #[inline]
    pub(super) fn before(&self, bits: &[u64], to: u32) -> impl Iterator<Item = u32> {
        let Channel { before, before_words, near, .. } = self.channels[to as usize];
        ones(&bits[before as usize..][..usize::from(before_words)])
            .map(move |one| self.channels[(near + one) as usize].reverse)
    }
}

fn bit(first_word: u32, number: u32) -> Bit {
    ((first_word + number / 64) as usize, 1 << (number % 64))
}

/// The indices of set bits.
#[inline]
fn ones(words: &[u64]) -> impl Iterator<Item = u32> {
    words.iter().zip((0u32..).step_by(64)).flat_map(|(&word, first)| {
        let mut word = word;
        std::iter::from_fn(move || {
            let one = (word != 0).then(|| first + word.trailing_zeros());
            word &= word.wrapping_sub(1);
            one
        })
    })
}

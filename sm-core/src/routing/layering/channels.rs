//! Links as nodes of dependency graphs: which may follow which.

use super::super::Topology;

/// Numbers of the bits that stand for dependencies. A link is followed by one of its far end's
/// links, so that a link has one bit for each of these, and one for each link that it may follow.
#[derive(Debug)]
pub(super) struct Channels {
    channels: Vec<Channel>,
    /// Words of all links.
    words: usize,
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    /// Number of the first link of the switch that sends by this one.
    near: u32,
    /// That of the far end's first link.
    far: u32,
    /// The same cable in the other direction.
    reverse: u32,
    /// Where the bits of links that follow begin.
    after: u32,
    /// Where the bits of links that come before begin.
    before: u32,
    /// Words of links that follow.
    after_words: u8,
    /// Words of links that come before.
    before_words: u8,
}

/// A bit: number of its word, and mask.
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

    /// How many links there are.
    pub(super) fn count(&self) -> usize {
        self.channels.len()
    }

    /// Words that the bits of all links take.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// The bit with `from` for its being followed by `to`.
    #[inline]
    pub(super) fn after_bit(&self, from: u32, to: u32) -> Bit {
        let from = &self.channels[from as usize];
        bit(from.after, to - from.far)
    }

    /// The bit with `to` for its following `from`.
    #[inline]
    pub(super) fn before_bit(&self, from: u32, to: u32) -> Bit {
        let (from, to) = (&self.channels[from as usize], &self.channels[to as usize]);
        bit(to.before, from.reverse - to.near)
    }

    /// The links of which `bits` says that they follow `from`.
    #[inline]
    pub(super) fn after(&self, bits: &[u64], from: u32) -> impl Iterator<Item = u32> {
        let Channel { after, after_words, far, .. } = self.channels[from as usize];
        ones(&bits[after as usize..][..usize::from(after_words)]).map(move |one| far + one)
    }

    /// The links of which `bits` says that they come before `to`.
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

/// The numbers of bits that are set.
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

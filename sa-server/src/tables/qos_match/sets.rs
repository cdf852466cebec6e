//! Bit sets of rules; equal sets are stored once.

use std::collections::HashMap;

/// A set, by where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SetId(u32);

/// All sets, one behind the other: summary words, then words.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    words: Vec<u64>,
    summaries: usize,
    stride: usize,
}

/// One of the sets.
#[derive(Clone, Copy)]
pub(super) struct Set<'a> {
    words: &'a [u64],
    summaries: usize,
}

impl Sets {
    /// Summary words of a set.
    #[inline]
    pub(super) fn summaries(&self) -> usize {
        self.summaries
    }

    /// Whether all rules fit one word, so that there is nothing to sum up.
    #[inline]
    pub(super) fn is_one_word(&self) -> bool {
        self.stride == 2
    }

    #[inline]
    pub(super) fn get(&self, id: SetId) -> Set<'_> {
        let start = id.0 as usize;
        let words = self.words.get(start..start + self.stride).unwrap_or(&[]);
        Set { words, summaries: self.summaries }
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }
}

impl Set<'_> {
    /// Its only word if all rules fit one, or else its first summary.
    #[inline]
    pub(super) fn first(self) -> u64 {
        // A set of one word has a summary all the same, of one bit.
        let at = usize::from(self.words.len() == 2);
        self.words.get(at).copied().unwrap_or(0)
    }

    /// A bit for each of 64 words that is not zero.
    #[inline]
    pub(super) fn summary(self, part: usize) -> u64 {
        self.words.get(part).copied().unwrap_or(0)
    }

    /// Rules 64 × `word` and the 63 after it.
    #[inline]
    pub(super) fn word(self, word: usize) -> u64 {
        self.words.get(self.summaries + word).copied().unwrap_or(0)
    }
}

/// Collects sets of a given number of rules.
pub(super) struct SetsBuilder {
    sets: Sets,
    known: HashMap<Vec<u64>, SetId>,
    /// Words of a set without its summary.
    len: usize,
}

impl SetsBuilder {
    pub(super) fn new(rules: usize) -> Self {
        let len = rules.div_ceil(64);
        let summaries = len.div_ceil(64);
        let sets = Sets { words: Vec::new(), summaries, stride: summaries + len };
        Self { sets, known: HashMap::new(), len }
    }

    /// A set without any rule, to be filled.
    pub(super) fn none(&self) -> Vec<u64> {
        vec![0; self.len]
    }

    pub(super) fn intern(&mut self, words: &[u64]) -> SetId {
        if let Some(&id) = self.known.get(words) {
            return id;
        }
        let id = SetId(self.sets.words.len() as u32);
        for part in words.chunks(64) {
            let summary =
                (0..).zip(part).fold(0, |bits, (i, &word)| bits | u64::from(word != 0) << i);
            self.sets.words.push(summary);
        }
        self.sets.words.extend_from_slice(words);
        self.known.insert(words.to_vec(), id);
        id
    }

    pub(super) fn finish(self) -> Sets {
        self.sets
    }
}

/// Adds a rule to a set.
pub(super) fn insert(words: &mut [u64], rule: usize) {
    words[rule / 64] |= 1 << (rule % 64);
}

/// Takes a rule out of a set.
pub(super) fn remove(words: &mut [u64], rule: usize) {
    words[rule / 64] &= !(1 << (rule % 64));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_kept_once_and_summaries_mark_used_words() {
        let mut builder = SetsBuilder::new(64 * 65);
        let mut words = builder.none();
        insert(&mut words, 64 * 64 + 3);
        insert(&mut words, 70);
        let id = builder.intern(&words);
        assert_eq!(builder.intern(&words.clone()), id);
        remove(&mut words, 70);
        assert_ne!(builder.intern(&words), id);
        let sets = builder.finish();
        let set = sets.get(id);
        assert_eq!((sets.summaries(), set.summary(0), set.summary(1)), (2, 1 << 1, 1));
        assert_eq!((set.word(1), set.word(64)), (1 << 6, 1 << 3));
    }
}

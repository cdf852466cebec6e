//! Matches records against a ComponentMask by one masked comparison of bytes.

use crate::wire::FieldInfo;
use crate::wire::sa::{ComponentMask, DATA_LEN};

/// A component of a record and the bits it owns.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    mask: ComponentMask,
    /// First bit, from the start of the record, most significant first.
    bit: usize,
    width: usize,
}

impl Component {
    /// The component `mask`, which owns `width` bits from `bit` on.
    pub const fn at(mask: ComponentMask, bit: usize, width: usize) -> Self {
        Self { mask, bit, width }
    }

    /// The component `mask`, which is `field` of a layout that starts `offset` bytes into the
    /// record. For constants: a field that does not exist stops the compiler.
    pub const fn of(mask: ComponentMask, fields: &[FieldInfo], field: &str, offset: usize) -> Self {
        let mut i = 0;
        while i < fields.len() {
            if same(fields[i].name, field) {
                let FieldInfo { bit, width, .. } = fields[i];
                return Self { mask, bit: bit + offset * 8, width };
            }
            i += 1;
        }
        panic!("the layout has no field of this name");
    }
}

const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Positions of the bytes to compare, and the required values.
#[derive(Clone, Debug)]
pub struct Pattern {
    mask: [u8; DATA_LEN],
    value: [u8; DATA_LEN],
    /// The words of [`WORD`] bytes that have any mask bits: the first, and the one behind the last.
    first: usize,
    end: usize,
}

/// Bytes compared at once.
const WORD: usize = 8;

impl Pattern {
    /// The components of `selected`, as `request` fills them in.
    #[inline]
    pub fn new(
        components: &[Component],
        selected: ComponentMask,
        request: &[u8; DATA_LEN],
    ) -> Self {
        let mut pattern = Self { mask: [0; DATA_LEN], value: *request, first: usize::MAX, end: 0 };
        for component in components {
            if selected.contains(component.mask) {
                pattern.require(component.bit, component.width);
            }
        }
        pattern
    }

    /// Compares these bits, too.
    fn require(&mut self, bit: usize, width: usize) {
        let end = bit + width;
        let mut bit = bit;
        self.first = self.first.min(bit / (8 * WORD));
        self.end = self.end.max(end.div_ceil(8 * WORD));
        while bit < end {
            let in_byte = (8 - bit % 8).min(end - bit);
            let below = 8 - bit % 8 - in_byte;
            self.mask[bit / 8] |= (((1u16 << in_byte) - 1) << below) as u8;
            bit += in_byte;
        }
    }

    /// Compares `bytes` at `offset`, too.
    pub fn require_bytes(&mut self, offset: usize, bytes: &[u8]) {
        self.value[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.require(offset * 8, bytes.len() * 8);
    }

    /// Whether a record matches. Bytes beyond the record are ignored.
    #[inline]
    pub fn matches(&self, record: &[u8]) -> bool {
        let (words, rest) = record.as_chunks::<WORD>();
        let (value, mask) = (self.value.as_chunks::<WORD>().0, self.mask.as_chunks::<WORD>().0);
        let whole = self.end.min(words.len());
        let agrees = (self.first..whole).all(|at| differing(words[at], value[at], mask[at]) == 0);
        agrees
            && (self.end <= words.len() || rest.is_empty() || self.rest_matches(words.len(), rest))
    }

    /// Same for the bytes after the first `at` words.
    fn rest_matches(&self, at: usize, rest: &[u8]) -> bool {
        let bytes = rest.iter().zip(&self.value[at * WORD..]).zip(&self.mask[at * WORD..]);
        bytes.into_iter().all(|((have, want), mask)| (have ^ want) & mask == 0)
    }
}

#[inline(always)]
fn differing(have: [u8; WORD], want: [u8; WORD], mask: [u8; WORD]) -> u64 {
    let word = u64::from_ne_bytes;
    (word(have) ^ word(want)) & word(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::record::LinkRecord;
    use crate::wire::record::link::component as link;

    const FROM_PORT: Component = Component::of(link::FROM_PORT, LinkRecord::FIELDS, "from_port", 0);

    #[test]
    fn only_selected_components_count() {
        let mut request = [0xFF; DATA_LEN];
        request[2] = 7;
        let record = [0, 1, 7, 9, 0, 2, 0, 0];
        assert!(Pattern::new(&[FROM_PORT], link::FROM_PORT, &request).matches(&record));
        assert!(Pattern::new(&[FROM_PORT], link::TO_PORT, &request).matches(&record));
        request[2] = 8;
        assert!(!Pattern::new(&[FROM_PORT], link::FROM_PORT, &request).matches(&record));
    }

    /// A record of 52 bytes ends within a word.
    #[test]
    fn what_stands_in_the_last_bytes_of_a_record_counts() {
        let last = Component { mask: ComponentMask(1), bit: 49 * 8, width: 24 };
        let mut request = [0; DATA_LEN];
        request[51] = 7;
        let pattern = Pattern::new(&[last], ComponentMask(1), &request);
        let mut record = [0; 52];
        assert!(!pattern.matches(&record));
        record[51] = 7;
        assert!(pattern.matches(&record));
        record[..49].fill(0xFF);
        assert!(pattern.matches(&record), "what is not selected");
        record[49] = 1;
        assert!(!pattern.matches(&record));
    }

    #[test]
    fn bits_of_shared_bytes_are_distinguished() {
        let nibbles = [
            Component { mask: ComponentMask(1), bit: 4, width: 4 },
            Component { mask: ComponentMask(2), bit: 8, width: 3 },
        ];
        let mut request = [0; DATA_LEN];
        (request[0], request[1]) = (0xF5, 0b101_00000);
        let pattern = Pattern::new(&nibbles, ComponentMask(3), &request);
        assert!(pattern.matches(&[0x05, 0b101_11111]));
        assert!(!pattern.matches(&[0x04, 0b101_11111]));
        assert!(!pattern.matches(&[0x05, 0b111_11111]));
    }
}

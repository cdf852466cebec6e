//! Columns of path classes: how all switches see one destination.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use ib_mad::types::Lid;

use super::path::Packed;

/// Hashed by the pair, so that a column costs half a step a row.
impl Hash for Packed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.0);
    }

    fn hash_slice<H: Hasher>(column: &[Self], state: &mut H) {
        let (pairs, rest) = column.as_chunks();
        for &[a, b] in pairs {
            state.write_u64(u64::from(a.0) << 32 | u64::from(b.0));
        }
        rest.iter().for_each(|view| view.hash(state));
    }
}

/// Views of a destination, an entry a row, with their hash.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    hash: u64,
    views: Arc<[Packed]>,
}

impl Column {
    pub(super) fn new(views: &[Packed]) -> Self {
        Self { hash: BuildFold::default().hash_one(views), views: views.into() }
    }
}

impl Deref for Column {
    type Target = [Packed];

    fn deref(&self) -> &[Packed] {
        &self.views
    }
}

impl Eq for Column {}

impl Hash for Column {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Columns as the [`walk`](super::walk) found them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Columns {
    /// Distinct columns. Of a fabric whose routes were all walked, they are numbered in the order
    /// of the first LIDs that have them; of a patched one, some may have no LIDs.
    pub(super) distinct: Vec<Column>,
    /// Which of them each LID has; [`NONE`](Self::NONE) for LIDs that were not asked for.
    pub(super) by_lid: Vec<u16>,
}

impl Columns {
    /// No column: there are fewer unicast LIDs.
    pub(super) const NONE: u16 = u16::MAX;

    /// The column of a LID, if it was asked for.
    pub(super) fn of(&self, lid: Lid) -> Option<&Column> {
        self.distinct.get(usize::from(*self.by_lid.get(lid.index())?))
    }
}

/// Hashes columns by folding words into a product: they are long, many, and not under the control
/// of clients.
#[derive(Clone, Copy, Default)]
pub(super) struct Fold(u64);

/// Makes [`Fold`]s.
pub(super) type BuildFold = BuildHasherDefault<Fold>;

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(word ^ self.0 ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

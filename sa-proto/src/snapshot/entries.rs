//! Entries of a forwarding table with copy-on-write sharing.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// One byte per LID, in whole blocks of [`Lft::BLOCK_LEN`](super::Lft::BLOCK_LEN).
///
/// Clones share their memory until one of them is written to, which then gets its own copy. A
/// routing that keeps most tables of the previous one therefore uses memory only for the
/// differences, and unchanged tables are recognised without comparing entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(Arc<Vec<u8>>);

impl Entries {
    /// Whether both share their memory, and are therefore equal.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sets the entry of a LID. Does not copy if the value is unchanged.
    ///
    /// # Panics
    ///
    /// If the LID is beyond the end.
    #[inline]
    pub fn set(&mut self, lid: usize, port: u8) {
        if self.0[lid] != port {
            self[lid] = port;
        }
    }

    /// Truncates or extends the entries to a length. Does not copy if the length is unchanged.
    pub fn resize(&mut self, len: usize, fill: u8) {
        if self.len() != len {
            Arc::make_mut(&mut self.0).resize(len, fill);
        }
    }
}

impl Deref for Entries {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Copies shared entries.
impl DerefMut for Entries {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0).as_mut_slice()
    }
}

impl From<Vec<u8>> for Entries {
    fn from(entries: Vec<u8>) -> Self {
        Self(Arc::new(entries))
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = &'a u8;
    type IntoIter = std::slice::Iter<'a, u8>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<u8> for Entries {
    fn from_iter<I: IntoIterator<Item = u8>>(entries: I) -> Self {
        Vec::from_iter(entries).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_copied_when_they_change_and_not_before() {
        let old = Entries::from(vec![1; 64]);
        let mut new = old.clone();
        new.set(5, 1);
        assert!(new.is_shared_with(&old), "nothing was changed");
        new.set(5, 2);
        assert!(!new.is_shared_with(&old));
        assert_eq!((old[5], new[5], new[6]), (1, 2, 1));
        let first = new.as_ptr();
        new[6] = 3;
        assert_eq!(new.as_ptr(), first, "what is its own is not copied again");
    }

    #[test]
    fn entries_of_the_same_length_stay_shared() {
        let old = Entries::from(vec![1; 128]);
        let of_len = |len: usize| {
            let mut new = old.clone();
            new.resize(len, 9);
            new
        };
        assert!(of_len(128).is_shared_with(&old));
        assert_eq!(of_len(64)[..], [1; 64]);
        assert_eq!(of_len(192)[..], [vec![1; 128], vec![9; 64]].concat());
    }
}

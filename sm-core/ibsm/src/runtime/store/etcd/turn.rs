//! Which of several members is asked: the next one after one that has no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The member that is asked first. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// Begins with this member.
    #[cfg(any(test, feature = "etcd-model"))]
    pub(super) fn starting_at(member: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(member)))
    }

    /// Counts the members asked so far: the current one is this, modulo their number.
    pub(super) fn current(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Member `at` had no answer: the next one is asked from now on, unless others that waited for
    /// the same one have done so already.
    pub(super) fn pass(&self, at: usize) {
        let _ = self.0.compare_exchange(at, at.wrapping_add(1), Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_for_the_same_member_pass_on_once() {
        let turn = Turn::default();
        let other = turn.clone();
        turn.pass(0);
        other.pass(0);
        assert_eq!(turn.current(), 1);
        other.pass(1);
        assert_eq!(turn.current(), 2);
    }
}

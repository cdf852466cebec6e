//! Spreads times, so that programs that were cut off together do not come back together.

use std::time::Duration;

/// A sequence of times; another seed has another one.
#[derive(Debug)]
pub(crate) struct Spread {
    state: u64,
}

impl Spread {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next time below `most`.
    pub(crate) fn below(&mut self, most: Duration) -> Duration {
        // A linear congruential step: spread is wanted, not randomness.
        let product = self.state.wrapping_mul(0x5851_F42D_4C95_7F2D);
        self.state = product.wrapping_add(0x1405_7B7E_F767_814F);
        let high = (self.state >> 40) as u32;
        most.mul_f64(f64::from(high) / f64::from(1 << 24))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_below_the_limit_and_those_of_two_seeds_differ() {
        const MOST: Duration = Duration::from_secs(8);
        let (mut a, mut b) = (Spread::new(2), Spread::new(4));
        let mut equal = 0;
        let mut of_half = [0; 2];
        for _ in 0..1000 {
            let (a, b) = (a.below(MOST), b.below(MOST));
            assert!(a < MOST && b < MOST);
            equal += usize::from(a == b);
            of_half[usize::from(a >= MOST / 2)] += 1;
        }
        assert!(equal < 10, "{equal}");
        assert!(of_half.iter().all(|count| *count > 300), "{of_half:?}");
    }
}

//! Faults of links: lost packets and delays, the same for the same seed.
//!
//! What else may go wrong, cables pulled and nodes switched off, changes the state of the subnet
//! and is done by the [`Fabric`](crate::Fabric).

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::subnet::PortIndex;

/// A probability, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

/// A number that is not a probability.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is not a probability; it must lie between 0 and 1")]
pub struct NotAProbability(pub f64);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0.0);

    /// Checks that `value` lies between 0 and 1.
    pub fn new(value: f64) -> Result<Self, NotAProbability> {
        if (0.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(NotAProbability(value)) }
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// What every crossing of a link is subject to.
pub(crate) struct Faults {
    rng: SmallRng,
    /// Of links that have no settings of their own.
    everywhere: LinkFaults,
    /// Of single links, by both of their ports.
    by_port: HashMap<PortIndex, LinkFaults>,
}

/// What crossing one link is subject to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LinkFaults {
    pub(crate) loss: Probability,
    pub(crate) delay: Duration,
}

impl LinkFaults {
    const NONE: Self = Self { loss: Probability::NEVER, delay: Duration::ZERO };
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            everywhere: LinkFaults::NONE,
            by_port: HashMap::new(),
        }
    }

    /// Sends one packet out of `port`: how long it takes, `None` if it is lost.
    #[inline]
    pub(crate) fn cross(&mut self, port: PortIndex) -> Option<Duration> {
        if self.by_port.is_empty() && self.everywhere == LinkFaults::NONE {
            return Some(Duration::ZERO);
        }
        let faults = self.by_port.get(&port).copied().unwrap_or(self.everywhere);
        let lost = faults.loss.0 > 0.0 && self.rng.random_bool(faults.loss.0);
        (!lost).then_some(faults.delay)
    }

    /// Changes the settings of all links, those of single links forgotten.
    pub(crate) fn set_everywhere(&mut self, change: impl Fn(&mut LinkFaults)) {
        change(&mut self.everywhere);
        self.by_port.clear();
    }

    /// Changes the settings of the link whose ends are given.
    pub(crate) fn set_link(&mut self, ends: [PortIndex; 2], change: impl Fn(&mut LinkFaults)) {
        for end in ends {
            change(self.by_port.entry(end).or_insert(self.everywhere));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(seed: u64) -> Vec<bool> {
        let mut faults = Faults::new(seed);
        faults.set_everywhere(|link| link.loss = Probability(0.5));
        (0..64).map(|_| faults.cross(PortIndex(1)).is_none()).collect()
    }

    #[test]
    fn equal_seeds_lose_the_same_packets() {
        assert_eq!(losses(7), losses(7));
        assert_ne!(losses(7), losses(8));
    }

    #[test]
    fn a_link_of_its_own_settings_is_not_touched_by_the_others() {
        let mut faults = Faults::new(1);
        faults.set_everywhere(|link| link.delay = Duration::from_micros(3));
        faults.set_link([PortIndex(4), PortIndex(9)], |link| link.loss = Probability(1.0));
        assert_eq!(faults.cross(PortIndex(4)), None);
        assert_eq!(faults.cross(PortIndex(9)), None);
        assert_eq!(faults.cross(PortIndex(5)), Some(Duration::from_micros(3)));
        faults.set_everywhere(|link| link.delay = Duration::ZERO);
        assert_eq!(faults.cross(PortIndex(4)), Some(Duration::ZERO));
    }

    #[test]
    fn only_numbers_from_0_to_1_are_probabilities() {
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Probability::new(value).is_err(), "{value}");
        }
        assert_eq!(Probability::new(1.0).unwrap().get(), 1.0);
    }
}

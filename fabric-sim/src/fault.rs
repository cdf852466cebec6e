//! Link faults: packet loss and delay, reproducible by seed; and agents that refuse requests.
//!
//! Other faults, such as cut cables and nodes powered off, change the state of the subnet and are
//! operations of [`Fabric`](crate::Fabric).

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use ib_mad::wire::mad::{AttributeId, Method, Status};

use crate::subnet::{NodeIndex, PortIndex};

/// Limit of refusal rules; further ones are ignored.
const REFUSALS_MAX: usize = 1024;

/// A rule by which a node's agent answers certain SMPs with an error status and does not process
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The method refused; all if `None`.
    pub method: Option<Method>,
    /// The attribute refused.
    pub attribute: AttributeId,
    /// The low byte of AttributeModifier, which is the port number in most attributes; all if
    /// `None`.
    pub port: Option<u8>,
    /// Status of the response; `None` for no response.
    pub status: Option<Status>,
    /// How many requests the rule applies to.
    pub times: u32,
}

/// A probability, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

/// A number that is not a probability.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is not a probability: expected 0 to 1")]
pub struct NotAProbability(pub f64);

impl Probability {
    /// Never.
    pub const NEVER: Self = Self(0.0);

    /// Checks that `value` lies between 0 and 1.
    pub fn new(value: f64) -> Result<Self, NotAProbability> {
        if (0.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(NotAProbability(value)) }
    }

    /// Parses a share such as `0.01` or `1%`.
    pub fn parse(text: &str) -> Option<Self> {
        let share = match text.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().ok()? / 100.0,
            None => text.parse().ok()?,
        };
        Self::new(share).ok()
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// Loss and delay settings of all links.
pub(crate) struct Faults {
    rng: SmallRng,
    /// Settings of links without their own.
    everywhere: LinkFaults,
    /// Settings of single links, by both of their ports.
    by_port: HashMap<PortIndex, LinkFaults>,
    refusals: Vec<(NodeIndex, Refusal)>,
}

/// Loss and delay of crossing one link.
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
            refusals: Vec::new(),
        }
    }

    /// Adds a rule by which a node's agent refuses requests.
    pub(crate) fn refuse(&mut self, node: NodeIndex, refusal: Refusal) {
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push((node, refusal));
        }
    }

    /// Removes the rules of all nodes.
    pub(crate) fn refuse_nothing(&mut self) {
        self.refusals.clear();
    }

    /// The rule by which a node's agent refuses an SMP, if any; counts it as applied.
    pub(crate) fn refuses(
        &mut self,
        node: NodeIndex,
        (method, attribute, modifier): (Method, AttributeId, u32),
    ) -> Option<Refusal> {
        let applies = |(at, rule): &(NodeIndex, Refusal)| {
            *at == node
                && rule.attribute == attribute
                && rule.method.is_none_or(|wanted| wanted == method)
                && rule.port.is_none_or(|port| u32::from(port) == modifier & 0xFF)
                && !method.is_response()
        };
        let index = self.refusals.iter().position(applies)?;
        let rule = &mut self.refusals[index].1;
        let applied = *rule;
        rule.times = rule.times.saturating_sub(1);
        if rule.times == 0 {
            self.refusals.remove(index);
        }
        Some(applied)
    }

    /// Sends one packet out of `port`: returns the delay, or `None` if the packet is lost.
    #[inline]
    pub(crate) fn cross(&mut self, port: PortIndex) -> Option<Duration> {
        if self.by_port.is_empty() && self.everywhere == LinkFaults::NONE {
            return Some(Duration::ZERO);
        }
        let faults = self.by_port.get(&port).copied().unwrap_or(self.everywhere);
        let lost = faults.loss.0 > 0.0 && self.rng.random_bool(faults.loss.0);
        (!lost).then_some(faults.delay)
    }

    /// Changes the settings of all links; those of single links are discarded.
    pub(crate) fn set_everywhere(&mut self, change: impl Fn(&mut LinkFaults)) {
        change(&mut self.everywhere);
        self.by_port.clear();
    }

    /// Removes the settings of the link between two ports: those of all links apply to it.
    pub(crate) fn forget_link(&mut self, ends: [PortIndex; 2]) {
        for end in ends {
            self.by_port.remove(&end);
        }
    }

    /// Changes the settings of the link between two ports.
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
    fn a_refusal_wears_off() {
        let mut faults = Faults::new(1);
        let (attribute, status) = (AttributeId::PORT_INFO, Some(Status::BUSY));
        let refusal = Refusal { method: None, attribute, port: Some(3), status, times: 2 };
        faults.refuse(NodeIndex(7), refusal);
        let ask = |modifier| (Method::GET, AttributeId::PORT_INFO, modifier);
        assert_eq!(faults.refuses(NodeIndex(6), ask(3)), None);
        assert_eq!(faults.refuses(NodeIndex(7), ask(4)), None);
        assert_eq!(faults.refuses(NodeIndex(7), ask(3)), Some(refusal));
        assert!(faults.refuses(NodeIndex(7), ask(1 << 31 | 3)).is_some());
        assert_eq!(faults.refuses(NodeIndex(7), ask(3)), None);
    }

    #[test]
    fn only_numbers_from_0_to_1_are_probabilities() {
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Probability::new(value).is_err(), "{value}");
        }
        assert_eq!(Probability::new(1.0).unwrap().get(), 1.0);
    }
}

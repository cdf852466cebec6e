//! Random faults at a fixed interval, determined by the fabric's seed: links cut and restored,
//! switches rebooted.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Event, Fabric};
use crate::counters::DropReason;
use crate::subnet::{NodeIndex, PortIndex};

/// Limit of links cut at one time.
const CUT_MAX: usize = 4;
/// One in this many changes reboots a switch.
const REBOOT_EVERY: u32 = 8;
/// Ports tried in search of one with a cable, before a turn is skipped.
const ATTEMPTS_MAX: usize = 64;

/// State of the fault generator.
pub(super) struct Chaos {
    rng: SmallRng,
    /// Time between two changes; `None` if off.
    pace: Option<Duration>,
    /// Incremented when the interval is set: pending events of an earlier setting are void.
    epoch: u32,
    cut: Vec<PortIndex>,
}

impl Chaos {
    pub(super) fn new(seed: u64) -> Self {
        // A different sequence from that of lost packets.
        let rng = SmallRng::seed_from_u64(!seed);
        Self { rng, pace: None, epoch: 0, cut: Vec::new() }
    }
}

impl Fabric {
    /// Causes or repairs one fault every `pace` from now on. `None` stops this and restores all
    /// links that were cut.
    pub fn set_chaos(&mut self, now: Instant, pace: Option<Duration>) {
        self.chaos.pace = pace.filter(|pace| !pace.is_zero());
        self.chaos.epoch = self.chaos.epoch.wrapping_add(1);
        if self.chaos.pace.is_some() {
            return self.schedule_chaos(now);
        }
        for port in std::mem::take(&mut self.chaos.cut) {
            self.plug(now, port, false);
        }
    }

    /// Causes or repairs one fault.
    pub(super) fn stir(&mut self, now: Instant, epoch: u32) {
        if epoch != self.chaos.epoch || self.chaos.pace.is_none() {
            return;
        }
        self.schedule_chaos(now);
        if self.chaos.rng.random_ratio(1, REBOOT_EVERY) {
            return self.reboot_any_switch(now);
        }
        let cut = self.chaos.cut.len();
        let restore = cut == CUT_MAX || cut > 0 && self.chaos.rng.random_bool(0.5);
        if restore {
            let which = self.chaos.rng.random_range(..cut);
            let port = self.chaos.cut.swap_remove(which);
            self.plug(now, port, false);
        } else if let Some(port) = self.any_port(|fabric, port| {
            fabric.subnet.wired_peer(port).is_some()
                // Links of hosts are not cut: no route could avoid them.
                && fabric.subnet.node_of(port).is_switch()
                && fabric.subnet.peer(port).is_some_and(|at| fabric.subnet.node_of(at).is_switch())
        }) {
            self.chaos.cut.push(port);
            self.plug(now, port, true);
        }
    }

    fn reboot_any_switch(&mut self, now: Instant) {
        let port = self.any_port(|fabric, port| fabric.subnet.node_of(port).is_switch());
        if let Some(port) = port {
            let node: NodeIndex = self.subnet[port].node;
            // The only error is a nonexistent node, and this one exists.
            let _ = self.reboot(now, node);
        }
    }

    fn any_port(&mut self, suits: impl Fn(&Self, PortIndex) -> bool) -> Option<PortIndex> {
        let places = self.subnet.port_places();
        for _ in 0..ATTEMPTS_MAX {
            let port = PortIndex(self.chaos.rng.random_range(..places.max(1)));
            if port.0 < places && suits(self, port) {
                return Some(port);
            }
        }
        None
    }

    fn plug(&mut self, now: Instant, port: PortIndex, cut: bool) {
        self.subnet.set_cut(port, cut);
        self.subnet.settle(port);
        self.run_effects(now);
    }

    fn schedule_chaos(&mut self, now: Instant) {
        let Some(pace) = self.chaos.pace else { return };
        let event = Event::Chaos { epoch: self.chaos.epoch };
        if self.agenda.push(now + pace, event).is_err() {
            self.counters.drop(DropReason::InFlightLimit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::generate::{Common, FatTree, Shape, generate};
    use crate::virtual_time::VirtualClock;

    /// Number of cut links after each change.
    fn cuts(seed: u64) -> Vec<usize> {
        let tree = FatTree { levels: 2, radix: 8, hosts: 32, oversubscription: (1, 1) };
        let net = generate(&Shape::FatTree(tree), &Common::default()).unwrap();
        let mut fabric = Fabric::new(&net, Options { seed, ..Options::default() });
        let mut clock = VirtualClock::new();
        fabric.set_chaos(clock.now(), Some(Duration::from_secs(1)));
        let mut deliveries = Vec::new();
        let count = |fabric: &Fabric| {
            (0..fabric.subnet.port_places())
                .filter(|&port| fabric.subnet.is_cut(PortIndex(port)))
                .count()
                / 2
        };
        let mut cuts = Vec::new();
        for _ in 0..100 {
            clock.advance(Duration::from_secs(1));
            fabric.poll(clock.now(), &mut deliveries, 1);
            cuts.push(count(&fabric));
        }
        fabric.set_chaos(clock.now(), None);
        assert_eq!(count(&fabric), 0, "all is mended at the end");
        clock.advance(Duration::from_secs(9));
        fabric.poll(clock.now(), &mut deliveries, 1);
        assert_eq!(count(&fabric), 0);
        cuts
    }

    #[test]
    fn links_break_and_mend_by_the_seed_and_never_too_many() {
        let first = cuts(1);
        assert_eq!(first, cuts(1));
        assert_ne!(first, cuts(2));
        assert!(first.iter().all(|&cut| cut <= CUT_MAX));
        assert!(first.contains(&0) || first.windows(2).any(|pair| pair[0] > pair[1]));
    }
}

//! Keeps previous routes of up*/down* routing.

use super::labels::Labels;
use super::order::Order;
use crate::repair::{Labelled, Repaired, Scope, repair};
use crate::{Previous, Topology};

/// The vertical order of switches, and the paths that it allows.
pub(crate) struct Ranked {
    pub(crate) order: Order,
    pub(crate) labels: Labels,
}

impl Ranked {
    /// Ranks the current topology, and the previous one too if it has the same switches: operators'
    /// options refer to current switch numbers.
    pub(crate) fn both<E: Send>(
        topology: &Topology,
        previous: Option<&Previous<'_>>,
        rank: impl Fn(&Topology) -> Result<Self, E> + Sync,
    ) -> Result<(Self, Option<Self>), E> {
        let is_same = |previous: &&Previous<'_>| {
            previous.topology.switch_count() == topology.switch_count()
                && topology.switches().all(|switch| previous.switch(switch) == Some(switch))
        };
        let before = previous.filter(is_same);
        let then = || before.and_then(|previous| rank(previous.topology).ok());
        let (now, then) = rayon::join(|| rank(topology), then);
        Ok((now?, then))
    }

    /// Keeps the previous routes where possible. `then` is the ranking of the previous topology, if
    /// known.
    pub(crate) fn repair(
        &self,
        topology: &Topology,
        previous: &Previous<'_>,
        then: Option<&Self>,
    ) -> Option<Repaired> {
        let now = Labelled { hops: &self.labels.hops, phases: self.labels.all_phases() };
        let path_rules = |egress_switch| self.labels.path_rules(egress_switch);
        let Some(mut hops_then) = previous.hops.cloned() else {
            return repair(topology, now, previous, now, path_rules, Scope::All);
        };
        hops_then.transpose();
        // Otherwise the previous ranking differs from the one computed now, or links have changed
        // their direction: all routes have to be examined.
        match then.filter(|then| then.labels.hops == hops_then && self.turns_as(then, topology)) {
            Some(then) => {
                let then = Labelled { hops: &hops_then, phases: then.labels.all_phases() };
                repair(topology, now, previous, then, path_rules, Scope::Changed)
            }
            None => repair(
                topology,
                now,
                previous,
                Labelled::by_hops(&hops_then),
                path_rules,
                Scope::All,
            ),
        }
    }

    /// Whether every link still leads in the same direction, up or down. Both rankings number
    /// switches alike.
    fn turns_as(&self, before: &Self, topology: &Topology) -> bool {
        topology.switches().all(|switch| {
            topology.links(switch).iter().all(|link| {
                self.order.is_above(switch, link.peer) == before.order.is_above(switch, link.peer)
            })
        })
    }
}

//! Keeping routes that go up and then down.

use super::super::repair::{Labelled, Repaired, Scope, repair};
use super::super::{Previous, Topology};
use super::labels::Labels;
use super::order::Order;

/// Which switches are above which, and the ways that this allows.
pub(in crate::routing) struct Ranked {
    pub(in crate::routing) order: Order,
    pub(in crate::routing) labels: Labels,
}

impl Ranked {
    /// Ranks a topology now, and beside it the one before if that has the same switches: what
    /// operators say of switches is told by their numbers now.
    pub(in crate::routing) fn both<E: Send>(
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

    /// Routes as before as far as possible. `then` is how the topology before was ranked, if that
    /// is known.
    pub(in crate::routing) fn repair(
        &self,
        topology: &Topology,
        previous: &Previous<'_>,
        then: Option<&Self>,
    ) -> Option<Repaired> {
        let now = Labelled { hops: &self.labels.hops, phases: self.labels.all_phases() };
        let ways = |home| self.labels.ways(home);
        let Some(mut hops_then) = previous.hops.cloned() else {
            return repair(topology, now, previous, now, ways, Scope::All);
        };
        hops_then.transpose();
        // Else it was not ranked then as it would be now, or switches have turned round: all
        // routes have to be looked at.
        match then.filter(|then| then.labels.hops == hops_then && self.turns_as(then, topology)) {
            Some(then) => {
                let then = Labelled { hops: &hops_then, phases: then.labels.all_phases() };
                repair(topology, now, previous, then, ways, Scope::Changed)
            }
            None => {
                repair(topology, now, previous, Labelled::by_hops(&hops_then), ways, Scope::All)
            }
        }
    }

    /// Whether all links lead up that led up before, and down that led down. Both number switches
    /// alike.
    fn turns_as(&self, before: &Self, topology: &Topology) -> bool {
        topology.switches().all(|switch| {
            topology.links(switch).iter().all(|link| {
                self.order.is_above(switch, link.peer) == before.order.is_above(switch, link.peer)
            })
        })
    }
}

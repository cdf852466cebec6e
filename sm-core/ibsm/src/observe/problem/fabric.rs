//! Problems of the published fabric: links below what their ends support or not Active, and nodes
//! and links that are missing, or lead elsewhere.
//!
//! What is missing was there since this manager started: a node or link that went is reported for a
//! day, unless its place is taken. With a history, what the manager knew before its restart counts,
//! too, until it is back or there is a baseline.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::{FabricPlane, Node, find};

use super::swaps::{UsualLinks, swaps};
use super::{Condition, Kind, Subject};
use crate::observe::links::{End as LinkEnd, shortfall};
use crate::observe::node_name;
use crate::observe::topology::{Difference, End, Missing, Topology, have_same_links};

/// How long a node or link that went is reported as missing.
const MISSED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Watches one published fabric after the other.
#[derive(Debug, Default)]
pub(in crate::observe) struct FabricWatch {
    plane: Option<Arc<FabricPlane>>,
    /// Links of that plane.
    of_links: Vec<Condition>,
    /// All that is there or missed.
    known: Topology,
    lost_nodes: BTreeMap<Guid, Instant>,
    lost_links: BTreeMap<End, Instant>,
    /// Where links led before, if nothing is expected.
    usual: UsualLinks,
    swapped: Vec<Condition>,
    /// The fabric before the restart, for the first one that is published, and when that was read.
    remembered: Option<(Topology, Instant)>,
    /// What was missing of that, and still is.
    earlier_nodes: BTreeSet<Guid>,
    earlier_links: BTreeSet<End>,
    /// What the operator expects, if that is known.
    expected: Option<Arc<Topology>>,
    /// What is missing of what is expected, or known.
    missing: Arc<Missing>,
}

impl FabricWatch {
    /// Reports how the fabric differs from this one, in place of what went. With `None`, what goes
    /// from now on is reported.
    pub(in crate::observe) fn expect(&mut self, expected: Option<Arc<Topology>>) {
        *self = Self { expected, ..Self::default() };
    }

    /// Reports what is missing of the fabric as it was before a restart, once one is published,
    /// within a day; not if there is a baseline.
    pub(in crate::observe) fn remember(&mut self, now: Instant, before: Topology) {
        self.remembered = Some((before, now));
    }

    /// Compares a published fabric with what is expected, or with the one before.
    pub(in crate::observe) fn follow(&mut self, now: Instant, plane: &Arc<FabricPlane>) {
        if self.plane.as_ref().is_some_and(|known| Arc::ptr_eq(known, plane)) {
            return;
        }
        // The fabric before a restart is compared with all of the first one.
        if self.remembered.is_none()
            && self.plane.as_ref().is_some_and(|known| have_same_links(known, plane))
        {
            self.plane = Some(Arc::clone(plane));
            return;
        }
        self.of_links = of_links(plane);
        let current = Topology::of(plane);
        let missing = match &self.expected {
            Some(expected) => {
                add_unlike(&mut self.of_links, expected, &current);
                Missing::of(expected, &current)
            }
            None => {
                self.learn_again(now, current.clone());
                self.find_swaps(now, &current);
                Missing::of(&self.known, &current)
            }
        };
        self.missing = Arc::new(missing);
        self.plane = Some(Arc::clone(plane));
    }

    /// The conditions of the published fabric.
    pub(in crate::observe) fn conditions(
        &mut self,
        now: Instant,
        plane: &Arc<FabricPlane>,
    ) -> Vec<Condition> {
        self.follow(now, plane);
        if self.forget(now) {
            self.missing = Arc::new(Missing::of(&self.known, &Topology::of(plane)));
        }
        if self.usual.are_due(now, MISSED_FOR) {
            self.find_swaps(now, &Topology::of(plane));
        }
        let missing_nodes = self.lost_nodes.keys().filter_map(|&guid| {
            let node = self.known.nodes.get(&guid)?;
            let kind = if node.is_switch { Kind::SwitchMissing } else { Kind::HostMissing };
            let what = if node.is_switch { "switch" } else { "host" };
            let detail = format!("the {what} was there and is missing");
            let subject = Subject::node(self.known.name(guid), guid);
            Some(missing(kind, subject, detail, self.earlier_nodes.contains(&guid)))
        });
        let missing_links = self.lost_links.keys().filter_map(|&end| {
            let far = self.known.links.get(&end)?.far;
            let subject = Subject::port(self.known.name(end.0), end.0, end.1);
            let detail = format!("the link to {} is missing", self.known.describe(far));
            let is_earlier = self.earlier_links.contains(&end);
            Some(missing(Kind::LinkMissing, subject, detail, is_earlier))
        });
        let all: Vec<_> = missing_nodes.chain(missing_links).collect();
        self.of_links.iter().chain(&self.swapped).cloned().chain(all).collect()
    }

    fn find_swaps(&mut self, now: Instant, current: &Topology) {
        self.usual.follow(now, current, MISSED_FOR);
        self.swapped = self.usual.conditions(current);
    }

    /// What is missing of the fabric of the last call of [`conditions`](Self::conditions).
    pub(in crate::observe) fn missing(&self) -> Arc<Missing> {
        self.missing.clone()
    }

    /// Compares a new fabric with what is known. The first one is compared with that before the
    /// restart.
    fn learn_again(&mut self, now: Instant, new: Topology) {
        let is_first = !new.nodes.is_empty();
        let is_recent = |(_, read): &(Topology, Instant)| *read + MISSED_FOR > now;
        let before = self.remembered.take_if(|_| is_first).filter(is_recent);
        let is_restart = before.is_some();
        if let Some((before, _)) = before {
            self.usual = UsualLinks::of(&before);
            self.known = before;
        }
        self.learn(now, new);
        if is_restart {
            self.earlier_nodes = self.lost_nodes.keys().copied().collect();
            self.earlier_links = self.lost_links.keys().copied().collect();
        }
        self.earlier_nodes.retain(|guid| self.lost_nodes.contains_key(guid));
        self.earlier_links.retain(|end| self.lost_links.contains_key(end));
    }

    /// Compares a new fabric with what is known, and adds it to that.
    fn learn(&mut self, now: Instant, new: Topology) {
        let old = std::mem::take(&mut self.known);
        let difference = Difference::between(&old, &new);
        let taken = new.peers();
        let replaced = replaced(&old, &difference.missing_nodes, &taken);
        let missing = difference.missing_nodes.iter().copied();
        let lost: HashSet<Guid> = missing.filter(|guid| !replaced.contains(guid)).collect();
        let lost_links: HashSet<End> = difference.missing_links.iter().copied().collect();
        let since = |before: Option<&Instant>| before.copied().unwrap_or(now);
        self.lost_nodes =
            lost.iter().map(|&guid| (guid, since(self.lost_nodes.get(&guid)))).collect();
        self.lost_links =
            lost_links.iter().map(|&end| (end, since(self.lost_links.get(&end)))).collect();
        self.known = new;
        for (guid, node) in old.nodes {
            if lost.contains(&guid) {
                self.known.nodes.insert(guid, node);
            }
        }
        // Links of lost nodes are missed when the node is back.
        for (near, link) in old.links {
            let is_lost = |end: End| lost.contains(&end.0);
            let is_missed = is_lost(near) || is_lost(link.far) || lost_links.contains(&near);
            if is_missed && !taken.contains_key(&near) && !taken.contains_key(&link.far) {
                self.known.links.insert(near, link);
            }
        }
    }

    /// Forgets what has been missed for too long; returns whether there was any.
    fn forget(&mut self, now: Instant) -> bool {
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= MISSED_FOR;
        let nodes: BTreeSet<Guid> =
            self.lost_nodes.iter().filter(|(_, since)| is_old(since)).map(|(&g, _)| g).collect();
        let nodes: BTreeSet<Guid> = nodes.difference(&self.earlier_nodes).copied().collect();
        let links: BTreeSet<End> =
            self.lost_links.iter().filter(|(_, since)| is_old(since)).map(|(&e, _)| e).collect();
        let links: BTreeSet<End> = links.difference(&self.earlier_links).copied().collect();
        if nodes.is_empty() && links.is_empty() {
            return false;
        }
        self.lost_nodes.retain(|guid, _| !nodes.contains(guid));
        self.lost_links.retain(|end, _| !links.contains(end));
        self.known.nodes.retain(|guid, _| !nodes.contains(guid));
        self.known.links.retain(|near, link| {
            !links.contains(near) && !nodes.contains(&near.0) && !nodes.contains(&link.far.0)
        });
        true
    }
}

/// Adds how a fabric differs from what is expected. A link that is slower than its ends support is
/// one problem, also if it was not before.
fn add_unlike(of_links: &mut Vec<Condition>, expected: &Topology, current: &Topology) {
    let end = |condition: &Condition| condition.subject.guid.zip(condition.subject.port);
    let degraded = of_links.iter().enumerate();
    let degraded = degraded.filter(|(_, known)| known.kind == Kind::LinkDegraded);
    let degraded: HashMap<End, usize> =
        degraded.filter_map(|(at, known)| Some((end(known)?, at))).collect();
    for unlike in unlike(expected, current) {
        let known = end(&unlike).and_then(|end| degraded.get(&end));
        match known.filter(|_| unlike.kind == Kind::LinkChanged) {
            Some(&at) => of_links[at].detail += "; the baseline has another rate",
            None => of_links.push(unlike),
        }
    }
}

/// What is missing; `is_earlier`: since before a restart, so that only a baseline removes it.
fn missing(kind: Kind, subject: Subject, detail: String, is_earlier: bool) -> Condition {
    match is_earlier {
        true => Condition::new(kind, subject, format!("{detail}, since before the restart"))
            .with_remedy("repair it; if it is gone for good: ibsmctl baseline take"),
        false => Condition::new(kind, subject, detail),
    }
}

/// How a fabric differs from what is expected.
fn unlike(expected: &Topology, current: &Topology) -> Vec<Condition> {
    let difference = Difference::between(expected, current);
    let port = |of: &Topology, end: End| Subject::port(of.name(end.0), end.0, end.1);
    let missing = difference.missing_nodes.iter().map(|guid| {
        let is_switch = expected.nodes[guid].is_switch;
        let kind = if is_switch { Kind::SwitchMissing } else { Kind::HostMissing };
        let detail = format!("the {} is missing", if is_switch { "switch" } else { "host" });
        Condition::new(kind, Subject::node(expected.name(*guid), *guid), detail)
            .with_remedy(kind.remedy_by_expectation())
    });
    let extra = difference.extra_nodes.iter().map(|guid| {
        let subject = Subject::node(current.name(*guid), *guid);
        Condition::new(Kind::NodeUnexpected, subject, "the node is not expected")
    });
    let missing_links = difference.missing_links.iter().map(|end| {
        let far = expected.describe(expected.links[end].far);
        let detail = format!("the link to {far} is missing");
        Condition::new(Kind::LinkMissing, port(expected, *end), detail)
            .with_remedy(Kind::LinkMissing.remedy_by_expectation())
    });
    let extra_links = difference.extra_links.iter().map(|end| {
        let far = current.describe(current.links[end].far);
        let detail = format!("the link to {far} is not expected");
        Condition::new(Kind::LinkUnexpected, port(current, *end), detail)
    });
    let swaps = swaps(&difference.moved);
    let of_swaps: HashSet<End> =
        swaps.iter().flat_map(|swap| [swap.ends, swap.expected].concat()).collect();
    let alone = difference.moved.iter().filter(|moved| !of_swaps.contains(&moved.end));
    let moved = alone.map(|moved| {
        let (is, was) = (current.describe(moved.is), expected.describe(moved.was));
        let detail = format!("the cable leads to {is}; expected is {was}");
        Condition::new(Kind::CableMoved, port(current, moved.end), detail)
    });
    let swapped = swaps.iter().map(|swap| swap.condition(current, "expected are"));
    let changed = difference.changed.iter().map(|end| {
        let (is, was) = (&current.links[end].rate, &expected.links[end].rate);
        let far = current.describe(current.links[end].far);
        let detail = format!("the link to {far} runs at {is}; expected is {was}");
        Condition::new(Kind::LinkChanged, port(current, *end), detail)
    });
    missing
        .chain(extra)
        .chain(missing_links)
        .chain(extra_links)
        .chain(moved)
        .chain(swapped)
        .chain(changed)
        .collect()
}

/// Nodes among `missing` whose places others have: all far ends of their links have links again.
fn replaced(old: &Topology, missing: &[Guid], taken: &BTreeMap<End, End>) -> HashSet<Guid> {
    // By node, whether all of its far ends are taken.
    let mut are_taken: HashMap<Guid, Option<bool>> =
        missing.iter().map(|&guid| (guid, None)).collect();
    for (&near, link) in &old.links {
        for (end, far) in [(near, link.far), (link.far, near)] {
            if let Some(all) = are_taken.get_mut(&end.0) {
                *all = Some(all.unwrap_or(true) && taken.contains_key(&far));
            }
        }
    }
    are_taken.into_iter().filter(|(_, all)| *all == Some(true)).map(|(guid, _)| guid).collect()
}

/// Links that are slower or narrower than both ends support, or not Active, from their lower end.
fn of_links(plane: &FabricPlane) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for node in &plane.nodes {
        for port in &node.ports {
            let Some((guid, num)) = port.peer else { continue };
            if (node.guid, port.num) > (guid, num) {
                continue;
            }
            let Some(other) = find(&plane.nodes, guid) else { continue };
            let Some(far_port) = other.port(num) else { continue };
            let ends = LinkEnd::new(node, port).zip(LinkEnd::new(other, far_port));
            let Some((near, far)) = ends else { continue };
            let subject = || Subject::port(node_name(node), node.guid, port.num);
            let to = |other: &Node| format!("'{}' port {num}", node_name(other));
            if let Some(possible) = shortfall(&near, &far) {
                let detail = format!(
                    "the link to {} runs at {}; its ends support {possible}",
                    to(other),
                    near.active()
                );
                conditions.push(Condition::new(Kind::LinkDegraded, subject(), detail));
            }
            if !near.is_active() || !far.is_active() {
                let detail = format!(
                    "the link to {} is not Active: {} here, {} there",
                    to(other),
                    near.state(),
                    far.state()
                );
                conditions.push(Condition::new(Kind::LinkInactive, subject(), detail));
            }
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use ib_mad::types::PKey;

    use super::*;
    use crate::observe::event::FabricChanges;
    use crate::observe::problem::testing::plane;

    const SECOND: Duration = Duration::from_secs(1);

    const ALL: [(u64, u8, u64, u8); 4] =
        [(1, 1, 2, 1), (1, 2, 3, 1), (1, 9, 100, 1), (2, 9, 101, 1)];

    fn ids(conditions: &[Condition]) -> Vec<String> {
        conditions.iter().map(|one| format!("{} {}", one.kind.label(), one.subject)).collect()
    }

    #[test]
    fn a_link_at_one_lane_is_degraded_and_one_in_init_is_not_active() {
        let mut watch = FabricWatch::default();
        let conditions = watch.conditions(Instant::now(), &plane(&ALL, 1, 1));
        let here = "'n1' 0x0000000000000001 port 1";
        let expected = [format!("link_degraded {here}"), format!("link_inactive {here}")];
        assert_eq!(ids(&conditions), expected);
        let detail = &conditions[0].detail;
        assert!(detail.contains("to 'n2' port 1 runs at 1x QDR"), "{detail}");
        assert!(detail.contains("support 4x QDR"), "{detail}");
        assert!(watch.conditions(Instant::now(), &plane(&ALL, 0, 0)).is_empty());
    }

    #[test]
    fn what_differs_from_the_expected_topology_is_a_problem_for_as_long_as_it_does() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        watch.expect(Some(Arc::new(Topology::of(&plane(&ALL, 0, 0)))));
        assert!(watch.conditions(now, &plane(&ALL, 0, 0)).is_empty());
        let other = plane(&[(1, 1, 3, 1), ALL[2], (2, 9, 102, 1)], 1, 0);
        let found = watch.conditions(now + 2 * MISSED_FOR, &other);
        // Regression: operators were to wait a day until it is forgotten, which it never is.
        assert!(found.iter().all(|one| !one.remedy.contains("day")), "{found:?}");
        let found = ids(&found);
        for id in [
            "host_missing 'n101' 0x0000000000000065",
            "node_unexpected 'n102' 0x0000000000000066",
            "cable_moved 'n1' 0x0000000000000001 port 1",
            "cable_moved 'n3' 0x0000000000000003 port 1",
        ] {
            assert!(found.iter().any(|one| one == id), "{id}\n{found:?}");
        }
        // Regression: a slow link was two problems, link_degraded and link_changed.
        let slow = watch.conditions(now, &plane(&ALL, 1, 0));
        assert_eq!(ids(&slow), ["link_degraded 'n1' 0x0000000000000001 port 1"]);
        assert!(slow[0].detail.ends_with("; the baseline has another rate"), "{slow:?}");
    }

    /// Publications that change P_Keys are many where programs make partitions.
    #[test]
    fn a_fabric_with_other_p_keys_alone_is_not_compared_again() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        let first = plane(&ALL, 1, 0);
        let found = ids(&watch.conditions(now, &first));
        let missing = watch.missing();
        let mut other = FabricPlane::clone(&first);
        for node in &mut other.nodes {
            let ports = &mut Arc::make_mut(node).ports;
            ports.iter_mut().for_each(|port| port.pkeys = [PKey(0x8005)].into());
        }
        let other = Arc::new(other);
        assert_eq!(ids(&watch.conditions(now, &other)), found);
        assert!(Arc::ptr_eq(&watch.missing(), &missing));
        assert!(FabricChanges::between(&first, &other).is_empty());
        // Compared with that, a link that is well is news.
        assert!(watch.conditions(now, &plane(&ALL, 0, 0)).is_empty());
        let gone = watch.conditions(now, &plane(&ALL[1..], 0, 0));
        assert_eq!(ids(&gone), ["link_missing 'n1' 0x0000000000000001 port 1"]);
    }

    /// Regression: two swapped cables were four problems.
    #[test]
    fn two_swapped_cables_are_one_problem() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        watch.expect(Some(Arc::new(Topology::of(&plane(&ALL, 0, 0)))));
        let swapped = [ALL[0], ALL[1], (1, 9, 101, 1), (2, 9, 100, 1)];
        let found = watch.conditions(now, &plane(&swapped, 0, 0));
        assert_eq!(ids(&found), ["cable_moved 'n1' 0x0000000000000001 port 9"]);
        assert_eq!(
            found[0].detail,
            "two cables are swapped: expected are 'n1' port 9 to 'n100' port 1, and 'n2' port 9 to \
             'n101' port 1; it is the other way round"
        );
    }

    #[test]
    fn without_a_baseline_cables_are_swapped_for_a_day_or_until_one_is_taken() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        let swapped = plane(&[ALL[0], ALL[1], (1, 9, 101, 1), (2, 9, 100, 1)], 0, 0);
        watch.remember(now, Topology::of(&plane(&ALL, 0, 0)));
        let kinds = |found: Vec<Condition>| found.iter().map(|one| one.kind).collect::<Vec<_>>();
        for later in [SECOND, MISSED_FOR / 2] {
            assert_eq!(kinds(watch.conditions(now + later, &swapped)), [Kind::CableMoved]);
        }
        assert_eq!(kinds(watch.conditions(now + SECOND + MISSED_FOR, &swapped)), []);
        watch.conditions(now, &plane(&ALL, 0, 0));
        watch.expect(Some(Arc::new(Topology::of(&swapped))));
        assert_eq!(kinds(watch.conditions(now, &swapped)), []);
    }

    #[test]
    fn a_baseline_replaces_what_was_missing_and_without_one_it_begins_again() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        watch.conditions(now, &plane(&ALL, 0, 0));
        let without = plane(&ALL[..3], 0, 0);
        assert_eq!(watch.conditions(now, &without).len(), 1);
        // The operator accepts the fabric as it is.
        watch.expect(Some(Arc::new(Topology::of(&without))));
        assert!(watch.conditions(now, &without).is_empty());
        let back = ids(&watch.conditions(now, &plane(&ALL, 0, 0)));
        assert_eq!(back, ["node_unexpected 'n101' 0x0000000000000065"]);
        watch.expect(None);
        assert!(watch.conditions(now, &plane(&ALL, 0, 0)).is_empty());
        assert_eq!(watch.conditions(now, &without).len(), 1);
    }

    #[test]
    fn what_went_is_missing_until_it_is_back() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        assert!(watch.conditions(now, &plane(&ALL, 0, 0)).is_empty());
        let without_spine = plane(&[ALL[0], ALL[2], ALL[3]], 0, 0);
        let gone = ["switch_missing 'n3' 0x0000000000000003"];
        assert_eq!(ids(&watch.conditions(now, &without_spine)), gone, "without its links");
        // Its node is back, and one of its links is not.
        let mut links = ALL;
        links[1] = (2, 2, 3, 9);
        let partly = watch.conditions(now, &plane(&links, 0, 0));
        assert_eq!(ids(&partly), ["link_missing 'n1' 0x0000000000000001 port 2"]);
        let mut all = ALL.to_vec();
        all.push((2, 2, 3, 9));
        assert!(watch.conditions(now, &plane(&all, 0, 0)).is_empty());
        let without_host = plane(&all[..3], 0, 0);
        let host = watch.conditions(now, &without_host);
        let expected = ["host_missing 'n101' 0x0000000000000065", "switch_missing"];
        assert_eq!(ids(&host)[0], expected[0]);
    }

    /// Regression: a restart without a baseline forgot what was missing.
    #[test]
    fn what_was_missing_before_a_restart_is_missing_until_it_is_back() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        watch.remember(now, Topology::of(&plane(&ALL, 0, 0)));
        assert!(watch.conditions(now, &plane(&[], 0, 0)).is_empty(), "nothing is published");
        let without = plane(&ALL[..3], 0, 0);
        for later in [now, now + 2 * MISSED_FOR] {
            let found = watch.conditions(later, &without);
            assert_eq!(ids(&found), ["host_missing 'n101' 0x0000000000000065"]);
            assert!(found[0].detail.ends_with("since before the restart"), "{found:?}");
        }
        assert!(watch.missing().topology.nodes.contains_key(&Guid(101)));
        assert!(watch.conditions(now, &plane(&ALL, 0, 0)).is_empty());
        let found = watch.conditions(now, &without);
        assert!(found[0].detail.ends_with("is missing"), "that was since: {found:?}");
    }

    #[test]
    fn a_baseline_or_a_day_replaces_what_is_remembered() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        let (all, without) = (plane(&ALL, 0, 0), plane(&ALL[..3], 0, 0));
        watch.remember(now, Topology::of(&all));
        watch.expect(Some(Arc::new(Topology::of(&without))));
        assert!(watch.conditions(now, &without).is_empty());
        let mut watch = FabricWatch::default();
        watch.remember(now, Topology::of(&all));
        assert!(watch.conditions(now + MISSED_FOR, &without).is_empty());
    }

    #[test]
    fn what_is_missing_is_forgotten_after_a_day_or_once_its_place_is_taken() {
        let (mut watch, now) = (FabricWatch::default(), Instant::now());
        watch.conditions(now, &plane(&ALL, 0, 0));
        let without = plane(&ALL[..3], 0, 0);
        assert_eq!(watch.conditions(now, &without).len(), 1);
        assert_eq!(watch.conditions(now + MISSED_FOR - SECOND, &without).len(), 1);
        let missing = watch.missing();
        assert!(missing.topology.nodes.contains_key(&Guid(101)) && !missing.tag.is_empty());
        assert!(watch.conditions(now + MISSED_FOR, &without).is_empty());
        assert_eq!(*watch.missing(), Missing::default());
        watch.conditions(now, &plane(&ALL, 0, 0));
        let mut replaced = ALL;
        replaced[3].2 = 102;
        assert!(watch.conditions(now, &plane(&replaced, 0, 0)).is_empty());
    }
}

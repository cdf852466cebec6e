//! What belongs to the fabric, where what does not is kept out (`--quarantine`): the nodes and
//! links of a baseline, and the links that the last discovery kept out.
//!
//! When a link is kept out is decided in `sweep::stages::discover::quarantine`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, PortNum};
use ib_mad::wire::attribute::NodeType;

/// One end of a link: GUID of the node and number of the port.
pub type End = (Guid, PortNum);

/// Limit of links that are kept out and listed; further ones are counted only.
const LISTED_MAX: usize = 4096;

/// The nodes and links that belong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// By GUID: whether it is a switch.
    nodes: HashMap<Guid, bool, RandomState>,
    /// Those of them that have links.
    linked: HashSet<Guid, RandomState>,
    /// The far end of each end of a link.
    peers: HashMap<End, End, RandomState>,
}

impl Expected {
    /// These nodes, by GUID and whether they are switches, and links by their ends.
    pub fn new(
        nodes: impl IntoIterator<Item = (Guid, bool)>,
        links: impl IntoIterator<Item = (End, End)>,
    ) -> Self {
        let links = links.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]);
        let peers: HashMap<End, End, RandomState> = links.collect();
        let linked = peers.keys().map(|(guid, _)| *guid).collect();
        Self { nodes: nodes.into_iter().collect(), linked, peers }
    }

    /// Whether a port of an adapter belongs: its node does, and had a link at this port, or at
    /// none.
    pub fn has_adapter_port(&self, (guid, port): End) -> bool {
        self.has_node(guid, false)
            && (self.peers.contains_key(&(guid, port)) || !self.linked.contains(&guid))
    }

    /// Whether a node of this kind belongs.
    pub fn has_node(&self, guid: Guid, is_switch: bool) -> bool {
        self.nodes.get(&guid) == Some(&is_switch)
    }

    /// Whether a link belongs.
    pub fn has_link(&self, near: End, far: End) -> bool {
        self.peers.get(&near) == Some(&far)
    }
}

/// A link that is kept out, by the port of a switch that leads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptOut {
    /// The port that it leads to.
    pub far: End,
    /// Kind of the node there.
    pub kind: NodeType,
    /// Whether that node does not belong; otherwise only the link does not.
    pub is_node: bool,
}

/// What is to be kept out, and what was.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    expected: Option<Arc<Expected>>,
    /// Whether the switch at the SM's port does not belong: the baseline is of another fabric.
    is_foreign: bool,
    /// What discoveries kept out, by the port that leads there.
    kept_out: BTreeMap<End, KeptOut>,
    /// Links that were kept out and are not listed.
    unlisted: u64,
}

impl Quarantine {
    /// Sets what belongs; returns whether that is new. `None`: everything does.
    pub(crate) fn set_expected(&mut self, expected: Option<Arc<Expected>>) -> bool {
        let is_new = self.expected != expected;
        (self.expected, self.is_foreign) = (expected, false);
        is_new
    }

    /// What belongs, if that is known and not of another fabric.
    pub(crate) fn in_force(&self) -> Option<Arc<Expected>> {
        self.expected.clone().filter(|_| !self.is_foreign)
    }

    /// Takes note of the switch at the SM's port; returns whether it newly shows that the baseline
    /// is of another fabric.
    pub(crate) fn note_own_switch(&mut self, guid: Guid) -> bool {
        let is_foreign = self.expected.as_ref().is_some_and(|all| !all.has_node(guid, true));
        is_foreign && !std::mem::replace(&mut self.is_foreign, is_foreign) || {
            self.is_foreign = is_foreign;
            false
        }
    }

    /// Whether the baseline is of another fabric, so that nothing is kept out.
    pub(crate) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Lists a link; returns whether that is new.
    pub(crate) fn list(&mut self, near: End, link: KeptOut) -> bool {
        if self.kept_out.len() >= LISTED_MAX && !self.kept_out.contains_key(&near) {
            self.unlisted += 1;
            return false;
        }
        self.kept_out.insert(near, link) != Some(link)
    }

    /// Removes those that are not left out any more.
    pub(crate) fn retain(&mut self, is_left_out: impl Fn(End) -> bool) {
        self.kept_out.retain(|&near, _| is_left_out(near));
    }

    /// The links that are kept out, by the port that leads there.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (End, KeptOut)> + '_ {
        self.kept_out.iter().map(|(&near, &link)| (near, link))
    }

    /// How often a link was kept out and not listed.
    pub(crate) fn unlisted(&self) -> u64 {
        self.unlisted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(guid: u64, port: u8) -> End {
        (Guid(guid), PortNum(port))
    }

    #[test]
    fn a_link_belongs_from_either_end_and_to_no_other_port() {
        let nodes = [(Guid(1), true), (Guid(2), false)];
        let expected = Expected::new(nodes, [(end(1, 1), end(2, 1))]);
        assert!(expected.has_node(Guid(2), false) && !expected.has_node(Guid(3), false));
        assert!(!expected.has_node(Guid(2), true), "it was an adapter");
        assert!(!expected.has_adapter_port(end(1, 1)), "it was a switch");
        assert!(expected.has_adapter_port(end(2, 1)) && !expected.has_adapter_port(end(2, 2)));
        assert!(!expected.has_adapter_port(end(3, 1)));
        let unlinked = Expected::new([(Guid(3), false)], []);
        assert!(unlinked.has_adapter_port(end(3, 2)), "which port had a link is not known");
        assert!(expected.has_link(end(1, 1), end(2, 1)));
        assert!(expected.has_link(end(2, 1), end(1, 1)));
        assert!(!expected.has_link(end(1, 1), end(2, 2)));
        assert!(!expected.has_link(end(1, 2), end(2, 1)));
    }

    #[test]
    fn a_baseline_without_the_switch_of_the_sm_is_not_in_force() {
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.note_own_switch(Guid(7)) && quarantine.in_force().is_none());
        let expected = Arc::new(Expected::new([(Guid(1), true)], []));
        assert!(quarantine.set_expected(Some(expected.clone())));
        assert!(!quarantine.set_expected(Some(expected.clone())));
        assert!(quarantine.note_own_switch(Guid(7)), "it is reported once");
        assert!(!quarantine.note_own_switch(Guid(7)) && quarantine.in_force().is_none());
        assert!(!quarantine.note_own_switch(Guid(1)) && quarantine.in_force() == Some(expected));
    }

    #[test]
    fn links_beyond_the_limit_are_counted() {
        let mut quarantine = Quarantine::default();
        let link = KeptOut { far: end(9, 1), kind: NodeType::Ca, is_node: true };
        let near = |at: usize| end(at as u64 + 1, 1);
        assert!((0..LISTED_MAX).all(|at| quarantine.list(near(at), link)));
        assert!(!quarantine.list(near(0), link) && !quarantine.list(near(LISTED_MAX), link));
        assert_eq!((quarantine.listed().count(), quarantine.unlisted()), (LISTED_MAX, 1));
        quarantine.retain(|(guid, _)| guid == Guid(3));
        assert_eq!(quarantine.listed().next(), Some((near(2), link)));
    }
}

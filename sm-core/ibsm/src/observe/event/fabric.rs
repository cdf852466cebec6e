//! Nodes and links that came and went, as events with names.

use std::sync::Arc;

use sa_proto::snapshot::{FabricPlane, Node};

use super::{Draft, EventKind};
use crate::observe::problem::Subject;
use crate::observe::topology::{Difference, End, Topology, is_alike};

/// Largest number of changes of one sweep that are listed; further ones are only counted.
pub const CHANGES_MAX: usize = 64;

/// How a fabric differs from the one published before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricChanges {
    /// The first changes: switches, then other nodes, then links.
    pub listed: Vec<Draft>,
    /// Number of further changes.
    pub unlisted: usize,
}

impl FabricChanges {
    /// How `new` differs from `old`. Links of nodes whose rows are alike are not compared.
    pub fn between(old: &FabricPlane, new: &FabricPlane) -> Self {
        let (before, after) = differing(&old.nodes, &new.nodes);
        if before.is_empty() && after.is_empty() {
            return Self::default();
        }
        Self::of(&Topology::of_nodes(old, before), &Topology::of_nodes(new, after))
    }

    /// How one topology differs from another.
    pub fn of(old: &Topology, new: &Topology) -> Self {
        let difference = Difference::between(old, new);
        let mut all = Changes::default();
        for is_switch in [true, false] {
            let kind = if is_switch { "switch" } else { "host" };
            for (topology, guids, event, word) in [
                (old, &difference.missing_nodes, EventKind::NodeWent, "gone"),
                (new, &difference.extra_nodes, EventKind::NodeCame, "found"),
            ] {
                let these = guids.iter().filter(|guid| topology.nodes[guid].is_switch == is_switch);
                for &guid in these {
                    let name = topology.name(guid);
                    all.push(|| {
                        let text = format!("{kind} '{name}' {guid} is {word}");
                        Draft::new(event, text).about(Subject::node(&name[..], guid))
                    });
                }
            }
        }
        for (&guid, node) in &new.nodes {
            let was = old.nodes.get(&guid).filter(|was| was.name != node.name);
            if let Some(was) = was {
                all.push(|| {
                    let text = format!("{guid} is '{}', and was '{}'", node.name, was.name);
                    let subject = Subject::node(&node.name[..], guid);
                    Draft::new(EventKind::NodeRenamed, text).about(subject)
                });
            }
        }
        all.link(&difference, old, new);
        all.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The changes in words, the first of them.
    pub fn lines(&self) -> Vec<String> {
        self.listed.iter().map(|draft| draft.text.clone()).collect()
    }
}

/// Collects changes up to the limit.
#[derive(Default)]
struct Changes(FabricChanges);

impl Changes {
    fn push(&mut self, draft: impl FnOnce() -> Draft) {
        match self.0.listed.len() < CHANGES_MAX {
            true => self.0.listed.push(draft()),
            false => self.0.unlisted += 1,
        }
    }

    fn link(&mut self, difference: &Difference, old: &Topology, new: &Topology) {
        let at =
            |topology: &Topology, (guid, port): End| Subject::port(topology.name(guid), guid, port);
        let words = |topology: &Topology, near: End| {
            let far = topology.links[&near].far;
            format!("{} - {}", topology.describe(near), topology.describe(far))
        };
        for &near in &difference.missing_links {
            self.push(|| {
                let text = format!("link {} is down", words(old, near));
                Draft::new(EventKind::LinkWent, text).about(at(old, near))
            });
        }
        for &near in &difference.extra_links {
            self.push(|| {
                let rate = &new.links[&near].rate;
                let text = format!("link {} is up at {rate}", words(new, near));
                Draft::new(EventKind::LinkCame, text).about(at(new, near))
            });
        }
        for moved in &difference.moved {
            self.push(|| {
                let (is, was) = (new.describe(moved.is), old.describe(moved.was));
                let text =
                    format!("cable at {} leads to {is}, not to {was}", new.describe(moved.end));
                Draft::new(EventKind::LinkChanged, text).about(at(new, moved.end))
            });
        }
        for &near in &difference.changed {
            self.push(|| {
                let (was, is) = (&old.links[&near].rate, &new.links[&near].rate);
                let text = format!("link {} runs at {is}, not {was}", words(new, near));
                Draft::new(EventKind::LinkChanged, text).about(at(new, near))
            });
        }
    }
}

/// Nodes that are not the same in both lists, which are ascending by GUID.
fn differing<'a>(old: &'a [Arc<Node>], new: &'a [Arc<Node>]) -> (Vec<&'a Node>, Vec<&'a Node>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let (mut olds, mut news) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (olds.peek(), news.peek()) {
            (None, None) => return (before, after),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(a), Some(b)) => a.guid.cmp(&b.guid),
        };
        let a = olds.next_if(|_| order.is_le());
        let b = news.next_if(|_| order.is_ge());
        if let (Some(a), Some(b)) = (a, b)
            && (Arc::ptr_eq(a, b) || is_alike(a, b))
        {
            continue;
        }
        before.extend(a.map(|node| &**node));
        after.extend(b.map(|node| &**node));
    }
}

/// Finds the changes of one published fabric after the other.
#[derive(Debug, Default)]
pub struct FabricDiary {
    last: Option<Arc<FabricPlane>>,
}

impl FabricDiary {
    /// How the fabric differs from the one of the last call. Of the first, nothing is listed.
    pub fn follow(&mut self, plane: &Arc<FabricPlane>) -> FabricChanges {
        let last = self.last.replace(plane.clone()).filter(|last| !last.nodes.is_empty());
        match last {
            Some(last) if !Arc::ptr_eq(&last, plane) => FabricChanges::between(&last, plane),
            _ => FabricChanges::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;

    const LINKS: [(u64, u8, u64, u8); 4] =
        [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1)];

    fn texts(changes: &FabricChanges) -> Vec<&str> {
        changes.listed.iter().map(|draft| &draft.text[..]).collect()
    }

    #[test]
    fn what_came_and_went_is_named() {
        let mut diary = FabricDiary::default();
        assert!(diary.follow(&plane(&LINKS, 0, 0)).is_empty(), "the first is no change");
        assert!(diary.follow(&plane(&LINKS, 0, 0)).is_empty());
        let gone = diary.follow(&plane(&LINKS[..3], 0, 0));
        assert_eq!(texts(&gone), ["host 'n101' 0x0000000000000065 is gone"]);
        assert_eq!(gone.listed[0].kind, EventKind::NodeWent);
        let back = diary.follow(&plane(&LINKS, 1, 0));
        assert_eq!(
            texts(&back),
            [
                "host 'n101' 0x0000000000000065 is found",
                "link 'n1' port 1 - 'n8' port 1 runs at 1x QDR, not 4x QDR"
            ]
        );
        let moved = [LINKS[0], (2, 1, 8, 7), LINKS[2], LINKS[3]];
        let moved = diary.follow(&plane(&moved, 1, 0));
        let expected = "cable at 'n2' port 1 leads to 'n8' port 7, not to 'n8' port 2";
        assert_eq!(texts(&moved), [expected]);
    }

    #[test]
    fn a_link_that_goes_and_comes_is_named_at_both_ends() {
        let ends = [(1, 1, 8, 1), (1, 2, 8, 2), (1, 9, 100, 1)];
        let mut diary = FabricDiary::default();
        diary.follow(&plane(&ends, 0, 0));
        let down = diary.follow(&plane(&[ends[0], ends[2]], 0, 0));
        assert_eq!(texts(&down), ["link 'n1' port 2 - 'n8' port 2 is down"]);
        let up = diary.follow(&plane(&ends, 0, 0));
        assert_eq!(texts(&up), ["link 'n1' port 2 - 'n8' port 2 is up at 4x QDR"]);
    }

    #[test]
    fn many_changes_are_listed_in_part_and_counted() {
        let hosts = |count: u64| -> Vec<_> {
            (0..count).map(|n| (1, n as u8 + 1, 100 + n, 1)).collect::<Vec<_>>()
        };
        let mut diary = FabricDiary::default();
        diary.follow(&plane(&hosts(1), 0, 0));
        let came = diary.follow(&plane(&hosts(101), 0, 0));
        assert_eq!((came.listed.len(), came.unlisted), (CHANGES_MAX, 36));
    }

    #[test]
    fn nodes_whose_rows_are_shared_are_not_compared() {
        let old = plane(&LINKS, 0, 0);
        let mut new = FabricPlane::clone(&old);
        let (before, after) = differing(&old.nodes, &new.nodes);
        assert!(before.is_empty() && after.is_empty());
        let mut renamed = Node::clone(&new.nodes[0]);
        renamed.description[..3].copy_from_slice(b"new");
        new.nodes[0] = Arc::new(renamed);
        let changes = FabricChanges::between(&old, &new);
        assert_eq!(texts(&changes), ["0x0000000000000001 is 'new', and was 'n1'"]);
    }
}

//! Planting trees, on whatever thread: what is handed out and what comes back.

use std::sync::Arc;

use ib_mad::types::Lid;
use sa_proto::snapshot::Lft;

use crate::fabric::SwitchIndex;
use crate::routing::Topology;
use crate::routing::multicast::{
    Audience, Chooser, Fault, Orders, Place, PortMask, Tree, Wanted, check,
};
use crate::sweep::router::ActiveRouting;

/// Trees to be planted, or looked at again.
#[derive(Debug)]
pub struct MulticastJob {
    pub(super) made: Arc<ActiveRouting>,
    /// The routing that trees before were planted on, if its switches have other numbers.
    pub(super) renumbered: Option<Arc<ActiveRouting>>,
    /// The tables of `made`, which are followed if nobody has done so yet.
    pub(super) lfts: Vec<Arc<Lft>>,
    /// The VL by SL of links between switches.
    pub(super) vls: [u8; 16],
    /// What came of both.
    pub(super) orders: Option<Arc<Orders>>,
    /// Whether trees that deliver are looked at, too: for credit loops with what is routed now.
    pub(super) proves: bool,
    /// Whether all groups are among these.
    pub(super) is_whole: bool,
    pub(super) groups: Vec<Group>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) mlid: Lid,
    pub(super) audience: Audience,
    pub(super) places: Vec<Place>,
    /// What stands.
    pub(super) before: Option<Arc<Tree>>,
    /// The tree that another subnet manager planted: kept if it is right.
    pub(super) inherited: Option<Tree>,
}

/// What came of a [`MulticastJob`].
#[derive(Debug)]
pub struct MulticastOutcome {
    pub(super) made: Arc<ActiveRouting>,
    pub(super) is_whole: bool,
    /// What trees were judged by; `None` if nothing had to be planted, and nothing was proved.
    pub(super) orders: Option<Arc<Orders>>,
    pub(super) trees: Vec<Grown>,
    /// Trees that were found wrong and are not used: a fault of ours.
    pub(super) defects: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Grown {
    pub(super) mlid: Lid,
    pub(super) audience: Audience,
    pub(super) tree: Arc<Tree>,
    /// Whether it is what stood before, by the same ports of the same switches.
    pub(super) is_kept: bool,
    /// `None` if it adds to no credit loop, or if nobody has looked.
    pub(super) fault: Option<Fault>,
}

impl MulticastJob {
    /// Groups whose trees are planted.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there is nothing to plant.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Plants the trees. May take a second.
    pub fn run(mut self) -> MulticastOutcome {
        if let Some(before) = self.renumbered.take() {
            let (before, now) = (&*before, &*self.made);
            for group in &mut self.groups {
                let renumber = |tree: Arc<Tree>| Arc::new(renumbered(before, now, &tree));
                group.before = group.before.take().map(renumber);
            }
        }
        if !self.proves
            && let Some(outcome) = self.all_stand()
        {
            return outcome;
        }
        let made = self.made.clone();
        let (topology, hops) = (made.topology(), made.distances());
        let orders = self.orders.take().unwrap_or_else(|| {
            let unicast = made.unicast(&self.lfts);
            Arc::new(Orders::find(topology, hops, &unicast, made.lanes(), &self.vls))
        });
        let mut outcome = MulticastOutcome {
            made: self.made,
            is_whole: self.is_whole,
            orders: None,
            trees: Vec::new(),
            defects: Vec::new(),
        };
        if !orders.are_right(topology) {
            outcome.defects.push("what they are judged by is not an order".to_owned());
            return outcome;
        }
        let mut chooser = Chooser::new(topology, hops, &orders);
        for group in self.groups {
            let inherited = group.inherited.filter(|tree| is_one_piece(topology, tree));
            let before = group.before.as_deref().or(inherited.as_ref());
            let wanted = Wanted {
                mlid: group.mlid,
                members: &group.places,
                sls: group.audience.sls,
                before,
            };
            let planted = chooser.plant(&wanted);
            let (audience, mlid) = (group.audience, group.mlid);
            if let Err(defect) = check(topology, &planted.tree, &group.places) {
                outcome.defects.push(format!("MLID {:#06x}: {defect}", mlid.0));
                continue;
            }
            let kept = group.before.filter(|before| before.masks == planted.tree.masks);
            let is_kept = kept.is_some();
            let tree = kept.filter(|kept| **kept == *planted.tree).unwrap_or(planted.tree);
            outcome.trees.push(Grown { mlid, audience, tree, is_kept, fault: planted.fault });
        }
        outcome.orders = Some(orders);
        outcome
    }

    /// What comes of it if all trees that stand deliver, so that there is no hurry to find out what
    /// waits for what; `None` if any has to be planted.
    fn all_stand(&self) -> Option<MulticastOutcome> {
        let stands = |group: &Group| {
            let tree = group.before.as_ref()?;
            let topology = self.made.topology();
            let delivers =
                tree.unreached.is_empty() && check(topology, tree, &group.places).is_ok();
            delivers.then(|| Grown {
                mlid: group.mlid,
                audience: group.audience.clone(),
                tree: tree.clone(),
                is_kept: true,
                fault: None,
            })
        };
        let trees = self.groups.iter().map(stands).collect::<Option<Vec<_>>>()?;
        let (made, is_whole) = (self.made.clone(), self.is_whole);
        Some(MulticastOutcome { made, is_whole, orders: None, trees, defects: Vec::new() })
    }
}

/// A tree in the numbers of another routing, without switches that are no more.
fn renumbered(before: &ActiveRouting, now: &ActiveRouting, tree: &Tree) -> Tree {
    let number = |then: u16| before.switch(then).and_then(|index| now.number(index));
    let masks = tree.masks.iter().filter_map(|&(then, mask)| Some((number(then)?, mask)));
    let mut masks: Vec<_> = masks.collect();
    masks.sort_unstable_by_key(|(number, _)| *number);
    Tree { root: tree.root.and_then(number), masks, unreached: tree.unreached.clone() }
}

/// What was found in switches, as a tree; `None` if some of them are not routed.
pub(super) fn inherited_tree(
    made: &ActiveRouting,
    masks: &[(SwitchIndex, PortMask)],
) -> Option<Tree> {
    let number = |&(index, mask): &(SwitchIndex, PortMask)| Some((made.number(index)?, mask));
    let mut masks: Vec<(u16, PortMask)> = masks.iter().map(number).collect::<Option<_>>()?;
    masks.sort_unstable_by_key(|(number, _)| *number);
    Some(Tree { root: None, masks, unreached: Vec::new() })
}

/// Whether a tree's switches hang together: as many links as it takes, each from both ends.
fn is_one_piece(topology: &Topology, tree: &Tree) -> bool {
    let ends = tree.masks.iter().map(|(switch, mask)| {
        mask.ports().filter(|&port| topology.link_at(*switch, port).is_some()).count()
    });
    ends.sum::<usize>() == 2 * tree.masks.len().saturating_sub(1)
}

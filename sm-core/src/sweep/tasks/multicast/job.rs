//! Computes trees on any thread: the job and its outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::Lft;

use crate::fabric::SwitchIndex;
use crate::sweep::subnet::routing::active::ActiveRouting;
use sm_routing::multicast::{
    Audience, Chooser, ChosenTree, Fault, Orders, Place, Room, Standing, Tree, Wanted, check,
    hops_around,
};
use sm_routing::{PortMask, Topology, planes};

/// Trees to compute or to check.
#[derive(Debug)]
pub struct MulticastJob {
    pub(super) made: Arc<ActiveRouting>,
    /// The routing for which the previous trees were computed, if its switch numbers differ.
    pub(super) renumbered: Option<Arc<ActiveRouting>>,
    /// The tables of `made`, to derive dependencies if that has not been done.
    pub(super) lfts: Vec<Arc<Lft>>,
    /// The VL by SL of links between switches.
    pub(super) vls: [u8; 16],
    /// The dependencies and orders derived from both.
    pub(super) orders: Option<Arc<Orders>>,
    /// Whether trees that deliver are checked for credit loops, too.
    pub(super) proves: bool,
    /// Whether all groups are among these.
    pub(super) is_whole: bool,
    /// Table sizes of switches.
    pub(super) room: Room,
    /// Switches that count as full from a block on.
    pub(super) closed: BTreeMap<Guid, u16>,
    /// Ascending by MLID.
    pub(super) groups: Vec<Group>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) mlid: Lid,
    pub(super) audience: Audience,
    pub(super) places: Vec<Place>,
    /// The current tree.
    pub(super) before: Option<Arc<Tree>>,
    /// The tree of another SM, kept if it is right.
    pub(super) inherited: Option<Tree>,
}

/// Result of a [`MulticastJob`].
#[derive(Debug)]
pub struct MulticastOutcome {
    pub(super) made: Arc<ActiveRouting>,
    pub(super) is_whole: bool,
    /// Switches that count as full from a block on, which all trees avoid.
    pub(super) closed: BTreeMap<Guid, u16>,
    /// The channel order the trees were checked with; `None` if no tree had to be computed or
    /// checked.
    pub(super) orders: Option<Arc<Orders>>,
    pub(super) trees: Vec<ComputedTree>,
    /// Trees that were found wrong and are not used, because of an internal error.
    pub(super) defects: Vec<String>,
}

#[derive(Debug)]
pub(super) struct ComputedTree {
    pub(super) mlid: Lid,
    pub(super) audience: Audience,
    pub(super) tree: Arc<Tree>,
    /// Whether the tree is unchanged: the same ports of the same switches.
    pub(super) is_kept: bool,
    /// `None` if it adds to no credit loop, or was not checked.
    pub(super) fault: Option<Fault>,
}

impl MulticastJob {
    /// Groups whose trees are computed.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether the job has no trees to compute.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Computes the trees. May take a second.
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
        let known = self.orders.take();
        // They never change, and only those that passed the check are kept for the next job.
        let is_checked = known.is_some();
        let orders = known.unwrap_or_else(|| {
            let unicast = made.unicast(&self.lfts);
            Arc::new(Orders::find(topology, hops, &unicast, made.lanes(), &self.vls))
        });
        let mut outcome = MulticastOutcome {
            made: self.made,
            is_whole: self.is_whole,
            closed: self.closed,
            orders: None,
            trees: Vec::new(),
            defects: Vec::new(),
        };
        if !is_checked && !orders.are_right(topology) {
            outcome.defects.push("the channel order contains a cycle".to_owned());
            return outcome;
        }
        let starts = made.plane_starts();
        let mut groups = self.groups.into_iter().peekable();
        while let Some(first) = groups.peek().map(|group| group.mlid) {
            let class = self.room.class(first);
            let barred = class.map(|_| self.room.barred(first)).unwrap_or_default();
            let around = class.and_then(|_| hops_around(topology, &barred));
            let hops = around.as_ref().unwrap_or(hops);
            let mut chooser = Chooser::around(topology, hops, &orders, barred);
            while let Some(group) = groups.next_if(|group| self.room.class(group.mlid) == class) {
                let mlid = group.mlid;
                match tree_of(&mut chooser, &starts, topology, &self.room, group) {
                    Ok(computed) => outcome.trees.push(computed),
                    Err(defect) => {
                        outcome.defects.push(format!("MLID {:#06x}: {defect}", mlid.0));
                    }
                }
            }
        }
        outcome.orders = Some(orders);
        outcome
    }

    /// The result if all current trees reach all reachable members, so that dependencies need not
    /// be computed yet; `None` if any tree must be computed.
    fn all_stand(&self) -> Option<MulticastOutcome> {
        let mut standing = Standing::new(self.made.topology(), &self.room);
        let starts = self.made.plane_starts();
        let mut serves = |group: &Group, tree: &Tree| match &starts[..] {
            [_] => standing.serves(group.mlid, tree, &group.places),
            _ => planes::parted(Some(tree), &group.places, &starts).iter().all(|(part, places)| {
                part.as_ref().is_some_and(|part| standing.serves(group.mlid, part, places))
            }),
        };
        let stands = |group: &Group| {
            let tree = group.before.as_ref()?;
            serves(group, tree).then(|| ComputedTree {
                mlid: group.mlid,
                audience: group.audience.clone(),
                tree: tree.clone(),
                is_kept: true,
                fault: None,
            })
        };
        let trees = self.groups.iter().map(stands).collect::<Option<Vec<_>>>()?;
        Some(MulticastOutcome {
            made: self.made.clone(),
            is_whole: self.is_whole,
            closed: self.closed.clone(),
            orders: None,
            trees,
            defects: Vec::new(),
        })
    }
}

/// Computes the tree of a group, or returns why it is wrong. `starts`: the first switches of
/// planes.
fn tree_of(
    chooser: &mut Chooser<'_>,
    starts: &[u16],
    topology: &Topology,
    room: &Room,
    group: Group,
) -> Result<ComputedTree, String> {
    let Group { mlid, audience, places, before: stood, inherited } = group;
    let before = stood.as_deref().or(inherited.as_ref());
    // An inherited tree of several pieces is of no use.
    let is_usable = |tree: &&Tree| stood.is_some() || is_one_piece(topology, tree);
    let mut choose = |members: &[Place], before: Option<&Tree>| {
        let before = before.filter(is_usable);
        let chosen = chooser.choose(&Wanted { mlid, members, sls: audience.sls, before });
        check(topology, &chosen.tree, members).map_err(|defect| defect.to_string())?;
        Ok::<ChosenTree, String>(chosen)
    };
    let chosen = match starts {
        [_] => choose(&places, before)?,
        // In each plane a tree of its own.
        _ => {
            let parts = planes::parted(before, &places, starts);
            let of_plane =
                |(before, members): &(Option<Tree>, Vec<Place>)| choose(members, before.as_ref());
            let chosen = parts.iter().map(of_plane).collect::<Result<Vec<_>, _>>()?;
            let tree = Arc::new(planes::joined_trees(chosen.iter().map(|chosen| &*chosen.tree)));
            ChosenTree { tree, fault: chosen.into_iter().find_map(|chosen| chosen.fault) }
        }
    };
    if let Some(switch) = room.lacking(&chosen.tree, mlid) {
        return Err(format!("the multicast table of switch {switch} is too small for it"));
    }
    let kept = stood.filter(|before| before.masks == chosen.tree.masks);
    let is_kept = kept.is_some();
    let tree = kept.filter(|kept| **kept == *chosen.tree).unwrap_or(chosen.tree);
    Ok(ComputedTree { mlid, audience, tree, is_kept, fault: chosen.fault })
}

/// Converts a tree to the switch numbers of another routing; switches that are gone are omitted.
fn renumbered(before: &ActiveRouting, now: &ActiveRouting, tree: &Tree) -> Tree {
    let number = |then: u16| before.switch(then).and_then(|index| now.number(index));
    let masks = tree.masks.iter().filter_map(|&(then, mask)| Some((number(then)?, mask)));
    let mut masks: Vec<_> = masks.collect();
    masks.sort_unstable_by_key(|(number, _)| *number);
    let place = |then: &Place| Some(Place { switch: number(then.switch)?, ..*then });
    let mut unreached: Vec<Place> = tree.unreached.iter().filter_map(place).collect();
    unreached.sort_unstable();
    Tree { root: tree.root.and_then(number), masks, unreached }
}

/// A tree read from switches; `None` if one of them is not part of the routing.
pub(super) fn inherited_tree(
    made: &ActiveRouting,
    masks: &[(SwitchIndex, PortMask)],
) -> Option<Tree> {
    let number = |&(index, mask): &(SwitchIndex, PortMask)| Some((made.number(index)?, mask));
    let mut masks: Vec<(u16, PortMask)> = masks.iter().map(number).collect::<Option<_>>()?;
    masks.sort_unstable_by_key(|(number, _)| *number);
    Some(Tree { root: None, masks, unreached: Vec::new() })
}

/// Whether the switches of a tree are connected: enough links, each set from both ends.
fn is_one_piece(topology: &Topology, tree: &Tree) -> bool {
    let ends = tree.masks.iter().map(|(switch, mask)| {
        mask.ports().filter(|&port| topology.link_at(*switch, port).is_some()).count()
    });
    ends.sum::<usize>() == 2 * tree.masks.len().saturating_sub(1)
}

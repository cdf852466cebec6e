//! Dragonfly+ (Shpiner et al. 2017), also called Megafly: groups of leaves and spines, with links
//! between the spines of all groups.
//!
//! Within a group each leaf is linked to each spine. All pairs of groups have equally many links,
//! spread over their spines; ports left over stay unused.

use super::GenerateError;
use super::dragonfly::{Globals, check_globals};
use super::plan::{Plan, radix_for, within};

/// Parameters of a Dragonfly+. On leaves, the first ports are for hosts, the next for spines. On
/// spines, the first are for leaves, the last are global.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DragonflyPlus {
    /// Number of groups.
    pub groups: u16,
    /// Leaves in each group.
    pub leaves: u16,
    /// Spines in each group.
    pub spines: u16,
    /// Hosts per leaf.
    pub hosts_per_leaf: u8,
    /// Links to other groups per spine.
    pub global_links: u8,
    /// Ports per switch; the smallest common number that suffices if `None`.
    pub radix: Option<u8>,
}

impl DragonflyPlus {
    pub(super) fn plan(&self) -> Result<Plan, GenerateError> {
        let [groups, leaves, spines] = [self.groups, self.leaves, self.spines].map(usize::from);
        let (hosts, global_links) =
            (usize::from(self.hosts_per_leaf), usize::from(self.global_links));
        within("--groups", groups, 1, 0xBFFF)?;
        within("--leaves", leaves, 1, 0xFF)?;
        within("--spines", spines, 1, 0xFF)?;
        let each = leaves + spines;
        within("the number of switches", groups * each, 1, 0xBFFF)?;
        let radix = radix_for((hosts + spines).max(leaves + global_links), self.radix)?;
        check_globals(groups, spines, global_links)?;
        let names = (0..groups * each).map(|index| {
            let (group, at) = (index / each + 1, index % each);
            match at.checked_sub(leaves) {
                None => format!("g{group:03}leaf{:03}", at + 1),
                Some(spine) => format!("g{group:03}spine{:03}", spine + 1),
            }
        });
        let mut plan = Plan::new(names.collect(), radix);
        for group in 0..groups {
            for leaf in 0..leaves {
                let at = group * each + leaf;
                (1..=hosts).for_each(|port| plan.add_host((at, port as u8)));
                for spine in 0..spines {
                    let up = (hosts + 1 + spine) as u8;
                    let far = (group * each + leaves + spine, (leaf + 1) as u8);
                    plan.links.push(((at, up), far));
                }
            }
        }
        let globals = Globals { groups, routers: spines, global_links };
        globals.link(&mut plan, |group, spine, place| {
            (group * each + leaves + spine, (leaves + 1 + place) as u8)
        });
        Ok(plan)
    }
}

//! Determines the order in which new forwarding tables are written to switches.
//!
//! While tables are being written, packets meet old entries on one switch and new ones on the next.
//! No order avoids every transient loss or loop, as blocks hold 64 destinations. This order avoids
//! those that it can:
//!
//! 1. First, blocks that repair: blocks in which an entry that leads nowhere gets a route. Entries
//!    near the destinations cannot do harm, so these blocks are written in no particular order.
//! 2. Then, blocks that only move routes from one working port to another. Between two tables that
//!    are both minimum-hop, a packet may take a detour meanwhile, but as long as no distance
//!    changes, each hop still brings it closer.
//! 3. Then, blocks that only remove routes, to LIDs that left or cannot be reached.
//!
//! LinearFDBTop is set after all of them: a switch whose top rises before the blocks below it are
//! written would forward by their old content.
//!
//! Within a step switches take turns, so that no switch's agent receives a burst.
//!
//! This module only decides; it sends nothing. The caller must wait until a step is acknowledged
//! before it starts the next.

use super::{BLOCK_LEN, NO_ROUTE, Topology};

/// The old and new table of one switch.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The switch's number in the topology.
    pub switch: u16,
    /// The entries that the switch is known to hold. Blocks beyond are unknown, and are written if
    /// `new` has them.
    pub old: &'a [u8],
    /// The entries that the switch must hold.
    pub new: &'a [u8],
}

/// A block of 64 entries to set in a switch's linear forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// The switch's number in the topology.
    pub switch: u16,
    /// The block's number.
    pub block: u16,
}

/// The blocks to write, in three steps. A step is complete when all its writes are acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Blocks that give a route to LIDs without one.
    pub repair: Vec<Write>,
    /// Blocks that only move routes.
    pub shift: Vec<Write>,
    /// Blocks that only remove routes.
    pub remove: Vec<Write>,
}

impl Program {
    /// Compares tables block by block. A port leads nowhere if it has neither a link nor, in the
    /// new tables, a destination.
    pub fn plan<'a>(topology: &Topology, changes: impl IntoIterator<Item = Change<'a>>) -> Self {
        let works = working_ports(topology);
        let mut blocks: [Vec<(u16, u16)>; 3] = Default::default();
        for change in changes {
            let works = |port: u8| {
                works.get(usize::from(change.switch)).is_some_and(|ports| ports[usize::from(port)])
            };
            // Shared tables are equal without being read.
            let unchanged = std::ptr::eq(change.old, change.new) || change.old == change.new;
            let chunks = change.new.chunks(BLOCK_LEN).enumerate().filter(|_| !unchanged);
            for (block, new) in chunks {
                let old = change.old.get(block * BLOCK_LEN..(block + 1) * BLOCK_LEN);
                if let Some(kind) = compare(old, new, works) {
                    blocks[kind as usize].push((block as u16, change.switch));
                }
            }
        }
        let [repair, shift, remove] = blocks.map(|mut blocks| {
            // By block before switch, so that switches take turns.
            blocks.sort_unstable();
            let write = |(block, switch)| Write { switch, block };
            blocks.into_iter().map(write).collect()
        });
        Self { repair, shift, remove }
    }

    /// Returns all writes in order.
    pub fn writes(&self) -> impl Iterator<Item = Write> + '_ {
        let steps = [&self.repair, &self.shift, &self.remove];
        steps.into_iter().flatten().copied()
    }

    /// Returns the number of writes.
    pub fn len(&self) -> usize {
        self.repair.len() + self.shift.len() + self.remove.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Repair,
    Shift,
    Remove,
}

/// Classifies the write of `new` over `old`; `None` if they are equal. Unknown entries count as
/// repaired.
fn compare(old: Option<&[u8]>, new: &[u8], works: impl Fn(u8) -> bool) -> Option<Kind> {
    let Some(old) = old else { return Some(Kind::Repair) };
    if old == new {
        return None;
    }
    let differing = old.iter().zip(new).filter(|(old, new)| old != new);
    let kinds = differing.map(|(&old, &new)| match (works(old), new) {
        (_, NO_ROUTE) => Kind::Remove,
        (false, _) => Kind::Repair,
        (true, _) => Kind::Shift,
    });
    kinds.min()
}

/// By switch and port number: whether packets sent there reach a switch or a destination.
fn working_ports(topology: &Topology) -> Vec<[bool; 256]> {
    let mut works = vec![[false; 256]; topology.switch_count()];
    for (switch, works) in topology.switches().zip(&mut works) {
        topology.links(switch).iter().for_each(|link| works[usize::from(link.port)] = true);
    }
    for destination in topology.destinations() {
        works[usize::from(destination.egress_switch)][usize::from(destination.exit)] = true;
    }
    works
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Engine, MinHop, Previous, Steering, testing};
    use super::*;

    fn block(switch: u16, block: u16) -> Write {
        Write { switch, block }
    }

    /// Plans for switch 0 in the middle of a line of three: ports 1 and 2 are links.
    fn plan(old: &[u8], new: &[u8]) -> Program {
        Program::plan(&testing::line(3), [Change { switch: 1, old, new }])
    }

    #[test]
    fn equal_tables_need_nothing() {
        assert!(plan(&[2; 128], &[2; 128]).is_empty());
    }

    #[test]
    fn blocks_are_ordered_by_their_effect() {
        let (mut old, mut new) = ([1u8; 256], [1u8; 256]);
        // Block 0 removes, block 1 moves, block 2 repairs (there is no port 3), block 3 is
        // unchanged.
        (new[5], new[70], old[130]) = (NO_ROUTE, 2, 3);
        let program = plan(&old, &new);
        let writes: Vec<_> = program.writes().collect();
        assert_eq!(writes, [block(1, 2), block(1, 1), block(1, 0)]);
        assert_eq!(program.repair, [block(1, 2)]);
        // One repaired entry is enough.
        (new[6], old[6]) = (2, NO_ROUTE);
        assert_eq!(plan(&old, &new).repair, [block(1, 0), block(1, 2)]);
    }

    #[test]
    fn unknown_blocks_are_written() {
        let program = plan(&[1; 64], &[1; 192]);
        assert_eq!(program.writes().collect::<Vec<_>>(), [block(1, 1), block(1, 2)]);
    }

    proptest! {
        /// Writing the program produces the new tables from any previous ones, and no unchanged
        /// block is written.
        #[test]
        fn a_program_turns_old_tables_into_new_ones(
            net in testing::any_net(), lmc in 0u8..3, cut in 2usize..6,
        ) {
            let before = testing::topology(&net, lmc);
            let after = testing::topology_without(&net, lmc, |number| number % cut == 0);
            let old = MinHop.route(&before, &Steering::default(), None).unwrap();
            let previous = Previous::same_switches(&before, &old);
            let new = MinHop.route(&after, &Steering::default(), Some(&previous)).unwrap();
            let change = |switch: u16| Change {
                switch,
                old: &old.lfts[usize::from(switch)],
                new: &new.lfts[usize::from(switch)],
            };
            let program = Program::plan(&after, after.switches().map(change));
            let mut tables = old.lfts.clone();
            let mut write_all = |writes: &[Write]| {
                for &write in writes {
                    let Write { switch, block } = write;
                    let range = usize::from(block) * BLOCK_LEN..usize::from(block + 1) * BLOCK_LEN;
                    let new = &new.lfts[usize::from(switch)][range.clone()];
                    let table = &mut tables[usize::from(switch)][range];
                    prop_assert_ne!(&*table, new);
                    table.copy_from_slice(new);
                }
                Ok(tables.clone())
            };
            let repaired = write_all(&program.repair)?;
            let works = working_ports(&after);
            for ((table, new), works) in repaired.iter().zip(&new.lfts).zip(&works) {
                for (&port, &new) in table.iter().zip(new) {
                    prop_assert!(new == NO_ROUTE || works[usize::from(port)], "a packet is lost");
                }
            }
            write_all(&program.shift)?;
            prop_assert_eq!(write_all(&program.remove)?, new.lfts);
        }
    }
}

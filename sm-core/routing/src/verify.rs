//! Verifies that forwarding tables deliver, and searches them for credit loops.
//!
//! [`deliveries`] is a proof by potential: engines supply hops that fall at each step, and a route
//! along which a number falls must end. It checks each entry once and does not trust the engine;
//! [`deliveries_since`] checks only the differences from a routing that was proved before.
//! [`walk::deliveries`] follows all routes without a potential; it is slower and shares no code
//! with the proof, so that each checks the other in tests. [`credit_loops`] searches for cycles of
//! links that depend on each other's buffers, [`credit_loops_on_lanes`] does so per lane, and
//! [`credit_loops_with_replies`] for replies, too, which are sent on the SL of their requests. The
//! caller decides how to act on findings.

mod channels;
mod closer;
mod columns;
mod cycle;
mod hop_lanes;
mod loops;
mod onward;
mod turns;
pub mod walk;

pub use super::error::{Defect, DefectKind};
pub use channels::{Channels, Unicast};
pub use cycle::{credit_loops, credit_loops_on_lanes, credit_loops_with_replies};
pub use loops::{CreditLoops, Traffic};
pub use turns::{Hops, Turn};

use ib_mad::types::Lid;
use rayon::prelude::*;

use self::closer::Closer;
use super::regions::Regions;
use super::{BLOCK_LEN, Entries, HopMatrix, NO_ROUTE, Previous, Routing, Topology};

/// Largest number of defects listed; further ones are only counted.
pub const DEFECTS_LISTED_MAX: usize = 16;

/// The result of checking all pairs of a switch and a LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Pairs between which packets are delivered.
    pub delivered: u64,
    /// Pairs that no path connects, and correctly have no route.
    pub unreachable: u64,
    /// Pairs that only paths against the engine's rules connect. At least one end has no host, so
    /// no traffic is lost.
    pub unrouted: u64,
    /// Number of wrong entries.
    pub defective: u64,
    /// The first wrong entries by switch and LID, at most [`DEFECTS_LISTED_MAX`].
    pub defects: Vec<Defect>,
}

impl Deliveries {
    /// Whether every LID is delivered from all switches that need it: hosts' LIDs from all switches
    /// with hosts in the same part of the fabric, others wherever the engine claims a route.
    pub fn is_sound(&self) -> bool {
        self.defective == 0
    }

    /// Whether every LID is delivered from every switch.
    pub fn is_whole(&self) -> bool {
        self.defective + self.unreachable + self.unrouted == 0
    }

    fn add_defect(&mut self, defect: Defect) {
        self.defective += 1;
        if self.defects.len() < DEFECTS_LISTED_MAX {
            self.defects.push(defect);
        }
    }

    /// Merges findings about different switches.
    fn join(mut self, other: Self) -> Self {
        self.delivered += other.delivered;
        self.unreachable += other.unreachable;
        self.unrouted += other.unrouted;
        self.defective += other.defective;
        self.defects.extend(other.defects);
        self.defects.sort_unstable();
        self.defects.truncate(DEFECTS_LISTED_MAX);
        self
    }
}

/// Proves that tables deliver: at the egress switch by the destination's port, and elsewhere to a
/// switch with fewer hops left by [`Routing::hops`]. These need not be the real distances, as any
/// number that falls at each step ends. Pairs without a route must lie in parts of the fabric that
/// no link connects, or be pairs that engines may leave out.
pub fn deliveries(topology: &Topology, routing: &Routing) -> Deliveries {
    deliveries_beside(topology, routing, |_| None)
}

/// Proves a routing after a change, where `previous` was [whole](Deliveries::is_whole): unchanged
/// entries are still right. All entries of a switch are checked if its links differ, or hops from
/// it or from a neighbour; of other switches only blocks that differ are checked.
pub fn deliveries_since(
    topology: &Topology,
    routing: &Routing,
    previous: &Previous<'_>,
) -> Deliveries {
    let Some(hops) = previous.hops.filter(|_| previous.is_of_same_ports(topology)) else {
        return deliveries(topology, routing);
    };
    let is_same_row = |switch| hops.wide_row(switch) == routing.hops.wide_row(switch);
    let has_same_row: Vec<bool> = topology.switches().into_par_iter().map(is_same_row).collect();
    deliveries_beside(topology, routing, |switch| {
        let links = topology.links(switch);
        let mut near = links.iter().map(|link| link.peer).chain([switch]);
        let is_same = links == previous.topology.links(switch)
            && near.all(|near| has_same_row[usize::from(near)]);
        previous.entries(switch).filter(|_| is_same)
    })
}

/// Checks all entries except blocks equal to those of a table that is known to be right.
fn deliveries_beside<'a>(
    topology: &Topology,
    routing: &Routing,
    right: impl Fn(u16) -> Option<&'a Entries> + Sync,
) -> Deliveries {
    let homes = Homes::new(topology, &routing.hops);
    let gaps = Gaps::new(topology, routing);
    let check = |closer: &mut Closer, switch| {
        check_switch(topology, routing, &homes, &gaps, closer, (switch, right(switch)))
    };
    let found = topology.switches().into_par_iter().map_init(Closer::default, check);
    found.reduce(Deliveries::default, Deliveries::join)
}

/// By LID: its column and exit.
struct Homes {
    /// The column of the hop matrix: the egress switch plus, for each plane before the LID's, the
    /// number of switches.
    column: Vec<u16>,
    exit: Vec<u8>,
    /// Marks an unassigned LID in place of its column: the number of columns.
    unowned: u16,
    /// By block: the LIDs that are assigned.
    taken: Vec<u64>,
}

impl Homes {
    fn new(topology: &Topology, hops: &HopMatrix) -> Self {
        let switches = topology.switches().end;
        let unowned = switches * hops.plane_count() as u16;
        let mut homes = Self {
            column: vec![unowned; topology.table_len()],
            exit: vec![NO_ROUTE; topology.table_len()],
            unowned,
            taken: vec![0; topology.table_len() / BLOCK_LEN],
        };
        for destination in topology.destinations() {
            for (lid, offset) in destination.lids().zip(0..) {
                let plane = hops.plane_of(offset) as u16;
                homes.column[lid.index()] = plane * switches + destination.egress_switch;
                homes.exit[lid.index()] = destination.exit;
                homes.taken[lid.index() / BLOCK_LEN] += 1;
            }
        }
        homes
    }
}

fn check_switch(
    topology: &Topology,
    routing: &Routing,
    homes: &Homes,
    gaps: &Gaps<'_>,
    closer: &mut Closer,
    (switch, right): (u16, Option<&Entries>),
) -> Deliveries {
    let mut found = Deliveries::default();
    let no_table = Entries::default();
    let lft = routing.lfts.get(usize::from(switch)).unwrap_or(&no_table);
    if lft.len() == homes.column.len() && right.is_some_and(|right| right.is_shared_with(lft)) {
        found.delivered = homes.taken.iter().sum();
        return found;
    }
    // Hops to an egress switch are read from the rows of the switches on the path, as paths work in
    // both directions. Indexed by port: the row of the switch behind it.
    let own = routing.hops.wide_row(switch);
    let no_row = vec![HopMatrix::UNREACHABLE; own.len()];
    let mut rows: [&[u8]; 256] = [&no_row; 256];
    for link in topology.links(switch) {
        rows[usize::from(link.port)] = routing.hops.wide_row(link.peer);
    }
    let mut is_turned = false;
    let blocks = homes.column.chunks(BLOCK_LEN).zip(homes.exit.chunks(BLOCK_LEN));
    for (((column, exit), taken), first) in
        blocks.zip(&homes.taken).zip((0u16..).step_by(BLOCK_LEN))
    {
        let block = usize::from(first)..usize::from(first) + column.len();
        let ports = lft.get(block.clone());
        if ports.is_some() && ports == right.and_then(|right| right.get(block)) {
            found.delivered += taken;
            continue;
        }
        if !std::mem::replace(&mut is_turned, true) {
            closer.turn_to(topology, &routing.hops, switch);
        }
        // Most blocks are of LIDs elsewhere, all of which are right.
        if ports.is_some_and(|ports| closer.are_all(column, ports)) {
            found.delivered += column.len() as u64;
            continue;
        }
        let entries = lft.get(usize::from(first)..).unwrap_or_default().iter();
        let entries = entries.chain(std::iter::repeat(&NO_ROUTE)).zip(first..);
        let entries = entries.zip(column.iter().zip(exit));
        check_block(topology, gaps, (switch, homes.unowned), own, &rows, entries, &mut found);
    }
    // Tables must be as long as the last LID needs; further entries would be for LIDs that no port
    // has.
    for (&port, lid) in lft.iter().zip(0u16..).skip(homes.column.len()) {
        if port != NO_ROUTE {
            found.add_defect(Defect { switch, lid: Lid(lid), port, kind: DefectKind::Stray });
        }
    }
    found
}

/// Checks entries one by one, given ports and LIDs with their egress switches and exits.
fn check_block<'a>(
    topology: &Topology,
    gaps: &Gaps<'_>,
    (switch, unowned): (u16, u16),
    own: &[u8],
    rows: &[&[u8]; 256],
    entries: impl Iterator<Item = ((&'a u8, u16), (&'a u16, &'a u8))>,
    found: &mut Deliveries,
) {
    for ((&port, lid), (&column, &exit)) in entries {
        let egress_switch = column % topology.switches().end;
        let kind = if column == unowned {
            if port == NO_ROUTE {
                continue;
            }
            DefectKind::Stray
        } else if egress_switch == switch {
            if port == exit {
                found.delivered += 1;
                continue;
            }
            DefectKind::WrongExit
        } else if port == NO_ROUTE {
            match gaps.judge(switch, egress_switch, exit != 0) {
                Gap::Unreachable => found.unreachable += 1,
                Gap::Unrouted => found.unrouted += 1,
                Gap::Missing => {
                    let kind = DefectKind::Missing;
                    found.add_defect(Defect { switch, lid: Lid(lid), port, kind });
                }
            }
            continue;
        } else if topology.link_at(switch, port).is_some() {
            let row = rows[usize::from(port)];
            let (next, here) = (row[usize::from(column)], own[usize::from(column)]);
            if next < here && here != HopMatrix::UNREACHABLE {
                found.delivered += 1;
                continue;
            }
            DefectKind::NotCloser
        } else {
            DefectKind::DeadEnd
        };
        found.add_defect(Defect { switch, lid: Lid(lid), port, kind });
    }
}

/// Why a pair has no route.
enum Gap {
    /// No path connects the two.
    Unreachable,
    /// The engine's rules allow no route, and no host needs one.
    Unrouted,
    /// A route is missing.
    Missing,
}

/// Decides which pairs may have no route.
struct Gaps<'a> {
    hops: &'a HopMatrix,
    /// By switch: a number that is equal for all switches of a connected part.
    parts: Vec<u16>,
    hosts: Vec<u32>,
}

impl<'a> Gaps<'a> {
    fn new(topology: &Topology, routing: &'a Routing) -> Self {
        let parts = Regions::find(topology, topology.switches(), |_, _| true).starts;
        Self { hops: &routing.hops, parts, hosts: topology.hosts_on() }
    }

    /// Classifies a pair in which a switch has no route to a LID at another switch.
    fn judge(&self, switch: u16, egress_switch: u16, to_host: bool) -> Gap {
        let (from, to) = (usize::from(switch), usize::from(egress_switch));
        if self.parts[from] != self.parts[to] {
            return Gap::Unreachable;
        }
        let between_hosts = self.hosts[from] > 0 && to_host;
        let is_possible = self.hops.row(switch)[to] != HopMatrix::UNREACHABLE;
        if between_hosts || is_possible { Gap::Missing } else { Gap::Unrouted }
    }
}

// A table's index fits a LID.
const _: () = assert!((Lid::UNICAST_LAST.0 as usize + 1).is_multiple_of(BLOCK_LEN));

#[cfg(test)]
mod tests;

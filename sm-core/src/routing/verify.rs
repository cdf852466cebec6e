//! Whether forwarding tables deliver, and whether they can deadlock.
//!
//! [`deliveries`] is a proof by a potential: engines hand over hops that fall at each step, and
//! what falls at each step ends. It costs one look at each entry, and trusts the engine in nothing;
//! [`deliveries_since`] looks only at what differs from a routing that was proved before.
//! [`walk::deliveries`] follows all routes instead, without any potential; it is slower and made
//! otherwise, to be an independent witness. [`credit_loops`] looks for cycles among links that
//! wait for each other's buffers, [`credit_loops_on_lanes`] does so lane by lane. What to do about
//! findings is the caller's to decide.

mod channels;
mod closer;
mod columns;
mod cycle;
mod hop_lanes;
mod onward;
pub mod walk;

pub use channels::{Channels, Unicast};
pub use cycle::{CreditLoops, Traffic, credit_loops, credit_loops_on_lanes};

use std::fmt;

use ib_mad::types::Lid;
use rayon::prelude::*;

use self::closer::Closer;
use super::regions::Regions;
use super::{BLOCK_LEN, Entries, HopMatrix, NO_ROUTE, Previous, Routing, Topology};

/// Defects that are described one by one; others are counted.
pub const DEFECTS_LISTED_MAX: usize = 16;

/// What is wrong with an entry of a forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefectKind {
    /// There is none, although the destination has to be reached.
    Missing,
    /// There is one for a LID that nobody has, or that cannot be reached.
    Stray,
    /// The home switch delivers by another port than the destination's.
    WrongExit,
    /// The port does not lead to a switch.
    DeadEnd,
    /// The next switch is not closer to the destination, so the route may never end.
    NotCloser,
    /// The route ends nowhere, or goes round in circles.
    Lost,
}

/// A wrong entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Defect {
    /// The switch.
    pub switch: u16,
    /// The LID.
    pub lid: Lid,
    /// The entry.
    pub port: u8,
    /// What is wrong with it.
    pub kind: DefectKind,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { switch, lid, port, kind } = self;
        let what = match kind {
            DefectKind::Missing => "has no route though one exists",
            DefectKind::Stray => "has a route to a LID that cannot be reached",
            DefectKind::WrongExit => "delivers by a wrong port",
            DefectKind::DeadEnd => "forwards to a port without a switch",
            DefectKind::NotCloser => "does not forward closer to the destination",
            DefectKind::Lost => "forwards to where the route ends or circles",
        };
        write!(f, "switch {switch}, LID {lid}, port {port}: {what}")
    }
}

/// What came of looking at all pairs of a switch and a LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Pairs between which packets are delivered.
    pub delivered: u64,
    /// Pairs that no path joins; there is rightly no route.
    pub unreachable: u64,
    /// Pairs that paths join, but none that the engine's rules allow. There is no host at one end
    /// or the other, or at both.
    pub unrouted: u64,
    /// Entries that are wrong.
    pub defective: u64,
    /// The first of them by switch and LID, at most [`DEFECTS_LISTED_MAX`].
    pub defects: Vec<Defect>,
}

impl Deliveries {
    /// Whether every LID is delivered from wherever it has to be: hosts' from all switches with
    /// hosts that links join with theirs, and all from wherever the engine says it can.
    pub fn is_sound(&self) -> bool {
        self.defective == 0
    }

    /// Whether every LID is delivered from everywhere.
    pub fn is_whole(&self) -> bool {
        self.defective + self.unreachable + self.unrouted == 0
    }

    fn add_defect(&mut self, defect: Defect) {
        self.defective += 1;
        if self.defects.len() < DEFECTS_LISTED_MAX {
            self.defects.push(defect);
        }
    }

    /// Joins findings about different switches.
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

/// Proves that tables deliver: at the home switch by the destination's port, and elsewhere to a
/// switch with fewer hops left by [`Routing::hops`]. Whether these are the real distances does not
/// matter, as any number that falls at each step ends. Pairs without a route must lie in parts of
/// the fabric that no link joins, or be such as engines may leave out.
pub fn deliveries(topology: &Topology, routing: &Routing) -> Deliveries {
    deliveries_beside(topology, routing, |_| None)
}

/// The same after a change, where `previous` was [whole](Deliveries::is_whole): what is as it was
/// then is right as it was then. A switch is looked at anew if its links differ, or hops from it or
/// from a neighbour; of others the blocks that differ are.
pub fn deliveries_since(
    topology: &Topology,
    routing: &Routing,
    previous: &Previous<'_>,
) -> Deliveries {
    let Some(hops) = previous.hops.filter(|_| previous.is_of_same_ports(topology)) else {
        return deliveries(topology, routing);
    };
    let is_same_row = |switch| hops.row(switch) == routing.hops.row(switch);
    let has_same_row: Vec<bool> = topology.switches().into_par_iter().map(is_same_row).collect();
    deliveries_beside(topology, routing, |switch| {
        let links = topology.links(switch);
        let mut near = links.iter().map(|link| link.peer).chain([switch]);
        let is_same = links == previous.topology.links(switch)
            && near.all(|near| has_same_row[usize::from(near)]);
        previous.entries(switch).filter(|_| is_same)
    })
}

/// Looks at all entries but for blocks that are those of a table known to be right.
fn deliveries_beside<'a>(
    topology: &Topology,
    routing: &Routing,
    right: impl Fn(u16) -> Option<&'a Entries> + Sync,
) -> Deliveries {
    let homes = Homes::new(topology);
    let gaps = Gaps::new(topology, routing);
    let check = |closer: &mut Closer, switch| {
        check_switch(topology, routing, &homes, &gaps, closer, (switch, right(switch)))
    };
    let found = topology.switches().into_par_iter().map_init(Closer::default, check);
    found.reduce(Deliveries::default, Deliveries::join)
}

/// By LID: who delivers, and by which port.
struct Homes {
    home: Vec<u16>,
    exit: Vec<u8>,
    /// Stands for the home of a LID that nobody has: the number of switches.
    nobody: u16,
    /// By block: LIDs that somebody has.
    taken: Vec<u64>,
}

impl Homes {
    fn new(topology: &Topology) -> Self {
        let nobody = topology.switches().end;
        let mut homes = Self {
            home: vec![nobody; topology.table_len()],
            exit: vec![NO_ROUTE; topology.table_len()],
            nobody,
            taken: vec![0; topology.table_len() / BLOCK_LEN],
        };
        for destination in topology.destinations() {
            for lid in destination.lids() {
                homes.home[lid.index()] = destination.home;
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
    if lft.len() == homes.home.len() && right.is_some_and(|right| right.is_shared_with(lft)) {
        found.delivered = homes.taken.iter().sum();
        return found;
    }
    // Hops to a home switch are read in rows of the switches on the way, as paths go both ways.
    // By port: the row of the switch behind it.
    let own = routing.hops.row(switch);
    let no_row = vec![HopMatrix::UNREACHABLE; own.len()];
    let mut rows: [&[u8]; 256] = [&no_row; 256];
    for link in topology.links(switch) {
        rows[usize::from(link.port)] = routing.hops.row(link.peer);
    }
    let mut is_turned = false;
    let blocks = homes.home.chunks(BLOCK_LEN).zip(homes.exit.chunks(BLOCK_LEN));
    for (((home, exit), taken), first) in blocks.zip(&homes.taken).zip((0u16..).step_by(BLOCK_LEN))
    {
        let block = usize::from(first)..usize::from(first) + home.len();
        let ports = lft.get(block.clone());
        if ports.is_some() && ports == right.and_then(|right| right.get(block)) {
            found.delivered += taken;
            continue;
        }
        if !std::mem::replace(&mut is_turned, true) {
            closer.turn_to(topology, &routing.hops, switch);
        }
        // Most blocks are of LIDs elsewhere, all of which are right.
        if ports.is_some_and(|ports| closer.are_all(home, ports)) {
            found.delivered += home.len() as u64;
            continue;
        }
        let entries = lft.get(usize::from(first)..).unwrap_or_default().iter();
        let entries = entries.chain(std::iter::repeat(&NO_ROUTE)).zip(first..);
        let entries = entries.zip(home.iter().zip(exit));
        check_block(topology, gaps, (switch, homes.nobody), own, &rows, entries, &mut found);
    }
    // Tables are as long as the last LID needs; more would be entries for LIDs nobody has.
    for (&port, lid) in lft.iter().zip(0u16..).skip(homes.home.len()) {
        if port != NO_ROUTE {
            found.add_defect(Defect { switch, lid: Lid(lid), port, kind: DefectKind::Stray });
        }
    }
    found
}

/// Looks at entries one by one: ports and LIDs, with their homes and exits.
fn check_block<'a>(
    topology: &Topology,
    gaps: &Gaps<'_>,
    (switch, nobody): (u16, u16),
    own: &[u8],
    rows: &[&[u8]; 256],
    entries: impl Iterator<Item = ((&'a u8, u16), (&'a u16, &'a u8))>,
    found: &mut Deliveries,
) {
    for ((&port, lid), (&home, &exit)) in entries {
        let kind = if home == nobody {
            if port == NO_ROUTE {
                continue;
            }
            DefectKind::Stray
        } else if home == switch {
            if port == exit {
                found.delivered += 1;
                continue;
            }
            DefectKind::WrongExit
        } else if port == NO_ROUTE {
            match gaps.judge(switch, home, exit != 0) {
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
            let (next, here) = (row[usize::from(home)], own[usize::from(home)]);
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
    /// No path joins the two.
    Unreachable,
    /// The engine's rules allow none, and no host misses it.
    Unrouted,
    /// There should be one.
    Missing,
}

/// What tells which pairs may have no route.
struct Gaps<'a> {
    hops: &'a HopMatrix,
    /// By switch: a number that is equal for those joined by links.
    parts: Vec<u16>,
    hosts: Vec<u32>,
}

impl<'a> Gaps<'a> {
    fn new(topology: &Topology, routing: &'a Routing) -> Self {
        let parts = Regions::find(topology, topology.switches(), |_, _| true).starts;
        Self { hops: &routing.hops, parts, hosts: topology.hosts_on() }
    }

    /// Judges that a switch has no route to a LID at another switch.
    fn judge(&self, switch: u16, home: u16, to_host: bool) -> Gap {
        let (from, to) = (usize::from(switch), usize::from(home));
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

//! Decides how many columns of tables get detours of their own, and which LIDs share one.

use ib_mad::types::Lid;

use super::column::Column;
use crate::{Destination, Entries, HopMatrix, NO_ROUTE, Topology};

/// Hosts of an egress switch that share their columns, by LID offset.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) egress_switch: u16,
    /// At least one; all have equally many LIDs, at least two.
    hosts: Vec<Destination>,
}

/// The columns with detours: one for each unit and each plane after the first.
#[derive(Debug)]
pub(super) struct Extent {
    planes: usize,
    units: Vec<Unit>,
}

impl Extent {
    /// Largest number of planes. Further LIDs take the columns of these in turn.
    pub(super) const PLANES_MAX: usize = 8;
    /// Largest number of pairs of a source switch and a column that are looked at in a pass; about
    /// a microsecond each. In larger fabrics the hosts of a switch share columns, and if that is
    /// not enough, there are fewer planes.
    pub(super) const LOOKS_MAX: usize = 1 << 22;
    /// Largest number of entries of a hop matrix with planes, a byte each.
    const ENTRIES_MAX: usize = 1 << 28;

    pub(super) fn new(topology: &Topology) -> Self {
        Self::within(topology, Self::LOOKS_MAX)
    }

    fn within(topology: &Topology, looks_max: usize) -> Self {
        let hosts = topology.destinations().iter().filter(|to| to.is_host() && to.lid_count > 1);
        let mut hosts: Vec<Destination> = hosts.copied().collect();
        let most = hosts.iter().map(|to| usize::from(to.lid_count)).max().unwrap_or(1);
        let switches = topology.switch_count().max(1);
        let fits = |planes: usize, units: usize| {
            switches * switches * planes <= Self::ENTRIES_MAX
                && switches * units * (planes - 1) <= looks_max
        };
        let planes = most.min(Self::PLANES_MAX);
        if fits(planes, hosts.len()) {
            let unit = |to: Destination| Unit { egress_switch: to.egress_switch, hosts: vec![to] };
            return Self { planes, units: hosts.into_iter().map(unit).collect() };
        }
        hosts.sort_by_key(|to| (to.egress_switch, to.lid_count));
        let of_unit = |a: &Destination, b: &Destination| {
            (a.egress_switch, a.lid_count) == (b.egress_switch, b.lid_count)
        };
        let unit = |hosts: &[Destination]| Unit {
            egress_switch: hosts[0].egress_switch,
            hosts: hosts.to_vec(),
        };
        let units: Vec<Unit> = hosts.chunk_by(of_unit).map(unit).collect();
        let planes = (2..=planes).rev().find(|&planes| fits(planes, units.len())).unwrap_or(1);
        Self { planes, units }
    }

    /// Number of planes, with that of the first LIDs.
    pub(super) fn plane_count(&self) -> usize {
        self.planes
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    /// Sets the entries for further LIDs to those for the first LID of the same destination, or of
    /// the first host of a unit. Returns the number of pairs of a switch and a further LID without
    /// a route.
    pub(super) fn copy_first_lids(&self, topology: &Topology, lfts: &mut [Entries]) -> u64 {
        let mut unrouted = 0;
        for to in topology.destinations() {
            unrouted += copy(topology, lfts, to.base_lid, to, 1..to.lid_count);
        }
        for unit in &self.units {
            for to in &unit.hosts[1..] {
                copy(topology, lfts, unit.hosts[0].base_lid, to, 1..to.lid_count);
            }
        }
        unrouted
    }
}

impl Unit {
    /// Whether any LID belongs to a plane.
    pub(super) fn has(&self, plane: usize) -> bool {
        plane < usize::from(self.hosts[0].lid_count)
    }

    /// The LID that represents the unit in a plane that it [has](Self::has).
    pub(super) fn lid(&self, plane: usize) -> Lid {
        Lid(self.hosts[0].base_lid.0 + plane as u16)
    }

    /// The LIDs of all hosts in a plane, of so many.
    pub(super) fn lids(&self, plane: usize, planes: usize) -> impl Iterator<Item = Lid> {
        self.hosts.iter().flat_map(move |to| to.lids().skip(plane).step_by(planes))
    }

    /// Writes the column of a plane, of so many, into tables.
    pub(super) fn write(
        &self,
        topology: &Topology,
        (plane, planes): (usize, usize),
        column: &Column,
        lfts: &mut [Entries],
    ) {
        let switches = topology.switches().filter(|&switch| switch != self.egress_switch);
        for (switch, link) in switches.filter_map(|switch| Some((switch, column.next(switch)?))) {
            let (port, lft) = (topology.link(link as usize).port, &mut lfts[usize::from(switch)]);
            self.lids(plane, planes).for_each(|lid| lft.set(lid.index(), port));
        }
    }
}

/// Copies the column of a LID to others of a destination, given by offset. Returns the number of
/// entries without a route.
fn copy(
    topology: &Topology,
    lfts: &mut [Entries],
    from: Lid,
    to: &Destination,
    offsets: std::ops::Range<u16>,
) -> u64 {
    let mut unrouted = 0;
    for switch in topology.switches() {
        let lft = &mut lfts[usize::from(switch)];
        let at_home = switch == to.egress_switch;
        let port = if at_home { to.exit } else { lft[from.index()] };
        let lids = offsets.clone().map(|offset| usize::from(to.base_lid.0 + offset));
        lids.for_each(|lid| lft.set(lid, port));
        unrouted += u64::from(port == NO_ROUTE) * offsets.len() as u64;
    }
    unrouted
}

/// Largest number that may fall along a route.
const POTENTIAL_MAX: u16 = HopMatrix::HOPS_MAX as u16;

/// How many numbers a plane has for switches that are equally far from an egress switch, so that
/// routes can pass from one to another; 0 if paths are too long for any.
pub(super) fn shades(hops: &HopMatrix) -> u8 {
    (POTENTIAL_MAX / (u16::from(hops.diameter()) + 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn large_fabrics_share_columns_and_then_have_fewer_planes() {
        // 16 switches with 3 hosts of 8 LIDs each: 48 hosts times 16 sources times 7 planes.
        let topology = testing::topology(&testing::torus(&[4, 4], 3), 3);
        let extent = |looks| {
            let Extent { planes, units } = Extent::within(&topology, looks);
            (planes, units.len())
        };
        assert_eq!(extent(48 * 16 * 7), (8, 48));
        assert_eq!(extent(48 * 16 * 7 - 1), (8, 16));
        assert_eq!(extent(16 * 16 * 7 - 1), (7, 16));
        assert_eq!(extent(16 * 16 - 1).0, 1);
    }
}

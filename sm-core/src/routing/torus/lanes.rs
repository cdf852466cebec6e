//! Service levels and virtual lanes of a torus (torus-2QoS(8), "UNICAST ROUTING").
//!
//! ```text
//! SL 3  2 1 0                                 VL 2    1     0
//!    QoS z y x: whether the path crosses         QoS  turn  the SL's bit of the axis
//!               the dateline of each axis                   that the link leads along
//! ```
//!
//! *Turn* is for the hop after a turn against the order of axes, which routes around a missing
//! switch take. Links to hosts and port 0 have VL 0 for the lower QoS level and VL 1 for the upper.

use super::grid::Grid;
use super::shape::{AXES, Direction, Place, Shape, is_in_odd_row, preferred};
use super::tree::MasterTree;
use crate::routing::Topology;

/// The SL bit of the upper QoS level.
pub const QOS_SL: u8 = 1 << AXES;

/// The lanes of a torus. The SL of a path follows from the places of its ends alone, so that it
/// stays the same whatever fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorusLanes {
    shape: Shape,
    /// By switch.
    at: Vec<Place>,
    /// By switch and port: the axis that a link leads along, or [`NO_AXIS`].
    axis: Vec<u8>,
    /// Where each switch's ports begin in `axis`.
    first_port: Vec<u32>,
    /// Data VLs that all ports between switches have.
    data_lanes: u8,
    tree: MasterTree,
}

/// Leads to no other place: to a host, port 0, or where no link of the torus is.
const NO_AXIS: u8 = AXES as u8;

impl TorusLanes {
    pub(super) fn new(topology: &Topology, grid: &Grid, data_lanes: u8, tree: MasterTree) -> Self {
        let mut axis = Vec::new();
        let mut first_port = Vec::with_capacity(grid.at.len());
        for switch in topology.switches() {
            let first = axis.len();
            first_port.push(first as u32);
            axis.resize(first + usize::from(topology.port_count(switch)) + 1, NO_AXIS);
            for direction in Direction::all() {
                for &port in grid.ports(switch, direction) {
                    axis[first + usize::from(port)] = direction.axis() as u8;
                }
            }
        }
        Self { shape: grid.shape, at: grid.at.clone(), axis, first_port, data_lanes, tree }
    }

    /// All switches with their coordinates x, y, z, ascending by z, then y, then x.
    pub fn places(&self) -> Vec<([u8; AXES], u16)> {
        let mut places: Vec<(Place, u16)> = self.at.iter().copied().zip(0..).collect();
        places.sort_unstable_by_key(|&(place, _)| self.shape.index(place));
        places
    }

    /// The SL of a path of the lower QoS level between hosts on two switches; [`QOS_SL`] is added
    /// for the upper one.
    pub fn sl(&self, source: u16, home: u16) -> u8 {
        let (from, to) = (self.at[usize::from(source)], self.at[usize::from(home)]);
        sl(&self.shape, from, to)
    }

    /// The same of paths from all switches, by source.
    pub(in crate::routing) fn sls_to(&self, home: u16, sls: &mut Vec<u8>) {
        let (shape, to) = (&self.shape, self.at[usize::from(home)]);
        // Each axis has its bit by the coordinate along it alone.
        let bits: [Vec<u8>; AXES] = std::array::from_fn(|axis| {
            let coordinates = 0..shape.radix(axis);
            coordinates.map(|here| u8::from(crosses(shape, axis, here, to)) << axis).collect()
        });
        sls.clear();
        let of_axis = |(here, bits): (&u8, &Vec<u8>)| bits[usize::from(*here)];
        sls.extend(
            self.at.iter().map(|at| at.iter().zip(&bits).map(of_axis).fold(0, |sl, bit| sl | bit)),
        );
    }

    /// The VL by which a packet leaves a switch: an entry of its SL2VL table for that pair of
    /// ports. Port 0 is the switch itself.
    pub fn vl(&self, switch: u16, in_port: u8, out_port: u8, sl: u8) -> u8 {
        self.vl_by_axes(self.axis(switch, in_port), self.axis(switch, out_port), sl)
    }

    /// The same by the axes along which the links behind these ports lead ([`Self::axis`]).
    pub(in crate::routing) fn vl_by_axes(
        &self,
        before: Option<usize>,
        after: Option<usize>,
        sl: u8,
    ) -> u8 {
        vl(before, after, sl, self.data_lanes)
    }

    /// The VL by which a host of `data_lanes` data VLs sends.
    pub fn host_vl(sl: u8, data_lanes: u8) -> u8 {
        vl(None, None, sl, data_lanes)
    }

    /// The tree on which multicast groups have theirs, so that their packets and those of unicast
    /// routes never wait for each other in a circle. For SL 0 and SL 8 only.
    pub fn tree(&self) -> &MasterTree {
        &self.tree
    }

    /// Coordinates of a switch.
    pub fn coordinates(&self, switch: u16) -> Place {
        self.at[usize::from(switch)]
    }

    /// The axis along which the link behind a port leads, below [`AXES`]; `None` if it leads to a host.
    pub(in crate::routing) fn axis(&self, switch: u16, port: u8) -> Option<usize> {
        let switch = usize::from(switch);
        let end = self.first_port.get(switch + 1).map_or(self.axis.len(), |&end| end as usize);
        let ports = &self.axis[self.first_port[switch] as usize..end];
        ports.get(usize::from(port)).filter(|&&axis| axis != NO_AXIS).map(|&axis| axis.into())
    }
}

/// The SL of a path: bit d tells that it crosses the dateline of axis d, between the last place
/// and the first, if nothing is broken.
pub(super) fn sl(shape: &Shape, from: Place, to: Place) -> u8 {
    let crosses = |&axis: &usize| crosses(shape, axis, from[axis], to);
    (0..AXES).filter(crosses).fold(0, |sl, axis| sl | 1 << axis)
}

/// Whether a path crosses the dateline of an axis that begins `here` along it.
fn crosses(shape: &Shape, axis: usize, here: u8, to: Place) -> bool {
    let (there, odd_row) = (to[axis], is_in_odd_row(to, axis));
    here != there && preferred(shape, axis, here, there, odd_row).is_up() != (here < there)
}

/// The VL of a hop by the axes before and after, `None` for hosts and switches themselves. With
/// too few data VLs, the QoS levels share theirs first, then turns do.
pub(super) fn vl(before: Option<usize>, after: Option<usize>, sl: u8, data_lanes: u8) -> u8 {
    let qos = u8::from(sl & QOS_SL != 0);
    let Some(axis) = after else { return if data_lanes >= 2 { qos } else { 0 } };
    let mut vl = 0;
    if data_lanes >= 2 {
        vl |= sl >> axis & 1;
    }
    if data_lanes >= TURN_LANES {
        vl |= u8::from(before.is_some_and(|before| before > axis)) << 1;
    }
    if data_lanes >= 8 {
        vl |= qos << 2;
    }
    vl
}

/// Data VLs with which turns against the order of axes have their own.
pub(super) const TURN_LANES: u8 = 4;

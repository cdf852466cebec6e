//! Computes service levels and virtual lanes of a torus (torus-2QoS(8), "UNICAST ROUTING").
//!
//! ```text
//! SL 3  2 1 0                                 VL 2    1     0
//!    QoS z y x: whether the path crosses         QoS  turn  the SL's bit of the axis
//!               the dateline of each axis                   that the link leads along
//! ```
//!
//! *Turn* is set on the hop after a turn against the order of axes, which routes around a missing
//! switch take. Links to hosts and port 0 use VL 0 for the lower QoS level and VL 1 for the upper.

mod shape;

pub use self::shape::{AXES, Shape};
pub(crate) use self::shape::{DIRECTIONS, Direction, Place, preferred};
pub use super::tree::MasterTree;
use super::{HopLanes, LEVEL_LANES};
use crate::Topology;

/// The SL bit of the upper QoS level.
pub const QOS_SL: u8 = 1 << AXES;

/// The lanes of a torus. The SL of a path depends only on the places of its ends, so it stays the
/// same after any failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorusLanes {
    shape: Shape,
    /// By switch.
    at: Vec<Place>,
    /// By switch and port: the axis of its link, or [`NO_AXIS`].
    axis: Vec<u8>,
    /// By switch: index of its first port in `axis`.
    first_port: Vec<u32>,
    /// Data VLs that all ports between switches have.
    data_lanes: u8,
    tree: MasterTree,
}

/// Marks a port that leads to no other place: to a host, port 0, or a port without a link of the
/// torus.
const NO_AXIS: u8 = AXES as u8;

impl TorusLanes {
    /// Describes a torus of this shape whose switches are at these places, by switch. `ports` has
    /// the ports of a switch that lead in a direction.
    pub(crate) fn new<'a>(
        topology: &Topology,
        (shape, at): (Shape, Vec<Place>),
        ports: impl Fn(u16, Direction) -> &'a [u8],
        data_lanes: u8,
        tree: MasterTree,
    ) -> Self {
        let mut axis = Vec::new();
        let mut first_port = Vec::with_capacity(at.len());
        for switch in topology.switches() {
            let first = axis.len();
            first_port.push(first as u32);
            axis.resize(first + usize::from(topology.port_count(switch)) + 1, NO_AXIS);
            for direction in Direction::all() {
                for &port in ports(switch, direction) {
                    axis[first + usize::from(port)] = direction.axis() as u8;
                }
            }
        }
        Self { shape, at, axis, first_port, data_lanes, tree }
    }

    /// All switches with their coordinates x, y, z, ascending by z, then y, then x.
    pub fn places(&self) -> Vec<([u8; AXES], u16)> {
        let mut places: Vec<(Place, u16)> = self.at.iter().copied().zip(0..).collect();
        places.sort_unstable_by_key(|&(place, _)| self.shape.index(place));
        places
    }

    /// The SL of a path of the lower QoS level between hosts on two switches. For the upper level
    /// [`QOS_SL`] is added.
    pub fn sl(&self, source: u16, egress_switch: u16) -> u8 {
        let (from, to) = (self.at[usize::from(source)], self.at[usize::from(egress_switch)]);
        sl(&self.shape, from, to)
    }

    /// The SLs of paths from all switches, by source.
    pub(crate) fn sls_to(&self, egress_switch: u16, sls: &mut Vec<u8>) {
        let (shape, to) = (&self.shape, self.at[usize::from(egress_switch)]);
        // Each axis contributes its bit by the coordinate along it alone.
        let bits: [Vec<u8>; AXES] = std::array::from_fn(|axis| {
            let coordinates = 0..shape.radix(axis);
            coordinates.map(|here| u8::from(crosses(shape, axis, here, to[axis])) << axis).collect()
        });
        sls.clear();
        let of_axis = |(here, bits): (&u8, &Vec<u8>)| bits[usize::from(*here)];
        sls.extend(
            self.at.iter().map(|at| at.iter().zip(&bits).map(of_axis).fold(0, |sl, bit| sl | bit)),
        );
    }

    /// The VL on which a packet leaves a switch: the entry for its SL in the SL2VL table of this
    /// pair of ports. Port 0 is the switch itself.
    pub fn vl(&self, switch: u16, in_port: u8, out_port: u8, sl: u8) -> u8 {
        self.vl_by_axes(self.axis(switch, in_port), self.axis(switch, out_port), sl)
    }

    /// The VL by the axes of the links at these ports ([`Self::axis`]).
    pub(crate) fn vl_by_axes(&self, before: Option<usize>, after: Option<usize>, sl: u8) -> u8 {
        vl(before, after, sl, self.data_lanes)
    }

    /// The VLs, as a bit set, on which packets of an SL leave a switch by a port, wherever they
    /// came from.
    pub fn vls(&self, switch: u16, out_port: u8, sl: u8) -> u16 {
        let after = self.axis(switch, out_port);
        let before = (0..AXES).map(Some).chain([None]);
        before.fold(0, |vls, before| vls | 1 << self.vl_by_axes(before, after, sl))
    }

    /// The VL on which a host with `data_lanes` data VLs sends.
    pub fn host_vl(sl: u8, data_lanes: u8) -> u8 {
        vl(None, None, sl, data_lanes)
    }

    /// The master tree, of which the trees of multicast groups are parts, so that their packets and
    /// those of unicast routes never depend on each other in a cycle. For SL 0 and SL 8 only.
    pub fn tree(&self) -> &MasterTree {
        &self.tree
    }

    /// Coordinates of a switch.
    pub fn coordinates(&self, switch: u16) -> Place {
        self.at[usize::from(switch)]
    }

    /// The axis of the link at a port, below [`AXES`]; `None` if the port leads to a host.
    pub fn axis(&self, switch: u16, port: u8) -> Option<usize> {
        let switch = usize::from(switch);
        let end = self.first_port.get(switch + 1).map_or(self.axis.len(), |&end| end as usize);
        let ports = &self.axis[self.first_port[switch] as usize..end];
        ports.get(usize::from(port)).filter(|&&axis| axis != NO_AXIS).map(|&axis| axis.into())
    }
}

impl HopLanes for TorusLanes {
    fn vl(&self, switch: u16, in_port: u8, out_port: u8, sl: u8) -> u8 {
        self.vl(switch, in_port, out_port, sl)
    }

    fn vls(&self, switch: u16, out_port: u8, sl: u8) -> u16 {
        self.vls(switch, out_port, sl)
    }

    fn host_vl(&self, sl: u8, data_lanes: u8) -> u8 {
        Self::host_vl(sl, data_lanes)
    }

    fn lane(&self, vl: u8) -> u8 {
        vl % LEVEL_LANES
    }

    fn tree(&self) -> &MasterTree {
        &self.tree
    }
}

/// The SL of a path: bit d is set if the path, in an intact torus, crosses the dateline of axis d,
/// which is between the last place and the first.
pub(crate) fn sl(shape: &Shape, from: Place, to: Place) -> u8 {
    let crosses = |&axis: &usize| crosses(shape, axis, from[axis], to[axis]);
    (0..AXES).filter(crosses).fold(0, |sl, axis| sl | 1 << axis)
}

/// Whether a path from coordinate `here` to coordinate `there` crosses the dateline of an axis.
fn crosses(shape: &Shape, axis: usize, here: u8, there: u8) -> bool {
    here != there && preferred(shape, axis, here, there).is_up() != (here < there)
}

/// The VL of a hop by the axes before and after it, `None` for hosts and switches themselves. With
/// too few data VLs, first the QoS levels share VLs, then turns do.
pub(crate) fn vl(before: Option<usize>, after: Option<usize>, sl: u8, data_lanes: u8) -> u8 {
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

/// Number of data VLs from which turns against the order of axes have separate VLs.
pub(crate) const TURN_LANES: u8 = 4;

//! Why a fabric is not routed as a torus.

use ib_mad::types::Guid;

use crate::HopMatrix;

/// Number of dimensions. A dimension of radix 1 is unused.
pub const AXES: usize = 3;
/// Names of the axes.
pub const AXIS_NAMES: [char; AXES] = ['x', 'y', 'z'];

/// Why a fabric is not routed as a torus: the first obstacle found. Places are coordinates x, y, z.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No description of the torus is configured.
    #[error(
        "no usable torus-2QoS.conf: torus_config is not set, or the file was rejected (see earlier \
         messages)"
    )]
    NoConfig,
    /// No seed is complete.
    #[error(
        "every seed in torus-2QoS.conf names a switch that is missing; the first seed lacks \
         {missing}; add a seed with 'next_seed'"
    )]
    NoSeed {
        /// GUID of the missing switch.
        missing: Guid,
    },
    /// Switches do not fit the torus that is described.
    #[error(
        "from the seed at {seed} only {placed} of {switches} switches could be placed in the torus \
         ({unplaced} could not); check the radices and the directions of the seed in \
         torus-2QoS.conf"
    )]
    Misfit {
        /// GUID of the seed's first switch.
        seed: Guid,
        /// Number of switches that have a place.
        placed: usize,
        /// Number of switches in the topology.
        switches: usize,
        /// GUID of a switch without a place.
        unplaced: Guid,
    },
    /// The pattern of missing switches cannot be routed around without credit loops.
    #[error(
        "switches are missing at {} and {}; missing switches must be adjacent along the last axis",
        At(*.first), At(*.other)
    )]
    TooManyMissing {
        /// Place of a missing switch.
        first: [u8; AXES],
        /// Place of a missing switch that is not in a row with it.
        other: [u8; AXES],
    },
    /// A ring, or a row of a mesh, is in two pieces.
    #[error(
        "the {} of {} is cut in two, between {} and {} and between {} and {}",
        if *.is_ring { "ring" } else { "row" }, Line(*.axis, .cuts[0].0),
        At(.cuts[0].0), At(.cuts[0].1), At(.cuts[1].0), At(.cuts[1].1)
    )]
    Cut {
        /// The axis that it runs along.
        axis: usize,
        /// Whether it is a ring.
        is_ring: bool,
        /// The places on both sides of each cut.
        cuts: [([u8; AXES], [u8; AXES]); 2],
    },
    /// Dimension order gives no route.
    #[error("no route in dimension order is left from {} to {}", At(*.from), At(*.to))]
    NoRoute {
        /// Source of the missing route.
        from: [u8; AXES],
        /// Destination of the missing route.
        to: [u8; AXES],
    },
    /// Routes around the missing parts depend on each other in a cycle.
    #[error("routes around the missing switches or links would form a credit loop")]
    CreditLoop,
    /// The tree that multicast needs does not reach all switches.
    #[error("no spanning tree for multicast reaches all switches")]
    NoTree,
    /// A route has more hops than can be counted.
    #[error("routes would have more than {max} hops", max = HopMatrix::HOPS_MAX)]
    TooLong,
}

/// Shows a place as `(1,2,0)`.
struct At([u8; AXES]);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self([x, y, z]) = self;
        write!(f, "({x},{y},{z})")
    }
}

/// Shows a ring as `x at y=2, z=0`, given its axis and any of its places.
struct Line(usize, [u8; AXES]);

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(axis, place) = self;
        write!(f, "{} at ", AXIS_NAMES[*axis])?;
        let others = (0..AXIS_NAMES.len()).filter(|other| other != axis);
        let others = others.map(|other| format!("{}={}", AXIS_NAMES[other], place[other]));
        f.write_str(&others.collect::<Vec<_>>().join(", "))
    }
}

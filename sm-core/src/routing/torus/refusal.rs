//! Why a fabric is not routed as a torus.

use ib_mad::types::Guid;

use super::super::HopMatrix;
use super::shape::{AXIS_NAMES, Place};

/// Why a fabric is not routed. Where several things are wrong, the first that was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "there is no torus-2QoS.conf that can be used, to tell the shape of the torus: none is there, or it was refused before this"
    )]
    NoConfig,
    #[error(
        "of every seed in torus-2QoS.conf a switch is missing, of the first {missing}; add one with 'next_seed'"
    )]
    NoSeed { missing: Guid },
    #[error(
        "from the seed at {seed} only {placed} of {switches} switches could be placed in the torus, \
         {left} not; is torus-2QoS.conf right about the radices and the directions of the seed?"
    )]
    Misfit { seed: Guid, placed: usize, switches: usize, left: Guid },
    #[error(
        "switches are missing at {} and {}; all that are missing must follow each other along the \
         last axis", At(*.first), At(*.other)
    )]
    TooManyMissing { first: Place, other: Place },
    #[error(
        "the {} of {} is cut in two, between {} and {} and between {} and {}",
        if *.is_ring { "ring" } else { "row" }, Line(*.axis, .cuts[0].0),
        At(.cuts[0].0), At(.cuts[0].1), At(.cuts[1].0), At(.cuts[1].1)
    )]
    Cut { axis: usize, is_ring: bool, cuts: [(Place, Place); 2] },
    #[error("nothing that is left leads from {} to {} in the order of dimensions", At(*.from), At(*.to))]
    NoRoute { from: Place, to: Place },
    #[error("the ways around what is missing would wait for each other in a circle")]
    CreditLoop,
    #[error("no spanning tree for multicast reaches all switches")]
    NoTree,
    #[error("too few data VLs")]
    TooFewLanes,
    #[error("routes would have more than {max} hops", max = HopMatrix::HOPS_MAX)]
    TooLong,
}

/// Shows a place as `(1,2,0)`.
struct At(Place);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self([x, y, z]) = self;
        write!(f, "({x},{y},{z})")
    }
}

/// Shows a ring as `x at y=2, z=0`, by its axis and any of its places.
struct Line(usize, Place);

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(axis, place) = self;
        write!(f, "{} at ", AXIS_NAMES[*axis])?;
        let others = (0..AXIS_NAMES.len()).filter(|other| other != axis);
        let others = others.map(|other| format!("{}={}", AXIS_NAMES[other], place[other]));
        f.write_str(&others.collect::<Vec<_>>().join(", "))
    }
}

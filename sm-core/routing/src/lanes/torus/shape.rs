//! Places in a torus or mesh, and directions between them.

pub use crate::error::AXES;

/// Directions: down and up each axis.
pub(crate) const DIRECTIONS: usize = 2 * AXES;

/// Coordinates x, y, z, each from 0 and below its radix.
pub(crate) type Place = [u8; AXES];

/// A direction: down or up one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direction(u8);

impl Direction {
    pub(crate) fn new(axis: usize, up: bool) -> Self {
        Self((2 * axis + usize::from(up)) as u8)
    }

    /// All directions, by index.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..DIRECTIONS as u8).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        self.0.into()
    }

    pub(crate) fn axis(self) -> usize {
        usize::from(self.0 / 2)
    }

    /// Whether it leads up its axis.
    pub(crate) fn is_up(self) -> bool {
        self.0 % 2 == 1
    }

    pub(crate) fn opposite(self) -> Self {
        Self(self.0 ^ 1)
    }
}

/// Radix of each dimension, and which of them close to rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    radix: [u8; AXES],
    wraps: [bool; AXES],
}

impl Shape {
    /// The largest radix of a dimension: no route may have more than 253 hops.
    pub const RADIX_MAX: u8 = 254;

    /// Creates a shape whose dimensions have at least 1 switch. A dimension of one or two switches
    /// is never a ring: two switches with two cables between them have parallel links.
    pub fn new(radix: [u8; AXES], wraps: [bool; AXES]) -> Self {
        let wraps = std::array::from_fn(|axis| wraps[axis] && radix[axis] > 2);
        Self { radix: radix.map(|radix| radix.max(1)), wraps }
    }

    /// Number of switches along an axis.
    pub fn radix(&self, axis: usize) -> u8 {
        self.radix[axis]
    }

    /// Whether an axis has rings rather than lines.
    pub fn wraps(&self, axis: usize) -> bool {
        self.wraps[axis]
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        self.radix.iter().map(|&radix| usize::from(radix)).product()
    }

    /// Always false: there is at least one place.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Number of a place; x varies fastest.
    pub(crate) fn index(&self, [x, y, z]: Place) -> usize {
        let [rx, ry, _] = self.radix.map(usize::from);
        usize::from(x) + rx * (usize::from(y) + ry * usize::from(z))
    }

    /// The place with this number; the inverse of [`index`](Self::index).
    pub(crate) fn place(&self, index: usize) -> Place {
        let [rx, ry, _] = self.radix.map(usize::from);
        [(index % rx) as u8, (index / rx % ry) as u8, (index / rx / ry) as u8]
    }

    /// The next place in a direction; `None` at the end of a line.
    pub(crate) fn step(&self, mut place: Place, direction: Direction) -> Option<Place> {
        let axis = direction.axis();
        let (here, last) = (place[axis], self.radix[axis] - 1);
        place[axis] = match direction.is_up() {
            true if here < last => here + 1,
            false if here > 0 => here - 1,
            _ if !self.wraps[axis] => return None,
            true => 0,
            false => last,
        };
        Some(place)
    }

    /// The direction from one place to an adjacent one.
    pub(crate) fn direction(&self, from: Place, to: Place) -> Option<Direction> {
        Direction::all().find(|&direction| self.step(from, direction) == Some(to))
    }

    /// Number of rings or lines along an axis.
    pub(crate) fn rings(&self, axis: usize) -> usize {
        self.len() / usize::from(self.radix[axis])
    }

    /// Number of the ring or line that a place is on.
    pub(crate) fn ring(&self, axis: usize, [x, y, z]: Place) -> usize {
        let [x, y, z] = [x, y, z].map(usize::from);
        let [rx, ry, _] = self.radix.map(usize::from);
        match axis {
            0 => y + ry * z,
            1 => x + rx * z,
            _ => x + rx * y,
        }
    }

    /// The places of a ring or line, in ascending order.
    pub(crate) fn ring_places(&self, axis: usize, ring: usize) -> impl Iterator<Item = Place> {
        let [rx, ry, _] = self.radix.map(usize::from);
        let (a, b) = if axis == 0 { (ring % ry, ring / ry) } else { (ring % rx, ring / rx) };
        let (a, b) = (a as u8, b as u8);
        (0..self.radix[axis]).map(move |here| match axis {
            0 => [here, a, b],
            1 => [a, here, b],
            _ => [a, b, here],
        })
    }
}

/// The direction of a route along an axis if nothing is broken: the shorter way round. Of two
/// equally short ways, the unordered pair of coordinates decides, so that the way back is the same
/// one: requests and replies have one SL, and Linux sends a reply on that of its request. Every
/// second pair takes the way across the dateline.
pub(crate) fn preferred(shape: &Shape, axis: usize, from: u8, to: u8) -> Direction {
    let radix = u16::from(shape.radix(axis));
    let ahead = (u16::from(to) + radix - u16::from(from)) % radix;
    let up = match (2 * ahead).cmp(&radix) {
        _ if !shape.wraps(axis) => to > from,
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => {
            let crosses_dateline = from.min(to).is_multiple_of(2);
            (from < to) != crosses_dateline
        }
        std::cmp::Ordering::Greater => false,
    };
    Direction::new(axis, up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_rings_and_steps_agree() {
        for shape in [
            Shape::new([5, 4, 3], [true, false, true]),
            Shape::new([1, 2, 7], [true; 3]),
            Shape::new([3, 1, 1], [false; 3]),
        ] {
            for index in 0..shape.len() {
                let place = shape.place(index);
                assert_eq!(shape.index(place), index);
                for axis in 0..AXES {
                    let mut ring = shape.ring_places(axis, shape.ring(axis, place));
                    assert!(ring.any(|other| other == place), "{place:?} on {axis}");
                }
                for direction in Direction::all() {
                    let Some(next) = shape.step(place, direction) else { continue };
                    assert_eq!(shape.step(next, direction.opposite()), Some(place));
                    assert_eq!(shape.direction(place, next), Some(direction));
                }
            }
        }
    }

    /// Regression: half way round an even ring, where both directions are equally short, the way
    /// back had another SL than the way there.
    #[test]
    fn the_way_back_is_the_way_there() {
        for radix in 3..=12 {
            let shape = Shape::new([radix, 2, 1], [true, false, false]);
            for (from, to) in (0..radix).flat_map(|from| (0..radix).map(move |to| (from, to))) {
                let there = preferred(&shape, 0, from, to);
                let back = preferred(&shape, 0, to, from);
                assert!(from == to || there == back.opposite(), "{from} to {to} of {radix}");
            }
        }
    }

    /// Each tie loads half of the ring, so that loads differ, but by few.
    #[test]
    fn ties_load_both_halves_of_a_ring() {
        for radix in [4, 6, 8, 12] {
            let shape = Shape::new([radix, 2, 1], [true, false, false]);
            let mut loads = vec![[0; 2]; radix.into()];
            for from in 0..radix {
                let to = (from + radix / 2) % radix;
                let direction = preferred(&shape, 0, from, to);
                let mut here = [from, 0, 0];
                while here[0] != to {
                    loads[usize::from(here[0])][usize::from(direction.is_up())] += 1;
                    here = shape.step(here, direction).unwrap();
                }
            }
            let mean = i32::from(radix) / 4;
            let extremes = (loads.iter().flatten().min(), loads.iter().flatten().max());
            let (Some(&least), Some(&most)) = extremes else { panic!() };
            assert!(mean - 1 <= least && most <= mean + 2, "{radix}: {loads:?}");
        }
    }
}

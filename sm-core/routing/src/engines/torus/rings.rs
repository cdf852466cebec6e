//! Computes in which direction routes go round each ring.

use super::grid::Grid;
use crate::lanes::torus::{AXES, Direction, Place, preferred};

/// For each ring and pair of its places: up, down, or blocked.
pub(super) struct Rings {
    /// Tables, each by source and destination coordinate.
    ways: Vec<u8>,
    /// By axis and ring: index of its table. Rings without missing parts share one table per axis.
    tables: [Vec<u32>; AXES],
    radix: [usize; AXES],
}

const DOWN: u8 = 0;
const UP: u8 = 1;
const BLOCKED: u8 = 2;

impl Rings {
    pub(super) fn new(grid: &Grid) -> Self {
        let shape = &grid.shape;
        let radix = std::array::from_fn(|axis| usize::from(shape.radix(axis)));
        let mut ways = Vec::new();
        let tables = std::array::from_fn(|axis| {
            let mut whole = None;
            let begins = (0..shape.rings(axis)).map(|ring| {
                let begin = ways.len() as u32;
                let row: Vec<Place> = shape.ring_places(axis, ring).collect();
                if !is_whole(grid, axis, &row) {
                    add_table(grid, axis, &row, &mut ways);
                    return begin;
                }
                *whole.get_or_insert_with(|| {
                    add_table(grid, axis, &row, &mut ways);
                    begin
                })
            });
            begins.collect()
        });
        Self { ways, tables, radix }
    }

    /// Returns the directions of routes from one switch.
    pub(super) fn from(&self, grid: &Grid, from: Place) -> From<'_> {
        let ways = std::array::from_fn(|axis| {
            let begin = self.tables[axis][grid.shape.ring(axis, from)] as usize;
            let radix = self.radix[axis];
            let begin = begin + usize::from(from[axis]) * radix;
            &self.ways[begin..begin + radix]
        });
        From { at: from, ways }
    }
}

/// Routes from one switch, by axis and coordinate of the destination.
pub(super) struct From<'a> {
    at: Place,
    ways: [&'a [u8]; AXES],
}

impl From<'_> {
    /// The direction of the next hop to another place: along the first axis whose coordinate still
    /// differs and along which the route can continue. `None` if there is no such axis.
    ///
    /// If the switch at which the route would turn is missing, the route turns early, as close to
    /// it as possible, and returns to its course by a turn against the order of axes.
    #[inline]
    pub(super) fn direction(&self, to: Place) -> Option<Direction> {
        let axes = self.at.into_iter().zip(to).zip(self.ways).enumerate();
        axes.filter(|(_, ((here, there), _))| here != there).find_map(
            |(axis, ((_, there), ways))| match ways[usize::from(there)] {
                BLOCKED => None,
                way => Some(Direction::new(axis, way == UP)),
            },
        )
    }
}

/// Whether no switch or link of a ring is missing.
fn is_whole(grid: &Grid, axis: usize, row: &[Place]) -> bool {
    row.iter().all(|&place| {
        let Some(switch) = grid.switch(place) else { return false };
        let up = Direction::new(axis, true);
        grid.shape.step(place, up).is_none() || grid.next(switch, up).is_some()
    })
}

fn add_table(grid: &Grid, axis: usize, row: &[Place], ways: &mut Vec<u8>) {
    let radix = row.len();
    // Hops that can be made from each place, downwards and upwards.
    let reach: Vec<[usize; 2]> =
        row.iter().map(|&from| [false, true].map(|up| reach(grid, axis, from, up))).collect();
    for (from, reach) in reach.iter().enumerate() {
        for (to, &place) in row.iter().enumerate() {
            let way = preferred(&grid.shape, axis, from as u8, to as u8).is_up();
            let ahead = (to + radix - from) % radix;
            let hops = [radix - ahead, ahead];
            let leads = |way: bool| reach[usize::from(way)] >= hops[usize::from(way)];
            let free = |way: bool| reach[usize::from(way)] > 0;
            ways.push(match grid.switch(place) {
                _ if from == to => BLOCKED,
                // The switch at the turn is missing: go as near to it as the preferred
                // direction allows.
                None if free(way) => code(way),
                Some(_) if leads(way) => code(way),
                Some(_) if leads(!way) => code(!way),
                _ => BLOCKED,
            });
        }
    }
}

/// Number of hops possible from a place in one direction, at most once round.
fn reach(grid: &Grid, axis: usize, from: Place, up: bool) -> usize {
    let direction = Direction::new(axis, up);
    let mut hops = 0;
    let mut at = grid.switch(from);
    while let Some(switch) = at.filter(|_| hops < usize::from(grid.shape.radix(axis))) {
        at = grid.next(switch, direction);
        hops += usize::from(at.is_some());
    }
    hops
}

fn code(up: bool) -> u8 {
    if up { UP } else { DOWN }
}

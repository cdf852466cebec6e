//! Finds the torus in the fabric. Starting from the seed's switches, each switch is assigned a
//! place as soon as its links leave only one possibility.
//!
//! A switch that is linked to switches with known places must be at a place next to all of these.
//! Remaining possibilities are reduced by squares: two neighbours U and V of a switch that have
//! another neighbour in common lie around a corner, so U cannot be opposite V. (In a ring of four
//! they can, which is why seeds specify both directions there.) A failed link removes evidence but
//! never gives wrong evidence, so in any part of a torus every place found is right.

use std::collections::{BTreeMap, VecDeque};

use ib_mad::types::Guid;

use super::config::{Config, Seed};
use crate::Topology;
use crate::error::Refusal;
use crate::lanes::torus::{AXES, DIRECTIONS, Direction, Place, Shape};

/// Returns the place of each switch, by the first seed from which all can be placed. `guids` is by
/// switch.
pub(super) fn places(
    topology: &Topology,
    config: &Config,
    guids: &[Guid],
) -> Result<Vec<Place>, Refusal> {
    let switches: BTreeMap<Guid, u16> = guids.iter().copied().zip(topology.switches()).collect();
    let neighbours: Vec<Vec<u16>> = topology.switches().map(|s| neighbours(topology, s)).collect();
    let mut best: Option<Refusal> = None;
    let mut most = 0;
    let mut first_missing = None;
    for seed in &config.seeds {
        let mut placer = Placer::new(&config.shape, &neighbours);
        if let Err(missing) = placer.sow(seed, &switches) {
            first_missing.get_or_insert(missing);
            continue;
        }
        placer.grow();
        let Some(unplaced) = placer.at.iter().position(Option::is_none) else {
            return Ok(placer.at.into_iter().flatten().collect());
        };
        let placed = placer.at.iter().flatten().count();
        if best.is_none() || placed > most {
            let (switches, unplaced) = (guids.len(), guids[unplaced]);
            most = placed;
            best = Some(Refusal::Misfit { seed: seed.from, placed, switches, unplaced });
        }
    }
    let missing = first_missing.unwrap_or_default();
    Err(best.unwrap_or(Refusal::NoSeed { missing }))
}

/// The neighbours of a switch, each once, ascending.
fn neighbours(topology: &Topology, switch: u16) -> Vec<u16> {
    let mut peers: Vec<u16> = topology.links(switch).iter().map(|link| link.peer).collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

struct Placer<'a> {
    shape: &'a Shape,
    neighbours: &'a [Vec<u16>],
    /// By switch.
    at: Vec<Option<Place>>,
    /// By place number.
    there: Vec<Option<u16>>,
    /// Switches whose place may have become certain, each once.
    queue: VecDeque<u16>,
    is_queued: Vec<bool>,
}

impl<'a> Placer<'a> {
    fn new(shape: &'a Shape, neighbours: &'a [Vec<u16>]) -> Self {
        Self {
            shape,
            neighbours,
            at: vec![None; neighbours.len()],
            there: vec![None; shape.len()],
            queue: VecDeque::new(),
            is_queued: vec![false; neighbours.len()],
        }
    }

    /// Places a seed's switches; the error is the GUID of one that the fabric does not have.
    fn sow(&mut self, seed: &Seed, switches: &BTreeMap<Guid, u16>) -> Result<(), Guid> {
        for (guid, place) in seed.switches(self.shape) {
            let &switch = switches.get(&guid).ok_or(guid)?;
            if self.at[usize::from(switch)].is_none() {
                self.put(switch, place);
            }
        }
        Ok(())
    }

    fn grow(&mut self) {
        while let Some(switch) = self.queue.pop_front() {
            self.is_queued[usize::from(switch)] = false;
            if self.at[usize::from(switch)].is_some() {
                continue;
            }
            if let Some(place) = self.only_place(switch) {
                self.put(switch, place);
            }
        }
    }

    fn put(&mut self, switch: u16, place: Place) {
        self.at[usize::from(switch)] = Some(place);
        self.there[self.shape.index(place)] = Some(switch);
        // Neighbours are affected, and neighbours of the switches at adjacent places, linked or
        // not.
        self.ask_neighbours(switch);
        for beside in Direction::all().filter_map(|direction| self.shape.step(place, direction)) {
            if let Some(beside) = self.there[self.shape.index(beside)] {
                self.ask_neighbours(beside);
            }
        }
    }

    fn ask_neighbours(&mut self, switch: u16) {
        for &peer in &self.neighbours[usize::from(switch)] {
            let index = usize::from(peer);
            if self.at[index].is_none() && !std::mem::replace(&mut self.is_queued[index], true) {
                self.queue.push_back(peer);
            }
        }
    }

    /// The only place where a switch can be; `None` if there are several, or none.
    fn only_place(&self, switch: u16) -> Option<Place> {
        let peers = self.neighbours[usize::from(switch)].iter();
        let placed = peers.filter_map(|&peer| Some((peer, self.at[usize::from(peer)]?)));
        // All free places around one neighbour, then those of them that are around the other
        // neighbours too.
        let mut free: Option<([Place; DIRECTIONS], usize)> = None;
        for (_, at) in placed.clone() {
            let (places, count) = free.get_or_insert_with(|| self.free_around(at));
            let mut kept = 0;
            for index in 0..*count {
                if self.shape.direction(at, places[index]).is_some() {
                    places[kept] = places[index];
                    kept += 1;
                }
            }
            *count = kept;
        }
        let (places, count) = free?;
        let mut open = places[..count].iter().copied().filter(|&place| {
            count == 1
                || !placed.clone().any(|(peer, at)| self.is_excluded(switch, place, peer, at))
        });
        let first = open.next();
        if open.next().is_some() { None } else { first }
    }

    fn free_around(&self, at: Place) -> ([Place; DIRECTIONS], usize) {
        let mut places = [[0; AXES]; DIRECTIONS];
        let mut count = 0;
        for place in Direction::all().filter_map(|direction| self.shape.step(at, direction)) {
            if self.there[self.shape.index(place)].is_none() {
                places[count] = place;
                count += 1;
            }
        }
        (places, count)
    }

    /// Whether a square proves that `switch` is not at `place`: it would be opposite, across its
    /// neighbour `peer`, to a switch with which it has another neighbour in common.
    fn is_excluded(&self, switch: u16, place: Place, peer: u16, at: Place) -> bool {
        let Some(direction) = self.shape.direction(at, place) else { return true };
        let axis = direction.axis();
        if self.shape.radix(axis) == 4 && self.shape.wraps(axis) {
            return false;
        }
        let Some(opposite) = self.shape.step(at, direction.opposite()) else { return false };
        let Some(opposite) = self.there[self.shape.index(opposite)] else { return false };
        let beside = &self.neighbours[usize::from(opposite)];
        beside.binary_search(&peer).is_ok()
            && self.neighbours[usize::from(switch)]
                .iter()
                .any(|&common| common != peer && beside.binary_search(&common).is_ok())
    }
}

//! Finding the torus in the fabric: from the seed's switches on, each switch gets its place as soon
//! as its links leave only one.
//!
//! A switch next to switches that have their places can only be at a place next to all of these.
//! What is still open is narrowed down by squares: two neighbours U and V of a switch that have
//! another neighbour in common lie around a corner, so that U cannot be opposite V. (In a ring of
//! four they can, which is why seeds show both directions there.) A link that failed takes away
//! evidence but never gives wrong evidence, so that in any part of a torus each place that is found
//! is right.

use std::collections::{BTreeMap, VecDeque};

use ib_mad::types::Guid;

use super::super::Topology;
use super::config::{Config, Seed};
use super::refusal::Refusal;
use super::shape::{AXES, DIRECTIONS, Direction, Place, Shape};

/// The place of each switch, from the first seed that finds one for all. `guids` are by switch.
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
        let Some(left) = placer.at.iter().position(Option::is_none) else {
            return Ok(placer.at.into_iter().flatten().collect());
        };
        let placed = placer.at.iter().flatten().count();
        if best.is_none() || placed > most {
            let (switches, left) = (guids.len(), guids[left]);
            most = placed;
            best = Some(Refusal::Misfit { seed: seed.from, placed, switches, left });
        }
    }
    let missing = first_missing.unwrap_or_default();
    Err(best.unwrap_or(Refusal::NoSeed { missing }))
}

/// The switches next to a switch, each once, ascending.
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
    /// By number of the place.
    there: Vec<Option<u16>>,
    /// Switches that may have become certain, each once.
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

    /// Puts a seed's switches where it says; fails with one that the fabric does not have.
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
        // What this tells about: neighbours, and neighbours of whoever is beside, linked or not.
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

    /// The place where a switch must be; `None` if there are several, or none.
    fn only_place(&self, switch: u16) -> Option<Place> {
        let peers = self.neighbours[usize::from(switch)].iter();
        let placed = peers.filter_map(|&peer| Some((peer, self.at[usize::from(peer)]?)));
        // All free places around one neighbour, then those that are around the others too.
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

    /// Whether a square tells that `switch` is not at `place`: it would be opposite, about its
    /// neighbour `peer`, to one that it has another neighbour in common with.
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

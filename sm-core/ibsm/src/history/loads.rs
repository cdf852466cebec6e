//! Loads of links in the history: of the busiest directions of links, the part of the capacity that
//! was in use.
//!
//! A direction is a number: the place of its link in the topology, times 2, plus 1 if it leads to
//! the lower end. So a record can be read with the topology that was written before it only.
//! Numbers ascend; each is stored as its distance from the one before, in 7 bits a byte. A level
//! has one byte: 255 is the capacity, 1 a thousandth of it, and from one to the next are 2.8 per
//! cent.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use ib_mad::netlist::LinkRate;

use crate::observe::topology::{End, Link, Topology};
use crate::perf::loads::{Direction, Loads};

/// Limit of directions in a record: those that use most of their capacity.
pub const DIRECTIONS_MAX: usize = 16_384;
/// Part of the capacity from which on a direction is kept.
const SHARE_MIN: f64 = 1e-3;
/// The highest level.
const LEVEL_MAX: f64 = 255.0;
/// Levels for each factor of 10.
const LEVELS_PER_DECADE: f64 = 254.0 / 3.0;
/// Longest record that is read, bytes: with 5 bytes a number and one a level.
const BYTES_MAX: u64 = 32 + 6 * DIRECTIONS_MAX as u64;

/// The loads of a sweep of the performance manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptLoads {
    /// When the sweep ended, milliseconds since 1970.
    pub time_ms: u64,
    /// Its number.
    pub sweep: u64,
    /// Number of links of the topology that the directions refer to.
    pub links: u32,
    /// Directions that are not kept although they carried something.
    pub unlisted: u32,
    /// Number of each direction, and its level.
    pub directions: Vec<(u32, u8)>,
}

/// The level of a part of the capacity.
fn level(share: f64) -> u8 {
    (LEVEL_MAX + share.log10() * LEVELS_PER_DECADE).round().clamp(1.0, LEVEL_MAX) as u8
}

/// The part of the capacity of a level.
fn share(level: u8) -> f64 {
    10f64.powf((f64::from(level) - LEVEL_MAX) / LEVELS_PER_DECADE)
}

/// What a link can carry, bytes per second; 0 if its rate is unknown.
fn capacity(link: &Link) -> f64 {
    let rate = link.rate.replace(' ', "").parse::<LinkRate>().ok();
    rate.map_or(0.0, |rate| f64::from(rate.data_mbps()) * 1e6 / 8.0)
}

impl KeptLoads {
    /// The busiest directions, of links that are in `topology`.
    pub(crate) fn of(loads: &Loads, topology: &Topology) -> Self {
        let links: Vec<(&End, &Link)> = topology.links.iter().collect();
        let number = |one: &Direction| -> Option<u32> {
            let (near, far) = (one.from.min(one.to), one.from.max(one.to));
            let at = links.binary_search_by_key(&near, |(near, _)| **near).ok()?;
            (links[at].1.far == far).then_some(at as u32 * 2 + u32::from(one.from == far))
        };
        let mut kept: Vec<(u32, u8)> = loads
            .directions
            .iter()
            .filter(|one| one.share() >= SHARE_MIN)
            .filter_map(|one| Some((number(one)?, level(one.share()))))
            .collect();
        kept.sort_unstable_by_key(|&(number, level)| (u8::MAX - level, number));
        kept.truncate(DIRECTIONS_MAX);
        let unlisted = loads.directions.len() - kept.len() + loads.unlisted;
        kept.sort_unstable();
        kept.dedup_by_key(|(number, _)| *number);
        Self {
            time_ms: loads.time_ms,
            sweep: loads.sweep,
            links: links.len() as u32,
            unlisted: unlisted as u32,
            directions: kept,
        }
    }

    /// The loads, with the topology that was written before them; `None` if it is another one.
    pub(crate) fn loads(&self, topology: &Topology) -> Option<Loads> {
        if topology.links.len() != self.links as usize {
            return None;
        }
        let links: Vec<(&End, &Link)> = topology.links.iter().collect();
        let direction = |&(number, level): &(u32, u8)| {
            let &(&near, link) = links.get(number as usize / 2)?;
            let (from, to) = if number % 2 == 0 { (near, link.far) } else { (link.far, near) };
            let capacity = capacity(link);
            let rate = share(level) * capacity;
            // Errors are not kept.
            Some(Direction { from, to, rate, capacity, from_errors: 0.0, to_errors: 0.0 })
        };
        let mut directions: Vec<_> = self.directions.iter().filter_map(direction).collect();
        directions.sort_by(|a, b| b.rate.total_cmp(&a.rate).then((a.from).cmp(&b.from)));
        let unlisted = self.unlisted as usize;
        Some(Loads { sweep: self.sweep, time_ms: self.time_ms, directions, unlisted })
    }

    /// Appends its bytes: the time, and the rest compressed.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(32 + 3 * self.directions.len());
        body.extend_from_slice(&self.sweep.to_le_bytes());
        for number in [self.links, self.unlisted, self.directions.len() as u32] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        let mut next = 0;
        for &(number, _) in &self.directions {
            append_varint(&mut body, number - next);
            next = number.saturating_add(1);
        }
        body.extend(self.directions.iter().map(|(_, level)| level));
        out.extend_from_slice(&self.time_ms.to_le_bytes());
        let mut encoder = GzEncoder::new(out, Compression::fast());
        let written = encoder.write_all(&body).and_then(|()| encoder.finish());
        written.expect("writing to memory does not fail");
    }

    /// Reads it; `None` if it is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (time, packed) = bytes.split_first_chunk::<8>()?;
        let mut body = Vec::new();
        GzDecoder::new(packed).take(BYTES_MAX).read_to_end(&mut body).ok()?;
        let (sweep, rest) = body.split_first_chunk::<8>()?;
        let (links, rest) = rest.split_first_chunk::<4>()?;
        let (unlisted, rest) = rest.split_first_chunk::<4>()?;
        let (count, mut rest) = rest.split_first_chunk::<4>()?;
        let count = u32::from_le_bytes(*count) as usize;
        if count > DIRECTIONS_MAX {
            return None;
        }
        let mut numbers = Vec::with_capacity(count);
        let mut next = 0u32;
        for _ in 0..count {
            let number = next.checked_add(take_varint(&mut rest)?)?;
            numbers.push(number);
            next = number.checked_add(1)?;
        }
        let levels = rest.get(..count).filter(|levels| levels.len() == rest.len())?;
        Some(Self {
            time_ms: u64::from_le_bytes(*time),
            sweep: u64::from_le_bytes(*sweep),
            links: u32::from_le_bytes(*links),
            unlisted: u32::from_le_bytes(*unlisted),
            directions: numbers.into_iter().zip(levels.iter().copied()).collect(),
        })
    }

    /// The time of a record's bytes, without reading the rest.
    pub(super) fn time_of(bytes: &[u8]) -> Option<u64> {
        bytes.first_chunk::<8>().map(|time| u64::from_le_bytes(*time))
    }
}

/// Appends a number, the lowest 7 bits first.
fn append_varint(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number from the beginning of `bytes`; `None` if there is none.
fn take_varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0u32;
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u32::from(byte & 0x7F);
        number |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::problem::testing::plane;
    use ib_mad::types::{Guid, PortNum};

    const LINKS: [(u64, u8, u64, u8); 4] =
        [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1)];

    fn topology() -> Topology {
        Topology::of(&plane(&LINKS, 0, 0))
    }

    /// Directions by the numbers of their ends, with the part of 4x QDR that is in use.
    fn loads(of: &[(u64, u8, u64, u8, f64)]) -> Loads {
        let direction = |&(a, p, b, q, share): &(u64, u8, u64, u8, f64)| {
            let end = |guid, port| (Guid(guid), PortNum(port));
            let (rate, capacity) = (share * 4e9, 4e9);
            let (from, to) = (end(a, p), end(b, q));
            Direction { from, to, rate, capacity, from_errors: 0.0, to_errors: 0.0 }
        };
        let directions = of.iter().map(direction).collect();
        Loads { sweep: 7, time_ms: 5000, directions, unlisted: 3 }
    }

    fn read_back(kept: &KeptLoads) -> KeptLoads {
        let mut bytes = Vec::new();
        kept.encode(&mut bytes);
        assert_eq!(KeptLoads::time_of(&bytes), Some(kept.time_ms));
        KeptLoads::decode(&bytes).unwrap()
    }

    #[test]
    fn loads_of_both_directions_read_back_within_the_step_of_a_level() {
        let written = loads(&[
            (100, 1, 1, 9, 0.9),
            (1, 1, 8, 1, 0.25),
            (8, 1, 1, 1, 0.01),
            (2, 9, 101, 1, 0.001),
        ]);
        let kept = read_back(&KeptLoads::of(&written, &topology()));
        let read = kept.loads(&topology()).unwrap();
        assert_eq!((read.sweep, read.time_ms, read.unlisted), (7, 5000, 3));
        assert_eq!(read.directions.len(), 4);
        for (read, written) in read.directions.iter().zip(&written.directions) {
            assert_eq!((read.from, read.to), (written.from, written.to));
            assert_eq!(read.capacity, written.capacity);
            let off = (read.rate / written.rate - 1.0).abs();
            assert!(off < 0.014, "{read:?} {written:?}");
        }
    }

    #[test]
    fn what_is_unknown_or_idle_is_left_out_and_counted() {
        let kept = KeptLoads::of(
            &loads(&[
                (1, 1, 8, 1, 0.5),
                (1, 1, 8, 2, 0.5),
                (7, 1, 9, 1, 0.5),
                (8, 1, 1, 1, 0.0009),
            ]),
            &topology(),
        );
        assert_eq!((kept.directions.len(), kept.unlisted), (1, 6));
    }

    #[test]
    fn the_busiest_directions_are_kept() {
        let hosts = DIRECTIONS_MAX as u64 / 2 + 100;
        let links: Vec<_> = (0..hosts)
            .map(|host| (1 + host / 200, 1 + (host % 200) as u8, 1000 + host, 1))
            .collect();
        let topology = Topology::of(&plane(&links, 0, 0));
        let both: Vec<_> = links
            .iter()
            .flat_map(|&(a, p, b, q)| {
                [(a, p, b, q, 0.5), (b, q, a, p, if b < 1300 { 0.1 } else { 0.9 })]
            })
            .collect();
        let loads = loads(&both);
        let kept = KeptLoads::of(&loads, &topology);
        assert_eq!(kept.directions.len(), DIRECTIONS_MAX);
        assert_eq!(kept.unlisted, 203);
        let read = read_back(&kept).loads(&topology).unwrap();
        let slow = read.directions.iter().filter(|one| one.share() < 0.2).count();
        assert_eq!(slow, 100);
    }

    #[test]
    fn loads_of_another_topology_are_not_shown() {
        let kept = KeptLoads::of(&loads(&[(1, 1, 8, 1, 0.5)]), &topology());
        assert!(kept.loads(&topology()).is_some());
        assert_eq!(kept.loads(&Topology::of(&plane(&LINKS[..3], 0, 0))), None);
    }

    #[test]
    fn a_damaged_record_is_not_read() {
        let mut bytes = Vec::new();
        KeptLoads::of(&loads(&[(1, 1, 8, 1, 0.5)]), &topology()).encode(&mut bytes);
        for len in 0..bytes.len() {
            assert_eq!(KeptLoads::decode(&bytes[..len]), None, "{len}");
        }
    }

    #[test]
    fn any_numbers_read_back() {
        let numbers =
            [0, 1, 2, 127, 128, 130, 16_383, 20_000, 2_097_151, 300_000_000, u32::MAX - 1];
        let directions = numbers.into_iter().zip(1..).collect();
        let kept = KeptLoads { time_ms: 9, sweep: 1, links: 2, unlisted: u32::MAX, directions };
        assert_eq!(read_back(&kept), kept);
        let mut beyond = &[0xFF, 0xFF, 0xFF, 0xFF, 0x1F][..];
        assert_eq!(take_varint(&mut beyond), None, "it has more than 32 bits");
    }
}

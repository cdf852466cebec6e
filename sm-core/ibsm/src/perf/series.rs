//! The rates of ports in the last sweeps of the performance manager, for curves.

use std::collections::{BTreeMap, VecDeque};

use ib_mad::types::{Guid, PortNum};
use serde::Serialize;
use sm_core::perf::PerfManager;

use super::loads::{is_read, rates};
use crate::observe::links;
use crate::observe::topology::End;

/// Sweeps remembered.
pub(crate) const READINGS: usize = 32;
/// Limit of ports remembered; further ones have no curve and are counted.
const PORTS_MAX: usize = 131_072;
/// A rate that is not known, see [`pack`].
const UNKNOWN: u16 = u16::MAX;

/// Rates of ports by sweep, 128 bytes for a port.
#[derive(Debug, Default)]
pub(super) struct Series {
    /// When the sweeps ended, milliseconds since 1970, oldest first.
    times_ms: VecDeque<u64>,
    /// Place of the next reading in each ring.
    next: usize,
    rings: BTreeMap<End, Ring>,
    /// Ports for which there was no room in the last sweep.
    unlisted: usize,
}

/// Bytes per second that a port sent and received.
#[derive(Clone, Debug)]
struct Ring {
    sent: [u16; READINGS],
    received: [u16; READINGS],
}

impl Ring {
    const EMPTY: Self = Self { sent: [UNKNOWN; READINGS], received: [UNKNOWN; READINGS] };

    fn is_empty(&self) -> bool {
        self.sent.iter().all(|rate| *rate == UNKNOWN)
    }
}

/// The upper half of a rate as `f32`: within half a per cent.
fn pack(rate: f64) -> u16 {
    let bits = (rate as f32).to_bits();
    (bits.saturating_add(0x8000) >> 16) as u16
}

/// `None` if it is not known.
fn unpack(packed: u16) -> Option<f64> {
    (packed != UNKNOWN).then(|| f64::from(f32::from_bits(u32::from(packed) << 16)))
}

/// Bytes per second in Gb/s, to 0.1 Mb/s.
fn gbps(rate: f64) -> f64 {
    (rate * 8.0 / 1e5).round() / 1e4
}

/// The rates of a node's ports. As JSON its keys stay; more may be added.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NodeRates {
    /// When each sweep ended, milliseconds since 1970, oldest first.
    times_ms: Vec<u64>,
    ports: Vec<PortRates>,
}

/// The rates of a port, one for each sweep; `null` where a sweep did not read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct PortRates {
    port: u8,
    sent_gbps: Vec<Option<f64>>,
    received_gbps: Vec<Option<f64>>,
    /// What the link can carry after line coding.
    capacity_gbps: Option<f64>,
    /// Errors in the last sweep.
    errors_per_s: Option<f64>,
}

impl Series {
    /// Adds the readings of a sweep.
    pub(super) fn record(&mut self, manager: &PerfManager, time_ms: u64) {
        let at = self.next;
        self.next = (at + 1) % READINGS;
        self.times_ms.push_back(time_ms);
        if self.times_ms.len() > READINGS {
            self.times_ms.pop_front();
        }
        for ring in self.rings.values_mut() {
            (ring.sent[at], ring.received[at]) = (UNKNOWN, UNKNOWN);
        }
        self.unlisted = 0;
        let ports = (0..manager.node_count()).flat_map(|at| manager.ports_of(at));
        for port in ports.filter(is_read) {
            let end = (port.node.guid, port.number);
            if self.rings.len() >= PORTS_MAX && !self.rings.contains_key(&end) {
                self.unlisted += 1;
                continue;
            }
            let (sent, received, _) = rates(&port);
            let ring = self.rings.entry(end).or_insert(Ring::EMPTY);
            (ring.sent[at], ring.received[at]) = (pack(sent), pack(received));
        }
        self.rings.retain(|_, ring| !ring.is_empty());
    }

    /// Ports without a curve, for which there was no room.
    pub(super) fn unlisted(&self) -> usize {
        self.unlisted
    }

    /// The rates of a node's ports.
    pub(super) fn of_node(&self, manager: &PerfManager, guid: Guid) -> NodeRates {
        let count = self.times_ms.len();
        let ports = self.rings.range((guid, PortNum(0))..=(guid, PortNum(u8::MAX)));
        let ports = ports.map(|(&(_, number), ring)| {
            let curve = |rates: &[u16; READINGS]| -> Vec<Option<f64>> {
                let places = (0..count).map(|at| (self.next + READINGS - count + at) % READINGS);
                places.map(|at| unpack(rates[at]).map(gbps)).collect()
            };
            let port = manager.port(guid, number).filter(is_read);
            let capacity = port
                .and_then(|port| links::End::new(port.node, port.node.port(number)?)?.capacity());
            PortRates {
                port: number.0,
                sent_gbps: curve(&ring.sent),
                received_gbps: curve(&ring.received),
                capacity_gbps: capacity.map(gbps),
                errors_per_s: port.map(|port| rates(&port).2),
            }
        });
        NodeRates { times_ms: self.times_ms.iter().copied().collect(), ports: ports.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_within_half_a_per_cent() {
        for rate in [0.0, 1.0, 999.0, 1.25e7, 4.9999e10, 1.5e11] {
            let kept = unpack(pack(rate)).unwrap();
            assert!((kept - rate).abs() <= rate * 0.005, "{rate}: {kept}");
        }
        assert_eq!(unpack(UNKNOWN), None);
    }
}

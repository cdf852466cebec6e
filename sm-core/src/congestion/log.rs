//! Adds up what the logs of congestion show.

use ib_mad::types::{Lid, PortNum, Sl};
use ib_mad::wire::congestion::{CongestionLogCa, CongestionLogSwitch, has_port};

/// Limit of flows that are kept of one agent; the one with the fewest events makes room.
pub const FLOWS_MAX: usize = 32;
/// Readings in a row with marks from which on a port is a hot spot.
pub const HOT_READINGS: u32 = 3;

/// A source, a destination and a service level between which packets were marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Source, or the adapter's own LID.
    pub slid: Lid,
    /// Destination, or the LID of the other end.
    pub dlid: Lid,
    /// Service level.
    pub sl: Sl,
}

/// A port of a switch that marked packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMarks {
    /// The port.
    pub port: PortNum,
    /// Readings in which it had marked packets.
    pub readings: u64,
    /// Such readings in a row, up to the last.
    pub in_a_row: u32,
}

impl PortMarks {
    /// Whether it has marked packets for several readings.
    pub fn is_hot(&self) -> bool {
        self.in_a_row >= HOT_READINGS
    }
}

/// The sums of an agent's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTotals {
    /// Logs read.
    pub readings: u64,
    /// Events that they counted: packets marked, or queue pairs that reached the threshold. A
    /// counter of 16 bits saturates between two readings.
    pub events: u64,
    /// Events in the last reading.
    pub recent_events: u16,
    /// Readings whose counter had reached its maximum.
    pub saturated: u64,
    /// SLs with an event at an adapter, as bits.
    pub sls: u16,
    /// Ports of a switch that marked packets, ascending by number.
    pub ports: Vec<PortMarks>,
    /// Logs of another kind of node, and ports that the switch does not have; neither is used.
    pub unfit: u64,
    /// Flows seen among the latest events, most frequent first, with their number. The list is a
    /// sample: a log holds 15 events, or 13 of an adapter.
    pub flows: Vec<(Flow, u64)>,
}

impl LogTotals {
    /// Adds the log of a switch whose last port is this one.
    pub fn add_switch(&mut self, log: &CongestionLogSwitch<&[u8; 220]>, last_port: u8) {
        let map = log.port_map();
        self.ports.retain(|at| at.port.0 <= last_port);
        self.ports.iter_mut().filter(|at| !has_port(&map, at.port)).for_each(|at| at.in_a_row = 0);
        for port in (0..=u8::MAX).map(PortNum).filter(|port| has_port(&map, *port)) {
            if port.0 > last_port {
                self.unfit += 1;
                continue;
            }
            let found = self.ports.binary_search_by_key(&port, |at| at.port);
            let place = found.unwrap_or_else(|place| {
                self.ports.insert(place, PortMarks { port, readings: 0, in_a_row: 0 });
                place
            });
            let at = &mut self.ports[place];
            (at.readings, at.in_a_row) = (at.readings + 1, at.in_a_row.saturating_add(1));
        }
        let events = log.list().map(|event| {
            let age = log.current_time_stamp().wrapping_sub(event.timestamp);
            (age, Flow { slid: event.slid, dlid: event.dlid, sl: event.sl })
        });
        self.add(log.log_events_counter(), events.collect());
    }

    /// Adds the log of a channel adapter.
    pub fn add_ca(&mut self, log: &CongestionLogCa<&[u8; 220]>) {
        self.sls |= log.threshold_congestion_event_map();
        let events = log.list().map(|event| {
            let age = log.current_time_stamp().wrapping_sub(event.timestamp);
            (age, Flow { slid: event.local_lid, dlid: event.remote_lid, sl: event.sl })
        });
        self.add(log.threshold_event_counter(), events.collect());
    }

    /// Adds a reading: the counter, and the listed events with their age, of which the youngest
    /// `counter` are new.
    fn add(&mut self, counter: u16, mut events: Vec<(u32, Flow)>) {
        self.readings += 1;
        self.events += u64::from(counter);
        self.recent_events = counter;
        self.saturated += u64::from(counter == u16::MAX);
        events.sort_by_key(|(age, _)| *age);
        for (_, flow) in events.into_iter().take(counter.into()) {
            self.add_flow(flow);
        }
        self.flows.sort_by_key(|(flow, events)| (std::cmp::Reverse(*events), *flow));
    }

    fn add_flow(&mut self, flow: Flow) {
        if let Some((_, events)) = self.flows.iter_mut().find(|(known, _)| *known == flow) {
            *events += 1;
            return;
        }
        if self.flows.len() >= FLOWS_MAX
            && let Some(least) =
                (0..self.flows.len()).min_by_key(|&at| (self.flows[at].1, usize::MAX - at))
        {
            self.flows.remove(least);
        }
        self.flows.push((flow, 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::wire::congestion::{
        self as cc, CongestionLogEventSwitchRepr, CongestionLogSwitchRepr,
    };

    fn log(counter: u16, ports: &[u8], events: &[(u16, u32)]) -> [u8; 220] {
        let mut log = CongestionLogSwitchRepr {
            log_type: cc::LOG_TYPE_SWITCH,
            congestion_flags: 0,
            log_events_counter: counter,
            current_time_stamp: 5,
            port_map: [0; 32],
            events: [0; _],
        };
        ports.iter().for_each(|&port| cc::add_port(&mut log.port_map, PortNum(port)));
        for (place, &(slid, timestamp)) in log.events.chunks_exact_mut(12).zip(events) {
            let (slid, dlid) = (Lid(slid), Lid(9));
            let event = CongestionLogEventSwitchRepr { slid, dlid, sl: Sl::default(), timestamp };
            place.copy_from_slice(&event.to_bytes());
        }
        log.to_bytes()
    }

    /// The clock wraps around: an event at `u32::MAX` is 6 ticks old. IBA A10.4.3.5.
    #[test]
    fn only_the_youngest_events_are_new() {
        let mut totals = LogTotals::default();
        let events = [(1, u32::MAX - 100), (2, 4), (3, u32::MAX)];
        totals.add_switch(&CongestionLogSwitch::of(&log(2, &[7], &events)), 254);
        let lids: Vec<u16> = totals.flows.iter().map(|(flow, _)| flow.slid.0).collect();
        assert_eq!((lids, totals.events, totals.readings), (vec![2, 3], 2, 1));
        totals.add_switch(&CongestionLogSwitch::of(&log(u16::MAX, &[], &[(3, 4)])), 254);
        assert_eq!(totals.flows[0], (Flow { slid: Lid(3), dlid: Lid(9), sl: Sl::default() }, 2));
        assert_eq!((totals.events, totals.saturated), (65_537, 1));
    }

    #[test]
    fn a_port_that_keeps_marking_is_a_hot_spot_until_a_quiet_reading() {
        let mut totals = LogTotals::default();
        for _ in 0..HOT_READINGS {
            assert!(!totals.ports.iter().any(PortMarks::is_hot));
            totals.add_switch(&CongestionLogSwitch::of(&log(1, &[3, 254], &[])), 254);
        }
        assert!(totals.ports.iter().all(PortMarks::is_hot));
        totals.add_switch(&CongestionLogSwitch::of(&log(1, &[254], &[])), 254);
        let ports: Vec<_> = totals.ports.iter().map(|at| (at.port.0, at.in_a_row)).collect();
        assert_eq!(ports, [(3, 0), (254, 4)]);
        assert_eq!(totals.ports[0].readings, 3);
    }

    /// Regression: a node could have hot spots at ports that it does not have.
    #[test]
    fn ports_that_a_switch_does_not_have_are_dropped_and_counted() {
        let mut totals = LogTotals::default();
        totals.add_switch(&CongestionLogSwitch::of(&log(1, &[0, 4, 5, 255], &[])), 4);
        let ports: Vec<_> = totals.ports.iter().map(|at| at.port.0).collect();
        assert_eq!((ports, totals.unfit), (vec![0, 4], 2));
        totals.add_switch(&CongestionLogSwitch::of(&log(1, &[4], &[])), 3);
        assert_eq!((totals.ports.len(), totals.unfit), (1, 3), "it has fewer ports now");
    }

    #[test]
    fn flows_are_bounded_and_the_frequent_stay() {
        let mut totals = LogTotals::default();
        let often = [(1, 1), (1, 2)];
        totals.add_switch(&CongestionLogSwitch::of(&log(2, &[], &often)), 254);
        for slid in 0..2 * FLOWS_MAX as u16 {
            totals.add_switch(&CongestionLogSwitch::of(&log(1, &[], &[(100 + slid, 1)])), 254);
        }
        assert_eq!(totals.flows.len(), FLOWS_MAX);
        assert_eq!((totals.flows[0].0.slid, totals.flows[0].1), (Lid(1), 2));
    }
}

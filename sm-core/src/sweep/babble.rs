//! Ports that report the same error for ever (traps 129 to 131): with `babbling_port_policy` their
//! link is switched off, at the end that is nearer to us. Who repaired the cable switches it on again,
//! as with `ibportstate`.
//!
//! Without that policy such traps are repressed like others, and no more.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::attribute::{PortErrorDetails, SmNotice, TrapNumber};
use ib_mad::wire::smp;
use tracing::warn;

use super::Sweeper;
use super::schedule::Cause;
use crate::fabric::PortIndex;
use crate::smp::{Kind, Request};
use crate::trap::Trap;

/// Traps in a row after which the next one is too many, as in OpenSM.
const PATIENCE: u32 = 250;
/// Without a trap for so long a row has ended.
const PAUSE: Duration = Duration::from_secs(5);
/// The same once the row has [`LONG`] of them.
const LONG_PAUSE: Duration = Duration::from_secs(60);
const LONG: u32 = 10;
/// Ports that are remembered. Of more that err at once the next ones are, when these have gone quiet.
const PORTS_MAX: usize = 1024;

/// Which port reported what.
type Report = (Lid, PortNum, TrapNumber);

/// Ports that report errors.
#[derive(Debug, Default)]
pub(super) struct BabblingPorts {
    rows: HashMap<Report, Row>,
    /// Ports that are to be switched off as soon as nothing else is on the wire.
    to_disable: BTreeSet<(Lid, PortNum)>,
}

#[derive(Debug)]
struct Row {
    traps: u32,
    last: Instant,
}

impl Row {
    fn has_ended(&self, now: Instant) -> bool {
        let pause = if self.traps > LONG { LONG_PAUSE } else { PAUSE };
        now.saturating_duration_since(self.last) >= pause
    }
}

impl BabblingPorts {
    /// Counts a report; `true` if it was one too many, and the row begins anew.
    fn is_too_much(&mut self, now: Instant, report: Report) -> bool {
        if self.rows.len() >= PORTS_MAX && !self.rows.contains_key(&report) {
            self.rows.retain(|_, row| !row.has_ended(now));
            if self.rows.len() >= PORTS_MAX {
                return false;
            }
        }
        let row = self.rows.entry(report).or_insert(Row { traps: 0, last: now });
        if row.has_ended(now) {
            row.traps = 0;
        }
        (row.traps, row.last) = (row.traps + 1, now);
        let is_too_much = row.traps > PATIENCE;
        if is_too_much {
            self.rows.remove(&report);
        }
        is_too_much
    }
}

impl Sweeper {
    /// Takes note of a trap about a port's errors.
    pub(super) fn note_port_error(&mut self, now: Instant, trap: &Trap, mad: &[u8; 256]) {
        let Some(
            number @ (TrapNumber::LOCAL_LINK_INTEGRITY
            | TrapNumber::EXCESSIVE_BUFFER_OVERRUN
            | TrapNumber::FLOW_CONTROL_UPDATE),
        ) = trap.number
        else {
            return;
        };
        if !self.settings.babbling_port_policy {
            return;
        }
        let Ok(notice) = SmNotice::new(&mad[smp::DATA]) else { return };
        let details = notice.data_details();
        let Ok(details) = PortErrorDetails::new(&details[..]) else { return };
        let (lid, port) = (details.lid(), details.port_num());
        if self.babbling.is_too_much(now, (lid, port, number)) {
            self.babbling.to_disable.insert((lid, port));
            self.disable_babbling_ports(now);
        }
    }

    /// Switches to_disable ports off, unless a sweep is under way or requests are on the wire: then
    /// it is done at the end of the sweep.
    pub(super) fn disable_babbling_ports(&mut self, now: Instant) {
        if self.babbling.to_disable.is_empty() || !self.is_idle() {
            return;
        }
        for (lid, num) in std::mem::take(&mut self.babbling.to_disable) {
            let Some(port) = self.port_at(lid, num) else { continue };
            let place = self.place(port);
            let Some(at) = self.nearer_end(port) else {
                warn!("{place} reports errors for ever, but it is ours, and stays");
                continue;
            };
            let end = self.place(at);
            warn!(
                "{place} reports errors for ever: its link is switched off at {end} \
                   (babbling_port_policy); ibportstate switches it on again"
            );
            self.exchange.push(Request::new(Kind::DisablePort, at));
        }
        self.schedule.request(now, Cause::Asked);
    }

    /// The end port that has `lid`.
    pub(super) fn end_port_at(&self, lid: Lid) -> Option<PortIndex> {
        let has_lid = |port: &PortIndex| {
            let range = self.lids.get(self.fabric.port(*port).guid);
            range.is_some_and(|range| range.contains(lid))
        };
        self.fabric.end_ports().find(has_lid)
    }

    /// The port `num` of the node of which an end port has `lid`.
    pub(super) fn port_at(&self, lid: Lid, num: PortNum) -> Option<PortIndex> {
        let end = self.end_port_at(lid)?;
        match self.fabric.node_of(end).switch {
            Some(_) => self.fabric.port_of(self.fabric.port(end).node, num),
            None => Some(end),
        }
    }

    /// The end of a port's link that is fewer hops away; `None` if it is our own port.
    fn nearer_end(&self, port: PortIndex) -> Option<PortIndex> {
        let hops = |port: PortIndex| self.fabric.node_of(port).hops();
        let peer = self.fabric.port(port).peer().filter(|&peer| hops(peer) < hops(port));
        let is_ours = |port: PortIndex| {
            self.fabric.home().is_some_and(|home| {
                self.fabric.port(home).node == self.fabric.port(port).node
                    && self.fabric.node_of(port).switch.is_none()
            })
        };
        let nearer = peer.unwrap_or(port);
        if is_ours(nearer) { Some(port).filter(|&port| !is_ours(port)) } else { Some(nearer) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: Report = (Lid(3), PortNum(1), TrapNumber::LOCAL_LINK_INTEGRITY);

    #[test]
    fn a_row_ends_when_the_port_is_quiet() {
        let start = Instant::now();
        let mut babbling = BabblingPorts::default();
        let mut said = |seconds: u64, traps: u32| {
            let now = start + Duration::from_secs(seconds);
            (0..traps).any(|_| babbling.is_too_much(now, REPORT))
        };
        assert!(!said(0, 10) && !said(5, 240), "a pause of 5 s ended the first row");
        assert!(!said(64, 10), "but one of 59 s not the second");
        assert!(said(65, 1) && !said(65, 250) && said(66, 1));
        assert!(!said(67, 200) && !said(127, 200), "a minute ends a long one");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let start = Instant::now();
        let mut babbling = BabblingPorts::default();
        for lid in 1..=2000 {
            let report = (Lid(lid), PortNum(1), TrapNumber::FLOW_CONTROL_UPDATE);
            assert!(!babbling.is_too_much(start, report));
        }
        assert_eq!(babbling.rows.len(), PORTS_MAX);
        let later = start + PAUSE;
        assert!(!babbling.is_too_much(later, (Lid(3000), PortNum(1), REPORT.2)));
        assert_eq!(babbling.rows.len(), 1, "those that went quiet make room");
    }
}

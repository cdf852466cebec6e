//! Babbling ports: ports that report the same error without end (traps 129 to 131). With
//! `babbling_port_policy` their link is disabled, at the end that is nearer to the SM. An operator
//! enables it again, for example with `ibportstate`.
//!
//! Without that policy such traps are only repressed, like others.
//!
//! Traps are believed by their source LID, which a host can forge as far as its adapter lets it.
//! No SMP confirms them: PortInfo has thresholds of these errors, and counters of others only. So
//! few links are disabled, however many are named.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::attribute::{PortErrorDetails, SmNotice, TrapNumber};
use ib_mad::wire::smp;
use sa_proto::rate_limit::RateLimit;
use tracing::warn;

use super::Task;
use crate::fabric::PortIndex;
use crate::manage::link;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::schedule::Cause;
use crate::trap::Trap;

/// Maximum number of traps in a row, as in OpenSM.
const TRAPS_MAX: u32 = 250;
/// A row ends after this time without a trap.
const PAUSE: Duration = Duration::from_secs(5);
/// The pause that ends a row of more than [`LONG`] consecutive traps.
const LONG_PAUSE: Duration = Duration::from_secs(60);
const LONG: u32 = 10;
/// Maximum number of rows. Others are counted when some of these have ended.
const ROWS_MAX: usize = 1024;

/// Links that are disabled in a row; then one in each [`DISABLED_INTERVAL`]. A fault makes one port
/// babble, or both ends of a link.
const DISABLED_MAX: u32 = 2;
const DISABLED_INTERVAL: Duration = Duration::from_secs(3600);

/// A port, by LID and number, and the trap that it reports.
type Report = (Lid, PortNum, TrapNumber);

/// The task that disables babbling ports.
#[derive(Debug, Default)]
pub(in crate::sweep) struct BabblingPorts {
    rows: HashMap<Report, Row>,
    /// Ports to disable.
    to_disable: BTreeSet<(Lid, PortNum)>,
    /// Traps ignored because they did not come from the port that they are about.
    pub(in crate::sweep) forged: u64,
    /// Links disabled, as far as they count for the limit.
    disabled: RateLimit,
    /// Links that stayed enabled since so many were disabled.
    pub(in crate::sweep) spared: u64,
    /// When they are disabled.
    pub(in crate::sweep) due: Option<Instant>,
}

/// Consecutive traps of a port.

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
    /// Counts a trap; returns `true` if the limit is exceeded, and resets the count.
    fn is_too_much(&mut self, now: Instant, report: Report) -> bool {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&report) {
            self.rows.retain(|_, row| !row.has_ended(now));
            if self.rows.len() >= ROWS_MAX {
                return false;
            }
        }
        let row = self.rows.entry(report).or_insert(Row { traps: 0, last: now });
        if row.has_ended(now) {
            row.traps = 0;
        }
        (row.traps, row.last) = (row.traps + 1, now);
        let is_too_much = row.traps > TRAPS_MAX;
        if is_too_much {
            self.rows.remove(&report);
        }
        is_too_much
    }
}

impl BabblingPorts {
    /// Handles a trap that came from LID `from`; `mad` is its SMP.
    pub(in crate::sweep) fn note(
        &mut self,
        subnet: &Subnet,
        now: Instant,
        trap: &Trap,
        from: Lid,
        mad: &[u8; 256],
    ) {
        let Some(
            number @ (TrapNumber::LOCAL_LINK_INTEGRITY
            | TrapNumber::EXCESSIVE_BUFFER_OVERRUN
            | TrapNumber::FLOW_CONTROL_UPDATE),
        ) = trap.number
        else {
            return;
        };
        if !subnet.settings.babbling_port_policy {
            return;
        }
        let Ok(notice) = SmNotice::new(&mad[smp::DATA]) else { return };
        let details = notice.data_details();
        let Ok(details) = PortErrorDetails::new(&details[..]) else { return };
        let (lid, port) = (details.lid(), details.port_num());
        // Any host could have links of others disabled.
        if from != lid && subnet.end_port_at(from) != subnet.end_port_at(lid) {
            self.forged += 1;
            return;
        }
        if self.is_too_much(now, (lid, port, number)) {
            self.to_disable.insert((lid, port));
            self.due.get_or_insert(now);
        }
    }
}

impl Task for BabblingPorts {
    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant) {
        self.due = None;
        for (lid, num) in std::mem::take(&mut self.to_disable) {
            let Some(port) = subnet.port_at(lid, num) else { continue };
            let place = subnet.place(port);
            let Some(at) = subnet.nearer_end(port) else {
                warn!(
                    "{place} keeps sending the same error trap; its link stays enabled because \
                     it is the SM's port"
                );
                continue;
            };
            if !self.disabled.has_room(now, DISABLED_MAX, DISABLED_INTERVAL) {
                self.spared += 1;
                warn!(
                    "{place} keeps sending the same error trap; its link stays enabled, since \
                     {DISABLED_MAX} others were disabled in the last hour: such traps may be \
                     forged. Look for errors in the counters of the port"
                );
                continue;
            }
            self.disabled.spend(now);
            let end = subnet.place(at);
            warn!(
                "{place} keeps sending the same error trap; disabling its link at {end} \
                 (babbling_port_policy). ibportstate can enable it again"
            );
            subnet.exchange.push(Request::new(Kind::DisableBabbling, at));
        }
        subnet.schedule.request(now, Cause::Asked);
    }
}

impl RequestOwner for BabblingPorts {
    type Kind = kinds::BabblingPorts;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::BabblingPorts::DisableBabbling => {
                *data = subnet.wanted_port_switch(request.port(), false);
                Some(link::modifier(&subnet.fabric, request.port()))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        subnet.port_info_set(request, data);
    }
}

impl Subnet {
    /// The end port that has `lid`.
    pub(in crate::sweep) fn end_port_at(&self, lid: Lid) -> Option<PortIndex> {
        let has_lid = |port: &PortIndex| {
            let range = self.lids.get(self.fabric.port(*port).guid);
            range.is_some_and(|range| range.contains(lid))
        };
        self.fabric.end_ports().find(has_lid)
    }

    /// Port `num` of the node that has an end port with LID `lid`.
    pub(in crate::sweep) fn port_at(&self, lid: Lid, num: PortNum) -> Option<PortIndex> {
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
            self.fabric.sm_port().is_some_and(|sm_port| {
                self.fabric.port(sm_port).node == self.fabric.port(port).node
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
        assert_eq!(babbling.rows.len(), ROWS_MAX);
        let later = start + PAUSE;
        assert!(!babbling.is_too_much(later, (Lid(3000), PortNum(1), REPORT.2)));
        assert_eq!(babbling.rows.len(), 1, "those that went quiet make room");
    }
}

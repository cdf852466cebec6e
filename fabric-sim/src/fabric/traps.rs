//! Delivery of traps to the subnet manager: sent, and repeated at the interval that the manager set
//! until it represses them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::{Lid, PKey, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::SmNoticeRepr;
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::smp::{DATA, Request};

use super::{Event, Fabric, Flight};
use crate::counters::DropReason;
use crate::forward::Lids;
use crate::subnet::PortIndex;

/// Limit of unrepressed traps per port.
const PENDING_MAX: usize = 8;
/// Minimum interval between traps, regardless of SubnetTimeOut.
const PACE_MIN: Duration = Duration::from_millis(10);

/// Unrepressed traps.
#[derive(Default)]
pub(super) struct Traps {
    pending: HashMap<PortIndex, Vec<Pending>>,
    last_tid: u32,
}

struct Pending {
    tid: u64,
    notice: SmNoticeRepr,
    /// When it was last sent.
    sent: Option<Instant>,
}

impl Traps {
    fn get(&mut self, port: PortIndex, tid: u64) -> Option<&mut Pending> {
        self.pending.get_mut(&port)?.iter_mut().find(|trap| trap.tid == tid)
    }
}

impl Fabric {
    /// Queues a trap. It replaces a pending trap with the same content and keeps its timing, so
    /// that a TrapRepress() of the older one does not repress the newer.
    pub(super) fn raise_trap(&mut self, now: Instant, port: PortIndex, notice: SmNoticeRepr) {
        let pace = self.trap_pace(port);
        self.traps.last_tid = self.traps.last_tid.wrapping_add(1);
        let tid = u64::from(self.traps.last_tid);
        let waiting = self.traps.pending.entry(port).or_default();
        let mut due = now;
        match waiting.iter().position(|trap| trap.notice == notice) {
            Some(same) => {
                waiting[same].tid = tid;
                due = waiting[same].sent.map_or(now, |sent| now.max(sent + pace));
            }
            None if waiting.len() < PENDING_MAX => {
                waiting.push(Pending { tid, notice, sent: None });
            }
            None => return self.counters.drop(DropReason::TrapLimit),
        }
        if due <= now {
            self.send_trap(now, port, tid);
        } else {
            self.schedule_trap(due, port, tid);
        }
    }

    /// Sends a pending trap and schedules its repeat.
    pub(super) fn send_trap(&mut self, now: Instant, port: PortIndex, tid: u64) {
        let Some(trap) = self.traps.get(port, tid) else { return };
        trap.sent = Some(now);
        let data = trap.notice.to_bytes();
        let info = self.subnet.port_info(port);
        let lids = Lids { slid: info.base_lid(), dlid: info.master_sm_lid() };
        let sl = info.master_sm_sl();
        if !self.subnet.node_of(port).up || lids.slid == Lid::NONE || lids.dlid == Lid::NONE {
            return self.forget_traps(port);
        }
        let mut mad = [0; MAD_LEN];
        Request {
            method: Method::TRAP,
            attribute_id: AttributeId::NOTICE,
            attribute_modifier: 0,
            tid,
            m_key: 0,
        }
        .write_lid_routed(&mut mad);
        mad[DATA].copy_from_slice(&data);
        let pace = self.trap_pace(port);
        self.schedule_trap(now + pace, port, tid);
        self.counters.traps += 1;
        self.launch(
            now,
            port,
            Flight {
                mad,
                lids,
                sqp: Qpn::SMI,
                dqp: Qpn::SMI,
                sl,
                pkey: PKey::DEFAULT_FULL,
                grh: None,
                message_len: 0,
                sender: None,
                answers: false,
            },
        );
    }

    /// Handles a TrapRepress() that reached the node by `port`. Only the low half of the
    /// transaction id is compared: umad and its simulations change the other half.
    pub(super) fn repress(&mut self, port: PortIndex, tid: u64) {
        let port = self.subnet.management_port(port);
        let Some(waiting) = self.traps.pending.get_mut(&port) else { return };
        let before = waiting.len();
        waiting.retain(|trap| trap.tid as u32 != tid as u32);
        self.counters.traps_repressed += (before - waiting.len()) as u64;
        if waiting.is_empty() {
            self.traps.pending.remove(&port);
        }
    }

    /// Drops the pending traps of a port that was reset or lost its manager.
    pub(super) fn forget_traps(&mut self, port: PortIndex) {
        self.traps.pending.remove(&port);
    }

    fn schedule_trap(&mut self, due: Instant, port: PortIndex, tid: u64) {
        if self.agenda.push(due, Event::TrapDue { port, tid }).is_err() {
            self.counters.drop(DropReason::InFlightLimit);
        }
    }

    fn trap_pace(&self, port: PortIndex) -> Duration {
        let code = self.subnet.port_info(port).subnet_time_out();
        Duration::from_nanos(4096u64 << code).max(PACE_MIN)
    }
}

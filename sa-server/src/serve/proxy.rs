//! Packets at QP0 of this responder's port, from clients that take it for the SM's port.
//!
//! Traps are relayed to the SM ([`relay`](crate::sm::relay)). Get(SMInfo) is answered with the
//! master's SMInfo from the snapshot, without its SM_Key, and only while an SM is followed, because
//! the client checks whether the master is alive. All other packets are for managers and get no
//! answer.

use ib_mad::transport::Packet;
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass, Status};
use ib_mad::wire::smp::{self, Smp};

use crate::sm::forward::WorkerEnd;
use crate::stats::Stats;
use crate::tables::Tables;

/// Handles an SMP by the tables of a lane; `true` if its answer is now in `packet`.
pub(crate) fn handle(
    packet: &mut Packet,
    tables: Option<&Tables>,
    (end, lane): (Option<&WorkerEnd>, usize),
    stats: &Stats,
) -> bool {
    if packet.carrier.undelivered != 0 {
        return false;
    }
    let Ok(view) = Smp::new(&packet.mad[..]) else { return false };
    if view.mgmt_class() != MgmtClass::SUBN_LID_ROUTED {
        return false;
    }
    match (view.method(), view.attribute_id(), end) {
        (Method::TRAP, AttributeId::NOTICE, Some(end)) => {
            stats.traps.increment();
            if !end.submit_trap(lane, packet) {
                stats.traps_lost.increment();
            }
            false
        }
        (Method::GET, AttributeId::SM_INFO, Some(end)) if end.is_reachable(lane) => {
            let Some(info) = tables.and_then(master) else { return false };
            smp::answer(&mut packet.mad, Status::OK);
            let data = &mut packet.mad[smp::DATA];
            data.fill(0);
            data[..info.len()].copy_from_slice(&info);
            stats.sm_infos.increment();
            true
        }
        _ => false,
    }
}

/// The master's SMInfo.
fn master(tables: &Tables) -> Option<[u8; 21]> {
    let guid = tables.subnet.sm_port_guid;
    let managers = &tables.plane.subnet_managers;
    managers.iter().find(|row| row.port_guid == guid).map(|row| row.info)
}

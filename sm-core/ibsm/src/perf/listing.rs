//! Counters as messages of the administration service.

use sa_proto::proto::admin::{Counters, PortCounts};
use sm_core::perf::{Counter, PerfManager, PortView};

use super::{PerfBoard, Selection, peer};
use crate::observe::node_name;

/// Nodes of one message: the lock is held for so many.
const NODES_PER_MESSAGE: usize = 64;

/// Calls `send` with the counters of the selected nodes until it returns false. Returns whether
/// counters are read.
pub(crate) fn list(
    board: &PerfBoard,
    selection: &Selection,
    port: Option<u32>,
    send: &mut dyn FnMut(Counters) -> bool,
) -> bool {
    let mut after = None;
    let mut is_first = true;
    loop {
        let piece = board.with(|manager| {
            let mut message = Counters::default();
            if is_first {
                message.names = Counter::ALL.iter().map(|at| at.name().to_owned()).collect();
                message.sweeps = manager.status().sweeps;
            }
            let first = after.map_or(0, |guid| manager.position_after(guid));
            let end = (first + NODES_PER_MESSAGE).min(manager.node_count());
            for view in (first..end).flat_map(|position| manager.ports_of(position)) {
                after = Some(view.node.guid);
                let is_wanted = port.is_none_or(|port| port == u32::from(view.number.0));
                if is_wanted && view.is_known && selection.takes(view.node) {
                    message.ports.push(counts(manager, &view));
                }
            }
            (message, end == manager.node_count())
        });
        let Some((message, is_last)) = piece else { return false };
        let is_worth = is_first || !message.ports.is_empty();
        is_first = false;
        if is_worth && !send(message) || is_last {
            return true;
        }
    }
}

fn counts(manager: &PerfManager, view: &PortView<'_>) -> PortCounts {
    let counts = view.counts;
    let far = peer(manager, view.node, view.number);
    let (peer, peer_port) = far.map_or_else(Default::default, |(name, port)| (name, port.0.into()));
    PortCounts {
        guid: view.node.guid.0,
        name: node_name(view.node),
        port: view.number.0.into(),
        active: view.active,
        peer,
        peer_port,
        totals: Counter::ALL.iter().map(|&counter| counts.total(counter)).collect(),
        interval_ms: counts.interval_ms,
        recent_xmit_data: counts.recent_xmit_data,
        recent_rcv_data: counts.recent_rcv_data,
        recent_faults: counts.recent_faults,
        last_reset_s: counts.last_reset_s,
        last_error_update_s: counts.last_error_update_s,
        last_data_update_s: counts.last_data_update_s,
    }
}

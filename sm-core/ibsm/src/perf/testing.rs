//! Counters for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid, PortNum, Sl};
use ib_mad::wire::attribute::{LinkSpeeds, LinkWidths, NodeDescriptionRepr, PortInfo, PortState};
use sa_proto::snapshot::{Node, Port};
use sm_core::perf::{Counter, Group, Growth, PerfManager, PerfSettings};

use super::PerfBoard;
use crate::observe::event::PortGrowth;

pub(crate) fn settings() -> PerfSettings {
    PerfSettings {
        sweep_time: Duration::from_secs(1),
        outstanding_max: 8,
        ignore_cas: false,
        remove_nodes: true,
        query_info: true,
        follow_redirections: true,
        log_errors: true,
        xmit_wait_threshold: None,
        timeout: Duration::from_millis(200),
        retries: 2,
        sl: Sl::default(),
        pm_key: 0,
    }
}

/// An adapter with one active port of 1x SDR, cabled to another.
pub(crate) fn adapter(guid: u64, far: u64) -> Arc<Node> {
    let mut info = [0; 64];
    PortInfo::of_mut(&mut info)
        .set_base_lid(Lid(guid as u16))
        .set_port_state(PortState::Active)
        .set_link_width_active(LinkWidths::X1)
        .set_link_speed_active(LinkSpeeds::SDR);
    let port = Port {
        num: PortNum(1),
        guid: Guid(guid),
        info,
        pkeys: Arc::new([]),
        peer: Some((Guid(far), PortNum(1))),
    };
    Arc::new(Node {
        guid: Guid(guid),
        info: [0; 40],
        description: NodeDescriptionRepr::from_text(&format!("node\"{guid}")).node_string,
        switch_info: None,
        ports: vec![port],
    })
}

/// Begins to read the counters of no nodes.
pub(crate) fn install_idle(board: &PerfBoard) {
    board.install(PerfManager::new(settings(), Instant::now(), 1, 1));
}

/// Growth of symbol errors at port 1 of node 5, within 30 s.
pub(crate) fn symbol_errors(by: u64) -> PortGrowth {
    PortGrowth {
        time_ms: 1,
        node: adapter(5, 6),
        port: PortNum(1),
        growth: Growth::new(Group::Errors, 30, [(Counter::SymbolError, by)]),
    }
}

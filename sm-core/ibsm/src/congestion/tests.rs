//! The board with a manager and one switch.

use sm_core::querier::Querier;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::types::{Guid, Lid, Sl};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use ib_mad::wire::congestion::{
    CongestionKeyInfo, CongestionLogEventSwitchRepr, CongestionLogSwitchRepr,
};
use ib_mad::wire::mad::{MadHeader, Method};
use sa_proto::snapshot::Port;
use sm_config::Settings;
use sm_core::congestion::CongestionSettings;

use super::*;
use crate::perf::Selection;

const LOG: usize = cc::LOG_DATA.start;

fn switch() -> Arc<Node> {
    let mut info = [0; 40];
    NodeInfo::of_mut(&mut info).set_node_type(NodeType::Switch).set_num_ports(4);
    let mut port_info = [0; 64];
    PortInfo::of_mut(&mut port_info).set_base_lid(Lid(7));
    let mut description = [0; 64];
    description[..4].copy_from_slice(b"leaf");
    let port =
        Port { num: PortNum(0), guid: Guid(5), info: port_info, pkeys: Arc::new([]), peer: None };
    let (guid, switch_info) = (Guid(5), Some([0; 20]));
    Arc::new(Node { guid, info, description, switch_info, ports: vec![port] })
}

/// A board whose manager has gone through `cycles` cycles with a switch that shows a key, echoes
/// settings, and logs a marked packet each time.
fn board(cycles: usize, shown_key: u64) -> CongestionBoard {
    let mut settings = Settings::default();
    for (key, value) in [("congestion_control", "TRUE"), ("cc_key", "5")] {
        settings.set(key, value).unwrap();
    }
    let mut now = Instant::now();
    let mut manager = CongestionManager::new(CongestionSettings::of(&settings), 1);
    manager.set_nodes(now, vec![switch()]);
    for _ in 0..cycles {
        manager.handle_timeout(now);
        while let Some(mut packet) = manager.poll_transmit(now) {
            MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP);
            match MadHeader::of(&packet.mad).attribute_id() {
                cc::CONGESTION_KEY_INFO => {
                    CongestionKeyInfo::at_mut::<{ cc::DATA.start }, _>(&mut packet.mad)
                        .set_cc_key(shown_key);
                }
                cc::CONGESTION_LOG => packet.mad[LOG..LOG + 220].copy_from_slice(&log()),
                _ => {}
            }
            manager.handle_packet(now, &packet);
        }
        now += Duration::from_secs(60);
    }
    let board = CongestionBoard::default();
    board.install(manager);
    board.find_problems();
    board
}

fn log() -> [u8; 220] {
    let mut log = CongestionLogSwitchRepr {
        log_type: cc::LOG_TYPE_SWITCH,
        congestion_flags: 0,
        log_events_counter: 1,
        current_time_stamp: 9,
        port_map: [0; 32],
        events: [0; _],
    };
    cc::add_port(&mut log.port_map, PortNum(3));
    let (slid, dlid, sl) = (Lid(7), Lid(99), Sl::default());
    let event = CongestionLogEventSwitchRepr { slid, dlid, sl, timestamp: 8 };
    log.events[..12].copy_from_slice(&event.to_bytes());
    log.to_bytes()
}

#[test]
fn a_port_that_keeps_marking_packets_is_a_problem() {
    assert!(board(2, 0).conditions().is_empty());
    let found = board(3, 0).conditions();
    assert_eq!((found.len(), found[0].kind), (1, Kind::CongestionHotSpot));
    assert_eq!(
        found[0].text(),
        "'leaf' 0x0000000000000005 port 3: marked packets as congested in each of the last 3 \
         readings; most often the switch marked those from 'leaf' to LID 99"
    );
}

#[test]
fn another_key_is_a_problem_and_never_shown() {
    let board = board(1, 0x1234_5678);
    let found = board.conditions();
    assert_eq!((found.len(), found[0].kind), (1, Kind::CcKeyRefused));
    let mut agents = Vec::new();
    let selection = Selection::of_node("leaf");
    listing::list(&board, &selection, &mut |message| {
        agents.push(message);
        true
    });
    assert_eq!(agents.len(), 1);
    let (summary, agent) = (agents[0].summary.as_ref().unwrap(), &agents[0].agents[0]);
    assert_eq!(
        (summary.key_refused, &agent.state[..], &agent.key[..]),
        (1, "key_refused", "another")
    );
    let secrets = ["12345678", "305419896"];
    assert!(secrets.iter().all(|secret| !format!("{agents:?}").contains(secret)));
}

#[test]
fn settings_in_force_are_listed_by_name() {
    let board = board(1, 0);
    let mut settings = Vec::new();
    listing::list(&board, &Selection::default(), &mut |message| {
        settings.extend(message.agents.into_iter().flat_map(|agent| agent.settings));
        true
    });
    let find = |name: &str| settings.iter().find(|at| at.name == name).map(|at| &at.value[..]);
    assert_eq!((find("threshold"), find("victim_mask")), (Some("0"), Some("0x0")));
}

/// Regression: one node could have all places among the listed hot spots.
#[test]
fn one_node_does_not_take_the_places_of_others() {
    let mut listed = Quota::new(LISTED_MAX, NODE_LISTED_MAX);
    let taken = (0..20).filter(|_| listed.take(Guid(1)).is_ok()).count();
    assert_eq!(taken, NODE_LISTED_MAX);
    let others = (2..200).filter(|guid| listed.take(Guid(*guid)).is_ok()).count();
    assert_eq!(others, LISTED_MAX - NODE_LISTED_MAX);
}

use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::types::{Lid, Sl};
use ib_mad::wire::attribute::{NodeDescriptionRepr, PortInfo, PortState};
use ib_mad::wire::mad::{MadHeader, Method};
use ib_mad::wire::perf::{self, PortCounters};
use sa_proto::snapshot::Port;
use sm_core::perf::PerfSettings;
use sm_core::querier::Querier;

use super::exposition::{Exposition, Wanted};
use super::*;

/// A board with two adapters, cabled to each other, whose counters show 60 symbol errors and, in a
/// second sweep, twice as many.
fn board() -> (Arc<PerfBoard>, Instant) {
    let settings = PerfSettings {
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
    };
    let now = Instant::now();
    let mut manager = PerfManager::new(settings, now, 1, 1);
    manager.set_nodes(now, vec![adapter(5, 6), adapter(6, 5)]);
    for sweep in 1..=2u16 {
        let now = now + Duration::from_secs(sweep.into());
        manager.handle_timeout(now);
        while let Some(mut packet) = manager.poll_transmit(now) {
            MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP);
            if MadHeader::of(&packet.mad).attribute_id() == perf::PORT_COUNTERS {
                PortCounters::at_mut::<{ perf::DATA.start }, _>(&mut packet.mad)
                    .set_symbol_error_counter(60 * sweep);
            }
            manager.handle_packet(now, &Packet::clone(&packet));
        }
    }
    let board = Arc::new(PerfBoard::default());
    board.install(manager);
    (board, now)
}

fn adapter(guid: u64, far: u64) -> Arc<Node> {
    let mut info = [0; 64];
    PortInfo::of_mut(&mut info).set_base_lid(Lid(guid as u16)).set_port_state(PortState::Active);
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

fn exposed(board: &Arc<PerfBoard>, wanted: Wanted) -> String {
    let mut exposition = Exposition::new(board.clone(), wanted);
    std::iter::from_fn(|| exposition.next_piece()).collect()
}

#[test]
fn each_metric_is_one_group_with_names_of_nodes_and_peers() {
    let (board, _) = board();
    let text = exposed(&board, Wanted::default());
    let line = "infiniband_hca_port_symbol_error_total{guid=\"0x0000000000000005\",port=\"1\",\
                hca=\"node\\\"5\",uplink=\"node\\\"6\",uplink_port=\"1\"} 120\n";
    assert!(text.contains(line), "{text}");
    let types = text.lines().filter(|line| line.starts_with("# TYPE infiniband_"));
    let mut names: Vec<&str> = types.map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(names.len(), 2 * (Counter::COUNT + 1));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 2 * (Counter::COUNT + 1), "each has its own name");
}

#[test]
fn a_selection_lists_only_what_it_names() {
    let (board, _) = board();
    let of = |nodes: &[&str], switches, errors| {
        let nodes = nodes.iter().map(|&node| node.to_owned()).collect();
        let wanted = Wanted { selection: Selection { nodes, switches }, errors };
        exposed(&board, wanted).lines().filter(|line| line.contains("guid=")).count()
    };
    assert_eq!(of(&[], true, false), 0);
    assert_eq!(of(&["node\"6"], false, false), Counter::COUNT);
    assert_eq!(of(&["0x5", "node\"6"], false, true), 2);
}

#[test]
fn a_port_whose_errors_grow_is_a_problem() {
    let (board, now) = board();
    board.find_faulty();
    let found = board.conditions();
    assert_eq!((found.len(), found[0].kind), (2, Kind::PortErrors));
    assert!(found[0].detail.starts_with("its counters show 60 errors in 1 s"), "{found:?}");
    assert_eq!(board.with(|manager| manager.clear_totals(now, |_| true)), Some(2));
    let mut listed = Vec::new();
    let all = listing::list(&board, &Selection::default(), None, &mut |message| {
        listed.extend(message.ports);
        true
    });
    assert!(all && listed.len() == 2 && listed[0].totals.iter().all(|total| *total == 0));
}

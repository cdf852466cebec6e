use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::wire::attribute::NodeDescriptionRepr;
use ib_mad::wire::mad::{MadHeader, Method};
use ib_mad::wire::perf::{self, PortCounters};
use sm_core::querier::Querier;

use super::exposition::{Exposition, Wanted};
use super::loads::{Order, top};
use super::testing::adapter;
use super::*;
use crate::observe::problem::testing::plane;
use crate::observe::topology::Topology;

/// A board with two adapters, cabled to each other by 1x SDR, whose counters show 60 symbol errors
/// and 1,000,000 words sent times their LIDs, and, in a second sweep a second later, twice as many.
fn board() -> (Arc<PerfBoard>, Instant) {
    let now = Instant::now();
    let mut manager = PerfManager::new(testing::settings(), now, 1, 1);
    manager.set_nodes(now, vec![adapter(5, 6), adapter(6, 5)]);
    for sweep in 1..=2u16 {
        let now = now + Duration::from_secs(sweep.into());
        manager.handle_timeout(now);
        while let Some(mut packet) = manager.poll_transmit(now) {
            MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP);
            if MadHeader::of(&packet.mad).attribute_id() == perf::PORT_COUNTERS {
                let sent = 1_000_000 * u32::from(packet.address.lid.0);
                PortCounters::at_mut::<{ perf::DATA.start }, _>(&mut packet.mad)
                    .set_symbol_error_counter(60 * sweep)
                    .set_port_xmit_data(sent * u32::from(sweep));
            }
            manager.handle_packet(now, &Packet::clone(&packet));
        }
    }
    let board = Arc::new(PerfBoard::default());
    board.install(manager);
    (board, now)
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
    assert_eq!(names.len(), 2 * (Counter::COUNT + 4));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 2 * (Counter::COUNT + 4), "each has its own name");
    // As rules for infiniband_exporter join them.
    for line in [
        "infiniband_hca_info{guid=\"0x0000000000000005\",lid=\"5\",hca=\"node\\\"5\"} 1\n",
        "infiniband_hca_uplink_info{guid=\"0x0000000000000005\",port=\"1\",hca=\"node\\\"5\",\
         uplink=\"node\\\"6\",uplink_port=\"1\",uplink_guid=\"0x0000000000000006\",\
         uplink_type=\"CA\",uplink_lid=\"6\"} 1\n",
        "infiniband_hca_rate_bytes_per_second{guid=\"0x0000000000000005\",port=\"1\",\
         hca=\"node\\\"5\",uplink=\"node\\\"6\",uplink_port=\"1\"} 250000000\n",
    ] {
        assert!(text.contains(line), "{line} not in {text}");
    }
}

#[test]
fn a_selection_lists_only_what_it_names() {
    let (board, _) = board();
    let of = |nodes: &[&str], switches, errors| {
        let selection = Selection::of_list(Some(&nodes.join(","))).unwrap();
        let wanted = Wanted { selection: Selection { switches, ..selection }, errors };
        exposed(&board, wanted).lines().filter(|line| line.contains("guid=")).count()
    };
    assert_eq!(of(&[], true, false), 0);
    assert_eq!(of(&["node\"6"], false, false), Counter::COUNT + 4, "and four of its link and node");
    assert_eq!(of(&["0x5", "node\"6"], false, true), 2);
}

#[test]
fn the_counters_of_a_node_are_listed_by_port_and_kind() {
    let (board, now) = board();
    let counts = serde_json::to_value(board.counts_of(Guid(5))).unwrap();
    assert_eq!(counts["ports"].as_array().unwrap().len(), 1);
    let port = &counts["ports"][0];
    assert_eq!((&port["port"], &port["error_count"]), (&1.into(), &120.into()));
    assert_eq!(port["errors"], serde_json::json!({ "symbol_err_cnt": 120 }));
    assert_eq!(port["data"], serde_json::json!({ "xmit_data": 10_000_000 }));
    assert_eq!(port["errors_per_s"], 60.0);
    let unknown = serde_json::to_value(board.counts_of(Guid(99))).unwrap();
    assert_eq!(unknown["ports"], serde_json::json!([]));
    board.clear(now, |_| true);
    let cleared = serde_json::to_value(board.counts_of(Guid(5))).unwrap();
    assert_eq!(cleared["ports"][0]["errors"], serde_json::json!({}));
    assert!(PerfBoard::default().counts_of(Guid(5)).is_none());
}

/// Regression: a piece that ended behind the HELP and TYPE of a metric was followed by one that
/// began with them.
#[test]
fn pieces_of_any_length_have_the_same_text() {
    let (board, _) = board();
    let whole = exposed(&board, Wanted::default());
    for len in [1, 100, 500, 2_000] {
        let mut exposition = Exposition::new(board.clone(), Wanted::default()).in_pieces_of(len);
        let text: String = std::iter::from_fn(|| exposition.next_piece()).collect();
        assert_eq!(text, whole, "{len}");
    }
}

/// Regression: a request for nodes that do not exist looked at all ports once per metric and name
/// under the lock, and for as long HTTP and gRPC did not answer.
#[test]
fn a_piece_looks_at_a_limited_number_of_ports_even_if_none_is_listed() {
    let now = Instant::now();
    let mut manager = PerfManager::new(testing::settings(), now, 1, 1);
    manager.set_nodes(now, (1..=6_000).map(|guid| adapter(guid, guid)).collect());
    manager.handle_timeout(now);
    let board = Arc::new(PerfBoard::default());
    board.install(manager);
    let selection = Selection::of_node("elsewhere");
    let mut exposition = Exposition::new(board, Wanted { selection, errors: false });
    let pieces: Vec<String> = std::iter::from_fn(|| exposition.next_piece()).collect();
    assert!(pieces.len() > 2 * (Counter::COUNT + 4), "{}", pieces.len());
    assert!(pieces.iter().any(String::is_empty) && !pieces.concat().contains("guid="));
}

#[test]
fn the_number_of_names_in_a_selection_is_limited() {
    let names = |count: usize| (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>().join(",");
    assert!(Selection::of_list(Some(&names(NAMES_MAX))).is_ok());
    assert!(Selection::of_list(Some(&names(NAMES_MAX + 1))).is_err());
    assert!(Selection::of_list(Some(&"x,".repeat(8_000))).is_ok(), "it is one name");
}

#[test]
fn a_node_is_selected_by_the_first_word_of_its_name_too() {
    let name = |text: &str| {
        Arc::new(Node {
            description: NodeDescriptionRepr::from_text(text).node_string,
            ..Node::clone(&adapter(5, 6))
        })
    };
    let selection = Selection::of_list(Some("host7")).unwrap();
    assert!(selection.takes(&name("host7 mlx5_0")) && selection.takes(&name("host7")));
    assert!(!selection.takes(&name("host70 mlx5_0")) && !selection.takes(&name("mlx5_0 host7")));
}

#[test]
fn a_port_whose_errors_grow_is_a_problem() {
    let (board, now) = board();
    board.find_faulty(now);
    let found = board.conditions(now);
    assert_eq!((found.len(), found[0].kind), (2, Kind::PortErrors));
    assert!(found[0].detail.starts_with("its counters show 60 errors in 1 s"), "{found:?}");
    assert!(found[0].detail.ends_with("; its link leads to 'node\"6' port 1"), "{found:?}");
    // Regression: a burst of errors was no problem any more after the next reading, before an alert
    // or an operator saw it.
    let later = now + Duration::from_secs(3);
    board.with(|manager| manager.handle_timeout(later));
    board.find_faulty(later);
    assert_eq!(board.conditions(later), found);
    assert_eq!(board.conditions(now + HELD), []);
    assert_eq!(board.clear(later, |_| true), Some(2));
    assert_eq!(board.conditions(later), [], "an operator has seen it");
    let mut listed = Vec::new();
    let all = listing::list(&board, &Selection::default(), None, &mut |message| {
        listed.extend(message.ports);
        true
    });
    assert!(all && listed.len() == 2 && listed[0].totals.iter().all(|total| *total == 0));
}

/// Regression: ports were listed by ascending GUID, so that a host that answered as two switches
/// with low GUIDs took all places, and no error of the rest of the fabric was a problem.
#[test]
fn one_node_does_not_hide_the_errors_of_others() {
    let now = Instant::now();
    let port = |guid: u64, number: u8, errors| ((Guid(guid), PortNum(number)), now, errors);
    let mut all: Vec<_> = (1..=200).map(|number| port(1, number, 1_000)).collect();
    all.extend((1..=200).map(|number| port(2, number, 2_000)));
    all.push(port(9, 7, 10));
    let (listed, unlisted) = worst(all);
    let of = |guid| listed.iter().filter(|((of, _), ..)| *of == Guid(guid)).count();
    assert_eq!((of(1), of(2), of(9), unlisted), (16, 16, 1, 368));
    assert_eq!(listed[0], port(2, 1, 2_000));
    let many = (1..=300).map(|guid| port(guid, 1, guid as u32)).collect();
    let (listed, unlisted) = worst(many);
    assert_eq!((listed.len(), unlisted, listed[0]), (FAULTY_PORTS_MAX, 44, port(300, 1, 300)));
}

#[test]
fn the_number_of_ports_that_are_not_listed_is_a_problem() {
    let (board, now) = board();
    board.faulty.lock().unwrap().unlisted = 3;
    let found = board.conditions(now);
    assert_eq!((found.len(), &*found[0].id()), (1, "port_errors"));
    assert!(found[0].text().starts_with("3 further ports have errors"), "{found:?}");
}

#[test]
fn the_busiest_direction_of_a_link_is_first() {
    let (board, _) = board();
    let all = |order, nodes: &str| {
        let selection = Selection::of_list(Some(nodes)).unwrap();
        top(&board, &loads::Wanted { selection, port: None, order, count: 10 }).unwrap()
    };
    assert_eq!(all(Order::Rate, "").sweep, 0, "no sweep was recorded yet");
    board.record(7);
    let found = all(Order::Rate, "");
    assert_eq!((found.sweep, found.time_ms, found.links.len()), (2, 7, 2));
    let first = &found.links[0];
    assert_eq!((&*first.from.name, &*first.to.name), ("node\"6", "node\"5"));
    // 6,000,000 words in a second, on a link of 2 Gb/s.
    assert!((first.gbps - 0.192).abs() < 1e-9, "{first:?}");
    assert!((first.percent.unwrap() - 9.6).abs() < 1e-9, "{first:?}");
    let errors = (first.from_errors_per_s, first.to_errors_per_s);
    assert_eq!(errors, (Some(60.0), Some(60.0)));
    assert_eq!(all(Order::Share, "").links, found.links);
    assert_eq!(all(Order::Errors, "").links.len(), 2);
    assert_eq!(all(Order::Rate, "0x5").links.len(), 2, "both directions are of its link");
    assert!(all(Order::Rate, "another").links.is_empty());
}

#[test]
fn the_busiest_direction_of_an_earlier_time_has_the_names_of_then() {
    let links = [(1, 1, 8, 1), (1, 9, 100, 1)];
    let then = Topology::of(&plane(&links, 0, 0));
    let end = |guid, port| (Guid(guid), PortNum(port));
    let direction = |from, to, rate| loads::Direction {
        from,
        to,
        rate,
        capacity: 4e9,
        from_errors: 0.0,
        to_errors: 0.0,
    };
    let directions =
        vec![direction(end(100, 1), end(1, 9), 2e9), direction(end(8, 1), end(1, 1), 1e9)];
    let loads = Loads { sweep: 3, time_ms: 7, directions, unlisted: 0 };
    let of = |nodes: &str, port| {
        let selection = Selection::of_list(Some(nodes)).unwrap();
        let wanted = loads::Wanted { selection, port, order: Order::Rate, count: 10 };
        let found = loads::top_then(&loads, &then, &wanted);
        let names = |link: &loads::LinkNow| (link.from.name.clone(), link.to.name.clone());
        assert!(found.links.iter().all(|link| link.from_errors_per_s.is_none()));
        (found.time_ms, found.links.iter().map(names).collect::<Vec<_>>())
    };
    let (host, spine) = (("n100".into(), "n1".into()), ("n8".into(), "n1".into()));
    assert_eq!(of("", None), (7, vec![host.clone(), spine.clone()]));
    assert_eq!(of("n8", None).1, [spine]);
    assert_eq!(of("n1", Some(9)).1, [host]);
    assert!(of("n101", None).1.is_empty());
}

#[test]
fn curves_have_a_reading_for_each_sweep_and_gaps_where_nothing_was_read() {
    let (board, _) = board();
    board.record(7);
    board.with(|manager| {
        let later = Instant::now() + Duration::from_secs(3);
        manager.sweep_now(later);
        manager.set_nodes(later, vec![adapter(5, 6)]);
        manager.handle_timeout(later);
    });
    board.record(8);
    let gone = serde_json::to_value(board.rates_of(Guid(6)).unwrap()).unwrap();
    let sent: Vec<Option<f64>> =
        serde_json::from_value(gone["ports"][0]["sent_gbps"].clone()).unwrap();
    assert_eq!((sent.len(), sent[1]), (2, None), "{gone}");
    assert!((sent[0].unwrap() - 0.192).abs() < 0.001, "{gone}");
    assert_eq!(gone["times_ms"], serde_json::json!([7, 8]));
    for time_ms in 9..60 {
        board.record(time_ms);
    }
    let rates = serde_json::to_value(board.rates_of(Guid(6)).unwrap()).unwrap();
    assert_eq!(rates["ports"], serde_json::json!([]), "one that left is forgotten");
    assert_eq!(rates["times_ms"].as_array().unwrap().len(), 32);
}

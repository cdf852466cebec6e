//! A manager and one agent, answer by answer.

use crate::querier::Querier;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::packet::Packet;
use ib_mad::types::{Gid, Guid, Lid, PortNum, Qpn, Sl};
use ib_mad::wire::attribute::{CapabilityMask, ClassPortInfo, LinkSpeedsExt, PortInfo, PortState};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, Status};
use ib_mad::wire::perf::{self, PortCounters, PortExtendedSpeedsCounters};
use proptest::prelude::*;
use sa_proto::snapshot::{Node, Port};

use super::*;

const LID: Lid = Lid(7);
const AT: usize = perf::DATA.start;

fn settings() -> PerfSettings {
    PerfSettings {
        sweep_time: Duration::from_secs(180),
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

/// A channel adapter with one active port.
fn adapter(guid: u64) -> Arc<Node> {
    let mut info = [0; 64];
    PortInfo::of_mut(&mut info).set_base_lid(LID).set_port_state(PortState::Active);
    let port = Port {
        num: PortNum(1),
        guid: Guid(guid),
        info,
        pkeys: Arc::new([]),
        peer: Some((Guid(99), PortNum(3))),
    };
    Arc::new(Node {
        guid: Guid(guid),
        info: [0; 40],
        description: [0; 64],
        switch_info: None,
        ports: vec![port],
    })
}

struct Bench {
    manager: PerfManager,
    now: Instant,
}

impl Bench {
    fn new(settings: PerfSettings) -> Self {
        let now = Instant::now();
        let mut manager = PerfManager::new(settings, now, 1_000_000, 1);
        manager.set_nodes(now, vec![adapter(5)]);
        manager.handle_timeout(now);
        Self { manager, now }
    }

    fn query(&mut self) -> Option<Packet> {
        self.manager.poll_transmit(self.now)
    }

    /// Answers a query from where it was sent to, after a change of the answer.
    fn answer(&mut self, query: &Packet, status: Status, change: impl FnOnce(&mut [u8; 256])) {
        let mut packet = query.clone();
        MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP).set_status(status);
        change(&mut packet.mad);
        self.manager.handle_packet(self.now, &packet);
    }

    /// Answers ClassPortInfo: PortCounters only.
    fn answer_info(&mut self) {
        let query = self.query().unwrap();
        assert_eq!(MadHeader::of(&query.mad).attribute_id(), AttributeId::CLASS_PORT_INFO);
        self.answer(&query, Status::OK, |_| {});
    }

    fn total(&self, counter: Counter) -> u64 {
        self.manager.ports_of(0).next().unwrap().counts.total(counter)
    }

    /// Reads PortCounters once with these errors, in a sweep of its own.
    fn sweep(&mut self, symbol_errors: u16) -> Vec<Packet> {
        self.now += Duration::from_secs(1);
        self.manager.sweep_now(self.now);
        self.manager.handle_timeout(self.now);
        let mut sent = Vec::new();
        while let Some(query) = self.query() {
            let is_get = MadHeader::of(&query.mad).method() == Method::GET;
            self.answer(&query, Status::OK, |mad| {
                let value = if is_get { symbol_errors } else { 0 };
                PortCounters::at_mut::<AT, _>(mad).set_symbol_error_counter(value);
            });
            sent.push(query);
        }
        sent
    }
}

fn redirect_to(mad: &mut [u8; 256], lid: Lid, q_key: u32) {
    ClassPortInfo::at_mut::<AT, _>(mad)
        .set_redirect_gid(Gid::ZERO)
        .set_redirect_lid(lid)
        .set_redirect_qp(Qpn(0x123))
        .set_redirect_qkey(q_key);
}

proptest! {
    /// The sweep ends and no total falls, with any answers of an agent.
    #[test]
    fn any_answers_are_survived(
        answers in prop::collection::vec((any::<u16>(), prop::array::uniform32(any::<u8>())), 1..40)
    ) {
        let mut bench = Bench::new(settings());
        let mut answers = answers.iter().cycle();
        let mut before = [0; Counter::COUNT];
        for _ in 0..4 {
            for _ in 0..64 {
                let Some(query) = bench.query() else { break };
                let (status, bytes) = answers.next().expect("a cycle has no end");
                // Mostly without an error.
                let status = if status % 4 == 0 { Status(*status >> 2 & 0x1F) } else { Status::OK };
                bench.answer(&query, status, |mad| {
                    for (place, byte) in mad[AT..].iter_mut().zip(bytes.iter().cycle()) {
                        *place = *byte;
                    }
                });
            }
            bench.now += Duration::from_secs(1);
            bench.manager.handle_timeout(bench.now);
            bench.manager.sweep_now(bench.now);
            for counter in Counter::ALL {
                let total = bench.total(*counter);
                prop_assert!(total >= before[*counter as usize]);
                before[*counter as usize] = total;
            }
        }
    }
}

/// IBA 13.4.7, 13.4.8.1.
#[test]
fn a_redirected_query_goes_to_the_new_lid_and_queue_pair() {
    let mut bench = Bench::new(settings());
    let query = bench.query().unwrap();
    assert_eq!((query.address.lid, query.address.qpn), (LID, Qpn::GSI));
    bench.answer(&query, Status::REDIRECT, |mad| redirect_to(mad, Lid(44), 0x8001_0000));
    let query = bench.query().unwrap();
    assert_eq!((query.address.lid, query.address.qpn), (Lid(44), Qpn(0x123)));
    bench.answer(&query, Status::OK, |_| {});
    let query = bench.query().unwrap();
    assert_eq!(query.address.lid, Lid(44));
    // A second redirection in a sweep could be a loop.
    bench.answer(&query, Status::REDIRECT, |mad| redirect_to(mad, Lid(45), 0x8001_0000));
    assert!(bench.query().is_none());
    let status = bench.manager.status();
    assert_eq!((status.redirected, status.redirections_refused, status.sweeping), (1, 1, false));
}

#[test]
fn redirections_to_where_queries_cannot_be_sent_are_refused() {
    for (follows, q_key) in [(true, 0x1234), (false, 0x8001_0000)] {
        let mut bench = Bench::new(PerfSettings { follow_redirections: follows, ..settings() });
        let query = bench.query().unwrap();
        bench.answer(&query, Status::REDIRECT, |mad| redirect_to(mad, Lid(44), q_key));
        assert!(bench.query().is_none());
        let event = bench.manager.poll_event().unwrap();
        assert_eq!(event.what, Happened::RedirectionRefused);
    }
}

/// IBA 16.1.2.
#[test]
fn queries_show_the_pm_key() {
    let mut bench = Bench::new(PerfSettings { pm_key: 0xABCD, ..settings() });
    assert_eq!(perf::pm_key(&bench.query().unwrap().mad), 0xABCD);
}

/// IBA 16.1.3.5.
#[test]
fn a_counter_is_cleared_at_three_quarters_and_only_that_one() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    bench.sweep(49_151);
    let sent = bench.sweep(49_152);
    let clear = PortCounters::at::<AT, _>(&sent[1].mad);
    assert_eq!((clear.counter_select(), clear.counter_select2()), (1, 0));
    assert_eq!(MadHeader::of(&sent[1].mad).method(), Method::SET);
    assert_eq!(sent.len(), 2);
    bench.sweep(5);
    assert_eq!(bench.total(Counter::SymbolError), 49_157);
    let status = bench.manager.status();
    assert_eq!((status.clears, status.cleared_by_others), (1, 0));
}

#[test]
fn growth_and_clears_by_others_are_events() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    bench.sweep(10);
    assert!(bench.manager.poll_event().is_none(), "the first reading is not growth");
    bench.sweep(12);
    let grew = |by| Happened::Grew { counter: Counter::SymbolError, by };
    assert_eq!(bench.manager.poll_event().unwrap().what, grew(2));
    bench.sweep(3);
    assert_eq!(bench.manager.poll_event().unwrap().what, grew(3));
    assert_eq!(bench.manager.poll_event().unwrap().what, Happened::Cleared);
    assert_eq!(bench.total(Counter::SymbolError), 15);
}

#[test]
fn a_silent_agent_is_left_out_until_the_next_sweep() {
    let mut bench = Bench::new(settings());
    let start = bench.now;
    for _ in 0..3 {
        assert!(bench.query().is_some());
        assert!(bench.query().is_none());
        bench.now += Duration::from_millis(200);
        bench.manager.handle_timeout(bench.now);
    }
    assert!(bench.query().is_none());
    assert_eq!(bench.manager.poll_event().unwrap().what, Happened::Silent);
    let status = bench.manager.status();
    assert_eq!((status.sweeps, status.sent, status.retried, status.expired), (1, 3, 2, 1));
    // Also by the glances in between.
    while bench.query().is_none() {
        bench.now = bench.manager.poll_timeout().unwrap();
        bench.manager.handle_timeout(bench.now);
    }
    assert_eq!(bench.now, start + settings().sweep_time);
}

#[test]
fn silence_after_the_first_answer_is_an_event_too() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    for _ in 0..3 {
        assert!(bench.query().is_some());
        bench.now += Duration::from_millis(200);
        bench.manager.handle_timeout(bench.now);
    }
    assert_eq!(bench.manager.poll_event().unwrap().what, Happened::Silent);
    assert!(!bench.manager.ports_of(0).next().unwrap().is_known);
}

#[test]
fn the_rates_of_a_silent_port_are_unknown() {
    let mut bench = Bench::new(settings());
    for errors in [0, 5] {
        bench.sweep(errors);
    }
    let counts = |bench: &Bench| bench.manager.ports_of(0).next().unwrap().counts.clone();
    assert!(counts(&bench).interval_ms > 0 && counts(&bench).recent_faults == 5);
    bench.now += Duration::from_secs(1);
    bench.manager.sweep_now(bench.now);
    for _ in 0..5 {
        bench.manager.handle_timeout(bench.now);
        while bench.query().is_some() {}
        bench.now += Duration::from_millis(200);
    }
    let counts = counts(&bench);
    assert_eq!((counts.interval_ms, counts.recent_faults), (0, 0));
    assert_eq!(counts.total(Counter::SymbolError), 5);
}

#[test]
fn answers_that_match_no_query_are_counted_and_change_nothing() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    let query = bench.query().unwrap();
    let mut elsewhere = query.clone();
    elsewhere.address.lid = Lid(8);
    MadHeader::of_mut(&mut elsewhere.mad).set_method(Method::GET_RESP);
    bench.manager.handle_packet(bench.now, &elsewhere);
    bench.answer(&query, Status::OK, |mad| {
        MadHeader::of_mut(mad).set_attribute_id(perf::PORT_COUNTERS_EXTENDED);
    });
    assert_eq!(bench.manager.status().unmatched, 2);
    bench.answer(&query, Status::OK, |_| {});
    bench.answer(&query, Status::OK, |_| {});
    assert_eq!(bench.manager.status().unmatched, 3);
}

#[test]
fn a_node_that_left_is_forgotten_or_kept_as_configured() {
    for remove_nodes in [true, false] {
        let mut bench = Bench::new(PerfSettings { remove_nodes, ..settings() });
        bench.answer_info();
        bench.sweep(10);
        bench.manager.set_nodes(bench.now, vec![adapter(6)]);
        bench.sweep(20);
        let nodes = bench.manager.node_count();
        assert_eq!(nodes, if remove_nodes { 1 } else { 2 });
        if !remove_nodes {
            let gone = bench.manager.ports_of(0).next().unwrap();
            assert_eq!((gone.active, gone.counts.total(Counter::SymbolError)), (false, 10));
        }
    }
}

#[test]
fn dumps_have_the_columns_and_lines_of_opensm() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    bench.sweep(10);
    let mut text = String::new();
    dump::machine(&mut text, bench.manager.ports_of(0), |time| time.to_string());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, ""));
    let (names, values): (Vec<&str>, Vec<&str>) =
        (lines[1].split('\t').collect(), lines[2].split('\t').collect());
    assert_eq!((names.len(), values.len()), (28, 28));
    assert_eq!((names[7], values[7]), ("symbol_err_cnt", "10"));
    assert_eq!((names[27], &values[..4]), ("multicast_rcv_pkts", &["", "0x5", "TRUE", "1"][..]));
    let mut text = String::new();
    let port = bench.manager.ports_of(0).next().unwrap();
    dump::human(&mut text, &port, false, |time| time.to_string());
    assert!(text.starts_with("\"\" 0x5 active TRUE port 1\n     Last Reset           : 1000000\n"));
    assert!(text.contains("     symbol_err_cnt       : 10\n"), "{text}");
    assert!(text.contains("     xmit_data            : 0 (0.000B)\n"), "{text}");
    // Regression: packets were bytes, too.
    assert!(text.contains("     xmit_pkts            : 0 (0.000)\n"), "{text}");
}

#[test]
fn no_sweep_begins_while_the_manager_is_disabled() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    bench.sweep(10);
    bench.manager.set_enabled(false);
    bench.now += Duration::from_secs(600);
    bench.manager.handle_timeout(bench.now);
    assert!(bench.query().is_none() && bench.manager.poll_timeout().is_none());
    bench.manager.set_enabled(true);
    bench.manager.handle_timeout(bench.now);
    assert!(bench.query().is_some());
}

#[test]
fn the_next_sweep_is_due_after_a_changed_time() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    // The first ends the sweep of the start, the second is the one that it orders.
    bench.sweep(10);
    bench.sweep(10);
    let (now, time) = (bench.now, Duration::from_secs(7));
    bench.manager.set_sweep_time(now, time);
    assert_eq!(bench.manager.poll_timeout(), Some(now + time));
    bench.manager.sweep_now(now);
    bench.manager.set_sweep_time(now, time);
    assert_eq!(bench.manager.poll_timeout(), Some(now), "one that was ordered");
}

#[test]
fn nodes_that_left_are_forgotten_on_request() {
    let mut bench = Bench::new(PerfSettings { remove_nodes: false, ..settings() });
    bench.answer_info();
    bench.sweep(10);
    bench.manager.set_nodes(bench.now, vec![adapter(6)]);
    bench.now += Duration::from_secs(180);
    bench.manager.handle_timeout(bench.now);
    assert_eq!(bench.manager.node_count(), 2);
    // A sweep is under way: its queries refer to nodes by their positions.
    assert_eq!((bench.manager.forget_inactive(bench.now), bench.manager.node_count()), (1, 2));
    bench.answer_info();
    bench.sweep(10);
    bench.now += Duration::from_secs(180);
    bench.manager.handle_timeout(bench.now);
    assert_eq!((bench.manager.forget_inactive(bench.now), bench.manager.node_count()), (0, 1));
    assert!(bench.manager.node(Guid(6)).is_some());
}

/// A switch with four active ports.
fn switch(guid: u64) -> Arc<Node> {
    let Node { ports, .. } = &*adapter(guid);
    let at = |num: u8| Port {
        num: PortNum(num),
        peer: Some((Guid(9), PortNum(num))),
        ..ports[0].clone()
    };
    let ports = (0..=4).map(at).collect();
    Arc::new(Node { switch_info: Some([0; 20]), ports, ..Node::clone(&adapter(guid)) })
}

/// An adapter and a switch, whose ports all show the same.
struct Site {
    manager: PerfManager,
    start: Instant,
    /// SymbolErrorCounter, and PortFECUncorrectableBlockCounter.
    errors: u16,
    blocks: u32,
}

/// What was sent in a turn, the sweeps and glances by then, and errors with their time at a port of
/// the adapter and of the switch.
type Turn = (usize, [u64; 2], [(u32, u32); 2]);

impl Site {
    fn new() -> Self {
        let start = Instant::now();
        let mut manager = PerfManager::new(settings(), start, 1_000_000, 1);
        manager.set_nodes(start, vec![adapter(5), switch(6)]);
        Self { manager, start, errors: 0, blocks: 0 }
    }

    /// All that is due at a time after the start.
    fn at(&mut self, second: u64) -> Turn {
        let now = self.start + Duration::from_secs(second);
        self.manager.handle_timeout(now);
        let mut queries = 0;
        while let Some(mut packet) = self.manager.poll_transmit(now) {
            queries += 1;
            MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP);
            let caps = perf::ALL_PORT_SELECT | perf::IS_EXTENDED_WIDTH_SUPPORTED;
            let mad = &mut packet.mad;
            match MadHeader::of(mad).attribute_id() {
                AttributeId::CLASS_PORT_INFO => {
                    ClassPortInfo::at_mut::<AT, _>(mad).set_capability_mask(caps);
                }
                perf::PORT_COUNTERS => {
                    PortCounters::at_mut::<AT, _>(mad).set_symbol_error_counter(self.errors);
                }
                perf::PORT_EXTENDED_SPEEDS_COUNTERS => {
                    PortExtendedSpeedsCounters::at_mut::<AT, _>(mad)
                        .set_port_fec_uncorrectable_block_counter(self.blocks);
                }
                _ => {}
            }
            self.manager.handle_packet(now, &packet);
        }
        let faults = |guid| {
            let counts = self.manager.port(Guid(guid), PortNum(1)).unwrap().counts;
            (counts.recent_faults, counts.recent_faults_s)
        };
        let status = self.manager.status();
        (queries, [status.sweeps, status.glances], [5, 6].map(faults))
    }
}

/// Regression: with OpenSM's interval of 180 s, a burst of errors was found after 150 s.
#[test]
fn errors_are_found_between_two_sweeps() {
    let mut site = Site::new();
    let (queries, done, _) = site.at(0);
    assert!(queries > 10 && done == [1, 0], "{queries}");
    assert_eq!(site.at(29).1, [1, 0]);
    assert_eq!(site.at(30).0, 2, "the sums of the switch, and the port of the adapter");
    site.errors = 20;
    let (queries, done, faults) = site.at(60);
    assert_eq!((queries, done), (6, [1, 2]), "the sums have grown: all four ports");
    assert_eq!(faults, [(20, 30), (20, 60)]);
    let (queries, done, faults) = site.at(90);
    assert_eq!((queries, done, faults.map(|(count, _)| count)), (2, [1, 3], [0, 0]));
    assert_eq!(site.at(180).1, [2, 3], "a sweep goes first");
    assert_eq!(site.at(209).1, [2, 3]);
    assert_eq!(site.at(210).1, [2, 4]);
}

/// Regression: after any change of the fabric glances skipped all switches until the next sweep.
#[test]
fn errors_are_found_between_two_sweeps_after_the_fabric_has_changed() {
    let mut site = Site::new();
    site.at(0);
    let now = site.start + Duration::from_secs(10);
    site.manager.set_nodes(now, vec![adapter(5), switch(6), adapter(7)]);
    site.errors = 20;
    let (queries, _, faults) = site.at(30);
    assert_eq!((queries, faults), (6, [(20, 30); 2]), "the new adapter is for the next sweep");
    // A port that was never read is not quiet.
    let (queries, done, _) = site.at(180);
    assert!(queries > 5 && done == [2, 1]);
    assert!(site.manager.port(Guid(7), PortNum(1)).unwrap().is_known);
}

/// Regression: the counters of forward error correction were read in every fourth sweep, those of a
/// switch in which nothing else moved hardly ever; and the time in which they grew was wrong.
#[test]
fn errors_that_only_forward_error_correction_counts_are_found_between_two_sweeps() {
    let mut site = Site::new();
    let fast = |node: Arc<Node>| {
        let mut node = Node::clone(&node);
        for port in &mut node.ports {
            PortInfo::of_mut(&mut port.info)
                .set_capability_mask(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED)
                .set_link_speed_ext_active(LinkSpeedsExt::EDR);
        }
        Arc::new(node)
    };
    site.manager.set_nodes(site.start, vec![fast(adapter(5)), fast(switch(6))]);
    site.at(0);
    let quiet = site.at(30);
    assert_eq!((quiet.0, quiet.2), (2 + 5, [(0, 30); 2]), "they are in no sum");
    site.blocks = 90;
    assert_eq!(site.at(60).2, [(90, 30); 2]);
    site.blocks = 180;
    assert_eq!((site.at(180).2, site.at(190).0), ([(90, 120); 2], 0), "in a sweep, too");
}

fn growths(bench: &mut Bench) -> Vec<Growth> {
    let events = std::iter::from_fn(|| bench.manager.poll_event());
    let counted = events.filter_map(|event| match event.what {
        Happened::Counted(growth) => Some(growth),
        _ => None,
    });
    counted.collect()
}

#[test]
fn growth_is_an_event_of_each_reading_for_those_that_follow_it() {
    let mut bench = Bench::new(settings());
    bench.answer_info();
    bench.sweep(5);
    bench.sweep(7);
    assert_eq!(growths(&mut bench), [], "it is not followed");
    bench.manager.follow([true, false, true]);
    bench.sweep(7);
    assert_eq!(growths(&mut bench), [], "nothing grew");
    bench.sweep(20);
    let [growth] = growths(&mut bench)[..] else { panic!("one event") };
    assert_eq!((growth.group, growth.seconds), (Group::Errors, 1));
    assert_eq!(growth.grown().collect::<Vec<_>>(), [(Counter::SymbolError, 13)]);
    // Somebody else cleared the counter: what it shows was counted since.
    bench.sweep(4);
    assert_eq!(
        growths(&mut bench)[0].grown().collect::<Vec<_>>(),
        [(Counter::SymbolError, 4)],
        "the difference, not the total"
    );
    bench.manager.follow([false; 3]);
    bench.sweep(30);
    assert_eq!(growths(&mut bench), []);
}

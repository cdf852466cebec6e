//! `/metrics` of both daemons while clients of every kind send requests: every request is accounted
//! for, no counter decreases, and every metric is explained in `docs/metrics.md`.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::scrape::Scrape;
use crate::support::{Subnet, hosts};
use benches::sandbox::{PATIENCE, Program, can_interoperate_with, free_address};
use ib_mad::transport::Packet;
use ib_mad::transport::udp::{DATAGRAM_LEN, encode};
use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A responder with the address of its front door and that of its metrics.
struct Responder {
    _program: Program,
    front_door: String,
    http: String,
}

fn responder(subnet: &Subnet) -> Responder {
    let (url, http) = (subnet.url(), free_address().to_string());
    let args = ["--sm", &url, "--transport", "udp", "--listen", "127.0.0.1:0", "--http", &http];
    let program = subnet.sandbox.ours("ibsa", "ibsa", &args);
    program.wait_for("serving generation");
    let log = program.wait_for("ready for queries");
    let (_, rest) = log.split_once("front_door=").expect("the line has its address");
    let front_door = rest.split_whitespace().next().expect("an address").to_owned();
    Responder { _program: program, front_door, http }
}

/// A request of any kind; some are of a foreign class, or have broken headers.
fn anything(random: &mut SmallRng, lids: &[Lid], tid: u64) -> Packet {
    const ATTRIBUTES: [AttributeId; 6] = [
        attribute::PATH_RECORD,
        attribute::NODE_RECORD,
        attribute::PORT_INFO_RECORD,
        attribute::MC_MEMBER_RECORD,
        AttributeId::CLASS_PORT_INFO,
        attribute::SERVICE_RECORD,
    ];
    const METHODS: [Method; 5] =
        [Method::GET, Method::GET, Method::GET_TABLE, Method::SET, Method::DELETE];
    let mut packet = Packet::default();
    packet.address.lid = lids[random.random_range(0..lids.len())];
    let attribute = match random.random_range(0..8) {
        7 => AttributeId(random.random()),
        n => ATTRIBUTES[n % ATTRIBUTES.len()],
    };
    let method = match random.random_range(0..12) {
        11 => Method(random.random()),
        n => METHODS[n % METHODS.len()],
    };
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(method, attribute, tid, ComponentMask(0));
    match random.random_range(0..16) {
        0 => {
            mad.header_mut().set_mgmt_class(MgmtClass::PERF);
        }
        1 => {
            mad.sa_mut().set_sm_key(random.random());
        }
        2 => random.fill(&mut packet.mad[24..56]),
        3 => random.fill(&mut packet.mad[56..]),
        _ => {}
    }
    packet
}

/// Received requests, and how each is accounted for.
fn books(scrape: &Scrape) -> (u64, u64) {
    let ended = scrape.sum("ibsa_responses_total") + scrape.sum("ibsa_requests_dropped_total");
    (scrape.sum("ibsa_requests_total"), ended + scrape.sum("ibsa_requests_in_flight"))
}

#[tokio::test]
async fn every_request_is_answered_dropped_or_in_flight_and_no_counter_falls() {
    let subnet = Subnet::new("books");
    let http = free_address().to_string();
    let _ibsm = subnet.ibsm(&["--http", &http]);
    let responder = responder(&subnet);
    let snapshot = subnet.snapshot().await;
    let lids: Vec<Lid> =
        hosts(&snapshot).iter().map(|host| host.lid).chain([Lid(0x7FFF)]).collect();

    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.connect(&responder.front_door).expect("it is on loopback");
    let mut random = SmallRng::seed_from_u64(29);
    let mut last = Scrape::of(&responder.http);
    for round in 0..60u64 {
        for i in 0..64 {
            let packet = anything(&mut random, &lids, round << 8 | i);
            let datagram =
                [&encode(&packet.address, packet.carrier.marks)[..], &packet.mad].concat();
            client.send(&datagram).expect("the storm is sent");
        }
        client.send(b"no packet").expect("the storm is sent");
        client.send(&[0xEE; DATAGRAM_LEN]).expect("the storm is sent");
        // Answers are neither read nor acknowledged, so transfers last until they are given up.
        if round % 10 == 9 {
            let now = Scrape::of(&responder.http);
            for (series, value) in last.rising() {
                let later = now.0.get(series).copied();
                assert!(later.is_some_and(|later| later >= value), "{series}: {value}, {later:?}");
            }
            last = now;
        }
    }
    // The sums are exact once all transfers have ended; some last for seconds.
    let deadline = Instant::now() + PATIENCE;
    let mut before = books(&last);
    let settled = loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = Scrape::of(&responder.http);
        let all = books(&now);
        if all == before && all.0 == all.1 {
            break now;
        }
        assert!(Instant::now() < deadline, "{all:?}");
        before = all;
    };
    assert!(books(&settled).0 > 1000, "the storm came through: {:?}", books(&settled));
    for series in [
        r#"ibsa_requests_dropped_total{reason="not_subnet_administration"}"#,
        r#"ibsa_requests_dropped_total{reason="unknown_requester"}"#,
        r#"ibsa_malformed_datagrams_total{worker="udp-0",wrong="length"}"#,
        r#"ibsa_rmpp_sessions_begun_total{direction="out"}"#,
        r#"ibsa_writes_forwarded_total"#,
    ] {
        assert!(settled.0[series] > 0.0, "{series}: {settled:?}");
    }
    let by_worker = settled.sum("ibsa_worker_requests_total");
    assert_eq!(by_worker, settled.sum("ibsa_requests_total"));

    // The manager reports responders once a second.
    while Scrape::of(&http).sum("ibsm_responders") == 0 {
        assert!(Instant::now() < deadline, "the manager knows its responder");
        std::thread::sleep(Duration::from_millis(50));
    }
    explained(&http, &responder.http);
}

/// Documented metrics of managers that are followed, share a store, run at a umad port, lead
/// clients to responders' ports, serve the API, pass events to a program or control congestion.
const ELSEWHERE: [&str; 30] = [
    "ibsm_api_answers_refused_total",
    "ibsm_api_answers_unread_total",
    "ibsm_api_callers_refused_total",
    "ibsm_api_connections_displaced_total",
    "ibsm_api_connections_failed_total",
    "ibsm_api_connections_refused_total",
    "ibsm_api_connections_unaccepted_total",
    "ibsm_api_requests_late_total",
    "ibsm_event_plugin_missed_total",
    "ibsm_event_plugin_passed_total",
    "ibsm_event_plugin_starts_total",
    "ibsm_follower_files_different",
    "ibsm_follower_in_step",
    "ibsm_follower_lag_changes",
    "ibsm_followers_awaited",
    "ibsm_followers_lost_total",
    "ibsm_responder_sa_guid",
    "ibsm_sa_port_reader",
    "ibsm_sa_port_reader_changes_total",
    "ibsm_store_checkpoints_total",
    "ibsm_store_commit_age_seconds",
    "ibsm_congestion_agents",
    "ibsm_congestion_events_total",
    "ibsm_congestion_last_cycle_seconds",
    "ibsm_congestion_logs_unfit_total",
    "ibsm_congestion_requests_total",
    "ibsm_store_fence_held",
    "ibsm_store_fence_losses_total",
    "ibsm_store_reachable",
    "ibsm_store_request_failures_total",
];

/// Every metric is in the documentation, the documentation has no other, and Prometheus's own
/// linter reports nothing.
fn explained(ibsm: &str, ibsa: &str) {
    let texts =
        [ibsm, ibsa].map(|http| crate::support::scrape::get(http, "/metrics", "text/plain"));
    let served: BTreeSet<_> =
        texts.iter().flat_map(|text| crate::support::scrape::names(text)).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(path).expect("docs/metrics.md is readable");
    let documented: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next())
        .filter(|name| ["ibsa_", "ibsm_", "process_"].iter().any(|ours| name.starts_with(ours)))
        // Of another program: see `node_agent`.
        .filter(|name| !name.starts_with("ibsa_agent_"))
        .map(str::to_owned)
        .collect();
    let undocumented: Vec<_> = served.difference(&documented).collect();
    assert!(undocumented.is_empty(), "not in docs/metrics.md: {undocumented:?}");
    let unserved: Vec<_> =
        documented.difference(&served).filter(|name| !ELSEWHERE.contains(&name.as_str())).collect();
    assert!(unserved.is_empty(), "only in docs/metrics.md: {unserved:?}");

    if can_interoperate_with("promtool") {
        for text in texts {
            let mut promtool = Command::new("promtool")
                .args(["check", "metrics"])
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("promtool runs");
            promtool.stdin.take().expect("it is piped").write_all(text.as_bytes()).unwrap();
            let output = promtool.wait_with_output().expect("promtool ends");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

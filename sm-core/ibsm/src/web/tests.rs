use super::*;

use std::io::{Read, Write};
use std::net::Ipv4Addr;

use ib_mad::types::{Guid, PortNum};
use sa_proto::descriptors::Descriptors;
use sa_proto::snapshot::{FabricPlane, HistoryLimits, Node, Port};
use serde_json::Value;

use crate::publish::{EpochFile, PublishConfig, Publisher};
use sm_core::sweep::Phase;

/// A publisher of a fabric with a switch and two hosts, and the server of its page.
struct Bed {
    publisher: Publisher,
    address: SocketAddr,
    _state: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let config = PublishConfig {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            tls: None,
            local: Default::default(),
            epochs: EpochFile::new(state.path().to_owned()),
            history: HistoryLimits::default(),
        };
        let publisher = Publisher::start(config).unwrap();
        publisher.begin_session(Guid(0x11)).unwrap();
        publisher.publish(plane(true)).unwrap();
        let web = Web {
            observatory: publisher.observatory(),
            metrics: Box::new(|accept| ("text/plain", format!("accept {accept}\n"))),
            open: false,
            local: Default::default(),
            totals: Arc::default(),
        };
        let address = serve((Ipv4Addr::LOCALHOST, 0).into(), web).unwrap();
        Self { publisher, address, _state: state }
    }

    /// Sends a request with additional headers, one per line. Returns status, headers and body.
    fn ask(&self, path: &str, headers: &str) -> (u16, String, Vec<u8>) {
        ask(self.address, path, headers)
    }

    fn json(&self, path: &str) -> Value {
        let (status, headers, body) = self.ask(path, "");
        assert_eq!(status, 200, "{headers}");
        assert!(headers.contains("content-type: application/json"), "{headers}");
        serde_json::from_slice(&body).unwrap()
    }
}

fn ask(address: SocketAddr, path: &str, headers: &str) -> (u16, String, Vec<u8>) {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let host =
        if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    write!(stream, "GET {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
    let status = head[9..12].parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}

/// Two hosts on a switch; the link of the second is at full speed, or not.
fn plane(fast: bool) -> FabricPlane {
    let info = |lid: u16, width: u8, m_key: u64| {
        let mut info = [0; 64];
        let mut view = ib_mad::wire::attribute::PortInfo::new(&mut info[..]).unwrap();
        use ib_mad::wire::attribute::{LinkSpeeds, LinkWidths, PortState};
        view.set_m_key(m_key);
        view.set_base_lid(ib_mad::types::Lid(lid));
        view.set_port_state(PortState::Active);
        view.set_link_width_supported(LinkWidths(3));
        view.set_link_width_enabled(LinkWidths(3));
        view.set_link_width_active(LinkWidths(width));
        view.set_link_speed_supported(LinkSpeeds(7));
        view.set_link_speed_enabled(LinkSpeeds(7));
        view.set_link_speed_active(LinkSpeeds::QDR);
        info
    };
    let port = |num: u8, guid: u64, lid: u16, width: u8, peer: Option<(u64, u8)>| Port {
        num: PortNum(num),
        guid: Guid(guid),
        info: info(lid, width, 0),
        pkeys: Vec::new().into(),
        peer: peer.map(|(guid, num)| (Guid(guid), PortNum(num))),
    };
    let node = |guid: u64, name: &str, is_switch: bool, ports: Vec<Port>| {
        let mut description = [0; 64];
        description[..name.len()].copy_from_slice(name.as_bytes());
        let switch_info = is_switch.then_some([0; 20]);
        let node = Node { guid: Guid(guid), info: [0; 40], description, switch_info, ports };
        Arc::new(node)
    };
    let second = if fast { 2 } else { 1 };
    let switch = vec![
        port(0, 0x20, 9, 0, None),
        port(1, 0x20, 0, 2, Some((0x10, 1))),
        port(2, 0x20, 0, second, Some((0x30, 1))),
    ];
    let mut plane = FabricPlane {
        nodes: vec![
            node(0x10, "host <b>", false, vec![port(1, 0x11, 1, 2, Some((0x20, 1)))]),
            node(0x20, "leaf", true, switch),
            node(0x30, "host2", false, vec![port(1, 0x31, 2, second, Some((0x20, 2)))]),
        ],
        ..FabricPlane::default()
    };
    plane.subnet.sm_port_guid = Guid(0x11);
    plane.subnet.sa_key = 0x5EC2_E75E_C2E7;
    plane
}

#[test]
fn the_page_and_all_its_parts_are_served_and_loaded_from_nowhere_else() {
    let bed = Bed::new();
    let (status, headers, body) = bed.ask("/", "");
    assert_eq!(status, 200);
    assert!(headers.contains("content-security-policy: default-src 'none'; script-src 'self'"));
    let page = String::from_utf8(body).unwrap();
    let mut parts = 0;
    for attribute in ["src=\"", "href=\""] {
        for part in page.split(attribute).skip(1) {
            let path = part.split('"').next().unwrap();
            if path.starts_with('#') {
                continue;
            }
            assert!(path.starts_with('/'), "{path}");
            assert_eq!(bed.ask(path, "").0, 200, "{path}");
            parts += 1;
        }
    }
    assert!(parts >= 3, "style, script and icon");
    assert!(!page.contains("<style") && !page.contains("style=\""), "nothing inline");
}

/// The time to read files had no name in the legend, and the colour of an unknown phase.
#[test]
fn the_page_knows_all_phases_of_sweeps() {
    let (_, _, script) = Bed::new().ask("/sweeps.js", "");
    let script = String::from_utf8(script).unwrap();
    let items = |name: &str| -> Vec<String> {
        let (_, rest) = script.split_once(&format!("const {name} = [")).unwrap();
        let list = rest.split(']').next().unwrap();
        let items = list.split(',').map(|item| item.trim().trim_matches('"').to_owned());
        items.filter(|item| !item.is_empty()).collect()
    };
    let phases = [
        Phase::Light,
        Phase::Files,
        Phase::Discover,
        Phase::Elect,
        Phase::Addresses,
        Phase::Inherit,
        Phase::Route,
        Phase::Tables,
        Phase::Arm,
        Phase::PortTables,
        Phase::Activate,
    ];
    assert_eq!(items("PHASES"), phases.map(Phase::name));
    let mut tints = items("TINTS");
    assert_eq!(tints.len(), phases.len());
    tints.sort_unstable();
    tints.dedup();
    assert_eq!(tints.len(), phases.len(), "each has its own colour");
}

#[test]
fn unchanged_documents_are_not_sent_again_and_gzip_decompresses() {
    let bed = Bed::new();
    for path in ["/app.js", "/api/v1/fabric"] {
        let (_, headers, plain) = bed.ask(path, "");
        let tag = headers.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let known = bed.ask(path, &format!("If-None-Match: {tag}\r\n"));
        assert_eq!((known.0, known.2.len()), (304, 0));
        let (_, headers, packed) = bed.ask(path, "Accept-Encoding: gzip, br\r\n");
        assert!(headers.contains("content-encoding: gzip"), "{headers}");
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, plain);
    }
}

#[test]
fn the_map_has_all_nodes_and_changes_with_the_fabric() {
    let bed = Bed::new();
    let map = bed.json("/api/v1/fabric");
    assert_eq!(map["switches"]["name"][0], "leaf");
    assert_eq!(map["hosts"]["name"], serde_json::json!(["host <b>", "host2"]));
    assert_eq!(map["hosts"]["leaf"], serde_json::json!([0, 0]));
    assert_eq!(map["hosts"]["link"], serde_json::json!([0, 0]));
    assert_eq!((&map["sm"], &map["switches"]["lid"][0]), (&Value::from(1), &Value::from(9)));
    bed.publisher.publish(plane(false)).unwrap();
    let other = bed.json("/api/v1/fabric");
    assert_ne!(other["etag"], map["etag"]);
    assert_eq!(other["hosts"]["link"], serde_json::json!([0, 1]), "degraded");
}

#[test]
fn what_is_missing_keeps_its_place_on_the_map() {
    let bed = Bed::new();
    let await_map = |missing: &[u32]| {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let map = bed.json("/api/v1/fabric");
            if map["missing"] == serde_json::json!(missing) {
                // What the page compares with, a moment later at most.
                let etag = bed.json("/api/v1/status")["fabric"]["etag"].clone();
                if etag == map["etag"] {
                    return map;
                }
            }
            assert!(std::time::Instant::now() < end, "{map}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let whole = await_map(&[]);
    // The observer has to have seen the host before it can be missed.
    let mut fewer = plane(true);
    fewer.nodes.retain(|node| node.guid != Guid(0x30));
    let mut leaf = (*fewer.nodes[1]).clone();
    leaf.ports[2].peer = None;
    fewer.nodes[1] = Arc::new(leaf);
    bed.publisher.publish(fewer).unwrap();
    let map = await_map(&[2]);
    for list in ["name", "guid", "leaf"] {
        assert_eq!(map["hosts"][list], whole["hosts"][list], "{list}");
    }
    assert_eq!(map["switches"], {
        let mut switches = whole["switches"].clone();
        switches["links"] = serde_json::json!([1]);
        switches
    });
    assert_eq!(map["hosts"]["link"], serde_json::json!([0, 4]));
    let host = bed.json("/api/v1/nodes/0x0000000000000030");
    assert_eq!((&host["missing"], &host["name"]), (&true.into(), &"host2".into()));
    assert_eq!(host["ports"][0]["missing"]["name"], "leaf");
    let leaf = bed.json("/api/v1/nodes/0x0000000000000020");
    let far = serde_json::json!({ "guid": "0x0000000000000030", "name": "host2", "port": 1 });
    assert_eq!((&leaf["missing"], &leaf["ports"][2]["missing"]), (&false.into(), &far));
    bed.publisher.publish(plane(true)).unwrap();
    let back = await_map(&[]);
    assert_eq!(back["etag"], whole["etag"]);
}

#[test]
fn a_node_is_shown_with_its_ports_and_their_shortfall() {
    let bed = Bed::new();
    bed.publisher.publish(plane(false)).unwrap();
    let report = sm_core::sweep::Report {
        errors: 1,
        faults: vec!["switch 'leaf' 0x0000000000000020 port 2: PortInfo".into()],
        ..Default::default()
    };
    let fault = crate::observe::moment::FaultPort { guid: Guid(0x20).to_string(), port: 2 };
    bed.publisher.sweeps().note(&report, 1, [fault], &Default::default());
    let node = bed.json("/api/v1/nodes/0x20");
    assert_eq!(
        (&node["name"], &node["kind"], &node["lid"]),
        (&"leaf".into(), &"switch".into(), &9.into())
    );
    let ports = node["ports"].as_array().unwrap();
    assert_eq!(ports[1]["link"], "4x QDR");
    assert_eq!((&ports[1]["shortfall"], &ports[1]["fault"]), (&Value::Null, &false.into()));
    assert_eq!((&ports[2]["link"], &ports[2]["shortfall"]), (&"1x QDR".into(), &"4x QDR".into()));
    assert_eq!((&ports[2]["gbps"], &ports[2]["fault"]), (&10.0.into(), &true.into()));
    assert_eq!(ports[2]["peer"]["name"], "host2");
    let can = |of: &Value| (of["supported"].clone(), of["enabled"].clone());
    assert_eq!(can(&ports[2]), ("4x QDR".into(), "4x QDR".into()));
    assert_eq!(can(&ports[2]["peer"]), can(&ports[2]));
    assert_eq!(ports[0]["groups"], serde_json::json!([]));
    assert_eq!(ports[2]["groups"], Value::Null, "an external port joins nothing");
    assert_eq!(node["faults"].as_array().unwrap().len(), 1);
    assert_eq!(bed.json("/api/v1/sweeps")[0]["errors"], 1);
    assert_eq!(bed.ask("/api/v1/nodes/0x99", "").0, 404);
    assert_eq!(bed.ask("/api/v1/nodes/leaf", "").0, 400);
}

#[test]
fn a_port_is_as_it_is_since_its_link_changed() {
    let bed = Bed::new();
    let since = |port: usize| {
        let ports = &bed.json("/api/v1/nodes/0x20")["ports"];
        (ports[port]["since_ms"].as_u64(), ports[port]["since_is_exact"] == true)
    };
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while since(2).0.is_none() {
        assert!(std::time::Instant::now() < deadline, "the port is not watched");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = since(2);
    assert!(!before.1, "it may have been so before");
    bed.publisher.publish(plane(false)).unwrap();
    while since(2) == before {
        assert!(std::time::Instant::now() < deadline, "the link is slower now");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(since(2).1 && since(2).0 >= before.0);
    assert_eq!(since(1), before);
}

#[test]
fn documents_are_json_and_hold_no_secrets() {
    let bed = Bed::new();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while bed.json("/api/v1/status")["fabric"]["hosts"] != 2 {
        assert!(std::time::Instant::now() < deadline, "the observer looks once a second");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(bed.json("/api/v1/series")["step_s"], 1);
    assert_eq!(bed.json("/api/v1/series?range=24h")["step_s"], 60);
    assert_eq!(bed.ask("/api/v1/series?range=1y", "").0, 400);
    let secret = format!("{:x}", plane(true).subnet.sa_key);
    for path in ["status", "series", "responders", "talkers", "sweeps", "fabric", "nodes/0x10"] {
        let (_, _, body) = bed.ask(&format!("/api/v1/{path}"), "");
        let text = String::from_utf8(body).unwrap().to_lowercase();
        assert!(!text.contains(&secret) && !text.contains("m_key"), "{path}: {text}");
    }
}

#[test]
fn a_stream_begins_at_once_and_goes_on() {
    let bed = Bed::new();
    let mut stream = std::net::TcpStream::connect(bed.address).unwrap();
    write!(stream, "GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut text = String::new();
    while text.matches("event: moment").count() < 3 {
        let mut chunk = [0; 4096];
        let got = stream.read(&mut chunk).unwrap();
        assert_ne!(got, 0, "{text}");
        text.push_str(std::str::from_utf8(&chunk[..got]).unwrap());
    }
    assert!(text.to_lowercase().contains("content-type: text/event-stream"), "{text}");
    assert_eq!(bed.json("/api/v1/status")["watchers"]["now"], 1);
}

#[test]
fn other_names_and_other_machines_see_metrics_only() {
    let bed = Bed::new();
    assert_eq!(bed.ask("/", "Host: evil.example\r\n").0, 421);
    assert_eq!(bed.ask("/api/v1/status", "Host: evil.example\r\n").0, 421);
    assert_eq!(bed.ask("/metrics", "Host: evil.example\r\n").0, 200);
    // Regression: it was served to another party's page.
    assert_eq!(bed.ask("/metrics/ports", "Host: evil.example\r\n").0, 421);
    let (_, _, body) = bed.ask("/metrics", "Accept: text/plain\r\n");
    assert_eq!(body, b"accept text/plain\n");
    let address = |open| {
        let metrics: RenderMetrics = Box::new(|_| ("text/plain", String::new()));
        let web = Web {
            observatory: bed.publisher.observatory(),
            metrics,
            open,
            local: Default::default(),
            totals: Arc::default(),
        };
        let any = serve((Ipv4Addr::UNSPECIFIED, 0).into(), web).unwrap();
        SocketAddr::from((Ipv4Addr::LOCALHOST, any.port()))
    };
    let closed = address(false);
    let (status, _, body) = ask(closed, "/api/v1/fabric", "");
    assert_eq!(status, 403);
    assert!(String::from_utf8(body).unwrap().contains("--insecure"));
    assert_eq!(ask(closed, "/metrics", "").0, 200);
    assert_eq!(ask(address(true), "/", "Host: sm1.example\r\n").0, 200);
}

#[test]
fn unknown_paths_are_404_and_nothing_can_be_changed() {
    let bed = Bed::new();
    let (status, headers, _) = bed.ask("/../etc/passwd", "");
    assert_eq!(status, 404);
    assert!(headers.contains("x-content-type-options: nosniff"));
    let mut stream = std::net::TcpStream::connect(bed.address).unwrap();
    write!(
        stream,
        "POST /api/v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: \
        0\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 405"), "{text}");
}

/// Regression: a scrape waited until slow connections had timed out.
#[test]
fn slow_connections_delay_no_other() {
    let bed = Bed::new();
    let slow: Vec<_> = (0..Descriptors::of_process().for_http() + 8)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(bed.address).unwrap();
            // Those cut already fail.
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:");
            stream
        })
        .collect();
    assert_eq!(bed.ask("/metrics", "").0, 200);
    // The first made room. The last is as it was: the answer did not wait until they timed out.
    let (mut first, mut last) = (&slow[0], slow.last().unwrap());
    assert!(!matches!(first.read(&mut [0]), Ok(1..)));
    last.set_nonblocking(true).unwrap();
    let open = last.read(&mut [0]).unwrap_err();
    assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn problems_are_a_document_and_their_numbers_are_in_each_moment() {
    let bed = Bed::new();
    bed.publisher.publish(plane(false)).unwrap();
    let mut moments = bed.publisher.observatory().moments();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while bed.publisher.problems().total() == 0 {
        assert!(std::time::Instant::now() < deadline, "no problem is found");
        std::thread::sleep(Duration::from_millis(20));
    }
    let problems = bed.json("/api/v1/problems");
    let problem = &problems["problems"][0];
    assert_eq!(problem["id"], "link_degraded/0x0000000000000020/2");
    assert_eq!((&problem["name"], &problem["port"]), (&"leaf".into(), &2.into()));
    assert_eq!(problem["severity"], "warning");
    let moment = moments.borrow_and_update().problems.clone();
    assert_eq!((moment.warning, moment.critical), (1, 0));
}

/// Regression: the fabrics of the first second were not compared with each other, so what went
/// within it was never reported as missing.
#[test]
fn what_goes_within_a_second_is_missed() {
    let bed = Bed::new();
    let mut larger = plane(true);
    let mut host = (*larger.nodes[2]).clone();
    (host.guid, host.ports[0].guid, host.ports[0].peer) = (Guid(0x40), Guid(0x41), None);
    larger.nodes.push(Arc::new(host));
    let mut moments = bed.publisher.observatory().moments();
    let mut next = || {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !moments.has_changed().unwrap() {
            assert!(std::time::Instant::now() < deadline, "no moment");
            std::thread::sleep(Duration::from_millis(5));
        }
        moments.borrow_and_update().problems.notice
    };
    // Several attempts, for machines that are slow to notice the first.
    let is_missed = (0..5).any(|_| {
        next();
        bed.publisher.publish(larger.clone()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        bed.publisher.publish(plane(true)).unwrap();
        next() > 0
    });
    assert!(is_missed);
}

#[test]
fn probes_are_answered_from_everywhere() {
    let bed = Bed::new();
    bed.publisher.set_status(Default::default());
    assert_eq!(bed.ask("/healthz", "").0, 200);
    let (status, _, body) = bed.ask("/readyz", "Host: sm1:9471\r\n");
    assert_eq!((status, &body[..]), (503, &b"starting\n"[..]));
    let sm =
        crate::observe::SmStatus { state: "master".into(), subnet_up: true, ..Default::default() };
    bed.publisher.set_status(sm);
    let (status, _, body) = bed.ask("/readyz", "");
    assert_eq!((status, &body[..]), (200, &b"master; the subnet is up\n"[..]));
}

#[test]
fn the_topology_is_served_in_forms_of_other_programs() {
    let bed = Bed::new();
    let text = |path: &str| {
        let (status, _, body) = bed.ask(path, "");
        (status, String::from_utf8(body).unwrap())
    };
    let (status, slurm) = text("/api/v1/topology?form=slurm");
    assert_eq!((status, &slurm[..]), (200, "SwitchName=leaf Nodes=host,host2\n"));
    let (_, net) = text("/api/v1/topology");
    assert!(net.contains("\"leaf\""), "{net}");
    assert_eq!(text("/api/v1/topology?form=dot").0, 400);
    assert_eq!(text("/api/v1/topology?form=slurm&rail=HCA-9"), (200, String::new()));
}

#[test]
fn events_are_a_stream_that_goes_on_where_a_client_left_off() {
    use crate::observe::event::{Draft, EventKind};
    let bed = Bed::new();
    let events = bed.publisher.events();
    let note = |text: &str| events.note(1, Draft::new(EventKind::NodeCame, text));
    ["one", "two"].into_iter().for_each(note);
    let mut stream = std::net::TcpStream::connect(bed.address).unwrap();
    let path = "/api/v1/events?kind=node_came";
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut text = String::new();
    let mut read_until = |what: &str| {
        while !text.contains(what) {
            let mut chunk = [0; 4096];
            let got = stream.read(&mut chunk).unwrap();
            assert_ne!(got, 0, "{text}");
            text.push_str(std::str::from_utf8(&chunk[..got]).unwrap());
        }
        text.clone()
    };
    read_until("\"text\":\"two\"");
    note("three");
    let text = read_until("\"text\":\"three\"");
    assert!(text.to_lowercase().contains("content-type: text/event-stream"), "{text}");
    assert!(
        text.contains("event: event\ndata: {\"number\":") && !text.contains("\"one\""),
        "{text}"
    );
    assert_eq!(bed.ask("/api/v1/events?kind=nodecame", "").0, 400);
    assert_eq!(bed.ask("/api/v1/events?last=x", "").0, 400);
}

#[test]
fn requests_that_name_too_many_nodes_are_refused() {
    let bed = Bed::new();
    crate::perf::testing::install_idle(&bed.publisher.perf());
    let names = |count: usize| (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>().join(",");
    for path in ["/metrics/ports", "/api/v1/links"] {
        let ask = |count| bed.ask(&format!("{path}?nodes={}", names(count)), "");
        assert_eq!(ask(64).0, 200, "{path}");
        let (status, _, body) = ask(65);
        assert_eq!(status, 400, "{path}");
        assert!(String::from_utf8(body).unwrap().contains("more than 64 names"), "{path}");
    }
}

//! Calls as clients of UFM make them, over HTTP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ib_mad::types::{Guid, PKey, PortNum, Sl};
use ib_mad::wire::attribute::{NodeInfo, NodeType};
use sa_proto::descriptors::Descriptors;
use sa_proto::snapshot::{FabricPlane, Node, Partition, Port, VirtualPort, VirtualPorts};
use sm_config::{PartitionConfig, partitions as config};

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;
use crate::http::SHARES;
use crate::partitions::Site;
use crate::publish::Publisher;
use crate::runtime::registry::{RegistryHandle, master_in};

/// A master's registry and publisher, with the API.
struct Bed {
    address: SocketAddr,
    registry: RegistryHandle,
    publisher: Arc<Publisher>,
    status: Arc<ApiStatus>,
    directory: tempfile::TempDir,
}

/// An adapter of a host on no switch, and a switch.
fn plane() -> FabricPlane {
    let port = |num: u8, guid: u64| Port {
        num: PortNum(num),
        guid: Guid(guid),
        info: [0; 64],
        pkeys: Arc::from([PKey::DEFAULT_FULL]),
        peer: (num != 0).then_some((Guid(if guid == 0x11 { 0x20 } else { 0x10 }), PortNum(1))),
    };
    let node = |guid: u64, name: &str, kind: NodeType, ports: Vec<Port>| {
        let is_switch = kind == NodeType::Switch;
        let mut node = Node {
            guid: Guid(guid),
            info: [0; 40],
            description: [0; 64],
            switch_info: is_switch.then_some([0; 20]),
            ports,
        };
        NodeInfo::of_mut(&mut node.info).set_node_type(kind);
        node.description[..name.len()].copy_from_slice(name.as_bytes());
        Arc::new(node)
    };
    let name = "Default".to_owned();
    let sl = Sl::default();
    FabricPlane {
        nodes: vec![
            node(0x10, "host1 HCA-1", NodeType::Ca, vec![port(1, 0x11)]),
            node(0x20, "leaf1", NodeType::Switch, vec![port(0, 0x20), port(1, 0x20)]),
        ],
        partitions: vec![Arc::new(Partition { pkey: PKey(0x7fff), name, sl })],
        ..FabricPlane::default()
    }
}

/// The header of a user.
fn basic(user: &str, password: &str) -> String {
    let proof = BASE64_STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {proof}\r\nContent-Type: application/json; charset=utf-8\r\n")
}

/// Sends a request; returns status, head and body of the answer.
fn answered(
    mut stream: impl Read + Write,
    call: &str,
    headers: &str,
    body: &str,
) -> (u16, String, String) {
    let len = body.len();
    write!(
        stream,
        "{call} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len}\r\nConnection: \
         close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = Vec::new();
    // A server may end TLS without saying so.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head[9..12].parse().unwrap(), head.to_lowercase(), body.to_owned())
}

impl Bed {
    fn new() -> Self {
        Self::with_tls(|_| None)
    }

    /// With the certificate that `tls` puts into a directory.
    fn with_tls(tls: impl FnOnce(&Path) -> Option<TlsFiles>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (registry, publisher) = master_in(directory.path());
        publisher.publish(plane()).unwrap();
        let users = directory.path().join("users");
        let line = |name, role| users::line(name, role, "secret").unwrap();
        let text = format!("{}\n{}\n", line("op", Role::Admin), line("eye", Role::Viewer));
        std::fs::write(&users, text).unwrap();
        let status = Arc::<ApiStatus>::default();
        let api = Api {
            desk: registry.desk(),
            users: Users::open(&users).unwrap(),
            tls: tls(directory.path()),
            status: status.clone(),
        };
        registry.set_site(Site { m_key: 0x11, ..Site::default() });
        let address = serve((Ipv4Addr::LOCALHOST, 0).into(), api).unwrap();
        Self { address, registry, publisher, status, directory }
    }

    /// Sends a request with these headers; returns status, head and body.
    fn send(&self, call: &str, headers: &str, body: &str) -> (u16, String, String) {
        let stream = TcpStream::connect(self.address).unwrap();
        answered(stream, call, headers, body)
    }

    /// As a user, with the password `secret`.
    fn ask_as(&self, user: &str, call: &str, body: &str) -> (u16, Value) {
        let (method, path) = call.split_once(' ').unwrap();
        let call = format!("{method} /ufmRest/{path}");
        let (status, _, body) = self.send(&call, &basic(user, "secret"), body);
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn ask(&self, call: &str, body: &str) -> (u16, Value) {
        self.ask_as("op", call, body)
    }

    /// The partition as `GET resources/pkeys/<pkey>` shows it.
    fn pkey(&self, pkey: &str) -> Value {
        let (status, shown) = self.ask(&format!("GET resources/pkeys/{pkey}?guids_data=true"), "");
        assert_eq!(status, 200, "{shown}");
        shown
    }
}

/// The calls of ib-kubernetes, in their order, with its bodies.
#[test]
fn a_pods_guids_are_added_listed_and_removed() {
    let bed = Bed::new();
    assert_eq!(bed.ask("GET app/ufm_version", "").0, 200);
    let add = r#"{"pkey": "0x0005", "index0": true, "ip_over_ib": true, "membership": "full",
        "guids": ["0200000000000001", "0200000000000002"]}"#;
    for _ in 0..2 {
        assert_eq!(bed.ask("POST resources/pkeys", add), (200, json!({})));
    }
    let (status, all) = bed.ask("GET resources/pkeys/?guids_data=true", "");
    let member = |guid: &str| json!({ "guid": guid, "index0": true, "membership": "full" });
    let members = [member("0200000000000001"), member("0200000000000002")];
    assert_eq!((status, &all["0x5"]["guids"]), (200, &json!(members)));
    assert_eq!(all["0x5"]["partition"], "api_pkey_0x5");
    assert_eq!(all["0x7fff"]["partition"], "management");
    let remove = r#"{"pkey": "0x0005", "guids": ["0200000000000002", "02000000000000FF"]}"#;
    for _ in 0..2 {
        assert_eq!(bed.ask("POST actions/remove_guids_from_pkey", remove).0, 200);
    }
    assert_eq!(bed.pkey("0x5")["guids"], json!([member("0200000000000001")]));
    // It is in the registry, like a registration.
    assert_eq!(bed.registry.plane().partition_members.len(), 1);
}

/// The calls of networking-mlnx-baremetal and nv-config-manager.
#[test]
fn members_are_replaced_with_a_membership_each_and_a_partition_goes_with_its_last() {
    let bed = Bed::new();
    let put = r#"{"pkey": "0x5", "guids": ["0000000000000011", "0000000000000012"],
        "memberships": ["full", "limited"]}"#;
    assert_eq!(bed.ask("PUT resources/pkeys", put).0, 200);
    let memberships = |shown: &Value| -> Vec<Value> {
        shown["guids"].as_array().unwrap().iter().map(|guid| guid["membership"].clone()).collect()
    };
    assert_eq!(memberships(&bed.pkey("0x5")), ["full", "limited"]);
    // As Python's clients ask.
    let (_, shown) = bed.ask("GET resources/pkeys/0x5?guids_data=True", "");
    assert_eq!(memberships(&shown).len(), 2);
    assert!(bed.ask("GET resources/pkeys/0x5?guids_data=False", "").1.get("guids").is_none());
    let uneven =
        r#"{"pkey": "0x5", "guids": ["0000000000000011"], "memberships": ["full", "limited"]}"#;
    assert_eq!(bed.ask("PUT resources/pkeys", uneven).0, 400);
    let one = r#"{"pkey": "0x5", "guids": ["0000000000000013"], "membership": "both"}"#;
    assert_eq!(bed.ask("PUT resources/pkeys", one).0, 200);
    assert_eq!(memberships(&bed.pkey("0x5")), ["both"]);
    let guids = "0000000000000013,0000000000000014";
    assert_eq!(bed.ask(&format!("DELETE resources/pkeys/0x5/guids/{guids}"), "").0, 200);
    assert_eq!(bed.ask("GET resources/pkeys/0x5", "").0, 404);
    assert_eq!(bed.ask("DELETE resources/pkeys/0x5", "").0, 200);
}

#[test]
fn attributes_are_set_and_shown_in_ufms_units() {
    let bed = Bed::new();
    let create = r#"{"pkey": "0x6", "index0": false, "ip_over_ib": true, "mtu_limit": 4,
        "service_level": 3, "rate_limit": 2.5, "partition_name": "blue"}"#;
    assert_eq!(bed.ask("POST resources/pkeys/add", create).0, 200);
    assert_eq!(bed.ask("POST resources/pkeys/add", create).0, 409);
    let qos = || bed.ask("GET resources/pkeys/0x6?qos_conf=true", "").1["qos_conf"].clone();
    assert_eq!(qos(), json!({ "mtu_limit": 4, "service_level": 3, "rate_limit": 2.5 }));
    let change = r#"{"pkey": "0x6", "mtu_limit": 2, "service_level": 0, "rate_limit": 100}"#;
    assert_eq!(bed.ask("PUT resources/pkeys/qos_conf", change).0, 200);
    assert_eq!(qos(), json!({ "mtu_limit": 2, "service_level": 0, "rate_limit": 100 }));
    assert_eq!(bed.pkey("0x6")["partition"], "blue");
    let absent = change.replace("0x6", "0x9");
    assert_eq!(bed.ask("PUT resources/pkeys/qos_conf", &absent).0, 404);
    for bad in [r#""mtu_limit": 3"#, r#""rate_limit": 7"#, r#""service_level": 16"#] {
        let body = format!(r#"{{"pkey": "0x6", {bad}}}"#);
        assert_eq!(bed.ask("PUT resources/pkeys/qos_conf", &body).0, 400, "{bad}");
    }
    for bad in ["{}", "[]", r#"{"pkey": "0x8000"}"#, r#"{"pkey": "0x5", "guids": ["xyz"]}"#] {
        assert_eq!(bed.ask("POST resources/pkeys", bad).0, 400, "{bad}");
    }
}

#[test]
fn hosts_are_members_by_name() {
    let bed = Bed::new();
    let add = r#"{"hosts_names": "host1", "pkey": "0x7", "membership": "limited"}"#;
    assert_eq!(bed.ask("POST resources/pkeys/hosts", add).0, 200);
    let member = json!({ "guid": "0000000000000011", "index0": false, "membership": "limited" });
    assert_eq!(bed.pkey("0x7")["guids"], json!([member]));
    let none = r#"{"hosts_names": "host1,leaf1", "pkey": "0x7"}"#;
    assert_eq!(bed.ask("POST resources/pkeys/hosts", none).0, 404, "a switch is no host");
    assert_eq!(bed.ask("DELETE resources/pkeys/0x7/hosts/host1", "").0, 200);
    assert_eq!(bed.ask("GET resources/pkeys/0x7", "").0, 404);
    assert_eq!(bed.ask("DELETE resources/pkeys/0x7/hosts/host1", "").0, 200, "again");

    // Regression: an adapter that took the description of another one joined with it.
    let mut plane = plane();
    let mut other = Node::clone(&plane.nodes[0]);
    other.guid = Guid(0x30);
    (other.ports[0].guid, other.ports[0].peer) = (Guid(0x31), None);
    plane.nodes.push(Arc::new(other));
    bed.publisher.publish(plane).unwrap();
    let (status, reason) = bed.ask("POST resources/pkeys/hosts", add);
    assert_eq!(status, 400, "{reason}");
    assert!(reason.to_string().contains("'host1 HCA-1'"), "{reason}");
}

/// Regression: while one host of a job was away, DELETE by name was 404 and all hosts stayed: the
/// epilog of a job whose node had crashed could not clean up.
#[test]
fn hosts_that_are_away_are_removed_by_name_with_the_others() {
    let bed = Bed::new();
    let mut both = plane();
    let mut other = Node::clone(&both.nodes[0]);
    other.guid = Guid(0x30);
    other.description[..12].copy_from_slice(b"host2 HCA-1\0");
    (other.ports[0].guid, other.ports[0].peer) = (Guid(0x31), None);
    both.nodes.push(Arc::new(other));
    bed.publisher.publish(both).unwrap();
    let add = r#"{"hosts_names": "host1,host2", "pkey": "0x9"}"#;
    assert_eq!(bed.ask("POST resources/pkeys/hosts", add).0, 200);
    let by_guid = r#"{"pkey": "0x9", "guids": ["0200000000000001"]}"#;
    assert_eq!(bed.ask("POST resources/pkeys", by_guid).0, 200);
    bed.publisher.publish(plane()).unwrap();
    assert_eq!(bed.ask("POST resources/pkeys/hosts", add).0, 404, "host2 is away");
    let call = "DELETE resources/pkeys/0x9/hosts/host[1-3]";
    assert_eq!(bed.ask(call, "").0, 200);
    let left = bed.pkey("0x9")["guids"].clone();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left[0]["guid"], "0200000000000001");
    assert_eq!(bed.ask(call, "").0, 200, "again");
    // A host that was added by its GUID is removed by its name while it is there.
    let by_guid = r#"{"pkey": "0x9", "guids": ["0000000000000011"]}"#;
    assert_eq!(bed.ask("POST resources/pkeys", by_guid).0, 200);
    assert_eq!(bed.ask("DELETE resources/pkeys/0x9/hosts/host1", "").0, 200);
    assert_eq!(bed.pkey("0x9")["guids"], left);
}

/// Regression: without `0x`, P_Keys were read as decimal or octal numbers: "0032" was 0x1a and "20"
/// was 0x14, another tenant's.
#[test]
fn p_keys_are_hexadecimal_and_guids_have_all_their_digits() {
    let bed = Bed::new();
    let add = |pkey: &str, guid: &str| {
        let body = format!(r#"{{"pkey": {pkey}, "guids": ["{guid}"]}}"#);
        bed.ask("POST resources/pkeys", &body).0
    };
    const GUID: &str = "0200000000000001";
    for (text, pkey) in
        [("0032", "0x32"), ("20", "0x20"), ("0X1A", "0x1a"), ("0x00Fe", "0xfe"), ("7fff", "0x7fff")]
    {
        assert_eq!(add(&format!(r#""{text}""#), GUID), 200, "{text}");
        assert_eq!(bed.pkey(pkey)["guids"][0]["guid"], GUID, "{text}");
        assert_eq!(bed.pkey(text)["guids"][0]["guid"], GUID, "{text}");
    }
    for none in ["20", r#""""#, r#""0x""#, r#""0""#, r#""0x8005""#, r#""+5""#, r#""5 6""#] {
        assert_eq!(add(none, GUID), 400, "{none}");
    }
    let number = bed.ask("POST resources/pkeys", r#"{"pkey": 20, "guids": []}"#).1;
    assert!(number.to_string().contains("is a number"), "{number}");
    for guid in ["0x0200000000000002", "02:00:00:00:00:00:00:02", "00000200000000000002"] {
        assert_eq!(add(r#""0x40""#, guid), 200, "{guid}");
        assert_eq!(bed.pkey("0x40")["guids"].as_array().unwrap().len(), 1, "{guid}");
    }
    for none in [
        "11",
        "0x11",
        "020000000000002",
        "000000200000000000002",
        "0102:00",
        "1".repeat(17).as_str(),
    ] {
        assert_eq!(add(r#""0x40""#, none), 400, "{none}");
    }
}

/// Regression: after an acknowledged DELETE, GET listed the partition until the fabric had been
/// published without it, some 20 ms later.
#[test]
fn what_was_acknowledged_is_in_every_list_afterwards() {
    let bed = Bed::new();
    let add = r#"{"pkey": "0x9", "guids": ["0000000000000011"], "ip_over_ib": true}"#;
    assert_eq!(bed.ask("POST resources/pkeys", add).0, 200);
    // As it is in force.
    let mut plane = plane();
    let (name, sl) = ("api_pkey_0x9".to_owned(), Sl::default());
    plane.partitions.insert(0, Arc::new(Partition { pkey: PKey(9), name, sl }));
    bed.publisher.publish(plane).unwrap();
    assert_eq!(bed.ask("GET resources/pkeys/0x9", "").0, 200);
    assert_eq!(bed.ask("DELETE resources/pkeys/0x9", "").0, 200);
    assert_eq!(bed.ask("GET resources/pkeys/0x9", "").0, 404);
    assert!(bed.ask("GET resources/pkeys", "").1.get("0x9").is_none());
}

/// Regression: DELETE of a partition that a file defines was a success without effect, and
/// `pkeys/add` made it a second time.
#[test]
fn partitions_of_operators_files_are_neither_made_nor_changed_nor_deleted() {
    let bed = Bed::new();
    let (name, sl) = ("blue".to_owned(), Sl::default());
    let defined = config::Partition { pkey: PKey(5), name: name.clone(), sl };
    let file = PartitionConfig::default().joined(vec![defined], vec![], vec![]);
    bed.registry.set_site(Site { partitions: Arc::new(file), ..Site::default() });
    let mut plane = plane();
    plane.partitions.insert(0, Arc::new(Partition { pkey: PKey(5), name, sl }));
    bed.publisher.publish(plane).unwrap();
    for pkey in ["0x5", "0x7fff"] {
        let body = format!(r#"{{"pkey": "{pkey}", "mtu_limit": 4}}"#);
        for call in ["POST resources/pkeys/add", "PUT resources/pkeys/qos_conf"] {
            let (status, reason) = bed.ask(call, &body);
            assert_eq!(status, 409, "{call} {pkey}: {reason}");
        }
        assert_eq!(bed.ask(&format!("DELETE resources/pkeys/{pkey}"), "").0, 409);
    }
    // Members of programs come and go.
    let add = r#"{"pkey": "0x5", "guids": ["0000000000000011"]}"#;
    assert_eq!(bed.ask("POST resources/pkeys", add).0, 200);
    assert_eq!(bed.pkey("0x5")["guids"][0]["guid"], "0000000000000011");
    let call = "DELETE resources/pkeys/0x5/guids/0000000000000011";
    assert_eq!(bed.ask(call, "").0, 200);
    assert_eq!(bed.pkey("0x5")["guids"], json!([]));
}

#[test]
fn the_inventory_has_what_clients_read() {
    let bed = Bed::new();
    let (_, ports) = bed.ask("GET resources/ports?sys_type=Computer", "");
    let [port] = &ports.as_array().unwrap()[..] else { panic!("{ports}") };
    for (member, value) in [
        ("guid", json!("0000000000000011")),
        ("number", json!(1)),
        ("system_name", json!("host1")),
        ("dname", json!("HCA-1/1")),
        ("description", json!("Computer IB Port")),
        ("peer_node_name", json!("leaf1")),
        ("lid", json!(0)),
    ] {
        assert_eq!(port[member], value, "{member}");
    }
    assert_eq!(bed.ask("GET resources/ports", "").1.as_array().unwrap().len(), 2);
    let (_, systems) = bed.ask("GET resources/systems", "");
    let types: Vec<_> = systems.as_array().unwrap().iter().map(|row| &row["type"]).collect();
    assert_eq!(types, ["host", "switch"]);
    let (_, links) = bed.ask("GET resources/links", "");
    assert_eq!(links.as_array().unwrap().len(), 1);
    let (_, page) = bed.ask("GET resources/links?page_number=2&rpp=1", "");
    assert_eq!(page, json!({ "data": [] }));
    assert_eq!(bed.ask("GET resources/vports", "").1, json!([]));
    let mut plane = plane();
    let port = VirtualPort {
        index: 3,
        state: 4,
        guid: Guid(0x0200_0000_0000_0001),
        node_guid: Guid(0xF0),
        is_usable: true,
        needs_lid: false,
        description: "vm7".to_owned(),
        pkeys: vec![PKey::DEFAULT_FULL, PKey(0x8005)],
    };
    let row = VirtualPorts { port_guid: Guid(0x11), pkeys: Vec::new(), ports: vec![port] };
    plane.virtual_ports.push(Arc::new(row));
    bed.publisher.publish(plane).unwrap();
    let (_, ports) = bed.ask("GET resources/vports", "");
    let [port] = &ports.as_array().unwrap()[..] else { panic!("{ports}") };
    for (member, value) in [
        ("virtual_port_guid", json!("0200000000000001")),
        ("virtual_port_state", json!("Active")),
        ("virtual_port_lid", json!(0)),
        ("port_guid", json!("0000000000000011")),
        ("port_name", json!("0000000000000011_1")),
        ("system_name", json!("host1")),
        ("pkeys", json!(["0x7fff", "0x5"])),
    ] {
        assert_eq!(port[member], value, "{member}");
    }
    assert_eq!(bed.ask("GET app/smconf", "").1["m_key"], "0x11");
}

#[test]
fn operators_names_are_shown_beside_those_that_schedulers_match() {
    use crate::observe::testing_names;
    testing_names::give();
    let bed = Bed::new();
    let mut plane = plane();
    let mut host = Node::clone(&plane.nodes[0]);
    host.guid = testing_names::OF_API;
    let mut leaf = Node::clone(&plane.nodes[1]);
    leaf.ports[1].peer = Some((host.guid, PortNum(1)));
    plane.nodes = vec![Arc::new(leaf), Arc::new(host)];
    bed.publisher.publish(plane).unwrap();
    let (_, ports) = bed.ask("GET resources/ports?sys_type=Computer", "");
    for (member, value) in [
        ("display_name", "rack 8 host 3"),
        ("system_name", "host1"),
        ("node_description", "host1 HCA-1"),
        ("dname", "HCA-1/1"),
        ("peer_display_name", "leaf1"),
    ] {
        assert_eq!(ports[0][member], value, "{member}");
    }
    let (_, systems) = bed.ask("GET resources/systems", "");
    assert_eq!(systems[1]["display_name"], "rack 8 host 3");
    assert_eq!(systems[1]["description"], "host1 HCA-1");
    let (_, links) = bed.ask("GET resources/links", "");
    assert_eq!(links[0]["source_display_name"], "leaf1");
    assert_eq!(links[0]["destination_display_name"], "rack 8 host 3");
    assert_eq!(links[0]["destination_system_name"], "host1");
}

#[test]
fn each_base_takes_who_proves_to_be_a_user() {
    let bed = Bed::new();
    let get = |path: &str, headers: &str| bed.send(&format!("GET {path}"), headers, "").0;
    for base in ["/ufmRest", "/ufmRestV2", "/ufmRestV3"] {
        assert_eq!(get(&format!("{base}/app/ufm_version"), ""), 401);
        let wrong = basic("op", "wrong");
        assert_eq!(get(&format!("{base}/resources/pkeys"), &wrong), 401);
    }
    let (status, tokens) = bed.ask("POST app/tokens", "");
    assert_eq!(status, 200);
    let token = tokens["access_token"].as_str().unwrap();
    let header = format!("Authorization: Basic {token}\r\n");
    assert_eq!(get("/ufmRestV3/resources/pkeys", &header), 200);
    let form = "httpd_username=op&httpd_password=secret";
    let (status, head, _) = bed.send("POST /dologin", "", form);
    assert_eq!(status, 200);
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(get("/ufmRestV2/resources/pkeys", &format!("Cookie: a=b; {cookie}\r\n")), 200);
    assert_eq!(bed.send("POST /dologin", "", &form.replace("secret", "x")).0, 401);
}

#[test]
fn a_viewer_reads_and_changes_nothing() {
    let bed = Bed::new();
    assert_eq!(bed.ask_as("eye", "GET resources/pkeys", "").0, 200);
    let add = r#"{"pkey": "0x5", "guids": ["0000000000000011"]}"#;
    for call in ["POST resources/pkeys", "PUT resources/pkeys", "DELETE resources/pkeys/0x5"] {
        assert_eq!(bed.ask_as("eye", call, add).0, 403, "{call}");
    }
    assert_eq!(bed.ask_as("eye", "GET app/smconf", "").0, 403, "keys");
    let (status, tokens) = bed.ask_as("eye", "POST app/tokens", "");
    assert_eq!(status, 200);
    let token = tokens["access_token"].as_str().unwrap();
    let header = format!("Authorization: Basic {token}\r\nContent-Type: application/json\r\n");
    assert_eq!(bed.send("POST /ufmRestV3/resources/pkeys", &header, add).0, 403);
    assert_eq!(bed.registry.plane().api_partitions.len(), 0);
}

/// Regression: PUT without `guids` removed all members.
#[test]
fn members_are_replaced_by_those_that_are_named_only() {
    let bed = Bed::new();
    let put = r#"{"pkey": "0x5", "guids": ["0000000000000011", "0000000000000012"]}"#;
    assert_eq!(bed.ask("PUT resources/pkeys", put).0, 200);
    for none in [r#"{"pkey": "0x5"}"#, r#"{"pkey": "0x5", "guids": null}"#] {
        for call in [
            "PUT resources/pkeys",
            "POST resources/pkeys",
            "POST actions/remove_guids_from_pkey",
            "POST resources/pkeys/hosts",
        ] {
            assert_eq!(bed.ask(call, none).0, 400, "{call} {none}");
        }
    }
    assert_eq!(bed.pkey("0x5")["guids"].as_array().unwrap().len(), 2);
    assert_eq!(bed.ask("PUT resources/pkeys", r#"{"pkey": "0x5", "guids": []}"#).0, 200);
    assert_eq!(bed.pkey("0x5")["guids"], json!([]), "an empty list is one");
}

/// Regression: clients that sent heads of requests and no bodies kept all connections busy.
#[test]
fn requests_without_their_bodies_shut_out_no_other() {
    let bed = Bed::new();
    let silent: Vec<TcpStream> = (0..Descriptors::of_process().for_http() / SHARES)
        .map(|_| {
            let mut stream = TcpStream::connect(bed.address).unwrap();
            let headers = basic("op", "secret");
            let head = "PUT /ufmRest/resources/pkeys HTTP/1.1\r\nHost: localhost\r\n";
            write!(stream, "{head}Content-Length: 9\r\n{headers}\r\n").unwrap();
            stream
        })
        .collect();
    let add = r#"{"pkey": "0x5", "guids": ["0000000000000011"]}"#;
    let end = Instant::now() + Duration::from_secs(60);
    while bed.status.connections.displaced.load(Relaxed) == 0 {
        // Until their passwords are checked, they are busy.
        let mut stream = TcpStream::connect(bed.address).unwrap();
        let _ = write!(stream, "POST /dologin HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let _ = stream.read(&mut [0; 64]);
        assert!(Instant::now() < end, "all places stay busy");
    }
    assert_eq!(bed.ask("POST resources/pkeys", add).0, 200);
    drop(silent);
}

#[test]
fn a_body_that_is_too_long_is_refused() {
    let bed = Bed::new();
    let long = format!(r#"{{"pkey": "0x5", "guids": ["{}"]}}"#, "1".repeat(BODY_LEN_MAX));
    assert_eq!(bed.ask("POST resources/pkeys", &long).0, 413);
    let long = format!("httpd_username=op&httpd_password={}", "x".repeat(FORM_LEN_MAX));
    assert_eq!(bed.send("POST /dologin", "", &long).0, 413);
    let most: Vec<String> = (1..=16_384).map(|n| format!("{n:016x}")).collect();
    let memberships = vec!["limited"; most.len()];
    let most = json!({ "pkey": "0x5", "guids": most, "memberships": memberships }).to_string();
    assert_eq!(bed.ask("PUT resources/pkeys", &most).0, 200, "as many as an order may have");
}

/// Regression: keys were those of the start, also after they were read again.
#[test]
fn keys_are_those_in_force() {
    let bed = Bed::new();
    bed.registry.set_site(Site { m_key: 0x22, sm_key: 0x33, ..Site::default() });
    let (_, keys) = bed.ask("GET app/smconf", "");
    assert_eq!((&keys["m_key"], &keys["sm_key"]), (&json!("0x22"), &json!("0x33")));
}

/// Regression: a user's token outlived the user, and a broken file was seen in the log only.
#[test]
fn a_token_ends_with_its_user() {
    let bed = Bed::new();
    let (_, tokens) = bed.ask("POST app/tokens", "");
    let header = format!("Authorization: Bearer {}\r\n", tokens["access_token"].as_str().unwrap());
    let get = || bed.send("GET /ufmRestV3/resources/pkeys", &header, "").0;
    assert_eq!(get(), 200);
    let users = bed.directory.path().join("users");
    std::fs::write(&users, "op:admin").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while bed.status.users_refused().is_none() {
        assert!(Instant::now() < end, "a broken file is reported without a request");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(get(), 200, "the users before stay");
    std::fs::write(&users, users::line("eye", Role::Viewer, "secret").unwrap()).unwrap();
    assert_eq!((get(), bed.status.users_refused()), (401, None));
    assert_eq!(bed.status.callers_refused.load(Relaxed), 1);
}

/// A certificate for the server, signed by itself.
fn certificate(directory: &Path) -> TlsFiles {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let [ca, cert, key_file] = ["ca.pem", "sm.pem", "sm.key"].map(|name| directory.join(name));
    let pem = params.self_signed(&key).unwrap().pem();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    std::fs::write(&ca, &pem).unwrap();
    std::fs::write(&cert, &pem).unwrap();
    TlsFiles { ca, cert, key: key_file, crl: None }
}

/// Regression: the certificate was read at the start only, and the cookie of a session could be
/// sent without TLS.
#[test]
fn over_tls_a_new_certificate_is_used_from_the_next_connection() {
    let bed = Bed::with_tls(|directory| Some(certificate(directory)));
    let ask = |call: &str, headers: &str, body: &str| {
        let pem = std::fs::read(bed.directory.path().join("ca.pem")).unwrap();
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(&pem) {
            roots.add(ca.unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(bed.address).unwrap();
        answered(StreamOwned::new(client, stream), call, headers, body)
    };
    assert_eq!(ask("GET /ufmRest/app/ufm_version", &basic("op", "secret"), "").0, 200);
    let (_, head, _) = ask("POST /dologin", "", "httpd_username=op&httpd_password=secret");
    let cookie = head.lines().find(|line| line.starts_with("set-cookie: ")).unwrap();
    for attribute in ["; httponly", "; samesite=strict", "; secure"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    certificate(bed.directory.path());
    assert_eq!(ask("GET /ufmRest/app/ufm_version", &basic("op", "secret"), "").0, 200);
}

/// An answer other than 200 has clients ask again, at a manager that is master.
#[test]
fn who_is_not_master_changes_and_lists_nothing() {
    let bed = Bed::new();
    bed.registry.set_open(false);
    let add = r#"{"pkey": "0x5", "guids": ["0000000000000011"]}"#;
    assert_eq!(bed.ask("POST resources/pkeys", add).0, 503);
    bed.registry.set_open(true);
    assert_eq!(bed.ask("POST resources/pkeys", add).0, 200);
    // Regression: lists were empty from the beginning of a session until its fabric and its
    // registry were published.
    let lists = |status: u16, why: &str| {
        for list in ["pkeys?guids_data=true", "ports", "systems", "links", "vports"] {
            assert_eq!(bed.ask(&format!("GET resources/{list}"), "").0, status, "{list}: {why}");
        }
        assert_eq!(bed.ask("GET app/smconf", "").0, status, "{why}");
    };
    bed.publisher.end_session();
    lists(503, "it is not the master");
    bed.publisher.begin_session(Guid(1)).unwrap();
    lists(503, "the fabric is not published");
    bed.publisher.publish(plane()).unwrap();
    bed.registry.session_begun();
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (status, all) = bed.ask("GET resources/pkeys?guids_data=true", "");
        if status == 200 {
            assert_eq!(all["0x5"]["guids"][0]["guid"], "0000000000000011", "{all}");
            break;
        }
        assert_eq!(status, 503);
        assert!(Instant::now() < end, "nothing is listed");
    }
    lists(200, "all is known");
}

/// The client that networking-mlnx-baremetal has for UFM, unchanged, from PyPI.
#[test]
fn interop_networking_mlnx_baremetal() {
    let directory = tempfile::tempdir().unwrap();
    let pip = |packages: &[&str]| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "-q", "--target"]).arg(directory.path()).args(packages);
        pip.output().is_ok_and(|output| output.status.success())
    };
    // Its own requirements are OpenStack's; the client needs these alone.
    let is_there = pip(&["--no-deps", "networking-mlnx-baremetal==1.0.2"])
        && pip(&["pbr==7.0.3", "requests==2.32.5"]);
    if !is_there {
        // A registry that is out of reach is no fault of this project.
        let reason = "skipped: pip cannot install networking-mlnx-baremetal 1.0.2\n";
        return std::io::stdout().write_all(reason.as_bytes()).unwrap();
    }
    let bed = Bed::new();
    let output = Command::new("python3")
        .env("PYTHONPATH", directory.path())
        .args(["-c", include_str!("networking_mlnx.py")])
        .args([&format!("http://{}", bed.address)[..], "op", "secret"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.trim(), "done", "{}", String::from_utf8_lossy(&output.stderr));
    assert!(bed.registry.plane().api_partitions.is_empty());
}

/// Regression: with a text type, an order of a page of another site was carried out.
#[test]
fn orders_of_other_sites_pages_are_not_carried_out() {
    let bed = Bed::new();
    let add = r#"{"pkey":"0x9","guids":["0x0000000000000011"]}"#;
    let post = "POST /ufmRest/resources/pkeys";
    let op = basic("op", "secret");
    for header in ["Origin: http://evil.example", "Sec-Fetch-Site: cross-site"] {
        assert_eq!(bed.send(post, &format!("{op}{header}\r\n"), add).0, 403, "{header}");
    }
    let text = op.replace("application/json", "text/plain");
    assert_eq!(bed.send(post, &text, add).0, 415);
    assert_eq!(bed.ask("GET resources/pkeys/0x9", "").0, 404);
    assert_eq!(bed.send(post, &op, add).0, 200);
    let (_, head, _) = bed.send("GET /ufmRest/resources/pkeys", &op, "");
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
}

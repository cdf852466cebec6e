//! `ibsmctl`'s requests and output, with real programs: without TLS on this host, and with
//! certificates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::scrape::Scrape;
use benches::sandbox::{
    PATIENCE, Program, Sandbox, all_responders_are_current, await_status, binary,
    can_interoperate_with, free_address,
};
use ib_mad::types::{Gid, Guid, PKey};
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::service::component as svc;
use ib_mad::wire::record::{JoinState, McMemberRecord, ServiceRecord};
use ib_mad::wire::sa::{SaMad, attribute};
use sa_proto::proto::registry as proto;
use sa_proto::proto::registry::registry_client::RegistryClient;
use serde_json::{Value, json};

const A: &str = "node00002 HCA-1";
const B: &str = "node00012 HCA-1";

/// A fat tree of 16 hosts, an SM and a responder.
struct Subnet {
    url: String,
    publish: String,
    sandbox: Sandbox,
    _programs: Vec<Program>,
}

impl Subnet {
    fn plain(name: &str) -> Self {
        Self::new(name, "http", &[], &[], &[])
    }

    /// `sm`, `responder` and `admin` are additional arguments: of `ibsm`, `ibsa`, and `ibsmctl`
    /// when it waits for the others.
    fn new(name: &str, scheme: &str, sm: &[&str], responder: &[&str], admin: &[&str]) -> Self {
        let sandbox = Sandbox::new(name);
        let net = sandbox.fat_tree(8, 16);
        let fabric = sandbox.ibfabric(&net);
        let publish = free_address().to_string();
        let url = format!("{scheme}://{publish}");
        let state = sandbox.path("state");
        let mut args = vec!["--transport", "ibsim", "--socket", sandbox.socket()];
        args.extend(["--node", "node00001 HCA-1", "--publish", &publish]);
        args.extend(["--state-dir", state.to_str().expect("UTF-8")]);
        args.extend(sm);
        let ibsm = sandbox.ours("ibsm", "ibsm", &args);
        ibsm.wait_for("SUBNET UP");
        let mut args = vec!["--sm", &url, "--name", "r1", "--transport", "udp"];
        args.extend(responder);
        let ibsa = sandbox.ours("ibsa", "ibsa", &args);
        ibsa.wait_for("serving generation");
        // The SM also knows, once it has the acknowledgement.
        await_status(&url, admin, "a current responder", all_responders_are_current);
        Self { url, publish, sandbox, _programs: vec![fabric, ibsm, ibsa] }
    }

    fn ask(&self, words: &[&str]) -> Output {
        let ibsmctl =
            Command::new(binary("ibsmctl")).args(["--sm", &self.url]).args(words).output();
        ibsmctl.expect("ibsmctl runs")
    }

    fn output(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.output(words)).expect("JSON")
    }

    fn refusal(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    /// Sends the SM's registry a write in the name of a port.
    fn write(&self, lid: u32, mad: [u8; 256]) {
        let requester = proto::Requester {
            lid,
            qpn: 1,
            pkey: PKey::DEFAULT_FULL.0.into(),
            ..Default::default()
        };
        let write = proto::Write {
            id: 1,
            mad: mad.to_vec().into(),
            requester: Some(requester),
            seen: u64::MAX,
        };
        let writes = proto::Writes { responder_id: 0x51, writes: vec![write], epoch: 0 };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = RegistryClient::connect(self.url.clone()).await.unwrap();
            // The stream stays open until the outcome arrives.
            let (say, said) = tokio::sync::mpsc::channel(1);
            say.send(writes).await.unwrap();
            let said = tokio_stream::wrappers::ReceiverStream::new(said);
            let mut outcomes = client.write(said).await.unwrap().into_inner();
            let outcome = outcomes.message().await.unwrap().expect("an outcome").outcomes;
            assert_eq!(outcome[0].status, 0, "{outcome:?}");
        });
    }
}

/// A fat tree has full bandwidth in shifts.
#[test]
fn routing_quality_measures_the_tables_in_force() {
    let subnet = Subnet::plain("ctl-quality");
    let text = subnet.output(&["routing", "quality", "--patterns", "15"]);
    assert!(text.contains(" 16 hosts; 15 patterns of each kind\n"), "{text}");
    assert!(text.contains("\nminhop "), "{text}");
    let found = subnet.json(&["routing", "quality", "--json"]);
    assert_eq!((&found["routing_engine"], &found["hosts"]), (&json!("minhop"), &json!(16)));
    assert_eq!(found["base"]["shifts"]["flows"], json!(15 * 16));
    assert_eq!(found["base"]["shifts"]["flows_lost"], json!(0));
    let list = subnet.sandbox.path("hosts");
    std::fs::write(&list, "node00002\nnode00012\nnowhere\n").unwrap();
    let found = subnet.json(&["routing", "quality", "--json", "--hosts", list.to_str().unwrap()]);
    assert_eq!(found["hosts"], json!(2));
    assert_eq!(found["remarks"], json!(["hosts:3: no host 'nowhere' is in the fabric"]));
    let refused = subnet.refusal(&["routing", "quality", "--patterns", "10001"]);
    assert!(refused.contains("at most 10000 patterns"), "{refused}");
}

#[test]
fn a_path_is_explained_by_name_guid_lid_and_gid() {
    let subnet = Subnet::plain("ctl-explain");
    let output = subnet.output(&["explain", A, B]);
    assert!(output.starts_with(&format!("from      {A}/P1, ca, GUID 0x")), "{output}");
    for line in ["path      yes; status 0x0000, ok", "rule      none in force", "responder r1"] {
        assert!(output.lines().any(|is| is == line), "'{line}' in:\n{output}");
    }
    assert!(
        output.contains("bound by the link ") && output.contains("record    SGID fe80::"),
        "{output}"
    );

    let by_name = subnet.json(&["explain", A, B, "--json"]);
    assert_eq!(by_name["responder"], "r1");
    // To the leaf, up, down, to the host: four nodes forward it.
    assert_eq!(by_name["hops"].as_array().unwrap().len(), 4, "{by_name}");
    let (from, to) = (&by_name["source"], &by_name["destination"]);
    let lid = |end: &Value| end["lid"].to_string();
    let guid = |end: &Value| end["port_guid"].as_str().unwrap().to_owned();
    let gid = |record: &str| by_name["record"][record].as_str().unwrap().to_owned();
    let by_guid = subnet.json(&["explain", &guid(from), &guid(to), "--json"]);
    let by_gid = subnet.json(&["explain", &gid("sgid"), &gid("dgid"), "--json"]);
    let by_lid = subnet.json(&["explain", &lid(from), &lid(to), "--json"]);
    for other in [by_guid, by_gid, by_lid] {
        assert_eq!(other["record"]["bytes"], by_name["record"]["bytes"]);
    }

    let output = subnet.output(&["explain", A, B, "--pkey", "0x8123"]);
    assert!(output.contains("is not a member of 0x0123; status 0x0300, no records"), "{output}");
    let refusal = subnet.refusal(&["explain", A, "no such node"]);
    assert!(refusal.contains("refused: no port is named no such node"), "{refusal}");
}

/// Reads a dump as ibacm does (`acmp_parse_osm_fullv1_*` of rdma-core): base LIDs by GUID, and of
/// the port with `guid` the SL, MTU and rate by LID.
fn as_ibacm_reads(dump: &str, guid: Guid) -> (BTreeMap<u64, u16>, BTreeMap<u16, [u8; 3]>) {
    let heading = |line: &str| {
        let mut words = line.split(' ');
        match words.next() {
            Some("Channel") => words.next().filter(|&word| word == "Adapter")?,
            Some(word @ ("Switch" | "Router")) => word,
            _ => return None,
        };
        let guid = words.next()?.strip_suffix(',')?.strip_prefix("0x")?;
        let lid = line.split_once("base LID ")?.1.split_once(',')?.0;
        Some((u64::from_str_radix(guid, 16).ok()?, lid.parse::<u16>().ok()?))
    };
    let is_text = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let lines = || dump.lines().filter(is_text);
    assert!(dump.lines().all(|line| line.len() < 127), "ibacm reads 127 bytes");
    let lids = lines().filter_map(heading).collect();
    let is_own = |line: &&str| heading(line).is_some_and(|(is, _)| is == guid.0);
    let rows = lines().skip_while(|line| !is_own(line)).skip(1);
    let rows = rows.take_while(|line| heading(line).is_none()).filter_map(|line| {
        let (lid, values) = line.split_once(" : ")?;
        let lid = u16::from_str_radix(lid.strip_prefix("0x")?, 16).ok()?;
        let values: Vec<u8> = values.split(" : ").filter_map(|one| one.parse().ok()).collect();
        Some((lid, values.try_into().ok()?))
    });
    (lids, rows.collect())
}

#[test]
fn ibacm_gets_the_paths_that_a_responder_answers_with() {
    let subnet = Subnet::plain("ctl-dump");
    let all = subnet.output(&["dump", "--opensm-full-v1"]);
    let explained = subnet.json(&["explain", A, B, "--json"]);
    let guid = |end: &str| explained[end]["port_guid"].as_str().unwrap().parse::<Guid>().unwrap();
    let (a, b) = (guid("source"), guid("destination"));
    let (lids, paths) = as_ibacm_reads(&all, a);
    assert_eq!((lids.len(), paths.len()), (22, 22), "{all}");
    let record = &explained["record"];
    let bytes = record["bytes"].as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&bytes[2 * at..2 * at + 2], 16).unwrap();
    assert_eq!(record["dlid"].as_u64(), Some(lids[&b.0].into()));
    assert_eq!(paths[&lids[&b.0]], [byte(53) & 0xF, byte(54) & 0x3F, byte(55) & 0x3F], "{record}");
    let sections = |dump: &str| dump.matches("# LID : SL : MTU : RATE\n").count();
    assert_eq!(sections(&all), 22);
    // From one node: all headings, the paths of one.
    let one = subnet.output(&["dump", "--opensm-full-v1", "node00002"]);
    assert_eq!(as_ibacm_reads(&one, a), (lids, paths));
    assert_eq!(sections(&one), 1);
    let refused = subnet.refusal(&["dump", "--opensm-full-v1", "node00002", "nodeX"]);
    assert!(refused.contains("no node is named nodeX"), "{refused}");
    let usage = subnet.ask(&["dump"]);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn top_prints_without_a_terminal() {
    let subnet = Subnet::plain("ctl-top");
    let deadline = Instant::now() + PATIENCE;
    // The reported state is at most a second old.
    let moment = loop {
        let moment = subnet.json(&["top", "--once", "--json"]);
        if moment["responders"][0]["state"] == "current" {
            break moment;
        }
        assert!(Instant::now() < deadline, "{moment}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(
        (&moment["fabric"]["hosts"], &moment["responders"][0]["name"]),
        (&16.into(), &"r1".into())
    );
    let output = subnet.output(&["top"]);
    assert!(output.contains("  master  subnet up  for ") && output.contains("\nr1 "), "{output}");
}

#[test]
fn a_sweep_and_new_routes_are_to_be_had() {
    let http = free_address().to_string();
    let subnet = Subnet::new("ctl-orders", "http", &["--http", &http], &[], &[]);
    let count = |series: &str| Scrape::of(&http).0.get(series).map_or(0, |count| *count as u64);
    let await_more = |series: &str, before: u64| {
        let deadline = Instant::now() + PATIENCE;
        while count(series) == before {
            assert!(Instant::now() < deadline, "{series} is still {before}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // Nothing in the fabric changes, so that no other cause starts one.
    for (order, answer) in
        [("sweep", "a heavy sweep begins"), ("reroute", "all routes are recomputed")]
    {
        let series = "ibsm_sweeps_total{kind=\"full\"}";
        let before = count(series);
        let output = subnet.output(&[order]);
        assert!(output.contains(answer), "{output}");
        await_more(series, before);
    }
}

#[test]
fn explain_without_a_responder_says_so() {
    let mut subnet = Subnet::plain("ctl-alone");
    subnet._programs.pop().expect("the responder").kill();
    await_status(&subnet.url, &[], "no responder", |status| status["responders"] == json!([]));
    let refusal = subnet.refusal(&["explain", A, B]);
    assert!(refusal.contains("no responder is connected"), "{refusal}");
}

#[test]
fn what_ports_registered_is_listed_with_their_names() {
    let subnet = Subnet::plain("ctl-registered");
    assert_eq!(subnet.output(&["services"]), "no services\n");
    assert_eq!(subnet.output(&["subscriptions"]), "no subscriptions\n");
    let explained = subnet.json(&["explain", A, B, "--json"]);
    let lid = explained["source"]["lid"].as_u64().unwrap() as u32;
    let gid: Gid = explained["record"]["sgid"].as_str().unwrap().parse().unwrap();
    assert_ne!(gid.guid(), Guid(0));

    let mut bytes = [0; 256];
    let mut mad = SaMad::new(&mut bytes);
    let mask = mc::MGID | mc::PORT_GID | mc::QKEY | mc::TCLASS | mc::PKEY | mc::FLOW_LABEL;
    let mask = mask | mc::SL | mc::JOIN_STATE;
    mad.write_request(Method::SET, attribute::MC_MEMBER_RECORD, 1, mask);
    let mgid: Gid = "ff12:401b:ffff::77".parse().unwrap();
    McMemberRecord::new(&mut mad.data_mut()[..52])
        .unwrap()
        .set_mgid(mgid)
        .set_port_gid(gid)
        .set_qkey(0xB1B)
        .set_pkey(PKey::DEFAULT_FULL)
        .set_join_state(JoinState::FULL_MEMBER);
    subnet.write(lid, bytes);
    let output = subnet.output(&["mcast", "--mgid", "ff12:401b:ffff::77"]);
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].starts_with("ff12:401b:ffff::77  MLID 0xc0"), "{output}");
    assert!(lines[0].ends_with("Q_Key 0x00000b1b; 1 member"), "{output}");
    assert_eq!(lines[1], format!("  {A}/P1  {gid}  full"));
    let groups = subnet.json(&["mcast", "--json"]);
    let group = groups.as_array().unwrap().iter().find(|group| group["mgid"] == mgid.to_string());
    assert_eq!(group.unwrap()["members"][0]["node"], A);
    let refusal = subnet.refusal(&["mcast", "--mgid", "ff12::9"]);
    assert!(refusal.contains("no multicast group ff12::9"), "{refusal}");

    let mut bytes = [0; 256];
    let mut mad = SaMad::new(&mut bytes);
    let mask = svc::SERVICE_ID | svc::SERVICE_GID | svc::SERVICE_PKEY | svc::SERVICE_LEASE;
    mad.write_request(Method::SET, attribute::SERVICE_RECORD, 2, mask);
    ServiceRecord::new(&mut mad.data_mut()[..176])
        .unwrap()
        .set_service_id(0x77)
        .set_service_gid(gid)
        .set_service_pkey(PKey::DEFAULT_FULL)
        .set_service_lease(u32::MAX);
    subnet.write(lid, bytes);
    let output = subnet.output(&["services"]);
    let expected = format!("0x0000000000000077  ''  {A}/P1  {gid}  P_Key 0xffff, permanent\n");
    assert_eq!(output, expected);
}

/// Certificates from the script for operators.
struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    fn make() -> Self {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/make-certs.sh");
        let made = Command::new("bash").arg(script).arg(directory.path()).output();
        let made = made.expect("bash runs");
        assert!(made.status.success(), "{made:?}");
        Self { directory }
    }

    fn options(&self, name: &str) -> Vec<String> {
        let at = |file: String| -> PathBuf { self.directory.path().join(file) };
        let files = [at("ca.pem".into()), at(format!("{name}.pem")), at(format!("{name}.key"))];
        let options = ["--tls-ca", "--tls-cert", "--tls-key"].into_iter().zip(files);
        options.flat_map(|(option, file)| [option.into(), file.display().to_string()]).collect()
    }
}

fn with<'a>(words: &[&'a str], options: &'a [String]) -> Vec<&'a str> {
    words.iter().copied().chain(options.iter().map(String::as_str)).collect()
}

#[test]
fn with_certificates_each_program_may_do_what_its_role_is_for() {
    if !can_interoperate_with("openssl") {
        return;
    }
    let certificates = Certificates::make();
    let sm = certificates.options("sm");
    let responder = certificates.options("responder");
    let admin = certificates.options("admin");
    let [of_sm, of_responder, of_admin] =
        [&sm, &responder, &admin].map(|options| with(&[], options));
    let subnet = Subnet::new("ctl-tls", "https", &of_sm, &of_responder, &of_admin);

    assert!(subnet.output(&with(&["status"], &admin)).contains("responders      1\n  r1 ("));
    assert!(subnet.output(&with(&["explain", A, B], &admin)).contains("responder r1"));
    let refusal = subnet.refusal(&with(&["status"], &responder));
    assert!(refusal.contains("is for the role viewer") && refusal.contains("role responder"));
    let refusal = subnet.refusal(&["status"]);
    assert!(refusal.contains("needs --tls-ca, --tls-cert and --tls-key"), "{refusal}");
    let other = Certificates::make();
    let refusal = subnet.refusal(&with(&["status"], &other.options("admin")));
    assert!(refusal.contains("its certificate is not signed by a CA in --tls-ca"), "{refusal}");

    // ibstorm compares answers with the snapshot, which is for responders.
    let storm = with(&["--target", "127.0.0.1:9", "--sm", &subnet.url, "--wait", "4s"], &admin);
    let (status, log) = subnet.sandbox.ours("ibstorm", "ibstorm", &storm).wait();
    assert!(!status.success() && log.contains("is for the role responder"), "{log}");
    assert!(subnet.publish.starts_with("127.0.0.1"));
}

#[test]
fn nothing_is_opened_to_other_hosts_without_certificates_unless_that_is_meant() {
    let sandbox = Sandbox::new("ctl-open");
    let refused = |program: &str, args: &[&str]| {
        let (status, log) = sandbox.ours(program, program, args).wait();
        assert!(!status.success(), "{log}");
        log
    };
    let state = sandbox.path("state");
    let state = ["--state-dir", state.to_str().expect("UTF-8")];
    let log = refused("ibsm", &[&state[..], &["--publish", "0.0.0.0:0"]].concat());
    assert!(log.contains("--publish 0.0.0.0:0 can be reached from other machines"), "{log}");
    let log = refused("ibsm", &[&state[..], &["--front-door", "0.0.0.0:0"]].concat());
    assert!(log.contains("--front-door 0.0.0.0:0 can be reached from other machines"), "{log}");
    let log = refused("ibsa", &["--transport", "udp", "--sm", "http://192.0.2.1:1"]);
    assert!(log.contains("is on another host and has no TLS"), "{log}");
    let here = ["--transport", "udp", "--sm", "http://127.0.0.1:1", "--listen", "0.0.0.0:0"];
    let log = refused("ibsa", &here);
    assert!(log.contains("--listen 0.0.0.0:0 is open to other hosts"), "{log}");
}

//! The same fabric, brought up once by OpenSM and once by us: stock tools must report the same for
//! both, apart from the LIDs that each assigned. Stock `ibsim`, stock `infiniband-diags`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use benches::sandbox::{NET_EXAMPLES, Program, Sandbox, can_interoperate, free_address};

const PROGRAMS: [&str; 5] = ["ibsim", "opensm", "saquery", "ibnetdiscover", "iblinkinfo"];

/// The tools' output for a fabric, with LIDs replaced by the GUIDs of their ports.
#[derive(Default)]
struct Portrait {
    /// One entry per tool run, by its command line with GUIDs for LIDs.
    facts: BTreeMap<String, String>,
}

/// LID of each end port and back.
struct Lids {
    by_guid: BTreeMap<String, u16>,
    by_lid: BTreeMap<u16, String>,
}

impl Lids {
    /// Reads them from `ibnetdiscover`'s output.
    fn parse(topology: &str) -> Self {
        let mut by_guid = BTreeMap::new();
        for line in topology.lines() {
            let lid = |marker: &str| -> Option<u16> {
                line.split(marker).nth(1)?.split_whitespace().next()?.parse().ok()
            };
            if line.starts_with("Switch") {
                let guid = line.split('"').nth(1).and_then(|id| id.strip_prefix("S-"));
                if let (Some(guid), Some(lid)) = (guid, lid("port 0 lid ")) {
                    by_guid.insert(guid.trim_start_matches('0').to_owned(), lid);
                }
            } else if line.starts_with('[') {
                let guid = line.split_once("](").and_then(|(_, rest)| {
                    rest.split_once(") \t\"S-").or(rest.split_once(") \t\"H-"))
                });
                if let (Some((guid, _)), Some(lid)) = (guid, lid("# lid ")) {
                    by_guid.insert(guid.trim_start_matches('0').to_owned(), lid);
                }
            }
        }
        let by_lid = by_guid.iter().map(|(guid, &lid)| (lid, guid.clone())).collect();
        Self { by_guid, by_lid }
    }

    fn name(&self, lid: u16) -> String {
        self.by_lid.get(&lid).map_or_else(|| format!("lid {lid}"), |guid| format!("<{guid}>"))
    }
}

/// Runs every tool at `node`.
fn portrait(sandbox: &Sandbox, node: &str) -> Portrait {
    let mut portrait = Portrait::default();
    let topology = sandbox.tool(node, &["ibnetdiscover"]).stdout;
    let lids = Lids::parse(&topology);
    assert!(!lids.by_guid.is_empty(), "ibnetdiscover found nothing:\n{topology}");
    let mut note = |key: String, value: String| {
        portrait.facts.insert(key, value);
    };

    let named = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        for i in 1..words.len() {
            if words[i - 1] == "lid"
                && let Ok(lid) = words[i].parse()
            {
                words[i] = lids.name(lid);
            }
        }
        words.join(" ")
    };
    let without_comments = |text: &str| -> String {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(named).collect::<Vec<_>>().join("\n")
    };
    note("ibnetdiscover".to_owned(), without_comments(&topology));
    note("ibswitches".to_owned(), without_comments(&sandbox.tool(node, &["ibswitches"]).stdout));
    note("ibhosts".to_owned(), without_comments(&sandbox.tool(node, &["ibhosts"]).stdout));

    // iblinkinfo prints LIDs as bare columns; without them its lines must agree.
    let links = sandbox.tool(node, &["iblinkinfo"]).stdout;
    let bare = |line: &str| -> String {
        let words = line.split_whitespace().filter(|word| word.parse::<u16>().is_err());
        words.collect::<Vec<_>>().join(" ")
    };
    let links: BTreeSet<String> = links.lines().map(bare).collect();
    note("iblinkinfo".to_owned(), links.into_iter().collect::<Vec<_>>().join("\n"));

    let sm = sandbox.tool(node, &["sminfo"]).stdout;
    let stable: Vec<_> =
        sm.split(',').filter(|part| !part.contains("activity")).map(named).collect();
    note("sminfo".to_owned(), stable.join(","));
    note("saquery -c".to_owned(), sandbox.tool(node, &["saquery", "-c"]).stdout);

    let is_switch = |guid: &str| {
        let id = format!("\"S-{guid:0>16}\"");
        topology.lines().any(|line| line.starts_with("Switch") && line.contains(&id))
    };
    for (guid, &lid) in &lids.by_guid {
        let lid = lid.to_string();
        let ask = |argv: &[&str]| fields(&sandbox.tool(node, argv).stdout, &lids);
        note(format!("smpquery nodeinfo {guid}"), ask(&["smpquery", "nodeinfo", &lid]));
        note(format!("saquery NR {guid}"), ask(&["saquery", "NR", &lid]));
        note(format!("smpquery pkeys {guid}"), ask(&["smpquery", "pkeys", &lid]));
        if is_switch(guid) {
            note(format!("smpquery switchinfo {guid}"), ask(&["smpquery", "switchinfo", &lid]));
            let table = sandbox.tool(node, &["ibroute", &lid]).stdout;
            let reached: BTreeSet<&str> =
                table.lines().filter_map(|line| line.split("portguid ").nth(1)).collect();
            note(format!("ibroute {guid}"), reached.into_iter().collect::<Vec<_>>().join("\n"));
        }
        for port in if is_switch(guid) { 0..=8 } else { 1..=1 } {
            let port = port.to_string();
            note(
                format!("smpquery portinfo {guid} {port}"),
                ask(&["smpquery", "portinfo", &lid, &port]),
            );
            let record = format!("{lid}/{port}");
            note(format!("saquery PIR {guid}/{port}"), ask(&["saquery", "PIR", &record]));
        }
    }
    for (from, &slid) in &lids.by_guid {
        for (to, &dlid) in &lids.by_guid {
            let (source, destination) = (slid.to_string(), dlid.to_string());
            let trace = sandbox.tool(node, &["ibtracert", &source, &destination]).stdout;
            let hops = trace.lines().filter(|line| line.starts_with('[')).count();
            note(format!("ibtracert {from} {to}"), format!("{hops} hops"));
            let pair = format!("{slid}:{dlid}");
            let path = sandbox.tool(node, &["saquery", "-p", "--src-to-dst", &pair]).stdout;
            note(format!("saquery -p {from}:{to}"), fields(&path, &lids));
            let gid = |guid: &str| {
                let guid = u64::from_str_radix(guid, 16).expect("hexadecimal digits");
                ib_mad::types::Gid::new(0xFE80 << 48, ib_mad::types::Guid(guid)).to_string()
            };
            let argv = ["saquery", "-p", "--sgid", &gid(from), "--dgid", &gid(to)];
            let path = sandbox.tool(node, &argv).stdout;
            note(format!("saquery -p by GID {from}:{to}"), fields(&path, &lids));
        }
    }
    portrait
}

/// `name....value` lines, with GUIDs for LIDs and without what varies between runs: the port by
/// which a switch was last queried.
fn fields(text: &str, lids: &Lids) -> String {
    let mut out = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.split_once("..") else {
            out.push(line.to_owned());
            continue;
        };
        let (name, value) = (name.trim_end_matches(['.', ':']), value.trim_start_matches('.'));
        let lower = name.to_lowercase();
        if lower.contains("localport")
            || lower.contains("local_port")
            || lower == "linearfdbtop"
            || lower == "lft_top"
        {
            continue;
        }
        if lower.ends_with("lid")
            && let Ok(lid) = value.parse()
        {
            out.push(format!("{name}: {}", lids.name(lid)));
        } else {
            out.push(format!("{name}: {value}"));
        }
    }
    out.join("\n")
}

/// Brings `net` up with OpenSM at its first host and runs the tools at `node`.
fn under_opensm(net: &Path, sm_node: &str, node: &str) -> Portrait {
    let sandbox = Sandbox::new("opensm");
    let _ibsim = sandbox.ibsim(net);
    let log = sandbox.path("opensm-messages.log");
    let log = log.to_str().expect("UTF-8");
    // -d 2: flush the log at every message, so that the test can wait for it.
    let argv = ["opensm", "-f", log, "-d", "2"];
    let _opensm = sandbox.umad_program("opensm", sm_node, &argv);
    let deadline = std::time::Instant::now() + benches::sandbox::PATIENCE;
    while !std::fs::read_to_string(log).unwrap_or_default().contains("SUBNET UP") {
        assert!(std::time::Instant::now() < deadline, "OpenSM brings the fabric up");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    portrait(&sandbox, node)
}

/// Brings `net` up with `ibsm` at its first host and `ibsa` as specified, and runs the tools at
/// `node`.
fn under_ibsm(net: &Path, sm_node: &str, sa: Responder<'_>, node: &str) -> Portrait {
    let sandbox = Sandbox::new("ibsm");
    let _ibsim = sandbox.ibsim(net);
    let (_ibsm, _ibsa) = start_ours(&sandbox, sm_node, sa);
    portrait(&sandbox, node)
}

/// Where the responder serves.
#[derive(Clone, Copy)]
enum Responder<'a> {
    /// On a node of its own, also reachable through the front door.
    AtNode(&'a str),
    /// Behind the front door only.
    BehindFrontDoor,
}

fn start_ours(sandbox: &Sandbox, sm_node: &str, sa: Responder<'_>) -> (Program, Program) {
    let publish = free_address().to_string();
    let state = sandbox.path("state");
    let state = state.to_str().expect("UTF-8");
    let ibsm = sandbox.ours(
        "ibsm",
        "ibsm",
        &["--transport", "ibsim", "--node", sm_node, "--publish", &publish, "--state-dir", state],
    );
    ibsm.wait_for("SUBNET UP");
    let sm = format!("http://{publish}");
    let ibsa = match sa {
        Responder::AtNode(node) => {
            sandbox.ours("ibsa", "ibsa", &["--sm", &sm, "--transport", "ibsim", "--node", node])
        }
        Responder::BehindFrontDoor => sandbox.ours(
            "ibsa",
            "ibsa",
            &["--sm", &sm, "--transport", "udp", "--listen", "127.0.0.1:0"],
        ),
    };
    ibsa.wait_for("serving generation");
    (ibsm, ibsa)
}

/// Names of a net file's hosts.
fn hosts(net: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(net).expect("the net file is readable");
    let lines = text.lines().filter(|line| line.starts_with("Hca") || line.starts_with("Ca"));
    lines.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

fn differences(ours: &Portrait, theirs: &Portrait) -> Vec<String> {
    let keys: BTreeSet<_> = ours.facts.keys().chain(theirs.facts.keys()).collect();
    let nothing = String::new();
    let mut found = Vec::new();
    for key in keys {
        let a = ours.facts.get(key).unwrap_or(&nothing);
        let b = theirs.facts.get(key).unwrap_or(&nothing);
        if a == b {
            continue;
        }
        let (left, right): (BTreeSet<_>, BTreeSet<_>) = (a.lines().collect(), b.lines().collect());
        let only_ours: Vec<_> = left.difference(&right).collect();
        let only_theirs: Vec<_> = right.difference(&left).collect();
        found.push(format!(
            "{key}\n  only under ibsm:   {only_ours:?}\n  only under OpenSM: {only_theirs:?}"
        ));
    }
    found
}

fn compare(net: &Path, sa: Responder<'_>, sm_node: &str, tools_at: &str) {
    let theirs = under_opensm(net, sm_node, tools_at);
    let ours = under_ibsm(net, sm_node, sa, tools_at);
    let found = differences(&ours, &theirs);
    let total = theirs.facts.len();
    assert!(found.is_empty(), "{} of {total} facts differ:\n{}", found.len(), found.join("\n"));
    assert!(total > 20, "only {total} facts were compared");
}

/// All net files of Debian's package. With two hosts each, the third node is a switch.
#[test]
fn tools_print_the_same_for_stock_example_fabrics() {
    if !can_interoperate(&PROGRAMS) {
        return;
    }
    for name in ["net", "net.1", "net.2sw2path", "net.2sw2path4hca", "net.2sw2path4hca2port"] {
        let net = PathBuf::from(NET_EXAMPLES).join(name);
        let hosts = hosts(&net);
        let third = hosts.get(2).map_or("Switch1", String::as_str);
        compare(&net, Responder::AtNode(&hosts[1]), &hosts[0], third);
    }
}

/// The whole SM and SA at one simulated node.
#[test]
fn tools_print_the_same_through_the_front_door() {
    if !can_interoperate(&PROGRAMS) {
        return;
    }
    let net = PathBuf::from(NET_EXAMPLES).join("net.2sw2path4hca");
    compare(&net, Responder::BehindFrontDoor, "Hca1", "Hca3");
}

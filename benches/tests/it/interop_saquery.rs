//! Stock `saquery` sends stock OpenSM and us the same queries about the same fabric, with the same
//! LIDs and partitions: every record it supports. The records must be equal, except for their
//! order.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use benches::sandbox::{NET_EXAMPLES, PATIENCE, Program, Sandbox, can_interoperate, free_address};

const NET: &str = "net.2sw2path4hca";
const MANAGER: &str = "Hca1";
const CLIENT: &str = "Hca2";
const PARTITIONS: &str = "Default=0x7fff, ipoib, defmember=full : ALL, SELF=full;\n\
     Blue=0x0002, ipoib, defmember=limited : ALL, SELF=full;\n";

/// The queries, one command line each. Forwarding tables are left out because routes may differ.
const QUERIES: &[&str] = &[
    "CPI",
    "NR",
    "PIR",
    "SL2VL",
    "SL2VL 1",
    "PKTR",
    "VLAR",
    "VLAR 1",
    "IIR",
    "LR",
    "SR",
    "PR",
    "MCMR",
    "GIR",
    "SWIR",
    "SMIR",
    "-N",
    "-p",
    "-s",
    "-g",
    "-m",
    "-x",
    "-c",
    "-S",
    "-I",
    "--list",
    "-L Hca2",
    "-l Hca2",
    "-G Hca2",
    "-O 1",
    "-m 0xC000",
    "--slid 1 --dlid 2 PR",
    "-J 1 MCMR",
    "--src-to-dst 1:2",
    "--slid 1 -r 1 -n 4 PR",
    "--mtu 4 MCMR",
    "--slid 2 --pkey 0x8002 PR",
    "--slid 1 --mtu 130 PR",
    "--slid 1 --qos_class 3 PR",
    "--slid 1 --service_id 5 PR",
    "NR 2",
    "PIR 1/1",
    "SMIR 1",
    "GIR 1/0",
    "--smkey 1 NR",
    "--smkey 1 PIR",
    "--smkey 1 PKTR",
    "--smkey 1 MCMR",
    "--smkey 1 -m",
    "--smkey 1 SMIR",
];

fn start_opensm(sandbox: &Sandbox, partitions: &str) -> Program {
    let log = sandbox.path("opensm-messages.log");
    let path = log.to_str().expect("UTF-8");
    let argv = ["opensm", "-s", "0", "-f", path, "-d", "2", "-P", partitions];
    let opensm = sandbox.exec_program("opensm", MANAGER, &argv);
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_to_string(&log).unwrap_or_default().contains("SUBNET UP") {
        assert!(Instant::now() < deadline, "OpenSM brings the fabric up");
        std::thread::sleep(Duration::from_millis(20));
    }
    opensm
}

fn start_ours(sandbox: &Sandbox, partitions: &str, lids: &Path) -> [Program; 2] {
    let publish = free_address().to_string();
    let state = sandbox.path("state");
    fs::create_dir(&state).expect("a directory for state");
    fs::copy(lids, state.join("guid2lid")).expect("OpenSM has kept its LIDs");
    let socket = sandbox.socket();
    let mut args = vec!["--transport", "ibsim", "--socket", socket, "--node", MANAGER];
    let state = state.to_str().expect("UTF-8");
    args.extend(["--publish", &publish, "--state-dir", state, "-P", partitions]);
    let ibsm = sandbox.ours("ibsm", "ibsm", &args);
    ibsm.wait_for("SUBNET UP");
    let url = format!("http://{publish}");
    let udp = ["--sm", &url, "--transport", "udp", "--listen", "127.0.0.1:0"];
    let ibsa = sandbox.ours("ibsa", "ibsa", &udp);
    ibsa.wait_for("serving generation");
    [ibsm, ibsa]
}

/// The output, split into records and sorted, without what varies: activity counts, the port by
/// which a switch was last queried; and the block of a P_Key table, which OpenSM sends in host byte
/// order (decision 7).
fn answers(sandbox: &Sandbox) -> Vec<Vec<String>> {
    let moves = |line: &&str| {
        !["ActCount", "LocalPort", "local_port", "Block..."].iter().any(|name| line.contains(name))
            && !line.contains("LocalPortNum")
            && !line.starts_with("ibwarn")
    };
    let ask = |query: &&str| {
        let argv: Vec<&str> = ["saquery"].into_iter().chain(query.split_whitespace()).collect();
        let output = sandbox.exec(CLIENT, &argv);
        let said = output.stdout + &output.stderr;
        let mut records = vec![format!("success: {}\n", output.success)];
        for line in said.lines().filter(moves) {
            if !line.starts_with(['\t', ' ']) {
                records.push(String::new());
            }
            let record = records.last_mut().expect("one was pushed");
            *record += line;
            record.push('\n');
        }
        records.sort();
        records
    };
    QUERIES.iter().map(ask).collect()
}

#[test]
fn saquery_prints_the_same_records() {
    if !can_interoperate(&["opensm", "saquery"]) {
        return;
    }
    let net = PathBuf::from(NET_EXAMPLES).join(NET);
    let (theirs, ours) = (Sandbox::new("saquery-opensm"), Sandbox::new("saquery-ours"));
    let [_fabric, _other] = [&theirs, &ours].map(|sandbox| sandbox.ibfabric(&net));
    let partitions = theirs.path("partitions.conf");
    fs::write(&partitions, PARTITIONS).expect("the file is written");
    let partitions = partitions.to_str().expect("UTF-8");
    let _opensm = start_opensm(&theirs, partitions);
    let _ours = start_ours(&ours, partitions, &theirs.path("guid2lid"));
    for ((query, theirs), ours) in QUERIES.iter().zip(answers(&theirs)).zip(answers(&ours)) {
        assert_eq!(ours, theirs, "saquery {query}");
    }
}

//! Stock `osmtest` against stock OpenSM as control, then against us, on the same fabric: no flow
//! may do worse, and none may report an error that it does not report with OpenSM. Flow `f` floods;
//! it is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use benches::sandbox::{NET_EXAMPLES, PATIENCE, Program, Sandbox, can_interoperate, free_address};

const NET: &str = "net.2sw2path4hca";
const MANAGER: &str = "Hca1";
const CLIENT: &str = "Hca2";

/// Flows in the order in which they are run: `c` writes the inventory that `v` and `a` compare.
const FLOWS: [&str; 7] = ["c", "v", "s", "m", "e", "q", "a"];

/// The subnet manager.
#[derive(Clone, Copy)]
enum Manager {
    OpenSm,
    Ours,
}

/// The simulator.
#[derive(Clone, Copy)]
enum Simulator {
    Ibfabric,
    Ibsim,
}

/// The result of a flow: whether it passed, and the errors it logged, without times and threads.
#[derive(Debug, PartialEq)]
struct Outcome {
    passed: bool,
    errors: Vec<String>,
}

fn start(sandbox: &Sandbox, manager: Manager) -> Vec<Program> {
    match manager {
        Manager::OpenSm => {
            let log = sandbox.path("opensm-messages.log");
            let argv = ["opensm", "-s", "0", "-f", log.to_str().expect("UTF-8"), "-d", "2"];
            let opensm = sandbox.exec_program("opensm", MANAGER, &argv);
            let deadline = Instant::now() + PATIENCE;
            while !fs::read_to_string(&log).unwrap_or_default().contains("SUBNET UP") {
                assert!(Instant::now() < deadline, "OpenSM brings the fabric up");
                std::thread::sleep(Duration::from_millis(20));
            }
            vec![opensm]
        }
        Manager::Ours => {
            let publish = free_address().to_string();
            let state = sandbox.path("state");
            let ibsm = sandbox.ours(
                "ibsm",
                "ibsm",
                &[
                    "--transport",
                    "ibsim",
                    "--socket",
                    sandbox.socket(),
                    "--node",
                    MANAGER,
                    "--publish",
                    &publish,
                    "--state-dir",
                    state.to_str().expect("UTF-8"),
                ],
            );
            ibsm.wait_for("SUBNET UP");
            let url = format!("http://{publish}");
            let udp = ["--sm", &url, "--transport", "udp", "--listen", "127.0.0.1:0"];
            let ibsa = sandbox.ours("ibsa", "ibsa", &udp);
            ibsa.wait_for("serving generation");
            vec![ibsm, ibsa]
        }
    }
}

fn run(sandbox: &Sandbox, flow: &str) -> Outcome {
    let log = sandbox.path(&format!("osmtest-{flow}.log"));
    let inventory = sandbox.path("osmtest.dat");
    let argv = [
        "osmtest",
        "-f",
        flow,
        "-i",
        inventory.to_str().expect("UTF-8"),
        "-l",
        log.to_str().expect("UTF-8"),
        "-m",
        "0x40",
    ];
    let output = sandbox.exec(CLIENT, &argv);
    let said = fs::read(&log).unwrap_or_default();
    let errors = String::from_utf8_lossy(&said)
        .lines()
        .filter(|line| line.contains("ERR "))
        .filter_map(|line| line.split_once(" -> "))
        .map(|(_, message)| message.to_owned())
        .collect();
    let said = output.stdout + &output.stderr;
    let passed = output.success && said.contains("PASS") && !said.contains("FAIL");
    Outcome { passed, errors }
}

fn outcomes(simulator: Simulator, manager: Manager) -> Vec<Outcome> {
    let sandbox = Sandbox::new("osmtest");
    let net = PathBuf::from(NET_EXAMPLES).join(NET);
    let _fabric = match simulator {
        Simulator::Ibfabric => sandbox.ibfabric(&net),
        Simulator::Ibsim => sandbox.ibsim(&net),
    };
    let _programs = start(&sandbox, manager);
    FLOWS.iter().map(|flow| run(&sandbox, flow)).collect()
}

fn no_flow_does_worse(simulator: Simulator) {
    if !can_interoperate(&["ibsim", "opensm", "osmtest"]) {
        return;
    }
    let (theirs, ours) = std::thread::scope(|scope| {
        let control = scope.spawn(|| outcomes(simulator, Manager::OpenSm));
        let ours = outcomes(simulator, Manager::Ours);
        (control.join().expect("the control runs"), ours)
    });
    for ((flow, theirs), ours) in FLOWS.iter().zip(&theirs).zip(&ours) {
        assert!(theirs.passed, "flow {flow} fails against OpenSM: {theirs:#?}");
        assert!(ours.passed, "flow {flow} fails against us: {ours:#?}");
        let status = |outcome: &Outcome| match *flow {
            // The number of queries that find no service depends on when leases expire, and so on
            // waits for the CPU in between.
            "s" | "a" => {
                outcome.errors.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect()
            }
            _ => outcome.errors.clone(),
        };
        assert_eq!(status(ours), status(theirs), "flow {flow}");
    }
}

#[test]
fn osmtest_does_no_worse_on_ibfabric() {
    no_flow_does_worse(Simulator::Ibfabric);
}

#[test]
fn osmtest_does_no_worse_on_ibsim() {
    no_flow_does_worse(Simulator::Ibsim);
}

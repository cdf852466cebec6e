//! `ibsm` on a port of a host, as at a real site: the kernel's umad file for QP0 and QP1, the issm
//! file, and sysfs, all simulated by the library of `ibfabric exec`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use benches::sandbox::{
    NET_EXAMPLES, PATIENCE, Program, Sandbox, binary, can_interoperate, free_address,
};

const NET: &str = "net.2sw2path4hca";
const MANAGER: &str = "Hca1";
const STANDBY: &str = "Hca3";
const CLIENT: &str = "Hca2";

/// A manager at `node`, and the address of its feed.
fn manager(sandbox: &Sandbox, node: &str, more: &[&str]) -> (Program, String) {
    let publish = free_address().to_string();
    let state = sandbox.path(&format!("state-{node}"));
    let (ibsm, state) = (binary("ibsm"), state.to_str().expect("UTF-8").to_owned());
    let ibsm = ibsm.to_str().expect("UTF-8");
    let mut argv = vec![ibsm, "--transport", "umad", "--publish", &publish, "--state-dir", &state];
    argv.extend(more);
    (sandbox.exec_program(&format!("ibsm-{node}"), node, &argv), format!("http://{publish}"))
}

fn responder(sandbox: &Sandbox, sm: &str) -> Program {
    let udp = ["--sm", sm, "--transport", "udp", "--listen", "127.0.0.1:0"];
    let ibsa = sandbox.ours("ibsa", "ibsa", &udp);
    ibsa.wait_for("serving generation");
    ibsa
}

/// Repeats the query until the answer contains all of `texts`; returns that answer.
fn ask_until(sandbox: &Sandbox, argv: &[&str], texts: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = sandbox.exec(CLIENT, argv);
        let whole = said.stdout + &said.stderr;
        if texts.iter().all(|text| whole.contains(text)) {
            return whole;
        }
        assert!(Instant::now() < deadline, "{argv:?} did not print {texts:?}:\n{whole}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_subnet_is_managed_from_a_port_of_this_host() {
    if !can_interoperate(&["saquery", "sminfo"]) {
        return;
    }
    let net = PathBuf::from(NET_EXAMPLES).join(NET);
    let sandbox = Sandbox::new("umad");
    let _fabric = sandbox.ibfabric(&net);
    let (mut ibsm, sm) = manager(&sandbox, MANAGER, &["-t", "100"]);
    ibsm.wait_for("at ibsim0 port 1 (umad0)");
    assert!(ibsm.wait_for("SUBNET UP").contains("4 hosts"), "all of it is found");
    let _ibsa = responder(&sandbox, &sm);
    // Through QP1 of the manager's port: an answer of several packets, and a path.
    ask_until(&sandbox, &["saquery", "NR"], &["Hca1", "Hca2", "Hca3", "Hca4"]);
    ask_until(&sandbox, &["saquery", "--slid", "1", "--dlid", "2", "PR"], &["dlid"]);
    ask_until(&sandbox, &["sminfo"], &["SMINFO_MASTER"]);

    // A second manager finds the first, and takes over when it ends.
    let settings = sandbox.path("opensm.conf");
    let polls = "sminfo_polling_timeout 200\npolling_retry_number 2\n";
    fs::write(&settings, polls).expect("the file is written");
    let settings = settings.to_str().expect("UTF-8");
    let (standby, _) = manager(&sandbox, STANDBY, &["-t", "100", "-F", settings]);
    standby.wait_for("standing by: the subnet manager at CA 'Hca1'");
    ibsm.kill_and_wait();
    assert!(standby.wait_for("SUBNET UP").contains("4 hosts"), "all of it is kept");
    ask_until(&sandbox, &["sminfo"], &["SMINFO_MASTER"]);
}

#[test]
fn a_manager_at_a_host_port_works_on_stock_ibsim() {
    if !can_interoperate(&["ibsim", "smpquery"]) {
        return;
    }
    let sandbox = Sandbox::new("umad-ibsim");
    let _fabric = sandbox.ibsim(&PathBuf::from(NET_EXAMPLES).join(NET));
    let (ibsm, _) = manager(&sandbox, MANAGER, &["-t", "100"]);
    assert!(ibsm.wait_for("SUBNET UP").contains("4 hosts"), "all of it is found");
    ask_until(
        &sandbox,
        &["smpquery", "portinfo", "-D", "0"],
        &["LinkState:.......................Active"],
    );
}

#[test]
fn a_host_without_ports_is_reported() {
    if Path::new("/sys/class/infiniband_mad").exists() {
        eprintln!("skipped: this host has umad devices");
        return;
    }
    let sandbox = Sandbox::new("umad-none");
    let state = sandbox.path("state");
    let state = state.to_str().expect("UTF-8");
    let args = ["--transport", "umad", "--publish", "127.0.0.1:0", "--state-dir", state];
    let (status, said) = sandbox.ours("ibsm", "ibsm", &args).wait();
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("this host has no umad devices: load the driver"), "{said}");
}

//! `ibsm --dry-run` beside a master, `ibsm` or stock `opensm`. Stock `ibsim` does not keep all that
//! is set, so that the fabric is ours.

use std::process::Output;

use serde_json::Value;

use crate::ibsim::{Bed, example, find};
use crate::interop_opensm::{Running, dir_of, opensm};
use crate::skip::skip;

/// A dry run on a node, with a state directory that does not exist.
fn dry_run(bed: &Bed, node: &str, more: &[&str]) -> Output {
    let mut ibsm = bed.command(env!("CARGO_BIN_EXE_ibsm"));
    let state = bed.dir.path().join("no-state");
    ibsm.args(["-o", "--dry-run", "--transport", "ibsim", "--node", node, "--state-dir"]);
    let output = ibsm.arg(&state).args(more).env_remove("RUST_LOG").output().unwrap();
    assert!(!state.exists(), "a dry run wrote to the state directory");
    output
}

fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{out}{err}")
}

#[test]
fn beside_a_master_a_dry_run_says_what_it_would_change() {
    let Some(mut bed) = Bed::on_ibfabric(&example("net.2sw2path4hca2port")) else { return };
    let ibsm = Running(bed.manage("Hca1", &[]));
    let info = || bed.tool("Hca2", &["sminfo"]);
    let master = info().split("activity").next().unwrap().to_owned();
    let topology = || {
        let printed = bed.tool("Hca2", &["ibnetdiscover"]);
        let undated =
            printed.lines().filter(|line| !line.starts_with("# Topology file: generated on"));
        undated.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = topology();

    let same = dry_run(&bed, "Hca1", &[]);
    assert_eq!(same.status.code(), Some(0), "{}", text(&same));
    assert!(text(&same).contains("\nNo changes.\n"), "{}", text(&same));

    let other = dry_run(&bed, "Hca2", &["--json", "-F", "/dev/null", "-p", "15"]);
    assert_eq!(other.status.code(), Some(0), "{}", text(&other));
    let json: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!((&json["complete"], &json["changes"]), (&true.into(), &Value::Array(vec![])));
    assert!(json["ports_of_another_master"].as_u64().unwrap() > 0, "{json}");

    let config = bed.dir.path().join("other.conf");
    std::fs::write(&config, "subnet_timeout 20\n").unwrap();
    let changed = dry_run(&bed, "Hca1", &["-F", config.to_str().unwrap()]);
    assert_eq!(changed.status.code(), Some(3), "{}", text(&changed));
    assert!(text(&changed).contains("subnet_time_out 18 > 20"), "{}", text(&changed));

    assert!(info().starts_with(&master), "{} was {master}", info());
    assert_eq!(topology(), before);
    ibsm.end();
}

/// What an operator wants to know before moving from OpenSM.
#[test]
fn beside_opensm_a_dry_run_lists_the_differences() {
    if find("opensm").is_none() {
        return skip("opensm is not installed");
    }
    let Some(bed) = Bed::on_ibfabric(&example("net.2sw2path4hca2port")) else { return };
    let opensm = opensm(&bed, "Hca1", &[]);
    bed.await_line(&dir_of(&bed, "Hca1").join("opensm.log"), "SUBNET UP");
    let output = dry_run(&bed, "Hca1", &["--json", "-F", "/dev/null"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["complete"], true, "{json}");
    let count = json["changes"].as_array().unwrap().len();
    assert_eq!(output.status.code(), Some(if count == 0 { 0 } else { 3 }), "{json}");
    let moves = json["changes"].as_array().unwrap().iter().filter(|change| {
        change["fields"].as_array().unwrap().iter().any(|field| field["field"] == "base_lid")
    });
    assert_eq!(moves.count(), 0, "LIDs stay: {json}");
    opensm.end();
}

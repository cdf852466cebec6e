//! `--quarantine` with real programs: what is not in the baseline is kept out until it is.

use crate::support::{Subnet, ibsmctl};
use benches::sandbox::{PATIENCE, Program};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A host that is not there when the baseline is taken, and one that is.
const STRANGER: &str = "node00012 HCA-1";
const KNOWN: &str = "node00005 HCA-1";

fn await_output(subnet: &Subnet, words: &[&str], what: &str, is: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = ibsmctl(&subnet.url(), words);
        if is(&text) {
            return text;
        }
        assert!(Instant::now() < deadline, "not {what}: {text}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn has_node(subnet: &Subnet, name: &str) -> bool {
    ibsmctl(&subnet.url(), &["topology", "--ibnetdiscover"]).contains(name)
}

/// Seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn start(subnet: &Subnet) -> Program {
    let ibsm = subnet.ibsm(&["--quarantine"]);
    ibsm.wait_for("SUBNET UP");
    ibsm
}

#[test]
fn a_host_that_is_not_in_the_baseline_is_kept_out_until_it_is() {
    let subnet = Subnet::new("quarantine");
    subnet.control(&["node-down", STRANGER]);
    let mut ibsm = start(&subnet);
    let problems = ["problems"];
    await_output(&subnet, &problems, "without a baseline", |text| text.contains("is no baseline"));
    ibsmctl(&subnet.url(), &["baseline", "take"]);
    await_output(&subnet, &problems, "with one", |text| !text.contains("is no baseline"));
    subnet.control(&["node-up", STRANGER]);
    ibsm.wait_for("is not in the baseline; the link stays in Initialize");
    let listed = await_output(&subnet, &problems, "kept out", |text| text.contains("is kept out"));
    assert!(!has_node(&subnet, STRANGER), "{listed}");
    let is_shown = |text: &str| {
        text.lines().any(|line| line.starts_with("quarantined   ") && line.contains("kept out"))
    };
    let shown = await_output(&subnet, &["diff"], "shown as quarantined", is_shown);
    assert!(!shown.contains("missing") && !shown.contains("extra node"), "{shown}");
    // One that belongs comes and goes as before.
    subnet.control(&["node-down", KNOWN]);
    await_output(&subnet, &problems, "gone", |_| !has_node(&subnet, KNOWN));
    subnet.control(&["node-up", KNOWN]);
    await_output(&subnet, &problems, "back", |_| has_node(&subnet, KNOWN));
    // It is kept out also by a manager that starts.
    ibsm.kill_and_wait();
    let ibsm = start(&subnet);
    await_output(&subnet, &problems, "kept out", |text| text.contains("is kept out"));
    assert!(!has_node(&subnet, STRANGER), "{}", ibsm.log());
    let kept_out = seconds();
    ibsmctl(&subnet.url(), &["baseline", "clear"]);
    await_output(&subnet, &problems, "let in", |text| {
        has_node(&subnet, STRANGER) && !text.contains("and is kept out")
    });
    let let_in = await_output(&subnet, &["diff", &format!("@{kept_out}")], "let in", |text| {
        text.lines().any(|line| line.starts_with("let in        ") && line.contains("kept out"))
    });
    assert!(let_in.contains(&format!("extra node    '{STRANGER}'")), "{let_in}");
    ibsmctl(&subnet.url(), &["baseline", "take"]);
    await_output(&subnet, &problems, "no problem", |text| {
        !text.contains("kept out") && has_node(&subnet, STRANGER)
    });
}

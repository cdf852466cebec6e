//! Two managers on one host, each for its own subnet (rail). Neither affects the other.

use std::fs;
use std::process::Command;

use benches::sandbox::{Program, Sandbox, binary, free_address};
use serde_json::Value;

/// A subnet, and the programs for it on a host with a port in it.
struct Rail {
    sandbox: Sandbox,
    prefix: &'static str,
    publish: String,
    front_door: String,
    _fabric: Program,
}

impl Rail {
    fn new(name: &str, hosts: &str, prefix: &'static str) -> Self {
        let sandbox = Sandbox::new(name);
        let net = sandbox.path("rail.net");
        let status = Command::new(binary("ibfabric"))
            .args([
                "generate", "fat-tree", "--levels", "2", "--radix", "16", "--hosts", hosts, "-o",
            ])
            .arg(&net)
            .status()
            .expect("ibfabric runs");
        assert!(status.success());
        let fabric = sandbox.ibfabric(&net);
        let [publish, front_door] = [(); 2].map(|()| free_address().to_string());
        Self { sandbox, prefix, publish, front_door, _fabric: fabric }
    }

    fn state(&self) -> String {
        self.sandbox.path("state").to_str().expect("UTF-8").to_owned()
    }

    /// Its manager, with this directory and these addresses.
    fn ibsm(&self, state: &str, publish: &str, front_door: &str) -> Program {
        let config = self.sandbox.path("opensm.conf");
        fs::write(&config, format!("subnet_prefix {}\n", self.prefix)).expect("a writable place");
        let args = [
            "--transport",
            "ibsim",
            "--socket",
            self.sandbox.socket(),
            "--node",
            "node00001 HCA-1",
            "-F",
            config.to_str().expect("UTF-8"),
            "--publish",
            publish,
            "--front-door",
            front_door,
            "--state-dir",
            state,
        ];
        self.sandbox.ours("ibsm", "ibsm", &args)
    }

    fn manager(&self) -> Program {
        self.ibsm(&self.state(), &self.publish, &self.front_door)
    }

    fn url(&self) -> String {
        format!("http://{}", self.publish)
    }

    fn responder(&self) -> Program {
        let (url, cache) = (self.url(), self.sandbox.path("cache"));
        let cache = cache.to_str().expect("UTF-8");
        let args = ["--sm", &url, "--name", self.prefix, "--cache-dir", cache];
        let args = [&args[..], &["--transport", "udp", "--listen", "127.0.0.1:0"]].concat();
        let ibsa = self.sandbox.ours("ibsa", "ibsa", &args);
        ibsa.wait_for("serving generation");
        ibsa
    }

    /// Queries of this rail's clients to their manager's port, in the background.
    fn storm(&self, seconds: &str) -> Program {
        let url = self.url();
        let args = [
            "--transport",
            "ibsim",
            "--socket",
            self.sandbox.socket(),
            "--node",
            "node00002 HCA-1",
            "--sm",
            &url,
            "--rate",
            "300",
            "--duration",
            seconds,
            "--json",
        ];
        self.sandbox.ours("ibstorm", "ibstorm", &args)
    }

    fn lids(&self) -> String {
        fs::read_to_string(self.sandbox.path("state/guid2lid")).expect("LIDs are kept")
    }
}

/// Queries, and the number answered; no answer is wrong.
fn outcome(storm: Program) -> (u64, u64) {
    let (status, log) = storm.wait();
    assert!(status.success(), "answers were wrong:\n{log}");
    let start = log.find("\n{").map_or(0, |at| at + 1);
    let mut reports = serde_json::Deserializer::from_str(&log[start..]).into_iter();
    let report: Value = reports.next().expect("a report").expect("it is JSON");
    let count = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
    (count("queries"), count("answered"))
}

#[test]
fn each_rail_is_served_by_its_own_manager_whatever_becomes_of_the_other() {
    let first = Rail::new("rail-1", "16", "0xfe80000000000001");
    let second = Rail::new("rail-2", "24", "0xfe80000000000002");
    let (one, two) = (first.manager(), second.manager());
    assert!(one.wait_for("SUBNET UP").contains(" 16 hosts"), "{}", one.log());
    assert!(two.wait_for("SUBNET UP").contains(" 24 hosts"), "{}", two.log());
    let _responders = [first.responder(), second.responder()];

    // Paths of either rail have its prefix; ibstorm would report others as wrong.
    let storms = [first.storm("6s"), second.storm("6s")];
    storms[1].wait_for(" 1 s ");
    let lids = [first.lids(), second.lids()];
    assert_eq!(lids.each_ref().map(|lids| lids.lines().count() > 16), [true, true]);
    one.kill();
    let again = first.manager();
    again.wait_for("SUBNET UP");
    let [interrupted, other] = storms.map(outcome);
    assert!(interrupted.1 > 0, "{interrupted:?}");
    assert_eq!(other.0, other.1, "the other rail lost answers");
    assert_eq!([first.lids(), second.lids()], lids);
    let ups = two.log().lines().filter(|line| line.contains("SUBNET UP")).count();
    assert_eq!(ups, 1, "{}", two.log());
}

/// Resources that two instances cannot share are rejected, with an error that names them.
#[test]
fn what_two_instances_cannot_share_is_refused_by_name() {
    let first = Rail::new("rail-shared-1", "16", "0xfe80000000000001");
    let second = Rail::new("rail-shared-2", "16", "0xfe80000000000002");
    let one = first.manager();
    one.wait_for("SUBNET UP");
    for (state, publish, front_door, named) in [
        (first.state(), &second.publish, &second.front_door, first.state()),
        (second.state(), &first.publish, &second.front_door, first.publish.clone()),
        (second.state(), &second.publish, &first.front_door, first.front_door.clone()),
    ] {
        let (status, log) = second.ibsm(&state, publish, front_door).wait();
        assert!(!status.success() && log.contains(&named), "no {named} in:\n{log}");
    }
    let two = second.manager();
    two.wait_for("SUBNET UP");
}

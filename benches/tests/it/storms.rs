//! `ibstorm`'s models of clients against a real responder and its manager: every kind of request
//! that they send is answered correctly.

use crate::support::Subnet;
use benches::sandbox::{Program, free_address};
use serde_json::Value;

/// A fat tree of 16 hosts, its manager, and a responder that is queried directly.
struct Bed {
    subnet: Subnet,
    target: String,
    /// The responder's socket for shared memory.
    ring: String,
    _programs: [Program; 2],
}

impl Bed {
    fn new(name: &str) -> Self {
        let subnet = Subnet::new(name);
        let ibsm = subnet.ibsm(&[]);
        let (url, target) = (subnet.url(), free_address().to_string());
        let ring = subnet.sandbox.path("ring").to_str().expect("UTF-8").to_owned();
        let mut args = vec!["--sm", &url, "--name", "r1", "--transport", "udp"];
        args.extend(["--listen", &target, "--ring", &ring]);
        let ibsa = subnet.sandbox.ours("ibsa", "ibsa", &args);
        ibsa.wait_for("serving generation");
        Self { subnet, target, ring, _programs: [ibsm, ibsa] }
    }

    /// The report of a storm by profile over UDP, and its exit status.
    fn storm(&self, profile: &str, settings: &[&str]) -> (Value, bool) {
        self.storm_at(&["--target", &self.target], profile, settings)
    }

    /// The same of a storm at `target`.
    fn storm_at(&self, target: &[&str], profile: &str, settings: &[&str]) -> (Value, bool) {
        let url = self.subnet.url();
        let mut args = target.to_vec();
        args.extend(["--sm", &url, "--json", "--quiet", "--profile", profile]);
        settings.iter().for_each(|&setting| args.extend(["--set", setting]));
        let (status, log) = self.subnet.sandbox.ours("ibstorm", profile, &args).wait();
        let report = serde_json::from_str(&log).unwrap_or_else(|error| panic!("{error}: {log}"));
        (report, status.success())
    }

    /// The same, of a storm in which no error may occur.
    fn good_storm(&self, profile: &str, settings: &[&str]) -> Value {
        let (report, success) = self.storm(profile, settings);
        assert!(success, "{profile}: {report:#}");
        report
    }
}

/// How many milestones were expected, and how many were reached.
fn milestone(report: &Value, name: &str) -> (u64, u64) {
    let all = report["milestones"].as_array().expect("milestones");
    let found = all.iter().find(|milestone| milestone["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no '{name}' in {report:#}"));
    (found["expected"].as_u64().unwrap(), found["reached"].as_u64().unwrap())
}

#[test]
fn clients_of_every_kind_get_what_they_ask_for() {
    let bed = Bed::new("storms");

    // A slow machine must not make clients give up.
    let patient = ["retry.timeout=20s", "retry.deadline=100s", "duration=5m"];
    let with = |more: &[&'static str]| [&patient[..], more].concat();

    let report = bed.good_storm("linux-client", &with(&["queries=1000", "rate=5000"]));
    assert_eq!(report["resolved"], 1000, "{report:#}");

    let report = bed.good_storm("job-start", &["within=100ms", "peers=64"]);
    assert_eq!(milestone(&report, "paths resolved"), (16 * 15, 16 * 15));
    assert_eq!(milestone(&report, "ports with all their paths"), (16, 16));

    // Registrations go through the responder to the manager and back.
    let report = bed.good_storm("reboot", &["within=200ms", "stay=100ms", "services=2"]);
    assert_eq!(milestone(&report, "ports registered"), (16, 16));
    assert_eq!(milestone(&report, "ports gone"), (16, 16));
    for (kind, each) in [("join", 4), ("leave", 4), ("subscribe", 2), ("set-service", 2)] {
        assert_eq!(report["kinds"][kind]["resolved"], 16 * each, "{kind}: {report:#}");
    }

    let report = bed.good_storm("acm", &with(&["within=100ms"]));
    assert_eq!(milestone(&report, "ports in ibacm's group"), (16, 16));
    assert_eq!(milestone(&report, "paths resolved"), (16 * 15, 16 * 15));
    assert!(report["kinds"]["path-acm-lid"]["resolved"].as_u64() > Some(0));

    // A table of several segments each.
    let report = bed.good_storm("srp", &with(&["within=100ms", "ports=4"]));
    assert_eq!(milestone(&report, "searches done"), (4, 4));
    assert_eq!(report["kinds"]["table-nodes"]["resolved"], 4);
    assert!(report["kinds"]["port-info"]["resolved"].as_u64() > Some(60), "{report:#}");
    let report = bed.good_storm("srp", &with(&["within=100ms", "ports=4", "listing=auto"]));
    assert_eq!(report["kinds"]["table-targets"]["resolved"], 4, "{report:#}");

    // Malformed requests may be answered or not; the queries in between must succeed.
    let report = bed.good_storm("malformed", &with(&["queries=4000", "rate=5000"]));
    assert_eq!((&report["timed_out"], &report["wrong"]), (&0.into(), &serde_json::json!({})));
    let forms = report["malformed"].as_array().unwrap();
    assert_eq!(forms.len(), 13);
    for form in forms {
        let answered = form["answered"].as_object().unwrap().values();
        let answered: u64 = answered.map(|count| count.as_u64().unwrap()).sum();
        let known = form["silent"].as_u64().unwrap() + answered;
        assert_eq!(form["sent"].as_u64(), Some(known), "{form}");
    }

    let ramp = ["from=100", "to=200", "factor=2", "step=1s", "settle=100ms", "refine=0"];
    // Even a slow machine sustains this rate.
    let report = bed.good_storm("ramp", &[&ramp[..], &["p99=10s", "goodput=0.1"]].concat());
    let steps = report["ramp"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["finding"] == "kept"), "{report:#}");
}

/// Shared memory carries the same queries as datagrams, from several threads at a time, and more
/// than its queues hold.
#[test]
fn over_a_ring_clients_are_served_as_by_udp() {
    let bed = Bed::new("rings");
    let patient = ["retry.timeout=20s", "retry.deadline=100s", "duration=5m"];
    let target = ["--transport", "ring", "--target-ring", &bed.ring];
    let good = |more: &[&str], profile: &str, settings: &[&str]| {
        let (target, settings) = ([&target[..], more].concat(), [&patient[..], settings].concat());
        let (report, success) = bed.storm_at(&target, profile, &settings);
        assert!(success, "{profile}: {report:#}");
        report
    };
    let report = good(&["--threads", "2"], "linux-client", &["queries=20000", "rate=100000"]);
    assert_eq!((&report["resolved"], &report["wrong"]), (&20000.into(), &serde_json::json!({})));

    let report = good(&[], "reboot", &["within=200ms", "stay=100ms", "services=2"]);
    assert_eq!(milestone(&report, "ports registered"), (16, 16));
    assert_eq!(milestone(&report, "ports gone"), (16, 16));

    // Tables of several segments, and their acknowledgements.
    let report = good(&[], "srp", &["within=100ms", "ports=4"]);
    assert_eq!(milestone(&report, "searches done"), (4, 4));
    assert_eq!(report["kinds"]["table-nodes"]["resolved"], 4);
}

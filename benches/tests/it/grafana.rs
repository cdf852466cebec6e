//! The dashboard and the alerts in `docs/grafana/`, tested with a Prometheus that scrapes a real
//! subnet under load: every query of every panel must return data.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::Subnet;
use benches::sandbox::{PATIENCE, Program, can_interoperate_with, free_address};
use serde_json::Value;

/// The values of Grafana's intervals here.
const RATE_INTERVAL: &str = "10s";
/// Scrapes of each daemon before queries return data: a rate needs two.
const SCRAPES_MIN: f64 = 4.0;

#[test]
fn every_query_of_the_dashboard_and_every_alert_works_on_a_real_subnet() {
    if !can_interoperate_with("prometheus") || !can_interoperate_with("promtool") {
        return;
    }
    let subnet = Subnet::new("grafana");
    let sm = free_address().to_string();
    let _ibsm = subnet.ibsm(&["--http", &sm]);
    let (first, second) = (responder(&subnet, "r1"), responder(&subnet, "r2"));
    let prometheus = Prometheus::start(&subnet, &sm, &[&first.http, &second.http]);
    let (url, door, other) = (subnet.url(), &first.front_door, &second.front_door);
    // Less than the maximum load: Prometheus needs CPU time to see a rate.
    let load = ["--rate", "5000", "--duration", "30s"];
    let args = [&["--sm", &url, "--target", door, "--target", other], &load[..]].concat();
    let storm = subnet.sandbox.ours("ibstorm", "ibstorm", &args);
    prometheus.await_scrapes(3);

    let dashboard = read("ibsm.json");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
    prometheus.check_variables(&dashboard);
    let mut faults = String::new();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries += 1;
            let expr = substituted(target["expr"].as_str().expect("an expression"));
            if let Err(fault) = prometheus.check(&expr) {
                writeln!(faults, "{}: {expr}: {fault}", panel["title"]).unwrap();
            }
        }
    }
    assert!(faults.is_empty() && queries > 50, "{queries} queries\n{faults}");

    // Alerts must refer to existing metrics: one on a missing metric never fires.
    let served: BTreeSet<String> = [&sm, &first.http]
        .iter()
        .flat_map(|http| {
            crate::support::scrape::names(&crate::support::scrape::get(
                http,
                "/metrics",
                "text/plain",
            ))
        })
        .collect();
    let rules = prometheus.get("/api/v1/rules");
    let groups = rules["groups"].as_array().expect("groups of rules");
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")) {
        assert_ne!(rule["health"], "err", "{rule}");
        for name in metrics_of(rule["query"].as_str().expect("a query")) {
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(
                served.contains(family),
                "{} refers to {name}, which is not served",
                rule["name"]
            );
        }
    }
    drop(storm);
}

#[test]
fn alerts_fire_when_they_should_and_not_before() {
    if !can_interoperate_with("promtool") {
        return;
    }
    for words in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]] {
        let output = Command::new("promtool")
            .args(words)
            .current_dir(directory())
            .output()
            .expect("promtool runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

struct Responder {
    _program: Program,
    front_door: String,
    http: String,
}

fn responder(subnet: &Subnet, name: &str) -> Responder {
    let (url, http) = (subnet.url(), free_address().to_string());
    let mut args = vec!["--sm", &url, "--name", name, "--transport", "udp"];
    args.extend(["--listen", "127.0.0.1:0", "--http", &http]);
    let program = subnet.sandbox.ours("ibsa", name, &args);
    program.wait_for("serving generation");
    let log = program.wait_for("ready for queries");
    let (_, rest) = log.split_once("front_door=").expect("the line has its address");
    let front_door = rest.split_whitespace().next().expect("an address").to_owned();
    Responder { _program: program, front_door, http }
}

/// A Prometheus for this test.
struct Prometheus {
    _program: Program,
    address: String,
}

impl Prometheus {
    fn start(subnet: &Subnet, sm: &str, responders: &[&str]) -> Self {
        let address = free_address().to_string();
        let config = format!(
            "global: {{ scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 1s }}\n\
             rule_files: ['{}']\n\
             scrape_configs:\n\
             - {{ job_name: ibsm, static_configs: [{{ targets: ['{sm}'] }}] }}\n\
             - {{ job_name: ibsa, static_configs: [{{ targets: {responders:?} }}] }}\n",
            directory().join("alerts.yml").display()
        );
        let path = subnet.sandbox.path("prometheus.yml");
        fs::write(&path, config).expect("the configuration is written");
        let config = format!("--config.file={}", path.display());
        let storage = format!("--storage.tsdb.path={}", subnet.sandbox.path("tsdb").display());
        let listen = format!("--web.listen-address={address}");
        let argv = ["prometheus", &config, &storage, &listen];
        let program = subnet.sandbox.program("prometheus", &argv);
        program.wait_for("Server is ready to receive web requests");
        Self { _program: program, address }
    }

    /// The answer of the API; panics if it is an error.
    fn get(&self, path: &str) -> Value {
        self.ask(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn ask(&self, path: &str) -> Result<Value, String> {
        let body = crate::support::scrape::try_get(&self.address, path, "application/json")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"].clone()),
            _ => Err(body),
        }
    }

    /// Waits until `targets` have been scraped a few times, and queries have arrived.
    fn await_scrapes(&self, targets: usize) {
        let deadline = Instant::now() + PATIENCE;
        let ready = |expr: &str, count: usize| {
            let answer = self.get(&format!("/api/v1/query?query={}", escaped(expr)));
            answer["result"].as_array().is_some_and(|series| series.len() >= count)
        };
        let scraped = format!("sum_over_time(up[1m]) >= {SCRAPES_MIN}");
        let asked = "rate(ibsa_responses_total[10s]) > 0";
        while !ready(&scraped, targets) || !ready(asked, targets - 1) {
            assert!(Instant::now() < deadline, "{}", self.get("/api/v1/targets"));
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    /// Whether a query returns data, at an instant and over a range.
    fn check(&self, expr: &str) -> Result<(), String> {
        let query = escaped(expr);
        let now = self.get("/api/v1/query?query=time()")["result"][0].as_f64().expect("a time");
        let range = format!("&start={}&end={now}&step=1", now - 2.0);
        for path in [
            format!("/api/v1/query?query={query}"),
            format!("/api/v1/query_range?query={query}{range}"),
        ] {
            let answer = self.ask(&path)?;
            if answer["result"].as_array().is_none_or(Vec::is_empty) {
                return Err(format!("nothing at {path}"));
            }
        }
        Ok(())
    }

    /// Every variable of the dashboard has values.
    fn check_variables(&self, dashboard: &Value) {
        let variables = dashboard["templating"]["list"].as_array().expect("variables");
        for variable in variables.iter().filter(|variable| variable["type"] == "query") {
            let query = variable["query"]["query"].as_str().expect("a query");
            let (metric, label) = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')')?.split_once(", "))
                .unwrap_or_else(|| panic!("unsupported query: {query}"));
            let values = self.get(&format!("/api/v1/label/{label}/values?match[]={metric}"));
            assert!(values.as_array().is_some_and(|values| !values.is_empty()), "{query}");
        }
    }
}

/// An expression as Grafana sends it when all values are selected.
fn substituted(expr: &str) -> String {
    let expr = expr.replace("$__rate_interval", RATE_INTERVAL).replace("$responder", ".*");
    assert!(!expr.contains('$'), "another variable: {expr}");
    expr
}

/// Names of our metrics in an expression.
fn metrics_of(expr: &str) -> impl Iterator<Item = &str> {
    let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ibsa_") || word.starts_with("ibsm_"))
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => escaped.push(byte.into()),
            _ => write!(escaped, "%{byte:02X}").unwrap(),
        }
    }
    escaped
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana")
}

fn read(name: &str) -> String {
    let path = directory().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

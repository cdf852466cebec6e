//! What the loop knows, as metrics: read once in a while, told until the next time.

use std::collections::BTreeMap;

use ib_mad::wire::attribute::SmState;
use sa_proto::snapshot::Version;

use super::Service;
use crate::runtime::metrics::{Metric, Value};
use crate::smp::{Kind, Passed};
use crate::sweep::Phase;

impl Service {
    /// All metrics but times that are recorded one by one.
    pub(super) fn collect(&self) -> Vec<Metric> {
        let mut metrics = self.measure_fabric();
        metrics.extend(self.measure_smps());
        metrics.extend(self.measure_front_door());
        metrics.extend(self.measure_responders());
        metrics.extend(self.registry.metrics());
        metrics
    }

    fn measure_fabric(&self) -> Vec<Metric> {
        let (counter, gauge) = (Metric::counter, Metric::gauge);
        let (hosts, switches) = self.sweeper.fabric().counts();
        let last = &self.sweeps.last;
        let is = |state| f64::from(u8::from(state));
        let sweeps = |kind: &str, count| {
            counter("sweeps", "Sweeps ended; light ones that saw no change go no further", count)
                .with("kind", kind)
        };
        vec![
            gauge(
                "up",
                "1 once a sweep as master has programmed the fabric",
                is(self.sweeper.is_up()),
            ),
            gauge(
                "master",
                "1 on the subnet manager that rules: there is one in a subnet",
                is(self.sweeper.sm_state() == SmState::Master),
            ),
            gauge(
                "credit_loops",
                "1 if traffic can deadlock by the routing in force",
                is(!self.sweeper.is_loop_free()),
            ),
            gauge(
                "multicast_credit_loops",
                "Multicast trees whose packets can wait for others in a circle",
                self.sweeper.multicast_loops() as f64,
            ),
            gauge("switches", "Switches present", switches as f64),
            gauge("hosts", "Channel adapters and routers present", hosts as f64),
            gauge("links", "Links, as of the last sweep", last.links as f64),
            gauge(
                "duplicate_guids",
                "GUIDs that are there twice; nobody can tell such nodes apart",
                last.duplicate_guids as f64,
            ),
            gauge(
                "pkeys_left_out",
                "P_Keys that found no place in tables of ports",
                last.pkeys_left_out as f64,
            ),
            gauge(
                "unchecked_ports",
                "Switch ports that check no P_Keys, since they have no room for all",
                last.unchecked_ports as f64,
            ),
            gauge(
                "foreign_sms",
                "Subnet managers that show another SM_Key, and are left out of the election",
                self.sweeper.foreign_sms().count() as f64,
            ),
            counter(
                "foreign_sm_answers",
                "Answers of subnet managers that showed another SM_Key",
                self.sweeper.foreign_answers(),
            ),
            gauge("sharded_ports", "Ports told to ask a responder", self.sweeper.sharded() as f64),
            gauge(
                "clients_to_reregister",
                "Ports that a new master has yet to ask to register again",
                self.sweeper.clients_to_ask() as f64,
            ),
            gauge(
                "switches_avoided",
                "Switches that routes avoid, since they do not take their forwarding tables",
                self.sweeper.avoided_switches() as f64,
            ),
            gauge(
                "links_avoided",
                "Links between switches that routes avoid, since they are slower or narrower than their ends can be",
                self.sweeper.throttled_links() as f64,
            ),
            gauge(
                "session_refused",
                "1 while no session can begin, since its epoch cannot be kept in the state directory: \
                 responders are told nothing",
                is(self.publication.session().is_refused()),
            ),
            counter(
                "session_failures",
                "Attempts to begin a session that failed",
                self.publication.session().failures(),
            ),
            gauge(
                "state_files_behind",
                "Files of the state directory that could not be written; they are tried again",
                self.files.warnings().count() as f64,
            ),
            counter("policy_errors", "Policy files refused", self.site.refused().total()),
            gauge(
                "policy_stale",
                "Policy files whose last reading was refused: what held before stays in force",
                self.site.refused().count() as f64,
            ),
            sweeps("light", self.sweeper.light_sweeps().count()),
            sweeps("partial", self.sweeps.partial),
            sweeps("full", self.sweeps.full),
            counter(
                "sweep_errors",
                "Things that sweeps could not find out or set; the log names the first of each",
                self.sweeps.errors,
            ),
            gauge(
                "sweeps_failed_in_a_row",
                "Sweeps with errors since the last without",
                f64::from(self.sweeps.failed_in_a_row),
            ),
            counter(
                "traps_dropped",
                "Traps that subscribers did not hear of, since too many came at once",
                self.sweeper.traps_dropped(),
            ),
            gauge(
                "sweep_last_duration_seconds",
                "Duration of the last sweep that configured the fabric",
                last.duration().as_secs_f64(),
            ),
            gauge(
                "routing_last_duration_seconds",
                "Time of the routing engine in that sweep, 0 if nothing had to be routed",
                last.phase(Phase::Route).as_secs_f64(),
            ),
        ]
    }

    fn measure_smps(&self) -> Vec<Metric> {
        let mut by_name: BTreeMap<(&str, &str), Passed> = BTreeMap::new();
        for &kind in Kind::ALL {
            let passed = self.sweeper.passed(kind);
            let sum = by_name.entry((kind.attribute(), kind.method())).or_default();
            sum.sent += passed.sent;
            sum.repeated += passed.repeated;
            sum.answered += passed.answered;
            sum.given_up += passed.given_up;
        }
        type Of = fn(&Passed) -> u64;
        let families: [(&str, &str, Of); 4] = [
            ("smps_sent", "SMPs sent, repeats included", |passed| passed.sent),
            ("smps_repeated", "SMPs sent again: no answer in time", |passed| passed.repeated),
            ("smps_answered", "SMPs answered", |passed| passed.answered),
            ("smps_timed_out", "SMPs given up after the last repeat", |passed| passed.given_up),
        ];
        let mut metrics: Vec<_> = families
            .iter()
            .flat_map(|&(name, help, of)| {
                by_name.iter().map(move |(&(attribute, method), passed)| {
                    Metric::counter(name, help, of(passed))
                        .with("attribute", attribute)
                        .with("method", method)
                })
            })
            .collect();
        let unmatched = self.sweeper.counters().unmatched;
        metrics.push(Metric::counter(
            "smps_unmatched",
            "Answers that nobody waited for: late ones, after a repeat or the time-out",
            unmatched,
        ));
        let lost = |reason: &str, count| {
            let help = "Packets that did not reach the fabric, by why; whoever waits asks again";
            Metric::counter("fabric_packets_dropped", help, count).with("reason", reason)
        };
        metrics.push(lost("overflow", self.answers.dropped()));
        metrics.push(lost("detached", self.fabric.lost()));
        let outstanding = self.sweeper.outstanding() as f64;
        metrics.push(Metric::gauge("smps_outstanding", "SMPs waiting or on the wire", outstanding));
        metrics
    }

    fn measure_front_door(&self) -> Vec<Metric> {
        let (counter, gauge) = (Metric::counter, Metric::gauge);
        let (door, malformed) = (self.door.counters(), self.door.malformed());
        let dropped = |reason: &str, count| {
            let help = "Packets dropped at the front door, by why; clients ask again";
            counter("front_door_dropped", help, count).with("reason", reason)
        };
        let datagrams = |wrong: &str, count| {
            let help = "Datagrams from responders' side that are no packets";
            counter("front_door_malformed", help, count).with("wrong", wrong)
        };
        vec![
            counter("front_door_requests", "Queries passed to responders", door.requests),
            counter("front_door_answers", "Answers passed to clients", door.answers),
            counter(
                "front_door_direct",
                "Queries passed on to be answered from the responder's own port",
                door.direct,
            ),
            counter(
                "front_door_redirected",
                "Requests answered by whom to ask instead",
                door.redirected,
            ),
            counter(
                "front_door_advertised",
                "ClassPortInfo answers that named a responder",
                door.advertised,
            ),
            dropped("no_responder", door.no_responder),
            dropped("other_class", door.other_class),
            dropped("unregistered", door.unregistered),
            dropped("not_master", door.not_master),
            dropped("overflow", door.overflow),
            counter(
                "front_door_undelivered",
                "Answers the fabric returned: nobody is at their LID any more",
                door.undelivered,
            ),
            datagrams("length", malformed.length),
            datagrams("envelope", malformed.envelope),
            gauge("front_door_pins", "Transfers remembered", self.door.pins() as f64),
        ]
    }

    /// Responders that are connected, and how far each is behind what is published.
    fn measure_responders(&self) -> Vec<Metric> {
        let gauge = Metric::gauge;
        let published = self.publisher.version();
        let generation = |plane: &str, number: u64| {
            let help = "What is published: sweeps that changed something, and writes registered";
            gauge("snapshot_generation", help, number as f64).with("plane", plane)
        };
        let mut metrics = vec![
            generation("fabric", published.fabric_generation),
            generation("registry", published.registry_sequence),
        ];
        let responders = self.publisher.responders();
        let responders = responders.load();
        let serving: Vec<_> = responders.iter().filter(|entry| !entry.is_client()).collect();
        metrics.push(gauge(
            "responders",
            "Responders connected; without one, nobody answers queries",
            serving.len() as f64,
        ));
        let mut named = BTreeMap::new();
        for entry in serving {
            // Nothing keeps two from having one name.
            let name = match named.contains_key(&*entry.name) {
                false => entry.name.to_string(),
                true => format!("{} {:x}", entry.name, entry.id),
            };
            let held = entry.serving.filter(|held| held.session == published.session);
            let held = held.unwrap_or(Version::NONE);
            let fabric = published.fabric_generation.saturating_sub(held.fabric_generation);
            let registry = published.registry_sequence.saturating_sub(held.registry_sequence);
            named.insert(name, (fabric, registry));
        }
        for (name, (fabric, registry)) in named {
            for (plane, lag) in [("fabric", fabric), ("registry", registry)] {
                let help = "Generations that a responder is behind; all, if it follows another SM";
                let lag = gauge("responder_lag_generations", help, lag as f64);
                metrics.push(lag.with("responder", &*name).with("plane", plane));
            }
        }
        let feed = self.publisher.counters().into_iter();
        metrics.extend(feed.map(|(name, help, count)| Metric::counter(name, help, count)));
        metrics
    }
}

/// Totals for `ibsmctl status`: those that differ in labels are added up.
pub(super) fn totals(metrics: &[Metric]) -> Vec<(String, u64)> {
    let mut totals: Vec<(String, u64)> = Vec::new();
    for metric in metrics {
        let value = match metric.value {
            Value::Counter(value) => value,
            // How much is registered is what operators ask first.
            Value::Gauge(value) if metric.name.starts_with("registry_") => value as u64,
            Value::Gauge(_) => continue,
        };
        match totals.last_mut() {
            Some((name, total)) if name == metric.name => *total += value,
            _ => totals.push((metric.name.to_owned(), value)),
        }
    }
    totals
}

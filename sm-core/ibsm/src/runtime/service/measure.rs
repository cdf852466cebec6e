//! Metrics of the service loop, collected at intervals.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::SmState;
use sa_proto::log_limit;
use sa_proto::snapshot::Version;

use super::Service;
use crate::front_door::PortService;
use crate::http::Totals;
use crate::observe::SweepKind;
use crate::observe::problem::Kind;
use crate::runtime::metrics::{Metric, Value};
use crate::runtime::store::etcd::Holder;
use sm_core::smp::{Kind as SmpKind, Passed};
use sm_core::sweep::{Phase, SaGuid};

impl Service {
    /// All metrics but times that are recorded one by one.
    pub(super) fn collect(&self) -> Vec<Metric> {
        let mut metrics = self.measure_fabric();
        metrics.extend(self.measure_problems());
        metrics.extend(self.measure_smps());
        metrics.extend(self.measure_front_door());
        metrics.extend(self.measure_sa_port());
        metrics.extend(self.measure_responders());
        metrics.extend(self.measure_succession());
        metrics.extend(self.measure_capture());
        metrics.extend(self.turns.metrics());
        metrics.extend(self.registry.metrics());
        metrics.extend(self.measure_store());
        metrics.extend(self.measure_http());
        metrics.extend(self.measure_events());
        metrics.extend(self.measure_congestion());
        metrics
    }

    /// The list of problems, by kind.
    fn measure_problems(&self) -> Vec<Metric> {
        let problems = self.publisher.problems();
        let of_kind = |&kind: &Kind| {
            let help = "Problems now, by kind; ibsmctl problems lists them with what to do";
            Metric::gauge("problems", help, problems.count(kind) as f64)
                .with("kind", kind.label())
                .with("severity", kind.severity().name())
        };
        Kind::ALL.iter().map(of_kind).collect()
    }

    /// Congestion control, while it is on.
    fn measure_congestion(&self) -> Vec<Metric> {
        let status = self.publisher.congestion().with(|manager| manager.status());
        let Some(status) = status.filter(|status| status.is_active) else { return Vec::new() };
        let agents = [
            ("ready", status.ready),
            ("unsupported", status.unsupported),
            ("silent", status.silent),
            ("key_refused", status.key_refused),
            ("setting_refused", status.setting_refused),
        ];
        let agents = agents.map(|(state, count)| {
            let help = "Switches and ports of adapters by how far congestion control is set up";
            Metric::gauge("congestion_agents", help, count as f64).with("state", state)
        });
        let events = [("switch", status.marked), ("adapter", status.slowed)].map(|(by, count)| {
            let help = "Events in logs of congestion: packets that switches marked, and queue \
                        pairs of adapters that reached the threshold";
            Metric::counter("congestion_events", help, count).with("by", by)
        });
        let requests = [
            ("sent", status.sent),
            ("retried", status.retried),
            ("written", status.written),
            ("expired", status.expired),
            ("refused", status.refused),
        ];
        let requests = requests.map(|(what, count)| {
            let help = "Requests of congestion control: sent (repeats included), repeats, those \
                        that write, without an answer, answered with an error";
            Metric::counter("congestion_requests", help, count).with("what", what)
        });
        let took = Metric::gauge(
            "congestion_last_cycle_seconds",
            "Duration of the last cycle over all agents",
            status.last_cycle.as_secs_f64(),
        );
        let unfit = Metric::counter(
            "congestion_logs_unfit",
            "Logs of congestion of another kind of node than their agent, and ports in them that \
             the switch does not have",
            status.unfit,
        );
        agents.into_iter().chain(events).chain(requests).chain([took, unfit]).collect()
    }

    /// Events, the history and the event plug-in.
    fn measure_events(&self) -> Vec<Metric> {
        let counts = self.events.counts();
        let noted = counts.iter().map(|(kind, counts)| {
            let metric = Metric::counter("noted_events", "Events, by kind", counts.noted);
            metric.with("kind", kind.label())
        });
        let suppressed = counts.iter().map(|(kind, counts)| {
            let help = "Events that were only counted, since there were too many of their kind";
            let metric = Metric::counter("noted_events_suppressed", help, counts.suppressed);
            metric.with("kind", kind.label())
        });
        let mut metrics: Vec<_> = noted.chain(suppressed).collect();
        if let Some(history) = &self.history {
            let help = "Size of the history's files (--history)";
            metrics.push(Metric::gauge("history_size_bytes", help, history.bytes() as f64));
            let help = "Events that are not in the history, because it could not be written";
            metrics.push(Metric::counter("history_lost", help, history.lost()));
            let help = "Readings of loads of links that the history does not keep: too large";
            metrics.push(Metric::counter("history_loads_skipped", help, history.skipped()));
        }
        if let Some(plugin) = &self.event_plugin {
            let [passed, missed, starts] = plugin.totals();
            let help = "Events passed to the program of event_plugin_name";
            metrics.push(Metric::counter("event_plugin_passed", help, passed));
            let help = "Events that the program of event_plugin_name missed: it reads too slowly";
            metrics.push(Metric::counter("event_plugin_missed", help, missed));
            let help = "How often the program of event_plugin_name was started";
            metrics.push(Metric::counter("event_plugin_starts", help, starts));
        }
        metrics
    }

    /// The capture file.
    fn measure_capture(&self) -> [Metric; 2] {
        let capture = self.tap.capture().unwrap_or_default();
        [
            Metric::counter(
                "capture_written",
                "MADs written to the file of --capture",
                capture.written,
            ),
            Metric::counter(
                "capture_left_out",
                "MADs not written to the file of --capture, because it is full or a write failed",
                capture.left_out,
            ),
        ]
    }

    /// A store that managers share.
    fn measure_store(&self) -> Vec<Metric> {
        let Some(store) = &self.store else { return Vec::new() };
        let view = store.view();
        let is = |state| f64::from(u8::from(state));
        let [failures, fence_losses, checkpoints] = view.totals;
        vec![
            Metric::gauge("store_reachable", "1 while the store answers", is(view.reachable)),
            Metric::gauge(
                "store_fence_held",
                "1 while this subnet manager may commit to the store",
                is(view.holder == Holder::Us),
            ),
            Metric::gauge(
                "store_commit_age_seconds",
                "For how long the commit under way has been waiting",
                view.waiting.as_secs_f64(),
            ),
            Metric::counter(
                "store_request_failures",
                "Requests that a member of the store's cluster did not answer",
                failures,
            ),
            Metric::counter(
                "store_fence_losses",
                "How often the right to commit was lost while this subnet manager was master",
                fence_losses,
            ),
            Metric::counter(
                "store_checkpoints",
                "How often tables were written in place of the store's log",
                checkpoints,
            ),
        ]
    }

    /// Connections of `--http`, and callers and connections of `--api`; lines about peers that were
    /// left out of the log.
    fn measure_http(&self) -> Vec<Metric> {
        let mut metrics = of_connections(
            &self.http,
            [
                "http_connections_refused",
                "http_connections_displaced",
                "http_requests_late",
                "http_answers_unread",
                "http_answers_refused",
                "http_connections_failed",
                "http_connections_unaccepted",
            ],
        );
        metrics.push(Metric::counter(
            "http_expositions_displaced",
            "Answers with counters of ports cut off for another: their client read slowly",
            self.http.outrun.load(Relaxed),
        ));
        metrics.push(Metric::counter(
            "log_lines_left_out",
            "Log lines about peers that were left out: there were too many",
            log_limit::left_out(),
        ));
        if let Some(api) = &self.api {
            metrics.push(Metric::counter(
                "api_callers_refused",
                "Requests to --api without, or with a wrong, password or token",
                api.callers_refused.load(Relaxed),
            ));
            metrics.extend(of_connections(
                &api.connections,
                [
                    "api_connections_refused",
                    "api_connections_displaced",
                    "api_requests_late",
                    "api_answers_unread",
                    "api_answers_refused",
                    "api_connections_failed",
                    "api_connections_unaccepted",
                ],
            ));
        }
        metrics
    }

    /// Handovers and takeovers.
    fn measure_succession(&self) -> Vec<Metric> {
        let counters = self.node.succession();
        let takeovers = |copy: &str, count| {
            let help = "Takeovers from another subnet manager that was followed, by whether all \
                        acknowledged registrations are known; if not, clients are asked again";
            Metric::counter("takeovers", help, count).with("copy", copy)
        };
        vec![
            takeovers("complete", counters.complete),
            takeovers("incomplete", counters.incomplete),
            Metric::counter(
                "takeovers_state_incomplete",
                "Takeovers at which the last changes of LIDs, M_Keys and links of the previous \
                 master had not been received",
                counters.states_incomplete,
            ),
            Metric::counter(
                "handovers_failed",
                "Failed handovers to a standby that follows; they are tried again",
                counters.handovers_failed,
            ),
            Metric::counter(
                "mastership_doubts",
                "Times that another subnet manager might have become master unnoticed; \
                 registrations waited until an election had found none",
                counters.doubts,
            ),
        ]
    }

    fn measure_fabric(&self) -> Vec<Metric> {
        let (counter, gauge) = (Metric::counter, Metric::gauge);
        let sweeper = self.node.sweeper();
        let (totals, session) = (self.node.sweeps(), self.node.session());
        let (refused, refused_total) = self.node.refused_policies();
        let last = &totals.last;
        let virtual_ports = sweeper.virtual_port_counters();
        let (hosts, switches) = sweeper.fabric().counts();
        let is = |state| f64::from(u8::from(state));
        let sweeps = |kind: SweepKind, count| {
            counter("sweeps", "Sweeps by kind; a light one that finds a change is continued", count)
                .with("kind", kind.label())
        };
        vec![
            gauge(
                "up",
                "1 if this subnet manager is master and a sweep has configured the subnet",
                is(sweeper.is_up()),
            ),
            gauge(
                "master",
                "1 if this subnet manager is master",
                is(sweeper.sm_state() == SmState::Master),
            ),
            gauge(
                "credit_loops",
                "1 if the current routing has credit loops and traffic can deadlock",
                is(!sweeper.is_loop_free()),
            ),
            gauge(
                "reply_credit_loops",
                "1 if replies on the SLs of their requests have credit loops and can deadlock",
                is(!sweeper.are_replies_loop_free()),
            ),
            gauge(
                "multicast_credit_loops",
                "Multicast trees that take part in a credit loop",
                sweeper.multicast_loops() as f64,
            ),
            gauge("switches", "Switches in the subnet", switches as f64),
            gauge("hosts", "Channel adapters and routers in the subnet", hosts as f64),
            gauge("links", "Links, as of the last sweep", last.links as f64),
            gauge(
                "duplicate_guids",
                "GUIDs found on more than one node; only one of these nodes is configured",
                last.duplicate_guids as f64,
            ),
            gauge(
                "pkeys_left_out",
                "P_Keys that did not fit into the P_Key tables of ports",
                last.pkeys_left_out as f64,
            ),
            gauge(
                "unchecked_ports",
                "Switch ports without P_Key enforcement, because their table has no room for all \
                 P_Keys",
                last.unchecked_ports as f64,
            ),
            gauge(
                "foreign_sms",
                "Subnet managers excluded from the election: they use another SM_Key, or are not in \
                 --sm-allow",
                sweeper.foreign_sms().count() as f64,
            ),
            counter(
                "foreign_sm_answers",
                "SMInfo answers of such managers",
                sweeper.foreign_answers(),
            ),
            counter(
                "error_traps_forged",
                "Traps 129 to 131 ignored because they did not come from the port that they are \
                 about",
                sweeper.forged_error_traps(),
            ),
            counter(
                "babbling_links_spared",
                "Links that stayed enabled although a port kept sending error traps, since others \
                 had been disabled",
                sweeper.spared_babbling_links(),
            ),
            Metric::gauge(
                "newcomers",
                "Ports at other places than their GUIDs belong to, which are empty",
                sweeper.newcomers() as f64,
            ),
            counter(
                "sm_demands_unanswered",
                "Set(SMInfo) not answered: the sender is not known as a subnet manager, or there \
                 were too many",
                sweeper.unanswered_demands(),
            ),
            gauge(
                "quarantined_links",
                "Links kept out because they, or the node behind them, are not in the baseline",
                sweeper.kept_out().count() as f64,
            ),
            counter(
                "quarantined_unlisted",
                "Times that a link was kept out and not listed because there are too many",
                sweeper.kept_out_unlisted(),
            ),
            gauge(
                "inactive_managers",
                "Other subnet managers that are inactive and take nothing over",
                sweeper.inactive_managers() as f64,
            ),
            gauge(
                "sharded_ports",
                "Ports whose MasterSMLID was set to a responder",
                sweeper.sharded() as f64,
            ),
            gauge(
                "clients_to_reregister",
                "Ports still to be asked to register again after a change of master",
                sweeper.clients_to_ask() as f64,
            ),
            gauge(
                "switches_avoided",
                "Switches avoided by routes because they do not accept their forwarding tables",
                sweeper.avoided_switches() as f64,
            ),
            gauge(
                "virtual_ports",
                "Virtual ports that are not Down",
                sweeper.fabric().virtual_port_count() as f64,
            ),
            gauge(
                "virtual_ports_faulty",
                "Ports whose virtual ports are not all set up",
                sweeper.virtual_port_troubles().count() as f64,
            ),
            counter(
                "virtual_port_passes",
                "Times that a port with virtual ports was read or set up",
                virtual_ports.passes,
            ),
            counter(
                "virtual_port_passes_silent",
                "Those that ended early because the port did not answer",
                virtual_ports.silent,
            ),
            counter(
                "virtual_port_requests_refused",
                "Requests about virtual ports that ports refused",
                virtual_ports.refused,
            ),
            gauge(
                "links_avoided",
                "Links between switches avoided by routes because they run below the speed or \
                 width that their ends support",
                sweeper.throttled_links() as f64,
            ),
            gauge(
                "session_refused",
                "1 if the session epoch cannot be saved in the state directory; nothing is \
                 published to responders",
                is(session.is_refused()),
            ),
            counter(
                "session_failures",
                "Attempts to begin a session that failed",
                session.failures(),
            ),
            gauge(
                "state_files_behind",
                "Files of the state directory whose last write failed; writes are retried",
                self.node.files_behind() as f64,
            ),
            counter("policy_errors", "Policy files refused since the start", refused_total),
            gauge(
                "policy_stale",
                "Policy files refused at the last reading; their previous contents stay in force",
                refused as f64,
            ),
            sweeps(SweepKind::Light, sweeper.light_sweeps().count()),
            sweeps(SweepKind::Partial, totals.partial),
            sweeps(SweepKind::Full, totals.full),
            counter(
                "sweep_errors",
                "Attributes that sweeps could not read or set; the log has the first of each sweep",
                totals.errors,
            ),
            gauge(
                "sweeps_failed_in_a_row",
                "Sweeps with faults in a row",
                f64::from(totals.failed_in_a_row),
            ),
            counter(
                "traps_dropped",
                "Traps not forwarded to subscribers because too many arrived at once",
                sweeper.traps_dropped(),
            ),
            gauge(
                "sweep_last_duration_seconds",
                "Duration of the last sweep that configured the fabric",
                last.duration().as_secs_f64(),
            ),
            gauge(
                "routing_last_duration_seconds",
                "Time of the routing engine in that sweep; 0 if nothing was routed",
                last.phase(Phase::Route).as_secs_f64(),
            ),
        ]
    }

    fn measure_smps(&self) -> Vec<Metric> {
        let mut by_name: BTreeMap<(&str, &str), Passed> = BTreeMap::new();
        for &kind in SmpKind::ALL {
            let passed = self.node.sweeper().passed(kind);
            let sum = by_name.entry((kind.attribute(), kind.method())).or_default();
            sum.sent += passed.sent;
            sum.repeated += passed.repeated;
            sum.answered += passed.answered;
            sum.given_up += passed.given_up;
        }
        type Of = fn(&Passed) -> u64;
        let families: [(&str, &str, Of); 4] = [
            ("smps_sent", "SMPs sent, retries included", |passed| passed.sent),
            ("smps_repeated", "SMPs retried after a timeout", |passed| passed.repeated),
            ("smps_answered", "SMPs answered", |passed| passed.answered),
            ("smps_timed_out", "SMPs without an answer after the last retry", |passed| {
                passed.given_up
            }),
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
        let unmatched = self.node.sweeper().counters().unmatched;
        metrics.push(Metric::counter(
            "smps_unmatched",
            "Answers that match no outstanding SMP, such as late ones",
            unmatched,
        ));
        let lost = |reason: &str, count| {
            let help = "Packets not sent to the fabric, by reason; their senders retry";
            Metric::counter("fabric_packets_dropped", help, count).with("reason", reason)
        };
        metrics.push(lost("overflow", self.node.answers_dropped()));
        metrics.push(lost("detached", self.fabric.lost()));
        let outstanding = self.node.sweeper().outstanding() as f64;
        metrics.push(Metric::gauge("smps_outstanding", "SMPs queued or on the wire", outstanding));
        metrics
    }

    fn measure_front_door(&self) -> Vec<Metric> {
        let (counter, gauge) = (Metric::counter, Metric::gauge);
        let ((door, pins), malformed) = (self.node.front_door(), self.door.malformed());
        let dropped = |reason: &str, count| {
            let help = "Packets dropped at the front door, by reason; clients retry";
            counter("front_door_dropped", help, count).with("reason", reason)
        };
        let datagrams = |wrong: &str, count| {
            let help = "Malformed datagrams received on the front-door socket";
            counter("front_door_malformed", help, count).with("wrong", wrong)
        };
        vec![
            counter("front_door_requests", "Queries forwarded to responders", door.requests),
            counter("front_door_answers", "Answers forwarded to clients", door.answers),
            counter(
                "front_door_direct",
                "Queries forwarded to be answered from the responder's own port",
                door.direct,
            ),
            counter(
                "front_door_redirected",
                "Requests answered with a redirection to a responder",
                door.redirected,
            ),
            counter(
                "front_door_advertised",
                "ClassPortInfo answers that name a responder",
                door.advertised,
            ),
            dropped("no_responder", door.no_responder),
            dropped("other_class", door.other_class),
            dropped("unregistered", door.unregistered),
            dropped("forged", door.forged),
            dropped("not_master", door.not_master),
            dropped("stale", door.stale),
            dropped("overflow", door.overflow),
            dropped("kernel", self.door.dropped()),
            counter(
                "front_door_undelivered",
                "Answers that the fabric could not deliver to the LID of the client",
                door.undelivered,
            ),
            datagrams("length", malformed.length),
            datagrams("envelope", malformed.envelope),
            gauge(
                "front_door_pins",
                "Multi-packet transfers and reports pinned to a responder",
                pins as f64,
            ),
        ]
    }

    /// Which process reads SA requests at the SM's port.
    fn measure_sa_port(&self) -> Vec<Metric> {
        let Some(sa_port) = &self.sa_port else { return Vec::new() };
        let service = sa_port.service();
        let reads = |process: &str, reads: bool| {
            let help = "1 for the process that reads SA requests at the SM's port: ibsm, a \
                        responder (ibsa), or none";
            Metric::gauge("sa_port_reader", help, f64::from(u8::from(reads)))
                .with("process", process)
        };
        vec![
            reads("ibsm", service == PortService::Manager),
            reads("ibsa", matches!(service, PortService::Responder { .. })),
            reads("none", service == PortService::NoProcess),
            Metric::counter(
                "sa_port_reader_changes",
                "Changes of the process that reads SA requests at the SM's port",
                sa_port.changes(),
            ),
        ]
    }

    /// Connected responders, and how far each is behind the published snapshot.
    fn measure_responders(&self) -> Vec<Metric> {
        let gauge = Metric::gauge;
        let published = self.publisher.version();
        let generation = |plane: &str, number: u64| {
            let help = "Published generation: changed fabrics (fabric), registry writes (registry)";
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
            "Responders connected; if 0, SA queries are not answered",
            serving.len() as f64,
        ));
        let ours = self.publisher.session();
        let answering = serving.iter().filter(|entry| ours.is_some_and(|ours| entry.serves(ours)));
        metrics.push(gauge(
            "responders_serving",
            "Responders that answer from this SM's session; if 0, SA queries are not answered",
            answering.count() as f64,
        ));
        let sa_guids: BTreeMap<Guid, SaGuid> = self.node.sweeper().sa_guids().collect();
        let mut named = BTreeMap::new();
        for entry in serving {
            // Two responders may have the same name.
            let name = match named.contains_key(&*entry.name) {
                false => entry.name.to_string(),
                true => format!("{} {:x}", entry.name, entry.id),
            };
            let held = entry.serving.filter(|held| held.session == published.session);
            let held = held.unwrap_or(Version::NONE);
            let fabric = published.fabric_generation.saturating_sub(held.fabric_generation);
            let registry = published.registry_sequence.saturating_sub(held.registry_sequence);
            let port = entry.port.map(|(guid, _)| guid);
            let is = port.and_then(|port| sa_guids.get(&port));
            named.insert(name, (fabric, registry, is.map(|&is| is == SaGuid::Held)));
        }
        for (name, (fabric, registry, has_sa_guid)) in named {
            metrics.extend(has_sa_guid.map(|has| {
                let help = "Whether a responder's port has the GUID that virtual functions ask";
                gauge("responder_sa_guid", help, f64::from(u8::from(has))).with("responder", &*name)
            }));
            for (plane, lag) in [("fabric", fabric), ("registry", registry)] {
                let help =
                    "Generations that a responder is behind; all of them if it follows another SM";
                let lag = gauge("responder_lag_generations", help, lag as f64);
                metrics.push(lag.with("responder", &*name).with("plane", plane));
            }
        }
        let followers = || responders.iter().filter_map(|entry| entry.follower);
        metrics.extend(followers().map(|follower| {
            let help = "Whether a standby that follows the registry has stored all that was \
                        published until 2 s ago";
            gauge("follower_in_step", help, f64::from(u8::from(follower.in_step)))
                .with("sm", follower.sm_guid.to_string())
        }));
        metrics.extend(followers().map(|follower| {
            let stored = follower.stored.unwrap_or_default();
            let had = if stored.session == published.session { stored.sequence } else { 0 };
            let lag = published.registry_sequence.saturating_sub(had);
            let help = "Registry changes that a standby that follows has not stored";
            gauge("follower_lag_changes", help, lag as f64).with("sm", follower.sm_guid.to_string())
        }));
        metrics.extend(responders.iter().filter_map(|entry| {
            let (follower, differ) = (entry.follower?, entry.files_differ.as_ref()?);
            let help = "Operators' files, including the settings, that differ between this SM and \
                        a standby that follows it";
            let differ = gauge("follower_files_different", help, differ.len() as f64);
            Some(differ.with("sm", follower.sm_guid.to_string()))
        }));
        metrics.push(Metric::counter(
            "state_documents_too_long",
            "State files and operators' files that were too long to be copied by standbys",
            self.publisher.state_board().overflows(),
        ));
        if let Some((awaited, lost)) = self.publisher.sync_followers().counts() {
            let help = "Standbys that writes wait for (--follow-sync); if 0, writes are \
                        acknowledged without a copy";
            metrics.push(gauge("followers_awaited", help, awaited as f64));
            let help = "Standbys that were silent for so long that writes continued without them";
            metrics.push(Metric::counter("followers_lost", help, lost));
        }
        let feed = self.publisher.counters().into_iter();
        metrics.extend(feed.map(|(name, help, count)| Metric::counter(name, help, count)));
        metrics
    }
}

/// What happened to connections of an HTTP server, under these names.
fn of_connections(totals: &Totals, names: [&'static str; 7]) -> Vec<Metric> {
    let rows = [
        (
            &totals.refused,
            "Connections refused: all of that host or user, or all places, were busy",
        ),
        (&totals.displaced, "Idle connections closed for others"),
        (&totals.late, "Handshakes and requests given up: they did not arrive in time"),
        (&totals.unread, "Connections closed because their client did not read an answer in time"),
        (
            &totals.crowded,
            "Requests refused: too many were being answered, or long answers being sent",
        ),
        (&totals.failed, "Connections that broke, or whose handshake or request is malformed"),
        (&totals.unaccepted, "Failures to accept: no descriptors are left; connections wait"),
    ];
    let named = names.into_iter().zip(rows);
    named.map(|(name, (total, help))| Metric::counter(name, help, total.load(Relaxed))).collect()
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

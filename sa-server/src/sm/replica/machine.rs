//! Decides how a responder handles the SMs: which snapshot is served, which SM is followed, and
//! what each SM is sent.
//!
//! This module never sends, waits or reads a clock. The driver passes events of the links in, and
//! carries out what [`Machine::poll_output`] yields, in this order, before the next event.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::snapshot::{Snapshot, Version};

use super::outage::Outage;
use super::status::{ReplicaStatus, Source};
use super::updates::{Outcome, Updates};

/// Something for the driver to do.
#[derive(Debug)]
pub enum Output {
    /// Send a message to the SM of this link.
    Send(usize, Box<proto::FromResponder>),
    /// Answer queries from this snapshot, then call [`Machine::handle_installed`].
    Install {
        /// The snapshot.
        snapshot: Arc<Snapshot>,
        /// Whether it follows from the one before by writes alone, so that it takes microseconds to
        /// answer from it: less than to wake another thread.
        is_small: bool,
    },
    /// Writes and events go to the SM of this link from now on.
    Follow(usize),
    /// The SM of this link is disconnected: writes and events no longer go there.
    Leave(usize),
    /// Tell the SM of this link which registry is served.
    Answer(usize, proto::Inquiry, Option<Arc<Snapshot>>),
    /// Keep this snapshot for the next start.
    Save(Arc<Snapshot>),
}

/// The connection to one SM.
#[derive(Clone, Debug, Default)]
struct Link {
    url: String,
    is_connected: bool,
    /// Whether the SM has sent a message on this connection.
    is_heard: bool,
    outage: Outage,
}

/// The links to all SMs, and the snapshots held and served.
#[derive(Debug)]
pub struct Machine {
    /// The first message on each connection, without what is held.
    greeting: proto::Hello,
    links: Vec<Link>,
    updates: Updates,
    /// The snapshot that queries are answered from.
    serving: Option<Arc<Snapshot>>,
    /// The snapshot that the driver is to serve, and the link that it came from; `None` if it was
    /// kept from an earlier run.
    installing: Option<(Arc<Snapshot>, Option<usize>)>,
    status: Arc<ReplicaStatus>,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// Begins with the snapshot of an earlier run, if there is one. `urls` are those of the SMs, by
    /// link.
    pub fn new(
        greeting: proto::Hello,
        urls: Vec<String>,
        kept: Option<Arc<Snapshot>>,
        status: Arc<ReplicaStatus>,
    ) -> Self {
        let links: Vec<_> = urls.into_iter().map(|url| Link { url, ..Link::default() }).collect();
        let held = kept.unwrap_or_else(|| Arc::new(Snapshot::empty()));
        let mut machine = Self {
            greeting,
            updates: Updates::new(held.clone(), links.len()),
            links,
            serving: None,
            installing: None,
            status,
            outputs: VecDeque::new(),
        };
        if held.version() != Version::NONE {
            machine.install(held, None);
        }
        machine
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// There is a connection to the SM of a link. The greeting is the first message to send.
    pub fn handle_connected(&mut self, link: usize) {
        let held = self.updates.connect(link);
        self.links[link].is_connected = true;
        self.status.counters.connected.fetch_add(1, Relaxed);
        self.send(link, Reply::Hello(proto::Hello { held, ..self.greeting.clone() }));
    }

    /// The connection was refused, ended or broke.
    pub fn handle_disconnected(&mut self, now: Instant, link: usize, reason: &dyn Display) {
        self.close(link);
        let Link { url, is_heard, outage, .. } = &mut self.links[link];
        // Not every attempt is logged. An SM that closed without a message refused us, and will
        // again.
        if std::mem::take(is_heard) {
            if self.status.source() == Source::Sm(url.clone()) {
                tracing::warn!(
                    sm = url, %reason,
                    "lost the SM; serving its last snapshot, writes wait for a connection"
                );
            } else {
                tracing::warn!(sm = url, %reason, "lost a standby SM; retrying");
            }
            *outage = Outage::logged(now);
        } else if outage.should_log(now) {
            tracing::warn!("cannot connect to SM {url}: {reason}; retrying");
        } else {
            tracing::debug!(sm = url, %reason, "cannot connect to the SM; retrying");
        }
        self.status.counters.disconnects.fetch_add(1, Relaxed);
        self.status.lose(url);
        self.outputs.push_back(Output::Leave(link));
        self.updates.disconnect(link);
    }

    /// The connection does not accept messages as fast as they are sent: the driver closes it.
    pub fn handle_overflow(&mut self, link: usize) {
        self.close(link);
        self.status.counters.overflows.fetch_add(1, Relaxed);
    }

    /// Takes a message of the SM of a link.
    pub fn handle_message(&mut self, link: usize, message: proto::FromSm) {
        self.links[link].is_heard = true;
        if let Some(Message::Chunk(chunk)) = &message.message {
            self.status.counters.bytes.fetch_add(chunk.data.len() as u64, Relaxed);
        }
        if let Some(Message::Inquiry(inquiry)) = message.message {
            self.outputs.push_back(Output::Answer(link, inquiry, self.serving.clone()));
            return;
        }
        let sm = &self.links[link].url;
        match self.updates.handle(link, message) {
            Outcome::Nothing => {}
            Outcome::Install(snapshot) => self.install(snapshot, Some(link)),
            Outcome::Confirmed(version) => {
                let serving = self.serving();
                if serving == version {
                    self.status.serve(version, Source::Sm(sm.clone()));
                }
                self.outputs.push_back(Output::Follow(link));
                self.acknowledge(link, version);
            }
            Outcome::Resync(reason, error) => {
                tracing::warn!(sm, %error, "cannot apply the update; requesting a full snapshot");
                self.status.counters.resyncs.fetch_add(1, Relaxed);
                self.send(link, Reply::Resync(proto::Resync { reason: reason.into() }));
            }
            Outcome::Refuse { offered, held } => {
                tracing::warn!(
                    sm, %offered, held = %held,
                    "update refused: the SM's session is below that of the snapshot served; if \
                     that SM is master, it starts a higher session"
                );
                self.status.counters.refused.fetch_add(1, Relaxed);
                self.send(link, Reply::Refused(proto::Refused { held: Some(held.into()) }));
            }
        }
    }

    /// The result of [`Output::Install`]: whether queries are answered from the snapshot. If not,
    /// the previous one stays in use: all responders get the same snapshots, and one that fails
    /// here would fail everywhere, at each start.
    pub fn handle_installed(&mut self, is_served: bool) {
        let Some((snapshot, link)) = self.installing.take() else { return };
        let version = snapshot.version();
        if is_served {
            self.serving = Some(snapshot.clone());
        } else {
            self.status.counters.unusable.fetch_add(1, Relaxed);
            tracing::error!(
                %version, serving = %self.serving(),
                "internal error: building tables from a snapshot failed; still serving the \
                 previous one"
            );
        }
        let Some(link) = link else {
            if is_served {
                self.status.serve(version, Source::Cache);
                tracing::info!(
                    %version,
                    "serving the cached snapshot; until an SM connects, it lacks secrets and all \
                     changes since it was saved"
                );
            }
            return;
        };
        // One that is not served is held, as what follows from it may be usable again.
        self.outputs.push_back(Output::Follow(link));
        if is_served {
            let sm = self.links[link].url.clone();
            // The builder logs each generation; this logs the SM it comes from.
            if self.status.version().session != version.session {
                tracing::info!(sm, %version, "following this SM");
            }
            self.status.counters.installs.fetch_add(1, Relaxed);
            self.status.serve(version, Source::Sm(sm));
            self.outputs.push_back(Output::Save(snapshot));
        }
        self.acknowledge(link, version);
    }

    /// Reports counters to all SMs.
    pub fn handle_stats(&mut self, stats: &proto::Stats) {
        for link in 0..self.links.len() {
            self.send(link, Reply::Stats(stats.clone()));
        }
    }

    fn close(&mut self, link: usize) {
        if std::mem::take(&mut self.links[link].is_connected) {
            self.status.counters.connected.fetch_sub(1, Relaxed);
        }
    }

    fn install(&mut self, snapshot: Arc<Snapshot>, link: Option<usize>) {
        let is_small = self.serving.as_ref().is_some_and(|last| is_small_step(last, &snapshot));
        self.installing = Some((snapshot.clone(), link));
        self.outputs.push_back(Output::Install { snapshot, is_small });
    }

    /// Version of the snapshot that queries are answered from.
    fn serving(&self) -> Version {
        self.serving.as_ref().map_or(Version::NONE, |snapshot| snapshot.version())
    }

    /// Acknowledges `version`, and the served version if that is another one.
    fn acknowledge(&mut self, link: usize, version: Version) {
        let serving = self.serving();
        let serving = (serving != version).then(|| serving.into());
        self.send(link, Reply::Ack(proto::Ack { version: Some(version.into()), serving }));
    }

    fn send(&mut self, link: usize, reply: Reply) {
        if self.links[link].is_connected {
            self.outputs.push_back(Output::Send(link, Box::new(message(reply))));
        }
    }
}

/// Whether a snapshot follows from the one before by writes alone.
fn is_small_step(last: &Snapshot, next: &Snapshot) -> bool {
    Arc::ptr_eq(last.fabric(), next.fabric())
        && last.registry().alias_guids.is_same(&next.registry().alias_guids)
}

pub(super) fn message(message: Reply) -> proto::FromResponder {
    proto::FromResponder { message: Some(message) }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::codec::Encoder;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session};

    use super::*;

    fn snapshot(epoch: u64, generation: u64, sequence: u64) -> Arc<Snapshot> {
        let session = Session { epoch, sm_guid: Guid(1) };
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        Arc::new(Snapshot::build(session, generation, FabricPlane::default(), registry).unwrap())
    }

    /// A machine with links to two SMs, both connected.
    fn machine(kept: Option<Arc<Snapshot>>) -> Machine {
        let greeting = proto::Hello { responder_id: 7, ..proto::Hello::default() };
        let urls = ["http://sm0:1", "http://sm1:1"].map(str::to_owned).to_vec();
        Machine::new(greeting, urls, kept, Arc::default())
    }

    fn connected() -> Machine {
        let mut machine = machine(None);
        machine.handle_connected(0);
        machine.handle_connected(1);
        assert_eq!(texts(&mut machine), ["0: hello", "1: hello"]);
        machine
    }

    /// Carries out everything, and serves each snapshot; returns what was done.
    fn texts(machine: &mut Machine) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(output) = machine.poll_output() {
            let generation = |version: Option<proto::Version>| {
                version.map_or(0, |version| version.fabric_generation)
            };
            texts.push(match output {
                Output::Send(link, message) => match message.message.unwrap() {
                    Reply::Hello(hello) => {
                        assert_eq!(hello.responder_id, 7);
                        let held = hello.held.map(|held| generation(held.version));
                        format!(
                            "{link}: hello{}",
                            held.map_or(String::new(), |it| format!(" {it}"))
                        )
                    }
                    Reply::Ack(ack) if ack.serving.is_none() => {
                        format!("{link}: ack {}", generation(ack.version))
                    }
                    Reply::Refused(_) => format!("{link}: refused"),
                    Reply::Resync(_) => format!("{link}: resync"),
                    other => format!("{link}: {other:?}"),
                },
                Output::Install { snapshot, is_small } => {
                    machine.handle_installed(true);
                    let small = if is_small { " small" } else { "" };
                    format!("install{small} {}", snapshot.version().fabric_generation)
                }
                Output::Follow(link) => format!("follow {link}"),
                Output::Leave(link) => format!("leave {link}"),
                Output::Answer(link, inquiry, serving) => {
                    let serving = serving.map(|snapshot| snapshot.version().fabric_generation);
                    format!("{link}: answer {} {serving:?}", inquiry.number)
                }
                Output::Save(snapshot) => format!("save {}", snapshot.version().fabric_generation),
            });
        }
        texts
    }

    fn feed(machine: &mut Machine, link: usize, snapshot: &Arc<Snapshot>) -> Vec<String> {
        let update = Encoder::full(snapshot.clone());
        update.for_each(|message| machine.handle_message(link, message));
        texts(machine)
    }

    fn count(machine: &Machine, name: &str) -> u64 {
        let counters = machine.status.counters();
        counters.into_iter().find(|counter| counter.0 == name).unwrap().2
    }

    #[test]
    fn the_snapshot_of_an_earlier_run_is_served_and_announced() {
        let mut machine = machine(Some(snapshot(5, 3, 1)));
        assert_eq!(texts(&mut machine), ["install 3"]);
        assert_eq!(machine.status.source(), Source::Cache);
        machine.handle_connected(1);
        assert_eq!(texts(&mut machine), ["1: hello 3"]);
        assert_eq!(feed(&mut machine, 1, &snapshot(5, 3, 1)), ["follow 1", "1: ack 3"]);
        assert_eq!(machine.status.source(), Source::Sm("http://sm1:1".into()), "confirmed");
    }

    #[test]
    fn a_snapshot_is_acknowledged_and_kept_once_it_is_served() {
        let mut machine = connected();
        let done = feed(&mut machine, 0, &snapshot(5, 1, 1));
        assert_eq!(done, ["install 1", "follow 0", "save 1", "0: ack 1"]);
        let done = feed(&mut machine, 1, &snapshot(6, 2, 1));
        assert_eq!(done, ["install 2", "follow 1", "save 2", "1: ack 2"]);
        assert_eq!(feed(&mut machine, 0, &snapshot(5, 9, 9)), ["0: refused"]);
        assert_eq!(machine.status.version().fabric_generation, 2);
        let inquiry = proto::Inquiry { number: 4, rows: true };
        let message = proto::FromSm { message: Some(Message::Inquiry(inquiry)) };
        machine.handle_message(1, message);
        assert_eq!(texts(&mut machine), ["1: answer 4 Some(2)"]);
    }

    #[test]
    fn a_lost_sm_is_left_and_its_snapshot_counts_as_cached() {
        let mut machine = connected();
        feed(&mut machine, 0, &snapshot(5, 1, 1));
        machine.handle_disconnected(Instant::now(), 0, &"reset");
        assert_eq!(texts(&mut machine), ["leave 0"]);
        assert_eq!((machine.status.source(), machine.status.connected()), (Source::Cache, 1));
        machine.handle_stats(&proto::Stats::default());
        let sent = texts(&mut machine);
        assert!(sent.len() == 1 && sent[0].starts_with("1: Stats"), "{sent:?}");
    }

    #[test]
    fn a_connection_that_overflowed_is_counted_once() {
        let mut machine = connected();
        machine.handle_overflow(0);
        assert_eq!(machine.status.connected(), 1);
        machine.handle_disconnected(Instant::now(), 0, &"closed");
        assert_eq!(machine.status.connected(), 1);
        let counts = ["replica_outbound_overflows", "replica_disconnects"];
        assert_eq!(counts.map(|name| count(&machine, name)), [1, 1]);
    }
}

//! Decides how a responder handles the SMs: which snapshots are served, which SM is followed in
//! each lane, and what each SM is sent.
//!
//! This module never sends, waits or reads a clock. The driver passes events of the links in, and
//! carries out what [`Machine::poll_output`] yields, in this order, before the next event.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::front_door::AnnouncedDoor;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message as Reply;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::snapshot::{Snapshot, Version};

use super::holding::Answering;
use super::outage::Outage;
use super::sessions::{Placed, Sessions};
use super::status::{ReplicaStatus, Source};
use super::updates::{Outcome, Updates};
use crate::sm::forward::PATIENCE;

/// How long a responder keeps the promise of its answer to an inquiry, at least; one second more at
/// most. The writes that it concerns, which were on their way before, have expired then.
const PROMISE: Duration = PATIENCE;

/// Something for the driver to do.
#[derive(Debug)]
pub enum Output {
    /// Send a message to the SM of this link.
    Send(usize, Box<proto::FromResponder>),
    /// Answer queries of this lane from this snapshot, then call [`Machine::handle_installed`].
    Install {
        /// The lane.
        lane: usize,
        /// The snapshot.
        snapshot: Arc<Snapshot>,
        /// Whether it follows from the one before by writes alone, so that it takes microseconds to
        /// answer from it: less than to wake another thread.
        is_small: bool,
    },
    /// Answer no queries of this lane any more, and forget its front door and its SM.
    Drop(usize),
    /// Answer requests at the responder's own port, and all that come through no front door, from
    /// this lane.
    Own(usize),
    /// Writes and events of this lane go to the SM of this link from now on.
    Follow {
        /// The lane.
        lane: usize,
        /// The link.
        link: usize,
    },
    /// Writes and events of this lane go to no SM.
    Rest(usize),
    /// The SM of this link is disconnected: writes and events no longer go there.
    Leave(usize),
    /// Requests from the front door that the SM of this link announced are answered from this lane.
    Admit {
        /// The lane.
        lane: usize,
        /// The link.
        link: usize,
        /// The front door.
        front_door: AnnouncedDoor,
    },
    /// Requests from no front door are answered from this lane.
    Shut(usize),
    /// Tell the SM of this link which registry is served.
    Answer(usize, proto::Inquiry, Answering),
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
    /// The first message on each connection, before the versions held are filled in.
    greeting: proto::Hello,
    links: Vec<Link>,
    updates: Updates,
    /// The snapshots in use, by lane.
    served: Vec<Served>,
    /// The lane that the own port is answered from.
    own: usize,
    /// The snapshot that the driver is to serve.
    installing: Option<Installing>,
    status: Arc<ReplicaStatus>,
    outputs: VecDeque<Output>,
}

/// The part of one session that is in use.
#[derive(Clone, Debug, Default)]
struct Served {
    /// Whether the lane has a session.
    is_used: bool,
    /// The snapshot that queries are answered from.
    now: Option<Arc<Snapshot>>,
    /// Whether an SM has sent or confirmed it since this process started.
    is_current: bool,
    /// Until when nothing above what was reported to an SM that becomes master is acknowledged.
    promised_until: Option<Instant>,
    /// The link whose SM announced its front door, and the announcement.
    front_door: Option<(usize, AnnouncedDoor)>,
}

/// A snapshot on its way into service.
#[derive(Debug)]
struct Installing {
    snapshot: Arc<Snapshot>,
    placed: Placed,
    /// The link that it came from; `None` if it was kept from an earlier run.
    link: Option<usize>,
}

impl Machine {
    /// Begins with the snapshot of an earlier run, if there is one. `urls` are those of the SMs, by
    /// link; `own_port` is the port that requests arrive at, if there is one.
    pub fn new(
        now: Instant,
        greeting: proto::Hello,
        urls: Vec<String>,
        own_port: Option<Guid>,
        kept: Option<Arc<Snapshot>>,
        status: Arc<ReplicaStatus>,
    ) -> Self {
        let links: Vec<_> = urls.into_iter().map(|url| Link { url, ..Link::default() }).collect();
        let mut sessions = Sessions::new(own_port, links.len());
        let kept = kept.filter(|kept| kept.version() != Version::NONE);
        if let Some(kept) = &kept {
            sessions.set_cached(kept.clone(), now);
        }
        let mut machine = Self {
            greeting,
            served: vec![Served::default(); sessions.lanes()],
            own: 0,
            updates: Updates::new(sessions, links.len()),
            links,
            installing: None,
            status,
            outputs: VecDeque::new(),
        };
        if let Some(kept) = kept {
            machine.install(kept, Placed::default(), None);
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
            if self.updates.sessions().lane_of_link(link).is_some() {
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
        self.outputs.push_back(Output::Leave(link));
        self.updates.disconnect(link, now);
        self.settle();
    }

    /// The connection does not accept messages as fast as they are sent: the driver closes it.
    pub fn handle_overflow(&mut self, link: usize) {
        self.close(link);
        self.status.counters.overflows.fetch_add(1, Relaxed);
    }

    /// Takes a message of the SM of a link.
    pub fn handle_message(&mut self, now: Instant, link: usize, message: proto::FromSm) {
        self.links[link].is_heard = true;
        if let Some(Message::Chunk(chunk)) = &message.message {
            self.status.counters.bytes.fetch_add(chunk.data.len() as u64, Relaxed);
        }
        if let Some(Message::Inquiry(inquiry)) = message.message {
            let lane = self.updates.sessions().asked_by(Guid(inquiry.sm_guid));
            let serving = lane.map_or(Answering::default(), |lane| self.answering(now, lane));
            self.outputs.push_back(Output::Answer(link, inquiry, serving));
            return;
        }
        let sm = &self.links[link].url;
        match self.updates.handle(now, link, message) {
            Outcome::Nothing => {}
            Outcome::Install { snapshot, placed } => self.install(snapshot, placed, Some(link)),
            Outcome::Confirmed { lane, version } => {
                self.served[lane].is_current = true;
                self.settle();
                self.follow(lane, link);
                self.acknowledge(link, lane, version);
            }
            Outcome::Resync(reason, error) => {
                tracing::warn!(sm, %error, "cannot apply the update; requesting a full snapshot");
                self.status.counters.resyncs.fetch_add(1, Relaxed);
                self.send(link, Reply::Resync(proto::Resync { reason: reason.into() }));
            }
            Outcome::Refuse { offered, held } => {
                tracing::warn!(
                    sm, %offered, held = %held,
                    "update refused: the SM's session has a lower epoch than the snapshot served; \
                     if that SM is master, it begins a session with a higher one"
                );
                self.status.counters.refused.fetch_add(1, Relaxed);
                self.refuse(link, held);
            }
            Outcome::Full { offered } => {
                tracing::warn!(
                    sm, %offered,
                    "update refused: no room for another SM; already holding the snapshots of {} \
                     others, each for a part of the fabric",
                    self.served.len()
                );
                self.status.counters.no_room.fetch_add(1, Relaxed);
                self.refuse(link, Version::NONE);
            }
            Outcome::Ended => {
                tracing::info!(sm, "this SM is not master any more");
                self.settle();
            }
        }
    }

    /// Drops sessions whose managers are gone for long. Call it once a second.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.updates.expire(now);
        for lane in 0..self.served.len() {
            if self.served[lane].promised_until.is_some_and(|until| now >= until) {
                self.end_promise(lane);
            }
        }
        self.settle();
    }

    /// The result of [`Output::Install`]: whether queries are answered from the snapshot. If not,
    /// the previous one stays in use: all responders get the same snapshots, and one that fails
    /// here would fail everywhere, at each start.
    pub fn handle_installed(&mut self, is_served: bool) {
        let Some(Installing { snapshot, placed, link }) = self.installing.take() else { return };
        let (lane, version) = (placed.lane, snapshot.version());
        let before = self.status.lane(lane).version();
        if is_served {
            self.served[lane].now = Some(snapshot.clone());
            self.served[lane].is_current |= link.is_some();
            if before.session != version.session {
                self.end_promise(lane);
            }
            self.status.serve(lane, version);
        } else {
            self.status.counters.unusable.fetch_add(1, Relaxed);
            tracing::error!(
                %version, serving = %self.serving(lane),
                "internal error: building tables from a snapshot failed; still serving the \
                 previous one"
            );
        }
        self.settle();
        let Some(link) = link else {
            if is_served {
                tracing::info!(
                    %version,
                    "serving the cached snapshot; until an SM connects, it lacks secrets and all \
                     changes since it was saved"
                );
            }
            return;
        };
        if let Some(left) = placed.left {
            self.served[left].front_door = None;
            self.outputs.push_back(Output::Shut(left));
        }
        // One that is not served is held, as what follows from it may be usable again.
        self.follow(lane, link);
        if is_served {
            // The builder logs each generation; this logs the SM it comes from.
            if before.session != version.session {
                let (sm, sessions) = (&self.links[link].url, self.status.sessions());
                tracing::info!(sm, %version, sessions, "following this SM");
            }
            self.status.counters.installs.fetch_add(1, Relaxed);
            if lane == self.own {
                self.outputs.push_back(Output::Save(snapshot));
            }
        }
        self.acknowledge(link, lane, version);
        for dropped in placed.dropped {
            if let Some(other) = dropped.link.filter(|other| *other != link) {
                self.refuse(other, dropped.by);
            }
        }
    }

    /// The lane that the SM of a link publishes in, or else that of the own port.
    pub fn lane_of(&self, link: usize) -> usize {
        self.updates.sessions().lane_of_link(link).unwrap_or(self.own)
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

    fn install(&mut self, snapshot: Arc<Snapshot>, placed: Placed, link: Option<usize>) {
        let lane = placed.lane;
        if placed.has_evicted {
            self.drop_lane(lane);
        }
        if let Some(left) = placed.left {
            tracing::warn!(
                version = %snapshot.version(),
                "this responder's port is not in the SM's part of the fabric any more; answering \
                 there from what was known before, until another SM manages that part"
            );
            self.outputs.push_back(Output::Rest(left));
        }
        let served = &mut self.served[lane];
        served.is_used = true;
        let is_small = served.now.as_ref().is_some_and(|last| is_small_step(last, &snapshot));
        self.installing = Some(Installing { snapshot: snapshot.clone(), placed, link });
        self.outputs.push_back(Output::Install { lane, snapshot, is_small });
    }

    /// Follows the sessions that are held: the lane of the own port, the source of its snapshot,
    /// and lanes without a session.
    fn settle(&mut self) {
        let sessions = self.updates.sessions();
        let own = sessions.own(|lane| self.served[lane].now.is_some());
        let source = match own.and_then(|own| sessions.get(own)) {
            None => Source::Nothing,
            Some(held) => {
                held.link.map_or(Source::Cache, |link| Source::Sm(self.links[link].url.clone()))
            }
        };
        let is_over = |lane: &usize| sessions.get(*lane).is_none() && self.served[*lane].is_used;
        let over: Vec<usize> = (0..self.served.len()).filter(is_over).collect();
        self.status.set_source(source);
        if let Some(own) = own.filter(|own| *own != self.own) {
            self.own = own;
            self.status.set_own(own);
            self.outputs.push_back(Output::Own(own));
        }
        over.into_iter().for_each(|lane| self.drop_lane(lane));
    }

    fn drop_lane(&mut self, lane: usize) {
        self.end_promise(lane);
        let dropped = std::mem::take(&mut self.served[lane]);
        self.status.serve(lane, Version::NONE);
        self.outputs.push_back(Output::Drop(lane));
        if let Some(dropped) = dropped.now {
            tracing::info!(
                version = %dropped.version(), sessions = self.status.sessions(),
                "a session has ended or was replaced; no longer answering from it"
            );
        }
    }

    /// Follows the SM of `link` in `lane`: its writes, its events and its front door.
    fn follow(&mut self, lane: usize, link: usize) {
        self.outputs.push_back(Output::Follow { lane, link });
        let announced = (link, self.updates.front_door(link).clone());
        if self.served[lane].front_door.as_ref() != Some(&announced) {
            let front_door = announced.1.clone();
            self.served[lane].front_door = Some(announced);
            self.outputs.push_back(Output::Admit { lane, link, front_door });
        }
    }

    /// What is reported to an SM that becomes master, which begins its session with that: until
    /// this session is here, nothing above it is acknowledged.
    fn answering(&mut self, now: Instant, lane: usize) -> Answering {
        let version = self.serving(lane);
        let acknowledged = self.status.lane(lane).acknowledged().promise(version);
        let served = &mut self.served[lane];
        served.promised_until = Some(now + PROMISE);
        Answering { snapshot: served.now.clone(), is_current: served.is_current, acknowledged }
    }

    fn end_promise(&mut self, lane: usize) {
        self.served[lane].promised_until = None;
        self.status.lane(lane).acknowledged().release();
    }

    /// Version of the snapshot that queries of a lane are answered from.
    fn serving(&self, lane: usize) -> Version {
        self.served[lane].now.as_ref().map_or(Version::NONE, |snapshot| snapshot.version())
    }

    /// Acknowledges `version`, and the served version if that is another one.
    fn acknowledge(&mut self, link: usize, lane: usize, version: Version) {
        let serving = self.serving(lane);
        let serving = (serving != version).then(|| serving.into());
        self.send(link, Reply::Ack(proto::Ack { version: Some(version.into()), serving }));
    }

    fn refuse(&mut self, link: usize, held: Version) {
        self.send(link, Reply::Refused(proto::Refused { held: Some(held.into()) }));
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
    use sa_proto::snapshot::codec::Encoder;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session};

    use super::super::sessions;
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
        Machine::new(Instant::now(), greeting, urls, None, kept, Arc::default())
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
                Output::Install { snapshot, is_small, .. } => {
                    machine.handle_installed(true);
                    let small = if is_small { " small" } else { "" };
                    format!("install{small} {}", snapshot.version().fabric_generation)
                }
                Output::Drop(lane) => format!("drop {lane}"),
                Output::Own(lane) => format!("own {lane}"),
                Output::Follow { lane, link } => format!("follow {link} in {lane}"),
                Output::Rest(lane) => format!("rest {lane}"),
                Output::Admit { lane, front_door, .. } => {
                    let AnnouncedDoor { address, token } = front_door;
                    format!("admit '{address}' by {token} to {lane}")
                }
                Output::Shut(lane) => format!("shut {lane}"),
                Output::Leave(link) => format!("leave {link}"),
                Output::Answer(link, inquiry, serving) => {
                    let snapshot = serving.snapshot.map(|it| it.version().fabric_generation);
                    let kept = if serving.is_current { "" } else { " kept" };
                    format!("{link}: answer {} {snapshot:?}{kept}", inquiry.number)
                }
                Output::Save(snapshot) => format!("save {}", snapshot.version().fabric_generation),
            });
        }
        texts
    }

    fn feed(machine: &mut Machine, link: usize, snapshot: &Arc<Snapshot>) -> Vec<String> {
        let update = Encoder::full(snapshot.clone());
        update.for_each(|message| machine.handle_message(Instant::now(), link, message));
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
        assert_eq!(
            feed(&mut machine, 1, &snapshot(5, 3, 1)),
            ["follow 1 in 0", "admit '' by 0 to 0", "1: ack 3"]
        );
        assert_eq!(machine.status.source(), Source::Sm("http://sm1:1".into()), "confirmed");
    }

    #[test]
    fn a_snapshot_is_acknowledged_and_kept_once_it_is_served() {
        let mut machine = connected();
        let done = feed(&mut machine, 0, &snapshot(5, 1, 1));
        assert_eq!(
            done,
            ["install 1", "follow 0 in 0", "admit '' by 0 to 0", "save 1", "0: ack 1"]
        );
        let done = feed(&mut machine, 1, &snapshot(6, 2, 1));
        assert_eq!(
            done,
            [
                "install 2",
                "follow 1 in 0",
                "admit '' by 0 to 0",
                "save 2",
                "1: ack 2",
                "0: refused"
            ]
        );
        assert_eq!(feed(&mut machine, 0, &snapshot(5, 9, 9)), ["0: refused"]);
        assert_eq!(machine.status.version().fabric_generation, 2);
        let inquiry = proto::Inquiry { number: 4, rows: true, sm_guid: 1 };
        let message = proto::FromSm { message: Some(Message::Inquiry(inquiry)) };
        machine.handle_message(Instant::now(), 1, message);
        assert_eq!(texts(&mut machine), ["1: answer 4 Some(2)"]);
    }

    /// Asks, as the manager at port 1 does when it becomes master.
    fn inquire(machine: &mut Machine, now: Instant, link: usize) {
        let inquiry = proto::Inquiry { number: 4, rows: false, sm_guid: 1 };
        let message = proto::FromSm { message: Some(Message::Inquiry(inquiry)) };
        machine.handle_message(now, link, message);
        texts(machine);
    }

    #[test]
    fn what_was_reported_to_a_new_master_is_a_promise_for_a_time_or_until_its_session() {
        let (now, mut machine) = (Instant::now(), connected());
        feed(&mut machine, 0, &snapshot(5, 1, 1));
        let acknowledged = Arc::clone(machine.status.lane(0).acknowledged());
        let is_held = |sequence| !acknowledged.permits_answer(5, sequence);
        assert!(!is_held(2));
        inquire(&mut machine, now, 1);
        assert!(!is_held(1) && is_held(2));
        feed(&mut machine, 0, &snapshot(5, 1, 2));
        inquire(&mut machine, now, 1);
        assert!(is_held(2), "the first answer counts");
        machine.handle_timeout(now + PROMISE - Duration::from_millis(1));
        assert!(is_held(2));
        machine.handle_timeout(now + PROMISE);
        assert!(!is_held(2));
        inquire(&mut machine, now, 1);
        assert!(!is_held(2) && is_held(3));
        feed(&mut machine, 1, &snapshot(6, 1, 2));
        assert!(!is_held(3), "the session of the one that asked");
    }

    /// Regression: the version in the cache counted as all that a responder had acknowledged before
    /// it was started again.
    #[test]
    fn a_snapshot_of_an_earlier_run_is_reported_as_such_until_an_sm_has_confirmed_it() {
        let inquire = |machine: &mut Machine| {
            let inquiry = proto::Inquiry { number: 4, rows: false, sm_guid: 1 };
            let message = proto::FromSm { message: Some(Message::Inquiry(inquiry)) };
            machine.handle_message(Instant::now(), 1, message);
            texts(machine)
        };
        let mut machine = machine(Some(snapshot(5, 3, 1)));
        (0..2).for_each(|link| machine.handle_connected(link));
        texts(&mut machine);
        assert_eq!(inquire(&mut machine), ["1: answer 4 Some(3) kept"]);
        feed(&mut machine, 0, &snapshot(5, 3, 1));
        assert_eq!(inquire(&mut machine), ["1: answer 4 Some(3)"]);
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

    /// Regression: clients of the lower part of a split fabric got no answers, and the status of
    /// its manager said that its responders served.
    #[test]
    fn the_managers_of_two_parts_of_a_fabric_each_have_their_session_served() {
        let mut machine = connected();
        for (link, epoch) in [(0, 5), (1, 6)] {
            let sm = link as u64 + 1;
            let part = sessions::tests::snapshot(epoch, sm, 1, &[sm]);
            let update = Encoder::full(part).map(|mut message| {
                if let Some(Message::Begin(begin)) = &mut message.message {
                    begin.front_door = format!("door {sm}");
                    begin.front_door_token = 10 + sm;
                }
                message
            });
            update.for_each(|message| machine.handle_message(Instant::now(), link, message));
            let done = texts(&mut machine);
            assert!(done.contains(&format!("follow {link} in {link}")), "{done:?}");
            assert!(
                done.contains(&format!("admit 'door {sm}' by {} to {link}", 10 + sm)),
                "{done:?}"
            );
            assert_eq!(done.last(), Some(&format!("{link}: ack 1")));
            assert_eq!(machine.status.lane(link).version().session.epoch, epoch);
        }
        assert_eq!((machine.status.sessions(), machine.status.version().session.epoch), (2, 6));
        // The second one has found the first one's port.
        let done = feed(&mut machine, 1, &sessions::tests::snapshot(6, 2, 2, &[1, 2]));
        assert!(done.contains(&"drop 0".to_owned()), "{done:?}");
        assert_eq!(done.last().unwrap(), "0: refused", "the first one learns that it is replaced");
        assert_eq!((machine.status.sessions(), machine.lane_of(1)), (1, 1));
    }
}

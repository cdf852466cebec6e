//! Which process reads SA requests at the SM's port: this one, for the front door, or a responder
//! of this host (`ibsa --at-sm-port`) that shares the port's file.
//!
//! Several responders may be connected, as during an upgrade; the one that was ready last reads. If
//! it is gone, or hangs, the next one does, and without any this process reads again. Requests wait
//! in the file meanwhile. One that hung and goes on may read beside its successor until it is
//! connected to the feed again: each request is read once, and both answer.
//!
//! Messages and descriptors travel in `runtime`; their form is
//! [`sharing`](ib_mad::transport::umad::sharing).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_mad::transport::umad::sharing::FromManager;
use sa_proto::snapshot::Session;
use tracing::{info, warn};

use crate::cli::SaMode;
use crate::observe::Responder;

/// How long requests wait for the next responder after the last one is gone, if no other could
/// answer them: time for a restart.
const RESTART_PATIENCE: Duration = Duration::from_secs(5);
/// How long nothing may read before that is logged.
const WARNING_PATIENCE: Duration = Duration::from_secs(5);

/// A connection of a responder.
pub type ConnectionId = u64;

/// Warning that is logged and shown while no process reads.
const NOT_READ: &str = "no process answers SA requests at the SM's port: start ibsa --transport \
                        umad --at-sm-port on this host";

/// Selects the process that reads.
#[derive(Debug)]
pub struct PortReader {
    mode: SaMode,
    /// Responders, the next reader last.
    responders: Vec<Connected>,
    named: Option<ConnectionId>,
    messages: VecDeque<(ConnectionId, FromManager)>,
    /// The last reader that ended without a successor: its id in the feed, and when it ended.
    gone: Option<(u64, Instant)>,
    /// Whether this process has the file.
    has_file: bool,
    /// The session of this SM while it is master.
    session: Option<Session>,
    /// When to log that nothing reads; `None` while something does, or once it was logged.
    warning_due: Option<Instant>,
    was_read: bool,
    was_read_here: bool,
    changes: u64,
}

/// A connected responder.
#[derive(Debug)]
struct Connected {
    connection: ConnectionId,
    /// Its id in the feed.
    id: u64,
    name: String,
    pid: i32,
    is_ready: bool,
    /// Whether the feed has lost it though its process may live.
    hangs: bool,
}

/// The process that reads, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortService {
    /// The transport has no separate files for classes.
    #[default]
    Inseparable,
    /// This process.
    Manager,
    /// A responder.
    Responder {
        /// Its name.
        name: String,
        /// Its process id.
        pid: i32,
    },
    /// No process.
    NoProcess,
}

impl PortReader {
    /// No responder is connected, and this process does not have the file.
    pub fn new(now: Instant, mode: SaMode) -> Self {
        Self {
            mode,
            responders: Vec::new(),
            named: None,
            messages: VecDeque::new(),
            gone: None,
            has_file: false,
            session: None,
            warning_due: Some(now + WARNING_PATIENCE),
            was_read: false,
            was_read_here: false,
            changes: 0,
        }
    }

    /// Whether this process has the file from now on.
    pub fn set_has_file(&mut self, has_file: bool) {
        self.has_file = has_file;
    }

    /// Sets the session of this SM; `None` unless it is master.
    pub fn set_session(&mut self, session: Option<Session>) {
        self.session = session;
    }

    /// A responder has connected that could serve the port.
    pub fn handle_offer(&mut self, connection: ConnectionId, id: u64, name: String, pid: i32) {
        self.responders.retain(|other| other.connection != connection);
        let responder = Connected { connection, id, name, pid, is_ready: false, hangs: false };
        // It has no rank before it is ready.
        self.responders.insert(0, responder);
    }

    /// A responder can answer queries. With `is_spare`, others that can do so come before it.
    pub fn handle_ready(&mut self, connection: ConnectionId, is_spare: bool) {
        let place = self.responders.iter().position(|other| other.connection == connection);
        let Some(place) = place.filter(|&place| !self.responders[place].is_ready) else { return };
        let mut responder = self.responders.remove(place);
        responder.is_ready = true;
        let place = if is_spare { 0 } else { self.responders.len() };
        self.responders.insert(place, responder);
        self.name_reader();
    }

    /// The connection of a responder has ended.
    pub fn handle_closed(&mut self, now: Instant, connection: ConnectionId) {
        let place = self.responders.iter().position(|other| other.connection == connection);
        let Some(place) = place else { return };
        let closed = self.responders.remove(place);
        self.messages.retain(|(to, _)| *to != connection);
        if self.named == Some(connection) {
            info!(
                "responder '{}' (process {}) no longer reads SA requests at the SM's port",
                closed.name, closed.pid
            );
            self.gone = Some((closed.id, now));
            self.named = None;
            self.name_reader();
        }
    }

    /// Sets which responders hang, by their ids in the feed. These do not count. One that hung
    /// while it read goes on reading unless another one is named.
    pub fn set_hung(&mut self, now: Instant, is_hung: impl Fn(u64) -> bool) {
        let mut is_changed = false;
        let mut recovered = Vec::new();
        for responder in &mut self.responders {
            let hangs = is_hung(responder.id);
            if std::mem::replace(&mut responder.hangs, hangs) == hangs {
                continue;
            }
            is_changed = true;
            if !hangs {
                recovered.extend(responder.is_ready.then_some(responder.connection));
            } else if self.named == Some(responder.connection) {
                warn!(
                    "responder '{}' (process {}) hangs: it no longer reads SA requests at the \
                     SM's port",
                    responder.name, responder.pid
                );
                (self.gone, self.named) = (Some((responder.id, now)), None);
            }
        }
        if is_changed {
            self.name_reader();
            recovered.retain(|connection| self.named != Some(*connection));
            self.messages.extend(recovered.into_iter().map(|other| (other, FromManager::Rest)));
        }
    }

    fn name_reader(&mut self) {
        let next = self.responders.iter().rfind(|responder| responder.is_ready && !responder.hangs);
        let Some(next) = next.filter(|next| self.named != Some(next.connection)) else { return };
        info!(
            "responder '{}' (process {}) reads SA requests at the SM's port",
            next.name, next.pid
        );
        let next = next.connection;
        if let Some(before) = self.named.replace(next) {
            self.messages.push_back((before, FromManager::Rest));
        }
        self.messages.push_back((next, FromManager::Read));
        self.gone = None;
        self.changes += 1;
    }

    /// The next message to a responder.
    pub fn poll_message(&mut self) -> Option<(ConnectionId, FromManager)> {
        self.messages.pop_front()
    }

    /// Whether this process reads; `responders` are those of the feed. After a reader is gone it
    /// waits until the front door would not choose that one, and another one serves.
    pub fn reads_here(&self, now: Instant, responders: &[Responder]) -> bool {
        if self.mode == SaMode::External || self.named.is_some() || !self.has_file {
            return false;
        }
        let Some((id, since)) = self.gone else { return true };
        let is_listed = responders.iter().any(|responder| responder.id == id);
        let ours = |responder: &Responder| self.session.is_some_and(|ours| responder.answers(ours));
        let serves = responders.iter().any(ours);
        now >= since + RESTART_PATIENCE || !is_listed && serves
    }

    /// Whether requests wait for a change of the responders in the feed.
    pub fn awaits_responder(&self) -> bool {
        self.gone.is_some()
    }

    /// When [`reads_here`](Self::reads_here) may change, or `handle_timeout` is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let restart = self.gone.map(|(_, since)| since + RESTART_PATIENCE);
        restart.into_iter().chain(self.warning_due).min()
    }

    /// Notes whether anything reads, and logs if nothing has for a while.
    pub fn handle_timeout(&mut self, now: Instant, reads_here: bool) {
        if self.gone.is_some_and(|(_, since)| now >= since + RESTART_PATIENCE) {
            self.gone = None;
        }
        // A responder is counted when it is named.
        self.changes += u64::from(reads_here && !self.was_read_here);
        self.was_read_here = reads_here;
        let is_read = reads_here || self.named.is_some();
        if is_read != self.was_read {
            self.was_read = is_read;
            self.warning_due = (!is_read).then_some(now + WARNING_PATIENCE);
        }
        if self.warning_due.take_if(|due| now >= *due).is_some() {
            warn!("{NOT_READ}");
        }
    }

    /// Id in the feed of the responder that reads.
    pub fn responder(&self) -> Option<u64> {
        let named = self.responders.iter().find(|other| Some(other.connection) == self.named);
        named.map(|reader| reader.id)
    }

    /// The process that reads.
    pub fn service(&self, reads_here: bool) -> PortService {
        let named = self.responders.iter().find(|other| Some(other.connection) == self.named);
        match named {
            Some(reader) => PortService::Responder { name: reader.name.clone(), pid: reader.pid },
            None if reads_here => PortService::Manager,
            None => PortService::NoProcess,
        }
    }

    /// How often the reader has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

impl PortService {
    /// Text for operators; empty if the transport has no separate file.
    pub fn describe(&self) -> String {
        match self {
            Self::Inseparable => String::new(),
            Self::Manager => "ibsm, for the front door".to_owned(),
            Self::Responder { name, pid } => format!("{name} (process {pid})"),
            Self::NoProcess => "no process".to_owned(),
        }
    }

    /// The current warning, if any.
    pub fn warning(&self) -> Option<String> {
        (*self == Self::NoProcess).then(|| NOT_READ.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sa_proto::proto::snapshot::Hello;
    use sa_proto::snapshot::Version;

    fn responder(id: u64) -> Responder {
        let front_door = vec![format!("127.0.0.1:{}", 9000 + id)];
        let hello = Hello { responder_id: id, front_door, ..Hello::default() };
        Responder::new(&hello, Some(Version::NONE), None, Instant::now(), id)
    }

    /// A reader with the file, in `auto`.
    fn auto(now: Instant) -> PortReader {
        let mut reader = PortReader::new(now, SaMode::Auto);
        reader.set_has_file(true);
        reader.set_session(Some(Version::NONE.session));
        reader
    }

    fn connect(reader: &mut PortReader, id: u64) {
        reader.handle_offer(id, id, format!("r{id}"), id as i32);
    }

    fn messages(reader: &mut PortReader) -> Vec<(ConnectionId, FromManager)> {
        std::iter::from_fn(|| reader.poll_message()).collect()
    }

    #[test]
    fn the_manager_reads_until_a_responder_is_ready() {
        let now = Instant::now();
        let mut reader = auto(now);
        assert!(reader.reads_here(now, &[]));
        connect(&mut reader, 1);
        assert!(reader.reads_here(now, &[]), "it has no tables yet");
        reader.handle_ready(1, false);
        assert_eq!(messages(&mut reader), [(1, FromManager::Read)]);
        assert!(!reader.reads_here(now, &[responder(1)]));
        let service = PortService::Responder { name: "r1".to_owned(), pid: 1 };
        assert_eq!(reader.service(false), service);
    }

    #[test]
    fn the_responder_that_was_ready_last_reads() {
        let now = Instant::now();
        let mut reader = auto(now);
        for id in [1, 2] {
            connect(&mut reader, id);
            reader.handle_ready(id, false);
        }
        let expected = [(1, FromManager::Read), (1, FromManager::Rest), (2, FromManager::Read)];
        assert_eq!(messages(&mut reader), expected);
        reader.handle_closed(now, 2);
        assert_eq!(messages(&mut reader), [(1, FromManager::Read)]);
        assert!(!reader.reads_here(now, &[responder(1)]));
    }

    /// After a restart of the manager its responders connect in any order.
    #[test]
    fn a_spare_does_not_displace_a_reader() {
        let mut reader = auto(Instant::now());
        for (id, is_spare) in [(1, true), (2, false), (3, true)] {
            connect(&mut reader, id);
            reader.handle_ready(id, is_spare);
        }
        let expected = [(1, FromManager::Read), (1, FromManager::Rest), (2, FromManager::Read)];
        assert_eq!(messages(&mut reader), expected);
    }

    /// Regression: requests read immediately went to the responder that had died, until its feed
    /// was known to have ended, or were dropped if there was no other one.
    #[test]
    fn requests_wait_until_another_responder_can_answer_them() {
        let now = Instant::now();
        let mut reader = auto(now);
        connect(&mut reader, 1);
        reader.handle_ready(1, false);
        reader.handle_closed(now, 1);
        assert!(!reader.reads_here(now, &[responder(1), responder(2)]));
        assert!(reader.reads_here(now, &[responder(2)]));
        assert!(!reader.reads_here(now, &[]));
        let later = now + RESTART_PATIENCE;
        assert_eq!((reader.poll_timeout(), reader.awaits_responder()), (Some(later), true));
        assert!(reader.reads_here(later, &[]), "they are dropped, and counted");
        reader.handle_timeout(later, true);
        assert!(reader.reads_here(later, &[responder(1)]));
    }

    /// Regression: while a stopped process was the reader nothing answered at the SM's port.
    #[test]
    fn a_responder_that_hangs_does_not_read() {
        let now = Instant::now();
        let mut reader = auto(now);
        connect(&mut reader, 1);
        reader.handle_ready(1, false);
        assert_eq!(messages(&mut reader), [(1, FromManager::Read)]);
        reader.set_hung(now, |id| id == 1);
        assert!(reader.reads_here(now, &[responder(2)]));
        assert!(!reader.reads_here(now, &[]), "none answers");
        assert!(reader.reads_here(now + RESTART_PATIENCE, &[]));
        assert_eq!((reader.responder(), messages(&mut reader)), (None, vec![]), "it may go on");
        reader.set_hung(now, |_| false);
        assert_eq!(messages(&mut reader), [(1, FromManager::Read)]);
        assert!(!reader.reads_here(now, &[responder(1), responder(2)]));
    }

    #[test]
    fn the_next_responder_reads_while_one_hangs_and_is_displaced_when_that_goes_on() {
        let now = Instant::now();
        let mut reader = auto(now);
        for id in [1, 2] {
            connect(&mut reader, id);
            reader.handle_ready(id, false);
        }
        messages(&mut reader);
        reader.set_hung(now, |id| id == 2);
        assert_eq!(messages(&mut reader), [(1, FromManager::Read)]);
        // A third is ready meanwhile: it outranks both.
        connect(&mut reader, 3);
        reader.handle_ready(3, false);
        assert_eq!(messages(&mut reader), [(1, FromManager::Rest), (3, FromManager::Read)]);
        reader.set_hung(now, |_| false);
        assert_eq!(messages(&mut reader), [(2, FromManager::Rest)]);
        reader.set_hung(now, |id| id == 3);
        reader.set_hung(now, |_| false);
        let expected = [(2, FromManager::Read), (2, FromManager::Rest), (3, FromManager::Read)];
        assert_eq!(messages(&mut reader), expected);
    }

    #[test]
    fn a_successor_finds_what_has_waited() {
        let now = Instant::now();
        let mut reader = auto(now);
        connect(&mut reader, 1);
        reader.handle_ready(1, false);
        reader.handle_closed(now, 1);
        connect(&mut reader, 2);
        reader.handle_ready(2, false);
        assert!(!reader.reads_here(now + RESTART_PATIENCE, &[responder(2)]));
        let expected = [(2, FromManager::Read)];
        assert_eq!(messages(&mut reader)[..], expected, "none to a connection that is closed");
    }

    #[test]
    fn the_manager_reads_only_a_file_that_it_has_and_never_in_external_mode() {
        let now = Instant::now();
        let mut reader = PortReader::new(now, SaMode::Auto);
        assert!(!reader.reads_here(now, &[responder(1)]), "another process has the class");
        reader.set_has_file(true);
        assert!(reader.reads_here(now, &[responder(1)]));
        let mut reader = PortReader::new(now, SaMode::External);
        reader.set_has_file(true);
        assert!(!reader.reads_here(now, &[responder(1)]));
        assert_eq!(reader.service(false), PortService::NoProcess);
        assert!(reader.service(false).warning().is_some());
    }

    #[test]
    fn changes_of_the_reader_are_counted() {
        let now = Instant::now();
        let mut reader = auto(now);
        reader.handle_timeout(now, true);
        connect(&mut reader, 1);
        reader.handle_ready(1, false);
        reader.handle_timeout(now, false);
        assert_eq!(reader.changes(), 2);
        reader.handle_closed(now, 1);
        reader.handle_timeout(now, false);
        reader.handle_timeout(now, true);
        assert_eq!(reader.changes(), 3);
    }

    #[test]
    fn a_connection_that_was_not_announced_is_ignored() {
        let now = Instant::now();
        let mut reader = auto(now);
        reader.handle_ready(7, false);
        reader.handle_closed(now, 7);
        assert!(messages(&mut reader).is_empty() && reader.reads_here(now, &[]));
    }
}

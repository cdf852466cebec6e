//! Counters in the text format of Prometheus, under the names that dashboards of
//! `infiniband_exporter` use, in pieces: all of a large fabric is hundreds of megabytes.

use std::fmt::Write;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::Bytes;
use ib_mad::types::{Guid, PortNum};
use sa_proto::crowd::Share;
use sa_proto::quota::{Full, Place, Places};
use sa_proto::snapshot::Node;
use sm_core::perf::{Counter, PerfManager, PortView};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

use super::{PerfBoard, Selection, peer};
use crate::http::{Caller, Totals};
use crate::observe::links::End;
use crate::observe::node_name;

/// Length from which on a piece is sent.
const PIECE_LEN: usize = 64 << 10;
/// Ports looked at for a piece, whether they are listed or not: the lock is held for so many.
const PORTS_PER_PIECE: usize = 4096;
/// Limit of expositions at a time, one of a host or of a local user, and of these for trusted users
/// of this host.
const EXPOSITIONS_MAX: usize = 5;
const RESERVED: usize = 1;
/// How long an exposition must have waited for its reader to make room for another, and how long
/// that takes.
const SLOW_AFTER: Duration = Duration::from_secs(2);
const ROOM_AFTER: Duration = Duration::from_millis(100);

/// What to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) selection: Selection,
    /// Only counters other than data and packets that are not 0.
    pub(crate) errors: bool,
}

/// A family of metrics: of switches or of other nodes.
const KINDS: [(&str, bool); 2] = [("switch", true), ("hca", false)];

/// The text, made as it is read.
pub(crate) struct Exposition {
    board: Arc<PerfBoard>,
    wanted: Wanted,
    /// Index of the metric: all counters and the rate, first of switches.
    metric: usize,
    /// The node whose lines were written last.
    after: Option<Guid>,
    began: bool,
    /// Whether the metric's HELP and TYPE were written.
    is_headed: bool,
    /// Length from which on a piece is sent.
    piece_len: usize,
}

/// Metrics of a kind of node: counters, and the four others.
const METRICS: usize = Counter::COUNT + 4;

/// A family of metrics of ports, or of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Total(Counter),
    /// Bytes per second after line coding.
    Rate,
    /// Bytes per second on the wire.
    RawRate,
    /// Names and LID of a node.
    Info,
    /// The node at the other end of a link.
    Uplink,
}

impl Metric {
    fn of(index: usize) -> Self {
        let others = [Self::Rate, Self::RawRate, Self::Info, Self::Uplink];
        let counter = Counter::ALL.get(index).map(|counter| Self::Total(*counter));
        counter.unwrap_or_else(|| others[index.saturating_sub(Counter::COUNT) % others.len()])
    }

    /// Whether it is left out of a list of errors.
    fn is_no_error(self) -> bool {
        !matches!(self, Self::Total(counter) if !Counter::DATA.contains(counter))
    }

    fn name(self, kind: &str) -> String {
        match self {
            Self::Total(counter) => format!("infiniband_{kind}_port_{}_total", counter.metric()),
            Self::Rate if kind == "switch" => {
                "infiniband_switch_port_rate_bytes_per_second".to_owned()
            }
            Self::Rate => format!("infiniband_{kind}_rate_bytes_per_second"),
            Self::RawRate if kind == "switch" => {
                "infiniband_switch_port_raw_rate_bytes_per_second".to_owned()
            }
            Self::RawRate => format!("infiniband_{kind}_raw_rate_bytes_per_second"),
            Self::Info => format!("infiniband_{kind}_info"),
            Self::Uplink => format!("infiniband_{kind}_uplink_info"),
        }
    }

    fn help(self) -> &'static str {
        match self {
            Self::Total(counter) => counter.name(),
            Self::Rate => "Data rate of the link",
            Self::RawRate => "Rate of the link on the wire",
            Self::Info => "Name and LID",
            Self::Uplink => "Other end of the link",
        }
    }
}

impl Exposition {
    pub(crate) fn new(board: Arc<PerfBoard>, wanted: Wanted) -> Self {
        Self {
            board,
            wanted,
            metric: 0,
            after: None,
            began: false,
            is_headed: false,
            piece_len: PIECE_LEN,
        }
    }

    /// The same in pieces of another length.
    #[cfg(test)]
    pub(super) fn in_pieces_of(self, piece_len: usize) -> Self {
        Self { piece_len, ..self }
    }

    /// The next piece, which is empty if none of the ports looked at is listed; `None` at the end,
    /// or if counters are not read.
    pub(crate) fn next_piece(&mut self) -> Option<String> {
        if self.metric >= KINDS.len() * METRICS {
            return None;
        }
        let board = self.board.clone();
        let (unlisted, growths) = (board.unlisted(), board.growths().totals());
        board.with(|manager| self.piece(manager, unlisted, growths))
    }

    fn piece(
        &mut self,
        manager: &PerfManager,
        unlisted: (usize, usize),
        growths: [u64; 2],
    ) -> String {
        let mut text = String::with_capacity(self.piece_len + (8 << 10));
        if !std::mem::replace(&mut self.began, true) {
            own_figures(&mut text, manager, unlisted, growths);
        }
        let mut looked_at = 0;
        let has_room =
            |text: &str, looked_at| text.len() < self.piece_len && looked_at < PORTS_PER_PIECE;
        while self.metric < KINDS.len() * METRICS && has_room(&text, looked_at) {
            let (kind, is_switch) = KINDS[self.metric / METRICS];
            let metric = Metric::of(self.metric % METRICS);
            let is_left_out = (self.wanted.selection.switches && !is_switch)
                || (self.wanted.errors && metric.is_no_error());
            if is_left_out {
                self.metric += 1;
                continue;
            }
            let name = metric.name(kind);
            if !std::mem::replace(&mut self.is_headed, true) {
                let kind = if matches!(metric, Metric::Total(_)) { "counter" } else { "gauge" };
                let of = if metric == Metric::Info { "node" } else { "port" };
                let _ = writeln!(text, "# HELP {name} {} of a {of}", metric.help());
                let _ = writeln!(text, "# TYPE {name} {kind}");
            }
            let mut position = self.after.map_or(0, |guid| manager.position_after(guid));
            while position < manager.node_count() && has_room(&text, looked_at) {
                looked_at += 1;
                let mut ports = manager.ports_of(position).peekable();
                position += 1;
                let Some(node) = ports.peek().map(|port| port.node) else { continue };
                self.after = Some(node.guid);
                let is_kind = node.switch_info.is_some() == is_switch;
                if !is_kind || !self.wanted.selection.takes(node) {
                    continue;
                }
                for port in ports {
                    looked_at += 1;
                    let is_listed =
                        self.line(&mut text, manager, (&name, metric), is_switch, &port);
                    if is_listed && metric == Metric::Info {
                        break;
                    }
                }
            }
            if position == manager.node_count() {
                (self.metric, self.after, self.is_headed) = (self.metric + 1, None, false);
            }
        }
        text
    }

    /// Appends the line of a port of a selected node, or of that node; returns whether it has one.
    fn line(
        &self,
        text: &mut String,
        manager: &PerfManager,
        (name, metric): (&str, Metric),
        is_switch: bool,
        port: &PortView<'_>,
    ) -> bool {
        let node = port.node;
        if !port.is_known || !port.active {
            return false;
        }
        let link = node.port(port.number).and_then(|at| End::new(node, at));
        let value = match metric {
            Metric::Total(counter) => {
                let total = port.counts.total(counter);
                if self.wanted.errors && total == 0 {
                    return false;
                }
                Some(if counter.is_data() { total.saturating_mul(4) } else { total })
            }
            Metric::Rate => link.and_then(|link| link.capacity()).map(|rate| rate as u64),
            Metric::RawRate => link.and_then(|link| link.raw_rate()).map(|rate| rate as u64),
            Metric::Info | Metric::Uplink => Some(1),
        };
        let Some(value) = value else { return false };
        let _ = write!(text, "{name}{{guid=\"{:#018x}", node.guid.0);
        if metric == Metric::Info {
            let _ = write!(text, "\",lid=\"{}", lid(node, port.number));
        } else {
            let _ = write!(text, "\",port=\"{}", port.number.0);
        }
        text.push_str(if is_switch { "\",switch=\"" } else { "\",hca=\"" });
        escape(text, &node_name(node));
        if metric != Metric::Info
            && let Some((far, number)) = peer(manager, node, port.number)
        {
            text.push_str("\",uplink=\"");
            escape(text, &far);
            let _ = write!(text, "\",uplink_port=\"{}", number.0);
        }
        if metric == Metric::Uplink
            && let Some((guid, number)) = node.port(port.number).and_then(|port| port.peer)
            && let Some(far) = manager.node(guid)
        {
            let kind = if far.switch_info.is_some() { "SW" } else { "CA" };
            let _ = write!(text, "\",uplink_guid=\"{:#018x}\",uplink_type=\"{kind}", guid.0);
            let _ = write!(text, "\",uplink_lid=\"{}", lid(far, number));
        }
        let _ = writeln!(text, "\"}} {value}");
        true
    }
}

/// LID of a node's port; of a switch that of port 0.
fn lid(node: &Node, port: PortNum) -> u16 {
    let port = if node.switch_info.is_some() { PortNum(0) } else { port };
    let entry = node.port(port).and_then(|port| End::new(node, port));
    entry.map_or(0, |end| end.info().base_lid().0)
}

/// The expositions that are under way, by whom they go to. Each piece is made on a thread
/// for blocking work, so that other requests are answered meanwhile. If all places are taken, the
/// one whose reader has kept it waiting longest makes room.
#[derive(Debug)]
pub(crate) struct Expositions {
    places: Places<Share>,
    under_way: Arc<Mutex<Vec<Weak<Reading>>>>,
    totals: Arc<Totals>,
}

/// An exposition that is being read.
#[derive(Debug)]
struct Reading {
    is_trusted: bool,
    /// How long it has waited for its reader in all, and since when it waits.
    waits: Mutex<(Duration, Option<Instant>)>,
    /// Whether it makes room for another.
    is_cut: AtomicBool,
    cut: Notify,
}

impl Reading {
    fn new(is_trusted: bool) -> Self {
        Self {
            is_trusted,
            waits: Mutex::default(),
            is_cut: AtomicBool::default(),
            cut: Notify::new(),
        }
    }

    /// How long it has waited for its reader.
    fn waited(&self, now: Instant) -> Duration {
        let (before, since) = *lock(&self.waits);
        before + since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Sends a piece; returns whether it was taken and there may be more.
    async fn send(&self, sender: &mpsc::Sender<Bytes>, piece: Bytes) -> bool {
        lock(&self.waits).1 = Some(Instant::now());
        let is_sent = tokio::select! {
            sent = sender.send(piece) => sent.is_ok(),
            () = self.cut.notified() => false,
        };
        let waited = self.waited(Instant::now());
        *lock(&self.waits) = (waited, None);
        is_sent
    }
}

impl Expositions {
    /// None yet. Those that make room are counted in `totals`.
    pub(crate) fn new(totals: Arc<Totals>) -> Self {
        let places = Places::new(EXPOSITIONS_MAX, 1).with_reserve(RESERVED);
        Self { places, under_way: Arc::default(), totals }
    }

    /// A place for an exposition; the reason if there is none.
    fn enter(&self, Caller { share, is_trusted }: Caller) -> Result<Place<Share>, Full> {
        self.places.enter_as(is_trusted, share)
    }

    /// Ends the exposition whose reader is slowest, if one is slow; returns whether there is one.
    /// Its place is free soon after.
    fn cut_slowest(&self, is_trusted: bool) -> bool {
        let now = Instant::now();
        let mut under_way = lock(&self.under_way);
        under_way.retain(|reading| reading.strong_count() > 0);
        let all = under_way.iter().filter_map(Weak::upgrade);
        let slow = all.filter(|reading| is_trusted || !reading.is_trusted);
        let slow = slow.filter(|reading| reading.waited(now) >= SLOW_AFTER);
        let Some(slowest) = slow.max_by_key(|reading| reading.waited(now)) else { return false };
        slowest.is_cut.store(true, Relaxed);
        slowest.cut.notify_one();
        self.totals.outrun.fetch_add(1, Relaxed);
        true
    }

    /// Starts to send to `caller`; the reason if that cannot be now. It ends with the connection,
    /// which lasts no longer than a client may take to read.
    pub(crate) async fn start(
        &self,
        mut exposition: Exposition,
        caller: Caller,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>, &'static str> {
        let mut place = self.enter(caller);
        if matches!(place, Err(Full::All)) && self.cut_slowest(caller.is_trusted) {
            tokio::time::sleep(ROOM_AFTER).await;
            place = self.enter(caller);
        }
        let place = place.map_err(|full| match full {
            Full::Share => "you are reading the counters already; try again",
            Full::All => "too many others are reading the counters; try again",
        })?;
        let reading = Arc::new(Reading::new(caller.is_trusted));
        lock(&self.under_way).push(Arc::downgrade(&reading));
        let ended = reading.clone();
        let (sender, received) = mpsc::channel(1);
        tokio::spawn(async move {
            let _place = place;
            loop {
                let make = move || {
                    let piece = exposition.next_piece();
                    (exposition, piece)
                };
                let Ok((rest, Some(piece))) = tokio::task::spawn_blocking(make).await else {
                    return;
                };
                exposition = rest;
                if sender.is_closed() {
                    return;
                }
                if !piece.is_empty() && !reading.send(&sender, piece.into()).await {
                    return;
                }
            }
        });
        // A reader must not take what it has for all.
        let end = tokio_stream::once(()).filter_map(move |()| {
            let reason = || io::Error::other("too slow: another reads the counters");
            ended.is_cut.load(Relaxed).then(|| Err(reason()))
        });
        Ok(ReceiverStream::new(received).map(Ok).chain(end))
    }
}

/// Figures about the performance manager.
fn own_figures(
    text: &mut String,
    manager: &PerfManager,
    (links, ports): (usize, usize),
    [passed, missed]: [u64; 2],
) {
    let status = manager.status();
    let figures = [
        ("sweeps_total", "Sweeps that ended", status.sweeps as f64),
        ("glances_total", "Glances at error counters that ended", status.glances as f64),
        ("last_sweep_seconds", "Duration of the last sweep", status.last_sweep.as_secs_f64()),
        ("ports", "Ports known", status.ports as f64),
        ("queries_sent_total", "Queries sent, repeats included", status.sent as f64),
        ("queries_retried_total", "Queries repeated", status.retried as f64),
        ("queries_expired_total", "Queries without an answer", status.expired as f64),
        ("queries_refused_total", "Answers with an error status", status.refused as f64),
        ("answers_unmatched_total", "Answers that match no query", status.unmatched as f64),
        ("redirections_total", "Redirections followed", status.redirected as f64),
        (
            "redirections_refused_total",
            "Redirections not followed",
            status.redirections_refused as f64,
        ),
        ("switches_quiet_total", "Switches not read port by port", status.quiet as f64),
        ("clears_total", "Clears of counters", status.clears as f64),
        (
            "clears_by_others_total",
            "Readings below the one before",
            status.cleared_by_others as f64,
        ),
        ("events_dropped_total", "Events dropped", status.events_dropped as f64),
        ("growth_events_total", "Events of growth of counters", passed as f64),
        ("growth_events_missed_total", "Of these, missed by readers that lag", missed as f64),
        ("links_unlisted", "Directions of loaded links left out of loads", links as f64),
        ("curves_unlisted", "Ports whose past rates are not remembered", ports as f64),
    ];
    for (name, what, value) in figures {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(text, "# HELP ibsm_perf_{name} {what}");
        let _ = writeln!(text, "# TYPE ibsm_perf_{name} {kind}\nibsm_perf_{name} {value}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends the value of a label.
fn escape(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> Caller {
        Caller { share: Share::of_host([192, 0, 2, last].into()), is_trusted: false }
    }

    /// Regression: expositions were not limited in number, and each took the thread that serves
    /// everything.
    #[test]
    fn expositions_are_limited_in_number_and_to_one_of_a_host() {
        let expositions = Expositions::new(Arc::default());
        let enter = |last: u8| expositions.enter(host(last));
        let mut all: Vec<Place<Share>> = (1..=4).map(|last| enter(last).unwrap()).collect();
        assert!(enter(5).is_err());
        all.remove(1);
        assert!(enter(1).is_err(), "it has one");
        let _fifth = enter(5).unwrap();
        assert!(enter(6).is_err());
        let root = Caller { share: Share::User(0), is_trusted: true };
        assert!(expositions.enter(root).is_ok(), "one is kept");
    }

    /// Regression: four users that read the counters slowly kept them from all others for two
    /// minutes at a time.
    #[tokio::test]
    async fn the_slowest_reader_makes_room_and_notices() {
        let board = Arc::new(PerfBoard::default());
        super::super::testing::install_idle(&board);
        let totals = Arc::<Totals>::default();
        let expositions = Expositions::new(totals.clone());
        let start = |last| {
            let exposition = Exposition::new(board.clone(), Wanted::default()).in_pieces_of(1);
            expositions.start(exposition, host(last))
        };
        let mut all = Vec::new();
        for last in 1..=4 {
            all.push(start(last).await.expect("a place"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(start(5).await.is_err(), "none is slow yet");
        // In place of two seconds.
        for reading in lock(&expositions.under_way).iter().filter_map(Weak::upgrade) {
            lock(&reading.waits).0 += SLOW_AFTER;
        }
        let fifth = start(5).await.expect("the first makes room");
        assert_eq!(totals.outrun.load(Relaxed), 1);
        let read: Vec<_> = all.remove(0).collect().await;
        assert!(read.last().is_some_and(Result::is_err), "it is not taken for whole");
        let read: Vec<_> = all.remove(0).collect().await;
        assert!(read.len() > 1 && read.iter().all(Result::is_ok));
        drop(fifth);
    }

    #[tokio::test]
    async fn a_host_reads_the_counters_once_at_a_time() {
        let board = Arc::new(PerfBoard::default());
        super::super::testing::install_idle(&board);
        let expositions = Expositions::new(Arc::default());
        let start = || {
            let exposition = Exposition::new(board.clone(), Wanted::default()).in_pieces_of(1);
            expositions.start(exposition, host(1))
        };
        let mut reading = start().await.expect("a place");
        assert!(reading.next().await.is_some());
        assert!(start().await.is_err());
        drop(reading);
        // Its thread notices after the piece that it is making.
        let freed = async {
            while start().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), freed).await.expect("the place is freed");
    }
}

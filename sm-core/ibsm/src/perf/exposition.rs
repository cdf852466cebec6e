//! Counters in the text format of Prometheus, under the names that dashboards of
//! `infiniband_exporter` use, in pieces: all of a large fabric is hundreds of megabytes.

use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Bytes;
use ib_mad::types::Guid;
use sm_core::perf::{Counter, PerfManager, PortView};
use tokio_stream::Stream;

use super::{PerfBoard, Selection, peer};
use crate::observe::links::End;
use crate::observe::node_name;

/// Length from which on a piece is sent.
const PIECE_LEN: usize = 64 << 10;

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

/// Metrics of a kind of node.
const METRICS: usize = Counter::COUNT + 1;

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

    /// The next piece; `None` at the end, or if counters are not read.
    pub(crate) fn next_piece(&mut self) -> Option<String> {
        let board = self.board.clone();
        let unlisted = board.unlisted();
        board.with(|manager| self.piece(manager, unlisted)).filter(|text| !text.is_empty())
    }

    fn piece(&mut self, manager: &PerfManager, unlisted: (usize, usize)) -> String {
        let mut text = String::with_capacity(self.piece_len + (8 << 10));
        if !std::mem::replace(&mut self.began, true) {
            own_figures(&mut text, manager, unlisted);
        }
        while self.metric < KINDS.len() * METRICS && text.len() < self.piece_len {
            let (kind, is_switch) = KINDS[self.metric / METRICS];
            let counter = Counter::ALL.get(self.metric % METRICS).copied();
            let is_left_out = (self.wanted.selection.switches && !is_switch)
                || (self.wanted.errors && counter.is_none_or(|at| Counter::DATA.contains(at)));
            if is_left_out {
                self.metric += 1;
                continue;
            }
            let name = metric_name(kind, counter);
            if !std::mem::replace(&mut self.is_headed, true) {
                let kind = if counter.is_some() { "counter" } else { "gauge" };
                let what = counter.map_or("Rate of the link", Counter::name);
                let _ = writeln!(text, "# HELP {name} {what} of a port\n# TYPE {name} {kind}");
            }
            let mut position = self.after.map_or(0, |guid| manager.position_after(guid));
            while position < manager.node_count() && text.len() < self.piece_len {
                for port in manager.ports_of(position) {
                    self.after = Some(port.node.guid);
                    self.line(&mut text, manager, &name, is_switch, counter, &port);
                }
                position += 1;
            }
            if position == manager.node_count() {
                (self.metric, self.after, self.is_headed) = (self.metric + 1, None, false);
            }
        }
        text
    }

    fn line(
        &self,
        text: &mut String,
        manager: &PerfManager,
        name: &str,
        is_switch: bool,
        counter: Option<Counter>,
        port: &PortView<'_>,
    ) {
        let node = port.node;
        let is_listed = port.is_known
            && port.active
            && node.switch_info.is_some() == is_switch
            && self.wanted.selection.takes(node);
        if !is_listed {
            return;
        }
        let value = match counter {
            Some(counter) => {
                let total = port.counts.total(counter);
                if self.wanted.errors && total == 0 {
                    return;
                }
                if counter.is_data() { total.saturating_mul(4) } else { total }
            }
            None => {
                let end = node.port(port.number).and_then(|at| End::new(node, at));
                let Some(gbps) = end.and_then(|end| end.gbps()) else { return };
                (gbps * 1e9 / 8.0) as u64
            }
        };
        let kind = if is_switch { "switch" } else { "hca" };
        let _ = write!(
            text,
            "{name}{{guid=\"{:#018x}\",port=\"{}\",{kind}=\"",
            node.guid.0, port.number.0
        );
        escape(text, &node_name(node));
        if let Some((far, number)) = peer(manager, node, port.number) {
            text.push_str("\",uplink=\"");
            escape(text, &far);
            let _ = write!(text, "\",uplink_port=\"{}", number.0);
        }
        let _ = writeln!(text, "\"}} {value}");
    }
}

impl Stream for Exposition {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.next_piece().map(|text| Ok(Bytes::from(text))))
    }
}

fn metric_name(kind: &str, counter: Option<Counter>) -> String {
    match counter {
        Some(counter) => format!("infiniband_{kind}_port_{}_total", counter.metric()),
        None if kind == "switch" => "infiniband_switch_port_rate_bytes_per_second".to_owned(),
        None => format!("infiniband_{kind}_rate_bytes_per_second"),
    }
}

/// Figures about the performance manager.
fn own_figures(text: &mut String, manager: &PerfManager, (links, ports): (usize, usize)) {
    let status = manager.status();
    let figures = [
        ("sweeps_total", "Sweeps that ended", status.sweeps as f64),
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
        ("links_unlisted", "Directions of loaded links left out of loads", links as f64),
        ("curves_unlisted", "Ports whose past rates are not remembered", ports as f64),
    ];
    for (name, what, value) in figures {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(text, "# HELP ibsm_perf_{name} {what}");
        let _ = writeln!(text, "# TYPE ibsm_perf_{name} {kind}\nibsm_perf_{name} {value}");
    }
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

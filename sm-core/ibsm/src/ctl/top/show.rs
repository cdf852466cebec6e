//! Renders the state as lines of text, for a screen of any size or for a file.

use std::collections::VecDeque;

use crate::observe::moment::{Moment, ProblemNow, ResponderNow, Standing, Talker, TypeRate};
use crate::observe::problem::Severity;
use crate::observe::words::{self, duration};

/// Width of output that is not a terminal.
const PLAIN_WIDTH: usize = 100;
/// Rows per table in output that is not a terminal.
const PLAIN_ROWS: usize = 64;
/// Largest number of seconds that the line of rates covers.
const LATELY_MAX: usize = 240;
/// Width from which on answers by type and talkers are beside each other, of the first, and between
/// them.
const BESIDE_MIN: usize = 160;
const TYPES_WIDTH: usize = 95;
const GAP: usize = 4;
/// Problems shown.
const PROBLEMS_MAX: usize = 3;
/// Smallest supported width; narrower screens cut lines off.
const WIDTH_MIN: usize = 60;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Soft,
    Good,
    Warn,
    Bad,
    Accent,
}

/// A line, as styled pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(Tone, String)>);

impl Line {
    /// Its styled pieces.
    pub(super) fn spans(&self) -> &[(Tone, String)] {
        &self.0
    }

    fn of(tone: Tone, text: impl Into<String>) -> Self {
        Self(vec![(tone, text.into())])
    }

    fn and(mut self, tone: Tone, text: impl Into<String>) -> Self {
        self.0.push((tone, text.into()));
        self
    }

    /// Cuts the line to `width` characters.
    fn cut(mut self, width: usize) -> Self {
        let mut left = width;
        for (_, text) in &mut self.0 {
            let kept = text.chars().count().min(left);
            *text = text.chars().take(kept).collect();
            left -= kept;
        }
        self
    }
}

/// The state to show.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) url: &'a str,
    /// Why the data is stale.
    pub(super) lost: Option<&'a str>,
    pub(super) lately: Option<&'a Lately>,
    pub(super) moment: &'a Moment,
}

impl<'a> View<'a> {
    pub(super) fn of(moment: &'a Moment) -> Self {
        Self { url: "", lost: None, lately: None, moment }
    }
}

/// Rates of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Lately(VecDeque<Option<f64>>);

impl Lately {
    /// Appends the rate of the last second.
    pub(super) fn take(&mut self, moment: &Moment) {
        if self.0.len() >= LATELY_MAX {
            self.0.pop_front();
        }
        self.0.push_back(moment.total.answers_per_s);
    }

    /// The last `width` seconds as bars.
    fn bars(&self, width: usize) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let last = || self.0.iter().skip(self.0.len().saturating_sub(width));
        let most = last().flatten().copied().fold(0.0, f64::max);
        let bar = |rate: &Option<f64>| match rate {
            Some(rate) if most > 0.0 => BARS[((rate / most * 7.0).round() as usize).min(7)],
            Some(_) => BARS[0],
            None => ' ',
        };
        last().map(bar).collect()
    }
}

/// Renders text for output that is not a terminal.
pub(super) fn plain(view: &View<'_>) -> String {
    let lines = composed(view, PLAIN_WIDTH, [PLAIN_ROWS; 3]);
    let text = |line: &Line| {
        let text: String = line.0.iter().map(|(_, text)| text.as_str()).collect();
        text.trim_end().to_owned() + "\n"
    };
    lines.iter().map(text).collect()
}

/// Renders lines for a screen, with as many rows of each table as fit.
pub(super) fn lines(view: &View<'_>, width: usize, height: usize) -> Vec<Line> {
    let moment = view.moment;
    let heads = composed(view, width, [0; 3]).len();
    let mut rows = [0; 3];
    let wanted = [moment.responders.len(), moment.types.len(), moment.talkers.len()];
    // Tables get rows in turn, so that all of them share the space. Of two that are beside each
    // other, one line has a row of each.
    let are_beside = width >= BESIDE_MIN;
    let used = |rows: &[usize; 3]| match are_beside {
        true => rows[0] + rows[1].max(rows[2]),
        false => rows.iter().sum(),
    };
    loop {
        let has_room = |table: usize| {
            let mut more = rows;
            more[table] += 1;
            rows[table] < wanted[table] && heads + used(&more) <= height
        };
        let Some(next) = (0..3).filter(|&at| has_room(at)).min_by_key(|&at| rows[at]) else {
            break;
        };
        rows[next] += 1;
    }
    let lines = composed(view, width, rows);
    lines.into_iter().take(height).map(|line| line.cut(width)).collect()
}

fn composed(view: &View<'_>, width: usize, rows: [usize; 3]) -> Vec<Line> {
    let moment = view.moment;
    let width = width.max(WIDTH_MIN);
    let mut lines = head(view, width);
    lines.push(Line::default());
    let name = width.saturating_sub(71).clamp(9, 64);
    lines.push(Line::of(
        Tone::Soft,
        format!(
            "{:<name$}  {:<9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "RESPONDER", "STATE", "ANSWERS/S", "P50", "P99", "DROPPED/S", "IN FLIGHT", "LAG"
        ),
    ));
    if moment.responders.is_empty() {
        lines.push(Line::of(
            Tone::Soft,
            format!("no responder connected; start one: ibsa --sm {} --transport udp", view.url),
        ));
    }
    lines.extend(moment.responders.iter().take(rows[0]).map(|one| responder(one, name)));
    lines.push(Line::default());
    if width < BESIDE_MIN {
        lines.extend(types(moment, width, rows[1]));
        lines.push(Line::default());
        lines.extend(talkers(moment, width, rows[2]));
    } else {
        let left = types(moment, TYPES_WIDTH, rows[1]);
        let right = talkers(moment, width - TYPES_WIDTH - GAP, rows[2]);
        lines.extend(beside(left, right));
    }
    lines
}

/// The table of answers by type.
fn types(moment: &Moment, width: usize, rows: usize) -> Vec<Line> {
    let name = width.saturating_sub(62).clamp(18, 33);
    let title = format!(
        "{:<name$} {:<9} {:>11} {:>9} {:>12} {:>16}",
        "ATTRIBUTE", "METHOD", "ANSWERS/S", "ERRORS/S", "NO RECORDS/S", "TOTAL"
    );
    let rows = moment.types.iter().take(rows).map(|one| of_type(one, name));
    std::iter::once(Line::of(Tone::Soft, title)).chain(rows).collect()
}

/// The table of those that ask most.
fn talkers(moment: &Moment, width: usize, rows: usize) -> Vec<Line> {
    let name = width.saturating_sub(29).clamp(28, 120);
    let title = "TOP TALKER (average of 10 s)";
    let title = format!("{:>6}  {title:<name$} {:>11} {:>8}", "LID", "REQUESTS/S", "SHARE");
    let rows = moment.talkers.iter().take(rows).map(|one| talker(one, name));
    std::iter::once(Line::of(Tone::Soft, title)).chain(rows).collect()
}

/// Two tables beside each other.
fn beside(left: Vec<Line>, right: Vec<Line>) -> Vec<Line> {
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let mut lines = Vec::new();
    loop {
        let (Line(mut spans), other) = match (left.next(), right.next()) {
            (None, None) => return lines,
            (one, other) => (one.unwrap_or_default(), other.unwrap_or_default()),
        };
        let len: usize = spans.iter().map(|(_, text)| text.chars().count()).sum();
        spans.push((Tone::Plain, " ".repeat((TYPES_WIDTH + GAP).saturating_sub(len))));
        spans.extend(other.0);
        lines.push(Line(spans));
    }
}

fn head(view: &View<'_>, width: usize) -> Vec<Line> {
    let Moment { sm, fabric, total, drops, .. } = view.moment;
    let state = if sm.state.is_empty() { "starting" } else { &sm.state };
    let problems = &view.moment.problems;
    let subnet = words::subnet(sm.subnet_up, &sm.state, problems.critical, problems.warning);
    let tone = match (sm.subnet_up, state) {
        (true, _) if problems.critical > 0 => Tone::Bad,
        (true, _) if problems.warning > 0 => Tone::Warn,
        (true, _) => Tone::Good,
        (false, "standby") => Tone::Warn,
        (false, _) => Tone::Bad,
    };
    let mut lines = vec![
        Line::of(Tone::Strong, sm.software.clone())
            .and(Tone::Plain, format!("  {state}  subnet "))
            .and(tone, subnet)
            .and(Tone::Soft, format!("  for {}  {}", duration(sm.uptime_s), view.url)),
        Line::of(
            Tone::Soft,
            format!(
                "{} hosts, {} switches, {} links; epoch {}, generation {}, registry {}",
                fabric.hosts,
                fabric.switches,
                fabric.links,
                sm.epoch,
                sm.fabric_generation,
                sm.registry_sequence
            ),
        ),
    ];
    if let Some(lost) = view.lost {
        lines.push(Line::of(Tone::Bad, format!("stale data: {lost}")));
    }
    lines.extend(troubles(view.moment, width));
    lines.push(Line::default());
    lines.push(
        Line::of(Tone::Strong, format!("{} answers/s", rate(total.answers_per_s)))
            .and(Tone::Plain, format!("  {} errors/s", rate(total.errors_per_s)))
            .and(Tone::Plain, format!("  {} no records/s", rate(total.no_records_per_s)))
            .and(
                if total.dropped_per_s > Some(0.0) { Tone::Warn } else { Tone::Plain },
                format!("  {} dropped/s", rate(total.dropped_per_s)),
            ),
    );
    lines.push(Line::of(
        Tone::Plain,
        format!(
            "latency p50 {}  p99 {}  p99.9 {}  {} in flight  lag {}",
            micros(total.p50_us),
            micros(total.p99_us),
            micros(total.p999_us),
            whole(total.in_flight),
            millis(total.lag_ms)
        ),
    ));
    let dropping: Vec<_> = drops.iter().filter(|drop| drop.per_s > 0.0).collect();
    if !dropping.is_empty() {
        let text =
            dropping.iter().map(|drop| format!("{} {}", drop.reason, rate(Some(drop.per_s))));
        let text: Vec<_> = text.collect();
        lines.push(Line::of(Tone::Warn, format!("dropped/s: {}", text.join(", "))));
    }
    if let Some(lately) = view.lately {
        lines.push(Line::of(Tone::Accent, lately.bars(width.min(LATELY_MAX))));
    }
    lines
}

/// The first problems. Managers of before list warnings only.
fn troubles(moment: &Moment, width: usize) -> Vec<Line> {
    let problems = &moment.problems;
    if problems.first.is_empty() {
        let warnings = moment.sm.warnings.iter();
        return warnings.map(|warning| Line::of(Tone::Warn, fitted(warning, width))).collect();
    }
    let line = |problem: &ProblemNow| {
        let tone = match problem.severity {
            Severity::Critical => Tone::Bad,
            Severity::Warning => Tone::Warn,
            Severity::Notice => Tone::Plain,
        };
        let text = format!("{:<8}  {}", problem.severity.name(), problem.text);
        Line::of(tone, fitted(&text, width))
    };
    let mut lines: Vec<Line> = problems.first.iter().take(PROBLEMS_MAX).map(line).collect();
    let all = problems.critical + problems.warning + problems.notice;
    let more = all.saturating_sub(lines.len() as u64);
    if more > 0 {
        let text = format!("{} more; see ibsmctl problems", grouped(more));
        lines.push(Line::of(Tone::Soft, text));
    }
    lines
}

fn responder(one: &ResponderNow, name: usize) -> Line {
    let tone = match one.state {
        Standing::Current => Tone::Good,
        Standing::Behind | Standing::Waiting => Tone::Warn,
        Standing::Elsewhere | Standing::Silent | Standing::Down => Tone::Bad,
    };
    let load = &one.load;
    let rest = match one.state {
        Standing::Down => format!(" for {}", duration(one.for_s)),
        _ => format!(
            " {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            rate(load.answers_per_s),
            micros(load.p50_us),
            micros(load.p99_us),
            rate(load.dropped_per_s),
            whole(load.in_flight),
            millis(load.lag_ms)
        ),
    };
    Line::of(Tone::Plain, format!("{:<name$}  ", with_its_end(&one.name, name)))
        .and(tone, format!("{:<9}", one.state.name()))
        .and(Tone::Plain, rest)
}

fn of_type(one: &TypeRate, name: usize) -> Line {
    let TypeRate { attribute, method, per_s, errors_per_s, no_records_per_s, total } = one;
    let attribute = fitted(attribute, name);
    let [per_s, errors, none] =
        [per_s, errors_per_s, no_records_per_s].map(|value| rate(Some(*value)));
    Line::of(
        Tone::Plain,
        format!("{attribute:<name$} {method:<9} {per_s:>11} {errors:>9} {none:>12} {total:>16}"),
    )
}

fn talker(one: &Talker, name: usize) -> Line {
    let node = match (one.node.is_empty(), one.left) {
        (true, _) => "not in the fabric",
        (false, false) => &one.node,
        (false, true) => &format!("{} (left)", one.node),
    };
    let (node, per_s, share) = (fitted(node, name), rate(Some(one.per_s)), one.share * 100.0);
    Line::of(Tone::Plain, format!("{:>6}  {node:<name$} {per_s:>11} {share:>6.1} %", one.lid))
}

/// Cuts `text` to `width` characters.
/// A name without its middle if it is too long: names of responders differ at their ends.
fn with_its_end(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let end = width.saturating_sub(1).min(5);
    let begin = width.saturating_sub(1 + end);
    name.chars().take(begin).chain(['…']).chain(name.chars().skip(count - end)).collect()
}

fn fitted(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

const NONE: &str = "-";

fn whole(value: Option<u64>) -> String {
    value.map_or_else(|| NONE.to_owned(), grouped)
}

fn rate(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) if value > 0.0 && value < 9.95 => format!("{value:.1}"),
        Some(value) => grouped(value.round() as u64),
    }
}

/// Formats 1234567 as 1,234,567.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn micros(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(us) if us < 1.0 => format!("{:.0} ns", us * 1e3),
        Some(us) if us < 999.5 => format!("{} µs", digits(us)),
        Some(us) => millis(Some(us / 1e3)),
    }
}

fn millis(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(ms) if ms < 999.5 => format!("{} ms", digits(ms)),
        Some(ms) if ms < 99_950.0 => format!("{} s", digits(ms / 1e3)),
        Some(ms) => duration((ms / 1e3) as u64),
    }
}

fn digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::moment::{Load, Sm};

    fn moment(responders: usize) -> Moment {
        let load = Load {
            answers_per_s: Some(1_234_567.0),
            dropped_per_s: Some(0.4),
            no_records_per_s: Some(7.0),
            p50_us: Some(0.85),
            p99_us: Some(12.34),
            in_flight: Some(3),
            lag_ms: Some(1500.0),
            ..Load::default()
        };
        let responder = |at| ResponderNow {
            name: format!("ibsa-{at}"),
            state: if at == 0 { Standing::Down } else { Standing::Current },
            for_s: 75,
            load: load.clone(),
            ..ResponderNow::default()
        };
        Moment {
            sm: Sm {
                state: "master".into(),
                subnet_up: true,
                software: "ibsm 0".into(),
                ..Sm::default()
            },
            total: load.clone(),
            types: vec![
                TypeRate {
                    attribute: "PathRecord".into(),
                    method: "get".into(),
                    ..TypeRate::default()
                };
                30
            ],
            responders: (0..responders).map(responder).collect(),
            talkers: vec![Talker { lid: 7, share: 0.5, ..Talker::default() }; 20],
            ..Moment::default()
        }
    }

    #[test]
    fn text_has_all_responders_with_units() {
        let mut moment = moment(3);
        (moment.talkers[0].node, moment.talkers[0].left) = ("node7".into(), true);
        let text = plain(&View::of(&moment));
        for expected in [
            "1,234,567 answers/s",
            "0.4 dropped/s",
            "p50 850 ns  p99 12.3 µs  p99.9 -",
            "lag 1.50 s",
            "  - errors/s  7.0 no records/s",
            "TOP TALKER (average of 10 s)",
            "subnet up  for",
        ] {
            assert!(text.contains(expected), "'{expected}' in:\n{text}");
        }
        assert!(text.contains("ibsa-0") && text.contains("down      for 1 min 15 s"), "{text}");
        assert!(text.contains("ibsa-2") && text.contains("current"), "{text}");
        assert!(text.contains("not in the fabric"), "{text}");
        assert!(text.contains("node7 (left) "), "{text}");
        assert!(!text.contains('\u{1b}'), "no colours where there is no terminal");
        assert!(text.lines().all(|line| line.chars().count() <= PLAIN_WIDTH), "{text}");
    }

    /// Regression: the first line was "subnet up" while a switch was missing, and no problem was
    /// shown.
    #[test]
    fn problems_are_in_the_first_line_and_the_first_of_them_below() {
        let mut moment = moment(1);
        let problem = |severity| ProblemNow {
            severity,
            text: format!("'spine1' 0x1: gone, {}", "x".repeat(200)),
            ..ProblemNow::default()
        };
        moment.problems.first = vec![problem(Severity::Critical), problem(Severity::Warning)];
        (moment.problems.critical, moment.problems.notice) = (1, 1_200);
        let text = plain(&View::of(&moment));
        assert!(text.contains("master  subnet up, with critical problems  for"), "{text}");
        assert!(text.contains("\ncritical  'spine1' 0x1: gone, xxx"), "{text}");
        assert!(text.contains("\n1,199 more; see ibsmctl problems\n"), "{text}");
        (moment.problems.critical, moment.problems.warning) = (0, 1);
        assert!(plain(&View::of(&moment)).contains("subnet up, with problems  for"));
    }

    /// Regression: tables were wider than 80 columns, and used no more than 96 of 200.
    #[test]
    fn tables_are_whole_in_80_columns_and_use_200() {
        let mut moment = moment(3);
        moment.responders[1].state = Standing::Elsewhere;
        let widest = |moment: &Moment, width| {
            let lines = composed(&View::of(moment), width, [9; 3]);
            let len = |line: &Line| line.0.iter().map(|(_, text)| text.chars().count()).sum();
            lines.iter().map(len).max().unwrap_or(0_usize)
        };
        assert_eq!(widest(&moment, 80), 80);
        assert_eq!(widest(&moment, 200), 200);
        let wide = lines(&View::of(&moment), 200, 24);
        let has_both = |line: &Line| {
            let text: String = line.0.iter().map(|(_, text)| text.as_str()).collect();
            text.contains("PathRecord") && text.contains("not in the fabric")
        };
        assert!(wide.iter().filter(|line| has_both(line)).count() > 5);
        let text = plain(&View { url: "", ..View::of(&moment) });
        assert!(text.contains("ATTRIBUTE"), "{text}");
    }

    /// Regression: in 80 columns all default names looked the same.
    #[test]
    fn names_of_responders_differ_in_80_columns() {
        assert_eq!(with_its_end("ibsa-15229", 9), "ibs…15229");
        assert_eq!(with_its_end("ibsa-1522", 9), "ibsa-1522");
        assert_eq!(
            (with_its_end("ibsa-15229", 1), with_its_end("ab", 0)),
            ("…".into(), "…".into())
        );
    }

    #[test]
    fn a_screen_is_filled_and_never_overrun() {
        let moment = moment(40);
        for (width, height) in [(200, 60), (80, 24), (60, 12), (20, 5), (1, 1)] {
            let lines = lines(&View::of(&moment), width, height);
            assert!(lines.len() <= height, "{width} x {height}");
            for line in &lines {
                let len: usize = line.spans().iter().map(|(_, text)| text.chars().count()).sum();
                assert!(len <= width, "{width} x {height}: {line:?}");
            }
            assert!(height > 24 || lines.len() == height);
        }
    }

    #[test]
    fn tables_share_the_room() {
        let moment = moment(40);
        let lines = lines(&View::of(&moment), 100, 30);
        let count = |word: &str| {
            let has = |line: &&Line| line.spans().iter().any(|(_, text)| text.contains(word));
            lines.iter().filter(has).count()
        };
        let (responders, types, talkers) =
            (count("ibsa-"), count("PathRecord"), count("not in the fabric"));
        assert!(responders.abs_diff(types) <= 1 && types.abs_diff(talkers) <= 1 && talkers > 4);
    }

    #[test]
    fn bars_show_unknown_values_as_a_gap() {
        let mut lately = Lately::default();
        for rate in [Some(0.0), None, Some(100.0), Some(50.0)] {
            lately.take(&Moment {
                total: Load { answers_per_s: rate, ..Load::default() },
                ..Moment::default()
            });
        }
        assert_eq!(lately.bars(10), "▁ █▅");
        assert_eq!(lately.bars(2), "█▅");
    }
}

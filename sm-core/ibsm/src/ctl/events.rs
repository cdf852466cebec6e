//! `ibsmctl events`: what happened; `ibsmctl history list`: what is kept of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use sa_proto::proto::admin::{Event, EventsRequest, History, HistoryRequest};
use serde::Serialize;

use super::{CtlError, Sm, time, to_json};

/// Wait before connecting again, with `--follow`.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Options of `events`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Begin at this time (12:03, '2026-11-27 12:03', 5m ago as 5m) or with the event of this
    /// number [default: the last 100 events].
    #[arg(long, value_name = "TIME|NUMBER")]
    since: Option<String>,
    /// Print the last COUNT events, with --kind of these kinds, of those that ibsm has in memory.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "since")]
    last: Option<u64>,
    /// Go on with the events that happen.
    #[arg(short, long)]
    follow: bool,
    /// Print events of these kinds only, such as problem_opened,trap; repeatable. With --follow
    /// also port_errors, port_data_counters and port_select: growth of counters at each reading of
    /// a port, which is not kept; all stands for all other kinds.
    #[arg(short, long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Print JSON, one event per line.
    #[arg(short, long)]
    json: bool,
}

/// Commands of `history`.
#[derive(Debug, clap::Subcommand)]
pub enum HistoryCommand {
    /// List the files of the history: their events and time spans.
    List {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
}

/// Prints events. With `--follow`, until the output is closed.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let mut request = EventsRequest {
        last: options.last,
        follow: options.follow,
        kinds: options.kind.clone(),
        ..EventsRequest::default()
    };
    if let Some(since) = &options.since {
        match since.parse() {
            Ok(number) => request.from_number = Some(number),
            Err(_) => request.since_ms = Some(time::parse("--since", since)?),
        }
    }
    let mut text = String::new();
    let mut state = State::default();
    loop {
        let ended = read(sm, options, &mut request, &mut text, &mut state).await;
        match ended {
            Ok(()) if text.is_empty() && !options.follow && !options.json => {
                return Ok("no events\n".to_owned());
            }
            Ok(()) => return Ok(text),
            Err(failure) if options.follow && state.was_connected => {
                if let Some(report) = state.fail(&failure) {
                    let _ = writeln!(std::io::stderr(), "ibsmctl: {report}; connecting again");
                }
                tokio::time::sleep(RETRY_DELAY).await;
                // What refuses from now on may be a manager that starts.
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// What is known of the connection, with `--follow`.
#[derive(Default)]
struct State {
    was_connected: bool,
    /// Why it is not connected, as it was reported last.
    reported: Option<String>,
}

impl State {
    /// What to report of a failure: each reason once, however long it lasts.
    fn fail(&mut self, failure: &CtlError) -> Option<String> {
        let (reason, report) = match failure {
            CtlError::Unreachable { address, reason } => {
                let report = format!("the connection to ibsm at {address} is lost: {reason}");
                (address.clone(), report)
            }
            other => (other.to_string(), other.to_string()),
        };
        let is_news = self.reported.as_ref() != Some(&reason);
        self.reported = Some(reason);
        is_news.then_some(report)
    }

    fn connected(&mut self) {
        self.was_connected = true;
        if self.reported.take().is_some() {
            let _ = writeln!(std::io::stderr(), "ibsmctl: connected again");
        }
    }
}

/// Reads events until their end, or until the output is closed. `request` goes on behind the last.
async fn read(
    sm: &Sm,
    options: &Options,
    request: &mut EventsRequest,
    text: &mut String,
    state: &mut State,
) -> Result<(), CtlError> {
    let answer = sm.connect_to_stay().await?.list_events(request.clone()).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    state.connected();
    while let Some(part) = stream.message().await.map_err(|status| sm.refused(&status))? {
        for event in &part.events {
            if event.number > 0 {
                request.from_number = Some(event.number + 1);
            }
            let line = match options.json {
                true => serde_json::to_string(&EventJson::of(event)?)
                    .expect("the value serializes to JSON"),
                false => line(event),
            };
            let _ = writeln!(text, "{line}");
        }
        if options.follow {
            let mut out = std::io::stdout().lock();
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                text.clear();
                return Ok(());
            }
            text.clear();
        }
    }
    match options.follow {
        true => Err(CtlError::Unreachable {
            address: sm.url().to_owned(),
            reason: "the stream has ended".to_owned(),
        }),
        false => Ok(()),
    }
}

/// An event in one line.
fn line(event: &Event) -> String {
    let Event { time_ms, kind, severity, text, .. } = event;
    let number = if event.number > 0 { event.number.to_string() } else { "-".to_owned() };
    let severity = if severity.is_empty() { "-" } else { severity };
    format!("{} {number:>7}  {severity:<8}  {kind:<15} {text}", time::text(*time_ms))
}

/// An event as JSON, as in docs/events.md.
#[derive(Serialize)]
pub(super) struct EventJson<'a> {
    number: u64,
    time_ms: u64,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opensm_id: Option<u32>,
    #[serde(skip_serializing_if = "str::is_empty")]
    severity: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    guid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u32>,
    text: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    fields: BTreeMap<String, serde_json::Value>,
}

impl<'a> EventJson<'a> {
    pub(super) fn of(event: &'a Event) -> Result<Self, CtlError> {
        let fields = match &event.fields[..] {
            "" => BTreeMap::new(),
            fields => serde_json::from_str(fields)
                .map_err(|failure| CtlError::Unread(failure.to_string()))?,
        };
        Ok(Self {
            number: event.number,
            time_ms: event.time_ms,
            kind: &event.kind,
            opensm_id: event.opensm_id,
            severity: &event.severity,
            name: &event.name,
            guid: (event.guid != 0).then(|| format!("{:#018x}", event.guid)),
            port: event.port,
            text: &event.text,
            fields,
        })
    }
}

/// Carries out a command of `history`.
pub(super) async fn history(sm: &Sm, command: &HistoryCommand) -> Result<String, CtlError> {
    let HistoryCommand::List { json } = command;
    let history = fetch_history(sm).await?;
    Ok(if *json { to_json(&HistoryJson::of(&history)) } else { table(&history) })
}

fn table(history: &History) -> String {
    if !history.kept {
        return "no history is kept (--history-max 0)\n".to_owned();
    }
    if history.segments.is_empty() {
        return "the history is empty\n".to_owned();
    }
    let mut text = reaches(history);
    let _ = writeln!(text, "\n{:<24}{:<24}{:>9}{:>9}{:>12}", "from", "to", "first", "events", "KB");
    for segment in &history.segments {
        let (from, to) = (time::text(segment.begun_ms), time::text(segment.ended_ms));
        let (first, events, kb) = (segment.first, segment.events, segment.bytes.div_ceil(1000));
        let _ = writeln!(text, "{from:<24}{to:<24}{first:>9}{events:>9}{kb:>12}");
    }
    text
}

/// How far back each kind of data goes.
fn reaches(history: &History) -> String {
    let mut text = String::new();
    for reach in &history.reaches {
        let _ = writeln!(text, "{}", since(&reach.kind, reach.since_ms));
    }
    text
}

/// Since when the history has data of a kind.
fn since(kind: &str, since_ms: Option<u64>) -> String {
    let what = match kind {
        "topology" => "nodes and links",
        "ports" => "states and LIDs of ports",
        "loads" => "loads of links",
        other => other,
    };
    match since_ms {
        Some(since_ms) => format!("{what} since {}", time::text(since_ms)),
        None => format!("{what}: none are kept"),
    }
}

/// Since when the history has data of a kind, in words.
pub(super) async fn reach_of(sm: &Sm, kind: &str) -> Result<String, CtlError> {
    let history = fetch_history(sm).await?;
    let reach = history.reaches.iter().find(|reach| reach.kind == kind);
    Ok(format!("the history has {}", since(kind, reach.and_then(|reach| reach.since_ms))))
}

/// A refusal to answer about an earlier time, with how far back the history goes.
pub(super) async fn with_reach(sm: &Sm, failure: CtlError, kind: &str) -> CtlError {
    match (failure, reach_of(sm, kind).await) {
        (CtlError::Refused { address, message }, Ok(since)) => {
            CtlError::Refused { address, message: format!("{message}; {since}") }
        }
        (failure, _) => failure,
    }
}

async fn fetch_history(sm: &Sm) -> Result<History, CtlError> {
    let answer = sm.connect().await?.list_history(HistoryRequest {}).await;
    Ok(answer.map_err(|status| sm.refused(&status))?.into_inner())
}

/// The history as JSON. Its keys stay; more may be added.
#[derive(Serialize)]
struct HistoryJson {
    kept: bool,
    /// By kind of data: since when there is any, milliseconds since 1970.
    since_ms: BTreeMap<String, Option<u64>>,
    segments: Vec<SegmentJson>,
}

#[derive(Serialize)]
struct SegmentJson {
    first: u64,
    events: u64,
    begun_ms: u64,
    ended_ms: u64,
    bytes: u64,
}

impl HistoryJson {
    fn of(history: &History) -> Self {
        let segments = history.segments.iter().map(|segment| SegmentJson {
            first: segment.first,
            events: segment.events,
            begun_ms: segment.begun_ms,
            ended_ms: segment.ended_ms,
            bytes: segment.bytes,
        });
        let since = history.reaches.iter().map(|reach| (reach.kind.clone(), reach.since_ms));
        Self { kept: history.kept, since_ms: since.collect(), segments: segments.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sa_proto::proto::admin::{HistoryReach, HistorySegment};

    #[test]
    fn an_event_is_a_line_for_people_and_json_for_programs() {
        let event = Event {
            number: 9,
            time_ms: 1_795_780_800_042,
            kind: "problem_opened".into(),
            severity: "critical".into(),
            guid: 7,
            text: "problem: 'spine2' 0x7: gone".into(),
            fields: r#"{"count":1,"names":["a"]}"#.into(),
            ..Event::default()
        };
        let shown = line(&event);
        assert!(
            shown.ends_with(".042       9  critical  problem_opened  problem: 'spine2' 0x7: gone"),
            "{shown}"
        );
        let json = serde_json::to_value(EventJson::of(&event).unwrap()).unwrap();
        assert_eq!(
            (&json["guid"], &json["fields"]["names"][0]),
            (&"0x0000000000000007".into(), &"a".into())
        );
        assert!(json.get("port").is_none());
        // It is the same as in the history and in the stream.
        let read: crate::observe::event::Event = serde_json::from_value(json).unwrap();
        assert_eq!((read.number, &read.kind[..]), (9, "problem_opened"));
        let damaged = Event { fields: "{".into(), ..Event::default() };
        assert!(EventJson::of(&damaged).is_err());
    }

    /// Regression: a manager that was down was reported each second.
    #[test]
    fn each_reason_of_a_lost_connection_is_reported_once() {
        let lost = |reason: &str| CtlError::Unreachable {
            address: "http://sm1:7471".into(),
            reason: reason.into(),
        };
        let refused = CtlError::Refused { address: "x".into(), message: "not yet".into() };
        let mut state = State::default();
        let first = state.fail(&lost("the stream has ended")).unwrap();
        assert_eq!(
            first,
            "the connection to ibsm at http://sm1:7471 is lost: the stream has ended"
        );
        assert_eq!(state.fail(&lost("Connection refused")), None);
        assert!(state.fail(&refused).is_some_and(|report| report.contains("not yet")));
        assert_eq!(state.fail(&refused), None);
        state.connected();
        assert!(state.fail(&lost("the stream has ended")).is_some());
    }

    #[test]
    fn the_history_is_listed_with_its_time_spans() {
        assert!(table(&History::default()).starts_with("no history"));
        let segment = HistorySegment { first: 1, events: 2503, bytes: 1500, ..Default::default() };
        let reach = |kind: &str, since_ms| HistoryReach { kind: kind.into(), since_ms };
        let reaches = vec![reach("topology", Some(1_795_780_800_042)), reach("loads", None)];
        let history = History { kept: true, segments: vec![segment], reaches };
        let shown = table(&history);
        assert!(shown.starts_with("nodes and links since 2026-11-"), "{shown}");
        assert_eq!(shown.lines().nth(1), Some("loads of links: none are kept"));
        let row: Vec<_> = shown.lines().nth(4).unwrap().split_whitespace().collect();
        assert_eq!(row[4..], ["1", "2503", "2"]);
    }
}

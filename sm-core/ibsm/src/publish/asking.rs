//! Operators' questions to responders, sent through the feed of a responder that can answer.
//!
//! Each connection has an inbox for questions, and a table of those that were sent and are open.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ib_mad::text::{cut, printable};
use ib_mad::types::Guid;
use sa_proto::crowd::Share;
use sa_proto::proto::admin::{ExplainRequest, Explanation};
use sa_proto::proto::snapshot::explained::Outcome;
use sa_proto::proto::snapshot::{Explain, Explained, FromSm, PathList, from_sm};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{Shared, explained};
use crate::observe::Responder;

/// Questions that a connection has not taken yet.
const INBOX_MAX: usize = 8;
/// Questions sent on one connection and not answered.
const OPEN_MAX: usize = 16;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(4);
/// Bytes of a port's name.
const NAME_LEN_MAX: usize = 256;
/// Bytes of the reason why there is no answer.
const REASON_LEN_MAX: usize = 1024;

/// A question, and the channel for its answer.
pub(super) struct Question {
    /// Its number is given when it is sent.
    explain: Explain,
    answer: oneshot::Sender<Outcome>,
}

/// The inboxes of all connections.
#[derive(Default)]
pub(super) struct Inboxes {
    by_connection: Mutex<HashMap<u64, mpsc::Sender<Question>>>,
}

impl Inboxes {
    /// Opens the inbox of a connection.
    pub(super) fn open(&self, connection: u64) -> Asking {
        let (sender, inbox) = mpsc::channel(INBOX_MAX);
        self.lock().insert(connection, sender);
        Asking { inbox, open: HashMap::new(), serial: 0 }
    }

    pub(super) fn close(&self, connection: u64) {
        self.lock().remove(&connection);
    }

    fn of(&self, connection: u64) -> Option<mpsc::Sender<Question>> {
        self.lock().get(&connection).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, mpsc::Sender<Question>>> {
        self.by_connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The questions of one connection: those in its inbox, and those that are open.
pub(super) struct Asking {
    inbox: mpsc::Receiver<Question>,
    open: HashMap<u64, oneshot::Sender<Outcome>>,
    serial: u64,
}

impl Asking {
    /// The next question to send. Pending while too many are open.
    pub(super) async fn next(&mut self) -> FromSm {
        // Removes requests whose requester has given up.
        self.open.retain(|_, answer| !answer.is_closed());
        if self.open.len() >= OPEN_MAX {
            return std::future::pending().await;
        }
        let Some(Question { explain, answer }) = self.inbox.recv().await else {
            return std::future::pending().await;
        };
        self.serial += 1;
        self.open.insert(self.serial, answer);
        let explain = Explain { id: self.serial, ..explain };
        FromSm { message: Some(from_sm::Message::Explain(explain)) }
    }

    /// Takes an answer; one to no open question is dropped.
    pub(super) fn answered(&mut self, explained: Explained) {
        if let (Some(answer), Some(outcome)) = (self.open.remove(&explained.id), explained.outcome)
        {
            let _ = answer.send(outcome);
        }
    }
}

/// Requests an explanation of a path for `share` from a responder that is up to date.
pub(super) async fn explain(
    shared: &Shared,
    share: Share,
    request: ExplainRequest,
) -> Result<Explanation, Status> {
    if request.source.len().max(request.destination.len()) > NAME_LEN_MAX {
        return Err(Status::invalid_argument("a port name has at most 256 bytes"));
    }
    let names = shared.names.load_full();
    let snapshot = shared.history().latest().clone();
    let ExplainRequest { source, destination, service_id, qos_class, pkey } = request;
    let given = names.clone();
    // There may be a name for each node.
    let find =
        move || [source, destination].map(|text| explained::asked(text, &given, snapshot.fabric()));
    let [source, destination] = shared.computing.compute(share, find).await?;
    let explain =
        Explain { source, destination, service_id, qos_class, pkey, ..Explain::default() };
    let (responder, outcome) = ask(shared, explain).await?;
    match outcome {
        Outcome::Json(json) => {
            let json = explained::named(json, &names);
            Ok(Explanation { responder: responder.name.to_string(), json })
        }
        outcome => Err(not_found(outcome)),
    }
}

/// Requests the paths from a port from a responder that is up to date.
pub(super) async fn paths(shared: &Shared, port: Guid) -> Result<PathList, Status> {
    let explain = Explain { source: port.to_string(), list: true, ..Explain::default() };
    match ask(shared, explain).await?.1 {
        Outcome::Paths(paths) => Ok(paths),
        outcome => Err(not_found(outcome)),
    }
}

fn not_found(outcome: Outcome) -> Status {
    match outcome {
        Outcome::Failure(reason) => Status::not_found(reason),
        Outcome::Json(_) | Outcome::Paths(_) => Status::internal("another answer than requested"),
    }
}

async fn ask(shared: &Shared, explain: Explain) -> Result<(Responder, Outcome), Status> {
    let responder = choose(shared)?;
    let failed = |what: &str| Status::unavailable(format!("responder {} {what}", responder.name));
    let inbox = shared.inboxes.of(responder.connection());
    let (answer, answered) = oneshot::channel();
    let question = Question { explain, answer };
    let sent = inbox.is_some_and(|inbox| inbox.try_send(question).is_ok());
    if !sent {
        return Err(failed("has too many open requests; retry"));
    }
    match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(outcome)) => Ok((responder, cleaned(outcome))),
        Ok(Err(_)) => Err(failed("disconnected before it answered; retry")),
        Err(_) => Err(failed("did not answer in time; it may be of another release than ibsm")),
    }
}

/// An answer without what would change how an operator's terminal shows it: it may come from
/// another host.
fn cleaned(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failure(reason) => Outcome::Failure(printable(cut(&reason, REASON_LEN_MAX))),
        // A backslash may begin an escape of such a character.
        Outcome::Json(json) if json.contains('\\') || printable(&json) != json => {
            match serde_json::from_str(&json) {
                Ok(value) => Outcome::Json(cleaned_value(value).to_string()),
                Err(_) => Outcome::Failure("the responder's answer cannot be read".to_owned()),
            }
        }
        outcome @ (Outcome::Json(_) | Outcome::Paths(_)) => outcome,
    }
}

fn cleaned_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(printable(&text)),
        Value::Array(values) => values.into_iter().map(cleaned_value).collect(),
        Value::Object(fields) => {
            let cleaned = |(name, value): (String, _)| (printable(&name), cleaned_value(value));
            fields.into_iter().map(cleaned).collect()
        }
        value @ (Value::Null | Value::Bool(_) | Value::Number(_)) => value,
    }
}

/// A responder that serves the published snapshot; of several, the one that connected last, which
/// is most likely to run a recent release.
fn choose(shared: &Shared) -> Result<Responder, Status> {
    let announced = *shared.announced.borrow();
    if announced.fabric_generation == 0 {
        return Err(Status::failed_precondition(
            "nothing is published: this SM is not the master, or its first sweep has not ended",
        ));
    }
    let responders = shared.responders.load();
    let serving = responders.iter().filter(|responder| !responder.is_client());
    let serves_fabric = |responder: &&Responder| {
        responder.serving.is_some_and(|version| super::same_fabric(version, announced))
    };
    let chosen = serving
        .clone()
        .filter(serves_fabric)
        .max_by_key(|responder| (responder.serving == Some(announced), responder.since));
    chosen.cloned().ok_or_else(|| {
        Status::unavailable(match serving.count() {
            0 => "no responder is connected, and only responders explain paths; start ibsa".into(),
            n => format!("none of {n} responders serves the latest generation yet; retry"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> (Question, oneshot::Receiver<Outcome>) {
        let (answer, answered) = oneshot::channel();
        (Question { explain: Explain::default(), answer }, answered)
    }

    fn id(message: &FromSm) -> u64 {
        let Some(from_sm::Message::Explain(explain)) = &message.message else {
            panic!("{message:?}")
        };
        explain.id
    }

    #[tokio::test]
    async fn answers_find_their_questions_in_any_order() {
        let inboxes = Inboxes::default();
        let mut asking = inboxes.open(7);
        let inbox = inboxes.of(7).unwrap();
        let (first, answered_first) = question();
        let (second, answered_second) = question();
        inbox.try_send(first).ok().unwrap();
        inbox.try_send(second).ok().unwrap();
        let (a, b) = (id(&asking.next().await), id(&asking.next().await));
        let answer = |id, text: &str| Explained { id, outcome: Some(Outcome::Json(text.into())) };
        asking.answered(answer(b, "second"));
        asking.answered(answer(99, "no such question"));
        asking.answered(answer(a, "first"));
        assert_eq!(answered_first.await, Ok(Outcome::Json("first".into())));
        assert_eq!(answered_second.await, Ok(Outcome::Json("second".into())));
    }

    /// Regression: what a responder answered reached the terminal of ibsmctl as it was.
    #[test]
    fn answers_have_no_control_characters() {
        let failure = Outcome::Failure("no port \u{1b}]0;x\u{7}".to_owned());
        assert_eq!(cleaned(failure), Outcome::Failure("no port .]0;x.".into()));
        let long = Outcome::Failure("x".repeat(1 << 20));
        assert_eq!(cleaned(long), Outcome::Failure("x".repeat(REASON_LEN_MAX)));
        let json = |text: &str| Outcome::Json(text.to_owned());
        let hostile = "{\"a\":[\"\\u001b[2J\"],\"b\u{202e}\":\"\u{9b}m\",\"c\":1}";
        assert_eq!(cleaned(json(hostile)), json(r#"{"a":[".[2J"],"b.":".m","c":1}"#));
        let harmless = r#"{"from":"node1 HCA-1","b":1,"a":2}"#;
        assert_eq!(cleaned(json(harmless)), json(harmless), "as it is");
        assert!(matches!(cleaned(json("\u{1b}")), Outcome::Failure(_)));
    }

    #[tokio::test]
    async fn open_questions_are_bounded_and_those_given_up_make_room() {
        let inboxes = Inboxes::default();
        let mut asking = inboxes.open(7);
        let inbox = inboxes.of(7).unwrap();
        let mut waiting = Vec::new();
        for _ in 0..OPEN_MAX {
            let (question, answered) = question();
            inbox.try_send(question).ok().unwrap();
            asking.next().await;
            waiting.push(answered);
        }
        inbox.try_send(question().0).ok().unwrap();
        tokio::select! {
            biased;
            _ = asking.next() => panic!("too many are open"),
            () = std::future::ready(()) => {}
        }
        drop(waiting.pop());
        asking.next().await;
    }
}

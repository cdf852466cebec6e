//! Receives a snapshot of the fabric from an SM.

use std::time::{Duration, Instant};

use sa_proto::proto::snapshot::from_responder::Message as ToSm;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::proto::snapshot::{FromResponder, Hello};
use sa_proto::snapshot::codec::{Decoder, UpdateError};
use sa_proto::snapshot::{SCHEMA, Snapshot};
use sa_proto::trust::{self, ClientTrust, SmEndpoint, TrustError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Interval between attempts to get a snapshot.
const PAUSE: Duration = Duration::from_millis(200);

/// Interval of messages about the missing snapshot.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Why no snapshot was received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Not a valid URL, or no trust configured for the SM.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No SM could be reached.
    #[error("no snapshot received within {0:?}{1}; check that `ibsm --publish` is running")]
    Nothing(Duration, String),
    /// The SM sent an invalid update.
    #[error("{0}: {1}")]
    Update(String, UpdateError),
}

/// Why one attempt failed, as text.
type Failure = String;

/// Receives the snapshot of the first SM that has one. Retries all SMs until `patience` has passed.
/// Calls `report` with the reason for waiting, and again when the reason changes; `report` returns
/// whether it was printed. The error does not repeat a printed reason.
pub async fn fetch(
    urls: &[String],
    trust: &ClientTrust,
    patience: Duration,
    report: impl FnMut(&str) -> bool,
) -> Result<Snapshot, SourceError> {
    let start = tokio::time::Instant::now();
    let mut tick = tokio::time::interval_at(start + REPORT_INTERVAL, REPORT_INTERVAL);
    let deadline = Instant::now() + patience;
    let mut failure = "no URL given".to_owned();
    let mut reporter = Reporter { report, last: None };
    loop {
        for url in urls {
            let endpoint = trust.endpoint(url)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let attempt = tokio::time::timeout(left, subscribe(endpoint));
            tokio::pin!(attempt);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut attempt => break outcome,
                    _ = tick.tick() => reporter.report(&format!("{url}: no answer yet")),
                }
            };
            match outcome {
                Ok(Ok(Ok(snapshot))) => return Ok(snapshot),
                Ok(Ok(Err(error))) => return Err(SourceError::Update(url.clone(), error)),
                Ok(Err(reason)) => failure = format!("{url}: {reason}"),
                Err(_) => failure = format!("{url}: the SM has published no snapshot yet"),
            }
        }
        if Instant::now() + PAUSE >= deadline {
            let why = Some(failure).filter(|failure| !reporter.has_reported(failure));
            let why = why.map_or(String::new(), |failure| format!(": {failure}"));
            return Err(SourceError::Nothing(patience, why));
        }
        if tokio::time::timeout(PAUSE, tick.tick()).await.is_ok() {
            reporter.report(&failure);
        }
    }
}

/// Reports each reason once.
struct Reporter<F> {
    report: F,
    /// The reason printed last.
    last: Option<String>,
}

impl<F: FnMut(&str) -> bool> Reporter<F> {
    fn report(&mut self, reason: &str) {
        if !self.has_reported(reason) && (self.report)(reason) {
            self.last = Some(reason.to_owned());
        }
    }

    fn has_reported(&self, reason: &str) -> bool {
        self.last.as_deref() == Some(reason)
    }
}

/// Subscribes, receives the first full update and disconnects.
async fn subscribe(endpoint: SmEndpoint) -> Result<Result<Snapshot, UpdateError>, Failure> {
    let channel = endpoint.connect().await.map_err(|error| trust::reason(&error))?;
    let (outbound, messages) = mpsc::channel(1);
    let hello = Hello {
        schema: SCHEMA,
        responder_id: u64::from(std::process::id()) << 32 | 1,
        name: "ibstorm".to_owned(),
        software: concat!("ibstorm ", env!("CARGO_PKG_VERSION")).to_owned(),
        front_door: Vec::new(),
        port: None,
        held: None,
        ..Hello::default()
    };
    let greeting = FromResponder { message: Some(ToSm::Hello(hello)) };
    outbound.send(greeting).await.map_err(|error| error.to_string())?;
    let call = SnapshotFeedClient::new(channel).subscribe(ReceiverStream::new(messages)).await;
    let mut inbound = call.map_err(|status| trust::reason_of_status(&status))?.into_inner();
    let mut decoder = None;
    loop {
        let message = match inbound.message().await {
            Ok(Some(message)) => message.message,
            Ok(None) => return Err("the SM closed the feed".to_owned()),
            Err(status) => return Err(trust::reason_of_break(&status)),
        };
        let step = match (message, decoder.take()) {
            (Some(Message::Begin(begin)), _) => {
                Decoder::new(begin).map(|next| decoder = Some(next))
            }
            (Some(Message::Chunk(chunk)), Some(mut current)) => {
                current.chunk(&chunk).map(|()| decoder = Some(current))
            }
            (Some(Message::End(end)), Some(current)) => {
                return Ok(current.finish(end, &Snapshot::empty()));
            }
            (_, other) => {
                decoder = other;
                Ok(())
            }
        };
        if let Err(error) = step {
            return Ok(Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_waiting_is_reported_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let urls = ["http://127.0.0.1:1".to_owned()];
        let mut reported = Vec::new();
        let report = |reason: &str| {
            reported.push(reason.to_owned());
            true
        };
        let patience = Duration::from_millis(1500);
        let failed =
            runtime.block_on(fetch(&urls, &ClientTrust::default(), patience, report)).unwrap_err();
        assert_eq!(reported.len(), 1);
        assert!(reported[0].starts_with("http://127.0.0.1:1: "), "{}", reported[0]);
        let SourceError::Nothing(waited, reason) = failed else { panic!("{failed}") };
        assert_eq!((waited, reason.as_str()), (patience, ""));
    }

    /// Regression: the same reason was printed every second, and repeated by the error.
    #[test]
    fn only_a_changed_reason_is_reported_again() {
        let mut reported = Vec::new();
        let report = |reason: &str| {
            reported.push(reason.to_owned());
            true
        };
        let mut reporter = Reporter { report, last: None };
        for reason in ["refused", "refused", "no answer yet", "refused"] {
            reporter.report(reason);
        }
        assert!(reporter.has_reported("refused") && !reporter.has_reported("no answer yet"));
        assert_eq!(reported, ["refused", "no answer yet", "refused"]);
        let mut quiet = Reporter { report: |_: &str| false, last: None };
        quiet.report("refused");
        assert!(!quiet.has_reported("refused"), "the error has to include it");
    }
}

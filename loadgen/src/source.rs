//! Where the fabric is read from: a snapshot, which an SM publishes.

use std::time::{Duration, Instant};

use sa_proto::proto::snapshot::from_responder::Message as ToSm;
use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::proto::snapshot::{FromResponder, Hello};
use sa_proto::snapshot::codec::{Decoder, UpdateError};
use sa_proto::snapshot::{SCHEMA, Snapshot};
use sa_proto::trust::{self, ClientTrust, TrustError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// Between two attempts to get a snapshot.
const PAUSE: Duration = Duration::from_millis(200);

/// How often to tell what is waited for.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Not a URL, or no trust between the SM there and us.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// None of the SMs could be reached.
    #[error("no SM published a snapshot within {0:?}{1}; is `ibsm --publish` running there?")]
    Nothing(Duration, String),
    /// What came is no snapshot.
    #[error("{0}: {1}")]
    Update(String, UpdateError),
}

/// Why one attempt failed, in words.
type Failure = String;

/// Gets the snapshot of the first SM that has one. All are tried again until `patience` is over.
/// `tell` learns what is waited for, once, and again when that changes; it returns whether anybody
/// was told. What was told is not said again by the error.
pub async fn fetch(
    urls: &[String],
    trust: &ClientTrust,
    patience: Duration,
    tell: impl FnMut(&str) -> bool,
) -> Result<Snapshot, SourceError> {
    let start = tokio::time::Instant::now();
    let mut tick = tokio::time::interval_at(start + TELL_INTERVAL, TELL_INTERVAL);
    let deadline = Instant::now() + patience;
    let mut failure = "none was named".to_owned();
    let mut teller = Teller { tell, told: None };
    loop {
        for url in urls {
            let endpoint = trust.endpoint(url)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let attempt = tokio::time::timeout(left, subscribe(endpoint));
            tokio::pin!(attempt);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut attempt => break outcome,
                    _ = tick.tick() => teller.tell(&format!("{url}: no answer yet")),
                }
            };
            match outcome {
                Ok(Ok(Ok(snapshot))) => return Ok(snapshot),
                Ok(Ok(Err(error))) => return Err(SourceError::Update(url.clone(), error)),
                Ok(Err(reason)) => failure = format!("{url}: {reason}"),
                Err(_) => failure = format!("{url}: it has none yet"),
            }
        }
        if Instant::now() + PAUSE >= deadline {
            let why = Some(failure).filter(|failure| !teller.has_told(failure));
            let why = why.map_or(String::new(), |failure| format!(": {failure}"));
            return Err(SourceError::Nothing(patience, why));
        }
        if tokio::time::timeout(PAUSE, tick.tick()).await.is_ok() {
            teller.tell(&failure);
        }
    }
}

/// Tells each thing once.
struct Teller<F> {
    tell: F,
    /// What was told last.
    told: Option<String>,
}

impl<F: FnMut(&str) -> bool> Teller<F> {
    fn tell(&mut self, what: &str) {
        if !self.has_told(what) && (self.tell)(what) {
            self.told = Some(what.to_owned());
        }
    }

    fn has_told(&self, what: &str) -> bool {
        self.told.as_deref() == Some(what)
    }
}

/// Subscribes, takes the first full update and leaves.
async fn subscribe(endpoint: Endpoint) -> Result<Result<Snapshot, UpdateError>, Failure> {
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
    };
    let greeting = FromResponder { message: Some(ToSm::Hello(hello)) };
    outbound.send(greeting).await.map_err(|error| error.to_string())?;
    let call = SnapshotFeedClient::new(channel).subscribe(ReceiverStream::new(messages)).await;
    let mut inbound = call.map_err(|status| trust::reason_of_status(&status))?.into_inner();
    let mut decoder = None;
    loop {
        let message = match inbound.message().await {
            Ok(Some(message)) => message.message,
            Ok(None) => return Err("it closed the feed".to_owned()),
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
    fn whoever_waits_for_a_dead_sm_is_told_so() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let urls = ["http://127.0.0.1:1".to_owned()];
        let mut told = Vec::new();
        let tell = |what: &str| {
            told.push(what.to_owned());
            true
        };
        let failed = runtime.block_on(fetch(
            &urls,
            &ClientTrust::default(),
            Duration::from_millis(1500),
            tell,
        ));
        assert!(told[0].starts_with("http://127.0.0.1:1: ") && told[0].contains("refused"));
        let error = failed.err().unwrap().to_string();
        let expected = "no SM published a snapshot within 1.5s; is `ibsm --publish` running there?";
        assert_eq!((told.len(), error.as_str()), (1, expected));
    }

    /// The same reason was told every second, and by the error once more; whoever is told nothing
    /// learns it from the error.
    #[test]
    fn a_reason_is_told_once() {
        let mut told = Vec::new();
        let tell = |what: &str| {
            told.push(what.to_owned());
            true
        };
        let mut teller = Teller { tell, told: None };
        for what in ["refused", "refused", "no answer yet", "refused"] {
            teller.tell(what);
        }
        assert!(teller.has_told("refused") && !teller.has_told("no answer yet"));
        assert_eq!(told, ["refused", "no answer yet", "refused"]);
        let mut quiet = Teller { tell: |_: &str| false, told: None };
        quiet.tell("refused");
        assert!(!quiet.has_told("refused"));
    }
}

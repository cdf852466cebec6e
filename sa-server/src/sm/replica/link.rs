//! The connection to one SM: connects, reads the feed, reconnects.

use std::time::{Duration, Instant};

use sa_proto::proto::snapshot::from_sm::Message;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::proto::snapshot::{Explain, FromResponder, FromSm};
use sa_proto::trust::{self, TrustError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;

use super::SmUrl;
use crate::sm::Spread;

/// Messages to an SM that its connection has not taken yet.
pub(super) const OUTBOUND_MAX: usize = 16;

/// An event on a link, for the task that decides.
#[derive(Debug)]
pub(super) struct Event {
    /// Index of the link.
    pub(super) link: usize,
    /// Kind of the event.
    pub(super) kind: EventKind,
}

impl Event {
    /// Takes the explain request out of the message, if it is one.
    pub(super) fn take_question(&mut self) -> Option<Explain> {
        let EventKind::Message(message) = &mut self.kind else { return None };
        match message.message.take() {
            Some(Message::Explain(question)) => Some(question),
            other => {
                message.message = other;
                None
            }
        }
    }
}

#[derive(Debug)]
pub(super) enum EventKind {
    /// A connection was made, which other calls may use, too. The first message sent must be the
    /// greeting.
    Connected(mpsc::Sender<FromResponder>, Channel),
    /// The SM sent something.
    Message(FromSm),
    /// The connection broke or was refused.
    Disconnected(Reason),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Reason {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("{}", hinted(trust::reason(.0)))]
    Connect(tonic::transport::Error),
    #[error("{}", hinted(trust::reason_of_status(.0)))]
    Feed(Status),
    #[error("{}", trust::reason_of_break(.0))]
    Broken(Status),
    #[error("closed by the SM")]
    Closed,
}

/// A reason, with a hint if a web server seems to have answered: the address of `ibsm --http` is
/// easily mistaken for that of the feed.
fn hinted(reason: String) -> String {
    const OF_WEB_SERVERS: [&str; 3] =
        ["does not speak plain HTTP/2", "grpc-status header missing", "invalid HTTP version"];
    if OF_WEB_SERVERS.iter().any(|sign| reason.contains(sign)) {
        return format!("{reason}; use the address of ibsm --publish, not of ibsm --http");
    }
    reason
}

/// Keeps a link up until its receiver is dropped.
pub(super) async fn run(link: usize, sm: SmUrl, events: mpsc::Sender<Event>) {
    let mut backoff = Backoff::new(link as u64 ^ u64::from(std::process::id()));
    loop {
        let begun = Instant::now();
        let reason = match feed(link, &sm, &events).await {
            Ok(()) => Reason::Closed,
            Err(reason) => reason,
        };
        // A connection that ended soon was refused by one of the two sides, and will be refused
        // again.
        if begun.elapsed() > Backoff::LAST {
            backoff.reset();
        }
        if events.send(Event { link, kind: EventKind::Disconnected(reason) }).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// One connection, from its beginning to its end.
async fn feed(link: usize, sm: &SmUrl, events: &mpsc::Sender<Event>) -> Result<(), Reason> {
    let channel = sm.endpoint()?.connect().await.map_err(Reason::Connect)?;
    let (outbound, messages) = mpsc::channel(OUTBOUND_MAX);
    let send = async |kind| events.send(Event { link, kind }).await.map_err(|_| Reason::Closed);
    // The greeting is queued before the call is made: the SM may wait for it to answer at all.
    send(EventKind::Connected(outbound, channel.clone())).await?;
    let mut client = SnapshotFeedClient::new(channel);
    let call = client.subscribe(ReceiverStream::new(messages)).await;
    let mut inbound = call.map_err(Reason::Feed)?.into_inner();
    while let Some(message) = inbound.message().await.map_err(Reason::Broken)? {
        send(EventKind::Message(message)).await?;
    }
    Ok(())
}

/// Delays between attempts: they double up to a limit and are spread, so that the responders of a
/// restarted SM do not all come back in the same instant.
#[derive(Debug)]
struct Backoff {
    delay: Duration,
    spread: Spread,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(3);

    fn new(seed: u64) -> Self {
        Self { delay: Self::FIRST, spread: Spread::new(seed) }
    }

    fn reset(&mut self) {
        self.delay = Self::FIRST;
    }

    fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = (delay * 2).min(Self::LAST);
        delay / 2 + self.spread.below(delay / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_limit_and_restart_after_a_lasting_connection() {
        let mut backoff = Backoff::new(1);
        let delays: Vec<_> = (0..20).map(|_| backoff.next_delay()).collect();
        assert!(delays[0] >= Backoff::FIRST / 2 && delays[0] <= Backoff::FIRST);
        assert!(delays[8..].iter().all(|d| (Backoff::LAST / 2..=Backoff::LAST).contains(d)));
        backoff.reset();
        assert!(backoff.next_delay() <= Backoff::FIRST);
    }

    #[test]
    fn asking_a_web_server_for_snapshots_names_the_right_port() {
        for reason in [
            "it does not speak plain HTTP/2; is it https://?",
            "grpc-status header missing, mapped from HTTP status code 404",
        ] {
            let hinted = hinted(reason.to_owned());
            assert!(hinted.starts_with(reason) && hinted.contains("ibsm --publish"), "{hinted}");
        }
        assert_eq!(hinted("connection refused".to_owned()), "connection refused");
    }

    #[test]
    fn two_responders_do_not_return_together() {
        let (mut a, mut b) = (Backoff::new(1), Backoff::new(2));
        assert!((0..10).any(|_| a.next_delay() != b.next_delay()));
    }
}

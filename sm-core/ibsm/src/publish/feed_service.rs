//! The gRPC service of the feed: one task for each responder, which moves messages between its
//! connection and its [`Subscription`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use sa_proto::proto::snapshot as proto;
use sa_proto::serve::Caller;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status, Streaming};

use super::access::origin;
use super::batches::Batches;
use super::server::KEEPALIVE_INTERVAL;
use super::{FeedEnd, Shared, Subscription};

/// Maximum number of message batches that wait in the queue of a connection; together a little more
/// than half a megabyte.
const OUTBOUND_MAX: usize = 2;

#[derive(Clone)]
pub(super) struct FeedService {
    pub(super) shared: Arc<Shared>,
    /// Loses its sender when all feeds must end.
    pub(super) end: watch::Receiver<()>,
}

type Outbound = mpsc::Sender<Result<Vec<proto::FromSm>, Status>>;

#[tonic::async_trait]
impl proto::snapshot_feed_server::SnapshotFeed for FeedService {
    type SubscribeStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<proto::FromSm, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<proto::FromResponder>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let peer = request.extensions().get::<Caller>().map(origin);
        let (outbound, stream) = mpsc::channel(OUTBOUND_MAX);
        let subscription = Subscription::new(self.shared.clone(), peer);
        let task = Connection { shared: self.shared.clone(), subscription };
        tokio::spawn(task.run(request.into_inner(), outbound, self.end.clone()));
        Ok(Response::new(Box::pin(Batches::new(stream))))
    }
}

/// Reason for the end of a connection that the responder closed.
const CLOSED: &str = "responder closed the feed";

/// The task of one connection.
struct Connection {
    shared: Arc<Shared>,
    subscription: Subscription,
}

impl Connection {
    async fn run(
        mut self,
        inbound: Streaming<proto::FromResponder>,
        outbound: Outbound,
        mut closing: watch::Receiver<()>,
    ) {
        let end = tokio::select! {
            biased;
            _ = closing.changed() => FeedEnd::Closing,
            end = self.serve(inbound, &outbound) => end,
        };
        self.subscription.handle_end(&end);
        // It may not be reading any more: do not wait.
        match end {
            FeedEnd::Left(_) | FeedEnd::Silent => {}
            FeedEnd::Given(status) => _ = outbound.try_send(Err(status)),
            FeedEnd::Closing => {
                _ = outbound.try_send(Err(Status::unavailable("the SM is shutting down")));
            }
        }
        self.shared.inboxes.close(self.subscription.connection());
    }

    async fn serve(
        &mut self,
        mut inbound: Streaming<proto::FromResponder>,
        outbound: &Outbound,
    ) -> FeedEnd {
        let (clock, subscription) = (self.shared.clock.clone(), &mut self.subscription);
        let mut asking = self.shared.inboxes.open(subscription.connection());
        let mut heard = clock.now();
        loop {
            subscription.handle_changes(clock.now());
            let deadline = subscription.poll_timeout(clock.now());
            let (takes_question, has_output) =
                (subscription.takes_question(), subscription.has_output());
            if !subscription.expects_reports() {
                heard = clock.now();
            }
            let done = tokio::select! {
                message = inbound.message() => match message {
                    Ok(Some(message)) => {
                        heard = clock.now();
                        let explained = subscription.handle_message(clock.now(), message);
                        explained.map(|explained| {
                            explained.into_iter().for_each(|it| asking.answered(it));
                        })
                    }
                    Ok(None) => Err(end_after(heard, clock.now(), CLOSED)),
                    Err(status) => Err(end_after(heard, clock.now(), &reason(&status))),
                },
                next = asking.next(), if takes_question => {
                    subscription.ask(next);
                    Ok(())
                }
                permit = outbound.reserve(), if has_output => match permit {
                    Ok(permit) => {
                        permit.send(Ok(subscription.poll_transmit(clock.now())));
                        Ok(())
                    }
                    Err(_) => Err(end_after(heard, clock.now(), CLOSED)),
                },
                changed = subscription.changed() => changed,
                () = sleep_until(deadline) => subscription.handle_timeout(clock.now()),
            };
            if let Err(end) = done {
                return end;
            }
        }
    }
}

/// Why no more messages can be received, for the log.
fn reason(status: &Status) -> String {
    // A status with a cause was not sent by the responder: its connection broke.
    match std::error::Error::source(status) {
        Some(_) => "the connection broke".into(),
        None => status.message().into(),
    }
}

/// How a stream ended, given when the last message came. Responders report once a second, and the
/// server ends the streams of a connection whose keepalives are not answered as if the client had:
/// only a preceding silence distinguishes the two. The probes of hung responders then show whether
/// the process still runs.
fn end_after(heard: Instant, now: Instant, reason: &str) -> FeedEnd {
    match now.saturating_duration_since(heard) < KEEPALIVE_INTERVAL {
        true => FeedEnd::Left(reason.into()),
        false => FeedEnd::Silent,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Regression: the log said that a responder that was stopped had closed the feed.
    #[test]
    fn a_stream_that_ends_after_silence_was_not_ended_by_the_responder() {
        let heard = Instant::now();
        let end = |ms| end_after(heard, heard + Duration::from_millis(ms), CLOSED);
        assert!(matches!(end(1_100), FeedEnd::Left(reason) if reason == CLOSED));
        assert!(matches!(end(4_900), FeedEnd::Silent));
    }
}

//! The snapshot that a manager publishes, as a responder receives it.

use std::time::{Duration, Instant};

use sa_proto::proto::snapshot;
use sa_proto::proto::snapshot::from_responder::Message as Said;
use sa_proto::proto::snapshot::from_sm::Message as Reply;
use sa_proto::proto::snapshot::snapshot_feed_client::SnapshotFeedClient;
use sa_proto::snapshot::codec::Decoder;
use sa_proto::snapshot::{SCHEMA, Snapshot};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::sandbox::PATIENCE;

/// A connection to the manager that publishes at `url`, as soon as it accepts one.
///
/// # Panics
///
/// If there is none within [`PATIENCE`].
pub async fn channel(url: &str) -> Channel {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let endpoint = Channel::from_shared(url.to_owned()).expect("a URL");
        match endpoint.connect().await {
            Ok(channel) => return channel,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The published snapshot, as soon as there is one.
///
/// # Panics
///
/// If there is nothing within [`PATIENCE`].
pub async fn snapshot(url: &str) -> Snapshot {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(snapshot) = try_snapshot(url).await {
            return snapshot;
        }
        assert!(Instant::now() < deadline, "no snapshot was published");
    }
}

async fn try_snapshot(url: &str) -> Option<Snapshot> {
    let hello = snapshot::Hello { schema: SCHEMA, responder_id: 0x51, ..Default::default() };
    let (say, said) = mpsc::channel(1);
    let hello = snapshot::FromResponder { message: Some(Said::Hello(hello)) };
    say.send(hello).await.ok()?;
    let mut client = SnapshotFeedClient::new(channel(url).await);
    let mut feed = client.subscribe(ReceiverStream::new(said)).await.ok()?.into_inner();
    let mut decoder = None;
    loop {
        let message = tokio::time::timeout(PATIENCE, feed.message()).await.ok()?.ok()??;
        match message.message? {
            Reply::Begin(begin) => decoder = Some(Decoder::new(begin).ok()?),
            Reply::Chunk(chunk) => decoder.as_mut()?.chunk(&chunk).ok()?,
            Reply::End(end) => return decoder?.finish(end, &Snapshot::empty()).ok(),
            _ => {}
        }
    }
}

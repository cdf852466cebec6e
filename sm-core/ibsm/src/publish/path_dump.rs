//! Paths of all ports as text: a responder is asked for those of one port after the other.

use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::Guid;
use sa_proto::crowd::Share;
use sa_proto::proto::admin::{DumpPathsRequest, PathsText};
use sa_proto::proto::snapshot::PathList;
use sa_proto::quota::Place;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::inspection::unknown;
use super::{Observatory, Shared, asking};
use crate::inspect::{self, ListedPort, ListedPorts};

/// Nodes in a request.
const SOURCES_MAX: usize = 1 << 16;
/// How long a reader may take for the paths of a port, and how long others wait for it in all:
/// paths are listed for few at a time.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_IN_ALL: Duration = Duration::from_secs(120);
/// How often a question is asked that cannot be answered now, and how long to wait between.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// The ports whose paths are requested.
pub(super) fn ports(shared: &Arc<Shared>, of: DumpPathsRequest) -> Result<ListedPorts, Status> {
    if of.sources.len() > SOURCES_MAX {
        return Err(Status::invalid_argument(format!("at most {SOURCES_MAX} nodes are possible")));
    }
    let fabric = Observatory::new(shared.clone()).fabric_view();
    let find = |name: &String| inspect::find(name, &fabric).map(|node| node.guid);
    let sources: Result<Vec<Guid>, _> = of.sources.iter().map(find).collect();
    Ok(ListedPorts::of(&fabric, &sources.map_err(unknown)?))
}

/// Sends the paths of all sources, until the receiver leaves. `turn` is held meanwhile.
pub(super) async fn send(
    shared: Arc<Shared>,
    ports: ListedPorts,
    turn: Place<Share>,
    to: mpsc::Sender<Result<PathsText, Status>>,
) {
    let total = ports.iter().filter(|port| port.is_source).count() as u32;
    let mut patience = Patience { each: PATIENCE, left: PATIENCE_IN_ALL };
    let mut done = 0;
    for port in ports.iter() {
        let paths = if port.is_source { Some(paths(&shared, port).await) } else { None };
        let section = paths.transpose().map(|paths| {
            done += u32::from(port.is_source);
            let text = ports.section(port, paths.flatten().as_ref());
            PathsText { text, done, total }
        });
        let has_failed = section.is_err();
        if !patience.send(&to, section).await || has_failed {
            break;
        }
    }
    drop(turn);
}

/// How long a reader may take.
struct Patience {
    /// For a message.
    each: Duration,
    /// For all that follow.
    left: Duration,
}

impl Patience {
    /// Sends a message; returns whether it was taken in time.
    async fn send<M>(&mut self, to: &mpsc::Sender<M>, message: M) -> bool {
        let begun = Instant::now();
        let sent = tokio::time::timeout(self.each.min(self.left), to.send(message)).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        matches!(sent, Ok(Ok(())))
    }
}

/// The paths of a port; `None` if it has left the fabric.
async fn paths(shared: &Shared, port: &ListedPort) -> Result<Option<PathList>, Status> {
    for _ in 1..ATTEMPTS {
        match asking::paths(shared, port.guid).await {
            Err(status) if status.code() == Code::Unavailable => tokio::time::sleep(PAUSE).await,
            answer => return known(answer),
        }
    }
    known(asking::paths(shared, port.guid).await)
}

fn known(answer: Result<PathList, Status>) -> Result<Option<PathList>, Status> {
    match answer {
        Ok(paths) => Ok(Some(paths)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a reader that took a message each 10 s kept the list of paths from all others
    /// for a day.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_holds_up_others_for_a_limited_time() {
        let (sender, mut messages) = mpsc::channel(1);
        let each = Duration::from_secs(3600);
        let mut patience = Patience { each, left: Duration::from_millis(200) };
        let reader = tokio::spawn(async move {
            while messages.recv().await.is_some() {
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        });
        let begun = Instant::now();
        while patience.send(&sender, ()).await {
            assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
        }
        drop(sender);
        reader.await.unwrap();
        // What takes no time can be sent for any.
        let (sender, mut messages) = mpsc::channel(1);
        let mut patience = Patience { each, left: each };
        assert!(patience.send(&sender, ()).await && messages.recv().await.is_some());
        drop(messages);
        assert!(!patience.send(&sender, ()).await, "it has left");
    }
}

//! Paths of all ports as text: a responder is asked for those of one port after the other.

use std::sync::Arc;
use std::time::Duration;

use ib_mad::types::Guid;
use sa_proto::proto::admin::{DumpPathsRequest, PathsText};
use sa_proto::proto::snapshot::PathList;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tonic::{Code, Status};

use super::inspection::unknown;
use super::{Observatory, Shared, asking};
use crate::inspect::{self, ListedPort, ListedPorts};

/// Nodes in a request.
const SOURCES_MAX: usize = 1 << 16;
/// How long a reader may take for the paths of a port.
const PATIENCE: Duration = Duration::from_secs(10);
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
    turn: OwnedMutexGuard<()>,
    to: mpsc::Sender<Result<PathsText, Status>>,
) {
    let total = ports.iter().filter(|port| port.is_source).count() as u32;
    let mut done = 0;
    for port in ports.iter() {
        let paths = if port.is_source { Some(paths(&shared, port).await) } else { None };
        let section = paths.transpose().map(|paths| {
            done += u32::from(port.is_source);
            let text = ports.section(port, paths.flatten().as_ref());
            PathsText { text, done, total }
        });
        let has_failed = section.is_err();
        let sent = tokio::time::timeout(PATIENCE, to.send(section)).await;
        if !matches!(sent, Ok(Ok(()))) || has_failed {
            break;
        }
    }
    drop(turn);
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

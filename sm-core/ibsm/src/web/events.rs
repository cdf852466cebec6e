//! `/api/v1/events`: events as server-sent events. A client that reconnects sends the number of the
//! last one it got, as `Last-Event-ID`, and misses none that memory or the history still has.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Shared;
use crate::http::{Caller, Lasting};
use crate::publish::events::{Begin, Reader, Refusal, Wanted};

/// How often a comment is sent while nothing happens, so that a dead connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
pub(super) struct EventsQuery {
    /// Number of the first event.
    from: Option<u64>,
    /// Time of the first event, milliseconds since 1970.
    since_ms: Option<u64>,
    /// Number of past events.
    last: Option<u64>,
    /// Labels of kinds, separated by commas.
    kind: Option<String>,
}

/// Starts a stream.
pub(super) async fn open(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Response {
    let got = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let from = match got {
        Some(got) => Begin::Number(got.saturating_add(1)),
        None => Begin::of(query.from, query.since_ms, query.last),
    };
    let kinds = query.kind.iter().flat_map(|kinds| kinds.split(',')).map(str::to_owned).collect();
    let reader = Reader::Page(share);
    let wanted = Wanted { from, follow: true, kinds };
    let mut feed = match served.observatory.read_events(reader, wanted) {
        Ok(feed) => feed,
        Err(refusal) => return refused(&refusal),
    };
    let (sender, received) = mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        // The head of the answer is sent with the first bytes.
        let mut text = ":\n\n".to_owned();
        loop {
            // The connection ends if the client does not read.
            if sender.send(Bytes::from(text)).await.is_err() {
                return;
            }
            text = tokio::select! {
                events = feed.next() => match events {
                    None => return,
                    Some(events) => {
                        let mut text = String::new();
                        for event in events {
                            // A client that reconnects goes on behind the last with a number.
                            if event.number > 0 {
                                let _ = writeln!(text, "id: {}", event.number);
                            }
                            let _ = write!(text, "event: event\ndata: {}\n\n", event.to_json());
                        }
                        text
                    }
                },
                () = tokio::time::sleep(KEEP_ALIVE) => ":\n\n".to_owned(),
                () = sender.closed() => return,
            };
        }
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    let events = ReceiverStream::new(received).map(Ok::<_, Infallible>);
    (Extension(Lasting::Stream), headers, Body::from_stream(events)).into_response()
}

/// The answer to a reader that is refused.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let text = format!("{refusal}\n");
    match refusal {
        Refusal::Crowded => {
            let headers = [(header::RETRY_AFTER, "10")];
            (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
        }
        Refusal::Kind(_) | Refusal::NotKept => (StatusCode::BAD_REQUEST, text).into_response(),
        Refusal::NotCounted => (StatusCode::CONFLICT, text).into_response(),
    }
}

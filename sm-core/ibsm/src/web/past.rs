//! Documents about earlier times, from the history: its extent, the map and a node at a time, and
//! the events of a span of time.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use ib_mad::types::Guid;
use sa_proto::crowd::Share;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::api::{as_accepted, compressed, json};
use super::events::refused;
use super::fabric::NodeDetail;
use super::map::Map;
use crate::http::Caller;
use crate::observe::event::Event;
use crate::observe::ports::KeptFabric;
use crate::observe::topology::Missing;
use crate::publish::Observatory;
use crate::publish::events::{Begin, Reader, Wanted};
use crate::publish::past::PastError;

/// Limit of events that one request lists.
const EVENTS_MAX: usize = 1000;

/// Routes of these documents.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/api/v1/history", get(extent)).route("/api/v1/history/events", get(events))
}

impl IntoResponse for PastError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NotKept | Self::NotThen | Self::NoLoads => StatusCode::NOT_FOUND,
            Self::Read(_) | Self::Stopped(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// What the history covers. Times are milliseconds since 1970.
#[derive(Debug, Default, Serialize)]
struct Extent {
    /// Whether a history is kept.
    kept: bool,
    from_ms: Option<u64>,
    to_ms: Option<u64>,
}

async fn extent(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
) -> Response {
    match served.observatory.segments(share).await {
        Ok(segments) => json(&Extent {
            kept: true,
            from_ms: segments.first().map(|first| first.begun_ms),
            to_ms: segments.last().map(|last| last.ended_ms),
        }),
        Err(PastError::NotKept) => json(&Extent::default()),
        Err(failure) => failure.into_response(),
    }
}

/// The map at a time.
#[derive(Serialize)]
struct MapThen {
    /// The time that was asked for, milliseconds since 1970.
    at_ms: u64,
    /// Since when the fabric was so.
    since_ms: u64,
    #[serde(flatten)]
    map: Map,
}

/// The map of an earlier fabric, and of what was missing then. Equal maps have equal tags.
pub(super) fn map_then(observatory: &Observatory, since_ms: u64, then: &KeptFabric) -> Map {
    let expected = observatory.expected();
    let tag = Missing::of(&expected, &then.topology).tag;
    Map::then(then, &expected, format!("then-{since_ms}{tag}"))
}

/// The map of the fabric at a time, with what was missing of the baseline, or without one of the
/// fabric of now.
pub(super) async fn map(served: Shared, share: Share, at_ms: u64, headers: HeaderMap) -> Response {
    let _turn = served.turns.of(share).acquire_owned().await;
    let observatory = served.observatory.clone();
    let make = move |since_ms, then| {
        let map = map_then(&observatory, since_ms, &then);
        let text = serde_json::to_vec(&MapThen { at_ms, since_ms, map });
        let bytes = compressed(&text.expect("the value serializes to JSON"));
        let no_store = [(header::CACHE_CONTROL, "no-store")];
        (no_store, as_accepted(&headers, "application/json", bytes.into())).into_response()
    };
    match served.observatory.fabric_at(share, at_ms, make).await {
        Ok(document) => document,
        Err(failure) => failure.into_response(),
    }
}

/// A node as it was at a time.
pub(super) async fn node(served: Shared, share: Share, at_ms: u64, guid: Guid) -> Response {
    let _turn = served.turns.of(share).acquire_owned().await;
    let observatory = served.observatory.clone();
    let make = move |_, then| NodeDetail::then(&then, &observatory.expected(), guid);
    match served.observatory.fabric_at(share, at_ms, make).await {
        Ok(Some(detail)) => json(&detail),
        Ok(None) => (StatusCode::NOT_FOUND, "no node had this GUID then\n").into_response(),
        Err(failure) => failure.into_response(),
    }
}

#[derive(Deserialize)]
struct EventsQuery {
    /// Milliseconds since 1970.
    since_ms: u64,
    until_ms: u64,
    /// Labels of kinds, separated by commas.
    kind: Option<String>,
}

/// The events of a span of time, oldest first; the first ones if there are too many.
async fn events(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Query(query): Query<EventsQuery>,
) -> Response {
    let kinds = query.kind.iter().flat_map(|kinds| kinds.split(',')).map(str::to_owned).collect();
    let wanted = Wanted { from: Begin::Time(query.since_ms), follow: false, kinds };
    let reader = Reader::Page(share);
    let mut feed = match served.observatory.read_events(reader, wanted) {
        Ok(feed) => feed,
        Err(refusal) => return refused(&refusal),
    };
    let mut all: Vec<Arc<Event>> = Vec::new();
    while let Some(events) = feed.next().await {
        let is_over = events.last().is_some_and(|last| last.time_ms > query.until_ms);
        all.extend(events.into_iter().filter(|event| event.time_ms <= query.until_ms));
        if is_over || all.len() >= EVENTS_MAX {
            break;
        }
    }
    all.truncate(EVENTS_MAX);
    json(&all.iter().map(|event| &**event).collect::<Vec<_>>())
}

//! The documents under `/api/v1/`.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use flate2::Compression;
use flate2::write::GzEncoder;
use ib_mad::types::Guid;
use sa_proto::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use super::fabric::NodeDetail;
use super::map::{Map, Place};
use super::past;
use super::{Served, Shared};
use crate::export::{Form, render};
use crate::http::{Caller, made};
use crate::observe::moment::ProblemsNow;
use crate::observe::topology::{End, Missing};
use crate::observe::{Range, etag};

/// Routes of the documents.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/series", get(series))
        .route("/api/v1/responders", get(responders))
        .route("/api/v1/talkers", get(talkers))
        .route("/api/v1/sweeps", get(sweeps))
        .route("/api/v1/problems", get(problems))
        .route("/api/v1/topology", get(topology))
        .route("/api/v1/fabric", get(map))
        .route("/api/v1/nodes/{guid}", get(node))
}

/// A JSON document of current data.
pub(super) fn json(document: &impl Serialize) -> Response {
    let text = serde_json::to_vec(document).expect("the value serializes to JSON");
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, text).into_response()
}

/// The answer to a request whose GUID is none.
pub(super) fn not_a_guid() -> Response {
    (StatusCode::BAD_REQUEST, "a GUID is written as 0x0002c90300000001\n").into_response()
}

async fn status(State(served): State<Shared>) -> Response {
    json(&served.moment())
}

async fn responders(State(served): State<Shared>) -> Response {
    json(&served.moment().responders)
}

async fn talkers(State(served): State<Shared>) -> Response {
    json(&served.moment().talkers)
}

async fn problems(State(served): State<Shared>) -> Response {
    json(&ProblemsNow::of(&served.observatory.problems()))
}

async fn sweeps(State(served): State<Shared>) -> Response {
    let sweeps = served.observatory.sweeps();
    json(&sweeps.iter().map(|sweep| &**sweep).collect::<Vec<_>>())
}

#[derive(Deserialize)]
struct TopologyQuery {
    form: Option<String>,
    /// Names, separated by commas.
    rail: Option<String>,
}

async fn topology(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Query(query): Query<TopologyQuery>,
) -> Response {
    let form = query.form.as_deref().unwrap_or(Form::Ibnetdiscover.name()).parse::<Form>();
    let form = match form {
        Ok(form) => form,
        Err(text) => return (StatusCode::BAD_REQUEST, format!("{text}\n")).into_response(),
    };
    let rails = query.rail.iter().flat_map(|rails| rails.split(',')).map(str::to_owned).collect();
    let rails: Vec<String> = rails;
    let snapshot = served.observatory.snapshot();
    let work = move || render(snapshot.fabric(), form, &rails);
    let Some(text) = made(served.turns.of(share), work).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let content_type = match form {
        Form::Topograph => "application/json",
        Form::Ibnetdiscover | Form::Slurm | Form::SlurmBlock => "text/plain; charset=utf-8",
    };
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-store")];
    (headers, text).into_response()
}

#[derive(Deserialize)]
struct SeriesQuery {
    range: Option<String>,
}

async fn series(State(served): State<Shared>, Query(query): Query<SeriesQuery>) -> Response {
    let range = match query.range.as_deref() {
        None | Some("15m") => Range::Seconds,
        Some("24h") => Range::Minutes,
        Some(_) => {
            return (StatusCode::BAD_REQUEST, "range is 15m or 24h\n").into_response();
        }
    };
    let history = served.observatory.history(range);
    json(&history)
}

#[derive(Deserialize)]
pub(super) struct TimeQuery {
    /// Milliseconds since 1970; without it, now.
    pub(super) at_ms: Option<u64>,
}

async fn node(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Path(guid): Path<String>,
    Query(time): Query<TimeQuery>,
) -> Response {
    let Ok(guid) = guid.parse::<Guid>() else { return not_a_guid() };
    if let Some(at_ms) = time.at_ms {
        return past::node(served, share, at_ms, guid).await;
    }
    let snapshot = served.observatory.snapshot();
    let sweeps = served.observatory.sweeps();
    let missing = served.observatory.missing();
    let since = served.observatory.since_of(guid);
    // Members of groups are not listed by port: all are looked at.
    let detail = made(served.turns.of(share), move || {
        let last = sweeps.last().map(|sweep| &**sweep);
        let detail = NodeDetail::of(&snapshot, &missing.topology, guid, last, &since);
        detail.as_ref().map(json)
    });
    match detail.await {
        Some(Some(answer)) => answer,
        Some(None) => (StatusCode::NOT_FOUND, "no node has this GUID\n").into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The map when last requested: it is large, and changes only with the fabric.
#[derive(Debug, Default)]
pub(super) struct MapCache(Mutex<Option<CachedMap>>);

/// A map as it is sent, and where the ends of its links are.
#[derive(Clone, Debug)]
pub(super) struct CachedMap {
    pub(super) etag: String,
    pub(super) bytes: Bytes,
    pub(super) places: Arc<HashMap<End, Place>>,
}

impl MapCache {
    /// The map of the published fabric, compressed.
    pub(super) fn get(&self, snapshot: &Snapshot, missing: &Missing) -> CachedMap {
        let etag = etag(snapshot) + &missing.tag;
        // Concurrent requests wait for the same map.
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = cached.as_ref().filter(|map| map.etag == etag) {
            return map.clone();
        }
        let mut map = Map::of(snapshot.fabric(), &missing.topology, etag.clone());
        let places = Arc::new(std::mem::take(&mut map.places));
        let text = serde_json::to_vec(&map).expect("the value serializes to JSON");
        let made = CachedMap { etag, bytes: compressed(&text).into(), places };
        *cached = Some(made.clone());
        made
    }
}

/// Compresses `bytes` with gzip.
pub(super) fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.expect("writing to memory does not fail")
}

async fn map(
    State(served): State<Shared>,
    Extension(Caller { share, .. }): Extension<Caller>,
    Query(time): Query<TimeQuery>,
    headers: HeaderMap,
) -> Response {
    if let Some(at_ms) = time.at_ms {
        return past::map(served, share, at_ms, headers).await;
    }
    let snapshot = served.observatory.snapshot();
    let missing = served.observatory.missing();
    let tag = format!("\"{}{}\"", etag(&snapshot), missing.tag);
    let headers_out = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    if is_known(&headers, &tag) {
        return (StatusCode::NOT_MODIFIED, headers_out).into_response();
    }
    // The layout of ten thousand nodes takes a while; other requests are served meanwhile.
    let turns = served.turns.of(share);
    let document = made(turns, move || {
        let map = served.map.get(&snapshot, &missing);
        as_accepted(&headers, "application/json", map.bytes)
    });
    match document.await {
        Some(document) => (headers_out, document).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether the client has the content with this tag.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag))
}

/// Compressed content, decompressed for clients that do not accept gzip.
pub(super) fn as_accepted(
    headers: &HeaderMap,
    content_type: &'static str,
    gzip: Bytes,
) -> Response {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let types = [(header::CONTENT_TYPE, content_type), (header::VARY, "Accept-Encoding")];
    if accepted.is_some_and(|accepted| accepted.contains("gzip")) {
        return (types, [(header::CONTENT_ENCODING, "gzip")], gzip).into_response();
    }
    let mut plain = Vec::new();
    let read = std::io::copy(&mut flate2::read::GzDecoder::new(&gzip[..]), &mut plain);
    read.expect("the data was compressed by this program");
    (types, plain).into_response()
}

impl Served {
    /// The current moment.
    pub(super) fn moment(&self) -> crate::observe::moment::Moment {
        let mut moment = (**self.observatory.moments().borrow()).clone();
        moment.watchers = self.streams.watchers();
        moment
    }
}

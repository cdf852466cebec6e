//! The HTTP server: metrics, the live page and its documents. `docs/web.md` describes them for
//! operators and for programs.
//!
//! A separate thread serves all requests and reads only published data, so that a slow browser
//! costs the subnet manager nothing. Connections are limited in number, requests in length and
//! time; no request can change anything.
//!
//! - `page/`: the page, as it is sent: plain HTML, CSS and JavaScript; `assets` embeds it.
//! - `api`: documents; `map`, `layout`: the map; `fabric`: a node, with what its ports belong to
//!   (`membership`); `load`: rates and errors of links; `path`: the path between two nodes; `past`:
//!   earlier times; `stream`: a moment every second; `events`: what happens.

mod api;
mod assets;
mod events;
mod fabric;
pub(crate) mod guard;
mod layout;
mod load;
mod map;
mod membership;
mod past;
mod path;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use sa_proto::crowd::Share;
use sa_proto::quota::Places;
use sa_proto::trust::local::LocalRoles;
use serde::Deserialize;
use tracing::info;

use crate::http::{Caller, Lasting, Server, Totals, Turns};
use crate::observe::Readiness;
use crate::perf::Selection;
use crate::perf::exposition::{Exposition, Expositions, Wanted};
use crate::publish::Observatory;
use stream::Streams;

/// The service loop hangs if it has not reported for this long. A sweep of 48,000 LIDs keeps it
/// busy for less than a second at a time.
const HUNG_AFTER: Duration = Duration::from_secs(30);

/// Metrics as text in the format that a request's `Accept` selects, with its content type.
pub(crate) type RenderMetrics = Box<dyn Fn(&str) -> (&'static str, String) + Send + Sync>;

/// The data to serve, and access to it.
pub(crate) struct Web {
    pub(crate) observatory: Observatory,
    pub(crate) metrics: RenderMetrics,
    /// Whether other machines may see the page.
    pub(crate) open: bool,
    /// Roles of users of this host.
    pub(crate) local: LocalRoles,
    /// What happens to connections.
    pub(crate) totals: Arc<Totals>,
}

/// State shared by all requests.
struct Served {
    observatory: Observatory,
    metrics: RenderMetrics,
    streams: Streams,
    expositions: Expositions,
    map: api::MapCache,
    /// Places for questions to responders.
    questions: Places<Share>,
    /// Turns to have documents made.
    turns: Turns,
}

type Shared = Arc<Served>;

/// Serves at `address` as long as the process lives. Returns the bound address.
pub(crate) fn serve(address: SocketAddr, web: Web) -> io::Result<SocketAddr> {
    let served = Arc::new(Served {
        observatory: web.observatory,
        metrics: web.metrics,
        streams: Streams::default(),
        expositions: Expositions::new(web.totals.clone()),
        map: api::MapCache::default(),
        questions: path::questions(),
        turns: Turns::default(),
    });
    let open = web.open;
    let server = Server {
        thread: "http",
        name: "HTTP",
        purpose: "metrics and live page",
        // One may read the history.
        blocking_threads: 2,
        tls: None,
        at_once: Some(&["/metrics", "/healthz", "/readyz"]),
        local: web.local,
        totals: web.totals,
    };
    let address = server.serve(address, move |address| {
        tokio::spawn(stream::feed(served.clone()));
        router(served, guard::Page::of(address, open))
    })?;
    match guard::Page::of(address, open) {
        guard::Page::Closed => info!("metrics at http://{address}/metrics"),
        _ => info!("live page at http://{address}/, metrics at http://{address}/metrics"),
    }
    Ok(address)
}

fn router(served: Shared, page: guard::Page) -> Router {
    let guarded = Router::new()
        .merge(assets::routes())
        .merge(api::routes())
        .merge(load::routes())
        .merge(past::routes())
        .merge(path::routes())
        .route("/api/v1/stream", get(stream::open))
        .route("/api/v1/events", get(events::open))
        .layer(middleware::from_fn_with_state(page, guard::check));
    let counters = Router::new()
        .route("/metrics/ports", get(ports))
        .layer(middleware::from_fn_with_state(page, guard::check_host));
    Router::new()
        .route("/metrics", get(metrics))
        .merge(counters)
        .route("/healthz", get(health))
        .route("/readyz", get(readiness))
        .merge(guarded)
        .fallback(assets::not_found)
        .layer(middleware::map_response(guard::harden))
        .with_state(served)
}

async fn metrics(State(served): State<Shared>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let (content_type, text) = (served.metrics)(accept.unwrap_or_default());
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

/// Selects ports of `/metrics/ports`.
#[derive(Deserialize)]
struct PortsQuery {
    /// GUIDs or names, separated by commas.
    nodes: Option<String>,
    /// Switches only, if this is 1.
    switches: Option<u8>,
    /// Only counters other than data and packets that are not 0, if this is 1.
    errors: Option<u8>,
}

/// Counters of ports, made while they are sent.
async fn ports(
    State(served): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PortsQuery>,
) -> Response {
    let perf = served.observatory.perf();
    if perf.with(|_| ()).is_none() {
        let text = "counters of ports are not read: set perfmgr TRUE and restart ibsm\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    }
    let mut selection = match Selection::of_list(query.nodes.as_deref()) {
        Ok(selection) => selection,
        Err(text) => return (StatusCode::BAD_REQUEST, format!("{text}\n")).into_response(),
    };
    selection.switches = query.switches == Some(1);
    let wanted = Wanted { selection, errors: query.errors == Some(1) };
    let headers = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    match served.expositions.start(Exposition::new(perf, wanted), caller).await {
        Ok(pieces) => {
            (Extension(Lasting::Long), headers, Body::from_stream(pieces)).into_response()
        }
        Err(text) => {
            let headers = [(header::RETRY_AFTER, "10")];
            (StatusCode::SERVICE_UNAVAILABLE, headers, format!("{text}\n")).into_response()
        }
    }
}

/// 200 while the service loop turns: it states its status once a second.
async fn health(State(served): State<Shared>) -> Response {
    match served.observatory.status_age() {
        age if age < HUNG_AFTER => "ok\n".into_response(),
        age => {
            let text = format!("the service loop has not reported for {} s\n", age.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// 200 if this SM does the work of its state.
async fn readiness(State(served): State<Shared>) -> Response {
    match served.observatory.readiness() {
        Readiness::Ready(text) => format!("{text}\n").into_response(),
        Readiness::NotReady(text) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{text}\n")).into_response()
        }
    }
}

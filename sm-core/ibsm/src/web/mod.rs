//! The HTTP server: metrics, the live page and its documents. `docs/web.md` describes them for
//! operators and for programs.
//!
//! A separate thread serves all requests and reads only published data, so that a slow browser
//! costs the subnet manager nothing. Connections are limited in number, requests in length and
//! time; no request can change anything.
//!
//! - `page/`: the page, as it is sent: plain HTML, CSS and JavaScript; `assets` embeds it.
//! - `api`: documents; `fabric`, `layout`, `links`: the map; `stream`: a moment every second.

mod api;
mod assets;
mod fabric;
mod guard;
mod layout;
mod links;
mod stream;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sa_proto::crowd::{Crowd, Place};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tonic::codegen::Service as _;
use tracing::{debug, error, info};

use crate::publish::Observatory;
use stream::Streams;

/// Limit of connections served at once; beyond it the oldest idle one is closed.
const CONNECTIONS_MAX: usize = 256;
/// Time limit for the head of a request, also on a kept-alive connection.
const PATIENCE: Duration = Duration::from_secs(15);
/// Length limit of the head of a request in bytes.
const HEAD_LEN_MAX: usize = 16 << 10;
/// Pause after a failure to accept: too many descriptors are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Metrics as text in the format that a request's `Accept` selects, with its content type.
pub(crate) type RenderMetrics = Box<dyn Fn(&str) -> (&'static str, String) + Send + Sync>;

/// The data to serve, and access to it.
pub(crate) struct Web {
    pub(crate) observatory: Observatory,
    pub(crate) metrics: RenderMetrics,
    /// Whether other machines may see the page.
    pub(crate) open: bool,
}

/// State shared by all requests.
struct Served {
    observatory: Observatory,
    metrics: RenderMetrics,
    streams: Streams,
    map: api::MapCache,
}

type Shared = Arc<Served>;

/// Serves at `address` as long as the process lives. Returns the bound address.
pub(crate) fn serve(address: SocketAddr, web: Web) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .enable_all()
        .build()?;
    let page = guard::Page::of(address, web.open);
    let served = Arc::new(Served {
        observatory: web.observatory,
        metrics: web.metrics,
        streams: Streams::default(),
        map: api::MapCache::default(),
    });
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        let work = async {
            tokio::spawn(stream::feed(served.clone()));
            accept(listener, router(served.clone(), page)).await
        };
        if let Err(failure) = runtime.block_on(work) {
            error!(
                "HTTP server stopped: {failure}; metrics and live page are unavailable, \
                restart ibsm"
            );
        }
    })?;
    match page {
        guard::Page::Closed => info!("metrics at http://{address}/metrics"),
        _ => info!("live page at http://{address}/, metrics at http://{address}/metrics"),
    }
    Ok(address)
}

fn router(served: Shared, page: guard::Page) -> Router {
    let guarded = Router::new()
        .merge(assets::routes())
        .merge(api::routes())
        .route("/api/v1/stream", get(stream::open))
        .layer(middleware::from_fn_with_state(page, guard::check));
    Router::new()
        .route("/metrics", get(metrics))
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

/// Ends a connection from within a request whose client does not read.
#[derive(Clone, Debug, Default)]
struct Cut(Arc<Notify>);

async fn accept(listener: TcpListener, router: Router) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let crowd = Crowd::new(CONNECTIONS_MAX);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(failure) => {
                debug!("cannot accept HTTP connections: {failure}; retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(place) = crowd.enter() else {
            debug!("HTTP connection refused: all {CONNECTIONS_MAX} are busy");
            continue;
        };
        tokio::spawn(serve_connection(stream, router.clone(), Arc::new(place)));
    }
}

async fn serve_connection(stream: TcpStream, router: Router, place: Arc<Place>) {
    let _ = stream.set_nodelay(true);
    let cut = Cut::default();
    let (handed, answering) = (cut.clone(), place.clone());
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(handed.clone());
        let (mut router, place) = (router.clone(), answering.clone());
        async move {
            place.set_busy(true);
            let response = router.call(request).await;
            place.set_busy(false);
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD_LEN_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = connection => {
            if let Err(failure) = ended {
                debug!("HTTP connection failed: {failure}");
            }
        }
        () = cut.0.notified() => {}
        () = place.cut() => debug!("HTTP connection closed for another"),
    }
}

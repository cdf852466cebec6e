//! The files of the page, embedded in the program: nothing is loaded from elsewhere, and no build
//! step is needed.

use std::sync::LazyLock;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use xxhash_rust::xxh3::xxh3_128;

use super::Shared;
use super::api::{as_accepted, compressed, is_known};

struct Asset {
    path: &'static str,
    content_type: &'static str,
    tag: String,
    gzip: Bytes,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal, $file:literal, $content_type:ident;)*) => {
        [$(($path, $content_type, include_bytes!(concat!("page/", $file)) as &[u8]),)*]
    };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let files = assets! {
        "/", "index.html", HTML;
        "/style.css", "style.css", CSS;
        "/icon.svg", "icon.svg", SVG;
        "/app.js", "app.js", JS;
        "/busy.js", "busy.js", JS;
        "/chart.js", "chart.js", JS;
        "/dom.js", "dom.js", JS;
        "/events.js", "events.js", JS;
        "/fabric.js", "fabric.js", JS;
        "/format.js", "format.js", JS;
        "/heat.js", "heat.js", JS;
        "/lines.js", "lines.js", JS;
        "/links.js", "links.js", JS;
        "/live.js", "live.js", JS;
        "/map.js", "map.js", JS;
        "/node.js", "node.js", JS;
        "/overview.js", "overview.js", JS;
        "/paint.js", "paint.js", JS;
        "/panel.js", "panel.js", JS;
        "/path.js", "path.js", JS;
        "/pointing.js", "pointing.js", JS;
        "/rates.js", "rates.js", JS;
        "/problems.js", "problems.js", JS;
        "/timeline.js", "timeline.js", JS;
        "/search.js", "search.js", JS;
        "/sweeps.js", "sweeps.js", JS;
        "/view.js", "view.js", JS;
    };
    let asset = |(path, content_type, bytes)| Asset {
        path,
        content_type,
        tag: format!("\"{:032x}\"", xxh3_128(bytes)),
        gzip: compressed(bytes).into(),
    };
    files.into_iter().map(asset).collect()
});

/// Routes of the page and its parts.
pub(super) fn routes() -> Router<Shared> {
    ASSETS.iter().fold(Router::new(), |router, asset| {
        router
            .route(asset.path, get(move |headers: HeaderMap| async move { send(asset, &headers) }))
    })
}

fn send(asset: &Asset, headers: &HeaderMap) -> Response {
    // Revalidated at each load, so that all files of the page are of one release.
    let tags = [(header::ETAG, asset.tag.as_str()), (header::CACHE_CONTROL, "no-cache")];
    if is_known(headers, &asset.tag) {
        return (StatusCode::NOT_MODIFIED, tags).into_response();
    }
    (tags, as_accepted(headers, asset.content_type, asset.gzip.clone())).into_response()
}

pub(super) async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "not found; see /, /metrics and /api/v1/status\n").into_response()
}

//! The path between two nodes, as a responder answers for it.

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use sa_proto::crowd::Share;
use sa_proto::proto::admin::ExplainRequest;
use sa_proto::quota::Places;
use serde::Deserialize;
use tonic::Code;

use super::Shared;
use crate::http::Caller;

/// Questions at a time: responders answer `ibsmctl explain` as well, 16 at a time.
const QUESTIONS_MAX: usize = 4;
/// The same of one host, or of one user of this host.
const SHARE_QUESTIONS_MAX: usize = 2;
/// Of these for trusted users of this host.
const QUESTIONS_RESERVED: usize = 1;

/// Places for questions.
pub(super) fn questions() -> Places<Share> {
    Places::new(QUESTIONS_MAX, SHARE_QUESTIONS_MAX).with_reserve(QUESTIONS_RESERVED)
}

/// Routes of the document.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/api/v1/explain", get(explain))
}

#[derive(Deserialize)]
struct Ends {
    /// Names, GUIDs or LIDs, as in `ibsmctl explain`.
    from: String,
    to: String,
}

async fn explain(
    State(served): State<Shared>,
    Extension(Caller { share, is_trusted }): Extension<Caller>,
    Query(ends): Query<Ends>,
) -> Response {
    let Ok(_place) = served.questions.enter_as(is_trusted, share) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many questions at a time; retry\n")
            .into_response();
    };
    let request =
        ExplainRequest { source: ends.from, destination: ends.to, ..ExplainRequest::default() };
    match served.observatory.explain(share, request).await {
        Ok(text) => {
            let headers =
                [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
            (headers, text).into_response()
        }
        Err(refusal) => {
            let status = match refusal.code() {
                Code::InvalidArgument => StatusCode::BAD_REQUEST,
                Code::NotFound => StatusCode::NOT_FOUND,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{}\n", refusal.message())).into_response()
        }
    }
}

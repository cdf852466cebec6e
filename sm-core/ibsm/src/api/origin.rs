//! Refuses what pages of other sites have a browser send. A browser adds the password that it
//! remembers, so that such a page could give orders in its user's name.
//!
//! Programs send none of the headers that browsers add, and are not affected, except that a body is
//! JSON and says so: a page can send other types to other sites without asking first.

use std::net::SocketAddr;

use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Refusal;
use crate::web::guard::{ELSEWHERE, is_local};

/// How the API is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// From this machine only.
    Here,
    /// From others, too, which know it by names of their own.
    Anywhere,
}

impl Asked {
    pub(super) fn of(address: SocketAddr) -> Self {
        if address.ip().to_canonical().is_loopback() { Self::Here } else { Self::Anywhere }
    }
}

/// Refuses requests of other sites, for other hosts, and with bodies that are not JSON.
pub(super) async fn check(State(asked): State<Asked>, request: Request, next: Next) -> Response {
    let is_form = request.uri().path() == "/dologin";
    let has_body = !request.body().is_end_stream();
    let refused = refusal(asked, request.headers(), has_body && !is_form);
    match refused {
        Some((status, text)) => Refusal(status, text.to_owned()).into_response(),
        None => next.run(request).await,
    }
}

fn refusal(
    asked: Asked,
    headers: &HeaderMap,
    needs_json: bool,
) -> Option<(StatusCode, &'static str)> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let host = text(header::HOST.as_str());
    if asked == Asked::Here && !host.is_some_and(is_local) {
        return Some((StatusCode::MISDIRECTED_REQUEST, ELSEWHERE.trim_end()));
    }
    let is_own = |origin: &str| {
        let site = origin.split_once("://").map(|(_, site)| site);
        site.is_some_and(|site| host.is_some_and(|host| site.eq_ignore_ascii_case(host)))
    };
    let is_foreign = text(header::ORIGIN.as_str()).is_some_and(|origin| !is_own(origin))
        || text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
    if is_foreign {
        return Some((StatusCode::FORBIDDEN, "requests of other sites' pages are refused"));
    }
    let is_json = text(header::CONTENT_TYPE.as_str()).is_some_and(|of| {
        let essence = of.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/json")
    });
    (needs_json && !is_json)
        .then_some((StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn status(asked: Asked, lines: &[(&'static str, &'static str)], needs_json: bool) -> u16 {
        let line =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let headers: HeaderMap = lines.iter().map(line).collect();
        refusal(asked, &headers, needs_json).map_or(200, |(status, _)| status.as_u16())
    }

    /// Regression: a page of another site could give orders with the password that a browser
    /// remembered.
    #[test]
    fn requests_of_other_sites_are_refused() {
        for (lines, expected) in [
            (&[("host", "sm1:8443")][..], 200),
            (&[("host", "sm1:8443"), ("origin", "https://SM1:8443")], 200),
            (&[("host", "sm1:8443"), ("sec-fetch-site", "same-origin")], 200),
            (&[("host", "sm1:8443"), ("sec-fetch-site", "none")], 200),
            (&[("host", "sm1:8443"), ("origin", "https://evil.example")], 403),
            (&[("host", "sm1:8443"), ("origin", "https://sm1")], 403),
            (&[("host", "sm1:8443"), ("origin", "null")], 403),
            (&[("host", "sm1:8443"), ("sec-fetch-site", "cross-site")], 403),
            (&[("host", "sm1:8443"), ("sec-fetch-site", "same-site")], 403),
        ] {
            assert_eq!(status(Asked::Anywhere, lines, false), expected, "{lines:?}");
        }
        assert_eq!(status(Asked::Here, &[("host", "evil.example")], false), 421);
        assert_eq!(status(Asked::Here, &[("host", "127.0.0.1:8443")], false), 200);
    }

    #[test]
    fn a_body_is_json() {
        for (of, expected) in [
            ("application/json", 200),
            // As ib-kubernetes sends it.
            ("application/json; charset=utf-8", 200),
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
        ] {
            assert_eq!(status(Asked::Anywhere, &[("content-type", of)], true), expected, "{of}");
        }
        assert_eq!(status(Asked::Anywhere, &[], true), 415);
        assert_eq!(status(Asked::Anywhere, &[], false), 200, "there is no body");
    }
}

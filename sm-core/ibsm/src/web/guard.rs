//! Access control of the page, and security headers for browsers.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Access to the page. It shows names, GUIDs and the topology of the fabric, and has no passwords:
/// as with the other listeners, access from other machines must be enabled by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Users of this machine.
    Here,
    /// All clients that can reach the address.
    Open,
    /// No client: other machines can reach the address, and the operator did not permit that.
    Closed,
}

impl Page {
    /// Access for a server at `address`; `open` is the operator's permission.
    pub(super) fn of(address: SocketAddr, open: bool) -> Self {
        match (address.ip().to_canonical().is_loopback(), open) {
            (true, _) => Self::Here,
            (false, true) => Self::Open,
            (false, false) => Self::Closed,
        }
    }
}

const CLOSED: &str = "The page and /api/v1/ show names and topology of the fabric, and other \
    machines can reach this address. To permit that, start ibsm with --insecure; otherwise use \
    --http 127.0.0.1:PORT and a tunnel: ssh -L PORT:127.0.0.1:PORT HOST. /metrics is always \
    served.\n";

pub(crate) const ELSEWHERE: &str =
    "This address is for this machine only: use localhost or a loopback address.\n";

/// Refuses requests that may not see the page.
pub(super) async fn check(State(page): State<Page>, request: Request, next: Next) -> Response {
    match page {
        Page::Closed => (StatusCode::FORBIDDEN, CLOSED).into_response(),
        Page::Here | Page::Open => check_host(State(page), request, next).await,
    }
}

/// Refuses requests for another host, if this machine is the only one that may ask: otherwise
/// another party's host name that resolves to this machine would let their page read ours.
pub(super) async fn check_host(State(page): State<Page>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if page == Page::Here && !host.is_some_and(is_local) {
        return (StatusCode::MISDIRECTED_REQUEST, ELSEWHERE).into_response();
    }
    next.run(request).await
}

/// Whether a `Host` names this machine.
pub(crate) fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Security headers of all responses.
pub(crate) async fn harden(mut response: Response) -> Response {
    const HEADERS: [(header::HeaderName, &str); 5] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_local_and_no_others() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1:9100", "[::1]:9100", "127.9.9.9"] {
            assert!(is_local(host), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:80", "192.0.2.1", "", "127.0.0.1.nip.io"]
        {
            assert!(!is_local(host), "{host}");
        }
    }
}

//! HTTP server for monitoring systems: `/metrics` and `/healthz`, one request per connection.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::DescriptorEncoder;
use sa_proto::crowd::{Crowd, Place, Share};
use sa_proto::descriptors::Descriptors;
use sa_proto::metrics::{Family, Format};
use tokio::net::TcpStream;

use crate::watch::metrics::Metrics;

/// What is shown.
pub trait Page: Send + Sync + 'static {
    /// Whether the program does its work, for `/healthz`.
    fn is_serving(&self) -> bool;
    /// What is missing while it does not.
    fn missing(&self) -> &'static str;
    /// All metrics as text.
    fn render(&self, format: Format) -> String;
    /// What happened to connections, which the metrics have.
    fn connections(&self) -> Arc<Connections>;
}

/// Connections that were closed before their answer was sent, since the start.
#[derive(Debug, Default)]
pub struct Connections {
    /// Closed for another one: there were too many, in all or of the host or user.
    pub displaced: AtomicU64,
    /// No request came in time.
    pub late: AtomicU64,
    /// The client did not read the answer in time.
    pub unread: AtomicU64,
    /// What came is no HTTP, has too long a head, or the connection broke.
    pub failed: AtomicU64,
    /// All places, or all that the host or user may have, were taken by others that could not make
    /// room.
    pub refused: AtomicU64,
    /// Failures to accept one, mostly because no descriptors were left: it waits, is not closed,
    /// and is tried again.
    pub unaccepted: AtomicU64,
}

impl Connections {
    const CLOSED: Family =
        Family::number("http_connections_closed", "Connections without an answer, by reason");
    const UNACCEPTED: Family = Family::number(
        "http_connections_unaccepted",
        "Failures to accept a connection, mostly as no descriptors are left; it waits",
    );

    /// Writes them as metrics.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut closed = Self::CLOSED.counter(encoder)?;
        let counts = [
            ("displaced", &self.displaced),
            ("late", &self.late),
            ("unread", &self.unread),
            ("failed", &self.failed),
            ("refused", &self.refused),
        ];
        for (reason, count) in counts {
            closed.with(&[("reason", reason)], count.load(Relaxed))?;
        }
        Self::UNACCEPTED.counter(encoder)?.of(self.unaccepted.load(Relaxed))
    }
}

impl Page for Arc<Metrics> {
    fn is_serving(&self) -> bool {
        Metrics::is_serving(self)
    }

    fn missing(&self) -> &'static str {
        "no snapshot yet"
    }

    fn render(&self, format: Format) -> String {
        Metrics::render(self, format)
    }

    fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.http)
    }
}

/// Longest head of a request, bytes; hyper's minimum.
const HEAD_LEN_MAX: usize = 8192;
/// Part of the connections that one host, or one user of this host, may have.
const SHARES: usize = 4;
/// Part of the connections that is kept for root and the user of this process.
const RESERVED_PART: usize = 16;
/// Time limit for a connection: receiving the request and sending the response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after accepting failed, usually because too many descriptors are open.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves from a separate thread for as long as the process lives. Returns the address.
pub fn serve(address: SocketAddr, page: impl Page) -> io::Result<SocketAddr> {
    serve_within(address, Arc::new(page), TIMEOUT)
}

/// The same; `limit` is the time for a connection.
fn serve_within(
    address: SocketAddr,
    metrics: Arc<dyn Page>,
    limit: Duration,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        if let Err(error) = runtime.block_on(accept(listener, metrics, limit)) {
            tracing::error!(
                %error,
                "HTTP server failed; /metrics and /healthz are unavailable until ibsa restarts"
            );
        }
    };
    thread::Builder::new().name("ibsa-http".to_owned()).spawn(work)?;
    Ok(address)
}

async fn accept(listener: TcpListener, metrics: Arc<dyn Page>, limit: Duration) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    // Beyond it the oldest idle one is closed.
    let connections_max = Descriptors::of_process().for_http();
    let crowd = Crowd::new(connections_max)
        .with_shares(connections_max / SHARES)
        .with_reserve(connections_max / RESERVED_PART);
    let connections = metrics.connections();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                connections.unaccepted.fetch_add(1, Relaxed);
                tracing::debug!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(place) = place_of(&crowd, stream.local_addr(), peer, &connections) else {
            continue;
        };
        let (metrics, connections) = (Arc::clone(&metrics), Arc::clone(&connections));
        tokio::spawn(async move {
            let is_answered = AtomicBool::new(false);
            let serving = serve_connection(stream, metrics, &is_answered);
            let closed = tokio::select! {
                served = tokio::time::timeout(limit, serving) => match served {
                    Ok(Ok(())) => return,
                    Err(_) if is_answered.load(Relaxed) => &connections.unread,
                    Err(_) => &connections.late,
                    Ok(Err(_)) => &connections.failed,
                },
                () = place.cut() => &connections.displaced,
            };
            closed.fetch_add(1, Relaxed);
        });
    }
}

/// The place of an accepted connection, by its two addresses; one that gets none is counted.
fn place_of(
    crowd: &Crowd,
    local: io::Result<SocketAddr>,
    peer: SocketAddr,
    connections: &Connections,
) -> Option<Place> {
    let Ok(local) = local else {
        connections.failed.fetch_add(1, Relaxed);
        return None;
    };
    let share = Share::of_peer(local, peer);
    let place = crowd.enter_from(share, share.is_own());
    if place.is_none() {
        connections.refused.fetch_add(1, Relaxed);
    }
    place
}

/// Answers the request of a connection; sets `is_answered` once there was one.
async fn serve_connection(
    stream: TcpStream,
    metrics: Arc<dyn Page>,
    is_answered: &AtomicBool,
) -> hyper::Result<()> {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        is_answered.store(true, Relaxed);
        std::future::ready(Ok::<_, Infallible>(respond(&request, &metrics)))
    });
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_LEN_MAX)
        // The time for the whole connection is limited; a timer that ran out would look like a
        // client that leaves.
        .header_read_timeout(None::<Duration>)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn respond<B>(request: &Request<B>, metrics: &Arc<dyn Page>) -> Response<String> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let target = request.uri().path_and_query().map(|target| target.as_str());
    let (status, content_type, body) = match (request.method(), target) {
        (&Method::GET, Some("/metrics")) => {
            let format = format_of(request.headers());
            (StatusCode::OK, format.content_type(), metrics.render(format))
        }
        (&Method::GET, Some("/healthz")) if metrics.is_serving() => {
            (StatusCode::OK, TEXT, "serving\n".to_owned())
        }
        (&Method::GET, Some("/healthz")) => {
            (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{}\n", metrics.missing()))
        }
        (&Method::GET, _) => (StatusCode::NOT_FOUND, TEXT, "try /metrics or /healthz\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is served\n".to_owned()),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The format of metrics that a request accepts.
fn format_of(headers: &HeaderMap) -> Format {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    Format::accepted_by(&accepted.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn exchange(address: SocketAddr, request: &str) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Status code, content type and body of the response to a request that ends in an empty line.
    fn get(address: SocketAddr, request: &str) -> (u16, String, String) {
        let answer = exchange(address, request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        assert_eq!(header("connection").as_deref(), Some("close"));
        assert_eq!(header("content-length"), Some(body.len().to_string()));
        (status, header("content-type").unwrap(), body.to_owned())
    }

    fn server() -> SocketAddr {
        serve("127.0.0.1:0".parse().unwrap(), Arc::<Metrics>::default()).unwrap()
    }

    #[test]
    fn health_is_unavailable_without_a_snapshot() {
        let (status, content_type, body) = get(server(), "GET /healthz HTTP/1.1\r\n\r\n");
        assert_eq!((status, &content_type[..]), (503, "text/plain; charset=utf-8"));
        assert_eq!(body, "no snapshot yet\n");
    }

    #[test]
    fn metrics_come_in_the_format_that_is_accepted() {
        let address = server();
        let (status, content_type, body) = get(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!((status, content_type), (200, Format::OpenMetrics.content_type().to_owned()));
        assert!(body.ends_with("# EOF\n"), "{body}");
        let accept = "Accept: text/plain;version=0.0.4";
        let (_, content_type, body) =
            get(address, &format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n"));
        assert_eq!(content_type, Format::Prometheus.content_type());
        assert!(!body.ends_with("# EOF\n"), "{body}");
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let address = server();
        for (request, expected) in [
            ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
            ("GET / HTTP/1.1\r\n\r\n", 404),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", 404),
            ("GET /metrics?all HTTP/1.1\r\n\r\n", 404),
        ] {
            assert_eq!(get(address, request).0, expected, "{request}");
        }
    }

    #[test]
    fn a_head_that_is_too_long_or_malformed_is_refused() {
        let address = server();
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_LEN_MAX));
        for request in [&long[..], "no HTTP at all\r\n\r\n"] {
            let answer = exchange(address, request);
            assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
        assert_eq!(get(address, "GET /metrics HTTP/1.1\r\n\r\n").0, 200);
    }

    /// Regression: a scrape waited until silent connections had timed out.
    #[test]
    fn silent_connections_delay_no_other() {
        // They do not time out while the test runs.
        let limit = Duration::from_secs(3600);
        let metrics = Arc::<Metrics>::default();
        let page: Arc<dyn Page> = Arc::new(Arc::clone(&metrics));
        let address = serve_within("127.0.0.1:0".parse().unwrap(), page, limit).unwrap();
        let silent: Vec<_> = (0..Descriptors::of_process().for_http() + 8)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        assert_eq!(get(address, "GET /metrics HTTP/1.1\r\n\r\n").0, 200);
        // The first ones made room.
        let mut first = silent.into_iter().next().unwrap();
        assert!(first.read(&mut [0]).is_ok_and(|count| count == 0) || first.peer_addr().is_err());
        assert!(metrics.http.displaced.load(Relaxed) >= 8);
    }

    /// Regression: closed connections were not counted.
    #[test]
    fn what_is_closed_without_an_answer_is_counted_by_reason() {
        let metrics = Arc::<Metrics>::default();
        let page: Arc<dyn Page> = Arc::new(Arc::clone(&metrics));
        let limit = Duration::from_millis(200);
        let address = serve_within("127.0.0.1:0".parse().unwrap(), page, limit).unwrap();
        let end = |text: &str| {
            let mut connection = TcpStream::connect(address).unwrap();
            connection.write_all(text.as_bytes()).unwrap();
            let mut rest = Vec::new();
            let _ = connection.read_to_end(&mut rest);
        };
        end("");
        end("GET /metrics HTTP/1.1\r\n");
        end("no HTTP at all\r\n\r\n");
        end("GET /metrics HTTP/1.1\r\n\r\n");
        let counted = || {
            let Connections { displaced, late, unread, failed, refused, unaccepted } =
                &*metrics.http;
            [displaced, late, unread, failed, refused, unaccepted].map(|count| count.load(Relaxed))
        };
        // A connection is counted after its end.
        let begun = std::time::Instant::now();
        while counted() != [0, 2, 0, 1, 0, 0] && begun.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(counted(), [0, 2, 0, 1, 0, 0]);
        let text = metrics.render(Format::OpenMetrics);
        let line = r#"ibsa_http_connections_closed_total{reason="late"} 2"#;
        assert!(text.lines().any(|have| have == line), "{text}");
    }

    /// Regression: these were closed and counted nowhere, and what had not been accepted was among
    /// the closed ones.
    #[test]
    fn what_gets_no_place_is_counted_and_what_waits_counts_as_open() {
        let metrics = Arc::<Metrics>::default();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (local, peer) = (at("192.0.2.1:80"), at("192.0.2.2:5000"));
        let crowd = Crowd::new(1);
        let place = |local| place_of(&crowd, local, peer, &metrics.http);
        let first = place(Ok(local)).expect("it is free");
        first.set_busy(true);
        assert!(place(Ok(local)).is_none());
        assert!(place(Err(io::ErrorKind::NotConnected.into())).is_none());
        metrics.http.unaccepted.fetch_add(3, Relaxed);
        let text = metrics.render(Format::OpenMetrics);
        for line in [
            r#"ibsa_http_connections_closed_total{reason="refused"} 1"#,
            r#"ibsa_http_connections_closed_total{reason="failed"} 1"#,
            "ibsa_http_connections_unaccepted_total 3",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}: {text}");
        }
        assert!(!text.contains(r#"reason="unaccepted""#), "{text}");
    }
}

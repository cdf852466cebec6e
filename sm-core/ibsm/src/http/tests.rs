use super::*;

use std::convert::Infallible;

use axum::Extension;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Longer than what lies in buffers between a server and its client.
const LONG: usize = 1 << 20;
/// A limit that no test reaches.
const NEVER: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(200);

fn router() -> Router {
    let bytes = |lasting| (Extension(lasting), vec![b'x'; LONG]);
    let stream = || async {
        let pieces = tokio_stream::iter(0..LONG).map(|_| Ok::<_, Infallible>("piece\n"));
        (Extension(Lasting::Stream), Body::from_stream(pieces)).into_response()
    };
    Router::new()
        .route("/long", get(|| async { vec![b'x'; LONG] }))
        .route("/lasting", get(move || async move { bytes(Lasting::Long) }))
        .route("/short", get(|| async { "short" }))
        .route("/stream", get(stream))
}

fn connection(place: Arc<Place>, long_answers: Places<Share>, totals: Arc<Totals>) -> Connection {
    let quotas = Quotas { long_answers, ..Quotas::new(256, None) };
    let caller = Caller { share: Share::UNKNOWN, is_trusted: false };
    Connection { name: "test", caller, place, quotas, totals }
}

/// A server of one connection, and its client's end.
fn serve_one(patience: Patience) -> (DuplexStream, Arc<Totals>, tokio::task::JoinHandle<()>) {
    let (client, stream) = tokio::io::duplex(4096);
    let totals = Arc::<Totals>::default();
    let stream = Paced::new(stream, patience, totals.clone());
    let place = Arc::new(Crowd::new(1).enter().unwrap());
    let pace = stream.pace();
    let served = connection(place, Places::new(8, 8), totals.clone());
    (client, totals, tokio::spawn(served.serve(stream, pace, router())))
}

async fn ask(client: &mut (impl AsyncWrite + Unpin), path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
}

fn unread(totals: &Totals) -> u64 {
    totals.unread.load(Relaxed)
}

/// Regression: a client that asked for a long answer and read nothing kept its connection.
#[tokio::test(start_paused = true)]
async fn a_connection_ends_whose_client_reads_nothing() {
    for path in ["/long", "/lasting", "/stream"] {
        let patience = Patience { stall: SHORT, answer: NEVER };
        let (mut client, totals, served) = serve_one(patience);
        ask(&mut client, path).await;
        served.await.unwrap();
        assert_eq!(unread(&totals), 1, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_brings_no_http_is_counted_and_one_that_is_not_read_only_once() {
    let patience = || Patience { stall: SHORT, answer: NEVER };
    let (mut client, totals, served) = serve_one(patience());
    client.write_all(b"no HTTP at all\r\n\r\n").await.unwrap();
    served.await.unwrap();
    assert_eq!((totals.failed.load(Relaxed), unread(&totals)), (1, 0));
    let (mut client, totals, served) = serve_one(patience());
    ask(&mut client, "/long").await;
    served.await.unwrap();
    assert_eq!((totals.failed.load(Relaxed), unread(&totals)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_whose_client_reads_a_byte_now_and_then() {
    for path in ["/long", "/lasting"] {
        let patience = Patience { stall: NEVER, answer: SHORT };
        let (mut client, totals, served) = serve_one(patience);
        ask(&mut client, path).await;
        let begun = Instant::now();
        while !served.is_finished() {
            client.read_u8().await.unwrap();
            sleep(SHORT / 20).await;
            assert!(begun.elapsed() < SHORT * 100, "{path}: the connection lasts");
        }
        assert_eq!(unread(&totals), 1, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_gets_all_of_one_answer_after_the_other() {
    let patience = Patience { stall: NEVER, answer: SHORT * 10 };
    let (mut client, totals, served) = serve_one(patience);
    for _ in 0..2 {
        ask(&mut client, "/long").await;
        let mut body = vec![0; LONG];
        // The head, up to the empty line.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        client.read_exact(&mut body).await.unwrap();
        // The limit is of an answer, not of the connection.
        sleep(SHORT * 11).await;
    }
    drop(client);
    served.await.unwrap();
    assert_eq!(unread(&totals), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_lasts_as_long_as_its_client_reads() {
    let patience = Patience { stall: NEVER, answer: SHORT };
    let (mut client, totals, served) = serve_one(patience);
    ask(&mut client, "/stream").await;
    let begun = Instant::now();
    while begun.elapsed() < SHORT * 3 {
        client.read_exact(&mut [0; 64]).await.unwrap();
        sleep(SHORT / 20).await;
    }
    assert!(!served.is_finished());
    assert_eq!(unread(&totals), 0);
}

/// Regression: a user of this host kept 64 long answers in memory by reading none of them.
#[tokio::test(start_paused = true)]
async fn long_answers_are_limited_and_short_ones_are_not() {
    let totals = Arc::<Totals>::default();
    let crowd = Crowd::new(8);
    let long_answers = Places::new(8, 2);
    let asked = async |path| {
        let (mut client, stream) = tokio::io::duplex(4096);
        let patience = Patience { stall: NEVER, answer: NEVER };
        let stream = Paced::new(stream, patience, totals.clone());
        let pace = stream.pace();
        let place = Arc::new(crowd.enter().unwrap());
        let served = connection(place, long_answers.clone(), totals.clone());
        tokio::spawn(served.serve(stream, pace, router()));
        ask(&mut client, path).await;
        let mut status = [0; 12];
        client.read_exact(&mut status).await.unwrap();
        (status[9..].to_vec(), client)
    };
    let (first, client) = asked("/long").await;
    let (second, _unread) = asked("/lasting").await;
    assert_eq!([&first[..], &second], [b"200"; 2]);
    assert_eq!(asked("/long").await.0, b"503");
    assert_eq!(asked("/short").await.0, b"200");
    assert_eq!(totals.crowded.load(Relaxed), 1);
    drop(client);
    while asked("/long").await.0 != b"200" {
        sleep(SHORT / 20).await;
    }
}

/// Regression: users of this host, of whom one may have 65,536, kept all connections busy with
/// documents of earlier times, of which one is made at a time: /metrics and /healthz were refused.
#[tokio::test(start_paused = true)]
async fn half_of_the_connections_wait_for_documents_and_health_is_always_answered() {
    const MAX: usize = 16;
    let totals = Arc::<Totals>::default();
    let crowd = Crowd::new(MAX).with_reserve(MAX / RESERVED_PART);
    let quotas = Quotas::new(MAX, Some(&["/healthz"]));
    let document = get(std::future::pending::<&'static str>);
    let router = Router::new().route("/document", document).route("/healthz", get(|| async { "" }));
    let open = |user, is_trusted| {
        let caller = Caller { share: Share::User(user), is_trusted };
        let place = Arc::new(crowd.enter_from(caller.share, is_trusted).expect("a place"));
        let (client, stream) = tokio::io::duplex(4096);
        let patience = Patience { stall: NEVER, answer: NEVER };
        let stream = Paced::new(stream, patience, totals.clone());
        let pace = stream.pace();
        let (quotas, totals) = (quotas.clone(), totals.clone());
        let served = Connection { name: "test", caller, place, quotas, totals };
        tokio::spawn(served.serve(stream, pace, router.clone()));
        client
    };
    let status = async |client: &mut DuplexStream| {
        let mut status = [0; 12];
        let read = timeout(SHORT, client.read_exact(&mut status)).await;
        read.ok().map(|_| status[9..].to_vec())
    };
    let mut waiting = Vec::new();
    for user in 1..40 {
        let mut client = open(user, false);
        ask(&mut client, "/document").await;
        let answer = status(&mut client).await;
        let is_refused = user as usize > (MAX - MAX / RESERVED_PART) / REQUESTS_PART;
        assert_eq!(answer, is_refused.then(|| b"503".to_vec()), "user {user}");
        waiting.push(client);
    }
    let mut monitor = open(990, false);
    ask(&mut monitor, "/healthz").await;
    assert_eq!(status(&mut monitor).await.as_deref(), Some(&b"200"[..]));
    let mut root = open(0, true);
    ask(&mut root, "/document").await;
    assert_eq!(status(&mut root).await, None, "it has a place, and waits");
}

#[tokio::test(start_paused = true)]
async fn the_limit_holds_over_tls() {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            key.serialize_der().try_into().expect("a key"),
        )
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = tokio::io::duplex(4096);
    let totals = Arc::<Totals>::default();
    let paced = Paced::new(far, Patience { stall: SHORT, answer: NEVER }, totals.clone());
    let pace = paced.pace();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(client));
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (near, far) = tokio::join!(connector.connect(name, near), acceptor.accept(paced));
    let place = Arc::new(Crowd::new(1).enter().unwrap());
    let served = connection(place, Places::new(8, 8), totals.clone());
    let served = tokio::spawn(served.serve(far.unwrap(), pace, router()));
    let mut near = near.unwrap();
    ask(&mut near, "/long").await;
    near.flush().await.unwrap();
    timeout(SHORT * 100, served).await.expect("the connection ends").unwrap();
    assert_eq!(unread(&totals), 1);
}

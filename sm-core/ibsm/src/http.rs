//! Serves HTTP for the live page ([`web`](crate::web)) and the API ([`api`](crate::api)), each from
//! a thread of its own. Connections are limited in number, in all and for each host or local user;
//! requests are limited in number, length and time, and answers in the time that their client takes
//! to read them (`paced`). At least half of the connections are idle or have a short request, so
//! that there is always one that can make room for another.

mod paced;
#[cfg(test)]
mod tests;
mod turns;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::geteuid;
use sa_proto::crowd::{Crowd, Place, Share};
use sa_proto::descriptors::Descriptors;
use sa_proto::quota::{self, Places};
use sa_proto::trust::local::LocalRoles;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt as _;
use tonic::codegen::Service as _;
use tracing::{debug, error};

use paced::{Pace, Paced, Patience};
pub(crate) use turns::{Turns, in_turn, made};

/// Part of the connections that one host, or one user of this host, may have.
pub(crate) const SHARES: usize = 4;
/// Part of the connections that is kept for trusted users of this host.
const RESERVED_PART: usize = 16;
/// Parts of the connections whose requests may be answered at a time, other than
/// [`at_once`](Server::at_once): in all, and of one share.
const REQUESTS_PART: usize = 2;
const SHARE_REQUESTS_PART: usize = 8;
/// Time limit for a TLS handshake, for the head of a request, also on a kept-alive connection, and
/// for its body.
const PATIENCE: Duration = Duration::from_secs(15);
/// Length limit of the head of a request in bytes.
const HEAD_LEN_MAX: usize = 16 << 10;
/// Length from which on an answer is long, bytes.
const LONG_LEN: u64 = 256 << 10;
/// Bytes of an answer that are handed over at a time.
const PIECE_LEN: usize = 64 << 10;
/// Long answers that are being sent at a time, and to one host or user.
const LONG_ANSWERS_MAX: usize = 64;
const SHARE_LONG_ANSWERS_MAX: usize = 8;
/// Of these for trusted users of this host.
const LONG_ANSWERS_RESERVED: usize = 8;
/// Pause after a failure to accept: too many descriptors are open.
const PAUSE: Duration = Duration::from_millis(100);

/// A server, apart from what it answers.
pub(crate) struct Server {
    /// Name of the thread.
    pub(crate) thread: &'static str,
    /// What log lines call the server.
    pub(crate) name: &'static str,
    /// What is unavailable if the server fails.
    pub(crate) purpose: &'static str,
    /// Limit of threads for blocking work.
    pub(crate) blocking_threads: usize,
    /// The certificate, asked for with each connection; plain HTTP without.
    pub(crate) tls: Option<Certificate>,
    /// If requests are limited in number: paths of those that take no time to answer, which are
    /// answered however many others wait. Not limited where the caller proves first who it is.
    pub(crate) at_once: Option<&'static [&'static str]>,
    /// Users of this host with a role are trusted, as root and the user of this process are.
    pub(crate) local: LocalRoles,
    /// What happens to connections.
    pub(crate) totals: Arc<Totals>,
}

/// The configuration with the certificate of the next connection.
pub(crate) type Certificate = Box<dyn FnMut() -> Arc<ServerConfig> + Send>;

/// Totals of a server since the start.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Connections refused: all of their host or user, or all places, were busy.
    pub(crate) refused: AtomicU64,
    /// Idle connections closed for others.
    pub(crate) displaced: AtomicU64,
    /// Handshakes, and requests, that did not arrive in time.
    pub(crate) late: AtomicU64,
    /// Connections closed because their client did not read an answer in time.
    pub(crate) unread: AtomicU64,
    /// Requests refused because too many were being answered, or too many long answers being sent.
    pub(crate) crowded: AtomicU64,
    /// Readers of counters that made room for others.
    pub(crate) outrun: AtomicU64,
    /// Connections that broke, or whose handshake or request is malformed.
    pub(crate) failed: AtomicU64,
    /// Failures to accept a connection, which waits.
    pub(crate) unaccepted: AtomicU64,
}

/// Ends a connection from within a request whose client lags too far behind; an extension of each
/// request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut(Arc<Notify>);

impl Cut {
    /// Ends the connection.
    pub(crate) fn cut(&self) {
        self.0.notify_one();
    }

    /// Returns when the connection is to end.
    pub(crate) async fn cut_off(&self) {
        self.0.notified().await;
    }
}

/// Who a request is of; an extension of each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// The share that it counts against.
    pub(crate) share: Share,
    /// Whether it is of root, the user of this process, or a user of this host with a role.
    pub(crate) is_trusted: bool,
}

impl Caller {
    fn of(share: Share, local: &LocalRoles) -> Self {
        let has_role = match share {
            Share::User(user) => !local.of(user, geteuid().as_raw()).is_empty(),
            Share::Host(_) => false,
        };
        Self { share, is_trusted: has_role }
    }
}

/// An extension of answers that last: meanwhile their connection makes room for another only if
/// none else can. Handlers limit how many there are at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasting {
    /// A long answer, which ends.
    Long,
    /// What happens. It may last for any time, as long as the client reads.
    Stream,
}

impl Server {
    /// Serves at `address` as long as the process lives. Returns the bound address, which `router`
    /// receives, too; that runs on the runtime of the server.
    pub(crate) fn serve(
        self,
        address: SocketAddr,
        router: impl FnOnce(SocketAddr) -> Router + Send + 'static,
    ) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(self.blocking_threads)
            .enable_all()
            .build()?;
        std::thread::Builder::new().name(self.thread.to_owned()).spawn(move || {
            let (name, purpose) = (self.name, self.purpose);
            let work = async { accept(self, listener, router(address)).await };
            if let Err(failure) = runtime.block_on(work) {
                error!("{name} server stopped: {failure}; no {purpose} until ibsm restarts");
            }
        })?;
        Ok(address)
    }
}

async fn accept(server: Server, listener: TcpListener, router: Router) -> io::Result<()> {
    let Server { name, mut tls, at_once, local, totals, .. } = server;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    // Beyond it the oldest idle one is closed.
    let connections_max = Descriptors::of_process().for_http();
    let crowd = Crowd::new(connections_max)
        .with_shares(connections_max / SHARES)
        .with_reserve(connections_max / RESERVED_PART);
    let quotas = Quotas::new(connections_max, at_once);
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(failure) => {
                totals.unaccepted.fetch_add(1, Relaxed);
                debug!("cannot accept {name} connections: {failure}; retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let caller = match stream.local_addr() {
            Ok(own) => Caller::of(Share::of_peer(own, peer), &local),
            Err(_) => {
                totals.failed.fetch_add(1, Relaxed);
                continue;
            }
        };
        let Some(place) = crowd.enter_from(caller.share, caller.is_trusted) else {
            totals.refused.fetch_add(1, Relaxed);
            let share = caller.share;
            debug!("{name} connection of {peer} refused: all, or all of {share}, are busy");
            continue;
        };
        let _ = stream.set_nodelay(true);
        let stream = Paced::new(stream, Patience::default(), totals.clone());
        let pace = stream.pace();
        let (router, place) = (router.clone(), Arc::new(place));
        let (totals, quotas) = (totals.clone(), quotas.clone());
        let connection = Connection { name, caller, place, quotas, totals };
        match &mut tls {
            None => {
                tokio::spawn(connection.serve(stream, pace, router));
            }
            Some(certificate) => {
                let acceptor = TlsAcceptor::from(certificate());
                tokio::spawn(async move {
                    if let Some(stream) = connection.shake_hands(acceptor, stream).await {
                        connection.serve(stream, pace, router).await;
                    }
                });
            }
        }
    }
}

/// Places for requests and long answers, of all connections. Clones share them.
#[derive(Clone, Debug)]
struct Quotas {
    requests: Places<Share>,
    at_once: Option<&'static [&'static str]>,
    long_answers: Places<Share>,
}

impl Quotas {
    fn new(connections_max: usize, at_once: Option<&'static [&'static str]>) -> Self {
        let [all, share, reserve] =
            [REQUESTS_PART, SHARE_REQUESTS_PART, RESERVED_PART].map(|part| connections_max / part);
        Self {
            requests: Places::new(all, share).with_reserve(reserve),
            at_once,
            long_answers: Places::new(LONG_ANSWERS_MAX, SHARE_LONG_ANSWERS_MAX)
                .with_reserve(LONG_ANSWERS_RESERVED),
        }
    }

    /// Whether requests for `path` need no place.
    fn is_at_once(&self, path: &str) -> bool {
        self.at_once.is_none_or(|paths| paths.contains(&path))
    }
}

/// A connection, apart from its stream.
struct Connection {
    /// What log lines call the server.
    name: &'static str,
    caller: Caller,
    place: Arc<Place>,
    quotas: Quotas,
    totals: Arc<Totals>,
}

impl Connection {
    /// `None` if there is no TLS connection in time, or the place is needed for another.
    async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        acceptor: TlsAcceptor,
        stream: S,
    ) -> Option<TlsStream<S>> {
        let Self { name, place, totals, .. } = self;
        let shaken = tokio::time::timeout(PATIENCE, acceptor.accept(stream));
        let shaken = tokio::select! {
            shaken = shaken => shaken,
            () = place.cut() => {
                totals.displaced.fetch_add(1, Relaxed);
                debug!("{name} connection closed for another");
                return None;
            }
        };
        match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(failure)) => {
                totals.failed.fetch_add(1, Relaxed);
                debug!("{name}: TLS handshake failed: {failure}");
            }
            Err(_) => {
                totals.late.fetch_add(1, Relaxed);
                debug!("{name}: no TLS handshake in time");
            }
        }
        None
    }

    /// Answers requests until the connection ends.
    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        pace: Pace,
        router: Router,
    ) {
        let Self { name, caller, place, quotas, totals } = self;
        let cut = Cut::default();
        let (handed, answering, counted) = (cut.clone(), place.clone(), totals.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (place, totals) = (answering.clone(), counted.clone());
            let mut request = request.map(|body| Body::new(Awaited::new(body, place, totals)));
            request.extensions_mut().insert(handed.clone());
            request.extensions_mut().insert(caller);
            let (mut router, place, pace) = (router.clone(), answering.clone(), pace.clone());
            let (quotas, totals) = (quotas.clone(), counted.clone());
            async move {
                let Caller { share, is_trusted } = caller;
                let is_at_once = quotas.is_at_once(request.uri().path());
                let turn = (!is_at_once).then(|| quotas.requests.enter_as(is_trusted, share));
                let Ok(_turn) = turn.transpose() else {
                    totals.crowded.fetch_add(1, Relaxed);
                    pace.begin(false);
                    return Ok(crowded("too many requests are being answered"));
                };
                place.set_busy(true);
                pace.await_answer();
                let response = router.call(request).await;
                place.set_busy(false);
                response.map(|response| {
                    let lasting = response.extensions().get::<Lasting>().copied();
                    pace.begin(lasting == Some(Lasting::Stream));
                    let is_long = response.body().size_hint().lower() >= LONG_LEN;
                    let enter = || quotas.long_answers.enter_as(is_trusted, share);
                    let Ok(long) = is_long.then(enter).transpose() else {
                        totals.crowded.fetch_add(1, Relaxed);
                        return crowded("too many long answers are being sent");
                    };
                    let lasting = lasting.map(|_| place);
                    response.map(|body| Body::new(Sent::new(body, lasting, long)))
                })
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
                    match () {
                        () if failure.is_timeout() => _ = totals.late.fetch_add(1, Relaxed),
                        // Counted where the time ran out.
                        () if is_unread(&failure) => {}
                        () => _ = totals.failed.fetch_add(1, Relaxed),
                    }
                    debug!("{name} connection failed: {failure}");
                }
            }
            () = cut.cut_off() => {}
            () = place.cut() => {
                totals.displaced.fetch_add(1, Relaxed);
                debug!("{name} connection closed for another");
            }
        }
    }
}

/// Whether a connection ended because its client did not read.
fn is_unread(failure: &hyper::Error) -> bool {
    let cause = failure.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
}

/// The body of a request: while it is awaited its connection counts as idle, so that it makes room
/// for others; what does not arrive in time is given up.
struct Awaited {
    body: Incoming,
    place: Arc<Place>,
    totals: Arc<Totals>,
    deadline: Pin<Box<Sleep>>,
}

impl Awaited {
    fn new(body: Incoming, place: Arc<Place>, totals: Arc<Totals>) -> Self {
        Self { body, place, totals, deadline: Box::pin(tokio::time::sleep(PATIENCE)) }
    }
}

impl hyper::body::Body for Awaited {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.place.set_busy(true);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        self.place.set_busy(false);
        if self.deadline.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.totals.late.fetch_add(1, Relaxed);
        Poll::Ready(Some(Err(Late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answer in place of one of which there are too many.
fn crowded(reason: &str) -> Response {
    let text = format!("{reason}; try again\n");
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], text).into_response()
}

/// The body of an answer, in pieces: one is taken when the client has read what came before, so
/// that the body lasts until nearly all of it is sent.
struct Sent {
    body: Body,
    /// What follows the piece that was taken last.
    rest: Bytes,
    /// Of the connection, if the answer lasts.
    lasting: Option<Arc<Place>>,
    /// Among the long answers, if it is one.
    _long: Option<quota::Place<Share>>,
}

impl Sent {
    fn new(body: Body, lasting: Option<Arc<Place>>, long: Option<quota::Place<Share>>) -> Self {
        lasting.iter().for_each(|place| place.set_lasting(true));
        Self { body, rest: Bytes::new(), lasting, _long: long }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.lasting.iter().for_each(|place| place.set_lasting(false));
    }
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            let frame = Pin::new(&mut self.body).poll_frame(context);
            match frame.map_ok(Frame::into_data) {
                Poll::Ready(Some(Ok(Ok(data)))) => self.rest = data,
                Poll::Ready(Some(Ok(Err(frame)))) => return Poll::Ready(Some(Ok(frame))),
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Some(Err(failure))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
        let len = self.rest.len().min(PIECE_LEN);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        of_body.upper().into_iter().for_each(|upper| hint.set_upper(upper + rest));
        hint
    }
}

/// A body did not arrive in time.
#[derive(Debug)]
struct Late;

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body of the request did not arrive within {} s", PATIENCE.as_secs())
    }
}

impl Error for Late {}

/// Why a body cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BodyFailure {
    /// It did not arrive in time.
    Late,
    /// It is longer than permitted.
    TooLong,
    /// The connection failed.
    Broken,
}

/// Reads a body of at most `len_max` bytes.
pub(crate) async fn read_body(body: Body, len_max: usize) -> Result<Vec<u8>, BodyFailure> {
    let mut parts = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|failure| match is_late(&failure) {
            true => BodyFailure::Late,
            false => BodyFailure::Broken,
        })?;
        if bytes.len() + part.len() > len_max {
            return Err(BodyFailure::TooLong);
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes)
}

fn is_late(failure: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(failure);
    while let Some(failure) = cause {
        if failure.is::<Late>() {
            return true;
        }
        cause = failure.source();
    }
    false
}

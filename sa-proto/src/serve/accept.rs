//! Accepts connections one by one, so that renewed certificates are used from the next connection
//! on, and those that are turned away are logged.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use super::caller::{Caller, Connection, Grounds, Stream};
use super::certified::CertifiedPeers;
use super::gate::{Allowance, Gate, Slot};
use super::tls::Identity;
use super::{Counters, LOG_INTERVAL};
use crate::crowd::Share;
use crate::log_limit::LogLimit;
use crate::trust::local::{LocalRoles, tcp_owner};
use crate::trust::{self, Role};

/// How long a peer may take to send its first byte, or without TLS the preface of HTTP/2: without a
/// limit a peer could keep its place with a part of it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Length of that preface, bytes (RFC 9113, section 3.4).
const PREFACE_LEN: usize = 24;
/// How often a preface that came in part is looked at again.
const HELLO_PAUSE: Duration = Duration::from_millis(20);
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often certificate files are looked at, besides at each connection.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(5);
/// Connections that the server has not taken yet.
const ACCEPTED_MAX: usize = 16;
/// Users of this host that are looked up at once: each look-up has a descriptor and a thread.
const LOOKUPS_MAX: usize = 8;
/// Pause when the system has no descriptors left.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// What decides on a connection.
pub struct Acceptor {
    /// The certificates of the server; without, users of this host are known by their sockets.
    pub identity: Option<Identity>,
    /// The roles of users of this host.
    pub local: LocalRoles,
    /// Limits of connections.
    pub gate: Gate,
    /// What is refused is counted here.
    pub counters: Arc<Counters>,
}

/// Connections that were accepted.
pub type Accepted = ReceiverStream<io::Result<Connection>>;

/// Accepts connections until the receiver is dropped.
pub fn accept(listener: TcpListener, acceptor: Acceptor) -> Accepted {
    let (sender, accepted) = mpsc::channel(ACCEPTED_MAX);
    tokio::spawn(run(listener, acceptor, sender));
    ReceiverStream::new(accepted)
}

async fn run(
    listener: TcpListener,
    acceptor: Acceptor,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let Acceptor { mut identity, local, gate, counters } = acceptor;
    let log = LogLimit::new("refused connections", 1, LOG_INTERVAL);
    let turned_away = Arc::new(TurnedAway { counters, log });
    let accept_failures = LogLimit::new("failures to accept connections", 1, LOG_INTERVAL);
    let certified = CertifiedPeers::default();
    let lookups = Arc::new(Semaphore::new(LOOKUPS_MAX));
    let mut follows = tokio::time::interval(FOLLOW_INTERVAL);
    loop {
        let connection = tokio::select! {
            connection = listener.accept() => Some(connection),
            _ = follows.tick(), if identity.is_some() => None,
            () = accepted.closed() => return,
        };
        if let Some(identity) = &mut identity {
            // At each look, since certificates expire.
            if identity.follow() || connection.is_none() {
                certified.check(identity.verifier(), &turned_away.counters, &turned_away.log);
            }
        }
        let Some(connection) = connection else { continue };
        let (stream, peer) = match connection {
            Ok(connection) => connection,
            Err(error) => {
                if accept_failures.permits() {
                    tracing::warn!(%error, "cannot accept connections; retrying");
                }
                tokio::time::sleep(ACCEPT_DELAY).await;
                continue;
            }
        };
        let Some(slot) = gate.enter() else {
            turned_away.crowded(peer, "there are too many connections");
            continue;
        };
        let tls = identity.as_ref().map(|identity| TlsAcceptor::from(identity.config()));
        let (local, certified, lookups) = (local.clone(), certified.clone(), lookups.clone());
        let arrival = Arrival { stream, peer, slot, local, certified, lookups };
        let (accepted, turned_away) = (accepted.clone(), turned_away.clone());
        tokio::spawn(async move {
            if let Some(connection) = arrival.establish(tls, &turned_away).await {
                // If the server has gone, so has the connection.
                let _ = accepted.send(Ok(connection)).await;
            }
        });
    }
}

/// A connection whose peer is not known yet.
struct Arrival {
    stream: TcpStream,
    peer: SocketAddr,
    slot: Slot,
    local: LocalRoles,
    certified: CertifiedPeers,
    lookups: Arc<Semaphore>,
}

impl Arrival {
    /// Finds out who is there; `None` if the connection is to be closed.
    async fn establish(
        mut self,
        tls: Option<TlsAcceptor>,
        turned_away: &TurnedAway,
    ) -> Option<Connection> {
        let peer = self.peer;
        let _ = self.stream.set_nodelay(true);
        let user = match self.user().await {
            Ok(user) => user,
            // A certificate says more.
            Err(_) if tls.is_some() => None,
            Err(error) => {
                turned_away.unknown(peer, &error);
                return None;
            }
        };
        let own = rustix::process::geteuid().as_raw();
        let roles = user.map(|user| self.local.of(user, own));
        let (share, allowance) = match (user, &roles) {
            (Some(user), Some(roles)) if roles.iter().any(|role| *role != Role::Viewer) => {
                (Share::User(user), Allowance::Trusted)
            }
            (Some(user), Some(roles)) if !roles.is_empty() => (Share::User(user), Allowance::Usual),
            // With TLS a certificate gives the role.
            (Some(user), _) if tls.is_some() => (Share::User(user), Allowance::Usual),
            (Some(user), _) => (Share::User(user), Allowance::WithoutRole),
            (None, _) => (Share::of_host(peer.ip()), Allowance::Usual),
        };
        if !self.slot.assign(share, allowance) {
            turned_away.crowded(peer, "it has too many connections");
            return None;
        }
        // With TLS the handshake has a time limit of its own.
        let hello_len = if tls.is_some() { 1 } else { PREFACE_LEN };
        if timeout(HELLO_TIMEOUT, self.hello(hello_len)).await.is_err() {
            turned_away.silent(peer);
            return None;
        }
        let Some(tls) = tls else {
            let grounds = user.map_or(Grounds::Insecure, Grounds::User);
            let roles = roles.unwrap_or_else(|| Role::ALL.to_vec());
            let caller = Caller { address: peer, grounds, roles: roles.into() };
            return Some(Connection::new(Stream::Plain(self.stream), None, caller, self.slot));
        };
        match timeout(HANDSHAKE_TIMEOUT, tls.accept(self.stream)).await {
            Ok(Ok(stream)) => {
                let roles = certified_roles(&stream).into();
                let caller = Caller { address: peer, grounds: Grounds::Certificate, roles };
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                let chain = chain.iter().map(|it| it.clone().into_owned()).collect();
                let certified = Some(self.certified.enter(peer, chain));
                let stream = Stream::Tls(Box::new(stream));
                return Some(Connection::new(stream, certified, caller, self.slot));
            }
            Ok(Err(error)) => turned_away.handshake(peer, &trust::reason(&error)),
            Err(_) => turned_away
                .handshake(peer, &format!("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())),
        }
        None
    }

    /// Waits for the first bytes, or the end.
    async fn hello(&self, len: usize) {
        let mut bytes = [0; PREFACE_LEN];
        loop {
            match self.stream.peek(&mut bytes[..len]).await {
                Ok(read) if read > 0 && read < len => tokio::time::sleep(HELLO_PAUSE).await,
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// The user of this host at the other end; `None` if that is on another host.
    async fn user(&self) -> io::Result<Option<u32>> {
        let peer = self.peer;
        if !peer.ip().to_canonical().is_loopback() {
            return Ok(None);
        }
        let local = self.stream.local_addr()?;
        let _turn = self.lookups.acquire().await.map_err(io::Error::other)?;
        let owner = tokio::task::spawn_blocking(move || tcp_owner(local, peer)).await;
        let owner = owner.map_err(io::Error::other)??;
        // If it has been disconnected meanwhile, another socket may have the address.
        self.stream.peer_addr()?;
        owner.map(Some).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// The roles in the peer's certificate.
fn certified_roles(stream: &TlsStream<TcpStream>) -> Vec<Role> {
    let certificates = stream.get_ref().1.peer_certificates();
    let own = certificates.and_then(|certificates| certificates.first());
    own.map(|certificate| Role::of_certificate(certificate)).unwrap_or_default()
}

/// Counts and logs peers that were turned away.
struct TurnedAway {
    counters: Arc<Counters>,
    log: LogLimit,
}

impl TurnedAway {
    fn crowded(&self, peer: SocketAddr, reason: &str) {
        self.counters.crowded.fetch_add(1, Relaxed);
        if self.log.permits() {
            tracing::warn!(%peer, "connection refused: {reason}");
        }
    }

    fn silent(&self, peer: SocketAddr) {
        self.counters.silent.fetch_add(1, Relaxed);
        if self.log.permits() {
            let limit = HELLO_TIMEOUT.as_secs();
            tracing::info!(%peer, "connection closed: the peer sent nothing within {limit} s");
        }
    }

    fn unknown(&self, peer: SocketAddr, error: &io::Error) {
        // A client that left is no news.
        if error.kind() == io::ErrorKind::NotConnected {
            return;
        }
        self.counters.unknown.fetch_add(1, Relaxed);
        if self.log.permits() {
            tracing::warn!(%peer, %error, "connection refused: cannot determine its user");
        }
    }

    fn handshake(&self, peer: SocketAddr, reason: &str) {
        self.counters.turned_away.fetch_add(1, Relaxed);
        if self.log.permits() {
            tracing::warn!(%peer, "TLS handshake failed, connection closed: {reason}");
        }
    }
}

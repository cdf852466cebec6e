//! Connections with TLS. They are accepted one by one, so that renewed certificates are used from
//! the next connection on, and failed handshakes are logged.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use sa_proto::trust::{self, TlsFiles, TrustError, Usage};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use super::Shared;

/// Handshakes at the same time; further connections wait.
const HANDSHAKES_MAX: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that the server has not taken yet.
const ACCEPTED_MAX: usize = 16;
/// How long to wait when the system has no descriptors left.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);
/// Failed handshakes are logged at most once in this time; all are counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The server's certificates and the CA of its clients, reloaded when the files change.
#[derive(Clone)]
pub(super) struct Identity {
    files: TlsFiles,
    /// When the files were last changed, as far as the system reports it.
    stamps: [Option<(SystemTime, u64)>; 3],
    config: Arc<ServerConfig>,
}

impl Identity {
    pub(super) fn load(files: TlsFiles) -> Result<Self, TrustError> {
        let stamps = stamps(&files);
        let config = server_config(&files)?;
        Ok(Self { files, stamps, config })
    }

    /// Reads the files again if they have changed. If they are unusable, the previous ones are
    /// kept.
    fn follow(&mut self) {
        let stamps = stamps(&self.files);
        if stamps == self.stamps {
            return;
        }
        // Not read again before the next change, also after a failure.
        self.stamps = stamps;
        match server_config(&self.files) {
            Ok(config) => {
                tracing::info!("TLS certificates reloaded; new connections use them");
                self.config = config;
            }
            Err(error) => {
                tracing::error!(
                    "cannot reload TLS certificates: {error}; the previous ones stay in use"
                );
            }
        }
    }
}

fn stamps(files: &TlsFiles) -> [Option<(SystemTime, u64)>; 3] {
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    [&files.ca, &files.cert, &files.key].map(|path| stamp(path))
}

fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TrustError> {
    let credentials = files.read(Usage::Server)?;
    let provider = Arc::new(ring::default_provider());
    let tls = |error: &dyn std::error::Error| TrustError::Tls(error.to_string());
    let roots = Arc::new(credentials.roots()?);
    // Clients without a certificate are refused.
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| tls(&error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(credentials.chain, credentials.key)
        .map_err(|error| tls(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

pub(super) type Accepted = ReceiverStream<io::Result<TlsStream<TcpStream>>>;

/// Accepts connections until the receiver is dropped.
pub(super) fn accept(listener: TcpListener, identity: Identity, shared: Arc<Shared>) -> Accepted {
    let (sender, accepted) = mpsc::channel(ACCEPTED_MAX);
    let turned_away = Arc::new(TurnedAway { shared, logged: std::sync::Mutex::new(None) });
    tokio::spawn(run(listener, identity, turned_away, sender));
    ReceiverStream::new(accepted)
}

async fn run(
    listener: TcpListener,
    mut identity: Identity,
    turned_away: Arc<TurnedAway>,
    accepted: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
) {
    let room = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let connection = tokio::select! {
            connection = listener.accept() => connection,
            () = accepted.closed() => return,
        };
        let (stream, peer) = match connection {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections; retrying");
                tokio::time::sleep(ACCEPT_DELAY).await;
                continue;
            }
        };
        identity.follow();
        let acceptor = TlsAcceptor::from(identity.config.clone());
        let (accepted, turned_away) = (accepted.clone(), turned_away.clone());
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    // If the server has gone, so has the connection.
                    let _ = accepted.send(Ok(stream)).await;
                }
                Ok(Err(error)) => turned_away.note(peer, &trust::reason(&error)),
                Err(_) => turned_away
                    .note(peer, &format!("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())),
            }
            drop(permit);
        });
    }
}

/// Counts and logs peers whose handshake failed.
struct TurnedAway {
    shared: Arc<Shared>,
    logged: std::sync::Mutex<Option<Instant>>,
}

impl TurnedAway {
    fn note(&self, peer: SocketAddr, reason: &str) {
        self.shared.counters.turned_away.fetch_add(1, Relaxed);
        let mut logged = self.logged.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            tracing::warn!(%peer, "TLS handshake failed, connection closed: {reason}");
        }
    }
}

//! Connections of peers with certificates: they are closed when their certificate is no longer
//! accepted.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::Counters;
use crate::log_limit::LogLimit;
use crate::trust;

/// The open connections. Clones share them.
#[derive(Clone, Default)]
pub(super) struct CertifiedPeers(Arc<Mutex<Peers>>);

#[derive(Default)]
struct Peers {
    next: u64,
    /// As many as there may be connections.
    open: HashMap<u64, Peer>,
}

struct Peer {
    address: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    close: oneshot::Sender<()>,
}

/// An open connection, forgotten when dropped.
pub(super) struct Certified {
    peers: CertifiedPeers,
    number: u64,
    /// Ready when the connection is to be closed.
    pub(super) closed: oneshot::Receiver<()>,
}

impl CertifiedPeers {
    /// Records a connection and the certificates of its peer, its own first.
    pub(super) fn enter(
        &self,
        address: SocketAddr,
        chain: Vec<CertificateDer<'static>>,
    ) -> Certified {
        let (close, closed) = oneshot::channel();
        let mut peers = self.lock();
        let number = peers.next;
        peers.next += 1;
        peers.open.insert(number, Peer { address, chain, close });
        Certified { peers: self.clone(), number, closed }
    }

    /// Closes connections whose certificate `verifier` does not accept, because it was revoked, has
    /// expired or is of a CA that is no longer trusted.
    pub(super) fn check(
        &self,
        verifier: &dyn ClientCertVerifier,
        counters: &Counters,
        log: &LogLimit,
    ) {
        let now = UnixTime::now();
        let mut peers = self.lock();
        let refused: Vec<u64> = peers
            .open
            .iter()
            .filter_map(|(&number, peer)| {
                let (own, intermediate) = peer.chain.split_first()?;
                let error = verifier.verify_client_cert(own, intermediate, now).err()?;
                if log.permits() {
                    let reason = trust::reason(&error);
                    tracing::warn!(peer = %peer.address, "connection closed: {reason}");
                }
                Some(number)
            })
            .collect();
        for number in refused {
            counters.revoked.fetch_add(1, Relaxed);
            if let Some(peer) = peers.open.remove(&number) {
                // The connection may be gone.
                let _ = peer.close.send(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Certified {
    fn drop(&mut self) {
        self.peers.lock().open.remove(&self.number);
    }
}

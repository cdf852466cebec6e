//! The certificates of the server, and the CA of its clients.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::authorities::Authorities;
use crate::trust::{TlsFiles, TrustError, Usage};

/// What is made of certificate files, and made again when they change.
#[derive(Clone)]
pub struct Followed<T> {
    files: TlsFiles,
    /// When the files were last changed, as far as the system reports it.
    stamps: [Option<(SystemTime, u64)>; 4],
    load: fn(&TlsFiles) -> Result<T, TrustError>,
    loaded: T,
}

/// The server's certificates and the CA of its clients.
pub type Identity = Followed<Loaded>;

/// Certificate files, read.
#[derive(Clone)]
pub struct Loaded {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Identity {
    /// Loads the server's files.
    pub fn load(files: TlsFiles) -> Result<Self, TrustError> {
        Self::of(files, load)
    }

    /// The configuration of the next connection.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.loaded.config.clone()
    }

    /// What decides on certificates of clients.
    pub(super) fn verifier(&self) -> &dyn ClientCertVerifier {
        &*self.loaded.verifier
    }
}

impl<T> Followed<T> {
    /// Loads these files, and loads them again when they change.
    pub fn of(
        files: TlsFiles,
        load: fn(&TlsFiles) -> Result<T, TrustError>,
    ) -> Result<Self, TrustError> {
        let stamps = stamps(&files);
        let loaded = load(&files)?;
        Ok(Self { files, stamps, load, loaded })
    }

    /// What was made of the files last.
    pub fn loaded(&self) -> &T {
        &self.loaded
    }

    /// Reads the files again if they have changed. If they are unusable, the previous ones are
    /// kept. Returns whether others are in use now.
    pub fn follow(&mut self) -> bool {
        let stamps = stamps(&self.files);
        if stamps == self.stamps {
            return false;
        }
        // Not read again before the next change, also after a failure.
        self.stamps = stamps;
        match (self.load)(&self.files) {
            Ok(loaded) => {
                tracing::info!("TLS certificates reloaded; new connections use them");
                self.loaded = loaded;
                true
            }
            Err(error) => {
                tracing::error!(
                    "cannot reload TLS certificates: {error}; the previous ones stay in use"
                );
                false
            }
        }
    }
}

fn stamps(files: &TlsFiles) -> [Option<(SystemTime, u64)>; 4] {
    let stamp = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    let paths = [Some(&files.ca), Some(&files.cert), Some(&files.key), files.crl.as_ref()];
    paths.map(|path| stamp(path?))
}

fn load(files: &TlsFiles) -> Result<Loaded, TrustError> {
    let credentials = files.read(Usage::Server)?;
    let provider = Arc::new(ring::default_provider());
    let tls = |error: &dyn std::error::Error| TrustError::Tls(error.to_string());
    let verifier: Arc<dyn ClientCertVerifier> = Arc::new(Authorities::of(&credentials, &provider)?);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls(&error))?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(credentials.chain, credentials.key)
        .map_err(|error| tls(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Loaded { config: Arc::new(config), verifier })
}

//! The certificates of this SM, and the CA of its clients.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use sa_proto::trust::{TlsFiles, TrustError, Usage};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;

/// The server's certificates and the CA of its clients, reloaded when the files change.
#[derive(Clone)]
pub(in super::super) struct Identity {
    files: TlsFiles,
    /// When the files were last changed, as far as the system reports it.
    stamps: [Option<(SystemTime, u64)>; 3],
    config: Arc<ServerConfig>,
}

impl Identity {
    pub(in super::super) fn load(files: TlsFiles) -> Result<Self, TrustError> {
        let stamps = stamps(&files);
        let config = server_config(&files)?;
        Ok(Self { files, stamps, config })
    }

    /// The configuration of the next connection.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Reads the files again if they have changed. If they are unusable, the previous ones are
    /// kept.
    pub(super) fn follow(&mut self) {
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

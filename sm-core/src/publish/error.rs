//! Why something cannot be published.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use sa_proto::snapshot::BuildError;
use sa_proto::trust::TrustError;

/// Why something cannot be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The address cannot be listened on.
    #[error("cannot listen for responders on {address}; choose another with --publish")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The epoch cannot be kept.
    #[error("cannot keep the session's epoch in {}; choose another --state-dir", state_dir.display())]
    State {
        /// The directory.
        state_dir: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// No session has begun: this SM is not the master.
    #[error("no session: this SM is not the master")]
    NoSession,
    /// The planes are not what a snapshot promises.
    #[error("snapshot refused")]
    Build(#[from] BuildError),
    /// The registry went back.
    #[error("registry sequence {offered} is below {current}, published already")]
    StaleRegistry {
        /// The sequence published last.
        current: u64,
        /// The one refused.
        offered: u64,
    },
}

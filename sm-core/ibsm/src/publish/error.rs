//! Errors of publishing.

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
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// The certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The epoch cannot be saved.
    #[error(
        "cannot save the session epoch in {}; choose another directory with --state-dir",
        state_dir.display()
    )]
    State {
        /// The directory.
        state_dir: PathBuf,
        /// The error of the system.
        #[source]
        error: io::Error,
    },
    /// No session has begun: this SM is not the master.
    #[error("no session: this SM is not the master")]
    NoSession,
    /// The planes break an invariant of a snapshot.
    #[error("inconsistent snapshot")]
    Build(#[from] BuildError),
    /// The registry's sequence number went back.
    #[error("registry sequence {offered} is below {current}, which is already published")]
    StaleRegistry {
        /// The sequence published last.
        current: u64,
        /// The one refused.
        offered: u64,
    },
}

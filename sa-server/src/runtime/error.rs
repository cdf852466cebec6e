//! Errors that prevent the program from starting.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use daemon::pidfile::PidfileError;
use ib_mad::transport::ibsim::IbsimError;
use ib_mad::transport::umad::UmadError;
#[cfg(feature = "verbs")]
use ib_mad::transport::verbs::VerbsError;
use sa_proto::trust::TrustError;

use crate::node::ServeError;
use crate::sm::replica::CacheDirError;

/// Why the program cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No UDP socket at the address given.
    #[error("cannot listen at {address} (--listen): {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No HTTP there.
    #[error("cannot serve HTTP at {address} (--http): {source}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Agents cannot be served there.
    #[error("cannot serve agents at {address} (--agents): {source}")]
    Agents {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: ServeError,
    },
    /// No capture file.
    #[error("--capture {}: {source}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No shared memory for clients on this host.
    #[error("cannot serve rings at {} (--ring): {source}", path.display())]
    Ring {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A CPU of `--pin` that this process may not use.
    #[error("cannot run on CPU {cpu} (--pin): this process may use {allowed:?}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// CPUs that this process may use.
        allowed: Vec<usize>,
    },
    /// TLS with an SM cannot be set up.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The front door would be open to other hosts.
    #[error(
        "--listen {0} is open to other hosts without authentication: any host that can send from \
         the \
         SM's address can query and write on behalf of clients. Add --insecure if every host \
         that can reach it is trusted"
    )]
    Exposed(SocketAddr),
    /// The pid file cannot be used.
    #[error(transparent)]
    Pidfile(#[from] PidfileError),
    /// The cache directory cannot be used.
    #[error(transparent)]
    CacheDir(#[from] CacheDirError),
    /// The fabric cannot be attached to.
    #[error("{}", .0.with_origin(socket_variable().as_deref()))]
    Ibsim(#[from] IbsimError),
    /// The port of this host cannot be used.
    #[error("{0}")]
    Umad(#[from] UmadError),
    /// Only a umad port can be shared with its SM.
    #[error("--at-sm-port needs --transport umad")]
    AtSmPort,
    /// The queue pair cannot be made.
    #[cfg(feature = "verbs")]
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    /// The system refuses threads or signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

fn socket_variable() -> Option<String> {
    std::env::var("IBSIM_SOCKNAME").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the message left out the error of the system.
    #[test]
    fn a_fatal_error_is_reported_with_its_cause() {
        let error = CacheDirError::Io { path: "/x".into(), error: io::Error::other("full") };
        let text = sa_proto::with_causes(&StartError::from(error));
        assert!(text.contains("cannot use /x") && text.ends_with(": full"), "{text}");
    }
}

//! Runs the agent: the kernel's socket, connections to responders, files and clocks, all on one
//! thread.

mod follow;
mod metrics;
mod options;
mod ports;
mod socket;

pub use metrics::AgentMetrics;
pub use options::{AgentOptions, Source};
pub use ports::PortsError;
pub use socket::KernelSocket;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use daemon::manager::ServiceManager;
use sa_proto::trust::TrustError;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::host::{Host, Name};
use super::port::Port;
use crate::watch::http;

/// The host, shared by the tasks of one thread and the one that serves metrics.
pub type SharedHost = Arc<Mutex<Host>>;

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// There are no ports to answer for.
    #[error(transparent)]
    Ports(#[from] PortsError),
    /// The kernel's requests cannot be received.
    #[error("{0}")]
    Kernel(io::Error),
    /// A responder's URL or the certificates cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No HTTP there.
    #[error("cannot serve HTTP at {address} (--http): {source}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses threads or signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Runs the agent until a signal ends it.
pub fn main(options: &AgentOptions) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(io::stdout().is_terminal())
        // The reader of the log may be gone; that must not end the program.
        .log_internal_errors(false)
        .init();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", sa_proto::with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &AgentOptions) -> Result<(), AgentError> {
    // All of these are checked before the kernel is made to ask this process.
    let sources = options.sources()?;
    let ports = ports::find(&options.sysfs, options.device.as_deref(), options.port)?;
    let host = share(ports);
    if let Some(address) = options.http {
        let at = http::serve(address, metrics::AgentMetrics::new(Arc::clone(&host)))
            .map_err(|source| AgentError::Http { address, source })?;
        tracing::info!("metrics at http://{at}/metrics");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let manager = ServiceManager::of_environment();
    runtime.block_on(async {
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let socket = KernelSocket::open().map_err(AgentError::Kernel)?;
        manager.iter().for_each(|manager| manager.ready("answering the kernel's path queries"));
        tokio::select! {
            error = work(socket, &sources, &host) => Err(AgentError::Kernel(error)),
            () = feed_watchdog(manager.as_ref()) => Ok(()),
            _ = term.recv() => Ok(()),
            _ = int.recv() => Ok(()),
        }
    })?;
    manager.iter().for_each(ServiceManager::stopping);
    tracing::info!("stopping; the kernel asks the SA from now on");
    Ok(())
}

/// Feeds the watchdog, if there is one, as long as this thread, which answers the kernel, turns.
async fn feed_watchdog(manager: Option<&ServiceManager>) {
    let Some((manager, limit)) = manager.and_then(|manager| Some((manager, manager.watchdog()?)))
    else {
        return std::future::pending().await;
    };
    let mut due = tokio::time::interval(limit / 3);
    loop {
        due.tick().await;
        manager.alive();
    }
}

/// A host with these ports.
pub fn share(ports: Vec<(Name, ib_mad::types::Guid)>) -> SharedHost {
    let ports = ports.into_iter().map(|(name, guid)| (name, Port::new(guid))).collect();
    Arc::new(Mutex::new(Host::new(ports)))
}

/// Answers the requests of a socket, and follows each port of `host` at one of `sources`, until the
/// socket fails.
pub async fn work(socket: KernelSocket, sources: &[Source], host: &SharedHost) -> io::Error {
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..lock(host).ports().len() {
        tasks.spawn(follow::run(at, sources.to_vec(), Arc::clone(host)));
    }
    // The tasks end with the set.
    socket.serve(host).await
}

fn lock(host: &SharedHost) -> MutexGuard<'_, Host> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

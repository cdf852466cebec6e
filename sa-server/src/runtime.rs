//! Puts the parts together: workers on threads, the subscription on an async runtime, tables built
//! between them.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ib_mad::transport::Transport;
use ib_mad::transport::ibsim::{ClientId, Ibsim, IbsimError, IbsimOptions, Role};
use ib_mad::transport::udp::{Udp, UdpOptions};
use ib_mad::types::{Guid, Qpn};
use ib_mad::wire::mad::{Method, MgmtClass};
use sa_proto::snapshot::{FabricPlane, Snapshot};
use sa_proto::trust::TrustError;
use tracing_subscriber::EnvFilter;

use crate::cell::{Generation, Publisher, Reader};
use crate::explain::told;
use crate::forward::{Exchange, Forwarding};
use crate::http;
use crate::index::RegistryIndex;
use crate::metrics::{Metrics, Serving};
use crate::options::{Options, TransportKind};
use crate::own_port::{OwnPort, Way};
use crate::redirect::Redirection;
use crate::relay;
use crate::replica::{self, CacheDir, CacheDirError, Identity, ReplicaConfig, passing_identity};
use crate::report;
use crate::responder::{Responder, ResponderConfig};
use crate::stats::Stats;
use crate::tables::Tables;
use crate::worker::{Worker, WorkerConfig};

/// How often an ibsim client looks whether its server is still there, and what its LID is.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait before attaching again.
const REATTACH_DELAY: Duration = Duration::from_secs(1);
/// How often retired tables are looked at.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// The cache file is written at most once in this time.
const CACHE_INTERVAL: Duration = Duration::from_secs(10);
/// File in the cache directory that tells the next start which ibsim client this one was.
const CLIENT_FILE: &str = "ibsim-client";

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
    /// There is no trust between an SM and us.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The front door would be open to other hosts.
    #[error(
        "--listen {0} is open to other hosts, and nothing is authenticated there: whoever can send \
         from the SM's address could ask and write in clients' names. Say --insecure if every host \
         that can reach it is trusted"
    )]
    Exposed(SocketAddr),
    /// The cache directory cannot be used.
    #[error(transparent)]
    CacheDir(#[from] CacheDirError),
    /// The fabric cannot be attached to.
    #[error("{0}")]
    Ibsim(#[from] IbsimError),
    /// The system refuses threads or signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Runs the program until a signal ends it.
pub fn main(options: Options) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(io::stdout().is_terminal())
        // Whoever read the log may have gone; that must not end the program.
        .log_internal_errors(false)
        .init();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the program until a signal ends it.
pub fn run(options: Options) -> Result<(), StartError> {
    let sms = options.trusted_sms()?;
    if let Some(address) = options.exposed_listen() {
        return Err(StartError::Exposed(address));
    }
    let cache_dir = options.cache_dir.as_deref().map(CacheDir::open).transpose()?;
    let id = cache_dir.as_ref().map_or_else(passing_identity, CacheDir::responder_id);
    let publisher = Publisher::new();
    let mut crew = Crew {
        stop: Arc::new(AtomicBool::new(false)),
        tables: publisher.reader(),
        redirection: Redirection::to(options.redirect_to.clone()),
        exchange: Exchange::new(usize::from(options.workers) + 1)?,
        own_port: None,
        members: Vec::new(),
        workers: Vec::new(),
    };
    let mut port = None;
    let mut fabric = None;
    if options.transport == TransportKind::Ibsim {
        let (ibsim, guid) = attach(&options, true)?;
        port = Some((guid, Qpn::GSI));
        fabric = Some(ibsim);
        // The worker hired last, after those of the front door.
        let own_port = OwnPort::new(Arc::clone(&crew.exchange), usize::from(options.workers));
        crew.own_port = Some((guid, own_port));
    }
    let front_door = listen(&options)?;
    let address = front_door[0].local_addr()?;
    // The first worker sends the reports, which go out by the front door.
    for (i, udp) in front_door.into_iter().enumerate() {
        let way = crew.own_port.as_ref().map_or(Way::Back, |(_, port)| Way::By(Arc::clone(port)));
        crew.hire(format!("udp-{i}"), udp, way, |_| Ok(()), rebind_never)?;
    }
    if let Some(ibsim) = fabric {
        crew.hire_at_fabric(ibsim, options.clone())?;
    }
    let metrics =
        Arc::new(Metrics { workers: std::mem::take(&mut crew.workers), ..Metrics::default() });
    if let Some(address) = options.http {
        let at = http::serve(address, Arc::clone(&metrics))
            .map_err(|source| StartError::Http { address, source })?;
        tracing::info!("metrics at http://{at}/metrics");
    }
    tracing::info!(front_door = %address, transport = ?options.transport, "ready for queries");

    let config = ReplicaConfig {
        sms,
        identity: Identity {
            id,
            name: options.name.clone().unwrap_or_else(|| format!("ibsa-{}", std::process::id())),
            front_door: vec![address],
            port,
            port_use: options.port_use.into(),
        },
        cache_dir,
        cache_interval: CACHE_INTERVAL,
    };
    let subscribed = subscribe(config, publisher, crew.tables.clone(), &metrics, &crew.exchange);
    crew.dismiss();
    subscribed
}

/// Follows the SMs until a signal comes.
fn subscribe(
    config: ReplicaConfig,
    publisher: Publisher,
    tables: Reader,
    metrics: &Arc<Metrics>,
    exchange: &Arc<Exchange>,
) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                tracing::info!("SIGHUP ignored: there is no configuration to read again");
            }
        });
        let publisher = Arc::new(Mutex::new(publisher));
        let reclaiming = Arc::clone(&publisher);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(RECLAIM_INTERVAL);
            loop {
                tick.tick().await;
                reclaiming.lock().unwrap_or_else(PoisonError::into_inner).reclaim();
            }
        });
        let explain = explainer(Arc::clone(&publisher));
        let mut builder = Builder { publisher, metrics: Arc::clone(metrics), last: None };
        let status = Arc::clone(&metrics.replica);
        let forwarding = Forwarding {
            counters: Arc::clone(&metrics.writes),
            ..Forwarding::new(config.identity.id, Arc::clone(exchange))
        };
        tokio::spawn(forwarding.run(status.upstream(), status.versions()));
        let relayed = Arc::clone(exchange);
        tokio::spawn(relay::run(config.identity.id, relayed, status.upstream()));
        tokio::spawn(report::follow::run(
            config.identity.id,
            Arc::clone(exchange),
            Arc::clone(&metrics.reports),
            status.upstream(),
            status.versions(),
            tables,
        ));
        let totals = Arc::clone(metrics);
        let shutdown = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            tracing::info!("stopping");
        };
        let install = move |snapshot: &Arc<Snapshot>| builder.install(snapshot);
        let stats = move || totals.totals();
        replica::run_explaining(config, status, install, stats, Some(explain), shutdown).await;
        Ok(())
    })
}

/// Explains paths from the tables that queries are answered from.
fn explainer(publisher: Arc<Mutex<Publisher>>) -> replica::Explain {
    Arc::new(move |question| {
        // A reader that lasted would keep a generation from being freed.
        let mut reader = publisher.lock().unwrap_or_else(PoisonError::into_inner).reader();
        match reader.current() {
            Some(generation) => told::tell(generation, question),
            None => Err("this responder has no snapshot yet".to_owned()),
        }
    })
}

/// Makes tables of snapshots and hands them to the workers.
struct Builder {
    publisher: Arc<Mutex<Publisher>>,
    metrics: Arc<Metrics>,
    /// The last snapshot, its tables and its index.
    last: Option<(Arc<Snapshot>, Arc<Tables>, RegistryIndex)>,
}

impl Builder {
    fn install(&mut self, snapshot: &Arc<Snapshot>) {
        let start = Instant::now();
        let last = self.last.take();
        let registry = Arc::clone(snapshot.registry());
        let index = match &last {
            Some((last, _, index)) => index.follow(last.registry(), &registry),
            None => RegistryIndex::new(&registry),
        };
        let reused = last.filter(|(last, ..)| has_same_tables(last, snapshot));
        let rebuilt = reused.is_none();
        let tables = match reused {
            Some((_, tables, _)) => tables,
            None => Arc::new(Tables::build(snapshot.fabric(), &registry)),
        };
        let version = snapshot.version();
        let generation =
            Generation { version, tables: Arc::clone(&tables), registry, index: index.clone() };
        let built_in = start.elapsed();
        let mut publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner);
        publisher.publish(Arc::new(generation));
        drop(publisher);
        if rebuilt {
            log_installed(snapshot, &tables, built_in);
        }
        self.metrics.serving.store(Some(Arc::new(Serving {
            version,
            since: Instant::now(),
            built_in_s: built_in.as_secs_f64(),
            end_ports: tables.end_ports.all().len(),
            hot_bytes: tables.hot_bytes(),
        })));
        self.last = Some((Arc::clone(snapshot), tables, index));
    }
}

/// Whether two snapshots have the same tables: they differ in no fabric row and no alias GUID.
fn has_same_tables(a: &Snapshot, b: &Snapshot) -> bool {
    (Arc::ptr_eq(a.fabric(), b.fabric()) || a.fabric() == b.fabric())
        && a.registry().alias_guids == b.registry().alias_guids
}

fn log_installed(snapshot: &Snapshot, tables: &Tables, built_in: Duration) {
    let plane: &FabricPlane = snapshot.fabric();
    let switches = plane.lfts.len();
    let version = snapshot.version();
    let (rows, columns) = tables.paths.host_size();
    tracing::info!(
        "serving generation {} of session {}: {} hosts, {switches} switches, {} links, {} end \
         ports, {} partitions; tables built in {:.1} ms, {rows} x {columns} path classes, {} KB \
         for paths between hosts",
        version.fabric_generation,
        version.session,
        plane.nodes.len().saturating_sub(switches),
        tables.records.links.len() / 2,
        tables.end_ports.all().len(),
        tables.partitions.len(),
        built_in.as_secs_f64() * 1e3,
        tables.hot_bytes() >> 10,
    );
    if tables.contradictions() > 0 {
        tracing::warn!(
            count = tables.contradictions(),
            "LIDs or GUIDs that the snapshot gives to several ports; the first one has them"
        );
    }
}

/// The sockets of the front door, one a worker, all at one address.
fn listen(options: &Options) -> Result<Vec<Udp>, StartError> {
    let bind = |listen: SocketAddr| {
        let share_port = options.workers > 1;
        Udp::bind(&UdpOptions { share_port, ..UdpOptions::new(listen) })
            .map_err(|source| StartError::Listen { address: listen, source })
    };
    let mut sockets = vec![bind(options.listen)?];
    let address = sockets[0].local_addr()?;
    for _ in 1..options.workers {
        sockets.push(bind(address)?);
    }
    Ok(sockets)
}

/// Attaches to the simulated fabric. `first`: an earlier run may have been killed while attached.
fn attach(options: &Options, first: bool) -> Result<(Ibsim, Guid), IbsimError> {
    let file = options.cache_dir.as_deref().map(|directory| directory.join(CLIENT_FILE));
    let stale_client = match (&file, first) {
        (Some(file), true) => read_client(file),
        _ => None,
    };
    let mut ibsim = Ibsim::connect(&IbsimOptions {
        socket: options.socket.clone(),
        node: options.node.clone(),
        role: Role::Responder,
        stale_client,
        ..IbsimOptions::default()
    })?;
    if let Some(file) = file
        && let Err(error) = std::fs::write(&file, format!("{}\n", ibsim.client_id()))
    {
        tracing::warn!(path = %file.display(), %error, "cannot keep the ibsim client id");
    }
    // What clients send to the SM by way of us. Another manager on the node may have it, and is then
    // the one that they mean.
    let methods = 1 << Method::TRAP.0 | 1 << Method::GET.0;
    if let Err(error) = ibsim.declare_methods(MgmtClass::SUBN_LID_ROUTED, methods) {
        tracing::info!(%error, "traps that reach our port are not passed on to the SM");
    }
    let port = ibsim.local_port()?;
    tracing::info!(node = ibsim.node(), guid = %port.guid, lid = %port.lid, "attached to the fabric");
    Ok((ibsim, port.guid))
}

fn read_client(file: &Path) -> Option<ClientId> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A UDP socket does not fail in a way that another one would not.
fn rebind_never<T>() -> Option<T> {
    None
}

/// The workers.
struct Crew {
    stop: Arc<AtomicBool>,
    tables: Reader,
    redirection: Redirection,
    exchange: Arc<Exchange>,
    /// The port of the worker at the fabric, and its GUID.
    own_port: Option<(Guid, Arc<OwnPort>)>,
    members: Vec<JoinHandle<()>>,
    workers: Vec<(String, Arc<Stats>)>,
}

impl Crew {
    fn hire_at_fabric(&mut self, ibsim: Ibsim, options: Options) -> Result<(), StartError> {
        let upkeep = |ibsim: &mut Ibsim| ibsim.local_port().map(drop).map_err(io::Error::other);
        let reattach = move || match attach(&options, false) {
            Ok((ibsim, _)) => Some(ibsim),
            Err(error) => {
                tracing::debug!(%error, "not attached");
                None
            }
        };
        let own = self.own_port.as_ref();
        let way = own.map_or(Way::Back, |(_, port)| Way::Owner(Arc::clone(port)));
        self.hire("ibsim".to_owned(), ibsim, way, upkeep, reattach)
    }

    /// Starts a worker that goes on until told to stop. `reopen` is tried once a second after the
    /// transport has failed.
    fn hire<T: Transport + 'static>(
        &mut self,
        name: String,
        transport: T,
        way: Way,
        mut upkeep: impl FnMut(&mut T) -> io::Result<()> + Send + 'static,
        mut reopen: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Result<(), StartError> {
        let stats = Arc::new(Stats::default());
        self.workers.push((name.clone(), Arc::clone(&stats)));
        // Whoever asks at our own port was sent there.
        let redirection = match way {
            Way::Owner(_) => Redirection::off(),
            Way::Back | Way::By(_) => self.redirection.clone(),
        };
        let config = ResponderConfig {
            redirection,
            own_port: self.own_port.as_ref().map(|(guid, _)| *guid),
            ..ResponderConfig::default()
        };
        let tables = self.tables.clone();
        let end = self.exchange.worker(self.members.len());
        let responder = move || {
            Responder::new(tables.clone(), config.clone(), Arc::clone(&stats))
                .with_exchange(end.clone())
        };
        let stop = Arc::clone(&self.stop);
        let thread_name = format!("ibsa-{name}");
        let work = move || {
            let worker = Worker::new(transport, responder(), WorkerConfig::default());
            let mut worker = worker.with_way(way);
            while !stop.load(Relaxed) {
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    worker.run(&stop, UPKEEP_INTERVAL, &mut upkeep)
                }));
                match ran {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => {
                        tracing::warn!(worker = name, %error, "transport failed; trying again");
                        thread::sleep(REATTACH_DELAY);
                        if let Some(transport) = reopen() {
                            worker.replace_transport(transport);
                        }
                    }
                    Err(_) => {
                        tracing::error!(worker = name, "worker failed and begins anew: a bug");
                        worker.responder().stats().abandon();
                        worker.replace_responder(responder());
                    }
                }
            }
        };
        self.members.push(thread::Builder::new().name(thread_name).spawn(work)?);
        Ok(())
    }

    /// Stops all workers and waits for them.
    fn dismiss(self) {
        self.stop.store(true, Relaxed);
        for member in self.members {
            // A worker that panics while it stops has said so on standard error.
            let _ = member.join();
        }
    }
}

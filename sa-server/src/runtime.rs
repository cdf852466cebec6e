//! Puts the parts together: workers on threads, the subscription on an async runtime, tables built
//! between them.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ib_mad::transport::Transport;
use ib_mad::transport::ibsim::{ClientId, Ibsim, IbsimError, IbsimOptions, Role};
use ib_mad::transport::ring::{RingCounters, RingOptions, RingServer};
use ib_mad::transport::udp::{Engine, Udp, UdpOptions};
use ib_mad::transport::umad::UmadError;
#[cfg(feature = "verbs")]
use ib_mad::transport::verbs::{Verbs, VerbsError};
use ib_mad::types::{Guid, Qpn};
use ib_mad::wire::mad::{Method, MgmtClass};
use sa_proto::snapshot::{FabricPlane, Snapshot};
use sa_proto::trust::TrustError;
use tracing_subscriber::EnvFilter;

use crate::cell::{Generation, Publisher, Reader};
use crate::explain::told;
use crate::figures::Reporter;
use crate::forward::{Exchange, Forwarding};
use crate::handover::HeldDescriptors;
use crate::http;
use crate::index::RegistryIndex;
use crate::limits::LimitLog;
use crate::metrics::{Metrics, Serving};
use crate::options::{Options, TransportKind};
use crate::own_port::{OwnPort, Way};
use crate::peers::{Guarded, Peers};
use crate::placement::{self, Builders};
use crate::redirect::Redirection;
use crate::relay;
use crate::replica::{self, CacheDir, CacheDirError, Identity, ReplicaConfig, passing_identity};
use crate::report;
use crate::responder::{Responder, ResponderConfig};
use crate::stats::Stats;
use crate::tables::Tables;
use crate::umad_port::{self, Opened, Opener};
#[cfg(feature = "verbs")]
use crate::verbs_port;
use crate::worker::{Worker, WorkerConfig};

/// How often an ibsim client looks whether its server is still there, and what its LID is.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait before attaching again.
const REATTACH_DELAY: Duration = Duration::from_secs(1);
/// How long tables may be in the making before the workers have to leave time for it.
const BUILD_PATIENCE: Duration = Duration::from_secs(1);
/// How many requests that waited for the process before are answered, the last ones.
const INHERITED_MAX: usize = 1024;
/// How long they wait for the snapshot on disk to be read.
const TABLES_PATIENCE: Duration = Duration::from_secs(1);
/// How long an address may be in use that is to be listened at: the kernel lets go of an io_uring's
/// socket some time after the process that was killed.
const LISTEN_PATIENCE: Duration = Duration::from_secs(3);
/// How often it is tried meanwhile.
const LISTEN_RETRY: Duration = Duration::from_millis(10);
/// How often retired tables are looked at.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// How often queries are looked for that were refused since their answers would be too large.
const LIMITS_INTERVAL: Duration = Duration::from_secs(1);
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
    /// No shared memory for clients on this host.
    #[error("cannot serve rings at {} (--ring): {source}", path.display())]
    Ring {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Workers cannot run where they are to.
    #[error("cannot run on CPU {cpu} (--pin): this process may use {allowed:?}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// Those that are there.
        allowed: Vec<usize>,
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
    #[error("{}", .0.with_origin(socket_variable().as_deref()))]
    Ibsim(#[from] IbsimError),
    /// The port of this host cannot be used.
    #[error("{0}")]
    Umad(#[from] UmadError),
    /// The queue pair cannot be made.
    #[cfg(feature = "verbs")]
    #[error("{0}")]
    Verbs(#[from] VerbsError),
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
            tracing::error!("{}", sa_proto::with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn socket_variable() -> Option<String> {
    std::env::var("IBSIM_SOCKNAME").ok()
}

/// Runs the program until a signal ends it.
pub fn run(options: Options) -> Result<(), StartError> {
    let sms = options.trusted_sms()?;
    if let Some(address) = options.exposed_listen() {
        return Err(StartError::Exposed(address));
    }
    // SAFETY: nothing of ours is open yet, so that what the environment names is what was passed on.
    let descriptors = unsafe { HeldDescriptors::of_environment(options.holder.as_deref()) };
    let store = descriptors.store().clone();
    keep_off(&options.pin)?;
    if options.echo {
        tracing::warn!("--echo: queries go back as their own answers");
    }
    let cache_dir = options.cache_dir.as_deref().map(CacheDir::open).transpose()?;
    let id = cache_dir.as_ref().map_or_else(passing_identity, CacheDir::responder_id);
    let publisher = Publisher::new();
    let mut pool = WorkerPool {
        stop: Arc::new(AtomicBool::new(false)),
        tables: publisher.reader(),
        redirection: Redirection::to(options.redirect_to.clone()),
        // The front door's workers, the fabric's and the rings'.
        exchange: Exchange::new(usize::from(options.workers) + 2)?,
        own_port: None,
        pin: options.pin.clone(),
        busy_poll: Duration::from_micros(options.busy_poll),
        echo: options.echo,
        threads: Vec::new(),
        workers: Vec::new(),
    };
    let mut port = None;
    let mut fabric = None;
    let attached = match options.transport {
        TransportKind::Ibsim => {
            let (ibsim, guid) = attach(&options, true)?;
            Some((Fabric::Ibsim(Box::new(ibsim)), guid, Qpn::GSI))
        }
        TransportKind::Umad => {
            let mut opener = Opener::new(&options, descriptors);
            let opened = opener.open()?;
            let guid = opened.guid;
            Some((Fabric::Umad(Box::new((opened, opener))), guid, Qpn::GSI))
        }
        #[cfg(feature = "verbs")]
        TransportKind::Verbs => {
            let (verbs, guid) = verbs_port::open(&options)?;
            let qpn = verbs.qpn();
            Some((Fabric::Verbs(Box::new(verbs)), guid, qpn))
        }
        TransportKind::Udp => None,
    };
    if let Some((transport, guid, qpn)) = attached {
        port = Some((guid, qpn));
        fabric = Some(transport);
        // The worker started last, after those of the front door.
        let own_port = OwnPort::new(Arc::clone(&pool.exchange), usize::from(options.workers));
        pool.own_port = Some((guid, own_port));
    }
    let front_door = listen(&options)?;
    let peers = Peers::new(&options.believe);
    let address = front_door[0].local_addr()?;
    // The first worker sends the reports, which go out by the front door.
    for (i, udp) in front_door.into_iter().enumerate() {
        let way = pool.own_port.as_ref().map_or(Way::Back, |(_, port)| Way::By(Arc::clone(port)));
        let udp = Guarded::new(udp, peers.clone());
        pool.start(format!("udp-{i}"), udp, way, false, |_| Ok(()), rebind_never)?;
    }
    match fabric {
        Some(Fabric::Ibsim(ibsim)) => pool.start_ibsim(*ibsim, options.clone())?,
        Some(Fabric::Umad(port)) => pool.start_umad(*port)?,
        #[cfg(feature = "verbs")]
        Some(Fabric::Verbs(verbs)) => {
            let (way, give_up) = (pool.own_way(), verbs_port::give_up);
            pool.start("verbs".to_owned(), *verbs, way, false, verbs_port::upkeep, give_up)?;
        }
        None => {}
    }
    if let Some(path) = &options.ring {
        let rings = RingServer::bind(&RingOptions::new(path))
            .map_err(|source| StartError::Ring { path: path.clone(), source })?;
        let mut told = RingCounters::default();
        let upkeep = move |rings: &mut RingServer| {
            tell_of_rings(&mut told, rings.counters());
            Ok(())
        };
        pool.start("ring".to_owned(), rings, Way::Back, false, upkeep, rebind_never)?;
    }
    let metrics =
        Arc::new(Metrics { workers: std::mem::take(&mut pool.workers), ..Metrics::default() });
    if let Some(address) = options.http {
        let at = http::serve(address, Arc::clone(&metrics))
            .map_err(|source| StartError::Http { address, source })?;
        tracing::info!("metrics at http://{at}/metrics");
    }
    tracing::info!(front_door = %address, transport = ?options.transport, "ready for queries");
    store.tell_ready();

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
    let subscribed =
        subscribe(config, publisher, pool.tables.clone(), &metrics, &pool.exchange, peers);
    pool.stop_all();
    subscribed
}

/// Follows the SMs until a signal comes.
fn subscribe(
    config: ReplicaConfig,
    publisher: Publisher,
    tables: Reader,
    metrics: &Arc<Metrics>,
    exchange: &Arc<Exchange>,
    peers: Peers,
) -> Result<(), StartError> {
    // It fails where the process has had a pool before, which does as well.
    let builders = Builders::new();
    let joining = builders.clone();
    let _ = rayon::ThreadPoolBuilder::new()
        .thread_name(|i| format!("ibsa-tables-{i}"))
        .start_handler(move |_| joining.join())
        .build_global();
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
        let measured = Arc::clone(metrics);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(LIMITS_INTERVAL);
            let mut log = LimitLog::default();
            loop {
                tick.tick().await;
                if let Some(line) = log.look(Instant::now(), measured.stats()) {
                    tracing::warn!("{line}");
                }
            }
        });
        let explain = explainer(Arc::clone(&publisher));
        let mut builder = Builder { publisher, builders, metrics: Arc::clone(metrics), last: None };
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
            peers,
        ));
        let reporter = Reporter::new(Arc::clone(metrics), Instant::now());
        let shutdown = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            tracing::info!("stopping");
        };
        let install = move |snapshot: &Arc<Snapshot>| builder.install(snapshot);
        let stats = move || reporter.report(Instant::now());
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
    /// The threads of the pool.
    builders: Builders,
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
        let step = last.as_ref().map_or(Step::All, |(last, ..)| Step::between(last, snapshot));
        let tables = match (step, last) {
            (Step::Patch { multicast, aliases }, Some((last, mut tables, _))) => {
                if multicast {
                    tables = Arc::new(tables.with_multicast(snapshot.fabric()));
                }
                if aliases {
                    tables = Arc::new(tables.with_alias_guids(last.registry(), &registry));
                }
                tables
            }
            // In the pool all of it yields to the workers.
            (_, before) => self.builders.finish_within(BUILD_PATIENCE, || {
                rayon::scope(|_| {
                    let mut tables = match before {
                        Some((_, before, _)) => before.rebuild(snapshot.fabric(), &registry),
                        None => Tables::build(snapshot.fabric(), &registry),
                    };
                    tables.qos.count_by(&self.metrics.levels);
                    Arc::new(tables)
                })
            }),
        };
        let version = snapshot.version();
        let generation =
            Generation { version, tables: Arc::clone(&tables), registry, index: index.clone() };
        let built_in = start.elapsed();
        self.metrics.applied.record(built_in, 1);
        let mut publisher = self.publisher.lock().unwrap_or_else(PoisonError::into_inner);
        publisher.publish(Arc::new(generation));
        drop(publisher);
        if step == Step::All {
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

/// How far it is from one snapshot to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Parts of tables take the place of those before; if there are none, only rows of the registry
    /// differ that no table is made of.
    Patch {
        /// Switches forward multicast otherwise.
        multicast: bool,
        /// Ports have other alias GUIDs.
        aliases: bool,
    },
    /// Anything else: tables are built anew.
    All,
}

impl Step {
    fn between(last: &Snapshot, next: &Snapshot) -> Self {
        let is_same_fabric = Arc::ptr_eq(last.fabric(), next.fabric());
        if !is_same_fabric && !last.fabric().is_same_but_multicast(next.fabric()) {
            return Self::All;
        }
        Self::Patch {
            multicast: !is_same_fabric && last.fabric().mfts != next.fabric().mfts,
            aliases: last.registry().alias_guids != next.registry().alias_guids,
        }
    }
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
        let engine = Engine::from(options.io);
        let options = UdpOptions { share_port, engine, ..UdpOptions::new(listen) };
        let due = Instant::now() + LISTEN_PATIENCE;
        loop {
            match Udp::bind(&options) {
                Err(source)
                    if source.kind() == io::ErrorKind::AddrInUse && Instant::now() < due =>
                {
                    thread::sleep(LISTEN_RETRY);
                }
                bound => {
                    return bound.map_err(|source| StartError::Listen { address: listen, source });
                }
            }
        }
    };
    let mut sockets = vec![bind(options.listen)?];
    if let Some(reason) = sockets[0].second_choice() {
        tracing::info!(%reason, "no io_uring here: datagrams go by recvmmsg and sendmmsg");
    }
    let address = sockets[0].local_addr()?;
    for _ in 1..options.workers {
        sockets.push(bind(address)?);
    }
    Ok(sockets)
}

/// Keeps this thread, and those that it starts, off the workers' CPUs, as far as there are others.
fn keep_off(pinned: &[usize]) -> Result<(), StartError> {
    let allowed = placement::allowed()?;
    if let Some(&cpu) = pinned.iter().find(|cpu| !allowed.contains(cpu)) {
        return Err(StartError::Pin { cpu, allowed });
    }
    let rest: Vec<usize> = allowed.into_iter().filter(|cpu| !pinned.contains(cpu)).collect();
    if !pinned.is_empty() && !rest.is_empty() {
        placement::keep_to(&rest)?;
    }
    Ok(())
}

/// Tells the log what clients of rings missed since it was last told.
fn tell_of_rings(told: &mut RingCounters, now: RingCounters) {
    let (refused, expelled) = (now.refused - told.refused, now.expelled - told.expelled);
    let dropped = now.dropped - told.dropped;
    if refused + expelled + dropped > 0 {
        tracing::warn!(refused, expelled, dropped, "ring clients turned away; answers not taken");
    }
    *told = now;
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

/// The transport of the responder's own port.
enum Fabric {
    Ibsim(Box<Ibsim>),
    Umad(Box<(Opened, Opener)>),
    #[cfg(feature = "verbs")]
    Verbs(Box<Verbs>),
}

/// The workers.
struct WorkerPool {
    stop: Arc<AtomicBool>,
    tables: Reader,
    redirection: Redirection,
    exchange: Arc<Exchange>,
    /// The port of the worker at the fabric, and its GUID.
    own_port: Option<(Guid, Arc<OwnPort>)>,
    /// CPUs of the workers, in turn.
    pin: Vec<usize>,
    busy_poll: Duration,
    echo: bool,
    threads: Vec<JoinHandle<()>>,
    workers: Vec<(String, Arc<Stats>)>,
}

impl WorkerPool {
    fn start_umad(&mut self, (opened, mut opener): (Opened, Opener)) -> Result<(), StartError> {
        let Opened { umad, is_inherited, .. } = opened;
        let reopen = move || opener.reopen();
        let way = self.own_way();
        self.start("umad".to_owned(), umad, way, is_inherited, umad_port::upkeep(), reopen)
    }

    /// What the worker at the responder's own port has to do with it.
    fn own_way(&self) -> Way {
        self.own_port.as_ref().map_or(Way::Back, |(_, port)| Way::Owner(Arc::clone(port)))
    }

    fn start_ibsim(&mut self, ibsim: Ibsim, options: Options) -> Result<(), StartError> {
        let upkeep = |ibsim: &mut Ibsim| ibsim.local_port().map(drop).map_err(io::Error::other);
        let reattach = move || match attach(&options, false) {
            Ok((ibsim, _)) => Some(ibsim),
            Err(error) => {
                tracing::debug!(%error, "not attached");
                None
            }
        };
        self.start("ibsim".to_owned(), ibsim, self.own_way(), false, upkeep, reattach)
    }

    /// Starts a worker that goes on until told to stop. `is_inherited`: another process had the
    /// transport before. `reopen` is tried once a second after the transport has failed.
    fn start<T: Transport + 'static>(
        &mut self,
        name: String,
        transport: T,
        way: Way,
        is_inherited: bool,
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
            echo: self.echo,
            ..ResponderConfig::default()
        };
        let tables = self.tables.clone();
        let end = self.exchange.worker(self.threads.len());
        let responder = move || {
            Responder::new(tables.clone(), config.clone(), Arc::clone(&stats))
                .with_exchange(end.clone())
        };
        let stop = Arc::clone(&self.stop);
        let mut begun = self.tables.clone();
        let thread_name = format!("ibsa-{name}");
        let cpu = self.pin.iter().cycle().nth(self.threads.len()).copied();
        let config = WorkerConfig { busy_poll: self.busy_poll, ..WorkerConfig::default() };
        let work = move || {
            if let Some(cpu) = cpu
                && let Err(error) = placement::keep_to(&[cpu])
            {
                tracing::warn!(worker = name, cpu, %error, "not pinned");
            }
            let worker = Worker::new(transport, responder(), config);
            let mut worker = worker.with_way(way);
            if is_inherited {
                // What waits is worth nothing before there are tables to answer it from.
                let until = Instant::now() + TABLES_PATIENCE;
                while begun.current().is_none() && Instant::now() < until && !stop.load(Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                // An error shows again at once.
                let _ = worker.take_over(INHERITED_MAX, Instant::now());
            }
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
        self.threads.push(thread::Builder::new().name(thread_name).spawn(work)?);
        Ok(())
    }

    /// Stops all workers and waits for them.
    fn stop_all(self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            // A worker that panics while it stops has said so on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the system said was left out.
    #[test]
    fn a_fatal_error_is_told_with_its_cause() {
        let error = CacheDirError::Io { path: "/x".into(), error: io::Error::other("full") };
        let text = sa_proto::with_causes(&StartError::from(error));
        assert!(text.contains("cannot use /x") && text.ends_with(": full"), "{text}");
    }
}

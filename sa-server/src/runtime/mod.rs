//! Starts and connects the parts: worker threads, the subscription on an async runtime, and the
//! builder of tables between them.

mod attachment;
mod builder;
mod certificates;
mod error;
mod listen;
mod log;
mod pulse;
mod spill;
mod worker_pool;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use daemon::manager::{ServiceManager, Watchdog};
use daemon::pidfile::Pidfile;
use ib_mad::transport::capture::{CaptureFile, FILE_LEN_MAX};
use ib_mad::transport::ring::{RingCounters, RingOptions, RingServer};
use ib_mad::types::{Guid, Qpn};
use sa_proto::snapshot::Session;
use sa_proto::trust::{self, TlsFiles};

use crate::host::handover::HeldDescriptors;
use crate::host::options::{Options, TransportKind};
use crate::host::placement::{self, Builders};
use crate::host::sm_port::SmPort;
use crate::host::umad_port::Opener;
#[cfg(feature = "verbs")]
use crate::host::verbs_port;
use crate::node::{Agents, AgentsConfig};
use crate::query::redirect::Redirection;
use crate::serve::own_port::{Egress, OwnPort};
use crate::serve::spill::Spill;
use crate::sm::forward::{Exchange, Forwarding};
use crate::sm::peers::{Guarded, Peers};
use crate::sm::relay;
use crate::sm::replica::{
    self, CacheDir, Identity, ReplicaConfig, SESSIONS_MAX, Serving, passing_identity,
};
use crate::sm::report::{self, follow::Reporting};
use crate::tables::cell::{Publisher, Reader};
use crate::watch::explain::reply;
use crate::watch::figures::Reporter;
use crate::watch::http;
use crate::watch::metrics::Metrics;
use crate::watch::refusals::LimitLog;
use sa_proto::proto::snapshot::explained::Outcome;

use attachment::{Fabric, attach};
pub use builder::Builder;
pub use error::StartError;
use listen::listen;
pub use log::LogError;
use log::LogFile;
use pulse::Vigil;
use spill::SpillSocket;
use worker_pool::{Queue, WorkerPool, rebind_never};

/// How often retired tables are looked at.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// How often to check for queries refused because of their size.
const LIMITS_INTERVAL: Duration = Duration::from_secs(1);
/// The cache file is written at most once in this time.
const CACHE_INTERVAL: Duration = Duration::from_secs(10);

/// Runs the program until a signal ends it.
pub fn main(options: Options) -> ExitCode {
    let manager = ServiceManager::of_environment();
    // SAFETY: this process has not left a file open yet, so that the environment names only
    // inherited descriptors.
    let descriptors =
        unsafe { HeldDescriptors::of_environment(options.holder.as_deref(), manager.as_ref()) };
    let log = match log::init(options.log_file.as_deref()) {
        Ok(log) => log,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "ibsa: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(options, Host { manager, descriptors, log }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", sa_proto::with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// What the host has given this process.
struct Host {
    /// What started this process as a service, if anything did.
    manager: Option<ServiceManager>,
    descriptors: HeldDescriptors,
    log: Option<Arc<LogFile>>,
}

/// Runs the program until a signal ends it.
fn run(options: Options, host: Host) -> Result<(), StartError> {
    let Host { manager, descriptors, log } = host;
    let _pidfile = options.pidfile.as_deref().map(Pidfile::take).transpose()?;
    let sms = options.trusted_sms()?;
    if let Some(address) = options.exposed_listen() {
        return Err(StartError::Exposed(address));
    }
    if options.at_sm_port && options.transport != TransportKind::Umad {
        return Err(StartError::AtSmPort);
    }
    keep_off(&options.pin)?;
    if options.echo {
        tracing::warn!(
            "--echo is set: every query is returned as its own answer; for benchmarks only"
        );
    }
    let cache_dir = options.cache_dir.as_deref().map(CacheDir::open).transpose()?;
    let id = cache_dir.as_ref().map_or_else(passing_identity, CacheDir::responder_id);
    let name = options.name.clone().unwrap_or_else(|| format!("ibsa-{}", std::process::id()));
    let sm_port = options.sm_socket().map(|socket| SmPort::new(socket, id, name.clone()));
    let sm_port = sm_port.transpose()?;
    let (agents, tls) = (options.agents_config()?, options.tls_files()?);
    let capture = options.capture.as_deref().map(open_capture).transpose()?;
    let publisher = Publisher::new();
    let peers = Peers::new(&options.believe);
    // As many sessions as there are managers.
    let lanes = sms.len().min(SESSIONS_MAX);
    let mut pool = WorkerPool {
        stop: Arc::new(AtomicBool::new(false)),
        tables: publisher.reader(),
        redirection: Redirection::to(options.redirect_to.clone()),
        // The front door's workers, the fabric's, the rings', and the thread for passed queries.
        exchange: Exchange::with_lanes(usize::from(options.workers) + 3, lanes)?,
        own_port: None,
        spill: None,
        doors: peers.clone(),
        pin: options.pin.clone(),
        busy_poll: Duration::from_micros(options.busy_poll),
        echo: options.echo,
        capture: capture.clone(),
        threads: Vec::new(),
        workers: Vec::new(),
        pulses: Vec::new(),
    };
    let (mut port, mut arrival_port) = (None, None);
    let mut fabric = None;
    let attached = match options.transport {
        TransportKind::Ibsim => {
            let (ibsim, guid) = attach(&options, true)?;
            Some((Fabric::Ibsim(Box::new(ibsim)), guid, Qpn::GSI))
        }
        TransportKind::Umad => {
            let mut opener = Opener::new(&options, descriptors, sm_port.clone());
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
        fabric = Some(transport);
        arrival_port = Some(guid);
        // Clients are not led to the SM's port: they go there by themselves.
        if sm_port.is_none() {
            port = Some((guid, qpn));
            // The worker started last, after those of the front door.
            let own_port = OwnPort::new(Arc::clone(&pool.exchange), usize::from(options.workers));
            pool.own_port = Some((guid, own_port));
        }
    }
    // Another program that has one of the addresses later does not know them.
    let [front_door_token, spill_token] = [trust::token()?, trust::token()?];
    let front_door = listen(&options, front_door_token)?;
    let address = front_door[0].local_addr()?;
    let spill_socket = sm_port.as_ref().map(|_| {
        // The worker at the port is started last, after those of the front door.
        let worker = usize::from(options.workers);
        SpillSocket::open(id, address, spill_token, &pool.exchange, worker, worker + 2)
    });
    let spill_socket = spill_socket.transpose()?;
    pool.spill = spill_socket.as_ref().map(|socket| Arc::clone(socket.spill()));
    // The first worker sends the reports, which go out by the front door.
    for (i, udp) in front_door.into_iter().enumerate() {
        let egress =
            pool.own_port.as_ref().map_or(Egress::Back, |(_, port)| Egress::By(Arc::clone(port)));
        let udp = Guarded::new(udp, address, peers.clone());
        pool.start(format!("udp-{i}"), udp, egress, Queue::Empty, |_| Ok(()), rebind_never)?;
    }
    match fabric {
        Some(Fabric::Ibsim(ibsim)) => pool.start_ibsim(*ibsim, options.clone())?,
        Some(Fabric::Umad(port)) => pool.start_umad(*port)?,
        #[cfg(feature = "verbs")]
        Some(Fabric::Verbs(verbs)) => {
            let (egress, give_up) = (pool.own_egress(), verbs_port::give_up);
            let (queue, upkeep) = (Queue::Empty, verbs_port::upkeep);
            pool.start("verbs".to_owned(), *verbs, egress, queue, upkeep, give_up)?;
        }
        None => {}
    }
    if let Some(path) = &options.ring {
        let rings = RingServer::bind(&RingOptions::new(path))
            .map_err(|source| StartError::Ring { path: path.clone(), source })?;
        let mut logged = RingCounters::default();
        let upkeep = move |rings: &mut RingServer| {
            log_rings(&mut logged, rings.counters());
            Ok(())
        };
        pool.start("ring".to_owned(), rings, Egress::Back, Queue::Empty, upkeep, rebind_never)?;
    }
    let workers = std::mem::take(&mut pool.workers);
    let metrics = Arc::new(Metrics {
        workers,
        capture,
        subnet: options.subnet_label.clone(),
        spill: pool.spill.clone(),
        ..Metrics::default()
    });
    if let Some(socket) = spill_socket {
        pool.threads.push(socket.start(Arc::clone(&pool.stop))?);
    }
    if let Some(address) = options.http {
        let at = http::serve(address, Arc::clone(&metrics))
            .map_err(|source| StartError::Http { address, source })?;
        tracing::info!("metrics at http://{at}/metrics");
    }
    tracing::info!(front_door = %address, transport = ?options.transport, "ready for queries");
    if let Some(manager) = &manager {
        manager.ready("serving queries");
    }
    if let Some(sm_port) = sm_port {
        // A reader that lasted would keep a generation from being freed.
        let mut waiting = Some(pool.tables.clone());
        let is_ready = move || {
            waiting.take_if(|tables| tables.current().is_some());
            waiting.is_none()
        };
        sm_port.start(is_ready)?;
    }

    let config = ReplicaConfig {
        sms,
        identity: Identity {
            id,
            name,
            front_door: vec![address],
            front_door_token,
            spill_from: pool.spill.as_ref().map(|spill| spill.from()),
            spill_token,
            port,
            port_use: options.port_use.into(),
        },
        cache_dir,
        cache_interval: CACHE_INTERVAL,
    };
    let parts = Parts {
        publisher,
        tables: pool.tables.clone(),
        metrics,
        exchange: Arc::clone(&pool.exchange),
        peers,
        spill: pool.spill.clone(),
        arrival_port,
        agents,
        tls,
        vigil: Watchdog::of(manager.as_ref(), Instant::now())
            .map(|watchdog| Vigil::new(watchdog, std::mem::take(&mut pool.pulses))),
        manager,
        log,
    };
    let subscribed = subscribe(config, parts);
    pool.stop_all();
    subscribed
}

/// What the subscription works with.
struct Parts {
    publisher: Publisher,
    tables: Reader,
    metrics: Arc<Metrics>,
    exchange: Arc<Exchange>,
    peers: Peers,
    spill: Option<Arc<Spill>>,
    /// GUID of the port that requests arrive at, if there is one.
    arrival_port: Option<Guid>,
    /// Where agents are served, if they are.
    agents: Option<AgentsConfig>,
    /// The certificates, if connections have TLS.
    tls: Option<TlsFiles>,
    /// What started this process as a service, if anything did, and its watchdog.
    manager: Option<ServiceManager>,
    vigil: Option<Vigil>,
    log: Option<Arc<LogFile>>,
}

/// Follows the SMs until a signal comes.
fn subscribe(config: ReplicaConfig, parts: Parts) -> Result<(), StartError> {
    let Parts { publisher, tables, metrics, exchange, peers, arrival_port, .. } = parts;
    let Parts { manager, vigil, log, agents, tls, spill, .. } = parts;
    let publisher = Arc::new(Mutex::new(publisher));
    let agents =
        agents.map(|config| serve_agents(&config, &publisher, &metrics, &exchange)).transpose()?;
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
                tracing::info!(
                    "SIGHUP ignored: ibsa reads its configuration file only when it starts"
                );
            }
        });
        let mut rotated = signal(SignalKind::user_defined1())?;
        tokio::spawn(async move {
            while rotated.recv().await.is_some() {
                match log.as_ref().map_or(Ok(()), |log| log.reopen()) {
                    Ok(()) => tracing::info!("SIGUSR1: log file reopened"),
                    Err(error) => {
                        tracing::error!("SIGUSR1: {error}; still writing to the old file");
                    }
                }
            }
        });
        if let Some(mut vigil) = vigil {
            tokio::spawn(async move {
                let mut tick = tokio::time::interval(vigil.interval());
                loop {
                    tick.tick().await;
                    if let Some(workers) = vigil.look(Instant::now()) {
                        tracing::error!(
                            workers,
                            "workers have stopped; unless they go on, the service manager's \
                             watchdog restarts ibsa"
                        );
                    }
                }
            });
        }
        let reclaiming = Arc::clone(&publisher);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(RECLAIM_INTERVAL);
            loop {
                tick.tick().await;
                reclaiming.lock().unwrap_or_else(PoisonError::into_inner).reclaim();
            }
        });
        let measured = Arc::clone(&metrics);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(LIMITS_INTERVAL);
            let (mut log, mut is_capture_over) = (LimitLog::default(), false);
            loop {
                tick.tick().await;
                if let Some(refusals) = log.look(Instant::now(), measured.stats()) {
                    tracing::warn!("{refusals}");
                }
                let left_out = measured.capture.as_ref().map_or(0, |file| file.counters().left_out);
                if left_out > 0 && !is_capture_over {
                    is_capture_over = true;
                    tracing::warn!(
                        "--capture: the file is full or cannot be written; later MADs are not \
                         captured, which ibsa_capture_left_out_total counts"
                    );
                }
            }
        });
        let explain = explainer(Arc::clone(&publisher));
        let mut builder = Builder::new(publisher, builders, Arc::clone(&metrics));
        let status = Arc::clone(&metrics.replica);
        let id = config.identity.id;
        for lane in 0..exchange.lanes() {
            let session = status.lane(lane);
            let forwarding = Forwarding {
                lane,
                counters: Arc::clone(&metrics.writes[lane]),
                acknowledged: Arc::clone(session.acknowledged()),
                ..Forwarding::new(id, Arc::clone(&exchange))
            };
            tokio::spawn(forwarding.run(session.upstream(), session.versions()));
            tokio::spawn(relay::run(id, lane, Arc::clone(&exchange), session.upstream()));
            let reporting = Reporting {
                responder_id: id,
                lane,
                exchange: Arc::clone(&exchange),
                counters: Arc::clone(&metrics.reports[lane]),
                tables: tables.clone(),
                peers: peers.clone(),
                spill: spill.clone(),
            };
            tokio::spawn(report::follow::run(reporting, session.upstream(), session.versions()));
        }
        // It would keep a generation from being freed.
        drop(tables);
        let certificate_end_s = certificates::watch(tls);
        let reporter = Reporter::new(Arc::clone(&metrics), Instant::now(), certificate_end_s);
        let shutdown = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            tracing::info!("stopping");
            manager.iter().for_each(ServiceManager::stopping);
        };
        let serving = Serving {
            on_change: Box::new(move |change| {
                builder.follow(change);
                if let Some(agents) = &agents {
                    agents.follow();
                }
            }),
            explain: Some(explain),
            peers,
            own_port: arrival_port,
        };
        let stats = move || reporter.report(Instant::now());
        replica::run_serving(config, status, serving, stats, shutdown).await;
        Ok(())
    })
}

/// Serves agents on compute nodes from the tables that queries are answered from.
fn serve_agents(
    config: &AgentsConfig,
    publisher: &Arc<Mutex<Publisher>>,
    metrics: &Metrics,
    exchange: &Arc<Exchange>,
) -> Result<Agents, StartError> {
    let (exchange, status) = (Arc::clone(exchange), Arc::clone(&metrics.replica));
    // The own port may have moved to a lane whose tables are not published to agents yet.
    let contact = Arc::new(move |session: Session| {
        let confirmed = exchange.confirmed(status.own_lane())?;
        (confirmed.epoch == session.epoch).then_some(confirmed.at)
    });
    let (publisher, counters) = (Arc::clone(publisher), Arc::clone(&metrics.agents));
    let served = Agents::serve(config, publisher, counters, contact);
    let (agents, at) =
        served.map_err(|source| StartError::Agents { address: config.address, source })?;
    tracing::info!(address = %at, "agents on compute nodes can follow paths");
    Ok(agents)
}

/// Explains and lists paths from the tables that queries are answered from.
fn explainer(publisher: Arc<Mutex<Publisher>>) -> replica::Explain {
    Arc::new(move |lane, question| {
        // A reader that lasted would keep a generation from being freed.
        let mut reader = publisher.lock().unwrap_or_else(PoisonError::into_inner).reader();
        match reader.lane(lane) {
            Some(generation) => reply::reply(generation, question),
            None => Outcome::Failure("this responder has not received a snapshot yet".to_owned()),
        }
    })
}

/// Begins the capture at `path`.
fn open_capture(path: &Path) -> Result<Arc<CaptureFile>, StartError> {
    let file = CaptureFile::create(path, FILE_LEN_MAX)
        .map_err(|source| StartError::Capture { path: path.to_owned(), source })?;
    tracing::info!(
        "capturing all MADs to {}, up to {} MB; they contain keys",
        path.display(),
        FILE_LEN_MAX >> 20
    );
    Ok(Arc::new(file))
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

/// Logs clients of rings that were refused or disconnected, and answers lost, since the last line.
fn log_rings(logged: &mut RingCounters, now: RingCounters) {
    let (refused, expelled) = (now.refused - logged.refused, now.expelled - logged.expelled);
    let dropped = now.dropped - logged.dropped;
    if refused + expelled + dropped > 0 {
        tracing::warn!(
            refused,
            expelled,
            dropped,
            "shared-memory clients were refused, disconnected, or too slow to read their answers"
        );
    }
    *logged = now;
}

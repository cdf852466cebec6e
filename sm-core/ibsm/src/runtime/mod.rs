//! The only module with sockets, clocks, threads and files. It sets everything up; then the service
//! loop drives the [node](crate::node).

mod attachment;
mod background;
mod baseline;
mod beside;
pub mod check;
mod congestion;
mod console;
pub mod copies;
mod door;
mod dry_run;
mod dump_files;
mod event_plugin;
pub mod follow;
mod history;
mod lines;
mod log;
mod metrics;
mod perf;
pub mod registry;
mod sa_port;
mod service;
mod signals;
mod state;
mod store;
mod tap;
mod vital;
mod worker;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use daemon::manager::ServiceManager;
use daemon::pidfile::{Pidfile, PidfileError};
use ib_mad::netlist::NetError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sa_proto::snapshot::HistoryLimits;
use sa_proto::trust::TrustError;
use tracing::{error, info, warn};

use crate::api::users::{Users, UsersError};
use crate::api::{self, Api, ApiStatus, ServeError};
use crate::cli::{Config, ConfigError, Options, StorePlace, disk, sa_key_warning};
use crate::clock::unix_ms;
use crate::http::Totals;
use crate::node::{NodeError, SavedState};
use crate::observe::event::{Draft, EventKind};
use crate::pages;
use crate::publish::{EpochFile, PublishConfig, PublishError, Publisher};
use crate::web::{self, Web};
use attachment::Attachment;
pub use attachment::{AttachError, ChoiceError};
pub use background::BackgroundError;
use background::{Role, Starting};
use door::DoorSocket;
pub use dry_run::DryRunError;
use event_plugin::EventPlugin;
use follow::{Following, OwnFiles};
use history::History;
pub use history::HistoryError;
pub use log::LogError;
use registry::{RegistrySetup, SaDumpFile};
use sa_port::SaPort;
use service::{Parts, Service};
use signals::Signals;
use sm_config::{PolicyError, Reading, SitePolicy, node_names};
use sm_core::sweep::{Sweeper, TableFingerprint};
use state::StateDir;
pub use state::StateError;
use store::Store;
pub use store::StoreError;
#[cfg(feature = "etcd-model")]
pub use store::etcd::model::{
    EtcdLink, EtcdModel, MEMBERS as ETCD_MEMBERS, Refused as EtcdRefused,
};
use store::etcd::{EtcdStore, SharedState};
use store::file::FileStore;
use tap::Tap;

/// How long the start waits for the state that other managers left in etcd.
const STATE_PATIENCE: Duration = Duration::from_secs(3);

/// Why the program could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A policy file.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The expected topology.
    #[error("--expected-topology: {0}")]
    Expected(Box<NetError>),
    /// Going into the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Refused policy files, with `--strict`.
    #[error("{}\n--strict does not start with faulty policy files", lines.join("\n"))]
    RefusedFiles {
        /// One line for each, with file, line and reason.
        lines: Vec<String>,
    },
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The pid file.
    #[error(transparent)]
    Pidfile(#[from] PidfileError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The history.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The fabric.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The port that the operator is to choose.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The capture file.
    #[error("--capture {}: {source}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The users of the API.
    #[error("--api-users: {0}")]
    Users(#[from] UsersError),
    /// The certificates of the API.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The registry.
    #[error(transparent)]
    Registry(#[from] StoreError),
    /// The responders.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// An address to listen on.
    #[error("cannot listen on {address} ({option}): {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The option that names it.
        option: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The console.
    #[error("console: {source}; set console_port")]
    Console {
        /// The error of the system.
        source: io::Error,
    },
    /// The dry run.
    #[error("--dry-run: {0}")]
    DryRun(#[from] DryRunError),
    /// The system.
    #[error("system: {0}")]
    Io(#[from] io::Error),
    /// The subnet manager.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// Runs `ibsm` to its end.
pub fn main(options: Options) -> ExitCode {
    pages::use_small_ones();
    if options.dry_run {
        return dry_run::main(options);
    }
    let mut starting = None;
    match run(options, &mut starting) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let reason = sa_proto::with_causes(&failure);
            if let Some(mut starting) = starting {
                starting.failed(&reason);
            }
            error!(target: log::FATAL, "{reason}");
            // A log on standard output that reaches the same terminal or file shows it already.
            // Scripts read standard error.
            if !(tracing::enabled!(tracing::Level::ERROR) && log::reaches_stderr()) {
                // Standard error may be closed.
                let _ = writeln!(io::stderr(), "ibsm: {reason}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Reads the policy files. The first sweep reports errors; with `--strict` they end the start.
fn policy_files(config: &Config) -> Result<(SitePolicy, Reading), RunError> {
    let settings = config.with_used_files(&config.settings);
    let (policy, reading) = SitePolicy::load(&settings, &disk::read)?;
    if config.is_strict() {
        let errors = reading.errors.iter().map(|error| sa_proto::with_causes(error));
        let mut lines: Vec<String> = errors.chain(reading.mistakes.iter().cloned()).collect();
        lines
            .extend(node_names::load(config.settings.node_name_map_name.as_deref(), &disk::read).1);
        lines.extend(log::odd_lines(&config.settings));
        if !lines.is_empty() {
            return Err(RunError::RefusedFiles { lines });
        }
    }
    Ok((policy, reading))
}

/// Permits as many descriptors as the system does: each responder and each client of the page needs
/// one.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // The kernel accepts what it reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Continues the history and starts the event plug-in, as configured.
fn begin_events(
    config: &Config,
    publisher: &Publisher,
) -> Result<(Option<History>, Option<EventPlugin>), RunError> {
    let events = publisher.events();
    let mut history = None;
    if let Some((directory, bytes_max)) = &config.history {
        match History::start(directory, *bytes_max, &events, publisher.observatory()) {
            Ok(started) => history = Some(started),
            // The subnet is managed nevertheless.
            Err(failure) if failure.is_of_space() => {
                warn!("{failure}; until the next start, events are in memory only");
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    if let Some(history) = &history {
        publisher.set_archive(history.archive());
        if let Some((known, last)) = history.known_before() {
            publisher.resume_from(known, last);
        }
    }
    let command = config.settings.event_command();
    let growths = publisher.perf().growths();
    let plugin =
        command.map(|command| EventPlugin::start(command, &events, growths)).transpose()?;
    let version = daemon::VERSION;
    let started = Draft::new(EventKind::Started, format!("ibsm {version} started"));
    events.note(unix_ms(), started.with("version", version));
    Ok((history, plugin))
}

fn run(options: Options, starting: &mut Option<Starting>) -> Result<(), RunError> {
    let template = options.create_config.clone();
    let (mut config, warnings) = Config::load(options)?;
    if let Some(path) = template {
        for warning in warnings {
            let _ = writeln!(io::stderr(), "ibsm: {warning}");
        }
        if config.is_strict() {
            policy_files(&config)?;
        }
        let written = disk::write_template(&path, &config.settings);
        return Ok(written.map_err(|source| ConfigError::Template { path, source })?);
    }
    if let Some(guid) = attachment::choose(&config)? {
        config.choose_port(guid);
    }
    if config.settings.daemon {
        match background::enter()? {
            Role::Foreground => return Ok(()),
            Role::Daemon(daemon) => *starting = Some(daemon),
        }
    }
    raise_descriptor_limit();
    // First of all, since two instances must not share what follows.
    let _pidfile = config.pidfile.as_deref().map(Pidfile::take).transpose()?;
    let log = log::init(&config.settings)?;
    for warning in &warnings {
        warn!("{warning}");
    }
    if let Some(warning) = sa_key_warning(&config.settings) {
        warn!("{warning}");
    }
    let (policy, reading) = policy_files(&config)?;
    reading.remarks.iter().for_each(|remark| warn!("{remark}"));
    reading.taken.iter().for_each(|taken| info!("read {taken}"));
    if reading.taken.is_empty() && reading.errors.is_empty() {
        info!("no policy files: all ports are full members of the default partition");
    }
    let signals = Signals::take()?;
    let mut state = StateDir::open(&config.state_dir, config.settings.fsync_high_avail_files)?;
    let setup = RegistrySetup::new(config.settings.sa_key)?;
    let publish = PublishConfig {
        listen: config.publish,
        tls: config.tls.clone(),
        local: config.local_roles.clone(),
        epochs: match &config.store {
            StorePlace::File(_) => EpochFile::new(config.state_dir.clone()),
            StorePlace::Etcd(_) => EpochFile::beside_shared_store(config.state_dir.clone()),
        },
        history: HistoryLimits::default(),
    };
    let publisher = Publisher::start_with(publish, |end| setup.services(end))?;
    let publisher = Arc::new(publisher);
    let (history, event_plugin) = begin_events(&config, &publisher)?;
    if config.follow_sync {
        publisher.sync_followers().enable();
    }
    let dump = SaDumpFile::of(&config.settings, &config.state_dir, publisher.events());
    dump.check();
    let followed = Arc::new(follow::Progress::default());
    let (store, store_status): (Box<dyn Store>, _) = match &config.store {
        StorePlace::File(directory) => (Box::new(FileStore::new(directory.clone())), None),
        StorePlace::Etcd(location) => {
            let board = publisher.state_board();
            let shared = SharedState::new(board, followed.clone(), config.follow_config);
            let store = EtcdStore::start(location, Some(shared.clone()))?;
            let status = store.status();
            info!("registrations are kept in etcd at {}", location.endpoints.join(", "));
            (Box::new(store), Some((status, shared)))
        }
    };
    let registry = Arc::new(setup.start(store, publisher.clone(), dump)?);
    let door = DoorSocket::open(config.front_door).map_err(|source| RunError::Listen {
        address: config.front_door,
        option: "--front-door",
        source,
    })?;
    let announced = door.announced()?;
    publisher.set_front_door(announced.clone());
    registry.set_front_door(announced);
    baseline::start(config.expected_topology.as_deref(), &state, &publisher)?;
    let metrics = metrics::Metrics::default();
    let http = Arc::<Totals>::default();
    if let Some(address) = config.http {
        let web = Web {
            observatory: publisher.observatory(),
            metrics: metrics::rendering(metrics.clone(), config.subnet_label.clone()),
            open: config.insecure,
            local: config.local_roles.clone(),
            totals: http.clone(),
        };
        web::serve(address, web).map_err(|source| RunError::Listen {
            address,
            option: "--http",
            source,
        })?;
    }
    let mut api_status = None;
    if let Some((address, users)) = &config.api {
        let status = Arc::<ApiStatus>::default();
        let api = Api {
            desk: registry.desk(),
            users: Users::open(users)?,
            tls: config.tls.clone(),
            status: status.clone(),
        };
        let (address, option) = (*address, "--api");
        api::serve(address, api).map_err(|failure| match failure {
            ServeError::Listen(source) => RunError::Listen { address, option, source },
            ServeError::Trust(failure) => failure.into(),
        })?;
        api_status = Some(status);
    }
    let tap = Tap::open(config.capture.as_deref()).map_err(|source| {
        let path = config.capture.clone().unwrap_or_default();
        RunError::Capture { path, source }
    })?;
    let mut fabric = Attachment::open(&config, &state)?;
    let mut own_files = None;
    if !config.follow.is_empty() {
        let following = Following {
            urls: config.follow.clone(),
            trust: config.client.clone(),
            id: state.identity()?,
            name: format!("standby of {}", config.state_dir.display()),
            sm_guid: fabric.port_guid(),
            takes_texts: config.follow_config,
        };
        let urls = following.urls.join(", ");
        registry.keep_copy(&followed);
        follow::start(following, followed.clone(), registry.waker())?;
        own_files =
            Some(OwnFiles::start(config.with_used_files(&config.settings), followed.clone())?);
        info!("following the registry of {urls} while standby");
    }
    if let Some((_, shared)) = &store_status {
        if !shared.await_first(STATE_PATIENCE) {
            warn!(
                "etcd does not answer: this manager starts with the LIDs and M_Keys saved on this \
                 host, which may be older than those in etcd"
            );
        }
        own_files =
            Some(OwnFiles::start(config.with_used_files(&config.settings), followed.clone())?);
    }
    let _perf = perf::start(&config, &publisher)?;
    let _congestion = congestion::start(&config, &publisher)?;
    let sa_port = fabric.umad_port().cloned();
    let sa_port = sa_port.map(|port| SaPort::start(config.sa_access.sa, port, &config.state_dir));
    let sa_port = sa_port.transpose()?;
    let lids = state.lids()?;
    info!(
        "ibsm {} started at {}; {} LIDs known; listening for responders at {}",
        daemon::VERSION,
        fabric.place(),
        lids.len(),
        publisher.address()
    );
    // It only has to differ from run to run.
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = clock.map_or(0, |elapsed| elapsed.subsec_nanos()) ^ std::process::id();
    let mut sweeper = Sweeper::new(config.settings.clone(), lids, seed);
    sweeper.allow_managers(config.sm_allow.clone());
    let (names, problem) =
        node_names::load(config.settings.node_name_map_name.as_deref(), &disk::read);
    problem.iter().for_each(|problem| warn!("{problem}"));
    publisher.set_settings(config.settings.clone());
    publisher.set_node_names(names.clone());
    let desk = console::Desk {
        publisher: publisher.clone(),
        counters_file: perf::dump_file(&config.settings, &config.state_dir),
        local: config.local_roles.clone(),
        insecure: config.insecure,
    };
    console::start(desk).map_err(|source| RunError::Console { source })?;
    sweeper.set_node_names(names);
    sweeper.set_sharding(config.sa_access.sharding());
    let (m_keys, neighbours) = state.m_keys()?;
    let neighbours = Arc::new(neighbours);
    state.publish_to(publisher.state_board(), sweeper.lids(), &m_keys, &neighbours);
    let origin = state.origin()?;
    let saved = SavedState {
        m_keys: m_keys.clone(),
        neighbours: neighbours.clone(),
        origin: origin.clone(),
    };
    sweeper.set_origin(origin);
    // A registry that is empty or was restored from a backup lacks later registrations.
    let is_whole =
        |left: &TableFingerprint| registry.stored().is_some_and(|stored| stored >= left.registry);
    sweeper.set_fingerprint(state.take_left()?.filter(is_whole));
    sweeper.set_m_keys(m_keys, neighbours);
    sweeper.set_own_port(fabric.port_guid());
    sweeper.set_own_planes(fabric.planes());
    sweeper.set_disabled_ports(state.disabled_ports()?);
    let service = Service::new(Parts {
        config,
        log,
        signals,
        state,
        saved,
        fabric,
        tap,
        sa_port,
        sweeper,
        publisher,
        registry,
        store: store_status.map(|(status, _)| status),
        followed,
        own_files,
        door,
        metrics,
        http,
        api: api_status,
        history,
        event_plugin,
        policy,
        remarks: warnings,
        manager: ServiceManager::of_environment(),
    })?;
    if let Some(starting) = starting.take() {
        starting.succeeded();
    }
    service.run()
}

//! The one place with sockets, clocks, threads and files: it sets everything up, and a loop waits
//! for the fabric, the front door, signals and deadlines, and lets the state machines decide.

mod attachment;
mod background;
mod door;
mod dump_files;
mod follow;
mod log;
mod metrics;
mod pidfile;
mod policy;
mod registry;
mod ring;
mod service;
mod signals;
mod state;
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use sa_proto::snapshot::HistoryLimits;
use sa_proto::trust::ClientTrust;
use tracing::{error, info, warn};

use crate::config::{
    Config, ConfigError, Options, PolicyError, Reading, SitePolicy, file, node_names,
};
use crate::pages;
use crate::publish::{PublishConfig, PublishError, Publisher};
use crate::sweep::{Left, Sweeper};
use crate::web::{self, Web};
pub use attachment::AttachError;
use attachment::Attachment;
pub use background::BackgroundError;
use background::{Role, Starting};
use door::Door;
use follow::Following;
pub use log::LogError;
use pidfile::Pidfile;
pub use pidfile::PidfileError;
pub use registry::StoreError;
use registry::{DumpFile, RegistrySetup};
use service::{Caches, Parts, Service};
use signals::Signals;
use state::StateDir;
pub use state::StateError;

/// Packets moved at once.
const BATCH: usize = 64;
/// Sweeps with errors after which `--once` gives up.
const ONCE_ATTEMPTS: u32 = 5;

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
    /// Going into the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Policy files that are refused, where `--strict` wants none.
    #[error("{}\n--strict takes no files with mistakes", lines.join("\n"))]
    RefusedFiles {
        /// Each with its place and the reason.
        lines: Vec<String>,
    },
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The file of our process id.
    #[error(transparent)]
    Pidfile(#[from] PidfileError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The fabric.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// What clients registered.
    #[error(transparent)]
    Registry(#[from] StoreError),
    /// The responders.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// An address that is to be listened on.
    #[error("cannot listen on {address} ({option}): {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The option that names it.
        option: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The system.
    #[error("system: {0}")]
    Io(#[from] io::Error),
    /// The subnet manager found that it cannot do its work.
    #[error("{0}")]
    Fatal(String),
    /// `--once`, and the subnet is another's.
    #[error(
        "another subnet manager is master, at {at}, and -o/--once waits neither for its end nor for \
         it to hand over; stop it, or stand by for it without -o"
    )]
    NotMaster {
        /// Where it is.
        at: String,
    },
    /// `--once`, and another subnet manager has us rest.
    #[error("another subnet manager disabled us; with -o/--once there is nothing to wait for")]
    Disabled,
    /// `--once`, and all that is up is the own port.
    #[error(
        "nothing is up but this port: it has no LID, or nobody answers behind its link; see above"
    )]
    NothingUp,
    /// `--once`, and the subnet did not come up.
    #[error("the subnet did not come up in {ONCE_ATTEMPTS} sweeps; see above")]
    NotUp,
}

/// Runs `ibsm` to its end.
pub fn main(options: Options) -> ExitCode {
    pages::use_small_ones();
    let mut starting = None;
    match run(options, &mut starting) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let reason = sa_proto::with_causes(&failure);
            if let Some(mut starting) = starting {
                starting.failed(&reason);
            }
            error!(target: log::FATAL, "{reason}");
            // Whoever sees the log on standard output, if errors are logged at all, has read it
            // there; scripts look at this one.
            if !(tracing::enabled!(tracing::Level::ERROR) && log::reaches_stderr()) {
                // Nobody may read it, and then nobody wants to be told.
                let _ = writeln!(io::stderr(), "ibsm: {reason}");
            }
            ExitCode::FAILURE
        }
    }
}

/// What the policy files say. What of them is refused the first sweep tells, unless none may be.
fn policy_files(config: &Config) -> Result<(SitePolicy, Reading), RunError> {
    let (policy, reading) = SitePolicy::load(&config.settings)?;
    if config.is_strict() {
        let errors = reading.errors.iter().map(|error| sa_proto::with_causes(error));
        let mut lines: Vec<String> = errors.chain(reading.mistakes.iter().cloned()).collect();
        lines.extend(node_names::load(config.settings.node_name_map_name.as_deref()).1);
        lines.extend(log::odd_lines(&config.settings));
        if !lines.is_empty() {
            return Err(RunError::RefusedFiles { lines });
        }
    }
    Ok((policy, reading))
}

fn run(options: Options, starting: &mut Option<Starting>) -> Result<(), RunError> {
    let template = options.create_config.clone();
    let (config, warnings) = Config::load(options)?;
    if let Some(path) = template {
        for warning in warnings {
            let _ = writeln!(io::stderr(), "ibsm: {warning}");
        }
        if config.is_strict() {
            policy_files(&config)?;
        }
        return Ok(file::write_template(&path, &config.settings)?);
    }
    if config.settings.daemon {
        match background::enter()? {
            Role::LeftBehind => return Ok(()),
            Role::Daemon(daemon) => *starting = Some(daemon),
        }
    }
    // Before anything that two could not share is touched.
    let _pidfile = config.pidfile.as_deref().map(Pidfile::take).transpose()?;
    let log = log::init(&config.settings)?;
    for warning in &warnings {
        warn!("{warning}");
    }
    let (policy, reading) = policy_files(&config)?;
    reading.remarks.iter().for_each(|remark| warn!("{remark}"));
    reading.taken.iter().for_each(|taken| info!("read {taken}"));
    if reading.taken.is_empty() && reading.errors.is_empty() {
        info!("no policy files: all ports are full members of the default partition");
    }
    let signals = Signals::take()?;
    let state = StateDir::open(&config.state_dir, config.settings.fsync_high_avail_files)?;
    let setup = RegistrySetup::new(config.settings.sa_key)?;
    let publish = PublishConfig {
        listen: config.publish,
        tls: config.tls.clone(),
        state_dir: config.state_dir.clone(),
        history: HistoryLimits::default(),
    };
    let publisher = Publisher::start_with(publish, |end| setup.services(end))?;
    let publisher = Arc::new(publisher);
    let dump = DumpFile::of(&config.settings, &config.state_dir);
    dump.check();
    let registry = setup.start(config.state_dir.clone(), publisher.clone(), dump)?;
    let followed = Arc::new(follow::Progress::default());
    if !config.follow.is_empty() {
        let following = Following {
            urls: config.follow.clone(),
            trust: ClientTrust::new(config.tls.clone(), config.insecure),
            id: state.identity()?,
            name: format!("standby of {}", config.state_dir.display()),
        };
        let urls = following.urls.join(", ");
        registry.follow(following, &followed)?;
        info!("standing by with what clients register at {urls}");
    }
    let mut door = Door::open(config.front_door, publisher.responders()).map_err(|source| {
        RunError::Listen { address: config.front_door, option: "--front-door", source }
    })?;
    door.set_redirect_mode(config.reach.redirect);
    door.set_return_way(config.reach.front_door_return);
    registry.set_front_door(door.address()?.to_string());
    let metrics = metrics::Metrics::default();
    if let Some(address) = config.http {
        let web = Web {
            observatory: publisher.observatory(),
            metrics: metrics::rendering(metrics.clone()),
            open: config.insecure,
        };
        web::serve(address, web).map_err(|source| RunError::Listen {
            address,
            option: "--http",
            source,
        })?;
    }
    let mut fabric = Attachment::open(&config, &state)?;
    let lids = state.lids()?;
    info!(
        "ibsm {} at {}; {} known LIDs; responders at {}",
        env!("CARGO_PKG_VERSION"),
        fabric.place(),
        lids.len(),
        publisher.address()
    );
    // Distinct from run to run is all it has to be.
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = clock.map_or(0, |elapsed| elapsed.subsec_nanos()) ^ std::process::id();
    let mut sweeper = Sweeper::new(config.settings.clone(), lids, seed);
    let (names, problem) = node_names::load(config.settings.node_name_map_name.as_deref());
    problem.iter().for_each(|problem| warn!("{problem}"));
    sweeper.set_node_names(names);
    sweeper.set_sharding(config.reach.sharding());
    let (m_keys, neighbours) = state.m_keys()?;
    let neighbours = Arc::new(neighbours);
    let origin = state.origin()?;
    let caches =
        Caches { m_keys: m_keys.clone(), neighbours: neighbours.clone(), origin: origin.clone() };
    sweeper.set_origin(origin);
    // A registry that was put back from a backup, or begun anew, lacks what clients registered since.
    let is_whole = |left: &Left| registry.stored().is_some_and(|stored| stored >= left.registry);
    sweeper.set_left(state.take_left()?.filter(is_whole));
    sweeper.set_m_keys(m_keys, neighbours);
    sweeper.set_own_port(fabric.port_guid());
    sweeper.set_disabled_ports(state.disabled_ports()?);
    let service = Service::new(Parts {
        config,
        log,
        signals,
        state,
        caches,
        fabric,
        sweeper,
        publisher,
        registry,
        followed,
        door,
        metrics,
        policy,
        remarks: warnings,
    })?;
    if let Some(starting) = starting.take() {
        starting.succeeded();
    }
    service.run()
}

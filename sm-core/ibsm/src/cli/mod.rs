//! The command line of `ibsm`, joined with the configuration file it names.
//!
//! - [`Options`]: the command line; it takes precedence over the file.
//! - [`Config`]: everything a run uses, checked before anything starts.
//!
//! Formats of files, and defaults, are in [`sm_config`]; this module reads and writes the files.

mod arguments;
pub mod disk;
pub mod documents;
mod error;
mod examined;
mod history;
pub mod master_files;
mod opensm_options;
mod options;
mod plan;
mod sa_access;
mod store;
mod trust;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ib_mad::types::{Guid, PortNum};
use sa_proto::trust::local::LocalRoles;
use sa_proto::trust::{ClientTrust, TlsFiles};

pub use error::{ConfigError, OptionError};
pub use examined::Examined;
pub use history::HistoryOptions;
use master_files::{MasterFiles, OwnHashes, own_hashes};
pub use opensm_options::OpenSmOptions;
pub(crate) use options::SYSLOG;
pub use options::{Command, Options, TransportKind};
pub use plan::{EngineNames, Failing, Goal, PlanOptions};
pub use sa_access::{RedirectMode, ReturnWay, SaAccess, SaMode};
use sm_config::file::FileError;
use sm_config::{Settings, file, verify};
pub use store::{
    EtcdLocation, EtcdTls, StoreOptionError, StoreOptions, StorePlace, StoreUrl, StoreUrlError,
};
use trust::Exposure;
pub use trust::{ExposureError, LocalRole, TlsOptions, sa_key_warning};

/// OpenSM's configuration file; read if it exists and `-F` names no other.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/opensm/opensm.conf";

/// Everything a run of `ibsm` needs to know. Holding one is proof that it is usable.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings of OpenSM's file and options.
    pub settings: Settings,
    /// How the fabric is reached.
    pub transport: TransportKind,
    /// Where responders fetch snapshots.
    pub publish: SocketAddr,
    /// Feeds of other subnet managers that are followed while standing by.
    pub follow: Vec<String>,
    /// Port GUIDs of the other subnet managers; all if there are none.
    pub sm_allow: BTreeSet<Guid>,
    /// Whether registrations wait for standbys that follow.
    pub follow_sync: bool,
    /// Whether a standby uses the master's files in place of this host's.
    pub follow_config: bool,
    /// Where registrations are kept.
    pub store: StorePlace,
    /// Our certificates, if connections there have TLS.
    pub tls: Option<TlsFiles>,
    /// Roles of users of this host, where connections have no TLS.
    pub local_roles: LocalRoles,
    /// Where the front door's envelopes come and go.
    pub front_door: SocketAddr,
    /// How clients reach responders, besides the front door.
    pub sa_access: SaAccess,
    /// Where metrics and the live page are served, if anywhere.
    pub http: Option<SocketAddr>,
    /// File of the expected topology.
    pub expected_topology: Option<PathBuf>,
    /// Whether what is not in the baseline is kept out.
    pub quarantine: bool,
    /// Label of all metrics; empty for none.
    pub subnet_label: String,
    /// Address of the API, and the file of its users.
    pub api: Option<(SocketAddr, PathBuf)>,
    /// Whether unprotected listeners may be open to other machines.
    pub insecure: bool,
    /// Which subnet managers are followed.
    pub client: ClientTrust,
    /// Directory for state that must outlive the process: LIDs, session epoch, transport identity.
    pub state_dir: PathBuf,
    /// Directory of the history, and its largest size in bytes; `None` if none is kept.
    pub history: Option<(PathBuf, u64)>,
    /// RDMA device or umad file to run on, if not any.
    pub device: Option<String>,
    /// Number of the port on that.
    pub port: Option<PortNum>,
    /// Node of the simulated fabric to run on.
    pub node: Option<String>,
    /// Name of the simulator's sockets.
    pub socket: Option<String>,
    /// Where all MADs at the port are written, if anywhere.
    pub capture: Option<PathBuf>,
    /// Whether to stop once the subnet is up.
    pub once: bool,
    /// Where our process id is written, if anywhere.
    pub pidfile: Option<PathBuf>,
    /// Copies of the master's files that are used in place of this host's.
    pub master_files: MasterFiles,
    /// Whether the index of these copies on disk is outdated.
    pub is_index_outdated: bool,
    /// Addresses that other machines can reach without TLS, which `--insecure` permits.
    exposures: Vec<Exposure>,
    /// The settings of this host, whether or not the master's are used.
    own: Settings,
    /// The command line, which goes over the file whenever that is read.
    options: Options,
}

impl Config {
    /// Joins the command line with the configuration file it names, the command line winning.
    /// The second value holds warnings to be logged once logging is set up.
    pub fn load(options: Options) -> Result<(Self, Vec<String>), ConfigError> {
        let (own, mut warnings) = settings_of(&options, None)?;
        let mut master_files = match options.follow_config {
            true => MasterFiles::read(&options.state_dir),
            false => MasterFiles::default(),
        };
        let mut is_index_outdated = false;
        if !master_files.is_empty() {
            let edited = master_files.drop_edited(&own_hashes(&own));
            is_index_outdated = !edited.is_empty();
            warnings.extend(edited);
        }
        let mut settings = own.clone();
        warnings.extend(use_copies(&master_files, &mut settings));
        let tls = options.tls.files()?;
        let tls = tls.map(|files| TlsFiles { crl: options.tls_crl.clone(), ..files });
        let client = options.tls.client(options.insecure)?;
        for url in &options.follow {
            client.endpoint(url)?;
        }
        let store = options.store.place(
            &options.state_dir,
            !options.follow.is_empty(),
            options.follow_sync,
        )?;
        let is_shared = matches!(store, StorePlace::Etcd(_));
        if options.follow_config && options.follow.is_empty() && !is_shared {
            return Err(StoreOptionError::NothingToCopy.into());
        }
        let (publish, front_door) = (options.publish, options.front_door);
        let exposures = [
            trust::check_api(options.api, tls.is_some(), options.insecure)?,
            trust::check(publish, front_door, tls.is_some(), options.insecure)?,
            trust::check_console(&settings, options.insecure),
        ]
        .concat();
        warnings.extend(exposures.iter().map(Exposure::to_string));
        Ok((
            Self {
                settings,
                transport: options.transport(),
                publish,
                follow: options.follow.clone(),
                sm_allow: options.sm_allow.iter().copied().collect(),
                follow_sync: options.follow_sync,
                follow_config: options.follow_config,
                store,
                tls,
                local_roles: trust::local_roles(&options.local_role),
                front_door,
                sa_access: options.sa_access.clone(),
                http: options.http,
                expected_topology: options.expected_topology.clone(),
                quarantine: options.quarantine,
                subnet_label: options.subnet_label.clone(),
                api: options.api.zip(options.api_users.clone()),
                insecure: options.insecure,
                client,
                exposures,
                state_dir: options.state_dir.clone(),
                history: options.history.place(&options.state_dir),
                device: options.device.clone(),
                port: options.port.map(PortNum),
                node: options.node.clone(),
                socket: options.socket.clone(),
                capture: options.capture.clone(),
                once: options.once,
                pidfile: options.pidfile.clone(),
                master_files,
                is_index_outdated,
                own,
                options,
            },
            warnings,
        ))
    }

    /// Whether the operator is to choose the port at the terminal (`-g 0`).
    pub fn asks_for_port(&self) -> bool {
        self.options.guid == Some(Guid(0))
    }

    /// Runs on the port with this GUID, which the operator chose, also when the settings are read
    /// again.
    pub fn choose_port(&mut self, guid: Guid) {
        self.options.guid = Some(guid);
        (self.settings.guid, self.own.guid) = (guid, guid);
    }

    /// Options with an address that other machines can reach without TLS, and what that means.
    pub fn exposures(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.exposures.iter().map(|exposure| (exposure.option, &exposure.text[..]))
    }

    /// Whether mistakes in files end the start (`--strict`).
    pub fn is_strict(&self) -> bool {
        self.options.strict
    }

    /// Reads the settings again, as [`load`](Self::load) did.
    /// A key with an invalid value keeps its value in [`settings`](Self::settings).
    ///
    /// With copies of the master's files, `leads` decides whether edits of this host's files count.
    pub fn reread(&mut self, leads: bool) -> Result<(Settings, Vec<String>), ConfigError> {
        if !self.follow_config {
            return settings_of(&self.options, Some(&self.settings));
        }
        let (own, mut remarks) = settings_of(&self.options, Some(&self.own))?;
        self.own = own;
        remarks.extend(self.follow_edits(leads));
        let mut settings = self.own.clone();
        remarks.extend(use_copies(&self.master_files, &mut settings));
        Ok((settings, remarks))
    }

    /// Has edits of this host's files count if this SM `leads`, and ignores them otherwise. Returns
    /// a line for each.
    pub fn follow_edits(&mut self, leads: bool) -> Vec<String> {
        if self.master_files.is_empty() {
            return Vec::new();
        }
        let own = self.own_hashes();
        let edited = match leads {
            true => self.master_files.drop_edited(&own),
            false => self.master_files.ignore_edited(&own),
        };
        self.is_index_outdated |= !edited.is_empty();
        edited
    }

    /// Hashes of this host's files.
    pub fn own_hashes(&self) -> OwnHashes {
        own_hashes(&self.own)
    }

    /// The settings with the paths of the files that are used.
    pub fn with_used_files(&self, settings: &Settings) -> Settings {
        self.master_files.redirect(settings)
    }
}

/// Puts the master's settings in place of this host's, if there are copies. Returns remarks.
fn use_copies(files: &MasterFiles, settings: &mut Settings) -> Vec<String> {
    let mut remarks = files.apply(settings);
    if !files.is_empty() {
        remarks.extend(verify(settings));
    }
    remarks
}

/// Settings from the configuration file and the command line, with warnings. A setting with a
/// mistake keeps its value from `before`.
fn settings_of(
    options: &Options,
    before: Option<&Settings>,
) -> Result<(Settings, Vec<String>), ConfigError> {
    let (mut remarks, mut mistakes) = (Vec::new(), Vec::new());
    let mut settings = Settings::default();
    let named = options.config.as_deref();
    let path = named.unwrap_or(Path::new(DEFAULT_CONFIG_FILE));
    if named.is_some() || path.exists() {
        let parsed = file::read(path, before.is_some(), &disk::read);
        let parsed = parsed.map_err(|error| match (error, named) {
            (FileError::Io { path, source }, Some(_)) => ConfigError::Named { path, source },
            (error, _) => ConfigError::File(error),
        })?;
        settings = parsed.settings;
        remarks.extend(parsed.remarks);
        mistakes.extend(parsed.mistakes);
        if let Some(before) = before {
            parsed.kept.iter().for_each(|key| settings.copy(key, before));
        }
    }
    mistakes.extend(options.apply(&mut settings)?);
    mistakes.extend(verify(&mut settings));
    if options.strict && !mistakes.is_empty() {
        return Err(ConfigError::Mistakes { mistakes });
    }
    remarks.extend(mistakes);
    remarks.extend(file::idle_keys(&settings));
    Ok((settings, remarks))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn a_missing_file_is_reported_with_the_option_that_names_it() {
        let options = Options::parse_from(["ibsm", "-F", "/nofile"]);
        let error = Config::load(options).unwrap_err();
        assert!(error.to_string().starts_with("-F/--config: /nofile: No such file"), "{error}");
    }

    #[test]
    fn a_file_is_read_again_beneath_the_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sm.conf");
        std::fs::write(&path, "subnet_timeout 19\nsweep_interval 5\n").unwrap();
        let options = Options::parse_from(["ibsm", "-s", "7", "-F", &path.to_string_lossy()]);
        let (mut config, _) = Config::load(options).unwrap();
        let values = |settings: &Settings| (settings.subnet_timeout, settings.sweep_interval);
        assert_eq!(values(&config.settings), (19, 7));
        std::fs::write(&path, "subnet_timeout 20\nqos_max_vls 4\n").unwrap();
        let (settings, remarks) = config.reread(false).unwrap();
        assert_eq!((values(&settings), remarks.len()), ((20, 7), 1), "{remarks:?}");
    }

    /// A SIGHUP would otherwise report that the GUID has changed.
    #[test]
    fn the_chosen_port_stays_when_the_settings_are_read_again() {
        let load = |words: &[&str]| {
            let words = [&["ibsm", "-F", "/dev/null"], words].concat();
            Config::load(Options::parse_from(words)).unwrap().0
        };
        assert!(!load(&[]).asks_for_port() && !load(&["-g", "0x12"]).asks_for_port());
        let mut config = load(&["-g", "0"]);
        assert!(config.asks_for_port());
        config.choose_port(Guid(0x34));
        assert_eq!(config.settings.guid, Guid(0x34));
        assert_eq!(config.reread(false).unwrap().0.guid, Guid(0x34));
    }

    #[test]
    fn mistakes_are_reported_and_ignored_unless_strict() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sm.conf");
        let file = path.to_string_lossy();
        std::fs::write(&path, "lmc 1\nsubnet_timeout 20\n").unwrap();
        let load = |more: &[&str]| {
            let arguments = [&["ibsm", "-F", &file], more].concat();
            Config::load(Options::parse_from(arguments))
        };
        assert!(load(&["--strict"]).is_ok());
        let (mut config, remarks) = load(&[]).unwrap();
        assert_eq!(remarks, Vec::<String>::new());

        std::fs::write(&path, "lmc 8\nsubnet_timeout ten\nforce_link_speed 9\n").unwrap();
        let (broken, lines) = load(&[]).unwrap();
        assert_eq!((broken.settings.lmc, broken.settings.subnet_timeout), (0, 18));
        assert!(lines[0].ends_with("sm.conf:1: lmc must be 0 to 7, not 8; 0 is used"), "{lines:?}");
        assert!(lines[2].starts_with("force_link_speed 9 is not"), "{lines:?}");
        let error = load(&["--strict"]).unwrap_err().to_string();
        assert!(lines.iter().all(|line| error.contains(line)), "{error}");

        // On a reread, an invalid value leaves the one in force.
        let (settings, _) = config.reread(false).unwrap();
        assert_eq!((settings.lmc, settings.subnet_timeout), (1, 20));

        // An unknown engine caused a running fabric to be rerouted by minhop.
        std::fs::write(&path, "routing_engine updn\nqos TRUE\n").unwrap();
        let (mut config, _) = load(&["-s", "7"]).unwrap();
        for slip in ["updm", "updm,no_fallback", "updm,minhop"] {
            let text = format!("routing_engine {slip}\nqos yes\nsweep_interval x\n");
            std::fs::write(&path, text).unwrap();
            let (settings, lines) = config.reread(false).unwrap();
            assert_eq!(settings.routing_engine.as_deref(), Some("updn"), "{lines:?}");
            assert_eq!((settings.qos, settings.sweep_interval), (true, 7));
            let (started, lines) = load(&[]).unwrap();
            assert_ne!(started.settings.routing_engine.as_deref(), Some("updn"));
            assert!(lines[0].contains("minhop is used"), "{lines:?}");
        }
    }
}

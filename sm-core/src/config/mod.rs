//! Settings: what the command line and `opensm.conf` say, checked before anything runs.
//!
//! - [`Settings`]: the keys of OpenSM's configuration file that we act on, each with its range.
//! - [`mod@file`]: reading and writing that file.
//! - [`opafm`] reads virtual fabrics from an `opafm.xml`.
//! - [`qos_policy`] reads `qos-policy.conf`.
//! - [`Options`]: the command line of `ibsm`, which goes over the file.
//! - [`SitePolicy`]: what may change while the program runs: [`partitions`], [`prefix_routes`].
//!
//! No defaults hide elsewhere: what a run uses is all in [`Config`].

pub mod file;
pub mod opafm;
mod options;
pub mod partitions;
pub mod prefix_routes;
pub mod qos_policy;
mod qos_tables;
pub mod ranges;
mod reach;
mod settings;
mod site;
mod trust;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sa_proto::trust::{ClientTrust, TlsFiles};

pub use file::{ConfigError, Parsed};
pub use options::{OptionError, Options, TransportKind};
pub(crate) use options::{STDOUT, SYSLOG};
pub use partitions::PartitionConfig;
pub use qos_tables::{PortQos, QosTables, SlToVl, VL_ARB_ENTRIES, VlArb};
pub use reach::Reach;
pub(crate) use settings::parse_number;
pub use settings::{EngineNames, MAX_WIRE_SMPS_LIMIT, PartEnforce, Settings, ValueError};
pub use site::{PolicyError, Reading, Remarks, SitePolicy};
pub use trust::{ExposureError, TlsOptions};

/// OpenSM's configuration file; read if it exists and `-F` names no other.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/opensm/opensm.conf";

/// Everything a run of `ibsm` needs to know. Holding one is proof that it is usable.
#[derive(Clone, Debug)]
pub struct Config {
    /// What OpenSM's file and options set.
    pub settings: Settings,
    /// How the fabric is reached.
    pub transport: TransportKind,
    /// Where responders fetch snapshots.
    pub publish: SocketAddr,
    /// Feeds of other subnet managers that are followed while standing by.
    pub follow: Vec<String>,
    /// Our certificates, if connections there have TLS.
    pub tls: Option<TlsFiles>,
    /// Where the front door's envelopes come and go.
    pub front_door: SocketAddr,
    /// By which ways clients reach responders, besides the front door.
    pub reach: Reach,
    /// Where metrics and the live page are served, if anywhere.
    pub http: Option<SocketAddr>,
    /// Whether what is not protected may be open to other machines.
    pub insecure: bool,
    /// What must outlive the process: LIDs, session epoch, transport identity.
    pub state_dir: PathBuf,
    /// Node of the simulated fabric to run on.
    pub node: Option<String>,
    /// Name of the simulator's sockets.
    pub socket: Option<String>,
    /// Whether to stop once the subnet is up.
    pub once: bool,
    /// Where our process id is written, if anywhere.
    pub pidfile: Option<PathBuf>,
}

impl Config {
    /// Joins the command line with the configuration file it names, the command line winning.
    /// The second value holds warnings to be logged once logging is set up.
    pub fn load(options: Options) -> Result<(Self, Vec<String>), ConfigError> {
        let mut warnings = Vec::new();
        let mut settings = Settings::default();
        let named = options.config.as_deref();
        let path = named.unwrap_or(Path::new(DEFAULT_CONFIG_FILE));
        if named.is_some() || path.exists() {
            let parsed = file::read(path).map_err(|error| match (error, named) {
                (ConfigError::Io { path, source }, Some(_)) => ConfigError::Named { path, source },
                (error, _) => error,
            })?;
            settings = parsed.settings;
            warnings.extend(parsed.warning);
        }
        options.apply(&mut settings)?;
        let tls = options.tls.files()?;
        let client = ClientTrust::new(tls.clone(), options.insecure);
        for url in &options.follow {
            client.endpoint(url)?;
        }
        let (publish, front_door) = (options.publish, options.front_door);
        warnings.extend(trust::check(publish, front_door, tls.is_some(), options.insecure)?);
        Ok((
            Self {
                settings,
                transport: options.transport,
                publish,
                follow: options.follow,
                tls,
                front_door,
                reach: options.reach,
                http: options.http,
                insecure: options.insecure,
                state_dir: options.state_dir,
                node: options.node,
                socket: options.socket,
                once: options.once,
                pidfile: options.pidfile,
            },
            warnings,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_file_that_is_not_there_is_told_with_the_option_that_names_it() {
        let options = Options::parse_from(["ibsm", "-F", "/nofile"]);
        let error = Config::load(options).unwrap_err();
        assert!(error.to_string().starts_with("-F/--config: /nofile: No such file"), "{error}");
    }
}

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

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use file::{ConfigError, Parsed};
pub use options::{Options, TransportKind};
pub use partitions::PartitionConfig;
pub use qos_tables::{PortQos, QosTables, SlToVl, VL_ARB_ENTRIES, VlArb};
pub use reach::Reach;
pub(crate) use settings::parse_number;
pub use settings::{MAX_WIRE_SMPS_LIMIT, PartEnforce, Settings, ValueError};
pub use site::{PolicyError, Remarks, SitePolicy};

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
    /// Where the front door's envelopes come and go.
    pub front_door: SocketAddr,
    /// By which ways clients reach responders, besides the front door.
    pub reach: Reach,
    /// Where metrics are served, if anywhere.
    pub http: Option<SocketAddr>,
    /// What must outlive the process: LIDs, session epoch, transport identity.
    pub state_dir: PathBuf,
    /// Node of the simulated fabric to run on.
    pub node: Option<String>,
    /// Name of the simulator's sockets.
    pub socket: Option<String>,
    /// Whether to stop once the subnet is up.
    pub once: bool,
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
            let parsed = file::read(path)?;
            settings = parsed.settings;
            warnings.extend(parsed.warning);
        }
        options.apply(&mut settings)?;
        warnings.extend(exposures(options.publish, options.front_door));
        Ok((
            Self {
                settings,
                transport: options.transport,
                publish: options.publish,
                front_door: options.front_door,
                reach: options.reach,
                http: options.http,
                state_dir: options.state_dir,
                node: options.node,
                socket: options.socket,
                once: options.once,
            },
            warnings,
        ))
    }
}

/// What is open to other machines, and what that means.
fn exposures(publish: SocketAddr, front_door: SocketAddr) -> Vec<String> {
    let mut warnings = Vec::new();
    if !publish.ip().is_loopback() {
        warnings.push(format!(
            "--publish {publish} is open to other machines, without authentication or encryption: \
             whoever connects is sent the subnet's sa_key in clear, and may register as a \
             responder that clients' queries are passed to; let none but responders reach it"
        ));
    }
    if !front_door.ip().is_loopback() {
        warnings.push(format!(
            "--front-door {front_door} is open to other machines, without authentication: whoever \
             can send from a responder's address can answer clients in the SA's name; let none \
             but responders reach it"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_open_to_other_machines_are_warned_of() {
        let exposed = |publish: &str, front_door: &str| {
            exposures(publish.parse().unwrap(), front_door.parse().unwrap())
        };
        assert!(exposed("127.0.0.1:7471", "[::1]:0").is_empty());
        let warnings = exposed("0.0.0.0:7471", "127.0.0.1:0");
        assert!(warnings[0].starts_with("--publish 0.0.0.0:7471") && warnings.len() == 1);
        assert!(warnings[0].contains("sa_key"));
        let warnings = exposed("127.0.0.1:7471", "192.0.2.1:0");
        assert!(warnings[0].starts_with("--front-door 192.0.2.1:0") && warnings.len() == 1);
    }
}

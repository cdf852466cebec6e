//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use ib_mad::transport::udp::Engine;
use ib_mad::transport::umad::sharing::SOCKET_NAME;
use sa_proto::proto::snapshot as proto;

use sa_proto::trust::local::UserId;
use sa_proto::trust::{ClientTrust, TlsFiles, TrustError};

use crate::node::AgentsConfig;
use crate::query::redirect::Target;
use crate::sm::replica::SmUrl;

const EXAMPLES: &str = "\
Examples:
  ibsa --sm http://127.0.0.1:7471 --transport udp     on the manager's host, for its front door
  ibsa --sm https://sm1:7471 --sm https://sm2:7471 --transport umad --cache-dir /var/lib/ibsa \\
       --tls-ca ca.pem --tls-cert sa.pem --tls-key sa.key
                                                      at a port of this host, two managers
  ibsa --sm http://127.0.0.1:7471 --transport umad --at-sm-port
                                                      on the manager's host, at its port
  ibsa agent --help                                   about the agent for compute nodes
  ibsa hold /run/ibsa.hold                            keeps the umad file of
                                                      `ibsa --holder /run/ibsa.hold` open
                                                      during restarts

Signals: USR1 reopens the log file; TERM and INT end the program cleanly.
Environment: RUST_LOG overrides the log level by module.";

/// Answers Subnet Administration queries from the snapshots that ibsm publishes
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ibsa",
    version = daemon::VERSION,
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub struct Options {
    /// URL of an SM to subscribe to, such as https://sm1:7471, or http:// on this host; repeat for
    /// standby SMs
    #[arg(long = "sm", value_name = "URL", required = true)]
    pub sms: Vec<SmUrl>,

    /// CA certificates that SM certificates are verified against, in PEM
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CA")]
    pub tls_ca: Option<PathBuf>,

    /// Certificate of this responder, in PEM, with URI urn:ibsm:role:responder as subject
    /// alternative name
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Without TLS: the user of this host that ibsm runs as; root and our own user are trusted
    /// always [default: the user ibsm, if there is one]
    #[arg(long, value_name = "USER", env = "IBSM_SM_USER")]
    pub sm_user: Option<UserId>,

    /// Follow SMs on other hosts without TLS, or open --listen to other hosts: every host that can
    /// reach them is trusted
    #[arg(long)]
    pub insecure: bool,

    /// Transport for queries, in addition to the front door
    #[arg(long, value_enum)]
    pub transport: TransportKind,

    /// ibsim: node to attach to, by identifier or description
    #[arg(long, env = "SIM_HOST", value_name = "NODE")]
    pub node: Option<String>,

    /// ibsim: base of the server's socket names
    #[arg(long, env = "IBSIM_SOCKNAME", value_name = "NAME", default_value = "sim")]
    pub socket: String,

    /// umad, and verbs in a build with the feature `verbs`: RDMA device or umad file to serve on,
    /// such as mlx5_0 or umad0 [default: the first active port]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,

    /// umad, verbs: port number on the device
    #[arg(long, value_name = "N")]
    pub port: Option<u8>,

    /// umad: socket of `ibsa hold SOCKET`, which keeps the port's file open while ibsa restarts;
    /// not needed under systemd with FileDescriptorStoreMax=
    #[arg(long, value_name = "SOCKET")]
    pub holder: Option<PathBuf>,

    /// umad: answer the queries that clients send to the SM's LID, on the SM's host at the SM's
    /// port (--device, --port). They are answered while ibsm restarts; while ibsa restarts, ibsm
    /// forwards them
    #[arg(long)]
    pub at_sm_port: bool,

    /// State directory of the ibsm at that port, in which its socket is
    #[arg(long, value_name = "DIR", env = "OSM_CACHE_DIR", default_value = "/var/lib/ibsm")]
    pub sm_state_dir: PathBuf,

    /// Use of the port that ibsa serves on, and so whether the SM may move its LID
    #[arg(long, value_enum, value_name = "USE", default_value_t)]
    pub port_use: PortUse,

    /// UDP address for queries in envelopes, from a front door or from clients; port 0 selects a
    /// free port. There is no authentication: an address that other hosts can reach needs
    /// --insecure
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))]
    pub listen: SocketAddr,

    /// Address to accept envelopes from, in addition to this host and the followed SM: a load
    /// generator, or an SM that sends from another address than it announces; can be repeated
    #[arg(long, value_name = "IP")]
    pub believe: Vec<std::net::IpAddr>,

    /// Address for agents on compute nodes (ibsa agent), which answer path queries in their place.
    /// Other hosts need TLS, with a certificate that permits use as a server, or --insecure
    /// [default: no agents]
    #[arg(long, value_name = "ADDR")]
    pub agents: Option<SocketAddr>,

    /// Address for HTTP /metrics and /healthz [default: no HTTP]
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,

    /// Add the label subnet=NAME to all metrics, as with ibsm
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub subnet_label: String,

    /// Write all MADs that come in and go out, by any transport, to FILE, in pcap format for
    /// Wireshark, up to 1 GB. They contain keys
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// Directory for the last snapshot; after a restart ibsa serves it at once
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// Number of threads that answer queries from --listen
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    pub workers: u16,

    /// System interface for the datagrams of --listen
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t)]
    pub io: IoEngine,

    /// Unix socket where processes of the same user on this host get shared memory for queries; a
    /// separate thread serves them
    #[arg(long, value_name = "PATH")]
    pub ring: Option<PathBuf>,

    /// CPUs for the threads that answer queries, assigned in turn; all other threads avoid these
    /// CPUs if possible
    #[arg(long, value_name = "CPU,...", value_delimiter = ',')]
    pub pin: Vec<usize>,

    /// Microseconds to poll for queries before a thread sleeps: lower latency, but each thread uses
    /// a full CPU
    #[arg(
        long,
        value_name = "US",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=1_000_000),
    )]
    pub busy_poll: u64,

    /// Return every query as its own answer, to measure the cost of the loop without queries.
    /// Clients take it for a real answer: for test beds only
    #[arg(long)]
    pub echo: bool,

    /// Read options from FILE: a line has the long name of an option, with _ for -, and its value;
    /// the command line goes first [default: /etc/ibsm/ibsa.conf, if it exists]
    #[arg(short = 'F', long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Log file, in addition to standard output; USR1 has it opened again
    #[arg(short = 'f', long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// File to write the process id to. It is locked: a second instance with the same file exits;
    /// the file of a dead process is reused
    #[arg(short = 'J', long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,

    /// Name of this responder in ibsmctl and the SM's metrics [default: ibsa-PID]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Responder that ClassPortInfo redirects clients to, as `LID[:QP[:P_KEY]]`; repeat to spread
    /// clients
    #[arg(long = "redirect-to", value_name = "TARGET")]
    pub redirect_to: Vec<Target>,
}

impl Options {
    /// The SMs, and why to trust them.
    pub(crate) fn trusted_sms(&self) -> Result<Vec<SmUrl>, TrustError> {
        let trust = ClientTrust::new(self.tls_files()?, self.insecure).with_sm_user(self.sm_user);
        self.sms.iter().map(|sm| sm.clone().with_trust(trust.clone())).collect()
    }

    /// The certificate files, if they are given.
    pub(crate) fn tls_files(&self) -> Result<Option<TlsFiles>, TrustError> {
        let (ca, cert, key) = (&self.tls_ca, &self.tls_cert, &self.tls_key);
        TlsFiles::of(ca.as_deref(), cert.as_deref(), key.as_deref())
    }

    /// Where and how agents are served, with `--agents`.
    pub(crate) fn agents_config(&self) -> Result<Option<AgentsConfig>, TrustError> {
        let Some(address) = self.agents else { return Ok(None) };
        Ok(Some(AgentsConfig { address, tls: self.tls_files()?, insecure: self.insecure }))
    }

    /// The socket of the ibsm whose port is shared, with `--at-sm-port`.
    pub(crate) fn sm_socket(&self) -> Option<PathBuf> {
        self.at_sm_port.then(|| self.sm_state_dir.join(SOCKET_NAME))
    }

    /// The address of the front door, if it is open to other hosts without `--insecure`.
    pub(crate) fn exposed_listen(&self) -> Option<SocketAddr> {
        let is_open = !self.listen.ip().to_canonical().is_loopback();
        (is_open && !self.insecure).then_some(self.listen)
    }
}

/// How a responder's port is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PortUse {
    /// The port has other users too: its LID never changes.
    #[default]
    Shared,
    /// The port has no other users: if it fails, its LID may move to a spare port.
    Dedicated,
    /// Spare: receives no queries until it takes over the LID of a failed port.
    Spare,
}

impl From<PortUse> for proto::PortUse {
    fn from(usage: PortUse) -> Self {
        match usage {
            PortUse::Shared => Self::Shared,
            PortUse::Dedicated => Self::Dedicated,
            PortUse::Spare => Self::Spare,
        }
    }
}

/// System interface for datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IoEngine {
    /// io_uring if the kernel permits it, else recvmmsg and sendmmsg.
    #[default]
    Auto,
    /// io_uring: Linux 6.1 or later, not forbidden by kernel.io_uring_disabled or a container.
    Uring,
    /// recvmmsg and sendmmsg.
    Mmsg,
}

impl From<IoEngine> for Engine {
    fn from(engine: IoEngine) -> Self {
        match engine {
            IoEngine::Auto => Self::Auto,
            IoEngine::Uring => Self::Uring,
            IoEngine::Mmsg => Self::Mmsg,
        }
    }
}

/// Transport for queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// A node of a fabric simulated by ibfabric or ibsim.
    Ibsim,
    /// A port of this host, through the kernel's umad device.
    Umad,
    /// A dedicated queue pair on a port of this host, for redirected clients.
    #[cfg(feature = "verbs")]
    Verbs,
    /// UDP only.
    Udp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        let options = Options::try_parse_from([
            "ibsa",
            "--sm",
            "http://127.0.0.1:1",
            "--sm",
            "http://127.0.0.1:2",
            "--transport",
            "udp",
        ]);
        assert_eq!(options.unwrap().sms.len(), 2);
    }

    fn refusal(arguments: &[&str]) -> String {
        let common = ["ibsa", "--transport", "udp"];
        let options = Options::try_parse_from(common.iter().chain(arguments)).unwrap();
        options.trusted_sms().map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn an_sm_on_another_host_is_followed_with_tls_or_if_that_is_meant() {
        let sm = ["--sm", "http://192.0.2.1:1"];
        assert!(refusal(&sm).contains("or say --insecure"));
        assert_eq!(refusal(&[&sm[..], &["--insecure"]].concat()), "");
        assert!(refusal(&["--sm", "https://sm1:1"]).contains("needs --tls-ca"));
        assert!(
            refusal(&["--sm", "https://sm1:1", "--tls-ca", "a"]).ends_with("--tls-cert is missing")
        );
    }

    #[test]
    fn a_front_door_open_to_other_hosts_has_to_be_meant() {
        let exposed = |arguments: &[&str]| {
            let common = ["ibsa", "--transport", "udp", "--sm", "http://127.0.0.1:1", "--listen"];
            let options = Options::try_parse_from(common.iter().chain(arguments)).unwrap();
            options.exposed_listen().is_some()
        };
        assert!(exposed(&["0.0.0.0:0"]));
        assert!(!exposed(&["0.0.0.0:0", "--insecure"]));
        assert!(!exposed(&["[::1]:0"]));
    }
}

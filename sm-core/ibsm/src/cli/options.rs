//! The command line of `ibsm`: OpenSM's options where supported, and its own.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use ib_mad::types::Guid;

use super::PlanOptions;
use super::error::OptionError;
use super::history::HistoryOptions;
use super::opensm_options::{OpenSmOptions, hexadecimal};
use super::sa_access::SaAccess;
use super::store::StoreOptions;
use super::trust::{LocalRole, TlsOptions};
use sm_config::Settings;
use sm_config::instead;

/// How the fabric is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// A port of this host, through the kernel's umad device.
    Umad,
    /// The ibsim simulator or ibfabric, through its sockets.
    Ibsim,
}

/// Brings an InfiniBand subnet up and keeps it up.
///
/// ibsm discovers the fabric, assigns LIDs, configures partitions, computes routes, programs the
/// switches, activates the links, and publishes the result to the responders (ibsa), which answer
/// subnet administration queries. It replaces opensm: options of the same name mean the same, and
/// it reads opensm.conf; at start it reports keys that have no effect or that it refuses.
#[derive(Clone, Debug, Parser)]
#[command(name = "ibsm", version = daemon::VERSION, disable_version_flag = true)]
#[command(max_term_width = 100, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(infer_long_args = true, args_override_self = true)]
pub struct Options {
    /// Command to run instead of managing a subnet.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to reach the fabric [default: umad; ibsim with --node or --socket]
    #[arg(long, value_enum)]
    transport: Option<TransportKind>,
    /// Address at which responders fetch snapshots (gRPC).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7471")]
    pub publish: SocketAddr,
    /// Publishing address of another subnet manager, such as https://sm1:7471; repeatable. In
    /// standby, this SM copies the registrations of that one, so that clients need not reregister
    /// after a takeover.
    #[arg(long, value_name = "URL")]
    pub follow: Vec<String>,
    /// Port GUID of another subnet manager of this subnet; repeatable. If any is given, all others
    /// are ignored and reported, even if their priority is higher and their SM_Key is right.
    #[arg(long, value_name = "GUID")]
    pub sm_allow: Vec<Guid>,
    /// As master, acknowledge a registration only once the standbys that follow and are in step
    /// have stored it. A standby that is silent for 3 s is not waited for any longer.
    #[arg(long)]
    pub follow_sync: bool,
    /// In standby, copy the settings and policy files of the master that --follow names, or that
    /// keeps them in etcd with this option too, and use them in place of this host's. A file that
    /// is edited here while this SM is master, or not running, takes effect. Keys (m_key, sm_key,
    /// sa_key), sm_priority, logging and others of one host are not copied.
    #[arg(long)]
    pub follow_config: bool,
    /// Where registrations are kept.
    #[command(flatten)]
    pub store: StoreOptions,
    /// Address from which SA queries are forwarded to responders (UDP).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub front_door: SocketAddr,
    /// How clients reach responders.
    #[command(flatten)]
    pub sa_access: SaAccess,
    /// Address at which to serve the live page (/), JSON for programs (/api/v1/) and metrics for
    /// Prometheus (/metrics), and probes (/healthz, /readyz). At an address that other machines can
    /// reach, only metrics and probes are served unless --insecure is given.
    #[arg(long, value_name = "ADDR")]
    pub http: Option<SocketAddr>,
    /// File of the topology that is expected, as ibnetdiscover or `ibsmctl topology
    /// --ibnetdiscover` prints it: differences are problems.
    #[arg(long, value_name = "FILE")]
    pub expected_topology: Option<PathBuf>,
    /// Keep out what is not in the baseline (--expected-topology, or ibsmctl baseline take): nodes
    /// that do not belong, and links between switches that do not, unless they are the only way to
    /// a switch that belongs. Their links stay in Initialize, and are problems.
    #[arg(long)]
    pub quarantine: bool,
    /// Add the label subnet=NAME to all metrics, such as rail1: for a Prometheus that watches
    /// several subnets. Give the same to its ibsa.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub subnet_label: String,
    /// Address at which to serve UFM's REST interface for partitions and inventory (/ufmRest), with
    /// TLS if --tls-cert is given. Clients need no certificate: they prove who they are by the
    /// passwords of --api-users.
    #[arg(long, value_name = "ADDR", requires = "api_users")]
    pub api: Option<SocketAddr>,
    /// Users of --api: a line NAME:ROLE:HASH each, as ibsmctl password prints it, with the role
    /// admin or viewer. Read again when it changes.
    #[arg(long, value_name = "FILE", requires = "api")]
    pub api_users: Option<PathBuf>,
    /// Certificates of this SM, and the CA of responders and operators.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Certificates that the CAs have revoked, in PEM. Read again when it changes; connections of
    /// such certificates are closed.
    #[arg(long, value_name = "FILE", env = "IBSM_TLS_CRL", help_heading = "TLS")]
    #[arg(requires = "tls_ca")]
    pub tls_crl: Option<PathBuf>,
    /// Without TLS: give a user of this host a role, such as prometheus=viewer. responder: ibsa and
    /// ibstorm; admin: ibsmctl; viewer: ibsmctl, but no orders. Root and the user of ibsm have all;
    /// repeatable.
    #[arg(long, value_name = "USER=ROLE", help_heading = "TLS")]
    pub local_role: Vec<LocalRole>,
    /// Allow --publish and --api without TLS, --front-door and the page of --http at addresses that
    /// other machines can reach. Every machine that can reach them is trusted.
    #[arg(long, help_heading = "TLS")]
    pub insecure: bool,
    /// Directory of state that survives a restart: LIDs (guid2lid, in OpenSM's format),
    /// registrations and others. To keep the LIDs that OpenSM assigned, give its directory,
    /// /var/cache/opensm.
    #[arg(long, value_name = "DIR", env = "OSM_CACHE_DIR", default_value = "/var/lib/ibsm")]
    pub state_dir: PathBuf,
    /// What is kept of the past.
    #[command(flatten)]
    pub history: HistoryOptions,
    /// umad: RDMA device or umad file of the port to run on, such as mlx5_0 or umad0 [default: the
    /// device of --guid, else that of the first port that is up]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// umad: port number on the device.
    #[arg(long, value_name = "N")]
    pub port: Option<u8>,
    /// Node of the simulated fabric to run on [default: the simulator's default node].
    #[arg(long, env = "SIM_HOST")]
    pub node: Option<String>,
    /// Name of the simulator's sockets.
    #[arg(long, value_name = "NAME", env = "IBSIM_SOCKNAME")]
    pub socket: Option<String>,

    /// Write all MADs at the port to FILE, in pcap format for Wireshark, up to 1 GB. They contain
    /// keys.
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// GUID of the port to run on; ibsm fails if the transport has another port. 0 lists the ports
    /// of this host and asks for one at the terminal.
    #[arg(short, long, value_name = "GUID")]
    pub guid: Option<Guid>,
    /// LID mask control, 0 to 7: 2^LMC LIDs per port.
    #[arg(short, long)]
    pub lmc: Option<String>,
    /// Bring the subnet up, publish it, and stop. Fails if the subnet does not come up, or if
    /// another subnet manager is master.
    #[arg(short, long)]
    pub once: bool,
    /// Set nothing: read the fabric, print what would change, and stop; also beside a master, at
    /// its port, too. Exit status: 0 if nothing would change, 3 if something would.
    #[arg(long, conflicts_with_all = ["daemon", "pidfile", "capture"])]
    pub dry_run: bool,
    /// With --dry-run: print JSON, with all changes.
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Seconds between light sweeps; 0 sweeps on traps only.
    #[arg(short, long, value_name = "SECONDS")]
    pub sweep: Option<String>,
    /// Milliseconds to wait for the response to an SMP.
    #[arg(short, long, value_name = "MS")]
    pub timeout: Option<String>,
    /// Number of retries of an unanswered SMP.
    #[arg(long, value_name = "COUNT")]
    pub retries: Option<String>,
    /// Maximum number of SMPs on the wire.
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub maxsmps: Option<String>,
    /// Priority among subnet managers, 0 to 15.
    #[arg(short, long)]
    pub priority: Option<String>,
    /// Start in the state Not-Active: do nothing until another subnet manager sends STANDBY.
    #[arg(short = 'I', long = "inactive")]
    pub inactive: bool,
    /// When taking over from another subnet manager, assign LIDs from guid2lid instead of keeping
    /// those that ports have.
    #[arg(short = 'x', long = "honor_guid2lid")]
    pub honor_guid2lid: bool,
    /// Give all ports new LIDs.
    #[arg(short, long = "reassign_lids")]
    pub reassign_lids: bool,
    /// Routing engines to try, in order, separated by commas: minhop, updn, dnup, ftree, dor, sssp,
    /// dfsssp, lash, nue, layers, dla, torus-2QoS and file; minhop is the fallback. If an engine's
    /// routes could deadlock, the next engine whose routes cannot is used.
    #[arg(short = 'R', long = "routing_engine", value_name = "NAMES")]
    pub routing_engine: Option<String>,
    /// Subnet prefix, the upper half of every GID.
    #[arg(long = "subnet_prefix", value_name = "PREFIX")]
    pub subnet_prefix: Option<String>,
    /// File of partitions [default: /etc/opensm/partitions.conf].
    #[arg(short = 'P', long = "Pconfig", value_name = "FILE")]
    pub pconfig: Option<String>,
    /// Whether switches check P_Keys: both, in, out or off [default: both].
    #[arg(short = 'Z', long = "part_enforce", value_name = "TYPE")]
    pub part_enforce: Option<String>,
    /// Disable P_Key checks in switches; the same as --part_enforce off.
    #[arg(short = 'N', long = "no_part_enforce")]
    pub no_part_enforce: bool,
    /// Let a port have a partition's P_Key as full and as limited member at once.
    #[arg(short = 'W', long = "allow_both_pkeys")]
    pub allow_both_pkeys: bool,
    /// File of routes to other subnets (prefix routes) [default: /etc/opensm/prefix-routes.conf].
    #[arg(long = "prefix_routes_file", value_name = "FILE")]
    pub prefix_routes_file: Option<String>,
    /// Turn QoS on.
    #[arg(short = 'Q', long = "qos")]
    pub qos: bool,
    /// File of the QoS policy, used with -Q only [default: /etc/opensm/qos-policy.conf].
    #[arg(short = 'Y', long = "qos_policy_file", value_name = "FILE")]
    pub qos_policy_file: Option<String>,
    /// File of virtual fabrics, in the format of the Omni-Path fabric manager's opafm.xml.
    #[arg(long, value_name = "FILE")]
    pub vfabrics: Option<String>,
    /// Fm instance of that file to use, by its name; by default that of this subnet prefix.
    #[arg(long, value_name = "NAME")]
    pub vfabric_instance: Option<String>,
    /// Load registrations from FILE, an opensm-sa.dump, if the registry is still empty.
    #[arg(short = 'S', long = "sadb_file", visible_alias = "sa_db_file", value_name = "FILE")]
    pub sa_db_file: Option<String>,
    /// Run in the background; the log goes to the file of -f only.
    #[arg(short = 'B', long = "daemon")]
    pub daemon: bool,
    /// File to write the process id to. It is locked: a second instance with the same file exits;
    /// the file of a dead process is reused.
    #[arg(short = 'J', long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,
    /// Size at which the log file is truncated, megabytes; 0 is no limit.
    #[arg(short = 'L', long = "log_limit", value_name = "MB")]
    pub log_limit: Option<String>,
    /// Prefix of lines in the log file and syslog.
    #[arg(long = "log_prefix", value_name = "TEXT")]
    pub log_prefix: Option<String>,
    /// Log file, in addition to standard output. A relative FILE is under OSM_TMP_DIR, if that is
    /// set. `stdout` is standard output only, `syslog` the system log.
    #[arg(short = 'f', long = "log_file", value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Truncate the log file at start instead of appending to it.
    #[arg(short = 'e', long = "erase_log_file")]
    pub erase_log_file: bool,
    /// Log bits, such as 0x83: 1 errors, 2 information, 4 verbose, 8 and 0x10 debugging, 0x20 each
    /// MAD in full; 0x40 dumps routing to files with each sweep (opensm.fdbs and others), 0x80
    /// copies errors, warnings and information to the system's log.
    #[arg(short = 'D', long = "D", visible_alias = "log_flags", value_name = "FLAGS")]
    pub log_flags: Option<String>,
    /// Log everything, as with -D 0xFF.
    #[arg(short = 'V', long = "V")]
    pub verbose_max: bool,
    /// Options that set keys of OpenSM's configuration file.
    #[command(flatten)]
    pub opensm: OpenSmOptions,
    /// Print the version.
    #[arg(long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Log more; twice for debugging.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Read settings from FILE, in opensm.conf's syntax [default: /etc/opensm/opensm.conf, if it
    /// exists].
    #[arg(short = 'F', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Do not start if the configuration file has a mistake that OpenSM would ignore (unknown keys,
    /// invalid values), if a policy file is refused or a line of it ignored, or if the files of
    /// node names or module log levels have errors.
    #[arg(long)]
    pub strict: bool,
    /// Write the settings in force to FILE as a template, and exit.
    #[arg(short = 'c', long = "create-config", value_name = "FILE")]
    pub create_config: Option<PathBuf>,
}

/// Commands that need no subnet.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Compare routing engines on a fabric described by a file, such as ibnetdiscover's output:
    /// path lengths, balance, deadlocks, VLs, CPU time, and the effect of a failed link or switch.
    Plan(PlanOptions),
    /// Read all files of the configuration and report all mistakes at once, with file and line.
    /// Takes the options of a start. Exit status: 0 without mistakes, 1 with some.
    Check,
}

/// Value of -f for standard output only.
const STDOUT: &str = "stdout";
/// Value of -f for the system log.
pub(crate) const SYSLOG: &str = "syslog";

const EXAMPLES: &str = "\
Examples:
  ibsim -s -n net &
      Simulate the fabric of the net file 'net'.
  ibsm --transport ibsim --state-dir ./state -o
      Bring that fabric up once and exit; then look at it with ibnetdiscover.
  ibsm --state-dir ./state
      Manage the subnet at this host's first port that is up, and serve responders.
  ibsa --sm http://127.0.0.1:7471 --transport udp
      A responder on the same host; ibsm forwards queries that reach the SM's port to it.
  ibsa --sm http://127.0.0.1:7471 --transport umad --at-sm-port
      A responder at the SM's port itself; queries there are answered while ibsm restarts.
  ibsm -c ibsm.conf
      Write all settings with their explanation to a file for -F.
  ibsm check -F ibsm.conf
      Report all mistakes in that file and in those that it names.
  ibnetdiscover | ibsm plan -
      Compare what each routing engine would do with this fabric.

Signals: HUP reads the settings again and starts a heavy sweep; USR1 reopens the log file; TERM and
INT end the program cleanly.
Environment: OSM_CACHE_DIR is the default of --state-dir; a relative -f FILE is in OSM_TMP_DIR,
and so are dump files if dump_files_dir is not set. SIM_HOST and IBSIM_SOCKNAME as for ibsim
clients; RUST_LOG overrides the log level by module.";

impl Options {
    /// The transport; an option about a simulated fabric implies ibsim.
    pub(crate) fn transport(&self) -> TransportKind {
        let is_simulated = self.node.is_some() || self.socket.is_some();
        let implied = if is_simulated { TransportKind::Ibsim } else { TransportKind::Umad };
        self.transport.unwrap_or(implied)
    }

    /// Applies the options to `settings`. Returns log lines about values that were ignored.
    pub fn apply(&self, settings: &mut Settings) -> Result<Vec<String>, OptionError> {
        let mut mistakes = Vec::new();
        let prefix = self.subnet_prefix.as_deref().map(hexadecimal);
        let texts = [
            ("-l/--lmc", "lmc", &self.lmc),
            ("-s/--sweep", "sweep_interval", &self.sweep),
            ("-t/--timeout", "transaction_timeout", &self.timeout),
            ("--retries", "transaction_retries", &self.retries),
            ("-n/--maxsmps", "max_wire_smps", &self.maxsmps),
            ("-p/--priority", "sm_priority", &self.priority),
            ("-R/--routing_engine", "routing_engine", &self.routing_engine),
            ("--subnet_prefix", "subnet_prefix", &prefix),
            ("-S/--sadb_file", "sa_db_file", &self.sa_db_file),
            ("-P/--Pconfig", "partition_config_file", &self.pconfig),
            ("-Z/--part_enforce", "part_enforce", &self.part_enforce),
            ("--prefix_routes_file", "prefix_routes_file", &self.prefix_routes_file),
            ("-Y/--qos_policy_file", "qos_policy_file", &self.qos_policy_file),
            ("--vfabrics", "vfabric_config_file", &self.vfabrics),
            ("--vfabric-instance", "vfabric_instance", &self.vfabric_instance),
            ("-D/--D", "log_flags", &self.log_flags),
            ("-L/--log_limit", "log_max_size", &self.log_limit),
            ("--log_prefix", "log_prefix", &self.log_prefix),
        ];
        for (option, key, text) in texts {
            let Some(text) = text else { continue };
            match settings.set(key, text) {
                Ok(_) => {}
                // As in the file and as in OpenSM: known engines of the list are used.
                Err(source) if key == "routing_engine" => {
                    settings.set_as_opensm(key, text);
                    let used = instead(settings, text);
                    mistakes.push(format!("option {option}: {source}; {used}"));
                }
                Err(source) => return Err(OptionError { option, source }),
            }
        }
        self.opensm.apply(settings)?;
        if let Some(guid) = self.guid {
            settings.guid = guid;
        }
        settings.reassign_lids |= self.reassign_lids;
        settings.sm_inactive |= self.inactive;
        settings.daemon |= self.daemon;
        settings.honor_guid2lid_file |= self.honor_guid2lid;
        settings.no_partition_enforcement |= self.no_part_enforce;
        settings.allow_both_pkeys |= self.allow_both_pkeys;
        settings.qos |= self.qos;
        settings.accum_log_file &= !self.erase_log_file;
        for _ in 0..self.verbose.min(7) {
            settings.log_flags = settings.log_flags << 1 | 1;
        }
        if self.verbose_max {
            settings.log_flags = u8::MAX;
        }
        let directory = std::env::var_os("OSM_TMP_DIR").map(PathBuf::from);
        if let (None, Some(directory)) = (&settings.dump_files_dir, &directory) {
            settings.dump_files_dir = Some(directory.to_string_lossy().into_owned());
        }
        if let Some(file) = &self.log_file {
            let is_place = [STDOUT, SYSLOG].iter().any(|place| file.as_os_str() == *place);
            let file = match directory {
                Some(directory) if file.is_relative() && !is_place => directory.join(file),
                _ => file.clone(),
            };
            settings.log_file = Some(file.to_string_lossy().into_owned());
        }
        Ok(mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sm_config::PartEnforce;

    fn settings_of(arguments: &[&str]) -> Result<Settings, OptionError> {
        let options = Options::parse_from([&["ibsm"], arguments].concat());
        let mut settings = Settings::default();
        options.apply(&mut settings)?;
        Ok(settings)
    }

    #[test]
    fn options_of_opensm_mean_the_same() {
        let settings = settings_of(&[
            "-g",
            "0x0002c90300000001",
            "-l",
            "2",
            "-s",
            "30",
            "-t",
            "100",
            "--retries",
            "5",
            "--maxsmps",
            "16",
            "-D",
            "0x83",
            "-p",
            "13",
            "-r",
        ])
        .unwrap();
        assert_eq!(settings.guid, Guid(0x0002_c903_0000_0001));
        assert_eq!((settings.lmc, settings.sweep_interval), (2, 30));
        assert_eq!((settings.transaction_timeout, settings.transaction_retries), (100, 5));
        assert_eq!((settings.max_wire_smps, settings.log_flags), (16, 0x83));
        assert_eq!((settings.sm_priority, settings.reassign_lids), (13, true));
    }

    #[test]
    fn partition_options_of_opensm_mean_the_same() {
        let settings = settings_of(&["-P", "p.conf", "-Z", "in", "-W"]).unwrap();
        assert_eq!(settings.partition_config_file.as_deref(), Some("p.conf"));
        assert_eq!((settings.enforcement(), settings.allow_both_pkeys), (PartEnforce::In, true));
        let settings = settings_of(&["-Z", "in", "-N", "--prefix_routes_file", "r.conf"]).unwrap();
        assert_eq!(settings.enforcement(), PartEnforce::Off);
        assert_eq!(settings.prefix_routes_file.as_deref(), Some("r.conf"));
        assert_eq!(
            settings_of(&["-Z", "inbound"]).unwrap_err().to_string(),
            "option -Z/--part_enforce: part_enforce takes both, in, out or off, not 'inbound'"
        );
    }

    #[test]
    fn an_option_out_of_range_is_refused() {
        let refusal = |arguments: &[&str]| settings_of(arguments).unwrap_err().to_string();
        assert_eq!(refusal(&["-l", "9"]), "option -l/--lmc: lmc must be 0 to 7, not 9");
        let expected = "option -p/--priority: sm_priority must be 0 to 15, not 16";
        assert_eq!(refusal(&["-p", "16"]), expected);
        let expected = "option -s/--sweep: sweep_interval takes a number, not 'abc'";
        assert_eq!(refusal(&["-s", "abc"]), expected);
    }

    #[test]
    fn an_unknown_routing_engine_is_ignored() {
        let mut settings = Settings::default();
        let options = Options::parse_from(["ibsm", "-R", "ar_updn,dfsssp"]);
        let remarks = options.apply(&mut settings).unwrap();
        assert_eq!(settings.routing_engine.as_deref(), Some("dfsssp"));
        assert!(remarks[0].starts_with("option -R/--routing_engine: "), "{remarks:?}");
        assert!(remarks[0].contains("torus-2QoS") && remarks[0].contains("not 'ar_updn,dfsssp'"));
        let rest = "; dfsssp is used (the closest engine to ar_updn is updn)";
        assert!(remarks[0].ends_with(rest), "{remarks:?}");
        let remarks = Options::parse_from(["ibsm", "-R", "bogus"]).apply(&mut settings).unwrap();
        assert_eq!(settings.routing_engine, None);
        assert!(
            remarks[0].ends_with("; minhop is used, which does not avoid credit loops"),
            "{remarks:?}"
        );
        let settings = settings_of(&["-R", "ftree, updn"]).unwrap();
        assert_eq!(settings.routing_engine.as_deref(), Some("ftree, updn"));
        for none in ["none", "null", "(null)"] {
            assert_eq!(settings_of(&["-R", none]).unwrap().routing_engine, None);
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}

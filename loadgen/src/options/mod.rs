//! The command line. `checked` verifies combinations of options.

mod checked;

pub use self::checked::OptionsError;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use ib_mad::types::PKey;
use sa_proto::trust::local::UserId;

use crate::check::CheckKind;
use crate::values::{duration, number, pkey, rate, share, target};
use crate::workload::{By, PAIRS_MAX};

/// Threads, at most: stock ibsim serves ten clients.
const THREADS_MAX: usize = 64;

const WHERE: &str = "Destination";
const WHAT: &str = "Queries";
const HOW_MUCH: &str = "Load";
const TLS: &str = "TLS";
const REPORT: &str = "Checks and report";

const EXAMPLES: &str = "\
Examples:
  Two responders, ten seconds, 256 queries outstanding, every answer compared with the fabric:
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --target 127.0.0.1:7412

  An open loop of 200,000 queries a second, formed like those of RDMA CM:
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --rate 200000 --by gid-service

  From a host of a simulated fabric to the LID of the SA; print the first 5 paths:
      ibstorm --transport ibsim --node host-7 --sm http://127.0.0.1:7471 --queries 1000 --show 5

  Without a snapshot, with ports from a file of lines such as '12 fe80::2c9:300:0:1 host-a':
      ibstorm --transport ibsim --ports hosts.txt --by lid

  Find the rate at which a responder falls behind; start a job on all ports with 64 peers each:
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --profile ramp
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --profile job-start --set peers=64

  List the built-in profiles; start a profile of your own:
      ibstorm profile list
      ibstorm profile show linux-client > mine.toml

Latency is measured from the time when a query was due, retries included. A closed loop
(--concurrency) sends the next query when an answer arrives. An open loop (--rate) keeps its
schedule, so that a stalled responder adds latency to every query that it delays. Profiles
(--profile) model Linux clients, starting jobs, rebooting hosts, ibacm and srp_daemon, or send
malformed requests.

Exit status: 0 if all answers were correct; 1 if an answer was wrong or an error, or if no answer
arrived; 2 if the storm could not start.";

/// Loads Subnet Administration responders with the requests of clients and checks the answers.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ibstorm",
    version,
    after_long_help = EXAMPLES,
    after_help = "See --help for examples.",
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
)]
pub struct Options {
    /// A command other than running a storm.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// How requests travel.
    #[arg(help_heading = WHERE, long, value_enum, default_value_t = TransportKind::Udp)]
    pub transport: TransportKind,

    /// udp: address or name of a responder; may be repeated. Batches go to all of them in turn,
    /// retries to the next one.
    #[arg(
        help_heading = WHERE,
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        value_parser = target,
    )]
    pub target: Vec<SocketAddr>,

    /// ring: Unix socket of a responder on this host, as in `ibsa --ring PATH`.
    #[arg(help_heading = WHERE, long, value_name = "PATH")]
    pub target_ring: Option<PathBuf>,

    /// udp: send datagrams one by one, as separate hosts would, without segmentation offload.
    #[arg(help_heading = WHERE, long)]
    pub no_trains: bool,

    /// ibsim: base of the server's socket names.
    #[arg(help_heading = WHERE, long, value_name = "NAME", env = "IBSIM_SOCKNAME")]
    pub socket: Option<String>,

    /// ibsim: node to send from [default: the server's first].
    #[arg(help_heading = WHERE, long, value_name = "NODE", env = "SIM_HOST")]
    pub node: Option<String>,

    /// ibsim: LID of the SA [default: MasterSMLID of the node's port].
    #[arg(help_heading = WHERE, long, value_name = "LID")]
    pub sa_lid: Option<u16>,

    /// ibsim: whether to follow redirection by ClassPortInfo or status 0x0002.
    #[arg(
        help_heading = WHERE,
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t = Redirects::Follow,
    )]
    pub redirects: Redirects,

    /// SM that provides the snapshot: the ports to query, and the expected answers. May be
    /// repeated; the first SM with a snapshot is used.
    #[arg(help_heading = WHAT, long, value_name = "URL")]
    pub sm: Vec<String>,

    /// Certificates of the CAs that sign certificates of SMs (https://), in PEM.
    #[arg(help_heading = TLS, long, value_name = "FILE", env = "IBSM_TLS_CA")]
    pub tls_ca: Option<PathBuf>,

    /// Our certificate, in PEM; to receive a snapshot it needs the role of a responder.
    #[arg(help_heading = TLS, long, value_name = "FILE", env = "IBSM_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key, in PEM.
    #[arg(help_heading = TLS, long, value_name = "FILE", env = "IBSM_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Without TLS: the user of this host that ibsm runs as; root and our own user are trusted
    /// always [default: the user ibsm, if there is one].
    #[arg(help_heading = TLS, long, value_name = "USER", env = "IBSM_SM_USER")]
    pub sm_user: Option<UserId>,

    /// Allow connections without TLS to an SM on another host.
    #[arg(help_heading = TLS, long)]
    pub insecure: bool,

    /// How long to wait for a snapshot.
    #[arg(
        help_heading = WHAT,
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = duration,
    )]
    pub wait: Duration,

    /// File of ports to query, in place of a snapshot: one per line, LID, GID or both, then a name.
    /// For udp and ring each port needs a LID, its source address; for ibsim the address of --by.
    #[arg(help_heading = WHAT, long, value_name = "FILE", conflicts_with = "sm")]
    pub ports: Option<PathBuf>,

    /// Behaviour of the clients: a built-in profile (see `ibstorm profile list`) or a file. Options
    /// on the command line override the profile.
    #[arg(help_heading = WHAT, long, value_name = "NAME|FILE")]
    pub profile: Option<String>,

    /// Change a setting of the profile, such as peers=64 or query.by=lid. May be repeated.
    #[arg(help_heading = WHAT, long, value_name = "KEY=VALUE", requires = "profile")]
    pub set: Vec<String>,

    /// How queries identify ports: gid; lid; gid-service, like RDMA CM of Linux; ipoib; acm,
    /// acm-gid, acm-lid, like ibacm; srp, like srp_daemon [default: gid].
    #[arg(help_heading = WHAT, long, value_name = "KIND")]
    pub by: Option<By>,

    /// Service ID of --by gid-service [default: 0x01061b58, TCP port 7000 of RDMA CM].
    #[arg(help_heading = WHAT, long, value_name = "ID", value_parser = number)]
    pub service_id: Option<u64>,

    /// P_Key of queries that have one, and of registrations [default: 0xffff].
    #[arg(help_heading = WHAT, long, value_name = "P_KEY", value_parser = pkey)]
    pub pkey: Option<PKey>,

    /// Number of port pairs to draw; queries repeat them in turn [default: 65536].
    #[arg(help_heading = WHAT, long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=PAIRS_MAX as i64))]
    pub pairs: Option<u32>,

    /// Seed of the random choices; equal seeds choose equal pairs [default: 1].
    #[arg(help_heading = WHAT, long, value_name = "N")]
    pub seed: Option<u64>,

    /// Closed loop: queries outstanding at any time [default: 256; ibsim: 32].
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", conflicts_with = "rate",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub concurrency: Option<u32>,

    /// Open loop: queries a second.
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,

    /// Open loop: random (Poisson) instead of equal intervals between queries.
    #[arg(help_heading = HOW_MUCH, long, requires = "rate")]
    pub poisson: bool,

    /// Stop after this time [default: 10s, unless --queries or a profile is given].
    #[arg(help_heading = HOW_MUCH, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Stop after this number of queries.
    #[arg(
        help_heading = HOW_MUCH,
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    pub queries: Option<u64>,

    /// Threads among which queries are divided; each has its own socket.
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX as i64))]
    pub threads: u32,

    /// Pin each thread to its own core, starting at core N; an error if there are too few cores.
    #[arg(
        help_heading = HOW_MUCH,
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "0",
    )]
    pub pin: Option<u16>,

    /// Time after which a query is sent again. Linux waits a tenth of its caller's timeout
    /// [default: 200ms].
    #[arg(help_heading = HOW_MUCH, long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// Retries per query [default: 10].
    #[arg(help_heading = HOW_MUCH, long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub retries: Option<u32>,

    /// How answers are checked [default: path with --sm, else echo]. The snapshot is taken at the
    /// start; use echo if the fabric changes during the storm.
    #[arg(help_heading = REPORT, long, value_enum, value_name = "LEVEL", num_args = 0..=1,
          default_missing_value = "path")]
    pub check: Option<CheckKind>,

    /// Share of the pairs, 0 to 1, whose paths are computed before the storm for comparison with
    /// the answers; answers for other pairs are checked against the query [default: 1].
    #[arg(help_heading = REPORT, long, value_name = "SHARE", value_parser = share)]
    pub check_sample: Option<f64>,

    /// Print the first N paths.
    #[arg(help_heading = REPORT, long, value_name = "N", default_value_t = 0)]
    pub show: u32,

    /// ibsim: write all packets sent and received to this pcap file, up to 100 MB; one thread only.
    #[arg(help_heading = REPORT, long, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// Write latencies per second and per kind of query to this file, as a HdrHistogram log
    /// (version 2, nanoseconds).
    #[arg(help_heading = REPORT, long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,

    /// Print the report as JSON.
    #[arg(help_heading = REPORT, long)]
    pub json: bool,

    /// Do not print a line per second on standard error.
    #[arg(help_heading = REPORT, long, short, action = ArgAction::SetTrue)]
    pub quiet: bool,
}

/// Transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// UDP to responders started with `ibsa --transport udp`.
    Udp,
    /// Memory shared with a responder on this host, without system calls per packet.
    Ring,
    /// A fabric simulated by ibfabric or ibsim.
    Ibsim,
}

/// How redirection is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Redirects {
    /// Send to the port that the SA names, queried at the start and when that port stops answering.
    Follow,
    /// Send to the SA's own port only, as Linux does.
    Ignore,
}

/// Commands other than a storm.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Show the built-in profiles.
    Profile {
        /// List or show.
        #[command(subcommand)]
        what: ProfileCommand,
    },
}

/// Commands about profiles.
#[derive(Subcommand, Clone, Debug)]
pub enum ProfileCommand {
    /// List the names and purposes of the built-in profiles.
    List,
    /// Print the file of a profile, to start one of your own.
    Show {
        /// Name of the profile.
        name: String,
    },
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::CommandFactory;

    pub(crate) fn parse(line: &str) -> Options {
        Options::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn every_example_of_the_help_text_parses() {
        let lines: Vec<_> =
            EXAMPLES.lines().map(str::trim).filter(|line| line.starts_with("ibstorm ")).collect();
        assert_eq!(lines.len(), 8);
        for line in lines {
            let line = line.split(" >").next().unwrap();
            let options = parse(line);
            assert!(options.command.is_some() || options.checked().is_ok(), "{line}");
        }
    }

    #[test]
    fn the_value_of_check_may_follow_a_space_or_be_absent() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        for (text, check) in [
            ("--check", CheckKind::Path),
            ("--check --json", CheckKind::Path),
            ("--check echo", CheckKind::Echo),
            ("--check=none", CheckKind::None),
        ] {
            assert_eq!(parse(&format!("{base} {text}")).check, Some(check), "{text}");
        }
    }
}

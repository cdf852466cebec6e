//! The command line. Which options go together is in `checked`, what values mean in `value`.

mod checked;
mod value;

pub use self::checked::OptionsError;
pub(crate) use self::value::{duration, number};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use ib_mad::types::PKey;

use self::value::{pkey, rate, share, target};
use crate::workload::{By, PAIRS_MAX};

/// Threads, at most: stock ibsim serves ten clients.
const THREADS_MAX: usize = 64;

const WHERE: &str = "Where requests go";
const WHAT: &str = "What is asked";
const HOW_MUCH: &str = "How much";
const TLS: &str = "How an SM is trusted";
const REPORT: &str = "What is checked and told";

const EXAMPLES: &str = "\
Examples:
  Two responders, ten seconds, 256 queries outstanding, every answer compared with the fabric:
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --target 127.0.0.1:7412

  A schedule of 200,000 queries a second, whatever the answers do, as RDMA CM asks:
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --rate 200000 --by gid-service

  From a host of a simulated fabric, through whoever has the SM's LID; the first paths in words:
      ibstorm --transport ibsim --node host-7 --sm http://127.0.0.1:7471 --queries 1000 --show 5

  Without an SM's snapshot, ports from a file with lines such as '12 fe80::2c9:300:0:1 host-a':
      ibstorm --transport ibsim --ports hosts.txt --by lid

  The rate at which a responder falls behind; a job that starts on all ports with 64 peers each:
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --profile ramp
      ibstorm --sm http://127.0.0.1:7471 --target 127.0.0.1:7411 --profile job-start --set peers=64

  What can be stormed with, and what a profile says:
      ibstorm profile list
      ibstorm profile show linux-client > mine.toml

Latencies count from when a query was due, retries included. A closed loop (--concurrency) sends the
next query when an answer made room; an open loop (--rate) keeps to its schedule, so a responder
that stalls is charged for every query it held up. Profiles (--profile) behave as Linux's clients,
starting jobs, rebooting hosts, ibacm, srp_daemon, or send garbage.

Exit status: 0 if all answers were right; 1 if some were wrong or errors, or none came; 2 if the
storm could not begin.";

/// Storms Subnet Administration responders with what clients ask and checks the answers.
#[derive(Parser, Clone, Debug)]
#[command(name = "ibstorm", version, after_long_help = EXAMPLES, after_help = "See --help for examples.",
          arg_required_else_help = true, args_conflicts_with_subcommands = true)]
pub struct Options {
    /// Instead of a storm.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// How requests travel.
    #[arg(help_heading = WHERE, long, value_enum, default_value_t = TransportKind::Udp)]
    pub transport: TransportKind,

    /// udp: address or name of a responder; may be repeated. Batches go to all of
    /// them in turn, repeated requests to the next one.
    #[arg(help_heading = WHERE, long, value_name = "HOST:PORT", value_delimiter = ',', value_parser = target)]
    pub target: Vec<SocketAddr>,

    /// ring: Unix socket of a responder on this host, as in `ibsa --ring PATH`.
    #[arg(help_heading = WHERE, long, value_name = "PATH")]
    pub target_ring: Option<PathBuf>,

    /// udp: sends datagrams one by one, as separate hosts would, not as trains.
    #[arg(help_heading = WHERE, long)]
    pub no_trains: bool,

    /// ibsim: base of the server's socket names.
    #[arg(help_heading = WHERE, long, value_name = "NAME", env = "IBSIM_SOCKNAME")]
    pub socket: Option<String>,

    /// ibsim: node to ask from; the server's first by default.
    #[arg(help_heading = WHERE, long, value_name = "NODE", env = "SIM_HOST")]
    pub node: Option<String>,

    /// ibsim: LID of the SA; the MasterSMLID of the node's port by default.
    #[arg(help_heading = WHERE, long, value_name = "LID")]
    pub sa_lid: Option<u16>,

    /// ibsim: whether to ask whom the SA says, by ClassPortInfo or status 0x0002.
    #[arg(help_heading = WHERE, long, value_enum, value_name = "WHAT", default_value_t = Redirects::Follow)]
    pub redirects: Redirects,

    /// SM to get a snapshot from: ports to ask about, and what the answers must say. May be
    /// repeated; the first that has one is taken.
    #[arg(help_heading = WHAT, long, value_name = "URL")]
    pub sm: Vec<String>,

    /// Certificates of the CAs that must have signed an https:// SM's, in PEM.
    #[arg(help_heading = TLS, long, value_name = "FILE", env = "IBSM_TLS_CA")]
    pub tls_ca: Option<PathBuf>,

    /// Our certificate, in PEM; snapshots are for those with the role of a responder.
    #[arg(help_heading = TLS, long, value_name = "FILE", env = "IBSM_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key, in PEM.
    #[arg(help_heading = TLS, long, value_name = "FILE", env = "IBSM_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Ask an SM on another host without TLS.
    #[arg(help_heading = TLS, long)]
    pub insecure: bool,

    /// How long to wait for a snapshot.
    #[arg(help_heading = WHAT, long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub wait: Duration,

    /// File of ports to ask about, without a snapshot: a line each, LID, GID or both, then a name.
    /// Over udp and a ring each needs its LID, by which it asks; over ibsim what --by names will do.
    #[arg(help_heading = WHAT, long, value_name = "FILE", conflicts_with = "sm")]
    pub ports: Option<PathBuf>,

    /// How clients behave: a profile that comes with ibstorm (see `ibstorm profile list`), or a
    /// file of one's own. Other options take precedence over what it says.
    #[arg(help_heading = WHAT, long, value_name = "NAME|FILE")]
    pub profile: Option<String>,

    /// Changes a setting of the profile, such as peers=64 or query.by=lid. May be repeated.
    #[arg(help_heading = WHAT, long, value_name = "KEY=VALUE", requires = "profile")]
    pub set: Vec<String>,

    /// How queries name the ports: gid; lid; gid-service, as Linux's RDMA CM does; ipoib; acm,
    /// acm-gid, acm-lid, as ibacm; srp, as srp_daemon [default: gid].
    #[arg(help_heading = WHAT, long, value_name = "KIND")]
    pub by: Option<By>,

    /// Service ID of --by gid-service [default: 0x01061b58, TCP port 7000 of RDMA CM].
    #[arg(help_heading = WHAT, long, value_name = "ID", value_parser = number)]
    pub service_id: Option<u64>,

    /// P_Key of queries that have one, and of registrations [default: 0xffff].
    #[arg(help_heading = WHAT, long, value_name = "P_KEY", value_parser = pkey)]
    pub pkey: Option<PKey>,

    /// Pairs of ports to draw; they are asked for over and over [default: 65536].
    #[arg(help_heading = WHAT, long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=PAIRS_MAX as i64))]
    pub pairs: Option<u32>,

    /// What chance is drawn by; equal seeds draw equal pairs [default: 1].
    #[arg(help_heading = WHAT, long, value_name = "N")]
    pub seed: Option<u64>,

    /// Closed loop: queries outstanding at any time [default: 256; ibsim: 32].
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", conflicts_with = "rate",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub concurrency: Option<u32>,

    /// Open loop: queries a second.
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", value_parser = rate)]
    pub rate: Option<f64>,

    /// Open loop: queries come at random, not all at the same distance.
    #[arg(help_heading = HOW_MUCH, long, requires = "rate")]
    pub poisson: bool,

    /// Ends after this time; 10 s unless --queries or a profile is given.
    #[arg(help_heading = HOW_MUCH, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,

    /// Ends after so many queries.
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub queries: Option<u64>,

    /// Threads, each with a socket of its own, among which queries are divided.
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX as i64))]
    pub threads: u32,

    /// Keeps each thread on a core of its own, from core N on; refused if there are not so many.
    #[arg(help_heading = HOW_MUCH, long, value_name = "N", num_args = 0..=1, default_missing_value = "0")]
    pub pin: Option<u16>,

    /// How long to wait before asking again. Linux waits a tenth of its caller's time-out
    /// [default: 200ms].
    #[arg(help_heading = HOW_MUCH, long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// How often to ask again [default: 10].
    #[arg(help_heading = HOW_MUCH, long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub retries: Option<u32>,

    /// How answers are checked [default: path with --sm, else echo]. The snapshot is that of the
    /// start: where the fabric is to change during the storm, check by echo.
    #[arg(help_heading = REPORT, long, value_enum, value_name = "LEVEL", num_args = 0..=1,
          default_missing_value = "path")]
    pub check: Option<CheckKind>,

    /// Share of the pairs, 0 to 1, whose paths are walked before the storm so that answers can be
    /// compared with them; the others are checked against the query [default: 1].
    #[arg(help_heading = REPORT, long, value_name = "SHARE", value_parser = share)]
    pub check_sample: Option<f64>,

    /// Tells the first N paths in words.
    #[arg(help_heading = REPORT, long, value_name = "N", default_value_t = 0)]
    pub show: u32,

    /// ibsim: writes what was sent and received to this pcap file, up to 100 MB; one thread only.
    #[arg(help_heading = REPORT, long, value_name = "FILE")]
    pub capture: Option<PathBuf>,

    /// Writes latencies, second by second and by kind of query, to this file: a HdrHistogram log
    /// of version 2, nanoseconds.
    #[arg(help_heading = REPORT, long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,

    /// Reports as JSON.
    #[arg(help_heading = REPORT, long)]
    pub json: bool,

    /// No line a second on standard error.
    #[arg(help_heading = REPORT, long, short, action = ArgAction::SetTrue)]
    pub quiet: bool,
}

/// Transports that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// Straight to responders that listen with `ibsa --transport udp`.
    Udp,
    /// Through memory shared with a responder on this host: no kernel in the way.
    Ring,
    /// Over a simulated fabric, of ibfabric or ibsim.
    Ibsim,
}

/// What is done about redirection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Redirects {
    /// Ask whom the SA says. It is asked who that is at the start, and when it falls silent.
    Follow,
    /// Ask the SA's own port only, as Linux does.
    Ignore,
}

/// What is done instead of a storm.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Shows the profiles that come with ibstorm.
    Profile {
        /// Which of them.
        #[command(subcommand)]
        what: ProfileCommand,
    },
}

/// What is shown of profiles.
#[derive(Subcommand, Clone, Debug)]
pub enum ProfileCommand {
    /// Their names and what they are for.
    List,
    /// The file of one, to begin one's own with.
    Show {
        /// Its name.
        name: String,
    },
}

/// Levels of checking that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// Only that their status is good.
    None,
    /// That they are about what was asked for.
    Echo,
    /// That they are what the snapshot's routes carry.
    Path,
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
    fn a_level_of_checking_may_stand_after_a_space_or_not_at_all() {
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

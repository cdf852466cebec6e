//! The command line.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use ib_mad::types::PKey;
use sa_proto::trust::{ClientTrust, TlsFiles, TrustError};

use crate::check::Level;
use crate::plan::{Plan, PlanError};
use crate::profile::{
    ClosedTable, Id, Named, OpenTable, Profile, ProfileError, Rate, Share, Time, Whole,
};
use crate::scenario::pace::Arrivals;
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

    /// Keeps each thread on a core of its own, from core N on.
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

/// Options that do not go together.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// A ring without its socket, or the reverse.
    #[error("--transport ring and --target-ring PATH, a responder's --ring PATH, go together")]
    Ring,
    /// udp without an address.
    #[error("--transport udp needs the address of a responder: --target HOST:PORT")]
    NoTarget,
    /// Addresses without udp.
    #[error("--target is for --transport udp; over ibsim requests go to the SA's LID")]
    TargetOverFabric,
    /// Addresses that one socket cannot reach.
    #[error("--target: IPv4 and IPv6 addresses do not mix in one storm")]
    MixedTargets,
    /// A capture of what is no fabric, or of several sockets.
    #[error("--capture is for --transport ibsim with one thread")]
    Capture,
    /// Nothing to ask about.
    #[error(
        "which ports to ask about? give --sm URL, to take them from an SM's snapshot, or --ports FILE"
    )]
    NoPorts,
    /// Nothing to compare paths with.
    #[error("--check=path compares answers with a snapshot: give --sm URL")]
    NoSnapshot,
    /// Registrations for ports that one is not.
    #[error("{0} has each port register for itself: ask responders directly, with --transport udp")]
    NotThatPort(&'static str),
    /// An option that the model has no use for.
    #[error("{0} is for {1}, not for {2}")]
    NotFor(&'static str, &'static str, &'static str),
    /// No such profile, or a wrong one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A profile that contradicts itself.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Options {
    /// Why SMs are trusted.
    pub fn trust(&self) -> Result<ClientTrust, TrustError> {
        let files = TlsFiles::of(
            self.tls_ca.as_deref(),
            self.tls_cert.as_deref(),
            self.tls_key.as_deref(),
        )?;
        Ok(ClientTrust::new(files, self.insecure))
    }

    /// Checks what clap cannot, and makes a plan of it.
    pub fn checked(self) -> Result<(Self, Plan), OptionsError> {
        match (self.transport, self.target.is_empty()) {
            (TransportKind::Udp, true) => return Err(OptionsError::NoTarget),
            (TransportKind::Ibsim | TransportKind::Ring, false) => {
                return Err(OptionsError::TargetOverFabric);
            }
            _ => {}
        }
        if (self.transport == TransportKind::Ring) != self.target_ring.is_some() {
            return Err(OptionsError::Ring);
        }
        if self.target.windows(2).any(|pair| pair[0].is_ipv4() != pair[1].is_ipv4()) {
            return Err(OptionsError::MixedTargets);
        }
        if self.capture.is_some() && (self.threads > 1 || self.transport != TransportKind::Ibsim) {
            return Err(OptionsError::Capture);
        }
        if self.sm.is_empty() && self.ports.is_none() {
            return Err(OptionsError::NoPorts);
        }
        let plan = self.plan()?;
        if plan.check == Some(CheckKind::Path) && self.sm.is_empty() {
            return Err(OptionsError::NoSnapshot);
        }
        if plan.registers() && self.transport == TransportKind::Ibsim {
            return Err(OptionsError::NotThatPort(plan.name));
        }
        Ok((self, plan))
    }

    /// What the profile says, if there is one, and the other options in its place.
    fn plan(&self) -> Result<Plan, OptionsError> {
        let mut profile = match &self.profile {
            Some(name) => Profile::load(name, &self.set)?,
            None => Profile::default(),
        };
        let model = profile.models().into_iter().find(|(_, is_there)| *is_there);
        let model = model.map(|(name, _)| name);
        let named = self.profile.is_some();
        if let Some(rate) = self.rate.map(Rate) {
            let arrivals = self.poisson.then_some(Arrivals::Poisson);
            match (&mut profile.open, &mut profile.linux_client, &mut profile.malformed) {
                (Some(open), ..) => {
                    open.rate = Some(rate);
                    open.arrivals = arrivals.or(open.arrivals);
                }
                (_, Some(clients), _) => {
                    clients.rate = Some(rate);
                    clients.arrivals = arrivals.or(clients.arrivals);
                }
                (.., Some(flood)) => {
                    flood.rate = Some(rate);
                    flood.arrivals = arrivals.or(flood.arrivals);
                }
                (open, ..) if !named => *open = Some(OpenTable { rate: Some(rate), arrivals }),
                _ => {
                    let models = "open, linux-client and malformed";
                    return Err(OptionsError::NotFor("--rate", models, model.unwrap_or_default()));
                }
            }
        } else if !named {
            profile.closed = Some(ClosedTable::default());
        }
        if let Some(concurrency) = self.concurrency {
            let Some(closed) = &mut profile.closed else {
                let model = model.unwrap_or_default();
                return Err(OptionsError::NotFor("--concurrency", "closed", model));
            };
            closed.concurrency = Some(Whole(concurrency.into()));
        }
        let query = &mut profile.query;
        query.by = self.by.map(Named).or(query.by);
        query.service_id = self.service_id.map(Id).or(query.service_id);
        query.pkey = self.pkey.map(|pkey| Id(pkey.0.into())).or(query.pkey);
        query.pairs = self.pairs.map(|pairs| Whole(pairs.into())).or(query.pairs);
        let retry = &mut profile.retry;
        retry.timeout = self.timeout.map(Time).or(retry.timeout);
        retry.retries = self.retries.map(|retries| Whole(retries.into())).or(retry.retries);
        profile.seed = self.seed.or(profile.seed);
        profile.check = self.check.or(profile.check);
        profile.check_sample = self.check_sample.map(Share).or(profile.check_sample);
        if self.duration.is_some() || self.queries.is_some() {
            profile.duration = self.duration.map(Time);
            profile.queries = self.queries.map(Whole);
        }
        let concurrency = match self.transport {
            TransportKind::Udp | TransportKind::Ring => 256,
            TransportKind::Ibsim => 32,
        };
        Ok(Plan::new(&profile, concurrency)?)
    }

    /// How far answers are checked.
    pub fn level(&self, plan: &Plan) -> Level {
        match plan.check {
            Some(CheckKind::None) => Level::Status,
            Some(CheckKind::Echo) => Level::Echo,
            Some(CheckKind::Path) => Level::Path,
            None if self.sm.is_empty() => Level::Echo,
            None => Level::Path,
        }
    }
}

/// An address such as 192.0.2.1:7411 or localhost:7411. Of a name's addresses an IPv4 one is taken,
/// if there is one: responders listen there unless told otherwise.
fn target(text: &str) -> Result<SocketAddr, String> {
    let found: Vec<SocketAddr> =
        text.to_socket_addrs().map_err(|error| error.to_string())?.collect();
    let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
    best.copied().ok_or_else(|| "the name has no address".to_owned())
}

/// A time such as 200ms, 10s, 2m or 1.5.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    digits
        .parse::<f64>()
        .ok()
        .and_then(|value| Duration::try_from_secs_f64(value * seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "a time is a number with us, ms, s, m or h, such as 200ms".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate| (1e-3..=1e9).contains(rate))
        .ok_or_else(|| "a rate is a number up to 1e9, queries a second".to_owned())
}

pub(crate) fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a number, hexadecimal with 0x".to_owned())
}

fn pkey(text: &str) -> Result<PKey, String> {
    let value = number(text)?;
    u16::try_from(value).map(PKey).ok().filter(|pkey| pkey.is_valid()).ok_or_else(|| {
        "a P_Key is 16 bits, such as 0xffff, and 0x0000 and 0x8000 are none".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Model;
    use clap::CommandFactory;

    fn parse(line: &str) -> Options {
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

    fn plan(line: &str) -> Plan {
        parse(line).checked().unwrap_or_else(|error| panic!("{line}: {error}")).1
    }

    #[test]
    fn a_storm_ends_after_ten_seconds_unless_told_otherwise() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        assert_eq!(plan(base).duration, Some(Duration::from_secs(10)));
        assert_eq!(plan(&format!("{base} --queries 5")).duration, None);
        let both = plan(&format!("{base} --queries 5 --duration 90s"));
        assert_eq!((both.duration, both.queries), (Some(Duration::from_secs(90)), Some(5)));
        let short = plan(&format!("{base} --profile linux-client --duration 2s"));
        assert_eq!(short.duration, Some(Duration::from_secs(2)));
    }

    #[test]
    fn options_take_precedence_over_the_profile() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        let line = format!("{base} --profile linux-client --rate 5 --by lid --seed 9 --timeout 1s");
        let plan = plan(&line);
        let Model::LinuxClient { rate: Some(rate), window: 16, .. } = plan.model else { panic!() };
        assert_eq!((rate, plan.workload.by, plan.workload.seed), (5.0, By::Lid, 9));
        assert_eq!(plan.patience.timeout, Duration::from_secs(1));
        assert_eq!(plan.patience.retries, 1, "two tries in the deadline of two seconds");
    }

    #[test]
    fn loads_without_a_profile_are_loops() {
        let base = "ibstorm --target 127.0.0.1:1 --sm http://x";
        assert!(matches!(plan(base).model, Model::Closed(256)));
        let fabric = plan("ibstorm --transport ibsim --sm http://x");
        assert!(matches!(fabric.model, Model::Closed(32)));
        let open = plan(&format!("{base} --rate 7 --poisson"));
        assert!(matches!(open.model, Model::Open(rate, Arrivals::Poisson) if rate == 7.0));
    }

    #[test]
    fn times_need_units_that_exist() {
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "ms", "5 parsecs", "-1s", "0s", "nan", "1e300h"] {
            assert!(duration(text).is_err(), "{text}");
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

    #[test]
    fn targets_may_have_names() {
        assert_eq!(target("127.0.0.1:7411"), Ok("127.0.0.1:7411".parse().unwrap()));
        assert!(target("localhost:7411").unwrap().ip().is_loopback());
        assert!(target("localhost").is_err() && target("127.0.0.1").is_err());
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        use OptionsError as Error;
        macro_rules! refused {
            ($line:expr, $error:pat) => {
                let error = parse($line).checked().err();
                assert!(matches!(error, Some($error)), "{}: {error:?}", $line);
            };
        }
        refused!("ibstorm --sm http://x", Error::NoTarget);
        let line = "ibstorm --transport ibsim --target 127.0.0.1:1 --sm http://x";
        refused!(line, Error::TargetOverFabric);
        refused!("ibstorm --target 127.0.0.1:1 --ports x --check", Error::NoSnapshot);
        refused!("ibstorm --target 127.0.0.1:1", Error::NoPorts);
        refused!("ibstorm --target 127.0.0.1:1 --ports x --capture y", Error::Capture);
        refused!("ibstorm --target 127.0.0.1:1,[::1]:1 --ports x", Error::MixedTargets);
        let line = "ibstorm --transport ibsim --ports x --profile reboot";
        refused!(line, Error::NotThatPort("reboot"));
        let line = "ibstorm --target 127.0.0.1:1 --ports x --profile job-start --rate 5";
        refused!(line, Error::NotFor("--rate", _, "job-start"));
        let line = "ibstorm --target 127.0.0.1:1 --ports x --profile job-start --concurrency 5";
        refused!(line, Error::NotFor("--concurrency", "closed", "job-start"));
        refused!("ibstorm --target 127.0.0.1:1 --ports x --profile nix", Error::Profile(_));
    }
}

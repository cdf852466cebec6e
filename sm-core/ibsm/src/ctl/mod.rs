//! `ibsmctl`: sends queries and commands to a running `ibsm`, and displays its answers. One file
//! per command; [`service_id`] and [`mgid`] compute locally.

pub mod baseline;
pub mod congestion;
mod dump;
mod events;
pub mod explain;
mod inspect;
pub mod mcast;
pub mod mgid;
mod order;
pub mod partition;
pub mod password;
pub mod perf;
mod port;
mod problems;
mod quarantined;
pub mod routing;
pub mod service_id;
pub mod services;
mod sm;
pub mod status;
pub mod subscriptions;
mod time;
pub mod top;
mod topology;
pub mod vfabric;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ib_mad::types::Guid;
use sa_proto::trust::TrustError;
use sm::Sm;

use crate::cli::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  ibsmctl status                               State of the subnet, from ibsm on this host.
  ibsmctl events --since 12:00                 What happened since noon.
  ibsmctl top                                  Query rates, latency, busiest requesters.
  ibsmctl explain 'node00002 HCA-1' node00012  Explain a path; node names may be abbreviated.
  ibsmctl --sm https://sm1:7471 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key mcast
                                               List multicast groups, from another host.";

/// Shows and controls a running subnet manager (ibsm).
#[derive(Debug, Parser)]
#[command(name = "ibsmctl", version = daemon::VERSION, max_term_width = 100, after_help = EXAMPLES)]
pub struct Options {
    /// Address of ibsm (its --publish).
    #[arg(
        long,
        value_name = "URL",
        global = true,
        env = "IBSM_SM",
        default_value = "http://127.0.0.1:7471"
    )]
    pub sm: String,
    /// Certificates, for https://.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Connect to an SM on another host without TLS.
    #[arg(long, global = true, help_heading = "TLS")]
    pub insecure: bool,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the state of the subnet and of the responders, with their counters.
    Status(status::Options),
    /// List what is broken: since when, how often, and what to do.
    Problems(problems::Options),
    /// Print what happened: sweeps, nodes and links that came and went, traps, problems.
    Events(events::Options),
    /// Show what is kept of the past.
    #[command(subcommand)]
    History(events::HistoryCommand),
    /// Print the topology as other programs read it, without a sweep.
    Topology(topology::Options),
    /// Show how the fabric differs from the baseline, from a file of an earlier or expected one, or
    /// from an earlier time, or two files or times from each other: missing and extra nodes and
    /// links, moved cables, changed rates.
    Diff(topology::DiffOptions),
    /// Take, show or clear the baseline: the topology from which differences are problems.
    Baseline(baseline::Options),
    /// Show activity every second: query rates by type and responder, latency, drops, lag, busiest
    /// requesters.
    Top(top::Options),
    /// Explain the path between two ports: hops, narrowest link, the QoS rule that matched and
    /// those that did not, and the PathRecord sent to clients.
    Explain(explain::Options),
    /// Write the paths between ports for ibacm.
    Dump(dump::Options),
    /// List virtual fabrics, or the one of an application, Service ID or MGID, with P_Key, SL, MTU
    /// and rate.
    Vfabric(vfabric::Options),
    /// List partitions, and make and change those beside partitions.conf.
    Partition(partition::Options),
    /// List multicast groups with their members.
    Mcast(mcast::Options),
    /// List services that ports registered.
    Services(services::Options),
    /// List event subscriptions.
    Subscriptions(subscriptions::Options),
    /// List counters of ports: traffic and errors, or set their totals to 0. Requires perfmgr TRUE
    /// in the settings of ibsm.
    Perf(perf::Options),
    /// Show how congestion control is set up, which ports mark packets, and between which nodes.
    /// Requires congestion_control TRUE in the settings of ibsm.
    Congestion(congestion::Options),
    /// Measure the routes in force.
    #[command(subcommand)]
    Routing(routing::Command),
    /// List nodes: type, GUID, LIDs, and how many of their ports are active.
    Nodes(inspect::ListOptions),
    /// List ports: LID, state, width, speed, MTU, and the port at the other end.
    Ports(inspect::ListOptions),
    /// List links: both ends, state, width and speed.
    Links(inspect::ListOptions),
    /// List virtual ports (SR-IOV) that are not Down: GUID, LID, state and P_Keys.
    Vports(inspect::ListOptions),
    /// Show the port that has a LID, and the health of its node's ports.
    #[command(name = "querylid")]
    QueryLid(inspect::LidOptions),
    /// Count ports by state, width and speed, and list those that may have a problem.
    #[command(name = "portstatus")]
    PortStatus(inspect::PortStatusOptions),
    /// List switches that use their links to others unevenly, by LIDs of hosts.
    #[command(name = "switchbalance")]
    SwitchBalance(inspect::SwitchBalanceOptions),
    /// List ports with several LIDs that a switch forwards unevenly.
    #[command(name = "lidbalance")]
    LidBalance(inspect::LidBalanceOptions),
    /// Print the settings in force, keys included, in opensm.conf's syntax.
    DumpConf {
        /// Print JSON: keys and values as text.
        #[arg(short, long)]
        json: bool,
    },
    /// Start a heavy sweep, as a HUP does, without reading the settings again; or a light one.
    Sweep(order::SweepOptions),
    /// Show whether sweeps are permitted, or suspend or resume them; takeovers and a standby's
    /// polls go on.
    Sweeping {
        /// Whether sweeps are permitted.
        state: Option<order::Sweeping>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Show the priority among subnet managers, or set it until the settings are read again.
    Priority {
        /// 0 to 15.
        priority: Option<u32>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Give a host that was moved the partitions and registrations of its GUID now, without the
    /// wait of ten minutes.
    Admit {
        /// GUIDs of ports, or of nodes for all their ports; ibsmctl problems lists those that wait.
        #[arg(required = true)]
        guids: Vec<Guid>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Show the log bits, or set them until the settings are read again.
    LogLevel {
        /// The sum of log bits, such as 0x83.
        level: Option<String>,
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Recompute all routes, keeping none of those in force. Forwarding tables of many switches may
    /// change.
    Reroute(order::WaitOptions),
    /// Read the settings and all policy files again, as a HUP does.
    Reload(order::WaitOptions),
    /// Print a line for the file of ibsm --api-users; reads the password from standard input.
    Password(password::Options),
    /// Compose the Service ID of a protocol and port, or decode one.
    ServiceId(service_id::Options),
    /// Compose the MGID of an IP multicast group, or decode one.
    Mgid(mgid::Options),
}

/// Reports why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CtlError {
    /// The address or the certificates are invalid.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// No ibsm answers.
    #[error(
        "no ibsm answers at {address}: {reason}; is it running, with --publish at this address?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// The reason, if known.
        reason: String,
    },
    /// ibsm refused the command.
    #[error("ibsm at {address} refused: {message}")]
    Refused {
        /// The address.
        address: String,
        /// Its error message.
        message: String,
    },
    /// An invalid argument.
    #[error("{what} takes {expected}, not '{got}'")]
    Argument {
        /// The argument's name.
        what: &'static str,
        /// The expected form.
        expected: &'static str,
        /// The value given.
        got: String,
    },
    /// More members than one order can have.
    #[error(
        "--replace takes at most {max} GUIDs, not {got}: it is one order, so that no member is \
         missing meanwhile; use add and remove"
    )]
    TooManyMembers {
        /// The limit.
        max: usize,
        /// Those that were given.
        got: usize,
    },
    /// The response is of another release.
    #[error("cannot decode the response ({0}); ibsm, ibsa and ibsmctl must be of the same release")]
    Unread(String),
    /// A file of a topology cannot be read.
    #[error("{0}")]
    Net(Box<ib_mad::netlist::NetError>),
    /// A node was not there at a time.
    #[error("{0}")]
    NotThen(String),
    /// Nothing to compare with.
    #[error("there is no baseline: take one with ibsmctl baseline take, or name a file or a time")]
    NoBaseline,
    /// No virtual fabric matches.
    #[error("no virtual fabric {0}")]
    NoVirtualFabric(String),
    /// No partition has the P_Key.
    #[error("no partition {0}")]
    NoPartition(String),
    /// No group has the MGID.
    #[error("no multicast group {0}")]
    NoGroup(ib_mad::types::Gid),
    /// What was to be awaited does not happen while sweeps are suspended.
    #[error(
        "sweeps are off, so there is nothing to wait for: ibsmctl sweeping on resumes them; \
         without --wait, it is done then"
    )]
    SweepsOff,
    /// What was to be awaited happens at the master only.
    #[error("this SM is {0}, and only the master sweeps: there is nothing to wait for")]
    NoSweep(String),
    /// The sweep has not ended in time.
    #[error("the sweep did not end within {0} s; see ibsmctl events --follow")]
    Late(u64),
    /// The operating system reports an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Runs `ibsmctl`.
pub fn main(options: Options) -> ExitCode {
    match run(&options) {
        Ok(text) => {
            // A pager that was closed early is not an error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "ibsmctl: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<String, CtlError> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let trust = options.tls.client(options.insecure)?;
    let sm = &Sm::new(&options.sm, trust);
    match &options.command {
        Command::Status(what) => runtime()?.block_on(status::run(sm, what)),
        Command::Problems(what) => runtime()?.block_on(problems::run(sm, what)),
        Command::Events(what) => runtime()?.block_on(events::run(sm, what)),
        Command::History(what) => runtime()?.block_on(events::history(sm, what)),
        Command::Topology(what) => runtime()?.block_on(topology::run(sm, what)),
        Command::Diff(what) => runtime()?.block_on(topology::diff(sm, what)),
        Command::Baseline(what) => runtime()?.block_on(baseline::run(sm, what)),
        Command::Top(what) => runtime()?.block_on(top::run(sm, what)),
        Command::Explain(what) => runtime()?.block_on(explain::run(sm, what)),
        Command::Dump(what) => runtime()?.block_on(dump::run(sm, what)),
        Command::Vfabric(what) => runtime()?.block_on(vfabric::run(sm, what)),
        Command::Partition(what) => runtime()?.block_on(partition::run(sm, what)),
        Command::Mcast(what) => runtime()?.block_on(mcast::run(sm, what)),
        Command::Services(what) => runtime()?.block_on(services::run(sm, what)),
        Command::Subscriptions(what) => runtime()?.block_on(subscriptions::run(sm, what)),
        Command::Congestion(what) => runtime()?.block_on(congestion::run(sm, what)),
        Command::Perf(what) => runtime()?.block_on(perf::run(sm, what)),
        Command::Routing(what) => runtime()?.block_on(routing::run(sm, what)),
        Command::Nodes(what) => runtime()?.block_on(inspect::nodes(sm, what)),
        Command::Ports(what) => runtime()?.block_on(inspect::ports(sm, what)),
        Command::Links(what) => runtime()?.block_on(inspect::links(sm, what)),
        Command::Vports(what) => runtime()?.block_on(inspect::virtual_ports(sm, what)),
        Command::QueryLid(what) => runtime()?.block_on(inspect::query_lid(sm, what)),
        Command::PortStatus(what) => runtime()?.block_on(inspect::port_status(sm, what)),
        Command::SwitchBalance(what) => runtime()?.block_on(inspect::switch_balance(sm, what)),
        Command::LidBalance(what) => runtime()?.block_on(inspect::lid_balance(sm, what)),
        Command::DumpConf { json } => runtime()?.block_on(inspect::dump_conf(sm, *json)),
        Command::Sweep(what) => runtime()?.block_on(order::sweep(sm, what)),
        Command::Sweeping { state, json } => {
            runtime()?.block_on(order::sweeping(sm, *state, *json))
        }
        Command::Admit { guids, json } => runtime()?.block_on(order::admit(sm, guids, *json)),
        Command::Priority { priority, json } => {
            runtime()?.block_on(order::priority(sm, *priority, *json))
        }
        Command::LogLevel { level, json } => {
            runtime()?.block_on(order::log_level(sm, level.as_deref(), *json))
        }
        Command::Reroute(waiting) => runtime()?.block_on(order::reroute(sm, waiting)),
        Command::Reload(waiting) => runtime()?.block_on(order::reload(sm, waiting)),
        Command::Password(what) => password::run(what),
        Command::ServiceId(what) => service_id::run(what),
        Command::Mgid(what) => mgid::run(what),
    }
}

/// Renders `value` as JSON.
fn to_json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("the value serializes to JSON");
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}

//! `ibsmctl`: sends queries and commands to a running `ibsm`, and displays its answers. One file
//! per command; [`service_id`] and [`mgid`] compute locally.

pub mod explain;
pub mod mcast;
pub mod mgid;
mod order;
mod port;
pub mod service_id;
pub mod services;
mod sm;
pub mod status;
pub mod subscriptions;
pub mod top;
pub mod vfabric;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sa_proto::trust::{ClientTrust, TrustError};
use sm::Sm;

use crate::cli::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  ibsmctl status                               State of the subnet, from ibsm on this host.
  ibsmctl top                                  Query rates, latency, busiest requesters.
  ibsmctl explain 'node00002 HCA-1' node00012  Explain a path; node names may be abbreviated.
  ibsmctl --sm https://sm1:7471 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key mcast
                                               List multicast groups, from another host.";

/// Shows and controls a running subnet manager (ibsm).
#[derive(Debug, Parser)]
#[command(name = "ibsmctl", version, max_term_width = 100, after_help = EXAMPLES)]
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
    /// Show activity every second: query rates by type and responder, latency, drops, lag, busiest
    /// requesters.
    Top(top::Options),
    /// Explain the path between two ports: hops, narrowest link, the QoS rule that matched and
    /// those that did not, and the PathRecord sent to clients.
    Explain(explain::Options),
    /// List virtual fabrics, or the one of an application, Service ID or MGID, with P_Key, SL, MTU
    /// and rate.
    Vfabric(vfabric::Options),
    /// List multicast groups with their members.
    Mcast(mcast::Options),
    /// List services that ports registered.
    Services(services::Options),
    /// List event subscriptions.
    Subscriptions(subscriptions::Options),
    /// Start a heavy sweep, as a HUP does, without reading the settings again.
    Sweep,
    /// Recompute all routes, keeping none of those in force. Forwarding tables of many switches may
    /// change.
    Reroute,
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
    /// The response is of another release.
    #[error("cannot decode the response ({0}); ibsm, ibsa and ibsmctl must be of the same release")]
    Unread(String),
    /// No virtual fabric matches.
    #[error("no virtual fabric {0}")]
    NoVirtualFabric(String),
    /// No group has the MGID.
    #[error("no multicast group {0}")]
    NoGroup(ib_mad::types::Gid),
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
    let trust = ClientTrust::new(options.tls.files()?, options.insecure);
    let sm = &Sm::new(&options.sm, trust);
    match &options.command {
        Command::Status(what) => runtime()?.block_on(status::run(sm, what)),
        Command::Top(what) => runtime()?.block_on(top::run(sm, what)),
        Command::Explain(what) => runtime()?.block_on(explain::run(sm, what)),
        Command::Vfabric(what) => runtime()?.block_on(vfabric::run(sm, what)),
        Command::Mcast(what) => runtime()?.block_on(mcast::run(sm, what)),
        Command::Services(what) => runtime()?.block_on(services::run(sm, what)),
        Command::Subscriptions(what) => runtime()?.block_on(subscriptions::run(sm, what)),
        Command::Sweep => runtime()?.block_on(order::sweep(sm)),
        Command::Reroute => runtime()?.block_on(order::reroute(sm)),
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

//! `ibsmctl`: what an operator asks a running `ibsm`, and how its answers are shown. One file a
//! command; [`service_id`] and [`mgid`] compute and ask nobody.

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

use crate::config::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  ibsmctl status                               the subnet that ibsm on this host manages
  ibsmctl top                                  who asks what, and how long answers take
  ibsmctl explain 'node00002 HCA-1' node00012  why a path is as it is
  ibsmctl --sm https://sm1:7471 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key mcast
                                               multicast groups, from another host";

/// Asks a running subnet manager.
#[derive(Debug, Parser)]
#[command(name = "ibsmctl", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Options {
    /// Where ibsm publishes (its --publish).
    #[arg(
        long,
        value_name = "URL",
        global = true,
        env = "IBSM_SM",
        default_value = "http://127.0.0.1:7471"
    )]
    pub sm: String,
    /// Our certificates, for https://.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Ask an SM on another host without TLS.
    #[arg(long, global = true, help_heading = "TLS")]
    pub insecure: bool,
    /// What to ask.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// State of the subnet, of the responders, and counters of both.
    Status(status::Options),
    /// What is going on, second by second: rates by type and responder, latency, drops, lag, who
    /// asks most.
    Top(top::Options),
    /// Why the path between two ports is as it is: hops, narrowest link, the rule that matched and
    /// those that did not, the record as it is sent.
    Explain(explain::Options),
    /// Virtual fabrics, or the one for an application, a Service ID or an MGID: its P_Key, SL, MTU
    /// and rate.
    Vfabric(vfabric::Options),
    /// Multicast groups with their members.
    Mcast(mcast::Options),
    /// Services that ports advertise.
    Services(services::Options),
    /// Subscriptions to events.
    Subscriptions(subscriptions::Options),
    /// Have the master sweep the whole fabric, as a HUP does, without reading settings again.
    Sweep,
    /// Have the master make all routes anew, keeping none of those in force. Tables of many switches
    /// may change.
    Reroute,
    /// Compose the Service ID of a protocol and port, or tell what one stands for.
    ServiceId(service_id::Options),
    /// Compose the MGID of an IP multicast group, or tell what one stands for.
    Mgid(mgid::Options),
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CtlError {
    /// The address, or the certificates.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// Nobody answers.
    #[error(
        "no ibsm answers at {address}: {reason}; is it running, with --publish at this address?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// What went wrong, as far as it is known.
        reason: String,
    },
    /// It refused.
    #[error("ibsm at {address} refused: {message}")]
    Refused {
        /// The address.
        address: String,
        /// Its words.
        message: String,
    },
    /// An argument that means nothing.
    #[error("{what} takes {expected}, not '{got}'")]
    Argument {
        /// Which.
        what: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What stood there.
        got: String,
    },
    /// An answer of another release.
    #[error("the answer cannot be read ({0}); are ibsm, ibsa and ibsmctl of one release?")]
    Unread(String),
    /// Nothing is as was asked.
    #[error("no virtual fabric {0}")]
    NoVirtualFabric(String),
    /// No group has the MGID.
    #[error("no multicast group {0}")]
    NoGroup(ib_mad::types::Gid),
    /// The system.
    #[error("system: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs `ibsmctl`.
pub fn main(options: Options) -> ExitCode {
    match run(&options) {
        Ok(text) => {
            // A pager that was closed has seen enough.
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

/// `value` as JSON, for programs.
fn to_json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("text and numbers can be written");
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

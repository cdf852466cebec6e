//! `ibsmctl`: what an operator asks a running `ibsm`, and how its answers are shown. One file a
//! command; [`service_id`] and [`mgid`] compute and ask nobody.

pub mod mgid;
pub mod service_id;
pub mod status;
pub mod vfabric;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use sa_proto::proto::admin::admin_client::AdminClient;
use tonic::transport::{Channel, Endpoint};

/// Time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks a running subnet manager.
#[derive(Debug, Parser)]
#[command(name = "ibsmctl", version, max_term_width = 100)]
pub struct Options {
    /// Where ibsm publishes (its --publish).
    #[arg(long, value_name = "URL", global = true, default_value = "http://127.0.0.1:7471")]
    pub sm: String,
    /// What to ask.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// State of the subnet, of the responders, and counters of both.
    Status(status::Options),
    /// Virtual fabrics, or the one for an application, a Service ID or an MGID: its P_Key, SL, MTU
    /// and rate.
    Vfabric(vfabric::Options),
    /// Compose the Service ID of a protocol and port, or tell what one stands for.
    ServiceId(service_id::Options),
    /// Compose the MGID of an IP multicast group, or tell what one stands for.
    Mgid(mgid::Options),
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CtlError {
    /// Not the address of a server.
    #[error("{0} is not a URL such as http://127.0.0.1:7471")]
    Address(String),
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
    /// Nothing is as was asked.
    #[error("no virtual fabric {0}")]
    NoVirtualFabric(String),
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
    let sm = &options.sm;
    match &options.command {
        Command::Status(what) => runtime()?.block_on(status::run(sm, what)),
        Command::Vfabric(what) => runtime()?.block_on(vfabric::run(sm, what)),
        Command::ServiceId(what) => service_id::run(what),
        Command::Mgid(what) => mgid::run(what),
    }
}

/// The server at `address`. What has no scheme would be taken for the name of a host.
fn endpoint(address: &str) -> Result<Endpoint, CtlError> {
    let is_url = address.strip_prefix("http://").is_some_and(|host| !host.is_empty());
    let endpoint = is_url.then(|| Endpoint::from_shared(address.to_owned()).ok()).flatten();
    endpoint.ok_or_else(|| CtlError::Address(address.to_owned()))
}

/// A connection to the SM at `address`.
async fn connect(address: &str) -> Result<AdminClient<Channel>, CtlError> {
    let endpoint = endpoint(address)?.connect_timeout(PATIENCE).timeout(PATIENCE);
    let channel = endpoint.connect().await.map_err(|failure| {
        let mut reason = failure.to_string();
        let mut cause = std::error::Error::source(&failure);
        while let Some(inner) = cause {
            reason = inner.to_string();
            cause = inner.source();
        }
        CtlError::Unreachable { address: address.to_owned(), reason }
    })?;
    Ok(AdminClient::new(channel))
}

/// That the SM at `address` did not do as asked.
fn refused(address: &str, status: &tonic::Status) -> CtlError {
    CtlError::Refused { address: address.to_owned(), message: status.message().to_owned() }
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
    fn an_address_without_a_scheme_is_refused() {
        let refusal = endpoint("foo").unwrap_err().to_string();
        assert_eq!(refusal, "foo is not a URL such as http://127.0.0.1:7471");
        assert!(endpoint("http://").is_err());
        assert!(endpoint("http://[::1]:7471").is_ok());
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}

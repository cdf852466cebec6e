//! `ibsmctl`: what an operator asks a running `ibsm`, and how its answers are shown.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use sa_proto::proto::admin::admin_client::AdminClient;
use sa_proto::proto::admin::{Responder, Status, StatusRequest};
use tonic::transport::Endpoint;

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
    Status {
        /// Also show all counters.
        #[arg(short, long)]
        counters: bool,
    },
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// Not the address of a server.
    #[error("'{0}' is no address; write it like http://127.0.0.1:7471")]
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
    /// The system.
    #[error("system: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs `ibsmctl`.
#[allow(clippy::print_stdout, reason = "its purpose")]
pub fn main(options: Options) -> ExitCode {
    match run(&options) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("ibsmctl: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<String, CtlError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Command::Status { counters } = options.command;
    let status = runtime.block_on(status(&options.sm))?;
    Ok(render(&status, counters))
}

async fn status(address: &str) -> Result<Status, CtlError> {
    let endpoint = Endpoint::from_shared(address.to_owned())
        .map_err(|_| CtlError::Address(address.to_owned()))?
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE);
    let channel = endpoint.connect().await.map_err(|failure| {
        let mut reason = failure.to_string();
        let mut cause = std::error::Error::source(&failure);
        while let Some(inner) = cause {
            reason = inner.to_string();
            cause = inner.source();
        }
        CtlError::Unreachable { address: address.to_owned(), reason }
    })?;
    let answer = AdminClient::new(channel).get_status(StatusRequest {}).await;
    answer.map(tonic::Response::into_inner).map_err(|status| CtlError::Refused {
        address: address.to_owned(),
        message: status.message().to_owned(),
    })
}

/// The status as text.
fn render(status: &Status, counters: bool) -> String {
    let mut text = String::new();
    let state = if status.sm_state.is_empty() { "starting" } else { &status.sm_state };
    let _ = writeln!(
        text,
        "subnet manager  {state}, port {:#018x}, up {}",
        status.sm_guid,
        duration(status.uptime_s)
    );
    let _ = writeln!(text, "software        {}", status.software);
    let _ = writeln!(
        text,
        "fabric          {} nodes ({} switches), {} ports",
        status.nodes, status.switches, status.ports
    );
    let _ = writeln!(
        text,
        "published       epoch {}, fabric generation {}, registry sequence {}",
        status.epoch, status.fabric_generation, status.registry_sequence
    );
    let _ = writeln!(text, "responders      {}", status.responders.len());
    for responder in &status.responders {
        render_responder(&mut text, responder, counters);
    }
    if counters {
        let _ = writeln!(text, "counters");
        for counter in &status.counters {
            let _ = writeln!(text, "  {:<36} {}", counter.name, counter.value);
        }
    }
    text
}

fn render_responder(text: &mut String, responder: &Responder, counters: bool) {
    let serving = match (responder.current, responder.fabric_generation) {
        (true, _) => "current".to_owned(),
        (false, 0) => "nothing yet".to_owned(),
        (false, generation) => format!("behind, at generation {generation}"),
    };
    let _ = writeln!(
        text,
        "  {} ({:#x}): serving {serving}, connected {}, front door {}",
        responder.name,
        responder.id,
        duration(responder.connected_s),
        if responder.front_door.is_empty() { "none" } else { &responder.front_door[0] },
    );
    if counters {
        for counter in &responder.counters {
            let _ = writeln!(text, "    {:<34} {}", counter.name, counter.value);
        }
    }
}

/// Seconds as an operator says them.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sa_proto::proto::admin::Counter;

    #[test]
    fn a_responder_that_lags_is_told_from_one_that_does_not() {
        let responder = |name: &str, current, fabric_generation| Responder {
            name: name.into(),
            current,
            fabric_generation,
            front_door: vec!["127.0.0.1:9000".into()],
            ..Responder::default()
        };
        let status = Status {
            sm_state: "master".into(),
            nodes: 11_400,
            switches: 1_400,
            uptime_s: 3_725,
            responders: vec![
                responder("a", true, 7),
                responder("b", false, 6),
                responder("c", false, 0),
            ],
            counters: vec![Counter { name: "smps_sent".into(), value: 9 }],
            ..Status::default()
        };
        let text = render(&status, false);
        assert!(text.contains("master, port 0x0000000000000000, up 1 h 2 min"), "{text}");
        assert!(text.contains("a (0x0): serving current"), "{text}");
        assert!(text.contains("b (0x0): serving behind, at generation 6"), "{text}");
        assert!(text.contains("c (0x0): serving nothing yet"), "{text}");
        assert!(!text.contains("smps_sent"));
        assert!(render(&status, true).contains("smps_sent"));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }
}

//! The subnet administration responder. All it does is in the library; see `sa_server::runtime`.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use sa_server::agent::runtime::{self as agent, AgentOptions};
use sa_server::host::config_file::OptionsError;
use sa_server::host::handover::holder::{self, HoldOptions};
use sa_server::host::options::Options;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.peek().and_then(|first| first.to_str()) {
        Some("hold") => return holder::main(&HoldOptions::parse_from(arguments)),
        Some("agent") => return agent::main(&AgentOptions::parse_from(arguments)),
        _ => {}
    }
    match Options::from_arguments(std::env::args_os()) {
        Ok(options) => sa_server::runtime::main(options),
        Err(OptionsError::Arguments(error)) => error.exit(),
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{error}\nibsa cannot start");
            ExitCode::FAILURE
        }
    }
}

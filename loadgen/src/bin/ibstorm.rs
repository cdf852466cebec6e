//! `ibstorm`: loads Subnet Administration responders with queries. The code is in the library.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use loadgen::options::Options;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit status when the storm could not start.
const COULD_NOT_START: u8 = 2;

fn main() -> ExitCode {
    let fail = |error: &dyn std::fmt::Display| {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "ibstorm: {error}");
        ExitCode::from(COULD_NOT_START)
    };
    let options = Options::parse();
    if let Some(command) = &options.command {
        return loadgen::run::show(command).unwrap_or_else(|error| fail(&error));
    }
    match options.checked() {
        Ok((options, plan)) => {
            loadgen::run::run(&options, &plan).unwrap_or_else(|error| fail(&error))
        }
        Err(error) => fail(&error),
    }
}

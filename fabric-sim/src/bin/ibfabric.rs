//! `ibfabric`: generates and simulates InfiniBand subnets.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fabric_sim::cli::{exec, generate, serve};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EXAMPLES: &str = "\
Examples:
  ibfabric generate fat-tree --hosts 64 -o small.net   generate a subnet of 64 hosts
  ibfabric serve small.net &                           simulate it for stock tools and ibsm
  ibfabric ctl link-down leaf001 5                     cut a link
  ibfabric exec ibnetdiscover                          run a stock tool on a host

See 'ibfabric COMMAND --help' for each command.";

/// Generates and simulates InfiniBand subnets that real tools can attach to
#[derive(Debug, Parser)]
#[command(name = "ibfabric", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(generate::GenerateArgs),
    Serve(serve::ServeArgs),
    Exec(exec::ExecArgs),
    Ctl(serve::CtlArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Generate(args) => generate::run(&args).map_err(|error| error.to_string()),
        Command::Serve(args) => serve::serve(&args).map_err(|error| error.to_string()),
        Command::Exec(args) => Err(exec::exec(&args).to_string()),
        Command::Ctl(args) => serve::control(&args).map_err(|error| error.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "ibfabric: {error}");
            ExitCode::FAILURE
        }
    }
}

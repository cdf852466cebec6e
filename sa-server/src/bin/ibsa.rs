//! The subnet administration responder. All it does is in the library; see `sa_server::runtime`.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use sa_server::options::Options;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    sa_server::runtime::main(Options::parse())
}

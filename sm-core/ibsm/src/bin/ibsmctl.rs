//! The operator's command line. All it does is in the library; see `ibsm::ctl`.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ibsm::ctl::main(ibsm::ctl::Options::parse())
}

//! The operator's command line. All it does is in the library; see `sm_core::ctl`.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    sm_core::ctl::main(sm_core::ctl::Options::parse())
}

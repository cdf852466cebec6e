//! The subnet administration responder. All it does is in the library; see `sa_server::runtime`.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use sa_server::host::handover::holder::{self, HoldOptions};
use sa_server::host::options::Options;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "hold") {
        return holder::main(&HoldOptions::parse_from(arguments));
    }
    sa_server::runtime::main(Options::parse())
}

//! The subnet manager. All it does is in the library; see `sm_core::runtime`, and `sm_core::plan` for
//! what needs no subnet.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use sm_core::config::{Command, Options};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let mut options = Options::from_arguments(std::env::args_os());
    match options.command.take() {
        Some(Command::Plan(plan)) => sm_core::plan::main(&plan),
        None => sm_core::runtime::main(options),
    }
}

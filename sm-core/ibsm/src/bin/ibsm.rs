//! The subnet manager. All it does is in the library; see `ibsm::runtime`, and `ibsm::plan` for
//! commands that need no subnet.

use std::process::ExitCode;

use ibsm::cli::{Command, Options};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let mut options = Options::from_arguments(std::env::args_os());
    match options.command.take() {
        Some(Command::Plan(plan)) => ibsm::plan::main(&plan),
        Some(Command::Check) => ibsm::runtime::check::main(options),
        None => ibsm::runtime::main(options),
    }
}

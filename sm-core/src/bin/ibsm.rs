//! The subnet manager. All it does is in the library; see `sm_core::runtime`.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    sm_core::runtime::main(sm_core::config::Options::from_arguments(std::env::args_os()))
}

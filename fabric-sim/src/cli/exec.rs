//! `ibfabric exec`: runs a program with a umad device that is a port of a simulated fabric.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions, Role};

/// File name of the preloaded library.
const LIBRARY: &str = "libumad_preload.so";

const EXAMPLES: &str = "\
Examples:
  ibfabric serve NET &                                   (or stock: ibsim -s -n NET &)
  ibfabric exec --node 'node00001 HCA-1' -- opensm -f /tmp/opensm.log
  ibfabric exec --node 'node00002 HCA-1' -- saquery -p
  ibfabric exec --node 'node00002 HCA-1' -- osmtest -f c -i /tmp/osmtest.dat
  ibfabric exec -- sh -c 'ibnetdiscover; iblinkinfo; perfquery -a'

Programs see one device, ibsim0, with the first port of the node. The preloaded library implements
what the kernel does behind libibumad: RMPP in both directions, so that tables of any length arrive
complete; timeouts and retries; agents by class and method. Several programs can share a node.

--node takes the identifier or description of a node in the net file; the default is the server's
first node.";

/// Run an unmodified program on a node of a simulated fabric
///
/// Works for programs that use libibumad, such as saquery, osmtest, opensm, ibnetdiscover, smpquery
/// and perfquery, and for scripts that call them. Requires a fabric served by 'ibfabric serve' or
/// stock ibsim.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExecArgs {
    /// Base of the server's socket names
    #[arg(long, value_name = "NAME", env = "IBSIM_SOCKNAME", default_value = "sim")]
    socket: String,
    /// Identifier or description of the node to run on [default: the server's first]
    #[arg(long, value_name = "NODE", env = "SIM_HOST")]
    node: Option<String>,
    /// Library to preload, if it is not beside this program
    #[arg(long, value_name = "FILE", env = "IBFABRIC_UMAD_LIBRARY")]
    library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Why the program was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The library does not exist.
    #[error(
        "{LIBRARY} not found in {}; build it with 'cargo build --release', or set --library or \
         IBFABRIC_UMAD_LIBRARY",
        places(searched)
    )]
    NoLibrary {
        /// Directories that were searched.
        searched: Vec<PathBuf>,
    },
    /// The file given with `--library` cannot be used.
    #[error("cannot preload {}: {error}", file.display())]
    NamedLibrary {
        /// The path as given.
        file: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The dynamic loader would split the path.
    #[error("cannot preload {}: the path contains a space or a colon", .0.display())]
    LibraryPath(PathBuf),
    /// No server answers, or it refuses the node.
    #[error(transparent)]
    Attach(#[from] IbsimError),
    /// The system's error.
    #[error("cannot run {}: {error}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
}

fn places(searched: &[PathBuf]) -> String {
    let places: Vec<String> = searched.iter().map(|place| place.display().to_string()).collect();
    places.join(" or ")
}

/// Replaces this process by the program. Returns only if that fails.
pub fn exec(args: &ExecArgs) -> ExecError {
    let library = match find_library(args.library.as_deref()) {
        Ok(library) => library,
        Err(error) => return error,
    };
    // Check the node now: programs report such errors late and badly.
    let node = args.node.clone().filter(|node| !node.is_empty());
    let options = IbsimOptions {
        socket: args.socket.clone(),
        node: node.clone(),
        role: Role::Client,
        ..IbsimOptions::default()
    };
    if let Err(error) = Ibsim::connect(&options) {
        return error.into();
    }
    let (program, arguments) = args.program.split_first().expect("clap requires one");
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload).env("IBSIM_SOCKNAME", &args.socket);
    match node {
        Some(node) => command.env("SIM_HOST", node),
        None => command.env_remove("SIM_HOST"),
    };
    ExecError::Run { program: program.into(), error: command.exec() }
}

/// Finds the library: the given path, or where Cargo or an installation puts it.
fn find_library(named: Option<&Path>) -> Result<PathBuf, ExecError> {
    let found = match named {
        Some(file) => file
            .canonicalize()
            .map_err(|error| ExecError::NamedLibrary { file: file.to_owned(), error })?,
        None => {
            let program = env::current_exe().unwrap_or_default();
            let beside = program.parent().unwrap_or(Path::new("."));
            // Cargo always builds into `deps`, so the copy there is never older.
            let searched = ["deps", ".", "../lib"].map(|place| beside.join(place));
            let files = searched.iter().map(|place| place.join(LIBRARY));
            let found = files.into_iter().find_map(|file| file.canonicalize().ok());
            found.ok_or_else(|| ExecError::NoLibrary { searched: searched.to_vec() })?
        }
    };
    if found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(ExecError::LibraryPath(found));
    }
    Ok(found)
}

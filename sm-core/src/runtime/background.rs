//! Running in the background: the program starts itself once more, in a session of its own and
//! without a terminal, and ends.

use std::io;
use std::process::{Command, Stdio};

/// Set for the process in the background, which must not start yet another.
const MARK: &str = "IBSM_IN_BACKGROUND";

/// Goes into the background; `true` if the caller is the process that is left behind and has to end.
/// Call before any thread is started.
pub(super) fn enter() -> io::Result<bool> {
    if std::env::var_os(MARK).is_some() {
        // Fails only for who leads a session already.
        let _ = rustix::process::setsid();
        return Ok(false);
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(MARK, "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(true)
}

//! Running in the background: the program starts itself once more, in a session of its own and
//! without a terminal, waits until that one has started or failed to, and ends.
//!
//! The one in the background has the end of a pipe for its standard input, by which it tells: why it
//! ends, as text, or a byte of 0 once nothing of the start can fail any more.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// Set for the process in the background, which must not start yet another.
const MARK: &str = "IBSM_IN_BACKGROUND";
/// What says that the start has succeeded.
const STARTED: u8 = 0;
/// Most bytes of a reason that are passed on.
const REASON_LEN_MAX: u64 = 64 << 10;

/// The program in the background could not start.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// It could not be run at all, or asked.
    #[error("-B: {0}")]
    Io(#[from] io::Error),
    /// It ended before it had started.
    #[error("{0}")]
    Failed(String),
}

/// Which of the two processes this is.
#[derive(Debug)]
pub(super) enum Role {
    /// The one that is left behind, and has to end: the other has started.
    LeftBehind,
    /// The one in the background.
    Daemon(Starting),
}

/// The way to tell the process left behind how the start went.
#[derive(Debug)]
pub(super) struct Starting(Option<File>);

impl Starting {
    /// Nothing of the start can fail any more.
    pub(super) fn succeeded(mut self) {
        self.tell(&[STARTED]);
    }

    /// The program ends for this reason.
    pub(super) fn failed(&mut self, reason: &str) {
        self.tell(reason.as_bytes());
    }

    fn tell(&mut self, what: &[u8]) {
        // Whoever started us may have gone; then nobody wants to be told.
        let _ = self.0.take().map(|mut pipe| pipe.write_all(what));
    }
}

/// Goes into the background. Call before any thread is started.
pub(super) fn enter() -> Result<Role, BackgroundError> {
    if std::env::var_os(MARK).is_some() {
        // Fails only for who leads a session already.
        let _ = rustix::process::setsid();
        return Ok(Role::Daemon(Starting(Some(io::stdin().as_fd().try_clone_to_owned()?.into()))));
    }
    let (told, pipe) = io::pipe()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(MARK, "1");
    command.stdin(pipe).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?;
    // It holds our copy of the pipe's other end.
    drop(command);
    await_start(told)
}

/// Waits until the start has succeeded, or the other end is closed.
fn await_start(told: impl Read) -> Result<Role, BackgroundError> {
    let mut reason = Vec::new();
    for byte in io::BufReader::new(told.take(REASON_LEN_MAX)).bytes() {
        match byte? {
            STARTED => return Ok(Role::LeftBehind),
            byte => reason.push(byte),
        }
    }
    let reason = String::from_utf8_lossy(&reason).trim().to_owned();
    Err(BackgroundError::Failed(match reason.is_empty() {
        true => "the process in the background ended before it had started".to_owned(),
        false => reason,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process left behind ended with 0 whatever became of the other.
    #[test]
    fn the_process_left_behind_tells_how_the_start_went() {
        let start = |act: &dyn Fn(Starting)| {
            let (told, pipe) = io::pipe().unwrap();
            act(Starting(Some(File::from(std::os::fd::OwnedFd::from(pipe)))));
            await_start(told)
        };
        assert!(matches!(start(&Starting::succeeded), Ok(Role::LeftBehind)));
        let failed = start(&|mut starting: Starting| starting.failed("node 'x' is not there"));
        assert_eq!(failed.unwrap_err().to_string(), "node 'x' is not there");
        let died = start(&drop).unwrap_err().to_string();
        assert!(died.contains("ended before it had started"), "{died}");
    }
}

//! Running in the background: the program starts itself again, in its own session and without a
//! terminal, waits until that process has started or failed, and ends.
//!
//! The background process reports through a pipe at its standard input: a byte of 0 once the start
//! has succeeded, or the reason of a failure as text.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// Environment variable of the background process, which must not start another.
const MARK: &str = "IBSM_IN_BACKGROUND";
/// Reports that the start has succeeded.
const STARTED: u8 = 0;
/// Longest reason passed on, bytes.
const REASON_LEN_MAX: u64 = 64 << 10;

/// The program in the background could not start.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// It could not be started, or the pipe could not be read.
    #[error("-B: {0}")]
    Io(#[from] io::Error),
    /// The background process ended before it was ready.
    #[error("{0}")]
    Failed(String),
}

/// The role of this process after a start in the background.
#[derive(Debug)]
pub(super) enum Role {
    /// The foreground process, which ends: the other has started.
    Foreground,
    /// The background process.
    Daemon(Starting),
}

/// Reports the result of the start to the foreground process.
#[derive(Debug)]
pub(super) struct Starting(Option<File>);

impl Starting {
    /// The start has succeeded.
    pub(super) fn succeeded(mut self) {
        self.report(&[STARTED]);
    }

    /// The start has failed for this reason.
    pub(super) fn failed(&mut self, reason: &str) {
        self.report(reason.as_bytes());
    }

    fn report(&mut self, what: &[u8]) {
        // The foreground process may have been killed.
        let _ = self.0.take().map(|mut pipe| pipe.write_all(what));
    }
}

/// Goes into the background. Call before any thread is started.
pub(super) fn enter() -> Result<Role, BackgroundError> {
    if std::env::var_os(MARK).is_some() {
        // Fails only for a process that leads a session already.
        let _ = rustix::process::setsid();
        return Ok(Role::Daemon(Starting(Some(io::stdin().as_fd().try_clone_to_owned()?.into()))));
    }
    let (report, pipe) = io::pipe()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(MARK, "1");
    command.stdin(pipe).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn()?;
    // It holds a copy of the pipe's other end.
    drop(command);
    await_start(report)
}

/// Waits until the start has succeeded, or the other end is closed.
fn await_start(report: impl Read) -> Result<Role, BackgroundError> {
    let mut reason = Vec::new();
    for byte in io::BufReader::new(report.take(REASON_LEN_MAX)).bytes() {
        match byte? {
            STARTED => return Ok(Role::Foreground),
            byte => reason.push(byte),
        }
    }
    let reason = String::from_utf8_lossy(&reason).trim().to_owned();
    Err(BackgroundError::Failed(match reason.is_empty() {
        true => "the background process ended before it was ready".to_owned(),
        false => reason,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the foreground process ended with status 0 even if the other failed.
    #[test]
    fn the_foreground_process_reports_the_result_of_the_start() {
        let start = |act: &dyn Fn(Starting)| {
            let (report, pipe) = io::pipe().unwrap();
            act(Starting(Some(File::from(std::os::fd::OwnedFd::from(pipe)))));
            await_start(report)
        };
        assert!(matches!(start(&Starting::succeeded), Ok(Role::Foreground)));
        let failed = start(&|mut starting: Starting| starting.failed("node 'x' is not there"));
        assert_eq!(failed.unwrap_err().to_string(), "node 'x' is not there");
        let died = start(&drop).unwrap_err().to_string();
        assert!(died.contains("ended before it was ready"), "{died}");
    }
}

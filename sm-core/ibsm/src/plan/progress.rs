//! Shows the progress of long computations.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Time before the first message.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between lines where the output is not a terminal.
const PERIOD: Duration = Duration::from_secs(10);
/// Smallest interval between updates on a terminal.
const REFRESH: Duration = Duration::from_millis(100);

/// Shows progress on standard error: on one line of a terminal, otherwise as a line now and then.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Starts the clock.
    pub fn new() -> Self {
        Self { begun: Instant::now(), shown: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Shows the current step, if it is time.
    pub fn show(&mut self, what: impl FnOnce() -> String) {
        let now = Instant::now();
        let is_due = match (self.shown, self.is_terminal) {
            (Some(last), true) => now - last >= REFRESH,
            (Some(last), false) => now - last >= PERIOD,
            (None, true) => true,
            (None, false) => now - self.begun >= PATIENCE,
        };
        if !is_due {
            return;
        }
        self.shown = Some(now);
        let seconds = (now - self.begun).as_secs();
        // Standard error may be closed.
        let _ = match self.is_terminal {
            true => write!(io::stderr(), "\r\x1b[K{} ({seconds} s)", what()),
            false => writeln!(io::stderr(), "ibsm plan: {} ({seconds} s)", what()),
        };
    }

    /// Clears the line for other output.
    pub fn clear(&mut self) {
        if self.is_terminal && self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

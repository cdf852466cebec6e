//! Tells people who wait what is being done.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Nothing is told before somebody may wonder.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a line is written where lines cannot be written over.
const PERIOD: Duration = Duration::from_secs(10);
/// How often one is written over: no more often than can be read.
const REFRESH: Duration = Duration::from_millis(100);

/// What is going on, on standard error: on one line of a terminal, and elsewhere a line now and
/// then once it takes long.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    told: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Begins to wait.
    pub fn new() -> Self {
        Self { begun: Instant::now(), told: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Tells what is being done now, if it is time.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        let now = Instant::now();
        let is_due = match (self.told, self.is_terminal) {
            (Some(last), true) => now - last >= REFRESH,
            (Some(last), false) => now - last >= PERIOD,
            (None, true) => true,
            (None, false) => now - self.begun >= PATIENCE,
        };
        if !is_due {
            return;
        }
        self.told = Some(now);
        let seconds = (now - self.begun).as_secs();
        // Nobody may be there to read it.
        let _ = match self.is_terminal {
            true => write!(io::stderr(), "\r\x1b[K{} ({seconds} s)", what()),
            false => writeln!(io::stderr(), "ibsm plan: {} ({seconds} s)", what()),
        };
    }

    /// Leaves the line to what is written next.
    pub fn clear(&mut self) {
        if self.is_terminal && self.told.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

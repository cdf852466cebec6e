//! OpenSM's console: its prompt, words and formats, so that scripts which drive it work unchanged
//! (osm_console.c of OpenSM 3.3.23; `ibsmctl` offers more).
//!
//! A [`Session`] takes lines and returns text and [`Effect`]s; it does no I/O.
//!
//! - `words`: the words, their arguments and help; `status`, `perf`, `port_guids` and
//!   [`inspect`](crate::inspect): what they print.

mod perf;
mod port_guids;
mod status;
#[cfg(test)]
mod tests;
mod words;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use perf::carry_out as carry_out_perf;
use sm_config::Settings;

use crate::inspect::FabricView;
use crate::observe::SmStatus;
use crate::perf::PerfBoard;

/// What is printed when a line is expected.
pub(crate) const PROMPT: &str = "OpenSM $ ";
/// What a second client is asked while a session is open.
pub(crate) const IN_USE: &str =
    "OpenSM Console connection already in use\n   kill other session (y/n)? ";
/// What a client gets that may not end the open session.
pub(crate) const RESERVED: &str = "OpenSM Console connection already in use by an operator\n";

/// State of the manager at one moment, as words print it.
#[derive(Clone)]
pub(crate) struct View {
    /// The fabric.
    pub(crate) fabric: FabricView,
    /// State of this manager.
    pub(crate) sm: Arc<SmStatus>,
    /// Settings in force.
    pub(crate) settings: Arc<Settings>,
    /// The counters of ports.
    pub(crate) perf: Arc<PerfBoard>,
    /// Requests that responders have received, answered and dropped, and hold.
    pub(crate) sa: SaTotals,
}

/// Requests of subnet administration at all responders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaTotals {
    pub(crate) received: u64,
    pub(crate) answered: u64,
    pub(crate) dropped: u64,
}

/// What a word wants done, apart from its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Start a heavy sweep.
    HeavySweep,
    /// Start a light sweep.
    LightSweep,
    /// Recompute all routes.
    Reroute,
    /// Permit sweeps, or not.
    Sweeping(bool),
    /// Set the totals of counters to 0.
    ClearCounters,
    /// Read the counters of all ports.
    ReadCounters,
    /// Change how the counters are read.
    Perf(PerfOrder),
    /// Write the counters to the file of the settings.
    DumpCounters {
        /// In the form for programs, other than that for people.
        machine: bool,
    },
    /// Set the priority of this manager.
    Priority(u8),
    /// Set the log bits.
    LogFlags(u8),
    /// Print the file of log levels by module.
    PrintModules(PathBuf),
    /// Write a text to a file; failures are printed.
    WriteFile(PathBuf, String),
    /// Close the session.
    Close,
}

/// An order to the performance manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PerfOrder {
    /// Permit sweeps, or not.
    Enable(bool),
    /// Set the time between sweeps.
    SweepTime(Duration),
    /// Forget nodes that leave the fabric, or not.
    RemoveNodes(bool),
    /// Read ClassPortInfo, or not.
    QueryInfo(bool),
    /// Forget the nodes that left the fabric.
    ForgetInactive,
    /// Forget the redirections of a node; of all if it is empty.
    ForgetRedirections(String),
}

/// The answer to a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// What is printed.
    pub(crate) text: String,
    /// What is done afterwards.
    pub(crate) effect: Option<Effect>,
    /// Whether the text has keys.
    has_keys: bool,
}

impl Answer {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn with(text: impl Into<String>, effect: Effect) -> Self {
        Self { text: text.into(), effect: Some(effect), has_keys: false }
    }
}

impl Answer {
    /// Whether only operators may have it: it changes something, or has keys.
    pub(crate) fn is_operators(&self) -> bool {
        let is_harmless =
            |effect: &Effect| matches!(effect, Effect::Close | Effect::PrintModules(_));
        self.has_keys || !self.effect.as_ref().is_none_or(is_harmless)
    }
}

/// One session at the console.
#[derive(Debug, Default)]
pub(crate) struct Session {
    is_looping: bool,
}

impl Session {
    /// Takes a line, without its end.
    pub(crate) fn handle_line(&mut self, line: &str, view: &View) -> Answer {
        let mut words = line.split_ascii_whitespace();
        let Some(word) = words.next() else { return Answer::default() };
        if self.is_looping {
            self.is_looping = word != "q";
            return Answer::text(if self.is_looping { LOOP_HINT } else { "" });
        }
        let arguments: Vec<&str> = words.collect();
        if word == "status" && arguments.first() == Some(&"loop") {
            self.is_looping = true;
            let state = status::status(view);
            return Answer::text(format!("Looping on status command...\n{state}{LOOP_HINT}"));
        }
        words::answer(word, &arguments, view)
    }

    /// Whether the status is printed again at intervals.
    pub(crate) fn is_looping(&self) -> bool {
        self.is_looping
    }

    /// What is printed at each interval of `status loop`.
    pub(crate) fn repeat(&self, view: &View) -> String {
        status::status(view)
    }
}

const LOOP_HINT: &str = "use \"q<ret>\" to quit loop\n";

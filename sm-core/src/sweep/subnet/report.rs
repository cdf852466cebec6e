//! The report of a sweep: results and durations.

use std::fmt;
use std::time::Duration;

use ib_mad::types::{Guid, PortNum};

use super::schedule::Cause;

/// Maximum number of log lines of one kind per sweep; further ones are only counted.
pub(in crate::sweep) const LINES_MAX: usize = 10;

/// Maximum number of links that a report lists as returned.
pub(in crate::sweep) const RETURNED_MAX: usize = 1024;

/// Part of a sweep. Each ends when all of its requests are answered or given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No sweep is under way.
    #[default]
    Idle,
    /// Asking every switch whether a port changed.
    Light,
    /// Reading operators' files, at the beginning of a walk of the whole fabric.
    Files,
    /// Walking the fabric.
    Discover,
    /// Polling other SMs.
    Elect,
    /// Assigning LIDs and P_Keys.
    Addresses,
    /// Reading the forwarding tables that another SM left.
    Inherit,
    /// Computing forwarding tables.
    Route,
    /// Programming them.
    Tables,
    /// Configuring links and arming them.
    Arm,
    /// Setting QoS tables of ports.
    PortTables,
    /// Activating links.
    Activate,
    /// Moving the LID of a port to another port.
    TakeOver,
    /// Polling the master, in standby.
    Poll,
    /// Handing over to an SM with higher precedence.
    HandOver,
}

impl Phase {
    /// Name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Light => "light",
            Self::Files => "files",
            Self::Discover => "discover",
            Self::Elect => "elect",
            Self::Addresses => "addresses",
            Self::Inherit => "inherit",
            Self::Route => "route",
            Self::Tables => "tables",
            Self::Arm => "arm",
            Self::PortTables => "port_tables",
            Self::Activate => "activate",
            Self::TakeOver => "take_over",
            Self::Poll => "poll",
            Self::HandOver => "hand_over",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A GUID that two nodes or ports share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The GUID.
    pub guid: Guid,
    /// Where they were found, as text.
    pub text: String,
    /// The port of a switch whose link is left out because of it: node GUID and number. As long as
    /// it is among [`Sweeper::left_out`](crate::sweep::Sweeper::left_out), the GUID is there twice.
    /// Without one, each discovery finds the GUID again.
    pub place: Option<(Guid, PortNum)>,
}

/// Results of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Whether it walked the whole fabric.
    pub full: bool,
    /// Whether it was the first since this SM became master.
    pub first: bool,
    /// Cause of the sweep; `None` if unknown.
    pub cause: Option<Cause>,
    /// Detail of the cause, as text: the trap and its sender, or the switch that reported a change.
    pub detail: Option<String>,
    /// Switches present.
    pub switches: usize,
    /// Other nodes present.
    pub hosts: usize,
    /// Links between ports.
    pub links: usize,
    /// Name of the engine whose routes are in force; empty if there are none.
    pub engine: String,
    /// Wanted engines that were skipped.
    pub rejected_engines: Vec<String>,
    /// The last LID in use.
    pub last_lid: u16,
    /// Nodes found that were not there before.
    pub appeared: usize,
    /// Nodes gone.
    pub vanished: usize,
    /// Links between switches that are gone; none while the subnet was not up before.
    pub cut: usize,
    /// Other links that are gone, those of nodes gone included.
    pub detached: usize,
    /// Links and nodes that came back or were reset, a line each; the first of them.
    pub came_back: Vec<String>,
    /// Set() requests sent, by attribute: P_Key blocks, PortInfo, SwitchInfo, LFT blocks.
    pub pkey_blocks_set: u64,
    /// PortInfo of any phase.
    pub port_infos_set: u64,
    /// SwitchInfo.
    pub switch_infos_set: u64,
    /// Blocks of forwarding tables.
    pub lft_blocks_set: u64,
    /// Whether the fabric is programmed, but for the errors.
    pub up: bool,
    /// Attributes that could not be read or set.
    pub errors: u64,
    /// The first of them, as text.
    pub faults: Vec<String>,
    /// P_Keys that did not fit into tables.
    pub pkeys_left_out: usize,
    /// Switch ports without P_Key enforcement, because their table is too small.
    pub unchecked_ports: usize,
    /// Anomalies of the fabric that were left as they are.
    pub anomalies: u64,
    /// Links with no answering node behind them.
    pub unanswered: usize,
    /// New nodes that were left out.
    pub left_out: usize,
    /// GUIDs that two nodes or ports share.
    pub duplicate_guids: u64,
    /// The first of these GUIDs.
    pub duplicates: Vec<Duplicate>,
    /// Links that came back or were retrained, those of nodes that came back included, by one end:
    /// node GUID and port. The first of them.
    pub returned: Vec<(Guid, PortNum)>,
    /// SMPs sent, repetitions included.
    pub smps: u64,
    /// How long each phase took, in order.
    pub phases: Vec<(Phase, Duration)>,
}

impl Report {
    /// Time from the first request to the last answer.
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|(_, duration)| *duration).sum()
    }

    /// The cause, as text.
    pub fn reason(&self) -> String {
        let words = match (self.cause, &self.detail) {
            (Some(Cause::Asked) | None, _) if self.first => "first sweep as master",
            (Some(Cause::Trap), Some(trap)) => trap,
            (Some(cause @ Cause::Timer), Some(place)) => {
                return format!("{} at {place}", cause.words());
            }
            // With `force_heavy_sweep` every sweep is full.
            (Some(Cause::Timer), None) if self.full => "sweep_interval has passed",
            (Some(cause), _) => cause.words(),
            (None, _) => "unknown",
        };
        words.to_owned()
    }

    /// Whether the sweep set anything, or nodes came or went.
    pub fn changed(&self) -> bool {
        let set = self.pkey_blocks_set
            + self.port_infos_set
            + self.switch_infos_set
            + self.lft_blocks_set;
        set > 0 || self.appeared > 0 || self.vanished > 0
    }

    fn routed_by(&self) -> String {
        match (self.engine.as_str(), &self.rejected_engines[..]) {
            ("", _) => String::new(),
            (engine, []) => format!(", routed by {engine}"),
            (engine, passed) => {
                format!(", routed by {engine} (skipped: {})", passed.join(", "))
            }
        }
    }

    /// Time of one phase.
    pub fn phase(&self, phase: Phase) -> Duration {
        self.phases.iter().filter(|(p, _)| *p == phase).map(|(_, duration)| *duration).sum()
    }
}

/// A duration, rounded for display.
struct Took(Duration);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            short if short < Duration::from_secs(1) => write!(f, "{} ms", short.as_millis()),
            long => write!(f, "{:.2} s", long.as_secs_f64()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = |phases: &[Phase]| Took(phases.iter().map(|&phase| self.phase(phase)).sum());
        write!(
            f,
            "{} switches, {} hosts, {} links, LIDs to {}{}; {}discovered in {}, LIDs and P_Keys \
             in {}, routed in {}, {} LFT blocks in {}, links in {}; {} SMPs, {} in all",
            self.switches,
            self.hosts,
            self.links,
            self.last_lid,
            self.routed_by(),
            match self.phase(Phase::Files) {
                short if short < Duration::from_millis(10) => String::new(),
                took => format!("files read in {}, ", Took(took)),
            },
            took(&[Phase::Light, Phase::Discover, Phase::Elect]),
            took(&[Phase::Addresses]),
            took(&[Phase::Route]),
            self.lft_blocks_set,
            took(&[Phase::Tables]),
            took(&[Phase::Arm, Phase::Activate]),
            self.smps,
            Took(self.duration()),
        )?;
        if self.unanswered > 0 {
            write!(f, "; no node answers behind {} link(s)", self.unanswered)?;
        }
        if self.left_out > 0 {
            write!(f, "; {} new node(s) left out, see above", self.left_out)?;
        }
        if self.duplicate_guids > 0 {
            write!(f, "; {} duplicate GUID(s), see above", self.duplicate_guids)?;
        }
        let word = if self.detail.is_some() { "after" } else { "cause:" };
        write!(f, "; {word} {}", self.reason())?;
        Ok(())
    }
}

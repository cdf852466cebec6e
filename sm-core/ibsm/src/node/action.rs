//! Actions that a driver performs for a node.

use std::error::Error;

use super::{Job, StateWrite};
use crate::observe::event::Draft;
use crate::observe::moment::FaultPort;
use ib_mad::types::Guid;
use sm_config::{Reading, SitePolicy};
use sm_core::manage::lid::LidTable;
use sm_core::sweep::{DumpJob, Report};

/// Something for the driver to do.
#[derive(Debug)]
pub enum Action {
    /// Read the policy files again with [`SitePolicy::reload`], and `guid2lid` if `lids`. The
    /// sweep waits for [`Node::handle_files`](super::Node::handle_files).
    ReadFiles {
        /// Whether to read `guid2lid`.
        lids: bool,
    },
    /// Begin a publishing session, whose epoch is saved first, and return the result by
    /// [`Node::handle_session`](super::Node::handle_session) before the next
    /// [`Node::poll_action`](super::Node::poll_action).
    BeginSession(NewSession),
    /// Run a job on a thread, and return the result by
    /// [`Node::handle_job`](super::Node::handle_job).
    Run(Job),
    /// Write a file of the state directory, and return the result by
    /// [`Node::handle_written`](super::Node::handle_written).
    Write(StateWrite),
    /// Write dump files, and return the result by
    /// [`Node::handle_dumped`](super::Node::handle_dumped).
    Dump(DumpJob),
    /// Read the port's LIDs again: the transport derives path bits from them.
    RefreshPort,
    /// Add a sweep that has ended to the history and to metrics.
    NoteSweep {
        /// The sweep.
        report: Box<Report>,
        /// Ports that it could not read or configure completely.
        faults: Vec<FaultPort>,
    },
    /// Note an event that happens now.
    Note(Box<Draft>),
    /// Collect status and metrics: see [`Node::status`](super::Node::status).
    Report,
}

/// A publishing session to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSession {
    /// That of a new master, whose port has this GUID.
    Master(Guid),
    /// One above all sessions that responders hold, with what was published last.
    Above,
}

/// The file contents read by [`Action::ReadFiles`].
#[derive(Debug)]
pub struct FilesRead {
    /// The policy, and remarks on its files.
    pub policy: SitePolicy,
    /// The contents, and errors.
    pub reading: Reading,
    /// LIDs of `guid2lid`, if they were asked for.
    pub lids: Option<Result<LidTable, Box<dyn Error + Send + Sync>>>,
    /// The time of day, as the log writes it.
    pub time: String,
}

//! The report of the current sweep, with its errors and anomalies. It limits the number of lines
//! logged for them: the others are counted, and logged at debug level.

use std::collections::HashSet;
use std::fmt;

use ib_mad::types::{Guid, PortNum};
use tracing::{debug, error, warn};

use super::report::{Duplicate, LINES_MAX, Report};
use super::schedule::Cause;
use crate::fabric::{NodeIndex, PortIndex};

/// Maximum number of faulty ports that are retried soon; others are retried by the next full sweep.
const FAULTS_MAX: usize = 1024;

/// The report of a sweep, and the number of lines logged about it.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Journal {
    pub(in crate::sweep) report: Report,
    /// Ports that could not be read or set.
    faults: Vec<PortIndex>,
    /// Nodes named in a warning.
    warned: HashSet<NodeIndex>,
    /// Lines logged about errors.
    error_lines: usize,
    /// Lines logged about anomalies.
    anomaly_lines: usize,
}

impl Journal {
    /// The journal of a sweep that starts for `cause`.
    pub(in crate::sweep) fn new(cause: Cause) -> Self {
        Self { report: Report { cause: Some(cause), ..Report::default() }, ..Self::default() }
    }

    /// The journal of the discovery that follows a light sweep or none. A partial discovery counts
    /// from the beginning of the light sweep.
    pub(in crate::sweep) fn into_discovery(self, full: bool) -> Self {
        let Report { cause, detail, phases, .. } = self.report;
        let phases = if full { Vec::new() } else { phases };
        let report = Report { full, cause, detail, phases, ..Report::default() };
        Self { report, ..Self::default() }
    }

    /// Logs and reports a GUID that two nodes or ports have; `place` is the port of a switch whose
    /// link is left out because of it.
    pub(in crate::sweep) fn duplicate(
        &mut self,
        guid: Guid,
        place: Option<(Guid, PortNum)>,
        text: String,
    ) {
        error!("{text}");
        self.report.duplicates.push(Duplicate { guid, text, place });
    }

    /// Ports that could not be read or set, ascending.
    pub(in crate::sweep) fn take_faults(&mut self) -> Vec<PortIndex> {
        let mut faults = std::mem::take(&mut self.faults);
        faults.sort_unstable();
        faults
    }

    /// Counts an error of `port` of `node`. The port is retried soon.
    pub(in crate::sweep) fn fault(
        &mut self,
        node: NodeIndex,
        port: PortIndex,
        text: fmt::Arguments<'_>,
    ) {
        if self.faults.len() < FAULTS_MAX && !self.faults.contains(&port) {
            self.faults.push(port);
        }
        if self.report.faults.len() < LINES_MAX {
            self.report.faults.push(text.to_string());
        }
        if self.warned.insert(node) {
            return self.error(text);
        }
        self.report.errors += 1;
        debug!("{text}");
    }

    /// Counts an error and logs it.
    pub(in crate::sweep) fn error(&mut self, text: fmt::Arguments<'_>) {
        self.report.errors += 1;
        self.error_lines += 1;
        match self.error_lines {
            n if n <= LINES_MAX => warn!("{text}"),
            n if n == LINES_MAX + 1 => {
                warn!("further errors of this sweep are logged at debug level only");
            }
            _ => debug!("{text}"),
        }
    }

    /// Counts an anomaly and logs it.
    pub(in crate::sweep) fn anomaly(&mut self, text: fmt::Arguments<'_>) {
        self.report.anomalies += 1;
        self.anomaly_lines += 1;
        match self.anomaly_lines {
            n if n <= LINES_MAX => warn!("{text}"),
            n if n == LINES_MAX + 1 => {
                warn!("further warnings of this sweep are logged at debug level only");
            }
            _ => debug!("{text}"),
        }
    }

    /// Counts an anomaly of a node. Only the first of each node is logged as a warning: a node that
    /// fails leaves many requests unanswered.
    pub(in crate::sweep) fn node_anomaly(&mut self, node: NodeIndex, text: fmt::Arguments<'_>) {
        if self.warned.insert(node) {
            return self.anomaly(text);
        }
        self.report.anomalies += 1;
        debug!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_logged_per_node_and_every_fault_counts() {
        let mut journal = Journal::default();
        let node = NodeIndex::from_bits(0);
        for port in [2, 1, 2] {
            journal.fault(node, PortIndex::from_bits(port), format_args!("port {port}"));
        }
        journal.node_anomaly(node, format_args!("odd"));
        assert_eq!((journal.report.errors, journal.error_lines), (3, 1));
        assert_eq!((journal.report.anomalies, journal.anomaly_lines), (1, 0));
        assert_eq!(journal.report.faults, ["port 2", "port 1", "port 2"]);
        assert_eq!(journal.take_faults(), [1, 2].map(PortIndex::from_bits));
    }
}

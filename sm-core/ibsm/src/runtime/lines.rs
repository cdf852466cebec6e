//! Limits the log lines of a round (a sweep, a cycle), in all and of each node, so that one node
//! does not keep the others out of the log.

use ib_mad::types::Guid;
use sa_proto::quota::Quota;

/// Lines of the present round.
pub(super) struct LineQuota {
    max: usize,
    node_max: usize,
    logged: Quota<Guid>,
    left_out: u64,
}

impl LineQuota {
    /// At most `max` lines a round, `node_max` of one node.
    pub(super) fn new(max: usize, node_max: usize) -> Self {
        Self { max, node_max, logged: Quota::new(max, node_max), left_out: 0 }
    }

    /// Whether a line about a node may be logged; otherwise it is counted.
    pub(super) fn take(&mut self, node: Guid) -> bool {
        let may = self.logged.take(node).is_ok();
        self.left_out += u64::from(!may);
        may
    }

    /// Begins a round; returns the lines left out of the last.
    pub(super) fn restart(&mut self) -> u64 {
        self.logged = Quota::new(self.max, self.node_max);
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a node with errors at many ports took all lines of each sweep.
    #[test]
    fn one_node_does_not_take_the_lines_of_others() {
        let mut lines = LineQuota::new(5, 2);
        let taken: Vec<bool> =
            [1, 1, 1, 2, 3, 4, 5].map(|guid| lines.take(Guid(guid))).into_iter().collect();
        assert_eq!(taken, [true, true, false, true, true, true, false]);
        assert_eq!((lines.restart(), lines.restart()), (2, 0));
        assert!(lines.take(Guid(1)));
    }
}

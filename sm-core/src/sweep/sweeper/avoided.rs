//! The number of switches that routes avoid, for the caller.

use super::Sweeper;

impl Sweeper {
    /// Switches that routes avoid because they do not accept their forwarding tables.
    pub fn avoided_switches(&self) -> usize {
        self.avoided.switches.len()
    }
}

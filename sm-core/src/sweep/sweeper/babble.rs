//! Passes traps to the task that disables babbling ports, and runs it at once if it is due.

use std::time::Instant;

use ib_mad::types::Lid;

use super::Sweeper;
use crate::sweep::tasks::Task;
use crate::trap::Trap;

impl Sweeper {
    /// Handles a trap from LID `from` that may report errors of a port.
    pub(super) fn note_port_error(
        &mut self,
        now: Instant,
        trap: &Trap,
        from: Lid,
        mad: &[u8; 256],
    ) {
        self.babbling.note(&self.subnet, now, trap, from, mad);
        self.disable_babbling_ports(now);
    }

    /// Error traps ignored because they did not come from the port that they are about.
    pub fn forged_error_traps(&self) -> u64 {
        self.babbling.forged
    }

    /// Links that stayed enabled since others had been disabled shortly before.
    pub fn spared_babbling_links(&self) -> u64 {
        self.babbling.spared
    }

    /// Disables babbling ports now, unless a sweep is under way or requests are outstanding.
    pub(super) fn disable_babbling_ports(&mut self, now: Instant) {
        if self.babbling.due.is_some() && self.is_idle() {
            self.babbling.handle_timeout(&mut self.subnet, now);
        }
    }
}

//! Tasks: work between sweeps.
//!
//! A task writes to the fabric while no sweep is under way. It sees the [`Subnet`] and itself,
//! never another task. The next sweep waits until its requests are answered or given up; they come
//! back to it as their [owner](crate::sweep::subnet::owner).

pub(in crate::sweep) mod babble;
pub(in crate::sweep) mod guid_info;
pub(in crate::sweep) mod multicast;
pub(in crate::sweep) mod partitions;
pub(in crate::sweep) mod reregister;
pub(in crate::sweep) mod virtual_ports;

use std::fmt;
use std::time::Instant;

use crate::sweep::subnet::Subnet;

/// Work between sweeps.
pub(in crate::sweep) trait Task: fmt::Debug {
    /// When [`handle_timeout`](Self::handle_timeout) is due. It waits while a sweep is under way or
    /// requests are outstanding.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Performs due work: pushes requests to the subnet's exchange. No sweep is under way, and
    /// nothing is outstanding. Spurious calls are allowed.
    fn handle_timeout(&mut self, subnet: &mut Subnet, now: Instant);

    /// Whether a sweep that is due at the same time goes first.
    fn yields_to_sweeps(&self) -> bool {
        false
    }

    /// Called between sweeps when no request is outstanding: sends the requests that waited for
    /// that, or reports to the caller.
    fn settled(&mut self, _subnet: &mut Subnet, _now: Instant) {}
}

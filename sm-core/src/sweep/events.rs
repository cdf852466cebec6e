//! What has happened and waits for the caller to look at it: a queue that loses traps before
//! anything else.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;

use super::{LINES_MAX, PortsChanged, Report};
use crate::manage::shard::TakeOver;
use crate::mastership::RemoteSm;

/// Traps among the events that wait; more are dropped, and counted. Of all other events there are a
/// few a sweep, and none may be lost.
const TRAPS_MAX: usize = 1024;

/// Something that the caller has to know or do.
#[derive(Debug)]
pub enum Event {
    /// A discovery of the whole fabric begins: what it is to be configured by can still be changed,
    /// with [`Sweeper::set_partitions`](super::Sweeper::set_partitions), and LIDs are to be stated
    /// if it [wants them](super::Sweeper::wants_lids).
    Discovering,
    /// LIDs were assigned: store [`Sweeper::lids`](super::Sweeper::lids).
    LidsChanged,
    /// A sweep has ended with the fabric configured: publish it.
    Configured(Box<Report>),
    /// Multicast forwarding tables of switches are others now: publish them before long.
    MulticastWritten,
    /// End ports were moved to another SA port.
    ClientsMoved,
    /// Other ports are switched off for a takeover than before: keep
    /// [`Sweeper::disabled_ports`](super::Sweeper::disabled_ports).
    DisabledPortsChanged,
    /// A [`take_over`](super::Sweeper::take_over) has ended.
    TakenOver {
        /// Which.
        what: TakeOver,
        /// Whether the spare, and no other port, has the LIDs.
        done: bool,
    },
    /// End ports came into service or went out of it, as the sweep that has just ended found.
    PortsChanged(PortsChanged),
    /// A trap of the fabric's, a repeated one too.
    Trap(TrapNotice),
    /// Another subnet manager is master.
    StandingBy(RemoteSm),
    /// The program cannot do its work.
    Fatal(String),
}

/// A trap as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrapNotice {
    /// LID that it came from.
    pub lid: Lid,
    /// The notice, without its issuer's GID, as SMPs carry it.
    pub notice: [u8; 64],
}

/// Events that wait for the caller, oldest first.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    /// Traps among them.
    traps_waiting: usize,
    /// Traps that found no room among them.
    traps_dropped: u64,
    /// Keep a storm of traps from filling the log, and the loop from naming ports.
    trap_lines: Limit,
    trap_details: Limit,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Puts a trap down, or drops it if too many wait.
    pub(super) fn push_trap(&mut self, trap: TrapNotice) {
        if self.traps_waiting == TRAPS_MAX {
            self.traps_dropped += 1;
            return;
        }
        self.traps_waiting += 1;
        self.push(Event::Trap(trap));
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.traps_waiting -= usize::from(matches!(event, Event::Trap(_)));
        Some(event)
    }

    /// Whether what a sweep configured has not been looked at.
    pub(super) fn has_configured(&self) -> bool {
        self.queue.iter().any(|event| matches!(event, Event::Configured(_)))
    }

    /// Discards the event of a configured subnet: the configuration is about to change, or another
    /// subnet manager's.
    pub(super) fn drop_configured(&mut self) {
        self.queue.retain(|event| !matches!(event, Event::Configured(_)));
    }

    /// Traps that found no room.
    pub(super) fn traps_dropped(&self) -> u64 {
        self.traps_dropped
    }

    /// Whether a line about a trap may be logged as a warning; many are not.
    pub(super) fn admits_trap_line(&mut self, now: Instant) -> bool {
        self.trap_lines.admits(now)
    }

    /// The same of a line for debugging.
    pub(super) fn admits_trap_detail(&mut self, now: Instant) -> bool {
        self.trap_details.admits(now)
    }
}

/// So many lines an interval.
#[derive(Debug, Default)]
struct Limit {
    since: Option<Instant>,
    lines: usize,
}

impl Limit {
    const INTERVAL: Duration = Duration::from_secs(10);

    fn admits(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now >= since + Self::INTERVAL) {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.lines += 1;
        self.lines <= LINES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Traps pushed out that a sweep had ended, and with it what was to be published.
    #[test]
    fn a_storm_of_traps_pushes_no_other_event_out() {
        let mut events = Events::default();
        let trap = TrapNotice { lid: Lid(1), notice: [0; 64] };
        events.push(Event::LidsChanged);
        (0..TRAPS_MAX + 10).for_each(|_| events.push_trap(trap.clone()));
        events.push(Event::MulticastWritten);
        assert!(matches!(events.pop(), Some(Event::LidsChanged)));
        for _ in 0..TRAPS_MAX {
            assert!(matches!(events.pop(), Some(Event::Trap(_))));
        }
        assert!(matches!(events.pop(), Some(Event::MulticastWritten)));
        assert_eq!(events.traps_dropped(), 10);
        events.push_trap(trap);
        assert!(matches!(events.pop(), Some(Event::Trap(_))));
    }

    #[test]
    fn what_was_configured_is_dropped_and_nothing_else() {
        let mut events = Events::default();
        events.push(Event::Configured(Box::default()));
        events.push(Event::LidsChanged);
        assert!(events.has_configured());
        events.drop_configured();
        assert!(!events.has_configured());
        assert!(matches!(events.pop(), Some(Event::LidsChanged)));
        assert!(events.pop().is_none());
    }

    #[test]
    fn lines_about_traps_are_limited_in_each_interval() {
        let (mut events, start) = (Events::default(), Instant::now());
        let admitted = |events: &mut Events, now| {
            (0..3 * LINES_MAX).filter(|_| events.admits_trap_line(now)).count()
        };
        assert_eq!(admitted(&mut events, start), LINES_MAX);
        let details = (0..3 * LINES_MAX).filter(|_| events.admits_trap_detail(start)).count();
        assert_eq!(details, LINES_MAX, "those for debugging have their own");
        assert_eq!(admitted(&mut events, start + Limit::INTERVAL), LINES_MAX);
    }
}

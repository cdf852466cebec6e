//! Queue of events for the caller. If it is full, traps are dropped, other events never.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;

use super::report::{LINES_MAX, Report};
use super::service::PortsChanged;
use crate::manage::shard::TakeOver;
use crate::mastership::RemoteSm;
use crate::trap::HourlyLimit;

/// Maximum number of queued traps; further ones are dropped and counted. Other events are few per
/// sweep, and are never dropped.
const TRAPS_MAX: usize = 1024;

/// An event that the caller must handle.
#[derive(Debug)]
pub enum Event {
    /// A discovery of the whole fabric starts. The caller may still change the configuration, with
    /// [`Sweeper::set_partitions`](crate::sweep::Sweeper::set_partitions), and must provide LIDs if
    /// the sweeper [wants them](crate::sweep::Sweeper::wants_lids).
    Discovering,
    /// LIDs were assigned: store [`Sweeper::lids`](crate::sweep::Sweeper::lids).
    LidsChanged,
    /// Switches have the routes around cables between switches that are gone; the rest of the sweep
    /// follows. Publish them: nodes, their end ports and LIDs are those of the last sweep.
    Routed,
    /// A sweep has ended with the fabric configured: publish it.
    Configured(Box<Report>),
    /// Multicast forwarding tables changed: publish them soon.
    MulticastWritten,
    /// Partitions that programs changed are in force: publish them.
    PKeysWritten,
    /// End ports were moved to another SA port.
    ClientsMoved,
    /// The set of ports that are disabled for a takeover changed: save
    /// [`Sweeper::disabled_ports`](crate::sweep::Sweeper::disabled_ports).
    DisabledPortsChanged,
    /// A [`take_over`](crate::sweep::Sweeper::take_over) has ended.
    TakenOver {
        /// The takeover.
        what: TakeOver,
        /// Whether the spare, and no other port, has the LIDs.
        done: bool,
    },
    /// End ports came into or went out of service, as the last sweep found.
    PortsChanged(PortsChanged),
    /// A trap of the fabric's, a repeated one too.
    Trap(TrapNotice),
    /// Another subnet manager is master.
    StandingBy(RemoteSm),
    /// This SM would become master beside another one, which its caller forbade: the reason.
    Rival(String),
    /// The program cannot do its work.
    Fatal(String),
}

/// A received trap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrapNotice {
    /// Source LID.
    pub lid: Lid,
    /// The notice, without its issuer's GID, as SMPs carry it.
    pub notice: [u8; 64],
}

/// Queued events, oldest first.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Events {
    queue: VecDeque<Event>,
    /// Number of traps among them.
    traps_waiting: usize,
    /// Number of dropped traps.
    traps_dropped: u64,
    /// Rate limits for log lines about traps.
    trap_lines: Limit,
    trap_details: Limit,
    /// Lines about traps 256: those that our own requests cause come by the hundred.
    key_lines: HourlyLimit,
}

impl Events {
    pub(in crate::sweep) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    pub(in crate::sweep) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a trap, or drops it if too many are queued.
    pub(in crate::sweep) fn push_trap(&mut self, trap: TrapNotice) {
        if self.traps_waiting == TRAPS_MAX {
            self.traps_dropped += 1;
            return;
        }
        self.traps_waiting += 1;
        self.push(Event::Trap(trap));
    }

    pub(in crate::sweep) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.traps_waiting -= usize::from(matches!(event, Event::Trap(_)));
        Some(event)
    }

    /// Whether the caller has not handled the last event of a configured subnet.
    pub(in crate::sweep) fn has_configured(&self) -> bool {
        self.queue.iter().any(|event| matches!(event, Event::Configured(_)))
    }

    /// Discards events of a configured subnet: the configuration is about to change, or another
    /// subnet manager will set it.
    pub(in crate::sweep) fn drop_configured(&mut self) {
        self.queue.retain(|event| !matches!(event, Event::Configured(_) | Event::Routed));
    }

    /// Number of dropped traps.
    pub(in crate::sweep) fn traps_dropped(&self) -> u64 {
        self.traps_dropped
    }

    /// Whether a line about a trap may be logged as a warning now (rate limit).
    pub(in crate::sweep) fn admits_trap_line(&mut self, now: Instant) -> bool {
        self.trap_lines.admits(now)
    }

    /// Whether a line about a trap 256 may be logged now, and how many of its sender were not since
    /// the last one.
    pub(in crate::sweep) fn admits_key_line(&mut self, now: Instant, sender: Lid) -> Option<u64> {
        self.key_lines.admit(now, sender)
    }

    /// Whether a debug line about a trap may be logged now.
    pub(in crate::sweep) fn admits_trap_detail(&mut self, now: Instant) -> bool {
        self.trap_details.admits(now)
    }
}

/// Limits the number of lines per interval.
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

    /// Regression: Traps displaced the event that a sweep had ended, so that its result was not
    /// published.
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

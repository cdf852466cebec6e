//! When the next sweep is due, and its cause.
//!
//! Each cause has its own due time: none hides another, and none is handled in the name of another.
//! Repeated traps of one issuer are acted on at growing intervals, so that a flapping link or a
//! faulty agent does not block management of the fabric.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::TrapNumber;

use sm_config::Settings;

/// How long a trap waits for others of the same event: both ends of a link report its failure.
/// Those that come later are read by the discovery that is under way then.
const TRAP_DELAY: Duration = Duration::from_millis(2);
/// Hold-down time after the first trap; doubles with each further one.
const HOLD_DOWN: Duration = Duration::from_millis(20);
/// Longest time that a trap is held down.
const HOLD_DOWN_MAX: Duration = Duration::from_secs(2);
/// After this time without a trap, the hold-down is reset.
const QUIET: Duration = Duration::from_secs(10);
/// Consecutive sweeps for traps of any issuers before all traps are held down.
const STORM_SWEEPS: u32 = 16;
/// Delay of the first repetition of a sweep that ended with errors; doubled for each further one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest such delay.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// Maximum number of ports remembered for traps; beyond that a full sweep is requested.
const ISSUERS_MAX: usize = 1024;
/// Minimum interval between two full sweeps caused by too many traps.
const OVERFLOW_INTERVAL: Duration = Duration::from_secs(10);

/// Why a sweep is due. From [`Cause::Everything`] on, later variants have precedence; among the
/// others the one that has waited longest is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A poll of the master is due, in standby.
    Poll,
    /// A poll of unresponsive SMs is due, where light sweeps are off.
    Unresponsive,
    /// The interval of light sweeps has passed.
    Timer,
    /// Ports reported a change: [`Schedule::take_issuers`].
    Trap,
    /// A retry of unanswered links and faulty ports is due.
    Unanswered,
    /// A retry of everything is due, after errors.
    Everything,
    /// Another manager wrote over our settings, which are to be restored.
    Overwritten,
    /// Requested by the operator or another SM.
    Asked,
    /// This SM has become master.
    TakeOver,
}

impl Cause {
    /// All causes, by precedence.
    const ALL: [Self; 9] = [
        Self::TakeOver,
        Self::Asked,
        Self::Overwritten,
        Self::Everything,
        Self::Unanswered,
        Self::Trap,
        Self::Timer,
        Self::Unresponsive,
        Self::Poll,
    ];

    /// The cause, as text for logs and reports.
    pub fn words(self) -> &'static str {
        match self {
            Self::Poll => "master stopped answering polls",
            Self::Unresponsive => "subnet manager answers again",
            Self::Timer => "change seen by light sweep",
            Self::Trap => "trap",
            Self::Unanswered => "retry of unanswered requests",
            Self::Everything => "retry after errors",
            Self::Overwritten => "settings of another manager",
            Self::Asked => "requested",
            Self::TakeOver => "mastership handed over",
        }
    }

    /// Whether it reads or configures the fabric for no other reason than to keep it up to date.
    fn is_sweep(self) -> bool {
        !matches!(self, Self::Poll | Self::Unresponsive | Self::TakeOver)
    }

    /// Whether a full sweep is due, which covers all causes except polls.
    fn is_for_all(self) -> bool {
        matches!(self, Self::Everything | Self::Overwritten | Self::Asked | Self::TakeOver)
    }
}

/// The sweeps to come.
#[derive(Debug)]
pub(in crate::sweep) struct Schedule {
    interval: Option<Duration>,
    poll_interval: Duration,
    /// When each cause is due, by its number.
    due: [Option<Instant>; Cause::ALL.len()],
    /// Ports that recently sent traps.
    issuers: HashMap<Lid, Issuer>,
    /// Hold-down across all issuers.
    storm: HoldDown,
    /// When the next full sweep may be requested because of too many traps.
    overflow_ready: Option<Instant>,
    /// Whether an operator has suspended sweeps.
    is_paused: bool,
}

/// State of a port that sent traps.
#[derive(Debug, Default)]
struct Issuer {
    /// When it is due to be read, if at all.
    due: Option<Instant>,
    /// The first trap that caused this.
    trap: TrapNumber,
    hold_down: HoldDown,
}

/// A hold-down time that doubles with each action, and is reset after [`QUIET`].
#[derive(Debug, Default)]
struct HoldDown {
    last: Option<Instant>,
    /// Number of actions since the last quiet time.
    level: u32,
}

impl HoldDown {
    /// Records an action.
    fn act(&mut self, now: Instant) {
        self.level = if self.is_quiet(now) { 1 } else { self.level.saturating_add(1) };
        self.last = Some(now);
    }

    /// Earliest time of the next action; the first `free` actions are not delayed.
    fn ready(&self, free: u32) -> Option<Instant> {
        let doublings = self.level.checked_sub(free + 1)?.min(16);
        Some(self.last? + HOLD_DOWN.saturating_mul(1 << doublings).min(HOLD_DOWN_MAX))
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + QUIET)
    }
}

impl Schedule {
    pub(in crate::sweep) fn new(settings: &Settings) -> Self {
        let mut schedule = Self {
            interval: None,
            poll_interval: Duration::ZERO,
            due: [None; Cause::ALL.len()],
            issuers: HashMap::new(),
            storm: HoldDown::default(),
            overflow_ready: None,
            is_paused: false,
        };
        schedule.set_intervals(settings);
        schedule
    }

    /// Applies new intervals.
    pub(in crate::sweep) fn set_intervals(&mut self, settings: &Settings) {
        self.interval = (settings.sweep_interval > 0)
            .then(|| Duration::from_secs(u64::from(settings.sweep_interval)));
        self.poll_interval = Duration::from_millis(u64::from(settings.sminfo_polling_timeout));
    }

    /// Suspends sweeps, or resumes them. Polls of managers and takeovers go on.
    pub(in crate::sweep) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether sweeps are suspended.
    pub(in crate::sweep) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// When a sweep for this cause is due; `None` while it has to wait.
    fn due(&self, cause: Cause) -> Option<Instant> {
        let waits = self.is_paused && cause.is_sweep();
        self.due[cause as usize].filter(|_| !waits)
    }

    /// Asks for a sweep as soon as none is under way.
    pub(in crate::sweep) fn request(&mut self, now: Instant, cause: Cause) {
        self.want(now, cause);
    }

    /// Requests a read of the port with LID `issuer`, which sent a trap: at once, unless it or all
    /// ports together sent many recently.
    pub(in crate::sweep) fn request_for_trap(
        &mut self,
        now: Instant,
        issuer: Lid,
        trap: TrapNumber,
    ) {
        if self.issuers.len() >= ISSUERS_MAX && !self.issuers.contains_key(&issuer) {
            self.issuers.retain(|_, known| known.due.is_some() || !known.hold_down.is_quiet(now));
            if self.issuers.len() >= ISSUERS_MAX {
                return self.request_overflow(now);
            }
        }
        let known = self.issuers.entry(issuer).or_default();
        if known.due.is_none() {
            known.trap = trap;
        }
        let ready = known.hold_down.ready(0).max(self.storm.ready(STORM_SWEEPS));
        // The trap has no separate delay: it is handled with the next one that is due, unless its
        // issuer is held down.
        let due = *known.due.get_or_insert(ready.map_or(now, |ready| ready.max(now)));
        self.want(due.max(now + TRAP_DELAY), Cause::Trap);
    }

    /// Requests a sweep for the traps of ports that have no place.
    pub(in crate::sweep) fn request_overflow(&mut self, now: Instant) {
        let due = self.overflow_ready.map_or(now, |ready| ready.max(now)) + TRAP_DELAY;
        self.want(due, Cause::Asked);
    }

    /// Whether there are too many ports with traps for a further one.
    pub(in crate::sweep) fn has_no_room_for(&self, issuer: Lid) -> bool {
        self.issuers.len() >= ISSUERS_MAX && !self.issuers.contains_key(&issuer)
    }

    /// Removes the ports with traps that are not `known`. Returns whether there were any.
    pub(in crate::sweep) fn keep_issuers(&mut self, known: impl Fn(Lid) -> bool) -> bool {
        let before = self.issuers.len();
        self.issuers.retain(|lid, _| known(*lid));
        self.issuers.len() < before
    }

    /// Requests a retry after the `failures`th consecutive failure.
    pub(in crate::sweep) fn retry(&mut self, now: Instant, cause: Cause, failures: u32) {
        let delay = RETRY_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16));
        self.want(now + delay.min(RETRY_DELAY_MAX), cause);
    }

    /// Starts the interval to the next light sweep, unless it is already running: other sweeps do
    /// not restart it.
    pub(in crate::sweep) fn rearm(&mut self, now: Instant) {
        if let Some(interval) = self.interval {
            self.want(now + interval, Cause::Timer);
        }
    }

    /// Requests a sweep of the whole fabric at `due`, which restores our settings.
    pub(in crate::sweep) fn restore(&mut self, due: Instant) {
        self.want(due, Cause::Overwritten);
    }

    /// Schedules a poll of unresponsive SMs, unless light sweeps poll them.
    pub(in crate::sweep) fn await_unresponsive(&mut self, due: Instant) {
        if self.interval.is_none() {
            self.want(due, Cause::Unresponsive);
        }
    }

    /// Starts the interval to the next poll of the master.
    pub(in crate::sweep) fn rearm_poll(&mut self, now: Instant) {
        self.due[Cause::Poll as usize] = Some(now + self.poll_interval);
    }

    fn want(&mut self, due: Instant, cause: Cause) {
        let slot = &mut self.due[cause as usize];
        *slot = Some(slot.map_or(due, |other| other.min(due)));
    }

    /// When the next sweep is due.
    pub(in crate::sweep) fn next(&self) -> Option<Instant> {
        Cause::ALL.into_iter().filter_map(|cause| self.due(cause)).min()
    }

    /// The cause of a sweep that is due now, if any; it is removed, the others stay.
    pub(in crate::sweep) fn take_due(&mut self, now: Instant) -> Option<Cause> {
        let due = |cause: Cause| self.due(cause).filter(|due| *due <= now);
        let strong =
            Cause::ALL.into_iter().find(|&cause| cause.is_for_all() && due(cause).is_some());
        let cause = strong.or_else(|| {
            let waiting = Cause::ALL.into_iter().filter_map(|cause| Some((due(cause)?, cause)));
            waiting.min_by_key(|(due, _)| *due).map(|(_, cause)| cause)
        })?;
        self.due[cause as usize] = None;
        Some(cause)
    }

    /// Whether `cause` is due now, too; if so it is removed.
    pub(in crate::sweep) fn take(&mut self, now: Instant, cause: Cause) -> bool {
        self.due[cause as usize].take_if(|due| *due <= now).is_some()
    }

    /// Ports whose traps are due now, with the traps, by LID.
    pub(in crate::sweep) fn awaited(&self, now: Instant) -> Vec<(Lid, TrapNumber)> {
        let due = self.issuers.iter().filter(|(_, known)| known.due.is_some_and(|due| due <= now));
        let mut awaited: Vec<_> = due.map(|(&lid, known)| (lid, known.trap)).collect();
        awaited.sort_unstable();
        awaited
    }

    /// Removes from the schedule the ports whose traps are due; returns their LIDs.
    pub(in crate::sweep) fn take_issuers(&mut self, now: Instant) -> Vec<Lid> {
        let mut taken = Vec::new();
        for (lid, issuer) in &mut self.issuers {
            if issuer.due.take_if(|due| *due <= now).is_some() {
                issuer.hold_down.act(now);
                taken.push(*lid);
            }
        }
        if !taken.is_empty() {
            self.storm.act(now);
        }
        self.await_issuers();
        taken
    }

    /// Whether the trap of a port is due.
    pub(in crate::sweep) fn is_due(&self, now: Instant, lid: Lid) -> bool {
        self.issuers.get(&lid).is_some_and(|known| known.due.is_some_and(|due| due <= now))
    }

    /// Removes a port whose trap is due from the schedule, since it is read now.
    pub(in crate::sweep) fn take_issuer(&mut self, now: Instant, lid: Lid) {
        let Some(issuer) = self.issuers.get_mut(&lid) else { return };
        if issuer.due.take_if(|due| *due <= now).is_some() {
            issuer.hold_down.act(now);
            self.await_issuers();
        }
    }

    /// Plans the sweep for the traps that are not taken yet.
    fn await_issuers(&mut self) {
        let next = self.issuers.values().filter_map(|issuer| issuer.due).min();
        let next =
            next.map(|due| self.storm.ready(STORM_SWEEPS).map_or(due, |ready| ready.max(due)));
        self.due[Cause::Trap as usize] = next;
    }

    /// A full sweep starts: removes all causes that it covers.
    pub(in crate::sweep) fn begin_all(&mut self, now: Instant) {
        let polled = self.due[Cause::Poll as usize];
        if self.issuers.len() >= ISSUERS_MAX {
            self.overflow_ready = Some(now + OVERFLOW_INTERVAL);
        }
        let mut any = false;
        for issuer in self.issuers.values_mut().filter(|issuer| issuer.due.is_some()) {
            issuer.due = None;
            issuer.hold_down.act(now);
            any = true;
        }
        if any {
            self.storm.act(now);
        }
        self.due = [None; Cause::ALL.len()];
        self.due[Cause::Poll as usize] = polled;
    }

    /// Removes all causes.
    pub(in crate::sweep) fn clear(&mut self) {
        self.due = [None; Cause::ALL.len()];
        self.issuers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: TrapNumber = TrapNumber::LINK_STATE_CHANGE;

    fn schedule() -> (Instant, Schedule) {
        (Instant::now(), Schedule::new(&Settings::default()))
    }

    #[test]
    fn traps_of_one_event_make_one_sweep() {
        let (now, mut schedule) = schedule();
        schedule.request_for_trap(now, Lid(3), CHANGE);
        schedule.request_for_trap(now + TRAP_DELAY / 2, Lid(4), CHANGE);
        assert_eq!(schedule.take_due(now), None);
        assert_eq!(schedule.next(), Some(now + TRAP_DELAY));
        let now = now + TRAP_DELAY * 3 / 2;
        assert_eq!(schedule.take_due(now), Some(Cause::Trap));
        let mut issuers = schedule.take_issuers(now);
        issuers.sort_unstable();
        assert_eq!(issuers, [Lid(3), Lid(4)]);
        assert_eq!(schedule.take_due(now + TRAP_DELAY * 9), None);
    }

    #[test]
    fn sweeps_wait_while_paused_and_polls_do_not() {
        let (now, mut schedule) = schedule();
        schedule.pause(true);
        schedule.request(now, Cause::Asked);
        schedule.request_for_trap(now, Lid(3), CHANGE);
        assert_eq!(
            (schedule.next(), schedule.take_due(now + Duration::from_secs(1))),
            (None, None)
        );
        schedule.rearm_poll(now);
        assert!(schedule.next().is_some());
        schedule.request(now, Cause::TakeOver);
        assert_eq!(schedule.take_due(now), Some(Cause::TakeOver));
        schedule.pause(false);
        assert_eq!(schedule.take_due(now), Some(Cause::Asked), "kept meanwhile");
    }

    #[test]
    fn a_demand_is_not_lost_behind_a_trap() {
        let (now, mut schedule) = schedule();
        schedule.request_for_trap(now, Lid(3), CHANGE);
        schedule.request(now, Cause::Asked);
        assert_eq!(schedule.take_due(now + TRAP_DELAY), Some(Cause::Asked));
    }

    #[test]
    fn a_trap_neither_hides_behind_a_retry_nor_hastens_it() {
        let (now, mut schedule) = schedule();
        schedule.retry(now, Cause::Unanswered, 3);
        schedule.request_for_trap(now, Lid(3), CHANGE);
        assert_eq!(schedule.take_due(now + TRAP_DELAY), Some(Cause::Trap));
        assert_eq!(schedule.take_issuers(now + TRAP_DELAY), [Lid(3)]);
        assert_eq!(schedule.next(), Some(now + RETRY_DELAY * 4));
        assert_eq!(schedule.take_due(now + RETRY_DELAY * 4), Some(Cause::Unanswered));
    }

    #[test]
    fn failing_sweeps_are_repeated_ever_less_often() {
        let (now, mut schedule) = schedule();
        schedule.retry(now, Cause::Unanswered, 3);
        assert_eq!(schedule.next(), Some(now + RETRY_DELAY * 4));
        assert_eq!(schedule.take_due(now + RETRY_DELAY * 4), Some(Cause::Unanswered));
        schedule.retry(now, Cause::Everything, 40);
        assert_eq!(schedule.next(), Some(now + RETRY_DELAY_MAX));
    }

    /// Sends a trap every millisecond and takes what is due; returns the times at which that was.
    fn storm(schedule: &mut Schedule, start: Instant, issuer: impl Fn(u16) -> Lid) -> Vec<Instant> {
        let mut acted = Vec::new();
        for i in 0..20_000_u16 {
            let now = start + Duration::from_millis(u64::from(i));
            schedule.request_for_trap(now, issuer(i), CHANGE);
            match schedule.take_due(now) {
                Some(Cause::Trap) if !schedule.take_issuers(now).is_empty() => acted.push(now),
                Some(Cause::Asked) => {
                    schedule.begin_all(now);
                    acted.push(now);
                }
                _ => {}
            }
        }
        acted
    }

    #[test]
    fn a_babbling_issuer_is_held_down_and_the_others_are_not() {
        let (start, mut schedule) = schedule();
        let acted = storm(&mut schedule, start, |_| Lid(3));
        assert_eq!(acted[0], start + TRAP_DELAY, "the first is acted on at once");
        assert!((8..24).contains(&acted.len()), "{} sweeps in 20 s", acted.len());
        assert!(acted.windows(2).all(|pair| pair[1] - pair[0] <= HOLD_DOWN_MAX));
        let now = start + Duration::from_secs(20);
        schedule.request_for_trap(now, Lid(4), CHANGE);
        assert_eq!(schedule.take_due(now + TRAP_DELAY), Some(Cause::Trap));
        assert_eq!(schedule.take_issuers(now + TRAP_DELAY), [Lid(4)]);
        // The last trap of the babbler is acted on as well.
        let due = schedule.next().expect("a trap waits");
        assert!(due <= now + HOLD_DOWN_MAX);
        assert_eq!(schedule.take_due(due), Some(Cause::Trap));
        assert_eq!(schedule.take_issuers(due), [Lid(3)]);
        // And after some quiet there is no grudge.
        let now = due + QUIET;
        schedule.request_for_trap(now, Lid(3), CHANGE);
        assert_eq!(schedule.next(), Some(now + TRAP_DELAY));
    }

    #[test]
    fn traps_in_the_name_of_all_the_fabric_are_held_down_too() {
        let (start, mut schedule) = schedule();
        let acted = storm(&mut schedule, start, |i| Lid(i + 1));
        assert!(acted.len() < 60, "{} sweeps in 20 s", acted.len());
        assert!(schedule.issuers.len() <= ISSUERS_MAX);
        assert!(schedule.next().is_some(), "the last are not forgotten");
    }

    #[test]
    fn sweeps_for_traps_do_not_put_off_the_regular_one() {
        let (start, mut schedule) = schedule();
        schedule.rearm(start);
        let interval = schedule.interval.expect("light sweeps are on by default");
        for i in 1..20 {
            schedule.rearm(start + interval / 20 * i);
        }
        schedule.request_for_trap(start, Lid(3), CHANGE);
        schedule.request_for_trap(start + interval, Lid(4), CHANGE);
        let now = start + interval * 2;
        assert_eq!(schedule.take_due(now), Some(Cause::Trap), "it waits longest");
        schedule.take_issuers(now);
        schedule.request_for_trap(now, Lid(5), CHANGE);
        assert_eq!(schedule.take_due(now + interval), Some(Cause::Timer));
    }
}

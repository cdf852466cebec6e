//! When to sweep next, and why.
//!
//! Each cause waits for its own time: none hides another, and what one asks for is not done in the
//! name of another. Traps of the same issuer are acted on ever less often while they go on, so
//! that neither a flapping link nor a mad agent keeps the fabric from being managed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::TrapNumber;

use sm_config::Settings;

/// How long a trap waits for others of the same event: both ends of a link report its failure.
const TRAP_DELAY: Duration = Duration::from_millis(10);
/// How long traps are held down after the first was acted on; doubled for each further one.
const HOLD_DOWN: Duration = Duration::from_millis(20);
/// Longest time that a trap is held down.
const HOLD_DOWN_MAX: Duration = Duration::from_secs(2);
/// After so long without a trap acted on, all is forgiven.
const QUIET: Duration = Duration::from_secs(10);
/// Consecutive sweeps for traps of any issuers before all traps are held down.
const STORM_SWEEPS: u32 = 16;
/// Delay of the first repetition of a sweep that ended with errors; doubled for each further one.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Longest such delay.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// Ports remembered whose trap asks for a look at them; more ask for a look at everything.
const ISSUERS_MAX: usize = 1024;
/// How long it takes at least from one look at everything, for so many traps, to the next.
const OVERFLOW_INTERVAL: Duration = Duration::from_secs(10);

/// Why a sweep is due. From [`Cause::Everything`] on, the later are the stronger; of the others,
/// whichever waits longest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The master is to be polled, in standby.
    Poll,
    /// Subnet managers that are mute are to be asked again, where no light sweep does.
    Mute,
    /// The interval of light sweeps has passed.
    Timer,
    /// Ports reported a change: [`Schedule::take_issuers`].
    Trap,
    /// Links with no answer behind them, and ports with faults, are due for another attempt.
    Unanswered,
    /// Everything is to be tried again, since something could not be set.
    Everything,
    /// The operator wants it, or another subnet manager.
    Asked,
    /// We have just become master.
    TakeOver,
}

impl Cause {
    /// All, the strongest first.
    const ALL: [Self; 8] = [
        Self::TakeOver,
        Self::Asked,
        Self::Everything,
        Self::Unanswered,
        Self::Trap,
        Self::Timer,
        Self::Mute,
        Self::Poll,
    ];

    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Poll => "master stopped answering polls",
            Self::Mute => "subnet manager answers again",
            Self::Timer => "change seen by light sweep",
            Self::Trap => "trap",
            Self::Unanswered => "retry of unanswered requests",
            Self::Everything => "retry after errors",
            Self::Asked => "requested",
            Self::TakeOver => "mastership handed over",
        }
    }

    /// Whether the whole fabric is to be looked at, which covers all causes but polls.
    fn is_for_all(self) -> bool {
        matches!(self, Self::Everything | Self::Asked | Self::TakeOver)
    }
}

/// The sweeps to come.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Option<Duration>,
    poll_interval: Duration,
    /// When each cause is due, by its number.
    due: [Option<Instant>; Cause::ALL.len()],
    /// Who sent traps of late.
    issuers: HashMap<Lid, Issuer>,
    /// Holds down traps of all issuers together.
    storm: HoldDown,
    /// When traps may next ask for a look at everything, being too many to remember.
    overflow_ready: Option<Instant>,
}

/// What is known of a port that sent traps.
#[derive(Debug, Default)]
struct Issuer {
    /// From when on it is to be looked at, if it is.
    due: Option<Instant>,
    /// The first of its traps that asked for that.
    trap: TrapNumber,
    hold_down: HoldDown,
}

/// Makes repetitions wait: each longer than the one before, until there is quiet.
#[derive(Debug, Default)]
struct HoldDown {
    last: Option<Instant>,
    /// Times acted, none after [`QUIET`].
    level: u32,
}

impl HoldDown {
    /// Takes in that it was acted.
    fn act(&mut self, now: Instant) {
        self.level = if self.is_quiet(now) { 1 } else { self.level.saturating_add(1) };
        self.last = Some(now);
    }

    /// When it may be acted next, if `free` times are free.
    fn ready(&self, free: u32) -> Option<Instant> {
        let doublings = self.level.checked_sub(free + 1)?.min(16);
        Some(self.last? + HOLD_DOWN.saturating_mul(1 << doublings).min(HOLD_DOWN_MAX))
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + QUIET)
    }
}

impl Schedule {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut schedule = Self {
            interval: None,
            poll_interval: Duration::ZERO,
            due: [None; Cause::ALL.len()],
            issuers: HashMap::new(),
            storm: HoldDown::default(),
            overflow_ready: None,
        };
        schedule.set_intervals(settings);
        schedule
    }

    /// Takes the intervals of other settings, from the next time on.
    pub(super) fn set_intervals(&mut self, settings: &Settings) {
        self.interval = (settings.sweep_interval > 0)
            .then(|| Duration::from_secs(u64::from(settings.sweep_interval)));
        self.poll_interval = Duration::from_millis(u64::from(settings.sminfo_polling_timeout));
    }

    /// Asks for a sweep as soon as none is under way.
    pub(super) fn request(&mut self, now: Instant, cause: Cause) {
        self.want(now, cause);
    }

    /// Asks for a look at the port with LID `issuer`, which sent a trap. At once, unless it or all
    /// ports together sent many of late.
    pub(super) fn request_for_trap(&mut self, now: Instant, issuer: Lid, trap: TrapNumber) {
        if self.issuers.len() >= ISSUERS_MAX && !self.issuers.contains_key(&issuer) {
            self.issuers.retain(|_, known| known.due.is_some() || !known.hold_down.is_quiet(now));
            if self.issuers.len() >= ISSUERS_MAX {
                let due = self.overflow_ready.map_or(now, |ready| ready.max(now)) + TRAP_DELAY;
                return self.want(due, Cause::Asked);
            }
        }
        let known = self.issuers.entry(issuer).or_default();
        if known.due.is_none() {
            known.trap = trap;
        }
        let ready = known.hold_down.ready(0).max(self.storm.ready(STORM_SWEEPS));
        // Its trap needs no wait of its own: it is acted on with whichever other is, but for those
        // held down.
        let due = *known.due.get_or_insert(ready.map_or(now, |ready| ready.max(now)));
        self.want(due.max(now + TRAP_DELAY), Cause::Trap);
    }

    /// Asks for another try after the `failures`th failure in a row.
    pub(super) fn retry(&mut self, now: Instant, cause: Cause, failures: u32) {
        let delay = RETRY_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16));
        self.want(now + delay.min(RETRY_DELAY_MAX), cause);
    }

    /// Starts the interval to the next light sweep, unless it has begun already: other sweeps,
    /// however many, do not put it off.
    pub(super) fn rearm(&mut self, now: Instant) {
        if let Some(interval) = self.interval {
            self.want(now + interval, Cause::Timer);
        }
    }

    /// Asks for a question to subnet managers that are mute, unless light sweeps ask them.
    pub(super) fn await_mute(&mut self, due: Instant) {
        if self.interval.is_none() {
            self.want(due, Cause::Mute);
        }
    }

    /// Starts the interval to the next poll of the master.
    pub(super) fn rearm_poll(&mut self, now: Instant) {
        self.due[Cause::Poll as usize] = Some(now + self.poll_interval);
    }

    fn want(&mut self, due: Instant, cause: Cause) {
        let slot = &mut self.due[cause as usize];
        *slot = Some(slot.map_or(due, |other| other.min(due)));
    }

    /// When the next sweep is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.iter().flatten().min().copied()
    }

    /// Why a sweep is due now, if one is. That cause is done with; the others go on waiting.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Cause> {
        let due = |cause: Cause| self.due[cause as usize].filter(|due| *due <= now);
        let strong =
            Cause::ALL.into_iter().find(|&cause| cause.is_for_all() && due(cause).is_some());
        let cause = strong.or_else(|| {
            let waiting = Cause::ALL.into_iter().filter_map(|cause| Some((due(cause)?, cause)));
            waiting.min_by_key(|(due, _)| *due).map(|(_, cause)| cause)
        })?;
        self.due[cause as usize] = None;
        Some(cause)
    }

    /// Whether `cause` is due now too. If so, it is done with.
    pub(super) fn take(&mut self, now: Instant, cause: Cause) -> bool {
        self.due[cause as usize].take_if(|due| *due <= now).is_some()
    }

    /// The ports whose traps ask for a look at them now, and which traps, by LID.
    pub(super) fn awaited(&self, now: Instant) -> Vec<(Lid, TrapNumber)> {
        let due = self.issuers.iter().filter(|(_, known)| known.due.is_some_and(|due| due <= now));
        let mut awaited: Vec<_> = due.map(|(&lid, known)| (lid, known.trap)).collect();
        awaited.sort_unstable();
        awaited
    }

    /// The same ports, which are looked at now.
    pub(super) fn take_issuers(&mut self, now: Instant) -> Vec<Lid> {
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
        let next = self.issuers.values().filter_map(|issuer| issuer.due).min();
        let next =
            next.map(|due| self.storm.ready(STORM_SWEEPS).map_or(due, |ready| ready.max(due)));
        self.due[Cause::Trap as usize] = next;
        taken
    }

    /// A look at everything begins, which is all that anybody could want of a sweep.
    pub(super) fn begin_all(&mut self, now: Instant) {
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

    /// Wants nothing any more.
    pub(super) fn clear(&mut self) {
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

    /// Sends a trap every millisecond and takes what is due; returns when it was acted.
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

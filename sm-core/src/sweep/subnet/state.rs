//! State that outlives a sweep: whether the subnet is up, remaining faults, and counts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::Guid;
use sa_proto::metrics::Histogram;
use sa_proto::rate_limit::RateLimit;

use super::schedule::{Cause, Schedule};
use super::service::InService;
use crate::fabric::PortIndex;
use crate::manage::mkey::End;

/// Maximum doublings of the delay between checks of the SM's own port while it cannot be used. A
/// check costs two SMPs.
const CUT_OFF_DOUBLINGS: u32 = 3;

/// The subnet as the sweeps so far left it.
#[derive(Debug)]
pub(in crate::sweep) struct SubnetState {
    /// Number of the last discovery, full or partial.
    pub(in crate::sweep) discovery: u32,
    /// Whether the last sweep as master programmed the subnet, but for `faults`.
    pub(in crate::sweep) up: bool,
    /// Whether no sweep as master has programmed the fabric yet.
    pub(in crate::sweep) first_as_master: bool,
    /// Whether an active port named another SM as its master, when this term began.
    pub(in crate::sweep) found_other_master: bool,
    /// Whether the allowed widths or speeds changed, so that all ports must be set.
    pub(in crate::sweep) forced_links_changed: bool,
    /// Ports with a link whose far end did not answer in the last discovery.
    pub(in crate::sweep) unanswered: Vec<PortIndex>,
    /// Ports of switches whose links the last discovery left out, since they lead to a port with
    /// another one's GUID, back to their own, or to what does not belong. They are to carry no
    /// traffic.
    pub(in crate::sweep) left_out: Vec<PortIndex>,
    /// New nodes that the last discovery left out.
    pub(in crate::sweep) put_off: PutOff,
    /// Whether a discovery has read the fabric.
    pub(in crate::sweep) is_discovered: bool,
    /// Ports with attributes that the last sweep could not read or set.
    pub(in crate::sweep) faults: Vec<PortIndex>,
    /// End ports in service.
    pub(in crate::sweep) in_service: InService,
    /// Sweeps in a row that ended with errors.
    failed: u32,
    /// Sweeps in a row that were given up.
    given_up: u32,
    /// Whether our own port was found down.
    own_link_down: bool,
    /// Whether the far end of the SM's own link did not answer.
    no_neighbour: bool,
    /// Whether the SM's own node did not answer, or not for its port.
    own_node_silent: bool,
    /// The end port with which the next light sweep begins to read some, by its place among them.
    pub(in crate::sweep) sampled_next: usize,
    /// Light sweeps that found nothing changed.
    pub(in crate::sweep) quiet_sweeps: u64,
    /// Discoveries that started over.
    pub(in crate::sweep) starts_over: RateLimit,
    /// How long light sweeps took.
    pub(in crate::sweep) light_sweeps: Arc<Histogram>,
    pub(in crate::sweep) newcomers: Newcomers,
}

/// Ports at other places than their GUIDs belong to, which are empty.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Newcomers {
    /// How many there are, virtual ports included.
    pub(in crate::sweep) count: usize,
    /// The first of them: the port, the GUID and where that belongs.
    pub(in crate::sweep) listed: Vec<(PortIndex, Guid, End)>,
    /// When they are looked at again.
    pub(in crate::sweep) due: Option<Instant>,
    /// Ports that were such, and whose clients are to register again.
    pub(in crate::sweep) settled: BTreeSet<PortIndex>,
}

/// New nodes that a discovery left out.
#[derive(Debug, Default)]
pub(in crate::sweep) struct PutOff {
    /// The ports that lead to them.
    pub(in crate::sweep) ports: Vec<PortIndex>,
    /// Whether only their number was the reason, so that the next sweep reads more of them.
    pub(in crate::sweep) is_next: bool,
}

impl PutOff {
    /// Whether the next sweep goes on with them.
    fn continues(&self) -> bool {
        self.is_next && !self.ports.is_empty()
    }
}

impl Default for SubnetState {
    fn default() -> Self {
        Self {
            discovery: 0,
            up: false,
            first_as_master: true,
            found_other_master: false,
            forced_links_changed: false,
            unanswered: Vec::new(),
            left_out: Vec::new(),
            put_off: PutOff::default(),
            is_discovered: false,
            faults: Vec::new(),
            in_service: InService::default(),
            failed: 0,
            given_up: 0,
            own_link_down: false,
            no_neighbour: false,
            own_node_silent: false,
            sampled_next: 0,
            quiet_sweeps: 0,
            starts_over: RateLimit::default(),
            light_sweeps: Arc::new(Histogram::from_millisecond()),
            newcomers: Newcomers::default(),
        }
    }
}

impl SubnetState {
    /// Begins another discovery, which has its own number.
    pub(in crate::sweep) fn begin_discovery(&mut self) {
        self.discovery = self.discovery.wrapping_add(1);
    }

    /// Removes everything that refers to fabric indices.
    pub(in crate::sweep) fn forget_ports(&mut self) {
        self.unanswered.clear();
        self.put_off.ports.clear();
        self.left_out.clear();
        self.faults.clear();
        self.newcomers.settled.clear();
    }

    /// Sweeps in a row that were given up.
    pub(in crate::sweep) fn given_up(&self) -> u32 {
        self.given_up
    }

    /// Why the SM is cut off from the fabric, if it is.
    pub(in crate::sweep) fn cut_off(&self) -> Option<&'static str> {
        match (self.own_link_down, self.no_neighbour, self.own_node_silent) {
            (_, _, true) => {
                Some("the SM's own port does not answer SMPs: it may have another M_Key")
            }
            (true, ..) => Some("the SM's own port has no link"),
            (false, true, _) => Some("nothing answers behind the SM's own port"),
            (false, false, _) => None,
        }
    }

    /// Whether the SM's own node did not answer in the last discovery.
    pub(in crate::sweep) fn is_own_node_silent(&self) -> bool {
        self.own_node_silent
    }

    /// Records whether the SM's own node and port answer.
    pub(in crate::sweep) fn set_own_node_silent(&mut self, is_silent: bool) {
        self.own_node_silent = is_silent;
    }

    /// Records that the SM's own port is down; returns whether that is new. It is checked again
    /// soon.
    pub(in crate::sweep) fn own_link_lost(&mut self) -> bool {
        self.failed = self.failed.min(CUT_OFF_DOUBLINGS);
        !std::mem::replace(&mut self.own_link_down, true)
    }

    /// Records that the SM's own port has a link; returns whether that is new.
    pub(in crate::sweep) fn own_link_found(&mut self) -> bool {
        std::mem::take(&mut self.own_link_down)
    }

    /// Records that the far end of the SM's own link does not answer; returns whether that is new.
    /// It is checked again soon.
    pub(in crate::sweep) fn neighbour_lost(&mut self) -> bool {
        self.failed = self.failed.min(CUT_OFF_DOUBLINGS);
        !std::mem::replace(&mut self.no_neighbour, true)
    }

    /// Records that the far end of the SM's own link answers; returns whether that is new.
    pub(in crate::sweep) fn neighbour_found(&mut self) -> bool {
        std::mem::take(&mut self.no_neighbour)
    }

    /// A sweep was abandoned: requests another, with growing delay.
    pub(in crate::sweep) fn give_up(&mut self, now: Instant, schedule: &mut Schedule) {
        self.failed += 1;
        self.given_up += 1;
        self.up = false;
        schedule.retry(now, Cause::Everything, self.failed);
    }

    /// A sweep ended with these `faults`, in order; `up`: whether the subnet is up. Faulty ports
    /// are retried, with growing delay while the same ones fail.
    pub(in crate::sweep) fn end_sweep(
        &mut self,
        now: Instant,
        up: bool,
        faults: Vec<PortIndex>,
        schedule: &mut Schedule,
    ) {
        self.first_as_master &= !up;
        self.forced_links_changed &= !up;
        self.up = up;
        self.given_up = 0;
        let same = faults == self.faults && !self.put_off.continues();
        self.faults = faults;
        if !up {
            self.failed += 1;
            schedule.retry(now, Cause::Everything, self.failed);
        } else if [&self.faults, &self.unanswered, &self.put_off.ports].iter().all(|p| p.is_empty())
        {
            self.failed = 0;
        } else {
            self.failed = if same { self.failed + 1 } else { 1 };
            schedule.retry(now, Cause::Unanswered, self.failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use sm_config::Settings;

    /// The time from now until the next sweep is due, after `act`.
    fn retried(
        state: &mut SubnetState,
        act: impl Fn(&mut SubnetState, Instant, &mut Schedule),
    ) -> Option<Duration> {
        let (now, mut schedule) = (Instant::now(), Schedule::new(&Settings::default()));
        act(state, now, &mut schedule);
        schedule.next().map(|due| due - now)
    }

    fn ended(state: &mut SubnetState, up: bool, faults: &[u32]) -> Option<Duration> {
        retried(state, |state, now, schedule| {
            let faults = faults.iter().copied().map(PortIndex::from_bits).collect();
            state.end_sweep(now, up, faults, schedule);
        })
    }

    #[test]
    fn the_same_faults_are_tried_ever_later_and_others_at_once() {
        let mut state = SubnetState::default();
        let first = ended(&mut state, true, &[1]).unwrap();
        assert_eq!(ended(&mut state, true, &[1]), Some(first * 2));
        assert_eq!(ended(&mut state, true, &[1, 2]), Some(first));
        assert_eq!(ended(&mut state, true, &[]), None, "nothing is left to try");
        state.unanswered.push(PortIndex::from_bits(3));
        assert_eq!(ended(&mut state, true, &[]), Some(first));
    }

    #[test]
    fn the_first_sweep_as_master_is_repeated_until_one_leaves_the_subnet_up() {
        let mut state = SubnetState { forced_links_changed: true, ..SubnetState::default() };
        let first = ended(&mut state, false, &[]).unwrap();
        assert!(!state.up && state.first_as_master && state.forced_links_changed);
        assert_eq!(ended(&mut state, false, &[]), Some(first * 2));
        ended(&mut state, true, &[]);
        assert!(state.up && !state.first_as_master && !state.forced_links_changed);
    }

    #[test]
    fn our_own_port_is_looked_at_before_long_however_often_that_failed() {
        let mut state = SubnetState::default();
        let first = retried(&mut state, SubnetState::give_up).unwrap();
        for _ in 0..9 {
            retried(&mut state, SubnetState::give_up);
        }
        assert!(state.own_link_lost() && !state.own_link_lost(), "it is reported once");
        let delay = retried(&mut state, SubnetState::give_up);
        assert_eq!(delay, Some(first * (1 << CUT_OFF_DOUBLINGS)));
        assert_eq!(state.given_up(), 11);
        assert_eq!(state.cut_off(), Some("the SM's own port has no link"));
        assert!(state.own_link_found() && !state.own_link_found());
        assert_eq!(state.cut_off(), None);
    }
}

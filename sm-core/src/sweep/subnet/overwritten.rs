//! Settings that another subnet manager wrote over those of this one: when a sweep of the whole
//! fabric restores them.
//!
//! The first restoration starts at once. A rival that keeps writing does not cause endless sweeps:
//! the interval to the next one is [`INTERVAL`], and doubles with each up to [`INTERVAL_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ib_mad::types::Lid;
use ib_mad::wire::attribute::{PortInfo, PortState, SwitchInfo};
use tracing::warn;

use super::Subnet;
use super::log::STATE;
use crate::fabric::{NodeIndex, PortIndex};

/// Interval after the first restoration. Also the shortest one, for a rival that ends.
const INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval between two restorations.
const INTERVAL_MAX: Duration = Duration::from_secs(320);
/// Without a restoration for so long, the next one starts at once.
const QUIET: Duration = Duration::from_secs(1800);
/// How long a restored fabric is still reported: until a light sweep can have confirmed it.
const CONFIRMED_AFTER: Duration = Duration::from_secs(15);

/// Number of tops of forwarding tables that are remembered: answers may be lost, so that a switch
/// has an earlier one than is known.
const TOPS_MAX: usize = 64;

/// What is known of settings that another manager wrote.
#[derive(Debug, Default)]
pub(in crate::sweep) struct Overwritten {
    step: Step,
    /// What was found, as text; empty if nothing was.
    found: String,
    /// Largest number of end ports whose addresses were not ours when a restoration set them, of
    /// those reported together.
    ports: usize,
    /// Restorations since the last quiet time.
    level: u32,
    /// When the last restoration started.
    began: Option<Instant>,
    /// When the last one ended.
    ended: Option<Instant>,
    /// The last tops of forwarding tables that this manager wrote, oldest first.
    tops: VecDeque<Lid>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// There is nothing to restore.
    #[default]
    Settled,
    /// The next sweep of the whole fabric restores.
    Pending,
    /// The sweep under way restores. `again`: whether another one is to follow.
    Restoring { again: bool },
}

/// What shows that another manager may have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sweep) enum Sign {
    /// Settings are not ours, or a manager that is ignored became master.
    Written,
    /// Such a master is gone, or is no longer master: what is restored now stays.
    RivalEnded,
}

impl Overwritten {
    /// Records a sign. Returns when a sweep of the whole fabric is to restore the settings, if that
    /// is news.
    fn note(
        &mut self,
        now: Instant,
        sign: Sign,
        found: impl FnOnce() -> String,
    ) -> Option<Instant> {
        let has_ended = sign == Sign::RivalEnded;
        match &mut self.step {
            Step::Pending if has_ended => return Some(self.soonest(now)),
            Step::Pending => return None,
            Step::Restoring { again } => {
                *again |= has_ended;
                return None;
            }
            Step::Settled => {}
        }
        if self.began.is_some_and(|began| now >= began + QUIET) {
            self.level = 0;
        }
        if !self.is_reported(now) {
            self.ports = 0;
        }
        self.step = Step::Pending;
        self.found = found();
        Some(if has_ended { self.soonest(now) } else { self.regular(now) })
    }

    fn soonest(&self, now: Instant) -> Instant {
        self.began.map_or(now, |began| now.max(began + INTERVAL))
    }

    fn regular(&self, now: Instant) -> Instant {
        let Some(doublings) = self.level.checked_sub(1) else { return now };
        let interval = INTERVAL.saturating_mul(1 << doublings.min(16)).min(INTERVAL_MAX);
        self.began.map_or(now, |began| now.max(began + interval))
    }

    /// A sweep of the whole fabric starts. Returns whether it is to restore the settings.
    pub(in crate::sweep) fn begin(&mut self, now: Instant) -> bool {
        if self.step == Step::Settled {
            return false;
        }
        self.step = Step::Restoring { again: false };
        self.level = self.level.saturating_add(1);
        self.began = Some(now);
        true
    }

    /// Whether the sweep under way restores settings.
    pub(in crate::sweep) fn is_restoring(&self) -> bool {
        matches!(self.step, Step::Restoring { .. })
    }

    /// A sweep has programmed the fabric. Returns when another restoration is due, if one is.
    fn end(&mut self, now: Instant) -> Option<Instant> {
        let Step::Restoring { again } = self.step else { return None };
        self.ended = Some(now);
        self.step = if again { Step::Pending } else { Step::Settled };
        again.then(|| self.soonest(now))
    }

    /// Discards what is pending: this manager is no longer master, or programs everything anyway.
    pub(in crate::sweep) fn forget(&mut self) {
        self.step = Step::Settled;
        self.ended = None;
    }

    /// Whether another manager wrote lately.
    pub(in crate::sweep) fn is_reported(&self, now: Instant) -> bool {
        self.step != Step::Settled || self.ended.is_some_and(|ended| now < ended + CONFIRMED_AFTER)
    }

    /// What was found, as text, until it is restored and a light sweep can have confirmed that.
    pub(in crate::sweep) fn text(&self, now: Instant) -> Option<String> {
        let (found, ports) = (&self.found, self.ports);
        let outcome = match self.step {
            _ if !self.is_reported(now) => return None,
            Step::Settled if ports == 0 => "restored".to_owned(),
            Step::Settled => format!("restored, among them the addresses of {ports} ports"),
            Step::Pending | Step::Restoring { .. } => {
                "a sweep of the whole fabric restores the settings".to_owned()
            }
        };
        Some(format!("{found}; {outcome}"))
    }
}

impl Subnet {
    /// Records that another manager wrote, or may have: a sweep of the whole fabric restores the
    /// settings.
    pub(in crate::sweep) fn note_overwritten(
        &mut self,
        now: Instant,
        sign: Sign,
        found: impl FnOnce(&Self) -> String,
    ) {
        if !self.has_settings() {
            return;
        }
        let mut overwritten = std::mem::take(&mut self.overwritten);
        let due = overwritten.note(now, sign, || found(self));
        self.overwritten = overwritten;
        let Some(due) = due else { return };
        let wait = due.saturating_duration_since(now).as_secs_f32().ceil();
        warn!(
            target: STATE,
            "{}: a sweep of the whole fabric restores the settings, in {wait} s",
            self.overwritten.found
        );
        self.schedule.restore(due);
    }

    /// Whether this manager has programmed the fabric, so that other settings are not its own.
    fn has_settings(&self) -> bool {
        self.election.is_master() && self.state.up && !self.state.first_as_master
    }

    /// Compares PortInfo of a port, as just read, with what is known: addresses that another
    /// manager set in place of ours, as text. Those of another node, which answers by the route to
    /// this one, look the same.
    pub(in crate::sweep) fn other_addresses(
        &self,
        port: PortIndex,
        data: &[u8; 64],
    ) -> Option<String> {
        if !self.has_settings() || !self.has_other_addresses(port, data) {
            return None;
        }
        let read = PortInfo::of(data);
        let (lid, master) = (read.base_lid(), read.master_sm_lid());
        let whose = self.end_port_at(master).map(|port| self.fabric.describe(port));
        let whose = whose.map_or_else(String::new, |place| format!(", {place}"));
        Some(format!(
            "ports were programmed by another manager: {} has LID {lid} and MasterSMLID \
             {master}{whose}",
            self.fabric.describe(port)
        ))
    }

    /// Whether an end port has other addresses than ours, which it had. A port that was reset has
    /// none.
    fn has_other_addresses(&self, port: PortIndex, data: &[u8; 64]) -> bool {
        if !self.fabric.has_lids(port) {
            return false;
        }
        let entry = self.fabric.port(port);
        let Some(range) = self.lids.get(entry.guid) else { return false };
        let (known, read) = (entry.port_info(), PortInfo::of(data));
        let (sa_lid, sa_sl) = self.sa_of(port);
        let is_other =
            |read: Lid, ours: Lid, known: Lid| read.is_unicast() && read != ours && known == ours;
        let is_other_sl = read.master_sm_lid().is_unicast()
            && read.master_sm_sl() != sa_sl
            && known.master_sm_sl() == sa_sl;
        is_other(read.base_lid(), range.first, known.base_lid())
            || is_other(read.master_sm_lid(), sa_lid, known.master_sm_lid())
            || is_other_sl
    }

    /// Compares SwitchInfo, as just read, with what is known: the top of a forwarding table that
    /// another manager wrote, as text. A switch that was reset has none. The top of another switch,
    /// which answers by the route to this one, may look the same.
    pub(in crate::sweep) fn other_top(&self, node: NodeIndex, data: &[u8; 64]) -> Option<String> {
        let node = self.fabric.node(node);
        let known = self.fabric.switch(node.switch?).switch_info().linear_fdb_top();
        let (ours, read) = (self.routing.top, SwitchInfo::of(data).linear_fdb_top());
        let is_ours = read == ours || self.overwritten.tops.contains(&read);
        let is_other = read.is_unicast() && !is_ours && known == ours;
        (is_other && self.has_settings()).then(|| {
            format!(
                "switches were programmed by another manager: the forwarding table of '{}' {} ends \
                 at LID {read}",
                node.name(),
                node.guid
            )
        })
    }

    /// Counts the end ports whose addresses the sweep under way restores.
    pub(in crate::sweep) fn count_overwritten(&mut self) {
        if !self.overwritten.is_restoring() {
            return;
        }
        let is_other = |port: &PortIndex| {
            let entry = self.fabric.port(*port);
            let ours = self.lids.get(entry.guid).map(|range| range.first);
            let info = entry.port_info();
            entry.state() == Some(PortState::Active)
                && (ours != Some(info.base_lid()) || info.master_sm_lid() != self.sa_of(*port).0)
        };
        let ports = self.fabric.end_ports().filter(is_other).count();
        self.overwritten.ports = self.overwritten.ports.max(ports);
    }

    /// A sweep has ended: if it restored settings, they are.
    pub(in crate::sweep) fn end_restoration(&mut self, now: Instant, is_up: bool) {
        let (tops, top) = (&mut self.overwritten.tops, self.routing.top);
        if tops.back() != Some(&top) {
            tops.push_back(top);
            tops.drain(..tops.len().saturating_sub(TOPS_MAX));
        }
        if !is_up {
            return;
        }
        if let Some(due) = self.overwritten.end(now) {
            self.schedule.restore(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        "ports were programmed by another manager".to_owned()
    }

    /// A rival that writes for an hour, each second.
    #[test]
    fn a_rival_that_keeps_writing_is_overwritten_ever_less_often() {
        let (mut overwritten, start) = (Overwritten::default(), Instant::now());
        let (mut due, mut restored) = (None, Vec::new());
        for second in 0..3600 {
            let now = start + Duration::from_secs(second);
            due = overwritten.note(now, Sign::Written, text).or(due);
            assert!(overwritten.text(now).is_some());
            if due.take_if(|due| *due <= now).is_some() {
                assert!(overwritten.begin(now));
                assert_eq!(overwritten.end(now), None);
                restored.push(second);
            }
        }
        assert_eq!(restored[..5], [0, 10, 30, 70, 150]);
        assert!(restored.len() < 18, "{restored:?}");
        let now = start + Duration::from_secs(3600) + QUIET;
        assert!(overwritten.begin(now), "what is pending is restored by any full sweep");
        overwritten.end(now);
        let now = now + QUIET;
        assert_eq!(overwritten.text(now), None, "it is over");
        assert_eq!(overwritten.note(now, Sign::Written, text), Some(now), "and forgotten");
    }

    #[test]
    fn what_a_rival_left_is_restored_soon_after_it_ended() {
        let (mut overwritten, start) = (Overwritten::default(), Instant::now());
        for level in 1..=5 {
            let due = overwritten.note(start, Sign::Written, text).unwrap();
            assert!(overwritten.begin(due), "{level}");
            overwritten.end(due);
        }
        let began = overwritten.began.unwrap();
        let later = overwritten.note(began, Sign::Written, text).unwrap();
        let now = began + Duration::from_secs(1);
        assert_eq!(later, began + INTERVAL * 16);
        let due = began + INTERVAL;
        assert_eq!(overwritten.note(now, Sign::RivalEnded, text), Some(due));
        overwritten.begin(due);
        assert_eq!(overwritten.note(due, Sign::RivalEnded, text), None);
        assert_eq!(overwritten.end(due), Some(due + INTERVAL), "it wrote during the sweep");
    }
}

//! Events, for the history and for programs: what this manager does, and what the fabric reports.

use std::time::{Duration, Instant};

use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::attribute::{PortErrorDetails, SmNotice, SmState, TrapNumber};

use super::{Action, Node};
use crate::observe::event::{self, Draft, EventKind};
use crate::observe::problem::{Severity, Subject};
use sm_core::fabric::PortIndex;
use sm_core::sweep::{Report, TrapNotice};
use sm_core::trap::HourlyLimit;

/// Traps noted per second: each is looked up among all ports.
const TRAPS_PER_SECOND: u32 = 10;

/// What is remembered for events.
#[derive(Debug, Default)]
pub(super) struct Diary {
    /// State in the election as last noted.
    state: Option<SmState>,
    /// When the current second began, and the traps in it.
    second: Option<(Instant, u32)>,
    /// Traps left out since the last one noted.
    left_out: u64,
    /// Traps 256: a manager that lacks an M_Key causes many.
    of_keys: HourlyLimit,
}

impl Diary {
    /// Whether a trap of this kind and sender may be noted, and how many before it were not.
    fn admit(&mut self, now: Instant, is_of_key: bool, sender: Lid) -> Option<u64> {
        match is_of_key {
            true => self.of_keys.admit(now, sender),
            false => self.admit_trap(now),
        }
    }

    /// Whether a trap may be noted, and how many before it were not.
    fn admit_trap(&mut self, now: Instant) -> Option<u64> {
        let (begun, count) = self
            .second
            .filter(|(begun, _)| now.saturating_duration_since(*begun) < Duration::from_secs(1))
            .unwrap_or((now, 0));
        self.second = Some((begun, count + 1));
        if count < TRAPS_PER_SECOND {
            return Some(std::mem::take(&mut self.left_out));
        }
        self.left_out += 1;
        None
    }
}

impl Node {
    /// Has the driver note an event.
    pub(super) fn note(&mut self, draft: Draft) {
        self.actions.push_back(Action::Note(Box::new(draft)));
    }

    /// Notes what a sweep that has ended did. Its end is noted by the driver, with what came and
    /// went.
    pub(super) fn note_results(&mut self, report: &Report, is_news: bool) {
        let routed = event::routing_done(report);
        let written = event::tables_changed(report);
        let up = (report.up && is_news).then(|| event::subnet_up(report));
        routed.into_iter().chain(written).chain(up).for_each(|draft| self.note(draft));
    }

    /// Notes a change of the state in the election.
    pub(super) fn note_mastership(&mut self) {
        let state = self.sweeper.sm_state();
        let before = self.diary.state.replace(state);
        if before == Some(state) {
            return;
        }
        let was = before.map_or_else(|| "starting".to_owned(), |before| before.to_string());
        let loses = before == Some(SmState::Master);
        let draft = Draft::new(EventKind::Mastership, format!("this SM is {state}, and was {was}"))
            .rated(loses.then_some(Severity::Warning))
            .with("state", state.to_string())
            .with("before", was)
            .with("priority", u64::from(self.sweeper.settings().sm_priority));
        self.note(draft);
    }

    /// Notes a trap of the fabric's. Of a storm, some are left out and counted.
    pub(super) fn note_trap(&mut self, now: Instant, trap: &TrapNotice) {
        let Ok(notice) = SmNotice::new(&trap.notice[..]) else { return };
        let (number, is_generic) = (notice.trap_number(), notice.is_generic());
        let is_of_key = is_generic && number == TrapNumber::BAD_MKEY;
        let Some(left_out) = self.diary.admit(now, is_of_key, trap.lid) else { return };
        let name = number.name().filter(|_| is_generic).unwrap_or("vendor's notice");
        let named = is_generic.then(|| named_port(number, &notice.data_details())).flatten();
        let subject = self.subject_of_lid(trap.lid, named);
        let sender = match subject.guid {
            Some(_) => subject.to_string(),
            None => format!("LID {}", trap.lid),
        };
        let draft =
            Draft::new(EventKind::Trap, format!("trap {}, {name}, from {sender}", number.0))
                .about(subject)
                .with("number", u64::from(number.0))
                .with("generic", is_generic)
                .with("lid", u64::from(trap.lid.0));
        self.note(match left_out {
            0 => draft,
            left_out => draft.with("suppressed_before", left_out),
        });
    }

    /// The node with a LID, and the port that a trap names, if it is one of that node's; without a
    /// GUID if no node has the LID.
    fn subject_of_lid(&self, lid: Lid, named: Option<(Lid, PortNum)>) -> Subject {
        let fabric = self.sweeper.fabric();
        let Some(guid) = self.registry.port_guid(lid) else { return Subject::subnet() };
        let Some(port) = fabric.end_ports().find(|&port| fabric.port(port).guid == guid) else {
            return Subject::subnet();
        };
        let sender = Subject::of(fabric, port);
        // Any host could accuse others.
        let named = named.filter(|(lid, _)| self.registry.port_guid(*lid) == Some(guid));
        let of_node = fabric.ports_of(fabric.port(port).node);
        let is_named =
            |port: &PortIndex| named.is_some_and(|(_, num)| fabric.port(*port).num == num);
        of_node.into_iter().find(is_named).map_or(sender, |port| Subject::of(fabric, port))
    }

    /// Notes that settings, or files of the operator's, are in force as they were read again.
    pub(super) fn note_configuration(&mut self, text: String, what: Vec<String>) {
        self.note(Draft::new(EventKind::Configuration, text).with("changes", what));
    }
}

/// The port that a generic trap names, which is not the one that sent it (IBA 14.2.5.1).
fn named_port(number: TrapNumber, details: &[u8; 54]) -> Option<(Lid, PortNum)> {
    let is_of_port = [
        TrapNumber::LOCAL_LINK_INTEGRITY,
        TrapNumber::EXCESSIVE_BUFFER_OVERRUN,
        TrapNumber::FLOW_CONTROL_UPDATE,
    ]
    .contains(&number);
    let details = PortErrorDetails::new(&details[..]).ok().filter(|_| is_of_port)?;
    Some((details.lid(), details.port_num()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_storm_of_traps_a_few_each_second_are_noted_and_the_others_counted() {
        let (mut diary, start) = (Diary::default(), Instant::now());
        let noted = (0..1000).filter(|_| diary.admit_trap(start).is_some()).count();
        assert_eq!(noted, TRAPS_PER_SECOND as usize);
        let later = start + Duration::from_secs(1);
        assert_eq!(diary.admit_trap(later), Some(1000 - u64::from(TRAPS_PER_SECOND)));
        assert_eq!(diary.admit_trap(later), Some(0));
    }

    #[test]
    fn traps_about_m_keys_are_noted_once_an_hour_and_node() {
        let (mut diary, start) = (Diary::default(), Instant::now());
        let mut noted = 0;
        for second in 0..3600 {
            let now = start + Duration::from_secs(second);
            noted +=
                [1, 1, 2].iter().filter(|&&lid| diary.admit(now, true, Lid(lid)).is_some()).count();
        }
        assert_eq!(noted, 2);
        assert_eq!(diary.admit(start + Duration::from_secs(3600), true, Lid(1)), Some(7199));
    }
}

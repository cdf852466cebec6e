//! Whether all is as it should be again after something failed: then reads are judged again.

use std::time::Duration;

use super::{Event, Place, World};
use crate::manager::Manager;
use crate::responder::Responder;

/// How often that is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

impl World {
    /// Notes it if everything is current again and nothing fails any more that could change that.
    pub(super) fn look_for_calm(&mut self) {
        let now = self.now();
        if self.calm_since.is_some() || now < self.calm_due || !self.episode.has_begun {
            return;
        }
        self.calm_due = now + INTERVAL;
        if self.is_calm() {
            self.note(format_args!("everything is current again"));
            self.calm_since = Some(now);
        }
    }

    fn is_calm(&self) -> bool {
        let is_well = |place: &Place<Manager>| {
            let process = place.process.as_ref().filter(|_| !place.is_stopped);
            process.is_some_and(|manager| !manager.hangs() && manager.stored().is_some())
        };
        // What is to be repaired still fails.
        let fails = |event: &Event| match event {
            Event::Repair(fault) => fault.is_hard(),
            Event::Resume(_) | Event::Start(_) | Event::Strike | Event::Blackout(_) => true,
            _ => false,
        };
        if self.agenda.iter().any(|entry| fails(&entry.event))
            || self.was_split
            || self.had_incomplete_takeover()
            || !self.managers.iter().all(is_well)
        {
            return false;
        }
        let mut publishing = self.running().enumerate().filter(|(_, it)| it.is_publishing());
        let (Some((index, master)), None) = (publishing.next(), publishing.next()) else {
            return false;
        };
        let is_current = |place: &Place<Responder>| {
            let responder = place.process.as_ref().filter(|_| !place.is_stopped);
            responder.is_some_and(|it| it.follows(index, master.version(), self.config.own_ports))
        };
        master.is_up() && master.acknowledges() && self.responders.iter().all(is_current)
    }
}

//! The stage of discovery: starts it, and decides which stage follows.

use std::time::Instant;

use ib_mad::wire::attribute::NodeInfo;

use super::Sweeper;
use crate::fabric::NodeIndex;
use crate::smp::{Kind, Request};
use crate::sweep::stages::discover::Discovery;
use crate::sweep::stages::discover::end::End;
use crate::sweep::stages::discover::notes::CameBack;
use crate::sweep::stages::{Stage, Sweep};
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::schedule::Cause;

impl Sweeper {
    /// Starts a discovery of the whole fabric, or from `changed` on. A partial discovery queries
    /// `suspects` last, by routes that avoid links found down.
    pub(super) fn begin_discovery(
        &mut self,
        now: Instant,
        changed: Option<Vec<NodeIndex>>,
        suspects: Vec<NodeIndex>,
    ) {
        let full = changed.is_none();
        let journal = std::mem::take(&mut self.subnet.journal);
        self.subnet.journal = journal.into_discovery(full);
        self.sweep = Sweep::default();
        self.subnet.journal.report.first = self.subnet.state.first_as_master;
        self.subnet.journal.report.smps = self.subnet.exchange.counters().transmitted;
        self.subnet.state.begin_discovery();
        self.take_system_images(full);
        let discovery = Discovery::new(&self.subnet, full, suspects);
        self.enter(now, Stage::Discover(Box::new(discovery)));
        match changed {
            None => {
                if self.subnet.fabric.wants_compaction() {
                    self.compact_fabric();
                    self.subnet.partitions.forget();
                    self.virtual_ports.forget_all();
                    self.subnet.election.forget_ports();
                    self.subnet.state.forget_ports();
                    // This sweep asks the clients that wait.
                    self.reregistration.clear(&mut self.subnet);
                }
                self.subnet.schedule.begin_all(now);
                if self.subnet.overwritten.begin(now) {
                    self.forget_tables();
                }
                self.subnet.events.push(Event::Discovering);
                self.subnet.exchange.push(Request::OWN_NODE_INFO);
            }
            Some(nodes) => {
                // If our own cable was pulled, nothing else is known of the fabric.
                let own = self.subnet.fabric.own_ports();
                let own: Vec<_> = own.filter(|&own| self.subnet.is_adapter_port(own)).collect();
                for port in own {
                    self.subnet.exchange.push(Request::new(Kind::PortInfo, port));
                }
                let Self { subnet, sweep, .. } = self;
                if let Stage::Discover(discovery) = &mut sweep.stage {
                    discovery.probe_left_out(subnet, &nodes);
                    // What is retried is not known to have changed.
                    match subnet.journal.report.cause {
                        Some(Cause::Unanswered) => subnet.visit_all(nodes),
                        _ => discovery.visit_changed(subnet, nodes),
                    }
                }
            }
        }
    }
}

impl Sweeper {
    /// Ends a discovery: starts the election, or abandons the sweep.
    pub(in crate::sweep) fn end_discovery(&mut self, now: Instant, discovery: Discovery) {
        let full = discovery.full;
        for port in &discovery.retrained {
            self.aliases.forget(&mut self.subnet, *port);
            self.virtual_ports.forget(*port);
        }
        match discovery.end(&mut self.subnet, now) {
            End::Read => self.begin_election(now, full),
            End::Abandoned => self.give_up(now),
            End::Outdated(came_back) => self.start_over(now, came_back),
        }
    }

    /// Discovers the whole fabric in place of what an outdated discovery has read.
    fn start_over(&mut self, now: Instant, came_back: CameBack) {
        // A compaction gives all ports other numbers.
        let is_kept = !self.subnet.fabric.wants_compaction();
        self.begin_discovery(now, None, Vec::new());
        if let Stage::Discover(discovery) = &mut self.sweep.stage
            && is_kept
        {
            discovery.came_back = came_back;
        }
    }

    /// Ends a sweep without a result.
    pub(in crate::sweep) fn give_up(&mut self, now: Instant) {
        self.sweep.stage = Stage::Idle;
        self.subnet.state.give_up(now, &mut self.subnet.schedule);
    }

    /// Applies the reports as a sweep begins. A sweep of the whole fabric reads the GUIDs itself.
    pub(super) fn take_system_images(&mut self, is_read: bool) {
        let images = std::mem::take(&mut self.system_images);
        if is_read || images.is_empty() {
            return;
        }
        let image = |port| {
            Some((port, images.of(self.subnet.lids.get(self.subnet.fabric.port(port).guid)?)?))
        };
        let images: Vec<_> = self.subnet.fabric.end_ports().filter_map(image).collect();
        for (port, image) in images {
            let node = self.subnet.fabric.port(port).node;
            if let Ok(mut info) = NodeInfo::new(&mut self.subnet.fabric.node_mut(node).info[..]) {
                info.set_system_image_guid(image);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::manage::lid::LidTable;
    use crate::sweep::stages::light::Light;
    use crate::sweep::subnet::journal::Journal;
    use crate::sweep::subnet::report::Phase;
    use sm_config::Settings;

    fn sweeper() -> (Sweeper, Instant) {
        (Sweeper::new(Settings::default(), LidTable::default(), 1), Instant::now())
    }

    #[test]
    fn the_time_that_files_take_is_no_part_of_the_walk() {
        let (mut sweeper, now) = sweeper();
        sweeper.begin_discovery(now, None, Vec::new());
        let read = now + Duration::from_millis(400);
        sweeper.files_are_read(read);
        sweeper.record_phase(read + Duration::from_millis(20));
        let (files, walk) = (Duration::from_millis(400), Duration::from_millis(20));
        let report = &sweeper.subnet.journal.report;
        assert_eq!(report.phases, [(Phase::Files, files), (Phase::Discover, walk)]);
        assert!(report.to_string().contains("files read in 400 ms, discovered in 20 ms"));
    }

    /// A partial discovery counts from the light sweep that saw the change, and its report has the
    /// cause of that.
    #[test]
    fn a_partial_discovery_continues_the_light_sweep_and_a_full_one_starts_over() {
        let discovery = |changed: Option<Vec<NodeIndex>>| {
            let (mut sweeper, now) = sweeper();
            sweeper.subnet.journal = Journal::new(Cause::Timer);
            sweeper.enter(now, Stage::Light(Light::default()));
            let later = now + Duration::from_secs(1);
            assert_eq!(sweeper.record_phase(later), Some((Phase::Light, Duration::from_secs(1))));
            assert_eq!(sweeper.record_phase(later), None, "a phase ends once");
            sweeper.begin_discovery(later, changed, Vec::new());
            let Stage::Discover(discovery) = &sweeper.sweep.stage else { panic!() };
            (discovery.full, sweeper.subnet.journal.report.clone())
        };
        let (is_full, report) = discovery(Some(Vec::new()));
        assert_eq!(report.phases, [(Phase::Light, Duration::from_secs(1))]);
        assert_eq!((is_full, report.full, report.cause), (false, false, Some(Cause::Timer)));
        let (is_full, report) = discovery(None);
        assert!(report.phases.is_empty());
        assert_eq!((is_full, report.full, report.cause), (true, true, Some(Cause::Timer)));
    }
}

//! The sweeper: holds the subnet, the stage under way and the tasks. It makes the transitions
//! between stages, runs the tasks, passes requests to their owners and answers the caller.
//!
//! Each module has the transitions and public functions of one subject; the rules that they apply
//! belong to the stages, the tasks and the subnet.

mod avoided;
mod babble;
mod compact;
mod configure;
mod demands;
mod discover;
pub(in crate::sweep) mod dry_run;
pub(in crate::sweep) mod dump;
mod election;
mod guid_info;
mod handover;
mod inherit;
mod kept_routes;
mod keys;
mod lanes;
mod light;
mod multicast;
mod newcomers;
mod owner;
mod packets;
mod partitions;
mod reach;
mod reregister;
mod service;
mod shard;
mod silence;
mod tables;
mod take_over;
mod task;
mod throttled;
mod view;
mod virtual_ports;
mod with_copy;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::packet::Packet;
use ib_mad::types::PortNum;
use ib_mad::wire::attribute::SmState;

use crate::fabric::Fabric;
use crate::manage::lid::LidTable;
use crate::manage::quarantine::Expected;
use crate::manage::throttled::ThrottledLinks;
use crate::sweep::stages::avoided::AvoidedSwitches;
use crate::sweep::stages::take_over::DisabledPorts;
use crate::sweep::stages::{Stage, Sweep};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::journal::Journal;
use crate::sweep::subnet::owner::Step;
use crate::sweep::subnet::report::Phase;
use crate::sweep::subnet::schedule::Cause;
use crate::sweep::subnet::system_images::SystemImages;
use crate::sweep::tasks::babble::BabblingPorts;
use crate::sweep::tasks::guid_info::AliasGuids;
use crate::sweep::tasks::multicast::Multicast;
use crate::sweep::tasks::partitions::PartitionChanges;
use crate::sweep::tasks::reregister::Reregistration;
use crate::sweep::tasks::virtual_ports::VirtualPortSetup;
use dry_run::DryRun;
use reach::Reach;
use sm_config::{NodeNames, QosTables, Settings};

/// The state machine of sweeps.
#[derive(Debug)]
pub struct Sweeper {
    /// State that sweeps and tasks read and write.
    subnet: Subnet,
    /// The sweep under way.
    sweep: Sweep,
    /// When the stage that has nothing to send is to be ended.
    advances_at: Option<Instant>,
    /// Switches that do not accept their forwarding tables.
    avoided: AvoidedSwitches,
    /// Links that routes avoid because they run below their speed or width.
    throttled: ThrottledLinks,
    multicast: Multicast,
    partition_changes: PartitionChanges,
    aliases: AliasGuids,
    virtual_ports: VirtualPortSetup,
    reregistration: Reregistration,
    disabled_ports: DisabledPorts,
    babbling: BabblingPorts,
    system_images: SystemImages,
    reach: Reach,
    /// What would be set, in a dry run.
    dry_run: Option<DryRun>,
}

impl Sweeper {
    /// A subnet manager that knows only the LIDs it assigned earlier. `seed` should differ from run
    /// to run.
    pub fn new(settings: Settings, lids: LidTable, seed: u32) -> Self {
        Self {
            subnet: Subnet::new(settings, lids, seed),
            sweep: Sweep::default(),
            advances_at: None,
            avoided: AvoidedSwitches::default(),
            throttled: ThrottledLinks::default(),
            multicast: Multicast::default(),
            partition_changes: PartitionChanges::default(),
            aliases: AliasGuids::default(),
            virtual_ports: VirtualPortSetup::default(),
            reregistration: Reregistration::default(),
            disabled_ports: DisabledPorts::new(),
            babbling: BabblingPorts::default(),
            system_images: SystemImages::default(),
            reach: Reach::default(),
            dry_run: None,
        }
    }

    /// Applies new settings, as far as they can change at runtime. Returns the changed keys that
    /// need a restart. Call it when nothing is being set, for example on [`Event::Discovering`].
    pub fn follow_settings(&mut self, new: &Settings) -> Vec<&'static str> {
        let forced = |settings: &Settings| {
            let Settings { force_link_width, force_link_speed, force_link_speed_ext, .. } =
                settings;
            (*force_link_width, *force_link_speed, *force_link_speed_ext)
        };
        let before = forced(&self.subnet.settings);
        let engines = self.subnet.settings.engine_names();
        let (m_key, inactive) = (self.subnet.settings.m_key, self.subnet.settings.sm_inactive);
        let mut waiting = self.subnet.settings.follow(new);
        if self.subnet.settings.sm_inactive != inactive && !self.follow_sm_inactive() {
            self.subnet.settings.sm_inactive = inactive;
            waiting.push("sm_inactive");
        }
        self.subnet.exchange.set_window(self.subnet.settings.window());
        self.subnet.m_key_changed(m_key);
        self.subnet.election.own.set_sm_key(self.subnet.settings.sm_key);
        let wanted = self.subnet.settings.engine_names();
        if wanted != engines {
            self.subnet.routing.set_engines(&wanted);
        }
        self.subnet.state.forced_links_changed |= forced(&self.subnet.settings) != before;
        self.subnet.election.own.set_priority(self.subnet.settings.sm_priority);
        let tables = QosTables::of(&self.subnet.settings);
        if tables != self.subnet.qos_tables {
            self.multicast.lanes_changed(&mut self.subnet);
            self.subnet.qos_tables = tables;
        }
        self.subnet.schedule.set_intervals(&self.subnet.settings);
        waiting
    }

    /// Reports that the caller has done what [`Event::Discovering`] requires; the time until now
    /// does not count as discovery.
    pub fn files_are_read(&mut self, now: Instant) {
        if let Some(took) = self.sweep.files_are_read(now) {
            self.subnet.journal.report.phases.push((Phase::Files, took));
        }
    }

    /// Sets the operators' names of nodes. Call it before the first sweep; known nodes keep their
    /// names.
    pub fn set_node_names(&mut self, names: NodeNames) {
        self.subnet.fabric = Fabric::with_names(Arc::new(names));
    }

    /// Records that the fabric cannot be reached: its known state may be outdated. See
    /// [`restart`](Self::restart) for when it is back.
    pub fn fabric_lost(&mut self) {
        self.subnet.state.up = false;
    }

    /// States by which ports of its node the SM's own port is in the planes of a planarized fabric:
    /// each leads into another plane. None, the default: it is not planarized. Takes effect with
    /// the next sweep of the whole fabric.
    pub fn set_own_planes(&mut self, planes: Vec<PortNum>) {
        self.subnet.own_planes = planes;
    }

    /// Changes the priority of this SM, 0 to 15. It takes effect with the election of the next
    /// heavy sweep.
    pub fn set_priority(&mut self, priority: u8) {
        self.subnet.settings.sm_priority = priority;
        self.subnet.election.own.set_priority(priority);
    }

    /// Asks for a heavy sweep as soon as none is under way.
    pub fn request_heavy_sweep(&mut self, now: Instant) {
        self.subnet.schedule.request(now, Cause::Asked);
        self.advance(now);
    }

    /// Sets which nodes and links belong to the fabric: what does not is kept out, from a sweep of
    /// the whole fabric on, which starts if this changed. `None`: everything belongs.
    pub fn set_quarantine(&mut self, now: Instant, expected: Option<Arc<Expected>>) {
        if self.subnet.quarantine.set_expected(expected) && self.subnet.state.is_discovered {
            self.request_heavy_sweep(now);
        }
    }

    /// Asks for a light sweep as soon as no sweep is under way; does nothing unless this SM is
    /// master.
    pub fn request_light_sweep(&mut self, now: Instant) {
        if self.subnet.election.state() == SmState::Master {
            self.subnet.schedule.request(now, Cause::Timer);
            self.advance(now);
        }
    }

    /// Suspends sweeps of all causes except for takeovers, or resumes them; polls of other managers
    /// go on. Sweeps that were requested meanwhile run when sweeps are resumed.
    pub fn set_sweeping(&mut self, now: Instant, is_permitted: bool) {
        self.subnet.schedule.pause(!is_permitted);
        self.advance(now);
    }

    /// Restarts as at program start, because the fabric may have changed while it was unreachable.
    /// Keeps only the assigned LIDs and state NOT-ACTIVE.
    pub fn restart(&mut self, now: Instant) {
        self.rest();
        self.subnet.fabric = Fabric::with_names(Arc::clone(self.subnet.fabric.names()));
        self.multicast.forget_routing(&mut self.subnet);
        self.subnet.partitions.forget();
        self.virtual_ports.forget_all();
        self.subnet.election.forget_ports();
        self.subnet.state.forget_ports();
        self.subnet.state.up = false;
        if self.subnet.election.state() != SmState::NotActive {
            self.subnet.election.own.set_state(SmState::Discovering);
        }
        self.request_heavy_sweep(now);
    }

    /// Writes the next SMP to send. `false` if there is none for now.
    pub fn poll_transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        if let Stage::Discover(discovery) = &mut self.sweep.stage {
            discovery.find_other_routes(&mut self.subnet);
        }
        if self.dry_run.is_none() && self.subnet.write_priority_trap(packet) {
            return true;
        }
        while let Some(transmit) = self.next_request(now) {
            if self.drops(now, transmit.request) {
                self.subnet.exchange.cancel(transmit.tid);
                self.advance(now);
                continue;
            }
            let is_unreachable = match &self.sweep.stage {
                Stage::Discover(discovery) => {
                    discovery.is_unreachable(&self.subnet, transmit.request)
                }
                _ => false,
            };
            let m_key = self.subnet.m_key_for(transmit.request, transmit.m_key);
            if !is_unreachable && self.encode(now, transmit.request, transmit.tid, m_key, packet) {
                self.subnet.exchange.set_m_key(transmit.tid, m_key);
                let timeout_ms = transmit.timeout.as_millis();
                packet.carrier.answer_timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
                self.subnet.trace_smp("->", transmit.request);
                self.subnet.election.own.act();
                return true;
            }
            // The fabric changed since the request was queued: it is no longer needed, or needs
            // another route.
            self.subnet.exchange.cancel(transmit.tid);
            if let Stage::Discover(discovery) = &mut self.sweep.stage {
                discovery.defer(&mut self.subnet, transmit.request);
            }
            self.advance(now);
        }
        false
    }

    /// Whether no sweep is under way, and nothing on the wire.
    fn is_idle(&self) -> bool {
        self.sweep.is_idle() && self.subnet.exchange.is_idle()
    }

    /// The oldest pending event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.subnet.events.pop()
    }

    /// Whether [`poll_event`](Self::poll_event) would return an event. Check this after every call:
    /// events have no timeout.
    pub fn has_events(&self) -> bool {
        !self.subnet.events.is_empty()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        // Writes between sweeps delay the next sweep until they are answered.
        let idle = self.is_idle();
        let scheduled = self.subnet.schedule.next().filter(|_| idle);
        let grace = match &self.sweep.stage {
            Stage::Light(light) => light.grace_ends(),
            _ => None,
        };
        let tasks = self.tasks_due().filter(|_| idle);
        let correction = self.subnet.correction_due().filter(|_| idle);
        let newcomers = self.newcomers_due().filter(|_| idle);
        let exchange = self.subnet.exchange.poll_timeout();
        let between = [scheduled, tasks, correction, newcomers];
        [self.advances_at, exchange, grace, self.reach.queued]
            .into_iter()
            .chain(between)
            .flatten()
            .min()
    }

    /// Performs due work. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.reach.queued = None;
        self.subnet.exchange.handle_timeout(now);
        self.end_grace(now);
        self.settle_newcomers(now);
        self.run_tasks(now);
        self.subnet.correct_routes(now);
        self.advance(now);
        self.run_yielding_tasks(now);
    }

    /// Ends a finished stage and starts the next, or a due one. If that one has nothing to send, it
    /// ends with the next call, which is due at once: each may look at the whole fabric, and
    /// queries at this SM's port wait meanwhile.
    fn advance(&mut self, now: Instant) {
        self.advances_at = None;
        loop {
            while let Some((request, m_key)) = self.subnet.exchange.poll_given_up(now) {
                if let Some(m_key) = m_key {
                    self.subnet.note_m_key(request, m_key, false);
                }
                self.note_given_up(now, request);
                self.pass_to_owner(now, request, Step::Silent);
            }
            if !self.subnet.exchange.is_idle() || matches!(self.sweep.stage, Stage::Route(_)) {
                return;
            }
            if self.sweep.is_idle() {
                self.settle_tasks(now);
                if !self.subnet.exchange.is_idle() {
                    return;
                }
                // Publish the result before the next sweep changes the fabric.
                if self.subnet.events.has_configured() {
                    return;
                }
                match self.subnet.schedule.take_due(now) {
                    Some(cause) => self.begin(now, cause),
                    None => return,
                }
            } else {
                self.end_stage(now);
                self.advances_at = self.subnet.exchange.is_idle().then_some(now);
                return;
            }
        }
    }

    fn begin(&mut self, now: Instant, cause: Cause) {
        let resting = self.subnet.election.state() == SmState::NotActive;
        let standby = self.subnet.election.state() == SmState::Standby;
        let heavy = self.subnet.settings.force_heavy_sweep;
        self.sweep = Sweep::default();
        self.subnet.journal = Journal::new(cause);
        if cause == Cause::Trap {
            self.subnet.journal.report.detail = self.subnet.awaited_traps(now);
        }
        match cause {
            _ if resting => {}
            Cause::Poll if standby => self.begin_poll(now),
            Cause::Poll => {}
            Cause::Timer | Cause::Unresponsive if standby => {}
            // Full sweeps are retried until it is up, and poll all SMs.
            Cause::Unresponsive if !self.subnet.state.up => {}
            Cause::Unresponsive => self.begin_polling_unresponsive(now),
            Cause::Timer if !heavy => self.begin_light(now, cause),
            Cause::Trap | Cause::Unanswered if self.subnet.state.up && !heavy => {
                self.begin_partial(now, cause);
            }
            _ => self.begin_discovery(now, None, Vec::new()),
        }
    }

    fn enter(&mut self, now: Instant, stage: Stage) {
        self.sweep.enter(now, stage);
    }

    /// Records the duration of the phase that ends, and returns it; `None` if it was recorded
    /// before.
    fn record_phase(&mut self, now: Instant) -> Option<(Phase, Duration)> {
        let (phase, took) = self.sweep.end_phase(now)?;
        self.subnet.journal.report.phases.push((phase, took));
        if phase == Phase::Light {
            self.subnet.state.light_sweeps.record(took, 1);
        }
        Some((phase, took))
    }

    /// Ends a stage, whose requests are all answered or given up, and starts the next, unless the
    /// stage has more to send.
    fn end_stage(&mut self, now: Instant) {
        let subnet = &mut self.subnet;
        let continues = match &mut self.sweep.stage {
            Stage::Light(light) => light.continues(subnet),
            Stage::Discover(discovery) => discovery.continues(subnet, now),
            Stage::Tables(tables) => tables.send_next(subnet),
            _ => false,
        };
        if continues {
            return;
        }
        // A takeover is not part of a sweep, and not reported.
        if !matches!(self.sweep.stage, Stage::TakeOver(_)) {
            self.record_phase(now);
        }
        match std::mem::take(&mut self.sweep.stage) {
            // Routing ends with its outcome.
            Stage::Idle | Stage::Route(_) => {}
            Stage::Light(light) => self.end_light(now, light),
            Stage::Discover(discovery) => self.end_discovery(now, *discovery),
            Stage::Elect { full } => self.end_election(now, full),
            Stage::HandOver { sweep } => self.end_handover(now, sweep),
            Stage::Addresses(None) => self.begin_inheriting(now),
            Stage::Addresses(Some(programmed)) => self.begin_arming(now, programmed),
            Stage::Inherit(inheriting) => self.inherit_more(now, inheriting),
            Stage::Tables(tables) => self.end_tables(now, tables.into_programmed()),
            Stage::Routed(programmed) => self.begin_addresses(now, false, Some(programmed)),
            Stage::Links(links) => self.end_link_step(now, links),
            Stage::Poll => self.end_poll(now),
            Stage::TakeOver(take_over) => self.end_take_over_step(now, take_over),
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::packet::{Address, Packet};
    use ib_mad::types::{Guid, Lid};
    use ib_mad::wire::attribute::SmInfo;
    use ib_mad::wire::mad::{AttributeId, Method};
    use ib_mad::wire::smp;

    use super::*;

    /// Regression: after the simulator was gone, the subnet was still reported as up.
    #[test]
    fn a_fabric_that_is_lost_is_not_up() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        sweeper.subnet.state.up = true;
        sweeper.fabric_lost();
        assert!(!sweeper.is_up());
    }

    /// Regression: a manager that started showed the GUID 0, and the master excluded it from the
    /// election, with a problem, until the next sweep.
    #[test]
    fn sminfo_has_the_guid_of_the_own_port_before_it_is_discovered() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        sweeper.set_own_port(Guid(5));
        let (method, attribute_id) = (Method::GET, AttributeId::SM_INFO);
        let get = smp::Request { method, attribute_id, attribute_modifier: 0, tid: 1, m_key: 0 };
        let mut packet = Packet::to(Address::smi(Lid(1)));
        get.write_lid_routed(&mut packet.mad);
        assert!(sweeper.handle_packet(Instant::now(), &mut packet));
        assert_eq!(SmInfo::new(&packet.mad[smp::DATA]).unwrap().guid(), Guid(5));
    }

    /// Regression: a requested sweep began up to a second late.
    #[test]
    fn pending_events_are_announced() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        assert!(!sweeper.has_events());
        sweeper.request_heavy_sweep(Instant::now());
        assert!(sweeper.has_events());
        while sweeper.poll_event().is_some() {}
        assert!(!sweeper.has_events());
    }

    /// Regression: the next sweep could begin in the call that ended the previous one, and paths
    /// were published without the routing.
    #[test]
    fn no_sweep_begins_before_what_the_last_one_found_is_taken() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let now = Instant::now();
        sweeper.subnet.events.push(Event::Configured(Box::default()));
        sweeper.request_heavy_sweep(now);
        assert_eq!(sweeper.phase(), Phase::Idle);
        assert!(matches!(sweeper.poll_event(), Some(Event::Configured(_))));
        assert!(sweeper.poll_timeout().is_some_and(|due| due <= now));
        sweeper.handle_timeout(now);
        assert_eq!(sweeper.phase(), Phase::Discover);
        // What is given up before it is taken is not to be published.
        sweeper.subnet.events.push(Event::Configured(Box::default()));
        sweeper.restart(now);
        let events = std::iter::from_fn(|| sweeper.poll_event());
        assert_eq!(events.filter(|event| matches!(event, Event::Configured(_))).count(), 0);
    }
}

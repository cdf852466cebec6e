//! The sweep: finding out what the fabric is, and making it what it should be.
//!
//! [`Sweeper`] decides and never acts: the caller sends what [`poll_transmit`] writes, hands back
//! what arrives, and calls [`handle_timeout`] when [`poll_timeout`] says so. A heavy sweep walks
//! the whole fabric; a light one asks every switch whether a port changed, and what did change is
//! then discovered from there on. Both end in the same phases of configuration, which send only
//! what differs.
//!
//! What it knows is in values that answer questions and decide:
//!
//! - `current`: the sweep under way; `subnet`: what those before it left; `schedule`: when to sweep
//!   next, and why; `report`: what a sweep did; `events`: what waits for the caller.
//! - `election::state`: who else manages the subnet; `router`: engines and the routing in force;
//!   `partitions`, `multicast`, `guid_info`, `shard`, `reregister`: what is wanted of each.
//!
//! What it does, in the order of a sweep:
//!
//! - `light`: looking for changes. `discover`: the walk; `contradiction`: links that cannot both be
//!   true, duplicate GUIDs; `compact`: room of nodes that are gone; `doubt`: who is silent may only be out of reach; `unanswered`: what
//!   follows from that; `came_back`: what is there again; `keys`: which M_Key is shown to whom.
//! - `election`: other subnet managers; `handover`: from and to them. `inherit`, `origin`: the tables
//!   that another left, and when they are made anew.
//! - `configure`: LIDs, P_Keys, forwarding tables, links; `tables`: their routing, which the caller
//!   runs ([`RoutingJob`]); `qos`, `sl_maps`, `fdr10`: other tables of ports; `avoided`: switches that
//!   take none, `throttled`: links that are not routed over. `service`: which end ports came and went.
//! - Between sweeps: `multicast`, `guid_info`, `shard`, `reregister`; `take_over`: the LID of a
//!   responder's port goes to another; `babble`: ports that report errors for ever.
//! - `packets`: what arrives; `encode`: requests as MADs; `view`: what callers may see;
//!   `log`: what is logged.
//!
//! What is not here: what ports and tables should hold (`manage`, `routing`), who is master
//! (`mastership`), and sockets, clocks and files (`runtime`).
//!
//! [`poll_transmit`]: Sweeper::poll_transmit
//! [`handle_timeout`]: Sweeper::handle_timeout
//! [`poll_timeout`]: Sweeper::poll_timeout

mod avoided;
mod babble;
mod came_back;
mod compact;
mod configure;
mod contradiction;
mod current;
mod discover;
mod doubt;
mod dump;
mod election;
mod encode;
mod events;
mod fdr10;
mod guid_info;
mod handover;
mod inherit;
mod keys;
mod lanes;
mod left;
mod light;
mod log;
mod multicast;
mod origin;
mod packets;
mod partitions;
mod peer;
mod qos;
mod report;
mod reregister;
mod router;
mod schedule;
mod service;
mod shard;
mod sl_maps;
mod subnet;
mod system_images;
mod tables;
mod take_over;
mod throttled;
mod unanswered;
mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::wire::attribute::SmState;

use crate::config::{NodeNames, QosTables, Settings};
use crate::fabric::Fabric;
use crate::manage::lid::LidTable;
use crate::manage::throttled::ThrottledLinks;
use crate::smp::{Exchange, Timing};
use avoided::AvoidedSwitches;
use babble::BabblingPorts;
use current::Sweep;
pub use dump::{DumpFileKind, DumpJob, DumpScope};
use election::Election;
use events::Events;
pub use events::{Event, TrapNotice};
use guid_info::AliasGuids;
pub use handover::{ImportedRegistry, RegistryCopy};
use keys::MKeys;
pub use lanes::SlsOfPaths;
pub use left::{Left, WholeTables};
pub(crate) use log::STATE;
use multicast::Multicast;
pub use multicast::{MulticastJob, MulticastOutcome};
pub use origin::{CORRECTION_DELAY, Origin};
use partitions::Partitioning;
pub use peer::Peer;
pub use report::{Phase, Report};
use reregister::Reregistration;
use router::Router;
pub use router::{
    BalanceCheck, BalanceFinding, LoopCheck, LoopFinding, RoutingJob, RoutingOutcome,
};
pub use schedule::Cause;
use schedule::Schedule;
pub use service::PortsChanged;
pub use shard::Sharding;
use shard::Shards;
use subnet::SubnetState;
use system_images::SystemImages;
pub use take_over::{DisabledPorts, Start};

/// Lines logged of one sort in one sweep; what is beyond is only counted.
const LINES_MAX: usize = 10;

/// The state machine of sweeps.
#[derive(Debug)]
pub struct Sweeper {
    settings: Settings,
    /// What those say of QoS tables.
    qos_tables: QosTables,
    fabric: Fabric,
    exchange: Exchange,
    schedule: Schedule,
    /// The sweep under way.
    sweep: Sweep,
    /// What the sweeps before it left.
    subnet: SubnetState,
    election: Election,
    lids: LidTable,
    m_keys: MKeys,
    partitions: Partitioning,
    router: Router,
    /// Switches that do not take their forwarding tables.
    avoided: AvoidedSwitches,
    /// Links that are slower than they should be, and not routed over.
    throttled: ThrottledLinks,
    multicast: Multicast,
    aliases: AliasGuids,
    /// Clients that are to register again.
    clients: Reregistration,
    shards: Shards,
    disabled_ports: DisabledPorts,
    babbling: BabblingPorts,
    system_images: SystemImages,
    events: Events,
}

impl Sweeper {
    /// A subnet manager that knows nothing of its fabric but the LIDs it once gave out. `seed`
    /// should differ from run to run; see [`Exchange::new`].
    pub fn new(settings: Settings, lids: LidTable, seed: u32) -> Self {
        let timing = Timing {
            window: settings.window(),
            timeout: Duration::from_millis(u64::from(settings.transaction_timeout)),
            long_timeout: Duration::from_millis(u64::from(settings.long_timeout())),
            retries: settings.transaction_retries,
        };
        Self {
            qos_tables: QosTables::of(&settings),
            fabric: Fabric::default(),
            exchange: Exchange::new(timing, seed),
            schedule: Schedule::new(&settings),
            sweep: Sweep::default(),
            subnet: SubnetState::default(),
            election: Election::new(&settings),
            lids,
            m_keys: MKeys::default(),
            partitions: Partitioning::default(),
            router: Router::new(&settings.engine_names()),
            avoided: AvoidedSwitches::default(),
            throttled: ThrottledLinks::default(),
            multicast: Multicast::default(),
            aliases: AliasGuids::default(),
            clients: Reregistration::default(),
            shards: Shards::default(),
            disabled_ports: DisabledPorts::new(),
            babbling: BabblingPorts::default(),
            system_images: SystemImages::default(),
            events: Events::default(),
            settings,
        }
    }

    /// Takes other settings in place of those in force, as far as they count while the program runs.
    /// Yields the keys that differ and would count from the start on. Best while nothing is being
    /// set, as on [`Event::Discovering`].
    pub fn follow_settings(&mut self, new: &Settings) -> Vec<&'static str> {
        let forced = |settings: &Settings| {
            let Settings { force_link_width, force_link_speed, force_link_speed_ext, .. } =
                settings;
            (*force_link_width, *force_link_speed, *force_link_speed_ext)
        };
        let before = forced(&self.settings);
        let engines = self.settings.engine_names();
        let waiting = self.settings.follow(new);
        let wanted = self.settings.engine_names();
        if wanted != engines {
            self.router.set_engines(&wanted);
        }
        self.subnet.links_forced_anew |= forced(&self.settings) != before;
        self.election.own.set_priority(self.settings.sm_priority);
        let tables = QosTables::of(&self.settings);
        if tables != self.qos_tables {
            self.lanes_changed();
            self.qos_tables = tables;
        }
        self.schedule.set_intervals(&self.settings);
        waiting
    }

    /// States that what [`Event::Discovering`] asks for is done: what took until now is no part of the
    /// walk.
    pub fn files_are_read(&mut self, now: Instant) {
        self.sweep.files_are_read(now);
    }

    /// What operators call nodes. Before the first sweep; nodes already found keep their names.
    pub fn set_node_names(&mut self, names: NodeNames) {
        self.fabric = Fabric::with_names(Arc::new(names));
    }

    /// Takes in that the fabric is out of reach: what was found is no longer known to be so. See
    /// [`begin_anew`](Self::begin_anew) for when it is back.
    pub fn fabric_lost(&mut self) {
        self.subnet.up = false;
    }

    /// Changes our priority among subnet managers, 0 to 15. The next heavy sweep decides what follows
    /// from it.
    pub fn set_priority(&mut self, priority: u8) {
        self.settings.sm_priority = priority;
        self.election.own.set_priority(priority);
    }

    /// Asks for a heavy sweep as soon as none is under way.
    pub fn request_heavy_sweep(&mut self, now: Instant) {
        self.schedule.request(now, Cause::Asked);
        self.advance(now);
    }

    /// Begins anew, as at start, since the fabric was out of reach and may be another by now. Only
    /// the LIDs given out are still known, and that we are to rest, if we are.
    pub fn begin_anew(&mut self, now: Instant) {
        self.rest();
        self.fabric = Fabric::with_names(Arc::clone(self.fabric.names()));
        self.forget_routing();
        self.partitions.forget();
        self.election.forget_ports();
        self.subnet.forget_ports();
        self.subnet.up = false;
        if self.election.state() != SmState::NotActive {
            self.election.own.set_state(SmState::Discovering);
        }
        self.request_heavy_sweep(now);
    }

    /// Writes the next SMP to send. `false` if there is none for now.
    pub fn poll_transmit(&mut self, now: Instant, packet: &mut Packet) -> bool {
        if std::mem::take(&mut self.sweep.routes_changed) && !self.sweep.full {
            // What the routes known so far cannot reach may be reached another way.
            self.find_other_routes();
        }
        if self.write_priority_trap(packet) {
            return true;
        }
        while let Some(transmit) = self.exchange.poll_transmit(now) {
            let is_in_vain = self.is_in_vain(transmit.request);
            let m_key = self.m_key_for(transmit.request, transmit.m_key);
            if !is_in_vain && self.encode(transmit.request, transmit.tid, m_key, packet) {
                self.exchange.set_m_key(transmit.tid, m_key);
                let timeout_ms = transmit.timeout.as_millis();
                packet.address.answer_timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
                self.trace_smp("->", transmit.request);
                self.election.own.act();
                return true;
            }
            // The fabric changed since it was queued: nothing is left to be said, or not this way.
            self.exchange.cancel(transmit.tid);
            self.doubts(transmit.request);
            self.advance(now);
        }
        false
    }

    /// Whether no sweep is under way, and nothing on the wire.
    fn is_idle(&self) -> bool {
        self.sweep.is_idle() && self.exchange.is_idle()
    }

    /// What has happened, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Whether [`poll_event`](Self::poll_event) has any, as any call may leave behind: no timeout
    /// is due for it.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        // What is written between sweeps keeps the next one waiting until it is answered.
        let idle = self.is_idle();
        let scheduled = self.schedule.next().filter(|_| idle);
        let grace = self.sweep.grace_ends.filter(|_| self.sweep.phase == Phase::Light);
        let multicast = self.multicast_due().filter(|_| idle);
        let aliases = self.guid_blocks_due().filter(|_| idle);
        let clients = self.clients_due().filter(|_| idle);
        let correction = self.correction_due().filter(|_| idle);
        [self.exchange.poll_timeout(), scheduled, grace, multicast, aliases, clients, correction]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due. Spurious calls are allowed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.exchange.handle_timeout(now);
        self.end_grace(now);
        self.retry_multicast(now);
        self.retry_guid_blocks(now);
        self.correct_routes(now);
        self.advance(now);
        self.ask_clients(now);
    }

    /// Ends phases that have nothing left to do, and begins what is due.
    fn advance(&mut self, now: Instant) {
        loop {
            while let Some((request, m_key)) = self.exchange.poll_given_up(now) {
                if let Some(m_key) = m_key {
                    self.note_m_key(request, m_key, false);
                }
                self.handle_silence(now, request);
            }
            if !self.exchange.is_idle() || self.sweep.phase == Phase::Route {
                return;
            }
            if self.sweep.is_idle() {
                self.add_branches(now);
                if !self.exchange.is_idle() {
                    return;
                }
                self.tell_multicast();
                self.tell_shards();
                // What it found is published as the fabric stands, and so before another changes it.
                if self.events.has_configured() {
                    return;
                }
                match self.schedule.take_due(now) {
                    Some(cause) => self.begin(now, cause),
                    None => return,
                }
            } else {
                self.end_phase(now);
            }
        }
    }

    fn begin(&mut self, now: Instant, cause: Cause) {
        let resting = self.election.state() == SmState::NotActive;
        let standby = self.election.state() == SmState::Standby;
        let heavy = self.settings.force_heavy_sweep;
        self.sweep = Sweep::new(cause);
        if cause == Cause::Trap {
            self.sweep.report.detail = self.awaited_traps(now);
        }
        match cause {
            _ if resting => {}
            Cause::Poll if standby => self.begin_poll(now),
            Cause::Poll => {}
            Cause::Timer | Cause::Mute if standby => {}
            // Sweeps of all are tried until it is, and ask everybody.
            Cause::Mute if !self.subnet.up => {}
            Cause::Mute => self.begin_asking_mute(now),
            Cause::Timer if !heavy => self.begin_light(now, cause),
            Cause::Trap | Cause::Unanswered if self.subnet.up && !heavy => {
                self.look_again(now, cause);
            }
            _ => self.begin_discovery(now, None, Vec::new()),
        }
    }

    fn enter(&mut self, now: Instant, phase: Phase) {
        self.sweep.enter(now, phase);
    }

    fn end_phase(&mut self, now: Instant) {
        if self.sweep.phase == Phase::Tables && self.write_tables() {
            return;
        }
        if self.sweep.phase == Phase::TakeOver {
            self.end_take_over_stage(now);
            return;
        }
        if self.sweep.phase == Phase::Discover && self.discovers_more(now) {
            return;
        }
        if let Some(took) = self.sweep.end_phase(now)
            && self.sweep.phase == Phase::Light
        {
            self.subnet.light_sweeps.record(took, 1);
        }
        match self.sweep.phase {
            Phase::Idle | Phase::TakeOver | Phase::Files => {}
            Phase::Light => self.end_light(now),
            Phase::Discover => self.end_discovery(now),
            Phase::Elect => self.end_election(now),
            Phase::Addresses => self.begin_inheriting(now),
            Phase::Inherit => self.inherit_more(now),
            // Links must not carry what no table leads anywhere.
            Phase::Route if self.sweep.unroutable => self.end_sweep(now),
            Phase::Route => self.begin_tables(now),
            Phase::Tables => self.begin_arming(now),
            Phase::Arm if self.needs_port_tables() => self.begin_port_tables(now),
            Phase::Arm | Phase::PortTables => self.begin_activating(now),
            Phase::Activate => self.end_sweep(now),
            Phase::Poll => self.end_poll(now),
            Phase::HandOver => self.end_handover(now),
        }
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulator that was gone left the subnet up for whoever asked.
    #[test]
    fn a_fabric_that_is_lost_is_not_up() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        sweeper.subnet.up = true;
        sweeper.fabric_lost();
        assert!(!sweeper.is_up());
    }

    /// A sweep that was asked for lay about for up to a second.
    #[test]
    fn events_to_be_fetched_are_told() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        assert!(!sweeper.has_events());
        sweeper.request_heavy_sweep(Instant::now());
        assert!(sweeper.has_events());
        while sweeper.poll_event().is_some() {}
        assert!(!sweeper.has_events());
    }

    /// The next sweep could begin in the call that ended the one before, and paths were published
    /// with the routing forgotten.
    #[test]
    fn no_sweep_begins_before_what_the_last_one_found_is_taken() {
        let mut sweeper = Sweeper::new(Settings::default(), LidTable::default(), 1);
        let now = Instant::now();
        sweeper.emit(Event::Configured(Box::default()));
        sweeper.request_heavy_sweep(now);
        assert_eq!(sweeper.phase(), Phase::Idle);
        assert!(matches!(sweeper.poll_event(), Some(Event::Configured(_))));
        assert!(sweeper.poll_timeout().is_some_and(|due| due <= now));
        sweeper.handle_timeout(now);
        assert_eq!(sweeper.phase(), Phase::Discover);
        // What is given up before it is taken is not to be published.
        sweeper.emit(Event::Configured(Box::default()));
        sweeper.begin_anew(now);
        let events = std::iter::from_fn(|| sweeper.poll_event());
        assert_eq!(events.filter(|event| matches!(event, Event::Configured(_))).count(), 0);
    }
}

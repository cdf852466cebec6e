//! Other subnet managers: asking who they are, standing by for one, taking over from it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{CapabilityMask, SmInfo, SmState};
use sa_proto::snapshot::SubnetManager;
use tracing::{debug, info, warn};

use super::schedule::Cause;
use super::{Event, OTHERS_MAX, Peer, Phase, Sweep, Sweeper};
use crate::config::Settings;
use crate::fabric::PortIndex;
use crate::mastership::{Decision, RemoteSm};
use crate::smp::{Kind, Request};

impl Sweeper {
    pub(super) fn begin_election(&mut self, now: Instant) {
        self.enter(now, Phase::Elect);
        self.others.clear();
        self.forget_strangers();
        if self.settings.ignore_other_sm {
            return;
        }
        let home = self.fabric.home();
        let managers: Vec<PortIndex> = self
            .fabric
            .end_ports()
            .filter(|&port| {
                let mask = self.fabric.port(port).port_info().capability_mask();
                Some(port) != home && mask.contains(CapabilityMask::IS_SM)
            })
            .take(OTHERS_MAX)
            .collect();
        for port in managers {
            self.exchange.push(Request::new(Kind::SmInfo, port));
        }
    }

    pub(super) fn sm_info(&mut self, now: Instant, port: PortIndex, data: &[u8; 64]) {
        let Ok(info) = SmInfo::new(data) else { return };
        let Some(state) = SmState::from_code(info.sm_state()) else { return };
        let sm = RemoteSm { guid: info.guid(), priority: info.priority(), state };
        // Another key is another administration's: such a subnet manager is none to us. With key 0
        // a site says that any will do.
        let key = self.mastership.sm_key();
        if key != 0 && info.sm_key() != key {
            self.note_stranger(port, sm);
            return self.sm_is_silent(port);
        }
        let at = self.fabric.port(port).guid;
        self.strangers.retain(|(guid, _)| *guid != at);
        if self.phase == Phase::Poll {
            return self.master_answered(now, port, sm);
        }
        self.others.retain(|(at, _)| *at != port);
        self.others.push((port, sm));
    }

    /// A subnet manager showed another SM_Key: it is told of once.
    fn note_stranger(&mut self, port: PortIndex, sm: RemoteSm) {
        self.strange_answers += 1;
        // What it says of itself is not to be believed, its GUID neither.
        let at = self.fabric.port(port).guid;
        if self.strangers.len() == OTHERS_MAX || self.strangers.iter().any(|(guid, _)| *guid == at)
        {
            return;
        }
        let place = self.place(port);
        warn!(
            "the subnet manager at {place}, {} with priority {}, does not show our SM_Key: it is \
             left out, and neither handed over to nor stood by for",
            sm.state, sm.priority
        );
        self.strangers.push((at, self.fabric.describe(port)));
    }

    /// Forgets those that are no longer there.
    fn forget_strangers(&mut self) {
        let fabric = &self.fabric;
        let runs = |port: PortIndex| {
            let mask = fabric.port(port).port_info().capability_mask();
            mask.contains(CapabilityMask::IS_SM).then_some(fabric.port(port).guid)
        };
        let there: HashSet<Guid> = fabric.end_ports().filter_map(runs).collect();
        self.strangers.retain(|(guid, _)| there.contains(guid));
    }

    /// Subnet managers that show another SM_Key than ours, in words.
    pub fn strangers(&self) -> impl Iterator<Item = &str> {
        self.strangers.iter().map(|(_, place)| &**place)
    }

    /// Answers of subnet managers that showed another SM_Key than ours.
    pub fn strange_answers(&self) -> u64 {
        self.strange_answers
    }

    /// The subnet managers of the subnet, ours among them, as the last discovery found them.
    pub fn subnet_managers(&self) -> Vec<SubnetManager> {
        let row = |port: PortIndex, info: [u8; 21]| {
            let port = self.fabric.port(port);
            SubnetManager { port_guid: port.guid, lid: port.base_lid(), info }
        };
        let ours = self.fabric.home().map(|home| row(home, self.mastership.record()));
        let theirs = self.others.iter().map(|(port, sm)| {
            let mut info = [0; 21];
            SmInfo::new(&mut info[..])
                .expect("21 bytes are an SMInfo")
                .set_guid(sm.guid)
                .set_priority(sm.priority)
                .set_sm_state(sm.state);
            row(*port, info)
        });
        let mut rows: Vec<_> = ours.into_iter().chain(theirs).collect();
        rows.sort_unstable_by_key(|row| row.port_guid);
        rows.dedup_by_key(|row| row.port_guid);
        rows
    }

    /// The port of the master that we stand by for, in words.
    pub fn master(&self) -> Option<String> {
        self.master.map(|(port, _)| self.fabric.describe(port))
    }

    /// The subnet managers that the last discovery found, and the master that we stand by for: of
    /// that one also how long ago it answered last.
    pub fn peers(&self, now: Instant) -> Vec<Peer> {
        let master = self.master.filter(|_| self.mastership.state() == SmState::Standby);
        let peer = |(port, sm): &(PortIndex, RemoteSm)| {
            let entry = self.fabric.port(*port);
            let is_master = master.is_some_and(|(at, _)| at == *port);
            let seen = self.master_seen.filter(|_| is_master);
            Peer {
                port_guid: entry.guid,
                place: self.fabric.describe(*port),
                lid: entry.base_lid(),
                state: sm.state,
                priority: sm.priority,
                answered: seen.map(|seen| now.saturating_duration_since(seen)),
            }
        };
        self.others.iter().map(peer).collect()
    }

    /// How long a master may leave polls unanswered until we look for another.
    pub fn patience(&self) -> Duration {
        let Settings { sminfo_polling_timeout, polling_retry_number, .. } = &self.settings;
        Duration::from_millis(u64::from(*sminfo_polling_timeout))
            .saturating_mul(*polling_retry_number)
    }

    pub(super) fn end_election(&mut self, now: Instant) {
        self.handover.taken_from = None;
        let others: Vec<RemoteSm> = self.others.iter().map(|(_, sm)| *sm).collect();
        debug!("election among us and {others:?}: {:?}", self.mastership.decide(&others));
        match self.mastership.decide(&others) {
            Decision::Rule => {
                self.handover.settle();
                self.rule(now);
            }
            Decision::StandBy(sm) => self.stand_by(now, sm),
            Decision::HandOver(sm) => self.hand_over(now, sm),
            Decision::Await(sm) => self.await_handover(now, sm),
        }
    }

    /// Goes on with the sweep, as master.
    pub(super) fn rule(&mut self, now: Instant) {
        if self.mastership.state() != SmState::Master {
            info!("master: no other subnet manager comes before us");
            self.become_master();
        }
        self.sweep.report.first = self.first_as_master;
        self.begin_addresses(now);
    }

    /// The subnet is ours from now on. Whoever had it before may have written tables of its own, so
    /// that nothing is known any more of what switches hold.
    pub(super) fn become_master(&mut self) {
        self.mastership.set_state(SmState::Master);
        let replaces_another = self.handover.follows_another;
        self.handover.begin_tenure();
        self.spares_clients = replaces_another && self.registry_copy.is_in_step(self.master_seen);
        if self.spares_clients {
            info!("what clients registered with the master before us is known: they are not asked");
        } else if replaces_another && !self.settings.no_clients_rereg {
            info!("asking all clients to register again");
        }
        self.first_as_master = true;
        self.reregistration.clear();
        if replaces_another {
            self.reregistration.forget_left();
        }
        self.forget_routing();
        self.aliases.forget_all();
        let nodes: Vec<_> = self.fabric.nodes().map(|(index, _)| index).collect();
        nodes.into_iter().for_each(|node| self.forget_port_tables(node));
        let switches: Vec<_> = self.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            self.fabric.lft_mut(index).forget();
            self.fabric.mft_mut(index).forget();
        }
    }

    /// Leaves everything as it stands, and does nothing more until it is asked to.
    pub(super) fn rest(&mut self) {
        self.exchange.cancel_all();
        self.routing_job = None;
        self.abandon_take_over();
        // What it tells of is about to be changed, or somebody else's.
        self.events.retain(|event| !matches!(event, Event::Configured(_)));
        self.sweep = Sweep::default();
        self.phase = Phase::Idle;
        self.reregistration.clear();
        self.multicast.forget_inherited();
        self.schedule.clear();
    }

    /// Where the last election found a subnet manager.
    pub(super) fn place_of_sm(&self, sm: RemoteSm) -> Option<PortIndex> {
        self.others.iter().find(|(_, other)| *other == sm).map(|(port, _)| *port)
    }

    pub(super) fn stand_by(&mut self, now: Instant, sm: RemoteSm) {
        let Some(port) = self.place_of_sm(sm) else { return self.give_up(now) };
        info!(
            "standing by: the subnet manager at {} is {} with priority {}; polling it",
            self.fabric.describe(port),
            sm.state,
            sm.priority
        );
        self.mastership.set_state(SmState::Standby);
        self.first_as_master = true;
        self.up = false;
        self.master = Some((port, sm.guid));
        self.master_seen = Some(now);
        self.polls_missed = 0;
        self.rest();
        self.schedule.rearm_poll(now);
        // Who rules meanwhile routes as it likes.
        self.router.left_by = None;
        self.router.anew_from = None;
        self.handover.settle();
        self.handover.follows_another = true;
        if sm.state == SmState::Master && self.mastership.outranks(&sm) {
            self.nudge(port);
        }
        self.emit(Event::StandingBy(sm));
    }

    pub(super) fn begin_poll(&mut self, now: Instant) {
        let Some((port, _)) = self.master else {
            return self.begin_discovery(now, None, Vec::new());
        };
        self.sweep = Sweep::default();
        self.enter(now, Phase::Poll);
        self.exchange.push(Request::new(Kind::SmInfo, port));
    }

    fn master_answered(&mut self, now: Instant, port: PortIndex, sm: RemoteSm) {
        if sm.state == SmState::Master {
            self.master_seen = Some(now);
            self.polls_missed = 0;
            if self.mastership.outranks(&sm) {
                self.nudge(port);
            }
        } else {
            info!("the master has become {}", sm.state);
            self.master = None;
        }
    }

    pub(super) fn sm_is_silent(&mut self, port: PortIndex) {
        self.others.retain(|(at, _)| *at != port);
        if self.phase == Phase::Poll {
            self.polls_missed += 1;
            if self.polls_missed >= self.settings.polling_retry_number {
                warn!("the master no longer answers; looking for another");
                self.master = None;
            }
        }
    }

    pub(super) fn end_poll(&mut self, now: Instant) {
        self.phase = Phase::Idle;
        if self.mastership.state() != SmState::Standby {
            // Somebody told us meanwhile to be something else.
        } else if self.master.is_some() {
            self.schedule.rearm_poll(now);
        } else {
            self.mastership.set_state(SmState::Discovering);
            self.schedule.request(now, Cause::Asked);
        }
    }
}

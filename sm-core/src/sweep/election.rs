//! Other subnet managers: asking who they are, standing by for one, taking over from it.

mod state;

use std::collections::HashSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{CapabilityMask, SmInfo, SmState};
use sa_proto::snapshot::SubnetManager;
use tracing::{debug, info, warn};

use super::schedule::Cause;
use super::{Event, Peer, Phase, STATE, Sweep, Sweeper};
use crate::config::Settings;
use crate::fabric::PortIndex;
use crate::manage::lid::LidTable;
use crate::mastership::{Decision, RemoteSm};
use crate::smp::{Kind, Request};
use state::Answer;
pub(super) use state::Election;

/// Subnet managers remembered of one discovery.
const OTHERS_MAX: usize = 256;
/// How often light sweeps ask those that are mute. Sweeps of a part of the fabric leave it to them, and
/// ask themselves if that was not done for twice as long.
const MUTE_INTERVAL: Duration = Duration::from_secs(60);

impl Sweeper {
    pub(super) fn begin_election(&mut self, now: Instant) {
        self.enter(now, Phase::Elect);
        self.election.forget_others();
        let managers = self.manager_ports();
        let there: HashSet<Guid> =
            managers.iter().map(|&port| self.fabric.port(port).guid).collect();
        self.election.keep_known(|guid| there.contains(&guid));
        if self.settings.ignore_other_sm {
            return;
        }
        let home = self.fabric.home();
        // A host that died with its HCA alive is a subnet manager's for ever. What a sweep of a part
        // mends must not wait for it each time.
        let asked = |port: &PortIndex| {
            let guid = self.fabric.port(*port).guid;
            let since = self.election.mute_since(guid);
            let is_mute = since.is_some_and(|since| now < since + MUTE_INTERVAL * 2);
            Some(*port) != home && (self.sweep.full || !is_mute)
        };
        for port in managers.into_iter().filter(asked).take(OTHERS_MAX) {
            self.exchange.push(Request::new(Kind::SmInfo, port));
        }
    }

    /// Asks those that are mute, once in a while: two masters that each missed the other's answer would
    /// never hear of one another. The light sweep that does so is cut short by a trap.
    pub(super) fn ask_mute(&mut self, now: Instant) {
        if self.settings.ignore_other_sm || !self.election.has_mute() {
            return;
        }
        for port in self.manager_ports() {
            let guid = self.fabric.port(port).guid;
            let since = self.election.mute_since(guid);
            if since.is_some_and(|since| now >= since + MUTE_INTERVAL) {
                self.election.mute(now, guid);
                self.sweep.asks_mute = true;
                self.exchange.push(Request::new(Kind::SmInfo, port));
            }
        }
    }

    /// A subnet manager left a question without answer: it is mute until it is heard of, and asked
    /// again once in a while.
    pub(super) fn sm_is_mute(&mut self, now: Instant, port: PortIndex) {
        self.election.mute(now, self.fabric.port(port).guid);
        self.schedule.await_mute(now + MUTE_INTERVAL);
    }

    /// Asks those that are mute, and nobody else, where there are no light sweeps.
    pub(super) fn begin_asking_mute(&mut self, now: Instant) {
        self.enter(now, Phase::Light);
        self.ask_mute(now);
    }

    /// Ports at which a subnet manager runs, as they say.
    fn manager_ports(&self) -> Vec<PortIndex> {
        let runs = |port: &PortIndex| {
            let mask = self.fabric.port(*port).port_info().capability_mask();
            mask.contains(CapabilityMask::IS_SM)
        };
        self.fabric.end_ports().filter(runs).collect()
    }

    pub(super) fn sm_info(&mut self, now: Instant, port: PortIndex, data: &[u8; 64]) {
        let at = self.fabric.port(port).guid;
        self.election.unmute(|guid| guid == at);
        match self.election.read(data) {
            Answer::None => {
                self.sm_says_nothing(port, "answers a poll with no state that there is");
            }
            Answer::Foreign(sm) => {
                self.note_foreign_sm(port, sm);
                self.sm_says_nothing(port, "answers a poll with another SM_Key than ours");
            }
            Answer::Peer(sm) => {
                self.election.is_known_at(at);
                match self.sweep.phase {
                    Phase::Poll => self.master_answered(now, port, sm),
                    _ => self.election.put(port, sm),
                }
            }
        }
    }

    /// A subnet manager showed another SM_Key: it is told of once.
    fn note_foreign_sm(&mut self, port: PortIndex, sm: RemoteSm) {
        let (fabric, at) = (&self.fabric, self.fabric.port(port).guid);
        if self.election.put_foreign(at, || fabric.describe(port)) {
            let place = self.place(port);
            warn!(
                "the subnet manager at {place}, {} with priority {}, does not show our SM_Key: it is \
                 left out, and neither handed over to nor stood by for",
                sm.state, sm.priority
            );
        }
    }

    /// Subnet managers that show another SM_Key than ours, in words.
    pub fn foreign_sms(&self) -> impl Iterator<Item = &str> {
        self.election.foreign_sms()
    }

    /// Answers of subnet managers that showed another SM_Key than ours.
    pub fn foreign_answers(&self) -> u64 {
        self.election.foreign_answers()
    }

    /// The subnet managers of the subnet, ours among them, as the last discovery found them.
    pub fn subnet_managers(&self) -> Vec<SubnetManager> {
        let row = |port: PortIndex, info: [u8; 21]| {
            let port = self.fabric.port(port);
            SubnetManager { port_guid: port.guid, lid: port.base_lid(), info }
        };
        let ours = self.fabric.home().map(|home| row(home, self.election.own.record()));
        let theirs = self.election.others().iter().map(|(port, sm)| {
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

    /// Whether LIDs are to be stated again before the sweep that begins needs them: we stood by, and
    /// `honor_guid2lid_file` has a site put into the file what is to count then.
    pub fn wants_lids(&self) -> bool {
        self.settings.honor_guid2lid_file && self.election.handover.stood_by
    }

    /// States the LIDs that were given out before, in place of those known.
    pub fn set_lids(&mut self, lids: LidTable) {
        self.lids = lids;
        self.election.handover.stood_by = false;
    }

    /// The port of the master that we stand by for, in words.
    pub fn master(&self) -> Option<String> {
        self.election.master().map(|port| self.fabric.describe(port))
    }

    /// The subnet managers that the last discovery found, and the master that we stand by for: of
    /// that one also how long ago it answered last.
    pub fn peers(&self, now: Instant) -> Vec<Peer> {
        let stands_by = self.election.state() == SmState::Standby;
        let master = self.election.master().filter(|_| stands_by);
        let peer = |(port, sm): &(PortIndex, RemoteSm)| {
            let entry = self.fabric.port(*port);
            let seen = self.election.master_seen().filter(|_| master == Some(*port));
            Peer {
                port_guid: entry.guid,
                place: self.peer_place(*port),
                lid: entry.base_lid(),
                state: sm.state,
                priority: sm.priority,
                answered: seen.map(|seen| now.saturating_duration_since(seen)),
                polls_missed: seen.map_or(0, |_| self.election.polls_missed()),
            }
        };
        self.election.others().iter().map(peer).collect()
    }

    /// Where another subnet manager is, in words: with the GUID of its port, by which it names itself.
    pub(super) fn peer_place(&self, port: PortIndex) -> String {
        format!("{}, port GUID {}", self.fabric.describe(port), self.fabric.port(port).guid)
    }

    /// How long a master may leave polls unanswered until we look for another.
    pub fn patience(&self) -> Duration {
        let Settings { sminfo_polling_timeout, polling_retry_number, .. } = &self.settings;
        Duration::from_millis(u64::from(*sminfo_polling_timeout))
            .saturating_mul(*polling_retry_number)
    }

    pub(super) fn end_election(&mut self, now: Instant) {
        self.election.handover.taken_from = None;
        let decision = self.election.decide();
        debug!("election among us and {:?}: {decision:?}", self.election.others());
        match decision {
            Decision::Master => {
                self.election.handover.settle();
                self.go_on_as_master(now);
            }
            Decision::StandBy(sm) => self.stand_by(now, sm),
            Decision::HandOver(sm) => self.hand_over(now, sm),
            Decision::AwaitHandover(sm) => self.await_handover(now, sm),
        }
    }

    /// Goes on with the sweep, as master.
    pub(super) fn go_on_as_master(&mut self, now: Instant) {
        if !self.election.is_master() {
            info!(target: STATE, "master: no other subnet manager comes before us");
            self.become_master();
        }
        self.sweep.report.first = self.subnet.first_as_master;
        self.begin_addresses(now);
    }

    /// The subnet is ours from now on. Whoever had it before may have written tables of its own, so
    /// that nothing is known any more of what switches hold.
    pub(super) fn become_master(&mut self) {
        let replaces_another = self.election.become_master();
        let spares = self.clients.begin_tenure(replaces_another, self.election.master_seen());
        if spares {
            info!("what clients registered with the master before us is known: they are not asked");
        } else if replaces_another && !self.settings.no_clients_rereg {
            info!("asking all clients to register again");
        }
        self.subnet.first_as_master = true;
        if replaces_another {
            self.clients.forget_left();
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
        self.abandon_take_over();
        // What it tells of is about to be changed, or somebody else's.
        self.events.drop_configured();
        self.sweep = Sweep::default();
        self.clients.clear();
        self.multicast.rest();
        self.schedule.clear();
    }

    pub(super) fn stand_by(&mut self, now: Instant, sm: RemoteSm) {
        let Some(port) = self.election.place_of(sm) else { return self.give_up(now) };
        info!(
            target: STATE,
            "standing by: the subnet manager at {} is {} with priority {}; polling it",
            self.peer_place(port),
            sm.state,
            sm.priority
        );
        self.subnet.first_as_master = true;
        self.subnet.up = false;
        self.election.stand_by(now, port);
        self.rest();
        self.schedule.rearm_poll(now);
        // Who rules meanwhile routes as it likes.
        self.router.forget_origin();
        if sm.state == SmState::Master && self.election.own.outranks(&sm) {
            self.ask_for_handover(port);
        }
        self.emit(Event::StandingBy(sm));
    }

    pub(super) fn begin_poll(&mut self, now: Instant) {
        let Some(port) = self.election.master() else {
            return self.begin_discovery(now, None, Vec::new());
        };
        self.enter(now, Phase::Poll);
        self.exchange.push(Request::new(Kind::SmInfo, port));
    }

    fn master_answered(&mut self, now: Instant, port: PortIndex, sm: RemoteSm) {
        if sm.state == SmState::Master {
            self.election.master_lives(now);
            if self.election.own.outranks(&sm) {
                self.ask_for_handover(port);
            }
        } else {
            info!(target: STATE, "the master has become {}", sm.state);
            self.election.master_is_gone();
        }
    }

    /// What a subnet manager was asked for has come to nothing: `how`, for the log, if it was a poll.
    pub(super) fn sm_says_nothing(&mut self, port: PortIndex, how: impl Display) {
        if self.sweep.phase != Phase::Poll {
            return self.election.forget(port);
        }
        let polls_max = self.settings.polling_retry_number;
        if self.election.miss_poll(polls_max) {
            self.election.forget(port);
            warn!(target: STATE, "the master {how}, {polls_max} in a row: looking for another");
            return;
        }
        let missed = self.election.polls_missed();
        let left = Duration::from_millis(u64::from(self.settings.sminfo_polling_timeout))
            .saturating_mul(polls_max.saturating_sub(missed));
        warn!(
            "the master at {} {how}, {missed} of {polls_max}: takeover in {} s",
            self.peer_place(port),
            left.as_secs_f32().ceil()
        );
    }

    pub(super) fn end_poll(&mut self, now: Instant) {
        self.sweep.phase = Phase::Idle;
        if self.election.state() != SmState::Standby {
            // Somebody told us meanwhile to be something else.
        } else if self.election.master().is_some() {
            self.schedule.rearm_poll(now);
        } else {
            self.election.own.set_state(SmState::Discovering);
            self.schedule.request(now, Cause::Asked);
        }
    }
}

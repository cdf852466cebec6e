//! Other subnet managers: asking who they are, standing by for one, taking over from it.

mod state;

use std::collections::HashSet;
use std::fmt::Display;
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{CapabilityMask, SmInfo, SmState};
use ib_mad::wire::mad::Status;
use sa_proto::snapshot::SubnetManager;
use tracing::{debug, info, warn};

use super::current::{Stage, Sweep};
use super::journal::Journal;
use super::owner::{OwnedRequest, RequestOwner};
use super::schedule::Cause;
use super::subnet::Subnet;
use super::{Event, Peer, STATE, Sweeper};
use crate::fabric::PortIndex;
use crate::manage::lid::LidTable;
use crate::mastership::{Decision, RemoteSm};
use crate::smp::{Kind, Request, kinds};
use sm_config::Settings;
use state::Answer;
pub(super) use state::Election;

/// Subnet managers remembered of one discovery.
const OTHERS_MAX: usize = 256;
/// How often light sweeps ask those that are mute. Sweeps of a part of the fabric leave it to them,
/// and ask themselves if that was not done for twice as long.
const MUTE_INTERVAL: Duration = Duration::from_secs(60);

/// The other subnet managers, as owner of the requests to them. What is known of them is in
/// [`Election`].
pub(super) struct OtherManagers;

impl RequestOwner for OtherManagers {
    type Kind = kinds::Election;

    fn encode(&self, _: &Subnet, owned: OwnedRequest<Self::Kind>, _: &mut [u8; 64]) -> Option<u32> {
        let OwnedRequest { kind, .. } = owned;
        match kind {
            kinds::Election::SmInfo | kinds::Election::Poll => Some(0),
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { kind, request, now } = owned;
        let port = request.port();
        let at = subnet.fabric.port(port).guid;
        subnet.election.unmute(|guid| guid == at);
        match subnet.election.read(data) {
            Answer::None => {
                subnet.sm_failed(kind, port, "answers a poll with no state that there is");
            }
            Answer::Foreign(sm) => {
                subnet.note_foreign_sm(port, sm);
                subnet.sm_failed(kind, port, "answers a poll with another SM_Key than ours");
            }
            Answer::Peer(sm) => {
                subnet.election.is_known_at(at);
                match kind {
                    kinds::Election::Poll => subnet.master_answered(now, port, sm),
                    kinds::Election::SmInfo => subnet.election.put(port, sm),
                }
            }
        }
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { kind, request, .. } = owned;
        if kind == kinds::Election::SmInfo {
            subnet.report_refusal(request, status);
        }
        subnet.sm_failed(kind, request.port(), format_args!("refuses a poll: {status}"));
    }

    fn silent(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>) {
        let OwnedRequest { kind, request, now } = owned;
        let port = request.port();
        subnet.sm_is_mute(now, port);
        debug!("{}: no answer from {}", request.kind.name(), subnet.place(port));
        subnet.sm_failed(kind, port, "leaves a poll unanswered");
    }
}

impl Sweeper {
    pub(super) fn begin_election(&mut self, now: Instant, full: bool) {
        self.enter(now, Stage::Elect { full });
        let handover = &mut self.subnet.election.handover;
        handover.elects_in_doubt = full && handover.is_in_doubt;
        self.subnet.election.forget_others();
        let managers = self.subnet.manager_ports();
        let there: HashSet<Guid> =
            managers.iter().map(|&port| self.subnet.fabric.port(port).guid).collect();
        self.subnet.election.keep_known(|guid| there.contains(&guid));
        if self.subnet.settings.ignore_other_sm {
            return;
        }
        let sm_port = self.subnet.fabric.sm_port();
        // A host that died with its HCA alive is a subnet manager's for ever. What a sweep of a
        // part mends must not wait for it each time.
        let asked = |port: &PortIndex| {
            let guid = self.subnet.fabric.port(*port).guid;
            let since = self.subnet.election.mute_since(guid);
            let is_mute = since.is_some_and(|since| now < since + MUTE_INTERVAL * 2);
            Some(*port) != sm_port && (full || !is_mute)
        };
        for port in managers.into_iter().filter(asked).take(OTHERS_MAX) {
            self.subnet.exchange.push(Request::new(Kind::SmInfo, port));
        }
    }

    /// Subnet managers that show another SM_Key than ours, in words.
    pub fn foreign_sms(&self) -> impl Iterator<Item = &str> {
        self.subnet.election.foreign_sms()
    }

    /// Answers of subnet managers that showed another SM_Key than ours.
    pub fn foreign_answers(&self) -> u64 {
        self.subnet.election.foreign_answers()
    }

    /// The subnet managers of the subnet, ours among them, as the last discovery found them.
    pub fn subnet_managers(&self) -> Vec<SubnetManager> {
        let row = |port: PortIndex, info: [u8; 21]| {
            let port = self.subnet.fabric.port(port);
            SubnetManager { port_guid: port.guid, lid: port.base_lid(), info }
        };
        let ours = self
            .subnet
            .fabric
            .sm_port()
            .map(|sm_port| row(sm_port, self.subnet.election.own.record()));
        let theirs = self.subnet.election.others().iter().map(|(port, sm)| {
            let mut info = [0; 21];
            SmInfo::of_mut(&mut info)
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

    /// Whether LIDs are to be stated again before the sweep that begins needs them: we stood by,
    /// and `honor_guid2lid_file` has a site put into the file what is to count then.
    pub fn wants_lids(&self) -> bool {
        self.subnet.settings.honor_guid2lid_file && self.subnet.election.handover.stood_by
    }

    /// States the LIDs that were given out before, in place of those known.
    pub fn set_lids(&mut self, lids: LidTable) {
        self.subnet.lids = lids;
        self.subnet.election.handover.stood_by = false;
    }

    /// The port of the master that we stand by for, in words.
    pub fn master(&self) -> Option<String> {
        self.subnet.election.master().map(|port| self.subnet.fabric.describe(port))
    }

    /// The subnet managers that the last discovery found, and the master that we stand by for: of
    /// that one also how long ago it answered last.
    pub fn peers(&self, now: Instant) -> Vec<Peer> {
        let stands_by = self.subnet.election.state() == SmState::Standby;
        let master = self.subnet.election.master().filter(|_| stands_by);
        let peer = |(port, sm): &(PortIndex, RemoteSm)| {
            let entry = self.subnet.fabric.port(*port);
            let seen = self.subnet.election.master_seen().filter(|_| master == Some(*port));
            Peer {
                port_guid: entry.guid,
                place: self.subnet.peer_place(*port),
                lid: entry.base_lid(),
                state: sm.state,
                priority: sm.priority,
                answered: seen.map(|seen| now.saturating_duration_since(seen)),
                polls_missed: seen.map_or(0, |_| self.subnet.election.polls_missed()),
            }
        };
        self.subnet.election.others().iter().map(peer).collect()
    }

    /// How long a master may leave polls unanswered until we look for another.
    pub fn patience(&self) -> Duration {
        let Settings { sminfo_polling_timeout, polling_retry_number, .. } = &self.subnet.settings;
        Duration::from_millis(u64::from(*sminfo_polling_timeout))
            .saturating_mul(*polling_retry_number)
    }

    pub(super) fn end_election(&mut self, now: Instant, full: bool) {
        self.subnet.election.handover.taken_from = None;
        let decision = self.subnet.election.decide();
        debug!("election among us and {:?}: {decision:?}", self.subnet.election.others());
        match decision {
            Decision::HandOver(sm) | Decision::AwaitHandover(sm)
                if sm.state == SmState::Master && self.subnet.election.handover.is_in_doubt =>
            {
                warn!(target: STATE, "another subnet manager has become master");
                return self.stand_by(now, sm);
            }
            _ => {}
        }
        let handover = &mut self.subnet.election.handover;
        handover.is_doubt_settled |= std::mem::take(&mut handover.elects_in_doubt);
        match decision {
            Decision::Master => {
                self.subnet.election.handover.settle();
                self.go_on_as_master(now, full);
            }
            Decision::StandBy(sm) => self.stand_by(now, sm),
            Decision::HandOver(sm) => self.hand_over(now, sm, full),
            Decision::AwaitHandover(sm) => self.await_handover(now, sm, full),
        }
    }

    /// Goes on with the sweep, as master.
    pub(super) fn go_on_as_master(&mut self, now: Instant, full: bool) {
        if !self.subnet.election.is_master() {
            info!(target: STATE, "master: no other subnet manager comes before us");
            self.become_master();
        }
        self.subnet.journal.report.first = self.subnet.state.first_as_master;
        self.begin_addresses(now, full);
    }

    /// The subnet is ours from now on. Whoever had it before may have written tables of its own, so
    /// that nothing is known any more of what switches hold.
    pub(super) fn become_master(&mut self) {
        let replaces_another = self.subnet.election.become_master();
        let spares = self.reregistration.begin_tenure(&mut self.subnet, replaces_another);
        if spares {
            info!("what clients registered with the master before us is known: they are not asked");
        } else if self.reregistration.awaits_copy() {
            info!("finding out whether all registrations with the master before us are known");
        } else if replaces_another && !self.subnet.settings.no_clients_rereg {
            info!("asking all clients to register again");
        }
        self.subnet.state.first_as_master = true;
        if replaces_another {
            self.reregistration.forget_fingerprint();
        }
        self.multicast.forget_routing(&mut self.subnet);
        self.aliases.forget_all();
        let nodes: Vec<_> = self.subnet.fabric.nodes().map(|(index, _)| index).collect();
        nodes.into_iter().for_each(|node| self.subnet.forget_port_tables(node));
        let switches: Vec<_> = self.subnet.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            self.subnet.fabric.lft_mut(index).forget();
            self.subnet.fabric.mft_mut(index).forget();
        }
    }

    /// Leaves everything as it stands, and does nothing more until it is asked to.
    pub(super) fn rest(&mut self) {
        self.subnet.exchange.cancel_all();
        self.abandon_take_over();
        // The pending event describes what is about to change, or another SM's subnet.
        self.subnet.events.drop_configured();
        self.sweep = Sweep::default();
        self.subnet.journal = Journal::default();
        self.reregistration.clear(&mut self.subnet);
        self.multicast.rest();
        self.subnet.schedule.clear();
    }

    pub(super) fn stand_by(&mut self, now: Instant, sm: RemoteSm) {
        let Some(port) = self.subnet.election.place_of(sm) else { return self.give_up(now) };
        info!(
            target: STATE,
            "standing by: the subnet manager at {} is {} with priority {}; polling it",
            self.subnet.peer_place(port),
            sm.state,
            sm.priority
        );
        self.subnet.state.first_as_master = true;
        self.subnet.state.up = false;
        self.subnet.election.stand_by(now, port);
        self.rest();
        self.subnet.schedule.rearm_poll(now);
        // Who rules meanwhile routes as it likes.
        self.subnet.routing.forget_origin();
        if sm.state == SmState::Master && self.subnet.election.own.outranks(&sm) {
            self.subnet.ask_for_handover(port);
        }
        self.subnet.events.push(Event::StandingBy(sm));
    }

    pub(super) fn begin_poll(&mut self, now: Instant) {
        let Some(port) = self.subnet.election.master() else {
            return self.begin_discovery(now, None, Vec::new());
        };
        self.subnet.election.is_probing = false;
        self.enter(now, Stage::Poll);
        self.subnet.exchange.push(Request::new(Kind::Poll, port));
    }

    pub(super) fn end_poll(&mut self, now: Instant) {
        let was_probe = std::mem::take(&mut self.subnet.election.is_probing);
        if self.subnet.election.state() != SmState::Standby {
            // A SubnSet(SMInfo) changed our state meanwhile.
        } else if self.subnet.election.master().is_some() {
            if !was_probe {
                self.subnet.schedule.rearm_poll(now);
            }
        } else {
            self.subnet.election.own.set_state(SmState::Discovering);
            self.subnet.schedule.request(now, Cause::Asked);
        }
    }
}

impl Subnet {
    /// Asks those that are mute, once in a while: two masters that each missed the other's answer
    /// would never hear of one another. The light sweep that does so is cut short by a trap.
    pub(super) fn ask_mute(&mut self, now: Instant) -> bool {
        let mut asks = false;
        if self.settings.ignore_other_sm || !self.election.has_mute() {
            return false;
        }
        for port in self.manager_ports() {
            let guid = self.fabric.port(port).guid;
            let since = self.election.mute_since(guid);
            if since.is_some_and(|since| now >= since + MUTE_INTERVAL) {
                self.election.mute(now, guid);
                asks = true;
                self.exchange.push(Request::new(Kind::SmInfo, port));
            }
        }
        asks
    }

    /// A subnet manager left a question without answer: it is mute until it is heard of, and asked
    /// again once in a while.
    fn sm_is_mute(&mut self, now: Instant, port: PortIndex) {
        self.election.mute(now, self.fabric.port(port).guid);
        self.schedule.await_mute(now + MUTE_INTERVAL);
    }

    /// What a subnet manager was asked for has come to nothing: `how`, for the log, if it was a
    /// poll.
    fn sm_failed(&mut self, kind: kinds::Election, port: PortIndex, how: impl Display) {
        if kind == kinds::Election::SmInfo {
            return self.election.forget(port);
        }
        if self.election.is_probing {
            return debug!("the master {how}, between regular polls");
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

    /// Ports at which a subnet manager runs, as they say.
    fn manager_ports(&self) -> Vec<PortIndex> {
        let runs = |port: &PortIndex| {
            let mask = self.fabric.port(*port).port_info().capability_mask();
            mask.contains(CapabilityMask::IS_SM)
        };
        self.fabric.end_ports().filter(runs).collect()
    }

    /// Reports once that a subnet manager showed another SM_Key.
    fn note_foreign_sm(&mut self, port: PortIndex, sm: RemoteSm) {
        let (fabric, at) = (&self.fabric, self.fabric.port(port).guid);
        if self.election.put_foreign(at, || fabric.describe(port)) {
            let place = self.place(port);
            warn!(
                "the subnet manager at {place}, {} with priority {}, does not show our SM_Key: it \
                 is left out, and neither handed over to nor stood by for",
                sm.state, sm.priority
            );
        }
    }

    /// Where another subnet manager is, in words: with the GUID of its port, by which it names
    /// itself.
    pub(super) fn peer_place(&self, port: PortIndex) -> String {
        format!("{}, port GUID {}", self.fabric.describe(port), self.fabric.port(port).guid)
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
}

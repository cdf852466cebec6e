//! Elections and polls of the master: starts them, and continues as master or in standby.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::{SmInfo, SmState};
use sa_proto::snapshot::SubnetManager;
use tracing::{debug, info, warn};

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::manage::lid::LidTable;
use crate::mastership::{Decision, RemoteSm};
use crate::smp::{Kind, Request};
use crate::sweep::stages::election::UNRESPONSIVE_INTERVAL;
use crate::sweep::stages::{Stage, Sweep};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::journal::Journal;
use crate::sweep::subnet::log::STATE;
use crate::sweep::subnet::peer::Peer;
use crate::sweep::subnet::schedule::Cause;
use sm_config::Settings;

impl Sweeper {
    pub(super) fn begin_election(&mut self, now: Instant, full: bool) {
        self.enter(now, Stage::Elect { full });
        let handover = &mut self.subnet.election.handover;
        handover.elects_in_doubt = full && handover.is_in_doubt;
        self.subnet.election.forget_others();
        let managers = self.subnet.manager_ports();
        let there: HashSet<Guid> =
            managers.iter().map(|&port| self.subnet.fabric.port(port).guid).collect();
        if let Some(place) = self.subnet.election.keep_known(|guid| there.contains(&guid)) {
            self.subnet.foreign_master_ended(now, &place);
        }
        if self.subnet.settings.ignore_other_sm {
            return;
        }
        let sm_port = self.subnet.fabric.sm_port();
        // The SM of a host that hung with IsSM still set never answers. Partial sweeps must not
        // wait for it each time.
        let asked = |port: &PortIndex| {
            let guid = self.subnet.fabric.port(*port).guid;
            let since = self.subnet.election.unresponsive_since(guid);
            let is_unresponsive =
                since.is_some_and(|since| now < since + UNRESPONSIVE_INTERVAL * 2);
            Some(*port) != sm_port && (full || !is_unresponsive)
        };
        for port in managers.into_iter().filter(asked) {
            self.subnet.exchange.push(Request::new(Kind::SmInfo, port));
        }
    }

    /// Sets the port GUIDs of the SMs that count in elections and whose demands are granted; all do
    /// if there are none.
    pub fn allow_managers(&mut self, guids: BTreeSet<Guid>) {
        self.subnet.election.allow_only(guids);
    }

    /// Places of SMs that are ignored, as text, and why they are: with another SM_Key, with the
    /// GUID of another port, or not among those allowed.
    pub fn foreign_sms(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.subnet.election.foreign_sms()
    }

    /// Number of SMInfo answers with another SM_Key.
    pub fn foreign_answers(&self) -> u64 {
        self.subnet.election.foreign_answers()
    }

    /// The SMs of the subnet found by the last discovery, including this one.
    pub fn subnet_managers(&self) -> Vec<SubnetManager> {
        let row = |port: PortIndex, info: [u8; 21]| {
            let (lid, _) = self.subnet.fabric.lids_of(port);
            let port = self.subnet.fabric.port(port);
            SubnetManager { port_guid: port.guid, lid, info }
        };
        let ours = self.subnet.fabric.sm_port().map(|sm_port| {
            let own = &self.subnet.election.own;
            let mut info = own.record();
            SmInfo::of_mut(&mut info).set_act_count(own.act_count());
            row(sm_port, info)
        });
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

    /// Whether the caller must set the LIDs again before the next sweep: this SM was standby, and
    /// with `honor_guid2lid_file` the site may have changed the file meanwhile.
    pub fn wants_lids(&self) -> bool {
        self.subnet.settings.honor_guid2lid_file && self.subnet.election.handover.stood_by
    }

    /// Replaces the known LIDs with those assigned earlier.
    pub fn set_lids(&mut self, lids: LidTable) {
        self.subnet.lids = lids;
        self.subnet.election.handover.stood_by = false;
    }

    /// Takes over the LIDs that the master assigned, while this SM stands by. Returns whether the
    /// known ones changed.
    pub fn follow_lids(&mut self, master: &LidTable) -> bool {
        self.subnet.lids.follow(master)
    }

    /// Port of the master that is polled in standby, as text.
    pub fn master(&self) -> Option<String> {
        self.subnet.election.master().map(|port| self.subnet.fabric.describe(port))
    }

    /// Number of other SMs that are inactive: they take nothing over.
    pub fn inactive_managers(&self) -> usize {
        let others = self.subnet.election.others();
        others.iter().filter(|(_, sm)| sm.state == SmState::NotActive).count()
    }

    /// The other SMs found by the last discovery; for the master that is polled, with the time
    /// since its last answer.
    pub fn peers(&self, now: Instant) -> Vec<Peer> {
        let stands_by = self.subnet.election.state() == SmState::Standby;
        let master = self.subnet.election.master().filter(|_| stands_by);
        let peer = |(port, sm): &(PortIndex, RemoteSm)| {
            let entry = self.subnet.fabric.port(*port);
            let seen = self.subnet.election.master_seen().filter(|_| master == Some(*port));
            Peer {
                port_guid: entry.guid,
                place: self.subnet.peer_place(*port),
                lid: self.subnet.fabric.lids_of(*port).0,
                state: sm.state,
                priority: sm.priority,
                answered: seen.map(|seen| now.saturating_duration_since(seen)),
                polls_missed: seen.map_or(0, |_| self.subnet.election.polls_missed()),
            }
        };
        self.subnet.election.others().iter().map(peer).collect()
    }

    /// How long a master may leave polls unanswered before this SM starts a discovery.
    pub fn patience(&self) -> Duration {
        let Settings { sminfo_polling_timeout, polling_retry_number, .. } = &self.subnet.settings;
        Duration::from_millis(u64::from(*sminfo_polling_timeout))
            .saturating_mul(*polling_retry_number)
    }

    pub(super) fn end_election(&mut self, now: Instant, full: bool) {
        self.subnet.election.handover.taken_from = None;
        let Subnet { election, fabric, .. } = &mut self.subnet;
        // Usually there is no GUID to ask for.
        election.note_others(|guid| fabric.end_ports().any(|port| fabric.port(port).guid == guid));
        self.find_idle(now);
        if self.looks_again_at_claimants(now, full) {
            return;
        }
        let decision = self.subnet.election.decide(now);
        debug!("election: other SMs {:?}, decision {decision:?}", self.subnet.election.others());
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
                if let Some(rival) = self.rival() {
                    self.rest();
                    return self.subnet.events.push(Event::Rival(rival));
                }
                self.subnet.election.handover.settle();
                self.go_on_as_master(now, full);
            }
            Decision::StandBy(sm) => self.stand_by(now, sm),
            Decision::HandOver(sm) => self.hand_over(now, sm, full),
            Decision::AwaitHandover(sm) => self.await_handover(now, sm, full),
        }
    }

    /// Finds and reports managers that did not become master in time.
    fn find_idle(&mut self, now: Instant) {
        let patience = self.patience();
        let Self { subnet, .. } = self;
        let guid_of = |port| subnet.fabric.port(port).guid;
        for port in subnet.election.find_idle(now, patience, guid_of) {
            warn!(
                target: STATE,
                "the subnet manager at {} did not become master: it is ignored in elections until \
                 it does",
                subnet.peer_place(port)
            );
        }
    }

    /// Other masters, as text, while this SM is master of a subnet that is up.
    pub fn rival_masters(&self) -> impl Iterator<Item = String> {
        let is_rival = self.subnet.election.is_master() && self.subnet.state.up;
        let others = self.subnet.election.others().iter();
        let masters = others.filter(move |(_, sm)| is_rival && sm.state == SmState::Master);
        masters.map(|(port, _)| self.subnet.peer_place(*port))
    }

    /// Managers that did not become master in time, as text.
    pub fn idle_managers(&self) -> impl Iterator<Item = String> {
        self.subnet.election.idle().map(|port| self.subnet.peer_place(port))
    }

    /// Why this SM must not become master: with [`yield_to_masters`](Self::yield_to_masters), there
    /// is another one that it cannot come to terms with.
    fn rival(&self) -> Option<String> {
        let (election, fabric) = (&self.subnet.election, &self.subnet.fabric);
        if !election.yields || election.is_master() {
            return None;
        }
        let ports = || fabric.nodes().flat_map(|(index, _)| fabric.ports_of(index));
        // A master that has an M_Key hides its SM_Key.
        if let Some(locked) = ports().find(|&port| self.subnet.is_locked(port)) {
            return Some(format!(
                "{} has an M_Key that another subnet manager set; give that manager's m_key, or \
                 its guid2mkey in the state directory",
                self.subnet.peer_place(locked)
            ));
        }
        let (place, reason) = election.ignored_master.as_ref()?;
        Some(format!("the master at {place}, {reason}"))
    }

    /// Sets that this SM does not become master beside another whose SM_Key or M_Key it lacks: it
    /// reports [`Event::Rival`] instead.
    pub fn yield_to_masters(&mut self) {
        self.subnet.election.yields = true;
    }

    /// Continues the sweep as master.
    pub(super) fn go_on_as_master(&mut self, now: Instant, full: bool) {
        if !self.subnet.election.is_master() {
            if self.dry_run.is_none() {
                info!(
                    target: STATE,
                    "becoming master: no other subnet manager has higher precedence"
                );
            }
            self.become_master();
        }
        self.subnet.journal.report.first = self.subnet.state.first_as_master;
        self.subnet.election.handover.has_configured = true;
        if self.may_route_first(full) {
            self.sweep.routes_first = true;
            return self.begin_routing(now);
        }
        self.begin_addresses(now, full, None);
    }

    /// Starts a term as master.
    pub(super) fn become_master(&mut self) {
        let replaces_another = self.subnet.election.become_master();
        let spares = self.reregistration.begin_tenure(&mut self.subnet, replaces_another);
        if spares {
            info!("the copy of the registry is complete: clients are not asked to register again");
        } else if self.reregistration.awaits_copy() {
            info!("checking whether the copy of the registry is complete");
        } else if replaces_another && !self.subnet.settings.no_clients_rereg {
            info!("asking all clients to register again");
        }
        self.subnet.state.first_as_master = true;
        if replaces_another {
            self.reregistration.forget_fingerprint();
        }
        self.forget_tables();
    }

    /// Another SM may have written to switches and ports: what they hold counts as unknown.
    pub(super) fn forget_tables(&mut self) {
        self.multicast.forget_routing(&mut self.subnet);
        self.aliases.forget_all(&mut self.subnet);
        self.virtual_ports.forget_all();
        let nodes: Vec<_> = self.subnet.fabric.nodes().map(|(index, _)| index).collect();
        nodes.into_iter().for_each(|node| self.subnet.forget_port_tables(node));
        let switches: Vec<_> = self.subnet.fabric.switches().map(|(index, _)| index).collect();
        for index in switches {
            self.subnet.fabric.lft_mut(index).forget();
            self.subnet.fabric.mft_mut(index).forget();
        }
    }

    /// Abandons the sweep and all pending work; nothing is sent until something is scheduled again.
    pub(super) fn rest(&mut self) {
        self.subnet.exchange.cancel_all();
        self.abandon_take_over();
        // The pending event describes a state that is about to change, or another SM's subnet.
        self.subnet.events.drop_configured();
        self.sweep = Sweep::default();
        self.subnet.journal = Journal::default();
        self.reregistration.clear(&mut self.subnet);
        self.multicast.rest();
        self.subnet.overwritten.forget();
        self.subnet.schedule.clear();
        self.subnet.fabric.forget_assignments();
    }

    /// Applies a changed `sm_inactive`; `false` if that has to wait for the next start. A master
    /// stays master: only STANDBY and DISCOVERING lead to NOT-ACTIVE (IBA 14.4.1), and the subnet
    /// would be without a manager.
    pub(super) fn follow_sm_inactive(&mut self) -> bool {
        match (self.subnet.settings.sm_inactive, self.subnet.election.state()) {
            (true, SmState::Master) => return false,
            (true, _) => {
                warn!(target: STATE, "sm_inactive is set: this subnet manager is inactive now");
                self.subnet.election.own.set_state(SmState::NotActive);
                self.rest();
            }
            (false, SmState::NotActive) => {
                info!(target: STATE, "sm_inactive is not set any more: looking for a master");
                self.subnet.election.own.set_state(SmState::Discovering);
            }
            (false, _) => {}
        }
        true
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
        let guid = self.subnet.fabric.port(port).guid;
        match sm.state {
            SmState::Master => self.subnet.election.note_master(port, guid),
            _ => self.subnet.election.wait_for(now, guid),
        }
        self.rest();
        self.subnet.schedule.rearm_poll(now);
        // The other master computes its own routes.
        self.subnet.routing.forget_origin();
        let has_configured = std::mem::take(&mut self.subnet.election.handover.has_configured);
        if sm.state == SmState::Master && self.subnet.election.own.outranks(&sm) {
            self.subnet.ask_for_handover(port);
        }
        if sm.state == SmState::Master && has_configured {
            self.announce_end(port);
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

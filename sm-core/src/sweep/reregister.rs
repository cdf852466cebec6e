//! Clients that are to register again with a new master, a few at a time: each sends a dozen requests
//! when it is asked, and ten thousand of them would drown the SA at the moment it begins.
//!
//! As many as one second's share are asked by the very Set(PortInfo) that names the new master, the
//! others between sweeps, [`STEPS`] times a second. Ports whose link is not up yet are asked at once:
//! what they run has registered nothing. So are those that get another LID, which clients have to know.
//!
//! Where the SA database of another subnet manager is read at the start (`-S`), all wait until it is;
//! ports that it tells of are not asked at all.
//!
//! After a plain restart what clients registered is on disk. Active ports that still have our LID as
//! their master's, and their own, wait until forwarding tables were read: if nobody ruled since
//! (`left`), they are not asked.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ib_mad::wire::attribute::{CapabilityMask, PortState};
use tracing::{debug, info, warn};

use super::{ImportedRegistry, Left, RegistryCopy, Sweeper};
use crate::fabric::PortIndex;
use crate::smp::{Kind, Request};

/// Steps a second.
const STEPS: u32 = 10;
const STEP: Duration = Duration::from_millis(1000 / STEPS as u64);
/// How long after the last step who did not take the request is asked again.
const AGAIN: Duration = Duration::from_secs(10);
/// How often.
const ROUNDS_MAX: u32 = 5;

/// Who is still to be asked, and what is known of whom.
#[derive(Debug, Default)]
pub(super) struct Reregistration {
    /// What we hold of what clients registered with the master that we stand by for.
    registry_copy: RegistryCopy,
    /// What is known of the SA database that we begin with.
    imported: ImportedRegistry,
    /// Whether clients keep what they registered with the master before us; until our first sweep
    /// ends.
    spared: bool,
    waiting: BTreeSet<PortIndex>,
    /// Who is not asked if the tables of switches are what our last run left.
    doubtful: BTreeSet<PortIndex>,
    /// What that was, as long as that is of use.
    left: Option<Left>,
    /// Who was asked, and did not answer.
    lost: BTreeSet<PortIndex>,
    due: Option<Instant>,
    rounds: u32,
}

impl Reregistration {
    /// We are master from now on, perhaps in another's place that was last heard of at `heard`.
    /// Nobody is to be asked yet. Whether clients are spared, as what they registered is known.
    pub(super) fn begin_tenure(&mut self, replaces_another: bool, heard: Option<Instant>) -> bool {
        self.spared = replaces_another && self.registry_copy.is_in_step(heard);
        self.clear();
        self.spared
    }

    /// A sweep of ours has told all ports who is master.
    pub(super) fn all_are_told(&mut self) {
        self.spared = false;
    }

    /// Nobody is to be asked.
    pub(super) fn clear(&mut self) {
        self.wait_for(BTreeSet::new(), BTreeSet::new());
    }

    fn wait_for(&mut self, waiting: BTreeSet<PortIndex>, doubtful: BTreeSet<PortIndex>) {
        (self.waiting, self.doubtful) = (waiting, doubtful);
        (self.lost, self.due, self.rounds) = (BTreeSet::new(), None, 0);
    }

    /// What our last run left is of no use: another subnet manager ruled.
    pub(super) fn forget_left(&mut self) {
        self.left = None;
    }

    /// Whether the port's turn has not come.
    pub(super) fn holds_back(&self, port: PortIndex) -> bool {
        self.waiting.contains(&port) || self.doubtful.contains(&port)
    }
}

impl Sweeper {
    /// Clients that are to be asked to register again and have not been.
    pub fn clients_to_ask(&self) -> usize {
        self.clients.waiting.len() + self.clients.lost.len()
    }

    /// States what our last run left in switches, all that clients had registered with it being known.
    /// To be told before we are master.
    pub fn set_left(&mut self, left: Option<Left>) {
        self.clients.left = left;
    }

    /// Whether the subnet is ours and all clients know: then the next run may take it up where we left
    /// it, by [`Left::of`].
    pub fn is_settled(&self) -> bool {
        self.subnet.up && !self.subnet.first_as_master && self.clients_to_ask() == 0
    }

    /// Decides who waits, before the first ports are told of us as their new master.
    pub(super) fn stagger_clients(&mut self, now: Instant) {
        if !self.subnet.first_as_master {
            return;
        }
        let tenure = self.election.tenure();
        if self.clients.spared {
            // Only those that are here now: who comes back later has been forgotten meanwhile.
            let ports: Vec<PortIndex> = self.fabric.end_ports().collect();
            ports.into_iter().for_each(|port| self.fabric.port_mut(port).told_in = tenure);
        }
        let expects = self.clients.imported == ImportedRegistry::Expected;
        let is_asked_later = |port: &PortIndex| {
            let entry = self.fabric.port(*port);
            let lid = self.lids.get(entry.guid).map(|range| range.first);
            let mask = entry.port_info().capability_mask();
            mask.contains(CapabilityMask::IS_CLIENT_REREGISTRATION_SUPPORTED)
                && entry.state() == Some(PortState::Active)
                && entry.told_in != tenure
                && lid == Some(entry.base_lid())
        };
        self.clients.clear();
        if self.clients.spared || self.settings.no_clients_rereg {
            return;
        }
        let (sm_lid, knows_left) = (self.sm_lid(), self.clients.left.is_some());
        let is_still_ours =
            |port: &PortIndex| self.fabric.port(*port).port_info().master_sm_lid() == sm_lid;
        let later = self.fabric.end_ports().filter(is_asked_later);
        let (doubtful, mut ports): (Vec<_>, Vec<_>) =
            later.partition(|port| knows_left && is_still_ours(port));
        ports.retain(|port| Some(*port) != self.fabric.home());
        ports.sort_unstable();
        let count = ports.len();
        let rate = self.settings.client_rereg_rate as usize;
        let at_once = match rate {
            _ if expects => 0,
            0 => usize::MAX,
            rate => rate,
        };
        let waiting = ports.into_iter().skip(at_once).collect();
        self.clients.wait_for(waiting, doubtful.into_iter().collect());
        if expects {
            debug!("{count} clients wait for what the SA database tells of them");
        } else if count > at_once {
            info!("{count} clients are asked to register again, {rate} a second");
            self.clients.due = Some(now + Duration::from_secs(1));
        }
    }

    /// States what we hold of what clients registered with the master that we stand by for. If that
    /// is all when we take over, no client is asked to register again.
    pub fn set_registry_copy(&mut self, copy: RegistryCopy) {
        self.clients.registry_copy = copy;
    }

    /// States what is known of an SA database that we begin with. To be told before we are master, and
    /// again when that changes: those that wait for it are spared then, or asked.
    pub fn set_imported_registry(&mut self, now: Instant, imported: ImportedRegistry) {
        if self.clients.imported == imported {
            return;
        }
        let before = std::mem::replace(&mut self.clients.imported, imported);
        if before != ImportedRegistry::Expected || self.clients.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.clients.waiting);
        let all = waiting.len();
        let is_known = |port: &PortIndex| match &self.clients.imported {
            ImportedRegistry::Read(known) => known.contains(&self.fabric.port(*port).guid),
            ImportedRegistry::None | ImportedRegistry::Expected => false,
        };
        let (spared, asked): (BTreeSet<_>, BTreeSet<_>) = waiting.into_iter().partition(is_known);
        info!(
            "what {} of {all} clients registered is known from the SA database; the others are asked to \
             register again",
            spared.len()
        );
        let tenure = self.election.tenure();
        spared.into_iter().for_each(|port| self.fabric.port_mut(port).told_in = tenure);
        self.clients.due = (!asked.is_empty()).then_some(now);
        self.clients.waiting = asked;
    }

    /// Forwarding tables were read: spares those that wait for that, or has them asked.
    pub(super) fn judge_left(&mut self, now: Instant) {
        let Some(left) = self.clients.left.take() else { return };
        let doubtful = std::mem::take(&mut self.clients.doubtful);
        let count = doubtful.len();
        if left.is_in(&self.fabric) {
            info!(
                "nobody ruled since our last run: {count} clients are not asked to register again"
            );
            let tenure = self.election.tenure();
            doubtful.into_iter().for_each(|port| self.fabric.port_mut(port).told_in = tenure);
        } else if count > 0 {
            info!(
                "another may have ruled since our last run: {count} clients are asked to register again"
            );
            self.clients.waiting.extend(doubtful);
            self.clients.due.get_or_insert(now);
        }
    }

    /// Asks the next ones, if it is time and no sweep is under way.
    pub(super) fn ask_clients(&mut self, now: Instant) {
        if !self.is_idle() || self.clients.due.is_none_or(|due| now < due) {
            return;
        }
        let rate = self.settings.client_rereg_rate;
        let share = if rate == 0 { usize::MAX } else { rate.div_ceil(STEPS) as usize };
        let turn: Vec<PortIndex> = self.clients.waiting.iter().copied().take(share).collect();
        for port in turn {
            self.clients.waiting.remove(&port);
            if self.fabric.is_end_port(port) && self.wanted_address(port).is_some() {
                self.exchange.push(Request::new(Kind::SetAddress, port));
            }
        }
        let asking = &mut self.clients;
        asking.due = Some(now + STEP);
        if asking.waiting.is_empty() {
            let lost = std::mem::take(&mut asking.lost);
            asking.rounds += 1;
            asking.due = None;
            if lost.is_empty() {
                info!("all clients were asked to register again");
            } else if asking.rounds > ROUNDS_MAX {
                warn!("{} clients could not be asked to register again", lost.len());
            } else {
                asking.waiting = lost;
                asking.due = Some(now + AGAIN);
            }
        }
    }

    /// A port that was asked between sweeps did not answer.
    pub(super) fn client_not_asked(&mut self, now: Instant, port: PortIndex) {
        if self.fabric.port(port).told_in == self.election.tenure() {
            return;
        }
        debug!("{} was not asked to register again", self.fabric.describe(port));
        let asking = &mut self.clients;
        asking.lost.insert(port);
        asking.due.get_or_insert(now + AGAIN);
    }

    pub(super) fn clients_due(&self) -> Option<Instant> {
        self.clients.due
    }
}

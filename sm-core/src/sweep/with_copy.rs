//! Elections and handovers between subnet managers of which one keeps a copy of the other's registry.
//!
//! To a standby that follows our registry, elections hand nothing over
//! ([`Sweeper::set_followers`]): the caller has it store all of the registry first, then calls
//! [`Sweeper::hand_over_to`]. A standby that follows the master's registry neither asks for the
//! subnet nor accepts it before its copy is complete ([`Sweeper::set_awaits_copy`]). A master that
//! may have been replaced unnoticed stands by for any other that it finds
//! ([`Sweeper::set_in_doubt`]). Not here: the copy itself, and how the caller judges it.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::SmState;

use super::Sweeper;
use super::schedule::Cause;

/// Whether all that clients registered with the master before us is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegistryCopy {
    /// No, or it cannot be shown.
    #[default]
    Incomplete,
    /// That is found out when we become master; clients are not asked before.
    Pending,
    /// Yes.
    Complete,
}

impl Sweeper {
    /// Sets the port GUIDs of the subnet managers that follow our registry.
    pub fn set_followers(&mut self, followers: BTreeSet<Guid>) {
        self.subnet.election.handover.followers = followers;
    }

    /// The subnet manager to hand over to once it has stored our registry: it comes before us,
    /// follows, and stands by.
    pub fn handover_candidate(&self) -> Option<Guid> {
        self.subnet.election.handover_candidate()
    }

    /// Hands over to a subnet manager that follows our registry and has stored all of it. Returns
    /// whether that began: no sweep is under way, and the other is still found. It has failed if we
    /// are still master after phase [`HandOver`](super::Phase::HandOver).
    pub fn hand_over_to(&mut self, now: Instant, guid: Guid) -> bool {
        let others = self.subnet.election.others();
        let found = others.iter().find(|(_, sm)| sm.guid == guid).copied();
        let is_ready = self.is_idle() && self.subnet.election.is_master();
        let Some((port, sm)) = found.filter(|_| is_ready) else { return false };
        self.offer(now, port, sm, None);
        true
    }

    /// Sets whether another subnet manager may have become master unnoticed: if an election finds
    /// one, we stand by for it, even if we come before it. No handover is accepted meanwhile.
    pub fn set_in_doubt(&mut self, in_doubt: bool) {
        self.subnet.election.set_in_doubt(in_doubt);
    }

    /// The same, and asks all the others now. [`is_doubt_settled`](Self::is_doubt_settled) shows
    /// that none of them is master.
    pub fn doubt(&mut self, now: Instant) {
        self.subnet.election.set_in_doubt(true);
        let handover = &mut self.subnet.election.handover;
        (handover.elects_in_doubt, handover.is_doubt_settled) = (false, false);
        self.request_heavy_sweep(now);
    }

    /// Whether an election since the last call of [`doubt`](Self::doubt) found no other master.
    pub fn is_doubt_settled(&self) -> bool {
        self.subnet.election.handover.is_doubt_settled
    }

    /// Whether, as a new master, we wait for [`set_registry_copy`](Self::set_registry_copy) to ask
    /// clients.
    pub fn awaits_registry_copy(&self) -> bool {
        self.reregistration.awaits_copy()
    }

    /// Sets whether our copy of the master's registry is to be complete before we take over from
    /// it: until then we neither ask for a handover nor accept one. A master that dies is replaced
    /// all the same.
    pub fn set_awaits_copy(&mut self, awaits: bool) {
        let was_awaited = self.subnet.election.set_awaits_copy(awaits);
        let election = &self.subnet.election;
        if awaits || !was_awaited || election.state() != SmState::Standby {
            return;
        }
        let master = election.master();
        let found = election.others().iter().find(|(port, _)| Some(*port) == master).copied();
        if let Some((port, sm)) = found
            && election.own.outranks(&sm)
        {
            self.subnet.ask_for_handover(port);
        }
    }

    /// Another subnet manager was master meanwhile, and is no longer found: takes over as from it.
    pub fn take_over_again(&mut self, now: Instant) {
        self.rest();
        self.subnet.election.follow_another(now);
        self.subnet.election.own.set_state(SmState::Discovering);
        self.subnet.state.up = false;
        self.subnet.schedule.request(now, Cause::TakeOver);
    }

    /// Polls the master between the regular polls, to learn whether it lives; no answer counts for
    /// nothing. Returns whether it could be sent now.
    pub fn probe_master(&mut self, now: Instant) -> bool {
        let is_standby = self.subnet.election.state() == SmState::Standby;
        if !is_standby || !self.is_idle() || self.subnet.election.master().is_none() {
            return false;
        }
        self.begin_poll(now);
        self.subnet.election.is_probing = true;
        true
    }

    /// When a master other than us was last heard of.
    pub fn master_seen(&self) -> Option<Instant> {
        self.subnet.election.master_seen()
    }

    /// Number of our current, or last, term as master, from 1.
    pub fn tenure(&self) -> u32 {
        self.subnet.election.tenure()
    }
}

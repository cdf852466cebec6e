//! Elections and handovers between SMs of which one keeps a copy of the other's registry.
//!
//! An election does not hand over to a standby that follows this SM's registry
//! ([`Sweeper::set_followers`]): the caller first waits until that SM has stored the whole
//! registry, then calls [`Sweeper::hand_over_to`]. A standby that follows the master's registry
//! neither requests nor accepts a handover before its copy is complete
//! ([`Sweeper::set_awaits_copy`]). A master that may have been replaced unnoticed stands by for any
//! other that it finds ([`Sweeper::set_in_doubt`]). Not here: the copy itself, and how the caller
//! judges it.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::Guid;
use ib_mad::wire::attribute::SmState;

use super::Sweeper;
use crate::sweep::subnet::schedule::Cause;

impl Sweeper {
    /// Port GUID of the subnet manager that handed the subnet over to this one, until the election
    /// of the sweep that follows.
    pub fn taken_from(&self) -> Option<Guid> {
        self.subnet.election.handover.taken_from
    }

    /// Sets whether all SMs have the registry in one store, so that none needs a copy.
    pub fn set_registry_is_shared(&mut self, is_shared: bool) {
        self.subnet.election.handover.registry_is_shared = is_shared;
    }

    /// Sets the port GUIDs of the SMs that follow this SM's registry.
    pub fn set_followers(&mut self, followers: BTreeSet<Guid>) {
        self.subnet.election.handover.followers = followers;
    }

    /// The SM to hand over to once it has stored this SM's registry: it follows, is in standby, and
    /// has higher precedence.
    pub fn handover_candidate(&self) -> Option<Guid> {
        self.subnet.election.handover_candidate()
    }

    /// Starts a handover to an SM that follows this SM's registry and has stored all of it. Returns
    /// `false` if a sweep is in progress, or if the other SM is no longer found. The handover has
    /// failed if this SM is still master after phase [`HandOver`](crate::sweep::Phase::HandOver).
    pub fn hand_over_to(&mut self, now: Instant, guid: Guid) -> bool {
        let others = self.subnet.election.others();
        let found = others.iter().find(|(_, sm)| sm.guid == guid).copied();
        let is_ready = self.is_idle() && self.subnet.election.is_master();
        let Some((port, sm)) = found.filter(|_| is_ready) else { return false };
        self.offer(now, port, sm, None);
        true
    }

    /// Sets whether another SM may have become master unnoticed: if an election finds such a
    /// master, this SM stands by for it, even if that one has lower precedence. No handover is
    /// accepted meanwhile.
    pub fn set_in_doubt(&mut self, in_doubt: bool) {
        self.subnet.election.set_in_doubt(in_doubt);
    }

    /// Marks the mastership of this SM as doubtful, and polls all other SMs now.
    /// [`is_doubt_settled`](Self::is_doubt_settled) shows that none of them is master.
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

    /// Whether this SM, as a new master, asks clients only after
    /// [`set_registry_copy`](Self::set_registry_copy).
    pub fn awaits_registry_copy(&self) -> bool {
        self.reregistration.awaits_copy()
    }

    /// Sets whether this SM's copy of the master's registry is still incomplete: while it is, no
    /// handover is requested or accepted. A master that dies is replaced regardless.
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

    /// Takes over again: another SM was master in the meantime, and is no longer found.
    pub fn take_over_again(&mut self, now: Instant) {
        self.rest();
        self.subnet.election.follow_another(now);
        self.subnet.election.own.set_state(SmState::Discovering);
        self.subnet.state.up = false;
        self.subnet.schedule.request(now, Cause::TakeOver);
    }

    /// Polls the master between the regular polls, to learn whether it is alive. A failure is not
    /// counted as a missed poll. Returns whether the poll could be sent now.
    pub fn probe_master(&mut self, now: Instant) -> bool {
        let is_standby = self.subnet.election.state() == SmState::Standby;
        if !is_standby || !self.is_idle() || self.subnet.election.master().is_none() {
            return false;
        }
        self.begin_poll(now);
        self.subnet.election.is_probing = true;
        true
    }

    /// Whether the last election found a standby at the port with this GUID.
    pub fn found_standby(&self, guid: Guid) -> bool {
        let mut others = self.subnet.election.others().iter();
        others.any(|(_, sm)| sm.guid == guid && sm.state == SmState::Standby)
    }

    /// Whether an active port named another SM as its master when this term began. With sharding,
    /// ports name responders.
    pub fn found_other_master(&self) -> bool {
        self.subnet.state.found_other_master
    }

    /// When another master was last heard from.
    pub fn master_seen(&self) -> Option<Instant> {
        self.subnet.election.master_seen()
    }

    /// Number of this SM's current, or last, term as master, from 1.
    pub fn tenure(&self) -> u32 {
        self.subnet.election.tenure()
    }
}

//! The stage of a handover, and requests of other subnet managers.

use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use tracing::{debug, info, warn};

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::mastership::RemoteSm;
use crate::smp::{Kind, Request};
use crate::sweep::stages::Stage;
use crate::sweep::subnet::election::Patience;
use crate::sweep::subnet::handover::Handover;
use crate::sweep::subnet::log::STATE;
use crate::sweep::subnet::schedule::Cause;

impl Sweeper {
    /// Hands over to an SM with higher precedence that does not follow this SM's registry.
    pub(super) fn hand_over(&mut self, now: Instant, sm: RemoteSm, full: bool) {
        let Some(port) = self.subnet.election.place_of(sm) else {
            return self.go_on_as_master(now, full);
        };
        if !self.subnet.election.handover.registry_is_shared {
            warn!(
                target: STATE,
                "the subnet manager at {} does not follow our registry: after the handover it asks \
                 clients to register again",
                self.subnet.peer_place(port)
            );
        }
        self.offer(now, port, sm, Some(full));
    }

    /// Sends HANDOVER to the subnet manager at `port`. `sweep`: whether the sweep that this
    /// interrupts read the whole fabric; `None` if it interrupts none.
    pub(super) fn offer(
        &mut self,
        now: Instant,
        port: PortIndex,
        sm: RemoteSm,
        sweep: Option<bool>,
    ) {
        let place = self.subnet.peer_place(port);
        info!(
            target: STATE,
            "handing over to the subnet manager at {place}, priority {}", sm.priority
        );
        self.subnet.election.handover.offered = Some(sm);
        self.subnet.election.handover.is_accepted = false;
        self.subnet.election.handover.offered_at = Some(now);
        self.enter(now, Stage::HandOver { sweep });
        self.subnet.exchange.push(Request::new(Kind::HandOver, port));
    }

    /// Another SM acknowledged a handover, possibly late.
    pub(super) fn handover_acknowledged(&mut self, now: Instant, from: Guid) {
        match self.subnet.election.handover.offered.filter(|sm| sm.guid == from) {
            Some(sm) => self.step_down(now, sm),
            None => debug!("port {from} acknowledged a handover that it was not offered"),
        }
    }

    fn step_down(&mut self, now: Instant, sm: RemoteSm) {
        self.subnet.election.offers.note_accepted(sm.guid);
        let rules = self.subnet.election.note_taken_over(sm);
        // It knows, and configures the whole subnet.
        self.subnet.election.handover.has_configured = false;
        self.stand_by(now, rules);
    }

    /// Ends a handover: steps down if the other SM answered, otherwise stays master.
    pub(super) fn end_handover(&mut self, now: Instant, sweep: Option<bool>) {
        let Handover { offered, is_accepted, .. } = self.subnet.election.handover;
        if let Some(sm) = offered.filter(|_| is_accepted) {
            return self.step_down(now, sm);
        }
        match sweep {
            Some(full) => {
                let offers = &self.subnet.election.offers;
                match offered.map_or(0, |sm| offers.pause(now, sm.guid).as_secs()) {
                    0 => warn!("handover refused; staying master, retrying with the next sweep"),
                    pause => {
                        warn!(
                            "handover not acknowledged; staying master, retrying after {pause} s"
                        );
                    }
                }
                self.go_on_as_master(now, full);
            }
            None => self.subnet.election.handover.settle(),
        }
    }

    /// Waits until a master with lower precedence has handed over, before anything is configured:
    /// two masters would overwrite each other's settings (IBA C14-60.2.1). One that appears within
    /// a subnet that is up has no part of its own, and is not waited for.
    pub(super) fn await_handover(&mut self, now: Instant, sm: RemoteSm, full: bool) {
        let Some(port) = self.subnet.election.place_of(sm) else {
            return self.go_on_as_master(now, full);
        };
        let place = self.subnet.peer_place(port);
        let interval =
            Duration::from_millis(u64::from(self.subnet.settings.sminfo_polling_timeout));
        let patience = self.patience();
        let is_merger = !self.subnet.state.up || self.subnet.journal.report.appeared > 0;
        let guid = self.subnet.fabric.port(port).guid;
        self.subnet.ask_for_handover(port);
        match self.subnet.election.await_outranked(now, guid, patience, is_merger) {
            Patience::Begins => info!(
                target: STATE,
                "another master at {place}, priority {}, has lower precedence: waiting for it to \
                 hand over",
                sm.priority
            ),
            Patience::Lasts => {}
            Patience::Ends => {
                warn!(
                    target: STATE,
                    "another master at {place}, priority {}, has lower precedence and has not \
                     handed over: continuing as master",
                    sm.priority
                );
                return self.go_on_as_master(now, full);
            }
            Patience::Over => return self.go_on_as_master(now, full),
        }
        self.subnet.schedule.request(now + interval, Cause::Asked);
    }

    /// Another SM handed over: its whole subnet, or its half of two joined subnets. The current
    /// sweep does not include it, so that sweep is abandoned and a full sweep starts.
    pub(super) fn handed_to_us(&mut self, now: Instant, from: Guid) {
        if self.subnet.election.handover.taken_from == Some(from) {
            // It did not get the answer and sent the request again.
            return;
        }
        self.rest();
        let port =
            self.subnet.fabric.end_ports().find(|&port| self.subnet.fabric.port(port).guid == from);
        match port {
            Some(port) => {
                info!(
                    target: STATE,
                    "the subnet manager at {} handed over to this one",
                    self.subnet.peer_place(port)
                );
                self.subnet.exchange.push(Request::new(Kind::Acknowledge, port));
            }
            None => {
                info!(
                    target: STATE,
                    "the subnet manager at port {from} handed over to this one"
                );
            }
        }
        self.subnet.election.note_handed_over(from);
        self.subnet.election.follow_another(now);
        self.subnet.election.handover.taken_from = Some(from);
        // The subnet is no longer the one that was up, if one was.
        self.subnet.state.up = false;
        self.become_master();
        self.subnet.schedule.request(now, Cause::TakeOver);
    }

    /// Sends HANDOVER to the master at `port`, which may not know that this SM was master, too:
    /// what this SM has written since is to be overwritten.
    pub(super) fn announce_end(&mut self, port: PortIndex) {
        self.subnet.exchange.push(Request::new(Kind::HandOver, port));
    }

    /// Another SM was master, too, and may have written to switches and ports: starts a full sweep
    /// that trusts nothing read or written before.
    pub fn program_again(&mut self, now: Instant) {
        self.rest();
        self.forget_tables();
        self.subnet.schedule.request(now, Cause::TakeOver);
    }

    /// Looks for a master that handed over during the discovery that ends with this election.
    /// Returns whether the managers are polled again, once: the answer of one that claims so may be
    /// older than its claim.
    pub(super) fn looks_again_at_claimants(&mut self, now: Instant, full: bool) -> bool {
        let election = &mut self.subnet.election;
        if election.claimant_is_master() && !election.claims.is_repeated {
            election.claims.is_repeated = true;
            self.begin_election(now, full);
            return true;
        }
        if let Some((port, sm)) = election.settle_claims() {
            info!(
                target: STATE,
                "the subnet manager at {} handed over to this one during the discovery",
                self.subnet.peer_place(port)
            );
            self.subnet.election.note_handed_over(sm.guid);
            self.subnet.election.follow_another(now);
        }
        false
    }
}

//! Packets: requests as MADs, responses to them, requests of other subnet managers, and traps.

use std::time::Instant;

use ib_mad::packet::{Address, Carrier, Packet};
use ib_mad::types::{Lid, Sl};
use ib_mad::wire::attribute::{SmState, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass, Status};
use ib_mad::wire::smp::{self, Smp};
use tracing::{debug, info, warn};

use super::Sweeper;
use crate::mastership::Demand;
use crate::smp::Request;
use crate::sweep::stages::Stage;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::TrapNotice;
use crate::sweep::subnet::log::STATE;
use crate::sweep::subnet::owner::Step;
use crate::sweep::subnet::schedule::Cause;
use crate::trap;

impl Sweeper {
    /// Writes a request into `packet`, from the state at this time. `false` if there is nothing
    /// left to send, or no route.
    pub(super) fn encode(
        &mut self,
        now: Instant,
        request: Request,
        tid: u64,
        m_key: u64,
        packet: &mut Packet,
    ) -> bool {
        let Some(route) = self.subnet.route_of(request) else { return false };
        let mut data = [0; 64];
        let Some(attribute_modifier) = self.pass_to_owner(now, request, Step::Encode(&mut data))
        else {
            return false;
        };
        let mut method = if request.kind.is_set() { Method::SET } else { Method::GET };
        if request.kind.is_set()
            && let Some(dry_run) = &mut self.dry_run
        {
            if !dry_run.ask(request, tid, attribute_modifier, data) {
                return false;
            }
            (method, data) = (Method::GET, [0; 64]);
        }
        let attribute_id = request.kind.attribute_id();
        let header = smp::Request { method, attribute_id, attribute_modifier, tid, m_key };
        if header.write_directed(&mut packet.mad, route.ports()).is_err() {
            return false;
        }
        *Smp::of_mut(&mut packet.mad).data_bytes_mut() = data;
        let plane = self.subnet.plane_of(request, &route);
        packet.address = Address::smi(Lid::PERMISSIVE);
        packet.carrier = Carrier { plane, ..Carrier::default() };
        true
    }

    /// Handles a received SMP: a response, a request of another node, or a request of ours that
    /// was returned as undeliverable. `true` if `packet` now holds a response to be sent.
    pub fn handle_packet(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let smp = Smp::of(&packet.mad);
        let (tid, method) = (smp.tid(), smp.method());
        if packet.carrier.undelivered != 0 {
            // The destination may be reachable again in a moment, in which retries must not be
            // used up: the attempt fails at its timeout, as if nothing had arrived.
            debug!("an SMP was returned as undeliverable");
            return false;
        }
        self.reach.note(now, packet, &self.subnet.fabric);
        if method.is_response() {
            if smp.status().is_busy() {
                // Nothing was done, and an immediate retry would not help: the attempt fails at
                // its timeout.
                debug!("an agent is busy");
                return false;
            }
            let attribute = smp.attribute_id();
            let asked = self.subnet.exchange.peek(tid);
            let waited = self.subnet.exchange.waited(now, tid).unwrap_or_default();
            // A response with another attribute does not match, even with its TransactionID.
            if asked.is_none_or(|(request, _)| request.kind.attribute_id() == attribute)
                && let Some(request) = self.subnet.exchange.handle_answer(now, tid)
            {
                if let Some(m_key) = asked.and_then(|(_, m_key)| m_key) {
                    self.subnet.check_m_key(request, m_key, &packet.mad);
                }
                self.note_answered(now, request, waited);
                self.handle_response(now, request, &packet.mad);
            }
        } else {
            return self.handle_request(now, packet);
        }
        self.advance(now);
        false
    }

    fn handle_response(&mut self, now: Instant, request: Request, mad: &[u8; 256]) {
        self.subnet.trace_smp("<-", request);
        let smp = Smp::of(mad);
        let mut data = *smp.data_bytes();
        let step = match smp.status() {
            Status(0) => {
                if let Some(dry_run) = &mut self.dry_run {
                    let modifier = smp.attribute_modifier();
                    data = dry_run.answer(request, smp.tid(), modifier, &data);
                }
                Step::Answered(&data)
            }
            status => Step::Refused(status),
        };
        self.pass_to_owner(now, request, step);
    }

    /// Handles a request of another node: SMInfo and traps. Others are for the agent of our port.
    fn handle_request(&mut self, now: Instant, packet: &mut Packet) -> bool {
        if self.dry_run.is_some() {
            return false;
        }
        let smp = Smp::of(&packet.mad);
        let (class, method, attribute) = (smp.mgmt_class(), smp.method(), smp.attribute_id());
        if !matches!(class, MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE) {
            return false;
        }
        match (method, attribute) {
            (Method::GET | Method::SET, AttributeId::SM_INFO) => {
                let standing = self.standing_of(now, packet);
                let m_key = self.subnet.own_port_m_key();
                let own = &mut self.subnet.election.own;
                let demand = own.answer(&mut packet.mad, standing, m_key);
                if demand.costs_sweep() {
                    self.subnet.election.demands.note_granted(now);
                }
                match demand {
                    Demand::AskBack => {
                        self.ask_back(now, packet);
                        return false;
                    }
                    Demand::TakeOver(from) => {
                        if self.subnet.election.is_master() {
                            self.subnet.election.demands.note_merger(now);
                        }
                        self.handed_to_us(now, from);
                    }
                    Demand::ProgramAgain(from) => {
                        info!(
                            target: STATE,
                            "the replaced master at port {from} stands by now and may have \
                             overwritten settings: starting a full sweep"
                        );
                        self.program_again(now);
                    }
                    Demand::LookAgain(from) => self.subnet.election.claims.add(from),
                    Demand::StepDown(from) => self.handover_acknowledged(now, from),
                    Demand::Discover => {
                        self.subnet.election.own.set_state(SmState::Discovering);
                        self.subnet.schedule.request(now, Cause::Asked);
                    }
                    Demand::Disable => {
                        warn!(target: STATE, "disabled by another subnet manager");
                        self.subnet.election.own.set_state(SmState::NotActive);
                        self.rest();
                    }
                    Demand::StandBy => {
                        info!(target: STATE, "another subnet manager requests standby");
                        self.subnet.schedule.request(now, Cause::Poll);
                    }
                    Demand::None => {}
                }
                true
            }
            (Method::TRAP, AttributeId::NOTICE) => self.handle_trap(now, packet),
            _ => false,
        }
    }

    /// Handles a trap that a responder's port received from `lid` on service level `sl`. Returns
    /// the TrapRepress to send; `None` if `mad` is not a trap, or this manager is not the master.
    pub fn handle_relayed_trap(
        &mut self,
        now: Instant,
        mad: &[u8; 256],
        lid: Lid,
        sl: Sl,
    ) -> Option<Packet> {
        let address = Address { sl, ..Address::smi(lid) };
        let mut packet = Packet::new(*mad, address);
        let is_for_us = self.handle_trap(now, &mut packet);
        self.advance(now);
        is_for_us.then_some(packet)
    }

    fn handle_trap(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let Some(trap) = trap::read(&packet.mad) else { return false };
        if !self.subnet.election.is_master() {
            return false;
        }
        let notice: [u8; 64] =
            *packet.mad[smp::DATA].first_chunk().expect("an SMP carries 64 bytes");
        self.subnet.events.push_trap(TrapNotice { lid: packet.address.lid, notice });
        self.note_port_error(now, &trap, packet.address.lid, &packet.mad);
        // Any port can name any issuer. Only the sender is known, by what adapters write.
        let sender = match packet.address.lid {
            lid if lid.is_unicast() => lid,
            _ => {
                let origin = self.subnet.origin_of(packet);
                origin.map_or(Lid::NONE, |port| self.subnet.fabric.lids_of(port).0)
            }
        };
        match trap.number {
            Some(TrapNumber::SYSTEM_IMAGE_GUID_CHANGE) => self.system_images.note(sender, &notice),
            // Sent by a port where a subnet manager started, or changed its priority.
            Some(TrapNumber::LOCAL_CHANGES) => {
                self.virtual_ports.trap_arrived(now, sender);
                let lids = &self.subnet.lids;
                self.subnet.election.mark_responsive(|guid| {
                    lids.get(guid).is_some_and(|range| range.contains(sender))
                });
            }
            _ => {}
        }
        let is_change =
            trap.meaning == trap::Meaning::Changed && self.subnet.settings.sweep_on_trap;
        if trap.number == Some(TrapNumber::BAD_MKEY) {
            if let Some(more) = self.subnet.events.admits_key_line(now, sender) {
                let words = self.subnet.trap_words(&notice);
                warn!(
                    "{words} ({more} more since the last line; at most one line an hour for a node)"
                );
            }
        } else if !is_change && self.subnet.events.admits_trap_line(now) {
            warn!("{}", self.subnet.trap_words(&notice));
        } else if tracing::enabled!(tracing::Level::DEBUG)
            && self.subnet.events.admits_trap_detail(now)
        {
            debug!("{}", self.subnet.trap_words(&notice));
        }
        if is_change {
            let number = trap.number.unwrap_or_default();
            if self.subnet.schedule.has_no_room_for(sender) {
                self.subnet.forget_unknown_issuers(now);
            }
            self.subnet.schedule.request_for_trap(now, sender, number);
            match &mut self.sweep.stage {
                Stage::Light(light) => light.trap_arrived(now),
                Stage::Discover(discovery) => {
                    discovery.trap_arrived(&mut self.subnet, now, sender);
                }
                _ => {}
            }
        }
        // It goes to the sender of the trap, so it carries the M_Key of the sender's port.
        let m_key = self.subnet.m_key_at(sender);
        if m_key != 0 && !self.subnet.may_see_m_key(sender) {
            return false;
        }
        trap::repress(&mut packet.mad, m_key);
        true
    }
}

impl Subnet {
    /// A port can name LIDs without end: those that no port has give way to others. A light sweep
    /// looks for what they stand for.
    fn forget_unknown_issuers(&mut self, now: Instant) {
        let mut known = vec![false; 1 << 16];
        for port in self.fabric.end_ports() {
            if let Some(range) = self.lids.get(self.fabric.port(port).guid) {
                known[range.first.index()..=range.last.index()].fill(true);
            }
        }
        if self.schedule.keep_issuers(|lid| known[lid.index()]) {
            self.schedule.request_overflow(now);
        }
    }

    /// A trap as text, with the names of the ports concerned.
    fn trap_words(&self, notice: &[u8; 64]) -> String {
        trap::words(notice, &|lid, num| match num {
            Some(num) => self.port_at(lid, num).map(|port| self.fabric.describe(port)),
            None => {
                let node = self.fabric.node_of(self.end_port_at(lid)?);
                Some(format!("{} '{}' {}", node.kind, node.name(), node.guid))
            }
        })
    }
}

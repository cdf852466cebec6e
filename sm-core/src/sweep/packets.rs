//! Packets that arrive: answers to what we asked, requests of other subnet managers, and traps.

use std::time::Instant;

use ib_mad::packet::{Address, Packet};
use ib_mad::types::{Lid, Sl};
use ib_mad::wire::attribute::{SmState, TrapNumber};
use ib_mad::wire::mad::{AttributeId, Method, MgmtClass};
use ib_mad::wire::smp::{self, Smp};
use tracing::{debug, info, warn};

use super::current::Stage;
use super::schedule::Cause;
use super::subnet::Subnet;
use super::{STATE, Sweeper, TrapNotice};
use crate::mastership::Demand;
use crate::smp::{Kind, Request};
use crate::trap;

impl Sweeper {
    /// Takes an SMP that arrived: an answer to one of ours, or one of ours that could not be
    /// delivered. `true` if it is a request and its answer now stands in `packet`, to be sent.
    pub fn handle_packet(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let Ok(smp) = Smp::new(&packet.mad) else { return false };
        let (tid, method) = (smp.tid(), smp.method());
        if packet.carrier.undelivered != 0 {
            // Who could not be reached just now may be at once, and repetitions must not be spent
            // in that moment: the attempt has failed when its time is up, as if nothing had come.
            debug!("an SMP came back undelivered");
            return false;
        } else if method.is_response() {
            if smp.status().is_busy() {
                // Nothing was done, and asking at once would not help: the attempt has failed when
                // its time is up.
                debug!("an agent is busy");
                return false;
            }
            let attribute = smp.attribute_id();
            let asked = self.subnet.exchange.peek(tid);
            // What answers something else is a stray, whatever its number.
            if asked.is_none_or(|(request, _)| self.subnet.header_of(request).1 == attribute)
                && let Some(request) = self.subnet.exchange.handle_answer(now, tid)
            {
                if let Some(m_key) = asked.and_then(|(_, m_key)| m_key) {
                    self.subnet.check_m_key(request, m_key, &packet.mad);
                }
                self.handle_answer(now, request, &packet.mad);
            }
        } else {
            return self.handle_request(now, packet);
        }
        self.advance(now);
        false
    }

    fn handle_answer(&mut self, now: Instant, request: Request, mad: &[u8; 256]) {
        let Ok(smp) = Smp::new(&mad[..]) else { return };
        let status = smp.status();
        self.subnet.trace_smp("<-", request);
        if status.0 != 0 {
            return self.handle_refusal(now, request, status);
        }
        let data: &[u8; 64] = smp.data_bytes();
        if let Some((task, subnet)) = self.task_of(request) {
            return task.answered(subnet, now, request, data);
        }
        let port = request.port();
        let subnet = &mut self.subnet;
        match (&mut self.sweep.stage, request.kind) {
            (Stage::Discover(discovery), kind) => {
                discovery.answered(subnet, request, data);
                if matches!(kind, Kind::PortInfo | Kind::LinkState) && subnet.is_training(port) {
                    self.aliases.forget(subnet.fabric.port(port).guid);
                }
            }
            (Stage::Light(light), Kind::PortChange) => light.port_change(subnet, now, port, data),
            (Stage::Tables(tables), Kind::SetForwarding) => {
                tables.block_set(subnet, request, data);
            }
            (Stage::Links(links), Kind::PortInfo) => links.port_info(subnet, now, port, data),
            (_, Kind::SmInfo) => self.sm_info(now, port, data),
            (_, Kind::HandOver) => self.handover_answered(now, port),
            (_, Kind::SetAddress) => subnet.address_set(request, data),
            (_, Kind::EnablePort) => {
                subnet.port_info_set(request, data);
                self.port_enabled(port);
            }
            (_, Kind::DisablePort | Kind::Arm | Kind::Activate) => {
                subnet.port_info_set(request, data);
            }
            (_, Kind::PortInfo) => subnet.port_read_again(now, port, data),
            (_, Kind::ClearPortChange) => subnet.port_change_cleared(port, data),
            (_, Kind::SetMlnxExtPortInfo) => subnet.fdr10_answered(request, data),
            (_, Kind::SetPKeys) => subnet.pkeys(request, data),
            (_, Kind::SetSwitchInfo) => subnet.switch_info_set(now, port, data),
            (_, Kind::Forwarding) => subnet.forwarding(request, data),
            (_, Kind::Multicast) => subnet.multicast_read(request, data),
            (_, Kind::SetForwarding) => {
                subnet.forwarding_set(request, data);
            }
            (_, Kind::SetSlToVl) => {
                subnet.map_set(request, *data.first_chunk().expect("8 bytes of 64"));
            }
            (_, Kind::SetVlArbitration) => subnet.vl_arbitration_set(request, data),
            // Acknowledge has no result, tasks handled theirs, and the rest belongs to a discovery
            // or a light sweep.
            _ => {}
        }
    }

    /// A request of another node's: SMInfo and traps; all else is for the agent of our port.
    fn handle_request(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let Ok(smp) = Smp::new(&packet.mad) else { return false };
        let (class, method, attribute) = (smp.mgmt_class(), smp.method(), smp.attribute_id());
        if !matches!(class, MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE) {
            return false;
        }
        match (method, attribute) {
            (Method::GET | Method::SET, AttributeId::SM_INFO) => {
                match self.subnet.election.own.answer(&mut packet.mad) {
                    Demand::TakeOver(from) => self.handed_to_us(now, from),
                    Demand::LookAgain(from) => self.look_for_master_again(now, from),
                    Demand::StepDown(from) => self.handover_acknowledged(now, from),
                    Demand::Discover => {
                        self.subnet.election.own.set_state(SmState::Discovering);
                        self.subnet.schedule.request(now, Cause::Asked);
                    }
                    Demand::Disable => {
                        warn!(target: STATE, "another subnet manager disabled us");
                        self.subnet.election.own.set_state(SmState::NotActive);
                        self.rest();
                    }
                    Demand::StandBy => {
                        info!(target: STATE, "another subnet manager has us stand by again");
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

    /// Takes a trap that reached a responder's port from `lid` on service level `sl`. The packet
    /// that stops its repetition, to be sent; `None` if it was none, or we are not the master.
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
        self.note_port_error(now, &trap, &packet.mad);
        match trap.number {
            Some(TrapNumber::SYSTEM_IMAGE_GUID_CHANGE) => self.system_images.note(&notice),
            // Whoever became a subnet manager, or another priority, says so.
            Some(TrapNumber::LOCAL_CHANGES) => {
                let lids = &self.subnet.lids;
                self.subnet
                    .election
                    .unmute(|guid| lids.get(guid).is_some_and(|range| range.contains(trap.issuer)));
            }
            _ => {}
        }
        let is_change =
            trap.meaning == trap::Meaning::Changed && self.subnet.settings.sweep_on_trap;
        if !is_change && self.subnet.events.admits_trap_line(now) {
            warn!("{}", self.subnet.trap_words(&notice));
        } else if tracing::enabled!(tracing::Level::DEBUG)
            && self.subnet.events.admits_trap_detail(now)
        {
            debug!("{}", self.subnet.trap_words(&notice));
        }
        if is_change {
            let number = trap.number.unwrap_or_default();
            self.subnet.schedule.request_for_trap(now, trap.issuer, number);
            if let Stage::Light(light) = &mut self.sweep.stage {
                light.trap_arrived(now);
            }
        }
        // To its sender: the M_Key shown is that of the sender's port, never another's.
        trap::repress(&mut packet.mad, self.subnet.m_key_at(packet.address.lid));
        true
    }
}

impl Subnet {
    /// A trap in words, with the names of the ports that it is about.
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

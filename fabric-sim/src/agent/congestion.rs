//! The congestion control agent (IBA annex A10) of switches and channel adapters.
//!
//! Packets are not marked on their own account: [`note`] puts events into logs, if the settings
//! allow them. A request with a wrong CC_Key is dropped and counted, except Get() of
//! CongestionKeyInfo, which shows no key while that is protected. Logs are cleared by reading, but
//! for the list of events.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ib_mad::types::{Lid, PortNum, Qpn, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::congestion::{
    self as cc, CCT_BLOCK_LEN, CaCongestionEntry, CaCongestionSetting, CaCongestionSettingRepr,
    CongestionControlTable, CongestionControlTableRepr, CongestionInfoRepr, CongestionKeyInfo,
    CongestionKeyInfoRepr, CongestionLogCaRepr, CongestionLogEventCaRepr,
    CongestionLogEventSwitchRepr, CongestionLogSwitchRepr, LOG_EVENTS_CA, LOG_EVENTS_SWITCH,
    PORT_ELEMENTS_PER_BLOCK, SwitchCongestionSetting, SwitchCongestionSettingRepr,
    SwitchPortCongestionElement, TimeStampRepr, control_map,
};
use ib_mad::wire::field::{part, part_mut};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, Status};

use super::performance::class_port_info_of;
use super::{INVALID, UNSUPPORTED};
use crate::subnet::{PortIndex, Subnet};

/// The attribute, in a request and its response.
type Data = [u8; cc::DATA.end - cc::DATA.start];

/// Blocks of the table of an adapter, as OpenSM can fill.
const CCT_BLOCKS: usize = 2;
/// The clock of logs counts in this unit.
const TICK: Duration = Duration::from_nanos(1024);
/// Offset of CongestionLog in a MAD, and of the other attributes.
const LOG: usize = cc::LOG_DATA.start;
const DATA: usize = cc::DATA.start;

/// Congestion control of all nodes.
#[derive(Default)]
pub(crate) struct Congestion {
    /// Agents that were written to or have events, by their port: 0 of a switch.
    agents: HashMap<PortIndex, Box<Agent>>,
    /// Agents that do not know the class.
    unsupported: HashSet<PortIndex>,
    /// When the clocks of all agents were at 0.
    started: Option<Instant>,
}

struct Agent {
    key: CongestionKeyInfoRepr,
    /// When the protection of the key ends, after a violation.
    lease_ends: Option<Instant>,
    switch: SwitchCongestionSettingRepr,
    /// Ports with settings of their own.
    ports: BTreeMap<u8, [u8; 4]>,
    ca: CaCongestionSettingRepr,
    ccti_limit: u16,
    cct: [u8; CCT_BLOCKS * CCT_BLOCK_LEN * 2],
    /// Events since the log was read.
    events: u16,
    /// Ports with such an event.
    port_map: [u8; 32],
    /// SLs with such an event.
    sl_map: u16,
    marked: VecDeque<CongestionLogEventSwitchRepr>,
    slowed: VecDeque<CongestionLogEventCaRepr>,
}

impl Default for Agent {
    fn default() -> Self {
        let key = CongestionKeyInfoRepr {
            cc_key: 0,
            cc_key_protect: false,
            cc_key_lease_period: 0,
            cc_key_violations: 0,
        };
        let switch = SwitchCongestionSettingRepr {
            control_map: 0,
            victim_mask: [0; _],
            credit_mask: [0; _],
            threshold: 0,
            packet_size: 0,
            cs_threshold: 0,
            cs_return_delay: 0,
            marking_rate: 0,
        };
        let ca = CaCongestionSettingRepr { port_control: 0, control_map: 0, entries: [0; _] };
        Self {
            key,
            lease_ends: None,
            switch,
            ports: BTreeMap::new(),
            ca,
            ccti_limit: 0,
            cct: [0; _],
            events: 0,
            port_map: [0; _],
            sl_map: 0,
            marked: VecDeque::new(),
            slowed: VecDeque::new(),
        }
    }
}

/// Packets of which events are logged: from a source to a destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) slid: Lid,
    pub(crate) dlid: Lid,
    pub(crate) sl: Sl,
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// The response has replaced it in the buffer.
    Answered,
    /// It showed a wrong CC_Key, and is dropped.
    WrongKey,
    /// It is for a client at the port.
    ForClient,
}

/// Handles a packet of the class that reached its node by `port`.
pub(crate) fn receive(
    subnet: &mut Subnet,
    now: Instant,
    port: PortIndex,
    mad: &mut [u8; MAD_LEN],
) -> Reaction {
    let port = subnet.management_port(port);
    let header = MadHeader::of(mad);
    let (method, attribute) = (header.method(), header.attribute_id());
    if !matches!(method, Method::GET | Method::SET) || subnet.congestion.unsupported.contains(&port)
    {
        return Reaction::ForClient;
    }
    let is_known = header.base_version() == 1 && header.class_version() == cc::CLASS_VERSION;
    let result = match is_known {
        false => Err(Status::BAD_VERSION),
        true => {
            let may_look = method == Method::GET && attribute == cc::CONGESTION_KEY_INFO;
            let key = cc::cc_key(mad);
            let has_key = subnet.congestion.shows_key(now, port, key, may_look);
            if !has_key && !may_look {
                return Reaction::WrongKey;
            }
            answer(subnet, now, port, has_key, mad)
        }
    };
    MadHeader::of_mut(mad)
        .set_method(method.response())
        .set_status(result.err().unwrap_or(Status::OK));
    Reaction::Answered
}

/// Logs `number` events of a flow at a port: a switch has marked packets that leave by it, or an
/// adapter has slowed queue pairs down. Returns whether the settings allow for that.
pub(crate) fn note(
    subnet: &mut Subnet,
    now: Instant,
    port: PortIndex,
    flow: Flow,
    number: u16,
) -> bool {
    let is_switch = subnet.node_of(port).is_switch();
    let (at, port_number) = (subnet.management_port(port), subnet[port].number);
    let timestamp = subnet.congestion.clock(now);
    let agent = subnet.congestion.agents.entry(at).or_default();
    let allows = match is_switch {
        true => agent.threshold(port_number) > 0,
        false => agent.trigger_threshold(flow.sl) > 0,
    };
    if !allows || number == 0 {
        return allows;
    }
    agent.events = agent.events.saturating_add(number);
    if is_switch {
        cc::add_port(&mut agent.port_map, PortNum(port_number));
        let Flow { slid, dlid, sl } = flow;
        let event = CongestionLogEventSwitchRepr { slid, dlid, sl, timestamp };
        push(&mut agent.marked, event, number, LOG_EVENTS_SWITCH);
    } else {
        agent.sl_map |= 1 << flow.sl.get();
        let event = CongestionLogEventCaRepr {
            local_qp: Qpn(0x10),
            sl: flow.sl,
            service_type: 0,
            remote_qp: Qpn(0x11),
            local_lid: flow.slid,
            remote_lid: flow.dlid,
            timestamp,
        };
        push(&mut agent.slowed, event, number, LOG_EVENTS_CA);
    }
    true
}

/// Adds an event `number` times to a list of the latest `len`, the latest first.
fn push<T: Clone>(list: &mut VecDeque<T>, event: T, number: u16, len: usize) {
    for _ in 0..usize::from(number).min(len) {
        list.push_front(event.clone());
    }
    list.truncate(len);
}

impl Congestion {
    /// Forgets what an agent loses by a power cycle.
    pub(crate) fn reset(&mut self, port: PortIndex) {
        self.agents.remove(&port);
    }

    /// Sets whether the agent at a port knows the class.
    pub(crate) fn set_supported(&mut self, port: PortIndex, supported: bool) {
        match supported {
            true => self.unsupported.remove(&port),
            false => self.unsupported.insert(port),
        };
    }

    fn clock(&mut self, now: Instant) -> u32 {
        let started = *self.started.get_or_insert(now);
        let ticks = now.saturating_duration_since(started).as_nanos() / TICK.as_nanos();
        // The clock wraps around.
        ticks as u32
    }

    /// Whether a request shows the agent's key; a violation is counted if not, unless it may look.
    fn shows_key(&mut self, now: Instant, port: PortIndex, key: u64, may_look: bool) -> bool {
        let Some(agent) = self.agents.get_mut(&port) else { return true };
        if agent.lease_ends.is_some_and(|ends| now >= ends) {
            (agent.lease_ends, agent.key.cc_key_protect) = (None, false);
        }
        let own = agent.key.cc_key;
        if own == 0 || own == key {
            agent.lease_ends = None;
            return true;
        }
        if !may_look {
            let info = &mut agent.key;
            info.cc_key_violations = info.cc_key_violations.saturating_add(1);
            let lease = Duration::from_secs(info.cc_key_lease_period.into());
            if info.cc_key_protect && !lease.is_zero() {
                agent.lease_ends.get_or_insert(now + lease);
            }
        }
        false
    }
}

impl Agent {
    /// How early packets that leave by a port are marked.
    fn threshold(&self, port: u8) -> u8 {
        match self.ports.get(&port).map(SwitchPortCongestionElement::of) {
            Some(own) if !own.control_type() => own.threshold(),
            _ => self.switch.threshold,
        }
    }

    /// Index into the table at which an event is logged.
    fn trigger_threshold(&self, sl: Sl) -> u8 {
        let at = usize::from(sl.get()) * 8;
        let entry = self.ca.entries[at..at + 8].first_chunk::<8>();
        entry.map_or(0, |entry| CaCongestionEntry::of(entry).trigger_threshold())
    }
}

fn answer(
    subnet: &mut Subnet,
    now: Instant,
    port: PortIndex,
    has_key: bool,
    mad: &mut [u8; MAD_LEN],
) -> Result<(), Status> {
    let header = MadHeader::of(mad);
    let set = header.method() == Method::SET;
    let (attribute, modifier) = (header.attribute_id(), header.attribute_modifier());
    let (is_switch, num_ports) = {
        let node = subnet.node_of(port);
        (node.is_switch(), node.num_ports)
    };
    let clock = subnet.congestion.clock(now);
    let agent = subnet.congestion.agents.entry(port).or_default();
    if attribute == cc::CONGESTION_LOG && !set {
        agent.log(is_switch, clock, mad);
        return Ok(());
    }
    let data: &mut Data = part_mut::<DATA, _, _>(mad);
    match attribute {
        AttributeId::CLASS_PORT_INFO if !set => {
            let info = class_port_info_of(cc::CLASS_VERSION, 0, 0);
            respond(data, &info.to_bytes());
        }
        cc::CONGESTION_INFO if !set => {
            let info = CongestionInfoRepr {
                congestion_info: if is_switch { cc::CREDIT_STARVATION } else { 0 },
                control_table_cap: if is_switch { 0 } else { CCT_BLOCKS as u8 },
            };
            respond(data, &info.to_bytes());
        }
        cc::TIME_STAMP if !set => respond(data, &TimeStampRepr { timestamp: clock }.to_bytes()),
        cc::CONGESTION_KEY_INFO => agent.key_info(set, has_key, data),
        cc::SWITCH_CONGESTION_SETTING if is_switch => agent.switch_setting(set, data),
        cc::SWITCH_PORT_CONGESTION_SETTING if is_switch => {
            agent.port_settings(set, modifier, num_ports, data)?;
        }
        cc::CA_CONGESTION_SETTING if !is_switch => agent.ca_setting(set, data),
        cc::CONGESTION_CONTROL_TABLE if !is_switch => agent.table(set, modifier, data)?,
        _ => return Err(UNSUPPORTED),
    }
    Ok(())
}

/// Replaces the attribute.
fn respond(data: &mut Data, bytes: &[u8]) {
    data.fill(0);
    data[..bytes.len()].copy_from_slice(bytes);
}

impl Agent {
    fn key_info(&mut self, set: bool, has_key: bool, data: &mut Data) {
        if set {
            let asked = CongestionKeyInfo::of(part::<0, 16, _>(data));
            self.key = CongestionKeyInfoRepr {
                cc_key: asked.cc_key(),
                cc_key_protect: asked.cc_key_protect(),
                cc_key_lease_period: asked.cc_key_lease_period(),
                // Only 0 can be written.
                cc_key_violations: match asked.cc_key_violations() {
                    0 => 0,
                    _ => self.key.cc_key_violations,
                },
            };
        }
        let is_hidden = !has_key && self.key.cc_key_protect;
        let cc_key = if is_hidden { 0 } else { self.key.cc_key };
        respond(data, &CongestionKeyInfoRepr { cc_key, ..self.key.clone() }.to_bytes());
    }

    fn switch_setting(&mut self, set: bool, data: &mut Data) {
        let asked = SwitchCongestionSetting::of(part::<0, 76, _>(data));
        let asked_map = asked.control_map();
        if set {
            let takes = |bit| asked_map & bit != 0;
            let own = &mut self.switch;
            if takes(control_map::VICTIM_MASK) {
                own.victim_mask = asked.victim_mask();
            }
            if takes(control_map::CREDIT_MASK) {
                own.credit_mask = asked.credit_mask();
            }
            if takes(control_map::THRESHOLD) {
                (own.threshold, own.packet_size) = (asked.threshold(), asked.packet_size());
            }
            if takes(control_map::CREDIT_STARVATION) {
                own.cs_threshold = asked.cs_threshold();
                own.cs_return_delay = asked.cs_return_delay();
            }
            if takes(control_map::MARKING_RATE) {
                own.marking_rate = asked.marking_rate();
            }
        }
        let control_map = if set { asked_map } else { control_map::ALL };
        respond(
            data,
            &SwitchCongestionSettingRepr { control_map, ..self.switch.clone() }.to_bytes(),
        );
    }

    fn port_settings(
        &mut self,
        set: bool,
        block: u32,
        num_ports: u8,
        data: &mut Data,
    ) -> Result<(), Status> {
        let first = usize::try_from(block).unwrap_or(usize::MAX);
        let first = first.saturating_mul(PORT_ELEMENTS_PER_BLOCK);
        if first > usize::from(num_ports) {
            return Err(INVALID);
        }
        for (number, element) in (first..=usize::from(num_ports)).zip(data.chunks_exact_mut(4)) {
            let Some(element) = element.first_chunk_mut::<4>() else { break };
            let number = number as u8;
            if set && SwitchPortCongestionElement::of(element).valid() {
                self.ports.insert(number, *element);
            }
            *element = self.ports.get(&number).copied().unwrap_or_default();
        }
        Ok(())
    }

    fn ca_setting(&mut self, set: bool, data: &mut Data) {
        let asked = CaCongestionSetting::of(part::<0, 132, _>(data));
        let (asked_map, entries) = (asked.control_map(), asked.entries());
        if set {
            self.ca.port_control = asked.port_control();
            for sl in (0..16).filter(|sl| asked_map & 1 << sl != 0) {
                let at = sl * 8..sl * 8 + 8;
                self.ca.entries[at.clone()].copy_from_slice(&entries[at]);
            }
        }
        let control_map = if set { asked_map } else { u16::MAX };
        respond(data, &CaCongestionSettingRepr { control_map, ..self.ca.clone() }.to_bytes());
    }

    fn table(&mut self, set: bool, block: u32, data: &mut Data) -> Result<(), Status> {
        let block = usize::try_from(block).unwrap_or(usize::MAX);
        let Some(own) = self.cct.chunks_exact_mut(CCT_BLOCK_LEN * 2).nth(block) else {
            return Err(INVALID);
        };
        let asked = CongestionControlTable::of(part::<0, 132, _>(data));
        if set {
            if usize::from(asked.ccti_limit()) >= CCT_BLOCKS * CCT_BLOCK_LEN {
                return Err(INVALID);
            }
            self.ccti_limit = asked.ccti_limit();
            own.copy_from_slice(&asked.entries());
        }
        let mut entries = [0; CCT_BLOCK_LEN * 2];
        entries.copy_from_slice(own);
        let table = CongestionControlTableRepr { ccti_limit: self.ccti_limit, entries };
        respond(data, &table.to_bytes());
        Ok(())
    }

    /// Writes the log, and clears what counts since the last reading.
    fn log(&mut self, is_switch: bool, clock: u32, mad: &mut [u8; MAD_LEN]) {
        let events = std::mem::take(&mut self.events);
        let (port_map, sl_map) =
            (std::mem::take(&mut self.port_map), std::mem::take(&mut self.sl_map));
        let data: &mut [u8; MAD_LEN - LOG] = part_mut::<LOG, _, _>(mad);
        data.fill(0);
        if is_switch {
            let mut log = CongestionLogSwitchRepr {
                log_type: cc::LOG_TYPE_SWITCH,
                congestion_flags: 0,
                log_events_counter: events,
                current_time_stamp: clock,
                port_map,
                events: [0; _],
            };
            for (place, event) in log.events.chunks_exact_mut(12).zip(&self.marked) {
                place.copy_from_slice(&event.to_bytes());
            }
            data[..220].copy_from_slice(&log.to_bytes());
        } else {
            let mut log = CongestionLogCaRepr {
                log_type: cc::LOG_TYPE_CA,
                congestion_flags: 0,
                threshold_event_counter: events,
                threshold_congestion_event_map: sl_map,
                current_time_stamp: clock,
                events: [0; _],
            };
            for (place, event) in log.events.chunks_exact_mut(16).zip(&self.slowed) {
                place.copy_from_slice(&event.to_bytes());
            }
            data[..220].copy_from_slice(&log.to_bytes());
        }
    }
}

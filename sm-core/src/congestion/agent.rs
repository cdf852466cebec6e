//! A congestion control agent: what is known about it, and which request follows an answer.

use ib_mad::types::{Lid, PortNum};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::congestion::{
    self as cc, CaCongestionSetting, CaCongestionSettingRepr, CongestionControlTable,
    CongestionControlTableRepr, CongestionInfo, CongestionInfoRepr, CongestionKeyInfo,
    CongestionKeyInfoRepr, CongestionLogCa, CongestionLogSwitch, PORT_ELEMENTS_PER_BLOCK,
    SwitchCongestionSetting, SwitchCongestionSettingRepr, SwitchPortCongestionSetting,
};
use ib_mad::wire::mad::{AttributeId, Status};

use super::log::LogTotals;
use super::requests::Query;
use super::settings::{CongestionSettings, ca_has, switch_has, table_has};

/// Cycles without an answer after which an agent is left out until it changes.
const SILENT_CYCLES_MAX: u8 = 3;
/// Offset of attributes in a MAD, and of CongestionLog.
const DATA: usize = cc::DATA.start;
const LOG: usize = cc::LOG_DATA.start;

/// How far congestion control is set up at an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was not asked yet.
    Unknown,
    /// It has the wanted settings.
    Ready,
    /// It does not support the class.
    Unsupported,
    /// It does not answer.
    Silent,
    /// It has another CC_Key.
    KeyRefused,
    /// It did not take an attribute: it answered a Set() with this status, or with other values if
    /// that is [`Status::OK`].
    SettingRefused(AttributeId, Status),
}

impl State {
    /// The word that users see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::Unsupported => "unsupported",
            Self::Silent => "silent",
            Self::KeyRefused => "key_refused",
            Self::SettingRefused(..) => "setting_refused",
        }
    }
}

/// An agent: that of a switch, or of one port of a channel adapter.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Index of the node.
    pub(super) node: u32,
    pub(super) lid: Lid,
    /// The port; 0 of a switch.
    pub port: PortNum,
    pub(super) is_switch: bool,
    /// Of a switch: number of its last port, and ports to hosts.
    last_port: u8,
    host_ports: Vec<PortNum>,
    /// How far it is set up.
    pub state: State,
    /// The CC_Key that requests to it show.
    pub(super) key: u64,
    /// Its settings are to be compared with those wanted.
    pub(super) verify: bool,
    /// The state that was reported.
    pub(super) reported: State,
    silent_cycles: u8,
    /// CongestionInfo was not answered: is it the key?
    probing: bool,
    has_no_log: bool,
    /// What was refused in the present pass.
    refusal: Option<(AttributeId, Status)>,
    /// CongestionInfo.
    pub info: Option<CongestionInfoRepr>,
    /// CongestionKeyInfo; its key is as the agent showed it.
    pub key_info: Option<CongestionKeyInfoRepr>,
    /// The setting of a switch, as it was last read or written.
    pub switch: Option<SwitchCongestionSettingRepr>,
    /// The setting of a channel adapter.
    pub ca: Option<Box<CaCongestionSettingRepr>>,
    /// Blocks of the congestion control table.
    pub table: Vec<CongestionControlTableRepr>,
    /// Sums of its logs.
    pub log: LogTotals,
}

impl Agent {
    /// An agent that nothing is known about.
    pub(super) fn new(node: u32, port: PortNum, lid: Lid, key: u64) -> Self {
        Self {
            node,
            lid,
            port,
            is_switch: false,
            last_port: 0,
            host_ports: Vec::new(),
            state: State::Unknown,
            key,
            verify: true,
            reported: State::Unknown,
            silent_cycles: 0,
            probing: false,
            has_no_log: false,
            refusal: None,
            info: None,
            key_info: None,
            switch: None,
            ca: None,
            table: Vec::new(),
            log: LogTotals::default(),
        }
    }

    /// Makes it the agent of a switch.
    pub(super) fn of_switch(self, last_port: u8, host_ports: Vec<PortNum>) -> Self {
        Self { is_switch: true, last_port, host_ports, ..self }
    }

    /// Takes over what was known before the fabric changed. Unless the node is exactly as it was,
    /// all is compared again.
    pub(super) fn inherit(&mut self, old: Self, is_same: bool) {
        let new = std::mem::replace(self, old);
        (self.node, self.lid, self.port) = (new.node, new.lid, new.port);
        (self.is_switch, self.last_port) = (new.is_switch, new.last_port);
        self.host_ports = new.host_ports;
        if !is_same {
            self.start_over();
        }
    }

    /// Compares all again in the next cycle, as if it had not been asked yet.
    pub(super) fn start_over(&mut self) {
        if self.state != State::Ready {
            self.state = State::Unknown;
        }
        (self.verify, self.silent_cycles, self.has_no_log) = (true, 0, false);
    }

    /// Compares all again in the next cycle. A silent agent is tried once more, too: its requests
    /// or answers may have been lost.
    pub(super) fn look_again(&mut self) {
        self.verify = true;
        self.silent_cycles = self.silent_cycles.min(SILENT_CYCLES_MAX - 1);
    }

    /// The first request of a cycle; `None` if there is nothing to do.
    pub(super) fn first(&self, reads_logs: bool) -> Option<Query> {
        match self.state {
            State::Unsupported => None,
            State::Silent if self.silent_cycles >= SILENT_CYCLES_MAX => None,
            State::Silent | State::KeyRefused if !reads_logs => None,
            // Agents answer this with any key.
            State::KeyRefused => Some(Query::Key),
            _ if self.verify => Some(Query::Info),
            _ => self.log_query(reads_logs),
        }
    }

    fn log_query(&self, reads_logs: bool) -> Option<Query> {
        (reads_logs && !self.has_no_log).then_some(Query::Log)
    }

    /// The request that follows one that is done.
    fn after(
        &mut self,
        settings: &CongestionSettings,
        done: Query,
        reads_logs: bool,
    ) -> Option<Query> {
        let next = match done {
            Query::Info => Some(Query::Key),
            Query::Key | Query::SetKey => Some(Query::Setting),
            Query::Setting | Query::SetSetting if self.is_switch => {
                settings.host_port.as_ref().map(|_| Query::Ports(0))
            }
            Query::Setting | Query::SetSetting => {
                self.table_fits(settings).then_some(Query::Table(0))
            }
            Query::Ports(block) | Query::SetPorts(block) => {
                let next = block + 1;
                let is_one = usize::from(next) * PORT_ELEMENTS_PER_BLOCK <= self.last_port.into();
                is_one.then_some(Query::Ports(next))
            }
            Query::Table(block) | Query::SetTable(block) => {
                let next = block + 1;
                (usize::from(next) < settings.table.len()).then_some(Query::Table(next))
            }
            Query::Log => return None,
        };
        if next.is_none() {
            self.verify = false;
            self.state = match self.refusal {
                Some((attribute, status)) => State::SettingRefused(attribute, status),
                None => State::Ready,
            };
        }
        next.or_else(|| self.log_query(reads_logs))
    }

    /// Whether the adapter has room for the table; a capability of 0 is not believed.
    fn table_fits(&mut self, settings: &CongestionSettings) -> bool {
        let blocks = self.info.as_ref().map_or(0, |info| info.control_table_cap);
        let fits = blocks == 0 || settings.table.len() <= blocks.into();
        if !fits {
            self.refusal = Some((cc::CONGESTION_CONTROL_TABLE, Status::INVALID_FIELD));
        }
        fits
    }

    /// The attribute that a request writes.
    pub(super) fn payload(&self, settings: &CongestionSettings, query: Query) -> Vec<u8> {
        match query {
            Query::SetKey => CongestionKeyInfoRepr {
                cc_key: settings.key,
                cc_key_protect: settings.protection.is_some(),
                cc_key_lease_period: settings.protection.unwrap_or_default(),
                cc_key_violations: 0,
            }
            .to_bytes()
            .to_vec(),
            Query::SetSetting if self.is_switch => settings.switch.to_bytes().to_vec(),
            Query::SetSetting => settings.ca.to_bytes().to_vec(),
            Query::SetPorts(block) => self.elements(settings, block).to_vec(),
            Query::SetTable(block) => settings
                .table
                .get(usize::from(block))
                .map_or(vec![], |block| block.to_bytes().into()),
            _ => Vec::new(),
        }
    }

    /// A block of elements for the ports to hosts.
    fn elements(&self, settings: &CongestionSettings, block: u8) -> [u8; 192] {
        let mut elements = [0; 192];
        let Some(wanted) = &settings.host_port else { return elements };
        let first = usize::from(block) * PORT_ELEMENTS_PER_BLOCK;
        for (number, place) in (first..).zip(elements.chunks_exact_mut(4)) {
            if self.host_ports.iter().any(|port| usize::from(port.0) == number) {
                place.copy_from_slice(&wanted.to_bytes());
            }
        }
        elements
    }

    /// Handles an answer without an error; returns the next request.
    pub(super) fn answered(
        &mut self,
        settings: &CongestionSettings,
        query: Query,
        mad: &[u8; MAD_LEN],
        reads_logs: bool,
    ) -> Option<Query> {
        self.silent_cycles = 0;
        let follow = |agent: &mut Self| agent.after(settings, query, reads_logs);
        // `false` after a Set() that the agent answered with other values.
        let has_it = match query {
            Query::Info => {
                self.refusal = None;
                let info = CongestionInfo::at::<DATA, _>(mad);
                self.info = CongestionInfoRepr::parse(&info).ok();
                true
            }
            Query::Key => return self.read_key(settings, mad, reads_logs),
            Query::SetKey => {
                let key = CongestionKeyInfo::at::<DATA, _>(mad);
                self.key_info = CongestionKeyInfoRepr::parse(&key).ok();
                let is_set = key.cc_key() == settings.key;
                if is_set {
                    self.key = settings.key;
                }
                is_set
            }
            Query::Setting | Query::SetSetting if self.is_switch => {
                let has = SwitchCongestionSettingRepr::parse(
                    &SwitchCongestionSetting::at::<DATA, _>(mad),
                );
                let is_wanted = has.as_ref().is_ok_and(|has| switch_has(has, &settings.switch));
                self.switch = has.ok();
                is_wanted
            }
            Query::Setting | Query::SetSetting => {
                let has = CaCongestionSettingRepr::parse(&CaCongestionSetting::at::<DATA, _>(mad));
                let is_wanted = has.as_ref().is_ok_and(|has| ca_has(has, &settings.ca));
                self.ca = has.ok().map(Box::new);
                is_wanted
            }
            Query::Ports(block) | Query::SetPorts(block) => {
                let has = SwitchPortCongestionSetting::at::<DATA, _>(mad).elements();
                let wanted = self.elements(settings, block);
                let mut pairs = has.chunks_exact(4).zip(wanted.chunks_exact(4));
                pairs.all(|(has, wanted)| wanted == [0; 4] || has == wanted)
            }
            Query::Table(block) | Query::SetTable(block) => {
                let has =
                    CongestionControlTableRepr::parse(&CongestionControlTable::at::<DATA, _>(mad));
                let wanted = settings.table.get(usize::from(block));
                let (Ok(has), Some(wanted)) = (has, wanted) else { return follow(self) };
                let is_wanted = table_has(block, &has, wanted);
                self.table.truncate(block.into());
                self.table.push(has);
                is_wanted
            }
            Query::Log => {
                match mad[LOG] {
                    cc::LOG_TYPE_SWITCH if self.is_switch => {
                        let log = CongestionLogSwitch::of(log_of(mad));
                        self.log.add_switch(&log, self.last_port);
                    }
                    cc::LOG_TYPE_CA if !self.is_switch => {
                        self.log.add_ca(&CongestionLogCa::of(log_of(mad)));
                    }
                    _ => {
                        self.log.unfit += 1;
                        self.has_no_log = true;
                    }
                }
                true
            }
        };
        match query {
            _ if has_it => {}
            Query::Setting => return Some(Query::SetSetting),
            Query::Ports(block) => return Some(Query::SetPorts(block)),
            Query::Table(block) => return Some(Query::SetTable(block)),
            _ => self.refusal = Some((query.attribute(self.is_switch), Status::OK)),
        }
        follow(self)
    }

    fn read_key(
        &mut self,
        settings: &CongestionSettings,
        mad: &[u8; MAD_LEN],
        reads_logs: bool,
    ) -> Option<Query> {
        let info = CongestionKeyInfo::at::<DATA, _>(mad);
        self.key_info = CongestionKeyInfoRepr::parse(&info).ok();
        // A key that is protected is shown only to those that know it.
        let knows = match info.cc_key() {
            0 => !info.cc_key_protect(),
            key => key == self.key,
        };
        if !knows {
            if self.key != settings.key {
                self.key = settings.key;
                return Some(Query::Key);
            }
            self.state = State::KeyRefused;
            (self.verify, self.probing) = (true, false);
            return None;
        }
        if self.probing {
            return self.silent(Query::Key);
        }
        if self.state == State::KeyRefused {
            self.state = State::Unknown;
            return Some(Query::Info);
        }
        let has_protection = settings.protection.is_none_or(|lease| {
            info.cc_key() == settings.key
                && info.cc_key_protect()
                && info.cc_key_lease_period() == lease
        });
        if !has_protection {
            return Some(Query::SetKey);
        }
        if info.cc_key() == 0 {
            self.key = settings.key;
        }
        self.after(settings, Query::Key, reads_logs)
    }

    /// Handles an answer with an error status; returns the next request.
    pub(super) fn refused(
        &mut self,
        settings: &CongestionSettings,
        query: Query,
        status: Status,
        reads_logs: bool,
    ) -> Option<Query> {
        self.silent_cycles = 0;
        let is_unsupported = matches!(
            status,
            Status::BAD_VERSION | Status::UNSUPPORTED_METHOD | Status::UNSUPPORTED_METHOD_ATTRIBUTE
        );
        match query {
            Query::Info if is_unsupported => {
                self.state = State::Unsupported;
                return None;
            }
            // Asked again in the next cycle.
            Query::Info => return None,
            Query::Log if is_unsupported => self.has_no_log = true,
            Query::Log => {}
            // Agents may do without keys, unless they are to be written.
            Query::Key if settings.protection.is_none() => {}
            _ => self.refusal = Some((query.attribute(self.is_switch), status)),
        }
        self.after(settings, query, reads_logs)
    }

    /// Handles the silence after a request; returns the next one.
    pub(super) fn silent(&mut self, query: Query) -> Option<Query> {
        if query == Query::Info && !self.probing {
            self.probing = true;
            return Some(Query::Key);
        }
        (self.state, self.verify, self.probing) = (State::Silent, true, false);
        self.silent_cycles = self.silent_cycles.saturating_add(1);
        None
    }
}

/// The log in a MAD.
fn log_of(mad: &[u8; MAD_LEN]) -> &[u8; 220] {
    ib_mad::wire::field::part::<LOG, 220, _>(mad)
}

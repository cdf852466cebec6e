//! Congestion control on a simulated fabric.

use fabric_sim::{Delivery, Endpoint, NodeIndex, Probability};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Lid, Sl};
use ib_mad::wire::congestion::{
    self as cc, CaCongestionSetting, CongestionControlTable, CongestionKeyInfo,
    SwitchCongestionSetting,
};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method};
use sm_config::Settings;
use sm_core::congestion::{CongestionManager, CongestionSettings, Happened, State};
use sm_core::querier::Querier;

use crate::common::{Bed, fat_tree};

const AT: usize = cc::DATA.start;
/// Agents of the fabric: 6 switches, 16 adapters.
const AGENTS: usize = 22;
/// What the operator wants, with a table of two blocks.
const KEYS: [(&str, &str); 8] = [
    ("congestion_control", "TRUE"),
    ("cc_max_outstanding_mads", "8"),
    ("cc_sw_cong_setting_control_map", "0x1f"),
    ("cc_sw_cong_setting_threshold", "0xf"),
    ("cc_sw_cong_setting_marking_rate", "9"),
    ("cc_ca_cong_setting_control_map", "0xffff"),
    ("cc_ca_cong_setting_trigger_threshold", "0 3"),
    ("cc_host_port_marking", "7:1:2"),
];

fn settings(lines: &[(&str, &str)]) -> CongestionSettings {
    let mut settings = Settings::default();
    let table: Vec<String> = (0..100).map(|n| format!("1:{n}")).collect();
    settings.set("cc_cct", &table.join(",")).unwrap();
    for (key, value) in KEYS.iter().chain(lines) {
        assert_eq!(settings.set(key, value), Ok(true), "{key}");
    }
    CongestionSettings::of(&settings)
}

/// A fabric that is up, with a manager of congestion control at the second host.
struct Watch {
    bed: Bed,
    endpoint: Endpoint,
    manager: CongestionManager,
    deliveries: Vec<Delivery>,
    most_outstanding: usize,
}

impl Watch {
    fn new(lines: &[(&str, &str)]) -> Self {
        let net = fat_tree(2, 8, 16);
        let mut bed = Bed::with_manager(&net, Settings::default());
        bed.bring_up();
        let host = bed.hosts()[1];
        let endpoint = bed.fabric.attach(host, 0).unwrap();
        let mut manager = CongestionManager::new(settings(lines), 3);
        manager.set_nodes(bed.clock.now(), bed.plane().nodes);
        Self { bed, endpoint, manager, deliveries: Vec::new(), most_outstanding: 0 }
    }

    /// Runs until the end of the next cycle; returns the number of requests written and sent in it.
    fn cycle(&mut self) -> (u64, u64) {
        let before = self.manager.status();
        while self.manager.cycles() == before.cycles {
            self.step();
        }
        let status = self.manager.status();
        (status.written - before.written, status.sent - before.sent)
    }

    fn step(&mut self) {
        let now = self.bed.clock.now();
        self.manager.handle_timeout(now);
        while let Some(packet) = self.manager.poll_transmit(now) {
            self.bed.fabric.send(now, self.endpoint, &packet);
        }
        self.most_outstanding = self.most_outstanding.max(self.manager.status().outstanding);
        self.bed.fabric.poll(now, &mut self.deliveries, usize::MAX);
        let is_idle = self.deliveries.is_empty();
        for delivery in self.deliveries.drain(..) {
            if delivery.endpoint == self.endpoint {
                self.manager.handle_packet(now, &delivery.packet);
            }
        }
        if is_idle {
            let next = [self.manager.poll_timeout(), self.bed.fabric.poll_timeout(now)];
            let next = next.into_iter().flatten().min().expect("a cycle ends");
            self.bed.clock.advance_to(next);
        }
    }

    fn lid(&self, node: NodeIndex) -> Lid {
        let number = u8::from(self.bed.hosts().contains(&node));
        self.bed.fabric.port(node, number).unwrap().lid
    }

    /// Asks a node directly, with a CC_Key.
    fn ask(
        &mut self,
        node: NodeIndex,
        attribute: AttributeId,
        modifier: u32,
        key: u64,
        set: &[u8],
    ) -> [u8; 256] {
        let mut packet = Packet::to(Address::gsi(self.lid(node)));
        MadHeader::of_mut(&mut packet.mad)
            .set_base_version(1)
            .set_mgmt_class(cc::CLASS)
            .set_class_version(cc::CLASS_VERSION)
            .set_method(if set.is_empty() { Method::GET } else { Method::SET })
            .set_tid(1)
            .set_attribute_id(attribute)
            .set_attribute_modifier(modifier);
        cc::set_cc_key(&mut packet.mad, key);
        packet.mad[AT..AT + set.len()].copy_from_slice(set);
        self.bed.fabric.send(self.bed.clock.now(), self.endpoint, &packet);
        loop {
            let now = self.bed.clock.now();
            self.bed.fabric.poll(now, &mut self.deliveries, usize::MAX);
            let answer = self.deliveries.drain(..).find(|at| at.endpoint == self.endpoint);
            if let Some(answer) = answer {
                return answer.packet.mad;
            }
            let next = self.bed.fabric.poll_timeout(now).expect("an answer");
            self.bed.clock.advance_to(next);
        }
    }

    fn change_settings(&mut self, lines: &[(&str, &str)]) {
        self.manager.set_settings(self.bed.clock.now(), settings(lines));
    }

    fn leaf(&self) -> NodeIndex {
        let host = self.bed.hosts()[0];
        self.bed.fabric.port(host, 1).unwrap().link.unwrap().node
    }
}

/// IBA A10.4.3.6 to A10.4.3.9.
#[test]
fn settings_reach_all_nodes_and_are_written_once() {
    let mut watch = Watch::new(&[]);
    let (hosts, agents) = (watch.bed.hosts(), AGENTS);
    let (written, sent) = watch.cycle();
    let status = watch.manager.status();
    assert_eq!((status.agents, status.ready, status.unsupported), (agents, agents, 0));
    // Switches: the setting, and ports on leaves (4 of 6). Adapters: the setting and two blocks.
    assert_eq!(written, 6 + 4 + 16 * 3);
    assert!(watch.most_outstanding <= 8 && sent > written);
    let leaf = watch.leaf();
    let mad = watch.ask(leaf, cc::SWITCH_CONGESTION_SETTING, 0, 0, &[]);
    let switch = SwitchCongestionSetting::at::<AT, _>(&mad);
    assert_eq!((switch.threshold(), switch.marking_rate()), (15, 9));
    let port = watch.bed.fabric.port(hosts[0], 1).unwrap().link.unwrap().port;
    let mad = watch.ask(leaf, cc::SWITCH_PORT_CONGESTION_SETTING, 0, 0, &[]);
    let at = AT + usize::from(port) * 4;
    assert_eq!(mad[at..at + 4], [0x87, 1, 0, 2]);
    let mad = watch.ask(hosts[3], cc::CA_CONGESTION_SETTING, 0, 0, &[]);
    assert_eq!(CaCongestionSetting::at::<AT, _>(&mad).entries()[..4], [0, 0, 0, 3]);
    let mad = watch.ask(hosts[3], cc::CONGESTION_CONTROL_TABLE, 1, 0, &[]);
    let table = CongestionControlTable::at::<AT, _>(&mad);
    assert_eq!((table.ccti_limit(), &table.entries()[70..74]), (99, &[0x40, 99, 0, 0][..]));

    // Logs only; and of a restarted switch, settings again.
    assert_eq!(watch.cycle(), (0, agents as u64));
    let now = watch.bed.clock.now();
    watch.bed.fabric.reboot(now, leaf).unwrap();
    watch.bed.bring_up();
    watch.manager.set_nodes(watch.bed.clock.now(), watch.bed.plane().nodes);
    watch.cycle();
    let mad = watch.ask(leaf, cc::SWITCH_CONGESTION_SETTING, 0, 0, &[]);
    assert_eq!(SwitchCongestionSetting::at::<AT, _>(&mad).threshold(), 15);
}

#[test]
fn changed_settings_are_written_where_they_differ() {
    let mut watch = Watch::new(&[]);
    watch.cycle();
    watch.change_settings(&[("cc_sw_cong_setting_threshold", "3")]);
    let (written, _) = watch.cycle();
    assert_eq!(written, 6, "one for each switch");
    let leaf = watch.leaf();
    let mad = watch.ask(leaf, cc::SWITCH_CONGESTION_SETTING, 0, 0, &[]);
    assert_eq!(SwitchCongestionSetting::at::<AT, _>(&mad).threshold(), 3);
    watch.change_settings(&[("congestion_control", "FALSE")]);
    for _ in 0..20 {
        let now = watch.bed.clock.now();
        watch.manager.handle_timeout(now);
        assert!(watch.manager.poll_transmit(now).is_none());
        watch.bed.clock.advance(std::time::Duration::from_secs(60));
    }
}

/// IBA A10.4.3.4.
#[test]
fn keys_are_written_changed_and_missed() {
    let lines = [("cc_key", "0x11"), ("cc_key_protect", "TRUE"), ("cc_key_lease_period", "60")];
    let mut watch = Watch::new(&lines);
    watch.cycle();
    let hosts = watch.bed.hosts();
    let key_of = |watch: &mut Watch, host, key| {
        let mad = watch.ask(host, cc::CONGESTION_KEY_INFO, 0, key, &[]);
        let info = CongestionKeyInfo::at::<AT, _>(&mad);
        (info.cc_key(), info.cc_key_protect(), info.cc_key_lease_period())
    };
    assert_eq!(key_of(&mut watch, hosts[2], 0x11), (0x11, true, 60));
    assert_eq!(key_of(&mut watch, hosts[2], 0), (0, true, 60), "hidden from others");

    // Another key: it is written with the first one.
    let others = [("cc_key", "0x22"), ("cc_key_protect", "TRUE")];
    watch.change_settings(&others);
    watch.cycle();
    assert_eq!(key_of(&mut watch, hosts[2], 0x22), (0x22, true, 0));
    assert_eq!(watch.manager.status().ready, AGENTS);

    // A manager that knows neither, as after a restart with another file.
    let mut watch = Watch { manager: CongestionManager::new(settings(&[]), 9), ..watch };
    watch.manager.set_nodes(watch.bed.clock.now(), watch.bed.plane().nodes);
    watch.cycle();
    let status = watch.manager.status();
    assert_eq!((status.key_refused, status.ready, status.written), (AGENTS, 0, 0));
    let event = watch.manager.poll_event().unwrap();
    assert_eq!(event.what, Happened::KeyRefused);

    // The operator finds the key.
    watch.change_settings(&others);
    watch.cycle();
    assert_eq!(watch.manager.status().ready, AGENTS);
}

#[test]
fn nodes_without_the_class_are_skipped_and_counted() {
    let mut watch = Watch::new(&[]);
    let hosts = watch.bed.hosts();
    for &host in &hosts[8..] {
        watch.bed.fabric.set_congestion_class(host, false).unwrap();
    }
    watch.cycle();
    let status = watch.manager.status();
    assert_eq!((status.ready, status.silent), (AGENTS - 8, 8));
    assert!(status.expired > 0);
    for _ in 0..3 {
        watch.cycle();
    }
    assert_eq!(watch.cycle().1, AGENTS as u64 - 8, "given up");
    let states: Vec<_> = watch.manager.agents().map(|view| view.agent.state).collect();
    assert_eq!(states.iter().filter(|state| **state == State::Silent).count(), 8);
}

/// IBA A10.4.3.5.
#[test]
fn logs_are_added_up_and_show_who_congests() {
    let mut watch = Watch::new(&[]);
    watch.cycle();
    let (hosts, leaf, now) = (watch.bed.hosts(), watch.leaf(), watch.bed.clock.now());
    let port = watch.bed.fabric.port(hosts[0], 1).unwrap().link.unwrap().port;
    for round in 1..=3 {
        let fabric = &mut watch.bed.fabric;
        fabric.congest(now, leaf, port, 5, Some((hosts[9], hosts[0])), Sl::default()).unwrap();
        fabric.congest(now, hosts[9], 1, 2, Some((hosts[9], hosts[0])), Sl::default()).unwrap();
        watch.cycle();
        let status = watch.manager.status();
        assert_eq!((status.marked, status.slowed), (5 * round, 2 * round));
    }
    let guid = watch.bed.fabric.node(leaf).guid;
    let (from, to) = (watch.lid(hosts[9]), watch.lid(hosts[0]));
    let view = watch.manager.agents().find(|view| view.node.guid == guid).unwrap();
    let log = &view.agent.log;
    assert_eq!((log.events, log.ports.len(), log.ports[0].port.0), (15, 1, port));
    assert!(log.ports[0].is_hot());
    let (flow, events) = log.flows[0];
    assert_eq!((flow.slid, flow.dlid, events), (from, to, 15));
    let (node, _) = watch.manager.port_of(flow.slid).unwrap();
    assert_eq!(node.guid, watch.bed.fabric.node(hosts[9]).guid);
}

#[test]
fn lost_packets_are_repeated() {
    let mut watch = Watch::new(&[]);
    watch.bed.fabric.set_loss(None, Probability::new(0.05).unwrap()).unwrap();
    for _ in 0..9 {
        watch.cycle();
    }
    watch.bed.fabric.set_loss(None, Probability::new(0.0).unwrap()).unwrap();
    for _ in 0..9 {
        watch.cycle();
    }
    let status = watch.manager.status();
    assert!(status.retried > 0);
    assert_eq!(status.ready, AGENTS);
}

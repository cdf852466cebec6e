//! The congestion control agents.

use super::*;
use ib_mad::types::Sl;
use ib_mad::wire::congestion::{
    self as cc, CaCongestionSettingRepr, CongestionControlTable, CongestionControlTableRepr,
    CongestionInfo, CongestionKeyInfo, CongestionKeyInfoRepr, CongestionLogCa, CongestionLogSwitch,
    SwitchCongestionSetting, SwitchCongestionSettingRepr, SwitchPortCongestionElementRepr,
    control_map,
};

const AT: usize = cc::DATA.start;
const S1: u16 = 1;
const H3: u16 = 5;

struct Request<'a> {
    lid: u16,
    attribute: AttributeId,
    modifier: u32,
    key: u64,
    /// The attribute of a Set().
    set: Option<&'a [u8]>,
}

impl Bench {
    fn cc(&mut self, request: &Request<'_>) -> (Status, [u8; MAD_LEN]) {
        let mut packet = gmp(MgmtClass::CONGESTION, request.lid);
        MadHeader::of_mut(&mut packet.mad)
            .set_class_version(cc::CLASS_VERSION)
            .set_method(if request.set.is_some() { Method::SET } else { Method::GET })
            .set_attribute_id(request.attribute)
            .set_attribute_modifier(request.modifier);
        cc::set_cc_key(&mut packet.mad, request.key);
        if let Some(bytes) = request.set {
            packet.mad[AT..AT + bytes.len()].copy_from_slice(bytes);
        }
        let answer = self.ask(&packet);
        (MadHeader::of(&answer.mad).status(), answer.mad)
    }

    fn get(&mut self, lid: u16, attribute: AttributeId) -> [u8; MAD_LEN] {
        let request = Request { lid, attribute, modifier: 0, key: 0, set: None };
        let (status, mad) = self.cc(&request);
        assert_eq!(status, Status::OK);
        mad
    }

    fn set(&mut self, lid: u16, attribute: AttributeId, bytes: &[u8]) -> [u8; MAD_LEN] {
        let request = Request { lid, attribute, modifier: 0, key: 0, set: Some(bytes) };
        let (status, mad) = self.cc(&request);
        assert_eq!(status, Status::OK);
        mad
    }

    fn set_threshold(&mut self, map: u32) {
        let setting = SwitchCongestionSettingRepr {
            control_map: map,
            victim_mask: [7; _],
            credit_mask: [0; _],
            threshold: 9,
            packet_size: 1,
            cs_threshold: 2,
            cs_return_delay: 3,
            marking_rate: 4,
        };
        self.set(S1, cc::SWITCH_CONGESTION_SETTING, &setting.to_bytes());
    }
}

/// IBA A10.4.3.3, A10.4.3.6.
#[test]
fn the_control_map_selects_what_is_written() {
    let mut bench = Bench::configured();
    let info = bench.get(S1, cc::CONGESTION_INFO);
    assert_eq!(CongestionInfo::at::<AT, _>(&info).congestion_info(), cc::CREDIT_STARVATION);
    bench.set_threshold(control_map::THRESHOLD | control_map::MARKING_RATE);
    let mad = bench.get(S1, cc::SWITCH_CONGESTION_SETTING);
    let has = SwitchCongestionSetting::at::<AT, _>(&mad);
    assert_eq!((has.threshold(), has.packet_size(), has.marking_rate()), (9, 1, 4));
    assert_eq!((has.victim_mask(), has.cs_threshold()), ([0; 32], 0));
    let (status, _) = bench.cc(&Request {
        lid: S1,
        attribute: cc::CA_CONGESTION_SETTING,
        modifier: 0,
        key: 0,
        set: None,
    });
    assert_eq!(status, Status::UNSUPPORTED_METHOD_ATTRIBUTE, "it is a switch");
}

/// IBA A10.4.3.8, A10.4.3.9.
#[test]
fn an_adapter_has_settings_by_sl_and_a_table_of_two_blocks() {
    let mut bench = Bench::configured();
    let setting =
        CaCongestionSettingRepr { port_control: 1, control_map: 2, entries: [5; _] }.to_bytes();
    bench.set(H3, cc::CA_CONGESTION_SETTING, &setting);
    let mad = bench.get(H3, cc::CA_CONGESTION_SETTING);
    assert_eq!(
        mad[AT..AT + 20],
        [0, 1, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 5]
    );
    let table = CongestionControlTableRepr { ccti_limit: 100, entries: [6; _] }.to_bytes();
    let mut block = |modifier, set| {
        let attribute = cc::CONGESTION_CONTROL_TABLE;
        bench.cc(&Request { lid: H3, attribute, modifier, key: 0, set })
    };
    assert_eq!(block(1, Some(&table)).0, Status::OK);
    assert_eq!(block(2, Some(&table)).0, Status::INVALID_FIELD);
    let (_, first) = block(0, None);
    let view = CongestionControlTable::at::<AT, _>(&first);
    assert_eq!((view.ccti_limit(), view.entries()), (100, [0; 128]));
}

/// IBA A10.4.3.4.
#[test]
fn a_wrong_key_is_dropped_and_counted_and_a_protected_key_hidden() {
    let mut bench = Bench::configured();
    let key = CongestionKeyInfoRepr {
        cc_key: 77,
        cc_key_protect: true,
        cc_key_lease_period: 10,
        cc_key_violations: 0,
    };
    bench.set(H3, cc::CONGESTION_KEY_INFO, &key.to_bytes());
    let request = |attribute, key| Request { lid: H3, attribute, modifier: 0, key, set: None };
    let read = |bench: &mut Bench, key| {
        let (_, mad) = bench.cc(&request(cc::CONGESTION_KEY_INFO, key));
        let info = CongestionKeyInfo::at::<AT, _>(&mad);
        (info.cc_key(), info.cc_key_protect(), info.cc_key_violations())
    };
    assert_eq!(read(&mut bench, 1), (0, true, 0));
    let mut packet = gmp(MgmtClass::CONGESTION, H3);
    MadHeader::of_mut(&mut packet.mad)
        .set_class_version(cc::CLASS_VERSION)
        .set_attribute_id(cc::CONGESTION_INFO);
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::BadCcKey), 1);
    assert_eq!(bench.cc(&request(cc::CONGESTION_INFO, 77)).0, Status::OK);
    assert_eq!(read(&mut bench, 77), (77, true, 1));
    bench.send(&packet);
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(read(&mut bench, 1), (77, false, 2), "the lease is over");
}

/// IBA A10.4.3.5.
#[test]
fn events_are_logged_if_the_settings_allow_and_cleared_by_reading() {
    let mut bench = Bench::configured();
    let (s1, h1, h3, now) = (bench.node("S1"), bench.node("H1"), bench.node("H3"), bench.now());
    let congest = |bench: &mut Bench, node, port| {
        bench.fabric.congest(now, node, port, 20, Some((h1, h3)), Sl::from_low_bits(2))
    };
    assert!(congest(&mut bench, s1, 20).is_err(), "its threshold is 0");
    bench.set_threshold(control_map::THRESHOLD);
    congest(&mut bench, s1, 20).unwrap();
    let mad = bench.get(S1, cc::CONGESTION_LOG);
    let log = CongestionLogSwitch::at::<{ cc::LOG_DATA.start }, _>(&mad);
    assert_eq!((log.log_type(), log.log_events_counter(), log.list().count()), (1, 20, 15));
    assert!(cc::has_port(&log.port_map(), PortNum(20)));
    let event = log.list().next().unwrap();
    assert_eq!((event.slid.0, event.dlid.0, event.sl.get()), (3, 5, 2));
    let mad = bench.get(S1, cc::CONGESTION_LOG);
    let log = CongestionLogSwitch::at::<{ cc::LOG_DATA.start }, _>(&mad);
    assert_eq!((log.log_events_counter(), log.port_map(), log.list().count()), (0, [0; 32], 15));

    assert!(congest(&mut bench, h3, 1).is_err());
    let setting =
        CaCongestionSettingRepr { port_control: 0, control_map: 4, entries: [1; _] }.to_bytes();
    bench.set(H3, cc::CA_CONGESTION_SETTING, &setting);
    congest(&mut bench, h3, 1).unwrap();
    let mad = bench.get(H3, cc::CONGESTION_LOG);
    let log = CongestionLogCa::at::<{ cc::LOG_DATA.start }, _>(&mad);
    assert_eq!((log.log_type(), log.threshold_event_counter(), log.list().count()), (2, 20, 13));
    assert_eq!(log.threshold_congestion_event_map(), 4);
}

/// IBA A10.4.3.7.
#[test]
fn a_port_may_mark_packets_though_its_switch_does_not() {
    let mut bench = Bench::configured();
    let element = SwitchPortCongestionElementRepr {
        valid: true,
        control_type: false,
        threshold: 15,
        packet_size: 0,
        marking_rate: 0,
    };
    let mut elements = [0; 192];
    elements[80..84].copy_from_slice(&element.to_bytes());
    bench.set(S1, cc::SWITCH_PORT_CONGESTION_SETTING, &elements);
    let (s1, now) = (bench.node("S1"), bench.now());
    let mut congest = |port| bench.fabric.congest(now, s1, port, 1, None, Sl::default());
    assert!(congest(20).is_ok() && congest(1).is_err());
    let mad = bench.get(S1, cc::SWITCH_PORT_CONGESTION_SETTING);
    assert_eq!(mad[AT..], elements);
}

#[test]
fn a_node_may_do_without_the_class_and_forgets_when_it_restarts() {
    let mut bench = Bench::configured();
    let (s1, h3, now) = (bench.node("S1"), bench.node("H3"), bench.now());
    bench.fabric.set_congestion_class(h3, false).unwrap();
    let packet = gmp(MgmtClass::CONGESTION, H3);
    bench.send(&packet);
    assert_eq!(bench.dropped(DropReason::NoClient), 1);
    bench.set_threshold(control_map::THRESHOLD);
    bench.fabric.reboot(now, s1).unwrap();
    assert!(bench.fabric.congest(now, s1, 20, 1, None, Sl::default()).is_err());
}

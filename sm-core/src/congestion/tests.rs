//! A manager and one agent, answer by answer.

use crate::querier::Querier;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::packet::Packet;
use ib_mad::types::{Guid, Lid, PortNum};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo, PortState};
use ib_mad::wire::congestion::{self as cc, CaCongestionSetting, CongestionKeyInfo};
use ib_mad::wire::mad::{AttributeId, MadHeader, Method, Status};
use proptest::prelude::*;
use sa_proto::snapshot::{Node, Port};
use sm_config::Settings;

use super::*;

const LID: Lid = Lid(7);
const AT: usize = cc::DATA.start;

/// A channel adapter with one active port.
fn adapter(guid: u64) -> Arc<Node> {
    let (mut port_info, mut info) = ([0; 64], [0; 40]);
    PortInfo::of_mut(&mut port_info).set_base_lid(LID).set_port_state(PortState::Active);
    NodeInfo::of_mut(&mut info).set_node_type(NodeType::Ca).set_num_ports(1);
    let port = Port {
        num: PortNum(1),
        guid: Guid(guid),
        info: port_info,
        pkeys: Arc::new([]),
        peer: Some((Guid(99), PortNum(3))),
    };
    let (description, switch_info) = ([0; 64], None);
    Arc::new(Node { guid: Guid(guid), info, description, switch_info, ports: vec![port] })
}

fn settings(lines: &[(&str, &str)]) -> CongestionSettings {
    let mut settings = Settings::default();
    for (key, value) in [("congestion_control", "TRUE")].iter().chain(lines) {
        assert_eq!(settings.set(key, value), Ok(true), "{key}");
    }
    CongestionSettings::of(&settings)
}

struct Bench {
    manager: CongestionManager,
    now: Instant,
}

impl Bench {
    fn new(lines: &[(&str, &str)]) -> Self {
        let now = Instant::now();
        let mut manager = CongestionManager::new(settings(lines), 1);
        manager.set_nodes(now, vec![adapter(5)]);
        manager.handle_timeout(now);
        Self { manager, now }
    }

    fn query(&mut self) -> Option<Packet> {
        self.manager.poll_transmit(self.now)
    }

    /// The attribute and method of the next request, which is answered after a change.
    fn answer(
        &mut self,
        status: Status,
        change: impl FnOnce(&mut [u8; 256]),
    ) -> Option<(AttributeId, Method)> {
        let mut packet = self.query()?;
        let header = MadHeader::of(&packet.mad);
        let asked = (header.attribute_id(), header.method());
        MadHeader::of_mut(&mut packet.mad).set_method(Method::GET_RESP).set_status(status);
        change(&mut packet.mad);
        self.manager.handle_packet(self.now, &packet);
        Some(asked)
    }

    /// Lets a request and its repeats go unanswered.
    fn be_silent(&mut self) -> Option<AttributeId> {
        let attribute = MadHeader::of(&self.query()?.mad).attribute_id();
        let expired = self.manager.status().expired;
        loop {
            self.now += self.manager.settings().timeout;
            self.manager.handle_timeout(self.now);
            if self.manager.status().expired > expired {
                return Some(attribute);
            }
            assert!(self.query().is_some(), "it is repeated");
        }
    }

    fn state(&self) -> State {
        self.manager.agents().next().unwrap().agent.state
    }

    /// Begins the next reading of logs.
    fn next_reading(&mut self) {
        self.now += self.manager.settings().interval;
        self.manager.handle_timeout(self.now);
    }
}

proptest! {
    /// Cycles end after a bounded number of requests, with any answers of an agent.
    #[test]
    fn a_cycle_ends_whatever_is_answered(
        answers in prop::collection::vec(
            (prop::sample::select(vec![0u16, 1, 4, 8, 0xC, 0x1C]), any::<[u8; 32]>()), 40),
        protect: bool,
    ) {
        let lines = [("cc_key", "7"), ("cc_key_protect", if protect { "TRUE" } else { "FALSE" })];
        let mut bench = Bench::new(&lines);
        let mut left = answers.into_iter();
        for _ in 0..3 {
            let mut requests = 0;
            for (status, bytes) in left.by_ref() {
                let asked = bench.answer(Status(status), |mad| {
                    mad[32..64].copy_from_slice(&bytes);
                    mad[64..96].copy_from_slice(&bytes);
                });
                if asked.is_none() {
                    break;
                }
                requests += 1;
                prop_assert!(requests <= 10);
            }
            bench.next_reading();
        }
    }
}

/// IBA A10.4.3.8, A10.4.3.9.
#[test]
fn only_what_differs_is_written() {
    let lines = [("cc_ca_cong_setting_control_map", "1"), ("cc_ca_cong_setting_ccti_timer", "0 9")];
    let mut bench = Bench::new(&lines);
    let mut asked = Vec::new();
    // It echoes requests: Get()s read zeros.
    while let Some(request) = bench.answer(Status::OK, |_| {}) {
        asked.push(request);
    }
    let wanted = [
        (cc::CONGESTION_INFO, Method::GET),
        (cc::CONGESTION_KEY_INFO, Method::GET),
        (cc::CA_CONGESTION_SETTING, Method::GET),
        (cc::CA_CONGESTION_SETTING, Method::SET),
        (cc::CONGESTION_CONTROL_TABLE, Method::GET),
        (cc::CONGESTION_LOG, Method::GET),
    ];
    assert_eq!((asked.as_slice(), bench.state()), (&wanted[..], State::Ready));
    assert_eq!(bench.manager.status().written, 1);
    // Later only logs are read, if there are any.
    bench.next_reading();
    assert_eq!(bench.answer(Status::OK, |_| {}), None, "the log was of no known type");
}

/// Regression: an adapter that answered with the log of a switch had hot spots at any port, with
/// the names of others.
#[test]
fn a_log_of_another_kind_of_node_is_not_used() {
    let mut bench = Bench::new(&[]);
    let log_of_a_switch = |mad: &mut [u8; 256]| {
        if MadHeader::of(mad).attribute_id() == cc::CONGESTION_LOG {
            mad[cc::LOG_DATA].fill(u8::MAX);
            mad[cc::LOG_DATA.start] = cc::LOG_TYPE_SWITCH;
        }
    };
    while bench.answer(Status::OK, log_of_a_switch).is_some() {}
    let log = &bench.manager.agents().next().unwrap().agent.log;
    assert_eq!((log.ports.len(), log.flows.len(), log.events, log.unfit), (0, 0, 0, 1));
    assert_eq!(bench.manager.status().unfit, 1);
}

#[test]
fn other_values_in_the_answer_are_a_refusal_and_not_retried_at_once() {
    let lines = [("cc_ca_cong_setting_control_map", "1"), ("cc_ca_cong_setting_ccti_timer", "0 9")];
    let mut bench = Bench::new(&lines);
    let mut sets = 0;
    while let Some((_, method)) = bench.answer(Status::OK, |mad| {
        CaCongestionSetting::at_mut::<AT, _>(mad).set_entries([0; 128]);
    }) {
        sets += usize::from(method == Method::SET);
    }
    let refused = State::SettingRefused(cc::CA_CONGESTION_SETTING, Status::OK);
    assert_eq!((sets, bench.state()), (1, refused));
    let event = bench.manager.poll_event().unwrap();
    assert_eq!(event.what, Happened::SettingRefused(cc::CA_CONGESTION_SETTING, Status::OK));
    assert!(bench.manager.poll_event().is_none());
}

#[test]
fn an_agent_without_the_class_is_left_out_until_it_changes() {
    let mut bench = Bench::new(&[]);
    let asked = bench.answer(Status::UNSUPPORTED_METHOD_ATTRIBUTE, |_| {});
    assert_eq!(asked, Some((cc::CONGESTION_INFO, Method::GET)));
    assert_eq!((bench.state(), bench.manager.status().unsupported), (State::Unsupported, 1));
    for _ in 0..10 {
        bench.next_reading();
        assert!(bench.query().is_none());
    }
    bench.manager.set_nodes(bench.now, vec![adapter(5)]);
    bench.manager.handle_timeout(bench.now);
    assert!(bench.query().is_some(), "the same node, with another row");
}

/// A protected key reads as 0. IBA A10.4.3.4.
#[test]
fn silence_with_a_protected_key_means_a_wrong_key() {
    let mut bench = Bench::new(&[("cc_key", "5")]);
    assert_eq!(bench.be_silent(), Some(cc::CONGESTION_INFO));
    let asked = bench.answer(Status::OK, |mad| {
        CongestionKeyInfo::at_mut::<AT, _>(mad).set_cc_key_protect(true);
    });
    assert_eq!(asked, Some((cc::CONGESTION_KEY_INFO, Method::GET)));
    assert_eq!(bench.state(), State::KeyRefused);
    assert_eq!(bench.manager.poll_event().unwrap().what, Happened::KeyRefused);
    // Only the key is asked for, until it is right.
    bench.next_reading();
    let asked = bench.answer(Status::OK, |mad| {
        CongestionKeyInfo::at_mut::<AT, _>(mad).set_cc_key(5).set_cc_key_protect(true);
    });
    assert_eq!(asked, Some((cc::CONGESTION_KEY_INFO, Method::GET)));
    assert_eq!(bench.answer(Status::OK, |_| {}), Some((cc::CONGESTION_INFO, Method::GET)));
}

#[test]
fn a_silent_agent_is_tried_three_times_and_then_now_and_then() {
    let mut bench = Bench::new(&[]);
    for _ in 0..3 {
        assert_eq!(bench.be_silent(), Some(cc::CONGESTION_INFO));
        assert_eq!(bench.be_silent(), Some(cc::CONGESTION_KEY_INFO));
        assert_eq!(bench.state(), State::Silent);
        bench.next_reading();
    }
    assert!(bench.query().is_none());
    assert_eq!(bench.manager.poll_event().unwrap().what, Happened::Silent);
    assert!(bench.manager.poll_event().is_none(), "reported once");
    // Regression: an agent whose answers were lost had no settings until it changed.
    let mut readings = 0;
    while bench.query().is_none() {
        bench.next_reading();
        readings += 1;
    }
    assert!((1..=8).contains(&readings), "{readings}");
}

#[test]
fn a_new_key_is_written_with_the_old_one() {
    let lines = [("cc_key", "5"), ("cc_key_protect", "TRUE")];
    let mut bench = Bench::new(&lines);
    while bench.answer(Status::OK, |_| {}).is_some() {}
    let mut other = settings(&lines);
    other.key = 6;
    bench.manager.set_settings(bench.now, other);
    bench.now += Duration::from_secs(1);
    bench.manager.handle_timeout(bench.now);
    bench.answer(Status::OK, |_| {});
    bench.answer(Status::OK, |mad| {
        CongestionKeyInfo::at_mut::<AT, _>(mad).set_cc_key(5).set_cc_key_protect(true);
    });
    let mut shown = None;
    let asked = bench.answer(Status::OK, |mad| {
        shown = Some((cc::cc_key(mad), CongestionKeyInfo::at::<AT, _>(mad).cc_key()));
    });
    assert_eq!(asked, Some((cc::CONGESTION_KEY_INFO, Method::SET)));
    assert_eq!(shown, Some((5, 6)));
    let next = bench.query().unwrap();
    assert_eq!(cc::cc_key(&next.mad), 6);
}

#[test]
fn a_port_is_found_by_each_of_its_lids() {
    let mut row = (*adapter(5)).clone();
    PortInfo::of_mut(&mut row.ports[0].info).set_base_lid(Lid(8)).set_lmc(2);
    let now = Instant::now();
    let mut manager = CongestionManager::new(settings(&[]), 1);
    manager.set_nodes(now, vec![Arc::new(row)]);
    manager.handle_timeout(now);
    let found: Vec<u16> = (0..20).filter(|lid| manager.port_of(Lid(*lid)).is_some()).collect();
    assert_eq!(found, [8, 9, 10, 11]);
}

#[test]
fn a_standby_sends_nothing() {
    let mut bench = Bench::new(&[]);
    assert!(bench.query().is_some());
    let mut off = settings(&[]);
    off.is_on = false;
    bench.manager.set_settings(bench.now, off);
    assert!(bench.manager.settings().is_on, "until the cycle has ended");
    bench.manager.stand_by();
    assert!(!bench.manager.settings().is_on);
    bench.now += Duration::from_secs(1000);
    bench.manager.handle_timeout(bench.now);
    assert!(bench.query().is_none());
    assert_eq!(bench.manager.poll_timeout(), None);
}

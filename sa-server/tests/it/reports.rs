//! Reports to subscribers, with virtual time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn, Sl};
use ib_mad::wire::attribute::{InformInfo, Notice, ProducerType, TrapNumber};
use ib_mad::wire::mad::Method;
use ib_mad::wire::sa::SaMad;
use sa_proto::proto::event as proto;
use sa_proto::snapshot::{RegistryPlane, Subscription, SubscriptionRid, Version};
use sa_server::sm::peers::{Judgement, Peers};
use sa_server::sm::report::{Event, Follower, ReportConfig, Reports};
use sa_server::tables::Tables;
use sa_server::tables::cell::Generation;

const OURS: u64 = 7;

fn subscription(host: u16, number: u16, responder: u64) -> Subscription {
    let mut info = [0; 36];
    InformInfo::new(&mut info[..])
        .unwrap()
        .set_lid_range_begin(Lid::PERMISSIVE)
        .set_is_generic(1)
        .set_inform_type(0xFFFF)
        .set_trap_number(TrapNumber::ALL)
        .set_producer_type(ProducerType::ALL);
    Subscription {
        rid: SubscriptionRid {
            subscriber_gid: Gid::new(0xFE80 << 48, crate::common::Chain::host_guid(host)),
            enumeration: number,
        },
        inform_info: info,
        lid: Lid(host),
        qpn: Qpn(host.into()),
        sl: Sl::from_low_bits(2),
        pkey: PKey::DEFAULT_FULL,
        grh: false,
        trusted: false,
        responder,
    }
}

fn generation(subscriptions: Vec<Subscription>) -> Generation {
    let fabric = crate::common::Chain { switches: 1, hosts_each: 4 }.plane(|_| {});
    let registry = RegistryPlane {
        subscriptions: subscriptions.into_iter().map(Arc::new).collect(),
        ..RegistryPlane::default()
    };
    let tables = Arc::new(Tables::build(&fabric, &registry));
    Generation::new(Version::OFFLINE, tables, Arc::new(registry))
}

fn event(trap: u16, supersedes_key: u64) -> Event {
    let mut notice = [0; 80];
    Notice::new(&mut notice[..])
        .unwrap()
        .set_is_generic(true)
        .set_producer_type(ProducerType::CLASS_MANAGER)
        .set_trap_number(TrapNumber(trap))
        .set_issuer_lid(Lid(1));
    Event { notice, trusted_only: false, subject: None, subject_pkeys: Vec::new(), supersedes_key }
}

fn sent(reports: &mut Reports, now: Instant) -> Vec<Packet> {
    std::iter::from_fn(|| reports.poll_transmit(now)).collect()
}

fn trap_of(packet: &Packet) -> u16 {
    Notice::new(&packet.mad[56..136]).unwrap().trap_number().0
}

fn answer(packet: &Packet) -> Packet {
    let mut answer = packet.clone();
    SaMad::new(&mut answer.mad).header_mut().set_method(Method::REPORT_RESP);
    answer
}

#[test]
fn an_event_goes_to_each_local_subscription() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let generation =
        generation(vec![subscription(1, 0, OURS), subscription(2, 0, 8), subscription(3, 0, OURS)]);
    reports.handle_event(now, &generation, &event(66, 0));
    let packets = sent(&mut reports, now);
    let lids: Vec<_> = packets.iter().map(|packet| packet.address.lid.0).collect();
    assert_eq!(lids, [1, 3]);
    assert_eq!(packets[1].address.qpn, Qpn(3));
    assert_eq!(packets[1].address.sl.get(), 2);
    assert!(sent(&mut reports, now).is_empty());
}

/// Proves IBA 13.4.11.
#[test]
fn a_report_is_repeated_until_it_is_answered() {
    let now = Instant::now();
    let config = ReportConfig::default();
    let mut reports = Reports::new(OURS, config.clone());
    reports.handle_event(now, &generation(vec![subscription(1, 0, OURS)]), &event(66, 0));
    let first = sent(&mut reports, now);
    let due = reports.poll_timeout().unwrap();
    assert_eq!(due, now + config.timeout);
    reports.handle_timeout(due);
    let second = sent(&mut reports, due);
    assert_eq!(first[0].mad, second[0].mad, "the same transaction");
    let mut stranger = answer(&second[0]);
    stranger.address.lid = Lid(3);
    assert!(!reports.handle_answer(due, &stranger), "somebody else's answer");
    assert!(reports.handle_answer(due, &answer(&second[0])));
    assert!(reports.is_empty() && reports.poll_timeout().is_none());
    assert!(!reports.handle_answer(due, &answer(&second[0])), "it was answered");
}

#[test]
fn an_unanswered_report_is_given_up_and_the_next_sent() {
    let mut now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let generation = generation(vec![subscription(1, 0, OURS)]);
    reports.handle_event(now, &generation, &event(66, 0));
    reports.handle_event(now, &generation, &event(67, 0));
    let mut traps = Vec::new();
    while !reports.is_empty() {
        traps.extend(sent(&mut reports, now).iter().map(trap_of));
        now = reports.poll_timeout().unwrap();
        reports.handle_timeout(now);
    }
    assert_eq!(traps, [66, 66, 66, 66, 67, 67, 67, 67]);
    assert_eq!((reports.counters.unanswered, reports.counters.repeated), (2, 6));
}

#[test]
fn a_storm_of_flaps_costs_two_reports_and_ends_with_the_last_state() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let generation = generation(vec![subscription(1, 0, OURS)]);
    for i in 0..1000 {
        reports.handle_event(now, &generation, &event(65 - i % 2, 99));
    }
    let first = sent(&mut reports, now);
    assert_eq!(first.iter().map(trap_of).collect::<Vec<_>>(), [65]);
    reports.handle_answer(now, &answer(&first[0]));
    let last = sent(&mut reports, now);
    assert_eq!(last.iter().map(trap_of).collect::<Vec<_>>(), [64]);
    reports.handle_answer(now, &answer(&last[0]));
    assert!(reports.is_empty());
    assert_eq!(reports.counters.superseded, 998);
}

#[test]
fn queues_are_bounded_and_losses_counted() {
    let now = Instant::now();
    let config = ReportConfig { waiting_max: 4, total_max: 6, ..ReportConfig::default() };
    let mut reports = Reports::new(OURS, config);
    let generation = generation(vec![subscription(1, 0, OURS), subscription(2, 0, OURS)]);
    for _ in 0..20 {
        reports.handle_event(now, &generation, &event(66, 0));
    }
    assert!(reports.len() <= 6 + 2);
    let counters = reports.counters;
    assert_eq!(counters.reports as usize, reports.len() + counters.overflowed as usize);
}

/// Regression: one port could fill the queue of waiting reports, so that no other port received
/// any.
#[test]
fn a_port_that_never_answers_does_not_silence_others() {
    let now = Instant::now();
    let config = ReportConfig { port_max: 10, total_max: 20, ..ReportConfig::default() };
    let mut reports = Reports::new(OURS, config);
    let mut subscriptions: Vec<_> = (0..100).map(|n| subscription(1, n, OURS)).collect();
    subscriptions.push(subscription(2, 0, OURS));
    let generation = generation(subscriptions);
    for _ in 0..50 {
        reports.handle_event(now, &generation, &event(66, 0));
    }
    assert!(reports.len() <= 101 + 20, "{} wait", reports.len());
    let to_others = sent(&mut reports, now).iter().filter(|p| p.address.lid == Lid(2)).count();
    assert_eq!(to_others, 1);
}

/// Proves IBA C13-32.1.2.
#[test]
fn a_report_is_sent_again_to_where_its_subscriber_is_now() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    reports.handle_event(now, &generation(vec![subscription(1, 0, OURS)]), &event(66, 0));
    sent(&mut reports, now);
    let moved = Subscription { lid: Lid(4), ..subscription(1, 0, OURS) };
    reports.handle_registry(now, &generation(vec![moved]));
    let due = reports.poll_timeout().unwrap();
    reports.handle_timeout(due);
    let again = sent(&mut reports, due);
    assert_eq!(again[0].address.lid, Lid(4));
    assert!(reports.handle_answer(due, &answer(&again[0])));
}

#[test]
fn subscriptions_that_come_and_go_are_followed() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let none = generation(vec![]);
    let some = generation(vec![subscription(1, 0, OURS), subscription(2, 0, 8)]);
    let taken_over = generation(vec![subscription(1, 0, 8), subscription(2, 0, OURS)]);
    let mut heard = |generation: &Generation| {
        reports.handle_event(now, generation, &event(66, 0));
        let packets = sent(&mut reports, now);
        packets.iter().for_each(|packet| assert!(reports.handle_answer(now, &answer(packet))));
        packets.iter().map(|packet| packet.address.lid.0).collect::<Vec<_>>()
    };
    assert_eq!(heard(&none), [0; 0]);
    assert_eq!(heard(&some), [1]);
    assert_eq!(heard(&taken_over), [2]);
    assert_eq!(heard(&none), [0; 0]);
}

#[test]
fn what_was_unsubscribed_is_not_reported() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let before = generation(vec![subscription(1, 0, OURS), subscription(2, 0, OURS)]);
    reports.handle_event(now, &before, &event(66, 0));
    reports.handle_registry(now, &generation(vec![subscription(1, 0, OURS)]));
    let lids: Vec<_> = sent(&mut reports, now).iter().map(|packet| packet.address.lid).collect();
    assert_eq!(lids, [Lid(1)]);
    reports.handle_registry(now, &generation(vec![subscription(1, 0, 8)]));
    assert!(reports.is_empty() && reports.poll_timeout().is_none());
}

#[test]
fn only_the_trusted_hear_what_is_for_them() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let trusted = Subscription { trusted: true, ..subscription(2, 0, OURS) };
    let generation = generation(vec![subscription(1, 0, OURS), trusted]);
    reports.handle_event(now, &generation, &Event { trusted_only: true, ..event(257, 0) });
    let lids: Vec<_> = sent(&mut reports, now).iter().map(|packet| packet.address.lid).collect();
    assert_eq!(lids, [Lid(2)]);
}

/// Proves IBA o13-17.1.1.
#[test]
fn who_shares_no_partition_with_the_subject_does_not_hear_of_it() {
    let now = Instant::now();
    let mut reports = Reports::new(OURS, ReportConfig::default());
    let generation = generation(vec![subscription(1, 0, OURS)]);
    let of = |pkey| Event { subject_pkeys: vec![PKey(pkey)], ..event(67, 0) };
    reports.handle_event(now, &generation, &of(0x8001));
    assert!(reports.is_empty());
    reports.handle_event(now, &generation, &of(0xFFFF));
    assert_eq!(reports.len(), 1);
    let unknown = Event { subject: Some(Guid(0xDEAD)), ..event(64, 0) };
    reports.handle_event(now, &generation, &unknown);
    assert_eq!(reports.len(), 1);
}

const SM: &str = "http://192.0.2.1:7";
const FRONT_DOOR: &str = "192.0.2.1:9";

/// Follows [`SM`] over an open stream.
fn following(now: Instant, peers: &Peers) -> Follower {
    let mut follower = Follower::new(OURS, ReportConfig::default(), peers.clone(), 0);
    assert!(follower.poll_connect());
    assert_eq!(follower.handle_connect(SM), proto::FollowRequest { responder_id: OURS, after: 0 });
    follower.handle_open(now);
    follower
}

/// Event `number` of the stream: trap 66.
fn numbered(number: u64) -> proto::Notice {
    let notice = event(66, 0).notice.to_vec().into();
    proto::Notice { number, notice, ..proto::Notice::default() }
}

#[test]
fn reports_leave_through_the_front_door_once_it_is_announced() {
    let now = Instant::now();
    let peers = Peers::default();
    let mut follower = following(now, &peers);
    let generation = generation(vec![subscription(1, 0, OURS)]);
    assert_eq!(follower.handle_notices(now, &generation, vec![numbered(1)]), 0);
    assert!(follower.poll_transmit(now).is_none());
    let door = FRONT_DOOR.parse().unwrap();
    follower.handle_front_doors(vec![door], 0);
    let report = follower.poll_transmit(now).unwrap();
    assert_eq!((report.address.lid, report.carrier.peer), (Lid(1), Some(door)));
    assert_eq!(peers.judge(door, 0), Judgement::Trusted);
    assert!(follower.handle_answer(now, &answer(&report)));
    assert_eq!((follower.poll_timeout(), follower.counters().acknowledged), (None, 1));
}

#[test]
fn a_report_without_an_answer_is_repeated_when_it_is_due() {
    let now = Instant::now();
    let mut follower = following(now, &Peers::default());
    follower.handle_front_doors(vec![FRONT_DOOR.parse().unwrap()], 0);
    let generation = generation(vec![subscription(1, 0, OURS)]);
    follower.handle_notices(now, &generation, vec![numbered(1)]);
    assert!(follower.poll_transmit(now).is_some());
    let due = follower.poll_timeout().unwrap();
    assert_eq!(due, now + ReportConfig::default().timeout);
    follower.handle_timeout(due);
    assert!(follower.poll_transmit(due).is_some());
    assert_eq!(follower.counters().repeated, 1);
}

#[test]
fn a_new_stream_of_the_same_sm_continues_after_the_last_event() {
    let now = Instant::now();
    let mut follower = following(now, &Peers::default());
    let generation = generation(Vec::new());
    follower.handle_notices(now, &generation, vec![numbered(4), numbered(3)]);
    follower.handle_disconnect(now);
    assert!(!follower.poll_connect());
    let due = follower.poll_timeout().unwrap();
    assert_eq!(due, now + Duration::from_millis(200));
    follower.handle_timeout(due);
    assert!(follower.poll_connect());
    assert_eq!(follower.handle_connect(SM).after, 4);
    follower.handle_disconnect(due);
    assert_eq!(follower.poll_timeout(), Some(due + Duration::from_millis(200)), "it did not open");
}

#[test]
fn another_sm_has_event_numbers_and_a_front_door_of_its_own() {
    let now = Instant::now();
    let peers = Peers::default();
    let mut follower = following(now, &peers);
    let door = FRONT_DOOR.parse().unwrap();
    follower.handle_front_doors(vec![door], 0);
    let generation = generation(vec![subscription(1, 0, OURS)]);
    follower.handle_notices(now, &generation, vec![numbered(4)]);
    follower.handle_upstream();
    assert!(follower.poll_connect(), "without delay");
    assert_eq!(follower.handle_connect("http://192.0.2.2:7").after, 0);
    assert_eq!(peers.judge(door, 0), Judgement::Stranger);
    assert!(follower.poll_transmit(now).is_none(), "its front door is not known yet");
}

#[test]
fn an_event_without_a_notice_is_counted_and_skipped() {
    let now = Instant::now();
    let mut follower = following(now, &Peers::default());
    follower.handle_front_doors(vec![FRONT_DOOR.parse().unwrap()], 0);
    let generation = generation(vec![subscription(1, 0, OURS)]);
    let short = proto::Notice { notice: vec![0; 79].into(), ..numbered(2) };
    assert_eq!(follower.handle_notices(now, &generation, vec![short, numbered(3)]), 1);
    assert_eq!(follower.counters().events, 1);
    assert!(follower.poll_transmit(now).is_some());
}

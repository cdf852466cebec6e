//! Properties of the backlog that hold for any arrivals.

use std::collections::{BTreeMap, BTreeSet};

use ib_mad::wire::mad::AttributeId;
use ib_mad::wire::sa::ComponentMask;
use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn request(lid: u16, method: Method, tid: u64) -> Packet {
    let mut packet = Packet::default();
    packet.address.lid = Lid(lid);
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(method, AttributeId(0x35), tid, ComponentMask::NONE);
    packet
}

/// A request for a path between two named ports.
fn get(lid: u16, tid: u64) -> Packet {
    get_with(path::DGID | path::SGID, lid, tid)
}

fn get_with(mask: ComponentMask, lid: u16, tid: u64) -> Packet {
    let mut packet = request(lid, Method::GET, tid);
    SaMad::new(&mut packet.mad).sa_mut().set_component_mask(mask);
    packet
}

fn key(packet: &Packet) -> (u16, u64) {
    (packet.address.lid.0, SaMad::new(&packet.mad).header().tid())
}

fn backlog(light_max: u16) -> Backlog {
    Backlog::new(BacklogConfig { light_max, heavy_max: 8, ..BacklogConfig::default() })
}

fn keep_all(packet: &Packet, reason: DropReason) {
    panic!("{:?} lost: {reason:?}", key(packet));
}

/// What is taken out in one go.
fn take(backlog: &mut Backlog, now: Instant, count: usize) -> Vec<(u16, u64)> {
    let mut packets = vec![Packet::default(); count];
    let mut arrived = vec![now; count];
    let taken = backlog.take(now, &mut packets, &mut arrived);
    packets[..taken].iter().map(key).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { lid: u16, tid: u64 },
    Take { count: usize },
    Wait { ms: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        // One source asks as often as all others together.
        4 => (0u64..12).prop_map(|tid| Step::Arrive { lid: 1, tid }),
        4 => (1u16..9, 0u64..6).prop_map(|(lid, tid)| Step::Arrive { lid, tid }),
        2 => (1usize..4).prop_map(|count| Step::Take { count }),
        1 => (0u32..40).prop_map(|ms| Step::Wait { ms }),
    ]
}

proptest! {
    /// Each request is answered or reported as dropped, none waits twice or for too long, room is
    /// taken from sources with most requests, and no source is served a third time while another
    /// waits.
    #[test]
    fn every_request_is_kept_once_and_its_end_is_reported(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let places = 16;
        let (mut backlog, mut now) = (backlog(places), Instant::now());
        let mut model: BTreeMap<(u16, u64), Instant> = BTreeMap::new();
        let mut served: BTreeMap<u16, BTreeMap<u16, u32>> = BTreeMap::new();
        for step in steps {
            let mut lost = Vec::new();
            let mut note = |packet: &Packet, reason| lost.push((key(packet), reason));
            match step {
                Step::Arrive { lid, tid } => {
                    backlog.file(&[get(lid, tid)], now, &mut note);
                    let repeats = model.contains_key(&(lid, tid));
                    let is_full = model.len() == usize::from(places);
                    prop_assert_eq!(lost.len(), usize::from(repeats || is_full));
                    for (key, reason) in lost {
                        if repeats {
                            prop_assert_eq!((key, reason), ((lid, tid), DropReason::Duplicate));
                        } else {
                            let count = |lid| {
                                model.keys().filter(|(other, _)| *other == lid).count()
                            };
                            let most = (0..9).map(count).max().unwrap();
                            prop_assert_eq!(count(key.0), most);
                            let sources = (0..9).filter(|&lid| count(lid) > 0).count();
                            let is_hog = most > usize::from(places) / sources;
                            prop_assert_eq!(reason == DropReason::SourceShare, is_hog);
                            prop_assert_eq!(reason == DropReason::QueueFull, !is_hog);
                            let oldest = model.iter().filter(|((lid, _), _)| *lid == key.0);
                            prop_assert_eq!(Some(&model[&key]), oldest.map(|(_, at)| at).min());
                        }
                        model.remove(&key);
                    }
                    model.insert((lid, tid), now);
                }
                Step::Take { count } => {
                    for key in take(&mut backlog, now, count) {
                        prop_assert!(model.remove(&key).is_some(), "{key:?} was not waiting");
                        let (lid, waiting) = (key.0, model.keys().map(|key| key.0));
                        served.remove(&lid);
                        let others = waiting.filter(|&other| other != lid);
                        for other in others.collect::<BTreeSet<_>>() {
                            let times = served.entry(other).or_default().entry(lid).or_default();
                            *times += 1;
                            prop_assert!(*times <= 2, "{lid} again, and {other} waits");
                        }
                    }
                }
                Step::Wait { ms } => {
                    now += ms * MS;
                    backlog.drop_stale(now, &mut note);
                    for (key, reason) in lost {
                        prop_assert_eq!(reason, DropReason::Stale);
                        prop_assert!(now - model.remove(&key).unwrap() > 100 * MS);
                    }
                    prop_assert!(model.values().all(|&at| now - at <= 100 * MS));
                }
            }
            served.retain(|lid, _| model.keys().any(|key| key.0 == *lid));
            prop_assert_eq!(backlog.len(), model.len());
        }
    }
}

#[test]
fn the_newest_are_answered_first_unless_all_are_young() {
    let (mut backlog, start) = (backlog(64), Instant::now());
    for lid in 1..=6 {
        backlog.file(&[get(lid, 0)], start + u32::from(lid) * MS, &mut keep_all);
    }
    let lids = |taken: Vec<(u16, u64)>| taken.iter().map(|key| key.0).collect::<Vec<_>>();
    assert_eq!(lids(take(&mut backlog, start + 20 * MS, 2)), [1, 2]);
    assert_eq!(lids(take(&mut backlog, start + 50 * MS, 4)), [6, 5, 4, 3]);
}

#[test]
fn a_repeat_takes_the_place_of_what_it_repeats_and_is_younger() {
    let (mut backlog, start) = (backlog(64), Instant::now());
    backlog.file(&[get(1, 7), get(2, 7), get(1, 8)], start, &mut keep_all);
    let mut lost = Vec::new();
    backlog.file(&[get(1, 7)], start + 90 * MS, &mut |packet, reason| {
        lost.push((key(packet), reason));
    });
    assert_eq!(lost, [((1, 7), DropReason::Duplicate)]);
    backlog.drop_stale(start + 110 * MS, &mut |_, _| {});
    assert_eq!(take(&mut backlog, start + 110 * MS, 4), [(1, 7)]);
    // Once it is answered, the next is a request like any other.
    backlog.file(&[get(1, 7)], start + 120 * MS, &mut keep_all);
    assert_eq!(backlog.len(), 1);
}

/// Two requests that differ in one of these fields are different requests.
#[test]
fn requests_differ_by_qp_gid_peer_method_attribute_and_tid() {
    let change: [fn(&mut Packet); 6] = [
        |packet| packet.address.qpn = ib_mad::types::Qpn(9),
        |packet| packet.address.grh = Some(ib_mad::transport::Grh::default()),
        |packet| packet.carrier.peer = Some("127.0.0.1:9".parse().unwrap()),
        |packet| packet.mad[3] = Method::SET.0,
        |packet| packet.mad[17] = 0x38,
        |packet| packet.mad[15] = 9,
    ];
    let mut backlog = backlog(64);
    backlog.file(&[get(1, 1)], Instant::now(), &mut keep_all);
    for change in change {
        let mut packet = get(1, 1);
        change(&mut packet);
        backlog.file(&[packet], Instant::now(), &mut keep_all);
    }
    assert_eq!(backlog.len(), 7);
}

#[test]
fn acknowledgements_of_a_transfer_are_no_repeats_of_each_other() {
    let mut ack = request(1, Method::GET_TABLE, 5);
    SaMad::new(&mut ack.mad).rmpp_mut().set_rmpp_type(RmppType::ACK).set_flags(RmppFlags::ACTIVE);
    let (mut backlog, now) = (backlog(64), Instant::now());
    backlog.file(&[ack.clone(), ack], now, &mut keep_all);
    assert_eq!(take(&mut backlog, now, 4).len(), 2, "and they wait for no table");
}

/// After a table that took 14 ms, other requests get seven times as long before the next table.
#[test]
fn tables_get_an_eighth_of_the_time_while_others_wait() {
    let (mut backlog, mut now) = (backlog(64), Instant::now());
    let (mut heavy, mut light) = (Duration::ZERO, Duration::ZERO);
    let mut packet = Packet::default();
    for turn in 0..4000 {
        backlog.file(&[request(1 + turn % 8, Method::GET_TABLE, turn.into())], now, &mut |_, _| {});
        backlog.credit(MS);
        (now, light) = (now + MS, light + MS);
        if let Some(costly) = backlog.take_heavy(now, true, &mut packet) {
            backlog.charge(costly, 14 * MS);
            (now, heavy) = (now + 14 * MS, heavy + 14 * MS);
        }
    }
    let part = heavy.as_secs_f64() / (heavy + light).as_secs_f64();
    assert!((0.12..0.13).contains(&part), "{part}");
    assert!(backlog.take_heavy(now, false, &mut packet).is_some(), "no other source waits");
}

/// Tables that grow while they are sent have their part of the same time.
#[test]
fn what_grows_spends_the_time_of_costly_requests() {
    let (mut backlog, now) = (backlog(64), Instant::now());
    backlog.file(&[request(1, Method::GET_TABLE, 1)], now, &mut keep_all);
    assert!(backlog.may_spend(true));
    backlog.spend(true, MS);
    assert!(!backlog.may_spend(true) && backlog.may_spend(false));
    assert!(backlog.take_heavy(now, true, &mut Packet::default()).is_none());
    backlog.credit(7 * MS);
    assert!(backlog.may_spend(true));
    backlog.spend(false, 100 * MS);
    assert!(backlog.may_spend(true), "others did not wait");
}

/// Sources of tables share by time, not by number.
#[test]
fn who_asks_for_large_tables_has_fewer_of_them() {
    let (mut backlog, mut now) = (backlog(64), Instant::now());
    let mut packet = Packet::default();
    let mut times = [Duration::ZERO; 3];
    for turn in 0..4000 {
        for lid in [1, 2] {
            let request = request(lid, Method::GET_TABLE, turn);
            backlog.file(&[request], now, &mut |_, _| {});
        }
        let costly = backlog.take_heavy(now, false, &mut packet).unwrap();
        let lid = packet.address.lid.0;
        let time = if lid == 1 { 10 * MS } else { MS };
        backlog.charge(costly, time);
        times[usize::from(lid)] += time;
        now += time;
    }
    let part = times[1].as_secs_f64() / (times[1] + times[2]).as_secs_f64();
    assert!((0.45..0.55).contains(&part), "{times:?}");
}

#[test]
fn whose_gets_are_dear_waits_with_the_tables_until_that_is_paid() {
    let (mut backlog, now) = (backlog(64), Instant::now());
    backlog.note_offence(&get(1, 0).address, now, 10 * MS);
    let file = |backlog: &mut Backlog, now| {
        let mut packets = [get(1, 0), get(2, 0)];
        let kept = backlog.set_heavy_aside(&mut packets, now, &mut |_, _| {});
        packets[..kept].iter().map(|packet| packet.address.lid.0).collect::<Vec<_>>()
    };
    assert_eq!(file(&mut backlog, now), [2]);
    assert_eq!(file(&mut backlog, now + 79 * MS), [2]);
    assert_eq!(file(&mut backlog, now + 80 * MS), [1, 2]);
}

/// Regression: a flood of Gets with meaningless masks was answered before any valid query, and
/// delayed valid queries of the same source for eight times as long as that took.
#[test]
fn a_get_that_leaves_an_end_open_waits_with_the_tables_and_is_no_offence() {
    let (mut backlog, now) = (backlog(64), Instant::now());
    let open = [ComponentMask::NONE, path::SGID, path::SLID | path::RATE, path::DGID | path::DLID];
    let named = [path::SGID | path::DLID, path::SLID | path::DGID | path::RATE];
    let masks = open.into_iter().chain(named);
    let mut packets: Vec<_> = (0..).zip(masks).map(|(tid, mask)| get_with(mask, 1, tid)).collect();
    let kept = backlog.set_heavy_aside(&mut packets, now, &mut keep_all);
    let kept: Vec<_> = packets[..kept].iter().map(key).collect();
    assert_eq!(kept, [(1, 4), (1, 5)]);
    let mut packet = Packet::default();
    let costly = backlog.take_heavy(now, true, &mut packet).unwrap();
    assert!(costly.was_known);
    backlog.charge(costly, MS);
    assert!(backlog.take_heavy(now, true, &mut packet).is_none(), "an eighth of the time");
    // What gave no sign of being costly is another matter.
    backlog.note_offence(&get(2, 0).address, now, MS);
    backlog.file(&[get(2, 0)], now, &mut keep_all);
    let taken = std::iter::from_fn(|| backlog.take_heavy(now, false, &mut packet));
    assert_eq!(taken.filter(|costly| !costly.was_known).count(), 1);
}

#[test]
fn of_what_was_inherited_the_newest_are_kept() {
    let (mut backlog, now) = (backlog(64), Instant::now());
    let mut lost = 0;
    let requests: Vec<_> = (1..=40).map(|lid| get(lid, 0)).collect();
    backlog.file(&requests, now, &mut keep_all);
    backlog.keep_newest(10, &mut |packet, reason| {
        assert_eq!(reason, DropReason::Stale);
        assert!(packet.address.lid.0 <= 30);
        lost += 1;
    });
    assert_eq!((lost, backlog.len()), (30, 10));
}

/// Regression: a port with many GIDs in its GRHs had a share for each of them.
#[test]
fn only_clients_without_a_lid_are_distinguished_by_gid() {
    let backlog = backlog(64);
    let source = |lid: u16, last: u8| {
        let mut packet = get(lid, 0);
        let mut grh = ib_mad::transport::Grh::default();
        grh.remote_gid.0[15] = last;
        packet.address.grh = Some(grh);
        backlog.source(&packet.address)
    };
    assert_eq!(backlog.source(&get(3, 0).address), 3);
    assert!((0..64).all(|last| source(3, last) == 3));
    let sources: BTreeSet<_> = (0..64).map(|last| source(0, last)).collect();
    assert!(sources.len() > 60, "a hash of 14 bits");
    assert!(sources.iter().all(|&source| source > Lid::UNICAST_LAST.0));
    // Regression: at a LMC above 0 it had a share for each of its LIDs.
    let backlog = Backlog { lmc: 3, ..backlog };
    let source = |lid: u16| backlog.source(&get(lid, 0).address);
    assert!((16..24).all(|lid| source(lid) == 16) && source(15) != 16 && source(24) != 16);
}

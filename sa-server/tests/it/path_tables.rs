//! Paths that are found in different ways are the same paths.
//!
//! A long table is made by copying what paths of one kind have in common; a table of the paths to
//! one port has nothing to copy from; most Get() are answered by a short way of their own.

use std::sync::Arc;

use crate::common::{Chain, SM_KEY};
use crate::golden_support::{Got, Sa};
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Rate, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::{CapabilityMask, LinkSpeeds, LinkWidths, PortInfo};
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{PathRecord, Selector};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use proptest::prelude::*;
use sa_proto::snapshot::{
    FabricPlane, IdMatch, Lft, PortGroup, QosLevel, QosRule, RegistryPlane, RuleOrigin,
    VirtualFabric,
};

const CHAIN: Chain = Chain { switches: 4, hosts_each: 5 };

/// Ports of many classes: MTUs, rates, partitions; some routes that lead nowhere, and optionally
/// rules.
fn plane(seed: u64, rules: bool) -> FabricPlane {
    // Any port's own dice, so that their order does not matter.
    let dice = |salt: u64, sides: u64| {
        let mixed =
            (seed ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (mixed >> 33) % sides
    };
    let mut plane = CHAIN.plane(|port| {
        let salt = port.guid.0.wrapping_mul(64) + u64::from(port.num.0);
        let one = |nth: u64, sides: u64| dice(salt.wrapping_mul(8) + nth, sides);
        PortInfo::new(&mut port.info[..])
            .unwrap()
            .set_capability_mask(CapabilityMask::IS_EXTENDED_SPEEDS_SUPPORTED)
            .set_link_width_active([LinkWidths::X1, LinkWidths::X4][one(0, 2) as usize])
            .set_link_speed_active([LinkSpeeds::SDR, LinkSpeeds::QDR][one(1, 2) as usize])
            .set_mtu_cap([Mtu::B1024, Mtu::B2048, Mtu::B4096][one(2, 3) as usize]);
        let full = |nth: u64| if one(nth, 4) > 0 { 0x8000 } else { 0 };
        let key = |nth: u64| PKey((1 + one(nth, 3) as u16) | full(nth + 1));
        port.pkeys = Arc::from([key(3), key(5)]);
    });
    for lft in &mut plane.lfts {
        for (lid, port) in (0..).zip(Arc::make_mut(lft).ports.iter_mut()) {
            if dice(lft_salt(lid), 30) == 0 {
                *port = Lft::NO_ROUTE;
            }
        }
    }
    if rules {
        plane.subnet.qos = true;
        plane.qos_levels = (0..2).map(|index| Arc::new(level(index))).collect();
        plane.qos_rules = vec![Arc::new(rule(0)), Arc::new(rule(1))];
        if dice(5, 2) == 0 {
            with_fabrics(&mut plane);
        }
    }
    plane
}

/// Virtual fabrics of all ports, with P_Keys 1 to 3, in front of other rules.
fn with_fabrics(plane: &mut FabricPlane) {
    plane.port_groups = vec![Arc::new(PortGroup {
        index: 0,
        name: String::new(),
        node_types: PortGroup::NODE_CA,
        ports: Vec::new(),
    })];
    let sl = Sl::from_low_bits;
    plane.qos_levels.clear();
    let mut rules = Vec::new();
    for index in 0..3u32 {
        let pkey = index as u16 + 1;
        plane.virtual_fabrics.push(Arc::new(VirtualFabric {
            index,
            name: index.to_string(),
            pkey: PKey(pkey),
            base_sl: sl(pkey),
            multicast_sl: sl(pkey),
            security: true,
            qos: true,
            service_ids: vec![IdMatch::Range(0, 3)],
            members: vec![0],
            ..VirtualFabric::default()
        }));
        let pkeys = vec![(pkey, pkey)];
        plane.qos_levels.push(Arc::new(QosLevel { sl: Some(sl(pkey)), pkeys, ..level(2) }));
        Arc::make_mut(plane.qos_levels.last_mut().unwrap()).index = index;
        rules.extend([vec![IdMatch::Range(0, 3)], Vec::new()].map(|ids| QosRule {
            origin: RuleOrigin::VirtualFabric,
            sources: Some(vec![0]),
            destinations: Some(vec![0]),
            service_ids: Some(ids),
            level: index,
            ..rule(2)
        }));
    }
    // Those with Service IDs precede those without.
    rules.sort_by_key(|rule| rule.service_ids == Some(Vec::new()));
    let number = |(index, rule)| Arc::new(QosRule { index, ..rule });
    plane.qos_rules = (0..).zip(rules).map(number).collect();
}

fn lft_salt(lid: u64) -> u64 {
    0x1F7 + lid * 3
}

fn level(index: u32) -> QosLevel {
    QosLevel {
        index,
        name: String::new(),
        sl: (index == 1).then(|| Sl::from_low_bits(3)),
        mtu_limit: (index == 0).then_some(Mtu::B2048),
        rate_limit: None,
        packet_life: None,
        pkeys: Vec::new(),
    }
}

fn rule(index: u32) -> QosRule {
    QosRule {
        index,
        name: String::new(),
        origin: RuleOrigin::MatchRule,
        level: index,
        sources: None,
        destinations: None,
        pkeys: (index == 0).then(|| vec![(1, 1)]),
        qos_classes: None,
        service_ids: (index == 1).then(|| vec![IdMatch::Range(0, 7)]),
    }
}

fn gid(lid: u16) -> Gid {
    Gid::new(SUBNET_PREFIX_DEFAULT, Chain::host_guid(lid))
}

/// A request for paths from the host with the LID `requester`: status and records of its answer.
fn asked(
    sa: &mut Sa,
    method: Method,
    sm_key: u64,
    requester: u16,
    mask: ComponentMask,
    record: [u8; 64],
) -> (u16, Vec<[u8; 64]>) {
    let mut mad = [0; 256];
    let mut view = SaMad::new(&mut mad);
    view.write_request(method, attribute::PATH_RECORD, 7, mask);
    view.sa_mut().set_sm_key(sm_key);
    view.data_mut()[..64].copy_from_slice(&record);
    let got = sa.ask(Lid(requester), &[mad.to_vec()]);
    let Got::Answer(answer) = got else { panic!("no answer") };
    let status = u16::from_be_bytes([answer[4], answer[5]]);
    let records = match (status, method) {
        (0, Method::GET) => {
            assert!(answer[120..256].iter().all(|&byte| byte == 0), "something behind the record");
            vec![*answer[56..].first_chunk().unwrap()]
        }
        (0, _) => answer[56..].as_chunks().0.to_vec(),
        _ => Vec::new(),
    };
    (status, records)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_long_table_says_what_short_ones_say(
        seed in any::<u64>(),
        rules in any::<bool>(),
        source in 1..=CHAIN.hosts(),
        requester in 1..=CHAIN.hosts(),
        sm_key in prop_oneof![Just(0), Just(SM_KEY)],
        components in any::<u32>(),
        bytes in any::<[u8; 16]>(),
    ) {
        let mut sa = Sa::new(&plane(seed, rules), &RegistryPlane::default());
        // Any of the components that say which paths are wanted, the ends aside.
        let wishes = ComponentMask(u64::from(components) & 0x3F_F800) | path::SGID;
        let wishes = if bytes[0] & 1 == 0 { wishes } else { wishes | path::SERVICE_ID };
        let selector = if bytes[6] & 1 == 1 { Selector::Greater } else { Selector::Largest };
        let mut record = [0; 64];
        PathRecord::new(&mut record[..])
            .unwrap()
            .set_sgid(gid(source))
            .set_service_id(u64::from(bytes[1] % 12))
            .set_reversible(bytes[2] & 1 == 1)
            .set_numb_path(1 + bytes[3] % 3)
            .set_pkey(PKey(u16::from(bytes[4] % 4) | 0x8000))
            .set_sl(Sl::from_low_bits(u16::from(bytes[5] % 4 / 3 * 3)))
            .set_mtu_selector(Selector::Less)
            .set_mtu(Mtu::B4096)
            .set_rate_selector(selector)
            .set_rate(Rate::Gbps2_5)
            .set_packet_life_time_selector(Selector::Largest);
        let mut table =
            |mask, record| asked(&mut sa, Method::GET_TABLE, sm_key, requester, mask, record);
        let (status, mut long) = table(wishes, record);
        prop_assume!(status == 0);
        let mut short = Vec::new();
        for lid in 1..=CHAIN.hosts() {
            PathRecord::new(&mut record[..]).unwrap().set_dgid(gid(lid));
            let (status, records) = table(wishes | path::DGID, record);
            prop_assert_eq!(status, 0);
            short.extend(records);
        }
        // The paths to switches have no counterpart.
        long.retain(|record| PathRecord::new(&record[..]).unwrap().dlid().0 <= CHAIN.hosts());
        long.sort_unstable();
        short.sort_unstable();
        prop_assert_eq!(long, short);
    }
}

/// A limited member sees itself, but none of the others with the same P_Keys.
#[test]
fn the_requesters_own_port_is_no_example_for_others() {
    let plane = CHAIN.plane(|port| {
        let is_full = port.guid == Chain::host_guid(1);
        port.pkeys = Arc::from([PKey(if is_full { 0x8001 } else { 0x0001 })]);
    });
    let mut sa = Sa::new(&plane, &RegistryPlane::default());
    let mut record = [0; 64];
    PathRecord::new(&mut record[..]).unwrap().set_sgid(gid(1));
    for requester in 2..=CHAIN.hosts() {
        let returned = asked(&mut sa, Method::GET_TABLE, 0, requester, path::SGID, record);
        let dlid = |record: &[u8; 64]| PathRecord::new(&record[..]).unwrap().dlid().0;
        let mut dlids: Vec<u16> = returned.1.iter().map(dlid).collect();
        dlids.sort_unstable();
        assert_eq!((returned.0, dlids), (0, vec![1, requester]));
    }
}

const NO_RECORDS: u16 = 0x0300;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requests with random components, mostly simple ones, with ends named by GID, LID, both or
    /// neither, correctly or not.
    #[test]
    fn a_get_says_what_comes_first_in_a_table(seed in any::<u64>(), rules in any::<bool>()) {
        let mut sa = Sa::new(&plane(seed, rules), &RegistryPlane::default());
        let mut dice = Dice(seed | 1);
        let mut answered = 0;
        for _ in 0..200 {
            let (mask, record) = any_request(&mut dice);
            let requester = 1 + dice.roll(u64::from(CHAIN.hosts())) as u16;
            let (status, records) = asked(&mut sa, Method::GET_TABLE, 0, requester, mask, record);
            let want = match records.first() {
                None if status == 0 => (NO_RECORDS, Vec::new()),
                first => (status, first.copied().into_iter().collect()),
            };
            let got = asked(&mut sa, Method::GET, 0, requester, mask, record);
            answered += got.1.len();
            prop_assert_eq!(got, want, "mask {:?} from {} about {:02x?}", mask, requester, record);
        }
        // Of 200; some seeds find fewer than 20.
        prop_assert!(answered > 4, "hardly anything was found: {}", answered);
        prop_assert!(sa.stats().balances());
    }
}

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (self.0 >> 33) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

fn any_request(dice: &mut Dice) -> (ComponentMask, [u8; 64]) {
    let mut record = [0; 64];
    for byte in &mut record {
        *byte = dice.roll(256) as u8;
    }
    // How an end is named: its host's LID, and whether by GID and by LID.
    let mut end = || {
        let lid = 1 + dice.roll(u64::from(CHAIN.hosts())) as u16;
        let named = [(true, false), (false, true), (true, true), (false, false)];
        let (by_gid, by_lid) = named[[0, 0, 0, 1, 1, 2, 3][dice.roll(7) as usize]];
        let prefix = if dice.one_in(8) { 0xFE80_0000_0000_0001 } else { SUBNET_PREFIX_DEFAULT };
        let gid = match dice.roll(40) {
            0 => Gid::ZERO,
            1 => Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0)),
            2 => Gid::new(0x1234, Chain::host_guid(lid)),
            3 => Gid::new(SUBNET_PREFIX_DEFAULT, Guid(0xDEAD)),
            _ => Gid::new(prefix, Chain::host_guid(lid)),
        };
        let lid = match dice.roll(40) {
            0 => 0,
            1 => 0xC001,
            2 => 1 + dice.roll(u64::from(CHAIN.hosts())) as u16,
            _ => lid,
        };
        (by_gid, gid, by_lid, Lid(lid))
    };
    let (source, destination) = (end(), end());
    PathRecord::new(&mut record[..])
        .unwrap()
        .set_sgid(source.1)
        .set_slid(source.3)
        .set_dgid(destination.1)
        .set_dlid(destination.3)
        .set_service_id(dice.roll(12))
        .set_numb_path(1 + dice.roll(3) as u8)
        .set_pkey(PKey(dice.roll(4) as u16 | 0x8000))
        .set_mtu(Mtu::B2048)
        .set_rate(Rate::Gbps10);
    let mut mask = ComponentMask(dice.roll(1 << 23));
    if !dice.one_in(4) {
        // No wishes but for a P_Key and a way back: what most requests are like.
        let mut wishes = path::MTU_SELECTOR | path::RATE_SELECTOR | path::SL | path::RAW_TRAFFIC;
        wishes |= path::PACKET_LIFE_TIME_SELECTOR | path::MTU | path::RATE | path::PACKET_LIFE_TIME;
        mask = mask & !wishes & !ComponentMask(1 << 7);
    }
    mask = match dice.roll(8) {
        0 => mask,
        1..5 => mask & !path::SERVICE_ID,
        _ => mask | path::SERVICE_ID,
    };
    let named = [
        (path::SGID, source.0),
        (path::SLID, source.2),
        (path::DGID, destination.0),
        (path::DLID, destination.2),
    ];
    for (component, is_named) in named {
        mask = if is_named { mask | component } else { mask & !component };
    }
    (mask, record)
}

//! The agent of a compute node answers as the responder does, or leaves it to the SA: over random
//! partitions, policies, routes and requests, and over changes of all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ib_mad::transport::Packet;
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, SUBNET_PREFIX_DEFAULT, Sl};
use ib_mad::wire::attribute::PortInfo;
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use sa_proto::prost::Message;
use sa_proto::proto::node as proto;
use sa_proto::snapshot::{
    AliasGuid, FabricPlane, IdMatch, Lft, Mft, QosLevel, QosRule, RegistryPlane, RuleOrigin,
    Version,
};
use sa_server::agent::host::{Host, Name};
use sa_server::agent::netlink::kernel::{self, Taken};
use sa_server::agent::netlink::{PathUse, Request};
use sa_server::agent::ping::Pings;
use sa_server::agent::port::{Port, Reason};
use sa_server::node::{CHANGES_LEN_MAX, Follower, GroupKey, Halves, Lead, Messages};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};

use crate::common::{Chain, request};

/// Three switches with three hosts each.
const CHAIN: Chain = Chain { switches: 3, hosts_each: 3 };
const HOSTS: u16 = 9;
/// The host with the agent.
const OWN: u16 = 2;
/// Ports of a switch that lead to the next and to the one before.
const RIGHT: u8 = CHAIN.hosts_each as u8 + 1;
const LEFT: u8 = RIGHT + 1;

fn switch_guid(switch: u16) -> Guid {
    Guid(0xb859_9f03_00a0_0000 + u64::from(switch) * 0x40)
}

/// An alias GUID.
fn alias_guid(number: usize) -> Guid {
    Guid(0xa11a_0000_0000_0000 + number as u64)
}

/// What a fabric is made of.
#[derive(Clone, Debug)]
struct World {
    /// Hosts that have gone.
    gone: Vec<u16>,
    /// The host that has each alias GUID, if one does.
    aliases: Vec<Option<u16>>,
    /// Whether all hosts have two LIDs.
    has_lmc: bool,
    /// P_Keys of each host.
    pkeys: Vec<Vec<u16>>,
    /// Routes that are missing: switch, LID.
    cuts: Vec<(u16, u16)>,
    /// Links between a switch and the next with a lower MTU.
    narrow: Vec<u16>,
    qos: bool,
    rules: Vec<Rule>,
    levels: Vec<Level>,
}

/// SL and P_Keys of a QoS level.
type Level = (Option<u8>, Option<(u16, u16)>);

#[derive(Clone, Debug)]
struct Rule {
    level: u32,
    pkeys: Option<Vec<(u16, u16)>>,
    qos_classes: Option<Vec<(u16, u16)>>,
    service_ids: Option<Vec<IdMatch>>,
}

fn pkey() -> impl Strategy<Value = u16> {
    prop_oneof![
        Just(0xffffu16),
        Just(0x7fff),
        (1u16..4, any::<bool>()).prop_map(|(base, full)| { base | u16::from(full) << 15 })
    ]
}

fn small_range(max: u16) -> impl Strategy<Value = (u16, u16)> {
    (0..max, 0..max).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn id_match() -> impl Strategy<Value = IdMatch> {
    prop_oneof![
        small_range(8).prop_map(|(a, b)| IdMatch::Range(a.into(), b.into())),
        (0u64..8, 1u64..8).prop_map(|(value, mask)| IdMatch::Masked { value, mask }),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let pkeys = option::of(vec(small_range(5), 1..3));
    let classes = option::of(vec(small_range(6), 1..3));
    let ids = option::weighted(0.4, vec(id_match(), 0..3));
    (0u32..4, pkeys, classes, ids).prop_map(|(level, pkeys, qos_classes, service_ids)| Rule {
        level,
        pkeys,
        qos_classes,
        service_ids,
    })
}

fn world() -> impl Strategy<Value = World> {
    let level = (option::of(0u8..4), option::weighted(0.3, small_range(4)));
    let gone = option::weighted(0.3, 1..=HOSTS).prop_map(|gone| gone.into_iter().collect());
    let names = (gone, vec(option::of(1..=HOSTS), 3), prop::bool::weighted(0.3));
    (
        names,
        vec(vec(pkey(), 1..4), usize::from(HOSTS)),
        vec((0..CHAIN.switches, 1..=HOSTS + CHAIN.switches), 0..3),
        vec(0..CHAIN.switches - 1, 0..2),
        any::<bool>(),
        vec(rule(), 0..4),
        vec(level, 4),
    )
        .prop_map(|((gone, aliases, has_lmc), pkeys, cuts, narrow, qos, rules, levels)| {
            World { gone, aliases, has_lmc, pkeys, cuts, narrow, qos, rules, levels }
        })
}

impl World {
    fn plane(&self) -> FabricPlane {
        let mut plane = CHAIN.plane(|port| {
            let host = (1..=HOSTS).find(|&lid| Chain::host_guid(lid) == port.guid);
            if let Some(host) = host.filter(|_| port.num.0 == 1) {
                let pkeys = self.pkeys[usize::from(host) - 1].iter().map(|&pkey| PKey(pkey));
                port.pkeys = pkeys.collect();
            }
            let switch = (0..CHAIN.switches).find(|&switch| switch_guid(switch) == port.guid);
            let link = switch.and_then(|switch| match port.num.0 {
                RIGHT => Some(switch),
                LEFT => switch.checked_sub(1),
                _ => None,
            });
            if link.is_some_and(|link| self.narrow.contains(&link)) {
                PortInfo::new(&mut port.info[..]).unwrap().set_mtu_cap(Mtu::B1024);
            }
        });
        for &(switch, lid) in &self.cuts {
            let lft = &plane.lfts[usize::from(switch)];
            let mut ports = lft.ports.to_vec();
            ports[usize::from(lid)] = Lft::NO_ROUTE;
            let lft = Lft { switch: lft.switch, ports: ports.into() };
            plane.lfts[usize::from(switch)] = Arc::new(lft);
        }
        let is_gone = |guid: Guid| self.gone.iter().any(|&lid| Chain::host_guid(lid) == guid);
        plane.nodes.retain(|node| !node.ports.iter().any(|port| is_gone(port.guid)));
        if self.has_lmc {
            double_lids(&mut plane);
        }
        plane.subnet.qos = self.qos;
        let level = |(index, &(sl, pkeys)): (usize, &Level)| QosLevel {
            index: index as u32,
            name: format!("level {index}"),
            sl: sl.map(|sl| Sl::from_low_bits(sl.into())),
            mtu_limit: None,
            rate_limit: None,
            packet_life: None,
            pkeys: pkeys.into_iter().collect(),
        };
        plane.qos_levels = self.levels.iter().enumerate().map(level).map(Arc::new).collect();
        let rule = |(index, rule): (usize, &Rule)| QosRule {
            index: index as u32,
            name: format!("rule {index}"),
            origin: RuleOrigin::MatchRule,
            level: rule.level,
            sources: None,
            destinations: None,
            pkeys: rule.pkeys.clone(),
            qos_classes: rule.qos_classes.clone(),
            service_ids: rule.service_ids.clone(),
        };
        plane.qos_rules = self.rules.iter().enumerate().map(rule).map(Arc::new).collect();
        plane
    }

    fn registry(&self) -> RegistryPlane {
        let row = |(number, host): (usize, &Option<u16>)| {
            let port_guid = Chain::host_guid((*host)?);
            let (alias, index) = (alias_guid(number), number as u8 + 1);
            Some(Arc::new(AliasGuid { alias, port_guid, index }))
        };
        let alias_guids = self.aliases.iter().enumerate().filter_map(row).collect();
        RegistryPlane { alias_guids, ..RegistryPlane::default() }
    }

    /// Base LID of a host.
    fn lid(&self, host: u16) -> u16 {
        if self.has_lmc { 2 * host } else { host }
    }

    fn generation(&self, number: u64) -> Arc<Generation> {
        let registry = self.registry();
        let tables = Arc::new(Tables::build(&self.plane(), &registry));
        let version = Version { fabric_generation: number, ..Version::OFFLINE };
        Arc::new(Generation::new(version, tables, Arc::new(registry)))
    }
}

/// Gives each host two LIDs.
fn double_lids(plane: &mut FabricPlane) {
    for node in &mut plane.nodes {
        let node = Arc::make_mut(node);
        let is_host = node.switch_info.is_none();
        for port in &mut node.ports {
            let mut info = PortInfo::new(&mut port.info[..]).unwrap();
            let lid = info.base_lid().0;
            info.set_base_lid(Lid(2 * lid)).set_lmc(u8::from(is_host && lid != 0));
        }
    }
    for lft in &mut plane.lfts {
        let mut ports = vec![Lft::NO_ROUTE; 2 * lft.ports.len()];
        for (lid, &port) in lft.ports.iter().enumerate() {
            (ports[2 * lid], ports[2 * lid + 1]) = (port, port);
        }
        *lft = Arc::new(Lft { switch: lft.switch, ports: ports.into() });
    }
}

/// A request as a host's kernel may send it.
#[derive(Clone, Debug)]
struct Ask {
    path_use: PathUse,
    prefixes: (u64, u64),
    to: u16,
    pkey: Option<u16>,
    service_id: Option<u64>,
    qos_class: Option<u16>,
    tclass: Option<u8>,
}

fn ask() -> impl Strategy<Value = Ask> {
    let path_use = prop_oneof![Just(PathUse::Reversible), Just(PathUse::Unidirectional)];
    let prefix =
        || prop_oneof![9 => Just(SUBNET_PREFIX_DEFAULT), 1 => Just(0xFE81 << 48), 1 => 1u64..4];
    (
        path_use,
        (prefix(), prefix()),
        1..=HOSTS + CHAIN.switches + 4,
        option::weighted(0.95, pkey()),
        option::of(0u64..20),
        option::of(0u16..9),
        option::of(any::<u8>()),
    )
        .prop_map(|(path_use, prefixes, to, pkey, service_id, qos_class, tclass)| Ask {
            path_use,
            prefixes,
            to,
            pkey,
            service_id,
            qos_class,
            tclass,
        })
}

impl Ask {
    fn request(&self, from: u16) -> Request<'static> {
        // Behind the hosts come the switches, then a GUID that is nowhere, then aliases.
        const NOWHERE: u16 = HOSTS + CHAIN.switches + 1;
        let to = match self.to {
            to if to <= HOSTS => Chain::host_guid(to),
            to if to <= NOWHERE => switch_guid(to - HOSTS - 1),
            to => alias_guid(usize::from(to - NOWHERE - 1)),
        };
        Request {
            device: b"mlx5_0",
            port: 1,
            path_use: self.path_use,
            service_id: self.service_id,
            dgid: Some(Gid::new(self.prefixes.1, to)),
            sgid: Some(Gid::new(self.prefixes.0, Chain::host_guid(from))),
            pkey: self.pkey.map(PKey),
            qos_class: self.qos_class,
            tclass: self.tclass,
        }
    }

    /// The query that the kernel sends if the agent does not answer.
    fn query(&self, from: u16, lid: u16) -> Packet {
        let asked = self.request(from);
        let mut mask = path::DGID | path::SGID | path::NUMB_PATH | path::REVERSIBLE;
        let mut add = |component: ComponentMask, is_there: bool| {
            if is_there {
                mask |= component;
            }
        };
        add(path::SERVICE_ID, asked.service_id.is_some());
        add(path::PKEY, asked.pkey.is_some());
        add(path::QOS_CLASS, asked.qos_class.is_some());
        add(path::TCLASS, asked.tclass.is_some());
        let mut packet = request(lid, Method::GET, attribute::PATH_RECORD, 1, mask);
        PathRecord::new(&mut packet.mad[56..])
            .unwrap()
            .set_dgid(asked.dgid.unwrap())
            .set_sgid(asked.sgid.unwrap())
            .set_numb_path(1)
            .set_reversible(self.path_use == PathUse::Reversible)
            .set_service_id(asked.service_id.unwrap_or_default())
            .set_pkey(asked.pkey.unwrap_or_default())
            .set_qos_class(asked.qos_class.unwrap_or_default())
            .set_tclass(asked.tclass.unwrap_or_default());
        packet
    }
}

/// The responder's answer.
fn answer(responder: &mut Responder, mut packet: Packet) -> Result<[u8; 64], Status> {
    assert_eq!(responder.handle(&mut packet, Instant::now()), Outcome::Send);
    let mad = SaMad::new(&packet.mad);
    match mad.header().status() {
        Status::OK => Ok(*mad.data().first_chunk().unwrap()),
        status => Err(status),
    }
}

/// The manager was asked when the agent connected.
fn confirm(message: &mut proto::Update) {
    if let Some(proto::update::Kind::Current(current)) = &mut message.kind {
        let confirmation = proto::Confirmation { ping: Pings::FIRST, after_ms: 0 };
        current.confirmation = Some(confirmation);
    }
}

/// Messages as they arrive.
fn deliver<'a>(
    host: &mut Host,
    now: Instant,
    messages: impl IntoIterator<Item = &'a proto::Update>,
) {
    for message in messages {
        let bytes = message.encode_to_vec();
        assert!(bytes.len() <= CHANGES_LEN_MAX + 64);
        let mut message = proto::Update::decode(&bytes[..]).unwrap();
        confirm(&mut message);
        host.port_mut(0).unwrap().handle_update(now, message).unwrap();
    }
}

fn new_host(now: Instant, lid: u16) -> Host {
    let name = Name { device: "mlx5_0".into(), port: 1 };
    let mut host = Host::new(vec![(name, Port::new(Chain::host_guid(lid)))]);
    host.port_mut(0).unwrap().handle_connected(now, now);
    host
}

fn lost(host: &Host, reason: Reason) -> u64 {
    host.counters().left[reason as usize]
}

/// A responder with its agents, without connections.
#[derive(Default)]
struct Relay {
    halves: Halves,
    tables: Option<Arc<Tables>>,
    number: u64,
}

impl Relay {
    fn publish(&mut self, generation: &Generation) {
        self.number = self.halves.advance(self.tables.as_deref(), Some(&generation.tables));
        self.tables = Some(Arc::clone(&generation.tables));
    }

    /// The messages for one agent; those of each group are found once.
    fn messages(
        &self,
        generation: &Generation,
        follower: &mut Follower,
        leads: &mut HashMap<GroupKey, Lead>,
    ) -> Option<Messages> {
        if follower.is_current(self.number) {
            return None;
        }
        let lead = leads
            .entry(follower.group(generation))
            .or_insert_with(|| follower.lead(&self.halves, generation, self.number));
        Some(follower.follow(generation, lead))
    }
}

fn update(relay: &mut Relay, follower: &mut Follower, generation: &Generation) -> Messages {
    relay.publish(generation);
    follower.update(&relay.halves, generation, relay.number)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The agents of all hosts, each of which gets what its switch's agents get once.
    #[test]
    fn agents_answer_as_the_responder_or_not_at_all(
        worlds in vec(world(), 1..4),
        small in vec((vec(0..CHAIN.switches - 1, 0..2), any::<bool>()), 0..4),
        asks in vec(ask(), 15),
    ) {
        let now = Instant::now();
        let mut agents: Vec<(Host, Follower)> = (1..=HOSTS)
            .map(|lid| (new_host(now, lid), Follower::new(Chain::host_guid(lid))))
            .collect();
        let mut publisher = Publisher::new();
        let config = ResponderConfig::default();
        let mut responder = Responder::new(publisher.reader(), config, Arc::default());
        let mut relay = Relay::default();
        let steps = worlds.iter().flat_map(|world| {
            // Changes of routes alone, in a fabric with all paths.
            let whole = |narrow: &Vec<u16>| World {
                narrow: narrow.clone(),
                cuts: Vec::new(),
                ..world.clone()
            };
            let small = small.iter().filter(|(_, is_there)| *is_there);
            [world.clone()].into_iter().chain(small.map(move |(narrow, _)| whole(narrow)))
        });
        for (world, number) in steps.zip(1..) {
            let generation = world.generation(number);
            publisher.publish(Arc::clone(&generation));
            relay.publish(&generation);
            let mut leads = HashMap::new();
            for ((host, follower), lid) in agents.iter_mut().zip(1..) {
                if let Some(messages) = relay.messages(&generation, follower, &mut leads) {
                    deliver(host, now, messages.iter());
                }
                for ask in &asks {
                    let request = ask.request(lid);
                    let no_path = lost(host, Reason::NoPath);
                    let mut answers = Vec::new();
                    host.answer(now, &kernel::request(7, &request), &mut answers);
                    let taken = kernel::take(&answers, ask.path_use);
                    prop_assert_eq!(taken.len(), 1);
                    if world.gone.contains(&lid) {
                        prop_assert_eq!(taken[0].1, Taken::AsksSa);
                        continue;
                    }
                    let expected = answer(&mut responder, ask.query(lid, world.lid(lid)));
                    match taken[0].1 {
                        Taken::Path(record) => {
                            prop_assert_eq!(Ok(record), expected, "{} {:?}", lid, ask);
                        }
                        Taken::AsksSa if lost(host, Reason::NoPath) > no_path => {
                            // With one LID a port there is no other path.
                            let is_right = expected.is_err() || world.has_lmc;
                            prop_assert!(is_right, "{} {:?}: {:?}", lid, ask, expected);
                        }
                        Taken::AsksSa => {}
                        Taken::Fails => prop_assert!(false, "the query would fail"),
                    }
                }
            }
        }
    }
}

#[test]
fn a_change_is_found_once_for_a_switch_and_not_at_all_where_it_changes_nothing() {
    let mut relay = Relay::default();
    let mut followers: Vec<Follower> =
        (1..=HOSTS).map(|lid| Follower::new(Chain::host_guid(lid))).collect();
    let mut world = plain_world();
    let mut step = |world: &World, number| {
        let generation = world.generation(number);
        relay.publish(&generation);
        let mut leads = HashMap::new();
        let messages: Vec<_> = followers
            .iter_mut()
            .map(|follower| relay.messages(&generation, follower, &mut leads))
            .collect();
        let of_group: Vec<usize> = messages.iter().map(|m| usize::from(m.is_some())).collect();
        (leads.len(), of_group)
    };
    assert_eq!(step(&world, 1), (3, vec![1; 9]), "a half for each switch");
    assert_eq!(step(&world, 2), (0, vec![0; 9]), "nothing changed");
    // All paths between the first switch and the others have the lower MTU.
    world.narrow = vec![0];
    assert_eq!(step(&world, 3), (3, vec![1; 9]));
    // Then only those between the other two can get a lower one.
    world.narrow = vec![0, 1];
    assert_eq!(step(&world, 4), (2, vec![0, 0, 0, 1, 1, 1, 1, 1, 1]));
    world.pkeys[4] = vec![5];
    let (halves, concerned) = step(&world, 5);
    assert_eq!((halves, concerned), (4, vec![1; 9]), "host 5 is not like the others of its switch");
}

/// The path of a port to itself is not that of its neighbours to it.
#[test]
fn neighbours_share_messages_and_each_has_its_own_path_to_itself() {
    let now = Instant::now();
    let generation = plain_world().generation(1);
    let mut relay = Relay::default();
    relay.publish(&generation);
    let mut leads = HashMap::new();
    let mut halves = Vec::new();
    for lid in 1..=CHAIN.hosts_each {
        let (mut host, mut follower) = (new_host(now, lid), Follower::new(Chain::host_guid(lid)));
        let messages = relay.messages(&generation, &mut follower, &mut leads).unwrap();
        deliver(&mut host, now, messages.iter());
        halves.push(Arc::clone(follower.half().unwrap()));
        let own = Ask { to: lid, ..asks()[0].clone() };
        let mut answers = Vec::new();
        host.answer(now, &kernel::request(7, &own.request(lid)), &mut answers);
        let Taken::Path(record) = kernel::take(&answers, own.path_use)[0].1 else { panic!() };
        let view = PathRecord::of(&record);
        assert_eq!((view.slid().0, view.dlid().0), (lid, lid));
        assert_eq!(view.packet_life_time().code(), 0, "a loopback");
    }
    assert!(halves.iter().all(|half| Arc::ptr_eq(half, &halves[0])));
    assert_eq!(leads.len(), 1);
}

/// Whether a host's kernel is answered from memory for connections and for IPoIB.
fn asks() -> [Ask; 2] {
    let cm = Ask {
        path_use: PathUse::Reversible,
        prefixes: (SUBNET_PREFIX_DEFAULT, SUBNET_PREFIX_DEFAULT),
        to: 8,
        pkey: Some(0xffff),
        service_id: Some(0x0106_0000 + 4711),
        qos_class: Some(0),
        tclass: None,
    };
    let ipoib = Ask {
        path_use: PathUse::Unidirectional,
        service_id: None,
        qos_class: None,
        tclass: Some(0),
        ..cm.clone()
    };
    [cm, ipoib]
}

fn plain_world() -> World {
    World {
        gone: Vec::new(),
        aliases: vec![None; 3],
        has_lmc: false,
        pkeys: vec![vec![0xffff]; usize::from(HOSTS)],
        cuts: Vec::new(),
        narrow: Vec::new(),
        qos: false,
        rules: Vec::new(),
        levels: vec![(None, None); 4],
    }
}

fn is_answered(host: &mut Host, now: Instant, ask: &Ask) -> bool {
    let mut answers = Vec::new();
    host.answer(now, &kernel::request(7, &ask.request(OWN)), &mut answers);
    matches!(kernel::take(&answers, ask.path_use)[0].1, Taken::Path(_))
}

#[test]
fn connections_and_ipoib_are_answered_also_where_a_policy_names_other_services() {
    let now = Instant::now();
    let mut world = plain_world();
    for rules in [false, true] {
        if rules {
            world.qos = true;
            let none = Rule { level: 0, pkeys: None, qos_classes: None, service_ids: None };
            let ids = Some(vec![IdMatch::Range(1, 100)]);
            let of_service = Rule { service_ids: ids, ..none.clone() };
            world.rules = vec![of_service, Rule { qos_classes: Some(vec![(3, 3)]), ..none }];
        }
        let (mut host, mut follower) = (new_host(now, OWN), Follower::new(Chain::host_guid(OWN)));
        let generation = world.generation(1);
        let messages = update(&mut Relay::default(), &mut follower, &generation);
        deliver(&mut host, now, messages.iter());
        for ask in asks() {
            assert!(is_answered(&mut host, now, &ask), "{ask:?}, rules: {rules}");
        }
        let of_rule = Ask { service_id: Some(50), ..asks()[0].clone() };
        assert_eq!(is_answered(&mut host, now, &of_rule), !rules);
    }
}

#[test]
fn only_what_changed_is_sent() {
    let mut world = plain_world();
    let mut follower = Follower::new(Chain::host_guid(OWN));
    let mut relay = Relay::default();
    let own = Chain::host_guid(OWN).0;
    // Without the path of the port to itself.
    let mut sent = |world: &World, number| {
        let messages = update(&mut relay, &mut follower, &world.generation(number));
        let kinds = messages.iter().filter_map(|message| message.kind.clone());
        let changes = kinds.filter_map(|kind| match kind {
            proto::update::Kind::Changes(changes) => Some(changes.destinations),
            _ => None,
        });
        let of_others = |guid: &u64| *guid != own;
        changes.flatten().filter(of_others).collect::<Vec<u64>>()
    };
    let others = usize::from(HOSTS + CHAIN.switches) - 1;
    assert_eq!(sent(&world, 1).len(), others);
    assert_eq!(sent(&world, 2), Vec::<u64>::new());
    // The switch of the agent's host loses its route to host 8.
    world.cuts = vec![(0, 8)];
    assert_eq!(sent(&world, 3), [Chain::host_guid(8).0]);
    world.pkeys[4] = vec![5];
    assert_eq!(sent(&world, 4), [Chain::host_guid(5).0]);
    assert_eq!(sent(&plain_world(), 5), [Chain::host_guid(5).0, Chain::host_guid(8).0]);
}

#[test]
fn a_port_that_the_fabric_does_not_have_is_known_as_such() {
    let now = Instant::now();
    let nowhere = Guid(0x99);
    let mut follower = Follower::new(nowhere);
    let generation = plain_world().generation(1);
    let messages = update(&mut Relay::default(), &mut follower, &generation);
    let mut port = Port::new(nowhere);
    port.handle_connected(now, now);
    for message in messages.iter() {
        let mut message = message.clone();
        confirm(&mut message);
        port.handle_update(now, message).unwrap();
    }
    assert!(!port.is_fresh(now) && port.is_confirmed(now) && !port.is_served(now));
    assert!(port.table().is_empty());
}

/// Regression: paths of a port to its own GUIDs stayed in the agent's table when the GUIDs were
/// gone and no port like it was left to show how others saw them. Its number of records was then
/// not the responder's, and it connected again and got all paths.
#[test]
fn own_guids_that_are_gone_leave_the_table() {
    let now = Instant::now();
    let unlike_others = World {
        pkeys: (0..HOSTS).map(|host| vec![0xffff, 0x8001 + host]).collect(),
        ..plain_world()
    };
    for base in [plain_world(), unlike_others, World { has_lmc: true, ..plain_world() }] {
        let (mut host, mut follower) = (new_host(now, OWN), Follower::new(Chain::host_guid(OWN)));
        let mut relay = Relay::default();
        let with = |aliases: [u16; 3]| {
            let aliases = aliases.map(|host| Some(host).filter(|host| *host > 0)).to_vec();
            World { aliases, ..base.clone() }
        };
        let steps = [
            with([OWN, OWN, 7]),
            with([OWN, 0, 7]),
            // One goes to a neighbour, another one comes from elsewhere.
            with([OWN + 1, 0, OWN]),
            with([0, 0, OWN]),
            World { gone: vec![OWN], ..with([0, 0, OWN]) },
            with([OWN, OWN, OWN]),
            World { gone: vec![OWN], ..with([7, 0, 0]) },
        ];
        for (world, number) in steps.iter().zip(1..) {
            let generation = world.generation(number);
            let messages = update(&mut relay, &mut follower, &generation);
            deliver(&mut host, now, messages.iter());
            let port = &host.ports()[0].1;
            let is_there = world.gone.is_empty();
            assert_eq!(port.is_fresh(now), is_there, "{number}");
            let own = port.table().find(Chain::host_guid(OWN), PKey(0xffff)).is_some();
            assert_eq!(own, is_there, "{number}");
            let mut aliases = world.aliases.iter().enumerate();
            let is_right = aliases.all(|(at, owner)| {
                let is_found = port.table().find(alias_guid(at), PKey(0xffff)).is_some();
                is_found == (is_there && owner.is_some())
            });
            assert!(is_right, "{number}");
        }
    }
}

/// Regression: all paths from all switches with agents were looked at after each join of a group,
/// and found again in a fabric where some ports have no path.
#[test]
fn a_change_of_multicast_concerns_no_agent() {
    let world = World { cuts: vec![(0, 8)], pkeys: vec![vec![0xffff, 3]; 9], ..plain_world() };
    let world =
        World { pkeys: [vec![vec![0xffff, 4]], world.pkeys[1..].to_vec()].concat(), ..world };
    let generation = world.generation(1);
    let mut relay = Relay::default();
    let mut followers = [1, 2, 5].map(|lid| Follower::new(Chain::host_guid(lid)));
    relay.publish(&generation);
    for follower in &mut followers {
        assert!(relay.messages(&generation, follower, &mut HashMap::new()).is_some());
    }
    let mft = Mft { switch: switch_guid(1), blocks: Vec::new() };
    let plane = FabricPlane { mfts: vec![Arc::new(mft)], ..world.plane() };
    let tables = Arc::new(generation.tables.with_multicast(&plane));
    let registry = Arc::new(world.registry());
    let version = Version { fabric_generation: 2, ..Version::OFFLINE };
    relay.publish(&Generation::new(version, tables, registry));
    assert!(followers.iter().all(|follower| follower.is_current(relay.number)));
}

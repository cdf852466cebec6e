//! Requests of every kind in a row, by structure: what clients register, what they ask, repeats,
//! restarts, leases that end and ports that go, against one registry and one responder in process.
//!
//! The registry's changes are applied to the responder's tables after each write, as an SM and its
//! responders do. Whatever comes: a refused write changes nothing, a repeat gets the answer of the
//! first, changes add up to the rows, what is restored is what was, queries find what a plain
//! reference finds, and every request is accounted for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ib_mad::rmpp::{Receiver, ReceiverConfig};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Qpn, Rate, Sl};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::record::mc_member::component as mc;
use ib_mad::wire::record::{McMemberRecord, components_of, layout_of, stride};
use ib_mad::wire::sa::{ComponentMask, SaMad, attribute};
use sa_proto::snapshot::{Partition, RegistryPlane, Version};
use sa_server::cell::{Generation, Publisher};
use sa_server::index::RegistryIndex;
use sa_server::responder::{Outcome as Sent, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sm_core::registry::{
    EndPort, Outcome, OutcomeKey, Ports, PredefinedGroup, Registry, Reply, Request, Requester,
};

use crate::common::SM_KEY;
use crate::oracle::world::World;
use crate::oracle::{self, Choices, records};

/// Most steps of one input; more would only take longer.
const STEPS_MAX: usize = 200;
/// Requests that may be repeated.
const REMEMBERED_MAX: usize = 16;
const RETRY_WINDOW_S: u64 = 10;
/// Attributes of requests that have no reference: path records, and what nobody serves.
const OTHERS: [AttributeId; 6] = [
    AttributeId::CLASS_PORT_INFO,
    attribute::PATH_RECORD,
    attribute::MULTI_PATH_RECORD,
    attribute::TRACE_RECORD,
    AttributeId::NOTICE,
    AttributeId(0x7777),
];
/// What a client says of a group that it joins.
const MEMBER: ComponentMask = mc::MGID
    .union(mc::PORT_GID)
    .union(mc::QKEY)
    .union(mc::TCLASS)
    .union(mc::PKEY)
    .union(mc::FLOW_LABEL)
    .union(mc::SL)
    .union(mc::SCOPE)
    .union(mc::JOIN_STATE);
/// Trap numbers, and what is none.
const TRAPS: [u16; 10] = [64, 65, 66, 67, 128, 144, 256, 259, 0xFFFF, 0];

/// An input, byte by byte; zeros once it has ended.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }
}

impl Choices for Script<'_> {
    fn below(&mut self, end: usize) -> usize {
        let drawn = match end {
            0..=256 => self.byte().into(),
            _ => usize::from(self.byte()) << 8 | usize::from(self.byte()),
        };
        drawn % end.max(1)
    }
}

/// The target.
pub fn run(input: &[u8]) {
    let mut script = Script(input);
    let mut bed = Bed::new(script.byte() % 8);
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        bed.step(&mut script);
        bed.check();
    }
    bed.silence();
}

/// A write that was answered.
struct Known {
    request: Request,
    reply: Reply,
    at_s: u64,
}

struct Bed {
    world: World,
    all_ports: Vec<EndPort>,
    /// Who writes, by position in `all_ports`.
    writer: usize,
    ports: Ports,
    registry: Registry,
    now_s: u64,
    /// What the store holds besides the rows.
    outcomes: HashMap<OutcomeKey, Outcome>,
    known: Vec<Known>,
    tid: u64,
    tables: Arc<Tables>,
    index: RegistryIndex,
    publisher: Publisher,
    responder: Responder,
    now: Instant,
}

impl Bed {
    fn new(seed: u8) -> Self {
        let mut world = World::new(seed.into());
        world.registry = RegistryPlane::default();
        let all_ports = end_ports(&world);
        let ports = ports(&world, all_ports.clone(), seed);
        let tables = Arc::new(Tables::build(&world.fabric, &world.registry));
        let publisher = Publisher::new();
        let responder = Responder::new(
            publisher.reader(),
            ResponderConfig::default(),
            Arc::new(Stats::default()),
        );
        let index = RegistryIndex::new(&world.registry);
        let mut bed = Self {
            world,
            all_ports,
            writer: 0,
            ports,
            registry: Registry::default(),
            now_s: 1_000_000,
            outcomes: HashMap::new(),
            known: Vec::new(),
            tid: 0,
            tables,
            index,
            publisher,
            responder,
            now: Instant::now(),
        };
        bed.publish(&RegistryPlane::default());
        bed
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.below(32) {
            0..=17 => self.write(script),
            18 | 19 => self.repeat(script),
            20..=25 => self.query(script),
            26 | 27 => self.noise(script),
            28 | 29 => {
                self.now_s += script.below(8) as u64;
                let now_s = self.now_s;
                self.change(|registry, _| registry.expire(now_s));
                let ends = self.world.registry.services.iter().filter_map(|row| row.expires_s);
                let ends = ends.min();
                assert!(ends.is_none_or(|end| end > now_s), "a lease that is over");
                let next = self.registry.next_expiry();
                assert!(ends.is_none_or(|end| next.is_some_and(|next| next <= end)));
            }
            30 => self.fabric(script),
            _ => self.restart(script),
        }
    }

    /// Some ports are gone, others back; the site's files name other groups, or others report.
    fn fabric(&mut self, script: &mut Script<'_>) {
        match script.below(3) {
            0 => {
                let gone = [script.byte(), script.byte()];
                let is_there = |number: usize| gone[number / 8 % 2] >> (number % 8) & 1 == 0;
                let all = self.all_ports.iter().enumerate();
                let there = all.filter(|(number, _)| *number == 0 || is_there(*number));
                let there = there.map(|(_, port)| port.clone()).collect();
                self.ports = ports(&self.world, there, 0);
                self.change(|registry, ports| registry.fabric_changed(ports));
            }
            1 => {
                let groups: Vec<_> = (0..script.below(3)).map(|n| predefined(n as u8)).collect();
                self.change(|registry, ports| registry.set_predefined(ports, &groups));
            }
            _ => {
                let responders: Vec<u64> = (1..=script.below(4) as u64).collect();
                self.change(|registry, _| registry.set_responders(&responders));
            }
        }
    }

    /// The SM dies; the next one reads what is stored.
    fn restart(&mut self, script: &mut Script<'_>) {
        let stored = self.world.registry.clone();
        let outcomes = self.outcomes.iter().map(|(key, outcome)| (*key, outcome.clone()));
        self.registry = Registry::restore(&stored, outcomes);
        // Refusals are remembered in memory alone.
        self.known.retain(|known| known.reply.status == Status::OK);
        let restored = self.registry.plane();
        assert_eq!(RegistryPlane { sequence: stored.sequence, ..restored }, stored);
        assert!(self.registry.sequence() >= stored.sequence);
        if script.chance(2) {
            self.change(|registry, ports| registry.fabric_changed(ports));
        }
    }

    fn write(&mut self, script: &mut Script<'_>) {
        self.writer = script.below(self.all_ports.len());
        let mad = self.any_write(script);
        let port = &self.all_ports[self.writer];
        let lid = port.lid.0 + script.below(1 << port.lmc) as u16;
        let requester = Requester {
            slid: if script.chance(30) { Lid(0xBEEF) } else { Lid(lid) },
            sgid: script.chance(8).then(|| Gid::new(self.world.fabric.subnet.prefix, port.guid)),
            qpn: Qpn(1 + script.below(3) as u32),
            sl: Sl::from_low_bits(script.below(3) as u16),
            pkey: PKey::DEFAULT_FULL,
        };
        // A responder that has no SM drops it, and says so.
        self.hand_over(&mad, requester.slid);
        let Ok(request) = Request::read(&mad, requester, SM_KEY) else { return };
        let reply = self.decide(&request);
        if !reply.dropped && request.method != Method::GET {
            self.known.truncate(REMEMBERED_MAX - 1);
            self.known.insert(0, Known { request, reply, at_s: self.now_s });
        }
    }

    /// A request that was answered is made again.
    fn repeat(&mut self, script: &mut Script<'_>) {
        if self.known.is_empty() {
            return;
        }
        let number = script.below(self.known.len());
        let request = self.known[number].request.clone();
        let before = self.world.registry.clone();
        let again = self.decide(&request);
        let known = &mut self.known[number];
        if known.at_s + RETRY_WINDOW_S >= self.now_s {
            let first = &known.reply;
            assert_eq!(
                (again.status, &again.data, again.dropped),
                (first.status, &first.data, false),
                "a repeat got another answer: {request:?}"
            );
            assert_eq!(before, self.world.registry, "a repeat changed something");
        } else if again.dropped {
            self.known.remove(number);
        } else {
            (known.reply, known.at_s) = (again, self.now_s);
        }
    }

    fn decide(&mut self, request: &Request) -> Reply {
        let (now_s, before) = (self.now_s, self.registry.plane());
        let reply = self.change(|registry, ports| registry.write(now_s, ports, request));
        assert_eq!(reply.sequence, self.registry.sequence());
        if reply.dropped || reply.status != Status::OK || request.method == Method::GET {
            assert_eq!(before, self.registry.plane(), "refused, and changed: {request:?}");
        }
        reply
    }

    /// Lets the registry change, and takes over what changed as store and responders do.
    fn change<T>(&mut self, act: impl FnOnce(&mut Registry, &Ports) -> T) -> T {
        let result = act(&mut self.registry, &self.ports);
        let changes = self.registry.take_changes();
        for (key, outcome) in &changes.outcomes_put {
            self.outcomes.insert(*key, outcome.clone());
        }
        self.outcomes.retain(|_, outcome| outcome.at_s >= changes.outcomes_since_s);
        while self.registry.poll_event().is_some() {}
        let old = self.world.registry.clone();
        self.world.registry.apply(&changes.rows);
        let now = self.registry.plane();
        assert_eq!(self.world.registry, now, "changes do not add up to the rows");
        assert!(now.sequence >= old.sequence);
        let moved = RegistryPlane { sequence: old.sequence, ..now } != old;
        assert!(!moved || self.world.registry.sequence > old.sequence);
        if moved {
            self.publish(&old);
        }
        result
    }

    fn publish(&mut self, old: &RegistryPlane) {
        let new = &self.world.registry;
        if old.alias_guids != new.alias_guids {
            self.tables = Arc::new(Tables::build(&self.world.fabric, new));
        }
        self.index = self.index.follow(old, new);
        let (version, tables) = (Version::NONE, Arc::clone(&self.tables));
        let (registry, index) = (Arc::new(new.clone()), self.index.clone());
        self.publisher.publish(Arc::new(Generation { version, tables, registry, index }));
        self.publisher.reclaim();
    }

    /// A write about ports, groups and records that there are, more or less.
    fn any_write(&mut self, script: &mut Script<'_>) -> [u8; MAD_LEN] {
        let id = script.one(&[
            attribute::MC_MEMBER_RECORD,
            attribute::MC_MEMBER_RECORD,
            attribute::SERVICE_RECORD,
            AttributeId::INFORM_INFO,
            attribute::GUID_INFO_RECORD,
            attribute::INFORM_INFO_RECORD,
        ]);
        let method = script.one(&[Method::SET, Method::SET, Method::DELETE, Method::GET]);
        let mut data = [0; 200];
        match id {
            attribute::MC_MEMBER_RECORD => self.member(script, &mut data),
            attribute::SERVICE_RECORD => self.service(script, &mut data),
            attribute::GUID_INFO_RECORD => self.alias(script, &mut data),
            _ => self.subscription(script, &mut data),
        }
        if !script.chance(3) {
            self.known_record(script, id, &mut data);
        }
        for _ in 0..script.below(12).saturating_sub(9) {
            data[script.below(180)] = script.byte();
        }
        let components = components_of(id);
        // What clients fill in, all, all but one, or a few.
        let mut mask = match id {
            attribute::MC_MEMBER_RECORD => MEMBER,
            attribute::SERVICE_RECORD => ComponentMask(0x37),
            attribute::GUID_INFO_RECORD => ComponentMask(3 | 0x660),
            _ => ComponentMask::NONE,
        };
        let all = components.iter().fold(mask, |all, component| all | component.1);
        match script.below(8) {
            0..=4 => {}
            5 => mask = all,
            6 if !components.is_empty() => {
                mask = ComponentMask(all.0 & !components[script.below(components.len())].1.0);
            }
            _ => {
                mask = ComponentMask::NONE;
                for _ in 0..script.below(6) {
                    mask |= components.get(script.below(components.len())).map_or(all, |c| c.1);
                }
            }
        }
        self.tid += 1;
        let mut mad = [0; MAD_LEN];
        let mut view = SaMad::new(&mut mad);
        view.write_request(method, id, self.tid, mask);
        view.sa_mut().set_sm_key(if script.chance(3) { SM_KEY } else { 0 });
        *view.data_mut() = data;
        mad
    }

    /// A record that is registered, by whom it belongs to more often than not.
    fn known_record(&mut self, script: &mut Script<'_>, id: AttributeId, data: &mut [u8; 200]) {
        let plane = &self.world.registry;
        let number = script.byte() as usize;
        let owner = match id {
            attribute::SERVICE_RECORD if !plane.services.is_empty() => {
                let row = plane.services.iter().nth(number % plane.services.len()).unwrap();
                data[..176].copy_from_slice(&row.record);
                row.rid.service_gid.guid()
            }
            attribute::MC_MEMBER_RECORD if !plane.members.is_empty() => {
                let row = plane.members.iter().nth(number % plane.members.len()).unwrap();
                let group = plane.groups.find(row.rid.mgid).expect("members are of groups");
                data[..52].copy_from_slice(&group.record);
                data[16..32].copy_from_slice(&row.rid.port_gid.0);
                data[48] |= if script.chance(3) { script.byte() & 0x0F } else { row.join_state };
                row.rid.port_gid.guid()
            }
            AttributeId::INFORM_INFO if !plane.subscriptions.is_empty() => {
                let count = plane.subscriptions.len();
                let row = plane.subscriptions.iter().nth(number % count).unwrap();
                data[..36].copy_from_slice(&row.inform_info);
                data[23] = script.below(2) as u8;
                row.rid.subscriber_gid.guid()
            }
            _ => return,
        };
        let owner = self.all_ports.iter().position(|port| port.guid == owner);
        if let Some(owner) = owner.filter(|_| !script.chance(4)) {
            self.writer = owner;
        }
    }

    fn gid(&self, script: &mut Script<'_>) -> Gid {
        let aliases = &self.world.registry.alias_guids;
        let guid = match script.below(16) {
            0 => Guid(script.byte().into()),
            1 => aliases.iter().next().map_or(Guid(0), |row| row.alias),
            2..=4 => self.all_ports[script.below(self.all_ports.len())].guid,
            _ => self.all_ports[self.writer].guid,
        };
        Gid::new(self.world.fabric.subnet.prefix, guid)
    }

    fn pkey(&self, script: &mut Script<'_>) -> PKey {
        let own = &self.all_ports[self.writer].pkeys;
        if !own.is_empty() && !script.chance(4) {
            return script.one(own);
        }
        PKey(script.one(&[0xFFFF, 0x7FFF, 1, 2, 0x8001, 0x8002, 0x8003, 0, 0x8009]))
    }

    fn member(&self, script: &mut Script<'_>, data: &mut [u8]) {
        let groups = &self.world.registry.groups;
        let known = groups.iter().nth(script.below(groups.len().max(1)));
        match known.filter(|_| !script.chance(4)) {
            Some(group) => data[..52].copy_from_slice(&group.record),
            None => {
                let (pkey, mgid) = (self.pkey(script), mgid(script));
                let (mtu, rate) = (script.below(7) as u8, script.below(20) as u8);
                McMemberRecord::new(&mut data[..52])
                    .unwrap()
                    .set_mgid(mgid)
                    .set_pkey(pkey)
                    .set_mlid(Lid(0xC000 + script.below(6) as u16))
                    .set_scope(script.one(&[2, 2, 5, 0xE]));
                data[38] = script.one(&[0x80, 0xC0, 0, 0x40]) | mtu;
                data[42] = script.one(&[0x80, 0xC0, 0, 0x40]) | rate;
            }
        }
        let gid = self.gid(script);
        data[16..32].copy_from_slice(&gid.0);
        data[48] = data[48] & 0xF0 | script.one(&[1u8, 1, 1, 1, 2, 4, 8, 3, 0xF, 0]);
    }

    fn service(&self, script: &mut Script<'_>, data: &mut [u8]) {
        data[7] = script.below(3) as u8;
        let (gid, pkey) = (self.gid(script), self.pkey(script));
        data[8..24].copy_from_slice(&gid.0);
        data[24..26].copy_from_slice(&pkey.0.to_be_bytes());
        let lease = script.one(&[u32::MAX, 0, 1, 3, 30]);
        data[28..32].copy_from_slice(&lease.to_be_bytes());
        data[32..48].fill(script.below(3) as u8);
        data[48] = script.below(3) as u8;
        data[112] = script.byte();
    }

    fn alias(&self, script: &mut Script<'_>, data: &mut [u8]) {
        let own = !script.chance(4);
        let number = if own { self.writer } else { script.below(self.all_ports.len()) };
        let port = &self.all_ports[number];
        data[..2].copy_from_slice(&port.lid.0.to_be_bytes());
        data[2] = script.below(4).saturating_sub(2) as u8;
        for entry in data[8..72].chunks_exact_mut(8) {
            let alias = match script.below(4) {
                0 => 0,
                1 => self.all_ports[0].guid.0,
                _ => 0xA110 + u64::from(script.byte() % 32),
            };
            entry.copy_from_slice(&alias.to_be_bytes());
        }
    }

    fn subscription(&self, script: &mut Script<'_>, data: &mut [u8]) {
        if script.chance(4) {
            let gid = self.gid(script);
            data[..16].copy_from_slice(&gid.0);
        }
        let lids =
            script.one(&[[0xFF, 0xFF, 0, 0], [0, 1, 0, 9], [0, 2, 0, 0], [0xBF, 0, 0xFF, 0]]);
        data[16..20].copy_from_slice(&lids);
        data[22] = script.one(&[1, 1, 1, 0]);
        data[23] = script.one(&[1, 1, 0, 2]);
        let kind = script.one(&[0xFFFF, 0, 1, 3u16]);
        data[24..26].copy_from_slice(&kind.to_be_bytes());
        data[26..28].copy_from_slice(&script.one(&TRAPS).to_be_bytes());
        data[30] = 1 + script.below(3) as u8;
        data[31] = script.byte() & 0x1F;
    }

    /// A query whose answer the reference knows.
    fn query(&mut self, script: &mut Script<'_>) {
        let id = script.one(&oracle::TYPES);
        let request = oracle::request(&self.world, script, id);
        let wanted = oracle::expected(&self.world, &request);
        let table = match &wanted {
            Ok(records) => (Status::OK, records.clone()),
            Err(status) => (*status, Vec::new()),
        };
        let single = match wanted {
            Ok(records) if records.is_empty() => (Status::SA_NO_RECORDS, records),
            Ok(records) if records.len() > 1 => (Status::SA_TOO_MANY_RECORDS, Vec::new()),
            other => other.map_or_else(|status| (status, Vec::new()), |found| (Status::OK, found)),
        };
        for (method, wanted) in [(Method::GET_TABLE, table), (Method::GET, single)] {
            let found = self.asked(&request, method);
            assert_eq!(
                found,
                wanted,
                "{method:?} {:?} mask {:?} trusted {} from {} about {:02x?}",
                attribute::name(id),
                request.mask,
                request.trusted,
                request.requester,
                &request.bytes[..layout_of(id).unwrap().len],
            );
        }
    }

    /// Status, and records sorted, as the responder answers.
    fn asked(&mut self, request: &oracle::Request, method: Method) -> (Status, Vec<Vec<u8>>) {
        self.tid += 1;
        let mut mad = [0; MAD_LEN];
        let mut view = SaMad::new(&mut mad);
        view.write_request(method, request.id, self.tid, request.mask);
        view.sa_mut().set_sm_key(if request.trusted { SM_KEY } else { 0 });
        view.data_mut().copy_from_slice(&request.bytes);
        let lids = records::end_port(&self.world, request.requester).unwrap().lids;
        let answer = self.hand_over(&mad, Lid(lids.start as u16)).expect("queries are answered");
        let status = Status(u16::from_be_bytes([answer[4], answer[5]]));
        let len = layout_of(request.id).unwrap().len;
        let mut records: Vec<Vec<u8>> = match (status, method) {
            (Status::OK, Method::GET) => vec![answer[56..56 + len].to_vec()],
            (Status::OK, _) => {
                let records = answer[56..].chunks_exact(stride(len));
                records.map(|record| record[..len].to_vec()).collect()
            }
            _ => Vec::new(),
        };
        records.sort();
        (status, records)
    }

    /// What has no reference here: only answered or accounted for.
    fn noise(&mut self, script: &mut Script<'_>) {
        let method = script.one(&[Method::GET, Method::GET_TABLE, Method::GET_MULTI, Method::SET]);
        let id = script.one(&OTHERS);
        let mut mask = ComponentMask::NONE;
        for _ in 0..script.below(5) {
            mask |= ComponentMask::component(script.below(30) as u32);
        }
        self.tid += 1;
        let mut mad = [0; MAD_LEN];
        SaMad::new(&mut mad).write_request(method, id, self.tid, mask);
        // Where PathRecord has its GIDs.
        let (one, other) = (self.gid(script), self.gid(script));
        mad[56 + 8..56 + 24].copy_from_slice(&one.0);
        mad[56 + 24..56 + 40].copy_from_slice(&other.0);
        for _ in 0..script.below(8) {
            mad[script.below(256)] = script.byte();
        }
        let lid = Lid(script.below(40) as u16);
        self.hand_over(&mad, lid);
    }

    /// Gives the responder a request, and what it sends back a client; the whole answer.
    fn hand_over(&mut self, mad: &[u8; MAD_LEN], lid: Lid) -> Option<Vec<u8>> {
        let (mut inbox, mut receiver, mut answer) = (vec![*mad], None::<Receiver>, None);
        while let Some(mad) = inbox.pop() {
            let mut packet = Packet { mad, address: Address { lid, ..Address::default() } };
            let mut sent = Vec::new();
            if self.responder.handle(&mut packet, self.now) == Sent::Send {
                sent.push(packet.clone());
            }
            while self.responder.poll_transmit(self.now, &mut packet) {
                sent.push(packet.clone());
            }
            for packet in sent {
                assert_eq!(packet.address.lid, lid, "an answer went to somebody else");
                let is_data = packet.mad[26] & 1 == 1 && packet.mad[25] == 1;
                if !is_data {
                    answer = Some(packet.mad.to_vec());
                    continue;
                }
                match &mut receiver {
                    None => {
                        let config = ReceiverConfig::default();
                        receiver = Receiver::start(self.now, &packet.mad, config).ok();
                    }
                    Some(receiver) => receiver.handle_packet(self.now, &packet.mad),
                }
                let Some(receiver) = &mut receiver else { continue };
                while let Some(transmit) = receiver.poll_transmit() {
                    let mut ack = [0; MAD_LEN];
                    transmit.write(receiver.header(), &[], &mut ack);
                    inbox.push(ack);
                }
                answer = receiver.take_message().or(answer);
            }
        }
        answer
    }

    /// What holds after every step.
    fn check(&self) {
        let plane = &self.world.registry;
        for row in plane.members.iter() {
            assert!(plane.groups.find(row.rid.mgid).is_some(), "a member of no group: {row:?}");
            assert!(row.join_state & 0x0F != 0 && row.join_state & 0xF0 == 0, "{row:?}");
        }
        let keeps = |mgid| {
            plane.members.iter().any(|row| row.rid.mgid == mgid && row.join_state & 0b1001 != 0)
        };
        for row in plane.groups.iter() {
            assert!(row.predefined || keeps(row.mgid), "nobody keeps {row:?}");
            let mlid = McMemberRecord::new(&row.record[..]).unwrap().mlid();
            assert!(mlid >= Lid::MULTICAST_FIRST && mlid <= self.ports.mlid_last, "{row:?}");
        }
        let mut places = BTreeMap::new();
        for row in plane.alias_guids.iter() {
            let port = self.ports.by_guid(row.port_guid);
            let port = port.unwrap_or_else(|| panic!("an alias of nobody: {row:?}"));
            assert!(row.index > 0 && row.index < port.guid_cap, "{row:?}");
            let other = places.insert((row.port_guid, row.index), row.alias);
            assert_eq!(other, None, "two in one place");
        }
        let mut subscriptions = BTreeMap::new();
        for row in plane.subscriptions.iter() {
            let mut info = row.inform_info;
            // How long a report may take is not part of what it is for.
            info[31] = 0;
            let port = row.rid.subscriber_gid.guid();
            assert!(self.ports.by_guid(port).is_some(), "nobody listens: {row:?}");
            let other = subscriptions.insert((port, row.qpn, info), row.rid.enumeration);
            assert_eq!(other, None, "a subscription twice: {row:?}");
        }
        assert!(self.responder.stats().balances(), "a request is not accounted for");
    }

    /// Nobody says anything any more.
    fn silence(&mut self) {
        let mut packet = Packet::default();
        for _ in 0..1000 {
            let Some(due) = self.responder.poll_timeout() else { break };
            self.now = due.max(self.now + Duration::from_millis(1));
            self.responder.handle_timeout(self.now);
            while self.responder.poll_transmit(self.now, &mut packet) {}
        }
        assert_eq!(self.responder.stats().in_flight(), 0);
        assert!(self.responder.stats().balances());
    }
}

/// MGIDs of each kind, few of each.
fn mgid(script: &mut Script<'_>) -> Gid {
    let mut mgid = [0; 16];
    mgid[..6].copy_from_slice(&script.one(&[
        [0; 6],
        [0xFF, 0x12, 0, 0, 0, 0],
        [0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF],
        [0xFF, 0x12, 0x60, 0x1B, 0x80, 0x01],
        [0xFF, 0x12, 0xA0, 0x1B, 0xFE, 0x80],
        [0xFF, 0x32, 0, 0, 0, 0],
        [0xFE, 0x80, 0, 0, 0, 0],
    ]));
    if mgid[0] != 0 {
        mgid[12..].fill(script.one(&[0xFF, 1, 2]));
    }
    Gid(mgid)
}

fn predefined(number: u8) -> PredefinedGroup {
    let mut mgid = [0; 16];
    (mgid[0], mgid[1], mgid[15]) = (0xFF, 0x12, number + 1);
    let mut record = [0; 52];
    McMemberRecord::new(&mut record[..])
        .unwrap()
        .set_mgid(Gid(mgid))
        .set_qkey(0xB1B)
        .set_mtu(Mtu::B2048)
        .set_rate(Rate::Gbps10)
        .set_scope(2)
        .set_pkey(PKey(0x8001));
    PredefinedGroup { record }
}

fn ports(world: &World, ports: Vec<EndPort>, seed: u8) -> Ports {
    let sm = ports[0].guid;
    let mut ports = Ports::new(world.fabric.subnet.prefix, sm, ports);
    // So few that they are shared, or run out.
    ports.mlid_last = Lid(0xC003);
    ports.partitions = Vec::<Partition>::new();
    ports.settings.retry_window_s = RETRY_WINDOW_S;
    ports.settings.consolidate_ipv6_snm_req = seed & 1 != 0;
    ports.settings.share_mlids = seed & 2 == 0;
    ports.settings.records_max = if seed & 4 == 0 { 1 << 20 } else { 12 };
    ports
}

/// The end ports of a world, hosts and switches.
fn end_ports(world: &World) -> Vec<EndPort> {
    let nodes = world.fabric.nodes.iter();
    nodes
        .map(|node| {
            let port = &node.ports[0];
            let info = PortInfo::new(&port.info[..]).unwrap();
            let kind = NodeInfo::new(&node.info[..]).unwrap().node_type();
            EndPort {
                guid: port.guid,
                lid: info.base_lid(),
                lmc: if node.switch_info.is_some() { 0 } else { info.lmc() },
                mtu: Mtu::B2048,
                rate: Rate::Gbps40,
                pkeys: port.pkeys.iter().copied().filter(|key| key.is_valid()).collect(),
                node_type: NodeType::from_code(kind).unwrap_or(NodeType::Ca),
                guid_cap: info.guid_cap(),
                active: true,
            }
        })
        .collect()
}

/// One step of each kind many times over, and nothing in particular.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..32).map(|len| (0..len * 64).map(|_| byte()).collect()).collect()
}

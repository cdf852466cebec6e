//! Replays recorded conversations: reads a golden file, builds the snapshot of its fabric, and
//! carries each request through a responder as a client would, RMPP included.
//!
//! The fabric's links, GUIDs and LIDs are those of the file's facts, its forwarding tables minimum
//! hop ones of our own making. What the ports and nodes say of themselves was in the simulator; it
//! is read from the file's unfiltered dumps.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod compare;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flate2::read::GzDecoder;
use ib_mad::rmpp::{Receiver, ReceiverConfig};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, Guid, Lid, Lifetime, PKey, PortNum, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::record::McMemberRecord;
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{
    AliasGuid, FabricPlane, Lft, MulticastGroup, MulticastMember, MulticastMemberRid, Node, Port,
    RegistryPlane, Subnet, Version,
};
use sa_server::cell::{Generation, Publisher};
use sa_server::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use serde::Deserialize;

/// A golden file.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) sm_key: u64,
    pub(crate) facts: Facts,
    pub(crate) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(crate) struct Facts {
    pub(crate) sm_lid: u16,
    pub(crate) roles: HashMap<String, Role>,
    pub(crate) fabric: FabricFacts,
}

#[derive(Deserialize)]
pub(crate) struct Role {
    pub(crate) guid: String,
}

#[derive(Deserialize)]
pub(crate) struct FabricFacts {
    pub(crate) ports: Vec<PortFacts>,
    /// Node GUID and port, twice.
    pub(crate) links: Vec<(String, u8, String, u8)>,
}

#[derive(Deserialize)]
pub(crate) struct PortFacts {
    pub(crate) guid: String,
    pub(crate) node_guid: String,
    pub(crate) lid: u16,
}

/// A request and what came of it.
#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) client: String,
    #[serde(default)]
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) attr_id: String,
    #[serde(default)]
    pub(crate) request: Vec<String>,
    #[serde(default)]
    pub(crate) outcome: String,
    #[serde(default)]
    pub(crate) status: Option<String>,
    #[serde(default)]
    pub(crate) rmpp_status: Option<u8>,
    #[serde(default)]
    pub(crate) answer: Option<String>,
}

impl Golden {
    pub(crate) fn read(path: &Path) -> Self {
        let file = std::fs::File::open(path).expect("golden file");
        let mut text = String::new();
        GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
        serde_json::from_str(&text).expect("golden format")
    }

    /// The records of a case's answer.
    pub(crate) fn dump(&self, id: &str) -> Vec<Vec<u8>> {
        let case = self.cases.iter().find(|case| case.id == id).expect("the dump is in the file");
        let answer = bytes(case.answer.as_ref().expect("the dump was answered"));
        let stride = usize::from(u16::from_be_bytes([answer[44], answer[45]])) * 8;
        answer[56..].chunks_exact(stride).map(<[u8]>::to_vec).collect()
    }

    pub(crate) fn lid_of(&self, role: &str) -> Lid {
        let guid = &self.facts.roles[role].guid;
        let port = self.facts.fabric.ports.iter().find(|port| port.guid == *guid);
        Lid(port.expect("roles are ports").lid)
    }

    /// The fabric while all links but those of `without` (a node GUID) were up. `keys` tells the
    /// P_Key table of a port, by LID and number.
    pub(crate) fn fabric(
        &self,
        without: Option<Guid>,
        keys: impl Fn(u16, u8) -> Vec<PKey>,
    ) -> FabricPlane {
        let facts = &self.facts.fabric;
        let mut infos: BTreeMap<(u16, u8), Vec<u8>> = BTreeMap::new();
        for record in self.dump("portinfo/all/trusted") {
            let lid = u16::from_be_bytes([record[0], record[1]]);
            infos.insert((lid, record[2]), record[4..68].to_vec());
        }
        let mut nodes: BTreeMap<Guid, Node> = BTreeMap::new();
        for record in self.dump("noderecord/all") {
            let lid = u16::from_be_bytes([record[0], record[1]]);
            let info: [u8; 40] = record[4..44].try_into().unwrap();
            let guid = Guid(u64::from_be_bytes(info[12..20].try_into().unwrap()));
            if Some(guid) == without {
                continue;
            }
            let port_guid = Guid(u64::from_be_bytes(info[20..28].try_into().unwrap()));
            let is_switch = info[2] == 2;
            let node = nodes.entry(guid).or_insert_with(|| Node {
                guid,
                info,
                description: record[44..108].try_into().unwrap(),
                switch_info: is_switch.then_some([0; 20]),
                ports: Vec::new(),
            });
            let of_port = infos.range((lid, 0)..=(lid, 255));
            for (&(_, num), info) in of_port.filter(|((_, num), _)| is_switch || *num == info[36]) {
                node.ports.push(Port {
                    num: PortNum(num),
                    guid: port_guid,
                    info: info[..].try_into().unwrap(),
                    pkeys: keys(lid, num).into(),
                    peer: None,
                });
            }
            node.ports.sort_by_key(|port| port.num);
        }
        for (a, a_port, b, b_port) in &facts.links {
            let (a, b) = (guid(a), guid(b));
            if nodes.contains_key(&a) && nodes.contains_key(&b) {
                link(&mut nodes, a, *a_port, b, *b_port);
                link(&mut nodes, b, *b_port, a, *a_port);
            }
        }
        let lids: Vec<(Guid, u16)> = facts
            .ports
            .iter()
            .map(|port| (guid(&port.node_guid), port.lid))
            .filter(|(node, _)| nodes.contains_key(node))
            .collect();
        let lfts = minimum_hop(&nodes, &lids).into_iter().map(Arc::new).collect();
        FabricPlane {
            subnet: Subnet {
                prefix: SUBNET_PREFIX_DEFAULT,
                sm_lid: Lid(self.facts.sm_lid),
                sm_port_guid: guid(&self.facts.roles["sm"].guid),
                lifetime: Lifetime::from_low_bits(18),
                sa_key: self.sm_key,
                response_time: Lifetime::from_low_bits(16),
                routing_engine: "minhop".to_owned(),
                ..Subnet::default()
            },
            nodes: nodes.into_values().map(Arc::new).collect(),
            lfts,
            ..FabricPlane::default()
        }
    }
}

fn link(nodes: &mut BTreeMap<Guid, Node>, a: Guid, a_port: u8, b: Guid, b_port: u8) {
    let node = nodes.get_mut(&a).expect("links join nodes");
    let port = node.ports.iter_mut().find(|port| port.num.0 == a_port).expect("links join ports");
    port.peer = Some((b, PortNum(b_port)));
}

/// Breadth first from each destination's node; of several shortest ways the lowest port.
fn minimum_hop(nodes: &BTreeMap<Guid, Node>, lids: &[(Guid, u16)]) -> Vec<Lft> {
    let top = lids.iter().map(|&(_, lid)| usize::from(lid)).max().unwrap_or(0);
    let len = (top + 1).next_multiple_of(Lft::BLOCK_LEN);
    let mut tables: BTreeMap<Guid, Vec<u8>> = nodes
        .values()
        .filter(|node| node.switch_info.is_some())
        .map(|node| (node.guid, vec![Lft::NO_ROUTE; len]))
        .collect();
    for &(home, lid) in lids {
        let mut hops: HashMap<Guid, u32> = HashMap::from([(home, 0)]);
        let mut queue = VecDeque::from([home]);
        while let Some(at) = queue.pop_front() {
            for (peer, _) in nodes[&at].ports.iter().filter_map(|port| port.peer) {
                let transit = nodes[&peer].switch_info.is_some();
                if transit && !hops.contains_key(&peer) {
                    hops.insert(peer, hops[&at] + 1);
                    queue.push_back(peer);
                }
            }
        }
        for (switch, table) in &mut tables {
            if *switch == home {
                table[usize::from(lid)] = 0;
            } else if let Some(&own) = hops.get(switch) {
                let nearer = |peer: &Guid| hops.get(peer).is_some_and(|&hops| hops + 1 == own);
                let ports = &nodes[switch].ports;
                let exit =
                    ports.iter().find(|port| port.peer.is_some_and(|(peer, _)| nearer(&peer)));
                table[usize::from(lid)] = exit.expect("hops fall towards home").num.0;
            }
        }
    }
    tables.into_iter().map(|(switch, ports)| Lft { switch, ports }).collect()
}

pub(crate) fn guid(text: &str) -> Guid {
    text.parse().expect("a GUID")
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// What the recorded writes have left in the registry, case by case.
#[derive(Default)]
pub(crate) struct Writes {
    groups: BTreeMap<Gid, [u8; 52]>,
    members: BTreeMap<MulticastMemberRid, u8>,
    aliases: BTreeMap<(u16, u8), Guid>,
    /// Groups that stay without members.
    predefined: Vec<Gid>,
}

impl Writes {
    /// The groups that were there from the beginning.
    pub(crate) fn new(groups: &[Vec<u8>]) -> Self {
        let mut writes = Self::default();
        for record in groups {
            let record: [u8; 52] = record[..52].try_into().unwrap();
            let mgid = Gid(record[..16].try_into().unwrap());
            writes.groups.insert(mgid, record);
            writes.predefined.push(mgid);
        }
        writes
    }

    /// Takes over what a successful Set() or Delete() of a group member or alias GUIDs did.
    pub(crate) fn apply(&mut self, case: &Case) {
        let is_write = case.method == "Set" || case.method == "Delete";
        if !is_write || case.status.as_deref() != Some("OK") {
            return;
        }
        let answer = bytes(case.answer.as_ref().expect("it was answered"));
        match &case.attr_id[..] {
            "0x0038" => self.member(answer[56..108].try_into().unwrap()),
            "0x0030" => self.alias(&answer),
            _ => {}
        }
    }

    fn member(&mut self, record: [u8; 52]) {
        let view = McMemberRecord::new(&record[..]).unwrap();
        let rid = MulticastMemberRid { mgid: view.mgid(), port_gid: view.port_gid() };
        let state = view.join_state().0;
        // An answer shows the JoinState as it is now.
        self.members.remove(&rid);
        if state != 0 {
            self.groups.entry(rid.mgid).or_insert(record);
            self.members.insert(rid, state);
        }
        let is_empty = !self.members.keys().any(|member| member.mgid == rid.mgid);
        if is_empty && !self.predefined.contains(&rid.mgid) {
            self.groups.remove(&rid.mgid);
        }
    }

    /// An answer shows the whole block as it is now.
    fn alias(&mut self, answer: &[u8]) {
        let (lid, block) = (u16::from_be_bytes([answer[56], answer[57]]), answer[58]);
        for (i, guid) in answer[64..128].chunks_exact(8).enumerate().skip(1) {
            let guid = Guid(u64::from_be_bytes(guid.try_into().unwrap()));
            let at = (lid, block * 8 + i as u8);
            self.aliases.remove(&at);
            if guid.0 != 0 {
                self.aliases.insert(at, guid);
            }
        }
    }

    pub(crate) fn registry(&self, golden: &Golden) -> RegistryPlane {
        let ports = &golden.facts.fabric.ports;
        let alias_guids = self
            .aliases
            .iter()
            .filter_map(|(&(lid, index), &alias)| {
                let port = ports.iter().find(|port| port.lid == lid)?;
                Some(Arc::new(AliasGuid { alias, port_guid: guid(&port.guid), index }))
            })
            .collect();
        let group = |(&mgid, &record): (&Gid, &[u8; 52])| {
            Arc::new(MulticastGroup { mgid, record, predefined: false })
        };
        let member = |(&rid, &join_state): (&MulticastMemberRid, &u8)| {
            Arc::new(MulticastMember { rid, join_state, proxy_join: false })
        };
        RegistryPlane {
            groups: self.groups.iter().map(group).collect(),
            members: self.members.iter().map(member).collect(),
            alias_guids,
            ..RegistryPlane::default()
        }
    }
}

/// A responder with clients that speak RMPP.
pub(crate) struct Sa {
    publisher: Publisher,
    responder: Responder,
    now: Instant,
}

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Nothing,
    /// 256 bytes; for tables the first segment's header and all records.
    Answer(Vec<u8>),
    /// ABORT with this status.
    Abort(u8),
}

impl Sa {
    pub(crate) fn new(fabric: &FabricPlane, registry: &RegistryPlane) -> Self {
        let publisher = Publisher::new();
        let stats = Arc::new(Stats::default());
        let responder = Responder::new(publisher.reader(), ResponderConfig::default(), stats);
        let mut sa = Self { publisher, responder, now: Instant::now() };
        sa.publish(fabric, registry);
        sa
    }

    pub(crate) fn publish(&mut self, fabric: &FabricPlane, registry: &RegistryPlane) {
        let tables = Tables::build(fabric, registry);
        assert_eq!(tables.contradictions(), 0);
        self.publisher.publish(Arc::new(Generation {
            version: Version::NONE,
            tables: Arc::new(tables),
            registry: Arc::new(registry.clone()),
        }));
    }

    pub(crate) fn stats(&self) -> &Stats {
        self.responder.stats()
    }

    /// Sends a request of one or more MADs from `lid` and waits for all of its answer.
    pub(crate) fn ask(&mut self, lid: Lid, request: &[Vec<u8>]) -> Got {
        let mut receiver: Option<Receiver> = None;
        let mut inbox: VecDeque<[u8; 256]> =
            request.iter().map(|mad| mad[..].try_into().unwrap()).collect();
        let mut answer = Got::Nothing;
        while let Some(mad) = inbox.pop_front() {
            let address = Address { lid, ..Address::default() };
            let mut packet = Packet { mad, address };
            let mut outbox = Vec::new();
            if self.responder.handle(&mut packet, self.now) == Outcome::Send {
                outbox.push(packet.clone());
            }
            while self.responder.poll_transmit(self.now, &mut packet) {
                outbox.push(packet.clone());
            }
            for packet in outbox {
                assert_eq!(packet.address.lid, lid, "answers go to who asked");
                let rmpp = packet.mad[26] & 1 == 1;
                match packet.mad[25] {
                    1 if rmpp => self.segment(&packet.mad, &mut receiver, &mut inbox, &mut answer),
                    4 if rmpp => answer = Got::Abort(packet.mad[27]),
                    _ if rmpp => {} // An ACK of our request.
                    _ => answer = Got::Answer(packet.mad.to_vec()),
                }
            }
        }
        answer
    }

    fn segment(
        &mut self,
        mad: &[u8; 256],
        receiver: &mut Option<Receiver>,
        inbox: &mut VecDeque<[u8; 256]>,
        answer: &mut Got,
    ) {
        match receiver {
            None => {
                let config = ReceiverConfig::default();
                *receiver = Some(Receiver::start(self.now, mad, config).expect("a first segment"));
            }
            Some(receiver) => receiver.handle_packet(self.now, mad),
        }
        let receiver = receiver.as_mut().expect("just made");
        while let Some(transmit) = receiver.poll_transmit() {
            let mut ack = [0; 256];
            transmit.write(receiver.header(), &[], &mut ack);
            assert!(!SaMad::new(&ack).header().method().is_response());
            inbox.push_back(ack);
        }
        if let Some(message) = receiver.take_message() {
            *answer = Got::Answer(message);
        }
    }
}

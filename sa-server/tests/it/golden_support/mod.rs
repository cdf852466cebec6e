//! Replays recorded conversations: reads a golden file, builds the snapshot of its fabric, and
//! carries each request through a responder as a client would, RMPP included.
//!
//! The fabric's links, GUIDs and LIDs are those of the file's facts. What the ports and nodes say
//! of themselves, and what OpenSM programmed into them, was in the simulator; it is read from the
//! file's unfiltered dumps.

#![allow(dead_code, reason = "no test uses all of it")]

pub(crate) mod compare;
mod devices;
mod writes;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use flate2::read::GzDecoder;
use ib_mad::rmpp::{Receiver, ReceiverConfig};
use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Guid, Lid, Lifetime, PKey, PortNum, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::sa::SaMad;
use sa_proto::snapshot::{FabricPlane, Node, Port, RegistryPlane, Subnet, Version};
use sa_server::serve::responder::{Outcome, Responder, ResponderConfig};
use sa_server::stats::Stats;
use sa_server::tables::Tables;
use sa_server::tables::cell::{Generation, Publisher};
use serde::Deserialize;

pub(crate) use writes::Writes;

/// A golden file.
#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) sm_key: u64,
    pub(crate) opensm_args: String,
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
        if stride == 0 {
            return Vec::new();
        }
        answer[56..].chunks_exact(stride).map(<[u8]>::to_vec).collect()
    }

    /// The P_Key tables of all ports, by LID and number, as trusted requesters saw them.
    pub(crate) fn pkeys(&self) -> BTreeMap<(u16, u8), Vec<PKey>> {
        let mut tables: BTreeMap<(u16, u8), Vec<PKey>> = BTreeMap::new();
        // LID, block, port, and 32 P_Keys from byte 8 on.
        for record in self.dump("porttables/P_KeyTableRecord/all-trusted") {
            let lid = u16::from_be_bytes([record[0], record[1]]);
            let keys = record[8..72].chunks_exact(2);
            let keys = keys.map(|key| PKey(u16::from_be_bytes([key[0], key[1]])));
            tables.entry((lid, record[4])).or_default().extend(keys);
        }
        tables
    }

    pub(crate) fn lid_of(&self, role: &str) -> Lid {
        let guid = &self.facts.roles[role].guid;
        let port = self.facts.fabric.ports.iter().find(|port| port.guid == *guid);
        Lid(port.expect("roles are ports").lid)
    }

    /// The fabric while all links but those of `without` (a node GUID) were up. `keys` returns the
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
        let devices = devices::Devices::read(self);
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
                switch_info: is_switch.then(|| devices.switch_infos[&lid]),
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
        let node_of = |lid: u16| {
            let port = facts.ports.iter().find(|port| port.lid == lid).expect("LIDs are ports'");
            guid(&port.node_guid)
        };
        let is_there = |node: Guid| nodes.contains_key(&node);
        let (lfts, mfts) = (devices.lfts(node_of), devices.mfts(node_of));
        let port_tables = devices.port_tables(node_of);
        let subnet_managers = devices.subnet_managers;
        FabricPlane {
            subnet: Subnet {
                prefix: SUBNET_PREFIX_DEFAULT,
                sm_lid: Lid(self.facts.sm_lid),
                sm_port_guid: guid(&self.facts.roles["sm"].guid),
                lifetime: Lifetime::from_low_bits(18),
                sa_key: self.sm_key,
                response_time: Lifetime::from_low_bits(16),
                routing_engine: "minhop".to_owned(),
                qos: self.opensm_args.split(' ').any(|arg| arg == "-Q"),
                ..Subnet::default()
            },
            lfts: lfts.into_iter().filter(|lft| is_there(lft.switch)).map(Arc::new).collect(),
            mfts: mfts.into_iter().filter(|mft| is_there(mft.switch)).map(Arc::new).collect(),
            port_tables: port_tables
                .into_iter()
                .filter(|tables| is_there(tables.node))
                .map(Arc::new)
                .collect(),
            subnet_managers,
            nodes: nodes.into_values().map(Arc::new).collect(),
            ..FabricPlane::default()
        }
    }
}

fn link(nodes: &mut BTreeMap<Guid, Node>, a: Guid, a_port: u8, b: Guid, b_port: u8) {
    let node = nodes.get_mut(&a).expect("links join nodes");
    let port = node.ports.iter_mut().find(|port| port.num.0 == a_port).expect("links join ports");
    port.peer = Some((b, PortNum(b_port)));
}

pub(crate) fn guid(text: &str) -> Guid {
    text.parse().expect("a GUID")
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
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
        let (tables, registry) = (Arc::new(tables), Arc::new(registry.clone()));
        self.publisher.publish(Arc::new(Generation::new(Version::OFFLINE, tables, registry)));
    }

    pub(crate) fn stats(&self) -> &Stats {
        self.responder.stats()
    }

    /// How many requests were costly since the last call, and gave no sign of it.
    pub(crate) fn take_costly(&mut self) -> usize {
        self.responder.take_costly().count()
    }

    /// Sends a request of one or more MADs from `lid` and waits for all of its answer.
    pub(crate) fn ask(&mut self, lid: Lid, request: &[Vec<u8>]) -> Got {
        let mut receiver: Option<Receiver> = None;
        let mut inbox: VecDeque<[u8; 256]> =
            request.iter().map(|mad| mad[..].try_into().unwrap()).collect();
        let mut answer = Got::Nothing;
        while let Some(mad) = inbox.pop_front() {
            let address = Address::gsi(lid);
            let mut packet = Packet::new(mad, address);
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

//! Recorded joins and leaves, and what OpenSM answered: the registry decides them in the order in
//! which they were sent, on the ports of the recorded fabrics.
//!
//! Intended differences (decision 0013) are listed in [`differs`]; everything else is equal, MLIDs
//! included.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use ib_mad::types::{Gid, Guid, Lid, Mtu, PKey, Qpn, Rate, SUBNET_PREFIX_DEFAULT};
use ib_mad::wire::attribute::{NodeType, PortInfo, PortState};
use ib_mad::wire::mad::Status;
use ib_mad::wire::record::McMemberRecord;
use serde::Deserialize;
use sm_core::registry::{
    EndPort, Ports, PredefinedGroup, Registry, RegistryEvent, Reply, Request, Requester,
};

#[derive(Deserialize)]
struct Golden {
    sm_key: u64,
    facts: Facts,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Facts {
    roles: HashMap<String, Role>,
    fabric: FabricFacts,
}

#[derive(Deserialize)]
struct Role {
    guid: String,
}

#[derive(Deserialize)]
struct FabricFacts {
    ports: Vec<PortFacts>,
}

#[derive(Deserialize)]
struct PortFacts {
    guid: String,
    #[serde(rename = "type")]
    kind: String,
    lid: u16,
    #[serde(default)]
    lmc: u8,
}

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    id: String,
    #[serde(default)]
    client: String,
    #[serde(default)]
    method: String,
    #[serde(default)]
    attr_id: String,
    #[serde(default)]
    request: Vec<String>,
    #[serde(default)]
    outcome: String,
    #[serde(default)]
    answer: Option<String>,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

impl Golden {
    fn read(path: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let file = std::fs::File::open(path).expect("golden file");
        let mut text = String::new();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
        serde_json::from_str(&text).expect("golden format")
    }

    /// The records of a case's answer.
    fn dump(&self, id: &str) -> Vec<Vec<u8>> {
        let case = self.cases.iter().find(|case| case.id == id).expect("the dump is in the file");
        let answer = bytes(case.answer.as_ref().expect("the dump was answered"));
        let stride = usize::from(be16(&answer[44..])) * 8;
        answer[56..].chunks_exact(stride).map(<[u8]>::to_vec).collect()
    }

    /// The end ports as recorded, up to the last MLID that `ibsim`'s switches accept.
    fn ports(&self) -> Ports {
        let mut tables: BTreeMap<u16, Vec<PKey>> = BTreeMap::new();
        let infos = self.dump("portinfo/all/trusted");
        for record in self.dump("porttables/P_KeyTableRecord/all-trusted") {
            // A switch's port 0 only, whose LID the others report, too.
            let keys = record[8..72].chunks_exact(2).map(|key| PKey(be16(key)));
            let is_switch_link = infos
                .iter()
                .filter(|info| info[..2] == record[..2] && info[2] == 0)
                .any(|_| record[4] != 0);
            if !is_switch_link {
                let keys = keys.filter(|key| key.is_valid());
                tables.entry(be16(&record)).or_default().extend(keys);
            }
        }
        let port = |facts: &PortFacts| {
            let of_lid = infos.iter().filter(|record| be16(record) == facts.lid);
            let record = of_lid.min_by_key(|record| record[2]).expect("a port has its own record");
            let info = PortInfo::new(&record[4..68]).unwrap();
            EndPort {
                guid: facts.guid.parse().unwrap(),
                lid: Lid(facts.lid),
                lmc: facts.lmc,
                mtu: Mtu::from_code(info.neighbor_mtu()).unwrap(),
                rate: info.active_rate(info.capability_mask()).unwrap_or(Rate::Gbps2_5),
                pkeys: tables[&facts.lid].clone().into(),
                node_type: match &facts.kind[..] {
                    "switch" | "sw" => NodeType::Switch,
                    _ => NodeType::Ca,
                },
                guid_cap: info.guid_cap(),
                active: info.port_state() == PortState::Active.code(),
            }
        };
        let ports = self.facts.fabric.ports.iter().map(port).collect();
        let mut ports = Ports::new(SUBNET_PREFIX_DEFAULT, self.guid("sm"), ports);
        ports.mlid_last = Lid(0xC3FF);
        ports
    }

    fn guid(&self, role: &str) -> Guid {
        self.facts.roles[role].guid.parse().unwrap()
    }

    /// The groups that existed from the start, in the order in which they got their MLIDs.
    fn predefined(&self, dump: &str) -> Vec<PredefinedGroup> {
        let records = self.dump(dump).into_iter();
        let mut records: Vec<[u8; 52]> = records.map(|r| r[..52].try_into().unwrap()).collect();
        records.sort_by_key(|record| be16(&record[36..]));
        let without_mlid = |mut record: [u8; 52]| {
            record[36..38].fill(0);
            PredefinedGroup { record }
        };
        records.into_iter().map(without_mlid).collect()
    }
}

/// Reason for an intended difference between our answer and the recorded one.
fn differs(ours: &mut [u8; 52], theirs: &mut [u8; 52], made: &mut HashMap<Gid, Gid>) {
    // ProxyJoin is what is registered, not what was in the request.
    ours[49] = 0;
    theirs[49] = 0;
    // MGIDs that are made here have the whole subnet prefix and a number behind it.
    let mgid = |record: &[u8; 52]| McMemberRecord::new(record).unwrap().mgid();
    let (our_mgid, their_mgid) = (mgid(ours), mgid(theirs));
    if our_mgid != their_mgid && our_mgid.0[..4] == their_mgid.0[..4] {
        assert_eq!(our_mgid.0[2..4], [0xA0, 0x1B]);
        assert_eq!(our_mgid.0[4..12], SUBNET_PREFIX_DEFAULT.to_be_bytes());
        made.insert(their_mgid, our_mgid);
    }
    if let Some(of) = made.get(&their_mgid) {
        assert_eq!(our_mgid, *of);
        theirs[..16].copy_from_slice(&of.0);
    }
}

fn replay(path: &str, predefined: &str) -> usize {
    let golden = Golden::read(path);
    let ports = golden.ports();
    let mut registry = Registry::default();
    registry.set_predefined(&ports, &golden.predefined(predefined));
    let mut made: HashMap<Gid, Gid> = HashMap::new();
    let mut replayed = 0;
    let mut wrong = Vec::new();
    for case in &golden.cases {
        let is_write = case.method == "Set" || case.method == "Delete";
        if case.attr_id != "0x0038" || !is_write || case.request.len() != 1 {
            continue;
        }
        replayed += 1;
        let mut mad: [u8; 256] = bytes(&case.request[0]).try_into().unwrap();
        let mgid = Gid(mad[56..72].try_into().unwrap());
        if let Some(ours) = made.get(&mgid) {
            mad[56..72].copy_from_slice(&ours.0);
        }
        let client = ports.by_guid(golden.guid(&case.client)).unwrap();
        let requester = Requester { slid: client.lid, qpn: Qpn::GSI, ..Requester::default() };
        let request = Request::read(&mad, requester, golden.sm_key);
        // A second apart, none repeats another.
        let reply = request.map(|request| registry.write(60 * replayed as u64, &ports, &request));
        let reply = reply.ok().filter(|reply| !reply.dropped);
        let Some(Reply { status, data, .. }) = reply else {
            if case.outcome != "timeout" {
                wrong.push(format!("{}: not answered", case.id));
            }
            continue;
        };
        let Some(answer) = &case.answer else {
            wrong.push(format!("{}: {status}, not answered by OpenSM", case.id));
            continue;
        };
        let answer = bytes(answer);
        if status.0 != be16(&answer[4..]) {
            wrong.push(format!("{}: {status}, not {}", case.id, Status(be16(&answer[4..]))));
            continue;
        }
        let Some(data) = data else { continue };
        let mut ours: [u8; 52] = *data.data().first_chunk().unwrap();
        let mut theirs: [u8; 52] = answer[56..108].try_into().unwrap();
        differs(&mut ours, &mut theirs, &mut made);
        if ours != theirs {
            let show = |record: &[u8; 52]| record.map(|byte| format!("{byte:02x}")).concat();
            wrong.push(format!("{}:\n{}\n  not\n{}", case.id, show(&ours), show(&theirs)));
        }
    }
    assert!(wrong.is_empty(), "{} of {replayed} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(registry.plane().members.is_empty(), "all who joined have left");
    assert_eq!(registry.plane().groups.len(), golden.predefined(predefined).len());
    let events: Vec<_> = std::iter::from_fn(|| registry.poll_event()).collect();
    let created = events.iter().filter(|e| matches!(e, RegistryEvent::GroupCreated(_))).count();
    assert_eq!(created * 2, events.len(), "each group that came has gone");
    replayed
}

/// Proves IBA o15-0.1.x, o15-0.2.x, o15-0.2.4.
#[test]
fn joins_on_a_fabric_of_one_partition() {
    let replayed = replay("../ib-mad/tests/golden/random-default.json.gz", "mcquery/all/h1");
    assert!(replayed > 400, "{replayed}");
}

#[test]
fn joins_on_a_fabric_with_partitions_and_groups_of_its_own() {
    let path = "../sa-server/tests/golden/fattree-partitions.json.gz";
    let replayed = replay(path, "mcquery/start/dump");
    assert!(replayed > 400, "{replayed}");
}

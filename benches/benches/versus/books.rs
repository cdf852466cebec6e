//! The requests of each row, the same for both SAs: about the same hosts, in the same order, each
//! by the LIDs that its own manager assigned.

use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use ib_mad::wire::mad::{AttributeId, Method};
use ib_mad::wire::record::{
    JoinState, McMemberRecord, MultiPathRecord, NodeRecord, PathRecord, ServiceRecord, mc_member,
    multi_path, node, path, service,
};
use ib_mad::wire::rmpp::{RmppFlags, RmppType};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, HEADER_LEN, SA_HEADER_LEN, SaMad, attribute};
use sa_proto::snapshot::Snapshot;
use umad_feed::book::{Book, Request};

/// Distinct requests of a kind: more than fit into a core's own cache.
const REQUESTS: usize = 1 << 14;
/// Distinct requests for tables.
const TABLES: usize = 64;
/// Services that are registered.
pub(crate) const SERVICES: u64 = 2000;
/// Maximum number of ports that join and leave: twice as many as may be open at a time.
const MEMBERS_MAX: usize = 2048;
/// Rules of the QoS policy.
const RULES: u64 = 50;
const RULE_GROUPS: usize = 10;

/// A host's first port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    pub(crate) node: Guid,
    pub(crate) gid: Gid,
    pub(crate) lid: Lid,
}

/// The hosts of a snapshot, in the order of their GUIDs.
pub(crate) fn hosts(snapshot: &Snapshot) -> Vec<Host> {
    let plane = snapshot.fabric();
    let nodes = plane.nodes.iter().filter(|node| {
        let info = NodeInfo::of(&node.info);
        NodeType::from_code(info.node_type()) == Some(NodeType::Ca)
    });
    let host = |node: &std::sync::Arc<sa_proto::snapshot::Node>| {
        let port = node.ports.first()?;
        let lid = PortInfo::of(&port.info).base_lid();
        Some(Host { node: node.guid, gid: Gid::new(plane.subnet.prefix, port.guid), lid })
    };
    nodes.filter_map(host).collect()
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A path by GIDs with everything that Linux's RDMA CM fills in.
    PathByGids,
    /// A path by LIDs.
    PathByLids,
    /// All paths of a source.
    PathsOfSource,
    /// Paths from 8 sources to 3 destinations.
    MultiPath,
    /// A node by LID.
    NodeByLid,
    /// A node by its GUID.
    NodeByGuid,
    /// All channel adapters.
    AllHosts,
    /// One join of the group that others join and leave.
    FirstMember,
    /// Ports join a group, and then leave it.
    Members,
    /// Services are registered, then registered again with another content.
    Services,
}

impl Kind {
    /// Whether answers are tables of many records.
    pub(crate) fn is_table(self) -> bool {
        matches!(self, Self::PathsOfSource | Self::AllHosts)
    }

    /// Requests of this kind.
    pub(crate) fn book(self, hosts: &[Host]) -> Book {
        let mut draw = Draw(1);
        let one = |_| self.query(hosts, &mut draw);
        Book(match self {
            Self::FirstMember => vec![member(hosts[0], Method::SET)],
            Self::Members => {
                let others = &hosts[1..hosts.len().min(MEMBERS_MAX + 1)];
                let ways = [Method::SET, Method::DELETE];
                ways.iter().flat_map(|&way| others.iter().map(move |&h| member(h, way))).collect()
            }
            Self::Services => (0..2 * SERVICES)
                .map(|n| {
                    let (id, content) = (n % SERVICES, (n / SERVICES) as u8);
                    service_of(hosts[id as usize % hosts.len()], id, content)
                })
                .collect(),
            Self::PathsOfSource | Self::AllHosts => (0..TABLES).map(one).collect(),
            _ => (0..REQUESTS).map(one).collect(),
        })
    }

    fn query(self, hosts: &[Host], draw: &mut Draw) -> Request {
        let (source, destination) = (draw.one(hosts), draw.one(hosts));
        let (rule, class) = rule_asked(draw.next() % (2 * RULES));
        match self {
            Self::PathByGids => {
                use path::component;
                let mask = component::DGID | component::SGID | component::SERVICE_ID;
                let mask = mask | component::QOS_CLASS | component::PKEY;
                let lid = destination.lid;
                path_query(Method::GET, mask, source, (PATH_DLID, lid.0), |record| {
                    record.set_dgid(destination.gid).set_sgid(source.gid);
                    record.set_service_id(rule).set_qos_class(class);
                    record.set_pkey(PKey::DEFAULT_FULL);
                })
            }
            Self::PathByLids => {
                let mask = path::component::DLID | path::component::SLID;
                let lid = destination.lid;
                path_query(Method::GET, mask, source, (PATH_DLID, lid.0), |record| {
                    record.set_dlid(lid).set_slid(source.lid);
                })
            }
            Self::PathsOfSource => {
                let (mask, lid) = (path::component::SGID, source.lid);
                path_query(Method::GET_TABLE, mask, source, (PATH_SLID, lid.0), |record| {
                    record.set_sgid(source.gid);
                })
            }
            Self::MultiPath => {
                let gids: Vec<Gid> = (0..11).map(|_| draw.one(hosts).gid).collect();
                multi_path_query(source, &gids[..8], &gids[8..])
            }
            Self::NodeByLid => {
                let lid = destination.lid;
                node_query(Method::GET, node::component::LID, source, (NODE_LID, lid.0), |record| {
                    record.set_lid(lid);
                })
            }
            Self::NodeByGuid => {
                let (mask, lid) = (node::component::NODE_GUID, destination.lid);
                node_query(Method::GET, mask, source, (NODE_LID, lid.0), |record| {
                    let mut info = [0; 40];
                    NodeInfo::of_mut(&mut info).set_node_guid(destination.node);
                    record.set_node_info(info);
                })
            }
            _ => {
                let mask = node::component::NODE_TYPE;
                // Base and class version of the first.
                node_query(Method::GET_TABLE, mask, source, (NODE_LID + 4, 0x0101), |record| {
                    let mut info = [0; 40];
                    let mut view = NodeInfo::of_mut(&mut info);
                    view.set_node_type(NodeType::Ca);
                    record.set_node_info(info);
                })
            }
        }
    }
}

const PATH_DLID: usize = 40;
const PATH_SLID: usize = 42;
const PATH_PKEY: usize = 50;
const NODE_LID: usize = 0;
const MEMBER_PKEY: usize = 40;
const SERVICE_ID: usize = 0;

/// A request of `from`, whose answer has `expected` at that offset of its first record.
fn request(
    from: Host,
    (method, attribute): (Method, AttributeId),
    mask: ComponentMask,
    (at, expected): (usize, u16),
    fill: impl FnOnce(&mut [u8; DATA_LEN]),
) -> Request {
    let mut bytes = [0; 256];
    let mut mad = SaMad::new(&mut bytes);
    mad.write_request(method, attribute, 0, mask);
    fill(mad.data_mut());
    let at = (HEADER_LEN + at) as u16;
    Request { lid: from.lid.0, qpn: 1, at, expected, mad: bytes }
}

fn path_query(
    method: Method,
    mask: ComponentMask,
    from: Host,
    expected: (usize, u16),
    fill: impl FnOnce(&mut PathRecord<&mut [u8; DATA_LEN]>),
) -> Request {
    let mask = mask | path::component::REVERSIBLE | path::component::NUMB_PATH;
    request(from, (method, attribute::PATH_RECORD), mask, expected, |data| {
        let mut record = PathRecord::of_mut(data);
        record.set_reversible(true).set_numb_path(1);
        fill(&mut record);
    })
}

fn node_query(
    method: Method,
    mask: ComponentMask,
    from: Host,
    expected: (usize, u16),
    fill: impl FnOnce(&mut NodeRecord<&mut [u8; DATA_LEN]>),
) -> Request {
    request(from, (method, attribute::NODE_RECORD), mask, expected, |data| {
        fill(&mut NodeRecord::of_mut(data));
    })
}

fn multi_path_query(from: Host, sources: &[Gid], destinations: &[Gid]) -> Request {
    use multi_path::component;
    let mask = component::SGID_COUNT | component::DGID_COUNT | component::PKEY;
    let mask = mask | component::REVERSIBLE | component::NUMB_PATH;
    let expected = (PATH_PKEY, PKey::DEFAULT_FULL.0);
    let kind = (Method::GET_MULTI, attribute::MULTI_PATH_RECORD);
    let mut request = request(from, kind, mask, expected, |data| {
        let paths = (sources.len() * destinations.len()) as u8;
        let mut record = MultiPathRecord::new(&mut data[..]).expect("24 bytes of 200");
        record.set_reversible(true).set_numb_path(paths).set_pkey(PKey::DEFAULT_FULL);
        multi_path::write_gids(data, sources, destinations).expect("11 GIDs fit");
    });
    let mut mad = SaMad::new(&mut request.mad);
    mad.rmpp_mut()
        .set_rmpp_version(1)
        .set_rmpp_type(RmppType::DATA)
        .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
        .set_segment(1)
        .set_payload_len((SA_HEADER_LEN + DATA_LEN) as u32);
    request
}

/// A join, or a leave, of the group.
fn member(host: Host, method: Method) -> Request {
    use mc_member::component;
    let mut mask = component::MGID | component::PORT_GID | component::JOIN_STATE;
    if method == Method::SET {
        // The components needed to create the group; all joins are alike.
        mask = mask | component::QKEY | component::TCLASS | component::PKEY;
        mask = mask | component::FLOW_LABEL | component::SL;
    }
    let kind = (method, attribute::MC_MEMBER_RECORD);
    let expected = match method {
        Method::SET => (MEMBER_PKEY, PKey::DEFAULT_FULL.0),
        _ => (0, 0xFF12),
    };
    request(host, kind, mask, expected, |data| {
        let mut mgid = [0; 16];
        (mgid[0], mgid[1], mgid[15]) = (0xFF, 0x12, 7);
        McMemberRecord::of_mut(data)
            .set_mgid(Gid(mgid))
            .set_port_gid(host.gid)
            .set_qkey(0xB1B)
            .set_pkey(PKey::DEFAULT_FULL)
            .set_join_state(JoinState(1));
    })
}

fn service_of(host: Host, id: u64, content: u8) -> Request {
    use service::component;
    let mask = component::SERVICE_ID | component::SERVICE_GID | component::SERVICE_PKEY;
    let mask = mask | component::SERVICE_DATA8_0;
    let kind = (Method::SET, attribute::SERVICE_RECORD);
    request(host, kind, mask, (SERVICE_ID, 0x1000), |data| {
        let mut data8 = [0; 16];
        data8[0] = content;
        ServiceRecord::of_mut(data)
            .set_service_id(0x1000 << 48 | id)
            .set_service_gid(host.gid)
            .set_service_pkey(PKey::DEFAULT_FULL)
            .set_service_data8(data8);
    })
}

/// Service ID and QoS class of a rule; beyond the last rule, none matches.
fn rule_asked(rule: u64) -> (u64, u16) {
    (0x1000_0000 + rule * 0x100, (rule % 64) as u16)
}

/// The QoS policy: rules match a range of Service IDs and a QoS class, a third of them also the
/// source's group, a fifth the destination's.
pub(crate) fn policy(hosts: &[Host]) -> String {
    let mut text = String::from("port-groups\n");
    for group in 0..RULE_GROUPS {
        let of_group = hosts.iter().skip(group).step_by(RULE_GROUPS);
        let guids: Vec<String> = of_group.map(|host| format!("{:#x}", host.gid.guid().0)).collect();
        text += &format!("  port-group\n    name: group{group}\n");
        // Lines short enough for OpenSM's parser.
        for guids in guids.chunks(64) {
            text += &format!("    port-guid: {}\n", guids.join(","));
        }
        text += "  end-port-group\n";
    }
    text += "end-port-groups\n\nqos-levels\n";
    for (level, sl) in [("DEFAULT", 0), ("special", 1)] {
        text += &format!("  qos-level\n    name: {level}\n    sl: {sl}\n  end-qos-level\n");
    }
    text += "end-qos-levels\n\nqos-match-rules\n";
    for rule in 0..RULES {
        let (id, class) = rule_asked(rule);
        text += &format!("  qos-match-rule\n    use: rule {rule}\n    qos-class: {class}\n");
        text += &format!("    service-id: {id:#x}-{:#x}\n", id + 0x80);
        for (nth, end) in [(3, "source"), (5, "destination")] {
            if rule % nth == 0 {
                text += &format!("    {end}: group{}\n", rule as usize % RULE_GROUPS);
            }
        }
        text += "    qos-level-name: special\n  end-qos-match-rule\n";
    }
    text + "end-qos-match-rules\n"
}

/// SplitMix64: the same draws everywhere.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn one(&mut self, hosts: &[Host]) -> Host {
        hosts[(self.next() % hosts.len() as u64) as usize]
    }
}

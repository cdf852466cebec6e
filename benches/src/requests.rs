//! Requests about the hosts of a fabric, as clients send them, drawn with a fixed seed.

use ib_mad::transport::{Address, Packet};
use ib_mad::types::{Gid, Guid, Lid, PKey, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use ib_mad::wire::mad::{Method, Status};
use ib_mad::wire::record::{MultiPathRecord, NodeRecord, PathRecord, multi_path, node, path};
use ib_mad::wire::rmpp::{RmppFlags, RmppType, VERSION};
use ib_mad::wire::sa::{SA_HEADER_LEN, SaMad, attribute};
use sa_proto::snapshot::FabricPlane;

/// Service ID of an RDMA CM connection: TCP port 20049, NFS over RDMA.
const SERVICE_ID: u64 = 0x0000_0000_0106_4E51;

/// The fields of a host in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its port's GID.
    pub gid: Gid,
    /// Its port's LID.
    pub lid: Lid,
    /// GUID of the node.
    pub node_guid: Guid,
}

/// The first port of every host, in the order of node GUIDs.
pub fn hosts(plane: &FabricPlane) -> Vec<Host> {
    let is_host = |info: &[u8; 40]| {
        NodeInfo::new(&info[..])
            .is_ok_and(|info| NodeType::from_code(info.node_type()) == Some(NodeType::Ca))
    };
    let nodes = plane.nodes.iter().filter(|node| is_host(&node.info));
    nodes
        .filter_map(|node| Some((node.guid, node.ports.first()?)))
        .map(|(node_guid, port)| Host {
            gid: Gid::new(plane.subnet.prefix, port.guid),
            lid: PortInfo::of(&port.info).base_lid(),
            node_guid,
        })
        .collect()
}

/// SplitMix64: the same sequence everywhere.
pub struct Draw(u64);

impl Draw {
    /// A generator with a fixed seed.
    pub fn new() -> Self {
        Self(1)
    }

    /// One of `hosts`.
    pub fn host(&mut self, hosts: &[Host]) -> Host {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        hosts[((z ^ (z >> 31)) % hosts.len() as u64) as usize]
    }
}

impl Default for Draw {
    fn default() -> Self {
        Self::new()
    }
}

/// The kinds of requests that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Get(PathRecord) as Linux's RDMA CM sends it for an IPv4 connection: both GIDs, Service ID,
    /// QoS class, P_Key, one reversible path.
    PathByGids,
    /// Get(PathRecord) by both LIDs, one reversible path.
    PathByLids,
    /// GetTable(PathRecord) of one source's GID: paths to all ports.
    PathsOfSource,
    /// Get(NodeRecord) by LID.
    NodeByLid,
    /// Get(NodeRecord) by node GUID.
    NodeByGuid,
    /// GetTable(NodeRecord) of all channel adapters.
    AllNodes,
}

impl Kind {
    /// Writes a request of `source` about `destination`, as the responder receives it.
    pub fn write(self, tid: u64, source: Host, destination: Host, packet: &mut Packet) {
        packet.address = Address { qpn: Qpn(0x48), ..Address::gsi(source.lid) };
        match self {
            Self::NodeByLid | Self::NodeByGuid | Self::AllNodes => {
                self.node(tid, destination, &mut packet.mad);
            }
            _ => self.path(tid, source, destination, &mut packet.mad),
        }
    }

    fn path(self, tid: u64, source: Host, destination: Host, mad: &mut [u8; MAD_LEN]) {
        use path::component;
        let always = component::REVERSIBLE | component::NUMB_PATH;
        let (method, mask) = match self {
            Self::PathsOfSource => (Method::GET_TABLE, component::SGID | always),
            Self::PathByLids => (Method::GET, component::DLID | component::SLID | always),
            _ => {
                let service = component::SERVICE_ID | component::QOS_CLASS | component::PKEY;
                (Method::GET, component::DGID | component::SGID | service | always)
            }
        };
        let mut mad = SaMad::new(mad);
        mad.write_request(method, attribute::PATH_RECORD, tid, mask);
        let mut record = PathRecord::of_mut(mad.data_mut());
        record.set_reversible(true).set_numb_path(1);
        match self {
            Self::PathByLids => record.set_dlid(destination.lid).set_slid(source.lid),
            Self::PathsOfSource => record.set_sgid(source.gid),
            _ => record
                .set_dgid(destination.gid)
                .set_sgid(source.gid)
                .set_service_id(SERVICE_ID)
                .set_pkey(PKey::DEFAULT_FULL),
        };
    }

    fn node(self, tid: u64, about: Host, mad: &mut [u8; MAD_LEN]) {
        use node::component;
        let (method, mask) = match self {
            Self::AllNodes => (Method::GET_TABLE, component::NODE_TYPE),
            Self::NodeByGuid => (Method::GET, component::NODE_GUID),
            _ => (Method::GET, component::LID),
        };
        let mut mad = SaMad::new(mad);
        mad.write_request(method, attribute::NODE_RECORD, tid, mask);
        let data = mad.data_mut();
        if self == Self::NodeByLid {
            NodeRecord::of_mut(data).set_lid(about.lid);
            return;
        }
        let mut info = NodeInfo::at_mut::<4, _>(data);
        info.set_node_type(NodeType::Ca);
        if self == Self::NodeByGuid {
            info.set_node_guid(about.node_guid);
        }
    }

    /// Whether `packet` is the right answer.
    pub fn is_answered(self, destination: Host, packet: &Packet) -> bool {
        let mad = SaMad::new(&packet.mad);
        let lid = match self {
            Self::NodeByLid | Self::NodeByGuid => NodeRecord::of(mad.data()).lid(),
            _ => PathRecord::of(mad.data()).dlid(),
        };
        mad.header().status() == Status::OK
            && mad.header().method().is_response()
            && lid == destination.lid
    }
}

/// Writes a GetMulti(MultiPathRecord) of the first of `sources`, as it arrives: by RMPP, in one
/// segment. For 11 GIDs at most.
///
/// # Panics
///
/// If there are more, or no source.
pub fn multi_path(tid: u64, sources: &[Host], destinations: &[Host], packet: &mut Packet) {
    use multi_path::component;
    packet.address = Address { qpn: Qpn(0x48), ..Address::gsi(sources[0].lid) };
    let mask = component::SGID_COUNT | component::DGID_COUNT | component::REVERSIBLE;
    let mut mad = SaMad::new(&mut packet.mad);
    mad.write_request(Method::GET_MULTI, attribute::MULTI_PATH_RECORD, tid, mask);
    let gids = |hosts: &[Host]| hosts.iter().map(|host| host.gid).collect::<Vec<_>>();
    let data = mad.data_mut();
    multi_path::write_gids(data, &gids(sources), &gids(destinations)).expect("11 GIDs at most");
    MultiPathRecord::new(&mut data[..]).expect("24 bytes of 200").set_reversible(true);
    let len = SA_HEADER_LEN + MultiPathRecord::LEN + 16 * (sources.len() + destinations.len());
    mad.rmpp_mut()
        .set_rmpp_version(VERSION)
        .set_rmpp_type(RmppType::DATA)
        .set_flags(RmppFlags::ACTIVE | RmppFlags::FIRST | RmppFlags::LAST)
        .set_segment(1)
        .set_payload_len(len as u32);
}

//! The fast path for the requests that make up storms, answered in batches.
//!
//! It takes a Get() for the path between two named ports, or for the record of one node, which a
//! few header words identify. The tables may not be in the core's caches, and then each request
//! waits for memory. So the batch first prefetches the lines that its ports are found in, then the
//! lines that those point to, and then answers all requests.
//!
//! Nothing is decided here: [`Search`] finds the path as for any other request. Everything else
//! (other components, other subnets, multicast, unknown ports, no path between the first LIDs) goes
//! the general way, [`Family::find`](super::Family::find).

use ib_mad::transport::Packet;
use ib_mad::types::{Gid, Guid, Lid, Qpn};
use ib_mad::wire::MAD_LEN;
use ib_mad::wire::attribute::NodeInfo;
use ib_mad::wire::mad::{Method, MgmtClass};
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::record::{NodeRecord, PathRecord, node, stride};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, SaMad, attribute};

use super::path::is_local;
use super::path::request::Request;
use super::path::search::{PREFERRED, Search, ShownGids};
use crate::tables::qos_match::LevelCounts;
use crate::tables::{EndPort, Tables};

/// Maximum number of requests looked at together.
pub(crate) const TOGETHER_MAX: usize = 64;

/// The plain requests of a batch, looked up.
pub(crate) struct Express<'a> {
    tables: &'a Tables,
    levels: &'a LevelCounts,
    plain: &'a [Plain],
}

impl<'a> Express<'a> {
    /// Reads a batch and fetches what answering it will read. What `plain` held is overwritten.
    #[inline]
    pub(crate) fn new(
        tables: &'a Tables,
        levels: &'a LevelCounts,
        plain: &'a mut Vec<Plain>,
        batch: &[Packet],
    ) -> Self {
        plain.clear();
        plain.extend(batch.iter().map(|packet| Plain::read(tables, packet)));
        for (plain, packet) in plain.iter_mut().zip(batch) {
            plain.find(tables, packet.address.lid);
        }
        Self { tables, levels, plain }
    }

    /// Writes the record for request `at` of the batch into its data part; returns its length.
    /// `None`: nothing was written; use the general path.
    #[inline(always)]
    pub(crate) fn answer(&self, at: usize, packet: &mut Packet) -> Option<usize> {
        let plain = self.plain.get(at)?;
        match plain.kind {
            Kind::Other => None,
            Kind::Path => {
                let record = self.path(plain, &packet.mad)?;
                write_record(SaMad::new(&mut packet.mad).data_mut(), &record);
                Some(PathRecord::LEN)
            }
            Kind::Node => {
                let record = self.node(plain)?;
                write_record(SaMad::new(&mut packet.mad).data_mut(), record);
                Some(NodeRecord::LEN)
            }
        }
    }

    #[inline(always)]
    fn path(&self, plain: &Plain, mad: &[u8; MAD_LEN]) -> Option<[u8; PathRecord::LEN]> {
        let (tables, levels) = (self.tables, self.levels);
        let mad = SaMad::new(mad);
        let mask = mad.sa().component_mask();
        let request = Request::read_plain(tables, mask, mad.data());
        let requester = &plain.requester;
        let search = Search { tables, request: &request, requester, sees_all: false, levels };
        let source = (&plain.source.port, tables.end_class(&plain.source.port));
        let destination = (&plain.destination.port, tables.end_class(&plain.destination.port));
        if !search.allows(source, destination) {
            return None;
        }
        let path = search.path(source, plain.source.lid, destination, plain.destination.lid)?;
        levels.increment(path.level());
        let asked = PathRecord::of(mad.data());
        let sgid = mask.contains(path::SGID).then(|| asked.sgid());
        Some(path.record(ShownGids { sgid, dgid: None }, PREFERRED))
    }

    #[inline(always)]
    fn node(&self, plain: &Plain) -> Option<&'a [u8; stride(NodeRecord::LEN)]> {
        let (nodes, at) = (&self.tables.records.nodes, plain.node);
        let (record, owner) = nodes.get(at)?;
        let lid = plain.source.lid;
        // A LID that several ports claim may lead to the record of another one.
        if lid != Lid::NONE && nodes.lid(at) != self.tables.end_ports.by_lid(lid)?.lid {
            return None;
        }
        let is_seen = self.tables.sight(&plain.requester, false).has(owner);
        is_seen.then(|| record.first_chunk().expect("a row has the padded length of its record"))
    }
}

/// A request of the fast path, with the results of its lookups so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Plain {
    requester: EndPort,
    source: Named,
    destination: Named,
    /// Position of the NodeRecord.
    node: u32,
    kind: Kind,
}

/// Kind of record that a request asks for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    /// Something that goes the general way.
    #[default]
    Other,
    /// The path between two ports.
    Path,
    /// The record of the node that `source` names: by the LID of a port, or by its own GUID.
    Node,
}

/// A port as a request names it: by a GUID, by a LID, or by both; 0 is no name.
#[derive(Clone, Copy, Default)]
struct Named {
    /// Only its GUID is set until the port is found.
    port: EndPort,
    /// After the port is found: the LID that the path is for.
    lid: Lid,
}

/// Components of a PathRecord that neither select nor restrict paths, except P_Key and inputs of
/// QoS rules.
const PLAIN: ComponentMask = ComponentMask(
    path::SERVICE_ID.0
        | path::DGID.0
        | path::SGID.0
        | path::DLID.0
        | path::SLID.0
        | path::FLOW_LABEL.0
        | path::HOP_LIMIT.0
        | path::TCLASS.0
        | path::REVERSIBLE.0
        | path::NUMB_PATH.0
        | path::PKEY.0
        | path::QOS_CLASS.0
        | path::PREFERENCE.0,
);

impl Plain {
    /// Reads a request, and fetches the lines that its look-ups begin at.
    #[inline(always)]
    fn read(tables: &Tables, packet: &Packet) -> Self {
        let mad = SaMad::new(&packet.mad);
        let (header, sa) = (mad.header(), mad.sa());
        let is_plain = (header.base_version() == 1)
            & (header.mgmt_class() == MgmtClass::SUBN_ADM)
            & (header.method() == Method::GET)
            & !mad.rmpp().is_active()
            & (sa.sm_key() == 0)
            & (packet.carrier.undelivered == 0)
            & (packet.address.local_qpn != Qpn::SMI);
        let mut plain = Self::default();
        if is_plain {
            tables.end_ports.prefetch_lid(packet.address.lid);
            match header.attribute_id() {
                attribute::PATH_RECORD => plain.path(tables, sa.component_mask(), mad.data()),
                attribute::NODE_RECORD => plain.node(tables, sa.component_mask(), mad.data()),
                _ => {}
            }
        }
        plain
    }

    #[inline(always)]
    fn path(&mut self, tables: &Tables, mask: ComponentMask, data: &[u8; DATA_LEN]) {
        let has = |component: ComponentMask| mask.contains(component);
        let is_half_a_service = mask.intersects(path::SERVICE_ID) && !has(path::SERVICE_ID);
        if mask.intersects(!PLAIN) || is_half_a_service {
            return;
        }
        let record = PathRecord::of(data);
        let gid = |component, gid: Gid| has(component).then_some(gid);
        let lid = |component, lid: Lid| has(component).then_some(lid);
        let (sgid, slid) = (gid(path::SGID, record.sgid()), lid(path::SLID, record.slid()));
        let (dgid, dlid) = (gid(path::DGID, record.dgid()), lid(path::DLID, record.dlid()));
        let is_named =
            self.source.name(tables, sgid, slid) & self.destination.name(tables, dgid, dlid);
        if is_named {
            self.kind = Kind::Path;
            if !tables.qos.is_empty() && has(path::SERVICE_ID) {
                tables.qos.prefetch(record.service_id());
            }
        }
    }

    #[inline(always)]
    fn node(&mut self, tables: &Tables, mask: ComponentMask, data: &[u8; DATA_LEN]) {
        if mask == node::component::LID {
            let lid = NodeRecord::of(data).lid();
            (self.kind, self.source.lid) = (Kind::Node, lid);
            tables.records.prefetch_node_of_lid(lid);
            tables.end_ports.prefetch_lid(lid);
        } else if mask == node::component::NODE_GUID {
            let guid = NodeInfo::at::<4, _>(data).node_guid();
            (self.kind, self.source.port.guid) = (Kind::Node, guid);
            tables.records.prefetch_node_of_guid(guid);
        }
    }

    /// Looks up the ends of a request and prefetches the data they point to.
    #[inline(always)]
    fn find(&mut self, tables: &Tables, requester: Lid) {
        let is_found = match self.kind {
            Kind::Other => return,
            Kind::Path => self.find_path(tables),
            Kind::Node => self.find_node(tables),
        };
        match tables.end_ports.by_lid(requester) {
            Some(requester) if is_found => self.requester = *requester,
            _ => self.kind = Kind::Other,
        }
    }

    #[inline(always)]
    fn find_path(&mut self, tables: &Tables) -> bool {
        if !(self.source.find(tables) && self.destination.find(tables)) {
            return false;
        }
        let (from, to) = (&self.source.port, &self.destination.port);
        tables.paths.prefetch(from.row, to.column);
        if !tables.qos.is_empty() || !tables.paths.is_complete(to.row) {
            tables.paths.prefetch(to.row, from.column);
        }
        true
    }

    #[inline(always)]
    fn find_node(&mut self, tables: &Tables) -> bool {
        let records = &tables.records;
        let rows = match self.source {
            Named { lid: Lid::NONE, port } => records.nodes_of_guid(port.guid),
            Named { lid, .. } => records.nodes_of_lid(lid),
        };
        self.node = rows.start;
        records.nodes.prefetch(self.node);
        rows.len() == 1
    }
}

impl Named {
    /// Looks up the requested GUIDs and LIDs and prefetches their data; `false` if there are none,
    /// or one belongs to no port of this subnet.
    #[inline(always)]
    fn name(&mut self, tables: &Tables, gid: Option<Gid>, lid: Option<Lid>) -> bool {
        self.lid = lid.unwrap_or(Lid::NONE);
        let has_name = match gid {
            Some(gid) => {
                self.port.guid = gid.guid();
                tables.end_ports.prefetch_guid(gid.guid());
                is_local(tables, gid) & (gid.guid().0 != 0)
            }
            None => {
                tables.end_ports.prefetch_lid(self.lid);
                lid.is_some()
            }
        };
        has_name & (lid != Some(Lid::NONE))
    }

    /// Finds the port and its first allowed LID; `false` if there is none or the names contradict
    /// each other.
    #[inline(always)]
    fn find(&mut self, tables: &Tables) -> bool {
        let ports = &tables.end_ports;
        let guid = self.port.guid;
        let port = match guid {
            Guid(0) => ports.names_by_lid(self.lid).first(),
            guid => ports.by_guid(guid),
        };
        let Some(port) = port else { return false };
        self.port = *port;
        if self.lid == Lid::NONE {
            self.lid = port.lid;
            return port.lid.is_unicast();
        }
        guid.0 == 0 || ports.by_lid(self.lid).is_some_and(|other| other.is_same_port(port))
    }
}

/// Writes a record and zeros behind it: of a length that the compiler knows, so that there are no
/// calls.
#[inline(always)]
pub(crate) fn write_record<const LEN: usize>(data: &mut [u8; DATA_LEN], record: &[u8; LEN]) {
    if let Some((place, rest)) = data.split_first_chunk_mut::<LEN>() {
        *place = *record;
        rest.fill(0);
    }
}

//! The tables of the fabric plane, built once per snapshot and never changed.
//!
//! [`Tables::build`] runs off the query path; workers swap whole tables. The data that a PathRecord
//! needs (end ports by GUID and by LID, path classes, end classes, partitions) stays within 2 MB
//! for a fabric of 10,000 hosts.

mod alike;
mod build;
mod columns;
mod end_port;
mod guid_index;
mod matrix;
mod partition;
mod patch;
mod path;
mod record;
mod rewalk;
mod scan;
mod sl;
#[cfg(test)]
mod testing;
mod trace;
mod virtual_ports;
mod walk;

use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::{FabricPlane, RegistryPlane, Subnet};

pub(crate) use alike::SourceKind;
use columns::Columns;
pub use end_port::{EndPort, EndPorts};
pub use partition::{PKeySet, Partitions};
pub use path::{PathClass, Paths};
pub(crate) use record::text;
pub use record::{LinkOwners, NodeRows, Owner, RecordTables, Records};
use sl::Sls;
pub use trace::{Arrival, Step};
use walk::Switches;

use crate::tables::limit::{Limit, RateSupport};
use crate::tables::qos_match::{GroupSet, QosMatcher};

/// Attributes of end ports that determine their paths; interned, a few hundred at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndClass {
    /// P_Key table.
    pub pkeys: PKeySet,
    /// MTU and rate of the port and its link as reported in paths.
    pub limit: Limit,
    /// Code of the MTU that they actually allow: more than in `limit` for an adapter with a quirk;
    /// reported to requesters that ask for more.
    pub mtu_cap: u8,
    /// LMC: the port has 2^LMC LIDs.
    pub lmc: u8,
    /// Rate codes that it understands.
    pub rates: RateSupport,
    /// Port groups that it is in, as far as QoS rules name them.
    pub groups: GroupSet,
    /// Whether it is a virtual port, which receives packets by its GID: they need a GRH.
    pub is_virtual: bool,
}

/// Everything that the SA's answers are taken from.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Parameters of the subnet.
    pub subnet: Subnet,
    /// End ports by GUID and by LID.
    pub end_ports: EndPorts,
    /// Partitions.
    pub partitions: Partitions,
    /// Path classes.
    pub paths: Paths,
    /// Node, port and link records.
    pub records: RecordTables,
    /// QoS rules in force.
    pub qos: QosMatcher,
    /// The plane that these tables were built of: its rows are shared with the snapshot.
    pub(crate) plane: Arc<FabricPlane>,
    /// Inputs of the path classes.
    walked: Walked,
    sls: Sls,
    /// GUIDs of routers' ports, in the order of [`EndPorts::all`].
    routers: Arc<[Guid]>,
    /// Alias GUIDs by the port's own GUID and their place in its GUID table, ascending. Of several
    /// at one place the first counts.
    alias_guids: Arc<[AliasPlace]>,
    end_classes: Arc<[EndClass]>,
    /// The greatest LMC of an end port.
    pub(crate) lmc: u8,
    /// Base LIDs of end ports that are linked to each other without a switch, ascending.
    direct: Arc<[(Lid, Lid)]>,
    /// Rows of the switches that planarized ports are cabled to, by port GUID; empty in a fabric
    /// without planes.
    planes: Arc<[(Guid, u16)]>,
    contradictions: usize,
}

/// A port's own GUID, a place in its GUID table, and the alias there.
type AliasPlace = (Guid, u8, Guid);

/// Inputs and result of walking the routes of a plane.
#[derive(Clone, Debug)]
struct Walked {
    switches: Arc<Switches>,
    columns: Arc<Columns>,
}

impl Tables {
    /// Builds the tables; uses all threads of rayon's current pool.
    pub fn build(fabric: &FabricPlane, registry: &RegistryPlane) -> Self {
        build::build(fabric, registry, None)
    }

    /// Same, starting from the tables of a similar plane: mostly finds the differences.
    #[must_use]
    pub fn rebuild(&self, fabric: &FabricPlane, registry: &RegistryPlane) -> Self {
        build::build(fabric, registry, Some(self))
    }

    /// The tables of `fabric`, made from these by what differs: links between switches, routes,
    /// ports' PortInfo and switches' tables. All else is shared, or copied as it is. `None` if more
    /// differs, or so much that [`rebuild`](Self::rebuild) takes less time. Takes some milliseconds
    /// on the calling thread.
    pub fn patched(&self, fabric: &Arc<FabricPlane>) -> Option<Self> {
        patch::patched(self, fabric)
    }

    /// The tables of `fabric`, which differs at most in how switches forward multicast from that
    /// of these tables. The tables that queries read are copied; nothing is recomputed.
    #[must_use]
    pub fn with_multicast(&self, fabric: &FabricPlane) -> Self {
        let records = self.records.with_multicast(&fabric.mfts);
        Self { records, plane: Arc::new(fabric.clone()), ..self.clone() }
    }

    /// The tables of the same fabric where aliases are registered as in `new`; these are those of
    /// `old`. What queries find ports by is copied and patched, all else shared.
    #[must_use]
    pub fn with_alias_guids(&self, old: &RegistryPlane, new: &RegistryPlane) -> Self {
        build::with_alias_guids(self, old, new)
    }

    /// The end class of a port of these tables.
    #[inline]
    pub fn end_class(&self, port: &EndPort) -> &EndClass {
        &self.end_classes[port.class()]
    }

    /// All LIDs of an end port: its base LID and how many.
    #[inline]
    pub fn lids(&self, port: &EndPort) -> (Lid, u16) {
        (port.lid, 1 << self.end_class(port).lmc)
    }

    /// The records that `requester` may see; all of them if `sees_all`.
    #[inline]
    pub(crate) fn sight(&self, requester: &EndPort, sees_all: bool) -> Sight<'_> {
        let pkeys = self.end_class(requester).pkeys;
        Sight { sees_all, partitions: &self.partitions, pkeys, lid: requester.lid }
    }

    /// The alias at place `index`, at least 1, of a port's GUID table.
    pub fn alias_guid(&self, port_guid: Guid, index: u8) -> Option<Guid> {
        let key = (port_guid, index);
        let at = self.alias_guids.partition_point(|&(port, index, _)| (port, index) < key);
        let &(port, index, alias) = self.alias_guids.get(at)?;
        ((port, index) == key).then_some(alias)
    }

    /// The switch part of the path from `source` to `dlid`, by which `destination` was found.
    #[inline(always)]
    pub fn path_class(&self, source: &EndPort, destination: &EndPort, dlid: Lid) -> PathClass {
        if source.is_same_port(destination) {
            return PathClass { limit: Limit::ANY, hops: 0, sl: 0 };
        }
        if source.row == EndPort::DETACHED {
            let linked = self.direct.binary_search(&(source.lid, destination.lid)).is_ok();
            let limit = if linked { Limit::ANY } else { Limit::NONE };
            return PathClass { limit, hops: 0, sl: 0 };
        }
        let class = self.paths.class(source.row, destination.column, dlid);
        if !class.is_reachable() && !self.planes.is_empty() {
            return self.path_class_in_planes(source, destination, dlid);
        }
        class
    }

    /// The path from a planarized port in the first plane that has one: ports need not be in all.
    #[cold]
    fn path_class_in_planes(
        &self,
        source: &EndPort,
        destination: &EndPort,
        dlid: Lid,
    ) -> PathClass {
        // An alias has the same planes as its port.
        let own = self.end_ports.by_lid(source.lid).map_or(source.guid, |port| port.guid);
        let first = self.planes.partition_point(|(guid, _)| *guid < own);
        let rows = self.planes[first..].iter().take_while(|(guid, _)| *guid == own);
        let classes = rows.map(|(_, row)| self.paths.class(*row, destination.column, dlid));
        classes.into_iter().find(PathClass::is_reachable).unwrap_or(PathClass::UNREACHABLE)
    }

    /// Whether any port is planarized.
    pub(crate) fn has_planes(&self) -> bool {
        !self.planes.is_empty()
    }

    /// The router's port to which packets for another subnet go, if the prefix routes name one
    /// that is there. The first route that fits the prefix and whose router is there counts.
    pub(crate) fn router_to(&self, prefix: u64) -> Option<Guid> {
        let routes = self.subnet.prefix_routes.iter();
        let mut fitting = routes.filter(|route| route.prefix.is_none_or(|own| own == prefix));
        fitting.find_map(|route| match route.router {
            Some(guid) => self.routers.contains(&guid).then_some(guid),
            None => self.routers.first().copied(),
        })
    }

    /// LIDs and GUIDs that the snapshot gave to more than one port; the first one has them.
    pub fn contradictions(&self) -> usize {
        self.contradictions
    }

    /// Bytes of what queries for paths between hosts read from.
    pub fn hot_bytes(&self) -> usize {
        self.end_ports.hot_bytes()
            + self.paths.host_bytes()
            + self.end_classes.len() * size_of::<EndClass>()
            + self.partitions.bytes()
    }
}

/// The records that a requester may see (IBA C15-0.1.21).
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    sees_all: bool,
    partitions: &'a Partitions,
    pkeys: PKeySet,
    lid: Lid,
}

impl Sight<'_> {
    /// Whether that is a record of `owner`: the requester itself, or one that it shares a partition
    /// with.
    #[inline(always)]
    pub(crate) fn has(&self, owner: &Owner) -> bool {
        self.sees_all
            || self.partitions.visible(self.pkeys, owner.pkeys)
            || (owner.end_port == self.lid && owner.end_port != Lid::NONE)
    }
}

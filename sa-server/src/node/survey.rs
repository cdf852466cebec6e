//! Finds the paths from one port to every destination.
//!
//! Each is found as the answer to a Get is ([`query::Family::find`]), from the same tables: the
//! agent's answers equal the responder's because nothing is decided twice.

use std::collections::HashMap;

use ib_mad::types::{Gid, Guid, Lid, PKey};
use ib_mad::wire::mad::Method;
use ib_mad::wire::record::PathRecord;
use ib_mad::wire::record::path::component as path;
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, attribute};

use crate::query::pool::{Pool, PoolConfig};
use crate::query::redirect::Redirection;
use crate::query::{self, Family, Found, Query, Scratch};
use crate::tables::cell::Generation;
use crate::tables::qos_match::LevelCounts;
use crate::tables::{EndPort, PKeySet, SourceKind, Tables};

/// Maximum number of records of one port. Destinations beyond it are left out, and their paths
/// asked of the SA.
pub const RECORDS_MAX: usize = 1 << 18;

/// A PathRecord as in an answer.
pub(super) type Record = [u8; PathRecord::LEN];

/// Components of the requests that the records answer. Agents give a record that is marked as
/// reversible to those that ask for that, too: the first path that fits any request is then the
/// first that fits them.
const COMPONENTS: ComponentMask =
    ComponentMask(path::DGID.0 | path::SGID.0 | path::NUMB_PATH.0 | path::PKEY.0);
/// The same for paths to a LID.
const COMPONENTS_OF_LID: ComponentMask =
    ComponentMask(path::DLID.0 | path::SGID.0 | path::NUMB_PATH.0 | path::PKEY.0);

/// Where a path leads.
#[derive(Clone, Copy)]
enum To {
    Port(Guid),
    Lid(Lid),
}

/// Finds the paths from one port of a generation.
pub(super) struct Survey<'a> {
    generation: &'a Generation,
    source: EndPort,
    family: &'static Family,
    scratch: Scratch,
    pool: Pool,
    redirection: Redirection,
    /// Paths of agents are not among those answered.
    levels: LevelCounts,
    /// P_Keys that the source shares, with their membership bit, by the P_Key table of the
    /// destination; ascending.
    shared: HashMap<PKeySet, Box<[PKey]>>,
}

/// The port with a GUID, if it has paths.
pub(super) fn source_of(tables: &Tables, port: Guid) -> Option<&EndPort> {
    tables.end_ports.by_guid(port).filter(|found| found.lid.is_unicast())
}

/// The GUID of a port and its aliases, ascending. A virtual port has P_Keys of its own, and so
/// paths of its own.
pub(super) fn sources(tables: &Tables, port: &EndPort) -> Vec<Guid> {
    let names = tables.end_ports.names_by_lid(port.lid).iter();
    let mut guids: Vec<Guid> =
        names.filter(|name| name.class == port.class).map(|name| name.guid).collect();
    guids.sort_unstable();
    guids
}

impl<'a> Survey<'a> {
    /// Of the paths from a port, unless this generation does not have it.
    pub(super) fn new(generation: &'a Generation, port: Guid) -> Option<Self> {
        let source = *source_of(&generation.tables, port)?;
        let family = query::family(attribute::PATH_RECORD)?;
        Some(Self {
            generation,
            source,
            family,
            scratch: Scratch::new(),
            pool: Pool::new(PoolConfig::default()),
            redirection: Redirection::off(),
            levels: LevelCounts::default(),
            shared: HashMap::new(),
        })
    }

    fn tables(&self) -> &'a Tables {
        &self.generation.tables
    }

    /// The port whose paths are found.
    pub(super) fn source(&self) -> &EndPort {
        &self.source
    }

    /// The port under each of its GUIDs, those of virtual ports included.
    pub(super) fn names(&self) -> &'a [EndPort] {
        self.tables().end_ports.names_by_lid(self.source.lid)
    }

    /// Whether a GUID is one of the port's.
    pub(super) fn is_own(&self, guid: Guid) -> bool {
        self.names().iter().any(|port| port.guid == guid)
    }

    /// Whether paths of other ports may be equal, and to which.
    pub(super) fn kind(&self) -> Option<SourceKind> {
        self.tables().source_kind(&self.source)
    }

    /// Appends the records of all paths to a destination, ascending by P_Key, as agents get them:
    /// without SGID, and with SLIDs that count from the base LID.
    pub(super) fn append_paths(&mut self, destination: Guid, records: &mut Vec<u8>) {
        let tables = self.tables();
        let Some(port) = tables.end_ports.by_guid(destination) else { return };
        let set = self.share_with(port);
        for at in 0..self.shared[&set].len() {
            let pkey = self.shared[&set][at];
            let Some(mut record) = self.path(To::Port(destination), pkey) else { continue };
            let mut view = PathRecord::of_mut(&mut record);
            let slid = view.slid().0.wrapping_sub(self.source.lid.0);
            view.set_sgid(Gid::default()).set_slid(Lid(slid));
            records.extend_from_slice(&record);
        }
    }

    /// The record of the path to a LID, in the default partition or else in the first that both
    /// ports are in.
    pub(super) fn path_to_lid(&mut self, lid: Lid) -> Option<Record> {
        let port = self.tables().end_ports.by_lid(lid)?;
        let set = self.share_with(port);
        let shared = &self.shared[&set];
        let default = shared.iter().find(|pkey| pkey.base() == PKey::DEFAULT_LIMITED.base());
        let pkey = *default.or(shared.first())?;
        self.path(To::Lid(lid), pkey)
    }

    /// Finds the P_Keys that are shared with a port. Returns the key of `shared`.
    fn share_with(&mut self, port: &EndPort) -> PKeySet {
        let tables = self.tables();
        let set = tables.end_class(port).pkeys;
        let own = tables.end_class(&self.source).pkeys;
        self.shared.entry(set).or_insert_with(|| shared(tables, own, set));
        set
    }

    /// The answer to a Get for the path in the partition of `pkey`.
    fn path(&mut self, to: To, pkey: PKey) -> Option<Record> {
        let prefix = self.tables().subnet.prefix;
        let mut asked = [0; DATA_LEN];
        let (record, _) = asked.split_first_chunk_mut::<{ size_of::<Record>() }>()?;
        let mut record = PathRecord::of_mut(record);
        record.set_sgid(Gid::new(prefix, self.source.guid)).set_numb_path(1).set_pkey(pkey);
        let mask = match to {
            To::Port(guid) => {
                record.set_dgid(Gid::new(prefix, guid));
                COMPONENTS
            }
            To::Lid(lid) => {
                record.set_dlid(lid);
                COMPONENTS_OF_LID
            }
        };
        let generation = self.generation;
        let query = Query {
            tables: &generation.tables,
            registry: &generation.registry,
            index: &generation.index,
            mask,
            attribute_modifier: 0,
            record: &asked,
            data: &asked,
            is_rmpp: false,
            slid: self.source.lid,
            sgid: None,
            trusted: false,
            redirection: &self.redirection,
            levels: &self.levels,
        };
        let mut found = Found::new(&mut self.scratch, &mut self.pool, self.family.record_len, true);
        let searched = self.family.find(Method::GET, &query, &mut found);
        let found = found.finish();
        let is_one = searched.is_ok() && found.exhausted.is_none() && found.count == 1;
        if is_one { self.scratch.records.first_chunk().copied() } else { None }
    }
}

/// P_Keys, with their membership bit, by which ports with these tables can talk, ascending.
fn shared(tables: &Tables, a: PKeySet, b: PKeySet) -> Box<[PKey]> {
    let partitions = &tables.partitions;
    let bases = partitions.bases().iter().map(|&base| PKey(base));
    let mut shared: Vec<u16> =
        bases.filter(|&pkey| partitions.share(a, b, pkey)).map(|pkey| pkey.0).collect();
    shared.sort_unstable();
    shared.into_iter().map(|base| PKey(base | 0x8000)).collect()
}

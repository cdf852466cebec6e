//! Finds the records that answer a query.
//!
//! There is one module per record type; each names its attribute and finds its records in the
//! tables. To add a record type, add a module and list it in `SERVED`, unless each record is a row
//! of the registry: `registered` answers as such a row says (`sa_proto::snapshot::ShownRecord`).
//! Queries arrive here with their header checked. [`pool`] provides memory for long answers,
//! [`redirect`] the target of a redirection. How an answer is sent is not decided here.

mod class_port_info;
mod end;
mod express;
mod found;
mod guid_info;
mod inform_info;
mod linear_forwarding_table;
mod link;
mod mc_member;
mod multi_path;
mod multicast_forwarding_table;
mod node;
mod parts;
mod path;
mod pkey_table;
pub mod pool;
mod port_info;
mod ports;
pub mod redirect;
mod registered;
mod service;
mod sl_to_vl;
mod sm_info;
mod switch_info;
mod templates;
mod unserved;
mod vl_arbitration;

use ib_mad::types::{Gid, Lid, PKey};
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN, attribute};

use sa_proto::snapshot::RegistryPlane;

use crate::query::redirect::Redirection;
use crate::stats::DropReason;
use crate::tables::index::RegistryIndex;
use crate::tables::qos_match::LevelCounts;
use crate::tables::{EndPort, Sight, Tables};

pub(crate) use express::{Express, Plain, TOGETHER_MAX, write_record};
pub(crate) use found::{Exhausted, Found, Scratch};
pub(crate) use parts::Parts;
pub(crate) use path::request::Request as PathRequest;
pub use path::select::NoPath;
pub(crate) use path::select::{rule, select};
pub(crate) use path::{is_local, local_port, router};

/// A request, its header read and checked.
pub(crate) struct Query<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) registry: &'a RegistryPlane,
    pub(crate) index: &'a RegistryIndex,
    pub(crate) mask: ComponentMask,
    pub(crate) attribute_modifier: u32,
    /// The data part: the record as the requester filled it in.
    pub(crate) record: &'a [u8; DATA_LEN],
    /// The whole data part: longer than `record` if the request came in several packets, shorter if
    /// its RMPP header says so.
    pub(crate) data: &'a [u8],
    /// Whether the request came by RMPP.
    pub(crate) is_rmpp: bool,
    /// Where the request came from.
    pub(crate) slid: Lid,
    /// Source GID of its GRH, if it has one.
    pub(crate) sgid: Option<Gid>,
    /// Whether the requester proved with the SM_Key that it is trusted.
    pub(crate) trusted: bool,
    /// Responders that requesters are redirected to.
    pub(crate) redirection: &'a Redirection,
    /// Where paths are counted.
    pub(crate) levels: &'a LevelCounts,
}

impl<'a> Query<'a> {
    /// The port that asks; records that it shares no partition with are hidden from it. Known by
    /// its LID, or by its GID where ports have no LIDs (RoCE).
    #[inline]
    pub(crate) fn requester(&self) -> Result<&'a EndPort, Refusal> {
        let port = match (self.slid, self.sgid) {
            (Lid::NONE, Some(gid)) => local_port(self.tables, gid),
            (lid, _) => self.tables.end_ports.by_lid(lid),
        };
        port.ok_or(Refusal::Unheard(DropReason::UnknownRequester))
    }

    /// Whether partitions hide nothing from the requester (`trusted_see_all`).
    #[inline]
    pub(crate) fn sees_all(&self) -> bool {
        self.trusted && self.tables.subnet.trusted_see_all
    }

    /// Whether `requester` may see records for the members of a partition.
    #[inline]
    fn may_see_partition(&self, requester: &EndPort, pkey: PKey) -> bool {
        let pkeys = self.tables.end_class(requester).pkeys;
        self.sees_all() || self.tables.partitions.is_member(pkeys, pkey)
    }

    /// The records that `requester` may see.
    #[inline]
    fn sight(&self, requester: &EndPort) -> Sight<'a> {
        self.tables.sight(requester, self.sees_all())
    }

    /// Whether `requester` may see the records of an end port.
    #[inline]
    fn may_see_port(&self, requester: &EndPort, port: &EndPort) -> bool {
        let pkeys = |port| self.tables.end_class(port).pkeys;
        self.sees_all()
            || self.tables.partitions.visible(pkeys(requester), pkeys(port))
            || requester.is_same_port(port)
    }
}

/// Why a request gets no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The request is answered with this status.
    Status(Status),
    /// The request is not answered.
    Unheard(DropReason),
}

type Find = fn(&Query<'_>, &mut Found<'_>) -> Result<(), Refusal>;

/// An attribute of the class, and how its requests are handled.
pub(crate) struct Family {
    /// The attribute.
    pub(crate) attribute: AttributeId,
    /// Length of a record, bytes.
    pub(crate) record_len: usize,
    /// The attribute that answers name.
    pub(crate) answered_as: AttributeId,
    /// Finds records for Get() and GetTable(), or GetMulti(); `None` if they are not served.
    find: Option<Find>,
    /// Whether GetMulti() is served, and nothing else.
    is_multi: bool,
    /// Whether answers are records of the class, at an AttributeOffset.
    pub(crate) is_record: bool,
    /// Whether there is no GetTable().
    get_only: bool,
    /// Whether Set() and Delete() are accepted, and which of them write to the SM's registry: see
    /// [`Family::is_write`].
    writable: bool,
    deletable: bool,
    /// Whether Get() and GetTable() read registrations: see [`Family::is_registry`].
    registry: bool,
    /// Whether every method of the class is answered, with a refusal.
    refused: bool,
    /// The status for methods that are answered but not served.
    otherwise: Status,
}

impl Family {
    /// A record that is read by Get() and GetTable() and not written.
    const fn readable(attribute: AttributeId, record_len: usize, find: Find) -> Self {
        Self { record_len, find: Some(find), ..Self::unserved(attribute) }
    }

    /// A record requested by GetMulti() (IBA C15-0.1.8.7).
    const fn multi(attribute: AttributeId, record_len: usize, find: Find) -> Self {
        Self { is_multi: true, ..Self::readable(attribute, record_len, find) }
    }

    /// A record that is refused.
    const fn unserved(attribute: AttributeId) -> Self {
        Self {
            attribute,
            record_len: 8,
            answered_as: attribute,
            find: None,
            is_multi: false,
            is_record: true,
            get_only: false,
            writable: false,
            deletable: false,
            registry: false,
            refused: false,
            otherwise: Status::UNSUPPORTED_METHOD_ATTRIBUTE,
        }
    }

    /// The family, with Set() and Delete() executed by the SM's registry.
    const fn writable(self) -> Self {
        Self { writable: true, deletable: true, ..self }
    }

    /// The family, with Set() executed by the SM's registry, and Delete() refused.
    const fn settable(self) -> Self {
        Self { writable: true, ..self }
    }

    /// The family, with every method refused.
    const fn refused(self) -> Self {
        Self { refused: true, ..self }
    }

    /// Whether requests with this method are answered, possibly with a refusal. Others are ignored,
    /// as OpenSM does; clients depend on that.
    #[inline]
    pub(crate) fn hears(&self, method: Method) -> bool {
        match method {
            Method::GET | Method::GET_TABLE | Method::GET_MULTI => true,
            Method::SET | Method::DELETE => self.writable || self.refused,
            Method::GET_TRACE_TABLE => self.refused,
            _ => false,
        }
    }

    /// The family, read from the registry plane.
    const fn of_registry(self) -> Self {
        Self { registry: true, ..self }
    }

    /// Whether `method` of this attribute is a write. Check this before [`find`](Self::find), which
    /// refuses writes.
    #[inline]
    pub(crate) fn is_write(&self, method: Method) -> bool {
        (method == Method::SET && self.writable) || (method == Method::DELETE && self.deletable)
    }

    /// Whether its records are registrations. A write that the SM has accepted may not have arrived
    /// here yet, so an empty result is confirmed by the SM first.
    #[inline]
    pub(crate) fn is_registry(&self) -> bool {
        self.registry
    }

    /// Whether the answer depends on registrations of clients.
    #[cold]
    pub(crate) fn reads_registry(&self, query: &Query<'_>) -> bool {
        let is_path = self.attribute == attribute::PATH_RECORD;
        self.registry || is_path && path::names_registered(query)
    }

    /// Finds the records for an accepted `method` of this attribute.
    pub(crate) fn find(
        &self,
        method: Method,
        query: &Query<'_>,
        found: &mut Found<'_>,
    ) -> Result<(), Refusal> {
        match (method, self.find) {
            (method, _) if self.is_write(method) => {
                Err(Refusal::Status(Status::UNSUPPORTED_METHOD_ATTRIBUTE))
            }
            // Clients that cannot take an answer of several packets do not ask for one.
            (Method::GET | Method::GET_TABLE | Method::GET_MULTI, Some(_))
                if self.is_multi && !query.is_rmpp =>
            {
                Err(Refusal::Status(Status::SA_REQ_INVALID))
            }
            (Method::GET_MULTI, Some(find)) if self.is_multi => find(query, found),
            (Method::GET | Method::GET_TABLE, Some(_)) if self.is_multi => {
                Err(Refusal::Status(self.otherwise))
            }
            (Method::GET, Some(find)) => find(query, found),
            (Method::GET_TABLE, Some(find)) if !self.get_only => find(query, found),
            _ => Err(Refusal::Status(self.otherwise)),
        }
    }
}

/// All served attributes, then the refused ones.
const SERVED: [&Family; 17] = [
    &path::FAMILY,
    &multi_path::FAMILY,
    &node::FAMILY,
    &port_info::FAMILY,
    &link::FAMILY,
    &class_port_info::FAMILY,
    &switch_info::FAMILY,
    &sl_to_vl::FAMILY,
    &vl_arbitration::FAMILY,
    &pkey_table::FAMILY,
    &linear_forwarding_table::FAMILY,
    &multicast_forwarding_table::FAMILY,
    &guid_info::FAMILY,
    &sm_info::FAMILY,
    &inform_info::INFORM_INFO,
    &service::FAMILY,
    &mc_member::FAMILY,
];

const FAMILIES: [&Family; SERVED.len() + OTHERS[0].len() + OTHERS[1].len()] = {
    let mut all = [SERVED[0]; SERVED.len() + OTHERS[0].len() + OTHERS[1].len()];
    let mut i = 0;
    while i < SERVED.len() {
        all[i] = SERVED[i];
        i += 1;
    }
    let mut other = 0;
    while other < OTHERS.len() {
        let mut j = 0;
        while j < OTHERS[other].len() {
            all[i] = &OTHERS[other][j];
            (i, j) = (i + 1, j + 1);
        }
        other += 1;
    }
    all
};

const OTHERS: [&[Family]; 2] = [registered::FAMILIES, &unserved::FAMILIES];

/// The family of every attribute id of one byte; the class defines no others.
static BY_ATTRIBUTE: [Option<&Family>; 256] = {
    let mut table = [None; 256];
    let mut i = 0;
    while i < FAMILIES.len() {
        table[FAMILIES[i].attribute.0 as usize] = Some(FAMILIES[i]);
        i += 1;
    }
    table
};

/// The family that serves or refuses an attribute; `None` if the class has no such attribute.
#[inline]
pub(crate) fn family(attribute: AttributeId) -> Option<&'static Family> {
    BY_ATTRIBUTE.get(usize::from(attribute.0)).copied().flatten()
}

/// Whether some attribute answers this method.
#[inline]
pub(crate) fn is_defined(method: Method) -> bool {
    matches!(
        method,
        Method::GET
            | Method::GET_TABLE
            | Method::GET_MULTI
            | Method::GET_TRACE_TABLE
            | Method::SET
            | Method::DELETE
    )
}

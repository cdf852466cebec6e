//! What a request asks for, and which records answer it.
//!
//! One module a record; each tells which attribute it serves and finds its records in the tables.
//! Adding a record is adding a module and naming it in [`FAMILIES`]. What arrives here is a request
//! whose header has been checked; how the answer goes out is the
//! [`responder`](crate::responder)'s business.

mod class_port_info;
mod found;
mod link;
mod node;
mod path;
mod pattern;
mod port_info;
mod unserved;

use ib_mad::types::Lid;
use ib_mad::wire::mad::{AttributeId, Method, Status};
use ib_mad::wire::sa::{ComponentMask, DATA_LEN};

use sa_proto::snapshot::RegistryPlane;

use crate::redirect::Redirection;
use crate::stats::DropReason;
use crate::tables::{EndPort, Owner, Tables};

pub(crate) use found::{Exhausted, Found};

/// A request, its header read and checked.
pub(crate) struct Query<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) registry: &'a RegistryPlane,
    pub(crate) mask: ComponentMask,
    pub(crate) attribute_modifier: u32,
    /// The data part: the record as the requester filled it in.
    pub(crate) record: &'a [u8; DATA_LEN],
    /// Where the request came from.
    pub(crate) slid: Lid,
    /// Whom requesters are told to ask instead.
    pub(crate) redirection: &'a Redirection,
}

impl<'a> Query<'a> {
    /// The port that asks; records that it shares no partition with are hidden from it.
    pub(crate) fn requester(&self) -> Result<&'a EndPort, Refusal> {
        self.tables
            .end_ports
            .by_lid(self.slid)
            .ok_or(Refusal::Unheard(DropReason::UnknownRequester))
    }

    /// Whether `requester` may see a record of `owner`: its own, or one it shares a partition with.
    #[inline]
    fn may_see(&self, requester: &EndPort, owner: &Owner) -> bool {
        let pkeys = self.tables.end_class(requester).pkeys;
        self.tables.partitions.visible(pkeys, owner.pkeys)
            || (owner.end_port == requester.lid && owner.end_port != Lid::NONE)
    }
}

/// Why a request gets no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is answered with this status.
    Status(Status),
    /// It is not answered.
    Unheard(DropReason),
}

type Find = fn(&Query<'_>, &mut Found<'_>) -> Result<(), Refusal>;

/// An attribute that requests may name, and what is done about them.
pub(crate) struct Family {
    /// The attribute.
    pub(crate) attribute: AttributeId,
    /// Length of a record, bytes.
    pub(crate) record_len: usize,
    /// Finds records for Get() and GetTable(); `None` if they are not served.
    find: Option<Find>,
    /// Whether answers are records of the class, at an AttributeOffset.
    pub(crate) is_record: bool,
    /// Whether there is no GetTable().
    get_only: bool,
    /// Whether Set() and Delete() write to the SM's registry: see [`Family::is_write`].
    writable: bool,
    /// Whether Get() and GetTable() read what clients registered: see [`Family::is_registry`].
    registry: bool,
    /// The status of methods that are heard and not served.
    otherwise: Status,
}

impl Family {
    /// A record that is read by Get() and GetTable() and not written.
    const fn readable(attribute: AttributeId, record_len: usize, find: Find) -> Self {
        Self { record_len, find: Some(find), ..Self::unserved(attribute) }
    }

    /// A record that is refused.
    const fn unserved(attribute: AttributeId) -> Self {
        Self {
            attribute,
            record_len: 8,
            find: None,
            is_record: true,
            get_only: false,
            writable: false,
            registry: false,
            otherwise: Status::UNSUPPORTED_METHOD_ATTRIBUTE,
        }
    }

    /// The same, written through the SM's registry.
    const fn writable(mut self) -> Self {
        self.writable = true;
        self
    }

    /// The same, read from the registry plane.
    const fn of_registry(mut self) -> Self {
        self.registry = true;
        self
    }

    /// Whether `method` of this attribute is a write. Whoever forwards writes to the SM asks this
    /// before [`find`](Self::find), which refuses them.
    #[inline]
    pub(crate) fn is_write(&self, method: Method) -> bool {
        self.writable && matches!(method, Method::SET | Method::DELETE)
    }

    /// Whether its records are what clients registered: a write that the SM has accepted may not
    /// have arrived here yet, so "no records" is worth asking the SM about before it is said.
    #[inline]
    pub(crate) fn is_registry(&self) -> bool {
        self.registry
    }

    /// Finds the records that `method` of this attribute asks for.
    pub(crate) fn find(
        &self,
        method: Method,
        query: &Query<'_>,
        found: &mut Found<'_>,
    ) -> Result<(), Refusal> {
        match (method, self.find) {
            (Method::GET, Some(find)) => find(query, found),
            (Method::GET_TABLE, Some(find)) if !self.get_only => find(query, found),
            (Method::SET | Method::DELETE, _) if !self.is_write(method) => {
                Err(Refusal::Unheard(DropReason::UnsupportedMethod))
            }
            _ => Err(Refusal::Status(self.otherwise)),
        }
    }
}

/// All that is served, then what is refused.
const SERVED: [&Family; 5] =
    [&path::FAMILY, &node::FAMILY, &port_info::FAMILY, &link::FAMILY, &class_port_info::FAMILY];

const FAMILIES: [&Family; SERVED.len() + unserved::FAMILIES.len()] = {
    let mut all = [SERVED[0]; SERVED.len() + unserved::FAMILIES.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < SERVED.len() { SERVED[i] } else { &unserved::FAMILIES[i - SERVED.len()] };
        i += 1;
    }
    all
};

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

//! Explains to operators why a path query gets its answer.
//!
//! [`explain`] calls the code that answers clients and reports the grounds: the hops in the
//! forwarding tables, the links that limit MTU and rate, the rules that did not match and the
//! criterion that excluded them, the level, and the record that a client gets. It decides nothing
//! itself. It is off the query path and may allocate.

mod ends;
mod hops;
pub(crate) mod reply;
mod verdict;

use ib_mad::types::{Gid, PKey};
use sa_proto::snapshot::RegistryPlane;
use serde::Serialize;

use crate::tables::Tables;

pub use crate::query::NoPath;
pub use crate::tables::Arrival;
pub use crate::tables::qos_match::Criterion;
pub use ends::{End, Name, NameError};
pub use hops::{Bottleneck, Hop};
pub use verdict::{Level, PassedOver, Record, Rule};

/// The path to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where the path begins; this port is the one that asks.
    pub source: Name,
    /// Where it leads.
    pub destination: Name,
    /// ServiceID of the request, if it has one.
    pub service_id: Option<u64>,
    /// QoSClass of the request, if it has one.
    pub qos_class: Option<u16>,
    /// P_Key of the request, if it has one.
    pub pkey: Option<PKey>,
}

/// A path, or the lack of one, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Where the path begins.
    pub source: End,
    /// Where it ends on this subnet: for another subnet the router's port.
    pub destination: End,
    /// The requested GID, if it belongs to another subnet.
    pub off_subnet: Option<String>,
    /// Nodes in the order in which a packet leaves them.
    pub hops: Vec<Hop>,
    /// Where that got it.
    pub arrival: Arrival,
    /// The first link with the smallest MTU of the path; none if the path has no link.
    pub mtu_bound_by: Option<Bottleneck>,
    /// The end whose adapter has a quirk that lowers the reported MTU (`enable_quirks`).
    pub mtu_lowered_for: Option<String>,
    /// The first link with the lowest rate of the path.
    pub rate_bound_by: Option<Bottleneck>,
    /// Rules before the one that matched, all if none did, in order of precedence.
    pub passed_over: Vec<PassedOver>,
    /// The rule that matched; none if none did, or none is in force.
    pub rule: Option<Rule>,
    /// Why there is no path.
    pub no_path: Option<NoPath>,
    /// Why there is no reverse path. A path without one is not reversible.
    pub no_way_back: Option<NoPath>,
    /// Status of the answer; 0 if it has a record.
    pub status: u16,
    /// The record as it is sent.
    pub record: Option<Record>,
}

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// No port of that name.
    #[error("no port is named {name}{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// The node name nearest to it, if one is near.
        nearest: Option<String>,
    },
    /// More than one port matches that name.
    #[error("{count} ports match {name}; give a GUID, the full node name, or NAME/P1")]
    Ambiguous {
        /// The name.
        name: String,
        /// How many ports have it.
        count: usize,
    },
    /// A multicast group is no port.
    #[error("{0} is a multicast group; explain needs a unicast destination")]
    Multicast(Gid),
    /// The destination is in another subnet, and no prefix route leads there.
    #[error("no prefix route leads to {0}")]
    NoRouter(Gid),
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

/// Explains a path.
pub fn explain(
    tables: &Tables,
    registry: &RegistryPlane,
    request: &Request,
) -> Result<Explanation, ExplainError> {
    let source = ends::resolve(tables, &request.source)?;
    let (destination, off_subnet) = match &request.destination {
        Name::Gid(gid) if gid.is_multicast() => return Err(ExplainError::Multicast(*gid)),
        Name::Gid(gid) if !crate::query::is_local(tables, *gid) => {
            let router = crate::query::router(tables, *gid);
            (ends::Resolved::of(router.ok_or(ExplainError::NoRouter(*gid))?), Some(*gid))
        }
        name => (ends::resolve(tables, name)?, None),
    };
    let decided = verdict::ask(tables, registry, request, &source, &destination, off_subnet);
    let route = hops::follow(tables, source.port, destination.port, decided.dlid);
    let lowered_for = [&source, &destination].into_iter().find(|end| {
        let class = tables.end_class(end.port);
        class.limit.mtu < class.mtu_cap.min(route.least_mtu)
    });
    Ok(Explanation {
        source: ends::describe(tables, source.port),
        destination: ends::describe(tables, destination.port),
        off_subnet: off_subnet.map(|gid| gid.to_string()),
        hops: route.hops,
        arrival: route.arrival,
        mtu_bound_by: route.mtu,
        mtu_lowered_for: lowered_for.map(|end| ends::describe(tables, end.port).node),
        rate_bound_by: route.rate,
        passed_over: decided.passed_over,
        rule: decided.rule,
        no_path: decided.no_path,
        no_way_back: decided.no_way_back,
        status: decided.status,
        record: decided.record,
    })
}

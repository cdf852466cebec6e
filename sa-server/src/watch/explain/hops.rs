//! The route of a packet and its narrowest links.

use ib_mad::types::{Lid, Mtu, PortNum, Rate};
use ib_mad::wire::attribute::{CapabilityMask, PortInfo};
use sa_proto::snapshot::{Node, Port};
use serde::Serialize;

use super::ends::{describe, description};
use crate::tables::{Arrival, EndPort, Limit, Step, Tables};

/// A node that a packet leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// NodeDescription.
    pub node: String,
    /// Node GUID.
    pub node_guid: String,
    /// Port by which the packet came in; 0 where it starts.
    pub entry: u8,
    /// Port by which it leaves; 0 if it ends in this switch.
    pub exit: u8,
    /// MTU of the link that it leaves by, bytes; none if it ends here.
    pub mtu: Option<u16>,
    /// Rate of that link, Gb/s as it is called.
    pub rate: Option<String>,
    /// SLs that the node maps to VL15, and so drops.
    pub dropped_sls: Vec<u8>,
}

/// A link that bounds a path, or port 0 of a switch at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bottleneck {
    /// Position among the hops.
    pub hop: usize,
    /// Node and port that the link begins at.
    pub from: String,
    /// Node and port that it ends at; empty if it is port 0 of a switch.
    pub to: String,
    /// The limit: bytes, or Gb/s (nominal).
    pub value: String,
}

/// All of a route.
pub(super) struct Route {
    pub(super) hops: Vec<Hop>,
    pub(super) arrival: Arrival,
    pub(super) mtu: Option<Bottleneck>,
    pub(super) rate: Option<Bottleneck>,
    /// Code of the least MTU of its links.
    pub(super) least_mtu: u8,
}

pub(super) fn follow(tables: &Tables, source: &EndPort, to: &EndPort, dlid: Lid) -> Route {
    let mut least = Limit::ANY;
    let mut route = Route {
        hops: Vec::new(),
        arrival: Arrival::NoRoute,
        mtu: None,
        rate: None,
        least_mtu: least.mtu,
    };
    let is_loopback = source.is_same_port(to);
    let at_dlid = tables.end_ports.by_lid(dlid).unwrap_or(to);
    route.arrival = tables.trace(source, at_dlid, dlid, |step| {
        let link = Link::of(tables, step);
        let limit = link.as_ref().map(Link::limit);
        let at = route.hops.len();
        if let (Some(link), Some(limit)) = (&link, limit) {
            // The first of the narrowest; a link as wide as any is one, too, if there are no
            // others.
            if limit.mtu < least.mtu || route.mtu.is_none() {
                route.mtu = Some(link.bottleneck(at, mtu(limit).map_or(0, Mtu::bytes).to_string()));
            }
            if limit.rate < least.rate || route.rate.is_none() {
                route.rate = Some(link.bottleneck(at, rate(limit)));
            }
            least = least.min(limit);
        }
        let passing = tables.passing_at(step);
        route.hops.push(Hop {
            node: description(step.node),
            node_guid: step.node.guid.to_string(),
            entry: step.entry.0,
            exit: step.exit.0,
            mtu: limit.filter(|_| !is_loopback).and_then(mtu).map(Mtu::bytes),
            rate: limit.filter(|_| !is_loopback).map(rate),
            dropped_sls: (0..16).filter(|sl| passing >> sl & 1 == 0).collect(),
        });
    });
    route.least_mtu = least.mtu;
    // Port 0 of a switch has no link, and may allow less than those that lead there.
    let last = route.hops.len().saturating_sub(1);
    for (end, hop) in [(source, 0), (to, last)] {
        let (class, named) = (tables.end_class(end), describe(tables, end));
        let allowed = Limit { mtu: class.mtu_cap, ..class.limit };
        let itself = |value| Bottleneck {
            hop,
            from: format!("{}/P{}", named.node, named.port),
            to: String::new(),
            value,
        };
        if allowed.mtu < least.mtu {
            route.mtu = Some(itself(mtu(allowed).map_or(0, Mtu::bytes).to_string()));
        }
        if allowed.rate < least.rate {
            route.rate = Some(itself(rate(allowed)));
        }
        least = least.min(allowed);
    }
    route
}

/// A link by which a packet leaves a node, or would.
struct Link<'a> {
    from: (&'a Node, &'a Port),
    to: Option<(&'a Node, &'a Port)>,
}

impl<'a> Link<'a> {
    fn of(tables: &'a Tables, step: &Step<'a>) -> Option<Self> {
        if step.is_switch() && step.exit == PortNum(0) {
            return None;
        }
        let port = step.node.port(step.exit)?;
        let to = port.peer.and_then(|(guid, num)| {
            let node = tables.node(guid)?;
            Some((node, node.port(num)?))
        });
        Some(Self { from: (step.node, port), to })
    }

    /// Limit that both of its ends allow.
    fn limit(&self) -> Limit {
        self.to.map_or(Limit::ANY, limit_of).min(limit_of(self.from))
    }

    fn bottleneck(&self, hop: usize, value: String) -> Bottleneck {
        let name = |(node, port): (&Node, &Port)| format!("{}/P{}", description(node), port.num);
        let to = self.to.map(name).unwrap_or_default();
        Bottleneck { hop, from: name(self.from), to, value }
    }
}

/// Limits of a port; the external ports of a switch use the capabilities of its port 0.
fn limit_of((node, port): (&Node, &Port)) -> Limit {
    let managed = if node.switch_info.is_some() { node.port(PortNum(0)) } else { Some(port) };
    let capabilities = managed.map_or(CapabilityMask::NONE, |port| info(port).capability_mask());
    Limit::of_port(&info(port), capabilities)
}

fn info(port: &Port) -> PortInfo<&[u8; PortInfo::LEN]> {
    PortInfo::of(&port.info)
}

fn mtu(limit: Limit) -> Option<Mtu> {
    Mtu::from_code(limit.mtu)
}

pub(super) fn rate(limit: Limit) -> String {
    match Rate::BY_VALUE.get(usize::from(limit.rate).wrapping_sub(1)) {
        Some(rate) => rate.to_string(),
        None => "0".to_owned(),
    }
}

//! Measures the tables of a published snapshot, as `ibsmctl routing quality` shows them.

use std::collections::HashMap;

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{NodeInfo, NodeType, PortInfo};
use sa_proto::proto::admin::{
    MeasureRoutingRequest, PatternFigures, RoutingQuality, TrafficQuality,
};
use sa_proto::snapshot::{FabricPlane, Node, Snapshot};
use tonic::Status;

use super::port_name::node_type;
use crate::host_order::{HostOrder, HostPort};
use sm_routing::measure::{Effort, Figures, Groups, Qualities, Quality};
use sm_routing::{Destination, Topology, TopologyBuilder, TopologyError};

/// Largest number of patterns of each kind in one call.
const PATTERNS_MAX: u32 = 10_000;
/// Largest size of a list of hosts, in bytes.
const LISTED_LEN_MAX: usize = 1 << 20;

/// Measures the tables of a snapshot, on this thread alone: routing needs the others.
///
/// # Errors
///
/// If the request exceeds its limits, or nothing is published yet.
pub(super) fn measure(
    snapshot: &Snapshot,
    request: &MeasureRoutingRequest,
) -> Result<RoutingQuality, Status> {
    let plane = snapshot.fabric();
    if plane.lfts.is_empty() {
        return Err(Status::failed_precondition(
            "nothing is published: this SM is not the master, or its first sweep has not ended",
        ));
    }
    if request.patterns > PATTERNS_MAX {
        return Err(Status::invalid_argument(format!("at most {PATTERNS_MAX} patterns")));
    }
    if request.listed.len() > LISTED_LEN_MAX {
        return Err(Status::invalid_argument("a list of hosts has at most 1 MiB"));
    }
    let order = match (request.listed.is_empty(), request.hosts.as_str()) {
        (false, _) => HostOrder::File("hosts".into()),
        (_, "" | "name") => HostOrder::Name,
        (_, "random") => HostOrder::Random,
        (_, "rail") => HostOrder::Rail,
        (_, other) => {
            return Err(Status::invalid_argument(format!("unknown order of hosts '{other}'")));
        }
    };
    let mut effort = Effort::default();
    if request.patterns > 0 {
        effort.patterns = request.patterns;
    }
    let routed = Routed::of(plane).map_err(|error| Status::internal(error.to_string()))?;
    let (hosts, remarks) = routed.hosts(&order, &request.listed);
    let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let threads = threads.map_err(|error| Status::resource_exhausted(error.to_string()))?;
    let found = threads.install(|| routed.measure(&hosts, effort));
    Ok(RoutingQuality {
        fabric_generation: snapshot.version().fabric_generation,
        routing_engine: plane.subnet.routing_engine.clone(),
        switches: routed.topology.switch_count() as u32,
        links: routed.topology.link_count() as u32 / 2,
        hosts: hosts.iter().map(Vec::len).sum::<usize>() as u32,
        patterns: effort.patterns,
        remarks,
        base: Some(message(&found.base)),
        spread: found.spread.as_ref().map(message),
    })
}

/// The tables of a plane, with the topology that they are for.
pub(crate) struct Routed<'a> {
    topology: Topology,
    lfts: Vec<&'a [u8]>,
    /// By destination: port GUID, and NodeDescription.
    ends: Vec<(Guid, String)>,
}

impl<'a> Routed<'a> {
    /// Switches are numbered by GUID, as for routing. Links that routing avoids count as links.
    pub(crate) fn of(plane: &'a FabricPlane) -> Result<Self, TopologyError> {
        let is_switch = |node: &Node| node_type(node) == Some(NodeType::Switch);
        let mut switches: Vec<&Node> = plane.nodes.iter().map(|node| &**node).collect();
        switches.retain(|node| is_switch(node));
        switches.sort_by_key(|node| node.guid);
        let tables: HashMap<Guid, &[u8]> =
            plane.lfts.iter().map(|lft| (lft.switch, &*lft.ports)).collect();
        let mut builder = TopologyBuilder::new();
        let (mut numbers, mut lfts) = (HashMap::new(), Vec::new());
        for node in &switches {
            let ports = NodeInfo::of(&node.info).num_ports();
            numbers.insert(node.guid, builder.add_switch(ports)?);
            lfts.push(tables.get(&node.guid).copied().unwrap_or_default());
        }
        let mut ends: Vec<(Lid, Guid, String)> = Vec::new();
        for node in &plane.nodes {
            let own = numbers.get(&node.guid).copied();
            for port in &node.ports {
                let peer = port.peer.and_then(|(guid, num)| Some((*numbers.get(&guid)?, num.0)));
                let place = match (own, port.num.0, peer) {
                    (Some(switch), 0, _) => (switch, 0),
                    (Some(switch), num, Some(peer)) => {
                        builder.add_link((switch, num), peer)?;
                        continue;
                    }
                    (None, _, Some(peer)) => peer,
                    (_, _, None) => continue,
                };
                let info = PortInfo::of(&port.info);
                // Of a planarized fabric the plane of the ports that stand for hosts is measured.
                if !info.base_lid().is_unicast() || node.is_further_plane(port) {
                    continue;
                }
                builder.add_destination(Destination {
                    base_lid: info.base_lid(),
                    lid_count: 1 << info.lmc(),
                    egress_switch: place.0,
                    exit: place.1,
                })?;
                let name = crate::observe::node_name(node);
                ends.push((info.base_lid(), port.guid, name));
            }
        }
        // In the order of the topology's destinations.
        ends.sort_by_key(|(lid, ..)| *lid);
        let ends = ends.into_iter().map(|(_, guid, name)| (guid, name)).collect();
        Ok(Self { topology: builder.build()?, lfts, ends })
    }

    /// The hosts in an order, and remarks on `listed`.
    pub(crate) fn hosts(&self, order: &HostOrder, listed: &str) -> (Groups, Vec<String>) {
        let ends = self.topology.destinations().iter().zip(&self.ends).zip(0..);
        let ports = ends.filter(|((to, _), _)| to.is_host());
        let ports = ports.map(|((_, (guid, name)), index)| HostPort { index, guid: *guid, name });
        order.groups(ports.collect(), listed)
    }

    pub(crate) fn measure(&self, hosts: &Groups, effort: Effort) -> Qualities {
        Qualities::of(&self.topology, &self.lfts, hosts, effort)
    }
}

fn message(quality: &Quality) -> TrafficQuality {
    let figures = |figures: &Figures| {
        Some(PatternFigures {
            patterns: figures.patterns,
            flows: figures.flows,
            lost: figures.lost,
            bandwidth: figures.bandwidth,
            bound: figures.bound,
            congestion_mean: figures.congestion_mean,
            congestion_max: figures.congestion_max,
            bad_pairs: figures.bad_pairs,
        })
    };
    TrafficQuality {
        matchings: figures(&quality.matchings),
        shifts: figures(&quality.shifts),
        permutations: figures(&quality.permutations),
        rounds: figures(&quality.rounds),
        all_to_all: quality.all_to_all,
        contention: quality.contention,
    }
}

/// The measures in a message; `None` if parts are missing.
pub(crate) fn of_message(message: &TrafficQuality) -> Option<Quality> {
    let figures = |figures: &Option<PatternFigures>| {
        figures.as_ref().map(|figures| Figures {
            patterns: figures.patterns,
            flows: figures.flows,
            lost: figures.lost,
            bandwidth: figures.bandwidth,
            bound: figures.bound,
            congestion_mean: figures.congestion_mean,
            congestion_max: figures.congestion_max,
            bad_pairs: figures.bad_pairs,
        })
    };
    Some(Quality {
        matchings: figures(&message.matchings)?,
        shifts: figures(&message.shifts)?,
        permutations: figures(&message.permutations)?,
        rounds: figures(&message.rounds)?,
        all_to_all: message.all_to_all,
        contention: message.contention,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use sa_proto::snapshot::{Lft, RegistryPlane, Session};

    #[test]
    fn requests_beyond_limits_and_without_tables_are_refused() {
        let snapshot = |plane| {
            let session = Session { epoch: 1, sm_guid: Guid(2) };
            Snapshot::build(session, 1, plane, RegistryPlane::default()).unwrap()
        };
        let request = MeasureRoutingRequest::default();
        let nothing = measure(&snapshot(FabricPlane::default()), &request).unwrap_err();
        assert_eq!(nothing.code(), tonic::Code::FailedPrecondition);
        let lft = Lft { switch: Guid(5), ports: vec![255; 64].into() };
        let some = snapshot(FabricPlane { lfts: vec![Arc::new(lft)], ..FabricPlane::default() });
        let wrong = [
            MeasureRoutingRequest { patterns: PATTERNS_MAX + 1, ..request.clone() },
            MeasureRoutingRequest { hosts: "age".to_owned(), ..request.clone() },
            MeasureRoutingRequest { listed: "a".repeat(LISTED_LEN_MAX + 1), ..request.clone() },
        ];
        for wrong in wrong {
            let code = measure(&some, &wrong).unwrap_err().code();
            assert_eq!(code, tonic::Code::InvalidArgument);
        }
        assert_eq!(measure(&some, &request).unwrap().hosts, 0);
    }

    #[test]
    fn messages_keep_all_figures() {
        let figures = |n: u32| Figures {
            patterns: n,
            flows: 2,
            lost: 3,
            bandwidth: 0.4,
            bound: 0.5,
            congestion_mean: 6.5,
            congestion_max: 7,
            bad_pairs: 0.8,
        };
        let quality = Quality {
            matchings: figures(1),
            shifts: figures(2),
            permutations: figures(3),
            rounds: figures(4),
            all_to_all: 0.9,
            contention: 10.5,
        };
        assert_eq!(of_message(&message(&quality)), Some(quality));
        let part = TrafficQuality { rounds: None, ..message(&quality) };
        assert_eq!(of_message(&part), None);
    }
}

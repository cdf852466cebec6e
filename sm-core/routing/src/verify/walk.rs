//! Verifies tables by following every route to its end.

use ib_mad::types::Lid;
use rayon::prelude::*;

use super::super::{NO_ROUTE, Routing, Topology};
use super::{Defect, DefectKind, Deliveries, Gap, Gaps};

/// The next step of packets for a LID at a switch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    /// The current walk passed here; passing again means a loop.
    OnTheWay,
    Delivered,
    /// A switch has no entry for the LID.
    NoRoute,
    Lost,
}

/// Finds from which switches which LIDs are delivered, by following all routes hop by hop. Entries
/// for unassigned LIDs are not examined.
pub fn deliveries(topology: &Topology, routing: &Routing) -> Deliveries {
    let gaps = Gaps::new(topology, routing);
    let found = topology.destinations().par_iter().map(|destination| {
        let mut found = Deliveries::default();
        let mut fates = vec![Fate::Unknown; topology.switch_count()];
        let mut path = Vec::new();
        for lid in destination.lids() {
            fates.fill(Fate::Unknown);
            let exit = routing.port(destination.egress_switch, lid);
            fates[usize::from(destination.egress_switch)] =
                if exit == destination.exit { Fate::Delivered } else { Fate::Lost };
            for switch in topology.switches() {
                let fate = follow(topology, routing, lid, switch, &mut fates, &mut path);
                let kind = match fate {
                    Fate::Delivered => {
                        found.delivered += 1;
                        continue;
                    }
                    Fate::NoRoute => {
                        match gaps.judge(switch, destination.egress_switch, destination.is_host()) {
                            Gap::Unreachable => found.unreachable += 1,
                            Gap::Unrouted => found.unrouted += 1,
                            Gap::Missing => {
                                let (kind, port) = (DefectKind::Missing, NO_ROUTE);
                                found.add_defect(Defect { switch, lid, port, kind });
                            }
                        }
                        continue;
                    }
                    _ => DefectKind::Lost,
                };
                found.add_defect(Defect { switch, lid, port: routing.port(switch, lid), kind });
            }
        }
        found
    });
    found.reduce(Deliveries::default, Deliveries::join)
}

fn follow(
    topology: &Topology,
    routing: &Routing,
    lid: Lid,
    from: u16,
    fates: &mut [Fate],
    path: &mut Vec<u16>,
) -> Fate {
    path.clear();
    let mut switch = from;
    let end = loop {
        match fates[usize::from(switch)] {
            Fate::Unknown => {}
            Fate::OnTheWay => break Fate::Lost,
            // A packet forwarded to a switch without a route is lost.
            Fate::NoRoute if !path.is_empty() => break Fate::Lost,
            known => break known,
        }
        let port = routing.port(switch, lid);
        if port == NO_ROUTE {
            fates[usize::from(switch)] = Fate::NoRoute;
            break if path.is_empty() { Fate::NoRoute } else { Fate::Lost };
        }
        let Some(link) = topology.link_at(switch, port) else {
            fates[usize::from(switch)] = Fate::Lost;
            break Fate::Lost;
        };
        fates[usize::from(switch)] = Fate::OnTheWay;
        path.push(switch);
        switch = topology.link(link).peer;
    };
    path.iter().for_each(|&switch| fates[usize::from(switch)] = end);
    end
}

//! `ibsmctl explain --at`: what the history has of the path between two nodes at an earlier time.
//! That is where they were connected, and states and LIDs of their ports, not the forwarding
//! tables: no path is computed in their place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use ib_mad::types::Guid;
use serde::Serialize;

use crate::ctl::{CtlError, Sm, time, to_json, topology};
use crate::observe::ports::{KeptFabric, PortStatus};
use crate::observe::topology::{Link, Topology};

/// Why there is no path in the answer.
const WHY: &str = "the history keeps nodes, links, ports and events, not forwarding tables, SLs or \
                   P_Keys";

/// Answers from the fabric at `at`. Fails if one of the nodes was not there.
pub(super) async fn run(
    sm: &Sm,
    (source, destination): (&str, &str),
    at: &str,
    json: bool,
) -> Result<String, CtlError> {
    let at_ms = time::parse("--at", at)?;
    let then = topology::at(sm, Some(at_ms)).await?;
    let known = |name: &str| then.find(name).map_err(CtlError::NotThen);
    let known = Known::of(&then, at_ms, known(source)?, known(destination)?);
    Ok(if json { to_json(&known) } else { known.text(at) })
}

/// What the history has of a path. As JSON its keys stay; more may be added.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Known {
    /// Milliseconds since 1970.
    at_ms: u64,
    source: Place,
    destination: Place,
    /// The least number of switches between the two, by the links of then; none if no links led
    /// from one to the other.
    fewest_switches: Option<u32>,
    /// Always null: see `path_unknown`.
    path: Option<()>,
    /// Why the path is not known.
    path_unknown: &'static str,
    /// Name of the engine whose routes were in force; none if it is not known.
    routing_engine: Option<String>,
}

/// A node with its links.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Place {
    name: String,
    guid: String,
    /// LID of the node: of a switch that of port 0, else of its first port with one; none if it is
    /// not known.
    lid: Option<u16>,
    links: Vec<String>,
    /// Ports with their states; empty if these are not known.
    ports: Vec<PlacePort>,
}

/// A port of a node.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct PlacePort {
    port: u8,
    guid: String,
    lid: u16,
    lmc: u8,
    state: String,
    physical_state: String,
    /// Active width and speed: `4x NDR`; none without a link.
    rate: Option<String>,
}

impl Place {
    fn of(then: &KeptFabric, guid: Guid) -> Self {
        let linked: BTreeMap<_, _> = then.topology.links_of(guid).collect();
        let lid = then.ports.lid(guid, None);
        let port = |port: &PortStatus| PlacePort {
            port: port.number.0,
            guid: port.guid.to_string(),
            lid: port.lid,
            lmc: port.lmc,
            state: port.state(),
            physical_state: port.physical_state(),
            rate: linked.get(&port.number).map(|link| link.rate.clone()),
        };
        let link = |(number, link): (_, &Link)| {
            let far = then.topology.describe(link.far);
            let port = then.ports.at((guid, number)).map_or_else(String::new, status);
            format!("port {number} - {far}, {}{port}", link.rate)
        };
        let all = then.ports.of_node(guid).iter();
        Self {
            name: then.topology.name(guid),
            guid: guid.to_string(),
            lid: (lid != 0).then_some(lid),
            links: linked.iter().map(|(&number, of)| link((number, of))).collect(),
            ports: all.map(port).collect(),
        }
    }
}

/// State and LIDs of a port, after other words about it.
fn status(port: &PortStatus) -> String {
    match port.lid {
        0 => format!(", {}", port.states()),
        _ => format!(", {}, LID {}", port.states(), port.lids()),
    }
}

impl Known {
    fn of(then: &KeptFabric, at_ms: u64, source: Guid, destination: Guid) -> Self {
        let engine = &then.routing_engine;
        Self {
            at_ms,
            source: Place::of(then, source),
            destination: Place::of(then, destination),
            fewest_switches: fewest_switches(&then.topology, source, destination),
            path: None,
            path_unknown: WHY,
            routing_engine: (!engine.is_empty()).then(|| engine.clone()),
        }
    }

    fn text(&self, at: &str) -> String {
        let mut text = format!("at {}:\n", time::text(self.at_ms));
        for (what, place) in [("source", &self.source), ("destination", &self.destination)] {
            let lid = place.lid.map_or_else(String::new, |lid| format!(", LID {lid}"));
            let _ = writeln!(text, "{what:<16}'{}' {}{lid}", place.name, place.guid);
            for link in &place.links {
                let _ = writeln!(text, "{:<16}{link}", "");
            }
        }
        let least = match self.fewest_switches {
            None => "no links led from one to the other".to_owned(),
            Some(count) => format!("at least {count} switches by the links of then"),
        };
        let _ = writeln!(text, "{:<16}{least}", "between");
        if let Some(engine) = &self.routing_engine {
            let _ = writeln!(text, "{:<16}{engine}", "routing engine");
        }
        let _ = writeln!(text, "{:<16}not known: {}", "path", self.path_unknown);
        let _ = writeln!(
            text,
            "{:<16}ibsmctl diff '{at}' (the topology); ibsmctl events --since '{at}' --kind \
             tables_changed",
            "changed since"
        );
        text
    }
}

/// The least number of switches between two nodes; `None` if no links lead from one to the other.
/// Only switches forward.
fn fewest_switches(then: &Topology, source: Guid, destination: Guid) -> Option<u32> {
    let mut neighbours: BTreeMap<Guid, BTreeSet<Guid>> = BTreeMap::new();
    for (near, link) in &then.links {
        neighbours.entry(near.0).or_default().insert(link.far.0);
        neighbours.entry(link.far.0).or_default().insert(near.0);
    }
    let mut distance = BTreeMap::from([(source, 0)]);
    let mut queue = VecDeque::from([source]);
    while let Some(node) = queue.pop_front() {
        let hops: u32 = distance[&node];
        if node == destination {
            return Some(hops.saturating_sub(1));
        }
        let forwards = node == source || then.nodes.get(&node).is_some_and(|node| node.is_switch);
        for &next in neighbours.get(&node).into_iter().flatten().filter(|_| forwards) {
            distance.entry(next).or_insert_with(|| {
                queue.push_back(next);
                hops + 1
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ports::Ports;
    use crate::observe::problem::testing::plane;

    /// Two leaf switches below a spine, a host at each, and a host that is on its own. The link
    /// between the first leaf and the spine is initialized only.
    fn then() -> KeptFabric {
        let links = [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1), (7, 1, 102, 1)];
        let routing_engine = "ftree".to_owned();
        KeptFabric { routing_engine, ..KeptFabric::of(&plane(&links, 0, 1)) }
    }

    #[test]
    fn where_two_hosts_were_is_known_and_the_path_is_not() {
        let then = then();
        let known = Known::of(&then, 0, Guid(100), Guid(101));
        assert_eq!(known.fewest_switches, Some(3));
        assert_eq!(known.source.links, ["port 1 - 'n1' port 9, 4x QDR, Active, LID 1"]);
        let text = known.text("12:03");
        assert!(text.contains("path            not known: the history keeps"), "{text}");
        assert!(text.contains("'n100' 0x0000000000000064, LID 1\n"), "{text}");
        assert!(text.contains("routing engine  ftree\n"), "{text}");
        assert!(text.contains("ibsmctl diff '12:03'"), "{text}");
        let json = serde_json::to_value(&known).unwrap();
        assert!(json["path"].is_null() && json["path_unknown"].is_string(), "{json}");
        assert_eq!(json["source"]["ports"][0]["rate"], "4x QDR");
        assert_eq!(Known::of(&then, 0, Guid(100), Guid(102)).fewest_switches, None);
        assert_eq!(Known::of(&then, 0, Guid(100), Guid(100)).fewest_switches, Some(0));
    }

    #[test]
    fn a_port_that_was_not_active_is_seen() {
        let leaf = Place::of(&then(), Guid(1));
        let links = &leaf.links;
        assert!(links[0].starts_with("port 1 - 'n8' port 1, 4x QDR, Initialize"), "{links:?}");
        assert!(links[1].starts_with("port 9 - 'n100' port 1, 4x QDR, Active"), "{links:?}");
        assert_eq!((leaf.lid, &leaf.ports[0].state[..]), (None, "Initialize"));
    }

    #[test]
    fn of_a_time_without_ports_the_links_are_known() {
        let older = KeptFabric { ports: Ports::default(), ..then() };
        let place = Place::of(&older, Guid(100));
        assert_eq!((&place.links[0][..], place.lid), ("port 1 - 'n1' port 9, 4x QDR", None));
        assert!(place.ports.is_empty());
    }
}

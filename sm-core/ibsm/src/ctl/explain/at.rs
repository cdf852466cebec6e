//! `ibsmctl explain --at`: what the history has of the path between two nodes at an earlier time.
//! That is where they were connected, not the forwarding tables: no path is computed in their
//! place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;

use ib_mad::types::Guid;
use serde::Serialize;

use crate::ctl::{CtlError, Sm, time, to_json, topology};
use crate::observe::topology::Topology;

/// Why there is no path in the answer.
const WHY: &str = "the history keeps the topology and events, not forwarding tables, SLs or P_Keys";

/// Answers from the topology at `at`. Fails if one of the nodes was not there.
pub(super) async fn run(
    sm: &Sm,
    (source, destination): (&str, &str),
    at: &str,
    json: bool,
) -> Result<String, CtlError> {
    let at_ms = time::parse("--at", at)?;
    let then = topology::at(sm, Some(at_ms)).await?;
    let known = |name: &str| find(&then, name).map_err(CtlError::NotThen);
    let known = Known::of(&then, at_ms, known(source)?, known(destination)?);
    Ok(if json { to_json(&known) } else { known.text(at) })
}

/// The node of a name: its GUID, NodeDescription, the first word of that, or its beginning.
fn find(then: &Topology, name: &str) -> Result<Guid, String> {
    if let Ok(guid) = name.parse::<Guid>()
        && name.starts_with("0x")
    {
        return match then.nodes.contains_key(&guid) {
            true => Ok(guid),
            false => Err(format!(
                "no node had the GUID {name} then; the history has GUIDs of nodes, not of ports"
            )),
        };
    }
    let named = |is: &dyn Fn(&str) -> bool| -> Vec<Guid> {
        let nodes = then.nodes.iter().filter(|(_, node)| is(&node.name));
        nodes.map(|(&guid, _)| guid).collect()
    };
    let first_word = |of: &str| of.split(' ').next() == Some(name);
    for found in [
        named(&|of| of == name),
        named(&first_word),
        named(&|of| !name.is_empty() && of.starts_with(name)),
    ] {
        match found[..] {
            [] => {}
            [guid] => return Ok(guid),
            _ => return Err(format!("'{name}' was the name of {} nodes then", found.len())),
        }
    }
    Err(format!("no node was named '{name}' then; the history has no LIDs and GIDs"))
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
}

/// A node with its links.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Place {
    name: String,
    guid: String,
    links: Vec<String>,
}

impl Known {
    fn of(then: &Topology, at_ms: u64, source: Guid, destination: Guid) -> Self {
        let place = |guid| Place {
            name: then.name(guid),
            guid: guid.to_string(),
            links: then
                .links_of(guid)
                .map(|(port, link)| {
                    format!("port {port} - {}, {}", then.describe(link.far), link.rate)
                })
                .collect(),
        };
        Self {
            at_ms,
            source: place(source),
            destination: place(destination),
            fewest_switches: fewest_switches(then, source, destination),
            path: None,
            path_unknown: WHY,
        }
    }

    fn text(&self, at: &str) -> String {
        let mut text = format!("at {}:\n", time::text(self.at_ms));
        for (what, place) in [("source", &self.source), ("destination", &self.destination)] {
            let _ = writeln!(text, "{what:<16}'{}' {}", place.name, place.guid);
            for link in &place.links {
                let _ = writeln!(text, "{:<16}{link}", "");
            }
        }
        let least = match self.fewest_switches {
            None => "no links led from one to the other".to_owned(),
            Some(count) => format!("at least {count} switches by the links of then"),
        };
        let _ = writeln!(text, "{:<16}{least}", "between");
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
    use crate::observe::problem::testing::plane;

    /// Two leaf switches below a spine, a host at each, and a host that is on its own.
    fn then() -> Topology {
        let links = [(1, 1, 8, 1), (2, 1, 8, 2), (1, 9, 100, 1), (2, 9, 101, 1), (7, 1, 102, 1)];
        Topology::of(&plane(&links, 0, 0))
    }

    #[test]
    fn where_two_hosts_were_is_known_and_the_path_is_not() {
        let then = then();
        let known = Known::of(&then, 0, Guid(100), Guid(101));
        assert_eq!(known.fewest_switches, Some(3));
        assert_eq!(known.source.links, ["port 1 - 'n1' port 9, 4x QDR"]);
        let text = known.text("12:03");
        assert!(text.contains("path            not known: the history keeps"), "{text}");
        assert!(text.contains("ibsmctl diff '12:03'"), "{text}");
        let json = serde_json::to_value(&known).unwrap();
        assert!(json["path"].is_null() && json["path_unknown"].is_string(), "{json}");
        assert_eq!(Known::of(&then, 0, Guid(100), Guid(102)).fewest_switches, None);
        assert_eq!(Known::of(&then, 0, Guid(100), Guid(100)).fewest_switches, Some(0));
    }

    #[test]
    fn nodes_are_found_by_what_the_history_has() {
        let then = then();
        assert_eq!(find(&then, "n100"), Ok(Guid(100)));
        assert_eq!(find(&then, "0x0000000000000065"), Ok(Guid(101)));
        assert_eq!(find(&then, "n8"), Ok(Guid(8)));
        assert!(find(&then, "n10").unwrap_err().contains("3 nodes"));
        assert!(find(&then, "0x0000000000000099").unwrap_err().contains("not of ports"));
        assert!(find(&then, "12").unwrap_err().contains("no LIDs"));
    }
}

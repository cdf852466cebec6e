//! The order in which traffic patterns number hosts, as operators give it to `ibsm plan` and
//! `ibsmctl routing quality`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::str::FromStr;

use ib_mad::types::Guid;
use sm_config::parse_number;
use sm_routing::measure::Groups;

/// An order of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostOrder {
    /// By name, numbers in it by value; ports of one name by GUID.
    Name,
    /// A random one, the same each time.
    Random,
    /// The ports of each rail by themselves, by name.
    Rail,
    /// As in a file, which has a host per line.
    File(PathBuf),
}

impl FromStr for HostOrder {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "name" => Self::Name,
            "random" => Self::Random,
            "rail" => Self::Rail,
            path => Self::File(path.into()),
        })
    }
}

/// A host's port that patterns may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort<'a> {
    /// Its index among the destinations of the topology.
    pub index: u32,
    /// Port GUID.
    pub guid: Guid,
    /// NodeDescription.
    pub name: &'a str,
}

impl HostOrder {
    /// The hosts in this order, and remarks on lines without effect. `text` is the content of the
    /// file of [`HostOrder::File`].
    pub fn groups(&self, mut ports: Vec<HostPort<'_>>, text: &str) -> (Groups, Vec<String>) {
        ports.sort_by(|a, b| natural(a.name, b.name).then(a.guid.cmp(&b.guid)));
        let all = |ports: &[HostPort<'_>]| ports.iter().map(|port| port.index).collect();
        match self {
            Self::Name => (vec![all(&ports)], Vec::new()),
            Self::Random => {
                // GUIDs in the order of their scrambled values.
                let mixed = |guid: Guid| {
                    let word = guid.0.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    (word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
                };
                ports.sort_by_key(|port| (mixed(port.guid), port.guid));
                (vec![all(&ports)], Vec::new())
            }
            Self::Rail => (rails(&ports), Vec::new()),
            Self::File(path) => {
                let (hosts, missing) = listed(&ports, text);
                let remarks = missing.iter().map(|(line, name)| {
                    format!("{}:{line}: no host '{name}' is in the fabric", path.display())
                });
                (vec![hosts], remarks.collect())
            }
        }
    }
}

/// The ports of each rail. A host is the first word of a name, and a rail the rest of it (`HCA-1`,
/// `mlx5_0`), with the place of the port among those of this name.
fn rails(ports: &[HostPort<'_>]) -> Groups {
    let mut rails: BTreeMap<(&str, usize), Vec<u32>> = BTreeMap::new();
    let mut before = ("", 0);
    for port in ports {
        before = if before.0 == port.name { (port.name, before.1 + 1) } else { (port.name, 0) };
        let rail = port.name.split_once(' ').map_or("", |(_, rail)| rail);
        rails.entry((rail, before.1)).or_default().push(port.index);
    }
    rails.into_values().collect()
}

/// The ports that the lines name, each once, and the lines that name none. A line has a port GUID,
/// a NodeDescription or the first word of one; a `#` begins a remark.
fn listed(ports: &[HostPort<'_>], text: &str) -> (Vec<u32>, Vec<(usize, String)>) {
    let mut by_name: HashMap<&str, Vec<u32>> = HashMap::new();
    let mut by_guid: HashMap<Guid, u32> = HashMap::new();
    for port in ports {
        by_guid.insert(port.guid, port.index);
        by_name.entry(port.name).or_default().push(port.index);
        if let Some((host, _)) = port.name.split_once(' ') {
            by_name.entry(host).or_default().push(port.index);
        }
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let name = line.split('#').next().unwrap_or_default().trim();
        if name.is_empty() {
            continue;
        }
        let of_guid = parse_number(name).and_then(|guid| by_guid.get(&Guid(guid)));
        let named = by_name.get(name).map(Vec::as_slice);
        let ports = of_guid.map(std::slice::from_ref).or(named).unwrap_or_default();
        if ports.is_empty() {
            missing.push((number, name.to_owned()));
        }
        found.extend(ports.iter().copied().filter(|port| seen.insert(*port)));
    }
    (found, missing)
}

/// Compares names; digits in a row count as a number.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (x, y) = (token(&mut left), token(&mut right));
        let by_value = |x: &str, y: &str| {
            let (x, y) = (x.trim_start_matches('0'), y.trim_start_matches('0'));
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        };
        let order = match (x, y) {
            (Some(x), Some(y)) if is_number(x) && is_number(y) => by_value(x, y),
            (x, y) => x.cmp(&y),
        };
        if order != Ordering::Equal || x.is_none() {
            return order.then_with(|| a.cmp(b));
        }
    }
}

/// Takes the digits, or other characters, at the beginning; `None` at the end.
fn token<'a>(text: &mut &'a str) -> Option<&'a str> {
    let is_digit = text.chars().next()?.is_ascii_digit();
    let end = text.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(text.len());
    let (token, rest) = text.split_at(end);
    *text = rest;
    Some(token)
}

fn is_number(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports<'a>(names: &[&'a str]) -> Vec<HostPort<'a>> {
        let port = |(&name, index): (&&'a str, u32)| HostPort {
            index,
            guid: Guid(0x1_0000 + u64::from(index)),
            name,
        };
        names.iter().zip(0..).map(port).collect()
    }

    fn order(text: &str, names: &[&str], file: &str) -> (Groups, Vec<String>) {
        text.parse::<HostOrder>().unwrap().groups(ports(names), file)
    }

    #[test]
    fn numbers_in_names_count_by_value() {
        let names = ["n10", "n9", "n 1", "m11x2", "n09", "m11x10", "n9"];
        assert_eq!(order("name", &names, "").0, [[3, 5, 4, 1, 6, 0, 2]]);
    }

    #[test]
    fn a_random_order_is_the_same_for_any_order_of_ports() {
        let names: Vec<String> = (0..20).map(|host| format!("h{host}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let once = order("random", &names, "").0;
        let mut turned = ports(&names);
        turned.reverse();
        assert_eq!(HostOrder::Random.groups(turned, "").0, once);
        let ascending: Vec<u32> = (0..20).collect();
        assert_ne!(once[0], ascending);
        let mut sorted = once[0].clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ascending);
    }

    /// Rails differ by the adapter's name or, where one adapter has both, by its ports.
    #[test]
    fn each_rail_is_a_group() {
        let names = ["b mlx5_1", "a mlx5_0", "b mlx5_0", "a mlx5_1"];
        assert_eq!(order("rail", &names, "").0, [[1, 2], [3, 0]]);
        assert_eq!(order("rail", &["a HCA-1", "b HCA-1", "a HCA-1"], "").0, [vec![0, 1], vec![2]]);
    }

    #[test]
    fn a_file_lists_hosts_by_name_or_guid() {
        let names = ["a HCA-1", "b HCA-1", "a HCA-2", "c"];
        let file = "# mine\n0x10003\nb\nd # gone\na\na HCA-1\n";
        let (groups, remarks) = order("mine.txt", &names, file);
        assert_eq!(groups, [[3, 1, 0, 2]]);
        assert_eq!(remarks, ["mine.txt:4: no host 'd' is in the fabric"]);
    }
}

//! M_Keys of ports, and the links between ports: needed to reach ports that answer only requests
//! with their M_Key (IBA 14.2.4).
//!
//! Both tables are pure data. Their files, `guid2mkey` and `neighbors`, are read and written by
//! `runtime` in OpenSM's format, so that either subnet manager can follow the other.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;

use ib_mad::types::{Guid, PortNum};

use sm_routing::text::leading_number;

/// Maximum number of lines read from a file: 65,536 ports, or both ends of as many links.
const LINES_MAX: usize = 1 << 20;
/// How far at most the GUIDs of an adapter's ports are behind its node GUID.
pub const ADAPTER_GUIDS: u64 = 16;

/// Maximum file size, bytes: the maximum number of lines, with room for comments.
pub const FILE_LEN_MAX: u64 = LINES_MAX as u64 * 64;

/// The known M_Keys, by port GUID. All ports of a switch have that of
/// its port 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MKeyTable {
    by_guid: BTreeMap<Guid, u64>,
}

impl MKeyTable {
    /// The M_Key of a port, 0 for none; `None` if it is not known.
    pub fn get(&self, guid: Guid) -> Option<u64> {
        self.by_guid.get(&guid).copied()
    }

    /// Sets the M_Key of a port.
    pub fn set(&mut self, guid: Guid, m_key: u64) {
        if self.by_guid.len() < LINES_MAX || self.by_guid.contains_key(&guid) {
            self.by_guid.insert(guid, m_key);
        }
    }

    /// Removes the M_Key of a port, because it proved wrong.
    pub fn forget(&mut self, guid: Guid) {
        self.by_guid.remove(&guid);
    }

    /// Takes over the M_Keys that the master knows; other known ones stay. Returns whether the
    /// table changed.
    pub fn follow(&mut self, master: &Self) -> bool {
        let mut changed = false;
        for (&guid, &m_key) in &master.by_guid {
            if self.get(guid) != Some(m_key) {
                self.set(guid, m_key);
                changed = true;
            }
        }
        changed
    }

    /// Ports with their M_Keys, ascending by GUID.
    pub fn iter(&self) -> impl Iterator<Item = (Guid, u64)> {
        self.by_guid.iter().map(|(&guid, &m_key)| (guid, m_key))
    }

    /// Reads `guid2mkey`, a GUID and an M_Key a line; yields the number of lines left out, too. Of
    /// two lines about a GUID the first counts, as with OpenSM.
    pub fn parse(text: &str) -> (Self, usize) {
        let mut table = Self::default();
        let left_out = read_lines(text, |key, value| {
            let guid = key.parse::<Guid>().ok().filter(|guid| guid.0 != 0)?;
            let m_key = number(value)?;
            match table.by_guid.entry(guid) {
                Entry::Occupied(_) => None,
                Entry::Vacant(entry) => Some(_ = entry.insert(m_key)),
            }
        });
        (table, left_out)
    }

    /// The table as `guid2mkey`.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(self.by_guid.len() * 39);
        for (guid, m_key) in &self.by_guid {
            let _ = writeln!(text, "{guid} {m_key:#018x}\n");
        }
        text
    }
}

/// A port by the GUID of its node's port, and its number on the node.
pub type End = (Guid, PortNum);

/// The neighbour of each port; each link is listed from both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    by_end: BTreeMap<End, End>,
}

impl Neighbours {
    /// Number of ports with a known neighbour.
    pub fn len(&self) -> usize {
        self.by_end.len()
    }

    /// Whether no link is known.
    pub fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    /// The GUIDs of the ports with known neighbours.
    pub fn guids(&self) -> impl Iterator<Item = Guid> {
        let mut last = None;
        let guids = self.by_end.keys().map(|(guid, _)| *guid);
        guids.filter(move |&guid| last.replace(guid) != Some(guid))
    }

    /// The port at the other end of a link.
    pub fn get(&self, end: End) -> Option<End> {
        self.by_end.get(&end).copied()
    }

    /// The port at the other end of the first known link of the ports with a GUID.
    pub fn place_of(&self, guid: Guid) -> Option<End> {
        self.links_of(guid).next().map(|(_, far)| far)
    }

    /// The known links of the ports with a GUID: port number, and the port at the other end.
    pub fn links_of(&self, guid: Guid) -> impl Iterator<Item = (PortNum, End)> {
        let ports = (guid, PortNum(0))..=(guid, PortNum(u8::MAX));
        self.by_end.range(ports).map(|(&(_, num), &far)| (num, far))
    }

    /// Where a port of an adapter was, by node GUID and port number. The table has port GUIDs, of
    /// which a maker gives an adapter those that follow its node GUID.
    pub fn place_of_adapter(&self, node: Guid, num: PortNum) -> Option<End> {
        self.links_near(node).find(|((_, port), _)| *port == num).map(|(_, &far)| far)
    }

    /// Whether a link is known of a node with this GUID, or of an adapter's port that may be its.
    pub fn has_node(&self, guid: Guid) -> bool {
        self.links_near(guid).next().is_some()
    }

    fn links_near(&self, node: Guid) -> impl Iterator<Item = (&End, &End)> {
        let last = Guid(node.0.saturating_add(ADAPTER_GUIDS));
        self.by_end.range((node, PortNum(0))..=(last, PortNum(u8::MAX)))
    }

    /// Whether so many more links fit without dropping others.
    pub fn has_room(&self, links: usize) -> bool {
        self.by_end.len() + 2 * links <= LINES_MAX
    }

    /// Adds the given links, each by its ends. Other known links stay,
    /// unless an end has a new link, or there is no room for all.
    pub fn join(&mut self, links: impl ExactSizeIterator<Item = (End, End)>) {
        if !self.has_room(links.len()) {
            self.by_end.clear();
        }
        for (a, b) in links.take(LINES_MAX / 2) {
            for (end, far) in [(a, b), (b, a)] {
                let before = self.by_end.insert(end, far);
                // A plug leads from a port to itself.
                if let Some(before) = before.filter(|&before| before != far && before != end) {
                    self.by_end.remove(&before);
                }
            }
        }
    }

    /// Takes over the links that the master knows; others stay as with [`join`](Self::join).
    /// Returns whether the table changed.
    pub fn follow(&mut self, master: &Self) -> bool {
        let is_new = |(a, b): &(&End, &End)| a <= b && self.get(**a) != Some(**b);
        let new: Vec<(End, End)> =
            master.by_end.iter().filter(is_new).map(|(a, b)| (*a, *b)).collect();
        if new.is_empty() {
            return false;
        }
        if self.has_room(new.len()) {
            self.join(new.into_iter());
        } else {
            self.by_end.clone_from(&master.by_end);
        }
        true
    }

    /// Reads `neighbors`, two ends a line; yields the number of lines left out, too. Of two lines
    /// about an end the first counts, and an end counts if the other names it in turn, as with
    /// OpenSM.
    pub fn parse(text: &str) -> (Self, usize) {
        let end = |word: &str| -> Option<End> {
            let (guid, num) = word.split_once(':')?;
            let guid = guid.parse::<Guid>().ok().filter(|guid| guid.0 != 0)?;
            let num = u8::try_from(number(num)?).ok().filter(|&num| num != 0)?;
            Some((guid, PortNum(num)))
        };
        let mut by_end = BTreeMap::new();
        let left_out = read_lines(text, |key, value| {
            let (key, value) = (end(key)?, end(value)?);
            match by_end.entry(key) {
                Entry::Occupied(_) => None,
                Entry::Vacant(entry) => Some(_ = entry.insert(value)),
            }
        });
        let mut table = Self::default();
        let points_back = |(a, b): &(&End, &End)| by_end.get(*b) == Some(*a);
        table.by_end = by_end.iter().filter(points_back).map(|(a, b)| (*a, *b)).collect();
        let one_sided = by_end.len() - table.by_end.len();
        (table, left_out + one_sided)
    }

    /// The table as `neighbors`.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(self.by_end.len() * 44);
        for ((guid, num), (far, far_num)) in &self.by_end {
            let _ = writeln!(text, "{guid}:{num} {far}:{far_num}\n");
        }
        text
    }
}

/// Calls back with the two words of each line; returns the number of lines rejected.
fn read_lines(text: &str, mut take: impl FnMut(&str, &str) -> Option<()>) -> usize {
    let (mut taken, mut left_out) = (0, 0);
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(key) = words.next() else { continue };
        let value = words.next().filter(|_| taken < LINES_MAX);
        match value.and_then(|value| take(key, value)) {
            Some(()) => taken += 1,
            None => left_out += 1,
        }
    }
    left_out
}

/// The number that a word begins with, as C's `strtoull` reads it; `None` if it begins with none.
fn number(word: &str) -> Option<u64> {
    match leading_number(word) {
        (number, rest) if rest.len() < word.len() => number,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As written by OpenSM 3.3.23, except for the second key.
    const GUID2MKEY: &str = "0x0000000000100004 0x0000000000000000\n\n\
                             0x000000000010000a 0x00000000000beef5\n\n";
    const NEIGHBORS: &str = "0x0000000000100007:1 0x0000000000200000:2\n\n\
                             0x0000000000200000:2 0x0000000000100007:1\n\n";

    #[test]
    fn files_of_opensm_are_read_and_written_as_they_are() {
        let (keys, left_out) = MKeyTable::parse(GUID2MKEY);
        assert_eq!(
            (keys.get(Guid(0x10_0004)), keys.get(Guid(0x10_000a))),
            (Some(0), Some(0xb_eef5))
        );
        assert_eq!((keys.render().as_str(), left_out), (GUID2MKEY, 0));
        let (neighbours, left_out) = Neighbours::parse(NEIGHBORS);
        let far = neighbours.get((Guid(0x20_0000), PortNum(2)));
        assert_eq!(far, Some((Guid(0x10_0007), PortNum(1))));
        assert_eq!((neighbours.render().as_str(), left_out), (NEIGHBORS, 0));
    }

    #[test]
    fn lines_that_say_nothing_are_counted() {
        let text = "0x1\n0x2 key\nx 0x1\n# none\n\n0x0 0x1\n0x3 0x4\n0x3 0x5\n";
        let (keys, left_out) = MKeyTable::parse(text);
        assert_eq!((keys.get(Guid(3)), left_out), (Some(4), 5));
        let (neighbours, left_out) = Neighbours::parse(
            "0x1:2 0x3\n0x1:900 0x3:1\n0x1:0 0x3:1\n0x1:2 0x3:4\n0x1:2 0x3:5\n0x3:4 0x1:02\n0x9:1 \
             0x1:2",
        );
        assert_eq!(
            (neighbours.by_end.len(), left_out),
            (2, 5),
            "one names an end that is another's"
        );
    }

    #[test]
    fn keys_are_numbers_as_c_reads_them() {
        let (keys, left_out) = MKeyTable::parse("0x1 010\n0x2 10\r\n0x3 0x10key\n");
        let all = [1, 2, 3].map(|guid| keys.get(Guid(guid)));
        assert_eq!((all, left_out), ([Some(8), Some(10), Some(16)], 0));
    }

    #[test]
    fn a_link_is_known_from_both_ends() {
        let mut neighbours = Neighbours::default();
        let (a, b) = ((Guid(1), PortNum(2)), (Guid(3), PortNum(4)));
        neighbours.join([(a, b)].into_iter());
        assert_eq!((neighbours.get(a), neighbours.get(b)), (Some(b), Some(a)));
    }

    #[test]
    fn a_cable_that_was_moved_leaves_nothing_of_where_it_was() {
        let mut neighbours = Neighbours::default();
        let [a, b, c, d] = [1, 2, 3, 4].map(|guid| (Guid(guid), PortNum(1)));
        neighbours.join([(a, b), (c, d)].into_iter());
        neighbours.join([(a, c)].into_iter());
        let all = [a, b, c, d].map(|end| neighbours.get(end));
        assert_eq!(all, [Some(c), None, Some(a), None]);
        neighbours.join([(c, a)].into_iter());
        assert_eq!(neighbours.by_end.len(), 2, "the same link from its other end");
    }

    /// Regression: the link that took the place of a loopback plug was known from its far end only:
    /// the entry of the plug was removed after the new one had taken its place.
    #[test]
    fn a_cable_in_place_of_a_loopback_plug_is_known_from_both_ends() {
        let [a, b] = [1, 2].map(|guid| (Guid(guid), PortNum(1)));
        let mut neighbours = Neighbours::default();
        neighbours.join([(a, a)].into_iter());
        assert_eq!((neighbours.get(a), neighbours.len()), (Some(a), 1));
        let plug = neighbours.clone();
        neighbours.join([(a, b)].into_iter());
        assert_eq!((neighbours.get(a), neighbours.get(b)), (Some(b), Some(a)));
        assert!(neighbours.follow(&plug), "the master's plug");
        assert_eq!(neighbours, plug);
    }

    /// Ports that left the fabric were kept forever, until the file was too long to be read.
    #[test]
    fn where_there_is_no_room_those_that_went_go_first_and_the_rest_can_be_read() {
        let end =
            |guid: usize| (Guid(0xFFFF_FFFF_FFFF_0000_u64.wrapping_sub(guid as u64)), PortNum(254));
        let links =
            |from: usize| (from..from + LINES_MAX / 2).map(move |i| (end(2 * i), end(2 * i + 1)));
        let mut neighbours = Neighbours::default();
        neighbours.join(links(0));
        assert_eq!(neighbours.by_end.len(), LINES_MAX);
        assert!(neighbours.render().len() as u64 <= FILE_LEN_MAX);
        neighbours.join(links(LINES_MAX));
        assert_eq!((neighbours.by_end.len(), neighbours.get(end(0))), (LINES_MAX, None));
    }

    #[test]
    fn a_standby_has_the_masters_keys_and_links_besides_its_own() {
        let keys = |text| MKeyTable::parse(text).0;
        let mut ours = keys("0x1 0xa\n0x2 0xb");
        let master = keys("0x2 0xc\n0x3 0xd");
        assert!(ours.follow(&master));
        assert_eq!(ours, keys("0x1 0xa\n0x2 0xc\n0x3 0xd"));
        assert!(!ours.follow(&master), "nothing is new");

        let links = |text| Neighbours::parse(text).0;
        let mut ours = links("0x1:1 0x2:1\n0x2:1 0x1:1\n0x5:1 0x6:1\n0x6:1 0x5:1");
        let master = links("0x1:1 0x3:1\n0x3:1 0x1:1");
        assert!(ours.follow(&master));
        assert_eq!(
            ours,
            links("0x1:1 0x3:1\n0x3:1 0x1:1\n0x5:1 0x6:1\n0x6:1 0x5:1"),
            "a port has one neighbour"
        );
        assert!(!ours.follow(&master), "nothing is new");
    }
}

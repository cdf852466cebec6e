//! M_Keys of ports, and who is behind which port: what has to be known to speak to ports that answer
//! only whoever shows their M_Key (IBTA vol 1, 14.2.4).
//!
//! Both tables are pure data. Their files, `guid2mkey` and `neighbors`, are read and written by
//! `runtime` in OpenSM's format, so that either subnet manager can follow the other.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ib_mad::types::{Guid, PortNum};

/// Lines that are kept of a file: 65,536 ports, or both ends of as many links.
const LINES_MAX: usize = 1 << 20;

/// The M_Key of every port, by its GUID, as far as it is known. All ports of a switch have that of
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

    /// States the M_Key of a port.
    pub fn set(&mut self, guid: Guid, m_key: u64) {
        if self.by_guid.len() < LINES_MAX || self.by_guid.contains_key(&guid) {
            self.by_guid.insert(guid, m_key);
        }
    }

    /// What was known of a port is not so.
    pub fn forget(&mut self, guid: Guid) {
        self.by_guid.remove(&guid);
    }

    /// Reads `guid2mkey`, a GUID and an M_Key a line; yields the number of lines left out, too.
    pub fn parse(text: &str) -> (Self, usize) {
        let mut table = Self::default();
        let left_out = read_lines(text, |key, value| {
            let guid = key.parse::<Guid>().ok().filter(|guid| guid.0 != 0)?;
            table.by_guid.insert(guid, hexadecimal(value)?);
            Some(())
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

/// Which port is behind which, each link from both of its ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    by_end: BTreeMap<End, End>,
}

impl Neighbours {
    /// The port at the other end of a link.
    pub fn get(&self, end: End) -> Option<End> {
        self.by_end.get(&end).copied()
    }

    /// States that a link joins two ports.
    pub fn join(&mut self, a: End, b: End) {
        if self.by_end.len() + 2 <= LINES_MAX {
            self.by_end.insert(a, b);
            self.by_end.insert(b, a);
        }
    }

    /// Reads `neighbors`, two ends a line; yields the number of lines left out, too.
    pub fn parse(text: &str) -> (Self, usize) {
        let end = |word: &str| -> Option<End> {
            let (guid, num) = word.split_once(':')?;
            Some((guid.parse().ok()?, PortNum(num.parse().ok()?)))
        };
        let mut table = Self::default();
        let left_out = read_lines(text, |key, value| {
            table.by_end.insert(end(key)?, end(value)?);
            Some(())
        });
        (table, left_out)
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

/// Hands over the two words of each line; returns how many lines had no use.
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

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As OpenSM 3.3.23 wrote them, but for the second key.
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
        let (keys, left_out) = MKeyTable::parse("0x1\n0x2 7\nx 0x1\n# none\n\n0x0 0x1\n0x3 0x4\n");
        assert_eq!((keys.get(Guid(3)), left_out), (Some(4), 4));
        assert_eq!(Neighbours::parse("0x1:2 0x3\n0x1:900 0x3:1\n0x1:2 0x3:4").1, 2);
    }

    #[test]
    fn a_link_is_known_from_both_ends() {
        let mut neighbours = Neighbours::default();
        let (a, b) = ((Guid(1), PortNum(2)), (Guid(3), PortNum(4)));
        neighbours.join(a, b);
        assert_eq!((neighbours.get(a), neighbours.get(b)), (Some(b), Some(a)));
    }
}

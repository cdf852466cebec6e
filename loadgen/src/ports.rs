//! The end ports that a storm queries for.
//!
//! They come from a snapshot ([`fabric`](crate::fabric)) or from a list, which is parsed here.

use ib_mad::types::{Gid, Lid};

/// Addresses of a port in queries and responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndPort {
    /// Its GID; zero if the list has none.
    pub gid: Gid,
    /// Its base LID; 0 if the list has none.
    pub lid: Lid,
    /// LMC: the port has 2^LMC LIDs.
    pub lmc: u8,
}

impl EndPort {
    /// Whether `lid` is one of this port's.
    #[inline]
    pub fn has_lid(&self, lid: Lid) -> bool {
        self.lid != Lid::NONE && lid.0 >> self.lmc == self.lid.0 >> self.lmc
    }
}

/// End ports and their names.
#[derive(Clone, Debug, Default)]
pub struct Ports {
    ends: Vec<EndPort>,
    names: Vec<String>,
}

/// An invalid list of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The line has neither a LID nor a GID.
    #[error("line {0}: expected a LID (1 to 49151), a GID (like fe80::2c9:300:0:1) or both")]
    NoAddress(usize),
    /// Fewer than two ports.
    #[error("found {0} ports, need at least 2")]
    TooFew(usize),
}

impl Ports {
    /// Adds a port.
    pub fn push(&mut self, end: EndPort, name: String) {
        self.ends.push(end);
        self.names.push(name);
    }

    /// Parses a list: one port per line, with its LID, its GID or both, then optionally a name. `#`
    /// starts a comment.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        let mut ports = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let mut end = EndPort::default();
            let mut rest = line;
            while let Some(word) = rest.split_whitespace().next() {
                if let Ok(lid) = word.parse::<u16>().map(Lid)
                    && end.lid == Lid::NONE
                    && lid.is_unicast()
                {
                    end.lid = lid;
                } else if let Ok(gid) = word.parse()
                    && end.gid == Gid::ZERO
                {
                    end.gid = gid;
                } else {
                    break;
                }
                rest = rest[word.len()..].trim_start();
            }
            if end == EndPort::default() {
                return Err(ListError::NoAddress(number));
            }
            ports.push(end, rest.to_owned());
        }
        if ports.len() < 2 {
            return Err(ListError::TooFew(ports.len()));
        }
        Ok(ports)
    }

    /// Number of ports.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A port by its index.
    #[inline]
    pub fn get(&self, index: u32) -> &EndPort {
        &self.ends[index as usize]
    }

    /// All ports.
    pub fn ends(&self) -> &[EndPort] {
        &self.ends
    }

    /// Display name of a port: its name, or else its GID or LID.
    pub fn name(&self, index: u32) -> String {
        let (end, name) = (self.get(index), &self.names[index as usize]);
        match (name.is_empty(), end.gid) {
            (false, _) => name.clone(),
            (true, Gid::ZERO) => format!("LID {}", end.lid),
            (true, gid) => gid.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_ports_by_lid_or_gid_or_both() {
        let text = "# hosts\n12 fe80::1 host a  \n\nfe80::2 # the second\n 13\n";
        let ports = Ports::parse(text).unwrap();
        let ends: Vec<_> = ports.ends().iter().map(|end| (end.lid.0, end.gid)).collect();
        let (a, b) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        assert_eq!(ends, [(12, a), (0, b), (13, Gid::ZERO)]);
        assert_eq!([0, 1, 2].map(|i| ports.name(i)), ["host a", "fe80::2", "LID 13"]);
    }

    #[test]
    fn a_line_without_address_is_named() {
        assert_eq!(Ports::parse("1\nhost-b\n").unwrap_err(), ListError::NoAddress(2));
        assert_eq!(Ports::parse("1\n0\n").unwrap_err(), ListError::NoAddress(2));
        assert_eq!(Ports::parse("1\n").unwrap_err(), ListError::TooFew(1));
    }

    #[test]
    fn a_port_has_all_lids_of_its_mask() {
        let port = EndPort { lid: Lid(8), lmc: 2, ..EndPort::default() };
        assert!(port.has_lid(Lid(11)) && !port.has_lid(Lid(12)) && !port.has_lid(Lid(7)));
        assert!(!EndPort::default().has_lid(Lid(0)));
    }
}

//! Describes a fabric to routing engines: switches, links between them, and destinations.
//!
//! Everything is an index, and frozen once built. Hosts appear only as destinations: LIDs behind a
//! switch's port.

use ib_mad::types::Lid;

/// Entries of a block of a forwarding table.
pub const BLOCK_LEN: usize = 64;

/// A link between switches, as seen from one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The switch at the other end.
    pub peer: u16,
    /// Port number at this end.
    pub port: u8,
    /// Port number at the other end.
    pub peer_port: u8,
}

/// The LIDs of one port: a host's, or a switch's port 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The first LID.
    pub base_lid: Lid,
    /// How many LIDs there are: 2^LMC.
    pub lid_count: u16,
    /// The egress switch: the switch that the port is on or cabled to.
    pub egress_switch: u16,
    /// The port of that switch that leads to the destination; 0 if it is the switch itself.
    pub exit: u8,
}

impl Destination {
    /// Whether this is a host, not a switch.
    pub fn is_host(&self) -> bool {
        self.exit != 0
    }

    /// All its LIDs.
    pub fn lids(&self) -> impl Iterator<Item = Lid> + use<> {
        let first = self.base_lid.0;
        (0..self.lid_count).map(move |offset| Lid(first + offset))
    }
}

/// Switches, their links, and destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    port_counts: Vec<u8>,
    /// Links of all switches, by switch and port.
    links: Vec<Link>,
    /// By switch: index of its first link in `links`; one entry more than switches.
    first_link: Vec<u32>,
    /// By switch and port number: index into `links`, or `NO_LINK`.
    link_at: Vec<u32>,
    /// By switch: index of its port 0 in `link_at`.
    first_port: Vec<u32>,
    destinations: Vec<Destination>,
    last_lid: Lid,
}

const NO_LINK: u32 = u32::MAX;

impl Topology {
    /// Number of switches; they are numbered from 0.
    pub fn switch_count(&self) -> usize {
        self.port_counts.len()
    }

    /// The numbers of all switches.
    pub fn switches(&self) -> std::ops::Range<u16> {
        0..self.port_counts.len() as u16
    }

    /// Number of ports of a switch, without port 0.
    pub fn port_count(&self, switch: u16) -> u8 {
        self.port_counts[usize::from(switch)]
    }

    /// Number of links, each counted from both ends.
    pub fn link_count(&self) -> usize {
        self.links.len()
    }

    /// The links of a switch to others, by ascending port.
    #[inline]
    pub fn links(&self, switch: u16) -> &[Link] {
        &self.links[self.link_range(switch)]
    }

    /// The range of link numbers that a switch's links have.
    #[inline]
    pub fn link_range(&self, switch: u16) -> std::ops::Range<usize> {
        let switch = usize::from(switch);
        self.first_link[switch] as usize..self.first_link[switch + 1] as usize
    }

    /// A link by its number.
    #[inline]
    pub fn link(&self, index: usize) -> Link {
        self.links[index]
    }

    /// The number of the link at a switch's port, if there is one.
    #[inline]
    pub fn link_at(&self, switch: u16, port: u8) -> Option<usize> {
        if port > self.port_count(switch) {
            return None;
        }
        let index = self.link_at[self.first_port[usize::from(switch)] as usize + usize::from(port)];
        (index != NO_LINK).then_some(index as usize)
    }

    /// All destinations, by ascending LID.
    pub fn destinations(&self) -> &[Destination] {
        &self.destinations
    }

    /// The destination of a LID.
    pub fn owner(&self, lid: Lid) -> Option<&Destination> {
        let behind = self.destinations.partition_point(|to| to.base_lid <= lid);
        let to = self.destinations.get(behind.checked_sub(1)?)?;
        to.lids().any(|own| own == lid).then_some(to)
    }

    /// The last LID of any destination, or of those for which the tables are to have room: the
    /// required LinearFDBTop; 0 without destinations.
    pub fn last_lid(&self) -> Lid {
        self.last_lid
    }

    /// Length of a forwarding table for all destinations, in whole blocks.
    pub fn table_len(&self) -> usize {
        (self.last_lid.index() + 1).next_multiple_of(BLOCK_LEN)
    }

    /// Returns the topology with the first LID of each destination only. Tables have the same
    /// length.
    pub(super) fn with_first_lids(&self) -> Self {
        let mut first = self.clone();
        first.destinations.iter_mut().for_each(|to| to.lid_count = 1);
        first
    }

    /// Returns the number of hosts on each switch.
    pub fn hosts_on(&self) -> Vec<u32> {
        let mut hosts = vec![0; self.switch_count()];
        for destination in self.destinations.iter().filter(|destination| destination.is_host()) {
            hosts[usize::from(destination.egress_switch)] += 1;
        }
        hosts
    }
}

/// Reports why links or destinations do not form a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TopologyError {
    #[error("more than {max} switches", max = TopologyBuilder::SWITCHES_MAX)]
    TooManySwitches,
    #[error("switch {switch} has no port {port}")]
    NoSuchPort { switch: u16, port: u8 },
    #[error("port {port} of switch {switch} is linked twice")]
    LinkedTwice { switch: u16, port: u8 },
    #[error("LID {lid} has two destinations")]
    LidTwice { lid: Lid },
    #[error("LIDs {base_lid} to {base_lid} + {lid_count} - 1 are not all unicast")]
    NotUnicast { base_lid: Lid, lid_count: u16 },
    #[error("LID {base_lid} is behind port {port} of switch {switch}, which leads to a switch")]
    ExitIsLink { base_lid: Lid, switch: u16, port: u8 },
}

/// Collects switches, links and destinations in any order, except that a switch must be added
/// before its links and destinations.
#[derive(Clone, Debug, Default)]
pub struct TopologyBuilder {
    port_counts: Vec<u8>,
    /// Links from both of their ends, with the switch at this end.
    links: Vec<(u16, Link)>,
    destinations: Vec<Destination>,
    /// The least last LID.
    reserved: Option<Lid>,
}

impl TopologyBuilder {
    /// Largest number of switches: the number of unicast LIDs.
    pub const SWITCHES_MAX: usize = Lid::UNICAST_LAST.0 as usize;

    /// Creates an empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a switch and returns its number.
    pub fn add_switch(&mut self, ports: u8) -> Result<u16, TopologyError> {
        if self.port_counts.len() == Self::SWITCHES_MAX {
            return Err(TopologyError::TooManySwitches);
        }
        self.port_counts.push(ports);
        Ok((self.port_counts.len() - 1) as u16)
    }

    /// Adds a link between two switches' ports; one direction suffices. Links from a switch to
    /// itself are ignored, as no route needs them.
    pub fn add_link(&mut self, a: (u16, u8), b: (u16, u8)) -> Result<(), TopologyError> {
        for (switch, port) in [a, b] {
            if port == 0 || !self.has_port(switch, port) {
                return Err(TopologyError::NoSuchPort { switch, port });
            }
        }
        if a.0 != b.0 {
            for ((switch, port), (peer, peer_port)) in [(a, b), (b, a)] {
                self.links.push((switch, Link { peer, port, peer_port }));
            }
        }
        Ok(())
    }

    /// Adds a destination.
    pub fn add_destination(&mut self, destination: Destination) -> Result<(), TopologyError> {
        let Destination { base_lid, lid_count, egress_switch, exit } = destination;
        if !self.has_port(egress_switch, exit) {
            return Err(TopologyError::NoSuchPort { switch: egress_switch, port: exit });
        }
        let end = usize::from(base_lid.0) + usize::from(lid_count);
        if !base_lid.is_unicast() || lid_count == 0 || end > Lid::UNICAST_LAST.index() + 1 {
            return Err(TopologyError::NotUnicast { base_lid, lid_count });
        }
        self.destinations.push(destination);
        Ok(())
    }

    /// Makes tables have room up to this LID: where a fabric has planes, each is to have tables of
    /// the same length.
    pub fn reserve_lids(&mut self, last: Lid) {
        self.reserved = self.reserved.max(Some(last));
    }

    /// Freezes the topology, after checking that each port and LID is used once.
    pub fn build(mut self) -> Result<Topology, TopologyError> {
        let (mut first_port, mut ports) = (Vec::with_capacity(self.port_counts.len()), 0);
        for &count in &self.port_counts {
            first_port.push(ports);
            ports += u32::from(count) + 1;
        }
        let mut link_at = vec![NO_LINK; ports as usize];
        for (&(switch, link), index) in self.links.iter().zip(0..) {
            let slot = first_port[usize::from(switch)] as usize + usize::from(link.port);
            let before = std::mem::replace(&mut link_at[slot], index);
            if before != NO_LINK && self.links[before as usize].1 != link {
                return Err(TopologyError::LinkedTwice { switch, port: link.port });
            }
        }
        // Slots are ordered by switch and port, which is the order of links from here on.
        let mut links = Vec::with_capacity(self.links.len());
        let mut first_link = Vec::with_capacity(self.port_counts.len() + 1);
        first_link.push(0);
        for (&first, &count) in first_port.iter().zip(&self.port_counts) {
            for index in &mut link_at[first as usize..][..=usize::from(count)] {
                if *index != NO_LINK {
                    links.push(self.links[*index as usize].1);
                    *index = links.len() as u32 - 1;
                }
            }
            first_link.push(links.len() as u32);
        }
        self.destinations.sort_unstable_by_key(|destination| destination.base_lid);
        let mut last_lid = Lid::NONE;
        for destination in &self.destinations {
            let Destination { base_lid, lid_count, egress_switch, exit } = *destination;
            if base_lid <= last_lid {
                return Err(TopologyError::LidTwice { lid: base_lid });
            }
            last_lid = Lid(base_lid.0 + (lid_count - 1));
            let slot = first_port[usize::from(egress_switch)] as usize + usize::from(exit);
            if link_at[slot] != NO_LINK {
                return Err(TopologyError::ExitIsLink {
                    base_lid,
                    switch: egress_switch,
                    port: exit,
                });
            }
        }
        Ok(Topology {
            port_counts: self.port_counts,
            links,
            first_link,
            link_at,
            first_port,
            destinations: self.destinations,
            last_lid: self.reserved.map_or(last_lid, |reserved| last_lid.max(reserved)),
        })
    }

    fn has_port(&self, switch: u16, port: u8) -> bool {
        self.port_counts.get(usize::from(switch)).is_some_and(|&count| port <= count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(base_lid: u16, lid_count: u16, egress_switch: u16, exit: u8) -> Destination {
        Destination { base_lid: Lid(base_lid), lid_count, egress_switch, exit }
    }

    #[test]
    fn links_are_found_from_both_ends_and_by_port() {
        let mut builder = TopologyBuilder::new();
        for ports in [3, 0, 2] {
            builder.add_switch(ports).unwrap();
        }
        builder.add_link((2, 2), (0, 3)).unwrap();
        builder.add_link((0, 3), (2, 2)).unwrap();
        builder.add_link((0, 1), (2, 1)).unwrap();
        builder.add_destination(destination(64, 1, 0, 2)).unwrap();
        builder.add_destination(destination(4, 4, 1, 0)).unwrap();
        let topology = builder.build().unwrap();
        let here = Link { peer: 2, port: 3, peer_port: 2 };
        assert_eq!(topology.links(0), [Link { peer: 2, port: 1, peer_port: 1 }, here]);
        assert!(topology.links(1).is_empty());
        assert_eq!(topology.link(topology.link_at(2, 2).unwrap()).peer, 0);
        assert_eq!((topology.link_at(0, 2), topology.link_at(0, 4)), (None, None));
        assert_eq!((topology.last_lid(), topology.table_len()), (Lid(64), 128));
        assert_eq!(topology.hosts_on(), [1, 0, 0]);
    }

    #[test]
    fn contradictions_are_refused() {
        let mut builder = TopologyBuilder::new();
        for _ in 0..3 {
            builder.add_switch(2).unwrap();
        }
        let no_port = TopologyError::NoSuchPort { switch: 1, port: 3 };
        assert_eq!(builder.add_link((0, 1), (1, 3)), Err(no_port));
        assert!(builder.add_link((0, 0), (1, 1)).is_err());
        assert!(builder.add_destination(destination(0xBFFF, 2, 0, 1)).is_err());
        assert!(builder.add_destination(destination(0, 1, 0, 1)).is_err());

        let mut twice = builder.clone();
        twice.add_link((0, 1), (1, 1)).unwrap();
        twice.add_link((0, 1), (2, 1)).unwrap();
        let expected = TopologyError::LinkedTwice { switch: 0, port: 1 };
        assert_eq!(twice.build().unwrap_err(), expected);

        let mut overlap = builder.clone();
        overlap.add_destination(destination(4, 4, 0, 1)).unwrap();
        overlap.add_destination(destination(7, 1, 0, 2)).unwrap();
        assert_eq!(overlap.build().unwrap_err(), TopologyError::LidTwice { lid: Lid(7) });

        builder.add_link((0, 1), (1, 1)).unwrap();
        builder.add_destination(destination(1, 1, 1, 1)).unwrap();
        let expected = TopologyError::ExitIsLink { base_lid: Lid(1), switch: 1, port: 1 };
        assert_eq!(builder.build().unwrap_err(), expected);
    }
}

//! Caches frequently used properties of the topology.

use super::Settings;
use crate::Topology;

/// Represents no link.
pub(super) const NO_LINK: u32 = u32::MAX;

/// A topology whose links are known in both directions.
#[derive(Debug)]
pub(super) struct Fabric<'a> {
    pub(super) topology: &'a Topology,
    /// By link: the switch that sends over it.
    senders: Vec<u16>,
    /// By link: the same cable in the other direction.
    reverse: Vec<u32>,
    /// By switch: whether traffic from and to it must be free of credit loops.
    ends: Vec<bool>,
}

impl<'a> Fabric<'a> {
    pub(super) fn new(topology: &'a Topology, settings: &Settings) -> Self {
        let mut senders = vec![0; topology.link_count()];
        for switch in topology.switches() {
            senders[topology.link_range(switch)].fill(switch);
        }
        let reverse = (0..topology.link_count()).map(|number| {
            let link = topology.link(number);
            topology.link_at(link.peer, link.peer_port).map_or(NO_LINK, |back| back as u32)
        });
        let reverse = reverse.collect();
        let hosts = topology.hosts_on();
        let ends = hosts.iter().map(|&hosts| hosts > 0 || settings.includes_switches);
        Self { topology, senders, reverse, ends: ends.collect() }
    }

    /// Number of switches.
    pub(super) fn switch_count(&self) -> usize {
        self.ends.len()
    }

    /// The switch that sends by a link.
    #[inline]
    pub(super) fn sender(&self, link: u32) -> u16 {
        self.senders[link as usize]
    }

    /// The switch that a link leads to.
    #[inline]
    pub(super) fn receiver(&self, link: u32) -> u16 {
        self.topology.link(link as usize).peer
    }

    /// The same cable in the other direction.
    #[inline]
    pub(super) fn reverse(&self, link: u32) -> u32 {
        self.reverse[link as usize]
    }

    /// Numbers of the links by which a switch sends.
    #[inline]
    pub(super) fn links(&self, switch: u16) -> std::ops::Range<u32> {
        let range = self.topology.link_range(switch);
        range.start as u32..range.end as u32
    }

    /// Links to a switch over which others send to it, according to their `choices`.
    pub(super) fn arriving<'b>(
        &'b self,
        choices: &'b [u32],
        switch: u16,
    ) -> impl Iterator<Item = u32> + 'b {
        let arriving = self.links(switch).map(|link| self.reverse(link));
        arriving.filter(|&link| choices[usize::from(self.sender(link))] == link)
    }

    /// All switches for which [`is_end`](Self::is_end) holds.
    pub(super) fn ends(&self) -> impl Iterator<Item = u16> {
        self.topology.switches().filter(|&switch| self.is_end(switch))
    }

    /// Whether traffic from and to a switch must be free of credit loops.
    #[inline]
    pub(super) fn is_end(&self, switch: u16) -> bool {
        self.ends[usize::from(switch)]
    }
}

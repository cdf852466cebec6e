//! New nodes of a subnet that is already known: how many a link may bring, and when they are read.
//!
//! Any port can answer as a switch with more switches behind it. So nodes that are not known are
//! read after all others and for a limited time, and each link has room for as many nodes,
//! switches, ports and LIDs as remain for the rest of the subnet. Exempt are the first discovery of
//! a manager without LIDs from before, nodes with LIDs from before, and the link of the adapter
//! that the manager runs on. Nodes with LIDs from before may be made-up ones that were found
//! earlier: if those behind a link leave many requests unanswered, the time to read them is
//! limited, too.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use ib_mad::wire::attribute::NodeType;

use super::Discovery;
use super::answerer::Answerer;
use super::slow::SLOW_TIME;
use crate::fabric::{Extent, Fabric, Node, NodeIndex, PortIndex};
use crate::manage::lid::LidTable;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::state::PutOff;
use sm_config::Settings;

/// Maximum number of new nodes, and of their ports, that a link brings in one discovery.
const PER_SWEEP: Extent = Extent { nodes: 2048, switches: 2048, ports: 1 << 16, lids: usize::MAX };
/// How long a discovery reads new nodes, after all others were read.
const READING_TIME: Duration = Duration::from_secs(10);
/// Ports read at a time, as a multiple of the window. The time is checked in between.
const PORTS_AT_A_TIME: usize = 16;
/// Requests that nodes with LIDs from before, behind one link, may leave unanswered before the time
/// to read them is limited.
const UNANSWERED_MAX: u32 = 64;
/// Maximum number of ports whose far ends are probed again soon.
const PUT_OFF_MAX: usize = 1024;

/// New nodes of one discovery.
#[derive(Debug, Default)]
pub(in crate::sweep) struct NewNodes {
    /// What each link brought, by the port of a known node that leads there: since the start,
    /// and in this discovery. Counted when the first new node is found.
    brought: Option<HashMap<PortIndex, [Extent; 2]>>,
    /// LIDs that were free then.
    free_lids: usize,
    /// LIDs that new nodes of all links need since.
    lids: usize,
    /// GUIDs of ports that have LIDs from before, and were found where no node was known.
    returned: HashSet<Guid>,
    /// Nodes to be read, each with a port by which it is reached.
    waiting: VecDeque<(NodeIndex, PortIndex)>,
    /// When to stop reading them.
    reading_ends: Option<Instant>,
    /// Requests left unanswered by nodes with LIDs from before, by link.
    unanswered: HashMap<PortIndex, u32>,
    /// When to stop reading such nodes behind links with too many of these.
    patience_ends: Option<Instant>,
    /// Number of nodes left out by link, and the last reason.
    left_out: BTreeMap<PortIndex, (usize, Reason)>,
    /// The ports that lead to the nodes left out.
    egress: HashSet<PortIndex>,
}

/// What the limits of a link mean for a node that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It was there before, or nothing is known yet.
    Exempt,
    /// It has LIDs from before, and appeared behind this port.
    Returned(PortIndex),
    /// It counts for the link of this port.
    Counted(PortIndex),
}

/// Why nodes behind a link were left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The link brought as many as one discovery reads.
    Sweep,
    /// They were not read in time.
    Time,
    /// The link brought as many as remain for the rest of the subnet.
    Room,
}

impl NewNodes {
    /// Counts what each link brought until now, with the first new node.
    fn count_known(&mut self, fabric: &Fabric, lids: &LidTable, settings: &Settings) {
        if self.brought.is_none() {
            let of = |node: &Node| extent_of(node.switch.is_some(), node.port_count, settings);
            let by_entry = fabric.extents(of).into_iter();
            let brought = by_entry.map(|(entry, extent)| (entry, [extent, Extent::default()]));
            self.brought = Some(brought.collect());
            self.free_lids = lids.free_count();
        }
    }

    /// The reason not to add a node behind the link of `entry`, if there is one. One that has a
    /// slot takes no more room than it has.
    fn refusal(
        &mut self,
        fabric: &Fabric,
        entry: PortIndex,
        node: Extent,
        has_slot: bool,
    ) -> Option<Reason> {
        let brought = self.brought.get_or_insert_default();
        let [since_start, now] = *brought.entry(entry).or_default();
        let room = fabric.room(self.free_lids.saturating_sub(self.lids));
        if !has_slot && !since_start.fits(node, room) {
            Some(Reason::Room)
        } else if !now.fits(node, PER_SWEEP) {
            Some(Reason::Sweep)
        } else {
            None
        }
    }

    fn count(&mut self, entry: PortIndex, node: Extent, has_slot: bool) {
        let brought = self.brought.get_or_insert_default();
        let [since_start, now] = brought.entry(entry).or_default();
        now.add(node);
        if !has_slot {
            since_start.add(node);
            self.lids += node.lids;
        }
    }

    fn leave_out(&mut self, entry: PortIndex, egress: Option<PortIndex>, reason: Reason) {
        let (count, last) = self.left_out.entry(entry).or_insert((0, reason));
        *count += 1;
        *last = reason;
        self.egress.extend(egress);
    }

    /// Whether the node behind a port was left out.
    pub(in crate::sweep) fn is_left_out(&self, egress: PortIndex) -> bool {
        self.egress.contains(&egress)
    }
}

impl Discovery {
    /// Adds the node that answered behind `egress`, unless its link brought too many.
    pub(super) fn admit(
        &mut self,
        subnet: &mut Subnet,
        egress: PortIndex,
        answerer: &Answerer,
    ) -> Option<NodeIndex> {
        let entry = match self.standing_of(subnet, egress, answerer) {
            Standing::Exempt => return subnet.add(answerer),
            Standing::Returned(entry) => {
                let node = subnet.add(answerer)?;
                subnet.fabric.set_returned_by(node, entry);
                return Some(node);
            }
            Standing::Counted(entry) => entry,
        };
        let Subnet { fabric, lids, settings, .. } = &*subnet;
        let is_switch = answerer.kind == NodeType::Switch;
        let extent = extent_of(is_switch, answerer.port_count, settings);
        let has_slot = fabric.find(answerer.guid).is_some_and(|node| {
            let node = fabric.node(node);
            node.entry() == Some(entry)
                && (node.kind, node.port_count) == (answerer.kind, answerer.port_count)
        });
        self.new_nodes.count_known(fabric, lids, settings);
        if let Some(reason) = self.new_nodes.refusal(fabric, entry, extent, has_slot) {
            self.new_nodes.leave_out(entry, Some(egress), reason);
            return None;
        }
        let node = subnet.add(answerer)?;
        subnet.fabric.set_entry(node, entry);
        self.new_nodes.count(entry, extent, has_slot);
        Some(node)
    }

    /// What limits hold for the node behind `egress`.
    fn standing_of(&mut self, subnet: &Subnet, egress: PortIndex, answerer: &Answerer) -> Standing {
        let fabric = &subnet.fabric;
        if !self.bounded || subnet.is_adapter_port(egress) {
            return Standing::Exempt;
        }
        let before = fabric.node_of(egress);
        let known = fabric.find(answerer.guid).map(|node| fabric.node(node));
        match known {
            Some(node) if (node.kind, node.port_count) == (answerer.kind, answerer.port_count) => {
                return match (node.entry(), node.returned_by()) {
                    (Some(entry), _) => Standing::Counted(entry),
                    (None, Some(entry)) => Standing::Returned(entry),
                    (None, None) => Standing::Exempt,
                };
            }
            Some(_) => {}
            // Each GUID counts once: made-up nodes may all report the port GUID of a known one.
            None if subnet.lids.get(answerer.port_guid).is_some()
                && self.new_nodes.returned.insert(answerer.port_guid) =>
            {
                return Standing::Returned(before.brought_by().unwrap_or(egress));
            }
            None => {}
        }
        Standing::Counted(before.entry().unwrap_or(egress))
    }

    /// Reads a node that was found, at once if it is known, else after all known ones.
    pub(super) fn visit_in_turn(&mut self, subnet: &mut Subnet, node: NodeIndex, port: PortIndex) {
        if let Some(egress) = subnet.fabric.port(port).peer() {
            self.note_found_behind(subnet, egress, node);
        }
        let is_new = self.bounded && subnet.fabric.node(node).is_new;
        if is_new && subnet.fabric.node(node).entry().is_some() {
            subnet.fabric.node_seen(node, subnet.state.discovery);
            self.new_nodes.waiting.push_back((node, port));
        } else {
            subnet.visit(node, port);
        }
    }

    /// Counts a request to a node that was given up.
    pub(in crate::sweep) fn note_given_up(
        &mut self,
        subnet: &Subnet,
        node: NodeIndex,
        now: Instant,
    ) {
        let Some(entry) = subnet.fabric.node(node).returned_by() else { return };
        let unanswered = self.new_nodes.unanswered.entry(entry).or_default();
        *unanswered += 1;
        if *unanswered == UNANSWERED_MAX {
            self.new_nodes.patience_ends.get_or_insert(now + READING_TIME);
        }
    }

    /// Whether a node is read no further, since the time to read new nodes, or slow ones, is over.
    /// Of these, new nodes are left out.
    pub(in crate::sweep) fn stops_reading(
        &mut self,
        subnet: &Subnet,
        node: NodeIndex,
        now: Instant,
    ) -> bool {
        if let Some(entry) = self.is_slow_too_long(subnet, node, now) {
            if !subnet.fabric.node(node).is_new {
                self.leave_unread(node, entry);
            } else if self.silent.insert(node) {
                self.new_nodes.leave_out(entry, None, Reason::Time);
            }
            return true;
        }
        let NewNodes { reading_ends, patience_ends, unanswered, .. } = &self.new_nodes;
        let is_over = |end: &Option<Instant>| end.is_some_and(|end| now >= end);
        let of = subnet.fabric.node(node);
        let entry = match (of.entry(), of.returned_by()) {
            (Some(entry), _) if is_over(reading_ends) => entry,
            (None, Some(entry)) if is_over(patience_ends) => {
                match unanswered.get(&entry).is_some_and(|&count| count >= UNANSWERED_MAX) {
                    true => entry,
                    false => return false,
                }
            }
            _ => return false,
        };
        if !of.is_new {
            return false;
        }
        if self.silent.insert(node) {
            self.new_nodes.leave_out(entry, None, Reason::Time);
        }
        true
    }

    /// Starts to read some more new nodes; returns whether requests were sent.
    pub(super) fn reads_new_nodes(&mut self, subnet: &mut Subnet, now: Instant) -> bool {
        if self.cut_off || self.new_nodes.waiting.is_empty() {
            return false;
        }
        if now >= *self.new_nodes.reading_ends.get_or_insert(now + READING_TIME) {
            self.stop_reading(subnet);
            return false;
        }
        let mut ports = PORTS_AT_A_TIME * subnet.settings.window();
        while ports > 0
            && let Some((node, port)) = self.new_nodes.waiting.pop_front()
        {
            ports = ports.saturating_sub(usize::from(subnet.fabric.node(node).port_count) + 1);
            subnet.visit(node, port);
        }
        !subnet.exchange.is_idle()
    }

    /// Removes the new nodes that were not read in time.
    fn stop_reading(&mut self, subnet: &mut Subnet) {
        for (node, port) in std::mem::take(&mut self.new_nodes.waiting) {
            if let Some(entry) = subnet.fabric.node(node).entry() {
                let egress = subnet.fabric.port(port).peer();
                self.new_nodes.leave_out(entry, egress, Reason::Time);
            }
            subnet.fabric.remove(node);
        }
    }

    /// Reports the nodes that were known and not read.
    fn report_unread(&mut self, subnet: &mut Subnet) {
        let mut by_link: BTreeMap<PortIndex, usize> = BTreeMap::new();
        self.slow.unread().for_each(|(_, link)| *by_link.entry(link).or_default() += 1);
        for (link, count) in by_link {
            let place = subnet.place(link);
            subnet.anomaly(format_args!(
                "{count} nodes behind {place} answer late, and were not read in {SLOW_TIME:?}: \
                 they stay as they were known"
            ));
        }
    }

    /// Reports the nodes that were left out, and has their places probed again.
    pub(super) fn report_left_out(&mut self, subnet: &mut Subnet) {
        self.report_unread(subnet);
        let NewNodes { left_out, egress, .. } = std::mem::take(&mut self.new_nodes);
        for (&entry, &(count, reason)) in &left_out {
            subnet.journal.report.left_out += count;
            let place = subnet.place(entry);
            match reason {
                Reason::Sweep => subnet.anomaly(format_args!(
                    "{count} more new nodes behind {place}: a link brings {} nodes and {} ports \
                     in a sweep. The next sweeps read the others",
                    PER_SWEEP.nodes, PER_SWEEP.ports
                )),
                Reason::Time => subnet.anomaly(format_args!(
                    "{count} new nodes behind {place} were left out: they could not be read in \
                     {READING_TIME:?}. A later sweep tries again"
                )),
                Reason::Room => subnet.anomaly(format_args!(
                    "{count} new nodes behind {place} were left out: as many nodes, switches, \
                     ports or LIDs appeared behind that link as remain for the rest of the subnet. \
                     If they are real, restart the subnet manager"
                )),
            }
        }
        let mut ports: Vec<PortIndex> = egress.into_iter().collect();
        ports.sort_unstable();
        ports.truncate(PUT_OFF_MAX);
        let is_next = left_out.values().all(|&(_, reason)| reason == Reason::Sweep);
        subnet.state.put_off = PutOff { ports, is_next };
    }
}

/// What a node takes that has so many ports besides port 0.
fn extent_of(is_switch: bool, port_count: u8, settings: &Settings) -> Extent {
    let has_lmc = !is_switch || settings.lmc_esp0;
    Extent::of_node(is_switch, port_count, if has_lmc { settings.lmc } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what is free, a link takes half, the next a quarter: no link takes all.
    #[test]
    fn a_link_has_room_for_as_much_as_remains_for_others() {
        let mut free = 1000;
        let held = [0; 3].map(|_| {
            let mut extent = Extent::default();
            let adapter = Extent::of_node(false, 1, 0);
            let all = Extent { nodes: 1000, switches: 1, ports: usize::MAX, lids: 1000 };
            while extent.fits(adapter, Extent { nodes: free, ..all }) {
                extent.add(adapter);
                free -= 1;
            }
            extent.nodes
        });
        assert_eq!((held, free), ([500, 250, 125], 125));
    }

    #[test]
    fn ports_and_switches_count_as_well() {
        let room = Extent { nodes: 100, switches: 2, ports: 300, lids: 100 };
        let mut extent = Extent::default();
        let switch = Extent::of_node(true, 36, 0);
        assert!(!extent.fits(Extent::of_node(true, 254, 7), Extent { ports: 254, ..room }));
        assert!(extent.fits(Extent::of_node(true, 254, 0), room));
        extent.add(switch);
        assert!(extent.fits(switch, room));
        extent.add(switch);
        assert!(!extent.fits(switch, room), "two of two switches");
    }

    /// Regression: with LMC 3 the adapters that a link brought could have all LIDs.
    #[test]
    fn the_lids_of_all_ports_count() {
        let room = Extent { nodes: 100, switches: 2, ports: 1000, lids: 32 };
        let mut extent = Extent::default();
        extent.add(Extent::of_node(false, 2, 3));
        assert_eq!((extent.lids, Extent::of_node(true, 36, 3).lids), (16, 8));
        assert!(extent.fits(Extent::of_node(false, 2, 3), room));
        assert!(!extent.fits(Extent::of_node(false, 3, 3), room));
    }
}

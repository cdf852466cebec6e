//! Removes the slots of absent nodes.

use ib_mad::wire::attribute::NodeInfo;

use super::new_links::NewLinks;
use super::{Fabric, NodeIndex, PortIndex};

impl Fabric {
    /// Whether so many slots belong to absent nodes that [`compacted`](Self::compacted)
    /// pays off.
    pub fn wants_compaction(&self) -> bool {
        self.nodes.len() - self.present_count > self.present_count + 1024
    }

    /// The fabric without slots of absent nodes. All indices change.
    pub fn compacted(mut self) -> Self {
        let names = std::mem::take(&mut self.names);
        let pkey_tables = std::mem::take(&mut self.pkey_tables);
        let mut next = Self { names, pkey_tables, ..Self::default() };
        let mut moved: Vec<Option<PortIndex>> = vec![None; self.ports.len()];
        let kept: Vec<NodeIndex> = self.nodes().map(|(index, _)| index).collect();
        for &old in &kept {
            let node = self.node(old);
            let (bytes, kind) = (node.info, node.kind);
            let view = NodeInfo::of(&bytes);
            let Ok(index) = next.add(&view, kind) else { continue };
            let first = next.node(index).first_port.0;
            for num in 0..=node.port_count {
                moved[node.first_port.get() + usize::from(num)] =
                    Some(PortIndex(first + u32::from(num)));
            }
        }
        let move_port = |port: Option<PortIndex>| port.and_then(|port| moved[port.get()]);
        for old in kept {
            let Some(index) = next.find(self.node(old).guid) else { continue };
            let (node, new) = (self.node(old), next.node_mut(index));
            new.description = node.description;
            new.is_new = node.is_new;
            new.seen = node.seen;
            new.hops = node.hops;
            new.upstream = move_port(node.upstream);
            new.entry = move_port(node.entry);
            new.returned_by = move_port(node.returned_by);
            if let (Some(from), Some(to)) = (node.switch, new.switch) {
                std::mem::swap(
                    &mut self.switches[from.get()].lft,
                    &mut next.switches[to.get()].lft,
                );
                std::mem::swap(
                    &mut self.switches[from.get()].mft,
                    &mut next.switches[to.get()].mft,
                );
                next.switches[to.get()].info = self.switches[from.get()].info;
                next.switches[to.get()].refuses_wildcard_maps =
                    self.switches[from.get()].refuses_wildcard_maps;
            }
        }
        for (old, new) in moved.iter().enumerate() {
            let Some(new) = new else { continue };
            let (port, target) = (&self.ports[old], &mut next.ports[new.get()]);
            target.guid = port.guid;
            target.info = port.info;
            target.pkeys = port.pkeys.clone();
            target.qos = port.qos.clone();
            target.mlnx_speeds = port.mlnx_speeds;
            target.known = port.known;
            target.reregistered_in = port.reregistered_in;
            target.link_seen = port.link_seen;
            target.peer = move_port(port.peer);
            target.owns_guid = port.owns_guid;
            target.assigned = port.assigned.clone();
            if let Some(virtual_ports) = self.ports[old].virtual_ports.take() {
                next.virtual_index.add(*new, &virtual_ports);
                next.ports[new.get()].virtual_ports = Some(virtual_ports);
            }
        }
        next.sm_port = move_port(self.sm_port);
        next.own_planes = self.own_planes.iter().filter_map(|&port| moved[port.get()]).collect();
        next.has_planes = self.has_planes;
        next.assigns = self.assigns;
        next.new_links = NewLinks::All;
        // Only those that have their GUIDs keep them.
        next.settle_virtual_guids(|_, _| true);
        next.set_awaits_virtual_ports(self.awaits_virtual_ports());
        next
    }
}

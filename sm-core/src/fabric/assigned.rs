//! What the manager assigned to ports, and what of it clients learn.
//!
//! Agents can report LIDs, an LMC and P_Keys that their ports were never given. So a master
//! publishes and registers what it assigned, as far as the port reports that it has it; before it
//! assigns anything, and while it stands by, what ports report.

use std::sync::Arc;

use ib_mad::types::{Lid, PKey};

use super::{Fabric, PortIndex};

/// What a port was assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assigned {
    /// Base LID; `Lid::NONE` if it has none.
    pub(super) base_lid: Lid,
    pub(super) lmc: u8,
    /// P_Key table; `None` if it is not managed.
    pub(super) pkeys: Option<Arc<[PKey]>>,
}

impl Fabric {
    /// Records the base LID and the LMC that each port has been assigned. Ports for which `lids_of`
    /// returns `None`, and those that carry no LIDs, have none.
    pub fn assign_lids(&mut self, lids_of: impl Fn(&Self, PortIndex) -> Option<(Lid, u8)>) {
        self.set_assigns(true);
        let mut lids = vec![None; self.ports.len()];
        for (port, _) in self.lid_ports() {
            lids[port.get()] = lids_of(self, port);
        }
        for (port, lids) in (0..).map(PortIndex::from_bits).zip(lids) {
            let (base_lid, lmc) = lids.unwrap_or_default();
            let assigned = &self.port(port).assigned;
            if (assigned.base_lid, assigned.lmc) != (base_lid, lmc) {
                let assigned = &mut self.port_mut(port).assigned;
                (assigned.base_lid, assigned.lmc) = (base_lid, lmc);
            }
        }
    }

    /// Records the P_Key tables that ports and virtual ports are to have.
    pub(crate) fn assign_pkeys<'a>(
        &mut self,
        table_of: impl Fn(PortIndex) -> Option<&'a Arc<[PKey]>>,
        virtual_table_of: impl Fn(PortIndex, u16) -> Option<&'a Arc<[PKey]>>,
    ) {
        for port in (0..self.ports.len() as u32).map(PortIndex::from_bits) {
            let is_external = self.node_of(port).switch.is_some() && self.port(port).num.0 != 0;
            let table = table_of(port).filter(|_| !is_external);
            if self.port(port).assigned.pkeys.as_ref() != table {
                self.port_mut(port).assigned.pkeys = table.cloned();
            }
        }
        let hosts: Vec<PortIndex> = self.virtual_hosts().map(|(host, _)| host).collect();
        for host in hosts {
            self.with_virtual_ports(host, |_, ports| {
                for (&index, port) in ports {
                    port.assigned = virtual_table_of(host, index).cloned();
                }
            });
        }
    }

    /// Forgets all assignments: another manager makes them from now on.
    pub(crate) fn forget_assignments(&mut self) {
        self.set_assigns(false);
    }

    fn set_assigns(&mut self, assigns: bool) {
        if self.assigns == assigns {
            return;
        }
        self.assigns = assigns;
        self.ports.iter_mut().for_each(|port| port.assigned = Assigned::default());
        self.nodes.iter_mut().for_each(|node| _ = node.row.take());
    }

    /// Base LID and LMC of a port as clients learn them: `Lid::NONE` unless it was assigned a LID
    /// and reports one. The LMC is no greater than the port reports.
    pub fn lids_of(&self, port: PortIndex) -> (Lid, u8) {
        let port = self.port(port);
        let (info, assigned) = (port.port_info(), &port.assigned);
        if !self.assigns {
            (info.base_lid(), info.lmc())
        } else if info.base_lid() == Lid::NONE || assigned.base_lid == Lid::NONE {
            (Lid::NONE, 0)
        } else {
            (assigned.base_lid, info.lmc().min(assigned.lmc))
        }
    }

    /// The P_Key table of a port as clients learn it: the P_Keys that it reports and is to have, in
    /// the places where it reports them. Where it reports a full member and is to be a limited one,
    /// it is limited.
    pub fn pkeys_of(&self, port: PortIndex) -> Arc<[PKey]> {
        let entry = self.port(port);
        match (&entry.assigned.pkeys, self.assigns) {
            (Some(assigned), true) => permitted(&entry.pkeys, assigned),
            (None, true) if self.has_lids(port) => Arc::default(),
            _ => entry.pkeys.clone(),
        }
    }

    /// The same of a virtual port.
    pub(super) fn pkeys_of_virtual(&self, port: &super::VirtualPort) -> Arc<[PKey]> {
        match (&port.assigned, self.assigns) {
            (Some(assigned), true) => permitted(&port.pkeys, assigned),
            (None, true) => Arc::default(),
            (_, false) => port.pkeys.clone(),
        }
    }
}

/// `reported` without what is not in `assigned`.
fn permitted(reported: &Arc<[PKey]>, assigned: &Arc<[PKey]>) -> Arc<[PKey]> {
    if reported == assigned {
        return reported.clone();
    }
    let permitted = |&key: &PKey| {
        let limited = PKey(key.base());
        match assigned.contains(&key) {
            true => key,
            // A full member may be served as the limited one that it is to be, or still is.
            false if assigned.iter().any(|own| own.base() == key.base()) => limited,
            false => PKey::default(),
        }
    };
    let mut keys: Vec<PKey> = reported.iter().map(permitted).collect();
    keys.truncate(keys.iter().rposition(|key| key.is_valid()).map_or(0, |last| last + 1));
    if keys[..] == reported[..] { reported.clone() } else { keys.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_keys_are_what_is_both_reported_and_assigned() {
        let of = |reported: &[u16], assigned: &[u16]| -> Vec<u16> {
            let keys = |keys: &[u16]| keys.iter().copied().map(PKey).collect::<Arc<[PKey]>>();
            permitted(&keys(reported), &keys(assigned)).iter().map(|key| key.0).collect()
        };
        assert_eq!(of(&[0xFFFF, 0x8001], &[0xFFFF, 0x8001]), [0xFFFF, 0x8001]);
        assert_eq!(of(&[0xFFFF, 0x8001, 0x8002], &[0x8002, 0xFFFF]), [0xFFFF, 0, 0x8002]);
        assert_eq!(of(&[0xFFFF, 0x8001], &[0xFFFF]), [0xFFFF]);
        assert_eq!(of(&[0xFFFF], &[0x7FFF]), [0x7FFF], "it is to be limited");
        assert_eq!(of(&[0x7FFF], &[0xFFFF]), [0x7FFF], "it is limited yet");
        assert_eq!(of(&[0xFFFF, 0x7FFF], &[0xFFFF, 0x7FFF]), [0xFFFF, 0x7FFF]);
        assert!(of(&[0x8001], &[]).is_empty());
    }
}

//! Virtual ports (SR-IOV): further GUIDs of a port, each with P_Keys of its own.
//!
//! A query from a virtual function comes from the LID of its port, so that a requester that is
//! found by LID has the P_Keys of all of them.

use std::collections::HashMap;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::FabricPlane;

use super::EndClass;
use super::end_port::EndPort;
use super::partition::PartitionsBuilder;

/// End classes at most: they are numbered in 16 bits.
const CLASSES_MAX: usize = u16::MAX as usize;

/// What virtual ports add to the end ports.
#[derive(Debug, Default)]
pub(super) struct VirtualNames {
    /// The records of ports under the GUIDs of virtual ports.
    pub(super) names: Vec<EndPort>,
    /// The class by which a port with virtual ports is found by its LIDs.
    pub(super) by_lid: HashMap<Lid, u16>,
    /// Virtual ports for which there is no class left.
    pub(super) left_out: usize,
}

impl VirtualNames {
    /// The virtual ports of a plane. Adds their classes to `classes`.
    pub(super) fn of(
        plane: &FabricPlane,
        ports: &[EndPort],
        classes: &mut Vec<EndClass>,
        partitions: &mut PartitionsBuilder,
    ) -> Self {
        let mut found = Self::default();
        if plane.virtual_ports.is_empty() {
            return found;
        }
        let hosts: HashMap<Guid, &EndPort> = ports.iter().map(|port| (port.guid, port)).collect();
        let classes_of_ports = classes.clone();
        let mut known: HashMap<EndClass, u16> = HashMap::new();
        let mut class_of = |class: EndClass| match known.get(&class) {
            Some(&number) => Some(number),
            None if classes.len() < CLASSES_MAX => {
                let number = classes.len() as u16;
                classes.push(class);
                known.insert(class, number);
                Some(number)
            }
            None => None,
        };
        for row in &plane.virtual_ports {
            let Some(&&host) = hosts.get(&row.port_guid) else { continue };
            let Some(&own) = classes_of_ports.get(host.class()) else { continue };
            let reached: Vec<_> =
                row.ports.iter().filter(|port| port.is_reached(row.port_guid)).collect();
            if reached.is_empty() {
                continue;
            }
            let all = EndClass { pkeys: partitions.intern(&row.pkeys), ..own };
            if let Some(class) = class_of(all) {
                found.by_lid.insert(host.lid, class);
            }
            for port in reached {
                let pkeys = partitions.intern(&port.pkeys);
                match class_of(EndClass { pkeys, is_virtual: true, ..own }) {
                    Some(class) => {
                        found.names.push(EndPort { guid: port.guid, class, ..host });
                    }
                    None => found.left_out += 1,
                }
            }
        }
        found
    }
}

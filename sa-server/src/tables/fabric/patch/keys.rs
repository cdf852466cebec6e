//! P_Keys of ports that join and leave partitions.
//!
//! Distinct P_Key tables, and end classes, are added to those that are there. Those that no port
//! has any more remain, until there are too many of them: then [`build`](super::super::build) makes
//! the tables.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ib_mad::types::{Guid, Lid};
use sa_proto::snapshot::{FabricPlane, Node, Port, find};

use crate::tables::fabric::end_port::EndPorts;
use crate::tables::fabric::partition::{PAIRED_MAX, PKeySet, Partitions, PartitionsBuilder};
use crate::tables::fabric::scan::{Fabric, Scanned};
use crate::tables::fabric::{EndClass, Tables};

/// End classes at most: they are numbered in 16 bits.
const CLASSES_MAX: usize = u16::MAX as usize;
/// End classes that may be there besides twice as many as ports are of.
const CLASSES_SPARE: usize = 1024;

/// The P_Keys of nodes: of some they differ from those in the tables.
pub(super) struct Keys<'a> {
    tables: &'a Tables,
    /// Node GUIDs of these.
    rekeyed: &'a BTreeSet<Guid>,
    /// `None` if there are none.
    builder: Option<PartitionsBuilder>,
}

/// What depends on P_Keys, but for records.
pub(super) struct Keyed {
    pub(super) partitions: Partitions,
    pub(super) end_classes: Arc<[EndClass]>,
    pub(super) end_ports: EndPorts,
}

impl<'a> Keys<'a> {
    /// `None` if it is not clear which port has a LID or a GUID.
    pub(super) fn new(tables: &'a Tables, rekeyed: &'a BTreeSet<Guid>) -> Option<Self> {
        if rekeyed.is_empty() {
            return Some(Self { tables, rekeyed, builder: None });
        }
        let both = tables.subnet.allow_both_pkeys;
        let builder = Some(PartitionsBuilder::resume(&tables.partitions, both));
        (tables.contradictions == 0).then_some(Self { tables, rekeyed, builder })
    }

    /// The P_Keys of a port.
    pub(super) fn of(&mut self, scanned: &Scanned<'_>, port: &Port) -> PKeySet {
        match &mut self.builder {
            Some(builder) if self.rekeyed.contains(&scanned.node.guid) => {
                builder.intern(scanned.keys(port))
            }
            _ => self.before(scanned.node, port),
        }
    }

    /// The P_Keys of a port in the tables.
    fn before(&self, node: &Node, port: &Port) -> PKeySet {
        let records = &self.tables.records;
        let at = records.by_node.binary_search_by_key(&node.guid, |rows| rows.guid);
        let rows = at.ok().map(|at| &records.by_node[at]);
        let place = node.ports.binary_search_by_key(&port.num, |port| port.num);
        let owner = rows.zip(place.ok()).and_then(|(rows, place)| {
            records.ports.get(rows.ports.start + place as u32).map(|(_, owner)| owner)
        });
        owner.map_or_else(PKeySet::default, |owner| owner.pkeys)
    }

    /// `None` if more depends on them than a patch covers.
    pub(super) fn finish(mut self, plane: &FabricPlane, fabric: &Fabric<'_>) -> Option<Keyed> {
        let tables = self.tables;
        let Some(mut builder) = self.builder.take() else {
            return Some(Keyed {
                partitions: tables.partitions.clone(),
                end_classes: Arc::clone(&tables.end_classes),
                end_ports: tables.end_ports.clone(),
            });
        };
        let mut classes = tables.end_classes.to_vec();
        let mut known: HashMap<EndClass, u16> = classes.iter().copied().zip(0..).collect();
        let mut class_of: HashMap<Lid, u16> = HashMap::new();
        for guid in self.rekeyed {
            let scanned = fabric.node(*guid)?;
            for port in scanned.node.ports.iter().filter(|port| scanned.is_end_port(port)) {
                let own = tables.end_ports.by_own_guid(port.guid)?;
                let by_lid = tables.end_ports.by_lid(own.lid)?;
                let has_virtual_ports = find(&plane.virtual_ports, port.guid).is_some();
                if own.lid != scanned.lid(port).0 || by_lid.guid != own.guid || has_virtual_ports {
                    return None;
                }
                let pkeys = builder.intern(scanned.keys(port));
                let class = EndClass { pkeys, ..*tables.end_class(own) };
                let number = *known.entry(class).or_insert_with(|| {
                    classes.push(class);
                    (classes.len() - 1) as u16
                });
                class_of.insert(own.lid, number);
            }
        }
        let end_ports = tables.end_ports.with_classes(&class_of);
        if has_too_many(&classes, builder.len(), &end_ports) {
            return None;
        }
        let partitions = match builder.len() == tables.partitions.sets() {
            true => tables.partitions.clone(),
            false => builder.finish(),
        };
        // Levels of rules name partitions.
        let is_same_to_rules =
            tables.qos.is_empty() || partitions.bases() == tables.partitions.bases();
        is_same_to_rules.then(|| Keyed { partitions, end_classes: classes.into(), end_ports })
    }
}

/// Whether of these end classes and P_Key tables too many belong to no port.
fn has_too_many(classes: &[EndClass], sets: usize, end_ports: &EndPorts) -> bool {
    let is_used = end_ports.used_classes();
    let used: Vec<&EndClass> =
        classes.iter().zip(&is_used).filter(|(_, is_used)| **is_used).map(|it| it.0).collect();
    let used_sets = used.iter().map(|class| class.pkeys).collect::<HashSet<_>>().len();
    // Relations between all tables are precomputed only if they are few.
    let are_paired = sets <= PAIRED_MAX;
    let has_too_many_sets = !are_paired && (used_sets <= PAIRED_MAX || sets > 2 * used_sets);
    has_too_many_sets || classes.len() > CLASSES_MAX.min(2 * used.len() + CLASSES_SPARE)
}

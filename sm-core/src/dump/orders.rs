//! Structures that engines found: `opensm-updn-roots.dump`, which `root_guid_file` reads, and
//! `opensm-ftree-ca-order.dump` and `opensm-torus.dump`, by which jobs can be placed.

use std::fmt::Write as _;

use super::Tables;
use sm_routing::torus::TorusLanes;
use sm_routing::{Steering, ftree, updn};

/// GUIDs of the root switches of `updn`.
pub fn updn_roots(tables: &Tables<'_>, steering: &Steering) -> String {
    let roots = updn::roots_of(tables.topology, steering);
    let mut text = String::new();
    for switch in tables.order().into_iter().filter(|switch| roots.contains(switch)) {
        let _ = writeln!(text, "{:#x}", tables.switch(switch).map_or(0, |name| name.guid.0));
    }
    text
}

/// Coordinates of the switches of a torus or mesh.
pub fn torus(tables: &Tables<'_>, lanes: &TorusLanes) -> String {
    let mut text = String::new();
    for ([x, y, z], switch) in lanes.places() {
        let Some(name) = tables.switch(switch) else { continue };
        let _ = writeln!(text, "switch {x},{y},{z} GUID {:#06x} ({})", name.guid.0, name.name);
    }
    text
}

/// Compute nodes in `ftree`'s order, leaf by leaf; where a leaf has fewer nodes than others,
/// dummy entries fill the gap.
pub fn ftree_ca_order(tables: &Tables<'_>, steering: &Steering) -> String {
    let leaves = ftree::compute_order(tables.topology, &steering.common);
    let most = leaves.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for leaf in &leaves {
        for lid in leaf {
            let number = tables.destination_at(*lid);
            let end = number.and_then(|number| tables.roster.ends.get(number));
            let name = end.map_or("", |end| end.name.as_str());
            let _ = writeln!(text, "0x{:04x}\t{name}", lid.0);
        }
        (leaf.len()..most).for_each(|_| text.push_str("0xFFFF\tDUMMY\n"));
    }
    text
}

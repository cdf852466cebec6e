//! `opensm-lid-matrix.dump`: hops from each switch to every other switch, by egress port.

use std::fmt::Write as _;

use super::Tables;

/// Marks a port that leads to no switch, or to one without a path to the destination.
const NO_PATH: u32 = 0xFF;

/// Renders one switch: a line for each reachable switch, with the fewest hops at port 0.
pub fn lid_matrix(tables: &Tables<'_>, switch: u16) -> String {
    let topology = tables.topology;
    let mut text = String::new();
    let guid = tables.switch(switch).map_or(0, |name| name.guid.0);
    let _ = writeln!(text, "Switch: guid {guid:#018x}");
    for (to, name) in topology.destinations().iter().zip(&tables.roster.ends) {
        let Some(least) = tables.distance(switch, to.egress_switch).filter(|_| !to.is_host())
        else {
            continue;
        };
        let _ = write!(text, "0x{:04x}: {least:02x}", to.base_lid.0);
        for port in 1..=topology.port_count(switch) {
            let link = topology.link_at(switch, port).map(|link| topology.link(link));
            let hops = link.and_then(|link| tables.distance(link.peer, to.egress_switch));
            let _ = write!(text, " {:02x}", hops.map_or(NO_PATH, |hops| hops + 1));
        }
        let _ = writeln!(text, " # portguid {:#018x}", name.guid.0);
    }
    text
}

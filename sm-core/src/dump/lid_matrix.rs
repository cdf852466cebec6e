//! `opensm-lid-matrix.dump`: for each switch how far it is to every other one by each of its ports.

use std::fmt::Write as _;

use super::Tables;

/// Stands for a port that leads to no switch, or to none from which there is a way.
const NO_PATH: u32 = 0xFF;

/// One switch's part: a line for each switch there is a way to, port 0 having the least hops.
pub fn lid_matrix(tables: &Tables<'_>, switch: u16) -> String {
    let topology = tables.topology;
    let mut text = String::new();
    let guid = tables.switch(switch).map_or(0, |name| name.guid.0);
    let _ = writeln!(text, "Switch: guid {guid:#018x}");
    for (to, name) in topology.destinations().iter().zip(&tables.roster.ends) {
        let Some(least) = tables.distance(switch, to.home).filter(|_| !to.is_host()) else {
            continue;
        };
        let _ = write!(text, "0x{:04x}: {least:02x}", to.base_lid.0);
        for port in 1..=topology.port_count(switch) {
            let link = topology.link_at(switch, port).map(|link| topology.link(link));
            let hops = link.and_then(|link| tables.distance(link.peer, to.home));
            let _ = write!(text, " {:02x}", hops.map_or(NO_PATH, |hops| hops + 1));
        }
        let _ = writeln!(text, " # portguid {:#018x}", name.guid.0);
    }
    text
}

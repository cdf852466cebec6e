//! `opensm-lfts.dump`: where a switch sends each LID, with the names of all. The engine `file`
//! reads it, in OpenSM and here.

use std::fmt::Write as _;

use super::{Tables, kind};

/// Renders one switch.
pub fn lfts(tables: &Tables<'_>, switch: u16) -> String {
    let last = tables.topology.last_lid().0;
    let mut text = String::with_capacity(128 + usize::from(last) * 64);
    let own =
        tables.topology.destinations().iter().find(|to| to.egress_switch == switch && to.exit == 0);
    let own = own.map_or(0, |to| to.base_lid.0);
    let (guid, name) =
        tables.switch(switch).map_or((0, ""), |switch| (switch.guid.0, switch.name.as_str()));
    let _ =
        writeln!(text, "Unicast lids [0-{last}] of switch Lid {own} guid {guid:#018x} ('{name}'):");
    for lid in tables.lids() {
        let port = tables.port(switch, lid);
        if port > tables.topology.port_count(switch) {
            continue;
        }
        let _ = write!(text, "0x{:04x} {port:03} # ", lid.0);
        let end = tables.destination_at(lid).and_then(|number| tables.roster.ends.get(number));
        let _ = match end.filter(|end| end.guid.0 != 0) {
            Some(end) => {
                let (kind, guid, name) = (kind(end.kind), end.guid.0, &end.name);
                writeln!(text, "{kind} portguid {guid:#018x}: '{name}'")
            }
            None => writeln!(text, "unknown node and type"),
        };
    }
    let _ = writeln!(text, "{last} lids dumped");
    text
}

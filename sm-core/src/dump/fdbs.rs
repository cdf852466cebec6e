//! `opensm.fdbs`: the egress port of a switch for each LID, and the hops by that port.
//!
//! Hops are counted to the port itself: a host on the switch is one hop away, the switch itself 0.
//! A route is optimal if no other port has a shorter one. Hops are computed from the neighbour's
//! distance, as OpenSM does, not by following the tables.

use std::fmt::Write as _;

use super::Tables;
use sm_routing::NO_ROUTE;

/// Renders one switch.
pub fn fdbs(tables: &Tables<'_>, switch: u16) -> String {
    let mut text = String::with_capacity(64 + tables.lids().size_hint().0 * 29);
    let guid = tables.switch(switch).map_or(0, |name| name.guid.0);
    let _ = writeln!(text, "dump_ucast_routes: Switch {guid:#018x}");
    text.push_str("LID    : Port : Hops : Optimal\n");
    for lid in tables.lids() {
        let _ = write!(text, "0x{:04X} : ", lid.0);
        let port = tables.port(switch, lid);
        let Some(to) = tables.destination(lid).filter(|_| port != NO_ROUTE) else {
            text.push_str("UNREACHABLE\n");
            continue;
        };
        let last = u32::from(to.is_host());
        let taken = match tables.topology.link_at(switch, port) {
            Some(link) => {
                let next = tables.topology.link(link).peer;
                tables.distance(next, to.egress_switch).map(|hops| hops + 1)
            }
            None => (switch == to.egress_switch).then_some(0),
        };
        let _ = match (taken, tables.distance(switch, to.egress_switch)) {
            (Some(taken), Some(best)) if taken <= best => {
                writeln!(text, "{port:03}  : {:02}   : yes", taken + last)
            }
            (Some(taken), Some(best)) => {
                let (taken, best) = (taken + last, best + last);
                let text = &mut text;
                writeln!(
                    text,
                    "{port:03}  : {taken:02}   : No {best} hop path possible via port {port}!"
                )
            }
            _ => writeln!(text, "{port:03}  : HOPS UNKNOWN"),
        };
    }
    text
}

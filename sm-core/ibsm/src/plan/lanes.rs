//! The SLs of paths and the virtual lanes that ports map them to, for a plan's dump.

use std::fmt::Write as _;

use ib_mad::wire::attribute::NodeType;

use super::site::Site;
use sm_config::{QosTables, Settings};
use sm_core::dump::PortMaps;
use sm_core::manage::port_qos;
use sm_routing::Lanes;

/// The SLs of paths from the hosts of a switch, one LID a line; 0 where an engine decides none.
pub(super) fn path_sls(site: &Site, lanes: &Lanes, switch: u16) -> String {
    let name = &site.roster.switches[usize::from(switch)];
    let mut text = format!("Switch {:#018x} \"{}\"\nLID    : SL\n", name.guid.0, name.name);
    for to in site.topology.destinations() {
        for lid in to.lids() {
            let _ = writeln!(text, "{:#06x} : {}", lid.0, lanes.sl(switch, to.egress_switch, lid));
        }
    }
    text.push('\n');
    text
}

/// The SL-to-VL maps of all end ports' nodes, by GUID from its last byte, as the manager sets them
/// with the default settings of QoS. Switch ports without a link are omitted.
pub(super) fn sl_to_vl(site: &Site, lanes: &Lanes, data_lanes: u8) -> Vec<PortMaps> {
    let topology = &site.topology;
    let tables = QosTables::of(&Settings::default());
    // The code of the largest number of VLs that is no more.
    let code = match data_lanes {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 3,
        8..=14 => 4,
        _ => 5,
    };
    let map = |vls: &[u8; 16]| port_qos::sl_to_vl(vls, code);
    let by_hop = lanes.by_hop();
    let by_sl = |vl: &dyn Fn(u8) -> u8| std::array::from_fn(|sl| vl(sl as u8));
    let of_host = |default: &[u8; 16]| match &by_hop {
        Some(lanes) => map(&by_sl(&|sl| lanes.host_vl(sl, data_lanes))),
        None => map(default),
    };
    let of_switch = |switch: u16, in_port: u8, out_port: u8| match &by_hop {
        Some(lanes) => map(&by_sl(&|sl| lanes.vl(switch, in_port, out_port, sl))),
        None => map(&tables.swe.sl2vl),
    };
    let mut exits = vec![Vec::new(); topology.switch_count()];
    for to in topology.destinations().iter().filter(|to| to.is_host()) {
        exits[usize::from(to.egress_switch)].push(to.exit);
    }
    let mut all = Vec::new();
    for (to, end) in topology.destinations().iter().zip(&site.roster.ends) {
        let maps = match end.kind {
            NodeType::Switch => {
                let switch = to.egress_switch;
                let links = topology.links(switch).iter().map(|link| link.port);
                let mut ports: Vec<u8> =
                    links.chain(exits[usize::from(switch)].iter().copied()).collect();
                ports.sort_unstable();
                let in_ports = 0..=topology.port_count(switch);
                let of_port = |out_port: u8| -> Vec<[u8; 8]> {
                    in_ports.clone().map(|port| of_switch(switch, port, out_port)).collect()
                };
                ports.into_iter().map(|out_port| (out_port, of_port(out_port))).collect()
            }
            NodeType::Router => vec![(0, vec![of_host(&tables.rtr.sl2vl)])],
            _ => vec![(0, vec![of_host(&tables.ca.sl2vl)])],
        };
        let (kind, guid, name) = (end.kind, end.guid, end.name.clone());
        all.push(PortMaps { kind, guid, lid: to.base_lid, name, maps });
    }
    all.sort_by_key(|port| port.guid.0.swap_bytes());
    all
}

//! Virtual lanes: how many an engine may use, and which SL keeps a path in its lane.

use std::collections::HashMap;
use std::sync::Arc;

use ib_mad::types::{Lid, PortNum, Sl};
use ib_mad::wire::attribute::data_vls;

use super::Subnet;
use super::routing::active::ActiveRouting;
use crate::fabric::{Fabric, PortIndex, SwitchIndex};
use crate::manage::{link, port_qos};
use sm_config::{QosTables, Settings};
use sm_routing::{Lanes, Topology};

/// Maximum number of lanes that an engine can select by SL.
const LANES_MAX: u8 = 15;

/// Number of VLs that can separate routes: those that all links between switches have and that SLs
/// from 0 on map to one by one.
pub(in crate::sweep) fn data_lanes(
    fabric: &Fabric,
    settings: &Settings,
    qos: &QosTables,
    topology: &Topology,
    switches: &[SwitchIndex],
) -> u8 {
    let lanes = |vls| port_qos::distinct_lanes(&qos.swe, vls).min(LANES_MAX);
    least_vls(fabric, settings, topology, switches).map_or(LANES_MAX, lanes)
}

/// The VL by SL of links between switches. Where switches differ in VLs, SLs that share a VL on any
/// link share one on all.
pub(in crate::sweep) fn vls(
    fabric: &Fabric,
    settings: &Settings,
    qos: &QosTables,
    topology: &Topology,
    switches: &[SwitchIndex],
) -> [u8; 16] {
    // VLs fold onto fewer by bits, so that those which are one with more VLs are with fewer, too.
    let least = least_vls(fabric, settings, topology, switches);
    least.map_or(qos.swe.sl2vl, |vls| port_qos::folded(&qos.swe.sl2vl, vls))
}

/// The smallest OperationalVLs code among ports between switches. Those of switches that appeared
/// together behind one cable do not count: no loop of other links leads through that cable, and any
/// host can answer as switches with one VL.
fn least_vls(
    fabric: &Fabric,
    settings: &Settings,
    topology: &Topology,
    switches: &[SwitchIndex],
) -> Option<u8> {
    let entry = |number: u16| {
        let switch = fabric.switch(*switches.get(usize::from(number))?);
        fabric.node(switch.node).entry()
    };
    // How many cables lead from the switches that each link brought to others.
    let mut cables: HashMap<PortIndex, usize> = HashMap::new();
    for number in topology.switches() {
        if let Some(brought) = entry(number) {
            let others =
                topology.links(number).iter().filter(|link| entry(link.peer) != Some(brought));
            *cables.entry(brought).or_default() += others.count();
        }
    }
    let is_apart = |number: u16| entry(number).is_some_and(|brought| cables[&brought] <= 1);
    let mut operational = None;
    for (number, &index) in topology.switches().zip(switches) {
        let mut ports = fabric.ports_of(fabric.switch(index).node);
        for link in topology.links(number) {
            let port = ports.find(|&port| fabric.port(port).num == PortNum(link.port));
            if is_apart(number) || is_apart(link.peer) {
                continue;
            }
            let vls = port.map(|port| link::operational_vls(fabric, port, settings));
            operational = operational.into_iter().chain(vls).min();
        }
    }
    operational
}

/// A copy of the SLs of paths of the routing in force.
#[derive(Clone, Debug, Default)]
pub struct SlsOfPaths(Option<Arc<ActiveRouting>>);

impl SlsOfPaths {
    /// The SL of the path from LID `from` to LID `to`. Returns `chosen`, the policy's SL, if the
    /// engine does not assign SLs or does not know the ports.
    pub fn sl(&self, from: Lid, to: Lid, chosen: Sl) -> Sl {
        let sl = || {
            let made = self.0.as_ref()?;
            let (source, egress_switch) = (made.place_of(from)?.switch, made.place_of(to)?.switch);
            let by_engine = made.lanes().engine_sls();
            let sl = made.lanes().sl(source, egress_switch, to);
            let sl = chosen.get() & !by_engine | sl & by_engine;
            Some(Sl::from_low_bits(sl.into()))
        };
        sl().unwrap_or(chosen)
    }
}

impl Subnet {
    /// The SLs of paths, from which the SA answers.
    pub(in crate::sweep) fn sls_of_paths(&self) -> SlsOfPaths {
        SlsOfPaths(self.routing.made().cloned())
    }

    /// Bits of a path's SL that the routing engine decides.
    pub(in crate::sweep) fn engine_sls(&self) -> u8 {
        self.routing.made().map_or(0, |made| made.lanes().engine_sls())
    }

    /// The SL of the path from an end port to `lid`, for which policy chose `chosen`.
    pub(in crate::sweep) fn engine_sl(&self, from: PortIndex, lid: Lid, chosen: Sl) -> Sl {
        self.sls_of_paths().sl(self.fabric.lids_of(from).0, lid, chosen)
    }

    /// Whether ports need SL-to-VL tables: for QoS, for the bandwidth of virtual fabrics, or for
    /// routes to keep to their lanes.
    pub(in crate::sweep) fn needs_port_tables(&self) -> bool {
        self.has_qos() || self.routing.made().is_some_and(|made| made.lanes().need_tables())
    }

    /// Whether ports arbitrate between VLs as settings or virtual fabrics have it. Once virtual
    /// fabrics did, settings do after them.
    pub(in crate::sweep) fn has_qos(&self) -> bool {
        self.settings.qos || self.partitions.arbitrated
    }

    /// Whether a port is one of a torus's switches and leads to a host.
    pub(in crate::sweep) fn leads_from_torus_to_host(&self, port: PortIndex) -> bool {
        let Some(made) = self.routing.made() else { return false };
        let Lanes::Torus(torus) = made.lanes() else { return false };
        let entry = self.fabric.port(port);
        let number = self.fabric.node(entry.node).switch.and_then(|switch| made.number(switch));
        let leads_to_host =
            entry.peer().is_some_and(|peer| self.fabric.node_of(peer).switch.is_none());
        number.is_some_and(|number| torus.axis(number, entry.num.0).is_none()) && leads_to_host
    }

    /// The VLs by SL, as bit sets, on which packets leave a port, wherever they came from; `None`
    /// unless packets change lanes from hop to hop.
    pub(in crate::sweep) fn hop_vl_sets(&self, port: PortIndex) -> Option<[u16; 16]> {
        let made = self.routing.made()?;
        let lanes = made.lanes().by_hop()?;
        let entry = self.fabric.port(port);
        let Some(switch) = self.fabric.node(entry.node).switch else {
            return Some(self.hop_vls(port, 0)?.map(|vl| 1 << vl));
        };
        let number = made.number(switch)?;
        Some(std::array::from_fn(|sl| lanes.vls(number, entry.num.0, sl as u8)))
    }

    /// The SL-to-VL map for packets from `in_port` to `port`; `None` unless packets change lanes
    /// from hop to hop.
    pub(in crate::sweep) fn hop_vls(&self, port: PortIndex, in_port: u8) -> Option<[u8; 16]> {
        let made = self.routing.made()?;
        let lanes = made.lanes().by_hop()?;
        let entry = self.fabric.port(port);
        let vl: Box<dyn Fn(u8) -> u8> = match self.fabric.node(entry.node).switch {
            Some(switch) => {
                let (number, out_port) = (made.number(switch)?, entry.num.0);
                Box::new(move |sl| lanes.vl(number, in_port, out_port, sl))
            }
            None => {
                let data_lanes = data_vls(entry.port_info().operational_vls()).unwrap_or(1);
                Box::new(move |sl| lanes.host_vl(sl, data_lanes))
            }
        };
        Some(std::array::from_fn(|sl| vl(sl as u8)))
    }
}

//! Chooses the requests that set the SL-to-VL maps of ports: a switch has one for every pair of
//! ports, 1,300 with 36 ports. A switch that reports support
//! (SwitchInfo.OptimizedSLtoVLMappingProgramming, IBA 14.2.5.8) accepts one map for all of
//! them, or for all input ports of one output port, if `use_optimized_slvl` allows it.
//!
//! The request for all ports goes first; after its answer, single maps are sent where they differ.
//! It is not sent if it would temporarily overwrite a correct map that differs.

use std::collections::BTreeMap;

use ib_mad::types::PortNum;
use ib_mad::wire::attribute::sl_to_vl_modifier;
use ib_mad::wire::mad::Status;
use tracing::{debug, warn};

use crate::fabric::{NodeIndex, PortIndex};
use crate::smp::{ALL_IN_PORTS, ALL_OUT_PORTS, Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};

/// The map of all 16 SLs as it is on the wire.
type Map = [u8; 8];

/// SL-to-VL maps, as owner of the requests that set them.
pub(in crate::sweep) struct SlMaps;

impl RequestOwner for SlMaps {
    type Kind = kinds::SlMaps;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::SlMaps::SetSlToVl => {
                data[..8].copy_from_slice(&subnet.requested_map(request)?);
                Some(subnet.map_modifier(request))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        subnet.map_set(request, *data.first_chunk().expect("8 bytes of 64"));
    }

    fn refused(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, status: Status) {
        let OwnedRequest { request, .. } = owned;
        if subnet.map_refused(request, status) {
            return;
        }
        if subnet.settings.suppress_sl2vl_mad_status_errors {
            let (name, place) = (request.kind.name(), subnet.place(request.port()));
            return debug!("{place} refused {name}: {status}");
        }
        subnet.report_refusal(request, status);
    }
}

impl Subnet {
    /// Sends SL-to-VL maps that `ports` are not known to hold. Ports of a node are consecutive.
    pub(in crate::sweep) fn push_maps(&mut self, ports: &[PortIndex]) {
        let mut decided: Option<(NodeIndex, bool)> = None;
        for &port in ports {
            let (node, num) = (self.fabric.port(port).node, self.fabric.port(port).num);
            // A map for all output ports does not include port 0.
            if num == PortNum(0) {
                self.push_maps_of(port);
                continue;
            }
            let (is_first, at_once) = match decided {
                Some((last, at_once)) if last == node => (false, at_once),
                _ => (true, self.maps_of_all(node)),
            };
            decided = Some((node, at_once));
            match at_once {
                true if is_first => {
                    let all = ALL_IN_PORTS | ALL_OUT_PORTS;
                    self.exchange.push(Request::block(Kind::SetSlToVl, port, all));
                }
                true => {}
                false => self.push_maps_of(port),
            }
        }
    }

    /// Requests the maps of one output port.
    fn push_maps_of(&mut self, port: PortIndex) {
        let stale: Vec<u8> =
            self.in_ports(port).filter(|&in_port| self.is_stale(port, in_port)).collect();
        if stale.len() > 1
            && self.takes_wildcards(self.fabric.port(port).node)
            && self.uniform_map(port).is_some()
        {
            return self.exchange.push(Request::block(Kind::SetSlToVl, port, ALL_IN_PORTS));
        }
        for in_port in stale {
            self.exchange.push(Request::block(Kind::SetSlToVl, port, in_port.into()));
        }
    }

    /// AttributeModifier of a Set(SLtoVLMappingTable).
    fn map_modifier(&self, request: Request) -> u32 {
        let out_port = self.table_port(request);
        match request.block & (ALL_IN_PORTS | ALL_OUT_PORTS) {
            0 => sl_to_vl_modifier(request.block as u8, out_port),
            ALL_IN_PORTS => 1 << 17 | u32::from(out_port),
            _ => 1 << 17 | 1 << 16,
        }
    }

    /// The map that such a request sets.
    fn requested_map(&self, request: Request) -> Option<Map> {
        let port = request.port();
        match request.block & (ALL_IN_PORTS | ALL_OUT_PORTS) {
            0 => self.wanted_map(port, request.block as u8),
            ALL_IN_PORTS => self.uniform_map(port),
            _ => self.common_map(self.fabric.port(port).node),
        }
    }

    /// A request was answered with `map`.
    fn map_set(&mut self, request: Request, map: Map) {
        let port = request.port();
        let Some(asked) = self.requested_map(request) else { return };
        if !request.is_for_all_ports() {
            if asked != map {
                let place = self.place(port);
                self.fault(port, format_args!("{place}: SL-to-VL map differs from that set"));
            }
            return self.note_map(port, request.block as u8, map);
        }
        // The specification does not define which of the maps an answer contains.
        let node = self.fabric.port(port).node;
        let of_all = request.block & ALL_OUT_PORTS != 0;
        let ports = if of_all { self.mapped_ports(node) } else { vec![port] };
        for &port in &ports {
            for in_port in self.in_ports(port) {
                self.note_map(port, in_port, asked);
            }
        }
        if of_all {
            ports.into_iter().for_each(|port| self.push_maps_of(port));
        }
    }

    /// Handles a refused request; returns whether it is sent again in another form.
    fn map_refused(&mut self, request: Request, status: Status) -> bool {
        if !request.is_for_all_ports() {
            return false;
        }
        let port = request.port();
        let node = self.fabric.port(port).node;
        let Some(switch) = self.fabric.node(node).switch else { return false };
        if !std::mem::replace(&mut self.fabric.switch_mut(switch).refuses_wildcard_maps, true) {
            let place = self.place(port);
            warn!(
                "{place} reports OptimizedSLtoVLMappingProgramming but refused a map for all \
                 ports: {status}; setting maps port by port"
            );
        }
        let of_all = request.block & ALL_OUT_PORTS != 0;
        let ports = if of_all { self.mapped_ports(node) } else { vec![port] };
        ports.into_iter().for_each(|port| self.push_maps_of(port));
        true
    }

    fn note_map(&mut self, port: PortIndex, in_port: u8, map: Map) {
        self.fabric.port_mut(port).qos.get_or_insert_default().set_map(in_port, map);
    }

    fn takes_wildcards(&self, node: NodeIndex) -> bool {
        let Some(switch) = self.fabric.node(node).switch else { return false };
        let switch = self.fabric.switch(switch);
        let says = switch.switch_info().optimized_sl_to_vl_mapping_programming();
        self.settings.use_optimized_slvl && says & 1 != 0 && !switch.refuses_wildcard_maps
    }

    /// Whether a map for all ports of a switch saves requests and overwrites no correct map.
    fn maps_of_all(&self, node: NodeIndex) -> bool {
        let Some(common) = self.takes_wildcards(node).then(|| self.common_map(node)).flatten()
        else {
            return false;
        };
        let mut stale = 0;
        for port in self.mapped_ports(node) {
            for in_port in self.in_ports(port) {
                let is_common = self.wanted_map(port, in_port) == Some(common);
                match self.is_stale(port, in_port) {
                    true => stale += usize::from(is_common),
                    false if is_common => {}
                    false => return false,
                }
            }
        }
        stale > 1
    }

    /// The map that most pairs of a switch's ports should have; of several the least.
    fn common_map(&self, node: NodeIndex) -> Option<Map> {
        let mut counts: BTreeMap<Map, usize> = BTreeMap::new();
        for port in self.mapped_ports(node) {
            for map in self.in_ports(port).filter_map(|in_port| self.wanted_map(port, in_port)) {
                *counts.entry(map).or_default() += 1;
            }
        }
        let most = counts.values().max()?;
        counts.iter().find(|(_, count)| *count == most).map(|(map, _)| *map)
    }

    /// The map of an output port, if it is the same for all input ports.
    fn uniform_map(&self, port: PortIndex) -> Option<Map> {
        let mut maps = self.in_ports(port).map(|in_port| self.wanted_map(port, in_port));
        let first = maps.next()??;
        maps.all(|map| map == Some(first)).then_some(first)
    }

    /// Output ports of a switch whose links are up.
    fn mapped_ports(&self, node: NodeIndex) -> Vec<PortIndex> {
        let is_external = |port: &PortIndex| self.fabric.port(*port).num != PortNum(0);
        self.fabric
            .ports_of(node)
            .filter(is_external)
            .filter(|&port| self.is_linked(port))
            .collect()
    }

    fn in_ports(&self, port: PortIndex) -> std::ops::RangeInclusive<u8> {
        let node = self.fabric.node_of(port);
        0..=if node.switch.is_some() { node.port_count } else { 0 }
    }

    fn is_stale(&self, port: PortIndex, in_port: u8) -> bool {
        let held = self.fabric.port(port).qos.as_deref();
        let wanted = self.wanted_map(port, in_port);
        wanted.is_some_and(|map| !held.is_some_and(|held| held.maps(in_port, &map)))
    }
}

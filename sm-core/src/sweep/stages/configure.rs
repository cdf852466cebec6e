//! Configuration of the fabric: LIDs and P_Keys (`addresses`), then forwarding tables (`program`),
//! then links (`links`). Only what differs from the fabric's state is sent.

pub(in crate::sweep) mod addresses;
pub(in crate::sweep) mod links;
pub(in crate::sweep) mod program;

use std::collections::{HashMap, HashSet};

use ib_mad::types::{Guid, Lid};
use ib_mad::wire::attribute::{PortInfo, PortState};
use tracing::{info, warn};

use crate::fabric::PortIndex;
use crate::manage::{lid, link};
use crate::smp::Request;
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::events::Event;
use crate::sweep::subnet::report::LINES_MAX;

impl Subnet {
    /// Records the answer to a Set(PortInfo).
    pub(in crate::sweep) fn port_info_set(&mut self, request: Request, data: &[u8; 64]) {
        let port = request.port();
        let before = self.fabric.port(port).state();
        let entry = self.fabric.port_mut(port);
        let local_port_num = entry.port_info().local_port_num();
        entry.info = *data;
        let mut info = PortInfo::of_mut(&mut entry.info);
        // An echo of the request, and the port that this SMP came by: neither is the port's own.
        info.set_client_reregister(false).set_local_port_num(local_port_num);
        let after = entry.state();
        self.learn_m_key(port);
        let beyond = |state| matches!(state, Some(PortState::Armed | PortState::Active));
        if beyond(before) && !beyond(after) {
            self.link_was_reset(request, port);
        }
    }

    /// Assigns LIDs to end ports. Returns whether any changed.
    pub(in crate::sweep) fn assign_lids(&mut self) -> bool {
        let sm_port = self.fabric.sm_port();
        let reassign = self.state.first_as_master && self.settings.reassign_lids;
        if reassign {
            self.lids.clear();
        }
        let mut ports: Vec<(PortIndex, lid::Request)> = self
            .fabric
            .end_ports()
            .map(|port| {
                let entry = self.fabric.port(port);
                let held = if reassign { Lid::NONE } else { entry.base_lid() };
                let count = 1 << link::lmc_of(&self.fabric, port, &self.settings);
                (port, lid::Request { guid: entry.guid, held, count })
            })
            .collect();
        // Our own port first, then by GUID read from its last byte: the same fabric always gets
        // the same LIDs, and those that OpenSM gives on little-endian machines.
        ports.sort_unstable_by_key(|(port, request)| {
            (Some(*port) != sm_port, request.guid.0.swap_bytes())
        });
        let requests: Vec<lid::Request> = ports.iter().map(|(_, request)| *request).collect();
        let has_inherited =
            self.election.handover.take_inherits_lids() && !self.settings.honor_guid2lid_file;
        let adopted = has_inherited && !reassign && self.lids.adopt(&requests);
        let before = self.state.first_as_master.then(|| self.lids.clone());
        let (changed, short) = self.lids.assign(&requests);
        if let Some(resized) = before.and_then(|before| self.lids.resized_since(&before)) {
            let lid::Resized { ports, was, now } = resized;
            warn!("lmc changed from {was} to {now}: {ports} ports get new LIDs");
        }
        let without: HashSet<Guid> = short.iter().map(|shortage| shortage.guid).collect();
        let without = ports.iter().rev().filter(|(_, request)| without.contains(&request.guid));
        let places: HashMap<Guid, PortIndex> =
            without.map(|(port, request)| (request.guid, *port)).collect();
        for shortage in short {
            match places.get(&shortage.guid) {
                Some(&port) => self.fault(port, format_args!("{shortage}")),
                None => self.error(format_args!("{shortage}")),
            }
        }
        self.note_assigned_lids();
        if changed || adopted {
            self.events.push(Event::LidsChanged);
        }
        changed || adopted
    }

    /// Passes the assigned LIDs to the fabric, which publishes these, not what ports report.
    pub(in crate::sweep) fn note_assigned_lids(&mut self) {
        let Self { fabric, lids, settings, .. } = self;
        fabric.assign_lids(|fabric, port| {
            let range = lids.get(fabric.port(port).guid)?;
            Some((range.first, link::lmc_of(fabric, port, settings)))
        });
    }

    /// LID of the SM's own port.
    pub(in crate::sweep) fn sm_lid(&self) -> Lid {
        self.fabric
            .sm_port()
            .and_then(|sm_port| self.lids.get(self.fabric.port(sm_port).guid))
            .map_or(Lid::NONE, |range| range.first)
    }

    pub(in crate::sweep) fn report_new_nodes(&mut self) {
        let quiet = self.state.first_as_master;
        let new: Vec<_> = self.fabric.nodes().filter(|(_, n)| n.is_new).map(|(i, _)| i).collect();
        for (i, &node) in new.iter().enumerate() {
            let node = self.fabric.node_mut(node);
            node.is_new = false;
            if !quiet && i < LINES_MAX {
                info!("node discovered: {} '{}' {}", node.kind, node.name(), node.guid);
            }
        }
        if !quiet && new.len() > LINES_MAX {
            info!("{} more nodes discovered", new.len() - LINES_MAX);
        }
    }
}

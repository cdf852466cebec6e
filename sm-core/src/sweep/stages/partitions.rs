//! P_Key tables of end ports, and of switch ports that check P_Keys, by the policy in force.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ib_mad::types::{Guid, PKey};
use ib_mad::wire::attribute::{NodeType, PKEYS_PER_BLOCK, PKeyTable, pkey_table_modifier};

use crate::fabric::PortIndex;
use crate::manage::api_partitions::Conflicts;
use crate::manage::end_port::end_ports;
use crate::manage::partition::Memberships;
use crate::manage::pkey::{self, PKeyPlan};
use crate::manage::vfabric::VirtualFabrics;
use crate::smp::{Kind, Request, kinds};
use crate::sweep::subnet::Subnet;
use crate::sweep::subnet::owner::{OwnedRequest, RequestOwner};
use crate::sweep::subnet::report::LINES_MAX;
use sm_config::PartitionConfig;
use tracing::{info, warn};

impl Subnet {
    /// Ports that responders serve at, ascending.
    pub(in crate::sweep) fn responder_ports(&self) -> &[Guid] {
        &self.partitions.responders
    }

    /// The partitions of operators' files: with those of virtual fabrics, which this resolves.
    fn partitions_of_files(&mut self) -> Arc<PartitionConfig> {
        let config = self.partitions.config.clone();
        let Some(file) = &self.partitions.virtual_fabric_file else {
            self.partitions.virtual_fabrics = VirtualFabrics::default();
            return config;
        };
        let taken: Vec<PKey> = config.partitions().iter().map(|each| each.pkey).collect();
        let managers: Vec<PortIndex> =
            self.election.others().iter().map(|&(port, _)| port).collect();
        let resolved = VirtualFabrics::resolve(file, &end_ports(&self.fabric, &managers), &taken);
        let joined = resolved.join(&config);
        self.partitions.virtual_fabrics = resolved;
        Arc::new(joined)
    }

    /// All partitions: those of operators' files, and what programs add to them.
    fn joined_partitions(&mut self) -> Arc<PartitionConfig> {
        let config = self.partitions_of_files();
        self.partitions.of_files = config.clone();
        let api = self.partitions.api.clone();
        let Some(api) = api.filter(|api| !api.is_empty()) else {
            self.note_conflicts(Conflicts::default());
            return config;
        };
        let fabric = &self.fabric;
        let ends = fabric.end_ports();
        let mut places: HashMap<Guid, (NodeType, bool), RandomState> = ends
            .map(|port| {
                let own = fabric.sm_port() == Some(port);
                (fabric.port(port).guid, (fabric.node_of(port).kind, own))
            })
            .collect();
        for (_, _, port) in fabric.usable_virtual_ports() {
            places.entry(port.guid()).or_insert((NodeType::Ca, false));
        }
        let (joined, conflicts) = api.join(&config, |guid| places.get(&guid).copied());
        self.note_conflicts(conflicts);
        Arc::new(joined)
    }

    /// Logs what programs and files disagree about, each once.
    fn note_conflicts(&mut self, conflicts: Conflicts) {
        let before = std::mem::replace(&mut self.partitions.conflicts, conflicts);
        let conflicts = &self.partitions.conflicts;
        if *conflicts == before {
            return;
        }
        let new: Vec<_> =
            conflicts.first.iter().filter(|conflict| !before.first.contains(conflict)).collect();
        new.iter().take(LINES_MAX).for_each(|conflict| warn!("{conflict}"));
        if new.len() > LINES_MAX {
            warn!("{} further conflicts of programs with the file", new.len() - LINES_MAX);
        }
        if conflicts.is_empty() {
            info!("partitions made by programs and those of the operator's files agree");
        }
    }

    /// Computes all P_Key tables and sets the blocks that differ.
    pub(in crate::sweep) fn set_pkeys(&mut self) {
        let config = self.joined_partitions();
        let allow_both = self.settings.allow_both_pkeys;
        let responders = &self.partitions.responders;
        let mut memberships = Memberships::resolve(&self.fabric, &config, allow_both, responders);
        if self.partitions.api.is_none() {
            memberships.keep_others(&self.fabric, &config);
        }
        let plan = PKeyPlan::new(&self.fabric, &memberships, &self.settings);
        let mut blocks = Vec::new();
        for (port, count) in plan.ports(&self.fabric) {
            let wrong =
                (0..count).filter(|&block| plan.wanted_block(&self.fabric, port, block).is_some());
            let before = blocks.len();
            blocks.extend(wrong.map(|block| Request::block(Kind::SetPKeys, port, block)));
            if blocks.len() > before && self.fabric.can_have_virtual_ports(port) {
                self.partitions.rewritten_hosts.insert(port);
            }
        }
        self.journal.report.pkey_blocks_set += blocks.len() as u64;
        blocks.into_iter().for_each(|request| self.exchange.push(request));
        self.journal.report.pkeys_left_out = plan.short.iter().map(|(_, keys)| keys.len()).sum();
        self.journal.report.unchecked_ports = plan.unchecked.len();
        self.partitions.in_force = config;
        self.partitions.memberships = memberships;
        self.partitions.wrong_virtual_hosts = plan.wrong_virtual_hosts(&self.fabric);
        self.fabric.assign_pkeys(
            |port| plan.shared_table(port),
            |host, index| plan.virtual_table(host, index),
        );
        self.partitions.plan = plan;
        self.report_shortages();
    }

    /// Whether a table differs from what it should be.
    pub(in crate::sweep) fn has_wrong_pkeys(&self) -> bool {
        let plan = &self.partitions.plan;
        plan.ports(&self.fabric).any(|(port, count)| {
            (0..count).any(|block| plan.wanted_block(&self.fabric, port, block).is_some())
        })
    }

    /// Reports each table that is too small, once.
    fn report_shortages(&mut self) {
        let reported = std::mem::take(&mut self.partitions.reported);
        let plan = &self.partitions.plan;
        let short = plan.short.iter().map(|(port, keys)| (*port, Some(listed(keys))));
        let all: Vec<_> = short.chain(plan.unchecked.iter().map(|&port| (port, None))).collect();
        for (port, keys) in all.iter().filter(|(port, _)| !reported.contains(port)) {
            let port = *port;
            let capacity = pkey::capacity(&self.fabric, port);
            let place = self.place(port);
            match keys {
                Some(keys) => self.anomaly(format_args!(
                    "the P_Key table of {place} has {capacity} entries; not set: {keys}"
                )),
                None => self.anomaly(format_args!(
                    "the P_Key table of {place} has {capacity} entries, fewer than the port \
                     behind it has P_Keys; partition enforcement is off there"
                )),
            }
        }
        self.partitions.reported = all.into_iter().map(|(port, _)| port).collect();
    }

    /// Records a block of a port's P_Key table that was read or set.
    pub(in crate::sweep) fn record_pkeys(&mut self, request: Request, data: &[u8; 64]) {
        let Ok(table) = PKeyTable::new(data) else { return };
        let mut keys = [PKey::default(); PKEYS_PER_BLOCK];
        for (key, read) in keys.iter_mut().zip(table.pkeys()) {
            *key = read;
        }
        self.fabric.set_pkey_block(request.port(), request.block, &keys);
    }

    /// AttributeModifier of a P_KeyTable.
    pub(in crate::sweep) fn pkey_modifier(&self, request: Request) -> u32 {
        pkey_table_modifier(self.table_port(request), request.block)
    }

    /// The block that a port's P_Key table should hold, if it does not.
    fn wanted_pkeys(&self, request: Request) -> Option<[PKey; PKEYS_PER_BLOCK]> {
        self.partitions.plan.wanted_block(&self.fabric, request.port(), request.block)
    }
}

/// P_Key tables, as owner of the requests that set them.
pub(in crate::sweep) struct PKeyTables;

impl RequestOwner for PKeyTables {
    type Kind = kinds::PKeyTables;

    fn encode(
        &self,
        subnet: &Subnet,
        owned: OwnedRequest<Self::Kind>,
        data: &mut [u8; 64],
    ) -> Option<u32> {
        let OwnedRequest { kind, request, .. } = owned;
        match kind {
            kinds::PKeyTables::SetPKeys => {
                let mut table = PKeyTable::of_mut(data);
                for (index, key) in subnet.wanted_pkeys(request)?.into_iter().enumerate() {
                    table.set_pkey(index, key);
                }
                Some(subnet.pkey_modifier(request))
            }
        }
    }

    fn answered(&mut self, subnet: &mut Subnet, owned: OwnedRequest<Self::Kind>, data: &[u8; 64]) {
        let OwnedRequest { request, .. } = owned;
        subnet.record_pkeys(request, data);
        if subnet.wanted_pkeys(request).is_some() {
            let (port, block) = (request.port(), request.block);
            let place = subnet.place(port);
            subnet.fault(
                port,
                format_args!("{place}: P_Key block {block} differs from the block that was set"),
            );
        }
    }
}

/// P_Keys as text: the first ones, and their number.
pub(in crate::sweep) fn listed(keys: &[PKey]) -> String {
    let some: Vec<String> =
        keys.iter().take(KEYS_LISTED_MAX).map(|key| format!("{:#06x}", key.0)).collect();
    match keys.len().saturating_sub(KEYS_LISTED_MAX) {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}

/// P_Keys named in a line.
const KEYS_LISTED_MAX: usize = 8;

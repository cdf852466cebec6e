//! Partitions, virtual fabrics and ports of responders, which the caller sets.

use std::sync::Arc;
use std::time::Instant;

use ib_mad::types::{Guid, PKey};

use super::Sweeper;
use crate::fabric::PortIndex;
use crate::manage::api_partitions::{ApiPartitions, Conflicts};
use crate::manage::isolation::{self, AbsentGuids, Isolated};
use crate::manage::partition::Memberships;
use crate::manage::vfabric::VirtualFabrics;
use crate::sweep::stages::partitions::listed;
use sm_config::PartitionConfig;
use sm_config::opafm::OpaFm;

impl Sweeper {
    /// Sets the partitions to put in force from the next sweep on.
    pub fn set_partitions(&mut self, config: Arc<PartitionConfig>) {
        self.subnet.partitions.config = config;
    }

    /// Sets the partitions that programs made; `None` if they are not known: until they are, ports
    /// keep P_Keys that no file mentions. They are in force within a second, without a sweep, or
    /// with the one that is under way; then there is an [`Event::PKeysWritten`].
    ///
    /// [`Event::PKeysWritten`]: crate::sweep::Event::PKeysWritten
    pub fn put_api_partitions(&mut self, now: Instant, partitions: Option<Arc<ApiPartitions>>) {
        if partitions == self.subnet.partitions.api {
            return;
        }
        self.subnet.partitions.api = partitions;
        self.partition_changes.changed(now, self.subnet.fabric.port_count());
        self.run_tasks(now);
        self.advance(now);
    }

    /// What operators' files and programs disagree about: the files apply.
    pub fn partition_conflicts(&self) -> &Conflicts {
        &self.subnet.partitions.conflicts
    }

    /// Sets the ports that responders serve at: they become full members of the default partition
    /// with the next sweep. Returns `true` if one of them is not a full member yet, so that a sweep
    /// is needed.
    pub fn set_responder_ports(&mut self, ports: impl IntoIterator<Item = Guid>) -> bool {
        let mut ports: Vec<Guid> = ports.into_iter().collect();
        ports.sort_unstable();
        ports.dedup();
        if ports == self.subnet.partitions.responders {
            return false;
        }
        self.subnet.partitions.responders = ports;
        let full = |port: PortIndex| {
            let keys = self.subnet.partitions.memberships.keys(port);
            keys.is_none_or(|keys| keys.keys.contains(&PKey::DEFAULT_FULL))
        };
        let mut ends = self.subnet.fabric.end_ports();
        ends.any(|port| {
            let guid = self.subnet.fabric.port(port).guid;
            self.subnet.partitions.responders.binary_search(&guid).is_ok() && !full(port)
        })
    }

    /// Sets the virtual fabrics to put in force from the next sweep on.
    pub fn set_virtual_fabrics(&mut self, file: Option<Arc<OpaFm>>) {
        let arbitrates = file.as_ref().is_some_and(|file| file.arbitrates());
        if arbitrates && !self.subnet.partitions.arbitrated {
            // From now on, ports have the SL-to-VL tables of the settings.
            self.subnet.partitions.arbitrated = true;
            self.multicast.lanes_changed(&mut self.subnet);
        }
        self.subnet.partitions.virtual_fabric_file = file;
    }

    /// Virtual fabrics as the last sweep resolved them.
    pub fn virtual_fabrics(&self) -> &VirtualFabrics {
        &self.subnet.partitions.virtual_fabrics
    }

    /// The partitions that were in force in the last sweep.
    pub fn partitions(&self) -> &PartitionConfig {
        &self.subnet.partitions.in_force
    }

    /// Those of them that operators' files define: `partitions.conf` and virtual fabrics.
    pub fn partitions_of_files(&self) -> &Arc<PartitionConfig> {
        &self.subnet.partitions.of_files
    }

    /// Partition members, as applied by the last sweep.
    pub fn memberships(&self) -> &Memberships {
        &self.subnet.partitions.memberships
    }

    /// GUIDs that operators' files name and no port has, as of the last sweep or change. Programs
    /// name GUIDs of virtual functions before these exist, and of hosts that are to come.
    pub fn absent_guids(&self) -> AbsentGuids {
        isolation::absent_guids(&self.subnet.fabric, &self.subnet.partitions.of_files)
    }

    /// Hosts that reach no other host by their partitions; none while partitions that programs made
    /// are not known.
    pub fn isolated_hosts(&self) -> Isolated {
        let partitions = &self.subnet.partitions;
        if partitions.api.is_none() {
            return Isolated::default();
        }
        isolation::isolated(&self.subnet.fabric, &partitions.memberships, &partitions.responders)
    }

    /// Ports whose P_Key table is full, as text for the status; `None` unless the subnet is up
    /// under this SM.
    pub fn pkey_warning(&self) -> Option<String> {
        if !self.subnet.state.up {
            return None;
        }
        let short = &self.subnet.partitions.plan.short;
        let (port, keys) = short.first()?;
        let (place, keys) = (self.subnet.fabric.describe(*port), listed(keys));
        let more = match short.len() - 1 {
            0 => String::new(),
            more => format!(", and P_Keys of {more} more ports (see the log)"),
        };
        Some(format!("P_Key table of {place} is full; not set: {keys}{more}"))
    }
}

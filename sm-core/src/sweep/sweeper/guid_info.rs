//! Alias GUIDs: takes those that the registry changed, and the ports that are to have the GUID
//! that stands for the SA.

use std::collections::BTreeSet;
use std::time::Instant;

use ib_mad::types::Guid;

use super::Sweeper;
use crate::registry::GuidBlock;
use crate::sweep::subnet::sa_guid::SaGuid;

impl Sweeper {
    /// Sets the wanted contents of blocks of GUID tables. They are written when no sweep is under
    /// way.
    pub fn put_guid_blocks(&mut self, now: Instant, blocks: &[GuidBlock]) {
        self.aliases.put(&mut self.subnet, now, blocks);
        self.run_tasks(now);
        self.advance(now);
    }

    /// Sets the ports that are to have the GUID that stands for the SA: those of responders that
    /// clients are led to, now or after a takeover of a LID. It is written when no sweep is under
    /// way, and cleared at ports that are not among them any more. Without sharding, and while
    /// this SM is not master, there are none.
    pub fn set_sa_ports(&mut self, now: Instant, ports: impl IntoIterator<Item = Guid>) {
        let subnet = &mut self.subnet;
        if subnet.shards.sharding.is_none() || !subnet.election.is_master() {
            return subnet.shards.sa_guids.clear();
        }
        let own = subnet.fabric.sm_port().map(|port| subnet.fabric.port(port).guid);
        let wanted: BTreeSet<Guid> = ports.into_iter().filter(|&guid| Some(guid) != own).collect();
        self.aliases.want_sa_guid(subnet, now, &wanted);
        self.run_tasks(now);
        self.advance(now);
    }

    /// The ports that are to have the GUID that stands for the SA, ascending, and whether each has
    /// it.
    pub fn sa_guids(&self) -> impl Iterator<Item = (Guid, SaGuid)> + '_ {
        self.subnet.shards.sa_guids.iter()
    }
}

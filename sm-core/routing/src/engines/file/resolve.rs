//! Resolves a dump to the switch numbers of a topology.

use ib_mad::types::{Guid, Lid};

use super::{Dump, DumpError};
use crate::{Destination, Entries, NO_ROUTE, Topology};

impl Dump {
    /// Returns the tables of a topology's switches, for `Steering::lfts`. `switch` maps a GUID to a
    /// switch number, and `place` returns the destination that has a port's LIDs now: as in OpenSM,
    /// dumps that contain port GUIDs stay valid when LIDs change. Switches that are not in the
    /// topology are skipped.
    pub fn resolve<'a>(
        &self,
        topology: &Topology,
        switch: impl Fn(Guid) -> Option<u16>,
        place: impl Fn(Guid) -> Option<&'a Destination>,
    ) -> Result<Vec<Entries>, DumpError> {
        let mut lfts = vec![Entries::default(); topology.switch_count()];
        let len = topology.table_len();
        for table in &self.switches {
            let number = switch(table.guid);
            let Some(number) = number.filter(|&number| usize::from(number) < lfts.len()) else {
                continue;
            };
            let ports = topology.port_count(number);
            let mut lft = vec![NO_ROUTE; len];
            for entry in &table.entries {
                if entry.port > ports {
                    let wrong = format!("switch {} has no port {}", table.guid, entry.port);
                    let right = format!("its ports are 0 to {ports}");
                    return Err(DumpError::new(entry.line, wrong, right));
                }
                let now = entry.port_guid.and_then(&place);
                let lid = now.map_or(entry.lid, |now| moved(entry.lid, now));
                if let Some(slot) = lft.get_mut(lid.index()) {
                    *slot = entry.port;
                }
            }
            lfts[usize::from(number)] = lft.into();
        }
        Ok(lfts)
    }
}

/// The LID that a port has now for one that it had before: the same LID, or the one at the same
/// offset from the base LID.
fn moved(lid: Lid, now: &Destination) -> Lid {
    let first = now.base_lid.0;
    if lid.0.checked_sub(first).is_some_and(|offset| offset < now.lid_count) {
        return lid;
    }
    Lid(first + lid.0 % now.lid_count)
}

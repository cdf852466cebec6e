//! Alias GUIDs: takes those that the registry changed.

use std::time::Instant;

use super::Sweeper;
use crate::registry::GuidBlock;

impl Sweeper {
    /// Sets the wanted contents of blocks of GUID tables. They are written when no sweep is under
    /// way.
    pub fn put_guid_blocks(&mut self, now: Instant, blocks: &[GuidBlock]) {
        self.aliases.put(&mut self.subnet.alias_owners, now, blocks);
        self.run_tasks(now);
        self.advance(now);
    }
}

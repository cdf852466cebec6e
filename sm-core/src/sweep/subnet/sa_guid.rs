//! The GUID that stands for the SA, at ports of responders: which ports are to have it, and which
//! took it.
//!
//! Virtual functions send queries to this GUID at the LID of MasterSMLID. `shard` leads them only
//! to ports that have it. The task of alias GUIDs (`tasks::guid_info`) writes it, in an entry of
//! the GUID table that the registry does not use: it is never a row of the registry, nor published.

use std::collections::{BTreeMap, BTreeSet};

use ib_mad::types::Guid;

use crate::registry::GUIDS_PER_BLOCK;

/// Whether a port has the GUID that stands for the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaGuid {
    /// It has not answered yet whether it takes it.
    Awaited,
    /// It has it.
    Held,
    /// It refused it, or answered with another GUID.
    Refused,
    /// Its GUID table has no free entry in its last block.
    NoRoom,
}

impl SaGuid {
    /// Its name for programs and operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Awaited => "awaited",
            Self::Held => "held",
            Self::Refused => "refused",
            Self::NoRoom => "no_room",
        }
    }
}

/// The ports that are to have it.
#[derive(Debug, Default)]
pub(in crate::sweep) struct SaGuids {
    ports: BTreeMap<Guid, SaGuid>,
}

impl SaGuids {
    /// Whether a port is to have it, and whether it does.
    pub(in crate::sweep) fn get(&self, port: Guid) -> Option<SaGuid> {
        self.ports.get(&port).copied()
    }

    /// Whether a port has it.
    pub(in crate::sweep) fn is_held(&self, port: Guid) -> bool {
        self.get(port) == Some(SaGuid::Held)
    }

    /// All ports that are to have it, ascending.
    pub(in crate::sweep) fn iter(&self) -> impl Iterator<Item = (Guid, SaGuid)> + '_ {
        self.ports.iter().map(|(&port, &is)| (port, is))
    }

    /// Whether these are the ports that are to have it.
    pub(in crate::sweep) fn is_exactly(&self, ports: &BTreeSet<Guid>) -> bool {
        self.ports.keys().eq(ports)
    }

    /// Sets the ports that are to have it. Returns those that may have it and are not to any more.
    pub(in crate::sweep) fn want(&mut self, ports: &BTreeSet<Guid>) -> Vec<Guid> {
        let mut left = Vec::new();
        self.ports.retain(|port, is| {
            let is_wanted = ports.contains(port);
            if !is_wanted && matches!(is, SaGuid::Awaited | SaGuid::Held) {
                left.push(*port);
            }
            is_wanted
        });
        for &port in ports {
            self.ports.entry(port).or_insert(SaGuid::Awaited);
        }
        left
    }

    /// Records whether a port that is to have it does. Returns whether that is new.
    pub(in crate::sweep) fn set(&mut self, port: Guid, is: SaGuid) -> bool {
        self.ports.get_mut(&port).is_some_and(|entry| std::mem::replace(entry, is) != is)
    }

    /// A port was reset: it is asked again. Until it answers it counts as it did.
    pub(in crate::sweep) fn ask_again(&mut self, port: Guid) {
        if let Some(is) = self.ports.get_mut(&port).filter(|is| **is != SaGuid::Held) {
            *is = SaGuid::Awaited;
        }
    }

    /// Another subnet manager may have written to any port.
    pub(in crate::sweep) fn ask_all_again(&mut self) {
        let asked = self.ports.values_mut().filter(|is| **is != SaGuid::Held);
        asked.for_each(|is| *is = SaGuid::Awaited);
    }

    /// A port left the fabric.
    pub(in crate::sweep) fn lose(&mut self, port: Guid) {
        self.set(port, SaGuid::Awaited);
    }

    pub(in crate::sweep) fn clear(&mut self) {
        self.ports.clear();
    }
}

/// Number of the last block of a GUID table with `guid_cap` entries; `None` if it has none besides
/// the port GUID.
pub(in crate::sweep) fn last_block(guid_cap: u8) -> Option<u8> {
    (guid_cap > 1).then(|| (guid_cap - 1) / GUIDS_PER_BLOCK as u8)
}

/// The entry of the last block of a GUID table that gets the GUID: the last one that is free in
/// `block`, which has the aliases of the registry.
pub(in crate::sweep) fn entry_in(block: &[Guid; GUIDS_PER_BLOCK], guid_cap: u8) -> Option<usize> {
    let number = last_block(guid_cap)?;
    let last = usize::from(guid_cap - 1) % GUIDS_PER_BLOCK;
    // Entry 0 of block 0 is the port GUID.
    let first = usize::from(number == 0);
    (first..=last).rev().find(|&at| block[at] == Guid(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_free_entry_of_the_table_is_taken() {
        let mut block = [Guid(0); GUIDS_PER_BLOCK];
        assert_eq!((last_block(0), last_block(1)), (None, None));
        assert_eq!((last_block(2), last_block(8), last_block(9)), (Some(0), Some(0), Some(1)));
        assert_eq!((last_block(255), entry_in(&block, 255)), (Some(31), Some(6)));
        assert_eq!((entry_in(&block, 32), entry_in(&block, 9)), (Some(7), Some(0)));
        block[7] = Guid(7);
        assert_eq!(entry_in(&block, 32), Some(6));
        block[..7].fill(Guid(1));
        assert_eq!(entry_in(&block, 32), None);
        let only_its_own = [Guid(1), Guid(0), Guid(0), Guid(0), Guid(0), Guid(0), Guid(0), Guid(0)];
        assert_eq!((entry_in(&only_its_own, 2), entry_in(&only_its_own, 1)), (Some(1), None));
    }

    #[test]
    fn a_port_that_refused_is_asked_again_after_a_reset_and_forgotten_once_not_wanted() {
        let mut guids = SaGuids::default();
        let (both, one) = (BTreeSet::from([Guid(1), Guid(2)]), BTreeSet::from([Guid(1)]));
        assert_eq!(guids.want(&both), []);
        assert!(guids.set(Guid(1), SaGuid::Held) && guids.set(Guid(2), SaGuid::Refused));
        assert!(!guids.set(Guid(1), SaGuid::Held) && !guids.set(Guid(3), SaGuid::Held));
        assert_eq!(guids.want(&one), [], "the other one never had it");
        assert_eq!(guids.want(&both), []);
        guids.set(Guid(2), SaGuid::Refused);
        guids.ask_again(Guid(1));
        guids.ask_again(Guid(2));
        assert_eq!(
            guids.iter().collect::<Vec<_>>(),
            [(Guid(1), SaGuid::Held), (Guid(2), SaGuid::Awaited)]
        );
        assert_eq!(guids.want(&BTreeSet::new()), [Guid(1), Guid(2)]);
    }
}

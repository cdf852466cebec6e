//! Aliases that are kept for ports that left: such a port may be restarting, and another one would
//! get its paths.

use std::collections::{BTreeSet, HashMap};

use ib_mad::types::Guid;

/// Maximum number of aliases kept.
const KEPT_MAX: usize = 1 << 18;
/// How long an alias is kept, in seconds: longer than a host takes to restart.
pub(super) const KEPT_S: u64 = 900;

/// The aliases, with their ports. Operations take logarithmic time at most.
#[derive(Debug, Default)]
pub(in crate::registry) struct KeptAliases {
    /// Port and end of each; the end is 0 until the registry is next given the time.
    by_alias: HashMap<Guid, (Guid, u64)>,
    /// By end, in seconds of registry time.
    ends: BTreeSet<(u64, Guid)>,
}

impl KeptAliases {
    /// Keeps an alias for a port, if there is room.
    pub(super) fn keep(&mut self, alias: Guid, port: Guid) {
        self.release(alias);
        if self.by_alias.len() < KEPT_MAX {
            self.by_alias.insert(alias, (port, 0));
            self.ends.insert((0, alias));
        }
    }

    /// The port that an alias is kept for.
    pub(super) fn port_of(&self, alias: Guid) -> Option<Guid> {
        self.by_alias.get(&alias).map(|(port, _)| *port)
    }

    /// Keeps an alias no longer.
    pub(super) fn release(&mut self, alias: Guid) {
        if let Some((_, end_s)) = self.by_alias.remove(&alias) {
            self.ends.remove(&(end_s, alias));
        }
    }

    /// Releases those whose time is over, and begins that of new ones.
    pub(super) fn expire(&mut self, now_s: u64) {
        while let Some(&(end_s, alias)) = self.ends.first().filter(|(end_s, _)| *end_s <= now_s) {
            self.ends.remove(&(end_s, alias));
            match self.by_alias.get_mut(&alias) {
                Some((_, end)) if end_s == 0 => {
                    *end = now_s + KEPT_S;
                    self.ends.insert((*end, alias));
                }
                _ => _ = self.by_alias.remove(&alias),
            }
        }
    }

    /// When [`expire`](Self::expire) has something to do, in seconds of registry time.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.ends.first().map(|(end_s, _)| *end_s)
    }

    /// Forgets all, as a restart does.
    #[cfg(test)]
    pub(in crate::registry) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_kept_from_the_time_that_is_given_next() {
        let mut kept = KeptAliases::default();
        kept.keep(Guid(1), Guid(0xA1));
        assert_eq!(kept.next_expiry(), Some(0));
        kept.expire(100);
        kept.keep(Guid(2), Guid(0xA2));
        kept.expire(200);
        assert_eq!(kept.next_expiry(), Some(100 + KEPT_S));
        kept.expire(100 + KEPT_S);
        assert_eq!((kept.port_of(Guid(1)), kept.port_of(Guid(2))), (None, Some(Guid(0xA2))));
        // The port left again: the time begins again.
        kept.keep(Guid(2), Guid(0xA2));
        kept.expire(300);
        assert_eq!(kept.next_expiry(), Some(300 + KEPT_S));
        kept.release(Guid(2));
        assert!(kept.by_alias.is_empty() && kept.ends.is_empty());
    }
}

//! Limits of connections: in all, so that descriptors remain for the state directory and others,
//! and for each peer, so that none can shut out others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::crowd::Share;
use crate::descriptors::Descriptors;

/// Connections at once from one address, or of one user of this host.
const SHARE_MAX: usize = 128;
/// Connections at once of a user of this host without a role, whose calls are refused.
const SHARE_WITHOUT_ROLE_MAX: usize = 8;
/// Part of all connections that users without a role may have together: one host can have many
/// users.
const PART_WITHOUT_ROLE: usize = 8;
/// Part of all connections that is kept for trusted users.
const PART_FOR_TRUSTED: usize = 16;

/// How many connections a share may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowance {
    /// A user of this host who may change something, or is a responder.
    Trusted,
    /// Any other host, and a user of this host who may only look.
    Usual,
    /// A user of this host without a role.
    WithoutRole,
}

impl Allowance {
    fn connections(self) -> usize {
        match self {
            Self::Trusted => usize::MAX,
            Self::Usual => SHARE_MAX,
            Self::WithoutRole => SHARE_WITHOUT_ROLE_MAX,
        }
    }
}

/// Counts connections. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Gate {
    max: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// Those of users without a role, and those of all that are not trusted.
    without_role: usize,
    untrusted: usize,
    shares: HashMap<Share, usize>,
}

/// Place of a connection, freed when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    gate: Gate,
    share: Option<(Share, Allowance)>,
}

impl Gate {
    /// For the only gRPC server of a process that may have this many descriptors.
    pub fn new(descriptors: Descriptors) -> Self {
        Self { max: descriptors.for_grpc(), open: Arc::default() }
    }

    /// A place for a connection whose peer is not known yet, if there is one.
    pub(super) fn enter(&self) -> Option<Slot> {
        let mut open = lock(&self.open);
        (open.all < self.max).then(|| {
            open.all += 1;
            Slot { gate: self.clone(), share: None }
        })
    }
}

impl Slot {
    /// Counts the connection as one of `share`; `false` if that has too many, or all of its kind.
    pub(super) fn assign(&mut self, share: Share, allowance: Allowance) -> bool {
        let max = self.gate.max;
        let mut open = lock(&self.gate.open);
        let used = open.shares.get(&share).copied().unwrap_or_default();
        let is_full = match allowance {
            Allowance::Trusted => false,
            Allowance::Usual => open.untrusted >= max - max / PART_FOR_TRUSTED,
            Allowance::WithoutRole => open.without_role >= max / PART_WITHOUT_ROLE,
        };
        if is_full || used >= allowance.connections() {
            return false;
        }
        open.shares.insert(share, used + 1);
        open.without_role += usize::from(allowance == Allowance::WithoutRole);
        open.untrusted += usize::from(allowance != Allowance::Trusted);
        self.share = Some((share, allowance));
        true
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = lock(&self.gate.open);
        open.all -= 1;
        let Some((share, allowance)) = self.share else { return };
        open.without_role -= usize::from(allowance == Allowance::WithoutRole);
        open.untrusted -= usize::from(allowance != Allowance::Trusted);
        match open.shares.get_mut(&share) {
            Some(used) if *used > 1 => *used -= 1,
            _ => _ = open.shares.remove(&share),
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn host(text: &str) -> Share {
        Share::of_host(text.parse().unwrap())
    }

    fn fill(gate: &Gate, share: Share, allowance: Allowance) -> Vec<Slot> {
        let slots = std::iter::from_fn(|| {
            let mut slot = gate.enter()?;
            slot.assign(share, allowance).then_some(slot)
        });
        slots.collect()
    }

    #[test]
    fn one_host_leaves_room_for_others() {
        let gate = Gate::new(Descriptors::new(10_000));
        let mut slots = fill(&gate, host("192.0.2.1"), Allowance::Usual);
        assert_eq!(slots.len(), SHARE_MAX);
        assert_eq!(fill(&gate, host("::ffff:192.0.2.1"), Allowance::Usual).len(), 0);
        assert_eq!(fill(&gate, host("192.0.2.2"), Allowance::Usual).len(), SHARE_MAX);
        slots.pop();
        assert_eq!(fill(&gate, host("192.0.2.1"), Allowance::Usual).len(), 1);
        let held = fill(&gate, host("2001:db8::1"), Allowance::Usual);
        assert_eq!(fill(&gate, host("2001:db8::2"), Allowance::Usual).len(), 0);
        drop((slots, held));
        assert!(lock(&gate.open).shares.is_empty() && lock(&gate.open).all == 0);
    }

    #[test]
    fn users_without_a_role_have_few_and_trusted_ones_all() {
        let gate = Gate::new(Descriptors::new(1024));
        let few = fill(&gate, Share::User(65534), Allowance::WithoutRole);
        assert_eq!(few.len(), SHARE_WITHOUT_ROLE_MAX);
        let all = fill(&gate, Share::User(0), Allowance::Trusted);
        assert_eq!(all.len(), gate.max - few.len());
        assert!(gate.enter().is_none(), "descriptors are left");
    }

    /// Regression: 512 users without a role, or 32 hosts, shut out root and all responders.
    #[test]
    fn however_many_there_are_trusted_users_have_room() {
        let gate = Gate::new(Descriptors::new(10_000));
        let part = |count: u32, share: fn(u32) -> Share, allowance| {
            (0..count).flat_map(|n| fill(&gate, share(n), allowance)).collect::<Vec<_>>()
        };
        let users = part(4096, |n| Share::User(1000 + n), Allowance::WithoutRole);
        assert_eq!(users.len(), gate.max / PART_WITHOUT_ROLE);
        let hosts = part(64, |n| Share::of_host(Ipv4Addr::from(n).into()), Allowance::Usual);
        assert_eq!(hosts.len() + users.len(), gate.max - gate.max / PART_FOR_TRUSTED);
        assert!(!fill(&gate, Share::User(0), Allowance::Trusted).is_empty());
    }
}

//! This responder's subscriptions, indexed by trap number, so that an event examines only those
//! that may match.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ib_mad::wire::attribute::{InformInfo, Notice, TrapNumber};
use sa_proto::snapshot::{Rows, Subscription, SubscriptionRid};

use super::Event;

/// Subscriptions of one responder.
#[derive(Debug, Default)]
pub(super) struct Ours {
    /// The table that `by_trap` was built from.
    followed: Rows<Subscription>,
    /// Ours of it, by trap number or device id; those to all have [`TrapNumber::ALL`].
    by_trap: HashMap<TrapNumber, BTreeMap<SubscriptionRid, Arc<Subscription>>>,
}

impl Ours {
    /// Updates the index from a newer table, in time proportional to the changes.
    pub(super) fn follow(&mut self, responder: u64, rows: &Rows<Subscription>) {
        for (old, new) in rows.differences(&self.followed) {
            if let Some(old) = old {
                let trap = trap_of(old);
                if let Some(held) = self.by_trap.get_mut(&trap) {
                    held.remove(&old.rid);
                    if held.is_empty() {
                        self.by_trap.remove(&trap);
                    }
                }
            }
            if let Some(new) = new.filter(|new| new.responder == responder) {
                self.by_trap.entry(trap_of(new)).or_default().insert(new.rid, new.clone());
            }
        }
        self.followed = rows.clone();
    }

    /// Subscriptions that may match an event: those to its trap, and those to all traps.
    pub(super) fn about(&self, event: &Event) -> impl Iterator<Item = &Subscription> {
        let notice = Notice::of(&event.notice);
        let named = Some(notice.trap_number()).filter(|trap| *trap != TrapNumber::ALL);
        named
            .into_iter()
            .chain([TrapNumber::ALL])
            .filter_map(|trap| self.by_trap.get(&trap))
            .flat_map(|held| held.values())
            .map(|row| &**row)
    }
}

fn trap_of(row: &Subscription) -> TrapNumber {
    let wanted = InformInfo::of(&row.inform_info);
    wanted.trap_number()
}

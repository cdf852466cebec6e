//! Followers that writes wait for: those of clients with `--follow-sync`, and orders of programs
//! about partitions always, which no client repeats when it is asked to register again.
//!
//! A follower that is in step is awaited: a write is acknowledged once all of them have stored it.
//! One that is silent is awaited until its claim to be in step has ended by its own clock, and
//! [`MARGIN`] longer; then writes continue without it. One that answers and is not in step, such as
//! after its connection was closed, has [`LEASE`] to catch up. Then heartbeats no longer say that
//! writes wait for it, and [`LEASE`] and [`MARGIN`] later writes continue without it, too.
//!
//! Then the follower may take over, and relies on having been awaited if it has not heard the
//! master in the fabric since. So writes continue only after the master has heard the fabric at
//! that time: its link works, and the follower, which polls it, hears it. One that does not hear
//! the fabric itself relies on nothing (`node::succession`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use sa_proto::snapshot::RegistryVersion;
use tracing::{info, warn};

use super::LEASE;

/// More than the error of two clocks over [`LEASE`].
const MARGIN: Duration = Duration::from_secs(1);
/// How often it is checked whether the fabric was heard.
const HEARD_INTERVAL: Duration = Duration::from_millis(100);
/// Followers awaited at a time.
const AWAITED_MAX: usize = 16;

type Hook = Box<dyn Fn() + Send + Sync>;

/// The followers that writes wait for.
#[derive(Default)]
pub struct SyncFollowers {
    state: Mutex<State>,
    /// Called when one has stored something.
    hook: OnceLock<Hook>,
}

impl fmt::Debug for SyncFollowers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

#[derive(Debug, Default)]
struct State {
    is_on: bool,
    awaited: BTreeMap<Guid, Awaited>,
    /// When a packet of the fabric arrived last.
    heard: Option<Instant>,
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Awaited {
    stored: RegistryVersion,
    /// What was published when it began to be awaited: until it has stored that, there may be
    /// writes that were acknowledged without it.
    joined: RegistryVersion,
    /// Since when it answers without being in step.
    behind_since: Option<Instant>,
    /// Until when writes wait for it if it stays silent or behind.
    until: Instant,
}

impl Awaited {
    /// Whether it has been behind for too long: heartbeats no longer say that writes wait for it.
    fn is_given_up(&self, now: Instant) -> bool {
        self.behind_since.is_some_and(|since| now >= since + LEASE)
    }
}

/// Limit of the writes that may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Writes of clients up to this version; all if `None`.
    pub up_to: Option<RegistryVersion>,
    /// The same of batches with orders of programs.
    pub orders_up_to: Option<RegistryVersion>,
    /// When to ask again, if no follower stores anything before.
    pub due: Option<Instant>,
}

impl SyncFollowers {
    /// Makes writes of clients wait for followers from now on.
    pub fn enable(&self) {
        self.lock().is_on = true;
    }

    /// Sets the function to call when a follower has stored a change. Only the first call counts.
    pub fn set_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.hook.set(Box::new(hook));
    }

    /// Something arrived from the fabric at this time.
    pub(super) fn note_heard(&self, heard: Instant) {
        self.lock().heard = Some(heard);
    }

    /// A follower has stored this.
    pub(crate) fn note_stored(&self, guid: Guid, stored: RegistryVersion) {
        if let Some(awaited) = self.lock().awaited.get_mut(&guid) {
            awaited.stored = stored;
        }
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    /// A follower answered a heartbeat; it is awaited from now on if it is in step. One that is
    /// not in step any more is awaited until it must have heard that.
    ///
    /// `published` reads the published version, after it is certain that what is published later
    /// waits for the follower.
    pub(crate) fn note_reply(
        &self,
        now: Instant,
        guid: Guid,
        in_step: bool,
        published: impl Fn() -> RegistryVersion,
    ) {
        let mut state = self.lock();
        let until = now + LEASE + MARGIN;
        if let Some(awaited) = state.awaited.get_mut(&guid) {
            awaited.behind_since = (!in_step).then(|| awaited.behind_since.unwrap_or(now));
            if !awaited.is_given_up(now) {
                awaited.until = until;
            }
        } else if in_step && state.awaited.len() < AWAITED_MAX {
            // A write is published before this lock is taken to find the followers that it waits
            // for.
            let (stored, joined) = (RegistryVersion::default(), published());
            state.awaited.insert(guid, Awaited { stored, joined, behind_since: None, until });
            if state.is_on {
                info!("writes wait for the standby at port {guid}");
            }
        }
    }

    /// Whether all that was acknowledged is stored by this follower.
    pub(super) fn is_awaited(&self, now: Instant, guid: Guid) -> bool {
        let is_complete =
            |awaited: &Awaited| awaited.stored >= awaited.joined && !awaited.is_given_up(now);
        let state = self.lock();
        state.is_on && state.awaited.get(&guid).is_some_and(is_complete)
    }

    /// Which writes may be acknowledged. Followers that were silent for too long no longer count.
    pub fn acknowledged(&self, now: Instant) -> Acknowledged {
        let mut state = self.lock();
        let (before, heard, is_on) = (state.awaited.len(), state.heard, state.is_on);
        state.awaited.retain(|guid, awaited| {
            let is_heard = heard.is_some_and(|heard| heard >= awaited.until);
            let is_silent = now >= awaited.until && is_heard;
            if is_silent && is_on {
                let (what, time) = match awaited.behind_since {
                    Some(since) => ("did not catch up", now.saturating_duration_since(since)),
                    None => ("was silent", LEASE + MARGIN),
                };
                let time = time.as_secs();
                warn!(
                    "the standby at port {guid} {what} for {time} s: writes no longer wait for it"
                );
            }
            !is_silent
        });
        if is_on {
            state.lost += (before - state.awaited.len()) as u64;
        }
        let followers = state.awaited.values();
        let stored = followers.clone().map(|awaited| awaited.stored).min();
        Acknowledged {
            up_to: stored.filter(|_| is_on),
            orders_up_to: stored,
            due: followers.map(|awaited| awaited.until.max(now + HEARD_INTERVAL)).min(),
        }
    }

    /// This SM is not master any more.
    pub(super) fn clear(&self) {
        self.lock().awaited.clear();
    }

    /// Followers awaited, and how many were lost; `None` if writes do not wait.
    pub fn counts(&self) -> Option<(usize, u64)> {
        let state = self.lock();
        state.is_on.then_some((state.awaited.len(), state.lost))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::Session;

    use super::*;

    fn version(sequence: u64) -> RegistryVersion {
        RegistryVersion { session: Session { epoch: 5, sm_guid: Guid(1) }, sequence }
    }

    const NOTHING_AWAITED: Acknowledged =
        Acknowledged { up_to: None, orders_up_to: None, due: None };

    fn enabled() -> SyncFollowers {
        let followers = SyncFollowers::default();
        followers.enable();
        followers
    }

    #[test]
    fn a_write_is_acknowledged_once_all_followers_in_step_have_it() {
        let (now, followers) = (Instant::now(), enabled());
        let up_to = || followers.acknowledged(now).up_to;
        followers.note_reply(now, Guid(7), false, || version(10));
        assert_eq!(up_to(), None, "one that is not in step is not awaited");
        followers.note_reply(now, Guid(7), true, || version(10));
        followers.note_reply(now, Guid(8), true, || version(10));
        assert!(up_to().is_some_and(|up_to| up_to < version(1)));
        followers.note_stored(Guid(7), version(12));
        followers.note_stored(Guid(8), version(11));
        assert_eq!(up_to(), Some(version(11)));
    }

    /// Regression: an order was acknowledged that only the disk of a master had, which died.
    #[test]
    fn orders_wait_for_followers_though_writes_do_not() {
        let (now, followers) = (Instant::now(), SyncFollowers::default());
        followers.note_reply(now, Guid(7), true, || version(10));
        followers.note_stored(Guid(7), version(11));
        let acknowledged = followers.acknowledged(now);
        assert_eq!((acknowledged.up_to, acknowledged.orders_up_to), (None, Some(version(11))));
        assert!(!followers.is_awaited(now, Guid(7)), "a takeover must not rely on it");
        assert_eq!(followers.counts(), None);
    }

    /// Writes that were acknowledged before a follower joined may be missing in its copy.
    #[test]
    fn a_follower_can_rely_on_being_awaited_when_it_has_what_was_published_before() {
        let (now, followers) = (Instant::now(), enabled());
        followers.note_reply(now, Guid(7), true, || version(10));
        followers.note_stored(Guid(7), version(9));
        assert!(!followers.is_awaited(now, Guid(7)));
        followers.note_stored(Guid(7), version(10));
        assert!(followers.is_awaited(now, Guid(7)));
    }

    #[test]
    fn a_silent_follower_is_awaited_until_its_lease_has_surely_ended() {
        let (start, followers) = (Instant::now(), enabled());
        followers.note_reply(start, Guid(7), true, || version(10));
        followers.note_stored(Guid(7), version(10));
        let due = followers.acknowledged(start).due.unwrap();
        assert!(due > start + LEASE);
        followers.note_heard(due);
        followers.note_stored(Guid(7), version(11));
        assert_eq!(
            followers.acknowledged(start).due,
            Some(due),
            "only answers to heartbeats count"
        );
        let before = due - Duration::from_millis(1);
        assert_eq!(followers.acknowledged(before).up_to, Some(version(11)));
        assert_eq!(followers.acknowledged(due), NOTHING_AWAITED);
        assert_eq!(followers.counts(), Some((0, 1)));
        assert!(!followers.is_awaited(due, Guid(7)));
    }

    /// Regression: a master whose link to the fabric failed at the same time acknowledged alone,
    /// and its standby relied on having been awaited.
    #[test]
    fn a_silent_follower_is_awaited_while_the_fabric_is_silent() {
        let (start, followers) = (Instant::now(), enabled());
        followers.note_reply(start, Guid(7), true, || version(10));
        followers.note_stored(Guid(7), version(10));
        let due = followers.acknowledged(start).due.unwrap();
        followers.note_heard(due - Duration::from_millis(1));
        let late = due + Duration::from_secs(60);
        let next = Acknowledged {
            up_to: Some(version(10)),
            orders_up_to: Some(version(10)),
            due: Some(late + HEARD_INTERVAL),
        };
        assert_eq!(followers.acknowledged(late), next);
        followers.note_heard(late);
        assert_eq!(followers.acknowledged(late), NOTHING_AWAITED);
    }

    /// Regression: writes waited without end for a standby that answered and stored nothing.
    #[test]
    fn a_follower_that_answers_and_stores_nothing_is_given_up() {
        let (start, followers) = (Instant::now(), enabled());
        followers.note_reply(start, Guid(7), true, || version(10));
        followers.note_stored(Guid(7), version(10));
        assert!(followers.is_awaited(start, Guid(7)));
        let behind = start + LEASE;
        // When a heartbeat last said that writes wait.
        let mut last_claim = start;
        for beat in 0..30 {
            let now = behind + Duration::from_millis(300) * beat;
            followers.note_reply(now, Guid(7), false, || version(30));
            if followers.is_awaited(now, Guid(7)) {
                assert!(now < behind + LEASE);
                last_claim = now;
            }
            followers.note_heard(now);
            let is_over = followers.acknowledged(now).up_to.is_none();
            assert_eq!(is_over, now >= last_claim + LEASE + MARGIN, "{beat}");
        }
        assert_eq!(followers.counts(), Some((0, 1)));
        // One that catches up in time is awaited on.
        followers.note_reply(behind, Guid(8), true, || version(30));
        followers.note_reply(behind, Guid(8), false, || version(30));
        followers.note_reply(behind + LEASE, Guid(8), true, || version(40));
        assert!(followers.acknowledged(behind + LEASE + LEASE).up_to.is_some());
    }

    /// Regression: after its connection was closed, heartbeats to a standby said that writes did
    /// not wait for it until it had caught up, although they did. If the master died in between,
    /// repeats of deletions found nothing: the registry of a responder was taken over, without
    /// outcomes.
    #[test]
    fn a_follower_that_connects_again_stays_awaited_while_it_catches_up() {
        let (start, followers) = (Instant::now(), enabled());
        followers.note_reply(start, Guid(7), true, || version(10));
        followers.note_stored(Guid(7), version(10));
        for reset in 1..5 {
            let now = start + Duration::from_millis(400) * reset;
            followers.note_reply(now, Guid(7), false, || version(30));
            assert!(followers.is_awaited(now, Guid(7)), "{reset}");
            assert_eq!(followers.acknowledged(now).up_to, Some(version(10)));
        }
    }

    #[test]
    fn without_the_option_no_write_waits() {
        let (now, followers) = (Instant::now(), SyncFollowers::default());
        followers.note_reply(now, Guid(7), true, || version(10));
        assert_eq!(followers.acknowledged(now).up_to, None);
        assert_eq!(followers.counts(), None);
    }
}

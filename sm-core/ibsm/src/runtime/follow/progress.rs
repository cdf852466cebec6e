//! State of the copy of a master's registry, shared by the streams, the registry's thread and the
//! service loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sa_proto::snapshot::{RegistryPlane, Session, Snapshot, Version};

use sm_core::sweep::RegistryCopy;

/// The last snapshot of a master, for the registry's thread.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct News {
    pub(in crate::runtime) version: Version,
    pub(in crate::runtime) plane: Arc<RegistryPlane>,
}

/// State of the copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::runtime) struct Followed {
    /// The last version received completely; [`Version::NONE`] before the first.
    pub(in crate::runtime) received: Version,
    /// The last version on disk.
    pub(in crate::runtime) stored: Version,
    /// When the stream that it came by ended; `None` while it continues.
    pub(in crate::runtime) ended: Option<Instant>,
}

impl Followed {
    /// Whether a complete copy is on disk, and whether it is current.
    pub(in crate::runtime) fn copy(&self) -> RegistryCopy {
        match self.ended {
            _ if self.received == Version::NONE || self.stored != self.received => {
                RegistryCopy::None
            }
            None => RegistryCopy::Current,
            Some(ended) => RegistryCopy::Ended(ended),
        }
    }
}

/// The copy, and the snapshot that is not on disk yet. Locked for moments only.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Progress {
    state: Mutex<(Followed, Option<News>)>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, (Followed, Option<News>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of the copy.
    pub(in crate::runtime) fn followed(&self) -> Followed {
        self.lock().0
    }

    /// The last snapshot, if it is not on disk yet; earlier ones are superseded.
    pub(in crate::runtime) fn take(&self) -> Option<News> {
        self.lock().1.take()
    }

    /// Whether there is a snapshot to be written.
    pub(in crate::runtime) fn has_news(&self) -> bool {
        self.lock().1.is_some()
    }

    /// The snapshot of this version is on disk.
    pub(in crate::runtime) fn stored(&self, version: Version) {
        self.lock().0.stored = version;
    }

    /// A snapshot was received. `false` if its session is older than one followed before: its
    /// master was replaced.
    pub(super) fn receive(&self, snapshot: &Snapshot) -> bool {
        let (version, mut state) = (snapshot.version(), self.lock());
        if version.session < state.0.received.session {
            return false;
        }
        state.0.received = version;
        state.0.ended = None;
        state.1 = Some(News { version, plane: snapshot.registry().clone() });
        true
    }

    /// The stream of a session ended.
    pub(super) fn end(&self, now: Instant, session: Session) {
        let mut state = self.lock();
        if state.0.received.session == session {
            state.0.ended.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_mad::types::Guid;
    use sa_proto::snapshot::FabricPlane;

    use super::*;

    fn snapshot(epoch: u64, sequence: u64) -> Snapshot {
        let session = Session { epoch, sm_guid: Guid(1) };
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        Snapshot::build(session, 1, FabricPlane::default(), registry).unwrap()
    }

    #[test]
    fn a_copy_counts_once_it_is_on_disk() {
        let (progress, now) = (Progress::default(), Instant::now());
        let copy = || progress.followed().copy();
        assert_eq!(copy(), RegistryCopy::None, "nothing was received");
        assert!(progress.receive(&snapshot(5, 1)));
        assert_eq!(copy(), RegistryCopy::None, "it is not on disk");
        let news = progress.take().unwrap();
        progress.stored(news.version);
        assert_eq!(copy(), RegistryCopy::Current);
        progress.end(now, news.version.session);
        assert_eq!(copy(), RegistryCopy::Ended(now));
        assert!(progress.receive(&snapshot(5, 2)));
        assert_eq!(copy(), RegistryCopy::None, "there is a newer one");
    }

    #[test]
    fn a_master_that_was_replaced_is_not_followed() {
        let progress = Progress::default();
        assert!(progress.receive(&snapshot(6, 3)));
        assert!(!progress.receive(&snapshot(5, 9)));
        assert_eq!(progress.take().unwrap().plane.sequence, 3);
        progress.end(Instant::now(), Session { epoch: 5, sm_guid: Guid(1) });
        assert_eq!(progress.followed().ended, None, "the other stream continues");
    }
}

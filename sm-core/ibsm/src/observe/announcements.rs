//! Records when versions of the snapshot were announced, to measure how long responders lack one.

use std::collections::VecDeque;
use std::time::Instant;

use sa_proto::snapshot::Version;

/// Largest number of announcements remembered. Client writes cause at most some hundred per second.
const ANNOUNCEMENTS_MAX: usize = 1024;

/// The last announcements, in order.
#[derive(Clone, Debug, Default)]
pub struct Announcements {
    list: VecDeque<(Version, Instant)>,
}

impl Announcements {
    /// Records the announcement of `version`.
    pub fn note(&mut self, version: Version, now: Instant) {
        if self.list.len() >= ANNOUNCEMENTS_MAX {
            self.list.pop_front();
        }
        self.list.push_back((version, now));
    }

    /// When `version` was announced, if that is remembered.
    pub fn at(&self, version: Version) -> Option<Instant> {
        self.list.iter().rev().find(|(other, _)| *other == version).map(|(_, at)| *at)
    }

    /// When the first version was announced that a responder with `version` lacks. If `version` is
    /// not remembered, the earliest remembered announcement.
    pub fn first_after(&self, version: Option<Version>) -> Option<Instant> {
        let at = self.list.iter().rposition(|(other, _)| Some(*other) == version);
        self.list.get(at.map_or(0, |at| at + 1)).map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_missing_version_is_the_next_one() {
        let start = Instant::now();
        let second = |n| start + Duration::from_secs(n);
        let version = |n| Version { fabric_generation: n, ..Version::NONE };
        let mut announcements = Announcements::default();
        assert_eq!(announcements.first_after(None), None);
        for n in 1..=3000 {
            announcements.note(version(n), second(n));
        }
        assert_eq!(announcements.list.len(), ANNOUNCEMENTS_MAX);
        assert_eq!(announcements.at(version(2999)), Some(second(2999)));
        assert_eq!(announcements.at(version(1)), None, "forgotten");
        assert_eq!(announcements.first_after(Some(version(2998))), Some(second(2999)));
        assert_eq!(announcements.first_after(Some(version(3000))), None);
        let oldest = second(3001 - ANNOUNCEMENTS_MAX as u64);
        assert_eq!(announcements.first_after(Some(version(1))), Some(oldest));
    }
}

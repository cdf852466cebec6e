//! Links that come and go: how often each came back lately.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::{Condition, Kind, Subject};
use crate::observe::topology::End;

/// A link flaps if it came back this often ...
const TIMES: usize = 3;
/// ... within this time.
const WITHIN: Duration = Duration::from_secs(600);
/// Largest number of returns kept per link; more are not counted.
const RETURNS_MAX: usize = 100;
/// Largest number of links of which returns are kept. Of further ones none is kept until others
/// have been stable.
const LINKS_MAX: usize = 4096;

/// The links that came back lately.
#[derive(Debug, Default)]
pub struct Flaps {
    links: HashMap<End, VecDeque<Instant>>,
}

impl Flaps {
    /// Records that a link came back, or was retrained, by one of its ends: always the same.
    pub fn note(&mut self, now: Instant, link: End) {
        self.forget(now);
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(&link) {
            return;
        }
        let returns = self.links.entry(link).or_default();
        if returns.len() >= RETURNS_MAX {
            returns.pop_front();
        }
        returns.push_back(now);
    }

    fn forget(&mut self, now: Instant) {
        self.links.retain(|_, returns| {
            returns.back().is_some_and(|at| now.saturating_duration_since(*at) < WITHIN)
        });
    }

    /// The links that flap. `subject` names an end, `to` the other one, if there is any now.
    pub fn conditions<'a>(
        &'a self,
        now: Instant,
        subject: impl Fn(End) -> Subject + 'a,
        to: impl Fn(End) -> Option<String> + 'a,
    ) -> impl Iterator<Item = Condition> + 'a {
        let is_recent = move |at: &&Instant| now.saturating_duration_since(**at) < WITHIN;
        self.links.iter().filter_map(move |(&end, returns)| {
            let count = returns.iter().filter(is_recent).count();
            (count >= TIMES).then(|| {
                let to = to(end).map_or_else(String::new, |far| format!(" to {far}"));
                let minutes = WITHIN.as_secs() / 60;
                let detail =
                    format!("the link{to} came back {count} times within {minutes} minutes");
                Condition::new(Kind::LinkFlapping, subject(end), detail)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Guid, PortNum};

    #[test]
    fn a_link_flaps_while_it_came_back_three_times_within_ten_minutes() {
        let (mut flaps, start) = (Flaps::default(), Instant::now());
        let link = (Guid(7), PortNum(3));
        let subject = |(guid, port)| Subject::port("s", guid, port);
        let count = |flaps: &Flaps, now| flaps.conditions(now, subject, |_| None).count();
        for minute in [0, 4] {
            flaps.note(start + Duration::from_secs(60 * minute), link);
            assert_eq!(count(&flaps, start + Duration::from_secs(60 * minute)), 0);
        }
        let third = start + Duration::from_secs(60 * 9);
        flaps.note(third, link);
        let to = |_| Some("'h' port 1".to_owned());
        let found: Vec<_> = flaps.conditions(third, subject, to).collect();
        assert_eq!(found[0].detail, "the link to 'h' port 1 came back 3 times within 10 minutes");
        assert_eq!(count(&flaps, start + WITHIN), 0, "the first is too long ago");
    }

    #[test]
    fn memory_is_bounded() {
        let (mut flaps, start) = (Flaps::default(), Instant::now());
        for guid in 0..2 * LINKS_MAX as u64 {
            flaps.note(start, (Guid(guid), PortNum(1)));
        }
        (0..1000).for_each(|_| flaps.note(start, (Guid(1), PortNum(1))));
        assert_eq!((flaps.links.len(), flaps.links[&(Guid(1), PortNum(1))].len()), (4096, 100));
        flaps.note(start + WITHIN, (Guid(9), PortNum(1)));
        assert_eq!(flaps.links.len(), 1);
    }
}

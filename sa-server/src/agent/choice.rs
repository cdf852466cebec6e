//! Which responder a port follows. No I/O.
//!
//! Each responder has a score for the port's switch, or for the port until its switch is known
//! (rendezvous hashing): the agents of one switch follow one responder, which finds paths for all
//! of them at once, and when it fails, those of different switches go to different others. The one
//! with the highest score is followed if it can be; otherwise the next, and from time to time those
//! before it are tried again. A responder that refuses or fails is left alone for a while, which
//! doubles each time.
//!
//! While the manager confirms nothing, all responders are equal, and the one followed is kept: it
//! has the least to send once there is a manager. Others are tried only when that takes long, and
//! one at a time. The same holds for a responder that does not have the port: in a split fabric
//! another one may.
//!
//! A port that is attached to another switch moves to that switch's responder at once, but only
//! once in a while: responders have new tables one after the other, and disagree until all have.

use std::time::{Duration, Instant};

use ib_mad::types::Guid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::sm::Spread;

/// How long a responder is left alone after a failure: at first, and at most for each that there
/// is, so that an agent makes an attempt in this time.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(5);
/// How long a responder is followed before one with a higher score is tried again; up to twice as
/// long, so that agents do not all come back at once to one that was restarted.
const RETURN_AFTER: Duration = Duration::from_secs(60);
/// How long a port stays after a move before another for the sake of its switch; up to twice as
/// long.
const SETTLE_AFTER: Duration = RETURN_AFTER;
/// How long the manager may confirm nothing before other responders are tried; up to twice as long.
const LOOK_AFTER: Duration = Duration::from_secs(10);

/// Chooses among responders.
#[derive(Debug)]
pub struct Choice {
    sources: Vec<Source>,
    /// Positions in `sources`, highest score first.
    order: Vec<usize>,
    /// What scores are made of: a GUID.
    place: Guid,
    followed: Option<usize>,
    /// When others than the one followed are tried.
    look_at: Option<Instant>,
    /// Before this, no other is tried at once for the sake of the switch.
    settles_until: Option<Instant>,
    /// Whether the one followed is of no use: the manager confirms nothing, or it does not have the
    /// port.
    is_unserved: bool,
    spread: Spread,
}

#[derive(Debug)]
struct Source {
    /// Hash of its URL.
    hash: u64,
    /// Not before.
    due: Option<Instant>,
    pause: Duration,
}

impl Choice {
    /// Of a port, among responders with these URLs.
    pub fn new<'a>(port: Guid, urls: impl IntoIterator<Item = &'a str>) -> Self {
        let source = |url: &str| Source {
            hash: xxh3_64_with_seed(url.as_bytes(), 0),
            due: None,
            pause: PAUSE_FIRST,
        };
        let sources: Vec<Source> = urls.into_iter().map(source).collect();
        let mut this = Self {
            order: (0..sources.len()).collect(),
            sources,
            place: port,
            followed: None,
            look_at: None,
            settles_until: None,
            is_unserved: false,
            spread: Spread::new(port.0),
        };
        this.sort();
        this
    }

    fn sort(&mut self) {
        let Self { order, sources, place, .. } = self;
        let score = |&at: &usize| xxh3_64_with_seed(&place.0.to_be_bytes(), sources[at].hash);
        order.sort_by_key(|at| std::cmp::Reverse(score(at)));
    }

    /// Responders in the order in which they are preferred.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The responder that is followed.
    pub fn followed(&self) -> Option<usize> {
        self.followed
    }

    /// Those that are preferred to the one followed, or all others if that is of no use.
    fn wanted(&self) -> impl Iterator<Item = usize> {
        let followed = self.followed;
        let takes_any = followed.is_none() || self.is_unserved;
        let before = self.order.iter().take_while(move |at| takes_any || Some(**at) != followed);
        before.copied().filter(move |at| Some(*at) != followed)
    }

    /// A responder to try now. The one followed is left when this one accepts. To be called again
    /// after the attempt has succeeded or failed.
    pub fn poll(&mut self, now: Instant) -> Option<usize> {
        if self.followed.is_some() && self.look_at.is_none_or(|at| now < at) {
            return None;
        }
        let is_due = |at: &usize| self.sources[*at].due.is_none_or(|due| due <= now);
        let is_only_look = self.followed.is_some() && self.is_unserved;
        // All are equal: the one that was tried longest ago.
        let next = match is_only_look {
            true => self.wanted().filter(is_due).min_by_key(|at| self.sources[*at].due),
            false => self.wanted().find(is_due),
        };
        if is_only_look || self.followed.is_some() && next.is_none() {
            self.look_later(now);
        }
        next
    }

    /// When [`poll`](Self::poll) may have something to try.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.followed {
            Some(_) => self.look_at,
            None => self.wanted().filter_map(|at| self.sources[at].due).min(),
        }
    }

    fn look_later(&mut self, now: Instant) {
        let is_first = self.order.first().copied() == self.followed;
        let after = if self.is_unserved { LOOK_AFTER } else { RETURN_AFTER };
        let after = after + self.spread.below(after);
        self.look_at = (self.is_unserved || !is_first).then(|| now + after);
    }

    /// The responder accepts, and is followed from now on.
    pub fn handle_followed(&mut self, now: Instant, at: usize) {
        if self.followed.is_some() {
            self.settles_until = Some(now + SETTLE_AFTER + self.spread.below(SETTLE_AFTER));
        }
        (self.followed, self.is_unserved) = (Some(at), false);
        self.look_later(now);
    }

    /// The responder followed has sent all paths.
    pub fn handle_fresh(&mut self) {
        if let Some(source) = self.followed.and_then(|at| self.sources.get_mut(at)) {
            (source.due, source.pause) = (None, PAUSE_FIRST);
        }
    }

    /// The responder did not accept, or can be followed no more.
    pub fn handle_failed(&mut self, now: Instant, at: usize) {
        if self.followed == Some(at) {
            (self.followed, self.look_at) = (None, None);
        }
        let Some(pause) = self.sources.get(at).map(|source| source.pause) else { return };
        let due = now + pause / 2 + self.spread.below(pause / 2);
        let last = PAUSE_LAST * self.sources.len() as u32;
        let source = &mut self.sources[at];
        (source.due, source.pause) = (Some(due), (pause * 2).min(last));
    }

    /// The port is attached to this switch.
    pub fn handle_switch(&mut self, now: Instant, switch: Guid) {
        if self.place == switch {
            return;
        }
        self.place = switch;
        self.sort();
        if self.followed.is_none() {
            return;
        }
        if self.order.first().copied() == self.followed {
            self.look_later(now);
            return;
        }
        let due = self.settles_until.map_or(now, |until| until.max(now));
        self.look_at = Some(self.look_at.map_or(due, |at| at.min(due)));
    }

    /// Whether the responder followed has the port, and the manager confirms its paths.
    pub fn handle_served(&mut self, now: Instant, is_served: bool) {
        if self.is_unserved != is_served || self.followed.is_none() {
            return;
        }
        self.is_unserved = !is_served;
        self.look_later(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URLS: [&str; 4] = ["http://a:1", "http://b:1", "http://c:1", "http://d:1"];

    /// Follows the responder that is tried first.
    fn following(port: u64, now: Instant) -> Choice {
        let mut choice = Choice::new(Guid(port), URLS);
        let first = choice.poll(now).unwrap();
        assert_eq!(first, choice.order()[0]);
        choice.handle_followed(now, first);
        choice.handle_fresh();
        choice
    }

    #[test]
    fn ports_are_spread_over_responders_and_over_the_others_when_one_fails() {
        let now = Instant::now();
        let (mut first, mut second) = ([0; 4], [0; 4]);
        for port in 1..=4000 {
            let mut choice = following(port, now);
            let own = choice.followed().unwrap();
            first[own] += 1;
            choice.handle_failed(now, own);
            let next = choice.poll(now).unwrap();
            assert_ne!(next, own, "the one that failed is left alone");
            if own == 0 {
                second[next] += 1;
            }
        }
        assert!(first.iter().all(|count| (850..1150).contains(count)), "{first:?}");
        assert!(second[1..].iter().all(|count| (250..420).contains(count)), "{second:?}");
    }

    #[test]
    fn all_ports_of_a_switch_gather_at_one_responder() {
        let now = Instant::now();
        let mut at = Vec::new();
        for port in 1..=50 {
            let mut choice = following(port, now);
            choice.handle_switch(now, Guid(7777));
            if let Some(next) = choice.poll(now) {
                choice.handle_followed(now, next);
            }
            assert_eq!(choice.poll_timeout(), None);
            at.push(choice.followed().unwrap());
        }
        assert!(at.iter().all(|other| *other == at[0]), "{at:?}");
    }

    #[test]
    fn attempts_at_responders_that_fail_become_rare() {
        let start = Instant::now();
        let mut choice = Choice::new(Guid(9), URLS);
        let (mut now, mut attempts) = (start, 0);
        while now < start + Duration::from_secs(600) {
            while let Some(at) = choice.poll(now) {
                choice.handle_failed(now, at);
                attempts += 1;
            }
            let due = choice.poll_timeout().unwrap();
            assert!(due > now);
            now = due;
        }
        // Half a pause at least, after those that lead up to it.
        let most = 2 * 600 / PAUSE_LAST.as_secs() as usize + 10 * URLS.len();
        assert!(attempts <= most, "{attempts}");
    }

    #[test]
    fn the_preferred_responder_is_followed_again_when_it_accepts() {
        let now = Instant::now();
        let mut choice = following(5, now);
        let [own, next, ..] = choice.order()[..] else { panic!() };
        choice.handle_failed(now, own);
        assert_eq!(choice.poll(now), Some(next));
        choice.handle_followed(now, next);
        assert_eq!(choice.poll(now + RETURN_AFTER / 2), None);
        let due = choice.poll_timeout().unwrap();
        assert!((now + RETURN_AFTER..now + 2 * RETURN_AFTER).contains(&due));
        assert_eq!(choice.poll(due), Some(own));
        choice.handle_failed(due, own);
        assert_eq!((choice.poll(due), choice.followed()), (None, Some(next)), "not yet");
        let due = choice.poll_timeout().unwrap();
        assert_eq!(choice.poll(due), Some(own));
        choice.handle_followed(due, own);
        assert_eq!(choice.poll_timeout(), None, "there is none before it");
    }

    #[test]
    fn without_a_manager_the_responder_is_kept_for_a_while_and_then_all_are_tried() {
        let now = Instant::now();
        let mut choice = following(5, now);
        choice.handle_served(now, false);
        let due = choice.poll_timeout().unwrap();
        assert!((now + LOOK_AFTER..now + 2 * LOOK_AFTER).contains(&due));
        let (mut tried, mut due) = (Vec::new(), due);
        for _ in 0..3 {
            let other = choice.poll(due).unwrap();
            choice.handle_failed(due, other);
            tried.push(other);
            assert_eq!((choice.poll(due), choice.followed()), (None, Some(choice.order()[0])));
            due = choice.poll_timeout().unwrap();
        }
        assert_eq!(tried, choice.order()[1..]);
        choice.handle_served(due, true);
        assert_eq!(choice.poll_timeout(), None);
    }

    /// Regression: an agent went from one responder to the other as fast as it could connect, while
    /// only one of them knew that its host had been cabled to another switch.
    #[test]
    fn a_port_whose_switch_is_disputed_moves_at_once_but_once_in_a_while() {
        let start = Instant::now();
        let first = |switch: u64| Choice::new(Guid(switch), URLS).order()[0];
        let [old, new] = [11, (12..).find(|new| first(*new) != first(11)).unwrap()];
        // Each sends the port to the other.
        let says = |at: usize| Guid(if at == first(old) { new } else { old });
        for port in 1..=50 {
            let mut choice = following(port, start);
            let (mut now, mut moves) = (start, Vec::new());
            choice.handle_switch(now, says(choice.followed().unwrap()));
            while now < start + Duration::from_secs(600) {
                while let Some(next) = choice.poll(now) {
                    moves.push(now);
                    assert!(moves.len() < 100, "{moves:?}");
                    choice.handle_followed(now, next);
                    choice.handle_switch(now, says(next));
                }
                let due = choice.poll_timeout().unwrap();
                assert!(due > now);
                now = due;
            }
            let is_soon = |pair: &[Instant]| pair[1] < pair[0] + SETTLE_AFTER;
            assert!(!moves.windows(2).any(is_soon), "{moves:?}");
            assert!((3..=11).contains(&moves.len()), "{moves:?}");
        }
    }

    #[test]
    fn a_port_that_is_cabled_to_another_switch_moves_at_once() {
        let now = Instant::now();
        for port in 1..=20 {
            let mut choice = following(port, now);
            choice.handle_switch(now, Guid(1));
            while let Some(next) = choice.poll(now) {
                choice.handle_followed(now, next);
            }
            let later = now + 2 * SETTLE_AFTER;
            choice.handle_switch(later, Guid(2));
            let wanted = choice.order()[0];
            let next = choice.poll(later);
            assert!(next == Some(wanted) || choice.followed() == Some(wanted));
        }
    }
}

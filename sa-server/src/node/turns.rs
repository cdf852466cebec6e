//! Turns of groups of agents, whose messages are in memory while they read: few in all, and limits
//! of each host, so that agents which read slowly, or come and go, hold up no others.
//!
//! A turn lasts until all agents of the group have read, but no longer than [`TURN_LEN`]. What is
//! read after that counts against other limits: groups that are behind, and agents that are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sa_proto::crowd::Share;
use sa_proto::quota::{Full, Place, Places};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::lock;

/// Groups that have a turn at once, and of these led by an agent of one share.
const TURNS_MAX: usize = 4;
const SHARE_TURNS_MAX: usize = 1;
/// How long a turn lasts if agents have not read until then.
pub(super) const TURN_LEN: Duration = Duration::from_secs(1);
/// Groups whose agents still read after their turn; agents of one share that do.
const BEHIND_MAX: usize = 16;
const SHARE_BEHIND_MAX: usize = 2;
/// For so long no agent of a share is served of which one has read for longer than a turn, or has
/// left without having read.
const PAUSE: Duration = Duration::from_secs(10);
/// Surveys that agents of a share may cause in a row, one for each port of a large host, and how
/// many a second on average.
const SURVEYS_MAX: f64 = 32.0;
const SURVEYS_PER_S: f64 = 2.0;
/// Shares whose surveys are counted. What is older counts as nothing; beyond it shares are not
/// served until others are forgotten.
const ACCOUNTS_MAX: usize = 4096;

/// The turns. One per process.
#[derive(Debug)]
pub(super) struct Turns {
    turns: Places<Share>,
    behind: Arc<Semaphore>,
    agents_behind: Places<Share>,
    accounts: Mutex<HashMap<Share, Account>>,
    /// Notified when a turn ends.
    pub(super) ended: Arc<Notify>,
}

/// What agents of a share have caused.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Surveys that they may cause at `at`.
    surveys: f64,
    at: Instant,
    /// Until when they are not served.
    paused_until: Option<Instant>,
}

impl Account {
    fn new(now: Instant) -> Self {
        Self { surveys: SURVEYS_MAX, at: now, paused_until: None }
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.surveys = (self.surveys + passed * SURVEYS_PER_S).min(SURVEYS_MAX);
        self.at = now;
        self.paused_until = self.paused_until.filter(|until| now < *until);
    }

    fn is_new(&self) -> bool {
        self.surveys >= SURVEYS_MAX && self.paused_until.is_none()
    }
}

/// What a group holds while its agents read; all of them share it.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    /// When it must be over.
    ends: Instant,
    held: Mutex<Held>,
}

#[derive(Debug)]
enum Held {
    Turn(#[expect(dead_code, reason = "it is given back when dropped")] Place<Share>),
    Behind(#[expect(dead_code, reason = "it is given back when dropped")] OwnedSemaphorePermit),
    Nothing,
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            turns: Places::new(TURNS_MAX, SHARE_TURNS_MAX),
            behind: Arc::new(Semaphore::new(BEHIND_MAX)),
            agents_behind: Places::new(usize::MAX, SHARE_BEHIND_MAX),
            accounts: Mutex::default(),
            ended: Arc::default(),
        })
    }

    /// Whether agents of `share` are served now.
    pub(super) fn is_served(&self, share: Share, now: Instant) -> bool {
        let accounts = lock(&self.accounts);
        let until = accounts.get(&share).and_then(|account| account.paused_until);
        until.is_none_or(|until| now >= until)
    }

    /// A turn for a group that an agent of `share` leads, and a survey for it. Fails with
    /// [`Full::Share`] if the share has all of its turns or surveys, and with [`Full::All`] if all
    /// turns are taken. Root and the user of this process may have all turns.
    pub(super) fn begin(self: &Arc<Self>, share: Share, now: Instant) -> Result<Arc<Turn>, Full> {
        if share.is_own() {
            let place = self.turns.enter_trusted(share)?;
            return Ok(Turn::new(self, now, place));
        }
        let mut accounts = lock(&self.accounts);
        let account = account(&mut accounts, share, now).ok_or(Full::Share)?;
        if account.paused_until.is_some() || account.surveys < 1.0 {
            return Err(Full::Share);
        }
        let place = self.turns.enter(share)?;
        account.surveys -= 1.0;
        Ok(Turn::new(self, now, place))
    }

    /// Serves no agent of `share` for a while, unless it is our own.
    fn pause(&self, share: Share, now: Instant) {
        if share.is_own() {
            return;
        }
        let mut accounts = lock(&self.accounts);
        if let Some(account) = account(&mut accounts, share, now) {
            account.paused_until = Some(now + PAUSE);
        }
    }
}

/// The account of a share; `None` if there are too many.
fn account(
    accounts: &mut HashMap<Share, Account>,
    share: Share,
    now: Instant,
) -> Option<&mut Account> {
    if accounts.len() >= ACCOUNTS_MAX && !accounts.contains_key(&share) {
        accounts.retain(|_, account| {
            account.advance(now);
            !account.is_new()
        });
        if accounts.len() >= ACCOUNTS_MAX {
            return None;
        }
    }
    let account = accounts.entry(share).or_insert_with(|| Account::new(now));
    account.advance(now);
    Some(account)
}

impl Turn {
    fn new(turns: &Arc<Turns>, now: Instant, place: Place<Share>) -> Arc<Self> {
        let (turns, held) = (Arc::clone(turns), Mutex::new(Held::Turn(place)));
        Arc::new(Self { turns, ends: now + TURN_LEN, held })
    }

    /// Ends the turn, as the group's messages remain in memory for agents that are behind. Returns
    /// `false` if there are too many such groups.
    fn end(&self) -> bool {
        let mut held = lock(&self.held);
        if matches!(*held, Held::Turn(_)) {
            let behind = Arc::clone(&self.turns.behind).try_acquire_owned();
            *held = behind.map_or(Held::Nothing, Held::Behind);
            self.turns.ended.notify_one();
        }
        matches!(*held, Held::Behind(_))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The place is given back before the finder looks for one.
        *lock(&self.held) = Held::Nothing;
        self.turns.ended.notify_one();
    }
}

/// An agent that reads the messages of its group. Unless it has read all, its share is not served
/// for a while.
#[derive(Debug)]
pub(super) struct Reading {
    turn: Arc<Turn>,
    share: Share,
    /// Set once it is behind.
    behind: Option<Place<Share>>,
    has_read: bool,
}

impl Reading {
    pub(super) fn new(turn: Arc<Turn>, share: Share) -> Self {
        Self { turn, share, behind: None, has_read: false }
    }

    /// When [`fall_behind`](Self::fall_behind) is due unless all is read; `None` after that.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.behind.is_none().then_some(self.turn.ends)
    }

    /// The turn is over. Returns whether the agent may read on.
    pub(super) fn fall_behind(&mut self) -> bool {
        self.turn.turns.pause(self.share, Instant::now());
        let is_kept = self.turn.end();
        self.behind = self.turn.turns.agents_behind.enter(self.share).ok().filter(|_| is_kept);
        self.behind.is_some()
    }

    /// It has read all.
    pub(super) fn finish(mut self) {
        self.has_read = true;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.has_read {
            self.turn.turns.pause(self.share, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not one that this process may have.
    const fn share(user: u32) -> Share {
        Share::User((1 << 20) + user)
    }

    const A: Share = share(1);

    fn begin(turns: &Arc<Turns>, user: u32, now: Instant) -> Result<Arc<Turn>, Full> {
        turns.begin(share(user), now)
    }

    /// Regression: four agents that read nothing held all turns for 30 s at a time.
    #[test]
    fn a_share_has_one_turn_and_one_that_reads_slowly_gives_it_back() {
        let (turns, now) = (Turns::new(), Instant::now());
        let first = turns.begin(A, now).unwrap();
        assert_eq!(turns.begin(A, now).unwrap_err(), Full::Share);
        let _others = [2, 3, 4].map(|user| begin(&turns, user, now).unwrap());
        assert_eq!(begin(&turns, 5, now).unwrap_err(), Full::All);
        let mut readings = [(); 3].map(|()| Reading::new(first.clone(), A));
        drop(first);
        assert!(readings[0].ends().is_some() && turns.is_served(A, now));
        assert!(readings[0].fall_behind() && readings[1].fall_behind());
        assert!(!readings[2].fall_behind(), "two of a share may be behind");
        let _fifth = begin(&turns, 5, now).expect("the turn is over");
        assert_eq!(turns.behind.available_permits(), BEHIND_MAX - 1, "one group");
        assert!(!turns.is_served(A, Instant::now()) && turns.is_served(share(2), now));
        assert!(turns.is_served(A, Instant::now() + PAUSE));
        readings.into_iter().for_each(Reading::finish);
        assert_eq!(turns.behind.available_permits(), BEHIND_MAX);
    }

    #[test]
    fn groups_that_are_behind_are_limited() {
        let (turns, now) = (Turns::new(), Instant::now());
        let behind = |user| {
            let mut reading = Reading::new(begin(&turns, user, now).unwrap(), share(user));
            reading.fall_behind().then_some(reading)
        };
        let all: Vec<_> = (0..BEHIND_MAX as u32).map(|user| behind(user).unwrap()).collect();
        assert!(behind(99).is_none());
        assert!(begin(&turns, 100, now).is_ok(), "turns go on");
        drop(all);
        assert!(behind(101).is_some());
    }

    /// Regression: an agent that connected and left had paths found each time.
    #[test]
    fn surveys_of_a_share_are_limited_in_rate_and_one_that_leaves_waits() {
        let (turns, now) = (Turns::new(), Instant::now());
        let survey = |at: Duration| {
            let turn = turns.begin(A, now + at).ok()?;
            Reading::new(turn, A).finish();
            Some(())
        };
        let in_a_row = (0..1000).map_while(|_| survey(Duration::ZERO)).count();
        assert_eq!(in_a_row, SURVEYS_MAX as usize);
        let tens =
            (1..=1000).filter(|tenths| survey(Duration::from_millis(tenths * 100)).is_some());
        assert!((195..=200).contains(&tens.count()), "two a second");
        assert!(begin(&turns, 2, now).is_ok());
        let left = Reading::new(begin(&turns, 3, now).unwrap(), share(3));
        drop(left);
        assert_eq!(begin(&turns, 3, now).unwrap_err(), Full::Share);
    }

    #[test]
    fn accounts_are_limited_and_forgotten() {
        let (turns, now) = (Turns::new(), Instant::now());
        for user in 0..ACCOUNTS_MAX as u32 {
            assert!(begin(&turns, user, now).is_ok());
        }
        assert_eq!(begin(&turns, ACCOUNTS_MAX as u32, now).unwrap_err(), Full::Share);
        assert!(begin(&turns, ACCOUNTS_MAX as u32, now + Duration::from_secs(1)).is_ok());
        assert_eq!(lock(&turns.accounts).len(), 1);
    }
}

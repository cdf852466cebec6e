//! Events for those that ask for them: what the history has, then what memory has, then what
//! happens; and growth of counters, which is not kept.

use std::sync::Arc;
use std::time::Duration;

use sa_proto::crowd::Share;
use sa_proto::log_limit::LogLimit;
use sa_proto::quota::{self, Places};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::Shared;
use crate::history::{Archive, Place};
use crate::http::Turns;
use crate::observe::event::{Event, EventLog, Kinds};
use crate::perf::growths::GrowthReader;

/// Readers of events at a time, over gRPC and over HTTP each.
const READERS_MAX: usize = 64;
/// Readers of one user or host: over gRPC, and over HTTP, where all users of this host count as
/// one.
const READERS_OF_CALLER_MAX: usize = 16;
const READERS_OF_PAGE_MAX: usize = 32;
/// Events read at once.
const PAGE_MAX: usize = 500;
/// Where a reader begins that asks for no place: this many events back.
const LAST_DEFAULT: u64 = 100;

/// Lines about a history that cannot be read.
static LINES: LogLimit = LogLimit::new("the history", 64, Duration::from_secs(1));

/// The place from which a reader wants events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The event with this number.
    Number(u64),
    /// The first at this time or later, milliseconds since 1970.
    Time(u64),
    /// The last of this number, of the kinds that are wanted, among those in memory.
    Last(u64),
}

impl Begin {
    /// The place that is given first; the last events if none is.
    pub(crate) fn of(number: Option<u64>, time_ms: Option<u64>, last: Option<u64>) -> Self {
        match (number, time_ms) {
            (Some(number), _) => Self::Number(number),
            (None, Some(time_ms)) => Self::Time(time_ms),
            (None, None) => Self::Last(last.unwrap_or(LAST_DEFAULT)),
        }
    }
}

/// What a reader wants.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) from: Begin,
    /// Whether to go on with what happens.
    pub(crate) follow: bool,
    /// Labels of kinds; empty for all that have numbers.
    pub(crate) kinds: Vec<String>,
}

/// Who reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reader {
    /// A program, over gRPC.
    Caller(Share),
    /// A page or program, over HTTP.
    Page(Share),
}

/// What keeps readers few: places for them, and turns to read files.
#[derive(Debug)]
pub(super) struct Readers {
    callers: Places<Share>,
    pages: Places<Share>,
    turns: Arc<HistoryTurns>,
}

/// Turns to read files of the history: one at a time, and few of each share wait for it, so that
/// others are next.
#[derive(Debug)]
struct HistoryTurns {
    shares: Turns,
    all: Arc<Semaphore>,
}

/// A turn, which ends when it is dropped.
pub(super) struct HistoryTurn {
    _of_share: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl HistoryTurns {
    async fn next(&self, share: Share) -> Option<HistoryTurn> {
        let _of_share = self.shares.of(share).acquire_owned().await.ok()?;
        let _of_all = self.all.clone().acquire_owned().await.ok()?;
        Some(HistoryTurn { _of_share, _of_all })
    }
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            callers: Places::new(READERS_MAX, READERS_OF_CALLER_MAX),
            pages: Places::new(READERS_MAX, READERS_OF_PAGE_MAX),
            turns: Arc::new(HistoryTurns {
                shares: Turns::default(),
                all: Arc::new(Semaphore::new(1)),
            }),
        }
    }
}

impl Readers {
    /// A turn of `share` to read files of the history.
    pub(super) async fn turn(&self, share: Share) -> Option<HistoryTurn> {
        self.turns.next(share).await
    }
}

/// Why there is no reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Too many read.
    #[error(
        "too many readers of events: the limit is {READERS_MAX} in all, {READERS_OF_CALLER_MAX} \
         of one user or host over gRPC and {READERS_OF_PAGE_MAX} over HTTP"
    )]
    Crowded,
    /// There is no such kind.
    #[error("{}", Kinds::unknown(.0))]
    Kind(String),
    /// Growth of counters is passed on as it is found.
    #[error("events of counters are not kept: they are for readers that follow (--follow)")]
    NotKept,
    /// There are no readings.
    #[error("counters are not read: set perfmgr TRUE and restart ibsm")]
    NotCounted,
}

/// A reader of events.
pub(crate) struct EventFeed {
    events: EventLog,
    archive: Option<Arc<dyn Archive>>,
    turns: Arc<HistoryTurns>,
    share: Share,
    at: At,
    /// Number that the archive had nothing from.
    asked: Option<u64>,
    follow: bool,
    kinds: Kinds,
    /// Growth of counters, if it is wanted.
    growths: Option<GrowthReader>,
    next: watch::Receiver<u64>,
    _place: quota::Place<Share>,
}

/// What ended a reader's wait.
enum Happening {
    /// An event of the log.
    Noted,
    /// Growth of counters.
    Counted(Vec<Arc<Event>>),
}

#[derive(Clone, Copy, Debug)]
enum At {
    Archive { place: Place, number: u64 },
    Memory(u64),
}

impl EventFeed {
    pub(super) fn open(shared: &Shared, reader: Reader, wanted: Wanted) -> Result<Self, Refusal> {
        let Wanted { from, follow, kinds } = wanted;
        let kinds = Kinds::of(kinds.iter().map(|label| &label[..])).map_err(Refusal::Kind)?;
        let groups = kinds.groups();
        if groups.contains(&true) {
            if !follow {
                return Err(Refusal::NotKept);
            }
            if !shared.perf.is_on() {
                return Err(Refusal::NotCounted);
            }
        }
        let readers = &shared.event_readers;
        let (share, place) = match reader {
            Reader::Caller(share) => (share, readers.callers.enter(share)),
            Reader::Page(share) => (share, readers.pages.enter(share)),
        };
        let place = place.map_err(|_| Refusal::Crowded)?;
        let events = shared.events.clone();
        let at = match from {
            Begin::Number(number) => At::Memory(number),
            Begin::Last(count) => At::Memory(events.last(count, &kinds)),
            Begin::Time(time_ms) => match events.at(time_ms) {
                Some(number) => At::Memory(number),
                None => At::Archive { place: Place::Time(time_ms), number: events.first() },
            },
        };
        Ok(Self {
            archive: shared.archive.get().cloned(),
            turns: readers.turns.clone(),
            share,
            next: events.next(),
            events,
            at,
            asked: None,
            follow,
            kinds,
            growths: shared.perf.growths().follow(groups),
            _place: place,
        })
    }

    /// The next events, at least one; waits for them if this reader follows. `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Vec<Arc<Event>>> {
        loop {
            self.next.mark_unchanged();
            let events = match self.at {
                At::Archive { place, number } => self.read_archive(place, number).await,
                At::Memory(number) => self.read_memory(number),
            };
            let Some(mut events) = events else { continue };
            let is_end = events.is_empty();
            let kinds = &self.kinds;
            events.retain(|event| kinds.takes(&event.kind));
            if !events.is_empty() {
                return Some(events);
            }
            if !is_end {
                continue;
            }
            if !self.follow {
                return None;
            }
            if let Happening::Counted(events) = self.wait().await? {
                return Some(events);
            }
        }
    }

    /// Waits for what happens; `None` at the end.
    async fn wait(&mut self) -> Option<Happening> {
        let growths = async {
            match &mut self.growths {
                Some(growths) => growths.next(PAGE_MAX).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.next.changed() => changed.ok().map(|()| Happening::Noted),
            events = growths => events.map(Happening::Counted),
        }
    }

    /// Events of memory; `None` if the archive is to be asked first.
    fn read_memory(&mut self, number: u64) -> Option<Vec<Arc<Event>>> {
        let batch = self.events.since(number, PAGE_MAX);
        if batch.missed > 0 && self.archive.is_some() && self.asked != Some(number) {
            self.asked = Some(number);
            self.at = At::Archive { place: Place::Number(number), number };
            return None;
        }
        self.at = At::Memory(batch.next);
        Some(batch.events)
    }

    /// Events of the archive; `None` if memory is to be asked, from `number` on.
    async fn read_archive(&mut self, place: Place, number: u64) -> Option<Vec<Arc<Event>>> {
        let page = match self.archive.clone() {
            None => None,
            Some(archive) => {
                let turn = self.turns.next(self.share).await;
                let read = move || {
                    let page = archive.events(place);
                    drop(turn);
                    page
                };
                match tokio::task::spawn_blocking(read).await {
                    Ok(Ok(page)) => page,
                    Ok(Err(failure)) => {
                        if LINES.permits() {
                            tracing::warn!("cannot read the history: {failure}");
                        }
                        None
                    }
                    Err(_) => None,
                }
            }
        };
        let Some(page) = page else {
            self.at = At::Memory(number);
            return None;
        };
        let next = page.events.last().map_or(number, |last| last.number + 1);
        let first = self.events.first();
        self.at = match next >= first {
            true => At::Memory(next),
            false => At::Archive { place: page.next, number: next },
        };
        Some(page.events.into_iter().map(Arc::new).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::time::Duration;

    use crate::clock::HostClock;
    use crate::history::{Page, Reach, SegmentSummary};
    use crate::observe::event::{Draft, EVENTS_MAX, EventKind, Value};
    use crate::observe::ports::KeptFabric;
    use crate::perf::growths::GROWTHS_MAX;
    use crate::perf::loads::Loads;
    use sa_proto::snapshot::{HistoryLimits, Snapshot};

    fn shared() -> Shared {
        let clock = Arc::new(HostClock::open());
        Shared::new(Arc::new(Snapshot::empty()), HistoryLimits::default(), clock)
    }

    /// An archive of events up to a number, in pages of two.
    struct Old(u64);

    impl Archive for Old {
        fn events(&self, from: Place) -> io::Result<Option<Page>> {
            let first = match from {
                Place::Number(number) => number.max(1),
                Place::Time(time_ms) => time_ms.max(1),
                Place::After { read, .. } => read,
            };
            let last = (first + 1).min(self.0);
            let event = |number| Event { number, time_ms: number, ..Event::default() };
            let events: Vec<_> = (first..=last).map(event).collect();
            let next = Place::After { segment: 1, read: last + 1 };
            Ok((!events.is_empty()).then_some(Page { events, next }))
        }

        fn fabric(&self, _: u64) -> io::Result<Option<(u64, KeptFabric)>> {
            Ok(None)
        }
        fn loads(&self, _: u64) -> io::Result<Option<Loads>> {
            Ok(None)
        }

        fn list(&self) -> io::Result<Vec<SegmentSummary>> {
            Ok(Vec::new())
        }

        fn reach(&self) -> io::Result<Reach> {
            Ok(Reach::default())
        }
    }

    const ME: Reader = Reader::Caller(Share::UNKNOWN);

    async fn numbers(shared: &Shared, from: Begin) -> Vec<u64> {
        let wanted = Wanted { from, follow: false, kinds: Vec::new() };
        let mut feed = EventFeed::open(shared, ME, wanted).unwrap();
        let mut all = Vec::new();
        while let Some(events) = feed.next().await {
            all.extend(events.iter().map(|event| event.number));
        }
        all
    }

    #[tokio::test]
    async fn what_memory_has_not_comes_from_the_archive() {
        let shared = shared();
        let _ = shared.archive.set(Arc::new(Old(12)));
        shared.events.restore(Vec::new(), 11);
        for at in 0..3 {
            shared.events.note(11 + at, Draft::new(EventKind::NodeCame, "came"));
        }
        assert_eq!(numbers(&shared, Begin::Number(4)).await, (4..=13).collect::<Vec<_>>());
        assert_eq!(numbers(&shared, Begin::Time(9)).await, (9..=13).collect::<Vec<_>>());
        assert_eq!(numbers(&shared, Begin::Last(2)).await, [12, 13]);
        assert_eq!(numbers(&shared, Begin::Number(12)).await, [12, 13]);
        assert_eq!(numbers(&shared, Begin::Number(14)).await, Vec::<u64>::new());
    }

    #[tokio::test]
    async fn what_neither_has_is_skipped() {
        let shared = shared();
        let _ = shared.archive.set(Arc::new(Old(3)));
        for at in 0..EVENTS_MAX as u64 + 10 {
            shared.events.note(at * 1000, Draft::new(EventKind::NodeCame, "came"));
        }
        let all = numbers(&shared, Begin::Number(2)).await;
        assert_eq!(all[..3], [2, 3, 11]);
    }

    #[tokio::test]
    async fn a_reader_that_follows_gets_what_happens_of_its_kinds() {
        let shared = shared();
        let wanted = |kind: &str| Wanted {
            from: Begin::Last(0),
            follow: true,
            kinds: vec![kind.to_owned()],
        };
        let mut feed = EventFeed::open(&shared, ME, wanted("trap")).unwrap();
        shared.events.note(1, Draft::new(EventKind::NodeCame, "other"));
        let waiting = tokio::time::timeout(Duration::from_millis(20), feed.next()).await;
        assert!(waiting.is_err(), "nothing of its kind has happened");
        shared.events.note(2, Draft::new(EventKind::Trap, "trap"));
        assert_eq!(feed.next().await.unwrap()[0].text, "trap");
        let unknown = EventFeed::open(&shared, ME, wanted("tarp")).err();
        assert_eq!(unknown, Some(Refusal::Kind("tarp".into())));
    }

    /// Regression: one user could take all places, and over HTTP also one without a role.
    #[tokio::test]
    async fn a_reader_shuts_out_no_other() {
        let shared = shared();
        let wanted = || Wanted { from: Begin::Last(0), follow: true, kinds: Vec::new() };
        let open = |reader| EventFeed::open(&shared, reader, wanted());
        let fill = |reader| (0..READERS_MAX).map_while(|_| open(reader).ok()).collect::<Vec<_>>();
        let [mine, pages] = [ME, Reader::Page(Share::User(7))].map(fill);
        assert_eq!((mine.len(), pages.len()), (READERS_OF_CALLER_MAX, READERS_OF_PAGE_MAX));
        assert_eq!(open(ME).err(), Some(Refusal::Crowded));
        for other in [Reader::Caller(Share::User(7)), Reader::Page(Share::User(8))] {
            assert!(open(other).is_ok(), "{other:?}");
        }
        drop(mine);
        assert!(open(ME).is_ok());
    }

    /// Regression: a user whose many requests for earlier times waited was served before others.
    #[tokio::test]
    async fn one_user_has_few_places_in_the_queue_for_the_history() {
        let readers = Arc::new(Readers::default());
        let held = readers.turn(Share::User(7)).await;
        let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
        for user in [[7; 10].as_slice(), &[8]].concat() {
            let (readers, order) = (readers.clone(), order.clone());
            tokio::spawn(async move {
                let _turn = readers.turn(Share::User(user)).await;
                let _ = order.send(user);
            });
            tokio::task::yield_now().await;
        }
        drop(held);
        let mut before = 0;
        while served.recv().await.unwrap() != 8 {
            before += 1;
        }
        assert!(before <= 2, "{before} of the other user's");
    }

    #[tokio::test]
    async fn growth_of_counters_is_for_those_that_name_it_and_follow() {
        let shared = shared();
        let wanted = |follow, kinds: &[&str]| Wanted {
            from: Begin::Last(0),
            follow,
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
        };
        let refused = |wanted| EventFeed::open(&shared, ME, wanted).err();
        assert_eq!(refused(wanted(true, &["port_errors"])), Some(Refusal::NotCounted));
        crate::perf::testing::install_idle(&shared.perf);
        assert_eq!(refused(wanted(false, &["port_errors"])), Some(Refusal::NotKept));
        let mut all = EventFeed::open(&shared, ME, wanted(true, &[])).unwrap();
        let growths = shared.perf.growths();
        assert_eq!(growths.wanted(), [false; 3]);
        let mut errors =
            EventFeed::open(&shared, ME, wanted(true, &["all", "port_errors"])).unwrap();
        assert_eq!(growths.wanted(), [true, false, false]);
        let send = |by| growths.send(crate::perf::testing::symbol_errors(by));
        send(3);
        let [event] = &errors.next().await.unwrap()[..] else { panic!("one event") };
        assert_eq!((&event.kind[..], event.number, event.opensm_id), ("port_errors", 0, Some(0)));
        assert_eq!((&event.name[..], event.port), ("node\"5", Some(1)));
        assert!(event.text.ends_with(" port 1: symbol_err_cnt 3 in 30 s"), "{}", event.text);
        let fields = (&event.fields["symbol_err_cnt"], &event.fields["seconds"]);
        assert_eq!(fields, (&Value::Number(3), &Value::Number(30)));
        shared.events.note(2, Draft::new(EventKind::Trap, "trap"));
        assert_eq!(errors.next().await.unwrap()[0].text, "trap");
        assert_eq!(all.next().await.unwrap()[0].text, "trap", "and not the growth");
        // One that does not read misses the oldest, and delays nothing.
        let excess = 10;
        (0..GROWTHS_MAX as u64 + excess).for_each(|by| send(1 + by));
        let events = errors.next().await.unwrap();
        assert_eq!(events[0].fields["missed_before"], Value::Number(excess));
        assert_eq!(events[0].fields["symbol_err_cnt"], Value::Number(1 + excess));
        assert_eq!(growths.totals(), [1 + GROWTHS_MAX as u64 + excess, excess]);
        drop(errors);
        assert_eq!(growths.wanted(), [false; 3]);
    }
}

//! The list of problems: opened and closed by comparing it with the conditions that hold.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Condition, Kind, Severity, Subject};

/// Largest number of problems listed; further ones are only counted, by kind.
pub(super) const LISTED_MAX: usize = 1000;
/// Largest number of conditions that wait for their kind's patience.
const WAITING_MAX: usize = 4 * LISTED_MAX;
/// Largest number of ended problems whose count is remembered.
const ENDED_MAX: usize = 4 * LISTED_MAX;
/// For how long its occurrences count: a day, in hours.
const HOURS: usize = 24;
const HOUR_S: u64 = 3600;
const REMEMBERED: Duration = Duration::from_secs(HOURS as u64 * HOUR_S);
/// Details of conditions of one kind and subject that its problem has; others are counted.
const DETAILS_MAX: usize = 4;
/// A problem that comes back this often is logged at most once per [`LOUD_AFTER`].
const LOUD_TIMES: u64 = 3;
/// How long after the start problems of before may be found again until they are over: longer than
/// any patience, a first sweep and a reading of counters each 30 s.
const FOUND_AGAIN_WITHIN: Duration = Duration::from_secs(120);
const LOUD_AFTER: Duration = Duration::from_secs(600);

/// A problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Kind and identity of the subject; the same each time that it occurs.
    pub id: String,
    /// Its kind.
    pub kind: Kind,
    /// What it is about.
    pub subject: Subject,
    /// What is wrong, in one line without the subject.
    pub detail: String,
    /// What to do, as a sentence without a full stop.
    pub remedy: &'static str,
    /// When it was opened.
    pub since: Instant,
    /// The same by the clock, milliseconds since 1970.
    pub since_ms: u64,
    /// How often it occurred within a day, this time included.
    pub count: u64,
    /// Whether the log has it: not if it comes and goes all the time.
    pub(super) is_logged: bool,
    /// Whether it was open when this SM was started: the history has its beginning.
    pub(crate) is_restored: bool,
}

impl Problem {
    /// A problem of before a restart; `since`: when it was opened, by both clocks.
    pub(in crate::observe) fn earlier(
        id: &str,
        kind: Kind,
        subject: Subject,
        detail: &str,
        since: (Instant, u64),
        count: u64,
    ) -> Self {
        Self {
            id: id.to_owned(),
            kind,
            subject,
            detail: detail.to_owned(),
            remedy: kind.remedy(),
            since: since.0,
            since_ms: since.1,
            count: count.max(1),
            is_logged: true,
            is_restored: true,
        }
    }

    /// Subject and detail in one line.
    pub fn text(&self) -> String {
        super::text(&self.subject, &self.detail)
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.kind.severity()
    }
}

/// The list as of a moment. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    /// The problems listed, the worst first, then by name.
    pub listed: Arc<Vec<Arc<Problem>>>,
    /// Problems by kind, those not listed included.
    pub counts: Arc<BTreeMap<Kind, usize>>,
    /// Changes with the list.
    pub version: u64,
}

impl Problems {
    /// Number of problems of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    /// Number of problems of a severity.
    pub fn of_severity(&self, severity: Severity) -> usize {
        let these = self.counts.iter().filter(|(kind, _)| kind.severity() == severity);
        these.map(|(_, count)| count).sum()
    }

    /// Number of all problems.
    pub fn total(&self) -> usize {
        self.counts.values().sum()
    }

    /// Problems that are counted only.
    pub fn unlisted(&self) -> usize {
        self.total().saturating_sub(self.listed.len())
    }
}

/// What changed in the list.
#[derive(Debug, Default)]
pub struct Changes {
    /// Problems that were opened.
    pub opened: Vec<Arc<Problem>>,
    /// Problems that were closed.
    pub closed: Vec<Arc<Problem>>,
}

/// How often a problem occurred in each hour of the last day.
#[derive(Debug)]
struct Occurrences {
    /// By number of the hour, modulo their count.
    hours: [u64; HOURS],
    /// Number of the last hour that was counted.
    last: u64,
}

impl Occurrences {
    /// None up to this hour.
    fn none(hour: u64) -> Self {
        Self { hours: [0; HOURS], last: hour }
    }

    /// Forgets hours that are a day before `hour`.
    fn follow(&mut self, hour: u64) {
        let passed = hour.saturating_sub(self.last).min(HOURS as u64);
        for hour in hour + 1 - passed..=hour {
            self.hours[hour as usize % HOURS] = 0;
        }
        self.last = self.last.max(hour);
    }

    fn add(&mut self, hour: u64, times: u64) {
        self.follow(hour);
        let of_hour = &mut self.hours[self.last as usize % HOURS];
        *of_hour = of_hour.saturating_add(times);
    }

    fn count(&self) -> u64 {
        self.hours.iter().fold(0, |sum, of_hour| sum.saturating_add(*of_hour))
    }
}

/// The problem's past.
#[derive(Debug)]
struct Past {
    occurred: Occurrences,
    /// When it ended last.
    at: Instant,
    logged: Option<Instant>,
}

/// Holds the problems.
#[derive(Debug, Default)]
pub struct ProblemList {
    /// When the first update was.
    start: Option<Instant>,
    open: HashMap<String, Arc<Problem>>,
    /// Conditions of which it is not certain yet that they last, with the time they began.
    waiting: HashMap<String, Instant>,
    past: HashMap<String, Past>,
    /// Those that were open when this SM was started, until they are found again.
    earlier: HashMap<String, Problem>,
    now: Problems,
}

/// The conditions with their identities. Those of one kind and subject are one, with the details
/// of all in the order of the alphabet: they may come in any order.
fn merged(conditions: Vec<Condition>) -> Vec<(String, Condition)> {
    let mut merged: BTreeMap<String, (Condition, BTreeSet<String>)> = BTreeMap::new();
    for condition in conditions {
        let detail = condition.detail.clone();
        let (kept, details) =
            merged.entry(condition.id()).or_insert_with(|| (condition.clone(), BTreeSet::new()));
        details.insert(detail);
        // One that does not know the name leaves it out.
        kept.subject.name = std::mem::take(&mut kept.subject.name).max(condition.subject.name);
    }
    let one = |(id, (condition, details)): (String, (Condition, BTreeSet<String>))| {
        let more = details.len().saturating_sub(DETAILS_MAX);
        let mut details: Vec<String> = details.into_iter().take(DETAILS_MAX).collect();
        if more > 0 {
            details.push(format!("{more} more of this kind"));
        }
        (id, Condition { detail: details.join("; "), ..condition })
    };
    merged.into_iter().map(one).collect()
}

impl ProblemList {
    /// The list.
    pub fn problems(&self) -> &Problems {
        &self.now
    }

    /// Takes the problems that were open when this SM started. What is found again of them began
    /// then; what is not, within two minutes, is over.
    pub(in crate::observe) fn restore(&mut self, earlier: Vec<Problem>) {
        for problem in earlier.into_iter().take(LISTED_MAX) {
            match self.open.get_mut(&problem.id) {
                Some(known) => {
                    let known = Arc::make_mut(known);
                    (known.since, known.since_ms) = (problem.since, problem.since_ms);
                }
                None => _ = self.earlier.insert(problem.id.clone(), problem),
            }
        }
    }

    /// Compares the list with all conditions that hold at `now`, which is `time_ms` since 1970.
    /// Those of one kind and subject are one problem.
    pub fn update(&mut self, now: Instant, time_ms: u64, conditions: Vec<Condition>) -> Changes {
        let start = *self.start.get_or_insert(now);
        let hour = now.saturating_duration_since(start).as_secs() / HOUR_S;
        let mut holding = merged(conditions);
        let seen: HashSet<String> = holding.iter().map(|(id, _)| id.clone()).collect();
        self.waiting.retain(|id, _| seen.contains(id));
        holding.retain(|(id, condition)| self.lasts(now, id, condition.kind.patience()));
        // What is listed stays listed, unless something worse needs the room.
        holding.sort_by_cached_key(|(id, condition)| {
            (condition.kind.severity(), !self.open.contains_key(id), id.clone())
        });
        let mut counts = BTreeMap::new();
        for (_, condition) in &holding {
            *counts.entry(condition.kind).or_insert(0) += 1;
        }
        holding.truncate(LISTED_MAX);
        let mut changes = Changes::default();
        let mut before = std::mem::take(&mut self.open);
        let mut is_changed = counts != *self.now.counts;
        for (id, condition) in holding {
            let problem = match before.remove(&id) {
                Some(mut known) => {
                    let count = self.count(hour, &id);
                    let Condition { subject, detail, remedy, .. } = condition;
                    let is_same = known.detail == detail && known.subject == subject;
                    if !is_same || known.count != count || known.remedy != remedy {
                        is_changed = true;
                        let changed = Arc::make_mut(&mut known);
                        (changed.subject, changed.detail) = (subject, detail);
                        (changed.remedy, changed.count) = (remedy, count);
                    }
                    known
                }
                None => {
                    let opened = Arc::new(self.opened(now, hour, time_ms, &id, condition));
                    changes.opened.push(opened.clone());
                    opened
                }
            };
            self.open.insert(id, problem);
        }
        // Those that no longer fit into the list have not ended.
        let (left_out, closed): (Vec<_>, Vec<_>) =
            before.into_values().partition(|problem| seen.contains(&problem.id));
        closed.iter().chain(&left_out).for_each(|problem| self.note_end(now, problem));
        changes.closed = closed;
        if now.saturating_duration_since(start) >= FOUND_AGAIN_WITHIN {
            changes.closed.extend(self.earlier.drain().map(|(_, problem)| Arc::new(problem)));
        }
        changes.closed.sort_by(|a, b| (a.severity(), &a.id).cmp(&(b.severity(), &b.id)));
        is_changed |= !changes.opened.is_empty() || !changes.closed.is_empty();
        if is_changed || !left_out.is_empty() {
            let mut listed: Vec<_> = self.open.values().cloned().collect();
            listed.sort_by(|a, b| (a.severity(), &a.id).cmp(&(b.severity(), &b.id)));
            let version = self.now.version + 1;
            self.now = Problems { listed: Arc::new(listed), counts: Arc::new(counts), version };
        }
        changes
    }

    /// Whether a condition holds for so long that it is a problem.
    fn lasts(&mut self, now: Instant, id: &str, patience: Duration) -> bool {
        if patience.is_zero() || self.open.contains_key(id) {
            self.waiting.remove(id);
            return true;
        }
        if self.waiting.len() >= WAITING_MAX && !self.waiting.contains_key(id) {
            return true;
        }
        let began = *self.waiting.entry(id.to_owned()).or_insert(now);
        now.saturating_duration_since(began) >= patience
    }

    /// How often a problem occurred within a day; at least once, since it is there.
    fn count(&mut self, hour: u64, id: &str) -> u64 {
        let Some(past) = self.past.get_mut(id) else { return 1 };
        past.occurred.follow(hour);
        past.occurred.count().max(1)
    }

    fn opened(
        &mut self,
        now: Instant,
        hour: u64,
        time_ms: u64,
        id: &str,
        condition: Condition,
    ) -> Problem {
        self.waiting.remove(id);
        let earlier = self.earlier.remove(id);
        let past = self.past.entry(id.to_owned()).or_insert_with(|| {
            let occurred = Occurrences::none(hour);
            Past { occurred, at: now, logged: None }
        });
        past.occurred.add(hour, earlier.as_ref().map_or(1, |earlier| earlier.count));
        let is_restored = earlier.is_some();
        let (since, since_ms) =
            earlier.map_or((now, time_ms), |earlier| (earlier.since, earlier.since_ms));
        let (count, logged) = (past.occurred.count(), past.logged);
        let is_logged = count <= LOUD_TIMES
            || logged.is_none_or(|at| now.saturating_duration_since(at) >= LOUD_AFTER);
        Problem {
            id: id.to_owned(),
            kind: condition.kind,
            subject: condition.subject,
            detail: condition.detail,
            remedy: condition.remedy,
            since,
            since_ms,
            count,
            is_logged,
            is_restored,
        }
    }

    fn note_end(&mut self, now: Instant, problem: &Problem) {
        if let Some(past) = self.past.get_mut(&problem.id) {
            past.at = now;
            if problem.is_logged {
                past.logged = Some(problem.since);
            }
        }
        let is_kept = |id: &String, past: &Past, open: &HashMap<String, Arc<Problem>>| {
            open.contains_key(id) || now.saturating_duration_since(past.at) < REMEMBERED
        };
        if self.past.len() > self.open.len() + ENDED_MAX {
            self.past.retain(|id, past| is_kept(id, past, &self.open));
        }
        if self.past.len() > self.open.len() + ENDED_MAX {
            let ended = self.past.iter().filter(|(id, _)| !self.open.contains_key(*id));
            let oldest = ended.min_by_key(|(_, past)| past.at);
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                self.past.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mad::types::{Guid, PortNum};

    const SECOND: Duration = Duration::from_secs(1);

    fn degraded(port: u8, detail: &str) -> Condition {
        let subject = Subject::port("leaf", Guid(0x20), PortNum(port));
        Condition::new(Kind::LinkDegraded, subject, detail)
    }

    #[test]
    fn a_condition_opens_a_problem_once_and_its_end_closes_it() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let changes = list.update(start, 5_000, vec![degraded(1, "1x")]);
        assert_eq!(changes.opened.len(), 1);
        let problem = &changes.opened[0];
        assert_eq!((&problem.id[..], problem.count), ("link_degraded/0x0000000000000020/1", 1));
        assert_eq!(problem.text(), "'leaf' 0x0000000000000020 port 1: 1x");
        let changes = list.update(start + SECOND, 6_000, vec![degraded(1, "2x")]);
        assert!(changes.opened.is_empty() && changes.closed.is_empty());
        let listed = list.problems().listed[0].clone();
        assert_eq!((listed.since_ms, &listed.detail[..]), (5_000, "2x"), "it is the same one");
        let changes = list.update(start + 2 * SECOND, 7_000, Vec::new());
        assert_eq!(changes.closed.len(), 1);
        assert_eq!(list.problems().total(), 0);
        let changes = list.update(start + 3 * SECOND, 8_000, vec![degraded(1, "1x")]);
        assert_eq!((changes.opened[0].count, changes.opened[0].since_ms), (2, 8_000));
    }

    /// Regression: of two conditions of one kind and subject the second was lost; which of them it
    /// was could change from second to second.
    #[test]
    fn conditions_of_one_kind_and_subject_are_one_problem_with_the_details_of_all() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let nameless = Subject::port("", Guid(0x20), PortNum(1));
        let nameless = || Condition::new(Kind::LinkDegraded, nameless.clone(), "b");
        list.update(start, 0, vec![degraded(1, "a"), nameless(), degraded(1, "a")]);
        let listed = list.problems().listed.clone();
        assert_eq!((listed.len(), listed[0].text()), (1, degraded(1, "a; b").text()));
        let changes = list.update(start, 0, vec![nameless(), degraded(1, "a")]);
        assert!(changes.opened.is_empty() && list.problems().version == 1, "in any order");
        let many = (0..9).map(|n| degraded(1, &n.to_string())).collect();
        list.update(start, 0, many);
        assert_eq!(list.problems().listed[0].detail, "0; 1; 2; 3; 5 more of this kind");
    }

    /// Regression: after a restart, problems began at the restart and occurred for the first time;
    /// the history had no end of those that were over.
    #[test]
    fn problems_of_before_a_restart_go_on_or_are_over() {
        let (mut before, start) = (ProblemList::default(), Instant::now());
        for at in 0..3 {
            before.update(start, 1_000 + at, vec![degraded(1, "1x"), degraded(2, "1x")]);
            if at < 2 {
                before.update(start, 1_000 + at, Vec::new());
            }
        }
        let open: Vec<Problem> =
            before.problems().listed.iter().map(|problem| Problem::clone(problem)).collect();
        let (mut list, now) = (ProblemList::default(), start + Duration::from_secs(75));
        list.restore(open);
        let opened = list.update(now, 76_000, vec![degraded(1, "2x")]).opened;
        assert_eq!((opened[0].since_ms, opened[0].since, opened[0].count), (1_002, start, 3));
        assert!(opened[0].is_restored && opened[0].detail == "2x");
        let later = now + FOUND_AGAIN_WITHIN;
        let changes = list.update(later, 200_000, vec![degraded(1, "2x")]);
        let over: Vec<_> = changes.closed.iter().map(|one| (&one.id[..], one.since_ms)).collect();
        assert_eq!(over, [("link_degraded/0x0000000000000020/2", 1_002)]);
        assert!(list.update(later + SECOND, 201_000, Vec::new()).closed[0].is_restored);
        let again = list.update(later + 2 * SECOND, 202_000, vec![degraded(1, "1x")]).opened;
        assert_eq!((again[0].count, again[0].since_ms, again[0].is_restored), (4, 202_000, false));
    }

    /// Regression: a problem of a node that got another name kept the old one.
    #[test]
    fn a_renamed_node_stays_one_problem_with_its_new_name() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        list.update(start, 0, vec![degraded(1, "1x")]);
        let subject = Subject::port("leaf7", Guid(0x20), PortNum(1));
        let renamed = Condition::new(Kind::LinkDegraded, subject, "1x");
        let changes = list.update(start + SECOND, 1_000, vec![renamed]);
        assert!(changes.opened.is_empty() && changes.closed.is_empty());
        let listed = &list.problems().listed[0];
        assert_eq!((&listed.subject.name[..], listed.since_ms), ("leaf7", 0));
        assert_eq!(list.problems().version, 2);
    }

    /// Regression: occurrences of days before counted, too.
    #[test]
    fn occurrences_count_for_a_day() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let mut count_at = |hour: u64| {
            let now = start + Duration::from_secs(hour * HOUR_S);
            let opened = list.update(now, 0, vec![degraded(1, "1x")]).opened;
            let count = opened[0].count;
            list.update(now + SECOND, 0, Vec::new());
            count
        };
        assert_eq!([0, 0, 5, 23].map(&mut count_at), [1, 2, 3, 4]);
        assert_eq!([24, 29, 100].map(&mut count_at), [3, 3, 1]);
        // One that lasts for days did not occur several times within a day.
        let last = start + Duration::from_secs(100 * HOUR_S + 2);
        list.update(last, 0, vec![degraded(1, "1x")]);
        assert_eq!(list.problems().listed[0].count, 2);
        list.update(last + REMEMBERED, 0, vec![degraded(1, "1x")]);
        assert_eq!(list.problems().listed[0].count, 1);
    }

    #[test]
    fn the_version_changes_only_with_the_list() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let mut update = |detail: Option<&str>| {
            list.update(start, 0, detail.map(|detail| degraded(1, detail)).into_iter().collect());
            list.problems().version
        };
        assert_eq!(
            [None, Some("1x"), Some("1x"), Some("2x"), None, None].map(&mut update),
            [0, 1, 1, 2, 3, 3]
        );
    }

    #[test]
    fn what_passes_soon_is_no_problem() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let down = || vec![Condition::new(Kind::SubnetDown, Subject::subnet(), "not up")];
        let patience = Kind::SubnetDown.patience();
        assert!(list.update(start, 0, down()).opened.is_empty());
        list.update(start + SECOND, 0, Vec::new());
        assert!(list.update(start + patience, 0, down()).opened.is_empty(), "it began again");
        assert_eq!(list.update(start + 2 * patience, 0, down()).opened.len(), 1);
        assert_eq!(list.problems().listed[0].text(), "not up");
    }

    #[test]
    fn the_list_is_bounded_and_the_rest_is_counted() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let many = |n: u64| -> Vec<Condition> {
            let host = |n| Subject::node("h", Guid(n));
            (0..n).map(|n| Condition::new(Kind::HostMissing, host(n), "gone")).collect()
        };
        let all = LISTED_MAX as u64 + 7;
        assert_eq!(list.update(start, 0, many(all)).opened.len(), LISTED_MAX);
        let problems = list.problems().clone();
        assert_eq!((problems.count(Kind::HostMissing), problems.unlisted()), (all as usize, 7));
        let mut more = many(all);
        more.push(degraded(1, "1x"));
        let changes = list.update(start + SECOND, 0, more);
        assert_eq!(changes.opened[0].kind, Kind::LinkDegraded, "a worse one displaces another");
        assert!(changes.closed.is_empty(), "which has not ended");
        assert_eq!((list.problems().listed.len(), list.problems().unlisted()), (LISTED_MAX, 8));
        assert_eq!(list.problems().listed[0].kind, Kind::LinkDegraded);
    }

    #[test]
    fn what_comes_and_goes_is_logged_a_few_times_and_then_rarely() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let mut logged = 0;
        for second in 0..1200 {
            let conditions = if second % 2 == 0 { vec![degraded(1, "1x")] } else { Vec::new() };
            let changes = list.update(start + second * SECOND, 0, conditions);
            logged += changes.opened.iter().filter(|problem| problem.is_logged).count();
        }
        assert_eq!(logged, 4, "three times, and once after ten minutes");
    }
}

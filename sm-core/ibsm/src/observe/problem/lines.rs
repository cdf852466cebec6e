//! Lines of the log about problems.

use std::time::Instant;

use super::list::Changes;
use super::{Problem, Severity};
use crate::observe::words::{count, duration};

/// Largest number of lines about problems that appear, or end, at one moment.
const LINES_MAX: usize = 10;

/// Severity of a line; `None` for one that says that a problem is over.
type Line = (Option<Severity>, String);

/// The lines of the log about what changed. A problem that comes and goes all the time is left out.
pub(crate) fn lines(now: Instant, changes: &Changes) -> Vec<Line> {
    let opened = changes.opened.iter().filter(|problem| problem.is_logged);
    let opened = opened.map(|problem| {
        let times = match problem.count {
            1 => String::new(),
            count => format!(" ({count} times within a day)"),
        };
        let line = format!("problem: {}{times}; to do: {}", problem.text(), problem.remedy);
        (Some(problem.severity()), line)
    });
    let closed = changes.closed.iter().filter(|problem| problem.is_logged).map(|problem| {
        let lasted = now.saturating_duration_since(problem.since).as_secs();
        (None, format!("over after {}: {}", duration(lasted), label(problem)))
    });
    let mut lines = bounded(opened.collect(), |more| {
        format!("{}: ibsmctl problems lists them", count(more, "more problem", "more problems"))
    });
    lines.extend(bounded(closed.collect(), |more| {
        let over = count(more, "more problem is over", "more problems are over");
        format!("{over}: ibsmctl events --kind problem_closed lists them")
    }));
    lines
}

fn label(problem: &Problem) -> String {
    format!("problem {}", problem.text())
}

fn bounded(mut lines: Vec<Line>, rest: impl Fn(u64) -> String) -> Vec<Line> {
    let more = lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        let worst = lines[LINES_MAX].0;
        lines.truncate(LINES_MAX);
        lines.push((worst, rest(more as u64)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use ib_mad::types::Guid;

    use crate::observe::problem::{Condition, Kind, ProblemList, Subject};

    #[test]
    fn a_problem_has_a_line_when_it_appears_and_one_when_it_is_over() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let subject = Subject::node("spine2", Guid(0x22));
        let gone = vec![Condition::new(Kind::SwitchMissing, subject, "gone")];
        let found = lines(start, &list.update(start, 0, gone));
        let (severity, line) = &found[0];
        assert_eq!(*severity, Some(Severity::Critical));
        assert!(line.starts_with("problem: 'spine2' 0x0000000000000022: gone; to do: "), "{line}");
        let later = start + Duration::from_secs(75);
        let over = lines(later, &list.update(later, 0, Vec::new()));
        let expected = "over after 1 min 15 s: problem 'spine2' 0x0000000000000022: gone";
        assert_eq!(over, [(None, expected.to_owned())]);
    }

    #[test]
    fn many_problems_at_once_have_few_lines() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let host = |n| Subject::node("h", Guid(n));
        let gone = (0..500).map(|n| Condition::new(Kind::HostMissing, host(n), "gone")).collect();
        let found = lines(start, &list.update(start, 0, gone));
        assert_eq!(found.len(), LINES_MAX + 1);
        assert!(found[LINES_MAX].1.starts_with("490 more problems"), "{found:?}");
        let over = lines(start, &list.update(start, 0, Vec::new()));
        // Regression: it pointed to the list of problems, which does not have them any more.
        let last = "490 more problems are over: ibsmctl events --kind problem_closed lists them";
        assert_eq!((over.len(), &over[LINES_MAX].1[..]), (LINES_MAX + 1, last));
    }
}

//! Events of problems that are opened and closed.

use std::time::Instant;

use super::{Draft, EventKind};
use crate::observe::problem::{Changes, Problem};
use crate::observe::words::duration;

/// The events of what changed in the list of problems.
pub fn drafts(now: Instant, changes: &Changes) -> Vec<Draft> {
    let draft = |kind, problem: &Problem, text: String| {
        Draft::new(kind, text)
            .rated(Some(problem.severity()))
            .about(problem.subject.clone())
            .with("problem", problem.kind.label())
            .with("id", &problem.id[..])
            .with("detail", &problem.detail[..])
            .with("count", problem.count)
    };
    let opened = changes.opened.iter().map(|problem| {
        let text = format!("problem: {}", problem.text());
        let remedy = problem.kind.remedy();
        draft(EventKind::ProblemOpened, problem, text).with("remedy", remedy)
    });
    let closed = changes.closed.iter().map(|problem| {
        let lasted = now.saturating_duration_since(problem.since).as_secs();
        let text = format!("over after {}: {}", duration(lasted), problem.text());
        draft(EventKind::ProblemClosed, problem, text)
            .with("since_ms", problem.since_ms)
            .with("lasted_s", lasted)
    });
    opened.chain(closed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use ib_mad::types::Guid;

    use crate::observe::event::Value;
    use crate::observe::problem::{Condition, Kind, ProblemList, Subject};

    #[test]
    fn a_problem_has_an_event_when_it_appears_and_one_when_it_is_over() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let subject = Subject::node("spine2", Guid(0x22));
        let gone = vec![Condition::new(Kind::SwitchMissing, subject, "gone")];
        let opened = drafts(start, &list.update(start, 5, gone));
        assert_eq!(opened[0].text, "problem: 'spine2' 0x0000000000000022: gone");
        assert_eq!(opened[0].subject.guid, Some(Guid(0x22)));
        let later = start + Duration::from_secs(75);
        let closed = drafts(later, &list.update(later, 80, Vec::new()));
        assert!(closed[0].text.starts_with("over after 1 min 15 s: "), "{}", closed[0].text);
        assert!(closed[0].fields.contains(&("lasted_s", Value::Number(75))));
    }
}

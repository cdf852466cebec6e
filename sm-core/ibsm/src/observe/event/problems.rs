//! Events of problems that are opened and closed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ib_mad::types::PortNum;

use super::{Draft, Event, EventKind, Value};
use crate::observe::problem::{Changes, Kind, Problem, Subject};
use crate::observe::words::duration;

/// The problems that are open after these events, oldest first, which end at `now`, that is
/// `time_ms` since 1970. Kinds that this release does not know are left out.
pub fn open_after(now: Instant, time_ms: u64, events: &[Event]) -> Vec<Problem> {
    let mut open: BTreeMap<&str, &Event> = BTreeMap::new();
    for event in events {
        let Some(Value::Text(id)) = event.fields.get("id") else { continue };
        if event.kind == EventKind::ProblemOpened.label() {
            open.insert(id, event);
        } else if event.kind == EventKind::ProblemClosed.label() {
            open.remove(&id[..]);
        }
    }
    let problem = |(id, event): (&str, &Event)| {
        let text = |name: &str| match event.fields.get(name) {
            Some(Value::Text(text)) => Some(&text[..]),
            _ => None,
        };
        let kind = Kind::ALL.iter().copied().find(|kind| text("problem") == Some(kind.label()))?;
        let count = match event.fields.get("count") {
            Some(Value::Number(count)) => *count,
            _ => 1,
        };
        let subject = Subject {
            name: event.name.clone(),
            guid: event.guid.as_ref().and_then(|guid| guid.parse().ok()),
            port: event.port.map(PortNum),
        };
        let ago = Duration::from_millis(time_ms.saturating_sub(event.time_ms));
        let since = now.checked_sub(ago).unwrap_or(now);
        let detail = text("detail").unwrap_or_default();
        Some(Problem::earlier(id, kind, subject, detail, (since, event.time_ms), count))
    };
    open.into_iter().filter_map(problem).collect()
}

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
    // The history has the beginning of those that were open before a restart.
    let opened = changes.opened.iter().filter(|problem| !problem.is_restored).map(|problem| {
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

    use ib_mad::types::Guid;

    use crate::observe::problem::{Condition, ProblemList};

    #[test]
    fn what_was_opened_and_not_closed_is_open() {
        let (mut list, start) = (ProblemList::default(), Instant::now());
        let gone = |guid| {
            let subject = Subject::port("spine2", Guid(guid), PortNum(3));
            Condition::new(Kind::LinkMissing, subject, "the link is missing")
        };
        let mut events = Vec::new();
        for (time_ms, conditions) in [(5, vec![gone(1), gone(2)]), (9, vec![gone(2)])] {
            let drafts = drafts(start, &list.update(start, time_ms, conditions));
            events.extend(drafts.into_iter().map(|draft| Event::of(0, time_ms, draft)));
        }
        let now = start + Duration::from_secs(1);
        let open = open_after(now, 1_005, &events);
        let known = list.problems().listed[0].clone();
        assert_eq!(open.len(), 1);
        assert_eq!((&open[0].id, &open[0].subject), (&known.id, &known.subject));
        assert_eq!((open[0].since, open[0].since_ms, open[0].count), (start, 5, 1));
        assert_eq!(open[0].text(), known.text());
    }

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

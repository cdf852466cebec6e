//! What `--quarantine` keeps out, now and at earlier times, for `ibsmctl diff`. It is in no
//! topology: it is known by its problems, and their events.

use std::collections::BTreeMap;

use sa_proto::proto::admin::{Event, EventsRequest, ProblemsRequest};
use serde_json::Value;

use super::{CtlError, Sm};
use crate::observe::event::EventKind;
use crate::observe::problem::Kind;

/// Lines about what is kept out, by the identity of the problem.
pub(super) type KeptOut = BTreeMap<String, String>;

/// What is kept out now.
pub(super) async fn now(sm: &Sm) -> Result<KeptOut, CtlError> {
    let answer = sm.connect().await?.list_problems(ProblemsRequest {}).await;
    let problems = answer.map_err(|status| sm.refused(&status))?.into_inner().problems;
    let kept_out = problems.into_iter().filter(|of| of.kind == Kind::Quarantined.label());
    Ok(kept_out.map(|of| (of.id, line(&of.name, of.port, &of.detail))).collect())
}

/// What was kept out at a time, milliseconds since 1970, as far as the history has its beginning.
pub(super) async fn at(sm: &Sm, time_ms: u64) -> Result<KeptOut, CtlError> {
    let kinds = [EventKind::ProblemOpened, EventKind::ProblemClosed];
    let request = EventsRequest {
        from_number: Some(1),
        kinds: kinds.map(|kind| kind.label().to_owned()).to_vec(),
        ..EventsRequest::default()
    };
    let answer = sm.connect().await?.list_events(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut kept_out = KeptOut::new();
    while let Some(part) = stream.message().await.map_err(|status| sm.refused(&status))? {
        for event in &part.events {
            if event.time_ms > time_ms {
                return Ok(kept_out);
            }
            take(&mut kept_out, event);
        }
    }
    Ok(kept_out)
}

fn take(kept_out: &mut KeptOut, event: &Event) {
    let Ok(fields) = serde_json::from_str::<Value>(&event.fields) else { return };
    if fields["problem"] != Kind::Quarantined.label() {
        return;
    }
    let Some(id) = fields["id"].as_str() else { return };
    if event.kind == EventKind::ProblemClosed.label() {
        kept_out.remove(id);
    } else {
        let detail = fields["detail"].as_str().unwrap_or_default();
        kept_out.insert(id.to_owned(), line(&event.name, event.port, detail));
    }
}

fn line(name: &str, port: Option<u32>, detail: &str) -> String {
    let port = port.map_or_else(String::new, |port| format!(" port {port}"));
    format!("'{name}'{port}: {detail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_out_is_known_from_events() {
        let event = |kind: EventKind, problem: &str, id: &str| Event {
            kind: kind.label().into(),
            name: "leaf1".into(),
            port: Some(3),
            fields: format!(r#"{{"problem":"{problem}","id":"{id}","detail":"kept out"}}"#),
            ..Event::default()
        };
        let mut kept_out = KeptOut::new();
        for event in [
            event(EventKind::ProblemOpened, "quarantined", "a"),
            event(EventKind::ProblemOpened, "link_missing", "b"),
            event(EventKind::ProblemOpened, "quarantined", "c"),
            event(EventKind::ProblemClosed, "quarantined", "a"),
            Event { fields: "{".into(), ..Event::default() },
        ] {
            take(&mut kept_out, &event);
        }
        assert_eq!(kept_out, [("c".into(), "'leaf1' port 3: kept out".into())].into());
    }
}

//! Problems of responders, from their state relative to the published snapshot.

use super::{Condition, Kind, Subject};
use crate::observe::moment::{ResponderNow, Standing};

/// What is wrong with the responders.
pub(in crate::observe) fn of_responders<'a>(
    responders: impl IntoIterator<Item = &'a ResponderNow>,
) -> Vec<Condition> {
    responders.into_iter().filter_map(of_responder).collect()
}

fn of_responder(responder: &ResponderNow) -> Option<Condition> {
    let (kind, detail) = match responder.state {
        Standing::Current => return None,
        Standing::Silent => {
            (Kind::ResponderHung, "it does not report, and its process has not ended")
        }
        Standing::Down => (Kind::ResponderDown, "it is not connected any more"),
        Standing::Behind => (Kind::ResponderBehind, "it answers from an outdated snapshot"),
        Standing::Waiting => (Kind::ResponderWaiting, "it has no snapshot to answer from"),
        Standing::Elsewhere => {
            (Kind::ResponderElsewhere, "it answers from the session of another subnet manager")
        }
    };
    // Several may have one name.
    let subject = Subject::named(format!("responder {} ({})", responder.name, responder.id));
    Some(Condition::new(kind, subject, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_but_current_is_a_problem() {
        let responder = |state| ResponderNow {
            name: "sa1".into(),
            id: "0x7".into(),
            state,
            ..ResponderNow::default()
        };
        let states = [Standing::Current, Standing::Silent, Standing::Down, Standing::Behind];
        let all: Vec<_> = states.map(responder).into();
        let kinds: Vec<_> = of_responders(&all).iter().map(|one| one.kind).collect();
        let expected = [Kind::ResponderHung, Kind::ResponderDown, Kind::ResponderBehind];
        assert_eq!(kinds, expected);
        let text = of_responders(&all)[0].id();
        assert_eq!(text, "responder_hung/responder sa1 (0x7)");
    }
}

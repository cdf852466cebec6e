//! Events of responders and standbys that connect and disconnect.

use std::collections::BTreeMap;

use super::{Draft, EventKind};
use crate::observe::problem::Subject;
use crate::observe::{Hung, RESPONDERS_MAX, Responder};

/// The connected responders and standbys, as of the last call.
#[derive(Debug, Default)]
pub struct ResponderWatch {
    /// Name, role and connection by identity; as many as may be connected.
    known: BTreeMap<u64, (String, &'static str, u64)>,
}

impl ResponderWatch {
    /// The events since the last call.
    pub fn follow(&mut self, responders: &[Responder], hung: &[Hung]) -> Vec<Draft> {
        let mut now = BTreeMap::new();
        let mut drafts = Vec::new();
        for responder in responders.iter().take(RESPONDERS_MAX) {
            let role = match &responder.follower {
                Some(_) => "standby",
                None if responder.is_client() => continue,
                None => "responder",
            };
            let (id, name) = (responder.id, responder.name.to_string());
            let again = match self.known.get(&id) {
                Some((.., connection)) if *connection == responder.connection() => None,
                Some(_) => Some("connected again"),
                None => Some("connected"),
            };
            drafts.extend(again.map(|word| {
                draft(EventKind::ResponderCame, role, &name, id, word)
                    .with("software", &*responder.software)
            }));
            now.insert(id, (name, role, responder.connection()));
        }
        let gone = self.known.iter().filter(|(id, _)| !now.contains_key(id));
        drafts.extend(gone.map(|(&id, (name, role, _))| {
            let is_hung = hung.iter().any(|hung| hung.id == id);
            let word = if is_hung { "does not answer: disconnected" } else { "disconnected" };
            draft(EventKind::ResponderWent, role, name, id, word)
        }));
        self.known = now;
        drafts
    }
}

fn draft(kind: EventKind, role: &'static str, name: &str, id: u64, word: &str) -> Draft {
    let text = format!("{role} {name} ({id:#x}) {word}");
    Draft::new(kind, text)
        .about(Subject::named(name))
        .with("role", role)
        .with("id", format!("{id:#018x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use sa_proto::proto::snapshot::Hello;

    fn responder(id: u64, connection: u64) -> Responder {
        let hello = Hello {
            responder_id: id,
            name: format!("sa{id}"),
            front_door: vec!["127.0.0.1:9".into()],
            ..Hello::default()
        };
        Responder::new(&hello, None, None, Instant::now(), connection)
    }

    #[test]
    fn each_connection_has_a_beginning_and_an_end() {
        let mut watch = ResponderWatch::default();
        let texts = |drafts: Vec<Draft>| -> Vec<String> {
            drafts.into_iter().map(|draft| draft.text).collect()
        };
        let came = watch.follow(&[responder(1, 1), responder(2, 2)], &[]);
        assert_eq!(texts(came), ["responder sa1 (0x1) connected", "responder sa2 (0x2) connected"]);
        assert!(watch.follow(&[responder(1, 1), responder(2, 2)], &[]).is_empty());
        let again = watch.follow(&[responder(1, 3)], &[]);
        assert_eq!(
            texts(again),
            ["responder sa1 (0x1) connected again", "responder sa2 (0x2) disconnected"]
        );
        let hung = [Hung { id: 1, front_door: [].into() }];
        let went = watch.follow(&[], &hung);
        assert_eq!(texts(went), ["responder sa1 (0x1) does not answer: disconnected"]);
    }
}

//! Questions of a manager that becomes master: which registry each responder holds, and the rows of
//! one that holds a newer one.

use std::sync::{Arc, Mutex, PoisonError};

use ib_mad::types::Guid;
use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_responder::Message;
use sa_proto::snapshot::Snapshot;
use sa_proto::snapshot::codec::{Decoder, UpdateError};
use tokio::sync::watch;

/// A question to all responders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Inquiry {
    /// Its number; 0 if there was none yet.
    pub(super) number: u64,
    /// The responder, by its identity, that is to send its rows, too.
    rows_from: Option<u64>,
    /// Whether answers are not awaited any more.
    is_over: bool,
}

impl Inquiry {
    /// Whether answers are awaited.
    pub(super) fn is_open(&self) -> bool {
        self.number != 0 && !self.is_over
    }

    /// As a message to the responder with this identity; `sm_guid` is the GUID of this SM's port.
    pub(super) fn to(self, id: u64, sm_guid: Guid) -> proto::Inquiry {
        let rows = self.rows_from == Some(id);
        proto::Inquiry { number: self.number, rows, sm_guid: sm_guid.0 }
    }
}

/// The last question, and the rows received in answer.
#[derive(Debug)]
pub(super) struct Inquiries {
    last: watch::Sender<Inquiry>,
    recalled: Mutex<Option<Arc<Snapshot>>>,
}

impl Default for Inquiries {
    fn default() -> Self {
        Self { last: watch::Sender::new(Inquiry::default()), recalled: Mutex::default() }
    }
}

impl Inquiries {
    /// Asks all responders, and one for its rows; returns the number of the question.
    pub(super) fn ask(&self, rows_from: Option<u64>) -> u64 {
        let mut number = 0;
        self.last.send_modify(|last| {
            number = last.number + 1;
            *last = Inquiry { number, rows_from, is_over: false };
        });
        number
    }

    /// Answers are not awaited any more: those that connect from now on are not asked.
    pub(super) fn end(&self) {
        self.last.send_if_modified(|last| {
            last.is_over = true;
            false
        });
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Inquiry> {
        self.last.subscribe()
    }

    fn put(&self, snapshot: Snapshot) {
        *self.recalled.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
    }

    /// The rows that a responder has sent, once.
    pub(super) fn take(&self) -> Option<Arc<Snapshot>> {
        self.recalled.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Rows that come in on one connection. Without a request they are ignored.
#[derive(Debug, Default)]
pub(super) struct Recall {
    requested: bool,
    decoder: Option<Decoder>,
}

impl Recall {
    /// A question is sent.
    pub(super) fn note_sent(&mut self, inquiry: &proto::Inquiry) {
        *self = Self { requested: inquiry.rows, decoder: None };
    }

    /// Takes a part of the rows; returns whether these were the last. After an error the rest is
    /// ignored.
    pub(super) fn handle(
        &mut self,
        message: Message,
        inquiries: &Inquiries,
    ) -> Result<bool, UpdateError> {
        let decoder = self.decoder.take();
        match (message, decoder) {
            (Message::Begin(begin), _) if self.requested => {
                self.requested = false;
                self.decoder = Some(Decoder::new(begin)?);
            }
            (Message::Chunk(chunk), Some(mut decoder)) => {
                decoder.chunk(&chunk)?;
                self.decoder = Some(decoder);
            }
            (Message::End(end), Some(decoder)) => {
                inquiries.put(decoder.finish(end, &Snapshot::empty())?);
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::proto::snapshot::from_sm;
    use sa_proto::snapshot::codec::Encoder;
    use sa_proto::snapshot::{FabricPlane, RegistryPlane, Session};

    use super::*;

    const ASKER: Guid = Guid(1);

    fn rows(sequence: u64) -> impl Iterator<Item = Message> {
        let registry = RegistryPlane { sequence, ..RegistryPlane::default() };
        let session = Session { epoch: 5, sm_guid: Guid(1) };
        let snapshot = Snapshot::build(session, 1, FabricPlane::default(), registry).unwrap();
        Encoder::full(Arc::new(snapshot)).map(|message| match message.message.unwrap() {
            from_sm::Message::Begin(begin) => Message::Begin(begin),
            from_sm::Message::Chunk(chunk) => Message::Chunk(chunk),
            from_sm::Message::End(end) => Message::End(end),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn rows_are_taken_from_the_responder_that_was_asked_for_them() {
        let inquiries = Inquiries::default();
        let mut asked = Recall::default();
        let number = inquiries.ask(Some(7));
        let last = *inquiries.subscribe().borrow();
        assert_eq!((last.to(7, ASKER).rows, last.to(8, ASKER).rows), (true, false));
        assert_eq!(last.to(8, ASKER).number, number);
        asked.note_sent(&last.to(7, ASKER));
        let ends: Vec<_> = rows(9).map(|part| asked.handle(part, &inquiries).unwrap()).collect();
        assert_eq!(ends.iter().filter(|end| **end).count(), 1);
        assert_eq!(inquiries.take().unwrap().registry().sequence, 9);
        assert!(inquiries.take().is_none());
    }

    /// Regression: a standby that had been master put its last question again to each manager that
    /// connected, and the master took that for an election: 15 s without acknowledgements.
    #[test]
    fn a_question_is_open_until_its_answers_are_not_awaited() {
        let inquiries = Inquiries::default();
        let is_open = || inquiries.subscribe().borrow().is_open();
        assert!(!is_open());
        for number in 1..3 {
            assert_eq!(inquiries.ask(None), number);
            assert!(is_open());
            inquiries.end();
            assert!(!is_open());
        }
    }

    #[test]
    fn rows_without_a_request_and_damaged_ones_are_ignored() {
        let inquiries = Inquiries::default();
        let mut recall = Recall::default();
        assert!(rows(9).all(|part| recall.handle(part, &inquiries) == Ok(false)));
        recall.note_sent(&proto::Inquiry { number: 1, rows: true, sm_guid: 1 });
        let begin = rows(9).next().unwrap();
        recall.handle(begin, &inquiries).unwrap();
        let chunk = proto::Chunk { table: 999, data: Vec::new().into() };
        assert!(recall.handle(Message::Chunk(chunk), &inquiries).is_err());
        let end = rows(9).last().unwrap();
        assert_eq!(recall.handle(end, &inquiries), Ok(false));
        assert!(inquiries.take().is_none());
    }
}

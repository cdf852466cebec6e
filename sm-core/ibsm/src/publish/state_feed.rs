//! The state of this SM on its way to one follower: what is sent, and when.
//!
//! This module decides; it never sends, waits or reads a clock. An update begins when the one
//! before was sent: a slow follower gets the latest state, never a queue of old ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use sa_proto::proto::snapshot as proto;
use sa_proto::proto::snapshot::from_sm;
use sa_proto::state::{Documents, Encoder, StateVersion};

/// The state that one follower gets.
#[derive(Debug)]
pub(super) struct StateFeed {
    /// Whether it needs texts of operators' files.
    texts: bool,
    /// Hashes of the documents that were sent.
    sent: BTreeMap<String, u128>,
    /// The version that was sent last, or is being sent.
    target: StateVersion,
    encoder: Option<Encoder>,
    /// What the follower has on disk.
    stored: StateVersion,
}

impl StateFeed {
    pub(super) fn new(texts: bool) -> Self {
        Self {
            texts,
            sent: BTreeMap::new(),
            target: StateVersion::default(),
            encoder: None,
            stored: StateVersion::default(),
        }
    }

    /// Begins an update if none is being sent and there is a later state.
    pub(super) fn begin(&mut self, version: StateVersion, documents: &Arc<Documents>) {
        if self.encoder.is_some() || version == self.target {
            return;
        }
        self.encoder = Some(Encoder::new(version, documents, &self.sent, self.texts));
        self.sent =
            documents.values().map(|document| (document.name.clone(), document.hash)).collect();
        self.target = version;
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has something to send.
    pub(super) fn is_sending(&self) -> bool {
        self.encoder.is_some()
    }

    /// The next message.
    pub(super) fn poll_transmit(&mut self) -> Option<proto::FromSm> {
        let message = self.encoder.as_mut()?.next()?;
        if matches!(message.message, Some(proto::state::Message::End(_))) {
            self.encoder = None;
        }
        Some(proto::FromSm { message: Some(from_sm::Message::State(message)) })
    }

    /// The follower has this on disk.
    pub(super) fn handle_stored(&mut self, stored: StateVersion) {
        self.stored = self.stored.max(stored);
    }

    /// What the follower has on disk.
    pub(super) fn stored(&self) -> StateVersion {
        self.stored
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::snapshot::Session;
    use sa_proto::state::{Decoder, Document, Kind};

    use super::*;

    fn version(epoch: u64, number: u64) -> StateVersion {
        StateVersion { session: Session { epoch, ..Session::default() }, number }
    }

    fn lids(text: &'static str) -> Arc<Documents> {
        let document = Document::new(Kind::StateFile, "guid2lid", text);
        Arc::new([("guid2lid".to_owned(), Arc::new(document))].into())
    }

    /// Sends all there is; returns the number of messages, and what the follower has then.
    fn transmit(
        feed: &mut StateFeed,
        decoder: &mut Decoder,
    ) -> (usize, Option<(StateVersion, Documents)>) {
        let (mut count, mut last) = (0, None);
        while let Some(message) = feed.poll_transmit() {
            let Some(from_sm::Message::State(state)) = message.message else { panic!() };
            count += 1;
            last = decoder.handle(state).unwrap();
        }
        assert!(!feed.is_sending());
        (count, last)
    }

    #[test]
    fn a_follower_gets_each_state_once_and_of_a_new_session_only_that_it_is_the_same() {
        let (mut feed, mut decoder) = (StateFeed::new(false), Decoder::default());
        assert!(!feed.is_sending());
        feed.begin(version(5, 1), &lids("1"));
        assert!(feed.is_sending());
        let (count, got) = transmit(&mut feed, &mut decoder);
        assert_eq!((count, got), (3, Some((version(5, 1), (*lids("1")).clone()))));
        feed.begin(version(5, 1), &lids("1"));
        assert!(!feed.is_sending());
        feed.begin(version(6, 1), &lids("1"));
        let (count, got) = transmit(&mut feed, &mut decoder);
        assert_eq!((count, got), (1, Some((version(6, 1), (*lids("1")).clone()))));
    }

    #[test]
    fn what_changes_while_an_update_is_sent_is_the_next_update() {
        let (mut feed, mut decoder) = (StateFeed::new(false), Decoder::default());
        feed.begin(version(5, 1), &lids("1"));
        feed.begin(version(5, 2), &lids("2"));
        assert_eq!(transmit(&mut feed, &mut decoder).1.unwrap().0, version(5, 1));
        feed.begin(version(5, 3), &lids("3"));
        let got = transmit(&mut feed, &mut decoder).1;
        assert_eq!(got, Some((version(5, 3), (*lids("3")).clone())));
    }
}

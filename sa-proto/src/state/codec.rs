//! Documents as messages of `snapshot.proto`, and back. Neither end waits or sends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ib_mad::types::Guid;
use prost::bytes::Bytes;

use super::{
    DOCUMENT_LEN_MAX, DOCUMENTS_MAX, Document, Documents, Kind, NAME_LEN_MAX, StateVersion,
    TEXTS_LEN_MAX, hash_of,
};
use crate::proto::snapshot as proto;
use crate::proto::snapshot::document::Kind as ProtoKind;
use crate::proto::snapshot::state::Message;
use crate::snapshot::Session;
use crate::snapshot::encoding::Malformed;

/// Bytes of text in a message. Heartbeats wait for one at most.
pub const CHUNK_LEN: usize = 64 << 10;

/// Why messages are not a valid update of the state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A message is malformed.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The text of a document is not the one that its hash was computed from.
    #[error("the text of {0} does not match its hash")]
    Hash(String),
    /// The texts are longer than any fabric needs.
    #[error(
        "a document of more than {DOCUMENT_LEN_MAX} bytes, or more than {TEXTS_LEN_MAX} in all"
    )]
    TooLong,
    /// The end names a document that was not sent.
    #[error("{0} was not sent")]
    Missing(String),
}

impl From<StateVersion> for proto::StateVersion {
    fn from(version: StateVersion) -> Self {
        let StateVersion { session, number } = version;
        Self { epoch: session.epoch, sm_guid: session.sm_guid.0, number }
    }
}

impl From<proto::StateVersion> for StateVersion {
    fn from(version: proto::StateVersion) -> Self {
        let proto::StateVersion { epoch, sm_guid, number } = version;
        Self { session: Session { epoch, sm_guid: Guid(sm_guid) }, number }
    }
}

/// The messages of one update, in order.
#[derive(Debug)]
pub struct Encoder {
    /// Documents that are not sent completely, and how much was sent of the first; `None`: not even
    /// its header.
    rest: VecDeque<Arc<Document>>,
    sent: Option<usize>,
    end: Option<proto::StateEnd>,
}

impl Encoder {
    /// The update that leads to `all`, for a follower that holds the documents with these hashes.
    /// `texts`: whether it needs texts of operators' files.
    pub fn new(
        version: StateVersion,
        all: &Documents,
        held: &BTreeMap<String, u128>,
        texts: bool,
    ) -> Self {
        let rest = all.values().filter(|document| held.get(&document.name) != Some(&document.hash));
        let as_sent = |document: &Arc<Document>| match document.kind {
            Kind::OperatorsFile if !texts => {
                Arc::new(Document { text: None, ..Document::clone(document) })
            }
            _ => document.clone(),
        };
        let end =
            proto::StateEnd { version: Some(version.into()), names: all.keys().cloned().collect() };
        Self { rest: rest.map(as_sent).collect(), sent: None, end: Some(end) }
    }
}

impl Iterator for Encoder {
    type Item = proto::State;

    fn next(&mut self) -> Option<proto::State> {
        let message = match (self.rest.front(), self.sent) {
            (None, _) => Message::End(self.end.take()?),
            (Some(document), None) => {
                let header = proto::Document {
                    kind: match document.kind {
                        Kind::StateFile => ProtoKind::StateFile.into(),
                        Kind::OperatorsFile => ProtoKind::OperatorsFile.into(),
                    },
                    name: document.name.clone(),
                    hash: document.hash.to_be_bytes().to_vec().into(),
                    len: document.len() as u64,
                    withheld: document.text.is_none(),
                };
                self.sent = Some(0);
                Message::Document(header)
            }
            (Some(document), Some(sent)) => {
                let text = document.text.clone().unwrap_or_default();
                let end = text.len().min(sent + CHUNK_LEN);
                self.sent = Some(end);
                Message::Text(text.slice(sent..end))
            }
        };
        if let Some(document) = self.rest.front()
            && self.sent == Some(document.len())
        {
            self.rest.pop_front();
            self.sent = None;
        }
        Some(proto::State { message: Some(message) })
    }
}

/// Reassembles documents.
#[derive(Debug, Default)]
pub struct Decoder {
    /// All documents as of the last end, and those received since.
    held: Documents,
    /// The document that is being received, and its text so far.
    current: Option<(Document, usize, Vec<u8>)>,
}

impl Decoder {
    /// Takes a message; yields the version and all documents at the end of an update. After an
    /// error the decoder holds nothing: all documents must be sent again.
    pub fn handle(
        &mut self,
        message: proto::State,
    ) -> Result<Option<(StateVersion, Documents)>, StateError> {
        let result = self.take(message);
        if result.is_err() {
            *self = Self::default();
        }
        result
    }

    fn take(
        &mut self,
        message: proto::State,
    ) -> Result<Option<(StateVersion, Documents)>, StateError> {
        match (message.message, &mut self.current) {
            (Some(Message::Document(header)), None) => {
                let (document, len) = document_of(header)?;
                let others: usize = self.held.values().map(|other| other.len()).sum();
                let replaced = self.held.get(&document.name).map_or(0, |before| before.len());
                if len > DOCUMENT_LEN_MAX || others - replaced + len > TEXTS_LEN_MAX {
                    return Err(StateError::TooLong);
                }
                if document.text.is_none() || len == 0 {
                    self.finish(document, Bytes::new())?;
                } else {
                    self.current = Some((document, len, Vec::new()));
                }
                Ok(None)
            }
            (Some(Message::Text(text)), Some((_, len, so_far))) => {
                if text.is_empty() || so_far.len() + text.len() > *len {
                    return Err(Malformed("a piece of text does not fit its document").into());
                }
                so_far.extend_from_slice(&text);
                if so_far.len() == *len
                    && let Some((document, _, text)) = self.current.take()
                {
                    self.finish(document, text.into())?;
                }
                Ok(None)
            }
            (Some(Message::End(end)), None) => {
                let version = end.version.ok_or(Malformed("a state without a version"))?;
                if end.names.len() > DOCUMENTS_MAX {
                    return Err(Malformed("too many documents").into());
                }
                let mut all = Documents::new();
                for name in end.names {
                    let Some(document) = self.held.get(&name) else {
                        return Err(StateError::Missing(name));
                    };
                    all.insert(name, document.clone());
                }
                self.held.clone_from(&all);
                Ok(Some((version.into(), all)))
            }
            _ => Err(Malformed("a part of a state that is out of order").into()),
        }
    }

    fn finish(&mut self, mut document: Document, text: Bytes) -> Result<(), StateError> {
        if document.text.is_some() {
            if hash_of(&text) != document.hash {
                return Err(StateError::Hash(document.name));
            }
            document.text = Some(text);
        }
        if self.held.len() >= DOCUMENTS_MAX && !self.held.contains_key(&document.name) {
            return Err(Malformed("too many documents").into());
        }
        self.held.insert(document.name.clone(), Arc::new(document));
        Ok(())
    }
}

/// A document without its text, which has this length.
fn document_of(header: proto::Document) -> Result<(Document, usize), StateError> {
    let kind = match header.kind() {
        ProtoKind::StateFile => Kind::StateFile,
        ProtoKind::OperatorsFile => Kind::OperatorsFile,
        ProtoKind::Unknown => return Err(Malformed("a document of an unknown kind").into()),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let name = header.name;
    if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(is_name) {
        return Err(Malformed("a document's name").into());
    }
    let hash: [u8; 16] =
        header.hash[..].try_into().map_err(|_| Malformed("the hash of a document"))?;
    let len = usize::try_from(header.len).map_err(|_| StateError::TooLong)?;
    let text = (!header.withheld).then(Bytes::new);
    if header.withheld && len != 0 {
        return Err(Malformed("a withheld text with a length").into());
    }
    Ok((Document { kind, name, hash: u128::from_be_bytes(hash), text }, len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VERSION: StateVersion =
        StateVersion { session: Session { epoch: 5, sm_guid: Guid(1) }, number: 7 };

    fn documents(all: &[(Kind, &str, &[u8])]) -> Documents {
        let all = all.iter().map(|(kind, name, text)| Document::new(*kind, name, text.to_vec()));
        all.map(|document| (document.name.clone(), Arc::new(document))).collect()
    }

    fn hashes(documents: &Documents) -> BTreeMap<String, u128> {
        documents.values().map(|document| (document.name.clone(), document.hash)).collect()
    }

    fn decode(
        decoder: &mut Decoder,
        messages: impl Iterator<Item = proto::State>,
    ) -> Result<Option<(StateVersion, Documents)>, StateError> {
        let mut last = None;
        for message in messages {
            assert!(last.is_none(), "the end is last");
            last = decoder.handle(message)?;
        }
        Ok(last)
    }

    proptest! {
        #[test]
        fn what_is_sent_arrives_and_only_what_changed_is_sent(
            lens in prop::collection::vec(0_usize..3 * CHUNK_LEN, 1..5),
            changed in 0_usize..5,
        ) {
            let texts: Vec<Vec<u8>> =
                lens.iter().enumerate().map(|(at, len)| vec![at as u8; *len]).collect();
            let names = ["a", "b", "c", "d", "e"];
            let all: Vec<_> = texts
                .iter()
                .zip(names)
                .map(|(text, name)| (Kind::StateFile, name, &text[..]))
                .collect();
            let before = documents(&all);
            let mut decoder = Decoder::default();
            let full = Encoder::new(VERSION, &before, &BTreeMap::new(), false);
            let got = decode(&mut decoder, full).unwrap();
            prop_assert_eq!(got, Some((VERSION, before.clone())));

            let mut after = before.clone();
            let name = names[changed % lens.len()];
            let document = Document::new(Kind::StateFile, name, "other");
            after.insert(name.to_owned(), Arc::new(document));
            let next = StateVersion { number: 8, ..VERSION };
            let update: Vec<_> = Encoder::new(next, &after, &hashes(&before), false).collect();
            prop_assert_eq!(update.len(), 3, "header, text, end");
            let got = decode(&mut decoder, update.into_iter()).unwrap();
            prop_assert_eq!(got, Some((next, after)));
        }
    }

    #[test]
    fn texts_of_operators_files_are_sent_to_those_that_ask_only() {
        let mut all = documents(&[
            (Kind::StateFile, "guid2lid", b"0x1 1 1"),
            (Kind::OperatorsFile, "partition_config_file", b"Default=0x7fff:ALL=full;"),
        ]);
        let absent = Document::absent("root_guid_file");
        all.insert(absent.name.clone(), Arc::new(absent));
        let received = |texts| {
            let update = Encoder::new(VERSION, &all, &BTreeMap::new(), texts);
            decode(&mut Decoder::default(), update).unwrap().unwrap().1
        };
        assert_eq!(received(true), all);
        let without = received(false);
        assert_eq!(without["guid2lid"], all["guid2lid"]);
        let file = &without["partition_config_file"];
        assert_eq!((file.hash, &file.text), (all["partition_config_file"].hash, &None));
        assert!(!without["root_guid_file"].exists());
    }

    #[test]
    fn a_document_that_is_gone_is_forgotten() {
        let mut all = documents(&[(Kind::StateFile, "a", b"1"), (Kind::StateFile, "b", b"2")]);
        let mut decoder = Decoder::default();
        decode(&mut decoder, Encoder::new(VERSION, &all, &BTreeMap::new(), false)).unwrap();
        let held = hashes(&all);
        all.remove("a");
        let got = decode(&mut decoder, Encoder::new(VERSION, &all, &held, false)).unwrap();
        assert_eq!(got.unwrap().1.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_faulty_update_is_refused_and_leaves_nothing() {
        let all = documents(&[(Kind::StateFile, "a", b"12345")]);
        let messages: Vec<_> = Encoder::new(VERSION, &all, &BTreeMap::new(), false).collect();
        let spoil = |change: &dyn Fn(&mut Vec<proto::State>)| {
            let mut messages = messages.clone();
            change(&mut messages);
            let mut decoder = Decoder::default();
            let result = decode(&mut decoder, messages.into_iter());
            assert!(decoder.held.is_empty() && decoder.current.is_none());
            result.unwrap_err()
        };
        let header = |change: &dyn Fn(&mut proto::Document)| {
            spoil(&|messages: &mut Vec<proto::State>| {
                let Some(Message::Document(header)) = &mut messages[0].message else { panic!() };
                change(header);
            })
        };
        let text = |text: &'static [u8]| Some(Message::Text(Bytes::from_static(text)));
        assert_eq!(spoil(&|m| m[1].message = text(b"12344")), StateError::Hash("a".to_owned()));
        assert!(matches!(spoil(&|m| m[1].message = text(b"123456")), StateError::Malformed(_)));
        assert!(matches!(spoil(&|m| m[1].message = text(b"")), StateError::Malformed(_)));
        assert!(matches!(spoil(&|m| _ = m.remove(1)), StateError::Malformed(_)));
        assert_eq!(spoil(&|m| _ = m.drain(..2)), StateError::Missing("a".to_owned()));
        assert!(matches!(spoil(&|m| m[0].message = None), StateError::Malformed(_)));
        assert!(matches!(header(&|h| h.name = "../a".to_owned()), StateError::Malformed(_)));
        assert!(matches!(header(&|h| h.kind = 9), StateError::Malformed(_)));
        assert!(matches!(header(&|h| h.hash = Bytes::new()), StateError::Malformed(_)));
        assert_eq!(header(&|h| h.len = u64::MAX), StateError::TooLong);
        assert_eq!(header(&|h| h.len = DOCUMENT_LEN_MAX as u64 + 1), StateError::TooLong);
    }
}

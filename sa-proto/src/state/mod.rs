//! The state of a master besides the registry, as a standby that follows receives it: documents by
//! name.
//!
//! Files of the state directory (`guid2lid`, `guid2mkey`, `neighbors`) travel as they are on disk.
//! Of an operator's file a follower gets the hash, and the text if it asks for texts. [`Encoder`]
//! and [`Decoder`] turn documents into messages and back. Not here: who sends what to whom, and
//! what a standby does with it.

mod codec;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prost::bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::snapshot::Session;
pub use codec::{CHUNK_LEN, Decoder, Encoder, StateError};

/// Longest text of a document, bytes. At 40,000 ports `neighbors` has 10 MB, `guid2mkey` 2 MB and
/// `guid2lid` 1.5 MB.
pub const DOCUMENT_LEN_MAX: usize = 32 << 20;
/// Limit of all texts together, bytes.
pub const TEXTS_LEN_MAX: usize = 96 << 20;
/// Largest number of documents.
pub const DOCUMENTS_MAX: usize = 64;
/// Longest name of a document, bytes.
pub const NAME_LEN_MAX: usize = 64;

/// The version of a master's state. Ordered as sessions are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateVersion {
    /// The session in which it was published.
    pub session: Session,
    /// Its number; ascends as long as the master's process runs.
    pub number: u64,
}

impl fmt::Display for StateVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.session, self.number)
    }
}

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file of the state directory.
    StateFile,
    /// A file that an operator wrote, or the settings.
    OperatorsFile,
}

/// A document, or its hash alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// Its kind.
    pub kind: Kind,
    /// The name of the file in the state directory, or the key of `opensm.conf` that names an
    /// operator's file.
    pub name: String,
    /// Hash of the text; 0 if there is no such file.
    pub hash: u128,
    /// The text, unless it is withheld. Absent files have none.
    pub text: Option<Bytes>,
}

/// Shows no text: it may contain M_Keys.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.text.as_ref().map(Bytes::len);
        write!(f, "{:?} {} ({len:?} bytes)", self.kind, self.name)
    }
}

impl Document {
    /// A document with its text.
    pub fn new(kind: Kind, name: &str, text: impl Into<Bytes>) -> Self {
        let text = text.into();
        Self { kind, name: name.to_owned(), hash: hash_of(&text), text: Some(text) }
    }

    /// An operator's file that does not exist.
    pub fn absent(name: &str) -> Self {
        Self { kind: Kind::OperatorsFile, name: name.to_owned(), hash: 0, text: None }
    }

    /// Whether the file exists.
    pub fn exists(&self) -> bool {
        self.hash != 0
    }

    /// The length of the text, bytes.
    pub fn len(&self) -> usize {
        self.text.as_ref().map_or(0, Bytes::len)
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Documents by name.
pub type Documents = BTreeMap<String, Arc<Document>>;

/// The hash of a text; never 0.
fn hash_of(text: &[u8]) -> u128 {
    xxh3_128(text).max(1)
}

/// Names of the operators' files that differ between `ours` and `theirs`, ascending. A file of
/// which one side knows nothing counts as one that does not exist.
pub fn different_files(ours: &Documents, theirs: &Documents) -> Vec<String> {
    let hash = |documents: &Documents, name: &str| documents.get(name).map_or(0, |file| file.hash);
    let files = ours.values().chain(theirs.values());
    let files = files.filter(|file| file.kind == Kind::OperatorsFile);
    let mut names: Vec<String> = files
        .map(|file| file.name.clone())
        .filter(|name| hash(ours, name) != hash(theirs, name))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(all: &[(&str, Option<&'static str>)]) -> Documents {
        let all = all.iter().map(|(name, text)| match text {
            Some(text) => Document::new(Kind::OperatorsFile, name, *text),
            None => Document::absent(name),
        });
        all.map(|document| (document.name.clone(), Arc::new(document))).collect()
    }

    #[test]
    fn files_differ_if_their_texts_do_or_one_is_absent() {
        let ours = documents(&[("a", Some("1")), ("b", Some("1")), ("c", None), ("e", None)]);
        let theirs = documents(&[("a", Some("1")), ("b", Some("2")), ("c", None), ("d", Some(""))]);
        assert_eq!(different_files(&ours, &theirs), ["b", "d"]);
        assert_eq!(different_files(&theirs, &ours), ["b", "d"]);
        assert!(different_files(&ours, &ours).is_empty());
    }

    #[test]
    fn no_text_is_shown_in_a_log() {
        let keys = Document::new(Kind::StateFile, "guid2mkey", "0x1 0xdead");
        assert!(!format!("{keys:?}").contains("dead"), "{keys:?}");
    }
}

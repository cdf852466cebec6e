//! The state of this SM besides the registry, as standbys that follow get it: files of the state
//! directory, and operators' files.
//!
//! It is kept whether or not this SM is master; only a master's is sent. M_Keys are in it: it goes
//! to followers alone, and is neither logged nor shown.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sa_proto::state::{DOCUMENT_LEN_MAX, Document, Documents, Kind, TEXTS_LEN_MAX};
use tokio::sync::watch;

/// The documents that are published.
#[derive(Debug)]
pub struct StateBoard {
    state: Mutex<State>,
    /// Number of the state; ascends with each change.
    number: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    documents: Arc<Documents>,
    /// Documents that are longer than followers take.
    too_long: BTreeSet<String>,
    /// How often a document was too long.
    overflows: u64,
}

impl Default for StateBoard {
    fn default() -> Self {
        Self { state: Mutex::default(), number: watch::Sender::new(1) }
    }
}

impl StateBoard {
    /// A file of the state directory has this content.
    pub fn set_file(&self, name: &str, text: String) {
        let mut state = self.lock();
        let mut documents = Documents::clone(&state.documents);
        state.enter(&mut documents, Document::new(Kind::StateFile, name, text));
        self.replace(&mut state, documents);
    }

    /// Operators' files have this content; `None` for one that was refused: what was published
    /// before stays.
    pub fn set_operators_files(&self, files: Vec<(String, Option<Document>)>) {
        let mut state = self.lock();
        let mut documents = Documents::clone(&state.documents);
        let is_named = |name: &str| files.iter().any(|(named, _)| named == name);
        documents.retain(|name, document| document.kind == Kind::StateFile || is_named(name));
        for document in files.into_iter().filter_map(|(_, document)| document) {
            state.enter(&mut documents, document);
        }
        self.replace(&mut state, documents);
    }

    fn replace(&self, state: &mut State, documents: Documents) {
        state.too_long.retain(|name| documents.contains_key(name));
        if *state.documents != documents {
            state.documents = Arc::new(documents);
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Number of the state.
    pub fn number(&self) -> u64 {
        *self.number.borrow()
    }

    /// The documents, and their number.
    pub fn latest(&self) -> (u64, Arc<Documents>) {
        let state = self.lock();
        (self.number(), state.documents.clone())
    }

    /// Changes with the number.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }

    /// How often a document was longer than followers take.
    pub fn overflows(&self) -> u64 {
        self.lock().overflows
    }

    /// A warning while a document is longer than followers take.
    pub(super) fn warning(&self) -> Option<String> {
        let state = self.lock();
        let names: Vec<&str> = state.too_long.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| {
            format!(
                "too long to be copied by standbys ({} MiB each, {} MiB in all): {}",
                DOCUMENT_LEN_MAX >> 20,
                TEXTS_LEN_MAX >> 20,
                names.join(", ")
            )
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a document, without its text if it is too long.
    fn enter(&mut self, documents: &mut Documents, mut document: Document) {
        let others = documents.values().filter(|other| other.name != document.name);
        let len = others.map(|other| other.len()).sum::<usize>() + document.len();
        if document.len() > DOCUMENT_LEN_MAX || len > TEXTS_LEN_MAX {
            let known = documents.get(&document.name);
            if known.is_none_or(|known| known.hash != document.hash) {
                self.overflows += 1;
            }
            if self.too_long.insert(document.name.clone()) {
                tracing::warn!(
                    "{} has {} bytes, which is too long to send: standbys do not copy it",
                    document.name,
                    document.len()
                );
            }
            document.text = None;
        } else {
            self.too_long.remove(&document.name);
        }
        documents.insert(document.name.clone(), Arc::new(document));
    }
}

#[cfg(test)]
mod tests {
    use sa_proto::prost::bytes::Bytes;

    use super::*;

    fn file(name: &str, text: &'static str) -> (String, Option<Document>) {
        (name.to_owned(), Some(Document::new(Kind::OperatorsFile, name, text)))
    }

    #[test]
    fn the_number_grows_with_each_change_only() {
        let board = StateBoard::default();
        let first = board.number();
        board.set_file("guid2lid", "1".to_owned());
        board.set_file("guid2lid", "1".to_owned());
        assert_eq!(board.number(), first + 1);
        board.set_file("guid2lid", "2".to_owned());
        let (number, documents) = board.latest();
        assert_eq!((number, documents["guid2lid"].text.as_deref()), (first + 2, Some(&b"2"[..])));
    }

    #[test]
    fn a_refused_file_stays_as_it_was_and_one_that_is_not_named_any_more_goes() {
        let board = StateBoard::default();
        board.set_file("guid2lid", "1".to_owned());
        board.set_operators_files(vec![file("a", "1"), file("b", "1"), file("c", "1")]);
        board.set_operators_files(vec![file("a", "2"), ("b".to_owned(), None)]);
        let (_, documents) = board.latest();
        let texts: Vec<_> = documents.iter().map(|(name, d)| (&**name, d.text.clone())).collect();
        let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        assert_eq!(texts, [("a", text("2")), ("b", text("1")), ("guid2lid", text("1"))]);
    }

    #[test]
    fn a_document_that_is_too_long_is_counted_and_its_hash_alone_is_published() {
        let board = StateBoard::default();
        board.set_file("neighbors", "x".repeat(DOCUMENT_LEN_MAX + 1));
        board.set_file("neighbors", "x".repeat(DOCUMENT_LEN_MAX + 1));
        assert_eq!(board.overflows(), 1);
        let (_, documents) = board.latest();
        assert!(documents["neighbors"].exists() && documents["neighbors"].text.is_none());
        assert!(board.warning().unwrap().contains("neighbors"));
        board.set_file("neighbors", String::new());
        assert_eq!((board.warning(), board.overflows()), (None, 1));
    }
}

//! The state besides the registry: LIDs, M_Keys, links and operators' files, which the manager that
//! holds the fence keeps in etcd and the others copy.
//!
//! Not part of commits: no client waits for it. A master writes what changed at most once a second;
//! a standby looks once a second.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sa_proto::snapshot::Session;
use sa_proto::snapshot::encoding::Malformed;
use sa_proto::state::{Document, Documents, Kind, StateVersion};
use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};
use tracing::warn;

use super::layout::{
    Fence, Listed, PIECE_LEN, StateHead, one, pieces_of, put_piece, put_state, read_state,
};
use super::read::{ReadFailure, Reader};
use super::status::Written;
use super::task::{replace, until_answered};
use crate::node::{LIDS, M_KEYS, MasterState, NEIGHBOURS};
use crate::publish::StateBoard;
use crate::runtime::follow::Progress;

/// What a master does about a state that no one can read.
const REPLACED: &str = "this manager's take their place";

/// What the other parts of the process have of the state, and get.
pub(in crate::runtime) struct SharedState {
    board: Arc<StateBoard>,
    received: Arc<Progress>,
    /// Whether the texts of operators' files are kept, not only their hashes.
    keeps_texts: bool,
    is_read: Mutex<bool>,
    read: Condvar,
}

impl SharedState {
    /// This manager's state is on `board`; that of others goes to `received`.
    pub(in crate::runtime) fn new(
        board: Arc<StateBoard>,
        received: Arc<Progress>,
        keeps_texts: bool,
    ) -> Arc<Self> {
        let (is_read, read) = Default::default();
        Arc::new(Self { board, received, keeps_texts, is_read, read })
    }

    /// Waits until etcd was read for the first time, for this time at most; returns whether it was.
    pub(in crate::runtime) fn await_first(&self, limit: Duration) -> bool {
        let waited = self.read.wait_timeout_while(self.lock(), limit, |is_read| !*is_read);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether etcd was read.
    pub(super) fn was_read(&self) -> bool {
        *self.lock()
    }

    /// Passes on what was read; `None` if nothing is kept yet, or nothing changed.
    pub(super) fn received(&self, state: Option<(StateVersion, &Documents)>) {
        if let Some((version, documents)) = state {
            let (state, unreadable) = MasterState::read(version, documents);
            if unreadable > 0 {
                warn!("{unreadable} lines of the LIDs, M_Keys and links in etcd cannot be read");
            }
            self.received.receive_stored_state(state);
        }
        *self.lock() = true;
        self.read.notify_all();
    }

    /// This manager's state as it is kept.
    pub(super) fn documents(&self) -> (u64, Documents) {
        let (number, documents) = self.board.latest();
        let kept = documents.iter().map(|(name, document)| {
            let is_withheld = document.kind == Kind::OperatorsFile && !self.keeps_texts;
            let document = match is_withheld && document.text.is_some() {
                true => Arc::new(Document { text: None, ..Document::clone(document) }),
                false => document.clone(),
            };
            (name.clone(), document)
        });
        (number, kept.collect())
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state as it was read last.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// The value of its head; empty if there is none.
    head: Vec<u8>,
    /// The revision as of which it was read or written.
    as_of: i64,
    documents: Documents,
}

/// Adds to this manager's state the entries of `known` that contradict none of its own.
pub(super) fn add_known(documents: &mut Documents, known: &Documents) {
    let text = |documents: &Documents, name: &str| {
        let text = documents.get(name)?.text.as_ref()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    for name in [LIDS, M_KEYS, NEIGHBOURS] {
        let Some(known) = text(known, name) else { continue };
        let own = text(documents, name).unwrap_or_default();
        let all = match name {
            LIDS => {
                let (mut all, _) = LidTable::parse(&known);
                all.follow(&LidTable::parse(&own).0);
                all.render()
            }
            M_KEYS => {
                let (mut all, _) = MKeyTable::parse(&known);
                all.follow(&MKeyTable::parse(&own).0);
                all.render()
            }
            _ => {
                let (mut all, _) = Neighbours::parse(&known);
                all.follow(&Neighbours::parse(&own).0);
                all.render()
            }
        };
        documents.insert(name.to_owned(), Arc::new(Document::new(Kind::StateFile, name, all)));
    }
}

impl Reader {
    /// Reads the state if it is not `known`; returns its version if it was read.
    pub(super) async fn state(
        &self,
        known: &mut Known,
    ) -> Result<Option<StateVersion>, ReadFailure> {
        let response = self.client.range(one(self.keys.state())).await?;
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        known.as_of = revision;
        let Some(head) = response.kvs.first() else {
            // Nothing is kept, or not any more.
            *known = Known { as_of: revision, ..Known::default() };
            return Ok(None);
        };
        if head.value == known.head {
            return Ok(None);
        }
        let StateHead { version, documents: listed } = read_state(&head.value)?;
        let mut documents = Documents::new();
        for listed in listed {
            let text = match (listed.len, known.documents.get(&listed.name)) {
                (None, _) => None,
                (Some(_), Some(same)) if same.hash == listed.hash && same.text.is_some() => {
                    same.text.clone()
                }
                (Some(len), _) => Some(self.text(&listed, len, revision).await?),
            };
            let Listed { kind, name, hash, .. } = listed;
            documents.insert(name.clone(), Arc::new(Document { kind, name, hash, text }));
        }
        *known = Known { head: head.value.to_vec(), as_of: revision, documents };
        Ok(Some(version))
    }

    async fn text(
        &self,
        listed: &Listed,
        len: u64,
        revision: i64,
    ) -> Result<sa_proto::prost::bytes::Bytes, ReadFailure> {
        let count = pieces_of(len)?;
        let text = self.joined(self.keys.document(listed.hash), count, revision).await?;
        let document = Document::new(listed.kind, &listed.name, text);
        match document.text.filter(|_| document.hash == listed.hash) {
            Some(text) => Ok(text),
            None => Err(Malformed("a document differs from its hash").into()),
        }
    }
}

impl Known {
    pub(super) fn documents(&self) -> &Documents {
        &self.documents
    }
}

/// What a read of the state found, and what is known of it since.
pub(super) type StateRead = (Result<Option<StateVersion>, ReadFailure>, Known);

/// A state that was written.
pub(super) struct StateWritten {
    pub(super) version: StateVersion,
    documents: Documents,
    /// The revision in which it became valid.
    pub(super) revision: i64,
    /// Bytes of the texts written.
    pub(super) bytes: usize,
}

/// What the manager that holds the fence writes of its state, and when. What is kept is what was
/// read or written, and never what is still to be written: a later write would leave texts out.
pub(super) struct StateWriter {
    own: Arc<SharedState>,
    known: Known,
    /// Whether what others left was read since the fence was taken.
    is_read: bool,
    /// Whether entries of others are added: a manager that led before it could read what they left
    /// knows less than they did.
    adds: bool,
    /// The version that this manager wrote before it lost the fence.
    before: Option<StateVersion>,
    written: Option<StateVersion>,
}

impl StateWriter {
    pub(super) fn new(own: Arc<SharedState>, known: Known, before: Option<StateVersion>) -> Self {
        let adds = !own.was_read();
        Self { own, known, is_read: false, adds, before, written: None }
    }

    /// What is known, if what others left is to be read first.
    pub(super) fn to_read(&self) -> Option<Known> {
        (!self.is_read).then(|| self.known.clone())
    }

    /// The state was read, or not. Returns what is wrong with it.
    pub(super) fn record_read(&mut self, (read, known): StateRead) -> Option<String> {
        match read {
            Ok(version) => {
                // Of another manager, and later than what was passed on while standing by.
                self.adds |= version.is_some() && version != self.before;
                (self.is_read, self.known) = (true, known);
                None
            }
            Err(failure) => {
                tracing::debug!("cannot read the state in the store: {failure:?}");
                let damage = failure.damage(["the LIDs, M_Keys and links in etcd", REPLACED])?;
                if !failure.is_of_another_release() {
                    // No one can read it. All texts are written again.
                    tracing::warn!("{damage}");
                    self.is_read = true;
                    self.known = Known { as_of: known.as_of, ..Known::default() };
                    return None;
                }
                Some(damage)
            }
        }
    }

    /// The next write, in this session; `None` if everything is written.
    pub(super) fn to_write(&self, session: Session) -> Option<StateWrite> {
        let (number, mut documents) = self.own.documents();
        let version = StateVersion { session, number };
        if self.written == Some(version) {
            return None;
        }
        if self.adds {
            add_known(&mut documents, &self.known.documents);
        }
        let Known { as_of, documents: kept, .. } = self.known.clone();
        Some(StateWrite { version, documents, as_of, kept })
    }

    /// A write was made. Returns what is known since.
    pub(super) fn record_written(&mut self, written: StateWritten) -> Known {
        self.written = Some(written.version);
        // The head is read again by a standby.
        let StateWritten { revision: as_of, documents, .. } = written;
        self.known = Known { head: Vec::new(), as_of, documents };
        self.known.clone()
    }
}

/// A write of the state.
pub(super) struct StateWrite {
    version: StateVersion,
    documents: Documents,
    /// The revision as of which the state is known that it replaces.
    as_of: i64,
    /// Those whose texts are in the store.
    kept: Documents,
}

impl StateWrite {
    /// Writes the texts that are not kept yet, then the head that makes them valid. `None` if the
    /// fence is lost.
    pub(super) async fn make(self, reader: Reader, fence: Fence) -> Option<StateWritten> {
        let Self { version, documents, as_of, kept } = self;
        let mut bytes = 0;
        let has_text =
            |hash: u128| kept.values().any(|kept| kept.hash == hash && kept.text.is_some());
        for document in documents.values().filter(|document| !has_text(document.hash)) {
            let Some(text) = &document.text else { continue };
            for (at, piece) in text.chunks(PIECE_LEN).enumerate() {
                let key = reader.keys.document_piece(document.hash, at);
                let request = put_piece(&reader.keys, fence, key, text.slice_ref(piece));
                let response = until_answered(&reader, Written::State, &request).await;
                if !response.succeeded {
                    return None;
                }
                bytes += piece.len();
            }
        }
        let replacement =
            put_state(&reader.keys, fence, as_of, &StateHead::of(version, &documents));
        let revision = replace(&reader, Written::State, &replacement).await?;
        Some(StateWritten { version, documents, revision, bytes })
    }
}

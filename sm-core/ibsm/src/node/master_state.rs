//! The state of another master besides the registry, as a standby receives it.

use std::fmt;
use std::sync::Arc;

use sa_proto::state::{Document, Documents, Kind, StateVersion};

use sm_core::manage::lid::LidTable;
use sm_core::manage::mkey::{MKeyTable, Neighbours};

/// Names of the state files that a standby copies.
pub const LIDS: &str = "guid2lid";
/// See [`LIDS`].
pub const M_KEYS: &str = "guid2mkey";
/// See [`LIDS`].
pub const NEIGHBOURS: &str = "neighbors";

/// Name of the baseline, which a standby copies too. An empty one was removed by an operator.
pub const BASELINE: &str = "baseline";

/// A master's state as it was received.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterState {
    /// Its version.
    pub version: StateVersion,
    pub(super) lids: LidTable,
    pub(super) m_keys: MKeyTable,
    pub(super) neighbours: Neighbours,
    /// Its baseline; `None` if it never had one, or compares with a file.
    pub(super) baseline: Option<Arc<Document>>,
    /// Operators' files: their hashes, and their texts if they were asked for.
    pub files: Documents,
}

/// Shows no M_Keys.
impl fmt::Debug for MasterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}, {} LIDs", self.version, self.lids.len())
    }
}

impl MasterState {
    /// Its LIDs.
    pub fn lids(&self) -> &LidTable {
        &self.lids
    }

    /// Its links.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Reads the documents; also returns the number of lines that could not be read.
    pub fn read(version: StateVersion, documents: &Documents) -> (Self, usize) {
        let file =
            |name: &str| documents.get(name).filter(|document| document.kind == Kind::StateFile);
        let text = |name: &str| {
            let document = file(name);
            let text = document.and_then(|document| document.text.as_deref()).unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let (lids, rejected) = LidTable::parse(&text(LIDS));
        let (m_keys, no_keys) = MKeyTable::parse(&text(M_KEYS));
        let (neighbours, no_links) = Neighbours::parse(&text(NEIGHBOURS));
        let is_operators =
            |(_, document): &(&String, &Arc<Document>)| document.kind == Kind::OperatorsFile;
        let files = documents.iter().filter(is_operators);
        let files = files.map(|(name, document)| (name.clone(), document.clone())).collect();
        let baseline = file(BASELINE).filter(|document| document.text.is_some()).cloned();
        let state = Self { version, lids, m_keys, neighbours, baseline, files };
        (state, rejected.len() + no_keys + no_links)
    }
}

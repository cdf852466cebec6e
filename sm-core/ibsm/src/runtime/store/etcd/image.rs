//! The contents of the store as they were read and committed since.

use std::collections::VecDeque;
use std::sync::Arc;

use sa_proto::prost::bytes::Bytes;
use sa_proto::snapshot::encoding::Malformed;
use sa_proto::snapshot::{RegistryPlane, Session};
use sm_core::registry::{Changes, Outcome, OutcomeKey, Stamp, outcome};

use super::super::Stored;
use super::layout::{Head, Record, Tables, record_of_all};

/// Everything after the commit with number `last`. Rows are shared with those who got them.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    /// Number of the last commit; 0 if there was none.
    last: u64,
    plane: RegistryPlane,
    /// Outcomes of each record that has any, and the time of the last of them.
    outcomes: VecDeque<(u64, Bytes)>,
    stamp: Option<Stamp>,
    session: Session,
    /// Bytes of the tables in the store, and of the log after them.
    tables_len: usize,
    log_len: usize,
}

/// A commit that was made.
pub(super) struct Made {
    pub(super) changes: Arc<Changes>,
    pub(super) session: Session,
    /// Its size in the store.
    pub(super) len: usize,
    /// As [`outcome::encoding::encode`] writes them.
    pub(super) outcomes: Bytes,
}

impl Image {
    /// The image of tables as `head` describes them.
    pub(super) fn of_tables(head: Head, record: &[u8]) -> Result<Self, Malformed> {
        let mut image = Self { tables_len: record.len(), ..Self::default() };
        if head.number > 0 {
            image.apply(head.number, 0, super::layout::read_record(record)?)?;
        }
        Ok(image)
    }

    /// Applies the record of a commit, which has this size in the store.
    pub(super) fn apply(
        &mut self,
        number: u64,
        len: usize,
        record: Record,
    ) -> Result<(), Malformed> {
        let mut put = Vec::new();
        outcome::encoding::decode(&record.outcomes, &mut put)?;
        self.plane.apply(&record.rows);
        self.forget_outcomes(record.outcomes_since_s);
        self.keep_outcomes(&put, record.outcomes);
        self.end(number, len, record.session, record.stamp);
        Ok(())
    }

    /// Applies a commit that was made here.
    pub(super) fn note(&mut self, number: u64, made: Made) {
        let Made { changes, session, len, outcomes } = made;
        self.plane.apply(&changes.rows);
        self.forget_outcomes(changes.outcomes_since_s);
        self.keep_outcomes(&changes.outcomes_put, outcomes);
        self.end(number, len, session, changes.stamp);
    }

    fn forget_outcomes(&mut self, since_s: u64) {
        while self.outcomes.front().is_some_and(|(last_s, _)| *last_s < since_s) {
            self.outcomes.pop_front();
        }
    }

    fn keep_outcomes(&mut self, put: &[(OutcomeKey, Outcome)], bytes: Bytes) {
        let last_s = put.iter().map(|(_, outcome)| outcome.at_s).max();
        self.outcomes.extend(last_s.map(|last_s| (last_s, bytes)));
    }

    fn end(&mut self, number: u64, len: usize, session: Session, stamp: Option<Stamp>) {
        (self.last, self.session) = (number, session);
        self.stamp = stamp.or(self.stamp);
        self.log_len += len;
    }

    /// Number of the last commit.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether the log is long enough to be taken into the tables: it then is at least as long as
    /// they are, so that this at most doubles what is written.
    pub(super) fn is_log_long(&self, fold_len: usize) -> bool {
        self.log_len > fold_len.max(self.tables_len)
    }

    /// The tables to be written, from this image.
    pub(super) fn tables(&mut self) -> Tables {
        let outcomes: Vec<&[u8]> = self.outcomes.iter().map(|(_, bytes)| &bytes[..]).collect();
        let record = record_of_all(&self.plane, &outcomes, self.session, self.stamp);
        (self.tables_len, self.log_len) = (record.len(), 0);
        Tables::new(self.last, record)
    }

    /// The rows, without outcomes.
    pub(super) fn rows(&self) -> Stored {
        Stored {
            plane: self.plane.clone(),
            outcomes: Vec::new(),
            stamp: self.stamp,
            session: self.session,
            fresh: self.last == 0,
        }
    }

    /// Everything.
    pub(super) fn contents(&self) -> Result<Stored, Malformed> {
        let mut stored = self.rows();
        for (_, bytes) in &self.outcomes {
            outcome::encoding::decode(bytes, &mut stored.outcomes)?;
        }
        Ok(stored)
    }
}

//! A store whose failures a test chooses.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sa_proto::snapshot::Session;
use sm_core::registry::Changes;

use super::{Event, Store, StoreError};

/// When a commit fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Fault {
    /// Before anything is written.
    Before,
    /// When everything is.
    After,
}

/// What fails, shared by a test and its stores.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next_commit: Option<Fault>,
    full: bool,
    unreadable: bool,
    opened: u32,
    slow: bool,
}

impl Faults {
    /// Makes the next commit fail.
    pub(in super::super) fn fail_next(&self, fault: Fault) {
        self.state().next_commit = Some(fault);
    }

    /// Sets whether commits fail before anything is written.
    pub(in super::super) fn set_full(&self, is: bool) {
        self.state().full = is;
    }

    /// How often the store was opened.
    pub(in super::super) fn opened(&self) -> u32 {
        self.state().opened
    }

    /// Sets whether the store can no longer be opened.
    pub(in super::super) fn set_unreadable(&self, is: bool) {
        self.state().unreadable = is;
    }

    /// Sets whether the store withholds all news.
    pub(in super::super) fn set_slow(&self, is: bool) {
        self.state().slow = is;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store with faults.
pub(in super::super) struct FaultyStore {
    inner: Box<dyn Store>,
    faults: Faults,
    failed: Option<StoreError>,
}

impl FaultyStore {
    /// `inner`, which fails as `faults` says.
    pub(in super::super) fn new(inner: Box<dyn Store>, faults: &Faults) -> Self {
        Self { inner, faults: faults.clone(), failed: None }
    }
}

impl Store for FaultyStore {
    fn open(&mut self) {
        let mut state = self.faults.state();
        state.opened += 1;
        self.failed = state.unreadable.then(failure);
        drop(state);
        if self.failed.is_none() {
            self.inner.open();
        }
    }

    fn lead(&mut self, session: Option<Session>) {
        self.inner.lead(session);
    }

    fn note_alive(&mut self) {
        self.inner.note_alive();
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn submit(&mut self, changes: &Arc<Changes>, session: Session) {
        let mut state = self.faults.state();
        let fault = mem::take(&mut state.next_commit).or(state.full.then_some(Fault::Before));
        drop(state);
        if fault != Some(Fault::Before) {
            self.inner.submit(changes, session);
        }
        self.failed = fault.map(|_| failure());
    }

    fn poll(&mut self) -> Option<Event> {
        if self.faults.state().slow {
            return None;
        }
        match self.failed.take() {
            Some(failure) => {
                while self.inner.poll().is_some() {}
                Some(Event::Failed(failure))
            }
            None => self.inner.poll(),
        }
    }
}

fn failure() -> StoreError {
    StoreError::Io { path: "/nowhere".into(), source: Box::new(redb::Error::PreviousIo) }
}

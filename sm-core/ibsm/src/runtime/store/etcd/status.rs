//! What is known of the cluster, for `ibsmctl status` and metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After this time without an answer the cluster counts as out of reach.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// After this time without being written the state besides the registry counts as outdated.
const STATE_PATIENCE: Duration = Duration::from_secs(10);

/// Who may commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holder {
    /// No holder is known.
    #[default]
    Unknown,
    /// This manager.
    Us,
    /// Another one, described for people.
    Other(String),
}

/// What is written, apart from the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// A commit.
    Commit,
    /// The tables, in place of the log.
    Tables,
    /// The state besides the registry.
    State,
}

impl Written {
    fn name(self) -> &'static str {
        match self {
            Self::Commit => "a commit",
            Self::Tables => "tables in place of its log",
            Self::State => "LIDs, M_Keys and links",
        }
    }
}

/// State of the cluster as this manager sees it.
#[derive(Debug)]
pub(crate) struct EtcdStatus {
    endpoints: Vec<String>,
    state: Mutex<State>,
    pub(super) totals: Totals,
}

/// Totals since the start.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Requests without an answer.
    pub(crate) failures: AtomicU64,
    /// How often the right to commit was lost.
    pub(crate) fence_losses: AtomicU64,
    /// How often the tables were written.
    pub(crate) checkpoints: AtomicU64,
}

#[derive(Debug)]
struct State {
    answered: Option<Instant>,
    since: Instant,
    failure: Option<String>,
    holder: Holder,
    /// Since when a commit has been under way.
    committing: Option<Instant>,
    /// When everything was read last, by a manager that may not commit.
    read: Option<Instant>,
    /// Why the contents cannot be used; the same of the state besides the registry.
    damage: Option<String>,
    state_damage: Option<String>,
    /// Since when the state besides the registry has been waiting to be read or written.
    writing_state: Option<Instant>,
    /// Why etcd refused each kind of write, if it did last.
    refused: [Option<String>; 3],
}

/// A view of the state at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreView {
    /// The members.
    pub(crate) endpoints: Vec<String>,
    /// Whether the cluster answers.
    pub(crate) reachable: bool,
    /// Why not, or why a member did not answer last.
    pub(crate) failure: Option<String>,
    /// Who may commit.
    pub(crate) holder: Holder,
    /// For how long the commit under way has been waiting.
    pub(crate) waiting: Duration,
    /// How long ago everything was read, by a manager that may not commit.
    pub(crate) read: Option<Duration>,
    /// Why the contents cannot be used.
    pub(crate) damage: Option<String>,
    /// Why LIDs, M_Keys and links in etcd cannot be used, or are outdated; why its log grows.
    pub(crate) behind: [Option<String>; 2],
    /// Why etcd refuses the commit under way.
    pub(crate) refused: Option<String>,
    /// Requests without an answer; losses of the fence; checkpoints.
    pub(crate) totals: [u64; 3],
}

impl StoreView {
    /// Why a master's writes wait, if they do.
    pub(crate) fn warning(&self) -> Option<String> {
        let reason = match (&self.damage, self.reachable, &self.holder) {
            (Some(damage), ..) => damage.clone(),
            (None, false, _) => {
                format!("etcd is out of reach: {}", self.failure.as_deref().unwrap_or("no answer"))
            }
            (None, true, Holder::Us) => match &self.refused {
                Some(reason) => format!("etcd refuses to write them: {reason}"),
                None if self.waiting >= SILENCE_MAX => {
                    "etcd does not answer to a commit".to_owned()
                }
                None => return None,
            },
            (None, true, Holder::Unknown) => "etcd has not given the fence yet".to_owned(),
            (None, true, Holder::Other(other)) => {
                format!("another manager holds the fence in etcd: {other}")
            }
        };
        Some(format!("registrations are not acknowledged: {reason}"))
    }
}

impl fmt::Display for StoreView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd at {}", self.endpoints.join(", "))?;
        match &self.failure {
            None if self.reachable => write!(f, ": answers")?,
            None => write!(f, ": no answer yet")?,
            Some(failure) if self.reachable => write!(f, ": answers, but not {failure}")?,
            Some(failure) => write!(f, ": out of reach ({failure})")?,
        }
        match &self.holder {
            Holder::Us => write!(f, "; this manager holds the fence")?,
            Holder::Other(other) => write!(f, "; the fence is held by {other}")?,
            Holder::Unknown => {}
        }
        if let Some(read) = self.read.filter(|_| self.holder != Holder::Us) {
            write!(f, "; read {} ms ago", read.as_millis())?;
        }
        if self.waiting >= Duration::from_millis(100) {
            write!(f, "; a commit has been waiting for {} ms", self.waiting.as_millis())?;
        }
        Ok(())
    }
}

impl EtcdStatus {
    pub(super) fn new(endpoints: Vec<String>) -> Self {
        let state = State {
            answered: None,
            since: Instant::now(),
            failure: None,
            holder: Holder::Unknown,
            committing: None,
            read: None,
            damage: None,
            state_damage: None,
            writing_state: None,
            refused: Default::default(),
        };
        Self { endpoints, state: Mutex::new(state), totals: Totals::default() }
    }

    /// The endpoint with this number, modulo their count.
    pub(super) fn endpoint(&self, at: usize) -> &str {
        &self.endpoints[at % self.endpoints.len()]
    }

    pub(super) fn note_answer(&self) {
        let mut state = self.state();
        if state.failure.take().is_some() && !state.is_reachable() {
            tracing::info!("etcd answers again");
        }
        state.answered = Some(Instant::now());
    }

    /// Records that a member did not answer.
    pub(super) fn note_failure(&self, endpoint: &str, reason: &str) {
        self.totals.failures.fetch_add(1, Relaxed);
        let mut state = self.state();
        // Once for all members, as long as none answers.
        match state.failure {
            Some(_) => tracing::debug!("etcd: {endpoint}: {reason}"),
            None => tracing::warn!("etcd: {endpoint}: {reason}; asking the next member"),
        }
        state.failure = Some(format!("{endpoint}: {reason}"));
    }

    /// Records that everything was read, or why it cannot be used.
    pub(super) fn note_read(&self, damage: Option<String>) {
        let mut state = self.state();
        match &damage {
            Some(damage) if state.damage.as_ref() != Some(damage) => tracing::error!("{damage}"),
            Some(_) => {}
            None => state.read = Some(Instant::now()),
        }
        state.damage = damage;
    }

    pub(super) fn set_holder(&self, holder: Holder) {
        let mut state = self.state();
        if state.holder == holder {
            return;
        }
        match &holder {
            Holder::Us => tracing::info!("the store's fence is held: writes are accepted"),
            Holder::Other(other) => tracing::info!("the store's fence is held by {other}"),
            Holder::Unknown => {}
        }
        state.holder = holder;
    }

    /// Records that the state besides the registry was read, or why it cannot be used.
    pub(super) fn note_state_read(&self, damage: Option<String>) {
        let mut state = self.state();
        if let Some(damage) = damage.as_ref().filter(|&it| state.state_damage.as_ref() != Some(it))
        {
            tracing::error!("{damage}");
        }
        state.state_damage = damage;
    }

    /// The state besides the registry waits to be written, or was written.
    pub(super) fn set_writing_state(&self, is: bool) {
        let mut state = self.state();
        state.writing_state = is.then(|| state.writing_state.unwrap_or_else(Instant::now));
    }

    /// Records that etcd refused a write, or accepted it.
    pub(super) fn note_refused(&self, what: Written, reason: Option<&str>) {
        let mut state = self.state();
        let before = &mut state.refused[what as usize];
        if before.as_deref() == reason {
            return;
        }
        let what = what.name();
        match reason {
            Some(reason) => {
                tracing::error!("etcd refuses to write {what}: {reason}; repeating it each second");
            }
            None => tracing::info!("etcd has written {what}, which it refused before"),
        }
        *before = reason.map(str::to_owned);
    }

    /// The fence is given back, or lost: nothing is being written.
    pub(super) fn end_writes(&self) {
        let mut state = self.state();
        (state.committing, state.writing_state) = (None, None);
        state.refused = Default::default();
    }

    pub(super) fn set_committing(&self, is: bool) {
        self.state().committing = is.then(Instant::now);
    }

    /// The state now.
    pub(crate) fn view(&self) -> StoreView {
        let state = self.state();
        let Totals { failures, fence_losses, checkpoints } = &self.totals;
        StoreView {
            endpoints: self.endpoints.clone(),
            reachable: state.is_reachable(),
            failure: state.failure.clone(),
            holder: state.holder.clone(),
            read: state.read.map(|at| at.elapsed()),
            damage: state.damage.clone(),
            behind: [state.state_behind(), state.refused[Written::Tables as usize].clone()],
            refused: state.refused[Written::Commit as usize].clone(),
            waiting: state.committing.map_or(Duration::ZERO, |since| since.elapsed()),
            totals: [failures, fence_losses, checkpoints].map(|total| total.load(Relaxed)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why the state besides the registry cannot be used, or is outdated.
    fn state_behind(&self) -> Option<String> {
        let refused = self.refused[Written::State as usize].as_ref();
        let waits = self.writing_state.is_some_and(|since| since.elapsed() >= STATE_PATIENCE);
        let refused = refused.map(|reason| format!("etcd refuses to write them: {reason}"));
        let waits = waits.then(|| "etcd does not answer".to_owned());
        self.state_damage.clone().or(refused).or(waits)
    }

    fn is_reachable(&self) -> bool {
        // A standby asks every second, a master more often.
        self.answered.unwrap_or(self.since).elapsed() < SILENCE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_see_why_writes_wait() {
        let status = EtcdStatus::new(vec!["a:1".to_owned(), "b:1".to_owned()]);
        status.note_answer();
        let warning = status.view().warning().unwrap();
        assert!(warning.contains("not given the fence"), "{warning}");
        status.set_holder(Holder::Us);
        let view = status.view();
        assert_eq!(view.warning(), None);
        assert_eq!(view.to_string(), "etcd at a:1, b:1: answers; this manager holds the fence");
        status.note_refused(Written::Commit, Some("no space"));
        assert!(status.view().warning().unwrap().ends_with("etcd refuses to write them: no space"));
        status.note_refused(Written::Commit, None);
        status.note_refused(Written::State, Some("no space"));
        assert!(status.view().behind[0].as_ref().unwrap().ends_with("no space"));
        status.end_writes();
        assert_eq!(status.view().behind, [None, None]);
        status.note_failure("b:1", "no answer for 1 s");
        let view = status.view();
        assert!(view.to_string().contains("answers, but not b:1: no answer for 1 s"), "{view}");
        assert_eq!((view.warning(), view.totals[0]), (None, 1), "another member answers");
        status.set_holder(Holder::Other("epoch 5".to_owned()));
        assert!(status.view().warning().unwrap().ends_with("holds the fence in etcd: epoch 5"));
        status.note_read(Some("the store is damaged".to_owned()));
        assert!(status.view().warning().unwrap().ends_with("the store is damaged"));
        status.note_read(None);
        assert!(status.view().to_string().contains("; read "));
    }
}

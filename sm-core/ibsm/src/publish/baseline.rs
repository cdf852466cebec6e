//! The baseline: the topology that the fabric is compared with, where it came from, and the text
//! that keeps it. What differs from it is decided in `observe`; files are written by `runtime`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwapOption;
use ib_mad::netlist::{Net, NetError};
use sa_proto::proto::admin;

use super::Shared;
use crate::history::layout::net_of;
use crate::observe::ports::Ports;
use crate::observe::topology::Topology;

/// First word of the line that has the time at which a baseline was taken.
const TAKEN: &str = "# baseline of";

/// The topology that is expected.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// Where it came from.
    pub origin: BaselineOrigin,
    /// What is expected.
    pub topology: Arc<Topology>,
}

/// Where a baseline came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaselineOrigin {
    /// An operator took it by command: the topology of this time, milliseconds since 1970; 0 if
    /// that is not known.
    Command(u64),
    /// The file of `--expected-topology`.
    File(PathBuf),
}

/// Keeps the text of a baseline over restarts. Calls write files.
pub trait BaselineStore: Send + Sync {
    /// Replaces what is kept. Fails if it is not on disk afterwards.
    fn keep(&self, text: &str) -> io::Result<()>;

    /// Removes what is kept, if anything is.
    fn forget(&self) -> io::Result<()>;
}

impl Baseline {
    /// The topology of a time, milliseconds since 1970.
    pub fn taken(time_ms: u64, topology: Topology) -> Self {
        Self { origin: BaselineOrigin::Command(time_ms), topology: Arc::new(topology) }
    }

    /// What was kept: [`Self::text`].
    pub fn parse(name: &str, text: &str) -> Result<Self, NetError> {
        let time = text.lines().next().and_then(|line| line.strip_prefix(TAKEN));
        let time_ms = time.and_then(|time| time.trim().parse().ok()).unwrap_or(0);
        Ok(Self::taken(time_ms, Topology::of_net(&Net::parse(name, text)?)))
    }

    /// As ibnetdiscover prints it, after a comment with the time.
    pub fn text(&self) -> String {
        let net = net_of(&self.topology, &Ports::default()).to_string();
        match self.origin {
            BaselineOrigin::Command(time_ms) => format!("{TAKEN} {time_ms}\n{net}"),
            BaselineOrigin::File(_) => net,
        }
    }

    /// What it is, without its text.
    pub(super) fn summary(&self) -> admin::Baseline {
        let (source, file, taken_ms) = match &self.origin {
            BaselineOrigin::Command(time_ms) => ("command", String::new(), *time_ms),
            BaselineOrigin::File(path) => ("file", path.display().to_string(), 0),
        };
        let nodes = self.topology.nodes.len() as u64;
        let switches = self.topology.nodes.values().filter(|node| node.is_switch).count() as u64;
        admin::Baseline {
            source: source.to_owned(),
            file,
            taken_ms,
            switches,
            hosts: nodes - switches,
            links: self.topology.links.len() as u64,
            text: String::new(),
        }
    }
}

/// What is sent if there is no baseline.
pub(super) fn none() -> admin::Baseline {
    admin::Baseline { source: "none".to_owned(), ..admin::Baseline::default() }
}

/// The baseline in force, and where those that are taken are kept.
#[derive(Default)]
pub(super) struct BaselineBoard {
    current: ArcSwapOption<Baseline>,
    store: OnceLock<Arc<dyn BaselineStore>>,
    /// Held while one is taken or removed, so that the file is that in force.
    changing: Mutex<()>,
}

/// A baseline cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BaselineError {
    #[error(
        "ibsm was started with --expected-topology {}, which is the baseline while it is given: \
         change that file and restart ibsm, or restart ibsm without the option",
        .0.display()
    )]
    File(PathBuf),
    #[error("this SM keeps no baselines")]
    NoStore,
    #[error("the baseline cannot be written, and is as before: {0}")]
    Store(#[from] io::Error),
}

impl BaselineBoard {
    /// The one in force.
    pub(super) fn current(&self) -> Option<Arc<Baseline>> {
        self.current.load_full()
    }

    pub(super) fn set_store(&self, store: Arc<dyn BaselineStore>) {
        // Set once, at the start.
        let _ = self.store.set(store);
    }

    /// Fails if operators cannot change it.
    pub(super) fn check(&self) -> Result<&dyn BaselineStore, BaselineError> {
        if let Some(BaselineOrigin::File(path)) = self.current().map(|now| now.origin.clone()) {
            return Err(BaselineError::File(path));
        }
        self.store.get().map(|store| &**store).ok_or(BaselineError::NoStore)
    }

    /// What keeps baselines, and what keeps others from changing the one in force meanwhile.
    fn begin(&self) -> Result<(&dyn BaselineStore, MutexGuard<'_, ()>), BaselineError> {
        let turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((self.check()?, turn))
    }
}

impl Shared {
    /// Sets the baseline in force, without keeping it.
    pub(super) fn set_baseline(&self, baseline: Option<Baseline>) {
        let topology = baseline.as_ref().map(|baseline| baseline.topology.clone());
        self.baseline.current.store(baseline.map(Arc::new));
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).expect(topology);
        self.baseline_changed();
    }

    /// Keeps a baseline and puts it in force. Writes a file.
    pub(super) fn take_baseline(&self, baseline: Baseline) -> Result<(), BaselineError> {
        let (store, _turn) = self.baseline.begin()?;
        store.keep(&baseline.text())?;
        self.set_baseline(Some(baseline));
        Ok(())
    }

    /// Puts the baseline of another master in force, or none if the text is empty.
    pub(super) fn follow_baseline(&self, text: &[u8]) {
        let _turn = self.baseline.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(BaselineOrigin::File(_)) = self.baseline.current().map(|now| now.origin.clone())
        {
            return;
        }
        let text = String::from_utf8_lossy(text);
        let baseline = match text.is_empty() {
            true => None,
            false => match Baseline::parse("the master's baseline", &text) {
                Ok(baseline) => Some(baseline),
                Err(failure) => return tracing::warn!("{failure}: it is not in force here"),
            },
        };
        match &baseline {
            Some(Baseline { topology, .. }) => {
                let (nodes, links) = (topology.nodes.len(), topology.links.len());
                tracing::info!("following the master's baseline: {nodes} nodes, {links} links");
            }
            None if self.baseline.current().is_none() => return,
            None => tracing::info!("following the master: the baseline was removed"),
        }
        self.set_baseline(baseline);
    }

    /// Removes the baseline; returns whether there was one. Removes a file.
    pub(super) fn clear_baseline(&self) -> Result<bool, BaselineError> {
        let (store, _turn) = self.baseline.begin()?;
        store.forget()?;
        let was_set = self.baseline.current().is_some();
        if was_set {
            self.set_baseline(None);
        }
        Ok(was_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HostClock;
    use crate::observe::problem::testing::plane;
    use sa_proto::snapshot::{HistoryLimits, Snapshot};

    /// Keeps a text in memory, unless the disk is full.
    #[derive(Default)]
    struct Kept {
        text: Mutex<Option<String>>,
        is_full: bool,
    }

    impl BaselineStore for Kept {
        fn keep(&self, text: &str) -> io::Result<()> {
            if self.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *self.text.lock().unwrap() = Some(text.to_owned());
            Ok(())
        }
        fn forget(&self) -> io::Result<()> {
            *self.text.lock().unwrap() = None;
            Ok(())
        }
    }

    const LINKS: [(u64, u8, u64, u8); 2] = [(1, 1, 8, 1), (1, 9, 100, 1)];

    fn shared(kept: &Arc<Kept>) -> Shared {
        let clock = Arc::new(HostClock::open());
        let shared = Shared::new(Arc::new(Snapshot::empty()), HistoryLimits::default(), clock);
        shared.baseline.set_store(kept.clone());
        shared
    }

    fn baseline() -> Baseline {
        Baseline::taken(1_795_780_800_042, Topology::of(&plane(&LINKS, 0, 0)))
    }

    #[test]
    fn what_was_kept_is_what_was_taken() {
        // Regression: with the name of a host whose bytes are no text, or with a long one of the
        // operator's, the baseline could not be read: --quarantine kept nothing out.
        let names = ["\u{FFFD}".repeat(64), "long".repeat(25)];
        let mut topology = Topology::clone(&baseline().topology);
        for (node, name) in topology.nodes.values_mut().zip(names) {
            node.name = name;
        }
        let named = Baseline::taken(1, topology);
        let read = Baseline::parse("baseline", &named.text()).unwrap();
        assert_eq!(read.topology, named.topology);
        let kept = Arc::<Kept>::default();
        let shared = shared(&kept);
        shared.take_baseline(baseline()).unwrap();
        let text = kept.text.lock().unwrap().clone().unwrap();
        let read = Baseline::parse("baseline", &text).unwrap();
        assert_eq!(read.origin, BaselineOrigin::Command(1_795_780_800_042));
        assert_eq!(read.topology, baseline().topology);
        assert!(shared.clear_baseline().unwrap());
        assert!(kept.text.lock().unwrap().is_none() && shared.baseline.current().is_none());
        assert!(!shared.clear_baseline().unwrap());
    }

    #[test]
    fn that_of_a_master_is_followed_unless_a_file_is_given() {
        let shared = shared(&Arc::default());
        shared.follow_baseline(baseline().text().as_bytes());
        let now = shared.baseline.current().unwrap();
        assert_eq!(now.origin, BaselineOrigin::Command(1_795_780_800_042));
        assert_eq!(now.topology, baseline().topology);
        shared.follow_baseline(b"no net file");
        assert!(shared.baseline.current().is_some());
        shared.follow_baseline(b"");
        assert!(shared.baseline.current().is_none());
        let origin = BaselineOrigin::File("/etc/ibsm/expected.topo".into());
        shared.set_baseline(Some(Baseline { origin, ..baseline() }));
        shared.follow_baseline(b"");
        assert_eq!(shared.baseline.current().unwrap().summary().source, "file");
    }

    #[test]
    fn one_that_cannot_be_kept_is_not_in_force() {
        let kept = Arc::new(Kept { is_full: true, ..Kept::default() });
        let shared = shared(&kept);
        let failure = shared.take_baseline(baseline()).unwrap_err();
        assert!(matches!(failure, BaselineError::Store(_)) && shared.baseline.current().is_none());
    }

    #[test]
    fn the_file_of_the_command_line_prevails() {
        let kept = Arc::<Kept>::default();
        let shared = shared(&kept);
        let origin = BaselineOrigin::File("/etc/ibsm/expected.topo".into());
        shared.set_baseline(Some(Baseline { origin, ..baseline() }));
        for refused in [shared.take_baseline(baseline()), shared.clear_baseline().map(|_| ())] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("--expected-topology /etc/ibsm/expected.topo"), "{text}");
        }
        assert!(kept.text.lock().unwrap().is_none());
        assert_eq!(shared.baseline.current().unwrap().summary().source, "file");
    }
}

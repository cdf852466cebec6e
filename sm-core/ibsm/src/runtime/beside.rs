//! Threads beside the manager's own, each with a transport of its own, that drive a state machine
//! which sends general management packets (QP1): sweeps and answers to clients do not wait for
//! them.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, Packet, wait};
use sa_proto::snapshot::FabricPlane;
use tracing::{error, warn};

use super::attachment::{AttachError, Observer};
use crate::cli::Config;
use crate::publish::Observatory;

/// Packets received or sent at once.
pub(super) const BATCH: usize = 64;
/// Longest wait: nodes of a new snapshot and an order to end are noticed within this time.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How often the port is checked, and reopened if it is gone.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);

/// Pause after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// What such a thread drives.
pub(super) trait Task: Send + 'static {
    /// Name of the thread.
    const NAME: &'static str;
    /// What cannot be done without a port, as the log states it.
    const WITHOUT_PORT: &'static str;

    /// Opens the port.
    fn open(config: &Config) -> Result<Observer, AttachError>;

    /// Whether a port is needed at present; without, only [`follow`](Self::follow) is called.
    fn needs_port(&self) -> bool {
        true
    }

    /// Handles received packets and due work, and appends packets to send until there are
    /// [`BATCH`]. Returns when it is due again.
    fn exchange(
        &mut self,
        now: Instant,
        received: &[Packet],
        unsent: &mut Vec<Packet>,
    ) -> Option<Instant>;

    /// Takes over settings and nodes of the fabric. Called when there is nothing else to do.
    fn follow(&mut self, now: Instant);
}

/// The thread; it ends soon after this is dropped.
pub(super) struct BesideThread {
    end: Arc<AtomicBool>,
}

impl Drop for BesideThread {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
    }
}

/// Starts the thread of a task.
pub(super) fn start<T: Task>(config: &Config, task: T) -> io::Result<BesideThread> {
    let end = Arc::new(AtomicBool::new(false));
    let driver = Driver {
        config: config.clone(),
        task,
        end: end.clone(),
        port: None,
        upkeep_due: Instant::now(),
        trouble: String::new(),
        unsent: Vec::new(),
    };
    thread::Builder::new().name(T::NAME.to_owned()).spawn(move || driver.run_on())?;
    Ok(BesideThread { end })
}

struct Driver<T> {
    config: Config,
    task: T,
    end: Arc<AtomicBool>,
    port: Option<Observer>,
    upkeep_due: Instant,
    /// Why the port cannot be used; each reason is logged once.
    trouble: String,
    /// Packets that the transport has not accepted yet.
    unsent: Vec<Packet>,
}

impl<T: Task> Driver<T> {
    /// Runs until the end, also past a panic: what a packet breaks must not end the task for good.
    fn run_on(mut self) {
        while catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            error!("{}: a panic; continuing. Please report the lines before it", T::NAME);
            (self.port, self.unsent) = (None, Vec::new());
            thread::sleep(AFTER_PANIC);
        }
    }

    fn run(&mut self) {
        let mut incoming = vec![Packet::default(); BATCH];
        while !self.end.load(Relaxed) {
            let now = Instant::now();
            self.maintain(now);
            if let Err(failure) = self.turn(now, &mut incoming) {
                self.lose(&failure.to_string());
            }
        }
    }

    /// Opens the port, or reads its LIDs again.
    fn maintain(&mut self, now: Instant) {
        if !self.task.needs_port() {
            self.port = None;
            self.unsent.clear();
            self.upkeep_due = now;
            return;
        }
        if now < self.upkeep_due {
            return;
        }
        self.upkeep_due = now + UPKEEP_INTERVAL;
        let result = match &mut self.port {
            Some(port) => port.refresh(),
            None => T::open(&self.config).map(|port| {
                self.port = Some(port);
                self.trouble.clear();
            }),
        };
        if let Err(failure) = result {
            self.lose(&failure.to_string());
        }
    }

    fn lose(&mut self, trouble: &str) {
        if trouble != self.trouble {
            warn!("{}: {trouble}; retrying", T::WITHOUT_PORT);
            trouble.clone_into(&mut self.trouble);
        }
        self.port = None;
        self.unsent.clear();
    }

    fn turn(&mut self, now: Instant, incoming: &mut [Packet]) -> io::Result<()> {
        let Some(port) = &mut self.port else {
            thread::sleep(WAIT_MAX);
            if !self.task.needs_port() {
                self.task.follow(Instant::now());
            }
            return Ok(());
        };
        let received = port.receive(incoming)?;
        let due = self.task.exchange(now, &incoming[..received], &mut self.unsent);
        let sent = port.send(&self.unsent)?;
        self.unsent.drain(..sent);
        let is_blocked = !self.unsent.is_empty();
        if received > 0 || (sent > 0 && !is_blocked) {
            return Ok(());
        }
        self.task.follow(now);
        let left = due.map_or(WAIT_MAX, |due| due.saturating_duration_since(Instant::now()));
        let descriptor = self.port.as_ref().and_then(Observer::descriptor);
        let mut interests: Vec<Interest<'_>> =
            descriptor.into_iter().map(|fd| Interest::read_or_write(fd, is_blocked)).collect();
        wait(&mut interests, Some(left.min(WAIT_MAX)))?;
        Ok(())
    }
}

/// Notices a new fabric.
pub(super) struct FabricFollower {
    observatory: Observatory,
    /// The fabric whose nodes are in use.
    plane: Option<Arc<FabricPlane>>,
}

impl FabricFollower {
    pub(super) fn new(observatory: Observatory) -> Self {
        Self { observatory, plane: None }
    }

    /// The published fabric, if it is another one than before and has nodes.
    pub(super) fn changed(&mut self) -> Option<Arc<FabricPlane>> {
        let snapshot = self.observatory.snapshot();
        let plane = snapshot.fabric();
        let is_known = self.plane.as_ref().is_some_and(|known| Arc::ptr_eq(known, plane));
        if is_known || plane.nodes.is_empty() {
            return None;
        }
        self.plane = Some(plane.clone());
        self.plane.clone()
    }

    /// Makes the published fabric a new one.
    pub(super) fn forget(&mut self) {
        self.plane = None;
    }
}

//! The worker threads. Each continues after its transport or its responder failed.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ib_mad::transport::Transport;
use ib_mad::transport::capture::{Capture, CaptureFile};
use ib_mad::transport::ibsim::Ibsim;
use ib_mad::types::Guid;

use super::StartError;
use super::attachment::attach;
use super::pulse::{BEAT_INTERVAL, Pulse};
use crate::host::gate::{Gate, Gated};
use crate::host::options::Options;
use crate::host::placement;
use crate::host::sm_port::SmPort;
use crate::host::umad_port::{self, Opened, Opener};
use crate::query::redirect::Redirection;
use crate::serve::own_port::{Egress, OwnPort};
use crate::serve::responder::{Responder, ResponderConfig};
use crate::serve::spill::Spill;
use crate::serve::worker::{Worker, WorkerConfig};
use crate::sm::forward::Exchange;
use crate::sm::peers::Peers;
use crate::stats::Stats;
use crate::tables::cell::Reader;

/// How often an ibsim client looks whether its server is still there, and what its LID is.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait before attaching again.
const REATTACH_DELAY: Duration = Duration::from_secs(1);
/// Number of requests inherited from the previous process that are answered, newest ones.
const INHERITED_MAX: usize = 1024;
/// How long they wait for the snapshot on disk to be read.
const TABLES_PATIENCE: Duration = Duration::from_secs(1);

/// How often a worker that waits for its gate looks whether it is to stop.
const GATE_INTERVAL: Duration = Duration::from_millis(100);

/// Content of a transport's queue when its worker begins.
#[derive(Clone, Debug)]
pub(super) enum Queue {
    /// The queue is empty.
    Empty,
    /// Packets that the previous process had not read.
    Inherited,
    /// As `Inherited`, once the gate opens. Until then another process reads the queue.
    Shared(Arc<Gate>),
}

/// The workers.
pub(super) struct WorkerPool {
    pub(super) stop: Arc<AtomicBool>,
    pub(super) tables: Reader,
    pub(super) redirection: Redirection,
    pub(super) exchange: Arc<Exchange>,
    /// The port of the worker at the fabric, and its GUID.
    pub(super) own_port: Option<(Guid, Arc<OwnPort>)>,
    /// Other responders that take queries at the SM's port while its worker is behind.
    pub(super) spill: Option<Arc<Spill>>,
    /// The front doors of the managers that are followed.
    pub(super) doors: Peers,
    /// CPUs of the workers, in turn.
    pub(super) pin: Vec<usize>,
    pub(super) busy_poll: Duration,
    pub(super) echo: bool,
    /// The file of `--capture`.
    pub(super) capture: Option<Arc<CaptureFile>>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) workers: Vec<(String, Arc<Stats>)>,
    /// Show that the loops of the workers turn.
    pub(super) pulses: Vec<(String, Pulse)>,
}

impl WorkerPool {
    pub(super) fn start_umad(
        &mut self,
        (opened, mut opener): (Opened, Opener),
    ) -> Result<(), StartError> {
        let Opened { umad, is_inherited, .. } = opened;
        let gate = opener.sm_port().map(SmPort::gate).map(Arc::clone);
        let queue = match (&gate, is_inherited) {
            (Some(gate), _) => Queue::Shared(Arc::clone(gate)),
            (None, true) => Queue::Inherited,
            (None, false) => Queue::Empty,
        };
        let umad = Gated::new(umad, gate.clone());
        let reopen = move || Some(Gated::new(opener.reopen()?, gate.clone()));
        let mut upkeep = umad_port::upkeep();
        let upkeep = move |umad: &mut Gated<_>| upkeep(umad.inner_mut());
        self.start("umad".to_owned(), umad, self.own_egress(), queue, upkeep, reopen)
    }

    /// Role of the worker for the responder's own port.
    pub(super) fn own_egress(&self) -> Egress {
        self.own_port.as_ref().map_or(Egress::Back, |(_, port)| Egress::Owner(Arc::clone(port)))
    }

    pub(super) fn start_ibsim(&mut self, ibsim: Ibsim, options: Options) -> Result<(), StartError> {
        let upkeep = |ibsim: &mut Ibsim| ibsim.local_port().map(drop).map_err(io::Error::other);
        let reattach = move || match attach(&options, false) {
            Ok((ibsim, _)) => Some(ibsim),
            Err(error) => {
                tracing::debug!(%error, "cannot attach to the fabric again; retrying");
                None
            }
        };
        self.start("ibsim".to_owned(), ibsim, self.own_egress(), Queue::Empty, upkeep, reattach)
    }

    /// Starts a worker that runs until `stop` is set. `reopen` is tried once a second after the
    /// transport has failed.
    pub(super) fn start<T: Transport + 'static>(
        &mut self,
        name: String,
        transport: T,
        egress: Egress,
        queue: Queue,
        mut upkeep: impl FnMut(&mut T) -> io::Result<()> + Send + 'static,
        mut reopen: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Result<(), StartError> {
        let stats = Arc::new(Stats::default());
        self.workers.push((name.clone(), Arc::clone(&stats)));
        // Requesters at our own port were redirected there.
        let redirection = match egress {
            Egress::Owner(_) => Redirection::off(),
            Egress::Back | Egress::By(_) => self.redirection.clone(),
        };
        let config = ResponderConfig {
            redirection,
            own_port: self.own_port.as_ref().map(|(guid, _)| *guid),
            doors: self.doors.clone(),
            echo: self.echo,
            ..ResponderConfig::default()
        };
        let tables = self.tables.clone();
        let end = self.exchange.worker(self.threads.len());
        let responder = move || {
            Responder::new(tables.clone(), config.clone(), Arc::clone(&stats))
                .with_exchange(end.clone())
        };
        let capture = self.capture.clone();
        let transport = Capture::new(transport, capture.clone());
        let pulse = Pulse::default();
        self.pulses.push((name.clone(), pulse.clone()));
        let (of_loop, mut upkeep_due) = (pulse.clone(), Instant::now() + UPKEEP_INTERVAL);
        let mut upkeep = move |captured: &mut Capture<T>| {
            of_loop.beat();
            let now = Instant::now();
            if now < upkeep_due {
                return Ok(());
            }
            upkeep_due = now + UPKEEP_INTERVAL;
            upkeep(captured.inner_mut())
        };
        // Only the file of the SM's port is shared.
        let spill = self.spill.clone().filter(|_| matches!(queue, Queue::Shared(_)));
        let stop = Arc::clone(&self.stop);
        let mut begun = self.tables.clone();
        let thread_name = format!("ibsa-{name}");
        let cpu = self.pin.iter().cycle().nth(self.threads.len()).copied();
        let config = WorkerConfig { busy_poll: self.busy_poll, ..WorkerConfig::default() };
        let work = move || {
            if let Some(cpu) = cpu
                && let Err(error) = placement::keep_to(&[cpu])
            {
                tracing::warn!(
                    worker = name, cpu, %error,
                    "cannot pin the worker to its CPU; it runs unpinned"
                );
            }
            let worker = Worker::new(transport, responder(), config);
            let mut worker = worker.with_egress(egress).with_spill(spill);
            if let Queue::Shared(gate) = &queue {
                while !gate.is_open() && !stop.load(Relaxed) {
                    pulse.beat();
                    // An error shows again at once.
                    let _ = gate.wait(GATE_INTERVAL);
                }
            }
            if !matches!(queue, Queue::Empty) {
                // Waiting requests cannot be answered before there are tables.
                let until = Instant::now() + TABLES_PATIENCE;
                while begun.current().is_none() && Instant::now() < until && !stop.load(Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                // An error shows again at once.
                let _ = worker.take_over(INHERITED_MAX, Instant::now());
            }
            // It would keep its generation from being freed.
            drop(begun);
            while !stop.load(Relaxed) {
                pulse.beat();
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    worker.run(&stop, BEAT_INTERVAL, &mut upkeep)
                }));
                match ran {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => {
                        tracing::warn!(worker = name, %error, "transport failed; reopening it");
                        thread::sleep(REATTACH_DELAY);
                        if let Some(transport) = reopen() {
                            worker.replace_transport(Capture::new(transport, capture.clone()));
                        }
                    }
                    Err(_) => {
                        tracing::error!(
                            worker = name,
                            "worker panicked and was restarted; requests in progress are lost; \
                             please report this bug"
                        );
                        worker.responder().stats().abandon();
                        worker.replace_responder(responder());
                    }
                }
            }
        };
        self.threads.push(thread::Builder::new().name(thread_name).spawn(work)?);
        Ok(())
    }

    /// Stops all workers and waits for them.
    pub(super) fn stop_all(self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            // A worker that panics while it stops has reported this on standard error.
            let _ = thread.join();
        }
    }
}

/// A UDP socket does not fail in a way that reopening would repair.
pub(super) fn rebind_never<T>() -> Option<T> {
    None
}

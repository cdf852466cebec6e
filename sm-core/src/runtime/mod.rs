//! The one place with sockets, clocks, threads and files: a loop that waits for the fabric, the
//! front door, signals and deadlines, and lets the state machines decide.

mod log;
mod signals;
mod state;

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions, Role};
use ib_mad::transport::{Interest, wait};
use ib_mad::transport::{Packet, Transport};
use ib_mad::types::Qpn;
use tracing::{error, info, warn};

use crate::config::{Config, ConfigError, Options, file};
use crate::sweep::{Event, Phase, Report, Sweeper};
pub use log::LogError;
use signals::{Signal, Signals};
use state::StateDir;
pub use state::StateError;

/// Packets moved at once.
const BATCH: usize = 64;
/// Batches received before it is the senders' turn again.
const BATCHES_IN_A_ROW: usize = 8;
/// Answers that wait for the transport to take them; more are dropped, their askers ask again.
const ANSWERS_MAX: usize = 1024;
/// How often a long phase says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Sweeps with errors after which `--once` gives up.
const ONCE_ATTEMPTS: u32 = 5;

/// Why the program could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// The fabric.
    #[error(transparent)]
    Transport(#[from] IbsimError),
    /// The system.
    #[error("system: {0}")]
    Io(#[from] io::Error),
    /// The subnet manager found that it cannot do its work.
    #[error("{0}")]
    Fatal(String),
    /// `--once`, and the subnet did not come up.
    #[error("the subnet did not come up without errors in {ONCE_ATTEMPTS} sweeps; see above")]
    NotUp,
}

/// Runs `ibsm` to its end.
pub fn main(options: Options) -> ExitCode {
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ibsm: {failure}");
            error!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), RunError> {
    let template = options.create_config.clone();
    let (config, warnings) = Config::load(options)?;
    if let Some(path) = template {
        return Ok(file::write_template(&path, &config.settings)?);
    }
    log::init(&config.settings)?;
    for warning in warnings {
        warn!("{warning}");
    }
    let signals = Signals::take()?;
    let state = StateDir::open(&config.state_dir, config.settings.fsync_high_avail_files)?;
    let epoch = state.next_epoch()?;
    let transport = attach(&config, &state)?;
    let lids = state.lids()?;
    info!(
        "ibsm {} on node {}, epoch {epoch}, {} known LIDs",
        env!("CARGO_PKG_VERSION"),
        transport.node(),
        lids.len()
    );
    let seed = epoch as u32 ^ std::process::id().rotate_left(16);
    let sweeper = Sweeper::new(config.settings.clone(), lids, seed);
    let mut runtime = Runtime {
        config,
        signals,
        state,
        transport,
        sweeper,
        outgoing: Vec::with_capacity(BATCH),
        answers: Vec::new(),
        incoming: vec![Packet::default(); BATCH].into_boxed_slice(),
        progress: Instant::now(),
        failed_sweeps: 0,
        done: None,
    };
    let result = runtime.run();
    runtime.state.forget_client();
    result
}

fn attach(config: &Config, state: &StateDir) -> Result<Ibsim, RunError> {
    let mut options = IbsimOptions {
        role: Role::Manager { sa: true },
        stale_client: state.stale_client(),
        ..IbsimOptions::default()
    };
    if let Some(socket) = &config.socket {
        options.socket.clone_from(socket);
    }
    if config.node.is_some() {
        options.node.clone_from(&config.node);
    }
    let mut transport = Ibsim::connect(&options)?;
    state.keep_client(transport.client_id())?;
    transport.set_is_sm(true)?;
    Ok(transport)
}

struct Runtime {
    config: Config,
    signals: Signals,
    state: StateDir,
    transport: Ibsim,
    sweeper: Sweeper,
    /// Packets written and not yet taken by the transport.
    outgoing: Vec<Packet>,
    /// Answers to requests, ahead of our own requests.
    answers: Vec<Packet>,
    incoming: Box<[Packet]>,
    /// When progress is to be told next.
    progress: Instant,
    failed_sweeps: u32,
    done: Option<Result<(), RunError>>,
}

impl Runtime {
    fn run(&mut self) -> Result<(), RunError> {
        self.sweeper.request_heavy_sweep(Instant::now());
        loop {
            let received = self.receive()?;
            let now = Instant::now();
            self.sweeper.handle_timeout(now);
            let blocked = self.send(now)?;
            self.take_events();
            self.tell_progress(now);
            if let Some(result) = self.done.take() {
                return result;
            }
            if !received || blocked {
                self.wait(blocked)?;
            }
            while let Some(signal) = self.signals.next() {
                match signal {
                    Signal::HeavySweep => {
                        info!("HUP: heavy sweep");
                        self.sweeper.request_heavy_sweep(Instant::now());
                    }
                    Signal::Terminate => {
                        info!("terminated");
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes in what has arrived; whether there was anything.
    fn receive(&mut self) -> Result<bool, RunError> {
        for batch in 0..BATCHES_IN_A_ROW {
            let got = self.transport.receive(&mut self.incoming)?;
            let now = Instant::now();
            for packet in &mut self.incoming[..got] {
                let for_qp0 = packet.address.local_qpn == Qpn::SMI;
                if for_qp0 && self.sweeper.handle_packet(now, packet) {
                    if self.answers.len() < ANSWERS_MAX {
                        self.answers.push(packet.clone());
                    }
                }
            }
            if got < self.incoming.len() {
                return Ok(batch > 0 || got > 0);
            }
        }
        Ok(true)
    }

    /// Sends what is to be sent; whether the transport takes no more for now.
    fn send(&mut self, now: Instant) -> Result<bool, RunError> {
        loop {
            let room = BATCH - self.outgoing.len().min(BATCH);
            let answers = self.answers.len().min(room);
            self.outgoing.extend(self.answers.drain(..answers));
            while self.outgoing.len() < BATCH {
                let mut packet = Packet::default();
                if !self.sweeper.poll_transmit(now, &mut packet) {
                    break;
                }
                self.outgoing.push(packet);
            }
            if self.outgoing.is_empty() {
                return Ok(false);
            }
            let sent = self.transport.send(&self.outgoing)?;
            self.outgoing.drain(..sent);
            if !self.outgoing.is_empty() {
                return Ok(true);
            }
        }
    }

    fn wait(&mut self, blocked: bool) -> Result<(), RunError> {
        let now = Instant::now();
        let due = self.sweeper.poll_timeout();
        let timeout = due.map(|due| due.saturating_duration_since(now));
        let Some(fabric) = self.transport.descriptor() else { return Ok(()) };
        let mut interests =
            [Interest::read_or_write(fabric, blocked), Interest::read(self.signals.as_fd())];
        wait(&mut interests, timeout)?;
        Ok(())
    }

    fn take_events(&mut self) {
        while let Some(event) = self.sweeper.poll_event() {
            match event {
                Event::LidsChanged => {
                    if let Err(failure) = self.state.keep_lids(self.sweeper.lids()) {
                        error!("LIDs will not survive a restart: {failure}");
                    }
                }
                Event::Configured(report) => self.configured(&report),
                Event::StandingBy(_) => {}
                Event::Fatal(reason) => self.done = Some(Err(RunError::Fatal(reason))),
            }
        }
    }

    fn configured(&mut self, report: &Report) {
        if report.errors == 0 {
            self.failed_sweeps = 0;
            info!("SUBNET UP: {report}");
        } else {
            self.failed_sweeps += 1;
        }
        // The port's own LID may be new: the transport tells path bits by it.
        if let Err(failure) = self.transport.local_port() {
            warn!("the transport does not tell its port: {failure}");
        }
        if self.config.once {
            if report.errors == 0 {
                self.done = Some(Ok(()));
            } else if self.failed_sweeps >= ONCE_ATTEMPTS {
                self.done = Some(Err(RunError::NotUp));
            }
        }
    }

    fn tell_progress(&mut self, now: Instant) {
        if self.sweeper.phase() == Phase::Idle {
            self.progress = now + PROGRESS_INTERVAL;
        } else if now >= self.progress {
            self.progress = now + PROGRESS_INTERVAL;
            let (hosts, switches) = self.sweeper.fabric().counts();
            info!(
                "{}: {} requests to go; {switches} switches and {hosts} hosts known",
                self.sweeper.phase(),
                self.sweeper.outstanding()
            );
        }
    }
}

//! Runs a storm from its options to its report, with threads and the real clock.

use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use ib_mad::types::Lid;
use sa_proto::snapshot::Version;
use tokio::signal::unix::{SignalKind, signal};

use crate::cpu;
use crate::driver::{Destination, Outcome, drive};
use crate::fabric::Fabric;
use crate::histogram::Ledger;
use crate::link::{LinkError, is_closed, open};
use crate::options::{Command, Options, ProfileCommand, TransportKind};
use crate::plan::Plan;
use crate::ports::{ListError, Ports};
use crate::profile::{self, ProfileError, READY};
use crate::report::{Report, Setting, grouped, late, progress, short};
use crate::requester::{Requester, RequesterOptions};
use crate::scenario::Part;
use crate::scenario::pace::Dial;
use crate::scenario::ramp::Ramp;
use crate::source::{self, SourceError};
use crate::tally::{Log, Since, Tally};
use crate::workload::{Workload, WorkloadError};

/// Interval of progress lines and of the log.
const PROGRESS: Duration = Duration::from_secs(1);
/// Interval at which threads are polled.
const TICK: Duration = Duration::from_millis(20);
/// Interval at which their latencies are gathered.
const GATHER: Duration = Duration::from_millis(100);

/// Why a storm could not start, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No snapshot.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The list of ports cannot be read.
    #[error("{0}: {1}")]
    ReadList(PathBuf, io::Error),
    /// The list of ports is malformed.
    #[error("{0}: {1}")]
    List(PathBuf, ListError),
    /// A port without a LID to send from.
    #[error(
        "{0}: port {1} has no LID; with udp and ring each port sends under its own LID (write \
         'LID GID')"
    )]
    NoLid(PathBuf, String),
    /// A port without a GID to register.
    #[error("{0}: port {1} has no GID; registrations need both addresses (write 'LID GID')")]
    NoGid(PathBuf, String),
    /// Too few cores to pin threads to.
    #[error(
        "--pin {first}: core {missing} is not available to this process (available: {allowed}); \
         {threads} threads need one core each, starting at core {first}"
    )]
    NoCore {
        /// The first core.
        first: u16,
        /// How many are needed.
        threads: u32,
        /// The first unavailable core.
        missing: usize,
        /// The available cores.
        allowed: String,
    },
    /// A port lacks an address that the queries need.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// No socket.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The profile does not exist.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A file or thread could not be created.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |error| RunError::Io(what, error)
}

/// Prints the output of a command.
pub fn show(command: &Command) -> Result<ExitCode, RunError> {
    let Command::Profile { what } = command;
    let text = match what {
        ProfileCommand::List => profile::list(),
        ProfileCommand::Show { name } => {
            let ready = READY.iter().find(|ready| ready.name == name);
            ready.ok_or_else(|| ProfileError::Unknown(name.clone()))?.text.to_owned()
        }
    };
    io::stdout().write_all(text.as_bytes()).map_err(io_error("standard output"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a storm, prints its report and returns the exit status.
pub fn run(options: &Options, plan: &Plan) -> Result<ExitCode, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("runtime"))?;
    runtime.block_on(storm(options, plan))
}

async fn storm(options: &Options, plan: &Plan) -> Result<ExitCode, RunError> {
    check_cores(options)?;
    let known = read_fabric(options, plan).await?;
    let workload = Workload::draw(&plan.workload, known.ports, known.fabric.as_deref())?;
    let workload = Arc::new(workload);
    let mut links = Vec::new();
    for _ in 0..options.threads {
        links.push(open(options)?);
    }
    for target in &options.target {
        if is_closed(*target, &workload, random_seed()) {
            say(format_args!("no responder listens at {target} (connection refused); continuing"));
        }
    }
    let setting = setting(options, plan, &workload, known.version, &links[0].1);
    let mut ramp = plan.ramp().map(Ramp::new);
    let dial = Arc::new(Dial::default());
    if let Some(ramp) = &ramp {
        dial.set(ramp.rate());
    }

    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let threads = options.threads as usize;
    let storms: Vec<Storm> = links
        .into_iter()
        .enumerate()
        .map(|(number, (mut transport, destination))| {
            let part = Part { number, of: threads };
            let requester = Requester::new(RequesterOptions {
                scenario: plan.scenario(&workload, part, start, &dial),
                workload: Arc::clone(&workload),
                fabric: known.fabric.clone(),
                level: options.level(plan),
                show: options.show as usize,
                tid_seed: random_seed(),
            });
            let ledger = Arc::new(Ledger::default());
            let core = options.pin.map(|first| usize::from(first) + number);
            let thread = {
                let (ledger, stop) = (Arc::clone(&ledger), Arc::clone(&stop));
                std::thread::Builder::new().name(format!("storm-{number}")).spawn(move || {
                    if let Some(core) = core
                        && !cpu::pin(core)
                    {
                        say(format_args!(
                            "cannot pin thread {number} to core {core}; it runs unpinned"
                        ));
                    }
                    drive(requester, &mut *transport, &destination, start, &ledger, &stop)
                })
            };
            Ok(Storm { ledger, thread: thread.map_err(io_error("thread"))? })
        })
        .collect::<Result<_, RunError>>()?;

    let mut file;
    let mut serializer = V2DeflateSerializer::new();
    let log = match &options.hlog {
        Some(path) => {
            file = BufWriter::new(File::create(path).map_err(io_error("--hlog"))?);
            let log = Log::begin(&mut file, &mut serializer, SystemTime::now());
            Some(log.map_err(io_error("--hlog"))?)
        }
        None => None,
    };
    let mut watch = Watch {
        tally: Tally::new(storms.iter().map(|storm| Arc::clone(&storm.ledger)).collect()),
        start,
        log,
        verbose: !options.quiet,
        has_windows: plan.has_windows(),
        ramp: ramp.as_mut(),
        dial: &dial,
    };
    watch.until_over(&storms, &stop).await?;
    let timings = watch.tally.into_total();
    let outcomes: Vec<Outcome> = storms
        .into_iter()
        .map(|storm| storm.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect::<io::Result<_>>()
        .map_err(io_error("the storm was aborted"))?;
    let report = Report::new(setting, timings, outcomes, ramp, options.show as usize);
    let text = if options.json { report.to_json() + "\n" } else { report.to_string() };
    io::stdout().write_all(text.as_bytes()).map_err(io_error("standard output"))?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks that each thread can be pinned to its core.
fn check_cores(options: &Options) -> Result<(), RunError> {
    let (Some(first), Some(allowed)) = (options.pin, cpu::allowed()) else { return Ok(()) };
    let threads = options.threads;
    match cpu::missing(first.into(), threads as usize, &allowed) {
        Some(missing) => {
            let allowed = cpu::ranges(&allowed);
            Err(RunError::NoCore { first, threads, missing, allowed })
        }
        None => Ok(()),
    }
}

/// Prints a line on standard error. Ignores that it may be closed.
fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "ibstorm: {what}");
}

/// The ports, and the snapshot if one is used.
struct Known {
    ports: Ports,
    fabric: Option<Arc<Fabric>>,
    version: Option<Version>,
}

async fn read_fabric(options: &Options, plan: &Plan) -> Result<Known, RunError> {
    if let Some(path) = &options.ports {
        let text = std::fs::read_to_string(path)
            .map_err(|error| RunError::ReadList(path.clone(), error))?;
        let ports = Ports::parse(&text).map_err(|error| RunError::List(path.clone(), error))?;
        let without_lid = ports.ends().iter().position(|end| end.lid == Lid::NONE);
        if let (TransportKind::Udp | TransportKind::Ring, Some(index)) =
            (options.transport, without_lid)
        {
            return Err(RunError::NoLid(path.clone(), ports.name(index as u32)));
        }
        let without_gid = ports.ends().iter().position(|end| end.gid == ib_mad::types::Gid::ZERO);
        if let (true, Some(index)) = (plan.registers(), without_gid) {
            return Err(RunError::NoGid(path.clone(), ports.name(index as u32)));
        }
        return Ok(Known { ports, fabric: None, version: None });
    }
    let report = |failure: &str| {
        if !options.quiet {
            say(format_args!("waiting for a snapshot: {failure}"));
        }
        !options.quiet
    };
    let trust = options.trust().map_err(SourceError::from)?;
    let snapshot = source::fetch(&options.sm, &trust, options.wait, report).await?;
    let fabric = Fabric::new(Arc::clone(snapshot.fabric()));
    Ok(Known {
        ports: fabric.ports().clone(),
        fabric: Some(Arc::new(fabric)),
        version: Some(snapshot.version()),
    })
}

/// A running thread.
struct Storm {
    ledger: Arc<Ledger>,
    thread: JoinHandle<io::Result<Outcome>>,
}

/// Monitors the threads: progress lines, the log, the rate of a ramp.
struct Watch<'a> {
    tally: Tally,
    start: Instant,
    log: Option<Log<'a, BufWriter<File>>>,
    verbose: bool,
    /// See [`Plan::has_windows`].
    has_windows: bool,
    ramp: Option<&'a mut Ramp>,
    dial: &'a Dial,
}

impl Watch<'_> {
    /// Waits for the threads; prints progress, sets the rate of a ramp, and stops the threads on
    /// Ctrl-C and at the end of a ramp.
    async fn until_over(&mut self, storms: &[Storm], stop: &AtomicBool) -> Result<(), RunError> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("signals"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(io_error("signals"))?;
        let mut poll = tokio::time::interval(TICK);
        let mut interval = Since { at: self.start, counts: self.tally.counts() };
        let mut gathered = self.start;
        let mut turned = self.start;
        let mut step: Option<Since> = None;
        while !storms.iter().all(|storm| storm.thread.is_finished()) {
            tokio::select! {
                _ = poll.tick() => {}
                _ = interrupt.recv() => stop.store(true, Ordering::Relaxed),
                _ = terminate.recv() => stop.store(true, Ordering::Relaxed),
            }
            let now = Instant::now();
            if now - gathered >= GATHER {
                gathered = now;
                self.tally.gather();
            }
            if now - interval.at >= PROGRESS {
                interval = self.end_interval(now, &interval)?;
            }
            let Some(ramp) = &mut self.ramp else { continue };
            let options = *ramp.options();
            match &step {
                None if now - turned >= options.settle => {
                    self.tally.gather();
                    self.tally.begin_step();
                    step = Some(Since { at: now, counts: self.tally.counts() });
                }
                Some(since) if now - since.at >= options.step => {
                    self.tally.gather();
                    let measured = self.tally.step(&since.counts, now - since.at);
                    (step, turned) = (None, now);
                    match ramp.handle_step(measured) {
                        Some(rate) => self.dial.set(rate),
                        None => stop.store(true, Ordering::Relaxed),
                    }
                }
                _ => {}
            }
        }
        self.tally.gather();
        self.end_interval(Instant::now(), &interval)?;
        if self.verbose && io::stderr().is_terminal() {
            let _ = writeln!(io::stderr());
        }
        Ok(())
    }

    /// Prints an interval and writes it to the log.
    fn end_interval(&mut self, now: Instant, since: &Since) -> Result<Since, RunError> {
        let (began, length) = (since.at - self.start, now - since.at);
        let counts = self.tally.counts();
        // The shorter interval at the end is logged, but not printed.
        if self.verbose && length >= PROGRESS {
            let interval = self.tally.interval();
            let mut line = progress(now - self.start, length, &since.counts, &counts, interval);
            if let Some(lag) = late(interval).filter(|_| !self.has_windows) {
                line += &format!("   sent late by {}", short(lag));
            }
            if let Some(ramp) = &self.ramp {
                line += &format!("   at {}/s", grouped(ramp.rate().round() as u64));
            }
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "{line}");
        }
        if let Some(log) = &mut self.log {
            log.write(began, length, self.tally.interval()).map_err(io_error("--hlog"))?;
        }
        self.tally.end_interval();
        Ok(Since { at: now, counts })
    }
}

/// A seed that differs with every call and run: the standard library seeds its hashers randomly.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn setting(
    options: &Options,
    plan: &Plan,
    workload: &Workload,
    version: Option<Version>,
    destination: &Destination,
) -> Setting {
    let to = match destination {
        Destination::Peers(peers) if peers.is_empty() => "a ring".to_owned(),
        Destination::Peers(peers) => {
            peers.iter().map(|peer| peer.to_string()).collect::<Vec<_>>().join(", ")
        }
        Destination::Fabric { address, .. } => format!("LID {} over ibsim", address.lid),
    };
    let threads = match options.threads {
        1 => "one thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let check = match (options.level(plan), version) {
        (crate::check::Level::Path, Some(version)) => match plan.workload.sample {
            1.0 => format!("answers checked against snapshot {version}"),
            sample => format!("{:.0} % of answers checked against {version}", sample * 100.0),
        },
        (crate::check::Level::Status, _) => "answers not checked".to_owned(),
        _ => "answers checked against the queries".to_owned(),
    };
    Setting {
        profile: options.profile.clone(),
        model: plan.name,
        seed: plan.workload.seed,
        threads: options.threads,
        offered: plan.offered(),
        has_windows: plan.has_windows(),
        to,
        query: plan.query(),
        load: format!("{}, {threads}", plan.load()),
        ports: format!(
            "{} ports, {} pairs by seed {}",
            grouped(workload.ports().len() as u64),
            grouped(workload.len() as u64),
            plan.workload.seed
        ),
        check,
    }
}

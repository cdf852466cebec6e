//! A storm from its options to its report: sockets, threads and the clock on the wall.

use std::hash::{BuildHasher, Hasher};
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ib_mad::transport::capture::Capture;
use ib_mad::transport::ibsim::{Ibsim, IbsimError, IbsimOptions};
use ib_mad::transport::udp::{Udp, UdpOptions, encode};
use ib_mad::transport::{Address, Packet, Transport};
use ib_mad::types::Lid;
use sa_proto::snapshot::Version;
use tokio::signal::unix::{SignalKind, signal};

use crate::driver::{Destination, Outcome, drive};
use crate::fabric::Fabric;
use crate::histogram::{Counts, Entry, Ledger};
use crate::options::{Options, Redirects, TransportKind};
use crate::pace::{Load, Pace};
use crate::ports::{ListError, Ports};
use crate::report::{Report, Setting, grouped, progress};
use crate::requester::{Requester, RequesterOptions};
use crate::source::{self, SourceError};
use crate::workload::{Workload, WorkloadError, WorkloadOptions};

/// Longest capture file.
const CAPTURE_MAX: u64 = 100_000_000;
/// How long to wait for a target to refuse.
const PROBE_PATIENCE: Duration = Duration::from_millis(200);
/// Between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(1);

/// Why a storm could not begin, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No snapshot.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A list of ports that could not be read.
    #[error("{0}: {1}")]
    ReadList(PathBuf, io::Error),
    /// A list of ports that is none.
    #[error("{0}: {1}")]
    List(PathBuf, ListError),
    /// A requester that a responder could not know.
    #[error(
        "{0}: port {1} has a GID only; over udp each port asks for itself and needs its LID too \
         (write 'LID GID')"
    )]
    NoLid(PathBuf, String),
    /// Ports that cannot be asked about.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// No simulator, or not that node.
    #[error(transparent)]
    Ibsim(#[from] IbsimError),
    /// The port does not know an SA.
    #[error(
        "the port of {0} has no MasterSMLID; start ibsm and wait for SUBNET UP, or set --sa-lid"
    )]
    NoSa(String),
    /// A socket, a file or a thread.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |error| RunError::Io(what, error)
}

/// Runs a storm, prints its report and says how to exit.
pub fn run(options: &Options) -> Result<ExitCode, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("runtime"))?;
    runtime.block_on(storm(options))
}

async fn storm(options: &Options) -> Result<ExitCode, RunError> {
    let known = read_fabric(options).await?;
    let workload = WorkloadOptions {
        kind: options.by,
        pairs: options.pairs as usize,
        seed: options.seed,
        service_id: options.service_id,
        pkey: options.pkey,
    };
    let workload = Workload::draw(&workload, known.ports, known.fabric.as_deref())?;
    let workload = Arc::new(workload);
    let mut links = Vec::new();
    for _ in 0..options.threads {
        links.push(open(options)?);
    }
    for target in &options.target {
        if is_closed(*target, &workload) {
            say(format_args!("nobody listens at {target} (connection refused); going on"));
        }
    }
    let setting = setting(options, &workload, known.version, &links[0].1);

    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let threads = options.threads as usize;
    let storms: Vec<Storm> = links
        .into_iter()
        .enumerate()
        .map(|(number, (mut transport, destination))| {
            let load = share_of_load(options.load(), number, threads);
            let queries = options.queries.map(|all| share(all, number, threads));
            let requester = RequesterOptions {
                workload: Arc::clone(&workload),
                fabric: known.fabric.clone(),
                level: options.level(),
                timeout: options.timeout,
                retries: options.retries,
                load,
                show: options.show as usize,
                first_pair: number * workload.len() / threads,
                tid_seed: random_seed(),
            };
            let pace = Pace::new(load, start, options.duration(), queries);
            let requester = Requester::new(requester, pace);
            let ledger = Arc::new(Ledger::default());
            let thread = {
                let (ledger, stop) = (Arc::clone(&ledger), Arc::clone(&stop));
                std::thread::Builder::new().name(format!("storm-{number}")).spawn(move || {
                    drive(requester, &mut *transport, &destination, start, &ledger, &stop)
                })
            };
            Ok(Storm { ledger, thread: thread.map_err(io_error("thread"))? })
        })
        .collect::<Result<_, RunError>>()?;

    watch(&storms, start, &stop, !options.quiet).await?;
    let outcomes: Vec<Outcome> = storms
        .into_iter()
        .map(|storm| storm.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        .collect::<io::Result<_>>()
        .map_err(io_error("the storm broke off"))?;
    let report = Report::new(setting, outcomes, options.show as usize);
    let text = if options.json { report.to_json() + "\n" } else { report.to_string() };
    io::stdout().write_all(text.as_bytes()).map_err(io_error("standard output"))?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tells the operator. Whoever closed standard error does not want to be told.
fn say(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "ibstorm: {what}");
}

/// Whether the far end says that nobody listens at an address. Asks one query from a connected
/// socket, which unlike the storm's hears of refusals.
fn is_closed(target: SocketAddr, workload: &Workload) -> bool {
    let probe = || {
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.connect(target)?;
        socket.set_read_timeout(Some(PROBE_PATIENCE))?;
        let mut packet = Packet::default();
        let pair = workload.pair(0);
        workload.write_request(pair, random_seed(), &mut packet.mad);
        packet.address.lid = workload.ports().get(pair.source).lid;
        let mut datagram = encode(&packet.address).to_vec();
        datagram.extend_from_slice(&packet.mad);
        socket.send(&datagram)?;
        socket.recv(&mut datagram)
    };
    probe().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What is known of the fabric.
struct Known {
    ports: Ports,
    fabric: Option<Arc<Fabric>>,
    version: Option<Version>,
}

async fn read_fabric(options: &Options) -> Result<Known, RunError> {
    if let Some(path) = &options.ports {
        let text = std::fs::read_to_string(path)
            .map_err(|error| RunError::ReadList(path.clone(), error))?;
        let ports = Ports::parse(&text).map_err(|error| RunError::List(path.clone(), error))?;
        let without_lid = ports.ends().iter().position(|end| end.lid == Lid::NONE);
        if let (TransportKind::Udp, Some(index)) = (options.transport, without_lid) {
            return Err(RunError::NoLid(path.clone(), ports.name(index as u32)));
        }
        return Ok(Known { ports, fabric: None, version: None });
    }
    let tell = |failure: &str| {
        if !options.quiet {
            say(format_args!("waiting for a snapshot: {failure}"));
        }
    };
    let trust = options.trust().map_err(SourceError::from)?;
    let snapshot = source::fetch(&options.sm, &trust, options.wait, tell).await?;
    let fabric = Fabric::new(Arc::clone(snapshot.fabric()));
    Ok(Known {
        ports: fabric.ports().clone(),
        fabric: Some(Arc::new(fabric)),
        version: Some(snapshot.version()),
    })
}

type Link = (Box<dyn Transport>, Destination);

/// Opens one thread's socket.
fn open(options: &Options) -> Result<Link, RunError> {
    match options.transport {
        TransportKind::Udp => {
            // Who asks responders on this machine only need not be reached from others.
            let any = match options.target.first().map(SocketAddr::ip) {
                Some(ip) if ip.is_loopback() => ip,
                Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
                _ => Ipv4Addr::UNSPECIFIED.into(),
            };
            let udp = UdpOptions::new(SocketAddr::new(any, 0));
            let udp = Udp::bind(&UdpOptions { trains: !options.no_trains, ..udp });
            let udp = udp.map_err(io_error("UDP socket"))?;
            Ok((Box::new(udp), Destination::Peers(options.target.clone())))
        }
        TransportKind::Ibsim => {
            let defaults = IbsimOptions::default();
            // An empty environment variable is one that is not set.
            let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            let mut ibsim = Ibsim::connect(&IbsimOptions {
                socket: given(&options.socket).unwrap_or(defaults.socket),
                node: given(&options.node),
                ..IbsimOptions::default()
            })?;
            let port = ibsim.local_port()?;
            let lid = options.sa_lid.map_or(port.sm_lid, Lid);
            if !lid.is_unicast() {
                return Err(RunError::NoSa(ibsim.node().to_owned()));
            }
            let address = Address { lid, sl: port.sm_sl, ..Address::default() };
            let follow = (options.redirects == Redirects::Follow).then_some(options.timeout);
            let destination = Destination::Fabric { address, follow };
            let Some(path) = &options.capture else { return Ok((Box::new(ibsim), destination)) };
            let capture = Capture::create(ibsim, path, CAPTURE_MAX);
            let mut capture = capture.map_err(io_error("capture file"))?;
            capture.set_local_lid(port.lid);
            Ok((Box::new(capture), destination))
        }
    }
}

/// A running thread.
struct Storm {
    ledger: Arc<Ledger>,
    thread: JoinHandle<io::Result<Outcome>>,
}

/// Waits for the threads; tells what they do, and stops them on Ctrl-C.
async fn watch(
    storms: &[Storm],
    start: Instant,
    stop: &AtomicBool,
    tell: bool,
) -> Result<(), RunError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("signals"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(io_error("signals"))?;
    let mut poll = tokio::time::interval(Duration::from_millis(20));
    let (mut before, mut told) = (Counts::default(), start);
    while !storms.iter().all(|storm| storm.thread.is_finished()) {
        tokio::select! {
            _ = poll.tick() => {}
            _ = interrupt.recv() => stop.store(true, Ordering::Relaxed),
            _ = terminate.recv() => stop.store(true, Ordering::Relaxed),
        }
        let now = Instant::now();
        let interval = now - told;
        if tell && interval >= PROGRESS {
            let mut entry = Entry::default();
            storms.iter().for_each(|storm| storm.ledger.take_into(&mut entry));
            let line = progress(now - start, interval, &before, &entry);
            // Whoever closed standard error does not want to be told.
            let _ = writeln!(io::stderr(), "{line}");
            (before, told) = (entry.counts, now);
        }
    }
    if tell && io::stderr().is_terminal() {
        let _ = writeln!(io::stderr());
    }
    Ok(())
}

/// A thread's part of the load: never nothing of a closed loop.
fn share_of_load(load: Load, number: usize, threads: usize) -> Load {
    match load {
        Load::Closed(all) => Load::Closed(share(all as u64, number, threads).max(1) as usize),
        Load::Open(rate) => Load::Open(rate / threads as f64),
    }
}

/// Differs with every call and every run: the standard library seeds its hashers at random.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// One of `threads` nearly equal parts of `all`.
fn share(all: u64, number: usize, threads: usize) -> u64 {
    let (number, threads) = (number as u64, threads as u64);
    all / threads + u64::from(number < all % threads)
}

fn setting(
    options: &Options,
    workload: &Workload,
    version: Option<Version>,
    destination: &Destination,
) -> Setting {
    let to = match destination {
        Destination::Peers(peers) => {
            peers.iter().map(|peer| peer.to_string()).collect::<Vec<_>>().join(", ")
        }
        Destination::Fabric { address, .. } => format!("LID {} over ibsim", address.lid),
    };
    let load = match options.load() {
        Load::Closed(concurrency) => format!("closed loop of {}", grouped(concurrency as u64)),
        Load::Open(rate) => format!("open loop of {} a second", grouped(rate.round() as u64)),
    };
    let threads = match options.threads {
        1 => "one thread".to_owned(),
        threads => format!("{threads} threads"),
    };
    let check = match (options.level(), version) {
        (crate::check::Level::Path, Some(version)) => {
            format!("answers checked against snapshot {version}")
        }
        (crate::check::Level::Status, _) => "answers not checked".to_owned(),
        _ => "answers checked against the queries".to_owned(),
    };
    Setting {
        to,
        query: format!("PathRecord by {}", options.by),
        load: format!("{load}, {threads}"),
        ports: format!(
            "{} ports, {} pairs by seed {}",
            grouped(workload.ports().len() as u64),
            grouped(workload.len() as u64),
            options.seed
        ),
        check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_is_told_from_a_silent_one() {
        let ports = Ports::parse("1 a\n2 b\n").unwrap();
        let options = WorkloadOptions {
            kind: crate::workload::Kind::Lid,
            pairs: 1,
            seed: 1,
            service_id: 0,
            pkey: ib_mad::types::PKey::DEFAULT_FULL,
        };
        let workload = Workload::draw(&options, ports, None).unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!is_closed(silent.local_addr().unwrap(), &workload));
        // Port 1 is tcpmux's, which nobody has run by UDP.
        assert!(is_closed("127.0.0.1:1".parse().unwrap(), &workload));
    }

    #[test]
    fn threads_share_everything_and_nothing_is_lost() {
        for (all, threads) in [(10, 3), (2, 4), (0, 2), (1_000_001, 7)] {
            let sum: u64 = (0..threads).map(|number| share(all, number, threads)).sum();
            assert_eq!(sum, all);
        }
        assert_eq!(share_of_load(Load::Closed(1), 3, 4), Load::Closed(1));
        assert_eq!(share_of_load(Load::Open(9.0), 0, 3), Load::Open(3.0));
    }
}

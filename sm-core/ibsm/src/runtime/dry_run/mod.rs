//! `ibsm --dry-run`: one sweep that sets nothing, and what it would change. It neither takes part
//! in the election of a master nor writes to the state directory, so that it can run beside a
//! manager, at the same port, too.

mod show;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ib_mad::transport::{Interest, Packet, wait};
use tracing::warn;

use super::attachment::{self, Observer};
use super::state::StateDir;
use super::{RunError, log, policy_files};
use crate::cli::{Config, Options, disk};
use sm_config::node_names;
use sm_core::sweep::{Event, Report, Sweeper};

/// Exit status if something would change; 1 is an error, and 2 a mistake on the command line.
const CHANGES: u8 = 3;
/// Packets moved at once.
const BATCH: usize = 64;
/// Longest wait for input.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Why a dry run has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DryRunError {
    /// The fabric cannot be read.
    #[error("the fabric cannot be read: the port is down, or its node does not answer")]
    Unread,
    /// No engine routes the fabric.
    #[error("no routing engine can route the fabric; see the warnings")]
    NotRouted,
    /// An error that ends a manager.
    #[error("{0}")]
    Fatal(String),
}

/// Runs `ibsm --dry-run` to its end.
pub(super) fn main(options: Options) -> ExitCode {
    match run(options) {
        Ok(status) => status,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "ibsm: {}", sa_proto::with_causes(&failure));
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<ExitCode, RunError> {
    let as_json = options.json;
    let (mut config, warnings) = Config::load(options)?;
    log::to_stderr(&config.settings);
    warnings.iter().for_each(|warning| warn!("{warning}"));
    if let Some(guid) = attachment::choose(&config)? {
        config.choose_port(guid);
    }
    let mut observer = Observer::open(&config)?;
    let mut sweeper = sweeper(&config, &observer)?;
    let report = sweep(&mut sweeper, &mut observer)?;
    let shown = show::Shown { place: observer.place(), report, changes: sweeper.changes() };
    let text = if as_json { shown.json() } else { shown.table() };
    io::stdout().write_all(text.as_bytes())?;
    Ok(match (shown.is_complete(), shown.changes.changes.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(CHANGES),
    })
}

/// A sweeper that knows what a manager with this state directory would know.
fn sweeper(config: &Config, observer: &Observer) -> Result<Sweeper, RunError> {
    let settings = config.settings.clone();
    let (policy, reading) = policy_files(config)?;
    reading.remarks.iter().for_each(|remark| warn!("{remark}"));
    for failure in &reading.errors {
        warn!("{}; {}", sa_proto::with_causes(failure), policy.instead_of(failure));
    }
    let state = StateDir::read_only(&config.state_dir);
    let (names, problem) = node_names::load(settings.node_name_map_name.as_deref(), &disk::read);
    problem.iter().for_each(|problem| warn!("{problem}"));
    let mut sweeper = Sweeper::new(settings, state.lids()?, std::process::id());
    sweeper.set_node_names(names);
    sweeper.set_sharding(config.sa_access.sharding());
    let (m_keys, neighbours) = state.m_keys()?;
    sweeper.set_m_keys(m_keys, neighbours.into());
    sweeper.set_origin(state.origin()?);
    sweeper.set_disabled_ports(state.disabled_ports()?);
    sweeper.set_own_port(observer.port_guid());
    sweeper.set_own_planes(observer.planes());
    sweeper.set_partitions(policy.partitions.clone());
    sweeper.set_virtual_fabrics(policy.virtual_fabrics.clone());
    sweeper.set_routing_files(policy.routing.clone());
    sweeper.run_dry();
    Ok(sweeper)
}

/// Sweeps once, and waits for the tasks that follow the sweep.
fn sweep(sweeper: &mut Sweeper, observer: &mut Observer) -> Result<Report, RunError> {
    let mut batch = vec![Packet::default(); BATCH];
    let (mut packet, mut is_unsent) = ([Packet::default()], false);
    let mut report = None;
    sweeper.request_heavy_sweep(Instant::now());
    loop {
        let now = Instant::now();
        sweeper.handle_timeout(now);
        while let Some(event) = sweeper.poll_event() {
            match event {
                Event::Discovering => sweeper.files_are_read(now),
                Event::Configured(configured) => _ = report.get_or_insert(*configured),
                Event::Fatal(reason) => return Err(DryRunError::Fatal(reason).into()),
                _ => {}
            }
        }
        if sweeper.sweeps_given_up() > 0 {
            return Err(DryRunError::Unread.into());
        }
        if let Some(job) = sweeper.poll_routing() {
            sweeper.handle_routing(Instant::now(), job.run());
            continue;
        }
        if let Some(job) = sweeper.poll_multicast(now) {
            sweeper.handle_multicast(Instant::now(), job.run());
            continue;
        }
        let is_over = report.is_some() && sweeper.outstanding() == 0;
        if let Some(report) = report.take_if(|_| is_over) {
            return match report.up {
                true => Ok(report),
                false => Err(DryRunError::NotRouted.into()),
            };
        }
        while is_unsent || sweeper.poll_transmit(now, &mut packet[0]) {
            is_unsent = observer.send(&packet)? == 0;
            if is_unsent {
                break;
            }
        }
        let received = observer.receive(&mut batch)?;
        for packet in &mut batch[..received] {
            sweeper.handle_packet(Instant::now(), packet);
        }
        if received == 0 && !sweeper.has_events() {
            let due = sweeper.poll_timeout();
            let patience = due.map_or(WAIT_MAX, |due| due.saturating_duration_since(now));
            let descriptor = observer.descriptor();
            let mut interests: Vec<Interest<'_>> =
                descriptor.into_iter().map(|fd| Interest::read_or_write(fd, is_unsent)).collect();
            wait(&mut interests, Some(patience.min(WAIT_MAX)))?;
        }
    }
}

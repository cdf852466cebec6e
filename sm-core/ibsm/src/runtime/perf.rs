//! Drives the performance manager: a thread with a transport of its own, so that sweeps and answers
//! to clients do not wait for it. It logs events, and writes `event_db_dump_file` after each sweep.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ib_mad::transport::Packet;
use sm_config::Settings;
use sm_core::perf::{Happened, PerfEvent, PerfManager, PerfSettings, dump};
use sm_core::querier::Querier;
use tracing::{info, warn};

use super::attachment::{AttachError, Observer};
use super::beside::{self, BATCH, BesideThread, FabricFollower};
use super::dump_files::create;
use super::lines::LineQuota;
use crate::civil::ctime;
use crate::cli::Config;
use crate::clock::unix_ms;
use crate::observe::event::PortGrowth;
use crate::observe::node_name;
use crate::perf::PerfBoard;
use crate::publish::Publisher;

/// Log lines of one sweep, and of one node in it; further ones are counted.
const LINES_MAX: usize = 100;
const NODE_LINES_MAX: usize = 10;

/// Starts the thread if `perfmgr` is on.
pub(super) fn start(config: &Config, publisher: &Publisher) -> io::Result<Option<BesideThread>> {
    let settings = &config.settings;
    if !settings.perfmgr {
        if publisher.perf().growths().wanted().contains(&true) {
            warn!("event_plugin_kinds names counters, which are not read: perfmgr is FALSE");
        }
        return Ok(None);
    }
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = since_1970.subsec_nanos() ^ std::process::id();
    let perf = PerfSettings::of(settings);
    let board = publisher.perf();
    board.install(PerfManager::new(perf, Instant::now(), since_1970.as_secs(), seed));
    info!(
        "performance manager: reading counters of all ports every {} s",
        settings.perfmgr_sweep_time_s
    );
    let task = PerfTask {
        dump_file: settings.event_db_dump_file.as_ref().map(PathBuf::from),
        board,
        fabric: FabricFollower::new(publisher.observatory()),
        sweeps: 0,
        glances: 0,
        lines: LineQuota::new(LINES_MAX, NODE_LINES_MAX),
    };
    beside::start(config, task).map(Some)
}

struct PerfTask {
    /// `event_db_dump_file`.
    dump_file: Option<PathBuf>,
    board: Arc<PerfBoard>,
    fabric: FabricFollower,
    sweeps: u64,
    glances: u64,
    /// Log lines of the present sweep.
    lines: LineQuota,
}

impl beside::Task for PerfTask {
    const NAME: &'static str = "perf";
    const WITHOUT_PORT: &'static str = "counters of ports cannot be read";

    fn open(config: &Config) -> Result<Observer, AttachError> {
        Observer::open_for_counters(config)
    }

    fn exchange(
        &mut self,
        now: Instant,
        received: &[Packet],
        unsent: &mut Vec<Packet>,
    ) -> Option<Instant> {
        let growths = self.board.growths();
        let state = self.board.with(|manager| {
            manager.follow(growths.wanted());
            let events = manager.turn(now, received, unsent, BATCH);
            let status = manager.status();
            (events, status.sweeps, status.glances, manager.poll_timeout())
        });
        let (events, sweeps, glances, due) = state?;
        for event in events {
            match event.what {
                Happened::Counted(growth) => {
                    let PerfEvent { node, port, .. } = event;
                    growths.send(PortGrowth { time_ms: unix_ms(), node, port, growth });
                }
                _ => self.log(&event),
            }
        }
        if sweeps != self.sweeps {
            self.sweeps = sweeps;
            self.end_of_sweep();
        } else if glances != self.glances {
            self.note_unlogged();
            self.board.find_faulty(now);
        }
        self.glances = glances;
        due
    }

    /// Takes over the nodes of a new snapshot or, on a standby, of its own discovery.
    fn follow(&mut self, now: Instant) {
        if let Some(nodes) = self.board.take_discovered() {
            self.fabric.forget();
            self.board.with(|manager| manager.set_nodes(now, nodes));
        }
        if let Some(plane) = self.fabric.changed() {
            self.board.with(|manager| manager.set_nodes(now, plane.nodes.clone()));
        }
    }
}

impl PerfTask {
    fn log(&mut self, event: &PerfEvent) {
        if !self.lines.take(event.node.guid) {
            return;
        }
        let (name, guid, port) = (node_name(&event.node), event.node.guid, event.port);
        match event.what {
            Happened::Grew { counter, by } => {
                warn!("'{name}' {guid} port {port}: {} grew by {by}", counter.name());
            }
            Happened::Cleared => {
                info!("'{name}' {guid} port {port}: counters were cleared by another program");
            }
            Happened::Counted(_) => {}
            Happened::Silent => {
                warn!("'{name}' {guid} does not answer queries about counters");
            }
            Happened::RedirectionRefused => warn!(
                "'{name}' {guid} redirects queries about counters to where they cannot be sent; \
                 its counters are not read"
            ),
        }
    }

    fn note_unlogged(&mut self) {
        let unlogged = self.lines.restart();
        if unlogged > 0 {
            warn!("{unlogged} further events about counters in this sweep; see /metrics/ports");
        }
    }

    fn end_of_sweep(&mut self) {
        self.note_unlogged();
        self.board.record(unix_ms());
        self.board.find_faulty(Instant::now());
        if let Some(path) = &self.dump_file
            && let Err(failure) = write_dump(&self.board, path, true)
        {
            warn!("cannot write event_db_dump_file {}: {failure}", path.display());
        }
    }
}

/// The file that counters are written to on request: `event_db_dump_file`, or OpenSM's name.
pub(super) fn dump_file(settings: &Settings, state_dir: &Path) -> PathBuf {
    let directory = settings.dump_files_dir.as_ref().map_or(state_dir, Path::new);
    let name = settings.event_db_dump_file.as_deref().unwrap_or("opensm_port_counters.log");
    directory.join(name)
}

/// Writes all counters to a file, for programs or people. A reader finds the old file or the new
/// one, never a part.
pub(super) fn write_dump(board: &PerfBoard, path: &Path, machine: bool) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = PathBuf::from(draft);
    let mut out = BufWriter::new(create(&draft)?);
    let mut position = 0;
    loop {
        let text = board.with(|manager| {
            let mut text = String::new();
            let time = |at: u32| ctime(at.into());
            if machine {
                dump::machine(&mut text, manager.ports_of(position), time);
            } else {
                let ports = manager.ports_of(position).filter(|port| port.is_known);
                ports.for_each(|port| dump::human(&mut text, &port, false, time));
            }
            (position < manager.node_count()).then_some(text)
        });
        let Some(text) = text.flatten() else { break };
        out.write_all(text.as_bytes())?;
        position += 1;
    }
    out.flush()?;
    std::fs::rename(&draft, path)
}

//! Drives the manager of congestion control, in a thread with a transport of its own while
//! `congestion_control` is on and this SM is master.

use std::io;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ib_mad::transport::Packet;
use sm_core::congestion::{
    CongestionEvent, CongestionManager, CongestionSettings, CongestionStatus, Happened,
};
use sm_core::querier::Querier;
use tracing::{info, warn};

use super::attachment::{AttachError, Observer};
use super::beside::{self, BATCH, BesideThread, FabricFollower};
use super::lines::LineQuota;
use crate::cli::Config;
use crate::congestion::{CongestionBoard, refusal};
use crate::observe::node_name;
use crate::publish::{Observatory, Publisher};

/// Log lines about agents in one cycle, and about those of one node; further ones are counted.
const LINES_MAX: usize = 20;
const NODE_LINES_MAX: usize = 4;

/// Starts the thread.
pub(super) fn start(config: &Config, publisher: &Publisher) -> io::Result<BesideThread> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = since_1970.subsec_nanos() ^ std::process::id();
    let board = publisher.congestion();
    board.install(CongestionManager::new(CongestionSettings::of(&config.settings), seed));
    let observatory = publisher.observatory();
    let task = CongestionTask {
        board,
        fabric: FabricFollower::new(observatory.clone()),
        observatory,
        is_on: false,
        leads: false,
        cycles: 0,
        lines: LineQuota::new(LINES_MAX, NODE_LINES_MAX),
        shown: None,
    };
    beside::start(config, task)
}

struct CongestionTask {
    board: Arc<CongestionBoard>,
    observatory: Observatory,
    fabric: FabricFollower,
    /// `congestion_control`.
    is_on: bool,
    /// Whether this SM is master.
    leads: bool,
    cycles: u64,
    /// Log lines of the present cycle.
    lines: LineQuota,
    /// What the log last said about the agents.
    shown: Option<CongestionStatus>,
}

impl beside::Task for CongestionTask {
    const NAME: &'static str = "congestion";
    const WITHOUT_PORT: &'static str = "congestion control cannot be set up";

    fn open(config: &Config) -> Result<Observer, AttachError> {
        Observer::open_for_congestion(config)
    }

    fn needs_port(&self) -> bool {
        self.is_on && self.leads
    }

    fn exchange(
        &mut self,
        now: Instant,
        received: &[Packet],
        unsent: &mut Vec<Packet>,
    ) -> Option<Instant> {
        let state = self.board.with(|manager| {
            let events = manager.turn(now, received, unsent, BATCH);
            (events, manager.cycles(), manager.poll_timeout())
        });
        let (events, cycles, due) = state?;
        events.iter().for_each(|event| self.log(event));
        if cycles != self.cycles {
            self.cycles = cycles;
            self.end_of_cycle();
        }
        due
    }

    fn follow(&mut self, now: Instant) {
        let wanted = CongestionSettings::of(&self.observatory.settings());
        let leads = self.observatory.leads();
        let was_on = std::mem::replace(&mut self.is_on, wanted.is_on);
        self.board.with(|manager| manager.set_settings(now, wanted));
        if was_on && !self.is_on {
            info!("congestion control is off: nodes keep the settings that they have");
        }
        if std::mem::replace(&mut self.leads, leads) && !leads || was_on && !self.is_on {
            self.board.with(CongestionManager::stand_by);
            self.board.find_problems();
            self.shown = None;
        }
        if !self.needs_port() {
            self.fabric.forget();
        } else if let Some(plane) = self.fabric.changed() {
            self.board.with(|manager| manager.set_nodes(now, plane.nodes.clone()));
        }
    }
}

impl CongestionTask {
    fn log(&mut self, event: &CongestionEvent) {
        if !self.lines.take(event.node.guid) {
            return;
        }
        let (name, guid, port) = (node_name(&event.node), event.node.guid, event.port);
        match event.what {
            Happened::KeyRefused => warn!(
                "'{name}' {guid} port {port} has another CC_Key: its congestion settings cannot \
                 be read or set; see cc_key"
            ),
            Happened::SettingRefused(attribute, status) => {
                warn!("'{name}' {guid} port {port} {}", refusal(attribute, status));
            }
            Happened::Silent => info!(
                "'{name}' {guid} port {port} does not answer requests of congestion control: \
                 after 3 readings of logs it is tried at every 8th only, until it answers"
            ),
        }
    }

    fn end_of_cycle(&mut self) {
        let unlogged = self.lines.restart();
        if unlogged > 0 {
            warn!("{unlogged} further nodes with other states; see ibsmctl congestion");
        }
        self.board.find_problems();
        let Some(status) = self.board.with(|manager| manager.status()) else { return };
        let counts = |status: &CongestionStatus| {
            let refused = (status.key_refused, status.setting_refused);
            (status.agents, status.ready, status.unsupported, status.silent, refused)
        };
        if self.shown.as_ref().map(counts) == Some(counts(&status)) {
            return;
        }
        info!(
            "congestion control: {} of {} agents have the settings, {} do not support it, {} do \
             not answer, {} have another CC_Key, {} refuse a setting",
            status.ready,
            status.agents,
            status.unsupported,
            status.silent,
            status.key_refused,
            status.setting_refused
        );
        self.shown = Some(status);
    }
}

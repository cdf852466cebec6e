//! Our place at the fabric: attached to it or, while the simulator's server or the HCA is away,
//! about to be again. Whoever uses it sees a fabric that delivers nothing meanwhile.

mod port;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::transport::ibsim::{ClientId, IbsimOptions, Role};
use ib_mad::types::Guid;
use tracing::{info, warn};

pub use self::port::AttachError;
use self::port::{Port, Wanted};
use super::state::StateDir;
use crate::config::{Config, TransportKind};

/// How long to wait before attaching again; doubled for each further attempt.
const REATTACH_DELAY: Duration = Duration::from_millis(100);
/// Longest such delay.
const REATTACH_DELAY_MAX: Duration = Duration::from_secs(5);
/// How often an idle attachment is tried: a server that ended does not say so.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Time a server has to answer when we attach again: nothing else is done meanwhile.
const ANSWER_TIME: Duration = Duration::from_secs(1);

pub(super) struct Attachment {
    wanted: Wanted,
    port: Option<Port>,
    /// When to try it, or to attach again.
    due: Instant,
    delay: Duration,
    /// Why the last attempt to attach again failed: told once.
    trouble: String,
    /// Packets that were to be sent while there was no fabric.
    lost: u64,
}

impl Attachment {
    /// Attaches for the first time.
    pub(super) fn open(config: &Config, state: &StateDir) -> Result<Self, AttachError> {
        let mut wanted = wanted(config, state);
        let port = Port::open(&wanted)?;
        if let Some(client) = port.client_id()
            && let Err(failure) = state.keep_client(client)
        {
            warn!("the simulator will keep what we are known by if we are killed: {failure}");
        }
        if let Wanted::Ibsim(options) = &mut wanted {
            // An earlier run may have been killed while attached. We let go ourselves, and by the
            // number of a slot that we once had, a server that was restarted may know another.
            (options.stale_client, options.timeout) = (None, ANSWER_TIME);
        }
        Ok(Self {
            wanted,
            port: Some(port),
            due: Instant::now() + UPKEEP_INTERVAL,
            delay: REATTACH_DELAY,
            trouble: String::new(),
            lost: 0,
        })
    }

    /// Where we are attached.
    pub(super) fn place(&self) -> String {
        self.port.as_ref().map_or_else(String::new, Port::to_string)
    }

    /// GUID of the port that we are attached to; 0 if that cannot be told.
    pub(super) fn port_guid(&mut self) -> Guid {
        self.port.as_mut().and_then(Port::guid).unwrap_or_default()
    }

    pub(super) fn is_attached(&self) -> bool {
        self.port.is_some()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.as_ref()?.descriptor()
    }

    /// When [`maintain`](Self::maintain) is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Takes in what has arrived.
    pub(super) fn receive(&mut self, now: Instant, batch: &mut [Packet]) -> usize {
        let Some(port) = &mut self.port else { return 0 };
        port.receive(batch).unwrap_or_else(|failure| {
            self.lose(now, &failure);
            0
        })
    }

    /// Sends what the fabric takes at once. Without a fabric all of it is taken, lost and counted.
    pub(super) fn send(&mut self, now: Instant, batch: &[Packet]) -> usize {
        if let Some(port) = &mut self.port {
            match port.send(batch) {
                Ok(sent) => return sent,
                Err(failure) => self.lose(now, &failure),
            }
        }
        self.lost += batch.len() as u64;
        batch.len()
    }

    /// Packets that were to be sent while there was no fabric.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Learns the port's LIDs anew, by which the transport tells path bits.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.due = now + UPKEEP_INTERVAL;
        if let Some(Err(failure)) = self.port.as_mut().map(Port::refresh) {
            self.lose(now, &io::Error::other(failure));
        }
    }

    /// Does what is due: looks whether the fabric is still there, or attaches again; whether that
    /// has just succeeded.
    pub(super) fn maintain(&mut self, now: Instant) -> bool {
        if now < self.due {
            return false;
        }
        if self.port.is_some() {
            self.refresh(now);
            return false;
        }
        match Port::open(&self.wanted) {
            Ok(port) => {
                info!("attached to the fabric again, at {port}");
                self.port = Some(port);
                self.delay = REATTACH_DELAY;
                self.trouble.clear();
                self.due = now + UPKEEP_INTERVAL;
                true
            }
            Err(failure) => {
                let trouble = failure.to_string();
                if trouble != self.trouble {
                    warn!("not attached to the fabric: {trouble}; trying again");
                    self.trouble = trouble;
                }
                self.due = Instant::now() + self.delay;
                self.delay = (self.delay * 2).min(REATTACH_DELAY_MAX);
                false
            }
        }
    }

    /// What a simulator knows us by.
    pub(super) fn client_id(&self) -> Option<ClientId> {
        self.port.as_ref()?.client_id()
    }

    fn lose(&mut self, now: Instant, failure: &io::Error) {
        warn!("the connection to the fabric broke: {failure}; attaching again once it is back");
        self.port = None;
        self.due = now + self.delay;
    }
}

fn wanted(config: &Config, state: &StateDir) -> Wanted {
    match config.transport {
        TransportKind::Umad => {
            let settings = &config.settings;
            let timeout = Duration::from_millis(u64::from(settings.transaction_timeout));
            Wanted::Umad {
                guid: settings.guid,
                device: config.device.clone(),
                num: config.port,
                // Over before we ask again.
                answer_timeout: (timeout * 9 / 10).max(Duration::from_millis(1)),
            }
        }
        TransportKind::Ibsim => {
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
            Wanted::Ibsim(options)
        }
    }
}

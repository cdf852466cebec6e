//! The attachment to the fabric. While the simulator's server or the HCA is unavailable, it
//! delivers nothing and tries to reattach.

mod choice;
mod observer;
mod port;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ib_mad::transport::Packet;
use ib_mad::transport::ibsim::{ClientId, IbsimOptions, Role};
use ib_mad::transport::umad::UmadPort;
use ib_mad::types::{Guid, Lid, PortNum};
use tracing::{info, warn};

pub use self::choice::ChoiceError;
pub(super) use self::choice::choose;
pub(super) use self::observer::Observer;
pub use self::port::AttachError;
pub(super) use self::port::unless_short;
use self::port::{Port, Wanted, WantedUmad};
use super::state::StateDir;
use crate::cli::{Config, TransportKind};

/// How long to wait before attaching again; doubled for each further attempt.
const REATTACH_DELAY: Duration = Duration::from_millis(100);
/// Longest such delay.
const REATTACH_DELAY_MAX: Duration = Duration::from_secs(5);
/// How often an idle attachment is checked: a server that ends does not report it.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);
/// How long a server may take to answer when reattaching: the service loop waits for it.
const ANSWER_TIME: Duration = Duration::from_secs(1);

pub(super) struct Attachment {
    wanted: Wanted,
    port: Option<Port>,
    /// When to check it, or to reattach.
    due: Instant,
    delay: Duration,
    /// Why the last attempt to reattach failed; each reason is logged once.
    trouble: String,
    /// Packets lost because there was no fabric.
    lost: u64,
}

impl Attachment {
    /// Attaches for the first time.
    pub(super) fn open(config: &Config, state: &StateDir) -> Result<Self, AttachError> {
        let mut wanted = wanted(config, state.stale_client());
        let port = Port::open(&wanted)?;
        if let Some(client) = port.client_id()
            && let Err(failure) = state.keep_client(client)
        {
            warn!(
                "cannot save the simulator client ID: {failure}; if ibsm is killed, the simulator \
                 keeps its slot occupied"
            );
        }
        if let Wanted::Ibsim(options) = &mut wanted {
            // An earlier run may have been killed while attached; its slot is free now. A restarted
            // server may have given that slot to another client.
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

    /// The port or node attached to, as text.
    pub(super) fn place(&self) -> String {
        self.port.as_ref().map_or_else(String::new, Port::to_string)
    }

    /// GUID of the port; 0 if it is unknown.
    pub(super) fn port_guid(&mut self) -> Guid {
        self.port.as_mut().and_then(Port::guid).unwrap_or_default()
    }

    /// Numbers of the ports by which the port is in planes of the fabric; none if it is not
    /// planarized.
    pub(super) fn planes(&mut self) -> Vec<PortNum> {
        self.port.as_mut().map_or_else(Vec::new, Port::planes)
    }

    /// The port attached to, if it is one of this host.
    pub(super) fn umad_port(&self) -> Option<&UmadPort> {
        self.port.as_ref()?.umad_port()
    }

    /// Base LID of the port; [`Lid::NONE`] while there is none.
    pub(super) fn local_lid(&self) -> Lid {
        self.port.as_ref().map_or(Lid::NONE, Port::local_lid)
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

    /// Receives packets.
    pub(super) fn receive(&mut self, now: Instant, batch: &mut [Packet]) -> usize {
        let Some(port) = &mut self.port else { return 0 };
        port.receive(batch).unwrap_or_else(|failure| {
            self.lose(now, &failure);
            0
        })
    }

    /// Sends as many packets as the transport accepts; returns their number. Without a fabric, all
    /// are lost and counted.
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

    /// Packets lost because there was no fabric.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads the port's LIDs again; the transport derives path bits from them.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.due = now + UPKEEP_INTERVAL;
        if let Some(Err(failure)) = self.port.as_mut().map(Port::refresh) {
            self.lose(now, &io::Error::other(failure));
        }
    }

    /// Checks the attachment or reattaches, if that is due. Returns whether it has just been
    /// reattached.
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
                info!("reattached to the fabric at {port}");
                self.port = Some(port);
                self.delay = REATTACH_DELAY;
                self.trouble.clear();
                self.due = now + UPKEEP_INTERVAL;
                true
            }
            Err(failure) => {
                let trouble = failure.to_string();
                if trouble != self.trouble {
                    warn!("cannot attach to the fabric: {trouble}; retrying");
                    self.trouble = trouble;
                }
                self.due = Instant::now() + self.delay;
                self.delay = (self.delay * 2).min(REATTACH_DELAY_MAX);
                false
            }
        }
    }

    /// The identity at a simulator.
    pub(super) fn client_id(&self) -> Option<ClientId> {
        self.port.as_ref()?.client_id()
    }

    fn lose(&mut self, now: Instant, failure: &io::Error) {
        warn!("connection to the fabric lost: {failure}; reattaching as soon as it is back");
        self.port = None;
        self.due = now + self.delay;
    }
}

/// The port that the configuration names. `stale_client`: the slot at a simulator of an earlier
/// run.
fn wanted(config: &Config, stale_client: Option<ClientId>) -> Wanted {
    match config.transport {
        TransportKind::Umad => {
            let settings = &config.settings;
            let timeout = Duration::from_millis(u64::from(settings.transaction_timeout));
            Wanted::Umad(WantedUmad {
                guid: settings.guid,
                device: config.device.clone(),
                num: config.port,
                // Over before the SMP is retried.
                answer_timeout: (timeout * 9 / 10).max(Duration::from_millis(1)),
            })
        }
        TransportKind::Ibsim => {
            let mut options = IbsimOptions {
                role: Role::Manager { sa: true },
                stale_client,
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

//! Our place at the simulated fabric: attached to it or, while its server is away, about to be
//! again. Whoever uses it sees a fabric that delivers nothing meanwhile.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ib_mad::transport::ibsim::{ClientId, Ibsim, IbsimError, IbsimOptions, Role};
use ib_mad::transport::{Packet, Transport};
use tracing::{debug, info, warn};

use super::RunError;
use super::state::StateDir;
use crate::config::Config;

/// How long to wait before attaching again; doubled for each further attempt.
const REATTACH_DELAY: Duration = Duration::from_millis(100);
/// Longest such delay.
const REATTACH_DELAY_MAX: Duration = Duration::from_secs(5);
/// How often an idle attachment is tried: a server that ended does not say so.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Time a server has to answer when we attach again: nothing else is done meanwhile.
const ANSWER_TIME: Duration = Duration::from_secs(1);

pub(super) struct Attachment {
    options: IbsimOptions,
    transport: Option<Ibsim>,
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
    pub(super) fn open(config: &Config, state: &StateDir) -> Result<Self, RunError> {
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
        let transport = attach(&options)?;
        if let Err(failure) = state.keep_client(transport.client_id()) {
            warn!("the simulator will keep what we are known by if we are killed: {failure}");
        }
        Ok(Self {
            // An earlier run may have been killed while attached. We let go ourselves, and by the
            // number of a slot that we once had, a server that was restarted may know another.
            options: IbsimOptions { stale_client: None, timeout: ANSWER_TIME, ..options },
            transport: Some(transport),
            due: Instant::now() + UPKEEP_INTERVAL,
            delay: REATTACH_DELAY,
            trouble: String::new(),
            lost: 0,
        })
    }

    /// Identifier of the node we are attached to.
    pub(super) fn node(&self) -> &str {
        self.transport.as_ref().map_or("", Ibsim::node)
    }

    pub(super) fn is_attached(&self) -> bool {
        self.transport.is_some()
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.transport.as_ref()?.descriptor()
    }

    /// When [`maintain`](Self::maintain) is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Takes in what has arrived.
    pub(super) fn receive(&mut self, now: Instant, batch: &mut [Packet]) -> usize {
        let Some(transport) = &mut self.transport else { return 0 };
        transport.receive(batch).unwrap_or_else(|failure| {
            self.lose(now, &failure);
            0
        })
    }

    /// Sends what the fabric takes at once. Without a fabric all of it is taken, lost and counted.
    pub(super) fn send(&mut self, now: Instant, batch: &[Packet]) -> usize {
        if let Some(transport) = &mut self.transport {
            match transport.send(batch) {
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
        match self.transport.as_mut().map(Ibsim::local_port) {
            None | Some(Ok(_)) => {}
            Some(Err(failure @ (IbsimError::NoServer { .. } | IbsimError::Io(_)))) => {
                self.lose(now, &io::Error::other(failure));
            }
            // A server may be slow, or held up by another of its clients.
            Some(Err(failure)) => debug!("the transport does not tell its port: {failure}"),
        }
    }

    /// Does what is due: looks whether the server is still there, or attaches again. The client
    /// we are from now on, if that has just succeeded.
    pub(super) fn maintain(&mut self, now: Instant) -> Option<ClientId> {
        if now < self.due {
            return None;
        }
        if self.transport.is_some() {
            self.refresh(now);
            return None;
        }
        match attach(&self.options) {
            Ok(transport) => {
                info!("attached to the fabric again, on node {}", transport.node());
                let id = transport.client_id();
                self.transport = Some(transport);
                self.delay = REATTACH_DELAY;
                self.trouble.clear();
                self.due = now + UPKEEP_INTERVAL;
                Some(id)
            }
            Err(failure) => {
                let trouble = failure.to_string();
                if trouble != self.trouble {
                    warn!("not attached to the fabric: {trouble}; trying again");
                    self.trouble = trouble;
                }
                self.due = Instant::now() + self.delay;
                self.delay = (self.delay * 2).min(REATTACH_DELAY_MAX);
                None
            }
        }
    }

    fn lose(&mut self, now: Instant, failure: &io::Error) {
        warn!("the connection to the fabric broke: {failure}; attaching again once it is back");
        self.transport = None;
        self.due = now + self.delay;
    }
}

fn attach(options: &IbsimOptions) -> Result<Ibsim, IbsimError> {
    let mut transport = Ibsim::connect(options)?;
    transport.set_is_sm(true)?;
    Ok(transport)
}

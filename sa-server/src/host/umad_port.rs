//! The responder's port on this host: found, opened or taken over from the previous process or, if
//! it is the SM's, from the manager; and reopened after its device was removed and added again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use ib_mad::transport::Transport;
use ib_mad::transport::umad::{Umad, UmadError, UmadOptions, UmadPort};
use ib_mad::types::{Guid, PortNum};

use crate::host::handover::HeldDescriptors;
use crate::host::options::Options;
use crate::host::sm_port::SmPort;

/// How long a start waits for the manager that has the port's file: it starts or ends.
const SHARE_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is asked meanwhile.
const SHARE_INTERVAL: Duration = Duration::from_millis(20);

/// The port from the command line, and the store that holds its file.
pub(crate) struct Opener {
    options: Options,
    descriptors: HeldDescriptors,
    /// The port is the SM's.
    sm_port: Option<SmPort>,
}

/// An open port.
pub(crate) struct Opened {
    pub(crate) umad: Umad,
    pub(crate) guid: Guid,
    /// Whether the file was inherited from another process and may have a queue.
    pub(crate) is_inherited: bool,
}

impl Opener {
    pub(crate) fn new(
        options: &Options,
        descriptors: HeldDescriptors,
        sm_port: Option<SmPort>,
    ) -> Self {
        Self { options: options.clone(), descriptors, sm_port }
    }

    /// The SM's port, if it is that one.
    pub(crate) fn sm_port(&self) -> Option<&SmPort> {
        self.sm_port.as_ref()
    }

    /// Takes the file over, or opens it if there is none to be taken over.
    pub(crate) fn open(&mut self) -> Result<Opened, UmadError> {
        let until = Instant::now() + SHARE_PATIENCE;
        let umad_options = self.port()?;
        let mut adopted = self.adopt(&umad_options);
        loop {
            if let Some(umad) = adopted {
                return self.opened(umad, true);
            }
            match Umad::open(&umad_options) {
                Err(UmadError::Taken { .. })
                    if self.sm_port.is_some() && Instant::now() < until =>
                {
                    thread::sleep(SHARE_INTERVAL);
                    adopted = self.adopt_shared(&umad_options);
                }
                opened => return self.opened(opened?, false),
            }
        }
    }

    /// Reopens the file after it failed; the device may have another number. If another process has
    /// the port, which can only be this one's own duplicate, that duplicate is used.
    pub(crate) fn reopen(&mut self) -> Option<Umad> {
        let reopened = self.port().and_then(|options| match Umad::open(&options) {
            Err(taken @ UmadError::Taken { .. }) => match self.adopt(&options) {
                Some(umad) => self.opened(umad, true),
                None => Err(taken),
            },
            opened => self.opened(opened?, false),
        });
        match reopened {
            Ok(opened) => Some(opened.umad),
            Err(error) => {
                tracing::debug!(%error, "cannot reopen the port; retrying");
                None
            }
        }
    }

    fn port(&self) -> Result<UmadOptions, UmadError> {
        let Options { device, port, .. } = &self.options;
        // Of a planarized port the file for QP1.
        let port = UmadPort::find(device.as_deref(), port.map(PortNum))?.with_planes()?.gsi();
        Ok(UmadOptions::sa_responder(port))
    }

    fn adopt(&mut self, options: &UmadOptions) -> Option<Umad> {
        let held = self.descriptors.take(&name(&options.port));
        let held =
            held.unwrap_or_else(|error| warn_of_adoption(&options.port, &UmadError::Io(error)));
        adopt_file(held, options).or_else(|| self.adopt_shared(options))
    }

    /// Takes the file from the manager, if the port is the SM's.
    fn adopt_shared(&self, options: &UmadOptions) -> Option<Umad> {
        adopt_file(self.sm_port.as_ref().and_then(SmPort::ask), options)
    }

    fn opened(&self, umad: Umad, is_inherited: bool) -> Result<Opened, UmadError> {
        let port = umad.port();
        let local = port.local()?;
        let verb = if is_inherited { "took over" } else { "opened" };
        tracing::info!(%port, guid = %local.guid, lid = %local.lid, "{verb} QP1");
        if let Some(sm_port) = &self.sm_port {
            sm_port.set_file(umad.duplicate()?);
        }
        let kept = umad.descriptor().map(|file| self.descriptors.keep(&name(port), file.as_fd()));
        if let Some(Err(error)) = kept {
            tracing::warn!(
                %port, %error,
                "no other process holds this port's umad file: while ibsa restarts, the kernel \
                 answers clients that there is no SA; check --holder, or FileDescriptorStoreMax= \
                 of the unit"
            );
        }
        Ok(Opened { guid: local.guid, umad, is_inherited })
    }
}

fn adopt_file(file: Option<OwnedFd>, options: &UmadOptions) -> Option<Umad> {
    let adopted = file.map(|file| Umad::adopt(file, options)).transpose();
    adopted.unwrap_or_else(|error| warn_of_adoption(&options.port, &error))
}

fn warn_of_adoption<T>(port: &UmadPort, error: &UmadError) -> Option<T> {
    tracing::warn!(
        %port, %error,
        "cannot take over the port from the previous process; opening it"
    );
    None
}

/// The name under which the port's file is held.
fn name(port: &UmadPort) -> String {
    format!("umad-{}-{}", port.device, port.num)
}

/// Periodic upkeep of the port: reads its tables again and logs answers that the kernel refused
/// to send.
pub(crate) fn upkeep() -> impl FnMut(&mut Umad) -> io::Result<()> {
    let mut logged = 0;
    move |umad| {
        umad.refresh()?;
        let counters = umad.counters();
        if counters.refused > logged {
            let error = io::Error::from_raw_os_error(counters.refused_error);
            let count = counters.refused - logged;
            tracing::warn!(
                port = %umad.port(), count, last = %error,
                "the kernel refused to send answers"
            );
        }
        logged = counters.refused;
        Ok(())
    }
}

//! The transport of the responder's own port, and how it attaches to a simulated fabric.

use std::io::{self, Write};
use std::path::Path;

use daemon::kept;
use ib_mad::transport::ibsim::{ClientId, Ibsim, IbsimError, IbsimOptions, Role};
#[cfg(feature = "verbs")]
use ib_mad::transport::verbs::Verbs;
use ib_mad::types::Guid;
use ib_mad::wire::mad::{Method, MgmtClass};

use crate::host::options::Options;
use crate::host::umad_port::{Opened, Opener};

/// File in the cache directory with the ibsim client id, for the next start.
const CLIENT_FILE: &str = "ibsim-client";
/// More than an id has, bytes.
const CLIENT_LEN_MAX: u64 = 64;

/// The transport of the responder's own port.
pub(super) enum Fabric {
    Ibsim(Box<Ibsim>),
    Umad(Box<(Opened, Opener)>),
    #[cfg(feature = "verbs")]
    Verbs(Box<Verbs>),
}

/// Attaches to the simulated fabric. `first`: an earlier run may have been killed while attached.
pub(super) fn attach(options: &Options, first: bool) -> Result<(Ibsim, Guid), IbsimError> {
    let file = options.cache_dir.as_deref().map(|directory| directory.join(CLIENT_FILE));
    let stale_client = match (&file, first) {
        (Some(file), true) => read_client(file),
        _ => None,
    };
    let mut ibsim = Ibsim::connect(&IbsimOptions {
        socket: options.socket.clone(),
        node: options.node.clone(),
        role: Role::Responder,
        stale_client,
        ..IbsimOptions::default()
    })?;
    if let Some(file) = file
        && let Err(error) = write_client(&file, ibsim.client_id())
    {
        tracing::warn!(
            path = %file.display(), %error,
            "cannot save the ibsim client id; the next start attaches as a new client"
        );
    }
    // Packets for the SM that reach this port. If another manager on the node receives them, they
    // are meant for it.
    let methods = 1 << Method::TRAP.0 | 1 << Method::GET.0;
    if let Err(error) = ibsim.declare_methods(MgmtClass::SUBN_LID_ROUTED, methods) {
        tracing::info!(
            %error,
            "cannot receive the traps sent to this port; they are not relayed to the SM"
        );
    }
    let port = ibsim.local_port()?;
    tracing::info!(
        node = ibsim.node(), guid = %port.guid, lid = %port.lid,
        "attached to the fabric"
    );
    Ok((ibsim, port.guid))
}

fn read_client(file: &Path) -> Option<ClientId> {
    String::from_utf8(kept::read(file, CLIENT_LEN_MAX).ok()?).ok()?.trim().parse().ok()
}

fn write_client(file: &Path, client: ClientId) -> io::Result<()> {
    writeln!(kept::draft(file, 0o644)?, "{client}")
}

//! A dedicated queue pair on a port of this host.

use std::io;

use ib_mad::transport::umad::UmadPort;
use ib_mad::transport::verbs::{Verbs, VerbsError};
use ib_mad::types::{Guid, PortNum};

use crate::host::options::Options;

/// Makes a queue pair at the port that the command line names.
pub(crate) fn open(options: &Options) -> Result<(Verbs, Guid), VerbsError> {
    // Of a planarized port the device for data.
    let port = UmadPort::find(options.device.as_deref(), options.port.map(PortNum))?;
    let port = port.with_planes()?.gsi();
    let local = port.local()?;
    let verbs = Verbs::open(&port)?;
    let (guid, lid, qpn) = (local.guid, local.lid, verbs.qpn());
    tracing::info!(%port, %guid, %lid, %qpn, "opened a queue pair");
    Ok((verbs, guid))
}

/// Periodic upkeep: reads the port's tables again.
pub(crate) fn upkeep(verbs: &mut Verbs) -> io::Result<()> {
    verbs.refresh().map(drop)
}

/// A new queue pair would have another number, but the SM and clients know this one: exits, so that
/// the supervisor restarts the process.
pub(crate) fn give_up() -> Option<Verbs> {
    tracing::error!("queue pair failed; exiting so that the service manager restarts ibsa");
    std::process::exit(1);
}

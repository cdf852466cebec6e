//! The responder's own queue pair at a port of this host.

use std::io;

use ib_mad::transport::umad::UmadPort;
use ib_mad::transport::verbs::{Verbs, VerbsError};
use ib_mad::types::{Guid, PortNum};

use crate::options::Options;

/// Makes a queue pair at the port that the command line names.
pub(crate) fn open(options: &Options) -> Result<(Verbs, Guid), VerbsError> {
    let port = UmadPort::find(options.device.as_deref(), options.port.map(PortNum))?;
    let local = port.local()?;
    let verbs = Verbs::open(&port)?;
    let (guid, lid, qpn) = (local.guid, local.lid, verbs.qpn());
    tracing::info!(%port, %guid, %lid, %qpn, "opened a queue pair");
    Ok((verbs, guid))
}

/// What it needs now and then: the port's tables read again.
pub(crate) fn upkeep(verbs: &mut Verbs) -> io::Result<()> {
    verbs.refresh().map(drop)
}

/// Another one would have another number, while the SM and clients know this responder by the one it
/// began with: whoever supervises the process has to start it again.
pub(crate) fn give_up() -> Option<Verbs> {
    tracing::error!("the queue pair has failed; ending, to be started again with another one");
    std::process::exit(1);
}
